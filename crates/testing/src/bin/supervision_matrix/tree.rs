//! A server of several processes, seen from outside: its status socket, its processes, its address.
//!
//! Owns: the folders of the server, and its supervisor as a child.
//! Never: knows a process by its number alone: each is held by a descriptor before anything is done to it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::diag;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use supervisor::rules::Condition;
use supervisor::{ProcessStatus, Role, Status};
use testing::client::Client;
use testing::process::{Address, Folder, Launch, Server, free_port, wait_until};

/// Owners and frontends of every server here.
pub(crate) const OWNERS: u16 = 2;
pub(crate) const FRONTENDS: u16 = 2;
/// Tubes of owner 0 and owner 1 of two: a name keeps its partition for ever. Of the load.
pub(crate) const LOAD_TUBES: [(&str, u16); 4] = [("left", 0), ("one", 0), ("right", 1), ("two", 1)];
/// Of the rows themselves, by owner.
pub(crate) const OWN_TUBES: [&str; 2] = ["video", "jobs"];
/// Kills and restarts without end.
pub(crate) const PATIENT: [&str; 6] =
    ["--restart-limit", "1000000/30", "--restart-delay", "10ms", "--owner-wait", "20s"];

pub(crate) struct Tree {
    pub(crate) server: Server,
    pub(crate) launch: Launch,
    status_below: PathBuf,
    pub(crate) folder: Folder,
}

impl Tree {
    /// Starts a server and waits until it serves.
    pub(crate) fn start(executable: &Path, has_log: bool, arguments: &[&str]) -> Tree {
        Tree::start_as(executable, has_log, arguments, |launch, _| launch)
    }

    /// As [`Tree::start`], changed by `change`, which is given the folder of the log.
    pub(crate) fn start_as(
        executable: &Path,
        has_log: bool,
        arguments: &[&str],
        change: impl FnOnce(Launch, &Path) -> Launch,
    ) -> Tree {
        let folder = Folder::new();
        let data = folder.join("data");
        fs::create_dir(&data).expect("a folder in a fresh folder");
        let port = free_port();
        let mut launch = Launch::new(executable)
            .environment("XDG_RUNTIME_DIR", folder.path())
            .with(["--owners", &OWNERS.to_string(), "--frontends", &FRONTENDS.to_string()])
            .with(["-l", "127.0.0.1", "-p", &port.to_string()])
            .on_given_address(Address::Tcp((Ipv4Addr::LOCALHOST, port).into()))
            .with(arguments);
        if has_log {
            launch = launch.log_in(&data);
        }
        let launch = change(launch, &data);
        let status_below = if has_log { data } else { folder.join("tenure") };
        let mut tree = Tree { server: launch.spawn_only(), launch, status_below, folder };
        tree.wait_until_serving();
        tree
    }

    /// How to start another server, which is told nothing of this one.
    pub(crate) fn launch_another(executable: &Path, folder: &Folder) -> Launch {
        Launch::new(executable).environment("XDG_RUNTIME_DIR", folder.path()).with([
            "--owners",
            &OWNERS.to_string(),
            "--frontends",
            &FRONTENDS.to_string(),
        ])
    }

    /// Starts it again, which has ended.
    pub(crate) fn start_again(&mut self) {
        self.server = self.launch.spawn_only();
        self.wait_until_serving();
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub(crate) fn wait_until_serving(&mut self) {
        wait_until("all processes serve", || {
            assert!(self.server.is_running(), "the server has ended: {}", self.server.stderr());
            self.status().is_some_and(|status| status.serving && status.processes.iter().all(is_ready))
        });
    }

    /// The path of the status socket, as seen from here: the server may have a file system of its own.
    pub(crate) fn status_socket(&self) -> Option<PathBuf> {
        let roots = [PathBuf::from("/"), PathBuf::from(format!("/proc/{}/root", self.server.pid()))];
        roots.into_iter().find_map(|root| {
            let below = root.join(self.status_below.strip_prefix("/").ok()?);
            let own = below.join("status.sock");
            if fs::symlink_metadata(&own).is_ok() {
                return Some(own);
            }
            // Without a log each set of addresses has its folder.
            let folders = fs::read_dir(&below).ok()?.flatten();
            folders.map(|folder| folder.path().join("status.sock")).find(|path| fs::symlink_metadata(path).is_ok())
        })
    }

    pub(crate) fn status(&self) -> Option<Status> {
        supervisor::query(&self.status_socket()?).ok()
    }

    pub(crate) fn slot(&self, role: Role, slot: u16) -> ProcessStatus {
        let status = self.status().unwrap_or_else(|| panic!("no status: {}", self.server.stderr()));
        status.processes.into_iter().find(|found| (found.role, found.slot) == (role, slot)).expect("a slot")
    }

    /// The process of a slot, which is there.
    pub(crate) fn process(&self, role: Role, slot: u16) -> Observed {
        let mut found = None;
        wait_until("the slot has a process", || {
            found = self.slot(role, slot).pid.and_then(Observed::try_new);
            found.is_some()
        });
        found.expect("the wait has ended")
    }

    /// Kills the process of a slot; what the slot was like before, and when.
    pub(crate) fn kill(&self, role: Role, slot: u16) -> (ProcessStatus, Instant) {
        let before = self.slot(role, slot);
        let process = self.process(role, slot);
        let at = Instant::now();
        process.signal(Signal::KILL);
        process.wait_for_end(Duration::from_secs(60));
        (before, at)
    }

    /// Waits until a slot is ready with a later generation than `before`, exactly the next one.
    pub(crate) fn wait_for_next(&self, before: &ProcessStatus) -> ProcessStatus {
        let mut after = before.clone();
        wait_until("the slot has its next process", || {
            let Some(status) = self.status() else { return false };
            let same = |found: &&ProcessStatus| (found.role, found.slot) == (before.role, before.slot);
            after = status.processes.iter().find(same).expect("a slot").clone();
            after.generation > before.generation && is_ready(&after)
        });
        assert_eq!(after.generation, before.generation + 1, "generations between: {}", self.server.stderr());
        after
    }

    pub(crate) fn generations(&self) -> Vec<u32> {
        let status = self.status().unwrap_or_else(|| panic!("no status: {}", self.server.stderr()));
        status.processes.iter().map(|process| process.generation).collect()
    }

    pub(crate) fn restart_slot(&self, slot: u16) {
        let socket = self.status_socket().expect("a status socket");
        supervisor::restart_slot(&socket, supervisor::Slot { role: Role::Owner, slot }).expect("a failed slot");
    }

    /// The processes below the supervisor.
    pub(crate) fn children(&self) -> Vec<Observed> {
        children_of(self.server.pid())
    }

    pub(crate) fn port(&self) -> u16 {
        self.server.port()
    }

    pub(crate) fn connect(&self) -> Client {
        self.server.connect()
    }

    /// A new client of the frontend `number`.
    pub(crate) fn connect_to(&self, number: u16) -> Client {
        let mut of_others = Vec::new();
        while of_others.len() < 2000 {
            let mut client = self.connect();
            client.check("list-tube-used\r\n", "USING default\r\n");
            if self.is_at(&client, number) {
                return client;
            }
            of_others.push(client);
        }
        panic!("frontend {number} gets no client");
    }

    /// Whether the connection is one of the frontend `number`.
    fn is_at(&self, client: &Client, number: u16) -> bool {
        let address = rustix::net::getsockname(client).expect("address of a connected socket");
        let own = SocketAddrV4::try_from(address).expect("a loopback address").port();
        let inode = diag::accepted(self.port(), own).expect("the kernel's account of a connection");
        let pid = self.slot(Role::Frontend, number).pid;
        pid.is_some_and(|pid| diag::sockets_of(pid).iter().any(|(_, found)| Some(*found) == inode))
    }

    /// SIGTERM, an end in order, and nothing left.
    pub(crate) fn stop_in_order(&mut self) {
        let children = self.children();
        let status = self.server.terminate();
        assert_eq!(status.code(), Some(0), "the stop was not in order: {}", self.server.stderr());
        children.iter().for_each(|child| child.wait_for_end(Duration::ZERO));
    }
}

/// Whatever happens to a row, no process of it stays: dropping the server kills the supervisor, and with it the others.
pub(crate) fn is_ready(process: &ProcessStatus) -> bool {
    process.condition == Condition::Ready
}

pub(crate) fn children_of(pid: u32) -> Vec<Observed> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| Observed::try_new(pid.parse().ok()?)).collect()
}

/// A process that is not a child of ours, by a descriptor that can never mean another one.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) pid: u32,
    pub(crate) descriptor: OwnedFd,
}

impl Observed {
    pub(crate) fn try_new(pid: u32) -> Option<Observed> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        Some(Observed { pid, descriptor: pidfd_open(raw, PidfdFlags::empty()).ok()? })
    }

    /// Has no effect on a process that has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.descriptor, signal);
    }

    pub(crate) fn has_ended_within(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).expect("some seconds");
            match poll(&mut [PollFd::new(&self.descriptor, PollFlags::IN)], Some(&left)) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("cannot poll a process descriptor: {error}"),
            }
        }
    }

    /// Waits for its end, reaped or not.
    pub(crate) fn wait_for_end(&self, limit: Duration) {
        assert!(self.has_ended_within(limit), "process {} still runs after {limit:?}", self.pid);
    }

    /// Stops it and waits until it is stopped.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        wait_until("a process is stopped", || {
            let text = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
            text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['T', 't']))
        });
    }

    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid)).map_or(0, |entries| entries.count())
    }
}

/// Puts a job into a tube and returns its id.
pub(crate) fn put_into(client: &mut Client, tube: &str, body: &str) -> u64 {
    client.check(format!("use {tube}\r\n"), format!("USING {tube}\r\n"));
    client.put(0, 0, 600, body.as_bytes())
}

/// Waits until a command on a connection of its own, again and again, is answered so; how long that took.
pub(crate) fn answered(tree: &Tree, command: &str, expected: &str) -> Duration {
    let begin = Instant::now();
    wait_until(&format!("{command:?} is answered {expected:?}"), || {
        crate::load::try_ask(tree.port(), command).is_some_and(|reply| reply.starts_with(expected))
    });
    begin.elapsed()
}
