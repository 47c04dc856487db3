//! What several options must be together.
//!
//! Owns: rules between options of the configuration alone. What depends on the world, such as keys in the database, is
//! asked where that is known.

use std::time::Duration;

use crate::units::show_duration;
use crate::{Config, Origin, Problem};

/// Tells each rule that is broken; not one whose options are wrong by themselves, which has been told.
pub(crate) fn check(config: &Config, problems: &mut Vec<Problem>) {
    for (options, rule) in RULES {
        let is_known = problems.iter().any(|problem| options.iter().any(|option| problem.is_about(option)));
        if is_known {
            continue;
        }
        if let Some(wrong) = rule(config) {
            // The defaults obey the rules, so somebody has set one of them.
            let set = options.iter().map(|option| config.origin(option)).find(|origin| *origin != Origin::Default);
            problems.push(Problem::Rule { origin: set.unwrap_or(Origin::Default), wrong });
        }
    }
}

/// The options of a rule, the one first that a message should point at, and what is said if they break it.
type Rule = (&'static [&'static str], fn(&Config) -> Option<String>);

static RULES: &[Rule] = &[
    (&["database.direct_url", "database.url"], same_database),
    (&["http.tls_cert", "http.tls_key"], certificate_with_key),
    (&["cluster.lease", "cluster.renew", "cluster.statement_timeout", "cluster.margin"], lease_is_long_enough),
];

fn same_database(config: &Config) -> Option<String> {
    let database = &config.database;
    (database.direct_url.is_some() && !database.url.is_postgres()).then(|| {
        "database.direct_url is set, but database.url is SQLite; set database.url to a URL of PostgreSQL, or remove \
         database.direct_url"
            .to_owned()
    })
}

fn certificate_with_key(config: &Config) -> Option<String> {
    let (is, is_not) = match (&config.http.tls_cert, &config.http.tls_key) {
        (Some(_), None) => ("http.tls_cert", "http.tls_key"),
        (None, Some(_)) => ("http.tls_key", "http.tls_cert"),
        _ => return None,
    };
    Some(format!("{is} is set without {is_not}; set both, or neither for no TLS"))
}

/// Three renewals may fail, the last of them slowly, before the margin begins.
fn lease_is_long_enough(config: &Config) -> Option<String> {
    let times = &config.cluster;
    let needed: Duration = 3 * times.renew + times.statement_timeout + times.margin;
    (times.lease < needed).then(|| {
        format!(
            "cluster.lease is {}, but 3 × renew ({}) + statement_timeout ({}) + margin ({}) is {}; write a lease of at \
             least \"{}\", or shorten the others",
            show_duration(times.lease),
            show_duration(times.renew),
            show_duration(times.statement_timeout),
            show_duration(times.margin),
            show_duration(needed),
            show_duration(needed),
        )
    })
}
