//! The rules by which any number of processes share one database.
//!
//! Owns: identities and their leases, fencing, leadership, reaping, requests between members, tickets, counters and cache
//! changes; the statements in which they stand in the database.
//! Never: reads a clock, draws a random number, opens a connection.

pub mod statements;

/// The tables, as this part's migration.
pub mod schema {
    /// For PostgreSQL.
    pub const POSTGRES: &str = include_str!("../schema/postgres.sql");
    /// For SQLite.
    pub const SQLITE: &str = include_str!("../schema/sqlite.sql");
}
