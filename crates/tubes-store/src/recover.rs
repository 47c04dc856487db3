//! Recovery: what a log says about its jobs, and whether anything that was synced is missing.
//!
//! Owns: the order of segments, the difference between a torn tail and damage, and the id counter.
//! Never: changes a file before every segment was found in order; and then only sets a torn tail aside.
//!
//! Where no record with the missing sequence `s` follows, later records decide: one that says `durable` > `s`, or a
//! later segment that begins behind `s`, proves that the record `s` had been synced. Then it is damage. Otherwise what
//! lies behind is the torn tail of the last batches, whose pages may reach the disk in any order.

use std::io;

use tubes_core::journal::{Replay, Superseded};

use crate::error::OpenError;
use crate::format::{FORMAT, HeaderFault, Record, SEGMENT_HEADER_BYTES, SegmentHeader, job_record_bytes};
use crate::options::{LogOptions, SEGMENT_BYTES_MIN, SYNC_ALWAYS, SYNC_NEVER, SyncMode};
use crate::reader::{Behind, Reach, look_behind, walk};
use crate::segment::{SPARE_PREFIX, Segment, Segments, segment_name, segment_number};
use crate::space::Spare;
use crate::vfs::{Access, Vfs, VfsFile, read_whole};

/// Ids passed over where a power cut may have lost some that clients saw.
pub const SKIPPED_IDS: u64 = 1_000_000;
/// Copies of torn tails that are kept; older ones are removed when another is made.
const TORN_COPIES_MAX: usize = 16;
/// The boot id where the system has none.
const UNKNOWN_BOOT: [u8; 16] = [0; 16];
const TORN_SUFFIX: &str = ".torn";

/// A tail that was written but not synced when the power went, and of which parts are missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    /// Path of the segment.
    pub file: String,
    /// Where the tail begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub bytes: u64,
    /// Valid records in it, which are lost with it.
    pub records: u64,
    /// Where a copy of it lies; `None` if there was no space for one, or nothing was to be changed.
    pub copy: Option<String>,
}

impl std::fmt::Display for TornTail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TornTail { file, offset, bytes, records, copy } = self;
        write!(f, "{bytes} bytes from offset {offset} of {file}, with {records} valid records; ")?;
        match copy {
            Some(copy) => write!(f, "a copy lies in {copy}"),
            None => write!(f, "there is no copy"),
        }
    }
}

/// What a recovery found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecoveryReport {
    /// The counter of ids to go on with.
    pub next_id: u64,
    /// The largest id of any record, 0 if there is none.
    pub highest_id: u64,
    /// Live jobs.
    pub jobs: u64,
    /// Segments read.
    pub segments: u64,
    /// Valid records read.
    pub records: u64,
    /// Bytes read.
    pub bytes: u64,
    /// STATE and DELETE records of jobs whose JOB record compaction had dropped.
    pub skipped_records: u64,
    /// The torn tail that was set aside, if there was one.
    pub torn: Option<TornTail>,
    /// Ids passed over because a power cut may have lost some.
    pub skipped_ids: u64,
    /// Whether the last segment ends in CLOSE: the process before ended in an orderly way.
    pub orderly: bool,
    /// A segment was written in mode `never`: damage and loss cannot be told apart in it.
    pub never_synced: bool,
}

/// All that the writer takes over.
#[derive(Debug)]
pub(crate) struct Recovered<F> {
    pub(crate) segments: Segments,
    pub(crate) spares: Vec<Spare<F>>,
    pub(crate) next_spare: u64,
    pub(crate) next_sequence: u64,
    pub(crate) next_number: u32,
    pub(crate) live_job_bytes: u64,
    pub(crate) report: RecoveryReport,
}

/// Which log the segments must belong to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) slot: u16,
    pub(crate) fingerprint: u64,
}

/// Replays the log in `vfs` into `replay` and sets a torn tail aside, without beginning a segment. A second run finds
/// the same and changes nothing.
///
/// # Errors
///
/// As [`Log::open`](crate::Log::open).
pub fn recover<V: Vfs, R: Replay>(vfs: &V, options: &LogOptions, replay: &mut R) -> Result<RecoveryReport, OpenError> {
    recover_for_writing(vfs, options, replay).map(|recovered| recovered.report)
}

pub(crate) fn recover_for_writing<V: Vfs, R: Replay>(
    vfs: &V,
    options: &LogOptions,
    replay: &mut R,
) -> Result<Recovered<V::File>, OpenError> {
    let names = vfs.list().map_err(|source| io_error(vfs, ".", "list", source))?;
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| segment_number(name)).collect();
    numbers.sort_unstable();
    let mut cached_id = 0;
    if let Some(&last) = numbers.last()
        && !planted_bug!(StartWithoutSync)
    {
        // A process killed while it gave or took away a name may have left that to chance, and another name after it
        // could then make a gap.
        vfs.sync_dir().map_err(|source| io_error(vfs, ".", "sync", source))?;
        cached_id = settle_last(vfs, last)?;
    }
    let identity = Identity { slot: options.slot, fingerprint: options.fingerprint };
    let mut scan = scan(vfs, &numbers, identity, replay)?;
    scan.highest_id = scan.highest_id.max(cached_id);
    if let Some(header) = scan.newest_generation_at_least(options.generation) {
        return Err(OpenError::Damaged {
            file: vfs.display(&segment_name(header.0)),
            offset: 72,
            what: format!(
                "it is of generation {}, but this start is generation {}: the file `generation` is older than the log",
                header.1, options.generation
            ),
        });
    }
    if let Some(torn) = &mut scan.torn {
        set_aside(vfs, &names, torn)?;
        let newest = scan.segments.len() - 1;
        scan.segments.resize(newest, torn.offset);
    }
    if options.sync != SyncMode::Never {
        // Records of this start will say that everything before them is synced.
        for number in &scan.unsynced {
            let name = segment_name(*number);
            let file = vfs.open(&name, Access::ReadWrite).map_err(|source| io_error(vfs, &name, "open", source))?;
            file.sync_data().map_err(|source| io_error(vfs, &name, "sync", source))?;
        }
    }
    let (spares, next_spare) = adopt_spares(vfs, &names, options.segment_bytes.max(SEGMENT_BYTES_MIN))?;
    let next_number = numbers.last().map_or(Some(1), |last| last.checked_add(1));
    let next_number = next_number.ok_or_else(|| io_error(vfs, ".", "number a segment in", numbers_exhausted()))?;
    let report = scan.report(vfs, options.ids_per_count, Some(options.boot_id), replay.live_jobs());
    Ok(Recovered {
        segments: scan.segments,
        spares,
        next_spare,
        next_sequence: scan.next_sequence,
        next_number,
        live_job_bytes: scan.live_job_bytes,
        report,
    })
}

/// The highest generation that any segment in `vfs` names, 0 without segments.
pub(crate) fn highest_generation<V: Vfs>(vfs: &V) -> io::Result<u32> {
    let mut highest = 0;
    for name in vfs.list()? {
        if segment_number(&name).is_none() {
            continue;
        }
        let mut start = [0; SEGMENT_HEADER_BYTES];
        let read = vfs.open(&name, Access::Read)?.read_at(0, &mut start)?;
        // One that cannot be read is refused later, when the log is opened.
        if let Ok(header) = SegmentHeader::decode(&start[..read]) {
            highest = highest.max(header.generation);
        }
    }
    Ok(highest)
}

fn numbers_exhausted() -> io::Error {
    io::Error::other("all segment numbers are used up")
}

pub(crate) fn io_error<V: Vfs>(vfs: &V, name: &str, action: &'static str, source: io::Error) -> OpenError {
    OpenError::Io { file: vfs.display(name), action, source }
}

/// Makes the disk and what will be read of the last segment the same: what the page cache alone holds goes to the disk,
/// and if a sync failed before, what the disk really has is read. Also if it ends in CLOSE: a process killed during a
/// switch leaves that record written, not synced.
///
/// Returns the largest id that the cache knew: after a failed sync the disk may lack records whose ids clients have seen
/// in mode `interval`, and the machine has not been restarted, so nothing else tells that they were given.
fn settle_last<V: Vfs>(vfs: &V, number: u32) -> Result<u64, OpenError> {
    let name = segment_name(number);
    let file = vfs.open(&name, Access::ReadWrite).map_err(|source| io_error(vfs, &name, "open", source))?;
    let mut cached = Vec::new();
    read_whole(&file, &mut cached).map_err(|source| io_error(vfs, &name, "read", source))?;
    let cached_id = largest_id(&cached);
    drop(cached);
    file.sync_data().map_err(|source| io_error(vfs, &name, "sync", source))?;
    file.drop_cache().map_err(|source| io_error(vfs, &name, "drop the cached pages of", source))?;
    Ok(cached_id)
}

/// The largest id of the jobs in one segment, 0 if there is none; whether the segment is what it should be is for
/// [`scan`] to judge.
fn largest_id(bytes: &[u8]) -> u64 {
    let mut largest = 0;
    if let Ok(header) = SegmentHeader::decode(bytes) {
        walk(bytes, header.generation, header.first_sequence, |_, frame| {
            if let Some(Record::Job(job)) = frame.record() {
                largest = largest.max(job.id);
            }
            true
        });
    }
    largest
}

/// What reading all segments gave.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) segments: Segments,
    pub(crate) next_sequence: u64,
    pub(crate) live_job_bytes: u64,
    pub(crate) torn: Option<Torn>,
    records: u64,
    bytes: u64,
    skipped_records: u64,
    next_id: u64,
    highest_id: u64,
    orderly: bool,
    /// The segment read last, and where its records end, if that is not with a CLOSE.
    unclosed: Option<(u32, u64)>,
    last_header: Option<SegmentHeader>,
    /// Segments that nobody has synced.
    unsynced: Vec<u32>,
    generations: Vec<(u32, u32)>,
}

/// A torn tail before it is set aside.
#[derive(Debug)]
pub(crate) struct Torn {
    pub(crate) number: u32,
    pub(crate) offset: u64,
    /// The tail itself, without the zeros behind it.
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: u64,
    copy: Option<String>,
}

impl Scan {
    fn newest_generation_at_least(&self, generation: u32) -> Option<(u32, u32)> {
        self.generations.iter().copied().find(|(_, found)| *found >= generation)
    }

    /// `boot_id` is that of the present run of the machine, if ids may have to be passed over.
    pub(crate) fn report<V: Vfs>(
        &self,
        vfs: &V,
        ids_per_count: u64,
        boot_id: Option<[u8; 16]>,
        jobs: u64,
    ) -> RecoveryReport {
        let from_records = if self.highest_id == 0 { 1 } else { self.highest_id / ids_per_count + 1 };
        let logged = if planted_bug!(NextIdForgotten) { 1 } else { self.next_id };
        let power_cut = self.last_header.is_some_and(|header| {
            // A CLOSE says that nothing followed, but in mode `never` a segment behind it may have lost its name.
            let may_lack_records = match header.sync_mode {
                SYNC_ALWAYS => false,
                SYNC_NEVER => true,
                _ => !self.orderly,
            };
            may_lack_records && boot_id.is_some_and(|present| present != header.boot_id || present == UNKNOWN_BOOT)
        });
        let skipped_ids = if power_cut { SKIPPED_IDS } else { 0 };
        RecoveryReport {
            next_id: from_records.max(logged).saturating_add(skipped_ids),
            highest_id: self.highest_id,
            jobs,
            segments: self.segments.len() as u64,
            records: self.records,
            bytes: self.bytes,
            skipped_records: self.skipped_records,
            torn: self.torn.as_ref().map(|torn| TornTail {
                file: vfs.display(&segment_name(torn.number)),
                offset: torn.offset,
                bytes: torn.bytes.len() as u64,
                records: torn.records,
                copy: torn.copy.clone(),
            }),
            skipped_ids,
            orderly: self.orderly,
            never_synced: !self.unsynced.is_empty(),
        }
    }
}

/// Reads the segments `numbers`, which rise, and replays them. Changes nothing.
pub(crate) fn scan<V: Vfs, R: Replay>(
    vfs: &V,
    numbers: &[u32],
    identity: Identity,
    replay: &mut R,
) -> Result<Scan, OpenError> {
    let mut scan = Scan {
        segments: Segments::default(),
        next_sequence: 1,
        live_job_bytes: 0,
        torn: None,
        records: 0,
        bytes: 0,
        skipped_records: 0,
        next_id: 1,
        highest_id: 0,
        orderly: numbers.is_empty(),
        unclosed: None,
        last_header: None,
        unsynced: Vec::new(),
        generations: Vec::new(),
    };
    if let Some(pair) = numbers.windows(2).find(|pair| pair[0] + 1 != pair[1]) {
        return Err(OpenError::Damaged {
            file: vfs.display(&segment_name(pair[0] + 1)),
            offset: 0,
            what: format!("it is missing, although {} is there", segment_name(pair[1])),
        });
    }
    let mut buffer = Vec::new();
    for (index, &number) in numbers.iter().enumerate() {
        let name = segment_name(number);
        let file = vfs.open(&name, Access::Read).map_err(|source| io_error(vfs, &name, "open", source))?;
        read_whole(&file, &mut buffer).map_err(|source| io_error(vfs, &name, "read", source))?;
        drop(file);
        let last = index + 1 == numbers.len();
        scan.segment(vfs, number, &buffer, last, identity, replay)?;
    }
    Ok(scan)
}

impl Scan {
    fn segment<V: Vfs, R: Replay>(
        &mut self,
        vfs: &V,
        number: u32,
        bytes: &[u8],
        last: bool,
        identity: Identity,
        replay: &mut R,
    ) -> Result<(), OpenError> {
        let file = || vfs.display(&segment_name(number));
        let damaged = |offset: usize, what: String| OpenError::Damaged { file: file(), offset: offset as u64, what };
        let header = check_header(SegmentHeader::decode(bytes), number, identity, &file)?;
        self.segments.push(Segment::new(number, bytes.len() as u64));
        if self.last_header.is_some() && header.first_sequence != self.next_sequence && !planted_bug!(GapUnnoticed) {
            let missing = self.next_sequence;
            let first = header.first_sequence;
            return Err(match self.unclosed {
                Some((before, end)) => OpenError::Damaged {
                    file: vfs.display(&segment_name(before)),
                    offset: end,
                    what: format!(
                        "record {missing} is missing, but {} begins with record {first}, so it had been synced",
                        segment_name(number)
                    ),
                },
                None => damaged(32, format!("it begins with record {first}, but record {missing} is the next one")),
            });
        }
        self.generations.push((number, header.generation));
        self.next_id = self.next_id.max(header.next_id);
        self.bytes += bytes.len() as u64;
        if header.sync_mode == SYNC_NEVER {
            self.unsynced.push(number);
        }
        self.last_header = Some(header);
        self.orderly = false;
        let mut impossible = None;
        let reach = walk(bytes, header.generation, header.first_sequence, |at, frame| {
            let Some(record) = frame.record() else {
                impossible = Some(at);
                return false;
            };
            self.replay_record(&record, number, replay);
            !self.orderly
        });
        if let Some(at) = impossible {
            return Err(damaged(at, "a record with a right checksum has contents that no record can have".to_owned()));
        }
        if let Some(segment) = self.segments.newest_mut() {
            segment.end = reach.end as u64;
        }
        self.next_sequence = reach.next_sequence;
        self.unclosed = (!self.orderly).then_some((number, reach.end as u64));
        if self.orderly {
            return Ok(());
        }
        let behind = look_behind(bytes, reach, header.generation);
        if let Some((at, sequence, durable)) = behind.proof
            && !planted_bug!(DamageTakenForTorn)
        {
            return Err(damaged(
                reach.end,
                format!(
                    "record {} is missing, but record {sequence} at offset {at} says that all before {durable} had been \
                     synced",
                    reach.next_sequence
                ),
            ));
        }
        // With a later segment, which begins with the missing sequence, this tail was set aside long ago.
        if last && behind.written_end > 0 {
            self.torn = Some(torn_tail(number, bytes, reach, behind));
        }
        Ok(())
    }

    #[inline]
    fn replay_record<R: Replay>(&mut self, record: &Record<'_>, number: u32, replay: &mut R) {
        self.records += 1;
        match record {
            Record::Job(job) => {
                self.highest_id = self.highest_id.max(job.id);
                let superseded = replay.replay_job(job, number);
                self.live_job_bytes += job_record_bytes(job.tube.len(), job.body.len());
                if let Some(segment) = self.segments.newest_mut() {
                    segment.live += 1;
                    segment.ids.push(job.id);
                }
                if let Some(old) = superseded {
                    self.forget(&old);
                }
            }
            Record::State { id, fields } => {
                self.highest_id = self.highest_id.max(*id);
                if !replay.replay_state(*id, fields) {
                    self.skipped_records += 1;
                }
            }
            Record::Delete { id } => {
                self.highest_id = self.highest_id.max(*id);
                match replay.replay_delete(*id) {
                    Some(old) => self.forget(&old),
                    None => self.skipped_records += 1,
                }
            }
            Record::Close { next_id } => {
                self.next_id = self.next_id.max(*next_id);
                self.orderly = true;
            }
        }
    }

    fn forget(&mut self, old: &Superseded) {
        self.live_job_bytes -= job_record_bytes(old.tube_bytes, old.body_bytes);
        if let Some(segment) = self.segments.get_mut(old.segment) {
            segment.live -= 1;
        }
    }
}

fn check_header(
    decoded: Result<SegmentHeader, HeaderFault>,
    number: u32,
    identity: Identity,
    file: &dyn Fn() -> String,
) -> Result<SegmentHeader, OpenError> {
    let damaged = |offset: u64, what: &str| OpenError::Damaged { file: file(), offset, what: what.to_owned() };
    let header = match decoded {
        Ok(header) => header,
        Err(HeaderFault::Short) => return Err(damaged(0, "it ends within its header")),
        Err(HeaderFault::Magic) => return Err(damaged(0, "it does not begin like a segment")),
        Err(HeaderFault::Checksum) => return Err(damaged(92, "the checksum of its header is wrong")),
        Err(HeaderFault::Format(format)) => {
            let what = format!("it has format {format}, and this program reads format {FORMAT}");
            return Err(OpenError::Incompatible { file: file(), what });
        }
    };
    if header.number != u64::from(number) {
        return Err(damaged(16, &format!("its header calls it segment {}", header.number)));
    }
    let what = if header.slot != identity.slot {
        format!("it was written for slot {}, this is slot {}", header.slot, identity.slot)
    } else if header.fingerprint != identity.fingerprint {
        format!(
            "it was written under a manifest with fingerprint {:016x}, this one has {:016x}",
            header.fingerprint, identity.fingerprint
        )
    } else {
        return Ok(header);
    };
    Err(OpenError::Incompatible { file: file(), what })
}

fn torn_tail(number: u32, bytes: &[u8], reach: Reach, behind: Behind) -> Torn {
    Torn {
        number,
        offset: reach.end as u64,
        bytes: bytes[reach.end..behind.written_end].to_vec(),
        records: behind.records,
        copy: None,
    }
}

/// Copies a torn tail to a file beside its segment and cuts the segment before it.
fn set_aside<V: Vfs>(vfs: &V, names: &[String], torn: &mut Torn) -> Result<(), OpenError> {
    let name = segment_name(torn.number);
    let copy = format!("{name}{TORN_SUFFIX}");
    let mut copies: Vec<&String> = names.iter().filter(|name| name.ends_with(TORN_SUFFIX) && **name != copy).collect();
    copies.sort_unstable();
    for old in copies.iter().take((copies.len() + 1).saturating_sub(TORN_COPIES_MAX)) {
        vfs.remove(old).map_err(|source| io_error(vfs, old, "remove", source))?;
    }
    if names.contains(&copy) {
        // A recovery was killed between copying and cutting.
        vfs.remove(&copy).map_err(|source| io_error(vfs, &copy, "remove", source))?;
    }
    let written = vfs.create_new(&copy).and_then(|file| {
        file.write_at(0, &torn.bytes)?;
        file.sync_data()?;
        vfs.sync_dir()
    });
    match written {
        Ok(()) => torn.copy = Some(vfs.display(&copy)),
        // A full disk must not keep the server from starting: the tail is lost by the rules, with or without a copy.
        Err(error) if error.kind() == io::ErrorKind::StorageFull || error.kind() == io::ErrorKind::QuotaExceeded => {
            let _ = vfs.remove(&copy);
        }
        Err(source) => return Err(io_error(vfs, &copy, "write", source)),
    }
    let file = vfs.open(&name, Access::ReadWrite).map_err(|source| io_error(vfs, &name, "open", source))?;
    file.truncate(torn.offset).map_err(|source| io_error(vfs, &name, "cut", source))?;
    file.sync_data().map_err(|source| io_error(vfs, &name, "sync", source))
}

/// Spares of the start before, and the number for the name of the next one.
type AdoptedSpares<F> = (Vec<Spare<F>>, u64);

/// Takes over the spares of the start before that are still clean, and removes the others.
fn adopt_spares<V: Vfs>(vfs: &V, names: &[String], segment_bytes: u64) -> Result<AdoptedSpares<V::File>, OpenError> {
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| name.strip_prefix(SPARE_PREFIX)?.parse().ok()).collect();
    numbers.sort_unstable();
    let mut spares = Vec::new();
    for number in &numbers {
        let name = format!("{SPARE_PREFIX}{number}");
        let file = vfs.open(&name, Access::ReadWrite).map_err(|source| io_error(vfs, &name, "open", source))?;
        if is_clean(&file, segment_bytes).map_err(|source| io_error(vfs, &name, "read", source))? {
            spares.push(Spare::new(name, file, segment_bytes));
        } else {
            drop(file);
            vfs.remove(&name).map_err(|source| io_error(vfs, &name, "remove", source))?;
        }
    }
    Ok((spares, numbers.last().map_or(1, |last| last.saturating_add(1))))
}

/// Whether a spare has the right length and nothing behind the place of the header, which a killed process may have
/// written already. Its beginning tells: records are written only into a segment that has its number.
fn is_clean<F: VfsFile>(file: &F, segment_bytes: u64) -> io::Result<bool> {
    if file.len()? != segment_bytes {
        return Ok(false);
    }
    let mut start = vec![0; 4096];
    let read = file.read_at(0, &mut start)?;
    Ok(start[..read].iter().skip(SEGMENT_HEADER_BYTES).all(|byte| *byte == 0))
}
