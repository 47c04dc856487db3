//! The parts of the benchmark; each can be run alone.

mod idle;
mod memory;
mod recovery;
mod rows;
mod start;
mod sync;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::machine::{BusyTime, Description, today};
use crate::peer::Contender;
use crate::results::{Content, Stored};
use crate::round::Lab;

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// The rows with bounds: full pairs.
    Bounds,
    /// Every mix, number of connections, depth and body size in memory: short rounds.
    Matrix,
    /// The same with a log.
    Log,
    /// 1,000 tubes in use.
    Tubes,
    /// Records for each sync and the disk's own time.
    Sync,
    /// Memory of ready jobs.
    Memory,
    /// Instructions and system calls with idle connections and tubes.
    Idle,
    /// Time until the server listens.
    Start,
    /// Time until a log is read again.
    Recovery,
}

impl Section {
    /// All sections, in the order they run and are reported.
    pub const ALL: [Self; 9] = [
        Self::Bounds,
        Self::Matrix,
        Self::Log,
        Self::Tubes,
        Self::Sync,
        Self::Memory,
        Self::Idle,
        Self::Start,
        Self::Recovery,
    ];
}

impl fmt::Display for Section {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Bounds => "bounds",
            Self::Matrix => "matrix",
            Self::Log => "log",
            Self::Tubes => "tubes",
            Self::Sync => "sync",
            Self::Memory => "memory",
            Self::Idle => "idle",
            Self::Start => "start",
            Self::Recovery => "recovery",
        })
    }
}

impl FromStr for Section {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|section| section.to_string() == text).ok_or_else(|| {
            let names = Self::ALL.map(|section| section.to_string()).join(", ");
            format!("unknown section {text:?}: one of {names}")
        })
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds of the rows with bounds.
    pub pairs: usize,
    /// Length of each of them.
    pub length: Duration,
    /// Rounds of the other rows.
    pub short_pairs: usize,
    /// Length of each of them.
    pub short_length: Duration,
    /// Whether only a few rows of each table and small amounts are measured.
    pub quick: bool,
}

impl Effort {
    /// What the published figures are measured with.
    pub const FULL: Self = Self {
        // Eleven values have a 90 % interval that leaves out two at each end.
        pairs: 11,
        length: Duration::from_secs(3),
        // The fewest whose range covers the median with 90 %.
        short_pairs: 5,
        short_length: Duration::from_millis(500),
        quick: false,
    };
    /// A look in a few minutes.
    pub const QUICK: Self = Self {
        pairs: 3,
        length: Duration::from_millis(500),
        short_pairs: 1,
        short_length: Duration::from_millis(200),
        quick: true,
    };
}

/// Measures `section` and stores its figures in `folder`.
///
/// # Errors
///
/// A server does not start, answers wrongly or does not end, or a tool is missing.
pub fn run(section: Section, lab: &Lab, effort: Effort, folder: &Path) -> Result<()> {
    let busy = BusyTime::read()?;
    let content = match section {
        Section::Bounds => Content::Rows(rows::bounds(lab, effort)?),
        Section::Matrix => Content::Rows(rows::matrix(lab, effort)?),
        Section::Log => Content::Rows(rows::log(lab, effort)?),
        Section::Tubes => Content::Rows(rows::tubes(lab, effort)?),
        Section::Sync => Content::Syncs(sync::measure(lab, effort)?),
        Section::Memory => Content::Memory(memory::measure(lab, effort)?),
        Section::Idle => Content::Idle(idle::measure(lab, effort)?),
        Section::Start => Content::Starts(start::measure(lab, effort)?),
        Section::Recovery => Content::Recoveries(recovery::measure(lab, effort)?),
    };
    let versions = [Contender::Tenure, Contender::Beanstalkd]
        .into_iter()
        .map(|contender| Ok((contender, lab.programs.version(contender)?)))
        .collect::<Result<BTreeMap<_, _>>>()?;
    let stored = Stored {
        date: today(),
        machine: Description::read()?,
        versions,
        shared_core: lab.cores.are_shared(),
        quick: effort.quick,
        others: BusyTime::read()?.others_since(&busy),
        content,
    };
    stored.save(section, folder).context("keep the figures")
}
