//! Which database the configuration means, and its schema.

use std::path::{Path, PathBuf};
use std::time::Duration;

use database::postgres::{Connector, Dsn, DsnError, Postgres, SettingsError};
use database::sqlite::{self, OpenError, Sqlite};
use database::{Database, Limits};
use database_core::Migration;
use tenure_config::{Config, DatabaseSync, DatabaseUrl, Pooler};

use crate::store;

/// All steps of the schema. Parts that come later append theirs.
pub const MIGRATIONS: &[Migration] = &[
    Migration::new(1, "cluster", cluster_core::schema::POSTGRES, cluster_core::schema::SQLITE, 1),
    Migration::new(2, "daemon", store::schema::POSTGRES, store::schema::SQLITE, 2),
];

/// The newest schema that this program knows.
#[expect(clippy::cast_possible_truncation, reason = "the list has a few entries")]
pub const SCHEMA_VERSION: u32 = MIGRATIONS.len() as u32;

/// Why the database of the configuration cannot be used. It is not that it does not answer: that passes.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The address is none.
    #[error("[database] {option}: {reason}")]
    Address {
        /// Which option.
        option: &'static str,
        /// What is wrong with it.
        reason: DsnError,
    },
    /// The settings do not fit.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The file is somebody else's, or cannot be protected.
    #[error(transparent)]
    File(#[from] OpenError),
    /// The folder of the file cannot be made.
    #[error("failed to make the folder {}: {source}", path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// The database, and for PostgreSQL the way past a pooler.
#[derive(Debug, Clone)]
pub struct Storage {
    /// The database.
    pub database: Database,
    /// Direct connections.
    pub direct: Option<Connector>,
}

/// Opens the database of the configuration. A SQLite file is guarded from here on; PostgreSQL need not answer yet.
/// `role` is what this process is, for those who find the file in use.
///
/// # Errors
///
/// If it cannot be used.
pub fn open(config: &Config, role: &str) -> Result<Storage, StorageError> {
    match &config.database.url {
        DatabaseUrl::Sqlite(path) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder)
                .map_err(|source| StorageError::Folder { path: folder.to_owned(), source })?;
            let mut settings = sqlite::Settings::new(path, role);
            settings.sync = match config.database.sync {
                DatabaseSync::Full => sqlite::Sync::Full,
                DatabaseSync::Normal => sqlite::Sync::Normal,
            };
            Ok(Storage { database: Database::Sqlite(Sqlite::open(&settings)?), direct: None })
        }
        DatabaseUrl::Postgres(url) => {
            let parse =
                |option, text: &str| text.parse::<Dsn>().map_err(|reason| StorageError::Address { option, reason });
            let mut settings = database::postgres::Settings::new(parse("url", url.expose())?);
            settings.direct = match &config.database.direct_url {
                Some(DatabaseUrl::Postgres(url)) => Some(parse("direct_url", url.expose())?),
                Some(DatabaseUrl::Sqlite(_)) | None => None,
            };
            settings.pooler_in_session_mode = config.database.pooler == Pooler::Session;
            settings.pool_size = config.database.pool_size as usize;
            settings.beat = config.cluster.beat;
            settings.limits = Limits::default();
            let statement = config.cluster.statement_timeout;
            settings.timeouts.silence = statement.max(Duration::from_secs(1));
            settings.timeouts.connect = settings.timeouts.connect.min(statement * 2);
            settings.timeouts.grace = settings.timeouts.grace.min(statement);
            let postgres = Postgres::new(settings)?;
            let direct = postgres.direct().clone();
            Ok(Storage { database: Database::Postgres(postgres), direct: Some(direct) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_only_add_and_are_numbered_without_gaps() {
        // C14.
        assert_eq!(Migration::faults(MIGRATIONS), Vec::<String>::new());
    }
}
