//! Builds what users get: from a clean tree, with a changelog entry, packed, with its checksum.
//!
//! Never: publishes anything, and never replaces the check; it says so at the end.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::{cargo, runner};

/// Does the steps in order, each with a line; the first that fails ends it.
///
/// # Errors
///
/// What failed.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let changes = output(Command::new("git").args(["status", "--porcelain"]).current_dir(root))?;
    ensure!(changes.is_empty(), "the tree has uncommitted changes:\n{changes}");
    let commit = output(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).current_dir(root))?;
    println!("[done] the tree is clean, at commit {}", commit.trim());

    ensure!(
        cargo::pass_through(root, &["build", "--release", "--locked", "--package", "tenure"], &[])?,
        "the release build failed"
    );
    let folder = runner::target_folder(root).join("release");
    let version = output(Command::new(folder.join("tenure")).arg("--version"))?;
    let version =
        version.trim().strip_prefix("tenure ").context("`tenure --version` does not print `tenure VERSION`")?;
    println!("[done] built tenure {version}");

    let changelog = fs::read_to_string(root.join("CHANGELOG.md")).context("failed to read CHANGELOG.md")?;
    let heading = format!("## {version}");
    let listed = changelog.lines().any(|line| line == heading || line.starts_with(&format!("{heading} ")));
    ensure!(listed, "CHANGELOG.md has no section `{heading}`");
    println!("[done] CHANGELOG.md has a section for {version}");

    let name = format!("tenure-{version}-{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let pack = folder.join("pack").join(&name);
    fs::create_dir_all(&pack)?;
    fs::copy(folder.join("tenure"), pack.join("tenure")).context("failed to copy the executable")?;
    for file in ["LICENSE-MIT", "LICENSE-APACHE", "README.md", "CHANGELOG.md"] {
        fs::copy(root.join(file), pack.join(file)).with_context(|| format!("failed to copy {file}"))?;
    }
    let archive = format!("{name}.tar.gz");
    output(Command::new("tar").args(["-czf", &archive, &name]).current_dir(folder.join("pack")))?;
    let sum = output(Command::new("sha256sum").arg(&archive).current_dir(folder.join("pack")))?;
    fs::write(folder.join("pack").join(format!("{archive}.sha256")), &sum)?;
    println!("[done] packed {}", folder.join("pack").join(&archive).display());
    print!("{sum}");
    println!("[open] run `cargo xtask test` and `cargo xtask soak` on this commit, then tag it v{version}");
    Ok(())
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("failed to start {name}"))?;
    ensure!(output.status.success(), "{name} failed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).with_context(|| format!("the output of {name} is not UTF-8"))
}
