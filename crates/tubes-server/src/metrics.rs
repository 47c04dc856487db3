//! Figures for Prometheus: what is shown, as which text, over which small HTTP listener (`--metrics`).
//!
//! Owns: the names of figures, the snapshot they are taken from, the text, and the listener with its thread.
//! Never: runs on the thread that serves clients or supervises processes; it asks that thread, and an answer that does
//! not come in time is an answer too. Counts anything itself.
//!
//! ```text
//!   scraper ── GET /metrics ──> http (a thread of its own) ── question ──> the loop of single mode, by its waker
//!                                      │                      └─ or ─────> the supervisor, by the status socket
//!                                      └─ text of a Snapshot
//! ```

mod http;
pub(crate) mod name;
mod request;
mod text;

pub(crate) use http::{DESCRIPTORS, Endpoint};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// How long the loop of single mode may take to answer: some hundred of its longest turns.
const ANSWER_TIME: Duration = Duration::from_secs(3);

/// A server at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// What does not change: the keys are in [`name`].
    pub(crate) about: BTreeMap<String, String>,
    pub(crate) uptime_ms: u64,
    pub(crate) is_serving: bool,
    pub(crate) is_stopping: bool,
    pub(crate) is_draining: bool,
    pub(crate) is_drained: bool,
    /// Of processes that have ended, user and system.
    pub(crate) ended_cpu_us: (u64, u64),
    pub(crate) processes: Vec<Process>,
}

/// A slot at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Process {
    pub(crate) role: &'static str,
    pub(crate) slot: u16,
    /// One of [`name::CONDITIONS`]; `None` for what is not supervised.
    pub(crate) condition: Option<&'static str>,
    /// By the names of [`name`]; what a process does not have is missing.
    pub(crate) figures: BTreeMap<String, u64>,
}

/// What is fixed for the life of a server, for status and metrics.
pub(crate) fn about(mode: &str, instance: &str, log: Option<&crate::LogSettings>) -> BTreeMap<String, String> {
    use tubes_store::SyncMode;
    let (level, survives) = match log {
        None => ("none", "nothing: jobs are in memory only"),
        Some(log) => (
            match log.sync {
                SyncMode::Never => "never",
                SyncMode::Interval(_) => "interval",
                SyncMode::Always => "always",
            },
            crate::persistence::survives(log.sync),
        ),
    };
    let mut about: BTreeMap<String, String> = [
        (name::VERSION, env!("CARGO_PKG_VERSION")),
        (name::MODE, mode),
        (name::INSTANCE, instance),
        (name::ACK_LEVEL, level),
        (name::ACK_SURVIVES, survives),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect();
    if let Some(log) = log {
        about.insert(name::DIRECTORY.to_owned(), log.directory.display().to_string());
        if let SyncMode::Interval(interval_ns) = log.sync {
            about.insert(name::SYNC_INTERVAL_MS.to_owned(), (interval_ns / 1_000_000).to_string());
        }
    }
    about
}

/// The side of the loop that is asked.
#[derive(Debug)]
pub(crate) struct Asked {
    is_asked: Arc<AtomicBool>,
    answers: SyncSender<Snapshot>,
}

/// The side of the thread that asks.
pub(crate) struct Asking {
    is_asked: Arc<AtomicBool>,
    waker: Arc<mio::Waker>,
    answers: Receiver<Snapshot>,
}

/// Ties a loop and the thread that asks it; `waker` wakes the loop.
pub(crate) fn questions(waker: Arc<mio::Waker>) -> (Asking, Asked) {
    let is_asked = Arc::new(AtomicBool::new(false));
    let (sender, answers) = sync_channel(1);
    (Asking { is_asked: is_asked.clone(), waker, answers }, Asked { is_asked, answers: sender })
}

impl Asking {
    /// The present snapshot.
    pub(crate) fn ask(&mut self) -> Result<Snapshot, String> {
        // An answer that came too late for its question.
        while self.answers.try_recv().is_ok() {}
        self.is_asked.store(true, Ordering::Release);
        self.waker.wake().map_err(|error| error.to_string())?;
        self.answers
            .recv_timeout(ANSWER_TIME)
            .map_err(|_| format!("the server has not answered for {} s", ANSWER_TIME.as_secs()))
    }
}

impl Asked {
    /// Answers, if a question is there. The loop is called for this after its waker has woken it.
    pub(crate) fn answer(&self, snapshot: impl FnOnce() -> Snapshot) {
        if self.is_asked.swap(false, Ordering::Acquire) {
            // Full if an answer came too late and nobody has taken it; the next question takes it away.
            let _ = self.answers.try_send(snapshot());
        }
    }
}

/// The figures of a supervised server as a scraper reads them; for who has asked its status socket.
#[cfg(target_os = "linux")]
#[must_use]
pub fn text_of(status: supervisor::Status) -> String {
    text::exposition(&status.into())
}

/// The snapshot that a supervisor tells.
#[cfg(target_os = "linux")]
impl From<supervisor::Status> for Snapshot {
    fn from(status: supervisor::Status) -> Snapshot {
        use supervisor::rules::Condition;
        let own = Process {
            role: "supervisor",
            figures: [(name::CPU_USER_US, status.cpu_user_us), (name::CPU_SYSTEM_US, status.cpu_system_us)]
                .map(|(key, value)| (key.to_owned(), value))
                .into(),
            ..Process::default()
        };
        let of_slot = |process: supervisor::ProcessStatus| {
            let mut figures = process.figures;
            figures.extend(
                [
                    (name::UP, process.pid.is_some().into()),
                    (name::GENERATION, process.generation.into()),
                    (name::RESTARTS, process.restarts),
                    (name::UNANSWERED_PINGS, process.unanswered_pings),
                    (name::CONTROL_BACKLOG, process.control_backlog),
                ]
                .map(|(key, value)| (key.to_owned(), value)),
            );
            // Without a log there are no segments, and nothing of a log is shown.
            if figures.get(name::LOG_CURRENT_SEGMENT).is_some_and(|number| *number > 0) {
                figures.insert(name::LOG_WRITE_FAILURES.to_owned(), process.log_failures);
                figures.insert(name::LOG_IN_SYNC_MS.to_owned(), process.in_sync_ms.unwrap_or(0));
            } else {
                figures.retain(|key, _| !key.starts_with(name::LOG_PREFIX));
            }
            Process {
                role: process.role.name(),
                slot: process.slot,
                condition: Some(match process.condition {
                    Condition::Down => "down",
                    Condition::Starting => "starting",
                    Condition::Ready => "ready",
                    Condition::Ending => "ending",
                    Condition::Failed => "failed",
                }),
                figures,
            }
        };
        Snapshot {
            about: status.about,
            uptime_ms: status.uptime_ms,
            is_serving: status.serving,
            is_stopping: status.stopping,
            is_draining: status.draining,
            is_drained: status.drained,
            ended_cpu_us: (status.ended_cpu_user_us, status.ended_cpu_system_us),
            processes: std::iter::once(own).chain(status.processes.into_iter().map(of_slot)).collect(),
        }
    }
}
