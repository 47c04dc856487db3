//! The audit log behind the door: entries of calls that arrive together are written together.

use database::Database;
use database::group_commit::{GroupCommit, Settings};
use http_server::{AuditEntry, AuditFailed, AuditSink, Recording};

use crate::store::audit::{self, Entry};

/// Writes entries into the database. A call is answered when its entry is committed.
pub(crate) struct AuditLog(GroupCommit<Entry, ()>);

impl AuditLog {
    pub(crate) fn new(database: Database) -> Self {
        Self(GroupCommit::start(database, Settings::default(), |entries: &[Entry]| audit::insert_all(entries)))
    }
}

impl AuditSink for AuditLog {
    fn record(&self, entry: AuditEntry) -> Recording<'_> {
        let parameters: Vec<String> = entry.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let who = match &entry.caller {
            http_server::Caller::Key { key, .. } => format!("{} ({})", key.name, key.hash.id()),
            http_server::Caller::Anonymous => "anonymous".to_owned(),
        };
        let entry = Entry {
            who,
            origin: entry.from.ip().to_string(),
            action: format!("{} {}", entry.method, entry.route),
            target: parameters.join(" "),
            // Not known: the client left before the end.
            status: entry.status.map_or(0, |status| status.as_u16()),
        };
        let bytes = entry.who.len() + entry.origin.len() + entry.action.len() + entry.target.len() + 64;
        Box::pin(async move { self.0.submit(entry, bytes).await.map_err(|error| AuditFailed(error.to_string())) })
    }
}
