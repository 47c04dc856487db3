//! The scheduler, the processes and the course of a run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use supervisor::{Ending, Instance, Role};
use tubes_core::Now;
use tubes_link::PartitionMap;

use crate::disk::SimDisk;
use crate::model::Moment;
use crate::rng::Rng;
use crate::sim::profile::{MS, Profile, SECOND};

use super::NOT_SIMULATED;
use super::clients::Client;
use super::executions::Executions;
use super::frontend::Frontend;
use super::network::{LinkEnd, Network, other};
use super::outcome::Outcome;
use super::owner::{Owner, Slot};
use super::process::{Control, Heard, Pid, Process};
use super::shape::{Fault, Shape};
use super::supervise::Supervisor;

pub(super) const MAX_JOB_SIZE: u32 = 1_000_000;

pub(super) type Checked<T = ()> = Result<T, String>;

/// The page that all processes share.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Page {
    pub(super) id_count: u64,
    pub(super) tube_number: u64,
    pub(super) is_draining: bool,
}

impl Page {
    pub(super) fn next_tube_number(&mut self) -> u64 {
        self.tube_number += 1;
        self.tube_number - 1
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
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// The loop of a process turns.
    Turn { pid: Pid, at_ns: u64 },
    /// A process finishes its start.
    Started { pid: Pid },
    /// The disk has finished a job.
    SyncDone { pid: Pid, serial: u64 },
    /// Bytes reach the end of a link.
    Arrive { pipe: u64, towards: Role },
    /// An instruction reaches a process.
    Told { pid: Pid, control: Control },
    /// A report reaches the supervisor.
    Heard { life: u64, heard: Heard },
    /// A time has come that the supervisor waits for.
    SupervisorTick { life: u64, version: u64 },
    /// A process that was killed ends.
    Reap { pid: Pid },
    /// The server is started.
    StartServer,
    /// The operator looks after failed slots.
    Operator,
    /// Something goes wrong.
    Fault,
    /// Something that went wrong is right again.
    FaultEnd { fault: Fault, slot: usize },
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

/// Ties from here on keep the order in which they were given.
const IN_ORDER: u64 = u64::MAX / 2;

/// The last record of a log that something said tells of, and a new id in it.
type Promise = (u64, Option<u64>);

/// Everything there is.
pub(super) struct World {
    pub(super) seed: u64,
    pub(super) rng: Rng,
    ties: Rng,
    in_order: u64,
    pub(super) profile: Profile,
    pub(super) shape: Shape,
    pub(super) map: PartitionMap,
    pub(super) now_ns: u64,
    /// When the machine was started, on the clock of the world.
    pub(super) boot_ns: u64,
    pub(super) boot_count: u8,
    pub(super) wall_step_ms: i64,
    heap: BinaryHeap<Reverse<Scheduled>>,
    pub(super) network: Network,
    pub(super) page: Page,
    pub(super) supervisor: Option<Supervisor>,
    /// Rises with every start of the whole server.
    pub(super) life: u64,
    /// Processes that are not ready.
    pub(super) starting: BTreeMap<supervisor::Slot, Process>,
    pub(super) owners: Vec<Option<Owner>>,
    pub(super) frontends: Vec<Option<Frontend>>,
    pub(super) slots: Vec<Slot>,
    pub(super) clients: Vec<Client>,
    pub(super) executions: Executions,
    pub(super) results_of_waits: Vec<(u64, Instance, u64, u32)>,
    /// Ids that somebody was told, and those that were given since the server was started.
    pub(super) ids_given: BTreeSet<u64>,
    pub(super) ids_of_life: BTreeSet<u64>,
    /// What owners have said to sessions over pipes and nobody has heard: the last record it tells of, and a new id.
    pub(super) promises: BTreeMap<(u64, u64), VecDeque<Promise>>,
    /// Bodies that were made.
    pub(super) bodies: u64,
    pub(super) is_chaos: bool,
    pub(super) is_over: bool,
    pub(super) narrates: bool,
    pub(super) outcome: Outcome,
}

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
    eprintln!("{:?}\n{:?}", world.shape, world.profile);
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
    pub(super) fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let profile = Profile::draw(&mut rng);
        let shape = Shape::draw(&mut rng, profile.sync, profile.think_ns);
        let slots = (0..shape.owners).map(|_| Slot::new(SimDisk::new(rng.next_u64()))).collect();
        let spread: Vec<u16> = (0..64).map(|partition| partition % shape.owners).collect();
        let map = PartitionMap::new(&spread, shape.owners, shape.single_ids_below).expect("a map of 64 partitions");
        World {
            seed,
            ties: rng.fork(1),
            in_order: 0,
            map,
            now_ns: 0,
            boot_ns: 0,
            boot_count: 1,
            wall_step_ms: 0,
            heap: BinaryHeap::new(),
            network: Network::default(),
            page: Page::default(),
            supervisor: None,
            life: 0,
            starting: BTreeMap::new(),
            owners: (0..shape.owners).map(|_| None).collect(),
            frontends: (0..shape.frontends).map(|_| None).collect(),
            slots,
            clients: (0..shape.clients).map(Client::new).collect(),
            executions: Executions::default(),
            results_of_waits: Vec::new(),
            ids_given: BTreeSet::new(),
            ids_of_life: BTreeSet::new(),
            promises: BTreeMap::new(),
            bodies: 0,
            is_chaos: true,
            is_over: false,
            narrates: false,
            outcome: Outcome::default(),
            rng,
            profile,
            shape,
        }
    }

    fn run(&mut self, events: u64) -> Checked {
        self.at(0, Step::StartServer);
        for client in 0..self.clients.len() {
            self.at(MS, Step::Act { client, epoch: 0 });
        }
        self.after(self.shape.fault_gap_ns, Step::Fault);
        self.after(20 * SECOND, Step::Operator);
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
        self.outcome.executions = self.executions.count;
        self.outcome.simulated_ns = self.now_ns;
        Ok(())
    }

    /// Tells what happens, if somebody listens.
    pub(super) fn tell(&self, what: impl FnOnce() -> String) {
        if self.narrates {
            eprintln!("{:>15} {}", self.now_ns, what());
        }
    }

    fn step(&mut self, step: Step) -> Checked {
        match step {
            Step::Act { client, epoch } => self.act(client, epoch),
            Step::GiveUp { client, epoch, act } => self.give_up(client, epoch, act),
            Step::Deliver { client, epoch, count } => self.deliver(client, epoch, count),
            Step::Reply { client, epoch, count, closed } => return self.replies_arrive(client, epoch, count, closed),
            Step::Gone { client, epoch } => self.connection_gone(client, epoch),
            Step::Turn { pid, at_ns } => return self.turn(pid, at_ns),
            Step::Started { pid } => return self.started(pid),
            Step::SyncDone { pid, serial } => {
                let at = usize::from(pid.who.slot);
                if let Some(mut owner) = self.owners[at].take_if(|owner| owner.process.pid == pid) {
                    self.sync_done(&mut owner, serial);
                    self.owners[at] = Some(owner);
                }
            }
            Step::Arrive { pipe, towards } => self.arrive(pipe, towards),
            Step::Told { pid, control } => self.told(pid, control),
            Step::Heard { life, heard } => return self.heard(life, heard),
            Step::SupervisorTick { life, version } => return self.supervisor_tick(life, version),
            Step::Reap { pid } => return self.kill(pid),
            Step::StartServer => return self.start_server(),
            Step::Operator => {
                let ns = if self.is_chaos { 20 * SECOND } else { SECOND };
                self.after(ns, Step::Operator);
                return self.restart_failed_slots();
            }
            Step::Fault => return self.fault(),
            Step::FaultEnd { fault, slot } => self.fault_ends(fault, slot),
            Step::End => return self.end(),
        }
        Ok(())
    }

    /// The loop of a process turns, if it can.
    fn turn(&mut self, pid: Pid, at_ns: u64) -> Checked {
        use super::process::Next;
        let at = usize::from(pid.who.slot);
        let now_ns = self.now_ns;
        let is_due = |process: &Process| process.pid == pid && process.turn_at_ns == Some(at_ns);
        let postponed = |world: &mut World, process: &mut Process| {
            process.turn_at_ns = None;
            let is_paused = process.free_at_ns > now_ns;
            if is_paused {
                let free_at_ns = process.free_at_ns;
                world.wake_process(process, free_at_ns);
            }
            is_paused
        };
        match pid.who.role {
            Role::Owner => {
                let Some(mut owner) = self.owners[at].take_if(|owner| is_due(&owner.process)) else { return Ok(()) };
                if postponed(self, &mut owner.process) {
                    self.owners[at] = Some(owner);
                    return Ok(());
                }
                let next = self.owner_turn(&mut owner)?;
                self.results_are_single()?;
                if next != Next::Dies {
                    self.send_reports(&mut owner.process);
                }
                self.count_seen(&mut owner);
                match next {
                    Next::Runs => self.owners[at] = Some(owner),
                    Next::Exits(code) => return self.process_gone(owner.process, Ending::Code(code)),
                    Next::Dies => {
                        self.outcome.owner_crashes += 1;
                        let with_power = self.slots[at].disk.has_stopped() && self.slots[at].stop_with_power;
                        drop(owner.log);
                        self.process_gone(owner.process, Ending::Signal(9))?;
                        if with_power {
                            return self.power_loss();
                        }
                    }
                }
            }
            Role::Frontend => {
                let found = self.frontends[at].take_if(|frontend| is_due(&frontend.process));
                let Some(mut frontend) = found else { return Ok(()) };
                if postponed(self, &mut frontend.process) {
                    self.frontends[at] = Some(frontend);
                    return Ok(());
                }
                let next = self.frontend_turn(&mut frontend)?;
                self.send_reports(&mut frontend.process);
                match next {
                    Next::Runs => self.frontends[at] = Some(frontend),
                    Next::Exits(code) => return self.process_gone(frontend.process, Ending::Code(code)),
                    Next::Dies => return self.process_gone(frontend.process, Ending::Signal(9)),
                }
            }
            Role::Tubes | Role::Daemon => unreachable!("{NOT_SIMULATED}"),
        }
        Ok(())
    }

    fn count_seen(&mut self, owner: &mut Owner) {
        let seen = std::mem::take(&mut owner.judge.seen);
        let outcome = &mut self.outcome;
        outcome.offers += seen.offers;
        outcome.accepted += seen.accepted;
        outcome.gone += seen.gone;
        outcome.returned += seen.returned;
        outcome.revoked += seen.revoked;
        outcome.expired += seen.expired;
        outcome.crossings += seen.crossings;
        outcome.served += seen.served;
        outcome.nothings += seen.nothings;
        outcome.draining += seen.draining;
        outcome.kept += seen.kept;
    }

    /// Lets the loop of a process turn at `at_ns`, or as soon as it can run.
    pub(super) fn wake_process(&mut self, process: &mut Process, at_ns: u64) {
        let at_ns = at_ns.max(process.free_at_ns).max(self.now_ns);
        if process.turn_at_ns.is_none_or(|planned| at_ns < planned) {
            process.turn_at_ns = Some(at_ns);
            self.at(at_ns, Step::Turn { pid: process.pid, at_ns });
        }
    }

    fn wake_who(&mut self, who: Instance) {
        let now_ns = self.now_ns;
        let at = usize::from(who.slot);
        match who.role {
            Role::Owner => {
                if let Some(mut owner) = self.owners[at].take_if(|owner| owner.process.pid.who == who) {
                    self.wake_process(&mut owner.process, now_ns);
                    self.owners[at] = Some(owner);
                }
            }
            Role::Frontend => {
                if let Some(mut frontend) = self.frontends[at].take_if(|open| open.process.pid.who == who) {
                    self.wake_process(&mut frontend.process, now_ns);
                    self.frontends[at] = Some(frontend);
                }
            }
            Role::Tubes | Role::Daemon => unreachable!("{NOT_SIMULATED}"),
        }
    }

    /// There is room again for the process at the other end.
    pub(super) fn wake_writer(&mut self, link: &LinkEnd) {
        self.wake_who(link.peer);
    }

    fn arrive(&mut self, pipe: u64, towards: Role) {
        if self.network.arrive(self.now_ns, pipe, towards)
            && let Some(who) = self.network.get(pipe).map(|pipe| pipe.end_of(towards))
        {
            self.wake_who(who);
        }
    }

    pub(super) fn close_pipe(&mut self, pipe: u64, role: Role) {
        self.network.close(pipe, role);
        if role == Role::Frontend {
            let of_pipe: Vec<(u64, u64)> =
                self.promises.range((pipe, 0)..=(pipe, u64::MAX)).map(|(key, _)| *key).collect();
            for key in of_pipe {
                self.promises.remove(&key);
            }
        }
        self.pipe_ends(pipe, other(role));
    }

    /// Somebody will see that nothing more comes, once all has arrived.
    pub(super) fn pipe_ends(&mut self, pipe: u64, towards: Role) {
        let ns = self.rng.below(self.shape.link_ns + 1);
        self.after(ns, Step::Arrive { pipe, towards });
        self.after(2 * self.shape.link_ns + MS, Step::Arrive { pipe, towards });
    }

    /// Old bytes come before the first of a new link.
    pub(super) fn maybe_old_bytes(&mut self, pipe: u64, owner: Instance, frontend: Instance) {
        if !self.rng.chance(self.shape.old_bytes_percent, 100) {
            return;
        }
        for (from, to) in [(owner, frontend), (frontend, owner)] {
            if let Some(bytes) = self.network.old_bytes(from, to, pipe) {
                self.network.inject(pipe, to.role, &bytes);
            }
        }
    }

    /// The process behind an identity, if it is there.
    pub(super) fn process(&mut self, pid: Pid) -> Option<&mut Process> {
        let at = usize::from(pid.who.slot);
        if self.starting.get(&pid.who.place()).is_some_and(|process| process.pid == pid) {
            return self.starting.get_mut(&pid.who.place());
        }
        let process = match pid.who.role {
            Role::Owner => self.owners[at].as_mut().map(|owner| &mut owner.process),
            Role::Frontend => self.frontends[at].as_mut().map(|frontend| &mut frontend.process),
            Role::Tubes | Role::Daemon => unreachable!("{NOT_SIMULATED}"),
        };
        process.filter(|process| process.pid == pid)
    }

    /// SIGKILL.
    pub(super) fn kill(&mut self, pid: Pid) -> Checked {
        let at = usize::from(pid.who.slot);
        if self.starting.get(&pid.who.place()).is_some_and(|process| process.pid == pid) {
            let process = self.starting.remove(&pid.who.place()).expect("just seen");
            return self.process_gone(process, Ending::Signal(9));
        }
        let process = match pid.who.role {
            Role::Owner => {
                let owner = self.owners[at].take_if(|owner| owner.process.pid == pid);
                owner.map(|owner| {
                    let Owner { process, .. } = owner;
                    process
                })
            }
            Role::Frontend => self.frontends[at].take_if(|open| open.process.pid == pid).map(|open| open.process),
            Role::Tubes | Role::Daemon => unreachable!("{NOT_SIMULATED}"),
        };
        match process {
            Some(process) => self.process_gone(process, Ending::Signal(9)),
            None => Ok(()),
        }
    }

    /// A process has ended, however.
    pub(super) fn process_gone(&mut self, mut process: Process, how: Ending) -> Checked {
        let pid = process.pid;
        self.tell(|| format!("{} {how}", pid.who));
        for control in std::mem::take(&mut process.control) {
            if let Control::Link { pipe, .. } = control {
                self.close_pipe(pipe, pid.who.role);
            }
        }
        for pipe in self.network.of(pid.who) {
            self.close_pipe(pipe, pid.who.role);
        }
        self.network.forget();
        let seed = self.rng.next_u64();
        match pid.who.role {
            Role::Owner => {
                self.slots[usize::from(pid.who.slot)].disk.crash(false, seed);
            }
            Role::Frontend => {
                for client in 0..self.clients.len() {
                    if self.clients[client].server == Some(pid) {
                        let epoch = self.clients[client].epoch;
                        let ns = self.rng.below(self.profile.network_ns + 1);
                        self.after(ns, Step::Gone { client, epoch });
                    }
                }
            }
            Role::Tubes | Role::Daemon => unreachable!("{NOT_SIMULATED}"),
        }
        self.report_to_supervisor(&mut process, Heard::Ended { who: pid.who, how });
        Ok(())
    }

    /// No process is left; with the machine, the disks lose what was not synced.
    pub(super) fn end_all_processes(&mut self, power_loss: bool) -> Checked {
        let starting: Vec<Pid> = self.starting.values().map(|process| process.pid).collect();
        let owners = self.owners.iter().flatten().map(|owner| owner.process.pid);
        let frontends = self.frontends.iter().flatten().map(|frontend| frontend.process.pid);
        let all: Vec<Pid> = starting.into_iter().chain(owners).chain(frontends).collect();
        for pid in all {
            self.kill(pid)?;
        }
        self.network.clear();
        if power_loss {
            self.boot_count = self.boot_count.wrapping_add(1);
            self.boot_ns = self.now_ns;
            for at in 0..self.slots.len() {
                let seed = self.rng.next_u64();
                self.slots[at].disk.crash(true, seed);
                self.slots[at].power_was_lost = true;
            }
        }
        Ok(())
    }

    /// The supervisor dies, and all its children with it.
    pub(super) fn kill_supervisor(&mut self) -> Checked {
        if self.supervisor.take().is_none() {
            return Ok(());
        }
        self.outcome.supervisor_kills += 1;
        self.end_all_processes(false)?;
        let ns = self.rng.below(200 * MS);
        self.after(ns, Step::StartServer);
        Ok(())
    }

    /// The machine loses its power.
    pub(super) fn power_loss(&mut self) -> Checked {
        self.outcome.power_losses += 1;
        self.supervisor = None;
        self.end_all_processes(true)?;
        let ns = self.rng.below(200 * MS);
        self.after(ns, Step::StartServer);
        Ok(())
    }

    /// The present moment as the machine's clocks show it.
    pub(super) fn moment(&self) -> Moment {
        let boot_ns = self.now_ns - self.boot_ns + SECOND;
        let wall_ms = (1_700_000_000_000 + self.now_ns / MS).saturating_add_signed(self.wall_step_ms);
        Moment { boot_ns, wall_ms }
    }

    /// A time of the machine's clock on that of the world.
    pub(super) fn world_ns(&self, boot_ns: u64) -> u64 {
        (boot_ns + self.boot_ns).saturating_sub(SECOND)
    }

    pub(super) fn at(&mut self, at_ns: u64, step: Step) {
        let tie = match step {
            // The shell looks at everything else before.
            Step::SupervisorTick { .. } => u64::MAX,
            _ => self.ties.below(IN_ORDER),
        };
        self.heap.push(Reverse(Scheduled { at_ns: at_ns.max(self.now_ns), tie, step }));
    }

    /// As [`World::at`], behind all that was put to the same time in this way before.
    pub(super) fn at_in_order(&mut self, at_ns: u64, step: Step) {
        self.in_order += 1;
        let tie = if matches!(step, Step::SupervisorTick { .. }) { u64::MAX } else { IN_ORDER + self.in_order };
        self.heap.push(Reverse(Scheduled { at_ns: at_ns.max(self.now_ns), tie, step }));
    }

    pub(super) fn after(&mut self, ns: u64, step: Step) {
        self.at(self.now_ns + ns, step);
    }

    pub(super) fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            let at = self.rng.index(last + 1);
            all.swap(last, at);
        }
    }

    /// Mixes something into the hash of the run.
    pub(super) fn note(&mut self, value: u64) {
        let mixed = (self.outcome.hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.outcome.hash = mixed ^ (mixed >> 29);
    }
}

pub(super) fn now(moment: Moment) -> Now {
    Now { boot_ns: moment.boot_ns, wall_ms: moment.wall_ms }
}
