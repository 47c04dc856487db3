//! What `stats` says of the process, the machine and the log.

use crate::metrics::name;
use nix::sys::resource::{UsageWho, getrusage};
use std::collections::BTreeMap;
use std::time::Duration;
use tubes_protocol::{CommandCounts, ServerStats};

/// What does not change while the process lives.
#[derive(Debug)]
pub(crate) struct ProcessFigures {
    instance: String,
    hostname: String,
    os: String,
    platform: String,
    started_ns: u64,
    /// Of a server whose only process for clients this is.
    #[cfg(target_os = "linux")]
    supervised: Option<(supervisor::Pages, crate::pages::Base)>,
}

impl ProcessFigures {
    pub(crate) fn new(instance: String, started_ns: u64) -> Self {
        let system = rustix::system::uname();
        let text = |value: &std::ffi::CStr| value.to_string_lossy().into_owned();
        ProcessFigures {
            instance,
            hostname: text(system.nodename()),
            os: text(system.version()),
            platform: text(system.machine()),
            started_ns,
            #[cfg(target_os = "linux")]
            supervised: None,
        }
    }

    /// The figures are those of a whole supervised server: they go on where `base` says that the former process of the
    /// slot has left them, and its process is the supervisor, to which signals go.
    #[cfg(target_os = "linux")]
    pub(crate) fn of_server(mut self, pages: supervisor::Pages, base: crate::pages::Base) -> Self {
        self.started_ns = pages.server().started_boot_ns();
        self.supervised = Some((pages, base));
        self
    }

    /// Adds what only a whole server has, once all figures of the process are there.
    pub(crate) fn complete_server(&self, stats: &mut ServerStats) {
        #[cfg(target_os = "linux")]
        if let Some((pages, base)) = &self.supervised {
            let server = pages.server();
            let (user, system) = server.reaped_us();
            stats.pid = u32::try_from(server.supervisor_pid()).unwrap_or(0);
            stats.rusage_utime += Duration::from_micros(user);
            stats.rusage_stime += Duration::from_micros(system);
            base.add_to(stats);
        }
        let _ = stats;
    }

    /// Completes the queues' figures with those of the process.
    pub(crate) fn complete(&self, stats: &mut ServerStats, now_ns: u64) {
        stats.pid = std::process::id();
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
            stats.rusage_utime = duration(usage.user_time());
            stats.rusage_stime = duration(usage.system_time());
        }
        stats.uptime_s = now_ns.saturating_sub(self.started_ns) / 1_000_000_000;
        self.name(stats);
    }

    /// Adds what names server and machine.
    pub(crate) fn name(&self, stats: &mut ServerStats) {
        stats.id.clone_from(&self.instance);
        stats.hostname.clone_from(&self.hostname);
        stats.os.clone_from(&self.os);
        stats.platform.clone_from(&self.platform);
    }
}

/// The figures of a process with everything, for metrics.
pub(crate) fn shown(stats: &ServerStats) -> BTreeMap<String, u64> {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let figures = [
        (name::UP, 1),
        (name::JOBS_URGENT, stats.current_jobs_urgent),
        (name::JOBS_READY, stats.current_jobs_ready),
        (name::JOBS_RESERVED, stats.current_jobs_reserved),
        (name::JOBS_DELAYED, stats.current_jobs_delayed),
        (name::JOBS_BURIED, stats.current_jobs_buried),
        (name::JOBS_PUT, stats.total_jobs),
        (name::JOB_TIMEOUTS, stats.job_timeouts),
        (name::TUBES, stats.current_tubes),
        (name::CONNECTIONS, stats.current_connections),
        (name::PRODUCERS, stats.current_producers),
        (name::WORKERS, stats.current_workers),
        (name::WAITING, stats.current_waiting),
        (name::CONNECTIONS_ACCEPTED, stats.total_connections),
        (name::CPU_USER_US, micros(stats.rusage_utime)),
        (name::CPU_SYSTEM_US, micros(stats.rusage_stime)),
    ];
    let commands = name::COMMANDS.into_iter().zip(commands(&stats.commands));
    figures.into_iter().chain(commands).map(|(key, value)| (key.to_owned(), value)).collect()
}

/// The commands in the order of their places in a page, and of their names.
pub(crate) fn commands(counts: &CommandCounts) -> [u64; 22] {
    let c = counts;
    [
        c.put,
        c.peek,
        c.peek_ready,
        c.peek_delayed,
        c.peek_buried,
        c.reserve,
        c.reserve_with_timeout,
        c.delete,
        c.release,
        c.use_tube,
        c.watch,
        c.ignore,
        c.bury,
        c.kick,
        c.touch,
        c.stats,
        c.stats_job,
        c.stats_tube,
        c.list_tubes,
        c.list_tube_used,
        c.list_tubes_watched,
        c.pause_tube,
    ]
}

fn duration(time: nix::sys::time::TimeVal) -> Duration {
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap_or(0))
}
