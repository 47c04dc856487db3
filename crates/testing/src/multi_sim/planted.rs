//! Deliberate defects of the shells and the supervisor, by which the simulator proves that it finds defects.

/// One defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Replies leave before the batch of the log that they tell of is as safe as promised.
    ReleasedEarly,
    /// Ids go on where they began, whatever an owner has recovered.
    IdsNotRaised,
    /// A lost link is reported and not made anew.
    NotRelinked,
    /// The successor of a drained owner takes jobs.
    DrainNotHandedOn,
    /// A new frontend is linked to the first owner only.
    OneLinkOnly,
}

impl Bug {
    /// All of them.
    pub const ALL: &'static [Bug] =
        &[Bug::ReleasedEarly, Bug::IdsNotRaised, Bug::NotRelinked, Bug::DrainNotHandedOn, Bug::OneLinkOnly];
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
pub(super) fn is(bug: Bug) -> bool {
    PLANTED.with(|planted| planted.get() == Some(bug))
}

#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(super) fn is(_bug: Bug) -> bool {
    false
}
