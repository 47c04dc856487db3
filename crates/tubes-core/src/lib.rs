//! Rules of the queue server: what happens to jobs, tubes and sessions, and when.
//!
//! Owns: every job, tube and session of one server or owner, and their timers ([`Engine`]).
//! Never: reads a clock, opens a file or socket, draws a random number or waits. Callers pass the time in and carry the
//! effects out: first the log's, then the replies'.
//!
//! # Time
//!
//! A caller shows the engine one instant per turn: it calls [`Engine::tick`] with it, then handles the turn's commands
//! with the same one. What is due at a tick happens in these phases, however late the tick is; of very many delayed jobs
//! that are due together some become ready in the ticks behind it, at once:
//!
//! 1. pauses end;
//! 2. delayed jobs become ready;
//! 3. waiting sessions in the last second of a job they hold are answered `DEADLINE_SOON`;
//! 4. reserved jobs whose time to run is over become ready;
//! 5. ready jobs meet waiting sessions: the smallest (priority, id) of all tubes concerned first, in each tube the
//!    session that has waited longest;
//! 6. sessions whose time-out has come and which still wait are answered `TIMED_OUT`.

mod arena;
mod engine;
mod index;
mod job;
pub mod journal;
mod partition;
pub mod planted;
mod ready;
mod session;
mod tube;

pub use engine::{Engine, EngineOptions, Offered, Outbox};
pub use index::NumberHasher;
pub use partition::{PARTITIONS, partition_of};
pub use session::SessionId;

/// One instant, read by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds of a clock that counts suspend and that steps of the wall clock do not touch.
    pub boot_ns: u64,
    /// Milliseconds of wall time since 1970; appears in the log only.
    pub wall_ms: u64,
}

/// Nanoseconds in a second.
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// The time before a deadline in which its holder is warned instead of being let wait, in ns (the original's).
pub(crate) const DEADLINE_MARGIN_NS: u64 = SECOND_NS;

/// Jobs with a smaller priority count as urgent (the original's).
pub(crate) const URGENT_BELOW: u32 = 1024;
