//! The stop.

use super::*;

#[test]
fn a_stop_ends_frontends_before_owners() {
    check_started(
        two_and_one(),
        "500 stop
         600 exits owner 1 0
         700 exits frontend 0 0
         800 exits owner 0 0
         900 stop",
        &expect![[r#"
            500 # stopping
            500 close the listeners
            500 tell frontend 0.1: barrier within 6000 ms
            600 tell frontend 0.1: owner 1.1 is gone
            600 # owner 1 stopped badly: exited with code 0
            700 tell owner 0.1: frontend 0.1 is gone
            700 tell owner 0.1: stop within 9800 ms
            800 finish: owner 1 stopped badly
        "#]],
    );
}

#[test]
fn a_stop_kills_what_does_not_end_in_time() {
    check_started(
        two_and_one(),
        "1000 stop
         7100 dies frontend 0
        11100 dies owner 0
        11200 dies owner 1",
        &expect![[r#"
            1000 # stopping
            1000 close the listeners
            1000 tell frontend 0.1: barrier within 6000 ms
            7000 # frontend 0.1 killed: the server stops
            7000 kill frontend 0.1
            7100 tell owner 0.1: frontend 0.1 is gone
            7100 tell owner 1.1: frontend 0.1 is gone
            7100 tell owner 0.1: stop within 3900 ms
            7100 tell owner 1.1: stop within 3900 ms
            11000 # owner 0.1 killed: the server stops
            11000 kill owner 0.1
            11000 # owner 1.1 killed: the server stops
            11000 kill owner 1.1
            11200 finish: frontend 0 stopped badly
        "#]],
    );
}

#[test]
fn a_stop_ends_even_if_the_kernel_does_not_let_a_process_go() {
    check_started(
        one_and_one(),
        "1000 stop
        30000 wait",
        &expect![[r#"
            1000 # stopping
            1000 close the listeners
            1000 tell frontend 0.1: barrier within 6000 ms
            7000 # frontend 0.1 killed: the server stops
            7000 kill frontend 0.1
            11000 # owner 0.1 killed: the server stops
            11000 kill owner 0.1
            12000 finish: frontend 0 stopped badly
        "#]],
    );
}

#[test]
fn a_failed_last_write_is_no_orderly_stop() {
    check_started(
        one_and_one(),
        "1000 stop
         1001 exits frontend 0 0
         1002 failed-write owner 0",
        &expect![[r#"
              1000 # stopping
              1000 close the listeners
              1000 tell frontend 0.1: barrier within 6000 ms
              1001 tell owner 0.1: frontend 0.1 is gone
              1001 tell owner 0.1: stop within 9999 ms
              1002 # owner 0 stopped badly: exited with code 10: EIO
              1002 finish: owner 0 stopped badly
        "#]],
    );
}

#[test]
fn a_stop_during_the_start_and_during_a_restart_starts_nothing_more() {
    check(
        two_and_one(),
        "0 begin
         1 ready owner 0
         2 stop
         3 dies owner 1
         4 dies frontend 0
         5 exits owner 0 0",
        &expect![[r#"
                 0 spawn owner 0
                 0 spawn owner 1
                 0 spawn frontend 0
                 1 ids from 1
                 2 # stopping
                 2 close the listeners
                 2 # owner 1.1 killed: the server stops
                 2 kill owner 1.1
                 2 # frontend 0.1 killed: the server stops
                 2 kill frontend 0.1
                 4 tell owner 0.1: stop within 9998 ms
                 5 finish: stopped
        "#]],
    );
    check_started(
        two_and_one(),
        "500 dies owner 1
         510 stop
         520 exits frontend 0 0
         530 exits owner 0 0",
        &expect![[r#"
               500 tell frontend 0.1: owner 1.1 is gone
               500 # owner 1 was ended by signal 9
               500 # owner 1 again in 104 ms
               510 # stopping
               510 close the listeners
               510 tell frontend 0.1: barrier within 6000 ms
               520 tell owner 0.1: frontend 0.1 is gone
               520 tell owner 0.1: stop within 9990 ms
               530 finish: stopped
        "#]],
    );
}

/// S26: replies that a frontend had may be lost with it, so the end is not said to be in order.
#[test]
fn a_frontend_killed_during_the_stop_is_no_orderly_stop() {
    check_started(
        one_and_one(),
        "500 stop
         510 dies frontend 0
         520 exits owner 0 0",
        &expect![[r#"
            500 # stopping
            500 close the listeners
            500 tell frontend 0.1: barrier within 6000 ms
            510 tell owner 0.1: frontend 0.1 is gone
            510 # frontend 0 stopped badly: was ended by signal 9
            510 tell owner 0.1: stop within 9990 ms
            520 finish: frontend 0 stopped badly
        "#]],
    );
}
