//! Memory that all processes of the server share: one page of the server, one page of figures for each process.
//!
//! Owns: the layout, and the counters whose meaning this crate knows.
//! Never: says what a figure means; its users number them.
//!
//! ```text
//! page 0                     of the server: see [`ServerPage`]
//! page 1 … owners            figures of owner 0 …
//! then, one for each         figures of frontend 0 …
//! ```
//!
//! A page belongs to a slot, not to a process: counters stay when a process dies and its successor counts on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::message::Role;
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
    owners: u16,
    frontends: u16,
}

#[derive(Debug)]
struct Shared {
    memory: OwnedFd,
    counters: SharedCounters,
}

impl Pages {
    /// Makes the pages of a server with so many processes. All counters are 0.
    ///
    /// # Errors
    ///
    /// The system has no memory by descriptor, or none left.
    pub fn create(owners: u16, frontends: u16) -> io::Result<Pages> {
        let memory = memfd_create("tenure-pages", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, (page_count(owners, frontends) * PAGE_BYTES) as u64)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Pages::map(memory, owners, frontends)
    }

    /// Maps pages that another process has made for so many processes.
    ///
    /// # Errors
    ///
    /// `memory` is something else, or cannot be mapped.
    pub fn map(memory: OwnedFd, owners: u16, frontends: u16) -> io::Result<Pages> {
        let counters = SharedCounters::map(&memory, page_count(owners, frontends) * PAGE_COUNTERS)?;
        Ok(Pages { shared: Arc::new(Shared { memory, counters }), owners, frontends })
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
        let index = match role {
            Role::Owner => {
                assert!(slot < self.owners, "no owner {slot}: there are {}", self.owners);
                1 + usize::from(slot)
            }
            Role::Frontend => {
                assert!(slot < self.frontends, "no frontend {slot}: there are {}", self.frontends);
                1 + usize::from(self.owners) + usize::from(slot)
            }
        };
        self.page(index)
    }

    /// The figures of all owners, then of all frontends, each in the order of its slots.
    pub fn all_figures(&self) -> impl Iterator<Item = Page<'_>> {
        (1..page_count(self.owners, self.frontends)).map(|index| self.page(index))
    }

    /// The sum of a counter over all processes; it wraps at 2^64.
    #[must_use]
    pub fn sum(&self, counter: usize) -> u64 {
        self.all_figures().fold(0, |sum, page| sum.wrapping_add(page.counter(counter).load(Ordering::Relaxed)))
    }

    /// How many owners have a page.
    #[must_use]
    pub fn owners(&self) -> u16 {
        self.owners
    }

    /// How many frontends have a page.
    #[must_use]
    pub fn frontends(&self) -> u16 {
        self.frontends
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

fn page_count(owners: u16, frontends: u16) -> usize {
    1 + usize::from(owners) + usize::from(frontends)
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
        let pages = Pages::create(2, 3).unwrap();
        let copy = Pages::map(pages.as_fd().try_clone_to_owned().unwrap(), 2, 3).unwrap();
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
    fn the_size_of_pages_cannot_change() {
        let pages = Pages::create(1, 1).unwrap();
        assert!(ftruncate(pages.as_fd(), 0).is_err());
        assert!(ftruncate(pages.as_fd(), 1 << 20).is_err());
    }

    #[test]
    fn memory_that_is_unsealed_or_too_small_is_refused() {
        let memory = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, 1 << 20).unwrap();
        assert!(Pages::map(memory, 1, 1).is_err());
        let small = Pages::create(1, 1).unwrap();
        assert!(Pages::map(small.as_fd().try_clone_to_owned().unwrap(), 2, 1).is_err());
    }
}
