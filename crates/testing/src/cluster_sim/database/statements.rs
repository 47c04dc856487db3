//! What each statement does.
//!
//! A statement that locks or changes rows goes through [`scan`]: candidates by the snapshot, one after the other; wait or
//! skip; look anew if the version changed.

mod look;
mod words;

use cluster_core::planted::{Bug, is};
use database_core::{Answer, Class, DbError, Row, Value};

use super::{
    CacheChange, Counter, Database, Effect, Flow, Leader, Member, NEVER_US, Present, Request, RowRef, Running, Setting,
    State, Strength, Table, Ticket, TicketKey, TicketWait, Txn, Where, Work,
};

use words::{
    holder, holder_text, int, kind_text, kind_word, leader_name, leader_text, name, number, state, text, ticket, uuid,
    uuids, window_us,
};

macro_rules! ops {
    ($($op:ident $id:literal),* $(,)?) => {
        /// A statement.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Op {
            $($op),*
        }

        impl Op {
            /// By its id.
            pub(crate) fn of(id: &str) -> Self {
                match id {
                    $($id => Self::$op,)*
                    _ => panic!("the simulated database does not know the statement {id}"),
                }
            }
        }
    };
}

ops! {
    SettleLease "member.settle_lease",
    ReadLease "member.read_lease",
    LockLease "member.lock_lease",
    SetLease "member.set_lease",
    Register "member.register",
    Renew "member.renew",
    MemberGuard "member.guard",
    View "member.view",
    LockDead "member.lock_dead",
    LockMembers "member.lock",
    DeleteMembers "member.delete",
    Missing "member.missing",
    Contest "leader.contest",
    Release "leader.release",
    GiveUpLeader "leader.give_up",
    LeaderGuard "leader.guard",
    LockKey "ticket.lock_key",
    FindKey "ticket.find_key",
    CountTickets "ticket.count",
    InsertTicket "ticket.insert",
    WaitTicket "ticket.wait",
    FreeTicket "ticket.free",
    LeaveTicket "ticket.leave",
    NextTicket "ticket.next",
    GiveTicket "ticket.give",
    OfHolders "ticket.of_holders",
    Holders "ticket.holders",
    LockIdle "ticket.lock_idle",
    DeleteIdle "ticket.delete_idle",
    AddCounter "counter.add",
    ReadCounter "counter.read",
    PruneCounters "counter.prune",
    ChangeCache "cache.change",
    PruneCache "cache.prune",
    InsertRequest "request.insert",
    TakeRequests "request.take",
    AnswerRequest "request.answer",
    PollRequests "request.poll",
    DiscardRequests "request.discard",
    Readdress "request.readdress",
    PruneRequests "request.prune",
    Start "demo.start",
    Wake "demo.wake",
    Claim "demo.claim",
    Finish "demo.finish",
    Mine "demo.mine",
    FinishAnyway "demo.finish_anyway",
    GiveUp "demo.give_up",
    Owners "demo.owners",
    Poke "demo.poke",
    MakeEffect "demo.effect",
    ChangeConfig "demo.change",
    ReadConfig "demo.read",
}

impl Op {
    /// Whether time between its snapshot and its work can matter: it locks or changes rows that it looks for.
    pub(crate) const fn is_racy(self) -> bool {
        !matches!(
            self,
            Self::View
                | Self::CountTickets
                | Self::NextTicket
                | Self::OfHolders
                | Self::Holders
                | Self::Missing
                | Self::PollRequests
                | Self::Owners
                | Self::Mine
                | Self::ReadConfig
                | Self::MakeEffect
                | Self::ChangeCache
                | Self::InsertRequest
                | Self::PruneCounters
        )
    }

    /// Whether it only reads.
    pub(crate) const fn is_read(self) -> bool {
        matches!(self, Self::View | Self::ReadConfig | Self::PollRequests | Self::Mine)
    }
}

/// What becomes of a candidate.
enum Change<R> {
    /// It stays as it is, locked.
    Keep,
    Write(R),
    Delete,
}

enum Wait {
    Block,
    Skip,
}

/// Which way a scan ended.
enum Scan {
    Done,
    Wait(RowRef),
}

struct Place {
    table: Where,
    strength: Strength,
    wait: Wait,
}

/// Locks and changes rows of a table, one after the other. `find` gives the candidates of the snapshot, in order; `keep`
/// judges a row at a time of the clock; `change` says what becomes of it, and adds to the answer.
#[expect(clippy::too_many_arguments, reason = "what a statement works with, and what it does")]
fn scan<R: Clone>(
    table: &mut Table<R>,
    place: Place,
    now_us: i64,
    txn: &mut Txn,
    running: &mut Running,
    counts: &mut (u64, u64),
    keep: impl Fn(&R, i64) -> bool,
    mut change: impl FnMut(&R, i64, &mut Answer) -> Change<R>,
) -> Scan {
    let snapshot = running.snapshot;
    if running.candidates.is_none() {
        running.candidates = Some(table.seen(snapshot).map(|(id, _)| id).collect());
    }
    let candidates = running.candidates.take().expect("set above");
    while running.at < candidates.len() {
        let id = candidates[running.at];
        let Some(chain) = table.with_id_mut(id) else {
            running.at += 1;
            running.judged_us = None;
            continue;
        };
        let judged_us = running.judged_us.unwrap_or(now_us);
        let Some(row) = chain.visible(snapshot) else {
            running.at += 1;
            continue;
        };
        if !keep(row, judged_us) {
            running.at += 1;
            running.judged_us = None;
            continue;
        }
        if chain.is_locked(txn.xid, place.strength) {
            if matches!(place.wait, Wait::Skip) {
                counts.0 += 1;
                running.at += 1;
                running.judged_us = None;
                continue;
            }
            running.judged_us = Some(judged_us);
            running.candidates = Some(candidates);
            return Scan::Wait(RowRef { table: place.table, id, strength: place.strength });
        }
        running.at += 1;
        running.judged_us = None;
        // Not changed: what was computed before the wait stands, with the clock of then.
        let (row, at_us) = if chain.has_changed(snapshot) && !chain.is_written_by(txn.xid) {
            counts.1 += 1;
            match chain.committed() {
                Some(row) if keep(row, now_us) => (row.clone(), now_us),
                _ => continue,
            }
        } else {
            (row.clone(), judged_us)
        };
        chain.lock(txn.xid, place.strength);
        match change(&row, at_us, &mut running.answer) {
            Change::Keep => {}
            Change::Write(row) => {
                table.write(id, txn.xid, txn.command, Some(row));
                txn.has_written = true;
                running.answer.affected += 1;
            }
            Change::Delete => {
                table.write(id, txn.xid, txn.command, None);
                txn.has_written = true;
                running.answer.affected += 1;
            }
        }
    }
    running.candidates = Some(candidates);
    Scan::Done
}

fn refused(what: &str) -> Flow {
    Flow::Failed(DbError { class: Class::Refused, code: Some("23503".into()), message: what.into(), constraint: None })
}

impl Database {
    fn left_ms(until: i64, now_us: i64) -> Value {
        Value::Int(Self::ms(until - now_us))
    }

    /// Executes as far as it goes.
    pub(super) fn execute(&mut self, txn: &mut Txn, running: &mut Running) -> Flow {
        let params = std::mem::take(&mut running.params);
        let flow = self.execute_with(txn, running, &params);
        running.params = params;
        flow
    }

    fn execute_with(&mut self, txn: &mut Txn, running: &mut Running, params: &[Value]) -> Flow {
        let now = self.now_us;
        let snapshot = running.snapshot;
        let mut counts = (0, 0);
        macro_rules! scan {
            ($table:ident, $kind:ident, $strength:ident, $wait:ident, $keep:expr, $change:expr) => {{
                if self.$table.chains.is_empty() {
                    Scan::Done
                } else {
                    self.touch(txn, Where::$kind);
                    let place = Place { table: Where::$kind, strength: Strength::$strength, wait: Wait::$wait };
                    scan(&mut self.$table, place, now, txn, running, &mut counts, $keep, $change)
                }
            }};
        }
        macro_rules! answer {
            ($scan:expr) => {{
                let ended = $scan;
                self.skipped += counts.0;
                self.rechecked += counts.1;
                match ended {
                    Scan::Done => Flow::Done(std::mem::take(&mut running.answer)),
                    Scan::Wait(row) => Flow::Wait(row),
                }
            }};
        }
        macro_rules! blocked {
            ($kind:ident, $id:expr) => {{
                // For the end of who writes it, whoever else locks it.
                return Flow::Wait(RowRef { table: Where::$kind, id: $id, strength: Strength::Share });
            }};
        }
        match running.op {
            Op::SettleLease => {
                match self.settings.present(txn.xid, |_| true) {
                    Present::Undecided(id) => blocked!(Setting, id),
                    Present::Row(_) => {}
                    Present::Nothing => {
                        let row = Setting { lease_ms: int(&params[0]) };
                        let command = txn.command;
                        self.insert(txn, Where::Setting, |all, id, xid| all.settings.insert(id, xid, command, row));
                        return Flow::Done(Answer { rows: vec![], affected: 1 });
                    }
                }
                Flow::Done(Answer::default())
            }
            Op::ReadLease => answer!(scan!(settings, Setting, Share, Block, |_, _| true, |row, _, answer| {
                answer.rows.push(vec![Value::Int(row.lease_ms)].into());
                Change::Keep
            })),
            Op::LockLease => answer!(scan!(settings, Setting, Update, Block, |_, _| true, |row, _, answer| {
                answer.rows.push(vec![Value::Int(row.lease_ms)].into());
                Change::Keep
            })),
            Op::SetLease => {
                let me = uuid(&params[1]);
                let others =
                    self.members.seen(snapshot).any(|(_, member)| member.id != me && member.lease_until >= now);
                let lease_ms = int(&params[0]);
                answer!(scan!(settings, Setting, NoKeyUpdate, Block, |_, _| !others, |_, _, _| {
                    Change::Write(Setting { lease_ms })
                }))
            }
            Op::Register => {
                let no = self.next_member;
                self.next_member += 1;
                let lease_until = now + int(&params[6]) * 1_000;
                let row = Member {
                    id: uuid(&params[0]),
                    no,
                    pid: int(&params[3]),
                    schema: int(&params[5]),
                    lease_until,
                    heartbeat_at: now,
                };
                if self.members.committed().any(|member| member.id == row.id) {
                    return refused("a member of this id is registered");
                }
                let command = txn.command;
                self.insert(txn, Where::Member, |all, id, xid| all.members.insert(id, xid, command, row));
                let row = vec![Value::Int(no), Self::left_ms(lease_until, now), Value::Int(Self::ms(now))];
                Flow::Done(vec![Row::from(row)].into())
            }
            Op::Renew => {
                let (me, lease_us, age_us) = (uuid(&params[0]), int(&params[1]) * 1_000, int(&params[2]) * 1_000);
                let ignores = is(Bug::RenewalIgnoresExpiry);
                let mut judged = None;
                let ended = scan!(
                    members,
                    Member,
                    NoKeyUpdate,
                    Block,
                    |row, at| row.id == me && (ignores || row.lease_until >= at),
                    |row, at, answer| {
                        judged = Some((at, row.lease_until));
                        let lease_until = at + lease_us;
                        answer.rows.push(vec![Self::left_ms(lease_until, now), Value::Int(Self::ms(now))].into());
                        Change::Write(Member { lease_until, heartbeat_at: at - age_us, ..row.clone() })
                    }
                );
                if judged.is_some() {
                    self.renewal_judged = judged;
                }
                if matches!(ended, Scan::Done)
                    && running.answer.rows.is_empty()
                    && self.members.seen(snapshot).any(|(_, member)| member.id == me)
                {
                    running.answer.rows.push(vec![Value::Null, Value::Null].into());
                }
                answer!(ended)
            }
            Op::MemberGuard => {
                let me = uuid(&params[0]);
                if is(Bug::GuardWithoutLock) {
                    let lives = self.members.seen(snapshot).any(|(_, row)| row.id == me && row.lease_until >= now);
                    let rows = if lives { vec![Row::from(vec![Value::Int(1)])] } else { vec![] };
                    return Flow::Done(rows.into());
                }
                answer!(scan!(
                    members,
                    Member,
                    KeyShare,
                    Block,
                    |row, at| row.id == me && row.lease_until >= at,
                    |_, _, answer| {
                        answer.rows.push(vec![Value::Int(1)].into());
                        Change::Keep
                    }
                ))
            }
            Op::View => Flow::Done(self.view(running, uuid(&params[0]), int(&params[1])).into()),
            Op::LockDead => {
                let known = uuids(&params[0]);
                if running.candidates.is_none() {
                    // The sort comes first: all are judged at once.
                    let mut dead: Vec<(u128, u32)> = self
                        .members
                        .seen(snapshot)
                        .filter(|(_, row)| row.lease_until < now || known.contains(&row.id))
                        .map(|(id, row)| (row.id, id))
                        .collect();
                    dead.sort_unstable();
                    dead.truncate(50);
                    running.candidates = Some(dead.into_iter().map(|(_, id)| id).collect());
                }
                answer!(scan!(
                    members,
                    Member,
                    Update,
                    Skip,
                    |row, at| row.lease_until < at || known.contains(&row.id),
                    |row, _, answer| {
                        answer.rows.push(vec![Value::Uuid(row.id)].into());
                        Change::Keep
                    }
                ))
            }
            Op::LockMembers => {
                let ids = uuids(&params[0]);
                answer!(scan!(members, Member, Update, Block, |row, _| ids.contains(&row.id), |row, _, answer| {
                    answer.rows.push(vec![Value::Uuid(row.id)].into());
                    Change::Keep
                }))
            }
            Op::DeleteMembers => {
                let ids = uuids(&params[0]);
                answer!(scan!(members, Member, Update, Block, |row, _| ids.contains(&row.id), |_, _, _| Change::Delete))
            }
            Op::Missing => {
                let is_there = |id: u128| self.members.seen(snapshot).any(|(_, member)| member.id == id);
                let missing = uuids(&params[0]).iter().filter(|id| !is_there(**id));
                Flow::Done(missing.map(|id| Row::from(vec![Value::Uuid(*id)])).collect::<Vec<_>>().into())
            }
            Op::Contest => self.contest(txn, running, params),
            Op::Release => {
                let (name, me, epoch) = (leader_name(text(&params[0])), uuid(&params[1]), int(&params[2]));
                let is_it = |row: &Leader, _| row.name == name && row.holder == Some(me) && row.epoch == epoch;
                answer!(scan!(leaders, Leader, NoKeyUpdate, Block, is_it, |row, _, _| {
                    Change::Write(Leader { holder: None, lease_until: NEVER_US, ..row.clone() })
                }))
            }
            Op::GiveUpLeader => {
                let ids = uuids(&params[0]);
                let is_it = |row: &Leader, _| row.holder.is_some_and(|holder| ids.contains(&holder));
                answer!(scan!(leaders, Leader, NoKeyUpdate, Block, is_it, |row, _, answer| {
                    answer.rows.push(vec![Value::Text(leader_text(row.name).into())].into());
                    Change::Write(Leader { holder: None, lease_until: NEVER_US, ..row.clone() })
                }))
            }
            Op::LeaderGuard => {
                let (name, me, epoch) = (leader_name(text(&params[0])), uuid(&params[1]), int(&params[2]));
                if running.stage == 0 {
                    let leads = |row: &Leader, at: i64| {
                        row.name == name && row.holder == Some(me) && row.epoch == epoch && row.lease_until >= at
                    };
                    let mut is_held = false;
                    let ended = scan!(leaders, Leader, KeyShare, Block, leads, |_, _, _| {
                        is_held = true;
                        Change::Keep
                    });
                    if !matches!(ended, Scan::Done) || !is_held {
                        return answer!(ended);
                    }
                    (running.stage, running.candidates, running.at) = (1, None, 0);
                }
                let lives = |row: &Member, at: i64| row.id == me && row.lease_until >= at;
                answer!(scan!(members, Member, KeyShare, Block, lives, |_, _, answer| {
                    answer.rows.push(vec![Value::Int(1)].into());
                    Change::Keep
                }))
            }
            Op::LockKey => {
                let (is_lane, key, limit) = (text(&params[0]) == "lane", number(text(&params[1])), int(&params[2]));
                let is_it = |row: &TicketKey| row.is_lane == is_lane && row.key == key;
                if is(Bug::CountWithoutLock) && self.ticket_keys.seen(snapshot).any(|(_, row)| is_it(row)) {
                    return Flow::Done(Answer::default());
                }
                match self.ticket_keys.present(txn.xid, is_it) {
                    Present::Undecided(id) => blocked!(TicketKey, id),
                    Present::Nothing => {
                        let row = TicketKey { is_lane, key, limit };
                        let command = txn.command;
                        self.insert(txn, Where::TicketKey, |all, id, xid| {
                            all.ticket_keys.insert(id, xid, command, row)
                        });
                    }
                    Present::Row(id) => {
                        self.touch(txn, Where::TicketKey);
                        let chain = self.ticket_keys.with_id_mut(id).expect("it was found");
                        if chain.is_locked(txn.xid, Strength::NoKeyUpdate) {
                            return Flow::Wait(RowRef { table: Where::TicketKey, id, strength: Strength::NoKeyUpdate });
                        }
                        chain.lock(txn.xid, Strength::NoKeyUpdate);
                        let row = TicketKey { is_lane, key, limit };
                        self.ticket_keys.write(id, txn.xid, txn.command, Some(row));
                        txn.has_written = true;
                    }
                }
                Flow::Done(Answer { rows: vec![], affected: 1 })
            }
            Op::FindKey => {
                let (is_lane, key) = (text(&params[0]) == "lane", number(text(&params[1])));
                let is_it = |row: &TicketKey, _| row.is_lane == is_lane && row.key == key;
                answer!(scan!(ticket_keys, TicketKey, Update, Block, is_it, |row, _, answer| {
                    answer.rows.push(vec![Value::Int(row.limit)].into());
                    Change::Keep
                }))
            }
            Op::CountTickets => {
                let own = ticket(params);
                let mut counts = [0; 4];
                for (_, row) in self.tickets.seen(snapshot) {
                    if row.is_lane == own.is_lane && row.key == own.key {
                        counts[0] += 1;
                        counts[2] += i64::from(*row == own);
                    }
                }
                for (_, row) in self.ticket_waits.seen(snapshot) {
                    if row.ticket.is_lane == own.is_lane && row.ticket.key == own.key {
                        counts[1] += 1;
                        counts[3] += i64::from(row.ticket == own);
                    }
                }
                Flow::Done(vec![Row::from(counts.map(Value::Int).to_vec())].into())
            }
            Op::InsertTicket | Op::WaitTicket => {
                let row = ticket(params);
                // The foreign key: the key's row must be there, and stay.
                let key = self.ticket_keys.present(txn.xid, |key| key.is_lane == row.is_lane && key.key == row.key);
                match key {
                    Present::Nothing => return refused("a ticket's key is missing"),
                    Present::Undecided(id) => blocked!(TicketKey, id),
                    Present::Row(id) => {
                        self.touch(txn, Where::TicketKey);
                        let chain = self.ticket_keys.with_id_mut(id).expect("it was found");
                        if chain.is_locked(txn.xid, Strength::KeyShare) {
                            return Flow::Wait(RowRef { table: Where::TicketKey, id, strength: Strength::KeyShare });
                        }
                        chain.lock(txn.xid, Strength::KeyShare);
                    }
                }
                let command = txn.command;
                if running.op == Op::InsertTicket {
                    match self.tickets.present(txn.xid, |ticket| *ticket == row) {
                        Present::Undecided(id) => blocked!(Ticket, id),
                        Present::Row(_) => return refused("a ticket is held twice by one holder"),
                        Present::Nothing => {
                            self.insert(txn, Where::Ticket, |all, id, xid| all.tickets.insert(id, xid, command, row));
                        }
                    }
                } else {
                    match self.ticket_waits.present(txn.xid, |wait| wait.ticket == row) {
                        Present::Undecided(id) => blocked!(TicketWait, id),
                        Present::Row(_) => return refused("a holder waits twice for a ticket"),
                        Present::Nothing => {
                            let no = self.next_wait;
                            self.next_wait += 1;
                            let row = TicketWait { no, ticket: row };
                            self.insert(txn, Where::TicketWait, |all, id, xid| {
                                all.ticket_waits.insert(id, xid, command, row);
                            });
                        }
                    }
                }
                Flow::Done(Answer { rows: vec![], affected: 1 })
            }
            Op::FreeTicket => {
                let own = ticket(params);
                answer!(scan!(tickets, Ticket, Update, Block, |row, _| *row == own, |_, _, _| Change::Delete))
            }
            Op::LeaveTicket | Op::GiveTicket => {
                let own = ticket(params);
                answer!(scan!(ticket_waits, TicketWait, Update, Block, |row, _| row.ticket == own, |_, _, _| {
                    Change::Delete
                }))
            }
            Op::NextTicket => {
                let (is_lane, key) = (text(&params[0]) == "lane", number(text(&params[1])));
                let waits = self.ticket_waits.seen(snapshot).map(|(_, row)| row);
                let next =
                    waits.filter(|row| row.ticket.is_lane == is_lane && row.ticket.key == key).min_by_key(|row| row.no);
                let row = next.map(|row| {
                    let ticket = &row.ticket;
                    Row::from(vec![kind_word(ticket.is_member), holder_text(ticket.is_member, ticket.holder)])
                });
                Flow::Done(row.into_iter().collect::<Vec<_>>().into())
            }
            Op::OfHolders => {
                let Value::Texts(holders) = &params[1] else { panic!("holders are texts") };
                let kind = &params[0];
                let holders: Vec<(bool, u128)> =
                    holders.iter().map(|text| holder(kind, &Value::Text(text.clone()))).collect();
                let waits = self.ticket_waits.seen(snapshot).map(|(_, row)| &row.ticket);
                let held = self.tickets.seen(snapshot).map(|(_, row)| row);
                let mut keys: Vec<(bool, u32, u128, bool)> = held
                    .chain(waits)
                    .filter(|row| holders.contains(&(row.is_member, row.holder)))
                    .map(|row| (!row.is_lane, row.key, row.holder, row.is_member))
                    .collect();
                keys.sort_unstable();
                keys.dedup();
                let rows = keys.into_iter().map(|(is_permit, key, id, is_member)| {
                    Row::from(vec![kind_text(!is_permit), name('k', key), holder_text(is_member, id)])
                });
                Flow::Done(rows.collect::<Vec<_>>().into())
            }
            Op::Holders => {
                let is_member = text(&params[0]) == "member";
                let waits = self.ticket_waits.seen(snapshot).map(|(_, row)| &row.ticket);
                let held = self.tickets.seen(snapshot).map(|(_, row)| row);
                let mut ids: Vec<u128> =
                    held.chain(waits).filter(|row| row.is_member == is_member).map(|row| row.holder).collect();
                ids.sort_unstable();
                ids.dedup();
                let rows = ids.into_iter().map(|id| Row::from(vec![holder_text(is_member, id)]));
                Flow::Done(rows.collect::<Vec<_>>().into())
            }
            Op::LockIdle => {
                let idle = self.idle_keys(snapshot);
                answer!(scan!(
                    ticket_keys,
                    TicketKey,
                    Update,
                    Skip,
                    |row, _| idle.contains(&(row.is_lane, row.key)),
                    |row, _, answer| {
                        answer.rows.push(vec![kind_text(row.is_lane), name('k', row.key)].into());
                        Change::Keep
                    }
                ))
            }
            Op::DeleteIdle => {
                let (is_lane, key) = (text(&params[0]) == "lane", number(text(&params[1])));
                let is_idle = is(Bug::IdleKeyNotRechecked) || self.idle_keys(snapshot).contains(&(is_lane, key));
                let is_it = |row: &TicketKey, _| is_idle && row.is_lane == is_lane && row.key == key;
                let flow = answer!(scan!(ticket_keys, TicketKey, Update, Block, is_it, |_, _, _| Change::Delete));
                // The foreign keys of tickets and waits.
                let is_used = |row: &Ticket| row.is_lane == is_lane && row.key == key;
                if matches!(&flow, Flow::Done(answer) if answer.affected > 0)
                    && (self.tickets.committed().any(is_used)
                        || self.ticket_waits.committed().any(|wait| is_used(&wait.ticket)))
                {
                    return refused("a key is removed that tickets name");
                }
                flow
            }
            Op::AddCounter => {
                let (key, size) = (number(text(&params[0])), window_us(text(&params[1])));
                let (start, count) = (now - now.rem_euclid(size), int(&params[2]));
                let fits = |sum: i64| !matches!(params[3], Value::Int(limit) if sum > limit);
                if !fits(count) {
                    return Flow::Done(Answer::default());
                }
                let sum = match self.counters.present(txn.xid, |row| row.name == key && row.start == start) {
                    Present::Undecided(id) => blocked!(Counter, id),
                    Present::Nothing => {
                        let row = Counter { name: key, start, end: start + size, sum: count };
                        let command = txn.command;
                        self.insert(txn, Where::Counter, |all, id, xid| all.counters.insert(id, xid, command, row));
                        count
                    }
                    Present::Row(id) => {
                        self.touch(txn, Where::Counter);
                        let chain = self.counters.with_id_mut(id).expect("it was found");
                        if chain.is_locked(txn.xid, Strength::NoKeyUpdate) {
                            return Flow::Wait(RowRef { table: Where::Counter, id, strength: Strength::NoKeyUpdate });
                        }
                        chain.lock(txn.xid, Strength::NoKeyUpdate);
                        let mut row = chain.newest(txn.xid).expect("it is there").clone();
                        row.sum += count;
                        if !fits(row.sum) {
                            return Flow::Done(Answer::default());
                        }
                        let sum = row.sum;
                        self.counters.write(id, txn.xid, txn.command, Some(row));
                        txn.has_written = true;
                        sum
                    }
                };
                let row = vec![Value::Int(sum), Self::left_ms(start + size, now)];
                Flow::Done(vec![Row::from(row)].into())
            }
            Op::ReadCounter => {
                let (key, size) = (number(text(&params[0])), window_us(text(&params[1])));
                let start = now - now.rem_euclid(size);
                let row = self.counters.seen(snapshot).find(|(_, row)| row.name == key && row.start == start);
                let row = vec![Value::Int(row.map_or(0, |(_, row)| row.sum)), Self::left_ms(start + size, now)];
                Flow::Done(vec![Row::from(row)].into())
            }
            Op::PruneCounters => {
                let before = now - int(&params[0]) * 1_000;
                answer!(scan!(counters, Counter, Update, Block, |row, _| row.end < before, |_, _, _| Change::Delete))
            }
            Op::ChangeCache => {
                let row = CacheChange { xid: txn.xid, name: number(text(&params[0])), at: now };
                let command = txn.command;
                self.insert(txn, Where::CacheChange, |all, id, xid| all.cache_changes.insert(id, xid, command, row));
                Flow::Done(Answer { rows: vec![], affected: 1 })
            }
            Op::PruneCache => {
                let before = now - int(&params[0]) * 1_000;
                answer!(scan!(cache_changes, CacheChange, Update, Block, |row, _| row.at < before, |_, _, _| {
                    Change::Delete
                }))
            }
            Op::InsertRequest => {
                let id = self.next_request;
                self.next_request += 1;
                let (kind, payload) = (text(&params[0]).into(), text(&params[3]).into());
                let (asker, addressee) = (uuid(&params[1]), uuid(&params[2]));
                let row = Request { id, kind, asker, addressee, payload, created_at: now, is_done: false };
                let command = txn.command;
                self.insert(txn, Where::Request, |all, id, xid| all.requests.insert(id, xid, command, row));
                Flow::Done(vec![Row::from(vec![Value::Int(id)])].into())
            }
            Op::TakeRequests => {
                let me = uuid(&params[0]);
                let Value::Ints(in_hand) = &params[1] else { panic!("requests in hand are numbers") };
                let is_it = |row: &Request, _| row.addressee == me && !row.is_done && !in_hand.contains(&row.id);
                answer!(scan!(requests, Request, Update, Skip, is_it, |row, _, answer| {
                    let payload = Value::Text(row.payload.to_string());
                    let kind = Value::Text(row.kind.to_string());
                    answer.rows.push(vec![Value::Int(row.id), kind, Value::Uuid(row.asker), payload].into());
                    Change::Write(row.clone())
                }))
            }
            Op::AnswerRequest => {
                let (id, me) = (int(&params[0]), uuid(&params[1]));
                let is_it = |row: &Request, _| row.id == id && row.addressee == me && !row.is_done;
                answer!(scan!(requests, Request, NoKeyUpdate, Block, is_it, |row, _, _| {
                    Change::Write(Request { is_done: true, ..row.clone() })
                }))
            }
            Op::PollRequests => {
                let Value::Ints(ids) = &params[0] else { panic!("requests are numbers") };
                let rows = self.requests.seen(snapshot).filter(|(_, row)| ids.contains(&row.id)).map(|(_, row)| {
                    let answer = if row.is_done { Value::Text("poked".into()) } else { Value::Null };
                    Row::from(vec![Value::Int(row.id), answer])
                });
                Flow::Done(rows.collect::<Vec<_>>().into())
            }
            Op::DiscardRequests => {
                let ids = uuids(&params[0]);
                let is_it = |row: &Request, _| ids.contains(&row.addressee) && !row.is_done;
                answer!(scan!(requests, Request, Update, Block, is_it, |_, _, _| Change::Delete))
            }
            Op::Readdress => {
                let (ids, me) = (uuids(&params[0]), uuid(&params[1]));
                let is_it = |row: &Request, _| ids.contains(&row.addressee) && !row.is_done;
                answer!(scan!(requests, Request, NoKeyUpdate, Block, is_it, |row, _, _| {
                    Change::Write(Request { addressee: me, ..row.clone() })
                }))
            }
            Op::PruneRequests => {
                let before = now - int(&params[0]) * 1_000;
                // Those that are done go early here: their number only costs time.
                let is_it =
                    |row: &Request, _: i64| row.created_at < before || row.is_done && row.created_at < now - 60_000_000;
                answer!(scan!(requests, Request, Update, Block, is_it, |_, _, _| Change::Delete))
            }
            Op::Start => {
                let (id, state, due) = (int(&params[0]), state(text(&params[1])), int(&params[2]) * 1_000);
                let is_it = |row: &Work, _| i64::from(row.id) == id && row.state == State::Done;
                answer!(scan!(work, Work, NoKeyUpdate, Block, is_it, |row, at, _| {
                    Change::Write(Work { state, due: at + due, ..row.clone() })
                }))
            }
            Op::Wake => {
                let id = int(&params[0]);
                let is_it = |row: &Work, _| i64::from(row.id) == id && row.state == State::Waiting;
                answer!(scan!(work, Work, NoKeyUpdate, Block, is_it, |row, _, _| {
                    Change::Write(Work { state: State::Ready, ..row.clone() })
                }))
            }
            Op::Claim => {
                let (me, max) = (uuid(&params[0]), int(&params[1]));
                let needs_permit = matches!(params[2], Value::Bool(true));
                let fits = move |row: &Work, at: i64| {
                    row.state == State::Ready && row.due <= at && row.needs_permit == needs_permit
                };
                if running.candidates.is_none() {
                    let seen = self.work.seen(snapshot).filter(|(_, row)| fits(row, now));
                    let mut ready: Vec<(i64, u32, u32)> = seen.map(|(id, row)| (row.due, row.id, id)).collect();
                    ready.sort_unstable();
                    running.candidates = Some(ready.into_iter().map(|(_, _, id)| id).collect());
                }
                // The limit stands above the locks: rows that are passed over do not count.
                let left = std::cell::Cell::new(max);
                answer!(scan!(work, Work, Update, Skip, |row, at| left.get() > 0 && fits(row, at), |row, _, answer| {
                    left.set(left.get() - 1);
                    let attempt = row.attempt + 1;
                    let lane = Value::Int(row.lane.into());
                    answer.rows.push(vec![Value::Int(row.id.into()), Value::Int(attempt), lane].into());
                    Change::Write(Work { state: State::Running, owner: me, attempt, ..row.clone() })
                }))
            }
            Op::Finish => {
                let (id, me, attempt) = (int(&params[0]), uuid(&params[1]), int(&params[2]));
                let is_it = |row: &Work, _| {
                    i64::from(row.id) == id && row.owner == me && row.attempt == attempt && row.state == State::Running
                };
                answer!(scan!(work, Work, NoKeyUpdate, Block, is_it, |row, _, _| {
                    Change::Write(Work { state: State::Done, owner: 0, ..row.clone() })
                }))
            }
            Op::Mine => {
                let me = uuid(&params[0]);
                let own = self.work.seen(snapshot).map(|(_, row)| row);
                let own = own.filter(|row| row.owner == me && row.state == State::Running);
                let rows = own.map(|row| {
                    let (id, lane) = (Value::Int(row.id.into()), Value::Int(row.lane.into()));
                    Row::from(vec![id, Value::Int(row.attempt), lane, Value::Bool(row.needs_permit)])
                });
                Flow::Done(rows.collect::<Vec<_>>().into())
            }
            Op::FinishAnyway => {
                let id = int(&params[0]);
                answer!(scan!(work, Work, NoKeyUpdate, Block, |row, _| i64::from(row.id) == id, |row, _, _| {
                    Change::Write(Work { state: State::Done, owner: 0, ..row.clone() })
                }))
            }
            Op::GiveUp => {
                let ids = uuids(&params[0]);
                let is_it = |row: &Work, _| row.state == State::Running && ids.contains(&row.owner);
                answer!(scan!(work, Work, NoKeyUpdate, Block, is_it, |row, _, _| {
                    Change::Write(Work { state: State::Ready, owner: 0, ..row.clone() })
                }))
            }
            Op::Owners => {
                let running_rows = self.work.seen(snapshot).filter(|(_, row)| row.state == State::Running);
                let mut owners: Vec<u128> = running_rows.map(|(_, row)| row.owner).collect();
                owners.sort_unstable();
                owners.dedup();
                Flow::Done(owners.into_iter().map(|id| Row::from(vec![Value::Uuid(id)])).collect::<Vec<_>>().into())
            }
            Op::Poke => {
                let id = int(&params[0]);
                answer!(scan!(work, Work, NoKeyUpdate, Block, |row, _| i64::from(row.id) == id, |row, _, _| {
                    Change::Write(Work { pokes: row.pokes + 1, ..row.clone() })
                }))
            }
            Op::MakeEffect => {
                let row = Effect { name: leader_name(text(&params[0])), epoch: int(&params[1]) };
                let command = txn.command;
                self.insert(txn, Where::Effect, |all, id, xid| all.effects.insert(id, xid, command, row));
                Flow::Done(Answer { rows: vec![], affected: 1 })
            }
            Op::ChangeConfig => {
                let name = number(text(&params[0]));
                answer!(scan!(config, Config, NoKeyUpdate, Block, |row, _| row.name == name, |row, _, _| {
                    let mut row = row.clone();
                    row.version += 1;
                    Change::Write(row)
                }))
            }
            Op::ReadConfig => {
                let name = number(text(&params[0]));
                let row = self.config.seen(snapshot).find(|(_, row)| row.name == name);
                let rows = row.map(|(_, row)| Row::from(vec![Value::Int(row.version)]));
                Flow::Done(rows.into_iter().collect::<Vec<_>>().into())
            }
        }
    }

    fn idle_keys(&self, snapshot: super::Snapshot) -> Vec<(bool, u32)> {
        let is_used = |key: &TicketKey| {
            let names = |ticket: &Ticket| ticket.is_lane == key.is_lane && ticket.key == key.key;
            self.tickets.seen(snapshot).any(|(_, row)| names(row))
                || self.ticket_waits.seen(snapshot).any(|(_, row)| names(&row.ticket))
        };
        let keys = self.ticket_keys.seen(snapshot).map(|(_, row)| row);
        keys.filter(|key| !is_used(key)).map(|key| (key.is_lane, key.key)).collect()
    }
}
