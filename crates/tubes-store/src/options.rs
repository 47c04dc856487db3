//! What the shell decides about a log.
//!
//! Owns: the options and their limits. Never: reads a configuration, a clock or the machine's boot id.

/// Smallest segment, in bytes; a smaller wish is raised to it. It holds its header, one STATE, one DELETE and one
/// CLOSE record, and room to account for what is left over at its end.
pub const SEGMENT_BYTES_MIN: u64 = 512;

/// When written records are synced, and so what an acknowledged record survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// Never: survives the death of the process.
    Never,
    /// At most so many ns after the first unsynced write: survives the death of the process, and a power loss but for
    /// the last interval and one sync.
    Interval(u64),
    /// Before each reply: survives a power loss.
    Always,
}

impl SyncMode {
    pub(crate) fn byte(self) -> u8 {
        match self {
            SyncMode::Never => SYNC_NEVER,
            SyncMode::Interval(_) => SYNC_INTERVAL,
            SyncMode::Always => SYNC_ALWAYS,
        }
    }
}

pub(crate) const SYNC_NEVER: u8 = 0;
pub(crate) const SYNC_INTERVAL: u8 = 1;
pub(crate) const SYNC_ALWAYS: u8 = 2;

/// Everything a log must be told when it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// Place of the owner among the owners of the directory; 0 in single mode.
    pub slot: u16,
    /// Which start of the owner this is; larger than at every start before.
    pub generation: u32,
    /// Fingerprint of the manifest.
    pub fingerprint: u64,
    /// Length of a segment, at least [`SEGMENT_BYTES_MIN`].
    pub segment_bytes: u64,
    /// When written records are synced.
    pub sync: SyncMode,
    /// How many ids each step of the id counter stands for: 1 in single mode, the number of partitions in multi mode.
    pub ids_per_count: u64,
    /// Which run of the machine this is.
    pub boot_id: [u8; 16],
    /// Wall time of the opening, in ms since 1970.
    pub wall_ms: u64,
    /// Reading of the clock of [`Log::flush`](crate::Log::flush) at the same moment, in ns.
    pub now_ns: u64,
}
