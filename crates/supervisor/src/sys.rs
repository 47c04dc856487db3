//! Mapping of shared pages, and descriptors that are known by number only. The only module of this crate with `unsafe`.
#![expect(unsafe_code, reason = "a mapping and a descriptor known by its number have no owner in the type system")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::io::{Errno, FdFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Bytes of a counter.
const COUNTER_BYTES: usize = size_of::<AtomicU64>();

/// Counters in memory that other processes map as well.
#[derive(Debug)]
pub(crate) struct SharedCounters {
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: it is memory that lives as long as the value and is reached through atomics only, from whatever thread.
unsafe impl Send for SharedCounters {}
// SAFETY: as above; `counters` gives shared references to atomics only.
unsafe impl Sync for SharedCounters {}

impl SharedCounters {
    /// Maps the first `count` counters of `memory`, whose size must be sealed: pages that another process could cut
    /// off would end this one at its next access.
    pub(crate) fn map(memory: impl AsFd, count: usize) -> io::Result<SharedCounters> {
        use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
        let seals = fcntl_get_seals(&memory)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::other("the shared pages are not sealed"));
        }
        let bytes = count * COUNTER_BYTES;
        if u64::try_from(fstat(&memory)?.st_size).unwrap_or(0) < bytes as u64 {
            return Err(io::Error::other("there are fewer shared pages than processes"));
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &memory,
                0,
            )?
        };
        let start = NonNull::new(address.cast::<AtomicU64>()).ok_or(Errno::NOMEM)?;
        Ok(SharedCounters { start, count })
    }

    /// All counters.
    pub(crate) fn counters(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `count` counters, is page-aligned, lives until this value is dropped, and cannot be cut
        // off (its seal was checked). Every bit pattern is a counter, and everyone reaches them through atomics only.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for SharedCounters {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `map`, and nobody can borrow from it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.count * COUNTER_BYTES) };
    }
}

/// The open descriptors of this process above the three standard ones, from the list that the kernel keeps.
pub(crate) fn open_descriptors() -> io::Result<Vec<RawFd>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        if let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok())
            && number > 2
        {
            numbers.push(number);
        }
    }
    // The descriptor of the listing itself was in the list and is closed by now.
    numbers.retain(|number| descriptor_flags(*number).is_some());
    Ok(numbers)
}

/// Lets no program that this process starts have the descriptor `number`.
pub(crate) fn close_on_exec(number: RawFd) {
    // SAFETY: the number is borrowed for one call, which neither closes nor reads it; if it is not open the call fails.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    if let Ok(flags) = rustix::io::fcntl_getfd(descriptor) {
        let _ = rustix::io::fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC);
    }
}

fn descriptor_flags(number: RawFd) -> Option<FdFlags> {
    // SAFETY: the number is borrowed for one call, which neither closes nor reads it; if it is not open the call fails.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(descriptor).ok()
}
