//! The text of a key, its id and its hash.
//!
//! Owns: `tn_ID_SECRET`, how it is made, read and compared.
//! Never: draws randomness by itself, prints a secret, stores one.
//!
//! ```text
//! tn_ 0f3c…  _ 9a41…                    in lower-case hexadecimal
//!     │         └ SECRET: 32 random bytes, 64 digits
//!     └ ID: the first 10 bytes of the secret's hash, 20 digits
//! ```
//!
//! What is stored is the SHA-256 of the SECRET's 64 digits, so that `sha256sum` gives it too. It needs no salt and no
//! slow function: nobody guesses 256 random bits. As the id is derived from the hash, a hash alone defines a key, a key
//! that was cut or mistyped is told from an unknown one, and no entry can carry another one's id.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// Random bytes in a secret.
pub const SECRET_BYTES: usize = 32;
/// What every key begins with, so that scanners for leaked secrets know one when they see it.
pub const KEY_PREFIX: &str = "tn_";
/// What the text of a hash begins with.
const HASH_PREFIX: &str = "sha256:";
const HASH_BYTES: usize = 32;
/// Bytes of the hash that name a key: 80 bits do not collide among any number of keys that somebody has.
const ID_BYTES: usize = 10;
const ID_DIGITS: usize = 2 * ID_BYTES;
const SECRET_DIGITS: usize = 2 * SECRET_BYTES;

/// A key as its holder has it. Nothing prints it but [`KeyText::reveal`].
#[derive(Clone)]
pub struct KeyText(String);

/// Why a text is no key. Never carries the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyTextError {
    /// Something else stands where a key should.
    #[error("this is no key: a key is `tn_`, 20 digits, `_` and 64 digits, all hexadecimal in lower case")]
    Shape,
    /// It has the shape of a key, but its two parts do not belong together.
    #[error("this key is damaged: its two parts do not belong together, so it was cut or mistyped")]
    Damaged,
}

impl KeyText {
    /// The key with this secret, which must come from the system's random numbers.
    pub fn from_random(secret: [u8; SECRET_BYTES]) -> KeyText {
        let secret = HEXLOWER.encode(&secret);
        let id = KeyHash::of_secret(&secret).id();
        KeyText(format!("{KEY_PREFIX}{id}_{secret}"))
    }

    /// A new key from the system's random numbers.
    ///
    /// # Errors
    ///
    /// If the system gives none, which leaves nothing to do but to say so.
    pub fn generate() -> Result<KeyText, getrandom::Error> {
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret)?;
        Ok(KeyText::from_random(secret))
    }

    /// The text itself, for whoever shows it once or sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What is stored of the key.
    pub fn hash(&self) -> KeyHash {
        KeyHash::of_secret(&self.0[self.0.len() - SECRET_DIGITS..])
    }
}

impl FromStr for KeyText {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<KeyText, KeyTextError> {
        let (id, secret) =
            text.strip_prefix(KEY_PREFIX).and_then(|rest| rest.split_once('_')).ok_or(KeyTextError::Shape)?;
        let is_hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if id.len() != ID_DIGITS || secret.len() != SECRET_DIGITS || !is_hex(id) || !is_hex(secret) {
            return Err(KeyTextError::Shape);
        }
        // Who has the secret knows the id, so nothing is told by the time that this comparison takes.
        if KeyHash::of_secret(secret).id().as_str() != id {
            return Err(KeyTextError::Damaged);
        }
        Ok(KeyText(text.to_owned()))
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyText(***)")
    }
}

/// What names a key: in lists, in the audit log, in logs. It is no secret.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct KeyId(String);

impl KeyId {
    /// The 20 digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text that is no id of a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no id of a key: an id has 20 hexadecimal digits in lower case")]
pub struct KeyIdError(String);

impl FromStr for KeyId {
    type Err = KeyIdError;

    fn from_str(text: &str) -> Result<KeyId, KeyIdError> {
        KeyId::try_from(text.to_owned())
    }
}

impl TryFrom<String> for KeyId {
    type Error = KeyIdError;

    fn try_from(text: String) -> Result<KeyId, KeyIdError> {
        match HEXLOWER.decode(text.as_bytes()) {
            Ok(bytes) if bytes.len() == ID_BYTES => Ok(KeyId(text)),
            _ => Err(KeyIdError(text)),
        }
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is stored of a key: written `sha256:` and 64 digits. No usable key follows from it.
///
/// There is no `==`: [`KeyHash::matches`] takes the same time wherever two hashes differ.
#[derive(Clone, Copy)]
pub struct KeyHash([u8; HASH_BYTES]);

impl KeyHash {
    fn of_secret(secret: &str) -> KeyHash {
        KeyHash(Sha256::digest(secret.as_bytes()).into())
    }

    /// The 32 bytes, for a database.
    pub fn to_bytes(self) -> [u8; HASH_BYTES] {
        self.0
    }

    /// What [`KeyHash::to_bytes`] gave.
    ///
    /// # Errors
    ///
    /// If there are not 32 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<KeyHash, KeyHashError> {
        bytes.try_into().map(KeyHash).map_err(|_| KeyHashError)
    }

    /// The id of the key with this hash.
    pub fn id(&self) -> KeyId {
        KeyId(HEXLOWER.encode(&self.0[..ID_BYTES]))
    }

    /// Whether both are the hash of the same key.
    pub fn matches(&self, other: &KeyHash) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

/// A text that is no hash of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the hash of a key is `sha256:` and 64 hexadecimal digits in lower case, as `tenure key create` shows it")]
pub struct KeyHashError;

impl FromStr for KeyHash {
    type Err = KeyHashError;

    fn from_str(text: &str) -> Result<KeyHash, KeyHashError> {
        let digits = text.strip_prefix(HASH_PREFIX).ok_or(KeyHashError)?;
        let bytes = HEXLOWER.decode(digits.as_bytes()).map_err(|_| KeyHashError)?;
        Ok(KeyHash(bytes.try_into().map_err(|_| KeyHashError)?))
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{HASH_PREFIX}{}", HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyHash({}…)", self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(fill: u8) -> KeyText {
        KeyText::from_random([fill; SECRET_BYTES])
    }

    #[test]
    fn a_key_is_read_as_it_was_made_and_its_hash_is_sha256_of_the_secrets_digits() {
        let made = key(0xab);
        let read: KeyText = made.reveal().parse().unwrap();
        assert!(read.hash().matches(&made.hash()));
        // printf %s abab…ab | sha256sum
        let digest = "271a413bd339c5709fdceaec41f14f11e9fbfb5042d72d331c65f32b284cd09a";
        assert_eq!(made.hash().to_string(), format!("sha256:{digest}"));
        let text = made.reveal();
        assert_eq!(text.len(), 3 + 20 + 1 + 64);
        assert_eq!(&text[3..23], made.hash().id().as_str());
        assert!(made.hash().to_string().parse::<KeyHash>().unwrap().matches(&made.hash()));
        assert!(!made.hash().matches(&key(0xac).hash()));
        assert!(KeyHash::from_bytes(&made.hash().to_bytes()).unwrap().matches(&made.hash()));
        assert_eq!(KeyHash::from_bytes(&[0; 31]).unwrap_err(), KeyHashError);
    }

    #[test]
    fn what_is_no_key_is_refused_and_a_cut_or_mistyped_one_is_told_apart() {
        let text = key(7).reveal().to_owned();
        for wrong in ["", "tn_", "tn__", "bearer", &text[1..], &text[..text.len() - 1], &format!("{text}0")] {
            assert_eq!(wrong.parse::<KeyText>().unwrap_err(), KeyTextError::Shape, "{wrong}");
        }
        assert_eq!(text.to_uppercase().parse::<KeyText>().unwrap_err(), KeyTextError::Shape);
        assert_eq!(format!(" {text}").parse::<KeyText>().unwrap_err(), KeyTextError::Shape);
        // Each single digit, changed.
        for place in (3..text.len()).filter(|place| *place != 23) {
            let mut bytes = text.clone().into_bytes();
            bytes[place] = if bytes[place] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(bytes).unwrap();
            assert_eq!(changed.parse::<KeyText>().unwrap_err(), KeyTextError::Damaged, "digit {place}");
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let key = KeyText::generate().unwrap();
        let secret = &key.reveal()[24..];
        let shown = format!("{key:?} {:?} {:?} {}", key.hash(), key.hash().id(), key.hash().id());
        assert!(!shown.contains(secret), "{shown}");
        assert_eq!(format!("{key:?}"), "KeyText(***)");
        assert!(!format!("{:?}", secret.parse::<KeyText>().unwrap_err()).contains(secret));
    }

    #[test]
    fn two_keys_differ() {
        assert_ne!(KeyText::generate().unwrap().reveal(), KeyText::generate().unwrap().reveal());
    }

    #[test]
    fn ids_and_hashes_are_read_strictly() {
        let id = key(1).hash().id();
        assert_eq!(id.as_str().parse::<KeyId>().unwrap(), id);
        assert!("xyz".parse::<KeyId>().is_err());
        assert!(id.as_str().to_uppercase().parse::<KeyId>().is_err());
        for wrong in ["", "sha256:", "sha256:00", "md5:00", &"0".repeat(64)] {
            assert_eq!(wrong.parse::<KeyHash>().unwrap_err(), KeyHashError, "{wrong}");
        }
    }
}
