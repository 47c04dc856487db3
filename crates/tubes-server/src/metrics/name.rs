//! The names of figures in status and snapshots. What they are called for Prometheus stands in the table of `text`.

pub(crate) const VERSION: &str = "version";
pub(crate) const MODE: &str = "mode";
pub(crate) const INSTANCE: &str = "instance";
pub(crate) const DIRECTORY: &str = "directory";
pub(crate) const ACK_LEVEL: &str = "ack_level";
pub(crate) const ACK_SURVIVES: &str = "ack_survives";
pub(crate) const SYNC_INTERVAL_MS: &str = "sync_interval_ms";

/// What an acknowledged command is worth, by what the log does before the reply.
pub(crate) const ACK_LEVELS: [&str; 4] = ["none", "never", "interval", "always"];
/// What a slot can be doing.
pub(crate) const CONDITIONS: [&str; 5] = ["down", "starting", "ready", "ending", "failed"];

pub(crate) const UP: &str = "up";
pub(crate) const GENERATION: &str = "generation";
pub(crate) const RESTARTS: &str = "restarts";
pub(crate) const UNANSWERED_PINGS: &str = "unanswered_pings";
pub(crate) const CONTROL_BACKLOG: &str = "control_backlog";
/// Processor time in user mode, in microseconds.
pub const CPU_USER_US: &str = "cpu_user_us";
/// Processor time in the kernel, in microseconds.
pub const CPU_SYSTEM_US: &str = "cpu_system_us";
pub(crate) const LINK_BACKLOG_BYTES: &str = "link_backlog_bytes";
pub(crate) const LINK_BATCHES: &str = "link_batches";
pub(crate) const LINK_MESSAGES: &str = "link_messages";

pub(crate) const JOBS_URGENT: &str = "jobs_urgent";
pub(crate) const JOBS_READY: &str = "jobs_ready";
pub(crate) const JOBS_RESERVED: &str = "jobs_reserved";
pub(crate) const JOBS_DELAYED: &str = "jobs_delayed";
pub(crate) const JOBS_BURIED: &str = "jobs_buried";
pub(crate) const JOBS_PUT: &str = "jobs_put";
pub(crate) const JOB_TIMEOUTS: &str = "job_timeouts";
pub(crate) const TUBES: &str = "tubes";

pub(crate) const CONNECTIONS: &str = "connections";
pub(crate) const PRODUCERS: &str = "producers";
pub(crate) const WORKERS: &str = "workers";
pub(crate) const WAITING: &str = "waiting";
pub(crate) const CONNECTIONS_ACCEPTED: &str = "connections_accepted";

/// Of all figures of a log.
pub(crate) const LOG_PREFIX: &str = "log_";
pub(crate) const LOG_OLDEST_SEGMENT: &str = "log_oldest_segment";
pub(crate) const LOG_CURRENT_SEGMENT: &str = "log_current_segment";
pub(crate) const LOG_BYTES: &str = "log_bytes";
pub(crate) const LOG_PENDING_BYTES: &str = "log_pending_bytes";
pub(crate) const LOG_WRITTEN_BYTES: &str = "log_written_bytes";
pub(crate) const LOG_RECORDS_WRITTEN: &str = "log_records_written";
pub(crate) const LOG_RECORDS_MIGRATED: &str = "log_records_migrated";
pub(crate) const LOG_RECORDS_SYNCED: &str = "log_records_synced";
pub(crate) const LOG_SYNCS: &str = "log_syncs";
/// Wall time, ms since 1970; 0 before the first sync.
pub(crate) const LOG_LAST_SYNC_MS: &str = "log_last_sync_ms";
pub(crate) const LOG_IN_SYNC_MS: &str = "log_in_sync_ms";
pub(crate) const LOG_HAS_NO_SPACE: &str = "log_has_no_space";
pub(crate) const LOG_WRITE_FAILURES: &str = "log_write_failures";

/// The commands as `stats` names them, in the order of [`crate::figures::commands`].
pub(crate) const COMMANDS: [&str; 22] = [
    "cmd-put",
    "cmd-peek",
    "cmd-peek-ready",
    "cmd-peek-delayed",
    "cmd-peek-buried",
    "cmd-reserve",
    "cmd-reserve-with-timeout",
    "cmd-delete",
    "cmd-release",
    "cmd-use",
    "cmd-watch",
    "cmd-ignore",
    "cmd-bury",
    "cmd-kick",
    "cmd-touch",
    "cmd-stats",
    "cmd-stats-job",
    "cmd-stats-tube",
    "cmd-list-tubes",
    "cmd-list-tube-used",
    "cmd-list-tubes-watched",
    "cmd-pause-tube",
];
