//! The rules in a world of chance: processes that die, freeze, sync for long and start slowly, an operator who drains,
//! stops and tries failed slots again, and a supervisor that is itself suspended.
//!
//! Every seed is a world of its own. The world checks each output against what it knows itself about the processes:
//! it keeps no copy of the rules' state. A failing test names its seed.
//!
//! A filter can falsify outputs on their way: so the last test proves that the checks find what they are there for.

mod outputs;
mod processes;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use super::*;
use crate::message::Topology;

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
    DrainsDaemons,
    StopsWithTheDaemon,
}

const PLANTS: [Plant; 16] = [
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
    Plant::DrainsDaemons,
    Plant::StopsWithTheDaemon,
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
        let several = Topology::several(1 + rng.below(4) as u16, 1 + rng.below(4) as u16);
        let topology = match rng.below(10) {
            0..6 => several,
            6 => Topology { daemon: true, ..several },
            7 => Topology::single(),
            8 => Topology { daemon: true, ..Topology::single() },
            _ => Topology { daemon: true, ..Topology::default() },
        };
        let config = Config {
            topology,
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
            let at_ns = self.rng.below(CHAOS_NS);
            let slots: Vec<Slot> = self.config.topology.slots().collect();
            let place = slots[self.rng.below(slots.len() as u64) as usize];
            self.at(at_ns, Event::Restart(place));
        }
        for _ in 0..self.faults.suspend {
            let (at_ns, length_ns) = (self.rng.below(CHAOS_NS), self.rng.below(100 * S));
            self.at(at_ns, Event::SuspendSupervisor(length_ns));
        }
        self.put(Input::Begin);
        if self.outcome.is_some() {
            // The only process could not be started.
            self.check_end();
            return self.trace;
        }
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

    /// Whether the server ends because a slot of this role has failed.
    fn ends_server(&self, role: Role) -> bool {
        match role {
            Role::Daemon => self.config.topology.len() == 1,
            _ => self.config.on_slot_failed == OnSlotFailed::Stop,
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
            for peer in ready.iter().filter(|peer| Some(peer.role) == who.role.peer()) {
                let number = process.links.get(peer);
                let number = number.unwrap_or_else(|| panic!("{who} has no link to {peer}"));
                assert!(!self.broken.contains_key(number), "the link of {who} to {peer} stays broken");
            }
            assert!(!who.role.accepts() || process.has_go, "{who} never went");
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
