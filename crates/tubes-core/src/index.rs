//! From a job's id to its place in the arena.
//!
//! Ids are given densely, so they are kept in pages of consecutive ids: four bytes an id, one hash look-up a page, and
//! growing the table of pages moves only pages, never every job.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

const PAGE_LEN: usize = 64;
const VACANT: u32 = u32::MAX;

/// Ids of one server: dense from 1 in single mode; in multi mode `counter × 64 + partition`, of which an owner sees every
/// counter at most once, so that the counter is what is looked up. Ids given before the server was divided are below a
/// bound and looked up as they are.
#[derive(Debug)]
pub(crate) struct IdIndex {
    as_they_are: Pages,
    by_counter: Pages,
    /// Ids from here on carry a partition.
    partitioned_from: u64,
}

/// The factor between counter and id.
const PARTITIONS: u64 = crate::PARTITIONS as u64;

impl IdIndex {
    /// Ids without partitions.
    pub(crate) fn dense() -> Self {
        Self::partitioned(u64::MAX)
    }

    /// Ids that carry a partition from `from` on.
    pub(crate) fn partitioned(from: u64) -> Self {
        IdIndex { as_they_are: Pages::default(), by_counter: Pages::default(), partitioned_from: from }
    }

    /// The place of the job `id`, or of another job with the same counter: the caller compares.
    pub(crate) fn get(&self, id: u64) -> Option<u32> {
        if id < self.partitioned_from { self.as_they_are.get(id) } else { self.by_counter.get(id / PARTITIONS) }
    }

    /// # Panics
    ///
    /// If the id is there already: an id was given twice.
    pub(crate) fn insert(&mut self, id: u64, place: u32) {
        if id < self.partitioned_from {
            self.as_they_are.insert(id, place);
        } else {
            self.by_counter.insert(id / PARTITIONS, place);
        }
    }

    /// # Panics
    ///
    /// If the id is not there.
    pub(crate) fn remove(&mut self, id: u64) {
        if id < self.partitioned_from {
            self.as_they_are.remove(id);
        } else {
            self.by_counter.remove(id / PARTITIONS);
        }
    }
}

/// The map.
#[derive(Debug, Default)]
struct Pages {
    pages: HashMap<u64, Box<Page>, BuildHasherDefault<NumberHasher>>,
}

#[derive(Debug)]
struct Page {
    places: [u32; PAGE_LEN],
    live: u32,
}

impl Pages {
    fn get(&self, id: u64) -> Option<u32> {
        let place = self.pages.get(&(id / PAGE_LEN as u64))?.places[id as usize % PAGE_LEN];
        (place != VACANT).then_some(place)
    }

    fn insert(&mut self, id: u64, place: u32) {
        assert_ne!(place, VACANT, "the last place cannot be told from a vacant one");
        let page = self
            .pages
            .entry(id / PAGE_LEN as u64)
            .or_insert_with(|| Box::new(Page { places: [VACANT; PAGE_LEN], live: 0 }));
        let entry = &mut page.places[id as usize % PAGE_LEN];
        assert_eq!(*entry, VACANT, "job id {id} was given twice");
        *entry = place;
        page.live += 1;
    }

    fn remove(&mut self, id: u64) {
        let number = id / PAGE_LEN as u64;
        let page = self.pages.get_mut(&number).expect("removed an id that is not there");
        assert_ne!(page.places[id as usize % PAGE_LEN], VACANT, "removed an id that is not there");
        page.places[id as usize % PAGE_LEN] = VACANT;
        page.live -= 1;
        if page.live == 0 {
            self.pages.remove(&number);
            // A table that has become nearly empty gives its memory back.
            if self.pages.capacity() > 1024 && self.pages.len() < self.pages.capacity() / 8 {
                self.pages.shrink_to(self.pages.len() * 2);
            }
        }
    }
}

/// Spreads numbers that come from our own counters, so that no client can choose them to collide: one multiplication.
#[derive(Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::{IdIndex, Pages};

    #[test]
    fn ids_lead_to_their_places_until_removed() {
        let mut index = Pages::default();
        for id in 1..10_000 {
            index.insert(id, (id * 3) as u32);
        }
        assert_eq!(index.get(0), None);
        assert_eq!(index.get(u64::MAX), None);
        for id in 1..10_000 {
            assert_eq!(index.get(id), Some((id * 3) as u32));
            index.remove(id);
            assert_eq!(index.get(id), None);
        }
        assert!(index.pages.is_empty());
    }

    #[test]
    fn ids_with_a_partition_take_no_more_room_than_dense_ones() {
        let mut index = IdIndex::partitioned(1000);
        for counter in 16..10_000 {
            index.insert(counter * 64 + counter % 64, counter as u32);
        }
        index.insert(999, 7);
        assert!(index.by_counter.pages.len() <= 10_000 / super::PAGE_LEN + 1);
        for counter in 16..10_000 {
            assert_eq!(index.get(counter * 64 + counter % 64), Some(counter as u32));
        }
        assert_eq!(index.get(999), Some(7));
        index.remove(999);
        assert_eq!(index.get(999), None);
    }

    #[test]
    #[should_panic(expected = "job id 5 was given twice")]
    fn an_id_is_never_given_twice() {
        let mut index = Pages::default();
        index.insert(5, 0);
        index.insert(5, 1);
    }
}
