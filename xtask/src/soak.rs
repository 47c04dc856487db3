//! Random tests for hours instead of minutes, each round with seeds that no round before had; before them a crowd of
//! connections that rests for half an hour.
//!
//! Owns: which tests take a first seed, and by which variable; how many connections the crowd has.
//! Never: ends early because all is well. It ends when its time is up, or at the first failure, with the seed.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::cargo::{self, PROFILE};
use crate::phases::traced_server;
use crate::process::{self, End};
use crate::runner::target_folder;

/// Cargo's arguments, and the variable, that begin a test at a seed.
type Call = (Vec<String>, Option<(&'static str, String)>);

/// A random test that can begin at any seed.
struct Row {
    name: &'static str,
    call: fn(u64) -> Call,
}

const ROWS: &[Row] = &[
    Row { name: "model", call: model },
    Row { name: "simulation", call: simulation },
    Row { name: "supervision", call: supervision },
    Row { name: "kills of several processes", call: kills_multi },
];

/// Engine and model in step; the test takes its first seed from a variable.
const MODEL_VARIABLE: &str = "MODEL_SEED";
/// Seeds of the simulator in a round: some minutes.
const SIMULATION_SEEDS: u64 = 20_000;

fn model(first: u64) -> Call {
    (words("test --locked --package testing --test model"), Some((MODEL_VARIABLE, first.to_string())))
}

fn simulation(first: u64) -> Call {
    let end = first + SIMULATION_SEEDS;
    (words(&format!("run --locked --package testing --bin simulate -- --seeds {first}..{end} --events 5000")), None)
}

/// Plays of each row of the supervision matrix in a round: an hour at most.
const SUPERVISION_REPEATS: u64 = 50;

fn supervision(first: u64) -> Call {
    let matrix = "run --locked --package testing --bin supervision_matrix --";
    (words(&format!("{matrix} - --repeats {SUPERVISION_REPEATS} --seed {first}")), None)
}

/// Kills of processes of a server of several in a round: some minutes.
const KILLS_MULTI: u64 = 2_000;

/// The server with traces stands where the check has put it.
fn kills_multi(first: u64) -> Call {
    let mut arguments = words("run --locked --package testing --bin kill_loop --");
    arguments.push(traced_server(&target_folder(&crate::root())).display().to_string());
    arguments.extend(words(&format!("--mode multi --cycles {KILLS_MULTI} --threads 2 --seed {first}")));
    (arguments, None)
}

/// A crowd needs so many processes on either side: each has fewer than 20,000 descriptors.
const CROWD: [&str; 6] = ["--connections", "100000", "--frontends", "6", "--processes", "6"];
/// How long the crowd stays, if the soak is long enough.
const CROWD_MINUTES: u64 = 30;

/// A crowd of connections that rests: all are served each minute, and memory does not grow.
fn crowd(root: &Path, minutes: u64) -> anyhow::Result<()> {
    let programs = target_folder(root).join(PROFILE);
    let mut command = Command::new(programs.join("connections"));
    command.arg(programs.join("tenure")).args(["--only", "many connections"]).args(CROWD);
    command.args(["--hold-minutes", &minutes.min(CROWD_MINUTES).to_string()]);
    match process::run(&mut command, Instant::now() + ROUND_LIMIT).context("the crowd could not be started")? {
        End::Exited(status) if status.success() => Ok(()),
        End::Exited(status) => bail!("the crowd failed with {status}; to repeat it: {command:?}"),
        End::TimedOut => bail!("the crowd hangs; to repeat it: {command:?}"),
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(ToOwned::to_owned).collect()
}

/// Seeds from one round to the next: more than any test uses up in a round.
const STRIDE: u64 = 1_000_000;
/// A round that takes longer hangs.
const ROUND_LIMIT: Duration = Duration::from_secs(3_600);

/// Lets a crowd rest, then runs all rows in turn until `minutes` have passed; the first round begins at `seed`.
///
/// # Errors
///
/// At the first failure; the message says how to repeat it.
pub(crate) fn run(root: &Path, minutes: u64, seed: u64) -> anyhow::Result<()> {
    let build_row = |arguments: &[&str]| -> anyhow::Result<()> {
        let mut build = cargo::plain(root);
        build.args(["build", "--locked", "--package", "tenure", "--package", "testing", "--bins"]);
        build.args(["--profile", PROFILE]).args(arguments);
        match process::run(&mut build, Instant::now() + ROUND_LIMIT).context("the server could not be built")? {
            End::Exited(status) if status.success() => Ok(()),
            End::Exited(_) | End::TimedOut => bail!("the server could not be built"),
        }
    };
    // The server with traces is put aside, as in the check.
    build_row(&["--features", "tenure/trace"])?;
    let traced = traced_server(&target_folder(root));
    std::fs::create_dir_all(traced.parent().context("a folder of the check")?)?;
    std::fs::copy(target_folder(root).join(PROFILE).join("tenure"), traced).context("cannot put the server aside")?;
    // The server that the crowd and some of the rows use, where they look for it, and the crowd.
    build_row(&[])?;
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    crowd(root, minutes)?;
    let mut round = 0;
    while Instant::now() < end {
        let first = seed + round * STRIDE;
        for row in ROWS {
            let started = Instant::now();
            let (arguments, variable) = (row.call)(first);
            let mut command = cargo::plain(root);
            // The profile goes behind the subcommand, before what is meant for the program.
            command.arg(&arguments[0]).args(["--profile", PROFILE]).args(&arguments[1..]);
            command.envs(variable.clone());
            let prefix = variable.map_or_else(String::new, |(name, value)| format!("{name}={value} "));
            let again = format!("{prefix}cargo {} --profile {PROFILE} {}", arguments[0], arguments[1..].join(" "));
            match process::run(&mut command, started + ROUND_LIMIT).context("the round could not be started")? {
                End::Exited(status) if status.success() => {}
                End::Exited(status) => bail!("{} failed with {status}; to repeat it: {again}", row.name),
                End::TimedOut => bail!("{} hangs; to repeat it: {again}", row.name),
            }
            println!(
                "round {round}: {} passed from seed {first} in {:.1} s",
                row.name,
                started.elapsed().as_secs_f64()
            );
        }
        round += 1;
    }
    println!("{round} rounds passed in {minutes} minutes");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_reads_the_variable_that_sets_its_seed() {
        let text = std::fs::read_to_string(crate::root().join("crates/testing/tests/model.rs")).unwrap();
        assert!(text.contains(&format!("\"{MODEL_VARIABLE}\"")));
    }
}
