//! How the server ends, and what its next start must find.

use tubes_core::{Engine, EngineOptions};
use tubes_protocol::Command;
use tubes_store::{Log, LogErrorKind, LogOptions, OpenError, SyncMode, recover};

use crate::disk::{DiskFaults, SimDisk};
use crate::model::{Answers, Model, ShadowLog};

use super::ledger::{Ledger, Recovering};
use super::profile::{MS, SECOND};
use super::server::{Server, now};
use super::world::{Checked, MAX_JOB_SIZE, Step, World};

impl World {
    /// The process ends at once, and the machine with it if `power_loss`.
    pub(super) fn kill(&mut self, power_loss: bool) {
        if power_loss {
            let last = self.disk.contents().into_iter().rfind(|(name, _)| name.ends_with(".log"));
            self.before_loss = last.map_or(Vec::new(), |(_, bytes)| bytes);
            self.outcome.power_losses += 1;
            self.power_was_lost = true;
            self.ids_skipped_max += tubes_store::SKIPPED_IDS;
            self.boot_count = self.boot_count.wrapping_add(1);
            self.boot_ns = self.now_ns;
        } else {
            self.outcome.kills += 1;
        }
        self.process_ended(power_loss);
        let ns = self.rng.below(200 * MS);
        self.after(ns, Step::Start);
    }

    fn process_ended(&mut self, power_loss: bool) {
        self.tell(|| format!("the process ends, power loss: {power_loss}"));
        self.disk.crash(power_loss, self.rng.next_u64());
        if let Some(server) = self.server.take() {
            self.connections_lost(&server.connections);
        }
        self.life += 1;
    }

    /// SIGTERM: everything is written and synced, then the process ends. A start follows.
    pub(super) fn orderly_stop(&mut self) -> Checked {
        // A job under way would be waited for; without it there is nothing to learn from the wait.
        let boot_ns = self.moment().boot_ns;
        let Some(server) = self.server.as_mut().filter(|server| !server.has_job()) else { return Ok(()) };
        match server.log.close(boot_ns) {
            Ok(()) => {
                let last = server.log.pending_batch();
                // The CLOSE record itself is nobody's promise.
                self.ledger.acknowledged = last - 1;
                if self.profile.sync != SyncMode::Never {
                    self.ledger.note_synced(last - 1);
                }
                self.outcome.stops += 1;
            }
            Err(_) if self.may_fail() => return self.log_failed(),
            Err(error) => return Err(format!("an orderly stop failed: {error}")),
        }
        self.process_ended(false);
        let ns = self.rng.below(200 * MS);
        self.after(ns, Step::Start);
        Ok(())
    }

    /// Whether the disk has been told to fail.
    fn may_fail(&self) -> bool {
        self.disk.has_stopped() || self.disk_may_have_failed
    }

    /// A write or sync has failed: the log must say where, and do nothing more; the process ends.
    pub(super) fn log_failed(&mut self) -> Checked {
        if !self.may_fail() {
            let error = self.server.as_ref().and_then(|server| server.log.failure());
            return Err(format!("the log failed without a fault: {error:?}"));
        }
        if self.disk.has_stopped() {
            self.kill(self.stop_with_power);
            return Ok(());
        }
        let boot_ns = self.moment().boot_ns;
        let Some(server) = &mut self.server else { return Ok(()) };
        let Some(error) = server.log.failure().cloned() else {
            return Err("the log failed, but does not say why".to_owned());
        };
        if error.file.is_empty() || error.errno != 5 {
            return Err(format!("the failure is not named: {error}"));
        }
        let counts = self.disk.counts();
        let goes_on = server.log.flush(boot_ns).is_ok() || server.log.begin_sync(boot_ns + SECOND).is_some();
        if goes_on || self.disk.counts() != counts {
            return Err(format!("the log goes on after {error}"));
        }
        self.outcome.log_failures += 1;
        self.sync_has_failed |= matches!(error.kind, LogErrorKind::Sync | LogErrorKind::Begin);
        self.process_ended(false);
        let ns = self.rng.below(200 * MS);
        self.after(ns, Step::Start);
        Ok(())
    }

    fn log_options(&self) -> LogOptions {
        let moment = self.moment();
        LogOptions {
            slot: 0,
            generation: self.generation,
            fingerprint: 0x5eed,
            segment_bytes: self.profile.segment_bytes,
            sync: self.profile.sync,
            ids_per_count: 1,
            boot_id: [self.boot_count; 16],
            wall_ms: moment.wall_ms,
            now_ns: moment.boot_ns,
        }
    }

    /// Recovers and goes on, or tries again later if a fault of the disk prevents it.
    pub(super) fn start(&mut self) -> Checked {
        if self.server.is_some() {
            return Ok(());
        }
        self.generation += 1;
        let options = self.log_options();
        if !self.disk.has_stopped() {
            if self.rng.chance(1, 16) {
                self.recovers_twice_alike(&options)?;
            }
            self.old_block_is_noticed(&options)?;
            if self.profile.flips {
                self.flipped_bit_is_noticed(&options)?;
            }
        }
        let mut engine = Engine::new(EngineOptions { max_job_size: MAX_JOB_SIZE, hash_seed: self.seed });
        let mut found = ShadowLog::new();
        let opened = {
            let mut replay = Recovering { engine: &mut engine, found: &mut found };
            Log::open(self.disk.clone(), options, &mut replay)
        };
        if self.disk.has_stopped() {
            // Whatever it said: the machine stopped meanwhile.
            self.kill(self.stop_with_power);
            return Ok(());
        }
        let (log, report) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.start_failed(&error),
        };
        let last = log.pending_batch();
        self.tell(|| format!("recovered up to {last}, promised {:?}: {report:?}", self.ledger));
        self.check_what_survived(&found, last)?;
        self.outcome.recoveries += 1;
        self.outcome.jobs_recovered += report.jobs;
        self.outcome.torn_tails += u64::from(report.torn.is_some());
        self.check_ids(report.next_id, last)?;
        let moment = self.moment();
        engine.finish_recovery(now(moment), report.next_id);
        engine.check_invariants();
        let mut server = Server::new(engine, log, self.clients.len(), self.now_ns);
        server.log.note_next_id(server.engine.next_id());
        self.ledger.rebase(&found, last, self.profile.sync != SyncMode::Never);
        self.power_was_lost = false;
        self.sync_has_failed = false;
        self.has_failed_twice = false;
        self.ids_skipped_max = 0;
        self.disk_may_have_failed = self.disk_faults != DiskFaults::default();
        self.lost_write = None;
        // The order in which recovery creates tubes is its own affair; which tubes there are is not.
        let order = server.tube_order(moment);
        self.model = Model::recovered(MAX_JOB_SIZE, moment, &found, &order, report.next_id);
        self.model.connect(0);
        self.model.handle(moment, 0, &Command::ListTubes, &mut || true);
        self.model.disconnect(moment, 0);
        let mut listed = Answers::default();
        std::mem::swap(&mut listed, self.model.answers());
        if !server.listed_alike(&listed) {
            return Err(format!("recovered tubes: {}", listed.in_words()));
        }
        self.server = Some(server);
        self.wake(self.now_ns);
        Ok(())
    }

    fn start_failed(&mut self, error: &OpenError) -> Checked {
        self.tell(|| format!("no start: {error}"));
        let is_expected = match error {
            OpenError::Damaged { .. } => {
                // Without syncs a power loss may take anything; and what was never written is missing.
                let may_be_lost = self.power_was_lost || self.sync_has_failed;
                let may_be_damaged = self.lost_write.is_some() || (may_be_lost && self.profile.sync == SyncMode::Never);
                if may_be_damaged {
                    self.outcome.refused_logs += 1;
                    self.begin_anew();
                }
                may_be_damaged
            }
            OpenError::Incompatible { .. } => false,
            OpenError::Io { .. } => {
                self.has_failed_twice |= self.sync_has_failed;
                self.sync_has_failed |= self.disk_faults.sync_errors_per_million > 0;
                self.may_fail() || !self.has_space
            }
        };
        if !is_expected {
            return Err(format!("the server does not start: {error}"));
        }
        self.disk.crash(false, self.rng.next_u64());
        let wait_ns = if self.is_chaos { self.profile.fault_gap_ns } else { MS };
        let ns = 10 * MS + self.rng.below(wait_ns);
        self.after(ns, Step::Start);
        Ok(())
    }

    /// The operator puts the damaged directory aside.
    fn begin_anew(&mut self) {
        let capacity = if self.has_space { u64::MAX } else { 0 };
        self.disk = SimDisk::new(self.rng.next_u64());
        self.disk.set_capacity(capacity);
        self.disk.set_faults(self.disk_faults);
        self.ledger = Ledger::new();
        self.model = Model::new(MAX_JOB_SIZE);
        self.lost_write = None;
        self.power_was_lost = false;
        self.sync_has_failed = false;
        self.has_failed_twice = false;
        self.ids_skipped_max = 0;
    }

    /// The state found must be that of the records up to `last`, and `last` must lie behind every promise.
    fn check_what_survived(&mut self, found: &ShadowLog, last: u64) -> Checked {
        let unsynced_may_be_lost = self.power_was_lost || self.sync_has_failed;
        let promised = match (unsynced_may_be_lost, self.profile.sync) {
            (false, _) | (true, SyncMode::Always) => self.ledger.acknowledged.max(self.ledger.synced),
            (true, SyncMode::Interval(_)) => self.ledger.synced,
            (true, SyncMode::Never) => 0,
        };
        let written = self.ledger.entries.last().map_or(last, |entry| entry.sequence().max(last));
        self.outcome.unsynced_lost += u64::from(last < written);
        // Without syncs a power loss may take anything, even what compaction had moved; and a write that was lost at the
        // end of the log looks like no write. Only what is there must be right then.
        let may_lack_anything = (unsynced_may_be_lost && self.profile.sync == SyncMode::Never)
            || self
                .lost_write
                .is_some_and(|lost| lost.proof.is_none_or(|proof| unsynced_may_be_lost && proof > self.ledger.synced));
        if may_lack_anything {
            return match self.ledger.wrong_contents(found) {
                Some(id) => Err(format!("job {id} has a body, tube or time to run that it never had")),
                None => Ok(()),
            };
        }
        if last < promised {
            return Err(format!("records up to {promised} were promised, but the log ends at {last}"));
        }
        match self.ledger.verify(found, last) {
            Ok(()) => Ok(()),
            Err(mismatch) => Err(format!("recovered up to record {last} of {written}: {mismatch:?}")),
        }
    }

    fn check_ids(&mut self, next_id: u64, last: u64) -> Checked {
        let used = self.ledger.largest_id(last);
        let (low, high) = (used + 1, self.model.next_id().max(used + 1));
        let skipped = self.ids_skipped_max;
        if next_id < low || next_id > high + skipped {
            return Err(format!("ids go on with {next_id}, not with {low} to {high} (+ {skipped})"));
        }
        // A lost write takes its ids with it, and nothing can know of them. After a failed sync the page cache knows them,
        // until the next start has read the disk itself; if that start fails too, nothing does.
        if next_id <= self.ledger.id_told && self.lost_write.is_none() && !self.has_failed_twice {
            return Err(format!("id {} was given already, and {next_id} comes next", self.ledger.id_told));
        }
        self.ledger.id_told = self.ledger.id_told.min(next_id - 1);
        Ok(())
    }

    fn copy_of_disk(&mut self) -> SimDisk {
        let copy = SimDisk::new(self.rng.next_u64());
        for (name, bytes) in self.disk.contents() {
            copy.set_contents(&name, &bytes);
        }
        copy
    }

    /// Recovery run twice finds the same, and the second run changes no byte.
    fn recovers_twice_alike(&mut self, options: &LogOptions) -> Checked {
        let copy = self.copy_of_disk();
        let mut first = ShadowLog::new();
        let Ok(first_report) = recover(&copy, options, &mut first) else { return Ok(()) };
        let between = copy.contents();
        let mut second = ShadowLog::new();
        let second_report =
            recover(&copy, options, &mut second).map_err(|error| format!("second recovery: {error}"))?;
        self.outcome.second_recoveries += 1;
        if copy.contents() != between {
            return Err("a second recovery changes the disk".to_owned());
        }
        if first != second || first_report.next_id != second_report.next_id {
            return Err("a second recovery finds something else".to_owned());
        }
        Ok(())
    }

    /// One flipped bit of a closed segment is refused, or changes nothing.
    fn flipped_bit_is_noticed(&mut self, options: &LogOptions) -> Checked {
        let copy = self.copy_of_disk();
        let mut names: Vec<String> = copy.contents().into_keys().filter(|name| name.ends_with(".log")).collect();
        names.sort();
        names.pop();
        let mut before = ShadowLog::new();
        if names.is_empty() || recover(&copy, options, &mut before).is_err() {
            return Ok(());
        }
        let name = self.rng.pick(&names).clone();
        let Some(length) = copy.contents().get(&name).map(Vec::len) else { return Ok(()) };
        let offset = self.rng.index(length);
        copy.flip_bit(&name, offset, u8::try_from(self.rng.below(8)).expect("below 8"));
        let mut after = ShadowLog::new();
        self.outcome.flips += 1;
        match recover(&copy, options, &mut after) {
            Err(_) => self.outcome.flips_refused += 1,
            Ok(_) if before.mismatch(&after).is_none() => {}
            // Damage of the last batches before a power loss cannot be told from what the loss took.
            Ok(report) if report.torn.is_some() && names.last() == Some(&name) && self.power_was_lost => {}
            Ok(_) => {
                return Err(format!("a flipped bit at {name}:{offset} is not noticed: {:?}", before.mismatch(&after)));
            }
        }
        Ok(())
    }

    /// A block that an earlier file has left behind, just where the next record would be and with its sequence, is no
    /// record: power was lost before it was synced, and its sequence was given again.
    fn old_block_is_noticed(&mut self, options: &LogOptions) -> Checked {
        if self.before_loss.is_empty() {
            return Ok(());
        }
        let copy = self.copy_of_disk();
        let Some((name, mut bytes)) = copy.contents().into_iter().rfind(|(name, _)| name.ends_with(".log")) else {
            return Ok(());
        };
        let (Some(old), Some(present)) = (Walk::of(&self.before_loss), Walk::of(&bytes)) else { return Ok(()) };
        let block = old.records.iter().find(|(_, sequence)| *sequence == present.next_sequence);
        let Some((place, _)) = block.filter(|_| old.generation < present.generation) else { return Ok(()) };
        let block = &self.before_loss[place.clone()];
        let Some(behind) = bytes.get_mut(present.end..present.end + block.len()) else { return Ok(()) };
        if behind.iter().any(|byte| *byte != 0) {
            return Ok(());
        }
        behind.copy_from_slice(block);
        let mut before = ShadowLog::new();
        if recover(&copy, options, &mut before).is_err() {
            return Ok(());
        }
        self.outcome.old_blocks += 1;
        let copy = self.copy_of_disk();
        copy.set_contents(&name, &bytes);
        let mut after = ShadowLog::new();
        match recover(&copy, options, &mut after) {
            Ok(_) if before.mismatch(&after).is_none() => Ok(()),
            Ok(_) => Err(format!("an old block is taken for a record: {:?}", before.mismatch(&after))),
            Err(error) => Err(format!("an old block is taken for damage: {error}")),
        }
    }
}

/// The records of a segment as the description of the format has them, read without the reader that is under test.
struct Walk {
    generation: u32,
    /// Places and sequences.
    records: Vec<(std::ops::Range<usize>, u64)>,
    end: usize,
    next_sequence: u64,
}

impl Walk {
    fn of(bytes: &[u8]) -> Option<Walk> {
        const SEGMENT_HEADER_BYTES: usize = 96;
        const RECORD_HEADER_BYTES: usize = 32;
        let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let mut walk = Walk {
            generation: u32_at(72)?,
            records: Vec::new(),
            end: SEGMENT_HEADER_BYTES,
            next_sequence: u64_at(32)?,
        };
        while let (Some(length), Some(sequence)) = (u32_at(walk.end), u64_at(walk.end + 16)) {
            if length == 0 || sequence != walk.next_sequence {
                break;
            }
            let end = walk.end + RECORD_HEADER_BYTES + (length as usize).next_multiple_of(8);
            walk.records.push((walk.end..end.min(bytes.len()), sequence));
            walk.end = end;
            walk.next_sequence += 1;
        }
        Some(walk)
    }
}
