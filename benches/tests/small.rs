//! Every workload at a tiny size, so that the benchmark cannot rot. Nothing here asserts a time or a rate.
//!
//! The server is the one `BENCH_SERVER` names, else the `tenure` that was built beside this test, else Debian's
//! beanstalkd, which is installed where it is missing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use benches::generator::{Generator, GeneratorError, Responder};
use benches::machine::Cores;
use benches::peer::{Contender, LogMode, Programs};
use benches::process::Folder;
use benches::round::Lab;
use benches::workload::{Command as Step, Mix, Wire, Workload};

const BENCH: &str = env!("CARGO_BIN_EXE_bench-tubes");
const LENGTH: Duration = Duration::from_millis(10);

fn server() -> PathBuf {
    if let Some(path) = std::env::var_os("BENCH_SERVER") {
        return path.into();
    }
    let beside = Path::new(BENCH).with_file_name("tenure");
    if answers_version(&beside) { beside } else { Programs::find_beanstalkd().unwrap() }
}

/// Whether `tenure` is there and has a queue server in it.
fn answers_version(tenure: &Path) -> bool {
    Command::new(tenure).args(["tubes", "-v"]).output().is_ok_and(|output| output.status.success())
}

fn folder(name: &str) -> Folder {
    Folder::create(Path::new(env!("CARGO_TARGET_TMPDIR")), name).unwrap()
}

fn lab(folder: &Folder) -> Lab {
    let programs = Programs { tenure: server(), beanstalkd: Programs::find_beanstalkd().unwrap(), floor: BENCH.into() };
    Lab { programs, cores: Cores::choose().unwrap(), folder: folder.path().to_owned() }
}

fn run_every_mix(contender: Contender, mode: LogMode) {
    let folder = folder(&contender.to_string());
    let lab = lab(&folder);
    for mix in Mix::ALL {
        for (depth, body_bytes, tubes, connections) in [(1, 64, 1, 8), (16, 4_096, 1, 3), (5, 0, 8, 4), (16, 64, 12, 4)]
        {
            let workload = Workload { mix, connections, depth, body_bytes, tubes };
            let sample = lab.measure(contender, mode, &workload, LENGTH).unwrap();
            assert!(sample.commands > 0, "{workload:?}: {sample:?}");
        }
    }
}

#[test]
fn every_workload_runs_on_the_floor() {
    run_every_mix(Contender::Floor, LogMode::Memory);
}

#[test]
fn every_workload_runs_on_our_server_in_memory() {
    run_every_mix(Contender::Tenure, LogMode::Memory);
}

#[test]
fn every_workload_runs_on_our_server_with_a_log() {
    run_every_mix(Contender::Tenure, LogMode::Interval);
    run_every_mix(Contender::Tenure, LogMode::Always);
}

#[test]
fn driver_measures_and_writes_its_report() {
    let folder = folder("report");
    let output = Command::new(BENCH)
        .args(["run", "--quick", "--only", "bounds,start", "--pairs", "1", "--seconds", "0.05"])
        .arg("--server")
        .arg(server())
        .arg("--folder")
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let written = String::from_utf8(output.stdout).unwrap();
    let report = std::fs::read_to_string(written.lines().next().unwrap()).unwrap();
    assert!(report.contains("| CPU, mixed, depth 1 / beanstalkd |"), "{report}");
    assert!(report.contains("not judged"), "one pair must not make a verdict: {report}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["quick"], "folders of the run must be removed");
}

/// The server that was built with this test; several processes are compared with one, not with the original.
fn tenure() -> Option<PathBuf> {
    let path = server();
    let can = Command::new(&path).args(["tubes", "--help"]).output();
    can.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("--frontends")).then_some(path)
}

#[test]
fn driver_measures_several_processes_and_writes_its_report() {
    let Some(server) = tenure() else {
        eprintln!("no tenure was built beside this test: nothing to measure");
        return;
    };
    let folder = folder("multi");
    let output = Command::new(BENCH)
        .args(["run", "--multi", "--quick", "--parts", "bounds,grid", "--pairs", "1", "--seconds", "0.05"])
        .arg("--server")
        .arg(server)
        .arg("--folder")
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let written = String::from_utf8(output.stdout).unwrap();
    let report = std::fs::read_to_string(written.lines().next().unwrap()).unwrap();
    let row = "| CPU of the server, 2 + 2 / single, 128 connections, depth 16, independent tubes |";
    assert!(report.contains(row) && report.contains("not judged"), "{report}");
    // The figures of the links have come out of the processes.
    let table = report.split("### 128 connections, depth 16, one hot tube").nth(1).unwrap();
    let of_pair = table.lines().find(|line| line.starts_with("| 1 + 1 |")).unwrap();
    let cells: Vec<&str> = of_pair.trim_matches('|').split('|').map(str::trim).collect();
    for messages_a_batch in &cells[cells.len() - 2..] {
        let size: f64 = messages_a_batch.replace(',', "").parse().unwrap_or_else(|_| panic!("{of_pair}"));
        assert!(size >= 1.0, "{of_pair}");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["quick"], "folders of the run must be removed");
}

/// With quotas, where the system gives them; else the driver says so and fails.
#[test]
fn quotas_are_given_and_taken_away_or_refused_in_words() {
    use benches::multi::quota::Quotas;
    let Some(server) = tenure() else {
        eprintln!("no tenure was built beside this test: nothing to measure");
        return;
    };
    let folder = folder("quotas");
    let output = Command::new(BENCH)
        .args(["run", "--multi", "--quick", "--parts", "quotas", "--pairs", "1", "--seconds", "0.2"])
        .arg("--server")
        .arg(server)
        .arg("--folder")
        .arg(folder.path())
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    match Quotas::find() {
        Ok(quotas) => {
            assert!(output.status.success(), "{message}");
            let written = String::from_utf8(output.stdout).unwrap();
            let report = std::fs::read_to_string(written.lines().next().unwrap()).unwrap();
            assert!(report.contains("| throughput under quotas, 4 + 4 / 1 + 1, 256 connections"), "{report}");
            assert!(quotas.left_over().unwrap().is_empty(), "control groups of the run must be removed");
        }
        Err(reason) => {
            assert!(!output.status.success(), "without quotas there is no figure");
            assert!(message.contains("gives no process a quota"), "{reason:#}: {message}");
        }
    }
}

#[test]
fn signal_to_the_driver_leaves_no_server_and_no_folder() {
    let folder = folder("signal");
    let mut driver = Command::new(BENCH)
        .args(["run", "--quick", "--only", "bounds", "--seconds", "60"])
        .arg("--server")
        .arg(server())
        .arg("--folder")
        .arg(folder.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let id = rustix::process::Pid::from_child(&driver);
    let children = format!("/proc/{0}/task/{0}/children", driver.id());
    let first_child = || std::fs::read_to_string(&children).ok()?.split_whitespace().next()?.parse::<i32>().ok();
    let begin = std::time::Instant::now();
    let server = loop {
        if let Some(server) = first_child() {
            break server;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "the driver starts no server");
        std::thread::sleep(Duration::from_millis(5));
    };
    let server = rustix::process::Pid::from_raw(server).unwrap();
    let server = rustix::process::pidfd_open(server, rustix::process::PidfdFlags::empty()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    assert!(!driver.wait().unwrap().success());
    let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
    let mut ended = [rustix::event::PollFd::new(&server, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut ended, Some(&limit)), Ok(1), "the server outlives the driver");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["quick"], "folders of the run must be removed");
}

#[test]
fn unknown_section_is_refused_with_the_known_ones() {
    let output = Command::new(BENCH).args(["run", "--only", "everything"]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && message.contains("bounds, matrix, log"), "{message}");
}

/// A server on a thread that reads `request_bytes` from one connection, then writes each of `replies` by itself.
fn scripted(request_bytes: usize, replies: Vec<Vec<u8>>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        stream.read_exact(&mut vec![0; request_bytes]).unwrap();
        for reply in replies {
            // The other end may have seen enough already.
            if stream.write_all(&reply).is_err() {
                break;
            }
        }
    });
    (address, thread)
}

fn one_job() -> (Workload, usize) {
    let workload = Workload { mix: Mix::Mixed, connections: 1, depth: 2, body_bytes: 5, tubes: 1 };
    let wire = Wire::new(5);
    let request_bytes = [Step::Put, Step::Reserve].map(|step| wire.floor_exchange(step).0).iter().sum();
    (workload, request_bytes)
}

fn play(replies: Vec<Vec<u8>>) -> Result<u64, GeneratorError> {
    let (workload, request_bytes) = one_job();
    let (address, thread) = scripted(request_bytes, replies);
    let mut generator = Generator::connect(address, &workload, Responder::Queue)?;
    let outcome = generator.run_commands(2).map(|()| generator.answered());
    drop(generator);
    thread.join().unwrap();
    outcome
}

#[test]
fn replies_are_understood_in_any_segmentation() {
    let replies = b"INSERTED 1\r\nRESERVED 1 5\r\n!\"#$%\r\n";
    for size in 1..=replies.len() {
        let segments = replies.chunks(size).map(<[u8]>::to_vec).collect();
        assert_eq!(play(segments).unwrap(), 2, "segments of {size}");
    }
}

#[test]
fn wrong_reply_is_an_error_and_never_a_number() {
    for wrong in [
        &b"BURIED 1\r\n"[..],
        b"INSERTED x\r\n",
        b"INSERTED 1 \r\n",
        b"INSERTED 1\n",
        b"INSERTED 1\r\nRESERVED 1 6\r\n",
        b"INSERTED 1\r\nRESERVED 1 5\r\n!\"#$&\r\n",
        b"INSERTED 1\r\nRESERVED 1 5\r\n!\"#$%xx",
        b"INSERTED 1\r\nTIMED_OUT\r\n",
        b"INSERTED 1\r\nRESERVED 1 5\r\n!\"#$%\r\nDELETED\r\n",
    ] {
        let outcome = play(vec![wrong.to_vec()]);
        assert!(matches!(outcome, Err(GeneratorError::WrongReply { .. })), "{}: {outcome:?}", wrong.escape_ascii());
    }
    let outcome = play(vec![b"INSERTED 1\r\nRESER".to_vec()]);
    assert!(matches!(outcome, Err(GeneratorError::Closed { .. })), "{outcome:?}");
}

#[test]
fn group_commit_is_measured_with_every_contender() {
    let folder = folder("group-commit");
    let output = Command::new(env!("CARGO_BIN_EXE_bench-group-commit"))
        .args(["--quick", "--seconds", "0.05", "--folder"])
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(report.contains("| SQLite FULL, rate, group / 64 writers |") && report.contains("not judged"), "{report}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "folders of the run must be removed");
}
