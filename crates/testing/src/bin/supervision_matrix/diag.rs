//! What the kernel says about single sockets, as it tells `ss`.
//!
//! Owns: the two questions, one for the peer of a unix socket and one for the accepted side of a TCP connection.
//! Never: lists the sockets of the machine, of which there may be very many.

use std::fs;
use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink, recv, send, socket};

const HEADER_BYTES: usize = 16;
/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;

/// Number and inode of each socket of a process; none if it is gone.
pub(crate) fn sockets_of(pid: u32) -> Vec<(i32, u32)> {
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
/// A `unix_diag_req` for one inode is answered by a `unix_diag_msg` with attributes.
pub(crate) fn peer_of(inode: u32) -> io::Result<Option<u32>> {
    const SHOW_PEER: u32 = 4;
    const ATTRIBUTE_PEER: u16 = 2;
    // AF_UNIX, any state, this inode, no cookie.
    let mut request = vec![1, 0, 0, 0];
    for number in [u32::MAX, inode, SHOW_PEER, u32::MAX, u32::MAX] {
        request.extend_from_slice(&number.to_ne_bytes());
    }
    let Some(answer) = ask(&request)? else { return Ok(None) };
    let mut at = HEADER_BYTES + 16;
    while at + 8 <= answer.len() {
        if u16_at(&answer, at + 2) == ATTRIBUTE_PEER {
            return Ok(Some(u32_at(&answer, at + 4)));
        }
        at += usize::from(u16_at(&answer, at)).next_multiple_of(4).max(4);
    }
    Ok(None)
}

/// The inode of the server's side of a connection over the loopback interface; `None` if nobody has accepted it yet.
///
/// An `inet_diag_req_v2` for one pair of addresses is answered by an `inet_diag_msg`.
pub(crate) fn accepted(server_port: u16, client_port: u16) -> io::Result<Option<u32>> {
    const INODE_AT: usize = HEADER_BYTES + 4 + 48 + 16;
    // AF_INET, TCP, no extensions, any state.
    let mut request = vec![2, 6, 0, 0];
    request.extend_from_slice(&u32::MAX.to_ne_bytes());
    for port in [server_port, client_port] {
        request.extend_from_slice(&port.to_be_bytes());
    }
    for _ in 0..2 {
        request.extend_from_slice(&[127, 0, 0, 1]);
        request.extend_from_slice(&[0; 12]);
    }
    // Any interface, no cookie.
    for number in [0, u32::MAX, u32::MAX] {
        request.extend_from_slice(&number.to_ne_bytes());
    }
    let answer = ask(&request)?;
    Ok(answer.filter(|answer| answer.len() >= INODE_AT + 4).map(|answer| u32_at(&answer, INODE_AT)))
}

/// The answer to a question about one socket; `None` if there is no such socket.
fn ask(question: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let length = u32::try_from(HEADER_BYTES + question.len()).expect("a short question");
    let mut request = length.to_ne_bytes().to_vec();
    for number in [BY_FAMILY, REQUEST] {
        request.extend_from_slice(&number.to_ne_bytes());
    }
    // Sequence, and a port that the kernel chooses.
    for number in [1_u32, 0] {
        request.extend_from_slice(&number.to_ne_bytes());
    }
    request.extend_from_slice(question);
    let asked = socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::SOCK_DIAG))?;
    send(&asked, &request, SendFlags::empty())?;
    let mut answer = vec![0; 4096];
    let (count, _) = recv(&asked, &mut answer[..], RecvFlags::empty())?;
    answer.truncate(count);
    // Anything else is an error.
    Ok(Some(answer).filter(|answer| answer.len() >= HEADER_BYTES && u16_at(answer, 4) == BY_FAMILY))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
