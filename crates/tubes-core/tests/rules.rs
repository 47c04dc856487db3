//! The rules as scripts: who says what at which moment, and what everybody hears.
//!
//! A line is `MILLISECONDS SESSION COMMAND`; a put is written `put PRI DELAY TTR BODY`. `tick` lets time pass, `close`
//! and `half-close` end a session. Sessions begin when they first appear.

use expect_test::{Expect, expect};
use std::collections::BTreeMap;
use std::fmt::Write;
use tubes_core::journal::NoJournal;
use tubes_core::{Engine, EngineOptions, Now, Outbox, SessionId};
use tubes_protocol::{Framer, Item, Limits, Reply, ServerStats};

#[derive(Default)]
struct Heard {
    names: BTreeMap<SessionId, String>,
    at_ms: u64,
    text: String,
}

impl Outbox for Heard {
    fn reply(&mut self, session: SessionId, reply: &Reply<'_>) {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        let text = String::from_utf8(bytes).expect("replies in these scripts are text");
        let line = text.trim_end().replace("\r\n", " ").replace('\n', " ");
        writeln!(self.text, "{} {}: {line}", self.at_ms, self.names[&session]).expect("a string takes everything");
    }

    fn stats(&mut self, session: SessionId, stats: ServerStats) {
        self.reply(session, &Reply::ServerStats(&stats));
    }
}

fn play(script: &str) -> String {
    let mut engine = Engine::new(EngineOptions { max_job_size: 100, hash_seed: 1 });
    engine.finish_recovery(Now { boot_ns: 0, wall_ms: 0 }, 1);
    let mut heard = Heard::default();
    let mut sessions: BTreeMap<String, SessionId> = BTreeMap::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (at, rest) = line.split_once(' ').expect("a line begins with a time");
        heard.at_ms = at.parse().expect("milliseconds");
        let now = Now { boot_ns: heard.at_ms * 1_000_000, wall_ms: heard.at_ms };
        engine.tick(now, &mut NoJournal, &mut heard);
        engine.check_invariants();
        let Some((name, command)) = rest.split_once(' ') else {
            assert_eq!(rest, "tick");
            continue;
        };
        let session = *sessions.entry(name.to_owned()).or_insert_with(|| {
            let session = engine.connect();
            heard.names.insert(session, name.to_owned());
            session
        });
        match command {
            "close" => {
                engine.disconnect(now, session, &mut NoJournal, &mut heard);
                sessions.remove(name);
            }
            "half-close" => engine.half_close(now, session, &mut heard),
            "drain" => engine.drain(),
            _ => handle(&mut engine, now, session, command, &mut heard),
        }
        engine.check_invariants();
    }
    heard.text
}

fn handle(engine: &mut Engine, now: Now, session: SessionId, command: &str, heard: &mut Heard) {
    let mut wire = command.to_owned();
    if let Some(put) = command.strip_prefix("put ") {
        let (numbers, body) = put.rsplit_once(' ').expect("a put ends with its body");
        wire = format!("put {numbers} {}\r\n{body}", body.len());
    }
    wire.push_str("\r\n");
    let limits = Limits { body_bytes_max: 100, close_on_http: true };
    match Framer::new().next(wire.as_bytes(), &limits) {
        (used, Some(Item::Command(command))) if used == wire.len() => {
            engine.handle(now, session, command, &mut NoJournal, heard);
        }
        other => panic!("{command:?} is no command: {other:?}"),
    }
}

#[track_caller]
fn check(script: &str, expected: &Expect) {
    expected.assert_eq(&play(script));
}

#[test]
fn ready_jobs_come_by_priority_then_id_over_all_watched_tubes() {
    check(
        "0 p use a
         0 p put 5 0 60 a5
         0 p use b
         0 p put 5 0 60 b5
         0 p put 1 0 60 b1
         0 w watch a
         0 w watch b
         1 w reserve
         1 w reserve
         1 w reserve
         1 w reserve-with-timeout 0",
        &expect![[r#"
                0 p: USING a
                0 p: INSERTED 1
                0 p: USING b
                0 p: INSERTED 2
                0 p: INSERTED 3
                0 w: WATCHING 2
                0 w: WATCHING 3
                1 w: RESERVED 3 2 b1
                1 w: RESERVED 1 2 a5
                1 w: RESERVED 2 2 b5
                1 w: TIMED_OUT
        "#]],
    );
}

#[test]
fn a_released_job_takes_its_old_place() {
    check(
        "0 p put 0 0 60 one
         0 p put 0 0 60 two
         0 w reserve
         1 w release 1 0 0
         2 w reserve
         2 w release 1 7 0
         3 w reserve",
        &expect![[r#"
                0 p: INSERTED 1
                0 p: INSERTED 2
                0 w: RESERVED 1 3 one
                1 w: RELEASED
                2 w: RESERVED 1 3 one
                2 w: RELEASED
                3 w: RESERVED 2 3 two
        "#]],
    );
}

#[test]
fn those_who_wait_are_served_first_come_first_served() {
    check(
        "0 first reserve
         0 second reserve
         1 p put 0 0 60 one
         2 p put 0 0 60 two",
        &expect![[r#"
                1 p: INSERTED 1
                1 first: RESERVED 1 3 one
                2 p: INSERTED 2
                2 second: RESERVED 2 3 two
        "#]],
    );
}

#[test]
fn one_reserve_has_one_result_though_it_waits_at_two_tubes() {
    check(
        "0 w watch a
         0 w reserve
         1 p put 0 0 60 one
         1 p use a
         1 p put 0 0 60 two
         2 w reserve",
        &expect![[r#"
                0 w: WATCHING 2
                1 p: INSERTED 1
                1 w: RESERVED 1 3 one
                1 p: USING a
                1 p: INSERTED 2
                2 w: RESERVED 2 3 two
        "#]],
    );
}

#[test]
fn a_holder_is_warned_in_the_last_second_and_then_loses_the_job() {
    check(
        "0 p put 0 0 2 job
         0 w reserve
         500 w reserve
         999 tick
         1000 tick
         1500 w reserve-with-timeout 0
         2000 tick
         2000 w stats-job 1",
        &expect![[r#"
            0 p: INSERTED 1
            0 w: RESERVED 1 3 job
            1000 w: DEADLINE_SOON
            1500 w: DEADLINE_SOON
            2000 w: OK 145 --- id: 1 tube: "default" state: ready pri: 0 age: 2 delay: 0 ttr: 2 time-left: 0 file: 0 reserves: 1 timeouts: 1 releases: 0 buries: 0 kicks: 0
        "#]],
    );
}

#[test]
fn a_ready_job_is_handed_out_also_in_the_last_second() {
    check(
        "0 p put 0 0 1 short
         0 p put 0 0 60 long
         0 w reserve
         500 w reserve",
        &expect![[r#"
            0 p: INSERTED 1
            0 p: INSERTED 2
            0 w: RESERVED 1 5 short
            500 w: RESERVED 2 4 long
        "#]],
    );
}

#[test]
fn a_touch_moves_the_deadline() {
    check(
        "0 p put 0 0 2 job
         0 w reserve
         1900 w touch 1
         3899 tick
         3899 o reserve-with-timeout 0
         3900 o reserve-with-timeout 0
         3900 w touch 1",
        &expect![[r#"
            0 p: INSERTED 1
            0 w: RESERVED 1 3 job
            1900 w: TOUCHED
            3899 o: TIMED_OUT
            3900 o: RESERVED 1 3 job
            3900 w: NOT_FOUND
        "#]],
    );
}

#[test]
fn a_delayed_job_is_ready_when_its_delay_is_over() {
    check(
        "0 w reserve-with-timeout 5
         0 p put 0 1 60 job
         999 tick
         1000 tick",
        &expect![[r#"
            0 p: INSERTED 1
            1000 w: RESERVED 1 3 job
        "#]],
    );
}

#[test]
fn timed_waits_end_on_time() {
    check(
        "0 w reserve-with-timeout 1
         999 tick
         1000 tick",
        &expect![[r#"
             1000 w: TIMED_OUT
        "#]],
    );
}

#[test]
fn a_late_tick_prefers_the_job_to_the_time_out() {
    check(
        "0 w reserve-with-timeout 1
         0 p put 0 2 60 job
         5000 tick",
        &expect![[r#"
            0 p: INSERTED 1
            5000 w: RESERVED 1 3 job
        "#]],
    );
}

#[test]
fn a_pause_holds_reserves_back_and_nothing_else() {
    check(
        "0 p put 0 0 60 job
         0 p pause-tube default 10
         0 w reserve-with-timeout 0
         0 w peek-ready
         0 w reserve-job 1
         0 w release 1 0 0
         1 w reserve
         2 p pause-tube default 0
         3 p pause-tube nosuch 1",
        &expect![[r#"
                0 p: INSERTED 1
                0 p: PAUSED
                0 w: TIMED_OUT
                0 w: FOUND 1 3 job
                0 w: RESERVED 1 3 job
                0 w: RELEASED
                2 p: PAUSED
                2 w: RESERVED 1 3 job
                3 p: NOT_FOUND
        "#]],
    );
}

#[test]
fn a_pause_ends_by_itself_for_those_who_wait() {
    check(
        "0 p put 0 0 60 job
         0 p pause-tube default 1
         0 w reserve
         999 tick
         1000 tick",
        &expect![[r#"
            0 p: INSERTED 1
            0 p: PAUSED
            1000 w: RESERVED 1 3 job
        "#]],
    );
}

#[test]
fn kick_takes_buried_jobs_in_the_order_of_burying_and_only_then_delayed_ones() {
    check(
        "0 p put 0 5 60 delayed
         0 p put 0 0 60 b2
         0 p put 0 0 60 b3
         0 w reserve-job 3
         0 w reserve-job 2
         0 w bury 3 9
         0 w bury 2 9
         1 w peek-buried
         1 w kick 1
         1 w peek-buried
         1 w kick 10
         1 w kick 10
         1 w kick 10
         1 w stats-job 3",
        &expect![[r#"
                0 p: INSERTED 1
                0 p: INSERTED 2
                0 p: INSERTED 3
                0 w: RESERVED 3 2 b3
                0 w: RESERVED 2 2 b2
                0 w: BURIED
                0 w: BURIED
                1 w: FOUND 3 2 b3
                1 w: KICKED 1
                1 w: FOUND 2 2 b2
                1 w: KICKED 1
                1 w: KICKED 1
                1 w: KICKED 0
                1 w: OK 146 --- id: 3 tube: "default" state: ready pri: 9 age: 0 delay: 0 ttr: 60 time-left: 0 file: 0 reserves: 1 timeouts: 0 releases: 0 buries: 1 kicks: 1
        "#]],
    );
}

#[test]
fn only_the_holder_may_release_bury_and_touch_and_nobody_else_delete() {
    check(
        "0 p put 0 0 60 job
         0 w reserve
         0 o release 1 0 0
         0 o bury 1 0
         0 o touch 1
         0 o delete 1
         0 o reserve-job 1
         0 o kick-job 1
         0 o peek 1
         0 w delete 1
         0 w delete 1",
        &expect![[r#"
                0 p: INSERTED 1
                0 w: RESERVED 1 3 job
                0 o: NOT_FOUND
                0 o: NOT_FOUND
                0 o: NOT_FOUND
                0 o: NOT_FOUND
                0 o: NOT_FOUND
                0 o: NOT_FOUND
                0 o: FOUND 1 3 job
                0 w: DELETED
                0 w: NOT_FOUND
        "#]],
    );
}

#[test]
fn the_end_of_a_session_gives_its_jobs_back_at_once_and_counts_nothing() {
    check(
        "0 p put 7 0 60 job
         0 w reserve
         0 o reserve
         1 w close
         1 o stats-job 1",
        &expect![[r#"
                0 p: INSERTED 1
                0 w: RESERVED 1 3 job
                1 o: RESERVED 1 3 job
                1 o: OK 150 --- id: 1 tube: "default" state: reserved pri: 7 age: 0 delay: 0 ttr: 60 time-left: 60 file: 0 reserves: 2 timeouts: 0 releases: 0 buries: 0 kicks: 0
        "#]],
    );
}

#[test]
fn a_half_closed_session_waits_no_longer() {
    check(
        "0 w reserve\n1 w half-close",
        &expect![[r#"
            1 w: TIMED_OUT
    "#]],
    );
}

#[test]
fn a_tube_vanishes_with_its_last_reference() {
    check(
        "0 a use t
         0 a put 0 0 60 job
         0 a use default
         0 a list-tubes
         0 a delete 1
         0 a list-tubes
         0 a stats-tube t
         0 a watch t
         0 a ignore t
         0 a ignore default
         0 a ignore nosuch
         0 a list-tubes",
        &expect![[r#"
                0 a: USING t
                0 a: INSERTED 1
                0 a: USING default
                0 a: OK 18 --- - default - t
                0 a: DELETED
                0 a: OK 14 --- - default
                0 a: NOT_FOUND
                0 a: WATCHING 2
                0 a: WATCHING 1
                0 a: NOT_IGNORED
                0 a: WATCHING 1
                0 a: OK 14 --- - default
        "#]],
    );
}

#[test]
fn drain_refuses_puts_only() {
    check(
        "0 p put 0 0 60 job
         0 p drain
         0 p put 0 0 60 no
         0 w reserve
         0 w release 1 0 0",
        &expect![[r#"
                0 p: INSERTED 1
                0 p: DRAINING
                0 w: RESERVED 1 3 job
                0 w: RELEASED
        "#]],
    );
}
