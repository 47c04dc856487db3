//! What an operator sees of a server of several processes, and can do (S7, S37).

use super::tubes;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use testing::process::{Folder, wait_until};

fn tenure(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenure")).args(arguments).output().expect("the program runs")
}

fn status(folder: &Path) -> Value {
    let output = tenure(&["status", folder.to_str().expect("a name in UTF-8"), "--json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("the status is JSON")
}

/// Owner 1 of a status.
fn owner_1(status: &Value) -> Value {
    let processes = status["processes"].as_array().expect("a list of processes");
    processes.iter().find(|process| process["role"] == "owner" && process["slot"] == 1).expect("owner 1").clone()
}

#[test]
fn a_slot_whose_restarts_are_used_up_is_seen_stays_down_alone_and_can_be_tried_again() {
    let folder = Folder::new();
    let server = tubes()
        .log_in(folder.path())
        .with(["--owners", "2", "--frontends", "1", "--restart-limit", "0/60", "--owner-wait", "100ms"])
        .start();
    // `a` belongs to owner 1 and `d` to owner 0 of two.
    let mut client = server.connect();
    client.check("use a\r\n", "USING a\r\n");
    client.put(0, 0, 60, b"kept");
    assert_eq!(owner_1(&status(folder.path()))["condition"], "ready");

    let pid = owner_1(&status(folder.path()))["pid"].as_i64().expect("it has a process");
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process number")).expect("a process number");
    kill_process(pid, Signal::KILL).expect("it is killed");
    wait_until("the slot has failed", || owner_1(&status(folder.path()))["condition"] == "failed");

    let text = tenure(&["status", folder.path().to_str().expect("UTF-8")]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("owner 1: failed"), "{text:?}");
    // Its commands wait, then say so; never NOT_FOUND (S33). The others serve on.
    let mut client = server.connect();
    client.check("stats-tube a\r\n", "INTERNAL_ERROR\r\n");
    client.check("use d\r\n", "USING d\r\n");
    client.put(0, 0, 60, b"other");

    let again = tenure(&["tubes", "restart-slot", "1", folder.path().to_str().expect("UTF-8")]);
    assert!(again.status.success(), "{again:?}");
    wait_until("the slot is back", || owner_1(&status(folder.path()))["condition"] == "ready");
    assert_eq!(owner_1(&status(folder.path()))["generation"], 2);
    let mut client = server.connect();
    client.check("watch a\r\n", "WATCHING 2\r\n");
    client.send("reserve\r\n");
    assert!(client.line().starts_with("RESERVED "));
    client.expect("kept\r\n");
}

#[test]
fn asking_where_no_server_is_ends_with_3_and_a_refusal_with_2() {
    let folder = Folder::new();
    let place = folder.path().to_str().expect("UTF-8");
    assert_eq!(tenure(&["status", place]).status.code(), Some(3));
    let _server = tubes().log_in(folder.path()).with(["--owners", "1", "--frontends", "1"]).start();
    wait_until("the status socket is there", || tenure(&["status", place]).status.success());
    for slot in ["0", "7"] {
        let refused = tenure(&["tubes", "restart-slot", slot, place]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
    assert_eq!(tenure(&["status"]).status.code(), Some(5));
}

#[test]
fn a_reader_that_goes_before_the_end_of_a_status_is_no_failure_and_a_full_disk_is() {
    let folder = Folder::new();
    let server = tubes().log_in(folder.path()).with(["--owners", "1", "--frontends", "1"]).start();
    let ask = |stdout: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.arg("status").arg(folder.path()).stdout(stdout).output().expect("the program runs")
    };
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = ask(writer.into());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");

    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a file that is always full");
    let output = ask(full.into());
    assert_eq!(output.status.code(), Some(10), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("tenure: failed to write to standard output: "), "{said}");
    drop(server);
}

#[test]
fn a_server_of_one_process_and_none_at_all_cannot_be_asked_for_their_status() {
    let folder = Folder::new();
    let directory = folder.path().to_str().expect("a name in UTF-8");
    let server = tubes().log_in(folder.path()).start();
    for arguments in [&["status", directory][..], &["tubes", "restart-slot", "0", directory]] {
        let output = tenure(arguments);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("only a server that runs under a supervisor can be asked"), "{said}");
    }
    drop(server);
}
