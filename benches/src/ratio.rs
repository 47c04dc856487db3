//! Ratios of pairs: the median, its interval, and whether a bound is met.

use serde::{Deserialize, Serialize};

/// Coverage asked of an interval.
const COVERAGE_MIN: f64 = 0.90;

/// A median with an interval around it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// How many values it comes from.
    pub count: usize,
    /// Probability that the interval covers the true median: at least 0.9 where there are values enough.
    pub coverage: f64,
}

impl Estimate {
    /// The median of `values` with its distribution-free interval: the narrowest pair of order statistics, the same
    /// number of steps from both ends, that covers the true median with probability 0.9 or more. Fewer than five
    /// values cannot reach that; the interval is then their whole range. `None` for no values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let last = count.checked_sub(1)?;
        let steps = (0..=last / 2).rev().find(|steps| coverage(count, *steps) >= COVERAGE_MIN).unwrap_or(0);
        Some(Self {
            median: f64::midpoint(sorted[last / 2], sorted[count / 2]),
            low: sorted[steps],
            high: sorted[last - steps],
            count,
            coverage: coverage(count, steps),
        })
    }
}

/// Probability that the true median lies between the order statistics `steps` from both ends of `count` values: all
/// but the cases in which at most `steps` values fall on one side.
fn coverage(count: usize, steps: usize) -> f64 {
    let mut term = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut tail = 0.0;
    for below in 0..=steps {
        tail += term;
        let next = (count - below) as f64 / (below + 1) as f64;
        term *= next;
    }
    1.0 - 2.0 * tail
}

/// What a ratio must keep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Bound {
    /// Met if the interval's lower end is not above it.
    AtMost(f64),
    /// Met if the interval's upper end is not below it.
    AtLeast(f64),
}

impl Bound {
    /// Whether `estimate` meets the bound.
    pub fn is_met(self, estimate: &Estimate) -> bool {
        match self {
            Self::AtMost(bound) => estimate.low <= bound,
            Self::AtLeast(bound) => estimate.high >= bound,
        }
    }

    /// The number itself.
    pub fn value(self) -> f64 {
        match self {
            Self::AtMost(bound) | Self::AtLeast(bound) => bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_of_eleven_values_leaves_two_out_at_each_end() {
        let values: Vec<f64> = (1..=11).map(f64::from).rev().collect();
        let estimate = Estimate::of(&values).unwrap();
        assert_eq!((estimate.median, estimate.low, estimate.high), (6.0, 3.0, 9.0));
        assert!((estimate.coverage - 0.9346).abs() < 0.0001, "{}", estimate.coverage);
    }

    #[test]
    fn few_values_give_their_range_and_say_so() {
        let estimate = Estimate::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((estimate.median, estimate.low, estimate.high), (2.0, 1.0, 3.0));
        assert!((estimate.coverage - 0.75).abs() < 1e-9);
        assert_eq!(Estimate::of(&[4.0, 2.0]).unwrap().median, 3.0);
        assert_eq!(Estimate::of(&[]), None);
    }

    #[test]
    fn bounds_are_met_by_the_nearer_end_of_the_interval() {
        let estimate = Estimate { median: 1.0, low: 0.9, high: 1.1, count: 11, coverage: 0.93 };
        assert!(Bound::AtMost(0.95).is_met(&estimate));
        assert!(!Bound::AtMost(0.85).is_met(&estimate));
        assert!(Bound::AtLeast(1.05).is_met(&estimate));
        assert!(!Bound::AtLeast(1.15).is_met(&estimate));
    }
}
