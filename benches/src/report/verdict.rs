//! Each promise, the figure that answers it, and whether it is kept.

use super::{Figures, rows};
use crate::peer::Contender;
use crate::plot::{Gauge, number};
use crate::ratio::{Bound, Estimate};
use crate::results::{Content, IdleCount, Metric, Row};
use crate::sections::Section;

/// Fewest values a verdict rests on, where the figure is noisy.
const PAIRS_MIN: usize = 10;
const MEMORY_RATIO_MAX: f64 = 0.8;
const IDLE_CHANGE_MAX: f64 = 0.01;
const START_MS_MAX: f64 = 100.0;
const RECOVERY_JOBS_PER_SECOND_MIN: f64 = 1.5e6;
const RECOVERY_BYTES_PER_SECOND_MIN: f64 = 500e6;
/// Counts that do not change at all would stretch a logarithmic axis without end.
const SHARE_SHOWN_MIN: f64 = 0.01;
/// Bodies up to this are judged by jobs, larger ones by bytes.
const SMALL_BODY_BYTES_MAX: usize = 64;

/// A promise and its figure.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) what: String,
    pub(crate) estimate: Estimate,
    pub(crate) bound: Bound,
    /// What the numbers are: empty for ratios.
    pub(crate) unit: &'static str,
    /// `None` if too little was measured to judge.
    pub(crate) is_met: Option<bool>,
}

impl Verdict {
    pub(crate) fn new(what: String, estimate: Estimate, bound: Bound, unit: &'static str, enough: bool) -> Self {
        Self { what, estimate, bound, unit, is_met: enough.then(|| bound.is_met(&estimate)) }
    }

    /// The bound in words.
    pub(crate) fn bound_text(&self) -> String {
        let sign = match self.bound {
            Bound::AtMost(_) => "≤",
            Bound::AtLeast(_) => "≥",
        };
        format!("{sign} {}{}", number(self.bound.value()), self.unit)
    }

    /// How it is drawn; `None` if it was not judged.
    pub(crate) fn gauge(&self) -> Option<Gauge> {
        let Estimate { low, median, high, .. } = self.estimate;
        let share = match self.bound {
            Bound::AtMost(bound) => [low / bound, median / bound, high / bound],
            Bound::AtLeast(bound) => [bound / high, bound / median, bound / low],
        };
        let share = share.map(|share| share.max(SHARE_SHOWN_MIN));
        let text = format!("{}{} ({})", number(median), self.unit, self.bound_text());
        Some(Gauge { name: self.what.clone(), text, share, is_met: self.is_met? })
    }
}

/// All promises whose figures are there.
pub(super) fn all(figures: &Figures) -> Vec<Verdict> {
    let mut verdicts: Vec<_> = rows(figures, Section::Bounds).iter().flat_map(of_row).collect();
    for stored in figures.values() {
        let enough = !stored.quick;
        match &stored.content {
            Content::Memory(memory) => {
                let of = |contender| memory.bytes_per_job.get(&contender).map(Vec::as_slice).unwrap_or_default();
                let pairs = of(Contender::Tenure).iter().zip(of(Contender::Beanstalkd));
                let ratios: Vec<_> = pairs.map(|(ours, theirs)| ours / theirs).collect();
                verdicts.extend(Estimate::of(&ratios).map(|estimate| {
                    let what = format!("memory of a ready {} B job / beanstalkd", memory.body_bytes);
                    Verdict::new(what, estimate, Bound::AtMost(MEMORY_RATIO_MAX), "", enough)
                }));
            }
            Content::Idle(counts) => verdicts.extend(of_idle(counts, enough)),
            Content::Starts(starts) => {
                for start in starts.iter().filter(|start| start.contender == Contender::Tenure) {
                    let what = format!("listening after, {}", start.mode);
                    let estimate = Estimate::of(&start.milliseconds);
                    verdicts.extend(
                        estimate.map(|time| Verdict::new(what, time, Bound::AtMost(START_MS_MAX), " ms", enough)),
                    );
                }
            }
            Content::Recoveries(recoveries) => {
                for recovery in recoveries.iter().filter(|recovery| recovery.contender == Contender::Tenure) {
                    let (amount, bound, unit, divisor) = if recovery.body_bytes <= SMALL_BODY_BYTES_MAX {
                        (recovery.jobs as f64, RECOVERY_JOBS_PER_SECOND_MIN, " M jobs/s", 1e6)
                    } else {
                        (recovery.log_bytes as f64, RECOVERY_BYTES_PER_SECOND_MIN, " MB/s", 1e6)
                    };
                    let rates: Vec<_> = recovery.seconds.iter().map(|seconds| amount / seconds / divisor).collect();
                    let what = format!("recovery at {} B", recovery.body_bytes);
                    verdicts.extend(
                        Estimate::of(&rates)
                            .map(|rate| Verdict::new(what, rate, Bound::AtLeast(bound / divisor), unit, enough)),
                    );
                }
            }
            Content::Rows(_) | Content::Syncs(_) => {}
        }
    }
    verdicts
}

fn of_row(row: &Row) -> Vec<Verdict> {
    let judge = |claim: &crate::results::Claim| {
        let metric = match claim.metric {
            Metric::Cpu => "CPU",
            Metric::Throughput => "throughput",
        };
        let log = if row.mode == crate::peer::LogMode::Memory { String::new() } else { format!(", {}", row.mode) };
        let what = format!("{metric}, {}, depth {}{log} / {}", row.workload.mix, row.workload.depth, claim.against);
        let estimate = row.ratio(claim.metric, claim.against)?;
        Some(Verdict::new(what, estimate, claim.bound, "", estimate.count >= PAIRS_MIN))
    };
    row.claims.iter().filter_map(judge).collect()
}

/// Counts with something idle against the counts without, as changes in either direction.
fn of_idle(counts: &[IdleCount], enough: bool) -> Vec<Verdict> {
    let ours: Vec<_> = counts.iter().filter(|count| count.contender == Contender::Tenure).collect();
    let mut verdicts = Vec::new();
    for count in ours.iter().filter(|count| count.connections + count.tubes > 0) {
        let without = ours.iter().find(|other| other.depth == count.depth && other.connections + other.tubes == 0);
        let Some(without) = without else { continue };
        let idle = if count.tubes > 0 {
            format!("{} idle tubes", number_of(count.tubes))
        } else {
            format!("{} idle connections", number_of(count.connections))
        };
        for (name, with, without) in
            [("instructions", count.instructions, without.instructions), ("system calls", count.calls, without.calls)]
        {
            let change = (with / without - 1.0).abs() * 100.0;
            let estimate = Estimate { median: change, low: change, high: change, count: 1, coverage: 1.0 };
            let what = format!("change of {name}, {idle}, depth {}", count.depth);
            verdicts.push(Verdict::new(what, estimate, Bound::AtMost(IDLE_CHANGE_MAX * 100.0), " %", enough));
        }
    }
    verdicts
}

fn number_of(count: usize) -> String {
    number(count as f64)
}
