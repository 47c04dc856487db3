//! The allocator. The only module of this crate with `unsafe`.
//!
//! On Linux it is one that is quick with small bodies; elsewhere the system's serves.

#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives memory that is free back to the system at once; by itself the allocator waits for more to do, which may not
/// come behind a backlog.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the call is the allocator's C interface")]
pub(crate) fn give_back() {
    // SAFETY: the function takes no pointer, may be called by any thread at any time, and touches free memory only.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

/// The system's allocator decides for itself.
#[cfg(not(target_os = "linux"))]
pub(crate) fn give_back() {}
