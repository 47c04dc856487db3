//! Several processes: owners, frontends and the supervisor are killed while clients go on.
//!
//! A round is a data directory with a history of its own, judged as a whole. Restarts are allowed without end here, and
//! come at once: the policy for users is another test's.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use supervisor::rules::Condition;
use supervisor::{ProcessStatus, Status};
use testing::history::{History, Report, check};
use testing::process::{Address, Folder, Launch, Server, free_port, wait_until};
use testing::rng::Rng;

use crate::client::{Client, Known, Mix, boot_ns};
use crate::traces_in;

const CLIENTS: u64 = 6;
/// Kills of a round, the supervisor's included.
const KILLS_PER_ROUND: u64 = 50;
const PATIENT: [&str; 6] = ["--restart-limit", "1000000/30", "--restart-delay", "1ms", "--owner-wait", "60s"];
const MODES: [&[&str]; 4] = [&["-f", "50"], &["-f", "0"], &["-F"], &["-f", "1"]];
/// One kill in so many is the supervisor's, and with it all others'.
const SUPERVISOR_EVERY: u32 = 10;

/// Kills `kills` times, in rounds; what all of them add up to.
pub(crate) fn run(executable: &Path, seed: u64, kills: u64) -> Result<Report, String> {
    let mut sum = Report::default();
    let mut rng = Rng::new(seed);
    let mut left = kills;
    while left > 0 {
        let count = left.min(KILLS_PER_ROUND);
        let mut round = Round::new(executable, rng.fork(left));
        let report = round.play(count).and_then(|()| round.judge());
        let report =
            report.map_err(|what| format!("seed {seed}, {left} kills before the end: {}", round.keep(&what)))?;
        sum.replayed += report.replayed;
        sum.unknown += report.unknown;
        sum.generations += report.generations;
        sum.reservations += report.reservations;
        sum.lateness.iter_mut().zip(report.lateness).for_each(|(sum, count)| *sum += count);
        left -= count;
    }
    Ok(sum)
}

struct Round<'a> {
    executable: &'a Path,
    rng: Rng,
    folder: Folder,
    known: Known,
    starts: usize,
    log: String,
}

/// What clients look at: where the server is, and whether it is over.
#[derive(Default)]
struct Stage {
    port: AtomicU16,
    is_over: AtomicBool,
}

impl<'a> Round<'a> {
    fn new(executable: &'a Path, rng: Rng) -> Self {
        let (folder, known) = (Folder::new(), Known::default());
        Round { executable, rng, folder, known, starts: 0, log: String::new() }
    }

    fn play(&mut self, kills: u64) -> Result<(), String> {
        let made = fs::create_dir(self.data()).and_then(|()| fs::create_dir(self.folder.join("trace")));
        made.map_err(|error| format!("cannot make a folder: {error}"))?;
        let stage = Stage::default();
        let port = free_port();
        let mut server = self.start(port);
        stage.port.store(port, Ordering::Relaxed);
        let known = std::mem::take(&mut self.known);
        let (texts, ended) = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let (stage, known, rng) = (&stage, &known, self.rng.fork(number));
                    scope.spawn(move || go_on(stage, known, rng))
                })
                .collect();
            let ended = (0..kills).try_for_each(|_| self.kill_one(&mut server, port));
            stage.is_over.store(true, Ordering::Relaxed);
            // Its connections end with it, and with them the clients that wait.
            server.kill();
            let texts: Vec<String> =
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| "a client gave up".into())).collect();
            (texts, ended)
        });
        self.known = known;
        texts.iter().for_each(|text| self.log.push_str(text));
        ended?;
        let mut server = self.start(port);
        self.look_up_everything(port)?;
        let status = server.terminate();
        if !status.success() {
            return Err(format!("the server ended with {status}: {}", server.stderr()));
        }
        Ok(())
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Starts the server on the directory, with traces of its own, and waits until it serves.
    fn start(&mut self, port: u16) -> Server {
        let trace = self.folder.join("trace").join(self.starts.to_string());
        fs::create_dir(&trace).expect("a folder in a fresh folder");
        let launch = Launch::new(self.executable)
            .with(["--owners", "2", "--frontends", "2", "-s", "65536"])
            .with(["-l", "127.0.0.1", "-p", &port.to_string()])
            .on_given_address(Address::Tcp((Ipv4Addr::LOCALHOST, port).into()))
            .log_in(&self.data())
            .with(PATIENT)
            .with(MODES[self.starts % MODES.len()])
            .with(["--trace".as_ref(), trace.as_os_str()]);
        self.starts += 1;
        let mut server = launch.spawn_only();
        wait_until("all processes serve", || {
            assert!(server.is_running(), "the server has ended: {}", server.stderr());
            self.status().is_some_and(|status| status.serving && status.processes.iter().all(is_ready))
        });
        server
    }

    fn status(&self) -> Option<Status> {
        supervisor::query(&self.data().join("status.sock")).ok()
    }

    /// Lets clients go on for a while, kills a process, and usually waits until the next is ready.
    fn kill_one(&mut self, server: &mut Server, port: u16) -> Result<(), String> {
        // Now and then long enough for delays and timeouts of a second to end.
        let longest_us = if self.rng.chance(1, 40) { 2_500_000 } else { 60_000 };
        std::thread::sleep(Duration::from_micros(self.rng.between(500, longest_us)));
        if self.rng.chance(1, SUPERVISOR_EVERY) {
            server.kill();
            *server = self.start(port);
            return Ok(());
        }
        let mut victim = None;
        wait_until("a process can be killed", || {
            let Some(status) = self.status() else { return false };
            let chosen = self.rng.pick(&status.processes).clone();
            victim = chosen.pid.and_then(|pid| kill_child(server.pid(), pid)).map(|()| chosen);
            victim.is_some()
        });
        let before = victim.expect("the wait has ended");
        if self.rng.chance(3, 4) {
            let same = |found: &&ProcessStatus| (found.role, found.slot) == (before.role, before.slot);
            wait_until("the slot has its next process", || {
                assert!(server.is_running(), "the server has ended: {}", server.stderr());
                let status = self.status();
                let now = status.as_ref().and_then(|status| status.processes.iter().find(same));
                now.is_some_and(|now| now.generation > before.generation && is_ready(now))
            });
        }
        if server.is_running() { Ok(()) } else { Err(format!("the server has ended: {}", server.stderr())) }
    }

    fn look_up_everything(&mut self, port: u16) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("cannot look: {error}");
        let mut ids: BTreeSet<u64> = self.known.alive().clone();
        // What the logs had at the last start may be more than clients know of.
        let last = traces_in(&self.folder.join("trace"))?.pop().unwrap_or_default();
        let found = last.iter().flat_map(|text| text.lines()).filter_map(|line| line.strip_prefix("found "));
        ids.extend(found.filter_map(|line| line.split(' ').nth(1)?.parse::<u64>().ok()));
        let mut client = Client::connect(port, &self.known, Mix::Multi).map_err(failed)?;
        let mut present = String::new();
        for id in ids {
            let found = client.ask(&format!("peek {id}")).map_err(failed)?;
            if let ["FOUND", _, _, hash] = found.split(' ').collect::<Vec<_>>().as_slice() {
                let _ = writeln!(present, "present {id} {hash}");
            }
        }
        self.log.push_str(&client.leave());
        let _ = writeln!(self.log, "end {}", boot_ns());
        self.log.push_str(&present);
        Ok(())
    }

    fn judge(&self) -> Result<Report, String> {
        let traces = traces_in(&self.folder.join("trace"))?;
        let history = History::parse_processes(&self.log, &traces).map_err(|error| error.to_string())?;
        let report = check(&history);
        if report.violations.is_empty() {
            return Ok(report);
        }
        let first = report.violations.iter().take(5).map(|found| format!("{:?}: {}", found.kind, found.what));
        Err(format!("{} violations\n{}", report.violations.len(), first.collect::<Vec<_>>().join("\n")))
    }

    /// Puts the history aside, and says where.
    fn keep(&self, what: &str) -> String {
        let path = std::env::temp_dir().join(format!(
            "kill-loop-{}-{}",
            std::process::id(),
            self.folder.path().file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
        ));
        let saved = fs::write(path.with_extension("clients"), &self.log)
            .and_then(|()| fs::rename(self.folder.join("trace"), path.with_extension("trace")));
        let place = if saved.is_ok() { path.display().to_string() } else { "nowhere".to_owned() };
        format!("{what}\nthe history is in {place}.clients and .trace")
    }
}

/// A client that comes back whenever its connection has ended.
fn go_on(stage: &Stage, known: &Known, mut rng: Rng) -> String {
    let mut text = String::new();
    while !stage.is_over.load(Ordering::Relaxed) {
        match Client::connect(stage.port.load(Ordering::Relaxed), known, Mix::Multi) {
            Ok(client) => text.push_str(&client.run(rng.fork(1))),
            // The server is between two starts.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    text
}

fn is_ready(process: &ProcessStatus) -> bool {
    process.condition == Condition::Ready
}

/// Kills a process, if it is a child of `parent` still.
fn kill_child(parent: u32, pid: u32) -> Option<()> {
    let process = pidfd_open(i32::try_from(pid).ok().and_then(Pid::from_raw)?, PidfdFlags::empty()).ok()?;
    // Whatever the descriptor means is a child now: a number that came to mean another would not be.
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    children.split_whitespace().find(|child| *child == pid.to_string())?;
    pidfd_send_signal(&process, Signal::KILL).ok()
}
