//! Counters and quotas in windows of the database's clock (UTC).

use std::time::Duration;

use database_core::{DbError, Tx};

use crate::statements::counter;
use crate::time::millis;

/// How long a window is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Window {
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day.
    Day,
}

impl Window {
    /// As statements take it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }
}

/// What became of an addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// Added.
    Sum {
        /// The sum in this window.
        sum: i64,
        /// How long the window goes on.
        left: Duration,
    },
    /// It would exceed the limit: nothing was added.
    UsedUp {
        /// The sum in this window.
        sum: i64,
        /// When the quota is renewed.
        left: Duration,
    },
}

/// Adds `count` unless the sum would exceed `limit`. Belongs into the transaction of what is counted.
///
/// # Errors
///
/// What the database says.
pub async fn add(tx: &mut Tx, name: &str, window: Window, count: i64, limit: Option<i64>) -> Result<Added, DbError> {
    let values = [name.into(), window.name().into(), count.into(), limit.into()];
    if let Some(row) = tx.query_opt(&counter::ADD, values).await? {
        return Ok(Added::Sum { sum: row.int(0)?, left: length(row.int(1)?) });
    }
    let (sum, left) = read(tx, name, window).await?;
    Ok(Added::UsedUp { sum, left })
}

/// The sum in the present window, and how long it goes on.
///
/// # Errors
///
/// What the database says.
pub async fn read(tx: &mut Tx, name: &str, window: Window) -> Result<(i64, Duration), DbError> {
    let row = tx.query_opt(&counter::READ, [name.into(), window.name().into()]).await?;
    let row = row.ok_or_else(|| DbError::new(database_core::Class::Broken, "a counter gave no row"))?;
    Ok((row.int(0)?, length(row.int(1)?)))
}

/// Deletes windows that ended longer than `age` ago, `max` at most; how many.
///
/// # Errors
///
/// What the database says.
pub async fn prune(tx: &mut Tx, age: Duration, max: i64) -> Result<u64, DbError> {
    tx.execute(&counter::PRUNE, [millis(age).into(), max.into()]).await
}

fn length(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
