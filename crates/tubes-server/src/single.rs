//! Single mode: one process, one thread, all tubes.

use crate::clock;
use crate::connection::{Connection, OUTPUT_BYTES_MAX};
use crate::error::ServeError;
use crate::figures::ProcessFigures;
use crate::listen::Listener;
use crate::options::ServerOptions;
use crate::outputs::Outputs;
use crate::persistence::{self, Persistence};
use crate::signals::{Signal, Signals};
use crate::{accept, inherited, privileges};
use mio::{Events, Interest, Poll, Token};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tubes_core::{Engine, EngineOptions, Now, Outbox, SessionId};
use tubes_protocol::{Command, Item, Limits, Reply};
use tubes_store::{LogError, RecoveryReport};

/// Bytes read from one client in one turn, at most, so that no client holds up the others.
const READ_BYTES: usize = 64 * 1024;
/// Events taken from the system at once.
const EVENTS_PER_TURN: usize = 1024;
/// Clients accepted in one turn, at most.
const ACCEPTS_PER_TURN: usize = 64;
/// An orderly stop ends after this time even if clients do not take their replies.
const STOP_NS: u64 = 10_000_000_000;

const STOP: Token = Token(usize::MAX);
const DRAIN: Token = Token(usize::MAX - 1);
const SYNCED: Token = Token(usize::MAX - 2);
/// Tokens from here on are listeners; below are sessions.
const LISTENERS: usize = usize::MAX - 1024;

/// Runs a queue server until it is told to stop.
///
/// # Errors
///
/// [`ServeError`] says why it did not start, or what ended it early, and carries the exit code.
pub fn serve(options: &ServerOptions) -> Result<(), ServeError> {
    let mut server = Server::start(options)?;
    server.run()
}

struct Server {
    poll: Poll,
    signals: Signals,
    listeners: Vec<Listener>,
    accept: accept::Gate,
    engine: Engine,
    persistence: Persistence,
    outputs: Outputs,
    /// By session.
    connections: Vec<Option<Connection>>,
    limits: Limits,
    /// One buffer into which all clients are read, in turn.
    scratch: Box<[u8]>,
    /// Connections to go on with in the next turn, without waiting for an event.
    scheduled: Vec<u32>,
    /// Connections that are not read until less waits for the disk.
    stalled: Vec<u32>,
    now: Now,
    /// Set by SIGTERM: when to end at the latest, in ns of the boot clock.
    stopping_until: Option<u64>,
    dropped_replies: u64,
    /// The unix socket of ours, removed at the orderly end.
    own_socket: Option<std::path::PathBuf>,
}

impl Server {
    fn start(options: &ServerOptions) -> Result<Server, ServeError> {
        let account = options.user.as_deref().map(privileges::find).transpose()?;
        let inherited = inherited::listeners()?;
        let signals = Signals::install()?;
        let mut own_socket = None;
        let mut listeners = if inherited.is_empty() {
            if let crate::Address::Unix(path) = &options.listen {
                own_socket = Some(path.clone());
            }
            vec![Listener::open(&options.listen, options.socket_mode, options.socket_group.as_deref())?]
        } else {
            tracing::warn!("serving {} inherited socket(s); -l and -p are not used", inherited.len());
            inherited
        };
        if let Some(account) = account {
            account.switch()?;
        }
        let poll = Poll::new().map_err(|source| ServeError::system("set up polling", source))?;
        let waker = mio::Waker::new(poll.registry(), SYNCED)
            .map_err(|source| ServeError::system("set up the waker of the sync thread", source))?;
        let now = clock::now();
        let mut engine = Engine::new(EngineOptions {
            max_job_size: options.max_job_size,
            hash_seed: u64::from_le_bytes(persistence::random_bytes()?),
        });
        let (persistence, instance, generation) = match &options.log {
            None => {
                engine.finish_recovery(now, 1);
                let instance = tubes_store::datadir::draw_instance()
                    .map_err(|source| ServeError::system("draw the id of this server", source))?;
                (Persistence::none(), instance, 1)
            }
            Some(settings) => {
                let (persistence, opened) = Persistence::open(settings, &mut engine, now, Arc::new(waker))?;
                engine.finish_recovery(now, opened.report.next_id);
                let survives = persistence::survives(settings.sync);
                tracing::info!(
                    "log in {}: {} jobs recovered; an acknowledged command survives {survives}",
                    settings.directory.display(),
                    opened.report.jobs,
                );
                report_recovery(&opened.report);
                (persistence, opened.instance, opened.generation)
            }
        };
        let mut signals = signals;
        let register = |source: &mut dyn mio::event::Source, token| {
            poll.registry()
                .register(source, token, Interest::READABLE)
                .map_err(|source| ServeError::system("register an event source", source))
        };
        register(&mut signals.stop, STOP)?;
        register(&mut signals.drain, DRAIN)?;
        for (number, listener) in listeners.iter_mut().enumerate() {
            register(listener, Token(LISTENERS + number))?;
            tracing::info!("listening on {}", listener.describe());
            if listener.is_reachable_from_outside() {
                tracing::warn!(
                    "{} can be reached from other machines, and the protocol has no authentication",
                    listener.describe()
                );
            }
        }
        // The supervisor of the system may not be there; then nobody waits for the message.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        #[allow(unused_mut, reason = "changed only with the feature `trace`")]
        let mut outputs = Outputs::new(ProcessFigures::new(instance, now.boot_ns));
        #[cfg(feature = "trace")]
        if let Some(path) = &options.trace {
            let trace = crate::trace::Trace::open(path, generation, now.boot_ns);
            outputs.trace = Some(trace.map_err(|source| ServeError::system("open the trace file", source))?);
        }
        let _ = generation;
        Ok(Server {
            poll,
            signals,
            accept: accept::Gate::new(listeners.len())?,
            listeners,
            engine,
            persistence,
            outputs,
            connections: Vec::new(),
            limits: Limits { body_bytes_max: options.max_job_size, close_on_http: options.close_on_http },
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            scheduled: Vec::new(),
            stalled: Vec::new(),
            now,
            stopping_until: None,
            dropped_replies: 0,
            own_socket,
        })
    }

    fn run(&mut self) -> Result<(), ServeError> {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        let mut compaction_left = false;
        loop {
            let timeout = self.time_to_wait(compaction_left);
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ServeError::system("wait for events", source)),
            }
            self.now = clock::now();
            self.outputs.now_ns = self.now.boot_ns;
            let turn = self.turn(&events);
            match turn.and_then(|()| self.end_turn(events.is_empty())) {
                Ok(left) => compaction_left = left,
                Err(error) => return Err(self.fail(error)),
            }
            if let Some(until) = self.stopping_until
                && (self.outputs.is_empty() && self.scheduled.is_empty() || self.now.boot_ns >= until)
            {
                return self.finish();
            }
        }
    }

    /// Everything of one turn up to the point where its records are complete.
    fn turn(&mut self, events: &Events) -> Result<(), LogError> {
        self.engine.tick(self.now, &mut self.persistence, &mut self.outputs);
        for session in std::mem::take(&mut self.scheduled) {
            if let Some(connection) = self.connections.get_mut(session as usize).and_then(Option::as_mut) {
                connection.is_scheduled = false;
                self.go_on(session);
            }
        }
        let mut has_synced = false;
        for event in events {
            match event.token() {
                STOP => self.stop(),
                DRAIN => self.drain(),
                SYNCED => has_synced = true,
                Token(number) if number >= LISTENERS => self.accept.ready(number - LISTENERS),
                Token(number) => self.client_event(number as u32, event),
            }
        }
        if has_synced && self.persistence.end_sync(self.now.boot_ns)? {
            self.outputs.release(self.persistence.durable_batch());
        }
        if !self.stalled.is_empty() && !self.persistence.backpressure() {
            for session in std::mem::take(&mut self.stalled) {
                if self.connections.get(session as usize).is_some_and(Option::is_some) {
                    self.go_on(session);
                }
            }
        }
        if self.stopping_until.is_none() {
            // Behind the clients' events: a session may take the number of one that ended in this turn, and an event
            // of the old one must not reach it.
            self.accept_clients();
        }
        // Clients whose reserve was answered by a command of another go on with what they sent behind it; that may
        // wake others.
        while self.outputs.has_woken() {
            for session in self.outputs.take_woken() {
                if self.connections.get(session as usize).is_some_and(Option::is_some) {
                    self.go_on(session);
                }
            }
        }
        Ok(())
    }

    /// Writes the records of the turn, then its replies. `true` if compaction has more to do.
    fn end_turn(&mut self, is_idle: bool) -> Result<bool, LogError> {
        let compaction_left = self.persistence.compact(&mut self.engine, is_idle);
        self.persistence.flush(self.now.boot_ns)?;
        #[cfg(feature = "trace")]
        if let Some(trace) = &mut self.outputs.trace {
            trace.flush().expect("the trace file can be written");
        }
        self.outputs.end_turn(self.persistence.batch_to_wait_for());
        self.outputs.release(self.persistence.durable_batch());
        let dirty = self.outputs.take_dirty();
        for session in &dirty {
            if self.connections.get(*session as usize).is_some_and(Option::is_some) {
                self.send(*session);
            }
        }
        self.outputs.return_dirty(dirty);
        Ok(compaction_left)
    }

    fn time_to_wait(&self, compaction_left: bool) -> Option<Duration> {
        let is_stopping = self.stopping_until.is_some();
        let may_accept = !is_stopping && self.accept.is_ready();
        let may_read_stalled = !self.stalled.is_empty() && !self.persistence.backpressure();
        if may_read_stalled || compaction_left || !self.scheduled.is_empty() || self.outputs.has_work() || may_accept {
            return Some(Duration::ZERO);
        }
        let deadlines = [
            self.engine.next_deadline(),
            self.persistence.next_deadline(),
            self.stopping_until,
            self.accept.retry_at().filter(|_| !is_stopping),
        ];
        let next = deadlines.into_iter().flatten().min()?;
        Some(Duration::from_nanos(next.saturating_sub(clock::now().boot_ns)))
    }

    // ---- clients -------------------------------------------------------------------------------------------------

    fn accept_clients(&mut self) {
        for number in 0..self.listeners.len() {
            for _ in 0..ACCEPTS_PER_TURN {
                if !self.accept.may_accept(number, self.now.boot_ns) {
                    break;
                }
                match self.listeners[number].accept() {
                    Ok((stream, peer_port)) => self.open_client(stream, peer_port),
                    Err(error) => {
                        self.accept.failed(number, &error, self.now.boot_ns);
                        break;
                    }
                }
            }
        }
    }

    fn open_client(&mut self, mut stream: crate::listen::Stream, peer_port: u16) {
        let session = self.engine.connect();
        if let Err(error) = stream.register(self.poll.registry(), Token(session.0 as usize)) {
            tracing::error!("a client could not be registered and was closed: {error}");
            self.engine.disconnect(self.now, session, &mut self.persistence, &mut self.outputs);
            return;
        }
        self.accept.opened();
        self.outputs.open(session);
        #[cfg(feature = "trace")]
        if let Some(trace) = &mut self.outputs.trace {
            trace.accept(session, peer_port, self.now.boot_ns);
        }
        let _ = peer_port;
        let at = session.0 as usize;
        if self.connections.len() <= at {
            self.connections.resize_with(at + 1, || None);
        }
        self.connections[at] = Some(Connection::new(stream));
        // What it has sent already is announced by an event of its own.
    }

    fn client_event(&mut self, session: u32, event: &mio::event::Event) {
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
            self.go_on(session);
        }
    }

    /// Goes on with a client as far as it may: carries out what it has sent, reads more, closes it at its end.
    fn go_on(&mut self, session: u32) {
        loop {
            let id = SessionId(session);
            if self.engine.is_waiting(id) {
                let connection = self.connections[session as usize].as_mut().expect("a session has a connection");
                if self.stopping_until.is_some() {
                    self.engine.cancel_wait(id);
                    return self.close_when_taken(session);
                }
                if !connection.is_ending {
                    self.outputs.mark_waiting(id);
                    return;
                }
                // Nobody will send the commands that could make the wait worthwhile, or nobody is there any more.
                self.engine.half_close(self.now, id, &mut self.persistence, &mut self.outputs);
            }
            if !self.consume_input(session) {
                return;
            }
            if self.engine.is_waiting(id) {
                continue;
            }
            let connection = self.connections[session as usize].as_mut().expect("a session has a connection");
            let may_read = connection.is_readable
                && !connection.is_at_end
                && self.stopping_until.is_none()
                && self.outputs.pending(id) <= OUTPUT_BYTES_MAX;
            if !may_read {
                if connection.is_at_end {
                    self.close_when_taken(session);
                }
                return;
            }
            if self.persistence.backpressure() {
                return self.stalled.push(session);
            }
            if !self.read_once(session) {
                return;
            }
        }
    }

    /// Reads once and carries out what is complete. `true` if the caller should go on at once.
    fn read_once(&mut self, session: u32) -> bool {
        let mut scratch = std::mem::take(&mut self.scratch);
        let connection = self.connections[session as usize].as_mut().expect("a session has a connection");
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
                let is_open = self.consume(session, &scratch[..kept + count]);
                if is_open && is_full {
                    self.schedule(session);
                }
                is_open && !is_full && (is_ending || self.engine.is_waiting(SessionId(session)))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                connection.is_readable = false;
                // Announced as ending, yet nothing to read: the end comes with another event.
                false
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            Err(_) => {
                self.scratch = scratch;
                self.close(session);
                return false;
            }
        };
        self.scratch = scratch;
        go_on
    }

    /// Carries out what was read before and had to wait. `false` if the client is gone.
    fn consume_input(&mut self, session: u32) -> bool {
        let connection = self.connections[session as usize].as_mut().expect("a session has a connection");
        if connection.input.is_empty() || connection.is_closing {
            return !connection.is_closing;
        }
        let input = std::mem::take(&mut connection.input);
        self.consume(session, &input)
    }

    /// Carries out the commands in `bytes` and keeps what is left. `false` if the client is gone.
    fn consume(&mut self, session: u32, bytes: &[u8]) -> bool {
        let id = SessionId(session);
        let mut at = 0;
        loop {
            if self.engine.is_waiting(id) || self.outputs.pending(id) > OUTPUT_BYTES_MAX {
                break;
            }
            let connection = self.connections[session as usize].as_mut().expect("a session has a connection");
            let (used, item) = connection.framer.next(&bytes[at..], &self.limits);
            at += used;
            let Some(item) = item else { break };
            match item {
                Item::Command(command) => {
                    if matches!(command, Command::Stats) {
                        self.outputs.log = self.persistence.figures();
                    }
                    self.engine.handle(self.now, id, command, &mut self.persistence, &mut self.outputs);
                }
                Item::BadFormat => self.outputs.reply(id, &Reply::BadFormat),
                Item::UnknownCommand => self.outputs.reply(id, &Reply::UnknownCommand),
                Item::JobTooBig => {
                    self.engine.count_too_big();
                    self.outputs.reply(id, &Reply::JobTooBig);
                }
                Item::ExpectedCrlf => self.refuse_put(id, &Reply::ExpectedCrlf),
                Item::OutOfMemory => self.refuse_put(id, &Reply::OutOfMemory),
                Item::HttpRequest => {
                    self.close(session);
                    return false;
                }
                Item::Quit => {
                    self.close_when_taken(session);
                    return false;
                }
            }
        }
        if at < bytes.len() {
            let connection = self.connections[session as usize].as_mut().expect("a session has a connection");
            connection.input.extend_from_slice(&bytes[at..]);
        }
        true
    }

    fn refuse_put(&mut self, session: SessionId, reply: &Reply<'_>) {
        self.engine.count_refused_put(session);
        self.outputs.reply(session, reply);
    }

    fn schedule(&mut self, session: u32) {
        let connection = self.connections[session as usize].as_mut().expect("a session has a connection");
        if !connection.is_scheduled {
            connection.is_scheduled = true;
            self.scheduled.push(session);
        }
    }

    /// Sends what may be sent.
    fn send(&mut self, session: u32) {
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
                Err(_) => return self.close(session),
            }
        }
        let after = self.outputs.pending(id);
        if after == 0 && connection.is_closing {
            return self.close(session);
        }
        if before > OUTPUT_BYTES_MAX && after <= OUTPUT_BYTES_MAX && !connection.is_closing {
            // Its commands had to wait for this.
            self.schedule(session);
        }
    }

    /// The client has asked for nothing more: its jobs are free at once, and it is closed as soon as it has taken its
    /// replies.
    fn close_when_taken(&mut self, session: u32) {
        let id = SessionId(session);
        if self.outputs.pending(id) == 0 {
            return self.close(session);
        }
        self.trace_close(id);
        self.engine.give_back(self.now, id, &mut self.persistence, &mut self.outputs);
        let connection = self.connections[session as usize].as_mut().expect("a session has a connection");
        connection.is_closing = true;
        connection.input = Vec::new();
    }

    fn close(&mut self, session: u32) {
        let id = SessionId(session);
        let connection = self.connections[session as usize].take().expect("a session has a connection");
        drop(connection);
        self.outputs.close(id);
        self.accept.closed();
        self.trace_close(id);
        self.engine.disconnect(self.now, id, &mut self.persistence, &mut self.outputs);
    }

    #[cfg(feature = "trace")]
    fn trace_close(&mut self, session: SessionId) {
        if let Some(trace) = &mut self.outputs.trace {
            trace.close(session, self.now.boot_ns);
        }
    }

    #[cfg(not(feature = "trace"))]
    fn trace_close(&self, _session: SessionId) {}

    fn drain(&mut self) {
        if self.signals.take(Signal::Drain) {
            tracing::warn!("draining: puts are refused until the server is restarted");
            self.engine.drain();
        }
    }

    // ---- the end -------------------------------------------------------------------------------------------------

    /// From here on nothing is accepted or read; what has been read is carried out and answered.
    fn stop(&mut self) {
        if self.signals.take(Signal::Stop) && self.stopping_until.is_none() {
            tracing::info!("stopping");
            self.stopping_until = Some(self.now.boot_ns + STOP_NS);
            if let Some(path) = self.own_socket.take() {
                // While it is still served: afterwards the path may be another server's.
                let _ = std::fs::remove_file(path);
            }
            self.listeners.clear();
            // A waiting reserve is closed without a reply. All waits end before the first of them gives jobs back.
            let waiting: Vec<u32> = (0..self.connections.len() as u32)
                .filter(|session| self.connections[*session as usize].is_some())
                .filter(|session| self.engine.is_waiting(SessionId(*session)))
                .collect();
            for session in &waiting {
                self.engine.cancel_wait(SessionId(*session));
            }
            for session in waiting {
                self.close_when_taken(session);
            }
        }
    }

    /// The orderly end: everything is on disk before the process goes.
    fn finish(&mut self) -> Result<(), ServeError> {
        self.dropped_replies += (0..self.connections.len() as u32)
            .filter(|session| self.connections[*session as usize].is_some())
            .filter(|session| self.outputs.pending(SessionId(*session)) > 0)
            .count() as u64;
        if self.dropped_replies > 0 {
            tracing::warn!("{} client(s) did not take their replies in time", self.dropped_replies);
        }
        Ok(self.persistence.close(self.now.boot_ns)?)
    }

    /// The log has failed: nothing more may claim success. Says so to those it can, and gives up.
    fn fail(&mut self, error: LogError) -> ServeError {
        tracing::error!("the log failed: {error}");
        self.outputs.fail_turn();
        for session in self.outputs.take_dirty() {
            if self.connections.get(session as usize).is_some_and(Option::is_some) {
                self.send(session);
            }
        }
        ServeError::Log(error)
    }
}

/// What an operator should know of what a start found.
fn report_recovery(report: &RecoveryReport) {
    if let Some(torn) = &report.torn {
        tracing::warn!("the end of the log was torn and has been set aside: {torn:?}");
    }
    if report.skipped_ids > 0 {
        tracing::warn!("{} ids are skipped: a power cut may have lost ids that clients saw", report.skipped_ids);
    }
    if report.never_synced {
        tracing::warn!("the log was written without syncs: damage and loss cannot be told apart");
    }
}
