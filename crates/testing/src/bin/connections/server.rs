//! The server under load, seen from outside: its processes, their memory and descriptors.
//!
//! Owns: the server, its folder, and how its slots are found.
//! Never: believes what the server says of itself where the kernel can be asked.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use testing::client::Client;
use testing::proc;
use testing::process::{Folder, Launch, Server, wait_until};

/// Tubes of owner 0 and of owner 1 of two: a name keeps its partition for ever. `default` is of owner 0 too.
pub(crate) const TUBES: [&str; 2] = ["one", "two"];
/// As [`TUBES`], with never a job in them.
pub(crate) const EMPTY_TUBES: [&str; 2] = ["left", "right"];

/// A running server of two owners and some frontends.
pub(crate) struct Multi {
    server: Server,
    /// Process numbers by slot.
    pub(crate) owners: Vec<u32>,
    pub(crate) frontends: Vec<u32>,
    // Last: it is removed when the server has ended.
    folder: Folder,
}

/// Where it listens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listen {
    Tcp,
    Unix,
}

impl Multi {
    /// Starts it; with a log if `log` has arguments for one.
    #[track_caller]
    pub(crate) fn start(executable: &Path, frontends: u16, listen: Listen, log: &[&str]) -> Multi {
        let folder = Folder::new();
        let mut launch = Launch::new(executable)
            .environment("XDG_RUNTIME_DIR", folder.path())
            .with(["--owners", "2", "--frontends", &frontends.to_string()])
            .with(log);
        if !log.is_empty() {
            let data = folder.join("data");
            fs::create_dir(&data).expect("a directory in a fresh folder");
            launch = launch.log_in(&data);
        }
        if listen == Listen::Unix {
            launch = launch.on_unix_socket(folder.join("clients.sock"));
        }
        let server = launch.start();
        let mut multi = Multi { server, owners: Vec::new(), frontends: Vec::new(), folder };
        let mut status = String::new();
        wait_until("all processes serve", || {
            status = multi.status().unwrap_or_default();
            status.contains("\"serving\":true")
        });
        multi.owners = processes(&status, "owner");
        multi.frontends = processes(&status, "frontend");
        // Whoever counts descriptors later begins with all of them.
        wait_until("all links are there", || {
            let has = |pid: &u32, links: usize| proc::socket_inodes(*pid).len() > links;
            multi.owners.iter().all(|pid| has(pid, usize::from(frontends)))
                // A frontend has the listener, too.
                && multi.frontends.iter().all(|pid| has(pid, 1 + multi.owners.len()))
        });
        assert_eq!((multi.owners.len(), multi.frontends.len()), (2, usize::from(frontends)), "{status}");
        multi
    }

    pub(crate) fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    /// How a client process is told the address.
    pub(crate) fn address(&self) -> &testing::process::Address {
        self.server.address()
    }

    #[track_caller]
    pub(crate) fn connect(&self) -> Client {
        self.server.connect()
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Private memory of the owners and of the frontends, in bytes.
    pub(crate) fn memory(&self) -> Memory {
        let of = |pids: &[u32]| pids.iter().map(|pid| proc::resident(*pid)).collect();
        Memory { owners: of(&self.owners), frontends: of(&self.frontends) }
    }

    /// Open descriptors of each frontend, then of each owner.
    pub(crate) fn descriptors(&self) -> Vec<usize> {
        self.frontends.iter().chain(&self.owners).map(|pid| proc::descriptors(*pid)).collect()
    }

    /// The present number of clients, that of `monitor` included.
    #[track_caller]
    pub(crate) fn clients(monitor: &mut Client) -> usize {
        monitor.stat("stats", "current-connections").parse().expect("a number")
    }

    /// SIGTERM; `Err` if it does not end with 0 or a process has been started anew meanwhile.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Result<(), String> {
        let status = self.status().unwrap_or_default();
        let now = (processes(&status, "owner"), processes(&status, "frontend"));
        if (&now.0, &now.1) != (&self.owners, &self.frontends) {
            return Err(format!("processes were {:?} and {:?}, now {now:?}", self.owners, self.frontends));
        }
        let ended = self.server.terminate();
        if ended.success() { Ok(()) } else { Err(format!("the server ended with {ended}: {}", self.server.stderr())) }
    }

    fn status(&self) -> Option<String> {
        ask(&self.folder.join("data").join("status.sock")).or_else(|| {
            // Without a log each set of addresses has its folder.
            let folders = fs::read_dir(self.folder.join("tenure")).ok()?;
            folders.flatten().find_map(|folder| ask(&folder.path().join("status.sock")))
        })
    }
}

/// What the status socket at `path` answers, if a server is behind it.
fn ask(path: &Path) -> Option<String> {
    let mut stream = UnixStream::connect(path).ok()?;
    stream.write_all(b"status\n").ok()?;
    stream.shutdown(Shutdown::Write).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The process numbers of a role, by slot.
fn processes(status: &str, role: &str) -> Vec<u32> {
    let parts = status.split("{\"role\":\"").skip(1).filter(|part| part.starts_with(role));
    let pid = |part: &str| part.split_once("\"pid\":")?.1.split([',', '}']).next()?.parse().ok();
    parts.filter_map(pid).collect()
}

/// Memory of the processes of a server, by slot, in bytes.
pub(crate) struct Memory {
    pub(crate) owners: Vec<u64>,
    pub(crate) frontends: Vec<u64>,
}

impl Memory {
    pub(crate) fn of_owners(&self) -> u64 {
        self.owners.iter().sum()
    }

    pub(crate) fn of_frontends(&self) -> u64 {
        self.frontends.iter().sum()
    }
}
