//! Tables of workloads: interleaved rounds of our server, the original and, in memory, the floor.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use super::Effort;
use crate::peer::{Contender, LogMode};
use crate::ratio::Bound;
use crate::results::{Claim, Metric, Row};
use crate::round::Lab;
use crate::workload::{Mix, Workload};

const CONNECTIONS: [usize; 4] = [1, 16, 128, 512];
const DEPTHS: [usize; 2] = [1, 16];
const BODIES: [usize; 2] = [64, 4_096];
/// With 1,000 tubes each of these connections has eight of its own.
const TUBE_CONNECTIONS: usize = 125;
const TUBES: usize = 1_000;

/// The rows the project promises something about.
pub(super) fn bounds(lab: &Lab, effort: Effort) -> Result<Vec<Row>> {
    let cpu = |against, bound| Claim { metric: Metric::Cpu, against, bound: Bound::AtMost(bound) };
    let throughput =
        |bound| Claim { metric: Metric::Throughput, against: Contender::Beanstalkd, bound: Bound::AtLeast(bound) };
    let planned = [
        (Mix::Mixed, 1, LogMode::Memory, vec![cpu(Contender::Beanstalkd, 0.65), cpu(Contender::Floor, 1.2)]),
        (Mix::Mixed, 16, LogMode::Memory, vec![cpu(Contender::Beanstalkd, 0.10), cpu(Contender::Floor, 2.0)]),
        (Mix::Put, 1, LogMode::Always, vec![throughput(10.0)]),
        (Mix::Put, 16, LogMode::Always, vec![throughput(30.0)]),
    ];
    let mut rows = Vec::new();
    for (mix, depth, mode, claims) in planned {
        let workload = Workload { mix, connections: 128, depth, body_bytes: 64, tubes: 1 };
        let row = measure(lab, "bounds", workload, mode, effort.pairs, effort.length)?;
        rows.push(Row { claims, ..row });
    }
    Ok(rows)
}

/// Every mix, number of connections, depth and body size without a log.
pub(super) fn matrix(lab: &Lab, effort: Effort) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for mix in Mix::ALL {
        for workload in shapes(mix, effort) {
            rows.push(short(lab, "matrix", workload, LogMode::Memory, effort)?);
        }
    }
    Ok(rows)
}

/// Puts and mixed jobs in every shape, and draining at 128 connections, with a log.
pub(super) fn log(lab: &Lab, effort: Effort) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for mode in [LogMode::Interval, LogMode::Always] {
        for mix in Mix::ALL {
            for workload in shapes(mix, effort) {
                if mix != Mix::ReserveDelete || workload.connections == 128 {
                    rows.push(short(lab, "log", workload, mode, effort)?);
                }
            }
        }
    }
    Ok(rows)
}

/// Every mix over 1,000 tubes without a log.
pub(super) fn tubes(lab: &Lab, effort: Effort) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for mix in Mix::ALL {
        for depth in DEPTHS {
            for tubes in [1, TUBES] {
                let workload = Workload { mix, connections: TUBE_CONNECTIONS, depth, body_bytes: 64, tubes };
                rows.push(short(lab, "tubes", workload, LogMode::Memory, effort)?);
            }
        }
    }
    Ok(rows)
}

fn shapes(mix: Mix, effort: Effort) -> Vec<Workload> {
    let mut shapes = Vec::new();
    for body_bytes in BODIES {
        for depth in DEPTHS {
            for connections in CONNECTIONS {
                shapes.push(Workload { mix, connections, depth, body_bytes, tubes: 1 });
            }
        }
    }
    if effort.quick {
        shapes.retain(|workload| workload.connections == 128);
    }
    shapes
}

fn short(lab: &Lab, section: &str, workload: Workload, mode: LogMode, effort: Effort) -> Result<Row> {
    measure(lab, section, workload, mode, effort.short_pairs, effort.short_length)
}

fn measure(lab: &Lab, section: &str, workload: Workload, mode: LogMode, pairs: usize, length: Duration) -> Result<Row> {
    // The floor has no disk to compare with.
    let contenders = match mode {
        LogMode::Memory => &[Contender::Tenure, Contender::Beanstalkd, Contender::Floor][..],
        LogMode::Interval | LogMode::Always | LogMode::Never => &[Contender::Tenure, Contender::Beanstalkd],
    };
    let mut rounds = Vec::new();
    for pair in 0..pairs {
        let mut round = BTreeMap::new();
        // Each round begins with another contender, so that none always follows the same neighbour.
        for turn in 0..contenders.len() {
            let contender = contenders[(pair + turn) % contenders.len()];
            round.insert(contender, lab.measure(contender, mode, &workload, length)?);
        }
        rounds.push(round);
    }
    let row = Row { workload, mode, seconds: length.as_secs_f64(), rounds, claims: Vec::new() };
    print(section, &row);
    Ok(row)
}

fn print(section: &str, row: &Row) {
    let Workload { mix, connections, depth, body_bytes, tubes } = &row.workload;
    let figures = [Contender::Tenure, Contender::Beanstalkd, Contender::Floor].into_iter().filter_map(|contender| {
        let cpu = row.median(contender, |sample| sample.cpu_ns_per_command() / 1e3)?;
        let rate = row.median(contender, |sample| sample.commands_per_second() / 1e3)?;
        let generator = row.median(contender, |sample| sample.generator_share() * 100.0)?;
        Some(format!("{contender} {cpu:.2} µs, {rate:.0} k/s (generator {generator:.0} %)"))
    });
    let figures = figures.collect::<Vec<_>>().join("; ");
    eprintln!(
        "{section}: {mix}, {connections} connections, depth {depth}, {body_bytes} B, {tubes} tube(s), {}: {figures}",
        row.mode
    );
}
