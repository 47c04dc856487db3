//! What a server is started with, already checked for form.

use crate::listen::Address;
use std::path::PathBuf;
use tubes_store::SyncMode;

/// Everything a queue server in single mode must be told.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Where to listen, unless sockets are inherited.
    pub listen: Address,
    /// Somebody has asked for that address by name; if sockets are inherited, they hear that it is not used.
    pub is_listen_given: bool,
    /// Mode of a unix socket; `None` leaves what the umask gives.
    pub socket_mode: Option<u32>,
    /// Group of a unix socket, by name.
    pub socket_group: Option<String>,
    /// Account to switch to once the listener is open.
    pub user: Option<String>,
    /// Largest body of a job, in bytes.
    pub max_job_size: u32,
    /// Memory of one process for large bodies that are being received, in bytes.
    pub body_memory: u64,
    /// Whether an HTTP request line as a connection's first line closes it.
    pub close_on_http: bool,
    /// The log; `None` keeps jobs in memory only.
    pub log: Option<LogSettings>,
    /// Length of a log segment, in bytes; shown by `stats` also without a log.
    pub segment_bytes: u64,
    /// Where figures for Prometheus are served; `None`: nowhere.
    pub metrics: Option<Address>,
    /// File for the trace of replies (feature `trace`).
    pub trace: Option<PathBuf>,
}

/// Where and how the log is kept.
#[derive(Debug, Clone)]
pub struct LogSettings {
    /// The data directory.
    pub directory: PathBuf,
    /// When records are synced.
    pub sync: SyncMode,
}
