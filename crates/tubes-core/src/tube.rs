//! One tube: its queues, who refers to it, and its figures.

use crate::ready::{ReadyKey, ReadyQueue};
use std::collections::{BTreeMap, BTreeSet};

/// A job that waits for a time: when, its id, its place in the arena.
pub(crate) type TimedKey = (u64, u64, u32);

#[derive(Debug)]
pub(crate) struct Tube {
    pub(crate) name: Box<[u8]>,
    /// Rises with each creation; the order of `list-tubes`.
    pub(crate) creation: u64,
    /// Ready jobs that are not offered to anybody.
    pub(crate) ready: ReadyQueue,
    /// Ready jobs that are offered: ready for everything but another reserve.
    pub(crate) offered: BTreeSet<ReadyKey>,
    pub(crate) delayed: BTreeSet<TimedKey>,
    /// By the order of burying.
    pub(crate) buried: BTreeMap<u64, u32>,
    /// Sessions that wait here, by the order in which they began to.
    pub(crate) waiting: BTreeMap<u64, u32>,
    pub(crate) reserved_count: u64,
    pub(crate) urgent_count: u64,
    /// Sessions that use the tube.
    pub(crate) using_count: u64,
    /// Sessions that watch it.
    pub(crate) watching_count: u64,
    pub(crate) total_jobs: u64,
    pub(crate) delete_count: u64,
    pub(crate) pause_count: u64,
    /// The pause last asked for, in seconds; 0 when it is over.
    pub(crate) pause_s: u32,
    /// When the pause ends, in ns of the boot clock; 0 if the tube is not paused.
    pub(crate) paused_until: u64,
    /// When the timer of the delayed jobs is armed; never later than the first is due, `u64::MAX` if it is not armed.
    pub(crate) delay_timer: u64,
}

impl Tube {
    pub(crate) fn new(name: &[u8], creation: u64) -> Self {
        Tube {
            name: name.into(),
            creation,
            ready: ReadyQueue::default(),
            offered: BTreeSet::new(),
            delayed: BTreeSet::new(),
            buried: BTreeMap::new(),
            waiting: BTreeMap::new(),
            reserved_count: 0,
            urgent_count: 0,
            using_count: 0,
            watching_count: 0,
            total_jobs: 0,
            delete_count: 0,
            pause_count: 0,
            pause_s: 0,
            paused_until: 0,
            delay_timer: u64::MAX,
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused_until != 0
    }

    pub(crate) fn jobs(&self) -> u64 {
        self.ready_count() + self.delayed.len() as u64 + self.buried.len() as u64 + self.reserved_count
    }

    pub(crate) fn ready_count(&self) -> u64 {
        self.ready.len() as u64 + self.offered.len() as u64
    }

    /// The best ready job, offered or not.
    pub(crate) fn first_ready(&self) -> Option<ReadyKey> {
        self.ready.first().into_iter().chain(self.offered.first().copied()).min()
    }

    /// Nothing refers to it, so it vanishes (`default` excepted).
    pub(crate) fn is_unreferenced(&self) -> bool {
        self.using_count == 0 && self.watching_count == 0 && self.jobs() == 0
    }

    /// The job a reserve would get.
    pub(crate) fn servable(&self) -> Option<ReadyKey> {
        if self.is_paused() { None } else { self.ready.first() }
    }
}
