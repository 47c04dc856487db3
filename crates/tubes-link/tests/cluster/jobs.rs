//! Jobs and tubes: between frontends, over owners, and while the server drains.

use super::*;

#[test]
fn a_job_goes_from_one_frontend_to_another() {
    check(
        "0 p0 use a
         0 p0 put 0 0 60 job
         0 w1 watch a
         1 w1 reserve
         2 w1 stats-job #1
         3 w1 delete #1
         4 w1 peek #1",
        &expect![[r#"
            0 p0: USING a
            0 p0: INSERTED #1
            0 w1: WATCHING 2
            1 w1: RESERVED #1 3 job
            2 w1: OK 145 --- id: #1 tube: "a" state: reserved pri: 0 age: 0 delay: 0 ttr: 60 time-left: 59 file: 0 reserves: 1 timeouts: 0 releases: 0 buries: 0 kicks: 0
            3 w1: DELETED
            4 w1: NOT_FOUND
        "#]],
    );
}

/// S25, GT10: the supervisor marks the shared page first and tells the owners then.
#[test]
fn whoever_has_seen_the_server_drain_gets_no_job_in() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 p0 put 0 0 60 one\n0 p1 use a");
    cluster.counters.is_draining = true;
    cluster.play("1 p0 put 0 0 60 two\n1 p1 put 0 0 60 three\n1 p1 watch default\n1 p1 reserve-with-timeout 0");
    assert_eq!(cluster.heard.matches("DRAINING").count(), 2, "{}", cluster.heard);
    assert!(cluster.heard.contains("RESERVED #1 3 one"), "{}", cluster.heard);
}

#[test]
fn tubes_are_listed_in_the_order_of_creation_over_all_owners() {
    check(
        "0 p0 watch d
         0 p0 watch a
         0 p1 watch c
         0 p1 watch b
         1 p0 list-tubes
         1 p0 ignore d
         1 p1 list-tubes
         1 p1 list-tubes-watched
         1 p1 list-tube-used",
        &expect![[r#"
            0 p0: WATCHING 2
            0 p0: WATCHING 3
            0 p1: WATCHING 2
            0 p1: WATCHING 3
            1 p0: OK 30 --- - default - d - a - c - b
            1 p0: WATCHING 2
            1 p1: OK 26 --- - default - a - c - b
            1 p1: OK 22 --- - default - c - b
            1 p1: USING default
        "#]],
    );
}
