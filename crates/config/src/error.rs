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
        key: String,
        /// What was written there; never a secret.
        given: String,
        /// What would be right, with an example.
        expected: String,
    },
    /// A section with a name says what cannot be.
    #[error("{origin}: [{entry}] {wrong}")]
    Entry {
        /// Where the section begins.
        origin: Origin,
        /// Its kind and name.
        entry: String,
        /// What is wrong and what would be right, in words that follow its name.
        wrong: String,
    },
    /// Values that are right by themselves do not fit together.
    #[error("{origin}: {wrong}")]
    Rule {
        /// Where one of them stands.
        origin: Origin,
        /// Which, and what would be right.
        wrong: String,
    },
    /// A variable that is meant for a section that no variable can set.
    #[error("{name}: {section} cannot be set by a variable; write it into the configuration file")]
    NotByVariable {
        /// The variable.
        name: String,
        /// The section.
        section: String,
    },
    /// An option that cannot be set in the database.
    #[error("{origin}: {key} cannot be set in the database; {hint}")]
    NotInDatabase {
        /// Who tried.
        origin: Origin,
        /// The option or section.
        key: String,
        /// Where it can be set.
        hint: String,
    },
}

impl Problem {
    /// Order in which problems are told: the file from its top, then the rest as it was found.
    pub(crate) fn place(&self) -> (u8, usize) {
        match self {
            Self::Unreadable { .. } => (0, 0),
            Self::Syntax { origin, .. }
            | Self::Unknown { origin, .. }
            | Self::Value { origin, .. }
            | Self::Entry { origin, .. }
            | Self::Rule { origin, .. }
            | Self::NotInDatabase { origin, .. } => match origin {
                Origin::File(_, line) => (0, *line),
                _ => (1, 0),
            },
            Self::UnknownVariable { .. } | Self::NotByVariable { .. } => (1, 0),
        }
    }

    /// Whether the value of this option is what is wrong.
    pub(crate) fn is_about(&self, option: &str) -> bool {
        matches!(self, Self::Value { key, .. } if key == option)
    }
}
