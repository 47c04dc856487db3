//! Single mode as a child of a supervisor: what it is told instead of by options and signals, and what it reports.
//!
//! Owns: the control channel and the page of the slot.
//! Never: decides what follows from an instruction; that is the loop's.

use super::{CONTROL, Queue, SYNCED, Server};
use crate::child_options::{ChildLog, ChildOptions};
use crate::clients::Clients;
use crate::error::ServeError;
use crate::figures::ProcessFigures;
use crate::listen::Listener;
use crate::memory::Backlog;
use crate::outputs::Outputs;
use crate::pages::{self, Base};
use crate::persistence::{self, Persistence, SlotLog};
use crate::sync_thread::SyncThread;
use crate::{clock, platform};
use mio::unix::SourceFd;
use mio::{Interest, Poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use supervisor::lock::{LOCK_WAIT, Lock};
use supervisor::{Child, FailureCause, FromChild, Instance, Instruction, Pages, Role, Start, ToChild};
use tubes_core::{Engine, EngineOptions, Now};
use tubes_protocol::Limits;

/// How often the page is written, in ns; after the last turn of a burst the next ping brings it up to date.
const PAGE_NS: u64 = 100_000_000;

/// Serves the queue until the supervisor says to stop.
pub(crate) fn serve(child: Child, start: Start) -> Result<(), ServeError> {
    let reporter = child.reporter();
    let mut server = begin(child, start).inspect_err(|error| reporter.failed(&error.to_string()))?;
    let ended = server.run();
    if let Err(error) = &ended {
        let cause = if matches!(error, ServeError::Log(_)) { FailureCause::Write } else { FailureCause::Other };
        // The supervisor may be gone; then nobody needs to know.
        let _ = reporter.send(&FromChild::Failed { cause, reason: error.to_string() });
    }
    ended
}

/// The supervisor, as the loop sees it.
pub(super) struct Supervisor {
    child: Child,
    instance: Instance,
    pages: Pages,
    base: Base,
    /// Listeners until the supervisor says "go".
    listeners: Vec<OwnedFd>,
    page_at: u64,
    _lock: Option<Lock>,
}

fn begin(child: Child, start: Start) -> Result<Server, ServeError> {
    crate::accept::raise_limit();
    let options = ChildOptions::read(&start)?;
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
    let waker = Arc::new(mio::Waker::new(poll.registry(), SYNCED).map_err(register)?);
    let now = clock::now();
    let mut engine = Engine::new(EngineOptions {
        max_job_size: options.max_job_size,
        hash_seed: u64::from_le_bytes(persistence::random_bytes()?),
    });
    let (persistence, jobs) = match &options.log {
        None => {
            // The counts of a server go on while it lives, also if all jobs are gone.
            engine.finish_recovery(now, start.pages.server().peek_id_count());
            (Persistence::none(), 0)
        }
        Some(log) => recover(&options, log, &start, &mut engine, now, waker)?,
    };
    if start.drained || start.pages.server().is_draining() {
        engine.drain();
    }
    let base = Base::of(&start.pages.figures(Role::Tubes, start.instance.slot));
    let figures = ProcessFigures::new(options.instance, now.boot_ns).of_server(start.pages.clone(), base.clone());
    let outputs = Outputs::new(figures, options.segment_bytes);
    let limits = Limits { body_bytes_max: options.max_job_size, close_on_http: options.close_on_http };
    let clients = Clients::new(poll.registry(), limits, options.body_memory, outputs, now)?;
    let mut supervisor = Supervisor {
        child,
        instance: start.instance,
        pages: start.pages,
        base,
        listeners: start.listeners,
        page_at: 0,
        _lock: lock,
    };
    let queue = Queue { engine, persistence };
    // Before the supervisor knows: whoever asks for figures once the server serves finds all jobs.
    supervisor.write_page(&queue, now.boot_ns);
    let generation = supervisor.instance.generation;
    supervisor
        .child
        .send(&FromChild::Ready { generation, jobs, next_id: 0 })
        .map_err(|source| ServeError::system("report to the supervisor", source))?;
    Ok(Server {
        poll,
        orders: super::Orders::Supervisor(Box::new(supervisor)),
        clients,
        queue,
        backlog: Backlog::default(),
        metrics: None,
        now,
        stopping_until: None,
        own_socket: None,
    })
}

/// Replays the log of the slot; also the number of jobs in it.
fn recover(
    options: &ChildOptions,
    log: &ChildLog,
    start: &Start,
    engine: &mut Engine,
    now: Now,
    waker: Arc<mio::Waker>,
) -> Result<(Persistence, u64), ServeError> {
    let slot_log = SlotLog {
        slot: start.instance.slot,
        generation: start.instance.generation,
        segment_bytes: options.segment_bytes,
        ids_per_count: 1,
        log,
    };
    // Here, as a thread has the priority of the one that starts it.
    let thread = SyncThread::start(waker)?;
    let (persistence, report) = platform::behind_others(|| Persistence::open_slot(&slot_log, engine, now, thread))?;
    engine.finish_recovery(now, report.next_id);
    Ok((persistence, report.jobs))
}

impl Server {
    /// Carries out what the supervisor has said. If it cannot be heard or answered it is gone, and this process is about
    /// to be killed.
    pub(super) fn obey(&mut self) -> Result<(), ServeError> {
        while let Some(message) = self.supervisor().and_then(|it| it.child.recv().ok().flatten()) {
            let ToChild::Say(instruction) = message else { continue };
            match instruction {
                Instruction::Go => self.accept()?,
                Instruction::Ping { nonce } => {
                    let in_sync_ms = self.queue.persistence.in_sync_ms(self.now.boot_ns);
                    self.write_page(true);
                    self.report(|generation| FromChild::Pong { generation, nonce, in_sync_ms });
                }
                Instruction::Drain => {
                    self.queue.engine.drain();
                    self.report(|_| FromChild::Drained);
                }
                // Clients have as long as those of a frontend; the rest is for the log.
                Instruction::Stop { within_ms } => self.begin_stop(within_ms.saturating_mul(600_000)),
                // Of processes with links.
                Instruction::PeerGone(_) | Instruction::Barrier { .. } => {}
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<(), ServeError> {
        let Some(supervisor) = self.supervisor() else { return Ok(()) };
        let listeners = std::mem::take(&mut supervisor.listeners)
            .into_iter()
            .map(|socket| Listener::from_inherited(socket.as_raw_fd(), socket))
            .collect::<Result<Vec<_>, _>>()?;
        pages::write_accepts(&supervisor.page());
        self.clients.listen(listeners)
    }

    /// Tells the supervisor's memory how things stand, if that is due or `must` be; in any case which ids are given, before
    /// any client hears of them.
    pub(super) fn write_page(&mut self, must: bool) {
        let Server { orders: super::Orders::Supervisor(supervisor), queue, now, .. } = self else { return };
        supervisor.pages.server().raise_id_count(queue.engine.next_id());
        if must || now.boot_ns >= supervisor.page_at {
            supervisor.write_page(queue, now.boot_ns);
        }
    }

    /// All is finished; the process exits next.
    pub(super) fn report_stopped(&mut self) {
        self.write_page(true);
        self.report(|_| FromChild::Stopped);
    }

    fn report(&mut self, report: impl FnOnce(u32) -> FromChild) {
        if let Some(supervisor) = self.supervisor() {
            let _ = supervisor.child.send(&report(supervisor.instance.generation));
        }
    }

    fn supervisor(&mut self) -> Option<&mut Supervisor> {
        match &mut self.orders {
            super::Orders::Supervisor(supervisor) => Some(supervisor),
            super::Orders::Signals(_) => None,
        }
    }
}

impl Supervisor {
    fn page(&self) -> supervisor::Page<'_> {
        self.pages.figures(Role::Tubes, self.instance.slot)
    }

    fn write_page(&mut self, queue: &Queue, now_ns: u64) {
        self.page_at = now_ns + PAGE_NS;
        let stats = queue.engine.figures();
        pages::write_tubes(&self.page(), &self.base, &stats, queue.persistence.figures().as_ref());
        pages::write_usage(&self.page());
    }
}
