//! What `stats` says of the process, the machine and the log.

use nix::sys::resource::{UsageWho, getrusage};
use std::time::Duration;
use tubes_protocol::ServerStats;

/// What does not change while the process lives.
#[derive(Debug)]
pub(crate) struct ProcessFigures {
    instance: String,
    hostname: String,
    os: String,
    platform: String,
    started_ns: u64,
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
        }
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

fn duration(time: nix::sys::time::TimeVal) -> Duration {
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap_or(0))
}
