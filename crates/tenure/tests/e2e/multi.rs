//! Several processes as one server: supervisor, owners, frontends.
//!
//! Ids are never written down here: they carry the partition of their tube and rise over all owners. Comments cite the
//! rows of the requirements (T, S), the guarantees (GT) and the rules that a test is about. Against another executable
//! (`TENURE_TEST_SERVER`) these tests mean nothing.

mod jobs;
mod kills;
mod life;
mod load;
mod places;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use testing::client::Client;
use testing::process::{Folder, Launch, Server, wait_until};

use super::tubes;

/// Tubes of owner 0 of two: a name keeps its partition for ever. `default` is one more.
const AT_0: [&str; 3] = ["left", "one", "video"];
/// Tubes of owner 1 of two.
const AT_1: [&str; 3] = ["right", "two", "jobs"];
/// Kills and restarts without end.
const PATIENT: [&str; 4] = ["--restart-limit", "100000/30", "--restart-delay", "10ms"];

/// A slot of the server as its status socket shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slot {
    role: String,
    number: u16,
    generation: u32,
    condition: String,
    pid: Option<u32>,
}

/// A running server of several processes, with folders of its own.
struct Multi {
    server: Server,
    launch: Launch,
    status_below: PathBuf,
    folder: Folder,
}

impl Multi {
    /// Two owners and two frontends, without a log.
    #[track_caller]
    fn start() -> Self {
        Self::start_with(&[])
    }

    /// As [`Multi::start`], with more arguments; later ones win.
    #[track_caller]
    fn start_with(arguments: &[&str]) -> Self {
        let folder = Folder::new();
        let launch = several(2, 2, &folder).with(arguments);
        Self::begin(launch, folder.join("tenure"), folder)
    }

    /// Two owners and two frontends, with a log.
    #[track_caller]
    fn start_with_log(arguments: &[&str]) -> Self {
        let folder = Folder::new();
        let data = folder.join("data");
        fs::create_dir(&data).expect("a folder for the log");
        let launch = several(2, 2, &folder).log_in(&data).with(arguments);
        Self::begin(launch, data, folder)
    }

    #[track_caller]
    fn begin(launch: Launch, status_below: PathBuf, folder: Folder) -> Self {
        let multi = Self { server: launch.start(), launch, status_below, folder };
        multi.wait_until_serving();
        multi
    }

    /// The directory of the log.
    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Starts the server again, which has ended.
    #[track_caller]
    fn start_again(&mut self) {
        self.server = self.launch.start();
        self.wait_until_serving();
    }

    #[track_caller]
    fn wait_until_serving(&self) {
        wait_until("all processes serve", || self.status().is_some_and(|text| text.contains("\"serving\":true")));
    }

    /// The answer of the status socket, if the server has one.
    fn status(&self) -> Option<String> {
        ask(&self.status_below.join("status.sock"), "status").or_else(|| {
            // Without a log each set of addresses has its folder.
            let folders = fs::read_dir(&self.status_below).ok()?;
            folders.flatten().find_map(|folder| ask(&folder.path().join("status.sock"), "status"))
        })
    }

    /// All slots: owners, then frontends.
    #[track_caller]
    fn slots(&self) -> Vec<Slot> {
        let text = self.status().unwrap_or_else(|| panic!("no status; {:?}", self.server));
        let slots = text.split("{\"role\":\"").skip(1).map(|part| {
            let field = |name: &str| {
                let (_, rest) = part.split_once(&format!("\"{name}\":"))?;
                Some(rest.split([',', '}']).next()?.trim_matches('"').to_owned())
            };
            let number = |name: &str| field(name).and_then(|value| value.parse::<u32>().ok());
            Slot {
                role: part.split('"').next().unwrap_or_default().to_owned(),
                number: number("slot").and_then(|slot| u16::try_from(slot).ok()).expect("a slot has a number"),
                generation: number("generation").expect("a slot has a generation"),
                condition: field("condition").expect("a slot has a condition"),
                pid: number("pid"),
            }
        });
        slots.collect()
    }

    #[track_caller]
    fn slot(&self, role: &str, number: u16) -> Slot {
        let slots = self.slots();
        let found = slots.iter().find(|slot| slot.role == role && slot.number == number).cloned();
        found.unwrap_or_else(|| panic!("no {role} {number} in {slots:?}"))
    }

    /// Kills the process of a slot and returns what the slot was like before.
    #[track_caller]
    fn kill(&self, role: &str, number: u16) -> Slot {
        let before = self.slot(role, number);
        let process = Observed::new(before.pid.unwrap_or_else(|| panic!("{before:?} has no process")));
        process.signal(Signal::KILL);
        process.wait_for_end(Duration::from_secs(60));
        before
    }

    /// Waits until the slot has its next process, and it serves.
    #[track_caller]
    fn wait_for_next(&self, before: &Slot) -> Slot {
        let mut after = before.clone();
        wait_until("the slot has its next process", || {
            after = self.slot(&before.role, before.number);
            after.generation > before.generation && after.condition == "ready"
        });
        assert_eq!(after.generation, before.generation + 1, "{:?}", self.server);
        assert_ne!(after.pid, before.pid);
        after
    }

    #[track_caller]
    fn connect(&self) -> Client {
        self.server.connect()
    }

    /// A new client of the frontend `number`.
    #[track_caller]
    fn connect_to(&self, number: u16) -> Client {
        let mut of_others = Vec::new();
        // New clients are shared out, so each frontend gets one of a few dozen.
        while of_others.len() < 2000 {
            let mut client = self.connect();
            client.check("list-tube-used\r\n", "USING default\r\n");
            let own = client_port(&client);
            let pid = self.slot("frontend", number).pid;
            if pid.is_some_and(|pid| clients_of(pid, self.server.port()).contains(&own)) {
                return client;
            }
            of_others.push(client);
        }
        panic!("frontend {number} gets no client: {:?}", self.slots());
    }

    /// The processes below the supervisor.
    #[track_caller]
    fn children(&self) -> Vec<Observed> {
        let pid = self.server.pid();
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("children of the supervisor");
        text.split_whitespace().map(|pid| Observed::new(pid.parse().expect("a process number"))).collect()
    }

    /// Waits until no process accepts a job any more.
    #[track_caller]
    fn wait_until_drained(&self) {
        wait_until("drained", || self.status().is_some_and(|text| text.contains("\"drained\":true")));
    }
}

/// How to start so many processes, with their runtime folder in `folder`, which also marks them.
fn several(owners: u16, frontends: u16, folder: &Folder) -> Launch {
    tubes().environment("XDG_RUNTIME_DIR", folder.path()).with([
        "--owners",
        &owners.to_string(),
        "--frontends",
        &frontends.to_string(),
    ])
}

/// What the status socket at `path` answers, if a server is behind it.
fn ask(path: &Path, request: &str) -> Option<String> {
    let mut stream = UnixStream::connect(path).ok()?;
    stream.write_all(format!("{request}\n").as_bytes()).ok()?;
    stream.shutdown(Shutdown::Write).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// A process that is not a child of the test, by a descriptor that can never mean another one.
struct Observed {
    pid: u32,
    descriptor: OwnedFd,
}

impl Observed {
    #[track_caller]
    fn new(pid: u32) -> Self {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process number");
        let descriptor = pidfd_open(raw, PidfdFlags::empty()).expect("descriptor of a running process");
        Self { pid, descriptor }
    }

    #[track_caller]
    fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.descriptor, signal).expect("signal to a running process");
    }

    /// Waits for its end, reaped or not.
    #[track_caller]
    fn wait_for_end(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        loop {
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).expect("some seconds");
            match poll(&mut [PollFd::new(&self.descriptor, PollFlags::IN)], Some(&left)) {
                Ok(0) => panic!("process {} still runs after {limit:?}", self.pid),
                Ok(_) => return,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("cannot poll a process descriptor: {error}"),
            }
        }
    }
}

/// The processes whose environment names `folder`: all of the servers started with [`several`] and it.
fn processes_of(folder: &Folder) -> Vec<u32> {
    let mark = folder.path().as_os_str().as_encoded_bytes();
    let entries = fs::read_dir("/proc").expect("list of processes").flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_marked = |pid: &u32| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environment| environment.windows(mark.len()).any(|window| window == mark))
    };
    numbers.filter(is_marked).collect()
}

fn client_port(client: &Client) -> u16 {
    let address = rustix::net::getsockname(client).expect("address of a connected socket");
    SocketAddrV4::try_from(address).expect("a loopback address").port()
}

/// The ports of the clients whose connections to `port` process `pid` has open.
fn clients_of(pid: u32, port: u16) -> HashSet<u16> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return HashSet::new() };
    let links = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    let own: HashSet<String> =
        links.filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())).collect();
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let rows = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port_of = |address: &str| u16::from_str_radix(address.split_once(':')?.1, 16).ok();
        let is_open = *fields.get(3)? == "01" && port_of(fields.get(1)?)? == port;
        (is_open && own.contains(*fields.get(9)?)).then_some(port_of(fields.get(2)?)?)
    });
    rows.collect()
}

/// `key: value` lines as a map.
fn figures(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once(": ")).collect()
}

/// Watches these tubes as well.
#[track_caller]
fn watch(client: &mut Client, tubes: &[&str]) {
    for tube in tubes {
        let reply = client.ask(&format!("watch {tube}"));
        assert!(reply.starts_with("WATCHING "), "{reply}");
    }
}

/// Puts a job into a tube and returns its id.
#[track_caller]
fn put_into(client: &mut Client, tube: &str, priority: u32, body: &str) -> u64 {
    client.check(format!("use {tube}\r\n"), format!("USING {tube}\r\n"));
    client.put(priority, 0, 600, body.as_bytes())
}

/// Reads `RESERVED id bytes` and the body.
#[track_caller]
fn reserved(client: &mut Client) -> (u64, String) {
    let line = client.line();
    let words: Vec<&str> = line.split(' ').collect();
    let ["RESERVED", id, count] = words[..] else { panic!("RESERVED expected, but got {line:?}") };
    let body = client.read(count.parse().expect("a count of bytes"));
    client.expect("\r\n");
    (id.parse().expect("an id"), String::from_utf8(body).expect("text"))
}
