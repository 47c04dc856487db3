//! One round: a fresh server, a workload for some seconds, and what it cost.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::generator::{Generator, Responder};
use crate::machine::Cores;
use crate::peer::{Contender, LogMode, Programs};
use crate::process::{Folder, Server};
use crate::workload::{Mix, Workload};

/// Part of a round's length that runs before the clock starts, and its limit.
pub(crate) const WARM_UP_SHARE: f64 = 0.15;
pub(crate) const WARM_UP_MAX: Duration = Duration::from_millis(300);
/// A round of puts ends early when the jobs reach this, so that neither memory nor disk fills up.
const PUT_BYTES_MAX: u64 = 4 << 30;
/// What a job may cost beside its body, for that limit.
const JOB_OVERHEAD_BYTES: u64 = 256;
/// A drained queue is filled again for about this long; the filling is not measured.
const SLICE: Duration = Duration::from_millis(500);
/// The first slice, before the rate is known: commands for each millisecond of the round, and at most.
const FIRST_SLICE_COMMANDS_PER_MS: u128 = 5;
const FIRST_SLICE_COMMANDS_MAX: u64 = 20_000;
const SLICE_COMMANDS_MIN: u64 = 500;
/// Bodies in a filled queue.
const SLICE_BYTES_MAX: u64 = 512 << 20;
const FILL_CONNECTIONS: usize = 4;
const FILL_DEPTH: usize = 64;

/// What a round measures with: the programs, the cores and a folder for logs.
#[derive(Clone, Debug)]
pub struct Lab {
    /// Where the executables are.
    pub programs: Programs,
    /// Which cores are used for what.
    pub cores: Cores,
    /// Where each server gets a folder of its own.
    pub folder: PathBuf,
}

/// One round's figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Replies that arrived and were right.
    pub commands: u64,
    /// Time measured.
    pub elapsed_ns: u64,
    /// The server's processor time in it.
    pub server_cpu_ns: u64,
    /// The generator's.
    pub generator_cpu_ns: u64,
    /// Median latency of a reply.
    pub p50_ns: u64,
    /// Its 99th percentile.
    pub p99_ns: u64,
    /// Its 99.9th percentile.
    pub p999_ns: u64,
}

impl Sample {
    /// The server's processor time for each command, in nanoseconds.
    pub fn cpu_ns_per_command(&self) -> f64 {
        self.server_cpu_ns as f64 / self.commands as f64
    }

    /// Commands in a second.
    pub fn commands_per_second(&self) -> f64 {
        self.commands as f64 * 1e9 / self.elapsed_ns as f64
    }

    /// The share of the time in which the generator computed, 0 to 1; near 1 it limits the throughput.
    pub fn generator_share(&self) -> f64 {
        self.generator_cpu_ns as f64 / self.elapsed_ns as f64
    }
}

impl Lab {
    /// Starts a queue server with an empty folder of its own.
    ///
    /// # Errors
    ///
    /// It does not start.
    pub fn start_queue(&self, contender: Contender, mode: LogMode) -> Result<(Server, Folder)> {
        let folder = Folder::create(&self.folder, &contender.to_string())?;
        let server = self.start_queue_in(contender, mode, &folder)?;
        Ok((server, folder))
    }

    /// Starts a queue server with the log that is in `folder`.
    ///
    /// # Errors
    ///
    /// It does not start.
    pub fn start_queue_in(&self, contender: Contender, mode: LogMode, folder: &Folder) -> Result<Server> {
        let data = folder.path().join("data");
        std::fs::create_dir_all(&data).with_context(|| format!("create {}", data.display()))?;
        Server::start(&self.programs.queue(contender, mode, &data), folder.path(), self.cores)
    }

    /// Runs `workload` for `length` on a fresh server and ends it.
    ///
    /// # Errors
    ///
    /// The server does not start, answers wrongly or does not end.
    pub fn measure(
        &self,
        contender: Contender,
        mode: LogMode,
        workload: &Workload,
        length: Duration,
    ) -> Result<Sample> {
        let what =
            || format!("{contender}: {}, {} connections, depth {}", workload.mix, workload.connections, workload.depth);
        let (server, _folder) = if contender == Contender::Floor {
            let folder = Folder::create(&self.folder, "floor")?;
            (Server::start(&self.programs.floor(workload), folder.path(), self.cores)?, folder)
        } else {
            self.start_queue(contender, mode)?
        };
        let sample = measure_on(&server, contender.responder(), workload, length)
            .with_context(|| format!("{}; server output: {}", what(), server.output()))
            .with_context(what)?;
        server.stop().with_context(what)?;
        Ok(sample)
    }
}

/// Runs `workload` for `length` on a server that is there and empty.
///
/// # Errors
///
/// The server answers wrongly or ends.
pub fn measure_on(server: &Server, responder: Responder, workload: &Workload, length: Duration) -> Result<Sample> {
    if workload.mix == Mix::ReserveDelete && responder == Responder::Queue {
        return drain(server, workload, length);
    }
    let mut generator = Generator::connect(server.address(), workload, responder)?;
    generator.run_for(length.mul_f64(WARM_UP_SHARE).min(WARM_UP_MAX), u64::MAX)?;
    let commands_max = match workload.mix {
        Mix::Put => PUT_BYTES_MAX / (workload.body_bytes as u64 + JOB_OVERHEAD_BYTES),
        Mix::ReserveDelete | Mix::Mixed => u64::MAX,
    };
    let mut meter = Meter::new(&mut generator);
    meter.run(server, &mut generator, |generator| generator.run_for(length, commands_max))?;
    Ok(meter.sample(&mut generator))
}

/// Fills the queue and drains it, in slices, until the draining has taken `length`.
fn drain(server: &Server, workload: &Workload, length: Duration) -> Result<Sample> {
    let mut filler = Filler::connect(server, workload)?;
    let mut generator = Generator::connect(server.address(), workload, Responder::Queue)?;
    let mut meter = Meter::new(&mut generator);
    let connections = workload.connections as u64;
    let commands_max = 2 * SLICE_BYTES_MAX / (workload.body_bytes as u64 + JOB_OVERHEAD_BYTES);
    let first = u64::try_from(length.as_millis() * FIRST_SLICE_COMMANDS_PER_MS).unwrap_or(u64::MAX);
    let mut commands = first.clamp(SLICE_COMMANDS_MIN, FIRST_SLICE_COMMANDS_MAX);
    // A script may hold some jobs ahead, at most a batch on each connection.
    let mut ahead = workload.depth as u64;
    while meter.elapsed < length {
        let each = commands.min(commands_max).div_ceil(connections).max(workload.depth as u64);
        filler.fill(each.div_ceil(2) + 1 + ahead)?;
        ahead = 0;
        meter.run(server, &mut generator, |generator| generator.run_commands(each))?;
        let rate = meter.commands as f64 / meter.elapsed.as_secs_f64();
        let next = SLICE.min(length.saturating_sub(meter.elapsed)).as_secs_f64() * rate;
        #[expect(clippy::cast_possible_truncation, reason = "a rate times half a second")]
        let next = next as u64;
        commands = next.max(SLICE_COMMANDS_MIN);
    }
    Ok(meter.sample(&mut generator))
}

/// Puts jobs so that every connection of a drain finds as many as it takes.
struct Filler {
    generator: Generator,
    fill_connections: u64,
    load: Workload,
}

impl Filler {
    fn connect(server: &Server, load: &Workload) -> Result<Self> {
        // Every filler must get the same number of tubes.
        let connections = (1..=FILL_CONNECTIONS).rev().find(|count| load.tubes.is_multiple_of(*count)).unwrap_or(1);
        let connections = if load.tubes > 1 { connections } else { FILL_CONNECTIONS };
        let workload = Workload { mix: Mix::Put, connections, depth: FILL_DEPTH, ..load.clone() };
        let generator = Generator::connect(server.address(), &workload, Responder::Queue)?;
        Ok(Self { generator, fill_connections: connections as u64, load: load.clone() })
    }

    /// Puts at least `jobs` jobs for each connection of the load.
    fn fill(&mut self, jobs: u64) -> Result<()> {
        let (connections, tubes) = (self.load.connections as u64, self.load.tubes as u64);
        let commands = if tubes > 1 {
            let tubes_each = (tubes / connections).max(1);
            let jobs_per_tube = jobs.div_ceil(tubes_each) * connections.div_ceil(tubes);
            // A `use` before each `put`.
            2 * jobs_per_tube * tubes / self.fill_connections
        } else {
            (jobs * connections).div_ceil(self.fill_connections)
        };
        Ok(self.generator.run_commands(commands)?)
    }
}

/// Adds up what slices of a round cost.
struct Meter {
    commands: u64,
    elapsed: Duration,
    server_cpu_ns: u64,
    generator_cpu_ns: u64,
}

impl Meter {
    fn new(generator: &mut Generator) -> Self {
        generator.latencies().clear();
        Self { commands: 0, elapsed: Duration::ZERO, server_cpu_ns: 0, generator_cpu_ns: 0 }
    }

    fn run<E: Into<anyhow::Error>>(
        &mut self,
        server: &Server,
        generator: &mut Generator,
        slice: impl FnOnce(&mut Generator) -> Result<(), E>,
    ) -> Result<()> {
        let (answered, server_cpu, own_cpu) = (generator.answered(), server.cpu_ns()?, thread_cpu_ns());
        let begin = Instant::now();
        slice(generator).map_err(Into::into)?;
        self.elapsed += begin.elapsed();
        self.server_cpu_ns += server.cpu_ns()? - server_cpu;
        self.generator_cpu_ns += thread_cpu_ns() - own_cpu;
        self.commands += generator.answered() - answered;
        Ok(())
    }

    fn sample(self, generator: &mut Generator) -> Sample {
        let latencies = generator.latencies();
        Sample {
            commands: self.commands,
            elapsed_ns: u64::try_from(self.elapsed.as_nanos()).unwrap_or(u64::MAX),
            server_cpu_ns: self.server_cpu_ns,
            generator_cpu_ns: self.generator_cpu_ns,
            p50_ns: latencies.value_at_quantile(0.5),
            p99_ns: latencies.value_at_quantile(0.99),
            p999_ns: latencies.value_at_quantile(0.999),
        }
    }
}

pub(crate) fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
