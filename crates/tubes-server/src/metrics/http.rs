//! The listener for scrapers: one thread, a bounded number of connections, one request on each.
//!
//! Owns: the connections and their deadlines.
//! Never: waits for a client. At the limit the oldest connection gives way, so that who holds connections open keeps
//! nobody out; each has a deadline for its request and for taking its answer.

use super::request::{NOT_ALLOWED, REQUEST_BYTES_MAX, Verdict, judge};
use super::{Snapshot, text};
use crate::clock;
use crate::error::ServeError;
use crate::listen::{Address, Listener, Stream};
use mio::{Events, Interest, Poll, Token};
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// Most connections at a time.
const CONNECTIONS_MAX: usize = 32;
/// Descriptors that the listener needs: connections, the socket itself, the event queue, a connection to ask by.
pub(crate) const DESCRIPTORS: u64 = CONNECTIONS_MAX as u64 + 4;
/// Connections accepted before the others are looked at again.
const ACCEPTS_PER_TURN: usize = 64;
/// How long a request may take to arrive, in ns.
const REQUEST_NS: u64 = 5_000_000_000;
/// How long a client may take for its answer, in ns.
const ANSWER_NS: u64 = 10_000_000_000;
/// How long after the answer what a client still sends is taken, so that the answer is not lost to a reset, in ns.
const CLOSING_NS: u64 = 1_000_000_000;
/// How long accepting rests after the system refused, in ns.
const RETRY_NS: u64 = 100_000_000;
/// Scrapes within this time get the same answer, so that many of them cost no more than one, in ns.
const FRESH_NS: u64 = 100_000_000;

const LISTENER: Token = Token(CONNECTIONS_MAX);

/// A socket for scrapers that listens already.
#[derive(Debug)]
pub(crate) struct Endpoint(Listener);

impl Endpoint {
    /// Opens the socket. A failure ends the start of the server, as one of its own socket does.
    pub(crate) fn open(address: &Address) -> Result<Endpoint, ServeError> {
        Ok(Endpoint(Listener::open(address, None, None)?))
    }

    /// Answers scrapers on a thread of its own, for as long as the process lives. `ask` gives the present snapshot, or
    /// says why there is none.
    pub(crate) fn serve(
        self,
        ask: impl FnMut() -> Result<Snapshot, String> + Send + 'static,
    ) -> Result<(), ServeError> {
        let Endpoint(mut listener) = self;
        let place = listener.describe();
        tracing::info!("metrics at http://{place}/metrics");
        if listener.is_reachable_from_outside() {
            tracing::warn!("{place} can be reached from other machines, and nobody is asked who they are");
        }
        let poll = Poll::new().map_err(|source| ServeError::system("set up polling", source))?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)
            .map_err(|source| ServeError::system("register the listener for metrics", source))?;
        let run = move || {
            let answers = Answers { ask, last: None };
            let connections = std::array::from_fn(|_| None);
            let mut server = Server { listener, poll, connections, answers, has_clients: true, rests_until: 0 };
            if let Err(error) = server.run() {
                tracing::error!("metrics are not served any more: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("metrics".into()).stack_size(256 * 1024);
        thread.spawn(run).map_err(|source| ServeError::system("start the thread for metrics", source))?;
        Ok(())
    }
}

struct Server<Ask> {
    listener: Listener,
    poll: Poll,
    connections: [Option<Connection>; CONNECTIONS_MAX],
    answers: Answers<Ask>,
    /// The listener may have more clients.
    has_clients: bool,
    /// Nobody is accepted before this.
    rests_until: u64,
}

struct Connection {
    stream: Stream,
    /// When it is closed whatever it does.
    deadline_ns: u64,
    state: State,
}

enum State {
    Reading(Vec<u8>),
    /// Bytes of the answer, and how many have been taken.
    Writing(Rc<[u8]>, usize),
    /// All is said; what the client still sends is taken and forgotten.
    Closing,
}

/// Whether a connection goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Wait,
    Close,
}

impl<Ask: FnMut() -> Result<Snapshot, String>> Server<Ask> {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(CONNECTIONS_MAX + 1);
        loop {
            let timeout = self.time_to_wait();
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            let now_ns = clock::now().boot_ns;
            for event in &events {
                match event.token() {
                    LISTENER => self.has_clients = true,
                    Token(place) => self.go_on(place, now_ns),
                }
            }
            self.accept(now_ns);
            for connection in &mut self.connections {
                if connection.as_ref().is_some_and(|connection| connection.deadline_ns <= now_ns) {
                    *connection = None;
                }
            }
        }
    }

    fn time_to_wait(&self) -> Option<Duration> {
        let now_ns = clock::now().boot_ns;
        let accept_at = self.has_clients.then_some(self.rests_until);
        let deadlines = self.connections.iter().flatten().map(|connection| connection.deadline_ns);
        let next = deadlines.chain(accept_at).min()?;
        Some(Duration::from_nanos(next.saturating_sub(now_ns)))
    }

    fn accept(&mut self, now_ns: u64) {
        if !self.has_clients || now_ns < self.rests_until {
            return;
        }
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listener.accept() {
                Ok((stream, _)) => self.take(stream, now_ns),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.has_clients = false;
                    return;
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {
                }
                Err(_) => {
                    self.rests_until = now_ns + RETRY_NS;
                    return;
                }
            }
        }
    }

    /// Gives a client a place: a free one, or that of whom it has been awaited for longest.
    fn take(&mut self, mut stream: Stream, now_ns: u64) {
        let age = |place: &usize| self.connections[*place].as_ref().map(|connection| connection.deadline_ns);
        let place = (0..CONNECTIONS_MAX).min_by_key(age).unwrap_or(0);
        // The old one is closed first: its descriptor is free then, and its token.
        self.connections[place] = None;
        if stream.register(self.poll.registry(), Token(place)).is_ok() {
            let state = State::Reading(Vec::new());
            self.connections[place] = Some(Connection { stream, deadline_ns: now_ns + REQUEST_NS, state });
        }
    }

    fn go_on(&mut self, place: usize, now_ns: u64) {
        let Some(connection) = self.connections.get_mut(place).and_then(Option::as_mut) else { return };
        if connection.go_on(now_ns, &mut self.answers) == Next::Close {
            self.connections[place] = None;
        }
    }
}

impl Connection {
    /// Does all that can be done without waiting.
    fn go_on<Ask: FnMut() -> Result<Snapshot, String>>(&mut self, now_ns: u64, answers: &mut Answers<Ask>) -> Next {
        let mut buffer = [0; 4096];
        loop {
            match &mut self.state {
                State::Reading(request) => {
                    let room = (REQUEST_BYTES_MAX - request.len()).min(buffer.len());
                    match self.stream.read(&mut buffer[..room]) {
                        Ok(0) => return Next::Close,
                        Ok(count) => request.extend_from_slice(&buffer[..count]),
                        Err(error) => match error.kind() {
                            io::ErrorKind::WouldBlock => return Next::Wait,
                            io::ErrorKind::Interrupted => continue,
                            _ => return Next::Close,
                        },
                    }
                    let verdict = judge(request);
                    if verdict != Verdict::Unfinished {
                        self.state = State::Writing(answers.to(verdict, now_ns), 0);
                        self.deadline_ns = now_ns + ANSWER_NS;
                    }
                }
                State::Writing(answer, taken) => match self.stream.write(&answer[*taken..]) {
                    Ok(count) => {
                        *taken += count;
                        if *taken == answer.len() {
                            if self.stream.end_writing().is_err() {
                                return Next::Close;
                            }
                            self.state = State::Closing;
                            self.deadline_ns = now_ns + CLOSING_NS;
                        }
                    }
                    Err(error) => match error.kind() {
                        io::ErrorKind::WouldBlock => return Next::Wait,
                        io::ErrorKind::Interrupted => {}
                        _ => return Next::Close,
                    },
                },
                State::Closing => match self.stream.read(&mut buffer) {
                    Ok(0) => return Next::Close,
                    // More than a request's worth behind a request is no mistake any more.
                    Ok(count) if count == buffer.len() => return Next::Close,
                    Ok(_) => {}
                    Err(error) => match error.kind() {
                        io::ErrorKind::WouldBlock => return Next::Wait,
                        io::ErrorKind::Interrupted => {}
                        _ => return Next::Close,
                    },
                },
            }
        }
    }
}

/// Makes answers, and remembers the last one for a moment.
struct Answers<Ask> {
    ask: Ask,
    last: Option<(u64, Rc<[u8]>)>,
}

impl<Ask: FnMut() -> Result<Snapshot, String>> Answers<Ask> {
    fn to(&mut self, verdict: Verdict, now_ns: u64) -> Rc<[u8]> {
        match verdict {
            Verdict::Refused(status) => response(status, "text/plain; charset=utf-8", &format!("{status}\n")),
            Verdict::Metrics | Verdict::Unfinished => {
                if let Some((made_ns, answer)) = &self.last
                    && now_ns.saturating_sub(*made_ns) < FRESH_NS
                {
                    return answer.clone();
                }
                let answer = match (self.ask)() {
                    Ok(snapshot) => response("200 OK", text::CONTENT_TYPE, &text::exposition(&snapshot)),
                    Err(reason) => {
                        response("503 Service Unavailable", "text/plain; charset=utf-8", &format!("{reason}\n"))
                    }
                };
                self.last = Some((now_ns, answer.clone()));
                answer
            }
        }
    }
}

fn response(status: &str, content_type: &str, body: &str) -> Rc<[u8]> {
    let allow = if status == NOT_ALLOWED { "Allow: GET\r\n" } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
    .into()
}
