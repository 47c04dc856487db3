//! Where values of one kind live: addressed by a number that is reused, in chunks that are given back when empty.
//!
//! One growing vector would copy everything when it grows, hold twice the memory while it does, and never shrink behind
//! a backlog that has been consumed.

use std::ops::{Index, IndexMut};

/// Values in one chunk. Large enough that the allocator's share per value vanishes, small enough that few survivors
/// do not hold much memory.
const CHUNK_LEN: usize = 128;

/// A set of values addressed by [`Arena::insert`]'s number.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    chunks: Vec<Chunk<T>>,
    /// Chunks with a free place; the last one is used next.
    open: Vec<u32>,
    /// Chunks that are empty and still have their memory: at most one, so that a server around zero jobs does not
    /// allocate at every put.
    empty_with_memory: usize,
    len: usize,
}

#[derive(Debug)]
struct Chunk<T> {
    values: Vec<Option<T>>,
    free: Vec<u8>,
    live: u8,
}

impl<T> Arena<T> {
    pub(crate) fn new() -> Self {
        Arena { chunks: Vec::new(), open: Vec::new(), empty_with_memory: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let number = match self.open.last() {
            Some(number) => *number,
            None => {
                let number = u32::try_from(self.chunks.len()).expect("more than 2^32 chunks");
                self.chunks.push(Chunk { values: Vec::new(), free: Vec::new(), live: 0 });
                self.open.push(number);
                number
            }
        };
        let chunk = &mut self.chunks[number as usize];
        if chunk.live == 0 && chunk.values.capacity() > 0 {
            self.empty_with_memory -= 1;
        }
        let place = match chunk.free.pop() {
            Some(place) => {
                chunk.values[usize::from(place)] = Some(value);
                u32::from(place)
            }
            None => {
                if chunk.values.capacity() == 0 {
                    chunk.values.reserve_exact(CHUNK_LEN);
                }
                chunk.values.push(Some(value));
                chunk.values.len() as u32 - 1
            }
        };
        chunk.live += 1;
        if usize::from(chunk.live) == CHUNK_LEN {
            self.open.pop();
        }
        self.len += 1;
        number.checked_mul(CHUNK_LEN as u32).expect("more than 2^32 values") + place
    }

    pub(crate) fn remove(&mut self, at: u32) -> T {
        let (number, place) = split(at);
        let chunk = &mut self.chunks[number];
        let value = chunk.values[place].take().expect("removed a value that is not there");
        if usize::from(chunk.live) == CHUNK_LEN {
            self.open.push(number as u32);
        }
        chunk.live -= 1;
        chunk.free.push(place as u8);
        if chunk.live == 0 {
            chunk.free = Vec::new();
            if self.empty_with_memory == 0 {
                self.empty_with_memory = 1;
                chunk.values.clear();
            } else {
                chunk.values = Vec::new();
            }
        }
        self.len -= 1;
        value
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        let (number, place) = split(at);
        self.chunks.get(number)?.values.get(place)?.as_ref()
    }

    /// All values with their numbers, in the order of the numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.chunks.iter().enumerate().flat_map(|(number, chunk)| {
            chunk.values.iter().enumerate().filter_map(move |(place, value)| {
                value.as_ref().map(|value| ((number * CHUNK_LEN + place) as u32, value))
            })
        })
    }

    /// All values with their numbers, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.chunks.iter_mut().enumerate().flat_map(|(number, chunk)| {
            chunk.values.iter_mut().enumerate().filter_map(move |(place, value)| {
                value.as_mut().map(|value| ((number * CHUNK_LEN + place) as u32, value))
            })
        })
    }
}

fn split(at: u32) -> (usize, usize) {
    (at as usize / CHUNK_LEN, at as usize % CHUNK_LEN)
}

impl<T> Index<u32> for Arena<T> {
    type Output = T;
    fn index(&self, at: u32) -> &T {
        let (number, place) = split(at);
        self.chunks[number].values[place].as_ref().expect("looked up a value that is not there")
    }
}

impl<T> IndexMut<u32> for Arena<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        let (number, place) = split(at);
        self.chunks[number].values[place].as_mut().expect("looked up a value that is not there")
    }
}

#[cfg(test)]
mod tests {
    use super::{Arena, CHUNK_LEN};

    #[test]
    fn memory_of_a_consumed_backlog_is_given_back() {
        let mut arena = Arena::new();
        let places: Vec<u32> = (0..100_000_u64).map(|value| arena.insert(value)).collect();
        for (value, at) in places.iter().enumerate() {
            assert_eq!(arena[*at], value as u64);
            assert_eq!(arena.remove(*at), value as u64);
        }
        assert_eq!(arena.len(), 0);
        let with_memory = arena.chunks.iter().filter(|chunk| chunk.values.capacity() > 0).count();
        assert!(with_memory <= 1, "{with_memory} chunks kept");
    }

    #[test]
    fn places_are_reused_and_never_shared() {
        let mut arena = Arena::new();
        let mut live = std::collections::BTreeMap::new();
        let mut seed = 1_u64;
        for value in 0..50_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if seed >> 63 == 0 || live.is_empty() {
                assert!(live.insert(arena.insert(value), value).is_none());
            } else {
                let at = *live.keys().nth((seed >> 33) as usize % live.len().min(50)).unwrap();
                assert_eq!(Some(arena.remove(at)), live.remove(&at));
            }
        }
        assert_eq!(arena.len(), live.len());
        assert_eq!(
            arena.iter().map(|(at, value)| (at, *value)).collect::<Vec<_>>(),
            live.into_iter().collect::<Vec<_>>()
        );
        assert!(arena.chunks.len() <= 50_000 / CHUNK_LEN + 1);
    }
}
