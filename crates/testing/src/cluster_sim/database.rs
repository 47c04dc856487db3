//! A PostgreSQL that is simulated as far as its concurrency goes: snapshots, versions, row locks, waiting, looking anew at
//! rows that changed, transactions that end or break.
//!
//! Owns: the tables of `cluster-core` and of the demonstration, and what each of their statements does, by its id.
//! Never: decides when something happens; the world calls it.
//!
//! A statement takes its snapshot in [`Database::begin`], and goes on in [`Database::step`] until it is done or meets a
//! row that another transaction has locked. A row that it has waited for, or that changed since the snapshot, is judged
//! anew only if its version changed; else what was computed before the wait stands, clock values included.

pub(super) mod bench;
mod rows;
mod statements;
mod table;

pub(crate) use rows::*;
pub(crate) use statements::Op;
pub(crate) use table::Xid;
use table::{Chain, Present, Snapshot, Strength, Table};

use cluster_core::Server;
use database_core::{Answer, DbError, Value};

/// Which table a row stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    Setting,
    Member,
    Leader,
    TicketKey,
    Ticket,
    TicketWait,
    Request,
    CacheChange,
    Work,
    Effect,
    Config,
    Counter,
}

/// A row that somebody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowRef {
    pub(crate) table: Where,
    pub(crate) id: u32,
    strength: Strength,
}

/// A transaction.
#[derive(Debug, Clone)]
pub(crate) struct Txn {
    pub(crate) xid: Xid,
    command: u32,
    /// Tables in which it has written or locked something, by bit.
    touched: u16,
    pub(crate) has_written: bool,
}

/// A statement under way.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    pub(crate) op: Op,
    params: Vec<Value>,
    snapshot: Snapshot,
    stage: u8,
    candidates: Option<Vec<u32>>,
    at: usize,
    /// When the candidate was judged that is waited for.
    judged_us: Option<i64>,
    answer: Answer,
}

/// How far a statement got.
pub(crate) enum Flow {
    Done(Answer),
    Wait(RowRef),
    Failed(DbError),
}

/// What was committed, as far as the judge asks for it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Committed {
    pub(crate) effects: Vec<Effect>,
    /// Members whose rows were deleted, as they stood.
    pub(crate) members_deleted: Vec<Member>,
    /// Tickets of runs that were deleted.
    pub(crate) run_tickets_deleted: Vec<Ticket>,
    pub(crate) has_changed_tickets: bool,
    /// Leaderships that were taken.
    pub(crate) taken: Vec<Leader>,
    /// Work rows before and after.
    pub(crate) work: Vec<(Work, Work)>,
    pub(crate) config: Vec<Config>,
}

/// The database.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    pub(crate) server: Server,
    pub(crate) settings: Table<Setting>,
    pub(crate) members: Table<Member>,
    pub(crate) leaders: Table<Leader>,
    pub(crate) ticket_keys: Table<TicketKey>,
    pub(crate) tickets: Table<Ticket>,
    pub(crate) ticket_waits: Table<TicketWait>,
    pub(crate) requests: Table<Request>,
    pub(crate) cache_changes: Table<CacheChange>,
    pub(crate) work: Table<Work>,
    pub(crate) effects: Table<Effect>,
    pub(crate) config: Table<Config>,
    counters: Table<Counter>,
    /// Commits so far.
    pub(crate) seq: u64,
    next_xid: Xid,
    next_row: u32,
    next_member: i64,
    next_wait: i64,
    next_request: i64,
    /// Transactions that have written or locked something and have not ended.
    open: Vec<Xid>,
    /// Snapshots of statements under way.
    snapshots: Vec<u64>,
    /// The clock, µs.
    pub(crate) now_us: i64,
    /// The clock at which the last accepted renewal was judged, and the lease that it found.
    pub(crate) renewal_judged: Option<(i64, i64)>,
    pub(crate) skipped: u64,
    pub(crate) rechecked: u64,
}

impl Database {
    pub(crate) fn new(names: u8) -> Self {
        let mut database = Self {
            server: Server { system: 7_000, timeline: Some(1) },
            settings: Table::default(),
            members: Table::default(),
            leaders: Table::default(),
            ticket_keys: Table::default(),
            tickets: Table::default(),
            ticket_waits: Table::default(),
            requests: Table::default(),
            cache_changes: Table::default(),
            work: Table::default(),
            effects: Table::default(),
            config: Table::default(),
            counters: Table::default(),
            seq: 0,
            next_xid: 1,
            next_row: 1,
            next_member: 1,
            next_wait: 1,
            next_request: 1,
            open: Vec::new(),
            snapshots: Vec::new(),
            now_us: 0,
            renewal_judged: None,
            skipped: 0,
            rechecked: 0,
        };
        let mut txn = database.transaction();
        for name in 0..names {
            let row = Leader { name, epoch: 0, holder: None, lease_until: NEVER_US };
            database.insert(&mut txn, Where::Leader, |tables, id, xid| tables.leaders.insert(id, xid, 0, row));
        }
        database.commit(txn);
        database
    }

    /// Adds rows from outside, committed at once.
    pub(crate) fn seed_work(&mut self, row: Work) {
        let mut txn = self.transaction();
        self.insert(&mut txn, Where::Work, |tables, id, xid| tables.work.insert(id, xid, 0, row));
        self.commit(txn);
    }

    pub(crate) fn seed_config(&mut self, row: Config) {
        let mut txn = self.transaction();
        self.insert(&mut txn, Where::Config, |tables, id, xid| tables.config.insert(id, xid, 0, row));
        self.commit(txn);
    }

    pub(crate) fn transaction(&mut self) -> Txn {
        // A number is given at the first write in truth; which numbers are skipped has no meaning.
        let xid = self.next_xid;
        self.next_xid += 1;
        Txn { xid, command: 0, touched: 0, has_written: false }
    }

    /// Whether a transaction is open that has locked or written something.
    pub(crate) fn is_busy(&self) -> bool {
        !self.open.is_empty()
    }

    /// Begins a statement: takes its snapshot.
    pub(crate) fn begin(&mut self, txn: &mut Txn, op: Op, params: Vec<Value>) -> Running {
        txn.command += 1;
        let snapshot = Snapshot { seq: self.seq, xid: txn.xid, command: txn.command };
        self.snapshots.push(snapshot.seq);
        Running { op, params, snapshot, stage: 0, candidates: None, at: 0, judged_us: None, answer: Answer::default() }
    }

    /// Goes on with a statement.
    pub(crate) fn step(&mut self, txn: &mut Txn, running: &mut Running) -> Flow {
        let flow = self.execute(txn, running);
        if !matches!(flow, Flow::Wait(_)) {
            self.forget(running);
        }
        flow
    }

    /// A statement ends without an answer.
    pub(crate) fn forget(&mut self, running: &Running) {
        if let Some(place) = self.snapshots.iter().position(|seq| *seq == running.snapshot.seq) {
            self.snapshots.swap_remove(place);
        }
    }

    /// Whether what a statement waits for is still in its way.
    pub(crate) fn is_blocked(&self, xid: Xid, row: RowRef) -> bool {
        macro_rules! blocked {
            ($table:ident) => {
                self.$table.with_id(row.id).is_some_and(|chain| chain.is_locked(xid, row.strength))
            };
        }
        match row.table {
            Where::Setting => blocked!(settings),
            Where::Member => blocked!(members),
            Where::Leader => blocked!(leaders),
            Where::TicketKey => blocked!(ticket_keys),
            Where::Ticket => blocked!(tickets),
            Where::TicketWait => blocked!(ticket_waits),
            Where::Request => blocked!(requests),
            Where::CacheChange => blocked!(cache_changes),
            Where::Work => blocked!(work),
            Where::Effect => blocked!(effects),
            Where::Config => blocked!(config),
            Where::Counter => blocked!(counters),
        }
    }

    fn touch(&mut self, txn: &mut Txn, table: Where) {
        if txn.touched == 0 {
            self.open.push(txn.xid);
        }
        txn.touched |= 1 << table as u16;
    }

    fn insert(&mut self, txn: &mut Txn, table: Where, put: impl FnOnce(&mut Self, u32, Xid)) {
        self.touch(txn, table);
        txn.has_written = true;
        let id = self.next_row;
        self.next_row += 1;
        put(self, id, txn.xid);
    }

    /// Commits; says what the judge wants to know.
    pub(crate) fn commit(&mut self, txn: Txn) -> Committed {
        let mut committed = Committed::default();
        if txn.has_written {
            let xid = txn.xid;
            let is = |table: Where| txn.touched & 1 << table as u16 != 0;
            fn written<R>(table: &Table<R>, xid: Xid) -> impl Iterator<Item = (Option<&R>, Option<&R>)> {
                let own = move |chain: &&Chain<R>| chain.is_written_by(xid);
                table.chains.iter().filter(own).map(move |chain| (chain.committed(), chain.newest(xid)))
            }
            if is(Where::Effect) {
                committed.effects.extend(written(&self.effects, xid).filter_map(|(_, row)| row.cloned()));
            }
            if is(Where::Member) {
                let deleted = written(&self.members, xid).filter(|(_, after)| after.is_none());
                committed.members_deleted.extend(deleted.filter_map(|(before, _)| before.cloned()));
            }
            if is(Where::Ticket) {
                let deleted = written(&self.tickets, xid).filter(|(_, after)| after.is_none());
                let before = deleted.filter_map(|(before, _)| before.cloned());
                committed.run_tickets_deleted.extend(before.filter(|ticket| !ticket.is_member));
            }
            committed.has_changed_tickets = is(Where::Ticket) || is(Where::TicketWait);
            if is(Where::Leader) {
                for (before, after) in written(&self.leaders, xid) {
                    if let (Some(before), Some(after)) = (before, after)
                        && before.epoch != after.epoch
                    {
                        committed.taken.push(after.clone());
                    }
                }
            }
            if is(Where::Work) {
                let pairs =
                    written(&self.work, xid).filter_map(|(before, after)| Some((before?.clone(), after?.clone())));
                committed.work.extend(pairs);
            }
            if is(Where::Config) {
                committed.config.extend(written(&self.config, xid).filter_map(|(_, row)| row.cloned()));
            }
        }
        let seq = txn.has_written.then(|| {
            self.seq += 1;
            self.seq
        });
        self.end(&txn, seq);
        if !committed.effects.is_empty() {
            self.effects.chains.clear();
        }
        committed
    }

    pub(crate) fn abort(&mut self, txn: Txn) {
        self.end(&txn, None);
    }

    fn end(&mut self, txn: &Txn, commit: Option<u64>) {
        if txn.touched == 0 {
            return;
        }
        if let Some(place) = self.open.iter().position(|xid| *xid == txn.xid) {
            self.open.swap_remove(place);
        }
        let keep_from = self.snapshots.iter().copied().min().unwrap_or(u64::MAX);
        macro_rules! end {
            ($($kind:ident $table:ident),*) => {
                $(if txn.touched & 1 << Where::$kind as u16 != 0 {
                    self.$table.end(txn.xid, commit, keep_from);
                })*
            };
        }
        end!(
            Setting settings, Member members, Leader leaders, TicketKey ticket_keys, Ticket tickets,
            TicketWait ticket_waits, Request requests, CacheChange cache_changes, Work work, Effect effects, Config config,
            Counter counters
        );
    }

    /// What a restart leaves: what was committed.
    pub(crate) fn crash(&mut self) {
        self.settings.crash();
        self.members.crash();
        self.leaders.crash();
        self.ticket_keys.crash();
        self.tickets.crash();
        self.ticket_waits.crash();
        self.requests.crash();
        self.cache_changes.crash();
        self.work.crash();
        self.effects.crash();
        self.config.crash();
        self.counters.crash();
        self.open.clear();
        self.snapshots.clear();
    }

    /// A stand-by that is at this point, promoted: another timeline.
    pub(crate) fn promoted(mut self, now_us: i64, timeline: u32) -> Self {
        self.crash();
        self.now_us = now_us;
        self.server.timeline = Some(timeline);
        self
    }

    /// The oldest transaction that is open.
    fn oldest_open(&self) -> Xid {
        self.open.iter().copied().min().unwrap_or(self.next_xid)
    }

    fn ms(us: i64) -> i64 {
        us.div_euclid(1_000)
    }
}
