//! Start, drain, stop, and starts that are refused.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use rustix::process::Signal;
use testing::process::{Address, Folder, wait_until};

use super::super::{tubes, wait_for_waiting};
use super::{Multi, PATIENT, processes_of, put_into, reserved, several, watch};

/// What every put is answered with while draining, at both owners and both frontends.
#[track_caller]
fn check_draining(multi: &Multi) {
    for frontend in [0, 1] {
        let mut client = multi.connect_to(frontend);
        for tube in ["left", "right"] {
            client.check(format!("use {tube}\r\nput 0 0 60 1\r\nx\r\n"), format!("USING {tube}\r\nDRAINING\r\n"));
        }
        client.check_stats("stats", &[("draining", "true")]);
    }
}

#[test]
fn drain_holds_everywhere_and_outlives_processes() {
    // S6, S25, S34, GT10.
    let mut multi = Multi::start_with_log(&[&["--owner-wait", "60s"], &PATIENT[..]].concat());
    let mut client = multi.connect();
    let jobs = [put_into(&mut client, "left", 1, "l"), put_into(&mut client, "right", 2, "r")];
    multi.server.signal(Signal::USR1);
    multi.wait_until_drained();
    check_draining(&multi);
    for role in ["owner", "frontend"] {
        for number in [0, 1] {
            let killed = multi.kill(role, number);
            multi.wait_for_next(&killed);
            check_draining(&multi);
        }
    }
    // A second signal does not end it, and what is there is handed out still.
    multi.server.signal(Signal::USR1);
    let mut client = multi.connect();
    watch(&mut client, &["left", "right"]);
    let mut got = Vec::new();
    for _ in jobs {
        client.send("reserve-with-timeout 30\r\n");
        got.push(reserved(&mut client).0);
    }
    got.sort_unstable();
    assert_eq!(got, jobs);
    client.check(format!("delete {}\r\nrelease {} 0 0\r\n", jobs[0], jobs[1]), "DELETED\r\nRELEASED\r\n");
    check_draining(&multi);
    // A restart of the whole server does.
    assert_eq!(multi.server.terminate().code(), Some(0));
    multi.start_again();
    let mut client = multi.connect();
    client.check_stats("stats", &[("draining", "false"), ("current-jobs-ready", "1")]);
    put_into(&mut client, "left", 0, "x");
    put_into(&mut client, "right", 0, "x");
}

#[test]
fn drain_that_begins_while_an_owner_is_away_holds_there_too() {
    // S25, S34, GT10: it counts as drained only when its next process has started so.
    let mut multi = Multi::start_with(&["--owner-wait", "60s", "--restart-delay", "1s"]);
    let killed = multi.kill("owner", 1);
    multi.server.signal(Signal::USR1);
    multi.wait_until_drained();
    multi.wait_for_next(&killed);
    check_draining(&multi);
}

#[test]
fn a_stop_leaves_nothing_but_the_acknowledged_jobs() {
    // S26, GT11, S35.
    for signal in [Signal::TERM, Signal::INT] {
        let mut multi = Multi::start_with_log(&[]);
        let (mut a, mut b) = (multi.connect_to(0), multi.connect_to(1));
        let jobs = [put_into(&mut a, "left", 0, "l"), put_into(&mut b, "right", 0, "r")];
        let mut waiters: Vec<_> = (0..20).map(|_| multi.connect()).collect();
        for waiter in &mut waiters {
            watch(waiter, &["one", "two"]);
            waiter.send("reserve\r\n");
        }
        wait_for_waiting(&mut a, 20);
        let children = multi.children();
        multi.server.signal(signal);
        assert_eq!(multi.server.wait().code(), Some(0), "{}", multi.server.stderr());
        for child in &children {
            child.wait_for_end(Duration::ZERO);
        }
        assert_eq!(processes_of(&multi.folder), [0_u32; 0]);
        TcpListener::bind((Ipv4Addr::LOCALHOST, multi.server.port())).expect("the port is free");
        // No unsolicited bytes on the way out.
        for client in waiters.iter_mut().chain([&mut a, &mut b]) {
            client.expect_end();
        }
        multi.start_again();
        let [left, right] = jobs;
        multi.server.check(
            format!("peek {left}\r\npeek {right}\r\n"),
            format!("FOUND {left} 1\r\nl\r\nFOUND {right} 1\r\nr\r\n"),
        );
        assert!(put_into(&mut multi.connect(), "left", 0, "x") > right);
    }
}

#[test]
fn after_a_restart_every_tube_of_every_owner_is_listed_once() {
    // T16, T18: those with jobs; new ones come behind them.
    let mut multi = Multi::start_with_log(&[]);
    let mut names = ["left", "right", "one", "two", "video", "jobs"];
    let mut client = multi.connect();
    for name in names {
        put_into(&mut client, name, 0, "x");
    }
    assert_eq!(multi.server.terminate().code(), Some(0));
    multi.start_again();
    let mut client = multi.connect();
    let text = client.text("list-tubes");
    let mut listed: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("- ")).collect();
    listed.retain(|name| *name != "default");
    listed.sort_unstable();
    names.sort_unstable();
    assert_eq!(listed, names, "{text}");
    for name in ["mail", "new"] {
        watch(&mut client, &[name]);
    }
    assert_eq!(client.text("list-tubes"), format!("{text}- mail\n- new\n"));
}

#[test]
fn a_directory_in_use_is_refused_with_10_and_the_holder_is_named() {
    // S8, S31, GT8: by another path too, and while the first is stopped.
    let mut multi = Multi::start_with_log(&[]);
    let id = put_into(&mut multi.connect(), "right", 0, "r");
    let second = Folder::new();
    let link = second.join("link");
    std::os::unix::fs::symlink(multi.data(), &link).expect("a link");
    for is_stopped in [false, true] {
        if is_stopped {
            multi.server.signal(Signal::STOP);
            wait_until("stopped", || multi.server.status("State").starts_with('T'));
        }
        for path in [&multi.data(), &link] {
            let finished = several(2, 2, &second).log_in(path).finish();
            assert_eq!(finished.code, Some(10), "{finished:?}");
            assert!(finished.stderr.contains(&multi.server.pid().to_string()), "the holder is named: {finished:?}");
        }
        assert_eq!(processes_of(&second), [0_u32; 0]);
        multi.server.signal(Signal::CONT);
    }
    multi.server.check(format!("peek {id}\r\n"), format!("FOUND {id} 1\r\nr\r\n"));
    assert_eq!(multi.slots().iter().map(|slot| slot.generation).collect::<Vec<_>>(), [1; 4]);
}

#[test]
fn a_directory_of_another_topology_is_refused_with_12() {
    // T18, S30: before anything is written.
    let mut multi = Multi::start_with_log(&[]);
    let id = put_into(&mut multi.connect(), "right", 0, "r");
    assert_eq!(multi.server.terminate().code(), Some(0));
    let manifest = std::fs::read(multi.data().join("manifest.toml")).expect("the manifest");
    let folder = Folder::new();
    let (three, one) = (several(3, 2, &folder), several(1, 2, &folder));
    for launch in [three, one, tubes().environment("XDG_RUNTIME_DIR", folder.path())] {
        let finished = launch.log_in(&multi.data()).finish();
        assert_eq!(finished.code, Some(12), "{finished:?}");
        assert!(finished.stderr.contains("reshard"), "the command that converts is named: {finished:?}");
    }
    assert_eq!(processes_of(&folder), [0_u32; 0]);
    assert_eq!(std::fs::read(multi.data().join("manifest.toml")).expect("the manifest"), manifest);
    // The number of frontends may change from start to start.
    multi.launch = several(2, 3, &multi.folder).log_in(&multi.data());
    multi.start_again();
    multi.server.check(format!("peek {id}\r\n"), format!("FOUND {id} 1\r\nr\r\n"));
    assert_eq!(multi.children().len(), 5);
}

#[test]
fn a_busy_port_is_refused_with_111_and_nothing_is_left() {
    // S30.
    let busy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = busy.local_addr().expect("its address");
    let folder = Folder::new();
    let port = address.port().to_string();
    for log in [false, true] {
        let mut launch = several(2, 2, &folder).with(["-p", &port]).on_given_address(Address::Tcp(address));
        if log {
            std::fs::create_dir(folder.join("data")).expect("a folder for the log");
            launch = launch.log_in(&folder.join("data"));
        }
        let finished = launch.finish();
        assert_eq!(finished.code, Some(111), "{finished:?}");
        assert!(finished.stderr.contains(&port), "{finished:?}");
        assert_eq!(processes_of(&folder), [0_u32; 0]);
    }
    assert_eq!(std::fs::read_dir(folder.join("data")).expect("the folder").count(), 0);
}

#[test]
fn a_place_that_cannot_be_written_is_refused_with_10_and_nothing_is_left() {
    // S30.
    let folder = Folder::new();
    let file = folder.join("file");
    std::fs::write(&file, "").expect("a file");
    for path in [&*file, &*file.join("below"), std::path::Path::new("/proc/nothing")] {
        let finished = several(2, 2, &folder).log_in(path).finish();
        assert_eq!(finished.code, Some(10), "{finished:?}");
        assert!(finished.stderr.contains(&*path.to_string_lossy()), "{finished:?}");
        assert_eq!(processes_of(&folder), [0_u32; 0]);
    }
}

#[test]
fn a_slot_that_cannot_start_ends_the_start() {
    // S3, S30, S35: the damaged log of one owner; no process and no socket is left.
    let mut multi = Multi::start_with_log(&[]);
    put_into(&mut multi.connect(), "right", 0, "r");
    assert_eq!(multi.server.terminate().code(), Some(0));
    let segment = multi.data().join("logs-1/slot-1/0000000001.log");
    let mut bytes = std::fs::read(&segment).expect("the segment");
    bytes[0] ^= 0xff;
    std::fs::write(&segment, &bytes).expect("the segment");
    let finished = multi.launch.finish();
    assert_eq!(finished.code, Some(11), "{finished:?}");
    assert_eq!(processes_of(&multi.folder), [0_u32; 0]);
}

#[test]
fn servers_without_a_log_live_side_by_side_on_two_ports() {
    // S31 (locks by address).
    let first = Multi::start();
    let second_server = first.launch.start();
    let ids = [&first.server, &second_server].map(|server| {
        let mut client = server.connect();
        wait_until("it serves", || client.ask("list-tube-used") == "USING default");
        (put_into(&mut client, "right", 0, "x"), client.stat("stats", "id"), client.stat("stats", "total-jobs"))
    });
    assert_eq!(ids[0].0, ids[1].0);
    assert_ne!(ids[0].1, ids[1].1);
    assert_eq!((&*ids[0].2, &*ids[1].2), ("1", "1"));
    drop(second_server);
    first.server.check(format!("delete {}\r\n", ids[0].0), "DELETED\r\n");
}

#[test]
fn a_unix_socket_serves_all_frontends() {
    // S5.
    let folder = Folder::new();
    let path = folder.join("socket");
    let mut server = several(2, 2, &folder).on_unix_socket(&path).start();
    let mut clients: Vec<_> = (0..50).map(|_| server.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        put_into(client, if number % 2 == 0 { "left" } else { "right" }, 0, "x");
    }
    clients[0].check_stats("stats", &[("current-connections", "50"), ("current-jobs-ready", "50")]);
    assert_eq!(server.terminate().code(), Some(0));
    assert!(!path.exists());
}
