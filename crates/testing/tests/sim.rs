//! A short run of the simulator, and that a seed replays.
//!
//! The long run of the merge check is the binary `simulate`.

use testing::sim::{Outcome, run};

const EVENTS: u64 = 5_000;

#[track_caller]
fn run_all(seeds: std::ops::RangeInclusive<u64>, events: u64) -> Outcome {
    seeds
        .map(|seed| run(seed, events).unwrap_or_else(|failure| panic!("{failure}")))
        .fold(Outcome::default(), Outcome::and)
}

#[test]
fn a_seed_replays_bit_by_bit() {
    for seed in 1..=100 {
        let first = run(seed, 2_000).unwrap_or_else(|failure| panic!("{failure}"));
        let second = run(seed, 2_000).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(first, second, "seed {seed}");
        assert_ne!(first.hash, 0);
    }
}

#[test]
fn promises_hold_whatever_goes_wrong() {
    let sum = run_all(100_001..=100_600, EVENTS);
    println!("{sum:?}");
    assert!(sum.events >= 600 * EVENTS);
    // Each kind of fault and of check has been there, or the run proves little.
    let counts = [
        sum.kills,
        sum.power_losses,
        sum.stops,
        sum.log_failures,
        sum.recoveries,
        sum.second_recoveries,
        sum.flips,
        sum.old_blocks,
        sum.refused_logs,
        sum.torn_tails,
        sum.copies,
        sum.refusals_for_space,
        sum.unsynced_lost,
        sum.jobs_recovered,
    ];
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}
