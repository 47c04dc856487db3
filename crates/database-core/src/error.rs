//! What an error of the database means for who called it.

/// A reaction each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The data was refused: a constraint, a value that the type does not have. It would be refused again; nothing of the
    /// transaction remains.
    Refused,
    /// The transaction met another one and was rolled back (40001, 40P01; SQLite busy): run all of it again.
    Conflict,
    /// A row or the write lock was held by somebody else for longer than the lock limit (55P03). Rolled back.
    Locked,
    /// The statement or the transaction took longer than its limit (57014, 25P03, 25P04). Rolled back.
    TimedOut,
    /// The database cannot be reached, or ended the connection before a commit was sent (57P01 to 57P03, 08xxx, no
    /// connection): nothing was committed.
    Unavailable,
    /// The server only reads (25006, in recovery): the connection must be given up and another server looked for.
    ReadOnly,
    /// A commit was sent and not answered: it may have happened.
    Unknown,
    /// No space, a bound of our own is reached, too many connections (53xxx): later, perhaps.
    Exhausted,
    /// Statement and schema do not belong together, or the file is no database: a defect or another version.
    Broken,
}

impl Class {
    /// Of an SQLSTATE; [`Class::Broken`] if no other reaction is known. Source: appendix A of PostgreSQL's manual.
    #[must_use]
    pub fn of_sqlstate(code: &str) -> Self {
        match code {
            "40001" | "40P01" => Self::Conflict,
            // 40003 says it itself: completion unknown.
            "40003" => Self::Unknown,
            "55P03" => Self::Locked,
            "57014" | "25P03" | "25P04" | "57P05" => Self::TimedOut,
            "25006" => Self::ReadOnly,
            "57P01" | "57P02" | "57P03" | "57P04" => Self::Unavailable,
            // 42xxx is syntax and names, but 42501 is a missing right: nothing that a caller's data could cause.
            _ => match code.get(..2) {
                Some("08") => Self::Unavailable,
                Some("22" | "23") => Self::Refused,
                Some("53" | "54") => Self::Exhausted,
                _ => Self::Broken,
            },
        }
    }

    /// Whether the transaction has certainly left nothing behind.
    #[must_use]
    pub const fn is_certain(self) -> bool {
        !matches!(self, Self::Unknown)
    }

    /// Whether the same transaction may be run again at once, by whoever had this error: nothing was committed, and the
    /// cause passes by itself.
    #[must_use]
    pub const fn may_repeat(self) -> bool {
        matches!(self, Self::Conflict | Self::Locked | Self::Unavailable | Self::ReadOnly)
    }

    /// Whether the connection it came over must not be used again: a late answer could be read as the next one's, or it
    /// leads to a server that does not write.
    #[must_use]
    pub const fn ends_connection(self) -> bool {
        matches!(self, Self::Unavailable | Self::ReadOnly | Self::Unknown)
    }
}

/// An error of the database.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default())]
pub struct DbError {
    /// What to do about it.
    pub class: Class,
    /// SQLSTATE, or SQLite's extended name; `None` if the database said nothing.
    pub code: Option<String>,
    /// What was tried and what happened. Holds no secret and no parameter.
    pub message: String,
    /// Name of the constraint that was violated.
    pub constraint: Option<String>,
}

impl DbError {
    /// An error that no database has said.
    #[must_use]
    pub fn new(class: Class, message: impl Into<String>) -> Self {
        Self { class, code: None, message: message.into(), constraint: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_of_the_retry_rule_has_its_reaction() {
        let of = Class::of_sqlstate;
        for code in ["40001", "40P01", "55P03", "57P01", "57P02", "57P03", "08000", "08006", "25006"] {
            assert!(of(code).may_repeat(), "{code}");
        }
        for code in ["23505", "22021", "22P05", "57014", "53300", "42P01", "XX000", "40003", ""] {
            assert!(!of(code).may_repeat(), "{code}");
        }
        assert!(!of("40003").is_certain() && of("40001").is_certain());
    }
}
