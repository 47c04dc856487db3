//! What the log was told, and how much of it was promised.
//!
//! Owns: the changes since the last recovery with their sequences, the point up to which each kind of failure must leave
//! them, and the largest id that a client has seen.
//! Never: believes the log, but for the sequence it gave a record.

use std::collections::BTreeMap;

use tubes_core::Engine;
use tubes_core::journal::{JobRecord, Journal, Placement, Replay, StateFields, Superseded};
use tubes_store::Log;

use crate::disk::SimDisk;
use crate::model::{Change, Mismatch, Model, Moment, ShadowJob, ShadowLog};

/// One record that was appended.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its sequence lies above `above` and is at most `sequence`; only for copies by compaction these are more than one.
    above: u64,
    sequence: u64,
    /// When it was handed to the log, then when it was written.
    at_ns: u64,
    pub(crate) change: Change,
}

impl Entry {
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }
}

/// The account of one data directory.
#[derive(Debug)]
pub(crate) struct Ledger {
    base: ShadowLog,
    pub(crate) entries: Vec<Entry>,
    /// Entries up to here have been compared with the model.
    pub(crate) compared: usize,
    /// Entries up to here are written, and synced.
    written_entries: usize,
    synced_entries: usize,
    /// New jobs and the segments that hold them, since the last comparison.
    pub(crate) placed: Vec<(u64, u32)>,
    /// Answers of the log about space since the last comparison.
    pub(crate) space: Vec<bool>,
    /// Records up to here were acknowledged: no end of the process may lose them.
    pub(crate) acknowledged: u64,
    /// Records up to here were synced: no power loss may lose them.
    pub(crate) synced: u64,
    /// The largest id that a client has been told.
    pub(crate) id_told: u64,
}

impl Ledger {
    pub(crate) fn new() -> Ledger {
        Ledger {
            base: ShadowLog::new(),
            entries: Vec::new(),
            compared: 0,
            written_entries: 0,
            synced_entries: 0,
            placed: Vec::new(),
            space: Vec::new(),
            acknowledged: 0,
            synced: 0,
            id_told: 0,
        }
    }

    fn push(&mut self, at_ns: u64, sequence: u64, change: Change) {
        self.entries.push(Entry { above: sequence - 1, sequence, at_ns, change });
    }

    pub(crate) fn note_synced(&mut self, sequence: u64) {
        self.synced = self.synced.max(sequence);
        while self.entries.get(self.synced_entries).is_some_and(|entry| entry.sequence <= self.synced) {
            self.synced_entries += 1;
        }
    }

    pub(crate) fn note_written(&mut self, sequence: u64, at_ns: u64) {
        while let Some(entry) = self.entries.get_mut(self.written_entries).filter(|entry| entry.sequence <= sequence) {
            entry.at_ns = at_ns;
            self.written_entries += 1;
        }
    }

    /// When the oldest record was written that no sync has covered.
    pub(crate) fn unsynced_since_ns(&self) -> Option<u64> {
        let unsynced = (self.synced_entries < self.written_entries).then(|| &self.entries[self.synced_entries]);
        unsynced.map(|entry| entry.at_ns)
    }

    /// The largest id of a put with a sequence up to `last`, 0 if there is none.
    pub(crate) fn largest_id(&self, last: u64) -> u64 {
        let puts = self.entries.iter().filter(|entry| entry.sequence <= last).filter_map(|entry| match entry.change {
            Change::Put { id, .. } => Some(id),
            _ => None,
        });
        puts.max().unwrap_or(0).max(self.base.ids_below() - 1)
    }

    /// Compares what a recovery has `found` with the records up to `last`.
    pub(crate) fn verify(&self, found: &ShadowLog, last: u64) -> Result<(), Mismatch> {
        let mut expected = self.base.clone();
        // Copies whose sequence is not known exactly, so that either the copy or what it copies may be what is left.
        let mut perhaps: BTreeMap<u64, &ShadowJob> = BTreeMap::new();
        for entry in &self.entries {
            if entry.sequence <= last {
                expected.apply(&entry.change);
            } else if entry.above < last
                && let Change::Put { id, job } = &entry.change
            {
                perhaps.insert(*id, job);
            }
        }
        loop {
            match expected.mismatch(found) {
                None => return Ok(()),
                Some(Mismatch::Different { id, found: other, .. }) if perhaps.get(&id) == Some(&&*other) => {
                    perhaps.remove(&id);
                    expected.apply(&Change::Put { id, job: *other });
                }
                Some(mismatch) => return Err(mismatch),
            }
        }
    }

    /// A job among `found` that was never put like that.
    pub(crate) fn wrong_contents(&self, found: &ShadowLog) -> Option<u64> {
        let is_known = |id: u64, job: &ShadowJob| {
            let same = |known: &ShadowJob| known.body == job.body && known.tube == job.tube && known.ttr_s == job.ttr_s;
            let was_put =
                |entry: &Entry| matches!(&entry.change, Change::Put { id: put, job } if *put == id && same(job));
            self.base.job(id).is_some_and(same) || self.entries.iter().any(was_put)
        };
        found.jobs().find(|(id, job)| !is_known(*id, job)).map(|(id, _)| id)
    }

    /// Goes on from what was found up to `last`; `is_synced` if recovery has made it safe.
    pub(crate) fn rebase(&mut self, found: &ShadowLog, last: u64, is_synced: bool) {
        self.base = found.clone();
        self.entries.clear();
        self.compared = 0;
        self.written_entries = 0;
        self.synced_entries = 0;
        self.space.clear();
        self.acknowledged = last;
        self.synced = if is_synced { last } else { self.synced.min(last) };
    }
}

/// The log while serving: passes everything on and enters it into the ledger.
pub(crate) struct Booking<'a> {
    pub(crate) log: &'a mut Log<SimDisk>,
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) at_ns: u64,
}

impl Journal for Booking<'_> {
    fn admit_job(&mut self, tube_bytes: usize, body_bytes: usize) -> bool {
        let admitted = self.log.admit_job(tube_bytes, body_bytes);
        self.ledger.space.push(admitted);
        admitted
    }

    fn append_job(&mut self, record: &JobRecord<'_>) -> Placement {
        let placement = self.log.append_job(record);
        let change = Change::Put { id: record.id, job: ShadowJob::of(record) };
        self.ledger.push(self.at_ns, self.log.pending_batch(), change);
        self.ledger.placed.push((record.id, placement.segment));
        assert!(placement.state_reserved, "a put is accepted only with space for a STATE record");
        placement
    }

    fn admit_state(&mut self, placement: Placement) -> bool {
        let admitted = self.log.admit_state(placement);
        assert!(admitted || !placement.state_reserved, "space that was set aside for a STATE record is not there");
        self.ledger.space.push(admitted);
        admitted
    }

    fn append_state(&mut self, placement: Placement, id: u64, fields: &StateFields) -> Placement {
        let placement = self.log.append_state(placement, id, fields);
        self.ledger.push(self.at_ns, self.log.pending_batch(), Change::State { id, fields: *fields });
        placement
    }

    fn append_delete(&mut self, placement: Placement, id: u64, tube_bytes: usize, body_bytes: usize) {
        self.log.append_delete(placement, id, tube_bytes, body_bytes);
        self.ledger.push(self.at_ns, self.log.pending_batch(), Change::Delete { id });
    }
}

/// The rules at recovery: engine and a plain reader get the same records, and must say the same of them.
pub(crate) struct Recovering<'a> {
    pub(crate) engine: &'a mut Engine,
    pub(crate) found: &'a mut ShadowLog,
}

impl Replay for Recovering<'_> {
    fn replay_job(&mut self, record: &JobRecord<'_>, segment: u32) -> Option<Superseded> {
        let before = self.found.replay_job(record, segment);
        assert_eq!(self.engine.replay_job(record, segment), before, "what JOB record {} replaces", record.id);
        before
    }

    fn replay_state(&mut self, id: u64, fields: &StateFields) -> bool {
        let is_known = self.found.replay_state(id, fields);
        assert_eq!(self.engine.replay_state(id, fields), is_known, "whether STATE record {id} is known");
        is_known
    }

    fn replay_delete(&mut self, id: u64) -> Option<Superseded> {
        let before = self.found.replay_delete(id);
        assert_eq!(self.engine.replay_delete(id), before, "what DELETE record {id} removes");
        before
    }

    fn live_jobs(&self) -> u64 {
        self.found.live_jobs()
    }

    fn set_state_reserved(&mut self, reserved: bool) {
        self.engine.set_state_reserved(reserved);
    }

    fn live_job(&self, id: u64, segment: u32) -> Option<(JobRecord<'_>, Placement)> {
        self.engine.live_job(id, segment)
    }

    fn relocate(&mut self, id: u64, placement: Placement) {
        self.engine.relocate(id, placement);
    }
}

/// The rules for compaction: what is copied is compared with the model and entered into the ledger.
pub(crate) struct Copying<'a> {
    pub(crate) engine: &'a mut Engine,
    pub(crate) model: &'a mut Model,
    pub(crate) copies: Vec<(u64, ShadowJob)>,
    pub(crate) now: Moment,
    pub(crate) wrong: Option<String>,
}

impl Copying<'_> {
    /// Enters the copies, whose records lie between the two sequences.
    pub(crate) fn book(self, ledger: &mut Ledger, above: u64, last: u64) -> Option<String> {
        for (id, job) in self.copies {
            let change = Change::Put { id, job };
            ledger.entries.push(Entry { above, sequence: last, at_ns: self.now.boot_ns, change });
        }
        ledger.compared = ledger.entries.len();
        self.wrong
    }
}

impl Replay for Copying<'_> {
    fn replay_job(&mut self, record: &JobRecord<'_>, _segment: u32) -> Option<Superseded> {
        unreachable!("compaction replays nothing, but it did {}", record.id)
    }

    fn replay_state(&mut self, id: u64, _fields: &StateFields) -> bool {
        unreachable!("compaction replays nothing, but it did {id}")
    }

    fn replay_delete(&mut self, id: u64) -> Option<Superseded> {
        unreachable!("compaction replays nothing, but it did {id}")
    }

    fn live_jobs(&self) -> u64 {
        self.engine.live_jobs()
    }

    fn set_state_reserved(&mut self, reserved: bool) {
        self.engine.set_state_reserved(reserved);
    }

    fn live_job(&self, id: u64, segment: u32) -> Option<(JobRecord<'_>, Placement)> {
        self.engine.live_job(id, segment)
    }

    fn relocate(&mut self, id: u64, placement: Placement) {
        let from = self.model.jobs().get(id).map(|job| job.file);
        let copied = from.and_then(|from| self.engine.live_job(id, from)).map(|(record, _)| ShadowJob::of(&record));
        match copied {
            Some(copied) if copied.says(&self.model.logged(self.now, id)) => self.copies.push((id, copied)),
            other => self.wrong = Some(format!("compaction copies {other:?} of job {id} of segment {from:?}")),
        }
        self.engine.relocate(id, placement);
        self.model.set_file(id, placement.segment);
    }
}
