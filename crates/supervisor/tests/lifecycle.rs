//! Real processes: start, serve, restart, drain, stop.
#![cfg(target_os = "linux")]

mod common;

use common::{Folder, Server, frontend, owner};
use rustix::process::Signal;

/// S1, S3, S30: everything is ready before a client is served; links reach every owner; ids come from one counter.
#[test]
fn all_owners_are_ready_before_any_frontend_accepts() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["owners=3", "frontends=2", "first-id=7"]);
    let events = folder.events();
    let first_go = events.iter().position(|line| line.ends_with(" go")).unwrap_or(events.len());
    let owners_ready = events[..first_go].iter().filter(|line| line.starts_with("owner") && line.ends_with("ready"));
    assert_eq!(owners_ready.count(), 3, "{events:?}");
    let mut client = server.client();
    // Owner 2 reported 200 as the count to go on from.
    assert_eq!(client.ask("put 0"), "ok 1 200");
    assert_eq!(client.ask("put 2"), "ok 1 201");
    assert_eq!(client.ask("put 1"), "ok 1 202");
    server.signal(Signal::TERM);
    let (status, said) = server.wait();
    assert!(status.success(), "{said}");
}

/// S2, S21, S32: only the slot that lost its process is restarted, as the next generation, and linked again.
#[test]
fn a_killed_owner_comes_back_as_the_next_generation_and_is_linked_again() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let before = server.status();
    server.handle(owner(1)).signal(Signal::KILL);
    server.until_ready(owner(1), 2);
    let mut client = server.client();
    let answer =
        common::until("the new owner's answer", || Some(client.ask("put 1")).filter(|it| it.starts_with("ok")));
    assert!(answer.starts_with("ok 2 "), "{answer}");
    assert!(client.ask("put 0").starts_with("ok 1 "));
    let after = server.status();
    for (old, new) in before.processes.iter().zip(&after.processes) {
        let is_victim = (new.role, new.slot) == (supervisor::Role::Owner, 1);
        assert_eq!(old.pid == new.pid, !is_victim, "{new:?}");
        assert_eq!(new.restarts, u64::from(is_victim));
    }
}

/// S20: a frontend that died is replaced, linked to all owners, and accepts again.
#[test]
fn a_killed_frontend_comes_back_and_serves() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["frontends=1"]);
    let mut old_client = server.client();
    assert!(old_client.ask("put 0").starts_with("ok 1 "));
    server.handle(frontend(0)).signal(Signal::KILL);
    server.until_ready(frontend(0), 2);
    assert_eq!(old_client.ask("put 0"), "");
    let mut client = server.client();
    assert!(client.ask("put 0").starts_with("ok 1 "));
    assert!(client.ask("put 1").starts_with("ok 1 "));
    // The gauge of the dead frontend's clients was cleared.
    assert_eq!(client.ask("stats"), "clients 1 draining false");
    assert_eq!(server.process(frontend(0)).figures["clients"], 1);
}

/// S6, S25, S34: no process that is born during a drain, or after it, accepts a job.
#[test]
fn a_drain_outlasts_restarts_of_owners_and_frontends() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["restart-limit=1000", "restart-delay-ms=10"]);
    assert!(server.client().ask("put 0").starts_with("ok"));
    // Into the middle of two restarts, and twice.
    server.handle(owner(0)).signal(Signal::KILL);
    server.handle(frontend(0)).signal(Signal::KILL);
    server.signal(Signal::USR1);
    server.signal(Signal::USR1);
    common::until("the drain is done", || server.try_status().filter(|status| status.drained));
    let slots = [owner(0), owner(1), frontend(0), frontend(1)];
    for slot in slots {
        server.until_ready(slot, if slot.slot == 0 { 2 } else { 1 });
    }
    let events_before = folder.events().len();
    for _ in 0..4 {
        let before = server.status();
        for slot in slots {
            server.handle(slot).signal(Signal::KILL);
        }
        for slot in slots {
            server.until_ready(slot, before.process(slot).unwrap().generation + 1);
        }
        let mut client = server.client();
        for line in ["put 0", "put 1"] {
            // A frontend may not have met the next owner yet.
            let is_clear = |answer: &String| !["unavailable", "unknown", ""].contains(&answer.as_str());
            let answer = common::until("an owner's answer", || Some(client.ask(line)).filter(is_clear));
            assert_eq!(answer, "draining");
        }
        assert!(client.ask("stats").ends_with("draining true"));
    }
    assert!(server.status().drained);
    let later = &folder.events()[events_before..];
    let starts: Vec<&String> = later.iter().filter(|line| line.contains(" started")).collect();
    assert_eq!(starts.len(), 16, "{later:?}");
    assert!(starts.iter().all(|line| line.ends_with("started drained")), "{later:?}");
}

/// S26: a stop ends frontends before owners, takes no longer than its processes, and leaves nothing.
#[test]
fn a_stop_ends_frontends_before_owners_and_leaves_nothing() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = Folder::new();
        let server = Server::start(&folder, &[]);
        let processes = server.processes();
        server.signal(signal);
        let (status, said) = server.wait();
        assert!(status.success(), "{said}");
        assert!(processes.iter().all(|process| process.ends_within(std::time::Duration::ZERO)));
        let stops: Vec<String> = folder.events().into_iter().filter(|line| line.ends_with("stopped")).collect();
        assert_eq!(stops.len(), 4, "{stops:?}");
        assert!(stops[..2].iter().all(|line| line.starts_with("frontend")), "{stops:?}");
        assert!(!folder.0.join("status").exists());
    }
}

/// S26: the signals that a service manager or a terminal sends to every process of the server do it no harm.
#[test]
fn a_signal_to_the_whole_group_is_the_supervisors_affair() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    for process in server.processes() {
        process.signal(Signal::TERM);
        process.signal(Signal::INT);
        process.signal(Signal::USR1);
    }
    server.signal(Signal::TERM);
    let (status, said) = server.wait();
    assert!(status.success(), "{said}");
    assert_eq!(folder.events().iter().filter(|line| line.ends_with("stopped")).count(), 4);
}

/// S26: processes that do not end are killed at the deadline.
#[test]
fn a_stop_has_an_end_even_if_processes_do_not_obey() {
    let folder = Folder::new();
    folder.habit(frontend(0), "stubborn");
    folder.habit(owner(1), "stubborn");
    let server = Server::start(&folder, &[]);
    let processes = server.processes();
    let start = std::time::Instant::now();
    server.signal(Signal::TERM);
    let (status, said) = server.wait();
    // 10 s and what a busy machine adds; not before, as the processes could still have obeyed.
    assert!((9.9..30.0).contains(&start.elapsed().as_secs_f64()), "{:?}", start.elapsed());
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("frontend 0 did not stop in order"), "{said}");
    assert!(processes.iter().all(|process| process.ends_within(std::time::Duration::ZERO)));
}

/// S37: what is asked on the status socket is answered to its owner only, with what the plan wants shown, and nonsense does no harm.
#[test]
fn the_status_is_served_to_the_account_of_the_server() {
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let path = folder.0.join("status");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let ask = |request: &[u8]| {
        let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        // What was not read when the answer was given resets the connection after it.
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    assert!(ask(b"status\n").contains("\"about\":{\"program\":\"fixture\"}"));
    assert!(ask(b"nonsense\n").starts_with("refused: "));
    assert!(ask(&[0xff; 64]).starts_with("refused: "));
    assert!(ask(b"restart-slot owner 99\n").starts_with("refused: there is no owner 99"));
    // Whoever connects and says nothing holds up nobody.
    let _silent: Vec<_> = (0..40).map(|_| std::os::unix::net::UnixStream::connect(&path).unwrap()).collect();
    let status = server.status();
    assert_eq!(status.pid, server.child.id());
    assert_eq!(status.processes.len(), 4);
    assert!(status.processes.iter().all(|process| process.generation == 1 && process.pid.is_some()));
    let clients: Vec<_> = status.processes.iter().map(|process| process.figures.get("clients").copied()).collect();
    assert_eq!(clients, [None, None, Some(0), Some(0)], "figures of owners, then of frontends");
}

/// S5: a status socket in a folder that others can write to is refused.
#[test]
fn a_folder_that_others_can_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o777)).unwrap();
    let (status, said) = Server::spawn(&folder, &[]).wait();
    assert_eq!(status.code(), Some(10), "{said}");
    assert!(said.contains("other accounts may write to it"), "{said}");
}

/// S3, S26: the service manager hears of readiness after everybody is ready, of life each second, and of the stop.
#[test]
fn the_service_manager_is_told_of_readiness_life_and_stop() {
    let folder = Folder::new();
    let path = folder.0.join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(common::PATIENCE)).unwrap();
    let hear = || {
        let mut bytes = [0; 256];
        let count = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).trim().to_owned()
    };
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_supervisor-fixture"))
        .arg("supervise")
        .arg(&folder.0)
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "30000000")
        .spawn()
        .unwrap();
    let server = Server { child, dir: folder.0.clone() };
    assert_eq!(hear(), "READY=1");
    assert!(folder.events().iter().filter(|line| line.ends_with(" ready")).count() == 4);
    assert_eq!(hear(), "WATCHDOG=1");
    // With a process that is silent for long the manager hears nothing more of life.
    let paused = server.handle(owner(0));
    paused.signal(Signal::STOP);
    server.until_process(owner(0), |found| found.unanswered_pings >= 5);
    manager.set_nonblocking(true).unwrap();
    while manager.recv(&mut [0; 256]).is_ok() {}
    server.until_process(owner(0), |found| found.unanswered_pings >= 6);
    assert!(manager.recv(&mut [0; 256]).is_err());
    paused.signal(Signal::CONT);
    manager.set_nonblocking(false).unwrap();
    assert_eq!(hear(), "WATCHDOG=1");
    server.signal(Signal::TERM);
    common::until("STOPPING=1", || (hear() == "STOPPING=1").then_some(()));
    assert!(server.wait().0.success());
}
