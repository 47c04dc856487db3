//! What `tenure status` tells beyond the state of the slots: links, jobs and logs of each process, and the ack level
//! (GT2, S9).

use super::tubes;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use testing::process::{Folder, wait_until};

fn status(place: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_tenure")).args(["status", "--json"]).args(place).output();
    let output = output.expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("the status is JSON")
}

/// In words, once the server serves.
fn words(folder: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tenure")).arg("status").arg(folder).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn figure(status: &Value, role: &str, slot: u64, name: &str) -> u64 {
    let processes = status["processes"].as_array().expect("a list of processes");
    let process = processes.iter().find(|process| process["role"] == role && process["slot"] == slot).expect("a slot");
    process["figures"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {process}"))
}

#[test]
fn jobs_links_and_logs_are_told_slot_by_slot() {
    let folder = Folder::new();
    let server = tubes().log_in(folder.path()).with(["--owners", "2", "--frontends", "1", "-f", "0"]).start();
    let place = folder.path().to_str().expect("UTF-8");
    let mut client = server.connect();
    // Of two owners `a` belongs to owner 1.
    client.check("use a\r\n", "USING a\r\n");
    for _ in 0..3 {
        client.put(0, 0, 60, b"x");
    }
    let mut now = Value::Null;
    wait_until("the jobs are told", || {
        now = status(&[place]);
        figure(&now, "owner", 1, "jobs_ready") == 3
    });
    assert_eq!(figure(&now, "owner", 0, "jobs_ready"), 0);
    assert_eq!(figure(&now, "frontend", 0, "cmd-put"), 3);
    assert_eq!(figure(&now, "frontend", 0, "connections"), 1);
    assert_eq!(figure(&now, "frontend", 0, "link_backlog_bytes"), 0);
    assert_eq!(figure(&now, "owner", 1, "link_backlog_bytes"), 0);
    assert_eq!(figure(&now, "owner", 1, "log_oldest_segment"), 1);
    assert_eq!(figure(&now, "owner", 1, "log_current_segment"), 1);
    assert_eq!(figure(&now, "owner", 1, "log_bytes"), 10_485_760);
    assert_eq!(figure(&now, "owner", 1, "log_has_no_space"), 0);
    assert!(figure(&now, "owner", 1, "log_records_synced") >= 3);
    assert!(figure(&now, "owner", 1, "log_last_sync_ms") > 1_700_000_000_000);
    assert_eq!(now["about"]["ack_level"], "always");
    assert_eq!(now["about"]["mode"], "multi");
    assert_eq!(now["about"]["directory"], place);
    assert_eq!(now["about"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(now["cpu_user_us"].is_u64() && now["serving"] == true);
    let said = words(folder.path());
    for part in [
        "2 owners, 1 frontends",
        "acknowledged as `always`",
        "survives a power loss",
        "owner 1: ready, process ",
        "generation 1, 0 restarts, 0 bytes wait on links; log: segments 1 to 1, 10485760 bytes, ",
        "frontend 0: ready, process ",
        "; 1 connections",
    ] {
        assert!(said.contains(part), "{part:?} is missing in\n{said}");
    }
}

#[test]
fn a_server_without_a_log_says_so() {
    let server = tubes().with(["--owners", "1", "--frontends", "1"]).start();
    let named = || server.stderr().lines().find_map(|line| Some(line.split_once("status at ")?.1.to_owned()));
    wait_until("the status socket is named and there", || named().is_some_and(|path| Path::new(&path).exists()));
    let now = status(&["--socket", &named().expect("it was there")]);
    assert_eq!(now["about"]["ack_level"], "none");
    assert_eq!(now["about"].get("directory"), None);
    assert_eq!(figure(&now, "owner", 0, "log_current_segment"), 0);
}

#[test]
fn the_start_says_what_an_acknowledged_command_survives() {
    for (flag, survives) in [("-f0", "survives a power loss"), ("-F", "survives the death of the process; damage")] {
        let folder = Folder::new();
        let server = tubes().log_in(folder.path()).with(["--owners", "1", "--frontends", "1", flag]).start();
        wait_until("it serves", || server.stderr().contains("serving"));
        assert!(server.stderr().contains(survives), "{}", server.stderr());
    }
}

#[test]
fn what_waits_on_a_link_is_told_while_its_owner_is_stopped() {
    let folder = Folder::new();
    let server = tubes().log_in(folder.path()).with(["--owners", "2", "--frontends", "1"]).start();
    let place = folder.path().to_str().expect("UTF-8");
    let mut client = server.connect();
    // Of two owners `a` belongs to owner 1.
    client.check("use a\r\n", "USING a\r\n");
    let owner = status(&[place])["processes"][1].clone();
    assert_eq!((owner["role"].as_str(), owner["slot"].as_u64()), (Some("owner"), Some(1)));
    let pid = owner["pid"].as_i64().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).expect("a process");
    kill_process(pid, Signal::STOP).expect("it is stopped");
    // More than a socket takes; the frontend stops reading its client at some point, never the link.
    let mut puts = Vec::new();
    for _ in 0..40 {
        puts.extend_from_slice(b"put 0 0 60 60000\r\n");
        puts.resize(puts.len() + 60_000, b'x');
        puts.extend_from_slice(b"\r\n");
    }
    let mut sent = 0;
    wait_until("bytes wait on the link", || {
        sent += client.send_without_waiting(&puts[sent..]);
        figure(&status(&[place]), "frontend", 0, "link_backlog_bytes") > 60_000
    });
    // Before the watchdog kills it.
    kill_process(pid, Signal::CONT).expect("it goes on");
    client.send(&puts[sent..]);
    for _ in 0..40 {
        assert!(client.line().starts_with("INSERTED "));
    }
    wait_until("nothing waits any more", || figure(&status(&[place]), "frontend", 0, "link_backlog_bytes") == 0);
    assert_eq!(status(&[place])["processes"][1]["generation"], 1);
}
