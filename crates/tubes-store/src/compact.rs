//! Compaction: the oldest segment's live jobs are copied to the end, so that the segment can be dropped.
//!
//! Owns: when to copy, and how much in one turn.
//! Never: drops a segment itself; the job that follows the sync of the copies does.
//!
//! Segments go oldest first only, so a STATE or DELETE always outlives the JOB it changes.

use tubes_core::journal::{Placement, Replay};

use crate::format::job_record_bytes;
use crate::log::Log;
use crate::segment::fresh_room;
use crate::vfs::Vfs;

/// Bytes copied in a turn at least.
const COPY_BYTES_MIN: u64 = 256 * 1024;
/// Bytes copied for each byte the turn appended: more than one, or endless updates would outrun the copying.
const COPY_BYTES_PER_BYTE: u64 = 2;

impl<V: Vfs> Log<V> {
    /// Copies live jobs out of the oldest segment while the log is too large: two bytes for each byte appended since
    /// the last call, at least 256 KiB, and four times that in an `idle` turn, which keeps nobody waiting. `true` if
    /// another call could go on at once.
    pub fn compact<R: Replay>(&mut self, replay: &mut R, idle: bool) -> bool {
        let floor = if idle { 4 * COPY_BYTES_MIN } else { COPY_BYTES_MIN };
        let mut budget = (COPY_BYTES_PER_BYTE * std::mem::take(&mut self.appended_bytes)).max(floor);
        loop {
            if self.failure().is_some() || self.backpressure() {
                return false;
            }
            let Some(index) = self.oldest_worth_copying() else { return false };
            if budget == 0 {
                return true;
            }
            let segment = self.segments.at_mut(index);
            let number = segment.number;
            let Some(&id) = segment.ids.get(segment.compacted) else {
                assert_eq!(segment.live, 0, "the rules know no job of segment {number}, the log does");
                // Nothing is left here; the list's memory goes back before the file does.
                segment.ids = Vec::new();
                segment.compacted = 0;
                continue;
            };
            let Some((record, placement)) = replay.live_job(id, number) else {
                segment.compacted += 1;
                continue;
            };
            let bytes = job_record_bytes(record.tube.len(), record.body.len());
            if !self.space.admit_copy(&self.vfs, bytes, self.room) {
                return false;
            }
            let copy = self.push_job(&record, bytes);
            let left_at = self.next_sequence - 1;
            let segment = self.segments.at_mut(index);
            segment.compacted += 1;
            segment.live -= 1;
            segment.left_at = left_at;
            self.figures.records_migrated += 1;
            replay.relocate(id, Placement { segment: copy, ..placement });
            budget = budget.saturating_sub(bytes);
        }
    }

    /// Place of the oldest segment with live jobs, if the log is too large and that segment is finished.
    fn oldest_worth_copying(&self) -> Option<usize> {
        let mut dropped_bytes = 0;
        for (index, segment) in self.segments.iter().enumerate() {
            if segment.live == 0 {
                // Goes by itself as soon as its copies are synced.
                dropped_bytes += segment.bytes;
                continue;
            }
            // Header and CLOSE of each segment are no waste that copying could save: in segments of a few records they
            // weigh so much that copying would go on for ever.
            let segment_bytes = self.options.segment_bytes;
            let room = fresh_room(segment_bytes);
            let live_bytes = self.live_job_bytes + self.live_job_bytes * (segment_bytes - room) / room;
            let wanted = 2 * live_bytes + segment_bytes;
            let too_large = self.segments.bytes() - dropped_bytes > wanted;
            return (too_large && index + 1 < self.segments.len()).then_some(index);
        }
        None
    }
}
