//! Owners that are lost, stay away or come back.

use super::*;

#[test]
fn those_who_hold_or_ask_at_a_lost_owner_are_closed_and_the_others_go_on() {
    check(
        "0 a0 watch a
         0 b0 watch d
         0 p1 use a
         0 p1 put 0 0 60 one
         0 p1 use d
         0 p1 put 0 0 60 two
         0 a0 ignore default
         0 b0 ignore default
         0 a0 reserve
         0 b0 reserve
         0 i0 use a
         0 i1 use d
         1 kill 1
         2 i0 put 0 0 60 late
         2 i1 put 0 0 60 late
         3 start 1
         4 p1 list-tubes
         4 i0 stats-tube a
         4 i1 stats-tube d",
        &expect![[r#"
            0 a0: WATCHING 2
            0 b0: WATCHING 2
            0 p1: USING a
            0 p1: INSERTED #1
            0 p1: USING d
            0 p1: INSERTED #2
            0 a0: WATCHING 1
            0 b0: WATCHING 1
            0 a0: RESERVED #1 3 one
            0 b0: RESERVED #2 3 two
            0 i0: USING a
            0 i1: USING d
            1 a0: (closed)
            2 i1: INSERTED #3
            3 i0: INSERTED #4
            4 p1: OK 22 --- - default - d - a
            4 i0: OK 261 --- name: "a" current-jobs-urgent: 1 current-jobs-ready: 1 current-jobs-reserved: 0 current-jobs-delayed: 0 current-jobs-buried: 0 total-jobs: 1 current-using: 1 current-watching: 0 current-waiting: 0 cmd-delete: 0 cmd-pause-tube: 0 pause: 0 pause-time-left: 0
            4 i1: OK 261 --- name: "d" current-jobs-urgent: 1 current-jobs-ready: 1 current-jobs-reserved: 1 current-jobs-delayed: 0 current-jobs-buried: 0 total-jobs: 2 current-using: 2 current-watching: 1 current-waiting: 0 cmd-delete: 0 cmd-pause-tube: 0 pause: 0 pause-time-left: 0
        "#]],
    );
}

#[test]
fn a_command_for_an_owner_that_stays_away_is_answered_with_an_error() {
    check(
        "0 p0 use a
         0 p1 use b
         1 kill 0
         1 kill 1
         2 p0 put 0 0 60 x
         2 p1 list-tubes
         2 q0 list-tube-used
         5001 tick
         5002 tick",
        &expect![[r#"
            0 p0: USING a
            0 p1: USING b
            2 q0: USING default
            5002 p0: INTERNAL_ERROR
            5002 p1: INTERNAL_ERROR
        "#]],
    );
}

#[test]
fn a_blocking_reserve_over_several_owners_survives_the_loss_of_one() {
    check(
        "0 w0 watch a
         0 w0 watch b
         0 w0 watch c
         0 w0 reserve
         1 kill 0
         1 kill 1
         2 start 0
         2 start 1
         3 p1 use a
         3 p1 put 0 0 60 one
         4 w0 delete #1",
        &expect![[r#"
            0 w0: WATCHING 2
            0 w0: WATCHING 3
            0 w0: WATCHING 4
            3 p1: USING a
            3 p1: INSERTED #1
            3 w0: RESERVED #1 3 one
            4 w0: DELETED
        "#]],
    );
}

#[test]
fn whoever_waits_for_room_at_an_owner_that_is_lost_is_not_left_waiting() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 p0 use a");
    cluster.room_bytes = 0;
    cluster.play("1 p0 put 0 0 60 one");
    cluster.kill(1);
    cluster.room_bytes = usize::MAX;
    cluster.play("5000 p1 list-tube-used");
    assert!(!cluster.heard.contains("INTERNAL_ERROR"), "{}", cluster.heard);
    cluster.play("5001 p1 list-tube-used");
    assert_eq!(cluster.heard.matches("p0: INTERNAL_ERROR").count(), 1, "{}", cluster.heard);
}

/// A client that has ended its input cannot wait, but an owner that is away may have the job: as for a poll, it is
/// waited for, and then the answer is an error and not "no job".
#[test]
fn a_reserve_over_owners_of_which_one_is_away_does_not_time_out_at_the_end_of_input() {
    for stays_away in [false, true] {
        let mut cluster = Cluster::new(2);
        cluster.play("0 w0 watch a");
        cluster.kill(1);
        cluster.play("1 w0 reserve");
        let client = cluster.clients["w0"].1;
        cluster.front(0, |router, now, wires| router.half_close(now, client, wires));
        cluster.play("2 p1 list-tube-used");
        assert!(!cluster.heard.contains("TIMED_OUT"), "{}", cluster.heard);
        if stays_away {
            cluster.play("5000 p1 list-tube-used");
            assert!(cluster.heard.ends_with("p1: USING default\n"), "{}", cluster.heard);
            cluster.play("5001 p1 list-tube-used");
            assert!(cluster.heard.contains("5001 w0: INTERNAL_ERROR"), "{}", cluster.heard);
        } else {
            cluster.start(1, 2);
            assert!(cluster.heard.ends_with("w0: TIMED_OUT\n"), "{}", cluster.heard);
        }
    }
}

#[test]
fn a_poll_is_given_up_though_one_of_two_owners_that_were_away_is_back() {
    let mut cluster = Cluster::new(3);
    let names = ["default", "a", "b", "c", "d", "e"];
    let of: Vec<u16> = names.iter().map(|name| cluster.map.of_tube(name.as_bytes())).collect();
    let at = |owner: u16| names[of.iter().position(|found| *found == owner).unwrap()];
    for owner in 0..3 {
        cluster.play(&format!("0 w0 watch {}", at(owner)));
    }
    cluster.kill(1);
    cluster.kill(2);
    cluster.play("1 w0 reserve-with-timeout 0");
    cluster.start(1, 2);
    cluster.play("5000 p1 list-tube-used");
    assert!(!cluster.heard.contains("w0: INTERNAL_ERROR") && !cluster.heard.contains("TIMED_OUT"), "{}", cluster.heard);
    cluster.play("5001 p1 list-tube-used");
    assert!(cluster.heard.contains("5001 w0: INTERNAL_ERROR"), "{}", cluster.heard);
}
