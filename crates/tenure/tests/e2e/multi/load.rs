//! Many clients, long pipelines, big bodies, and clients that do not read.

use std::time::Duration;

use rustix::process::{Resource, Signal, getrlimit, setrlimit};
use testing::process::{Folder, wait_until};

use super::super::wait_for_waiting;
use super::{AT_0, AT_1, Multi, Observed, clients_of, put_into, reserved, several, watch};

/// Letters that differ from body to body.
fn body(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| b'a' + u8::try_from((at / 7 + at / 1000 + number) % 26).expect("a letter")).collect()
}

#[test]
fn a_thousand_clients_are_shared_out_among_four_frontends() {
    // T3; no frontend has more than 1.3 times the mean.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("more descriptors");
    let folder = Folder::new();
    let launch = several(2, 4, &folder);
    let multi = Multi::begin(launch, folder.join("tenure"), folder);
    let mut clients: Vec<_> = (0..1000).map(|_| multi.connect()).collect();
    wait_until("all are accepted", || clients[0].stat("stats", "current-connections") == "1000");
    let frontends = multi.slots().into_iter().filter(|slot| slot.role == "frontend");
    let counts: Vec<usize> =
        frontends.map(|slot| clients_of(slot.pid.expect("a process"), multi.server.port()).len()).collect();
    assert_eq!(counts.iter().sum::<usize>(), 1000, "{counts:?}");
    assert!(counts.iter().all(|count| *count <= 325), "{counts:?}");
    // All are served.
    for client in &mut clients {
        client.send("list-tube-used\r\n");
    }
    for client in &mut clients {
        client.expect("USING default\r\n");
    }
}

#[test]
fn ten_thousand_commands_in_one_go_are_answered_in_order() {
    // T15, T17, GT12: over both owners by turns, some answered by the frontend itself.
    let multi = Multi::start();
    let names = [AT_0, AT_1].concat();
    let mut input = String::new();
    for number in 0..2000 {
        let tube = names[number % names.len()];
        let text = number.to_string();
        input += &format!("use {tube}\r\nput {number} 0 60 {}\r\n{text}\r\n", text.len());
        input += "list-tube-used\r\nnonsense\r\npeek 18446744073709551615\r\n";
    }
    let output = multi.server.play(input);
    let output = String::from_utf8(output).expect("text");
    let mut lines = output.split("\r\n");
    let mut last = 0;
    for number in 0..2000 {
        let using = format!("USING {}", names[number % names.len()]);
        assert_eq!(lines.next(), Some(&*using), "at {number}");
        let line = lines.next().unwrap_or_default();
        let id: u64 = line.strip_prefix("INSERTED ").and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        assert!(id > last, "{id} after {last}");
        last = id;
        assert_eq!(lines.next(), Some(&*using), "at {number}");
        assert_eq!(lines.next(), Some("UNKNOWN_COMMAND"), "at {number}");
        assert_eq!(lines.next(), Some("NOT_FOUND"), "at {number}");
    }
    assert_eq!((lines.next(), lines.next()), (Some(""), None));
    multi.connect().check_stats("stats", &[("cmd-put", "2000"), ("current-jobs-ready", "2000")]);
}

#[test]
fn big_bodies_travel_beside_small_commands() {
    // T17, GT12.
    const BYTES: usize = 1 << 20;
    let multi = Multi::start_with(&["-z", "1048576"]);
    let mut small = [multi.connect_to(0), multi.connect_to(1)];
    let mut big = [multi.connect_to(0), multi.connect_to(1)];
    std::thread::scope(|scope| {
        let threads: Vec<_> = big
            .iter_mut()
            .enumerate()
            .map(|(number, client)| {
                scope.spawn(move || {
                    let tube = ["left", "right"][number];
                    client.check(format!("use {tube}\r\nwatch {tube}\r\n"), format!("USING {tube}\r\nWATCHING 2\r\n"));
                    for round in 0..8 {
                        let body = body(number + round, BYTES);
                        let id = client.put(0, 0, 600, &body);
                        client.send("reserve\r\n");
                        client.expect(format!("RESERVED {id} {BYTES}\r\n"));
                        assert!(client.read(BYTES) == body, "another body");
                        client.check(format!("\r\ndelete {id}\r\n").trim_start(), "\r\nDELETED\r\n");
                    }
                    let body = body(number, BYTES + 1);
                    client.send([format!("put 0 0 60 {}\r\n", BYTES + 1).as_bytes(), &body, b"\r\n"].concat());
                    client.expect("JOB_TOO_BIG\r\n");
                })
            })
            .collect();
        let mut rounds = 0;
        while rounds < 50 || threads.iter().any(|thread| !thread.is_finished()) {
            for client in &mut small {
                let id = put_into(client, "two", 0, "x");
                client.check(format!("delete {id}\r\n"), "DELETED\r\n");
            }
            rounds += 1;
        }
    });
}

#[test]
fn an_owner_whose_link_is_full_does_not_hold_up_clients_of_another() {
    // T17, GT12: both links are full, and one owner goes on.
    const PUT_BYTES: usize = 60_000;
    let folder = Folder::new();
    let launch = several(2, 1, &folder);
    let multi = Multi::begin(launch, folder.join("tenure"), folder);
    let before = [multi.slot("owner", 0), multi.slot("owner", 1)];
    let owners = [0, 1].map(|number: usize| Observed::new(before[number].pid.expect("a process")));
    let mut late = multi.connect();
    late.check("use right\r\n", "USING right\r\n");
    let mut quick = multi.connect();
    owners.iter().for_each(|owner| owner.signal(Signal::STOP));
    let puts: Vec<u8> =
        [format!("put 0 0 600 {PUT_BYTES}\r\n").as_bytes(), &body(0, PUT_BYTES), b"\r\n"].concat().repeat(120);
    let mut clients: Vec<_> =
        ["left", "right"].into_iter().cycle().take(6).map(|tube| (tube, multi.connect())).collect();
    std::thread::scope(|scope| {
        for (tube, client) in &mut clients {
            // More than links and sockets take: it ends when the owners go on.
            let puts = &puts;
            scope.spawn(move || {
                client.send(format!("use {tube}\r\n"));
                client.send(puts);
            });
        }
        wait_until("both links are full", || {
            let text = multi.status().expect("status");
            let (_, frontend) = text.split_once("{\"role\":\"frontend\"").expect("a frontend");
            let (_, bytes) = frontend.split_once("\"link_backlog_bytes\":").expect("its links");
            bytes.split([',', '}']).next().and_then(|bytes| bytes.parse::<usize>().ok()) >= Some(8 << 20)
        });
        late.send("put 0 0 600 4\r\nlate\r\n");
        quick.check("list-tube-used\r\n", "USING default\r\n");
        owners[1].signal(Signal::CONT);
        assert!(late.line().starts_with("INSERTED "));
        assert_eq!(multi.slot("owner", 0), before[0], "the other owner had to be killed first");
        owners[0].signal(Signal::CONT);
    });
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody() {
    // T17, GT12.
    const BYTES: usize = 1 << 20;
    const TIMES: usize = 100;
    let multi = Multi::start_with(&["-z", "1048576"]);
    let body = body(0, BYTES);
    let (mut slow, mut quick) = (multi.connect_to(0), multi.connect_to(0));
    for tube in ["left", "right"] {
        slow.check(format!("use {tube}\r\n"), format!("USING {tube}\r\n"));
        let id = slow.put(0, 0, 600, &body);
        slow.send(format!("peek {id}\r\n").repeat(TIMES));
        // On the same link and at the same owner.
        wait_until("some of it is on its way", || slow.can_read_within(Duration::from_secs(1)));
        for _ in 0..100 {
            let small = put_into(&mut quick, tube, 0, "x");
            quick.check(format!("peek {small}\r\ndelete {small}\r\n"), format!("FOUND {small} 1\r\nx\r\nDELETED\r\n"));
        }
        // It loses nothing by having been slow.
        for _ in 0..TIMES {
            slow.expect(format!("FOUND {id} {BYTES}\r\n"));
            assert!(slow.read(BYTES) == body, "another body");
            slow.expect("\r\n");
        }
        slow.check(format!("delete {id}\r\n"), "DELETED\r\n");
    }
    // One that asks for much and then goes away is forgotten.
    let id = slow.put(0, 0, 600, &body);
    slow.send(format!("peek {id}\r\n").repeat(TIMES));
    drop(slow);
    wait_until("it is gone", || quick.stat("stats", "current-connections") == "1");
    quick.check(format!("delete {id}\r\n"), "DELETED\r\n");
}

#[test]
fn half_close_and_quit_end_a_client_after_its_answers() {
    // T13, T15, T22, T23.
    let multi = Multi::start();
    let mut monitor = multi.connect();
    let (left, right) = (put_into(&mut monitor, "left", 1, "l"), put_into(&mut monitor, "right", 2, "r"));
    let mut client = multi.connect();
    let all = client.converse(
        format!("reserve-job {left}\r\nreserve-job {right}\r\nuse two\r\nlist-tube-used\r\npeek {left}\r\npartial")
            .as_bytes(),
    );
    let expected = format!(
        "RESERVED {left} 1\r\nl\r\nRESERVED {right} 1\r\nr\r\nUSING two\r\nUSING two\r\nFOUND {left} 1\r\nl\r\n"
    );
    assert_eq!(String::from_utf8_lossy(&all), expected);
    wait_until("both are ready again", || monitor.stat("stats", "current-jobs-ready") == "2");
    // Waiting at both owners.
    let mut client = multi.connect();
    watch(&mut client, &["one", "two"]);
    client.send("reserve\r\nlist-tube-used\r\n");
    wait_for_waiting(&mut monitor, 1);
    client.half_close();
    client.expect("TIMED_OUT\r\nUSING default\r\n");
    client.expect_end();
    wait_for_waiting(&mut monitor, 0);
    // What stands behind quit is not executed, and what was held is free.
    let mut client = multi.connect();
    client.send(format!("reserve-job {left}\r\nreserve-job {right}\r\nquit\r\ndelete {left}\r\n"));
    client.expect(format!("RESERVED {left} 1\r\nl\r\nRESERVED {right} 1\r\nr\r\n"));
    client.expect_end();
    watch(&mut monitor, &["left", "right"]);
    let mut again = Vec::new();
    for _ in 0..2 {
        monitor.send("reserve-with-timeout 10\r\n");
        again.push(reserved(&mut monitor).0);
    }
    again.sort_unstable();
    assert_eq!(again, [left, right]);
    wait_until("they are gone", || monitor.stat("stats", "current-connections") == "1");
    wait_until("their tubes are gone", || monitor.stat("stats", "current-tubes") == "3");
}
