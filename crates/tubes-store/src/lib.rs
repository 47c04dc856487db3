//! The log of a queue server and the directory it lives in.
//!
//! Owns: the bytes on disk ([`mod@format`]), the writer ([`Log`]) with its batches, space and compaction,
//! recovery, checking and repair, the data directory, and the import of beanstalkd's files.
//! Never: decides what a command means, reads a clock, or goes on after a failed write or sync. Files are reached only
//! through a [`Vfs`], so that the simulator can put its own disk below the same code.
//!
//! The event loop appends records through [`tubes_core::journal::Journal`], and at the end of each turn calls
//! [`Log::flush`], then [`Log::begin_sync`], whose job it runs on another thread and hands back to [`Log::end_sync`].

#[macro_use]
pub mod planted;

pub mod check;
mod compact;
pub mod datadir;
mod error;
pub mod format;
pub mod import;
mod log;
pub mod manifest;
mod options;
mod platform;
mod reader;
mod reclaim;
mod recover;
pub mod repair;
pub mod reshard;
mod rewrite;
mod segment;
mod space;
mod sync;
pub mod vfs;

pub use error::{LogError, LogErrorKind, OpenError};
pub use log::{Figures, Log, PENDING_BYTES_MAX};
pub use options::{LogOptions, SEGMENT_BYTES_MIN, SyncMode};
pub use recover::{RecoveryReport, SKIPPED_IDS, TornTail, recover};
pub use sync::{SyncError, SyncJob};
pub use vfs::{Access, DiskVfs, Vfs, VfsFile};
