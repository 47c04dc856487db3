//! One process: killed in every cycle, after which what the kill has left open is asked for.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use testing::history::{History, Report, check};
use testing::process::{Folder, Launch};
use testing::rng::Rng;

use crate::client::{Client, Known, Mix, boot_ns};

const CLIENTS: u64 = 4;
const MODES: [&[&str]; 4] = [&["-f", "50"], &["-f", "0"], &["-F"], &["-f", "1"]];

/// What a kill has left open.
#[derive(Default)]
struct Open {
    ids: BTreeSet<u64>,
    puts: u64,
    all: bool,
}

/// One directory and its history.
pub(crate) struct Loop<'a> {
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
    pub(crate) fn new(executable: &'a Path, seed: u64) -> Self {
        let (rng, folder) = (Rng::new(seed), Folder::new());
        Loop { executable, rng, seed, folder, known: Known::default(), id_bound: 0, log: String::new() }
    }

    pub(crate) fn run(mut self, cycles: u64) -> Result<Report, String> {
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
                        scope.spawn(move || {
                            Client::connect(port, known, Mix::Single).map_or(String::new(), |client| client.run(rng))
                        })
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
        let mut client =
            Client::connect(port, known, Mix::Single).map_err(|error| format!("cannot settle: {error}"))?;
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
        let mut client =
            Client::connect(port, &self.known, Mix::Single).map_err(|error| format!("cannot look: {error}"))?;
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
