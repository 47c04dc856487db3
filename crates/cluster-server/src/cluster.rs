//! The handle by which the process is a member, and the task behind it: the shell of [`Coordinator`].
//!
//! Owns: the order of start and stop, the calls under way, what is told to whom.
//! Never: decides; the coordinator and the agent do.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cluster_core::scripts::reap::{Kept, ReapSteps};
use cluster_core::scripts::request::Request;
use cluster_core::{
    Boot, Call, CallAnswer, CallContext, Change, ConnectError, Coordinator, CoordinatorSettings, FenceReason, Input,
    LeaseAgent, LeaseInput, LeaseOutput, LeaseSettings, MemberId, Mode, Notice, Output, Process, Refusal, Times, View,
    leadership, scripts,
};
use database::notices::Event;
use database::postgres::{Connection, Connector};
use database::{Database, Kind, Limits};
use database_core::{Class, DbError, Script};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::clock::{self, Timer};
use crate::executions::Executions;
use crate::figures::{Figures, add, count};
use crate::hooks::Hooks;
use crate::leadership::{LeadershipChange, Listeners};
use crate::lease_thread::{INPUTS_MAX, LeaseRoute, LeaseThread, SchemaCheck, dead_neighbours, server_of};
use crate::retention::Retention;
use crate::standing::Standing;
use crate::tickets::Turns;

/// What the lease thread may say before the daemon takes it: more than it says in a minute.
const EVENTS_MAX: usize = 1_024;
/// Questions to the task that may wait for it.
const QUESTIONS_MAX: usize = 256;
/// How long the start waits until notices are heard (C1).
const LISTEN_WAIT: Duration = Duration::from_secs(5);
/// How long listeners of leadership may take to end a leader's work at the stop; then it is released all the same, as its
/// lease would end.
const LEADER_STOP_MAX: Duration = Duration::from_secs(10);

/// What a member is made of.
#[derive(Clone)]
pub struct Settings {
    /// Lengths of its life; checked.
    pub times: Times,
    /// This machine's name.
    pub host: String,
    /// The program's version.
    pub program: String,
    /// The newest schema number that this program knows.
    pub schema_version: u32,
    /// Folder for the files that tell neighbours who lives.
    pub folder: PathBuf,
    /// PostgreSQL: connections past any pooler, for lease and requests.
    pub direct: Option<Connector>,
    /// Looks whether the schema fits this program, on a new connection. The error says which side is older.
    pub schema: SchemaCheck,
    /// How parts above give up rows of dead owners.
    pub steps: ReapSteps,
    /// Random bits from the system: identities are drawn from them.
    pub seed: [u64; 4],
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Settings").field("times", &self.times).field("host", &self.host).finish_non_exhaustive()
    }
}

/// Who is there, and since when that is known.
pub type Seen = Arc<View>;

/// What keeps the member from being registered, for people.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trouble {
    /// The last failure of lease or beat that has not been followed by a success.
    pub message: Option<String>,
}

/// This process as a member. Clones are the same.
#[derive(Debug, Clone)]
pub struct Cluster(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    database: Database,
    times: Times,
    standing: Standing,
    executions: Executions,
    listeners: Listeners,
    periodic: Hooks<()>,
    requests: Hooks<Request>,
    caches: Hooks<Dropped>,
    figures: Figures,
    retention: Retention,
    seen: watch::Receiver<Seen>,
    trouble: watch::Receiver<Trouble>,
    started: watch::Receiver<bool>,
    questions: mpsc::Sender<Question>,
    /// Who waits for a ticket or an answer looks again when it changes.
    stirred: watch::Receiver<u64>,
    turns: Turns,
}

/// What must be dropped from caches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dropped {
    /// These names.
    Names(Arc<Vec<String>>),
    /// Everything: changes may have been missed.
    All,
}

impl Dropped {
    /// Whether what is cached under `name` must go.
    #[must_use]
    pub fn concerns(&self, name: &str) -> bool {
        match self {
            Self::Names(names) => names.iter().any(|other| other == name),
            Self::All => true,
        }
    }
}

/// What the task is asked.
#[derive(Debug)]
enum Question {
    Tell(Input),
    Stop(oneshot::Sender<()>),
    SetLease(Duration, oneshot::Sender<Result<(), Refusal>>),
    RefuseSchema(String),
}

impl Cluster {
    /// Makes the process a member: registers, listens, reaps once, contests, beats. Returns at once; what cannot be done yet
    /// is tried again for as long as the process lives, see [`Cluster::started`] and [`Cluster::trouble`].
    ///
    /// # Errors
    ///
    /// If the process lacks a thread or a timer.
    pub async fn start(database: Database, settings: Settings) -> io::Result<Self> {
        let mode = match database.kind() {
            Kind::Postgres => Mode::Shared,
            Kind::Sqlite => Mode::Sole,
        };
        let known_dead = dead_before(&database, &settings).await;
        let process = Process {
            host: settings.host.clone(),
            boot_id: boot_id(),
            pid: std::process::id(),
            program: settings.program.clone(),
            schema_version: settings.schema_version,
        };
        let agent = LeaseAgent::new(LeaseSettings { times: settings.times, mode, process }, settings.seed);
        let coordinator = Coordinator::new(
            CoordinatorSettings { times: settings.times, mode, known_dead, listen_wait: LISTEN_WAIT },
            settings.seed.map(|bits| bits.rotate_left(17)),
        );
        let route = match &settings.direct {
            Some(connector) => LeaseRoute::Direct(connector.clone()),
            None => LeaseRoute::File(database.clone()),
        };
        let (lease, inputs) = mpsc::channel(INPUTS_MAX);
        let (events, heard) = mpsc::channel(EVENTS_MAX);
        let (questions, asked) = mpsc::channel(QUESTIONS_MAX);
        let (seen_to, seen) = watch::channel(Seen::default());
        let (trouble_to, trouble) = watch::channel(Trouble::default());
        let (started_to, started) = watch::channel(false);
        let (stir, stirred) = watch::channel(0);
        let cluster = Self(Arc::new(Inner {
            database: database.clone(),
            times: settings.times,
            standing: Standing::default(),
            executions: Executions::default(),
            listeners: Listeners::default(),
            periodic: Hooks::new("periodic work"),
            requests: Hooks::new("request"),
            caches: Hooks::new("cache"),
            figures: Figures::default(),
            retention: Retention::default(),
            seen,
            trouble,
            started,
            questions,
            stirred,
            turns: Turns::default(),
        }));
        LeaseThread {
            agent,
            times: settings.times,
            route,
            schema: settings.schema,
            standing: cluster.0.standing.clone(),
            executions: cluster.0.executions.clone(),
            folder: settings.folder,
            inputs,
            own: lease.downgrade(),
            events,
        }
        .start()?;
        let task = Task {
            coordinator,
            cluster: cluster.clone(),
            context: CallContext {
                lease: settings.times.lease,
                steps: settings.steps,
                kept: Kept::usual(settings.times.beat, mode == Mode::Shared),
            },
            drain: Arc::new(Mutex::new(None)),
            direct: settings.direct,
            lease,
            seen: seen_to,
            trouble: trouble_to,
            started: started_to,
            stir,
            calls: JoinSet::new(),
            set_lease: None,
            lease_trouble: None,
            beats: Beats { good_at: clock::boot(), failure: None, is_stuck: false },
        };
        let timer = Timer::new()?;
        tokio::spawn(task.run(timer, heard, asked));
        Ok(cluster)
    }

    /// Where this process stands: its identity, and what it leads.
    #[must_use]
    pub fn standing(&self) -> &Standing {
        &self.0.standing
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.0.database
    }

    /// The lengths of its life.
    #[must_use]
    pub fn times(&self) -> Times {
        self.0.times
    }

    /// Limits for a transaction behind a guard: what it may hold up is bounded by a quarter of a lease.
    #[must_use]
    pub fn guarded_limits(&self) -> Limits {
        let bound = self.0.times.guarded_limit();
        let usual = Limits::default();
        Limits {
            statement: usual.statement.min(bound),
            lock: usual.lock.min(bound),
            idle: usual.idle.min(bound),
            transaction: usual.transaction.min(bound),
        }
    }

    /// Runs a transaction that writes what this member owns, or a terminal state. Its script must begin with the guard
    /// ([`scripts::member_guard`]).
    ///
    /// # Errors
    ///
    /// As [`Database::run_once`]; [`Class::Unavailable`] without a valid identity.
    pub async fn write<T: Send + 'static>(&self, make: impl FnOnce(MemberId) -> Script<T>) -> Result<T, DbError> {
        let me = self.0.standing.member().map_err(|error| DbError::new(Class::Unavailable, error.to_string()))?;
        self.0.database.run_with(self.guarded_limits(), make(me)).await
    }

    /// Whether the start is over: registered, reaped, the first beat done. Stays true.
    #[must_use]
    pub fn has_started(&self) -> bool {
        *self.0.started.borrow()
    }

    /// Waits for the end of the start.
    pub async fn started(&self) {
        let mut started = self.0.started.clone();
        let _ = started.wait_for(|started| *started).await;
    }

    /// Who was there at the last beat, and when that was.
    #[must_use]
    pub fn seen(&self) -> Seen {
        Arc::clone(&self.0.seen.borrow())
    }

    /// Who is there, asked just now; the last known view if the database does not answer.
    pub async fn seen_fresh(&self) -> Seen {
        let mut seen = self.0.seen.clone();
        seen.mark_unchanged();
        if self.tell(Input::Refresh).await {
            let _ = tokio::time::timeout(self.0.times.statement_timeout * 2, seen.changed()).await;
        }
        Arc::clone(&seen.borrow())
    }

    /// The failure that has not been followed by a success, if there is one.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.0.trouble.borrow().message.clone()
    }

    /// Counters since the start of the process: name, meaning, value.
    #[must_use]
    pub fn figures(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.0.figures.all()
    }

    /// What has an age limit.
    #[must_use]
    pub fn retention(&self) -> &Retention {
        &self.0.retention
    }

    /// Calls `work` at each beat; the same name replaces.
    pub fn on_beat<F, Fut>(&self, name: &str, work: F)
    where
        F: Fn(()) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.0.periodic.add(name, work);
    }

    /// Tells `listener` every change of leadership, in order; the same name replaces.
    pub fn on_leadership<F, Fut>(&self, name: &str, listener: F)
    where
        F: FnMut(LeadershipChange) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.0.listeners.add(name, listener);
    }

    /// Has `stop` end, for certain and without politeness, what runs for an identity that is over (C5). It is called on the
    /// lease's thread; the next identity does no work before it has returned.
    pub fn on_fence<F, Fut>(&self, name: &str, stop: F)
    where
        F: Fn(MemberId) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.0.executions.add(name, stop);
    }

    /// Has `carry_out` carry out requests of this kind. Its transaction begins with [`scripts::request::answer`], which
    /// decides whether it is the one that does.
    pub fn on_request<F, Fut>(&self, kind: &str, carry_out: F)
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.0.requests.add(kind, carry_out);
    }

    /// Tells `drop_entries` what must be dropped from caches.
    pub fn on_cache_drop<F, Fut>(&self, name: &str, drop_entries: F)
    where
        F: Fn(Dropped) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.0.caches.add(name, drop_entries);
    }

    /// Says that the transaction of a change has committed, whose caches must be dropped: here at once, elsewhere at the
    /// notice or the next beat.
    pub fn cache_changed(&self, name: &str) {
        self.0.caches.call(&Dropped::Names(Arc::new(vec![name.to_owned()])));
        self.send(Notice::cache());
    }

    /// The statement that a transaction writes whose change must be dropped from caches; `None` where this process has the
    /// only ones.
    #[must_use]
    pub fn cache_statement(&self) -> Option<&'static database_core::Sql> {
        (self.0.database.kind() == Kind::Postgres).then_some(&cluster_core::statements::cache::CHANGE)
    }

    /// Sends a hint, after the commit of what it is about.
    pub fn send(&self, notice: Notice) {
        self.0.database.notices().send(notice.channel, notice.payload);
    }

    /// Whether this process can do the work of a leadership, and so contests it (C10). At first it can do that of
    /// [`cluster_core::leadership::SCHEDULER`] alone.
    pub async fn may_lead(&self, name: &'static str, is_able: bool) {
        self.tell(Input::MayLead { name, is_able }).await;
    }

    /// Says that the schema does not fit this program any more: nothing is renewed until it does (C14).
    pub async fn refuse_schema(&self, why: String) {
        let _ = self.0.questions.send(Question::RefuseSchema(why)).await;
    }

    /// Changes the length of all leases, here and in the database, while no other member lives.
    ///
    /// # Errors
    ///
    /// Why not.
    pub async fn set_lease(&self, lease: Duration) -> Result<(), Refusal> {
        let (answer, answered) = oneshot::channel();
        let gone = || Refusal::Failed("the process is stopping".into());
        self.0.questions.send(Question::SetLease(lease, answer)).await.map_err(|_| gone())?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Stops: beats and renewal, then leaderships, then the registration, then the others are told. A second stop waits for the
    /// first.
    pub async fn stop(&self) {
        let (answer, answered) = oneshot::channel();
        if self.0.questions.send(Question::Stop(answer)).await.is_ok() {
            let _ = answered.await;
        }
    }

    /// Changes whenever a ticket may have moved or a request may have been answered: at each notice and each beat.
    pub(crate) fn stirred(&self) -> watch::Receiver<u64> {
        self.0.stirred.clone()
    }

    pub(crate) fn turns(&self) -> &Turns {
        &self.0.turns
    }

    async fn tell(&self, input: Input) -> bool {
        self.0.questions.send(Question::Tell(input)).await.is_ok()
    }
}

/// Identities of this machine whose file nobody holds. Without an answer of the database none: they expire. The only process
/// of an SQLite file knows by itself that all others are dead.
async fn dead_before(database: &Database, settings: &Settings) -> Vec<MemberId> {
    if database.kind() == Kind::Sqlite {
        return Vec::new();
    }
    let Ok(seen) = database.read(scripts::view::view(MemberId(0), 0)).await else { return Vec::new() };
    let here = seen.members.iter().filter(|member| member.host == settings.host).map(|member| member.id);
    dead_neighbours(&settings.folder, here)
}

/// The machine's boot, or nothing where it has no name.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

struct Task {
    coordinator: Coordinator,
    cluster: Cluster,
    context: CallContext,
    /// The connection for requests; made when it is needed.
    drain: Arc<Mutex<Option<Connection>>>,
    direct: Option<Connector>,
    lease: mpsc::Sender<LeaseInput>,
    seen: watch::Sender<Seen>,
    trouble: watch::Sender<Trouble>,
    started: watch::Sender<bool>,
    stir: watch::Sender<u64>,
    calls: JoinSet<(u64, Result<CallAnswer, DbError>)>,
    set_lease: Option<oneshot::Sender<Result<(), Refusal>>>,
    lease_trouble: Option<String>,
    beats: Beats,
}

/// How the beats go.
struct Beats {
    /// When one ended without a failure, or an identity was registered.
    good_at: Boot,
    /// What failed in the present one, or in the one before.
    failure: Option<String>,
    /// It has been said that they fail for longer than a lease.
    is_stuck: bool,
}

impl Task {
    async fn run(
        mut self,
        mut timer: Timer,
        mut heard: mpsc::Receiver<LeaseOutput>,
        mut asked: mpsc::Receiver<Question>,
    ) {
        let _ = self.lease.send(LeaseInput::Start).await;
        let mut notices = self.cluster.0.database.notices().subscribe();
        let mut servers = self.direct.as_ref().map(Connector::identity_changes);
        let (inputs, mut own) = mpsc::channel(QUESTIONS_MAX);
        let _ = inputs.send(Input::MayLead { name: cluster_core::leadership::SCHEDULER, is_able: true }).await;
        tokio::spawn(tell_of_listening(self.cluster.0.database.clone(), inputs.clone()));
        let mut out = Vec::new();
        // It is assumed that this program can do each leadership's work, until it is said that it cannot.
        for name in leadership::ALL {
            self.coordinator.handle(clock::boot(), Input::MayLead { name, is_able: true }, &mut out);
        }
        let mut stops: Vec<oneshot::Sender<()>> = Vec::new();
        loop {
            let deadline = self.coordinator.next_deadline();
            let input = tokio::select! {
                Some(event) = heard.recv() => match self.lease_said(event) {
                    Some(input) => input,
                    None => continue,
                },
                Some(question) = asked.recv() => match question {
                    Question::Tell(input) => input,
                    Question::Stop(answer) => {
                        stops.push(answer);
                        if stops.len() > 1 {
                            continue;
                        }
                        Input::Stop
                    }
                    Question::RefuseSchema(why) => {
                        let _ = self.lease.send(LeaseInput::SchemaRefused(why)).await;
                        continue;
                    }
                    Question::SetLease(lease, answer) => {
                        self.set_lease = Some(answer);
                        let _ = self.lease.send(LeaseInput::SetLease(lease)).await;
                        continue;
                    }
                },
                Some(done) = self.calls.join_next() => match done {
                    Ok((call, result)) => Input::Done { call, result },
                    Err(error) => {
                        // The coordinator's own limit of time ends the call.
                        tracing::error!("a call failed: {error}");
                        continue;
                    }
                },
                Some(input) = own.recv() => input,
                Some(event) = notices.next() => match self.noticed(event) {
                    Some(input) => input,
                    None => continue,
                },
                Ok(()) = async { servers.as_mut().expect("checked by the condition").changed().await }, if servers.is_some() => {
                    let server = servers.as_mut().and_then(|servers| servers.borrow_and_update().clone());
                    if let Some(server) = server {
                        let _ = self.lease.send(LeaseInput::ServerSeen(server_of(&server))).await;
                    }
                    continue;
                }
                result = timer.until(deadline) => {
                    if let Err(error) = result {
                        tracing::error!("the timer of beats failed: {error}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    Input::Wake
                }
            };
            let is_stop = matches!(input, Input::Stop);
            self.coordinator.handle(clock::boot(), input, &mut out);
            let mut has_stopped = false;
            for output in out.drain(..) {
                has_stopped |= matches!(output, Output::Stopped);
                self.carry_out(output, &inputs);
            }
            if is_stop {
                let (listeners, inputs) = (self.cluster.0.listeners.clone(), inputs.clone());
                tokio::spawn(async move {
                    if tokio::time::timeout(LEADER_STOP_MAX, listeners.settled()).await.is_err() {
                        tracing::error!("leader's work did not end within {LEADER_STOP_MAX:?}");
                    }
                    let _ = inputs.send(Input::LeaderWorkStopped).await;
                });
            }
            if has_stopped {
                self.cluster.0.standing.stopped();
                for answer in stops {
                    let _ = answer.send(());
                }
                return;
            }
        }
    }

    /// What the lease thread said, as the coordinator's input.
    fn lease_said(&mut self, event: LeaseOutput) -> Option<Input> {
        let figures = &self.cluster.0.figures;
        match event {
            LeaseOutput::Registered { id, no, server, retired, lease } => {
                tracing::info!("registered as member {no} ({id}) with a lease of {lease:?}");
                self.lease_trouble = None;
                self.beats.good_at = clock::boot();
                self.tell_trouble();
                return Some(Input::Registered { id, no, server, retired });
            }
            LeaseOutput::Fenced { retired, next, reason, clocks_jumped } => {
                count(match reason {
                    FenceReason::LateByOwnClock => &figures.fences_late,
                    FenceReason::ExpiredByDatabase => &figures.fences_expired,
                    FenceReason::RegistrationMissing => &figures.fences_missing,
                    FenceReason::DatabaseChanged => &figures.fences_database,
                });
                let jumped = if clocks_jumped { "; clocks had jumped" } else { "" };
                tracing::error!("member {retired} is fenced: {reason}{jumped}; the next identity is {next}");
                return Some(Input::Fenced);
            }
            LeaseOutput::Abandoned { id, next } => {
                count(&figures.abandoned);
                tracing::error!("member {id} could not be registered within a lease and is given up for {next}");
            }
            LeaseOutput::Failed { what, error, .. } => {
                count(&figures.lease_failures);
                tracing::warn!("{what} failed, and is tried again: {error}");
                self.lease_failed(&error_text(&error));
            }
            LeaseOutput::Refused { refusal, .. } => {
                tracing::error!("not registered: {refusal}");
                self.lease_failed(&refusal.to_string());
            }
            LeaseOutput::ClockWarning { clock, by_ms } => {
                count(&figures.clock_jumps);
                tracing::warn!("the {clock:?} clock moved by {by_ms} ms between two renewals; the database's decides");
            }
            LeaseOutput::StopLate { retired } => {
                count(&figures.late_stops);
                tracing::error!(
                    "what runs for member {retired} has not stopped within the margin; nothing starts before it has"
                );
            }
            LeaseOutput::LeaseSet { lease, result } => {
                let is_set = result.is_ok();
                if let Some(answer) = self.set_lease.take() {
                    let _ = answer.send(result);
                }
                if is_set {
                    self.context.lease = lease;
                    return Some(Input::LeaseChanged(lease));
                }
            }
            LeaseOutput::Valid { until } => {
                if self.lease_trouble.take().is_some() {
                    self.tell_trouble();
                }
                return Some(Input::Valid { until });
            }
            LeaseOutput::Connect { .. }
            | LeaseOutput::Call { .. }
            | LeaseOutput::DropConnection
            | LeaseOutput::StopExecutions { .. }
            | LeaseOutput::Stopped => {}
        }
        None
    }

    fn noticed(&self, event: Event) -> Option<Input> {
        match event {
            Event::Notice(notice) => {
                let channel = cluster_core::channel::ALL.iter().find(|channel| **channel == notice.channel)?;
                self.stir();
                Some(Input::Notice(Notice { channel, payload: notice.payload }))
            }
            // Some were missed, or may have been: all is polled.
            Event::Lagged | Event::Reconnected => {
                self.stir();
                Some(Input::Listening)
            }
        }
    }

    fn carry_out(&mut self, output: Output, inputs: &mpsc::Sender<Input>) {
        let figures = &self.cluster.0.figures;
        match output {
            Output::Call { call, what } => self.call(call, what),
            Output::Started { id, no, others } => {
                let (database, times) = (self.cluster.0.database.kind(), self.cluster.0.times);
                tracing::info!(
                    "member {no} ({id}) on {database:?}: lease {:?}, beat {:?}, {others} others",
                    self.context.lease,
                    times.beat
                );
                self.started.send_replace(true);
            }
            Output::Leadership { leadership, change } => {
                let is_leading = matches!(change, Change::Gained | Change::Resumed);
                if change == Change::Gained {
                    count(&figures.leaderships_gained);
                }
                tracing::info!("leadership {} of epoch {}: {change:?}", leadership.name, leadership.epoch);
                self.cluster.0.standing.lead(leadership.name, is_leading.then_some(leadership.epoch));
                self.cluster.0.listeners.tell(LeadershipChange { leadership, change });
            }
            Output::Requests(requests) => {
                add(&figures.requests_taken, requests.len() as u64);
                for request in requests {
                    self.request(request, inputs.clone());
                }
            }
            Output::DropCaches(names) => self.cluster.0.caches.call(&Dropped::Names(Arc::new(names))),
            Output::DropAllCaches => {
                count(&figures.cache_resets);
                self.cluster.0.caches.call(&Dropped::All);
            }
            Output::RunPeriodic => self.cluster.0.periodic.call(&()),
            Output::BeatDone => {
                count(&figures.beats);
                self.stir();
                let _ = self.lease.try_send(LeaseInput::Beat);
                self.beat_ended();
            }
            Output::Alive(view) => drop(self.seen.send_replace(view)),
            Output::Vanished(ids) => tracing::info!("members are gone: {ids:?}"),
            Output::Send(notice) => self.cluster.send(notice),
            Output::Reaped(reaped) => {
                add(&figures.reaped_members, reaped.dead.len() as u64);
                add(&figures.reaped_rows, reaped.rows);
                if !reaped.dead.is_empty() || reaped.rows > 0 {
                    tracing::info!("reaped members {:?}, gave up {} rows", reaped.dead, reaped.rows);
                }
            }
            Output::Tidied(tidied) => tracing::info!("tidied up after a fence: {} requests go on", tidied.requests),
            Output::Failed { what, error } => {
                count(&figures.call_failures);
                tracing::warn!("{what} failed: {error}");
                self.beats.failure = Some(format!("{what} failed: {error}"));
            }
            Output::StopRenewal => {
                let lease = self.lease.clone();
                tokio::spawn(async move { lease.send(LeaseInput::Stop).await });
            }
            Output::Stopped => {}
        }
    }

    fn call(&mut self, call: u64, what: Call) {
        let times = self.cluster.0.times;
        let limit = what.limit(&times);
        let guarded = self.cluster.guarded_limits();
        // Where they are the usual ones, as with the default times, nothing has to be set before each statement.
        let limits = Limits {
            statement: guarded.statement.min(times.statement_timeout),
            lock: guarded.lock.min(times.lock_timeout()),
            ..guarded
        };
        let script = what.script(&self.context);
        let database = self.cluster.0.database.clone();
        let route =
            what.is_drain().then(|| self.direct.clone()).flatten().map(|direct| (direct, Arc::clone(&self.drain)));
        self.calls.spawn(async move {
            let run = async {
                match route {
                    Some((direct, drain)) => run_on(&direct, &drain, limits, script).await,
                    None => database.run_with(limits, script).await,
                }
            };
            let timed_out = || DbError::new(Class::Unknown, format!("no answer within {limit:?}"));
            (call, tokio::time::timeout(limit, run).await.unwrap_or_else(|_| Err(timed_out())))
        });
    }

    fn request(&self, request: Request, inputs: mpsc::Sender<Input>) {
        let cluster = self.cluster.clone();
        tokio::spawn(async move {
            let (id, kind, asker) = (request.id, request.kind.clone(), request.asker);
            if !cluster.0.requests.call_one(&kind, request).await {
                // Another version of the program may know it; this one says so rather than let the asker wait.
                let answer = cluster.write(|me| unsupported(id, me)).await;
                tracing::warn!("request {id} is of a kind this program does not know, {kind:?}: {answer:?}");
            }
            // Whoever asked looks for the answer.
            cluster.send(Notice::request(asker));
            let _ = inputs.send(Input::RequestDone { id }).await;
        });
    }

    fn lease_failed(&mut self, message: &str) {
        self.lease_trouble = Some(message.to_owned());
        self.tell_trouble();
    }

    /// Says it when beats have failed for longer than a lease: the lease has a connection of its own and goes on, so from
    /// outside this process looks well.
    fn beat_ended(&mut self) {
        let now = clock::boot();
        if let Some(failure) = self.beats.failure.take() {
            let length = now.since(self.beats.good_at);
            if length > self.context.lease {
                let what = format!("this process is stuck: no beat has succeeded for {length:.1?}: {failure}");
                if !std::mem::replace(&mut self.beats.is_stuck, true) {
                    tracing::error!("{what}");
                }
                self.trouble.send_replace(Trouble { message: Some(self.lease_trouble.clone().unwrap_or(what)) });
            }
            return;
        }
        self.beats.good_at = now;
        if std::mem::replace(&mut self.beats.is_stuck, false) {
            tracing::info!("beats succeed again");
            self.tell_trouble();
        }
    }

    fn tell_trouble(&self) {
        let message = self.lease_trouble.clone();
        self.trouble.send_if_modified(|trouble| std::mem::replace(&mut trouble.message, message.clone()) != message);
    }

    fn stir(&self) {
        self.stir.send_modify(|count| *count += 1);
    }
}

fn unsupported(id: i64, me: MemberId) -> Script<bool> {
    Script::transaction(move |mut tx| async move {
        if !scripts::member_guard(&mut tx, me).await? {
            return Ok(database_core::Verdict::RollBack(false));
        }
        Ok(database_core::Verdict::Commit(scripts::request::answer(&mut tx, id, me, "unsupported").await?))
    })
}

fn error_text(error: &ConnectError) -> String {
    error.to_string()
}

/// Runs on the connection that is kept for it; makes it anew if it has gone.
async fn run_on<T: Send + 'static>(
    direct: &Connector,
    kept: &Mutex<Option<Connection>>,
    limits: Limits,
    script: Script<T>,
) -> Result<T, DbError> {
    let mut kept = kept.lock().await;
    let mut connection = match kept.take() {
        Some(connection) if connection.is_usable() => connection,
        _ => direct.connect_direct().await?,
    };
    let result = connection.run_with(limits, script).await;
    *kept = connection.is_usable().then_some(connection);
    result
}

/// Tells when notices are heard for the first time; the subscription tells of later times.
async fn tell_of_listening(database: Database, inputs: mpsc::Sender<Input>) {
    /// The wait has no end of its own.
    const LOOK: Duration = Duration::from_secs(60);
    while !inputs.is_closed() {
        if database.notices().wait_listening(LOOK).await {
            let _ = inputs.send(Input::Listening).await;
            return;
        }
    }
}
