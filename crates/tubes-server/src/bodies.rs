//! Memory for large bodies that are being received, shared by all clients of a process.
//!
//! Owns: how much of it is promised, and who waits for a promise, oldest first.

use std::collections::VecDeque;

/// Memory promised for bodies.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    bytes_max: u64,
    promised: u64,
    waiting: VecDeque<u32>,
}

impl BodyMemory {
    /// `bytes_max` is what all bodies together may have; a single one that is larger is received alone.
    pub(crate) fn new(bytes_max: u64) -> Self {
        BodyMemory { bytes_max, promised: 0, waiting: VecDeque::new() }
    }

    /// Promises a client memory for its body; `false` if it has to wait for others, in the order of asking.
    pub(crate) fn take(&mut self, client: u32, bytes: u64) -> bool {
        let is_next = self.waiting.front().is_none_or(|first| *first == client);
        if is_next && (self.promised == 0 || self.promised.saturating_add(bytes) <= self.bytes_max) {
            self.waiting.pop_front();
            self.promised += bytes;
            return true;
        }
        if !self.waiting.contains(&client) {
            self.waiting.push_back(client);
        }
        false
    }

    /// Memory of a body that the server has got rid of.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.promised -= bytes;
    }

    /// A client is gone; it may have waited.
    pub(crate) fn forget(&mut self, client: u32) {
        self.waiting.retain(|waiting| *waiting != client);
    }

    /// Who has waited longest.
    pub(crate) fn first_waiting(&self) -> Option<u32> {
        self.waiting.front().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::BodyMemory;

    #[test]
    fn the_newest_wait_in_their_order_and_a_small_body_does_not_overtake() {
        let mut memory = BodyMemory::new(100);
        assert!(memory.take(1, 60));
        assert!(!memory.take(2, 50));
        assert!(!memory.take(3, 10), "there is room, but another has waited longer");
        assert!(!memory.take(2, 50), "asking again changes nothing");
        assert_eq!(memory.first_waiting(), Some(2));
        memory.give_back(60);
        assert!(memory.take(2, 50));
        assert!(memory.take(3, 10));
        assert_eq!(memory.first_waiting(), None);
    }

    #[test]
    fn a_body_larger_than_all_memory_is_received_alone() {
        let mut memory = BodyMemory::new(100);
        assert!(memory.take(1, 1));
        assert!(!memory.take(2, 1000));
        memory.give_back(1);
        assert!(memory.take(2, 1000));
        assert!(!memory.take(3, 1));
        assert!(!memory.take(4, 1));
        memory.forget(3);
        memory.give_back(1000);
        assert!(memory.take(4, 1));
    }
}
