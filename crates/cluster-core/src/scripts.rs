//! Transactions about the cluster, as code over [`Tx`]: it runs on each database and in the simulation.
//!
//! Parts above build theirs of these: each transaction that writes what a member owns, or a terminal state, begins with
//! [`member_guard`]; each of a leader with [`leader_guard`].

pub mod cache;
pub mod counter;
pub mod lead;
pub mod reap;
pub mod request;
pub mod ticket;
pub mod view;

use database_core::{DbError, Tx};

use crate::planted::{Bug, is};
use crate::statements::{leader, member};
use crate::{Leadership, MemberId};

/// Whether `me` lives, and cannot be reaped before this transaction ends. If not: stop, write nothing.
///
/// # Errors
///
/// What the database says.
pub async fn member_guard(tx: &mut Tx, me: MemberId) -> Result<bool, DbError> {
    if is(Bug::NoMemberGuard) {
        return Ok(true);
    }
    Ok(tx.query_opt(&member::GUARD, [me.into()]).await?.is_some())
}

/// Whether this leadership is held, and cannot be taken before this transaction ends. If not: stop, write nothing.
///
/// # Errors
///
/// What the database says.
pub async fn leader_guard(tx: &mut Tx, leadership: &Leadership) -> Result<bool, DbError> {
    if is(Bug::NoLeaderGuard) {
        return Ok(true);
    }
    let values = [leadership.name.into(), leadership.holder.into(), leadership.epoch.into()];
    Ok(tx.query_opt(&leader::GUARD, values).await?.is_some())
}
