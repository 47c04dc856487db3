//! Single mode: one process, one thread, all tubes; by itself, or as a child of a supervisor.

#[cfg(target_os = "linux")]
mod supervised;

use crate::clients::{Backend, Clients, OTHERS};
use crate::error::ServeError;
use crate::figures::ProcessFigures;
use crate::listen::{self, Opened, OwnSocket};
use crate::memory::Backlog;
use crate::metrics::{self, Asked, Endpoint, Snapshot, name};
use crate::options::ServerOptions;
use crate::outputs::Outputs;
use crate::persistence::{self, Persistence};
use crate::privileges::Account;
use crate::signals::{Signal, Signals};
use crate::{clock, figures};
use mio::{Events, Interest, Poll, Token};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tubes_core::journal::Replay;
use tubes_core::{Engine, EngineOptions, Now, Outbox, SessionId};
use tubes_protocol::{Command, Limits, Reply};
use tubes_store::LogError;

/// Events taken from the system at once.
const EVENTS_PER_TURN: usize = 1024;
/// An orderly stop ends after this time even if clients do not take their replies.
const STOP_NS: u64 = 10_000_000_000;

#[cfg(target_os = "linux")]
pub(crate) use supervised::serve as serve_supervised;

const STOP: Token = Token(OTHERS);
const DRAIN: Token = Token(OTHERS + 1);
const SYNCED: Token = Token(OTHERS + 2);
/// The control channel of a child.
const CONTROL: Token = Token(OTHERS + 3);

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
    orders: Orders,
    clients: Clients,
    queue: Queue,
    backlog: Backlog,
    metrics: Option<Metrics>,
    now: Now,
    /// Set by SIGTERM: when to end at the latest, in ns of the boot clock.
    stopping_until: Option<u64>,
    /// The unix socket of ours, removed when it is not served any more.
    own_socket: Option<OwnSocket>,
}

/// Who says when to stop and to drain.
enum Orders {
    /// The system, by signals.
    Signals(Signals),
    #[cfg(target_os = "linux")]
    Supervisor(Box<supervised::Supervisor>),
}

/// Whether the supervisor has something to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    Something,
}

/// What scrapers are told besides figures.
struct Metrics {
    asked: Asked,
    about: BTreeMap<String, String>,
    started_ns: u64,
    generation: u32,
}

/// The engine and its log: who carries the clients' commands out.
struct Queue {
    engine: Engine,
    persistence: Persistence,
}

impl Server {
    fn start(options: &ServerOptions) -> Result<Server, ServeError> {
        // First of all: a log with many jobs needs many descriptors.
        crate::accept::raise_limit();
        let account = options.user.as_deref().map(Account::find).transpose()?;
        let Opened { listeners, own_socket } = listen::open_all(options)?;
        let endpoint = options.metrics.as_ref().map(Endpoint::open).transpose()?;
        let mut signals = Signals::install()?;
        if let Some(account) = account {
            account.switch()?;
        }
        let poll = Poll::new().map_err(|source| ServeError::system("set up polling", source))?;
        let waker = mio::Waker::new(poll.registry(), SYNCED)
            .map_err(|source| ServeError::system("set up the waker of the sync thread", source))?;
        let waker = Arc::new(waker);
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
                let (persistence, opened) =
                    Persistence::open_single(settings, options.segment_bytes, &mut engine, now, waker.clone())?;
                engine.finish_recovery(now, opened.report.next_id);
                persistence::report(settings, &opened.report);
                (persistence, opened.instance, opened.generation)
            }
        };
        for (source, token) in [(&mut signals.stop, STOP), (&mut signals.drain, DRAIN)] {
            poll.registry()
                .register(source, token, Interest::READABLE)
                .map_err(|source| ServeError::system("register an event source", source))?;
        }
        listen::announce(&listeners);
        let about = metrics::about("single", &instance, options.log.as_ref());
        #[allow(unused_mut, reason = "changed only with the feature `trace`")]
        let mut outputs = Outputs::new(ProcessFigures::new(instance, now.boot_ns), options.segment_bytes);
        #[cfg(feature = "trace")]
        if let Some(path) = &options.trace {
            let trace = crate::trace::Trace::open(path, generation, now.boot_ns);
            outputs.trace = Some(trace.map_err(|source| ServeError::system("open the trace file", source))?);
        }
        let limits = Limits { body_bytes_max: options.max_job_size, close_on_http: options.close_on_http };
        let mut clients = Clients::new(poll.registry(), limits, options.body_memory, outputs, now)?;
        let metrics = match endpoint {
            None => None,
            Some(endpoint) => {
                clients.gate.keep(metrics::DESCRIPTORS);
                let (mut asking, asked) = metrics::questions(waker);
                endpoint.serve(move || asking.ask())?;
                Some(Metrics { asked, about, started_ns: now.boot_ns, generation })
            }
        };
        clients.listen(listeners)?;
        // The supervisor of the system may not be there; then nobody waits for the message.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        let queue = Queue { engine, persistence };
        let backlog = Backlog::default();
        let orders = Orders::Signals(signals);
        Ok(Server { poll, orders, clients, queue, backlog, metrics, now, stopping_until: None, own_socket })
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
            self.clients.now = self.now;
            self.clients.outputs.now_ns = self.now.boot_ns;
            let turn = self.turn(&events);
            #[cfg(target_os = "linux")]
            if matches!(turn, Ok(Told::Something)) {
                self.obey()?;
            }
            match turn.and_then(|_| self.end_turn(events.is_empty())) {
                Ok(left) => compaction_left = left,
                Err(error) => return Err(self.fail(error)),
            }
            if let Some(until) = self.stopping_until
                && (self.clients.is_finished() || self.now.boot_ns >= until)
            {
                return self.finish();
            }
        }
    }

    /// Everything of one turn up to the point where its records are complete.
    fn turn(&mut self, events: &Events) -> Result<Told, LogError> {
        let Server { clients, queue, .. } = self;
        queue.engine.tick(self.now, &mut queue.persistence, &mut clients.outputs);
        clients.go_on_scheduled(queue);
        let mut told = Told::Nothing;
        let mut has_synced = false;
        for event in events {
            match event.token() {
                STOP => self.stop(),
                DRAIN => self.drain(),
                SYNCED => has_synced = true,
                CONTROL => told = Told::Something,
                _ => self.clients.event(event, &mut self.queue),
            }
        }
        if has_synced && self.queue.persistence.end_sync(self.now.boot_ns)? {
            self.clients.outputs.release(self.queue.persistence.durable_batch());
        }
        self.clients.end_events(&mut self.queue);
        if let Some(metrics) = &self.metrics {
            metrics.asked.answer(|| self.snapshot(metrics));
        }
        Ok(told)
    }

    fn snapshot(&self, metrics: &Metrics) -> Snapshot {
        let engine = &self.queue.engine;
        let mut stats = engine.figures();
        self.clients.outputs.figures.complete(&mut stats, self.now.boot_ns);
        let mut figures = figures::shown(&stats);
        figures.insert(name::GENERATION.to_owned(), metrics.generation.into());
        if let Some(log) = self.queue.persistence.figures() {
            figures.extend(log.shown());
            let in_sync_ms = self.queue.persistence.in_sync_ms(self.now.boot_ns).unwrap_or(0);
            figures.insert(name::LOG_IN_SYNC_MS.to_owned(), in_sync_ms);
        }
        Snapshot {
            about: metrics.about.clone(),
            uptime_ms: self.now.boot_ns.saturating_sub(metrics.started_ns) / 1_000_000,
            is_serving: self.stopping_until.is_none(),
            is_stopping: self.stopping_until.is_some(),
            is_draining: stats.draining,
            is_drained: stats.draining,
            ended_cpu_us: (0, 0),
            processes: vec![metrics::Process { role: "single", slot: 0, condition: None, figures }],
        }
    }

    /// Writes the records of the turn, then its replies. `true` if compaction has more to do.
    fn end_turn(&mut self, is_idle: bool) -> Result<bool, LogError> {
        let Server { clients, queue, .. } = self;
        let compaction_left = queue.persistence.compact(&mut queue.engine, is_idle);
        queue.persistence.flush(self.now.boot_ns)?;
        #[cfg(feature = "trace")]
        if let Some(trace) = &mut clients.outputs.trace {
            trace.flush().expect("the trace file can be written");
        }
        clients.outputs.end_turn(queue.persistence.batch_to_wait_for());
        clients.outputs.release(queue.persistence.durable_batch());
        #[cfg(target_os = "linux")]
        self.write_page(false);
        self.clients.send_all(&mut self.queue);
        self.backlog.turn(self.queue.engine.live_jobs());
        Ok(compaction_left)
    }

    fn time_to_wait(&self, compaction_left: bool) -> Option<Duration> {
        if compaction_left || self.clients.has_work(self.queue.persistence.backpressure()) {
            return Some(Duration::ZERO);
        }
        let deadlines = [
            self.queue.engine.next_deadline(),
            self.queue.persistence.next_deadline(),
            self.stopping_until,
            self.clients.retry_at(),
        ];
        let next = deadlines.into_iter().flatten().min()?;
        Some(Duration::from_nanos(next.saturating_sub(clock::now().boot_ns)))
    }

    fn drain(&mut self) {
        if self.has_signal(Signal::Drain) {
            tracing::warn!("draining: puts are refused until the server is restarted");
            self.queue.engine.drain();
        }
    }

    fn has_signal(&mut self, signal: Signal) -> bool {
        match &mut self.orders {
            Orders::Signals(signals) => signals.take(signal),
            #[cfg(target_os = "linux")]
            Orders::Supervisor(_) => false,
        }
    }

    fn stop(&mut self) {
        if self.has_signal(Signal::Stop) && self.stopping_until.is_none() {
            tracing::info!("stopping");
            self.begin_stop(STOP_NS);
        }
    }

    /// From here on nothing is accepted or read; what has been read is carried out and answered. Clients that do not take
    /// their answers are given up after `within_ns`.
    fn begin_stop(&mut self, within_ns: u64) {
        if self.stopping_until.is_none() {
            self.stopping_until = Some(self.now.boot_ns.saturating_add(within_ns));
            // While it is still served: afterwards the path may be another server's.
            self.own_socket = None;
            self.clients.stop(&mut self.queue);
        }
    }

    /// The orderly end: everything is on disk before the process goes.
    fn finish(&mut self) -> Result<(), ServeError> {
        let dropped = self.clients.unfinished();
        if dropped > 0 {
            tracing::warn!("{dropped} client(s) did not take their replies in time");
        }
        self.queue.persistence.close(self.now.boot_ns)?;
        #[cfg(target_os = "linux")]
        self.report_stopped();
        Ok(())
    }

    /// The log has failed: nothing more may claim success. Says so to those it can, and gives up.
    fn fail(&mut self, error: LogError) -> ServeError {
        tracing::error!("the log failed: {error}");
        self.clients.outputs.fail_turn();
        self.clients.send_last();
        ServeError::Log(error)
    }
}

impl Backend for Queue {
    fn connect(&mut self, _outputs: &mut Outputs) -> SessionId {
        self.engine.connect()
    }

    fn can_take(&self, session: SessionId) -> bool {
        !self.engine.is_waiting(session)
    }

    fn has_put(&self, _session: SessionId) -> bool {
        // It is answered at once.
        false
    }

    fn is_idle(&self, session: SessionId) -> bool {
        !self.engine.is_waiting(session)
    }

    fn command(&mut self, now: Now, session: SessionId, command: Command<'_>, outputs: &mut Outputs) {
        if matches!(command, Command::Stats) {
            outputs.log = self.persistence.figures().unwrap_or(outputs.log);
        }
        self.engine.handle(now, session, command, &mut self.persistence, outputs);
    }

    fn is_waiting(&self, session: SessionId) -> bool {
        self.engine.is_waiting(session)
    }

    fn cancel_wait(&mut self, session: SessionId) {
        self.engine.cancel_wait(session);
    }

    fn local(&mut self, session: SessionId, reply: &Reply<'_>, outputs: &mut Outputs) {
        outputs.reply(session, reply);
    }

    fn refused_put(&mut self, session: SessionId, is_producer: bool) {
        self.engine.count_refused_put(session, is_producer);
    }

    fn half_close(&mut self, now: Now, session: SessionId, outputs: &mut Outputs) {
        self.engine.half_close(now, session, outputs);
    }

    fn give_back(&mut self, now: Now, session: SessionId, outputs: &mut Outputs) {
        self.engine.give_back(now, session, &mut self.persistence, outputs);
    }

    fn disconnect(&mut self, now: Now, session: SessionId, outputs: &mut Outputs) {
        self.engine.disconnect(now, session, &mut self.persistence, outputs);
    }

    fn backpressure(&self) -> bool {
        self.persistence.backpressure()
    }
}
