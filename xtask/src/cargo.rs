//! How cargo is called, and what its test runs say.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, anyhow, ensure};

use crate::runner::Step;
use crate::tools;

/// The profile every test is built with: optimised, with assertions and overflow checks.
pub(crate) const PROFILE: &str = "verify";

/// Cargo in the workspace's folder, without colours, with the toolchain that runs this task.
pub(crate) fn command(step: &Step<'_>) -> Command {
    let mut command = plain(step.root);
    command.env("CARGO_TERM_COLOR", "never").env("RUST_BACKTRACE", "1");
    command
}

/// Cargo in the workspace's folder, as a terminal would have it.
pub(crate) fn plain(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    // What `cargo run` told this task about its own package would look like settings to build scripts.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST") || text == "CARGO_BIN_NAME" {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs cargo in the foreground, with the terminal; returns whether it succeeded.
///
/// # Errors
///
/// If it cannot be started.
pub(crate) fn pass_through(root: &Path, arguments: &[&str], rest: &[String]) -> anyhow::Result<bool> {
    let status = plain(root).args(arguments).args(rest).status().context("failed to start cargo")?;
    Ok(status.success())
}

/// How many tests a run of `cargo test` did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestCount {
    /// Executables and documentation suites that ran at least one test.
    pub(crate) suites: u32,
    /// Tests that passed.
    pub(crate) passed: u32,
    /// Tests marked `#[ignore]`.
    pub(crate) ignored: u32,
}

/// Runs `cargo test` with `arguments`, through to the last suite even if one fails.
///
/// # Errors
///
/// If a test fails, or none ran at all; `command` as of [`Step::run`].
pub(crate) fn test(step: &Step<'_>, arguments: &[&str]) -> anyhow::Result<String> {
    let mut call = command(step);
    call.args(["test", "--locked", "--no-fail-fast"]).args(arguments).env("PATH", tools::search_path(step.target)?);
    let result = step.capture(&mut call);
    let output = std::fs::read_to_string(step.output_path()).unwrap_or_default();
    step.log(&output);
    if let Err(error) = result {
        let failures = failures(&output);
        // Once more at the end, which is what the summary shows: other suites may have spoken since.
        for (name, text) in &failures {
            step.log(format_args!("\nfailed: {name}\n{text}"));
        }
        let names: Vec<&str> = failures.iter().map(|(name, _)| name.as_str()).collect();
        return if names.is_empty() {
            Err(error)
        } else {
            Err(anyhow!("{} failed: {}", names.len(), names.join(", ")))
        };
    }
    let count = count_tests(&output);
    ensure!(count.passed > 0, "no test ran");
    if count.ignored > 0 {
        step.notice(format!("{} tests are marked as ignored and did not run", count.ignored));
    }
    Ok(format!("{} tests in {} suites", count.passed, count.suites))
}

fn count_tests(output: &str) -> TestCount {
    let mut count = TestCount::default();
    for line in output.lines().filter_map(|line| line.trim().strip_prefix("test result: ")) {
        let number = |word: &str| -> u32 {
            line.split([';', '.'])
                .find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
                .unwrap_or_default()
        };
        count.suites += u32::from(number("passed") > 0);
        count.passed += number("passed");
        count.ignored += number("ignored");
    }
    count
}

/// The most that is shown of what one failed test said, in lines; a backtrace can be endless.
const FAILURE_LINES: usize = 25;

/// Name and first words of each failed test.
fn failures(output: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, Vec<&str>)> = Vec::new();
    let mut inside = false;
    for line in output.lines() {
        let name = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----"));
        if let Some(name) = name {
            found.push((name.to_owned(), Vec::new()));
            inside = true;
        } else if line == "failures:" {
            inside = false; // the list of names, or the next suite's
        } else if inside
            && let Some((_, lines)) = found.last_mut()
            && lines.len() < FAILURE_LINES
            && !(lines.is_empty() && line.is_empty())
        {
            lines.push(line);
        }
    }
    found.into_iter().map(|(name, lines)| (name, lines.join("\n"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_tests_said_is_found_between_other_suites() {
        let output = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\n\nit broke\nhere\n\n---- b::c stdout ----\nwhy\n\n\n\
            failures:\n    a\n    b::c\n\ntest result: FAILED. 0 passed; 2 failed\n\nrunning 1 test\ntest d ... ok\n";
        assert_eq!(failures(output), [("a".into(), "it broke\nhere\n".into()), ("b::c".into(), "why\n\n".to_owned())]);
        assert!(failures("test a ... ok").is_empty());
    }

    #[test]
    fn the_results_of_all_suites_are_added_up() {
        let output = "running 3 tests\n\
            test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 1.20s\n";
        assert_eq!(count_tests(output), TestCount { suites: 2, passed: 42, ignored: 1 });
        assert_eq!(count_tests("error: could not compile"), TestCount::default());
    }
}
