//! `tenure demo`: a real workload on servers of its own, whose processes are killed in between, and a check that every
//! acknowledged job came out exactly as promised.
//!
//! Two parts: a server of one process, which is killed and started again; and one of several, whose owners and
//! frontends are killed at random while the others go on.

mod client;
mod ledger;
#[cfg(target_os = "linux")]
mod processes;
mod progress;
mod server;
mod work;

use crate::cli::DemoOptions;
use crate::exit::{self, Failure};
use crate::output::say;
use anyhow::Context;
use ledger::{Ledger, Report};
use progress::Bars;
use server::DemoServer;
use std::sync::Arc;
use std::time::{Duration, Instant};
use work::Shared;

const PRODUCERS: u64 = 4;
const WORKERS: u64 = 4;
/// Without any progress for this long the demo has failed.
const STALL: Duration = Duration::from_secs(60);

/// Runs the demo; a failure has exit code 1.
pub(crate) fn run(options: &DemoOptions) -> Result<(), Failure> {
    let failed = |error: anyhow::Error| Failure::new(exit::FAILED, format!("the demo failed: {error:#}"));
    let seed = options.seed.unwrap_or_else(|| u64::from(std::process::id()) ^ boot_ns());
    let mut is_clean = show(&one_process(options, seed).map_err(failed)?);
    if options.process_kills > 0 {
        say!("");
        #[cfg(target_os = "linux")]
        {
            is_clean &= show(&several_processes(options, seed).map_err(failed)?);
        }
        #[cfg(not(target_os = "linux"))]
        say!("Servers of several processes exist on Linux only, so the second part is left out.");
    }
    if is_clean {
        return Ok(());
    }
    Err(Failure::new(exit::FAILED, "the demo found jobs that were lost, doubled or changed"))
}

/// Prints what a part came to; `true` if all is well.
fn show(report: &Report) -> bool {
    say!("{}", report.to_string().trim_end());
    if report.is_clean() {
        say!("Every acknowledged job came out exactly as promised.");
    }
    report.is_clean()
}

fn one_process(options: &DemoOptions, seed: u64) -> anyhow::Result<Report> {
    let mut server = DemoServer::start(Vec::new()).context("failed to start the server")?;
    say!(
        "A server on 127.0.0.1:{} keeps its log in {}; {PRODUCERS} producers and {WORKERS} workers push {} jobs through \
         {} tubes, and the server is killed {} times meanwhile (seed {seed}).",
        server.port(),
        server.directory().display(),
        options.jobs,
        work::TUBES.len(),
        options.kills,
    );
    let played = play(options.jobs, options.kills, seed, &mut server, "kills of the server", |server, ledger, done| {
        let recovery = ledger.disturb(|| {
            server.kill()?;
            server.restart()
        })?;
        Ok(format!("killed the server after {done} jobs; it listened again {} ms later", recovery.as_millis()))
    });
    played.with_context(|| format!("the last that the server said:\n{}\n", server.said()))
}

#[cfg(target_os = "linux")]
fn several_processes(options: &DemoOptions, seed: u64) -> anyhow::Result<Report> {
    let DemoOptions { owners, frontends, jobs, process_kills, .. } = *options;
    let mut server =
        DemoServer::start(processes::flags(owners, frontends)).context("failed to start the server of several")?;
    say!(
        "The same again on a server of several processes: {owners} owners have the jobs, {frontends} frontends the \
         connections. One of them is killed at random {process_kills} times meanwhile; the others go on, and the \
         supervisor starts it again. So that this many kills do not count as a slot that has failed, the demo sets \
         limits of its own: {}.",
        processes::LIMITS.join(" ")
    );
    let mut victims = processes::Victims::new(seed);
    let played = play(jobs, process_kills, seed, &mut server, "kills of processes", |server, ledger, done| {
        let killed = ledger.disturb(|| victims.kill_one(&server.status_socket()))?;
        Ok(format!("after {done} jobs killed {killed}"))
    });
    played.with_context(|| format!("the last that the server said:\n{}\n", server.said()))
}

/// Pushes jobs through `server`, with `kill` so many times in between.
fn play(
    jobs: u64,
    kills: u32,
    seed: u64,
    server: &mut DemoServer,
    what: &str,
    mut kill: impl FnMut(&mut DemoServer, &Ledger, u64) -> anyhow::Result<String>,
) -> anyhow::Result<Report> {
    let shared = Arc::new(Shared { ledger: Ledger::new(), port: server.port(), seed });
    let began = Instant::now();
    let share = |number: u64| jobs / PRODUCERS + u64::from(number < jobs % PRODUCERS);
    let producers = (0..PRODUCERS).map(|number| work::spawn_producer(&shared, number, share(number)));
    let workers = (0..WORKERS).map(|number| work::spawn_worker(&shared, number));
    let kicker = work::spawn_kicker(&shared);
    let threads: Vec<_> = producers.chain(workers).chain([kicker]).collect();

    let watched = watch(jobs, kills, &shared, |ledger, done| kill(server, ledger, done));
    let elapsed = began.elapsed();
    // Jobs whose put had no answer may be there all the same, and the workers are still at it.
    let left = watched.and_then(|()| wait_until_empty(&shared));
    shared.ledger.finish();
    for thread in threads {
        match thread.join() {
            Ok(result) => result?,
            Err(_) => anyhow::bail!("a thread of the demo ended in a panic"),
        }
    }
    let report = shared.ledger.report(elapsed, left?, format!("{kills} {what}"));
    server.stop().context("the server did not stop in order")?;
    Ok(report)
}

/// Shows progress and kills in between, until every job is done.
fn watch(
    jobs: u64,
    kills: u32,
    shared: &Shared,
    mut kill: impl FnMut(&Ledger, u64) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let bars = Bars::new(jobs);
    let mut killed = 0;
    let mut last = (0, Instant::now());
    loop {
        let progress = shared.ledger.wait_for_progress(Duration::from_millis(100));
        bars.show(progress.put, progress.done);
        let step = jobs / u64::from(kills + 1);
        if killed < kills && progress.done >= step * u64::from(killed + 1) {
            bars.note(&kill(&shared.ledger, progress.done)?);
            killed += 1;
            last.1 = Instant::now();
        }
        if let Some(problem) = progress.problem {
            anyhow::bail!("{problem}");
        }
        if progress.is_complete(jobs) && killed == kills {
            bars.finish();
            return Ok(());
        }
        if progress.done + progress.put != last.0 {
            last = (progress.done + progress.put, Instant::now());
        }
        anyhow::ensure!(
            last.1.elapsed() < STALL,
            "no progress for {} s: {} put, {} done of {jobs}",
            STALL.as_secs(),
            progress.put,
            progress.done,
        );
    }
}

/// Waits for the last jobs; how many are left if they do not go.
fn wait_until_empty(shared: &Shared) -> anyhow::Result<u64> {
    let began = Instant::now();
    loop {
        let left = client::Client::connect(shared.port)?.jobs_left()?;
        if left == 0 || began.elapsed() > STALL {
            return Ok(left);
        }
        shared.ledger.wait_for_progress(Duration::from_millis(50));
    }
}

fn boot_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
