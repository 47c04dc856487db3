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

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::message::{Ending, FailureCause, FromChild, Instance, Instruction, Role, Slot};

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
/// Of it, the time of the frontends; the rest is for the owners.
const STOP_FRONTENDS_NS: u64 = 6 * SECOND_NS;
const STOP_NS: u64 = STOP.as_secs() * SECOND_NS;
/// How long the end of killed processes is awaited. A process that the kernel does not let go is then left behind: it
/// can run no instruction, and it keeps its lock.
const KILL_NS: u64 = SECOND_NS;
/// Exit codes after which another try would end the same way.
pub const FINAL_CODES: [i32; 7] = [5, CODE_DIRECTORY, 11, 12, 33, 78, 111];
/// The directory, a lock, or the log.
const CODE_DIRECTORY: i32 = 10;

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
    /// Number of owners, at least 1.
    pub owners: u16,
    /// Number of frontends, at least 1.
    pub frontends: u16,
    /// Of every slot.
    pub restart: RestartPolicy,
    /// Of every slot.
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
    /// Time has passed: [`Rules::next_deadline`] is reached.
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
    /// All frontends accept: the service is ready.
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

#[derive(Debug)]
enum State {
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
struct Watch {
    /// Nonce of the last ping, and of the last answer.
    sent: u64,
    answered: u64,
    /// When the sync began that was going on at the last answer.
    in_sync_since_ns: Option<u64>,
    /// As it said.
    in_sync_ms: Option<u64>,
    /// Reports of the sync that goes on.
    sync_reports: u64,
}

impl Watch {
    fn unanswered(&self) -> u64 {
        self.sent - self.answered
    }
}

#[derive(Debug)]
struct Entry {
    place: Slot,
    state: State,
    generation: u32,
    /// To whom its process has a link.
    peers: Vec<Instance>,
    /// Whether the process, or the one to be spawned, was started with the drain flag.
    is_drained_start: bool,
    /// Whether no process of this slot can accept a new job, now or later.
    drain_acked: bool,
    /// What the process said of its coming end.
    last_words: Option<(FailureCause, String)>,
    failure: Option<Failure>,
    /// Restarts since the last calm time: exponent of the delay.
    tries: u32,
    /// When it crashed within the window.
    crashes_ns: VecDeque<u64>,
    restarts: u64,
    /// Processes that a failed write or sync of the log has ended.
    log_failures: u64,
}

impl Entry {
    fn new(place: Slot) -> Entry {
        Entry {
            place,
            state: State::Down { restart_at_ns: None },
            generation: 0,
            peers: Vec::new(),
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

    fn instance(&self) -> Instance {
        Instance { role: self.place.role, slot: self.place.slot, generation: self.generation }
    }

    fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready { .. })
    }

    /// Whether a process of it may exist.
    fn is_alive(&self) -> bool {
        !matches!(self.state, State::Down { .. } | State::Failed)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Before [`Input::Begin`].
    New,
    /// Not every slot has been ready.
    Starting,
    Serving,
    /// The frontends finish.
    Barrier {
        until_ns: u64,
        owners_until_ns: u64,
    },
    /// The owners finish.
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
enum Drain {
    Off,
    Owners,
    Frontends,
    Done,
}

/// All decisions of one server.
#[derive(Debug)]
pub struct Rules {
    config: Config,
    /// Owners, then frontends.
    entries: Vec<Entry>,
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
    /// If there is no owner or no frontend.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Rules {
        assert!(config.owners > 0 && config.frontends > 0, "a server has at least one owner and one frontend");
        let owners = (0..config.owners).map(|slot| Slot { role: Role::Owner, slot });
        let frontends = (0..config.frontends).map(|slot| Slot { role: Role::Frontend, slot });
        Rules {
            config,
            entries: owners.chain(frontends).map(Entry::new).collect(),
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
        let Some(index) = self.entries.iter().position(|entry| entry.place == place) else {
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
            Phase::Serving => self.entries.iter().filter_map(of_entry).chain([self.next_ping_ns]).min(),
            Phase::Barrier { until_ns, .. } | Phase::Owners { until_ns } | Phase::Killing { until_ns } => {
                Some(until_ns)
            }
        }
    }

    /// Every slot, owners first.
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

/// Start, links, ends.
impl Rules {
    fn begin(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        assert_eq!(self.phase, Phase::New, "a server begins once");
        self.phase = Phase::Starting;
        self.next_ping_ns = now_ns + PING_INTERVAL_NS;
        for index in 0..self.entries.len() {
            self.spawn(index, out);
        }
    }

    fn spawn(&mut self, index: usize, out: &mut Vec<Output>) {
        let drained = self.is_draining();
        let entry = &mut self.entries[index];
        assert!(!entry.is_alive(), "{} still has a process", entry.place);
        entry.state = State::Spawning;
        entry.is_drained_start = drained;
        entry.last_words = None;
        out.push(Output::Spawn { place: entry.place, drained });
    }

    fn spawned(&mut self, now_ns: u64, place: Slot, generation: u32, out: &mut Vec<Output>) {
        let is_stopping = self.is_stopping();
        let index = self.index(place);
        let entry = &mut self.entries[index];
        assert!(matches!(entry.state, State::Spawning), "{place} was not being spawned");
        assert!(generation > entry.generation, "generation {generation} of {place} follows {}", entry.generation);
        entry.generation = generation;
        entry.state = State::Starting { since_ns: now_ns, report_at_ns: now_ns + LONG_NS };
        let who = entry.instance();
        out.push(Output::Report(Report::Started(who)));
        if is_stopping {
            let has_failed = matches!(self.outcome, Outcome::StartFailed { .. });
            self.kill(index, if has_failed { KillReason::StartFailed } else { KillReason::Stop }, out);
        } else if entry.is_drained_start {
            entry.drain_acked = true;
            self.advance_drain(out);
        } else if self.drain >= drain_step(place.role) {
            out.push(Output::Tell { who, what: Instruction::Drain });
        }
    }

    fn said(&mut self, now_ns: u64, by: Instance, report: FromChild, out: &mut Vec<Output>) {
        let index = self.index(by.place());
        let entry = &mut self.entries[index];
        if entry.generation != by.generation || !entry.is_alive() {
            return;
        }
        if matches!(entry.state, State::Killed) {
            // It may still end by itself first, and then it counts why; nothing else it says does.
            if let FromChild::Failed { cause, reason } = report {
                entry.last_words = Some((cause, reason));
            }
            return;
        }
        match (report, &mut entry.state) {
            (FromChild::Ready { generation, jobs, next_id }, State::Starting { .. }) if generation == by.generation => {
                self.ready(now_ns, index, jobs, next_id, out);
            }
            (FromChild::Pong { generation, nonce, in_sync_ms }, State::Ready { watch, .. })
                if generation == by.generation && nonce > watch.answered && nonce <= watch.sent =>
            {
                watch.answered = nonce;
                watch.in_sync_since_ns = in_sync_ms.map(|ms| now_ns.saturating_sub(ms.saturating_mul(1_000_000)));
                watch.in_sync_ms = in_sync_ms;
                if in_sync_ms.is_none() {
                    watch.sync_reports = 0;
                }
            }
            (FromChild::Drained, State::Starting { .. } | State::Ready { .. }) => {
                if self.drain >= drain_step(by.role) {
                    entry.drain_acked = true;
                    self.advance_drain(out);
                } else {
                    self.kill(index, KillReason::Misbehaved, out);
                }
            }
            (FromChild::Failed { cause, reason }, _) => entry.last_words = Some((cause, reason)),
            (FromChild::Stopped, _) => {}
            (FromChild::Ready { .. } | FromChild::Pong { .. } | FromChild::Drained, _) => {
                self.kill(index, KillReason::Misbehaved, out);
            }
        }
    }

    fn ready(&mut self, now_ns: u64, index: usize, jobs: u64, next_id: u64, out: &mut Vec<Output>) {
        let entry = &mut self.entries[index];
        entry.state = State::Ready { since_ns: now_ns, watch: Watch::default() };
        let who = entry.instance();
        out.push(Output::Report(Report::Ready { who, jobs }));
        if who.role == Role::Owner {
            out.push(Output::RaiseIdCount { at_least: next_id });
        }
        // Whichever of two peers becomes ready last brings their link about: exactly one per pair of processes.
        let mut peers = Vec::new();
        for peer in self.entries.iter_mut().filter(|peer| peer.is_ready() && peer.place.role != who.role) {
            peer.peers.push(who);
            peers.push(peer.instance());
            out.push(match who.role {
                Role::Owner => Output::Link { owner: who, frontend: peer.instance() },
                Role::Frontend => Output::Link { owner: peer.instance(), frontend: who },
            });
        }
        self.entries[index].peers = peers;
        match self.phase {
            Phase::Starting if self.entries.iter().all(Entry::is_ready) => {
                self.phase = Phase::Serving;
                let frontends = self.entries.iter().filter(|entry| entry.place.role == Role::Frontend);
                out.extend(frontends.map(|entry| Output::Tell { who: entry.instance(), what: Instruction::Go }));
                out.push(Output::Serving);
            }
            Phase::Serving if who.role == Role::Frontend => out.push(Output::Tell { who, what: Instruction::Go }),
            _ => {}
        }
    }

    fn ended(&mut self, now_ns: u64, who: Instance, how: Ending, out: &mut Vec<Output>) {
        let index = self.index(who.place());
        let entry = &mut self.entries[index];
        assert_eq!(entry.generation, who.generation, "the end of a process of {} that was none", who.place());
        match entry.state {
            State::Ready { since_ns, .. } if now_ns.saturating_sub(since_ns) >= CALM_NS => entry.tries = 0,
            State::Ready { .. } | State::Starting { .. } | State::Killed => {}
            _ => panic!("{who} has ended twice"),
        }
        entry.log_failures += u64::from(matches!(entry.last_words, Some((FailureCause::Write, _))));
        let reason = entry.last_words.as_ref().map(|(_, reason)| reason.clone());
        self.lost(now_ns, index, Failure { ending: Some(how), reason }, out);
    }

    /// A slot has lost its process, or did not get one.
    fn lost(&mut self, now_ns: u64, index: usize, failure: Failure, out: &mut Vec<Output>) {
        let was_killed = matches!(self.entries[index].state, State::Killed);
        let who = self.entries[index].instance();
        let place = who.place();
        self.entries[index].state = State::Down { restart_at_ns: None };
        for peer in std::mem::take(&mut self.entries[index].peers) {
            let peer_index = self.index(peer.place());
            let entry = &mut self.entries[peer_index];
            entry.peers.retain(|other| *other != who);
            if entry.is_ready() && !matches!(self.phase, Phase::Owners { .. } | Phase::Killing { .. }) {
                out.push(Output::Tell { who: peer, what: Instruction::PeerGone(who) });
            }
        }
        match self.phase {
            Phase::New | Phase::Finished => unreachable!("no process exists then"),
            Phase::Starting => {
                self.entries[index].failure = Some(failure.clone());
                out.push(Output::Report(Report::Crashed { place, failure: failure.clone() }));
                self.kill_everything(now_ns, Outcome::StartFailed { place, failure }, KillReason::StartFailed, out);
            }
            Phase::Serving => {
                out.push(Output::Report(Report::Crashed { place, failure: failure.clone() }));
                self.restart_or_fail(now_ns, index, failure, out);
            }
            Phase::Barrier { .. } | Phase::Owners { .. } | Phase::Killing { .. } => {
                // Frontends are told first, owners when all frontends are gone.
                let is_told = place.role == Role::Frontend || !matches!(self.phase, Phase::Barrier { .. });
                let is_orderly = is_told && failure.ending == Some(Ending::Code(0));
                if !was_killed && failure.ending.is_some() && !is_orderly {
                    self.entries[index].failure = Some(failure.clone());
                    out.push(Output::Report(Report::StoppedBadly { place, failure: failure.clone() }));
                    self.note_bad_stop(place, failure);
                }
                self.advance_stop(now_ns, out);
            }
        }
    }

    fn restart_or_fail(&mut self, now_ns: u64, index: usize, failure: Failure, out: &mut Vec<Output>) {
        let policy = self.config.restart;
        let window_ns = nanoseconds(policy.window);
        let draw = splitmix64(&mut self.jitter);
        let entry = &mut self.entries[index];
        let place = entry.place;
        let is_final = matches!(failure.ending, Some(Ending::Code(code)) if FINAL_CODES.contains(&code))
            && !(place.role == Role::Owner
                && failure.ending == Some(Ending::Code(CODE_DIRECTORY))
                && matches!(entry.last_words, Some((FailureCause::Write, _))));
        entry.failure = Some(failure.clone());
        entry.crashes_ns.push_back(now_ns);
        entry.crashes_ns.retain(|crash_ns| now_ns.saturating_sub(*crash_ns) < window_ns);
        if is_final || entry.crashes_ns.len() > policy.limit as usize {
            entry.state = State::Failed;
            // No process is left to accept a job, and any later one is started drained.
            entry.drain_acked = self.drain > Drain::Off;
            out.push(Output::Report(Report::SlotFailed { place, failure: failure.clone() }));
            match self.config.on_slot_failed {
                OnSlotFailed::Serve => self.advance_drain(out),
                OnSlotFailed::Stop => self.begin_stop(now_ns, Outcome::SlotFailed { place, failure }, out),
            }
            return;
        }
        let doubled = nanoseconds(policy.delay).saturating_mul(1 << entry.tries.min(16)).min(RESTART_DELAY_NS_MAX);
        let delay_ns = doubled / 1000 * (800 + draw % 401);
        entry.tries = entry.tries.saturating_add(1);
        entry.restarts += 1;
        entry.state = State::Down { restart_at_ns: Some(now_ns + delay_ns) };
        out.push(Output::Report(Report::Restarting { place, delay_ms: delay_ns / 1_000_000 }));
    }

    fn kill(&mut self, index: usize, why: KillReason, out: &mut Vec<Output>) {
        let entry = &mut self.entries[index];
        entry.state = State::Killed;
        let who = entry.instance();
        out.push(Output::Report(Report::Killed { who, why }));
        out.push(Output::Kill { who });
    }

    fn index(&self, place: Slot) -> usize {
        match place.role {
            Role::Owner if place.slot < self.config.owners => usize::from(place.slot),
            Role::Frontend if place.slot < self.config.frontends => {
                usize::from(self.config.owners) + usize::from(place.slot)
            }
            _ => panic!("no slot {place} in this topology"),
        }
    }
}

/// Time.
impl Rules {
    fn tick(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        match self.phase {
            Phase::New | Phase::Finished => {}
            Phase::Starting => self.report_long_starts(now_ns, out),
            Phase::Serving => {
                self.report_long_starts(now_ns, out);
                for index in 0..self.entries.len() {
                    if matches!(self.entries[index].state, State::Down { restart_at_ns: Some(due) } if due <= now_ns) {
                        self.spawn(index, out);
                    }
                }
                if self.next_ping_ns <= now_ns {
                    // From now, not from when it was due: a clock that jumped must not bring a volley of pings.
                    self.next_ping_ns = now_ns + PING_INTERVAL_NS;
                    self.ping(now_ns, out);
                }
            }
            Phase::Barrier { until_ns, owners_until_ns } => {
                if until_ns <= now_ns {
                    self.kill_role(Role::Frontend, out);
                    // Their end is confirmed before the owners are told, but that must not use up the owners' time.
                    self.phase = Phase::Barrier { until_ns: owners_until_ns, owners_until_ns };
                }
                if owners_until_ns <= now_ns {
                    self.kill_role(Role::Owner, out);
                    self.phase = Phase::Killing { until_ns: now_ns + KILL_NS };
                }
                self.advance_stop(now_ns, out);
            }
            Phase::Owners { until_ns } => {
                if until_ns <= now_ns {
                    self.kill_role(Role::Owner, out);
                    self.phase = Phase::Killing { until_ns: now_ns + KILL_NS };
                    self.advance_stop(now_ns, out);
                }
            }
            Phase::Killing { until_ns } => {
                if until_ns <= now_ns {
                    if let Some(left) = self.entries.iter().find(|entry| entry.is_alive()) {
                        let reason = Some("the kernel does not let it go although it was killed".to_owned());
                        self.note_bad_stop(left.place, Failure { ending: None, reason });
                    }
                    self.finish(out);
                }
            }
        }
    }

    fn report_long_starts(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        for entry in &mut self.entries {
            let who = entry.instance();
            if let State::Starting { since_ns, report_at_ns } = &mut entry.state
                && *report_at_ns <= now_ns
            {
                *report_at_ns = now_ns + LONG_NS;
                let seconds = (now_ns - *since_ns) / SECOND_NS;
                out.push(Output::Report(Report::LongStart { who, seconds }));
            }
        }
    }

    fn ping(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        let mut is_healthy = true;
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            let who = entry.instance();
            match &mut entry.state {
                State::Ready { watch, .. } => {
                    is_healthy &= watch.unanswered() < UNANSWERED_HEALTHY;
                    if let Some(since_ns) = watch.in_sync_since_ns {
                        let length_ns = now_ns.saturating_sub(since_ns);
                        if length_ns / LONG_NS > watch.sync_reports {
                            watch.sync_reports = length_ns / LONG_NS;
                            out.push(Output::Report(Report::LongSync { who, seconds: length_ns / SECOND_NS }));
                        }
                    }
                    if watch.unanswered() < UNANSWERED_MAX {
                        watch.sent += 1;
                        out.push(Output::Tell { who, what: Instruction::Ping { nonce: watch.sent } });
                    } else if watch.in_sync_since_ns.is_none() {
                        self.kill(index, KillReason::Frozen, out);
                    }
                }
                State::Killed => is_healthy = false,
                // Somebody deals with it: the restart policy, its recovery, or the operator.
                State::Down { .. } | State::Spawning | State::Starting { .. } | State::Failed => {}
            }
        }
        if is_healthy {
            out.push(Output::FeedWatchdog);
        }
    }
}

/// Drain and stop.
impl Rules {
    fn begin_drain(&mut self, out: &mut Vec<Output>) {
        if self.is_stopping() {
            return;
        }
        match self.drain {
            Drain::Off => {
                self.drain = Drain::Owners;
                out.push(Output::SetDraining);
                out.push(Output::Report(Report::Draining));
                self.tell_drain(Role::Owner, out);
                self.advance_drain(out);
            }
            Drain::Owners | Drain::Frontends => {}
            Drain::Done => out.push(Output::Report(Report::Drained)),
        }
    }

    fn tell_drain(&mut self, role: Role, out: &mut Vec<Output>) {
        for entry in self.entries.iter_mut().filter(|entry| entry.place.role == role && !entry.drain_acked) {
            match entry.state {
                State::Starting { .. } | State::Ready { .. } => {
                    out.push(Output::Tell { who: entry.instance(), what: Instruction::Drain });
                }
                State::Failed => entry.drain_acked = true,
                // A process to come, or to end: its successor is started drained.
                State::Down { .. } | State::Spawning | State::Killed => {}
            }
        }
    }

    fn advance_drain(&mut self, out: &mut Vec<Output>) {
        let has_acked = |rules: &Rules, role| {
            rules.entries.iter().filter(|entry| entry.place.role == role).all(|entry| entry.drain_acked)
        };
        if self.drain == Drain::Owners && has_acked(self, Role::Owner) {
            self.drain = Drain::Frontends;
            self.tell_drain(Role::Frontend, out);
        }
        if self.drain == Drain::Frontends && has_acked(self, Role::Frontend) {
            self.drain = Drain::Done;
            out.push(Output::Report(Report::Drained));
        }
    }

    fn begin_stop(&mut self, now_ns: u64, outcome: Outcome, out: &mut Vec<Output>) {
        if self.is_stopping() {
            return;
        }
        self.outcome = outcome;
        self.phase = Phase::Barrier { until_ns: now_ns + STOP_FRONTENDS_NS, owners_until_ns: now_ns + STOP_NS };
        out.push(Output::Report(Report::Stopping));
        out.push(Output::CloseListeners);
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            let who = entry.instance();
            match &mut entry.state {
                State::Down { restart_at_ns } => *restart_at_ns = None,
                // It has served nobody yet; a recovery that is cut off is done again at the next start.
                State::Starting { .. } => self.kill(index, KillReason::Stop, out),
                State::Ready { .. } if who.role == Role::Frontend => {
                    let within_ms = STOP_FRONTENDS_NS / 1_000_000;
                    out.push(Output::Tell { who, what: Instruction::Barrier { within_ms } });
                }
                State::Ready { .. } | State::Spawning | State::Killed | State::Failed => {}
            }
        }
        self.advance_stop(now_ns, out);
    }

    fn advance_stop(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        let is_gone =
            |rules: &Rules, role| !rules.entries.iter().any(|entry| entry.place.role == role && entry.is_alive());
        if let Phase::Barrier { owners_until_ns, .. } = self.phase
            && is_gone(self, Role::Frontend)
        {
            self.phase = Phase::Owners { until_ns: owners_until_ns };
            let within_ms = owners_until_ns.saturating_sub(now_ns) / 1_000_000;
            let owners = self.entries.iter().filter(|entry| entry.place.role == Role::Owner && entry.is_ready());
            let stop = Instruction::Stop { within_ms };
            out.extend(owners.map(|entry| Output::Tell { who: entry.instance(), what: stop }));
        }
        if matches!(self.phase, Phase::Owners { .. } | Phase::Killing { .. })
            && is_gone(self, Role::Owner)
            && is_gone(self, Role::Frontend)
        {
            self.finish(out);
        }
    }

    /// Kills whatever of `role` has not ended. An owner that could not finish in its time did not stop in order.
    fn kill_role(&mut self, role: Role, out: &mut Vec<Output>) {
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if entry.place.role == role && matches!(entry.state, State::Starting { .. } | State::Ready { .. }) {
                let place = entry.place;
                self.kill(index, KillReason::Stop, out);
                if role == Role::Owner {
                    let reason = Some("it was killed at the deadline of the stop".to_owned());
                    self.note_bad_stop(place, Failure { ending: Some(Ending::Signal(9)), reason });
                }
            }
        }
    }

    fn kill_everything(&mut self, now_ns: u64, outcome: Outcome, why: KillReason, out: &mut Vec<Output>) {
        self.outcome = outcome;
        self.phase = Phase::Killing { until_ns: now_ns + KILL_NS };
        out.push(Output::CloseListeners);
        for index in 0..self.entries.len() {
            if matches!(self.entries[index].state, State::Starting { .. } | State::Ready { .. }) {
                self.kill(index, why, out);
            }
        }
        self.advance_stop(now_ns, out);
    }

    /// The first slot that did not stop in order decides how the server ended, unless that is decided already.
    fn note_bad_stop(&mut self, place: Slot, failure: Failure) {
        if self.outcome == Outcome::Stopped {
            self.outcome = Outcome::StoppedBadly { place, failure };
        }
    }

    fn finish(&mut self, out: &mut Vec<Output>) {
        self.phase = Phase::Finished;
        out.push(Output::Finish(self.outcome.clone()));
    }
}

/// The step of a drain in which processes of `role` are told.
fn drain_step(role: Role) -> Drain {
    match role {
        Role::Owner => Drain::Owners,
        Role::Frontend => Drain::Frontends,
    }
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

#[cfg(test)]
mod random;
#[cfg(test)]
mod scripts;
