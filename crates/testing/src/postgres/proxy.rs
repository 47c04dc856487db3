//! A TCP proxy that breaks connections in each of the ways in which a network does.
//!
//! Owns: a port, a thread with a runtime of its own, and all connections through it.
//! Never: puts bytes behind a gap. A connection of which bytes were swallowed stays silent in that direction for ever;
//! only new connections pass again.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc as blocking};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::port::Port;
use crate::process::OUTER_LIMIT;

/// Connections through it at once; who comes later waits in the kernel's queue.
const CONNECTIONS_MAX: usize = 1024;
/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 1024;
/// What is read at once, in bytes.
const CHUNK_BYTES: usize = 16 * 1024;
/// Chunks under way in one direction of a connection; when there are so many, nothing more is read.
const CHUNKS_MAX: usize = 16;
/// Calls that wait for the thread; each caller waits for its own answer.
const COMMANDS_MAX: usize = 64;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client.
    ToServer,
    /// From the server.
    ToClient,
}

/// What happens to bytes of one direction, of all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They are forwarded.
    Pass,
    /// They are forwarded so much later, in their order.
    Delay(Duration),
    /// They wait, within bounds, and are forwarded when another mode lets them: a network that is away for a while.
    Hold,
    /// They are taken and lost, as is the end of the stream: the half-open connection that neither side learns of.
    Swallow,
    /// They are lost, and their connection is closed at both ends. With [`Direction::ToClient`]: the server has done
    /// what it was asked, and the client does not learn it.
    Close,
}

/// What went through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that were accepted.
    pub connections: u64,
    /// Those that are there at the moment.
    pub open: u64,
    /// Bytes that the server was given.
    pub bytes_to_server: u64,
    /// Bytes that clients were given.
    pub bytes_to_client: u64,
    /// Bytes that were lost, in both directions.
    pub bytes_lost: u64,
}

/// A proxy in front of one server, forwarding everything until it is told otherwise. Dropping it closes all.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    modes: watch::Sender<Modes>,
    commands: mpsc::Sender<(Command, blocking::SyncSender<()>)>,
    tally: Arc<Tally>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Clone, Copy)]
struct Modes {
    to_server: Mode,
    to_client: Mode,
}

impl Modes {
    fn of(self, direction: Direction) -> Mode {
        match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    Cut,
    Refuse,
    Accept,
    Stop,
}

#[derive(Debug, Default)]
struct Tally {
    connections: AtomicU64,
    open: AtomicU64,
    bytes_to_server: AtomicU64,
    bytes_to_client: AtomicU64,
    bytes_lost: AtomicU64,
}

impl TcpProxy {
    /// A proxy on a free port of the loopback interface.
    ///
    /// # Panics
    ///
    /// If its thread cannot be started.
    #[track_caller]
    pub fn new(server: SocketAddr) -> Self {
        let port = Port::new();
        let address = port.address();
        let listener = port.listen(BACKLOG);
        let (modes, modes_seen) = watch::channel(Modes { to_server: Mode::Pass, to_client: Mode::Pass });
        let (commands, commands_seen) = mpsc::channel(COMMANDS_MAX);
        let tally = Arc::<Tally>::default();
        let proxy = Proxy { server, port, modes: modes_seen, tally: Arc::clone(&tally) };
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let work = move || runtime.block_on(proxy.serve(listener, commands_seen));
        let thread = std::thread::Builder::new().name("proxy".into()).spawn(work).expect("a thread");
        Self { address, modes, commands, tally, thread: Some(thread) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what happens to bytes of one direction that arrive from now on.
    pub fn set(&self, direction: Direction, mode: Mode) {
        self.modes.send_modify(|modes| match direction {
            Direction::ToServer => modes.to_server = mode,
            Direction::ToClient => modes.to_client = mode,
        });
    }

    /// As [`TcpProxy::set`], of both directions.
    pub fn set_both(&self, mode: Mode) {
        self.modes.send_modify(|modes| *modes = Modes { to_server: mode, to_client: mode });
    }

    /// Closes all connections there are. Returns when they are closed.
    #[track_caller]
    pub fn cut(&self) {
        self.command(Command::Cut);
    }

    /// Refuses new connections, until [`TcpProxy::accept`]. Those that are there stay.
    #[track_caller]
    pub fn refuse(&self) {
        self.command(Command::Refuse);
    }

    /// Accepts new connections again, at the same port.
    #[track_caller]
    pub fn accept(&self) {
        self.command(Command::Accept);
    }

    /// What went through so far.
    pub fn counts(&self) -> Counts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            connections: get(&self.tally.connections),
            open: get(&self.tally.open),
            bytes_to_server: get(&self.tally.bytes_to_server),
            bytes_to_client: get(&self.tally.bytes_to_client),
            bytes_lost: get(&self.tally.bytes_lost),
        }
    }

    #[track_caller]
    fn command(&self, command: Command) {
        let (answer, answered) = blocking::sync_channel(1);
        self.commands.try_send((command, answer)).expect("the thread of the proxy takes commands");
        answered.recv_timeout(OUTER_LIMIT).expect("the thread of the proxy answers");
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        let (answer, _nobody_waits) = blocking::sync_channel(1);
        if self.commands.try_send((Command::Stop, answer)).is_ok()
            && let Some(thread) = self.thread.take()
        {
            drop(thread.join());
        }
    }
}

/// The side of the thread.
struct Proxy {
    server: SocketAddr,
    port: Port,
    modes: watch::Receiver<Modes>,
    tally: Arc<Tally>,
}

impl Proxy {
    async fn serve(
        self,
        listener: std::net::TcpListener,
        mut commands: mpsc::Receiver<(Command, blocking::SyncSender<()>)>,
    ) {
        let adopt = |listener| TcpListener::from_std(listener).expect("a runtime with sockets");
        let mut listener = Some(adopt(listener));
        let mut connections = JoinSet::new();
        loop {
            let has_room = connections.len() < CONNECTIONS_MAX;
            let accepted = async {
                match &listener {
                    Some(listener) if has_room => listener.accept().await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                command = commands.recv() => {
                    let Some((command, answer)) = command else { return };
                    match command {
                        Command::Cut => connections.shutdown().await,
                        Command::Refuse => listener = None,
                        Command::Accept if listener.is_none() => listener = Some(adopt(self.port.listen(BACKLOG))),
                        Command::Accept => {}
                        Command::Stop => return,
                    }
                    // Who did not wait for the answer does not need it.
                    let _ = answer.try_send(());
                }
                accepted = accepted => {
                    // A client that went before it was accepted is no failure of ours.
                    if let Ok((client, _)) = accepted {
                        let open = Open::new(Arc::clone(&self.tally));
                        connections.spawn(connection(client, self.server, self.modes.clone(), open));
                    }
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

/// Counts a connection as open while it lives.
struct Open(Arc<Tally>);

impl Open {
    fn new(tally: Arc<Tally>) -> Self {
        tally.connections.fetch_add(1, Ordering::Relaxed);
        tally.open.fetch_add(1, Ordering::Relaxed);
        Self(tally)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One connection until both directions have ended or one has failed. Its sockets close when this returns.
async fn connection(client: TcpStream, server: SocketAddr, mut modes: watch::Receiver<Modes>, open: Open) {
    // Who comes while all is swallowed reaches nobody: its connection is silent from its birth.
    if modes.borrow_and_update().to_server == Mode::Swallow && modes.borrow().to_client == Mode::Swallow {
        let (mut from_client, _kept_open) = client.into_split();
        drop(swallow(&mut from_client, &open.0).await);
        return std::future::pending().await;
    }
    let Ok(server) = TcpStream::connect(server).await else { return };
    // Bytes arrive when they are sent; a proxy that waits for more would be a fault that nobody asked for.
    drop(client.set_nodelay(true));
    drop(server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let forth = Pump { direction: Direction::ToServer, from: from_client, to: to_server, modes: modes.clone() };
    let back = Pump { direction: Direction::ToClient, from: from_server, to: to_client, modes };
    // The first failure ends both.
    drop(tokio::try_join!(forth.run(&open.0), back.run(&open.0)));
}

/// Takes all that comes until the end of the stream.
async fn swallow(from: &mut OwnedReadHalf, tally: &Tally) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        tally.bytes_lost.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// One direction of a connection.
struct Pump {
    direction: Direction,
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    modes: watch::Receiver<Modes>,
}

/// Bytes under way, and when they may be written.
struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
    written: usize,
}

/// What a direction waits for.
enum Event {
    ModesChanged,
    Written(usize),
    /// Nothing: the end of the stream.
    Read(usize),
}

impl Pump {
    async fn run(mut self, tally: &Tally) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut chunks: VecDeque<Chunk> = VecDeque::new();
        let mut has_ended = false;
        loop {
            let mode = self.modes.borrow_and_update().of(self.direction);
            let is_idle = chunks.is_empty() && !has_ended;
            match mode {
                Mode::Swallow if !is_idle => {
                    let lost: usize = chunks.iter().map(|chunk| chunk.bytes.len() - chunk.written).sum();
                    tally.bytes_lost.fetch_add(lost as u64, Ordering::Relaxed);
                    return self.be_silent(tally).await;
                }
                Mode::Close if !is_idle => {
                    let lost: usize = chunks.iter().map(|chunk| chunk.bytes.len() - chunk.written).sum();
                    tally.bytes_lost.fetch_add(lost as u64, Ordering::Relaxed);
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                Mode::Pass | Mode::Delay(_) if has_ended && chunks.is_empty() => return self.to.shutdown().await,
                _ => {}
            }
            let has_room = chunks.len() < CHUNKS_MAX;
            let event = tokio::select! {
                changed = self.modes.changed() => {
                    changed.map_err(io::Error::other)?;
                    Event::ModesChanged
                }
                count = write(&mut self.to, chunks.front(), mode) => Event::Written(count?),
                count = self.from.read(&mut buffer), if has_room && !has_ended => Event::Read(count?),
            };
            match event {
                Event::ModesChanged => {}
                Event::Written(count) => {
                    self.count_of(tally).fetch_add(count as u64, Ordering::Relaxed);
                    let chunk = chunks.front_mut().expect("what was written from");
                    chunk.written += count;
                    if chunk.written == chunk.bytes.len() {
                        chunks.pop_front();
                    }
                }
                Event::Read(0) => has_ended = true,
                Event::Read(count) => {
                    // The mode of the moment, not that of the last look: who sets it and then sends can rely on it.
                    let delay = match self.modes.borrow().of(self.direction) {
                        Mode::Delay(delay) => delay,
                        Mode::Pass | Mode::Hold | Mode::Swallow | Mode::Close => Duration::ZERO,
                    };
                    chunks.push_back(Chunk {
                        due: Instant::now() + delay,
                        bytes: buffer[..count].to_vec(),
                        written: 0,
                    });
                }
            }
        }
    }

    fn count_of<'tally>(&self, tally: &'tally Tally) -> &'tally AtomicU64 {
        match self.direction {
            Direction::ToServer => &tally.bytes_to_server,
            Direction::ToClient => &tally.bytes_to_client,
        }
    }

    /// For ever: takes what comes, and keeps both sockets open when nothing comes any more.
    async fn be_silent(mut self, tally: &Tally) -> io::Result<()> {
        drop(swallow(&mut self.from, tally).await);
        std::future::pending().await
    }
}

/// Writes a part of the first chunk as soon as it is due. Dropped before it is done, it has written nothing.
async fn write(to: &mut OwnedWriteHalf, first: Option<&Chunk>, mode: Mode) -> io::Result<usize> {
    match first {
        Some(chunk) if mode != Mode::Hold => {
            tokio::time::sleep_until(chunk.due).await;
            to.write(&chunk.bytes[chunk.written..]).await
        }
        _ => std::future::pending().await,
    }
}
