//! What the agent is told and what it says.

use std::time::Duration;

use database_core::DbError;

use super::{LeaseAnswer, LeaseCall};
use crate::{Boot, MemberId, Mode, Server, Times, TimesError};

/// What stands in the registration besides identity and lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The machine's name.
    pub host: String,
    /// The machine's boot.
    pub boot_id: String,
    /// The process's number, for people.
    pub pid: u32,
    /// The program's version.
    pub program: String,
    /// The version of the schema it works with.
    pub schema_version: u32,
}

/// What an agent is made for.
#[derive(Debug, Clone)]
pub struct LeaseSettings {
    /// Checked before ([`Times::check`]).
    pub times: Times,
    /// [`Mode::Shared`] or [`Mode::Sole`].
    pub mode: Mode,
    /// Written into the registration.
    pub process: Process,
}

/// What the agent is told.
#[derive(Debug)]
pub enum LeaseInput {
    /// Register. A second start does nothing.
    Start,
    /// The time of [`super::LeaseAgent::next_deadline`] has come.
    Wake,
    /// The connection asked for by [`LeaseOutput::Connect`] stands.
    Connected {
        /// The number of the request.
        call: u64,
        /// Which server it leads to.
        server: Server,
    },
    /// There is no connection.
    NotConnected {
        /// The number of the request.
        call: u64,
        /// Why not.
        error: ConnectError,
    },
    /// A transaction has ended.
    Done {
        /// Its number.
        call: u64,
        /// What it gave.
        result: Result<LeaseAnswer, DbError>,
    },
    /// The connection broke while nothing was asked of it.
    Disconnected,
    /// Another connection of the process has reached this server. If it is not the one of the registration, the lease's
    /// connection is made anew, to see which is the right one.
    ServerSeen(Server),
    /// The database's schema is not one that this program may use, any more: nothing is renewed. Looked at again at the next
    /// connect.
    SchemaRefused(String),
    /// What ran for the retired identity has ended, for certain.
    ExecutionsStopped {
        /// As in [`LeaseOutput::StopExecutions`].
        retired: MemberId,
    },
    /// A beat has ended; renewals write when the last one was.
    Beat,
    /// Use another lease from here on; granted while no other member lives.
    SetLease(Duration),
    /// Renew no more. What else belongs to the stop is the coordinator's.
    Stop,
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Cannot be reached, only reads, gives no rights.
    #[error(transparent)]
    Database(#[from] DbError),
    /// The schema does not fit this program; the text says which side is older.
    #[error("{0}")]
    Schema(String),
    /// A pooler stands between, which would share the session.
    #[error("{0}")]
    Pooler(String),
}

/// What the agent says; carried out in order.
#[derive(Debug)]
pub enum LeaseOutput {
    /// Open a connection, read the server's identity, check the schema, and answer.
    Connect {
        /// Stands in the answer.
        call: u64,
    },
    /// Run the call's script on the connection, and answer. Bounded by [`LeaseCall::limit`] by the shell and by the agent.
    Call {
        /// Stands in the answer.
        call: u64,
        /// What to run.
        what: LeaseCall,
    },
    /// Close the connection, or give up opening it. No answer to an earlier request is waited for.
    DropConnection,
    /// This identity is registered and nothing runs under an earlier one: work may start.
    Registered {
        /// The identity.
        id: MemberId,
        /// Its number, for people and logs.
        no: i64,
        /// The lease's length.
        lease: Duration,
        /// Where it is registered.
        server: Server,
        /// Identities of this process before, to be tidied.
        retired: Vec<MemberId>,
    },
    /// Effects may start before this time, by the boot clock. Repeated at each renewal; ended by [`LeaseOutput::Fenced`].
    Valid {
        /// At this time, no more.
        until: Boot,
    },
    /// The identity is over: nothing is valid, and no transaction may start under it.
    Fenced {
        /// The identity that is over.
        retired: MemberId,
        /// The one that is to be registered: rows made from here on carry it.
        next: MemberId,
        /// Why.
        reason: FenceReason,
        /// A clock had jumped since the last renewal.
        clocks_jumped: bool,
    },
    /// Kill what runs for the identity, without politeness, within the margin; then say
    /// [`LeaseInput::ExecutionsStopped`].
    StopExecutions {
        /// Whose.
        retired: MemberId,
    },
    /// The margin is over, and executions have not stopped. Nothing starts until they have.
    StopLate {
        /// Whose.
        retired: MemberId,
    },
    /// An identity could not be registered within a lease: whatever waited for it gives up.
    Abandoned {
        /// The identity given up.
        id: MemberId,
        /// The next one.
        next: MemberId,
    },
    /// A renewal or registration failed, and is tried again.
    Failed {
        /// What was tried.
        what: &'static str,
        /// What happened.
        error: ConnectError,
        /// When it is tried again.
        again: Boot,
    },
    /// Registration is refused, and tried again.
    Refused {
        /// Why.
        refusal: Refusal,
        /// When it is tried again.
        again: Boot,
    },
    /// A clock moved against the boot clock by more than a lease between two renewals. The database's decides.
    ClockWarning {
        /// Which one.
        clock: Clock,
        /// How far, in ms; below 0: back.
        by_ms: i64,
    },
    /// The answer to [`LeaseInput::SetLease`].
    LeaseSet {
        /// The lease asked for.
        lease: Duration,
        /// Why not.
        result: Result<(), Refusal>,
    },
    /// Nothing more is renewed.
    Stopped,
}

/// Why an identity is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FenceReason {
    /// Not renewed in time by the own clock.
    LateByOwnClock,
    /// The database found the lease expired.
    ExpiredByDatabase,
    /// The registration is not there.
    RegistrationMissing,
    /// The connection leads to another database, or to one that was promoted since.
    DatabaseChanged,
}

impl std::fmt::Display for FenceReason {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::LateByOwnClock => "late by the own clock",
            Self::ExpiredByDatabase => "expired by the database",
            Self::RegistrationMissing => "registration missing",
            Self::DatabaseChanged => "another database",
        })
    }
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// All members must use the same lease.
    #[error(
        "cluster.lease is {ours:?}, but the database's members use {stored:?}: configure the same, or change it with \
         `tenure cluster set-lease` while one member runs"
    )]
    LeaseDiffers {
        /// The configured one.
        ours: Duration,
        /// The stored one.
        stored: Duration,
    },
    /// See [`ConnectError::Schema`].
    #[error("{0}")]
    Schema(String),
    /// See [`ConnectError::Pooler`].
    #[error("{0}")]
    Pooler(String),
    /// The times would not fit.
    #[error(transparent)]
    Times(#[from] TimesError),
    /// The lease cannot change while others live.
    #[error("other members live: stop them first, they use the lease as it is")]
    OthersLive,
    /// The process is not registered, or could not ask.
    #[error("{0}")]
    Failed(String),
}

/// A clock that is compared with the boot clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The process's.
    Wall,
    /// The database's.
    Database,
}
