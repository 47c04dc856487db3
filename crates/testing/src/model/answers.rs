//! Replies as the bytes of the wire, by session.

use tubes_core::{Outbox, SessionId};
use tubes_protocol::{Reply, ServerStats};

/// The replies of a step, in the order they were given. Both the engine and the model write into one of these, so that
/// comparing the two is comparing bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers {
    bytes: Vec<u8>,
    /// Session and end of its reply in `bytes`.
    ends: Vec<(u32, usize)>,
}

impl Answers {
    /// Appends a reply to `session`.
    pub fn add(&mut self, session: u32, reply: &Reply<'_>) {
        reply.encode(&mut self.bytes);
        self.ends.push((session, self.bytes.len()));
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Whether nothing was answered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Sessions and the bytes of their replies.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let begins = std::iter::once(0).chain(self.ends.iter().map(|(_, end)| *end));
        begins.zip(&self.ends).map(|(begin, (session, end))| (*session, &self.bytes[begin..*end]))
    }

    /// Whether every session got the same replies in the same order. The order between sessions is not compared: no
    /// client can see it.
    #[must_use]
    pub fn same_for_each_session(&self, other: &Answers) -> bool {
        if self == other {
            return true;
        }
        let sorted = |answers: &Answers| {
            let mut all: Vec<(u32, Vec<u8>)> = answers.iter().map(|(who, what)| (who, what.to_vec())).collect();
            all.sort_by_key(|(session, _)| *session);
            all
        };
        sorted(self) == sorted(other)
    }

    /// A number that differs for different replies, by and large.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let mut hash = self.ends.len() as u64;
        for piece in self.bytes.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 31;
        }
        hash
    }

    /// The replies in words, for a message about a mismatch.
    #[must_use]
    pub fn in_words(&self) -> String {
        let lines =
            self.iter().map(|(session, reply)| format!("{session}: {}", String::from_utf8_lossy(reply).trim_end()));
        lines.collect::<Vec<_>>().join(" | ")
    }
}

impl Outbox for Answers {
    fn reply(&mut self, session: SessionId, reply: &Reply<'_>) {
        self.add(session.0, reply);
    }

    fn stats(&mut self, session: SessionId, stats: ServerStats) {
        self.add(session.0, &Reply::ServerStats(&stats));
    }
}
