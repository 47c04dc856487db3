//! The daemon's life: what is started in which order, what is tried again, how it ends.
//!
//! Owns: the order. The door answers at once, also while the database does not: health, and for all else 503 with the reason.
//! Never: ends because the database does not answer or does not fit; it says so, and tries again.

use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use cluster_core::scripts::reap::{Kept as ReapKept, ReapSteps};
use cluster_core::{ConnectError, Times, TimesError};
use cluster_server::{Cluster, Kept, Scheduler, SchemaCheck};
use database::schema;
use database::{Database, Kind};
use database_core::{Class, DbError, Fit, Script};
use http_server::{
    AddressRefused, Door, DoorOptions, Routes, Server, ServerOptions, Surroundings, Tls, TlsError, check_address,
    is_loopback,
};
use tenure_config::Config;
use tokio::sync::watch;

use crate::audit::AuditLog;
use crate::keys::{self, KeyError, Keys};
use crate::live::{self, Live};
use crate::metrics::MetricsSource;
use crate::storage::{self, MIGRATIONS, SCHEMA_VERSION, Storage, StorageError};
use crate::traces::{ADOPT, Traces, TracesError};
use crate::{routes, store};

/// How long the stop may take if the daemon ends by itself.
const STOP_MAX: Duration = Duration::from_secs(5);
/// Name of the program beside the schema it brought, and in registrations.
pub(crate) const PROGRAM: &str = concat!("tenure ", env!("CARGO_PKG_VERSION"));
/// Beats between two looks whether the schema still fits.
const SCHEMA_LOOK_BEATS: u32 = 12;
/// How long entries of the audit log are kept.
const AUDIT_KEPT: Duration = Duration::from_secs(90 * 24 * 3600);

/// A state that is waited for.
type Awaited<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// How the daemon and whoever started it speak.
pub struct Control {
    /// `[http] listen`, opened; the account may not be able to open it any more.
    pub listener: TcpListener,
    /// Called when everything that can refuse a start has not.
    pub on_ready: Box<dyn FnOnce() + Send>,
    /// Ends when requests may be answered.
    pub go: Awaited<()>,
    /// Ends when the daemon is to stop: within how long.
    pub stop: Awaited<Duration>,
    /// The configuration, whenever it was read anew.
    pub config: watch::Receiver<Arc<Config>>,
    /// Told what is in force, the database's options included, whenever that has changed.
    pub on_config: Box<dyn Fn(&Config) + Send + Sync>,
    /// Asks the supervisor for its status, as JSON; `None`: there is no supervisor.
    pub supervisor: Option<AskSupervisor>,
    /// More text for `/metrics`.
    pub metrics: Vec<MetricsSource>,
    /// Routes of the parts above.
    pub routes: fn(&Daemon) -> Routes,
    /// How parts above give up rows of dead owners.
    pub steps: ReapSteps,
    /// Where spans go; `None`: nowhere. Its layer is in the process's subscriber. Stopped with the daemon.
    pub traces: Option<Traces>,
}

/// Blocks for as long as the supervisor takes.
pub type AskSupervisor = Arc<dyn Fn() -> Result<String, String> + Send + Sync>;

impl std::fmt::Debug for Control {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Control").field("is_supervised", &self.supervisor.is_some()).finish_non_exhaustive()
    }
}

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The database of the configuration cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The lengths of the cluster's times do not fit.
    #[error(transparent)]
    Times(#[from] TimesError),
    /// A key of the configuration cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The address may not be opened like that.
    #[error(transparent)]
    Address(#[from] AddressRefused),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Spans cannot be sent as configured.
    #[error(transparent)]
    Traces(#[from] TracesError),
    /// The process lacks something of the system.
    #[error("failed to start: {0}")]
    System(#[from] std::io::Error),
}

impl DaemonError {
    /// Exit status of a process that ends by it: 78 for the configuration, 10 for a file, lock or whatever the system
    /// does not give.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Storage(StorageError::File(_) | StorageError::Folder { .. })
            | Self::Traces(TracesError::Roots(_))
            | Self::System(_) => 10,
            Self::Storage(_)
            | Self::Times(_)
            | Self::Key(_)
            | Self::Address(_)
            | Self::Tls(_)
            | Self::Traces(TracesError::Endpoint { .. }) => tenure_config::EXIT_CODE,
        }
    }
}

/// What all routes share. Clones are the same.
#[derive(Clone)]
pub struct Daemon(Arc<Inner>);

struct Inner {
    database: Database,
    live: Live,
    keys: Keys,
    cluster: OnceLock<Cluster>,
    door: OnceLock<Arc<Door>>,
    scheduler: OnceLock<Scheduler>,
    supervisor: Option<AskSupervisor>,
    metrics: Vec<MetricsSource>,
    traces: Option<Traces>,
    /// Why this process is no member yet.
    trouble: Mutex<String>,
}

impl std::fmt::Debug for Daemon {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Daemon").field("database", &self.0.database.kind()).finish_non_exhaustive()
    }
}

impl Daemon {
    /// The database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.0.database
    }

    /// This process as a member, once it is one.
    ///
    /// # Errors
    ///
    /// Why it is none yet.
    pub fn cluster(&self) -> Result<&Cluster, String> {
        self.0.cluster.get().ok_or_else(|| self.0.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        self.0.live.get()
    }

    /// The leader's loop, once this process is a member.
    #[must_use]
    pub fn scheduler(&self) -> Option<&Scheduler> {
        self.0.scheduler.get()
    }

    pub(crate) fn live(&self) -> &Live {
        &self.0.live
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.0.keys
    }

    pub(crate) fn door(&self) -> Option<&Arc<Door>> {
        self.0.door.get()
    }

    pub(crate) fn supervisor(&self) -> Option<&AskSupervisor> {
        self.0.supervisor.as_ref()
    }

    pub(crate) fn more_metrics(&self) -> &[MetricsSource] {
        &self.0.metrics
    }

    pub(crate) fn traces(&self) -> Option<&Traces> {
        self.0.traces.as_ref()
    }

    fn has_trouble(&self, what: &str) {
        what.clone_into(&mut self.0.trouble.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Runs the daemon until it is told to stop.
///
/// # Errors
///
/// Why it cannot start. A database that does not answer is no reason, nor one whose schema does not fit.
pub async fn run(config: Config, control: Control) -> Result<(), DaemonError> {
    let times = times(&config)?;
    let of_config = keys::of_config(&config)?;
    let tls = match (&config.http.tls_cert, &config.http.tls_key) {
        (Some(certificate), Some(key)) => Some(Arc::new(Tls::load(certificate, key)?)),
        _ => None,
    };
    let address = control.listener.local_addr()?;
    // Whether keys are defined depends on the database, which is asked later.
    let around = Surroundings { has_keys: true, has_tls: tls.is_some(), allow_plaintext: config.http.allow_plaintext };
    check_address(address, around)?;
    let Storage { database, direct } = storage::open(&config, "the daemon")?;
    let public_probes = config.http.public_health;
    let daemon = Daemon(Arc::new(Inner {
        database: database.clone(),
        live: Live::new(config),
        keys: Keys::new(of_config),
        cluster: OnceLock::new(),
        door: OnceLock::new(),
        scheduler: OnceLock::new(),
        supervisor: control.supervisor,
        metrics: control.metrics,
        traces: control.traces,
        trouble: Mutex::new("the process has just started".to_owned()),
    }));
    let mut options = DoorOptions::new("Tenure", env!("CARGO_PKG_VERSION"));
    options.keyring = daemon.keys().ring();
    options.audit = Arc::new(AuditLog::new(database.clone()));
    options.public_probes = public_probes;
    options.adopt_span = daemon.traces().map(|_| ADOPT);
    let door = Arc::new(Door::new(routes(&daemon).and((control.routes)(&daemon)), options));
    let _ = daemon.0.door.set(Arc::clone(&door));
    (control.on_ready)();
    control.go.await;
    let server = Server::start(control.listener, door, tls.clone(), ServerOptions::default())?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    tracing::info!("the HTTP API answers at {scheme}://{address}");
    if let Some(traces) = daemon.traces() {
        tracing::info!("spans are sent to {}", traces.endpoint());
    }

    let joining = tokio::spawn(join(daemon.clone(), times, direct, control.steps));
    let telling = tokio::spawn(tell(daemon.live().watch(), control.on_config));
    let result = wait(&daemon, address, around, control.stop, control.config, tls.as_deref()).await;
    joining.abort();
    telling.abort();
    let within = result.as_ref().copied().unwrap_or(STOP_MAX);
    // The registration is ended within the time too, after the requests.
    let stopped = server.stop(within / 2).await;
    if stopped.cut > 0 {
        tracing::warn!("{} requests were cut off by the stop", stopped.cut);
    }
    let leave = async {
        if let Some(cluster) = daemon.0.cluster.get() {
            cluster.stop().await;
        }
        if let Database::Sqlite(file) = &database {
            file.close().await;
        } else {
            // The last notice says that this member is gone.
            database.notices().flush(within / 4).await;
        }
    };
    let send_spans = async {
        if let Some(traces) = daemon.traces() {
            traces.stop(within / 4).await;
        }
    };
    // Beside each other: neither a database nor a collector that is away takes the other's time.
    tokio::join!(leave, send_spans);
    result.map(drop)
}

/// Until the stop; takes over configurations that are read anew. Ends with an error if others could reach the door and no
/// key is defined.
async fn wait(
    daemon: &Daemon,
    address: SocketAddr,
    around: Surroundings,
    mut stop: Awaited<Duration>,
    mut configs: watch::Receiver<Arc<Config>>,
    tls: Option<&Tls>,
) -> Result<Duration, DaemonError> {
    let mut ring = daemon.keys().ring();
    // The keys may have been read already: what is known by now counts like what comes.
    ring.mark_changed();
    loop {
        tokio::select! {
            within = &mut stop => return Ok(within),
            Ok(()) = configs.changed() => {
                let config = Arc::clone(&configs.borrow_and_update());
                reload(daemon, config, tls).await;
            }
            Ok(()) = ring.changed(), if !is_loopback(address.ip()) => {
                let has_keys = ring.borrow_and_update().as_ref().is_none_or(|ring| !ring.is_empty());
                check_address(address, Surroundings { has_keys, ..around })?;
            }
        }
    }
}

async fn tell(mut in_force: watch::Receiver<Arc<Config>>, on_config: Box<dyn Fn(&Config) + Send + Sync>) {
    while in_force.changed().await.is_ok() {
        let config = Arc::clone(&in_force.borrow_and_update());
        on_config(&config);
    }
}

async fn reload(daemon: &Daemon, config: Arc<Config>, tls: Option<&Tls>) {
    match tls.map(Tls::reload) {
        Some(Ok(())) => tracing::info!("the certificate was read again"),
        Some(Err(error)) => tracing::error!("the certificate stays as it was: {error}"),
        None => {}
    }
    daemon.live().set_base(config);
    refresh(daemon, &cluster_server::Dropped::All).await;
}

/// Reads again what is cached of the database.
async fn refresh(daemon: &Daemon, dropped: &cluster_server::Dropped) {
    if dropped.concerns(live::CACHE)
        && let Err(error) = daemon.live().reload(daemon.database()).await
    {
        tracing::warn!("the options in the database were not read: {error}");
    }
    if dropped.concerns(keys::CACHE)
        && let Err(error) = daemon.keys().reload(daemon.database()).await
    {
        tracing::warn!("the keys in the database were not read: {error}");
    }
}

/// Makes the process a member, however long that takes.
async fn join(daemon: Daemon, times: Times, direct: Option<database::postgres::Connector>, steps: ReapSteps) {
    loop {
        match try_join(&daemon, times, direct.clone(), steps.clone()).await {
            Ok(()) => return,
            Err(why) => {
                tracing::warn!("not a member yet, and tried again: {why}");
                daemon.has_trouble(&why);
            }
        }
        tokio::time::sleep(times.beat).await;
    }
}

async fn try_join(
    daemon: &Daemon,
    times: Times,
    direct: Option<database::postgres::Connector>,
    steps: ReapSteps,
) -> Result<(), String> {
    let database = daemon.database();
    let migrated = schema::migrate(database, MIGRATIONS, PROGRAM).await.map_err(|error| error.to_string())?;
    if migrated.before != migrated.after {
        tracing::info!("the schema went from {} to {}", migrated.before, migrated.after);
    }
    daemon.live().reload(database).await.map_err(|error| error.to_string())?;
    let keys = daemon.keys().reload(database).await.map_err(|error| error.to_string())?;
    tracing::info!("{keys} keys are defined");
    let config = daemon.config();
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| format!("the system gives no random numbers: {error}"))?;
    let seed = std::array::from_fn(|at| u64::from_le_bytes(std::array::from_fn(|byte| seed[at * 8 + byte])));
    std::fs::create_dir_all(&config.data.dir)
        .map_err(|error| format!("failed to make {}: {error}", config.data.dir.display()))?;
    let settings = cluster_server::Settings {
        times,
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        program: PROGRAM.to_owned(),
        schema_version: SCHEMA_VERSION,
        folder: config.data.dir.clone(),
        direct,
        schema: schema_check(),
        steps,
        seed,
    };
    let cluster = Cluster::start(database.clone(), settings).await.map_err(|error| error.to_string())?;
    let scheduler = Scheduler::start(&cluster).map_err(|error| error.to_string())?;
    hook(daemon, &cluster);
    let _ = daemon.0.scheduler.set(scheduler);
    let _ = daemon.0.cluster.set(cluster);
    Ok(())
}

/// What this part has called by the cluster.
fn hook(daemon: &Daemon, cluster: &Cluster) {
    let of_beat = daemon.clone();
    cluster.on_beat("uses of keys", move |()| {
        let daemon = of_beat.clone();
        async move {
            if let Some(door) = daemon.door() {
                keys::write_uses(daemon.database(), door, cluster_server::clock::now().wall_ms).await;
            }
        }
    });
    let looks = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let (of_schema, schema_cluster) = (daemon.clone(), cluster.clone());
    cluster.on_beat("schema", move |()| {
        let (daemon, cluster) = (of_schema.clone(), schema_cluster.clone());
        let is_due = looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed).is_multiple_of(SCHEMA_LOOK_BEATS);
        async move {
            if is_due {
                look_at_schema(daemon.database(), &cluster).await;
            }
        }
    });
    let of_caches = daemon.clone();
    cluster.on_cache_drop("daemon", move |dropped| {
        let daemon = of_caches.clone();
        async move { refresh(&daemon, &dropped).await }
    });
    let kept = |name, prune: fn(i64) -> Script<u64>, oldest: fn() -> Script<Option<i64>>| Kept {
        name,
        prune: Arc::new(prune),
        oldest: Arc::new(oldest),
    };
    let retention = cluster.retention();
    retention.add(kept("audit", |rows| store::audit::prune(millis(AUDIT_KEPT), rows), store::audit::oldest_ms));
    retention.add(kept("config_change", store::config::prune, store::config::oldest_ms));
    let reaped = ReapKept::usual(cluster.times().beat, cluster.database().kind() == Kind::Postgres);
    cluster_server::own_kinds(reaped).into_iter().for_each(|kind| retention.add(kind));
}

fn millis(length: Duration) -> i64 {
    i64::try_from(length.as_millis()).unwrap_or(i64::MAX)
}

/// Whether the schema still fits: it may have been brought further by a newer program.
async fn look_at_schema(database: &Database, cluster: &Cluster) {
    match schema::check(database, SCHEMA_VERSION).await {
        Ok(Fit::Fits) => {}
        Ok(unfit) => cluster.refuse_schema(unfit.to_string()).await,
        Err(error) => tracing::debug!("the schema's version was not read: {error}"),
    }
}

/// For new connections of the lease.
fn schema_check() -> SchemaCheck {
    Arc::new(|connection| {
        Box::pin(async move {
            match connection.read(schema::reading()).await.map(|schema| Fit::of(schema, SCHEMA_VERSION)) {
                Ok(Fit::Fits) => Ok(()),
                Ok(unfit) => Err(ConnectError::Schema(unfit.to_string())),
                Err(error) => Err(ConnectError::Database(error)),
            }
        })
    })
}

fn times(config: &Config) -> Result<Times, TimesError> {
    let times = Times {
        renew: config.cluster.renew,
        statement_timeout: config.cluster.statement_timeout,
        margin: config.cluster.margin,
        beat: config.cluster.beat,
        lease: config.cluster.lease,
    };
    times.check().map(|()| times)
}

/// The statement that tells all members of a change; `None` where there is one process.
pub(crate) fn cache_statement(database: &Database) -> Option<&'static database_core::Sql> {
    (database.kind() == Kind::Postgres).then_some(&cluster_core::statements::cache::CHANGE)
}

/// As a problem for a caller: what the database said stays in the log.
pub(crate) fn database_problem(error: &DbError) -> http_server::Problem {
    use http_server::Problem;
    match error.class {
        Class::Refused => Problem::bad_request("refused", "the database does not take these values"),
        Class::Broken => Problem::internal(error),
        Class::Unknown => {
            Problem::unavailable("commit_unknown", "it is not known whether this was done; repeat the same call")
        }
        Class::Conflict | Class::Locked | Class::TimedOut | Class::Unavailable | Class::ReadOnly | Class::Exhausted => {
            tracing::warn!("a request failed by the database: {error}");
            Problem::unavailable("database_unavailable", "the database does not answer at the moment; nothing was done")
        }
    }
}
