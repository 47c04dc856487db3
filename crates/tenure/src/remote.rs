//! `tenure cluster`, `tenure key` and `tenure backup`: calls of the daemon that is configured here.
//!
//! Owns: the words of these commands and what they print.
//! Never: prints a secret but the one of a key that was just made.

use crate::exit::{self, Failure};
use crate::http::{CallError, Client, Place};
use crate::output::say;
use clap::Subcommand;
use comfy_table::{Table, presets::NOTHING};
use http_server::{KeyText, Scope};
use hyper::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tenure_config::{Config, LoadOptions};

/// What is asked about the cluster.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterLine {
    /// Show members, leases and leaders
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Change the length of all leases, while one member runs
    SetLease {
        /// The length, such as 30s
        #[arg(value_name = "TIME")]
        length: String,
    },
}

/// What is done with keys.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyLine {
    /// Make a key and print it; it is not kept, only its hash is
    Create {
        /// Name for people, unique among keys that are not revoked
        #[arg(value_name = "NAME")]
        name: String,

        /// What it may do: read, write, execute, worker, events, admin; give it several times for several
        #[arg(long = "scope", value_name = "SCOPE", required = true)]
        scopes: Vec<Scope>,

        /// Days until it ends by itself; without it, it does not
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=36_500))]
        days: Option<u64>,

        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show all keys, without their secrets
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key
    Revoke {
        /// Its name or id
        #[arg(value_name = "KEY")]
        key: String,
    },
}

/// Carries out what is asked about the cluster.
pub(crate) fn cluster(call: &ClusterLine, file: Option<PathBuf>) -> Result<(), Failure> {
    let (mut config, client) = client(file)?;
    match call {
        ClusterLine::Status { json } => {
            let page = client.call(Method::GET, "/v1/cluster", None)?;
            if *json {
                return print_json(&page);
            }
            print_cluster(&page);
            Ok(())
        }
        ClusterLine::SetLease { length } => {
            // Understood as the option is, so that both are written alike.
            config.set_by_flag("cluster.lease", length, "TIME").map_err(|error| Failure::new(exit::USAGE, error))?;
            let lease_ms = u64::try_from(config.cluster.lease.as_millis()).unwrap_or(u64::MAX);
            client.call(Method::PUT, "/v1/cluster/lease", Some(&json!({ "lease_ms": lease_ms })))?;
            say!("leases are {length} long; write cluster.lease = \"{length}\" into the configuration of all members");
            Ok(())
        }
    }
}

/// Carries out what is to be done with keys.
pub(crate) fn key(call: &KeyLine, file: Option<PathBuf>) -> Result<(), Failure> {
    let (config, client) = client(file)?;
    match call {
        KeyLine::Create { name, scopes, days, json } => {
            let key = KeyText::generate().map_err(|error| Failure::new(exit::SYSTEM, error))?;
            let life_seconds = days.map(|days| days * 24 * 3_600);
            let words: Vec<String> = scopes.iter().map(Scope::to_string).collect();
            let request = json!({
                "name": name, "scopes": words, "life_seconds": life_seconds, "hash": key.hash().to_string()
            });
            match client.call(Method::POST, "/v1/keys", Some(&request)) {
                Ok(_) => {}
                // Nobody to ask: the first key of an installation is made before its daemon may be reached by others.
                Err(CallError::Unreachable { .. }) => {
                    daemon::create_key(&config, name, scopes, &key.hash(), life_seconds).map_err(offline)?;
                }
                // It hangs, and whoever is told so wants to know which process it is.
                Err(error @ CallError::TooSlow { .. }) => {
                    let holder = daemon::file_in_use(&config).map(|held| format!("; {held}")).unwrap_or_default();
                    return Err(Failure::new(error.exit_code(), format!("{error}{holder}")));
                }
                Err(error) => return Err(error.into()),
            }
            let id = key.hash().id();
            if *json {
                return print_json(&json!({ "id": id.as_str(), "name": name, "key": key.reveal() }));
            }
            say!("{}", key.reveal());
            eprintln_note(&format!("this is the key {name} ({}); it cannot be shown again", id.as_str()));
            Ok(())
        }
        KeyLine::List { json } => {
            let page = client.call(Method::GET, "/v1/keys", None)?;
            if *json {
                return print_json(&page);
            }
            print_keys(&page);
            Ok(())
        }
        KeyLine::Revoke { key } => {
            let path = format!("/v1/keys/{}", utf8_percent_encode(key, NON_ALPHANUMERIC));
            client.call(Method::DELETE, &path, None)?;
            Ok(())
        }
    }
}

/// Copies the daemon's SQLite file into a folder.
pub(crate) fn backup(directory: &Path, file: Option<PathBuf>) -> Result<(), Failure> {
    /// A copy is as slow as the disk.
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(3_600);
    let (_, client) = client(file)?;
    let absolute = std::path::absolute(directory).map_err(|error| Failure::new(exit::SYSTEM, error))?;
    let request = json!({ "directory": absolute });
    let made = client.call_within(Method::POST, "/v1/backup", Some(&request), PATIENCE)?;
    say!("{} ({} bytes)", text(&made["file"]), made["bytes"]);
    Ok(())
}

fn client(file: Option<PathBuf>) -> Result<(Config, Client), Failure> {
    let config = tenure_config::load(LoadOptions::of_process(file))?;
    let client = Client::new(&Place::of(&config)?)?;
    Ok((config, client))
}

/// Why the command line could not do itself what a daemon would.
pub(crate) fn offline(error: daemon::OfflineError) -> Failure {
    /// The database or its options say no.
    const REFUSED: u8 = 2;
    let code = match &error {
        daemon::OfflineError::Storage(daemon::StorageError::File(_)) | daemon::OfflineError::System(_) => exit::SYSTEM,
        daemon::OfflineError::Storage(_) => tenure_config::EXIT_CODE,
        _ => REFUSED,
    };
    Failure::new(code, error)
}

fn print_json(value: &Value) -> Result<(), Failure> {
    say!("{}", serde_json::to_string_pretty(value).map_err(|error| Failure::new(exit::FAILED, error))?);
    Ok(())
}

/// Beside the answer, which may go into a file.
fn eprintln_note(note: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("tenure: {note}\n").as_bytes());
}

/// A text as it is, another value as JSON, null as a dash.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

fn print_table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(head.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for line in table.lines() {
        say!("{}", line.trim());
    }
}

fn rows<'a>(page: &'a Value, list: &str, columns: &'a [&str]) -> impl Iterator<Item = Vec<String>> + use<'a> {
    let rows = page[list].as_array().map(Vec::as_slice).unwrap_or_default();
    rows.iter().map(move |row| columns.iter().map(|column| text(&row[*column])).collect())
}

fn print_cluster(page: &Value) {
    say!(
        "database {}, commits are durable as `{}`; lease {} ms, beat {} ms; read {} ms ago by {}",
        text(&page["database"]),
        text(&page["durability"]),
        page["lease_ms"],
        page["beat_ms"],
        page["age_ms"],
        text(&page["me"])
    );
    if let Value::String(trouble) = &page["trouble"] {
        say!("TROUBLE: {trouble}");
    }
    let columns = ["no", "id", "host", "pid", "lease_left_ms", "beat_age_ms", "schema_version"];
    print_table(
        &["member", "id", "host", "process", "lease left ms", "beat ms ago", "schema"],
        rows(page, "members", &columns),
    );
    let columns = ["name", "epoch", "holder", "lease_left_ms"];
    print_table(&["leadership", "epoch", "holder", "lease left ms"], rows(page, "leaders", &columns));
}

fn print_keys(page: &Value) {
    let columns = ["name", "id", "scopes", "kept_in", "created_at", "expires_at", "revoked_at", "used_at", "uses"];
    print_table(
        &["name", "id", "scopes", "kept in", "created", "expires", "revoked", "last used", "uses"],
        rows(page, "keys", &columns),
    );
}
