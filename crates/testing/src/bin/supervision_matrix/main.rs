//! Every fault that a server of several processes must bear, brought about for real, under load.
//!
//!     supervision_matrix target/verify/tenure --repeats 3
//!
//! `-` in the place of the path means the `tenure` beside this program.
//!
//! Each row starts a server, lets clients put, reserve and delete through all its frontends, brings a fault about (kills,
//! system calls that strace makes fail, bytes in the middle of a link, full file systems), looks at what the server says
//! and does, and has a ledger judge that nothing acknowledged is lost, doubled or executed twice. Rows run with and
//! without a log where that makes sense. Prints what each saw and how long it took, and ends with 1 if one of them
//! deviates; leaves nothing behind.
//!
//! It needs strace and the programs of util-linux, and the right to trace its own processes' children and to make
//! namespaces: root, as a rule.

mod breaks;
mod deaths;
mod diag;
mod disk;
mod ends;
mod faults;
mod ledger;
mod links;
mod load;
mod numbers;
mod slots;
mod supervisors;
mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use testing::rng::Rng;

/// Within this a slot is ready again, jobs of a dead frontend too, and no process outlives its supervisor. Limits for
/// users are tested at ten times.
pub(crate) const PROMISED: Duration = Duration::from_secs(1);

/// What a row is run with.
pub(crate) struct Env<'a> {
    pub(crate) executable: &'a Path,
    pub(crate) has_log: bool,
    pub(crate) rng: Rng,
    /// How many runs of the row there are in all, over both modes: for counts that are to be reached together.
    pub(crate) runs: u64,
}

/// Whether a row is run with a log, without, or both.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Logs {
    Both,
    With,
}

struct Row {
    name: &'static str,
    logs: Logs,
    /// Once instead of as often as asked.
    is_once: bool,
    run: fn(&mut Env<'_>) -> String,
}

const fn row(name: &'static str, logs: Logs, run: fn(&mut Env<'_>) -> String) -> Row {
    Row { name, logs, is_once: false, run }
}

const ROWS: &[Row] = &[
    row("frontend death", Logs::Both, deaths::frontend),
    row("owner death before append", Logs::With, deaths::owner_at_append),
    row("owner death before sync", Logs::With, deaths::owner_at_sync),
    row("owner death before reply", Logs::Both, deaths::owner_at_reply),
    row("IPC break", Logs::Both, breaks::link),
    row("supervisor death", Logs::Both, supervisors::death),
    row("failed write", Logs::With, disk::failed_write),
    row("read-only disk", Logs::With, disk::read_only),
    row("no space", Logs::With, disk::no_space),
    row("small disk", Logs::With, disk::small_disk),
    row("damaged log", Logs::With, disk::damaged),
    row("failed slot", Logs::Both, slots::failed),
    row("failed slot ends the server", Logs::Both, slots::failed_ends),
    row("drain", Logs::Both, ends::drain),
    row("stop", Logs::Both, ends::stop),
    row("second owner or supervisor", Logs::Both, supervisors::second),
    row("reused process number", Logs::Both, numbers::reuse),
    row("long log", Logs::With, slots::long_log),
    Row { name: "a thousand restarts", logs: Logs::Both, is_once: true, run: slots::restarts },
];

struct Arguments {
    executable: PathBuf,
    repeats: u64,
    seed: u64,
    only: Option<String>,
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut arguments = Arguments { executable: executable(&words.next()?), repeats: 3, seed: 1, only: None };
    while let Some(option) = words.next() {
        let value = words.next()?;
        match option.as_str() {
            "--repeats" => arguments.repeats = value.parse().ok().filter(|count| *count > 0)?,
            "--seed" => arguments.seed = value.parse().ok()?,
            "--only" => arguments.only = Some(value),
            _ => return None,
        }
    }
    Some(arguments)
}

fn executable(word: &str) -> PathBuf {
    match std::env::current_exe() {
        Ok(own) if word == "-" => own.with_file_name("tenure"),
        _ => PathBuf::from(word),
    }
}

fn main() -> ExitCode {
    let Some(arguments) = parse(std::env::args().skip(1)) else {
        eprintln!("usage: supervision_matrix EXECUTABLE [--repeats N] [--seed N] [--only PART-OF-A-NAME]");
        return ExitCode::from(5);
    };
    let begin = Instant::now();
    let mut runs: Vec<(&Row, bool)> = Vec::new();
    for row in ROWS.iter().filter(|row| arguments.only.as_ref().is_none_or(|part| row.name.contains(part.as_str()))) {
        runs.extend([true, false].into_iter().filter(|log| row.has(*log)).map(|log| (row, log)));
    }
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((row, has_log)) = runs.get(number) else { break };
                    let mut rng = Rng::new(arguments.seed).fork(number as u64);
                    if !repeat(row, *has_log, &arguments, &mut rng) {
                        *failed.lock().expect("nothing panics while it counts") += 1;
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("nothing panics while it counts");
    println!("{} rows, {failed} failed, {:.0} s", runs.len(), begin.elapsed().as_secs_f64());
    if failed == 0 && !runs.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Row {
    fn has(&self, log: bool) -> bool {
        match self.logs {
            Logs::Both => true,
            Logs::With => log,
        }
    }
}

/// Runs a row as often as asked; whether it held each time.
fn repeat(row: &Row, has_log: bool, arguments: &Arguments, rng: &mut Rng) -> bool {
    let repeats = if row.is_once { 1 } else { arguments.repeats };
    let modes = u64::from(row.has(true)) + u64::from(row.has(false));
    let name = format!("{} ({})", row.name, if has_log { "log" } else { "no log" });
    for round in 1..=repeats {
        let begin = Instant::now();
        let mut env = Env { executable: &arguments.executable, has_log, rng: rng.fork(round), runs: repeats * modes };
        // A deviation is a panic, with the place and what was seen.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (row.run)(&mut env)));
        let seconds = begin.elapsed().as_secs_f64();
        match result {
            Ok(seen) => println!("{name} {round}/{repeats}: {seen} ({seconds:.1} s)"),
            Err(_) => {
                println!("{name} {round}/{repeats}: FAILED after {seconds:.1} s; what deviates stands above");
                return false;
            }
        }
    }
    true
}
