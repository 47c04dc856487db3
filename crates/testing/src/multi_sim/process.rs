//! What all processes have in common: when they can run, what the supervisor tells them, what they say to it.

use std::collections::VecDeque;

use supervisor::{Ending, FailureCause, FromChild, Instance, Instruction};

/// A process in one life of the server: generations of frontends begin anew with each supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pid {
    pub(super) life: u64,
    pub(super) who: Instance,
}

/// What the supervisor sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    Say(Instruction),
    Link { peer: Instance, pipe: u64, number: u64 },
}

/// What the supervisor hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heard {
    Said { by: Instance, report: FromChild },
    Ended { who: Instance, how: Ending },
}

/// How a process goes on after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Runs,
    /// It ends by itself; a failed write was reported before.
    Exits(i32),
    /// Something ends it in the middle of a turn.
    Dies,
}

/// The process as the system sees it.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: Pid,
    /// Before, it cannot run.
    pub(super) free_at_ns: u64,
    pub(super) turn_at_ns: Option<u64>,
    pub(super) control: VecDeque<Control>,
    /// When the last control message arrives, and the last of its own at the supervisor.
    pub(super) told_ns: u64,
    pub(super) said_ns: u64,
    /// What it says at the end of the turn.
    pub(super) says: Vec<FromChild>,
    pub(super) is_ready: bool,
    pub(super) drained_start: bool,
}

impl Process {
    pub(super) fn new(pid: Pid, now_ns: u64, drained_start: bool) -> Process {
        Process {
            pid,
            free_at_ns: now_ns,
            turn_at_ns: None,
            control: VecDeque::new(),
            told_ns: now_ns,
            said_ns: now_ns,
            says: Vec::new(),
            is_ready: false,
            drained_start,
        }
    }

    pub(super) fn fail(&mut self, cause: FailureCause, reason: &str) {
        self.says.push(FromChild::Failed { cause, reason: reason.to_owned() });
    }
}
