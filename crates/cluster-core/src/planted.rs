//! Deliberate defects of the rules, by which the simulator proves that it finds defects.
//!
//! With the feature `planted-bugs` one of them can be planted for the calling thread; without it [`is`] is constantly
//! false and costs nothing. Some stand in the texts of statements: the simulated database asks for those.

/// One defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// What an owner writes is not compared with owner and attempt.
    NoOwnerCompare,
    /// A fenced process goes on under the same identity.
    StableIdentity,
    /// A leader's effect does not ask for holder and epoch.
    NoLeaderGuard,
    /// A leadership is renewed whoever holds it.
    RenewalNotScoped,
    /// A lease is trusted from the answer's arrival on.
    TrustFromReply,
    /// The own clock is not asked whether the lease is over.
    NoSelfFence,
    /// A registration is renewed although it has expired.
    RenewalIgnoresExpiry,
    /// The guard of the member looks, and locks nothing.
    GuardWithoutLock,
    /// Transactions do not begin with the guard of the member.
    NoMemberGuard,
    /// A failed renewal is tried again after a pause that doubles, whatever the deadline.
    BackoffPastDeadline,
    /// The death of a member frees tickets of runs.
    RunTicketsFreed,
    /// Tickets are counted without the key's lock.
    CountWithoutLock,
    /// Whoever frees a ticket does not give it to who waits.
    TicketNotHandedOn,
    /// An idle key is removed by what an earlier snapshot said.
    IdleKeyNotRechecked,
    /// A request is carried out again after its answer was lost.
    RequestRunAgain,
    /// Cache changes are asked for from the last transaction seen on, not from the oldest that was open.
    CacheByNewest,
    /// A process contests between its fence and its registration.
    FencedContests,
    /// A suspended leader goes on leading.
    SuspendedLeads,
    /// After a failover epochs go on where the replica was.
    EpochIgnoresTimeline,
    /// The database's change is not noticed.
    DatabaseChangeIgnored,
    /// A retired identity's registration is ended before its executions have stopped.
    TidiedBeforeStopped,
    /// A late tick contests after leadership was given back at the stop.
    ContestsAfterStop,
    /// Rows of the dead are not given up.
    ReapForgetsRows,
    /// A stand-by contests at its beats only.
    ContestsAtBeatsOnly,
}

impl Bug {
    /// All of them.
    pub const ALL: &'static [Bug] = &[
        Bug::NoOwnerCompare,
        Bug::StableIdentity,
        Bug::NoLeaderGuard,
        Bug::RenewalNotScoped,
        Bug::TrustFromReply,
        Bug::NoSelfFence,
        Bug::RenewalIgnoresExpiry,
        Bug::GuardWithoutLock,
        Bug::NoMemberGuard,
        Bug::BackoffPastDeadline,
        Bug::RunTicketsFreed,
        Bug::CountWithoutLock,
        Bug::TicketNotHandedOn,
        Bug::IdleKeyNotRechecked,
        Bug::RequestRunAgain,
        Bug::CacheByNewest,
        Bug::FencedContests,
        Bug::SuspendedLeads,
        Bug::EpochIgnoresTimeline,
        Bug::DatabaseChangeIgnored,
        Bug::TidiedBeforeStopped,
        Bug::ContestsAfterStop,
        Bug::ReapForgetsRows,
        Bug::ContestsAtBeatsOnly,
    ];
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a defect for the calling thread, or takes it away.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.with(|planted| planted.set(bug));
}

/// Whether this defect is planted.
#[cfg(feature = "planted-bugs")]
#[must_use]
pub fn is(bug: Bug) -> bool {
    PLANTED.with(|planted| planted.get() == Some(bug))
}

/// Whether this defect is planted: never.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
#[must_use]
pub fn is(_bug: Bug) -> bool {
    false
}
