//! A frontend: client connections, and the way of their commands to the owners.

use crate::child_options::ChildOptions;
use crate::clients::{Backend, Clients, OTHERS};
use crate::clock;
use crate::connection::OUTPUT_BYTES_MAX;
use crate::error::ServeError;
use crate::figures::ProcessFigures;
use crate::links::{self, LinkEnd, LinkLost, Links};
use crate::listen::Listener;
use crate::outputs::Outputs;
use crate::pages::{self, Base};
#[cfg(feature = "trace")]
use crate::trace_multi::FrontendTrace;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;
use supervisor::{Child, FailureCause, FromChild, Instance, Instruction, Pages, Role, Start, ToChild};
use tubes_core::{Now, SessionId};
use tubes_link::{ClientId, Router, RouterOptions, ToFrontend, ToOwner, Wires};
use tubes_protocol::{Command, CommandCounts, Limits, Reply};

const EVENTS_PER_TURN: usize = 1024;
const CONTROL: Token = Token(OTHERS);
/// Links to owners, by slot.
const LINKS: usize = OTHERS + 16;
/// Clients accepted in one turn: all frontends wake for a new client, and the quickest must not take nearly all.
const ACCEPTS_PER_TURN: usize = 8;
/// How long a frontend with more than its share leaves new clients to the others, in ns.
const REST_NS: u64 = 10_000_000;
/// Bytes that a link holds before no client's command is queued for it, and below which clients go on.
const LINK_BACKLOG_MAX: usize = 4 * 1024 * 1024;
const LINK_BACKLOG_LOW: usize = LINK_BACKLOG_MAX / 2;
/// How often processor time is written to the page, in ns.
const USAGE_NS: u64 = 100_000_000;

/// Serves clients until the supervisor says to stop.
pub(crate) fn serve(child: Child, start: Start) -> Result<(), ServeError> {
    let reporter = child.reporter();
    let mut frontend = Frontend::begin(child, start).inspect_err(|error| reporter.failed(&error.to_string()))?;
    drop(reporter);
    let ended = frontend.run();
    if let Err(error) = &ended {
        let failed = FromChild::Failed { cause: FailureCause::Other, reason: error.to_string() };
        // The supervisor may be gone; then nobody needs to know.
        let _ = frontend.child.send(&failed);
    }
    ended
}

struct Frontend {
    child: Child,
    instance: Instance,
    poll: Poll,
    clients: Clients,
    ways: Ways,
    /// Listeners until the supervisor says "go".
    listeners: Vec<OwnedFd>,
    now: Now,
    usage_at: u64,
    /// Set by the barrier: when to end at the latest, in ns of the boot clock.
    stopping_until: Option<u64>,
}

/// Who carries the clients' commands out: the owners, reached over links.
struct Ways {
    router: Router,
    links: Links,
    pages: Pages,
    /// The slot of this frontend, whose page it writes.
    slot: u16,
    base: Base,
    limits_job: u32,
    /// Numbers of clients that can be given.
    free: Vec<u32>,
    next: u32,
    /// Clients that must be closed without another word.
    closing: Vec<u32>,
    /// By owner: its link had no room for commands, and clients may wait for it.
    full: Vec<bool>,
    now_ns: u64,
    #[cfg(feature = "trace")]
    trace: Option<FrontendTrace>,
    #[cfg(feature = "trace")]
    sessions: Vec<u64>,
}

/// What the router reaches: links and outputs together.
struct Reach<'a> {
    links: &'a mut [Option<LinkEnd>],
    outputs: &'a mut Outputs,
    closing: &'a mut Vec<u32>,
    pages: &'a Pages,
    max_job_size: u32,
    now_ns: u64,
    #[cfg(feature = "trace")]
    trace: &'a mut Option<FrontendTrace>,
    /// Sessions by the numbers of their clients.
    #[cfg(feature = "trace")]
    sessions: &'a [u64],
}

#[cfg(feature = "trace")]
impl Reach<'_> {
    fn said(&mut self, client: ClientId) {
        if let Some(trace) = self.trace {
            trace.said(self.sessions[client.0 as usize]);
        }
    }
}

impl Wires for Reach<'_> {
    fn has_room(&self, owner: u16) -> bool {
        self.links[usize::from(owner)].as_ref().is_none_or(|link| link.writer.backlog() < LINK_BACKLOG_MAX)
    }
    fn to_owner(&mut self, owner: u16, session: u64, message: &ToOwner<'_>) {
        if let Some(link) = &mut self.links[usize::from(owner)] {
            message.write(session, &mut link.writer);
            #[cfg(feature = "trace")]
            if let Some(trace) = self.trace {
                trace.sent(owner, session, message);
            }
        }
    }
    fn to_client(&mut self, client: ClientId, bytes: &[u8]) {
        #[cfg(feature = "trace")]
        self.said(client);
        self.outputs.push(SessionId(client.0), bytes);
    }
    fn stats(&mut self, client: ClientId) {
        #[cfg(feature = "trace")]
        self.said(client);
        let mut stats = pages::sum(self.pages, self.now_ns);
        stats.max_job_size = self.max_job_size;
        self.outputs.whole_stats(SessionId(client.0), stats);
    }
    fn close(&mut self, client: ClientId) {
        self.closing.push(client.0);
    }
    fn wake(&mut self, client: ClientId) {
        self.outputs.wake(SessionId(client.0));
    }
}

impl Ways {
    /// Whether a link that was full has room again. One that stays full holds up nobody who waits for another.
    fn take_emptied(&mut self) -> bool {
        let mut has_emptied = false;
        for (link, full) in self.links.iter().zip(&mut self.full) {
            if *full && link.as_ref().is_none_or(|link| link.writer.backlog() < LINK_BACKLOG_LOW) {
                *full = false;
                has_emptied = true;
            }
        }
        has_emptied
    }

    fn write_page(&self, counts: &CommandCounts) {
        let page = self.pages.figures(Role::Frontend, self.slot);
        pages::write_frontend(&page, &self.base, counts, self.router.gauges());
    }

    /// A client's next command has come.
    #[cfg(feature = "trace")]
    fn trace_command(&mut self, session: SessionId) {
        if let Some(trace) = &mut self.trace {
            trace.command(self.sessions[session.0 as usize]);
        }
    }

    #[cfg(not(feature = "trace"))]
    fn trace_command(&self, _session: SessionId) {}

    #[cfg(feature = "trace")]
    fn trace_ended(&mut self, session: SessionId) {
        if let Some(trace) = &mut self.trace {
            trace.ended(self.sessions[session.0 as usize]);
        }
    }

    #[cfg(not(feature = "trace"))]
    fn trace_ended(&self, _session: SessionId) {}

    #[cfg(feature = "trace")]
    fn flush_trace(&mut self) {
        if let Some(trace) = &mut self.trace {
            trace.flush();
        }
    }

    #[cfg(not(feature = "trace"))]
    fn flush_trace(&self) {}

    /// Runs something on the router with all that it reaches.
    fn with<R>(&mut self, outputs: &mut Outputs, run: impl FnOnce(&mut Router, &mut Reach<'_>) -> R) -> R {
        let mut reach = Reach {
            links: &mut self.links,
            outputs,
            closing: &mut self.closing,
            pages: &self.pages,
            max_job_size: self.limits_job,
            now_ns: self.now_ns,
            #[cfg(feature = "trace")]
            trace: &mut self.trace,
            #[cfg(feature = "trace")]
            sessions: &self.sessions,
        };
        run(&mut self.router, &mut reach)
    }
}

impl Backend for Ways {
    fn connect(&mut self, outputs: &mut Outputs) -> SessionId {
        let number = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        let session = SessionId(number);
        outputs.open(session);
        self.with(outputs, |router, reach| router.connect(ClientId(number), reach));
        #[cfg(feature = "trace")]
        {
            self.sessions.resize(self.sessions.len().max(number as usize + 1), 0);
            self.sessions[number as usize] = self.router.session(ClientId(number));
        }
        session
    }

    fn can_take(&self, session: SessionId) -> bool {
        let id = ClientId(session.0);
        self.router.is_connected(id) && self.router.can_take(id)
    }

    fn is_idle(&self, session: SessionId) -> bool {
        let id = ClientId(session.0);
        !self.router.is_connected(id) || self.router.is_idle(id)
    }

    fn has_put(&self, session: SessionId) -> bool {
        let id = ClientId(session.0);
        self.router.is_connected(id) && self.router.has_put(id)
    }

    #[cfg(feature = "trace")]
    fn accepted(&mut self, session: SessionId, peer_port: u16) {
        if let Some(trace) = &mut self.trace {
            trace.accept(self.sessions[session.0 as usize], peer_port);
        }
    }

    fn command(&mut self, now: Now, session: SessionId, command: Command<'_>, outputs: &mut Outputs) {
        self.trace_command(session);
        if matches!(command, Command::Stats) {
            // What this turn has counted is not in the page yet, and the command counts itself.
            let counts = CommandCounts { stats: self.router.counts().stats + 1, ..*self.router.counts() };
            self.write_page(&counts);
        }
        self.with(outputs, |router, reach| router.command(now.boot_ns, ClientId(session.0), command, reach));
    }

    fn is_waiting(&self, session: SessionId) -> bool {
        let id = ClientId(session.0);
        self.router.is_connected(id) && self.router.is_waiting(id)
    }

    fn cancel_wait(&mut self, _session: SessionId) {
        // The end of the session ends the wait at the owners too; a job that crosses goes back.
    }

    fn local(&mut self, session: SessionId, reply: &Reply<'_>, outputs: &mut Outputs) {
        self.trace_command(session);
        self.with(outputs, |router, reach| router.local(ClientId(session.0), reply, reach));
    }

    fn refused_put(&mut self, session: SessionId, is_producer: bool) {
        self.router.count_refused_put(ClientId(session.0), is_producer);
    }

    fn half_close(&mut self, now: Now, session: SessionId, outputs: &mut Outputs) {
        let id = ClientId(session.0);
        if self.router.is_connected(id) {
            self.with(outputs, |router, reach| router.half_close(now.boot_ns, id, reach));
        }
    }

    fn give_back(&mut self, _now: Now, session: SessionId, outputs: &mut Outputs) {
        self.trace_ended(session);
        self.with(outputs, |router, reach| router.disconnect(ClientId(session.0), reach));
    }

    fn disconnect(&mut self, _now: Now, session: SessionId, outputs: &mut Outputs) {
        self.trace_ended(session);
        self.with(outputs, |router, reach| router.disconnect(ClientId(session.0), reach));
        self.free.push(session.0);
    }

    fn backpressure(&self) -> bool {
        false
    }
}

/// Bytes of jobs' bodies on their way to one client, at most, if all are as large as they can be: room for the reserves
/// of sixteen pipelined commands with jobs of the usual size.
const BODIES_BYTES_MAX: u32 = 2 * OUTPUT_BYTES_MAX as u32;

/// Bodies of jobs on their way to one client; one in any case.
fn bodies_max(job_bytes_max: u32) -> u32 {
    (BODIES_BYTES_MAX / job_bytes_max.max(1)).clamp(1, 128)
}

impl Frontend {
    fn begin(mut child: Child, start: Start) -> Result<Frontend, ServeError> {
        crate::accept::raise_limit();
        let (options, map) = ChildOptions::of(&start)?;
        let poll = Poll::new().map_err(|source| ServeError::system("set up polling", source))?;
        poll.registry()
            .register(&mut SourceFd(&child.as_fd().as_raw_fd()), CONTROL, Interest::READABLE)
            .map_err(|source| ServeError::system("register an event source", source))?;
        let now = clock::now();
        let outputs = Outputs::new(ProcessFigures::new(options.instance.clone(), now.boot_ns), options.segment_bytes);
        let limits = Limits { body_bytes_max: options.max_job_size, close_on_http: options.close_on_http };
        let mut clients = Clients::new(poll.registry(), limits, options.body_memory, outputs, now)?;
        clients.accepts_per_turn = ACCEPTS_PER_TURN;
        // A link to each owner, and another one that replaces it.
        clients.gate.keep(2 * u64::from(start.topology.owners));
        let base = Base::of(&start.pages.figures(Role::Frontend, start.instance.slot));
        let ready = FromChild::Ready { generation: start.instance.generation, jobs: 0, next_id: 0 };
        child.send(&ready).map_err(|source| ServeError::system("report to the supervisor", source))?;
        #[cfg(feature = "trace")]
        let trace = {
            let begin = |folder: &std::path::PathBuf| FrontendTrace::begin(folder, &start.instance, now.boot_ns);
            let begun = options.trace.as_ref().map(begin).transpose();
            begun.map_err(|source| ServeError::system("open the trace file", source))?
        };
        let ways = Ways {
            router: Router::new(
                RouterOptions { owner_wait_ns: options.owner_wait_ns, bodies_max: bodies_max(options.max_job_size) },
                map,
            ),
            links: (0..start.topology.owners).map(|_| None).collect(),
            pages: start.pages,
            slot: start.instance.slot,
            base,
            limits_job: options.max_job_size,
            free: Vec::new(),
            next: 0,
            closing: Vec::new(),
            full: vec![false; usize::from(start.topology.owners)],
            now_ns: now.boot_ns,
            #[cfg(feature = "trace")]
            trace,
            #[cfg(feature = "trace")]
            sessions: Vec::new(),
        };
        Ok(Frontend {
            child,
            instance: start.instance,
            poll,
            clients,
            ways,
            listeners: start.listeners,
            now,
            usage_at: 0,
            stopping_until: None,
        })
    }

    fn run(&mut self) -> Result<(), ServeError> {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        loop {
            let timeout = self.time_to_wait();
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ServeError::system("wait for events", source)),
            }
            self.now = clock::now();
            self.clients.now = self.now;
            self.clients.outputs.now_ns = self.now.boot_ns;
            self.ways.now_ns = self.now.boot_ns;
            #[cfg(feature = "trace")]
            if let Some(trace) = &mut self.ways.trace {
                trace.now_ns = self.now.boot_ns;
            }
            self.turn(&events)?;
            if let Some(until) = self.stopping_until
                && (self.clients.is_finished() && !self.ways.router.has_unanswered() || self.now.boot_ns >= until)
            {
                return self.finish();
            }
        }
    }

    fn turn(&mut self, events: &Events) -> Result<(), ServeError> {
        let now_ns = self.now.boot_ns;
        self.ways.with(&mut self.clients.outputs, |router, reach| router.tick(now_ns, reach));
        // Before a new client can be given the number of one of them.
        self.close_lost();
        self.clients.go_on_scheduled(&mut self.ways);
        let mut has_control = false;
        for event in events {
            match event.token() {
                CONTROL => has_control = true,
                Token(number) if number >= LINKS => {
                    let owner = number - LINKS;
                    if let Some(Some(link)) = self.ways.links.get_mut(owner)
                        && event.is_writable()
                    {
                        link.writable();
                    }
                    if event.is_readable() || event.is_read_closed() || event.is_error() {
                        self.read(owner);
                    }
                }
                _ => self.clients.event(event, &mut self.ways),
            }
        }
        if has_control {
            self.control()?;
        }
        self.share_new_clients();
        self.clients.end_events(&mut self.ways);
        self.close_lost();
        self.send_to_owners();
        if self.ways.take_emptied() {
            self.ways.with(&mut self.clients.outputs, |router, reach| router.room(now_ns, reach));
            self.send_to_owners();
        }
        self.write_page();
        self.clients.outputs.end_turn(None);
        self.ways.flush_trace();
        self.clients.send_all(&mut self.ways);
        Ok(())
    }

    fn send_to_owners(&mut self) {
        self.ways.flush_trace();
        for owner in 0..self.ways.links.len() {
            let Some(link) = &mut self.ways.links[owner] else { continue };
            link.writer.end_turn(None);
            link.make_room();
            self.ways.full[owner] |= link.writer.backlog() >= LINK_BACKLOG_MAX;
            if let Err(lost) = link.send(self.poll.registry()) {
                self.lose(owner, &lost);
            }
        }
    }

    /// Leaves new clients to the other frontends while this one has more than its share.
    fn share_new_clients(&mut self) {
        let [own, ..] = self.ways.router.gauges();
        let (mut sum, mut count) = (0, 0);
        for clients in pages::clients_of_frontends(&self.ways.pages) {
            sum += clients;
            count += 1;
        }
        // 1.1 times the mean, and 8 more.
        if count > 1 && own * 10 * count > sum * 11 + 80 * count {
            self.clients.gate.rest(self.now.boot_ns + REST_NS);
        }
    }

    fn close_lost(&mut self) {
        while let Some(client) = self.ways.closing.pop() {
            self.clients.close(client, &mut self.ways);
        }
    }

    fn read(&mut self, owner: usize) {
        let now_ns = self.now.boot_ns;
        let read = links::read(
            self,
            |frontend| &mut frontend.ways.links,
            owner,
            |frontend, head, payload| {
                let message = ToFrontend::read(head.kind, payload)?;
                let Frontend { ways, clients, .. } = frontend;
                ways.with(&mut clients.outputs, |router, reach| {
                    router.from_owner(now_ns, owner as u16, head.session, message, reach)
                })
            },
        );
        if let Err(lost) = read {
            self.lose(owner, &lost);
        }
    }

    /// A link is of no use any more, which the supervisor does not know.
    fn lose(&mut self, owner: usize, lost: &LinkLost) {
        if self.ways.links[owner].is_some() {
            self.forget(owner, lost);
            // If it cannot be told, the supervisor is gone, and this process is about to be killed.
            let _ = self.child.link_lost(owner as u16);
        }
    }

    /// An owner is out of reach.
    fn forget(&mut self, owner: usize, lost: &LinkLost) {
        if let Some(link) = self.ways.links[owner].take() {
            link.report_dropped(&self.instance);
            self.ways.base.add_link(link.writer.counts());
            match lost {
                // It has ended; the supervisor says why.
                LinkLost::Closed => tracing::debug!("{}: owner {owner} has ended", self.instance),
                lost => tracing::warn!("{}: the link to owner {owner} is lost: {lost}", self.instance),
            }
            let now_ns = self.now.boot_ns;
            self.ways.with(&mut self.clients.outputs, |router, reach| router.owner_down(now_ns, owner as u16, reach));
            self.close_lost();
        }
    }

    fn control(&mut self) -> Result<(), ServeError> {
        let failed = |source| ServeError::system("talk to the supervisor", source);
        let now_ns = self.now.boot_ns;
        while let Some(message) = self.child.recv().map_err(failed)? {
            match message {
                ToChild::Link { peer, socket } => {
                    let owner = usize::from(peer.slot);
                    self.forget(owner, &LinkLost::Closed);
                    #[cfg(feature = "trace")]
                    if let Some(trace) = &mut self.ways.trace {
                        trace.linked(peer.slot, peer.generation);
                    }
                    let end = LinkEnd::new(socket, &self.instance, &peer, self.poll.registry(), Token(LINKS + owner))?;
                    self.ways.links[owner] = Some(end);
                    self.ways.with(&mut self.clients.outputs, |router, reach| {
                        router.owner_up(now_ns, peer.slot, reach);
                    });
                }
                ToChild::Say(Instruction::PeerGone(peer)) => {
                    let owner = usize::from(peer.slot);
                    let is_it = self.ways.links[owner].as_ref().is_some_and(|l| l.peer_generation == peer.generation);
                    if is_it {
                        // What it said before it ended still counts.
                        self.read(owner);
                        self.forget(owner, &LinkLost::Closed);
                    }
                }
                ToChild::Say(Instruction::Go) => {
                    let listeners = std::mem::take(&mut self.listeners)
                        .into_iter()
                        .map(|socket| Listener::from_inherited(socket.as_raw_fd(), socket))
                        .collect::<Result<Vec<_>, _>>()?;
                    self.clients.listen(listeners)?;
                    pages::write_accepts(&self.ways.pages.figures(Role::Frontend, self.instance.slot));
                }
                ToChild::Say(Instruction::Ping { nonce }) => {
                    let generation = self.instance.generation;
                    self.child.send(&FromChild::Pong { generation, nonce, in_sync_ms: None }).map_err(failed)?;
                }
                ToChild::Say(Instruction::Drain) => self.child.send(&FromChild::Drained).map_err(failed)?,
                ToChild::Say(Instruction::Barrier { within_ms }) => {
                    self.clients.stop(&mut self.ways);
                    // A little earlier than the supervisor would kill it.
                    self.stopping_until = Some(now_ns + within_ms.saturating_mul(900_000));
                }
                ToChild::Say(Instruction::Stop { .. }) | ToChild::Options(_) => {}
            }
        }
        Ok(())
    }

    fn write_page(&mut self) {
        let page = self.ways.pages.figures(Role::Frontend, self.instance.slot);
        self.ways.write_page(self.ways.router.counts());
        let links = self.ways.links.iter().flatten();
        pages::write_links(&page, &self.ways.base, links.clone().map(|link| link.writer.counts()));
        pages::write_link_backlog(&page, links.map(|link| &link.writer));
        if self.now.boot_ns >= self.usage_at {
            self.usage_at = self.now.boot_ns + USAGE_NS;
            pages::write_usage(&page);
        }
    }

    fn time_to_wait(&self) -> Option<Duration> {
        if self.clients.has_work(false) {
            return Some(Duration::ZERO);
        }
        let deadlines = [self.ways.router.next_deadline(), self.stopping_until, self.clients.retry_at()];
        let next = deadlines.into_iter().flatten().min()?;
        Some(Duration::from_nanos(next.saturating_sub(clock::now().boot_ns)))
    }

    fn finish(&mut self) -> Result<(), ServeError> {
        let dropped = self.clients.unfinished();
        if dropped > 0 {
            tracing::warn!("{}: {dropped} client(s) did not take their replies in time", self.instance);
        }
        self.child.send(&FromChild::Stopped).map_err(|source| ServeError::system("report to the supervisor", source))
    }
}
