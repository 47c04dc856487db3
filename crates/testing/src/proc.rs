//! What the kernel says of processes and their sockets, in `/proc`.
//!
//! Owns: reading it. A process that is gone has nothing.

use std::collections::HashSet;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::process::Address;

/// The processes that the first thread of `pid` has started and not yet reaped.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Descriptors of those of these processes that there still are.
pub(crate) fn open(pids: Vec<u32>) -> Vec<OwnedFd> {
    let numbers = pids.into_iter().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    numbers.filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect()
}

/// Whether the process ends within `limit`.
pub(crate) fn wait_for_end(process: &OwnedFd, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).expect("some seconds");
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)) {
            Ok(count) => return count > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("cannot poll a process descriptor: {error}"),
        }
    }
}

/// The value of a line of `/proc/PID/status`, without the white space around it.
#[track_caller]
pub(crate) fn status(pid: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("status of a running process");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {name} in the status file")).trim().to_owned()
}

/// Resident memory of its own in bytes: without the program itself, which all processes share.
#[track_caller]
pub fn resident(pid: u32) -> u64 {
    let value = status(pid, "RssAnon");
    let kibibytes = value.strip_suffix(" kB").and_then(|number| number.trim().parse::<u64>().ok());
    kibibytes.unwrap_or_else(|| panic!("cannot read RssAnon {value:?}")) * 1024
}

/// CPU time of all its threads so far.
#[track_caller]
pub fn cpu(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("threads of a running process");
    let nanoseconds = threads.filter_map(|thread| {
        // A thread that ended between the two looks has no file any more.
        let text = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

/// The number of descriptors it has open.
#[track_caller]
pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors of a running process").count()
}

/// Whether process `pid` itself has a listening socket at `address`. A mere connection could reach another
/// server that took the port first.
pub(crate) fn is_listening(pid: u32, address: &Address) -> bool {
    let own = socket_inodes(pid);
    // The tables below hold every socket of the machine: not worth reading before the process has one.
    if own.is_empty() {
        return false;
    }
    match address {
        Address::Tcp(address) => listening_tcp().iter().any(|(at, inode)| {
            let same_place = at.ip() == address.ip() || at.ip().is_unspecified();
            at.port() == address.port() && same_place && own.contains(inode)
        }),
        Address::Unix(path) => {
            let Ok(table) = fs::read_to_string("/proc/net/unix") else { return false };
            table.lines().skip(1).any(|line| {
                // Num RefCount Protocol Flags Type St Inode Path; flag 10000 marks a listening socket.
                let mut fields = line.split_whitespace();
                let listens = fields.nth(3) == Some("00010000");
                let inode = fields.nth(2).and_then(|inode| inode.parse().ok());
                let same_path = fields.next().is_some_and(|at| Path::new(at) == path);
                listens && same_path && inode.is_some_and(|inode| own.contains(&inode))
            })
        }
    }
}

/// The inodes of all sockets that `pid` has open; empty if it is gone.
pub fn socket_inodes(pid: u32) -> HashSet<u64> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return HashSet::new() };
    let links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    links.filter_map(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()).collect()
}

/// All listening TCP sockets of this network namespace with their inodes.
pub(crate) fn listening_tcp() -> Vec<(SocketAddr, u64)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let tables = [read("/proc/net/tcp"), read("/proc/net/tcp6")];
    tables.iter().flat_map(|table| table.lines().skip(1).filter_map(listening_row)).collect()
}

/// Reads `sl local_address rem_address st … inode` if the state is LISTEN.
fn listening_row(line: &str) -> Option<(SocketAddr, u64)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    if *fields.get(3)? != "0A" {
        return None;
    }
    let (host, port) = fields.get(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // Each group of eight digits is a word in the machine's byte order.
    let words = host.as_bytes().chunks(8).map(|word| u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok());
    let bytes: Vec<u8> = words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let address: SocketAddr = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(four) => (four, port).into(),
        Err(_) => (<[u8; 16]>::try_from(bytes.as_slice()).ok()?, port).into(),
    };
    Some((address, fields.get(9)?.parse().ok()?))
}
