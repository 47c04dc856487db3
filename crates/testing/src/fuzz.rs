//! What the fuzz targets do with their input, so that a test on the stable compiler does the same.
//!
//! Owns: one function per target, which panics where a promise is broken, and the mutations of the stable run.
//! Never: keeps state from one input to the next.

use std::fmt::Write;

use tubes_protocol::{Command, Framer, Item, LINE_BYTES_MAX, Limits};
use tubes_store::{LogOptions, OpenError, SyncMode, recover};

use crate::disk::SimDisk;
use crate::model::ShadowLog;
use crate::rng::Rng;

/// Reads `data` as a connection's input, in one piece, byte by byte and in pieces that the first bytes choose: the items
/// are the same, and what is kept between them is bounded. `true` if a command was among them.
///
/// # Panics
///
/// If not.
pub fn framer(data: &[u8]) -> bool {
    let Some((head, input)) = data.split_at_checked(4) else { return false };
    let limits = Limits { body_bytes_max: u32::from(head[0]) * 8, close_on_http: head[1] & 1 == 0 };
    let whole = items(input, &limits, |left| left);
    let one_by_one = items(input, &limits, |_| 1);
    assert_eq!(whole, one_by_one, "in one piece and byte by byte");
    let mut rng = Rng::new(u64::from(head[2]) << 8 | u64::from(head[3]));
    let in_pieces = items(input, &limits, |left| 1 + rng.index(left.min(40)));
    assert_eq!(whole, in_pieces, "in one piece and in several");
    whole.iter().any(|item| item.starts_with("put ") || item.starts_with("Command"))
}

/// The items of `input`, cut as `piece` says, in words.
fn items(input: &[u8], limits: &Limits, mut piece: impl FnMut(usize) -> usize) -> Vec<String> {
    let mut framer = Framer::new();
    let mut kept: Vec<u8> = Vec::new();
    let mut found = Vec::new();
    let mut rest = input;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(piece(rest.len()).clamp(1, rest.len()));
        rest = later;
        kept.extend_from_slice(now);
        let mut used = 0;
        loop {
            let (more, item) = framer.next(&kept[used..], limits);
            used += more;
            assert!(used <= kept.len(), "more is used than there is");
            let Some(item) = item else { break };
            let ends = matches!(item, Item::Quit | Item::HttpRequest);
            found.push(in_words(item, limits));
            if ends {
                return found;
            }
        }
        kept.drain(..used);
        assert!(kept.len() < LINE_BYTES_MAX, "{} bytes are kept", kept.len());
        let body_bytes_max = limits.body_bytes_max as usize + 2;
        assert!(framer.body_bytes_held() <= body_bytes_max, "{} bytes of a body are held", framer.body_bytes_held());
    }
    found
}

fn in_words(item: Item<'_>, limits: &Limits) -> String {
    let mut words = String::new();
    match item {
        Item::Command(Command::Put { pri, delay_s, ttr_s, body }) => {
            assert!(body.len() <= limits.body_bytes_max as usize && ttr_s > 0, "a put beyond its limits");
            let _ = write!(words, "put {pri} {delay_s} {ttr_s} {}", body.escape_ascii());
        }
        other => {
            let _ = write!(words, "{other:?}");
        }
    }
    words
}

/// Length of the simulated segments: a few records.
const SEGMENT_BYTES: u64 = 1_024;

/// Reads `data` as one or two segments of a log: recovery refuses them or finds something, and a second one the same.
/// The first byte says where to part them, the second whether the checksums are made right, so that what lies behind
/// them is reached. `true` if there were jobs in it.
///
/// # Panics
///
/// If recovery does, or finds something else the second time.
pub fn log_reader(data: &[u8]) -> bool {
    let Some((head, bytes)) = data.split_at_checked(2) else { return false };
    let mut bytes = bytes.to_vec();
    let middle = bytes.len().min(usize::from(head[0]) * 8);
    let (first, second) = bytes.split_at_mut(middle);
    if head[1] & 1 == 1 {
        make_checksums_right(first);
        make_checksums_right(second);
    }
    let disk = SimDisk::new(1);
    let pieces = [&*first, &*second];
    for (number, piece) in (1..).zip(pieces.iter().filter(|piece| !piece.is_empty())) {
        disk.set_contents(&format!("{number:010}.log"), piece);
    }
    let options = LogOptions {
        slot: 0,
        generation: 1_000,
        fingerprint: FINGERPRINT,
        segment_bytes: SEGMENT_BYTES,
        sync: SyncMode::Always,
        ids_per_count: 1,
        boot_id: [1; 16],
        wall_ms: 1_700_000_000_000,
        now_ns: 0,
    };
    let mut found = ShadowLog::new();
    match recover(&disk, &options, &mut found) {
        Ok(report) => {
            let between = disk.contents();
            let mut again = ShadowLog::new();
            let second = recover(&disk, &options, &mut again).expect("what was recovered once is recovered again");
            assert_eq!((found.mismatch(&again), report.next_id), (None, second.next_id), "a second recovery");
            assert_eq!(disk.contents(), between, "a second recovery changes the disk");
            assert!(report.next_id >= found.ids_below(), "ids go on with {}", report.next_id);
            report.jobs > 0
        }
        Err(OpenError::Damaged { file, .. } | OpenError::Incompatible { file, .. } | OpenError::Io { file, .. }) => {
            assert!(!file.is_empty(), "an error without a file");
            false
        }
    }
}

/// The fingerprint of the manifest that the corpus was written for.
pub const FINGERPRINT: u64 = 0x5eed;

/// Gives the header and every record of a segment the checksum that its bytes ask for.
fn make_checksums_right(segment: &mut [u8]) {
    if segment.len() < 96 {
        return;
    }
    let header = crc32c::crc32c(&segment[..92]).to_le_bytes();
    segment[92..96].copy_from_slice(&header);
    let mut at = 96;
    while at + 32 <= segment.len() {
        let length = u32::from_le_bytes(segment[at..at + 4].try_into().expect("4 bytes")) as usize;
        let Some(end) = at.checked_add(32 + length).filter(|end| length > 0 && *end <= segment.len()) else { return };
        let sum = crc32c::crc32c_append(crc32c::crc32c(&segment[at..at + 4]), &segment[at + 8..end]);
        segment[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
        at = at + 32 + length.next_multiple_of(8);
    }
}

/// Changes an input a little: bytes, numbers, pieces taken out, doubled, moved, or taken from `other`.
pub fn mutate(rng: &mut Rng, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..rng.between(1, 4) {
        let at = rng.index(input.len().max(1));
        let length = (1 + rng.index(24)).min(input.len().saturating_sub(at));
        match rng.below(9) {
            0 if length > 0 => input[at] ^= 1 << rng.below(8),
            1 if length > 0 => input[at] = *rng.pick(&[0, 1, b' ', b'\r', b'\n', b'0', b'9', 0x7f, 0xff]),
            2 if length > 0 => rng.fill(&mut input[at..at + length]),
            3 => drop(input.drain(at..at + length)),
            4 => {
                let piece = input[at..at + length].to_vec();
                let to = rng.index(input.len() + 1);
                input.splice(to..to, piece);
            }
            5 if !other.is_empty() => {
                let from = rng.index(other.len());
                let piece = &other[from..other.len().min(from + 1 + rng.index(64))];
                let end = input.len().min(at + rng.index(piece.len() + 1));
                input.splice(at.min(end)..end, piece.iter().copied());
            }
            6 => input.truncate(at),
            7 if input.len() >= at + 8 => {
                let value = *rng.pick(&[0, 1, 0x7fff_ffff, 0xffff_ffff, u64::MAX, u64::MAX - 7]);
                input[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
            _ => {
                let ends: [&[u8]; 5] = [b"\r\n", b"put 0 0 0 1\r\n", b" 4294967296", b"\r\r\n", &[0; 16]];
                input.extend_from_slice(ends[rng.index(ends.len())]);
            }
        }
    }
    input.truncate(16 * 1_024);
}
