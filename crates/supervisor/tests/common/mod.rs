//! A server of the fixture in a folder of its own, and what the tests ask of it.
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use supervisor::rules::Condition;
use supervisor::{ProcessStatus, Role, Slot, Status};

/// Ten times what anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at something that has no descriptor to wait on.
const LOOK: Duration = Duration::from_millis(5);

static NEXT: AtomicU32 = AtomicU32::new(0);

pub(crate) fn owner(slot: u16) -> Slot {
    Slot { role: Role::Owner, slot }
}

pub(crate) fn frontend(slot: u16) -> Slot {
    Slot { role: Role::Frontend, slot }
}

pub(crate) fn tubes() -> Slot {
    Slot { role: Role::Tubes, slot: 0 }
}

pub(crate) fn daemon() -> Slot {
    Slot { role: Role::Daemon, slot: 0 }
}

/// Looks until `found` finds something.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "never seen: {what}");
        std::thread::sleep(LOOK);
    }
}

/// A folder that is removed at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        use std::os::unix::fs::DirBuilderExt;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("supervisor-test-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Folder(path)
    }

    /// Lets a slot misbehave from its next start on.
    pub(crate) fn habit(&self, slot: Slot, words: &str) {
        fs::write(self.0.join(format!("{}-{}", slot.role, slot.slot)), words).unwrap();
    }

    pub(crate) fn events(&self) -> Vec<String> {
        fs::read_to_string(self.0.join("events")).unwrap_or_default().lines().map(str::to_owned).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running server. Dropped, it is killed; its processes then end by themselves.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) dir: PathBuf,
}

impl Server {
    /// Starts it without waiting for anything.
    pub(crate) fn spawn(folder: &Folder, options: &[&str]) -> Server {
        let child = Command::new(env!("CARGO_BIN_EXE_supervisor-fixture"))
            .arg("supervise")
            .arg(&folder.0)
            .args(options)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Server { child, dir: folder.0.clone() }
    }

    /// Starts it and waits until it serves.
    pub(crate) fn start(folder: &Folder, options: &[&str]) -> Server {
        let server = Server::spawn(folder, options);
        until("the server serves", || server.try_status().filter(|status| status.serving));
        server
    }

    pub(crate) fn try_status(&self) -> Option<Status> {
        supervisor::query(&self.dir.join("status")).ok()
    }

    #[track_caller]
    pub(crate) fn status(&self) -> Status {
        supervisor::query(&self.dir.join("status")).unwrap()
    }

    #[track_caller]
    pub(crate) fn process(&self, slot: Slot) -> ProcessStatus {
        self.status().process(slot).unwrap().clone()
    }

    /// Waits until a slot is in some state.
    #[track_caller]
    pub(crate) fn until_process(&self, slot: Slot, is: impl Fn(&ProcessStatus) -> bool) -> ProcessStatus {
        until(&format!("{slot} in the state awaited"), || {
            self.try_status().and_then(|status| status.process(slot).cloned()).filter(&is)
        })
    }

    #[track_caller]
    pub(crate) fn until_ready(&self, slot: Slot, generation: u32) -> ProcessStatus {
        self.until_process(slot, |found| found.condition == Condition::Ready && found.generation >= generation)
    }

    /// All processes but the supervisor.
    pub(crate) fn processes(&self) -> Vec<Handle> {
        self.status().processes.iter().filter_map(|process| process.pid).map(Handle::open).collect()
    }

    #[track_caller]
    pub(crate) fn handle(&self, slot: Slot) -> Handle {
        Handle::open(self.process(slot).pid.expect("a process"))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        Handle::open(self.child.id()).signal(signal);
    }

    /// How it ended, and what it said.
    #[track_caller]
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let status = until("the end of the supervisor", || self.child.try_wait().unwrap());
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
        }
        (status, said)
    }

    #[track_caller]
    pub(crate) fn client(&self) -> Client {
        self.client_at(0)
    }

    #[track_caller]
    pub(crate) fn client_of_daemon(&self) -> Client {
        self.client_at(1)
    }

    #[track_caller]
    fn client_at(&self, from_the_end: usize) -> Client {
        let events = fs::read_to_string(self.dir.join("events")).unwrap();
        let line = events.lines().rfind(|line| line.starts_with("supervisor serving ")).unwrap();
        let stream = TcpStream::connect(line.rsplit(' ').nth(from_the_end).unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client(BufReader::new(stream))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    /// The answer to a line; empty if the connection was closed.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        let mut answer = String::new();
        let sent = self.0.get_mut().write_all(format!("{line}\n").as_bytes());
        match sent.and_then(|()| self.0.read_line(&mut answer)) {
            Ok(_) => answer.trim_end().to_owned(),
            Err(_) => String::new(),
        }
    }
}

/// A process that is not our child, known by a descriptor: its number may be given to another one.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) pid: u32,
    descriptor: Option<OwnedFd>,
}

impl Handle {
    pub(crate) fn open(pid: u32) -> Handle {
        let raw = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        Handle { pid, descriptor: pidfd_open(raw, PidfdFlags::empty()).ok() }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(descriptor) = &self.descriptor {
            let _ = pidfd_send_signal(descriptor, signal);
        }
    }

    /// Whether it has ended within this time. Wakes with its end.
    pub(crate) fn ends_within(&self, limit: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Some(descriptor) = &self.descriptor else { return true };
        let limit = Timespec::try_from(limit).unwrap();
        poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&limit)).unwrap() == 1
    }
}

/// Descriptors open in a process.
pub(crate) fn descriptor_count(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Processes whose parent is `pid`, zombies included: (number, state).
pub(crate) fn children_of(pid: u32) -> Vec<(u32, char)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(Path::new("/proc").join(number.to_string()).join("stat")) else { continue };
        // The name is in parentheses and may contain anything.
        let Some((_, rest)) = stat.rsplit_once(") ") else { continue };
        let mut words = rest.split(' ');
        let state = words.next().and_then(|word| word.chars().next()).unwrap_or('?');
        if words.next().and_then(|word| word.parse::<u32>().ok()) == Some(pid) {
            found.push((number, state));
        }
    }
    found
}
