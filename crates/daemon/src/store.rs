//! What the daemon itself keeps in the database: keys, the audit log, options that are set there.
//!
//! Owns: their tables and statements, and the scripts over them.
//! Never: decides who may do what; that is the door's.

pub mod audit;
pub mod config;
pub mod keys;

/// The tables, as this part's migration.
pub mod schema {
    /// For PostgreSQL.
    pub const POSTGRES: &str = include_str!("../schema/postgres.sql");
    /// For SQLite.
    pub const SQLITE: &str = include_str!("../schema/sqlite.sql");
}
