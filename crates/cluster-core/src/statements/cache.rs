//! What was changed for all caches: read by [`super::member::VIEW`].
//!
//! A row carries the number of its transaction. A reader asks for rows whose number is not below the oldest transaction that
//! was open at its read before: one that committed late is seen then, one seen twice harms nothing.

use database_core::Sql;

/// All of them.
pub const ALL: &[&Sql] = &[&CHANGE, &PRUNE];

/// Written in the transaction of the change. Takes the name of what must be dropped, at most 200 characters.
pub static CHANGE: Sql =
    Sql::new("cache.change", "INSERT INTO cache_change (name, at) VALUES ($1, clock_timestamp())", "");

/// Takes an age in ms, and how many at most.
pub static PRUNE: Sql = Sql::new(
    "cache.prune",
    "DELETE FROM cache_change WHERE id IN (SELECT id FROM cache_change \
     WHERE at < clock_timestamp() - $1 * interval '1 millisecond' ORDER BY id LIMIT $2)",
    "",
);
