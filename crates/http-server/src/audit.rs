//! What people did, told to whoever keeps it.
//!
//! Owns: one entry for each call of an audited route that was let in, whatever became of it; bounds and loss.
//! Never: stores an entry, sees a body, tells of worker calls (their routes are not audited, W13).
//!
//! A refused key leaves no entry: who has none could fill the log. A call that was let in leaves one even if its client
//! goes away in the middle: what it asked for may have happened.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use tokio::sync::Semaphore;

use crate::access::Caller;
use crate::figures::Figures;
use crate::request_id::RequestId;

/// Most entries that wait for the sink at a time. Beyond it entries are lost, counted and logged: an audit log that
/// does not keep up must not take the memory of all.
pub const AUDIT_WAITING_MAX: usize = 1024;
/// How long an answer waits for its entry, and an entry for the sink.
pub const AUDIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Most characters of a parameter that an entry keeps.
const PARAMETER_CHARS_MAX: usize = 256;

/// One call, for the audit log. The time of it is the sink's.
#[derive(Debug, Clone)]
pub struct AuditEntry {
    /// Who asked.
    pub caller: Caller,
    /// From where. Behind a proxy it is the proxy's address.
    pub from: SocketAddr,
    /// The method.
    pub method: Method,
    /// The route, as in the list, such as `/v1/runs/{id}`.
    pub route: Arc<str>,
    /// What stands in the path for its parts, in order, each cut at 256 characters.
    pub parameters: Vec<(String, String)>,
    /// What the call ended with; `None`: the client left before the end, so it is not known.
    pub status: Option<StatusCode>,
    /// By which the log says more.
    pub request_id: RequestId,
}

/// An entry could not be kept. The text is for the log.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct AuditFailed(pub String);

/// What [`AuditSink::record`] gives.
pub type Recording<'a> = Pin<Box<dyn Future<Output = Result<(), AuditFailed>> + Send + 'a>>;

/// Keeps entries.
pub trait AuditSink: Send + Sync + 'static {
    /// Keeps an entry, and is done when it is kept: the answer to the call waits for it.
    fn record(&self, entry: AuditEntry) -> Recording<'_>;
}

/// Keeps nothing: for a server whose routes are not audited.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoAudit;

impl AuditSink for NoAudit {
    fn record(&self, _: AuditEntry) -> Recording<'_> {
        Box::pin(async { Ok(()) })
    }
}

/// The way to the sink.
pub(crate) struct Recorder {
    sink: Arc<dyn AuditSink>,
    waiting: Arc<Semaphore>,
    figures: Arc<Figures>,
}

impl Recorder {
    pub(crate) fn new(sink: Arc<dyn AuditSink>, figures: Arc<Figures>) -> Recorder {
        Recorder { sink, waiting: Arc::new(Semaphore::new(AUDIT_WAITING_MAX)), figures }
    }

    /// Begins the entry of a call. It is recorded by [`Begun::end`], or when it is dropped.
    pub(crate) fn begin(self: &Arc<Recorder>, entry: AuditEntry) -> Begun {
        Begun { recorder: Arc::clone(self), entry: Some(entry) }
    }

    /// Waits until no entry waits for the sink; at most [`AUDIT_TIMEOUT`], which is what an entry may take.
    pub(crate) async fn settled(&self) {
        let all = u32::try_from(AUDIT_WAITING_MAX).expect("a small constant");
        // Both failures mean that there is nothing to wait for any more: the semaphore is never closed.
        let _ = tokio::time::timeout(AUDIT_TIMEOUT, self.waiting.acquire_many(all)).await;
    }

    /// In a task of its own, so that it ends whatever becomes of the connection.
    fn record(&self, entry: AuditEntry) -> Option<tokio::task::JoinHandle<()>> {
        let lost = |figures: &Figures, entry: &AuditEntry, why: &str| {
            Figures::add(&figures.audit_lost);
            let AuditEntry { caller, method, route, request_id, .. } = entry;
            tracing::error!(%caller, %method, %route, %request_id, "an audit entry is lost: {why}");
        };
        let Ok(permit) = Arc::clone(&self.waiting).try_acquire_owned() else {
            lost(&self.figures, &entry, "too many wait for the audit log");
            return None;
        };
        // A call may be dropped because its runtime ends.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            lost(&self.figures, &entry, "the process ends");
            return None;
        };
        let (sink, figures) = (Arc::clone(&self.sink), Arc::clone(&self.figures));
        Some(runtime.spawn(async move {
            match tokio::time::timeout(AUDIT_TIMEOUT, sink.record(entry.clone())).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => lost(&figures, &entry, &error.to_string()),
                Err(_) => lost(&figures, &entry, "the audit log takes too long"),
            }
            drop(permit);
        }))
    }
}

/// A call that is under way.
pub(crate) struct Begun {
    recorder: Arc<Recorder>,
    entry: Option<AuditEntry>,
}

impl Begun {
    /// The call ended with `status`; waits until that is recorded or lost.
    pub(crate) async fn end(mut self, status: StatusCode) {
        let Some(mut entry) = self.entry.take() else { return };
        entry.status = Some(status);
        if let Some(recording) = self.recorder.record(entry) {
            // It fails only by a panic of the sink, which the task's own end has logged.
            if let Err(error) = recording.await {
                Figures::add(&self.recorder.figures.audit_lost);
                tracing::error!("an audit entry is lost: {error}");
            }
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.recorder.record(entry);
        }
    }
}

/// A parameter as an entry keeps it.
pub(crate) fn cut(text: &str) -> String {
    text.chars().take(PARAMETER_CHARS_MAX).collect()
}
