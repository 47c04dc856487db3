//! Random tests for hours instead of minutes, each round with seeds that no round before had.
//!
//! Owns: which tests take a first seed, and by which variable.
//! Never: ends early because all is well. It ends when its time is up, or at the first failure, with the seed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::cargo::{self, PROFILE};
use crate::process::{self, End};

/// A random test whose first seed a variable sets.
struct Row {
    name: &'static str,
    arguments: &'static [&'static str],
    variable: &'static str,
}

const ROWS: &[Row] =
    &[Row { name: "model", arguments: &["--package", "testing", "--test", "model"], variable: "MODEL_SEED" }];

/// Seeds from one round to the next: more than any test uses up in a round.
const STRIDE: u64 = 1_000_000;
/// A round that takes longer hangs.
const ROUND_LIMIT: Duration = Duration::from_secs(3_600);

/// Runs all rows in turn until `minutes` have passed; the first round begins at `seed`.
///
/// # Errors
///
/// At the first failure; the message says how to repeat it.
pub(crate) fn run(root: &Path, minutes: u64, seed: u64) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let mut round = 0;
    while Instant::now() < end {
        let first = seed + round * STRIDE;
        for row in ROWS {
            let started = Instant::now();
            let mut command = cargo::plain(root);
            command.args(["test", "--quiet", "--locked", "--profile", PROFILE]).args(row.arguments);
            command.env(row.variable, first.to_string());
            let again = format!("{}={first} cargo test --profile {PROFILE} {}", row.variable, row.arguments.join(" "));
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
    fn every_test_of_the_table_reads_its_variable() {
        for row in ROWS {
            let [_, package, _, test] = row.arguments else { panic!("{}: --package NAME --test NAME", row.name) };
            let file = crate::root().join(format!("crates/{package}/tests/{test}.rs"));
            let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            assert!(text.contains(&format!("\"{}\"", row.variable)), "{} does not read {}", row.name, row.variable);
        }
    }
}
