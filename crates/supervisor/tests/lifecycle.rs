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
}
