//! The supervisor's decisions: which process runs, is told what, is killed, is started again, and when.
//!
//! Owns: the state of every slot, the start barrier, the restart policy, the watchdog, drain and stop.
//! Never: reads a clock, draws entropy, starts or signals a process; its shell passes the time in and carries
//! [`Output`]s out, in their order.
//!
//! ```text
//!            Spawn        Spawned          Ready              Ended
//!   Down ───────────► Spawning ───► Starting ───► Ready ───────────┐
//!    ▲                    │             │           │ watchdog     │
//!    │                    │             ▼           ▼              │
//!    │ delay              │           Killed ◄───── ┘              │
//!    │                    │             │ Ended                    │
//!    └────────────────────┴─────────────┴──────── within the limit ┤
//!                                                 else ────────────┴──► Failed (restart_slot: Spawning)
//! ```

mod drain;
mod life;
mod links;
#[cfg(test)]
mod random;
#[cfg(test)]
mod scripts;
mod state;
mod stop;
mod time;
mod vocabulary;

use std::time::Duration;

use crate::message::{Ending, FailureCause, FromChild, Instance, Instruction, Role, Slot};
use links::LinkState;
use state::{Drain, Entry, Phase, State, Watch};
pub use vocabulary::{
    Condition, Config, Failure, Input, KillReason, OnSlotFailed, Outcome, Output, Report, RestartPolicy,
    RestartRefused, SlotView,
};

const SECOND_NS: u64 = 1_000_000_000;
/// Between two pings of a process.
const PING_INTERVAL_NS: u64 = SECOND_NS;
/// So many pings in a row without an answer, each a second after the one before, mean that a process is frozen. Counted
/// instead of timed, so that a supervisor which was itself suspended blames nobody.
const UNANSWERED_MAX: u64 = 10;
/// So many unanswered pings, and the service manager's watchdog is not fed.
const UNANSWERED_HEALTHY: u64 = 3;
/// A sync, or a start, of this length is reported, and again after each such time.
const LONG_NS: u64 = 60 * SECOND_NS;
/// Ready for so long, a process that ends is started again as quickly as the first time.
const CALM_NS: u64 = 60 * SECOND_NS;
/// The longest delay before a restart, apart from its spread.
const RESTART_DELAY_NS_MAX: u64 = 5 * SECOND_NS;
/// The stop, from the order to the last SIGKILL.
pub const STOP: Duration = Duration::from_secs(10);
/// Of it, the time of the frontends; the rest is for the owners. What is neither has the whole of it.
const STOP_FRONTENDS_NS: u64 = 6 * SECOND_NS;
const STOP_NS: u64 = STOP.as_secs() * SECOND_NS;
/// How long the end of killed processes is awaited. A process that the kernel does not let go is then left behind: it
/// can run no instruction, and it keeps its lock.
const KILL_NS: u64 = SECOND_NS;
/// Exit codes after which another try would end the same way.
pub const FINAL_CODES: [i32; 7] = [5, CODE_DIRECTORY, 11, 12, 33, 78, 111];
/// The directory, a lock, or the log.
const CODE_DIRECTORY: i32 = 10;

/// All decisions of one server.
#[derive(Debug)]
pub struct Rules {
    config: Config,
    /// In the order of the topology.
    entries: Vec<Entry>,
    links: Vec<LinkState>,
    links_made: u64,
    phase: Phase,
    drain: Drain,
    outcome: Outcome,
    next_ping_ns: u64,
    jitter: u64,
}

impl Rules {
    /// A server of which nothing is started. `seed` spreads the delays of its restarts.
    ///
    /// # Panics
    ///
    /// If there is no slot, or owners without frontends, or frontends without owners.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Rules {
        let topology = config.topology;
        assert!(!topology.is_empty(), "a server has at least one slot");
        assert_eq!(topology.owners > 0, topology.frontends > 0, "owners need frontends, and frontends owners");
        Rules {
            config,
            entries: topology.slots().map(Entry::new).collect(),
            links: Vec::new(),
            links_made: 0,
            phase: Phase::New,
            drain: Drain::Off,
            outcome: Outcome::Stopped,
            next_ping_ns: u64::MAX,
            jitter: seed,
        }
    }

    /// Decides what follows from `input`.
    ///
    /// # Panics
    ///
    /// If the shell breaks the order of inputs: a defect.
    pub fn handle(&mut self, now_ns: u64, input: Input, out: &mut Vec<Output>) {
        if self.phase == Phase::Finished {
            return;
        }
        match input {
            Input::Begin => self.begin(now_ns, out),
            Input::Spawned { place, generation } => self.spawned(now_ns, place, generation, out),
            Input::NotSpawned { place, reason } => {
                let index = self.index(place);
                assert!(matches!(self.entries[index].state, State::Spawning), "{place} was not being spawned");
                self.lost(now_ns, index, Failure { ending: None, reason: Some(reason) }, out);
            }
            Input::Said { by, report } => self.said(now_ns, by, report, out),
            Input::Ended { who, how } => self.ended(now_ns, who, how, out),
            Input::Drain => self.begin_drain(out),
            Input::Stop => self.begin_stop(now_ns, Outcome::Stopped, out),
            Input::Tick => self.tick(now_ns, out),
        }
    }

    /// Tries a failed slot again, with a fresh limit.
    ///
    /// # Errors
    ///
    /// [`RestartRefused`].
    pub fn restart_slot(&mut self, place: Slot, out: &mut Vec<Output>) -> Result<(), RestartRefused> {
        let Some(index) = self.config.topology.index(place) else {
            return Err(RestartRefused::NoSuchSlot(place));
        };
        if self.phase != Phase::Serving {
            return Err(RestartRefused::NotServing);
        }
        let entry = &mut self.entries[index];
        if !matches!(entry.state, State::Failed) {
            return Err(RestartRefused::NotFailed(place));
        }
        entry.tries = 0;
        entry.crashes_ns.clear();
        entry.restarts += 1;
        self.spawn(index, out);
        Ok(())
    }

    /// When [`Input::Tick`] is due; `None` while nothing depends on time.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let of_entry = |entry: &Entry| match entry.state {
            State::Down { restart_at_ns } => restart_at_ns,
            State::Starting { report_at_ns, .. } => Some(report_at_ns),
            _ => None,
        };
        match self.phase {
            Phase::New | Phase::Finished => None,
            Phase::Starting => self.entries.iter().filter_map(of_entry).min(),
            Phase::Serving => {
                self.entries.iter().filter_map(of_entry).chain([self.next_ping_ns]).chain(self.next_remake()).min()
            }
            Phase::Barrier { until_ns, .. } | Phase::Owners { until_ns } | Phase::Killing { until_ns } => {
                Some(until_ns)
            }
        }
    }

    /// Every slot, in the order of the topology.
    pub fn slots(&self) -> impl Iterator<Item = SlotView> {
        self.entries.iter().map(|entry| {
            let (unanswered, in_sync_ms) = match &entry.state {
                State::Ready { watch, .. } => (watch.unanswered(), watch.in_sync_ms),
                _ => (0, None),
            };
            SlotView {
                place: entry.place,
                condition: match entry.state {
                    State::Down { .. } => Condition::Down,
                    State::Spawning | State::Starting { .. } => Condition::Starting,
                    State::Ready { .. } => Condition::Ready,
                    State::Killed => Condition::Ending,
                    State::Failed => Condition::Failed,
                },
                generation: entry.generation,
                restarts: entry.restarts,
                failure: entry.failure.clone(),
                log_failures: entry.log_failures,
                unanswered,
                in_sync_ms,
            }
        })
    }

    /// Whether clients are served: from the end of the start to the beginning of the stop.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.phase == Phase::Serving
    }

    /// Whether the stop has begun.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Barrier { .. } | Phase::Owners { .. } | Phase::Killing { .. } | Phase::Finished)
    }

    /// Whether new jobs are to be refused.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.drain > Drain::Off
    }

    /// Whether no process accepts a new job.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.drain == Drain::Done
    }
}

/// `base_ns`, doubled for each try before, up to [`RESTART_DELAY_NS_MAX`], and spread by 20 %.
fn delay(base_ns: u64, tries: u32, jitter: &mut u64) -> u64 {
    let doubled = base_ns.saturating_mul(1 << tries.min(16)).min(RESTART_DELAY_NS_MAX);
    doubled / 1000 * (800 + splitmix64(jitter) % 401)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// One step of splitmix64: spreads the delays of restarts, and is the same for the same seed.
fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
