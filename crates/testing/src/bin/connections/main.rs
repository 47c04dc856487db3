//! Many connections, and clients that flood or do not read, against a server of several processes.
//!
//!     connections target/verify/tenure
//!     connections target/verify/tenure --connections 100000 --frontends 6 --processes 6 --hold-minutes 30
//!
//! Owns: the list of parts, and what each must show. Each part starts the real server, loads it, and looks at what its
//! clients see, at the memory of each process, and at what is left when the clients have gone. A process may have few
//! descriptors (some 20,000), so the clients of a crowd are processes too: this program again ([`crowd`]).
//! Never: asserts a rate. Prints a line for each part and ends with 1 if one of them fails; leaves nothing behind.

mod crowd;
mod floods;
mod many;
mod rounds;
mod server;
mod slow_disk;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What a part has shown, or what went wrong.
type Outcome = Result<String, String>;

/// A part: its name and what plays it.
type Part = (&'static str, fn(&Arguments) -> Outcome);

const PARTS: &[Part] = &[
    ("a thousand clients are shared out", many::thousand),
    ("many connections", many::many),
    ("connections that come and go", floods::churn),
    ("commands without reading", floods::pipeline),
    ("clients that read a byte a second", floods::slow_readers),
    ("a flood of puts on a slow disk", slow_disk::flood),
];

/// What the command line says.
pub(crate) struct Arguments {
    executable: PathBuf,
    connections: usize,
    frontends: u16,
    processes: usize,
    hold: Duration,
    only: Option<String>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [crowd, address, source] = words.as_slice()
        && crowd == crowd::WORD
    {
        return crowd::serve(address, source);
    }
    let Some(arguments) = parse(words.into_iter()) else {
        eprintln!("usage: connections EXECUTABLE [--connections N] [--frontends N] [--processes N]");
        eprintln!("                   [--hold-minutes N] [--only WORDS]");
        return ExitCode::from(5);
    };
    let begin = Instant::now();
    let is_meant = |name: &str| arguments.only.as_deref().is_none_or(|words| name.contains(words));
    let (mut played, mut failed) = (0, 0);
    for (name, part) in PARTS.iter().filter(|(name, _)| is_meant(name)) {
        let part_begin = Instant::now();
        // The harness panics where a server does not do what every test expects of it.
        let result = std::panic::catch_unwind(|| part(&arguments));
        played += 1;
        let seconds = part_begin.elapsed().as_secs_f64();
        match result {
            Ok(Ok(what)) => println!("{name}: {what} ({seconds:.1} s)"),
            Ok(Err(what)) => {
                eprintln!("{name}: FAILED: {what}");
                failed += 1;
            }
            Err(_) => {
                eprintln!("{name}: FAILED: the harness gave up");
                failed += 1;
            }
        }
    }
    println!("{played} parts, {failed} failed, {:.0} s", begin.elapsed().as_secs_f64());
    if failed == 0 && played > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let executable = PathBuf::from(words.next()?);
    let mut arguments =
        Arguments { executable, connections: 20_000, frontends: 4, processes: 2, hold: Duration::ZERO, only: None };
    while let Some(option) = words.next() {
        let value = words.next()?;
        match option.as_str() {
            "--connections" => arguments.connections = value.parse().ok()?,
            "--frontends" => arguments.frontends = value.parse().ok().filter(|count| *count > 0)?,
            "--processes" => arguments.processes = value.parse().ok().filter(|count| *count > 0)?,
            "--hold-minutes" => arguments.hold = Duration::from_secs(60 * value.parse::<u64>().ok()?),
            "--only" => arguments.only = Some(value),
            _ => return None,
        }
    }
    Some(arguments)
}

impl Arguments {
    fn executable(&self) -> &Path {
        &self.executable
    }
}

/// `Err` with `what` unless it holds.
pub(crate) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// Bytes for people.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0))
}
