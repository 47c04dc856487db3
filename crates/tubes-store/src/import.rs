//! `tenure import beanstalkd FROM --to DIR [--owners N]`: takes the jobs of a stopped beanstalkd over into a fresh data
//! directory, for one process or for several owners.
//!
//! Owns: the original's file format 7, and the order of steps that leaves either nothing or everything.
//! Never: changes FROM, or writes into a directory that holds anything.
//!
//! The original writes `binlog.N`, native-endian and without checksums: an int with the version, then records. A record
//! is an int with the length of the tube name, the name, 80 bytes about the job (below), and, if the name is not empty,
//! the body with its CR LF. A record without a name is short: it updates or deletes a job that an earlier record
//! introduced. Files are allocated ahead, so zeros follow the last record; a record whose id is 0 is the end.
//!
//! | offset | size | about the job |
//! |---|---|---|
//! | 0 | 8 | id |
//! | 8 | 4 | priority |
//! | 16 | 8 | delay, ns |
//! | 24 | 8 | time to run, ns |
//! | 32 | 4 | length of the body with CR LF |
//! | 40 | 8 | created, ns since 1970 |
//! | 48 | 8 | deadline, ns since 1970 |
//! | 56 | 20 | reserves, timeouts, releases, buries, kicks |
//! | 76 | 1 | state: 0 deleted, 1 ready, 2 reserved, 3 buried, 4 delayed |

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tubes_core::journal::{Counters, JobRecord, LoggedState, StateFields};
use tubes_core::{PARTITIONS, partition_of};

use crate::datadir::{self, DirError};
use crate::format::Record;
use crate::manifest::{Manifest, Topology};
use crate::options::{LogOptions, SyncMode};
use crate::rewrite::Rewriter;

const VERSION: i32 = 7;
const JOB_BYTES: usize = 80;
/// The original's limit; a longer name means that this is no record.
const TUBE_NAME_BYTES_MAX: usize = 200;
/// The largest body that a server accepts, with its CR LF.
const BODY_BYTES_MAX: usize = (1 << 30) + 2;
const NS_PER_S: i64 = 1_000_000_000;
const NS_PER_MS: i64 = 1_000_000;
/// Length of segments that an import writes, in bytes; that of a server without options.
const SEGMENT_BYTES: u64 = 10 * 1024 * 1024;

/// Why an import did not happen. The new directory is then as it was, or not usable as a data directory.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The original still runs, or somebody else holds its lock.
    #[error("{file} is locked: stop the beanstalkd that uses this directory first")]
    Running {
        /// Path of the lock.
        file: String,
    },
    /// The source holds none of the original's files.
    #[error("{dir} holds no beanstalkd files (binlog.N)")]
    NothingThere {
        /// Path of the source.
        dir: String,
    },
    /// A file of another version.
    #[error("{file} has version {version} of beanstalkd's format, and this program reads version 7")]
    Version {
        /// Path of the file.
        file: String,
        /// The version it names.
        version: i32,
    },
    /// A file that no beanstalkd can have left behind.
    #[error("{file} is damaged at offset {offset}: {what}")]
    Damaged {
        /// Path of the file.
        file: String,
        /// Where the record begins, in bytes.
        offset: u64,
        /// What is wrong with it.
        what: String,
    },
    /// The target is not empty.
    #[error("{dir} is not empty: an import needs a directory of its own")]
    NotEmpty {
        /// Path of the target.
        dir: String,
    },
    /// The target cannot be used.
    #[error(transparent)]
    Target(#[from] DirError),
    /// A file cannot be read or written.
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

impl ImportError {
    /// The exit code of a process that ends because of this.
    pub fn exit_code(&self) -> u8 {
        match self {
            ImportError::Running { .. } | ImportError::NotEmpty { .. } | ImportError::Io { .. } => 10,
            ImportError::NothingThere { .. } => 3,
            ImportError::Version { .. } => 12,
            ImportError::Damaged { .. } => 11,
            ImportError::Target(error) => error.exit_code(),
        }
    }
}

/// What an import took over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Import {
    /// Files read.
    pub files: u64,
    /// Records read.
    pub records: u64,
    /// Jobs taken over.
    pub jobs: u64,
    /// The largest id ever given, of deleted jobs too.
    pub highest_id: u64,
    /// A put that the original was killed in the middle of, which it would have dropped too: file and offset.
    pub unfinished: Option<(String, u64)>,
}

/// A job as the original's files tell it.
struct Job {
    created_ms: u64,
    state: StateFields,
    ttr_s: u32,
    tube: Vec<u8>,
    body: Vec<u8>,
}

/// Reads the files of the original in `from` and writes them as a data directory for `topology` to `to`, which is
/// made, or must be empty. Of `options`, boot id and times are used.
///
/// Ids are kept in either mode: those of the original carry no partition, so in multi mode they lie below the
/// manifest's `single_ids_below`, and new ones above it.
///
/// # Errors
///
/// [`ImportError`] by reaction.
pub fn import_beanstalkd(
    from: &Path,
    to: &Path,
    topology: Topology,
    options: &LogOptions,
) -> Result<Import, ImportError> {
    let _lock = lock_source(from)?;
    let files = source_files(from)?;
    if files.is_empty() {
        return Err(ImportError::NothingThere { dir: from.display().to_string() });
    }
    refuse_contents(to)?;
    let mut source = Source::default();
    for (index, path) in files.iter().enumerate() {
        let bytes = std::fs::read(path).map_err(io_error(path, "read"))?;
        source.read_file(path, &bytes, index + 1 == files.len())?;
    }
    datadir::make(to)?;
    // The directory may have changed while the source was read.
    refuse_contents(to)?;
    let target = datadir::begin_import(to, topology, source.next_id())?;
    for slot in 0..target.manifest().slots {
        let options = LogOptions {
            slot,
            generation: 1,
            fingerprint: target.fingerprint(),
            segment_bytes: SEGMENT_BYTES,
            sync: SyncMode::Always,
            ..options.clone()
        };
        let vfs = target.import_slot(slot)?;
        source.write(&vfs, target.manifest(), &options).map_err(io_error(to, "write the log in"))?;
        datadir::write_generation(&vfs, 1).map_err(io_error(to, "write the generation in"))?;
    }
    target.finish_import()?;
    Ok(Import { files: files.len() as u64, jobs: source.jobs.len() as u64, ..source.import })
}

fn io_error<'a>(path: &'a Path, action: &'static str) -> impl FnOnce(io::Error) -> ImportError + 'a {
    move |source| ImportError::Io { file: path.display().to_string(), action, source }
}

/// Takes the original's lock for reading, which its own lock for writing excludes. `None` if it never ran there.
fn lock_source(from: &Path) -> Result<Option<File>, ImportError> {
    let path = from.join("lock");
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error(&path, "open")(source)),
    };
    match rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => {
            Err(ImportError::Running { file: path.display().to_string() })
        }
        Err(errno) => Err(io_error(&path, "lock")(errno.into())),
    }
}

/// The original's files, oldest first.
fn source_files(from: &Path) -> Result<Vec<PathBuf>, ImportError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(from).map_err(io_error(from, "list"))? {
        let entry = entry.map_err(io_error(from, "list"))?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("binlog.")).map(str::parse::<u64>);
        if let Some(Ok(number)) = number {
            files.push((number, entry.path()));
        }
    }
    files.sort();
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

fn refuse_contents(to: &Path) -> Result<(), ImportError> {
    match std::fs::read_dir(to) {
        Ok(mut entries) => match entries.next() {
            Some(_) => Err(ImportError::NotEmpty { dir: to.display().to_string() }),
            None => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(io_error(to, "list")(source)),
    }
}

#[derive(Default)]
struct Source {
    jobs: BTreeMap<u64, Job>,
    buries: u64,
    import: Import,
}

impl Source {
    fn read_file(&mut self, path: &Path, bytes: &[u8], last: bool) -> Result<(), ImportError> {
        let damaged = |offset: usize, what: &str| ImportError::Damaged {
            file: path.display().to_string(),
            offset: offset as u64,
            what: what.to_owned(),
        };
        if bytes.iter().all(|byte| *byte == 0) {
            // Allocated, and never begun.
            return Ok(());
        }
        let version = i32_at(bytes, 0).ok_or_else(|| damaged(0, "it ends within its version"))?;
        if version != VERSION {
            return Err(ImportError::Version { file: path.display().to_string(), version });
        }
        let mut at = 4;
        while bytes[at..].iter().any(|byte| *byte != 0) {
            match self.read_record(&bytes[at..]) {
                Ok(length) => at += length,
                Err(Fault::Unfinished) if last => {
                    self.import.unfinished = Some((path.display().to_string(), at as u64));
                    return Ok(());
                }
                Err(Fault::Unfinished) => return Err(damaged(at, "a record is unfinished, but a later file is there")),
                Err(Fault::Impossible(what)) => return Err(damaged(at, what)),
            }
        }
        Ok(())
    }

    /// Reads the record at the beginning of `bytes` and returns its length.
    fn read_record(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        const CUT: Fault = Fault::Impossible("the file ends within a record");
        let name_bytes = i32_at(bytes, 0).ok_or(CUT)?;
        let name_bytes = usize::try_from(name_bytes).ok().filter(|length| *length <= TUBE_NAME_BYTES_MAX);
        let name_bytes = name_bytes.ok_or(Fault::Impossible("the length of a tube name is impossible"))?;
        let fixed_at = 4 + name_bytes;
        let tube = bytes.get(4..fixed_at).ok_or(CUT)?;
        let fixed = bytes.get(fixed_at..fixed_at + JOB_BYTES).ok_or(CUT)?;
        let behind = &bytes[fixed_at + JOB_BYTES..];
        let id = u64_at(fixed, 0);
        if id == 0 {
            // The original writes name, job and body one after the other: a kill leaves the first of them.
            let nothing_follows = fixed.iter().chain(behind).all(|byte| *byte == 0);
            return Err(if nothing_follows { Fault::Unfinished } else { Fault::Impossible("a job has no id") });
        }
        if !tube.is_empty() && !is_tube_name(tube) {
            return Err(Fault::Impossible("a tube name has bytes that no tube name has"));
        }
        let state = fixed[76];
        let body_bytes = usize::try_from(i32_at(fixed, 32).unwrap_or(-1)).unwrap_or(0);
        let mut length = fixed_at + JOB_BYTES;
        let mut body = None;
        if !tube.is_empty() {
            if !(2..=BODY_BYTES_MAX).contains(&body_bytes) {
                return Err(Fault::Impossible("the length of a body is impossible"));
            }
            let with_end = behind.get(..body_bytes).ok_or(CUT)?;
            if !with_end.ends_with(b"\r\n") {
                let nothing_follows = behind.iter().all(|byte| *byte == 0);
                let fault = Fault::Impossible("a body does not end in CR LF");
                return Err(if nothing_follows { Fault::Unfinished } else { fault });
            }
            body = Some(&with_end[..body_bytes - 2]);
            length += body_bytes;
        }
        self.apply(id, tube, fixed, state, body)?;
        self.import.records += 1;
        self.import.highest_id = self.import.highest_id.max(id);
        Ok(length)
    }

    fn apply(&mut self, id: u64, tube: &[u8], fixed: &[u8], state: u8, body: Option<&[u8]>) -> Result<(), Fault> {
        let delay_s = seconds(i64_at(fixed, 16)).ok_or(Fault::Impossible("a delay is impossible"))?;
        let ttr_s = seconds(i64_at(fixed, 24)).ok_or(Fault::Impossible("a time to run is impossible"))?;
        let state = match state {
            0 => {
                self.jobs.remove(&id);
                return Ok(());
            }
            // Reserved jobs are ready again, as after a restart of the original.
            1 | 2 => LoggedState::Ready,
            3 => LoggedState::Buried,
            4 => LoggedState::Delayed,
            _ => return Err(Fault::Impossible("a job has an unknown state")),
        };
        let due_ms = match state {
            LoggedState::Delayed => milliseconds(i64_at(fixed, 48)).max(1),
            _ => 0,
        };
        let bury_order = match state {
            LoggedState::Buried => {
                self.buries += 1;
                self.buries
            }
            _ => 0,
        };
        let counter = |at| u32_at(fixed, at);
        let state = StateFields {
            state,
            pri: u32_at(fixed, 8),
            delay_s,
            due_ms,
            bury_order,
            counters: Counters {
                reserves: counter(56),
                timeouts: counter(60),
                releases: counter(64),
                buries: counter(68),
                kicks: counter(72),
            },
        };
        match (body, self.jobs.get_mut(&id)) {
            (Some(body), known) => {
                // A job that the original moved to a later file keeps its place among the buried.
                let bury_order = match known {
                    Some(known) if known.state.bury_order != 0 && bury_order != 0 => known.state.bury_order,
                    _ => bury_order,
                };
                let job = Job {
                    created_ms: milliseconds(i64_at(fixed, 40)),
                    state: StateFields { bury_order, ..state },
                    ttr_s: ttr_s.max(1),
                    tube: tube.to_vec(),
                    body: body.to_vec(),
                };
                self.jobs.insert(id, job);
            }
            (None, Some(job)) => job.state = state,
            // Its introduction was in a file that the original has removed since: the job is gone, or comes later.
            (None, None) => {}
        }
        Ok(())
    }

    /// The first id that was never given.
    fn next_id(&self) -> u64 {
        self.import.highest_id.saturating_add(1)
    }

    /// Writes the jobs of the slot that `options` name.
    fn write<V: crate::vfs::Vfs>(&self, vfs: &V, manifest: &Manifest, options: &LogOptions) -> io::Result<()> {
        let next_count = match manifest.topology() {
            Topology::Single => self.next_id(),
            Topology::Multi(_) => self.next_id().div_ceil(PARTITIONS as u64),
        };
        let mut rewriter = Rewriter::new(vfs, options, next_count);
        for (id, job) in self.jobs.iter().filter(|(_, job)| manifest.map[partition_of(&job.tube)] == options.slot) {
            rewriter.push(&Record::Job(JobRecord {
                id: *id,
                created_ms: job.created_ms,
                state: job.state,
                ttr_s: job.ttr_s,
                tube: &job.tube,
                body: &job.body,
            }))?;
        }
        rewriter.finish()
    }
}

/// Why there is no record.
enum Fault {
    /// The original was killed while it wrote it, and nothing follows.
    Unfinished,
    /// It cannot have been written.
    Impossible(&'static str),
}

fn is_tube_name(name: &[u8]) -> bool {
    !name.starts_with(b"-") && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-+/;.$_()".contains(byte))
}

fn seconds(ns: i64) -> Option<u32> {
    u32::try_from(ns / NS_PER_S).ok()
}

fn milliseconds(ns: i64) -> u64 {
    u64::try_from(ns / NS_PER_MS).unwrap_or(0)
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

fn i64_at(bytes: &[u8], at: usize) -> i64 {
    u64_at(bytes, at).cast_signed()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}
