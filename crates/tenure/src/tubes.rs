//! `tenure tubes`: from flags and configuration to a running server.

use crate::cli::{TubesCall, TubesFlags};
use crate::exit::{self, Failure};
use crate::logging;
use std::path::Path;
use std::time::Duration;
use tenure_config::{Config, Listen, LoadOptions, LogLevel, Mode, Origin, Sync};
use tubes_server::{Address, LogSettings, ServerOptions};
use tubes_store::SyncMode;
use tubes_store::datadir;
use tubes_store::manifest::Topology;

/// Largest value of `-z`, in bytes; the original's cap.
const JOB_SIZE_MAX: u64 = 1_073_741_824;

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
    logging::start(level(&call, &config));
    let options = options(&call, &config)?;
    refuse_multi(&call.flags, &config, options.log.as_ref().map(|log| log.directory.as_path()))?;
    Ok(tubes_server::serve(&options)?)
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

fn options(call: &TubesCall, config: &Config) -> Result<ServerOptions, Failure> {
    let flags = &call.flags;
    for (given, flag) in [(flags.compact, "-c"), (flags.no_compact, "-n")] {
        if given {
            tracing::warn!("{flag} has no effect: the log is always compacted");
        }
    }
    Ok(ServerOptions {
        listen: address(flags, config)?,
        socket_mode: (!call.is_called_beanstalkd).then_some(config.tubes.socket_mode),
        socket_group: config.tubes.socket_group.clone(),
        user: flags.user.clone(),
        max_job_size: max_job_size(flags, config),
        close_on_http: config.tubes.close_on_http,
        log: log(flags, config),
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

fn max_job_size(flags: &TubesFlags, config: &Config) -> u32 {
    let wanted = flags.max_job_size.unwrap_or(config.tubes.max_job_size);
    if wanted > JOB_SIZE_MAX {
        tracing::warn!("-z {wanted} is lowered to the largest possible, {JOB_SIZE_MAX}");
    }
    u32::try_from(wanted.min(JOB_SIZE_MAX)).expect("the cap fits")
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
    let segment_bytes = flags.segment_bytes.unwrap_or(config.tubes.segment_size);
    Some(LogSettings { directory, sync, segment_bytes })
}

/// Several processes are not built yet: says so, and says it of the directory where that is the nearer cause.
fn refuse_multi(flags: &TubesFlags, config: &Config, directory: Option<&Path>) -> Result<(), Failure> {
    let owners = flags.owners.or((config.tubes.mode == Mode::Multi).then_some(config.tubes.owners));
    if owners.is_none() && flags.frontends.is_none() {
        return Ok(());
    }
    if let (Some(directory), Some(owners)) = (directory, owners.and_then(|owners| u16::try_from(owners).ok())) {
        datadir::refuse_other_topology(directory, Topology::Multi(owners))?;
    }
    Err(Failure::new(exit::USAGE, "--owners and --frontends are not available in this version; leave them out"))
}
