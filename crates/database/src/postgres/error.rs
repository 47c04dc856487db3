//! What an error of the driver means.

use std::error::Error as _;
use std::io;

use database_core::{Class, DbError};
use tokio_postgres::error::{DbError as ServerError, Severity};

/// What was under way when the error came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Something that leaves nothing behind without a commit.
    BeforeCommit,
    /// A commit, or a statement that commits by itself, has been sent.
    Committing,
}

/// An error, and whether the connection must not be used any more.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: DbError,
    pub(super) ends_connection: bool,
}

impl Failure {
    /// One that leaves the connection as it was.
    pub(super) fn harmless(class: Class, message: impl Into<String>) -> Self {
        Self { error: DbError::new(class, message), ends_connection: false }
    }

    /// No answer within `limit`.
    pub(super) fn unanswered(what: &str, limit: std::time::Duration, phase: Phase) -> Self {
        let class = if phase == Phase::Committing { Class::Unknown } else { Class::TimedOut };
        let message = format!("{what}: no answer of the server within {} ms", limit.as_millis());
        Self { error: DbError::new(class, message), ends_connection: true }
    }

    /// What the driver says about `what`, the id of a statement or a word for another step. `end` is why the connection
    /// ended, if it did.
    pub(super) fn of(error: &tokio_postgres::Error, what: &str, phase: Phase, end: Option<&str>) -> Self {
        match error.as_db_error() {
            Some(said) => Self::said(said, what, phase),
            None => {
                let class = if phase == Phase::Committing { Class::Unknown } else { Class::Unavailable };
                let message =
                    format!("{what}: the connection was lost: {}", end.map_or_else(|| cause(error), Into::into));
                Self { error: DbError::new(class, message), ends_connection: true }
            }
        }
    }

    fn said(said: &ServerError, what: &str, phase: Phase) -> Self {
        let is_fatal = matches!(said.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
            || matches!(said.severity(), "FATAL" | "PANIC");
        let mut class = Class::of_sqlstate(said.code().code());
        // A plan that was cached before a migration. Nothing was executed; a fresh connection plans anew.
        let is_stale_plan = said.routine() == Some("RevalidateCachedQuery");
        if is_stale_plan {
            class = Class::Conflict;
        }
        // The server commits before it answers, and a pooler answers for a server that it has lost: the end of the
        // connection says nothing about the commit.
        if phase == Phase::Committing && (is_fatal || class == Class::Unavailable) {
            class = Class::Unknown;
        } else if is_fatal && class == Class::Broken {
            class = Class::Unavailable;
        }
        let error = DbError {
            class,
            code: Some(said.code().code().to_owned()),
            message: format!("{what}: {}", text(said)),
            constraint: said.constraint().map(ToOwned::to_owned),
        };
        Self { ends_connection: is_fatal || is_stale_plan || class.ends_connection(), error }
    }

    /// Why a connection could not be made to `host`.
    pub(super) fn to_connect(error: &tokio_postgres::Error, host: &str) -> DbError {
        let read_only = error
            .source()
            .and_then(|source| source.downcast_ref::<io::Error>())
            .is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none());
        if read_only {
            return DbError::new(Class::ReadOnly, format!("{host}: this server only reads"));
        }
        match error.as_db_error() {
            Some(said) => DbError {
                code: Some(said.code().code().to_owned()),
                ..DbError::new(Class::of_sqlstate(said.code().code()), format!("{host}: {}", text(said)))
            },
            None => DbError::new(Class::Unavailable, format!("{host}: {}", cause(error))),
        }
    }
}

/// What the server says, without the values that it quotes when it refuses data.
pub(super) fn text(said: &ServerError) -> String {
    match said.code().code().get(..2) {
        Some("22") => "the database does not take a value that it was given".to_owned(),
        _ => said.message().to_owned(),
    }
}

/// The innermost reason, behind the driver's own words.
pub(super) fn cause(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => format!("{} ({})", text(said), said.code().code()),
        None => error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}")),
    }
}
