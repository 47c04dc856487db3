//! What only some systems can do with a file, and what the others do instead.
//!
//! Owns: the `cfg`s of this crate.
//! Never: fails because a facility is missing; the caller has a portable way, or does without.

#[cfg(target_os = "linux")]
pub(crate) use linux::{allocate, boot_id, drop_cache};
#[cfg(not(target_os = "linux"))]
pub(crate) use portable::{allocate, boot_id, drop_cache};

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io;

    use rustix::fs::{Advice, FallocateFlags};
    use rustix::io::Errno;

    /// Sets `bytes` bytes of space aside. `false` if this file system has no such call.
    pub(crate) fn allocate(file: &File, bytes: u64) -> io::Result<bool> {
        loop {
            match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
                Ok(()) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    pub(crate) fn drop_cache(file: &File) -> io::Result<()> {
        Ok(rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?)
    }

    /// Which run of the machine this is.
    pub(crate) fn boot_id() -> Option<[u8; 16]> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
    }
}

#[cfg(not(target_os = "linux"))]
mod portable {
    use std::fs::File;
    use std::io;

    pub(crate) fn allocate(_file: &File, _bytes: u64) -> io::Result<bool> {
        Ok(false)
    }

    pub(crate) fn drop_cache(_file: &File) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn boot_id() -> Option<[u8; 16]> {
        None
    }
}
