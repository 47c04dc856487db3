//! Tickets for work inside this daemon: waiting for a place, and giving it back.
//!
//! Owns: the wait for one's turn, by notices and beats; turns within this process, which has one ticket of a key at most.
//! Never: gives a ticket; the transaction of whoever frees one does.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use cluster_core::scripts::ticket::{self, Acquired, Holder, Key, Moved};
use cluster_core::{MemberId, scripts};
use database_core::{Class, DbError, Script, Verdict};

use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::cluster::Cluster;
use crate::standing::NoIdentity;

/// Until a ticket is given back again, after the database did not let it happen.
const AGAIN: Duration = Duration::from_millis(200);

/// Why there is no ticket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    /// The identity that waited is over.
    #[error("the member that waited for a ticket of {key} was fenced")]
    Fenced {
        /// Of which key.
        key: String,
    },
    /// There is no identity to hold it.
    #[error(transparent)]
    NoIdentity(#[from] NoIdentity),
    /// The database refuses.
    #[error(transparent)]
    Database(#[from] DbError),
}

/// Whose turn it is within this process, by key. The holder of a ticket is the member: two pieces of its work would find
/// each other's ticket and both go on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns(Arc<std::sync::Mutex<BTreeMap<Key, Weak<Mutex<()>>>>>);

impl Turns {
    async fn wait(&self, key: &Key) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| turn.strong_count() > 0);
            let known = turns.get(key).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let turn = Arc::default();
                turns.insert(key.clone(), Arc::downgrade(&turn));
                turn
            })
        };
        turn.lock_owned().await
    }
}

/// A ticket held by this member. Dropped, it is given back; an end of the identity gives it back too.
#[derive(Debug)]
pub struct Ticket {
    cluster: Cluster,
    key: Key,
    member: MemberId,
    runtime: Handle,
    /// The next in this process has its turn when the ticket has been given back, not before.
    turn: Option<OwnedMutexGuard<()>>,
}

impl Ticket {
    /// Under which identity it is held.
    #[must_use]
    pub fn member(&self) -> MemberId {
        self.member
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let (cluster, key, member, turn) = (self.cluster.clone(), self.key.clone(), self.member, self.turn.take());
        self.runtime.spawn(async move {
            cluster.give_back(&key, member).await;
            drop(turn);
        });
    }
}

impl Cluster {
    /// Waits for a ticket of `key`, of which `limit` may be out at once (a lane: 1). Turns are kept across the cluster, and
    /// within this process, which has one ticket of a key at a time. Given up while it waits, it leaves the queue.
    ///
    /// # Errors
    ///
    /// If this process has no identity or loses it, or the database refuses for good.
    pub async fn ticket(&self, key: Key, limit: i64) -> Result<Ticket, TicketError> {
        let turn = Some(self.turns().wait(&key).await);
        let member = self.standing().wait().await?;
        // From here on whatever happens gives back what was given, or leaves the queue.
        let ticket = Ticket { cluster: self.clone(), key: key.clone(), member, runtime: Handle::current(), turn };
        let mut stirred = self.stirred();
        loop {
            stirred.mark_unchanged();
            if self.standing().member()? != member {
                return Err(TicketError::Fenced { key: key.name });
            }
            let wanted = key.clone();
            match self.write(move |_| acquire(member, wanted, limit)).await {
                Ok(None) => return Err(TicketError::Fenced { key: key.name }),
                Ok(Some((acquired, moved))) => {
                    self.tell_moved(&moved);
                    if acquired == Acquired::Given {
                        return Ok(ticket);
                    }
                }
                Err(error) if error.class.may_repeat() || error.class == Class::Unknown => {
                    tracing::warn!("no ticket of {} yet: {error}", key.name);
                }
                Err(error) => return Err(error.into()),
            }
            if stirred.changed().await.is_err() {
                return Err(NoIdentity::Stopped.into());
            }
        }
    }

    /// Tells who has been given tickets, after the commit.
    pub fn tell_moved(&self, moved: &[Moved]) {
        moved.iter().for_each(|moved| self.send(moved.notice()));
    }

    /// Until it is certain: an identity that lives on would keep the ticket from everybody else.
    async fn give_back(&self, key: &Key, member: MemberId) {
        let give_back = || release(member, key.clone());
        loop {
            match self.database().run(give_back).await {
                Ok(moved) => return self.tell_moved(&moved),
                // It is freed with the identity.
                Err(_) if !self.standing().is_registered(member) => return,
                Err(error) => tracing::warn!("a ticket of {} is not given back yet: {error}", key.name),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// `None`: the identity is dead.
fn acquire(member: MemberId, key: Key, limit: i64) -> Script<Option<(Acquired, Vec<Moved>)>> {
    Script::transaction(move |mut tx| async move {
        if !scripts::member_guard(&mut tx, member).await? {
            return Ok(Verdict::RollBack(None));
        }
        let mut moved = Vec::new();
        let acquired = ticket::acquire(&mut tx, &key, &Holder::Member(member), limit, &mut moved).await?;
        Ok(Verdict::Commit(Some((acquired, moved))))
    })
}

fn release(member: MemberId, key: Key) -> Script<Vec<Moved>> {
    Script::transaction(move |mut tx| async move {
        let mut moved = Vec::new();
        ticket::release(&mut tx, &key, &Holder::Member(member), &mut moved).await?;
        Ok(Verdict::Commit(moved))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn within_a_process_one_has_its_turn_and_other_keys_do_not_wait() {
        let turns = Turns::default();
        let first = turns.wait(&Key::lane("west")).await;
        let other = turns.wait(&Key::lane("east")).await;
        let mut second = tokio::spawn({
            let turns = turns.clone();
            async move { drop(turns.wait(&Key::lane("west")).await) }
        });
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        drop((first, other));
        (&mut second).await.unwrap();
        drop(turns.wait(&Key::lane("north")).await);
        assert_eq!(turns.0.lock().unwrap().len(), 1, "keys that nobody waits for are forgotten");
    }
}
