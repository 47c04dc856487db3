//! What the parts above have the cluster call: periodic work, ticks of the leader, requests, dropped caches.
//!
//! Owns: the hooks by name, and that each fails alone.
//! Never: decides when.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;
type Hook<T> = Arc<dyn Fn(T) -> Running + Send + Sync>;
type Named<T> = Vec<(String, Hook<T>)>;

/// Hooks of one kind. Clones are the same.
pub(crate) struct Hooks<T> {
    kind: &'static str,
    hooks: Arc<Mutex<Named<T>>>,
    running: Arc<Mutex<BTreeSet<String>>>,
}

impl<T> Clone for Hooks<T> {
    fn clone(&self) -> Self {
        Self { kind: self.kind, hooks: Arc::clone(&self.hooks), running: Arc::clone(&self.running) }
    }
}

impl<T> fmt::Debug for Hooks<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Hooks").field(&self.kind).finish()
    }
}

impl<T: Clone + Send + 'static> Hooks<T> {
    pub(crate) fn new(kind: &'static str) -> Self {
        Self { kind, hooks: Arc::default(), running: Arc::default() }
    }

    /// Adds a hook; one of the same name is replaced.
    pub(crate) fn add<F, Fut>(&self, name: &str, hook: F)
    where
        F: Fn(T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let hook: Hook<T> = Arc::new(move |argument| Box::pin(hook(argument)));
        let mut hooks = lock(&self.hooks);
        hooks.retain(|(other, _)| other != name);
        hooks.push((name.to_owned(), hook));
    }

    /// Calls all, each on a task of its own, and waits for none. One that is still busy with its last call is passed over.
    pub(crate) fn call(&self, argument: &T) {
        for (name, hook) in lock(&self.hooks).clone() {
            if !lock(&self.running).insert(name.clone()) {
                tracing::debug!("{} {name} is still busy", self.kind);
                continue;
            }
            let (kind, running, work) = (self.kind, Arc::clone(&self.running), hook(argument.clone()));
            tokio::spawn(async move {
                if let Err(error) = tokio::spawn(work).await {
                    tracing::error!("{kind} {name} failed: {error}");
                }
                lock(&running).remove(&name);
            });
        }
    }

    /// Calls the hook of this name and waits for it. False: there is none. Its panic is logged.
    pub(crate) async fn call_one(&self, name: &str, argument: T) -> bool {
        let found = lock(&self.hooks).iter().find(|(other, _)| other == name).map(|(_, hook)| Arc::clone(hook));
        let Some(hook) = found else { return false };
        if let Err(error) = tokio::spawn(hook(argument)).await {
            tracing::error!("{} {name} failed: {error}", self.kind);
        }
        true
    }
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn each_item_fails_alone_and_the_same_name_replaces() {
        // C8.
        let hooks = Hooks::<u32>::new("work");
        let (done, mut dones) = mpsc::channel(8);
        hooks.add("fails", |_| async { panic!("on purpose") });
        for factor in [1, 10] {
            let done = done.clone();
            hooks.add("counts", move |number| {
                let done = done.clone();
                async move { done.send(number * factor).await.unwrap() }
            });
        }
        hooks.call(&4);
        assert_eq!(dones.recv().await, Some(40));
        assert!(hooks.call_one("counts", 5).await && !hooks.call_one("unknown", 5).await);
        assert_eq!(dones.recv().await, Some(50));
        assert!(dones.try_recv().is_err());
    }

    #[tokio::test]
    async fn what_is_busy_is_passed_over() {
        let hooks = Hooks::<()>::new("work");
        let (begun, mut begins) = mpsc::channel(8);
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let waits = Arc::clone(&gate);
        hooks.add("slow", move |()| {
            let (begun, waits) = (begun.clone(), Arc::clone(&waits));
            async move {
                begun.send(()).await.unwrap();
                waits.acquire().await.unwrap().forget();
            }
        });
        hooks.call(&());
        begins.recv().await.unwrap();
        hooks.call(&());
        gate.add_permits(1);
        while !lock(&hooks.running).is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(begins.try_recv().is_err());
        hooks.call(&());
        begins.recv().await.unwrap();
        gate.add_permits(1);
    }
}
