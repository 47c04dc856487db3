//! A short run of the simulator of several processes, and that a seed replays.
//!
//! The long run of the merge check is the binary `simulate --mode multi`.

use testing::multi_sim::{Outcome, run};

const EVENTS: u64 = 3_000;

/// Counts that a few hundred seeds must reach, or the run proves little.
const SEEN: [&str; 32] = [
    "owner_kills",
    "owner_crashes",
    "frontend_kills",
    "supervisor_kills",
    "power_losses",
    "pauses",
    "watchdog_kills",
    "owner_restarts",
    "frontend_restarts",
    "stops",
    "barriers",
    "drains",
    "draining",
    "links_lost",
    "links_half_lost",
    "links_clogged",
    "relinks",
    "old_batches",
    "full_links",
    "large_bodies",
    "closed",
    "internal_errors",
    "offers",
    "accepted",
    "gone",
    "returned",
    "revoked",
    "crossings",
    "kept",
    "log_failures",
    "jobs_recovered",
    "refusals_for_space",
];

#[test]
fn a_seed_replays_bit_by_bit() {
    for seed in 1..=40 {
        let first = run(seed, EVENTS).unwrap_or_else(|failure| panic!("{failure}"));
        let second = run(seed, EVENTS).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(first, second, "seed {seed}");
        assert_ne!(first.hash, 0);
    }
}

#[test]
fn promises_hold_whatever_goes_wrong() {
    let sum = (200_001..=200_500)
        .map(|seed| run(seed, EVENTS).unwrap_or_else(|failure| panic!("{failure}")))
        .fold(Outcome::default(), Outcome::and);
    println!("{sum:?}");
    assert!(sum.events >= 500 * EVENTS);
    let counts = sum.counts();
    for name in SEEN {
        let count = counts.iter().find(|(known, _)| *known == name).map(|(_, count)| *count);
        assert!(count.is_some_and(|count| count > 0), "{name} was never seen");
    }
}
