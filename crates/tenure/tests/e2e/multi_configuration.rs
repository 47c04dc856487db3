//! Multi mode from a configuration file: every key of it has its effect, and a flag wins over it.

use super::tubes;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use testing::process::{Folder, Launch, wait_until};

/// A server whose `[tubes]` section has `keys`, with its data in `folder`.
fn configured(folder: &Folder, keys: &str) -> Launch {
    let file = folder.join("tenure.toml");
    fs::write(&file, format!("[tubes]\nmode = \"multi\"\n{keys}\n")).expect("a file");
    let data = folder.join("data");
    if !data.exists() {
        fs::create_dir(&data).expect("a folder");
    }
    tubes().before_tubes(["-c", file.to_str().expect("UTF-8")]).log_in(&data)
}

fn status(folder: &Folder) -> Value {
    let data = folder.join("data");
    let mut found = Value::Null;
    wait_until("the server tells its status", || {
        let output = Command::new(env!("CARGO_BIN_EXE_tenure")).args(["status", "--json"]).arg(&data).output();
        let output = output.expect("the program runs");
        found = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        found["serving"] == true
    });
    found
}

fn owner(folder: &Folder, slot: u64) -> Value {
    let status = status(folder);
    let processes = status["processes"].as_array().expect("a list of processes");
    processes.iter().find(|process| process["role"] == "owner" && process["slot"] == slot).expect("the owner").clone()
}

fn kill(process: &Value) {
    let pid = process["pid"].as_i64().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).expect("a process");
    kill_process(pid, Signal::KILL).expect("it is killed");
}

fn topology(folder: &Folder) -> (usize, usize) {
    let status = status(folder);
    let processes = status["processes"].as_array().expect("a list of processes");
    let count = |role: &str| processes.iter().filter(|process| process["role"] == role).count();
    (count("owner"), count("frontend"))
}

#[test]
fn the_numbers_of_processes_come_from_the_file_unless_a_flag_says_otherwise() {
    let folder = Folder::new();
    let launch = configured(&folder, "owners = 3\nfrontends = 1");
    let mut server = launch.start();
    assert_eq!(topology(&folder), (3, 1));
    assert!(server.terminate().success());
    let mut server = launch.with(["--frontends", "2"]).start();
    assert_eq!(topology(&folder), (3, 2));
    assert!(server.terminate().success());
    // The directory is divided for three.
    let refused = configured(&folder, "owners = 4").finish();
    assert_eq!(refused.code, Some(12), "{refused:?}");
    let mut server = configured(&folder, "owners = 4").with(["--owners", "3"]).start();
    assert_eq!(topology(&folder), (3, 2), "two frontends by default");
    assert!(server.terminate().success());
}

#[test]
fn limit_and_wait_come_from_the_file() {
    let folder = Folder::new();
    let server =
        configured(&folder, "owners = 2\nfrontends = 1\nrestart_limit = \"0/60\"\nowner_wait = \"200ms\"").start();
    kill(&owner(&folder, 1));
    wait_until("the slot has failed", || owner(&folder, 1)["condition"] == "failed");
    let mut client = server.connect();
    let began = Instant::now();
    // Of two owners `a` belongs to owner 1.
    client.check("stats-tube a\r\n", "INTERNAL_ERROR\r\n");
    assert!(began.elapsed() >= Duration::from_millis(200), "it waits {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_millis(2000), "it waits {:?}", began.elapsed());
    client.check("stats-tube d\r\n", "NOT_FOUND\r\n");
}

#[test]
fn the_delay_of_a_restart_comes_from_the_file() {
    let folder = Folder::new();
    let _server = configured(&folder, "owners = 2\nfrontends = 1\nrestart_delay = \"2s\"").start();
    let before = owner(&folder, 0);
    kill(&before);
    let began = Instant::now();
    wait_until("it is down", || owner(&folder, 0)["condition"] == "down");
    wait_until("its successor is ready", || {
        let now = owner(&folder, 0);
        now["condition"] == "ready" && now["generation"] != before["generation"]
    });
    // Less the spread of 20 %.
    assert!(began.elapsed() >= Duration::from_millis(1600), "it was back after {:?}", began.elapsed());
}

#[test]
fn a_failed_slot_ends_the_server_where_the_file_says_so() {
    let folder = Folder::new();
    let mut server =
        configured(&folder, "owners = 2\nfrontends = 1\nrestart_limit = \"0/60\"\non_slot_failed = \"stop\"").start();
    kill(&owner(&folder, 1));
    assert_eq!(server.wait().code(), Some(1), "a signal ended the slot");
    assert!(server.stderr().contains("owner 1 has failed"), "{}", server.stderr());
}

#[test]
fn sizes_come_from_the_file() {
    let folder = Folder::new();
    let server = configured(&folder, "max_job_size = \"10B\"\nsegment_size = \"1MiB\"\nsync = \"always\"").start();
    let mut client = server.connect();
    client.check("put 0 0 60 11\r\n01234567890\r\n", "JOB_TOO_BIG\r\n");
    client.check_stats("stats", &[("max-job-size", "10"), ("binlog-max-size", "1048576")]);
    assert_eq!(status(&folder)["about"]["ack_level"], "always");
    let segment = folder.join("data/logs-1/slot-1/0000000001.log");
    assert_eq!(fs::metadata(Path::new(&segment)).expect("a segment").len(), 1_048_576);
}
