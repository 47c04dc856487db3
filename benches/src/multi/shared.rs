//! Processor time with everything on one core.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use super::load::{Load, Spread};
use super::results::{Claim, Metric, Role, Row, Sample};
use super::servers;
use super::topology::Topology;
use crate::ratio::Bound;
use crate::round::Lab;
use crate::sections::Effort;

const CONNECTIONS: usize = 128;
const DEPTHS: [usize; 2] = [1, 16];
const BODY_BYTES: usize = 64;
const COUNTS: [u16; 3] = [1, 2, 4];
const COUNTS_QUICK: [u16; 2] = [1, 2];
const ONE_ONE: Topology = Topology::multi(1, 1);
const TWO_TWO: Topology = Topology::multi(2, 2);

/// The rows the project promises something about.
pub(super) fn bounds(lab: &Lab, effort: Effort) -> Result<Vec<Row>> {
    let load = |connections, depth, spread| Load { connections, depth, body_bytes: BODY_BYTES, spread };
    let mut planned = Vec::new();
    for (depth, one_one, two_two) in [(1, 1.25, 1.65), (16, 1.3, 1.5)] {
        for spread in Spread::ALL {
            planned.push((load(CONNECTIONS, depth, spread), vec![(ONE_ONE, one_one), (TWO_TWO, two_two)]));
        }
    }
    planned.push((load(1, 1, Spread::Hot), vec![(ONE_ONE, 3.0)]));
    let mut rows = Vec::new();
    for (load, bounds) in planned {
        let mut topologies = vec![Topology::Single];
        topologies.extend(bounds.iter().map(|(topology, _)| *topology));
        let claims = bounds.iter().flat_map(|(of, bound)| {
            [Metric::Server, Metric::Total].map(|metric| Claim {
                metric,
                of: *of,
                against: Topology::Single,
                bound: Bound::AtMost(*bound),
            })
        });
        let claims = claims.collect();
        rows.push(row(lab, load, &topologies, effort.pairs, effort.length, claims)?);
    }
    Ok(rows)
}

/// Every number of owners and frontends.
pub(super) fn grid(lab: &Lab, effort: Effort) -> Result<Vec<Row>> {
    let counts = if effort.quick { &COUNTS_QUICK[..] } else { &COUNTS };
    let mut topologies = vec![Topology::Single];
    for owners in counts {
        topologies.extend(counts.iter().map(|frontends| Topology::multi(*owners, *frontends)));
    }
    let mut rows = Vec::new();
    for depth in DEPTHS {
        for spread in Spread::ALL {
            let load = Load { connections: CONNECTIONS, depth, body_bytes: BODY_BYTES, spread };
            rows.push(row(lab, load, &topologies, effort.short_pairs, effort.short_length, Vec::new())?);
        }
    }
    Ok(rows)
}

fn row(
    lab: &Lab,
    load: Load,
    topologies: &[Topology],
    pairs: usize,
    length: Duration,
    claims: Vec<Claim>,
) -> Result<Row> {
    let cores = lab.cores.on_one();
    let rounds =
        interleaved(topologies, pairs, |topology| servers::measure(lab, cores, topology, &load, length, None))?;
    let row = Row { load, seconds: length.as_secs_f64(), rounds, claims };
    for topology in topologies {
        let micros = |value: &dyn Fn(&Sample) -> f64| {
            row.median(*topology, |sample| Some(value(sample) / 1e3)).unwrap_or(f64::NAN)
        };
        eprintln!(
            "one core: {load}: {topology}: server {:.2} µs (owners {:.2}, frontends {:.2}), with the generator {:.2} µs; \
             ratio {}",
            micros(&Sample::server_ns),
            micros(&|sample| sample.role_ns(Role::Owner)),
            micros(&|sample| sample.role_ns(Role::Frontend)),
            micros(&Sample::total_ns),
            row.ratio(Metric::Server, *topology, Topology::Single).map_or("–".to_owned(), |ratio| format!(
                "{:.2} ({:.2} – {:.2})",
                ratio.median, ratio.low, ratio.high
            ))
        );
    }
    Ok(row)
}

/// Measures each server once a round; each round begins with another one, so that none always follows the same.
pub(super) fn interleaved(
    topologies: &[Topology],
    pairs: usize,
    mut measure: impl FnMut(Topology) -> Result<Sample>,
) -> Result<Vec<BTreeMap<Topology, Sample>>> {
    let mut rounds = Vec::new();
    for pair in 0..pairs {
        let mut round = BTreeMap::new();
        for turn in 0..topologies.len() {
            let topology = topologies[(pair + turn) % topologies.len()];
            round.insert(topology, measure(topology)?);
        }
        rounds.push(round);
    }
    Ok(rounds)
}
