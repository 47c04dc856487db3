//! What systems do differently. Everything else of this crate is alike on all of them.

use nix::unistd::{Gid, Uid};
use rustix::time::ClockId;
use std::io;
use std::os::fd::AsFd;

/// Counts suspend where the system has such a clock, and no step of the wall clock.
#[cfg(target_os = "linux")]
pub(crate) const STEADY_CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
pub(crate) const STEADY_CLOCK: ClockId = ClockId::Monotonic;

/// Sent when a file grows over the limit of its size; the number is the same on all systems that single mode runs on.
pub(crate) const SIGXFSZ: i32 = 25;

/// Fills `buffer`, or a part of it, with bytes nobody can guess.
#[cfg(target_os = "linux")]
pub(crate) fn random(buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::rand::getrandom(buffer, rustix::rand::GetRandomFlags::empty())?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn random(buffer: &mut [u8]) -> io::Result<usize> {
    io::Read::read(&mut std::fs::File::open("/dev/urandom")?, buffer)
}

/// Whether a socket listens; where the system does not say so, accepting will.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn listens(socket: impl AsFd) -> bool {
    rustix::net::sockopt::socket_acceptconn(socket).unwrap_or(true)
}

#[cfg(target_vendor = "apple")]
pub(crate) fn listens(_socket: impl AsFd) -> bool {
    true
}

/// Gives up supplementary groups. Apple's list cannot be set; there the switch of the group replaces it.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn drop_groups() -> nix::Result<()> {
    nix::unistd::setgroups(&[])
}

#[cfg(target_vendor = "apple")]
pub(crate) fn drop_groups() -> nix::Result<()> {
    Ok(())
}

/// Sets real, effective and, where there is one, saved group.
#[cfg(any(target_os = "linux", target_os = "freebsd", target_os = "openbsd"))]
pub(crate) fn set_gid(gid: Gid) -> nix::Result<()> {
    nix::unistd::setresgid(gid, gid, gid)
}

#[cfg(not(any(target_os = "linux", target_os = "freebsd", target_os = "openbsd")))]
pub(crate) fn set_gid(gid: Gid) -> nix::Result<()> {
    nix::unistd::setgid(gid)
}

/// Sets real, effective and, where there is one, saved user.
#[cfg(any(target_os = "linux", target_os = "freebsd", target_os = "openbsd"))]
pub(crate) fn set_uid(uid: Uid) -> nix::Result<()> {
    nix::unistd::setresuid(uid, uid, uid)
}

#[cfg(not(any(target_os = "linux", target_os = "freebsd", target_os = "openbsd")))]
pub(crate) fn set_uid(uid: Uid) -> nix::Result<()> {
    nix::unistd::setuid(uid)
}

/// No program that this process starts can gain what it has given up.
#[cfg(target_os = "linux")]
pub(crate) fn no_new_privileges() -> io::Result<()> {
    Ok(rustix::thread::set_no_new_privs(true)?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn no_new_privileges() -> io::Result<()> {
    Ok(())
}

/// Runs `work` on a thread that yields the processors to others that want them, and waits for it: where there are fewer
/// processors than processes, those that serve must not slow down because one of them starts again.
#[cfg(target_os = "linux")]
pub(crate) fn behind_others<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    // A tenth of the weight of a thread that serves.
    const NICE: i32 = 10;
    let ended = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // On Linux the priority is a thread's own. Without it the work is done all the same.
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
            work()
        });
        thread.join()
    });
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
