//! Accepting connections, and ending them.
//!
//! Owns: the listener, how many connections there are in total and from one source, and the stop.
//! Never: waits for one connection before it takes another.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::address::{AddressRefused, Surroundings, check_address, is_loopback};
use crate::connection::{self, Service};
use crate::door::Door;
use crate::figures::Figures;
use crate::problem::{PROBLEM_JSON, Problem, RETRY_AFTER_DEFAULT};
use crate::tls::Tls;

/// How long each step of a connection may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// A TLS handshake.
    pub handshake: Duration,
    /// The head of a request, from its first byte; the first one from the connection's start.
    pub head: Duration,
    /// Nothing, between two requests.
    pub idle: Duration,
    /// A write of which the client takes nothing.
    pub write: Duration,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            handshake: Duration::from_secs(5),
            head: Duration::from_secs(5),
            idle: Duration::from_secs(60),
            write: Duration::from_secs(30),
        }
    }
}

/// How a server takes connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerOptions {
    /// How long each step of a connection may take.
    pub times: Times,
    /// Most connections in total. Each may hold a descriptor, a head of a request and a body of its route.
    pub connections_max: usize,
    /// Most connections from one source: an IPv4 address, or the 64 bits of an IPv6 network. Behind a proxy all come
    /// from one source.
    pub connections_per_source_max: usize,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions { times: Times::default(), connections_max: 4096, connections_per_source_max: 1024 }
    }
}

/// Connections that are told why they are turned away, at a time; others are closed without a word.
const REFUSALS_MAX: usize = 64;
/// How long accepting rests after the system refused; doubled each time, up to the second.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// When the kernel begins to ask a silent client whether it is there, how often, and how many times. A client that
/// vanished while its call waits is otherwise never noticed.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMES: u32 = 3;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 1024;

/// Why no socket listens.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Keys or TLS are missing; nothing was opened.
    #[error(transparent)]
    Refused(#[from] AddressRefused),
    /// Somebody else listens there.
    #[error("[http] listen = \"{0}\" is in use: another program listens there")]
    InUse(SocketAddr),
    /// The name is unknown, or the system does not want it.
    #[error("failed to listen at [http] listen = \"{place}\": {source}")]
    System {
        /// What was to be opened.
        place: String,
        /// Why not.
        source: io::Error,
    },
}

/// Opens the socket of the door, if that is allowed there. A name that stands for several addresses is opened at the
/// first of them; none of them may need more than there is.
///
/// # Errors
///
/// If the name is unknown, keys or TLS are missing, or the system refuses.
pub fn listen(host: &str, port: u16, around: Surroundings) -> Result<TcpListener, ListenError> {
    let system = |source| ListenError::System { place: format!("{host}:{port}"), source };
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(system)?.collect();
    for address in &addresses {
        check_address(*address, around)?;
    }
    let Some(address) = addresses.first() else {
        return Err(system(io::Error::other("the name has no address")));
    };
    let open = || {
        let socket = Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?; // a restart need not wait for connections of the one before
        socket.bind(&(*address).into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    open().map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse(*address),
        _ => system(error),
    })
}

/// The answers to connections that are one too many, as bytes: there is no request yet that they could answer.
struct Refusals {
    total: Arc<str>,
    source: Arc<str>,
}

impl Refusals {
    fn new() -> Refusals {
        let write = |status: StatusCode, detail: &str| {
            let body = Problem::new(status, "too_many_connections", detail).document().to_string();
            let head = [
                format!("HTTP/1.1 {status}"),
                format!("content-type: {PROBLEM_JSON}"),
                format!("retry-after: {}", RETRY_AFTER_DEFAULT.as_secs()),
                "connection: close".to_owned(),
                format!("content-length: {}", body.len()),
            ];
            Arc::from(format!("{}\r\n\r\n{body}", head.join("\r\n")))
        };
        Refusals {
            total: write(StatusCode::SERVICE_UNAVAILABLE, "this server has all the connections that it takes"),
            source: write(StatusCode::TOO_MANY_REQUESTS, "your address has all the connections that one gets here"),
        }
    }
}

/// Becomes true once the server is to stop: calls that wait for something should end then. An extractor.
#[derive(Debug, Clone)]
pub struct Stopping(watch::Receiver<bool>);

impl Stopping {
    /// Waits until the stop begins. A server that is gone has begun to stop.
    pub async fn begun(&mut self) {
        let _ = self.0.wait_for(|stopping| *stopping).await;
    }

    /// Whether the stop has begun.
    pub fn has_begun(&self) -> bool {
        *self.0.borrow()
    }
}

/// A request that came without a server is never stopped.
impl<S: Sync> FromRequestParts<S> for Stopping {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Stopping, Self::Rejection> {
        static NEVER: OnceLock<watch::Sender<bool>> = OnceLock::new();
        let never = || Stopping(NEVER.get_or_init(|| watch::channel(false).0).subscribe());
        Ok(parts.extensions.get::<Stopping>().cloned().unwrap_or_else(never))
    }
}

/// How a stop went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// Connections that were cut because their requests had not ended.
    pub cut: usize,
}

/// A server that accepts. Dropping it cuts all connections; [`Server::stop`] lets them end.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: tokio::task::JoinHandle<JoinSet<()>>,
    door: Arc<Door>,
}

impl Server {
    /// Serves `door` at a socket that listens already. Whether it may be opened there is
    /// [`check_address`](crate::check_address)'s matter.
    ///
    /// # Errors
    ///
    /// If the runtime cannot take the socket.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn start(
        listener: TcpListener,
        door: Arc<Door>,
        tls: Option<Arc<Tls>>,
        options: ServerOptions,
    ) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let on_loopback = is_loopback(address.ip());
        if on_loopback {
            door.tell_of_no_keys();
        }
        let (stop, stopping) = watch::channel(false);
        let acceptor = Acceptor {
            service: Arc::new(Service { door: Arc::clone(&door), times: options.times, on_loopback }),
            tls,
            options,
            total: Arc::new(Semaphore::new(options.connections_max)),
            refusals: Refusals::new(),
            refusing: Arc::new(Semaphore::new(REFUSALS_MAX)),
            sources: Arc::default(),
            spare: Spare::open(),
            stopping: Stopping(stopping),
        };
        let accepting = tokio::spawn(acceptor.run(listener));
        Ok(Server { address, stop, accepting, door })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts nothing more, closes idle connections, lets requests under way end `within` this time, cuts the others,
    /// and waits for their audit entries.
    pub async fn stop(mut self, within: Duration) -> Stopped {
        let deadline = tokio::time::Instant::now() + within;
        self.stop.send_replace(true);
        let mut cut = 0;
        if let Ok(mut connections) = (&mut self.accepting).await {
            while let Ok(Some(ended)) = tokio::time::timeout_at(deadline, connections.join_next()).await {
                tell_of_panic(ended);
            }
            cut = connections.len();
            connections.shutdown().await;
        }
        self.door.audit_settled().await;
        Stopped { cut }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The loop that accepts.
struct Acceptor {
    service: Arc<Service>,
    tls: Option<Arc<Tls>>,
    options: ServerOptions,
    total: Arc<Semaphore>,
    refusals: Refusals,
    refusing: Arc<Semaphore>,
    sources: Arc<Sources>,
    spare: Spare,
    stopping: Stopping,
}

impl Acceptor {
    /// Accepts until the stop; gives the connections that are left.
    async fn run(mut self, listener: tokio::net::TcpListener) -> JoinSet<()> {
        let mut connections = JoinSet::new();
        let mut stopping = self.stopping.clone();
        let mut pause = PAUSE_MIN;
        loop {
            tokio::select! {
                biased;
                () = stopping.begun() => return connections,
                Some(ended) = connections.join_next() => tell_of_panic(ended),
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        pause = PAUSE_MIN;
                        self.take(stream, peer, &mut connections);
                    }
                    Err(error) if is_of_one_connection(&error) => {}
                    Err(error) => {
                        Figures::add(&self.service.door.figures().accept_pauses);
                        tracing::warn!("accepting rests for {} ms: {error}", pause.as_millis());
                        if is_out_of_descriptors(&error) {
                            self.spare.shed(&listener);
                        }
                        tokio::select! {
                            () = stopping.begun() => return connections,
                            () = tokio::time::sleep(pause) => {}
                        }
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                },
            }
        }
    }

    fn take(&self, stream: TcpStream, peer: SocketAddr, connections: &mut JoinSet<()>) {
        let figures = self.service.door.figures();
        let Ok(permit) = Arc::clone(&self.total).try_acquire_owned() else {
            Figures::add(&figures.connections_refused_total);
            return self.turn_away(stream, &self.refusals.total, connections);
        };
        let Some(from) = Sources::enter(&self.sources, peer.ip(), self.options.connections_per_source_max) else {
            Figures::add(&figures.connections_refused_source);
            return self.turn_away(stream, &self.refusals.source, connections);
        };
        // Without these the connection works as well, only later or longer.
        let _ = stream.set_nodelay(true);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_TIMES));
        let open = Open::new(Arc::clone(figures));
        let config = self.tls.as_ref().map(|tls| tls.config());
        let (service, stopping) = (Arc::clone(&self.service), self.stopping.clone());
        connections.spawn(async move {
            connection::serve(service, stream, peer, config, stopping).await;
            drop((permit, from, open));
        });
    }

    /// Says why, if few enough are being told, and not encrypted: a handshake costs what the limit is to save.
    fn turn_away(&self, stream: TcpStream, answer: &Arc<str>, connections: &mut JoinSet<()>) {
        if self.tls.is_some() {
            return;
        }
        let Ok(permit) = Arc::clone(&self.refusing).try_acquire_owned() else { return };
        let answer = Arc::clone(answer);
        connections.spawn(async move {
            connection::refuse(stream, &answer).await;
            drop(permit);
        });
    }
}

fn tell_of_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!("a connection ended by a panic: {error}");
    }
}

/// The client was gone before it was accepted, which says nothing about the next one.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::MFILE | Errno::NFILE))
}

/// A descriptor that is given up to accept one client and close it: it is better told than left hanging in a queue
/// that nobody serves.
struct Spare(Option<OwnedFd>);

impl Spare {
    fn open() -> Spare {
        Spare(rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok())
    }

    fn shed(&mut self, listener: &tokio::net::TcpListener) {
        if self.0.take().is_some() {
            // Not through the runtime, which would want to register the socket first.
            let accepted = rustix::net::accept(listener);
            drop(accepted);
        }
        *self = Spare::open();
    }
}

/// Connections by source.
#[derive(Default)]
struct Sources(Mutex<BTreeMap<IpAddr, usize>>);

/// A connection's place among those of its source.
struct From {
    sources: Arc<Sources>,
    source: IpAddr,
}

impl Sources {
    /// A place for one more from `ip`, if there are less than `max`.
    fn enter(sources: &Arc<Sources>, ip: IpAddr, max: usize) -> Option<From> {
        let source = source_of(ip);
        let mut counts = sources.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(source).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(From { sources: Arc::clone(sources), source })
    }
}

impl Drop for From {
    fn drop(&mut self) {
        let mut counts = self.sources.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.source);
            }
        }
    }
}

/// What counts as one source: who has one IPv6 address usually has the 2^64 of its network.
fn source_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) => IpAddr::V4(ip),
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
    }
}

/// Counts a connection as long as it lives.
struct Open(Arc<Figures>);

impl Open {
    fn new(figures: Arc<Figures>) -> Open {
        Figures::add(&figures.connections_accepted);
        Figures::add(&figures.connections_open);
        Open(figures)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections_open.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_an_ipv4_address_or_an_ipv6_network() {
        let source = |text: &str| source_of(text.parse().unwrap());
        assert_eq!(source("10.0.0.1"), source("::ffff:10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8:0:1::1"), source("2001:db8:0:2::1"));
    }

    #[test]
    fn places_are_given_back_and_forgotten() {
        let sources = Arc::new(Sources::default());
        let ip = "10.0.0.1".parse().unwrap();
        let one = Sources::enter(&sources, ip, 2);
        let two = Sources::enter(&sources, ip, 2);
        assert!(one.is_some() && two.is_some());
        assert!(Sources::enter(&sources, ip, 2).is_none());
        assert!(Sources::enter(&sources, "10.0.0.2".parse().unwrap(), 2).is_some());
        drop(one);
        assert!(Sources::enter(&sources, ip, 2).is_some());
        drop(two);
        assert!(sources.0.lock().unwrap().is_empty());
    }

    #[test]
    fn a_socket_is_opened_where_that_is_allowed_and_free() {
        let nothing = Surroundings { has_keys: false, has_tls: false, allow_plaintext: false };
        let listener = listen("127.0.0.1", 0, nothing).unwrap();
        let address = listener.local_addr().unwrap();
        let error = listen("127.0.0.1", address.port(), nothing).unwrap_err();
        assert!(matches!(error, ListenError::InUse(taken) if taken == address), "{error}");
        assert!(matches!(listen("0.0.0.0", 0, nothing).unwrap_err(), ListenError::Refused(AddressRefused::NoKeys(_))));
        assert!(listen("localhost", 0, nothing).is_ok());
        let error = listen("name.invalid", 0, nothing).unwrap_err();
        assert!(error.to_string().contains("name.invalid:0"), "{error}");
    }
}
