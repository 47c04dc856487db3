//! Signals, as readable events.

use crate::error::ServeError;
use crate::platform::SIGXFSZ;
use mio::net::UnixStream;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGTERM or SIGINT: stop in order.
    Stop,
    /// SIGUSR1: refuse puts from now on.
    Drain,
}

/// Sockets on which the arrival of a signal can be read. The handlers only write one byte each.
#[derive(Debug)]
pub(crate) struct Signals {
    pub(crate) stop: UnixStream,
    pub(crate) drain: UnixStream,
}

impl Signals {
    /// Installs the handlers; they also work for process 1, for which the system installs none.
    pub(crate) fn install() -> Result<Signals, ServeError> {
        let install = || {
            let (stop, stop_writer) = std::os::unix::net::UnixStream::pair()?;
            let (drain, drain_writer) = std::os::unix::net::UnixStream::pair()?;
            signal_hook::low_level::pipe::register(SIGTERM, stop_writer.try_clone()?)?;
            signal_hook::low_level::pipe::register(SIGINT, stop_writer)?;
            signal_hook::low_level::pipe::register(SIGUSR1, drain_writer)?;
            // A limit of the file size then shows as an error of the write, as a full disk does.
            signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
            stop.set_nonblocking(true)?;
            drain.set_nonblocking(true)?;
            Ok(Signals { stop: UnixStream::from_std(stop), drain: UnixStream::from_std(drain) })
        };
        install().map_err(|source: std::io::Error| ServeError::system("install signal handlers", source))
    }

    /// Whether this signal has arrived since the last question.
    pub(crate) fn take(&mut self, signal: Signal) -> bool {
        let stream = match signal {
            Signal::Stop => &mut self.stop,
            Signal::Drain => &mut self.drain,
        };
        let mut bytes = [0; 64];
        let mut arrived = false;
        while stream.read(&mut bytes).is_ok_and(|count| count > 0) {
            arrived = true;
        }
        arrived
    }
}
