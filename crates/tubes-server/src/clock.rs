//! The clocks, read in the shell only.

use crate::platform::STEADY_CLOCK;
use rustix::time::{ClockId, clock_gettime};
use tubes_core::Now;

/// The present instant.
pub(crate) fn now() -> Now {
    let steady = clock_gettime(STEADY_CLOCK);
    let wall = clock_gettime(ClockId::Realtime);
    Now {
        boot_ns: nanoseconds(steady.tv_sec, steady.tv_nsec),
        wall_ms: nanoseconds(wall.tv_sec, wall.tv_nsec) / 1_000_000,
    }
}

fn nanoseconds(seconds: i64, nanoseconds: impl TryInto<u64>) -> u64 {
    u64::try_from(seconds).unwrap_or(0) * 1_000_000_000 + nanoseconds.try_into().unwrap_or(0)
}
