//! Import of the original's files, written here by Debian's beanstalkd itself.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Folder, Job, Jobs, Random, options};
use tubes_core::journal::LoggedState;
use tubes_store::datadir::open_single;
use tubes_store::import::{Import, ImportError, import_beanstalkd};
use tubes_store::manifest::Topology;
use tubes_store::{Log, LogOptions, SyncMode};

const PROGRAM: &str = "/usr/bin/beanstalkd";

/// A running beanstalkd with a log, killed at the end.
struct Original {
    child: Child,
    stream: BufReader<TcpStream>,
}

impl Original {
    fn start(dir: &Path, arguments: &[&str]) -> Original {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(PROGRAM)
            .args(["-l", "127.0.0.1", "-p", &port.to_string(), "-f0", "-b"])
            .arg(dir)
            .args(arguments)
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{PROGRAM} (Debian's package `beanstalkd`) is needed: {error}"));
        let deadline = Instant::now() + Duration::from_secs(10);
        let stream = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < deadline, "beanstalkd does not listen: {error}"),
            }
            std::thread::yield_now();
        };
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Original { child, stream: BufReader::new(stream) }
    }

    /// Sends a command and returns the first line of the answer, with its body consumed.
    fn ask(&mut self, command: &[u8]) -> String {
        self.stream.get_mut().write_all(command).unwrap();
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        let line = line.trim_end().to_owned();
        if line.starts_with("RESERVED ") || line.starts_with("OK ") {
            let bytes: usize = line.rsplit(' ').next().unwrap().parse().unwrap();
            self.stream.read_exact(&mut vec![0; bytes + 2]).unwrap();
        }
        line
    }

    fn put(&mut self, pri: u32, delay: u32, ttr: u32, body: &[u8]) -> u64 {
        let mut command = format!("put {pri} {delay} {ttr} {}\r\n", body.len()).into_bytes();
        command.extend_from_slice(body);
        command.extend_from_slice(b"\r\n");
        let answer = self.ask(&command);
        answer.strip_prefix("INSERTED ").unwrap_or_else(|| panic!("{answer}")).parse().unwrap()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Original {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn import(from: &Path, to: &Path) -> Result<Import, ImportError> {
    import_beanstalkd(from, to, Topology::Single, &options(1, SyncMode::Always))
}

/// Opens an imported directory as a server would.
fn load(dir: &Path) -> (BTreeMap<u64, Job>, u64) {
    let data = open_single(dir).unwrap();
    let slot = data.open_slot(0).unwrap();
    let options =
        LogOptions { generation: slot.generation, fingerprint: data.fingerprint(), ..options(1, SyncMode::Always) };
    let mut jobs = Jobs::default();
    let (_, report) = Log::open(slot.vfs.clone(), options, &mut jobs).unwrap();
    (jobs.jobs, report.next_id)
}

fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
        })
        .collect()
}

#[test]
fn jobs_of_a_real_beanstalkd_keep_id_state_priority_delay_and_counters() {
    let from = Folder::new();
    let to = Folder::new();
    let mut original = Original::start(from.path(), &["-s", "4096"]);
    assert_eq!(original.ask(b"use first\r\n"), "USING first");
    assert_eq!(original.ask(b"watch first\r\n"), "WATCHING 2");
    let ready = original.put(7, 0, 60, b"ready \r\n binary \0 body");
    let delayed = original.put(8, 3_600, 61, b"delayed");
    let buried_second = original.put(1, 0, 62, b"buried second");
    let buried_first = original.put(2, 0, 63, b"");
    assert_eq!(
        original.ask(format!("reserve-job {buried_first}\r\n").as_bytes()),
        format!("RESERVED {buried_first} 0")
    );
    assert_eq!(original.ask(format!("bury {buried_first} 20\r\n").as_bytes()), "BURIED");
    assert!(original.ask(format!("reserve-job {buried_second}\r\n").as_bytes()).starts_with("RESERVED"));
    assert_eq!(original.ask(format!("bury {buried_second} 10\r\n").as_bytes()), "BURIED");
    let released = original.put(9, 0, 64, b"released");
    for _ in 0..2 {
        assert!(original.ask(format!("reserve-job {released}\r\n").as_bytes()).starts_with("RESERVED"));
        assert_eq!(original.ask(format!("release {released} 11 0\r\n").as_bytes()), "RELEASED");
    }
    let kicked = original.put(3, 3_600, 65, b"kicked");
    assert_eq!(original.ask(format!("kick-job {kicked}\r\n").as_bytes()), "KICKED");
    let deleted = original.put(3, 0, 65, b"deleted");
    assert_eq!(original.ask(format!("delete {deleted}\r\n").as_bytes()), "DELETED");
    let reserved = original.put(4, 0, 66, b"reserved");
    assert!(original.ask(format!("reserve-job {reserved}\r\n").as_bytes()).starts_with("RESERVED"));
    // Enough to fill several of its files and to make it move jobs.
    assert_eq!(original.ask(b"use bulk\r\n"), "USING bulk");
    let mut bulk = BTreeMap::new();
    for number in 0..300_u32 {
        let body = vec![number as u8; number as usize % 700];
        bulk.insert(original.put(number, 0, 120, &body), (number, body));
    }
    for id in bulk.keys().copied().collect::<Vec<_>>() {
        if id % 3 != 0 {
            assert_eq!(original.ask(format!("delete {id}\r\n").as_bytes()), "DELETED");
            bulk.remove(&id);
        }
    }
    let last = original.put(1, 0, 1, b"last");
    assert_eq!(original.ask(format!("delete {last}\r\n").as_bytes()), "DELETED");
    original.kill();

    let before = contents(from.path());
    assert!(before.keys().filter(|name| name.starts_with("binlog.")).count() > 1);
    let report = import(from.path(), to.path()).unwrap();
    assert_eq!(contents(from.path()), before, "FROM is not changed");
    assert_eq!((report.jobs, report.highest_id), (7 + bulk.len() as u64, last));
    let (jobs, next_id) = load(to.path());
    assert_eq!(next_id, last + 1, "the ids go on where they were");
    assert_eq!(jobs.len() as u64, report.jobs);
    let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let job = |id| {
        let job: &Job = &jobs[&id];
        let counters = job.state.counters;
        assert!(now_ms - job.created_ms < 600_000, "created {} now {now_ms}", job.created_ms);
        assert_eq!(job.tube, b"first");
        (job.state.state, job.state.pri, job.ttr_s, &job.body[..], counters)
    };
    let (state, pri, ttr_s, body, _) = job(ready);
    assert_eq!((state, pri, ttr_s, body), (LoggedState::Ready, 7, 60, &b"ready \r\n binary \0 body"[..]));
    let (state, pri, ttr_s, ..) = job(delayed);
    assert_eq!((state, pri, ttr_s, jobs[&delayed].state.delay_s), (LoggedState::Delayed, 8, 61, 3_600));
    let left_ms = jobs[&delayed].state.due_ms - now_ms;
    assert!((3_000_000..=3_600_000).contains(&left_ms), "due in {left_ms} ms");
    let (state, pri, _, body, counters) = job(buried_first);
    assert_eq!((state, pri, body.len(), counters.reserves, counters.buries), (LoggedState::Buried, 20, 0, 1, 1));
    assert_eq!(job(buried_second).0, LoggedState::Buried);
    assert!(
        jobs[&buried_first].state.bury_order < jobs[&buried_second].state.bury_order,
        "buried jobs keep their order"
    );
    let (state, pri, .., counters) = job(released);
    assert_eq!((state, pri, counters.reserves, counters.releases), (LoggedState::Ready, 11, 2, 2));
    let (state, .., counters) = job(kicked);
    assert_eq!((state, counters.kicks), (LoggedState::Ready, 1));
    assert_eq!(job(reserved).0, LoggedState::Ready, "what was reserved comes back ready");
    for (id, (pri, body)) in &bulk {
        assert_eq!((&jobs[id].state.pri, &jobs[id].body, &jobs[id].tube[..]), (pri, body, &b"bulk"[..]));
    }
}

#[test]
fn a_running_original_is_refused_and_a_used_target_too() {
    let from = Folder::new();
    let to = Folder::new();
    let mut original = Original::start(from.path(), &[]);
    original.put(1, 0, 60, b"body");
    let error = import(from.path(), to.path()).unwrap_err();
    assert!(matches!(error, ImportError::Running { .. }), "{error}");
    assert_eq!(error.exit_code(), 10);
    assert!(contents(to.path()).is_empty(), "nothing was written");
    original.kill();
    std::fs::write(to.path().join("something"), b"").unwrap();
    let error = import(from.path(), to.path()).unwrap_err();
    assert!(matches!(error, ImportError::NotEmpty { .. }), "{error}");
    std::fs::remove_file(to.path().join("something")).unwrap();
    import(from.path(), to.path()).unwrap();
    assert_eq!(load(to.path()).0.len(), 1);
    let again = import(from.path(), to.path()).unwrap_err();
    assert!(matches!(again, ImportError::NotEmpty { .. }), "{again}");
}

#[test]
fn a_source_without_files_or_of_another_version_is_refused() {
    let from = Folder::new();
    let to = Folder::new();
    let error = import(from.path(), to.path()).unwrap_err();
    assert!(matches!(error, ImportError::NothingThere { .. }), "{error}");
    std::fs::write(from.path().join("binlog.1"), 5_i32.to_ne_bytes()).unwrap();
    let error = import(from.path(), to.path()).unwrap_err();
    assert!(matches!(error, ImportError::Version { version: 5, .. }), "{error}");
    assert_eq!(error.exit_code(), 12);
}

#[test]
fn cut_or_garbled_files_give_an_error_with_file_and_offset_and_never_a_panic() {
    let from = Folder::new();
    let mut original = Original::start(from.path(), &["-s", "4096"]);
    for number in 0..20_u32 {
        original.put(number, 0, 60, &[b'x'; 30]);
    }
    original.kill();
    let name = "binlog.1";
    let whole = std::fs::read(from.path().join(name)).unwrap();
    let used = whole.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let work = Folder::in_memory();
    let try_import = |bytes: &[u8]| {
        let from = work.path().join("from");
        let to = work.path().join("to");
        for dir in [&from, &to] {
            let _ = std::fs::remove_dir_all(dir);
        }
        std::fs::create_dir(&from).unwrap();
        std::fs::write(from.join(name), bytes).unwrap();
        let result = import(&from, &to);
        if result.is_err() {
            assert!(open_single(&to).is_err() || contents(&to).is_empty(), "no half import passes for a queue");
        }
        result
    };
    let (mut cuts, mut refused) = (0, 0);
    for length in 0..used {
        cuts += 1;
        match try_import(&whole[..length]) {
            // Exactly between two records nothing tells that more had been there.
            Ok(report) => assert!(report.jobs <= 20),
            Err(ImportError::Damaged { file, offset, .. }) => {
                refused += 1;
                assert!(file.ends_with(name) && offset <= length as u64);
            }
            Err(other) => panic!("cut at {length}: {other}"),
        }
    }
    assert!(refused > cuts - 30, "{refused} of {cuts}");
    let mut random = Random(11);
    for _ in 0..2_000 {
        let mut garbled = whole.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(used as u64) as usize;
            garbled[at] = random.next() as u8;
        }
        // The original's files carry no checksum: not every change can be seen, but none may do harm.
        let _ = try_import(&garbled);
    }
    let noise: Vec<u8> = (0..4_096).map(|_| random.next() as u8).collect();
    assert!(try_import(&noise).is_err());
    let noise = [&7_i32.to_ne_bytes()[..], &noise].concat();
    assert!(matches!(try_import(&noise), Err(ImportError::Damaged { offset: 4, .. })));
}
