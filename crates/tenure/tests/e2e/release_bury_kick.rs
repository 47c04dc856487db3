//! `release`, `bury`, `kick`, `kick-job`, `delete`, `touch` and the peeks: how jobs change state, and what is seen.

use std::time::Instant;

use super::{Mode, assert_took, in_both_modes};

in_both_modes!(release_changes_priority_and_delay);
fn release_changes_priority_and_delay(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("put 5 0 60 1\r\na\r\nput 3 0 60 1\r\nb\r\n", "INSERTED 1\r\nINSERTED 2\r\n");
    client.check("reserve\r\nrelease 2 9 0\r\n", "RESERVED 2 1\r\nb\r\nRELEASED\r\n");
    client.check_stats("stats-job 2", &[("pri", "9"), ("state", "ready"), ("releases", "1"), ("delay", "0")]);
    client.check("reserve\r\n", "RESERVED 1 1\r\na\r\n");
    let start = Instant::now();
    client.check("release 1 4294967295 1\r\n", "RELEASED\r\n");
    client
        .check_stats("stats-job 1", &[("pri", "4294967295"), ("state", "delayed"), ("delay", "1"), ("releases", "1")]);
    client.check("delete 2\r\nreserve\r\n", "DELETED\r\nRESERVED 1 1\r\na\r\n");
    assert_took(start, 1);
}

in_both_modes!(release_and_touch_of_what_is_not_held_find_nothing);
fn release_and_touch_of_what_is_not_held_find_nothing(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
    // Ready, unknown, then released already.
    client.check(
        "release 1 0 0\r\ntouch 1\r\nrelease 2 0 0\r\ntouch 2\r\n",
        "NOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\n",
    );
    client.check("reserve\r\nrelease 1 0 0\r\nrelease 1 0 0\r\n", "RESERVED 1 1\r\na\r\nRELEASED\r\nNOT_FOUND\r\n");
}

in_both_modes!(bury_needs_a_reservation);
fn bury_needs_a_reservation(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("put 0 0 60 1\r\na\r\nbury 1 0\r\nbury 2 0\r\n", "INSERTED 1\r\nNOT_FOUND\r\nNOT_FOUND\r\n");
    client.check("peek-buried\r\n", "NOT_FOUND\r\n");
    client
        .check("reserve-with-timeout 0\r\nbury 1 77\r\nbury 1 77\r\n", "RESERVED 1 1\r\na\r\nBURIED\r\nNOT_FOUND\r\n");
    client.check("peek-buried\r\n", "FOUND 1 1\r\na\r\n");
    client.check_stats("stats-job 1", &[("state", "buried"), ("pri", "77"), ("buries", "1"), ("time-left", "0")]);
    client.check("kick 1\r\nkick 1\r\n", "KICKED 1\r\nKICKED 0\r\n");
    client.check_stats("stats-job 1", &[("state", "ready"), ("pri", "77"), ("kicks", "1")]);
    client.check("peek-buried\r\npeek-ready\r\n", "NOT_FOUND\r\nFOUND 1 1\r\na\r\n");
}

in_both_modes!(buried_jobs_are_kicked_in_the_order_of_burying);
fn buried_jobs_are_kicked_in_the_order_of_burying(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    for id in 1..=5 {
        client.check(format!("put {} 0 60 0\r\n\r\n", 10 - id), format!("INSERTED {id}\r\n"));
    }
    for id in [5, 4, 3, 2, 1] {
        client.check("reserve\r\n", format!("RESERVED {id} 0\r\n\r\n"));
    }
    for id in [3, 1, 5, 2, 4] {
        client.check(format!("bury {id} {id}\r\n"), "BURIED\r\n");
    }
    for (count, id) in [3, 1].into_iter().enumerate() {
        client.check("peek-buried\r\nkick 1\r\n", format!("FOUND {id} 0\r\n\r\nKICKED 1\r\n"));
        client.check_stats("stats-tube default", &[("current-jobs-buried", &(4 - count).to_string())]);
    }
    client.check("kick 2\r\n", "KICKED 2\r\n");
    client.check("peek-buried\r\n", "FOUND 4 0\r\n\r\n");
    client.check("kick 4294967295\r\nkick 4294967295\r\n", "KICKED 1\r\nKICKED 0\r\n");
    // Now ready: by priority again.
    for id in 1..=5 {
        client.check("reserve\r\n", format!("RESERVED {id} 0\r\n\r\n"));
    }
}

in_both_modes!(kick_takes_only_buried_jobs_if_there_are_any_else_delayed_ones_soonest_first);
fn kick_takes_only_buried_jobs_if_there_are_any_else_delayed_ones_soonest_first(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check(
        "put 0 300 60 0\r\n\r\nput 0 100 60 0\r\n\r\nput 0 200 60 0\r\n\r\nput 0 0 60 0\r\n\r\n",
        "INSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\nINSERTED 4\r\n",
    );
    client.check("reserve\r\nbury 4 0\r\n", "RESERVED 4 0\r\n\r\nBURIED\r\n");
    client.check("kick 0\r\n", "KICKED 0\r\n");
    client.check("kick 100\r\n", "KICKED 1\r\n");
    client.check_stats("stats-tube default", &[("current-jobs-delayed", "3"), ("current-jobs-ready", "1")]);
    client.check("kick 1\r\n", "KICKED 1\r\n");
    client.check("peek-delayed\r\n", "FOUND 3 0\r\n\r\n");
    client.check_stats("stats-job 2", &[("state", "ready"), ("kicks", "1"), ("delay", "100"), ("time-left", "0")]);
    client.check("kick 100\r\nkick 100\r\n", "KICKED 2\r\nKICKED 0\r\n");
}

in_both_modes!(kick_concerns_the_used_tube_only);
fn kick_concerns_the_used_tube_only(mode: Mode) {
    let server = mode.server();
    server.check(
        "use a\r\nput 0 100 60 0\r\n\r\nuse b\r\nkick 10\r\nuse a\r\nkick 10\r\n",
        "USING a\r\nINSERTED 1\r\nUSING b\r\nKICKED 0\r\nUSING a\r\nKICKED 1\r\n",
    );
}

in_both_modes!(kick_job_takes_a_buried_or_delayed_job_of_any_tube_once);
fn kick_job_takes_a_buried_or_delayed_job_of_any_tube_once(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check(
        "use far\r\nwatch far\r\nput 0 0 60 0\r\n\r\nput 0 100 60 0\r\n\r\n",
        "USING far\r\nWATCHING 2\r\nINSERTED 1\r\nINSERTED 2\r\n",
    );
    client.check(
        "reserve\r\nkick-job 1\r\nbury 1 0\r\nuse default\r\n",
        "RESERVED 1 0\r\n\r\nNOT_FOUND\r\nBURIED\r\nUSING default\r\n",
    );
    client.check("kick-job 1\r\nkick-job 1\r\n", "KICKED\r\nNOT_FOUND\r\n");
    client.check("kick-job 2\r\nkick-job 2\r\n", "KICKED\r\nNOT_FOUND\r\n");
    client.check("kick-job 3\r\nkick-job 0\r\n", "NOT_FOUND\r\nNOT_FOUND\r\n");
    client.check_stats("stats-job 1", &[("state", "ready"), ("kicks", "1")]);
    client.check_stats("stats-job 2", &[("state", "ready"), ("kicks", "1")]);
}

in_both_modes!(delete_takes_own_reserved_and_any_ready_delayed_or_buried_job);
fn delete_takes_own_reserved_and_any_ready_delayed_or_buried_job(mode: Mode) {
    let server = mode.server();
    let (mut client, mut other) = (server.connect(), server.connect());
    client.check(
        "use far\r\nput 0 0 60 0\r\n\r\nput 0 100 60 0\r\n\r\nput 9 0 60 0\r\n\r\nput 0 0 60 0\r\n\r\n",
        "USING far\r\nINSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\nINSERTED 4\r\n",
    );
    client.check("watch far\r\nreserve-job 3\r\nbury 3 0\r\n", "WATCHING 2\r\nRESERVED 3 0\r\n\r\nBURIED\r\n");
    client.check("reserve-job 4\r\n", "RESERVED 4 0\r\n\r\n");
    other.check("delete 1\r\ndelete 2\r\ndelete 3\r\ndelete 4\r\n", "DELETED\r\nDELETED\r\nDELETED\r\nNOT_FOUND\r\n");
    client.check("delete 4\r\ndelete 4\r\n", "DELETED\r\nNOT_FOUND\r\n");
    other.check(
        "delete 1\r\npeek 1\r\nstats-job 1\r\nkick-job 3\r\nreserve-job 2\r\n",
        "NOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\n",
    );
    other.check_stats(
        "stats",
        &[
            ("current-jobs-ready", "0"),
            ("current-jobs-delayed", "0"),
            ("current-jobs-buried", "0"),
            ("current-jobs-reserved", "0"),
        ],
    );
}

in_both_modes!(a_deleted_delayed_job_never_becomes_ready);
fn a_deleted_delayed_job_never_becomes_ready(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("put 0 1 60 0\r\n\r\nput 0 0 1 0\r\n\r\n", "INSERTED 1\r\nINSERTED 2\r\n");
    client.check("delete 1\r\nreserve\r\ndelete 2\r\n", "DELETED\r\nRESERVED 2 0\r\n\r\nDELETED\r\n");
    client.check("reserve-with-timeout 2\r\n", "TIMED_OUT\r\n");
    client.check_stats("stats", &[("job-timeouts", "0"), ("current-jobs-ready", "0")]);
}

in_both_modes!(peek_finds_a_job_in_any_state_and_tube);
fn peek_finds_a_job_in_any_state_and_tube(mode: Mode) {
    let server = mode.server();
    let (mut client, mut other) = (server.connect(), server.connect());
    client.check(
        "use far\r\nwatch far\r\nput 5 0 60 5\r\nready\r\nput 0 100 60 7\r\ndelayed\r\n",
        "USING far\r\nWATCHING 2\r\nINSERTED 1\r\nINSERTED 2\r\n",
    );
    client.check(
        "put 1 0 60 6\r\nburied\r\nreserve\r\nbury 3 0\r\n",
        "INSERTED 3\r\nRESERVED 3 6\r\nburied\r\nBURIED\r\n",
    );
    client.check("put 1 0 60 8\r\nreserved\r\nreserve\r\n", "INSERTED 4\r\nRESERVED 4 8\r\nreserved\r\n");
    other.check("peek 1\r\npeek 2\r\npeek 3\r\npeek 4\r\npeek 5\r\npeek 0\r\npeek 18446744073709551615\r\n",
        "FOUND 1 5\r\nready\r\nFOUND 2 7\r\ndelayed\r\nFOUND 3 6\r\nburied\r\nFOUND 4 8\r\nreserved\r\nNOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\n");
    // The others look at the used tube only.
    other.check("peek-ready\r\npeek-delayed\r\npeek-buried\r\n", "NOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\n");
    other.check(
        "use far\r\npeek-ready\r\npeek-delayed\r\npeek-buried\r\n",
        "USING far\r\nFOUND 1 5\r\nready\r\nFOUND 2 7\r\ndelayed\r\nFOUND 3 6\r\nburied\r\n",
    );
}

in_both_modes!(peek_ready_shows_the_first_by_priority_and_id);
fn peek_ready_shows_the_first_by_priority_and_id(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check(
        "put 9 0 60 0\r\n\r\nput 2 0 60 0\r\n\r\nput 2 0 60 0\r\n\r\n",
        "INSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\n",
    );
    for id in [2, 3, 1] {
        client.check(
            format!("peek-ready\r\npeek-ready\r\ndelete {id}\r\n"),
            format!("FOUND {id} 0\r\n\r\nFOUND {id} 0\r\n\r\nDELETED\r\n"),
        );
    }
    client.check("peek-ready\r\n", "NOT_FOUND\r\n");
}

in_both_modes!(peek_delayed_shows_the_soonest);
fn peek_delayed_shows_the_soonest(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check(
        "put 0 500 60 1\r\nA\r\nput 0 100 60 1\r\nB\r\nput 0 300 60 1\r\nC\r\n",
        "INSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\n",
    );
    client.check("peek-delayed\r\ndelete 2\r\n", "FOUND 2 1\r\nB\r\nDELETED\r\n");
    client.check("peek-delayed\r\ndelete 3\r\n", "FOUND 3 1\r\nC\r\nDELETED\r\n");
    client.check("peek-delayed\r\ndelete 1\r\n", "FOUND 1 1\r\nA\r\nDELETED\r\n");
    client.check("peek-delayed\r\n", "NOT_FOUND\r\n");
}

in_both_modes!(delayed_jobs_become_ready_in_the_order_of_their_deadlines);
fn delayed_jobs_become_ready_in_the_order_of_their_deadlines(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check(
        "put 0 2 60 0\r\n\r\nput 9 1 60 0\r\n\r\nput 5 1 60 0\r\n\r\n",
        "INSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\n",
    );
    let start = Instant::now();
    // The two of one second may become ready in one turn; then priority decides. Both come before the third.
    let first = client.ask("reserve");
    client.expect("\r\n");
    let second = client.ask("reserve");
    client.expect("\r\n");
    let mut both = [first.as_str(), second.as_str()];
    both.sort_unstable();
    assert_eq!(both, ["RESERVED 2 0", "RESERVED 3 0"]);
    client.check("reserve\r\n", "RESERVED 1 0\r\n\r\n");
    assert!(start.elapsed().as_secs_f64() > 1.9, "{:?}", start.elapsed());
}

in_both_modes!(a_job_released_with_delay_can_be_kicked_deleted_and_peeked);
fn a_job_released_with_delay_can_be_kicked_deleted_and_peeked(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check(
        "put 0 0 60 1\r\na\r\nreserve\r\nrelease 1 4 1000\r\n",
        "INSERTED 1\r\nRESERVED 1 1\r\na\r\nRELEASED\r\n",
    );
    client.check(
        "peek-delayed\r\nkick 1\r\nreserve\r\nrelease 1 4 1000\r\ndelete 1\r\n",
        "FOUND 1 1\r\na\r\nKICKED 1\r\nRESERVED 1 1\r\na\r\nRELEASED\r\nDELETED\r\n",
    );
}
