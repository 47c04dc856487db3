//! What is counted about this member.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! figures {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        /// Counters, since the process started. Clones are the same.
        #[derive(Debug, Clone, Default)]
        pub(crate) struct Figures(Arc<Counters>);

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),* }

        impl std::ops::Deref for Figures {
            type Target = Counters;
            fn deref(&self) -> &Counters { &self.0 }
        }

        impl Figures {
            /// All of them: name, meaning, value.
            pub(crate) fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), concat!($($doc),*).trim_start(), self.$name.load(Ordering::Relaxed))),*]
            }
        }
    };
}

figures! {
    /// Beats that ended.
    beats,
    /// Renewals and registrations of the lease that failed and were tried again.
    lease_failures,
    /// Identities that ended because the lease was late by the own clock.
    fences_late,
    /// Identities that ended because the database found the lease expired.
    fences_expired,
    /// Identities that ended because the registration was missing.
    fences_missing,
    /// Identities that ended because the database was another one.
    fences_database,
    /// Identities that could not be registered within a lease.
    abandoned,
    /// Clocks that moved by more than a lease.
    clock_jumps,
    /// Statements of beats that failed.
    call_failures,
    /// Times this process began to lead.
    leaderships_gained,
    /// Members that this process reaped.
    reaped_members,
    /// Rows of dead owners that this process gave up.
    reaped_rows,
    /// Requests of other members that this process took.
    requests_taken,
    /// Times that all caches were dropped because changes may have been missed.
    cache_resets,
    /// Executions that did not stop within the margin after a fence.
    late_stops,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    add(counter, 1);
}

/// Adds some.
pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}
