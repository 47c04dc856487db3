//! What has an age limit is deleted by the leader, in bounded batches.
//!
//! Owns: which kinds of rows there are and when each is looked at; the age of the oldest of each, for the metrics.
//! Never: knows a table. Each part hands in its own kinds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cluster_core::scripts::{reap, ticket};
use cluster_core::{Boot, statements};
use database::Database;
use database_core::{DbError, Script, Sql, Verdict};

/// Rows of a kind that are deleted in a tick at most: a batch must not hold up what users wait for.
pub const ROWS_PER_TICK: i64 = 1_000;

/// How often a kind is looked at of which nothing was left to delete: an idle leader should cost little more than any
/// other member.
const LOOK_AGAIN: Duration = Duration::from_secs(300);

/// A kind of row with an age limit.
#[derive(Clone)]
pub struct Kept {
    /// Name in metrics and messages, such as `audit`.
    pub name: &'static str,
    /// Deletes at most so many rows that are too old, and says how many it deleted.
    pub prune: Arc<dyn Fn(i64) -> Script<u64> + Send + Sync>,
    /// Age of the oldest row in ms, if there is any.
    pub oldest: Arc<dyn Fn() -> Script<Option<i64>> + Send + Sync>,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Kept").field(&self.name).finish()
    }
}

/// What is known of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Age {
    /// Age of the oldest row when it was last looked at; 0 if there was none.
    pub oldest_ms: u64,
    /// Rows deleted by this process.
    pub deleted: u64,
}

/// All kinds. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Retention(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    kinds: Vec<(Kept, Boot)>,
    ages: BTreeMap<&'static str, Age>,
}

impl Retention {
    /// Adds a kind; one of the same name is replaced.
    pub fn add(&self, kept: Kept) {
        let mut state = self.lock();
        state.kinds.retain(|(other, _)| other.name != kept.name);
        state.ages.entry(kept.name).or_default();
        state.kinds.push((kept, Boot(0)));
    }

    /// What is known of each kind, by name.
    #[must_use]
    pub fn ages(&self) -> BTreeMap<&'static str, Age> {
        self.lock().ages.clone()
    }

    /// A tick of the leader: deletes a batch of each kind that is due. A kind that fails is logged and tried again at
    /// the next tick; the others go on.
    pub async fn tick(&self, database: &Database, now: Boot) {
        let due: Vec<Kept> =
            self.lock().kinds.iter().filter(|(_, at)| *at <= now).map(|(kept, _)| kept.clone()).collect();
        for kept in due {
            match sweep(database, &kept).await {
                Ok((deleted, oldest_ms)) => {
                    let mut state = self.lock();
                    let age = state.ages.entry(kept.name).or_default();
                    age.deleted += deleted;
                    age.oldest_ms = oldest_ms;
                    let is_done = deleted < ROWS_PER_TICK.unsigned_abs();
                    let next = if is_done { now.plus(LOOK_AGAIN) } else { now };
                    state.kinds.iter_mut().filter(|(other, _)| other.name == kept.name).for_each(|(_, at)| *at = next);
                }
                Err(error) => tracing::warn!("old rows of {} could not be deleted: {error}", kept.name),
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

static OLDEST_REQUEST: Sql = Sql::new(
    "retention.oldest_request",
    "SELECT floor(extract(epoch FROM clock_timestamp() - min(created_at)) * 1000)::bigint FROM request",
    "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) - min(created_at) FROM request",
);
static OLDEST_COUNTER: Sql = Sql::new(
    "retention.oldest_counter",
    "SELECT floor(extract(epoch FROM clock_timestamp() - min(window_end)) * 1000)::bigint FROM counter",
    "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) - min(window_end) FROM counter",
);
static OLDEST_CACHE_CHANGE: Sql = Sql::new(
    "retention.oldest_cache_change",
    "SELECT floor(extract(epoch FROM clock_timestamp() - min(at)) * 1000)::bigint FROM cache_change",
    "",
);
static NOTHING: Sql = Sql::same("retention.nothing", "SELECT NULL WHERE 1 = 0");

/// The statements, for the suite that prepares them all.
pub const STATEMENTS: &[&Sql] = &[&OLDEST_REQUEST, &OLDEST_COUNTER, &OLDEST_CACHE_CHANGE, &NOTHING];

/// The cluster's own kinds, kept as a reap keeps them: a reap deletes a batch of them at each lease, this the rest.
#[must_use]
pub fn own_kinds(kept: reap::Kept) -> Vec<Kept> {
    let by_age = |name, prune: &'static Sql, age: Duration, oldest: &'static Sql| Kept {
        name,
        prune: Arc::new(move |rows_max| {
            let age_ms = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
            Script::statement(prune, [age_ms.into(), rows_max.into()], |answer| Ok(answer.affected))
        }),
        oldest: Arc::new(move || oldest_ms(oldest)),
    };
    let mut kinds = vec![
        by_age("request", &statements::request::PRUNE, kept.requests, &OLDEST_REQUEST),
        by_age("counter", &statements::counter::PRUNE, kept.counters, &OLDEST_COUNTER),
        Kept {
            name: "ticket_key",
            prune: Arc::new(|_| {
                Script::transaction(|mut tx| async move { Ok(Verdict::Commit(ticket::prune_keys(&mut tx).await?)) })
            }),
            // Unused keys have no age: they go at the next look.
            oldest: Arc::new(|| oldest_ms(&NOTHING)),
        },
    ];
    if let Some(age) = kept.cache_changes {
        kinds.push(by_age("cache_change", &statements::cache::PRUNE, age, &OLDEST_CACHE_CHANGE));
    }
    kinds
}

fn oldest_ms(sql: &'static Sql) -> Script<Option<i64>> {
    Script::statement(sql, [], |answer| answer.rows.first().map_or(Ok(None), |row| row.int_or_null(0)))
}

async fn sweep(database: &Database, kept: &Kept) -> Result<(u64, u64), DbError> {
    let deleted = database.run_once((kept.prune)(ROWS_PER_TICK)).await?;
    let oldest = database.read((kept.oldest)()).await?;
    Ok((deleted, u64::try_from(oldest.unwrap_or(0)).unwrap_or(0)))
}
