//! Signals to the supervisor, as readable events.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use mio::net::UnixStream;
use mio::{Interest, Poll};
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use super::{TOKEN_DRAIN, TOKEN_RELOAD, TOKEN_STOP};

/// Sockets on which the arrival of a signal can be read. The handlers only write one byte each.
#[derive(Debug)]
pub struct Signals {
    pub(super) stop: UnixStream,
    pub(super) drain: UnixStream,
    pub(super) reload: Option<UnixStream>,
}

impl Signals {
    /// Installs the handlers. What arrives from here on is acted on once the server is supervised, so a server installs
    /// them before anybody can know that it is there.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn install() -> io::Result<Signals> {
        let (stop, stop_writer) = std::os::unix::net::UnixStream::pair()?;
        let (drain, drain_writer) = std::os::unix::net::UnixStream::pair()?;
        signal_hook::low_level::pipe::register(SIGTERM, stop_writer.try_clone()?)?;
        signal_hook::low_level::pipe::register(SIGINT, stop_writer)?;
        signal_hook::low_level::pipe::register(SIGUSR1, drain_writer)?;
        // A caller that ignores this signal would have the kernel reap the processes before their end is seen here.
        signal_hook::flag::register(SIGCHLD, Arc::new(AtomicBool::new(false)))?;
        // A limit of the file size holds for the shared pages too; it then shows as an error.
        signal_hook::flag::register(Signal::XFSZ.as_raw(), Arc::new(AtomicBool::new(false)))?;
        stop.set_nonblocking(true)?;
        drain.set_nonblocking(true)?;
        Ok(Signals { stop: UnixStream::from_std(stop), drain: UnixStream::from_std(drain), reload: None })
    }

    /// Takes SIGHUP as the wish to read the configuration again; without this it ends the process, as it does by itself.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn with_reload(mut self) -> io::Result<Signals> {
        let (reload, writer) = std::os::unix::net::UnixStream::pair()?;
        signal_hook::low_level::pipe::register(SIGHUP, writer)?;
        reload.set_nonblocking(true)?;
        self.reload = Some(UnixStream::from_std(reload));
        Ok(self)
    }

    pub(super) fn register(&mut self, poll: &Poll) -> io::Result<()> {
        poll.registry().register(&mut self.stop, TOKEN_STOP, Interest::READABLE)?;
        poll.registry().register(&mut self.drain, TOKEN_DRAIN, Interest::READABLE)?;
        match &mut self.reload {
            Some(reload) => poll.registry().register(reload, TOKEN_RELOAD, Interest::READABLE),
            None => Ok(()),
        }
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
