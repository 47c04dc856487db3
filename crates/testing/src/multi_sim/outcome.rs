//! What happened in a run.

macro_rules! outcome {
    ($($field:ident),* $(,)?) => {
        /// What happened in a run.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each field counts what it is called")]
        pub struct Outcome {
            /// Over every step and every byte that was answered.
            pub hash: u64,
            $(pub $field: u64,)*
        }

        impl Outcome {
            /// The sums of two runs.
            #[must_use]
            pub fn and(self, other: Outcome) -> Outcome {
                Outcome {
                    // Commutative, so that the sum over seeds does not depend on which thread ran which.
                    hash: self.hash.wrapping_add(other.hash),
                    $($field: self.$field + other.$field,)*
                }
            }

            /// Every count by its name.
            #[must_use]
            pub fn counts(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field)),*]
            }
        }
    };
}

outcome! {
    events,
    commands,
    replies,
    executions,
    simulated_ns,
    starts,
    servings,
    stops,
    barriers,
    drains,
    owner_kills,
    owner_crashes,
    frontend_kills,
    supervisor_kills,
    power_losses,
    pauses,
    watchdog_kills,
    owner_restarts,
    frontend_restarts,
    failed_slots,
    slots_tried_again,
    links,
    links_lost,
    links_half_lost,
    relinks,
    links_clogged,
    old_batches,
    closed,
    internal_errors,
    crossed_ends,
    offers,
    accepted,
    gone,
    returned,
    revoked,
    expired,
    crossings,
    served,
    nothings,
    kept,
    full_links,
    large_bodies,
    polls,
    soon,
    draining,
    log_failures,
    refused_logs,
    recoveries,
    jobs_recovered,
    copies,
    refusals_for_space,
}
