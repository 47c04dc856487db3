//! The log beside the event loop: the journal that the rules write to, and when replies may leave.

use crate::error::ServeError;
use crate::options::LogSettings;
use crate::outputs::LogFigures;
use crate::sync_thread::SyncThread;
use std::sync::Arc;
use tubes_core::journal::{JobRecord, Journal, Placement, StateFields};
use tubes_core::{Engine, Now};
use tubes_store::datadir::{self, DataDir, SlotDir};
use tubes_store::{DiskVfs, Log, LogError, LogOptions, RecoveryReport, SyncMode};

/// A server's log, or none.
#[derive(Debug)]
pub(crate) struct Persistence {
    kept: Option<Kept>,
}

#[derive(Debug)]
struct Kept {
    log: Log<DiskVfs>,
    thread: SyncThread,
    /// Whether a job of the log is on the thread.
    is_syncing: bool,
    /// When the job on the thread was given to it, in ns of the boot clock.
    since_ns: u64,
    /// Wall time at which the last job came back, in ms.
    last_sync_ms: u64,
    _locks: Option<Locks>,
}

/// Which log a supervised process opens.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(crate) struct SlotLog<'a> {
    pub(crate) slot: u16,
    pub(crate) generation: u32,
    pub(crate) segment_bytes: u64,
    /// Ids that one count stands for: 1 where one process has all jobs.
    pub(crate) ids_per_count: u64,
    pub(crate) log: &'a crate::child_options::ChildLog,
}

/// They hold the locks for the life of the process.
#[derive(Debug)]
struct Locks {
    _directory: DataDir,
    _slot: SlotDir,
}

/// What the start of a log found.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) instance: String,
    pub(crate) generation: u32,
    pub(crate) report: RecoveryReport,
}

impl Persistence {
    /// A server that keeps its jobs in memory only.
    pub(crate) fn none() -> Self {
        Persistence { kept: None }
    }

    /// Opens the data directory of a single process and replays its log into the engine.
    pub(crate) fn open_single(
        settings: &LogSettings,
        segment_bytes: u64,
        engine: &mut Engine,
        now: Now,
        waker: Arc<mio::Waker>,
    ) -> Result<(Self, Opened), ServeError> {
        let directory = datadir::open_single(&settings.directory)?;
        let slot = directory.open_slot(0)?;
        let options = LogOptions {
            slot: 0,
            generation: slot.generation,
            fingerprint: directory.fingerprint(),
            segment_bytes,
            sync: settings.sync,
            ids_per_count: 1,
            boot_id: datadir::boot_id(),
            wall_ms: now.wall_ms,
            now_ns: now.boot_ns,
        };
        let (log, report) = Log::open(slot.vfs.clone(), options, engine)?;
        let opened = Opened { instance: directory.manifest().instance.clone(), generation: slot.generation, report };
        let thread = SyncThread::start(waker)?;
        let locks = Some(Locks { _directory: directory, _slot: slot });
        Ok((Persistence { kept: Some(Kept::new(log, thread, locks)) }, opened))
    }

    /// Opens the log of a slot, whose lock is held, and replays it into the engine.
    #[cfg(target_os = "linux")]
    pub(crate) fn open_slot(
        slot: &SlotLog<'_>,
        engine: &mut Engine,
        now: Now,
        thread: SyncThread,
    ) -> Result<(Self, RecoveryReport), ServeError> {
        let vfs = datadir::slot_directory(&slot.log.directory, &slot.log.logs, slot.slot)?;
        let options = LogOptions {
            slot: slot.slot,
            generation: slot.generation,
            fingerprint: slot.log.fingerprint,
            segment_bytes: slot.segment_bytes,
            sync: slot.log.sync(),
            ids_per_count: slot.ids_per_count,
            boot_id: datadir::boot_id(),
            wall_ms: now.wall_ms,
            now_ns: now.boot_ns,
        };
        let (log, report) = Log::open(vfs, options, engine)?;
        report_findings(&report);
        Ok((Persistence { kept: Some(Kept::new(log, thread, None)) }, report))
    }

    /// For how long a sync has been under way, in ms.
    pub(crate) fn in_sync_ms(&self, now_ns: u64) -> Option<u64> {
        let kept = self.kept.as_ref()?;
        kept.is_syncing.then(|| now_ns.saturating_sub(kept.since_ns) / 1_000_000)
    }

    /// The end of a turn: writes its records, and starts a sync if one is due.
    pub(crate) fn flush(&mut self, now_ns: u64) -> Result<(), LogError> {
        let Some(kept) = &mut self.kept else { return Ok(()) };
        kept.log.flush(now_ns)?;
        kept.begin_sync(now_ns);
        Ok(())
    }

    /// Takes back what the sync thread has finished, if it has; `true` if so.
    pub(crate) fn end_sync(&mut self, now_ns: u64) -> Result<bool, LogError> {
        let Some(kept) = &mut self.kept else { return Ok(false) };
        let Some((id, result)) = kept.thread.take_done() else { return Ok(false) };
        kept.is_syncing = false;
        kept.last_sync_ms = crate::clock::now().wall_ms;
        kept.log.end_sync(id, result)?;
        // What was collected meanwhile goes out at once.
        kept.log.flush(now_ns)?;
        kept.begin_sync(now_ns);
        Ok(true)
    }

    /// The batch for which the replies of this turn have to wait, if they do.
    pub(crate) fn batch_to_wait_for(&self) -> Option<u64> {
        let log = &self.kept.as_ref()?.log;
        (log.pending_batch() > log.durable_batch()).then(|| log.pending_batch())
    }

    /// The last batch whose replies may leave.
    pub(crate) fn durable_batch(&self) -> u64 {
        self.kept.as_ref().map_or(0, |kept| kept.log.durable_batch())
    }

    /// Copies live jobs out of the oldest segments; `true` if there is more to do.
    pub(crate) fn compact(&mut self, engine: &mut Engine, is_idle: bool) -> bool {
        self.kept.as_mut().is_some_and(|kept| kept.log.compact(engine, is_idle))
    }

    /// Whether clients must not be read because too much waits for the disk.
    pub(crate) fn backpressure(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.log.backpressure())
    }

    /// When the log has something to do next, in ns of the boot clock.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.kept.as_ref()?.log.next_deadline()
    }

    /// The orderly end: everything is written and synced. Blocks on the disk.
    pub(crate) fn close(&mut self, now_ns: u64) -> Result<(), LogError> {
        let Some(kept) = &mut self.kept else { return Ok(()) };
        if kept.is_syncing {
            let (id, result) = kept.thread.wait_done();
            kept.is_syncing = false;
            kept.log.end_sync(id, result)?;
        }
        kept.log.close(now_ns)
    }

    /// What `stats`, status and metrics show of the log.
    pub(crate) fn figures(&self) -> Option<LogFigures> {
        let kept = self.kept.as_ref()?;
        let figures = kept.log.figures();
        Some(LogFigures {
            oldest_segment: u64::from(figures.oldest_segment),
            current_segment: u64::from(figures.current_segment),
            records_migrated: figures.records_migrated,
            records_written: figures.records_written,
            segment_bytes: figures.segment_bytes,
            bytes: figures.log_bytes,
            pending_bytes: figures.pending_bytes,
            written_bytes: figures.bytes_written,
            syncs: figures.syncs,
            records_synced: figures.records_synced,
            last_sync_ms: kept.last_sync_ms,
            has_no_space: figures.allocation_error.is_some(),
        })
    }
}

impl Kept {
    fn new(log: Log<DiskVfs>, thread: SyncThread, locks: Option<Locks>) -> Self {
        Kept { log, thread, is_syncing: false, since_ns: 0, last_sync_ms: 0, _locks: locks }
    }

    fn begin_sync(&mut self, now_ns: u64) {
        if self.is_syncing {
            return;
        }
        if let Some(job) = self.log.begin_sync(now_ns) {
            self.is_syncing = true;
            self.since_ns = now_ns;
            self.thread.run(job);
        }
    }
}

impl Journal for Persistence {
    fn admit_job(&mut self, tube_bytes: usize, body_bytes: usize) -> bool {
        self.kept.as_mut().is_none_or(|kept| kept.log.admit_job(tube_bytes, body_bytes))
    }
    fn append_job(&mut self, record: &JobRecord<'_>) -> Placement {
        self.kept.as_mut().map_or_else(Placement::default, |kept| kept.log.append_job(record))
    }
    fn admit_state(&mut self, placement: Placement) -> bool {
        self.kept.as_mut().is_none_or(|kept| kept.log.admit_state(placement))
    }
    fn append_state(&mut self, placement: Placement, id: u64, fields: &StateFields) -> Placement {
        self.kept.as_mut().map_or(placement, |kept| kept.log.append_state(placement, id, fields))
    }
    fn append_delete(&mut self, placement: Placement, id: u64, tube_bytes: usize, body_bytes: usize) {
        if let Some(kept) = &mut self.kept {
            kept.log.append_delete(placement, id, tube_bytes, body_bytes);
        }
    }
}

/// Says what a start found, and what the log promises.
pub(crate) fn report(settings: &LogSettings, report: &RecoveryReport) {
    tracing::info!(
        "log in {}: {} jobs recovered; an acknowledged command survives {}",
        settings.directory.display(),
        report.jobs,
        survives(settings.sync),
    );
    report_findings(report);
}

/// Says what a start found at the end of a log.
fn report_findings(report: &RecoveryReport) {
    if let Some(torn) = &report.torn {
        tracing::warn!("the end of the log is torn and has been cut off: {torn}");
    }
    if report.skipped_ids > 0 {
        tracing::warn!("{} ids are skipped: a power cut may have lost ids that clients saw", report.skipped_ids);
    }
    if report.never_synced {
        tracing::warn!("the log was written without syncs: damage and loss cannot be told apart");
    }
}

/// In words, what an acknowledged command survives.
pub(crate) fn survives(sync: SyncMode) -> &'static str {
    match sync {
        SyncMode::Never => "the death of the process; damage and loss cannot be told apart at the next start",
        SyncMode::Interval(_) => "the death of the process, and a power loss but for the last interval and one sync",
        SyncMode::Always => "a power loss",
    }
}

/// Bytes nobody can guess.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], ServeError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += crate::platform::random(&mut bytes[filled..])
            .map_err(|source| ServeError::system("draw random bytes", source))?;
    }
    Ok(bytes)
}
