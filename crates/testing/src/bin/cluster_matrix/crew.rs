//! Members as child processes, and what is asked of them and of their database.
//!
//! Owns: the processes, their files, the waits. Dropping it ends all of them.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use testing::demo_work::check::{Counts, History, Rules, check};
use testing::demo_work::history::{Entry, Left, Line, Stamp, entry_of_texts, lines};
use testing::demo_work::schema::{LEFT, READ_LOG};
use testing::postgres::query;
use testing::process::Folder;

/// The lease, and with it renew, statement timeout, margin and beat: as short as they may be.
pub(crate) const LEASE: Duration = Duration::from_millis(1_500);
pub(crate) const BEAT: Duration = Duration::from_millis(300);
const TIMES: &str = "300,300,300,300,1500";

/// Limits of time that promise something are tested at ten times.
const TENFOLD: u32 = 10;
/// After a clean stop another leads (GC3).
pub(crate) const CLEAN: Duration = Duration::from_secs(1);
/// After a crash another leads (GC3).
pub(crate) const CRASH: Duration = Duration::from_millis(1_500 + 2_000);
/// When the faults have ended, nothing is held by the dead after this: 2L + 2H.
pub(crate) const CALM: Duration = Duration::from_millis(2 * 1_500 + 2 * 300);

/// Where members find their database, and the harness too.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Arguments that say where.
    pub(crate) arguments: Vec<String>,
    /// For the harness; empty for SQLite.
    pub(crate) dsn: String,
}

impl Place {
    pub(crate) fn postgres(dsn: &str) -> Self {
        Self { arguments: vec!["--pool".into(), dsn.into()], dsn: dsn.into() }
    }

    /// Other ways for lease and notices.
    pub(crate) fn with(mut self, option: &str, dsn: &str) -> Self {
        self.arguments.extend([option.to_owned(), dsn.to_owned()]);
        self
    }
}

/// A member's process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) name: String,
    child: Child,
    output: PathBuf,
    errors: PathBuf,
    read: RefCell<(u64, String)>,
    is_over: bool,
}

impl Process {
    /// What it has said so far.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let mut read = self.read.borrow_mut();
        let mut file = File::open(&self.output).expect("a file of our own");
        file.seek(SeekFrom::Start(read.0)).expect("a file of our own");
        let mut more = Vec::new();
        let count = file.read_to_end(&mut more).expect("a file of our own");
        read.0 += count as u64;
        read.1 += &String::from_utf8(more).expect("members write ASCII");
        lines(&read.1).unwrap_or_else(|what| panic!("{}: {what}", self.name))
    }

    pub(crate) fn errors(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("a child that was not waited for");
    }

    pub(crate) fn kill(&mut self) {
        self.is_over = true;
        self.child.kill().expect("a child of ours");
        self.child.wait().expect("a child of ours");
    }

    pub(crate) fn order(&mut self, order: &str) {
        let stdin = self.child.stdin.as_mut().expect("it has a pipe");
        writeln!(stdin, "{order}").expect("it reads its orders");
    }

    /// Its identities so far.
    pub(crate) fn identities(&self) -> Vec<String> {
        self.lines().iter().filter(|line| line.kind == "member").map(|line| line.word(0).to_owned()).collect()
    }

    pub(crate) fn count(&self, kind: &str) -> usize {
        self.lines().iter().filter(|line| line.kind == kind).count()
    }

    /// A counter of its own, as it last said.
    pub(crate) fn figure(&self, name: &str) -> u64 {
        let lines = self.lines();
        let last = lines.iter().rev().find(|line| line.kind == "figure" && line.word(0) == name);
        last.and_then(|line| line.word(1).parse().ok()).unwrap_or(0)
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                self.is_over = true;
                return Ok(status);
            }
            if Instant::now() > end {
                return Err(format!("{} did not end within {limit:?}:\n{}", self.name, tail(&self.errors())));
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be over.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Between two looks of a wait.
const LOOK: Duration = Duration::from_millis(20);

/// Requests carried out in all rows: in a short one there may be none.
pub(crate) static REQUESTS: AtomicU64 = AtomicU64::new(0);

/// What holds in most rows.
pub(crate) const RULES: Rules = Rules {
    stale_max: Duration::from_millis(10 * (300 + 1_000)),
    late_max: Duration::ZERO,
    may_lose: false,
    epoch_min: None,
};

/// The last lines of a log.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// How long it took after a fault, or rather after the harness began to wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Calm {
    settled: Duration,
    done: Duration,
}

impl std::fmt::Display for Calm {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "settled in {:.1?}, done in {:.1?}", self.settled, self.done)
    }
}

/// Processes of one database.
#[derive(Debug)]
pub(crate) struct Crew {
    pub(crate) place: Place,
    pub(crate) members: Vec<Process>,
    pub(crate) times: &'static str,
    folder: Folder,
    added: i64,
}

impl Crew {
    pub(crate) fn new(place: Place) -> Self {
        Self { place, members: Vec::new(), times: TIMES, folder: Folder::new(), added: 0 }
    }

    /// So many members, which have begun to work.
    pub(crate) fn start(place: Place, count: usize) -> Result<Self, String> {
        let mut crew = Self::new(place);
        for _ in 0..count {
            crew.spawn(&[]);
        }
        crew.begun()?;
        Ok(crew)
    }

    /// Waits until all are registered and both leaderships are held.
    pub(crate) fn begun(&self) -> Result<(), String> {
        self.wait("registered members", CALM, |crew| {
            crew.members.iter().filter(|member| !member.is_over).all(|member| !member.identities().is_empty())
        })?;
        self.wait("a leader", CRASH, |crew| crew.leader("scheduler").is_some() && crew.leader("dispatch").is_some())
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// One more member.
    pub(crate) fn spawn(&mut self, more: &[&str]) -> &mut Process {
        let arguments = self.place.arguments.clone();
        self.spawn_at(&arguments, more)
    }

    /// One that finds its database elsewhere.
    pub(crate) fn spawn_at(&mut self, place: &[String], more: &[&str]) -> &mut Process {
        let name = format!("m{}", self.members.len());
        let (output, errors) = (self.folder.join(format!("{name}.out")), self.folder.join(format!("{name}.err")));
        let own = std::env::current_exe().expect("this program's path");
        let child = Command::new(own.with_file_name("cluster_member"))
            .args(["--name", &name, "--times", self.times, "--folder"])
            .arg(self.folder.path())
            .args(place)
            .args(more)
            .stdin(Stdio::piped())
            .stdout(File::create(&output).expect("a file of our own"))
            .stderr(File::create(&errors).expect("a file of our own"))
            .spawn()
            .expect("cluster_member stands beside this program");
        self.members.push(Process { name, child, output, errors, read: RefCell::default(), is_over: false });
        self.members.last_mut().expect("just pushed")
    }

    /// Work of all kinds, due one after another within this time.
    pub(crate) fn add(&mut self, count: i64, within: Duration) {
        self.add_with(count, within, "").expect("a database that answers");
    }

    fn add_with(&mut self, count: i64, within: Duration, before: &str) -> Result<(), String> {
        let (first, ms) = (self.added, within.as_millis());
        self.added += count;
        let statement = format!(
            "{before}INSERT INTO demo_work (id, kind, key, due, work_ms) SELECT {first} + n, \
             (ARRAY['plain','plain','lane','plain','permit','run','lane','plain','permit','run'])[n % 10 + 1], \
             (ARRAY['','','west','','small','','east','','shared','shared'])[n % 10 + 1], \
             clock_timestamp() + (n * {ms} / {count}) * interval '1 millisecond', 3 + n * 7 % 30 \
             FROM generate_series(0, {count} - 1) AS n"
        );
        query(&self.place.dsn, &statement).map(drop)
    }

    /// One value of the database.
    pub(crate) fn ask(&self, statement: &str) -> Option<String> {
        query(&self.place.dsn, statement).ok()?.into_iter().next()?.into_iter().next()?
    }

    pub(crate) fn number(&self, statement: &str) -> i64 {
        self.ask(statement).and_then(|text| text.parse().ok()).unwrap_or(-1)
    }

    pub(crate) fn done(&self) -> i64 {
        self.number("SELECT count(*) FROM demo_work WHERE state = 'done'")
    }

    /// Which process leads.
    pub(crate) fn leader(&self, name: &str) -> Option<usize> {
        let statement = format!(
            "SELECT replace(holder::text, '-', '') FROM leader WHERE name = '{name}' AND lease_until > clock_timestamp()"
        );
        let holder = self.ask(&statement)?;
        self.members.iter().position(|member| !member.is_over && member.identities().contains(&holder))
    }

    /// The processes that live, without one.
    pub(crate) fn others(&self, one: usize) -> impl Iterator<Item = &Process> {
        self.members
            .iter()
            .enumerate()
            .filter(move |(at, member)| *at != one && !member.is_over)
            .map(|(_, member)| member)
    }

    /// Waits ten times as long as is promised.
    pub(crate) fn wait(&self, what: &str, promised: Duration, is_so: impl FnMut(&Self) -> bool) -> Result<(), String> {
        self.wait_for(what, promised * TENFOLD, is_so)
    }

    fn wait_for(&self, what: &str, limit: Duration, mut is_so: impl FnMut(&Self) -> bool) -> Result<(), String> {
        let end = Instant::now() + limit;
        while !is_so(self) {
            if Instant::now() > end {
                let errors: Vec<String> = self
                    .members
                    .iter()
                    .rev()
                    .take(4)
                    .map(|member| format!("{}:\n{}", member.name, tail(&member.errors())))
                    .collect();
                let (left, leaders) = (self.left(), self.ask("SELECT string_agg(l::text, ' ') FROM leader AS l"));
                return Err(format!(
                    "no {what} within {limit:?}; left: {left:?}; leaders: {leaders:?}\n{}",
                    errors.join("\n")
                ));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// When another process than `one` began to lead after `since`; waits for it.
    pub(crate) fn takeover(&self, one: usize, since: i64, promised: Duration) -> Result<Duration, String> {
        let mut taken = None;
        self.wait("takeover", promised, |crew| {
            let gained = crew.others(one).flat_map(Process::lines).filter(|line| {
                line.kind == "leader" && line.word(0) == "scheduler" && line.word(2) == "Gained" && line.wall_us > since
            });
            taken = gained.map(|line| line.wall_us).min();
            taken.is_some()
        })?;
        let us = taken.unwrap_or(since) - since;
        Ok(Duration::from_micros(us.unsigned_abs()))
    }

    pub(crate) fn left(&self) -> Option<Left> {
        let rows = query(&self.place.dsn, LEFT.postgres).ok()?;
        let counts: Vec<i64> = rows.first()?.iter().map(|text| text.as_ref()?.parse().ok()).collect::<Option<_>>()?;
        Some(Left::from(<[i64; 7]>::try_from(counts).ok()?))
    }

    /// The faults have ended: waits until nothing is held by the dead and somebody leads, then until all work is done. How
    /// long each took.
    pub(crate) fn calm(&self) -> Result<Calm, String> {
        let begin = Instant::now();
        self.wait("calm", CALM, |crew| {
            crew.left().is_some_and(|left| Left { work: 0, runs: 0, ..left } == Left::default())
                && crew.leader("scheduler").is_some()
                && crew.leader("dispatch").is_some()
        })?;
        let settled = begin.elapsed();
        self.wait("end of all work", CALM, |crew| crew.left().is_some_and(|left| left.work + left.runs == 0))?;
        Ok(Calm { settled, done: begin.elapsed() })
    }

    /// Stops all that live in order, and judges.
    pub(crate) fn judge(self) -> Result<Counts, String> {
        self.judge_by(RULES)
    }

    pub(crate) fn judge_by(mut self, rules: Rules) -> Result<Counts, String> {
        self.stop_all()?;
        let log = self.log();
        self.judge_log(log, rules)
    }

    pub(crate) fn stop_all(&mut self) -> Result<(), String> {
        for member in self.members.iter_mut().filter(|member| !member.is_over) {
            member.order("stop");
        }
        for member in self.members.iter_mut().filter(|member| !member.is_over) {
            let status = member.wait(CLEAN * TENFOLD * 3)?;
            if !status.success() {
                return Err(format!("{} ended with {status}: {}", member.name, tail(&member.errors())));
            }
        }
        Ok(())
    }

    /// As [`Crew::judge_by`], with a log that was read already, and no process left.
    pub(crate) fn judge_log(&self, log: Vec<Entry>, rules: Rules) -> Result<Counts, String> {
        let processes = self.members.iter().map(|member| (member.name.clone(), member.lines())).collect();
        let counts = check(&History { log, processes }, rules).map_err(|violations| {
            let some: Vec<&str> = violations.iter().take(10).map(String::as_str).collect();
            format!("{} violations: {}", violations.len(), some.join("; "))
        })?;
        REQUESTS.fetch_add(counts.requests, Ordering::Relaxed);
        // A row in which nothing happened has shown nothing.
        let is_something = counts.finishes > 0 && counts.leader_effects > 0 && counts.tickets > 0 && counts.runs > 0;
        ensure(is_something, || format!("too little happened: {counts:?}"))?;
        for member in &self.members {
            let panics = member.errors().lines().filter(|line| line.contains("panicked")).count();
            if panics > 0 {
                return Err(format!("{} panicked: {}", member.name, tail(&member.errors())));
            }
        }
        Ok(counts)
    }

    fn log(&self) -> Vec<Entry> {
        let mut log: Vec<Entry> = Vec::new();
        loop {
            let after = log.last().map_or(0, |entry| entry.no).to_string();
            let rows =
                query(&self.place.dsn, &READ_LOG.postgres.replace("$1", &after)).expect("a database that answers");
            if rows.is_empty() {
                return log;
            }
            log.extend(rows.iter().map(|row| entry_of_texts(row).expect("rows as they were written")));
        }
    }
}

/// The wall clock, as lines have it.
pub(crate) fn wall_us() -> i64 {
    Stamp::now().wall_us()
}

/// What most rows say of their counts.
pub(crate) fn told(counts: &Counts) -> String {
    let Counts { claims, finishes, given_up, leader_effects, tickets, runs, requests, .. } = counts;
    format!(
        "{claims} claims, {given_up} given up, {finishes} done, {runs} runs, {tickets} tickets, {requests} requests, \
         {leader_effects} leader's effects"
    )
}

/// Which identities of a process were fenced.
pub(crate) fn fences(process: &Process) -> usize {
    process.count("fenced")
}

/// Fails unless it is so.
pub(crate) fn ensure(is_so: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(what()) }
}
