//! The benchmark of the queue server: `cargo xtask bench tubes` builds everything and calls `run`.
#![forbid(unsafe_code)]

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use benches::generator::{Generator, Responder};
use benches::machine::{self, Cores};
use benches::multi::{self, results::Part};
use benches::peer::Programs;
use benches::process::{self, Folder};
use benches::round::Lab;
use benches::sections::{self, Effort, Section};
use benches::workload::{BODY_BYTES_MAX, Mix, Script, Workload};
use benches::{floor, report};
use clap::Parser;

#[derive(Parser)]
#[command(name = "bench-tubes", about = "Measures the queue server beside beanstalkd and the floor")]
enum Arguments {
    /// Measures and writes the report.
    Run(Run),
    /// Serves a script of known sizes and nothing else, until it is ended.
    Floor(Floor),
    /// Puts a workload on a server that runs already, for profiling.
    Load(Load),
}

#[derive(Parser)]
struct Run {
    /// A few rows and small amounts, in some minutes; the report goes beside the figures, not to the documentation.
    #[arg(long)]
    quick: bool,
    /// Measure only these sections (bounds, matrix, log, tubes, sync, memory, idle, start, recovery).
    #[arg(long, value_delimiter = ',')]
    only: Vec<Section>,
    /// Measure the server of several processes instead.
    #[arg(long, conflicts_with = "only")]
    multi: bool,
    /// With --multi measure only these parts (bounds, grid, quotas).
    #[arg(long, value_delimiter = ',', requires = "multi")]
    parts: Vec<Part>,
    /// Rounds of the rows with bounds; fewer than 10 make no verdict.
    #[arg(long)]
    pairs: Option<usize>,
    /// Length in seconds of a round of the rows with bounds.
    #[arg(long)]
    seconds: Option<f64>,
    /// Measure nothing: write the report again from the figures that are kept.
    #[arg(long)]
    report_only: bool,
    /// Our server [default: `tenure` beside this program].
    #[arg(long)]
    server: Option<PathBuf>,
    /// Where the report of a full run goes.
    #[arg(long, default_value = "docs/performance")]
    out: PathBuf,
    /// Where figures are kept and logs are written, in folders that are removed afterwards; on a real disk
    /// [default: `bench-tubes-figures` beside this program].
    #[arg(long)]
    folder: Option<PathBuf>,
}

#[derive(Parser)]
struct Floor {
    #[arg(long)]
    listen: SocketAddr,
    /// Commands by letters: U use, P put, R reserve, D delete; what stands before the slash runs once.
    #[arg(long)]
    script: Script,
    #[arg(long)]
    body_bytes: usize,
}

#[derive(Parser)]
struct Load {
    /// Where the server listens.
    address: SocketAddr,
    /// put, reserve-delete (from a queue that is full enough) or mixed.
    #[arg(long, default_value = "mixed")]
    mix: Mix,
    #[arg(long, default_value_t = 128)]
    connections: usize,
    #[arg(long, default_value_t = 1)]
    depth: usize,
    #[arg(long, default_value_t = 64)]
    body_bytes: usize,
    #[arg(long, default_value_t = 1)]
    tubes: usize,
    /// How long.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse() {
        Arguments::Run(run) => measure(&run),
        Arguments::Floor(floor) => serve_floor(&floor),
        Arguments::Load(load) => put_load(&load),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-tubes: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(run: &Run) -> Result<()> {
    let program = std::env::current_exe().context("find this program")?;
    let beside = program.parent().context("this program has no folder")?.to_owned();
    let folder = run.folder.clone().unwrap_or_else(|| beside.join("bench-tubes-figures"));
    let figures = folder.join(if run.quick { "quick" } else { "full" });
    std::fs::create_dir_all(&figures).with_context(|| format!("create {}", figures.display()))?;

    // What was measured is reported, also if a part failed.
    let outcome = if run.report_only { Ok(()) } else { measure_in(run, &program, &beside, &folder, &figures) };
    if run.multi || outcome.is_ok() {
        let out = if run.quick { &figures } else { &run.out };
        let written = if run.multi { multi::write(&figures, out)? } else { report::write(&figures, out)? };
        for path in written {
            println!("{}", path.display());
        }
    }
    outcome
}

fn measure_in(run: &Run, program: &Path, beside: &Path, folder: &Path, figures: &Path) -> Result<()> {
    let server = run.server.clone().unwrap_or_else(|| beside.join("tenure"));
    ensure!(
        server.is_file(),
        "{} is not there: build it with `cargo build --release -p tenure`, or name a server with --server",
        server.display()
    );
    process::end_servers_on_signals()?;
    machine::raise_descriptor_limit()?;
    let cores = Cores::choose()?;
    cores.enter_generator()?;
    Folder::remove_left_over(folder)?;
    let scratch = Folder::create(folder, "run")?;
    ensure!(
        run.multi || on_disk(scratch.path())?,
        "{} is in memory, where a sync costs nothing: choose --folder",
        folder.display()
    );
    // Several processes are compared with one, not with the original.
    let beanstalkd = if run.multi { PathBuf::from("beanstalkd") } else { Programs::find_beanstalkd()? };
    let programs = Programs { tenure: server, beanstalkd, floor: program.to_owned() };
    let lab = Lab { programs, cores, folder: scratch.path().to_owned() };
    let effort = effort(run);
    if run.multi {
        let parts = if run.parts.is_empty() { Part::ALL.to_vec() } else { run.parts.clone() };
        return multi::measure(&parts, &lab, effort, figures);
    }
    let chosen = if run.only.is_empty() { Section::ALL.to_vec() } else { run.only.clone() };
    for section in chosen {
        let begin = Instant::now();
        sections::run(section, &lab, effort, figures).with_context(|| format!("section {section}"))?;
        eprintln!("{section}: done after {:.0} s", begin.elapsed().as_secs_f64());
    }
    Ok(())
}

fn effort(run: &Run) -> Effort {
    let default = if run.quick { Effort::QUICK } else { Effort::FULL };
    Effort {
        pairs: run.pairs.unwrap_or(default.pairs).max(1),
        length: run.seconds.map_or(default.length, |seconds| Duration::from_secs_f64(seconds.clamp(0.05, 600.0))),
        ..default
    }
}

/// Whether `folder` lies on something that a sync can reach.
fn on_disk(folder: &Path) -> Result<bool> {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    let system =
        rustix::fs::statfs(folder).with_context(|| format!("look at the file system of {}", folder.display()))?;
    let kind = u64::try_from(system.f_type).unwrap_or(0);
    Ok(kind != TMPFS && kind != RAMFS)
}

fn serve_floor(arguments: &Floor) -> Result<()> {
    ensure!(arguments.body_bytes <= BODY_BYTES_MAX, "a body has at most {BODY_BYTES_MAX} bytes");
    ensure!(arguments.listen.ip().is_loopback(), "the floor listens on loopback addresses only");
    let listener =
        TcpListener::bind(arguments.listen).with_context(|| format!("listen on the address {}", arguments.listen))?;
    floor::serve(&listener, &arguments.script, arguments.body_bytes).context("serve")
}

fn put_load(load: &Load) -> Result<()> {
    ensure!(load.address.ip().is_loopback(), "a load is put on loopback addresses only");
    ensure!(load.body_bytes <= BODY_BYTES_MAX, "a body has at most {BODY_BYTES_MAX} bytes");
    ensure!(load.connections > 0 && load.depth > 0 && load.tubes > 0, "connections, depth and tubes begin at 1");
    let workload = Workload {
        mix: load.mix,
        connections: load.connections,
        depth: load.depth,
        body_bytes: load.body_bytes,
        tubes: load.tubes,
    };
    Cores::choose()?.enter_generator()?;
    let mut generator = Generator::connect(load.address, &workload, Responder::Queue)?;
    let begin = Instant::now();
    generator.run_for(Duration::from_secs_f64(load.seconds.clamp(0.05, 3_600.0)), u64::MAX)?;
    let (answered, elapsed) = (generator.answered(), begin.elapsed().as_secs_f64());
    let latencies = generator.latencies();
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|quantile| latencies.value_at_quantile(quantile) / 1_000);
    let rate = answered as f64 / elapsed;
    println!("{answered} commands, {rate:.0}/s; latency 50 % {p50} µs, 99 % {p99} µs, 99.9 % {p999} µs");
    Ok(())
}
