//! What was measured of servers of several processes, as it is kept between runs and reported.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::load::Load;
use super::topology::Topology;
use crate::machine::Description;
use crate::ratio::{Bound, Estimate};

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Processor time on one core, the rows with bounds.
    Bounds,
    /// The same for every number of owners and frontends.
    Grid,
    /// Throughput with a quota for each process.
    Quotas,
}

impl Part {
    /// All parts, in the order they run and are reported.
    pub const ALL: [Self; 3] = [Self::Bounds, Self::Grid, Self::Quotas];
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Bounds => "bounds",
            Self::Grid => "grid",
            Self::Quotas => "quotas",
        })
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(|part| part.to_string()).join(", ");
        let part = Self::ALL.into_iter().find(|part| part.to_string() == text);
        part.ok_or_else(|| format!("unknown part {text:?}: one of {}", names()))
    }
}

/// What a process of a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// The one process of single mode.
    Single,
    /// Starts and watches the others.
    Supervisor,
    /// Has jobs.
    Owner,
    /// Has clients.
    Frontend,
}

impl Role {
    /// All roles, in the order of the report.
    pub const ALL: [Self; 4] = [Self::Single, Self::Supervisor, Self::Owner, Self::Frontend];
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Single => "single",
            Self::Supervisor => "supervisor",
            Self::Owner => "owner",
            Self::Frontend => "frontend",
        })
    }
}

/// A process in a round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessSample {
    /// What it is.
    pub role: Role,
    /// Its processor time.
    pub cpu_ns: u64,
    /// Periods of its quota that began, and in which it was stopped; `None` without a quota.
    pub throttled: Option<Throttled>,
}

/// How a quota bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throttled {
    /// Periods in which the process wanted to run.
    pub periods: u64,
    /// Periods in which its quota was used up.
    pub throttled: u64,
}

impl Throttled {
    /// The share of periods in which the quota was used up, 0 to 1.
    pub fn share(self) -> f64 {
        if self.periods == 0 { 0.0 } else { self.throttled as f64 / self.periods as f64 }
    }
}

/// What the links between owners and frontends carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Frame batches.
    pub batches: u64,
    /// Messages in them.
    pub messages: u64,
}

/// One round's figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Replies that arrived and were right.
    pub commands: u64,
    /// Time measured.
    pub elapsed_ns: u64,
    /// The server's processes.
    pub processes: Vec<ProcessSample>,
    /// The generator's processor time.
    pub generator_cpu_ns: u64,
    /// Median latency of a reply.
    pub p50_ns: u64,
    /// Its 99th percentile.
    pub p99_ns: u64,
    /// Its 99.9th percentile.
    pub p999_ns: u64,
    /// What frontends sent to owners; `None` in single mode, or where the server does not tell.
    pub to_owners: Option<Carried>,
    /// What owners sent to frontends.
    pub to_frontends: Option<Carried>,
}

impl Sample {
    /// Processor time of the processes of `role` for each command, in nanoseconds.
    pub fn role_ns(&self, role: Role) -> f64 {
        let sum: u64 = self.processes.iter().filter(|process| process.role == role).map(|process| process.cpu_ns).sum();
        sum as f64 / self.commands as f64
    }

    /// Processor time of all processes of the server for each command, in nanoseconds.
    pub fn server_ns(&self) -> f64 {
        Role::ALL.into_iter().map(|role| self.role_ns(role)).sum()
    }

    /// The same with the load generator's.
    pub fn total_ns(&self) -> f64 {
        self.server_ns() + self.generator_cpu_ns as f64 / self.commands as f64
    }

    /// Commands in a second.
    pub fn commands_per_second(&self) -> f64 {
        self.commands as f64 * 1e9 / self.elapsed_ns as f64
    }

    /// The least share of throttled periods among the processes of `role`; `None` if it has none with a quota.
    pub fn throttled_share(&self, role: Role) -> Option<f64> {
        let processes = self.processes.iter().filter(|process| process.role == role);
        processes.filter_map(|process| process.throttled).map(Throttled::share).reduce(f64::min)
    }

    /// Processor time that the processes of `role` used, as a share of one core for each, least and most.
    pub fn cores_used(&self, role: Role) -> Option<[f64; 2]> {
        let used = self.processes.iter().filter(|process| process.role == role);
        let used = used.map(|process| process.cpu_ns as f64 / self.elapsed_ns as f64);
        used.fold(None, |ends, used| match ends {
            None => Some([used, used]),
            Some([low, high]) => Some([used.min(low), used.max(high)]),
        })
    }
}

/// A figure that a bound is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Metric {
    /// Processor time of the server's processes for each command.
    Server,
    /// The same with the generator's.
    Total,
    /// Commands in a second.
    Throughput,
}

impl Metric {
    /// Its value in a round.
    pub fn of(self, sample: &Sample) -> f64 {
        match self {
            Self::Server => sample.server_ns(),
            Self::Total => sample.total_ns(),
            Self::Throughput => sample.commands_per_second(),
        }
    }
}

/// What is promised of a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Of which figure.
    pub metric: Metric,
    /// Of which server.
    pub of: Topology,
    /// In relation to which.
    pub against: Topology,
    /// How much.
    pub bound: Bound,
}

/// A load and its interleaved rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// What was put on the servers.
    pub load: Load,
    /// Length of a round in seconds.
    pub seconds: f64,
    /// In each round every server once.
    pub rounds: Vec<BTreeMap<Topology, Sample>>,
    /// What is promised.
    pub claims: Vec<Claim>,
}

impl Row {
    /// The servers, in their order.
    pub fn topologies(&self) -> Vec<Topology> {
        self.rounds.first().map(|round| round.keys().copied().collect()).unwrap_or_default()
    }

    /// The samples of one server.
    pub fn samples(&self, topology: Topology) -> impl Iterator<Item = &Sample> {
        self.rounds.iter().filter_map(move |round| round.get(&topology))
    }

    /// The median over the rounds of `value`; `None` where it has none.
    pub fn median(&self, topology: Topology, value: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        let values: Vec<_> = self.samples(topology).filter_map(value).collect();
        Estimate::of(&values).map(|estimate| estimate.median)
    }

    /// The ratio of a figure of two servers, taken within each round.
    pub fn ratio(&self, metric: Metric, of: Topology, against: Topology) -> Option<Estimate> {
        let ratio =
            |round: &BTreeMap<Topology, Sample>| Some(metric.of(round.get(&of)?) / metric.of(round.get(&against)?));
        Estimate::of(&self.rounds.iter().filter_map(ratio).collect::<Vec<_>>())
    }
}

/// The figures of a part and how they came about.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stored {
    /// When.
    pub date: String,
    /// On what.
    pub machine: Description,
    /// Of which server.
    pub version: String,
    /// Whether too little was measured for more than a look.
    pub quick: bool,
    /// Share of the machine's time that others used, 0 to 1.
    pub others: f64,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Stored {
    /// Writes the figures of `part` into `folder` and returns where.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn save(&self, part: Part, folder: &Path) -> Result<PathBuf> {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let path = file(part, folder);
        let text = serde_json::to_string_pretty(self).context("write figures as JSON")?;
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// Reads the figures of `part` from `folder`; `None` if it was not measured yet.
    ///
    /// # Errors
    ///
    /// The file is there but cannot be read or understood.
    pub fn load(part: Part, folder: &Path) -> Result<Option<Self>> {
        let path = file(part, folder);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        serde_json::from_str(&text).with_context(|| format!("understand {}", path.display())).map(Some)
    }
}

fn file(part: Part, folder: &Path) -> PathBuf {
    folder.join(format!("multi-{part}.json"))
}
