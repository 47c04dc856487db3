//! The two statements of a beat: the view, and the contest for leaderships.

use cluster_core::planted::{Bug, is};
use database_core::{Answer, Row, Value};

use super::super::{Database, Flow, Leader, NEVER_US, Running, Strength, Txn, Where};
use super::words::{int, leader_name, leader_text, name, uuid};
use super::{Change, Place, Scan, Wait, scan};

impl Database {
    pub(super) fn view(&self, running: &Running, me: u128, open_from: i64) -> Vec<Row> {
        let (snapshot, now) = (running.snapshot, self.now_us);
        let word = |word: &str| Value::Text(word.into());
        let zero = || Value::Int(0);
        let mut rows = Vec::with_capacity(16);
        for (_, row) in self.members.seen(snapshot) {
            rows.push(Row::from(vec![
                word("member"),
                Value::Uuid(row.id),
                word("host"),
                Value::Int(row.no),
                Self::left_ms(row.lease_until, now),
                Value::Int(Self::ms(now - row.heartbeat_at)),
                Value::Int(row.pid),
                Value::Int(row.schema),
            ]));
        }
        for (_, row) in self.leaders.seen(snapshot) {
            let left = if row.lease_until == NEVER_US { Value::Null } else { Self::left_ms(row.lease_until, now) };
            rows.push(Row::from(vec![
                word("leader"),
                row.holder.map_or(Value::Null, Value::Uuid),
                word(leader_text(row.name)),
                Value::Int(row.epoch),
                left,
                zero(),
                zero(),
                zero(),
            ]));
        }
        let waiting = self.requests.seen(snapshot).filter(|(_, row)| row.addressee == me && !row.is_done).count();
        let waiting = Value::Int(waiting as i64);
        rows.push(Row::from(vec![word("request"), Value::Null, Value::Null, waiting, zero(), zero(), zero(), zero()]));
        let changes = self.cache_changes.seen(snapshot).map(|(_, row)| row);
        let mut names: Vec<u32> = changes.filter(|row| row.xid as i64 >= open_from).map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        for number in names {
            let name = name('c', number);
            rows.push(Row::from(vec![word("cache"), Value::Null, name, zero(), zero(), zero(), zero(), zero()]));
        }
        let oldest = if is(Bug::CacheByNewest) { self.next_xid } else { self.oldest_open() };
        let oldest = Value::Int(oldest as i64);
        let now_ms = Value::Int(Self::ms(now));
        rows.push(Row::from(vec![word("snapshot"), Value::Null, Value::Null, oldest, now_ms, zero(), zero(), zero()]));
        rows
    }

    /// Renew, look what is free, take, tell of the rest: parts of one statement, which all see its snapshot and none of
    /// which sees what another wrote.
    pub(super) fn contest(&mut self, txn: &mut Txn, running: &mut Running, params: &[Value]) -> Flow {
        let me = uuid(&params[0]);
        let Value::Texts(names) = &params[1] else { panic!("names are texts") };
        let Value::Ints(epochs) = &params[2] else { panic!("epochs are numbers") };
        let want: Vec<(u8, i64)> = names.iter().map(|name| leader_name(name)).zip(epochs.iter().copied()).collect();
        let (lease_us, epoch_min) = (int(&params[3]) * 1_000, int(&params[4]));
        let (now, snapshot) = (self.now_us, running.snapshot);
        let wanted = |name: u8| want.iter().find(|(wanted, _)| *wanted == name).map(|(_, epoch)| *epoch);
        let mut counts = (0, 0);
        let answered = |answer: &mut Answer, word: &str, row: &Leader| {
            let left = Self::left_ms(row.lease_until, now);
            let name = Value::Text(leader_text(row.name).into());
            let holder = row.holder.map_or(Value::Null, Value::Uuid);
            answer.rows.push(vec![name, Value::Text(word.into()), Value::Int(row.epoch), holder, left].into());
        };
        self.touch(txn, Where::Leader);
        if running.stage == 0 {
            let scoped = !is(Bug::RenewalNotScoped);
            let place = Place { table: Where::Leader, strength: Strength::NoKeyUpdate, wait: Wait::Block };
            let ended = scan(
                &mut self.leaders,
                place,
                now,
                txn,
                running,
                &mut counts,
                |row, at| {
                    let epoch = wanted(row.name);
                    epoch.is_some_and(|epoch| epoch != 0 && (epoch == row.epoch || !scoped))
                        && (row.holder == Some(me) || !scoped)
                        && (row.lease_until >= at || !scoped)
                },
                |row, at, answer| {
                    let row = Leader { lease_until: at + lease_us, ..row.clone() };
                    answered(answer, "renewed", &row);
                    Change::Write(row)
                },
            );
            if let Scan::Wait(row) = ended {
                return Flow::Wait(row);
            }
            (running.stage, running.candidates, running.at) = (1, None, 0);
        }
        if running.stage == 1 {
            // The registration is locked once something is free; a taker that is being reaped waits for the reaper.
            let is_free = |row: &Leader| wanted(row.name) == Some(0) && (row.holder.is_none() || row.lease_until < now);
            let mut lives = false;
            if self.leaders.seen(snapshot).any(|(_, row)| is_free(row)) {
                self.touch(txn, Where::Member);
                let place = Place { table: Where::Member, strength: Strength::KeyShare, wait: Wait::Block };
                let ended = scan(
                    &mut self.members,
                    place,
                    now,
                    txn,
                    running,
                    &mut counts,
                    |row, at| row.id == me && row.lease_until >= at,
                    |_, _, _| {
                        lives = true;
                        Change::Keep
                    },
                );
                if let Scan::Wait(row) = ended {
                    return Flow::Wait(row);
                }
                (running.candidates, running.at) = (None, 0);
            }
            // FOR UPDATE SKIP LOCKED, then the update of what was locked.
            let place = Place { table: Where::Leader, strength: Strength::Update, wait: Wait::Skip };
            let ended = scan(
                &mut self.leaders,
                place,
                now,
                txn,
                running,
                &mut counts,
                |row, at| {
                    wanted(row.name) == Some(0)
                        && (row.holder.is_none() || row.lease_until < at)
                        && (is(Bug::FencedContests) || lives)
                },
                |row, at, answer| {
                    let epoch = (row.epoch + 1).max(epoch_min);
                    let row = Leader { epoch, holder: Some(me), lease_until: at + lease_us, ..row.clone() };
                    answered(answer, "taken", &row);
                    Change::Write(row)
                },
            );
            debug_assert!(matches!(ended, Scan::Done), "locked rows are skipped");
        }
        self.skipped += counts.0;
        self.rechecked += counts.1;
        let mut answer = std::mem::take(&mut running.answer);
        let told: Vec<String> =
            answer.rows.iter().map(|row| row.text(0).expect("a name is a text").to_owned()).collect();
        for (_, row) in self.leaders.seen(snapshot) {
            if wanted(row.name).is_none() || told.iter().any(|name| name == leader_text(row.name)) {
                continue;
            }
            let left = if row.lease_until == NEVER_US { Value::Null } else { Self::left_ms(row.lease_until, now) };
            let name = Value::Text(leader_text(row.name).into());
            let holder = row.holder.map_or(Value::Null, Value::Uuid);
            answer.rows.push(vec![name, Value::Text("other".into()), Value::Int(row.epoch), holder, left].into());
        }
        Flow::Done(answer)
    }
}
