//! Why a server did not start, or ended early; each with its exit code.

use std::io;

use crate::message::Slot;
use crate::rules::Failure;

/// Why [`crate::supervise`] returned without an orderly stop.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// This system lacks what the mode is built on.
    #[error("several processes need {facility}, which this system lacks; one process works everywhere")]
    Unsupported {
        /// What is missing.
        facility: &'static str,
    },
    /// The plan contradicts itself.
    #[error("{0}")]
    Plan(String),
    /// A lock or the folder of locks.
    #[cfg(target_os = "linux")]
    #[error(transparent)]
    Lock(#[from] crate::lock::LockError),
    /// A slot did not become ready at the first start; no process is left.
    #[error("{place} did not start: it {failure}")]
    StartFailed {
        /// Which slot.
        place: Slot,
        /// How it ended.
        failure: Failure,
    },
    /// A slot has failed, and the server was to stop then.
    #[error("{place} has failed: it {failure}")]
    SlotFailed {
        /// Which slot.
        place: Slot,
        /// How it ended last.
        failure: Failure,
    },
    /// The server was told to stop, but a slot did not stop in order.
    #[error("{place} did not stop in order: it {failure}")]
    StoppedBadly {
        /// Which slot.
        place: Slot,
        /// How it ended.
        failure: Failure,
    },
    /// What the mode is built on is there, but failed.
    #[error("failed to use {facility}: {source}")]
    Facility {
        /// What was used.
        facility: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Another facility of the system failed.
    #[error("failed to {action}: {source}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl SuperviseError {
    /// Exit code of a process that ends because of this; the codes are those of the whole program.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            SuperviseError::Unsupported { .. } | SuperviseError::Plan(_) => 5,
            #[cfg(target_os = "linux")]
            SuperviseError::Lock(_) => 10,
            SuperviseError::Facility { .. } | SuperviseError::System { .. } => 10,
            SuperviseError::StartFailed { failure, .. }
            | SuperviseError::SlotFailed { failure, .. }
            | SuperviseError::StoppedBadly { failure, .. } => failure.exit_code(),
        }
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn system<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> SuperviseError {
        move |source| SuperviseError::System { action, source: source.into() }
    }
}
