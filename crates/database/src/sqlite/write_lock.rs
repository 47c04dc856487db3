//! The lock of one short write transaction, between the member and its guests.
//!
//! Owns: taking `DB.write` within a time, and finding who holds it for too long.
//! Never: ends a process; a hook is told the number.
//!
//! A `flock` has no time limit. So a thread of its own waits for it where it is held by somebody else, and the user of
//! the lock waits for that thread. Who gives up leaves the thread waiting; it gives the lock back at once if it is no
//! longer wanted.

use std::fs::{File, TryLockError};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::guard::open_lock;
use super::holder::pid_of_lock;
use super::{OpenError, Place};

/// Waiting longer than this makes the holder conspicuous: a write transaction of a guest takes milliseconds.
pub(super) const SLOW: Duration = Duration::from_secs(1);

/// Why the lock was not had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else holds it for longer than the caller could wait.
    #[error(
        "{} is held for more than {} ms by {}", path.display(), waited.as_millis(),
        holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    Held {
        /// The lock file.
        path: PathBuf,
        /// How long it was waited for.
        waited: Duration,
        /// The process, where the system says it.
        holder: Option<u32>,
    },
    /// The system refused.
    #[error("failed to lock {}: {source}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Not held, and nobody waits in the system.
    Free,
    /// The thread waits for it, or is about to.
    Waiting,
    /// Held by the user of this value.
    Held,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Whether a user is there to take what the thread gets.
    is_wanted: bool,
    /// What the system told the thread.
    failed: Option<io::Error>,
    has_ended: bool,
}

#[derive(Debug)]
struct Shared {
    file: File,
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `DB.write`, for one user in this process.
#[derive(Debug)]
pub struct WriteLock {
    path: PathBuf,
    shared: Arc<Shared>,
    has_thread: bool,
}

/// Holds [`WriteLock`] until it is dropped.
#[derive(Debug)]
pub struct Held<'a>(&'a Shared);

impl WriteLock {
    /// Opens the lock file of a database.
    ///
    /// # Errors
    ///
    /// [`OpenError::Io`].
    pub fn open(place: &Place) -> Result<Self, OpenError> {
        let state = State { phase: Phase::Free, is_wanted: false, failed: None, has_ended: false };
        let shared = Shared { file: open_lock(&place.write_lock)?, state: Mutex::new(state), changed: Condvar::new() };
        Ok(Self { path: place.write_lock.clone(), shared: Arc::new(shared), has_thread: false })
    }

    /// Takes the lock, waiting at most `limit`. Each time another second has passed, `on_slow` is told who holds it.
    ///
    /// # Errors
    ///
    /// [`LockError`]; the lock is not held then.
    pub fn lock(&mut self, limit: Duration, mut on_slow: impl FnMut(u32)) -> Result<Held<'_>, LockError> {
        let failed = |source| LockError::Io { path: self.path.clone(), source };
        if self.shared.state().phase == Phase::Free {
            match self.shared.file.try_lock() {
                Ok(()) => {
                    self.shared.state().phase = Phase::Held;
                    return Ok(Held(&self.shared));
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
        }
        if !self.has_thread {
            let shared = Arc::clone(&self.shared);
            std::thread::Builder::new()
                .name("sqlite-lock".into())
                .spawn(move || wait_in_the_system(&shared))
                .map_err(failed)?;
            self.has_thread = true;
        }
        let begun = Instant::now();
        let mut next_slow = SLOW;
        let mut state = self.shared.state();
        state.is_wanted = true;
        if state.phase == Phase::Free {
            state.phase = Phase::Waiting;
            self.shared.changed.notify_all();
        }
        loop {
            if state.phase == Phase::Held {
                state.is_wanted = false;
                return Ok(Held(&self.shared));
            }
            if let Some(source) = state.failed.take() {
                state.is_wanted = false;
                return Err(failed(source));
            }
            let waited = begun.elapsed();
            if waited >= limit {
                state.is_wanted = false;
                drop(state);
                let holder = pid_of_lock(&self.shared.file);
                return Err(LockError::Held { path: self.path.clone(), waited, holder });
            }
            if waited >= next_slow {
                next_slow += SLOW;
                drop(state);
                if let Some(pid) = pid_of_lock(&self.shared.file) {
                    on_slow(pid);
                }
                state = self.shared.state();
                continue;
            }
            let pause = limit.min(next_slow).saturating_sub(waited);
            state = self.shared.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for WriteLock {
    fn drop(&mut self) {
        self.shared.state().has_ended = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        // It cannot fail for a lock that is held; the end of the process would free it too.
        let _ = self.0.file.unlock();
        state.phase = Phase::Free;
    }
}

/// The thread: waits in the system whenever it is asked to.
fn wait_in_the_system(shared: &Shared) {
    let mut state = shared.state();
    loop {
        while state.phase != Phase::Waiting {
            if state.has_ended {
                return;
            }
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let locked = shared.file.lock();
        state = shared.state();
        match locked {
            Ok(()) if state.is_wanted => state.phase = Phase::Held,
            Ok(()) => {
                let _ = shared.file.unlock();
                state.phase = Phase::Free;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                state.failed = state.is_wanted.then_some(error);
                state.phase = Phase::Free;
            }
        }
        shared.changed.notify_all();
    }
}
