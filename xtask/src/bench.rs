//! `cargo xtask bench tubes`: builds the server and the benchmark as releases and hands over to it.
//!
//! Never: measures anything itself. What is measured, and how, stands in the crate `benches`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

/// Runs `cargo xtask bench ARGS`: the first argument names the benchmark, the others are its own.
///
/// # Errors
///
/// If the benchmark is unknown, something cannot be built, or a measurement fails; the benchmark has then said why.
pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let Some((name, rest)) = args.split_first() else { bail!("say what to measure: cargo xtask bench tubes") };
    ensure!(name == "tubes", "there is no benchmark {name:?}, only \"tubes\"");
    // One call for both, so that the server lies beside the benchmark and is found there.
    cargo(&["build", "--release", "--package", "tenure", "--package", "benches"], &[])?;
    cargo(&["run", "--release", "--quiet", "--package", "benches", "--bin", "bench-tubes", "--", "run"], rest)
}

fn cargo(arguments: &[&str], rest: &[String]) -> anyhow::Result<()> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(arguments)
        .args(rest)
        .current_dir(own.parent().unwrap_or(own))
        .status()
        .context("failed to start cargo")?;
    ensure!(status.success(), "cargo {} ended with {status}", arguments.join(" "));
    Ok(())
}
