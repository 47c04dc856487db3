//! Deliberate defects of the log, by which the simulator proves that it finds defects.
//!
//! Owns: the list, and which of them the present thread is to show. Exists only with the feature `planted-bugs`;
//! without it `planted_bug!(X)` is the constant `false`.

/// Whether the present thread is to show a defect.
#[cfg(feature = "planted-bugs")]
macro_rules! planted_bug {
    ($bug:ident) => {
        $crate::planted::is_planted($crate::planted::Bug::$bug)
    };
}

/// Whether the present thread is to show a defect: never in this build.
#[cfg(not(feature = "planted-bugs"))]
macro_rules! planted_bug {
    ($bug:ident) => {
        false
    };
}

#[cfg(feature = "planted-bugs")]
pub use list::{Bug, is_planted, plant};

#[cfg(feature = "planted-bugs")]
mod list {
    use std::cell::Cell;

    /// A defect of the log.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum Bug {
        /// In `always` mode a reply may leave once its record is written, not synced.
        ReplyBeforeSync,
        /// A record's checksum is not compared.
        CrcUnchecked,
        /// The next segment is begun before the old one is synced.
        SwitchWithoutSync,
        /// Every 16th DELETE is not written.
        DeleteForgotten,
        /// A segment is dropped before the copies of its jobs are synced.
        DropBeforeCopiesSynced,
        /// Recovery goes on behind a missing sequence.
        GapUnnoticed,
        /// A put sets no space aside for the job's STATE record.
        StateUnreserved,
        /// Recovery counts ids from the records it finds only, not from headers and CLOSE records.
        NextIdForgotten,
        /// The directory is not synced when a segment gets its name.
        NameUnsynced,
        /// Recovery cuts a torn tail although a later batch proves that it had been synced.
        DamageTakenForTorn,
        /// A segment is dropped without waiting for the DELETE of its last job.
        DropBeforeDeleteWritten,
        /// A start does not sync the last segment, which a killed process left unsynced.
        StartWithoutSync,
    }

    impl Bug {
        /// All of them.
        pub const ALL: [Bug; 12] = [
            Bug::ReplyBeforeSync,
            Bug::CrcUnchecked,
            Bug::SwitchWithoutSync,
            Bug::DeleteForgotten,
            Bug::DropBeforeCopiesSynced,
            Bug::GapUnnoticed,
            Bug::StateUnreserved,
            Bug::NextIdForgotten,
            Bug::NameUnsynced,
            Bug::DamageTakenForTorn,
            Bug::DropBeforeDeleteWritten,
            Bug::StartWithoutSync,
        ];
    }

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Shows `bug`, or none, on this thread from here on.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    /// Whether `bug` is the one to show on this thread.
    pub fn is_planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}
