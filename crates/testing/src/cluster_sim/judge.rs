//! Whether the promises are kept.

use std::collections::{BTreeMap, BTreeSet};

use cluster_core::{Call, Leadership, MemberId};
use database_core::{Class, DbError};

use super::database::{Committed, State};
use super::executor::Action;
use super::profile::{Fault, MS, Profile, SECOND};
use super::server::Purpose;
use super::world::{Thread, World, say};

/// What is known of the database's past; a failover sets it back with the data.
#[derive(Debug, Clone, Default)]
pub(super) struct Ghost {
    reaped: BTreeSet<u128>,
    finished: BTreeSet<(u32, i64)>,
    carried_out: BTreeSet<i64>,
    effect_epoch: [i64; 2],
    /// Versions of settings with the commit that made them.
    versions: [Vec<(u64, i64)>; 2],
}

pub(super) struct Judge {
    pub(super) broken: Option<String>,
    pub(super) ghost: Ghost,
    /// Epochs that were ever given, and to whom: not even a failover gives one twice.
    given: BTreeMap<(u8, i64), u128>,
    /// The database's clock or history was changed: leases mean nothing until then.
    troubled_until: u64,
    takeover: Option<Takeover>,
}

/// A takeover that is waited for.
struct Takeover {
    since: u64,
    by: u64,
}

impl Judge {
    pub(super) fn new(_profile: &Profile) -> Self {
        Self { broken: None, ghost: Ghost::default(), given: BTreeMap::new(), troubled_until: 0, takeover: None }
    }

    pub(super) fn breaks(&mut self, what: String) {
        if self.broken.is_none() {
            self.broken = Some(what);
        }
    }

    /// What leases say cannot be compared until all of before are over.
    pub(super) fn trouble(&mut self, now: u64, profile: &Profile) {
        let lease = profile.times.lease.as_nanos() as u64;
        self.troubled_until = self.troubled_until.max(now + 2 * lease + 5 * SECOND);
    }

    pub(super) fn renewal(&mut self, (judged_us, lease_until): (i64, i64)) {
        if lease_until < judged_us {
            self.breaks(format!("a renewal found a lease that was over since {} us", judged_us - lease_until));
        }
    }
}

impl World {
    fn is_troubled(&self) -> bool {
        self.judge.troubled_until > self.now
    }

    pub(super) fn judge_error(&mut self, index: usize, error: Option<&DbError>) {
        if let Some(error) = error
            && matches!(error.class, Class::Refused | Class::Broken)
        {
            self.judge.breaks(format!("P{index}: the database refused a statement: {error}"));
        }
    }

    /// An effect starts: the lease of its identity runs.
    pub(super) fn judge_effect(&mut self, index: usize, me: MemberId) {
        if self.is_troubled() {
            return;
        }
        self.set_clock();
        let now_us = self.database.now_us;
        let lease = self.database.members.committed().find(|row| row.id == me.0).map(|row| row.lease_until);
        match lease {
            None => self.judge.breaks(format!("P{index} starts an effect for {me}, which is not registered")),
            Some(until) if until < now_us => {
                let late = now_us - until;
                self.judge.breaks(format!("P{index} starts an effect {late} us after the lease of {me}"));
            }
            Some(_) => {}
        }
    }

    /// A process trusts its lease: a margin less than the database gives, at most.
    pub(super) fn judge_trust(&mut self, index: usize, until_ns: u64) {
        let Some(id) = self.processes[index].last_id.filter(|_| !self.is_troubled()) else { return };
        let margin_us = self.profile.times.margin.as_micros() as i64;
        let until_us = super::world::WALL_US + (until_ns / 1_000) as i64 + self.faults.database_step_us;
        let lease = self.database.members.committed().find(|row| row.id == id.0).map(|row| row.lease_until);
        if let Some(lease_until) = lease
            && until_us + margin_us > lease_until
        {
            let much = until_us + margin_us - lease_until;
            self.judge.breaks(format!("P{index} trusts its lease for {much} us more than the database gave"));
        }
    }

    pub(super) fn judge_commit(&mut self, number: u32, has_written: bool, committed: Committed) {
        if !has_written {
            return;
        }
        let Some(run) = &self.runs[number as usize] else { return };
        let identity = run.identity;
        if let Some(identity) = identity
            && self.judge.ghost.reaped.contains(&identity.0)
        {
            let what = format!("a transaction of {identity} commits after it was reaped: {:?}", run.purpose);
            self.judge.breaks(what);
        }
        let is_reap = matches!(
            &run.purpose,
            Purpose::Call { what: Call::Reap { .. }, .. } | Purpose::Work { action: Action::Reap, .. }
        );
        let is_tidy = matches!(&run.purpose, Purpose::Call { what: Call::Tidy { .. }, .. });
        let known_dead = match &run.purpose {
            Purpose::Call { what: Call::Reap { known_dead, .. }, .. } => known_dead.clone(),
            _ => Vec::new(),
        };
        let action = match &run.purpose {
            Purpose::Work { action, me } => Some((*action, *me)),
            _ => None,
        };
        for member in &committed.members_deleted {
            self.judge.ghost.reaped.insert(member.id);
            let now_us = self.database.now_us;
            let is_known = known_dead.contains(&MemberId(member.id));
            if is_reap && !is_known && member.lease_until >= now_us && !self.is_troubled() {
                let left = member.lease_until - now_us;
                self.judge.breaks(format!("{} was reaped with {left} us left", MemberId(member.id)));
            }
            if is_reap && !self.is_troubled() || is_tidy {
                self.judge_executions(MemberId(member.id));
            }
        }
        for effect in &committed.effects {
            self.outcome.effects += 1;
            let place = usize::from(effect.name);
            let row = self.database.leaders.committed().find(|row| row.name == effect.name);
            let present = row.map_or(0, |row| row.epoch);
            let holder = row.and_then(|row| row.holder);
            let last = self.judge.ghost.effect_epoch[place];
            if effect.epoch != present || effect.epoch < last {
                let epoch = effect.epoch;
                let what = format!("an effect of epoch {epoch:x} commits in epoch {present:x}, the last was {last:x}");
                self.judge.breaks(what);
            }
            if holder.is_some() && holder != identity.map(|id| id.0) {
                self.judge.breaks(format!("an effect commits that is not the leader's, {holder:x?}"));
            }
            self.judge.ghost.effect_epoch[place] = last.max(effect.epoch);
        }
        for taken in &committed.taken {
            let Some(holder) = taken.holder else { continue };
            say!(self, "epoch {:x} of {} for {}", taken.epoch, taken.name, MemberId(holder));
            let before = self.judge.given.insert((taken.name, taken.epoch), holder);
            if before.is_some_and(|before| before != holder) {
                self.judge.breaks(format!("epoch {:x} was given twice", taken.epoch));
            }
        }
        for (before, after) in &committed.work {
            if before.state == State::Running && after.state == State::Done {
                self.outcome.finished += 1;
                let is_first = self.judge.ghost.finished.insert((after.id, after.attempt));
                let is_owner = identity.is_some_and(|identity| identity.0 == before.owner)
                    && matches!(action, Some((Action::Finish(claimed), _)) if claimed.attempt == before.attempt);
                if !is_first || !is_owner {
                    let what =
                        format!("attempt {} of row {} is finished by another than its owner", after.attempt, after.id);
                    self.judge.breaks(what);
                }
            } else if after.state == State::Done && before.state != State::Done {
                self.judge.breaks(format!("row {} is done without having run", after.id));
            } else if before.state == State::Running && after.state != State::Running {
                // Given up: its owner must be dead by the registrations.
                let owner = before.owner;
                let lives = self.database.members.committed().any(|row| row.id == owner);
                if lives {
                    let what = format!("row {} was taken from {}, which is registered", after.id, MemberId(owner));
                    self.judge.breaks(what);
                }
            }
            if before.pokes != after.pokes
                && let Some((Action::Poke { request }, _)) = action
            {
                self.outcome.requests_carried_out += 1;
                if !self.judge.ghost.carried_out.insert(request) {
                    self.judge.breaks(format!("request {request} is carried out twice"));
                }
            }
        }
        for row in &committed.config {
            let seq = self.database.seq;
            say!(self, "setting {} has version {}", row.name, row.version);
            self.judge.ghost.versions[row.name as usize].push((seq, row.version));
        }
        for ticket in &committed.run_tickets_deleted {
            let run = self.database.work.committed().find(|row| u128::from(row.id) == ticket.holder);
            if run.is_some_and(|run| run.state != State::Done) {
                self.judge.breaks(format!("run {} has lost its place in lane {}", ticket.holder, ticket.key));
            }
        }
        if committed.has_changed_tickets {
            self.judge_tickets();
        }
    }

    fn judge_tickets(&mut self) {
        let mut broken = None;
        for key in self.database.ticket_keys.committed() {
            let is_its = |is_lane: bool, name: u32| is_lane == key.is_lane && name == key.key;
            let held = self.database.tickets.committed().filter(|row| is_its(row.is_lane, row.key)).count() as i64;
            let waits =
                self.database.ticket_waits.committed().filter(|row| is_its(row.ticket.is_lane, row.ticket.key)).count();
            if held > key.limit {
                broken = Some(format!("{held} tickets of key {} are out, the limit is {}", key.key, key.limit));
            }
            if waits > 0 && held < key.limit {
                broken = Some(format!("{waits} wait for key {} while a place is free", key.key));
            }
        }
        if let Some(what) = broken {
            self.judge.breaks(what);
        }
    }

    /// Nothing runs for an identity that is over, except where the kernel lets nothing run.
    fn judge_executions(&mut self, id: MemberId) {
        for index in 0..self.processes.len() {
            let process = &self.processes[index];
            let is_running = process.executions.iter().any(|execution| execution.owner == id);
            let is_frozen = self.frozen_until(index, Thread::Lease).is_some();
            // A process that wakes has killed nothing yet.
            let just_woke = process.lease_frozen_until + self.profile.times.margin.as_nanos() as u64 + SECOND
                > self.now
                && process.lease_frozen_until > 0;
            if is_running && !is_frozen && !just_woke {
                self.judge.breaks(format!("P{index} still runs something for {id}, which is reaped or tidied"));
            }
        }
    }

    pub(super) fn judge_gained(&mut self, index: usize, held: Leadership) {
        if let Some(takeover) = &self.judge.takeover
            && held.name == cluster_core::leadership::SCHEDULER
        {
            let took = self.now - takeover.since;
            if took > takeover.by {
                let what = format!("the takeover took {} ms, not {}", took / MS, takeover.by / MS);
                self.judge.breaks(what);
            }
            self.outcome.takeovers_timed += 1;
            self.judge.takeover = None;
        }
        if self.is_troubled() {
            return;
        }
        for other in 0..self.processes.len() {
            if other == index {
                continue;
            }
            let now = self.boot(other);
            let leads = self.processes[other].coordinator.as_ref().and_then(|other| other.leads(held.name, now));
            if let Some(leads) = leads {
                let what = format!("P{index} and P{other} believe to lead {}: {held:?} and {leads:?}", held.name);
                self.judge.breaks(what);
            }
        }
    }

    /// A single fault hits the leader: how long a takeover may take.
    pub(super) fn judge_takeover(&mut self, fault: Fault) {
        let times = &self.profile.times;
        let (lease, beat) = (times.lease.as_nanos() as u64, times.beat.as_nanos() as u64);
        let by = match fault {
            Fault::CleanStop if self.profile.notices_lost == 0 => SECOND,
            Fault::CleanStop => beat + SECOND,
            Fault::Pause => lease + lease / 4 + 2 * SECOND,
            _ => lease + 2 * SECOND,
        };
        self.judge.takeover = Some(Takeover { since: self.now, by });
    }

    /// A read of the cache changes was taken in: whatever had changed before it is dropped.
    pub(super) fn judge_cache(&mut self, index: usize, seq: u64) {
        for name in 0..2 {
            let Some(version) = self.processes[index].cache[name] else { continue };
            let versions = &self.judge.ghost.versions[name];
            let seen = versions.iter().rev().find(|(at, _)| *at <= seq).map_or(1, |(_, version)| *version);
            if version < seen {
                let what = format!("P{index} keeps version {version} of {name} after a look that saw version {seen}");
                self.judge.breaks(what);
            }
        }
    }

    /// After the faults have ended all is as it should be.
    pub(super) fn judge_the_end(&mut self) {
        if let Some(takeover) = &self.judge.takeover {
            let waited = (self.now - takeover.since) / MS;
            self.judge.breaks(format!("nobody took over for {waited} ms"));
            return;
        }
        let now_us = self.database.now_us;
        let is_single = self.profile.single.is_some();
        let mut broken: Option<String> = None;
        let mut breaks = |what: String| {
            if broken.is_none() {
                broken = Some(what);
            }
        };
        let living: Vec<u128> =
            self.database.members.committed().filter(|row| row.lease_until >= now_us).map(|row| row.id).collect();
        for (index, process) in self.processes.iter().enumerate() {
            if !process.is_up || process.is_stopping {
                if !is_single {
                    breaks(format!("P{index} is down"));
                }
                continue;
            }
            match process.me {
                None => breaks(format!("P{index} has no identity")),
                Some(me) if !living.contains(&me.0) => breaks(format!("{me} of P{index} is not registered")),
                Some(_) => {}
            }
        }
        for row in self.database.members.committed() {
            if !living.contains(&row.id) && !is_single {
                breaks(format!("{} is dead, and still registered", MemberId(row.id)));
            }
        }
        for row in self.database.leaders.committed() {
            let name = cluster_core::leadership::ALL[usize::from(row.name)];
            let leaders: Vec<(usize, Leadership)> = (0..self.processes.len())
                .filter_map(|index| {
                    let coordinator = self.processes[index].coordinator.as_ref()?;
                    Some((index, coordinator.leads(name, self.boot(index))?))
                })
                .collect();
            match &leaders[..] {
                [(_, held)] if Some(held.holder.0) == row.holder && held.epoch == row.epoch => {}
                _ => breaks(format!("{name} is led by {leaders:?}, the row says {row:x?}")),
            }
        }
        for row in self.database.work.committed() {
            if row.state == State::Running && !living.contains(&row.owner) {
                breaks(format!("row {} is held by the dead: {row:?}", row.id));
            }
            // One with a lane may have waited for it until just now.
            if row.state == State::Ready && row.lane == 0 && row.due < now_us - 200_000_000 {
                breaks(format!("row {} is due for {} s", row.id, (now_us - row.due) / 1_000_000));
            }
        }
        for ticket in self.database.tickets.committed() {
            if ticket.is_member && !living.contains(&ticket.holder) {
                breaks(format!("a ticket is held by the dead: {ticket:x?}"));
            }
        }
        for request in self.database.requests.committed() {
            let age_us = now_us - request.created_at;
            if !request.is_done && age_us > 90_000_000 && living.contains(&request.addressee) {
                breaks(format!("request {} waits for {} s", request.id, age_us / 1_000_000));
            }
        }
        if let Some(what) = broken {
            self.judge.breaks(what);
        }
    }
}
