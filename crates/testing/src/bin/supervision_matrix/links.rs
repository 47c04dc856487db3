//! The links between processes, in the hands of somebody else: duplicates of their sockets, and frames.
//!
//! Owns: finding the sockets of a process that lead to another one, by the kernel's own account of who is whose peer.
//! Never: reads from a link.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink, recv, send, socket};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use testing::process::wait_until;
use tubes_link::{Link, ToOwner, Writer};

use crate::tree::Observed;

/// Duplicates of all sockets of `one` whose peers are sockets of `other`: their link.
///
/// Fails where this process may not trace the other.
pub(crate) fn between(one: &Observed, other: &Observed) -> Result<Vec<OwnedFd>, String> {
    let of_other: Vec<u32> = sockets_of(other.pid).into_iter().map(|(_, inode)| inode).collect();
    let mut found = Vec::new();
    for (number, inode) in sockets_of(one.pid) {
        let Some(peer) =
            peer_of(inode).map_err(|error| format!("the kernel does not say who is whose peer: {error}"))?
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

/// Number and inode of each socket of a process.
fn sockets_of(pid: u32) -> Vec<(i32, u32)> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let sockets = entries.flatten().filter_map(|entry| {
        let target = fs::read_link(entry.path()).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, inode))
    });
    sockets.collect()
}

/// The inode at the other end of a connected unix socket; `None` for another kind of socket.
///
/// Asks the kernel as `ss` does: a `unix_diag_req` for one inode, answered by a `unix_diag_msg` with attributes.
fn peer_of(inode: u32) -> io::Result<Option<u32>> {
    const SHOW_PEER: u32 = 4;
    const ATTRIBUTE_PEER: u16 = 2;
    const HEADER: usize = 16;
    let mut request = Vec::new();
    request.extend_from_slice(&40_u32.to_ne_bytes());
    // SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, sequence 1, from the kernel's choice of port.
    request.extend_from_slice(&20_u16.to_ne_bytes());
    request.extend_from_slice(&1_u16.to_ne_bytes());
    request.extend_from_slice(&1_u32.to_ne_bytes());
    request.extend_from_slice(&0_u32.to_ne_bytes());
    // AF_UNIX, any state, this inode, no cookie.
    request.extend_from_slice(&[1, 0, 0, 0]);
    for number in [u32::MAX, inode, SHOW_PEER, u32::MAX, u32::MAX] {
        request.extend_from_slice(&number.to_ne_bytes());
    }
    let asked = socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::SOCK_DIAG))?;
    send(&asked, &request, SendFlags::empty())?;
    let mut answer = [0; 4096];
    let (count, _) = recv(&asked, &mut answer[..], RecvFlags::empty())?;
    let u16_at = |at: usize| u16::from_ne_bytes([answer[at], answer[at + 1]]);
    let u32_at = |at: usize| u32::from_ne_bytes([answer[at], answer[at + 1], answer[at + 2], answer[at + 3]]);
    // An error: no unix socket.
    if u16_at(4) != 20 {
        return Ok(None);
    }
    let mut at = HEADER + 16;
    while at + 8 <= count {
        if u16_at(at + 2) == ATTRIBUTE_PEER {
            return Ok(Some(u32_at(at + 4)));
        }
        at += usize::from(u16_at(at)).next_multiple_of(4).max(4);
    }
    Ok(None)
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
