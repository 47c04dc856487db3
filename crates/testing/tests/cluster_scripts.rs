//! What the cluster's transactions do when nobody else is at work, on the simulated database. That it does what a real one
//! does, tests/conformance.rs shows.

use std::sync::Arc;
use std::time::Duration;

use cluster_core::scripts::counter::{self, Added, Window};
use cluster_core::scripts::reap::{Kept, Reaped, deregister, reap, tidy};
use cluster_core::scripts::request::{self, Outcome};
use cluster_core::scripts::ticket::{self, Acquired, Holder, Key, Moved};
use cluster_core::scripts::{lead, view};
use cluster_core::{LeaseAnswer, LeaseCall, MemberId, Notice, Process, channel};
use database_core::{Class, Script, Step, Verdict};
use testing::cluster_sim::SimulatedBench;
use testing::interleave::Bench;

const A: MemberId = MemberId(0xa);
const B: MemberId = MemberId(0xb);
const C: MemberId = MemberId(0xc);
const LEASE: Duration = Duration::from_secs(20);

struct World(SimulatedBench);

impl World {
    fn new() -> Self {
        let mut bench = SimulatedBench::default();
        bench.reset(1);
        Self(bench)
    }

    fn after(&mut self, ms: i64) -> &mut Self {
        self.0.set_clock(ms);
        self
    }

    fn run<T>(&mut self, mut script: Script<T>) -> T {
        if script.is_transaction() {
            self.0.begin(0);
        }
        let mut answer = None;
        loop {
            match script.step(answer.take()) {
                Step::Query(sql, values) => {
                    self.0.send(0, sql, values);
                    let (_, settled) = self.0.settle().pop().expect("nobody stands in the way");
                    answer = Some(settled.map_err(|class: Class| panic!("{}: {class:?}", sql.id)));
                }
                Step::Done(result) => {
                    let (commits, result) = match result.expect("no error") {
                        Verdict::Commit(result) => (true, result),
                        Verdict::RollBack(result) => (false, result),
                    };
                    if script.is_transaction() {
                        self.0.end(0, commits).expect("it ends");
                    }
                    return result;
                }
            }
        }
    }

    fn register(&mut self, id: MemberId) -> LeaseAnswer {
        let process = Process { host: "h".into(), boot_id: "b".into(), pid: 1, program: "p".into(), schema_version: 1 };
        self.run(LeaseCall::Register { id, process, lease: LEASE }.script())
    }

    fn acquire(&mut self, key: Key, holder: Holder, limit: i64) -> (Acquired, Vec<Option<Holder>>) {
        self.run(Script::transaction(move |mut tx| async move {
            let mut moved = Vec::new();
            let acquired = ticket::acquire(&mut tx, &key, &holder, limit, &mut moved).await?;
            Ok(Verdict::Commit((acquired, moved.into_iter().map(|moved| moved.to).collect())))
        }))
    }

    fn reap(&mut self, me: MemberId) -> Reaped {
        self.run(reap(me, vec![], Arc::from([]), Kept::usual(Duration::from_secs(5), true)))
    }
}

fn permit() -> Key {
    Key::permit("k1")
}

fn run_of(id: u32) -> Holder {
    Holder::Run(format!("r{id}"))
}

#[test]
fn tickets_are_given_in_order_and_a_raised_limit_gives_more_c19() {
    let mut world = World::new();
    assert_eq!(world.acquire(permit(), run_of(1), 1), (Acquired::Given, vec![]));
    assert_eq!(world.acquire(permit(), run_of(1), 1), (Acquired::Given, vec![]), "asking again changes nothing");
    for id in 2..=4 {
        assert_eq!(world.acquire(permit(), run_of(id), 1).0, Acquired::Waits);
    }
    assert_eq!(world.acquire(permit(), run_of(3), 1).0, Acquired::Waits);
    // Two more places: for those who wait, not for who has just come.
    let (acquired, moved) = world.acquire(permit(), run_of(5), 3);
    assert_eq!((acquired, moved), (Acquired::Waits, vec![Some(run_of(2)), Some(run_of(3))]));
    let (acquired, moved) = world.acquire(permit(), run_of(5), 5);
    assert_eq!((acquired, moved), (Acquired::Given, vec![Some(run_of(4)), Some(run_of(5))]));
}

#[test]
fn the_death_of_a_member_frees_its_tickets_and_none_of_a_run_c19() {
    let mut world = World::new();
    world.register(A);
    world.register(B);
    world.acquire(permit(), Holder::Member(A), 1);
    world.acquire(permit(), Holder::Member(B), 1);
    world.acquire(Key::lane("k2"), run_of(7), 1);
    world.acquire(Key::lane("k2"), run_of(8), 1);
    world.after(20_001).register(C);
    let reaped = world.reap(C);
    assert_eq!(reaped.dead, [A, B]);
    // Each place that gets free is told once: nobody who lives waits.
    assert_eq!(reaped.moved, [Moved { key: permit(), to: None }]);
    assert_eq!(reaped.notices(), [Notice { channel: channel::SLOT, payload: "k1".into() }]);
    assert_eq!(world.acquire(Key::lane("k2"), run_of(9), 1).0, Acquired::Waits);
    let moved = world.run(Script::transaction(|mut tx| async move {
        let mut moved = Vec::new();
        ticket::free_of_run(&mut tx, "r7", &mut moved).await?;
        Ok(Verdict::Commit(moved))
    }));
    assert_eq!(moved, [Moved { key: Key::lane("k2"), to: Some(run_of(8)) }]);
}

#[test]
fn tidying_moves_requests_and_frees_what_the_retired_identity_had_c6() {
    let mut world = World::new();
    world.register(A);
    world.register(B);
    let id = world.run(Script::transaction(|mut tx| async move {
        Ok(Verdict::Commit(request::ask(&mut tx, "stop", B, A, "r1").await?))
    }));
    world.acquire(permit(), Holder::Member(A), 1);
    world.acquire(permit(), Holder::Member(B), 1);
    world.run(lead::contest(A, vec![("scheduler", 0)], LEASE, 0));
    world.register(C);
    let tidied = world.run(tidy(C, vec![A]));
    assert_eq!((tidied.requests, tidied.is_fenced), (1, false));
    assert_eq!(tidied.moved, [Moved { key: permit(), to: Some(Holder::Member(B)) }]);
    let taken = world.run(request::take(C, vec![])).expect("alive");
    assert_eq!(taken.iter().map(|request| (request.id, &*request.payload)).collect::<Vec<_>>(), [(id, "r1")]);
    let seen = world.run(view::view(C, 0));
    assert_eq!(seen.members.iter().map(|member| member.id).collect::<Vec<_>>(), [B, C]);
    assert!(seen.leaders.iter().all(|leader| leader.holder.is_none()));
    // An identity that is dead itself tidies nothing.
    assert!(world.run(tidy(A, vec![B])).is_fenced);
}

#[test]
fn requests_for_the_dead_are_discarded_not_handed_over() {
    let mut world = World::new();
    world.register(A);
    let id = world.run(Script::transaction(|mut tx| async move {
        Ok(Verdict::Commit(request::ask(&mut tx, "stop", B, A, "r1").await?))
    }));
    world.after(20_001).register(B);
    world.reap(B);
    let outcome = world.run(Script::transaction(move |mut tx| async move {
        Ok(Verdict::Commit(request::poll(&mut tx, &[id]).await?))
    }));
    assert_eq!(outcome, [(id, Outcome::Discarded)]);
}

#[test]
fn what_somebody_holds_who_is_not_registered_is_swept() {
    let mut world = World::new();
    world.register(B);
    // Of an identity whose registration never came to be.
    world.acquire(permit(), Holder::Member(A), 1);
    assert_eq!(world.reap(B).moved, [Moved { key: permit(), to: None }]);
    // A member that leaves takes its tickets along.
    world.acquire(permit(), Holder::Member(B), 1);
    assert_eq!(world.run(deregister(B)), [Moved { key: permit(), to: None }]);
    assert!(world.reap(B).is_fenced, "and reaps no more");
}

#[test]
fn another_lease_is_refused_and_one_member_alone_may_change_it() {
    let mut world = World::new();
    world.register(A);
    world.register(B);
    let longer = 2 * LEASE;
    assert_eq!(world.run(LeaseCall::SetLease { id: A, lease: longer }.script()), LeaseAnswer::LeaseSet(false));
    world.run(deregister(B));
    assert_eq!(world.run(LeaseCall::SetLease { id: A, lease: longer }.script()), LeaseAnswer::LeaseSet(true));
    assert_eq!(world.register(C), LeaseAnswer::LeaseDiffers { stored: longer });
}

#[test]
fn an_epoch_is_never_below_what_the_timeline_gives() {
    let mut world = World::new();
    world.register(A);
    let taken = world.run(lead::contest(A, vec![("scheduler", 0)], LEASE, 2 << 32));
    assert_eq!(taken[0].is, lead::Standing::Taken { epoch: 2 << 32, left_ms: 20_000 });
}

#[test]
fn a_quota_says_what_is_used_and_when_it_is_renewed_c17() {
    let mut world = World::new();
    let add = |count| {
        Script::transaction(move |mut tx| async move {
            Ok(Verdict::Commit(counter::add(&mut tx, "runs", Window::Day, count, Some(5)).await?))
        })
    };
    let Added::Sum { sum: 3, left } = world.run(add(3)) else { panic!("there is room") };
    assert_eq!(world.run(add(3)), Added::UsedUp { sum: 3, left });
    assert!(matches!(world.run(add(2)), Added::Sum { sum: 5, .. }));
    world.after(86_400_000);
    assert!(matches!(world.run(add(5)), Added::Sum { sum: 5, .. }), "a new day");
}
