//! Another number of owners, or another mode, for a directory that no server is using (T30).
//!
//! Owns: reading all logs of the directory, dividing their jobs anew, and the one step by which the directory becomes
//! what was asked for: until the manifest is replaced nothing has changed, and afterwards everything has.
//! Never: gives a job another id.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use tubes_core::journal::{JobRecord, Placement, Replay, StateFields, Superseded};
use tubes_core::{PARTITIONS, partition_of};
use xxhash_rust::xxh3::xxh3_64;

use crate::datadir::{self, DirError};
use crate::error::OpenError;
use crate::format::Record;
use crate::manifest::{Manifest, Topology};
use crate::options::{LogOptions, SyncMode};
use crate::recover::recover;
use crate::rewrite::Rewriter;
use crate::vfs::{DiskVfs, Vfs};

/// Length of segments that are written, in bytes; that of a server without options.
const SEGMENT_BYTES: u64 = 10 * 1024 * 1024;

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resharded {
    /// How the directory was divided.
    pub before: Topology,
    /// Jobs that it has.
    pub jobs: u64,
    /// The next id is not below this one.
    pub next_id: u64,
    /// Directory of the old logs, if they were kept.
    pub kept: Option<String>,
}

/// Why a directory was not divided anew. It is what it was.
#[derive(Debug, thiserror::Error)]
pub enum ReshardError {
    /// It is divided so already.
    #[error("{dir} is {topology} already")]
    NothingToDo {
        /// The directory.
        dir: String,
        /// As asked.
        topology: Topology,
    },
    /// The directory cannot be had.
    #[error(transparent)]
    Directory(#[from] DirError),
    /// One of its logs cannot be read.
    #[error(transparent)]
    Log(#[from] OpenError),
    /// The new logs cannot be written.
    #[error("failed to {action} {file}: {source}")]
    Io {
        /// Path of the file.
        file: String,
        /// What was attempted.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl ReshardError {
    /// The exit code of a process that ends because of this.
    pub fn exit_code(&self) -> u8 {
        match self {
            ReshardError::NothingToDo { .. } => 5,
            ReshardError::Directory(error) => error.exit_code(),
            ReshardError::Log(error) => error.exit_code(),
            ReshardError::Io { .. } => 10,
        }
    }
}

/// Divides the jobs of `dir` among the owners of `wanted`. Of `options`, boot id and times are used.
///
/// # Errors
///
/// [`ReshardError`] by reaction; `dir` is what it was.
pub fn reshard(dir: &Path, wanted: Topology, keep: bool, options: &LogOptions) -> Result<Resharded, ReshardError> {
    let mut directory = datadir::open_existing(dir)?;
    let old = directory.manifest().clone();
    let before = old.topology();
    if before == wanted {
        return Err(ReshardError::NothingToDo { dir: dir.display().to_string(), topology: wanted });
    }
    let mut jobs = Jobs::default();
    let mut locks = Vec::new();
    let mut next_count = 1;
    for slot in 0..old.slots {
        let (vfs, lock) = directory.lock_slot(slot)?;
        locks.push(lock);
        let options = LogOptions {
            slot,
            // Above that of every segment: nothing is written into this log.
            generation: u32::MAX,
            fingerprint: directory.fingerprint(),
            ids_per_count: if before == Topology::Single { 1 } else { PARTITIONS as u64 },
            ..options.clone()
        };
        next_count = recover(&vfs, &options, &mut jobs)?.next_id.max(next_count);
    }
    let (manifest, next_count) = divided_anew(&old, wanted, next_count);
    let fingerprint = xxh3_64(manifest.to_text().as_bytes());
    remove_logs(directory.vfs(), &manifest.logs)?;
    for slot in 0..manifest.slots {
        let vfs = datadir::slot_directory(dir, &manifest.logs, slot)?;
        let options = LogOptions {
            slot,
            generation: 1,
            fingerprint,
            segment_bytes: SEGMENT_BYTES,
            sync: SyncMode::Always,
            ..options.clone()
        };
        let failed = |source| ReshardError::Io { file: vfs.display("."), action: "write the new log in", source };
        write_slot(&vfs, &options, &manifest, next_count, &jobs).map_err(failed)?;
    }
    let jobs = jobs.by_id.len() as u64;
    directory.replace_manifest(manifest)?;
    if !keep {
        // The directory is what was asked for; what stays if this fails is only space.
        remove_logs(directory.vfs(), &old.logs)?;
    }
    let ids_per_count = if wanted == Topology::Single { 1 } else { PARTITIONS as u64 };
    let kept = keep.then(|| directory.vfs().display(&old.logs));
    Ok(Resharded { before, jobs, next_id: next_count * ids_per_count, kept })
}

/// The new manifest, and the counter of ids to go on with: in single mode the ids themselves are counted.
fn divided_anew(old: &Manifest, wanted: Topology, next_count: u64) -> (Manifest, u64) {
    let partitions = PARTITIONS as u64;
    let (single_ids_below, next_count) = match (old.topology(), wanted) {
        // Ids of single mode carry no partition; new ones lie above them.
        (Topology::Single, _) => (next_count, next_count.div_ceil(partitions).max(1)),
        // All ids given lie below: counter × 64 + partition.
        (_, Topology::Single) => (0, next_count * partitions),
        (_, Topology::Multi(_)) => (old.single_ids_below, next_count),
    };
    let number: u32 = old.logs.strip_prefix("logs-").and_then(|number| number.parse().ok()).unwrap_or(0);
    let manifest = Manifest {
        single_ids_below,
        logs: format!("logs-{}", number + 1),
        ..Manifest::fresh(old.instance.clone(), wanted)
    };
    (manifest, next_count)
}

fn write_slot(
    vfs: &DiskVfs,
    options: &LogOptions,
    manifest: &Manifest,
    next_count: u64,
    jobs: &Jobs,
) -> io::Result<()> {
    let mut rewriter = Rewriter::new(vfs, options, next_count);
    for (id, job) in &jobs.by_id {
        if manifest.map[partition_of(&job.tube)] == options.slot {
            rewriter.push(&Record::Job(job.record(*id)))?;
        }
    }
    rewriter.finish()?;
    datadir::write_generation(vfs, 1)
}

/// Removes a directory of logs, if it is there: an old one, or what an interrupted run has left.
fn remove_logs(vfs: &DiskVfs, logs: &str) -> Result<(), ReshardError> {
    match std::fs::remove_dir_all(vfs.display(logs)) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(ReshardError::Io { file: vfs.display(logs), action: "remove", source })
        }
        _ => Ok(()),
    }
}

/// All jobs of a directory.
#[derive(Debug, Default)]
struct Jobs {
    by_id: BTreeMap<u64, Job>,
}

#[derive(Debug)]
struct Job {
    created_ms: u64,
    state: StateFields,
    ttr_s: u32,
    tube: Box<[u8]>,
    body: Box<[u8]>,
}

impl Job {
    fn record(&self, id: u64) -> JobRecord<'_> {
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

impl Replay for Jobs {
    fn replay_job(&mut self, record: &JobRecord<'_>, _segment: u32) -> Option<Superseded> {
        let job = Job {
            created_ms: record.created_ms,
            state: record.state,
            ttr_s: record.ttr_s,
            tube: record.tube.into(),
            body: record.body.into(),
        };
        self.by_id.insert(record.id, job).map(|old| superseded(&old))
    }
    fn replay_state(&mut self, id: u64, fields: &StateFields) -> bool {
        self.by_id.get_mut(&id).map(|job| job.state = *fields).is_some()
    }
    fn replay_delete(&mut self, id: u64) -> Option<Superseded> {
        self.by_id.remove(&id).map(|old| superseded(&old))
    }
    fn live_jobs(&self) -> u64 {
        self.by_id.len() as u64
    }
    fn set_state_reserved(&mut self, _reserved: bool) {}
    fn live_job(&self, _id: u64, _segment: u32) -> Option<(JobRecord<'_>, Placement)> {
        None
    }
    fn relocate(&mut self, _id: u64, _placement: Placement) {}
}

/// Nothing is compacted here, so only lengths are told.
fn superseded(job: &Job) -> Superseded {
    Superseded { segment: 0, tube_bytes: job.tube.len(), body_bytes: job.body.len() }
}
