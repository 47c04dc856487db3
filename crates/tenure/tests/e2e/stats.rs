//! What the counters and gauges count.

use super::{Mode, in_both_modes, wait_for_waiting};

in_both_modes!(every_command_is_counted_once_its_arguments_parse);
fn every_command_is_counted_once_its_arguments_parse(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    let commands = [
        ("cmd-put", "put 0 0 1 99999999\r\n", ""),
        ("cmd-peek", "peek 999\r\n", "NOT_FOUND\r\n"),
        ("cmd-peek-ready", "peek-ready\r\n", "NOT_FOUND\r\n"),
        ("cmd-peek-delayed", "peek-delayed\r\n", "NOT_FOUND\r\n"),
        ("cmd-peek-buried", "peek-buried\r\n", "NOT_FOUND\r\n"),
        ("cmd-reserve-with-timeout", "reserve-with-timeout 0\r\n", "TIMED_OUT\r\n"),
        ("cmd-delete", "delete 999\r\n", "NOT_FOUND\r\n"),
        ("cmd-release", "release 999 0 0\r\n", "NOT_FOUND\r\n"),
        ("cmd-use", "use default\r\n", "USING default\r\n"),
        ("cmd-watch", "watch default\r\n", "WATCHING 1\r\n"),
        ("cmd-ignore", "ignore default\r\n", "NOT_IGNORED\r\n"),
        ("cmd-bury", "bury 999 0\r\n", "NOT_FOUND\r\n"),
        ("cmd-kick", "kick 1\r\n", "KICKED 0\r\n"),
        ("cmd-touch", "touch 999\r\n", "NOT_FOUND\r\n"),
        ("cmd-stats-job", "stats-job 999\r\n", "NOT_FOUND\r\n"),
        ("cmd-stats-tube", "stats-tube nowhere\r\n", "NOT_FOUND\r\n"),
        ("cmd-list-tubes", "list-tubes\r\n", "OK 14\r\n---\n- default\n\r\n"),
        ("cmd-list-tube-used", "list-tube-used\r\n", "USING default\r\n"),
        ("cmd-list-tubes-watched", "list-tubes-watched\r\n", "OK 14\r\n---\n- default\n\r\n"),
        ("cmd-pause-tube", "pause-tube nowhere 1\r\n", "NOT_FOUND\r\n"),
    ];
    let fresh = client.text("stats");
    for (key, input, output) in commands.iter().skip(1) {
        client.check(input, output);
        assert_eq!(client.stat("stats", key), "1", "{key}");
    }
    // Nothing else moved but the stats themselves: each key counts its own command only.
    let after = client.text("stats");
    for (key, ..) in commands.iter().skip(1) {
        assert!(fresh.contains(&format!("\n{key}: 0\n")) && after.contains(&format!("\n{key}: 1\n")), "{key}");
    }
    assert_eq!(client.stat("stats", "cmd-stats"), (commands.len() - 1 + 3).to_string());
}

in_both_modes!(reserve_is_counted_apart_from_reserve_with_timeout);
fn reserve_is_counted_apart_from_reserve_with_timeout(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check(
        "put 0 0 60 0\r\n\r\nreserve\r\nrelease 1 0 0\r\nreserve-with-timeout 5\r\n",
        "INSERTED 1\r\nRESERVED 1 0\r\n\r\nRELEASED\r\nRESERVED 1 0\r\n\r\n",
    );
    client.check_stats(
        "stats",
        &[("cmd-reserve", "1"), ("cmd-reserve-with-timeout", "1"), ("cmd-release", "1"), ("cmd-put", "1")],
    );
}

in_both_modes!(a_refused_put_is_counted_as_a_command_but_not_as_a_job);
fn a_refused_put_is_counted_as_a_command_but_not_as_a_job(mode: Mode) {
    let server = mode.tubes().with(["-z", "3"]).start();
    let mut client = server.connect();
    client.check("put 0 0 1 4\r\nabcd\r\n", "JOB_TOO_BIG\r\n");
    client.check_stats("stats", &[("cmd-put", "1"), ("total-jobs", "0")]);
    client.check("put 0 0 1 3\r\nabcXY", "EXPECTED_CRLF\r\n");
    client.check_stats("stats", &[("cmd-put", "2"), ("total-jobs", "0")]);
    client.check("put 0 0 1 3\r\nabc\r\n", "INSERTED 1\r\n");
    client.check_stats("stats", &[("cmd-put", "3"), ("total-jobs", "1")]);
    client.check_stats("stats-tube default", &[("total-jobs", "1"), ("current-jobs-ready", "1")]);
}

in_both_modes!(what_does_not_parse_is_not_counted);
fn what_does_not_parse_is_not_counted(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check(
        "put x 0 0 0\r\npeek x\r\ndelete\r\nrelease 1 0\r\nuse -\r\nwatch \r\nignore \r\nbury 1\r\nkick x\r\ntouch x\r\nstats-job x\r\nstats-tube -\r\npause-tube default\r\nreserve-with-timeout x\r\nlist-tubes \r\nPUT\r\n",
        "BAD_FORMAT\r\nBAD_FORMAT\r\nUNKNOWN_COMMAND\r\nBAD_FORMAT\r\nBAD_FORMAT\r\nBAD_FORMAT\r\nBAD_FORMAT\r\nBAD_FORMAT\r\nBAD_FORMAT\r\nBAD_FORMAT\r\nBAD_FORMAT\r\nBAD_FORMAT\r\nBAD_FORMAT\r\nBAD_FORMAT\r\nBAD_FORMAT\r\nUNKNOWN_COMMAND\r\n",
    );
    let text = client.text("stats");
    let counted: Vec<&str> = text.lines().filter(|line| line.starts_with("cmd-") && !line.ends_with(": 0")).collect();
    assert_eq!(counted, ["cmd-stats: 1"]);
}

in_both_modes!(gauges_follow_the_states_of_jobs);
fn gauges_follow_the_states_of_jobs(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check(
        "put 1023 0 60 0\r\n\r\nput 1024 0 60 0\r\n\r\nput 0 100 60 0\r\n\r\nput 0 0 60 0\r\n\r\n",
        "INSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\nINSERTED 4\r\n",
    );
    let check = |client: &mut testing::client::Client,
                 urgent: &str,
                 ready: &str,
                 reserved: &str,
                 delayed: &str,
                 buried: &str| {
        let expected = [
            ("current-jobs-urgent", urgent),
            ("current-jobs-ready", ready),
            ("current-jobs-reserved", reserved),
            ("current-jobs-delayed", delayed),
            ("current-jobs-buried", buried),
            ("total-jobs", "4"),
        ];
        client.check_stats("stats", &expected);
        client.check_stats("stats-tube default", &expected);
    };
    check(&mut client, "2", "3", "0", "1", "0");
    client.check("reserve\r\n", "RESERVED 4 0\r\n\r\n");
    check(&mut client, "1", "2", "1", "1", "0");
    client.check("bury 4 0\r\n", "BURIED\r\n");
    check(&mut client, "1", "2", "0", "1", "1");
    client.check("kick 1\r\n", "KICKED 1\r\n");
    check(&mut client, "2", "3", "0", "1", "0");
    client.check("kick 1\r\n", "KICKED 1\r\n");
    check(&mut client, "3", "4", "0", "0", "0");
    client.check("reserve\r\nrelease 3 5000 0\r\n", "RESERVED 3 0\r\n\r\nRELEASED\r\n");
    check(&mut client, "2", "4", "0", "0", "0");
    client.check("delete 1\r\ndelete 2\r\ndelete 3\r\ndelete 4\r\n", "DELETED\r\nDELETED\r\nDELETED\r\nDELETED\r\n");
    check(&mut client, "0", "0", "0", "0", "0");
    client.check_stats("stats-tube default", &[("cmd-delete", "4")]);
    client.check_stats("stats", &[("cmd-delete", "4")]);
}

in_both_modes!(counters_of_a_job_count_what_happened_to_it);
fn counters_of_a_job_count_what_happened_to_it(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("put 0 0 60 0\r\n\r\n", "INSERTED 1\r\n");
    client.check("reserve\r\nrelease 1 0 0\r\nreserve\r\nbury 1 0\r\nkick 1\r\nreserve\r\nrelease 1 0 100\r\nkick-job 1\r\nreserve-job 1\r\nbury 1 0\r\n",
        "RESERVED 1 0\r\n\r\nRELEASED\r\nRESERVED 1 0\r\n\r\nBURIED\r\nKICKED 1\r\nRESERVED 1 0\r\n\r\nRELEASED\r\nKICKED\r\nRESERVED 1 0\r\n\r\nBURIED\r\n");
    client.check_stats(
        "stats-job 1",
        &[("reserves", "4"), ("releases", "2"), ("buries", "2"), ("kicks", "2"), ("timeouts", "0")],
    );
}

in_both_modes!(connections_are_counted_while_they_are_open);
fn connections_are_counted_while_they_are_open(mode: Mode) {
    let server = mode.server();
    let mut monitor = server.connect();
    monitor.check_stats(
        "stats",
        &[
            ("current-connections", "1"),
            ("total-connections", "1"),
            ("current-producers", "0"),
            ("current-workers", "0"),
            ("current-waiting", "0"),
        ],
    );
    let (mut producer, mut worker, mut both) = (server.connect(), server.connect(), server.connect());
    producer.check("put 0 0 60 0\r\n\r\nput 0 0 60 0\r\n\r\n", "INSERTED 1\r\nINSERTED 2\r\n");
    worker.check("reserve\r\nreserve-with-timeout 0\r\n", "RESERVED 1 0\r\n\r\nRESERVED 2 0\r\n\r\n");
    both.check("put 0 0 60 0\r\n\r\nreserve-with-timeout 0\r\n", "INSERTED 3\r\nRESERVED 3 0\r\n\r\n");
    monitor.check_stats(
        "stats",
        &[
            ("current-connections", "4"),
            ("total-connections", "4"),
            ("current-producers", "2"),
            ("current-workers", "2"),
            ("current-waiting", "0"),
        ],
    );
    worker.send("reserve\r\n");
    wait_for_waiting(&mut monitor, 1);
    monitor.check_stats(
        "stats-tube default",
        &[("current-waiting", "1"), ("current-watching", "4"), ("current-using", "4")],
    );
    drop((producer, worker, both));
    testing::process::wait_until("connections are gone", || monitor.stat("stats", "current-connections") == "1");
    // Of several processes the one that counts clients hears of it before those that have the jobs and tubes.
    testing::process::wait_until("their jobs and tubes are free", || {
        monitor.stat("stats", "current-jobs-ready") == "3"
            && monitor.stat("stats-tube default", "current-watching") == "1"
    });
    monitor.check_stats(
        "stats",
        &[
            ("total-connections", "4"),
            ("current-producers", "0"),
            ("current-workers", "0"),
            ("current-waiting", "0"),
            ("current-jobs-ready", "3"),
        ],
    );
    monitor.check_stats(
        "stats-tube default",
        &[("current-waiting", "0"), ("current-watching", "1"), ("current-using", "1")],
    );
}

in_both_modes!(a_put_that_was_read_makes_a_producer_and_a_timed_out_reserve_a_worker);
fn a_put_that_was_read_makes_a_producer_and_a_timed_out_reserve_a_worker(mode: Mode) {
    let server = mode.tubes().with(["-z", "3"]).start();
    let mut client = server.connect();
    // As in the original, one over the limit is not read.
    client.check("put 0 0 1 4\r\nabcd\r\nreserve-with-timeout 0\r\n", "JOB_TOO_BIG\r\nTIMED_OUT\r\n");
    client.check_stats("stats", &[("current-producers", "0"), ("current-workers", "1")]);
    client.check("put 0 0 1 2\r\nabcd", "EXPECTED_CRLF\r\n");
    client.check_stats("stats", &[("current-producers", "1"), ("current-workers", "1")]);
}

in_both_modes!(a_tube_counts_who_waits_for_it);
fn a_tube_counts_who_waits_for_it(mode: Mode) {
    let server = mode.server();
    let (mut worker, mut monitor) = (server.connect(), server.connect());
    worker.check("watch a\r\nwatch b\r\nignore default\r\n", "WATCHING 2\r\nWATCHING 3\r\nWATCHING 2\r\n");
    worker.send("reserve\r\n");
    wait_for_waiting(&mut monitor, 1);
    for (tube, waiting) in [("a", "1"), ("b", "1"), ("default", "0")] {
        monitor.check_stats(&format!("stats-tube {tube}"), &[("current-waiting", waiting)]);
    }
    monitor.check("use a\r\nput 0 0 60 0\r\n\r\n", "USING a\r\nINSERTED 1\r\n");
    worker.expect("RESERVED 1 0\r\n\r\n");
    for tube in ["a", "b", "default"] {
        monitor.check_stats(&format!("stats-tube {tube}"), &[("current-waiting", "0")]);
    }
}

in_both_modes!(times_are_whole_seconds_truncated);
fn times_are_whole_seconds_truncated(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check(
        "put 0 100 50 0\r\n\r\nput 0 0 50 0\r\n\r\nreserve\r\n",
        "INSERTED 1\r\nINSERTED 2\r\nRESERVED 2 0\r\n\r\n",
    );
    // Less than a second has passed of each, so one second less than the whole is shown.
    client.check_stats("stats-job 1", &[("time-left", "99"), ("age", "0")]);
    client.check_stats("stats-job 2", &[("time-left", "49"), ("age", "0")]);
    assert_eq!(client.stat("stats", "uptime").parse::<u64>().expect("a number") / 60, 0);
}
