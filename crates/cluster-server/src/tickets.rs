//! Tickets for work inside this daemon: waiting for a place, and giving it back.
//!
//! Owns: the wait for one's turn, by notices and beats.
//! Never: gives a ticket; the transaction of whoever frees one does.

use cluster_core::scripts::ticket::{self, Acquired, Holder, Key, Moved};
use cluster_core::{MemberId, scripts};
use database_core::{Class, DbError, Script, Verdict};

use crate::cluster::Cluster;
use crate::standing::NoIdentity;

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

/// A ticket held by this member. Dropped, it is given back; an end of the identity gives it back too.
#[derive(Debug)]
pub struct Ticket {
    cluster: Cluster,
    key: Key,
    member: MemberId,
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
        let (cluster, key, member) = (self.cluster.clone(), self.key.clone(), self.member);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move { cluster.give_back(&key, member).await });
    }
}

impl Cluster {
    /// Waits for a ticket of `key`, of which `limit` may be out at once (a lane: 1). Turns are kept across the cluster.
    /// Given up while it waits, it leaves the queue.
    ///
    /// # Errors
    ///
    /// If this process has no identity or loses it, or the database refuses for good.
    pub async fn ticket(&self, key: Key, limit: i64) -> Result<Ticket, TicketError> {
        let member = self.standing().wait().await?;
        // From here on whatever happens gives back what was given, or leaves the queue.
        let ticket = Ticket { cluster: self.clone(), key: key.clone(), member };
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

    async fn give_back(&self, key: &Key, member: MemberId) {
        let give_back = || release(member, key.clone());
        match self.database().run(give_back).await {
            Ok(moved) => self.tell_moved(&moved),
            // It is freed with the identity, at the latest when its lease has expired.
            Err(error) => tracing::warn!("a ticket of {} was not given back: {error}", key.name),
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
