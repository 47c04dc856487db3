//! Listening sockets: TCP, unix, inherited.

use crate::error::ServeError;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Connections that wait to be accepted, at most; the system may lower it.
const BACKLOG: i32 = 1024;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A host name or address, and a port.
    Tcp {
        /// Name or address, without brackets.
        host: String,
        /// 0 lets the system choose.
        port: u16,
    },
    /// A path.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The listeners of a server.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) listeners: Vec<Listener>,
    /// The unix socket that this server has made.
    pub(crate) own_socket: Option<OwnSocket>,
}

/// The path of a unix socket of ours; removed with this value, which must go before the socket is closed: afterwards
/// the path may be another server's.
#[derive(Debug)]
pub(crate) struct OwnSocket(PathBuf);

impl Drop for OwnSocket {
    fn drop(&mut self) {
        // Without the right to remove it, the next start finds that nobody serves it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Opens the listeners: those that are inherited, else the one of the options.
pub(crate) fn open_all(options: &crate::ServerOptions) -> Result<Opened, ServeError> {
    let listeners = crate::inherited::listeners()?;
    if !listeners.is_empty() {
        if options.is_listen_given {
            tracing::warn!("serving {} inherited socket(s); -l and -p are not used", listeners.len());
        }
        return Ok(Opened { listeners, own_socket: None });
    }
    let listener = Listener::open(&options.listen, options.socket_mode, options.socket_group.as_deref())?;
    let own_socket = if let Address::Unix(path) = &options.listen { Some(OwnSocket(path.clone())) } else { None };
    Ok(Opened { listeners: vec![listener], own_socket })
}

/// Says where clients can connect, and warns where more can than should.
pub(crate) fn announce(listeners: &[Listener]) {
    for listener in listeners {
        tracing::info!("listening on {}", listener.describe());
        if listener.is_reachable_from_outside() {
            tracing::warn!(
                "{} can be reached from other machines, and the protocol has no authentication",
                listener.describe()
            );
        }
    }
}

/// A socket that accepts clients.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(mio::net::TcpListener),
    Unix(mio::net::UnixListener),
}

impl Listener {
    /// Opens the listener of `address`.
    pub(crate) fn open(address: &Address, mode: Option<u32>, group: Option<&str>) -> Result<Listener, ServeError> {
        match address {
            Address::Tcp { host, port } => open_tcp(address, host, *port),
            Address::Unix(path) => open_unix(path, mode, group),
        }
    }

    /// Takes over a socket that listens already.
    pub(crate) fn from_inherited(descriptor: i32, socket: OwnedFd) -> Result<Listener, ServeError> {
        let refuse = |what: &str| ServeError::Inherited { descriptor, what: what.to_owned() };
        let socket = Socket::from(socket);
        if socket.r#type().map_err(|_| refuse("is not a socket"))? != Type::STREAM {
            return Err(refuse("is not a stream socket"));
        }
        if !crate::platform::listens(&socket) {
            return Err(refuse("does not listen"));
        }
        let local = socket.local_addr().map_err(|error| refuse(&error.to_string()))?;
        socket
            .set_nonblocking(true)
            .and_then(|()| socket.set_cloexec(true))
            .map_err(|source| ServeError::system("prepare an inherited socket", source))?;
        match local.domain() {
            Domain::IPV4 | Domain::IPV6 => Ok(Listener::Tcp(mio::net::TcpListener::from_std(socket.into()))),
            Domain::UNIX => Ok(Listener::Unix(mio::net::UnixListener::from_std(socket.into()))),
            _ => Err(refuse("is of an unknown family")),
        }
    }

    /// Accepts one client that waits.
    pub(crate) fn accept(&self) -> io::Result<(Stream, u16)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                // Best effort: a client that has gone already must not disturb the server.
                let _ = stream.set_nodelay(true);
                let _ = rustix::net::sockopt::set_socket_keepalive(stream.as_fd(), true);
                Ok((Stream::Tcp(stream), peer.port()))
            }
            Listener::Unix(listener) => Ok((Stream::Unix(listener.accept()?.0), 0)),
        }
    }

    /// What it listens on, for messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Listener::Tcp(listener) => listener.local_addr().map_or_else(|_| "?".into(), |address| address.to_string()),
            Listener::Unix(listener) => listener
                .local_addr()
                .ok()
                .and_then(|address| address.as_pathname().map(|path| format!("unix:{}", path.display())))
                .unwrap_or_else(|| "unix:?".into()),
        }
    }

    /// Whether other machines can reach it.
    pub(crate) fn is_reachable_from_outside(&self) -> bool {
        match self {
            Listener::Tcp(listener) => listener.local_addr().is_ok_and(|address| !address.ip().is_loopback()),
            Listener::Unix(_) => false,
        }
    }
}

impl mio::event::Source for Listener {
    fn register(&mut self, registry: &mio::Registry, token: mio::Token, interests: mio::Interest) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.register(registry, token, interests),
            Listener::Unix(listener) => listener.register(registry, token, interests),
        }
    }
    fn reregister(&mut self, registry: &mio::Registry, token: mio::Token, interests: mio::Interest) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.reregister(registry, token, interests),
            Listener::Unix(listener) => listener.reregister(registry, token, interests),
        }
    }
    fn deregister(&mut self, registry: &mio::Registry) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.deregister(registry),
            Listener::Unix(listener) => listener.deregister(registry),
        }
    }
}

/// A client's socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(mio::net::TcpStream),
    Unix(mio::net::UnixStream),
}

impl Stream {
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => io::Read::read(stream, buffer),
            Stream::Unix(stream) => io::Read::read(stream, buffer),
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => io::Write::write(stream, bytes),
            Stream::Unix(stream) => io::Write::write(stream, bytes),
        }
    }

    /// Nothing more is written; the peer reads the end.
    pub(crate) fn end_writing(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown(std::net::Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(std::net::Shutdown::Write),
        }
    }

    pub(crate) fn register(&mut self, registry: &mio::Registry, token: mio::Token) -> io::Result<()> {
        let interests = mio::Interest::READABLE | mio::Interest::WRITABLE;
        match self {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Stream::Tcp(stream) => registry.register(stream, token, interests | mio::Interest::PRIORITY),
            #[cfg(not(any(target_os = "linux", target_os = "android")))]
            Stream::Tcp(stream) => registry.register(stream, token, interests),
            Stream::Unix(stream) => registry.register(stream, token, interests),
        }
    }
}

fn open_tcp(address: &Address, host: &str, port: u16) -> Result<Listener, ServeError> {
    let failed = |source: io::Error| {
        if source.kind() == io::ErrorKind::AddrInUse {
            ServeError::AddressInUse { address: address.to_string() }
        } else {
            ServeError::Listen { address: address.to_string(), source }
        }
    };
    let target: SocketAddr = (host, port)
        .to_socket_addrs()
        .map_err(failed)?
        .next()
        .ok_or_else(|| failed(io::Error::new(io::ErrorKind::NotFound, "the name has no address")))?;
    let open = || {
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&target.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    };
    Ok(Listener::Tcp(mio::net::TcpListener::from_std(open().map_err(failed)?.into())))
}

fn open_unix(path: &Path, mode: Option<u32>, group: Option<&str>) -> Result<Listener, ServeError> {
    let listen_error = |source| ServeError::Listen { address: format!("unix:{}", path.display()), source };
    let group = group.map(crate::privileges::group_id).transpose()?;
    make_way(path)?;
    // The mode is set by the umask, so that the socket is never reachable under a wider one.
    let umask = mode.map(|mode| rustix::process::umask(rustix::fs::Mode::from_raw_mode((0o777 & !mode) as _)));
    let open = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::unix(path)?)?;
        if let Some(group) = group {
            rustix::fs::chown(path, None, Some(group))?;
        }
        socket.listen(BACKLOG)?;
        Ok(socket)
    };
    let opened = open().map_err(listen_error);
    if let Some(umask) = umask {
        rustix::process::umask(umask);
    }
    Ok(Listener::Unix(mio::net::UnixListener::from_std(opened?.into())))
}

/// Removes a socket that nobody serves any more; anything else at the path is refused.
fn make_way(path: &Path) -> Result<(), ServeError> {
    let address = format!("unix:{}", path.display());
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(ServeError::Listen { address, source }),
    };
    if !metadata.file_type().is_socket() {
        return Err(ServeError::NotASocket { path: path.display().to_string() });
    }
    // Not blocking: a server that does not accept at the moment is alive all the same.
    let connect = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(path)?)
    };
    match connect() {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|source| ServeError::Listen { address, source })
        }
        _ => Err(ServeError::AddressInUse { address }),
    }
}
