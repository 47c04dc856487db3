//! The ready jobs of one tube, in order.
//!
//! An ordered set, like the standard library's, made for keys that mostly arrive in rising order and leave from the
//! front: keys lie in runs of up to [`RUN_LEN`], and a run that fills up at the end of the set is left full. So a key
//! takes hardly more than its 16 bytes; a B-tree that fills in rising order leaves half of each node empty, which for a
//! million ready jobs is a sixth of all memory.

use std::collections::{BTreeMap, VecDeque};

/// Keys in a run, at most: inserting into its middle moves half a kilobyte at most.
const RUN_LEN: usize = 64;

/// A ready job's place in the order of its tube; `place` is its number in the arena and never decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReadyKey {
    pub(crate) pri: u32,
    id_high: u32,
    id_low: u32,
    pub(crate) place: u32,
}

// 16 bytes instead of 24: the id is split so that it needs no alignment of its own.
const _: () = assert!(size_of::<ReadyKey>() == 16);

impl ReadyKey {
    pub(crate) fn new(pri: u32, id: u64, place: u32) -> Self {
        ReadyKey { pri, id_high: (id >> 32) as u32, id_low: id as u32, place }
    }

    /// What is compared between tubes.
    pub(crate) fn rank(self) -> (u32, u64) {
        (self.pri, u64::from(self.id_high) << 32 | u64::from(self.id_low))
    }
}

/// The set.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueue {
    /// By a key that is not larger than any of the run and larger than all of the run before. No run is empty.
    runs: BTreeMap<ReadyKey, VecDeque<ReadyKey>>,
    len: usize,
}

impl ReadyQueue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The smallest key.
    pub(crate) fn first(&self) -> Option<ReadyKey> {
        self.runs.first_key_value().and_then(|(_, run)| run.front().copied())
    }

    /// Adds a key that is not there.
    pub(crate) fn insert(&mut self, key: ReadyKey) {
        self.len += 1;
        // The run that the key belongs to: the last that begins before it, else the first.
        let Some((_, run)) = self.runs.range_mut(..=key).next_back() else {
            return self.insert_before_all(key);
        };
        if run.len() < RUN_LEN {
            return insert_sorted(run, key);
        }
        if run.back().is_some_and(|last| *last < key) {
            // Behind a full run: keys that come in rising order fill one run after the other.
            self.runs.insert(key, VecDeque::from([key]));
            return;
        }
        let mut high = run.split_off(RUN_LEN / 2);
        let middle = high[0];
        insert_sorted(if key < middle { run } else { &mut high }, key);
        self.runs.insert(middle, high);
    }

    fn insert_before_all(&mut self, key: ReadyKey) {
        match self.runs.pop_first() {
            // The first run takes it, under a lower bound that fits it too.
            Some((_, mut run)) if run.len() < RUN_LEN => {
                run.push_front(key);
                self.runs.insert(key, run);
            }
            first => {
                self.runs.extend(first);
                self.runs.insert(key, VecDeque::from([key]));
            }
        }
    }

    /// Removes a key; `false` if it was not there.
    pub(crate) fn remove(&mut self, key: ReadyKey) -> bool {
        let Some((bound, run)) = self.runs.range_mut(..=key).next_back() else { return false };
        let Ok(at) = run.binary_search(&key) else { return false };
        run.remove(at);
        self.len -= 1;
        if run.is_empty() {
            let bound = *bound;
            self.runs.remove(&bound);
        } else if run.len() * 4 < run.capacity() && run.capacity() > 8 {
            // A few survivors do not hold the memory of a full run.
            run.shrink_to(run.len() * 2);
        }
        true
    }

    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = ReadyKey> {
        self.runs.values().flatten().copied()
    }

    /// Whether the key is there.
    pub(crate) fn contains(&self, key: ReadyKey) -> bool {
        self.runs.range(..=key).next_back().is_some_and(|(_, run)| run.binary_search(&key).is_ok())
    }
}

impl FromIterator<ReadyKey> for ReadyQueue {
    fn from_iter<I: IntoIterator<Item = ReadyKey>>(keys: I) -> Self {
        let mut sorted: Vec<ReadyKey> = keys.into_iter().collect();
        sorted.sort_unstable();
        let runs = sorted.chunks(RUN_LEN).map(|run| (run[0], run.iter().copied().collect())).collect();
        ReadyQueue { runs, len: sorted.len() }
    }
}

fn insert_sorted(run: &mut VecDeque<ReadyKey>, key: ReadyKey) {
    if run.back().is_none_or(|last| *last < key) {
        run.push_back(key);
    } else {
        let at = run.binary_search(&key).expect_err("a ready job is queued once");
        run.insert(at, key);
    }
}

#[cfg(test)]
mod tests {
    use super::{RUN_LEN, ReadyKey, ReadyQueue};
    use std::collections::BTreeSet;

    /// Plays the same random operations on the queue and on an ordered set.
    fn compare(seed: u64, pri_below: u64, insert_percent: u64) {
        let mut queue = ReadyQueue::default();
        let mut set = BTreeSet::new();
        let mut state = seed;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for id in 0..20_000 {
            if random(100) < insert_percent {
                let key = ReadyKey::new(random(pri_below) as u32, id, id as u32);
                queue.insert(key);
                set.insert(key);
            } else if random(3) > 0 {
                assert_eq!(queue.first(), set.first().copied());
                if let Some(key) = set.pop_first() {
                    assert!(queue.remove(key));
                }
            } else if let Some(key) = set.iter().nth(random(set.len().max(1) as u64) as usize).copied() {
                set.remove(&key);
                assert!(queue.contains(key));
                assert!(queue.remove(key));
                assert!(!queue.contains(key));
                assert!(!queue.remove(key));
            }
            assert_eq!(queue.len(), set.len());
        }
        assert!(queue.iter().eq(set.iter().copied()), "seed {seed}");
        assert!(queue.iter().collect::<ReadyQueue>().iter().eq(set.iter().copied()), "seed {seed}");
        while let Some(key) = queue.first() {
            assert_eq!(set.pop_first(), Some(key));
            assert!(queue.remove(key));
        }
        assert!(queue.is_empty() && queue.runs.is_empty());
    }

    #[test]
    fn it_behaves_like_an_ordered_set() {
        for seed in 0..8 {
            compare(seed, 1, 60);
            compare(seed, 1 << 32, 60);
            compare(seed, 3, 51);
            compare(seed, 1000, 90);
        }
    }

    #[test]
    fn keys_in_rising_order_fill_every_run() {
        let mut queue = ReadyQueue::default();
        for id in 0..10_000 {
            queue.insert(ReadyKey::new(0, id, 0));
        }
        assert_eq!(queue.runs.len(), 10_000_usize.div_ceil(RUN_LEN));
        assert!(queue.runs.values().all(|run| run.capacity() <= RUN_LEN));
    }

    #[test]
    fn survivors_do_not_hold_the_memory_of_full_runs() {
        let mut queue = ReadyQueue::default();
        for id in 0..64_000 {
            queue.insert(ReadyKey::new(0, id, 0));
        }
        for id in (0..64_000).filter(|id| id % 64 != 0) {
            assert!(queue.remove(ReadyKey::new(0, id, 0)));
        }
        let held: usize = queue.runs.values().map(std::collections::VecDeque::capacity).sum();
        assert!(held <= 8 * queue.len(), "{held} places for {} keys", queue.len());
    }
}
