//! Taking over what the dead left, and tidying after oneself.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use database_core::{DbError, Script, Tx, Value, Verdict};

use super::ticket::{self, Moved};
use super::{cache, counter, member_guard, request};
use crate::member::{id_at, uuids};
use crate::planted::{Bug, is};
use crate::statements::{leader, member, request as request_statements};
use crate::{MemberId, Notice};

/// A step of a transaction.
pub type Running<'tx, T> = Pin<Box<dyn Future<Output = Result<T, DbError>> + Send + 'tx>>;

/// How a part above gives up rows of its own whose owner is dead. Runs within the reaper's transaction.
pub trait ReapStep: Send + Sync + fmt::Debug {
    /// What it is called in logs.
    fn name(&self) -> &'static str;

    /// Makes the rows of `dead` ready again, or failed, by what stands in them; the attempt is kept. Changes rows by
    /// `owner = ANY (dead)` and nothing else: a row that was claimed meanwhile has another owner. How many rows.
    fn give_up<'tx>(&'tx self, tx: &'tx mut Tx, dead: &'tx [MemberId]) -> Running<'tx, u64>;

    /// Some of the owners that stand in rows, at most `max`, each once.
    fn owners<'tx>(&'tx self, tx: &'tx mut Tx, max: i64) -> Running<'tx, Vec<MemberId>>;
}

/// Steps of all parts, in their order.
pub type ReapSteps = Arc<[Arc<dyn ReapStep>]>;

/// Owners looked at in one sweep and step, at most.
const SWEEP_OWNERS_MAX: i64 = 500;
/// Members reaped in one transaction: as [`member::LOCK_DEAD`] says.
const BATCH: usize = 50;

/// How long rows are kept that a reap deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Requests, from their creation on.
    pub requests: Duration,
    /// Windows of counters, from their end on.
    pub counters: Duration,
    /// Cache changes. `None`: there are none (SQLite).
    pub cache_changes: Option<Duration>,
    /// Rows of a kind deleted in one transaction, at most.
    pub rows_max: i64,
}

impl Kept {
    /// As cluster members do; `beat` is their beat.
    #[must_use]
    pub fn usual(beat: Duration, has_cache_changes: bool) -> Self {
        let hour = Duration::from_secs(3_600);
        Self {
            requests: hour,
            counters: 24 * hour,
            cache_changes: has_cache_changes.then_some(beat * cache::KEPT_BEATS),
            rows_max: 1_000,
        }
    }
}

/// What a reap did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reaped {
    /// The reaper itself is dead: nothing was done.
    pub is_fenced: bool,
    /// Members that were reaped.
    pub dead: Vec<MemberId>,
    /// Rows that were given up, those without owner included.
    pub rows: u64,
    /// Tickets that moved: to be told after the commit.
    pub moved: Vec<Moved>,
    /// There may be more dead.
    pub has_more: bool,
}

impl Reaped {
    /// What is to be told after the commit.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        self.moved.iter().map(Moved::notice).collect()
    }
}

/// Reaps up to 50 members whose lease is over, and those `known_dead` whatever their lease says; then whatever belongs to
/// owners that are not registered at all; then deletes what is old.
#[must_use]
pub fn reap(me: MemberId, known_dead: Vec<MemberId>, steps: ReapSteps, kept: Kept) -> Script<Reaped> {
    Script::transaction(move |mut tx: Tx| async move {
        let mut reaped = Reaped::default();
        if !member_guard(&mut tx, me).await? {
            reaped.is_fenced = true;
            return Ok(Verdict::RollBack(reaped));
        }
        let rows = tx.query(&member::LOCK_DEAD, [uuids(&known_dead)]).await?;
        let dead: Result<Vec<MemberId>, DbError> = rows.iter().map(|row| id_at(row, 0)).collect();
        reaped.dead = dead?;
        // A start reap may name its own earlier identity, never the present one.
        reaped.dead.retain(|id| *id != me);
        reaped.has_more = rows.len() >= BATCH;
        if !reaped.dead.is_empty() {
            if !is(Bug::ReapForgetsRows) {
                for step in &*steps {
                    reaped.rows += step.give_up(&mut tx, &reaped.dead).await?;
                }
            }
            bury(&mut tx, &reaped.dead, &mut reaped.moved).await?;
        }
        sweep(&mut tx, me, &steps, &mut reaped).await?;
        request::prune(&mut tx, kept.requests, kept.rows_max).await?;
        counter::prune(&mut tx, kept.counters, kept.rows_max).await?;
        if let Some(age) = kept.cache_changes {
            cache::prune(&mut tx, age, kept.rows_max).await?;
        }
        Ok(Verdict::Commit(reaped))
    })
}

/// Frees tickets, discards requests, gives up leaderships, deletes the registrations: in this order.
async fn bury(tx: &mut Tx, dead: &[MemberId], moved: &mut Vec<Moved>) -> Result<(), DbError> {
    ticket::free_of_members(tx, dead, moved).await?;
    tx.execute(&request_statements::DISCARD, [uuids(dead)]).await?;
    tx.execute(&leader::GIVE_UP, [uuids(dead)]).await?;
    tx.execute(&member::DELETE, [uuids(dead)]).await?;
    Ok(())
}

/// Rows and tickets whose owner is not registered: of identities that were abandoned, or that left without all they had.
///
/// Owners are looked up in a statement of their own. In one statement, a row that was claimed since by a member that
/// registered since would be looked at anew, but the members would not.
async fn sweep(tx: &mut Tx, me: MemberId, steps: &ReapSteps, reaped: &mut Reaped) -> Result<(), DbError> {
    for step in &**steps {
        let owners = step.owners(tx, SWEEP_OWNERS_MAX).await?;
        let missing = missing(tx, me, owners).await?;
        if !missing.is_empty() && !is(Bug::ReapForgetsRows) {
            reaped.rows += step.give_up(tx, &missing).await?;
        }
    }
    let holders = ticket::member_holders(tx).await?;
    let missing = missing(tx, me, holders).await?;
    ticket::free_of_members(tx, &missing, &mut reaped.moved).await
}

async fn missing(tx: &mut Tx, me: MemberId, mut owners: Vec<MemberId>) -> Result<Vec<MemberId>, DbError> {
    owners.retain(|owner| *owner != me);
    if owners.is_empty() {
        return Ok(owners);
    }
    let rows = tx.query(&member::MISSING, [uuids(&owners)]).await?;
    rows.iter().map(|row| id_at(row, 0)).collect()
}

/// What tidying did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tidied {
    /// The present identity is dead too: nothing was done.
    pub is_fenced: bool,
    /// Tickets that moved.
    pub moved: Vec<Moved>,
    /// Requests that were re-addressed.
    pub requests: u64,
}

/// Ends what is left of one's own retired identities, without waiting for their leases. Their rows are given up by the next
/// reap, as their owner is not registered any more. What ran for them must have stopped.
#[must_use]
pub fn tidy(me: MemberId, retired: Vec<MemberId>) -> Script<Tidied> {
    Script::transaction(move |mut tx: Tx| async move {
        let mut tidied = Tidied::default();
        if !member_guard(&mut tx, me).await? {
            tidied.is_fenced = true;
            return Ok(Verdict::RollBack(tidied));
        }
        // In the order in which the reaper locks: members, then tickets.
        tx.query(&member::LOCK, [uuids(&retired)]).await?;
        tidied.requests = tx.execute(&request_statements::READDRESS, [uuids(&retired), me.into()]).await?;
        bury(&mut tx, &retired, &mut tidied.moved).await?;
        Ok(Verdict::Commit(tidied))
    })
}

/// Ends one's own registration at the stop; gives the tickets that moved.
#[must_use]
pub fn deregister(me: MemberId) -> Script<Vec<Moved>> {
    Script::transaction(move |mut tx: Tx| async move {
        let mut moved = Vec::new();
        tx.query(&member::LOCK, [uuids(&[me])]).await?;
        bury(&mut tx, &[me], &mut moved).await?;
        Ok(Verdict::Commit(moved))
    })
}

/// An owner column of `rows` at `column`, for [`ReapStep::owners`].
///
/// # Errors
///
/// The column is no UUID.
pub fn owners_of(rows: &[database_core::Row], column: usize) -> Result<Vec<MemberId>, DbError> {
    rows.iter().map(|row| id_at(row, column)).collect()
}

/// Ids as a statement's parameter, for [`ReapStep::give_up`].
#[must_use]
pub fn owners_value(ids: &[MemberId]) -> Value {
    uuids(ids)
}
