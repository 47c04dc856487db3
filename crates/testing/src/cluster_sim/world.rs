//! The scheduler: what happens, in the order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

use cluster_core::{CallContext, LeaseAnswer, LeaseInput, Mode};
use database_core::DbError;

use super::Outcome;
use super::client::Process;
use super::database::{Config, Database, State, Work};
use super::faults::Faults;
use super::judge::Judge;
use super::profile::{Profile, SECOND};
use super::server::Run;
use crate::demonstration;
use crate::rng::Rng;

/// A promise was broken.
#[derive(Debug, Clone)]
pub struct Failure {
    /// In this seed.
    pub seed: u64,
    /// What was wrong.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "seed {}: {}", self.seed, self.what)
    }
}

/// The database's and the processes' wall clock at the start.
pub(super) const WALL_US: i64 = 1_800_000_000_000_000;

/// Which of a process's threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Thread {
    Lease,
    Runtime,
}

/// Something that reaches a thread of a process.
#[derive(Debug)]
pub(super) enum Mail {
    Lease(LeaseInput),
    Coordinator(cluster_core::Input),
    /// A connection for the lease was tried.
    Connect {
        call: u64,
    },
    /// A transaction ended, for its client.
    Result {
        run: u32,
        result: RunResult,
    },
    Act,
    ExecutionEnds {
        id: i64,
        attempt: i64,
    },
}

/// What a run gives to its client.
#[derive(Debug)]
pub(super) enum RunResult {
    Lease(Result<LeaseAnswer, DbError>),
    Call(Result<cluster_core::CallAnswer, DbError>),
    Work(Result<demonstration::Outcome, DbError>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A deadline of a thread.
    Wake {
        process: u8,
        life: u32,
        thread: Thread,
    },
    /// A thread that was frozen reads its mail.
    Thaw {
        process: u8,
        life: u32,
        thread: Thread,
    },
    /// Mail for a thread.
    Mail {
        process: u8,
        life: u32,
        mail: u32,
    },
    /// A run's next statement reaches the server.
    Step {
        run: u32,
    },
    /// A statement goes on after its snapshot.
    Execute {
        run: u32,
    },
    LockTimeout {
        run: u32,
        wait: u32,
    },
    IdleTimeout {
        run: u32,
        step: u32,
    },
    /// The client gives a run up.
    Limit {
        run: u32,
    },
    /// Executions of an identity are dead.
    Killed {
        process: u8,
        life: u32,
        kill: u32,
    },
    /// A process starts.
    Start {
        process: u8,
    },
    Fault,
    /// A stand-by falls behind from here.
    Replica,
    DatabaseUp,
    /// A foreign session lets go of the row that it has locked.
    Unlock {
        run: u32,
    },
}

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) profile: Profile,
    pub(super) now: u64,
    heap: BinaryHeap<Reverse<(u64, u32, u32, Event)>>,
    pushes: u32,
    pub(super) mails: Vec<Option<Mail>>,
    free_mails: Vec<u32>,
    /// By number; none is used twice.
    pub(super) runs: Vec<Option<Box<Run>>>,
    /// Runs that wait for a row, in the order in which they began to.
    pub(super) waiting: Vec<u32>,
    pub(super) kills: Vec<u128>,
    pub(super) database: Database,
    pub(super) faults: Faults,
    pub(super) processes: Vec<Process>,
    pub(super) context: CallContext,
    pub(super) judge: Judge,
    pub(super) outcome: Outcome,
    pub(super) narrates: bool,
}

macro_rules! say {
    ($world:expr, $($words:tt)*) => {
        if $world.narrates {
            println!("{:>9.3} {}", $world.now as f64 / 1e9, format_args!($($words)*));
        }
    };
}
pub(super) use say;

/// Runs a seed for so many simulated minutes.
///
/// # Errors
///
/// What was wrong, or where the code under test panicked.
pub fn run(seed: u64, minutes: u64) -> Result<Outcome, Failure> {
    go(seed, minutes, false)
}

/// As [`run`], and tells what happens.
///
/// # Errors
///
/// As [`run`].
pub fn narrate(seed: u64, minutes: u64) -> Result<Outcome, Failure> {
    go(seed, minutes, true)
}

fn go(seed: u64, minutes: u64, narrates: bool) -> Result<Outcome, Failure> {
    let ran = std::panic::catch_unwind(|| World::new(seed, minutes, narrates).play());
    match ran {
        Ok(result) => result.map_err(|what| Failure { seed, what }),
        Err(panic) => {
            let what = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|what| (*what).to_owned()))
                .unwrap_or_else(|| "a panic".into());
            Err(Failure { seed, what: format!("panicked: {what}") })
        }
    }
}

impl World {
    fn new(seed: u64, minutes: u64, narrates: bool) -> Self {
        let mut rng = Rng::new(seed);
        let profile = Profile::draw(&mut rng, minutes);
        if narrates {
            println!("{profile:?}");
        }
        let mut database = Database::new(2);
        database.now_us = WALL_US;
        for id in 1..=profile.rows {
            let lane = if id % 3 == 0 { 1 + id % profile.lanes } else { 0 };
            let needs_permit = id % 4 == 1;
            let (state, due) = (State::Done, WALL_US);
            database.seed_work(Work { id, state, due, owner: 0, attempt: 0, lane, needs_permit, pokes: 0 });
        }
        for name in 0..2 {
            database.seed_config(Config { name, version: 1 });
        }
        let context = CallContext {
            lease: profile.times.lease,
            steps: demonstration::reap_steps(),
            kept: cluster_core::scripts::reap::Kept::usual(profile.times.beat, true),
        };
        let faults = Faults::new(&profile);
        let judge = Judge::new(&profile);
        let mut world = Self {
            rng,
            now: 0,
            heap: BinaryHeap::with_capacity(256),
            pushes: 0,
            mails: Vec::with_capacity(64),
            free_mails: Vec::new(),
            runs: Vec::with_capacity(4_096),
            waiting: Vec::new(),
            kills: Vec::new(),
            database,
            faults,
            processes: Vec::new(),
            context,
            judge,
            outcome: Outcome::default(),
            narrates,
            profile,
        };
        for index in 0..world.profile.processes {
            let process = Process::new(&mut world.rng);
            world.processes.push(process);
            let at = world.rng.below(5 * SECOND);
            world.at(at, Event::Start { process: index as u8 });
        }
        let first = if world.profile.single.is_some() {
            world.profile.end / 4 + world.rng.below(20 * SECOND)
        } else {
            world.rng.below(world.profile.fault_every) + 5 * SECOND
        };
        world.at(first, Event::Fault);
        world
    }

    pub(super) const MODE: Mode = Mode::Shared;

    pub(super) fn at(&mut self, time: u64, event: Event) {
        self.pushes += 1;
        let tie = self.rng.next_u64() as u32;
        self.heap.push(Reverse((time, tie, self.pushes, event)));
    }

    pub(super) fn after(&mut self, wait: u64, event: Event) {
        self.at(self.now + wait, event);
    }

    /// Sends mail to a process, to arrive after `wait`.
    pub(super) fn mail(&mut self, process: usize, wait: u64, mail: Mail) {
        let slot = match self.free_mails.pop() {
            Some(slot) => {
                self.mails[slot as usize] = Some(mail);
                slot
            }
            None => {
                self.mails.push(Some(mail));
                (self.mails.len() - 1) as u32
            }
        };
        let life = self.processes[process].life;
        self.after(wait, Event::Mail { process: process as u8, life, mail: slot });
    }

    /// One way over a process's link.
    pub(super) fn delay(&mut self, process: usize) -> u64 {
        let (low, high) = self.profile.delay;
        let usual = self.rng.between(low, high);
        let slow = self.processes[process].slow_by;
        if slow > 0 && self.processes[process].slow_until > self.now { usual + self.rng.below(slow) } else { usual }
    }

    pub(super) fn set_clock(&mut self) {
        self.database.now_us = WALL_US + (self.now / 1_000) as i64 + self.faults.database_step_us;
    }

    pub(super) fn fold(&mut self, value: u64) {
        let mut state = self.outcome.hash ^ value;
        self.outcome.hash = crate::rng::splitmix64(&mut state);
    }

    fn play(mut self) -> Result<Outcome, String> {
        while let Some(Reverse((time, _, _, event))) = self.heap.pop() {
            if time > self.profile.end {
                break;
            }
            self.now = time;
            self.outcome.events += 1;
            self.fold(time);
            self.happen(event);
            if let Some(what) = self.judge.broken.take() {
                return Err(format!("at {:.3} s: {what}", self.now as f64 / 1e9));
            }
        }
        self.now = self.profile.end;
        self.set_clock();
        self.judge_the_end();
        if let Some(what) = self.judge.broken.take() {
            return Err(format!("at the end: {what}"));
        }
        self.outcome.simulated_ns = self.profile.end;
        self.outcome.rows_skipped = self.database.skipped;
        self.outcome.rows_rechecked = self.database.rechecked;
        Ok(self.outcome)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Wake { process, life, thread } => self.wake(process.into(), life, thread),
            Event::Mail { process, life, mail } => self.arrive(process.into(), life, mail),
            Event::Thaw { process, life, thread } => self.thaw(process.into(), life, thread),
            Event::Step { run } => self.step(run),
            Event::Execute { run } => self.execute(run),
            Event::LockTimeout { run, wait } => self.lock_timeout(run, wait),
            Event::IdleTimeout { run, step } => self.idle_timeout(run, step),
            Event::Limit { run } => self.limit(run),
            Event::Killed { process, life, kill } => self.killed(process.into(), life, self.kills[kill as usize]),
            Event::Start { process } => self.start(process.into()),
            Event::Fault => self.fault(),
            Event::Replica => self.copy_replica(),
            Event::DatabaseUp => self.database_up(),
            Event::Unlock { run } => self.unlock(run),
        }
    }

    fn arrive(&mut self, index: usize, life: u32, mail: u32) {
        let Some(content) = &self.mails[mail as usize] else { return };
        let thread = match content {
            Mail::Lease(_) | Mail::Connect { .. } | Mail::Result { result: RunResult::Lease(_), .. } => Thread::Lease,
            _ => Thread::Runtime,
        };
        if self.processes[index].life == life
            && let Some(until) = self.frozen_until(index, thread)
        {
            let backlog = &mut self.processes[index].backlog[thread as usize];
            backlog.push_back(mail);
            if backlog.len() == 1 {
                self.at(until, Event::Thaw { process: index as u8, life, thread });
            }
            return;
        }
        self.deliver(index, life, mail);
    }

    pub(super) fn deliver(&mut self, index: usize, life: u32, mail: u32) {
        let Some(content) = self.mails[mail as usize].take() else { return };
        self.free_mails.push(mail);
        if self.processes[index].life == life && self.processes[index].is_up {
            self.receive(index, content);
        } else if let Mail::Result { run, .. } = content {
            if let Some(run) = &mut self.runs[run as usize] {
                run.is_client_gone = true;
            }
            self.free_if_over(run);
        }
    }

    /// What has come meanwhile is read in its order; a timer may be first.
    fn thaw(&mut self, index: usize, life: u32, thread: Thread) {
        if self.processes[index].life == life
            && let Some(until) = self.frozen_until(index, thread)
        {
            self.at(until, Event::Thaw { process: index as u8, life, thread });
            return;
        }
        if self.processes[index].life == life {
            while let Some(mail) = self.processes[index].backlog[thread as usize].pop_front() {
                self.deliver(index, life, mail);
            }
        }
    }

    /// Until when a thread does not run.
    pub(super) fn frozen_until(&self, process: usize, thread: Thread) -> Option<u64> {
        let process = &self.processes[process];
        let until = match thread {
            Thread::Lease => process.lease_frozen_until,
            Thread::Runtime => process.runtime_frozen_until,
        };
        (until > self.now).then_some(until)
    }
}
