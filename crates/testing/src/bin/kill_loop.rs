//! Kills a real server at random moments, again and again, and judges what its clients saw.
//!
//!     kill_loop target/verify/tenure --cycles 1500 --threads 2 --seed 1
//!
//! The executable is built with the feature `trace`. Each cycle starts the server on the same directory, in one sync mode
//! after the other, asks what became of the commands that the last kill left open, lets several clients do what they
//! like for some ms, and kills it with SIGKILL. In the end every id ever given is looked up, and the history checker
//! judges the whole. Ends with 1 if it finds anything, leaving the history for study; otherwise nothing is left behind.
//! `kill_loop --judge PATH` judges such a history again.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use testing::history::{History, Report, body_hash, check};
use testing::process::{Folder, Launch};
use testing::rng::Rng;

const TUBES: [&str; 3] = ["default", "mail", "a.b"];
const CLIENTS: u64 = 4;
/// With more jobs clients rather take than put, so that the checker's model stays quick.
const JOBS_MAX: usize = 80;
const MODES: [&[&str]; 4] = [&["-f", "50"], &["-f", "0"], &["-F"], &["-f", "1"]];

struct Arguments {
    executable: PathBuf,
    cycles: u64,
    threads: u64,
    seed: u64,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [judge, path] = words.as_slice()
        && judge == "--judge"
    {
        return judge_again(path);
    }
    let Some(arguments) = parse(words.into_iter()) else {
        eprintln!("usage: kill_loop EXECUTABLE [--cycles N] [--threads N] [--seed N]");
        eprintln!("       kill_loop --judge PATH");
        return ExitCode::from(5);
    };
    let begin = Instant::now();
    let reports: Vec<Result<Report, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..arguments.threads)
            .map(|number| {
                let cycles = arguments.cycles.div_ceil(arguments.threads);
                let (executable, seed) = (arguments.executable.as_path(), arguments.seed + number);
                scope.spawn(move || Loop::new(executable, seed).run(cycles))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("the harness gave up".into()))).collect()
    });
    let seconds = begin.elapsed().as_secs_f64();
    let mut is_fine = true;
    let mut cycles = 0;
    for report in reports {
        match report {
            Ok(report) => {
                cycles += arguments.cycles.div_ceil(arguments.threads);
                println!(
                    "{} generations, {} replies replayed, {} commands unknown, {} reservations, lateness {:?}",
                    report.generations, report.replayed, report.unknown, report.reservations, report.lateness
                );
            }
            Err(what) => {
                eprintln!("{what}");
                is_fine = false;
            }
        }
    }
    println!("{cycles} kills in {seconds:.0} s, {:.1} a second", cycles as f64 / seconds);
    if is_fine && cycles < arguments.cycles {
        eprintln!("fewer than {} kills", arguments.cycles);
        is_fine = false;
    }
    if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Judges `path.clients` and `path.trace`.
fn judge_again(path: &str) -> ExitCode {
    let read =
        |end: &str| std::fs::read_to_string(format!("{path}.{end}")).map_err(|error| format!("{path}.{end}: {error}"));
    let judged = read("clients").and_then(|clients| {
        let history = History::parse(&clients, &read("trace")?).map_err(|error| error.to_string())?;
        Ok(check(&history))
    });
    match judged {
        Ok(report) => {
            println!("{report:#?}");
            if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(what) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let executable = PathBuf::from(words.next()?);
    let mut arguments = Arguments { executable, cycles: 1_500, threads: 2, seed: 1 };
    while let Some(option) = words.next() {
        let value = words.next()?.parse().ok()?;
        match option.as_str() {
            "--cycles" => arguments.cycles = value,
            "--threads" if value > 0 => arguments.threads = value,
            "--seed" => arguments.seed = value,
            _ => return None,
        }
    }
    Some(arguments)
}

/// What the clients of one directory know together.
#[derive(Default)]
struct Known {
    /// Jobs that were put and not deleted, as far as replies tell.
    alive: Mutex<BTreeSet<u64>>,
    id_max: AtomicU64,
    /// Number of the last connection.
    connections: AtomicU32,
}

impl Known {
    fn alive(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a kill has left open.
#[derive(Default)]
struct Open {
    ids: BTreeSet<u64>,
    puts: u64,
    all: bool,
}

/// One directory and its history.
struct Loop<'a> {
    executable: &'a Path,
    rng: Rng,
    seed: u64,
    folder: Folder,
    known: Known,
    /// No id above it can have been given: those of unknown puts may have been used and be gone already.
    id_bound: u64,
    log: String,
}

impl<'a> Loop<'a> {
    fn new(executable: &'a Path, seed: u64) -> Self {
        let (rng, folder) = (Rng::new(seed), Folder::new());
        Loop { executable, rng, seed, folder, known: Known::default(), id_bound: 0, log: String::new() }
    }

    fn run(mut self, cycles: u64) -> Result<Report, String> {
        let data = self.folder.join("data");
        let trace = self.folder.join("trace");
        std::fs::create_dir(&data).map_err(|error| format!("cannot make {}: {error}", data.display()))?;
        let mut open = Open::default();
        for cycle in 0..=cycles {
            let launch = Launch::new(self.executable)
                .log_in(&data)
                .with(["-s", "65536", "--trace"])
                .with([trace.as_os_str()])
                .with(MODES[usize::try_from(cycle).unwrap_or(0) % MODES.len()]);
            let mut server = launch.start();
            let port = server.port();
            self.settle(port, std::mem::take(&mut open))?;
            if cycle == cycles {
                self.look_up_everything(port)?;
                server.terminate();
                break;
            }
            // Now and then it lives long enough for delays and timeouts of a second to end.
            let longest_us = if cycle % 64 == 0 { 1_500_000 } else { 40_000 };
            let kill_after = Duration::from_micros(self.rng.between(longest_us / 80, longest_us));
            let known = &self.known;
            let texts: Vec<String> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..CLIENTS)
                    .map(|_| {
                        let rng = self.rng.fork(cycle);
                        scope
                            .spawn(move || Client::connect(port, known).map_or(String::new(), |client| client.run(rng)))
                    })
                    .collect();
                std::thread::sleep(kill_after);
                server.kill();
                threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
            });
            for text in texts {
                left_open(&text, &mut open);
                self.log.push_str(&text);
            }
            if cycle % 64 == 0 {
                self.check_command(&data)?;
            }
        }
        self.judge(&trace)
    }

    /// Asks what became of the commands that the kill has left open.
    fn settle(&mut self, port: u16, open: Open) -> Result<(), String> {
        let mut ids = open.ids;
        if open.all {
            ids.extend(self.known.alive().iter().copied());
        }
        let id_max = self.known.id_max.load(Ordering::Relaxed);
        self.id_bound = self.id_bound.max(id_max) + open.puts;
        ids.extend(id_max + 1..=self.id_bound);
        let known = &self.known;
        let mut client = Client::connect(port, known).map_err(|error| format!("cannot settle: {error}"))?;
        for id in ids {
            let asked = client.ask(&format!("peek {id}")).and_then(|found| {
                if found.starts_with("FOUND") {
                    known.id_max.fetch_max(id, Ordering::Relaxed);
                    known.alive().insert(id);
                    client.ask(&format!("stats-job {id}"))?;
                } else {
                    known.alive().remove(&id);
                }
                Ok(())
            });
            asked.map_err(|error| format!("cannot settle: {error}"))?;
        }
        self.log.push_str(&client.leave());
        Ok(())
    }

    fn look_up_everything(&mut self, port: u16) -> Result<(), String> {
        let mut client = Client::connect(port, &self.known).map_err(|error| format!("cannot look: {error}"))?;
        let mut present = String::new();
        for id in 1..=self.id_bound {
            let found = client.ask(&format!("peek {id}")).map_err(|error| format!("cannot look: {error}"))?;
            if let ["FOUND", _, _, hash] = found.split(' ').collect::<Vec<_>>().as_slice() {
                let _ = writeln!(present, "present {id} {hash}");
            }
        }
        self.log.push_str(&client.leave());
        let _ = writeln!(self.log, "end {}", boot_ns());
        self.log.push_str(&present);
        Ok(())
    }

    /// `tubes check` finds no fault in what a kill leaves behind.
    fn check_command(&self, data: &Path) -> Result<(), String> {
        let output = std::process::Command::new(self.executable).args(["tubes", "check"]).arg(data).output();
        let output = output.map_err(|error| format!("cannot run the check: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("tubes check ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr)))
    }

    fn judge(self, trace: &Path) -> Result<Report, String> {
        let trace = std::fs::read_to_string(trace).map_err(|error| format!("cannot read the trace: {error}"))?;
        let history = History::parse(&self.log, &trace).map_err(|error| error.to_string());
        let failed = |what: String| {
            let path = std::env::temp_dir().join(format!("kill-loop-{}-{}", std::process::id(), self.seed));
            let saved = std::fs::write(path.with_extension("clients"), &self.log)
                .and_then(|()| std::fs::write(path.with_extension("trace"), &trace));
            let place = if saved.is_ok() { path.display().to_string() } else { "nowhere".to_owned() };
            format!("seed {}: {what}\nthe history is in {place}.clients and .trace", self.seed)
        };
        let report = check(&history.map_err(failed)?);
        if report.violations.is_empty() {
            return Ok(report);
        }
        let first: Vec<String> =
            report.violations.iter().take(5).map(|found| format!("{:?}: {}", found.kind, found.what)).collect();
        Err(failed(format!("{} violations\n{}", report.violations.len(), first.join("\n"))))
    }
}

/// What the commands without a reply of a client's text may have touched.
fn left_open(text: &str, open: &mut Open) {
    let mut waiting: Vec<(&str, &str)> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(5, ' ').collect();
        match words.as_slice() {
            ["invoke", _, number, _, command] => waiting.push((number, command)),
            ["ok", _, number, ..] => waiting.retain(|(other, _)| other != number),
            _ => {}
        }
    }
    for (_, command) in waiting {
        let mut words = command.split(' ');
        match (words.next(), words.next().and_then(|id| id.parse().ok())) {
            (Some("put"), _) => open.puts += 1,
            (Some("kick"), _) => open.all = true,
            (Some("delete" | "release" | "bury" | "kick-job" | "reserve-job"), Some(id)) => {
                open.ids.insert(id);
            }
            _ => {}
        }
    }
}

fn boot_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanoseconds) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + nanoseconds.unwrap_or(0)
}

/// A connection that writes down what it asks and hears.
struct Client<'a> {
    known: &'a Known,
    stream: TcpStream,
    input: BufReader<TcpStream>,
    key: u32,
    number: u64,
    log: String,
    held: Vec<u64>,
}

impl<'a> Client<'a> {
    fn connect(port: u16, known: &'a Known) -> std::io::Result<Client<'a>> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let key = known.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let log = format!("open {key} {} {}\n", stream.local_addr()?.port(), boot_ns());
        let input = BufReader::new(stream.try_clone()?);
        Ok(Client { known, stream, input, key, number: 0, log, held: Vec::new() })
    }

    fn leave(mut self) -> String {
        let _ = writeln!(self.log, "gone {} {}", self.key, boot_ns());
        self.log
    }

    /// Sends whatever it likes until the server is gone.
    fn run(mut self, mut rng: Rng) -> String {
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
    fn ask(&mut self, command: &str) -> std::io::Result<String> {
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
        let tube = TUBES[rng.index(TUBES.len())];
        let pri = rng.below(6);
        let delay = u64::from(rng.chance(1, 12));
        let alive = self.known.alive();
        let any = alive.iter().nth(rng.index(alive.len().max(1))).copied().unwrap_or(1);
        let is_full = alive.len() >= JOBS_MAX;
        drop(alive);
        let held = if self.held.is_empty() { any } else { *rng.pick(&self.held) };
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
}
