//! The start, and what ends it.

use super::*;

#[test]
fn frontends_go_when_every_slot_is_ready_and_linked() {
    check(
        two_and_one(),
        STARTED,
        &expect![[r#"
             0 spawn owner 0
             0 spawn owner 1
             0 spawn frontend 0
             1 ids from 40
             2 link owner 0.1 frontend 0.1
             3 ids from 7
             3 link owner 1.1 frontend 0.1
             3 tell frontend 0.1: go
             3 serving
    "#]],
    );
}

#[test]
fn a_slot_that_fails_at_the_first_start_ends_the_start() {
    check(
        two_and_one(),
        "0 begin
         1 ready owner 0
         2 exits owner 1 11
         3 dies owner 0
         4 dies frontend 0",
        &expect![[r#"
                 0 spawn owner 0
                 0 spawn owner 1
                 0 spawn frontend 0
                 1 ids from 1
                 2 # owner 1 exited with code 11
                 2 close the listeners
                 2 # owner 0.1 killed: the start of the server has failed
                 2 kill owner 0.1
                 2 # frontend 0.1 killed: the start of the server has failed
                 2 kill frontend 0.1
                 4 finish: the start of owner 1 failed
        "#]],
    );
}

#[test]
fn a_process_that_cannot_be_spawned_ends_the_start() {
    check(
        two_and_one(),
        "0 unspawnable owner 0
         0 begin
         1 dies owner 1
         1 dies frontend 0",
        &expect![[r#"
            0 spawn owner 0
            0 spawn owner 1
            0 spawn frontend 0
            0 # owner 0 could not be started: no memory
            0 close the listeners
            0 # owner 1.1 killed: the start of the server has failed
            0 kill owner 1.1
            0 # frontend 0.1 killed: the start of the server has failed
            0 kill frontend 0.1
            1 finish: the start of owner 0 failed
        "#]],
    );
}
