//! Throughput with a quota for each process.

use anyhow::Result;

use super::load::{Load, Spread};
use super::quota::Quotas;
use super::results::{Claim, Metric, Role, Row};
use super::shared::interleaved;
use super::topology::Topology;
use super::{servers, verdict};
use crate::ratio::Bound;
use crate::round::Lab;
use crate::sections::Effort;

/// Enough work in flight for every process to use up its quota.
const CONNECTIONS: usize = 256;
const DEPTH: usize = 16;
const BODY_BYTES: usize = 64;
const ONE_ONE: Topology = Topology::multi(1, 1);
const TOPOLOGIES: [Topology; 5] =
    [Topology::Single, ONE_ONE, Topology::multi(2, 2), Topology::multi(4, 4), Topology::multi(1, 3)];
const BOUNDS: [(Topology, f64); 2] = [(Topology::multi(2, 2), 1.8), (Topology::multi(4, 4), 3.2)];

pub(super) fn measure(lab: &Lab, effort: Effort) -> Result<Vec<Row>> {
    let quotas = Quotas::find()?;
    let cores = lab.cores.on_all();
    let mut rows = Vec::new();
    for spread in Spread::ALL {
        let load = Load { connections: CONNECTIONS, depth: DEPTH, body_bytes: BODY_BYTES, spread };
        let rounds = interleaved(&TOPOLOGIES, effort.pairs, |topology| {
            servers::measure(lab, cores, topology, &load, effort.length, Some(&quotas))
        })?;
        let claims = BOUNDS.map(|(of, bound)| Claim {
            metric: Metric::Throughput,
            of,
            against: ONE_ONE,
            bound: Bound::AtLeast(bound),
        });
        // One tube lives at one owner: nothing is promised of it.
        let claims = if spread == Spread::Own { claims.to_vec() } else { Vec::new() };
        let row = Row { load, seconds: effort.length.as_secs_f64(), rounds, claims };
        for topology in TOPOLOGIES {
            let rate = row.median(topology, |sample| Some(sample.commands_per_second() / 1e3)).unwrap_or(f64::NAN);
            let throttled = |role| {
                let share = row.median(topology, |sample| sample.throttled_share(role));
                share.map_or("–".to_owned(), |share| format!("{:.0} %", share * 100.0))
            };
            let void = verdict::void_reason(&row, topology).map_or_else(String::new, |reason| format!("; {reason}"));
            eprintln!(
                "quotas: {load}: {topology}: {rate:.1} k/s, throttled: single {}, owners {}, frontends {}{void}",
                throttled(Role::Single),
                throttled(Role::Owner),
                throttled(Role::Frontend)
            );
        }
        rows.push(row);
    }
    Ok(rows)
}
