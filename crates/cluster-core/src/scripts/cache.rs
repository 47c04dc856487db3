//! Telling other processes' caches what changed. Not on SQLite: its only process drops the entry itself.

use std::time::Duration;

use database_core::{DbError, Tx};

use crate::statements::cache;
use crate::time::millis;

/// Beats for which a change is kept.
pub const KEPT_BEATS: u32 = 10;
/// Beats without a look at the changes after which a process drops everything: fewer than are kept, as beats are
/// compared by different clocks.
pub const MISSED_BEATS_MAX: u32 = 8;

/// Belongs into the transaction of the change; [`crate::Notice::cache`] follows the commit.
///
/// # Errors
///
/// What the database says.
pub async fn change(tx: &mut Tx, name: &str) -> Result<(), DbError> {
    tx.execute(&cache::CHANGE, [name.into()]).await.map(drop)
}

/// Deletes changes that are older than `age`, `max` at most; how many.
///
/// # Errors
///
/// What the database says.
pub async fn prune(tx: &mut Tx, age: Duration, max: i64) -> Result<u64, DbError> {
    tx.execute(&cache::PRUNE, [millis(age).into(), max.into()]).await
}
