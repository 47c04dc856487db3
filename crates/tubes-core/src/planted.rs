//! Deliberate defects of the rules, by which the simulator proves that it finds defects.
//!
//! With the feature `planted-bugs` one of them can be planted for the calling thread; without it [`is`] is constantly
//! false and costs nothing.

/// One defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A reserve takes the first watched tube with a ready job instead of the smallest (priority, id).
    ReserveTakesFirstTube,
    /// A closing session's reserved jobs stay reserved.
    CloseKeepsReservations,
    /// A job reserved by another session can be deleted.
    DeleteIgnoresHolder,
    /// A release writes the old priority to the log.
    ReleaseLogsOldPriority,
    /// The order of burying is not restored at recovery.
    BuryOrderLost,
    /// Delayed jobs become ready a second early.
    DelayShort,
    /// After a recovery ids go on behind the jobs that are left, not behind the highest ever given.
    IdsFromLiveJobs,
    /// A touch does not move the deadline.
    TouchDoesNothing,
    /// A paused tube serves those who wait.
    PauseIgnoredByWaiters,
    /// `kick` takes the job buried last.
    KickFromTheEnd,
    /// `reserve-job` takes a job that another session holds.
    ReserveJobSteals,
    /// A time to run that is over does not free the job.
    ExpiryLost,
    /// A session that was served stays in the queues of the other tubes it watches.
    ServedKeepsWaiting,
    /// A delete is answered but not logged.
    DeleteNotLogged,
}

impl Bug {
    /// All of them.
    pub const ALL: &'static [Bug] = &[
        Bug::ReserveTakesFirstTube,
        Bug::CloseKeepsReservations,
        Bug::DeleteIgnoresHolder,
        Bug::ReleaseLogsOldPriority,
        Bug::BuryOrderLost,
        Bug::DelayShort,
        Bug::IdsFromLiveJobs,
        Bug::TouchDoesNothing,
        Bug::PauseIgnoredByWaiters,
        Bug::KickFromTheEnd,
        Bug::ReserveJobSteals,
        Bug::ExpiryLost,
        Bug::ServedKeepsWaiting,
        Bug::DeleteNotLogged,
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
