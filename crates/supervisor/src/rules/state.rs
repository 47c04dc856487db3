//! What the rules remember of each slot and of the server.
//!
//! Owns: the states of a slot and the steps of start, drain and stop.
//! Never: decides what follows from them.

use std::collections::VecDeque;

use super::vocabulary::Failure;
use crate::message::{FailureCause, Instance, Slot};

#[derive(Debug)]
pub(super) enum State {
    /// Without a time when the server stops.
    Down {
        restart_at_ns: Option<u64>,
    },
    Spawning,
    Starting {
        since_ns: u64,
        report_at_ns: u64,
    },
    Ready {
        since_ns: u64,
        watch: Watch,
    },
    Killed,
    Failed,
}

#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Nonce of the last ping, and of the last answer.
    pub(super) sent: u64,
    pub(super) answered: u64,
    /// When the sync began that was going on at the last answer.
    pub(super) in_sync_since_ns: Option<u64>,
    /// As it said.
    pub(super) in_sync_ms: Option<u64>,
    /// Reports of the sync that goes on.
    pub(super) sync_reports: u64,
}

impl Watch {
    pub(super) fn unanswered(&self) -> u64 {
        self.sent - self.answered
    }
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) place: Slot,
    pub(super) state: State,
    pub(super) generation: u32,
    /// Whether the process, or the one to be spawned, was started with the drain flag.
    pub(super) is_drained_start: bool,
    /// Whether no process of this slot can accept a new job, now or later.
    pub(super) drain_acked: bool,
    /// What the process said of its coming end.
    pub(super) last_words: Option<(FailureCause, String)>,
    pub(super) failure: Option<Failure>,
    /// Restarts since the last calm time: exponent of the delay.
    pub(super) tries: u32,
    /// When it crashed within the window.
    pub(super) crashes_ns: VecDeque<u64>,
    pub(super) restarts: u64,
    /// Processes that a failed write or sync of the log has ended.
    pub(super) log_failures: u64,
}

impl Entry {
    pub(super) fn new(place: Slot) -> Entry {
        Entry {
            place,
            state: State::Down { restart_at_ns: None },
            generation: 0,
            is_drained_start: false,
            drain_acked: false,
            last_words: None,
            failure: None,
            tries: 0,
            crashes_ns: VecDeque::new(),
            restarts: 0,
            log_failures: 0,
        }
    }

    pub(super) fn instance(&self) -> Instance {
        Instance { role: self.place.role, slot: self.place.slot, generation: self.generation }
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready { .. })
    }

    /// Whether a process of it may exist.
    pub(super) fn is_alive(&self) -> bool {
        !matches!(self.state, State::Down { .. } | State::Failed)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Before [`super::Input::Begin`].
    New,
    /// Not every slot has been ready.
    Starting,
    Serving,
    /// The frontends finish, and what has no part in the order of the two.
    Barrier {
        until_ns: u64,
        owners_until_ns: u64,
    },
    /// The owners finish, and what is left of the others.
    Owners {
        until_ns: u64,
    },
    /// Everything was killed.
    Killing {
        until_ns: u64,
    },
    Finished,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Drain {
    Off,
    Owners,
    Frontends,
    Done,
}
