//! Reserves over several owners: offers, and which is accepted.

use super::*;

#[test]
fn ready_jobs_come_by_priority_then_id_over_tubes_of_several_owners() {
    check(
        "0 p0 use a
         0 p0 put 5 0 60 a5
         0 p0 use b
         0 p0 put 5 0 60 b5
         0 p0 put 1 0 60 b1
         0 p0 use c
         0 p0 put 3 0 60 c3
         0 w1 watch a
         0 w1 watch b
         0 w1 watch c
         1 w1 reserve
         1 w1 reserve
         1 w1 reserve
         1 w1 reserve
         1 w1 reserve-with-timeout 0",
        &expect![[r#"
            0 p0: USING a
            0 p0: INSERTED #1
            0 p0: USING b
            0 p0: INSERTED #2
            0 p0: INSERTED #3
            0 p0: USING c
            0 p0: INSERTED #4
            0 w1: WATCHING 2
            0 w1: WATCHING 3
            0 w1: WATCHING 4
            1 w1: RESERVED #3 2 b1
            1 w1: RESERVED #4 2 c3
            1 w1: RESERVED #1 2 a5
            1 w1: RESERVED #2 2 b5
            1 w1: TIMED_OUT
        "#]],
    );
}

#[test]
fn of_the_offers_of_several_owners_the_best_is_taken_and_the_others_are_given_back() {
    check(
        "0 p0 use a
         0 p0 put 5 0 60 a5
         0 p0 put 1 0 60 a1
         0 p0 use d
         0 p0 put 3 0 60 d3
         0 p0 put 9 0 60 d9
         0 w1 watch a
         0 w1 watch d
         0 w1 ignore default
         1 w1 reserve-with-timeout 0
         1 w1 reserve
         1 w1 reserve-with-timeout 5
         1 w1 reserve-with-timeout 0
         1 w1 reserve-with-timeout 0
         2 p0 stats-tube a
         2 v0 watch a
         2 v0 watch d
         2 v0 reserve
         2 u1 watch d
         2 u1 watch a
         2 u1 reserve
         3 p0 put 0 0 60 d0
         3 p0 use a
         3 p0 put 0 0 60 a0",
        &expect![[r#"
            0 p0: USING a
            0 p0: INSERTED #1
            0 p0: INSERTED #2
            0 p0: USING d
            0 p0: INSERTED #3
            0 p0: INSERTED #4
            0 w1: WATCHING 2
            0 w1: WATCHING 3
            0 w1: WATCHING 2
            1 w1: RESERVED #2 2 a1
            1 w1: RESERVED #3 2 d3
            1 w1: RESERVED #1 2 a5
            1 w1: RESERVED #4 2 d9
            1 w1: TIMED_OUT
            2 p0: OK 261 --- name: "a" current-jobs-urgent: 0 current-jobs-ready: 0 current-jobs-reserved: 2 current-jobs-delayed: 0 current-jobs-buried: 0 total-jobs: 2 current-using: 0 current-watching: 1 current-waiting: 0 cmd-delete: 0 cmd-pause-tube: 0 pause: 0 pause-time-left: 0
            2 v0: WATCHING 2
            2 v0: WATCHING 3
            2 u1: WATCHING 2
            2 u1: WATCHING 3
            3 p0: INSERTED #5
            3 v0: RESERVED #5 2 d0
            3 p0: USING a
            3 p0: INSERTED #6
            3 u1: RESERVED #6 2 a0
        "#]],
    );
}

#[test]
fn an_offer_that_nobody_accepts_ends_and_the_job_is_free() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 w0 watch a\n0 w0 watch d\n0 w0 reserve\n0 p1 use a");
    // The frontend is frozen: what it is offered it does not hear.
    let owner = 1;
    cluster.command(1, cluster.clients["p1"].1, "put 0 0 60 job");
    assert!(cluster.run_owner(owner));
    cluster.run_frontend(1);
    cluster.pipes[0][owner].to_frontend.0.end_turn(None);
    let lost = cluster.pipes[0][owner].to_frontend.0.sendable().len();
    assert!(lost > 0, "an offer is under way");
    cluster.pipes[0][owner].to_frontend.0.sent(lost);
    cluster.now = Now { boot_ns: 249_000_000, wall_ms: 249 };
    cluster.front(1, |router, now, wires| {
        let command = tubes_protocol::Command::StatsTube(b"a");
        router.command(now, ClientId(0), command, wires);
    });
    cluster.run_owner(owner);
    cluster.run_frontend(1);
    assert!(cluster.heard.contains("current-jobs-ready: 1"), "an offered job is ready for all who look");
    let engine = &mut cluster.owners[owner].as_mut().unwrap().engine;
    assert_eq!(engine.next_deadline(), Some(250_000_000), "an offer lasts a quarter of a second");
}

#[test]
fn a_reserve_over_several_owners_waits_and_has_one_result() {
    check(
        "0 w0 watch a
         0 w0 watch b
         0 w0 watch c
         0 w0 watch d
         0 w0 reserve
         1 p1 use a
         1 p1 put 0 0 60 one
         1 p1 use b
         1 p1 put 0 0 60 two
         1 p1 use c
         1 p1 put 0 0 60 three
         1 p1 use d
         1 p1 put 0 0 60 four
         2 w0 reserve
         3 w0 reserve
         4 w0 reserve
         5 w0 reserve-with-timeout 0",
        &expect![[r#"
            0 w0: WATCHING 2
            0 w0: WATCHING 3
            0 w0: WATCHING 4
            0 w0: WATCHING 5
            1 p1: USING a
            1 p1: INSERTED #1
            1 w0: RESERVED #1 3 one
            1 p1: USING b
            1 p1: INSERTED #2
            1 p1: USING c
            1 p1: INSERTED #3
            1 p1: USING d
            1 p1: INSERTED #4
            2 w0: RESERVED #2 3 two
            3 w0: RESERVED #3 5 three
            4 w0: RESERVED #4 4 four
            5 w0: TIMED_OUT
        "#]],
    );
}

/// What a broken frontend says ends its link, and nothing else.
#[test]
fn a_wait_over_one_owner_cannot_become_one_over_several() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 w0 watch a\n0 w0 ignore default\n0 w0 reserve\n0 p1 use a");
    let session = 1 << 32 | u64::from(cluster.clients["w0"].1.0);
    let Cluster { owners, pipes, counters, now, .. } = &mut cluster;
    let owner = owners[1].as_mut().unwrap();
    let mut wires = OwnerWires { owner: 1, pipes, counters };
    // The kind and payload of an `Ask` about the wait 0.
    let said =
        owner.host.take(*now, &mut owner.engine, (0, session), (8, &[0, 0, 0, 0, 0]), &mut NoJournal, &mut wires);
    assert_eq!(said, Err(tubes_link::Broken { frontend: 0, error: tubes_link::FrameError::Message }));
    cluster.play("1 p1 put 0 0 60 one");
    let served = cluster.heard.lines().any(|line| line.contains("w0: RESERVED ") && line.ends_with(" 3 one"));
    assert!(served, "{}", cluster.heard);
}
