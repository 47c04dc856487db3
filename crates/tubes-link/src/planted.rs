//! Deliberate defects of links, by which the simulator proves that it finds defects.
//!
//! With the feature `planted-bugs` one of them can be planted for the calling thread; without it [`is`] is constantly
//! false and costs nothing.

/// One defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A client that holds a job of a lost owner is not closed.
    HeldJobStays,
    /// A client with an unanswered command at a lost owner is not closed.
    UnansweredStays,
    /// Offers of a lost owner stay in the round.
    LostOffersStay,
    /// What a session watches is not told to the next process of an owner.
    NotAnnounced,
    /// A poll over several owners ends when the first of them has nothing.
    PollEndsEarly,
    /// A wait is answered before its owners have confirmed that it is over.
    EndsUnconfirmed,
    /// A wait that was served goes on at the other owners.
    OthersNotWithdrawn,
    /// The end of a session is not told to the owners.
    EndNotTold,
    /// A reserve behind the delete of a job tells of that job's last second.
    SoonForJobsLetGo,
    /// The end of a client's input ends a reserve that the owners have not answered.
    HalfCloseTimesOut,
    /// A withdrawal is confirmed, but the wait goes on.
    WithdrawnButParked,
    /// A put does not ask whether the server drains.
    DrainNotAsked,
    /// The sessions of a lost frontend go on.
    FrontendStays,
    /// A command kept behind a wait is carried out twice.
    KeptTwice,
    /// A command kept behind a wait is forgotten.
    KeptLost,
    /// A batch for an earlier process is taken.
    GenerationUnchecked,
}

impl Bug {
    /// All of them.
    pub const ALL: &'static [Bug] = &[
        Bug::HeldJobStays,
        Bug::UnansweredStays,
        Bug::LostOffersStay,
        Bug::NotAnnounced,
        Bug::PollEndsEarly,
        Bug::EndsUnconfirmed,
        Bug::OthersNotWithdrawn,
        Bug::EndNotTold,
        Bug::SoonForJobsLetGo,
        Bug::HalfCloseTimesOut,
        Bug::WithdrawnButParked,
        Bug::DrainNotAsked,
        Bug::FrontendStays,
        Bug::KeptTwice,
        Bug::KeptLost,
        Bug::GenerationUnchecked,
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

#[cfg(feature = "planted-bugs")]
pub(crate) fn is(bug: Bug) -> bool {
    PLANTED.with(|planted| planted.get() == Some(bug))
}

#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) fn is(_bug: Bug) -> bool {
    false
}
