//! How fast a log is read back: `recovery_rate [JOBS-OF-64-BYTES] [JOBS-OF-4096-BYTES]`.
//!
//! Writes a log in the folder for temporary files, recovers it five times into a target that only counts, and prints
//! the best rate. The files are in the page cache, as after the death of a process.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use tubes_core::journal::{Counters, JobRecord, Journal, LoggedState, Placement, Replay, StateFields, Superseded};
use tubes_store::{DiskVfs, Log, LogOptions, SyncMode, recover};

/// Knows nothing of a job but that it is there: ids are dense here.
#[derive(Default)]
struct Counter {
    jobs: u64,
    body_bytes: u64,
}

impl Replay for Counter {
    fn replay_job(&mut self, record: &JobRecord<'_>, _segment: u32) -> Option<Superseded> {
        self.jobs += 1;
        self.body_bytes += record.body.len() as u64;
        None
    }

    fn replay_state(&mut self, _id: u64, _fields: &StateFields) -> bool {
        true
    }

    fn replay_delete(&mut self, _id: u64) -> Option<Superseded> {
        None
    }

    fn live_jobs(&self) -> u64 {
        self.jobs
    }

    fn set_state_reserved(&mut self, _reserved: bool) {}

    fn live_job(&self, _id: u64, _segment: u32) -> Option<(JobRecord<'_>, Placement)> {
        None
    }

    fn relocate(&mut self, _id: u64, _placement: Placement) {}
}

fn options(generation: u32) -> LogOptions {
    LogOptions {
        slot: 0,
        generation,
        fingerprint: 1,
        segment_bytes: 10 * 1024 * 1024,
        sync: SyncMode::Never,
        ids_per_count: 1,
        boot_id: [1; 16],
        wall_ms: 0,
        now_ns: 0,
    }
}

fn write_log(folder: &Path, jobs: u64, body: &[u8]) -> Result<f64, Box<dyn Error>> {
    let (mut log, _) = Log::open(DiskVfs::open(folder)?, options(1), &mut Counter::default())?;
    let state = StateFields {
        state: LoggedState::Ready,
        pri: 1024,
        delay_s: 0,
        due_ms: 0,
        bury_order: 0,
        counters: Counters::default(),
    };
    let start = Instant::now();
    for id in 1..=jobs {
        if !log.admit_job(7, body.len()) {
            return Err("no space for the log".into());
        }
        log.append_job(&JobRecord { id, created_ms: 1, state, ttr_s: 60, tube: b"default", body });
        if id % 64 == 0 {
            log.flush(id)?;
        }
    }
    log.close(jobs)?;
    Ok(start.elapsed().as_secs_f64())
}

fn measure(folder: &Path, jobs: u64, body_bytes: usize) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(folder)?;
    let written_in = write_log(folder, jobs, &vec![b'x'; body_bytes])?;
    let mut best = f64::INFINITY;
    let mut bytes = 0;
    for _ in 0..5 {
        let mut target = Counter::default();
        let vfs = DiskVfs::open(folder)?;
        let start = Instant::now();
        let report = recover(&vfs, &options(2), &mut target)?;
        best = best.min(start.elapsed().as_secs_f64());
        if target.jobs != jobs || target.body_bytes != jobs * body_bytes as u64 {
            return Err("the log lost jobs".into());
        }
        bytes = report.bytes;
    }
    println!(
        "{body_bytes:5} byte bodies: {jobs} jobs, {:.0} MB in {best:.3} s: {:.0} MB/s, {:.2} million jobs/s (appended \
         and written at {:.2} million jobs/s)",
        bytes as f64 / 1e6,
        bytes as f64 / 1e6 / best,
        jobs as f64 / 1e6 / best,
        jobs as f64 / 1e6 / written_in,
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let counts: Vec<u64> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let folder = std::env::temp_dir().join(format!("recovery-rate-{}", std::process::id()));
    let result = measure(&folder.join("small"), counts.first().copied().unwrap_or(2_000_000), 64)
        .and_then(|()| measure(&folder.join("large"), counts.get(1).copied().unwrap_or(100_000), 4096));
    std::fs::remove_dir_all(&folder)?;
    result
}
