//! The scheduler, the faults and the course of a run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tubes_core::journal::Replay;

use crate::disk::{DiskFaults, SimDisk};
use crate::model::{Model, Moment};
use crate::rng::Rng;

use super::clients::Client;
use super::ledger::Ledger;
use super::profile::{FAULTS, Fault, MS, Profile, SECOND};
use super::server::Server;

pub(super) const MAX_JOB_SIZE: u32 = 65_535;

/// What happened in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field counts what it is called")]
pub struct Outcome {
    pub events: u64,
    pub commands: u64,
    pub replies: u64,
    pub simulated_ns: u64,
    /// Over every step and every byte that was answered.
    pub hash: u64,
    pub kills: u64,
    pub power_losses: u64,
    pub stops: u64,
    pub log_failures: u64,
    pub recoveries: u64,
    pub second_recoveries: u64,
    pub flips: u64,
    pub flips_refused: u64,
    pub old_blocks: u64,
    pub refused_logs: u64,
    pub torn_tails: u64,
    pub copies: u64,
    pub refusals_for_space: u64,
    pub unsynced_lost: u64,
    pub jobs_recovered: u64,
}

impl Outcome {
    /// The sums of two runs.
    #[must_use]
    pub fn and(self, other: Outcome) -> Outcome {
        Outcome {
            events: self.events + other.events,
            commands: self.commands + other.commands,
            replies: self.replies + other.replies,
            simulated_ns: self.simulated_ns + other.simulated_ns,
            // Commutative, so that the sum over seeds does not depend on which thread ran which.
            hash: self.hash.wrapping_add(other.hash),
            kills: self.kills + other.kills,
            power_losses: self.power_losses + other.power_losses,
            stops: self.stops + other.stops,
            log_failures: self.log_failures + other.log_failures,
            recoveries: self.recoveries + other.recoveries,
            second_recoveries: self.second_recoveries + other.second_recoveries,
            flips: self.flips + other.flips,
            flips_refused: self.flips_refused + other.flips_refused,
            old_blocks: self.old_blocks + other.old_blocks,
            refused_logs: self.refused_logs + other.refused_logs,
            torn_tails: self.torn_tails + other.torn_tails,
            copies: self.copies + other.copies,
            refusals_for_space: self.refusals_for_space + other.refusals_for_space,
            unsynced_lost: self.unsynced_lost + other.unsynced_lost,
            jobs_recovered: self.jobs_recovered + other.jobs_recovered,
        }
    }
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Replays it.
    pub seed: u64,
    /// At which event.
    pub event: u64,
    /// At which simulated time.
    pub at_ns: u64,
    /// What was seen.
    pub what: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "seed {}, event {}, {} ns: {}", self.seed, self.event, self.at_ns, self.what)
    }
}

/// Something that is to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A client does something.
    Act { client: usize, epoch: u32 },
    /// A client has waited long enough for an answer.
    GiveUp { client: usize, epoch: u32, act: u32 },
    /// What a client has sent arrives.
    Deliver { client: usize, epoch: u32, count: u32 },
    /// Replies reach a client.
    Reply { client: usize, epoch: u32, count: u32, closed: bool },
    /// A client learns that its connection has ended.
    Gone { client: usize, epoch: u32 },
    /// The server's loop turns.
    Turn { life: u64, at_ns: u64 },
    /// The disk has finished a job.
    SyncDone { life: u64 },
    /// Something goes wrong.
    Fault,
    /// Something that went wrong is right again.
    FaultEnd(Fault),
    /// The server starts.
    Start,
    /// The run is over.
    End,
}

struct Scheduled {
    at_ns: u64,
    tie: u64,
    step: Step,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.at_ns, self.tie) == (other.at_ns, other.tie)
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.tie).cmp(&(other.at_ns, other.tie))
    }
}

/// A write that was reported as done and was not, and what has happened behind it.
#[derive(Debug, Clone, Copy)]
pub(super) struct LostWrite {
    /// Syncs of records since.
    pub(super) syncs_since: u32,
    /// Up to where records were written when the first of them said that the lost ones had been synced.
    pub(super) proof: Option<u64>,
}

/// Everything there is.
pub(super) struct World {
    pub(super) seed: u64,
    pub(super) rng: Rng,
    ties: Rng,
    pub(super) profile: Profile,
    pub(super) now_ns: u64,
    /// When the machine was started, on the clock of the world.
    pub(super) boot_ns: u64,
    wall_step_ms: i64,
    heap: BinaryHeap<Reverse<Scheduled>>,
    pub(super) disk: SimDisk,
    /// What the last segment held when power was lost.
    pub(super) before_loss: Vec<u8>,
    pub(super) disk_faults: DiskFaults,
    /// The disk has been told to fail since the server was started; results of before may still be on the way.
    pub(super) disk_may_have_failed: bool,
    pub(super) has_space: bool,
    /// Since when there is space.
    pub(super) space_since_ns: u64,
    pub(super) is_slow: bool,
    pub(super) server: Option<Server>,
    /// Rises with every end of the server: steps of an earlier life are void.
    pub(super) life: u64,
    pub(super) generation: u32,
    pub(super) boot_count: u8,
    pub(super) power_was_lost: bool,
    /// Ids that recoveries may have passed over since the last one that succeeded.
    pub(super) ids_skipped_max: u64,
    /// A start has failed although a sync had failed before it.
    pub(super) has_failed_twice: bool,
    /// A sync has failed, and with it what it was to sync may be gone although the machine runs on.
    pub(super) sync_has_failed: bool,
    pub(super) stop_with_power: bool,
    pub(super) lose_next_write: bool,
    pub(super) lost_write: Option<LostWrite>,
    pub(super) model: Model,
    pub(super) ledger: Ledger,
    pub(super) clients: Vec<Client>,
    /// Faults may still happen.
    pub(super) is_chaos: bool,
    is_over: bool,
    /// Tells on standard error what happens.
    pub(super) narrates: bool,
    pub(super) outcome: Outcome,
}

pub(super) type Checked<T = ()> = Result<T, String>;

/// Runs one seed: `events` events with faults, then those of the quiet phase.
///
/// # Errors
///
/// [`Failure`] names the first promise that was broken.
pub fn run(seed: u64, events: u64) -> Result<Outcome, Failure> {
    run_world(World::new(seed), events)
}

/// Runs one seed as [`run`] does and tells on standard error what happens.
///
/// # Errors
///
/// As [`run`].
pub fn narrate(seed: u64, events: u64) -> Result<Outcome, Failure> {
    let mut world = World::new(seed);
    world.narrates = true;
    eprintln!("{:?}", world.profile);
    run_world(world, events)
}

fn run_world(mut world: World, events: u64) -> Result<Outcome, Failure> {
    let seed = world.seed;
    // Assertions of the code under test are findings like others.
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run(events)));
    let what = match ended {
        Ok(Ok(())) => return Ok(world.outcome),
        Ok(Err(what)) => what,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            format!("panic: {}", text.unwrap_or_default())
        }
    };
    Err(Failure { seed, event: world.outcome.events, at_ns: world.now_ns, what })
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let profile = Profile::draw(&mut rng);
        let clients = (0..profile.clients).map(Client::new).collect();
        World {
            seed,
            ties: rng.fork(1),
            disk: SimDisk::new(rng.next_u64()),
            rng,
            profile,
            now_ns: 0,
            boot_ns: 0,
            wall_step_ms: 0,
            heap: BinaryHeap::new(),
            before_loss: Vec::new(),
            disk_faults: DiskFaults::default(),
            disk_may_have_failed: false,
            has_space: true,
            space_since_ns: 0,
            is_slow: false,
            server: None,
            life: 0,
            generation: 0,
            boot_count: 1,
            power_was_lost: false,
            sync_has_failed: false,
            ids_skipped_max: 0,
            has_failed_twice: false,
            stop_with_power: false,
            lose_next_write: false,
            lost_write: None,
            model: Model::new(MAX_JOB_SIZE),
            ledger: Ledger::new(),
            clients,
            is_chaos: true,
            is_over: false,
            narrates: false,
            outcome: Outcome::default(),
        }
    }

    fn run(&mut self, events: u64) -> Checked {
        self.at(0, Step::Start);
        for client in 0..self.clients.len() {
            self.at(MS, Step::Act { client, epoch: 0 });
        }
        self.after(self.profile.fault_gap_ns, Step::Fault);
        while !self.is_over {
            let Some(Reverse(Scheduled { at_ns, step, .. })) = self.heap.pop() else {
                return Err("nothing is left to happen".to_owned());
            };
            self.now_ns = at_ns;
            self.note(at_ns);
            self.outcome.events += 1;
            self.step(step)?;
            if self.is_chaos && self.outcome.events >= events {
                self.end_of_faults()?;
            }
        }
        self.outcome.simulated_ns = self.now_ns;
        Ok(())
    }

    /// Tells what happens, if somebody listens.
    pub(super) fn tell(&self, what: impl FnOnce() -> String) {
        if self.narrates {
            eprintln!("{:>6} {:>15} {}", self.outcome.events, self.now_ns, what());
        }
    }

    fn step(&mut self, step: Step) -> Checked {
        match step {
            Step::Act { client, epoch } => self.act(client, epoch),
            Step::GiveUp { client, epoch, act } => self.give_up(client, epoch, act),
            Step::Deliver { client, epoch, count } => self.deliver(client, epoch, count),
            Step::Reply { client, epoch, count, closed } => self.replies_arrive(client, epoch, count, closed),
            Step::Gone { client, epoch } => self.connection_gone(client, epoch),
            Step::Turn { life, at_ns } => return self.turn(life, at_ns),
            Step::SyncDone { life } => self.sync_done(life),
            Step::Fault => {
                if self.is_chaos {
                    let fault = FAULTS[self.rng.weighted(&self.profile.fault_weights)];
                    let gap_ns = self.rng.between(1, 2 * self.profile.fault_gap_ns);
                    self.after(gap_ns, Step::Fault);
                    return self.fault(fault);
                }
            }
            Step::FaultEnd(fault) => self.fault_ends(fault),
            Step::Start => return self.start(),
            Step::End => return self.end(),
        }
        Ok(())
    }

    fn fault(&mut self, fault: Fault) -> Checked {
        self.note(fault as u64);
        self.tell(|| format!("fault {fault:?}"));
        let gap_ns = self.profile.fault_gap_ns;
        match fault {
            Fault::Kill => self.kill(false),
            Fault::PowerLoss => self.kill(true),
            Fault::DiskStop => {
                let ahead = self.rng.between(1, 12);
                self.stop_with_power = self.rng.chance(1, 2);
                self.disk.stop_at_call(self.disk.calls() + ahead);
            }
            Fault::Pause => {
                let until_ns = self.now_ns + self.rng.below(5 * SECOND);
                if let Some(server) = &mut self.server {
                    server.free_at_ns = server.free_at_ns.max(until_ns);
                }
                self.wake(until_ns);
            }
            Fault::WallStep => {
                let hours = i64::try_from(self.rng.below(49)).expect("small") - 24;
                self.wall_step_ms += hours * 1_799_321;
            }
            Fault::NoSpace => {
                self.has_space = false;
                self.disk.set_capacity(self.disk.used());
                let for_ns = self.rng.below(gap_ns * 4);
                self.after(for_ns, Step::FaultEnd(fault));
            }
            Fault::WriteError => {
                self.disk_faults.write_errors_per_million = 300_000;
                self.disk_may_have_failed = true;
                self.disk.set_faults(self.disk_faults);
                self.after(gap_ns, Step::FaultEnd(fault));
            }
            Fault::SyncError => {
                self.disk_faults.sync_errors_per_million = 300_000;
                self.disk_may_have_failed = true;
                self.disk.set_faults(self.disk_faults);
                self.after(gap_ns, Step::FaultEnd(fault));
            }
            Fault::LostWrite => self.lose_next_write = self.lost_write.is_none(),
            Fault::Stop => return self.orderly_stop(),
            Fault::Drain => {
                if self.rng.chance(1, 4)
                    && let Some(server) = &mut self.server
                {
                    server.engine.drain();
                    self.model.drain();
                }
            }
            Fault::SlowDisk => {
                self.is_slow = true;
                self.after(gap_ns, Step::FaultEnd(fault));
            }
        }
        Ok(())
    }

    fn fault_ends(&mut self, fault: Fault) {
        match fault {
            Fault::NoSpace => {
                self.has_space = true;
                self.space_since_ns = self.now_ns;
                self.disk.set_capacity(u64::MAX);
            }
            Fault::WriteError => self.disk_faults.write_errors_per_million = 0,
            Fault::SyncError => self.disk_faults.sync_errors_per_million = 0,
            Fault::SlowDisk => self.is_slow = false,
            _ => unreachable!("{fault:?} is over at once"),
        }
        self.disk.set_faults(self.disk_faults);
    }

    /// From here on nothing goes wrong any more, and everything due must be done in time.
    fn end_of_faults(&mut self) -> Checked {
        self.is_chaos = false;
        self.lose_next_write = false;
        for fault in [Fault::NoSpace, Fault::WriteError, Fault::SyncError, Fault::SlowDisk] {
            self.fault_ends(fault);
        }
        if let Some(server) = &mut self.server {
            server.free_at_ns = self.now_ns;
        }
        // A call at which the disk was to stop is still ahead: let that be now. And a drained server takes no puts until
        // it is started again.
        self.kill(false);
        for client in 0..self.clients.len() {
            self.begin_to_drain(client);
        }
        // Longest delay, longest time to run, and 5 s; pauses of tubes are as long as delays.
        self.after(Self::DRAIN_NS, Step::End);
        Ok(())
    }

    const DRAIN_NS: u64 = (10 + 10 + 5) * SECOND;

    fn end(&mut self) -> Checked {
        self.is_over = true;
        if let Some((id, job)) = self.model.jobs().iter().next() {
            return Err(format!("job {id} is still there {} s after the last fault: {job:?}", Self::DRAIN_NS / SECOND));
        }
        let Some(server) = &mut self.server else { return Err("the server did not come back".to_owned()) };
        server.engine.check_invariants();
        if server.engine.live_jobs() != 0 {
            return Err("the engine has jobs of which the model knows nothing".to_owned());
        }
        let figures = server.log.figures();
        if figures.live_job_bytes != 0 || figures.reserved_bytes != 0 || figures.jobs_without_reserve != 0 {
            return Err(format!("without a job the log keeps something for jobs: {figures:?}"));
        }
        let bound = 2 * figures.segment_bytes.max(3_000);
        if figures.log_bytes > bound {
            return Err(format!("without a job the log has {} bytes, more than {bound}", figures.log_bytes));
        }
        self.orderly_stop()?;
        let next_id = self.model.next_id();
        self.start()?;
        if self.model.next_id() != next_id || !self.model.jobs().is_empty() {
            return Err("an orderly stop changes the state".to_owned());
        }
        Ok(())
    }

    /// The present moment as the server's clocks show it.
    pub(super) fn moment(&self) -> Moment {
        // Rounded down to ns of a clock that does not begin at 0, and a wall clock that nobody steps below 1970.
        let boot_ns = self.now_ns - self.boot_ns + SECOND;
        let wall_ms = (1_700_000_000_000 + self.now_ns / MS).saturating_add_signed(self.wall_step_ms);
        Moment { boot_ns, wall_ms }
    }

    pub(super) fn at(&mut self, at_ns: u64, step: Step) {
        let tie = self.ties.next_u64();
        self.heap.push(Reverse(Scheduled { at_ns: at_ns.max(self.now_ns), tie, step }));
    }

    pub(super) fn after(&mut self, ns: u64, step: Step) {
        self.at(self.now_ns + ns, step);
    }

    /// Mixes something into the hash of the run.
    pub(super) fn note(&mut self, value: u64) {
        let mixed = (self.outcome.hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.outcome.hash = mixed ^ (mixed >> 29);
    }
}
