//! Every statement about the cluster, by id: what it takes, what it gives, and how each database says it.
//!
//! The simulated database of the tests carries out the same ids; one suite of scripts runs on all and compares.
//!
//! `clock_timestamp()` stands everywhere, unqualified: `now()` stands still within a transaction, and a test shifts the
//! clock by a function of the same name in front of the search path. A text that is empty has no use in that database.

pub mod cache;
pub mod counter;
pub mod leader;
pub mod member;
pub mod request;
pub mod ticket;

use database_core::Sql;

/// All statements.
#[must_use]
pub fn all() -> Vec<&'static Sql> {
    [member::ALL, leader::ALL, ticket::ALL, counter::ALL, cache::ALL, request::ALL].concat()
}
