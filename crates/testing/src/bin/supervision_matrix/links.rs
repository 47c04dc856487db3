//! The links between processes, in the hands of somebody else: duplicates of their sockets, and frames.
//!
//! Owns: finding the sockets of a process that lead to another one.
//! Never: reads from a link.

use std::os::fd::OwnedFd;

use rustix::net::{SendFlags, send};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use testing::process::wait_until;
use tubes_link::{Link, ToOwner, Writer};

use crate::diag;
use crate::tree::Observed;

/// Duplicates of all sockets of `one` whose peers are sockets of `other`: their link.
///
/// Fails where this process may not trace the other.
pub(crate) fn between(one: &Observed, other: &Observed) -> Result<Vec<OwnedFd>, String> {
    let of_other: Vec<u32> = diag::sockets_of(other.pid).into_iter().map(|(_, inode)| inode).collect();
    let mut found = Vec::new();
    for (number, inode) in diag::sockets_of(one.pid) {
        let Some(peer) =
            diag::peer_of(inode).map_err(|error| format!("the kernel does not say who is whose peer: {error}"))?
        else {
            continue;
        };
        if of_other.contains(&peer) {
            let duplicate = pidfd_getfd(&one.descriptor, number, PidfdGetfdFlags::empty())
                .map_err(|error| format!("cannot duplicate a descriptor of process {}: {error}", one.pid))?;
            found.push(duplicate);
        }
    }
    Ok(found)
}

/// The link of two processes; they have exactly one.
pub(crate) fn link(one: &Observed, other: &Observed) -> OwnedFd {
    let mut found = Vec::new();
    // A process is ready a moment before it has taken its links.
    wait_until("two processes have one link", || {
        found = between(one, other).unwrap_or_else(|what| panic!("{what}"));
        found.len() == 1
    });
    found.pop().expect("counted above")
}

/// A batch with one message, as the process at the near end of `link` sends it: `command` of a new session.
pub(crate) fn frame(link: Link, command: &str) -> Vec<u8> {
    let mut writer = Writer::new(link);
    ToOwner::Line(command.as_bytes()).write(1 << 40, &mut writer);
    writer.end_turn(None);
    let bytes = writer.sendable().to_vec();
    assert!(!bytes.is_empty(), "a batch with one message");
    bytes
}

/// Writes into somebody's socket, without waiting and without a signal.
pub(crate) fn write(socket: &OwnedFd, bytes: &[u8]) -> Result<(), rustix::io::Errno> {
    send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(|_| ())
}
