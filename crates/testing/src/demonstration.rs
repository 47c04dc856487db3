//! A demonstration executor: rows that members claim and finish, some of them runs that outlive their member. It proves the
//! cluster before there are pipelines and runs, on each database and in the simulation.
//!
//! A row goes `done` → (start) → `ready`, or `waiting` for its lane → (claim) → `running` → (finish) → `done`, and round
//! again. A row with a lane is a run: it holds its place in the lane from its start to its end, whoever dies. A row that
//! needs a permit is executed under a ticket of the member.

use std::sync::Arc;
use std::time::Duration;

use cluster_core::planted::{Bug, is};
use cluster_core::scripts::reap::{ReapStep, ReapSteps, Running, owners_of, owners_value};
use cluster_core::scripts::ticket::{self, Acquired, Holder, Key, Moved};
use cluster_core::scripts::{cache, leader_guard, member_guard, request};
use cluster_core::{Leadership, MemberId};
use database_core::{DbError, Script, Sql, Tx, Verdict};

/// Tables for PostgreSQL.
pub const POSTGRES: &str = "
CREATE TABLE work (
    id           bigint      PRIMARY KEY,
    state        text        NOT NULL CHECK (state IN ('done', 'ready', 'waiting', 'running')),
    due          timestamptz NOT NULL,
    owner        uuid,
    attempt      bigint      NOT NULL,
    lane         bigint      NOT NULL,
    needs_permit boolean     NOT NULL,
    pokes        bigint      NOT NULL DEFAULT 0
);
CREATE TABLE effect (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, epoch bigint NOT NULL);
CREATE TABLE setting (name text PRIMARY KEY, version bigint NOT NULL);
";

/// Tables for SQLite.
pub const SQLITE: &str = "
CREATE TABLE work (
    id           INTEGER PRIMARY KEY,
    state        TEXT    NOT NULL CHECK (state IN ('done', 'ready', 'waiting', 'running')),
    due          INTEGER NOT NULL,
    owner        TEXT,
    attempt      INTEGER NOT NULL,
    lane         INTEGER NOT NULL,
    needs_permit INTEGER NOT NULL,
    pokes        INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE effect (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, epoch INTEGER NOT NULL) STRICT;
CREATE TABLE setting (name TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT;
";

/// A row that is done: its first start makes it due. Takes id, lane (0: none), and whether it needs a permit.
pub static INSERT: Sql = Sql::new(
    "demo.insert",
    "INSERT INTO work (id, state, due, attempt, lane, needs_permit) VALUES ($1, 'done', clock_timestamp(), 0, $2, $3)",
    "INSERT INTO work (id, state, due, attempt, lane, needs_permit) VALUES ($1, 'done', 0, 0, $2, $3)",
);
/// Takes id, state, and in how many ms it is due.
pub static START: Sql = Sql::new(
    "demo.start",
    "UPDATE work SET state = $2, due = clock_timestamp() + $3 * interval '1 millisecond' WHERE id = $1 AND state = 'done'",
    "UPDATE work SET state = $2, due = CAST(unixepoch('subsec') * 1000 AS INTEGER) + $3 WHERE id = $1 AND state = 'done'",
);
/// Takes the id of a run that got its place.
pub static WAKE: Sql = Sql::same("demo.wake", "UPDATE work SET state = 'ready' WHERE id = $1 AND state = 'waiting'");
/// Takes the own id, how many at most, and whether rows with permits are wanted; gives id, attempt and lane.
pub static CLAIM: Sql = Sql::new(
    "demo.claim",
    "WITH c AS (SELECT id FROM work WHERE state = 'ready' AND due <= clock_timestamp() AND needs_permit = $3 \
     ORDER BY due, id LIMIT $2 FOR UPDATE SKIP LOCKED) \
     UPDATE work SET state = 'running', owner = $1, attempt = attempt + 1 FROM c \
     WHERE work.id = c.id AND work.state = 'ready' RETURNING work.id, attempt, lane",
    "UPDATE work SET state = 'running', owner = $1, attempt = attempt + 1 WHERE id IN (SELECT id FROM work \
     WHERE state = 'ready' AND due <= CAST(unixepoch('subsec') * 1000 AS INTEGER) AND needs_permit = $3 \
     ORDER BY due, id LIMIT $2) RETURNING id, attempt, lane",
);
/// Takes id, own id and attempt. No row changed: lost.
pub static FINISH: Sql = Sql::same(
    "demo.finish",
    "UPDATE work SET state = 'done', owner = NULL WHERE id = $1 AND owner = $2 AND attempt = $3 AND state = 'running'",
);
/// What is claimed already, such as by a claim whose answer was lost. Takes the own id; gives id, attempt, lane and
/// whether it needs a permit.
pub static MINE: Sql = Sql::same(
    "demo.mine",
    "SELECT id, attempt, lane, needs_permit FROM work WHERE owner = $1 AND state = 'running' ORDER BY id",
);
/// [`FINISH`] without its comparison, for the planted defect.
static FINISH_ANYWAY: Sql = Sql::same(
    "demo.finish_anyway",
    "UPDATE work SET state = 'done', owner = NULL WHERE id = $1 AND $2 IS NOT NULL AND $3 > 0",
);
/// Takes ids of dead owners.
pub static GIVE_UP: Sql = Sql::new(
    "demo.give_up",
    "UPDATE work SET state = 'ready', owner = NULL WHERE owner = ANY ($1) AND state = 'running'",
    "UPDATE work SET state = 'ready', owner = NULL WHERE owner IN (SELECT value FROM json_each($1)) AND state = 'running'",
);
/// Takes how many at most; gives owners.
pub static OWNERS: Sql = Sql::same(
    "demo.owners",
    "SELECT DISTINCT owner FROM work WHERE owner IS NOT NULL AND state = 'running' ORDER BY owner LIMIT $1",
);
/// Takes an id.
pub static POKE: Sql = Sql::same("demo.poke", "UPDATE work SET pokes = pokes + 1 WHERE id = $1");
/// Takes name and epoch.
pub static EFFECT: Sql = Sql::same("demo.effect", "INSERT INTO effect (name, epoch) VALUES ($1, $2)");
/// Takes a name.
pub static CHANGE: Sql = Sql::same("demo.change", "UPDATE setting SET version = version + 1 WHERE name = $1");
/// Takes a name; gives its version.
pub static READ: Sql = Sql::same("demo.read", "SELECT version FROM setting WHERE name = $1");

/// All statements but the planted ones.
pub const ALL: &[&Sql] =
    &[&INSERT, &START, &WAKE, &CLAIM, &FINISH, &MINE, &GIVE_UP, &OWNERS, &POKE, &EFFECT, &CHANGE, &READ];

/// Permits of members.
pub const PERMITS: i64 = 2;

/// A row that was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimed {
    /// Its id.
    pub id: i64,
    /// The attempt, which with the owner proves that the claim still stands.
    pub attempt: i64,
    /// Its lane, 0 for none.
    pub lane: i64,
    /// It is executed under the member's permit.
    pub has_permit: bool,
}

/// What a transaction of the demonstration gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The member is dead, or the leadership lost: nothing was written.
    Fenced,
    /// The row is not, or no more, as it must be: nothing was written.
    Lost,
    /// Done; tickets that moved are to be told.
    Done(Vec<Moved>),
    /// Claims.
    Claimed(Vec<Claimed>),
    /// A version.
    Version(i64),
    /// A request's number.
    Asked(i64),
}

fn lane_key(lane: i64) -> Key {
    Key::lane(format!("k{lane}"))
}

fn permit_key() -> Key {
    Key::permit("k0")
}

fn run_holder(id: i64) -> Holder {
    Holder::Run(format!("r{id}"))
}

/// Lets a row that is done begin a new round, due in `wait`.
#[must_use]
pub fn start(me: MemberId, id: i64, lane: i64, wait: Duration) -> Script<Outcome> {
    Script::transaction(move |mut tx: Tx| async move {
        if !member_guard(&mut tx, me).await? {
            return Ok(Verdict::RollBack(Outcome::Fenced));
        }
        let mut moved = Vec::new();
        let mut state = "ready";
        if lane != 0
            && ticket::acquire(&mut tx, &lane_key(lane), &run_holder(id), 1, &mut moved).await? == Acquired::Waits
        {
            state = "waiting";
        }
        let wait_ms = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
        if tx.execute(&START, [id.into(), state.into(), wait_ms.into()]).await? == 0 {
            return Ok(Verdict::RollBack(Outcome::Lost));
        }
        wake(&mut tx, &moved).await?;
        Ok(Verdict::Commit(Outcome::Done(moved)))
    })
}

/// Runs that were given their place go on.
async fn wake(tx: &mut Tx, moved: &[Moved]) -> Result<(), DbError> {
    for moved in moved {
        if let Some(Holder::Run(run)) = &moved.to
            && let Some(id) = run.strip_prefix('r').and_then(|id| id.parse::<i64>().ok())
        {
            tx.execute(&WAKE, [id.into()]).await?;
        }
    }
    Ok(())
}

/// Claims up to `max` rows; with `permit` one that needs the member's permit, if there is a place.
#[must_use]
pub fn claim(me: MemberId, max: i64, permit: bool) -> Script<Outcome> {
    Script::transaction(move |mut tx: Tx| async move {
        if !member_guard(&mut tx, me).await? {
            return Ok(Verdict::RollBack(Outcome::Fenced));
        }
        let mut moved = Vec::new();
        let holder = Holder::Member(me);
        let mut max = max;
        if permit {
            max = 1;
            if ticket::acquire(&mut tx, &permit_key(), &holder, PERMITS, &mut moved).await? == Acquired::Waits {
                // In its turn it is given one, and asks again.
                return Ok(Verdict::Commit(Outcome::Done(moved)));
            }
        }
        let rows = tx.query(&CLAIM, [me.into(), max.into(), permit.into()]).await?;
        if permit && rows.is_empty() {
            ticket::release(&mut tx, &permit_key(), &holder, &mut moved).await?;
            return Ok(Verdict::Commit(Outcome::Done(moved)));
        }
        let claimed: Result<Vec<Claimed>, DbError> = rows
            .iter()
            .map(|row| Ok(Claimed { id: row.int(0)?, attempt: row.int(1)?, lane: row.int(2)?, has_permit: permit }))
            .collect();
        Ok(Verdict::Commit(Outcome::Claimed(claimed?)))
    })
}

/// What `me` has claimed, whether it heard of it or not.
#[must_use]
pub fn mine(me: MemberId) -> Script<Outcome> {
    Script::statement(&MINE, [me.into()], |answer| {
        let read = |row: &database_core::Row| {
            Ok(Claimed { id: row.int(0)?, attempt: row.int(1)?, lane: row.int(2)?, has_permit: row.bool(3)? })
        };
        answer.rows.iter().map(read).collect::<Result<_, DbError>>().map(Outcome::Claimed)
    })
}

/// Ends a row that was claimed, and frees what it holds.
#[must_use]
pub fn finish(me: MemberId, claimed: Claimed) -> Script<Outcome> {
    Script::transaction(move |mut tx: Tx| async move {
        if !member_guard(&mut tx, me).await? {
            return Ok(Verdict::RollBack(Outcome::Fenced));
        }
        let mut moved = Vec::new();
        if claimed.has_permit {
            ticket::release(&mut tx, &permit_key(), &Holder::Member(me), &mut moved).await?;
        }
        if claimed.lane != 0 {
            ticket::release(&mut tx, &lane_key(claimed.lane), &run_holder(claimed.id), &mut moved).await?;
        }
        let statement = if is(Bug::NoOwnerCompare) { &FINISH_ANYWAY } else { &FINISH };
        if tx.execute(statement, [claimed.id.into(), me.into(), claimed.attempt.into()]).await? == 0 {
            return Ok(Verdict::RollBack(Outcome::Lost));
        }
        wake(&mut tx, &moved).await?;
        Ok(Verdict::Commit(Outcome::Done(moved)))
    })
}

/// Asks another member to poke a row.
#[must_use]
pub fn ask(me: MemberId, addressee: MemberId, id: i64) -> Script<Outcome> {
    Script::transaction(move |mut tx: Tx| async move {
        if !member_guard(&mut tx, me).await? {
            return Ok(Verdict::RollBack(Outcome::Fenced));
        }
        let number = request::ask(&mut tx, "poke", me, addressee, &id.to_string()).await?;
        Ok(Verdict::Commit(Outcome::Asked(number)))
    })
}

/// Carries a request out.
#[must_use]
pub fn poke(me: MemberId, request: i64, id: i64) -> Script<Outcome> {
    Script::transaction(move |mut tx: Tx| async move {
        if !member_guard(&mut tx, me).await? {
            return Ok(Verdict::RollBack(Outcome::Fenced));
        }
        if !request::answer(&mut tx, request, me, "poked").await? {
            return Ok(Verdict::RollBack(Outcome::Lost));
        }
        tx.execute(&POKE, [id.into()]).await?;
        Ok(Verdict::Commit(Outcome::Done(Vec::new())))
    })
}

/// A leader's effect.
#[must_use]
pub fn effect(leadership: Leadership) -> Script<Outcome> {
    Script::transaction(move |mut tx: Tx| async move {
        if !leader_guard(&mut tx, &leadership).await? {
            return Ok(Verdict::RollBack(Outcome::Fenced));
        }
        tx.execute(&EFFECT, [leadership.name.into(), leadership.epoch.into()]).await?;
        Ok(Verdict::Commit(Outcome::Done(Vec::new())))
    })
}

/// A leader removes idle keys of tickets.
#[must_use]
pub fn prune(leadership: Leadership) -> Script<Outcome> {
    Script::transaction(move |mut tx: Tx| async move {
        if !leader_guard(&mut tx, &leadership).await? {
            return Ok(Verdict::RollBack(Outcome::Fenced));
        }
        ticket::prune_keys(&mut tx).await?;
        Ok(Verdict::Commit(Outcome::Done(Vec::new())))
    })
}

/// Changes a value that processes cache.
#[must_use]
pub fn change(name: i64) -> Script<Outcome> {
    Script::transaction(move |mut tx: Tx| async move {
        let name = format!("c{name}");
        cache::change(&mut tx, &name).await?;
        tx.execute(&CHANGE, [name.into()]).await?;
        Ok(Verdict::Commit(Outcome::Done(Vec::new())))
    })
}

/// Reads it.
#[must_use]
pub fn read(name: i64) -> Script<Outcome> {
    Script::statement(&READ, [format!("c{name}").into()], |answer| {
        answer.rows.first().map_or(Ok(Outcome::Lost), |row| row.int(0).map(Outcome::Version))
    })
}

/// How rows of dead members are given up.
#[derive(Debug)]
struct Step;

impl ReapStep for Step {
    fn name(&self) -> &'static str {
        "demonstration"
    }

    fn give_up<'tx>(&'tx self, tx: &'tx mut Tx, dead: &'tx [MemberId]) -> Running<'tx, u64> {
        Box::pin(async move { tx.execute(&GIVE_UP, [owners_value(dead)]).await })
    }

    fn owners<'tx>(&'tx self, tx: &'tx mut Tx, max: i64) -> Running<'tx, Vec<MemberId>> {
        Box::pin(async move { owners_of(&tx.query(&OWNERS, [max.into()]).await?, 0) })
    }
}

/// The demonstration's part of a reap.
#[must_use]
pub fn reap_steps() -> ReapSteps {
    Arc::from(vec![Arc::new(Step) as Arc<dyn ReapStep>])
}
