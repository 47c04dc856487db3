//! Memory that all processes of the server share: one page of the server, one page of figures for each process.
//!
//! Owns: the layout, and the counters whose meaning this crate knows.
//! Never: says what a figure means; its users number them.
//!
//! ```text
//! page 0                     of the server: see [`ServerPage`]
//! then, one for each slot    its figures, in the order of the topology
//! ```
//!
//! A page belongs to a slot, not to a process: counters stay when a process dies and its successor counts on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::message::{Role, Slot, Topology};
use crate::sys::SharedCounters;

/// Bytes of a page.
const PAGE_BYTES: usize = 4096;
/// Counters of a page.
pub const PAGE_COUNTERS: usize = PAGE_BYTES / size_of::<AtomicU64>();

const NEXT_ID: usize = 0;
const NEXT_TUBE: usize = 8;
const DRAINING: usize = 16;
const SUPERVISOR_PID: usize = 24;
const STARTED_BOOT_NS: usize = 25;
const REAPED_USER_US: usize = 26;
const REAPED_SYSTEM_US: usize = 27;

/// The pages of one server, mapped. Clones share the mapping.
#[derive(Debug, Clone)]
pub struct Pages {
    shared: Arc<Shared>,
    topology: Topology,
}

#[derive(Debug)]
struct Shared {
    memory: OwnedFd,
    counters: SharedCounters,
}

impl Pages {
    /// Makes the pages of a server with these slots. All counters are 0.
    ///
    /// # Errors
    ///
    /// The system has no memory by descriptor, or none left.
    pub fn create(topology: Topology) -> io::Result<Pages> {
        let memory = memfd_create("tenure-pages", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, (page_count(topology) * PAGE_BYTES) as u64)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Pages::map(memory, topology)
    }

    /// Maps pages that another process has made for these slots.
    ///
    /// # Errors
    ///
    /// `memory` is something else, or cannot be mapped.
    pub fn map(memory: OwnedFd, topology: Topology) -> io::Result<Pages> {
        let counters = SharedCounters::map(&memory, page_count(topology) * PAGE_COUNTERS)?;
        Ok(Pages { shared: Arc::new(Shared { memory, counters }), topology })
    }

    /// The page of the server.
    #[must_use]
    pub fn server(&self) -> ServerPage<'_> {
        ServerPage { page: self.page(0) }
    }

    /// The figures of a slot.
    ///
    /// # Panics
    ///
    /// If the topology has no such slot.
    #[must_use]
    pub fn figures(&self, role: Role, slot: u16) -> Page<'_> {
        let place = Slot { role, slot };
        let index = self.topology.index(place).unwrap_or_else(|| panic!("no {place} in {:?}", self.topology));
        self.page(1 + index)
    }

    /// The sum of a counter over all processes of the queue server; it wraps at 2^64. A daemon numbers its figures in its
    /// own way.
    #[must_use]
    pub fn sum(&self, counter: usize) -> u64 {
        let slots = self.topology.slots().filter(|place| place.role != Role::Daemon);
        slots.fold(0, |sum, place| {
            let page = self.figures(place.role, place.slot);
            sum.wrapping_add(page.counter(counter).load(Ordering::Relaxed))
        })
    }

    /// Which slots have a page.
    #[must_use]
    pub fn topology(&self) -> Topology {
        self.topology
    }

    fn page(&self, index: usize) -> Page<'_> {
        Page { counters: &self.shared.counters.counters()[index * PAGE_COUNTERS..][..PAGE_COUNTERS] }
    }
}

impl AsFd for Pages {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.memory.as_fd()
    }
}

fn page_count(topology: Topology) -> usize {
    1 + topology.len()
}

/// The figures of one slot. Its process alone writes them; everybody reads them.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    counters: &'a [AtomicU64],
}

impl<'a> Page<'a> {
    /// A counter by its number, below [`PAGE_COUNTERS`].
    ///
    /// # Panics
    ///
    /// If there is no such counter.
    #[must_use]
    pub fn counter(&self, index: usize) -> &'a AtomicU64 {
        &self.counters[index]
    }
}

/// What the processes of a server have in common.
#[derive(Debug, Clone, Copy)]
pub struct ServerPage<'a> {
    page: Page<'a>,
}

impl ServerPage<'_> {
    /// Takes the next count for a job id: never given twice while the server lives.
    #[must_use]
    pub fn next_id_count(&self) -> u64 {
        self.page.counter(NEXT_ID).fetch_add(1, Ordering::Relaxed)
    }

    /// The count that the next job gets, without taking it.
    #[must_use]
    pub fn peek_id_count(&self) -> u64 {
        self.page.counter(NEXT_ID).load(Ordering::Relaxed)
    }

    /// Lets no count below `count` be given any more.
    pub fn raise_id_count(&self, count: u64) {
        self.page.counter(NEXT_ID).fetch_max(count, Ordering::Relaxed);
    }

    /// Takes the next creation number for a tube: tubes of all owners sort by it.
    #[must_use]
    pub fn next_tube_number(&self) -> u64 {
        self.page.counter(NEXT_TUBE).fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the server has been told to drain. It never ends while the server lives.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.page.counter(DRAINING).load(Ordering::Acquire) != 0
    }

    pub(crate) fn set_draining(&self) {
        self.page.counter(DRAINING).store(1, Ordering::Release);
    }

    /// Process number of the supervisor: the server's `pid`.
    #[must_use]
    pub fn supervisor_pid(&self) -> u64 {
        self.page.counter(SUPERVISOR_PID).load(Ordering::Relaxed)
    }

    /// When the server started, in nanoseconds of the clock that counts from boot.
    #[must_use]
    pub fn started_boot_ns(&self) -> u64 {
        self.page.counter(STARTED_BOOT_NS).load(Ordering::Relaxed)
    }

    /// Processor time of processes that have ended, user and system, in microseconds.
    #[must_use]
    pub fn reaped_us(&self) -> (u64, u64) {
        let load = |index| self.page.counter(index).load(Ordering::Relaxed);
        (load(REAPED_USER_US), load(REAPED_SYSTEM_US))
    }

    pub(crate) fn set_started(&self, pid: u32, boot_ns: u64) {
        self.page.counter(SUPERVISOR_PID).store(u64::from(pid), Ordering::Relaxed);
        self.page.counter(STARTED_BOOT_NS).store(boot_ns, Ordering::Relaxed);
    }

    pub(crate) fn set_reaped_us(&self, user: u64, system: u64) {
        self.page.counter(REAPED_USER_US).store(user, Ordering::Relaxed);
        self.page.counter(REAPED_SYSTEM_US).store(system, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_mapping_sees_what_the_first_wrote() {
        let pages = Pages::create(Topology::several(2, 3)).unwrap();
        let copy = Pages::map(pages.as_fd().try_clone_to_owned().unwrap(), Topology::several(2, 3)).unwrap();
        pages.figures(Role::Owner, 1).counter(7).store(40, Ordering::Relaxed);
        pages.figures(Role::Frontend, 2).counter(7).fetch_add(2, Ordering::Relaxed);
        assert_eq!(copy.sum(7), 42);
        assert_eq!(copy.sum(6), 0);
        pages.server().raise_id_count(10);
        assert_eq!(copy.server().next_id_count(), 10);
        assert_eq!(pages.server().next_id_count(), 11);
        copy.server().raise_id_count(3);
        assert_eq!(pages.server().peek_id_count(), 12);
        pages.server().set_draining();
        assert!(copy.server().is_draining());
    }

    #[test]
    fn each_slot_has_a_page_of_its_own_and_the_daemons_counts_for_itself() {
        let topology = Topology { daemon: true, ..Topology::several(2, 2) };
        let pages = Pages::create(topology).unwrap();
        for (index, place) in topology.slots().enumerate() {
            assert_eq!(topology.index(place), Some(index));
            pages.figures(place.role, place.slot).counter(3).store(10_u64.pow(index as u32), Ordering::Relaxed);
        }
        assert_eq!(topology.len(), 5);
        assert_eq!(topology.index(Slot { role: Role::Tubes, slot: 0 }), None);
        assert_eq!(pages.figures(Role::Daemon, 0).counter(3).load(Ordering::Relaxed), 10_000);
        assert_eq!(pages.sum(3), 1_111);
    }

    #[test]
    fn the_size_of_pages_cannot_change() {
        let pages = Pages::create(Topology::several(1, 1)).unwrap();
        assert!(ftruncate(pages.as_fd(), 0).is_err());
        assert!(ftruncate(pages.as_fd(), 1 << 20).is_err());
    }

    #[test]
    fn memory_that_is_unsealed_or_too_small_is_refused() {
        let memory = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, 1 << 20).unwrap();
        assert!(Pages::map(memory, Topology::several(1, 1)).is_err());
        let small = Pages::create(Topology::several(1, 1)).unwrap();
        assert!(Pages::map(small.as_fd().try_clone_to_owned().unwrap(), Topology::several(2, 1)).is_err());
    }
}
