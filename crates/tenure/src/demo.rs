//! `tenure demo`: a real workload on a server of its own, which is killed in between, and a check that every
//! acknowledged job came out exactly as promised.

mod client;
mod ledger;
mod server;
mod work;

use crate::cli::DemoOptions;
use crate::exit::{self, Failure};
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use ledger::{Ledger, Report};
use server::DemoServer;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};
use work::Shared;

const PRODUCERS: u64 = 4;
const WORKERS: u64 = 4;
/// Without any progress for this long the demo has failed.
const STALL: Duration = Duration::from_secs(60);

/// Runs the demo; a failure has exit code 1.
pub(crate) fn run(options: &DemoOptions) -> Result<(), Failure> {
    let report = play(options).map_err(|error| Failure::new(exit::FAILED, format!("the demo failed: {error:#}")))?;
    print!("{report}");
    if report.is_clean() {
        println!("Every acknowledged job came out exactly as promised.");
        return Ok(());
    }
    Err(Failure::new(exit::FAILED, "the demo found jobs that were lost, doubled or changed"))
}

fn play(options: &DemoOptions) -> anyhow::Result<Report> {
    let seed = options.seed.unwrap_or_else(|| u64::from(std::process::id()) ^ boot_ns());
    let mut server = DemoServer::start().context("failed to start the server")?;
    println!(
        "A server on 127.0.0.1:{} keeps its log in {}; {PRODUCERS} producers and {WORKERS} workers push {} jobs through \
         {} tubes, and the server is killed {} times meanwhile (seed {seed}).",
        server.port(),
        server.directory().display(),
        options.jobs,
        work::TUBES.len(),
        options.kills,
    );
    let shared = Arc::new(Shared { ledger: Ledger::new(), port: server.port(), seed });
    let began = Instant::now();
    let share = |number: u64| options.jobs / PRODUCERS + u64::from(number < options.jobs % PRODUCERS);
    let producers = (0..PRODUCERS).map(|number| work::spawn_producer(&shared, number, share(number)));
    let workers = (0..WORKERS).map(|number| work::spawn_worker(&shared, number));
    let kicker = work::spawn_kicker(&shared);
    let threads: Vec<_> = producers.chain(workers).chain([kicker]).collect();

    let watched = watch(options, &shared, &mut server);
    shared.ledger.finish();
    for thread in threads {
        match thread.join() {
            Ok(result) => result?,
            Err(_) => anyhow::bail!("a thread of the demo ended in a panic"),
        }
    }
    let kills = watched?;
    let left = client::Client::connect(shared.port)?.jobs_left()?;
    let report = shared.ledger.report(began.elapsed(), left, kills);
    server.stop().context("the server did not stop in order")?;
    Ok(report)
}

/// Shows progress and kills the server in between, until every job is done. Returns how often it was killed.
fn watch(options: &DemoOptions, shared: &Shared, server: &mut DemoServer) -> anyhow::Result<u32> {
    let bars = Bars::new(options.jobs);
    let mut kills = 0;
    let mut last = (0, Instant::now());
    loop {
        let progress = shared.ledger.wait_for_progress(Duration::from_millis(100));
        bars.show(progress.put, progress.done);
        let step = options.jobs / u64::from(options.kills + 1);
        if kills < options.kills && progress.done >= step * u64::from(kills + 1) {
            shared.ledger.next_generation(|| server.kill())?;
            let recovery = server.restart()?;
            kills += 1;
            bars.note(&format!(
                "killed the server after {} jobs; it listened again {} ms later",
                progress.done,
                recovery.as_millis()
            ));
        }
        if let Some(problem) = progress.problem {
            anyhow::bail!("{problem}");
        }
        if progress.is_complete(options.jobs) {
            bars.finish();
            return Ok(kills);
        }
        if progress.done + progress.put != last.0 {
            last = (progress.done + progress.put, Instant::now());
        }
        anyhow::ensure!(
            last.1.elapsed() < STALL,
            "no progress for {} s: {} put, {} done of {}",
            STALL.as_secs(),
            progress.put,
            progress.done,
            options.jobs
        );
    }
}

/// Progress bars on a terminal, plain lines otherwise.
struct Bars {
    put: ProgressBar,
    done: ProgressBar,
    _both: indicatif::MultiProgress,
    jobs: u64,
    is_terminal: bool,
    last_line: std::cell::Cell<u64>,
}

impl Bars {
    fn new(jobs: u64) -> Self {
        let both = indicatif::MultiProgress::new();
        let style = ProgressStyle::with_template("{msg:5} {wide_bar} {pos}/{len} {per_sec}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = |name: &'static str| {
            let bar = both.add(ProgressBar::new(jobs).with_style(style.clone()));
            bar.set_message(name);
            bar
        };
        let (put, done) = (bar("put"), bar("done"));
        Bars { put, done, _both: both, jobs, is_terminal: std::io::stderr().is_terminal(), last_line: 0.into() }
    }

    fn show(&self, put: u64, done: u64) {
        self.put.set_position(put);
        self.done.set_position(done);
        let tenth = done * 10 / self.jobs;
        if !self.is_terminal && tenth > self.last_line.get() {
            self.last_line.set(tenth);
            println!("{put} put, {done} of {} done", self.jobs);
        }
    }

    fn note(&self, text: &str) {
        if self.is_terminal {
            self.done.suspend(|| println!("{text}"));
        } else {
            println!("{text}");
        }
    }

    fn finish(&self) {
        self.put.finish();
        self.done.finish();
    }
}

fn boot_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
