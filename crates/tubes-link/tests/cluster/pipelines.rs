//! Several commands of a client under way: their order, and what bounds them.

use super::*;

#[test]
fn a_link_without_room_holds_up_those_who_need_it_and_nobody_else() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 p0 use a\n0 p1 put 0 0 60 default");
    cluster.room_bytes = 0;
    cluster.play("1 p0 put 0 0 60 one\n1 p0 peek-ready\n1 p1 list-tube-used");
    assert!(!cluster.heard.contains("#2"), "{}", cluster.heard);
    assert!(cluster.heard.ends_with("p1: USING default\n"), "{}", cluster.heard);
    cluster.room_bytes = usize::MAX;
    cluster.front(0, |router, now, wires| router.room(now, wires));
    cluster.settle();
    assert!(cluster.heard.ends_with("p0: INSERTED #2\n1 p0: FOUND #2 3 one\n"), "{}", cluster.heard);
}

/// A pipeline over one owner needs no answer before it goes on; the answers keep their order.
#[test]
fn commands_behind_a_reserve_go_out_at_once_and_are_answered_in_order() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 p0 use a\n0 p0 put 0 0 60 one\n0 w0 watch a\n0 w0 ignore default\n0 w0 use a\n0 p1 use a");
    let client = cluster.clients["w0"].1;
    let commands = [
        tubes_protocol::Command::Reserve { timeout_s: None },
        tubes_protocol::Command::Reserve { timeout_s: Some(9) },
        tubes_protocol::Command::ListTubeUsed,
        tubes_protocol::Command::PeekReady,
        tubes_protocol::Command::Reserve { timeout_s: Some(0) },
        tubes_protocol::Command::Kick(1),
    ];
    for command in commands {
        cluster.front(0, |router, now, wires| {
            assert!(router.can_take(client), "{command:?}");
            router.command(now, client, command.clone(), wires);
        });
    }
    // The first finds a job, the second waits, and with it what is behind.
    cluster.settle();
    let heard = cluster.heard.clone();
    assert!(heard.ends_with("0 w0: RESERVED #1 3 one\n"), "{heard}");
    // Its time begins when it begins to wait, though it was sent before.
    cluster.play("8999 p1 list-tube-used");
    cluster.play("9000 p1 put 5 0 60 two");
    let behind = cluster.heard.strip_prefix(&heard).unwrap();
    assert_eq!(
        behind,
        "8999 p1: USING a\n9000 w0: TIMED_OUT\n9000 w0: USING a\n9000 w0: NOT_FOUND\n9000 w0: TIMED_OUT\n\
         9000 w0: KICKED 0\n9000 p1: INSERTED #2\n"
    );
}

#[test]
fn the_end_of_a_client_or_of_its_sending_reaches_reserves_behind_others() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 p0 use a\n0 p0 put 0 0 60 one\n0 w0 watch a\n0 w0 ignore default\n0 w0 use a");
    let client = cluster.clients["w0"].1;
    for _ in 0..3 {
        cluster.front(0, |router, now, wires| {
            router.command(now, client, tubes_protocol::Command::Reserve { timeout_s: None }, wires);
        });
    }
    cluster.front(0, |router, now, wires| router.half_close(now, client, wires));
    cluster.settle();
    assert!(cluster.heard.ends_with("RESERVED #1 3 one\n0 w0: TIMED_OUT\n0 w0: TIMED_OUT\n"), "{}", cluster.heard);
    // What the owner keeps behind a wait goes with its session.
    cluster.play("1 v1 watch a\n1 v1 ignore default\n1 v1 use a");
    let other = cluster.clients["v1"].1;
    for command in [tubes_protocol::Command::Reserve { timeout_s: None }, tubes_protocol::Command::Kick(1)] {
        cluster.front(1, |router, now, wires| router.command(now, other, command, wires));
    }
    cluster.settle();
    cluster.front(1, |router, _, wires| router.disconnect(other, wires));
    cluster.play("2 p0 put 0 0 60 two\n2 p0 peek-ready");
    assert!(cluster.heard.ends_with("FOUND #2 3 two\n"), "{}", cluster.heard);
}

/// GT12: what may come for a client that does not read is bounded.
#[test]
fn answers_with_bodies_under_way_for_one_client_are_bounded() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 p0 use a\n0 p0 put 0 0 60 one");
    let client = cluster.clients["p0"].1;
    for _ in 0..6 {
        cluster.front(0, |router, now, wires| {
            if router.can_take(client) {
                router.command(now, client, tubes_protocol::Command::PeekReady, wires);
            }
        });
    }
    let messages = carried(&mut cluster.pipes[0][1].to_owner);
    assert_eq!(messages.len(), 4, "a fifth waits: {messages:?}");
    // Other commands are not meant.
    assert!(!cluster.routers[0].can_take(client), "the fifth stands in the way of those behind it");
}
