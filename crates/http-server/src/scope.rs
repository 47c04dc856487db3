//! What a key may do.
//!
//! Owns: the six scopes, sets of them, and the rule of which scopes serve for others (W12).
//! Never: knows a key, a route or a request.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

/// One thing that a key may be allowed to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Look at anything but keys and the audit log.
    Read,
    /// Store definitions.
    Write,
    /// Start, signal, cancel: whatever makes runs and messages go or stop.
    Execute,
    /// Claim steps and settle them.
    Worker,
    /// Publish events.
    Events,
    /// Everything, and keys, configuration and the audit log.
    Admin,
}

impl Scope {
    /// All scopes, in the order in which they are written.
    pub const ALL: [Scope; 6] = [Scope::Read, Scope::Write, Scope::Execute, Scope::Worker, Scope::Events, Scope::Admin];

    /// The scope's word, as in the configuration and in answers.
    pub const fn word(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Write => "write",
            Scope::Execute => "execute",
            Scope::Worker => "worker",
            Scope::Events => "events",
            Scope::Admin => "admin",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A word that names no scope.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no scope; scopes are read, write, execute, worker, events and admin")]
pub struct UnknownScope(String);

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(word: &str) -> Result<Scope, UnknownScope> {
        Scope::ALL.into_iter().find(|scope| scope.word() == word).ok_or_else(|| UnknownScope(word.to_owned()))
    }
}

/// A set of scopes. Written as the list of their words.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u8);

impl Scopes {
    /// No scope at all.
    pub const NONE: Scopes = Scopes(0);

    /// Every scope.
    pub fn all() -> Scopes {
        Scope::ALL.into_iter().collect()
    }

    /// Whether `scope` itself is in the set; what serves for what is [`granted`]'s matter.
    pub const fn contains(self, scope: Scope) -> bool {
        self.0 & scope.bit() != 0
    }

    /// Whether the set has no scope.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The scopes of the set, in the order of [`Scope::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.contains(*scope))
    }

    /// Whether the set has one of the two scopes whose existence narrows `write`, see [`granted`].
    pub const fn narrows_write(self) -> bool {
        self.contains(Scope::Execute) || self.contains(Scope::Worker)
    }
}

/// All that a key with the scopes `held` may do.
///
/// `admin` serves for everything. `write` serves for `execute` and `worker` too, but only as long as `narrowed` is
/// false: as soon as one key of *either* of these two scopes is defined, whoever set the installation up tells them
/// apart, and a `write` key can neither start runs nor claim steps (W12). An `admin` key does not narrow.
pub fn granted(held: Scopes, narrowed: bool) -> Scopes {
    if held.contains(Scope::Admin) {
        return Scopes::all();
    }
    let for_write = [Scope::Execute, Scope::Worker].into_iter().filter(|_| held.contains(Scope::Write) && !narrowed);
    held.iter().chain(for_write).collect()
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Scopes {
        Scopes(scopes.into_iter().fold(0, |bits, scope| bits | scope.bit()))
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (index, scope) in self.iter().enumerate() {
            write!(f, "{}{scope}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Reads what [`Scopes`] shows: words with commas between them, or `none`.
impl FromStr for Scopes {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Scopes, UnknownScope> {
        if text == "none" {
            return Ok(Scopes::NONE);
        }
        text.split(',').map(|word| word.trim().parse::<Scope>()).collect()
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Serialize for Scopes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Scopes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Scopes, D::Error> {
        Ok(Vec::<Scope>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_set() -> impl Iterator<Item = Scopes> {
        (0..1u8 << Scope::ALL.len()).map(Scopes)
    }

    #[test]
    fn w12_write_serves_for_execute_and_worker_only_where_neither_is_defined() {
        for held in every_set() {
            for narrowed in [false, true] {
                for wanted in Scope::ALL {
                    let by_write = held.contains(Scope::Write)
                        && !narrowed
                        && (wanted == Scope::Execute || wanted == Scope::Worker);
                    let expected = held.contains(Scope::Admin) || held.contains(wanted) || by_write;
                    assert_eq!(granted(held, narrowed).contains(wanted), expected, "{held} {narrowed} {wanted}");
                }
            }
        }
    }

    #[test]
    fn w12_only_execute_and_worker_narrow() {
        for held in every_set() {
            let expected = held.iter().any(|scope| matches!(scope, Scope::Execute | Scope::Worker));
            assert_eq!(held.narrows_write(), expected, "{held}");
        }
        assert!(!Scopes::from_iter([Scope::Admin, Scope::Write]).narrows_write());
    }

    #[test]
    fn words_are_read_as_they_are_written() {
        for scope in Scope::ALL {
            assert_eq!(scope.word().parse(), Ok(scope));
            assert_eq!(serde_json::to_value(scope).unwrap(), scope.word());
        }
        assert_eq!(
            "Admin".parse::<Scope>().unwrap_err().to_string(),
            "`Admin` is no scope; scopes are read, write, execute, worker, events and admin"
        );
        for set in every_set() {
            let text = serde_json::to_string(&set).unwrap();
            assert_eq!(serde_json::from_str::<Scopes>(&text).unwrap(), set);
            assert_eq!(set.to_string().parse(), Ok(set));
        }
        assert_eq!(Scopes::from_iter([Scope::Worker, Scope::Read]).to_string(), "read, worker");
        assert_eq!(Scopes::NONE.to_string(), "none");
        assert_eq!("read,worker".parse(), Ok(Scopes::from_iter([Scope::Read, Scope::Worker])));
        assert!("".parse::<Scopes>().is_err() && "read,".parse::<Scopes>().is_err());
    }
}
