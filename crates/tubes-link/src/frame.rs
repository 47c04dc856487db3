//! The bytes on a link: batches of messages.
//!
//! All numbers are little-endian. What a process has for a peer in one turn of its loop is one batch:
//!
//! | offset | size | batch header (32 bytes) |
//! |---|---|---|
//! | 0 | 4 | magic `TNL1` |
//! | 4 | 4 | length of the messages, at most a largest job and 512 KiB |
//! | 8 | 4 | CRC-32C of bytes 12 to the end of the messages |
//! | 12 | 2 | slot of the sender |
//! | 14 | 2 | slot of the receiver |
//! | 16 | 4 | generation of the sender |
//! | 20 | 4 | generation of the receiver |
//! | 24 | 8 | number of the batch in this direction, from 1 |
//!
//! | offset | size | message header (16 bytes) |
//! |---|---|---|
//! | 0 | 4 | length of the payload |
//! | 4 | 1 | kind |
//! | 5 | 3 | 0 |
//! | 8 | 8 | session, numbered by the frontend |
//!
//! A batch for another generation of the receiver is dropped and counted: it was meant for a process that is gone. Any
//! other mismatch means that the peer is not who it should be, or is broken: the link is reset.

/// Length of messages in a batch, at most. A writer begins another batch before; one message may be larger alone.
const BATCH_BYTES_TARGET: usize = 256 * 1024;
/// Length of messages in a batch that a reader takes: the largest job, its headers, and what was collected before it.
const BATCH_BYTES_MAX: usize = (1 << 30) + 2 * BATCH_BYTES_TARGET;
const HEADER_BYTES: usize = 32;
const MESSAGE_HEADER_BYTES: usize = 16;
const MAGIC: u32 = u32::from_le_bytes(*b"TNL1");

/// One end of a link: who sends and who receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Slot of this process.
    pub own_slot: u16,
    /// Its generation.
    pub own_generation: u32,
    /// Slot of the peer.
    pub peer_slot: u16,
    /// Its generation.
    pub peer_generation: u32,
}

/// Why a link is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The bytes are no batch.
    #[error("a batch does not begin as one")]
    Magic,
    /// It is longer than any batch.
    #[error("a batch of {0} bytes is longer than any")]
    Length(u32),
    /// The bytes are not those that were sent.
    #[error("a batch does not match its checksum")]
    Checksum,
    /// It comes from another process than the link's peer.
    #[error("a batch comes from slot {slot} generation {generation}, which is not the peer")]
    Source {
        /// As it says.
        slot: u16,
        /// As it says.
        generation: u32,
    },
    /// A batch is missing or came twice.
    #[error("batch {found} came instead of {expected}")]
    Sequence {
        /// The next number.
        expected: u64,
        /// The number it has.
        found: u64,
    },
    /// A message does not fit its batch, or its kind or payload makes no sense.
    #[error("a message cannot be read")]
    Message,
}

/// What stands before a message's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHead {
    /// What it is.
    pub kind: u8,
    /// Whose it is.
    pub session: u64,
}

/// Collects messages for a peer; everything of a turn leaves in one write.
#[derive(Debug)]
pub struct Writer {
    link: Link,
    bytes: Vec<u8>,
    /// Where the open batch begins; `None` if none is open.
    open: Option<usize>,
    sent: usize,
    /// Bytes before those in `bytes`, over the life of the link.
    before: u64,
    sequence: u64,
    batches: u64,
    messages: u64,
}

impl Writer {
    /// The writer of this end.
    #[must_use]
    pub fn new(link: Link) -> Self {
        Writer { link, bytes: Vec::new(), open: None, sent: 0, before: 0, sequence: 0, batches: 0, messages: 0 }
    }

    /// Appends a message whose payload `write` appends.
    pub fn message(&mut self, head: MessageHead, write: impl FnOnce(&mut Vec<u8>)) {
        if self.open.is_some_and(|start| self.bytes.len() - start > BATCH_BYTES_TARGET) {
            self.seal();
        }
        if self.open.is_none() {
            self.open = Some(self.bytes.len());
            self.bytes.extend_from_slice(&[0; HEADER_BYTES]);
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; MESSAGE_HEADER_BYTES]);
        write(&mut self.bytes);
        let length = u32::try_from(self.bytes.len() - start - MESSAGE_HEADER_BYTES).expect("a message fits 4 GiB");
        let header = &mut self.bytes[start..start + MESSAGE_HEADER_BYTES];
        header[0..4].copy_from_slice(&length.to_le_bytes());
        header[4] = head.kind;
        header[8..16].copy_from_slice(&head.session.to_le_bytes());
        self.messages += 1;
    }

    /// Finishes the batch and returns what is to be sent.
    pub fn sendable(&mut self) -> &[u8] {
        self.sendable_to(u64::MAX)
    }

    /// Finishes the batch and returns what is to be sent before the point `end` of [`Writer::end`].
    pub fn sendable_to(&mut self, end: u64) -> &[u8] {
        self.seal();
        let end = usize::try_from(end.saturating_sub(self.before)).unwrap_or(usize::MAX).min(self.bytes.len());
        &self.bytes[self.sent.min(end)..end]
    }

    /// Finishes the batch and names the point that everything so far comes before.
    pub fn end(&mut self) -> u64 {
        self.seal();
        self.before + self.bytes.len() as u64
    }

    /// The peer took so many bytes.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.bytes.len() {
            self.before += self.sent as u64;
            self.sent = 0;
            self.bytes.clear();
            // A burst's memory goes back.
            if self.bytes.capacity() > 4 * BATCH_BYTES_TARGET {
                self.bytes = Vec::new();
            }
        } else if self.sent > BATCH_BYTES_TARGET && self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.before += self.sent as u64;
            self.sent = 0;
        }
    }

    /// Bytes that the peer has not taken.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Batches and messages so far; their ratio is the size of a batch.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.batches, self.messages)
    }

    fn seal(&mut self) {
        let Some(start) = self.open.take() else { return };
        self.sequence += 1;
        self.batches += 1;
        let length = u32::try_from(self.bytes.len() - start - HEADER_BYTES).expect("a batch fits 4 GiB");
        let header = &mut self.bytes[start..];
        header[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        header[4..8].copy_from_slice(&length.to_le_bytes());
        header[12..14].copy_from_slice(&self.link.own_slot.to_le_bytes());
        header[14..16].copy_from_slice(&self.link.peer_slot.to_le_bytes());
        header[16..20].copy_from_slice(&self.link.own_generation.to_le_bytes());
        header[20..24].copy_from_slice(&self.link.peer_generation.to_le_bytes());
        header[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        let checksum = crc32c::crc32c(&header[12..]);
        header[8..12].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Takes batches apart.
#[derive(Debug)]
pub struct Reader {
    link: Link,
    /// Input that is no whole batch yet.
    kept: Vec<u8>,
    sequence: u64,
    dropped: u64,
}

impl Reader {
    /// The reader of this end.
    #[must_use]
    pub fn new(link: Link) -> Self {
        Reader { link, kept: Vec::new(), sequence: 0, dropped: 0 }
    }

    /// Batches that were meant for an earlier process.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes `input` in and hands every message of each complete batch to `take`, in order.
    ///
    /// # Errors
    ///
    /// [`FrameError`]: the link must be reset. Messages of earlier batches have been handed out.
    pub fn feed(
        &mut self,
        input: &[u8],
        mut take: impl FnMut(MessageHead, &[u8]) -> Result<(), FrameError>,
    ) -> Result<(), FrameError> {
        let kept = std::mem::take(&mut self.kept);
        let joined;
        let mut rest = if kept.is_empty() {
            input
        } else {
            joined = [kept, input.to_vec()].concat();
            &joined[..]
        };
        while let Some(length) = batch_length(rest)? {
            if rest.len() < length {
                break;
            }
            let (batch, behind) = rest.split_at(length);
            self.batch(batch, &mut take)?;
            rest = behind;
        }
        self.kept = rest.to_vec();
        Ok(())
    }

    fn batch(
        &mut self,
        batch: &[u8],
        take: &mut impl FnMut(MessageHead, &[u8]) -> Result<(), FrameError>,
    ) -> Result<(), FrameError> {
        if crc32c::crc32c(&batch[12..]) != u32_at(batch, 8) {
            return Err(FrameError::Checksum);
        }
        if u32_at(batch, 20) != self.link.own_generation {
            self.dropped += 1;
            return Ok(());
        }
        let (slot, generation) = (u16_at(batch, 12), u32_at(batch, 16));
        if (slot, generation) != (self.link.peer_slot, self.link.peer_generation)
            || u16_at(batch, 14) != self.link.own_slot
        {
            return Err(FrameError::Source { slot, generation });
        }
        let found = u64_at(batch, 24);
        let expected = self.sequence + 1;
        if found != expected {
            return Err(FrameError::Sequence { expected, found });
        }
        self.sequence = found;
        let mut rest = &batch[HEADER_BYTES..];
        while !rest.is_empty() {
            if rest.len() < MESSAGE_HEADER_BYTES {
                return Err(FrameError::Message);
            }
            let (header, behind) = rest.split_at(MESSAGE_HEADER_BYTES);
            let length = u32_at(header, 0) as usize;
            if behind.len() < length {
                return Err(FrameError::Message);
            }
            let (payload, next) = behind.split_at(length);
            take(MessageHead { kind: header[4], session: u64_at(header, 8) }, payload)?;
            rest = next;
        }
        Ok(())
    }
}

/// Length of the batch at the front, with its header; `None` if the header is not complete.
fn batch_length(bytes: &[u8]) -> Result<Option<usize>, FrameError> {
    if bytes.len() >= 4 && u32_at(bytes, 0) != MAGIC {
        return Err(FrameError::Magic);
    }
    if bytes.len() < HEADER_BYTES {
        return Ok(None);
    }
    let length = u32_at(bytes, 4);
    if length as usize > BATCH_BYTES_MAX {
        return Err(FrameError::Length(length));
    }
    Ok(Some(HEADER_BYTES + length as usize))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> (Link, Link) {
        let one = Link { own_slot: 1, own_generation: 7, peer_slot: 2, peer_generation: 9 };
        let other = Link { own_slot: 2, own_generation: 9, peer_slot: 1, peer_generation: 7 };
        (one, other)
    }

    fn bytes_of(link: Link, messages: &[(u8, u64, &[u8])]) -> Vec<u8> {
        let mut writer = Writer::new(link);
        for (kind, session, payload) in messages {
            writer.message(MessageHead { kind: *kind, session: *session }, |out| out.extend_from_slice(payload));
        }
        writer.sendable().to_vec()
    }

    type Taken = Vec<(u8, u64, Vec<u8>)>;

    fn read(link: Link, pieces: &[&[u8]]) -> (Result<(), FrameError>, Taken, u64) {
        let mut reader = Reader::new(link);
        let mut taken = Vec::new();
        let result = pieces.iter().try_for_each(|piece| {
            reader.feed(piece, |head, payload| {
                taken.push((head.kind, head.session, payload.to_vec()));
                Ok(())
            })
        });
        (result, taken, reader.dropped())
    }

    #[test]
    fn messages_arrive_in_any_segmentation() {
        let (one, other) = ends();
        let bytes = bytes_of(one, &[(1, 5, b"abc"), (2, 6, b""), (3, u64::MAX, &[9; 1000])]);
        for step in [1, 7, 31, 32, 33, bytes.len()] {
            let pieces: Vec<&[u8]> = bytes.chunks(step).collect();
            let (result, taken, _) = read(other, &pieces);
            assert_eq!(result, Ok(()));
            assert_eq!(taken, [(1, 5, b"abc".to_vec()), (2, 6, vec![]), (3, u64::MAX, vec![9; 1000])]);
        }
    }

    #[test]
    fn a_cut_at_any_byte_hands_out_whole_batches_only() {
        let (one, other) = ends();
        let bytes = bytes_of(one, &[(1, 5, b"abc")]);
        for cut in 0..bytes.len() {
            let (result, taken, _) = read(other, &[&bytes[..cut]]);
            assert_eq!((result, taken.len()), (Ok(()), 0), "cut at {cut}");
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let (one, other) = ends();
        let bytes = bytes_of(one, &[(1, 5, b"abc")]);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let (result, taken, _) = read(other, &[&flipped]);
            // A larger length only makes the reader wait for bytes that do not come.
            let waits = result == Ok(()) && (32..64).contains(&bit);
            assert!(result.is_err() || waits, "bit {bit}: {result:?}");
            assert!(taken.is_empty(), "bit {bit}");
        }
    }

    #[test]
    fn a_batch_for_an_earlier_generation_is_dropped_and_one_from_a_stranger_resets() {
        let (one, other) = ends();
        let bytes = bytes_of(Link { peer_generation: 8, ..one }, &[(1, 5, b"abc")]);
        assert_eq!(read(other, &[&bytes]), (Ok(()), vec![], 1));
        let bytes = bytes_of(Link { own_generation: 6, ..one }, &[(1, 5, b"abc")]);
        assert_eq!(read(other, &[&bytes]).0, Err(FrameError::Source { slot: 1, generation: 6 }));
    }

    #[test]
    fn a_repeated_batch_resets_and_an_absurd_length_is_refused() {
        let (one, other) = ends();
        let bytes = bytes_of(one, &[(1, 5, b"abc")]);
        assert_eq!(read(other, &[&bytes, &bytes]).0, Err(FrameError::Sequence { expected: 2, found: 1 }));
        let mut long = bytes;
        long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(read(other, &[&long]).0, Err(FrameError::Length(u32::MAX)));
    }
}
