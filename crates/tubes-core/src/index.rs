//! From a job's id to its place in the arena.
//!
//! Ids are given densely, so they are kept in pages of consecutive ids: four bytes an id, one hash look-up a page, and
//! growing the table of pages moves only pages, never every job.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

const PAGE_LEN: usize = 64;
const VACANT: u32 = u32::MAX;

/// The map.
#[derive(Debug, Default)]
pub(crate) struct IdIndex {
    pages: HashMap<u64, Box<Page>, BuildHasherDefault<PageHasher>>,
}

#[derive(Debug)]
struct Page {
    places: [u32; PAGE_LEN],
    live: u32,
}

impl IdIndex {
    pub(crate) fn get(&self, id: u64) -> Option<u32> {
        let place = self.pages.get(&(id / PAGE_LEN as u64))?.places[id as usize % PAGE_LEN];
        (place != VACANT).then_some(place)
    }

    /// # Panics
    ///
    /// If the id is there already: an id was given twice.
    pub(crate) fn insert(&mut self, id: u64, place: u32) {
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

    /// # Panics
    ///
    /// If the id is not there.
    pub(crate) fn remove(&mut self, id: u64) {
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

/// Page numbers come from our own counter, so that a client cannot choose them to collide; one multiplication spreads
/// them.
#[derive(Debug, Default)]
pub(crate) struct PageHasher(u64);

impl Hasher for PageHasher {
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
    use super::IdIndex;

    #[test]
    fn ids_lead_to_their_places_until_removed() {
        let mut index = IdIndex::default();
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
    #[should_panic(expected = "job id 5 was given twice")]
    fn an_id_is_never_given_twice() {
        let mut index = IdIndex::default();
        index.insert(5, 0);
        index.insert(5, 1);
    }
}
