//! The socket of a link.

use crate::error::ServeError;
use mio::net::UnixStream;
use mio::{Interest, Registry, Token};
use std::io::{self, Read, Write};
use supervisor::Instance;
use tubes_link::{FrameError, Link, MessageHead, Reader, Writer};

/// One end of a link.
#[derive(Debug)]
pub(crate) struct LinkEnd {
    stream: UnixStream,
    reader: Reader,
    pub(crate) writer: Writer,
    token: Token,
    /// The socket may take more.
    is_writable: bool,
    /// An event will say that the socket takes more. Asked for only while it does not: the peer's every read would be an
    /// event.
    is_watched: bool,
    /// Generation of the peer.
    pub(crate) peer_generation: u32,
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
    /// Takes over a socket that the supervisor has made, from `own` process to `peer`.
    pub(crate) fn new(
        socket: std::os::unix::net::UnixStream,
        own: &Instance,
        peer: &Instance,
        registry: &Registry,
        token: Token,
    ) -> Result<Self, ServeError> {
        let link = Link {
            own_slot: own.slot,
            own_generation: own.generation,
            peer_slot: peer.slot,
            peer_generation: peer.generation,
        };
        let register = || {
            socket.set_nonblocking(true)?;
            let mut stream = UnixStream::from_std(socket);
            registry.register(&mut stream, token, Interest::READABLE)?;
            Ok(stream)
        };
        let stream = register().map_err(|source: io::Error| ServeError::system("register a link", source))?;
        Ok(LinkEnd {
            stream,
            reader: Reader::new(link),
            writer: Writer::new(link),
            token,
            is_writable: true,
            is_watched: false,
            peer_generation: link.peer_generation,
        })
    }

    /// The socket may take more.
    pub(crate) fn writable(&mut self) {
        self.is_writable = true;
    }

    /// Says what came for an earlier process, at the end of the link.
    pub(crate) fn report_dropped(&self, own: &Instance) {
        let dropped = self.reader.dropped();
        if dropped > 0 {
            tracing::warn!("{own}: {dropped} batch(es) meant for an earlier generation came and were dropped");
        }
    }

    /// Makes room for the peer by what has been taken from it.
    pub(crate) fn make_room(&mut self) {
        self.writer.tell_taken(self.reader.taken());
    }

    /// Sends what may be sent.
    pub(crate) fn send(&mut self, registry: &Registry) -> Result<(), LinkLost> {
        while self.is_writable {
            let bytes = self.writer.sendable();
            if bytes.is_empty() {
                return Ok(self.watch(registry, false)?);
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
        Ok(self.watch(registry, true)?)
    }

    fn watch(&mut self, registry: &Registry, is_watched: bool) -> io::Result<()> {
        if self.is_watched == is_watched {
            return Ok(());
        }
        self.is_watched = is_watched;
        let interest = if is_watched { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        registry.reregister(&mut self.stream, self.token, interest)
    }

    /// Reads until nothing more is there. `false` if more may be.
    fn fill(&mut self, reader: &mut Reader) -> Result<bool, LinkLost> {
        let space = reader.space();
        let room = space.len();
        match self.stream.read(space) {
            Ok(0) => Err(LinkLost::Closed),
            Ok(count) => {
                reader.filled(count);
                Ok(count < room)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Links of a process, by the slot of the peer.
pub(crate) type Links = Vec<Option<LinkEnd>>;

/// Reads what the peer in `slot` has sent and hands every message to `take`, which may append to any link.
///
/// `process` finds the links in whatever holds them and all that `take` needs.
pub(crate) fn read<P>(
    process: &mut P,
    links: impl Fn(&mut P) -> &mut Links,
    slot: usize,
    mut take: impl FnMut(&mut P, MessageHead, &[u8]) -> Result<(), FrameError>,
) -> Result<(), LinkLost> {
    let Some(link) = links(process).get_mut(slot).and_then(Option::as_mut) else { return Ok(()) };
    // The reader is put aside, so that a message can be answered on its own link while it is being read.
    let mut reader = std::mem::take(&mut link.reader);
    let result = loop {
        let link = links(process)[slot].as_mut().expect("a message does not end its link");
        let filled = link.fill(&mut reader);
        let taken = (|| {
            while let Some((head, payload)) = reader.next()? {
                take(process, head, payload)?;
            }
            Ok(())
        })();
        match (taken, filled) {
            (Err(lost), _) => break Err(LinkLost::Frame(lost)),
            (Ok(()), Ok(true)) => break Ok(()),
            (Ok(()), Ok(false)) => {}
            (Ok(()), Err(lost)) => break Err(lost),
        }
    };
    let link = links(process)[slot].as_mut().expect("as above");
    link.writer.peer_has_taken(reader.taken_by_peer());
    link.reader = reader;
    result
}
