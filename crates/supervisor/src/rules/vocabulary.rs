//! What the rules are told, what they decide, and the words in which they say so.
//!
//! Owns: the types of the boundary between the rules and their shell.
//! Never: decides anything.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::FINAL_CODES;
use crate::message::{Ending, FromChild, Instance, Instruction, Slot, Topology};

/// How often and how quickly a slot is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Before the first restart; doubled for each one after, up to 5 s, ±20 %.
    pub delay: Duration,
    /// Restarts allowed within `window`; one more, and the slot has failed.
    pub limit: u32,
    /// See `limit`.
    pub window: Duration,
}

impl Default for RestartPolicy {
    fn default() -> RestartPolicy {
        RestartPolicy { delay: Duration::from_millis(100), limit: 5, window: Duration::from_secs(30) }
    }
}

/// What happens when a slot has failed while the server serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnSlotFailed {
    /// The others serve on.
    #[default]
    Serve,
    /// The server stops.
    Stop,
}

/// The topology and the policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Which slots there are, at least one.
    pub topology: Topology,
    /// Of every slot.
    pub restart: RestartPolicy,
    /// Of every slot of the queue server. A failed daemon never ends a server that has one: clients of the tubes need no
    /// daemon. A server that is nothing but a daemon ends with it.
    pub on_slot_failed: OnSlotFailed,
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The first input.
    Begin,
    /// [`Output::Spawn`] was done.
    Spawned {
        /// Of which slot.
        place: Slot,
        /// Above every earlier one of the slot.
        generation: u32,
    },
    /// [`Output::Spawn`] could not be done, and no process is there.
    NotSpawned {
        /// Of which slot.
        place: Slot,
        /// What failed.
        reason: String,
    },
    /// A process reported.
    Said {
        /// Which one.
        by: Instance,
        /// What.
        report: FromChild,
    },
    /// A process has ended for certain.
    Ended {
        /// Which one.
        who: Instance,
        /// How.
        how: Ending,
    },
    /// The operator wants no new jobs.
    Drain,
    /// The operator wants the server to end.
    Stop,
    /// Time has passed: [`super::Rules::next_deadline`] is reached.
    Tick,
}

/// What the shell must do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Raise the generation of the slot, start its process, and say [`Input::Spawned`] or [`Input::NotSpawned`].
    Spawn {
        /// Which slot.
        place: Slot,
        /// Whether its start message says that the server drains.
        drained: bool,
    },
    /// Send this.
    Tell {
        /// To whom.
        who: Instance,
        /// What.
        what: Instruction,
    },
    /// Make a socket pair and send an end to each.
    Link {
        /// One end.
        owner: Instance,
        /// The other.
        frontend: Instance,
        /// Of the link: above that of every earlier one.
        number: u64,
    },
    /// Kill it; its end is reported by [`Input::Ended`].
    Kill {
        /// Which process.
        who: Instance,
    },
    /// Let no id count below this be given.
    RaiseIdCount {
        /// The lowest count.
        at_least: u64,
    },
    /// Set the flag in the shared page.
    SetDraining,
    /// All that accept have been told to: the service is ready.
    Serving,
    /// Close this process's listeners.
    CloseListeners,
    /// Tell the service manager that all is well.
    FeedWatchdog,
    /// Write this to the log.
    Report(Report),
    /// End the supervisor. The last output.
    Finish(Outcome),
}

/// Why a slot has no process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// How its process ended; `None` if it could not be started.
    pub ending: Option<Ending>,
    /// What it, or the system, said about it.
    pub reason: Option<String>,
}

impl Failure {
    /// Exit code for a server that ends because of this.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.ending {
            Some(Ending::Code(code)) if FINAL_CODES.contains(&code) => u8::try_from(code).unwrap_or(1),
            Some(_) => 1,
            None => 10,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ending {
            Some(ending) => write!(formatter, "{ending}")?,
            None => formatter.write_str("could not be started")?,
        }
        match &self.reason {
            Some(reason) => write!(formatter, ": {reason}"),
            None => Ok(()),
        }
    }
}

/// What the log and the operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A process was started.
    Started(Instance),
    /// It is ready.
    Ready {
        /// Which process.
        who: Instance,
        /// Jobs it has recovered.
        jobs: u64,
    },
    /// It ended without being told to.
    Crashed {
        /// Which slot.
        place: Slot,
        /// How.
        failure: Failure,
    },
    /// It ended as it was told to, but not in order.
    StoppedBadly {
        /// Which slot.
        place: Slot,
        /// How.
        failure: Failure,
    },
    /// The slot is restarted after a delay.
    Restarting {
        /// Which slot.
        place: Slot,
        /// Milliseconds until then.
        delay_ms: u64,
    },
    /// The slot stays without a process.
    SlotFailed {
        /// Which slot.
        place: Slot,
        /// Why.
        failure: Failure,
    },
    /// It was killed.
    Killed {
        /// Which process.
        who: Instance,
        /// Why.
        why: KillReason,
    },
    /// The link between two processes that live is of no use any more.
    LinkBroken {
        /// One end.
        owner: Instance,
        /// The other.
        frontend: Instance,
        /// It is replaced so many milliseconds later.
        delay_ms: u64,
    },
    /// A sync goes on for long.
    LongSync {
        /// Whose.
        who: Instance,
        /// For so long.
        seconds: u64,
    },
    /// It has not become ready for long.
    LongStart {
        /// Which process.
        who: Instance,
        /// For so long.
        seconds: u64,
    },
    /// New jobs are refused from now on, everywhere soon.
    Draining,
    /// No process accepts a new job.
    Drained,
    /// The stop has begun.
    Stopping,
}

/// Why a process was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    /// It has answered no ping.
    Frozen,
    /// It broke the rules of the control channel.
    Misbehaved,
    /// The stop takes too long, or it had not begun its work when the server was stopped.
    Stop,
    /// The start of another slot has failed.
    StartFailed,
}

impl fmt::Display for KillReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            KillReason::Frozen => "it answered no ping for 10 s",
            KillReason::Misbehaved => "it broke the rules of the control channel",
            KillReason::Stop => "the server stops",
            KillReason::StartFailed => "the start of the server has failed",
        })
    }
}

/// How the server ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// As it was told to.
    Stopped,
    /// It never served.
    StartFailed {
        /// Because of this slot.
        place: Slot,
        /// Which failed so.
        failure: Failure,
    },
    /// A slot failed, and the policy is to end then.
    SlotFailed {
        /// Which slot.
        place: Slot,
        /// Why.
        failure: Failure,
    },
    /// It was told to end, but this slot did not do so in order.
    StoppedBadly {
        /// Which slot.
        place: Slot,
        /// How it ended.
        failure: Failure,
    },
}

/// Why a slot is not tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestartRefused {
    /// The topology has no such slot.
    #[error("there is no {0}")]
    NoSuchSlot(Slot),
    /// It has a process, or will have one soon.
    #[error("{0} has not failed")]
    NotFailed(Slot),
    /// The server starts or stops.
    #[error("the server is not serving")]
    NotServing,
}

/// What a slot is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// No process; one is started after a delay, or the server stops.
    Down,
    /// Its process is not ready yet.
    Starting,
    /// Its process serves.
    Ready,
    /// Its process was killed and has not ended yet.
    Ending,
    /// No process, and none is started until somebody asks for it.
    Failed,
}

/// A slot as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotView {
    /// Which slot.
    pub place: Slot,
    /// What it is doing.
    pub condition: Condition,
    /// Of its process, or of its last one; 0 before the first.
    pub generation: u32,
    /// How often it was restarted since the server started.
    pub restarts: u64,
    /// Why it failed, or why its last process ended.
    pub failure: Option<Failure>,
    /// Processes of it that ended because a write or sync of the log failed.
    pub log_failures: u64,
    /// Pings without an answer.
    pub unanswered: u64,
    /// Length of the sync going on when it answered last, in milliseconds.
    pub in_sync_ms: Option<u64>,
}
