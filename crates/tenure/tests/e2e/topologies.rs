//! The original's files in every topology, and from each into each other (T30): every job under the id that its client
//! knows.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use testing::client::Client;
use testing::process::{Folder, Launch, Server};

use super::tubes;

/// Debian's package `beanstalkd`.
const ORIGINAL: &str = "/usr/bin/beanstalkd";

/// How a directory is divided: `None` is one process.
type Owners = Option<u16>;

#[track_caller]
fn tenure(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenure")).args(arguments).output().expect("the program runs")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a name in UTF-8")
}

#[track_caller]
fn import(from: &Path, to: &Path, owners: Owners) {
    let number = owners.map(|owners| owners.to_string());
    let mut arguments = vec!["import", "beanstalkd", text(from), "--to", text(to)];
    arguments.extend(number.iter().flat_map(|number| ["--owners", number]));
    let done = tenure(&arguments);
    assert!(done.status.success(), "{done:?}");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let start = number.map_or_else(String::new, |number| format!(" --owners {number}"));
    assert!(said.ends_with(&format!("start with: tenure tubes -b {}{start}\n", to.display())), "{said}");
}

fn start(folder: &Path, owners: Owners) -> Server {
    let launch = tubes().log_in(folder);
    match owners {
        None => launch.start(),
        Some(owners) => launch.with(["--owners", &owners.to_string(), "--frontends", "2"]).start(),
    }
}

/// What a client can know of a job, without what time changes; `None` if it is not there.
fn shown(client: &mut Client, id: u64) -> Option<String> {
    let found = client.ask(&format!("peek {id}"));
    if found == "NOT_FOUND" {
        return None;
    }
    let body = client.line();
    let stats = client.text(&format!("stats-job {id}"));
    let kept = |line: &&str| !["age", "time-left", "file"].iter().any(|key| line.starts_with(key));
    // The original quotes names of tubes from some version on.
    Some(stats.replace('"', "").lines().filter(kept).collect::<Vec<_>>().join("\n") + &found + &body)
}

/// Fills an original with jobs in every state in several tubes; returns the highest id that it has given, the one of
/// a job that is gone.
fn fill(original: &Server) -> u64 {
    let mut client = original.connect();
    for tube in ["default", "a", "d", "mail", "video", "x-1", "of;every$kind"] {
        client.ask(&format!("use {tube}"));
        client.ask(&format!("watch {tube}"));
        for (pri, delay) in [(0, 0), (7, 1000), (4_294_967_295, 0), (1024, 0), (3, 0)] {
            client.put(pri, delay, 60 + pri % 1000, format!("{tube} {pri}").as_bytes());
        }
        let highest = client.put(1, 0, 60, b"to be buried");
        client.ask(&format!("reserve-job {highest}"));
        client.line();
        client.check(format!("bury {highest} 9\r\n"), "BURIED\r\n");
    }
    let gone = client.put(0, 0, 60, b"gone");
    client.check(format!("delete {gone}\r\n"), "DELETED\r\n");
    gone
}

/// All jobs with an id up to `highest`.
fn all(client: &mut Client, highest: u64) -> BTreeMap<u64, String> {
    (1..=highest).filter_map(|id| Some((id, shown(client, id)?))).collect()
}

fn original_files(folder: &Folder) -> (std::path::PathBuf, u64, BTreeMap<u64, String>) {
    let from = folder.join("original");
    fs::create_dir(&from).expect("a directory");
    let mut original = Launch::original(ORIGINAL).log_in(&from).with(["-f0"]).start();
    let highest = fill(&original);
    let jobs = all(&mut original.connect(), highest);
    original.terminate();
    assert_eq!(jobs.len(), 42);
    (from, highest, jobs)
}

/// Checks that `folder` has exactly `jobs`, and that a new job's id lies above `highest`; returns that id.
#[track_caller]
fn check(folder: &Path, owners: Owners, jobs: &BTreeMap<u64, String>, highest: u64) -> u64 {
    let mut server = start(folder, owners);
    let mut client = server.connect();
    let found = all(&mut client, highest);
    jobs.iter().for_each(|(id, job)| assert_eq!(found.get(id), Some(job), "{owners:?}: job {id}"));
    assert_eq!(found.len(), jobs.len(), "{owners:?}: no job that was deleted");
    client.check_stats("stats", &[("current-jobs-buried", "7"), ("current-jobs-delayed", "7")]);
    let new = client.put(0, 0, 60, b"new");
    assert!(new > highest, "{owners:?}: {new} after {highest}");
    client.check(format!("peek {new}\r\ndelete {new}\r\n"), format!("FOUND {new} 3\r\nnew\r\nDELETED\r\n"));
    assert!(server.terminate().success());
    new
}

#[test]
fn an_import_into_each_topology_keeps_every_id_and_leads_to_each_other() {
    let folder = Folder::new();
    let (from, highest, jobs) = original_files(&folder);
    for (number, owners) in [None, Some(1), Some(3), Some(8)].into_iter().enumerate() {
        let to = folder.join(format!("ours-{number}"));
        import(&from, &to, owners);
        let mut highest = check(&to, owners, &jobs, highest);
        for next in [Some(2), Some(5), None, Some(3)] {
            if next == owners {
                continue;
            }
            let flags = next.map_or_else(|| "--single".to_owned(), |next| format!("--owners={next}"));
            let done = tenure(&["tubes", "reshard", text(&to), &flags]);
            assert!(done.status.success(), "{owners:?} to {next:?}: {done:?}");
            // Only the ids of the original are looked at: no other job is left.
            let last = check_among(&to, next, &jobs, highest);
            assert!(last > highest);
            highest = last;
        }
    }
}

/// As [`check`], with ids of later jobs in between.
#[track_caller]
fn check_among(folder: &Path, owners: Owners, jobs: &BTreeMap<u64, String>, above: u64) -> u64 {
    let highest = *jobs.keys().max().expect("jobs");
    check(folder, owners, jobs, highest).max(above)
}

#[test]
fn imported_jobs_are_worked_off_in_order_under_their_ids() {
    let folder = Folder::new();
    let (from, _, jobs) = original_files(&folder);
    let to = folder.join("ours");
    import(&from, &to, Some(2));
    let mut server = start(&to, Some(2));
    let mut client = server.connect();
    for tube in ["a", "d", "mail", "video", "x-1", "of;every$kind"] {
        client.ask(&format!("watch {tube}"));
        client.ask(&format!("use {tube}"));
        client.check("kick 100\r\n", "KICKED 1\r\n");
    }
    client.ask("use default");
    client.check("kick 100\r\n", "KICKED 1\r\n");
    let mut order = Vec::new();
    loop {
        let answer = client.ask("reserve-with-timeout 0");
        if answer == "TIMED_OUT" {
            break;
        }
        let id: u64 = answer.split(' ').nth(1).and_then(|id| id.parse().ok()).expect("an id");
        client.line();
        let pri: u64 = client.stat(&format!("stats-job {id}"), "pri").parse().expect("a priority");
        order.push((pri, id));
        client.check(format!("delete {id}\r\n"), "DELETED\r\n");
    }
    assert!(order.is_sorted(), "by priority, then id, over both owners: {order:?}");
    assert_eq!(order.len(), jobs.len() - 7, "all but the delayed ones");
    assert!(server.terminate().success());
}
