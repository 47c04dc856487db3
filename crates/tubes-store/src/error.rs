//! Why a log cannot be opened, or cannot go on.
//!
//! Owns: one variant per reaction, and the exit code that belongs to it.

use std::io;

/// Why a log was not opened. Nothing was changed on disk unless the text says so.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// What was synced is no longer there, or has changed: only a repair or a backup helps.
    #[error("{file} is damaged at offset {offset}: {what}")]
    Damaged {
        /// Path of the segment.
        file: String,
        /// Where, in bytes from its beginning.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// Written by a newer program, or for another data directory, slot or topology.
    #[error("{file} does not belong here: {what}")]
    Incompatible {
        /// Path of the segment or manifest.
        file: String,
        /// Both sides of the difference.
        what: String,
    },
    /// The directory, a file of it or the space for one cannot be had.
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

impl OpenError {
    /// The exit code of a process that ends because of this.
    pub fn exit_code(&self) -> u8 {
        match self {
            OpenError::Damaged { .. } => 11,
            OpenError::Incompatible { .. } => 12,
            OpenError::Io { .. } => 10,
        }
    }
}

/// What failed when a log stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogErrorKind {
    /// A write into allocated space.
    Write,
    /// A sync of a segment.
    Sync,
    /// Beginning the next segment: its name, or the sync of the directory.
    Begin,
    /// Dropping an old segment.
    Drop,
    /// Space that had been set aside is missing; a defect of the accounting.
    Space,
}

impl LogErrorKind {
    /// The word for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            LogErrorKind::Write => "write",
            LogErrorKind::Sync => "sync",
            LogErrorKind::Begin => "begin a segment at",
            LogErrorKind::Drop => "drop",
            LogErrorKind::Space => "find space in",
        }
    }
}

/// The log failed and accepts nothing more: no reply may claim success, and the process must end with exit code 10.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to {} {file} at offset {offset}: {message} (errno {errno})", kind.name())]
pub struct LogError {
    /// Path of the segment.
    pub file: String,
    /// Where the write or the unsynced part began, in bytes.
    pub offset: u64,
    /// The system's number for the error, 0 if it has none.
    pub errno: i32,
    /// What was attempted.
    pub kind: LogErrorKind,
    /// The system's words for the error.
    pub message: String,
}

impl LogError {
    pub(crate) fn new(kind: LogErrorKind, file: String, offset: u64, source: &io::Error) -> LogError {
        LogError { file, offset, errno: source.raw_os_error().unwrap_or(0), kind, message: source.to_string() }
    }

    /// Exit code of a process that ends because of this.
    pub fn exit_code(&self) -> u8 {
        10
    }
}
