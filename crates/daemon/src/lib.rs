//! The daemon: a member of the cluster that serves the HTTP API.
//!
//! Owns: how database, cluster, door and configuration are put together; what stands behind keys, audit log, options set in
//! the database, health and metrics.
//! Never: has rules of tubes, pipelines or runs. Their parts hand in routes, migrations, and what is to be called at beats,
//! at changes of leadership and at a fence.

mod audit;
mod daemon;
mod keys;
mod live;
mod metrics;
mod offline;
mod routes;
mod storage;
pub mod store;
mod traces;

pub use daemon::{AskSupervisor, Control, Daemon, DaemonError, run};
pub use metrics::{MetricsSource, Sample, SampleKind};
pub use offline::{OfflineError, change_option, create_key, file_in_use};
pub use routes::{no_routes, routes};
pub use storage::{MIGRATIONS, SCHEMA_VERSION, StorageError, open};
pub use traces::{SpansCounted, Traces, TracesError};
