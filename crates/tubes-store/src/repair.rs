//! `tenure tubes repair`: keeps the directory as it was beside, and salvages every valid record into a fresh log.
//!
//! Owns: the search for records in damaged segments, and the list of what was dropped.
//! Never: changes the old segments. They stay, under another name, until the operator removes them.
//!
//! ```text
//! slot-K.repairing        the fresh log, until it is whole
//! slot-K.before-repair-N  the old directory, once it is
//! ```
//!
//! Between the two renamings there is no `slot-K`. A start then refuses to make an empty one because `slot-K.repairing`
//! is there, and the next repair goes on from that point.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use crate::check::{check_slot, sorted_numbers};
use crate::datadir::{self, DataDir, DirError};
use crate::error::OpenError;
use crate::format::{Record, SEGMENT_HEADER_BYTES, SegmentHeader, read_frame, read_frame_of_any_generation};
use crate::options::{LogOptions, SyncMode};
use crate::recover::{RecoveryReport, SKIPPED_IDS, highest_generation};
use crate::rewrite::Rewriter;
use crate::segment::segment_name;
use crate::vfs::{Access, DiskVfs, Vfs, read_whole};

/// Length of segments that a repair writes, in bytes; that of a server without options.
const SEGMENT_BYTES: u64 = 10 * 1024 * 1024;

/// What a repair did with one slot.
#[derive(Debug)]
pub struct SlotRepair {
    /// Which slot.
    pub slot: u16,
    /// Where the directory as it was lies; `None` if its log was in order and nothing was changed.
    pub copy: Option<String>,
    /// Why the log would not have opened.
    pub damage: Option<OpenError>,
    /// What was salvaged and what was not.
    pub salvage: Salvage,
}

/// What was found in the segments of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Salvage {
    /// Records taken over.
    pub records: u64,
    /// Jobs that live after the last of them.
    pub jobs: u64,
    /// The counter of ids to go on with.
    pub next_id: u64,
    /// What was not taken over, in the order of the files.
    pub dropped: Vec<Dropped>,
}

/// Bytes or a record that a repair leaves behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Path of the segment.
    pub file: String,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub bytes: u64,
    /// Why.
    pub what: String,
}

/// Repairs all logs of the data directory `dir` that would be refused. No server may be using it.
///
/// # Errors
///
/// [`DirError`]: no data directory, in use, or not writable. Slots repaired before stay so.
pub fn repair_directory(dir: &Path, options: &LogOptions) -> Result<Vec<SlotRepair>, DirError> {
    let data = datadir::open_existing(dir)?;
    (0..data.manifest().slots).map(|slot| repair_slot(&data, slot, options)).collect()
}

fn repair_slot(data: &DataDir, slot: u16, options: &LogOptions) -> Result<SlotRepair, DirError> {
    let logs = data.logs()?;
    let name = format!("slot-{slot}");
    let fresh_name = datadir::repairing_name(slot);
    let names = logs.list().map_err(datadir::io_error(&logs, ".", "list"))?;
    if names.contains(&fresh_name) {
        if names.contains(&name) {
            // A repair was killed before its log was whole.
            remove_directory(&logs, &fresh_name).map_err(datadir::io_error(&logs, &fresh_name, "remove"))?;
        } else {
            finish(&logs, &fresh_name, &name).map_err(datadir::io_error(&logs, &fresh_name, "rename"))?;
        }
    }
    let (old, _lock) = data.lock_slot(slot)?;
    let check = check_slot(&old, slot, data.fingerprint());
    let damage = match check.verdict {
        Err(damage @ OpenError::Damaged { .. }) => damage,
        // Another topology or a newer format is no damage, and a disk that cannot be read is not repaired by writing.
        Err(OpenError::Incompatible { file, what }) => return Err(DirError::Incompatible { file, what }),
        Err(OpenError::Io { file, action, source }) => return Err(DirError::Io { file, action, source }),
        Ok(report) => {
            let RecoveryReport { records, jobs, next_id, .. } = report;
            let salvage = Salvage { records, jobs, next_id, dropped: Vec::new() };
            return Ok(SlotRepair { slot, copy: None, damage: None, salvage });
        }
    };
    let fresh = logs.make_directory(&fresh_name).map_err(datadir::io_error(&logs, &fresh_name, "make"))?;
    let generation = highest_generation(&old).map_err(datadir::io_error(&old, ".", "read"))?;
    let generation = datadir::stored_generation(&old)?.unwrap_or(0).max(generation).saturating_add(1);
    let options = LogOptions {
        slot,
        generation,
        fingerprint: data.fingerprint(),
        segment_bytes: SEGMENT_BYTES,
        sync: SyncMode::Always,
        ..options.clone()
    };
    let salvage = salvage(&old, &fresh, &options).map_err(datadir::io_error(&fresh, ".", "write"))?;
    datadir::write_generation(&fresh, generation).map_err(datadir::io_error(&fresh, "generation", "write"))?;
    let copy = (1..)
        .map(|number| format!("{name}.before-repair-{number}"))
        .find(|copy| !names.contains(copy))
        .expect("some number is free");
    finish(&logs, &name, &copy).map_err(datadir::io_error(&logs, &name, "rename"))?;
    finish(&logs, &fresh_name, &name).map_err(datadir::io_error(&logs, &fresh_name, "rename"))?;
    Ok(SlotRepair { slot, copy: Some(logs.display(&copy)), damage: Some(damage), salvage })
}

fn finish(logs: &DiskVfs, from: &str, to: &str) -> io::Result<()> {
    logs.rename(from, to)?;
    logs.sync_dir()
}

fn remove_directory(logs: &DiskVfs, name: &str) -> io::Result<()> {
    let directory = logs.open_directory(name)?;
    for member in directory.list()? {
        directory.remove(&member)?;
    }
    logs.remove_directory(name)
}

/// Copies every valid record of the log in `old` into a fresh log in `new`, an empty directory, in their order. Two
/// passes: the second writes, with the id counter that the first has found.
///
/// # Errors
///
/// A segment cannot be read, or the fresh log not be written.
pub fn salvage<V: Vfs>(old: &V, new: &V, options: &LogOptions) -> io::Result<Salvage> {
    let mut first_pass = Salvage::default();
    search(old, options, &mut first_pass, |_| Ok(()))?;
    let mut second_pass = Salvage::default();
    let mut next_id = first_pass.next_id.max(1);
    if first_pass.dropped.iter().any(|dropped| dropped.bytes > 0) {
        // Jobs may be lost whose ids somebody has seen.
        next_id += SKIPPED_IDS;
    }
    let mut rewriter = Rewriter::new(new, options, next_id);
    search(old, options, &mut second_pass, |record| rewriter.push(record))?;
    rewriter.finish()?;
    Ok(Salvage { next_id, ..second_pass })
}

fn search<V: Vfs>(
    vfs: &V,
    options: &LogOptions,
    salvage: &mut Salvage,
    mut take: impl FnMut(&Record<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let mut live = BTreeSet::new();
    let mut last_sequence = 0;
    let mut buffer = Vec::new();
    for number in sorted_numbers(&vfs.list()?) {
        let name = segment_name(number);
        read_whole(&vfs.open(&name, Access::Read)?, &mut buffer)?;
        let header = SegmentHeader::decode(&buffer).ok();
        let mut dropped = Stretch { file: vfs.display(&name), start: None };
        match header {
            Some(header) => salvage.next_id = salvage.next_id.max(header.next_id),
            None => dropped.start = Some(0),
        }
        let mut at = SEGMENT_HEADER_BYTES;
        while at < buffer.len() {
            let Some(frame) = frame_at(&buffer, at, header.as_ref(), last_sequence) else {
                let word = &buffer[at..buffer.len().min(at + 8)];
                if word.iter().any(|byte| *byte != 0) {
                    dropped.start.get_or_insert(at);
                }
                at += 8;
                continue;
            };
            let (sequence, bytes, record) = frame;
            dropped.end_at(at, salvage);
            last_sequence = sequence;
            at += bytes;
            let known = match &record {
                Record::Job(job) => {
                    salvage.next_id = salvage.next_id.max(job.id / options.ids_per_count + 1);
                    live.insert(job.id);
                    true
                }
                Record::State { id, .. } => live.contains(id),
                Record::Delete { id } => live.remove(id),
                Record::Close { next_id } => {
                    salvage.next_id = salvage.next_id.max(*next_id);
                    continue;
                }
            };
            if known {
                salvage.records += 1;
                take(&record)?;
            }
        }
        // Zeros up to the end of the file are as they should be.
        let end = buffer.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        dropped.end_at(end, salvage);
    }
    salvage.jobs = live.len() as u64;
    Ok(())
}

/// The record at `at`, if a valid one is there that can follow `last_sequence`: its sequence, length and contents.
fn frame_at<'a>(
    bytes: &'a [u8],
    at: usize,
    header: Option<&SegmentHeader>,
    last_sequence: u64,
) -> Option<(u64, usize, Record<'a>)> {
    let frame = match header {
        Some(header) => read_frame(bytes, at, header.generation)?,
        None => read_frame_of_any_generation(bytes, at)?,
    };
    let first = header.map_or(last_sequence + 1, |header| header.first_sequence);
    // A record of at least 40 bytes for each sequence must fit before it; what does not was forged in a body.
    let possible = frame.sequence.checked_sub(first)? <= (at - SEGMENT_HEADER_BYTES) as u64 / 40 || header.is_none();
    (frame.sequence > last_sequence && possible).then_some(())?;
    Some((frame.sequence, frame.bytes, frame.record()?))
}

/// Bytes being passed over.
struct Stretch {
    file: String,
    start: Option<usize>,
}

impl Stretch {
    fn end_at(&mut self, end: usize, salvage: &mut Salvage) {
        let Some(start) = self.start.take() else { return };
        salvage.dropped.push(Dropped {
            file: self.file.clone(),
            offset: start as u64,
            bytes: end.saturating_sub(start) as u64,
            what: "no valid record".to_owned(),
        });
    }
}
