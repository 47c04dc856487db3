//! Signals to the supervisor, as readable events.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use mio::net::UnixStream;
use mio::{Interest, Poll};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM, SIGUSR1};

use super::{TOKEN_DRAIN, TOKEN_STOP};

/// Sockets on which the arrival of a signal can be read. The handlers only write one byte each.
#[derive(Debug)]
pub(super) struct Signals {
    pub(super) stop: UnixStream,
    pub(super) drain: UnixStream,
}

impl Signals {
    pub(super) fn install(poll: &Poll) -> io::Result<Signals> {
        let (stop, stop_writer) = std::os::unix::net::UnixStream::pair()?;
        let (drain, drain_writer) = std::os::unix::net::UnixStream::pair()?;
        signal_hook::low_level::pipe::register(SIGTERM, stop_writer.try_clone()?)?;
        signal_hook::low_level::pipe::register(SIGINT, stop_writer)?;
        signal_hook::low_level::pipe::register(SIGUSR1, drain_writer)?;
        // A caller that ignores this signal would have the kernel reap the processes before their end is seen here.
        signal_hook::flag::register(SIGCHLD, Arc::new(AtomicBool::new(false)))?;
        stop.set_nonblocking(true)?;
        drain.set_nonblocking(true)?;
        let (mut stop, mut drain) = (UnixStream::from_std(stop), UnixStream::from_std(drain));
        poll.registry().register(&mut stop, TOKEN_STOP, Interest::READABLE)?;
        poll.registry().register(&mut drain, TOKEN_DRAIN, Interest::READABLE)?;
        Ok(Signals { stop, drain })
    }

    /// Whether the signal has arrived since the last question.
    pub(super) fn take(stream: &mut UnixStream) -> bool {
        let mut bytes = [0; 64];
        let mut has_arrived = false;
        while stream.read(&mut bytes).is_ok_and(|count| count > 0) {
            has_arrived = true;
        }
        has_arrived
    }
}
