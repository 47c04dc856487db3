//! What a seed's world is like.

use std::time::Duration;

use cluster_core::Times;

use crate::rng::Rng;

pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000 * MS;

/// What can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Kill,
    CleanStop,
    Pause,
    FreezeLease,
    FreezeRuntime,
    Reset,
    HalfOpen,
    Slow,
    PoolBlocked,
    DatabaseRestart,
    Outage,
    Failover,
    ClockStep,
    WallStep,
    RowLocked,
}

impl Fault {
    const ALL: [Self; 15] = [
        Self::Kill,
        Self::CleanStop,
        Self::Pause,
        Self::FreezeLease,
        Self::FreezeRuntime,
        Self::Reset,
        Self::HalfOpen,
        Self::Slow,
        Self::PoolBlocked,
        Self::DatabaseRestart,
        Self::Outage,
        Self::Failover,
        Self::ClockStep,
        Self::WallStep,
        Self::RowLocked,
    ];
}

#[derive(Debug, Clone)]
pub(super) struct Profile {
    pub(super) times: Times,
    pub(super) processes: usize,
    pub(super) rows: u32,
    pub(super) lanes: u32,
    /// Faults with their weights.
    pub(super) faults: Vec<(Fault, u32)>,
    /// From one fault to the next, on average.
    pub(super) fault_every: u64,
    /// One fault, which hits the leader.
    pub(super) single: Option<Fault>,
    /// Notices lost, in a thousand.
    pub(super) notices_lost: u32,
    /// Unknown commits, in ten thousand.
    pub(super) unknown: u32,
    /// One way of a link, at least and at most.
    pub(super) delay: (u64, u64),
    /// Between a statement's snapshot and its work, at most.
    pub(super) stall: u64,
    /// All processes reap, not only the leader.
    pub(super) all_reap: bool,
    /// When faults end.
    pub(super) calm_from: u64,
    pub(super) end: u64,
    /// From one action of an executor to the next.
    pub(super) action_every: (u64, u64),
    /// An execution, at least and at most.
    pub(super) execution: (u64, u64),
}

impl Profile {
    pub(super) fn draw(rng: &mut Rng, minutes: u64) -> Self {
        let seconds = Duration::from_secs;
        let mut times = Times::default();
        if rng.chance(1, 4) {
            times.beat = seconds(rng.between(2, 5));
            times.renew = seconds(rng.between(3, 5));
            times.margin = *rng.pick(&[Duration::from_millis(200), seconds(1), seconds(2), seconds(3)]);
            times.lease = times.beat.max(times.renew) * 3 + times.statement_timeout + times.margin;
        }
        let single = rng.chance(1, 8).then(|| *rng.pick(&[Fault::Kill, Fault::CleanStop, Fault::Pause]));
        let mut faults = Vec::new();
        if single.is_none() {
            for fault in Fault::ALL {
                if rng.chance(2, 5) {
                    faults.push((fault, rng.between(1, 6) as u32));
                }
            }
        }
        let end = minutes * 60 * SECOND;
        let lease = times.lease.as_nanos() as u64;
        let beat = times.beat.as_nanos() as u64;
        // What must have happened by the end, and the longest backward step of the database's clock.
        let calm = 2 * lease + 2 * beat + 60 * SECOND;
        let fastest = rng.between(1, 4);
        Self {
            times,
            processes: rng.between(2, 6).min(rng.between(2, 6)) as usize,
            rows: rng.between(4, 10) as u32,
            lanes: rng.between(1, 2) as u32,
            faults,
            fault_every: rng.between(8, 60) * SECOND,
            single,
            notices_lost: *rng.pick(&[0, 0, 100, 500, 1_000]),
            unknown: if single.is_some() { 0 } else { *rng.pick(&[0, 20, 100]) },
            delay: (MS / 10, *rng.pick(&[MS, 5 * MS, 40 * MS])),
            stall: if single.is_some() { MS } else { *rng.pick(&[2 * MS, 50 * MS, 500 * MS, 1_900 * MS]) },
            all_reap: rng.chance(1, 4),
            calm_from: end.saturating_sub(calm),
            end,
            action_every: (fastest * SECOND, (fastest + 5) * SECOND),
            execution: (SECOND / 2, rng.between(2, 25) * SECOND),
        }
    }
}
