//! The socket of a link, and what is on its way through it.

use crate::error::ServeError;
use mio::net::UnixStream;
use mio::{Interest, Registry, Token};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use tubes_link::{FrameError, Link, MessageHead, Reader, Writer};

/// Bytes read from a link at once.
const READ_BYTES: usize = 256 * 1024;

/// One end of a link.
#[derive(Debug)]
pub(crate) struct LinkEnd {
    stream: UnixStream,
    reader: Reader,
    pub(crate) writer: Writer,
    is_writable: bool,
    /// Generation of the peer.
    pub(crate) peer_generation: u32,
    /// Where the turn began, as [`Writer::end`] counts.
    turn_start: u64,
    /// Stretches that wait for a batch of the log: where each begins and which. All behind the first wait too.
    held: VecDeque<(u64, u64)>,
}

/// Why a link is no more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkLost {
    #[error("the peer has closed it")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
}

impl LinkEnd {
    /// Takes over a socket that the supervisor has made.
    pub(crate) fn new(
        socket: std::os::unix::net::UnixStream,
        link: Link,
        registry: &Registry,
        token: Token,
    ) -> Result<Self, ServeError> {
        let register = || {
            socket.set_nonblocking(true)?;
            let mut stream = UnixStream::from_std(socket);
            registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
            Ok(stream)
        };
        let stream = register().map_err(|source: io::Error| ServeError::system("register a link", source))?;
        Ok(LinkEnd {
            stream,
            reader: Reader::new(link),
            writer: Writer::new(link),
            is_writable: true,
            peer_generation: link.peer_generation,
            turn_start: 0,
            held: VecDeque::new(),
        })
    }

    /// The socket may take more.
    pub(crate) fn writable(&mut self) {
        self.is_writable = true;
    }

    /// Reads until nothing more is there and hands every message to `take`.
    pub(crate) fn read(
        &mut self,
        scratch: &mut Vec<u8>,
        mut take: impl FnMut(MessageHead, &[u8]) -> Result<(), FrameError>,
    ) -> Result<(), LinkLost> {
        scratch.resize(READ_BYTES, 0);
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return Err(LinkLost::Closed),
                Ok(count) => {
                    self.reader.feed(&scratch[..count], &mut take)?;
                    if count < READ_BYTES {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends a turn's messages; with `batch` they wait until that batch of the log is as safe as promised.
    pub(crate) fn end_turn(&mut self, batch: Option<u64>) {
        let end = self.writer.end();
        if let Some(batch) = batch
            && end > self.turn_start
        {
            self.held.push_back((self.turn_start, batch));
        }
        self.turn_start = end;
    }

    /// Everything up to and including `batch` is as safe as promised.
    pub(crate) fn release(&mut self, batch: u64) {
        while self.held.front().is_some_and(|held| held.1 <= batch) {
            self.held.pop_front();
        }
    }

    /// Sends what may be sent.
    pub(crate) fn send(&mut self) -> Result<(), LinkLost> {
        let end = self.held.front().map_or(u64::MAX, |held| held.0);
        while self.is_writable {
            let bytes = self.writer.sendable_to(end);
            if bytes.is_empty() {
                return Ok(());
            }
            let length = bytes.len();
            match self.stream.write(bytes) {
                Ok(count) => {
                    self.is_writable = count == length;
                    self.writer.sent(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
