//! The rules in a world of chance: processes that die, freeze, sync for long and start slowly, an operator who drains,
//! stops and tries failed slots again, and a supervisor that is itself suspended.
//!
//! Every seed is a world of its own. The world checks each output against what it knows itself about the processes:
//! it keeps no copy of the rules' state. A failing test names its seed.
//!
//! A filter can falsify outputs on their way: so the last test proves that the checks find what they are there for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use super::*;

const MS: u64 = 1_000_000;
const S: u64 = SECOND_NS;
/// Faults happen until then.
const CHAOS_NS: u64 = 120 * S;
/// From the end of the faults until everything must be well again: a suspended supervisor, a frozen process and the
/// longest start, one after the other.
const CALM_AFTER_NS: u64 = 300 * S;
/// A world ends long before.
const EVENTS_MAX: u64 = 200_000;

/// A planted defect: how outputs are falsified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plant {
    None,
    SpawnsWhileKilling,
    GoesEarly,
    ForgetsDrain,
    ReportsDrainEarly,
    SkipsLinks,
    SkipsPeerGone,
    RestartsFailedSlots,
    RestartsAtOnce,
    KillsHealthy,
    NeverKills,
    StopsOwnersFirst,
    RestartsWhileStopping,
    ForgetsBrokenLinks,
    RelinksAtOnce,
}

const PLANTS: [Plant; 14] = [
    Plant::SpawnsWhileKilling,
    Plant::GoesEarly,
    Plant::ForgetsDrain,
    Plant::ReportsDrainEarly,
    Plant::SkipsLinks,
    Plant::SkipsPeerGone,
    Plant::RestartsFailedSlots,
    Plant::RestartsAtOnce,
    Plant::KillsHealthy,
    Plant::NeverKills,
    Plant::StopsOwnersFirst,
    Plant::RestartsWhileStopping,
    Plant::ForgetsBrokenLinks,
    Plant::RelinksAtOnce,
];

struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        splitmix64(&mut self.0) % end
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Something reaches the supervisor; before a tick of the same instant.
    Said(Instance, FromChildKey),
    Ended(Instance, EndingKey),
    Drain,
    Stop,
    Restart(Slot),
    /// A process goes on with the messages in its inbox, unless it is frozen.
    Wake(Instance),
    /// A process finishes its start.
    StartDone(Instance),
    /// A process ends by itself.
    Crash(Instance),
    Freeze(Instance, u64),
    /// One of the links of a process breaks, though both its ends live.
    BreakLink(Instance),
    /// A process sees that a link is broken, unless it is frozen.
    SeesBrokenLink(Instance, Instance, u64),
    /// The kernel has carried a SIGKILL out.
    Reaped(Instance),
    SuspendSupervisor(u64),
    /// Of this version of the deadline.
    Tick(u64),
}

/// Reports and ends, as keys that can be ordered.
type FromChildKey = (u8, u64, u64);
type EndingKey = (bool, i32);

fn report(by: Instance, (kind, a, b): FromChildKey) -> FromChild {
    match kind {
        0 => FromChild::Ready { generation: by.generation, jobs: 0, next_id: a },
        1 => FromChild::Pong { generation: by.generation, nonce: a, in_sync_ms: (b > 0).then_some(b) },
        2 => FromChild::Drained,
        3 => FromChild::Stopped,
        5 => {
            let role = if by.role == Role::Owner { Role::Frontend } else { Role::Owner };
            let peer = Instance { role, slot: (b >> 32) as u16, generation: b as u32 };
            FromChild::LinkLost { peer, number: a }
        }
        _ => FromChild::Failed { cause: FailureCause::Write, reason: "EIO".into() },
    }
}

#[derive(Debug)]
struct Process {
    /// Until the supervisor is told of its end.
    is_alive: bool,
    has_said_ready: bool,
    accepts_jobs: bool,
    inbox: VecDeque<Instruction>,
    frozen_until_ns: u64,
    syncs_until_ns: u64,
    /// Nothing it says overtakes what it said before.
    last_said_ns: u64,
    /// With the number of each.
    links: BTreeMap<Instance, u64>,
    gone: bool,
    is_stubborn: bool,
    /// A SIGKILL does not end it.
    is_stuck: bool,
    was_killed: bool,
    has_go: bool,
    /// Pings whose answers have not reached the supervisor: nonce, when it was sent.
    pings: VecDeque<(u64, u64)>,
    /// When its last answer reached the supervisor.
    heard_ns: u64,
}

struct Fault {
    crash: u64,
    freeze: u64,
    unlink: u64,
    slow: u64,
    suspend: u64,
    stubborn: u64,
    stuck: u64,
    bad_spawn: u64,
}

struct World {
    rng: Rng,
    plant: Plant,
    config: Config,
    rules: Rules,
    now_ns: u64,
    heap: BinaryHeap<Reverse<(u64, u8, u64, Event)>>,
    sequence: u64,
    tick_version: u64,
    suspended_until_ns: u64,
    processes: BTreeMap<Instance, Process>,
    /// The process of each slot until its end has reached the supervisor.
    current: BTreeMap<Slot, Instance>,
    generations: BTreeMap<Slot, u32>,
    faults: Fault,
    /// When a process of the slot, or a try to start one, failed; since the operator's last request.
    crashes: BTreeMap<Slot, Vec<u64>>,
    last_ending: BTreeMap<Slot, (Ending, bool)>,
    /// Owners that reported a failed write.
    said_write: BTreeSet<Instance>,
    /// Links that are of no use any more, and since when.
    broken: BTreeMap<u64, u64>,
    failed: BTreeSet<Slot>,
    asked: BTreeSet<Slot>,
    has_served: bool,
    has_drain: bool,
    is_drained: bool,
    stop_ns: Option<u64>,
    outcome: Option<Outcome>,
    trace: u64,
}

impl World {
    fn new(seed: u64, plant: Plant) -> World {
        let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let config = Config {
            owners: 1 + rng.below(4) as u16,
            frontends: 1 + rng.below(4) as u16,
            restart: RestartPolicy { limit: rng.below(8) as u32, ..RestartPolicy::default() },
            on_slot_failed: if rng.chance(10) { OnSlotFailed::Stop } else { OnSlotFailed::Serve },
        };
        // Each seed draws which faults it has, so that some meet without the others.
        let mut draw = |percent, most| if rng.chance(percent) { 1 + rng.below(most) } else { 0 };
        let faults = Fault {
            crash: draw(80, 60),
            freeze: draw(50, 30),
            slow: draw(30, 20),
            suspend: draw(30, 10),
            stubborn: draw(30, 50),
            stuck: draw(10, 30),
            bad_spawn: draw(20, 10),
            unlink: draw(40, 40),
        };
        let rules = Rules::new(config, seed);
        World {
            rng,
            plant,
            config,
            rules,
            now_ns: 0,
            heap: BinaryHeap::new(),
            sequence: 0,
            tick_version: 0,
            suspended_until_ns: 0,
            processes: BTreeMap::new(),
            current: BTreeMap::new(),
            generations: BTreeMap::new(),
            faults,
            crashes: BTreeMap::new(),
            last_ending: BTreeMap::new(),
            said_write: BTreeSet::new(),
            broken: BTreeMap::new(),
            failed: BTreeSet::new(),
            asked: BTreeSet::new(),
            has_served: false,
            has_drain: false,
            is_drained: false,
            stop_ns: None,
            outcome: None,
            trace: 0,
        }
    }

    /// Lives one whole life; the hash of all that happened.
    fn run(mut self) -> u64 {
        if self.rng.chance(40) {
            let at_ns = self.rng.below(CHAOS_NS);
            self.at(at_ns, Event::Drain);
        }
        if self.rng.chance(30) {
            let at_ns = self.rng.below(CHAOS_NS);
            self.at(at_ns, Event::Stop);
        }
        for _ in 0..self.rng.below(4) {
            let (at_ns, owner) = (self.rng.below(CHAOS_NS), self.rng.chance(50));
            let slot = self.rng.below(u64::from(if owner { self.config.owners } else { self.config.frontends })) as u16;
            let role = if owner { Role::Owner } else { Role::Frontend };
            self.at(at_ns, Event::Restart(Slot { role, slot }));
        }
        for _ in 0..self.faults.suspend {
            let (at_ns, length_ns) = (self.rng.below(CHAOS_NS), self.rng.below(100 * S));
            self.at(at_ns, Event::SuspendSupervisor(length_ns));
        }
        self.put(Input::Begin);
        let mut is_checked = false;
        for _ in 0..EVENTS_MAX {
            let Some(Reverse((at_ns, rank, _, event))) = self.heap.pop() else { break };
            if self.outcome.is_none() && !is_checked && at_ns > CHAOS_NS + CALM_AFTER_NS {
                is_checked = true;
                self.check_calm();
                self.at(at_ns, Event::Stop);
            }
            if rank > 0 && at_ns < self.suspended_until_ns {
                self.push(self.suspended_until_ns, rank, event);
                continue;
            }
            self.now_ns = at_ns;
            self.live(event);
            if self.outcome.is_some() {
                self.check_end();
                return self.trace;
            }
        }
        panic!("the server never ended");
    }

    /// Something in the world outside the supervisor.
    fn at(&mut self, at_ns: u64, event: Event) {
        let rank = match event {
            Event::Said(..) | Event::Ended(..) | Event::Drain | Event::Stop | Event::Restart(_) => 1,
            Event::Tick(_) => 2,
            _ => 0,
        };
        self.push(at_ns, rank, event);
    }

    fn push(&mut self, at_ns: u64, rank: u8, event: Event) {
        self.sequence += 1;
        self.heap.push(Reverse((at_ns, rank, self.sequence, event)));
    }

    fn live(&mut self, event: Event) {
        self.trace = self.trace.rotate_left(5) ^ self.now_ns ^ format!("{event:?}").bytes().map(u64::from).sum::<u64>();
        match event {
            Event::Said(by, key) => {
                if key.0 == 1
                    && let Some(process) = self.processes.get_mut(&by)
                {
                    process.pings.retain(|(nonce, _)| *nonce > key.1);
                    process.heard_ns = self.now_ns;
                }
                if key.0 == 4 {
                    self.said_write.insert(by);
                }
                self.put(Input::Said { by, report: report(by, key) });
            }
            Event::Ended(who, (is_signal, number)) => {
                let how = if is_signal { Ending::Signal(number) } else { Ending::Code(number) };
                assert_eq!(self.current.remove(&who.place()), Some(who), "the end of a process that was not there");
                self.note_failure(who.place(), Some(how));
                self.put(Input::Ended { who, how });
            }
            Event::Drain => {
                self.has_drain |= self.stop_ns.is_none() && !self.rules.is_stopping();
                self.put(Input::Drain);
            }
            Event::Stop => {
                self.stop_ns.get_or_insert(self.now_ns);
                self.put(Input::Stop);
            }
            Event::Restart(place) => {
                let mut out = Vec::new();
                let is_failed = self.failed.contains(&place);
                let result = self.rules.restart_slot(place, &mut out);
                if self.rules.is_serving() {
                    assert_eq!(result.is_ok(), is_failed, "{place}: {result:?}");
                }
                if result.is_ok() {
                    self.asked.insert(place);
                }
                self.carry_out(out);
            }
            Event::Wake(who) => self.wake(who),
            Event::StartDone(who) => self.start_done(who),
            Event::Crash(who) => self.crash(who),
            Event::Freeze(who, length_ns) => {
                if let Some(process) = self.processes.get_mut(&who).filter(|process| !process.gone) {
                    process.frozen_until_ns = process.frozen_until_ns.max(self.now_ns + length_ns);
                    let at_ns = process.frozen_until_ns;
                    self.at(at_ns, Event::Wake(who));
                }
            }
            Event::BreakLink(who) => self.break_link(who),
            Event::SeesBrokenLink(who, peer, number) => self.sees_broken_link(who, peer, number),
            Event::Reaped(who) => self.ends(who, (true, 9)),
            Event::SuspendSupervisor(length_ns) => {
                // Not when the time of the stop is being measured.
                if self.stop_ns.is_none() && !self.rules.is_stopping() {
                    self.suspended_until_ns = self.suspended_until_ns.max(self.now_ns + length_ns);
                }
            }
            Event::Tick(version) => {
                if version == self.tick_version {
                    self.put(Input::Tick);
                }
            }
        }
    }

    fn put(&mut self, input: Input) {
        let mut out = Vec::new();
        self.rules.handle(self.now_ns, input, &mut out);
        self.carry_out(out);
        self.tick_version += 1;
        if let Some(due_ns) = self.rules.next_deadline() {
            let version = self.tick_version;
            self.at(due_ns.max(self.now_ns), Event::Tick(version));
        }
    }

    fn carry_out(&mut self, outputs: Vec<Output>) {
        let mut inputs = VecDeque::new();
        for output in self.falsify(outputs) {
            assert!(self.outcome.is_none(), "an output after the last");
            match output {
                Output::Spawn { place, drained } => inputs.push_back(self.spawn(place, drained)),
                Output::Tell { who, what } => self.tell(who, what),
                Output::Link { owner, frontend, number } => self.link(owner, frontend, number),
                Output::Kill { who } => {
                    assert_eq!(self.current.get(&who.place()), Some(&who), "a kill of nobody");
                    let delay_ns = self.rng.below(50 * MS);
                    let process = self.processes.get_mut(&who).expect("it is current");
                    process.was_killed = true;
                    if !process.is_stuck {
                        self.at(self.now_ns + delay_ns, Event::Reaped(who));
                    }
                }
                Output::RaiseIdCount { at_least } => assert!(at_least > 0),
                Output::SetDraining => assert!(self.has_drain, "nobody asked for a drain"),
                Output::Serving => {
                    assert!(!self.has_served, "it served before");
                    self.has_served = true;
                }
                Output::CloseListeners => {}
                Output::FeedWatchdog => {
                    for who in self.current.values() {
                        let process = &self.processes[who];
                        let is_old = |since_ns: u64| self.now_ns - since_ns > 4 * S;
                        let is_silent = process.pings.front().is_some_and(|(_, sent_ns)| is_old(*sent_ns))
                            && is_old(process.heard_ns);
                        assert!(!is_silent || self.suspended_until_ns > 0, "all is well although {who} is silent");
                    }
                }
                Output::Report(report) => self.check_report(&report),
                Output::Finish(outcome) => self.outcome = Some(outcome),
            }
        }
        while let Some(input) = inputs.pop_front() {
            if let Input::NotSpawned { place, .. } = &input {
                self.note_failure(*place, None);
            }
            self.put(input);
        }
    }

    fn falsify(&mut self, outputs: Vec<Output>) -> Vec<Output> {
        let mut falsified = Vec::new();
        for output in outputs {
            match (self.plant, &output) {
                (Plant::SpawnsWhileKilling, Output::Kill { who }) if self.has_served => {
                    let place = who.place();
                    falsified.push(output);
                    falsified.push(Output::Spawn { place, drained: self.has_drain });
                }
                (Plant::GoesEarly, Output::Link { frontend, .. }) if !self.has_served => {
                    let who = *frontend;
                    falsified.push(output);
                    falsified.push(Output::Tell { who, what: Instruction::Go });
                }
                (Plant::ForgetsDrain, Output::Spawn { place, .. }) => {
                    falsified.push(Output::Spawn { place: *place, drained: false });
                }
                (Plant::ReportsDrainEarly, Output::SetDraining) => {
                    falsified.push(output);
                    falsified.push(Output::Report(Report::Drained));
                }
                (Plant::ForgetsBrokenLinks, Output::Link { owner, frontend, .. })
                    if self.processes[owner].links.contains_key(frontend) => {}
                (Plant::RelinksAtOnce, Output::Report(Report::LinkBroken { owner, frontend, .. })) => {
                    let number = self.processes[owner].links[frontend] + 1_000_000;
                    falsified.push(Output::Link { owner: *owner, frontend: *frontend, number });
                }
                (Plant::SkipsLinks, Output::Link { .. }) if self.has_served => {}
                (Plant::SkipsPeerGone, Output::Tell { what: Instruction::PeerGone(_), .. }) => {}
                (Plant::RestartsFailedSlots, Output::Report(Report::SlotFailed { place, .. })) => {
                    let place = *place;
                    falsified.push(output);
                    falsified.push(Output::Spawn { place, drained: self.has_drain });
                }
                (Plant::RestartsAtOnce, Output::Report(Report::Restarting { place, .. })) => {
                    falsified.push(Output::Spawn { place: *place, drained: self.has_drain });
                }
                (Plant::KillsHealthy, Output::Tell { who, what: Instruction::Ping { nonce: 3 } }) => {
                    let who = *who;
                    falsified.push(Output::Report(Report::Killed { who, why: KillReason::Frozen }));
                    falsified.push(Output::Kill { who });
                }
                (Plant::NeverKills, Output::Kill { .. }) => {}
                (Plant::StopsOwnersFirst, Output::Tell { who, what: Instruction::Barrier { within_ms } }) => {
                    let within_ms = *within_ms;
                    falsified.push(Output::Tell { who: *who, what: Instruction::Barrier { within_ms } });
                    let owners = self.current.values().filter(|who| who.role == Role::Owner);
                    let stop = Instruction::Stop { within_ms };
                    falsified.extend(owners.map(|owner| Output::Tell { who: *owner, what: stop }));
                }
                (Plant::RestartsWhileStopping, Output::CloseListeners) => {
                    falsified.push(output);
                    let idle = (0..self.config.owners).map(|slot| Slot { role: Role::Owner, slot });
                    let idle: Vec<Slot> = idle.filter(|place| !self.current.contains_key(place)).collect();
                    falsified.extend(idle.into_iter().map(|place| Output::Spawn { place, drained: self.has_drain }));
                }
                _ => falsified.push(output),
            }
        }
        falsified
    }

    fn has_faults(&self) -> bool {
        self.now_ns < CHAOS_NS
    }

    fn note_failure(&mut self, place: Slot, how: Option<Ending>) {
        self.last_ending.remove(&place);
        if let (Some(how), Some(generation)) = (how, self.generations.get(&place)) {
            let who = Instance { role: place.role, slot: place.slot, generation: *generation };
            self.last_ending.insert(place, (how, self.said_write.contains(&who)));
        }
        self.crashes.entry(place).or_default().push(self.now_ns);
    }

    fn spawn(&mut self, place: Slot, drained: bool) -> Input {
        assert!(!self.current.contains_key(&place), "two processes of {place}");
        assert!(!self.rules.is_stopping() || self.stop_ns.is_none(), "{place} is started during the stop");
        assert_eq!(drained, self.has_drain, "{place} is not started as the drain demands");
        self.check_restart(place);
        if self.has_faults() && self.rng.chance(self.faults.bad_spawn) {
            return Input::NotSpawned { place, reason: "no memory".into() };
        }
        let generation = self.generations.entry(place).or_insert(0);
        *generation += 1 + (self.now_ns % 3) as u32;
        let who = Instance { role: place.role, slot: place.slot, generation: *generation };
        let start_ns = if self.has_faults() && self.rng.chance(self.faults.slow) {
            self.rng.below(90 * S)
        } else {
            self.rng.below(2 * S)
        };
        let is_stuck = self.has_faults() && self.rng.chance(self.faults.stuck);
        let process = Process {
            is_alive: true,
            has_said_ready: false,
            accepts_jobs: !drained,
            inbox: VecDeque::new(),
            frozen_until_ns: 0,
            syncs_until_ns: 0,
            last_said_ns: 0,
            links: BTreeMap::new(),
            gone: false,
            is_stubborn: self.rng.chance(self.faults.stubborn),
            is_stuck,
            was_killed: false,
            has_go: false,
            pings: VecDeque::new(),
            heard_ns: 0,
        };
        self.processes.insert(who, process);
        self.current.insert(place, who);
        self.at(self.now_ns + start_ns, Event::StartDone(who));
        if self.has_faults() {
            // At the first start faults are rare, or nothing else would ever be seen.
            let is_rare = !self.has_served && !self.rng.chance(5);
            if !is_rare && self.rng.chance(self.faults.crash) {
                let at_ns = self.now_ns + self.rng.below(20 * S);
                self.at(at_ns, Event::Crash(who));
            }
            if self.rng.chance(self.faults.unlink) {
                for _ in 0..4 {
                    let at_ns = self.now_ns + self.rng.below(30 * S);
                    self.at(at_ns, Event::BreakLink(who));
                }
            }
            let base_ns = self.now_ns;
            for _ in 0..2 {
                if self.rng.chance(self.faults.freeze) {
                    let length_ns = if self.rng.chance(50) { self.rng.below(9 * S) } else { self.rng.below(60 * S) };
                    let at_ns = base_ns + self.rng.below(60 * S);
                    self.at(at_ns, Event::Freeze(who, length_ns));
                }
            }
            if self.rng.chance(self.faults.freeze) {
                let process = self.processes.get_mut(&who).expect("inserted above");
                process.syncs_until_ns = base_ns + self.rng.below(100 * S);
            }
        }
        Input::Spawned { place, generation: who.generation }
    }

    /// A restart keeps to the policy, seen from outside.
    fn check_restart(&mut self, place: Slot) {
        let crashes = self.crashes.entry(place).or_default();
        let Some(last_ns) = crashes.last().copied() else {
            assert!(self.now_ns == 0, "{place} is started for the first time only at the beginning");
            return;
        };
        assert!(self.has_served, "{place} is tried again at the first start");
        if self.asked.remove(&place) {
            assert!(self.failed.remove(&place));
            crashes.clear();
            return;
        }
        assert!(!self.failed.contains(&place), "{place} has failed, and nobody asked for it");
        let recent = crashes.iter().filter(|crash_ns| last_ns - **crash_ns < 30 * S).count();
        assert!(recent <= self.config.restart.limit as usize, "{place} was restarted {recent} times within 30 s");
        assert!(self.now_ns - last_ns >= 80 * MS, "{place} was restarted at once");
        let is_in_time = self.now_ns - last_ns <= 6 * S || self.now_ns <= self.suspended_until_ns + S;
        assert!(is_in_time, "{place} was restarted too late");
    }

    fn tell(&mut self, who: Instance, what: Instruction) {
        let frontends_gone = !self.current.values().any(|who| who.role == Role::Frontend);
        assert_eq!(self.current.get(&who.place()), Some(&who), "{what:?} is told to a process that has ended");
        let ready_peers: Vec<Instance> = self
            .current
            .values()
            .filter(|peer| peer.role == Role::Owner && self.is_linked_side(**peer))
            .copied()
            .collect();
        let process = self.processes.get_mut(&who).expect("it is current");
        match what {
            Instruction::Go => {
                assert_eq!(who.role, Role::Frontend);
                assert!(!process.has_go, "{who} goes twice");
                process.has_go = true;
                for peer in &ready_peers {
                    assert!(process.links.contains_key(peer), "{who} goes without a link to {peer}");
                }
                if !self.has_served {
                    let all = usize::from(self.config.owners + self.config.frontends);
                    let ready = self.current.values().filter(|who| self.processes[who].has_said_ready).count();
                    assert_eq!(ready, all, "{who} goes before every slot is ready");
                }
            }
            Instruction::PeerGone(peer) => {
                assert!(process.links.remove(&peer).is_some(), "{who} is told of {peer}, to which it has no link");
                assert_ne!(self.current.get(&peer.place()), Some(&peer), "{peer} is said to be gone and is not");
            }
            Instruction::Ping { nonce } => {
                assert!(process.has_said_ready, "a ping to {who}, which is not ready");
                process.pings.push_back((nonce, self.now_ns));
            }
            Instruction::Drain => assert!(self.has_drain, "nobody asked for a drain"),
            Instruction::Barrier { .. } => {
                assert_eq!(who.role, Role::Frontend);
            }
            Instruction::Stop { .. } => {
                assert_eq!(who.role, Role::Owner);
                assert!(frontends_gone, "{who} is stopped before the frontends");
            }
        }
        self.processes.get_mut(&who).expect("it is current").inbox.push_back(what);
        let delay_ns = self.rng.below(MS);
        self.at(self.now_ns + delay_ns, Event::Wake(who));
    }

    /// Whether the supervisor has heard that it is ready, and does not kill it.
    fn is_linked_side(&self, who: Instance) -> bool {
        let index = self.rules.slots().find(|slot| slot.place == who.place()).expect("a slot");
        index.condition == Condition::Ready && index.generation == who.generation
    }

    fn link(&mut self, owner: Instance, frontend: Instance, number: u64) {
        for (who, peer) in [(owner, frontend), (frontend, owner)] {
            assert_eq!(self.current.get(&who.place()), Some(&who), "a link to {who}, which has ended");
            let process = self.processes.get_mut(&who).expect("it is current");
            assert!(process.has_said_ready, "a link to {who}, which is not ready");
            for (old, old_number) in process.links.iter().filter(|(old, _)| old.place() == peer.place()) {
                assert_eq!(*old, peer, "{who} still has a link to {old}");
                let Some(since_ns) = self.broken.get(old_number) else {
                    panic!("{who} has a link to {peer} already");
                };
                assert!(self.now_ns - since_ns >= 80 * MS, "a broken link was replaced at once");
            }
            process.links.insert(peer, number);
        }
    }

    fn check_report(&mut self, report: &Report) {
        match report {
            Report::SlotFailed { place, failure } => {
                assert!(self.has_served);
                let is_final = matches!(failure.ending, Some(Ending::Code(code)) if FINAL_CODES.contains(&code))
                    && !matches!(self.last_ending.get(place), Some((Ending::Code(10), true)));
                let crashes = &self.crashes[place];
                let recent = crashes.iter().filter(|crash_ns| self.now_ns - **crash_ns < 30 * S).count();
                let is_over = recent > self.config.restart.limit as usize;
                assert!(is_final || is_over, "{place} has failed after {recent} crashes");
                self.failed.insert(*place);
                if self.config.on_slot_failed == OnSlotFailed::Stop {
                    self.stop_ns.get_or_insert(self.now_ns);
                }
            }
            Report::Restarting { place, .. } => {
                let ending = self.last_ending.get(place);
                let is_final = matches!(ending, Some((Ending::Code(code), written))
                    if FINAL_CODES.contains(code) && !(*code == 10 && *written && place.role == Role::Owner));
                assert!(!is_final, "{place} is tried again after {ending:?}");
            }
            Report::Drained => {
                assert!(self.has_drain, "nobody asked for a drain");
                for who in self.current.values() {
                    assert!(!self.processes[who].accepts_jobs, "drained, but {who} accepts jobs");
                }
                self.is_drained = true;
            }
            Report::Killed { who, why: KillReason::Frozen } => {
                let process = &self.processes[who];
                let since_ns = process.pings.front().map_or(self.now_ns, |(_, sent_ns)| *sent_ns);
                assert!(self.now_ns - since_ns >= 10 * S, "{who} was killed although it answered lately");
                assert!(
                    process.is_stuck || process.frozen_until_ns + S > since_ns || process.gone,
                    "{who} was healthy"
                );
            }
            Report::Killed { who, why: KillReason::Misbehaved } => panic!("{who} did not misbehave"),
            _ => {}
        }
    }

    fn say(&mut self, who: Instance, key: FromChildKey, delay_ns: u64) {
        let process = self.processes.get_mut(&who).expect("it speaks");
        let at_ns = (self.now_ns + delay_ns).max(process.last_said_ns);
        process.last_said_ns = at_ns;
        self.at(at_ns, Event::Said(who, key));
    }

    fn start_done(&mut self, who: Instance) {
        let frozen_until_ns = self.processes[&who].frozen_until_ns;
        if self.processes[&who].gone {
            return;
        }
        if frozen_until_ns > self.now_ns {
            self.at(frozen_until_ns, Event::StartDone(who));
            return;
        }
        self.processes.get_mut(&who).expect("as above").has_said_ready = true;
        let (next_id, delay_ns) = (1 + self.rng.below(1000), self.rng.below(5 * MS));
        self.say(who, (0, next_id, 0), delay_ns);
    }

    fn crash(&mut self, who: Instance) {
        let process = &self.processes[&who];
        if process.gone || process.frozen_until_ns > self.now_ns {
            return;
        }
        let code = [0, 1, 1, 1, 5, 10, 10, 11, 12, 33, 78, 111, 134][self.rng.below(13) as usize];
        if code == 10 && who.role == Role::Owner && self.rng.chance(70) {
            self.say(who, (4, 0, 0), 0);
        }
        if self.rng.chance(50) && code != 10 { self.ends(who, (true, 6)) } else { self.ends(who, (false, code)) }
    }

    fn break_link(&mut self, who: Instance) {
        let links: Vec<(Instance, u64)> =
            self.processes[&who].links.iter().map(|(peer, link)| (*peer, *link)).collect();
        if self.processes[&who].gone || links.is_empty() {
            return;
        }
        let (peer, number) = links[self.rng.below(links.len() as u64) as usize];
        if self.broken.contains_key(&number) || self.processes.get(&peer).is_none_or(|peer| peer.gone) {
            return;
        }
        self.broken.insert(number, self.now_ns);
        // Each end sees it in its own time, or one of them only the new link.
        let both = self.rng.chance(80);
        let ends = [(who, peer), (peer, who)];
        for (end, other) in ends.into_iter().take(if both { 2 } else { 1 }) {
            let delay_ns = self.rng.below(300 * MS);
            self.at(self.now_ns + delay_ns, Event::SeesBrokenLink(end, other, number));
        }
    }

    fn sees_broken_link(&mut self, who: Instance, peer: Instance, number: u64) {
        let process = &self.processes[&who];
        if process.gone {
            return;
        }
        if process.frozen_until_ns > self.now_ns {
            self.at(process.frozen_until_ns, Event::SeesBrokenLink(who, peer, number));
            return;
        }
        self.say(who, (5, number, u64::from(peer.slot) << 32 | u64::from(peer.generation)), 0);
    }

    /// It runs no instruction any more; the supervisor hears so after everything it said.
    fn ends(&mut self, who: Instance, how: EndingKey) {
        let process = self.processes.get_mut(&who).expect("it was alive");
        if process.gone || (process.is_stuck && process.was_killed) {
            return;
        }
        process.gone = true;
        process.is_alive = false;
        process.accepts_jobs = false;
        let at_ns = process.last_said_ns.max(self.now_ns);
        process.last_said_ns = at_ns;
        self.at(at_ns, Event::Ended(who, how));
        // Its peers see their links end, perhaps before the supervisor knows.
        let links: Vec<(Instance, u64)> =
            self.processes[&who].links.iter().map(|(peer, link)| (*peer, *link)).collect();
        for (peer, number) in links {
            if self.rng.chance(50) && self.processes.get(&peer).is_some_and(|peer| !peer.gone) {
                self.broken.entry(number).or_insert(self.now_ns);
                self.at(self.now_ns, Event::SeesBrokenLink(peer, who, number));
            }
        }
    }

    fn wake(&mut self, who: Instance) {
        loop {
            let now_ns = self.now_ns;
            let process = self.processes.get_mut(&who).expect("known");
            // A process that recovers its log reads no message either.
            if process.gone || process.frozen_until_ns > now_ns || !process.has_said_ready && process.inbox.is_empty() {
                return;
            }
            let Some(what) = process.inbox.pop_front() else { return };
            match what {
                Instruction::Ping { nonce } => {
                    let in_sync_ms = if process.syncs_until_ns > now_ns { 1 } else { 0 };
                    let delay_ns = self.rng.below(50 * MS);
                    self.say(who, (1, nonce, in_sync_ms), delay_ns);
                }
                Instruction::Drain => {
                    process.accepts_jobs = false;
                    let delay_ns = self.rng.below(20 * MS);
                    self.say(who, (2, 0, 0), delay_ns);
                }
                Instruction::Barrier { .. } | Instruction::Stop { .. } => {
                    if process.is_stubborn {
                        continue;
                    }
                    self.say(who, (3, 0, 0), 0);
                    let code = if self.rng.chance(5) { 10 } else { 0 };
                    self.ends(who, (false, code));
                }
                Instruction::Go | Instruction::PeerGone(_) => {}
            }
        }
    }

    /// Faults have ended long ago: everything must be as it should.
    fn check_calm(&self) {
        assert!(self.has_served, "the start neither failed nor ended");
        for slot in self.rules.slots() {
            let who = self.current.get(&slot.place).copied();
            if let Some(process) = who.map(|who| &self.processes[&who])
                && (process.is_stuck || process.syncs_until_ns > 0)
            {
                continue;
            }
            let expected = if self.failed.contains(&slot.place) { Condition::Failed } else { Condition::Ready };
            assert_eq!(slot.condition, expected, "{} long after the last fault", slot.place);
        }
        let ready: Vec<Instance> = self.current.values().filter(|who| self.is_linked_side(**who)).copied().collect();
        for who in &ready {
            let process = &self.processes[who];
            for peer in ready.iter().filter(|peer| peer.role != who.role) {
                let number = process.links.get(peer);
                let number = number.unwrap_or_else(|| panic!("{who} has no link to {peer}"));
                assert!(!self.broken.contains_key(number), "the link of {who} to {peer} stays broken");
            }
            assert!(who.role == Role::Owner || process.has_go, "{who} never went");
            for old in process.links.keys() {
                assert!(self.current.get(&old.place()) == Some(old), "{who} still has a link to {old}");
            }
        }
        let has_stuck = self.current.values().any(|who| self.processes[who].is_stuck);
        assert!(!self.has_drain || self.is_drained || has_stuck, "the drain never ended");
    }

    fn check_end(&self) {
        if let Some(stop_ns) = self.stop_ns {
            let took_ns = self.now_ns - stop_ns.max(self.suspended_until_ns);
            assert!(took_ns <= STOP_NS + KILL_NS, "the stop took {} ms", took_ns / MS);
        }
        for who in self.current.values() {
            let process = &self.processes[who];
            assert!(process.was_killed, "{who} is left alive");
            assert!(process.is_stuck, "{who} is left behind although it could be killed");
        }
    }
}

fn run(seed: u64, plant: Plant) -> u64 {
    World::new(seed, plant).run()
}

/// Seeds of one run of the tests; more with `TENURE_SEEDS`.
fn seeds() -> u64 {
    std::env::var("TENURE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5_000)
}

/// S2, S3, S6, S7, S21, S25, S26, S34: whatever happens, in every order.
#[test]
fn every_world_keeps_the_rules() {
    for seed in 0..seeds() {
        let result = std::panic::catch_unwind(|| run(seed, Plant::None));
        assert!(result.is_ok(), "seed {seed} breaks the rules");
    }
}

#[test]
fn a_world_is_the_same_for_the_same_seed() {
    for seed in 0..50 {
        assert_eq!(run(seed, Plant::None), run(seed, Plant::None), "seed {seed}");
    }
}

/// A defect that no seed shows is a check that is missing.
#[test]
fn planted_defects_are_found() {
    for plant in PLANTS {
        let found = (0..1_000).find(|seed| std::panic::catch_unwind(|| run(*seed, plant)).is_err());
        assert!(found.is_some(), "{plant:?} was not found");
    }
}
