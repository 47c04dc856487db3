//! Real processes under faults: death of the supervisor, crash loops, freezes, failing starts.
#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use common::{Folder, Handle, Server, children_of, descriptor_count, frontend, owner, until};
use rustix::process::Signal;
use supervisor::rules::Condition;

/// What supervision promises is 1 s; a test on a busy machine allows ten times as much.
const ORPHANS_GONE: Duration = Duration::from_secs(10);

/// S8, S23: whoever kills the supervisor kills the server, stopped processes included; the next one starts.
#[test]
fn no_process_outlives_a_killed_supervisor() {
    let folder = Folder::new();
    for round in 0..10 {
        let mut server = Server::start(&folder, &[]);
        let processes = server.processes();
        assert_eq!(processes.len(), 4);
        if round % 2 == 1 {
            processes[round % 4].signal(Signal::STOP);
        }
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        for process in &processes {
            assert!(process.ends_within(ORPHANS_GONE), "round {round}: process {} is left", process.pid);
        }
    }
}

/// S8: the lifeline alone ends a process that the kernel's signal does not reach.
#[test]
fn the_lifeline_ends_a_process_that_has_lost_the_death_signal() {
    let folder = Folder::new();
    let slots = [owner(0), owner(1), frontend(0), frontend(1)];
    for slot in slots {
        folder.habit(slot, "without-death-signal");
    }
    let mut server = Server::start(&folder, &[]);
    let processes = server.processes();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    for process in &processes {
        assert!(process.ends_within(ORPHANS_GONE), "process {} is left", process.pid);
    }
}

/// S8, S35: also one that dies while its processes are being started.
#[test]
fn no_process_outlives_a_supervisor_killed_during_the_start() {
    for round in 0..10 {
        let folder = Folder::new();
        let mut server = Server::spawn(&folder, &["owners=4", "frontends=4"]);
        // Killed when so many of its processes have begun.
        let begun = until("some processes begin", || {
            let pids: Vec<Handle> = children_of(server.child.id()).iter().map(|(pid, _)| Handle::open(*pid)).collect();
            (pids.len() >= round.min(8)).then_some(pids)
        });
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        for process in &begun {
            assert!(process.ends_within(ORPHANS_GONE), "round {round}: process {} is left", process.pid);
        }
        // Those that had been started after the look hold their locks no longer either.
        let next = Server::start(&folder, &["owners=4", "frontends=4"]);
        drop(next);
    }
}

/// S35: a thousand deaths leave no descriptor and no zombie behind, and every slot serves in the end.
#[test]
fn a_thousand_restarts_leak_nothing() {
    let folder = Folder::new();
    let options = ["restart-limit=100000", "restart-delay-ms=0"];
    let server = Server::start(&folder, &options);
    let pid = server.child.id();
    let slots = [owner(0), frontend(0), owner(1), frontend(1)];
    let settled = |generation: u32| {
        for slot in slots {
            server.until_ready(slot, generation);
        }
        // What the connection of the question itself takes is gone when the next one is asked.
        until("the descriptors of the last question are closed", || {
            let counts: Vec<usize> = (0..3).map(|_| descriptor_count(pid)).collect();
            counts.windows(2).all(|pair| pair[0] == pair[1]).then(|| counts[0])
        })
    };
    let before = settled(1);
    for round in 1..=250 {
        for slot in slots {
            server.handle(slot).signal(Signal::KILL);
        }
        for slot in slots {
            server.until_ready(slot, round + 1);
        }
    }
    let after = settled(251);
    assert_eq!(before, after, "descriptors of the supervisor before and after 1000 restarts");
    let children = children_of(pid);
    assert_eq!(children.len(), 4, "{children:?}");
    assert!(children.iter().all(|(_, state)| *state != 'Z'), "{children:?}");
    let mut client = server.client();
    assert!(client.ask("put 0").starts_with("ok 251 "));
    assert!(client.ask("put 1").starts_with("ok 251 "));
    let processes = server.processes();
    for process in &processes {
        // Standard three, control channel, lifeline and its pages, listener, one link per peer; clients while asked.
        assert!(descriptor_count(process.pid) <= 20, "process {} has leaked descriptors", process.pid);
    }
}

/// S7, S37: a slot that crashes too often fails visibly, the others serve on, and an operator can try it again.
#[test]
fn a_slot_above_its_limit_fails_and_can_be_revived() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["restart-limit=2", "restart-delay-ms=10"]);
    folder.habit(owner(1), "crashing");
    server.handle(owner(1)).signal(Signal::KILL);
    let failed = server.until_process(owner(1), |found| found.condition == Condition::Failed);
    assert_eq!(failed.restarts, 2);
    assert_eq!(failed.pid, None);
    assert!(failed.failure.unwrap().to_string().contains("code 1"));
    let mut client = server.client();
    assert!(client.ask("put 0").starts_with("ok 1 "));
    assert_eq!(client.ask("put 1"), "unavailable");

    let socket = folder.0.join("status");
    let refused = supervisor::restart_slot(&socket, owner(0)).unwrap_err();
    assert_eq!(refused.to_string(), "owner 0 has not failed");
    folder.habit(owner(1), "");
    supervisor::restart_slot(&socket, owner(1)).unwrap();
    server.until_ready(owner(1), failed.generation + 1);
    until("the revived owner answers", || Some(client.ask("put 1")).filter(|answer| answer.starts_with("ok")));
}

/// S7, S24: a damaged log is never retried, a failed write is.
#[test]
fn a_damaged_log_fails_the_slot_and_a_failed_write_restarts_it() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["restart-delay-ms=10"]);
    folder.habit(owner(0), "damaged");
    server.handle(owner(0)).signal(Signal::KILL);
    let failed = server.until_process(owner(0), |found| found.condition == Condition::Failed);
    assert_eq!(failed.restarts, 1);
    assert_eq!(failed.failure.unwrap().to_string(), "exited with code 11: the log is damaged");

    folder.habit(owner(1), "failing-write");
    server.handle(owner(1)).signal(Signal::KILL);
    server.until_process(owner(1), |found| found.restarts >= 2);
    folder.habit(owner(1), "");
    let ready = server.until_process(owner(1), |found| found.condition == Condition::Ready && found.restarts >= 2);
    assert_eq!(ready.failure.unwrap().to_string(), "exited with code 10: a write has failed");
    assert!(ready.log_failures >= 1);
    assert_eq!(server.process(owner(0)).log_failures, 0, "damage is found by reading");
}

/// S7: the policy to end with the first failed slot; its code becomes the server's.
#[test]
fn the_server_ends_with_a_failed_slot_where_that_is_the_policy() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["on-slot-failed=stop"]);
    let processes = server.processes();
    folder.habit(owner(0), "damaged");
    server.handle(owner(0)).signal(Signal::KILL);
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(11), "{said}");
    assert!(said.contains("owner 0 has failed"), "{said}");
    assert!(processes.iter().all(|process| process.ends_within(Duration::ZERO)));
}

/// S3, S7, S30: at the first start one failing slot ends all of it.
#[test]
fn a_failing_first_start_leaves_no_process_and_no_socket() {
    for (habit, code) in [("damaged", 11), ("crashing", 1), ("failing-write", 10)] {
        let folder = Folder::new();
        folder.habit(owner(1), habit);
        let (status, said) = Server::spawn(&folder, &["owners=3"]).wait();
        assert_eq!(status.code(), Some(code), "{said}");
        assert!(said.contains("owner 1 did not start"), "{said}");
        for line in folder.events() {
            let pid = line.split(' ').nth(3).unwrap().parse().unwrap();
            assert!(Handle::open(pid).ends_within(Duration::ZERO), "{line}");
        }
        assert!(!folder.0.join("status").exists());
        folder.habit(owner(1), "");
        drop(Server::start(&folder, &["owners=3"]));
    }
}

/// S8, S31: the second one names the first, and harms it in no way.
#[test]
fn a_second_supervisor_is_refused() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let linked = Folder::new();
    let path = linked.0.join("elsewhere");
    std::os::unix::fs::symlink(&folder.0, &path).unwrap();
    server.signal(Signal::STOP);
    for dir in [&folder.0, &path] {
        let same = std::mem::ManuallyDrop::new(Folder(dir.clone()));
        let (status, said) = Server::spawn(&same, &[]).wait();
        assert_eq!(status.code(), Some(10), "{said}");
        assert!(said.contains(&format!("process {}", server.child.id())), "{said}");
    }
    server.signal(Signal::CONT);
    assert!(server.client().ask("put 0").starts_with("ok 1 "));
}

/// S8, S13 of the matrix: a process of an earlier server that does not go keeps its lock, and the next start says so.
#[test]
fn a_slot_lock_that_stays_held_refuses_the_start() {
    let folder = Folder::new();
    let lock = supervisor::lock::Lock::take(&folder.0.join("slot-1.lock"), Duration::ZERO).unwrap();
    let (status, said) = Server::spawn(&folder, &["lock-wait-ms=50"]).wait();
    assert_eq!(status.code(), Some(10), "{said}");
    assert!(said.contains(&format!("process {}", std::process::id())), "{said}");
    drop(lock);
    drop(Server::start(&folder, &["lock-wait-ms=50"]));
}

/// S31: by hand no process of a server can be started.
#[test]
fn an_owner_started_by_hand_is_refused() {
    for role in ["owner", "frontend", "tubes", "daemon"] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_supervisor-fixture")).arg(role).output().unwrap();
        assert_eq!(output.status.code(), Some(5));
        assert!(String::from_utf8_lossy(&output.stderr).contains("by the supervisor only"));
    }
}

/// S4: what the caller of the supervisor left open reaches none of its processes; each has what it was given.
#[test]
fn processes_inherit_nothing_but_what_they_are_given() {
    use std::os::unix::process::CommandExt;
    let folder = Folder::new();
    // A shell opens two descriptors and replaces itself by the server.
    let script = format!(
        "exec 7</dev/null 9>/dev/null; exec '{}' supervise '{}'",
        env!("CARGO_BIN_EXE_supervisor-fixture"),
        folder.0.display()
    );
    let child = std::process::Command::new("sh").arg0("sh").args(["-c", &script]).spawn().unwrap();
    let server = Server { child, dir: folder.0.clone() };
    until("the server serves", || server.try_status().filter(|status| status.serving));
    assert!(std::fs::exists(format!("/proc/{}/fd/7", server.child.id())).unwrap());
    for process in server.processes() {
        for number in [7, 9] {
            let target = std::fs::read_link(format!("/proc/{}/fd/{number}", process.pid));
            assert!(!target.is_ok_and(|target| target == std::path::Path::new("/dev/null")), "descriptor {number}");
        }
    }
}

/// S7: a frozen process is found by its silence, killed and replaced; one in a sync is not.
#[test]
fn a_frozen_process_is_killed_and_replaced_and_a_syncing_one_is_not() {
    let folder = Folder::new();
    folder.habit(owner(0), "syncing");
    let server = Server::start(&folder, &["owners=3"]);
    server.until_process(owner(0), |found| found.in_sync_ms.is_some());
    let syncing = server.handle(owner(0));
    syncing.signal(Signal::STOP);
    let frozen = server.handle(owner(1));
    frozen.signal(Signal::STOP);
    // For less than the ten pings that it takes.
    let paused = server.handle(owner(2));
    paused.signal(Signal::STOP);
    server.until_process(owner(2), |found| found.unanswered_pings >= 4);
    paused.signal(Signal::CONT);
    assert!(frozen.ends_within(common::PATIENCE));
    server.until_ready(owner(1), 2);
    assert!(!syncing.ends_within(Duration::ZERO));
    syncing.signal(Signal::CONT);
    server.until_process(owner(0), |found| found.unanswered_pings <= 1);
    for slot in [owner(0), owner(2)] {
        assert_eq!(server.process(slot).restarts, 0);
    }
    assert_eq!(server.process(owner(1)).restarts, 1);
}
