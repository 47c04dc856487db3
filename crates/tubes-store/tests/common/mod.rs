//! What the tests of the log share: a model of the jobs, and a folder that goes away.

#![allow(dead_code, unreachable_pub, reason = "each test file is a crate of its own and uses a part of this")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use tubes_core::journal::{Counters, JobRecord, Journal, LoggedState, Placement, Replay, StateFields, Superseded};
use tubes_store::{Log, LogOptions, SyncMode, Vfs};

/// A job as the model knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub created_ms: u64,
    pub state: StateFields,
    pub ttr_s: u32,
    pub tube: Vec<u8>,
    pub body: Vec<u8>,
}

impl Job {
    pub fn record(&self, id: u64) -> JobRecord<'_> {
        JobRecord {
            id,
            created_ms: self.created_ms,
            state: self.state,
            ttr_s: self.ttr_s,
            tube: &self.tube,
            body: &self.body,
        }
    }
}

/// The rules' side of the log: all jobs, and where their records lie.
#[derive(Debug, Clone, Default)]
pub struct Jobs {
    pub jobs: BTreeMap<u64, Job>,
    pub places: BTreeMap<u64, Placement>,
    pub state_reserved: Option<bool>,
}

impl Replay for Jobs {
    fn replay_job(&mut self, record: &JobRecord<'_>, segment: u32) -> Option<Superseded> {
        let job = Job {
            created_ms: record.created_ms,
            state: record.state,
            ttr_s: record.ttr_s,
            tube: record.tube.to_vec(),
            body: record.body.to_vec(),
        };
        let old = self.jobs.insert(record.id, job);
        let place = self.places.insert(record.id, Placement { segment, state_reserved: false });
        superseded(old, place)
    }

    fn replay_state(&mut self, id: u64, fields: &StateFields) -> bool {
        let Some(job) = self.jobs.get_mut(&id) else { return false };
        job.state = *fields;
        true
    }

    fn replay_delete(&mut self, id: u64) -> Option<Superseded> {
        superseded(self.jobs.remove(&id), self.places.remove(&id))
    }

    fn live_jobs(&self) -> u64 {
        self.jobs.len() as u64
    }

    fn set_state_reserved(&mut self, reserved: bool) {
        self.state_reserved = Some(reserved);
        for place in self.places.values_mut() {
            place.state_reserved = reserved;
        }
    }

    fn live_job(&self, id: u64, segment: u32) -> Option<(JobRecord<'_>, Placement)> {
        let place = self.places.get(&id).filter(|place| place.segment == segment)?;
        Some((self.jobs[&id].record(id), *place))
    }

    fn relocate(&mut self, id: u64, placement: Placement) {
        self.places.insert(id, placement);
    }
}

fn superseded(job: Option<Job>, place: Option<Placement>) -> Option<Superseded> {
    let (job, place) = (job?, place?);
    Some(Superseded { segment: place.segment, tube_bytes: job.tube.len(), body_bytes: job.body.len() })
}

/// Puts a job, if there is space for it.
pub fn put<V: Vfs>(log: &mut Log<V>, jobs: &mut Jobs, id: u64, tube: &[u8], body: &[u8]) -> bool {
    if !log.admit_job(tube.len(), body.len()) {
        return false;
    }
    let job = Job {
        created_ms: 1_000 + id,
        state: ready(id as u32 % 7),
        ttr_s: 60,
        tube: tube.to_vec(),
        body: body.to_vec(),
    };
    let place = log.append_job(&job.record(id));
    jobs.places.insert(id, place);
    jobs.jobs.insert(id, job);
    true
}

/// Changes a job's state, if there is space for it.
pub fn change<V: Vfs>(log: &mut Log<V>, jobs: &mut Jobs, id: u64, state: StateFields) -> bool {
    let place = jobs.places[&id];
    if !log.admit_state(place) {
        return false;
    }
    let place = log.append_state(place, id, &state);
    jobs.places.insert(id, place);
    jobs.jobs.get_mut(&id).unwrap().state = state;
    true
}

/// Deletes a job.
pub fn delete<V: Vfs>(log: &mut Log<V>, jobs: &mut Jobs, id: u64) {
    let job = jobs.jobs.remove(&id).unwrap();
    let place = jobs.places.remove(&id).unwrap();
    log.append_delete(place, id, job.tube.len(), job.body.len());
}

pub fn ready(pri: u32) -> StateFields {
    StateFields { state: LoggedState::Ready, pri, delay_s: 0, due_ms: 0, bury_order: 0, counters: Counters::default() }
}

pub fn buried(pri: u32, order: u64) -> StateFields {
    let counters = Counters { reserves: 1, buries: 1, ..Counters::default() };
    StateFields { state: LoggedState::Buried, bury_order: order, counters, ..ready(pri) }
}

pub fn delayed(pri: u32, due_ms: u64) -> StateFields {
    let counters = Counters { reserves: 1, releases: 1, ..Counters::default() };
    StateFields { state: LoggedState::Delayed, delay_s: 5, due_ms, counters, ..ready(pri) }
}

/// Flushes and runs whatever blocks until nothing is left to do at `now_ns`.
pub fn settle<V: Vfs>(log: &mut Log<V>, now_ns: u64) {
    loop {
        log.flush(now_ns).unwrap();
        let Some(job) = log.begin_sync(now_ns) else { break };
        let id = job.id();
        let result = job.run();
        log.end_sync(id, result).unwrap();
    }
}

pub fn options(generation: u32, sync: SyncMode) -> LogOptions {
    LogOptions {
        slot: 0,
        generation,
        fingerprint: 0xfeed,
        segment_bytes: 4096,
        sync,
        ids_per_count: 1,
        boot_id: [7; 16],
        wall_ms: 1_700_000_000_000,
        now_ns: 0,
    }
}

/// A fresh folder of its own, removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        Folder::below(&std::env::temp_dir())
    }

    /// A folder in memory where the system has such: for thousands of syncs whose duration is not the point.
    pub fn in_memory() -> Folder {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Folder::below(memory) } else { Folder::new() }
    }

    fn below(parent: &Path) -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("tubes-store-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A generator whose sequence is the same in every version.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    pub fn chance(&mut self, of: u64, all: u64) -> bool {
        self.below(all) < of
    }
}

// The simulated disk of the crate `testing`, which depends on this one.
#[path = "../../../testing/src/disk.rs"]
pub mod disk;
pub mod world;
