//! Another number of owners, or another mode, for the same data (T30): every job under the id that its client knows.

use super::tubes;
use std::path::Path;
use std::process::{Command, Output};
use testing::client::Client;
use testing::process::{Folder, Launch};

fn reshard(folder: &Path, flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["tubes", "reshard"])
        .arg(folder)
        .args(flags)
        .output()
        .expect("the program runs")
}

fn single(folder: &Path) -> Launch {
    tubes().log_in(folder)
}

fn owners(folder: &Path, count: &str) -> Launch {
    tubes().log_in(folder).with(["--owners", count, "--frontends", "2"])
}

/// What a client can know of a job, without what time changes.
fn shown(client: &mut Client, id: u64) -> String {
    let text = client.text(&format!("stats-job {id}"));
    let kept = |line: &&str| !["age", "time-left", "file"].iter().any(|key| line.starts_with(key));
    let found = client.ask(&format!("peek {id}"));
    let body = client.line();
    text.lines().filter(kept).collect::<Vec<_>>().join("\n") + &found + &body
}

/// Puts jobs in every state into several tubes; returns their ids.
fn fill(client: &mut Client) -> Vec<u64> {
    let mut ids = Vec::new();
    for tube in ["default", "a", "d", "mail", "video", "x-1"] {
        client.ask(&format!("use {tube}"));
        for (pri, delay) in [(0, 0), (7, 1000), (4_294_967_295, 0), (1024, 0)] {
            ids.push(client.put(pri, delay, 60, format!("{tube} {pri}").as_bytes()));
        }
        let id = *ids.last().expect("jobs were put");
        client.ask(&format!("reserve-job {id}"));
        client.expect(format!("{tube} 1024\r\n"));
        client.check(format!("bury {id} 3\r\n"), "BURIED\r\n");
    }
    ids
}

#[test]
fn jobs_keep_their_ids_states_and_counters_from_one_process_to_several_and_back() {
    let folder = Folder::new();
    let mut server = single(folder.path()).start();
    let mut client = server.connect();
    let mut ids = fill(&mut client);
    let deleted = ids.swap_remove(3);
    client.check(format!("delete {deleted}\r\n"), "DELETED\r\n");
    let before: Vec<String> = ids.iter().map(|id| shown(&mut client, *id)).collect();
    server.terminate();

    let mut highest = *ids.iter().max().expect("jobs were put");
    let steps: [(&[&str], Option<&str>); 4] = [
        (&["--owners", "3"], Some("3")),
        (&["--owners", "2", "--keep"], Some("2")),
        (&["--single"], None),
        (&["--owners", "5"], Some("5")),
    ];
    for (flags, count) in steps {
        let done = reshard(folder.path(), flags);
        assert!(done.status.success(), "{flags:?}: {done:?}");
        let launch = count.map_or_else(|| single(folder.path()), |count| owners(folder.path(), count));
        let mut server = launch.start();
        let mut client = server.connect();
        let after: Vec<String> = ids.iter().map(|id| shown(&mut client, *id)).collect();
        assert_eq!(after, before, "{flags:?}");
        client.check(format!("peek {deleted}\r\n"), "NOT_FOUND\r\n");
        // A new job's id is above all that were ever given, and leads to its job.
        let new = client.put(0, 0, 60, b"new");
        assert!(new > highest, "{flags:?}: {new} after {highest}");
        highest = new;
        client.check(format!("delete {new}\r\n"), "DELETED\r\n");
        server.terminate();
    }
}

#[test]
fn commands_by_an_old_id_reach_the_one_owner_that_knows_it() {
    let folder = Folder::new();
    let mut server = single(folder.path()).start();
    let ids = fill(&mut server.connect());
    server.terminate();
    assert!(reshard(folder.path(), &["--owners", "2"]).status.success());
    let server = owners(folder.path(), "2").start();
    let (mut client, mut other) = (server.connect(), server.connect());
    for (at, id) in ids.into_iter().enumerate() {
        // In each tube: ready, delayed, ready, buried.
        let kicked = if at % 4 == 1 || at % 4 == 3 { "KICKED\r\n" } else { "NOT_FOUND\r\n" };
        client.check(format!("kick-job {id}\r\n"), kicked);
        assert!(client.ask(&format!("reserve-job {id}")).starts_with(&format!("RESERVED {id} ")));
        client.line();
        other.check(format!("delete {id}\r\ntouch {id}\r\n"), "NOT_FOUND\r\nNOT_FOUND\r\n");
        client.check(format!("touch {id}\r\nrelease {id} 5 0\r\n"), "TOUCHED\r\nRELEASED\r\n");
        other.check(format!("delete {id}\r\ndelete {id}\r\n"), "DELETED\r\nNOT_FOUND\r\n");
    }
    client.check_stats("stats", &[("current-jobs-ready", "0"), ("current-jobs-buried", "0")]);
}

#[test]
fn what_cannot_be_converted_is_refused_and_left_alone() {
    let folder = Folder::new();
    let mut server = single(folder.path()).start();
    server.connect().put(0, 0, 60, b"kept");
    // In use.
    assert_eq!(reshard(folder.path(), &["--owners", "2"]).status.code(), Some(10));
    server.terminate();
    assert_eq!(reshard(folder.path(), &["--single"]).status.code(), Some(5), "it is so already");
    assert_eq!(reshard(folder.path(), &[]).status.code(), Some(5), "nothing is asked for");
    assert_eq!(reshard(folder.path(), &["--single", "--owners", "2"]).status.code(), Some(5));
    assert_eq!(reshard(Folder::new().path(), &["--owners", "2"]).status.code(), Some(12), "no data directory");
    // What an interrupted run leaves behind is no obstacle and no data.
    let left = folder.join("logs-2/slot-0");
    std::fs::create_dir_all(&left).expect("a folder");
    std::fs::write(left.join("0000000001.log"), b"half of a segment").expect("a file");
    let mut server = single(folder.path()).start();
    server.connect().check("peek 1\r\n", "FOUND 1 4\r\nkept\r\n");
    server.terminate();
    let done = reshard(folder.path(), &["--owners", "2"]);
    assert!(done.status.success(), "{done:?}");
    let server = owners(folder.path(), "2").start();
    server.connect().check("peek 1\r\n", "FOUND 1 4\r\nkept\r\n");
}
