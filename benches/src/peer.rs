//! The contenders: our server, the original and the floor, each with its command line.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::generator::Responder;
use crate::process::{AddressFlags, CommandLine};
use crate::workload::Workload;

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Contender {
    /// Our server.
    Tenure,
    /// The original, as Debian ships it.
    Beanstalkd,
    /// The bare epoll loop.
    Floor,
}

impl Contender {
    /// What the load generator has to expect.
    pub fn responder(self) -> Responder {
        match self {
            Self::Floor => Responder::Floor,
            Self::Tenure | Self::Beanstalkd => Responder::Queue,
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tenure => "tenure",
            Self::Beanstalkd => "beanstalkd",
            Self::Floor => "floor",
        })
    }
}

/// Whether and how a server keeps a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogMode {
    /// No log.
    Memory,
    /// `-f 50`: the default of both servers.
    Interval,
    /// `-f 0`: synced before each reply.
    Always,
    /// `-F`: never synced.
    Never,
}

impl LogMode {
    fn flags(self, folder: &Path) -> Vec<OsString> {
        let sync: &[&str] = match self {
            Self::Memory => return Vec::new(),
            Self::Interval => &["-f", "50"],
            Self::Always => &["-f", "0"],
            Self::Never => &["-F"],
        };
        let mut flags = vec!["-b".into(), folder.into()];
        flags.extend(sync.iter().map(OsString::from));
        flags
    }
}

impl fmt::Display for LogMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Memory => "memory",
            Self::Interval => "log, 50 ms",
            Self::Always => "log, -f 0",
            Self::Never => "log, never synced",
        })
    }
}

/// Where the executables are.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Our server; called with `tubes` unless its name is `beanstalkd`.
    pub tenure: PathBuf,
    /// The original.
    pub beanstalkd: PathBuf,
    /// This program, which is also the floor.
    pub floor: PathBuf,
}

impl Programs {
    /// The command line of a queue server that keeps its log, if any, in `folder`.
    ///
    /// The floor has no such command line: it needs a workload, see [`Programs::floor`].
    pub fn queue(&self, contender: Contender, mode: LogMode, folder: &Path) -> CommandLine {
        let program = if contender == Contender::Tenure { &self.tenure } else { &self.beanstalkd };
        let by_subcommand = program.file_name().is_none_or(|name| name != "beanstalkd");
        let mut arguments: Vec<OsString> = if by_subcommand { vec!["tubes".into()] } else { Vec::new() };
        arguments.extend(mode.flags(folder));
        CommandLine { program: program.clone(), arguments, address_flags: AddressFlags::ListenAndPort }
    }

    /// The command line of the floor for `workload`.
    pub fn floor(&self, workload: &Workload) -> CommandLine {
        let script = workload.script().to_string();
        let arguments = ["floor", "--script", &script, "--body-bytes", &workload.body_bytes.to_string()];
        CommandLine {
            program: self.floor.clone(),
            arguments: arguments.map(OsString::from).to_vec(),
            address_flags: AddressFlags::Listen,
        }
    }

    /// Finds the original in the search path; where it is missing, installs Debian's package and says so.
    ///
    /// # Errors
    ///
    /// It is missing and cannot be installed.
    pub fn find_beanstalkd() -> Result<PathBuf> {
        if let Some(path) = find("beanstalkd") {
            return Ok(path);
        }
        eprintln!("beanstalkd is not installed; installing the package beanstalkd with apt-get");
        install("beanstalkd")?;
        find("beanstalkd").context("beanstalkd is still not in the search path")
    }

    /// Makes sure that the tool `name`, from the Debian package of the same name, is there.
    ///
    /// # Errors
    ///
    /// It is missing and cannot be installed.
    pub fn need_tool(name: &str) -> Result<()> {
        if find(name).is_some() {
            return Ok(());
        }
        eprintln!("{name} is not installed; installing the package {name} with apt-get");
        install(name)
    }

    /// What `contender` answers when asked for its version.
    ///
    /// # Errors
    ///
    /// It cannot be executed or refuses the question.
    pub fn version(&self, contender: Contender) -> Result<String> {
        let line = self.queue(contender, LogMode::Memory, Path::new(""));
        let output = Command::new(&line.program).args(&line.arguments).arg("-v").stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("execute {}", line.program.display()))?;
        ensure!(output.status.success(), "{} -v ended with {}", line.program.display(), output.status);
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // Daemons live in folders that an ordinary user's search path may lack.
    let extra = ["/usr/bin", "/usr/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(extra).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn install(package: &str) -> Result<()> {
    let status = Command::new("apt-get")
        .args(["install", "--yes", "--no-install-recommends", package])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .status()
        .context("execute apt-get")?;
    ensure!(status.success(), "apt-get could not install {package} ({status}); install it and start again");
    Ok(())
}
