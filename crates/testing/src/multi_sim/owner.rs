//! An owner process: engine, sessions of frontends, log, and the turn discipline of its shell.

use std::collections::VecDeque;

use supervisor::{FailureCause, FromChild, Instance, Instruction, Role};
use tubes_core::Engine;
use tubes_core::journal::{JobRecord, Journal, NoJournal, Placement, StateFields};
use tubes_link::{Broken, Host, HostOut, Link, Reader, ToFrontend, ToOwner, Writer};
use tubes_store::{Log, LogErrorKind, SyncError, SyncJob, SyncMode};

use crate::disk::{DiskFaults, SimDisk};
use crate::model::Moment;
use crate::sim::ledger::{Booking, Copying, Ledger};
use crate::sim::profile::{MS, SECOND};

use super::judge::{Context, Judge, Said, Who};
use super::network::{LinkEnd, Lost};
use super::planted::{self, Bug};
use super::process::{Control, Next, Process};
use super::world::{Checked, Page, Step, World, now};

mod recovery;

/// What outlives an owner process: its slot.
pub(super) struct Slot {
    pub(super) disk: SimDisk,
    pub(super) ledger: Ledger,
    /// As the file beside the log says.
    pub(super) generation: u32,
    pub(super) faults: DiskFaults,
    /// The disk has been told to fail since the last start; results of before may still be on the way.
    pub(super) may_have_failed: bool,
    pub(super) has_space: bool,
    pub(super) space_since_ns: u64,
    pub(super) is_slow: bool,
    pub(super) power_was_lost: bool,
    pub(super) sync_has_failed: bool,
    pub(super) has_failed_twice: bool,
    /// When [`SimDisk::stop_at_call`] strikes.
    pub(super) stop_with_power: bool,
    /// What the last start has found.
    recovered: Option<Recovered>,
}

/// What a start has found.
#[derive(Debug, Clone, Copy)]
struct Recovered {
    generation: u32,
    /// The last record.
    last: u64,
    /// A fault allowed that something is missing.
    may_lack: bool,
}

impl Slot {
    pub(super) fn new(disk: SimDisk) -> Slot {
        Slot {
            disk,
            ledger: Ledger::new(),
            generation: 0,
            faults: DiskFaults::default(),
            may_have_failed: false,
            has_space: true,
            space_since_ns: 0,
            is_slow: false,
            power_was_lost: false,
            sync_has_failed: false,
            has_failed_twice: false,
            stop_with_power: false,
            recovered: None,
        }
    }

    pub(super) fn may_fail(&self) -> bool {
        self.disk.has_stopped() || self.may_have_failed
    }
}

/// Work of the sync thread.
pub(super) enum Job {
    Pending(SyncJob<SimDisk>),
    Ran(u64, Result<(), SyncError>),
    Done(u64, Result<(), SyncError>),
}

/// Where in a turn an owner is to die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CrashPoint {
    /// Records are in memory, nothing is written.
    Appended,
    /// They are written; no sync has begun.
    Written,
    /// A sync is under way, no reply has left.
    Syncing,
    /// The replies to one frontend have left.
    HalfSent,
}

pub(super) struct Owner {
    pub(super) process: Process,
    pub(super) engine: Engine,
    pub(super) host: Host,
    pub(super) log: Option<Log<SimDisk>>,
    pub(super) judge: Judge,
    /// By slot of the frontend.
    pub(super) links: Vec<Option<LinkEnd>>,
    pub(super) job: Option<Job>,
    pub(super) job_serial: u64,
    job_covers: u64,
    turns: u64,
    flushed_ns: u64,
    pub(super) crash_at: Option<CrashPoint>,
    is_stopping: bool,
    /// The last id of each put that was answered here rises.
    last_id: u64,
}

/// The log, or none.
struct SimJournal<'a>(Option<Booking<'a>>);

impl Journal for SimJournal<'_> {
    fn admit_job(&mut self, tube_bytes: usize, body_bytes: usize) -> bool {
        self.0.as_mut().is_none_or(|log| log.admit_job(tube_bytes, body_bytes))
    }
    fn append_job(&mut self, record: &JobRecord<'_>) -> Placement {
        match &mut self.0 {
            Some(log) => log.append_job(record),
            None => NoJournal.append_job(record),
        }
    }
    fn admit_state(&mut self, placement: Placement) -> bool {
        self.0.as_mut().is_none_or(|log| log.admit_state(placement))
    }
    fn append_state(&mut self, placement: Placement, id: u64, fields: &StateFields) -> Placement {
        match &mut self.0 {
            Some(log) => log.append_state(placement, id, fields),
            None => NoJournal.append_state(placement, id, fields),
        }
    }
    fn append_delete(&mut self, placement: Placement, id: u64, tube_bytes: usize, body_bytes: usize) {
        if let Some(log) = &mut self.0 {
            log.append_delete(placement, id, tube_bytes, body_bytes);
        }
    }
}

/// The shared page, and all that is said, one message each.
struct Wires<'a> {
    page: &'a mut Page,
    said: Vec<(u16, Writer)>,
    id_counts: VecDeque<u64>,
}

impl HostOut for Wires<'_> {
    fn link(&mut self, frontend: u16) -> Option<&mut Writer> {
        // What is said to one that is gone is looked at too.
        self.said.push((frontend, Writer::new(Link::default())));
        self.said.last_mut().map(|(_, writer)| writer)
    }
    fn next_id_count(&mut self) -> u64 {
        self.id_counts.push_back(self.page.id_count);
        self.page.id_count += 1;
        self.page.id_count - 1
    }
    fn next_creation(&mut self) -> u64 {
        self.page.tube_number += 1;
        self.page.tube_number - 1
    }
    fn is_draining(&self) -> bool {
        self.page.is_draining && !planted::is(Bug::DrainNotHandedOn)
    }
}

impl Owner {
    /// Runs something on host and engine; what was said, and on what it depended.
    fn with(
        &mut self,
        moment: Moment,
        slot: &mut Slot,
        page: &mut Page,
        run: impl FnOnce(&mut Host, &mut Engine, &mut SimJournal<'_>, &mut Wires<'_>) -> Result<(), Broken>,
    ) -> Checked<(Vec<(Who, Said)>, Context)> {
        let who = self.instance();
        let Owner { engine, host, log, links, .. } = self;
        let booking = log.as_mut().map(|log| Booking { log, ledger: &mut slot.ledger, at_ns: moment.boot_ns });
        let mut journal = SimJournal(booking);
        let is_draining = page.is_draining;
        let mut wires = Wires { page, said: Vec::new(), id_counts: VecDeque::new() };
        run(host, engine, &mut journal, &mut wires).map_err(|broken| format!("{who}: {broken:?}"))?;
        let Wires { said: written, id_counts, .. } = wires;
        let mut said = Vec::new();
        for (frontend, mut writer) in written {
            writer.end_turn(None);
            let mut reader = Reader::new(Link::default());
            while let bytes = writer.sendable()
                && !bytes.is_empty()
            {
                reader.push(bytes);
                let count = bytes.len();
                writer.sent(count);
            }
            while let Some((head, payload)) = reader.next().map_err(|error| format!("{who}: {error}"))? {
                let message = ToFrontend::read(head.kind, payload).map_err(|error| format!("{who}: {error}"))?;
                if let Some(link) = &mut links[usize::from(frontend)] {
                    message.write(head.session, &mut link.writer);
                }
                said.push(((frontend, head.session), Said::of(message)));
            }
        }
        let space = self.log.is_some().then(|| slot.ledger.space.iter().copied().collect());
        let placed = slot.ledger.placed.drain(..).collect();
        Ok((said, Context { space, id_counts, placed, is_draining }))
    }

    pub(super) fn instance(&self) -> Instance {
        self.process.pid.who
    }

    /// Whether it has nothing to do and nothing on its way.
    pub(super) fn backlog(&self) -> usize {
        self.links.iter().flatten().map(LinkEnd::backlog).sum()
    }
}

impl World {
    pub(super) fn owner_turn(&mut self, owner: &mut Owner) -> Checked<Next> {
        owner.turns += 1;
        let moment = self.moment();
        let slot_number = usize::from(owner.instance().slot);
        self.owner_timers_are_in_time(owner)?;
        owner.judge.tick(moment);
        let (slot, page) = (&mut self.slots[slot_number], &mut self.page);
        let (said, mut context) = owner
            .with(moment, slot, page, |host, engine, journal, wires| host.tick(now(moment), engine, journal, wires))?;
        self.account_for(owner, &said);
        owner
            .judge
            .rest(moment, said.into(), &mut context)
            .map_err(|what| format!("{} at a timer: {what}", owner.instance()))?;
        self.end_of_owner_step(owner)?;
        let mut order: Vec<usize> = (0..owner.links.len()).collect();
        self.shuffle(&mut order);
        let mut is_idle = true;
        for frontend in order {
            is_idle &= !self.owner_reads(owner, frontend)?;
        }
        if let Some(next) = self.finish_job(owner)? {
            return Ok(next);
        }
        self.owner_control(owner)?;
        if owner.crash_at == Some(CrashPoint::Appended) {
            return Ok(Next::Dies);
        }
        let next = self.owner_end_turn(owner, is_idle)?;
        if next == Next::Runs && owner.is_stopping {
            return self.owner_finish(owner);
        }
        Ok(next)
    }

    fn owner_timers_are_in_time(&self, owner: &Owner) -> Checked {
        let Some(due_ns) = owner.judge.next_due() else { return Ok(()) };
        let due_ns = self.world_ns(due_ns);
        let could_ns = due_ns.max(owner.process.free_at_ns);
        if self.now_ns > could_ns {
            return Err(format!("{}: a timer is {} ns late", owner.instance(), self.now_ns - could_ns));
        }
        Ok(())
    }

    /// Reads a link to its end. `true` if something was there.
    fn owner_reads(&mut self, owner: &mut Owner, frontend: usize) -> Checked<bool> {
        let Some(mut link) = owner.links[frontend].take() else { return Ok(false) };
        let taken = self.network.take(link.pipe, Role::Owner);
        let mut messages = Vec::new();
        let before = link.dropped();
        let mut result = link.read(&mut self.rng, &taken.bytes, &mut messages);
        self.outcome.old_batches += link.dropped() - before;
        if result.is_ok() && taken.is_ended {
            result = Err(Lost::Closed);
        }
        let peer = link.peer;
        if !taken.bytes.is_empty() {
            self.wake_writer(&link);
        }
        owner.links[frontend] = Some(link);
        for (head, payload) in messages {
            self.owner_message(owner, (peer.slot, head.session), (head.kind, &payload))?;
        }
        if let Err(lost) = result {
            self.owner_loses(owner, frontend, lost)?;
        }
        Ok(!taken.bytes.is_empty())
    }

    fn owner_message(&mut self, owner: &mut Owner, who: Who, message: (u8, &[u8])) -> Checked {
        let moment = self.moment();
        let instance = owner.instance();
        let slot_number = usize::from(instance.slot);
        let (slot, page) = (&mut self.slots[slot_number], &mut self.page);
        let (said, mut context) = owner.with(moment, slot, page, |host, engine, journal, wires| {
            host.take(now(moment), engine, who, message, journal, wires)
        })?;
        let name = || format!("{instance}, session {who:?}, {:?}", ToOwner::read(message.0, message.1));
        self.outcome.events += 1;
        if self.narrates {
            eprintln!("{:>15}   {}: {said:?}", self.now_ns, name());
        }
        for (_, said) in &said {
            if let Said::Reply { bytes, .. } | Said::Served { bytes, .. } = said {
                self.note(crate::history::body_hash(bytes));
            }
        }
        self.account_for(owner, &said);
        let slot = &self.slots[slot_number];
        if slot.ledger.space.contains(&false) {
            self.outcome.refusals_for_space += 1;
            let has_asked = owner.flushed_ns > slot.space_since_ns + 100 * MS;
            if slot.has_space && has_asked && !slot.disk.has_stopped() && slot.faults == DiskFaults::default() {
                return Err(format!("{} is refused although there is space", name()));
            }
        }
        let judged = owner.judge.message(moment, who, message, said, &mut context);
        judged.map_err(|what| format!("{}: {what}", name()))?;
        self.end_of_owner_step(owner).map_err(|what| format!("{}: {what}", name()))
    }

    /// What is to be compared behind each step of an owner.
    fn end_of_owner_step(&mut self, owner: &mut Owner) -> Checked {
        let pid = owner.process.pid;
        let ledger = owner.log.is_some().then_some(&mut self.slots[usize::from(pid.who.slot)].ledger);
        owner.judge.changes(ledger)?;
        for ((frontend, session), kind, payload) in std::mem::take(&mut owner.judge.executed) {
            if let Some(link) = &owner.links[usize::from(frontend)] {
                let message = ToOwner::read(kind, &payload).expect("it was carried out");
                self.executed(pid, link.peer, session, &message)?;
            }
        }
        for id in std::mem::take(&mut owner.judge.inserted) {
            self.id_is_new(owner, id)?;
        }
        Ok(())
    }

    /// Every id is given once, and ids of an owner rise.
    fn id_is_new(&mut self, owner: &mut Owner, id: u64) -> Checked {
        if self.page.is_draining {
            return Err(format!("{} accepts job {id} although the server drains", owner.instance()));
        }
        if id <= owner.last_id {
            return Err(format!("{} gives id {id} behind {}", owner.instance(), owner.last_id));
        }
        owner.last_id = id;
        if self.ids_given.contains(&id) || !self.ids_of_life.insert(id) {
            return Err(format!("{} gives id {id}, which was given before", owner.instance()));
        }
        if self.map.of_id(id) != Some(owner.instance().slot) {
            return Err(format!("{} gives id {id}, which leads elsewhere", owner.instance()));
        }
        Ok(())
    }

    /// Remembers what was said, until it is heard.
    fn account_for(&mut self, owner: &Owner, said: &[(Who, Said)]) {
        let tells = owner.log.as_ref().map_or(0, Log::pending_batch);
        for ((frontend, session), said) in said {
            let Some(link) = owner.links[usize::from(*frontend)].as_ref() else { continue };
            if let Said::Served { wait, outcome: tubes_link::Outcome::Held { .. }, .. } = said {
                self.results_of_waits.push((owner.process.pid.life, link.peer, *session, *wait));
            }
            let id = match said {
                Said::Reply { bytes, .. } => bytes.strip_prefix(b"INSERTED "),
                _ => None,
            };
            let id = id.and_then(|id| String::from_utf8_lossy(id).trim().parse().ok());
            self.promises.entry((link.pipe, *session)).or_default().push_back((tells, id));
        }
    }

    /// A frontend has heard the next thing that an owner said to one of its sessions.
    pub(super) fn heard_promise(&mut self, pipe: u64, owner: Instance, session: u64) -> Checked {
        let next = self.promises.get_mut(&(pipe, session)).and_then(VecDeque::pop_front);
        let Some((tells, id)) = next else {
            return Err(format!("session {session} hears from {owner} what it has not said"));
        };
        self.ids_given.extend(id);
        let slot = &mut self.slots[usize::from(owner.slot)];
        if let Some(recovered) = slot.recovered.filter(|recovered| recovered.generation > owner.generation) {
            if tells > recovered.last && !recovered.may_lack {
                return Err(format!(
                    "{owner} told session {session} of record {tells}, but its successor has recovered up to {}",
                    recovered.last
                ));
            }
            return Ok(());
        }
        slot.ledger.acknowledged = slot.ledger.acknowledged.max(tells);
        Ok(())
    }

    /// A link is lost without a word of the supervisor, which is told.
    fn owner_loses(&mut self, owner: &mut Owner, frontend: usize, lost: Lost) -> Checked {
        if let Some(link) = &owner.links[frontend] {
            owner.process.says.push(FromChild::LinkLost { peer: link.peer, number: link.number });
        }
        self.owner_forgets(owner, frontend, lost)
    }

    fn owner_forgets(&mut self, owner: &mut Owner, frontend: usize, lost: Lost) -> Checked {
        let Some(link) = owner.links[frontend].take() else { return Ok(()) };
        self.tell(|| format!("{} loses its link to frontend {frontend}: {lost:?}", owner.process.pid.who));
        if let Lost::Frame(error) = lost {
            return Err(format!("{} resets its link to frontend {frontend}: {error}", owner.instance()));
        }
        self.close_pipe(link.pipe, Role::Owner);
        let moment = self.moment();
        let slot_number = usize::from(owner.instance().slot);
        let (slot, page) = (&mut self.slots[slot_number], &mut self.page);
        let number = u16::try_from(frontend).expect("a slot");
        let (said, mut context) = owner.with(moment, slot, page, |host, engine, journal, wires| {
            host.frontend_gone(now(moment), engine, number, journal, wires)
        })?;
        self.account_for(owner, &said);
        owner
            .judge
            .frontend_gone(moment, number, said, &mut context)
            .map_err(|what| format!("{} loses frontend {number}: {what}", owner.instance()))?;
        self.end_of_owner_step(owner)
    }

    fn owner_control(&mut self, owner: &mut Owner) -> Checked {
        while let Some(control) = owner.process.control.pop_front() {
            match control {
                Control::Link { peer, pipe, number } => {
                    let frontend = usize::from(peer.slot);
                    self.owner_forgets(owner, frontend, Lost::Closed)?;
                    owner.links[frontend] = Some(LinkEnd::new(pipe, number, owner.instance(), peer));
                    self.owner_reads(owner, frontend)?;
                }
                Control::Say(Instruction::PeerGone(peer)) => {
                    let frontend = usize::from(peer.slot);
                    if owner.links[frontend].as_ref().is_some_and(|link| link.peer == peer) {
                        self.owner_reads(owner, frontend)?;
                        self.owner_forgets(owner, frontend, Lost::Closed)?;
                    }
                }
                Control::Say(Instruction::Ping { nonce }) => {
                    let in_sync_ms = owner.job.is_some().then_some(0);
                    let generation = owner.instance().generation;
                    owner.process.says.push(FromChild::Pong { generation, nonce, in_sync_ms });
                }
                Control::Say(Instruction::Drain) => {
                    owner.engine.drain();
                    owner.judge.model.drain();
                    owner.process.says.push(FromChild::Drained);
                }
                Control::Say(Instruction::Stop { .. }) => owner.is_stopping = true,
                Control::Say(Instruction::Go | Instruction::Barrier { .. }) => {}
            }
        }
        Ok(())
    }

    /// Takes back the sync job, if it has ended.
    fn finish_job(&mut self, owner: &mut Owner) -> Checked<Option<Next>> {
        if !matches!(owner.job, Some(Job::Done(..))) {
            return Ok(None);
        }
        let Some(Job::Done(id, result)) = owner.job.take() else { unreachable!("just seen") };
        let Some(log) = &mut owner.log else { unreachable!("a job belongs to a log") };
        let syncs = log.figures().syncs;
        if log.end_sync(id, result).is_err() {
            return self.log_failed(owner).map(Some);
        }
        let covers = match self.shape.sync {
            Some(SyncMode::Always) => log.durable_batch(),
            _ => owner.job_covers,
        };
        if log.figures().syncs > syncs {
            self.slots[usize::from(owner.process.pid.who.slot)].ledger.note_synced(covers);
        }
        Ok(None)
    }

    fn owner_end_turn(&mut self, owner: &mut Owner, is_idle: bool) -> Checked<Next> {
        let moment = self.moment();
        let who = owner.instance();
        let slot_number = usize::from(who.slot);
        let mut compaction_left = false;
        let mut batch = None;
        if owner.turns.is_multiple_of(64) {
            owner.engine.check_invariants();
        }
        if let Some(log) = &mut owner.log {
            let slot = &mut self.slots[slot_number];
            let above = log.pending_batch();
            let (engine, model) = (&mut owner.engine, &mut owner.judge.model);
            let mut copying = Copying { engine, model, copies: Vec::new(), now: moment, wrong: None };
            compaction_left = log.compact(&mut copying, is_idle);
            self.outcome.copies += copying.copies.len() as u64;
            if let Some(wrong) = copying.book(&mut slot.ledger, above, log.pending_batch()) {
                return Err(format!("{who}: {wrong}"));
            }
            let flushed = log.flush(moment.boot_ns);
            owner.flushed_ns = self.now_ns;
            if flushed.is_err() {
                return self.log_failed(owner);
            }
            if self.shape.sync != Some(SyncMode::Always) {
                slot.ledger.note_written(log.durable_batch(), moment.boot_ns);
            }
            if owner.crash_at == Some(CrashPoint::Written) {
                return Ok(Next::Dies);
            }
            if owner.job.is_none() {
                let covers = log.durable_batch();
                if let Some(job) = log.begin_sync(moment.boot_ns) {
                    owner.job_covers = covers;
                    let long = slot.is_slow && self.rng.chance(1, 2);
                    let ns = self.rng.below(2 * self.profile.sync_ns) + if long { SECOND } else { 0 };
                    owner.job = Some(if self.rng.chance(1, 2) {
                        let id = job.id();
                        Job::Ran(id, job.run())
                    } else {
                        Job::Pending(job)
                    });
                    owner.job_serial += 1;
                    let serial = owner.job_serial;
                    self.after(ns, Step::SyncDone { pid: owner.process.pid, serial });
                }
            }
            let log = owner.log.as_ref().expect("it is there");
            batch = (log.pending_batch() > log.durable_batch()).then(|| log.pending_batch());
            if self.slots[slot_number].disk.has_stopped() {
                return Ok(Next::Dies);
            }
            if owner.crash_at == Some(CrashPoint::Syncing) {
                return Ok(Next::Dies);
            }
        }
        let batch = batch.filter(|_| !planted::is(Bug::ReleasedEarly));
        let durable = owner.log.as_ref().map_or(0, Log::durable_batch);
        let has_room = owner.log.as_ref().is_none_or(|log| !log.backpressure());
        let mut half = owner.crash_at == Some(CrashPoint::HalfSent);
        for frontend in 0..owner.links.len() {
            let Some(link) = &mut owner.links[frontend] else { continue };
            link.writer.end_turn(batch);
            link.writer.release(durable);
            if has_room {
                link.make_room();
            }
            let delay_ns = self.rng.below(self.shape.link_ns + 1);
            match link.send(&mut self.network, self.now_ns, delay_ns) {
                Ok(Some(at_ns)) => {
                    let pipe = link.pipe;
                    self.at(at_ns, Step::Arrive { pipe, towards: Role::Frontend });
                    if std::mem::take(&mut half) {
                        return Ok(Next::Dies);
                    }
                }
                Ok(None) => {}
                Err(lost) => self.owner_loses(owner, frontend, lost)?,
            }
        }
        if owner.crash_at.is_some() {
            return Ok(Next::Dies);
        }
        self.plan_owner_turn(owner, compaction_left)?;
        Ok(Next::Runs)
    }

    fn plan_owner_turn(&mut self, owner: &mut Owner, compaction_left: bool) -> Checked {
        let turn_ns = self.rng.below(self.profile.turn_ns + 1);
        owner.process.free_at_ns = owner.process.free_at_ns.max(self.now_ns + turn_ns);
        let timer_ns = owner.engine.next_deadline();
        match (timer_ns, owner.judge.next_due()) {
            (None, Some(due_ns)) => return Err(format!("no timer is set for what is due at {due_ns} ns")),
            (Some(timer_ns), Some(due_ns)) if timer_ns > due_ns => {
                return Err(format!("the timer is set to {timer_ns} ns, but something is due at {due_ns} ns"));
            }
            (Some(timer_ns), None) if timer_ns <= self.moment().boot_ns => {
                return Err(format!("a timer at {timer_ns} ns lies in the past"));
            }
            _ => {}
        }
        let log_ns = owner.log.as_ref().and_then(Log::next_deadline);
        if compaction_left {
            self.wake_process(&mut owner.process, self.now_ns + MS);
        }
        if let Some(at_ns) = timer_ns.into_iter().chain(log_ns).min() {
            let at_ns = self.world_ns(at_ns);
            self.wake_process(&mut owner.process, at_ns);
        }
        Ok(())
    }

    /// A write or sync has failed: the log must say where, and do nothing more; the process ends.
    fn log_failed(&mut self, owner: &mut Owner) -> Checked<Next> {
        let boot_ns = self.moment().boot_ns;
        let slot = &mut self.slots[usize::from(owner.process.pid.who.slot)];
        let Some(log) = &mut owner.log else { unreachable!("it has failed") };
        if slot.disk.has_stopped() {
            return Ok(Next::Dies);
        }
        let Some(error) = log.failure().cloned() else {
            return Err("the log failed, but does not say why".to_owned());
        };
        if !slot.may_fail() {
            return Err(format!("the log failed without a fault: {error:?}"));
        }
        if error.file.is_empty() || error.errno != 5 {
            return Err(format!("the failure is not named: {error}"));
        }
        let counts = slot.disk.counts();
        let goes_on = log.flush(boot_ns).is_ok() || log.begin_sync(boot_ns + SECOND).is_some();
        if goes_on || slot.disk.counts() != counts {
            return Err(format!("the log goes on after {error}"));
        }
        self.outcome.log_failures += 1;
        slot.sync_has_failed |= matches!(error.kind, LogErrorKind::Sync | LogErrorKind::Begin);
        owner.process.fail(FailureCause::Write, "EIO");
        Ok(Next::Exits(10))
    }

    /// The orderly end: everything is written and synced, what waited for it leaves.
    fn owner_finish(&mut self, owner: &mut Owner) -> Checked<Next> {
        let boot_ns = self.moment().boot_ns;
        let slot_number = usize::from(owner.process.pid.who.slot);
        if let Some(log) = &mut owner.log {
            if let Some(job) = owner.job.take() {
                let (id, result) = match job {
                    Job::Pending(job) => (job.id(), job.run()),
                    Job::Ran(id, result) | Job::Done(id, result) => (id, result),
                };
                if log.end_sync(id, result).is_err() {
                    return self.log_failed(owner);
                }
            }
            let log = owner.log.as_mut().expect("it is there");
            if log.close(boot_ns).is_err() {
                return self.log_failed(owner);
            }
            let last = log.pending_batch();
            let ledger = &mut self.slots[slot_number].ledger;
            ledger.acknowledged = last - 1;
            if self.shape.sync != Some(SyncMode::Never) {
                ledger.note_synced(last - 1);
            }
        }
        let mut arrivals = Vec::new();
        for link in owner.links.iter_mut().flatten() {
            link.writer.end_turn(None);
            link.writer.release(u64::MAX);
            if let Ok(Some(at_ns)) = link.send(&mut self.network, self.now_ns, 0) {
                arrivals.push((at_ns, link.pipe));
            }
        }
        for (at_ns, pipe) in arrivals {
            self.at(at_ns, Step::Arrive { pipe, towards: Role::Frontend });
        }
        self.outcome.stops += 1;
        owner.process.says.push(FromChild::Stopped);
        Ok(Next::Exits(0))
    }

    /// A job of the sync thread has ended.
    pub(super) fn sync_done(&mut self, owner: &mut Owner, serial: u64) {
        if owner.job_serial != serial {
            return;
        }
        owner.job = match owner.job.take() {
            Some(Job::Pending(job)) => {
                let id = job.id();
                Some(Job::Done(id, job.run()))
            }
            Some(Job::Ran(id, result)) => Some(Job::Done(id, result)),
            other => other,
        };
        self.wake_process(&mut owner.process, self.now_ns);
    }
}
