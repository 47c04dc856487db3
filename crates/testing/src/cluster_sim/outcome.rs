//! What happened in a run.

macro_rules! outcome {
    ($($field:ident),* $(,)?) => {
        /// What happened in a run.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each field counts what it is called")]
        pub struct Outcome {
            /// Over every event and every answer.
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
    statements,
    simulated_ns,
    starts,
    kills,
    clean_stops,
    pauses,
    lease_freezes,
    runtime_freezes,
    resets,
    half_opens,
    slow_links,
    pools_blocked,
    database_restarts,
    outages,
    failovers,
    clock_steps,
    registrations,
    renewals,
    beats,
    fenced_late,
    fenced_expired,
    fenced_missing,
    fenced_changed,
    clocks_jumped,
    abandoned,
    gained,
    suspended,
    resumed,
    lost,
    takeovers_timed,
    reaped,
    rows_given_up,
    tidied,
    effects,
    guarded_out,
    claims,
    resumed_claims,
    finished,
    finishes_lost,
    executions_killed,
    runs_in_lanes,
    lane_moves,
    permits_waited,
    requests,
    requests_carried_out,
    requests_repeated,
    config_changes,
    cache_drops,
    caches_dropped_whole,
    keys_pruned,
    lock_waits,
    lock_timeouts,
    idle_timeouts,
    rows_skipped,
    rows_rechecked,
    unknown_commits,
    notices_lost,
}
