//! The benchmark of the server of several processes: `cargo xtask bench tubes --multi`.
//!
//! Two set-ups. *Shared core*: every process of the server and the load generator on one core, which makes the
//! processor time of a command repeatable. *Quotas*: every process of the server with a small core to itself, made by a
//! quota, and the load generator unlimited, which shows how throughput grows with processes on a machine with few cores.
//!
//! Owns: which topologies, loads and bounds are measured. Load generator, statistics and plots are those of the
//! benchmark of one process.

pub mod load;
pub mod quota;
mod quotas;
mod report;
pub mod results;
mod servers;
mod shared;
pub mod topology;
mod verdict;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::machine::{BusyTime, Description, today};
use crate::round::Lab;
use crate::sections::Effort;
use results::{Part, Stored};

pub use report::write;

/// Measures `parts` and stores their figures in `folder`. Where one cannot be measured the others still are.
///
/// # Errors
///
/// The first part that failed: a server does not start, answers wrongly or does not end, or the system gives no quotas.
pub fn measure(parts: &[Part], lab: &Lab, effort: Effort, folder: &Path) -> Result<()> {
    let mut outcome = Ok(());
    for part in parts {
        let measured = measure_part(*part, lab, effort, folder).with_context(|| format!("part {part}"));
        if let Err(error) = &measured {
            eprintln!("{error:#}");
        }
        outcome = outcome.and(measured.map(drop));
    }
    outcome
}

fn measure_part(part: Part, lab: &Lab, effort: Effort, folder: &Path) -> Result<PathBuf> {
    let busy = BusyTime::read()?;
    let rows = match part {
        Part::Bounds => shared::bounds(lab, effort)?,
        Part::Grid => shared::grid(lab, effort)?,
        Part::Quotas => quotas::measure(lab, effort)?,
    };
    let stored = Stored {
        date: today(),
        machine: Description::read()?,
        version: lab.programs.version(crate::peer::Contender::Tenure)?,
        quick: effort.quick,
        others: BusyTime::read()?.others_since(&busy),
        rows,
    };
    stored.save(part, folder)
}
