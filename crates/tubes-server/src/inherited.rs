//! Sockets handed down by socket activation (`LISTEN_FDS`). The only module of this crate with `unsafe`.
#![expect(unsafe_code, reason = "a descriptor that is inherited by number has no owner in the type system yet")]

use crate::error::ServeError;
use crate::listen::Listener;
use std::os::fd::{FromRawFd, OwnedFd};

/// The first inherited descriptor, by convention.
const FIRST: i32 = 3;

/// The listeners that were handed to this process; empty without socket activation.
pub(crate) fn listeners() -> Result<Vec<Listener>, ServeError> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.trim().parse::<i32>().ok());
    let is_ours = number("LISTEN_PID").is_none_or(|pid| u32::try_from(pid) == Ok(std::process::id()));
    let count = number("LISTEN_FDS").unwrap_or(0);
    if !is_ours || count <= 0 {
        return Ok(Vec::new());
    }
    (FIRST..FIRST.saturating_add(count))
        .map(|descriptor| {
            // SAFETY: the caller of this process opened the descriptor and told us its number to own it; it is wrapped
            // once, as this function is called once, at start, before anything else opens descriptors. A number that is
            // not open is found by the first call on it, which fails with EBADF.
            let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
            if rustix::io::fcntl_getfd(&socket).is_err() {
                std::mem::forget(socket);
                return Err(ServeError::Inherited { descriptor, what: "is not open".into() });
            }
            Listener::from_inherited(descriptor, socket)
        })
        .collect()
}
