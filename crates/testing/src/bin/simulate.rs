//! Runs the simulator over a range of seeds.
//!
//!     simulate --seeds 1..20001 --events 5000 --threads 2 --hours-min 750
//!
//! Prints what happened in all runs together and a hash over everything; ends with 1 if a promise was broken, naming the
//! seed, or a floor was not reached. The floors are counts; rates are only printed. `--expect-hash` compares with what
//! another build has printed for the same seeds; `--narrate SEED` tells what happens in one seed.
//!
//!     simulate --mode multi --seeds 1..1001 --events 4000 --floor offers=1000 --floor owner_restarts=500
//!
//! runs the server of several processes; each `--floor` is a count that the sum of all seeds must reach.
//!
//!     simulate --mode cluster --seeds 1..1001 --minutes 10 --floor failovers=100
//!
//! runs processes that share a database, each seed for so many simulated minutes.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use testing::sim::{Failure, Outcome, narrate, run};
use testing::{cluster_sim, multi_sim};

struct Arguments {
    first: u64,
    end: u64,
    events: u64,
    threads: u64,
    hours_min: u64,
    minutes: u64,
    narrate: bool,
    mode: Kind,
    /// Counts by name that the sum of all seeds must reach.
    floors: Vec<(String, u64)>,
    /// The hash that another build printed.
    expect_hash: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Single,
    Multi,
    Cluster,
}

/// What the sum of all seeds says.
trait Counted: Default + Send {
    /// The sum of both.
    fn and(self, other: Self) -> Self;
    /// Hash, simulated nanoseconds, events.
    fn figures(&self) -> (u64, u64, u64);
    fn counts(&self) -> Vec<(&'static str, u64)>;
}

macro_rules! counted {
    ($($sim:ident),*) => {$(
        impl Counted for $sim::Outcome {
            fn and(self, other: Self) -> Self {
                $sim::Outcome::and(self, other)
            }

            fn figures(&self) -> (u64, u64, u64) {
                (self.hash, self.simulated_ns, self.events)
            }

            fn counts(&self) -> Vec<(&'static str, u64)> {
                $sim::Outcome::counts(self)
            }
        }
    )*};
}

counted!(multi_sim, cluster_sim);

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(what) => {
            eprintln!("simulate: {what}");
            eprintln!("usage: simulate --seeds A..B [--events N] [--threads N] [--hours-min N] [--expect-hash H]");
            eprintln!("       simulate --narrate SEED [--events N]");
            eprintln!("       each with --mode multi [--floor NAME=COUNT]...: a server of several processes");
            eprintln!("       or with --mode cluster [--minutes N] [--floor NAME=COUNT]...: members of one database");
            return ExitCode::from(5);
        }
    };
    let (events, minutes) = (arguments.events, arguments.minutes);
    match arguments.mode {
        Kind::Single => {}
        Kind::Multi if arguments.narrate => return narrated(multi_sim::narrate(arguments.first, events)),
        Kind::Multi => {
            let events_min = (arguments.end - arguments.first) * events;
            return counted(&arguments, events_min, |seed| {
                multi_sim::run(seed, events).map_err(|failure| (failure.seed, failure.to_string()))
            });
        }
        Kind::Cluster if arguments.narrate => return narrated(cluster_sim::narrate(arguments.first, minutes)),
        Kind::Cluster => {
            return counted(&arguments, 0, |seed| {
                cluster_sim::run(seed, minutes).map_err(|failure| (failure.seed, failure.to_string()))
            });
        }
    }
    if arguments.narrate {
        return match narrate(arguments.first, arguments.events) {
            Ok(outcome) => {
                println!("{outcome:?}");
                ExitCode::SUCCESS
            }
            Err(failure) => {
                eprintln!("{failure}");
                ExitCode::FAILURE
            }
        };
    }
    // A panic in the code under test is reported with its seed below.
    std::panic::set_hook(Box::new(|_| {}));
    let begin = Instant::now();
    let (sum, failures) = run_all(&arguments);
    let seconds = begin.elapsed().as_secs_f64();
    for failure in failures.iter().take(5) {
        eprintln!("{failure}");
    }
    let seeds = arguments.end - arguments.first;
    let hours = sum.simulated_ns / 3_600_000_000_000;
    println!("{seeds} seeds, {} events, {hours} simulated hours, hash {:016x}", sum.events, sum.hash);
    println!("{sum:?}");
    println!(
        "{:.0} events/s on {} threads, {:.1} s, {:.0} times real time",
        sum.events as f64 / seconds,
        arguments.threads,
        seconds,
        sum.simulated_ns as f64 / 1e9 / seconds
    );
    if !failures.is_empty() {
        eprintln!("{} of {seeds} seeds failed", failures.len());
        return ExitCode::FAILURE;
    }
    if sum.events < seeds * arguments.events || hours < arguments.hours_min {
        eprintln!("fewer than {} events or {} hours", seeds * arguments.events, arguments.hours_min);
        return ExitCode::FAILURE;
    }
    if arguments.expect_hash.is_some_and(|expected| expected != sum.hash) {
        eprintln!("the same seeds gave another hash elsewhere");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn narrated(result: Result<impl std::fmt::Debug, impl std::fmt::Display>) -> ExitCode {
    match result {
        Ok(outcome) => {
            println!("{outcome:?}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all seeds of a simulation whose counts have floors.
fn counted<O: Counted>(
    arguments: &Arguments,
    events_min: u64,
    run: impl Fn(u64) -> Result<O, (u64, String)> + Sync,
) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let begin = Instant::now();
    let next = AtomicU64::new(arguments.first);
    let result = Mutex::new((O::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= arguments.end {
                        return;
                    }
                    let ran = run(seed);
                    let mut result = result.lock().expect("no thread panics while it adds");
                    match ran {
                        Ok(outcome) => result.0 = std::mem::take(&mut result.0).and(outcome),
                        Err(failure) => result.1.push(failure),
                    }
                }
            });
        }
    });
    let (sum, mut failures) = result.into_inner().expect("no thread panics while it adds");
    failures.sort();
    let seconds = begin.elapsed().as_secs_f64();
    for (_, failure) in failures.iter().take(5) {
        eprintln!("{failure}");
    }
    let seeds = arguments.end - arguments.first;
    let (hash, simulated_ns, events) = sum.figures();
    let hours = simulated_ns / 3_600_000_000_000;
    println!("{seeds} seeds, {events} events, {hours} simulated hours, hash {hash:016x}");
    let counts = sum.counts();
    let words: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    println!("{}", words.join(", "));
    println!("{:.0} events/s on {} threads, {seconds:.1} s", events as f64 / seconds, arguments.threads);
    if !failures.is_empty() {
        eprintln!("{} of {seeds} seeds failed", failures.len());
        return ExitCode::FAILURE;
    }
    let mut is_enough = events >= events_min;
    for (name, floor) in &arguments.floors {
        let count = counts.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count);
        if count < *floor {
            eprintln!("{name} is {count}, fewer than {floor}");
            is_enough = false;
        }
    }
    if !is_enough || hours < arguments.hours_min {
        eprintln!("a floor was not reached");
        return ExitCode::FAILURE;
    }
    if arguments.expect_hash.is_some_and(|expected| expected != hash) {
        eprintln!("the same seeds gave another hash elsewhere");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn run_all(arguments: &Arguments) -> (Outcome, Vec<Failure>) {
    let next = AtomicU64::new(arguments.first);
    let result = Mutex::new((Outcome::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= arguments.end {
                        return;
                    }
                    let ran = run(seed, arguments.events);
                    let mut result = result.lock().expect("no thread panics while it adds");
                    match ran {
                        Ok(outcome) => result.0 = result.0.and(outcome),
                        Err(failure) => result.1.push(failure),
                    }
                }
            });
        }
    });
    let (sum, mut failures) = result.into_inner().expect("no thread panics while it adds");
    failures.sort_by_key(|failure| failure.seed);
    (sum, failures)
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        first: 1,
        end: 1_001,
        events: 5_000,
        threads: 2,
        hours_min: 0,
        minutes: 10,
        narrate: false,
        mode: Kind::Single,
        floors: Vec::new(),
        expect_hash: None,
    };
    while let Some(option) = words.next() {
        let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{value:?} is not a number"));
        match option.as_str() {
            "--seeds" => {
                let range =
                    value.split_once("..").and_then(|(first, end)| Some((first.parse().ok()?, end.parse().ok()?)));
                let range: (u64, u64) = range.ok_or_else(|| format!("{value:?} is not a range of seeds"))?;
                (arguments.first, arguments.end) = range;
                if arguments.end <= arguments.first {
                    return Err(format!("{value:?} is an empty range of seeds"));
                }
            }
            "--narrate" => {
                (arguments.first, arguments.narrate) = (number()?, true);
                arguments.end = arguments.first + 1;
            }
            "--mode" => {
                arguments.mode = match value.as_str() {
                    "single" => Kind::Single,
                    "multi" => Kind::Multi,
                    "cluster" => Kind::Cluster,
                    _ => return Err(format!("{value:?} is no mode: single, multi or cluster")),
                };
            }
            "--floor" => {
                let floor =
                    value.split_once('=').and_then(|(name, count)| Some((name.to_owned(), count.parse().ok()?)));
                arguments.floors.push(floor.ok_or_else(|| format!("{value:?} is not NAME=COUNT"))?);
            }
            "--events" => arguments.events = number()?,
            "--minutes" => arguments.minutes = number()?,
            "--threads" => arguments.threads = number()?.max(1),
            "--expect-hash" => {
                let hash = u64::from_str_radix(&value, 16);
                arguments.expect_hash = Some(hash.map_err(|_| format!("{value:?} is no hash"))?);
            }
            "--hours-min" => arguments.hours_min = number()?,
            _ => return Err(format!("unknown option {option}")),
        }
    }
    Ok(arguments)
}
