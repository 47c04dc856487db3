//! Where a server of several processes listens and keeps its files, whose they are, and starts that are refused for it.
//! What it has in common with one process is tested with that, in `sockets.rs`, `security.rs`, `log.rs`, `options.rs`.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use testing::process::{Address, Folder, Launch, free_port, wait_until};

use super::super::tubes;
use super::{Multi, Observed, PATIENT, processes_of, put_into, several};

const NOBODY: u32 = 65_534;

/// A folder that everybody can pass through, with a directory of `nobody` in it.
#[track_caller]
fn folder_of_nobody() -> Folder {
    assert!(rustix::process::geteuid().is_root(), "this test needs root, as giving up privileges does");
    let folder = Folder::new();
    let data = folder.join("data");
    fs::create_dir(&data).expect("a directory");
    chown(&data, Some(NOBODY), Some(NOBODY)).expect("owner");
    folder
}

/// The line of the status file of a process, in words.
#[track_caller]
fn status(pid: u32, name: &str) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("status of a running process");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("such a line");
    line.split_whitespace().map(str::to_owned).collect()
}

/// Checks that nothing below `folder` belongs to anybody but `nobody`, or can be read by others.
#[track_caller]
fn assert_private_to_nobody(folder: &Path) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let found = fs::symlink_metadata(&path).expect("metadata");
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o077), (NOBODY, NOBODY, 0), "{}", path.display());
        if found.is_dir() {
            assert_private_to_nobody(&path);
        }
    }
}

#[test]
fn with_u_processes_that_are_started_later_have_no_privileges_either() {
    // supervision.md, rule 2: a change of the account takes back the tie to the parent, so it must come first.
    let folder = folder_of_nobody();
    let data = folder.join("data");
    let launch = several(2, 2, &folder).with(["-u", "nobody"]).with(PATIENT).log_in(&data);
    let mut multi = Multi::begin(launch, data.clone(), folder);
    put_into(&mut multi.connect(), "left", 0, "x");
    for role in ["owner", "frontend"] {
        for number in [0, 1] {
            let killed = multi.kill(role, number);
            let pid = multi.wait_for_next(&killed).pid.expect("it has a process");
            for name in ["Uid", "Gid"] {
                assert_eq!(status(pid, name), ["65534"; 4], "{role} {number}: {name}");
            }
            assert_eq!(status(pid, "Groups"), [""; 0]);
            assert_eq!(status(pid, "NoNewPrivs"), ["1"]);
        }
    }
    assert_private_to_nobody(&data);
    assert!(data.join("status.sock").exists());
    // And they still end with their parent.
    let children = multi.children();
    assert_eq!(children.len(), 4);
    multi.server.kill();
    children.iter().for_each(|child: &Observed| child.wait_for_end(Duration::from_secs(10)));
}

#[test]
fn with_u_and_without_a_log_locks_lie_in_a_folder_of_that_account() {
    // The caller's runtime folder, which the account cannot write to, is not used.
    let folder = folder_of_nobody();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("mode");
    let temporary = folder.join("data");
    let mut server = several(2, 2, &folder).with(["-u", "nobody"]).environment("TMPDIR", &temporary).start();
    put_into(&mut server.connect(), "left", 0, "x");
    let runtime = temporary.join("tenure-65534");
    let found = fs::metadata(&runtime).expect("the runtime folder");
    assert_eq!((found.uid(), found.mode() & 0o777), (NOBODY, 0o750));
    assert!(!folder.join("tenure").exists());
    assert_eq!(server.terminate().code(), Some(0), "{}", server.stderr());
}

#[test]
fn with_u_a_directory_of_another_account_is_refused_with_10() {
    let folder = folder_of_nobody();
    // So that the account may remove its unix socket again.
    chown(folder.path(), Some(NOBODY), Some(NOBODY)).expect("owner");
    let foreign = folder.join("foreign");
    fs::create_dir(&foreign).expect("a directory");
    for mode in [0o700, 0o755] {
        fs::set_permissions(&foreign, fs::Permissions::from_mode(mode)).expect("mode");
        assert_refused(&several(2, 2, &folder).with(["-u", "nobody"]).log_in(&foreign), 10, "foreign", &folder);
        assert_eq!(fs::read_dir(&foreign).expect("the directory").count(), 0);
    }
}

/// Checks that a start is refused with `code`, says `what`, and leaves neither a process nor a socket.
#[track_caller]
fn assert_refused(launch: &Launch, code: i32, what: &str, folder: &Folder) {
    let port = free_port();
    let on_port = launch.clone().with(["-l", "127.0.0.1", "-p", &port.to_string()]);
    let on_port = on_port.on_given_address(Address::Tcp((Ipv4Addr::LOCALHOST, port).into()));
    let path = folder.join("refused.socket");
    for launch in [on_port, launch.clone().on_unix_socket(&path)] {
        let finished = launch.finish();
        assert_eq!(finished.code, Some(code), "{finished:?}");
        assert!(finished.stderr.contains(what), "{what:?} is not named: {finished:?}");
        assert_eq!(processes_of(folder), [0_u32; 0]);
    }
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port is free");
    assert!(fs::symlink_metadata(&path).is_err(), "the unix socket is left behind");
}

#[test]
fn refused_starts_name_the_cause_and_leave_neither_process_nor_socket() {
    let folder = Folder::new();
    let launch = several(2, 2, &folder);
    assert_refused(&launch.clone().with(["-u", "no-such-user-here"]), 33, "no-such-user-here", &folder);
    // The original's files.
    let original = folder.join("original");
    fs::create_dir(&original).expect("a directory");
    fs::write(original.join("binlog.1"), [7, 0, 0, 0]).expect("a file");
    assert_refused(&launch.clone().log_in(&original), 12, "import beanstalkd", &folder);
    assert_eq!(fs::read_dir(&original).expect("the directory").count(), 1);
    // No directory, and one that cannot be made.
    let file = folder.join("file");
    fs::write(&file, "precious").expect("a file");
    assert_refused(&launch.clone().log_in(&file), 10, "file", &folder);
    assert_refused(&launch.clone().log_in(&file.join("below")), 10, "below", &folder);
    assert_eq!(fs::read_to_string(&file).expect("untouched"), "precious");
    // One to which others can write: nothing is made in it, so one process can still have it.
    let open = folder.join("open");
    fs::create_dir(&open).expect("a directory");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o775)).expect("mode");
    assert_refused(&launch.clone().log_in(&open), 10, "other accounts may write to it", &folder);
    assert_eq!(fs::read_dir(&open).expect("the directory").count(), 0);
    tubes().log_in(&open).start().check("list-tube-used\r\n", "USING default\r\n");
}

#[test]
fn a_directory_may_be_reached_through_a_symbolic_link() {
    let folder = Folder::new();
    let (data, link) = (folder.join("data"), folder.join("link"));
    fs::create_dir(&data).expect("a directory");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).expect("mode");
    symlink(&data, &link).expect("a link");
    let launch = several(2, 2, &folder).log_in(&link);
    let multi = Multi::begin(launch, data.clone(), folder);
    put_into(&mut multi.connect(), "left", 0, "x");
    assert!(data.join("status.sock").exists() && data.join("logs-1/slot-1/lock").exists());
}

#[test]
fn a_unix_socket_outlives_the_end_of_each_process_but_the_supervisors() {
    let folder = Folder::new();
    let path = folder.join("queue.socket");
    let launch = several(2, 2, &folder).with(PATIENT).on_unix_socket(&path);
    let status_below = folder.join("tenure");
    let mut multi = Multi::begin(launch, status_below, folder);
    let inode = fs::metadata(&path).expect("the socket").ino();
    for number in [0, 1] {
        let killed = multi.kill("frontend", number);
        put_into(&mut multi.connect(), "left", 0, "x");
        multi.wait_for_next(&killed);
    }
    assert_eq!(fs::metadata(&path).expect("the socket").ino(), inode);
    // A live one is in use, also while its supervisor is stopped.
    multi.server.signal(Signal::STOP);
    wait_until("stopped", || multi.server.status("State").starts_with('T'));
    let finished = multi.launch.finish();
    multi.server.signal(Signal::CONT);
    assert_eq!(finished.code, Some(111), "{finished:?}");
    put_into(&mut multi.connect(), "right", 0, "x");
    // The supervisor's end leaves a stale one, which the next start replaces.
    multi.server.kill();
    assert!(path.exists());
    multi.start_again();
    multi.connect().check_stats("stats", &[("current-jobs-ready", "0")]);
    assert_eq!(multi.server.terminate().code(), Some(0));
    assert!(!path.exists());
}

#[test]
fn an_inherited_socket_is_kept_while_frontends_come_and_go() {
    // LISTEN_FDS: the supervisor has it for life, and every frontend accepts from it.
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let address = socket.local_addr().expect("its address");
    let folder = Folder::new();
    let activate = "export LISTEN_FDS=1 LISTEN_PID=$$; exec \"$0\" \"$@\" 3<&0 </dev/null";
    let launch = several(2, 2, &folder).with(PATIENT).through(["sh", "-c", activate]);
    let launch = launch.on_given_address(Address::Tcp(address));
    let server = launch.start_with_stdin(socket.into());
    let multi = Multi { server, launch, status_below: folder.join("tenure"), folder };
    multi.wait_until_serving();
    for number in [0, 1] {
        drop(multi.connect_to(number));
        let killed = multi.kill("frontend", number);
        // The other one serves meanwhile; a client that comes is never refused.
        put_into(&mut multi.connect(), "left", 0, "x");
        multi.wait_for_next(&killed);
        drop(multi.connect_to(number));
    }
    assert_eq!(multi.server.listening_addresses(), [address]);
    multi.connect().check_stats("stats", &[("current-jobs-ready", "2")]);
}
