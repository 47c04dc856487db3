//! A thread with a connection.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use database_core::{Class, DbError, Script, Step, Verdict};
use rusqlite::{Connection, OpenFlags};
use tokio::sync::mpsc;

use super::guard::MemberLock;
use super::place::Place;
use super::statement::{Session, failure};
use super::write_lock::{LockError, WriteLock};
use super::{OnStuckGuest, OpenError, Sync};
use crate::Limits;

/// How long a transaction waits for `DB.write`: a guest that hangs is noticed after a second, and killed then.
const WRITE_LOCK_WAIT: Duration = Duration::from_secs(5);
/// Pages in the write-ahead log at which the writer copies them into the database: some 16 MiB.
const CHECKPOINT_PAGES: u32 = 4_000;
/// Bytes that the log's file keeps after all of it was copied.
const LOG_BYTES_KEPT: u64 = 64 << 20;
/// Statements that set a connection up.
const COMMON: &str = "PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF; PRAGMA cache_size = -16384;";

/// What a worker is told.
pub(super) enum Errand {
    Work(Box<dyn FnOnce(&mut Worker) + Send>),
    Stop,
}

pub(super) enum Role {
    Writer { sync: Sync, lock: WriteLock, on_stuck_guest: Option<OnStuckGuest> },
    Reader,
}

pub(super) struct Worker {
    place: Place,
    role: Role,
    /// `None` after a commit with unknown result, until the next errand.
    session: Option<Session>,
    /// Given up last: fields are dropped in this order.
    _lock: Arc<MemberLock>,
}

impl Worker {
    pub(super) fn open(place: &Place, role: Role, lock: &Arc<MemberLock>) -> Result<Self, OpenError> {
        let session = open_session(place, &role)
            .map_err(|source| OpenError::Database { database: place.database.clone(), source })?;
        Ok(Self { place: place.clone(), role, session: Some(session), _lock: Arc::clone(lock) })
    }

    pub(super) fn name(&self) -> &'static str {
        match self.role {
            Role::Writer { .. } => "sqlite-write",
            Role::Reader => "sqlite-read",
        }
    }

    /// Does errands until it is told to stop or nobody can send any more.
    pub(super) fn run(mut self, errands: &Mutex<mpsc::Receiver<Errand>>) {
        loop {
            let next = errands.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
            match next {
                Some(Errand::Work(work)) => work(&mut self),
                Some(Errand::Stop) | None => return,
            }
        }
    }

    /// Runs a script that may write.
    pub(super) fn write<T>(&mut self, limits: Limits, script: Script<T>) -> Result<T, DbError> {
        let Self { place, role: Role::Writer { sync, lock, on_stuck_guest }, session, .. } = self else {
            return Err(DbError::new(Class::Broken, "a reader's connection does not write"));
        };
        let on_slow = |pid| {
            tracing::warn!(pid, file = %place.write_lock.display(), "a process holds the write lock for long");
            if let Some(on_stuck_guest) = &on_stuck_guest {
                on_stuck_guest(pid);
            }
        };
        let held = lock.lock(WRITE_LOCK_WAIT, on_slow).map_err(|error| lock_failure(&error))?;
        let open = match session.take() {
            Some(session) => session,
            None => open_writer(place, *sync)?,
        };
        let (result, open) = carry_out(open, limits, script, "BEGIN IMMEDIATE");
        *session = open;
        drop(held);
        result
    }

    /// Runs a script that only reads.
    pub(super) fn read<T>(&mut self, limits: Limits, script: Script<T>) -> Result<T, DbError> {
        let open = match self.session.take() {
            Some(session) => session,
            None => open_reader(&self.place)?,
        };
        let (result, open) = carry_out(open, limits, script, "BEGIN");
        self.session = open;
        result
    }
}

fn lock_failure(error: &LockError) -> DbError {
    let class = match error {
        LockError::Held { .. } => Class::Locked,
        LockError::Io { .. } => Class::Unavailable,
    };
    DbError::new(class, error.to_string())
}

/// Runs a script to its end, and returns the session if it can be used again.
fn carry_out<T>(
    mut session: Session,
    limits: Limits,
    script: Script<T>,
    begin: &str,
) -> (Result<T, DbError>, Option<Session>) {
    let result = transact(&mut session, limits, script, begin);
    let is_unknown = matches!(&result, Err(error) if error.class == Class::Unknown);
    // A statement's failure may have ended the transaction already.
    if !session.connection.is_autocommit() && session.batch("ROLLBACK", "ROLLBACK").is_err() || is_unknown {
        return (result, None);
    }
    (result, Some(session))
}

/// Leaves the transaction open if it is to be rolled back.
fn transact<T>(session: &mut Session, limits: Limits, script: Script<T>, begin: &str) -> Result<T, DbError> {
    session.connection.busy_timeout(limits.lock).map_err(|error| failure("busy_timeout", &error))?;
    if !script.is_transaction() {
        return match drive(session, limits, script)? {
            Verdict::Commit(value) | Verdict::RollBack(value) => Ok(value),
        };
    }
    session.batch("BEGIN", begin)?;
    match drive(session, limits, script)? {
        Verdict::RollBack(value) => Ok(value),
        Verdict::Commit(value) => match session.batch("COMMIT", "COMMIT") {
            Ok(()) => Ok(value),
            Err(error) => Err(commit_failure(error)),
        },
    }
}

/// After a failed write or sync the commit may be found when the file is next opened.
fn commit_failure(error: DbError) -> DbError {
    match error.class {
        Class::Unavailable => DbError { class: Class::Unknown, ..error },
        _ => error,
    }
}

fn drive<T>(session: &mut Session, limits: Limits, mut script: Script<T>) -> Result<Verdict<T>, DbError> {
    let commits_itself = !script.is_transaction();
    let mut failed = None;
    let mut answer = None;
    loop {
        // The code of a script is not ours: its panic must not end the thread, nor leave its transaction open.
        let step = catch_unwind(AssertUnwindSafe(|| script.step(answer.take())));
        match step.unwrap_or_else(|_| Step::Done(Err(DbError::new(Class::Broken, "the transaction's code panicked")))) {
            // As in PostgreSQL, nothing succeeds after a failure.
            Step::Query(sql, values) => {
                let result = match &failed {
                    Some(error) => Err(DbError::clone(error)),
                    None => session.execute(sql, &values, limits.statement),
                };
                let result = if commits_itself { result.map_err(commit_failure) } else { result };
                failed = result.as_ref().err().cloned();
                answer = Some(result);
            }
            Step::Done(Ok(Verdict::Commit(_))) if failed.is_some() => break Err(failed.expect("just seen")),
            Step::Done(result) => break result,
        }
    }
}

fn open_session(place: &Place, role: &Role) -> Result<Session, DbError> {
    match role {
        Role::Writer { sync, .. } => open_writer(place, *sync),
        Role::Reader => open_reader(place),
    }
}

fn open_writer(place: &Place, sync: Sync) -> Result<Session, DbError> {
    let session = connect(place, OpenFlags::SQLITE_OPEN_CREATE)?;
    let mode: String = session
        .connection
        .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
        .map_err(|error| failure("PRAGMA journal_mode", &error))?;
    if mode != "wal" {
        let message = format!("SQLite cannot keep a write-ahead log there (journal mode {mode})");
        return Err(DbError::new(Class::Broken, message));
    }
    let sync = match sync {
        Sync::Full => "FULL",
        Sync::Normal => "NORMAL",
    };
    session.batch(
        "set up the writer",
        &format!(
            "PRAGMA synchronous = {sync}; PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}; \
             PRAGMA journal_size_limit = {LOG_BYTES_KEPT};"
        ),
    )?;
    Ok(session)
}

fn open_reader(place: &Place) -> Result<Session, DbError> {
    let session = connect(place, OpenFlags::empty())?;
    session.batch("set up a reader", "PRAGMA query_only = ON;")?;
    Ok(session)
}

fn connect(place: &Place, more: OpenFlags) -> Result<Session, DbError> {
    // One thread uses a connection. The path is real, so a link in it has been put there meanwhile.
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW | more;
    let connection = Connection::open_with_flags(&place.database, flags).map_err(|error| failure("open", &error))?;
    let session = Session::new(connection)?;
    session.batch("set up a connection", COMMON)?;
    Ok(session)
}
