//! Kills a real server at random moments, again and again, and judges what its clients saw.
//!
//!     kill_loop target/verify/tenure --cycles 1500 --threads 2 --seed 1
//!     kill_loop target/verify/tenure --mode multi --cycles 300 --threads 2 --seed 1
//!
//! The executable is built with the feature `trace`. In single mode each cycle starts the server on the same directory, in
//! one sync mode after the other, asks what became of the commands that the last kill left open, lets several clients do
//! what they like for some ms, and kills it with SIGKILL. In multi mode clients do what they like all the time while owners,
//! frontends and now and then the supervisor are killed; restarts are allowed without end for that. In the end every job
//! is looked up, and the history checker judges the whole. Ends with 1 if it finds anything, leaving the history for study;
//! otherwise nothing is left behind. `kill_loop --judge PATH` judges such a history again.

mod client;
mod multi;
mod single;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use testing::history::{History, Report, Traces, check};

struct Arguments {
    executable: PathBuf,
    is_multi: bool,
    cycles: u64,
    threads: u64,
    seed: u64,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [judge, path] = words.as_slice()
        && judge == "--judge"
    {
        return judge_again(path);
    }
    let Some(arguments) = parse(words.into_iter()) else {
        eprintln!("usage: kill_loop EXECUTABLE [--mode single|multi] [--cycles N] [--threads N] [--seed N]");
        eprintln!("       kill_loop --judge PATH");
        return ExitCode::from(5);
    };
    let begin = Instant::now();
    let reports: Vec<Result<Report, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..arguments.threads)
            .map(|number| {
                let cycles = arguments.cycles.div_ceil(arguments.threads);
                let (executable, seed) = (arguments.executable.as_path(), arguments.seed + number);
                let is_multi = arguments.is_multi;
                scope.spawn(move || match is_multi {
                    true => multi::run(executable, seed, cycles),
                    false => single::Loop::new(executable, seed).run(cycles),
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("the harness gave up".into()))).collect()
    });
    let seconds = begin.elapsed().as_secs_f64();
    let mut is_fine = true;
    let mut cycles = 0;
    for report in reports {
        match report {
            Ok(report) => {
                cycles += arguments.cycles.div_ceil(arguments.threads);
                println!(
                    "{} generations, {} replies replayed, {} commands unknown, {} reservations, lateness {:?}",
                    report.generations, report.replayed, report.unknown, report.reservations, report.lateness
                );
            }
            Err(what) => {
                eprintln!("{what}");
                is_fine = false;
            }
        }
    }
    println!("{cycles} kills in {seconds:.0} s, {:.1} a second", cycles as f64 / seconds);
    if is_fine && cycles < arguments.cycles {
        eprintln!("fewer than {} kills", arguments.cycles);
        is_fine = false;
    }
    if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Judges `path.clients` and `path.trace`, which is a folder of folders if it is of several processes.
fn judge_again(path: &str) -> ExitCode {
    let read =
        |end: &str| std::fs::read_to_string(format!("{path}.{end}")).map_err(|error| format!("{path}.{end}: {error}"));
    let judged = read("clients").and_then(|clients| {
        let folder = PathBuf::from(format!("{path}.trace"));
        let history = match folder.is_dir() {
            true => History::parse_processes(&clients, &traces_in(&folder)?),
            false => History::parse(&clients, &read("trace")?),
        };
        let history = history.map_err(|error| error.to_string())?;
        Ok(check(&history))
    });
    match judged {
        Ok(report) => {
            println!("{report:#?}");
            if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(what) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let executable = PathBuf::from(words.next()?);
    let mut arguments = Arguments { executable, is_multi: false, cycles: 1_500, threads: 2, seed: 1 };
    while let Some(option) = words.next() {
        let word = words.next()?;
        if option == "--mode" {
            arguments.is_multi = match word.as_str() {
                "single" => false,
                "multi" => true,
                _ => return None,
            };
            continue;
        }
        let value = word.parse().ok()?;
        match option.as_str() {
            "--cycles" => arguments.cycles = value,
            "--threads" if value > 0 => arguments.threads = value,
            "--seed" => arguments.seed = value,
            _ => return None,
        }
    }
    Some(arguments)
}

/// The traces of a server of several processes: a folder `0`, `1`, … for each of its starts.
fn traces_in(folder: &Path) -> Result<Vec<Traces>, String> {
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
    let mut starts = Vec::new();
    while let Ok(entries) = std::fs::read_dir(folder.join(starts.len().to_string())) {
        let mut traces = Traces::new();
        for entry in entries {
            traces.push(std::fs::read_to_string(entry.map_err(failed)?.path()).map_err(failed)?);
        }
        starts.push(traces);
    }
    Ok(starts)
}
