//! What runs on the sync thread.
//!
//! Owns: [`SyncJob`], the steps that block: syncing a segment, giving the next one its header and name, removing old
//! ones.
//! Never: retries a step, or touches what the event loop's side of the log knows.

use std::io;

use crate::error::LogErrorKind;
use crate::format::SEGMENT_HEADER_BYTES;
use crate::vfs::{Vfs, VfsFile};

/// One blocking step.
#[derive(Debug)]
pub(crate) enum Step<F> {
    /// Sync a segment up to `offset`.
    Sync { file: F, name: String, offset: u64 },
    /// Give an allocated file its header, on disk before the name: a file with a number always has a valid header.
    Begin { file: F, spare: String, name: String, header: Box<[u8; SEGMENT_HEADER_BYTES]>, durably: bool },
    /// Bring the names of later segments to the disk before older ones go; only in mode `never` are they not yet there.
    SyncNames { name: String },
    /// Remove a segment; each removal is on disk before the next, or a power loss could leave a gap in the numbers.
    Remove { name: String },
}

/// Work for another thread: [`SyncJob::run`] there, and its result to [`Log::end_sync`](crate::Log::end_sync).
#[derive(Debug)]
pub struct SyncJob<V: Vfs> {
    pub(crate) id: u64,
    pub(crate) vfs: V,
    pub(crate) steps: Vec<Step<V::File>>,
}

/// A step that failed.
#[derive(Debug)]
pub struct SyncError {
    pub(crate) kind: LogErrorKind,
    pub(crate) file: String,
    pub(crate) offset: u64,
    /// What the system said.
    pub source: io::Error,
}

impl<V: Vfs> SyncJob<V> {
    /// Number of the job, for [`Log::end_sync`](crate::Log::end_sync).
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Carries the steps out, in order. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// The first step that failed; those behind it were not begun.
    pub fn run(self) -> Result<(), SyncError> {
        for step in &self.steps {
            run_step(&self.vfs, step)?;
        }
        Ok(())
    }
}

pub(crate) fn run_step<V: Vfs>(vfs: &V, step: &Step<V::File>) -> Result<(), SyncError> {
    let (result, kind, name, offset) = match step {
        Step::Sync { file, name, offset } => (file.sync_data(), LogErrorKind::Sync, name, *offset),
        Step::Begin { file, spare, name, header, durably } => {
            (begin(vfs, file, spare, name, &header[..], *durably), LogErrorKind::Begin, name, 0)
        }
        Step::SyncNames { name } => (vfs.sync_dir(), LogErrorKind::Drop, name, 0),
        Step::Remove { name } => (vfs.remove(name).and_then(|()| vfs.sync_dir()), LogErrorKind::Drop, name, 0),
    };
    result.map_err(|source| SyncError { kind, file: vfs.display(name), offset, source })
}

fn begin<V: Vfs>(vfs: &V, file: &V::File, spare: &str, name: &str, header: &[u8], durably: bool) -> io::Result<()> {
    file.write_at(0, header)?;
    if durably {
        file.sync_data()?;
    }
    vfs.rename(spare, name)?;
    if durably && !planted_bug!(NameUnsynced) {
        vfs.sync_dir()?;
    }
    Ok(())
}
