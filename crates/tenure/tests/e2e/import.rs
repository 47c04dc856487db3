//! Taking over from the original: its files, written by the original itself, become a data directory of ours.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use testing::process::{Folder, Launch};

use super::tubes;

/// Debian's package `beanstalkd`.
const ORIGINAL: &str = "/usr/bin/beanstalkd";

/// Runs `tenure import beanstalkd FROM --to TO`.
#[track_caller]
fn import(from: &Path, to: &Path) -> Output {
    let words = [OsStr::new("import"), OsStr::new("beanstalkd"), from.as_os_str(), OsStr::new("--to"), to.as_os_str()];
    Command::new(env!("CARGO_BIN_EXE_tenure")).args(words).output().expect("the program runs")
}

#[test]
fn jobs_of_the_original_go_on_under_the_ids_that_clients_know() {
    let folder = Folder::new();
    let (from, to) = (folder.join("original"), folder.join("ours"));
    fs::create_dir(&from).expect("a directory");
    let mut original = Launch::original(ORIGINAL).log_in(&from).with(["-f0"]).start();
    let mut client = original.connect();
    client.check("use work\r\nwatch work\r\nignore default\r\n", "USING work\r\nWATCHING 2\r\nWATCHING 1\r\n");
    client.check("put 7 0 120 5\r\nready\r\n", "INSERTED 1\r\n");
    client.check("put 0 0 60 4\r\ngone\r\nreserve\r\n", "INSERTED 2\r\nRESERVED 2 4\r\ngone\r\n");
    client.check(
        "delete 2\r\nput 3 0 60 6\r\nburied\r\nreserve\r\n",
        "DELETED\r\nINSERTED 3\r\nRESERVED 3 6\r\nburied\r\n",
    );
    client.check("bury 3 33\r\nput 5 9000 70 7\r\ndelayed\r\n", "BURIED\r\nINSERTED 4\r\n");
    client.check("put 2 0 60 4\r\nback\r\nreserve\r\n", "INSERTED 5\r\nRESERVED 5 4\r\nback\r\n");
    client.check("release 5 99 0\r\n", "RELEASED\r\n");

    // While the original runs, nothing is taken.
    let refused = import(&from, &to);
    assert_eq!(refused.status.code(), Some(10), "{refused:?}");
    original.kill();
    let before = fs::read(from.join("binlog.1")).expect("the original's file");
    let taken = import(&from, &to);
    assert!(taken.status.success(), "{taken:?}");
    assert_eq!(fs::read(from.join("binlog.1")).expect("the original's file"), before, "FROM is not changed");

    let server = tubes().log_in(&to).start();
    let mut client = server.connect();
    client.check("use work\r\nwatch work\r\nignore default\r\n", "USING work\r\nWATCHING 2\r\nWATCHING 1\r\n");
    client.check(
        "peek 2\r\npeek-buried\r\npeek-delayed\r\n",
        "NOT_FOUND\r\nFOUND 3 6\r\nburied\r\nFOUND 4 7\r\ndelayed\r\n",
    );
    client.check_stats("stats-job 3", &[("pri", "33"), ("buries", "1"), ("reserves", "1"), ("tube", "\"work\"")]);
    client.check_stats("stats-job 4", &[("pri", "5"), ("delay", "9000"), ("ttr", "70"), ("state", "delayed")]);
    // The original writes a release only if it has a delay, so the new priority was never on its disk.
    client.check_stats("stats-job 5", &[("pri", "2"), ("state", "ready")]);
    client.check("reserve\r\nreserve\r\n", "RESERVED 5 4\r\nback\r\nRESERVED 1 5\r\nready\r\n");
    client.check("put 0 0 60 1\r\na\r\n", "INSERTED 6\r\n");

    // The new directory must be empty.
    drop(client);
    let again = import(&from, &to);
    assert!(!again.status.success(), "{again:?}");
}
