//! What the command line does itself while no daemon runs: it takes the daemon's place at the database for a moment.
//!
//! Owns: opening the database for one call; on SQLite the file's lock says who has it if it cannot be had.
//! Never: registers as a member.

use database::Database;
use database::schema::{self, SchemaError};
use database_core::DbError;
use http_server::{KeyHash, Scope};
use tenure_config::{Config, ConfigPage, OverlayKey};

use crate::live::{ChangeError, Live};
use crate::storage::{self, MIGRATIONS, StorageError};
use crate::store::keys::{self, NewKey};
use crate::{daemon, keys as ring};

/// Why a call without a daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// The database cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Its schema does not fit.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// It fails.
    #[error(transparent)]
    Database(#[from] DbError),
    /// Another key has this name.
    #[error("a key named {0:?} is there already")]
    KeyExists(String),
    /// The option is not changed.
    #[error("{0}")]
    Change(String),
    /// This process lacks something.
    #[error("failed to start: {0}")]
    System(#[from] std::io::Error),
}

/// Stores a key.
///
/// # Errors
///
/// Why not; nothing was stored then.
pub fn create_key(
    config: &Config,
    name: &str,
    scopes: &[Scope],
    hash: &KeyHash,
    life_seconds: Option<u64>,
) -> Result<(), OfflineError> {
    let key = NewKey {
        id: hash.id().as_str().to_owned(),
        name: name.to_owned(),
        hash: hash.to_string().into_bytes(),
        scopes: scopes.iter().map(Scope::to_string).collect::<Vec<_>>().join(","),
        created_by: "command line".to_owned(),
        life_ms: life_seconds.map(|seconds| i64::try_from(seconds.saturating_mul(1_000)).unwrap_or(i64::MAX)),
    };
    with_database(config, "tenure key create", async |database| {
        let caches = daemon::cache_statement(&database).map(|sql| (sql, ring::CACHE));
        if database.run(|| keys::insert(key.clone(), caches)).await? {
            database.notices().send(cluster_core::channel::CACHE, "");
            return Ok(());
        }
        Err(OfflineError::KeyExists(name.to_owned()))
    })
}

/// Sets an option in the database, or removes it; gives what is in force of it then.
///
/// # Errors
///
/// Why not; nothing was changed then.
pub fn change_option(config: &Config, place: &OverlayKey, value: Option<String>) -> Result<ConfigPage, OfflineError> {
    with_database(config, "tenure config set", async |database| {
        let live = Live::new(config.clone());
        let caches = daemon::cache_statement(&database);
        match live.change(&database, place, value, "command line", caches).await {
            Ok(version) => {
                database.notices().send(cluster_core::channel::CACHE, "");
                Ok(ConfigPage::of(&live.get(), version, Some(place)))
            }
            Err(ChangeError::Database(error)) => Err(error.into()),
            Err(error) => Err(OfflineError::Change(error.to_string())),
        }
    })
}

/// Who has the SQLite file of the configuration, if somebody does; for one that is free, and for PostgreSQL, nothing.
#[must_use]
pub fn file_in_use(config: &Config) -> Option<String> {
    match config.database.url {
        tenure_config::DatabaseUrl::Sqlite(_) => match storage::open(config, "tenure key create") {
            Err(StorageError::File(error @ database::sqlite::OpenError::Held { .. })) => Some(error.to_string()),
            _ => None,
        },
        tenure_config::DatabaseUrl::Postgres(_) => None,
    }
}

fn with_database<T>(
    config: &Config,
    role: &str,
    work: impl AsyncFnOnce(Database) -> Result<T, OfflineError>,
) -> Result<T, OfflineError> {
    /// How long a hint to other members may take.
    const HINT_MAX: std::time::Duration = std::time::Duration::from_secs(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let database = storage::open(config, role)?.database;
        schema::migrate(&database, MIGRATIONS, daemon::PROGRAM).await?;
        let result = work(database.clone()).await;
        match &database {
            Database::Sqlite(file) => file.close().await,
            Database::Postgres(_) => drop(database.notices().flush(HINT_MAX).await),
        }
        result
    })
}
