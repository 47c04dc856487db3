//! Who a member is, and what members tell each other.

use std::fmt;

use database_core::{DbError, Value};

/// An identity: random, fresh at each start and after each fence, and never used again. It is the owner in every row that a
/// member owns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u128);

impl fmt::Display for MemberId {
    /// As the database shows it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0;
        let (a, b, c) = (bits >> 96, bits >> 80 & 0xffff, bits >> 64 & 0xffff);
        write!(formatter, "{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}", bits >> 48 & 0xffff, bits & 0xffff_ffff_ffff)
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl MemberId {
    /// As the holder of a ticket: 32 hexadecimal digits.
    #[must_use]
    pub fn to_holder(self) -> String {
        format!("{:032x}", self.0)
    }

    /// What [`MemberId::to_holder`] wrote.
    #[must_use]
    pub fn from_holder(holder: &str) -> Option<Self> {
        (holder.len() == 32).then(|| u128::from_str_radix(holder, 16).ok().map(Self)).flatten()
    }
}

impl From<MemberId> for Value {
    fn from(id: MemberId) -> Self {
        Self::Uuid(id.0)
    }
}

/// Ids as a parameter.
pub(crate) fn uuids(ids: &[MemberId]) -> Value {
    Value::Uuids(ids.iter().map(|id| id.0).collect())
}

/// How a process shares its database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// PostgreSQL: any number of members with leases.
    Shared,
    /// SQLite: the only member, by the lock of the file. It registers once, leads without contest, reaps at its start.
    Sole,
    /// Without coordination, as tests and scripts are: nothing is written, the process counts as leading until it stops.
    Alone,
}

/// Which database server a connection reached: read on each connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Server {
    /// PostgreSQL's system identifier; 0 for SQLite.
    pub system: u64,
    /// Raised at each failover; `None` where the service hides it, and for SQLite.
    pub timeline: Option<u32>,
}

impl Server {
    /// Whether what was written at `self` must be there at `other`: not after a failover, nor in another database.
    #[must_use]
    pub fn is_same(self, other: Self) -> bool {
        let timelines = self.timeline.zip(other.timeline);
        self.system == other.system && timelines.is_none_or(|(ours, theirs)| ours == theirs)
    }

    /// The lowest epoch that may be given here. A promoted replica may lack epochs that the old server gave.
    #[must_use]
    pub fn epoch_min(self) -> i64 {
        i64::from(self.timeline.unwrap_or(0)) << 32
    }
}

/// Channels of notices.
pub mod channel {
    /// A member left.
    pub const GONE: &str = "gone";
    /// A permit was freed; the payload is its key.
    pub const SLOT: &str = "slot";
    /// A lane moved; the payload is its key.
    pub const LANE: &str = "lane";
    /// A request; the payload is the addressee.
    pub const REQUEST: &str = "q";
    /// Caches changed.
    pub const CACHE: &str = "cache";
    /// All of them.
    pub const ALL: &[&str] = &[GONE, SLOT, LANE, REQUEST, CACHE];
}

/// A hint between members: it may be lost, and costs time only. Sent after the commit, never within a transaction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// One of [`channel`].
    pub channel: &'static str,
    /// Ids and keys only.
    pub payload: String,
}

impl Notice {
    /// A member left.
    #[must_use]
    pub fn gone(id: MemberId) -> Self {
        Self { channel: channel::GONE, payload: id.to_holder() }
    }

    /// A request waits for `addressee`.
    #[must_use]
    pub fn request(addressee: MemberId) -> Self {
        Self { channel: channel::REQUEST, payload: addressee.to_holder() }
    }

    /// Caches changed.
    #[must_use]
    pub fn cache() -> Self {
        Self { channel: channel::CACHE, payload: String::new() }
    }
}

/// A column that must be an identity.
pub(crate) fn id_at(row: &database_core::Row, column: usize) -> Result<MemberId, DbError> {
    row.uuid(column).map(MemberId)
}
