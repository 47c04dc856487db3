//! How many processes a server has.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A server of one process, or of so many owners and frontends. Written `single` or `2 + 2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Topology {
    /// One process.
    Single,
    /// A supervisor and these.
    Multi {
        /// Owners.
        owners: u16,
        /// Frontends.
        frontends: u16,
    },
}

impl Topology {
    /// A server of `owners` owners and `frontends` frontends.
    pub const fn multi(owners: u16, frontends: u16) -> Self {
        Self::Multi { owners, frontends }
    }

    /// What the server's command line says of it.
    pub fn flags(self) -> Vec<OsString> {
        match self {
            Self::Single => Vec::new(),
            Self::Multi { owners, frontends } => {
                ["--owners".to_owned(), owners.to_string(), "--frontends".to_owned(), frontends.to_string()]
                    .map(OsString::from)
                    .to_vec()
            }
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => formatter.write_str("single"),
            Self::Multi { owners, frontends } => write!(formatter, "{owners} + {frontends}"),
        }
    }
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "single" {
            return Ok(Self::Single);
        }
        let counts = text.split_once(" + ").and_then(|(owners, frontends)| {
            Some(Self::Multi { owners: owners.parse().ok()?, frontends: frontends.parse().ok()? })
        });
        counts.ok_or_else(|| format!("{text:?} is no topology: single or OWNERS + FRONTENDS"))
    }
}

impl From<Topology> for String {
    fn from(topology: Topology) -> Self {
        topology.to_string()
    }
}

impl TryFrom<String> for Topology {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topology_survives_its_text_form() {
        for topology in [Topology::Single, Topology::multi(1, 3)] {
            assert_eq!(topology.to_string().parse(), Ok(topology));
        }
        assert!("2+2".parse::<Topology>().is_err());
        assert!("2 + x".parse::<Topology>().is_err());
    }
}
