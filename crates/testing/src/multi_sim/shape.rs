//! What one seed's server and its misfortunes are like, beyond what the world of one process draws.

use std::time::Duration;

use supervisor::{OnSlotFailed, RestartPolicy};
use tubes_store::SyncMode;

use crate::rng::Rng;
use crate::sim::profile::{MS, SECOND};

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    KillOwner,
    KillFrontend,
    /// An owner dies at a certain point of its next turn.
    CrashOwner,
    KillSupervisor,
    PowerLoss,
    /// The disk of a slot stops in the middle of a call some calls ahead, and the machine or only the process with it.
    DiskStop,
    PauseOwner,
    PauseFrontend,
    PauseSupervisor,
    LoseLink,
    HalfLink,
    Clog,
    SlowLinks,
    WallStep,
    NoSpace,
    WriteError,
    SyncError,
    SlowDisk,
    Drain,
    Stop,
}

pub(super) const FAULTS: [Fault; 20] = [
    Fault::KillOwner,
    Fault::KillFrontend,
    Fault::CrashOwner,
    Fault::KillSupervisor,
    Fault::PowerLoss,
    Fault::DiskStop,
    Fault::PauseOwner,
    Fault::PauseFrontend,
    Fault::PauseSupervisor,
    Fault::LoseLink,
    Fault::HalfLink,
    Fault::Clog,
    Fault::SlowLinks,
    Fault::WallStep,
    Fault::NoSpace,
    Fault::WriteError,
    Fault::SyncError,
    Fault::SlowDisk,
    Fault::Drain,
    Fault::Stop,
];

/// Topology, links and policies of one seed.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) owners: u16,
    pub(super) frontends: u16,
    pub(super) clients: usize,
    /// `None` keeps jobs in memory only.
    pub(super) sync: Option<SyncMode>,
    pub(super) owner_wait_ns: u64,
    pub(super) single_ids_below: u64,
    /// Of one session, commands under way that bring bodies.
    pub(super) bodies_max: u32,
    /// Bytes that a link of a frontend holds before no command is queued for it.
    pub(super) link_backlog_max: usize,
    /// Of a hundred bodies, so many travel in pieces.
    pub(super) large_percent: u32,
    pub(super) restart: RestartPolicy,
    pub(super) on_slot_failed: OnSlotFailed,
    /// Longest time on a link and on a control channel, and of a start.
    pub(super) link_ns: u64,
    pub(super) control_ns: u64,
    pub(super) start_ns: u64,
    pub(super) fault_gap_ns: u64,
    pub(super) fault_weights: [u32; FAULTS.len()],
    /// Of a hundred new links, so many get old bytes first.
    pub(super) old_bytes_percent: u32,
}

impl Shape {
    pub(super) fn draw(rng: &mut Rng, sync: SyncMode, think_ns: u64) -> Shape {
        let mut fault_weights = [0; FAULTS.len()];
        // A quarter of the seeds have one fault only: what must hold during it is not hidden by the others.
        if rng.chance(1, 4) {
            fault_weights[rng.index(FAULTS.len())] = 1;
        } else {
            for weight in &mut fault_weights {
                *weight = *rng.pick(&[0, 0, 1, 3]);
            }
            // They end everything that other faults have begun.
            for rare in [Fault::KillSupervisor, Fault::PowerLoss, Fault::Stop, Fault::Drain] {
                let at = FAULTS.iter().position(|fault| *fault == rare).expect("it is among them");
                fault_weights[at] = fault_weights[at].min(1);
            }
        }
        if fault_weights.iter().all(|weight| *weight == 0) {
            fault_weights[0] = 1;
        }
        let limit = if rng.chance(1, 5) { 2 } else { 1_000 };
        Shape {
            owners: *rng.pick(&[1, 2, 2, 3, 4]),
            frontends: *rng.pick(&[1, 2, 2, 3]),
            clients: 3 + rng.index(5),
            sync: if rng.chance(1, 4) { None } else { Some(sync) },
            owner_wait_ns: *rng.pick(&[200 * MS, SECOND, 5 * SECOND]),
            bodies_max: *rng.pick(&[1, 4, 64]),
            link_backlog_max: *rng.pick(&[300, 4 << 20, 4 << 20]),
            large_percent: *rng.pick(&[0, 0, 0, 0, 0, 10]),
            single_ids_below: *rng.pick(&[0, 0, 300]),
            restart: RestartPolicy { delay: Duration::from_millis(100), limit, window: Duration::from_secs(30) },
            on_slot_failed: if rng.chance(1, 10) { OnSlotFailed::Stop } else { OnSlotFailed::Serve },
            link_ns: *rng.pick(&[10_000, MS, 5 * MS, 40 * MS]),
            control_ns: *rng.pick(&[50_000, 2 * MS, 30 * MS]),
            start_ns: *rng.pick(&[5 * MS, 300 * MS]),
            fault_gap_ns: (think_ns + MS) * *rng.pick(&[8, 25, 80]),
            fault_weights,
            old_bytes_percent: *rng.pick(&[0, 30, 100]),
        }
    }
}
