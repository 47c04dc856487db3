//! How what runs for this member is stopped when its identity ends.
//!
//! Owns: the stops that parts have registered, by name, and that each is called whatever another one does.
//! Never: knows what runs.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use cluster_core::MemberId;

type Stop = Arc<dyn Fn(MemberId) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// All stops. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Executions(Arc<Mutex<Vec<(String, Stop)>>>);

impl std::fmt::Debug for Executions {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Executions")
    }
}

impl Executions {
    /// Adds a stop; one of the same name is replaced.
    pub(crate) fn add<F, Fut>(&self, name: &str, stop: F)
    where
        F: Fn(MemberId) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let stop: Stop = Arc::new(move |retired| Box::pin(stop(retired)));
        let mut stops = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stops.retain(|(other, _)| other != name);
        stops.push((name.to_owned(), stop));
    }

    /// Calls all at once and waits for all. One that panics counts as having stopped nothing: it is called again until it
    /// does not, for an execution that runs on under a retired identity must keep the next one from starting work.
    pub(crate) async fn stop(&self, retired: MemberId) {
        /// Pause before a stop that failed is called again.
        const AGAIN: std::time::Duration = std::time::Duration::from_millis(200);
        let stops = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut all = tokio::task::JoinSet::new();
        for (name, stop) in stops {
            all.spawn(async move {
                while let Err(error) = tokio::spawn(stop(retired)).await {
                    tracing::error!("stopping {name} failed: {error}");
                    tokio::time::sleep(AGAIN).await;
                }
            });
        }
        while all.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn all_are_stopped_though_one_fails_at_first() {
        let executions = Executions::default();
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        executions.add("fails", move |_| {
            let count = counted.fetch_add(1, Ordering::SeqCst);
            async move { assert!(count > 0, "on purpose") }
        });
        let stopped = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&stopped);
        executions.add("stops", move |retired| {
            *seen.lock().unwrap() = Some(retired);
            async {}
        });
        executions.stop(MemberId(9)).await;
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        assert_eq!(*stopped.lock().unwrap(), Some(MemberId(9)));
    }
}
