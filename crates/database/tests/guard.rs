//! One member per SQLite file (GC6, cluster rows about SQLite), and the write lock between member and guests.

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Fixture, TempDir, execute};
use database::sqlite::{OpenError, Place, Settings, Sqlite, WriteLock};
use database::{Class, Database, Script, Sql, Value};

fn member(path: &Path) -> Result<Fixture, String> {
    Fixture::start(Fixture::command(&["member", path.to_str().unwrap()]))
}

fn open(path: &Path) -> Result<Sqlite, OpenError> {
    Sqlite::open(&Settings::new(path, "tenure test"))
}

/// What a refusal must say, and that it left the other's file alone.
#[track_caller]
fn check_held_by(result: Result<Sqlite, OpenError>, member: &Fixture) {
    let error = result.expect_err("a second member was let in");
    let host = rustix::system::uname();
    let named = format!("database-fixture (process {} on {})", member.pid(), host.nodename().to_string_lossy());
    assert!(matches!(error, OpenError::Held { .. }), "{error}");
    assert!(error.to_string().ends_with(&format!("is in use by {named}")), "{error}");
}

#[test]
fn a_second_member_is_refused_by_name_and_may_start_at_once_after_a_kill() {
    let folder = TempDir::new();
    let path = folder.join("test.db");
    let first = member(&path).unwrap();
    check_held_by(open(&path), &first);
    first.kill();
    open(&path).expect("nothing remains of a process that was killed");
}

#[test]
fn within_one_process_too_there_is_one_member() {
    let folder = TempDir::new();
    let path = folder.join("test.db");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = open(&path).unwrap();
    let error = open(&path).expect_err("a second member was let in");
    assert!(error.to_string().contains(&format!("tenure test (process {}", std::process::id())), "{error}");
    runtime.block_on(first.close());
    open(&path).expect("it was closed");
}

#[test]
fn a_symbolic_link_meets_the_same_lock() {
    let folder = TempDir::new();
    let path = folder.join("test.db");
    let first = member(&path).unwrap();
    std::os::unix::fs::symlink(&path, folder.join("other.db")).unwrap();
    check_held_by(open(&folder.join("other.db")), &first);
    std::fs::create_dir(folder.join("elsewhere")).unwrap();
    std::os::unix::fs::symlink("../other.db", folder.join("elsewhere/third.db")).unwrap();
    check_held_by(open(&folder.join("elsewhere/third.db")), &first);
    let second = member(&folder.join("elsewhere/third.db")).expect_err("a second member was let in");
    assert!(second.contains("is in use by database-fixture"), "{second}");
    assert!(!folder.join("other.db.member").exists() && !folder.join("elsewhere/third.db.member").exists());
}

#[test]
fn a_link_to_a_file_that_is_not_there_is_refused() {
    let folder = TempDir::new();
    std::os::unix::fs::symlink("missing.db", folder.join("link.db")).unwrap();
    let error = open(&folder.join("link.db")).unwrap_err();
    assert!(matches!(error, OpenError::Unfit { .. }), "{error}");
    assert!(error.to_string().contains("a symbolic link that leads nowhere"), "{error}");
}

#[test]
fn a_file_with_two_names_is_refused_under_both() {
    let folder = TempDir::new();
    let path = folder.join("test.db");
    drop(member(&path).unwrap());
    std::fs::hard_link(&path, folder.join("other.db")).unwrap();
    for name in ["test.db", "other.db"] {
        let error = open(&folder.join(name)).unwrap_err();
        assert!(matches!(error, OpenError::Unfit { .. }), "{error}");
        assert!(error.to_string().contains("2 names (hard links)"), "{error}");
    }
    std::fs::remove_file(folder.join("other.db")).unwrap();
    open(&path).expect("one name is left");
}

/// Runs `mount` and then the fixture in a mount namespace of its own.
fn in_namespace(mount: &str, path: &Path) -> Result<Fixture, String> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec"]);
    command.arg(format!(
        "{mount} || {{ echo 'this test needs the right to mount: run it as root' >&2; exit 1; }}; exec \"$0\" \"$@\""
    ));
    let fixture = Fixture::command(&["member", path.to_str().unwrap()]);
    command.arg(fixture.get_program()).args(fixture.get_args());
    Fixture::start(command)
}

#[test]
fn a_folder_mounted_elsewhere_meets_the_same_lock() {
    let folder = TempDir::new();
    for name in ["data", "mounted"] {
        std::fs::create_dir(folder.join(name)).unwrap();
    }
    let mount = format!("mount --bind {0}/data {0}/mounted", folder.path().display());
    let first = member(&folder.join("data/test.db")).unwrap();
    let refused = in_namespace(&mount, &folder.join("mounted/test.db")).expect_err("a second member was let in");
    assert!(refused.contains(&format!("is in use by database-fixture (process {}", first.pid())), "{refused}");
    first.kill();
    let second = in_namespace(&mount, &folder.join("mounted/test.db")).expect("the folder may be mounted elsewhere");
    check_held_by(open(&folder.join("data/test.db")), &second);
}

#[test]
fn a_file_that_is_mounted_by_itself_is_refused() {
    let folder = TempDir::new();
    for name in ["data", "mounted"] {
        std::fs::create_dir(folder.join(name)).unwrap();
    }
    let _first = member(&folder.join("data/test.db")).unwrap();
    std::fs::write(folder.join("mounted/test.db"), "").unwrap();
    let mount = format!("mount --bind {0}/data/test.db {0}/mounted/test.db", folder.path().display());
    let refused = in_namespace(&mount, &folder.join("mounted/test.db")).expect_err("a second member was let in");
    assert!(refused.contains("the file itself is a mount point"), "{refused}");
}

#[test]
fn what_is_no_database_is_refused_and_left_as_it_is() {
    let folder = TempDir::new();
    let path = folder.join("notes.txt");
    let text = "a text of somebody, much longer than the header of a database, and of no use as one. ".repeat(8);
    std::fs::write(&path, &text).unwrap();
    let error = open(&path).unwrap_err();
    assert!(matches!(&error, OpenError::Database { source, .. } if source.class == Class::Broken), "{error}");
    assert!(error.to_string().contains("not a database"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    let error = open(folder.path()).unwrap_err();
    assert!(error.to_string().contains("it is no regular file"), "{error}");
    let error = open(&folder.join("no/such.db")).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
}

static TABLE: Sql = Sql::same("test.table", "CREATE TABLE t (n INTEGER) STRICT");
static INSERT: Sql = Sql::same("test.insert", "INSERT INTO t VALUES ($1)");
static COUNT: Sql = Sql::same("test.count", "SELECT count(*) FROM t");

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_holds_the_write_lock_for_long_is_named_and_readers_go_on() {
    let folder = TempDir::new();
    let path = folder.join("test.db");
    let guest = Arc::new(Mutex::new(None::<Fixture>));
    let named = Arc::new(Mutex::new(Vec::new()));
    let (guest_of_hook, named_by_hook) = (Arc::clone(&guest), Arc::clone(&named));
    let settings = Settings {
        on_stuck_guest: Some(Arc::new(move |pid| {
            named_by_hook.lock().unwrap().push(pid);
            guest_of_hook.lock().unwrap().take().unwrap().kill();
        })),
        ..Settings::new(&path, "test")
    };
    let database = Database::Sqlite(Sqlite::open(&settings).unwrap());
    execute(&database, &TABLE, []).await.unwrap();

    let started = Fixture::start(Fixture::command(&["guest", path.to_str().unwrap()])).unwrap();
    let pid = started.pid();
    *guest.lock().unwrap() = Some(started);
    let writing = tokio::spawn({
        let database = database.clone();
        async move { execute(&database, &INSERT, [Value::Int(7)]).await }
    });
    let begun = Instant::now();
    let count = database.read(Script::statement(&COUNT, [], |answer| answer.rows[0].int(0))).await.unwrap();
    assert_eq!(count, 0);
    assert!(begun.elapsed() < Duration::from_secs(10));
    writing.await.unwrap().expect("the guest was killed, and its lock is free");
    assert_eq!(*named.lock().unwrap(), [pid]);
}

#[test]
fn who_waits_for_the_write_lock_gets_it_or_is_told_who_has_it() {
    let folder = TempDir::new();
    let path = folder.join("test.db");
    let place = Place::find(&path).unwrap();
    let mut lock = WriteLock::open(&place).unwrap();
    // Free, twice: it is given back.
    for _ in 0..2 {
        lock.lock(Duration::ZERO, |_| ()).unwrap();
    }
    let guest = Fixture::start(Fixture::command(&["guest", path.to_str().unwrap()])).unwrap();
    for _ in 0..2 {
        let error = lock.lock(Duration::from_millis(20), |_| ()).unwrap_err();
        assert!(error.to_string().contains(&format!("by process {}", guest.pid())), "{error}");
    }
    guest.kill();
    // The thread that still waited has given it back, or hands it over.
    for _ in 0..100 {
        lock.lock(Duration::from_secs(60), |_| ()).unwrap();
    }
    // Nobody keeps it: another process gets it.
    let again = Fixture::start(Fixture::command(&["guest", path.to_str().unwrap()])).unwrap();
    again.kill();
}

/// How many syncs of a file `strace` sees while a process commits so many transactions.
fn syncs(sync: &str, commits: usize) -> usize {
    let folder = TempDir::new();
    let (path, trace) = (folder.join("test.db"), folder.join("trace"));
    let fixture = Fixture::command(&["commits", path.to_str().unwrap(), sync, &commits.to_string()]);
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", "trace=fsync,fdatasync", "-o"]).arg(&trace);
    command.arg(fixture.get_program()).args(fixture.get_args());
    let status = command.status().expect("this test needs the package strace");
    assert!(status.success());
    std::fs::read_to_string(&trace).unwrap().lines().filter(|line| line.contains("sync(")).count()
}

/// GC7: what is acknowledged survives a power loss by default.
#[test]
fn each_commit_is_synced_unless_normal_was_chosen() {
    let (full, normal) = (syncs("full", 40), syncs("normal", 40));
    assert!(full >= 40, "{full} syncs for 40 commits");
    assert!(normal < 20, "{normal} syncs for 40 commits");
}

/// SQLite may find such a commit in its log when the file is next opened.
#[test]
fn a_commit_whose_sync_fails_is_unknown() {
    let folder = TempDir::new();
    let path = folder.join("test.db");
    let fixture = Fixture::command(&["commits", path.to_str().unwrap(), "full", "40"]);
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "inject=fsync,fdatasync:error=EIO:when=20"]);
    command.arg(fixture.get_program()).args(fixture.get_args());
    let output = command.output().expect("this test needs the package strace");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("commit ") && said.contains(": Unknown: COMMIT: disk I/O error"), "{said}");
}
