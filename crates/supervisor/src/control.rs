//! The channel between the supervisor and a process: whole messages in JSON, with descriptors beside them.
//!
//! Owns: how a message and its descriptors travel over one socket pair of type SEQPACKET.
//! Never: waits; a socket that is full or empty says so.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::message::{Instance, Instruction, Topology};

/// Largest message. The start message has the caller's options and is the only long one; what is longer does not fit the
/// buffers of a socket with certainty.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Most descriptors with one message; the kernel allows 253.
pub(crate) const DESCRIPTORS_MAX: usize = 72;

/// What the supervisor tells a process, as it travels. No message is ever shown: options may have secrets.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Envelope {
    /// The first message. Descriptors: lifeline, pages, listeners.
    Start(StartEnvelope),
    /// Descriptor: our end of a stream socket pair.
    Link {
        peer: Instance,
        /// Above that of every earlier link.
        number: u64,
    },
    /// No descriptor.
    Say(Instruction),
    /// What the caller of the supervisor has to say has changed. No descriptor.
    Options(serde_json::Value),
}

/// What a process is and what it serves, as it travels.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StartEnvelope {
    pub(crate) instance: Instance,
    pub(crate) drained: bool,
    pub(crate) topology: Topology,
    pub(crate) slot_lock: Option<PathBuf>,
    pub(crate) options: serde_json::Value,
}

/// One end of the channel.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// Two connected ends. Neither blocks, and no program started meanwhile gets them.
    pub(crate) fn pair() -> io::Result<(Channel, Channel)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Channel { socket: one }, Channel { socket: other }))
    }

    pub(crate) fn from_socket(socket: OwnedFd) -> Channel {
        Channel { socket }
    }

    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Sends one message with copies of `descriptors`.
    ///
    /// # Errors
    ///
    /// `WouldBlock`: the other side does not read; nothing was sent. Else the channel is of no use any more.
    pub(crate) fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = encode(message)?;
        self.send_bytes(&bytes, descriptors)
    }

    pub(crate) fn send_bytes(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other(format!("{} descriptors in one message", descriptors.len())));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // Too many descriptors are on their way to processes that do not read.
                Err(Errno::TOOMANYREFS | Errno::NOBUFS) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next message and its descriptors, which no program started later gets.
    ///
    /// # Errors
    ///
    /// `WouldBlock`: none is there. `UnexpectedEof`: the other side is gone. `InvalidData`: it does not speak our
    /// language.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<(T, Vec<OwnedFd>)> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        // An end with messages unread is told once, before what the other side had said: that comes with the next try.
        let mut has_ended = false;
        let message = loop {
            match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
                Ok(message) => break message,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) if !has_ended => has_ended = true,
                Err(Errno::CONNRESET) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => return Err(error.into()),
            }
        };
        let mut descriptors = Vec::new();
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = part {
                descriptors.extend(received);
            }
        }
        if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a control message or its descriptors were cut off",
            ));
        }
        if message.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let value = serde_json::from_slice(&bytes[..message.bytes])
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok((value, descriptors))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The bytes of a message.
pub(crate) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "a control message of {} bytes; at most {MESSAGE_BYTES_MAX} are possible",
            bytes.len()
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{FromChild, Role};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    /// The end of a process that had not read all that it was told must not cost what it had said.
    #[test]
    fn last_words_are_heard_of_a_process_that_ends_with_messages_unread() {
        let (supervisor, child) = Channel::pair().unwrap();
        supervisor.send(&Envelope::Say(Instruction::Go), &[]).unwrap();
        child.send(&FromChild::Stopped, &[]).unwrap();
        drop(child);
        let (heard, _) = supervisor.receive::<FromChild>().unwrap();
        assert_eq!(heard, FromChild::Stopped);
        let end = supervisor.receive::<FromChild>().unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_message_brings_its_descriptor_along() {
        let (supervisor, child) = Channel::pair().unwrap();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let peer = Instance { role: Role::Frontend, slot: 3, generation: 9 };
        supervisor.send(&Envelope::Link { peer, number: 7 }, &[theirs.as_fd()]).unwrap();
        drop(theirs);
        let (message, mut descriptors) = child.receive::<Envelope>().unwrap();
        assert!(matches!(message, Envelope::Link { peer: found, number: 7 } if found == peer));
        assert_eq!(descriptors.len(), 1);
        let mut received = UnixStream::from(descriptors.pop().unwrap());
        assert!(rustix::io::fcntl_getfd(&received).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        ours.write_all(b"x").unwrap();
        let mut byte = [0];
        received.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }

    #[test]
    fn an_empty_a_full_and_a_closed_channel_say_so() {
        let (supervisor, child) = Channel::pair().unwrap();
        assert_eq!(child.receive::<Envelope>().err().map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
        let ping = Envelope::Say(Instruction::Ping { nonce: 1 });
        let mut sent = 0;
        while supervisor.send(&ping, &[]).map_err(|error| assert_eq!(error.kind(), io::ErrorKind::WouldBlock)).is_ok() {
            sent += 1;
            assert!(sent < 1_000_000, "a channel without bound");
        }
        assert!(sent > 50, "only {sent} messages fit");
        drop(supervisor);
        for _ in 0..sent {
            child.receive::<Envelope>().unwrap();
        }
        assert_eq!(child.receive::<Envelope>().err().map(|error| error.kind()), Some(io::ErrorKind::UnexpectedEof));
        assert!(child.send(&FromChild::Drained, &[]).is_err());
    }

    #[test]
    fn too_long_a_message_is_refused_before_it_is_sent() {
        let (supervisor, _child) = Channel::pair().unwrap();
        let text = "x".repeat(MESSAGE_BYTES_MAX);
        assert!(supervisor.send(&text, &[]).is_err());
    }
}
