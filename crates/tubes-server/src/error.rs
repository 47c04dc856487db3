//! Why a server did not start, or ended early; each with its exit code.

use std::io;
use tubes_store::datadir::DirError;
use tubes_store::{LogError, OpenError};

/// Why [`crate::serve`] returned without an orderly stop.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another process listens there.
    #[error("failed to listen on {address}: the address is in use")]
    AddressInUse {
        /// As given.
        address: String,
    },
    /// The address cannot be listened on for another reason.
    #[error("failed to listen on {address}: {source}")]
    Listen {
        /// As given.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// A path to listen on is taken by something that is not a socket.
    #[error("failed to listen on {path}: it exists and is not a socket; remove it or choose another path")]
    NotASocket {
        /// The path.
        path: String,
    },
    /// What was inherited by socket activation cannot be served.
    #[error("inherited descriptor {descriptor} {what}; a listening TCP or unix stream socket is needed")]
    Inherited {
        /// Its number.
        descriptor: i32,
        /// What is wrong with it.
        what: String,
    },
    /// There is no such account or group.
    #[error("{kind} {name:?} is not known on this machine")]
    UnknownAccount {
        /// `user` or `group`.
        kind: &'static str,
        /// As given.
        name: String,
    },
    /// The switch to another account did not succeed, or could be undone.
    #[error("failed to switch to user {user:?}: {what}")]
    Privileges {
        /// As given.
        user: String,
        /// Which step failed and why.
        what: String,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirError),
    /// The log cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The log failed while serving.
    #[error("the log failed: {0}")]
    Log(#[from] LogError),
    /// Several processes were asked for where they cannot be.
    #[cfg(not(target_os = "linux"))]
    #[error("several processes need {facility}, which this system lacks; one process works everywhere")]
    Unsupported {
        /// What is missing.
        facility: &'static str,
    },
    /// The processes could not be started or kept.
    #[cfg(target_os = "linux")]
    #[error(transparent)]
    Supervise(#[from] supervisor::SuperviseError),
    /// A process was not started as it should be.
    #[cfg(target_os = "linux")]
    #[error(transparent)]
    Child(#[from] supervisor::ChildError),
    /// A facility of the system is missing or failed.
    #[error("failed to {action}: {source}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl ServeError {
    /// Exit code of a process that ends because of this; the codes are those of the whole program.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            ServeError::AddressInUse { .. } => 111,
            ServeError::UnknownAccount { .. } => 33,
            ServeError::Directory(error) => error.exit_code(),
            ServeError::Open(error) => error.exit_code(),
            ServeError::Log(error) => error.exit_code(),
            #[cfg(not(target_os = "linux"))]
            ServeError::Unsupported { .. } => 5,
            #[cfg(target_os = "linux")]
            ServeError::Supervise(error) => error.exit_code(),
            #[cfg(target_os = "linux")]
            ServeError::Child(error) => error.exit_code(),
            ServeError::Listen { .. } | ServeError::Inherited { .. } => 5,
            ServeError::NotASocket { .. } | ServeError::System { .. } | ServeError::Privileges { .. } => 10,
        }
    }

    pub(crate) fn system(action: &'static str, source: impl Into<io::Error>) -> Self {
        ServeError::System { action, source: source.into() }
    }
}
