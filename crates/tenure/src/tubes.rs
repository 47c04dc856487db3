//! `tenure tubes`: from flags and configuration to a running server.

use crate::cli::{TubesCall, TubesFlags};
use crate::exit::{self, Failure};
use crate::logging;
use std::time::Duration;
use tenure_config::{Config, Listen, LoadOptions, LogLevel, Mode, OnSlotFailed, Origin, Sync};
use tubes_protocol::JOB_BODY_BYTES_MAX;
use tubes_server::{Address, LogSettings, MultiOptions, ServerOptions, Supervision};
use tubes_store::SyncMode;

/// Serves until told to stop.
pub(crate) fn serve(call: TubesCall) -> Result<(), Failure> {
    let mut config = match call.config.clone() {
        Some(file) => tenure_config::load(LoadOptions::of_process(Some(file)))?,
        None => Config::default(),
    };
    // As the original, and unlike `serve`, the queue server alone keeps a log only where it is told to.
    if config.origin("tubes.persist") == Origin::Default {
        config.tubes.persist = false;
    }
    set_by_flags(&call.flags, &mut config)?;
    logging::start(level(&call, &config));
    let options = options(&call, &config)?;
    let level = level(&call, &config);
    match multi(&call.flags, &config) {
        None => Ok(tubes_server::serve(&options)?),
        Some(multi) => Ok(tubes_server::serve_multi(&options, &multi, &supervision(&config, level))?),
    }
}

/// Flags that say what a key of the configuration says, in the same words.
fn set_by_flags(flags: &TubesFlags, config: &mut Config) -> Result<(), Failure> {
    for (key, value, flag) in [
        ("tubes.owner_wait", &flags.owner_wait, "--owner-wait"),
        ("tubes.restart_limit", &flags.restart_limit, "--restart-limit"),
        ("tubes.restart_delay", &flags.restart_delay, "--restart-delay"),
        ("tubes.metrics", &flags.metrics, "--metrics"),
    ] {
        if let Some(value) = value {
            config.set_by_flag(key, value, flag).map_err(|error| Failure::new(exit::USAGE, error))?;
        }
    }
    Ok(())
}

/// What several processes need, if several are asked for.
pub(crate) fn multi(flags: &TubesFlags, config: &Config) -> Option<MultiOptions> {
    if flags.owners.is_none() && flags.frontends.is_none() && config.tubes.mode == Mode::Single {
        return None;
    }
    let tubes = &config.tubes;
    let from_config = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
    Some(MultiOptions {
        owners: flags.owners.unwrap_or(from_config(tubes.owners)),
        frontends: flags.frontends.unwrap_or(from_config(tubes.frontends)),
        owner_wait: tubes.owner_wait,
    })
}

/// How processes are supervised, which write messages of `level`.
pub(crate) fn supervision(config: &Config, level: LogLevel) -> Supervision {
    let tubes = &config.tubes;
    Supervision {
        restart_limit: tubes.restart_limit.restarts,
        restart_window: tubes.restart_limit.within,
        restart_delay: tubes.restart_delay,
        stops_on_failed_slot: tubes.on_slot_failed == OnSlotFailed::Stop,
        role_word: level.to_string(),
    }
}

fn level(call: &TubesCall, config: &Config) -> LogLevel {
    let base = call.level.unwrap_or(config.log.level);
    match (call.flags.verbose, base) {
        (0, base) => base,
        (1, LogLevel::Error | LogLevel::Warn) => LogLevel::Info,
        (1, LogLevel::Info) => LogLevel::Debug,
        _ => LogLevel::Trace,
    }
}

/// What the queue server is started with.
pub(crate) fn options(call: &TubesCall, config: &Config) -> Result<ServerOptions, Failure> {
    let flags = &call.flags;
    for (given, flag) in [(flags.compact, "-c"), (flags.no_compact, "-n")] {
        if given {
            tracing::warn!("{flag} has no effect: the log is always compacted");
        }
    }
    Ok(ServerOptions {
        listen: address(flags, config)?,
        is_listen_given: flags.listen.is_some() || flags.port.is_some(),
        socket_mode: (!call.is_called_beanstalkd).then_some(config.tubes.socket_mode),
        socket_group: config.tubes.socket_group.clone(),
        user: flags.user.clone().or_else(|| config.user.clone()),
        max_job_size: max_job_size(flags, config),
        body_memory: config.tubes.body_memory,
        close_on_http: config.tubes.close_on_http,
        log: log(flags, config),
        segment_bytes: flags.segment_bytes.unwrap_or(config.tubes.segment_size),
        metrics: config.tubes.metrics.as_ref().map(endpoint),
        #[cfg(feature = "trace")]
        trace: flags.trace.clone(),
        #[cfg(not(feature = "trace"))]
        trace: None,
    })
}

fn address(flags: &TubesFlags, config: &Config) -> Result<Address, Failure> {
    if let Some(path) = flags.listen.as_deref().and_then(|listen| listen.strip_prefix("unix:")) {
        if path.is_empty() {
            return Err(Failure::new(exit::USAGE, "-l unix: needs a path behind the colon"));
        }
        return Ok(Address::Unix(path.into()));
    }
    Ok(match (&config.tubes.listen, &flags.listen) {
        (Listen::Unix(path), None) if flags.port.is_none() => Address::Unix(path.clone()),
        (Listen::Unix(_), listen) => Address::Tcp {
            host: listen.clone().unwrap_or_else(|| "127.0.0.1".into()),
            port: flags.port.unwrap_or(11300),
        },
        (Listen::Tcp { host, port }, listen) => {
            Address::Tcp { host: listen.clone().unwrap_or_else(|| host.clone()), port: flags.port.unwrap_or(*port) }
        }
    })
}

fn endpoint(listen: &Listen) -> Address {
    match listen {
        Listen::Tcp { host, port } => Address::Tcp { host: host.clone(), port: *port },
        Listen::Unix(path) => Address::Unix(path.clone()),
    }
}

fn max_job_size(flags: &TubesFlags, config: &Config) -> u32 {
    let wanted = flags.max_job_size.unwrap_or(config.tubes.max_job_size);
    match u32::try_from(wanted) {
        Ok(bytes) if bytes <= JOB_BODY_BYTES_MAX => bytes,
        _ => {
            tracing::warn!("the largest job of {wanted} bytes is lowered to what is possible, {JOB_BODY_BYTES_MAX}");
            JOB_BODY_BYTES_MAX
        }
    }
}

fn log(flags: &TubesFlags, config: &Config) -> Option<LogSettings> {
    let directory = match &flags.directory {
        Some(directory) => directory.clone(),
        None if config.tubes.persist => config.data.dir.clone(),
        None => return None,
    };
    let interval = |time: Duration| match u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) {
        0 => SyncMode::Always,
        nanoseconds => SyncMode::Interval(nanoseconds),
    };
    let sync = match (flags.never_sync, flags.sync_ms) {
        (true, _) => SyncMode::Never,
        (false, Some(milliseconds)) => interval(Duration::from_millis(milliseconds)),
        (false, None) => match config.tubes.sync {
            Sync::Always => SyncMode::Always,
            Sync::Every(time) => interval(time),
            Sync::Never => SyncMode::Never,
        },
    };
    Some(LogSettings { directory, sync })
}
