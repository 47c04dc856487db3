//! What is wrong with a configuration, in words that let its author repair it.

use std::path::PathBuf;

use crate::{EXIT_CODE, Origin};

/// Why there is no configuration. All of it is told at once; there is one reaction: to end with [`EXIT_CODE`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.lines())]
pub struct ConfigError {
    /// At least one, in the order of the sources.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// What the program ends with.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        EXIT_CODE
    }

    fn lines(&self) -> String {
        self.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }
}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file that was asked for, or the first one found, cannot be read.
    #[error("cannot read the configuration file {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The file is not TOML.
    #[error("{origin}: not valid TOML: {reason}")]
    Syntax {
        /// Where the parser stopped.
        origin: Origin,
        /// What it missed.
        reason: String,
    },
    /// No option or section has this name.
    #[error("{origin}: unknown {what} {name}; {hint}")]
    Unknown {
        /// Where the name stands.
        origin: Origin,
        /// `key` or `section`.
        what: &'static str,
        /// The name as it was written.
        name: String,
        /// The nearest known name, or all of them.
        hint: String,
    },
    /// A variable that can only have been meant for an option, but names none.
    #[error("unknown variable {name}; {hint}")]
    UnknownVariable {
        /// The variable.
        name: String,
        /// The nearest one that is known.
        hint: String,
    },
    /// The value does not fit the option.
    #[error("{origin}: {key} is {given}; write {expected}")]
    Value {
        /// Where the value stands.
        origin: Origin,
        /// The option.
        key: &'static str,
        /// What was written there.
        given: String,
        /// What would be right, with an example.
        expected: String,
    },
}
