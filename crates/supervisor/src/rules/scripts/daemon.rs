//! The process of the tubes, and the daemon beside either kind of queue server.

use super::*;

fn single_and_daemon() -> Config {
    of(Topology { daemon: true, ..Topology::single() })
}

fn several_and_daemon() -> Config {
    of(Topology { daemon: true, ..Topology::several(1, 1) })
}

const BOTH_STARTED: &str = "
    0 begin
    1 ready tubes 0
    2 ready daemon 0
";

/// The script behind a start of tubes and daemon, of which only the input is wanted.
#[track_caller]
fn check_both(config: Config, script: &str, expected: &Expect) {
    let prefix = play(config, BOTH_STARTED);
    let whole = play(config, &format!("{BOTH_STARTED}{script}"));
    expected.assert_eq(whole.strip_prefix(&prefix).expect("the start is the same"));
}

#[test]
fn nobody_goes_before_the_daemon_is_ready() {
    check(
        single_and_daemon(),
        BOTH_STARTED,
        &expect![[r#"
        0 spawn tubes 0
        0 spawn daemon 0
        2 tell tubes 0.1: go
        2 tell daemon 0.1: go
        2 serving
    "#]],
    );
    check(
        several_and_daemon(),
        "0 begin
         1 ready owner 0
         2 ready frontend 0
         3 ready daemon 0",
        &expect![[r#"
            0 spawn owner 0
            0 spawn frontend 0
            0 spawn daemon 0
            1 ids from 1
            2 link owner 0.1 frontend 0.1
            3 tell frontend 0.1: go
            3 tell daemon 0.1: go
            3 serving
        "#]],
    );
}

/// S3: a daemon that does not start ends the start, and leaves nothing.
#[test]
fn a_daemon_that_fails_at_the_first_start_ends_the_start() {
    check(
        single_and_daemon(),
        "0 begin
         1 ready tubes 0
         2 exits daemon 0 78
         3 dies tubes 0",
        &expect![[r#"
            0 spawn tubes 0
            0 spawn daemon 0
            2 # daemon 0 exited with code 78
            2 close the listeners
            2 # tubes 0.1 killed: the start of the server has failed
            2 kill tubes 0.1
            3 finish: the start of daemon 0 failed
        "#]],
    );
}

#[test]
fn a_daemon_that_dies_is_restarted_alone() {
    check_both(
        single_and_daemon(),
        "1000 dies daemon 0
         2000 ready daemon 0",
        &expect![[r#"
            1000 # daemon 0 was ended by signal 9
            1000 # daemon 0 again in 104 ms
            1105 spawn daemon 0
            2000 tell daemon 0.2: go
        "#]],
    );
}

/// S21, S22: what no other try can help is not tried, and clients of the tubes do not notice.
#[test]
fn a_failed_daemon_stays_visible_and_the_tubes_serve_on() {
    let config = Config { on_slot_failed: OnSlotFailed::Stop, ..single_and_daemon() };
    for code in FINAL_CODES {
        let script = format!("1000 exits daemon 0 {code}\n 90000 restart daemon 0\n 90001 ready daemon 0");
        let text = play(config, &format!("{BOTH_STARTED}{script}"));
        assert!(text.contains(&format!("1000 # daemon 0 has failed: exited with code {code}\n")), "{text}");
        assert!(text.ends_with("90000 spawn daemon 0\n90001 tell daemon 0.2: go\n"), "{text}");
    }
}

#[test]
fn a_server_that_is_a_daemon_only_ends_with_it() {
    check(
        of(Topology { daemon: true, ..Topology::default() }),
        "0 begin
         1 ready daemon 0
         1000 drain
         2000 exits daemon 0 13
         2200 exits daemon 0 12",
        &expect![[r#"
            0 spawn daemon 0
            1 tell daemon 0.1: go
            1 serving
            1000 set the flag
            1000 # draining
            1000 # drained
            2000 # daemon 0 exited with code 13
            2000 # daemon 0 again in 104 ms
            2105 spawn daemon 0 drained
            2200 # daemon 0 exited with code 12
            2200 # daemon 0 has failed: exited with code 12
            2200 # stopping
            2200 close the listeners
            2200 finish: daemon 0 failed
        "#]],
    );
}

/// S21: as an owner, the process of the tubes is restarted after a failed write, and not after damage.
#[test]
fn the_process_of_the_tubes_is_restarted_as_an_owner_is() {
    check_both(
        single_and_daemon(),
        "1000 failed-write tubes 0
         2000 ready tubes 0
         3000 exits tubes 0 11",
        &expect![[r#"
            1000 # tubes 0 exited with code 10: EIO
            1000 # tubes 0 again in 104 ms
            1105 spawn tubes 0
            2000 tell tubes 0.2: go
            3000 # tubes 0 exited with code 11
            3000 # tubes 0 has failed: exited with code 11
        "#]],
    );
}

/// S6: the tubes are drained, whatever the daemon does.
#[test]
fn a_drain_is_the_affair_of_the_tubes() {
    check_both(
        single_and_daemon(),
        "1000 dies daemon 0
         1001 drain
         1002 acks tubes 0
         2000 ready daemon 0
         3000 dies tubes 0
         4000 ready tubes 0
         5000 drain",
        &expect![[r#"
            1000 # daemon 0 was ended by signal 9
            1000 # daemon 0 again in 104 ms
            1001 set the flag
            1001 # draining
            1001 tell tubes 0.1: drain
            1002 # drained
            1105 spawn daemon 0 drained
            2000 tell daemon 0.2: go
            3000 # tubes 0 was ended by signal 9
            3000 # tubes 0 again in 105 ms
            3106 spawn tubes 0 drained
            4000 tell tubes 0.2: go
            5000 # drained
        "#]],
    );
}

/// S26: both are told at once, and have the whole time.
#[test]
fn a_stop_is_told_to_tubes_and_daemon_at_once() {
    check_both(
        single_and_daemon(),
        "1000 stop
         1500 exits tubes 0 0
         2500 exits daemon 0 0",
        &expect![[r#"
            1000 # stopping
            1000 close the listeners
            1000 tell tubes 0.1: stop within 10000 ms
            1000 tell daemon 0.1: stop within 10000 ms
            2500 finish: stopped
        "#]],
    );
    check_both(
        single_and_daemon(),
        "1000 stop
         1500 exits daemon 0 1
        11500 dies tubes 0",
        &expect![[r#"
            1000 # stopping
            1000 close the listeners
            1000 tell tubes 0.1: stop within 10000 ms
            1000 tell daemon 0.1: stop within 10000 ms
            1500 # daemon 0 stopped badly: exited with code 1
            11000 # tubes 0.1 killed: the server stops
            11000 kill tubes 0.1
            11500 finish: daemon 0 stopped badly
        "#]],
    );
}

#[test]
fn a_daemon_that_stops_slowly_holds_no_owner_up() {
    check(
        several_and_daemon(),
        "0 begin
         1 ready owner 0
         2 ready frontend 0
         3 ready daemon 0
         1000 stop
         1100 exits frontend 0 0
         1200 exits owner 0 0
         9000 exits daemon 0 0",
        &expect![[r#"
            0 spawn owner 0
            0 spawn frontend 0
            0 spawn daemon 0
            1 ids from 1
            2 link owner 0.1 frontend 0.1
            3 tell frontend 0.1: go
            3 tell daemon 0.1: go
            3 serving
            1000 # stopping
            1000 close the listeners
            1000 tell frontend 0.1: barrier within 6000 ms
            1000 tell daemon 0.1: stop within 10000 ms
            1100 tell owner 0.1: frontend 0.1 is gone
            1100 tell owner 0.1: stop within 9900 ms
            9000 finish: stopped
        "#]],
    );
}

/// S7: a daemon is watched as any other process.
#[test]
fn a_frozen_daemon_is_killed_and_restarted() {
    check_both(
        single_and_daemon(),
        "5000 mute daemon 0
        16000 dies daemon 0
        17000 ready daemon 0",
        &expect![[r#"
            16000 # daemon 0.1 killed: it answered no ping for 10 s
            16000 kill daemon 0.1
            16000 # daemon 0 was ended by signal 9
            16000 # daemon 0 again in 104 ms
            16105 spawn daemon 0
            17000 tell daemon 0.2: go
        "#]],
    );
}
