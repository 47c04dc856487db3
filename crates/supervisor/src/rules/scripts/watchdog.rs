//! Processes that are silent, busy for long, or break the rules.

use super::*;

#[test]
fn a_silent_process_is_killed_after_ten_pings_and_restarted() {
    check_started(
        one_and_one(),
        "500 mute owner 0
        12000 dies owner 0
        12500 ready owner 0",
        &expect![[r#"
             11000 # owner 0.1 killed: it answered no ping for 10 s
             11000 kill owner 0.1
             12000 tell frontend 0.1: owner 0.1 is gone
             12000 # owner 0 was ended by signal 9
             12000 # owner 0 again in 104 ms
             12105 spawn owner 0
             12500 ids from 1
             12500 link owner 0.2 frontend 0.1
        "#]],
    );
}

#[test]
fn an_answer_at_the_last_moment_saves_a_process() {
    check_started(
        one_and_one(),
        "500 mute owner 0
        10990 pong owner 0 10
        20000 wait",
        &expect![""],
    );
}

#[test]
fn a_long_sync_is_reported_and_never_ends_a_process() {
    check_started(
        one_and_one(),
        "900 syncing owner 0 59000
         2500 mute owner 0
       200000 wait",
        &expect![[r#"
            60000 # owner 0.1 syncs for 60 s
            120000 # owner 0.1 syncs for 120 s
            180000 # owner 0.1 syncs for 180 s
        "#]],
    );
}

#[test]
fn a_long_start_is_reported_and_never_ends_a_process() {
    check(
        one_and_one(),
        "0 begin
         1 ready frontend 0
    125000 ready owner 0",
        &expect![[r#"
            0 spawn owner 0
            0 spawn frontend 0
            60000 # owner 0.1 starts for 60 s
            120000 # owner 0.1 starts for 120 s
            125000 ids from 1
            125000 link owner 0.1 frontend 0.1
            125000 tell frontend 0.1: go
            125000 serving
        "#]],
    );
}

#[test]
fn a_process_that_breaks_the_rules_is_killed() {
    check_started(
        two_and_one(),
        "500 ready owner 0
         501 acks owner 1
         502 pong frontend 0 77
         503 dies owner 0
         504 dies owner 1
         505 dies frontend 0",
        &expect![[r#"
               500 # owner 0.1 killed: it broke the rules of the control channel
               500 kill owner 0.1
               501 # owner 1.1 killed: it broke the rules of the control channel
               501 kill owner 1.1
               502 # frontend 0.1 killed: it broke the rules of the control channel
               502 kill frontend 0.1
               503 # owner 0 was ended by signal 9
               503 # owner 0 again in 104 ms
               504 # owner 1 was ended by signal 9
               504 # owner 1 again in 105 ms
               505 # frontend 0 was ended by signal 9
               505 # frontend 0 again in 110 ms
        "#]],
    );
}
