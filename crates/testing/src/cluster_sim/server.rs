//! Transactions between their client and the database.
//!
//! One event is a round trip: the client takes in an answer and its next statement is executed. A client whose thread is
//! frozen, or whose link is cut, leaves its transaction open until the server's limit for idle ones.

use cluster_core::{Call, CallAnswer, LeaseAnswer, LeaseCall, LeaseInput, MemberId};
use database_core::{Answer, Class, DbError, Script, Step, Value, Verdict};

use super::database::{Flow, Op, RowRef, Running, Txn};
use super::executor::Action;
use super::profile::MS;
use super::world::{Event, Mail, RunResult, Thread, World, say};
use crate::demonstration::Outcome;

/// What a transaction is for.
#[derive(Debug, Clone)]
pub(super) enum Purpose {
    Lease {
        call: u64,
    },
    Call {
        call: u64,
        what: Call,
    },
    Work {
        action: Action,
        me: MemberId,
    },
    /// A session of somebody who locks a row and does nothing.
    Foreign,
}

enum Code {
    Lease(Script<LeaseAnswer>),
    Call(Script<CallAnswer>),
    Work(Script<Outcome>),
    None,
}

enum Next {
    Query(&'static str, Vec<Value>),
    Commit(RunResult),
    RollBack(RunResult),
}

fn ended<T>(step: Step<T>, wrap: impl Fn(Result<T, DbError>) -> RunResult) -> Next {
    match step {
        Step::Query(sql, values) => Next::Query(sql.id, values),
        Step::Done(Ok(Verdict::Commit(result))) => Next::Commit(wrap(Ok(result))),
        Step::Done(Ok(Verdict::RollBack(result))) => Next::RollBack(wrap(Ok(result))),
        Step::Done(Err(error)) => Next::RollBack(wrap(Err(error))),
    }
}

impl Code {
    fn step(&mut self, answer: Option<Result<Answer, DbError>>) -> Next {
        match self {
            Self::Lease(script) => ended(script.step(answer), RunResult::Lease),
            Self::Call(script) => ended(script.step(answer), RunResult::Call),
            Self::Work(script) => ended(script.step(answer), RunResult::Work),
            Self::None => unreachable!("a foreign session has no code"),
        }
    }

    fn is_transaction(&self) -> bool {
        match self {
            Self::Lease(script) => script.is_transaction(),
            Self::Call(script) => script.is_transaction(),
            Self::Work(script) => script.is_transaction(),
            Self::None => true,
        }
    }

    fn failed(&self, error: DbError) -> RunResult {
        match self {
            Self::Lease(_) => RunResult::Lease(Err(error)),
            Self::Call(_) => RunResult::Call(Err(error)),
            Self::Work(_) | Self::None => RunResult::Work(Err(error)),
        }
    }
}

/// A transaction under way.
pub(super) struct Run {
    pub(super) process: usize,
    pub(super) thread: Thread,
    pub(super) purpose: Purpose,
    /// The identity that it writes for.
    pub(super) identity: Option<MemberId>,
    code: Code,
    txn: Option<Txn>,
    running: Option<Running>,
    /// What the client is to be told next.
    inbox: Option<Result<Answer, DbError>>,
    first: Option<(Op, Vec<Value>)>,
    waits_for: Option<RowRef>,
    waits: u32,
    steps: u32,
    /// What the client hears is under way, or has come.
    pub(super) has_result: bool,
    /// The client is told nothing any more.
    pub(super) is_client_gone: bool,
    /// The client has given it up: the server ends it where it asks for the client.
    is_dropped: bool,
    is_committed: bool,
    is_read: bool,
    is_parked: bool,
    limit_at: u64,
    has_limit: bool,
    /// Commits that its last statement saw.
    pub(super) snapshot_seq: u64,
}

impl World {
    pub(super) fn start_lease(
        &mut self,
        process: usize,
        call: u64,
        what: LeaseCall,
        script: Script<LeaseAnswer>,
        limit: u64,
    ) -> Option<u32> {
        let _ = what;
        self.start_run(process, Thread::Lease, Purpose::Lease { call }, Code::Lease(script), None, limit)
    }

    pub(super) fn start_call(
        &mut self,
        process: usize,
        call: u64,
        what: Call,
        script: Script<CallAnswer>,
        identity: Option<MemberId>,
        limit: u64,
    ) {
        let purpose = Purpose::Call { call, what };
        self.start_run(process, Thread::Runtime, purpose, Code::Call(script), identity, limit);
    }

    pub(super) fn start_script(&mut self, process: usize, action: Action, me: MemberId, script: Script<Outcome>) {
        let times = &self.profile.times;
        let limit = (times.guarded_limit() + times.statement_timeout).as_nanos() as u64;
        let identity = (!matches!(action, Action::Change(_) | Action::Read(..))).then_some(me);
        self.start_run(process, Thread::Runtime, Purpose::Work { action, me }, Code::Work(script), identity, limit);
    }

    fn start_run(
        &mut self,
        process: usize,
        thread: Thread,
        purpose: Purpose,
        mut code: Code,
        identity: Option<MemberId>,
        limit: u64,
    ) -> Option<u32> {
        let Next::Query(id, values) = code.step(None) else { unreachable!("a script asks something") };
        let op = Op::of(id);
        let is_read = !code.is_transaction() && op.is_read();
        let run = Run {
            process,
            thread,
            purpose,
            identity,
            code,
            txn: None,
            running: None,
            inbox: None,
            first: Some((op, values)),
            waits_for: None,
            waits: 0,
            steps: 0,
            has_result: false,
            is_client_gone: false,
            is_dropped: false,
            is_committed: false,
            is_read,
            is_parked: false,
            limit_at: self.now + limit,
            has_limit: false,
            snapshot_seq: 0,
        };
        self.runs.push(Some(Box::new(run)));
        let number = (self.runs.len() - 1) as u32;
        let client = &self.processes[process];
        if thread == Thread::Runtime {
            if client.pool_blocked_until > self.now {
                self.arm_limit(number);
                return Some(number);
            }
            // Each connection tells which server it has reached; the pool gives up those that reach another one.
            let other = client.server.filter(|server| !server.is_same(self.database.server));
            if other.is_some()
                && !self.faults.is_down(self.now)
                && !cluster_core::planted::is(cluster_core::planted::Bug::DatabaseChangeIgnored)
            {
                let seen = self.database.server;
                self.mail(process, MS, Mail::Lease(LeaseInput::ServerSeen(seen)));
                self.fail(number, Class::Unavailable, "another database");
                return Some(number);
            }
        }
        if self.processes[process].cut_until > self.now || self.faults.is_hanging(self.now) {
            self.arm_limit(number);
        } else if self.faults.is_down(self.now) {
            self.fail(number, Class::Unavailable, "connection refused");
        } else {
            let wait = self.delay(process);
            if wait > 100 * MS {
                self.arm_limit(number);
            }
            self.after(wait, Event::Step { run: number });
        }
        Some(number)
    }

    /// Only what is held up needs the event.
    fn arm_limit(&mut self, number: u32) {
        let Some(run) = &mut self.runs[number as usize] else { return };
        if !run.has_limit {
            run.has_limit = true;
            let at = run.limit_at.max(self.now);
            self.at(at, Event::Limit { run: number });
        }
    }

    pub(super) fn limit(&mut self, number: u32) {
        let Some(run) = &self.runs[number as usize] else { return };
        if run.has_result || run.is_client_gone {
            return;
        }
        if let Some(until) = self.frozen_until(run.process, run.thread) {
            self.at(until, Event::Limit { run: number });
            return;
        }
        // Nothing says whether a statement of its own, or a commit, was carried out.
        let class = if run.is_read { Class::Unavailable } else { Class::Unknown };
        self.outcome.unknown_commits += u64::from(class == Class::Unknown);
        self.tell_failure(number, class, "no answer within the limit", 0);
        self.server_drops(number);
    }

    /// The client gives a run up, or has died.
    pub(super) fn client_drops(&mut self, number: u32) {
        let Some(run) = &mut self.runs[number as usize] else { return };
        run.is_client_gone = true;
        self.server_drops(number);
    }

    /// The server's side after the client is gone: a statement under way goes on to its end.
    fn server_drops(&mut self, number: u32) {
        let Some(run) = &mut self.runs[number as usize] else { return };
        run.is_dropped = true;
        if run.is_parked {
            let txn = run.txn.take();
            self.abort(txn);
            self.free_if_over(number);
        }
    }

    /// Forgets a run that neither client nor server knows of.
    pub(super) fn free_if_over(&mut self, number: u32) {
        if self.runs[number as usize].as_ref().is_some_and(|run| run.is_client_gone && run.txn.is_none()) {
            let is_first_to_come = self.runs[number as usize].as_ref().is_some_and(|run| run.first.is_some());
            if !is_first_to_come {
                self.runs[number as usize] = None;
            }
        }
    }

    pub(super) fn client_is_gone(&mut self, process: usize) {
        for number in self.faults.oldest_run..self.runs.len() {
            if self.runs[number].as_ref().is_some_and(|run| run.process == process) {
                self.client_drops(number as u32);
            }
        }
    }

    fn abort(&mut self, txn: Option<Txn>) {
        if let Some(txn) = txn {
            self.database.abort(txn);
            self.wake_waiters();
        }
    }

    fn fail(&mut self, number: u32, class: Class, what: &'static str) {
        let Some(run) = &self.runs[number as usize] else { return };
        let wait = self.delay(run.process);
        self.tell_failure(number, class, what, wait);
    }

    /// The client hears of a failure in `wait`.
    fn tell_failure(&mut self, number: u32, class: Class, what: &'static str, wait: u64) {
        let Some(run) = &mut self.runs[number as usize] else { return };
        let result = run.code.failed(DbError::new(class, what));
        self.tell(number, result, wait);
    }

    fn tell(&mut self, number: u32, result: RunResult, wait: u64) {
        let Some(run) = &mut self.runs[number as usize] else { return };
        if run.is_client_gone {
            self.free_if_over(number);
            return;
        }
        if run.has_result {
            return;
        }
        run.has_result = true;
        let process = run.process;
        self.mail(process, wait, Mail::Result { run: number, result });
    }

    /// The client's next statement.
    pub(super) fn step(&mut self, number: u32) {
        let Some(run) = &mut self.runs[number as usize] else { return };
        run.is_parked = false;
        self.outcome.statements += 1;
        if let Some((op, values)) = run.first.take() {
            self.begin(number, op, values);
            return;
        }
        if run.is_dropped || run.has_result {
            let txn = run.txn.take();
            self.abort(txn);
            self.free_if_over(number);
            return;
        }
        let (process, thread) = (run.process, run.thread);
        let frozen = self.frozen_until(process, thread);
        let cut = Some(self.processes[process].cut_until).filter(|until| *until > self.now);
        if frozen.is_some() || cut.is_some() {
            // Waits for its client.
            let Some(run) = &mut self.runs[number as usize] else { return };
            run.steps += 1;
            run.is_parked = true;
            let step = run.steps;
            let idle = self.profile.times.guarded_limit().as_nanos() as u64;
            self.after(idle, Event::IdleTimeout { run: number, step });
            self.arm_limit(number);
            if cut.is_none()
                && let Some(until) = frozen
            {
                self.at(until, Event::Step { run: number });
            }
            return;
        }
        let Some(run) = &mut self.runs[number as usize] else { return };
        run.steps += 1;
        let answer = run.inbox.take();
        match run.code.step(answer) {
            Next::Query(id, values) => self.begin(number, Op::of(id), values),
            Next::Commit(result) => self.commit(number, result),
            Next::RollBack(result) => {
                let txn = run.txn.take();
                self.abort(txn);
                let wait = self.delay(process);
                self.tell(number, result, wait);
            }
        }
    }

    fn begin(&mut self, number: u32, op: Op, values: Vec<Value>) {
        self.set_clock();
        let Some(run) = &mut self.runs[number as usize] else { return };
        let mut txn = run.txn.take().unwrap_or_else(|| self.database.transaction());
        run.running = Some(self.database.begin(&mut txn, op, values));
        run.snapshot_seq = self.database.seq;
        run.txn = Some(txn);
        // The reaper's choice may be old even if nobody else was at work when it began.
        let may_stall = op.is_racy() && self.database.is_busy() || op == Op::LockDead;
        if may_stall && self.rng.chance(1, 2) {
            // Long ones are rare.
            let most = if self.rng.chance(1, 2) { self.profile.stall } else { self.profile.stall.min(5 * MS) };
            let wait = self.rng.below(most);
            if wait > 100 * MS {
                self.arm_limit(number);
            }
            self.after(wait, Event::Execute { run: number });
        } else {
            self.execute(number);
        }
    }

    pub(super) fn execute(&mut self, number: u32) {
        self.set_clock();
        let Some(run) = &mut self.runs[number as usize] else { return };
        let Some(mut running) = run.running.take() else { return };
        let Some(mut txn) = run.txn.take() else { return };
        let process = run.process;
        let flow = self.database.step(&mut txn, &mut running);
        if let Some(judged) = self.database.renewal_judged.take() {
            self.judge.renewal(judged);
        }
        let run = self.runs[number as usize].as_mut().expect("it is under way");
        match flow {
            Flow::Done(answer) => {
                if run.waits_for.take().is_some() {
                    self.waiting.retain(|waiting| *waiting != number);
                }
                if run.code.is_transaction() {
                    run.txn = Some(txn);
                    run.inbox = Some(Ok(answer));
                    let wait = 2 * self.delay(process);
                    if wait > 200 * MS {
                        self.arm_limit(number);
                    }
                    self.after(wait, Event::Step { run: number });
                } else {
                    let next = run.code.step(Some(Ok(answer)));
                    run.txn = Some(txn);
                    match next {
                        Next::Commit(result) => self.commit(number, result),
                        Next::RollBack(result) => {
                            // The answer could not be read; the statement is committed all the same.
                            self.commit(number, result);
                        }
                        Next::Query(..) => unreachable!("one statement is one statement"),
                    }
                }
            }
            Flow::Wait(row) => {
                run.txn = Some(txn);
                run.running = Some(running);
                if run.waits_for.is_none() {
                    run.waits += 1;
                    self.outcome.lock_waits += 1;
                    let wait = run.waits;
                    let limit = self.profile.times.lock_timeout().as_nanos() as u64;
                    run.waits_for = Some(row);
                    self.waiting.push(number);
                    self.after(limit, Event::LockTimeout { run: number, wait });
                    self.arm_limit(number);
                } else {
                    run.waits_for = Some(row);
                }
            }
            Flow::Failed(error) => {
                if run.waits_for.take().is_some() {
                    self.waiting.retain(|waiting| *waiting != number);
                }
                self.database.abort(txn);
                self.wake_waiters();
                let run = self.runs[number as usize].as_mut().expect("it is under way");
                let next = run.code.step(Some(Err(error)));
                let wait = 2 * self.delay(process);
                match next {
                    Next::RollBack(result) | Next::Commit(result) => self.tell(number, result, wait),
                    Next::Query(..) => self.tell_failure(number, Class::Broken, "a statement after an error", wait),
                }
            }
        }
    }

    fn commit(&mut self, number: u32, result: RunResult) {
        self.set_clock();
        let Some(run) = &mut self.runs[number as usize] else { return };
        let Some(txn) = run.txn.take() else { return };
        let process = run.process;
        let has_written = txn.has_written;
        let is_lost = has_written && self.now < self.profile.calm_from && self.rng.chance(self.profile.unknown, 10_000);
        if is_lost && self.rng.chance(1, 2) {
            // Sent, and never arrived.
            self.database.abort(txn);
            self.wake_waiters();
            self.unknown(number);
            return;
        }
        let committed = self.database.commit(txn);
        if let Some(run) = &mut self.runs[number as usize] {
            run.is_committed = true;
        }
        self.fold(self.database.seq);
        self.judge_commit(number, has_written, committed);
        self.wake_waiters();
        if is_lost {
            self.unknown(number);
            return;
        }
        let wait = self.delay(process);
        if self.processes[process].cut_until > self.now {
            self.arm_limit(number);
            let Some(run) = &mut self.runs[number as usize] else { return };
            // Nothing more happens; the client's limit ends it.
            run.is_parked = true;
            return;
        }
        if wait > 100 * MS {
            // A limit may come first.
            self.arm_limit(number);
        }
        self.tell_later(number, result, wait);
    }

    /// As `tell`, but the client's limit may come before.
    fn tell_later(&mut self, number: u32, result: RunResult, wait: u64) {
        let Some(run) = &self.runs[number as usize] else { return };
        if self.now + wait > run.limit_at && !run.is_client_gone {
            let Some(run) = &mut self.runs[number as usize] else { return };
            run.is_parked = true;
            self.arm_limit(number);
            return;
        }
        self.tell(number, result, wait);
    }

    fn unknown(&mut self, number: u32) {
        self.outcome.unknown_commits += 1;
        self.fail(number, Class::Unknown, "the connection broke at the commit");
    }

    /// Goes on with all whose row is free.
    pub(super) fn wake_waiters(&mut self) {
        // In the order in which they began to wait. One that goes on may end, and wake others.
        let mut place = 0;
        while let Some(number) = self.waiting.get(place).copied() {
            let is_free = match &self.runs[number as usize] {
                Some(run) => match (run.waits_for, &run.txn) {
                    (Some(row), Some(txn)) => !self.database.is_blocked(txn.xid, row),
                    _ => false,
                },
                None => false,
            };
            if is_free {
                self.execute(number);
                // Whatever was in front may be gone.
                let is_still_there = self.waiting.get(place) == Some(&number);
                place += usize::from(is_still_there);
            } else {
                place += 1;
            }
        }
    }

    pub(super) fn lock_timeout(&mut self, number: u32, wait: u32) {
        let Some(run) = &mut self.runs[number as usize] else { return };
        if run.waits != wait || run.waits_for.is_none() {
            return;
        }
        self.outcome.lock_timeouts += 1;
        run.waits_for = None;
        self.waiting.retain(|waiting| *waiting != number);
        let Some(run) = &mut self.runs[number as usize] else { return };
        if let Some(running) = run.running.take() {
            self.database.forget(&running);
        }
        let txn = run.txn.take();
        self.abort(txn);
        self.fail(number, Class::Locked, "canceling statement due to lock timeout");
    }

    pub(super) fn idle_timeout(&mut self, number: u32, step: u32) {
        let Some(run) = &mut self.runs[number as usize] else { return };
        if run.steps != step || !run.is_parked || run.txn.is_none() {
            return;
        }
        self.outcome.idle_timeouts += 1;
        let txn = run.txn.take();
        let (process, thread) = (run.process, run.thread);
        say!(self, "a transaction of P{process} {thread:?} was idle for too long");
        self.abort(txn);
        if self.processes[process].cut_until > self.now {
            return;
        }
        self.fail(number, Class::TimedOut, "terminating connection due to idle-in-transaction timeout");
    }

    /// All of a process's connections break; it hears of it.
    pub(super) fn break_connections(&mut self, process: Option<usize>) {
        while self.runs.get(self.faults.oldest_run).is_some_and(Option::is_none) {
            self.faults.oldest_run += 1;
        }
        for number in self.faults.oldest_run..self.runs.len() {
            let Some(run) = &mut self.runs[number] else { continue };
            if process.is_some_and(|process| process != run.process) || matches!(run.code, Code::None) {
                continue;
            }
            if run.has_result {
                // What its server still had to do for it is lost with the connection.
                run.first = None;
                if let Some(running) = run.running.take() {
                    self.database.forget(&running);
                }
                if run.waits_for.take().is_some() {
                    self.waiting.retain(|waiting| *waiting as usize != number);
                }
                let txn = run.txn.take();
                self.abort(txn);
                self.free_if_over(number as u32);
                continue;
            }
            if let Some(running) = run.running.take() {
                self.database.forget(&running);
            }
            let run = self.runs[number].as_mut().expect("it is under way");
            let is_sent = run.is_committed || !run.code.is_transaction() && !run.is_read;
            let class = if is_sent { Class::Unknown } else { Class::Unavailable };
            self.outcome.unknown_commits += u64::from(is_sent);
            if run.waits_for.take().is_some() {
                self.waiting.retain(|waiting| *waiting as usize != number);
            }
            let run = self.runs[number].as_mut().expect("it is under way");
            run.first = None;
            let txn = run.txn.take();
            self.abort(txn);
            self.fail(number as u32, class, "the connection broke");
        }
        for index in 0..self.processes.len() {
            if process.is_none_or(|process| process == index) && self.processes[index].is_up {
                let wait = self.delay(index);
                self.mail(index, wait, Mail::Lease(LeaseInput::Disconnected));
            }
        }
    }

    /// A session that nobody knows locks a member's row, and lets go of it later.
    pub(super) fn lock_foreign(&mut self, member: u128, wait: u64) {
        self.set_clock();
        let mut txn = self.database.transaction();
        let mut running = self.database.begin(&mut txn, Op::LockMembers, vec![Value::Uuids(vec![member])]);
        match self.database.step(&mut txn, &mut running) {
            Flow::Done(_) => {}
            Flow::Wait(_) | Flow::Failed(_) => {
                self.database.forget(&running);
                self.database.abort(txn);
                return;
            }
        }
        let run = Run {
            process: 0,
            thread: Thread::Runtime,
            purpose: Purpose::Foreign,
            identity: None,
            code: Code::None,
            txn: Some(txn),
            running: None,
            inbox: None,
            first: None,
            waits_for: None,
            waits: 0,
            steps: 0,
            has_result: true,
            is_client_gone: false,
            is_dropped: false,
            is_committed: false,
            is_read: false,
            is_parked: false,
            limit_at: u64::MAX,
            has_limit: true,
            snapshot_seq: 0,
        };
        self.runs.push(Some(Box::new(run)));
        let number = (self.runs.len() - 1) as u32;
        self.after(wait, Event::Unlock { run: number });
    }

    pub(super) fn unlock_all_foreign(&mut self) {
        for number in self.faults.oldest_run..self.runs.len() {
            if self.runs[number].as_ref().is_some_and(|run| matches!(run.code, Code::None)) {
                self.unlock(number as u32);
            }
        }
    }

    pub(super) fn unlock(&mut self, number: u32) {
        if let Some(mut run) = self.runs[number as usize].take() {
            let txn = run.txn.take();
            self.abort(txn);
        }
    }
}
