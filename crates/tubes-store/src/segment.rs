//! The segments of a log as its writer knows them.
//!
//! Owns: names, sizes, and which jobs have their newest JOB record where.
//! Never: reads or writes a file.

use std::collections::VecDeque;

use crate::format::{CLOSE_RECORD_BYTES, SEGMENT_HEADER_BYTES};

/// Beginning of the names of allocated files that have no number yet.
pub(crate) const SPARE_PREFIX: &str = "spare-";

/// Name of the segment `number`.
pub(crate) fn segment_name(number: u32) -> String {
    format!("{number:010}.log")
}

/// Number of the segment of this name, if it is one.
pub(crate) fn segment_number(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".log")?;
    if digits.len() != 10 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|number| *number > 0)
}

/// Where records other than CLOSE must end in a segment of `bytes` bytes.
pub(crate) const fn records_end(bytes: u64) -> u64 {
    (bytes & !7) - CLOSE_RECORD_BYTES
}

/// Space for records other than CLOSE in a fresh segment of `bytes` bytes.
pub(crate) const fn fresh_room(bytes: u64) -> u64 {
    records_end(bytes) - SEGMENT_HEADER_BYTES as u64
}

/// One segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u32,
    /// Length of the file, or what it will have once begun.
    pub(crate) bytes: u64,
    /// Where its records end; kept for recovered segments only.
    pub(crate) end: u64,
    /// Jobs whose newest JOB record lies here.
    pub(crate) live: u64,
    /// Every job that ever had a JOB record here; consulted by compaction from `compacted` on.
    pub(crate) ids: Vec<u64>,
    /// How many of `ids` compaction has dealt with.
    pub(crate) compacted: usize,
    /// Sequence of the last DELETE or copy that took a job away from here; the segment stays until that one is as safe
    /// as the mode promises, or a crash could lose both.
    pub(crate) left_at: u64,
}

impl Segment {
    pub(crate) fn new(number: u32, bytes: u64) -> Segment {
        Segment { number, bytes, end: bytes, live: 0, ids: Vec::new(), compacted: 0, left_at: 0 }
    }
}

/// All segments, oldest first, numbered without gaps.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    list: VecDeque<Segment>,
    /// Sum of their sizes.
    bytes: u64,
}

impl Segments {
    pub(crate) fn push(&mut self, segment: Segment) {
        if let Some(last) = self.list.back() {
            assert_eq!(last.number + 1, segment.number, "segment numbers have no gaps");
        }
        self.bytes += segment.bytes;
        self.list.push_back(segment);
    }

    pub(crate) fn pop_oldest(&mut self) -> Option<Segment> {
        let oldest = self.list.pop_front()?;
        self.bytes -= oldest.bytes;
        Some(oldest)
    }

    pub(crate) fn pop_newest(&mut self) -> Option<Segment> {
        let newest = self.list.pop_back()?;
        self.bytes -= newest.bytes;
        Some(newest)
    }

    /// Corrects the size of the segment at `index`, whose file was cut.
    pub(crate) fn resize(&mut self, index: usize, bytes: u64) {
        let segment = &mut self.list[index];
        self.bytes = self.bytes - segment.bytes + bytes;
        segment.bytes = bytes;
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.list.iter()
    }

    pub(crate) fn oldest(&self) -> Option<&Segment> {
        self.list.front()
    }

    pub(crate) fn newest(&self) -> Option<&Segment> {
        self.list.back()
    }

    pub(crate) fn newest_mut(&mut self) -> Option<&mut Segment> {
        self.list.back_mut()
    }

    pub(crate) fn at_mut(&mut self, index: usize) -> &mut Segment {
        &mut self.list[index]
    }

    /// The segment `number`, if it is still there.
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Segment> {
        let first = self.list.front()?.number;
        self.list.get_mut(number.checked_sub(first)? as usize)
    }
}
