//! When clients may be accepted.
//!
//! Descriptors are kept back for the log, so that it never fails because of clients; at the limit the listeners rest
//! until a client leaves, and waiting connections stay with the system.

use crate::error::ServeError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Descriptors kept for everything but clients: listeners, log, polling, signals, and some to spare.
const DESCRIPTORS_KEPT: u64 = 32;
/// How long accepting rests after the system refused for want of something, in ns.
const RETRY_NS: u64 = 100_000_000;

/// Raises the limit of open descriptors as far as the system allows.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where the hard limit is "none", the soft one stays what it is.
    if limit.maximum.is_some() && limit.current != limit.maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}

/// Which listeners have clients waiting, and whether one more fits.
#[derive(Debug)]
pub(crate) struct Gate {
    has_clients: Vec<bool>,
    rests_until: Option<u64>,
    open: u64,
    open_max: u64,
    /// The operator has been told of the present shortage.
    has_warned: bool,
}

impl Gate {
    /// As many clients as the limit of open descriptors allows.
    pub(crate) fn new() -> Result<Gate, ServeError> {
        let available = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let Some(open_max) = available.checked_sub(DESCRIPTORS_KEPT).filter(|max| *max > 0) else {
            let refused = io::Error::other(format!("the limit of open descriptors is {available}; raise it"));
            return Err(ServeError::system("make room for clients", refused));
        };
        Ok(Gate { has_clients: Vec::new(), rests_until: None, open: 0, open_max, has_warned: false })
    }

    /// Keeps descriptors back for something else that this process serves.
    pub(crate) fn keep(&mut self, descriptors: u64) {
        self.open_max = self.open_max.saturating_sub(descriptors).max(1);
    }

    /// So many listeners are there; each may have clients waiting.
    pub(crate) fn listen(&mut self, listeners: usize) {
        self.has_clients = vec![true; listeners];
    }

    /// Leaves the next clients to others for a while.
    #[cfg(target_os = "linux")]
    pub(crate) fn rest(&mut self, until_ns: u64) {
        self.rests_until = Some(until_ns);
    }

    /// The listener has announced clients.
    pub(crate) fn ready(&mut self, listener: usize) {
        if let Some(has_clients) = self.has_clients.get_mut(listener) {
            *has_clients = true;
        }
    }

    /// Whether a client may be accepted from this listener now.
    pub(crate) fn may_accept(&mut self, listener: usize, now_ns: u64) -> bool {
        if self.rests_until.is_some_and(|until| now_ns >= until) {
            self.rests_until = None;
        }
        self.has_clients[listener] && self.rests_until.is_none() && self.open < self.open_max
    }

    /// Whether accepting would go on at once.
    pub(crate) fn is_ready(&self) -> bool {
        self.rests_until.is_none() && self.open < self.open_max && self.has_clients.contains(&true)
    }

    /// When to try again after the system refused, in ns of the boot clock.
    pub(crate) fn retry_at(&self) -> Option<u64> {
        self.rests_until
    }

    /// The system did not give a client.
    pub(crate) fn failed(&mut self, listener: usize, error: &io::Error, now_ns: u64) {
        match error.kind() {
            io::ErrorKind::WouldBlock => self.has_clients[listener] = false,
            io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
            _ => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!("no client can be accepted at the moment: {error}");
                }
                self.rests_until = Some(now_ns + RETRY_NS);
            }
        }
    }

    pub(crate) fn opened(&mut self) {
        self.open += 1;
        if self.open == self.open_max && !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!("{} clients are connected; more wait until one leaves", self.open);
        }
    }

    pub(crate) fn closed(&mut self) {
        self.open -= 1;
        // Told again only after the shortage has clearly passed.
        if self.open < self.open_max - self.open_max / 10 {
            self.has_warned = false;
        }
    }
}
