//! Real processes: one process of the tubes, and a daemon beside it or beside owners and frontends.
#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use common::{Folder, Server, daemon, frontend, owner, tubes, until};
use rustix::process::Signal;
use supervisor::rules::Condition;

/// What supervision promises is 1 s; a test on a busy machine allows ten times as much.
const ORPHANS_GONE: Duration = Duration::from_secs(10);
const BOTH: [&str; 2] = ["tubes=1", "daemon=1"];

/// S3: nobody accepts before tubes and daemon are ready; each serves its own listener with its own options.
#[test]
fn tubes_and_daemon_are_ready_before_either_accepts() {
    let folder = Folder::new();
    let server = Server::start(&folder, &BOTH);
    let events = folder.events();
    let first_go = events.iter().position(|line| line.ends_with(" go")).unwrap_or(events.len());
    let ready = events[..first_go].iter().filter(|line| line.ends_with(" ready")).count();
    assert_eq!(ready, 2, "{events:?}");
    assert!(server.client().ask("put 0").starts_with("ok 1 "));
    assert_eq!(server.client_of_daemon().ask("hello"), "daemon 1");
    let roles: Vec<_> = server.status().processes.iter().map(|process| process.role.name()).collect();
    assert_eq!(roles, ["tubes", "daemon"]);
}

/// S2, S20, S21: whichever dies is restarted alone; clients of the other notice nothing.
#[test]
fn each_is_restarted_alone_while_the_other_serves_on() {
    let folder = Folder::new();
    let server = Server::start(&folder, &BOTH);
    let (mut of_tubes, mut of_daemon) = (server.client(), server.client_of_daemon());
    assert!(of_tubes.ask("put 0").starts_with("ok 1 "));
    assert_eq!(of_daemon.ask("hello"), "daemon 1");

    server.handle(daemon()).signal(Signal::KILL);
    // The very connection goes on while the daemon is away.
    until("the daemon is back", || {
        assert!(of_tubes.ask("put 0").starts_with("ok 1 "));
        server.try_status().and_then(|status| status.process(daemon()).cloned()).filter(|found| found.generation == 2)
    });
    server.until_ready(daemon(), 2);
    assert_eq!(of_daemon.ask("hello"), "");
    assert_eq!(server.client_of_daemon().ask("hello"), "daemon 2");

    let mut of_daemon = server.client_of_daemon();
    assert_eq!(of_daemon.ask("hello"), "daemon 2");
    server.handle(tubes()).signal(Signal::KILL);
    server.until_ready(tubes(), 2);
    assert_eq!(of_daemon.ask("hello"), "daemon 2");
    assert!(server.client().ask("put 0").starts_with("ok 2 "));
    assert_eq!(server.process(tubes()).restarts, 1);
    assert_eq!(server.process(daemon()).restarts, 1);
}

/// S3: a daemon that does not start ends the start.
#[test]
fn a_daemon_that_fails_at_the_first_start_leaves_no_process_and_no_socket() {
    for options in [&BOTH[..], &["daemon=1"], &["tubes=0", "daemon=1", "owners=2", "frontends=1"]] {
        let folder = Folder::new();
        folder.habit(daemon(), "damaged");
        let server = Server::spawn(&folder, options);
        let (status, said) = server.wait();
        assert_eq!(status.code(), Some(11), "{said}");
        assert!(said.contains("daemon 0 did not start"), "{said}");
        assert!(!folder.0.join("status").exists());
        for event in folder.events() {
            let pid = event.split(' ').nth(3).and_then(|pid| pid.parse().ok()).expect("a process number");
            assert!(common::Handle::open(pid).ends_within(ORPHANS_GONE), "{event}");
        }
    }
}

/// S7, S22: a daemon that cannot be helped stays down and is seen; the tubes serve on, also where their own failure would
/// end the server. It can be tried again.
#[test]
fn a_failed_daemon_is_visible_and_the_tubes_serve_on() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["tubes=1", "daemon=1", "on-slot-failed=stop"]);
    let mut of_tubes = server.client();
    folder.habit(daemon(), "damaged");
    server.handle(daemon()).signal(Signal::KILL);
    let failed = server.until_process(daemon(), |found| found.condition == Condition::Failed);
    assert!(failed.failure.unwrap().to_string().contains("code 11: the log is damaged"));
    assert!(of_tubes.ask("put 0").starts_with("ok 1 "));
    assert!(server.status().serving);

    folder.habit(daemon(), "");
    supervisor::restart_slot(&folder.0.join("status"), daemon()).unwrap();
    server.until_ready(daemon(), 3);
    // A client that came meanwhile waits in the listener that the supervisor has kept.
    assert_eq!(server.client_of_daemon().ask("hello"), "daemon 3");
    assert!(of_tubes.ask("put 0").starts_with("ok 1 "));
}

/// S6, S25: the drain is done when the tubes have answered, and outlasts restarts; the daemon is not asked.
#[test]
fn a_drain_is_answered_by_the_tubes_alone() {
    let folder = Folder::new();
    let server = Server::start(&folder, &BOTH);
    let mut of_tubes = server.client();
    assert!(of_tubes.ask("put 0").starts_with("ok"));
    server.signal(Signal::USR1);
    until("the drain is done", || server.try_status().filter(|status| status.drained));
    assert_eq!(of_tubes.ask("put 0"), "draining");
    server.handle(tubes()).signal(Signal::KILL);
    server.until_ready(tubes(), 2);
    assert_eq!(server.client().ask("put 0"), "draining");
    assert!(server.status().drained);
    let drained: Vec<String> = folder.events().into_iter().filter(|line| line.ends_with(" drained")).collect();
    // One was told, its successor was started so.
    assert!(drained.iter().all(|line| line.starts_with("tubes")) && drained.len() == 2, "{drained:?}");
}

/// What SIGHUP brings is told to the daemon that is there, and to those started later; to nobody else.
#[test]
fn a_hangup_brings_the_daemon_new_options() {
    let folder = Folder::new();
    let server = Server::start(&folder, &BOTH);
    let options = || -> Vec<String> {
        let told = folder.events().into_iter().filter(|line| line.contains(" options "));
        // Without the process number.
        told.map(|line| {
            line.split(' ').enumerate().filter(|(at, _)| *at != 3).map(|(_, word)| word).collect::<Vec<_>>().join(" ")
        })
        .collect()
    };
    server.signal(Signal::HUP);
    until("the daemon hears", || (options() == ["daemon 0 1 options 1"]).then_some(()));
    server.handle(daemon()).signal(Signal::KILL);
    server.until_ready(daemon(), 2);
    until("its successor hears", || (options() == ["daemon 0 1 options 1", "daemon 0 2 options 1"]).then_some(()));
    server.signal(Signal::HUP);
    until("the daemon hears again", || {
        (options().last().is_some_and(|line| line.ends_with("2 options 2"))).then_some(())
    });
    assert!(server.client().ask("put 0").starts_with("ok 1 "));
}

/// S26: in each combination a stop ends everything in order and leaves nothing.
#[test]
fn a_stop_ends_tubes_and_daemon_in_order() {
    for (options, count) in
        [(&BOTH[..], 2), (&["tubes=1"], 1), (&["owners=0", "frontends=0", "daemon=1"], 1), (&["daemon=1"], 5)]
    {
        let folder = Folder::new();
        let server = Server::start(&folder, options);
        let processes = server.processes();
        assert_eq!(processes.len(), count);
        server.signal(Signal::TERM);
        let (status, said) = server.wait();
        assert!(status.success(), "{options:?}: {said}");
        assert!(processes.iter().all(|process| process.ends_within(Duration::ZERO)));
        assert_eq!(folder.events().iter().filter(|line| line.ends_with("stopped")).count(), count);
        assert!(!folder.0.join("status").exists());
    }
}

/// S26: a daemon that does not obey is killed at the deadline, and owners are done long before.
#[test]
fn a_daemon_that_does_not_stop_is_killed_at_the_deadline() {
    let folder = Folder::new();
    folder.habit(daemon(), "stubborn");
    let server = Server::start(&folder, &["daemon=1"]);
    let owners = [owner(0), owner(1), frontend(0), frontend(1)].map(|slot| server.handle(slot));
    let start = std::time::Instant::now();
    server.signal(Signal::TERM);
    assert!(owners.iter().all(|process| process.ends_within(common::PATIENCE)));
    assert!(server.handle(daemon()).pid > 0, "the daemon is still there");
    let (status, said) = server.wait();
    assert!((9.9..30.0).contains(&start.elapsed().as_secs_f64()), "{:?}", start.elapsed());
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("daemon 0 did not stop in order"), "{said}");
}

/// S8, S23: whoever kills the supervisor kills tubes and daemon, stopped ones included; the next one starts.
#[test]
fn neither_outlives_a_killed_supervisor() {
    let folder = Folder::new();
    for round in 0..6 {
        let mut server = Server::start(&folder, &BOTH);
        let processes = server.processes();
        assert_eq!(processes.len(), 2);
        if round > 0 {
            processes[round % 2].signal(Signal::STOP);
        }
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        for process in &processes {
            assert!(process.ends_within(ORPHANS_GONE), "round {round}: process {} is left", process.pid);
        }
    }
}

/// S7: a frozen daemon is found by its silence, killed and replaced.
#[test]
fn a_frozen_daemon_is_killed_and_replaced() {
    let folder = Folder::new();
    let server = Server::start(&folder, &BOTH);
    let frozen = server.handle(daemon());
    frozen.signal(Signal::STOP);
    assert!(frozen.ends_within(common::PATIENCE));
    server.until_ready(daemon(), 2);
    assert_eq!(server.process(tubes()).restarts, 0);
}

/// A server that is nothing but a daemon ends with it, with its code.
#[test]
fn a_lone_daemon_that_fails_ends_the_server() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["owners=0", "frontends=0", "daemon=1"]);
    folder.habit(daemon(), "damaged");
    server.handle(daemon()).signal(Signal::KILL);
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(11), "{said}");
    assert!(said.contains("daemon 0 has failed"), "{said}");
}
