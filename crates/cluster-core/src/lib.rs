//! The rules by which any number of processes share one database.
//!
//! Owns: identities and their leases, fencing, leadership, reaping, requests between members, tickets, counters and cache
//! changes; the statements in which they stand in the database, and the transactions made of them.
//! Never: reads a clock, draws a random number, opens a connection. Times come in with each call, chance from a generator
//! whose seed is given.
//!
//! Two state machines, so that neither can hold the other up:
//!
//! - [`LeaseAgent`] keeps the identity alive on a thread and a connection of its own, and fences it when that fails;
//! - [`Coordinator`] does all else on the daemon's runtime: beats, leadership, reaping, requests, the order of the stop.
//!
//! Each is told what happened and says what is to be done. Transactions are [`database_core::Script`]s, see [`scripts`].

mod coordinator;
mod dice;
mod lease;
mod member;
pub mod planted;
pub mod scripts;
pub mod statements;
mod time;

pub use coordinator::{
    Call, CallAnswer, CallContext, Change, Coordinator, CoordinatorSettings, Input, LeaderSeen, Leadership, MemberSeen,
    Output, View,
};
pub use dice::Dice;
pub use lease::{
    Clock, ConnectError, FenceReason, LeaseAgent, LeaseAnswer, LeaseCall, LeaseInput, LeaseOutput, LeaseSettings,
    Process, Refusal,
};
pub use member::{MemberId, Mode, Notice, Server, channel};
pub use time::{Boot, Now, Times, TimesError};

/// The tables, as this part's migration.
pub mod schema {
    /// For PostgreSQL.
    pub const POSTGRES: &str = include_str!("../schema/postgres.sql");
    /// For SQLite.
    pub const SQLITE: &str = include_str!("../schema/sqlite.sql");
}

/// Names of leaderships. Their rows come with the schema.
pub mod leadership {
    /// Reaps, fires schedules, deletes what is old.
    pub const SCHEDULER: &str = "scheduler";
    /// Hosts the dispatcher of pipelines.
    pub const DISPATCH: &str = "dispatch";
    /// All of them.
    pub const ALL: &[&str] = &[SCHEDULER, DISPATCH];
}
