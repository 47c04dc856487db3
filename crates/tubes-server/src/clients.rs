//! The clients of a process: accepting, reading, sending, closing.
//!
//! Owns: listeners, connections and the course of a turn as clients see it. What a command means is the business of the
//! [`Backend`]: the engine in single mode, the owners behind a frontend in multi mode.

use crate::accept;
use crate::bodies::BodyMemory;
use crate::connection::{Connection, OUTPUT_BYTES_MAX};
use crate::error::ServeError;
use crate::listen::{Listener, Stream};
use crate::outputs::Outputs;
use mio::{Interest, Registry, Token};
use std::io;
use tubes_core::{Now, SessionId};
use tubes_protocol::{Command, Item, Limits, Reply};

/// Bytes read from one client in one turn, at most, so that no client holds up the others.
const READ_BYTES: usize = 64 * 1024;
/// Commands of one client carried out at once, at most: one that sends costly ones must not hold up the others.
const COMMANDS_PER_TURN: usize = 256;
/// Tokens from here on are listeners, and above them whatever the process has besides; below are sessions.
pub(crate) const LISTENERS: usize = usize::MAX - 4096;
/// Listeners at most.
const LISTENERS_MAX: usize = 1024;
/// Tokens from here on are free for the process.
pub(crate) const OTHERS: usize = LISTENERS + LISTENERS_MAX;

/// Who carries commands out.
pub(crate) trait Backend {
    /// A client has connected.
    fn connect(&mut self, outputs: &mut Outputs) -> SessionId;

    /// The client that has connected comes from this port; for a trace.
    #[cfg(feature = "trace")]
    fn accepted(&mut self, _session: SessionId, _peer_port: u16) {}

    /// Whether the session's next command can be taken.
    fn can_take(&self, session: SessionId) -> bool;

    /// Whether the session waits in a reserve.
    fn is_waiting(&self, session: SessionId) -> bool;

    /// The server stops: a waiting reserve ends without an answer.
    fn cancel_wait(&mut self, session: SessionId);

    /// Whether everything that the session asked has been answered.
    fn is_idle(&self, session: SessionId) -> bool;

    /// Whether a put of the session has not been answered.
    fn has_put(&self, session: SessionId) -> bool;

    /// Carries out a command, now or when it can be; the replies go to the outputs.
    fn command(&mut self, now: Now, session: SessionId, command: Command<'_>, outputs: &mut Outputs);

    /// Answers something that is no command, in its place among the others.
    fn local(&mut self, session: SessionId, reply: &Reply<'_>, outputs: &mut Outputs);

    /// A put was refused by its form: it counts, and may make its client a producer.
    fn refused_put(&mut self, session: SessionId, is_producer: bool);

    /// The client will send nothing more: a waiting reserve ends.
    fn half_close(&mut self, now: Now, session: SessionId, outputs: &mut Outputs);

    /// The client asks for nothing more, but has not taken all its replies: its jobs are free at once.
    fn give_back(&mut self, now: Now, session: SessionId, outputs: &mut Outputs);

    /// The client is gone.
    fn disconnect(&mut self, now: Now, session: SessionId, outputs: &mut Outputs);

    /// Whether no client may be read because too much waits elsewhere.
    fn backpressure(&self) -> bool;
}

/// All clients of a process.
#[derive(Debug)]
pub(crate) struct Clients {
    registry: Registry,
    listeners: Vec<Listener>,
    pub(crate) gate: accept::Gate,
    pub(crate) outputs: Outputs,
    /// By session.
    connections: Vec<Option<Connection>>,
    limits: Limits,
    bodies: BodyMemory,
    /// One buffer into which all clients are read, in turn.
    scratch: Box<[u8]>,
    /// Connections to go on with in the next turn, without waiting for an event.
    scheduled: Vec<u32>,
    /// Connections that are not read while the backend is under pressure.
    stalled: Vec<u32>,
    pub(crate) now: Now,
    /// From a stop on nothing is accepted or read.
    is_stopping: bool,
    /// Clients accepted in one turn from one listener, at most.
    pub(crate) accepts_per_turn: usize,
}

impl Clients {
    /// The clients of a process that does not accept yet.
    pub(crate) fn new(
        registry: &Registry,
        limits: Limits,
        body_memory: u64,
        outputs: Outputs,
        now: Now,
    ) -> Result<Self, ServeError> {
        let failed = |source| ServeError::system("register an event source", source);
        let registry = registry.try_clone().map_err(failed)?;
        Ok(Clients {
            registry,
            gate: accept::Gate::new()?,
            listeners: Vec::new(),
            outputs,
            connections: Vec::new(),
            limits,
            bodies: BodyMemory::new(body_memory),
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            scheduled: Vec::new(),
            stalled: Vec::new(),
            now,
            is_stopping: false,
            accepts_per_turn: 64,
        })
    }

    /// Begins to accept.
    pub(crate) fn listen(&mut self, mut listeners: Vec<Listener>) -> Result<(), ServeError> {
        assert!(listeners.len() <= LISTENERS_MAX, "tokens of listeners end somewhere");
        for (number, listener) in listeners.iter_mut().enumerate() {
            self.registry
                .register(listener, Token(LISTENERS + number), Interest::READABLE)
                .map_err(|source| ServeError::system("register a listener", source))?;
        }
        self.gate.listen(listeners.len());
        self.listeners = listeners;
        Ok(())
    }

    /// Whether something is left to do without waiting for an event.
    pub(crate) fn has_work(&self, is_under_pressure: bool) -> bool {
        !self.scheduled.is_empty()
            || !self.stalled.is_empty() && !is_under_pressure
            || self.outputs.has_work()
            || !self.is_stopping && self.gate.is_ready()
    }

    /// When accepting is tried again, in ns of the boot clock.
    pub(crate) fn retry_at(&self) -> Option<u64> {
        self.gate.retry_at().filter(|_| !self.is_stopping)
    }

    /// Goes on with the clients that the last turn left unfinished.
    pub(crate) fn go_on_scheduled<B: Backend>(&mut self, backend: &mut B) {
        for session in std::mem::take(&mut self.scheduled) {
            if let Some(connection) = self.connections.get_mut(session as usize).and_then(Option::as_mut) {
                connection.is_scheduled = false;
                self.go_on(session, backend);
            }
        }
    }

    /// An event of a listener or a client.
    pub(crate) fn event<B: Backend>(&mut self, event: &mio::event::Event, backend: &mut B) {
        let Token(number) = event.token();
        if number >= LISTENERS {
            self.gate.ready(number - LISTENERS);
        } else {
            self.client_event(number as u32, event, backend);
        }
    }

    /// What comes behind all events of a turn: clients that the backend can take again, new clients, and clients that
    /// were woken by others.
    pub(crate) fn end_events<B: Backend>(&mut self, backend: &mut B) {
        if !self.stalled.is_empty() && !backend.backpressure() {
            for session in std::mem::take(&mut self.stalled) {
                if self.is_open(session) {
                    self.go_on(session, backend);
                }
            }
        }
        if !self.is_stopping {
            // Behind the clients' events: a session may take the number of one that ended in this turn, and an event
            // of the old one must not reach it.
            self.accept_clients(backend);
        }
        // Clients that were answered by what another did go on with what they sent behind it; that may wake others.
        while self.outputs.has_woken() {
            for session in self.outputs.take_woken() {
                if self.is_open(session) {
                    self.go_on(session, backend);
                }
            }
        }
    }

    /// Sends what may be sent, at the end of a turn.
    pub(crate) fn send_all<B: Backend>(&mut self, backend: &mut B) {
        let dirty = self.outputs.take_dirty();
        for session in &dirty {
            if self.is_open(*session) {
                self.send(*session, backend);
            }
        }
        self.outputs.return_dirty(dirty);
    }

    /// Sends what can be sent at once, without closing anybody: the process is about to end.
    pub(crate) fn send_last(&mut self) {
        for session in self.outputs.take_dirty() {
            if let Some(connection) = self.connections.get_mut(session as usize).and_then(Option::as_mut) {
                // A client that does not take it hears that the connection has ended.
                let _ = connection.stream.write(self.outputs.sendable(SessionId(session)));
            }
        }
    }

    /// From here on nothing is accepted or read; what has been read is carried out and answered. A waiting reserve is
    /// closed without a reply.
    pub(crate) fn stop<B: Backend>(&mut self, backend: &mut B) {
        self.is_stopping = true;
        self.listeners.clear();
        // All waits end before the first of them gives jobs back.
        let waiting: Vec<u32> =
            self.open_sessions().filter(|session| backend.is_waiting(SessionId(*session))).collect();
        for session in &waiting {
            backend.cancel_wait(SessionId(*session));
        }
        for session in waiting {
            self.close_when_taken(session, backend);
        }
    }

    /// Whether every client has taken its replies and nothing that was read is left to do.
    pub(crate) fn is_finished(&self) -> bool {
        self.outputs.is_empty() && self.scheduled.is_empty()
    }

    /// Sessions of clients that are connected.
    pub(crate) fn open_sessions(&self) -> impl Iterator<Item = u32> {
        self.connections.iter().enumerate().filter(|(_, connection)| connection.is_some()).map(|(at, _)| at as u32)
    }

    /// Clients that have not taken all their replies.
    pub(crate) fn unfinished(&self) -> usize {
        self.open_sessions().filter(|session| self.outputs.pending(SessionId(*session)) > 0).count()
    }

    fn is_open(&self, session: u32) -> bool {
        self.connections.get(session as usize).is_some_and(Option::is_some)
    }

    fn connection(&mut self, session: u32) -> &mut Connection {
        self.connections[session as usize].as_mut().expect("a session has a connection")
    }

    fn accept_clients<B: Backend>(&mut self, backend: &mut B) {
        for number in 0..self.listeners.len() {
            for _ in 0..self.accepts_per_turn {
                if !self.gate.may_accept(number, self.now.boot_ns) {
                    break;
                }
                match self.listeners[number].accept() {
                    Ok((stream, peer_port)) => self.open_client(stream, peer_port, backend),
                    Err(error) => {
                        self.gate.failed(number, &error, self.now.boot_ns);
                        break;
                    }
                }
            }
        }
    }

    fn open_client<B: Backend>(&mut self, mut stream: Stream, peer_port: u16, backend: &mut B) {
        let session = backend.connect(&mut self.outputs);
        self.outputs.open(session);
        if let Err(error) = stream.register(&self.registry, Token(session.0 as usize)) {
            tracing::error!("a client could not be registered and was closed: {error}");
            backend.disconnect(self.now, session, &mut self.outputs);
            return;
        }
        self.gate.opened();
        #[cfg(feature = "trace")]
        if let Some(trace) = &mut self.outputs.trace {
            trace.accept(session, peer_port, self.now.boot_ns);
        }
        #[cfg(feature = "trace")]
        backend.accepted(session, peer_port);
        let _ = peer_port;
        let at = session.0 as usize;
        if self.connections.len() <= at {
            self.connections.resize_with(at + 1, || None);
        }
        self.connections[at] = Some(Connection::new(stream));
        tracing::debug!("client {} connected", session.0);
        // What it has sent already is announced by an event of its own.
    }

    fn client_event<B: Backend>(&mut self, session: u32, event: &mio::event::Event, backend: &mut B) {
        let Some(connection) = self.connections.get_mut(session as usize).and_then(Option::as_mut) else { return };
        // After an error or a complete close too, what the client sent before is read and carried out; then reading or
        // writing fails, and that closes the connection.
        let is_broken = event.is_error() || event.is_write_closed();
        let is_ending = event.is_read_closed() || is_broken;
        connection.is_ending |= is_ending;
        connection.has_urgent |= event.is_priority();
        connection.is_readable |= event.is_readable() || is_ending;
        if (event.is_writable() || is_broken) && !connection.is_writable {
            connection.is_writable = true;
            // At the end of the turn: what the turn has answered must not leave before its records.
            self.outputs.mark_dirty(SessionId(session));
        }
        if event.is_readable() || is_ending {
            self.go_on(session, backend);
        }
    }

    /// Goes on with a client as far as it may: carries out what it has sent, reads more, closes it at its end.
    fn go_on<B: Backend>(&mut self, session: u32, backend: &mut B) {
        self.advance(session, backend);
        if let Some(Some(connection)) = self.connections.get(session as usize)
            && connection.body_bytes > 0
            && !connection.is_receiving
        {
            if !backend.has_put(SessionId(session)) {
                self.give_body_back(session);
            } else {
                self.outputs.mark_waiting(SessionId(session));
            }
        }
    }

    /// Whether the client may send more of its body. If not, it goes on when memory for it is there.
    fn may_receive<B: Backend>(&mut self, session: u32, backend: &mut B) -> bool {
        let connection = self.connection(session);
        let Some(bytes) = connection.framer.large_body() else { return true };
        if connection.is_receiving {
            return true;
        }
        if connection.body_bytes > 0 {
            if backend.has_put(SessionId(session)) {
                // Its last body has not been put; the answer wakes it.
                self.outputs.mark_waiting(SessionId(session));
                return false;
            }
            self.give_body_back(session);
        }
        if !self.bodies.take(session, bytes) {
            return false;
        }
        let connection = self.connection(session);
        (connection.body_bytes, connection.is_receiving) = (bytes, true);
        // There may be memory for the next that waits, too.
        self.receive_next();
        true
    }

    fn give_body_back(&mut self, session: u32) {
        let connection = self.connection(session);
        let bytes = std::mem::take(&mut connection.body_bytes);
        connection.is_receiving = false;
        self.bodies.give_back(bytes);
        self.receive_next();
    }

    /// Whoever has waited longest for memory asks again in the next turn.
    fn receive_next(&mut self) {
        if let Some(next) = self.bodies.first_waiting() {
            self.schedule(next);
        }
    }

    fn advance<B: Backend>(&mut self, session: u32, backend: &mut B) {
        let id = SessionId(session);
        loop {
            if self.is_stopping && backend.is_waiting(id) {
                backend.cancel_wait(id);
                return self.close_when_taken(session, backend);
            }
            if self.connection(session).is_ending && !backend.is_idle(id) {
                // Nobody will send the commands that could make a wait worthwhile, or nobody is there any more; that
                // holds for a reserve behind unanswered commands, too.
                backend.half_close(self.now, id, &mut self.outputs);
            }
            if !backend.can_take(id) {
                return self.outputs.mark_waiting(id);
            }
            if !self.consume_input(session, backend) {
                return;
            }
            if !backend.can_take(id) {
                continue;
            }
            if self.connection(session).is_scheduled {
                return;
            }
            let pending = self.outputs.pending(id);
            let is_stopping = self.is_stopping;
            let connection = self.connection(session);
            if connection.is_at_end {
                if backend.is_idle(id) {
                    self.close_when_taken(session, backend);
                } else {
                    self.outputs.mark_waiting(id);
                }
                return;
            }
            if pending > OUTPUT_BYTES_MAX && self.bodies.first_waiting() == Some(session) {
                // It does not take its answers: others get the memory that it waits for, until it asks again.
                self.bodies.forget(session);
                self.receive_next();
            }
            let connection = self.connection(session);
            if !connection.is_readable || is_stopping || pending > OUTPUT_BYTES_MAX {
                return;
            }
            if backend.backpressure() {
                return self.stalled.push(session);
            }
            if !self.may_receive(session, backend) {
                return;
            }
            if !self.read_once(session, backend) {
                return;
            }
        }
    }

    /// Reads once and carries out what is complete. `true` if the caller should go on at once.
    fn read_once<B: Backend>(&mut self, session: u32, backend: &mut B) -> bool {
        let mut scratch = std::mem::take(&mut self.scratch);
        let connection = self.connection(session);
        let kept = connection.input.len();
        debug_assert!(kept < tubes_protocol::LINE_BYTES_MAX, "only a partial line is kept before a read");
        scratch[..kept].copy_from_slice(&connection.input);
        let go_on = match connection.stream.read(&mut scratch[kept..]) {
            Ok(0) => {
                connection.is_at_end = true;
                connection.is_ending = true;
                connection.is_readable = false;
                true
            }
            Ok(count) => {
                connection.input.clear();
                let is_full = kept + count == scratch.len();
                let is_ending = connection.is_ending || connection.has_urgent;
                // A short read has emptied the socket: what comes later is announced by another event. Only the end of
                // the input, announced already, is still to be read.
                connection.is_readable = is_full || is_ending;
                let is_open = self.consume(session, &scratch[..kept + count], backend);
                if is_open && is_full {
                    self.schedule(session);
                }
                // Behind a `quit` nothing is read, but its connection has to be closed, at once or after the last answer.
                let has_quit = is_open && self.connection(session).is_at_end;
                is_open
                    && !self.is_scheduled(session)
                    && (is_ending || has_quit || !backend.can_take(SessionId(session)))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                connection.is_readable = false;
                // Announced as ending, yet nothing to read: the end comes with another event.
                false
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            Err(_) => {
                self.scratch = scratch;
                self.close(session, backend);
                return false;
            }
        };
        self.scratch = scratch;
        go_on
    }

    /// Carries out what was read before and had to wait. `false` if the client is gone.
    fn consume_input<B: Backend>(&mut self, session: u32, backend: &mut B) -> bool {
        let connection = self.connection(session);
        if connection.input.is_empty() || connection.is_closing {
            return !connection.is_closing;
        }
        let input = std::mem::take(&mut connection.input);
        self.consume(session, &input, backend)
    }

    /// Carries out the commands in `bytes` and keeps what is left. `false` if the client is gone.
    fn consume<B: Backend>(&mut self, session: u32, bytes: &[u8], backend: &mut B) -> bool {
        let id = SessionId(session);
        let mut at = 0;
        let mut commands = 0;
        while backend.can_take(id) && self.outputs.pending(id) <= OUTPUT_BYTES_MAX {
            if commands == COMMANDS_PER_TURN {
                // Others first; the rest follows in the next turn.
                self.schedule(session);
                break;
            }
            commands += 1;
            let limits = self.limits;
            let (used, item) = self.connection(session).framer.next(&bytes[at..], &limits);
            at += used;
            let Some(item) = item else { break };
            if commands == 1 {
                // It begins with the end of what was being received.
                self.connection(session).is_receiving = false;
            }
            let outputs = &mut self.outputs;
            match item {
                Item::Command(command) => backend.command(self.now, id, command, outputs),
                Item::BadFormat => backend.local(id, &Reply::BadFormat, outputs),
                Item::UnknownCommand => backend.local(id, &Reply::UnknownCommand, outputs),
                Item::JobTooBig => {
                    backend.refused_put(id, false);
                    backend.local(id, &Reply::JobTooBig, outputs);
                }
                Item::ExpectedCrlf => {
                    backend.refused_put(id, true);
                    backend.local(id, &Reply::ExpectedCrlf, outputs);
                }
                Item::OutOfMemory => {
                    backend.refused_put(id, true);
                    backend.local(id, &Reply::OutOfMemory, outputs);
                }
                Item::HttpRequest => {
                    self.close(session, backend);
                    return false;
                }
                Item::Quit if backend.is_idle(id) => {
                    self.close_when_taken(session, backend);
                    return false;
                }
                Item::Quit => {
                    // What it asked before is answered first; nothing behind it is read.
                    let connection = self.connection(session);
                    connection.is_at_end = true;
                    connection.is_readable = false;
                    return true;
                }
            }
        }
        if at < bytes.len() {
            self.connection(session).input.extend_from_slice(&bytes[at..]);
        }
        true
    }

    fn is_scheduled(&self, session: u32) -> bool {
        self.connections[session as usize].as_ref().is_some_and(|connection| connection.is_scheduled)
    }

    fn schedule(&mut self, session: u32) {
        let connection = self.connection(session);
        if !std::mem::replace(&mut connection.is_scheduled, true) {
            self.scheduled.push(session);
        }
    }

    /// Sends what may be sent.
    fn send<B: Backend>(&mut self, session: u32, backend: &mut B) {
        let id = SessionId(session);
        let before = self.outputs.pending(id);
        let connection = self.connections[session as usize].as_mut().expect("a session has a connection");
        while connection.is_writable {
            let bytes = self.outputs.sendable(id);
            if bytes.is_empty() {
                break;
            }
            let length = bytes.len();
            match connection.stream.write(bytes) {
                Ok(count) => {
                    // A short write has filled the socket: room is announced by an event.
                    connection.is_writable = count == length;
                    self.outputs.sent(id, count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => connection.is_writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.close(session, backend),
            }
        }
        let after = self.outputs.pending(id);
        if after == 0 && connection.is_closing {
            return self.close(session, backend);
        }
        if before > OUTPUT_BYTES_MAX && after <= OUTPUT_BYTES_MAX && !connection.is_closing {
            // Its commands had to wait for this.
            self.schedule(session);
        }
    }

    /// The client has asked for nothing more: its jobs are free at once, and it is closed as soon as it has taken its
    /// replies.
    fn close_when_taken<B: Backend>(&mut self, session: u32, backend: &mut B) {
        let id = SessionId(session);
        if self.outputs.pending(id) == 0 {
            return self.close(session, backend);
        }
        self.trace_close(id);
        backend.give_back(self.now, id, &mut self.outputs);
        let connection = self.connection(session);
        connection.is_closing = true;
        connection.input = Vec::new();
    }

    /// Closes a client without another word.
    pub(crate) fn close<B: Backend>(&mut self, session: u32, backend: &mut B) {
        let Some(connection) = self.connections.get_mut(session as usize).and_then(Option::take) else { return };
        if connection.body_bytes > 0 {
            self.bodies.give_back(connection.body_bytes);
        }
        drop(connection);
        self.bodies.forget(session);
        self.receive_next();
        tracing::debug!("client {session} gone");
        let id = SessionId(session);
        self.outputs.close(id);
        self.gate.closed();
        self.trace_close(id);
        backend.disconnect(self.now, id, &mut self.outputs);
    }

    #[cfg(feature = "trace")]
    fn trace_close(&mut self, session: SessionId) {
        if let Some(trace) = &mut self.outputs.trace {
            trace.close(session, self.now.boot_ns);
        }
    }

    #[cfg(not(feature = "trace"))]
    fn trace_close(&self, _session: SessionId) {}
}
