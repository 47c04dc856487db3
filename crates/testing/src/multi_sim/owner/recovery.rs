//! The start of an owner: what it finds in its log, and what a start that fails may blame.
//!
//! Owns: the comparison of what was recovered with what was promised, and the log that is put aside.

use std::collections::VecDeque;

use supervisor::{FromChild, Instance};
use tubes_core::{Engine, EngineOptions};
use tubes_link::Host;
use tubes_store::{Log, LogOptions, OpenError, SyncMode};

use crate::disk::{DiskFaults, SimDisk};
use crate::model::{Model, ShadowLog};
use crate::sim::ledger::Recovering;

use super::super::judge::{Context, Judge};
use super::super::planted::{self, Bug};
use super::super::process::Process;
use super::super::world::{Checked, MAX_JOB_SIZE, World, now};
use super::{Owner, Recovered, Slot};

impl World {
    fn log_options(&self, who: Instance, sync: SyncMode) -> LogOptions {
        let moment = self.moment();
        LogOptions {
            slot: who.slot,
            generation: who.generation,
            fingerprint: 0x5eed,
            segment_bytes: self.profile.segment_bytes,
            sync,
            ids_per_count: tubes_core::PARTITIONS as u64,
            boot_id: [self.boot_count; 16],
            wall_ms: moment.wall_ms,
            now_ns: moment.boot_ns,
        }
    }

    /// Recovers what the slot's log has. `Err` in the result: the exit code of a start that failed.
    pub(in super::super) fn start_owner(&mut self, mut process: Process) -> Checked<Result<Owner, i32>> {
        let who = process.pid.who;
        let slot_number = usize::from(who.slot);
        let moment = self.moment();
        let owns_default = self.map.of_tube(b"default") == who.slot;
        let mut engine = Engine::new(EngineOptions { max_job_size: MAX_JOB_SIZE, hash_seed: self.seed });
        engine.become_owner(self.map.single_ids_below(), owns_default);
        engine.set_next_creation(self.page.next_tube_number() + 1);
        let mut model = Model::of_owner(MAX_JOB_SIZE, owns_default);
        let (mut jobs, mut next_count) = (0, 1);
        let mut log = None;
        match self.shape.sync {
            None => engine.finish_recovery(now(moment), 1),
            Some(sync) => {
                let options = self.log_options(who, sync);
                let mut found = ShadowLog::new();
                let opened = {
                    let mut replay = Recovering { engine: &mut engine, found: &mut found };
                    Log::open(self.slots[slot_number].disk.clone(), options, &mut replay)
                };
                if self.slots[slot_number].disk.has_stopped() {
                    return Ok(Err(-9));
                }
                let (opened, report) = match opened {
                    Ok(opened) => opened,
                    Err(error) => return self.start_failed(who, &error).map(Err),
                };
                let last = opened.pending_batch();
                self.check_what_survived(who, &found, last)?;
                self.outcome.recoveries += 1;
                self.outcome.jobs_recovered += report.jobs;
                engine.finish_recovery(now(moment), report.highest_id + 1);
                engine.check_invariants();
                let slot = &mut self.slots[slot_number];
                let may_lack = slot.power_was_lost || slot.sync_has_failed;
                slot.recovered = Some(Recovered { generation: who.generation, last, may_lack });
                slot.ledger.rebase(&found, last, sync != SyncMode::Never);
                slot.power_was_lost = false;
                slot.sync_has_failed = false;
                slot.has_failed_twice = false;
                slot.may_have_failed = slot.faults != DiskFaults::default();
                let order: Vec<Box<[u8]>> = engine.tubes().map(|(_, name)| name.into()).collect();
                model.restore_all(moment, &found, &order, 1);
                (jobs, next_count) = (report.jobs, report.next_id);
                log = Some(opened);
            }
        }
        let listed: Vec<Vec<u8>> = engine.tubes().map(|(_, name)| name.to_vec()).collect();
        if !model.tube_names().eq(listed.iter().map(Vec::as_slice)) {
            return Err(format!("{who} recovers the tubes {listed:?}"));
        }
        while self.page.next_tube_number() < engine.next_creation() {}
        let is_draining = process.drained_start || self.page.is_draining;
        if is_draining && !planted::is(Bug::DrainNotHandedOn) {
            engine.drain();
        }
        if is_draining {
            model.drain();
        }
        process.is_ready = true;
        process.says.push(FromChild::Ready { generation: who.generation, jobs, next_id: next_count });
        let mut judge = Judge::new(model);
        judge.rest(moment, VecDeque::new(), &mut Context::default())?;
        Ok(Ok(Owner {
            process,
            engine,
            host: Host::new(),
            log,
            judge,
            links: (0..self.shape.frontends).map(|_| None).collect(),
            job: None,
            job_serial: 0,
            job_covers: 0,
            turns: 0,
            flushed_ns: self.now_ns,
            crash_at: None,
            is_stopping: false,
            last_id: 0,
        }))
    }

    /// The exit code of a start that has failed, if it was allowed to.
    fn start_failed(&mut self, who: Instance, error: &OpenError) -> Checked<i32> {
        self.tell(|| format!("{who} does not start: {error}"));
        let sync = self.shape.sync;
        let slot = &mut self.slots[usize::from(who.slot)];
        match error {
            OpenError::Damaged { .. } => {
                // Without syncs a power loss may take anything.
                let may_be_damaged = (slot.power_was_lost || slot.sync_has_failed) && sync == Some(SyncMode::Never);
                if !may_be_damaged {
                    return Err(format!("{who} does not start: {error}"));
                }
                self.outcome.refused_logs += 1;
                self.begin_anew(usize::from(who.slot));
                Ok(11)
            }
            OpenError::Incompatible { .. } => Err(format!("{who} does not start: {error}")),
            OpenError::Io { .. } => {
                slot.has_failed_twice |= slot.sync_has_failed;
                slot.sync_has_failed |= slot.faults.sync_errors_per_million > 0;
                if slot.may_fail() || !slot.has_space { Ok(10) } else { Err(format!("{who} does not start: {error}")) }
            }
        }
    }

    /// The operator puts the damaged log aside.
    fn begin_anew(&mut self, slot_number: usize) {
        let seed = self.rng.next_u64();
        let slot = &mut self.slots[slot_number];
        let fresh = Slot::new(SimDisk::new(seed));
        // What ails the disk goes on.
        *slot = Slot {
            generation: slot.generation,
            faults: slot.faults,
            may_have_failed: slot.faults != DiskFaults::default(),
            has_space: slot.has_space,
            space_since_ns: slot.space_since_ns,
            is_slow: slot.is_slow,
            ..fresh
        };
        slot.disk.set_faults(slot.faults);
        slot.disk.set_capacity(if slot.has_space { u64::MAX } else { 0 });
        // Nobody can know any more which ids were given there.
        let map = self.map.clone();
        self.ids_given.retain(|id| map.of_id(*id).map(usize::from) != Some(slot_number));
    }

    /// The state found must be that of the records up to `last`, and `last` must lie behind every promise.
    fn check_what_survived(&mut self, who: Instance, found: &ShadowLog, last: u64) -> Checked {
        let slot = &self.slots[usize::from(who.slot)];
        let may_be_lost = slot.power_was_lost || slot.sync_has_failed;
        let sync = self.shape.sync.expect("it has a log");
        let promised = match (may_be_lost, sync) {
            (false, _) | (true, SyncMode::Always) => slot.ledger.acknowledged.max(slot.ledger.synced),
            (true, SyncMode::Interval(_)) => slot.ledger.synced,
            (true, SyncMode::Never) => 0,
        };
        if slot.has_failed_twice {
            let map = self.map.clone();
            self.ids_given.retain(|id| map.of_id(*id) != Some(who.slot));
        }
        let slot = &self.slots[usize::from(who.slot)];
        if may_be_lost && sync == SyncMode::Never {
            return match slot.ledger.wrong_contents(found) {
                Some(id) => Err(format!("{who}: job {id} has a body, tube or time to run that it never had")),
                None => Ok(()),
            };
        }
        if last < promised {
            return Err(format!("{who}: records up to {promised} were promised, but the log ends at {last}"));
        }
        slot.ledger.verify(found, last).map_err(|mismatch| format!("{who} recovered up to {last}: {mismatch:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use supervisor::Role;

    const OWNER: Instance = Instance { role: Role::Owner, slot: 0, generation: 1 };

    fn failed() -> OpenError {
        let source = std::io::Error::from_raw_os_error(5);
        OpenError::Io { file: "0000000001.log".to_owned(), action: "begin", source }
    }

    #[test]
    fn a_log_that_is_put_aside_leaves_the_disk_as_sick_as_it_was() {
        let mut world = World::new(1);
        let faults = DiskFaults { write_errors_per_million: 300_000, ..DiskFaults::default() };
        world.slots[0].generation = 3;
        world.slots[0].faults = faults;
        world.slots[0].may_have_failed = true;
        world.slots[0].sync_has_failed = true;
        world.begin_anew(0);
        let slot = &world.slots[0];
        assert_eq!((slot.generation, slot.faults, slot.sync_has_failed), (3, faults, false));
        assert_eq!(world.start_failed(OWNER, &failed()), Ok(10));
    }

    #[test]
    fn a_start_fails_without_a_fault() {
        let mut world = World::new(1);
        let what = world.start_failed(OWNER, &failed()).expect_err("nothing was wrong with the disk");
        assert!(what.contains("does not start: failed to begin 0000000001.log"), "{what}");
        world.begin_anew(0);
        world.start_failed(OWNER, &failed()).expect_err("nor is it now");
    }
}
