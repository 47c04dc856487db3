//! Carries the decisions of [`Rules`] out: processes, sockets, signals, clocks.
//!
//! Owns: the processes, each behind a process descriptor; the event loop; the status socket.
//! Never: decides what runs, and never signals or awaits a process by its number.
//!
//! Everything happens on the main thread: the kernel ties a child's life to the *thread* that started it.

mod operator;
mod process;
mod signals;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::{Events, Poll, Token};
use nix::sys::resource::UsageWho;
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use crate::error::SuperviseError;
use crate::lock::Lock;
use crate::message::{Instance, Role, Slot, Topology};
use crate::pages::Pages;
use crate::plan::Plan;
use crate::rules::{Config, Input, Outcome, Output, Report, Rules};
use crate::status::{ProcessStatus, Status};
use crate::sys;
use operator::Operator;
use process::Process;
pub use signals::Signals;

/// Most listeners, so that a start message can carry them.
const LISTENERS_MAX: usize = crate::control::DESCRIPTORS_MAX - 8;
/// Longest text of the caller's options; the rest of a start message is short.
const OPTIONS_BYTES_MAX: usize = crate::control::MESSAGE_BYTES_MAX / 2;
/// Most owners: as many as there are partitions.
const OWNERS_MAX: u16 = 64;
/// Most frontends; with more than one per core of the largest machine nothing is won.
const FRONTENDS_MAX: u16 = 1024;

/// How long the lock of a supervisor is awaited. A process that a killed supervisor was just starting shares its open
/// files, and with them its lock, until the new program has replaced the copy: a moment after the supervisor's end.
const LOCK_WAIT_SUPERVISOR: Duration = Duration::from_secs(2);

const TOKEN_STOP: Token = Token(0);
const TOKEN_DRAIN: Token = Token(1);
const TOKEN_STATUS: Token = Token(2);
const TOKEN_RELOAD: Token = Token(3);
/// First token of the connections of operators.
const TOKEN_OPERATORS: usize = 8;
/// First token of the processes; each has two.
const TOKEN_PROCESSES: usize = 1024;

/// Runs the server of `plan` until SIGTERM or SIGINT, from the main thread. SIGUSR1 drains it.
///
/// When it returns no process of the server is left (but for one that the kernel itself does not let go), and the
/// listeners are closed.
///
/// # Errors
///
/// [`SuperviseError`]; none of them leaves a process behind.
pub fn supervise(plan: Plan) -> Result<(), SuperviseError> {
    check(&plan)?;
    let foreign = sys::open_descriptors().map_err(missing("a mounted /proc"))?;
    foreign.into_iter().for_each(sys::close_on_exec);
    let _lock = plan.lock.as_deref().map(|path| Lock::take(path, LOCK_WAIT_SUPERVISOR)).transpose()?;
    // Processes of an earlier server may still be on their way out.
    for path in &plan.slot_locks {
        drop(Lock::take(path, plan.lock_wait)?);
    }
    Shell::new(plan)?.run()
}

fn check(plan: &Plan) -> Result<(), SuperviseError> {
    let refuse = |what: String| Err(SuperviseError::Plan(what));
    if rustix::thread::gettid() != rustix::process::getpid() {
        return refuse("processes are supervised from the main thread only".into());
    }
    let Topology { owners, frontends, tubes, .. } = plan.topology;
    if plan.topology.is_empty() {
        return refuse("there is nothing to supervise".into());
    }
    if owners > OWNERS_MAX || frontends > 0 && owners == 0 {
        return refuse(format!("{owners} owners; 1 to {OWNERS_MAX} are possible"));
    }
    if frontends > FRONTENDS_MAX || owners > 0 && frontends == 0 {
        return refuse(format!("{frontends} frontends; 1 to {FRONTENDS_MAX} are possible"));
    }
    if tubes && owners > 0 {
        return refuse("the queue server is one process or several, not both".into());
    }
    let with_jobs = plan.topology.slots().filter(|place| place.role.has_jobs()).count();
    if !plan.slot_locks.is_empty() && plan.slot_locks.len() != with_jobs {
        return refuse(format!("{} slot locks for {with_jobs} slots with jobs", plan.slot_locks.len()));
    }
    for role in Role::ALL.into_iter().filter(|role| plan.topology.count(*role) > 0) {
        let Some(of_role) = plan.roles.get(&role) else {
            return refuse(format!("nothing is said of how to start the role {role}"));
        };
        if of_role.listeners.len() > LISTENERS_MAX {
            let count = of_role.listeners.len();
            return refuse(format!("{count} listeners of the role {role}; at most {LISTENERS_MAX} are possible"));
        }
        if of_role.options.to_string().len() > OPTIONS_BYTES_MAX {
            return refuse(format!("the options of the role {role} are longer than {OPTIONS_BYTES_MAX} bytes"));
        }
    }
    Ok(())
}

struct Shell {
    plan: Plan,
    rules: Rules,
    /// By slot, in the order of the topology.
    processes: Vec<Option<Process>>,
    pages: Pages,
    /// What processes watch, and the end that must stay open for as long as this process lives.
    lifeline: OwnedFd,
    _lifeline_writer: OwnedFd,
    poll: Poll,
    signals: Signals,
    operator: Option<Operator>,
    inputs: VecDeque<Input>,
    outcome: Option<Outcome>,
    started_ns: u64,
    feeds_watchdog: bool,
}

impl Shell {
    fn new(mut plan: Plan) -> Result<Shell, SuperviseError> {
        let started_ns = boot_ns();
        let install = |error| SuperviseError::System { action: "install signal handlers", source: error };
        let poll = Poll::new().map_err(SuperviseError::system("open an event queue"))?;
        let mut signals = plan.signals.take().map_or_else(Signals::install, Ok).map_err(install)?;
        signals.register(&poll).map_err(install)?;
        // Refused at once, and not at the first child, where it is missing.
        process::open_descriptor(rustix::process::getpid()).map_err(missing("process descriptors (pidfd_open)"))?;
        let pages = Pages::create(plan.topology).map_err(missing("memory by descriptor (memfd_create)"))?;
        pages.server().set_started(std::process::id(), started_ns);
        pages.server().raise_id_count(plan.id_count_start);
        let (lifeline, lifeline_writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(SuperviseError::system("make the lifeline"))?;
        let operator = match &plan.status_socket {
            Some(path) => Some(Operator::listen(path, &poll)?),
            None => None,
        };
        let config = Config { topology: plan.topology, restart: plan.restart, on_slot_failed: plan.on_slot_failed };
        Ok(Shell {
            rules: Rules::new(config, plan.seed),
            processes: (0..plan.topology.len()).map(|_| None).collect(),
            pages,
            lifeline,
            _lifeline_writer: lifeline_writer,
            poll,
            signals,
            operator,
            inputs: VecDeque::new(),
            outcome: None,
            started_ns,
            feeds_watchdog: std::env::var_os("WATCHDOG_USEC").is_some(),
            plan,
        })
    }

    fn run(mut self) -> Result<(), SuperviseError> {
        let mut events = Events::with_capacity(256);
        self.inputs.push_back(Input::Begin);
        self.handle_inputs(boot_ns());
        while self.outcome.is_none() {
            let timeout = self.rules.next_deadline().map(|due_ns| {
                // Rounded up, so that the turn is not over before the deadline.
                Duration::from_millis(due_ns.saturating_sub(boot_ns()).div_ceil(1_000_000))
            });
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result.map_err(SuperviseError::system("wait for events"))?,
            }
            let now_ns = boot_ns();
            // What was said comes before what is late: after a pause of this process every answer is there already.
            for event in &events {
                self.take_event(now_ns, event.token());
            }
            if self.rules.next_deadline().is_some_and(|due_ns| due_ns <= now_ns) {
                self.inputs.push_back(Input::Tick);
            }
            self.handle_inputs(now_ns);
            self.flush();
            if let Some(operator) = &mut self.operator {
                operator.close_idle(now_ns);
            }
        }
        match self.outcome.take() {
            None | Some(Outcome::Stopped) => Ok(()),
            Some(Outcome::StartFailed { place, failure }) => Err(SuperviseError::StartFailed { place, failure }),
            Some(Outcome::SlotFailed { place, failure }) => Err(SuperviseError::SlotFailed { place, failure }),
            Some(Outcome::StoppedBadly { place, failure }) => Err(SuperviseError::StoppedBadly { place, failure }),
        }
    }

    fn take_event(&mut self, now_ns: u64, token: Token) {
        match token {
            TOKEN_STOP => {
                if Signals::take(&mut self.signals.stop) {
                    self.inputs.push_back(Input::Stop);
                }
            }
            TOKEN_DRAIN => {
                if Signals::take(&mut self.signals.drain) {
                    self.inputs.push_back(Input::Drain);
                }
            }
            TOKEN_STATUS => {
                if let Some(operator) = &mut self.operator {
                    operator.accept(now_ns, &self.poll);
                }
            }
            TOKEN_RELOAD => {
                if self.signals.reload.as_mut().is_some_and(Signals::take) {
                    self.reload();
                }
            }
            Token(token) if token >= TOKEN_PROCESSES => self.look_at_process((token - TOKEN_PROCESSES) / 2),
            Token(token) => self.serve_operator(now_ns, token - TOKEN_OPERATORS),
        }
    }

    /// Tells the processes of a role that their options have changed, if they have; also those to come.
    fn reload(&mut self) {
        let Some((role, options)) = (self.plan.on_reload)() else { return };
        if options.to_string().len() > OPTIONS_BYTES_MAX {
            tracing::error!(%role, "its new options are longer than {OPTIONS_BYTES_MAX} bytes: it keeps the old ones");
            return;
        }
        let message = crate::control::Envelope::Options(options.clone());
        for process in self.processes.iter_mut().flatten().filter(|process| process.instance.role == role) {
            process.tell(&message, None);
        }
        if let Some(of_role) = self.plan.roles.get_mut(&role) {
            of_role.options = options;
        }
    }

    /// Takes what a process has said, and then its end.
    fn look_at_process(&mut self, index: usize) {
        let Some(process) = &mut self.processes[index] else { return };
        let by = process.instance;
        if let Err(error) = process.receive(|report| self.inputs.push_back(Input::Said { by, report })) {
            tracing::warn!(role = %by.role, slot = by.slot, generation = by.generation, "killed: {error}");
            process.signal(Signal::KILL);
        }
        if let Some(how) = process.ending() {
            let process = self.processes[index].take().expect("it was there");
            process.deregister(&self.poll);
            self.account_for_reaped(by);
            self.inputs.push_back(Input::Ended { who: by, how });
        }
    }

    fn account_for_reaped(&self, who: Instance) {
        let (user, system) = cpu_us(UsageWho::RUSAGE_CHILDREN);
        self.pages.server().set_reaped_us(user, system);
        (self.plan.on_ended)(who.role, &self.pages.figures(who.role, who.slot));
    }

    fn handle_inputs(&mut self, now_ns: u64) {
        let mut outputs = Vec::new();
        while let Some(input) = self.inputs.pop_front() {
            self.rules.handle(now_ns, input, &mut outputs);
            self.carry_out(&mut outputs);
        }
    }

    fn carry_out(&mut self, outputs: &mut Vec<Output>) {
        for output in outputs.drain(..) {
            match output {
                Output::Spawn { place, drained } => {
                    let input = match self.spawn(place, drained) {
                        Ok(generation) => Input::Spawned { place, generation },
                        Err(reason) => Input::NotSpawned { place, reason },
                    };
                    self.inputs.push_back(input);
                }
                Output::Tell { who, what } => {
                    if let Some(process) = self.process(who) {
                        process.tell(&crate::control::Envelope::Say(what), None);
                    }
                }
                Output::Link { owner, frontend, number } => self.link(owner, frontend, number),
                Output::Kill { who } => {
                    if let Some(process) = self.process(who) {
                        process.signal(Signal::KILL);
                    }
                }
                Output::RaiseIdCount { at_least } => self.pages.server().raise_id_count(at_least),
                Output::SetDraining => self.pages.server().set_draining(),
                Output::Serving => {
                    tracing::info!(processes = self.plan.topology.len(), "serving");
                    (self.plan.on_serving)();
                    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
                }
                Output::CloseListeners => {
                    self.plan.roles.values_mut().for_each(|role| role.listeners.clear());
                    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
                }
                Output::FeedWatchdog => {
                    if self.feeds_watchdog {
                        let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
                    }
                }
                Output::Report(report) => log(&report),
                Output::Finish(outcome) => self.outcome = Some(outcome),
            }
        }
    }

    /// Starts the process of a slot and returns its generation.
    fn spawn(&mut self, place: Slot, drained: bool) -> Result<u32, String> {
        let index = self.index(place);
        assert!(self.processes[index].is_none(), "{place} still has a process");
        let generation = (self.plan.generation)(place.role, place.slot)
            .map_err(|error| format!("failed to raise the generation: {error}"))?;
        let last = self.rules.slots().nth(index).map_or(0, |slot| slot.generation);
        if generation <= last {
            return Err(format!("its generation {generation} does not follow {last}"));
        }
        let instance = Instance { role: place.role, slot: place.slot, generation };
        let of_role = &self.plan.roles[&place.role];
        let start = crate::control::StartEnvelope {
            instance,
            drained,
            topology: self.plan.topology,
            slot_lock: place
                .role
                .has_jobs()
                .then(|| self.plan.slot_locks.get(usize::from(place.slot)).cloned())
                .flatten(),
            options: of_role.options.clone(),
        };
        let mut descriptors = vec![self.lifeline.as_fd(), self.pages.as_fd()];
        descriptors.extend(of_role.listeners.iter().map(AsFd::as_fd));
        let process = Process::start(&self.plan.program, &of_role.arguments, start, &descriptors)
            .and_then(|process| process.register(&self.poll, TOKEN_PROCESSES + 2 * index))
            .map_err(|error| error.to_string())?;
        self.processes[index] = Some(process);
        Ok(generation)
    }

    fn link(&mut self, owner: Instance, frontend: Instance, number: u64) {
        let (owner_end, frontend_end) = match std::os::unix::net::UnixStream::pair() {
            Ok(pair) => pair,
            Err(error) => {
                // Without the link the frontend cannot serve; started again it gets another one.
                tracing::error!(%owner, %frontend, "failed to make a link: {error}");
                if let Some(process) = self.process(frontend) {
                    process.signal(Signal::KILL);
                }
                return;
            }
        };
        for (who, peer, end) in [(owner, frontend, owner_end), (frontend, owner, frontend_end)] {
            if let Some(process) = self.process(who) {
                process.tell(&crate::control::Envelope::Link { peer, number }, Some(end.into()));
            }
        }
    }

    /// Sends what did not fit.
    fn flush(&mut self) {
        self.processes.iter_mut().flatten().for_each(Process::flush);
    }

    fn process(&mut self, who: Instance) -> Option<&mut Process> {
        let index = self.index(who.place());
        self.processes[index].as_mut().filter(|process| process.instance == who)
    }

    fn index(&self, place: Slot) -> usize {
        self.plan.topology.index(place).expect("a slot of the topology")
    }

    fn serve_operator(&mut self, now_ns: u64, connection: usize) {
        let Some(operator) = &mut self.operator else { return };
        let Some(request) = operator.read(connection) else { return };
        let answer = match request {
            operator::Request::Status => serde_json::to_string(&self.status(now_ns)).expect("it has no foreign keys"),
            operator::Request::RestartSlot(place) => {
                let mut outputs = Vec::new();
                let result = self.rules.restart_slot(place, &mut outputs);
                self.carry_out(&mut outputs);
                match result {
                    Ok(()) => "ok\n".into(),
                    Err(refusal) => format!("refused: {refusal}\n"),
                }
            }
            operator::Request::Unknown => "refused: the requests are `status` and `restart-slot ROLE SLOT`\n".into(),
        };
        if let Some(operator) = &mut self.operator {
            operator.answer(connection, answer);
        }
    }

    /// What its caller wants shown of a slot's page.
    fn figures(&self, place: Slot) -> BTreeMap<String, u64> {
        let page = self.pages.figures(place.role, place.slot);
        let of_role = self.plan.figures.iter().filter(|(role, ..)| *role == place.role);
        of_role.map(|(_, name, at)| ((*name).to_owned(), page.counter(*at).load(Ordering::Relaxed))).collect()
    }

    fn status(&self, now_ns: u64) -> Status {
        let (cpu_user_us, cpu_system_us) = cpu_us(UsageWho::RUSAGE_SELF);
        let (ended_cpu_user_us, ended_cpu_system_us) = self.pages.server().reaped_us();
        Status {
            about: self.plan.about.clone(),
            cpu_user_us,
            cpu_system_us,
            ended_cpu_user_us,
            ended_cpu_system_us,
            pid: std::process::id(),
            uptime_ms: now_ns.saturating_sub(self.started_ns) / 1_000_000,
            serving: self.rules.is_serving(),
            stopping: self.rules.is_stopping(),
            draining: self.rules.is_draining(),
            drained: self.rules.is_drained(),
            processes: self
                .rules
                .slots()
                .zip(&self.processes)
                .map(|(slot, process)| ProcessStatus {
                    role: slot.place.role,
                    slot: slot.place.slot,
                    generation: slot.generation,
                    condition: slot.condition,
                    pid: process.as_ref().map(|process| process.pid.as_raw_nonzero().get().unsigned_abs()),
                    restarts: slot.restarts,
                    failure: slot.failure,
                    log_failures: slot.log_failures,
                    figures: self.figures(slot.place),
                    unanswered_pings: slot.unanswered,
                    in_sync_ms: slot.in_sync_ms,
                    control_backlog: process.as_ref().map_or(0, Process::backlog),
                })
                .collect(),
        }
    }
}

/// Processor time so far, user and system, in microseconds.
fn cpu_us(whose: UsageWho) -> (u64, u64) {
    let microseconds = |time: nix::sys::time::TimeVal| {
        u64::try_from(time.tv_sec()).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_usec()).unwrap_or(0)
    };
    // It fails for an unknown `whose` only.
    nix::sys::resource::getrusage(whose)
        .map_or((0, 0), |usage| (microseconds(usage.user_time()), microseconds(usage.system_time())))
}

/// A server that ends by an error of this process leaves nothing behind either.
impl Drop for Shell {
    fn drop(&mut self) {
        self.processes.iter().flatten().for_each(|process| process.signal(Signal::KILL));
        self.processes.iter().flatten().for_each(Process::wait_for_end);
    }
}

/// The reaction to a facility that this mode is built on: said to be missing if the system says so.
fn missing(facility: &'static str) -> impl FnOnce(io::Error) -> SuperviseError {
    move |source| match source.kind() {
        io::ErrorKind::Unsupported | io::ErrorKind::NotFound => SuperviseError::Unsupported { facility },
        _ => SuperviseError::Facility { facility, source },
    }
}

/// Nanoseconds since boot, suspended time included.
fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

fn log(report: &Report) {
    match report {
        Report::Started(who) => {
            tracing::debug!(role = %who.role, slot = who.slot, generation = who.generation, "started");
        }
        Report::Ready { who, jobs } => {
            tracing::info!(role = %who.role, slot = who.slot, generation = who.generation, jobs, "ready");
        }
        Report::Crashed { place, failure } => {
            tracing::error!(role = %place.role, slot = place.slot, "its process {failure}");
        }
        Report::StoppedBadly { place, failure } => {
            tracing::error!(role = %place.role, slot = place.slot, "did not stop in order: {failure}");
        }
        Report::Restarting { place, delay_ms } => {
            tracing::info!(role = %place.role, slot = place.slot, delay_ms, "restarting");
        }
        Report::SlotFailed { place, failure } => {
            tracing::error!(role = %place.role, slot = place.slot, "has failed and is not restarted: {failure}");
        }
        Report::Killed { who, why } => {
            tracing::warn!(role = %who.role, slot = who.slot, generation = who.generation, "killed: {why}");
        }
        Report::LinkBroken { owner, frontend, delay_ms } => {
            // The end of a process breaks its links a moment before it is known.
            tracing::warn!(%owner, %frontend, delay_ms, "their link is broken and will be replaced if both live");
        }
        Report::LongSync { who, seconds } => {
            tracing::warn!(role = %who.role, slot = who.slot, generation = who.generation, seconds, "in one sync of the log");
        }
        Report::LongStart { who, seconds } => {
            tracing::warn!(role = %who.role, slot = who.slot, generation = who.generation, seconds, "not ready yet");
        }
        Report::Draining => tracing::info!("draining"),
        Report::Drained => tracing::info!("drained: no process accepts a new job"),
        Report::Stopping => tracing::info!("stopping"),
    }
}
