//! One statement, under one id in every database.

/// A statement as each database says it.
///
/// Parameters are `$1`, `$2`, … in both texts, and may be named more than once. Times go in and come out as whole
/// milliseconds ([`crate::Value::Int`]): durations where possible, else ms since 1970 by the database's clock.
#[derive(Debug, PartialEq, Eq)]
pub struct Sql {
    /// `part.what`, unique in the program. Logs, metrics and the simulated database know the statement by it.
    pub id: &'static str,
    /// For PostgreSQL 14 and later.
    pub postgres: &'static str,
    /// For SQLite 3.45 and later.
    pub sqlite: &'static str,
}

impl Sql {
    /// A statement of two texts.
    #[must_use]
    pub const fn new(id: &'static str, postgres: &'static str, sqlite: &'static str) -> Self {
        Self { id, postgres, sqlite }
    }

    /// A statement that both databases read alike.
    #[must_use]
    pub const fn same(id: &'static str, text: &'static str) -> Self {
        Self { id, postgres: text, sqlite: text }
    }
}
