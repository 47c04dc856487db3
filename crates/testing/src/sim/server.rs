//! The server's shell: turns, the log, held replies.

use std::collections::VecDeque;

use tubes_core::{Engine, Now, Outbox, SessionId};
use tubes_protocol::{Command, Reply, ServerStats};
use tubes_store::{Log, SyncError, SyncJob, SyncMode};

use crate::disk::SimDisk;
use crate::model::{Answers, Moment};

use super::ledger::{Booking, Copying};
use super::profile::{MS, SECOND};
use super::world::{Checked, LostWrite, Step, World};

/// What a client sends.
#[derive(Debug)]
pub(super) enum Input {
    Connect,
    Command(Command<'static>),
    /// Nothing more will be sent.
    HalfClose,
    /// Nothing more will be sent, and nothing read.
    Close,
}

/// A connection as the server sees it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) epoch: u32,
    session: u32,
    queue: VecDeque<Command<'static>>,
    /// The client sends nothing more; `true` if it reads nothing more either.
    ending: Option<bool>,
}

/// A reply that waits for its batch.
#[derive(Debug)]
struct Held {
    batch: u64,
    client: usize,
    epoch: u32,
    told: Told,
}

/// What a reply tells that must be remembered.
#[derive(Debug, Clone, Copy)]
enum Told {
    Inserted(u64),
    Other,
    /// No reply: the server closes.
    Closed,
}

/// Work of the sync thread.
enum Job {
    /// Runs at its end.
    Pending(SyncJob<SimDisk>),
    /// Has run; its result is not known yet.
    Ran(u64, Result<(), SyncError>),
    /// Its result waits for the next turn.
    Done(u64, Result<(), SyncError>),
}

/// The running process.
pub(super) struct Server {
    pub(super) engine: Engine,
    pub(super) log: Log<SimDisk>,
    out: Out,
    pub(super) inbox: VecDeque<(usize, u32, Input)>,
    /// By client.
    pub(super) connections: Vec<Option<Connection>>,
    /// Clients by session.
    clients: Vec<usize>,
    held: VecDeque<Held>,
    job: Option<Job>,
    /// The last record that a sync under way covers, where the log says so before its end.
    job_covers: u64,
    /// It was begun after a write was lost.
    job_is_behind_lost_write: bool,
    turn_at_ns: Option<u64>,
    /// Before, the process cannot run.
    pub(super) free_at_ns: u64,
    turns: u64,
    flushed_ns: u64,
    /// Replies of the turn by client, to be sent together.
    ready: Vec<(u32, bool)>,
}

/// Takes the engine's replies.
#[derive(Default)]
struct Out {
    answers: Answers,
    told: Vec<(u32, Told)>,
}

impl Outbox for Out {
    fn reply(&mut self, session: SessionId, reply: &Reply<'_>) {
        self.answers.add(session.0, reply);
        let told = match reply {
            Reply::Inserted(id) => Told::Inserted(*id),
            _ => Told::Other,
        };
        self.told.push((session.0, told));
    }

    fn stats(&mut self, session: SessionId, stats: ServerStats) {
        self.reply(session, &Reply::ServerStats(&stats));
    }
}

impl Server {
    pub(super) fn new(engine: Engine, log: Log<SimDisk>, clients: usize, now_ns: u64) -> Server {
        Server {
            engine,
            log,
            out: Out::default(),
            inbox: VecDeque::new(),
            connections: (0..clients).map(|_| None).collect(),
            clients: Vec::new(),
            held: VecDeque::new(),
            job: None,
            job_covers: 0,
            job_is_behind_lost_write: false,
            turn_at_ns: None,
            free_at_ns: now_ns,
            turns: 0,
            flushed_ns: now_ns,
            ready: vec![(0, false); clients],
        }
    }

    /// The session of a client's connection, once the server has accepted it.
    pub(super) fn session_of(&self, client: usize, epoch: u32) -> Option<u32> {
        self.connections[client].as_ref().filter(|open| open.epoch == epoch).map(|open| open.session)
    }

    /// Names of all tubes in the engine's order, asked for by a connection that ends again.
    pub(super) fn tube_order(&mut self, moment: Moment) -> Vec<Box<[u8]>> {
        let session = self.engine.connect();
        self.engine.handle(
            now(moment),
            session,
            Command::ListTubes,
            &mut tubes_core::journal::NoJournal,
            &mut self.out,
        );
        self.engine.disconnect(now(moment), session, &mut tubes_core::journal::NoJournal, &mut self.out);
        let text = self.out.answers.iter().next().map_or(Vec::new(), |(_, text)| text.to_vec());
        text.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"- ")).map(Box::from).collect()
    }

    /// Whether the answer to [`Server::tube_order`] was that of the model, which is forgotten then.
    pub(super) fn listed_alike(&mut self, model: &Answers) -> bool {
        let is_alike = self.out.answers == *model;
        self.out.answers.clear();
        self.out.told.clear();
        is_alike
    }

    pub(super) fn has_job(&self) -> bool {
        self.job.is_some()
    }
}

pub(super) fn now(moment: Moment) -> Now {
    Now { boot_ns: moment.boot_ns, wall_ms: moment.wall_ms }
}

impl World {
    /// Lets the server's loop turn at `at_ns`, or as soon as it can run.
    pub(super) fn wake(&mut self, at_ns: u64) {
        let life = self.life;
        let Some(server) = &mut self.server else { return };
        let at_ns = at_ns.max(server.free_at_ns).max(self.now_ns);
        if server.turn_at_ns.is_none_or(|planned| at_ns < planned) {
            server.turn_at_ns = Some(at_ns);
            self.at(at_ns, Step::Turn { life, at_ns });
        }
    }

    pub(super) fn turn(&mut self, life: u64, at_ns: u64) -> Checked {
        let is_current = |server: &&mut Server| server.turn_at_ns == Some(at_ns);
        if life != self.life {
            return Ok(());
        }
        let Some(server) = self.server.as_mut().filter(is_current) else { return Ok(()) };
        if server.free_at_ns > self.now_ns {
            // It was paused meanwhile.
            server.turn_at_ns = None;
            let free_at_ns = server.free_at_ns;
            self.wake(free_at_ns);
            return Ok(());
        }
        server.turn_at_ns = None;
        server.turns += 1;
        let moment = self.moment();
        self.timers_are_in_time(moment)?;
        let World { server: Some(server), model, ledger, .. } = self else { unreachable!("it runs") };
        let mut booking = Booking { log: &mut server.log, ledger, at_ns: moment.boot_ns };
        server.engine.tick(now(moment), &mut booking, &mut server.out);
        model.tick(moment);
        self.compare("a timer")?;
        let is_idle = self.take_inputs(moment)?;
        self.finish_job()?;
        if self.server.is_none() {
            return Ok(());
        }
        self.end_turn(moment, is_idle)
    }

    /// Everything that was due earlier must have happened when the server could run last.
    fn timers_are_in_time(&mut self, moment: Moment) -> Checked {
        let Some(server) = &self.server else { return Ok(()) };
        let Some(due_ns) = self.model.next_due() else { return Ok(()) };
        // On the clock of the world, so that it can be compared with the end of a pause.
        let due_ns = (due_ns + self.boot_ns).saturating_sub(SECOND);
        if self.now_ns > due_ns.max(server.free_at_ns) {
            let late_ns = self.now_ns - due_ns.max(server.free_at_ns);
            return Err(format!("a timer is {late_ns} ns late at {moment:?}"));
        }
        Ok(())
    }

    /// Accepts, reads and carries out. `true` if there was nothing to do.
    fn take_inputs(&mut self, moment: Moment) -> Checked<bool> {
        let is_idle = self.server.as_ref().is_none_or(|server| server.inbox.is_empty());
        loop {
            let World { server: Some(server), model, ledger, .. } = self else { unreachable!("it runs") };
            let Some((client, epoch, input)) = server.inbox.pop_front() else { break };
            if matches!(input, Input::Connect) {
                let session = server.engine.connect();
                model.connect(session.0);
                let at = session.0 as usize;
                if server.clients.len() <= at {
                    server.clients.resize(at + 1, usize::MAX);
                }
                server.clients[at] = client;
                let opened = Connection { epoch, session: session.0, queue: VecDeque::new(), ending: None };
                if let Some(old) = server.connections[client].replace(opened) {
                    // The client is back before its old connection has ended here.
                    let mut booking = Booking { log: &mut server.log, ledger, at_ns: moment.boot_ns };
                    server.engine.disconnect(now(moment), SessionId(old.session), &mut booking, &mut server.out);
                    model.disconnect(moment, old.session);
                    self.compare("a new connection in place of an old one")?;
                }
                continue;
            }
            let Some(connection) = server.connections[client].as_mut().filter(|open| open.epoch == epoch) else {
                continue;
            };
            match input {
                Input::Command(command) => connection.queue.push_back(command),
                Input::HalfClose => connection.ending = connection.ending.or(Some(false)),
                Input::Close => connection.ending = Some(true),
                Input::Connect => unreachable!("handled above"),
            }
        }
        loop {
            let mut has_progressed = false;
            for client in 0..self.clients.len() {
                has_progressed |= self.go_on(moment, client)?;
            }
            if !has_progressed {
                return Ok(is_idle);
            }
        }
    }

    /// Carries out the next command of a client, or its end. `true` if there was one.
    fn go_on(&mut self, moment: Moment, client: usize) -> Checked<bool> {
        let World { server: Some(server), model, ledger, .. } = self else { unreachable!("it runs") };
        let Some(connection) = &mut server.connections[client] else { return Ok(false) };
        let session = connection.session;
        let id = SessionId(session);
        let mut booking = Booking { log: &mut server.log, ledger, at_ns: moment.boot_ns };
        if server.engine.is_waiting(id) {
            if connection.ending.is_none() {
                return Ok(false);
            }
            server.engine.half_close(now(moment), id, &mut server.out);
            model.half_close(session);
            self.compare("the end of a waiting client's input")?;
            return Ok(true);
        }
        if let Some(command) = connection.queue.pop_front() {
            self.outcome.commands += 1;
            self.outcome.events += 1;
            if self.narrates {
                eprintln!("        session {session}: {command:?}");
            }
            server.engine.handle(now(moment), id, command.clone(), &mut booking, &mut server.out);
            let asked = std::mem::take(&mut ledger.space);
            let mut answers = asked.iter().copied();
            let mut has_asked_more = false;
            let mut space = || {
                answers.next().unwrap_or_else(|| {
                    has_asked_more = true;
                    true
                })
            };
            model.handle(moment, session, &command, &mut space);
            if has_asked_more || answers.next().is_some() {
                return Err(format!("engine and model do not ask for the same log space at {command:?}"));
            }
            if asked.contains(&false) {
                self.outcome.refusals_for_space += 1;
                // After a few tries the log asks the disk again only every 100 ms, at the end of a turn.
                let has_asked = server.flushed_ns > self.space_since_ns + 100 * MS;
                if self.has_space && has_asked && !self.disk.has_stopped() {
                    return Err(format!("{command:?} is refused although there is space"));
                }
            }
            self.ledger.space = asked;
            self.ledger.space.clear();
            self.compare_command(&command)?;
            return Ok(true);
        }
        let Some(reads_nothing) = connection.ending else { return Ok(false) };
        let epoch = connection.epoch;
        if !reads_nothing {
            // Its replies may take long to be taken; its jobs do not wait for that.
            server.engine.give_back(now(moment), id, &mut booking, &mut server.out);
            model.give_back(moment, session);
        }
        server.connections[client] = None;
        server.engine.disconnect(now(moment), id, &mut booking, &mut server.out);
        model.disconnect(moment, session);
        if !reads_nothing {
            let batch = server.log.pending_batch();
            server.held.push_back(Held { batch, client, epoch, told: Told::Closed });
        }
        self.compare("a disconnect")?;
        Ok(true)
    }

    fn compare_command(&mut self, command: &Command<'_>) -> Checked {
        match self.compare("") {
            Err(what) => Err(format!("at {command:?} {what}")),
            fine => fine,
        }
    }

    /// Compares what engine and model have said and logged since the last time, and holds the replies.
    fn compare(&mut self, occasion: &str) -> Checked {
        let World { server: Some(server), model, ledger, outcome, .. } = self else { unreachable!("it runs") };
        let fresh = &ledger.entries[ledger.compared..];
        let expected = model.changes();
        let same_changes = fresh.len() == expected.len()
            && fresh.iter().zip(expected.iter()).all(|(entry, expected)| entry.change.says(expected));
        if !same_changes {
            let changes: Vec<_> = fresh.iter().map(|entry| &entry.change).collect();
            return Err(format!("{occasion}: the engine logs {changes:?}, the model {expected:?}"));
        }
        expected.clear();
        for (id, segment) in ledger.placed.drain(..) {
            model.set_file(id, segment);
        }
        ledger.compared = ledger.entries.len();
        if server.out.answers.is_empty() && model.answers().is_empty() {
            return Ok(());
        }
        if !server.out.answers.same_for_each_session(model.answers()) {
            let (engine, model) = (server.out.answers.in_words(), model.answers().in_words());
            return Err(format!("{occasion}: the engine says\n  {engine}\nthe model says\n  {model}"));
        }
        outcome.hash ^= server.out.answers.hash();
        server.out.answers.clear();
        model.answers().clear();
        let batch = server.log.pending_batch();
        for (session, told) in server.out.told.drain(..) {
            let client = server.clients[session as usize];
            // A client whose connection has just ended is told nothing.
            if let Some(connection) = server.connections[client].as_ref().filter(|open| open.session == session) {
                server.held.push_back(Held { batch, client, epoch: connection.epoch, told });
            }
        }
        Ok(())
    }

    /// Takes back the sync job, if it has ended.
    fn finish_job(&mut self) -> Checked {
        let World { server: Some(server), .. } = self else { unreachable!("it runs") };
        if !matches!(server.job, Some(Job::Done(..))) {
            return Ok(());
        }
        let Some(Job::Done(id, result)) = server.job.take() else { unreachable!("just seen") };
        let syncs = server.log.figures().syncs;
        if server.log.end_sync(id, result).is_err() {
            return self.log_failed();
        }
        let covers = match self.profile.sync {
            SyncMode::Always => server.log.durable_batch(),
            _ => server.job_covers,
        };
        // A job that only removes old segments syncs no record.
        if server.log.figures().syncs > syncs {
            self.ledger.note_synced(covers);
            if let Some(lost) = &mut self.lost_write {
                lost.syncs_since += u32::from(server.job_is_behind_lost_write);
            }
        }
        Ok(())
    }

    /// Writes, syncs, and lets replies out.
    fn end_turn(&mut self, moment: Moment, is_idle: bool) -> Checked {
        let World { server: Some(server), model, ledger, .. } = self else { unreachable!("it runs") };
        server.log.note_next_id(server.engine.next_id());
        let above = server.log.pending_batch();
        let mut copying = Copying { engine: &mut server.engine, model, copies: Vec::new(), now: moment, wrong: None };
        let compaction_left = server.log.compact(&mut copying, is_idle);
        self.outcome.copies += copying.copies.len() as u64;
        if self.narrates && !copying.copies.is_empty() {
            let ids: Vec<u64> = copying.copies.iter().map(|(id, _)| *id).collect();
            eprintln!("        copied {ids:?}: {:?}", server.log.figures());
        }
        if let Some(wrong) = copying.book(ledger, above, server.log.pending_batch()) {
            return Err(wrong);
        }
        if server.turns.is_multiple_of(64) {
            server.engine.check_invariants();
        }
        let writes_before = self.disk.counts().writes;
        if self.lose_next_write {
            let faults = crate::disk::DiskFaults { lost_writes_per_million: 1_000_000, ..self.disk_faults };
            self.disk.set_faults(faults);
        }
        let flushed = server.log.flush(moment.boot_ns);
        server.flushed_ns = self.now_ns;
        if self.disk.counts().writes > writes_before && (flushed.is_ok() || self.lose_next_write) {
            if let Some(lost) = &mut self.lost_write {
                // What is written behind so many batches says that the lost one was synced.
                let is_proof = match self.profile.sync {
                    SyncMode::Always => true,
                    SyncMode::Interval(_) => lost.syncs_since >= 2,
                    SyncMode::Never => false,
                };
                if is_proof {
                    lost.proof.get_or_insert(server.log.pending_batch());
                }
            }
            if self.lose_next_write {
                self.lose_next_write = false;
                self.lost_write = Some(LostWrite { syncs_since: 0, proof: None });
            }
        }
        self.disk.set_faults(self.disk_faults);
        if flushed.is_err() {
            return self.log_failed();
        }
        if self.profile.sync != SyncMode::Always {
            ledger.note_written(server.log.durable_batch(), moment.boot_ns);
        }
        if !server.has_job() {
            let covers = server.log.durable_batch();
            match server.log.begin_sync(moment.boot_ns) {
                Some(job) => {
                    server.job_covers = covers;
                    server.job_is_behind_lost_write = self.lost_write.is_some();
                    let long = self.is_slow && self.rng.chance(1, 2);
                    let ns = self.rng.below(2 * self.profile.sync_ns) + if long { SECOND } else { 0 };
                    // What is on the medium of an unfinished sync: everything, or only chance.
                    server.job = Some(if self.rng.chance(1, 2) {
                        let id = job.id();
                        Job::Ran(id, job.run())
                    } else {
                        Job::Pending(job)
                    });
                    let life = self.life;
                    self.after(ns, Step::SyncDone { life });
                }
                None => self.unsynced_is_young(moment)?,
            }
        }
        if self.disk.has_stopped() {
            self.kill(self.stop_with_power);
            return Ok(());
        }
        self.release()?;
        self.plan_next_turn(compaction_left)
    }

    /// In mode `interval` a sync has started at most that long after the first unsynced write.
    fn unsynced_is_young(&self, moment: Moment) -> Checked {
        let Some(server) = &self.server else { return Ok(()) };
        match (self.profile.sync, self.ledger.unsynced_since_ns()) {
            (SyncMode::Interval(interval_ns), Some(since_ns)) if moment.boot_ns >= since_ns + interval_ns => {
                Err(format!(
                    "a record of {since_ns} ns is not synced at {} ns: appended up to {}, written up to {}, synced up to {}",
                    moment.boot_ns,
                    server.log.pending_batch(),
                    server.log.durable_batch(),
                    self.ledger.synced
                ))
            }
            _ => Ok(()),
        }
    }

    /// Sends the replies that may leave.
    fn release(&mut self) -> Checked {
        let World { server: Some(server), ledger, outcome, .. } = self else { unreachable!("it runs") };
        let durable = server.log.durable_batch();
        while let Some(held) = server.held.front().filter(|held| held.batch <= durable) {
            ledger.acknowledged = ledger.acknowledged.max(held.batch);
            if let Told::Inserted(id) = held.told {
                if id <= ledger.id_told {
                    return Err(format!("id {id} is given behind id {}", ledger.id_told));
                }
                ledger.id_told = id;
            }
            let ready = &mut server.ready[held.client];
            if self.clients[held.client].epoch == held.epoch {
                match held.told {
                    Told::Closed => ready.1 = true,
                    _ => ready.0 += 1,
                }
            }
            outcome.replies += 1;
            server.held.pop_front();
        }
        for client in 0..self.clients.len() {
            let Some(server) = &mut self.server else { return Ok(()) };
            let (count, closed) = std::mem::take(&mut server.ready[client]);
            if count > 0 || closed {
                let epoch = self.clients[client].epoch;
                let at_ns = self.reply_arrives(client);
                self.at(at_ns, Step::Reply { client, epoch, count, closed });
            }
        }
        Ok(())
    }

    fn plan_next_turn(&mut self, compaction_left: bool) -> Checked {
        let turn_ns = self.rng.below(self.profile.turn_ns + 1);
        let boot_ns = self.boot_ns;
        let moment = self.moment();
        let World { server: Some(server), model, .. } = self else { unreachable!("it runs") };
        server.free_at_ns = server.free_at_ns.max(self.now_ns + turn_ns);
        let timer_ns = server.engine.next_deadline();
        match (timer_ns, model.next_due()) {
            (None, Some(due_ns)) => return Err(format!("no timer is set for what is due at {due_ns} ns")),
            (Some(timer_ns), Some(due_ns)) if timer_ns > due_ns => {
                return Err(format!("the timer is set to {timer_ns} ns, but something is due at {due_ns} ns"));
            }
            (Some(timer_ns), None) if timer_ns <= moment.boot_ns => {
                return Err(format!("a timer at {timer_ns} ns lies in the past of {} ns", moment.boot_ns));
            }
            _ => {}
        }
        let log_ns = server.log.next_deadline();
        let next = timer_ns.into_iter().chain(log_ns).min().map(|at_ns| (at_ns + boot_ns).saturating_sub(SECOND));
        if compaction_left {
            self.wake(self.now_ns + MS);
        }
        if let Some(at_ns) = next {
            self.wake(at_ns);
        }
        Ok(())
    }

    pub(super) fn sync_done(&mut self, life: u64) {
        if life != self.life {
            return;
        }
        let Some(server) = &mut self.server else { return };
        server.job = Some(match server.job.take() {
            Some(Job::Pending(job)) => {
                let id = job.id();
                Job::Done(id, job.run())
            }
            Some(Job::Ran(id, result)) => Job::Done(id, result),
            _ => unreachable!("one job at a time"),
        });
        self.wake(self.now_ns);
    }
}
