//! A crowd: client processes with thousands of connections each.
//!
//! Owns: both sides. The part tells each process a line, `open N`, `serve`, `wait`, `collect`, `close`, and reads the
//! line that answers it: how many connections took part, and the longest time one was waited for. A process ends when
//! its standard input does, so none is left when a part fails.
//! Never: has more connections unanswered than a listener keeps for a server that rests.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use testing::process::Address;

use crate::ensure;
use crate::server::EMPTY_TUBES;

/// The first argument of a client process.
pub(crate) const WORD: &str = "--crowd";
/// The tube that some of a crowd wait at. It is of the other owner than `default`, so they wait at both.
pub(crate) const MEETING: &str = "jobs";
/// One of so many waits.
const WAITING_EVERY: usize = 20;
/// Connections that are opened, or asked, before the first is waited for. A listener keeps 1,024; there are up to six
/// processes.
const AT_ONCE: usize = 128;
/// How long a reply may take before the crowd gives up. No promise to users.
const LIMIT: Duration = Duration::from_secs(60);

/// What the connections of a crowd did upon a word.
pub(crate) struct Done {
    pub(crate) count: usize,
    pub(crate) longest: Duration,
}

/// Client processes.
pub(crate) struct Crowd {
    processes: Vec<Process>,
}

struct Process {
    child: Child,
    words: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Crowd {
    /// Starts so many client processes, each with a source address of its own if the server listens on TCP.
    pub(crate) fn start(address: &Address, processes: usize) -> Result<Crowd, String> {
        let own = std::env::current_exe().map_err(|error| format!("cannot tell where this program is: {error}"))?;
        let address = match address {
            Address::Tcp(address) => address.to_string(),
            Address::Unix(path) => format!("unix:{}", path.display()),
        };
        let mut crowd = Crowd { processes: Vec::new() };
        for number in 0..processes {
            // Ports of connections that were closed are kept for a minute, per source: another run takes others.
            let [.., high, low] = std::process::id().to_be_bytes();
            let last = u8::try_from(number + 1).map_err(|_| format!("{processes} processes are too many"))?;
            let source = Ipv4Addr::new(127, high | 0x80, low, last);
            let mut command = Command::new(&own);
            command.args([WORD, &address, &source.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().map_err(|error| format!("cannot start a client process: {error}"))?;
            let (Some(words), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
                unreachable!("both are pipes")
            };
            crowd.processes.push(Process { child, words, answers: BufReader::new(answers) });
        }
        Ok(crowd)
    }

    /// Opens so many connections in all, with a command on each.
    pub(crate) fn open(&mut self, connections: usize) -> Result<Done, String> {
        let processes = self.processes.len();
        self.tell(|number| format!("open {}", (connections + number) / processes))
    }

    /// A command on each connection.
    pub(crate) fn serve(&mut self) -> Result<Done, String> {
        self.tell(|_| "serve".into())
    }

    /// Some of them watch [`MEETING`] and reserve.
    pub(crate) fn wait(&mut self) -> Result<Done, String> {
        self.tell(|_| "wait".into())
    }

    /// Each that waits gets a job and deletes it.
    pub(crate) fn collect(&mut self) -> Result<Done, String> {
        self.tell(|_| "collect".into())
    }

    /// Closes all connections.
    pub(crate) fn close(&mut self) -> Result<Done, String> {
        self.tell(|_| "close".into())
    }

    /// Tells all processes, then hears all.
    fn tell(&mut self, word: impl Fn(usize) -> String) -> Result<Done, String> {
        for (number, process) in self.processes.iter_mut().enumerate() {
            let said = writeln!(process.words, "{}", word(number));
            said.map_err(|error| format!("a client process is gone: {error}"))?;
        }
        let mut all = Done { count: 0, longest: Duration::ZERO };
        for (number, process) in self.processes.iter_mut().enumerate() {
            let mut line = String::new();
            let heard = process.answers.read_line(&mut line).map_err(|error| error.to_string())?;
            ensure(heard > 0, || format!("a client process gave up at {:?}", word(number)))?;
            let mut numbers = line.split_whitespace().map(str::parse::<u64>);
            let (Some(Ok(count)), Some(Ok(longest))) = (numbers.next(), numbers.next()) else {
                return Err(format!("a client process, told {:?}: {}", word(number), line.trim_end()));
            };
            all.count += usize::try_from(count).map_err(|error| error.to_string())?;
            all.longest = all.longest.max(Duration::from_micros(longest));
        }
        Ok(all)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for Process { mut child, words, answers } in self.processes.drain(..) {
            drop((words, answers));
            // It may be waiting for the server, which is of no interest any more.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// A client process: does what its standard input says until that ends.
pub(crate) fn serve(address: &str, source: &str) -> ExitCode {
    let limit = getrlimit(Resource::Nofile);
    // As far as the system allows; if that is not enough, opening fails and says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let mut connections = Vec::new();
    let mut way = Way { address, source, port: PORTS.start };
    for line in std::io::stdin().lines() {
        let result = line.map_err(|error| error.to_string()).and_then(|line| {
            let mut words = line.split(' ');
            match (words.next(), words.next().map(str::parse)) {
                (Some("open"), Some(Ok(count))) => open(&mut connections, &mut way, count),
                (Some("serve"), None) => ask_all(&connections, 1, question),
                (Some("wait"), None) => ask_all(&connections, WAITING_EVERY, |_| {
                    (format!("watch {MEETING}\r\nreserve\r\n"), "WATCHING 2\r\n")
                }),
                (Some("collect"), None) => collect(&connections),
                (Some("close"), None) => Ok((std::mem::take(&mut connections).len(), Duration::ZERO)),
                _ => Err(format!("the word {line:?} is not known")),
            }
        });
        match result {
            Ok((count, longest)) => println!("{count} {}", longest.as_micros()),
            Err(what) => {
                println!("failed: {what}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// How many took part, and the longest time one was waited for.
type Took = Result<(usize, Duration), String>;

/// What connection `number` asks, and what it must be told: something of its frontend, or of either owner.
fn question(number: usize) -> (String, &'static str) {
    match number % 3 {
        0 => ("list-tube-used\r\n".into(), "USING default\r\n"),
        1 => ("peek-ready\r\n".into(), "NOT_FOUND\r\n"),
        _ if number.is_multiple_of(2) => {
            (format!("use {}\r\npeek-ready\r\n", EMPTY_TUBES[0]), "USING left\r\nNOT_FOUND\r\n")
        }
        _ => (format!("use {}\r\npeek-ready\r\n", EMPTY_TUBES[1]), "USING right\r\nNOT_FOUND\r\n"),
    }
}

/// Ports of a source address, taken in turn: the system would search for a free one, for longer with every connection.
const PORTS: std::ops::Range<u16> = 10_000..60_000;

/// From where to where a process connects.
struct Way<'a> {
    address: &'a str,
    source: &'a str,
    /// The next port to take.
    port: u16,
}

fn open(connections: &mut Vec<OwnedFd>, way: &mut Way<'_>, count: usize) -> Took {
    let mut longest = Duration::ZERO;
    while connections.len() < count {
        let first = connections.len();
        let begin = Instant::now();
        for number in first..count.min(first + AT_ONCE) {
            let opened = way.connect();
            connections.push(opened.map_err(|error| format!("connection {number} cannot be opened: {error}"))?);
        }
        ask_some(connections, first..connections.len(), 1, &question)?;
        longest = longest.max(begin.elapsed());
    }
    Ok((count, longest))
}

impl Way<'_> {
    fn connect(&mut self) -> Result<OwnedFd, String> {
        let open = |family| rustix::net::socket(family, SocketType::STREAM, None).map_err(|error| error.to_string());
        let socket = if let Some(path) = self.address.strip_prefix("unix:") {
            let socket = open(AddressFamily::UNIX)?;
            let path = SocketAddrUnix::new(path).map_err(|error| error.to_string())?;
            rustix::net::connect(&socket, &path).map_err(|error| error.to_string())?;
            socket
        } else {
            let socket = open(AddressFamily::INET)?;
            self.bind(&socket)?;
            let address: SocketAddr = self.address.parse().map_err(|_| format!("{} is no address", self.address))?;
            rustix::net::connect(&socket, &address).map_err(|error| error.to_string())?;
            socket
        };
        set_socket_timeout(&socket, Timeout::Recv, Some(LIMIT)).map_err(|error| error.to_string())?;
        Ok(socket)
    }

    /// Takes the next port of the source that nobody else has.
    fn bind(&mut self, socket: &OwnedFd) -> Result<(), String> {
        let source: Ipv4Addr = self.source.parse().map_err(|_| format!("{} is no address", self.source))?;
        for _ in PORTS {
            let port = self.port;
            self.port = if port + 1 == PORTS.end { PORTS.start } else { port + 1 };
            match rustix::net::bind(socket, &SocketAddrV4::new(source, port)) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::ADDRINUSE) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(format!("all ports of {source} are in use"))
    }
}

/// Every `every`th connection asks, some at once, and is told what it must be.
fn ask_all(connections: &[OwnedFd], every: usize, question: impl Fn(usize) -> (String, &'static str)) -> Took {
    let mut done = (0, Duration::ZERO);
    for first in (0..connections.len()).step_by(every * AT_ONCE) {
        let range = first..connections.len().min(first + every * AT_ONCE);
        let (count, longest) = ask_some(connections, range, every, &question)?;
        done = (done.0 + count, done.1.max(longest));
    }
    Ok(done)
}

fn ask_some(
    connections: &[OwnedFd],
    range: std::ops::Range<usize>,
    every: usize,
    question: &impl Fn(usize) -> (String, &'static str),
) -> Took {
    let begin = Instant::now();
    for number in range.clone().step_by(every) {
        send(&connections[number], &question(number).0)?;
    }
    for number in range.clone().step_by(every) {
        let expected = question(number).1;
        let got = receive(&connections[number], |got| got.len() >= expected.len())?;
        ensure(got == expected, || format!("connection {number} is told {got:?}, not {expected:?}"))?;
    }
    Ok((range.len().div_ceil(every), begin.elapsed()))
}

/// Those that wait get a job each and delete it. A job that two had got could be deleted once only.
fn collect(connections: &[OwnedFd]) -> Took {
    let begin = Instant::now();
    let waiting = connections.iter().step_by(WAITING_EVERY);
    let count = waiting.len();
    for connection in waiting {
        let reserved = receive(connection, |got| got.ends_with("\r\n+\r\n"))?;
        let id = reserved.strip_prefix("RESERVED ").and_then(|rest| rest.strip_suffix(" 1\r\n+\r\n"));
        let id = id.ok_or_else(|| format!("one that waits is told {reserved:?}"))?;
        send(connection, &format!("delete {id}\r\nignore {MEETING}\r\n"))?;
        let told = receive(connection, |got| got.matches("\r\n").count() >= 2)?;
        ensure(told == "DELETED\r\nWATCHING 1\r\n", || format!("whoever got job {id} is told {told:?}"))?;
    }
    Ok((count, begin.elapsed()))
}

fn send(connection: &OwnedFd, text: &str) -> Result<(), String> {
    let sent = rustix::net::send(connection, text.as_bytes(), SendFlags::NOSIGNAL);
    // A few bytes into an empty buffer go at once or not at all.
    ensure(sent == Ok(text.len()), || format!("{text:?} cannot be sent: {sent:?}"))
}

/// Reads until it is enough.
fn receive(connection: &OwnedFd, is_enough: impl Fn(&str) -> bool) -> Result<String, String> {
    let mut text = String::new();
    let mut buffer = [0; 256];
    while !is_enough(&text) {
        let received = rustix::net::recv(connection, &mut buffer, RecvFlags::empty());
        match received {
            Ok((0, _)) => return Err(format!("the server has closed a connection, after {text:?}")),
            Ok((count, _)) => text.push_str(&String::from_utf8_lossy(&buffer[..count])),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(format!("a connection is not served ({error}), after {text:?}")),
        }
    }
    Ok(text)
}
