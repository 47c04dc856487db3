//! The table of phases: what the whole check consists of.
//!
//! Owns: names, order, lanes and limits. To add a phase, add a row: order matters within a lane, and a phase needs only
//! phases above it. What a phase does stands in a module of its own unless it is one call.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::cargo::{self, PROFILE};
use crate::runner::{Lane, Phase, Step};
use crate::{deny, deploy, platforms, purity, tools, unsafe_list};

/// All phases. Limits are some ten times what a phase takes on two cores: they end what hangs, they measure nothing.
pub(crate) fn table() -> Vec<Phase> {
    use Lane::{Build, Run};
    let row = |name, lane, needs, limit_minutes, run, about| Phase { name, about, lane, needs, limit_minutes, run };
    vec![
        row("fmt", Run, &[], 5, fmt, "the source is formatted by rustfmt"),
        row("unsafe", Run, &[], 5, unsafe_modules, "`unsafe` stands only in the listed modules"),
        row("purity", Run, &[], 10, pure_crates, "crates of rules and bytes reach no clock, socket, file, SQL or HTTP"),
        row("deny", Run, &[], 20, deny::check, "licences, banned crates and sources; planted violations are refused"),
        row("programs", Run, &[], 10, tools::programs, "the programs that tests start are there"),
        row("build", Build, &[], 30, build, "everything compiles as it is tested: optimised, with assertions"),
        row("simulation", Run, &["build"], 40, simulation, "20,000 seeds of simulated faults break no promise"),
        row(
            "simulation-multi",
            Run,
            &["build"],
            40,
            simulation_multi,
            "20,000 seeds of faults in a server of several processes break no promise",
        ),
        row(
            "simulation-cluster",
            Run,
            &["build"],
            40,
            simulation_cluster,
            "40,000 seeds of faults among members of one database break no promise",
        ),
        row("tests", Run, &["programs", "build"], 30, tests, "unit tests, and end to end over real sockets"),
        row("clients", Run, &["programs", "build"], 40, clients, "foreign clients do a full life cycle"),
        row("kills", Run, &["build"], 40, kills, "1,500 kills of a real server lose, double and reorder nothing"),
        row(
            "kills-multi",
            Run,
            &["build"],
            40,
            kills_multi,
            "400 kills of owners, frontends and supervisors lose, double and reorder nothing",
        ),
        row(
            "faults",
            Run,
            &["programs", "build"],
            30,
            faults,
            "failing system calls of a real server break no promise",
        ),
        row(
            "supervision",
            Run,
            &["programs", "build"],
            40,
            supervision,
            "each fault of several processes, under load, loses and doubles nothing",
        ),
        row(
            "cluster",
            Run,
            &["programs", "build"],
            40,
            cluster,
            "each fault of members that share a database, under load, breaks no promise and needs no help",
        ),
        row(
            "connections",
            Run,
            &["programs", "build"],
            20,
            connections,
            "20,000 connections are served and shared out; floods and slow clients cost others little",
        ),
        row("demo", Run, &["build"], 10, demo, "the demo loses and doubles nothing, at a small size"),
        row("xtask", Build, &[], 20, own_tests, "the checks themselves: each finds a planted violation"),
        row("clippy", Build, &[], 20, clippy, "no warning from the compiler or clippy in any target"),
        row("docs", Build, &[], 20, docs, "the documentation builds, without broken links"),
        row("planted", Build, &[], 40, planted, "every planted defect is found within 1,000 seeds"),
        row("replay", Build, &["build"], 40, replay, "a seed does the same in a debug and in an optimised build"),
        row("shipped", Run, &[], 5, shipped, "the program is built without planted defects"),
        row("platforms", Build, &[], 20, platforms::check, "the program type-checks for kqueue platforms"),
        row("units", Run, &["build"], 5, deploy::units, "systemd accepts the units, and rates them as protected"),
        row("container", Run, &[], 30, deploy::container, "the container image builds, where a builder exists"),
    ]
}

fn fmt(step: &Step<'_>) -> anyhow::Result<String> {
    // The client's program is a workspace of its own: it must not share our lock file.
    for manifest in ["Cargo.toml", "clients/rust/Cargo.toml"] {
        let arguments = ["fmt", "--all", "--check", "--manifest-path", manifest, "--", "--color", "never"];
        step.run(cargo::command(step).args(arguments))?;
    }
    Ok(String::new())
}

fn unsafe_modules(step: &Step<'_>) -> anyhow::Result<String> {
    let found = unsafe_list::violations(step.root, unsafe_list::UNSAFE_MODULES)?;
    report(step, &found)?;
    Ok(format!("{} modules listed", unsafe_list::UNSAFE_MODULES.len()))
}

fn pure_crates(step: &Step<'_>) -> anyhow::Result<String> {
    let mut metadata = cargo::command(step);
    metadata.args(["metadata", "--format-version", "1", "--all-features", "--locked"]);
    let (found, count) = purity::violations(&step.capture(&mut metadata)?)?;
    report(step, &found)?;
    ensure!(count > 0, "no crate of rules was found");
    Ok(format!("{count} crates"))
}

/// Features that only tests may turn on.
const TEST_FEATURES: &[&str] = &["planted-bugs", "trace"];

fn shipped(step: &Step<'_>) -> anyhow::Result<String> {
    let mut tree = cargo::command(step);
    tree.args(["tree", "--locked", "--package", "tenure", "--edges", "normal,build", "--prefix", "none"]);
    let tree = step.capture(tree.args(["--format", "{p} [{f}]"]))?;
    report(step, &test_features_in(&tree))?;
    ensure!(tree.contains("tubes-core "), "the program does not contain the rules it ships");
    Ok(String::new())
}

/// The lines `package [feature,feature]` with a feature for tests.
fn test_features_in(tree: &str) -> Vec<String> {
    let has = |line: &str| {
        // Only packages of this workspace have a folder; what others call their features is their own matter.
        let (_, features) = line.split_once(" (/")?.1.split_once('[')?;
        let (features, _) = features.split_once(']')?;
        features.split(',').any(|feature| TEST_FEATURES.contains(&feature)).then_some(())
    };
    tree.lines().filter(|line| has(line).is_some()).map(|line| format!("a feature for tests: {line}")).collect()
}

fn report(step: &Step<'_>, found: &[String]) -> anyhow::Result<()> {
    for line in found {
        step.log(line);
    }
    ensure!(found.is_empty(), "{} violations, the first: {}", found.len(), found[0]);
    Ok(())
}

fn build(step: &Step<'_>) -> anyhow::Result<String> {
    let all = ["--locked", "--workspace", "--exclude", "xtask", "--profile", PROFILE];
    // First the server that tells the history checker in which order it decided; then the one that users get, in the
    // same place, so the first is put aside. They differ in two crates only.
    step.run(cargo::command(step).arg("build").args(all).args(["--bin", "tenure", "--features", "tenure/trace"]))?;
    std::fs::copy(step.target.join(PROFILE).join("tenure"), traced(step)).context("failed to put the server aside")?;
    // Programs too, where phases look for them; `test` alone builds only those that a test of their package runs.
    step.run(cargo::command(step).arg("build").args(all))?;
    step.run(cargo::command(step).args(["test", "--no-run"]).args(all))?;
    Ok(String::new())
}

fn tests(step: &Step<'_>) -> anyhow::Result<String> {
    cargo::test(step, &["--workspace", "--exclude", "xtask", "--profile", PROFILE])
}

/// Floors of the merge check, all counts.
const SIMULATION: [&str; 8] = ["--seeds", "1..20001", "--events", "5000", "--threads", "2", "--hours-min", "750"];

fn simulation(step: &Step<'_>) -> anyhow::Result<String> {
    let said = step.capture(built(step, "simulate").args(SIMULATION))?;
    step.log(&said);
    let mut lines = said.lines();
    let counts = lines.next().unwrap_or_default();
    let rate = lines.find(|line| line.contains("events/s")).unwrap_or_default();
    Ok(format!("{counts}; {rate}"))
}

/// Seeds and events of the merge check, then how often each thing must have been there: about half of what is usual.
const SIMULATION_MULTI: [&str; 8] = ["--mode", "multi", "--seeds", "1..20001", "--events", "3000", "--threads", "2"];
const SIMULATION_MULTI_FLOORS: [&str; 24] = [
    "executions=3000000",
    "offers=60000",
    "accepted=50000",
    "gone=250",
    "returned=10000",
    "revoked=200",
    "expired=50",
    "crossings=700",
    "kept=20000",
    "crossed_ends=10",
    "owner_restarts=4000",
    "frontend_restarts=1500",
    "supervisor_kills=3000",
    "power_losses=2000",
    "watchdog_kills=4000",
    "failed_slots=400",
    "drains=800",
    "links_lost=2500",
    "links_half_lost=2500",
    "relinks=3500",
    "old_batches=5000",
    "recoveries=30000",
    "log_failures=900",
    "large_bodies=2000",
];

fn simulation_multi(step: &Step<'_>) -> anyhow::Result<String> {
    let floors = SIMULATION_MULTI_FLOORS.iter().flat_map(|floor| ["--floor", floor]);
    let said = step.capture(built(step, "simulate").args(SIMULATION_MULTI).args(floors))?;
    step.log(&said);
    let mut lines = said.lines();
    let counts = lines.next().unwrap_or_default();
    let rate = lines.find(|line| line.contains("events/s")).unwrap_or_default();
    Ok(format!("{counts}; {rate}"))
}

/// Seeds of the merge check and what each simulates, then how often each thing must have been there: about half of what is
/// usual.
const SIMULATION_CLUSTER: [&str; 8] = ["--mode", "cluster", "--seeds", "1..40001", "--minutes", "10", "--threads", "2"];
const SIMULATION_CLUSTER_FLOORS: [&str; 28] = [
    "renewals=8000000",
    "effects=2000000",
    "finished=1300000",
    "finishes_lost=1000",
    "resumed_claims=1500",
    "fenced_late=50000",
    "fenced_expired=15000",
    "fenced_missing=6000",
    "fenced_changed=60000",
    "gained=200000",
    "suspended=100000",
    "resumed=50000",
    "takeovers_timed=2000",
    "reaped=80000",
    "rows_given_up=60000",
    "executions_killed=20000",
    "requests_carried_out=50000",
    "cache_drops=400000",
    "lock_waits=70000",
    "lock_timeouts=20000",
    "idle_timeouts=1500",
    "rows_skipped=80000",
    "rows_rechecked=40000",
    "unknown_commits=300000",
    "failovers=20000",
    "database_restarts=20000",
    "outages=20000",
    "clock_steps=20000",
];

fn simulation_cluster(step: &Step<'_>) -> anyhow::Result<String> {
    let floors = SIMULATION_CLUSTER_FLOORS.iter().flat_map(|floor| ["--floor", floor]);
    let said = step.capture(built(step, "simulate").args(SIMULATION_CLUSTER).args(floors))?;
    step.log(&said);
    let mut lines = said.lines();
    let counts = lines.next().unwrap_or_default();
    let rate = lines.find(|line| line.contains("events/s")).unwrap_or_default();
    Ok(format!("{counts}; {rate}"))
}

/// Of a hundred seeds: one hash over everything that happened.
const REPLAY: [[&str; 6]; 3] = [
    ["--mode", "cluster", "--seeds", "1..101", "--minutes", "10"],
    ["--mode", "single", "--seeds", "1..101", "--events", "5000"],
    ["--mode", "multi", "--seeds", "1..101", "--events", "3000"],
];

fn replay(step: &Step<'_>) -> anyhow::Result<String> {
    let mut hashes = Vec::new();
    for arguments in REPLAY {
        let said = step.capture(built(step, "simulate").args(arguments))?;
        let (_, hash) =
            said.lines().next().and_then(|line| line.rsplit_once("hash ")).context("no hash was printed")?;
        let hash = hash.trim();
        let mut debug = cargo::command(step);
        debug.args(["run", "--locked", "--package", "testing", "--bin", "simulate", "--"]).args(arguments);
        step.run(debug.args(["--expect-hash", hash]))?;
        hashes.push(hash.to_owned());
    }
    Ok(format!("100 seeds of each mode, hashes {}", hashes.join(", ")))
}

fn planted(step: &Step<'_>) -> anyhow::Result<String> {
    let features = "testing/planted-bugs,tubes-store/planted-bugs";
    let packages = ["--package", "testing", "--package", "tubes-store", "--test", "planted"];
    cargo::test(step, &[&packages[..], &["--profile", PROFILE, "--features", features]].concat())
}

fn demo(step: &Step<'_>) -> anyhow::Result<String> {
    step.run(built(step, "tenure").args(["demo", "--jobs", "20000"]))?;
    Ok("20,000 jobs through one process, and through several of which twelve are killed".into())
}

/// Cycles of the kill loop; the floor of the merge check.
const KILLS: &str = "1500";

fn kills(step: &Step<'_>) -> anyhow::Result<String> {
    let seed = ["--threads", "2", "--seed", "1"];
    let said = step.capture(built(step, "kill_loop").arg(traced(step)).args(["--cycles", KILLS]).args(seed))?;
    step.log(&said);
    Ok(said.lines().last().unwrap_or_default().to_owned())
}

/// Kills of processes of a server of several; the floor of the merge check.
const KILLS_MULTI: &str = "400";

fn kills_multi(step: &Step<'_>) -> anyhow::Result<String> {
    let arguments = ["--mode", "multi", "--cycles", KILLS_MULTI, "--threads", "2", "--seed", "1"];
    let said = step.capture(built(step, "kill_loop").arg(traced(step)).args(arguments))?;
    step.log(&said);
    Ok(said.lines().last().unwrap_or_default().to_owned())
}

fn faults(step: &Step<'_>) -> anyhow::Result<String> {
    let mut matrix = built(step, "fault_matrix");
    matrix.arg(step.target.join(PROFILE).join("tenure")).env("PATH", tools::search_path(step.target)?);
    let said = step.capture(&mut matrix)?;
    step.log(&said);
    Ok(said.lines().last().unwrap_or_default().to_owned())
}

/// How often each row of the matrix is played; the floor of the merge check.
const SUPERVISION: &str = "3";

fn supervision(step: &Step<'_>) -> anyhow::Result<String> {
    let mut matrix = built(step, "supervision_matrix");
    matrix.arg(step.target.join(PROFILE).join("tenure")).args(["--repeats", SUPERVISION]);
    let said = step.capture(matrix.env("PATH", tools::search_path(step.target)?))?;
    step.log(&said);
    Ok(said.lines().last().unwrap_or_default().to_owned())
}

/// How often PostgreSQL's restarts are played, 20 each; the floor of the merge check is 60.
const CLUSTER: &str = "3";

fn cluster(step: &Step<'_>) -> anyhow::Result<String> {
    let mut matrix = built(step, "cluster_matrix");
    matrix.args(["--repeats", CLUSTER]).env("PATH", tools::search_path(step.target)?);
    let said = step.capture(&mut matrix)?;
    step.log(&said);
    Ok(said.lines().last().unwrap_or_default().to_owned())
}

fn connections(step: &Step<'_>) -> anyhow::Result<String> {
    let mut load = built(step, "connections");
    load.arg(step.target.join(PROFILE).join("tenure")).env("PATH", tools::search_path(step.target)?);
    let said = step.capture(&mut load)?;
    step.log(&said);
    Ok(said.lines().last().unwrap_or_default().to_owned())
}

/// The server built with the feature `trace`.
fn traced(step: &Step<'_>) -> PathBuf {
    traced_server(step.target)
}

/// Where it stands.
pub(crate) fn traced_server(target: &Path) -> PathBuf {
    target.join("check").join("tenure-trace")
}

/// A program of the phase `build`.
fn built(step: &Step<'_>, name: &str) -> Command {
    let mut command = Command::new(step.target.join(PROFILE).join(name));
    command.current_dir(step.root);
    command
}

fn clients(step: &Step<'_>) -> anyhow::Result<String> {
    // This program again, as a child: so its time limit and its log are those of any phase.
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let mut command = Command::new(own);
    command.arg("clients").arg(step.target.join(PROFILE).join("tenure")).current_dir(step.root);
    let (passed, said) = step.try_run(command.env("CARGO_TARGET_DIR", step.target))?;
    for line in said.lines().filter(|line| line.starts_with("installed ")) {
        step.notice(line);
    }
    let last = said.lines().last().unwrap_or_default().to_owned();
    ensure!(
        passed,
        "the clients did not pass: {}",
        said.lines().find(|line| line.contains("xtask: ")).unwrap_or(&last)
    );
    Ok(last)
}

fn own_tests(step: &Step<'_>) -> anyhow::Result<String> {
    // In the profile this program is already built with: its dependencies are there.
    cargo::test(step, &["--package", "xtask"])
}

fn clippy(step: &Step<'_>) -> anyhow::Result<String> {
    let arguments = ["clippy", "--locked", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
    step.run(cargo::command(step).args(arguments))?;
    Ok(String::new())
}

fn docs(step: &Step<'_>) -> anyhow::Result<String> {
    let mut doc = cargo::command(step);
    doc.args(["doc", "--locked", "--workspace", "--no-deps", "--document-private-items"]);
    // Private items are documented, so links to them lead somewhere; a target that is spelt out may please a reader.
    let flags = "-D warnings -A rustdoc::private_intra_doc_links -A rustdoc::redundant_explicit_links";
    step.run(doc.env("RUSTDOCFLAGS", flags))?;
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_defect_in_the_program_is_found() {
        let tree = "tenure v0.1.0 (/x) []\ntubes-core v0.1.0 (/x) [default,planted-bugs] (*)\nplanted-bugs v1 [std]\nother v1 [trace]\n";
        assert_eq!(test_features_in(tree), ["a feature for tests: tubes-core v0.1.0 (/x) [default,planted-bugs] (*)"]);
    }
}
