//! Every planted defect is found by the simulator within 1,000 seeds, by a seed that passes without it: one that is not
//! is a hole in what the simulator checks.
//!
//!     cargo test --profile verify -p testing --features planted-bugs --test planted -- --nocapture

#![cfg(feature = "planted-bugs")]

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once};

use testing::{cluster_sim, multi_sim, sim};

const SEEDS: u64 = 1_000;
const EVENTS: u64 = 5_000;
const MULTI_EVENTS: u64 = 3_000;
const CLUSTER_MINUTES: u64 = 10;
/// Fewer would be no proof.
const BUGS_MIN: usize = 12;

/// Defects that one of the simulations must find.
trait Defect: Copy + Debug + Sync {
    /// Plants it for the calling thread.
    fn plant(self);
    /// Takes away whatever is planted for the calling thread.
    fn take_away();
    /// Runs a seed of the simulation; what was wrong.
    fn run(seed: u64) -> Result<(), String>;
}

/// Of the rules and the log; found by the simulation of one process.
#[derive(Debug, Clone, Copy)]
enum Bug {
    Rules(tubes_core::planted::Bug),
    Log(tubes_store::planted::Bug),
}

impl Defect for Bug {
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

    fn run(seed: u64) -> Result<(), String> {
        sim::run(seed, EVENTS).map(drop).map_err(|failure| failure.what)
    }
}

/// Of links, shells and the supervisor; found by the simulation of several processes.
#[derive(Debug, Clone, Copy)]
enum MultiBug {
    Link(tubes_link::planted::Bug),
    Shell(multi_sim::planted::Bug),
}

impl Defect for MultiBug {
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

    fn run(seed: u64) -> Result<(), String> {
        multi_sim::run(seed, MULTI_EVENTS).map(drop).map_err(|failure| failure.what)
    }
}

/// Of members of a database; found by the simulation of a cluster.
#[derive(Debug, Clone, Copy)]
struct ClusterBug(cluster_core::planted::Bug);

impl Defect for ClusterBug {
    fn plant(self) {
        cluster_core::planted::plant(Some(self.0));
    }

    fn take_away() {
        cluster_core::planted::plant(None);
    }

    fn run(seed: u64) -> Result<(), String> {
        cluster_sim::run(seed, CLUSTER_MINUTES).map(drop).map_err(|failure| failure.what)
    }
}

/// The first seed that fails with the defect and passes without it, and what was wrong; and the seeds before it that
/// fail either way.
fn first_seed<D: Defect>(bug: D) -> (Option<(u64, String)>, Vec<u64>) {
    let mut fail_anyway = Vec::new();
    for seed in 1..=SEEDS {
        bug.plant();
        let planted = D::run(seed);
        D::take_away();
        let Err(what) = planted else { continue };
        match D::run(seed) {
            Ok(()) => return (Some((seed, what)), fail_anyway),
            Err(_) => fail_anyway.push(seed),
        }
    }
    (None, fail_anyway)
}

thread_local! {
    /// This thread plants defects: assertions of the code under test are findings.
    static PLANTS: Cell<bool> = const { Cell::new(false) };
}

fn say_nothing_of_findings() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let says = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !PLANTS.get() {
                says(panic);
            }
        }));
    });
}

fn all_are_found<D: Defect>(bugs: &[D]) {
    say_nothing_of_findings();
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                PLANTS.set(true);
                while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = first_seed(*bug);
                    match &result.0 {
                        Some((seed, what)) => {
                            let first_line = what.lines().next().unwrap_or_default();
                            println!("{bug:?}: seed {seed}: {first_line:.160}");
                        }
                        None => println!("{bug:?}: NOT FOUND in {SEEDS} seeds"),
                    }
                    results.lock().expect("nothing panics while it adds").push((bug, result));
                }
            });
        }
    });
    let results = results.into_inner().expect("nothing panics while it adds");
    let mut missed = Vec::new();
    for (bug, (found, fail_anyway)) in &results {
        if found.is_none() {
            missed.push(bug);
        }
        assert!(fail_anyway.is_empty(), "the seeds {fail_anyway:?} fail without {bug:?} too");
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
    assert_eq!(results.len(), bugs.len());
    assert!(bugs.len() >= BUGS_MIN, "only {} defects are planted", bugs.len());
}

#[test]
fn every_planted_defect_is_found_within_a_thousand_seeds() {
    let rules = tubes_core::planted::Bug::ALL.iter().map(|bug| Bug::Rules(*bug));
    let log = tubes_store::planted::Bug::ALL.iter().map(|bug| Bug::Log(*bug));
    all_are_found(&rules.chain(log).collect::<Vec<Bug>>());
}

#[test]
fn every_planted_defect_of_several_processes_is_found_within_a_thousand_seeds() {
    let links = tubes_link::planted::Bug::ALL.iter().map(|bug| MultiBug::Link(*bug));
    let shells = multi_sim::planted::Bug::ALL.iter().map(|bug| MultiBug::Shell(*bug));
    all_are_found(&links.chain(shells).collect::<Vec<MultiBug>>());
}

#[test]
fn every_planted_defect_of_a_cluster_is_found_within_a_thousand_seeds() {
    all_are_found(&cluster_core::planted::Bug::ALL.iter().map(|bug| ClusterBug(*bug)).collect::<Vec<_>>());
}
