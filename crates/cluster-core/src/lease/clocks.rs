//! Whether wall clock and database clock go as the boot clock does.

use std::time::Duration;

use super::Clock;
use crate::Now;
use crate::time::millis;

/// The clocks at the last renewal.
#[derive(Debug, Clone, Default)]
pub(super) struct Clocks {
    last: Option<(Now, i64)>,
}

impl Clocks {
    /// Which clocks moved by more than `tolerance` against the boot clock since the last renewal, and how far in ms. Remembers
    /// the present, if the database has told its time.
    pub(super) fn compare(&mut self, now: Now, db_ms: Option<i64>, tolerance: Duration) -> Vec<(Clock, i64)> {
        let mut jumps = Vec::new();
        if let Some((last, last_db_ms)) = self.last {
            let passed = millis(now.boot.since(last.boot));
            let mut look = |clock, moved: i64| {
                let by_ms = moved - passed;
                if by_ms.abs() > millis(tolerance) {
                    jumps.push((clock, by_ms));
                }
            };
            look(Clock::Wall, now.wall_ms - last.wall_ms);
            if let Some(db_ms) = db_ms {
                look(Clock::Database, db_ms - last_db_ms);
            }
        }
        if let Some(db_ms) = db_ms {
            self.last = Some((now, db_ms));
        }
        jumps
    }

    /// Compare with nothing earlier: another server, or another identity.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }
}
