//! How waits end: by time, in the last second of a held job, by the end of input.

use super::*;

#[test]
fn timed_waits_and_the_last_second_end_on_time_over_one_owner_and_several() {
    check(
        "0 w0 reserve-with-timeout 1
         0 v0 watch a
         0 v0 watch b
         0 v0 watch c
         0 v0 reserve-with-timeout 1
         999 tick
         1000 tick
         1000 p1 put 0 0 2 job
         1000 w0 reserve
         1500 w0 watch b
         1500 w0 watch a
         1500 w0 watch c
         1500 w0 reserve
         1999 tick
         2000 tick
         2500 w0 reserve-with-timeout 0
         3000 w0 reserve-with-timeout 0",
        &expect![[r#"
            0 v0: WATCHING 2
            0 v0: WATCHING 3
            0 v0: WATCHING 4
            1000 w0: TIMED_OUT
            1000 v0: TIMED_OUT
            1000 p1: INSERTED #1
            1000 w0: RESERVED #1 3 job
            1500 w0: WATCHING 2
            1500 w0: WATCHING 3
            1500 w0: WATCHING 4
            2000 w0: DEADLINE_SOON
            2500 w0: DEADLINE_SOON
            3000 w0: RESERVED #1 3 job
        "#]],
    );
}

/// The last second of a job is judged where the job is: its frontend has not heard of it when it sends the reserve.
#[test]
fn a_reserve_sent_behind_one_that_brings_the_last_second_is_answered_soon() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 p0 use a\n0 p0 put 0 0 1 brief\n0 w0 watch a\n0 w0 ignore default");
    let client = cluster.clients["w0"].1;
    for _ in 0..2 {
        cluster.front(0, |router, now, wires| {
            router.command(now, client, tubes_protocol::Command::Reserve { timeout_s: None }, wires);
        });
    }
    cluster.settle();
    assert!(cluster.heard.ends_with("w0: RESERVED #1 5 brief\n0 w0: DEADLINE_SOON\n"), "{}", cluster.heard);
}

/// And a job that is on its way out when the reserve is sent has no last second any more.
#[test]
fn a_reserve_sent_behind_what_ends_the_last_second_is_not_answered_soon() {
    use tubes_protocol::Command;
    let mut cluster = Cluster::new(2);
    cluster.play("0 p0 use a\n0 p0 put 0 0 1 brief\n0 w0 watch a\n0 w0 ignore default\n0 w0 reserve");
    let client = cluster.clients["w0"].1;
    let id = cluster.ids[0];
    for command in [Command::Delete(id), Command::Reserve { timeout_s: Some(0) }] {
        cluster.front(0, |router, now, wires| router.command(now, client, command, wires));
    }
    cluster.settle();
    assert!(cluster.heard.ends_with("w0: DELETED\n0 w0: TIMED_OUT\n"), "{}", cluster.heard);
}

#[test]
fn the_end_of_input_behind_a_reserve_does_not_keep_a_ready_job_back() {
    check(
        "0 p0 put 0 0 60 job
         0 w1 watch a
         1 w1 last reserve-with-timeout 5
         1 v0 watch a
         2 v0 last reserve",
        &expect![[r#"
            0 p0: INSERTED #1
            0 w1: WATCHING 2
            1 w1: RESERVED #1 3 job
            1 v0: WATCHING 2
            2 v0: TIMED_OUT
        "#]],
    );
}

#[test]
fn in_the_last_second_of_a_job_the_owners_say_first_whether_another_is_ready() {
    check(
        "0 p0 put 0 0 1 first
         0 w1 watch a
         1 w1 reserve
         2 p0 put 0 0 60 second
         3 w1 slow reserve
         4 w1 slow reserve",
        &expect![[r#"
            0 p0: INSERTED #1
            0 w1: WATCHING 2
            1 w1: RESERVED #1 5 first
            2 p0: INSERTED #2
            3 w1: RESERVED #2 6 second
            4 w1: DEADLINE_SOON
        "#]],
    );
}

#[test]
fn a_job_that_is_being_let_go_has_no_last_second() {
    check(
        "0 p0 put 0 0 1 first
         0 p0 put 0 0 60 second
         1 w1 reserve
         2 w1 burst delete #1; reserve-with-timeout 0",
        &expect![[r#"
            0 p0: INSERTED #1
            0 p0: INSERTED #2
            1 w1: RESERVED #1 5 first
            2 w1: DELETED
            2 w1: RESERVED #2 6 second
        "#]],
    );
}
