//! Every planted defect is found by the crash scripts: a check that finds none would prove nothing.
#![cfg(feature = "planted-bugs")]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::Random;
use common::world::World;
use tubes_store::SyncMode;
use tubes_store::planted::{Bug, plant};

const MODES: [SyncMode; 3] = [SyncMode::Always, SyncMode::Interval(50_000_000), SyncMode::Never];
const SEEDS_MAX: u64 = 1_000;

/// A life, a crash, another life, another crash.
fn live(seed: u64) {
    let mut random = Random(seed);
    let mut world = World::new(seed, MODES[random.below(3) as usize]);
    match random.below(4) {
        0 => world.limit_space(4 + random.below(8)),
        1 => world.lose_write(2 + random.below(25)),
        _ => {}
    }
    for _ in 0..2 {
        world.disk.stop_at_call(world.disk.calls() + 1 + random.below(150));
        match world.open() {
            Ok(true) => while world.turn() && !random.chance(1, 100) {},
            Ok(false) => {}
            Err(_) if world.disk.has_stopped() => {}
            Err(error) => panic!("seed {seed}: {error}"),
        }
        if world.crash_and_check(random.chance(1, 2), random.next()).is_none() {
            return;
        }
    }
}

#[test]
fn every_planted_defect_is_found() {
    std::panic::set_hook(Box::new(|_| {}));
    let clean = (0..3_000).find(|seed| catch_unwind(AssertUnwindSafe(|| live(*seed))).is_err());
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        plant(Some(bug));
        let found = (0..SEEDS_MAX).find(|seed| catch_unwind(AssertUnwindSafe(|| live(*seed))).is_err());
        plant(None);
        match found {
            Some(seed) => println!("{bug:?}: found by seed {seed}"),
            None => missed.push(bug),
        }
    }
    let _ = std::panic::take_hook();
    assert_eq!(clean, None, "a seed fails without a defect");
    assert!(missed.is_empty(), "not found within {SEEDS_MAX} seeds: {missed:?}");
}
