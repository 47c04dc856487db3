//! What an operator can ask a running server, and how.
//!
//! Owns: the snapshot, its text for Prometheus, and the requests on the status socket.
//! Never: decides; the supervisor answers from its own state, not from process numbers.
//!
//! A request is one line, `status`, `metrics`, `restart-slot ROLE SLOT`; the answer is text up to the end of the stream:
//! JSON, Prometheus text, or `ok` or `refused: …`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::message::{Role, Slot};
use crate::plan::ShownFigure;
use crate::rules::{Condition, Failure};

/// Longest request line.
#[cfg(target_os = "linux")]
pub(crate) const REQUEST_BYTES_MAX: usize = 64;

/// A snapshot of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
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
    /// All slots: owners, then frontends.
    pub processes: Vec<ProcessStatus>,
}

/// A slot in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Owner or frontend.
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
    /// Pings that await an answer.
    pub unanswered_pings: u64,
    /// Length of the sync of the log that was going on at the last answer, in milliseconds.
    pub in_sync_ms: Option<u64>,
    /// Messages that wait because the process does not read its control channel.
    pub control_backlog: u64,
    /// What the slot's processes have counted, by name; see [`crate::ShownFigure`].
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
    /// The supervisor's figures as text for Prometheus; `shown` tells what stands in [`ProcessStatus::figures`].
    #[must_use]
    pub fn to_prometheus(&self, shown: &[ShownFigure]) -> String {
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, samples: &mut dyn Iterator<Item = (String, u64)>| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let one = |value: u64| std::iter::once((String::new(), value));
        family("tenure_uptime_seconds", "gauge", "Time since the start.", &mut one(self.uptime_ms / 1000));
        family("tenure_serving", "gauge", "1 while clients are served.", &mut one(self.serving.into()));
        family("tenure_draining", "gauge", "1 while new jobs are refused.", &mut one(self.draining.into()));
        family("tenure_drained", "gauge", "1 when no process accepts a job.", &mut one(self.drained.into()));
        let labels = |process: &ProcessStatus| format!("{{role=\"{}\",slot=\"{}\"}}", process.role, process.slot);
        let mut each = |name: &str, kind: &str, help: &str, value: &dyn Fn(&ProcessStatus) -> u64| {
            let mut samples = self.processes.iter().map(|process| (labels(process), value(process)));
            family(name, kind, help, &mut samples);
        };
        each("tenure_process_ready", "gauge", "1 while the slot serves.", &|process| {
            u64::from(process.condition == Condition::Ready)
        });
        each("tenure_process_failed", "gauge", "1 when the slot is not tried again.", &|process| {
            u64::from(process.condition == Condition::Failed)
        });
        each("tenure_process_generation", "gauge", "Which start of the slot this is.", &|process| {
            u64::from(process.generation)
        });
        each("tenure_process_restarts_total", "counter", "Restarts of the slot.", &|process| process.restarts);
        each("tenure_process_unanswered_pings", "gauge", "Pings without an answer.", &|process| {
            process.unanswered_pings
        });
        each("tenure_process_sync_milliseconds", "gauge", "Length of the sync of the log going on.", &|process| {
            process.in_sync_ms.unwrap_or(0)
        });
        each(
            "tenure_process_control_backlog",
            "gauge",
            "Control messages that the process does not read.",
            &|process| process.control_backlog,
        );
        for figure in shown {
            each(&format!("tenure_{}_total", figure.name), "counter", figure.help, &|process| {
                process.figures.get(figure.name).copied().unwrap_or(0)
            });
        }
        text
    }

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
    /// An answer has some 300 bytes per slot.
    const ANSWER_BYTES_MAX: u64 = 4 << 20;

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
