//! What a run has measured, kept as one file for each section so that a section can be repeated alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::machine::Description;
use crate::peer::{Contender, LogMode};
use crate::ratio::{Bound, Estimate};
use crate::round::Sample;
use crate::sections::Section;
use crate::workload::Workload;

/// A section's figures and the circumstances of their measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stored {
    /// The day, in UTC.
    pub date: String,
    /// The machine.
    pub machine: Description,
    /// What each server calls its version.
    pub versions: BTreeMap<Contender, String>,
    /// Whether server and generator had to share one core.
    pub shared_core: bool,
    /// Whether this was a quick run: too short for a verdict.
    pub quick: bool,
    /// Share of all cores' time that other processes used meanwhile, 0 to 1.
    pub others: f64,
    /// The figures.
    pub content: Content,
}

/// A section's figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Content {
    /// Rows of interleaved rounds.
    Rows(Vec<Row>),
    /// Records for each sync, and the disk.
    Syncs(Syncs),
    /// Memory of ready jobs.
    Memory(Memory),
    /// Counts with and without idle connections and tubes.
    Idle(Vec<IdleCount>),
    /// Time until the server listens.
    Starts(Vec<Start>),
    /// Time until a log is read again.
    Recoveries(Vec<Recovery>),
}

/// A workload measured on several contenders in turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The load.
    pub workload: Workload,
    /// How the queue servers kept a log.
    pub mode: LogMode,
    /// Length of each round in seconds.
    pub seconds: f64,
    /// The rounds; in each, every contender once.
    pub rounds: Vec<BTreeMap<Contender, Sample>>,
    /// What our server's ratios must keep.
    pub claims: Vec<Claim>,
}

/// A bound on a ratio of our server to another contender.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Of what.
    pub metric: Metric,
    /// To whom.
    pub against: Contender,
    /// What the ratio must keep.
    pub bound: Bound,
}

/// What a ratio compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Metric {
    /// The server's processor time for each command.
    Cpu,
    /// Commands in a second.
    Throughput,
}

impl Metric {
    /// Its value in `sample`.
    pub fn of(self, sample: &Sample) -> f64 {
        match self {
            Self::Cpu => sample.cpu_ns_per_command(),
            Self::Throughput => sample.commands_per_second(),
        }
    }
}

impl Row {
    /// Our server's ratio to `against`, from the rounds in which both were measured.
    pub fn ratio(&self, metric: Metric, against: Contender) -> Option<Estimate> {
        let ratios = self
            .rounds
            .iter()
            .filter_map(|round| Some(metric.of(round.get(&Contender::Tenure)?) / metric.of(round.get(&against)?)));
        Estimate::of(&ratios.collect::<Vec<_>>())
    }

    /// The median over the rounds of `value` for `contender`.
    pub fn median(&self, contender: Contender, value: impl Fn(&Sample) -> f64) -> Option<f64> {
        let values: Vec<_> = self.rounds.iter().filter_map(|round| round.get(&contender)).map(value).collect();
        Estimate::of(&values).map(|estimate| estimate.median)
    }
}

/// Records for each sync with `-f 0`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Syncs {
    /// The disk alone.
    pub disk: Vec<DiskSync>,
    /// The servers.
    pub counts: Vec<SyncCount>,
}

/// How long the disk takes to sync one small write, measured in the folder of the logs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiskSync {
    /// Where it writes: into allocated or into written space.
    pub space: String,
    /// Median in microseconds.
    pub median_us: f64,
    /// Ninety-ninth percentile in microseconds.
    pub p99_us: f64,
}

/// Syncs of a server under a load of puts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SyncCount {
    /// Which server.
    pub contender: Contender,
    /// Commands in flight on each connection.
    pub depth: usize,
    /// Connections.
    pub connections: usize,
    /// Records written, from `stats`.
    pub records: u64,
    /// Calls of fsync and fdatasync, from strace.
    pub syncs: u64,
}

/// Memory of ready jobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// How many jobs were put.
    pub jobs: u64,
    /// Length of each body in bytes.
    pub body_bytes: usize,
    /// Bytes of resident memory for each job, one value a round.
    pub bytes_per_job: BTreeMap<Contender, Vec<f64>>,
    /// Bytes of resident memory after all jobs were deleted, one value a round, less what the empty server had.
    pub bytes_left: BTreeMap<Contender, Vec<f64>>,
}

/// Counts for each command of a fixed script in one situation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IdleCount {
    /// Which server.
    pub contender: Contender,
    /// Connections that do nothing.
    pub connections: usize,
    /// Tubes that nobody uses, with one ready job each.
    pub tubes: usize,
    /// Commands in a batch.
    pub depth: usize,
    /// User instructions for each command, by callgrind.
    pub instructions: f64,
    /// System calls for each command, by strace.
    pub calls: f64,
}

/// Time from exec to listening.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    /// Which server.
    pub contender: Contender,
    /// With or without a log in an empty directory.
    pub mode: LogMode,
    /// Milliseconds of each start.
    pub milliseconds: Vec<f64>,
}

/// Time from exec until a server with a log answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recovery {
    /// Which server.
    pub contender: Contender,
    /// Length of each body in bytes.
    pub body_bytes: usize,
    /// Jobs recovered.
    pub jobs: u64,
    /// Bytes of the log's records: what the put requests made the server write, as the files' sizes tell.
    pub log_bytes: u64,
    /// Seconds of each recovery.
    pub seconds: Vec<f64>,
}

impl Stored {
    /// Writes the figures of `section` into `folder`.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn save(&self, section: Section, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let path = folder.join(format!("{section}.json"));
        let text = serde_json::to_string_pretty(self).context("write figures as JSON")?;
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }

    /// Reads the figures of `section` from `folder`; `None` if it was not measured yet.
    ///
    /// # Errors
    ///
    /// The file is there but cannot be read or understood.
    pub fn load(section: Section, folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(format!("{section}.json"));
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        serde_json::from_str(&text).with_context(|| format!("understand {}", path.display())).map(Some)
    }
}
