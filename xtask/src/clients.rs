//! Foreign clients against our server: each library from its package manager, each doing a whole life cycle.
//!
//! Owns: the table of clients ([`CLIENTS`]), how their libraries come onto the machine (`target/clients/`), and a fresh
//! server for each of them. The programs themselves are in `clients/`.
//! Never: leaves a client out. What cannot be installed or does not pass is an error that carries the program's output.

mod install;
mod server;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use self::server::Server;

/// One foreign client.
struct Client {
    /// The library's name and version, as shown.
    name: &'static str,
    /// Brings the library onto the machine and returns the command that runs the program, without host and port.
    prepare: fn(&Places, &mut Vec<String>) -> anyhow::Result<Command>,
    /// Runs the library's own test suite where its package carries one, and returns how many tests passed.
    own_suite: Option<fn(&Places) -> anyhow::Result<usize>>,
}

/// All of them. Those of the original's ecosystem that are packaged: a new one is one more row and one more program.
const CLIENTS: [Client; 6] = [
    Client { name: "greenstalk 2.1.1 (Python)", prepare: install::greenstalk, own_suite: None },
    Client { name: "pystalk 0.9.1 (Python)", prepare: install::pystalk, own_suite: None },
    Client { name: "node-beanstalk 1.6.7 (Node)", prepare: install::node_beanstalk, own_suite: None },
    Client {
        name: "beanstalkc 1.0.0 (Rust)",
        prepare: install::beanstalkc,
        own_suite: Some(install::beanstalkc_suite),
    },
    Client { name: "ruby-beaneater 1.1.1 (Ruby)", prepare: install::beaneater, own_suite: None },
    Client { name: "php-pda-pheanstalk 4.0.4 (PHP)", prepare: install::pheanstalk, own_suite: None },
];

/// The server's modes and their flags; clients see the same server in each.
const MODES: [(&str, &[&str]); 2] =
    [("one process", &[]), ("2 owners and 2 frontends", &["--owners", "2", "--frontends", "2"])];

/// Where things are.
struct Places {
    /// The programs: `clients/` of the workspace.
    programs: PathBuf,
    /// What is installed: `clients/` of the target folder.
    installed: PathBuf,
}

/// What [`run`] did.
#[derive(Debug)]
pub(crate) struct Summary {
    /// What was installed, one sentence each; empty if everything was there.
    pub(crate) installed: Vec<String>,
    /// Each client with its closing line and the time its life cycle took.
    pub(crate) passed: Vec<Passed>,
}

/// A client that passed.
#[derive(Debug)]
pub(crate) struct Passed {
    /// The library's name and version.
    pub(crate) name: &'static str,
    /// The program's last line, which says how much it checked.
    pub(crate) said: String,
    /// Tests of the library's own suite, if its package carries one.
    pub(crate) own_tests: Option<usize>,
    /// How long the life cycle took.
    pub(crate) took: Duration,
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for sentence in &self.installed {
            writeln!(formatter, "{sentence}")?;
        }
        for passed in &self.passed {
            write!(formatter, "{}: {} in {:.1} s", passed.name, passed.said, passed.took.as_secs_f64())?;
            match passed.own_tests {
                Some(count) => writeln!(formatter, "; {count} tests of its own suite passed")?,
                None => writeln!(formatter, "; its package carries no test suite")?,
            }
        }
        write!(formatter, "{} foreign clients passed", self.passed.len())
    }
}

/// Installs what is missing, then runs every foreign client against a fresh start of `server`, which is called by the
/// name `beanstalkd` as client test suites do.
///
/// # Errors
///
/// If a library cannot be installed, or a client or its suite does not pass; with its output.
pub(crate) fn run(server: &Path) -> anyhow::Result<Summary> {
    let server = server.canonicalize().with_context(|| format!("no server executable at {}", server.display()))?;
    let root = crate_root()?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let places = Places { programs: root.join("clients"), installed: target.join("clients") };
    fs::create_dir_all(&places.installed).with_context(|| format!("failed to make {}", places.installed.display()))?;

    let mut installed = Vec::new();
    let mut passed = Vec::new();
    for client in &CLIENTS {
        let command =
            (client.prepare)(&places, &mut installed).with_context(|| format!("failed to prepare {}", client.name))?;
        let own_tests = client.own_suite.map(|suite| suite(&places)).transpose();
        let own_tests = own_tests.with_context(|| format!("the own test suite of {} does not pass", client.name))?;
        let started = Instant::now();
        let mut said = String::new();
        for (mode, flags) in MODES {
            said = live(&server, &command, &places, flags)
                .with_context(|| format!("{} does not pass with {mode}", client.name))?;
        }
        passed.push(Passed { name: client.name, said, own_tests, took: started.elapsed() });
    }
    Ok(Summary { installed, passed })
}

/// Runs one program against a server of its own in one of the modes, and returns its last line.
fn live(executable: &Path, program: &Command, places: &Places, mode: &[&str]) -> anyhow::Result<String> {
    let server = Server::start(executable, &places.installed, mode)?;
    let mut command = again(program);
    command.arg("127.0.0.1").arg(server.port().to_string());
    let output = output_within(&mut command, Duration::from_secs(120))?;
    if let Some(text) = &output.failure {
        bail!("{text}\nits output:\n{}\nthe server's standard error:\n{}", output.text, server.stderr());
    }
    let last = output.text.lines().rfind(|line| !line.trim().is_empty());
    match last {
        Some(line) if line.ends_with(" checks passed") => Ok(line.to_owned()),
        _ => bail!("it ended without saying what it checked; its output:\n{}", output.text),
    }
}

/// The same call once more, as a command cannot be cloned.
fn again(program: &Command) -> Command {
    let mut command = Command::new(program.get_program());
    command.args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(folder) = program.get_current_dir() {
        command.current_dir(folder);
    }
    command
}

/// What a program printed, and why it failed if it did.
struct Output {
    text: String,
    failure: Option<String>,
}

/// Runs a program to its end, or kills it after `limit`; its output comes from one file, in order.
fn output_within(command: &mut Command, limit: Duration) -> anyhow::Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let (mut reader, writer) = std::io::pipe().context("failed to make a pipe")?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    // Read while the program runs, or a long output would stop it.
    let text = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let result = std::io::Read::read_to_end(&mut reader, &mut bytes);
        result.map(|_| String::from_utf8_lossy(&bytes).into_owned())
    });
    let end = crate::process::run(command, Instant::now() + limit)?;
    // Our ends of the pipe; the reader sees the end once the program's are closed too.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let text = text.join().map_err(|_| anyhow::anyhow!("the reader of {name} panicked"))?;
    let text = text.with_context(|| format!("failed to read what {name} prints"))?;
    let failure = match end {
        crate::process::End::Exited(status) if status.success() => None,
        crate::process::End::Exited(status) => Some(format!("{name} ended with {status}")),
        crate::process::End::TimedOut => Some(format!("{name} was still running after {} s", limit.as_secs())),
    };
    Ok(Output { text, failure })
}

/// Runs a program that must succeed.
fn must(command: &mut Command, limit: Duration) -> anyhow::Result<String> {
    let shown = format!("{command:?}");
    let output = output_within(command, limit)?;
    match output.failure {
        None => Ok(output.text),
        Some(failure) => bail!("{failure}\ncommand: {shown}\nits output:\n{}", output.text),
    }
}

/// The workspace's folder.
fn crate_root() -> anyhow::Result<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().map(PathBuf::from).context("the workspace has no folder")
}
