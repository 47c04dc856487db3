//! Who is told when this process begins or ceases to lead.
//!
//! Owns: the listeners, and that each hears every change in order, whatever another one does.
//! Never: decides who leads.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use cluster_core::{Change, Leadership};
use tokio::sync::{mpsc, oneshot};

/// A change of leadership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeadershipChange {
    /// Which one, and in which epoch.
    pub leadership: Leadership,
    /// What happened.
    pub change: Change,
}

/// Changes that a listener may have before it: more than a process sees in half an hour. One that is stuck for that long
/// misses later ones, and the log says so; [`crate::Standing::leads`] never depends on listeners.
const BACKLOG_MAX: usize = 512;

type Listener = Box<dyn FnMut(LeadershipChange) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// All listeners. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listeners(Arc<Mutex<Vec<Entry>>>);

#[derive(Debug)]
struct Entry {
    name: String,
    messages: mpsc::Sender<Message>,
}

#[derive(Debug)]
enum Message {
    Changed(LeadershipChange),
    /// Answered when everything before it has been dealt with.
    Barrier(oneshot::Sender<()>),
}

impl Listeners {
    /// Adds a listener; one of the same name is replaced. It is called on the runtime that this is called in.
    pub(crate) fn add<F, Fut>(&self, name: &str, mut listener: F)
    where
        F: FnMut(LeadershipChange) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let (messages, received) = mpsc::channel(BACKLOG_MAX);
        let listener: Listener = Box::new(move |change| Box::pin(listener(change)));
        tokio::spawn(listen(name.to_owned(), listener, received));
        let mut entries = self.lock();
        entries.retain(|entry| entry.name != name);
        entries.push(Entry { name: name.to_owned(), messages });
    }

    /// Tells all. From any thread; does not wait for them.
    pub(crate) fn tell(&self, change: LeadershipChange) {
        for entry in self.lock().iter() {
            if let Err(mpsc::error::TrySendError::Full(_)) = entry.messages.try_send(Message::Changed(change)) {
                tracing::error!("listener {} is stuck and misses {change:?}", entry.name);
            }
        }
    }

    /// Waits until all have dealt with what they were told.
    pub(crate) async fn settled(&self) {
        let barriers: Vec<_> = self
            .lock()
            .iter()
            .filter_map(|entry| {
                let (answer, answered) = oneshot::channel();
                entry.messages.try_send(Message::Barrier(answer)).ok().map(|()| answered)
            })
            .collect();
        for barrier in barriers {
            let _ = barrier.await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn listen(name: String, mut listener: Listener, mut messages: mpsc::Receiver<Message>) {
    while let Some(message) = messages.recv().await {
        match message {
            Message::Changed(change) => {
                // A task of its own: its panic must end neither the listener nor anything else.
                if let Err(error) = tokio::spawn(listener(change)).await {
                    tracing::error!("listener {name} failed at {change:?}: {error}");
                }
            }
            Message::Barrier(answer) => drop(answer.send(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster_core::MemberId;

    const HELD: Leadership = Leadership { name: "scheduler", holder: MemberId(1), epoch: 7 };
    const GAINED: LeadershipChange = LeadershipChange { leadership: HELD, change: Change::Gained };
    const LOST: LeadershipChange = LeadershipChange { leadership: HELD, change: Change::Lost };

    #[tokio::test]
    async fn each_listener_hears_every_change_in_order_though_another_panics() {
        // C10: one that fails does not stop the others.
        let listeners = Listeners::default();
        listeners.add("fails", |_| async { panic!("on purpose") });
        let (heard, mut hears) = mpsc::channel(8);
        listeners.add("hears", move |change| {
            let heard = heard.clone();
            async move { heard.send(change).await.unwrap() }
        });
        for change in [GAINED, LOST, GAINED] {
            listeners.tell(change);
        }
        listeners.settled().await;
        for change in [GAINED, LOST, GAINED] {
            assert_eq!(hears.try_recv(), Ok(change));
        }
    }

    #[tokio::test]
    async fn the_same_name_replaces() {
        let listeners = Listeners::default();
        let (heard, mut hears) = mpsc::channel(8);
        for number in [1, 2] {
            let heard = heard.clone();
            listeners.add("one", move |_| {
                let heard = heard.clone();
                async move { heard.send(number).await.unwrap() }
            });
        }
        listeners.tell(GAINED);
        assert_eq!(hears.recv().await, Some(2));
        listeners.tell(LOST);
        assert_eq!(hears.recv().await, Some(2));
    }
}
