//! A log over the simulated disk, driven by a seed, crashed and recovered, with everything that was promised written
//! down beside it.

use std::collections::BTreeMap;

use tubes_core::journal::StateFields;
use tubes_store::{Log, LogOptions, OpenError, RecoveryReport, SyncJob, SyncMode, recover};

use super::disk::{DiskFaults, SimDisk};
use super::{Job, Jobs, Random, buried, change, delayed, delete, options, put, ready};

/// What one record did to the jobs.
#[derive(Debug, Clone)]
pub enum Change {
    Put(u64, Job),
    State(u64, StateFields),
    Delete(u64),
}

/// Everything that one seed drives.
pub struct World {
    pub seed: u64,
    pub disk: SimDisk,
    pub sync: SyncMode,
    pub segment_bytes: u64,
    pub log: Option<Log<SimDisk>>,
    pub jobs: Jobs,
    random: Random,
    /// Changes since `base`, with the number of the batch that covers each.
    history: Vec<(u64, Change)>,
    base: BTreeMap<u64, Job>,
    /// Batch up to which replies have left, and up to which the disk has said that it is safe.
    acknowledged: u64,
    synced: u64,
    /// `synced` before the last sync.
    synced_before: u64,
    /// Writes may be lost although the disk reports success.
    lossy: bool,
    highest_acknowledged_id: u64,
    job: Option<(u64, SyncJob<SimDisk>)>,
    covered: u64,
    pub next_id: u64,
    generation: u32,
    boot: u8,
    now_ns: u64,
    bury_order: u64,
}

impl World {
    pub fn new(seed: u64, sync: SyncMode) -> World {
        let mut random = Random(seed);
        let segment_bytes = [600, 1_000, 2_048, 4_096][random.below(4) as usize];
        World {
            seed,
            disk: SimDisk::new(seed),
            sync,
            segment_bytes,
            log: None,
            jobs: Jobs::default(),
            random,
            history: Vec::new(),
            base: BTreeMap::new(),
            acknowledged: 0,
            synced: 0,
            synced_before: 0,
            lossy: false,
            highest_acknowledged_id: 0,
            job: None,
            covered: 0,
            next_id: 1,
            generation: 0,
            boot: 1,
            now_ns: 0,
            bury_order: 0,
        }
    }

    /// Lets the disk lose one write and report success. Before the log is opened: its segments are made so large that
    /// none is dropped, because the loss of a tail whose copies or DELETEs let one go leaves no trace.
    pub fn lose_write(&mut self, write: u64) {
        self.lossy = true;
        self.segment_bytes = 1 << 18;
        self.disk.lose_write(write);
    }

    /// From here on the disk has room for so many segments.
    pub fn limit_space(&mut self, segments: u64) {
        self.disk.set_capacity(segments * self.segment_bytes);
    }

    fn options(&mut self) -> LogOptions {
        self.generation += 1;
        LogOptions {
            segment_bytes: self.segment_bytes,
            boot_id: [self.boot; 16],
            now_ns: self.now_ns,
            ..options(self.generation, self.sync)
        }
    }

    /// Opens the log. `false` if the disk stopped meanwhile.
    pub fn open(&mut self) -> Result<bool, OpenError> {
        let options = self.options();
        let mut jobs = Jobs::default();
        match Log::open(self.disk.clone(), options, &mut jobs) {
            Ok((mut log, report)) => {
                self.next_id = report.next_id;
                log.note_next_id(self.next_id);
                self.acknowledged = log.durable_batch();
                self.synced = log.durable_batch();
                self.synced_before = self.synced;
                self.log = Some(log);
                self.jobs = jobs;
                Ok(true)
            }
            Err(_) if self.disk.has_stopped() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// One turn of an event loop. `false` if the disk stopped.
    pub fn turn(&mut self) -> bool {
        let commands = self.random.below(4);
        for _ in 0..commands {
            self.command();
        }
        let random = &mut self.random;
        self.now_ns += random.below(30_000_000);
        let log = self.log.as_mut().unwrap();
        if random.chance(1, 2) {
            let idle = random.chance(1, 2);
            log.compact(&mut self.jobs, idle);
        }
        if log.flush(self.now_ns).is_err() {
            return self.stopped();
        }
        if let Some((id, job)) = self.job.take() {
            if random.chance(1, 3) {
                // Still under way.
                self.job = Some((id, job));
            } else {
                let syncs = log.figures().syncs;
                if log.end_sync(id, job.run()).is_err() {
                    return self.stopped();
                }
                // A job that only removes segments syncs no records.
                if log.figures().syncs > syncs {
                    self.synced_before = self.synced;
                    self.synced = self.covered;
                }
                if log.flush(self.now_ns).is_err() {
                    return self.stopped();
                }
            }
        }
        if self.job.is_none()
            && let Some(job) = log.begin_sync(self.now_ns)
        {
            self.covered = log.durable_batch();
            self.job = Some((job.id(), job));
        }
        self.acknowledge();
        true
    }

    fn acknowledge(&mut self) {
        let log = self.log.as_ref().unwrap();
        let acknowledged = log.durable_batch();
        for (batch, change) in &self.history {
            if let Change::Put(id, _) = change
                && *batch <= acknowledged
            {
                self.highest_acknowledged_id = self.highest_acknowledged_id.max(*id);
            }
        }
        self.acknowledged = acknowledged;
        if self.sync == SyncMode::Always && acknowledged > self.synced {
            self.synced_before = self.synced;
            self.synced = acknowledged;
        }
    }

    fn stopped(&self) -> bool {
        assert!(self.disk.has_stopped(), "seed {}: the log failed on a disk that works", self.seed);
        false
    }

    fn command(&mut self) {
        let log = self.log.as_mut().unwrap();
        let random = &mut self.random;
        let chosen = if self.jobs.jobs.is_empty() {
            None
        } else {
            let place = random.below(self.jobs.jobs.len() as u64) as usize;
            self.jobs.jobs.keys().nth(place).copied()
        };
        let change = match (random.below(10), chosen) {
            (0..=3, _) | (_, None) => {
                let id = self.next_id;
                let length = if random.chance(1, 12) { random.below(3_000) } else { random.below(200) };
                let body: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
                if !put(log, &mut self.jobs, id, b"tube", &body) {
                    let full = log.figures().allocation_error.is_some();
                    assert!(full || self.disk.has_stopped(), "seed {}: the disk is not full", self.seed);
                    return;
                }
                self.next_id += 1;
                log.note_next_id(self.next_id);
                Change::Put(id, self.jobs.jobs[&id].clone())
            }
            (4..=7, Some(id)) => {
                self.bury_order += 1;
                let state = match random.below(3) {
                    0 => ready(random.below(5_000) as u32),
                    1 => buried(random.below(5_000) as u32, self.bury_order),
                    _ => delayed(random.below(5_000) as u32, random.below(1 << 40)),
                };
                let reserved = self.jobs.places[&id].state_reserved;
                if !change(log, &mut self.jobs, id, state) {
                    let full = log.figures().allocation_error.is_some() && !reserved;
                    assert!(full || self.disk.has_stopped(), "seed {}: the disk is not full", self.seed);
                    return;
                }
                Change::State(id, state)
            }
            (_, Some(id)) => {
                delete(log, &mut self.jobs, id);
                Change::Delete(id)
            }
        };
        self.history.push((log.pending_batch(), change));
    }

    /// Ends the life of the process, or of the machine, and checks what the next one finds. Afterwards the world goes
    /// on from there. The report is `None` if the slot was refused, which only mode `never` may do after a power loss.
    pub fn crash_and_check(&mut self, power_loss: bool, crash_seed: u64) -> Option<RecoveryReport> {
        let seed = self.seed;
        let context = format!("seed {seed}, crash seed {crash_seed}, power loss {power_loss}, {:?}", self.sync);
        // Otherwise the power loss before counts still.
        let opened = self.log.take().is_some();
        self.job = None;
        self.covered = 0;
        self.disk.crash(power_loss, crash_seed);
        if power_loss {
            self.boot += 1;
        }
        self.disk.set_faults(DiskFaults::default());
        let promised = match self.sync {
            // What the batch before the last proves is the least: the last may have vanished without a trace.
            SyncMode::Always if self.lossy => self.synced_before,
            SyncMode::Never if self.lossy || power_loss => 0,
            // There the batch before that one.
            SyncMode::Interval(_) if self.lossy => 0,
            _ if power_loss => self.synced,
            _ => self.acknowledged,
        };
        let options = self.options();
        let mut first = Jobs::default();
        let report = match recover(&self.disk, &options, &mut first) {
            Ok(report) => report,
            Err(OpenError::Damaged { .. }) if self.lossy || (power_loss && self.sync == SyncMode::Never) => {
                return None;
            }
            Err(error) => panic!("{context}: {error}"),
        };
        let bytes = self.disk.contents();
        let mut second = Jobs::default();
        let again = recover(&self.disk, &options, &mut second).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(first.jobs, second.jobs, "{context}: a second recovery finds the same");
        assert_eq!(report.next_id, again.next_id, "{context}");
        assert!(again.torn.is_none(), "{context}: a torn tail is set aside once");
        assert!(bytes == self.disk.contents(), "{context}: a second recovery changes no byte");

        self.base = if (self.lossy || power_loss) && self.sync == SyncMode::Never {
            // Nothing is promised, but never a body that nobody has put.
            self.check_bodies(&first.jobs, &context);
            first.jobs
        } else {
            self.matching_state(&first.jobs, promised, &context)
        };
        self.history.clear();
        assert!(self.lossy || report.next_id > self.highest_acknowledged_id, "{context}: an id is never given twice");
        if opened && !power_loss {
            assert_eq!(report.skipped_ids, 0, "{context}: ids stay dense over kills");
            let next = self.next_id;
            assert!(report.next_id <= next, "{context}: ids stay dense over kills: {} {next}", report.next_id);
        }
        Some(report)
    }

    fn check_bodies(&self, found: &BTreeMap<u64, Job>, context: &str) {
        let mut bodies: BTreeMap<u64, &[u8]> = self.base.iter().map(|(id, job)| (*id, &*job.body)).collect();
        for (_, change) in &self.history {
            if let Change::Put(id, job) = change {
                bodies.insert(*id, &job.body);
            }
        }
        for (id, job) in found {
            assert_eq!(bodies.get(id), Some(&&*job.body), "{context}: body of job {id}");
        }
    }

    /// The state after some record not before the `promised` one must be what was recovered.
    fn matching_state(&self, found: &BTreeMap<u64, Job>, promised: u64, context: &str) -> BTreeMap<u64, Job> {
        let mut state = self.base.clone();
        let mut changes = self.history.iter().peekable();
        loop {
            let next = changes.peek();
            if next.is_none_or(|(batch, _)| *batch > promised) && state == *found {
                return state;
            }
            let Some((_, change)) = changes.next() else { break };
            match change {
                Change::Put(id, job) => {
                    state.insert(*id, job.clone());
                }
                Change::State(id, fields) => state.get_mut(id).unwrap().state = *fields,
                Change::Delete(id) => {
                    state.remove(id);
                }
            }
        }
        let expected: Vec<_> = state.keys().collect();
        let found: Vec<_> = found.keys().collect();
        panic!(
            "{context}: what was recovered is no state that the log was in since batch {promised}: found {found:?}, last \
             {expected:?}"
        );
    }
}
