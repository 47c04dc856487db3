//! The cases of the cluster: transactions of [`cluster_core`] that meet.
//!
//! Owns: who does what. What comes of it stands in the tests: a result that must not be possible would be seen there.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster_core::scripts::ticket::{self, Holder, Key};
use cluster_core::scripts::{cache, counter, lead, leader_guard, member_guard, reap, request, view};
use cluster_core::statements::member;
use cluster_core::{Leadership, LeaseAnswer, LeaseCall, MemberId, Process};
use database_core::{DbError, Script, Tx, Value, Verdict};

use super::{Case, Make, run};

/// Makes a case.
pub type Build = fn() -> Case;

/// All of them, each with its name.
pub const ALL: &[(&str, Build)] = &[
    ("guard_and_reap", guard_and_reap),
    ("renewal_and_reap", renewal_and_reap),
    ("renewal_and_lock", renewal_and_lock),
    ("renewal_and_guard", renewal_and_guard),
    ("two_contests", two_contests),
    ("leadership_and_takeover", leadership_and_takeover),
    ("leadership_and_renewal", leadership_and_renewal),
    ("two_acquire", two_acquire),
    ("release_and_acquire", release_and_acquire),
    ("acquire_and_prune", acquire_and_prune),
    ("acquire_and_reap", acquire_and_reap),
    ("request_twice", request_twice),
    ("request_and_tidying", request_and_tidying),
    ("two_of_a_quota", two_of_a_quota),
    ("changes_and_reader", changes_and_reader),
    ("registration_and_lease", registration_and_lease),
    ("guard_and_start_reap", guard_and_start_reap),
    ("guard_and_tidying", guard_and_tidying),
    ("two_reaps", two_reaps),
    ("stop_and_reap", stop_and_reap),
    ("release_and_contest", release_and_contest),
    ("stop_and_contest", stop_and_contest),
    ("three_of_two_tickets", three_of_two_tickets),
];

const M1: MemberId = MemberId(1);
const M2: MemberId = MemberId(2);
/// Of the members in these cases.
const LEASE: Duration = Duration::from_millis(1_000);
/// A time at which a lease that began at the start is over.
const LATE_MS: i64 = 1_001;
const NAME: &str = "scheduler";

fn lock<T>(memory: &Mutex<T>) -> MutexGuard<'_, T> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

fn register(id: MemberId) -> Make {
    let process =
        Process { host: "host".into(), boot_id: "boot".into(), pid: 1, program: "1".into(), schema_version: 1 };
    run(move || {
        LeaseCall::Register { id, process: process.clone(), lease: LEASE }.script().map(|answer| match answer {
            LeaseAnswer::Registered { .. } => "registered".to_owned(),
            other => format!("{other:?}"),
        })
    })
}

fn renew(id: MemberId) -> Make {
    run(move || {
        let call = LeaseCall::Renew { id, lease: LEASE, beat_age: Duration::ZERO };
        call.script().map(|answer| match answer {
            LeaseAnswer::Renewed { left_ms, .. } => format!("renewed, {left_ms} left"),
            other => format!("{other:?}").to_lowercase(),
        })
    })
}

fn transaction<Running>(code: impl Fn(Tx) -> Running + Copy + 'static) -> Make
where
    Running: Future<Output = Result<Verdict<&'static str>, DbError>> + Send + 'static,
{
    Box::new(move || Script::transaction(code).map(str::to_owned))
}

/// Writes as a member that must be alive.
fn guarded_write() -> Make {
    transaction(|mut tx| async move {
        if !member_guard(&mut tx, M1).await? {
            return Ok(Verdict::RollBack("fenced"));
        }
        cache::change(&mut tx, "c1").await?;
        Ok(Verdict::Commit("wrote"))
    })
}

/// The part of a reap that matters here.
fn reap_members() -> Make {
    transaction(|mut tx| async move {
        let rows = tx.query(&member::LOCK_DEAD, [Value::Uuids(vec![])]).await?;
        if rows.is_empty() {
            return Ok(Verdict::RollBack("nobody"));
        }
        let dead = rows.iter().map(|row| row.uuid(0)).collect::<Result<Vec<_>, _>>()?;
        tx.execute(&member::DELETE, [Value::Uuids(dead)]).await?;
        Ok(Verdict::Commit("reaped"))
    })
}

fn contest(id: MemberId, epoch: i64) -> Make {
    run(move || {
        lead::contest(id, vec![(NAME, epoch)], LEASE, 0).map(|contested| match contested[0].is {
            lead::Standing::Renewed { .. } => "renewed".to_owned(),
            lead::Standing::Taken { epoch, .. } => format!("taken in {epoch}"),
            lead::Standing::Other { epoch, holder, .. } => {
                format!("of {} in {epoch}", holder.map_or(0, |holder| holder.0))
            }
        })
    })
}

/// Writes as a leader.
fn guarded_by_leadership() -> Make {
    transaction(|mut tx| async move {
        if !leader_guard(&mut tx, &Leadership { name: NAME, holder: M1, epoch: 1 }).await? {
            return Ok(Verdict::RollBack("not leading"));
        }
        cache::change(&mut tx, "c1").await?;
        Ok(Verdict::Commit("led"))
    })
}

fn members_left() -> Make {
    run(|| view::view(M2, 0).map(|seen| seen.members.iter().map(|member| member.id.0).collect::<Vec<_>>()))
}

fn acquire(id: MemberId) -> Make {
    run(move || {
        Script::transaction(move |mut tx| async move {
            let key = Key::permit("k1");
            let acquired = ticket::acquire(&mut tx, &key, &Holder::Member(id), 1, &mut Vec::new()).await?;
            Ok(Verdict::Commit(acquired))
        })
    })
}

fn release(id: MemberId) -> Make {
    run(move || {
        Script::transaction(move |mut tx| async move {
            let mut moved = Vec::new();
            ticket::release(&mut tx, &Key::permit("k1"), &Holder::Member(id), &mut moved).await?;
            Ok(Verdict::Commit(moved.into_iter().map(|moved| moved.to).map(holder).collect::<Vec<_>>()))
        })
    })
}

fn holder(holder: Option<Holder>) -> String {
    match holder {
        None => "free".to_owned(),
        Some(Holder::Member(id)) => format!("to {}", id.0),
        Some(Holder::Run(run)) => format!("to {run}"),
    }
}

fn tickets() -> Make {
    run(|| {
        Script::transaction(|mut tx| async move {
            let mut told = Vec::new();
            for id in [M1, M2] {
                let values = ["permit".into(), "k1".into(), "member".into(), id.to_holder().into()];
                let row = tx.query_opt(&cluster_core::statements::ticket::COUNT, values).await?.expect("counts");
                told.push(format!("{} has {}, waits {}", id.0, row.int(2)?, row.int(3)?));
            }
            Ok(Verdict::RollBack(told))
        })
    })
}

/// The number of the request that a case is about: no bench plays beside another one.
static ASKED: AtomicI64 = AtomicI64::new(0);

fn ask_for_something() -> Make {
    transaction(|mut tx| async move {
        ASKED.store(request::ask(&mut tx, "poke", M2, M1, "1").await?, Ordering::Relaxed);
        Ok(Verdict::Commit("asked"))
    })
}

fn take() -> Make {
    run(|| request::take(M1, vec![]).map(|taken| taken.map(|taken| taken.len())))
}

fn answer() -> Make {
    transaction(|mut tx| async move {
        let id = ASKED.load(Ordering::Relaxed);
        if !request::answer(&mut tx, id, M1, "poked").await? {
            return Ok(Verdict::RollBack("not mine"));
        }
        Ok(Verdict::Commit("carried out"))
    })
}

fn add(limit: i64) -> Make {
    run(move || {
        Script::transaction(move |mut tx| async move {
            let added = counter::add(&mut tx, "runs", counter::Window::Day, 1, Some(limit)).await?;
            Ok(Verdict::Commit(match added {
                counter::Added::Sum { sum, .. } => format!("sum {sum}"),
                counter::Added::UsedUp { sum, .. } => format!("used up at {sum}"),
            }))
        })
    })
}

fn guard_and_reap() -> Case {
    Case::new(vec![register(M1)])
        .session("member", vec![guarded_write()])
        .session("reaper", vec![reap_members()])
        .clock(LATE_MS)
        .finally(vec![members_left()])
}

fn renewal_and_reap() -> Case {
    Case::new(vec![register(M1)])
        .session("member", vec![renew(M1)])
        .session("reaper", vec![reap_members()])
        .clock(LATE_MS)
        .finally(vec![members_left()])
}

/// Why nobody else may lock a member's row: what a renewal decides it decided before it waited.
fn renewal_and_lock() -> Case {
    let holder = || {
        transaction(|mut tx| async move {
            tx.query(&member::LOCK, [Value::Uuids(vec![1])]).await?;
            Ok(Verdict::RollBack("held"))
        })
    };
    Case::new(vec![register(M1)]).session("member", vec![renew(M1)]).session("other", vec![holder()]).clock(LATE_MS)
}

fn renewal_and_guard() -> Case {
    Case::new(vec![register(M1)]).session("agent", vec![renew(M1)]).session("member", vec![guarded_write()])
}

fn two_contests() -> Case {
    Case::new(vec![register(M1), register(M2)])
        .session("1", vec![contest(M1, 0), contest(M1, 1)])
        .session("2", vec![contest(M2, 0), contest(M2, 1)])
}

fn leadership_and_takeover() -> Case {
    // The new leader's member lives on; the old one's leadership runs out.
    Case::new(vec![register(M1), register(M2), contest(M1, 0)])
        .session("1", vec![guarded_by_leadership()])
        .session("2", vec![renew(M2), contest(M2, 0)])
        .clock(LATE_MS / 2)
        .clock(LATE_MS)
}

fn leadership_and_renewal() -> Case {
    Case::new(vec![register(M1), contest(M1, 0)])
        .session("agent", vec![contest(M1, 1)])
        .session("leader", vec![guarded_by_leadership()])
        .clock(LATE_MS)
}

fn two_acquire() -> Case {
    Case::new(vec![]).session("1", vec![acquire(M1)]).session("2", vec![acquire(M2)]).finally(vec![tickets()])
}

fn release_and_acquire() -> Case {
    Case::new(vec![acquire(M1)])
        .session("1", vec![release(M1)])
        .session("2", vec![acquire(M2)])
        .finally(vec![tickets()])
}

/// Why an idle key is locked in one statement and deleted in another.
fn acquire_and_prune() -> Case {
    let prune =
        || run(|| Script::transaction(|mut tx| async move { Ok(Verdict::Commit(ticket::prune_keys(&mut tx).await?)) }));
    Case::new(vec![acquire(M1), release(M1)])
        .session("1", vec![acquire(M1)])
        .session("leader", vec![prune()])
        .finally(vec![tickets()])
}

fn acquire_and_reap() -> Case {
    let whole_reap = || {
        run(|| {
            let kept = reap::Kept::usual(Duration::from_secs(5), true);
            reap::reap(M2, vec![M1], Arc::from([]), kept).map(|reaped| {
                let moved = reaped.moved.into_iter().map(|moved| holder(moved.to)).collect::<Vec<_>>();
                (reaped.dead.len(), moved)
            })
        })
    };
    Case::new(vec![register(M1), register(M2), acquire(M1)])
        .session("2", vec![acquire(M2)])
        .session("reaper", vec![whole_reap()])
        .switches(2)
        .finally(vec![tickets()])
}

fn request_twice() -> Case {
    Case::new(vec![register(M1), register(M2), ask_for_something()])
        .session("1", vec![take(), answer()])
        .session("2", vec![answer(), take()])
        .switches(3)
}

fn request_and_tidying() -> Case {
    let readdress = || {
        transaction(|mut tx| async move {
            let sql = &cluster_core::statements::request::READDRESS;
            let moved = tx.execute(sql, [Value::Uuids(vec![1]), Value::Uuid(2)]).await?;
            Ok(Verdict::Commit(if moved == 1 { "re-addressed" } else { "nothing" }))
        })
    };
    Case::new(vec![register(M1), ask_for_something()]).session("1", vec![answer()]).session("2", vec![readdress()])
}

fn two_of_a_quota() -> Case {
    Case::new(vec![add(2)]).session("1", vec![add(2)]).session("2", vec![add(2)])
}

/// A change that commits late is seen by the reader whose read it missed.
fn changes_and_reader() -> Case {
    let change = |name: &'static str| {
        run(move || {
            Script::transaction(move |mut tx| async move { Ok(Verdict::Commit(cache::change(&mut tx, name).await?)) })
                .map(|()| "changed")
        })
    };
    // What a process remembers between its beats. Each order begins with nothing.
    let memory: Arc<Mutex<(i64, BTreeSet<String>)>> = Arc::default();
    let look = |begins: bool| {
        let memory = Arc::clone(&memory);
        run(move || {
            let memory = Arc::clone(&memory);
            Script::transaction(move |mut tx| async move {
                if begins {
                    *lock(&memory) = Default::default();
                }
                let open_from = lock(&memory).0;
                let rows = tx.query(&member::VIEW, [M2.into(), open_from.into()]).await?;
                let mut memory = lock(&memory);
                for row in &rows {
                    match row.text(0)? {
                        "cache" => drop(memory.1.insert(row.text(2)?.to_owned())),
                        "snapshot" => memory.0 = row.int(3)?,
                        _ => {}
                    }
                }
                Ok(Verdict::RollBack(memory.1.len()))
            })
        })
    };
    Case::new(vec![look(true)])
        .session("1", vec![change("c1")])
        .session("2", vec![change("c2")])
        .session("reader", vec![look(false), look(false)])
        .switches(3)
        .finally(vec![look(false)])
}

fn registration_and_lease() -> Case {
    let set = || run(|| LeaseCall::SetLease { id: M2, lease: 2 * LEASE }.script());
    Case::new(vec![register(M2)]).session("1", vec![register(M1)]).session("2", vec![set()])
}

/// A start reap takes who is known to be dead whatever its lease says: who is at its guard then waits, and is fenced.
fn guard_and_start_reap() -> Case {
    let reap = || {
        transaction(|mut tx| async move {
            let rows = tx.query(&member::LOCK_DEAD, [Value::Uuids(vec![1])]).await?;
            if rows.is_empty() {
                return Ok(Verdict::RollBack("nobody"));
            }
            tx.execute(&member::DELETE, [Value::Uuids(vec![1])]).await?;
            Ok(Verdict::Commit("reaped"))
        })
    };
    Case::new(vec![register(M1)])
        .session("member", vec![guarded_write()])
        .session("reaper", vec![reap()])
        .finally(vec![members_left()])
}

/// Tidying waits for transactions that are behind the guard of the identity that is retired.
fn guard_and_tidying() -> Case {
    let tidy = || run(|| reap::tidy(M2, vec![M1]).map(|tidied| (tidied.is_fenced, tidied.requests)));
    Case::new(vec![register(M1), register(M2), ask_for_something()])
        .session("old", vec![guarded_write()])
        .session("new", vec![tidy()])
        .switches(3)
        .finally(vec![members_left()])
}

/// Two reaps at once share the dead or pass over each other.
fn two_reaps() -> Case {
    Case::new(vec![register(M1), register(M2)])
        .session("1", vec![reap_members()])
        .session("2", vec![reap_members()])
        .clock(LATE_MS)
        .finally(vec![members_left()])
}

/// The stop of a member and the reap of it by another one.
fn stop_and_reap() -> Case {
    let stop = || {
        run(|| reap::deregister(M1).map(|moved| moved.into_iter().map(|moved| holder(moved.to)).collect::<Vec<_>>()))
    };
    Case::new(vec![register(M1), acquire(M1)])
        .session("member", vec![stop()])
        .session("reaper", vec![reap_members()])
        .clock(LATE_MS)
        .switches(1)
        .finally(vec![members_left()])
}

/// A leader that stops and one that contests.
fn release_and_contest() -> Case {
    let release = || run(|| lead::release(vec![Leadership { name: NAME, holder: M1, epoch: 1 }]).map(|()| "released"));
    Case::new(vec![register(M1), register(M2), contest(M1, 0)])
        .session("1", vec![release()])
        .session("2", vec![contest(M2, 0), contest(M2, 0)])
}

/// A member that stops, and a contest of its own that is late.
fn stop_and_contest() -> Case {
    let holder = || {
        run(|| {
            view::view(M1, 0).map(|seen| {
                let leader = seen.leaders.into_iter().find(|leader| leader.name == NAME);
                leader.and_then(|leader| leader.holder).map_or("led by nobody", |_| "led by who is gone")
            })
        })
    };
    Case::new(vec![register(M1)])
        .session("stop", vec![run(|| reap::deregister(M1).map(|_| "gone"))])
        .session("contest", vec![contest(M1, 0)])
        .finally(vec![holder()])
}

/// One ticket of two is freed while two more want one.
fn three_of_two_tickets() -> Case {
    Case::new(vec![acquire(M1)])
        .session("1", vec![release(M1)])
        .session("2", vec![acquire(M2)])
        .session("3", vec![acquire(MemberId(3))])
        .switches(1)
        .finally(vec![tickets()])
}
