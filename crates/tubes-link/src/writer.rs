//! The sending end of a link: messages are collected, and leave in batches.

use crate::frame::{
    BATCH_BYTES_TARGET, CHUNK_BYTES, HEADER_BYTES, LAST_PIECE, Link, MAGIC, MESSAGE_HEADER_BYTES, MessageHead, PIECE,
    WHOLE, WINDOW_BYTES,
};
use std::collections::{BTreeMap, VecDeque};

/// What the receiver has taken since it last said so, in bytes, before it says so without having anything else to say.
const TELL_BYTES: u64 = WINDOW_BYTES / 4;

/// Collects messages for a peer; everything of a turn leaves in one write.
///
/// In each turn: [`Writer::message`] any number of times, [`Writer::end_turn`], then [`Writer::sendable`] and
/// [`Writer::sent`] until nothing is sendable or the socket takes no more.
#[derive(Debug)]
pub struct Writer {
    link: Link,
    /// Messages of this turn behind room for a header; empty if there are none.
    turn: Vec<u8>,
    /// Stretches of messages that are not on their way yet, each behind room for a header.
    waiting: VecDeque<Stretch>,
    /// How many stretches at the end of `waiting` belong to this turn.
    turn_stretches: usize,
    waiting_bytes: usize,
    /// Stretches closed so far, and those of them on their way.
    closed: u64,
    departed: u64,
    /// By session: messages in pieces, and what comes behind them; and whose turn it is.
    large: BTreeMap<u64, VecDeque<Large>>,
    ring: VecDeque<u64>,
    large_bytes: usize,
    /// A piece goes next, if there is one: pieces and stretches take turns.
    is_piece_next: bool,
    /// Batches on their way, from `sent` on.
    ready: Vec<u8>,
    sent: usize,
    /// The last batch of the log that is as safe as promised.
    durable: u64,
    sequence: u64,
    /// Bytes of messages put on their way, and how many of them the peer has taken.
    charged: u64,
    taken_by_peer: u64,
    /// Bytes of messages that this process has taken from the peer, and what the peer was told of it.
    taken: u64,
    told: u64,
    batches: u64,
    messages: u64,
}

/// Messages of a turn that wait for the log or for room.
#[derive(Debug)]
struct Stretch {
    bytes: Vec<u8>,
    /// The batch of the log that must be safe before; 0 if none, `u64::MAX` until the turn has ended.
    batch: u64,
}

/// A message that is not in a stretch.
#[derive(Debug)]
struct Large {
    kind: u8,
    payload: Vec<u8>,
    /// How much of it is on its way.
    at: usize,
    /// As in a stretch; `u64::MAX` until the turn has ended.
    batch: u64,
    /// The stretch that may hold earlier messages of the session, as `closed` counts.
    behind: u64,
}

impl Writer {
    /// The writer of this end.
    #[must_use]
    pub fn new(link: Link) -> Self {
        Writer {
            link,
            turn: Vec::new(),
            waiting: VecDeque::new(),
            turn_stretches: 0,
            waiting_bytes: 0,
            closed: 0,
            departed: 0,
            large: BTreeMap::new(),
            ring: VecDeque::new(),
            large_bytes: 0,
            is_piece_next: false,
            ready: Vec::new(),
            sent: 0,
            durable: 0,
            sequence: 0,
            charged: 0,
            taken_by_peer: 0,
            taken: 0,
            told: 0,
            batches: 0,
            messages: 0,
        }
    }

    /// Appends a message whose payload `write` appends.
    pub fn message(&mut self, head: MessageHead, write: impl FnOnce(&mut Vec<u8>)) {
        self.messages += 1;
        if !self.large.is_empty() && self.large.contains_key(&head.session) {
            let mut payload = Vec::new();
            write(&mut payload);
            return self.append_large(head, payload);
        }
        if self.turn.len() > BATCH_BYTES_TARGET {
            self.close_stretch();
        }
        if self.turn.is_empty() {
            self.turn.resize(HEADER_BYTES, 0);
        }
        let start = self.turn.len();
        self.turn.resize(start + MESSAGE_HEADER_BYTES, 0);
        write(&mut self.turn);
        let length = self.turn.len() - start - MESSAGE_HEADER_BYTES;
        if length > CHUNK_BYTES {
            let payload = self.turn.split_off(start + MESSAGE_HEADER_BYTES);
            self.turn.truncate(if start == HEADER_BYTES { 0 } else { start });
            return self.append_large(head, payload);
        }
        message_header(&mut self.turn[start..], head, WHOLE, length);
    }

    /// Ends a turn. With `batch` its messages wait until that batch of the log is as safe as promised
    /// ([`Writer::release`]), and all behind them wait too.
    pub fn end_turn(&mut self, batch: Option<u64>) {
        let batch = batch.unwrap_or(0);
        if !self.turn.is_empty() {
            self.close_stretch();
        }
        for stretch in self.waiting.iter_mut().rev().take(std::mem::take(&mut self.turn_stretches)) {
            stretch.batch = batch;
        }
        for large in self.large.values_mut().flat_map(|queue| queue.iter_mut().rev()) {
            // All behind one of this turn are of this turn; the others have been decided.
            if large.batch == u64::MAX {
                large.batch = batch;
            }
        }
    }

    /// Everything up to and including `batch` of the log is as safe as promised.
    pub fn release(&mut self, batch: u64) {
        self.durable = batch;
    }

    /// Bytes of messages that this process has taken from the peer, as [`Reader::taken`](crate::Reader::taken) counts.
    /// Only what is said here makes room for more; a process that cannot go on says nothing.
    pub fn tell_taken(&mut self, bytes: u64) {
        self.taken = bytes;
    }

    /// What the peer has said that it has taken; see [`Reader::taken_by_peer`](crate::Reader::taken_by_peer).
    pub fn peer_has_taken(&mut self, bytes: u64) {
        self.taken_by_peer = bytes;
    }

    /// The bytes to send next; empty if there are none, or none may be sent yet.
    pub fn sendable(&mut self) -> &[u8] {
        if self.sent == self.ready.len() {
            self.refill();
        }
        &self.ready[self.sent..]
    }

    /// The peer's socket took so many bytes.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
    }

    /// Bytes of messages that travel whole and have not left this process.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.waiting_bytes + self.turn.len() + self.ready.len() - self.sent
    }

    /// Bytes of messages that travel in pieces and have not left this process.
    #[must_use]
    pub fn large_backlog(&self) -> usize {
        self.large_bytes
    }

    /// Batches and messages so far; their ratio is the size of a batch.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.batches, self.messages)
    }

    fn append_large(&mut self, head: MessageHead, payload: Vec<u8>) {
        self.large_bytes += payload.len();
        let behind = self.closed + u64::from(!self.turn.is_empty());
        let queue = self.large.entry(head.session).or_default();
        if queue.is_empty() {
            self.ring.push_back(head.session);
        }
        queue.push_back(Large { kind: head.kind, payload, at: 0, batch: u64::MAX, behind });
    }

    fn close_stretch(&mut self) {
        let bytes = std::mem::take(&mut self.turn);
        self.waiting_bytes += bytes.len();
        self.waiting.push_back(Stretch { bytes, batch: u64::MAX });
        self.turn_stretches += 1;
        self.closed += 1;
    }

    /// Puts on its way what may go now.
    fn refill(&mut self) {
        self.ready.clear();
        self.sent = 0;
        while self.ready.len() < BATCH_BYTES_TARGET && self.charged.saturating_sub(self.taken_by_peer) < WINDOW_BYTES {
            let has_stretch = self.waiting.front().is_some_and(|stretch| stretch.batch <= self.durable);
            if (self.is_piece_next || !has_stretch) && self.ready_piece() {
                self.is_piece_next = false;
            } else if has_stretch {
                self.ready_stretch();
                self.is_piece_next = true;
            } else {
                break;
            }
        }
        if self.ready.is_empty() && self.taken - self.told >= TELL_BYTES {
            self.ready.resize(HEADER_BYTES, 0);
            self.seal(0);
        }
    }

    fn ready_stretch(&mut self) {
        let Some(stretch) = self.waiting.pop_front() else { return };
        self.waiting_bytes -= stretch.bytes.len();
        self.departed += 1;
        let start = self.ready.len();
        if start == 0 {
            // The buffer that is put aside takes the next turn, unless a burst has made it large.
            let spare = std::mem::replace(&mut self.ready, stretch.bytes);
            if self.turn.capacity() == 0 && spare.capacity() <= BATCH_BYTES_TARGET {
                self.turn = spare;
            }
        } else {
            self.ready.extend_from_slice(&stretch.bytes);
        }
        self.seal(start);
    }

    /// One piece of the session whose turn it is, as a batch; `false` if none may go.
    fn ready_piece(&mut self) -> bool {
        for _ in 0..self.ring.len() {
            let session = self.ring.pop_front().expect("counted above");
            let queue = self.large.get_mut(&session).expect("a session in the ring has a queue");
            let front = queue.front_mut().expect("a queue in the ring has a message");
            if front.batch > self.durable || front.behind > self.departed {
                self.ring.push_back(session);
                continue;
            }
            let length = (front.payload.len() - front.at).min(CHUNK_BYTES);
            let is_last = front.at + length == front.payload.len();
            let part = match (front.at, is_last) {
                (0, true) => WHOLE,
                (_, true) => LAST_PIECE,
                _ => PIECE,
            };
            let start = self.ready.len();
            self.ready.resize(start + HEADER_BYTES + MESSAGE_HEADER_BYTES, 0);
            self.ready.extend_from_slice(&front.payload[front.at..front.at + length]);
            let head = MessageHead { kind: front.kind, session };
            message_header(&mut self.ready[start + HEADER_BYTES..], head, part, length);
            front.at += length;
            self.large_bytes -= length;
            if is_last {
                queue.pop_front();
            }
            if queue.is_empty() {
                self.large.remove(&session);
            } else {
                self.ring.push_back(session);
            }
            self.seal(start);
            return true;
        }
        false
    }

    /// Writes the header of the batch that begins at `start` of what is ready and goes to its end.
    fn seal(&mut self, start: usize) {
        let length = self.ready.len() - start - HEADER_BYTES;
        self.charged += length as u64;
        self.sequence += 1;
        self.batches += 1;
        self.told = self.taken;
        let batch = &mut self.ready[start..];
        batch[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        batch[4..8].copy_from_slice(&u32::try_from(length).expect("a batch is bounded").to_le_bytes());
        batch[12..14].copy_from_slice(&self.link.own_slot.to_le_bytes());
        batch[14..16].copy_from_slice(&self.link.peer_slot.to_le_bytes());
        batch[16..20].copy_from_slice(&self.link.own_generation.to_le_bytes());
        batch[20..24].copy_from_slice(&self.link.peer_generation.to_le_bytes());
        batch[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        batch[32..40].copy_from_slice(&self.told.to_le_bytes());
        let checksum = crc32c::crc32c(&batch[12..]);
        batch[8..12].copy_from_slice(&checksum.to_le_bytes());
    }
}

fn message_header(out: &mut [u8], head: MessageHead, part: u8, length: usize) {
    let length = u32::try_from(length).expect("a piece is bounded");
    out[0..4].copy_from_slice(&length.to_le_bytes());
    out[4] = head.kind;
    out[5] = part;
    out[8..16].copy_from_slice(&head.session.to_le_bytes());
}
