//! Time from exec until a server with a log, in the page cache, knows all its jobs.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{Effort, sync::statistic};
use crate::generator::{Generator, Responder};
use crate::peer::{Contender, LogMode};
use crate::process::Folder;
use crate::results::Recovery;
use crate::round::Lab;
use crate::workload::{Mix, Workload};

/// Bodies and how many jobs of them; quick runs use a tenth.
const LOGS: [(usize, u64); 2] = [(64, 3_000_000), (4_096, 250_000)];
const ROUNDS: usize = 5;
const CONNECTIONS: u64 = 4;

pub(super) fn measure(lab: &Lab, effort: Effort) -> Result<Vec<Recovery>> {
    let mut recoveries = Vec::new();
    for (body_bytes, jobs) in LOGS {
        let (jobs, rounds) = if effort.quick { (jobs / 10, 1) } else { (jobs, ROUNDS) };
        for contender in [Contender::Tenure, Contender::Beanstalkd] {
            let recovery = measure_one(lab, contender, body_bytes, jobs, rounds)
                .with_context(|| format!("recovery of {contender}, {jobs} jobs of {body_bytes} B"))?;
            eprintln!(
                "recovery: {contender}, {jobs} jobs of {body_bytes} B, {:.0} MB of records: {:.2?} s",
                recovery.log_bytes as f64 / 1e6,
                recovery.seconds
            );
            recoveries.push(recovery);
        }
    }
    Ok(recoveries)
}

fn measure_one(lab: &Lab, contender: Contender, body_bytes: usize, jobs: u64, rounds: usize) -> Result<Recovery> {
    let folder = Folder::create(&lab.folder, "recovery")?;
    let server = lab.start_queue_in(contender, LogMode::Never, &folder)?;
    let connections = usize::try_from(CONNECTIONS)?;
    let workload = Workload { mix: Mix::Put, connections, depth: 64, body_bytes, tubes: 1 };
    let mut generator = Generator::connect(server.address(), &workload, Responder::Queue)?;
    generator.run_commands(jobs / CONNECTIONS)?;
    drop(generator);
    server.stop()?;
    // Writing back while the clock runs would measure the disk. The first reading brings everything into the cache.
    let log_bytes = settle(folder.path())?;
    let mut seconds = Vec::new();
    for _ in 0..rounds {
        let begin = Instant::now();
        let server = lab.start_queue_in(contender, LogMode::Never, &folder)?;
        let ready = statistic(server.address(), "current-jobs-ready")?;
        seconds.push(begin.elapsed().as_secs_f64());
        ensure!(ready == jobs, "{ready} of {jobs} jobs came back");
        server.stop()?;
        settle(folder.path())?;
    }
    Ok(Recovery { contender, body_bytes, jobs, log_bytes, seconds })
}

/// Syncs and reads every file below `folder`; returns the bytes of those in use, without allocated space behind them.
fn settle(folder: &Path) -> Result<u64> {
    let mut used = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            used += settle(&path)?;
            continue;
        }
        let file = fs::File::open(&path).with_context(|| format!("open {}", path.display()))?;
        file.sync_all()?;
        let bytes = fs::read(&path)?;
        used += bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
    }
    Ok(used)
}
