//! The rows of the simulated tables. Names are numbers where the tests make them.

use std::sync::Arc;

/// `-infinity`.
pub(crate) const NEVER_US: i64 = i64::MIN;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Setting {
    pub(crate) lease_ms: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Member {
    pub(crate) id: u128,
    pub(crate) no: i64,
    pub(crate) pid: i64,
    pub(crate) schema: i64,
    pub(crate) lease_until: i64,
    pub(crate) heartbeat_at: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Leader {
    pub(crate) name: u8,
    pub(crate) epoch: i64,
    pub(crate) holder: Option<u128>,
    pub(crate) lease_until: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TicketKey {
    pub(crate) is_lane: bool,
    pub(crate) key: u32,
    pub(crate) limit: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ticket {
    pub(crate) is_lane: bool,
    pub(crate) key: u32,
    pub(crate) is_member: bool,
    pub(crate) holder: u128,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TicketWait {
    pub(crate) no: i64,
    pub(crate) ticket: Ticket,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    pub(crate) id: i64,
    pub(crate) kind: Arc<str>,
    pub(crate) asker: u128,
    pub(crate) addressee: u128,
    pub(crate) payload: Arc<str>,
    pub(crate) created_at: i64,
    pub(crate) is_done: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CacheChange {
    pub(crate) xid: u64,
    pub(crate) name: u32,
    pub(crate) at: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Waits for its lane.
    Waiting,
    Ready,
    Running,
    Done,
}

/// What members claim and finish. A row with a lane is a run: it holds its place in the lane from its start to its end,
/// whoever dies.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Work {
    pub(crate) id: u32,
    pub(crate) state: State,
    pub(crate) due: i64,
    pub(crate) owner: u128,
    pub(crate) attempt: i64,
    /// 0: none.
    pub(crate) lane: u32,
    /// Needs a permit of the member that executes it.
    pub(crate) needs_permit: bool,
    /// How often a request has reached it.
    pub(crate) pokes: i64,
}

/// A leader's effect.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Effect {
    pub(crate) name: u8,
    pub(crate) epoch: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    pub(crate) name: u32,
    pub(crate) version: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Counter {
    pub(crate) name: u32,
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) sum: i64,
}
