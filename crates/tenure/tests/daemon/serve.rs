//! Queue server and daemon under one supervisor, seen through the daemon.

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testing::client::Client;
use testing::process::{Address, free_port};

use crate::site::{DaemonProcess, Kind, Site, on_both, until};

/// The account of the test; processes that root starts would become another one.
pub(crate) fn account() -> String {
    let account = Command::new("id").arg("-un").output().expect("the name of this account");
    String::from_utf8(account.stdout).expect("a name in UTF-8").trim().to_owned()
}

/// A slot of the supervisor, as the daemon shows it.
fn slot(daemon: &DaemonProcess, role: &str) -> Option<Value> {
    let answer = daemon.try_call("GET", "/v1/tubes", None, None).ok().filter(|answer| answer.status == 200)?;
    answer.json()["processes"].as_array()?.iter().find(|process| process["role"] == role).cloned()
}

fn tubes_and_daemon_are_seen_through_the_daemon_and_outlive_each_other(kind: Kind) {
    let site = Site::new(kind);
    let port = free_port();
    let file = site.configure("a", &format!("[tubes]\nlisten = \"127.0.0.1:{port}\"\n"));
    let text = std::fs::read_to_string(&file).expect("our file");
    std::fs::write(&file, format!("user = {:?}\n{text}", account())).expect("our file");
    let server = DaemonProcess::start_by(&site, site.program(&file).arg("serve"), &file);
    server.wait_ready();
    let address = Address::Tcp(([127, 0, 0, 1], port).into());
    let mut client = Client::connect(&address).expect("the queue listens");
    client.put(0, 0, 60, b"one");

    let figures = until(
        "the figures of the queue are among the daemon's",
        || server.log(),
        || {
            let text = server.get("/metrics", None).expect(200).body;
            text.contains("tenure_jobs_put_total").then_some(text)
        },
    );
    assert!(figures.contains("tenure_jobs{") && figures.contains("tenure_member_valid 1"), "{figures}");
    let families: Vec<&str> = figures.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let mut once = families.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), families.len(), "a family stands in the text twice");
    let (tubes, daemon) = (slot(&server, "tubes").expect("a slot"), slot(&server, "daemon").expect("a slot"));
    assert!(tubes["condition"] == "ready" && daemon["condition"] == "ready", "{tubes} {daemon}");

    let pid = i32::try_from(daemon["pid"].as_i64().expect("a process")).expect("a process number");
    kill_process(Pid::from_raw(pid).expect("a process number"), Signal::KILL).expect("a process of ours");
    let again = until(
        "the daemon was started again",
        || server.log(),
        || slot(&server, "daemon").filter(|slot| slot["pid"] != daemon["pid"] && slot["condition"] == "ready"),
    );
    assert!(again["generation"].as_u64() > daemon["generation"].as_u64(), "{again}");
    server.wait_ready();
    assert_eq!(slot(&server, "tubes").expect("a slot")["pid"], tubes["pid"], "nobody touched the queue");
    client.put(0, 0, 60, b"two");
    assert_eq!(client.stat("stats", "current-jobs-ready"), "2", "the client is still connected");
    server.stop();
}
on_both!(tubes_and_daemon_are_seen_through_the_daemon_and_outlive_each_other);
