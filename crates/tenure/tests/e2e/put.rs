//! `put`: its limits, the order of its checks, and when a job exists.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use testing::process::wait_until;

use super::{Mode, assert_took, in_both_modes};

in_both_modes!(ids_are_dense_from_1_over_tubes_and_connections);
/// Those of several processes are not dense, but rise: see [`testing::ids`].
fn ids_are_dense_from_1_over_tubes_and_connections(mode: Mode) {
    let server = mode.tubes().with(["-z", "10"]).start();
    for id in 1..=5 {
        server.check(format!("use t{id}\r\nput 0 0 1 0\r\n\r\n"), format!("USING t{id}\r\nINSERTED {id}\r\n"));
    }
    // Refused puts use up no id.
    server.check(
        "put 0 0 1 1\r\nabc\r\nput 0 0 1 11\r\n01234567890\r\nput 0 0 1 x\r\nput 0 0 1 0\r\n\r\n",
        "EXPECTED_CRLF\r\nUNKNOWN_COMMAND\r\nJOB_TOO_BIG\r\nBAD_FORMAT\r\nINSERTED 6\r\n",
    );
}

in_both_modes!(a_body_may_hold_any_bytes);
fn a_body_may_hold_any_bytes(mode: Mode) {
    let every: Vec<u8> = (0..=255).collect();
    let bodies: [&[u8]; 7] =
        [b"", b"\r\n", b"\r\n\r\n\r\n", b"put 0 0 0 0\r\n\r\n", b"\0\0\0", &every, b"ends in CR\r"];
    let server = mode.server();
    let mut client = server.connect();
    for body in bodies {
        let id = client.put(0, 0, 60, body);
        let found = [format!("FOUND {id} {}\r\n", body.len()).as_bytes(), body, b"\r\n"].concat();
        client.check(format!("peek {id}\r\n"), found);
    }
}

in_both_modes!(a_body_may_come_in_any_segments);
fn a_body_may_come_in_any_segments(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    let body: Vec<u8> = (0..5000u32).flat_map(u32::to_le_bytes).collect();
    for size in [1, 2, 3, 1000, 1024, 1448, 4096, 19_999] {
        let input = [b"put 0 0 60 20000\r\n", &body[..], b"\r\npeek-ready\r\n"].concat();
        for part in input.chunks(size) {
            client.send(part);
        }
        let id = client.line().strip_prefix("INSERTED ").expect("an id").parse::<u64>().expect("a number");
        client.expect([format!("FOUND {id} 20000\r\n").as_bytes(), &body, b"\r\n"].concat());
        client.check(format!("delete {id}\r\n"), "DELETED\r\n");
    }
}

in_both_modes!(the_default_limit_is_65535_bytes);
fn the_default_limit_is_65535_bytes(mode: Mode) {
    let server = mode.server();
    let mut input = b"put 0 0 1 65535\r\n".to_vec();
    input.extend(vec![b'a'; 65_535]);
    input.extend(b"\r\nput 0 0 1 65536\r\n");
    input.extend(vec![b'b'; 65_536]);
    input.extend(b"\r\npeek-ready\r\n");
    let mut expected = b"INSERTED 1\r\nJOB_TOO_BIG\r\nFOUND 1 65535\r\n".to_vec();
    expected.extend(vec![b'a'; 65_535]);
    expected.extend(b"\r\n");
    server.check(input, expected);
    assert_eq!(server.connect().stat("stats", "max-job-size"), "65535");
}

in_both_modes!(another_limit_is_given_with_z);
fn another_limit_is_given_with_z(mode: Mode) {
    let server = mode.tubes().with(["-z", "3"]).start();
    server.check("put 0 0 1 3\r\nabc\r\nput 0 0 1 4\r\nabcd\r\n", "INSERTED 1\r\nJOB_TOO_BIG\r\n");
    assert_eq!(server.connect().stat("stats", "max-job-size"), "3");
}

in_both_modes!(a_body_over_the_limit_is_swallowed_whole);
/// Order of checks, 2: bytes over the limit, whatever else is wrong behind the number or in the body.
fn a_body_over_the_limit_is_swallowed_whole(mode: Mode) {
    let server = mode.tubes().with(["-z", "10"]).start();
    // A body that looks like a command is not executed.
    server.check("put 0 0 1 14\r\nlist-tube-used\r\nuse next\r\n", "JOB_TOO_BIG\r\nUSING next\r\n");
    server.check("put 0 0 1 11\r\nput 0 0 1 1\r\nuse next\r\n", "JOB_TOO_BIG\r\nUSING next\r\n");
    // Garbage behind the number changes nothing, nor does a wrong trailer.
    for garbage in [" ", " 5", "x", " x y z"] {
        server
            .check(format!("put 0 0 1 14{garbage}\r\nlist-tube-used\r\nuse next\r\n"), "JOB_TOO_BIG\r\nUSING next\r\n");
    }
    server.check("put 0 0 1 11\r\nabcdefghijkXYuse next\r\n", "JOB_TOO_BIG\r\nUSING next\r\n");
    // No answer before the last of bytes + 2 has come.
    let mut client = server.connect();
    client.send("put 0 0 1 11\r\nabcdefghijk\r");
    server.check("list-tube-used\r\n", "USING default\r\n");
    client.expect_silence(Duration::from_millis(50));
    client.check("\n", "JOB_TOO_BIG\r\n");
    server.connect().check_stats("stats", &[("total-jobs", "0"), ("current-jobs-ready", "0")]);
}

in_both_modes!(a_body_of_two_to_the_30_and_1_bytes_is_swallowed_without_storing);
fn a_body_of_two_to_the_30_and_1_bytes_is_swallowed_without_storing(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("list-tube-used\r\n", "USING default\r\n");
    let before = server.resident();
    client.send("put 0 0 1 1073741825\r\n");
    let block = vec![b'x'; 1 << 20];
    for _ in 0..1024 {
        client.send(&block);
    }
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 16 << 20, "memory grew by {grown} bytes");
    client.send("x");
    client.expect_silence(Duration::from_millis(20));
    client.check("\r\nput 0 0 1 1\r\na\r\n", "JOB_TOO_BIG\r\nINSERTED 1\r\n");
}

in_both_modes!(the_largest_size_that_can_be_written_is_swallowed_too);
fn the_largest_size_that_can_be_written_is_swallowed_too(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("list-tube-used\r\n", "USING default\r\n");
    let before = server.resident();
    client.send("put 0 0 1 4294967295\r\n");
    for _ in 0..32 {
        client.send(vec![b'x'; 1 << 20]);
    }
    client.expect_silence(Duration::from_millis(50));
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 16 << 20, "memory grew by {grown} bytes");
    // Others are served meanwhile, and the end of input drops the rest.
    server.check("put 0 0 1 1\r\na\r\n", "INSERTED 1\r\n");
    client.half_close();
    client.expect_end();
    server.check("put 0 0 1 4294967296\r\n", "BAD_FORMAT\r\n");
}

in_both_modes!(the_body_behind_an_unreadable_line_is_read_as_commands);
/// Order of checks, 1 and 3: the size cannot be trusted, so what follows is read as commands.
fn the_body_behind_an_unreadable_line_is_read_as_commands(mode: Mode) {
    let server = mode.server();
    for line in [
        "put x 0 1 14",
        "put 0 x 1 14",
        "put 0 0 x 14",
        "put 0 0 1 14x",
        "put 0 0 1 14 ",
        "put 0 0 1 14 1",
        "put 4294967296 0 1 14",
        "put 0 4294967296 1 14",
        "put 0 0 4294967296 14",
        "put -1 0 1 14",
        "put 0 -1 1 14",
    ] {
        server.check(format!("{line}\r\nlist-tube-used\r\n"), "BAD_FORMAT\r\nUSING default\r\n");
    }
    // An unreadable number comes before a size over the limit.
    server.check("put x 0 1 99999\r\nlist-tube-used\r\n", "BAD_FORMAT\r\nUSING default\r\n");
    server.check("put 0 0 1 10b\r\nlist-tube-used\r\n", "BAD_FORMAT\r\nUSING default\r\n");
    server.connect().check_stats("stats", &[("total-jobs", "0"), ("cmd-put", "0")]);
}

in_both_modes!(a_wrong_trailer_is_noticed_after_exactly_two_more_bytes);
/// Order of checks, 5.
fn a_wrong_trailer_is_noticed_after_exactly_two_more_bytes(mode: Mode) {
    let server = mode.server();
    for trailer in ["cd", "\n\r", "\r\r", "\n\n", "x\n", "\rx", "\0\0"] {
        server.check(format!("put 0 0 1 2\r\nab{trailer}list-tube-used\r\n"), "EXPECTED_CRLF\r\nUSING default\r\n");
        // And as soon as they have come.
        let mut client = server.connect();
        client.check(format!("put 0 0 1 2\r\nab{trailer}"), "EXPECTED_CRLF\r\n");
        client.check("list-tube-used\r\n", "USING default\r\n");
    }
    server.check("put 0 0 1 0\r\nuse a\r\n", "EXPECTED_CRLF\r\nUNKNOWN_COMMAND\r\n");
    server.connect().check_stats("stats", &[("total-jobs", "0"), ("current-jobs-ready", "0")]);
}

in_both_modes!(a_body_that_finds_no_memory_is_skipped);
/// Order of checks, 4: a body for which there is no memory is skipped.
fn a_body_that_finds_no_memory_is_skipped(mode: Mode) {
    let server = mode.tubes().with(["-z", "1073741824"]).through(["prlimit", "--data=268435456"]).start();
    let mut client = server.connect();
    client.send("put 0 0 1 1073741824\r\n");
    let block = vec![b'x'; 1 << 20];
    for _ in 0..1024 {
        client.send(&block);
    }
    client.check("\r\nput 0 0 1 1\r\na\r\n", "OUT_OF_MEMORY\r\nINSERTED 1\r\n");
}

in_both_modes!(drain_refuses_a_put_only_after_its_body);
/// Order of checks, 5 before 6: drain is decided last.
fn drain_refuses_a_put_only_after_its_body(mode: Mode) {
    let mut server = mode.tubes().with(["-z", "10"]).start();
    let mut client = server.connect();
    client.put(0, 0, 60, b"before");
    server.signal(Signal::USR1);
    wait_until("draining", || client.stat("stats", "draining") == "true");
    client.check("put 0 0 1 14\r\nlist-tube-used\r\nuse a\r\n", "JOB_TOO_BIG\r\nUSING a\r\n");
    client.check("put 0 0 1 2\r\nabcd", "EXPECTED_CRLF\r\n");
    client.check("put 0 0 1 x\r\n", "BAD_FORMAT\r\n");
    client.check("put 0 0 1 5\r\nuse b\r\nlist-tube-used\r\n", "DRAINING\r\nUSING a\r\n");
    client.check("peek 2\r\n", "NOT_FOUND\r\n");
}

in_both_modes!(a_job_exists_only_once_its_body_is_complete);
fn a_job_exists_only_once_its_body_is_complete(mode: Mode) {
    let server = mode.server();
    let mut slow = server.connect();
    let mut waiting = server.connect();
    let mut other = server.connect();
    waiting.send("reserve\r\n");
    super::wait_for_waiting(&mut other, 1);
    slow.send("put 0 0 60 5\r\nhell");
    // The half body has been read: the server has served another connection since.
    server.check("list-tube-used\r\n", "USING default\r\n");
    other.check(
        "peek 1\r\npeek-ready\r\nstats-job 1\r\ndelete 1\r\n",
        "NOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\n",
    );
    other.check_stats("stats", &[("total-jobs", "0"), ("current-jobs-ready", "0"), ("current-waiting", "1")]);
    other.check_stats("stats-tube default", &[("total-jobs", "0"), ("current-jobs-ready", "0")]);
    // The one that is complete first gets the first id.
    other.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
    waiting.expect("RESERVED 1 1\r\na\r\n");
    slow.check("o\r\n", "INSERTED 2\r\n");
    other.check("peek-ready\r\n", "FOUND 2 5\r\nhello\r\n");
}

in_both_modes!(a_partial_line_or_body_is_dropped_with_its_connection);
fn a_partial_line_or_body_is_dropped_with_its_connection(mode: Mode) {
    let server = mode.server();
    server.check("put 0 0 60 5\r\nhell", "");
    server.check("put 0 0 60 5\r\nhello\r", "");
    server.check("put 0 0 60 5\r\n", "");
    server.check("put 0 0 60 5\r", "");
    server.check("put 0 0 60 1\r\na\r\nput 0 0 60 1\r\nb\r", "INSERTED 1\r\n");
    server.check("list-tube-used\r\nlist-tube-used", "USING default\r\n");
    server.check("list-tube-used\r\nlist-tube-used\r", "USING default\r\n");
    server.connect().check_stats("stats", &[("total-jobs", "1"), ("current-jobs-ready", "1")]);
}

in_both_modes!(priority_delay_and_time_to_run_reach_to_two_to_the_32);
fn priority_delay_and_time_to_run_reach_to_two_to_the_32(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("put 4294967295 4294967295 4294967295 1\r\na\r\n", "INSERTED 1\r\n");
    client.check_stats(
        "stats-job 1",
        &[("pri", "4294967295"), ("delay", "4294967295"), ("ttr", "4294967295"), ("state", "delayed")],
    );
    client.check("kick 1\r\nreserve\r\n", "KICKED 1\r\nRESERVED 1 1\r\na\r\n");
    client.check_stats("stats-job 1", &[("state", "reserved"), ("ttr", "4294967295")]);
    client.check("release 1 4294967295 4294967295\r\n", "RELEASED\r\n");
    client.check_stats("stats-job 1", &[("pri", "4294967295"), ("delay", "4294967295"), ("state", "delayed")]);
    for line in ["put 4294967296 0 1 1", "put 0 4294967296 1 1", "put 0 0 4294967296 1", "put 0 0 1 4294967296"] {
        client.check(format!("{line}\r\n"), "BAD_FORMAT\r\n");
    }
}

in_both_modes!(a_time_to_run_of_0_becomes_1_and_others_stay);
fn a_time_to_run_of_0_becomes_1_and_others_stay(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    for (given, shown) in [(0, "1"), (1, "1"), (2, "2"), (120, "120"), (21_600, "21600")] {
        let id = client.put(0, 0, given, b"x");
        client.check_stats(&format!("stats-job {id}"), &[("ttr", shown), ("time-left", "0"), ("state", "ready")]);
    }
}

in_both_modes!(a_job_goes_to_the_tube_used_when_it_is_put);
fn a_job_goes_to_the_tube_used_when_it_is_put(mode: Mode) {
    let server = mode.server();
    server.check(
        "use a\r\nput 0 0 60 1\r\nx\r\nuse b\r\nput 0 0 60 1\r\ny\r\npeek-ready\r\nuse a\r\npeek-ready\r\nuse default\r\npeek-ready\r\n",
        "USING a\r\nINSERTED 1\r\nUSING b\r\nINSERTED 2\r\nFOUND 2 1\r\ny\r\nUSING a\r\nFOUND 1 1\r\nx\r\nUSING default\r\nNOT_FOUND\r\n",
    );
}

in_both_modes!(a_delayed_job_becomes_ready_after_its_time);
fn a_delayed_job_becomes_ready_after_its_time(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    let start = Instant::now();
    client.check("put 0 1 60 1\r\na\r\nput 0 0 60 1\r\nb\r\n", "INSERTED 1\r\nINSERTED 2\r\n");
    client.check("peek-delayed\r\npeek-ready\r\n", "FOUND 1 1\r\na\r\nFOUND 2 1\r\nb\r\n");
    client.check_stats("stats-job 1", &[("state", "delayed"), ("delay", "1"), ("time-left", "0")]);
    client.check("reserve\r\nreserve\r\n", "RESERVED 2 1\r\nb\r\n");
    client.expect("RESERVED 1 1\r\na\r\n");
    assert_took(start, 1);
    client.check_stats("stats-job 1", &[("state", "reserved"), ("delay", "1"), ("timeouts", "0"), ("kicks", "0")]);
}
