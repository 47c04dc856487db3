//! Tubes: what creates them, when they vanish, in which order they are listed, and what a pause does.

use std::time::{Duration, Instant};

use testing::client::Client;

use super::{LATE_MAX, Mode, assert_took, in_both_modes, wait_for_waiting};

/// Checks `list-tubes`.
#[track_caller]
fn check_tubes(client: &mut Client, names: &[&str]) {
    let expected: String = names.iter().map(|name| format!("- {name}\n")).collect();
    assert_eq!(client.text("list-tubes"), format!("---\n{expected}"));
}

in_both_modes!(a_connection_uses_and_watches_default);
fn a_connection_uses_and_watches_default(mode: Mode) {
    mode.server().check(
        "list-tube-used\r\nlist-tubes-watched\r\nlist-tubes\r\n",
        "USING default\r\nOK 14\r\n---\n- default\n\r\nOK 14\r\n---\n- default\n\r\n",
    );
}

in_both_modes!(lists_show_default_the_watched_and_the_used_tube);
fn lists_show_default_the_watched_and_the_used_tube(mode: Mode) {
    mode.server().check(
        "watch w\r\nuse u\r\nlist-tubes\r\nlist-tube-used\r\nlist-tubes-watched\r\n",
        "WATCHING 2\r\nUSING u\r\nOK 22\r\n---\n- default\n- w\n- u\n\r\nUSING u\r\nOK 18\r\n---\n- default\n- w\n\r\n",
    );
}

in_both_modes!(tubes_are_listed_in_the_order_of_creation_and_watched_ones_in_that_of_watching);
fn tubes_are_listed_in_the_order_of_creation_and_watched_ones_in_that_of_watching(mode: Mode) {
    let server = mode.server();
    let (mut first, mut second) = (server.connect(), server.connect());
    first.check("use m\r\nwatch z\r\n", "USING m\r\nWATCHING 2\r\n");
    second.check(
        "watch a\r\nwatch z\r\nwatch m\r\nignore default\r\nwatch default\r\nwatch a\r\n",
        "WATCHING 2\r\nWATCHING 3\r\nWATCHING 4\r\nWATCHING 3\r\nWATCHING 4\r\nWATCHING 4\r\n",
    );
    check_tubes(&mut first, &["default", "m", "z", "a"]);
    assert_eq!(second.text("list-tubes-watched"), "---\n- a\n- z\n- m\n- default\n");
    // Gone and back is a creation.
    first.check("use default\r\n", "USING default\r\n");
    second.check("ignore m\r\n", "WATCHING 3\r\n");
    check_tubes(&mut first, &["default", "z", "a"]);
    second.check("use m\r\n", "USING m\r\n");
    check_tubes(&mut first, &["default", "z", "a", "m"]);
}

in_both_modes!(watch_is_idempotent_and_the_last_tube_cannot_be_ignored);
fn watch_is_idempotent_and_the_last_tube_cannot_be_ignored(mode: Mode) {
    mode.server().check(
        "watch default\r\nwatch a\r\nwatch a\r\nignore nowhere\r\nignore default\r\nignore default\r\nignore a\r\nignore a\r\nignore nowhere\r\nlist-tubes-watched\r\n",
        "WATCHING 1\r\nWATCHING 2\r\nWATCHING 2\r\nWATCHING 2\r\nWATCHING 1\r\nWATCHING 1\r\nNOT_IGNORED\r\nNOT_IGNORED\r\nWATCHING 1\r\nOK 8\r\n---\n- a\n\r\n",
    );
}

in_both_modes!(only_use_and_watch_create_tubes);
fn only_use_and_watch_create_tubes(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("stats-tube n\r\npause-tube n 1\r\nignore n\r\n", "NOT_FOUND\r\nNOT_FOUND\r\nWATCHING 1\r\n");
    check_tubes(&mut client, &["default"]);
    client.check("use a\r\n", "USING a\r\n");
    client.check("watch b\r\n", "WATCHING 2\r\n");
    check_tubes(&mut client, &["default", "a", "b"]);
    client.check_stats("stats", &[("current-tubes", "3")]);
}

in_both_modes!(a_tube_lives_while_it_is_used_watched_or_holds_a_job_in_any_state);
fn a_tube_lives_while_it_is_used_watched_or_holds_a_job_in_any_state(mode: Mode) {
    let server = mode.server();
    let (mut client, mut worker) = (server.connect(), server.connect());
    for (tube, command) in [("used", "use used"), ("watched", "watch watched")] {
        let mut other = server.connect();
        other.ask(command);
        check_tubes(&mut client, &["default", tube]);
        drop(other);
        testing::process::wait_until("the connection is gone", || client.stat("stats", "current-connections") == "2");
        // Of several processes the one that has the tube hears of it a little later.
        testing::process::wait_until("its tube is gone", || client.stat("stats", "current-tubes") == "1");
        check_tubes(&mut client, &["default"]);
    }
    client.check("use t\r\nput 0 0 60 0\r\n\r\nuse default\r\n", "USING t\r\nINSERTED 1\r\nUSING default\r\n");
    check_tubes(&mut client, &["default", "t"]);
    worker.check("reserve-job 1\r\n", "RESERVED 1 0\r\n\r\n");
    check_tubes(&mut client, &["default", "t"]);
    worker.check("release 1 0 1000\r\n", "RELEASED\r\n");
    check_tubes(&mut client, &["default", "t"]);
    worker.check("reserve-job 1\r\nbury 1 0\r\n", "RESERVED 1 0\r\n\r\nBURIED\r\n");
    check_tubes(&mut client, &["default", "t"]);
    worker.check("delete 1\r\n", "DELETED\r\n");
    check_tubes(&mut client, &["default"]);
    client.check("stats-tube t\r\npause-tube t 1\r\n", "NOT_FOUND\r\nNOT_FOUND\r\n");
}

in_both_modes!(default_always_exists);
fn default_always_exists(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("use a\r\nwatch a\r\nignore default\r\n", "USING a\r\nWATCHING 2\r\nWATCHING 1\r\n");
    check_tubes(&mut client, &["default", "a"]);
    client.check_stats("stats-tube default", &[("current-using", "0"), ("current-watching", "0")]);
}

in_both_modes!(a_tube_vanishes_with_its_counters_and_pause);
fn a_tube_vanishes_with_its_counters_and_pause(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check(
        "use t\r\nput 0 0 60 0\r\n\r\npause-tube t 1000\r\ndelete 1\r\n",
        "USING t\r\nINSERTED 1\r\nPAUSED\r\nDELETED\r\n",
    );
    client.check_stats(
        "stats-tube t",
        &[("total-jobs", "1"), ("cmd-delete", "1"), ("cmd-pause-tube", "1"), ("pause", "1000")],
    );
    client.check(
        "use default\r\nstats-tube t\r\nuse t\r\nwatch t\r\n",
        "USING default\r\nNOT_FOUND\r\nUSING t\r\nWATCHING 2\r\n",
    );
    client.check_stats(
        "stats-tube t",
        &[("total-jobs", "0"), ("cmd-delete", "0"), ("cmd-pause-tube", "0"), ("pause", "0"), ("pause-time-left", "0")],
    );
    client.check("put 0 0 60 0\r\n\r\nreserve-with-timeout 0\r\n", "INSERTED 2\r\nRESERVED 2 0\r\n\r\n");
}

in_both_modes!(use_of_the_same_tube_again_keeps_it);
fn use_of_the_same_tube_again_keeps_it(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("use t\r\npause-tube t 1000\r\nuse t\r\n", "USING t\r\nPAUSED\r\nUSING t\r\n");
    client.check_stats("stats-tube t", &[("current-using", "1"), ("pause", "1000")]);
}

in_both_modes!(a_pause_delays_reservations_by_its_time);
fn a_pause_delays_reservations_by_its_time(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
    let start = Instant::now();
    client.check(
        "pause-tube default 1\r\nreserve-with-timeout 0\r\nreserve\r\n",
        "PAUSED\r\nTIMED_OUT\r\nRESERVED 1 1\r\na\r\n",
    );
    assert_took(start, 1);
}

in_both_modes!(a_pause_holds_back_jobs_put_later_and_waiters_that_came_before);
fn a_pause_holds_back_jobs_put_later_and_waiters_that_came_before(mode: Mode) {
    let server = mode.server();
    let (mut worker, mut client) = (server.connect(), server.connect());
    worker.send("reserve\r\n");
    wait_for_waiting(&mut client, 1);
    let start = Instant::now();
    client.check("pause-tube default 1\r\nput 0 0 60 1\r\na\r\n", "PAUSED\r\nINSERTED 1\r\n");
    worker.expect("RESERVED 1 1\r\na\r\n");
    assert_took(start, 1);
}

in_both_modes!(a_pause_of_0_lifts_it_at_once_and_wakes_a_waiter);
fn a_pause_of_0_lifts_it_at_once_and_wakes_a_waiter(mode: Mode) {
    let server = mode.server();
    let (mut worker, mut client) = (server.connect(), server.connect());
    client.check("put 0 0 60 1\r\na\r\npause-tube default 86400\r\n", "INSERTED 1\r\nPAUSED\r\n");
    worker.send("reserve\r\n");
    wait_for_waiting(&mut client, 1);
    worker.expect_silence(Duration::from_millis(50));
    let start = Instant::now();
    client.check("pause-tube default 0\r\n", "PAUSED\r\n");
    worker.expect("RESERVED 1 1\r\na\r\n");
    assert!(start.elapsed() < LATE_MAX, "{:?}", start.elapsed());
    client.check_stats("stats-tube default", &[("pause", "0"), ("pause-time-left", "0"), ("cmd-pause-tube", "2")]);
}

in_both_modes!(a_new_pause_replaces_the_old_one);
fn a_new_pause_replaces_the_old_one(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("put 0 0 60 1\r\na\r\npause-tube default 1000\r\n", "INSERTED 1\r\nPAUSED\r\n");
    let start = Instant::now();
    client.check("pause-tube default 1\r\nreserve\r\n", "PAUSED\r\nRESERVED 1 1\r\na\r\n");
    assert_took(start, 1);
    // A longer one replaces a shorter one too.
    client.check("release 1 0 0\r\npause-tube default 1\r\n", "RELEASED\r\nPAUSED\r\n");
    let start = Instant::now();
    client.check("pause-tube default 2\r\nreserve\r\n", "PAUSED\r\nRESERVED 1 1\r\na\r\n");
    assert_took(start, 2);
}

in_both_modes!(a_pause_concerns_only_reserve);
fn a_pause_concerns_only_reserve(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check(
        "use t\r\nput 0 0 60 1\r\na\r\nput 0 100 60 1\r\nb\r\npause-tube t 1000\r\n",
        "USING t\r\nINSERTED 1\r\nINSERTED 2\r\nPAUSED\r\n",
    );
    client.check(
        "peek-ready\r\npeek-delayed\r\npeek 1\r\nkick 1\r\n",
        "FOUND 1 1\r\na\r\nFOUND 2 1\r\nb\r\nFOUND 1 1\r\na\r\nKICKED 1\r\n",
    );
    client.check(
        "reserve-job 1\r\nbury 1 0\r\nkick-job 1\r\ndelete 2\r\n",
        "RESERVED 1 1\r\na\r\nBURIED\r\nKICKED\r\nDELETED\r\n",
    );
    client.check("reserve-job 1\r\ntouch 1\r\nrelease 1 0 0\r\n", "RESERVED 1 1\r\na\r\nTOUCHED\r\nRELEASED\r\n");
    client.check("watch t\r\nreserve-with-timeout 0\r\n", "WATCHING 2\r\nTIMED_OUT\r\n");
    // Other tubes go on.
    client.check(
        "use default\r\nput 9 0 60 1\r\nc\r\nreserve\r\n",
        "USING default\r\nINSERTED 3\r\nRESERVED 3 1\r\nc\r\n",
    );
}

in_both_modes!(the_pause_is_shown_with_the_time_left);
fn the_pause_is_shown_with_the_time_left(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("pause-tube default 100\r\n", "PAUSED\r\n");
    client.check_stats("stats-tube default", &[("pause", "100"), ("cmd-pause-tube", "1")]);
    let left: u64 = client.stat("stats-tube default", "pause-time-left").parse().expect("a number");
    assert!((90..=100).contains(&left), "{left}");
}

in_both_modes!(a_waiter_of_a_paused_and_an_open_tube_is_served_from_the_open_one);
fn a_waiter_of_a_paused_and_an_open_tube_is_served_from_the_open_one(mode: Mode) {
    let server = mode.server();
    let (mut worker, mut client) = (server.connect(), server.connect());
    worker.check("watch closed\r\nwatch open\r\n", "WATCHING 2\r\nWATCHING 3\r\n");
    client.check("pause-tube closed 1000\r\n", "PAUSED\r\n");
    worker.send("reserve\r\n");
    wait_for_waiting(&mut client, 1);
    client.check(
        "use closed\r\nput 0 0 60 0\r\n\r\nuse open\r\nput 9 0 60 0\r\n\r\n",
        "USING closed\r\nINSERTED 1\r\nUSING open\r\nINSERTED 2\r\n",
    );
    worker.expect("RESERVED 2 0\r\n\r\n");
}
