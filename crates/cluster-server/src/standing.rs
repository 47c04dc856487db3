//! What any part of the process may ask at any time: who we are, whether that still holds, and what we lead.
//!
//! Owns: the answers, kept by the lease thread and the coordinator.
//! Never: asks the database. An answer here is never a reason to write: the guard in the transaction is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cluster_core::{Boot, MemberId, Server};
use tokio::sync::watch;

use crate::clock;

/// A registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// The identity.
    pub id: MemberId,
    /// Its number, for people and logs.
    pub no: i64,
    /// Length of the lease.
    pub lease: Duration,
    /// Where it is registered.
    pub server: Server,
}

/// Where an identity stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// To be registered. The number rises when an identity is given up that could not be.
    #[default]
    Unregistered,
    /// Work may run.
    Registered(Registration),
    /// The process stops, or has.
    Stopped,
}

/// Why there is no identity to work under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoIdentity {
    /// The last one is over, and the next one is not registered.
    #[error("this process is not registered in the database")]
    Unregistered,
    /// An identity could not be registered within a lease: who waited for it gives up.
    #[error("this process could not register in the database within a lease")]
    GaveUp,
    /// The process stops.
    #[error("this process is stopping")]
    Stopped,
}

/// Where this process stands. Clones are the same.
#[derive(Debug, Clone)]
pub struct Standing(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Effects may start before this time of the boot clock; 0: they may not.
    valid_until: AtomicU64,
    phase: watch::Sender<(Phase, u64)>,
    leading: Mutex<BTreeMap<&'static str, i64>>,
}

impl Default for Standing {
    fn default() -> Self {
        let (phase, _) = watch::channel((Phase::Unregistered, 0));
        Self(Arc::new(Inner { valid_until: AtomicU64::new(0), phase, leading: Mutex::default() }))
    }
}

impl Standing {
    /// The identity under which an effect may start at this very moment. To be asked before each: after a pause of the
    /// process this may be the first code that runs.
    ///
    /// # Errors
    ///
    /// If none may.
    pub fn member(&self) -> Result<MemberId, NoIdentity> {
        self.registration().map(|registration| registration.id)
    }

    /// As [`Standing::member`], with what belongs to it.
    ///
    /// # Errors
    ///
    /// As [`Standing::member`].
    pub fn registration(&self) -> Result<Registration, NoIdentity> {
        let (phase, _) = *self.0.phase.borrow();
        match phase {
            Phase::Registered(registration) if self.is_valid() => Ok(registration),
            Phase::Registered(_) | Phase::Unregistered => Err(NoIdentity::Unregistered),
            Phase::Stopped => Err(NoIdentity::Stopped),
        }
    }

    /// Waits for an identity: what would start between a fence and the next registration waits here.
    ///
    /// # Errors
    ///
    /// If an identity was given up meanwhile, or the process stops.
    pub async fn wait(&self) -> Result<MemberId, NoIdentity> {
        let mut phases = self.0.phase.subscribe();
        let given_up = phases.borrow().1;
        loop {
            match self.member() {
                Err(NoIdentity::Unregistered) => {}
                other => return other,
            }
            if phases.changed().await.is_err() {
                return Err(NoIdentity::Stopped);
            }
            if phases.borrow().1 != given_up {
                return Err(NoIdentity::GaveUp);
            }
        }
    }

    /// In which epoch this process leads under a name; `None`: it does not, or cannot know.
    #[must_use]
    pub fn leads(&self, name: &str) -> Option<i64> {
        self.is_valid().then(|| self.leading().get(name).copied())?
    }

    /// Whether this identity is the one that is registered, trusted at the moment or not.
    pub(crate) fn is_registered(&self, member: MemberId) -> bool {
        matches!(self.0.phase.borrow().0, Phase::Registered(registration) if registration.id == member)
    }

    fn is_valid(&self) -> bool {
        clock::boot().0 < self.0.valid_until.load(Ordering::Acquire)
    }

    pub(crate) fn registered(&self, registration: Registration) {
        self.0.phase.send_modify(|(phase, _)| *phase = Phase::Registered(registration));
    }

    /// The length of the lease was changed, of the identity that there is too.
    pub(crate) fn lease_set(&self, lease: Duration) {
        self.0.phase.send_modify(|(phase, _)| {
            if let Phase::Registered(registration) = phase {
                registration.lease = lease;
            }
        });
    }

    pub(crate) fn valid_until(&self, until: Boot) {
        self.0.valid_until.store(until.0, Ordering::Release);
        // Whoever waits may have seen the registration while it was not valid yet.
        self.0.phase.send_modify(|_| {});
    }

    pub(crate) fn fenced(&self) {
        self.0.valid_until.store(0, Ordering::Release);
        self.leading().clear();
        self.0.phase.send_modify(|(phase, _)| *phase = Phase::Unregistered);
    }

    pub(crate) fn gave_up(&self) {
        self.0.phase.send_modify(|(_, given_up)| *given_up += 1);
    }

    pub(crate) fn stopped(&self) {
        self.0.valid_until.store(0, Ordering::Release);
        self.leading().clear();
        self.0.phase.send_modify(|(phase, _)| *phase = Phase::Stopped);
    }

    pub(crate) fn lead(&self, name: &'static str, epoch: Option<i64>) {
        match epoch {
            Some(epoch) => self.leading().insert(name, epoch),
            None => self.leading().remove(name),
        };
    }

    fn leading(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, i64>> {
        self.0.leading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration(no: i64) -> Registration {
        let id = MemberId(no.unsigned_abs().into());
        Registration { id, no, lease: Duration::from_secs(20), server: Server::default() }
    }

    #[tokio::test]
    async fn an_effect_starts_only_while_the_lease_is_trusted() {
        // GC1: a process past its local deadline starts none.
        let standing = Standing::default();
        assert_eq!(standing.member(), Err(NoIdentity::Unregistered));
        standing.registered(registration(1));
        assert_eq!(standing.member(), Err(NoIdentity::Unregistered), "not trusted yet");
        standing.valid_until(clock::boot().plus(Duration::from_secs(3600)));
        standing.lead("scheduler", Some(7));
        assert_eq!((standing.member(), standing.leads("scheduler")), (Ok(MemberId(1)), Some(7)));
        standing.valid_until(clock::boot());
        assert_eq!((standing.member(), standing.leads("scheduler")), (Err(NoIdentity::Unregistered), None));
        standing.stopped();
        assert_eq!(standing.member(), Err(NoIdentity::Stopped));
    }

    #[tokio::test]
    async fn who_waits_for_an_identity_gets_the_next_one_or_is_told_that_it_was_given_up() {
        // C5.
        let standing = Standing::default();
        let wait = |standing: &Standing| {
            tokio::spawn({
                let standing = standing.clone();
                async move { standing.wait().await }
            })
        };
        let waits = wait(&standing);
        while !waits.is_finished() {
            standing.gave_up();
            tokio::task::yield_now().await;
        }
        assert_eq!(waits.await.unwrap(), Err(NoIdentity::GaveUp));
        let waits = wait(&standing);
        tokio::task::yield_now().await;
        standing.registered(registration(2));
        standing.valid_until(clock::boot().plus(Duration::from_secs(3600)));
        assert_eq!(waits.await.unwrap(), Ok(MemberId(2)));
        standing.fenced();
        assert_eq!(standing.member(), Err(NoIdentity::Unregistered));
    }
}
