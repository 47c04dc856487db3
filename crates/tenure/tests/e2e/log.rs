//! The log as users see it: what survives a restart, how large it is, and what happens when it cannot be written.
//! Its format, its recovery at every byte and its faults at every system call are tested with the store.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use testing::client::Client;
use testing::process::{Folder, Launch, Server, wait_until};

use super::{Mode, in_both_modes};

/// Makes the sixth allocation of a segment fail, as a full disk would.
const FULL_ONCE: [&str; 10] = full("inject=fallocate:error=ENOSPC:when=6");
/// As [`FULL_ONCE`], and all that follow too.
const FULL_LATER: [&str; 10] = full("inject=fallocate:error=ENOSPC:when=6+");

/// Runs the server below strace, which it does not notice but for this fault.
const fn full(fault: &'static str) -> [&'static str; 10] {
    ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fallocate", "-e", fault]
}

/// The segments of the slot that has the tube `default`, oldest first.
#[track_caller]
fn segments(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.join("logs-1/slot-0")).expect("the log's folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "log")).collect();
    found.sort();
    found
}

/// Kills or stops the server, alternately, and starts it again.
#[track_caller]
fn restart(server: &mut Server, launch: &Launch, kill: bool) {
    if kill {
        server.kill();
    } else {
        assert_eq!(server.terminate().code(), Some(0), "{}", server.stderr());
    }
    *server = launch.start();
}

in_both_modes!(after_an_empty_restart_the_next_id_is_1);
fn after_an_empty_restart_the_next_id_is_1(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path());
    let mut server = launch.start();
    for kill in [false, true, false, true] {
        restart(&mut server, &launch, kill);
    }
    server.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
}

in_both_modes!(jobs_survive_with_everything_that_was_said_of_them);
fn jobs_survive_with_everything_that_was_said_of_them(mode: Mode) {
    for kill in [false, true] {
        let folder = Folder::new();
        let launch = mode.tubes().log_in(folder.path());
        let mut server = launch.start();
        let body: Vec<u8> = (0..=255).collect();
        let mut client = server.connect();
        client.check("use some-tube\r\n", "USING some-tube\r\n");
        assert_eq!(client.put(7, 0, 120, &body), 1);
        assert_eq!(client.put(4_294_967_295, 0, 4_294_967_295, b""), 2);
        restart(&mut server, &launch, kill);
        let mut client = server.connect();
        client.check("peek 1\r\n", [b"FOUND 1 256\r\n", &body[..], b"\r\n"].concat());
        client.check_stats(
            "stats-job 1",
            &[
                ("tube", "\"some-tube\""),
                ("state", "ready"),
                ("pri", "7"),
                ("delay", "0"),
                ("ttr", "120"),
                ("reserves", "0"),
            ],
        );
        client.check_stats("stats-job 2", &[("pri", "4294967295"), ("ttr", "4294967295"), ("state", "ready")]);
        client.check_stats(
            "stats-tube some-tube",
            &[("current-jobs-ready", "2"), ("current-jobs-urgent", "1"), ("total-jobs", "0")],
        );
        // total-jobs counts this life; recovered jobs are no puts.
        client.check_stats(
            "stats",
            &[("total-jobs", "0"), ("cmd-put", "0"), ("current-jobs-ready", "2"), ("current-tubes", "2")],
        );
        client.check("watch some-tube\r\nreserve\r\n", "WATCHING 2\r\n");
        client.expect([b"RESERVED 1 256\r\n", &body[..], b"\r\n"].concat());
    }
}

in_both_modes!(every_change_of_state_survives);
fn every_change_of_state_survives(mode: Mode) {
    for kill in [false, true] {
        let folder = Folder::new();
        let launch = mode.tubes().log_in(folder.path());
        let mut server = launch.start();
        let mut client = server.connect();
        for id in 1..=8 {
            assert_eq!(client.put(id, 0, 60, b""), u64::from(id));
        }
        for id in 1..=8 {
            client.check("reserve\r\n", format!("RESERVED {id} 0\r\n\r\n"));
        }
        client.check("release 2 50 0\r\nrelease 3 60 1000\r\nbury 4 70\r\nbury 5 80\r\nkick-job 5\r\nrelease 6 90 1000\r\nkick-job 6\r\ndelete 7\r\n",
            "RELEASED\r\nRELEASED\r\nBURIED\r\nBURIED\r\nKICKED\r\nRELEASED\r\nKICKED\r\nDELETED\r\n");
        // Of the first nothing but a reservation is known, and that ends with the server.
        restart(&mut server, &launch, kill);
        let mut client = server.connect();
        client.check_stats("stats-job 1", &[("state", "ready"), ("pri", "1")]);
        client.check_stats("stats-job 2", &[("state", "ready"), ("pri", "50"), ("reserves", "1"), ("releases", "1")]);
        client.check_stats("stats-job 3", &[("state", "delayed"), ("pri", "60"), ("delay", "1000"), ("releases", "1")]);
        let left: u64 = client.stat("stats-job 3", "time-left").parse().expect("seconds");
        assert!((900..1000).contains(&left), "{left}");
        client.check_stats("stats-job 4", &[("state", "buried"), ("pri", "70"), ("buries", "1")]);
        client.check_stats("stats-job 5", &[("state", "ready"), ("pri", "80"), ("buries", "1"), ("kicks", "1")]);
        client.check_stats("stats-job 6", &[("state", "ready"), ("pri", "90"), ("releases", "1"), ("kicks", "1")]);
        client.check("stats-job 7\r\npeek 7\r\n", "NOT_FOUND\r\nNOT_FOUND\r\n");
        client.check_stats("stats-job 8", &[("state", "ready"), ("pri", "8")]);
        client.check_stats(
            "stats",
            &[
                ("current-jobs-ready", "5"),
                ("current-jobs-delayed", "1"),
                ("current-jobs-buried", "1"),
                ("current-jobs-reserved", "0"),
            ],
        );
        for id in [1, 8, 2, 5, 6] {
            client.check("reserve\r\n", format!("RESERVED {id} 0\r\n\r\n"));
        }
    }
}

in_both_modes!(reserve_job_of_a_delayed_or_buried_job_is_remembered);
fn reserve_job_of_a_delayed_or_buried_job_is_remembered(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path());
    let mut server = launch.start();
    server.check(
        "put 5 1000 60 0\r\n\r\nput 6 0 60 0\r\n\r\nreserve\r\nbury 2 7\r\nreserve-job 1\r\nreserve-job 2\r\n",
        "INSERTED 1\r\nINSERTED 2\r\nRESERVED 2 0\r\n\r\nBURIED\r\nRESERVED 1 0\r\n\r\nRESERVED 2 0\r\n\r\n",
    );
    restart(&mut server, &launch, true);
    let mut client = server.connect();
    client.check_stats("stats-job 1", &[("state", "ready"), ("pri", "5")]);
    client.check_stats("stats-job 2", &[("state", "ready"), ("pri", "7")]);
}

in_both_modes!(delays_go_on_while_the_server_is_away);
fn delays_go_on_while_the_server_is_away(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path());
    let mut server = launch.start();
    let start = Instant::now();
    server.check("put 0 2 60 1\r\na\r\n", "INSERTED 1\r\n");
    restart(&mut server, &launch, true);
    server.connect().check("reserve\r\n", "RESERVED 1 1\r\na\r\n");
    // Kept in milliseconds of wall time; never early by more than that.
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(1990) && took <= Duration::from_secs(2) + super::LATE_MAX, "{took:?}");
}

in_both_modes!(the_order_of_burying_survives_any_number_of_restarts);
fn the_order_of_burying_survives_any_number_of_restarts(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path());
    let mut server = launch.start();
    let mut client = server.connect();
    for id in 1..=6 {
        assert_eq!(client.put(0, 0, 60, b""), id);
    }
    for id in 1..=6 {
        client.check(format!("reserve-job {id}\r\n"), format!("RESERVED {id} 0\r\n\r\n"));
    }
    for id in [4, 2, 6] {
        client.check(format!("bury {id} {}\r\n", 100 - id), "BURIED\r\n");
    }
    restart(&mut server, &launch, true);
    let mut client = server.connect();
    for id in [1, 5, 3] {
        client.check(format!("reserve-job {id}\r\nbury {id} 0\r\n"), format!("RESERVED {id} 0\r\n\r\nBURIED\r\n"));
    }
    restart(&mut server, &launch, false);
    restart(&mut server, &launch, true);
    let mut client = server.connect();
    for id in [4, 2, 6, 1, 5, 3] {
        client.check("peek-buried\r\nkick 1\r\n", format!("FOUND {id} 0\r\n\r\nKICKED 1\r\n"));
    }
    client.check("peek-buried\r\n", "NOT_FOUND\r\n");
}

in_both_modes!(ids_stay_dense_over_kills_also_when_everything_was_deleted);
/// Those of several processes are not dense, but rise: see [`testing::ids`].
fn ids_stay_dense_over_kills_also_when_everything_was_deleted(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path()).with(["-s", "65536"]);
    let mut server = launch.start();
    let mut next = 1;
    for round in 0..10 {
        let mut client = server.connect();
        for _ in 0..3 {
            assert_eq!(client.put(0, 0, 60, &[b'x'; 1000]), next);
            next += 1;
        }
        if round % 2 == 0 {
            for id in next - 3..next {
                client.check(format!("delete {id}\r\n"), "DELETED\r\n");
            }
        }
        restart(&mut server, &launch, round % 3 != 0);
    }
}

in_both_modes!(a_pause_and_reservations_do_not_survive);
fn a_pause_and_reservations_do_not_survive(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path());
    let mut server = launch.start();
    server.check("put 0 0 60 0\r\n\r\npause-tube default 1000\r\n", "INSERTED 1\r\nPAUSED\r\n");
    restart(&mut server, &launch, true);
    server.check("reserve-with-timeout 0\r\n", "RESERVED 1 0\r\n\r\n");
}

in_both_modes!(a_job_released_with_delay_and_the_deletion_of_another_survive);
fn a_job_released_with_delay_and_the_deletion_of_another_survive(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path());
    let mut server = launch.start();
    server.check(
        "put 0 0 60 0\r\n\r\nput 0 0 60 0\r\n\r\nreserve\r\nrelease 1 1 1000\r\nreserve\r\ndelete 2\r\n",
        "INSERTED 1\r\nINSERTED 2\r\nRESERVED 1 0\r\n\r\nRELEASED\r\nRESERVED 2 0\r\n\r\nDELETED\r\n",
    );
    restart(&mut server, &launch, true);
    let mut client = server.connect();
    client.check("stats-job 2\r\n", "NOT_FOUND\r\n");
    client.check_stats("stats-job 1", &[("state", "delayed"), ("delay", "1000"), ("pri", "1")]);
}

in_both_modes!(segments_are_exactly_as_large_as_asked_for);
fn segments_are_exactly_as_large_as_asked_for(mode: Mode) {
    let folder = Folder::new();
    for (size, body) in [(65_536, 1000), (10_000, 100), (10_485_760, 60_000)] {
        let directory = folder.join(size.to_string());
        fs::create_dir(&directory).expect("a directory");
        let server = mode.tubes().log_in(&directory).with(["-s", &size.to_string()]).start();
        let mut client = server.connect();
        for _ in 0..200 {
            client.put(0, 0, 60, &vec![b'x'; body]);
        }
        client.check_stats("stats", &[("binlog-max-size", &size.to_string())]);
        let found = segments(&directory);
        assert!(found.len() > 1, "{found:?}");
        for path in &found {
            assert_eq!(fs::metadata(path).expect("a segment").len(), size, "{}", path.display());
        }
        // Ten digits, from 1, without gaps.
        for (number, path) in (1..).zip(&found) {
            assert_eq!(path.file_name().and_then(|name| name.to_str()), Some(format!("{number:010}.log").as_str()));
        }
    }
}

in_both_modes!(a_record_that_does_not_fit_gets_a_segment_of_its_size);
fn a_record_that_does_not_fit_gets_a_segment_of_its_size(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path()).with(["-s", "4096"]);
    let mut server = launch.start();
    let mut client = server.connect();
    for id in 1..=3 {
        assert_eq!(client.put(0, 0, 60, &vec![b'a'; 20_000]), 2 * id - 1);
        assert_eq!(client.put(0, 0, 60, b"small"), 2 * id);
    }
    let sizes: Vec<u64> =
        segments(folder.path()).iter().map(|path| fs::metadata(path).expect("a segment").len()).collect();
    assert!(sizes.iter().all(|size| *size == 4096 || (20_000..21_000).contains(size)), "{sizes:?}");
    restart(&mut server, &launch, true);
    server.connect().check_stats("stats", &[("current-jobs-ready", "6")]);
}

in_both_modes!(the_figures_of_the_log_are_shown);
fn the_figures_of_the_log_are_shown(mode: Mode) {
    let folder = Folder::new();
    let server = mode.tubes().log_in(folder.path()).with(["-s", "65536"]).start();
    let mut client = server.connect();
    client.check_stats(
        "stats",
        &[("binlog-oldest-index", "1"), ("binlog-current-index", "1"), ("binlog-records-migrated", "0")],
    );
    let records =
        |client: &mut Client| client.stat("stats", "binlog-records-written").parse::<u64>().expect("a number");
    let before = records(&mut client);
    client.check(
        "put 0 0 60 0\r\n\r\nreserve\r\nbury 1 0\r\nkick 1\r\n",
        "INSERTED 1\r\nRESERVED 1 0\r\n\r\nBURIED\r\nKICKED 1\r\n",
    );
    client.check_stats("stats-job 1", &[("file", "1")]);
    // put, bury and kick are logged, reserve is not.
    assert_eq!(records(&mut client) - before, 3);
    for _ in 0..100 {
        client.put(0, 0, 60, &[b'x'; 2000]);
    }
    let current: u64 = client.stat("stats", "binlog-current-index").parse().expect("a number");
    assert_eq!(current, segments(folder.path()).len() as u64);
    let file: u64 = client.stat("stats-job 101", "file").parse().expect("a number");
    assert!((2..=current).contains(&file), "{file} of {current}");
}

in_both_modes!(after_many_puts_and_deletes_the_log_is_small_again);
fn after_many_puts_and_deletes_the_log_is_small_again(mode: Mode) {
    let folder = Folder::new();
    let server = mode.tubes().log_in(folder.path()).with(["-s", "65536"]).start();
    let mut client = server.connect();
    for id in 1..=2000 {
        assert_eq!(client.put(0, 0, 60, &[b'x'; 1000]), id);
    }
    let most = segments(folder.path()).len();
    assert!(most > 30, "{most}");
    for id in 1..=2000 {
        client.check(format!("delete {id}\r\n"), "DELETED\r\n");
    }
    // At most 3 times the live jobs (none) and 2 segments; idle turns go on until it fits.
    wait_until("old segments are dropped", || segments(folder.path()).len() <= 3);
    let oldest: u64 = client.stat("stats", "binlog-oldest-index").parse().expect("a number");
    // Of several processes it is the lowest of all logs, and the other owner has hardly begun its own.
    assert!(if mode == Mode::Single { oldest > 30 } else { oldest == 1 }, "{oldest}");
    assert_eq!(client.put(0, 0, 60, b"a"), 2001);
}

in_both_modes!(endless_changes_of_one_job_do_not_grow_the_log);
fn endless_changes_of_one_job_do_not_grow_the_log(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path()).with(["-s", "16384"]);
    let mut server = launch.start();
    let mut client = server.connect();
    client.put(0, 0, 600, &[b'j'; 3000]);
    client.check("reserve\r\n", [b"RESERVED 1 3000\r\n", &[b'j'; 3000][..], b"\r\n"].concat());
    for _ in 0..2000 {
        client.check(
            "bury 1 5\r\nreserve-job 1\r\n",
            [b"BURIED\r\nRESERVED 1 3000\r\n", &[b'j'; 3000][..], b"\r\n"].concat(),
        );
    }
    let count = segments(folder.path()).len();
    assert!(count <= 6, "{count} segments for one job");
    let migrated: u64 = client.stat("stats", "binlog-records-migrated").parse().expect("a number");
    assert!(migrated > 0);
    restart(&mut server, &launch, true);
    server.connect().check_stats("stats-job 1", &[("state", "ready"), ("pri", "5")]);
}

in_both_modes!(a_failed_allocation_refuses_a_put_and_service_goes_on);
fn a_failed_allocation_refuses_a_put_and_service_goes_on(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path()).with(["-s", "16384"]);
    let mut server = launch.clone().through(FULL_ONCE).start();
    let mut client = server.connect();
    let (mut accepted, mut refused) = (Vec::new(), 0);
    for _ in 0..100 {
        client.send([&b"put 0 0 60 4000\r\n"[..], &[b'x'; 4000], b"\r\n"].concat());
        match client.line().as_str() {
            "OUT_OF_MEMORY" => refused += 1,
            line => accepted.push(line.strip_prefix("INSERTED ").expect("accepted").parse::<u64>().expect("an id")),
        }
    }
    // The spare may cover for one failure; either way no put fails but for want of space, and ids stay dense.
    assert!(refused <= 1, "{refused} puts refused for one failure");
    assert_eq!(accepted, (1..=accepted.len() as u64).collect::<Vec<_>>());
    client.check_stats("stats", &[("current-jobs-ready", &accepted.len().to_string())]);
    restart(&mut server, &launch, true);
    server.connect().check_stats("stats", &[("current-jobs-ready", &accepted.len().to_string())]);
}

in_both_modes!(while_allocations_fail_puts_are_refused_and_nothing_else_changes);
fn while_allocations_fail_puts_are_refused_and_nothing_else_changes(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path()).with(["-s", "16384"]);
    let mut server = launch.clone().through(FULL_LATER).start();
    let mut client = server.connect();
    let accepted = fill(&mut client);
    client.check(format!("peek {}\r\n", accepted + 1), "NOT_FOUND\r\n");
    client
        .check_stats("stats", &[("total-jobs", &accepted.to_string()), ("current-jobs-ready", &accepted.to_string())]);
    restart(&mut server, &launch, true);
    let mut client = server.connect();
    client.check_stats("stats", &[("current-jobs-ready", &accepted.to_string())]);
    assert_eq!(client.put(0, 0, 60, &[b'x'; 4000]), accepted + 1);
}

in_both_modes!(without_space_for_a_change_it_is_refused_and_the_job_stays_where_it_was);
fn without_space_for_a_change_it_is_refused_and_the_job_stays_where_it_was(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path()).with(["-s", "16384"]).through(FULL_LATER);
    let server = launch.start();
    let mut client = server.connect();
    let accepted = fill(&mut client);
    let body = [b'x'; 4000];
    let reserved = |id: u64| [format!("RESERVED {id} 4000\r\n").as_bytes(), &body, b"\r\n"].concat();
    // One record for a change of state was set aside for each job; what is left of the last segment gives some more.
    let mut released = 0;
    loop {
        client.check("reserve-job 1\r\n", reserved(1));
        client.send(format!("release 1 {released} 0\r\n"));
        match client.line().as_str() {
            "RELEASED" => released += 1,
            line => {
                assert_eq!(line, "OUT_OF_MEMORY");
                break;
            }
        }
        assert!(released < 10_000, "there is always space for one more release");
    }
    assert!(released > 0);
    // Refused: it is still held, with the priority of the last release that was accepted.
    let priority = (released - 1).to_string();
    client.check_stats(
        "stats-job 1",
        &[("state", "reserved"), ("pri", &priority), ("releases", &released.to_string()), ("buries", "0")],
    );
    client.check("bury 1 77\r\ntouch 1\r\n", "OUT_OF_MEMORY\r\nTOUCHED\r\n");
    client.check_stats("stats-job 1", &[("state", "reserved"), ("pri", &priority), ("buries", "0")]);
    // Another job has its record still: buried once, and then it stays buried.
    client.check("reserve-job 2\r\n", reserved(2));
    client.check("bury 2 5\r\nkick 10\r\nkick-job 2\r\n", "BURIED\r\nOUT_OF_MEMORY\r\nOUT_OF_MEMORY\r\n");
    client.check_stats("stats-job 2", &[("state", "buried"), ("pri", "5"), ("kicks", "0")]);
    // Deleting works, held or buried.
    client.check("delete 1\r\ndelete 2\r\n", "DELETED\r\nDELETED\r\n");
    client.check_stats("stats", &[("current-jobs-ready", &(accepted - 2).to_string()), ("current-jobs-buried", "0")]);
}

/// Puts jobs of 4000 bytes until one is refused, and returns how many were taken.
#[track_caller]
fn fill(client: &mut Client) -> u64 {
    for accepted in 0..100_000 {
        client.send([&b"put 0 0 600 4000\r\n"[..], &[b'x'; 4000], b"\r\n"].concat());
        match client.line().as_str() {
            "OUT_OF_MEMORY" => {
                assert!(accepted > 3, "only {accepted} jobs fit");
                return accepted;
            }
            line => assert_eq!(line, format!("INSERTED {}", accepted + 1)),
        }
    }
    panic!("the disk is never full");
}

in_both_modes!(on_a_full_disk_bury_release_and_delete_work_and_puts_resume);
fn on_a_full_disk_bury_release_and_delete_work_and_puts_resume(mode: Mode) {
    let folder = Folder::new();
    // A file system of one mebibyte that only this server sees.
    let mount = "mount -t tmpfs -o size=1m,mode=700 none \"$0\" && exec \"$@\"";
    let inside = [
        "unshare".as_ref(),
        "--mount".as_ref(),
        "sh".as_ref(),
        "-c".as_ref(),
        mount.as_ref(),
        folder.path().as_os_str(),
    ];
    let server = mode.tubes().log_in(folder.path()).with(["-s", "65536"]).through(inside).start();
    let mut client = server.connect();
    let accepted = fill(&mut client);
    // Still full.
    client.send([&b"put 0 0 600 4000\r\n"[..], &[b'x'; 4000], b"\r\n"].concat());
    client.expect("OUT_OF_MEMORY\r\n");
    // Every job has a record for one change of state and one for its end.
    for id in 1..=accepted {
        client.check(
            format!("reserve-job {id}\r\n"),
            [format!("RESERVED {id} 4000\r\n").as_bytes(), &[b'x'; 4000], b"\r\n"].concat(),
        );
        let (command, answer) = [("bury", "BURIED"), ("release", "RELEASED")][usize::from(id % 2 == 0)];
        let arguments = if command == "bury" { "9" } else { "9 0" };
        client.check(format!("{command} {id} {arguments}\r\n"), format!("{answer}\r\n"));
    }
    for id in 1..=accepted {
        client.check(format!("delete {id}\r\n"), "DELETED\r\n");
    }
    client.check_stats("stats", &[("current-jobs-ready", "0"), ("current-jobs-buried", "0")]);
    // Service resumes by itself.
    wait_until("a put is accepted", || {
        client.send([&b"put 0 0 600 4000\r\n"[..], &[b'x'; 4000], b"\r\n"].concat());
        client.line() != "OUT_OF_MEMORY"
    });
    client.check(format!("stats-job {accepted}\r\n"), "NOT_FOUND\r\n");
    client.check_stats(&format!("stats-job {}", accepted + 1), &[("state", "ready")]);
}

in_both_modes!(a_limit_on_file_sizes_is_a_full_disk);
fn a_limit_on_file_sizes_is_a_full_disk(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path()).with(["-s", "65536", "-z", "100000"]);
    let server = launch.through(["prlimit", "--fsize=65536"]).start();
    let mut client = server.connect();
    // Too large for a segment of the size that is allowed.
    client.send([&b"put 0 0 60 90000\r\n"[..], &vec![b'x'; 90_000], b"\r\n"].concat());
    client.expect("OUT_OF_MEMORY\r\n");
    for id in 1..=40 {
        assert_eq!(client.put(0, 0, 60, &[b'x'; 4000]), id);
    }
}

in_both_modes!(with_f_0_no_reply_leaves_before_its_sync);
fn with_f_0_no_reply_leaves_before_its_sync(mode: Mode) {
    let slow = [
        "strace",
        "-D",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=fdatasync",
        "-e",
        "inject=fdatasync:delay_enter=400000",
    ];
    let time = |sync: &[&str]| {
        let folder = Folder::new();
        let server = mode.tubes().log_in(folder.path()).with(sync).through(slow).start();
        let mut client = server.connect();
        // Served, so what a start syncs is behind it.
        client.check("list-tube-used\r\n", "USING default\r\n");
        let start = Instant::now();
        client.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
        start.elapsed()
    };
    assert!(time(&["-f", "0"]) >= Duration::from_millis(400));
    assert!(time(&["-f", "10000"]) < Duration::from_millis(400));
    assert!(time(&["-F"]) < Duration::from_millis(400));
}

/// About single mode: of several processes the owner alone ends, and is started again.
#[test]
fn a_failed_sync_is_no_success_and_ends_the_server_with_10() {
    let mode = Mode::Single;
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path()).with(["-f", "0"]);
    let failing = [
        "strace",
        "-D",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=fdatasync",
        "-e",
        "inject=fdatasync:error=EIO:when=4+",
    ];
    let mut server = launch.clone().through(failing).start();
    let mut client = server.connect();
    let mut acknowledged = 0;
    loop {
        client.send("put 0 0 60 1\r\na\r\n");
        let answered = client.can_read_within(testing::process::OUTER_LIMIT);
        assert!(answered, "neither an answer nor an end");
        // The connection ends without an answer, or with one that claims nothing.
        let rest = if acknowledged < 20 && !has_ended(&client) { client.line() } else { String::new() };
        if rest == format!("INSERTED {}", acknowledged + 1) {
            acknowledged += 1;
            assert!(acknowledged < 20, "syncs fail, and puts go on");
            continue;
        }
        assert!(rest.is_empty() || rest == "INTERNAL_ERROR", "{rest:?}");
        break;
    }
    let start = Instant::now();
    let status = server.wait();
    assert_eq!(status.code(), Some(10), "{}", server.stderr());
    // Promised within 1 s, tested at ten times that.
    assert!(start.elapsed() < Duration::from_secs(10));
    let text = server.stderr();
    assert!(text.contains(".log"), "the file is named: {text}");
    // What was acknowledged is there.
    let server = launch.start();
    let mut client = server.connect();
    for id in 1..=acknowledged {
        client.check(format!("peek {id}\r\n"), format!("FOUND {id} 1\r\na\r\n"));
    }
}

/// Whether the next thing to read is the end of the stream.
fn has_ended(client: &Client) -> bool {
    let mut byte = [0; 1];
    matches!(rustix::net::recv(client, &mut byte[..], rustix::net::RecvFlags::PEEK), Ok((0, _)) | Err(_))
}

in_both_modes!(damaged_data_is_refused_with_11_and_named);
fn damaged_data_is_refused_with_11_and_named(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path()).with(["-s", "16384", "-f", "0"]);
    let mut server = launch.start();
    let mut client = server.connect();
    for _ in 0..50 {
        client.put(0, 0, 60, &[b'x'; 1000]);
    }
    server.terminate();
    let first = segments(folder.path())[0].clone();
    let before = fs::read(&first).expect("a segment");
    let mut bytes = before.clone();
    bytes[5000] ^= 1;
    fs::write(&first, &bytes).expect("one bit flipped");
    let finished = launch.finish();
    assert_eq!(finished.code, Some(11), "{finished:?}");
    assert!(finished.stderr.contains("0000000001.log"), "the file is named: {finished:?}");
    // The check says the same and only reads.
    let check = Launch::new(env!("CARGO_BIN_EXE_tenure")).with(["check".as_ref(), folder.path().as_os_str()]);
    let check = check.on_given_address(testing::process::Address::Unix("/nowhere".into()));
    assert_eq!(check.finish().code, Some(11), "{:?}", check.finish());
    assert_eq!(fs::read(&first).expect("a segment"), bytes);
    // With the bit back, all is there.
    fs::write(&first, &before).expect("repaired by hand");
    assert_eq!(check.finish().code, Some(0), "{:?}", check.finish());
    launch.start().connect().check_stats("stats", &[("current-jobs-ready", "50")]);
}

in_both_modes!(repair_saves_what_can_be_read_and_the_server_starts_again);
fn repair_saves_what_can_be_read_and_the_server_starts_again(mode: Mode) {
    let folder = Folder::new();
    let directory = folder.join("data");
    let launch = mode.tubes().log_in(&directory).with(["-s", "16384", "-f", "0"]);
    fs::create_dir(&directory).expect("a directory");
    let mut server = launch.start();
    let mut client = server.connect();
    for id in 1..=50 {
        assert_eq!(client.put(0, 0, 60, format!("{id:01000}").as_bytes()), id);
    }
    server.terminate();
    let first = segments(&directory)[0].clone();
    let mut bytes = fs::read(&first).expect("a segment");
    // In the body of the fifth job.
    bytes[4700] ^= 1;
    fs::write(&first, &bytes).expect("one bit flipped");
    assert_eq!(launch.finish().code, Some(11));
    let repaired = Command::new(env!("CARGO_BIN_EXE_tenure")).args(["tubes", "repair"]).arg(&directory).output();
    let repaired = repaired.expect("the program runs");
    let text = String::from_utf8_lossy(&repaired.stdout);
    assert!(repaired.status.success(), "{repaired:?}");
    assert!(text.contains("0000000001.log"), "what was dropped is listed: {text}");
    let server = launch.start();
    let mut client = server.connect();
    client.check_stats("stats", &[("current-jobs-ready", "49")]);
    for id in 1..=50 {
        let expected = if id == 5 { "NOT_FOUND\r\n".to_owned() } else { format!("FOUND {id} 1000\r\n{id:01000}\r\n") };
        client.check(format!("peek {id}\r\n"), expected);
    }
    // Ids may have been lost with what was dropped; none is given twice.
    assert!(client.put(0, 0, 60, b"a") > 50);
}

in_both_modes!(a_directory_in_use_is_refused_with_10);
fn a_directory_in_use_is_refused_with_10(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path());
    let server = launch.start();
    server.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
    let finished = launch.finish();
    assert_eq!(finished.code, Some(10), "{finished:?}");
    assert!(finished.stderr.contains(&server.pid().to_string()), "the holder is named: {finished:?}");
    // Through a link too.
    let others = Folder::new();
    symlink(folder.path(), others.join("link")).expect("a link");
    assert_eq!(mode.tubes().log_in(&others.join("link")).finish().code, Some(10));
    server.check("put 0 0 60 1\r\na\r\n", "INSERTED 2\r\n");
}

in_both_modes!(a_place_that_is_no_directory_is_refused_with_10);
fn a_place_that_is_no_directory_is_refused_with_10(mode: Mode) {
    let folder = Folder::new();
    let file = folder.join("file");
    fs::write(&file, "precious").expect("a file");
    let finished = mode.tubes().log_in(&file).finish();
    assert_eq!(finished.code, Some(10), "{finished:?}");
    assert!(finished.stderr.contains(&*file.to_string_lossy()), "the path is named: {finished:?}");
    assert_eq!(fs::read_to_string(&file).expect("untouched"), "precious");
}

/// The names and contents of all files below `folder`.
#[track_caller]
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = fs::read(&path).expect("a file");
                found.push((path, bytes));
            }
        }
    }
    found.sort();
    found
}

/// About single mode: the other direction is in `multi/life.rs`.
#[test]
fn a_directory_of_single_mode_with_owners_is_refused_with_12() {
    let mode = Mode::Single;
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path());
    let mut server = launch.start();
    server.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
    server.terminate();
    let before = contents(folder.path());
    let finished = launch.clone().with(["--owners", "2"]).finish();
    assert_eq!(finished.code, Some(12), "{finished:?}");
    assert!(finished.stderr.contains("reshard"), "the command that converts is named: {finished:?}");
    assert_eq!(contents(folder.path()), before, "refused before anything is written");
    launch.start().check("peek 1\r\n", "FOUND 1 1\r\na\r\n");
}

in_both_modes!(a_directory_with_the_originals_files_is_refused_with_12);
fn a_directory_with_the_originals_files_is_refused_with_12(mode: Mode) {
    let folder = Folder::new();
    fs::write(folder.join("binlog.1"), [7, 0, 0, 0]).expect("a file");
    let finished = mode.tubes().log_in(folder.path()).finish();
    assert_eq!(finished.code, Some(12), "{finished:?}");
    assert!(finished.stderr.contains("import beanstalkd"), "the import command is named: {finished:?}");
    assert_eq!(contents(folder.path()), [(folder.join("binlog.1"), vec![7, 0, 0, 0])]);
}

in_both_modes!(a_newer_format_is_refused_with_12);
fn a_newer_format_is_refused_with_12(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path());
    launch.start().terminate();
    let manifest = folder.join("manifest.toml");
    let text = fs::read_to_string(&manifest).expect("a manifest");
    assert!(text.contains("format = 1"), "{text}");
    fs::write(&manifest, text.replace("format = 1", "format = 2")).expect("a manifest of the future");
    let finished = launch.finish();
    assert_eq!(finished.code, Some(12), "{finished:?}");
}
