//! `tenure tubes check`: reads a log as a start would, and says what it finds.
//!
//! Owns: the figures of each segment and the verdict.
//! Never: changes a byte, a lock file's contents included.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use tubes_core::journal::{JobRecord, Placement, Replay, StateFields, Superseded};

use crate::datadir::{self, DirError};
use crate::error::OpenError;
use crate::format::SegmentHeader;
use crate::manifest::Manifest;
use crate::reader::walk;
use crate::recover::{Identity, RecoveryReport, io_error, scan};
use crate::segment::{segment_name, segment_number};
use crate::vfs::{Access, Vfs, read_whole};

/// What a check found in a data directory.
#[derive(Debug)]
pub struct DirCheck {
    /// What the directory is.
    pub manifest: Manifest,
    /// One for each slot, in order.
    pub slots: Vec<SlotCheck>,
}

/// What a check found in the log of one slot.
#[derive(Debug)]
pub struct SlotCheck {
    /// Which slot.
    pub slot: u16,
    /// What a start would report, or why it would refuse.
    pub verdict: Result<RecoveryReport, OpenError>,
    /// The segments, oldest first.
    pub segments: Vec<SegmentFigures>,
}

/// One segment as it lies on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentFigures {
    /// Its number, by its name.
    pub number: u32,
    /// Length of the file, in bytes.
    pub bytes: u64,
    /// Its header, if that is whole.
    pub header: Option<SegmentHeader>,
    /// Valid records, up to the first that is missing.
    pub records: u64,
    /// Where they end, in bytes.
    pub end: u64,
}

/// Checks all logs of the data directory `dir`, which no server may be using.
///
/// # Errors
///
/// [`DirError`]: no data directory, in use, or not readable. What is wrong with a log is in its verdict.
pub fn check_directory(dir: &Path) -> Result<DirCheck, DirError> {
    let reading = datadir::open_for_reading(dir)?;
    let mut slots = Vec::new();
    for slot in 0..reading.manifest.slots {
        let vfs = reading.slot(slot)?;
        slots.push(match &vfs {
            Some(vfs) => check_slot(vfs, slot, reading.fingerprint),
            None => SlotCheck {
                slot,
                verdict: Ok(RecoveryReport { next_id: 1, ..Default::default() }),
                segments: Vec::new(),
            },
        });
    }
    Ok(DirCheck { manifest: reading.manifest.clone(), slots })
}

/// Checks the log in `vfs`.
pub fn check_slot<V: Vfs>(vfs: &V, slot: u16, fingerprint: u64) -> SlotCheck {
    let numbers = match vfs.list() {
        Ok(names) => sorted_numbers(&names),
        Err(source) => {
            return SlotCheck { slot, verdict: Err(io_error(vfs, ".", "list", source)), segments: Vec::new() };
        }
    };
    let mut segments = Vec::new();
    let mut buffer = Vec::new();
    for &number in &numbers {
        // One that cannot be read is named by the verdict.
        if let Ok(figures) = segment_figures(vfs, number, &mut buffer) {
            segments.push(figures);
        }
    }
    drop(buffer);
    let mut census = Census::default();
    let verdict = scan(vfs, &numbers, Identity { slot, fingerprint }, &mut census)
        .map(|scan| scan.report(vfs, 1, None, census.live_jobs()));
    SlotCheck { slot, verdict, segments }
}

pub(crate) fn sorted_numbers(names: &[String]) -> Vec<u32> {
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| segment_number(name)).collect();
    numbers.sort_unstable();
    numbers
}

fn segment_figures<V: Vfs>(vfs: &V, number: u32, buffer: &mut Vec<u8>) -> io::Result<SegmentFigures> {
    let file = vfs.open(&segment_name(number), Access::Read)?;
    read_whole(&file, buffer)?;
    let mut figures = SegmentFigures { number, bytes: buffer.len() as u64, header: None, records: 0, end: 0 };
    if let Ok(header) = SegmentHeader::decode(buffer) {
        figures.header = Some(header);
        let reach = walk(buffer, header.generation, header.first_sequence, |_, _| {
            figures.records += 1;
            true
        });
        figures.end = reach.end as u64;
    }
    Ok(figures)
}

/// Counts jobs without keeping them.
#[derive(Debug, Default)]
pub(crate) struct Census {
    jobs: BTreeMap<u64, Superseded>,
}

impl Replay for Census {
    fn replay_job(&mut self, record: &JobRecord<'_>, segment: u32) -> Option<Superseded> {
        let (tube_bytes, body_bytes) = (record.tube.len(), record.body.len());
        self.jobs.insert(record.id, Superseded { segment, tube_bytes, body_bytes })
    }

    fn replay_state(&mut self, id: u64, _fields: &StateFields) -> bool {
        self.jobs.contains_key(&id)
    }

    fn replay_delete(&mut self, id: u64) -> Option<Superseded> {
        self.jobs.remove(&id)
    }

    fn live_jobs(&self) -> u64 {
        self.jobs.len() as u64
    }

    fn set_state_reserved(&mut self, _reserved: bool) {}

    fn live_job(&self, _id: u64, _segment: u32) -> Option<(JobRecord<'_>, Placement)> {
        None
    }

    fn relocate(&mut self, _id: u64, _placement: Placement) {}
}
