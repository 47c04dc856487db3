//! Judges what clients of a real server have seen, after the fact.
//!
//! Owns: the text format of a history, and the checks. A history is what clients logged, what the server traced, and
//! what was there in the end.
//! Never: talks to a server, or searches for an order: the server's trace gives it, so every check is one pass.
//!
//! # Format
//!
//! Lines of words. Times are ns of the clock of timers (`CLOCK_BOOTTIME`, one machine). Clients write:
//!
//! - `open K PORT T`: connection K, a number of its own in the whole history, is open from the local port PORT.
//! - `invoke K N T COMMAND…`: command N (from 1) of connection K is about to be sent, as its line on the wire. Of a
//!   put's body only the hash follows: `put PRI DELAY TTR BYTES HASH`.
//! - `ok K N T REPLY…`: its reply, without CR LF. After `RESERVED` and `FOUND` the hash of the body follows; the text of
//!   `OK` replies follows with `|` for each line end.
//! - `fail K N T`: it was not sent.
//! - `gone K T`: connection K has ended. What is neither `ok` nor `fail` is unknown.
//! - `end T`, then `present ID HASH` for every job that was there when all was over.
//!
//! The server (feature `trace`) writes to a file of its own:
//!
//! - `start G T`: generation G begins.
//! - `accept G C PORT T`: its connection C comes from PORT.
//! - `reply G C N S T`: the reply to command N of C was decided as number S of this generation, in the turn of T.
//! - `close G C S T`: C has ended, its jobs are free.
//!
//! Of a server of several owners each writes the same with `OWNER.GENERATION` for G and numbers of its own: its order is
//! (generation, sequence), and there is none between owners but real time. A connection is accepted by every owner that
//! it reaches. Whoever asked for a drain writes `drained T` when it was reported that no process accepts a new job. Such a
//! history is not replayed; the simulation of several processes compares each owner with the model as it goes.
//!
//! Real processes trace each for itself, in the words of `crates/tubes-server/src/trace_multi.rs`, from which
//! [`History::parse_processes`] makes the same; such a history is replayed, each owner in a model of its own.
//!
//! [`History::parse`] takes both texts in any order of pieces, as long as each connection's and each generation's lines
//! keep theirs.
//!
//! # After a kill
//!
//! What was acknowledged has survived, and so has what was decided before it, as the log is a sequence. What was decided
//! later, or sent and never decided, may have survived. So whoever restarts the server first asks, on a connection of
//! its own, `peek ID` and `stats-job ID` of every job that such a command may have touched, and of the next ids as far
//! as there are unknown puts. The replies settle it; a command on a job that is not settled is no violation, but
//! [`Kind::Unsettled`], a fault of whoever made the history.

mod owners;
mod parse;
mod processes;
mod recovery;
mod replay;
mod structure;
mod tubes;

pub use parse::{Command, Connection, Decision, Event, History, Invocation, Malformed, Reply, life_of, owner_of};
pub use processes::{Deed, FRONTENDS_FROM, Found, OwnerLife, Traces, What};

/// What kind of promise was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A reply that the server never decided.
    Untraced,
    /// Two decisions for one command.
    DecidedTwice,
    /// Decisions of a connection not in the order of its commands.
    ConnectionOrder,
    /// Numbers of decisions with a gap or a repeat.
    Sequence,
    /// Generations that do not rise.
    Generation,
    /// A reply that was there before its decision, or a decision before its command.
    Causality,
    /// A command that began after the reply to another was there, but was decided before it.
    RealTime,
    /// An id given twice.
    IdReused,
    /// An id below one that was given before.
    IdNotRising,
    /// A job reserved by two at once.
    Overlap,
    /// A body that is not the job's.
    WrongBody,
    /// A job that nobody can have put.
    UnknownJob,
    /// A job that was acknowledged, never deleted, and is gone.
    Lost,
    /// A job that is there after its delete was acknowledged.
    Resurrected,
    /// An unknown put that appears more than once.
    AppearsTwice,
    /// A job was handed out although a better one was ready.
    Priority,
    /// A job was handed out before its delay or a pause was over.
    Early,
    /// Nothing was handed out although a job was ready.
    Missed,
    /// `TIMED_OUT` before the time was over.
    TimeoutEarly,
    /// A timed answer far too late.
    Late,
    /// `DEADLINE_SOON` without a deadline that is near.
    DeadlineSoon,
    /// Any other reply that the rules do not give.
    WrongReply,
    /// A state after a restart that no order of the unknown commands explains.
    WrongRecovery,
    /// A job that two owners have decided about.
    WrongOwner,
    /// A decision of a generation whose successor had started.
    Stale,
    /// A connection that goes on though an owner ended with a job that it held.
    HolderStays,
    /// A job that was accepted after it was reported that none is.
    AfterDrain,
    /// Commands on a job whose state after a restart nobody has asked for: the history is of no use.
    Unsettled,
}

/// One broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What kind.
    pub kind: Kind,
    /// What was seen.
    pub what: String,
}

/// What a check has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Nothing, if all is well.
    pub violations: Vec<Violation>,
    /// Replies that were compared with the reference model.
    pub replayed: u64,
    /// Commands whose outcome nobody knows.
    pub unknown: u64,
    /// Generations of the server.
    pub generations: u64,
    /// Reservations whose spans were compared.
    pub reservations: u64,
    /// How late timed answers were: below 1 ms, 10 ms, 100 ms, 1 s, and more.
    pub lateness: [u64; 5],
}

impl Report {
    fn add(&mut self, kind: Kind, what: String) {
        self.violations.push(Violation { kind, what });
    }
}

/// How late a timed answer may be, in ns: the promise is 1 s and load; limits for users are tested at ten times.
pub const LATE_NS_MAX: u64 = 10_000_000_000;

/// Checks a whole history.
#[must_use]
pub fn check(history: &History) -> Report {
    let mut report = Report { generations: history.starts.len() as u64, ..Report::default() };
    structure::check(history, &mut report);
    // A history that contradicts itself cannot be replayed.
    let is_of_one = history.starts.iter().all(|(life, _)| owner_of(*life) == 0);
    if report.violations.is_empty() && !history.owners.is_empty() {
        owners::check(history, &mut report);
    } else if report.violations.is_empty() && is_of_one {
        replay::check(history, &mut report);
    }
    report
}

/// The hash by which histories name bodies (FNV-1a, 64 bits).
#[must_use]
pub fn body_hash(body: &[u8]) -> u64 {
    body.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
