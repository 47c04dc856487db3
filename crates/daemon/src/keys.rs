//! The keys in force: those of the configuration and those of the database.
//!
//! Owns: reading both, and how often each was used since the last beat.
//! Never: keeps a secret; of a key in a file only the hash stays.

use std::sync::Arc;

use database::Database;
use database_core::DbError;
use http_server::{Door, Key, KeyHash, KeyText, Keyring, Scope, Scopes};
use tenure_config::{Config, KeySource};
use tokio::sync::watch;

use crate::store::keys::{self, KeyUse, StoredKey};

/// Name under which changes are told to all members.
pub(crate) const CACHE: &str = "keys";

/// Why a key of the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Its file cannot be used.
    #[error("[keys.{name}] file: {reason}")]
    File {
        /// Name of the entry.
        name: String,
        /// Why, and what would be right.
        reason: String,
    },
    /// Its hash cannot be used.
    #[error("[keys.{name}] hash: {reason}")]
    Hash {
        /// Name of the entry.
        name: String,
        /// What would be right.
        reason: http_server::KeyHashError,
    },
}

/// Largest file of a key, in bytes: a key has about a hundred.
const FILE_BYTES_MAX: u64 = 4_096;

/// The keys that the configuration names.
///
/// # Errors
///
/// The first that cannot be used.
pub(crate) fn of_config(config: &Config) -> Result<Vec<Key>, KeyError> {
    let key = |(name, entry): (&String, &tenure_config::KeyEntry)| {
        let hash = match &entry.source {
            KeySource::Hash(hash) => {
                hash.expose().parse().map_err(|reason| KeyError::Hash { name: name.clone(), reason })?
            }
            KeySource::File(path) => {
                key_file(path).map_err(|reason| KeyError::File { name: name.clone(), reason })?.hash()
            }
        };
        let scopes = entry.scopes.iter().filter_map(|scope| scope.to_string().parse::<Scope>().ok()).collect();
        Ok(Key { name: name.clone(), hash, scopes, expires_at_ms: None })
    };
    config.keys.iter().map(key).collect()
}

/// Reads a key from a file that nobody but its owner may read.
///
/// # Errors
///
/// What is wrong with it, and what would be right.
pub(crate) fn key_file(path: &std::path::Path) -> Result<KeyText, String> {
    use std::io::Read as _;
    use std::os::unix::fs::MetadataExt as _;
    let shown = path.display();
    let file = std::fs::File::open(path).map_err(|error| format!("failed to open {shown}: {error}"))?;
    let mode = file.metadata().map_err(|error| format!("failed to look at {shown}: {error}"))?.mode();
    if mode & 0o077 != 0 {
        return Err(format!("{shown} can be read by others (mode {:04o}): `chmod 600 {shown}`", mode & 0o7777));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|error| format!("failed to read {shown}: {error}"))?;
    text.trim().parse().map_err(|error| format!("{shown} holds no key: {error}"))
}

/// The keys in force.
pub(crate) struct Keys {
    of_config: Vec<Key>,
    ring: watch::Sender<Option<Arc<Keyring>>>,
}

impl Keys {
    /// Not known yet: nothing that needs a key is answered.
    pub(crate) fn new(of_config: Vec<Key>) -> Self {
        Self { of_config, ring: watch::Sender::new(None) }
    }

    /// For the door.
    pub(crate) fn ring(&self) -> watch::Receiver<Option<Arc<Keyring>>> {
        self.ring.subscribe()
    }

    /// Those of the configuration.
    pub(crate) fn of_config(&self) -> &[Key] {
        &self.of_config
    }

    /// Reads the database's keys again. Gives how many keys there are in all.
    ///
    /// # Errors
    ///
    /// What the database says; the keys that were known stay in force.
    pub(crate) async fn reload(&self, database: &Database) -> Result<usize, DbError> {
        let stored = database.read(keys::list()).await?;
        let in_database = stored.iter().filter(|key| key.revoked_at_ms.is_none()).filter_map(key_of);
        let ring = Keyring::new(self.of_config.iter().cloned().chain(in_database));
        let count = ring.len();
        self.ring.send_replace(Some(Arc::new(ring)));
        Ok(count)
    }
}

fn key_of(stored: &StoredKey) -> Option<Key> {
    let hash = String::from_utf8(stored.hash.clone()).ok().and_then(|text| text.parse::<KeyHash>().ok());
    let scopes = stored.scopes.split(',').map(str::parse::<Scope>).collect::<Result<Scopes, _>>().ok();
    if hash.is_none() || scopes.is_none() {
        tracing::error!("key {} ({}) in the database cannot be understood, and is refused", stored.id, stored.name);
    }
    Some(Key { name: stored.name.clone(), hash: hash?, scopes: scopes?, expires_at_ms: stored.expires_at_ms })
}

/// Writes how often keys were used since the last time. What is lost at a crash is a count of some seconds.
pub(crate) async fn write_uses(database: &Database, door: &Door, now_ms: i64) {
    let uses: Vec<KeyUse> = door
        .take_key_uses()
        .into_iter()
        .map(|(id, used)| KeyUse {
            id: id.as_str().to_owned(),
            uses: used.count,
            ago_ms: u64::try_from(now_ms - used.last_ms).unwrap_or(0),
        })
        .collect();
    if uses.is_empty() {
        return;
    }
    if let Err(error) = database.run(|| keys::used(&uses)).await {
        tracing::warn!("uses of keys were not written: {error}");
    }
}
