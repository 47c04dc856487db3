//! The bytes of a segment: its header and its records.
//!
//! Owns: encoding and decoding. Never: reads or writes a file, or decides what a missing record means.
//!
//! All numbers are little-endian, lengths and offsets in bytes, times in ms of wall time since 1970.
//!
//! | offset | size | segment header (96 bytes) |
//! |---|---|---|
//! | 0 | 8 | magic `TENURLOG` |
//! | 8 | 4 | format, 1 |
//! | 12 | 2 | slot |
//! | 14 | 1 | sync mode: 0 never, 1 interval, 2 always |
//! | 15 | 1 | 0 |
//! | 16 | 8 | segment number |
//! | 24 | 8 | fingerprint of the manifest |
//! | 32 | 8 | first sequence |
//! | 40 | 8 | `next_id`: the counter of ids when the segment was begun |
//! | 48 | 8 | wall time of creation |
//! | 56 | 16 | boot id of the machine |
//! | 72 | 4 | generation |
//! | 76 | 16 | 0 |
//! | 92 | 4 | CRC-32C of bytes 0–91 |
//!
//! Later formats keep the length of this header and the place of its magic, format and checksum, so that a flipped bit
//! in the format is told apart from a newer program.
//!
//! | offset | size | record header (32 bytes) |
//! |---|---|---|
//! | 0 | 4 | length of the payload; 0 with a whole header of zeros = nothing written from here |
//! | 4 | 4 | CRC-32C of bytes 0–3 and 8 to the end of the payload |
//! | 8 | 4 | generation; equals the segment's, so blocks of an older file never replay |
//! | 12 | 1 | kind |
//! | 13 | 3 | 0 |
//! | 16 | 8 | sequence, one more than the record before, over all segments |
//! | 24 | 8 | `durable`: every record with a smaller sequence had been synced when this one was handed to the kernel |
//!
//! The payload follows, padded with zeros to a multiple of 8. Fields in the order given:
//!
//! | kind | written by | payload |
//! |---|---|---|
//! | 1 JOB | put; compaction | id u64, created u64, due u64 (0 unless delayed), bury order u64, pri u32, delay s u32, ttr s u32, reserves, timeouts, releases, buries, kicks u32 each, body length u32, state u8 (0 ready, 1 delayed, 2 buried), tube length u8, 2 zero bytes, tube, body |
//! | 2 STATE | release, bury, kick, kick-job; reserve-job of a delayed or buried job (as ready) | id u64, due u64, bury order u64, pri u32, delay s u32, the five counters, state u8, 3 zero bytes |
//! | 3 DELETE | delete | id u64 |
//! | 4 CLOSE | switch of segment; orderly stop | `next_id` u64 |

use tubes_core::journal::{Counters, JobRecord, LoggedState, StateFields};

/// The newest format this program reads, and the one it writes.
pub const FORMAT: u32 = 1;
/// Length of the header of a segment, in bytes.
pub const SEGMENT_HEADER_BYTES: usize = 96;
/// Length of the header of a record, in bytes.
pub const RECORD_HEADER_BYTES: usize = 32;
/// Length of a STATE record on disk, in bytes.
pub const STATE_RECORD_BYTES: u64 = 88;
/// Length of a DELETE record on disk, in bytes.
pub const DELETE_RECORD_BYTES: u64 = 40;
/// Length of a CLOSE record on disk, in bytes; every segment keeps this much for it.
pub const CLOSE_RECORD_BYTES: u64 = 40;

const MAGIC: [u8; 8] = *b"TENURLOG";
const JOB_FIXED_BYTES: usize = 72;
const STATE_PAYLOAD_BYTES: usize = 56;
const ID_PAYLOAD_BYTES: usize = 8;
const KIND_JOB: u8 = 1;
const KIND_STATE: u8 = 2;
const KIND_DELETE: u8 = 3;
const KIND_CLOSE: u8 = 4;

const _: () = assert!(STATE_RECORD_BYTES as usize == RECORD_HEADER_BYTES + STATE_PAYLOAD_BYTES);
const _: () = assert!(DELETE_RECORD_BYTES as usize == RECORD_HEADER_BYTES + ID_PAYLOAD_BYTES);
const _: () = assert!(CLOSE_RECORD_BYTES as usize == RECORD_HEADER_BYTES + ID_PAYLOAD_BYTES);

/// Length on disk of the JOB record of such a job, in bytes.
pub fn job_record_bytes(tube_bytes: usize, body_bytes: usize) -> u64 {
    (RECORD_HEADER_BYTES + JOB_FIXED_BYTES + tube_bytes + body_bytes).next_multiple_of(8) as u64
}

/// The header of a segment, but for what is the same in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Place of the owner among the owners of the directory; 0 in single mode.
    pub slot: u16,
    /// How the segment was synced: 0 never, 1 interval, 2 always.
    pub sync_mode: u8,
    /// Its number, which is also its name.
    pub number: u64,
    /// Fingerprint of the manifest.
    pub fingerprint: u64,
    /// Sequence of its first record.
    pub first_sequence: u64,
    /// The counter of ids when it was begun.
    pub next_id: u64,
    /// When it was created.
    pub created_ms: u64,
    /// Which run of the machine wrote it.
    pub boot_id: [u8; 16],
    /// Which start of the owner wrote it.
    pub generation: u32,
}

/// Why bytes are no segment header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderFault {
    /// Fewer than 96 bytes.
    Short,
    /// Another magic.
    Magic,
    /// The checksum does not match.
    Checksum,
    /// A format this program does not know.
    Format(u32),
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        out[12..14].copy_from_slice(&self.slot.to_le_bytes());
        out[14] = self.sync_mode;
        out[16..24].copy_from_slice(&self.number.to_le_bytes());
        out[24..32].copy_from_slice(&self.fingerprint.to_le_bytes());
        out[32..40].copy_from_slice(&self.first_sequence.to_le_bytes());
        out[40..48].copy_from_slice(&self.next_id.to_le_bytes());
        out[48..56].copy_from_slice(&self.created_ms.to_le_bytes());
        out[56..72].copy_from_slice(&self.boot_id);
        out[72..76].copy_from_slice(&self.generation.to_le_bytes());
        let crc = crc32c::crc32c(&out[..92]);
        out[92..96].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<SegmentHeader, HeaderFault> {
        let bytes = bytes.get(..SEGMENT_HEADER_BYTES).ok_or(HeaderFault::Short)?;
        if bytes[0..8] != MAGIC {
            return Err(HeaderFault::Magic);
        }
        if crc32c::crc32c(&bytes[..92]) != u32_at(bytes, 92) {
            return Err(HeaderFault::Checksum);
        }
        let format = u32_at(bytes, 8);
        if format != FORMAT {
            return Err(HeaderFault::Format(format));
        }
        let mut boot_id = [0; 16];
        boot_id.copy_from_slice(&bytes[56..72]);
        Ok(SegmentHeader {
            slot: u16::from_le_bytes([bytes[12], bytes[13]]),
            sync_mode: bytes[14],
            number: u64_at(bytes, 16),
            fingerprint: u64_at(bytes, 24),
            first_sequence: u64_at(bytes, 32),
            next_id: u64_at(bytes, 40),
            created_ms: u64_at(bytes, 48),
            boot_id,
            generation: u32_at(bytes, 72),
        })
    }
}

/// The contents of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    /// A job as it was.
    Job(JobRecord<'a>),
    /// The changeable part of a known job.
    State {
        /// Whose.
        id: u64,
        /// What it is from here on.
        fields: StateFields,
    },
    /// The job is gone.
    Delete {
        /// Which.
        id: u64,
    },
    /// The segment ends here.
    Close {
        /// The counter of ids.
        next_id: u64,
    },
}

/// Largest id, or counter of ids, that a record can carry: nobody has ever given so many.
pub(crate) const ID_MAX: u64 = u64::MAX / 2;

/// A record whose checksum and generation are right; its sequence is for the reader to judge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) sequence: u64,
    pub(crate) durable: u64,
    /// Length on disk, padding included.
    pub(crate) bytes: usize,
    kind: u8,
    payload: &'a [u8],
}

/// Reads the record at `at`, if one with a right checksum and of `generation` is there.
#[inline]
pub(crate) fn read_frame(bytes: &[u8], at: usize, generation: u32) -> Option<Frame<'_>> {
    let header = bytes.get(at..at + RECORD_HEADER_BYTES)?;
    let length = u32_at(header, 0) as usize;
    let kind = header[12];
    if length == 0 || !(KIND_JOB..=KIND_CLOSE).contains(&kind) {
        return None;
    }
    if u32_at(header, 8) != generation {
        return None;
    }
    let start = at + RECORD_HEADER_BYTES;
    let payload = bytes.get(start..start.checked_add(length)?)?;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&header[..4]), &bytes[at + 8..start + length]);
    if crc != u32_at(header, 4) && !planted_bug!(CrcUnchecked) {
        return None;
    }
    Some(Frame {
        sequence: u64_at(header, 16),
        durable: u64_at(header, 24),
        bytes: RECORD_HEADER_BYTES + length.next_multiple_of(8),
        kind,
        payload,
    })
}

/// Reads the record at `at` whatever its generation: for a segment whose header is lost.
pub(crate) fn read_frame_of_any_generation(bytes: &[u8], at: usize) -> Option<Frame<'_>> {
    let header = bytes.get(at..at + RECORD_HEADER_BYTES)?;
    read_frame(bytes, at, u32_at(header, 8))
}

impl<'a> Frame<'a> {
    /// Decodes the payload. `None` if no program of ours can have written it although its checksum is right.
    #[inline]
    pub(crate) fn record(&self) -> Option<Record<'a>> {
        let payload = self.payload;
        // Every kind begins with an id or the counter of ids; one that could not be counted on from is no number of ours.
        if payload.len() < ID_PAYLOAD_BYTES || u64_at(payload, 0) > ID_MAX {
            return None;
        }
        match self.kind {
            KIND_JOB => decode_job(payload).map(Record::Job),
            KIND_STATE if payload.len() == STATE_PAYLOAD_BYTES => Some(Record::State {
                id: u64_at(payload, 0),
                fields: StateFields {
                    due_ms: u64_at(payload, 8),
                    bury_order: u64_at(payload, 16),
                    pri: u32_at(payload, 24),
                    delay_s: u32_at(payload, 28),
                    counters: counters_at(payload, 32),
                    state: state_of(payload[52])?,
                },
            }),
            KIND_DELETE if payload.len() == ID_PAYLOAD_BYTES => Some(Record::Delete { id: u64_at(payload, 0) }),
            KIND_CLOSE if payload.len() == ID_PAYLOAD_BYTES => Some(Record::Close { next_id: u64_at(payload, 0) }),
            _ => None,
        }
    }
}

#[inline]
fn decode_job(payload: &[u8]) -> Option<JobRecord<'_>> {
    let fixed = payload.get(..JOB_FIXED_BYTES)?;
    let body_bytes = u32_at(fixed, 64) as usize;
    let tube_bytes = usize::from(fixed[69]);
    let id = u64_at(fixed, 0);
    if id == 0 || tube_bytes == 0 || payload.len() != JOB_FIXED_BYTES + tube_bytes + body_bytes {
        return None;
    }
    let (tube, body) = payload[JOB_FIXED_BYTES..].split_at(tube_bytes);
    Some(JobRecord {
        id,
        created_ms: u64_at(fixed, 8),
        state: StateFields {
            due_ms: u64_at(fixed, 16),
            bury_order: u64_at(fixed, 24),
            pri: u32_at(fixed, 32),
            delay_s: u32_at(fixed, 36),
            counters: counters_at(fixed, 44),
            state: state_of(fixed[68])?,
        },
        ttr_s: u32_at(fixed, 40),
        tube,
        body,
    })
}

/// Appends a JOB record without `durable` and checksum, which [`seal`] fills in.
pub(crate) fn push_job(out: &mut Vec<u8>, sequence: u64, generation: u32, record: &JobRecord<'_>) {
    let tube_bytes = u8::try_from(record.tube.len()).expect("a tube name has at most 200 bytes");
    let body_bytes = u32::try_from(record.body.len()).expect("a body has at most 2^30 bytes");
    let length = JOB_FIXED_BYTES + record.tube.len() + record.body.len();
    out.reserve(RECORD_HEADER_BYTES + length + 8);
    let mut fixed = [0_u8; RECORD_HEADER_BYTES + JOB_FIXED_BYTES];
    header_into(&mut fixed, length, generation, KIND_JOB, sequence);
    let payload = &mut fixed[RECORD_HEADER_BYTES..];
    payload[0..8].copy_from_slice(&record.id.to_le_bytes());
    payload[8..16].copy_from_slice(&record.created_ms.to_le_bytes());
    payload[16..24].copy_from_slice(&record.state.due_ms.to_le_bytes());
    payload[24..32].copy_from_slice(&record.state.bury_order.to_le_bytes());
    payload[32..36].copy_from_slice(&record.state.pri.to_le_bytes());
    payload[36..40].copy_from_slice(&record.state.delay_s.to_le_bytes());
    payload[40..44].copy_from_slice(&record.ttr_s.to_le_bytes());
    counters_into(&mut payload[44..64], &record.state.counters);
    payload[64..68].copy_from_slice(&body_bytes.to_le_bytes());
    payload[68] = state_byte(record.state.state);
    payload[69] = tube_bytes;
    out.extend_from_slice(&fixed);
    out.extend_from_slice(record.tube);
    out.extend_from_slice(record.body);
    let padding = length.next_multiple_of(8) - length;
    out.extend_from_slice(&[0; 8][..padding]);
}

/// Appends a STATE record without `durable` and checksum.
pub(crate) fn push_state(out: &mut Vec<u8>, sequence: u64, generation: u32, id: u64, fields: &StateFields) {
    let mut bytes = [0_u8; RECORD_HEADER_BYTES + STATE_PAYLOAD_BYTES];
    header_into(&mut bytes, STATE_PAYLOAD_BYTES, generation, KIND_STATE, sequence);
    let payload = &mut bytes[RECORD_HEADER_BYTES..];
    payload[0..8].copy_from_slice(&id.to_le_bytes());
    payload[8..16].copy_from_slice(&fields.due_ms.to_le_bytes());
    payload[16..24].copy_from_slice(&fields.bury_order.to_le_bytes());
    payload[24..28].copy_from_slice(&fields.pri.to_le_bytes());
    payload[28..32].copy_from_slice(&fields.delay_s.to_le_bytes());
    counters_into(&mut payload[32..52], &fields.counters);
    payload[52] = state_byte(fields.state);
    out.extend_from_slice(&bytes);
}

/// Appends a DELETE record without `durable` and checksum.
pub(crate) fn push_delete(out: &mut Vec<u8>, sequence: u64, generation: u32, id: u64) {
    push_id(out, sequence, generation, KIND_DELETE, id);
}

/// Appends a CLOSE record without `durable` and checksum.
pub(crate) fn push_close(out: &mut Vec<u8>, sequence: u64, generation: u32, next_id: u64) {
    push_id(out, sequence, generation, KIND_CLOSE, next_id);
}

fn push_id(out: &mut Vec<u8>, sequence: u64, generation: u32, kind: u8, id: u64) {
    let mut bytes = [0_u8; RECORD_HEADER_BYTES + ID_PAYLOAD_BYTES];
    header_into(&mut bytes, ID_PAYLOAD_BYTES, generation, kind, sequence);
    bytes[RECORD_HEADER_BYTES..].copy_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&bytes);
}

/// Writes `durable` and the checksum into every record of `records`, as they are about to be handed to the kernel:
/// only then is it known what has been synced.
pub(crate) fn seal(records: &mut [u8], durable: u64) {
    let mut at = 0;
    while at < records.len() {
        let length = u32_at(&records[at..], 0) as usize;
        let end = at + RECORD_HEADER_BYTES + length;
        records[at + 24..at + 32].copy_from_slice(&durable.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&records[at..at + 4]), &records[at + 8..end]);
        records[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        at += RECORD_HEADER_BYTES + length.next_multiple_of(8);
    }
}

fn header_into(out: &mut [u8], length: usize, generation: u32, kind: u8, sequence: u64) {
    let length = u32::try_from(length).expect("a record has at most 2^32 bytes");
    out[0..4].copy_from_slice(&length.to_le_bytes());
    out[8..12].copy_from_slice(&generation.to_le_bytes());
    out[12] = kind;
    out[16..24].copy_from_slice(&sequence.to_le_bytes());
}

fn counters_into(out: &mut [u8], counters: &Counters) {
    out[0..4].copy_from_slice(&counters.reserves.to_le_bytes());
    out[4..8].copy_from_slice(&counters.timeouts.to_le_bytes());
    out[8..12].copy_from_slice(&counters.releases.to_le_bytes());
    out[12..16].copy_from_slice(&counters.buries.to_le_bytes());
    out[16..20].copy_from_slice(&counters.kicks.to_le_bytes());
}

#[inline]
fn counters_at(bytes: &[u8], at: usize) -> Counters {
    Counters {
        reserves: u32_at(bytes, at),
        timeouts: u32_at(bytes, at + 4),
        releases: u32_at(bytes, at + 8),
        buries: u32_at(bytes, at + 12),
        kicks: u32_at(bytes, at + 16),
    }
}

fn state_byte(state: LoggedState) -> u8 {
    match state {
        LoggedState::Ready => 0,
        LoggedState::Delayed => 1,
        LoggedState::Buried => 2,
    }
}

#[inline]
fn state_of(byte: u8) -> Option<LoggedState> {
    match byte {
        0 => Some(LoggedState::Ready),
        1 => Some(LoggedState::Delayed),
        2 => Some(LoggedState::Buried),
        _ => None,
    }
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

#[inline]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
