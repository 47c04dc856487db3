//! What an operator can ask a running server, and how.
//!
//! Owns: the snapshot, and the requests on the status socket.
//! Never: decides; the supervisor answers from its own state, not from process numbers. Says what a figure of a page
//! means: the plan names those that are shown.
//!
//! A request is one line, `status` or `restart-slot ROLE SLOT`; the answer is text up to the end of the stream: JSON, or
//! `ok` or `refused: …`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::message::{Role, Slot};
use crate::rules::{Condition, Failure};

/// Longest request line.
#[cfg(target_os = "linux")]
pub(crate) const REQUEST_BYTES_MAX: usize = 64;

/// A snapshot of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// What the caller of the supervisor has to say of the server ([`crate::Plan::about`]).
    pub about: BTreeMap<String, String>,
    /// Process number of the supervisor.
    pub pid: u32,
    /// Milliseconds since the server started.
    pub uptime_ms: u64,
    /// Whether clients are served: all slots have been ready once, and no stop has begun.
    pub serving: bool,
    /// Whether the stop has begun.
    pub stopping: bool,
    /// Whether new jobs are being refused.
    pub draining: bool,
    /// Whether no process accepts a new job any more.
    pub drained: bool,
    /// Processor time of the supervisor, user, in microseconds.
    pub cpu_user_us: u64,
    /// As above, system.
    pub cpu_system_us: u64,
    /// Processor time of all processes that have ended, user, in microseconds.
    pub ended_cpu_user_us: u64,
    /// As above, system.
    pub ended_cpu_system_us: u64,
    /// All slots, in the order of the topology.
    pub processes: Vec<ProcessStatus>,
}

/// A slot in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// What its process does.
    pub role: Role,
    /// Its number within the role.
    pub slot: u16,
    /// Of the process, or of the last one.
    pub generation: u32,
    /// What the slot is doing.
    pub condition: Condition,
    /// Of the process, if there is one. For people; never a proof of identity.
    pub pid: Option<u32>,
    /// Restarts since the server started.
    pub restarts: u64,
    /// Why the slot failed, or its last process ended.
    pub failure: Option<Failure>,
    /// Processes of the slot that a failed write or sync of the log has ended.
    pub log_failures: u64,
    /// Pings that await an answer.
    pub unanswered_pings: u64,
    /// Length of the sync of the log that was going on at the last answer, in milliseconds.
    pub in_sync_ms: Option<u64>,
    /// Messages that wait because the process does not read its control channel.
    pub control_backlog: u64,
    /// Counters of the slot's page, by name ([`crate::Plan::figures`]).
    pub figures: BTreeMap<String, u64>,
}

/// Why a request on the status socket was not answered as asked.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// No server is there, or it did not answer in time.
    #[error("failed to reach the server at {path}: {source}")]
    Unreachable {
        /// The socket.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The server refused the request.
    #[error("{0}")]
    Refused(String),
    /// The answer is not understood: another version of the program.
    #[error("the answer of the server at {path} is not understood")]
    NotUnderstood {
        /// The socket.
        path: String,
    },
}

impl Status {
    /// The slot `place`, if the topology has it.
    #[must_use]
    pub fn process(&self, place: Slot) -> Option<&ProcessStatus> {
        self.processes.iter().find(|process| process.role == place.role && process.slot == place.slot)
    }
}

#[cfg(target_os = "linux")]
pub use client::{query, restart_slot};

#[cfg(target_os = "linux")]
mod client {
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::time::Duration;

    use super::{Status, StatusError};
    use crate::message::Slot;

    /// An answer takes a supervisor microseconds; a stopped one takes for ever.
    const TIMEOUT: Duration = Duration::from_secs(5);
    /// An answer has some 1,500 bytes per slot; the largest topology has some 1,100 slots.
    const ANSWER_BYTES_MAX: u64 = 8 << 20;

    /// Asks the server at the status socket `path` how it is.
    ///
    /// # Errors
    ///
    /// [`StatusError`].
    pub fn query(path: &Path) -> Result<Status, StatusError> {
        let answer = ask(path, "status")?;
        serde_json::from_str(&answer).map_err(|_| StatusError::NotUnderstood { path: path.display().to_string() })
    }

    /// Asks the server at the status socket `path` to try a failed slot again. Its success shows in [`query`].
    ///
    /// # Errors
    ///
    /// [`StatusError`].
    pub fn restart_slot(path: &Path, place: Slot) -> Result<(), StatusError> {
        let answer = ask(path, &format!("restart-slot {} {}", place.role, place.slot))?;
        match answer.trim_end() {
            "ok" => Ok(()),
            refusal => Err(StatusError::Refused(refusal.strip_prefix("refused: ").unwrap_or(refusal).to_owned())),
        }
    }

    fn ask(path: &Path, request: &str) -> Result<String, StatusError> {
        let ask = || {
            let mut stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            stream.write_all(format!("{request}\n").as_bytes())?;
            stream.shutdown(Shutdown::Write)?;
            let mut answer = String::new();
            stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
            if answer.is_empty() { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(answer) }
        };
        ask().map_err(|source: std::io::Error| StatusError::Unreachable { path: path.display().to_string(), source })
    }
}
