//! Reading the records of one segment that lies in memory.
//!
//! Owns: the walk along the chain of sequences, and the search behind its end.
//! Never: decides whether what it finds is a torn tail or damage; `recover` does.

use crate::format::{Frame, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, read_frame};

/// Length of the shortest record, in bytes.
const RECORD_BYTES_MIN: u64 = 40;

/// How far the records of a segment reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reach {
    /// Where the next record would begin.
    pub(crate) end: usize,
    /// The sequence it would have.
    pub(crate) next_sequence: u64,
}

/// Calls `each` with every record from the header on, until none with the next sequence follows or `each` says `false`
/// (it has then dealt with that record).
#[inline]
pub(crate) fn walk<'a>(
    bytes: &'a [u8],
    generation: u32,
    first_sequence: u64,
    mut each: impl FnMut(usize, &Frame<'a>) -> bool,
) -> Reach {
    let mut reach = Reach { end: SEGMENT_HEADER_BYTES, next_sequence: first_sequence };
    while let Some(frame) = read_frame(bytes, reach.end, generation) {
        if frame.sequence != reach.next_sequence && !planted_bug!(GapUnnoticed) {
            break;
        }
        let at = reach.end;
        reach = Reach { end: at + frame.bytes, next_sequence: frame.sequence + 1 };
        if !each(at, &frame) {
            break;
        }
    }
    reach
}

/// What lies behind the last record of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Behind {
    /// Where the bytes that are not zero end; 0 if all are.
    pub(crate) written_end: usize,
    /// Valid records with later sequences.
    pub(crate) records: u64,
    /// The first of them that says the missing one had been synced: its offset, sequence and `durable`.
    pub(crate) proof: Option<(usize, u64, u64)>,
}

/// Looks at every 8-byte boundary from `reach.end` on for later records.
pub(crate) fn look_behind(bytes: &[u8], reach: Reach, generation: u32) -> Behind {
    let mut behind = Behind::default();
    let mut at = reach.end;
    while at < bytes.len() {
        let word = &bytes[at..bytes.len().min(at + 8)];
        if word.iter().all(|byte| *byte == 0) {
            at += 8;
            continue;
        }
        behind.written_end = at + word.len();
        match later_record(bytes, at, reach, generation) {
            Some(frame) => {
                behind.records += 1;
                if frame.durable > reach.next_sequence && behind.proof.is_none() {
                    behind.proof = Some((at, frame.sequence, frame.durable));
                }
                at += frame.bytes;
                behind.written_end = at.min(bytes.len());
            }
            None => at += 8,
        }
    }
    behind
}

fn later_record(bytes: &[u8], at: usize, reach: Reach, generation: u32) -> Option<Frame<'_>> {
    // Sequences rise by one a record, so a place tells which ones can stand there. This comes before the checksum: the
    // inside of a body may look like a thousand headers, and most of those that a client forges fail here.
    let header = bytes.get(at..at + RECORD_HEADER_BYTES)?;
    let mut sequence = [0; 8];
    sequence.copy_from_slice(&header[16..24]);
    let ahead = u64::from_le_bytes(sequence).checked_sub(reach.next_sequence)?;
    if ahead == 0 || ahead > (at - reach.end) as u64 / RECORD_BYTES_MIN {
        return None;
    }
    read_frame(bytes, at, generation)
}
