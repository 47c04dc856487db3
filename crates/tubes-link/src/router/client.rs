//! One client's session.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use tubes_core::NumberHasher;
use tubes_protocol::Command;

/// Deadlines below which those of jobs no longer held are not looked for.
const STALE_MIN: usize = 64;

/// What a client is in the middle of.
#[derive(Debug)]
pub(super) struct Client {
    /// Its number on the links; never reused.
    pub(super) session: u64,
    pub(super) used: (Box<[u8]>, u16),
    /// In the order of watching, with their owners; never empty.
    pub(super) watched: Vec<(Box<[u8]>, u16)>,
    /// Owners that know the session.
    pub(super) touched: OwnerSet,
    /// Jobs it holds: owner and deadline.
    held: HashMap<u64, (u16, u64), BuildHasherDefault<NumberHasher>>,
    /// Deadlines, earliest first, of jobs that it holds or has held: what is not in `held` under the same deadline is
    /// passed over, so that a job that comes and goes costs next to nothing.
    deadlines: BinaryHeap<Reverse<(u64, u64)>>,
    /// Unanswered commands behind the one that waits, in order; all at one owner.
    pub(super) pending: VecDeque<Pending>,
    /// Where they are, and a wait over one owner too.
    pub(super) busy_owner: u16,
    /// How many of them are answered with a body.
    pub(super) bodies: u32,
    /// Bytes of commands sent behind a reserve that may wait.
    pub(super) behind_bytes: usize,
    /// Bytes of answers of the frontend itself that wait for their turn.
    pub(super) local_bytes: usize,
    /// A command that cannot be sent yet, and when it is given up (in ns; `u64::MAX` while it only waits its turn).
    pub(super) stalled: Option<(Request, u64)>,
    pub(super) wait: Option<Wait>,
    pub(super) next_wait: u32,
    pub(super) gather: Option<Gather>,
    /// It will send nothing more.
    pub(super) is_half_closed: bool,
    pub(super) is_producer: bool,
    pub(super) is_worker: bool,
    /// When its timer is armed; `u64::MAX` if it is not.
    pub(super) timer: u64,
}

/// A command that has been read and not been sent.
#[derive(Debug)]
pub(super) enum Request {
    /// All but put: its line.
    Line(Box<[u8]>),
    Put {
        pri: u32,
        delay_s: u32,
        ttr_s: u32,
        body: Box<[u8]>,
    },
}

impl Request {
    pub(super) fn of(command: Command<'_>) -> Self {
        match command {
            Command::Put { pri, delay_s, ttr_s, body } => Request::Put { pri, delay_s, ttr_s, body },
            other => {
                let mut line = Vec::with_capacity(32);
                other.encode_line(&mut line);
                Request::Line(line.into())
            }
        }
    }

    /// Whether it may wait for a job.
    fn is_reserve(&self) -> bool {
        matches!(self, Request::Line(line) if **line == *b"reserve" || line.starts_with(b"reserve-with-timeout "))
    }
}

/// What an unanswered command will be answered with.
#[derive(Debug)]
pub(super) enum Pending {
    /// What the owner says.
    Forward,
    /// What the owner says of a new job.
    Put,
    /// What the owner says, which may be a job's body.
    Body,
    /// What the owner says; if it is done, the session does not hold the job any more.
    LetsGo(u64),
    /// These bytes, once the owner has answered.
    Fixed(Box<[u8]>),
    /// These bytes, once everything before is answered.
    Local(Box<[u8]>),
    /// The figures, once everything before is answered.
    Stats,
    /// A reserve over one owner, which begins to wait once everything before is answered.
    Reserve { number: u32, timeout_s: Option<u32>, is_poll: bool },
}

/// A command that several owners are asked.
#[derive(Debug)]
pub(super) struct Gather {
    pub(super) left: OwnerSet,
    pub(super) kind: GatherKind,
}

impl Gather {
    /// Whether the answer is void without this owner: it has not answered, or what it has said is the answer.
    pub(super) fn needs(&self, owner: u16) -> bool {
        let is_answer = matches!(&self.kind, GatherKind::Id { answer: Some((of, ..)), .. } if *of == owner);
        self.left.contains(owner) || is_answer
    }
}

#[derive(Debug)]
pub(super) enum GatherKind {
    /// Names with their numbers of creation.
    Names(BTreeMap<(u64, Vec<u8>), ()>),
    /// A command about an id without partition: what the one that knows it says, and the id if it lets go of the job.
    Id { answer: Option<(u16, crate::message::Outcome, Vec<u8>)>, lets_go: Option<u64> },
}

/// A reserve that waits.
#[derive(Debug)]
pub(super) struct Wait {
    /// Its number on the links.
    pub(super) number: u32,
    /// When the owners were asked, in ns.
    pub(super) began: u64,
    /// When it times out, in ns; `u64::MAX` for never.
    pub(super) until: u64,
    pub(super) is_poll: bool,
    /// Owners that have not confirmed that it has ended, once it is to end.
    pub(super) owners: OwnerSet,
    /// How it ends if no job crosses, and when the client is closed for want of confirmation.
    pub(super) ending: Option<(Ending, u64)>,
    /// Set if several owners are asked.
    pub(super) round: Option<Round>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    TimedOut,
    DeadlineSoon,
}

impl Wait {
    /// When it ends because the last second begins of a job that the client holds until `first_deadline`; `u64::MAX` if
    /// it holds none. If the owners were asked within that second, they decide first: a ready job is handed out then.
    pub(super) fn soon_at(&self, first_deadline: u64) -> u64 {
        if first_deadline == u64::MAX {
            return u64::MAX;
        }
        first_deadline.saturating_sub(super::MARGIN_NS).max(self.began.saturating_add(super::OFFERS_NS))
    }
}

/// Offers of several owners.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Owners that have not answered.
    pub(super) asked: OwnerSet,
    /// Owners that say the answer must be "soon".
    pub(super) soon: OwnerSet,
    /// By priority and id: owner and offer.
    pub(super) offers: BTreeMap<(u32, u64), (u16, u64)>,
    /// When the best offer is accepted though not all have answered; `u64::MAX` without an offer.
    pub(super) accept_at: u64,
    /// The owner whose offer is being accepted.
    pub(super) accepting: Option<u16>,
    /// An accepted offer was gone since the owners were asked.
    pub(super) has_missed: bool,
    /// How often they were asked again for that reason.
    pub(super) rounds: u32,
    /// A poll gives up on an owner that is away, in ns.
    pub(super) give_up_at: u64,
}

impl Client {
    pub(super) fn new(session: u64, default_owner: u16) -> Self {
        let default: Box<[u8]> = b"default"[..].into();
        Client {
            session,
            used: (default.clone(), default_owner),
            watched: vec![(default, default_owner)],
            touched: OwnerSet::default(),
            held: HashMap::default(),
            deadlines: BinaryHeap::new(),
            pending: VecDeque::new(),
            busy_owner: 0,
            bodies: 0,
            behind_bytes: 0,
            local_bytes: 0,
            stalled: None,
            wait: None,
            next_wait: 0,
            gather: None,
            is_half_closed: false,
            is_producer: false,
            is_worker: false,
            timer: u64::MAX,
        }
    }

    /// Whether something asked is not answered, or waits.
    pub(super) fn is_busy(&self) -> bool {
        !self.pending.is_empty() || self.wait.is_some()
    }

    /// Whether a command is still to be answered that is no reserve that waits and does not stand behind one.
    pub(super) fn has_unanswered(&self) -> bool {
        let is_stalled = self.stalled.as_ref().is_some_and(|(request, _)| !request.is_reserve());
        self.wait.is_none() && (!self.pending.is_empty() || is_stalled) || self.gather.is_some()
    }

    /// Whether a put is not answered.
    pub(super) fn has_put(&self) -> bool {
        matches!(self.stalled, Some((Request::Put { .. }, _)))
            || self.pending.iter().any(|pending| matches!(pending, Pending::Put))
    }

    /// Whether several owners are asked for a job.
    pub(super) fn is_in_round(&self) -> bool {
        self.wait.as_ref().is_some_and(|wait| wait.round.is_some())
    }

    /// Owners of the watched tubes.
    pub(super) fn watched_owners(&self) -> OwnerSet {
        self.watched.iter().map(|(_, owner)| *owner).collect()
    }

    /// The owner of all watched tubes, if there is one.
    pub(super) fn only_watched_owner(&self) -> Option<u16> {
        let owner = self.watched[0].1;
        self.watched.iter().all(|(_, other)| *other == owner).then_some(owner)
    }

    pub(super) fn hold(&mut self, id: u64, owner: u16, deadline_ns: u64) {
        self.held.insert(id, (owner, deadline_ns));
        if self.deadlines.len() >= STALE_MIN && self.deadlines.len() / 2 >= self.held.len() {
            let held = &self.held;
            self.deadlines.retain(|Reverse((deadline, id))| held.get(id).is_some_and(|(_, now)| now == deadline));
        }
        self.deadlines.push(Reverse((deadline_ns, id)));
        self.drop_stale();
    }

    pub(super) fn let_go(&mut self, id: u64) {
        if self.held.remove(&id).is_some() {
            self.drop_stale();
        }
    }

    /// Whether it holds a job of the owner.
    pub(super) fn holds_at(&self, owner: u16) -> bool {
        self.held.values().any(|(holder, _)| *holder == owner)
    }

    /// Forgets jobs whose deadline has passed: their owner has taken them back.
    pub(super) fn forget_expired(&mut self, now_ns: u64) {
        while let Some(Reverse((deadline, id))) = self.deadlines.peek().copied()
            && deadline <= now_ns
        {
            self.let_go(id);
        }
    }

    /// `u64::MAX` if it holds nothing.
    pub(super) fn first_deadline(&self) -> u64 {
        self.deadlines.peek().map_or(u64::MAX, |Reverse((deadline, _))| *deadline)
    }

    /// Makes the earliest deadline that of a job it holds.
    fn drop_stale(&mut self) {
        while let Some(Reverse((deadline, id))) = self.deadlines.peek()
            && self.held.get(id).is_none_or(|(_, now)| now != deadline)
        {
            self.deadlines.pop();
        }
    }

    /// Whether `now_ns` lies in the last second of a job it holds.
    pub(super) fn in_margin(&self, now_ns: u64) -> bool {
        now_ns >= self.first_deadline().saturating_sub(super::MARGIN_NS)
    }

    /// When the last second of a job it holds ends the wait, in ns; `u64::MAX` if nothing does. What a poll hears in that
    /// second is the owners' to say: only they know whether a ready job is there.
    pub(super) fn margin_of(&self, wait: &Wait) -> u64 {
        if wait.is_poll { u64::MAX } else { wait.soon_at(self.first_deadline()) }
    }

    /// Whether `now_ns` lies in the last second of a job that it holds at another owner than `owner`. What it holds there,
    /// that owner knows better: a job may be let go by a command that is on its way.
    pub(super) fn in_margin_elsewhere(&self, now_ns: u64, owner: u16) -> bool {
        let is_near = |deadline: u64| now_ns >= deadline.saturating_sub(super::MARGIN_NS);
        self.in_margin(now_ns) && self.held.values().any(|(holder, deadline)| *holder != owner && is_near(*deadline))
    }

    /// When something is due for it next, in ns; `u64::MAX` if nothing is.
    pub(super) fn next_due(&self) -> u64 {
        let mut due = self.stalled.as_ref().map_or(u64::MAX, |(_, until)| *until);
        match &self.wait {
            None => {}
            // Its offers do not count any more.
            Some(Wait { ending: Some((_, close_at)), .. }) => due = due.min(*close_at),
            Some(wait) => {
                due = due.min(wait.until).min(self.margin_of(wait));
                if let Some(round) = &wait.round {
                    // While an offer is being accepted, the owner's answer is what comes next.
                    if round.accepting.is_none() {
                        due = due.min(round.accept_at).min(round.give_up_at);
                    }
                }
            }
        }
        due
    }
}

/// Some of the owners, at most 64.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OwnerSet(u64);

impl OwnerSet {
    pub(super) fn all(owners: u16) -> Self {
        (0..owners).collect()
    }

    pub(super) fn contains(self, owner: u16) -> bool {
        self.0 & (1 << owner) != 0
    }

    pub(super) fn insert(&mut self, owner: u16) {
        self.0 |= 1 << owner;
    }

    pub(super) fn remove(&mut self, owner: u16) {
        self.0 &= !(1 << owner);
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = u16> {
        (0..64).filter(move |owner| self.contains(*owner))
    }
}

impl FromIterator<u16> for OwnerSet {
    fn from_iter<I: IntoIterator<Item = u16>>(owners: I) -> Self {
        let mut set = OwnerSet::default();
        for owner in owners {
            set.insert(owner);
        }
        set
    }
}
