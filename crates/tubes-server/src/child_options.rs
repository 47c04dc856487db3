//! What the supervisor hands to the processes of the queue server besides their slots.

use crate::error::ServeError;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use supervisor::Start;
use tubes_link::PartitionMap;
use tubes_store::SyncMode;

/// The one configuration of all processes of a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ChildOptions {
    pub(crate) instance: String,
    pub(crate) max_job_size: u32,
    pub(crate) body_memory: u64,
    pub(crate) close_on_http: bool,
    pub(crate) owner_wait_ns: u64,
    pub(crate) map: Vec<u16>,
    pub(crate) single_ids_below: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) log: Option<ChildLog>,
    /// Folder for the traces of all processes.
    #[cfg(feature = "trace")]
    pub(crate) trace: Option<PathBuf>,
}

/// Where and how logs are kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ChildLog {
    pub(crate) directory: PathBuf,
    /// Name of the directory of all slots.
    pub(crate) logs: String,
    pub(crate) fingerprint: u64,
    /// In ns; 0 for always, `None` for never.
    pub(crate) sync_ns: Option<u64>,
}

impl ChildLog {
    pub(crate) fn sync(&self) -> SyncMode {
        match self.sync_ns {
            None => SyncMode::Never,
            Some(0) => SyncMode::Always,
            Some(interval) => SyncMode::Interval(interval),
        }
    }
}

impl ChildOptions {
    /// What a start message says besides the slot.
    pub(crate) fn read(start: &Start) -> Result<ChildOptions, ServeError> {
        serde_json::from_value(start.options.clone())
            .map_err(|error| ServeError::system("read the start message", io::Error::other(error)))
    }

    /// As above, and the map of partitions that follows from it for several processes.
    pub(crate) fn of(start: &Start) -> Result<(ChildOptions, PartitionMap), ServeError> {
        let options = ChildOptions::read(start)?;
        let map = PartitionMap::new(&options.map, start.topology.owners, options.single_ids_below)
            .ok_or_else(|| ServeError::system("read the map of partitions", io::Error::other("it does not fit")))?;
        Ok((options, map))
    }
}
