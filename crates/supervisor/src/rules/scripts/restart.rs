//! Restarts: delays, limits and failed slots.

use super::*;

#[test]
fn a_dead_owner_is_restarted_alone_and_linked_anew() {
    check_started(
        two_and_one(),
        "500 dies owner 1
         900 ready owner 1 50",
        &expect![[r#"
               500 tell frontend 0.1: owner 1.1 is gone
               500 # owner 1 was ended by signal 9
               500 # owner 1 again in 104 ms
               605 spawn owner 1
               900 ids from 50
               900 link owner 1.2 frontend 0.1
        "#]],
    );
}

#[test]
fn a_dead_frontend_is_told_to_owners_and_goes_as_soon_as_it_is_linked() {
    check_started(
        two_and_one(),
        "500 dies frontend 0
         700 dies owner 1
         800 ready frontend 0
         900 ready owner 1",
        &expect![[r#"
               500 tell owner 0.1: frontend 0.1 is gone
               500 tell owner 1.1: frontend 0.1 is gone
               500 # frontend 0 was ended by signal 9
               500 # frontend 0 again in 104 ms
               605 spawn frontend 0
               700 # owner 1 was ended by signal 9
               700 # owner 1 again in 105 ms
               800 link owner 0.1 frontend 0.2
               800 tell frontend 0.2: go
               806 spawn owner 1
               900 ids from 1
               900 link owner 1.2 frontend 0.2
        "#]],
    );
}

#[test]
fn delays_double_up_to_a_bound_and_calm_time_resets_them() {
    let config = Config { restart: RestartPolicy { limit: 100, ..RestartPolicy::default() }, ..one_and_one() };
    check_started(
        config,
        "1000 dies owner 0
         2000 dies owner 0
         3000 dies owner 0
         4000 dies owner 0
         6000 dies owner 0
         9000 dies owner 0
        14000 dies owner 0
        20000 dies owner 0
        26000 ready owner 0
        85999 dies owner 0
        92000 ready owner 0
       152000 dies owner 0
       153000 ready owner 0",
        &expect![[r#"
            1000 tell frontend 0.1: owner 0.1 is gone
            1000 # owner 0 was ended by signal 9
            1000 # owner 0 again in 104 ms
            1105 spawn owner 0
            2000 # owner 0 was ended by signal 9
            2000 # owner 0 again in 210 ms
            2211 spawn owner 0
            3000 # owner 0 was ended by signal 9
            3000 # owner 0 again in 441 ms
            3442 spawn owner 0
            4000 # owner 0 was ended by signal 9
            4000 # owner 0 again in 770 ms
            4771 spawn owner 0
            6000 # owner 0 was ended by signal 9
            6000 # owner 0 again in 1419 ms
            7420 spawn owner 0
            9000 # owner 0 was ended by signal 9
            9000 # owner 0 again in 3664 ms
            12664 spawn owner 0
            14000 # owner 0 was ended by signal 9
            14000 # owner 0 again in 4400 ms
            18400 spawn owner 0
            20000 # owner 0 was ended by signal 9
            20000 # owner 0 again in 4535 ms
            24535 spawn owner 0
            26000 ids from 1
            26000 link owner 0.9 frontend 0.1
            85999 tell frontend 0.1: owner 0.9 is gone
            85999 # owner 0 was ended by signal 9
            85999 # owner 0 again in 5515 ms
            91514 spawn owner 0
            92000 ids from 1
            92000 link owner 0.10 frontend 0.1
            152000 tell frontend 0.1: owner 0.10 is gone
            152000 # owner 0 was ended by signal 9
            152000 # owner 0 again in 101 ms
            152102 spawn owner 0
            153000 ids from 1
            153000 link owner 0.11 frontend 0.1
        "#]],
    );
}

#[test]
fn one_restart_above_the_limit_fails_the_slot_until_somebody_asks() {
    let config = Config {
        restart: RestartPolicy { limit: 2, window: Duration::from_secs(30), ..RestartPolicy::default() },
        ..one_and_one()
    };
    check_started(
        config,
        "1000 dies owner 0
         2000 dies owner 0
        30999 ready owner 0
        31000 dies owner 0
        31900 dies owner 0
        60000 wait
        60000 restart frontend 0
        60000 restart owner 7
        60001 restart owner 0
        60001 restart owner 0
        60002 ready owner 0",
        &expect![[r#"
            1000 tell frontend 0.1: owner 0.1 is gone
            1000 # owner 0 was ended by signal 9
            1000 # owner 0 again in 104 ms
            1105 spawn owner 0
            2000 # owner 0 was ended by signal 9
            2000 # owner 0 again in 210 ms
            2211 spawn owner 0
            30999 ids from 1
            30999 link owner 0.3 frontend 0.1
            31000 tell frontend 0.1: owner 0.3 is gone
            31000 # owner 0 was ended by signal 9
            31000 # owner 0 again in 441 ms
            31442 spawn owner 0
            31900 # owner 0 was ended by signal 9
            31900 # owner 0 has failed: was ended by signal 9
            60000 refused: frontend 0 has not failed
            60000 refused: there is no owner 7
            60001 spawn owner 0
            60001 refused: owner 0 has not failed
            60002 ids from 1
            60002 link owner 0.5 frontend 0.1
        "#]],
    );
}

#[test]
fn final_exit_codes_fail_the_slot_at_once_except_a_failed_write() {
    check_started(
        two_and_one(),
        "1000 failed-write owner 0
         2000 ready owner 0
         3000 exits owner 0 10
         4000 exits owner 1 11
         5000 exits frontend 0 12",
        &expect![[r#"
              1000 tell frontend 0.1: owner 0.1 is gone
              1000 # owner 0 exited with code 10: EIO
              1000 # owner 0 again in 104 ms
              1105 spawn owner 0
              2000 ids from 1
              2000 link owner 0.2 frontend 0.1
              3000 tell frontend 0.1: owner 0.2 is gone
              3000 # owner 0 exited with code 10
              3000 # owner 0 has failed: exited with code 10
              4000 tell frontend 0.1: owner 1.1 is gone
              4000 # owner 1 exited with code 11
              4000 # owner 1 has failed: exited with code 11
              5000 # frontend 0 exited with code 12
              5000 # frontend 0 has failed: exited with code 12
        "#]],
    );
}

#[test]
fn a_failed_slot_ends_the_server_where_that_is_the_policy() {
    check_started(
        Config { on_slot_failed: OnSlotFailed::Stop, ..two_and_one() },
        "1000 exits owner 1 11
         1100 exits frontend 0 0
         1200 exits owner 0 0",
        &expect![[r#"
              1000 tell frontend 0.1: owner 1.1 is gone
              1000 # owner 1 exited with code 11
              1000 # owner 1 has failed: exited with code 11
              1000 # stopping
              1000 close the listeners
              1000 tell frontend 0.1: barrier within 6000 ms
              1100 tell owner 0.1: frontend 0.1 is gone
              1100 tell owner 0.1: stop within 9900 ms
              1200 finish: owner 1 failed
        "#]],
    );
}
