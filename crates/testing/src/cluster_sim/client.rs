//! A process: its two threads around the product's agent and coordinator.

use std::collections::VecDeque;

use cluster_core::{
    Boot, Call, CallAnswer, Change, Coordinator, CoordinatorSettings, FenceReason, Input, Leadership, LeaseAgent,
    LeaseInput, LeaseOutput, LeaseSettings, MemberId, Notice, Now, Output, Process as Registration, Server, channel,
    leadership,
};
use database_core::{Class, DbError};

use super::executor::Execution;
use super::profile::{MS, SECOND};
use super::server::Purpose;
use super::world::{Event, Mail, RunResult, Thread, WALL_US, World, say};
use crate::rng::Rng;

/// Wakes at one instant, one after the other, that mean that a timer lies in the past.
const WAKES_MAX: u32 = 100;

pub(super) struct Process {
    /// Counts starts: what is meant for an earlier life is dropped.
    pub(super) life: u32,
    pub(super) is_up: bool,
    pub(super) agent: Option<LeaseAgent>,
    pub(super) coordinator: Option<Coordinator>,
    boot_offset: u64,
    pub(super) wall_step_ms: i64,
    pub(super) lease_frozen_until: u64,
    pub(super) runtime_frozen_until: u64,
    /// Half-open until then: what is sent gets nowhere.
    pub(super) cut_until: u64,
    /// Up to this much is added to each delay, until then.
    pub(super) slow_by: u64,
    pub(super) slow_until: u64,
    pub(super) pool_blocked_until: u64,
    /// The identity under which work starts, and until when, as both threads see it.
    pub(super) me: Option<MemberId>,
    pub(super) valid_until: Boot,
    pub(super) server: Option<Server>,
    pub(super) last_id: Option<MemberId>,
    pub(super) executions: Vec<Execution>,
    /// As the listeners were told.
    pub(super) leads: [Option<Leadership>; 2],
    pub(super) has_contest_failed: bool,
    pub(super) lease_run: Option<u32>,
    /// Versions by name, and how often the name was dropped.
    pub(super) cache: [Option<i64>; 2],
    pub(super) cache_drops: [u32; 2],
    pub(super) others: Vec<MemberId>,
    pub(super) is_stopping: bool,
    /// The coordinator has begun to stop.
    has_stop_begun: bool,
    /// It knows that its identity is over, and of no other.
    knows_of_fence: bool,
    looked_at: Boot,
    /// A read was taken in.
    has_looked: bool,
    /// Mail for a thread that is frozen, in the order in which it came.
    pub(super) backlog: [VecDeque<u32>; 2],
    pub(super) known_dead: Vec<MemberId>,
    pub(super) permit_in_flight: bool,
    /// When the runtime's thread hears what the lease's thread said last.
    told_at: u64,
    /// Actions so far.
    pub(super) actions: u32,
    wake_at: [u64; 2],
    wakes: (u64, u32),
}

impl Process {
    pub(super) fn new(rng: &mut Rng) -> Self {
        Self {
            life: 0,
            is_up: false,
            agent: None,
            coordinator: None,
            boot_offset: rng.below(1_000_000 * SECOND),
            wall_step_ms: 0,
            lease_frozen_until: 0,
            runtime_frozen_until: 0,
            cut_until: 0,
            slow_by: 0,
            slow_until: 0,
            pool_blocked_until: 0,
            me: None,
            valid_until: Boot(0),
            server: None,
            last_id: None,
            executions: Vec::new(),
            leads: [None; 2],
            has_contest_failed: false,
            lease_run: None,
            cache: [None; 2],
            cache_drops: [0; 2],
            others: Vec::new(),
            is_stopping: false,
            has_stop_begun: false,
            knows_of_fence: false,
            looked_at: Boot(0),
            has_looked: false,
            backlog: Default::default(),
            known_dead: Vec::new(),
            permit_in_flight: false,
            told_at: 0,
            actions: 0,
            wake_at: [u64::MAX; 2],
            wakes: (0, 0),
        }
    }
}

pub(super) fn index_of(name: &str) -> usize {
    usize::from(name != leadership::SCHEDULER)
}

impl World {
    pub(super) fn boot(&self, process: usize) -> Boot {
        Boot(self.now + self.processes[process].boot_offset)
    }

    fn now_of(&self, process: usize) -> Now {
        let wall_ms = (WALL_US + (self.now / 1_000) as i64) / 1_000 + self.processes[process].wall_step_ms;
        Now { boot: self.boot(process), wall_ms }
    }

    pub(super) fn start(&mut self, index: usize) {
        if self.processes[index].is_up {
            return;
        }
        say!(self, "P{index} starts");
        self.outcome.starts += 1;
        let mut seed = || [self.rng.next_u64(), self.rng.next_u64(), self.rng.next_u64(), self.rng.next_u64()];
        let (lease_seed, coordinator_seed) = (seed(), seed());
        let process = &mut self.processes[index];
        let known_dead = std::mem::take(&mut process.known_dead);
        let fresh = Process::new(&mut Rng::new(0));
        let boot_offset = process.boot_offset;
        let (cut_until, slow_by, slow_until) = (process.cut_until, process.slow_by, process.slow_until);
        let life = process.life + 1;
        *process = Process { life, boot_offset, cut_until, slow_by, slow_until, is_up: true, ..fresh };
        process.last_id = None;
        let registration = Registration {
            host: "host".into(),
            boot_id: "boot".into(),
            pid: index as u32,
            program: "1".into(),
            schema_version: 1,
        };
        let times = self.profile.times;
        process.agent =
            Some(LeaseAgent::new(LeaseSettings { times, mode: Self::MODE, process: registration }, lease_seed));
        let settings = CoordinatorSettings { times, mode: Self::MODE, known_dead, listen_wait: times.beat };
        process.coordinator = Some(Coordinator::new(settings, coordinator_seed));
        for name in leadership::ALL {
            self.mail(index, 0, Mail::Coordinator(Input::MayLead { name, is_able: true }));
        }
        self.mail(index, 0, Mail::Lease(LeaseInput::Start));
        let listening = self.rng.below(2 * SECOND);
        if self.rng.chance(9, 10) {
            self.mail(index, listening, Mail::Coordinator(Input::Listening));
        }
        let first = self.rng.below(3 * SECOND);
        self.mail(index, first, Mail::Act);
    }

    /// The process is gone at once.
    pub(super) fn kill(&mut self, index: usize) {
        let process = &mut self.processes[index];
        process.is_up = false;
        process.life += 1;
        process.executions.clear();
        process.leads = [None; 2];
        process.me = None;
        process.agent = None;
        process.coordinator = None;
        if let Some(id) = process.last_id {
            process.known_dead = vec![id];
        }
        let backlog = std::mem::take(&mut process.backlog);
        let life = process.life - 1;
        for mail in backlog.into_iter().flatten() {
            self.deliver(index, life, mail);
        }
        self.client_is_gone(index);
    }

    pub(super) fn receive(&mut self, index: usize, mail: Mail) {
        match mail {
            Mail::Lease(input) => self.tell_agent(index, input),
            Mail::Coordinator(input) => self.tell_coordinator(index, input),
            Mail::Connect { call } => self.connect_arrives(index, call),
            Mail::Result { run, result } => self.result(index, run, result),
            Mail::Act => self.act_now(index),
            Mail::ExecutionEnds { id, attempt } => self.execution_ends(index, id, attempt),
        }
    }

    pub(super) fn wake(&mut self, index: usize, life: u32, thread: Thread) {
        let process = &mut self.processes[index];
        if process.life != life || !process.is_up || process.wake_at[thread as usize] > self.now {
            return;
        }
        if let Some(until) = self.frozen_until(index, thread) {
            self.processes[index].wake_at[thread as usize] = until;
            self.at(until, Event::Wake { process: index as u8, life, thread });
            return;
        }
        let process = &mut self.processes[index];
        process.wake_at[thread as usize] = u64::MAX;
        if process.wakes.0 == self.now {
            process.wakes.1 += 1;
            if process.wakes.1 > WAKES_MAX {
                self.judge.breaks(format!("P{index}: a timer of {thread:?} lies in the past"));
                return;
            }
        } else {
            process.wakes = (self.now, 0);
        }
        match thread {
            Thread::Lease => self.tell_agent(index, LeaseInput::Wake),
            Thread::Runtime => self.tell_coordinator(index, Input::Wake),
        }
    }

    fn arm(&mut self, index: usize, thread: Thread, deadline: Option<Boot>) {
        let Some(deadline) = deadline else { return };
        let process = &mut self.processes[index];
        let at = deadline.0.saturating_sub(process.boot_offset).max(self.now);
        if at < process.wake_at[thread as usize] {
            process.wake_at[thread as usize] = at;
            let life = process.life;
            self.at(at, Event::Wake { process: index as u8, life, thread });
        }
    }

    pub(super) fn tell_agent(&mut self, index: usize, input: LeaseInput) {
        let now = self.now_of(index);
        let Some(agent) = &mut self.processes[index].agent else { return };
        let mut out = Vec::new();
        agent.handle(now, input, &mut out);
        let deadline = agent.next_deadline();
        for output in out {
            self.agent_says(index, output);
        }
        self.arm(index, Thread::Lease, deadline);
    }

    fn agent_says(&mut self, index: usize, output: LeaseOutput) {
        if !matches!(output, LeaseOutput::Call { .. } | LeaseOutput::Valid { .. } | LeaseOutput::Connect { .. }) {
            say!(self, "P{index} agent: {output:?}");
        }
        match output {
            LeaseOutput::Connect { call } => {
                if self.processes[index].cut_until > self.now || self.faults.is_hanging(self.now) {
                    // No answer: the agent gives up by itself.
                    return;
                }
                let wait = 2 * self.delay(index);
                self.mail(index, wait, Mail::Connect { call });
            }
            LeaseOutput::Call { call, what } => {
                let script = what.script();
                let limit = what.limit(&self.profile.times).as_nanos() as u64;
                let run = self.start_lease(index, call, what, script, limit);
                self.processes[index].lease_run = run;
            }
            LeaseOutput::DropConnection => {
                if let Some(run) = self.processes[index].lease_run.take() {
                    self.client_drops(run);
                }
            }
            LeaseOutput::Registered { id, no, server, retired, .. } => {
                self.outcome.registrations += 1;
                let process = &mut self.processes[index];
                process.me = Some(id);
                process.last_id = Some(id);
                process.server = Some(server);
                self.tell_of_lease(index, Input::Registered { id, no, server, retired });
            }
            LeaseOutput::Valid { until } => {
                self.outcome.renewals += 1;
                self.processes[index].valid_until = until;
                let until_ns = until.0.saturating_sub(self.processes[index].boot_offset);
                self.judge_trust(index, until_ns);
                self.tell_of_lease(index, Input::Valid { until });
            }
            LeaseOutput::Fenced { reason, clocks_jumped, .. } => {
                match reason {
                    FenceReason::LateByOwnClock => self.outcome.fenced_late += 1,
                    FenceReason::ExpiredByDatabase => self.outcome.fenced_expired += 1,
                    FenceReason::RegistrationMissing => self.outcome.fenced_missing += 1,
                    FenceReason::DatabaseChanged => self.outcome.fenced_changed += 1,
                }
                self.outcome.clocks_jumped += u64::from(clocks_jumped);
                let process = &mut self.processes[index];
                process.me = None;
                // The pool goes on to refuse what reaches another server than that of the registration.
                process.valid_until = Boot(0);
                self.tell_of_lease(index, Input::Fenced);
            }
            LeaseOutput::StopExecutions { retired } => {
                let margin = self.profile.times.margin.as_nanos() as u64;
                let wait = self.rng.below(margin);
                self.kills.push(retired.0);
                let life = self.processes[index].life;
                let kill = (self.kills.len() - 1) as u32;
                self.after(wait, Event::Killed { process: index as u8, life, kill });
            }
            LeaseOutput::Abandoned { .. } => self.outcome.abandoned += 1,
            LeaseOutput::Refused { refusal, .. } => self.judge.breaks(format!("P{index}: {refusal}")),
            LeaseOutput::Failed { .. }
            | LeaseOutput::StopLate { .. }
            | LeaseOutput::ClockWarning { .. }
            | LeaseOutput::LeaseSet { .. }
            | LeaseOutput::Stopped => {}
        }
    }

    /// From one thread to the other, in order.
    fn tell_of_lease(&mut self, index: usize, input: Input) {
        let at = (self.now + MS).max(self.processes[index].told_at + 1);
        self.processes[index].told_at = at;
        self.mail(index, at - self.now, Mail::Coordinator(input));
    }

    pub(super) fn killed(&mut self, index: usize, life: u32, retired: u128) {
        let process = &mut self.processes[index];
        if process.life != life || !process.is_up {
            return;
        }
        let before = process.executions.len();
        process.executions.retain(|execution| execution.owner.0 != retired);
        self.outcome.executions_killed += (before - process.executions.len()) as u64;
        self.mail(index, 0, Mail::Lease(LeaseInput::ExecutionsStopped { retired: MemberId(retired) }));
    }

    fn connect_arrives(&mut self, index: usize, call: u64) {
        if self.processes[index].cut_until > self.now || self.faults.is_hanging(self.now) {
            return;
        }
        let input = if self.faults.is_down(self.now) {
            let error = DbError::new(Class::Unavailable, "connection refused").into();
            LeaseInput::NotConnected { call, error }
        } else {
            LeaseInput::Connected { call, server: self.database.server }
        };
        self.tell_agent(index, input);
    }

    pub(super) fn tell_coordinator(&mut self, index: usize, input: Input) {
        let now = self.boot(index);
        match input {
            Input::Fenced => self.processes[index].knows_of_fence = true,
            Input::Registered { .. } => self.processes[index].knows_of_fence = false,
            _ => {}
        }
        let Some(coordinator) = &mut self.processes[index].coordinator else { return };
        let mut out = Vec::new();
        coordinator.handle(now, input, &mut out);
        let deadline = coordinator.next_deadline();
        for output in out {
            self.coordinator_says(index, output);
        }
        self.arm(index, Thread::Runtime, deadline);
    }

    fn coordinator_says(&mut self, index: usize, output: Output) {
        match output {
            Output::Call { call, what } => {
                let identity = match &what {
                    Call::Reap { me, .. } | Call::Tidy { me, .. } | Call::TakeRequests { me, .. } => Some(*me),
                    _ => None,
                };
                let limit = what.limit(&self.profile.times).as_nanos() as u64;
                let script = what.script(&self.context);
                self.start_call(index, call, what, script, identity, limit);
            }
            Output::Started { others, .. } => say!(self, "P{index} started, {others} others"),
            Output::Leadership { leadership, change } => self.told(index, leadership, change),
            Output::Requests(requests) => {
                for request in requests {
                    self.request_taken(index, &request);
                }
            }
            Output::DropCaches(names) => {
                for name in names {
                    let name: usize = name[1..].parse().expect("names end in a number");
                    self.outcome.cache_drops += 1;
                    self.drop_cache(index, name);
                }
            }
            Output::DropAllCaches => {
                self.outcome.caches_dropped_whole += 1;
                self.drop_cache(index, 0);
                self.drop_cache(index, 1);
            }
            Output::RunPeriodic => {}
            Output::BeatDone => {
                self.outcome.beats += 1;
                self.mail(index, 0, Mail::Lease(LeaseInput::Beat));
            }
            Output::Alive(view) => {
                let process = &mut self.processes[index];
                process.has_looked |= view.at != process.looked_at;
                process.looked_at = view.at;
                let living = view.members.iter().filter(|seen| seen.left_ms >= 0 && Some(seen.id) != process.me);
                process.others = living.map(|seen| seen.id).collect();
            }
            Output::Vanished(_) => {}
            Output::Send(notice) => self.send_notice(index, &notice),
            Output::Reaped(reaped) => {
                self.outcome.reaped += reaped.dead.len() as u64;
                self.outcome.rows_given_up += reaped.rows;
                if !reaped.dead.is_empty() {
                    say!(self, "P{index} reaped {reaped:?}");
                }
            }
            Output::Tidied(tidied) => {
                self.outcome.tidied += 1;
                say!(self, "P{index} tidied {tidied:?}");
            }
            Output::Failed { what, error } => {
                say!(self, "P{index} {what}: {error}");
                self.processes[index].has_contest_failed |= what == "contest";
            }
            Output::StopRenewal => {
                self.processes[index].has_stop_begun = true;
                self.mail(index, 0, Mail::Lease(LeaseInput::Stop));
            }
            Output::Stopped => self.stopped(index),
        }
    }

    fn stopped(&mut self, index: usize) {
        say!(self, "P{index} has stopped");
        let process = &mut self.processes[index];
        process.last_id = None;
        process.known_dead = Vec::new();
        self.kill(index);
        let wait = self.rng.below(20 * SECOND);
        self.after(wait, Event::Start { process: index as u8 });
    }

    fn told(&mut self, index: usize, held: Leadership, change: Change) {
        say!(self, "P{index} {} {change:?} epoch {:x}", held.name, held.epoch);
        let place = index_of(held.name);
        match change {
            Change::Gained => {
                self.outcome.gained += 1;
                self.processes[index].leads[place] = Some(held);
                if self.processes[index].has_stop_begun || self.processes[index].knows_of_fence {
                    self.judge.breaks(format!("P{index} leads after its stop has begun, or without identity"));
                }
                self.judge_gained(index, held);
            }
            Change::Resumed => {
                self.outcome.resumed += 1;
                self.processes[index].leads[place] = Some(held);
            }
            Change::Suspended => {
                self.outcome.suspended += 1;
                self.processes[index].leads[place] = None;
            }
            Change::Lost => {
                self.outcome.lost += 1;
                self.processes[index].leads[place] = None;
                if self.processes[index].is_stopping && self.processes[index].leads == [None; 2] {
                    let wait = self.rng.below(50 * MS);
                    self.mail(index, wait, Mail::Coordinator(Input::LeaderWorkStopped));
                }
            }
        }
    }

    pub(super) fn send_notice(&mut self, from: usize, notice: &Notice) {
        for to in 0..self.processes.len() {
            if !self.processes[to].is_up {
                continue;
            }
            let is_lost = self.rng.chance(self.profile.notices_lost, 1_000)
                || self.processes[to].cut_until > self.now
                || self.processes[from].cut_until > self.now
                || self.faults.is_down(self.now);
            if is_lost {
                self.outcome.notices_lost += 1;
                continue;
            }
            let is_relevant = matches!(notice.channel, channel::GONE | channel::CACHE | channel::REQUEST);
            if is_relevant {
                let wait = self.delay(from) + self.delay(to);
                self.mail(to, wait, Mail::Coordinator(Input::Notice(notice.clone())));
            }
        }
    }

    /// A transaction ended, for its client.
    fn result(&mut self, index: usize, run: u32, result: RunResult) {
        let Some(ended) = &mut self.runs[run as usize] else { return };
        let was_client_gone = std::mem::replace(&mut ended.is_client_gone, true);
        let snapshot_seq = ended.snapshot_seq;
        let purpose = ended.purpose.clone();
        self.free_if_over(run);
        if was_client_gone {
            return;
        }
        match (purpose, result) {
            (Purpose::Lease { call }, RunResult::Lease(result)) => {
                self.judge_error(index, result.as_ref().err());
                if self.processes[index].lease_run == Some(run) {
                    self.processes[index].lease_run = None;
                }
                if let Err(error) = &result {
                    say!(self, "P{index} lease: {error}");
                }
                self.tell_agent(index, LeaseInput::Done { call, result });
            }
            (Purpose::Call { call, what }, RunResult::Call(result)) => {
                self.judge_error(index, result.as_ref().err());
                if matches!(what, Call::Contest { .. }) && result.is_ok() {
                    self.processes[index].has_contest_failed = false;
                }
                let seen = matches!(&result, Ok(CallAnswer::Seen(_))).then_some(snapshot_seq);
                self.processes[index].has_looked = false;
                self.tell_coordinator(index, Input::Done { call, result });
                if let Some(seq) = seen
                    && self.processes[index].has_looked
                {
                    self.judge_cache(index, seq);
                }
            }
            (Purpose::Work { action, me }, RunResult::Work(result)) => {
                self.judge_error(index, result.as_ref().err());
                self.work_done(index, action, me, result);
            }
            (purpose, result) => unreachable!("{result:?} for {purpose:?}"),
        }
    }
}
