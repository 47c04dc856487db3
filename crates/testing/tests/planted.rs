//! Every planted defect is found by the simulator within 1,000 seeds: one that is not is a hole in what the simulator
//! checks.
//!
//!     cargo test --profile verify -p testing --features planted-bugs --test planted -- --nocapture

#![cfg(feature = "planted-bugs")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use testing::multi_sim;
use testing::sim::{Failure, run};

const SEEDS: u64 = 1_000;
const EVENTS: u64 = 5_000;
/// Fewer would be no proof.
const BUGS_MIN: usize = 12;

#[derive(Debug, Clone, Copy)]
enum Bug {
    Rules(tubes_core::planted::Bug),
    Log(tubes_store::planted::Bug),
}

impl Bug {
    fn plant(self) {
        match self {
            Bug::Rules(bug) => tubes_core::planted::plant(Some(bug)),
            Bug::Log(bug) => tubes_store::planted::plant(Some(bug)),
        }
    }

    fn take_away() {
        tubes_core::planted::plant(None);
        tubes_store::planted::plant(None);
    }
}

#[test]
fn every_planted_defect_is_found_within_a_thousand_seeds() {
    std::panic::set_hook(Box::new(|_| {}));
    let rules = tubes_core::planted::Bug::ALL.iter().map(|bug| Bug::Rules(*bug));
    let log = tubes_store::planted::Bug::ALL.iter().map(|bug| Bug::Log(*bug));
    let bugs: Vec<Bug> = rules.chain(log).collect();
    let next = AtomicUsize::new(0);
    let found: Mutex<Vec<(usize, Option<Failure>)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((number, bug)) = next_of(&bugs, &next) {
                    bug.plant();
                    let first = (1..=SEEDS).find_map(|seed| run(seed, EVENTS).err());
                    Bug::take_away();
                    found.lock().expect("nothing panics while it adds").push((number, first));
                }
            });
        }
    });
    let _ = std::panic::take_hook();
    let mut found = found.into_inner().expect("nothing panics while it adds");
    found.sort_by_key(|(number, _)| *number);
    for (number, failure) in &found {
        match failure {
            Some(failure) => {
                let first_line = failure.what.lines().next().unwrap_or_default();
                println!("{:?}: seed {}: {first_line:.100}", bugs[*number], failure.seed);
            }
            None => println!("{:?}: NOT FOUND in {SEEDS} seeds", bugs[*number]),
        }
    }
    let missed: Vec<Bug> =
        found.iter().filter(|(_, failure)| failure.is_none()).map(|(number, _)| bugs[*number]).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
    assert!(found.len() >= BUGS_MIN, "only {} defects are planted", found.len());
}

/// Of links, shells and the supervisor; found by the simulation of several processes.
#[derive(Debug, Clone, Copy)]
enum MultiBug {
    Link(tubes_link::planted::Bug),
    Shell(multi_sim::planted::Bug),
}

impl MultiBug {
    fn plant(self) {
        match self {
            MultiBug::Link(bug) => tubes_link::planted::plant(Some(bug)),
            MultiBug::Shell(bug) => multi_sim::planted::plant(Some(bug)),
        }
    }

    fn take_away() {
        tubes_link::planted::plant(None);
        multi_sim::planted::plant(None);
    }
}

#[test]
fn every_planted_defect_of_several_processes_is_found_within_a_thousand_seeds() {
    const MULTI_EVENTS: u64 = 3_000;
    std::panic::set_hook(Box::new(|_| {}));
    let links = tubes_link::planted::Bug::ALL.iter().map(|bug| MultiBug::Link(*bug));
    let shells = multi_sim::planted::Bug::ALL.iter().map(|bug| MultiBug::Shell(*bug));
    let bugs: Vec<MultiBug> = links.chain(shells).collect();
    let mut missed = Vec::new();
    for bug in &bugs {
        bug.plant();
        let first = (1..=SEEDS).find_map(|seed| multi_sim::run(seed, MULTI_EVENTS).err());
        MultiBug::take_away();
        match first {
            Some(failure) => {
                let first_line = failure.what.lines().next().unwrap_or_default();
                println!("{bug:?}: seed {}: {first_line:.160}", failure.seed);
            }
            None => {
                println!("{bug:?}: NOT FOUND in {SEEDS} seeds");
                missed.push(bug);
            }
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not found: {missed:?}");
    assert!(bugs.len() >= BUGS_MIN, "only {} defects are planted", bugs.len());
}

fn next_of<'a>(bugs: &'a [Bug], next: &AtomicUsize) -> Option<(usize, &'a Bug)> {
    let number = next.fetch_add(1, Ordering::Relaxed);
    bugs.get(number).map(|bug| (number, bug))
}
