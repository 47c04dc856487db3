//! The daemon as a process: what a supervisor hands to it, and how the two speak.
//!
//! Owns: the options and listeners of the role, the runtime, and the way from the control channel to the parts of the
//! daemon ([`control`]).
//! Never: decides what the daemon does.

mod control;

use crate::cli::DaemonCall;
use crate::exit::{self, Failure};
use crate::{listeners, logging};
use ::daemon::Traces;
use control::Control;
pub(crate) use control::{Orders, Ready};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use supervisor::{Child, FromChild, OnReload, Plan, Role, RolePlan, Start};
use tenure_config::{Config, LoadOptions, LogLevel, Sources};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The word by which the program is called as the daemon of a supervisor.
pub(crate) const WORD: &str = "daemon-child";
/// The word behind the level of messages if a flag has named it, which stands above file and database.
pub(crate) const LEVEL_GIVEN: &str = "level-given";

/// How long the daemon may take to stop where nobody else says so.
const STOP_MAX: Duration = Duration::from_secs(10);

/// Places in the daemon's page.
const CPU_USER_US: usize = 0;
const CPU_SYSTEM_US: usize = 1;

/// What the daemon is started with, whoever starts it.
#[derive(Debug)]
pub(crate) struct Started {
    /// The configuration when it was started.
    pub(crate) config: Config,
    /// For HTTP; they listen already.
    pub(crate) listeners: Vec<TcpListener>,
    /// What comes from outside while it runs.
    pub(crate) orders: Orders,
    /// To be told as soon as it could serve.
    pub(crate) ready: Ready,
    /// Where spans go.
    pub(crate) traces: Option<Traces>,
}

/// The sockets of the daemon, which may need an account that it does not have.
///
/// # Errors
///
/// The address is in use (111) or cannot be had (5).
pub(crate) fn open(config: &Config) -> Result<Vec<OwnedFd>, Failure> {
    Ok(vec![listeners::tcp(&config.http.listen, "http.listen")?.into()])
}

/// Adds the daemon to what a supervisor runs. It begins to write messages of `level`; if that is `level_given` by a flag,
/// it stays so.
pub(crate) fn add_to(
    plan: &mut Plan,
    sources: &Sources,
    listeners: Vec<OwnedFd>,
    level: LogLevel,
    level_given: bool,
) -> Result<(), Failure> {
    let mut arguments = vec![WORD.into(), level.to_string().into()];
    arguments.extend(level_given.then(|| LEVEL_GIVEN.into()));
    let of_role = RolePlan { arguments, listeners, options: options(sources)? };
    plan.topology.daemon = true;
    plan.roles.insert(Role::Daemon, of_role);
    let usage = [(tubes_server::CPU_USER_US, CPU_USER_US), (tubes_server::CPU_SYSTEM_US, CPU_SYSTEM_US)];
    plan.figures.extend(usage.map(|(name, place)| (Role::Daemon, name, place)));
    let of_others = std::mem::replace(&mut plan.on_ended, Box::new(|_, _| {}));
    plan.on_ended = Box::new(move |role, page| match role {
        // It is counted with that of reaped processes from now on.
        Role::Daemon => usage.iter().for_each(|(_, place)| page.counter(*place).store(0, Ordering::Relaxed)),
        _ => of_others(role, page),
    });
    Ok(())
}

/// Reads the configuration again as it was read before, for the daemon that runs and those to come. One that cannot be
/// used changes nothing.
pub(crate) fn on_reload(load: impl Fn() -> Result<(Config, Sources), Failure> + 'static) -> OnReload {
    Box::new(move || {
        let loaded = load().and_then(|(_, sources)| options(&sources));
        match loaded {
            Ok(options) => {
                tracing::info!("the configuration is read again");
                Some((Role::Daemon, options))
            }
            Err(failure) => {
                tracing::error!("the configuration in force stays: {}", failure.message());
                None
            }
        }
    })
}

fn options(sources: &Sources) -> Result<serde_json::Value, Failure> {
    serde_json::to_value(sources).map_err(|error| {
        Failure::new(tenure_config::EXIT_CODE, format!("the configuration cannot be handed to the daemon: {error}"))
    })
}

/// The daemon as the child of a supervisor, from its first instruction to its end. It begins to write messages of `level`.
///
/// `level_given`: the level of messages stays as it is, whatever configuration and database say.
pub(crate) fn serve_as_child(level: LogLevel, level_given: bool) -> Result<(), Failure> {
    // Before there is any thread, file or socket.
    let (child, start) = Child::from_inherited().map_err(tubes_server::ServeError::from)?;
    let reporter = child.reporter();
    let ended = run(child, start, level, level_given);
    match &ended {
        // If it cannot be said the supervisor is gone, and this process is about to be killed.
        Ok(()) => drop(reporter.send(&FromChild::Stopped)),
        Err(failure) => reporter.failed(failure.message()),
    }
    ended
}

fn run(child: Child, mut start: Start, level: LogLevel, level_given: bool) -> Result<(), Failure> {
    let system = |what: &'static str| {
        move |error: std::io::Error| Failure::new(exit::SYSTEM, format!("failed to {what}: {error}"))
    };
    let config = control::config_of(&start.options)?;
    let listeners = std::mem::take(&mut start.listeners).into_iter().map(TcpListener::from).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("daemon")
        .build()
        .map_err(system("start the runtime"))?;
    let traces = start_log(&config, level, &runtime)?;
    let ended = runtime.block_on(async {
        let (control, orders, ready) =
            Control::new(child, start, &config).map_err(system("listen to the supervisor"))?;
        let control = tokio::spawn(control.obey());
        let ended = run_supervised(Started { config, listeners, orders, ready, traces }, level_given).await;
        control.abort();
        ended
    });
    // What blocks is not awaited: the supervisor would wait with us.
    runtime.shutdown_background();
    ended
}

/// Begins to write messages, and to send spans where a collector is configured.
fn start_log(
    config: &Config,
    level: LogLevel,
    runtime: &tokio::runtime::Runtime,
) -> Result<Option<Traces>, ::daemon::DaemonError> {
    let traces = Traces::start(&config.telemetry, runtime.handle().clone())?;
    logging::start_with(level, traces.as_ref());
    Ok(traces)
}

/// The daemon itself, until it is told to stop.
async fn run_supervised(started: Started, level_given: bool) -> Result<(), Failure> {
    let Started { config, listeners, orders, ready, traces } = started;
    let missing = || Failure::new(exit::USAGE, "the supervisor has handed no socket to the daemon");
    let listener = listeners.into_iter().next().ok_or_else(missing)?;
    let status_socket = config.data.dir.join("status.sock");
    let (of_metrics, configs) = (status_socket.clone(), orders.config());
    let (mut going, mut stopping) = (orders.clone(), orders);
    let control = ::daemon::Control {
        listener,
        on_ready: Box::new(move || ready.report()),
        go: Box::pin(async move { going.go().await }),
        stop: Box::pin(async move { stopping.stop().await }),
        config: configs,
        on_config: follow_level(&config, level_given),
        supervisor: Some(Arc::new(move || {
            let status = supervisor::query(&status_socket).map_err(|error| error.to_string())?;
            serde_json::to_string(&status).map_err(|error| error.to_string())
        })),
        metrics: vec![Box::new(move || match supervisor::query(&of_metrics) {
            Ok(status) => tubes_server::text_of(status),
            Err(error) => {
                tracing::warn!("the supervisor's figures are missing: {error}");
                String::new()
            }
        })],
        routes: |_| ::daemon::no_routes(),
        steps: Arc::new([]),
        traces,
    };
    Ok(::daemon::run(config, control).await?)
}

/// Has messages written as the configuration in force says, now and whenever it changes, unless a flag has named a level.
fn follow_level(config: &Config, level_given: bool) -> Box<dyn Fn(&Config) + Send + Sync> {
    if level_given {
        return Box::new(|_| {});
    }
    logging::change(config.log.level);
    Box::new(|config| logging::change(config.log.level))
}

/// `tenure daemon`: the daemon without a supervisor, until it is told to stop by a signal.
pub(crate) fn serve_alone(call: &DaemonCall) -> Result<(), Failure> {
    let load = {
        let file = call.config.clone();
        move || tenure_config::load(LoadOptions::of_process(file.clone()))
    };
    let config = load()?;
    let listener = listeners::tcp(&config.http.listen, "http.listen")?;
    let system =
        |error: std::io::Error| Failure::new(exit::SYSTEM, format!("failed to start the daemon's runtime: {error}"));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("daemon").build().map_err(system)?;
    let traces = start_log(&config, call.level.unwrap_or(config.log.level), &runtime)?;
    let ended = runtime.block_on(async {
        let (mut terminated, mut interrupted, mut hung_up) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?);
        let (configs, config_seen) = watch::channel(Arc::new(config.clone()));
        let reloading = tokio::spawn(async move {
            while hung_up.recv().await.is_some() {
                match load() {
                    Ok(config) => drop(configs.send_replace(Arc::new(config))),
                    Err(error) => tracing::error!("the configuration in force stays: {error}"),
                }
            }
        });
        let control = ::daemon::Control {
            listener,
            on_ready: Box::new(|| drop(sd_notify::notify(&[sd_notify::NotifyState::Ready]))),
            go: Box::pin(async {}),
            stop: Box::pin(async move {
                tokio::select! {
                    _ = terminated.recv() => {}
                    _ = interrupted.recv() => {}
                }
                STOP_MAX
            }),
            config: config_seen,
            on_config: follow_level(&config, call.level.is_some()),
            supervisor: None,
            metrics: Vec::new(),
            routes: |_| ::daemon::no_routes(),
            steps: Arc::new([]),
            traces,
        };
        let ended = ::daemon::run(config, control).await;
        reloading.abort();
        ended
    });
    runtime.shutdown_background();
    Ok(ended?)
}
