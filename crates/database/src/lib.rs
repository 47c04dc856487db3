//! The databases behind Tenure: PostgreSQL, and one SQLite file.
//!
//! Owns: connections, how a [`Script`] is carried out on each database, what its errors mean, repeating, limits of time,
//! the guard of the SQLite file, notices between processes.
//! Never: knows a table of the parts above. They hand in statements, scripts and migrations.
//!
//! Whoever needs a transaction writes it once, as a script, and gives it to a [`Database`].

pub mod backup;
pub mod group_commit;
pub mod notices;
pub mod postgres;
pub mod schema;
pub mod sqlite;

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
pub use database_core::{Answer, Class, DbError, Fit, Migration, Row, Schema, Script, Sql, Step, Tx, Value, Verdict};
use tokio::time::Instant;

pub use crate::notices::{Event, Notice, Notices, Subscription};
use crate::postgres::Postgres;
use crate::sqlite::Sqlite;

/// Times that [`Database::run`] runs a script at most.
const RUN_ATTEMPTS_MAX: usize = 6;
/// Time after which [`Database::run`] does not begin another attempt.
const RUN_TIME_MAX: Duration = Duration::from_secs(5);
/// Shortest and longest wait before another attempt, without jitter: two that met each other must not meet again, and a
/// server that restarts needs some hundred milliseconds.
const RUN_DELAYS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Which database it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A PostgreSQL server, shared by any number of processes.
    Postgres,
    /// An SQLite file, owned by one process.
    Sqlite,
}

impl Kind {
    /// The text that this database reads.
    #[must_use]
    pub const fn text(self, sql: &Sql) -> &'static str {
        match self {
            Self::Postgres => sql.postgres,
            Self::Sqlite => sql.sqlite,
        }
    }
}

/// How long a transaction may take.
///
/// On PostgreSQL the server enforces them, for this transaction only. On SQLite, `statement` bounds each statement, and
/// `lock` the wait for a lock that a foreign program has on the file; the others have no meaning there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// One statement (`statement_timeout`).
    pub statement: Duration,
    /// Waiting for one lock (`lock_timeout`).
    pub lock: Duration,
    /// Silence between two statements (`idle_in_transaction_session_timeout`).
    pub idle: Duration,
    /// The whole transaction (`transaction_timeout`, from PostgreSQL 17).
    pub transaction: Duration,
}

impl Default for Limits {
    /// For requests: a person or a worker waits for them.
    fn default() -> Self {
        Self {
            statement: Duration::from_secs(2),
            lock: Duration::from_millis(300),
            idle: Duration::from_secs(5),
            transaction: Duration::from_secs(5),
        }
    }
}

/// A database. Clones are cheap, and mean the same one.
#[derive(Debug, Clone)]
pub enum Database {
    /// A PostgreSQL server.
    Postgres(Postgres),
    /// An SQLite file.
    Sqlite(Sqlite),
}

impl Database {
    /// Runs a script once, in a transaction that may write, and returns what its verdict holds. `Ok` means that the
    /// commit is certain.
    ///
    /// # Errors
    ///
    /// What the script returned, or why a statement or the commit failed; then nothing was written, unless
    /// the class is [`Class::Unknown`].
    pub async fn run_once<T: Send + 'static>(&self, script: Script<T>) -> Result<T, DbError> {
        match self {
            Self::Postgres(database) => database.run_once(script).await,
            Self::Sqlite(database) => database.run_with(Limits::default(), script).await,
        }
    }

    /// As [`Database::run_once`], within these limits instead of the configured ones.
    ///
    /// # Errors
    ///
    /// As [`Database::run_once`].
    pub async fn run_with<T: Send + 'static>(&self, limits: Limits, script: Script<T>) -> Result<T, DbError> {
        match self {
            Self::Postgres(database) => database.run_with(limits, script).await,
            Self::Sqlite(database) => database.run_with(limits, script).await,
        }
    }

    /// Runs a script, and runs it anew while its failure passes by itself ([`Class::may_repeat`]): a bounded number of
    /// times and for a bounded time, with random pauses.
    ///
    /// # Errors
    ///
    /// The failure of the last attempt. One with an unknown result is never repeated.
    pub async fn run<T: Send + 'static>(&self, make: impl Fn() -> Script<T> + Send) -> Result<T, DbError> {
        let begun = Instant::now();
        let delays = ExponentialBuilder::default()
            .with_min_delay(RUN_DELAYS.0)
            .with_max_delay(RUN_DELAYS.1)
            .with_max_times(RUN_ATTEMPTS_MAX - 1)
            .with_jitter();
        (|| self.run_once(make()))
            .retry(delays)
            .when(|error: &DbError| error.class.may_repeat() && begun.elapsed() < RUN_TIME_MAX)
            .await
    }

    /// Runs a script that only reads. On SQLite it does not wait for writers, and sees what was committed before it
    /// began.
    ///
    /// # Errors
    ///
    /// As [`Database::run_once`]. Never [`Class::Unknown`].
    pub async fn read<T: Send + 'static>(&self, script: Script<T>) -> Result<T, DbError> {
        match self {
            Self::Postgres(database) => database.read(script).await,
            Self::Sqlite(database) => database.read(script).await,
        }
    }

    /// Which database it is.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Postgres(_) => Kind::Postgres,
            Self::Sqlite(_) => Kind::Sqlite,
        }
    }

    /// Hints to and from the other processes of this database.
    #[must_use]
    pub fn notices(&self) -> &Notices {
        match self {
            Self::Postgres(database) => database.notices(),
            Self::Sqlite(database) => database.notices(),
        }
    }
}
