//! The model against sentences of the contract, by hand: what judges others must be right by itself.

use tubes_protocol::{Item, Limits};

use super::{Model, Moment};

/// Plays a script of `<time in ms> <session> <command line>` (`connect`, `close`, `half-close` and `drain` included) and
/// returns what was answered, one reply a line.
fn play(script: &str) -> String {
    let mut model = Model::new(65_535);
    let mut said = String::new();
    let mut half_closed = Vec::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut words = line.splitn(3, ' ');
        let at_ms: u64 = words.next().unwrap().parse().unwrap();
        let now = Moment { boot_ns: at_ms * 1_000_000, wall_ms: 1_700_000_000_000 + at_ms };
        model.tick(now);
        let session: u32 = words.next().unwrap().parse().unwrap();
        match words.next().unwrap_or("tick") {
            "tick" => {}
            "connect" => model.connect(session),
            "close" => model.disconnect(now, session),
            "half-close" => {
                half_closed.push(session);
                model.half_close(session);
            }
            "drain" => model.drain(),
            text => {
                let bytes = format!("{}\r\n", text.replace('|', "\r\n"));
                let limits = Limits { body_bytes_max: 65_535, close_on_http: false };
                match tubes_protocol::Framer::new().next(bytes.as_bytes(), &limits) {
                    (_, Some(Item::Command(command))) => {
                        model.handle(now, session, &command, &mut || true);
                        if half_closed.contains(&session) {
                            model.half_close(session);
                        }
                    }
                    other => panic!("{text:?} is {other:?}"),
                }
            }
        }
        for (session, reply) in model.answers().iter() {
            let reply = String::from_utf8_lossy(reply).trim_end().replace("\r\n", "|").replace('\n', "/");
            said.push_str(&format!("{at_ms} {session} {reply}\n"));
        }
        model.answers().clear();
    }
    said
}

#[track_caller]
fn check(script: &str, expected: &str) {
    let expected: Vec<&str> = expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(play(script).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn ready_jobs_come_by_priority_then_id_and_a_released_job_takes_its_old_place() {
    check(
        "0 1 connect
         0 1 put 5 0 10 1|a
         0 1 put 5 0 10 1|b
         0 1 put 1 0 10 1|c
         0 1 reserve
         0 1 reserve
         0 1 release 1 5 0
         0 1 reserve",
        "0 1 INSERTED 1
         0 1 INSERTED 2
         0 1 INSERTED 3
         0 1 RESERVED 3 1|c
         0 1 RESERVED 1 1|a
         0 1 RELEASED
         0 1 RESERVED 1 1|a",
    );
}

#[test]
fn the_first_to_wait_is_the_first_to_be_served() {
    check(
        "0 1 connect
         0 2 connect
         0 3 connect
         0 2 reserve
         1 1 reserve-with-timeout 9
         2 3 put 0 1 10 1|a
         3 3 put 9 0 10 1|b
         1002 3 tick",
        "2 3 INSERTED 1
         3 3 INSERTED 2
         3 2 RESERVED 2 1|b
         1002 1 RESERVED 1 1|a",
    );
}

#[test]
fn a_deadline_that_is_near_is_told_instead_of_a_wait() {
    check(
        "0 1 connect
         0 1 put 0 0 3 1|a
         0 1 reserve
         0 1 reserve
         1999 1 tick
         2000 1 tick
         2500 1 reserve-with-timeout 0
         2600 1 touch 1
         2700 1 reserve-with-timeout 1
         3700 1 tick
         5600 1 reserve-with-timeout 0",
        "0 1 INSERTED 1
         0 1 RESERVED 1 1|a
         2000 1 DEADLINE_SOON
         2500 1 DEADLINE_SOON
         2600 1 TOUCHED
         3700 1 TIMED_OUT
         5600 1 RESERVED 1 1|a",
    );
}

#[test]
fn a_ready_job_of_a_paused_tube_counts_against_deadline_soon() {
    check(
        "0 1 connect
         0 1 put 0 0 1 1|a
         0 1 put 0 0 9 1|b
         0 1 reserve
         0 1 pause-tube default 5
         0 1 reserve-with-timeout 0
         0 1 delete 2
         0 1 reserve-with-timeout 0",
        "0 1 INSERTED 1
         0 1 INSERTED 2
         0 1 RESERVED 1 1|a
         0 1 PAUSED
         0 1 TIMED_OUT
         0 1 DELETED
         0 1 DEADLINE_SOON",
    );
}

#[test]
fn a_pause_holds_back_reserve_but_not_reserve_job_and_zero_lifts_it() {
    check(
        "0 1 connect
         0 2 connect
         0 1 put 0 0 9 1|a
         0 1 put 0 0 9 1|b
         0 1 pause-tube default 5
         0 1 pause-tube nowhere 5
         0 2 reserve
         0 1 reserve-job 2
         1 1 pause-tube default 0
         1 1 pause-tube default 5
         2 1 release 2 0 0
         3 2 reserve
         5001 1 tick",
        "0 1 INSERTED 1
         0 1 INSERTED 2
         0 1 PAUSED
         0 1 NOT_FOUND
         0 1 RESERVED 2 1|b
         1 1 PAUSED
         1 2 RESERVED 1 1|a
         1 1 PAUSED
         2 1 RELEASED
         5001 2 RESERVED 2 1|b",
    );
}

#[test]
fn kick_takes_the_buried_in_order_of_burying_before_the_delayed_by_due_time() {
    check(
        "0 1 connect
         0 1 put 0 0 9 1|a
         0 1 put 0 0 9 1|b
         0 1 put 0 9 9 1|c
         0 1 put 0 5 9 1|d
         0 1 reserve
         0 1 reserve
         0 1 bury 2 7
         0 1 bury 1 8
         0 1 peek-buried
         0 1 kick 1
         0 1 peek-ready
         0 1 kick 9
         0 1 peek-delayed
         0 1 kick 1
         0 1 kick-job 3
         0 1 kick-job 3
         0 1 kick 5",
        "0 1 INSERTED 1
         0 1 INSERTED 2
         0 1 INSERTED 3
         0 1 INSERTED 4
         0 1 RESERVED 1 1|a
         0 1 RESERVED 2 1|b
         0 1 BURIED
         0 1 BURIED
         0 1 FOUND 2 1|b
         0 1 KICKED 1
         0 1 FOUND 2 1|b
         0 1 KICKED 1
         0 1 FOUND 4 1|d
         0 1 KICKED 1
         0 1 KICKED
         0 1 NOT_FOUND
         0 1 KICKED 0",
    );
}

#[test]
fn only_the_holder_may_give_back_and_a_close_gives_back_at_once() {
    check(
        "0 1 connect
         0 2 connect
         0 1 put 0 0 9 1|a
         0 1 reserve
         0 2 release 1 0 0
         0 2 bury 1 0
         0 2 touch 1
         0 2 delete 1
         0 2 reserve-job 1
         0 2 reserve
         1 1 close
         1 2 delete 1",
        "0 1 INSERTED 1
         0 1 RESERVED 1 1|a
         0 2 NOT_FOUND
         0 2 NOT_FOUND
         0 2 NOT_FOUND
         0 2 NOT_FOUND
         0 2 NOT_FOUND
         1 2 RESERVED 1 1|a
         1 2 DELETED",
    );
}

#[test]
fn tubes_live_while_something_refers_to_them() {
    check(
        "0 1 connect
         0 1 use a
         0 1 watch b
         0 1 ignore default
         0 1 ignore b
         0 1 list-tubes
         0 1 put 0 0 9 1|x
         0 1 use c
         0 1 list-tubes
         0 1 delete 1
         0 1 list-tubes
         0 1 list-tubes-watched
         0 1 stats-tube a",
        "0 1 USING a
         0 1 WATCHING 2
         0 1 WATCHING 1
         0 1 NOT_IGNORED
         0 1 OK 22|---/- default/- a/- b
         0 1 INSERTED 1
         0 1 USING c
         0 1 OK 26|---/- default/- a/- b/- c
         0 1 DELETED
         0 1 OK 22|---/- default/- b/- c
         0 1 OK 8|---/- b
         0 1 NOT_FOUND",
    );
}

#[test]
fn a_half_closed_peer_waits_for_nothing_and_a_drained_server_takes_nothing() {
    check(
        "0 1 connect
         0 2 connect
         0 1 reserve
         1 1 half-close
         2 1 reserve
         3 2 drain
         3 2 put 0 0 9 1|a",
        "1 1 TIMED_OUT
         2 1 TIMED_OUT
         3 2 DRAINING",
    );
}
