//! One client session: what it uses, watches, holds and waits for.

use crate::tube::TimedKey;
use std::collections::BTreeSet;

/// A session's number, reused after it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u32);

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) used: u32,
    /// In the order of watching; never empty but for a frontend's session.
    pub(crate) watched: Vec<u32>,
    /// Jobs it holds, by deadline.
    pub(crate) held: BTreeSet<TimedKey>,
    pub(crate) wait: Option<Wait>,
    /// When its timer is armed; never later than the next thing due, `u64::MAX` if it is not armed.
    pub(crate) timer: u64,
    /// Has put something; stays so.
    pub(crate) is_producer: bool,
    /// Has reserved something; stays so.
    pub(crate) is_worker: bool,
    /// Belongs to a frontend, which decides when a wait ends.
    pub(crate) is_remote: bool,
}

/// In place of a tube: a frontend's session that uses none here.
pub(crate) const NO_TUBE: u32 = u32::MAX;

/// A reserve that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait {
    /// Its place among all waits of the server.
    pub(crate) order: u64,
    /// When it is answered `TIMED_OUT`, in ns of the boot clock; `u64::MAX` for never.
    pub(crate) until: u64,
    /// How it is served.
    pub(crate) kind: WaitKind,
}

/// How a wait is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitKind {
    /// A job is reserved for it.
    Reserve {
        /// It ends as soon as no offer can come back.
        is_poll: bool,
    },
    /// A job is offered to it, as other owners may offer better ones.
    Offer {
        /// As above.
        is_poll: bool,
        /// The offer that it considers; meanwhile it is not in the queues of its tubes.
        offer: Option<u64>,
    },
}

impl Session {
    pub(crate) fn new(tube: u32) -> Self {
        Session {
            used: tube,
            watched: vec![tube],
            held: BTreeSet::new(),
            wait: None,
            timer: u64::MAX,
            is_producer: false,
            is_worker: false,
            is_remote: false,
        }
    }

    /// A frontend's session, which uses and watches nothing here yet.
    pub(crate) fn remote() -> Self {
        Session { used: NO_TUBE, watched: Vec::new(), is_remote: true, ..Session::new(NO_TUBE) }
    }

    /// The first deadline of the jobs it holds, in ns of the boot clock.
    pub(crate) fn first_deadline(&self) -> Option<u64> {
        self.held.first().map(|key| key.0)
    }

    /// Whether `now` lies in the last second of a job it holds.
    pub(crate) fn in_margin(&self, now_ns: u64) -> bool {
        self.first_deadline().is_some_and(|deadline| now_ns >= deadline.saturating_sub(crate::DEADLINE_MARGIN_NS))
    }

    /// When something is due for it next.
    pub(crate) fn next_due(&self) -> u64 {
        let deadline = self.first_deadline().unwrap_or(u64::MAX);
        match self.wait {
            None => deadline,
            Some(wait) if deadline == u64::MAX => wait.until,
            Some(wait) if self.is_remote => wait.until.min(deadline),
            Some(wait) => wait.until.min(deadline.saturating_sub(crate::DEADLINE_MARGIN_NS)),
        }
    }
}
