//! What one seed's world is like.

use tubes_protocol::Command;
use tubes_store::SyncMode;

use crate::rng::Rng;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MS;

/// Names of the tubes that clients use.
pub(crate) const TUBES: [&[u8]; 5] = [b"default", b"mail", b"a", b"b.c", b"-no".split_at(1).1];

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill,
    PowerLoss,
    /// The disk stops in the middle of a call some calls ahead, and the machine or only the process with it.
    DiskStop,
    Pause,
    WallStep,
    NoSpace,
    WriteError,
    SyncError,
    LostWrite,
    Stop,
    Drain,
    SlowDisk,
}

pub(crate) const FAULTS: [Fault; 12] = [
    Fault::Kill,
    Fault::PowerLoss,
    Fault::DiskStop,
    Fault::Pause,
    Fault::WallStep,
    Fault::NoSpace,
    Fault::WriteError,
    Fault::SyncError,
    Fault::LostWrite,
    Fault::Stop,
    Fault::Drain,
    Fault::SlowDisk,
];

const FULL: usize = 5;
const _: () = assert!(matches!(FAULTS[FULL], Fault::NoSpace));

/// Number of kinds of commands that are drawn.
const KINDS: usize = 22;

/// The mixture of one seed.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    pub(crate) sync: SyncMode,
    pub(crate) segment_bytes: u64,
    pub(crate) clients: usize,
    pub(crate) tubes: usize,
    pub(crate) jobs_max: usize,
    pub(crate) pipeline_max: u64,
    pub(crate) think_ns: u64,
    pub(crate) network_ns: u64,
    pub(crate) sync_ns: u64,
    pub(crate) turn_ns: u64,
    pub(crate) fault_gap_ns: u64,
    pub(crate) fault_weights: [u32; FAULTS.len()],
    pub(crate) flips: bool,
    body_max: u64,
    pri_max: u64,
    pub(crate) seconds_max: u64,
    weights: [u32; KINDS],
}

impl Profile {
    pub(crate) fn draw(rng: &mut Rng) -> Profile {
        let sync = match rng.below(8) {
            0 => SyncMode::Never,
            1..=4 => SyncMode::Interval(*rng.pick(&[MS, 50 * MS, 50 * MS, 2 * SECOND])),
            _ => SyncMode::Always,
        };
        let mut weights = [0; KINDS];
        for weight in &mut weights {
            *weight = *rng.pick(&[0, 1, 3, 3, 8]);
        }
        for always in [PUT, RESERVE, DELETE] {
            weights[always] = weights[always].max(4);
        }
        let mut fault_weights = [0; FAULTS.len()];
        // A quarter of the seeds have one fault only: what must hold during it is not hidden by the others.
        if rng.chance(1, 4) {
            fault_weights[rng.index(FAULTS.len())] = 1;
        } else {
            for weight in &mut fault_weights {
                *weight = *rng.pick(&[0, 0, 1, 3]);
            }
            // The states of a full disk are many, and reached only while it is full.
            fault_weights[FULL] *= 2;
        }
        if fault_weights.iter().all(|weight| *weight == 0) {
            fault_weights[0] = 1;
        }
        let think_ns = *rng.pick(&[5 * MS, 50 * MS, 500 * MS, 2 * SECOND]);
        Profile {
            sync,
            segment_bytes: *rng.pick(&[512, 1_024, 4_096, 4_096, 16_384]),
            clients: 2 + rng.index(5),
            tubes: 1 + rng.index(TUBES.len()),
            jobs_max: *rng.pick(&[4, 12, 24]),
            pipeline_max: *rng.pick(&[1, 2, 6]),
            think_ns,
            network_ns: *rng.pick(&[50_000, MS, 20 * MS]),
            sync_ns: *rng.pick(&[10_000, MS, MS, 30 * MS]),
            turn_ns: *rng.pick(&[0, 1_000, 100_000]),
            // In events rather than in time: a dozen faults in a run of 5,000 events.
            fault_gap_ns: (think_ns + MS) * *rng.pick(&[20, 60, 200]),
            fault_weights,
            flips: rng.chance(1, 8),
            body_max: *rng.pick(&[0, 20, 200, 1_200]),
            pri_max: *rng.pick(&[0, 3, 2_000, u64::from(u32::MAX)]),
            seconds_max: *rng.pick(&[1, 3, 10]),
            weights,
        }
    }

    fn seconds(&self, rng: &mut Rng) -> u32 {
        if rng.chance(1, 2) { 0 } else { narrow(rng.between(0, self.seconds_max)) }
    }

    /// A command; `pick_id` chooses a job, one that the client holds if it is told so.
    pub(crate) fn command(
        &self,
        rng: &mut Rng,
        may_block: bool,
        mut pick_id: impl FnMut(&mut Rng, bool) -> u64,
    ) -> Command<'static> {
        let tube = TUBES[rng.index(self.tubes)];
        let pri = narrow(rng.between(0, self.pri_max));
        match rng.weighted(&self.weights) {
            PUT => {
                let mut body = vec![0; usize::try_from(rng.between(0, self.body_max)).expect("small")];
                rng.fill(&mut body);
                Command::Put {
                    pri,
                    delay_s: self.seconds(rng),
                    ttr_s: self.seconds(rng).max(1),
                    body: body.into_boxed_slice(),
                }
            }
            RESERVE if may_block && rng.chance(1, 2) => Command::Reserve { timeout_s: None },
            RESERVE => Command::Reserve { timeout_s: Some(self.seconds(rng)) },
            DELETE => {
                let held = rng.chance(3, 4);
                Command::Delete(pick_id(rng, held))
            }
            3 => Command::Use(tube),
            4 => Command::Watch(tube),
            5 => Command::Ignore(tube),
            6 => Command::ReserveJob(pick_id(rng, false)),
            7 => Command::Release { id: pick_id(rng, true), pri, delay_s: self.seconds(rng) },
            8 => Command::Bury { id: pick_id(rng, true), pri },
            9 => Command::Touch(pick_id(rng, true)),
            10 => Command::Kick(*rng.pick(&[1, 2, 100])),
            11 => Command::KickJob(pick_id(rng, false)),
            12 => Command::PauseTube { tube, delay_s: self.seconds(rng) },
            13 => Command::Peek(pick_id(rng, false)),
            14 => Command::PeekReady,
            15 => Command::PeekDelayed,
            16 => Command::PeekBuried,
            17 => Command::StatsJob(pick_id(rng, false)),
            18 => Command::StatsTube(tube),
            19 => rng.pick(&[Command::Stats, Command::ListTubes, Command::ListTubeUsed]).clone(),
            20 => Command::ListTubesWatched,
            _ => Command::Reserve { timeout_s: Some(0) },
        }
    }
}

const PUT: usize = 0;
const RESERVE: usize = 1;
const DELETE: usize = 2;

fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("drawn from 32 bits")
}
