//! What has been answered and not yet been taken by the clients.
//!
//! Owns: one buffer of bytes per connection, and which of them may be sent. With a log that is synced before each reply
//! the bytes of a turn are held until the batch that covers the turn has been synced.

use crate::figures::ProcessFigures;
use crate::metrics::name;
use std::collections::VecDeque;
use tubes_core::{Outbox, SessionId};
use tubes_protocol::{Reply, ServerStats};

/// Buffers kept for reuse, and the largest that is kept; what lies above goes back to the allocator.
const SPARE_BUFFERS: usize = 256;
const SPARE_BUFFER_BYTES: usize = 16 * 1024;

/// The buffers of all connections, by session.
#[derive(Debug)]
pub(crate) struct Outputs {
    slots: Vec<Output>,
    /// Sessions to which something was added, or became sendable, in this turn.
    dirty: Vec<u32>,
    /// Sessions whose waiting reserve was answered in this turn; their later commands can go on.
    woken: Vec<u32>,
    /// Sessions with held bytes, by the batch they wait for.
    holding: VecDeque<(u64, u32)>,
    spare: Vec<Vec<u8>>,
    /// The clock of the turn.
    pub(crate) now_ns: u64,
    pub(crate) figures: ProcessFigures,
    /// Figures of the log, renewed before each `stats`.
    pub(crate) log: LogFigures,
    #[cfg(feature = "trace")]
    pub(crate) trace: Option<crate::trace::Trace>,
}

/// What `stats`, status and metrics say of the log.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LogFigures {
    pub(crate) oldest_segment: u64,
    pub(crate) current_segment: u64,
    pub(crate) records_migrated: u64,
    pub(crate) records_written: u64,
    pub(crate) segment_bytes: u64,
    /// Of all segments.
    pub(crate) bytes: u64,
    /// Records that wait in memory.
    pub(crate) pending_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) syncs: u64,
    pub(crate) records_synced: u64,
    /// Wall time of the end of the last sync; 0 before the first.
    pub(crate) last_sync_ms: u64,
    /// Puts are refused for want of space.
    pub(crate) has_no_space: bool,
}

impl LogFigures {
    /// By the names of metrics.
    pub(crate) fn shown(&self) -> [(String, u64); 11] {
        [
            (name::LOG_OLDEST_SEGMENT, self.oldest_segment),
            (name::LOG_CURRENT_SEGMENT, self.current_segment),
            (name::LOG_RECORDS_MIGRATED, self.records_migrated),
            (name::LOG_RECORDS_WRITTEN, self.records_written),
            (name::LOG_BYTES, self.bytes),
            (name::LOG_PENDING_BYTES, self.pending_bytes),
            (name::LOG_WRITTEN_BYTES, self.written_bytes),
            (name::LOG_SYNCS, self.syncs),
            (name::LOG_RECORDS_SYNCED, self.records_synced),
            (name::LOG_LAST_SYNC_MS, self.last_sync_ms),
            (name::LOG_HAS_NO_SPACE, self.has_no_space.into()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
    }
}

#[derive(Debug, Default)]
struct Output {
    bytes: Vec<u8>,
    /// How many of `bytes` the client has taken.
    sent: usize,
    /// Length of `bytes` when the turn began, and replies added since: what a failing log takes back.
    turn_start: usize,
    turn_replies: usize,
    /// Held stretches of `bytes`: where each begins and the batch it waits for. All behind the first is held too.
    held: VecDeque<(usize, u64)>,
    is_dirty: bool,
    waits: bool,
}

impl Output {
    /// Puts the slot into the list of dirty ones, once.
    fn mark(&mut self, session: u32, dirty: &mut Vec<u32>) {
        if !std::mem::replace(&mut self.is_dirty, true) {
            dirty.push(session);
        }
    }
}

impl Outputs {
    /// `segment_bytes` is what `stats` says of the log's segments, also without a log.
    pub(crate) fn new(figures: ProcessFigures, segment_bytes: u64) -> Self {
        Outputs {
            slots: Vec::new(),
            dirty: Vec::new(),
            woken: Vec::new(),
            holding: VecDeque::new(),
            spare: Vec::new(),
            now_ns: 0,
            figures,
            log: LogFigures { segment_bytes, ..LogFigures::default() },
            #[cfg(feature = "trace")]
            trace: None,
        }
    }

    /// A session begins: its slot is empty.
    pub(crate) fn open(&mut self, session: SessionId) {
        let at = session.0 as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, Output::default);
        }
        self.slots[at] = Output::default();
    }

    /// A session has ended: what it has not taken is dropped.
    pub(crate) fn close(&mut self, session: SessionId) {
        let slot = &mut self.slots[session.0 as usize];
        let bytes = std::mem::take(slot).bytes;
        // It may still stand in the list of dirty slots, where an empty one does no harm.
        self.recycle(bytes);
    }

    /// Bytes that the client has not taken yet.
    pub(crate) fn pending(&self, session: SessionId) -> usize {
        let slot = &self.slots[session.0 as usize];
        slot.bytes.len() - slot.sent
    }

    /// The session's reserve waits: its next reply wakes it.
    pub(crate) fn mark_waiting(&mut self, session: SessionId) {
        self.slots[session.0 as usize].waits = true;
    }

    /// The end of the turn sends what may be sent to the session.
    pub(crate) fn mark_dirty(&mut self, session: SessionId) {
        self.slots[session.0 as usize].mark(session.0, &mut self.dirty);
    }

    /// Sessions woken since the last call.
    pub(crate) fn take_woken(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.woken)
    }

    /// Whether [`Outputs::take_woken`] would return some.
    pub(crate) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Whether something is left for the next turn: a client that went while replies were sent may have made a job
    /// ready for another.
    pub(crate) fn has_work(&self) -> bool {
        !self.woken.is_empty() || !self.dirty.is_empty()
    }

    /// Ends a turn's answers. With `batch` they wait until that batch of the log has been synced; without, they may be
    /// sent now.
    pub(crate) fn end_turn(&mut self, batch: Option<u64>) {
        for session in &self.dirty {
            let slot = &mut self.slots[*session as usize];
            if let Some(batch) = batch
                && slot.bytes.len() > slot.turn_start
            {
                slot.held.push_back((slot.turn_start, batch));
                self.holding.push_back((batch, *session));
            }
            slot.turn_start = slot.bytes.len();
            slot.turn_replies = 0;
        }
    }

    /// Everything up to and including `batch` has been synced.
    pub(crate) fn release(&mut self, batch: u64) {
        while let Some((waits_for, session)) = self.holding.front().copied()
            && waits_for <= batch
        {
            self.holding.pop_front();
            let slot = &mut self.slots[session as usize];
            while slot.held.front().is_some_and(|held| held.1 <= batch) {
                slot.held.pop_front();
            }
            slot.mark(session, &mut self.dirty);
        }
    }

    /// The log has failed: what this turn answered is taken back and answered `INTERNAL_ERROR`; what waits for a sync
    /// is dropped.
    pub(crate) fn fail_turn(&mut self) {
        for session in &self.dirty {
            let slot = &mut self.slots[*session as usize];
            slot.bytes.truncate(slot.turn_start);
            if slot.held.is_empty() {
                for _ in 0..slot.turn_replies {
                    Reply::InternalError.encode(&mut slot.bytes);
                }
            }
            slot.turn_replies = 0;
        }
    }

    /// Sessions with something to send; the caller writes each and reports with [`Outputs::sent`].
    pub(crate) fn take_dirty(&mut self) -> Vec<u32> {
        for session in &self.dirty {
            self.slots[*session as usize].is_dirty = false;
        }
        std::mem::take(&mut self.dirty)
    }

    /// Gives the list back, emptied, so that no turn allocates one.
    pub(crate) fn return_dirty(&mut self, mut list: Vec<u32>) {
        if self.dirty.is_empty() {
            list.clear();
            self.dirty = list;
        }
    }

    /// The bytes that may be sent to the session now.
    pub(crate) fn sendable(&self, session: SessionId) -> &[u8] {
        let slot = &self.slots[session.0 as usize];
        let end = slot.held.front().map_or(slot.bytes.len(), |held| held.0);
        &slot.bytes[slot.sent.min(end)..end]
    }

    /// The client took so many bytes.
    pub(crate) fn sent(&mut self, session: SessionId, count: usize) {
        let slot = &mut self.slots[session.0 as usize];
        slot.sent += count;
        if slot.sent == slot.bytes.len() {
            slot.sent = 0;
            slot.turn_start = 0;
            let bytes = std::mem::take(&mut slot.bytes);
            self.recycle(bytes);
        } else if slot.sent > SPARE_BUFFER_BYTES && slot.sent > slot.bytes.len() / 2 {
            // A client that reads slowly must not make the buffer grow by what it has taken already.
            slot.bytes.drain(..slot.sent);
            slot.turn_start -= slot.sent.min(slot.turn_start);
            for held in &mut slot.held {
                held.0 -= slot.sent;
            }
            slot.sent = 0;
        }
    }

    /// Whether nothing is left for any client.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.iter().all(|slot| slot.bytes.is_empty())
    }

    fn recycle(&mut self, mut bytes: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS && (1..=SPARE_BUFFER_BYTES).contains(&bytes.capacity()) {
            bytes.clear();
            self.spare.push(bytes);
        }
    }
}

impl Outputs {
    #[inline]
    fn add(&mut self, session: SessionId, write: impl FnOnce(&mut Vec<u8>)) {
        let slot = &mut self.slots[session.0 as usize];
        if slot.bytes.capacity() == 0
            && let Some(spare) = self.spare.pop()
        {
            slot.bytes = spare;
        }
        write(&mut slot.bytes);
        slot.turn_replies += 1;
        slot.mark(session.0, &mut self.dirty);
    }
}

/// What a frontend needs, whose replies are made elsewhere.
#[cfg(target_os = "linux")]
impl Outputs {
    /// The session can go on with what it sent.
    pub(crate) fn wake(&mut self, session: SessionId) {
        if std::mem::take(&mut self.slots[session.0 as usize].waits) {
            self.woken.push(session.0);
        }
    }

    /// Queues bytes that are encoded already.
    pub(crate) fn push(&mut self, session: SessionId, bytes: &[u8]) {
        self.add(session, |out| out.extend_from_slice(bytes));
    }

    /// Queues the figures of a whole server, to which those of the machine are added.
    pub(crate) fn whole_stats(&mut self, session: SessionId, mut stats: ServerStats) {
        self.figures.name(&mut stats);
        stats.binlog_max_size = self.log.segment_bytes;
        self.add(session, |out| Reply::ServerStats(&stats).encode(out));
    }
}

impl Outbox for Outputs {
    fn reply(&mut self, session: SessionId, reply: &Reply<'_>) {
        self.add(session, |out| reply.encode(out));
        let slot = &mut self.slots[session.0 as usize];
        if slot.waits {
            slot.waits = false;
            self.woken.push(session.0);
        }
        #[cfg(feature = "trace")]
        if let Some(trace) = &mut self.trace {
            trace.reply(session, self.now_ns);
        }
    }

    fn stats(&mut self, session: SessionId, mut stats: ServerStats) {
        self.figures.complete(&mut stats, self.now_ns);
        stats.binlog_oldest_index = self.log.oldest_segment;
        stats.binlog_current_index = self.log.current_segment;
        stats.binlog_records_migrated = self.log.records_migrated;
        stats.binlog_records_written = self.log.records_written;
        stats.binlog_max_size = self.log.segment_bytes;
        self.figures.complete_server(&mut stats);
        self.reply(session, &Reply::ServerStats(&stats));
    }
}
