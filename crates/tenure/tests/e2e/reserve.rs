//! `reserve`, `reserve-with-timeout`, `reserve-job`, `touch`: who gets which job, and when nobody does.

use std::time::{Duration, Instant};

use super::{LATE_MAX, Mode, assert_took, in_both_modes, wait_for_waiting};

in_both_modes!(reserve_waits_for_a_job);
fn reserve_waits_for_a_job(mode: Mode) {
    let server = mode.server();
    let (mut worker, mut producer) = (server.connect(), server.connect());
    worker.send("reserve\r\n");
    wait_for_waiting(&mut producer, 1);
    producer.check("put 0 0 60 5\r\nhello\r\n", "INSERTED 1\r\n");
    worker.expect("RESERVED 1 5\r\nhello\r\n");
    wait_for_waiting(&mut producer, 0);
}

in_both_modes!(later_commands_of_a_waiting_connection_wait);
fn later_commands_of_a_waiting_connection_wait(mode: Mode) {
    let server = mode.server();
    let (mut worker, mut producer) = (server.connect(), server.connect());
    producer.check("put 0 1000 60 1\r\na\r\n", "INSERTED 1\r\n");
    worker.send("reserve\r\nlist-tube-used\r\nuse b\r\ndelete 1\r\n");
    wait_for_waiting(&mut producer, 1);
    // More of them arrive in another segment.
    worker.send("list-tube-used\r\nfoo\r\n");
    worker.expect_silence(Duration::from_millis(50));
    producer.check("kick-job 1\r\n", "KICKED\r\n");
    worker.expect("RESERVED 1 1\r\na\r\nUSING default\r\nUSING b\r\nDELETED\r\nUSING b\r\nUNKNOWN_COMMAND\r\n");
}

in_both_modes!(ready_jobs_come_by_priority_then_id);
fn ready_jobs_come_by_priority_then_id(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    for (priority, id) in [(5, 1), (4_294_967_295_u32, 2), (0, 3), (5, 4), (1024, 5), (0, 6)] {
        client.check(format!("put {priority} 0 60 0\r\n\r\n"), format!("INSERTED {id}\r\n"));
    }
    for id in [3, 6, 1, 4, 5, 2] {
        client.check("reserve\r\n", format!("RESERVED {id} 0\r\n\r\n"));
    }
}

in_both_modes!(a_released_job_takes_its_old_place);
fn a_released_job_takes_its_old_place(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check(
        "put 7 0 60 0\r\n\r\nput 7 0 60 0\r\n\r\nput 7 0 60 0\r\n\r\n",
        "INSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\n",
    );
    client.check("reserve\r\nreserve\r\n", "RESERVED 1 0\r\n\r\nRESERVED 2 0\r\n\r\n");
    client.check("release 2 7 0\r\nrelease 1 7 0\r\n", "RELEASED\r\nRELEASED\r\n");
    for id in [1, 2, 3] {
        client.check("reserve\r\n", format!("RESERVED {id} 0\r\n\r\n"));
    }
}

in_both_modes!(over_several_tubes_the_smallest_priority_and_id_of_all_heads_comes_first);
fn over_several_tubes_the_smallest_priority_and_id_of_all_heads_comes_first(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    for (tube, priority, id) in [("a", 9, 1), ("b", 3, 2), ("c", 9, 3), ("a", 3, 4), ("b", 1, 5), ("other", 0, 6)] {
        client.check(
            format!("use {tube}\r\nput {priority} 0 60 0\r\n\r\n"),
            format!("USING {tube}\r\nINSERTED {id}\r\n"),
        );
    }
    client.check("watch c\r\nwatch b\r\nwatch a\r\n", "WATCHING 2\r\nWATCHING 3\r\nWATCHING 4\r\n");
    for id in [5, 2, 4, 1, 3] {
        client.check("reserve-with-timeout 0\r\n", format!("RESERVED {id} 0\r\n\r\n"));
    }
    client.check("reserve-with-timeout 0\r\n", "TIMED_OUT\r\n");
}

in_both_modes!(waiting_clients_are_served_first_come_first_served);
fn waiting_clients_are_served_first_come_first_served(mode: Mode) {
    let server = mode.server();
    let mut monitor = server.connect();
    let mut workers: Vec<_> = (0..5).map(|_| server.connect()).collect();
    // The order of waiting, not of connecting.
    let order = [3, 0, 4, 1, 2];
    for (waiting, index) in order.into_iter().enumerate() {
        workers[index].check(format!("watch t{}\r\n", index % 2), "WATCHING 2\r\n");
        workers[index].send(if index == 4 { "reserve-with-timeout 60\r\n" } else { "reserve\r\n" });
        wait_for_waiting(&mut monitor, waiting + 1);
    }
    for (count, index) in order.into_iter().enumerate() {
        let id = count + 1;
        monitor.check("put 0 0 60 0\r\n\r\n", format!("INSERTED {id}\r\n"));
        workers[index].expect(format!("RESERVED {id} 0\r\n\r\n"));
    }
}

in_both_modes!(a_waiting_client_that_closed_is_passed_over);
fn a_waiting_client_that_closed_is_passed_over(mode: Mode) {
    let server = mode.server();
    let mut monitor = server.connect();
    let (mut first, mut second) = (server.connect(), server.connect());
    first.send("reserve\r\n");
    wait_for_waiting(&mut monitor, 1);
    second.send("reserve\r\n");
    wait_for_waiting(&mut monitor, 2);
    drop(first);
    wait_for_waiting(&mut monitor, 1);
    monitor.check("put 0 0 60 0\r\n\r\n", "INSERTED 1\r\n");
    second.expect("RESERVED 1 0\r\n\r\n");
    monitor.check_stats("stats-job 1", &[("reserves", "1"), ("releases", "0"), ("timeouts", "0")]);
}

in_both_modes!(a_timeout_of_0_is_a_poll);
fn a_timeout_of_0_is_a_poll(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    let start = Instant::now();
    client.check("reserve-with-timeout 0\r\n", "TIMED_OUT\r\n");
    assert!(start.elapsed() < LATE_MAX, "{:?}", start.elapsed());
    client.check("put 0 0 60 1\r\na\r\nreserve-with-timeout 0\r\n", "INSERTED 1\r\nRESERVED 1 1\r\na\r\n");
}

in_both_modes!(a_timeout_comes_after_its_time_and_a_second_watcher_does_not_disturb_it);
fn a_timeout_comes_after_its_time_and_a_second_watcher_does_not_disturb_it(mode: Mode) {
    let server = mode.server();
    let (mut first, mut second) = (server.connect(), server.connect());
    first.check("watch foo\r\n", "WATCHING 2\r\n");
    let start = Instant::now();
    first.send("reserve-with-timeout 1\r\n");
    wait_for_waiting(&mut second, 1);
    second.check("watch foo\r\nignore default\r\n", "WATCHING 2\r\nWATCHING 1\r\n");
    second.send("reserve-with-timeout 2\r\n");
    first.expect("TIMED_OUT\r\n");
    assert_took(start, 1);
    // The connection goes on.
    first.check("list-tube-used\r\n", "USING default\r\n");
    second.expect("TIMED_OUT\r\n");
}

in_both_modes!(timeouts_of_many_clients_come_in_time);
fn timeouts_of_many_clients_come_in_time(mode: Mode) {
    let server = mode.server();
    let mut clients: Vec<_> = (0..40).map(|_| server.connect()).collect();
    let start = Instant::now();
    for (index, client) in clients.iter_mut().enumerate() {
        client.send(format!("reserve-with-timeout {}\r\n", 1 + index % 2));
    }
    for client in clients.iter_mut().step_by(2) {
        client.expect("TIMED_OUT\r\n");
    }
    assert_took(start, 1);
    for client in clients.iter_mut().skip(1).step_by(2) {
        client.expect("TIMED_OUT\r\n");
    }
    assert_took(start, 2);
}

in_both_modes!(half_close_while_waiting_is_answered_with_timed_out);
fn half_close_while_waiting_is_answered_with_timed_out(mode: Mode) {
    let server = mode.server();
    let mut monitor = server.connect();
    for command in ["reserve", "reserve-with-timeout 1000"] {
        let mut client = server.connect();
        client.send(format!("{command}\r\n"));
        wait_for_waiting(&mut monitor, 1);
        client.half_close();
        client.expect("TIMED_OUT\r\n");
        client.expect_end();
        // Half-closed before the server has looked at the command.
        server.check(format!("{command}\r\n"), "TIMED_OUT\r\n");
        // Complete commands behind it are executed.
        server.check(format!("{command}\r\nlist-tube-used\r\nuse"), "TIMED_OUT\r\nUSING default\r\n");
    }
    wait_for_waiting(&mut monitor, 0);
    // A job that is there is still given, and goes back at the close.
    monitor.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
    server.check("reserve\r\n", "RESERVED 1 1\r\na\r\n");
    monitor.check("reserve\r\n", "RESERVED 1 1\r\na\r\n");
}

in_both_modes!(half_close_after_complete_commands_lets_them_be_answered);
fn half_close_after_complete_commands_lets_them_be_answered(mode: Mode) {
    mode.server().check(
        "put 0 0 60 1\r\na\r\nreserve\r\nstats-job 9\r\ndelete 1\r\nlist-tubes\r\npartial",
        "INSERTED 1\r\nRESERVED 1 1\r\na\r\nNOT_FOUND\r\nDELETED\r\nOK 14\r\n---\n- default\n\r\n",
    );
}

in_both_modes!(deadline_soon_is_the_last_second_of_any_held_job);
fn deadline_soon_is_the_last_second_of_any_held_job(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("put 0 0 1 1\r\na\r\nput 0 0 100 1\r\nb\r\n", "INSERTED 1\r\nINSERTED 2\r\n");
    let start = Instant::now();
    client.check("reserve\r\nreserve\r\n", "RESERVED 1 1\r\na\r\nRESERVED 2 1\r\nb\r\n");
    // Time to run of 1: the last second begins at once. It wins over a timeout of 0.
    client.check("reserve\r\n", "DEADLINE_SOON\r\n");
    client.check("reserve-with-timeout 0\r\n", "DEADLINE_SOON\r\n");
    client.check("reserve-with-timeout 100\r\n", "DEADLINE_SOON\r\n");
    assert!(start.elapsed() < LATE_MAX, "{:?}", start.elapsed());
    // Another connection holds no job, so it is never told.
    server.check("reserve-with-timeout 0\r\n", "TIMED_OUT\r\n");
    // Without the job there is no deadline.
    client.check("delete 1\r\nreserve-with-timeout 0\r\n", "DELETED\r\nTIMED_OUT\r\n");
}

in_both_modes!(a_waiting_reserve_is_told_when_the_last_second_begins);
fn a_waiting_reserve_is_told_when_the_last_second_begins(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("put 0 0 2 1\r\na\r\n", "INSERTED 1\r\n");
    let start = Instant::now();
    client.check("reserve\r\nreserve-with-timeout 0\r\n", "RESERVED 1 1\r\na\r\nTIMED_OUT\r\n");
    client.check("reserve\r\n", "DEADLINE_SOON\r\n");
    assert_took(start, 1);
    // Touch gives the whole time again.
    let touched = Instant::now();
    client.check("touch 1\r\nreserve-with-timeout 100\r\n", "TOUCHED\r\nDEADLINE_SOON\r\n");
    assert_took(touched, 1);
    client.check("delete 1\r\n", "DELETED\r\n");
}

in_both_modes!(deadline_soon_wins_over_a_timeout_of_the_same_moment);
fn deadline_soon_wins_over_a_timeout_of_the_same_moment(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("put 0 0 2 1\r\na\r\nreserve\r\n", "INSERTED 1\r\nRESERVED 1 1\r\na\r\n");
    // The timeout ends just after the margin has begun.
    client.check("reserve-with-timeout 1\r\n", "DEADLINE_SOON\r\n");
}

in_both_modes!(a_ready_job_is_given_also_in_the_last_second);
fn a_ready_job_is_given_also_in_the_last_second(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("put 0 0 1 1\r\na\r\nreserve\r\n", "INSERTED 1\r\nRESERVED 1 1\r\na\r\n");
    client.check("put 0 0 60 1\r\nb\r\nreserve\r\n", "INSERTED 2\r\nRESERVED 2 1\r\nb\r\n");
    client.check("reserve\r\n", "DEADLINE_SOON\r\n");
}

in_both_modes!(a_ready_job_of_a_paused_tube_prevents_deadline_soon);
fn a_ready_job_of_a_paused_tube_prevents_deadline_soon(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check(
        "use p\r\nwatch p\r\nput 0 0 60 1\r\nx\r\npause-tube p 100\r\n",
        "USING p\r\nWATCHING 2\r\nINSERTED 1\r\nPAUSED\r\n",
    );
    client.check(
        "use default\r\nput 0 0 1 1\r\na\r\nreserve\r\n",
        "USING default\r\nINSERTED 2\r\nRESERVED 2 1\r\na\r\n",
    );
    client.check("reserve-with-timeout 0\r\n", "TIMED_OUT\r\n");
    // Not watched any more: it does not count.
    client.check("ignore p\r\nreserve-with-timeout 0\r\n", "WATCHING 1\r\nDEADLINE_SOON\r\n");
}

in_both_modes!(reserve_job_is_never_told_deadline_soon);
fn reserve_job_is_never_told_deadline_soon(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("put 0 0 1 1\r\na\r\nreserve\r\n", "INSERTED 1\r\nRESERVED 1 1\r\na\r\n");
    client.check("use other\r\nput 0 0 60 1\r\nb\r\n", "USING other\r\nINSERTED 2\r\n");
    client.check("reserve\r\n", "DEADLINE_SOON\r\n");
    client.check("reserve-job 2\r\nreserve-job 9\r\n", "RESERVED 2 1\r\nb\r\nNOT_FOUND\r\n");
}

in_both_modes!(reserve_job_takes_ready_delayed_and_buried_jobs_of_any_tube);
fn reserve_job_takes_ready_delayed_and_buried_jobs_of_any_tube(mode: Mode) {
    let server = mode.server();
    let mut owner = server.connect();
    owner.check(
        "use far\r\nput 3 0 60 5\r\nready\r\nput 4 100 60 7\r\ndelayed\r\n",
        "USING far\r\nINSERTED 1\r\nINSERTED 2\r\n",
    );
    owner.check(
        "watch far\r\nput 0 0 60 6\r\nburied\r\nreserve\r\nbury 3 5\r\n",
        "WATCHING 2\r\nINSERTED 3\r\nRESERVED 3 6\r\nburied\r\nBURIED\r\n",
    );
    owner.check("put 0 0 60 5\r\ntaken\r\nreserve\r\n", "INSERTED 4\r\nRESERVED 4 5\r\ntaken\r\n");
    owner.check("pause-tube far 1000\r\n", "PAUSED\r\n");
    let mut worker = server.connect();
    worker.check("reserve-job 4\r\n", "NOT_FOUND\r\n");
    owner.check("reserve-job 4\r\n", "NOT_FOUND\r\n");
    worker.check("reserve-job 1\r\n", "RESERVED 1 5\r\nready\r\n");
    worker.check("reserve-job 2\r\n", "RESERVED 2 7\r\ndelayed\r\n");
    worker.check("reserve-job 3\r\n", "RESERVED 3 6\r\nburied\r\n");
    worker.check("reserve-job 3\r\n", "NOT_FOUND\r\n");
    worker.check_stats(
        "stats-tube far",
        &[
            ("current-jobs-ready", "0"),
            ("current-jobs-delayed", "0"),
            ("current-jobs-buried", "0"),
            ("current-jobs-reserved", "4"),
        ],
    );
    worker.check_stats("stats-job 1", &[("state", "reserved"), ("pri", "3"), ("reserves", "1"), ("kicks", "0")]);
    worker.check_stats("stats-job 2", &[("state", "reserved"), ("pri", "4"), ("reserves", "1"), ("delay", "100")]);
    worker.check_stats("stats-job 3", &[("state", "reserved"), ("pri", "5"), ("reserves", "2"), ("buries", "1")]);
    worker.check("delete 1\r\nrelease 2 0 0\r\nbury 3 0\r\n", "DELETED\r\nRELEASED\r\nBURIED\r\n");
}

in_both_modes!(only_the_holder_may_delete_release_bury_and_touch);
fn only_the_holder_may_delete_release_bury_and_touch(mode: Mode) {
    let server = mode.server();
    let (mut holder, mut other) = (server.connect(), server.connect());
    holder.check("put 0 0 60 1\r\na\r\nreserve\r\n", "INSERTED 1\r\nRESERVED 1 1\r\na\r\n");
    other.check(
        "delete 1\r\nrelease 1 0 0\r\nbury 1 0\r\ntouch 1\r\nkick-job 1\r\nreserve-job 1\r\n",
        "NOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\n",
    );
    other.check("peek 1\r\n", "FOUND 1 1\r\na\r\n");
    holder.check("touch 1\r\ndelete 1\r\ntouch 1\r\n", "TOUCHED\r\nDELETED\r\nNOT_FOUND\r\n");
}

in_both_modes!(a_client_may_hold_many_jobs);
fn a_client_may_hold_many_jobs(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    for id in 1..=1000 {
        client.check("put 0 0 600 0\r\n\r\nreserve\r\n", format!("INSERTED {id}\r\nRESERVED {id} 0\r\n\r\n"));
    }
    client.check_stats("stats", &[("current-jobs-reserved", "1000"), ("current-jobs-ready", "0")]);
    for id in (1..=1000).rev() {
        client.check(format!("delete {id}\r\n"), "DELETED\r\n");
    }
}

in_both_modes!(an_expired_job_becomes_ready_and_is_counted_on_time);
fn an_expired_job_becomes_ready_and_is_counted_on_time(mode: Mode) {
    let server = mode.server();
    let (mut slow, mut next) = (server.connect(), server.connect());
    slow.check("put 9 0 1 1\r\na\r\n", "INSERTED 1\r\n");
    let start = Instant::now();
    slow.check("reserve\r\n", "RESERVED 1 1\r\na\r\n");
    next.send("reserve\r\n");
    next.expect("RESERVED 1 1\r\na\r\n");
    assert_took(start, 1);
    next.check_stats(
        "stats-job 1",
        &[("timeouts", "1"), ("reserves", "2"), ("releases", "0"), ("pri", "9"), ("state", "reserved")],
    );
    next.check_stats("stats", &[("job-timeouts", "1")]);
    // It is not the first holder's any more.
    slow.check(
        "touch 1\r\ndelete 1\r\nrelease 1 0 0\r\nbury 1 0\r\n",
        "NOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\n",
    );
}

in_both_modes!(expiry_needs_no_other_traffic);
fn expiry_needs_no_other_traffic(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("put 0 0 1 1\r\na\r\nreserve\r\n", "INSERTED 1\r\nRESERVED 1 1\r\na\r\n");
    // An idle server: nothing is sent until after the deadline.
    client.expect_silence(Duration::from_secs(1) + LATE_MAX);
    client.check_stats("stats-job 1", &[("state", "ready"), ("timeouts", "1"), ("time-left", "0")]);
    client.check_stats("stats", &[("job-timeouts", "1"), ("current-jobs-ready", "1"), ("current-jobs-reserved", "0")]);
}

in_both_modes!(many_deadlines_of_one_moment_all_expire);
fn many_deadlines_of_one_moment_all_expire(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    let count = 2000;
    client.send("put 0 0 1 0\r\n\r\n".repeat(count));
    for id in 1..=count {
        client.expect(format!("INSERTED {id}\r\n"));
    }
    let start = Instant::now();
    client.send("reserve-with-timeout 0\r\n".repeat(count));
    for id in 1..=count {
        client.expect(format!("RESERVED {id} 0\r\n\r\n"));
    }
    let reserved = start.elapsed();
    let (mut monitor, mut asked) = (server.connect(), start.elapsed());
    testing::process::wait_until("all have expired", || {
        asked = start.elapsed();
        monitor.stat("stats", "job-timeouts") == count.to_string()
    });
    // It was so between the last question and its answer.
    let (answered, due) = (start.elapsed(), Duration::from_secs(1));
    assert!(answered >= due && asked <= due + reserved + LATE_MAX, "{asked:?} to {answered:?}");
    monitor.check_stats("stats", &[("current-jobs-ready", "2000"), ("current-jobs-reserved", "0")]);
}

in_both_modes!(touch_moves_the_deadline);
fn touch_moves_the_deadline(mode: Mode) {
    let server = mode.server();
    let mut holder = server.connect();
    holder.check("put 0 0 2 1\r\na\r\nreserve\r\n", "INSERTED 1\r\nRESERVED 1 1\r\na\r\n");
    // The margin begins after a second; touch then gives two more from there.
    holder.check("reserve\r\n", "DEADLINE_SOON\r\n");
    let touched = Instant::now();
    holder.check("touch 1\r\n", "TOUCHED\r\n");
    let mut next = server.connect();
    next.check("reserve\r\n", "RESERVED 1 1\r\na\r\n");
    assert_took(touched, 2);
}

in_both_modes!(closing_and_quitting_release_at_once_without_counters);
fn closing_and_quitting_release_at_once_without_counters(mode: Mode) {
    let server = mode.server();
    let mut monitor = server.connect();
    for (id, quit) in (1..).zip([true, false, true, false]) {
        monitor.check("put 6 0 600 1\r\na\r\n", format!("INSERTED {id}\r\n"));
        let mut holder = server.connect();
        holder.check("reserve\r\n", format!("RESERVED {id} 1\r\na\r\n"));
        let start = Instant::now();
        if quit {
            holder.send("quit\r\n");
            holder.expect_end();
        } else {
            drop(holder);
        }
        monitor.check("reserve\r\n", format!("RESERVED {id} 1\r\na\r\n"));
        // Within 1 s; for the server it is an event, so there is nothing to wait for.
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        monitor.check_stats(
            &format!("stats-job {id}"),
            &[("releases", "0"), ("timeouts", "0"), ("reserves", "2"), ("pri", "6"), ("delay", "0")],
        );
        monitor.check(format!("delete {id}\r\n"), "DELETED\r\n");
    }
}

in_both_modes!(a_waiter_gets_what_becomes_ready_by_release_kick_delay_and_close);
fn a_waiter_gets_what_becomes_ready_by_release_kick_delay_and_close(mode: Mode) {
    let server = mode.server();
    let (mut worker, mut other, mut monitor) = (server.connect(), server.connect(), server.connect());
    other.check("put 0 0 600 1\r\na\r\n", "INSERTED 1\r\n");
    for round in 0..5 {
        other.check("reserve\r\n", "RESERVED 1 1\r\na\r\n");
        if round == 1 {
            other.check("bury 1 0\r\n", "BURIED\r\n");
        } else if round == 2 {
            other.check("release 1 0 1000\r\n", "RELEASED\r\n");
        }
        worker.send("reserve\r\n");
        wait_for_waiting(&mut monitor, 1);
        match round {
            0 => other.check("release 1 0 0\r\n", "RELEASED\r\n"),
            1 => other.check("kick 1\r\n", "KICKED 1\r\n"),
            2 => other.check("kick-job 1\r\n", "KICKED\r\n"),
            3 => other.check("release 1 0 1\r\n", "RELEASED\r\n"),
            _ => other.check("quit\r\n", ""),
        }
        worker.expect("RESERVED 1 1\r\na\r\n");
        worker.check("release 1 0 0\r\n", "RELEASED\r\n");
    }
}
