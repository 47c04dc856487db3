//! Resident memory of ready jobs, and what is left of it when they are gone.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::Effort;
use crate::generator::{Generator, Responder};
use crate::peer::{Contender, LogMode};
use crate::results::Memory;
use crate::round::Lab;
use crate::workload::{Mix, Workload};

const JOBS: u64 = 1_000_000;
const QUICK_JOBS: u64 = 100_000;
/// Resident memory hardly varies, and a round takes long.
const ROUNDS: usize = 3;
const BODY_BYTES: usize = 64;
const CONNECTIONS: u64 = 8;
const PUT_DEPTH: usize = 64;
const DRAIN_DEPTH: usize = 16;

pub(super) fn measure(lab: &Lab, effort: Effort) -> Result<Memory> {
    let (jobs, rounds) = if effort.quick { (QUICK_JOBS, 1) } else { (JOBS, ROUNDS) };
    let (mut bytes_per_job, mut bytes_left) = (BTreeMap::new(), BTreeMap::new());
    for _ in 0..rounds {
        for contender in [Contender::Tenure, Contender::Beanstalkd] {
            let (per_job, left) =
                measure_one(lab, contender, jobs).with_context(|| format!("memory of {contender}"))?;
            eprintln!("memory: {contender}: {per_job:.1} B for each of {jobs} jobs, {left:.0} B left after them");
            bytes_per_job.entry(contender).or_insert_with(Vec::new).push(per_job);
            bytes_left.entry(contender).or_insert_with(Vec::new).push(left);
        }
    }
    Ok(Memory { jobs, body_bytes: BODY_BYTES, bytes_per_job, bytes_left })
}

fn measure_one(lab: &Lab, contender: Contender, jobs: u64) -> Result<(f64, f64)> {
    let (server, _folder) = lab.start_queue(contender, LogMode::Memory)?;
    let connections = usize::try_from(CONNECTIONS)?;
    let put = Workload { mix: Mix::Put, connections, depth: PUT_DEPTH, body_bytes: BODY_BYTES, tubes: 1 };
    let drain = Workload { mix: Mix::ReserveDelete, depth: DRAIN_DEPTH, ..put.clone() };
    let mut puts = Generator::connect(server.address(), &put, Responder::Queue)?;
    let mut drains = Generator::connect(server.address(), &drain, Responder::Queue)?;
    // Some jobs come and go first: what the server sets up once is not a job's memory. A drain holds a batch of jobs
    // ahead on each connection.
    puts.run_commands(100 + DRAIN_DEPTH as u64)?;
    drains.run_commands(200)?;
    let empty = server.resident_bytes()?;
    puts.run_commands(jobs / CONNECTIONS)?;
    let full = server.resident_bytes()?;
    drains.run_commands(2 * jobs / CONNECTIONS)?;
    let emptied = server.resident_bytes()?;
    server.stop()?;
    Ok(((full as f64 - empty as f64) / jobs as f64, emptied as f64 - empty as f64))
}
