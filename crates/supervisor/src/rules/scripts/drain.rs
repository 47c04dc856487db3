//! Drains.

use super::*;

#[test]
fn a_drain_asks_owners_then_frontends_then_reports() {
    check_started(
        two_and_one(),
        "500 drain
         501 acks owner 1
         502 drain
         503 acks owner 0
         504 acks frontend 0
         600 drain",
        &expect![[r#"
               500 set the flag
               500 # draining
               500 tell owner 0.1: drain
               500 tell owner 1.1: drain
               503 tell frontend 0.1: drain
               504 # drained
               600 # drained
        "#]],
    );
}

#[test]
fn a_dead_owner_has_acknowledged_when_its_successor_was_started_drained() {
    check_started(
        two_and_one(),
        "400 dies owner 1
         410 drain
         420 acks owner 0
         900 acks frontend 0
         950 ready owner 1
        1000 dies owner 0",
        &expect![[r#"
            400 tell frontend 0.1: owner 1.1 is gone
            400 # owner 1 was ended by signal 9
            400 # owner 1 again in 104 ms
            410 set the flag
            410 # draining
            410 tell owner 0.1: drain
            505 spawn owner 1 drained
            505 tell frontend 0.1: drain
            900 # drained
            950 ids from 1
            950 link owner 1.2 frontend 0.1
            1000 tell frontend 0.1: owner 0.1 is gone
            1000 # owner 0 was ended by signal 9
            1000 # owner 0 again in 105 ms
        "#]],
    );
}

#[test]
fn a_failed_slot_does_not_hold_up_a_drain_and_comes_back_drained() {
    check_started(
        two_and_one(),
        "400 exits owner 1 11
         500 drain
         501 acks owner 0
         502 acks frontend 0
         600 restart owner 1",
        &expect![[r#"
               400 tell frontend 0.1: owner 1.1 is gone
               400 # owner 1 exited with code 11
               400 # owner 1 has failed: exited with code 11
               500 set the flag
               500 # draining
               500 tell owner 0.1: drain
               501 tell frontend 0.1: drain
               502 # drained
               600 spawn owner 1 drained
        "#]],
    );
}

#[test]
fn a_drain_during_the_start_reaches_everybody() {
    check(
        two_and_one(),
        "0 begin
         1 drain
         2 ready owner 0
         3 ready owner 1
         4 acks owner 1
         5 ready frontend 0
         6 acks owner 0
         7 acks frontend 0",
        &expect![[r#"
                 0 spawn owner 0
                 0 spawn owner 1
                 0 spawn frontend 0
                 1 set the flag
                 1 # draining
                 1 tell owner 0.1: drain
                 1 tell owner 1.1: drain
                 2 ids from 1
                 3 ids from 1
                 5 link owner 0.1 frontend 0.1
                 5 link owner 1.1 frontend 0.1
                 5 tell frontend 0.1: go
                 5 serving
                 6 tell frontend 0.1: drain
                 7 # drained
        "#]],
    );
}
