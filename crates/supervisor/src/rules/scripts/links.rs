//! Links that break while both their processes live.

use super::*;

/// S22: one report or two, a report of an older link, a break that comes back at once, one with the end of a process,
/// and one with the end of a process in a stop, which is nothing to tell of.
#[test]
fn a_broken_link_is_replaced_once_and_ever_later() {
    check_started(
        one_and_one(),
        "500 link-lost owner 0 0
         501 link-lost frontend 0 0
         700 link-lost frontend 0 0 older
         701 link-lost frontend 0 0
         702 link-lost owner 0 0
         2000 link-lost owner 0 0
         2001 dies frontend 0
         2400 ready frontend 0
         2500 link-lost frontend 0 0
         2600 stop
         2999 link-lost owner 0 0
         3000 exits frontend 0 0
         3100 exits owner 0 0",
        &expect![[r#"
            500 # the link owner 0.1 frontend 0.1 is broken, again in 104 ms
            605 link owner 0.1 frontend 0.1
            701 # the link owner 0.1 frontend 0.1 is broken, again in 210 ms
            912 link owner 0.1 frontend 0.1
            2000 # the link owner 0.1 frontend 0.1 is broken, again in 441 ms
            2001 tell owner 0.1: frontend 0.1 is gone
            2001 # frontend 0 was ended by signal 9
            2001 # frontend 0 again in 96 ms
            2098 spawn frontend 0
            2400 link owner 0.1 frontend 0.2
            2400 tell frontend 0.2: go
            2500 # the link owner 0.1 frontend 0.2 is broken, again in 88 ms
            2589 link owner 0.1 frontend 0.2
            2600 # stopping
            2600 close the listeners
            2600 tell frontend 0.2: barrier within 6000 ms
            3000 tell owner 0.1: frontend 0.2 is gone
            3000 tell owner 0.1: stop within 9600 ms
            3100 finish: stopped
        "#]],
    );
}
