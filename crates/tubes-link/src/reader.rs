//! The receiving end of a link: takes batches apart.

use crate::frame::{
    BATCH_BYTES_MAX, FrameError, HEADER_BYTES, LAST_PIECE, Link, MAGIC, MESSAGE_BYTES_MAX, MESSAGE_HEADER_BYTES,
    MessageHead, PIECE, WHOLE, u16_at, u32_at, u64_at,
};
use crate::planted::{self, Bug};
use std::collections::BTreeMap;

/// Room offered for one read, in bytes.
const READ_BYTES: usize = 64 * 1024;

/// Takes batches apart.
///
/// Bytes go into [`Reader::space`], their number to [`Reader::filled`]; then [`Reader::next`] is called until it has no
/// message left.
#[derive(Debug, Default)]
pub struct Reader {
    link: Link,
    /// Input from `at` to `end`.
    bytes: Vec<u8>,
    at: usize,
    end: usize,
    /// Where the batch being taken apart ends; at or before `at` if there is none.
    batch_end: usize,
    sequence: u64,
    dropped: u64,
    taken: u64,
    taken_by_peer: u64,
    /// By session: what has come of a message in pieces.
    pieces: BTreeMap<u64, (u8, Vec<u8>)>,
    /// The message that was put together last.
    whole: Vec<u8>,
}

impl Reader {
    /// The reader of this end.
    #[must_use]
    pub fn new(link: Link) -> Self {
        Reader { link, ..Reader::default() }
    }

    /// Batches that were meant for an earlier process.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Bytes of messages taken apart so far.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// What the peer has said of the bytes of messages that it has taken.
    #[must_use]
    pub fn taken_by_peer(&self) -> u64 {
        self.taken_by_peer
    }

    /// Where the next bytes of the link go.
    pub fn space(&mut self) -> &mut [u8] {
        if self.at == self.end {
            (self.at, self.end, self.batch_end) = (0, 0, 0);
        }
        if self.bytes.len() - self.end < READ_BYTES {
            self.bytes.copy_within(self.at..self.end, 0);
            (self.at, self.end, self.batch_end) = (0, self.end - self.at, self.batch_end.saturating_sub(self.at));
            let needed = self.end + READ_BYTES;
            if self.bytes.len() < needed {
                self.bytes.resize(needed, 0);
            }
        }
        &mut self.bytes[self.end..]
    }

    /// So many bytes were put into [`Reader::space`].
    pub fn filled(&mut self, count: usize) {
        self.end += count;
    }

    /// Takes `input` in as if it had been read; for callers without a socket.
    pub fn push(&mut self, input: &[u8]) {
        for part in input.chunks(READ_BYTES) {
            self.space()[..part.len()].copy_from_slice(part);
            self.filled(part.len());
        }
    }

    /// The next message; `None` if more bytes are needed.
    ///
    /// # Errors
    ///
    /// [`FrameError`]: the link must be reset. Messages of earlier batches have been handed out.
    #[expect(clippy::should_implement_trait, reason = "the message borrows from the reader, and reading may fail")]
    pub fn next(&mut self) -> Result<Option<(MessageHead, &[u8])>, FrameError> {
        loop {
            if self.at >= self.batch_end && !self.open_batch()? {
                return Ok(None);
            }
            if self.at >= self.batch_end {
                // It was empty, or for somebody else.
                continue;
            }
            let rest = &self.bytes[self.at..self.batch_end];
            if rest.len() < MESSAGE_HEADER_BYTES {
                return Err(FrameError::Message);
            }
            let length = u32_at(rest, 0) as usize;
            let (head, part) = (MessageHead { kind: rest[4], session: u64_at(rest, 8) }, rest[5]);
            if rest.len() - MESSAGE_HEADER_BYTES < length {
                return Err(FrameError::Message);
            }
            let start = self.at + MESSAGE_HEADER_BYTES;
            self.at = start + length;
            self.taken += (MESSAGE_HEADER_BYTES + length) as u64;
            if part == WHOLE {
                if !self.pieces.is_empty() && self.pieces.contains_key(&head.session) {
                    return Err(FrameError::Message);
                }
                return Ok(Some((head, &self.bytes[start..start + length])));
            }
            if self.piece(head, part, start, length)? {
                return Ok(Some((head, &self.whole)));
            }
        }
    }

    /// Takes a piece; `true` if the message is complete.
    fn piece(&mut self, head: MessageHead, part: u8, start: usize, length: usize) -> Result<bool, FrameError> {
        let (kind, bytes) = self.pieces.entry(head.session).or_insert_with(|| (head.kind, Vec::new()));
        if *kind != head.kind || !matches!(part, PIECE | LAST_PIECE) || bytes.len() + length > MESSAGE_BYTES_MAX {
            return Err(FrameError::Message);
        }
        bytes.extend_from_slice(&self.bytes[start..start + length]);
        if part == PIECE {
            return Ok(false);
        }
        self.whole = self.pieces.remove(&head.session).map(|(_, bytes)| bytes).unwrap_or_default();
        Ok(true)
    }

    /// Checks the batch at the front; `false` if it is not complete. A batch that is not for this process is passed over.
    fn open_batch(&mut self) -> Result<bool, FrameError> {
        let bytes = &self.bytes[self.at..self.end];
        // A message put together is as large as a job can be; it must not stay.
        if !self.whole.is_empty() {
            self.whole = Vec::new();
        }
        if bytes.len() >= 4 && u32_at(bytes, 0) != MAGIC {
            return Err(FrameError::Magic);
        }
        if bytes.len() < HEADER_BYTES {
            return Ok(false);
        }
        let length = u32_at(bytes, 4);
        if length as usize > BATCH_BYTES_MAX {
            return Err(FrameError::Length(length));
        }
        let whole = HEADER_BYTES + length as usize;
        if bytes.len() < whole {
            return Ok(false);
        }
        let batch = &bytes[..whole];
        if crc32c::crc32c(&batch[12..]) != u32_at(batch, 8) {
            return Err(FrameError::Checksum);
        }
        if u32_at(batch, 20) != self.link.own_generation && !planted::is(Bug::GenerationUnchecked) {
            self.dropped += 1;
            self.at += whole;
            self.batch_end = self.at;
            return Ok(true);
        }
        let (slot, generation) = (u16_at(batch, 12), u32_at(batch, 16));
        if (slot, generation) != (self.link.peer_slot, self.link.peer_generation)
            || u16_at(batch, 14) != self.link.own_slot
        {
            return Err(FrameError::Source { slot, generation });
        }
        let (expected, found) = (self.sequence + 1, u64_at(batch, 24));
        if found != expected {
            return Err(FrameError::Sequence { expected, found });
        }
        self.sequence = found;
        self.taken_by_peer = u64_at(batch, 32);
        self.batch_end = self.at + whole;
        self.at += HEADER_BYTES;
        Ok(true)
    }
}
