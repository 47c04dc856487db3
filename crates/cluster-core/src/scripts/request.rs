//! Requests from one member to another.

use std::time::Duration;

use database_core::{DbError, Script, Tx, Value, Verdict};

use super::member_guard;
use crate::MemberId;
use crate::member::id_at;
use crate::planted::{Bug, is};
use crate::statements::request;
use crate::time::millis;

/// Requests taken at once, at most.
pub const TAKEN_MAX: i64 = 100;

/// A request that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub id: i64,
    /// What is asked for.
    pub kind: String,
    /// Who asked.
    pub asker: MemberId,
    /// What it is about.
    pub payload: String,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Not carried out yet.
    Open,
    /// Carried out.
    Answered(String),
    /// The addressee died, or nobody took it: whoever asked decides anew.
    Discarded,
}

/// Asks; gives the request's number. [`crate::Notice::request`] follows the commit.
///
/// # Errors
///
/// What the database says.
pub async fn ask(tx: &mut Tx, kind: &str, asker: MemberId, addressee: MemberId, payload: &str) -> Result<i64, DbError> {
    let values = [kind.into(), asker.into(), addressee.into(), payload.into()];
    let row = tx.query_opt(&request::INSERT, values).await?;
    row.ok_or_else(|| DbError::new(database_core::Class::Broken, "a request got no number"))?.int(0)
}

/// Takes what waits for `me` and is not `in_hand`, the oldest first. `None`: `me` is dead.
#[must_use]
pub fn take(me: MemberId, in_hand: Vec<i64>) -> Script<Option<Vec<Request>>> {
    Script::transaction(move |mut tx: Tx| async move {
        if !member_guard(&mut tx, me).await? {
            return Ok(Verdict::RollBack(None));
        }
        let rows = tx.query(&request::TAKE, [me.into(), Value::Ints(in_hand), TAKEN_MAX.into()]).await?;
        let requests: Result<Vec<Request>, DbError> = rows
            .iter()
            .map(|row| {
                let (kind, payload) = (row.text(1)?.to_owned(), row.text(3)?.to_owned());
                Ok(Request { id: row.int(0)?, kind, asker: id_at(row, 2)?, payload })
            })
            .collect();
        Ok(Verdict::Commit(Some(requests?)))
    })
}

/// Claims the right to carry a request out: stands before its effect, in the same transaction, and writes the answer.
/// `false`: it was carried out before, discarded or re-addressed; write nothing.
///
/// # Errors
///
/// What the database says.
pub async fn answer(tx: &mut Tx, id: i64, me: MemberId, answer: &str) -> Result<bool, DbError> {
    let changed = tx.execute(&request::ANSWER, [id.into(), me.into(), answer.into()]).await?;
    Ok(changed == 1 || is(Bug::RequestRunAgain))
}

/// What became of requests, in the order of `ids`.
///
/// # Errors
///
/// What the database says.
pub async fn poll(tx: &mut Tx, ids: &[i64]) -> Result<Vec<(i64, Outcome)>, DbError> {
    let rows = tx.query(&request::POLL, [Value::Ints(ids.to_vec())]).await?;
    let mut known = std::collections::BTreeMap::new();
    for row in &rows {
        let outcome = row.text_or_null(1)?.map_or(Outcome::Open, |answer| Outcome::Answered(answer.to_owned()));
        known.insert(row.int(0)?, outcome);
    }
    Ok(ids.iter().map(|id| (*id, known.remove(id).unwrap_or(Outcome::Discarded))).collect())
}

/// Deletes requests that are older than `age`, `max` at most; how many.
///
/// # Errors
///
/// What the database says.
pub async fn prune(tx: &mut Tx, age: Duration, max: i64) -> Result<u64, DbError> {
    tx.execute(&request::PRUNE, [millis(age).into(), max.into()]).await
}
