//! One SQLite file, owned by one process.
//!
//! Owns: the guard of the file, one writer thread, a few reader threads, how a script runs on them.
//! Never: lets a second member open the file, or anything but SQLite open or close it.
//!
//! Beside the file `DB` lie two lock files, which are never removed. The member holds `DB.member` from before it opens
//! the database until its end. `DB.write` is held for one write transaction at a time, by whoever writes: the member's
//! writer thread and its guests.
//!
//! A script runs on a thread to its end, whether its caller still waits or not.

mod guard;
mod holder;
mod place;
mod statement;
mod worker;
mod write_lock;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use database_core::{Class, DbError, Script};
use tokio::sync::{mpsc, oneshot};

use self::guard::MemberLock;
pub use self::holder::Holder;
pub use self::place::Place;
pub(crate) use self::statement::{EXECUTE_TEXT, failure};
use self::worker::{Errand, Role, Worker};
pub use self::write_lock::{Held, LockError, WriteLock};
use crate::{Limits, Notices};

/// Scripts that wait for the writer thread, and for the readers. Beyond that, callers wait to be let in.
const QUEUE_MAX: usize = 256;
/// How long a script waits for its turn, callers that wait to be let in included. The writer is away for so long only if
/// somebody else holds `DB.write`, or the disk does not answer.
const TURN_WAIT_MAX: Duration = Duration::from_secs(10);
/// Threads that read, unless told otherwise: reads are short, and compete with the writer for few cores.
pub const READERS: usize = 2;

/// When a commit is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Sync {
    /// Before it is acknowledged: it survives a power loss.
    #[default]
    Full,
    /// At some later time: after a power loss the last commits may be missing. Survives the end of the process.
    Normal,
}

/// Is told the process that has held `DB.write` for longer than a second.
pub type OnStuckGuest = Arc<dyn Fn(u32) + Send + std::marker::Sync>;

/// How to open a file.
#[derive(Clone)]
pub struct Settings {
    /// The file, which is made if it does not exist. Its folder must exist.
    pub path: PathBuf,
    /// When a commit is on the disk.
    pub sync: Sync,
    /// Threads that read, at least 1.
    pub readers: usize,
    /// What this process is, for those who find the file in use: `tenure daemon`.
    pub role: String,
    /// Called on the writer thread while it waits for a guest; the next call comes a second later.
    pub on_stuck_guest: Option<OnStuckGuest>,
}

impl Settings {
    /// The usual ones.
    pub fn new(path: impl Into<PathBuf>, role: impl Into<String>) -> Self {
        Self { path: path.into(), sync: Sync::Full, readers: READERS, role: role.into(), on_stuck_guest: None }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, sync, readers, role, on_stuck_guest } = self;
        formatter
            .debug_struct("Settings")
            .field("path", path)
            .field("sync", sync)
            .field("readers", readers)
            .field("role", role)
            .field("on_stuck_guest", &on_stuck_guest.is_some())
            .finish()
    }
}

/// Why a file was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process is the member of this file.
    #[error("the database {} is in use by {holder}", database.display())]
    Held {
        /// The real path of the file.
        database: PathBuf,
        /// Who has it.
        holder: Holder,
    },
    /// Where it lies, it could not be protected.
    #[error("the database {} cannot be used: {what}", database.display())]
    Unfit {
        /// The file.
        database: PathBuf,
        /// Why, and what would be right.
        what: String,
    },
    /// A file or folder cannot be had.
    #[error("failed to {action} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// SQLite cannot work with it.
    #[error("failed to open the database {}: {source}", database.display())]
    Database {
        /// The file.
        database: PathBuf,
        /// What SQLite said.
        source: DbError,
    },
}

/// An open SQLite file, of which this process is the member. Clones are cheap, and mean the same one.
#[derive(Clone)]
pub struct Sqlite {
    inner: Arc<Inner>,
}

struct Inner {
    place: Place,
    /// Of the threads, which hold it.
    lock: Weak<MemberLock>,
    sync: Sync,
    writer: mpsc::Sender<Errand>,
    readers: mpsc::Sender<Errand>,
    reader_count: usize,
    /// The writer's, then the readers'. Each holds the lock until it has closed its connection.
    threads: Mutex<Vec<JoinHandle<()>>>,
    notices: Notices,
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sqlite").field("path", &self.inner.place.database).finish_non_exhaustive()
    }
}

async fn join(threads: Vec<JoinHandle<()>>) {
    let joined = tokio::task::spawn_blocking(move || threads.into_iter().for_each(|thread| drop(thread.join())));
    drop(joined.await);
}

impl Sqlite {
    /// Becomes the member of a file and opens it. Blocks for as long as SQLite needs to recover its log.
    ///
    /// # Errors
    ///
    /// [`OpenError`] by reaction; nothing of the database was read if another process is its member.
    pub fn open(settings: &Settings) -> Result<Self, OpenError> {
        let place = Place::find(&settings.path)?;
        let lock = Arc::new(MemberLock::take(&place, &settings.role)?);
        let (writer, errands) = mpsc::channel(QUEUE_MAX);
        let role = Role::Writer {
            sync: settings.sync,
            lock: WriteLock::open(&place)?,
            on_stuck_guest: settings.on_stuck_guest.clone(),
        };
        let mut workers = vec![(Worker::open(&place, role, &lock)?, Arc::new(Mutex::new(errands)))];
        let (readers, errands) = mpsc::channel(QUEUE_MAX);
        let errands = Arc::new(Mutex::new(errands));
        let reader_count = settings.readers.max(1);
        for _ in 0..reader_count {
            workers.push((Worker::open(&place, Role::Reader, &lock)?, Arc::clone(&errands)));
        }
        let spawn = |(worker, errands): (Worker, Arc<Mutex<mpsc::Receiver<Errand>>>)| {
            let name = worker.name().to_owned();
            std::thread::Builder::new().name(name).spawn(move || worker.run(&errands))
        };
        let threads = workers.into_iter().map(spawn).collect::<io::Result<Vec<_>>>();
        let threads = threads.map_err(place::io_error("start threads for", &place.database))?;
        let inner = Inner {
            place,
            lock: Arc::downgrade(&lock),
            sync: settings.sync,
            writer,
            readers,
            reader_count,
            threads: Mutex::new(threads),
            notices: Notices::local(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The real path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.place.database
    }

    /// When a commit is on the disk.
    #[must_use]
    pub fn sync(&self) -> Sync {
        self.inner.sync
    }

    /// Ends the threads after what they have in hand, closes the file and gives it up; also for the other clones. The
    /// writer is the last to close it: SQLite moves the write-ahead log into the file at the last close, and gives up if two
    /// are the last at once. Without this call, all that happens some time after the last clone is gone.
    pub async fn close(&self) {
        let mut threads = std::mem::take(&mut *self.inner.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let readers = threads.split_off(threads.len().min(1));
        for _ in 0..self.inner.reader_count {
            let _is_closed_already = self.inner.readers.send(Errand::Stop).await;
        }
        join(readers).await;
        let _is_closed_already = self.inner.writer.send(Errand::Stop).await;
        join(threads).await;
    }

    /// Keeps the file ours for as long as the result lives.
    pub(crate) fn member(&self) -> Result<impl Send + 'static, DbError> {
        self.inner.lock.upgrade().ok_or_else(closed)
    }

    pub(crate) async fn run_with<T: Send + 'static>(&self, limits: Limits, script: Script<T>) -> Result<T, DbError> {
        on(&self.inner.writer, move |worker| worker.write(limits, script)).await
    }

    pub(crate) async fn read<T: Send + 'static>(&self, script: Script<T>) -> Result<T, DbError> {
        on(&self.inner.readers, move |worker| worker.read(Limits::default(), script)).await
    }

    pub(crate) fn notices(&self) -> &Notices {
        &self.inner.notices
    }
}

/// Has work done by a worker, and waits for its result.
async fn on<T: Send + 'static>(
    queue: &mpsc::Sender<Errand>,
    work: impl FnOnce(&mut Worker) -> Result<T, DbError> + Send + 'static,
) -> Result<T, DbError> {
    let (answer, answered) = oneshot::channel();
    let asked = std::time::Instant::now();
    let errand = Errand::Work(Box::new(move |worker: &mut Worker| {
        // Whoever is not waited for any more, or has waited too long, is not begun.
        if answer.is_closed() {
            return;
        }
        let result = if asked.elapsed() < TURN_WAIT_MAX { work(worker) } else { Err(too_long()) };
        let _nobody_waits = answer.send(result);
    }));
    match queue.send_timeout(errand, TURN_WAIT_MAX).await {
        Ok(()) => {}
        Err(mpsc::error::SendTimeoutError::Timeout(_)) => return Err(too_long()),
        Err(mpsc::error::SendTimeoutError::Closed(_)) => return Err(closed()),
    }
    // An errand that was in the queue at the stop is dropped.
    answered.await.unwrap_or_else(|_| Err(closed()))
}

fn too_long() -> DbError {
    let waited = TURN_WAIT_MAX.as_secs();
    DbError::new(Class::Exhausted, format!("the SQLite database did not get to it within {waited} s"))
}

fn closed() -> DbError {
    DbError::new(Class::Unavailable, "the SQLite database was closed")
}
