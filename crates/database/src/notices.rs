//! Hints between the members of one database.
//!
//! Owns: the delivery of a notice to everybody in this process at once, and to other processes where there are any; that
//! equal notices in a short time become one, and that the last of them is never left out.
//! Never: carries anything that must arrive. Whoever listens polls too, at each beat and whenever it is told that
//! something may have been missed.
//!
//! On SQLite there is one process, and nothing leaves it. On PostgreSQL see `postgres.rs` beside this.

mod postgres;

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use database_core::DbError;
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// What notices are about. One that a newer program sends, and this one does not know, is passed over.
pub const CHANNELS: &[&str] = &["gone", "slot", "lane", "q", "cache"];

/// Longest payload in bytes. The server takes 8000 in all; a payload holds ids only.
const PAYLOAD_BYTES_MAX: usize = 1000;
/// Notices that wait to be sent. More than these become one hint that anything may have happened.
const UNSENT_MAX: usize = 1024;
/// Events that a subscriber may be behind, before it is told that it has missed some.
const BEHIND_MAX: usize = 1024;

/// A hint. It may be lost, which costs time only: each beat polls what hints speed up.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Notice {
    /// What it is about: one of [`CHANNELS`].
    pub channel: &'static str,
    /// Ids only, at most 1000 bytes, none of them NUL.
    pub payload: String,
}

/// What a subscriber is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Somebody has sent this, perhaps more than once.
    Notice(Notice),
    /// Listening has begun, for the first time or anew. What was sent before was not heard: poll everything.
    Reconnected,
    /// There was more than could be kept: poll everything.
    Lagged,
}

/// Sends and hears hints. Clones are cheap, and mean the same.
#[derive(Debug, Clone)]
pub struct Notices(Arc<Owner>);

/// Ends the tasks with the last clone.
#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    remote: Option<postgres::Probe>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// What the tasks work on.
#[derive(Debug)]
struct Shared {
    /// In front of all that this process sends, so that it knows its own.
    sender: String,
    events: broadcast::Sender<Event>,
    unsent: Mutex<Unsent>,
    is_unsent: Notify,
    /// Whether all has been sent.
    is_flushed: watch::Sender<bool>,
    is_listening: watch::Sender<bool>,
    /// The last nonce that was heard.
    nonce_heard: watch::Sender<u64>,
    figures: Figures,
}

/// Counters, since the start of the process.
#[derive(Debug, Default)]
struct Figures {
    sent: AtomicU64,
    coalesced: AtomicU64,
    heard: AtomicU64,
    connected: AtomicU64,
}

/// What has happened since the start of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Notices that went to other processes.
    pub sent: u64,
    /// Notices that were equal to one that was still to be sent.
    pub coalesced: u64,
    /// Notices of other processes.
    pub heard: u64,
    /// Times that listening has begun.
    pub connected: u64,
}

/// Notices on their way out.
#[derive(Debug, Default)]
struct Unsent {
    notices: BTreeSet<Notice>,
    /// There were too many: everybody is to poll everything.
    is_overflown: bool,
}

impl Unsent {
    /// Whether nothing equal was there.
    fn put(&mut self, notice: Notice) -> bool {
        if self.is_overflown {
            return false;
        }
        let is_new = self.notices.insert(notice);
        if self.notices.len() > UNSENT_MAX {
            *self = Self { notices: BTreeSet::new(), is_overflown: true };
        }
        is_new
    }

    /// Puts back what could not be sent.
    fn put_back(&mut self, other: Self) {
        self.is_overflown |= other.is_overflown;
        other.notices.into_iter().for_each(|notice| {
            self.put(notice);
        });
        if self.is_overflown {
            self.notices.clear();
        }
    }

    fn is_empty(&self) -> bool {
        self.notices.is_empty() && !self.is_overflown
    }
}

impl Shared {
    fn new() -> Self {
        Self {
            sender: format!("{:016x}", random()),
            events: broadcast::Sender::new(BEHIND_MAX),
            unsent: Mutex::default(),
            is_unsent: Notify::new(),
            is_flushed: watch::Sender::new(true),
            is_listening: watch::Sender::new(false),
            nonce_heard: watch::Sender::new(0),
            figures: Figures::default(),
        }
    }

    fn unsent(&self) -> MutexGuard<'_, Unsent> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To everybody in this process. Nobody need be there.
    fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }
}

impl Notices {
    /// Within this process only.
    pub(crate) fn local() -> Self {
        let shared = Arc::new(Shared::new());
        shared.is_listening.send_replace(true);
        Self(Arc::new(Owner { shared, remote: None, tasks: Vec::new() }))
    }

    /// Wakes all subscribers of this process, and soon those of the others. To be called after the commit, never within a
    /// transaction. Does not wait.
    pub fn send(&self, channel: &'static str, payload: impl Into<String>) {
        let notice = Notice { channel, payload: payload.into() };
        let is_payload = notice.payload.len() <= PAYLOAD_BYTES_MAX && !notice.payload.contains('\0');
        let is_right = CHANNELS.contains(&channel) && is_payload;
        if !is_right {
            debug_assert!(is_right, "{channel} with {} bytes", notice.payload.len());
            tracing::error!(channel, bytes = notice.payload.len(), "a notice that nobody can be sent");
            return;
        }
        let shared = &self.0.shared;
        shared.tell(Event::Notice(notice.clone()));
        if self.0.remote.is_none() {
            return;
        }
        {
            let mut unsent = shared.unsent();
            if !unsent.put(notice) {
                shared.figures.coalesced.fetch_add(1, Ordering::Relaxed);
            }
            shared.is_flushed.send_replace(false);
        }
        shared.is_unsent.notify_one();
    }

    /// Everything that is told from here on.
    #[must_use]
    pub fn subscribe(&self) -> Subscription {
        Subscription(self.0.shared.events.subscribe())
    }

    /// Waits until notices of other processes are heard. Whether that has come about in time.
    pub async fn wait_listening(&self, limit: Duration) -> bool {
        let mut is_listening = self.0.shared.is_listening.subscribe();
        timeout(limit, is_listening.wait_for(|is_listening| *is_listening)).await.is_ok()
    }

    /// Whether notices of other processes are heard at the moment, as far as is known.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        *self.0.shared.is_listening.borrow()
    }

    /// Waits until everything has been sent, as at the end of the process. Whether that has come about in time.
    pub async fn flush(&self, limit: Duration) -> bool {
        let mut is_flushed = self.0.shared.is_flushed.subscribe();
        timeout(limit, is_flushed.wait_for(|is_flushed| *is_flushed)).await.is_ok()
    }

    /// Sends something to ourselves over a connection of the pool, and tells whether it was heard within `limit`. If it was
    /// sent and not heard, listening begins anew. This happens at each beat by itself.
    ///
    /// # Errors
    ///
    /// Why nothing could be sent, which says nothing about hearing.
    pub async fn probe(&self, limit: Duration) -> Result<bool, DbError> {
        match &self.0.remote {
            Some(probe) => probe.run(&self.0.shared, limit).await,
            None => Ok(true),
        }
    }

    /// What has happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let figures = &self.0.shared.figures;
        Counts {
            sent: get(&figures.sent),
            coalesced: get(&figures.coalesced),
            heard: get(&figures.heard),
            connected: get(&figures.connected),
        }
    }
}

/// One listener in this process.
#[derive(Debug)]
pub struct Subscription(broadcast::Receiver<Event>);

impl Subscription {
    /// The next event; `None` when the database has been closed. May be given up and called again.
    pub async fn next(&mut self) -> Option<Event> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Event::Lagged),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// For names and jitter; nothing secret.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(payload: &str) -> Event {
        Event::Notice(Notice { channel: "slot", payload: payload.into() })
    }

    #[tokio::test]
    async fn everybody_in_the_process_is_told_and_who_is_late_learns_that_something_is_missing() {
        let notices = Notices::local();
        let (mut one, mut other) = (notices.subscribe(), notices.subscribe());
        notices.send("slot", "7");
        assert_eq!(one.next().await, Some(notice("7")));
        for count in 0..=BEHIND_MAX {
            notices.send("slot", count.to_string());
        }
        // The first one is gone too, and it was the two oldest that had to go.
        assert_eq!(other.next().await, Some(Event::Lagged));
        assert_eq!(other.next().await, Some(notice("1")));
        assert!(notices.wait_listening(Duration::ZERO).await && notices.flush(Duration::ZERO).await);
        assert!(notices.probe(Duration::ZERO).await.unwrap());
        drop(notices);
        assert_eq!(one.next().await, Some(Event::Lagged));
        while one.next().await.is_some() {}
    }

    #[test]
    fn what_is_unsent_is_bounded_and_holds_nothing_twice() {
        let mut unsent = Unsent::default();
        let notice = |count: usize| Notice { channel: "lane", payload: count.to_string() };
        assert!(unsent.put(notice(0)) && !unsent.put(notice(0)));
        let taken = std::mem::take(&mut unsent);
        assert!(unsent.is_empty() && unsent.put(notice(0)));
        unsent.put_back(taken);
        assert_eq!(unsent.notices.len(), 1);
        for count in 0..=UNSENT_MAX {
            unsent.put(notice(count));
        }
        assert!(unsent.is_overflown && unsent.notices.is_empty() && !unsent.is_empty());
        let mut later = Unsent::default();
        later.put(notice(1));
        later.put_back(unsent);
        assert!(later.is_overflown && later.notices.is_empty());
    }
}
