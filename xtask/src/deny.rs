//! Licences, banned crates and sources of everything we depend on; and that this check can fail.
//!
//! Owns: how cargo-deny is called with `deny.toml`, for the workspace and for the fixtures with a planted violation.

use std::path::Path;
use std::process::Command;

use anyhow::ensure;

use crate::runner::Step;
use crate::tools;

/// Workspaces below `xtask/fixtures/` that must be refused, each with the words of the refusal.
const MUST_FAIL: &[(&str, &str)] = &[
    ("forbidden-licence", "error[rejected]: failed to satisfy license requirements"),
    ("banned-crate", "error[banned]"),
];

/// The phase.
///
/// # Errors
///
/// If the workspace violates `deny.toml`, a fixture does not, or cargo-deny cannot be had.
pub(crate) fn check(step: &Step<'_>) -> anyhow::Result<String> {
    let deny = tools::cargo_deny(step)?;
    let call = |folder: &Path| {
        let mut command = Command::new(&deny);
        command.current_dir(step.root).args(["--color", "never", "--all-features", "--locked", "--manifest-path"]);
        command.arg(folder.join("Cargo.toml")).arg("--config").arg(step.root.join("deny.toml"));
        command.args(["check", "--hide-inclusion-graph", "licenses", "bans", "sources"]);
        command
    };
    step.run(&mut call(step.root))?;
    for (name, words) in MUST_FAIL {
        let (passed, output) = step.try_run(&mut call(&step.root.join(crate::source::FIXTURES).join(name)))?;
        ensure!(!passed, "cargo-deny accepts the fixture {name}, which it must refuse");
        ensure!(output.contains(words), "cargo-deny refuses the fixture {name}, but not with `{words}`");
    }
    Ok(format!("and {} planted violations refused", MUST_FAIL.len()))
}
