//! Points in time and the lengths from which all deadlines follow.

use std::time::Duration;

/// A time of CLOCK_BOOTTIME, which counts suspend too, in nanoseconds. Never compared with another machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Boot(pub u64);

impl Boot {
    /// Later than any time that is reached.
    pub const NEVER: Self = Self(u64::MAX);

    /// `length` later.
    #[must_use]
    pub fn plus(self, length: Duration) -> Self {
        Self(self.0.saturating_add(nanoseconds(length)))
    }

    /// `length` earlier, or the boot itself.
    #[must_use]
    pub fn minus(self, length: Duration) -> Self {
        Self(self.0.saturating_sub(nanoseconds(length)))
    }

    /// How long ago `earlier` was; zero if it is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanoseconds(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

/// When an input is handled, by the two clocks of the process. Read once for each input, after it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Decides.
    pub boot: Boot,
    /// Milliseconds since 1970 by the wall clock: only to tell that clocks jumped.
    pub wall_ms: i64,
}

/// The lengths of a member's life. All members of a database must use the same `lease`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// R: from one renewal to the next, at most.
    pub renew: Duration,
    /// T: what a statement may take.
    pub statement_timeout: Duration,
    /// M: before the lease's end the process stops trusting it, and has stopped its executions within this time.
    pub margin: Duration,
    /// H: from one beat to the next, at most.
    pub beat: Duration,
    /// L: how long a registration and a leadership live without renewal. Whole milliseconds.
    pub lease: Duration,
}

/// What is wrong with [`Times`]. Each says what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimesError {
    /// A length is zero or of a fraction of a millisecond.
    #[error("cluster.{name} is {}, but must be at least 1 ms and whole milliseconds", Shown(*.length))]
    NotWhole {
        /// Its name in the configuration.
        name: &'static str,
        /// What it is.
        length: Duration,
    },
    /// The lease is shorter than three renewals, a statement and the margin.
    #[error(
        "cluster.lease is {}, but must be at least {}: three times cluster.{period}, and cluster.statement_timeout and \
         cluster.margin once", Shown(*.lease), Shown(*.least)
    )]
    LeaseTooShort {
        /// What is done three times within a lease: `renew` or `beat`.
        period: &'static str,
        /// What it is.
        lease: Duration,
        /// What it must be.
        least: Duration,
    },
}

struct Shown(Duration);

impl std::fmt::Display for Shown {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?}", self.0)
    }
}

impl Default for Times {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            renew: seconds(5),
            statement_timeout: seconds(2),
            margin: seconds(3),
            beat: seconds(5),
            lease: seconds(20),
        }
    }
}

impl Times {
    /// Whether two renewals in a row may fail, the third one late, before the process must stop; and, as leaderships are
    /// renewed at each beat, the same of beats.
    ///
    /// # Errors
    ///
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), TimesError> {
        let named = [
            ("renew", self.renew),
            ("statement_timeout", self.statement_timeout),
            ("margin", self.margin),
            ("beat", self.beat),
            ("lease", self.lease),
        ];
        for (name, length) in named {
            if length.is_zero() || !length.subsec_nanos().is_multiple_of(1_000_000) {
                return Err(TimesError::NotWhole { name, length });
            }
        }
        for (period, length) in [("renew", self.renew), ("beat", self.beat)] {
            let least = length * 3 + self.statement_timeout + self.margin;
            if self.lease < least {
                return Err(TimesError::LeaseTooShort { period, lease: self.lease, least });
            }
        }
        Ok(())
    }

    /// How long a statement may wait for a row's lock: shorter than the statement's limit, so that the error tells
    /// which of them it was; a second at most.
    #[must_use]
    pub fn lock_timeout(&self) -> Duration {
        (self.statement_timeout / 2).min(Duration::from_secs(1))
    }

    /// What a transaction behind a guard may take, idle time included: a leader that freezes in one delays its successor by
    /// no more.
    #[must_use]
    pub fn guarded_limit(&self) -> Duration {
        self.lease / 4
    }

    /// Until when a lease may be trusted that was asked for at `sent`, and of which the database said that `left_ms` are
    /// left. `sent`, not the answer's arrival: the answer may be old.
    #[must_use]
    pub fn trust_until(&self, sent: Boot, left_ms: i64) -> Boot {
        let left = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0));
        sent.plus(left.min(self.lease)).minus(self.margin)
    }

    /// The lease in ms, as statements take it.
    #[must_use]
    pub fn lease_ms(&self) -> i64 {
        millis(self.lease)
    }
}

/// Whole milliseconds, as statements take them.
pub(crate) fn millis(length: Duration) -> i64 {
    i64::try_from(length.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_has_room_for_three_renewals_and_says_how_much_it_needs() {
        assert_eq!(Times::default().check(), Ok(()));
        let short = Times { lease: Duration::from_secs(19), ..Times::default() };
        assert_eq!(
            short.check().unwrap_err().to_string(),
            "cluster.lease is 19s, but must be at least 20s: three times cluster.renew, and cluster.statement_timeout and \
             cluster.margin once"
        );
        let slow = Times { beat: Duration::from_secs(6), ..Times::default() };
        assert!(matches!(slow.check(), Err(TimesError::LeaseTooShort { period: "beat", .. })));
        let zero = Times { margin: Duration::ZERO, ..Times::default() };
        assert!(matches!(zero.check(), Err(TimesError::NotWhole { name: "margin", .. })));
    }

    #[test]
    fn trust_counts_from_the_sending_and_never_exceeds_what_the_database_gave() {
        let times = Times::default();
        let sent = Boot(1_000_000_000_000);
        assert_eq!(times.trust_until(sent, 20_000), sent.plus(Duration::from_secs(17)));
        assert_eq!(times.trust_until(sent, 12_000), sent.plus(Duration::from_secs(9)), "12 s left, not 20");
        assert_eq!(times.trust_until(sent, 99_000), sent.plus(Duration::from_secs(17)), "a clock stepped back");
        assert!(times.trust_until(sent, -5) < sent);
    }
}
