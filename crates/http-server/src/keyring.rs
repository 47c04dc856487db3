//! The keys that the door knows, as one unchanging value.
//!
//! Owns: looking a key up, its expiry, and what it may do beside the other keys (W12).
//! Never: changes; whoever manages keys builds another ring and puts it in the first one's place.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::key::{KeyHash, KeyId, KeyText};
use crate::scope::{Scopes, granted};

/// A key, as the daemon knows it.
#[derive(Debug, Clone)]
pub struct Key {
    /// The name that people gave it, for lists and logs.
    pub name: String,
    /// What is stored of it.
    pub hash: KeyHash,
    /// What it may do.
    pub scopes: Scopes,
    /// From when on it is refused, in ms since 1970; `None`: never.
    pub expires_at_ms: Option<i64>,
}

/// Why a key was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyRefused {
    /// No such key is defined.
    #[error("this key is not known here: it was revoked, or belongs to another installation")]
    Unknown,
    /// It was valid once.
    #[error("this key has expired")]
    Expired,
}

/// All keys that are defined, from the database and from the configuration.
#[derive(Debug, Default)]
pub struct Keyring {
    keys: BTreeMap<KeyId, Arc<Key>>,
    /// Whether a key of the scope `execute` or `worker` is defined.
    narrowed: bool,
}

impl Keyring {
    /// A ring of these keys. Of two entries with the same hash the first counts.
    ///
    /// Expired keys belong in: they are refused by name, and as long as they are defined they narrow what a `write` key
    /// may do. Otherwise a key would gain power because another one's time has come.
    pub fn new(keys: impl IntoIterator<Item = Key>) -> Keyring {
        let mut ring = Keyring::default();
        for key in keys {
            ring.narrowed |= key.scopes.narrows_write();
            ring.keys.entry(key.hash.id()).or_insert_with(|| Arc::new(key));
        }
        ring
    }

    /// Whether no key is defined at all, so that the door answers everybody on loopback.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// How many keys are defined.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// The key with this text, and all that it may do, at `now_ms` (ms since 1970).
    ///
    /// # Errors
    ///
    /// If it is not defined or has expired.
    pub fn check(&self, text: &KeyText, now_ms: i64) -> Result<(Arc<Key>, Scopes), KeyRefused> {
        let hash = text.hash();
        // The id is public, so the look-up may take as long as it likes; the hash is compared in constant time.
        let key = self.keys.get(&hash.id()).filter(|key| key.hash.matches(&hash)).ok_or(KeyRefused::Unknown)?;
        if key.expires_at_ms.is_some_and(|end| end <= now_ms) {
            return Err(KeyRefused::Expired);
        }
        Ok((Arc::clone(key), granted(key.scopes, self.narrowed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::SECRET_BYTES;
    use crate::scope::Scope;

    fn text(fill: u8) -> KeyText {
        KeyText::from_random([fill; SECRET_BYTES])
    }

    fn key(fill: u8, scopes: &[Scope], expires_at_ms: Option<i64>) -> Key {
        let scopes = scopes.iter().copied().collect();
        Key { name: format!("key {fill}"), hash: text(fill).hash(), scopes, expires_at_ms }
    }

    #[test]
    fn a_key_is_found_by_its_text_until_it_expires() {
        let ring = Keyring::new([key(1, &[Scope::Read], Some(1000)), key(2, &[Scope::Worker], None)]);
        assert_eq!(ring.len(), 2);
        let (found, granted) = ring.check(&text(1), 999).unwrap();
        assert_eq!((found.name.as_str(), granted), ("key 1", Scopes::from_iter([Scope::Read])));
        assert_eq!(ring.check(&text(1), 1000).unwrap_err(), KeyRefused::Expired);
        assert_eq!(ring.check(&text(3), 0).unwrap_err(), KeyRefused::Unknown);
        assert!(ring.check(&text(2), i64::MAX).is_ok());
        assert!(Keyring::new([]).is_empty());
    }

    #[test]
    fn w12_an_expired_key_goes_on_narrowing_what_write_may_do() {
        let may_claim = |others: Vec<Key>| {
            let ring = Keyring::new(others.into_iter().chain([key(9, &[Scope::Write], None)]));
            ring.check(&text(9), 5000).unwrap().1.contains(Scope::Worker)
        };
        assert!(may_claim(vec![]));
        assert!(may_claim(vec![key(1, &[Scope::Admin, Scope::Read], None)]));
        assert!(!may_claim(vec![key(1, &[Scope::Execute], None)]));
        assert!(!may_claim(vec![key(1, &[Scope::Execute], Some(1))]));
    }
}
