//! The audit log: who did what, when, from where.

use database_core::{Script, Sql};
use serde::{Deserialize, Serialize};

static INSERT: Sql = Sql::new(
    "audit.insert",
    "INSERT INTO audit (at, who, origin, action, target, status) \
     SELECT clock_timestamp(), who, origin, action, target, status FROM jsonb_to_recordset($1::jsonb) \
     AS e (who text, origin text, action text, target text, status bigint)",
    "INSERT INTO audit (at, who, origin, action, target, status) \
     SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER), value ->> 'who', value ->> 'origin', value ->> 'action', \
     value ->> 'target', value ->> 'status' FROM json_each($1)",
);

static LIST: Sql = Sql::new(
    "audit.list",
    "SELECT id, floor(extract(epoch FROM at) * 1000)::bigint, who, origin, action, target, status FROM audit \
     WHERE id < $1 AND ($2::text IS NULL OR who = $2) AND ($3::text IS NULL OR action = $3) ORDER BY id DESC LIMIT $4",
    "SELECT id, at, who, origin, action, target, status FROM audit \
     WHERE id < $1 AND ($2 IS NULL OR who = $2) AND ($3 IS NULL OR action = $3) ORDER BY id DESC LIMIT $4",
);

static PRUNE: Sql = Sql::new(
    "audit.prune",
    "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < clock_timestamp() - $1 * interval '1 millisecond' \
     ORDER BY at LIMIT $2)",
    "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < CAST(unixepoch('subsec') * 1000 AS INTEGER) - $1 \
     ORDER BY at LIMIT $2)",
);

static OLDEST: Sql = Sql::new(
    "audit.oldest",
    "SELECT floor(extract(epoch FROM clock_timestamp() - min(at)) * 1000)::bigint FROM audit",
    "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) - min(at) FROM audit",
);

/// The statements, for the suite that prepares them all.
pub const ALL: &[&Sql] = &[&INSERT, &LIST, &PRUNE, &OLDEST];

/// Something that was done over the API. The database adds when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Name of the key, or `anonymous`.
    pub who: String,
    /// Address it came from.
    pub origin: String,
    /// Method and route, such as `PUT /v1/config/{section}/{key}`.
    pub action: String,
    /// What it was done to: the values of the route's parameters.
    pub target: String,
    /// Status of the answer.
    pub status: u16,
}

/// An entry as it is read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged {
    /// Its number: later ones have larger numbers.
    pub id: i64,
    /// Ms since 1970, by the database's clock.
    pub at_ms: i64,
    /// What was done.
    pub entry: Entry,
}

/// Writes entries; an outcome for each, as group commit wants it.
#[must_use]
pub fn insert_all(entries: &[Entry]) -> Script<Vec<()>> {
    // Texts and numbers: cannot fail.
    let (count, entries) = (entries.len(), serde_json::to_string(entries).unwrap_or_else(|_| "[]".to_owned()));
    Script::statement(&INSERT, [entries.into()], move |_| Ok(vec![(); count]))
}

/// Which entries are wanted, the newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only older ones than this number.
    pub before: Option<i64>,
    /// Only of this key.
    pub who: Option<String>,
    /// Only of this action.
    pub action: Option<String>,
    /// At most this many.
    pub limit: u32,
}

/// Reads entries.
#[must_use]
pub fn list(filter: Filter) -> Script<Vec<Logged>> {
    let values =
        [filter.before.unwrap_or(i64::MAX).into(), filter.who.into(), filter.action.into(), filter.limit.into()];
    Script::statement(&LIST, values, |answer| {
        let read = |row: &database_core::Row| {
            Ok(Logged {
                id: row.int(0)?,
                at_ms: row.int(1)?,
                entry: Entry {
                    who: row.text(2)?.to_owned(),
                    origin: row.text(3)?.to_owned(),
                    action: row.text(4)?.to_owned(),
                    target: row.text(5)?.to_owned(),
                    status: u16::try_from(row.int(6)?).unwrap_or(0),
                },
            })
        };
        answer.rows.iter().map(read).collect()
    })
}

/// Deletes at most `rows_max` entries that are older than `age_ms`; gives how many.
#[must_use]
pub fn prune(age_ms: i64, rows_max: i64) -> Script<u64> {
    Script::statement(&PRUNE, [age_ms.into(), rows_max.into()], |answer| Ok(answer.affected))
}

/// Age of the oldest entry in ms; `None`: there is none.
#[must_use]
pub fn oldest_ms() -> Script<Option<i64>> {
    Script::statement(&OLDEST, [], |answer| answer.rows.first().map_or(Ok(None), |row| row.int_or_null(0)))
}
