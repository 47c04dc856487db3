//! The floor: the kernel's own price for a workload.
//!
//! One thread, edge-triggered epoll, one `read` and one `write` for whatever arrived. It receives and answers the same
//! bytes as a real server would and does nothing else: requests have known lengths, so it counts bytes and copies
//! prepared replies.
//!
//! Never: looks at a byte of a request, or keeps anything but a position for each connection.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use rustix::event::epoll;

use crate::workload::{Script, Wire};

/// Bytes read at once; more than the largest batch of a workload, so that one read takes all of it.
const READ_BYTES: usize = 256 * 1024;
const EVENTS_MAX: usize = 1_024;
const LISTENER: u64 = u64::MAX;

struct Exchange {
    request_bytes: usize,
    reply: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
    position: usize,
    /// Bytes of the present request that have arrived.
    arrived: usize,
    unsent: Vec<u8>,
}

/// Serves `script` with bodies of `body_bytes` on every connection that `listener` accepts, until the process ends.
///
/// # Errors
///
/// A system call on the listener or on epoll that fails. A connection that fails is closed and forgotten.
pub fn serve(listener: &TcpListener, script: &Script, body_bytes: usize) -> io::Result<()> {
    let wire = Wire::new(body_bytes);
    let exchanges: Vec<_> = (0..script.positions())
        .map(|position| {
            let (request_bytes, reply) = wire.floor_exchange(script.at(position));
            Exchange { request_bytes, reply }
        })
        .collect();
    listener.set_nonblocking(true)?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poll, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;

    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut events = Vec::with_capacity(EVENTS_MAX);
    let mut buffer = vec![0; READ_BYTES];
    let mut replies = Vec::with_capacity(READ_BYTES);
    loop {
        events.clear();
        match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let (data, flags) = (event.data.u64(), event.flags);
            if data == LISTENER {
                accept(listener, &poll, &mut connections, &mut free)?;
                continue;
            }
            let index = usize::try_from(data).map_err(io::Error::other)?;
            let Some(connection) = connections.get_mut(index).and_then(Option::as_mut) else { continue };
            if flags.contains(epoll::EventFlags::OUT) && !connection.unsent.is_empty() {
                let unsent = std::mem::take(&mut connection.unsent);
                connection.send(&unsent);
            }
            let closing = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            let at_end = flags.intersects(closing);
            if (at_end || flags.contains(epoll::EventFlags::IN))
                && !connection.answer(script, &exchanges, &mut buffer, &mut replies, at_end)
            {
                connections[index] = None;
                free.push(index);
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    poll: &impl std::os::fd::AsFd,
    connections: &mut Vec<Option<Connection>>,
    free: &mut Vec<usize>,
) -> io::Result<()> {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let index = free.pop().unwrap_or_else(|| {
            connections.push(None);
            connections.len() - 1
        });
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(poll, &stream, epoll::EventData::new_u64(index as u64), flags)?;
        connections[index] = Some(Connection { stream, position: 0, arrived: 0, unsent: Vec::new() });
    }
}

impl Connection {
    /// Reads what is there and answers every request that is complete; `false` when the connection is over. `at_end`
    /// tells that the peer sends nothing more.
    fn answer(
        &mut self,
        script: &Script,
        exchanges: &[Exchange],
        buffer: &mut [u8],
        replies: &mut Vec<u8>,
        at_end: bool,
    ) -> bool {
        loop {
            let count = match self.stream.read(buffer) {
                Ok(0) => return false,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            };
            replies.clear();
            let mut left = count;
            while left >= exchanges[self.position].request_bytes - self.arrived {
                left -= exchanges[self.position].request_bytes - self.arrived;
                self.arrived = 0;
                replies.extend_from_slice(&exchanges[self.position].reply);
                self.position = script.after(self.position);
            }
            self.arrived += left;
            self.send(replies);
            // A short read has emptied the socket: what comes later raises a new edge. An end that is there already
            // does not.
            if count < buffer.len() && !at_end {
                return true;
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        if !self.unsent.is_empty() {
            self.unsent.extend_from_slice(bytes);
            return;
        }
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.write(&bytes[sent..]) {
                Ok(count) => sent += count,
                // Not writable: the next edge sends the rest. A broken peer shows at the next read.
                Err(_) => break,
            }
        }
        self.unsent.extend_from_slice(&bytes[sent..]);
    }
}
