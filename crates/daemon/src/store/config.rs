//! Options that are set in the database, and who changed them when.

use database_core::{DbError, Row, Script, Sql, Tx, Verdict};

static LOCK: Sql = Sql::new(
    "config.lock",
    // Changes are checked against all options together, so they go one after another; readers are not held up.
    "LOCK TABLE config IN SHARE ROW EXCLUSIVE MODE",
    "SELECT 1",
);

static VERSION: Sql = Sql::same("config.version", "SELECT COALESCE(max(id), 0) FROM config_change");

/// All options and the version that they are, of one snapshot; without options, a row with the version alone.
static LIST: Sql = Sql::new(
    "config.list",
    "SELECT version, section, key, value, who, floor(extract(epoch FROM at) * 1000)::bigint \
     FROM (SELECT COALESCE(max(id), 0) AS version FROM config_change) AS newest LEFT JOIN config ON true \
     ORDER BY section, key",
    "SELECT version, section, key, value, who, at \
     FROM (SELECT COALESCE(max(id), 0) AS version FROM config_change) AS newest LEFT JOIN config ON true \
     ORDER BY section, key",
);

static FIND: Sql = Sql::same("config.find", "SELECT value FROM config WHERE section = $1 AND key = $2");

static SET: Sql = Sql::new(
    "config.set",
    "INSERT INTO config (section, key, value, who, at) VALUES ($1, $2, $3, $4, clock_timestamp()) \
     ON CONFLICT (section, key) DO UPDATE SET value = excluded.value, who = excluded.who, at = excluded.at",
    "INSERT INTO config (section, key, value, who, at) \
     VALUES ($1, $2, $3, $4, CAST(unixepoch('subsec') * 1000 AS INTEGER)) \
     ON CONFLICT (section, key) DO UPDATE SET value = excluded.value, who = excluded.who, at = excluded.at",
);

static UNSET: Sql = Sql::same("config.unset", "DELETE FROM config WHERE section = $1 AND key = $2");

static LOG: Sql = Sql::new(
    "config.log",
    "INSERT INTO config_change (section, key, before, after, who, at) VALUES ($1, $2, $3, $4, $5, clock_timestamp())",
    "INSERT INTO config_change (section, key, before, after, who, at) \
     VALUES ($1, $2, $3, $4, $5, CAST(unixepoch('subsec') * 1000 AS INTEGER))",
);

static HISTORY: Sql = Sql::new(
    "config.history",
    "SELECT id, section, key, before, after, who, floor(extract(epoch FROM at) * 1000)::bigint FROM config_change \
     WHERE ($1::text IS NULL OR section = $1) AND ($2::text IS NULL OR key = $2) ORDER BY id DESC LIMIT $3",
    "SELECT id, section, key, before, after, who, at FROM config_change \
     WHERE ($1 IS NULL OR section = $1) AND ($2 IS NULL OR key = $2) ORDER BY id DESC LIMIT $3",
);

static PRUNE: Sql = Sql::same(
    "config.prune",
    // Never the newest: its number is the version.
    "DELETE FROM config_change WHERE id IN (SELECT id FROM config_change \
     WHERE id <= (SELECT max(id) FROM config_change) - $1 ORDER BY id LIMIT $2)",
);

static OLDEST: Sql = Sql::new(
    "config.oldest",
    "SELECT floor(extract(epoch FROM clock_timestamp() - min(at)) * 1000)::bigint FROM config_change",
    "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) - min(at) FROM config_change",
);

/// The statements, for the suite that prepares them all.
pub const ALL: &[&Sql] = &[&LOCK, &VERSION, &LIST, &FIND, &SET, &UNSET, &LOG, &HISTORY, &PRUNE, &OLDEST];

/// How many changes are kept.
pub const HISTORY_ROWS: i64 = 1_000;

/// An option as the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Section, such as `stage.clean`.
    pub section: String,
    /// Name within it.
    pub key: String,
    /// Its text.
    pub value: String,
    /// Who set it.
    pub who: String,
    /// When, in ms since 1970 by the database's clock.
    pub at_ms: i64,
}

/// All options at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Overlay {
    /// Number of the newest change.
    pub version: i64,
    /// What is set.
    pub rows: Vec<Stored>,
}

/// A change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its number.
    pub id: i64,
    /// Section and name.
    pub section: String,
    /// Section and name.
    pub key: String,
    /// What it was.
    pub before: Option<String>,
    /// What it became; `None`: the file's value holds again.
    pub after: Option<String>,
    /// Who.
    pub who: String,
    /// When, in ms since 1970 by the database's clock.
    pub at_ms: i64,
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It is stored, as this version.
    Done(i64),
    /// Nothing was set there, and nothing is to be.
    Nothing,
    /// Somebody else changed something since the options were read: read and check again.
    Moved,
}

/// Reads all, at one moment.
#[must_use]
pub fn read() -> Script<Overlay> {
    Script::statement(&LIST, [], |answer| {
        let version = answer.rows.first().map_or(Ok(0), |row| row.int(0))?;
        let rows = answer.rows.iter().filter_map(stored).collect::<Result<_, _>>()?;
        Ok(Overlay { version, rows })
    })
}

/// Sets an option, or with `None` removes it, if the newest change is still `version`: what was checked is what holds.
///
/// `caches` is the statement that tells all members, and its values; SQLite needs none.
#[must_use]
pub fn change(
    version_checked: i64,
    (section, key): (String, String),
    value: Option<String>,
    who: String,
    caches: Option<(&'static Sql, &'static str)>,
) -> Script<Applied> {
    Script::transaction(move |mut tx| async move {
        tx.query(&LOCK, []).await?;
        if version(&mut tx).await? != version_checked {
            return Ok(Verdict::RollBack(Applied::Moved));
        }
        let place = || [section.as_str().into(), key.as_str().into()];
        let before = tx.query_opt(&FIND, place()).await?.map(|row| row.text(0).map(str::to_owned)).transpose()?;
        if before == value {
            return Ok(Verdict::RollBack(value.map_or(Applied::Nothing, |_| Applied::Done(version_checked))));
        }
        let [at, name] = place();
        match &value {
            Some(value) => tx.execute(&SET, [at, name, value.as_str().into(), who.as_str().into()]).await?,
            None => tx.execute(&UNSET, [at, name]).await?,
        };
        let [at, name] = place();
        tx.execute(&LOG, [at, name, before.into(), value.into(), who.into()]).await?;
        if let Some((sql, name)) = caches {
            tx.execute(sql, [name.into()]).await?;
        }
        Ok(Verdict::Commit(Applied::Done(version(&mut tx).await?)))
    })
}

/// The newest changes first, of one section or option, or of all.
#[must_use]
pub fn history(section: Option<String>, key: Option<String>, rows_max: u32) -> Script<Vec<Change>> {
    Script::statement(&HISTORY, [section.into(), key.into(), rows_max.into()], |answer| {
        let read = |row: &Row| {
            Ok(Change {
                id: row.int(0)?,
                section: row.text(1)?.to_owned(),
                key: row.text(2)?.to_owned(),
                before: row.text_or_null(3)?.map(str::to_owned),
                after: row.text_or_null(4)?.map(str::to_owned),
                who: row.text(5)?.to_owned(),
                at_ms: row.int(6)?,
            })
        };
        answer.rows.iter().map(read).collect()
    })
}

/// Deletes at most `rows_max` changes beyond [`HISTORY_ROWS`]; gives how many.
#[must_use]
pub fn prune(rows_max: i64) -> Script<u64> {
    Script::statement(&PRUNE, [HISTORY_ROWS.into(), rows_max.into()], |answer| Ok(answer.affected))
}

/// Age of the oldest change in ms; `None`: there is none.
#[must_use]
pub fn oldest_ms() -> Script<Option<i64>> {
    Script::statement(&OLDEST, [], |answer| answer.rows.first().map_or(Ok(None), |row| row.int_or_null(0)))
}

async fn version(tx: &mut Tx) -> Result<i64, DbError> {
    tx.query_opt(&VERSION, []).await?.map_or(Ok(0), |row| row.int(0))
}

/// `None` for the row that has the version alone.
fn stored(row: &Row) -> Option<Result<Stored, DbError>> {
    let section = row.text_or_null(1).transpose()?;
    let read = |section: &str| {
        Ok(Stored {
            section: section.to_owned(),
            key: row.text(2)?.to_owned(),
            value: row.text(3)?.to_owned(),
            who: row.text(4)?.to_owned(),
            at_ms: row.int(5)?,
        })
    };
    Some(section.and_then(read))
}
