//! Commands over several owners and frontends, all processes alive.

use std::collections::HashSet;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use testing::process::wait_until;

use super::super::wait_for_waiting;
use super::{AT_0, AT_1, Multi, figures, put_into, reserved, watch};

/// The keys of `stats`, exactly.
const STATS: [&str; 50] = [
    "current-jobs-urgent",
    "current-jobs-ready",
    "current-jobs-reserved",
    "current-jobs-delayed",
    "current-jobs-buried",
    "cmd-put",
    "cmd-peek",
    "cmd-peek-ready",
    "cmd-peek-delayed",
    "cmd-peek-buried",
    "cmd-reserve",
    "cmd-reserve-with-timeout",
    "cmd-delete",
    "cmd-release",
    "cmd-use",
    "cmd-watch",
    "cmd-ignore",
    "cmd-bury",
    "cmd-kick",
    "cmd-touch",
    "cmd-stats",
    "cmd-stats-job",
    "cmd-stats-tube",
    "cmd-list-tubes",
    "cmd-list-tube-used",
    "cmd-list-tubes-watched",
    "cmd-pause-tube",
    "job-timeouts",
    "total-jobs",
    "max-job-size",
    "current-tubes",
    "current-connections",
    "current-producers",
    "current-workers",
    "current-waiting",
    "total-connections",
    "pid",
    "version",
    "rusage-utime",
    "rusage-stime",
    "uptime",
    "binlog-oldest-index",
    "binlog-current-index",
    "binlog-records-migrated",
    "binlog-records-written",
    "binlog-max-size",
    "draining",
    "id",
    "hostname",
    "os",
];

#[test]
fn a_job_lives_at_the_owner_of_its_tube_whichever_frontend_is_asked() {
    // T3, T6, T10, T13, T23, T24: ids rise over all owners and lead to theirs.
    let multi = Multi::start();
    let (mut a, mut b) = (multi.connect_to(0), multi.connect_to(1));
    let mut last = 0;
    for (owner, tubes) in [(0, AT_0), (1, AT_1)] {
        for tube in tubes {
            let id = put_into(&mut a, tube, 10, tube);
            assert!(id > last, "{id} after {last}");
            last = id;
            assert_eq!(id % 64 % 2, owner, "{id} in {tube}");
            let bytes = tube.len();
            b.check(format!("peek {id}\r\n"), format!("FOUND {id} {bytes}\r\n{tube}\r\n"));
            b.check(format!("reserve-job {id}\r\n"), format!("RESERVED {id} {bytes}\r\n{tube}\r\n"));
            a.check(
                format!("delete {id}\r\nrelease {id} 0 0\r\nbury {id} 0\r\ntouch {id}\r\nreserve-job {id}\r\n"),
                "NOT_FOUND\r\n".repeat(5),
            );
            b.check(format!("touch {id}\r\nbury {id} 5\r\n"), "TOUCHED\r\nBURIED\r\n");
            a.check("peek-buried\r\n", format!("FOUND {id} {bytes}\r\n{tube}\r\n"));
            a.check(format!("kick-job {id}\r\n"), "KICKED\r\n");
            let tube_shown = format!("\"{tube}\"");
            let shown = [("tube", &*tube_shown), ("state", "ready"), ("pri", "5"), ("reserves", "1"), ("buries", "1")];
            b.check_stats(&format!("stats-job {id}"), &shown);
            b.check(format!("reserve-job {id}\r\n"), format!("RESERVED {id} {bytes}\r\n{tube}\r\n"));
            b.check(format!("release {id} 7 1000\r\n"), "RELEASED\r\n");
            a.check("peek-delayed\r\nkick 1\r\n", format!("FOUND {id} {bytes}\r\n{tube}\r\nKICKED 1\r\n"));
            a.check_stats(&format!("stats-tube {tube}"), &[("current-jobs-ready", "1"), ("total-jobs", "1")]);
            a.check(
                format!("watch {tube}\r\nreserve\r\n"),
                format!("WATCHING 2\r\nRESERVED {id} {bytes}\r\n{tube}\r\n"),
            );
            a.check(format!("delete {id}\r\nignore {tube}\r\n"), "DELETED\r\nWATCHING 1\r\n");
            b.check(format!("peek {id}\r\ndelete {id}\r\n"), "NOT_FOUND\r\n".repeat(2));
        }
    }
    // Only where somebody names it a tube exists; asking never makes one (T11).
    b.check("stats-tube left\r\npause-tube left 1\r\nstats-tube right\r\n", "NOT_FOUND\r\n".repeat(3));
}

#[test]
fn ids_are_unique_and_those_of_a_tube_agree_in_their_partition() {
    // T24, GT4.
    let multi = Multi::start();
    let address = multi.server.address().clone();
    let all: Vec<(usize, u64)> = std::thread::scope(|scope| {
        let producers: Vec<_> = (0..4)
            .map(|_| {
                let mut client = testing::client::Client::connect(&address).expect("a connection");
                scope.spawn(move || {
                    let names = [AT_0, AT_1].concat();
                    let mut ids = Vec::new();
                    for round in 0..100 {
                        let tube = round % names.len();
                        ids.push((tube, put_into(&mut client, names[tube], 0, "x")));
                    }
                    // What one client is given rises, whichever owner gives it.
                    assert!(ids.is_sorted_by_key(|(_, id)| *id), "{ids:?}");
                    ids
                })
            })
            .collect();
        producers.into_iter().flat_map(|producer| producer.join().expect("a producer")).collect()
    });
    let unique: HashSet<u64> = all.iter().map(|(_, id)| *id).collect();
    assert_eq!(unique.len(), 400);
    let partitions: HashSet<(usize, u64)> = all.iter().map(|(tube, id)| (*tube, id % 64)).collect();
    assert_eq!(partitions.len(), 6, "{partitions:?}");
    multi.connect().check_stats("stats", &[("total-jobs", "400"), ("current-jobs-ready", "400"), ("cmd-put", "400")]);
}

#[test]
fn over_several_owners_the_smallest_priority_and_id_comes_first() {
    // T7, T14. An owner that the machine holds up for more than 100 ms does not hold up the others, so on a busy machine
    // a round may be out of order; but not one after the other, and every round hands each job out once.
    let multi = Multi::start();
    let (mut a, mut b) = (multi.connect_to(0), multi.connect_to(1));
    let mut worker = multi.connect();
    let names = [AT_0, AT_1].concat();
    watch(&mut worker, &names);
    let mut rounds = 0;
    loop {
        let mut jobs = Vec::new();
        for number in 0..18_u32 {
            let client = if number % 2 == 0 { &mut a } else { &mut b };
            let priority = (number * 7) % 5;
            let tube = names[number as usize * 5 % names.len()];
            jobs.push((priority, put_into(client, tube, priority, "x")));
        }
        let mut got = Vec::new();
        for _ in 0..jobs.len() {
            worker.send("reserve-with-timeout 30\r\n");
            got.push(reserved(&mut worker).0);
        }
        worker.check("reserve-with-timeout 0\r\n", "TIMED_OUT\r\n");
        jobs.sort_unstable();
        let wanted: Vec<u64> = jobs.into_iter().map(|(_, id)| id).collect();
        for id in &got {
            worker.check(format!("delete {id}\r\n"), "DELETED\r\n");
        }
        if got == wanted {
            break;
        }
        let (got_set, wanted_set): (HashSet<_>, HashSet<_>) = (got.iter().collect(), wanted.iter().collect());
        assert_eq!(got_set, wanted_set);
        rounds += 1;
        assert!(rounds < 10, "never in order; last {got:?} instead of {wanted:?}");
    }
}

#[test]
fn each_job_goes_to_one_of_many_workers_of_all_owners() {
    // T14, GT3.
    let multi = Multi::start();
    let names = [AT_0, AT_1].concat();
    let mut producer = multi.connect();
    let put: HashSet<u64> = (0..300).map(|n| put_into(&mut producer, names[n % names.len()], 0, "x")).collect();
    let workers: Vec<_> = (0..4).map(|number| multi.connect_to(number % 2)).collect();
    let take_all = |mut worker: testing::client::Client| {
        let mut taken = Vec::new();
        watch(&mut worker, &[AT_0, AT_1].concat());
        loop {
            worker.send("reserve-with-timeout 0\r\n");
            if worker.can_read_within(Duration::from_secs(60)) {
                let line = worker.line();
                if line == "TIMED_OUT" {
                    return taken;
                }
                let id: u64 = line.split(' ').nth(1).and_then(|id| id.parse().ok()).expect("RESERVED id bytes");
                worker.expect("x\r\n");
                worker.check(format!("delete {id}\r\n"), "DELETED\r\n");
                taken.push(id);
            }
        }
    };
    let mut taken: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|worker| scope.spawn(move || take_all(worker))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a worker")).collect()
    });
    taken.extend(take_all(multi.connect()));
    assert_eq!(taken.len(), put.len());
    assert_eq!(taken.into_iter().collect::<HashSet<u64>>(), put);
    multi.connect().check_stats("stats", &[("current-jobs-ready", "0"), ("current-jobs-reserved", "0")]);
}

#[test]
fn a_job_serves_one_of_those_that_wait_at_all_owners() {
    // T7, T14: at most one result for a reserve, and none left behind.
    let multi = Multi::start();
    let mut monitor = multi.connect();
    for tube in ["right", "left", "default"] {
        let mut waiters = [multi.connect_to(0), multi.connect_to(1)];
        for waiter in &mut waiters {
            watch(waiter, &["left", "right"]);
            waiter.send("reserve\r\nlist-tube-used\r\n");
        }
        wait_for_waiting(&mut monitor, 2);
        let first = put_into(&mut monitor, tube, 0, "x");
        let mut served = None;
        wait_until("one is served", || {
            served = waiters.iter().position(|waiter| waiter.can_read_within(Duration::ZERO));
            served.is_some()
        });
        let served = served.expect("one is served");
        assert_eq!(reserved(&mut waiters[served]), (first, "x".to_owned()));
        waiters[served].expect("USING default\r\n");
        wait_for_waiting(&mut monitor, 1);
        assert!(!waiters[1 - served].can_read_within(Duration::ZERO));
        let second = put_into(&mut monitor, if tube == "left" { "right" } else { "left" }, 0, "y");
        assert_eq!(reserved(&mut waiters[1 - served]), (second, "y".to_owned()));
        waiters[1 - served].expect("USING default\r\n");
        waiters[served].check(format!("delete {second}\r\ndelete {first}\r\n"), "NOT_FOUND\r\nDELETED\r\n");
        waiters[1 - served].check(format!("delete {second}\r\n"), "DELETED\r\n");
    }
}

#[test]
fn a_reserve_over_several_owners_times_out_and_leaves_nothing_behind() {
    // T7, T22.
    let multi = Multi::start();
    let (mut client, mut producer) = (multi.connect_to(0), multi.connect_to(1));
    watch(&mut client, &["left", "right"]);
    client.check("reserve-with-timeout 0\r\n", "TIMED_OUT\r\n");
    let start = Instant::now();
    client.check("reserve-with-timeout 1\r\n", "TIMED_OUT\r\n");
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(10), "{took:?}");
    // The wait is withdrawn everywhere: another one gets these, and this one when it asks again.
    let jobs = [put_into(&mut producer, "left", 1, "l"), put_into(&mut producer, "right", 2, "r")];
    let mut other = multi.connect();
    watch(&mut other, &["left"]);
    other.send("reserve-with-timeout 30\r\n");
    assert_eq!(reserved(&mut other), (jobs[0], "l".to_owned()));
    client.send("reserve-with-timeout 30\r\n");
    assert_eq!(reserved(&mut client), (jobs[1], "r".to_owned()));
    client.check_stats("stats", &[("current-waiting", "0"), ("current-jobs-reserved", "2")]);
}

#[test]
fn a_wait_at_all_owners_ends_when_a_job_held_at_one_is_due_soon() {
    // T8, GT5.
    let multi = Multi::start();
    for tube in ["left", "right"] {
        let mut client = multi.connect();
        watch(&mut client, &["left", "right"]);
        client.check(format!("use {tube}\r\n"), format!("USING {tube}\r\n"));
        let id = client.put(0, 0, 3, b"x");
        client.send("reserve\r\n");
        assert_eq!(reserved(&mut client), (id, "x".to_owned()));
        let start = Instant::now();
        client.check("reserve\r\n", "DEADLINE_SOON\r\n");
        let took = start.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
        // Nobody comes for it, so it is due, counts it, and goes to another.
        let mut other = multi.connect();
        watch(&mut other, &[tube]);
        other.send("reserve-with-timeout 30\r\n");
        assert_eq!(reserved(&mut other), (id, "x".to_owned()));
        other.check_stats(&format!("stats-job {id}"), &[("timeouts", "1"), ("reserves", "2")]);
        other.check(format!("delete {id}\r\n"), "DELETED\r\n");
    }
    multi.connect().check_stats("stats", &[("job-timeouts", "2")]);
}

#[test]
fn delays_and_pauses_hold_at_every_owner() {
    // GT5, T23.
    let multi = Multi::start();
    let (mut a, mut b) = (multi.connect_to(0), multi.connect_to(1));
    for tube in ["left", "right"] {
        let mut worker = multi.connect();
        watch(&mut worker, &["left", "right"]);
        let start = Instant::now();
        a.check(format!("use {tube}\r\n"), format!("USING {tube}\r\n"));
        let id = a.put(0, 1, 60, b"x");
        worker.send("reserve\r\n");
        assert_eq!(reserved(&mut worker).0, id);
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(20), "{took:?}");
        worker.check(format!("delete {id}\r\n"), "DELETED\r\n");
        b.check(format!("pause-tube {tube} 1000\r\n"), "PAUSED\r\n");
        let id = a.put(0, 0, 60, b"y");
        worker.check("reserve-with-timeout 0\r\n", "TIMED_OUT\r\n");
        worker.send("reserve\r\n");
        wait_for_waiting(&mut a, 1);
        b.check(format!("pause-tube {tube} 0\r\n"), "PAUSED\r\n");
        assert_eq!(reserved(&mut worker).0, id);
        worker.check(format!("delete {id}\r\n"), "DELETED\r\n");
    }
}

#[test]
fn tubes_are_listed_in_order_of_creation_over_all_owners() {
    // T16, T21.
    let multi = Multi::start();
    let (mut a, mut b) = (multi.connect_to(0), multi.connect_to(1));
    let names = ["right", "left", "jobs", "two", "video", "one"];
    for (number, name) in names.iter().enumerate() {
        watch(if number % 2 == 0 { &mut a } else { &mut b }, &[name]);
    }
    let expected = format!("---\n- default\n- {}\n", names.join("\n- "));
    assert_eq!(a.text("list-tubes"), expected);
    assert_eq!(b.text("list-tubes"), expected);
    assert_eq!(a.text("list-tubes-watched"), "---\n- default\n- right\n- jobs\n- video\n");
    // One that has gone and is made again comes last.
    a.check("ignore right\r\n", "WATCHING 3\r\n");
    wait_until("the tube is gone", || !b.text("list-tubes").contains("right"));
    b.check("use right\r\n", "USING right\r\n");
    assert_eq!(a.text("list-tubes"), "---\n- default\n- left\n- jobs\n- two\n- video\n- one\n- right\n");
    b.check_stats("stats", &[("current-tubes", "7")]);
}

#[test]
fn a_tube_that_two_frontends_make_at_once_is_one() {
    // T11, T21, T29.
    let multi = Multi::start();
    let barrier = Barrier::new(2);
    let clients = [multi.connect_to(0), multi.connect_to(1)];
    let clients: Vec<_> = std::thread::scope(|scope| {
        let racers = clients.map(|mut client| {
            let barrier = &barrier;
            scope.spawn(move || {
                for number in 0..50 {
                    barrier.wait();
                    put_into(&mut client, &format!("race-{number}"), 0, "x");
                }
                client
            })
        });
        racers.into_iter().map(|racer| racer.join().expect("a racer")).collect()
    });
    let mut client = multi.connect();
    let text = client.text("list-tubes");
    let listed: Vec<&str> = text.lines().filter(|line| line.starts_with("- race-")).collect();
    assert_eq!(listed.len(), 50, "{text}");
    assert_eq!(listed.iter().collect::<HashSet<_>>().len(), 50, "{text}");
    for number in 0..50 {
        let shown = [("current-jobs-ready", "2"), ("total-jobs", "2"), ("current-watching", "0")];
        client.check_stats(&format!("stats-tube race-{number}"), &shown);
    }
    client.check_stats("stats", &[("current-tubes", "51"), ("current-jobs-ready", "100")]);
    drop(clients);
}

#[test]
fn figures_are_those_of_all_processes() {
    // T20 (formats), T23, S37; tubes of all owners, clients of all frontends.
    let multi = Multi::start();
    let (mut a, mut b) = (multi.connect_to(0), multi.connect_to(1));
    let text = a.text("stats");
    let keys: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once(": ")?.0)).collect();
    assert_eq!(keys[..STATS.len()], STATS);
    assert_eq!(keys[STATS.len()..], ["platform"]);
    let shown = figures(&text);
    assert_eq!(shown["pid"], multi.server.pid().to_string());
    assert_eq!(shown["version"], "\"1.13\"");
    assert_eq!((shown["draining"], shown["max-job-size"]), ("false", "65535"));
    assert_eq!((shown["binlog-oldest-index"], shown["binlog-records-written"]), ("0", "0"));
    let id = shown["id"].to_owned();
    assert!(id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    wait_until("only two clients are left", || a.stat("stats", "current-connections") == "2");
    let jobs = [put_into(&mut a, "left", 0, "x"), put_into(&mut a, "right", 2000, "y")];
    watch(&mut b, &["left", "right"]);
    for _ in 0..2 {
        b.send("reserve-with-timeout 30\r\n");
        reserved(&mut b);
    }
    b.check(format!("bury {} 0\r\nrelease {} 0 1000\r\n", jobs[0], jobs[1]), "BURIED\r\nRELEASED\r\n");
    b.check(format!("touch {}\r\npeek 1\r\n", jobs[0]), "NOT_FOUND\r\nNOT_FOUND\r\n");
    for client in [&mut a, &mut b] {
        client.check_stats(
            "stats",
            &[
                ("id", &id),
                ("current-connections", "2"),
                ("current-producers", "1"),
                ("current-workers", "1"),
                ("current-waiting", "0"),
                ("total-jobs", "2"),
                ("current-jobs-ready", "0"),
                ("current-jobs-reserved", "0"),
                ("current-jobs-buried", "1"),
                ("current-jobs-delayed", "1"),
                ("current-tubes", "3"),
                ("cmd-put", "2"),
                ("cmd-use", "2"),
                ("cmd-watch", "2"),
                ("cmd-reserve", "0"),
                ("cmd-reserve-with-timeout", "2"),
                ("cmd-bury", "1"),
                ("cmd-release", "1"),
                ("cmd-touch", "1"),
                ("cmd-peek", "1"),
            ],
        );
    }
    b.send("reserve\r\n");
    wait_for_waiting(&mut a, 1);
    a.check(format!("kick-job {}\r\n", jobs[0]), "KICKED\r\n");
    assert_eq!(reserved(&mut b).0, jobs[0]);
    a.check_stats(
        "stats-tube left",
        &[("current-jobs-reserved", "1"), ("current-using", "0"), ("current-watching", "1")],
    );
    drop(b);
    wait_until("its job is ready again", || a.stat("stats", "current-jobs-ready") == "1");
    wait_until("it is no worker any more", || a.stat("stats", "current-workers") == "0");
    a.check_stats("stats", &[("current-connections", "1"), ("current-producers", "1")]);
}
