//! Brings the schema up to date, and says whether program and database belong together.
//!
//! Owns: the tables `schema_version` (one row) and `schema_migration` (a row per step), the transaction of a step.
//! Never: knows a table of the parts above; they hand in their steps.
//!
//! One process migrates at a time, and each step is one transaction: what a step makes and the number it brings are
//! there together or not at all.

use std::sync::Arc;
use std::time::Duration;

use database_core::{Class, DbError, Fit, Migration, Schema, Script, Sql, Tx, Verdict};

use crate::sqlite::EXECUTE_TEXT;
use crate::{Database, Kind, Limits};

/// Limits of a step, which may build an index over many rows or wait for another process that does. Locks of tables are
/// waited for more briefly, see [`TABLE_LOCK`].
const LIMITS: Limits = Limits {
    statement: Duration::from_secs(600),
    lock: Duration::from_secs(600),
    idle: Duration::from_secs(10),
    transaction: Duration::from_secs(1200),
};
/// How long a step waits for the lock of a table: meanwhile everybody else waits behind it.
const TABLE_LOCK: Duration = Duration::from_secs(2);
/// Times that a step is tried whose failure passes by itself.
const ATTEMPTS_MAX: u32 = 10;
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);
/// Key of the advisory lock: the letters `tenure` as a number.
const LOCK_KEY: i64 = 0x7465_6e75_7265;

static LOCK: Sql = Sql::new("schema.lock", "SELECT pg_advisory_xact_lock($1) IS NULL", "SELECT $1 IS NULL");
static TABLE_LOCK_LIMIT: Sql =
    Sql::new("schema.table_lock_limit", "SELECT set_config('lock_timeout', $1, true)", "SELECT $1");
static EXISTS: Sql = Sql::new(
    "schema.exists",
    "SELECT to_regclass('schema_version') IS NOT NULL",
    "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'schema_version')",
);
static CREATE_VERSION: Sql = Sql::new(
    "schema.create_version",
    "CREATE TABLE schema_version (one boolean PRIMARY KEY CHECK (one), version bigint NOT NULL, \
     oldest bigint NOT NULL, program text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())",
    "CREATE TABLE schema_version (one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL, \
     oldest INTEGER NOT NULL, program TEXT NOT NULL, \
     at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER))) STRICT",
);
static CREATE_MIGRATION: Sql = Sql::new(
    "schema.create_migration",
    "CREATE TABLE schema_migration (version bigint PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, \
     program text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())",
    "CREATE TABLE schema_migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, \
     program TEXT NOT NULL, at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER))) STRICT",
);
/// Gives number, oldest and program.
static READ: Sql = Sql::same("schema.read", "SELECT version, oldest, program FROM schema_version");
/// Gives number and checksum of each step that was done.
static DONE: Sql = Sql::same("schema.done", "SELECT version, checksum FROM schema_migration ORDER BY version");
/// Takes number, oldest and program.
static WRITE: Sql = Sql::new(
    "schema.write",
    "INSERT INTO schema_version (one, version, oldest, program) VALUES (true, $1, $2, $3) ON CONFLICT (one) DO UPDATE \
     SET version = excluded.version, oldest = excluded.oldest, program = excluded.program, at = clock_timestamp()",
    "INSERT INTO schema_version (one, version, oldest, program) VALUES (1, $1, $2, $3) ON CONFLICT (one) DO UPDATE \
     SET version = excluded.version, oldest = excluded.oldest, program = excluded.program, \
     at = CAST(unixepoch('subsec') * 1000 AS INTEGER)",
);
/// Takes number, name, checksum and program.
static ADD: Sql =
    Sql::same("schema.add", "INSERT INTO schema_migration (version, name, checksum, program) VALUES ($1, $2, $3, $4)");
// A text of several statements cannot be executed with parameters, but a procedure can execute one that it is given.
static HAND_OVER: Sql = Sql::new("schema.hand_over", "SELECT set_config('tenure.migration', $1, true) IS NULL", "");
static EXECUTE: Sql = Sql::new("schema.execute", "DO $$ BEGIN EXECUTE current_setting('tenure.migration'); END $$", "");

/// What a migration did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migrated {
    /// Number of the schema before; 0 if there was none.
    pub before: u32,
    /// Number of the schema after.
    pub after: u32,
}

/// Why the schema is not as the program needs it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// The program's own steps are wrong: a defect.
    #[error("the steps of the schema are wrong: {}", .0.join("; "))]
    Steps(Vec<String>),
    /// The program is too old, or steps are missing. Text: which side is older.
    #[error("{0}")]
    Unfit(Fit),
    /// A step that was done had another text then.
    #[error(
        "step {version} `{name}` of the schema was done with another text than this program has; it is no release of \
         the same line"
    )]
    Changed {
        /// Number of the step.
        version: u32,
        /// Its name.
        name: &'static str,
    },
    /// A step failed, and the schema is as it was before that step.
    #[error("step {version} `{name}` of the schema failed: {source}")]
    Step {
        /// Number of the step.
        version: u32,
        /// Its name.
        name: &'static str,
        /// What the database said.
        source: DbError,
    },
    /// The database could not be asked.
    #[error("failed to read the schema's version: {0}")]
    Database(#[from] DbError),
}

/// Reads the schema's number. A database without the table has number 0.
///
/// # Errors
///
/// What the database says.
pub async fn read(database: &Database) -> Result<Schema, DbError> {
    database.read(reading()).await
}

/// What [`read`] runs, for a connection that is not the database's own.
#[must_use]
pub fn reading() -> Script<Schema> {
    Script::transaction(|mut tx| async move { Ok(Verdict::RollBack(read_in(&mut tx).await?)) })
}

/// Whether a program that knows the schema up to number `known` can work on this database at present.
///
/// # Errors
///
/// What the database says.
pub async fn check(database: &Database, known: u32) -> Result<Fit, DbError> {
    Ok(Fit::of(read(database).await?, known))
}

/// Does the steps that are missing. `program` is written beside each, such as `tenure 0.1.0`. A schema that is newer
/// than the program knows is left alone, and is no error if the program may use it.
///
/// # Errors
///
/// [`SchemaError`] by reaction. The steps before the one that failed are done.
pub async fn migrate(database: &Database, steps: &[Migration], program: &str) -> Result<Migrated, SchemaError> {
    let faults = Migration::faults(steps);
    if !faults.is_empty() {
        return Err(SchemaError::Steps(faults));
    }
    let steps: Arc<[Migration]> = steps.into();
    let known = steps.last().map_or(0, |step| step.version);
    let before = read(database).await?;
    let mut after = before.version;
    loop {
        match step(database, &steps, program, after).await? {
            Progress::Done(version) => after = version,
            Progress::Nothing(schema) => {
                return match Fit::of(schema.clone(), known) {
                    Fit::Fits => Ok(Migrated { before: before.version, after: schema.version }),
                    unfit => Err(SchemaError::Unfit(unfit)),
                };
            }
            Progress::Changed(index) => {
                let Migration { version, name, .. } = steps[index];
                return Err(SchemaError::Changed { version, name });
            }
        }
    }
}

enum Progress {
    /// This step was done.
    Done(u32),
    /// No step of this program is missing.
    Nothing(Schema),
    /// The step at this place was done with another text.
    Changed(usize),
}

/// Does the next step, if one is missing. `after` is the number that is there as far as is known, for messages.
async fn step(
    database: &Database,
    steps: &Arc<[Migration]>,
    program: &str,
    after: u32,
) -> Result<Progress, SchemaError> {
    let mut attempt = 1;
    loop {
        let result = database.run_with(LIMITS, script(database.kind(), Arc::clone(steps), program.to_owned())).await;
        match result {
            Ok(progress) => return Ok(progress),
            // Whether an unknown commit happened is seen by looking again.
            Err(error) if attempt < ATTEMPTS_MAX && (error.class.may_repeat() || error.class == Class::Unknown) => {
                tracing::warn!(%error, attempt, "a step of the schema is tried again");
                attempt += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(source) => {
                return Err(match steps.iter().find(|step| step.version > after) {
                    Some(&Migration { version, name, .. }) => SchemaError::Step { version, name, source },
                    None => SchemaError::Database(source),
                });
            }
        }
    }
}

fn script(kind: Kind, steps: Arc<[Migration]>, program: String) -> Script<Progress> {
    Script::transaction(move |mut tx| async move {
        tx.query(&LOCK, [LOCK_KEY.into()]).await?;
        tx.query(&TABLE_LOCK_LIMIT, [TABLE_LOCK.as_millis().to_string().into()]).await?;
        let schema = read_in(&mut tx).await?;
        if schema.version > 0 {
            for row in tx.query(&DONE, []).await? {
                let place = steps.iter().position(|step| i64::from(step.version) == row.int(0).unwrap_or(0));
                let Some(index) = place else { continue };
                if row.text(1)? != checksum(kind, &steps[index]) {
                    return Ok(Verdict::RollBack(Progress::Changed(index)));
                }
            }
        }
        let Some(step) = steps.iter().find(|step| step.version == schema.version + 1) else {
            return Ok(Verdict::RollBack(Progress::Nothing(schema)));
        };
        if !exists(&mut tx).await? {
            tx.execute(&CREATE_VERSION, []).await?;
            tx.execute(&CREATE_MIGRATION, []).await?;
        }
        match kind {
            Kind::Postgres => {
                tx.query(&HAND_OVER, [step.postgres.into()]).await?;
                tx.execute(&EXECUTE, []).await?;
            }
            Kind::Sqlite => {
                tx.execute(&EXECUTE_TEXT, [step.sqlite.into()]).await?;
            }
        }
        let checksum = checksum(kind, step);
        tx.execute(&ADD, [step.version.into(), step.name.into(), checksum.into(), program.as_str().into()]).await?;
        tx.execute(&WRITE, [step.version.into(), step.oldest_program.into(), program.into()]).await?;
        Ok(Verdict::Commit(Progress::Done(step.version)))
    })
}

async fn exists(tx: &mut Tx) -> Result<bool, DbError> {
    tx.query_opt(&EXISTS, []).await?.map_or(Ok(false), |row| row.bool(0))
}

async fn read_in(tx: &mut Tx) -> Result<Schema, DbError> {
    let none = || Schema { version: 0, oldest: 0, program: String::new() };
    if !exists(tx).await? {
        return Ok(none());
    }
    let Some(row) = tx.query_opt(&READ, []).await? else { return Ok(none()) };
    let number = |column| {
        let value = row.int(column)?;
        u32::try_from(value).map_err(|_| DbError::new(Class::Broken, format!("the schema's number is {value}")))
    };
    Ok(Schema { version: number(0)?, oldest: number(1)?, program: row.text(2)?.to_owned() })
}

/// Of a step's text for this database.
fn checksum(kind: Kind, step: &Migration) -> String {
    let text = match kind {
        Kind::Postgres => step.postgres,
        Kind::Sqlite => step.sqlite,
    };
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
}
