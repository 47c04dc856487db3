//! The configuration in force: the file's, with what the database says over it.
//!
//! Owns: the base that this process was started with, the rows that were read last, and what both make.
//! Never: takes over a set of rows that does not make a configuration; the last one that did stays in force.

use std::sync::Arc;

use database::Database;
use database_core::DbError;
use tenure_config::{Config, ConfigError, OverlayKey, OverlayRow, with_overlay};
use tokio::sync::watch;

use crate::store::config::{self, Applied, Overlay, Stored};

/// Name under which changes are told to all members.
pub(crate) const CACHE: &str = "config";
/// How often a change is checked anew because somebody else changed something meanwhile.
const ATTEMPTS_MAX: u32 = 10;

/// The configuration in force. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    base: watch::Sender<Arc<Config>>,
    current: watch::Sender<Arc<Config>>,
}

/// Why an option was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    /// It would not be a configuration, or may not be set in the database.
    #[error(transparent)]
    Refused(#[from] ConfigError),
    /// Nothing is set there.
    #[error("{0} is not set in the database")]
    NotSet(String),
    /// Others change the configuration all the time.
    #[error("the configuration was changed by others meanwhile, {ATTEMPTS_MAX} times in a row; try again")]
    Moved,
    /// The database refuses.
    #[error(transparent)]
    Database(#[from] DbError),
}

impl Live {
    pub(crate) fn new(base: Config) -> Self {
        let base = Arc::new(base);
        Self { base: watch::Sender::new(Arc::clone(&base)), current: watch::Sender::new(base) }
    }

    /// The configuration of the file was read anew; [`Live::reload`] puts it in force. What is only looked at when the process
    /// starts stays as it was until then.
    pub(crate) fn set_base(&self, base: Arc<Config>) {
        self.base.send_replace(base);
    }

    fn base(&self) -> Arc<Config> {
        Arc::clone(&self.base.borrow())
    }

    /// What is in force.
    pub(crate) fn get(&self) -> Arc<Config> {
        Arc::clone(&self.current.borrow())
    }

    /// What is in force, and a way to learn of the next.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Config>> {
        self.current.subscribe()
    }

    /// Reads the rows again.
    ///
    /// # Errors
    ///
    /// What the database says. Rows that make no configuration are logged, and nothing changes.
    pub(crate) async fn reload(&self, database: &Database) -> Result<(), DbError> {
        let overlay = database.read(config::read()).await?;
        match with_overlay(&self.base(), &rows(&overlay.rows)) {
            Ok(config) => {
                self.current.send_if_modified(|current| {
                    let is_other = **current != config;
                    if is_other {
                        *current = Arc::new(config);
                    }
                    is_other
                });
            }
            Err(error) => tracing::error!("the options in the database do not fit this process's own: {error}"),
        }
        Ok(())
    }

    /// Sets an option in the database, or with `None` removes it, if the whole is a configuration then. Gives the version.
    ///
    /// # Errors
    ///
    /// Why not; nothing was changed then.
    pub(crate) async fn change(
        &self,
        database: &Database,
        place: &OverlayKey,
        value: Option<String>,
        who: &str,
        caches: Option<&'static database_core::Sql>,
    ) -> Result<i64, ChangeError> {
        for _ in 0..ATTEMPTS_MAX {
            let Overlay { version, rows: mut stored } = database.read(config::read()).await?;
            stored.retain(|row| (&row.section, &row.key) != (&place.section, &place.key));
            if let Some(value) = &value {
                stored.push(Stored {
                    section: place.section.clone(),
                    key: place.key.clone(),
                    value: value.clone(),
                    who: who.to_owned(),
                    at_ms: 0,
                });
            }
            with_overlay(&self.base(), &rows(&stored))?;
            let change = || {
                let place = (place.section.clone(), place.key.clone());
                config::change(version, place, value.clone(), who.to_owned(), caches.map(|sql| (sql, CACHE)))
            };
            match database.run(change).await? {
                Applied::Done(version) => {
                    self.reload(database).await?;
                    return Ok(version);
                }
                Applied::Nothing => return Err(ChangeError::NotSet(place.text())),
                Applied::Moved => {}
            }
        }
        Err(ChangeError::Moved)
    }
}

fn rows(stored: &[Stored]) -> Vec<OverlayRow> {
    let row = |row: &Stored| OverlayRow {
        place: OverlayKey { section: row.section.clone(), key: row.key.clone() },
        value: row.value.clone(),
        who: row.who.clone(),
        at_ms: row.at_ms,
    };
    stored.iter().map(row).collect()
}
