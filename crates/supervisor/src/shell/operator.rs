//! The status socket: what operators ask, one request a connection.
//!
//! Owns: the socket and its connections.
//! Never: waits for an operator, or lets many of them take memory.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use mio::net::{UnixListener, UnixStream};
use mio::{Interest, Poll, Token};

use super::{TOKEN_OPERATORS, TOKEN_STATUS};
use crate::error::SuperviseError;
use crate::lock::check_private_folder;
use crate::message::{Role, Slot};
use crate::status::REQUEST_BYTES_MAX;

/// Most connections; the oldest gives way to the next.
const CONNECTIONS_MAX: usize = 16;
/// A request and its answer take microseconds.
const IDLE_NS_MAX: u64 = 5_000_000_000;

/// What an operator asks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    Status,
    RestartSlot(Slot),
    Unknown,
}

#[derive(Debug)]
pub(super) struct Operator {
    path: PathBuf,
    listener: UnixListener,
    connections: [Option<Connection>; CONNECTIONS_MAX],
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    since_ns: u64,
    request: Vec<u8>,
    answer: Option<Vec<u8>>,
    written: usize,
}

impl Operator {
    /// Listens at `path`, in place of what an earlier server has left there.
    pub(super) fn listen(path: &Path, poll: &Poll) -> Result<Operator, SuperviseError> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            check_private_folder(folder)?;
        }
        let listen = || {
            if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
                fs::remove_file(path)?;
            }
            let mut listener = UnixListener::bind(path)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
            poll.registry().register(&mut listener, TOKEN_STATUS, Interest::READABLE)?;
            Ok(listener)
        };
        let listener = listen().map_err(SuperviseError::system::<io::Error>("listen on the status socket"))?;
        Ok(Operator { path: path.to_owned(), listener, connections: Default::default() })
    }

    pub(super) fn accept(&mut self, now_ns: u64, poll: &Poll) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            let age = |index: &usize| self.connections[*index].as_ref().map(|connection| connection.since_ns);
            let index = (0..CONNECTIONS_MAX).min_by_key(age).expect("there are places");
            let token = Token(TOKEN_OPERATORS + index);
            if poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE).is_ok() {
                let request = Vec::with_capacity(REQUEST_BYTES_MAX);
                self.connections[index] =
                    Some(Connection { stream, since_ns: now_ns, request, answer: None, written: 0 });
            }
        }
    }

    /// Goes on with a connection: its request, when it is complete for the first time.
    pub(super) fn read(&mut self, index: usize) -> Option<Request> {
        let place = self.connections.get_mut(index)?;
        let connection = place.as_mut()?;
        if connection.answer.is_some() {
            if connection.write().is_none() {
                *place = None;
            }
            return None;
        }
        let mut bytes = [0; REQUEST_BYTES_MAX];
        loop {
            let room = REQUEST_BYTES_MAX - connection.request.len();
            match connection.stream.read(&mut bytes[..room]) {
                Ok(0) => return Some(parse(&connection.request)),
                Ok(count) => connection.request.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => {
                    *place = None;
                    return None;
                }
            }
            if connection.request.contains(&b'\n') || connection.request.len() == REQUEST_BYTES_MAX {
                return Some(parse(&connection.request));
            }
        }
    }

    pub(super) fn answer(&mut self, index: usize, answer: String) {
        let place = &mut self.connections[index];
        if let Some(connection) = place {
            connection.answer = Some(answer.into_bytes());
            if connection.write().is_none() {
                *place = None;
            }
        }
    }

    pub(super) fn close_idle(&mut self, now_ns: u64) {
        for place in &mut self.connections {
            if place.as_ref().is_some_and(|connection| now_ns.saturating_sub(connection.since_ns) > IDLE_NS_MAX) {
                *place = None;
            }
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Connection {
    /// Writes what fits; `None` when the connection is done with.
    fn write(&mut self) -> Option<()> {
        let answer = self.answer.as_ref()?;
        while self.written < answer.len() {
            match self.stream.write(&answer[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(()),
                Err(_) => return None,
            }
        }
        None
    }
}

fn parse(line: &[u8]) -> Request {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let words: Vec<&str> = std::str::from_utf8(line).unwrap_or_default().split_ascii_whitespace().collect();
    match words[..] {
        ["status"] => Request::Status,
        ["restart-slot", role, slot] => {
            let role = Role::ALL.into_iter().find(|known| known.name() == role);
            match (role, slot.parse()) {
                (Some(role), Ok(slot)) => Request::RestartSlot(Slot { role, slot }),
                _ => Request::Unknown,
            }
        }
        _ => Request::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_requests_are_understood() {
        assert_eq!(parse(b"status\nmore"), Request::Status);
        assert_eq!(parse(b" status "), Request::Status);
        assert_eq!(parse(b"restart-slot owner 3\n"), Request::RestartSlot(Slot { role: Role::Owner, slot: 3 }));
        assert_eq!(parse(b"restart-slot daemon 0\n"), Request::RestartSlot(Slot { role: Role::Daemon, slot: 0 }));
        for wrong in
            ["", "statu", "restart-slot", "restart-slot owner", "restart-slot guard 1", "restart-slot owner -1"]
        {
            assert_eq!(parse(wrong.as_bytes()), Request::Unknown, "{wrong:?}");
        }
        assert_eq!(parse(b"\xff\xfe\n"), Request::Unknown);
    }
}
