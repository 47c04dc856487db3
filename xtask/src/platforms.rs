//! The server compiles where the original runs: on kqueue platforms as well as on Linux.
//!
//! Never: runs anything there. What is checked is that the types fit; no linker and no C compiler for the platform is
//! needed, so a dependency with C code must stand behind `cfg(target_os = "linux")`.

use std::process::Command;

use anyhow::bail;

use crate::cargo;
use crate::runner::Step;

/// One BSD and macOS; both have kqueue.
const TARGETS: &[&str] = &["x86_64-unknown-freebsd", "x86_64-apple-darwin"];

/// The phase.
///
/// # Errors
///
/// If the program does not type-check for one of the platforms.
pub(crate) fn check(step: &Step<'_>) -> anyhow::Result<String> {
    let mut checked = Vec::new();
    let mut failed = Vec::new();
    for &target in TARGETS {
        if !has_standard_library(step, target)? {
            step.notice(format!("not type-checked for {target}: its standard library cannot be had here"));
            continue;
        }
        let mut check = cargo::command(step);
        check.args(["check", "--locked", "--package", "tenure", "--target", target]);
        match step.run(&mut check) {
            Ok(()) => checked.push(target),
            Err(error) => failed.push(format!("{target}: {error:#}")),
        }
    }
    if !failed.is_empty() {
        bail!(failed.join("; "));
    }
    if checked.is_empty() {
        return step.skip("the standard library of no other platform can be had here");
    }
    Ok(checked.join(", "))
}

/// Whether the toolchain has `target`; rustup is asked to bring it.
fn has_standard_library(step: &Step<'_>, target: &str) -> anyhow::Result<bool> {
    if crate::tools::find_program("rustup").is_some() {
        // Its failure is not ours: the question below decides.
        let _ = step.try_run(Command::new("rustup").args(["target", "add", target]).current_dir(step.root))?;
    }
    let (known, folder) = step
        .try_run(Command::new("rustc").args(["--print", "target-libdir", "--target", target]).current_dir(step.root))?;
    let folder = std::path::Path::new(folder.trim());
    Ok(known
        && folder.read_dir().is_ok_and(|mut entries| {
            entries.any(|entry| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("libstd-")))
        }))
}
