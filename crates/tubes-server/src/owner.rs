//! An owner: the jobs, timers and log of its slot, for the sessions of all frontends.

use crate::child_options::ChildOptions;
use crate::clients::OTHERS;
use crate::error::ServeError;
use crate::links::{self, LinkEnd, LinkLost, Links};
use crate::memory::Backlog;
use crate::pages::{self, Base};
use crate::persistence::{self, Persistence};
use crate::sync_thread::SyncThread;
use crate::{clock, persistence::SlotLog, platform};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;
use supervisor::lock::{LOCK_WAIT, Lock};
use supervisor::{Child, FailureCause, FromChild, Instance, Instruction, Pages, Role, Start, ToChild};
use tubes_core::journal::Replay;
use tubes_core::{Engine, EngineOptions, Now};
use tubes_link::{Broken, Host, HostOut, Writer};
use tubes_store::LogError;

const EVENTS_PER_TURN: usize = 1024;
const CONTROL: Token = Token(OTHERS);
const SYNCED: Token = Token(OTHERS + 1);
/// How often processor time is written to the page, in ns.
const USAGE_NS: u64 = 100_000_000;

/// Serves a slot until the supervisor says to stop.
pub(crate) fn serve(child: Child, start: Start) -> Result<(), ServeError> {
    let reporter = child.reporter();
    let mut owner = Owner::begin(child, start).inspect_err(|error| reporter.failed(&error.to_string()))?;
    drop(reporter);
    let ended = owner.run();
    if let Err(error) = &ended {
        let cause = if matches!(error, ServeError::Log(_)) { FailureCause::Write } else { FailureCause::Other };
        // The supervisor may be gone; then nobody needs to know.
        let _ = owner.child.send(&FromChild::Failed { cause, reason: error.to_string() });
    }
    ended
}

struct Owner {
    child: Child,
    instance: Instance,
    pages: Pages,
    poll: Poll,
    engine: Engine,
    host: Host,
    persistence: Persistence,
    wires: Wires,
    base: Base,
    backlog: Backlog,
    now: Now,
    usage_at: u64,
    is_stopping: bool,
    _lock: Option<Lock>,
}

/// Links to the frontends, by slot, and the counters shared by all owners.
struct Wires {
    links: Links,
    pages: Pages,
    #[cfg(feature = "trace")]
    trace: Option<crate::trace_multi::OwnerTrace>,
}

impl HostOut for Wires {
    fn link(&mut self, frontend: u16) -> Option<&mut Writer> {
        self.links[usize::from(frontend)].as_mut().map(|link| &mut link.writer)
    }
    fn next_id_count(&mut self) -> u64 {
        self.pages.server().next_id_count()
    }
    fn next_creation(&mut self) -> u64 {
        self.pages.server().next_tube_number()
    }
    fn is_draining(&self) -> bool {
        self.pages.server().is_draining()
    }
    #[cfg(feature = "trace")]
    fn did(&mut self, frontend: u16, session: u64, deed: &tubes_link::Deed<'_>) {
        if let Some(trace) = &mut self.trace {
            trace.did(frontend, session, deed);
        }
    }
}

impl Owner {
    fn begin(child: Child, start: Start) -> Result<Owner, ServeError> {
        crate::accept::raise_limit();
        let (options, map) = ChildOptions::of(&start)?;
        let lock = match &start.slot_lock {
            None => None,
            Some(path) => Some(
                Lock::take(path, LOCK_WAIT)
                    .map_err(|error| ServeError::system("take the slot's lock", io::Error::other(error)))?,
            ),
        };
        let poll = Poll::new().map_err(|source| ServeError::system("set up polling", source))?;
        let register = |source| ServeError::system("register an event source", source);
        poll.registry()
            .register(&mut SourceFd(&child.as_fd().as_raw_fd()), CONTROL, Interest::READABLE)
            .map_err(register)?;
        let waker = mio::Waker::new(poll.registry(), SYNCED).map_err(register)?;
        let now = clock::now();
        let slot = start.instance.slot;
        let mut engine = Engine::new(EngineOptions {
            max_job_size: options.max_job_size,
            hash_seed: u64::from_le_bytes(persistence::random_bytes()?),
        });
        engine.become_owner(options.single_ids_below, map.of_tube(b"default") == slot);
        // Recovered tubes are numbered behind those that the other owners have created.
        engine.set_next_creation(start.pages.server().next_tube_number() + 1);
        let (mut jobs, mut next_count) = (0, 1);
        let persistence = match &options.log {
            None => {
                engine.finish_recovery(now, 1);
                Persistence::none()
            }
            Some(log) => {
                let slot_log = SlotLog {
                    slot,
                    generation: start.instance.generation,
                    segment_bytes: options.segment_bytes,
                    ids_per_count: tubes_core::PARTITIONS as u64,
                    log,
                };
                // Here, as a thread has the priority of the one that starts it.
                let thread = SyncThread::start(Arc::new(waker))?;
                let open = || Persistence::open_slot(&slot_log, &mut engine, now, thread);
                let (persistence, report) = platform::behind_others(open)?;
                engine.finish_recovery(now, report.highest_id + 1);
                (jobs, next_count) = (report.jobs, report.next_id);
                persistence
            }
        };
        while start.pages.server().next_tube_number() < engine.next_creation() {}
        if start.drained || start.pages.server().is_draining() {
            engine.drain();
        }
        #[cfg(feature = "trace")]
        let trace = {
            let begin = |folder: &std::path::PathBuf| {
                crate::trace_multi::OwnerTrace::begin(folder, &start.instance, &engine, now)
            };
            let begun = options.trace.as_ref().map(begin).transpose();
            begun.map_err(|source| ServeError::system("open the trace file", source))?
        };
        let base = Base::of(&start.pages.figures(Role::Owner, slot));
        let mut owner = Owner {
            child,
            instance: start.instance,
            poll,
            engine,
            host: Host::new(),
            persistence,
            wires: Wires {
                links: (0..start.topology.frontends).map(|_| None).collect(),
                pages: start.pages.clone(),
                #[cfg(feature = "trace")]
                trace,
            },
            pages: start.pages,
            base,
            backlog: Backlog::default(),
            now,
            usage_at: 0,
            is_stopping: false,
            _lock: lock,
        };
        // Before the supervisor knows: whoever asks for figures once the server serves finds all jobs.
        owner.write_page();
        let ready = FromChild::Ready { generation: owner.instance.generation, jobs, next_id: next_count };
        owner.child.send(&ready).map_err(|source| ServeError::system("report to the supervisor", source))?;
        tracing::info!("{} is ready with {jobs} jobs", owner.instance);
        Ok(owner)
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
            #[cfg(feature = "trace")]
            if let Some(trace) = &mut self.wires.trace {
                trace.now_ns = self.now.boot_ns;
            }
            compaction_left = self.turn(&events)?;
            if self.is_stopping {
                return self.finish();
            }
        }
    }

    fn turn(&mut self, events: &Events) -> Result<bool, ServeError> {
        let ticked = self.host.tick(self.now, &mut self.engine, &mut self.persistence, &mut self.wires);
        self.lose_broken(ticked);
        let mut has_control = false;
        let mut has_synced = false;
        for event in events {
            match event.token() {
                CONTROL => has_control = true,
                SYNCED => has_synced = true,
                Token(frontend) => {
                    if let Some(Some(link)) = self.wires.links.get_mut(frontend)
                        && event.is_writable()
                    {
                        link.writable();
                    }
                    if event.is_readable() || event.is_read_closed() || event.is_error() {
                        self.read(frontend);
                    }
                }
            }
        }
        if has_synced {
            // It lets the log go on, with records of this turn among others.
            self.flush_trace();
            self.persistence.end_sync(self.now.boot_ns)?;
        }
        if has_control {
            self.control()?;
        }
        Ok(self.end_turn(events.is_empty())?)
    }

    /// Traces what was decided, before any of it can be in the log.
    fn flush_trace(&mut self) {
        #[cfg(feature = "trace")]
        if let Some(trace) = &mut self.wires.trace {
            trace.flush();
        }
    }

    fn end_turn(&mut self, is_idle: bool) -> Result<bool, LogError> {
        self.flush_trace();
        let compaction_left = self.persistence.compact(&mut self.engine, is_idle);
        self.persistence.flush(self.now.boot_ns)?;
        self.write_page();
        let batch = self.persistence.batch_to_wait_for();
        let durable = self.persistence.durable_batch();
        // A disk that cannot follow holds the frontends up, and they their clients.
        let has_room = !self.persistence.backpressure();
        for frontend in 0..self.wires.links.len() {
            let Some(link) = &mut self.wires.links[frontend] else { continue };
            link.writer.end_turn(batch);
            link.writer.release(durable);
            if has_room {
                link.make_room();
            }
            if let Err(lost) = link.send(self.poll.registry()) {
                self.lose(frontend, &lost);
            }
        }
        let page = self.pages.figures(Role::Owner, self.instance.slot);
        pages::write_link_backlog(&page, self.wires.links.iter().flatten().map(|link| &link.writer));
        self.backlog.turn(self.engine.live_jobs());
        Ok(compaction_left)
    }

    fn read(&mut self, frontend: usize) {
        let mut broken = Ok(());
        let read = links::read(
            self,
            |owner| &mut owner.wires.links,
            frontend,
            |owner, head, payload| {
                let Owner { engine, host, persistence, wires, now, .. } = owner;
                let from = (frontend as u16, head.session);
                match host.take(*now, engine, from, (head.kind, payload), persistence, wires) {
                    Err(Broken { frontend: of, error }) if of == from.0 => Err(error),
                    other => {
                        broken = other.and(broken);
                        Ok(())
                    }
                }
            },
        );
        self.lose_broken(broken);
        if let Err(lost) = read {
            self.lose(frontend, &lost);
        }
    }

    /// A link is of no use any more, which the supervisor does not know.
    fn lose(&mut self, frontend: usize, lost: &LinkLost) {
        if self.wires.links[frontend].is_some() {
            self.forget(frontend, lost);
            // If it cannot be told, the supervisor is gone, and this process is about to be killed.
            let _ = self.child.link_lost(frontend as u16);
        }
    }

    /// A link is no more: everything of that frontend ends here.
    fn forget(&mut self, frontend: usize, lost: &LinkLost) {
        if let Some(link) = self.wires.links[frontend].take() {
            link.report_dropped(&self.instance);
            self.base.add_link(link.writer.counts());
            match lost {
                // It has ended; the supervisor says why.
                LinkLost::Closed => tracing::debug!("{}: frontend {frontend} has ended", self.instance),
                lost => tracing::warn!("{}: the link to frontend {frontend} is lost: {lost}", self.instance),
            }
            let Owner { engine, host, persistence, wires, now, .. } = self;
            let gone = host.frontend_gone(*now, engine, frontend as u16, persistence, wires);
            self.lose_broken(gone);
        }
    }

    fn lose_broken(&mut self, result: Result<(), Broken>) {
        if let Err(Broken { frontend, error }) = result {
            self.lose(usize::from(frontend), &LinkLost::Frame(error));
        }
    }

    fn control(&mut self) -> Result<(), ServeError> {
        let failed = |source| ServeError::system("talk to the supervisor", source);
        while let Some(message) = self.child.recv().map_err(failed)? {
            match message {
                ToChild::Link { peer, socket } => {
                    let frontend = usize::from(peer.slot);
                    self.forget(frontend, &LinkLost::Closed);
                    #[cfg(feature = "trace")]
                    if let Some(trace) = &mut self.wires.trace {
                        trace.linked(peer.slot, peer.generation);
                    }
                    let end = LinkEnd::new(socket, &self.instance, &peer, self.poll.registry(), Token(frontend))?;
                    self.wires.links[frontend] = Some(end);
                    self.read(frontend);
                }
                ToChild::Say(Instruction::PeerGone(peer)) => {
                    let frontend = usize::from(peer.slot);
                    let is_it =
                        self.wires.links[frontend].as_ref().is_some_and(|l| l.peer_generation == peer.generation);
                    if is_it {
                        // What it sent before it ended still counts.
                        self.read(frontend);
                        self.forget(frontend, &LinkLost::Closed);
                    }
                }
                ToChild::Say(Instruction::Ping { nonce }) => {
                    let in_sync_ms = self.persistence.in_sync_ms(self.now.boot_ns);
                    let generation = self.instance.generation;
                    self.child.send(&FromChild::Pong { generation, nonce, in_sync_ms }).map_err(failed)?;
                }
                ToChild::Say(Instruction::Drain) => {
                    self.engine.drain();
                    self.child.send(&FromChild::Drained).map_err(failed)?;
                }
                ToChild::Say(Instruction::Stop { .. }) => self.is_stopping = true,
                ToChild::Say(Instruction::Go | Instruction::Barrier { .. }) | ToChild::Options(_) => {}
            }
        }
        Ok(())
    }

    fn write_page(&mut self) {
        let page = self.pages.figures(Role::Owner, self.instance.slot);
        pages::write_owner(&page, &self.base, &self.engine.figures(), self.persistence.figures().as_ref());
        let links = self.wires.links.iter().flatten();
        pages::write_links(&page, &self.base, links.map(|link| link.writer.counts()));
        if self.now.boot_ns >= self.usage_at {
            self.usage_at = self.now.boot_ns + USAGE_NS;
            pages::write_usage(&page);
        }
    }

    fn time_to_wait(&self, compaction_left: bool) -> Option<Duration> {
        if compaction_left {
            return Some(Duration::ZERO);
        }
        let deadlines = [self.engine.next_deadline(), self.persistence.next_deadline()];
        let next = deadlines.into_iter().flatten().min()?;
        Some(Duration::from_nanos(next.saturating_sub(clock::now().boot_ns)))
    }

    fn finish(&mut self) -> Result<(), ServeError> {
        self.persistence.close(self.now.boot_ns)?;
        for link in self.wires.links.iter_mut().flatten() {
            link.writer.end_turn(None);
            link.writer.release(u64::MAX);
            // A frontend that is gone takes nothing any more.
            let _ = link.send(self.poll.registry());
        }
        self.child.send(&FromChild::Stopped).map_err(|source| ServeError::system("report to the supervisor", source))
    }
}
