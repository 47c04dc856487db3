//! The writer of the log.
//!
//! Owns: the records that wait in memory, the segment being written, and the course of batches and syncs.
//! Never: reads a clock, waits for the disk while serving (but for writes, which go to the page cache), or goes on
//! after a failure: a failed write or sync is remembered, and every later call reports it.
//!
//! Records are appended to the chunk of the newest segment. When one does not fit, the chunk gets its CLOSE record and
//! a chunk for the next segment is opened behind it. [`Log::flush`] writes the first chunk; the next segment gets its
//! header and name, and the second chunk its turn, only when the first is written and (but for mode `never`) synced.
//!
//! Sequences serve as batch numbers: a batch is named by the sequence of its last record.

use std::collections::VecDeque;

use tubes_core::journal::{JobRecord, Journal, Placement, Replay, StateFields};

use crate::error::{LogError, LogErrorKind, OpenError};
use crate::format::{
    self, CLOSE_RECORD_BYTES, DELETE_RECORD_BYTES, SEGMENT_HEADER_BYTES, STATE_RECORD_BYTES, SegmentHeader,
    job_record_bytes,
};
use crate::options::{LogOptions, SEGMENT_BYTES_MIN, SyncMode};
use crate::reclaim::{LAST_RESORT_BYTES_MIN, cut_unused_ends, remove_empty_last};
use crate::recover::{self, Recovered, RecoveryReport};
use crate::segment::{Segment, Segments, fresh_room, segment_name};
use crate::space::{Space, Spare};
use crate::sync::{Step, SyncError, SyncJob, run_step};
use crate::vfs::{Vfs, VfsFile};

/// Bytes that may wait in memory for a sync before clients are no longer read.
pub const PENDING_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Capacity that an emptied buffer keeps; a burst's memory goes back.
const BUFFER_BYTES_KEPT: usize = 1024 * 1024;
const NS_PER_MS: u64 = 1_000_000;
/// Segments removed by one job, each with a sync of the directory: replies may be waiting for its end.
const DROPS_PER_JOB_MAX: usize = 4;

/// The segment a chunk belongs to has no name yet.
#[derive(Debug)]
struct Begin {
    spare: String,
    header: Box<[u8; SEGMENT_HEADER_BYTES]>,
}

/// Records of one segment that wait in memory.
#[derive(Debug)]
struct Chunk<F> {
    file: F,
    name: String,
    begin: Option<Begin>,
    /// Where `bytes` go.
    offset: u64,
    bytes: Vec<u8>,
    /// First sequence of the segment.
    first_sequence: u64,
    /// Sequence of the last record in `bytes`, or of the last one written.
    last_sequence: u64,
    /// Where the part begins that no sync has covered.
    unsynced_offset: u64,
}

/// A job that the shell is running.
#[derive(Debug, Clone, Copy)]
struct Flight {
    id: u64,
    /// Last sequence that will be synced, if the job syncs records.
    covers: Option<u64>,
    /// Where the synced part ends.
    synced_offset: u64,
    /// Whether the next segment gets its name.
    switch: bool,
    /// How many of the oldest segments are removed.
    drops: usize,
}

/// What status and metrics show of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Figures {
    /// Number of the oldest segment.
    pub oldest_segment: u32,
    /// Number of the segment being written.
    pub current_segment: u32,
    /// Length of a segment, in bytes.
    pub segment_bytes: u64,
    /// Length of all segments, in bytes, spares not counted.
    pub log_bytes: u64,
    /// Length of the JOB records of all live jobs, in bytes.
    pub live_job_bytes: u64,
    /// Records appended since the start, copies included.
    pub records_written: u64,
    /// Records that compaction copied since the start.
    pub records_migrated: u64,
    /// Bytes handed to the kernel since the start.
    pub bytes_written: u64,
    /// Bytes that wait in memory.
    pub pending_bytes: u64,
    /// Syncs of records that returned since the start.
    pub syncs: u64,
    /// Records covered by them; divided by `syncs`, the records per sync.
    pub records_synced: u64,
    /// Allocated files without a number.
    pub spares: u64,
    /// Bytes promised to STATE and DELETE records of live jobs.
    pub reserved_bytes: u64,
    /// Live jobs without space for a STATE record.
    pub jobs_without_reserve: u64,
    /// Why puts are refused for want of space, if they are.
    pub allocation_error: Option<String>,
}

/// A slot's log, open for appending.
#[derive(Debug)]
pub struct Log<V: Vfs> {
    pub(crate) vfs: V,
    pub(crate) options: LogOptions,
    pub(crate) segments: Segments,
    pub(crate) space: Space<V::File>,
    /// Oldest first; all but the last are finished.
    chunks: VecDeque<Chunk<V::File>>,
    /// Bytes left for records other than CLOSE in the newest segment.
    pub(crate) room: u64,
    pub(crate) next_sequence: u64,
    next_id: u64,
    /// The clock at the last flush.
    now_ns: u64,
    written_sequence: u64,
    synced_sequence: u64,
    /// First sequence of the batch being collected, and of the one before it.
    batch_first: u64,
    previous_batch_first: u64,
    /// When the first record that no sync has been started for was written.
    unsynced_since_ns: Option<u64>,
    switch_due: bool,
    flight: Option<Flight>,
    last_job_id: u64,
    pub(crate) live_job_bytes: u64,
    pub(crate) appended_bytes: u64,
    pending_bytes: usize,
    pub(crate) figures: Figures,
    failed: Option<LogError>,
    closed: bool,
}

impl<V: Vfs> Log<V> {
    /// Recovers the log in `vfs` into `replay` and begins a new segment.
    ///
    /// # Errors
    ///
    /// [`OpenError`] by reaction; nothing of the log is changed then, but for a torn tail that was set aside.
    pub fn open<R: Replay>(vfs: V, options: LogOptions, replay: &mut R) -> Result<(Log<V>, RecoveryReport), OpenError> {
        let mut recovered = recover::recover_for_writing(&vfs, &options, replay)?;
        let jobs = replay.live_jobs();
        let mut space = Space::new(options.segment_bytes.max(SEGMENT_BYTES_MIN), &mut recovered);
        let first = first_segment(&vfs, &mut space, &mut recovered, jobs)?;
        let report = recovered.report.clone();
        let mut log = Log::begin(vfs, options, recovered, space, first)?;
        let fits = log.space.adopt_jobs(&log.vfs, jobs, log.room).map_err(|()| OpenError::Io {
            file: log.vfs.display("."),
            action: "set aside space for deleting the recovered jobs in",
            source: std::io::Error::from(std::io::ErrorKind::StorageFull),
        })?;
        replay.set_state_reserved(fits);
        log.space.keep_spare(&log.vfs);
        Ok((log, report))
    }

    /// Begins the first segment of this start behind what was recovered.
    fn begin(
        vfs: V,
        mut options: LogOptions,
        recovered: Recovered<V::File>,
        space: Space<V::File>,
        first: Spare<V::File>,
    ) -> Result<Log<V>, OpenError> {
        options.segment_bytes = options.segment_bytes.max(SEGMENT_BYTES_MIN);
        let next_sequence = recovered.next_sequence;
        let mut log = Log {
            segments: recovered.segments,
            space,
            chunks: VecDeque::new(),
            room: 0,
            next_sequence,
            next_id: recovered.report.next_id,
            now_ns: options.now_ns,
            written_sequence: next_sequence - 1,
            synced_sequence: next_sequence - 1,
            batch_first: next_sequence,
            previous_batch_first: next_sequence,
            unsynced_since_ns: None,
            switch_due: false,
            flight: None,
            last_job_id: 0,
            live_job_bytes: recovered.live_job_bytes,
            appended_bytes: 0,
            pending_bytes: 0,
            figures: Figures::default(),
            failed: None,
            closed: false,
            vfs,
            options,
        };
        let number = recovered.next_number;
        log.open_chunk(number, first);
        // In mode `never` too: if all else is lost in a power cut, the id counter is not.
        let step = log.begin_step(0, true);
        run_step(&log.vfs, &step)
            .map_err(|error| recover::io_error(&log.vfs, &segment_name(number), "begin", error.source))?;
        log.chunks[0].begin = None;
        Ok(log)
    }

    /// Tells the log the counter of ids, which headers and CLOSE records carry; smaller than known changes nothing.
    pub fn note_next_id(&mut self, next_id: u64) {
        self.next_id = self.next_id.max(next_id);
    }

    /// The end of a turn: writes what the sync mode allows to be written at `now_ns`.
    ///
    /// # Errors
    ///
    /// A write failed, or the log had failed before: see [`LogError`].
    pub fn flush(&mut self, now_ns: u64) -> Result<(), LogError> {
        self.now_ns = now_ns;
        self.space.tick(now_ns);
        while self.write_front(now_ns)? {}
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Writes the first chunk. `true` if the next one may follow at once.
    fn write_front(&mut self, now_ns: u64) -> Result<bool, LogError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let syncing = self.flight.is_some_and(|flight| flight.covers.is_some());
        let switching = self.flight.is_some_and(|flight| flight.switch);
        if switching || self.switch_due || (syncing && self.options.sync == SyncMode::Always) {
            return Ok(false);
        }
        let durable = match self.options.sync {
            SyncMode::Always => self.batch_first,
            SyncMode::Interval(_) => self.previous_batch_first,
            SyncMode::Never => self.chunks[0].first_sequence,
        };
        let front = &mut self.chunks[0];
        if !front.bytes.is_empty() {
            format::seal(&mut front.bytes, durable);
            if let Err(source) = front.file.write_at(front.offset, &front.bytes) {
                let error = LogError::new(LogErrorKind::Write, self.vfs.display(&front.name), front.offset, &source);
                return Err(self.fail(error));
            }
            front.offset += front.bytes.len() as u64;
            self.pending_bytes -= front.bytes.len();
            self.figures.bytes_written += front.bytes.len() as u64;
            self.written_sequence = front.last_sequence;
            front.bytes.clear();
            if front.bytes.capacity() > BUFFER_BYTES_KEPT {
                front.bytes.shrink_to(BUFFER_BYTES_KEPT);
            }
            self.unsynced_since_ns.get_or_insert(now_ns);
        }
        if self.chunks.len() == 1 {
            return Ok(false);
        }
        // The front is finished, its CLOSE record written.
        if self.options.sync == SyncMode::Never {
            let step = self.begin_step(1, false);
            if let Err(error) = run_step(&self.vfs, &step) {
                return Err(self.fail(LogError::new(error.kind, error.file, error.offset, &error.source)));
            }
            self.finish_switch();
            return Ok(true);
        }
        if planted_bug!(SwitchWithoutSync) {
            let step = self.begin_step(1, true);
            if run_step(&self.vfs, &step).is_ok() {
                self.finish_switch();
                return Ok(true);
            }
        }
        self.switch_due = true;
        Ok(false)
    }

    /// Takes up the work that blocks, if there is any and none is under way. Call it behind [`Log::flush`], run the job
    /// on another thread, and hand its result to [`Log::end_sync`].
    pub fn begin_sync(&mut self, now_ns: u64) -> Option<SyncJob<V>> {
        let due = match self.options.sync {
            SyncMode::Always => true,
            SyncMode::Interval(interval) => {
                self.unsynced_since_ns.is_some_and(|since| now_ns >= since.saturating_add(interval))
            }
            SyncMode::Never => false,
        };
        self.start_job(due)
    }

    fn start_job(&mut self, sync_due: bool) -> Option<SyncJob<V>> {
        if self.flight.is_some() || self.failed.is_some() {
            return None;
        }
        let mut steps = Vec::new();
        let mut covers = None;
        let switch = self.switch_due;
        let front = &self.chunks[0];
        let synced_offset = front.offset;
        if switch || (sync_due && self.written_sequence > self.synced_sequence) {
            steps.push(Step::Sync {
                file: front.file.clone(),
                name: front.name.clone(),
                offset: front.unsynced_offset,
            });
            covers = Some(self.written_sequence);
        }
        if switch {
            steps.push(self.begin_step(1, true));
        }
        let safe = match self.options.sync {
            SyncMode::Never => self.written_sequence,
            _ if planted_bug!(DropBeforeCopiesSynced) => u64::MAX,
            // The sync above comes first.
            _ => covers.unwrap_or(self.synced_sequence),
        };
        let drops = self.droppable(safe);
        if drops > 0 && self.options.sync == SyncMode::Never {
            steps.push(Step::SyncNames { name: front.name.clone() });
        }
        steps.extend(
            self.segments.iter().take(drops).map(|segment| Step::Remove { name: segment_name(segment.number) }),
        );
        if steps.is_empty() {
            return None;
        }
        if covers.is_some() {
            self.previous_batch_first = self.batch_first;
            self.batch_first = self.written_sequence + 1;
            self.unsynced_since_ns = None;
        }
        self.switch_due = false;
        self.last_job_id += 1;
        self.flight = Some(Flight { id: self.last_job_id, covers, synced_offset, switch, drops });
        Some(SyncJob { id: self.last_job_id, vfs: self.vfs.clone(), steps })
    }

    /// How many of the oldest segments hold no job's newest JOB record and are not being written.
    fn droppable(&self, safe_sequence: u64) -> usize {
        let finished = self.segments.len() - self.chunks.len();
        self.segments
            .iter()
            .take(finished.min(DROPS_PER_JOB_MAX))
            .take_while(|segment| segment.live == 0 && segment.left_at <= safe_sequence)
            .count()
    }

    /// Takes back the job `id`, which has run with `result`.
    ///
    /// # Errors
    ///
    /// It failed, or the log had failed before: see [`LogError`]. Held replies must be dropped.
    pub fn end_sync(&mut self, id: u64, result: Result<(), SyncError>) -> Result<(), LogError> {
        let flight = self.flight.take().filter(|flight| flight.id == id);
        let flight = flight.expect("a job is handed back once, and one is under way at a time");
        if let Err(error) = result {
            return Err(self.fail(LogError::new(error.kind, error.file, error.offset, &error.source)));
        }
        if let Some(covers) = flight.covers {
            self.figures.syncs += 1;
            self.figures.records_synced += covers - self.synced_sequence;
            self.synced_sequence = covers;
            self.chunks[0].unsynced_offset = flight.synced_offset;
        }
        if flight.switch {
            self.finish_switch();
        }
        for _ in 0..flight.drops {
            self.segments.pop_oldest();
        }
        if flight.drops > 0 {
            self.space.space_freed();
            self.space.keep_spare(&self.vfs);
            while let Some(surplus) = self.space.take_surplus(self.room) {
                // If this fails, the next start finds the file and uses or removes it.
                let _ = self.vfs.remove(&surplus.name);
            }
        }
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// When [`Log::begin_sync`] has something to do next, in ns; `None` while a job is under way or nothing waits.
    pub fn next_deadline(&self) -> Option<u64> {
        match self.options.sync {
            SyncMode::Interval(interval) if self.flight.is_none() => {
                self.unsynced_since_ns.map(|since| since.saturating_add(interval))
            }
            _ => None,
        }
    }

    /// Number of the batch that covers every record so far: a reply made at this moment may leave once
    /// [`Log::durable_batch`] has reached it. In all modes: in `interval` and `never` too, records may have to wait in
    /// memory while a segment is switched.
    pub fn pending_batch(&self) -> u64 {
        self.next_sequence - 1
    }

    /// Number of the last batch that is as safe as a reply promises: synced in mode `always`, written in the others.
    pub fn durable_batch(&self) -> u64 {
        match self.options.sync {
            SyncMode::Always if !planted_bug!(ReplyBeforeSync) => self.synced_sequence,
            _ => self.written_sequence,
        }
    }

    /// Whether so much waits in memory that clients must not be read until a sync has returned.
    pub fn backpressure(&self) -> bool {
        self.pending_bytes > PENDING_BYTES_MAX
    }

    /// Why the log has stopped, if it has.
    pub fn failure(&self) -> Option<&LogError> {
        self.failed.as_ref()
    }

    /// What status and metrics show.
    pub fn figures(&self) -> Figures {
        Figures {
            oldest_segment: self.segments.oldest().map_or(0, |segment| segment.number),
            current_segment: self.segments.newest().map_or(0, |segment| segment.number),
            segment_bytes: self.options.segment_bytes,
            log_bytes: self.segments.bytes(),
            live_job_bytes: self.live_job_bytes,
            pending_bytes: self.pending_bytes as u64,
            spares: self.space.spare_count() as u64,
            reserved_bytes: self.space.reserved(),
            jobs_without_reserve: self.space.owed(),
            allocation_error: self.space.last_error().map(str::to_owned),
            ..self.figures.clone()
        }
    }

    /// The orderly stop: writes everything and a CLOSE record and, but for mode `never`, syncs. Blocks on the disk. No
    /// job may be under way, and nothing may be appended afterwards.
    ///
    /// # Errors
    ///
    /// A write or sync failed, or the log had failed before.
    pub fn close(&mut self, now_ns: u64) -> Result<(), LogError> {
        assert!(self.flight.is_none(), "the shell waits for the job under way before it closes the log");
        if !self.closed {
            self.closed = true;
            self.push_close();
            self.room = 0;
        }
        loop {
            self.flush(now_ns)?;
            let sync_due = self.options.sync != SyncMode::Never;
            let Some(job) = self.start_job(sync_due) else { break };
            let id = job.id();
            let result = job.run();
            self.end_sync(id, result)?;
        }
        assert!(self.pending_bytes == 0, "an orderly stop leaves nothing in memory");
        Ok(())
    }

    fn fail(&mut self, error: LogError) -> LogError {
        self.failed.get_or_insert(error).clone()
    }

    /// Finishes the newest segment and opens a chunk for the next, which will hold a record of `bytes` bytes.
    fn roll(&mut self, bytes: u64) {
        self.push_close();
        let spare = match self.space.take(&self.vfs, bytes) {
            Ok(spare) => spare,
            Err(source) => {
                // Cannot happen while the accounting is right. The record is lost, so the log stops and no reply leaves.
                let number = self.segments.newest().map_or(0, |segment| segment.number) + 1;
                let file = self.vfs.display(&segment_name(number));
                self.fail(LogError::new(LogErrorKind::Space, file, 0, &source));
                self.room = 0;
                return;
            }
        };
        let number = self.segments.newest().map_or(0, |segment| segment.number) + 1;
        self.open_chunk(number, spare);
    }

    fn push_close(&mut self) {
        let sequence = self.take_sequence();
        let chunk = self.chunks.back_mut().expect("a segment is being written");
        format::push_close(&mut chunk.bytes, sequence, self.options.generation, self.next_id);
        chunk.last_sequence = sequence;
        self.pending_bytes += CLOSE_RECORD_BYTES as usize;
    }

    fn open_chunk(&mut self, number: u32, spare: Spare<V::File>) {
        let header = SegmentHeader {
            slot: self.options.slot,
            sync_mode: self.options.sync.byte(),
            number: u64::from(number),
            fingerprint: self.options.fingerprint,
            first_sequence: self.next_sequence,
            next_id: self.next_id,
            created_ms: self.options.wall_ms + self.now_ns.saturating_sub(self.options.now_ns) / NS_PER_MS,
            boot_id: self.options.boot_id,
            generation: self.options.generation,
        };
        self.room = fresh_room(spare.bytes);
        self.segments.push(Segment::new(number, spare.bytes));
        let offset = SEGMENT_HEADER_BYTES as u64;
        let (file, spare) = spare.into_parts();
        self.chunks.push_back(Chunk {
            file,
            name: segment_name(number),
            begin: Some(Begin { spare, header: Box::new(header.encode()) }),
            offset,
            bytes: Vec::new(),
            first_sequence: self.next_sequence,
            last_sequence: self.next_sequence - 1,
            unsynced_offset: offset,
        });
    }

    /// The step that gives the segment of chunk `index` its header and name.
    fn begin_step(&self, index: usize, durably: bool) -> Step<V::File> {
        let chunk = &self.chunks[index];
        let begin = chunk.begin.as_ref().expect("the segment has no name yet");
        Step::Begin {
            file: chunk.file.clone(),
            spare: begin.spare.clone(),
            name: chunk.name.clone(),
            header: begin.header.clone(),
            durably,
        }
    }

    /// The first chunk is done with and the second one's segment has its name.
    fn finish_switch(&mut self) {
        let finished = self.chunks.pop_front().expect("a switch has two sides");
        let front = &mut self.chunks[0];
        front.begin = None;
        if front.bytes.capacity() == 0 {
            front.bytes = finished.bytes;
        }
    }

    fn take_sequence(&mut self) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        sequence
    }

    /// The buffer for a record of `bytes` bytes and its sequence. `None` if the log has failed.
    #[inline]
    fn make_room(&mut self, bytes: u64) -> Option<(&mut Vec<u8>, u64)> {
        if bytes > self.room {
            if self.failed.is_some() || self.closed {
                return None;
            }
            self.roll(bytes);
            if self.failed.is_some() {
                return None;
            }
        }
        self.room -= bytes;
        self.pending_bytes += usize::try_from(bytes).expect("a record fits memory");
        self.figures.records_written += 1;
        let sequence = self.take_sequence();
        let chunk = self.chunks.back_mut().expect("a segment is being written");
        chunk.last_sequence = sequence;
        Some((&mut chunk.bytes, sequence))
    }

    /// Appends a JOB record of a new job or a copy; returns the number of its segment.
    pub(crate) fn push_job(&mut self, record: &JobRecord<'_>, bytes: u64) -> u32 {
        let generation = self.options.generation;
        if let Some((buffer, sequence)) = self.make_room(bytes) {
            format::push_job(buffer, sequence, generation, record);
        }
        let newest = self.segments.newest_mut().expect("a segment is being written");
        newest.live += 1;
        newest.ids.push(record.id);
        newest.number
    }
}

/// Space for the first segment of a start, and on a full disk whatever can be had for it and the DELETE records of
/// `jobs` live jobs.
fn first_segment<V: Vfs>(
    vfs: &V,
    space: &mut Space<V::File>,
    recovered: &mut Recovered<V::File>,
    jobs: u64,
) -> Result<Spare<V::File>, OpenError> {
    if !space.allocate_for_deletes(vfs, jobs) {
        cut_unused_ends(vfs, recovered)?;
        if !space.allocate_for_deletes(vfs, jobs) {
            remove_empty_last(vfs, recovered)?;
            space.allocate_for_deletes(vfs, jobs);
        }
    }
    if space.spare_count() > 0 {
        return space.take(vfs, 0).map_err(|source| first_segment_error(vfs, source));
    }
    // A shorter segment than asked for beats no service.
    let mut bytes = space.segment_bytes() / 2;
    loop {
        match space.allocate(vfs, bytes) {
            Ok(spare) => return Ok(spare),
            Err(source) if bytes / 2 < LAST_RESORT_BYTES_MIN => return Err(first_segment_error(vfs, source)),
            Err(_) => bytes /= 2,
        }
    }
}

fn first_segment_error<V: Vfs>(vfs: &V, source: std::io::Error) -> OpenError {
    recover::io_error(vfs, ".", "set aside space for the first segment of this start in", source)
}

impl<V: Vfs> Journal for Log<V> {
    fn admit_job(&mut self, tube_bytes: usize, body_bytes: usize) -> bool {
        let bytes = job_record_bytes(tube_bytes, body_bytes);
        self.failed.is_none() && !self.closed && self.space.admit_job(&self.vfs, bytes, self.room)
    }

    fn append_job(&mut self, record: &JobRecord<'_>) -> Placement {
        let bytes = job_record_bytes(record.tube.len(), record.body.len());
        self.note_next_id(record.id / self.options.ids_per_count + 1);
        self.space.job_added();
        self.live_job_bytes += bytes;
        self.appended_bytes += bytes;
        let segment = self.push_job(record, bytes);
        Placement { segment, state_reserved: true }
    }

    fn admit_state(&mut self, placement: Placement) -> bool {
        if self.failed.is_some() || self.closed {
            return false;
        }
        placement.state_reserved || self.space.admit_unreserved_state(&self.vfs, self.room)
    }

    fn append_state(&mut self, placement: Placement, id: u64, fields: &StateFields) -> Placement {
        let generation = self.options.generation;
        self.space.use_state(placement.state_reserved);
        self.appended_bytes += STATE_RECORD_BYTES;
        if let Some((buffer, sequence)) = self.make_room(STATE_RECORD_BYTES) {
            format::push_state(buffer, sequence, generation, id, fields);
        }
        let state_reserved = self.space.renew_state(&self.vfs, self.room);
        Placement { state_reserved, ..placement }
    }

    fn append_delete(&mut self, placement: Placement, id: u64, tube_bytes: usize, body_bytes: usize) {
        let generation = self.options.generation;
        self.space.use_delete(placement.state_reserved);
        self.appended_bytes += DELETE_RECORD_BYTES;
        self.live_job_bytes -= job_record_bytes(tube_bytes, body_bytes);
        if planted_bug!(DeleteForgotten) && id.is_multiple_of(16) {
            return;
        }
        if let Some((buffer, sequence)) = self.make_room(DELETE_RECORD_BYTES) {
            format::push_delete(buffer, sequence, generation, id);
        }
        let left_at = self.next_sequence - 1;
        if let Some(segment) = self.segments.get_mut(placement.segment) {
            segment.live -= 1;
            if !planted_bug!(DropBeforeDeleteWritten) {
                segment.left_at = left_at;
            }
        }
    }
}

const _: () = assert!(fresh_room(SEGMENT_BYTES_MIN) > STATE_RECORD_BYTES + DELETE_RECORD_BYTES);
