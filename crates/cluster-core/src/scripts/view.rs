//! What a beat reads, in one statement.

use database_core::{Answer, Class, DbError, Script};

use crate::member::id_at;
use crate::statements::member;
use crate::{LeaderSeen, MemberId, MemberSeen};

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// All registrations, dead ones included.
    pub members: Vec<MemberSeen>,
    /// All leaderships.
    pub leaders: Vec<LeaderSeen>,
    /// Requests that wait for the reader.
    pub requests: i64,
    /// What caches must drop.
    pub cache_changes: Vec<String>,
    /// The oldest transaction that may still have been open: given to the next read.
    pub open_from: i64,
    /// The database's time, ms since 1970.
    pub db_ms: i64,
}

/// Reads what concerns `me`; `open_from` is what the read before gave, 0 at first.
#[must_use]
pub fn view(me: MemberId, open_from: i64) -> Script<Seen> {
    Script::statement(&member::VIEW, [me.into(), open_from.into()], |answer| read(&answer))
}

fn read(answer: &Answer) -> Result<Seen, DbError> {
    let mut seen = Seen::default();
    for row in &answer.rows {
        match row.text(0)? {
            "member" => seen.members.push(MemberSeen {
                id: id_at(row, 1)?,
                host: row.text(2)?.to_owned(),
                no: row.int(3)?,
                left_ms: row.int(4)?,
                beat_age_ms: row.int(5)?,
                pid: row.int(6)?,
                schema_version: row.int(7)?,
            }),
            "leader" => seen.leaders.push(LeaderSeen {
                name: row.text(2)?.to_owned(),
                holder: row.uuid_or_null(1)?.map(MemberId),
                epoch: row.int(3)?,
                left_ms: row.int_or_null(4)?,
            }),
            "request" => seen.requests = row.int(3)?,
            "cache" => seen.cache_changes.push(row.text(2)?.to_owned()),
            "snapshot" => (seen.open_from, seen.db_ms) = (row.int(3)?, row.int(4)?),
            other => return Err(DbError::new(Class::Broken, format!("the view has a row of kind {other:?}"))),
        }
    }
    Ok(seen)
}
