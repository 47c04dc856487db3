//! A short run of the simulator of a cluster, and that a seed replays.
//!
//! The long run of the merge check is the binary `simulate --mode cluster`.

use testing::cluster_sim::{Outcome, run};

const MINUTES: u64 = 10;

/// Counts that a few hundred seeds must reach, or the run proves little.
const SEEN: [&str; 36] = [
    "kills",
    "clean_stops",
    "pauses",
    "lease_freezes",
    "runtime_freezes",
    "resets",
    "half_opens",
    "slow_links",
    "pools_blocked",
    "database_restarts",
    "outages",
    "failovers",
    "clock_steps",
    "fenced_late",
    "fenced_expired",
    "fenced_missing",
    "fenced_changed",
    "abandoned",
    "gained",
    "suspended",
    "resumed",
    "lost",
    "takeovers_timed",
    "reaped",
    "rows_given_up",
    "tidied",
    "effects",
    "guarded_out",
    "resumed_claims",
    "lane_moves",
    "requests",
    "cache_drops",
    "lock_timeouts",
    "rows_skipped",
    "rows_rechecked",
    "unknown_commits",
];

#[test]
fn a_seed_replays_bit_by_bit() {
    for seed in 1..=20 {
        let first = run(seed, MINUTES).unwrap_or_else(|failure| panic!("{failure}"));
        let second = run(seed, MINUTES).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(first, second, "seed {seed}");
        assert_ne!(first.hash, 0);
    }
}

#[test]
fn promises_hold_whatever_goes_wrong() {
    let sum = (200_001..=200_300)
        .map(|seed| run(seed, MINUTES).unwrap_or_else(|failure| panic!("{failure}")))
        .fold(Outcome::default(), Outcome::and);
    println!("{sum:?}");
    let counts = sum.counts();
    for name in SEEN {
        let (_, count) = counts.iter().find(|(known, _)| *known == name).expect("a count of this name");
        assert_ne!(*count, 0, "{name} never happened");
    }
}
