//! A client that writes down what it asks and hears, as a history wants it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use testing::history::body_hash;
use testing::rng::Rng;

const TUBES: [&str; 3] = ["default", "mail", "a.b"];
/// Tubes of both owners of two: a name keeps its partition for ever.
const TUBES_OF_OWNERS: [&str; 5] = ["default", "left", "one", "right", "two"];
/// With more jobs clients rather take than put, so that the checker's model stays quick.
const JOBS_MAX: usize = 80;

/// What clients like to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mix {
    /// Whatever the replay of one process can settle.
    Single,
    /// Everything, in the tubes of several owners.
    Multi,
}

/// What the clients of one directory know together.
#[derive(Default)]
pub(crate) struct Known {
    /// Jobs that were put and not deleted, as far as replies tell.
    pub(crate) alive: Mutex<BTreeSet<u64>>,
    pub(crate) id_max: AtomicU64,
    /// Number of the last connection.
    connections: AtomicU32,
}

impl Known {
    pub(crate) fn alive(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn boot_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanoseconds) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + nanoseconds.unwrap_or(0)
}

/// A connection that writes down what it asks and hears.
pub(crate) struct Client<'a> {
    mix: Mix,
    known: &'a Known,
    stream: TcpStream,
    input: BufReader<TcpStream>,
    key: u32,
    number: u64,
    log: String,
    held: Vec<u64>,
}

impl<'a> Client<'a> {
    pub(crate) fn connect(port: u16, known: &'a Known, mix: Mix) -> std::io::Result<Client<'a>> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let key = known.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let log = format!("open {key} {} {}\n", stream.local_addr()?.port(), boot_ns());
        let input = BufReader::new(stream.try_clone()?);
        Ok(Client { mix, known, stream, input, key, number: 0, log, held: Vec::new() })
    }

    pub(crate) fn leave(mut self) -> String {
        let _ = writeln!(self.log, "gone {} {}", self.key, boot_ns());
        self.log
    }

    /// Sends whatever it likes until the server is gone.
    pub(crate) fn run(mut self, mut rng: Rng) -> String {
        loop {
            if self.step(&mut rng).is_err() {
                return self.leave();
            }
            if rng.chance(1, 400) {
                return self.leave();
            }
        }
    }

    fn step(&mut self, rng: &mut Rng) -> std::io::Result<()> {
        let count = rng.between(1, 3);
        let first = self.number + 1;
        let mut bytes = Vec::new();
        let mut commands = Vec::new();
        for _ in 0..count {
            let command = self.choose(rng);
            self.number += 1;
            let body = match command.strip_prefix("put ") {
                Some(_) => Some(format!("{}-{}-{}", self.key, self.number, "x".repeat(rng.index(300)))),
                None => None,
            };
            let (wire, logged) = match &body {
                Some(body) => (
                    format!("{command} {}\r\n{body}\r\n", body.len()),
                    format!("{command} {} {:x}", body.len(), body_hash(body.as_bytes())),
                ),
                None => (format!("{command}\r\n"), command.clone()),
            };
            let _ = writeln!(self.log, "invoke {} {} {} {logged}", self.key, self.number, boot_ns());
            bytes.extend_from_slice(wire.as_bytes());
            commands.push(command);
        }
        self.stream.write_all(&bytes)?;
        for (number, command) in (first..).zip(commands) {
            let reply = self.hear(number)?;
            self.learn(&command, &reply);
        }
        Ok(())
    }

    /// One command and its reply.
    pub(crate) fn ask(&mut self, command: &str) -> std::io::Result<String> {
        self.number += 1;
        let _ = writeln!(self.log, "invoke {} {} {} {command}", self.key, self.number, boot_ns());
        self.stream.write_all(format!("{command}\r\n").as_bytes())?;
        self.hear(self.number)
    }

    /// Takes a reply, writes it down and returns it as it was written.
    fn hear(&mut self, number: u64) -> std::io::Result<String> {
        let mut line = String::new();
        if self.input.read_line(&mut line)? == 0 || !line.ends_with("\r\n") {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let mut reply = line.trim_end().to_owned();
        let word = reply.split(' ').next().unwrap_or_default().to_owned();
        if matches!(word.as_str(), "RESERVED" | "FOUND" | "OK") {
            let length: usize = reply.rsplit(' ').next().and_then(|length| length.parse().ok()).unwrap_or(0);
            let mut body = vec![0; length + 2];
            self.input.read_exact(&mut body)?;
            body.truncate(length);
            if word == "OK" {
                reply = format!("OK {}", String::from_utf8_lossy(&body).replace('\n', "|"));
            } else {
                let _ = write!(reply, " {:x}", body_hash(&body));
            }
        }
        let _ = writeln!(self.log, "ok {} {number} {} {reply}", self.key, boot_ns());
        Ok(reply)
    }

    fn learn(&mut self, command: &str, reply: &str) {
        let id_of = |text: &str| text.split(' ').nth(1).and_then(|id| id.parse::<u64>().ok());
        match reply.split(' ').next() {
            Some("INSERTED") => {
                if let Some(id) = id_of(reply) {
                    self.known.id_max.fetch_max(id, Ordering::Relaxed);
                    self.known.alive().insert(id);
                }
            }
            Some("RESERVED") => self.held.extend(id_of(reply)),
            Some("DELETED") => {
                if let Some(id) = id_of(command) {
                    self.known.alive().remove(&id);
                    self.held.retain(|held| *held != id);
                }
            }
            Some("RELEASED" | "BURIED") => {
                let id = id_of(command);
                self.held.retain(|held| Some(*held) != id);
            }
            _ => {}
        }
    }

    fn choose(&mut self, rng: &mut Rng) -> String {
        let tubes: &[&str] = if self.mix == Mix::Multi { &TUBES_OF_OWNERS } else { &TUBES };
        let tube = *rng.pick(tubes);
        let pri = rng.below(6);
        let delay = u64::from(rng.chance(1, 12));
        let alive = self.known.alive();
        let any = alive.iter().nth(rng.index(alive.len().max(1))).copied().unwrap_or(1);
        let is_full = alive.len() >= JOBS_MAX;
        drop(alive);
        let held = if self.held.is_empty() { any } else { *rng.pick(&self.held) };
        if self.mix == Mix::Multi && rng.chance(1, 10) {
            return self.look(rng, tube);
        }
        match rng.weighted(&[if is_full { 1 } else { 30 }, 24, 1, 20, 6, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 2, 3]) {
            0 => format!("put {pri} {delay} {}", rng.between(5, 30)),
            1 => "reserve-with-timeout 0".to_owned(),
            2 => (*rng.pick(&["reserve-with-timeout 1", "reserve"])).to_owned(),
            3 => format!("delete {held}"),
            4 => format!("release {held} {pri} {delay}"),
            5 => format!("bury {held} {pri}"),
            6 => format!("touch {held}"),
            7 => format!("kick {}", rng.pick(&[1000, u32::MAX])),
            8 => format!("kick-job {any}"),
            9 => format!("use {tube}"),
            10 => format!("watch {tube}"),
            11 => format!("ignore {tube}"),
            12 => format!("peek {any}"),
            13 => format!("reserve-job {any}"),
            14 => format!("pause-tube {tube} {}", rng.below(2)),
            15 => format!("delete {any}"),
            _ => format!("stats-job {any}"),
        }
    }

    /// Commands that only look.
    fn look(&self, rng: &mut Rng, tube: &str) -> String {
        let words = [
            "peek-ready",
            "peek-delayed",
            "peek-buried",
            "list-tubes",
            "list-tube-used",
            "list-tubes-watched",
            "stats",
        ];
        match rng.below(8) {
            0 => format!("stats-tube {tube}"),
            _ => (*rng.pick(&words)).to_owned(),
        }
    }
}
