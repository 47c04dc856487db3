//! One process owns a SQLite file (C16): the guard, restart at once, backup in use.

use std::fs;
use std::os::unix::fs::symlink;

use rustix::process::Signal;
use serde_json::Value;

use crate::site::{DaemonProcess, Kind, Site, stderr, stdout};

fn site() -> Site {
    Site::new(Kind::Sqlite)
}

#[test]
fn a_second_daemon_is_refused_and_told_who_has_the_file_by_whatever_path_it_came() {
    let mut site = site();
    let daemon = site.daemon("a", "");
    fs::create_dir(site.path("elsewhere")).expect("a folder");
    symlink(site.path("tenure.db"), site.path("elsewhere/link.db")).expect("a link");
    symlink(site.path("."), site.path("elsewhere/folder")).expect("a link");
    let urls = ["tenure.db", "elsewhere/link.db", "elsewhere/folder/tenure.db"];
    for (count, path) in urls.iter().enumerate() {
        site.url = format!("sqlite:{}", site.path(path).display());
        let file = site.configure(&format!("second{count}"), "");
        let (code, log) = DaemonProcess::start(&site, &file).end();
        assert_eq!(code, Some(10), "{path}: {log}");
        let holder = format!("process {}", daemon.pid());
        assert!(log.contains("in use by") && log.contains(&holder) && log.contains("the daemon"), "{path}: {log}");
    }
    assert!(daemon.is_ready(), "{}", daemon.log());
}

#[test]
fn the_command_line_says_who_has_the_file_if_that_process_does_not_answer() {
    let site = site();
    let daemon = site.daemon("a", "");
    let holder = format!("process {}", daemon.pid());
    daemon.signal(Signal::STOP);
    // Nobody listens where it asks.
    for arguments in [&["key", "create", "k", "--scope", "read"][..], &["config", "set", "log.level", "debug"]] {
        let output = site.offline(&daemon.file, arguments);
        assert_eq!(output.status.code(), Some(10), "{output:?}");
        assert!(stderr(&output).contains("in use by") && stderr(&output).contains(&holder), "{output:?}");
        assert_eq!(stdout(&output), "");
    }
    // The daemon's socket takes the call, and nobody answers it.
    let output = site.online(&daemon, None, &["key", "create", "k", "--scope", "read"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), String::new()), "{output:?}");
    assert!(stderr(&output).contains("did not answer") && stderr(&output).contains(&holder), "{output:?}");
    daemon.signal(Signal::CONT);
    daemon.wait_ready();
}

#[test]
fn a_restart_after_a_crash_needs_no_wait_and_keeps_what_was_acknowledged() {
    let site = site();
    let file = site.configure("a", "");
    let admin = site.key(&file, "admin", &["admin"]);
    for round in 0..5 {
        let daemon = DaemonProcess::start(&site, &file);
        daemon.wait_ready();
        let listed = daemon.get("/v1/keys", Some(&admin)).expect(200).json();
        assert_eq!(listed["keys"].as_array().map(Vec::len), Some(1 + round), "{listed}");
        let body = serde_json::json!({ "name": format!("k{round}"), "scopes": ["read"] });
        daemon.call("POST", "/v1/keys", Some(&admin), Some(&body)).expect(201);
        daemon.kill();
    }
}

#[test]
fn a_backup_is_made_in_use_and_opens_with_the_keys_in_it() {
    let mut site = site();
    let file = site.configure("a", "");
    let admin = site.key(&file, "admin", &["admin"]);
    let daemon = DaemonProcess::start(&site, &file);
    daemon.wait_ready();
    let folder = site.path("backup");
    let folder = folder.to_str().expect("UTF-8");
    let output = site.online(&daemon, Some(&admin), &["backup", folder]);
    assert!(output.status.success(), "{output:?}");
    let copy = stdout(&output);
    let copy = copy.split(" (").next().expect("a path").to_owned();
    assert!(copy.starts_with(folder), "{copy}");
    let output = site.online(&daemon, None, &["backup", folder]);
    assert_eq!(output.status.code(), Some(2), "without a key: {output:?}");
    // What was changed after the copy is not in it.
    let body = serde_json::json!({ "name": "later", "scopes": ["read"] });
    daemon.call("POST", "/v1/keys", Some(&admin), Some(&body)).expect(201);
    // The original goes on beside the copy.
    site.url = format!("sqlite:{copy}");
    let restored = DaemonProcess::start(&site, &site.configure("restored", ""));
    restored.wait_ready();
    let listed = restored.get("/v1/keys", Some(&admin)).expect(200).json();
    let names: Vec<&Value> = listed["keys"].as_array().expect("a list").iter().map(|key| &key["name"]).collect();
    assert_eq!(names, ["admin"]);
    daemon.get("/v1/keys", Some(&admin)).expect(200);
}

#[test]
fn there_is_no_backup_by_the_daemon_on_postgres() {
    let site = Site::new(Kind::Postgres);
    let daemon = site.daemon("a", "");
    let output = site.online(&daemon, None, &["backup", site.path("backup").to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("pg_dump"), "{output:?}");
}
