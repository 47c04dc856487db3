//! `cargo xtask bench NAME`: builds the benchmark, and the server if it needs one, as releases and hands over to it.
//!
//! Never: measures anything itself. What is measured, and how, stands in the crate `benches`.

use anyhow::{bail, ensure};

use crate::cargo;

/// Runs `cargo xtask bench ARGS`: the first argument names the benchmark, the others are its own.
///
/// # Errors
///
/// If the benchmark is unknown, something cannot be built, or a measurement fails; the benchmark has then said why.
pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let Some((name, rest)) = args.split_first() else {
        bail!("say what to measure: cargo xtask bench tubes, or group-commit");
    };
    if name == "group-commit" {
        let run = ["run", "--release", "--quiet", "--package", "benches", "--bin", "bench-group-commit", "--"];
        return run_cargo(&run, rest);
    }
    ensure!(name == "tubes", "there is no benchmark {name:?}, only \"tubes\" and \"group-commit\"");
    // One call for both, so that the server lies beside the benchmark and is found there.
    run_cargo(&["build", "--release", "--package", "tenure", "--package", "benches"], &[])?;
    run_cargo(&["run", "--release", "--quiet", "--package", "benches", "--bin", "bench-tubes", "--", "run"], rest)
}

fn run_cargo(arguments: &[&str], rest: &[String]) -> anyhow::Result<()> {
    ensure!(cargo::pass_through(&crate::root(), arguments, rest)?, "cargo {} failed", arguments.join(" "));
    Ok(())
}
