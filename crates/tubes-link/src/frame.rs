//! The bytes on a link: batches of messages.
//!
//! All numbers are little-endian. What a process has for a peer in one turn of its loop is one batch, or a few if it is
//! much:
//!
//! | offset | size | batch header (40 bytes) |
//! |---|---|---|
//! | 0 | 4 | magic `TNL2` |
//! | 4 | 4 | length of the messages, at most 512 KiB; 0 if the batch only tells what has been taken |
//! | 8 | 4 | CRC-32C of bytes 12 to the end of the messages |
//! | 12 | 2 | slot of the sender |
//! | 14 | 2 | slot of the receiver |
//! | 16 | 4 | generation of the sender |
//! | 20 | 4 | generation of the receiver |
//! | 24 | 8 | number of the batch in this direction, from 1 |
//! | 32 | 8 | bytes of messages that the sender has taken in the other direction |
//!
//! | offset | size | message header (16 bytes) |
//! |---|---|---|
//! | 0 | 4 | length of the payload |
//! | 4 | 1 | kind |
//! | 5 | 1 | 0: whole; 1: a piece, more follow; 2: the last piece |
//! | 6 | 2 | 0 |
//! | 8 | 8 | session, numbered by the frontend |
//!
//! A payload above [`CHUNK_BYTES`] travels in pieces of that size, between which other sessions' messages pass; the
//! messages of one session keep their order.
//!
//! A sender has at most [`WINDOW_BYTES`] of messages on the way that the receiver has not taken, and keeps what is above
//! in its own memory: so a receiver that cannot go on (an owner whose disk is slow) is not flooded, although it never
//! stops reading.
//!
//! A batch for another generation of the receiver is dropped and counted: it was meant for a process that is gone. Any
//! other mismatch means that the peer is not who it should be, or is broken: the link is reset.

/// Length of messages in a batch, at most. A writer begins another batch before; one message more may fit on top.
pub(crate) const BATCH_BYTES_TARGET: usize = 256 * 1024;
/// Length of messages in a batch that a reader takes.
pub(crate) const BATCH_BYTES_MAX: usize = 2 * BATCH_BYTES_TARGET;
/// Largest payload that travels whole, in bytes.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// Messages on their way that the receiver has not taken, in bytes, at most; a batch that begins below may go beyond.
pub const WINDOW_BYTES: u64 = 4 * 1024 * 1024;
/// Largest message that is put together from pieces: the largest job, and what stands around it.
pub(crate) const MESSAGE_BYTES_MAX: usize = (1 << 30) + BATCH_BYTES_TARGET;
pub(crate) const HEADER_BYTES: usize = 40;
pub(crate) const MESSAGE_HEADER_BYTES: usize = 16;
pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"TNL2");
/// The message is whole.
pub(crate) const WHOLE: u8 = 0;
/// More pieces follow.
pub(crate) const PIECE: u8 = 1;
/// The last piece.
pub(crate) const LAST_PIECE: u8 = 2;

/// One end of a link: who sends and who receives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests;
