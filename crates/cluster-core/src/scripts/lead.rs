//! Taking, renewing and releasing leaderships.

use std::time::Duration;

use database_core::{DbError, Script, Tx, Value, Verdict};

use crate::member::uuids;
use crate::statements::leader;
use crate::time::millis;
use crate::{Leadership, MemberId};

/// What a contest gave for a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contested {
    /// The name.
    pub name: String,
    /// What became of it.
    pub is: Standing,
}

/// Whose a leadership is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Held already, and renewed.
    Renewed {
        /// ms left.
        left_ms: i64,
    },
    /// Taken.
    Taken {
        /// In this epoch.
        epoch: i64,
        /// ms left.
        left_ms: i64,
    },
    /// Another's, or locked by a guarded transaction, or the caller's own in an epoch that it does not know of.
    Other {
        /// The row's epoch.
        epoch: i64,
        /// The row's holder.
        holder: Option<MemberId>,
        /// ms left; `None`: given up.
        left_ms: Option<i64>,
    },
}

/// Renews what is held and takes what is free. `wanted`: names with the epoch in which each is held, 0 for none.
#[must_use]
pub fn contest(
    me: MemberId,
    wanted: Vec<(&'static str, i64)>,
    lease: Duration,
    epoch_min: i64,
) -> Script<Vec<Contested>> {
    let (names, epochs): (Vec<String>, Vec<i64>) =
        wanted.into_iter().map(|(name, epoch)| (name.to_owned(), epoch)).unzip();
    let values = vec![me.into(), Value::Texts(names), Value::Ints(epochs), millis(lease).into(), epoch_min.into()];
    Script::statement(&leader::CONTEST, values, |answer| {
        let read = |row: &database_core::Row| {
            let (epoch, left_ms) = (row.int(2)?, row.int_or_null(4)?);
            let is = match row.text(1)? {
                "renewed" => Standing::Renewed { left_ms: left_ms.unwrap_or(0) },
                "taken" => Standing::Taken { epoch, left_ms: left_ms.unwrap_or(0) },
                _ => Standing::Other { epoch, holder: row.uuid_or_null(3)?.map(MemberId), left_ms },
            };
            Ok(Contested { name: row.text(0)?.to_owned(), is })
        };
        answer.rows.iter().map(read).collect()
    })
}

/// The only process of a SQLite file leads: gives name and epoch.
#[must_use]
pub fn seize(me: MemberId, names: Vec<&'static str>) -> Script<Vec<(String, i64)>> {
    let names = Value::Texts(names.into_iter().map(str::to_owned).collect());
    Script::statement(&leader::SEIZE, [me.into(), names], |answer| {
        answer.rows.iter().map(|row| Ok((row.text(0)?.to_owned(), row.int(1)?))).collect()
    })
}

/// Gives leaderships back; whoever contests next has them.
#[must_use]
pub fn release(held: Vec<Leadership>) -> Script<()> {
    Script::transaction(move |mut tx: Tx| async move {
        for held in held {
            tx.execute(&leader::RELEASE, [held.name.into(), held.holder.into(), held.epoch.into()]).await?;
        }
        Ok(Verdict::Commit(()))
    })
}

/// Gives up what these identities lead.
///
/// # Errors
///
/// What the database says.
pub async fn give_up(tx: &mut Tx, ids: &[MemberId]) -> Result<u64, DbError> {
    tx.execute(&leader::GIVE_UP, [uuids(ids)]).await
}
