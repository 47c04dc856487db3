//! Every fault that members of one database must bear, brought about for real, under load.
//!
//!     cluster_matrix --repeats 3
//!
//! Each row starts `cluster_member` processes, the one beside this program, on a private PostgreSQL or an SQLite file;
//! gives them work; brings a fault about; waits until everything is done without help; and has
//! `testing::demo_work::check` judge what was written down. Rows print what they saw, times included; they fail only
//! where a promise is broken, limits of time taken ten times. Ends with 1 if a row deviates; leaves nothing behind.
//!
//! `--only PART-OF-A-NAME` plays some of them, `--repeats` is for rows whose counts must be reached together.

mod crew;
mod files;
mod many;
mod outages;
mod processes;
mod wires;

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// What a row has seen, or which promise was broken.
pub(crate) type Outcome = Result<String, String>;

struct Row {
    name: &'static str,
    /// As often as asked, instead of once.
    is_repeated: bool,
    run: fn() -> Outcome,
}

const fn row(name: &'static str, run: fn() -> Outcome) -> Row {
    Row { name, is_repeated: false, run }
}

/// Long ones first, so that they do not stand alone at the end.
const ROWS: &[Row] = &[
    Row { name: "restarts of PostgreSQL under load", is_repeated: true, run: outages::restarts },
    row("fifty members", many::fifty),
    row("failover to a lagging replica", outages::failover),
    row("steps of the database's clock", outages::clock_steps),
    row("PostgreSQL away for longer than a lease", outages::away),
    row("frozen beyond the lease", processes::frozen),
    row("kill -9", processes::kills),
    row("clean stop", processes::stop),
    row("terminated backends", outages::terminated),
    row("half-open lease", wires::lease),
    row("half-open pool", wires::pool),
    row("notices lost", wires::notices),
    row("pool used up for three leases", processes::hogged),
    row("runtime blocked for three leases", processes::blocked),
    row("pooler in transaction mode", wires::pooler),
    row("an idle member's cost", many::idle),
    row("SQLite: one member", files::one_member),
    row("SQLite: kill -9 and restart at once", files::kills),
];

/// How often a row is played of which that is asked.
const REPEATS: usize = 3;

fn main() -> ExitCode {
    let (mut repeats, mut only) = (REPEATS, String::new());
    let mut words = std::env::args().skip(1);
    while let Some(option) = words.next() {
        match (option.as_str(), words.next()) {
            ("--repeats", Some(value)) if value.parse::<usize>().is_ok_and(|count| count > 0) => {
                repeats = value.parse().expect("looked at");
            }
            ("--only", Some(value)) => only = value,
            _ => {
                eprintln!("usage: cluster_matrix [--repeats N] [--only PART-OF-A-NAME]");
                return ExitCode::from(5);
            }
        }
    }
    let begin = Instant::now();
    let runs: Vec<&Row> = ROWS
        .iter()
        .filter(|row| row.name.contains(&only))
        .flat_map(|row| std::iter::repeat_n(row, if row.is_repeated { repeats } else { 1 }))
        .collect();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(row) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begin = Instant::now();
                    // The harness panics where its own means fail.
                    let result = std::panic::catch_unwind(row.run);
                    let seconds = begin.elapsed().as_secs_f64();
                    let what = match result {
                        Ok(Ok(what)) => {
                            println!("{}: {what} ({seconds:.1} s)", row.name);
                            continue;
                        }
                        Ok(Err(what)) => what,
                        Err(_) => "the harness gave up".to_owned(),
                    };
                    println!("{}: FAILED after {seconds:.1} s: {what}", row.name);
                    *failed.lock().expect("nothing panics while it counts") += 1;
                }
            });
        }
    });
    let mut failed = failed.into_inner().expect("nothing panics while it counts");
    if only.is_empty() && crew::REQUESTS.load(Ordering::Relaxed) == 0 {
        println!("FAILED: no request was carried out in any row");
        failed += 1;
    }
    println!("{} rows, {failed} failed, {:.0} s", runs.len(), begin.elapsed().as_secs_f64());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
