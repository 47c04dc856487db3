//! A TCP port of the loopback interface that stays ours while nothing listens on it.
//!
//! Owns: a socket that is bound to the port and never listens. The kernel gives such a port to nobody who asks for any
//! port, neither to listen nor to connect from, so a server that is stopped finds its port free when it starts again,
//! and a client that is refused cannot be connected to itself. Servers set `SO_REUSEADDR` as this socket does, which
//! lets them bind beside it.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

/// A port that is kept while this lives.
#[derive(Debug)]
pub(super) struct Port {
    number: u16,
    _socket: OwnedFd,
}

impl Port {
    /// Any free port.
    #[track_caller]
    pub(super) fn new() -> Self {
        let socket = reusable_socket();
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free loopback port");
        let address = getsockname(&socket).expect("address of a bound socket");
        let address = SocketAddr::try_from(address).expect("an internet address");
        Self { number: address.port(), _socket: socket }
    }

    /// Its number.
    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// The loopback address with this port.
    pub(super) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }

    /// A socket that listens on the port, not blocking.
    #[track_caller]
    pub(super) fn listen(&self, backlog: i32) -> std::net::TcpListener {
        let socket = reusable_socket();
        bind(&socket, &self.address()).expect("a port that is kept for us");
        rustix::net::listen(&socket, backlog).expect("listening on a bound socket");
        let listener = std::net::TcpListener::from(socket);
        listener.set_nonblocking(true).expect("a mode of a socket");
        listener
    }
}

#[track_caller]
fn reusable_socket() -> OwnedFd {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
    set_socket_reuseaddr(&socket, true).expect("an option of a socket");
    socket
}
