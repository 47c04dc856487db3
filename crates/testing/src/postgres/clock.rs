//! A clock of the database that a test can set.
//!
//! Owns: the schema `tclk`, with a function `clock_timestamp()` that hides the server's own from sessions which look
//! there first, and the offset between the two; or a clock that stands still until it is set again.
//! Never: touches the clock of the machine, or of sessions that do not ask for it.
//!
//! The offset is the value of a sequence and not a row of a table, because a sequence is outside of transactions: a
//! step shows at once in every session, also in the middle of a statement and in a transaction with an old snapshot, as
//! a step of a real clock does.
//!
//! Tables that a session makes without naming a schema come into the first schema of its path, so with this clock they
//! lie in `tclk`: use it from the first migration on.

use super::{Database, ROLE, Server, query};

/// Makes the schema; the owner of the database may run it.
pub const SCHEMA: &str = "\
CREATE SCHEMA tclk;
CREATE SEQUENCE tclk.offset_us MINVALUE -9223372036854775807 START 0;
SELECT setval('tclk.offset_us', 0);
CREATE SEQUENCE tclk.frozen_us MINVALUE 0 START 0;
CREATE FUNCTION tclk.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT CASE WHEN frozen.last_value > 0 THEN timestamptz 'epoch' + frozen.last_value * interval '1 microsecond'
        ELSE pg_catalog.clock_timestamp() + ahead.last_value * interval '1 microsecond' END
    FROM tclk.frozen_us AS frozen, tclk.offset_us AS ahead
$$;
";

/// What makes sessions look at this clock first, as PostgreSQL's connection option `options` has it.
pub const OPTIONS: &str = "-csearch_path=tclk,pg_catalog,public";

/// The DSN with [`OPTIONS`] added, if it is an address and has no others.
///
/// # Panics
///
/// For another kind of DSN.
#[track_caller]
pub fn dsn(dsn: &str) -> String {
    assert!(dsn.starts_with("postgresql://") && !dsn.contains('?'), "{dsn} is no plain address");
    // What stands in an address must be written in its way.
    let options = OPTIONS.replace('=', "%3D").replace(',', "%2C");
    format!("{dsn}?options={options}")
}

/// A database whose clock can be set.
#[derive(Debug, Clone)]
pub struct Clock {
    dsn: String,
}

impl Clock {
    /// Gives a database the schema. Its sessions see the clock if they use [`Clock::dsn`].
    ///
    /// # Panics
    ///
    /// If that fails.
    #[track_caller]
    pub fn of(database: &Database) -> Self {
        Self::at(&database.dsn())
    }

    /// As [`Clock::of`], for the database of a server of its own.
    #[track_caller]
    pub fn of_server(server: &Server) -> Self {
        Self::at(&server.dsn_at(server.address(), ROLE))
    }

    #[track_caller]
    fn at(dsn: &str) -> Self {
        query(dsn, SCHEMA).unwrap_or_else(|error| panic!("the schema of the clock: {error}"));
        Self { dsn: dsn.to_owned() }
    }

    /// How sessions connect that see this clock.
    pub fn dsn(&self) -> String {
        dsn(&self.dsn)
    }

    /// Sets how many microseconds the clock is before the server's; negative: behind it.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    #[track_caller]
    pub fn set_offset_us(&self, offset_us: i64) {
        self.set(&format!("SELECT setval('tclk.offset_us', {offset_us}), setval('tclk.frozen_us', 0)"));
    }

    /// Makes the clock stand still at a time, in microseconds since 1970, until it is set again.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    #[track_caller]
    pub fn freeze_at_us(&self, at_us: i64) {
        self.set(&format!("SELECT setval('tclk.frozen_us', {at_us})"));
    }

    #[track_caller]
    fn set(&self, statement: &str) {
        query(&self.dsn, statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
}
