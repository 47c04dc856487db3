//! Each promise about servers of several processes and whether it is kept.

use super::results::{Metric, Part, Role, Row, Stored};
use super::topology::Topology;
use crate::report::verdict::Verdict;

/// Fewest values a verdict rests on.
const PAIRS_MIN: usize = 10;
/// The processes that limit a server have used up their quota in more than this share of the periods; else something
/// outside the server limits it, and the run says nothing about the server.
const THROTTLED_MIN: f64 = 0.9;

/// All promises whose figures are there, and why some cannot be judged.
pub(super) fn all(figures: &[(Part, Stored)]) -> (Vec<Verdict>, Vec<String>) {
    let (mut verdicts, mut void) = (Vec::new(), Vec::new());
    for (part, stored) in figures {
        for row in &stored.rows {
            let reasons: Vec<_> = row
                .topologies()
                .into_iter()
                .filter(|topology| row.claims.iter().any(|claim| claim.of == *topology || claim.against == *topology))
                .filter_map(|topology| Some((topology, void_reason(row, topology)?)))
                .collect();
            for claim in &row.claims {
                let Some(estimate) = row.ratio(claim.metric, claim.of, claim.against) else { continue };
                let figure = match claim.metric {
                    Metric::Server => "CPU of the server",
                    Metric::Total => "CPU with the generator",
                    Metric::Throughput => "throughput under quotas",
                };
                let what = format!("{figure}, {} / {}, {}", claim.of, claim.against, row.load);
                let is_void = reasons.iter().any(|(topology, _)| [claim.of, claim.against].contains(topology));
                let enough = estimate.count >= PAIRS_MIN && !stored.quick && !is_void;
                verdicts.push(Verdict::new(what, estimate, claim.bound, "", enough));
            }
            let reasons = reasons.into_iter();
            void.extend(reasons.map(|(topology, reason)| format!("{part}, {}, {topology}: {reason}", row.load)));
        }
    }
    (verdicts, void)
}

/// Why a run with quotas says nothing about the server: none of its roles was limited by its quota in all processes.
pub(super) fn void_reason(row: &Row, topology: Topology) -> Option<String> {
    let shares = Role::ALL.into_iter().filter_map(|role| {
        let share = row.median(topology, |sample| sample.throttled_share(role))?;
        Some((role, share))
    });
    let (role, share) = shares.max_by(|one, other| one.1.total_cmp(&other.1))?;
    (share <= THROTTLED_MIN).then(|| {
        format!(
            "void: the busiest role, {role}, was stopped by its quota in {:.0} % of the periods; more than {:.0} % are needed",
            share * 100.0,
            THROTTLED_MIN * 100.0
        )
    })
}
