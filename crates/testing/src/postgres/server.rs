//! A server of its own for a test: started, stopped in every way, frozen, copied, promoted.
//!
//! Owns: the postmaster and all processes below it from the start until the last has ended, the data directory, the
//! port, which stays ours while the server is down, and its System V shared memory.
//! Never: believes that a server is up because something answers at its port: readiness is what the postmaster itself
//! writes into its own file.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::port::Port;
use super::programs::{self, Account};
use super::{ROLE, Row, SUPERUSER, home, sql, template};
use crate::proc;
use crate::process::{OUTER_LIMIT, run, wait_until};

/// How long a server that is dropped may take to stop before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// What every server is told; [`Options`] add to it and win.
const SETTINGS: [(&str, &str); 8] = [
    ("listen_addresses", "127.0.0.1"),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
    ("log_line_prefix", "%m [%p] %q%d "),
    // What lies in the data directory goes with it, also after a kill.
    ("dynamic_shared_memory_type", "mmap"),
    ("shared_buffers", "32MB"),
    // A replica that was stopped for a while finds what it has missed.
    ("wal_keep_size", "64MB"),
    ("huge_pages", "off"),
];

/// How a server is started.
#[derive(Debug, Clone)]
pub struct Options {
    max_connections: u32,
    is_synced: bool,
    settings: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// 100 connections, and a disk that is synced as in production.
    pub fn new() -> Self {
        Self { max_connections: 100, is_synced: true, settings: Vec::new() }
    }

    /// How many connections there can be, three of them for the superuser.
    pub fn max_connections(mut self, count: u32) -> Self {
        self.max_connections = count;
        self
    }

    /// Does not wait for the disk: faster, and the death of processes still loses nothing.
    pub fn without_sync(mut self) -> Self {
        self.is_synced = false;
        self
    }

    /// Sets one of PostgreSQL's own settings, as in `postgresql.conf`.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts a server with a fresh data directory, and waits until it takes connections.
    ///
    /// # Panics
    ///
    /// If PostgreSQL is not installed or does not start; with its log.
    #[track_caller]
    pub fn start(&self) -> Server {
        let account = Account::choose();
        let place = home::place(account);
        template::copy_to(&place.join("data"), account);
        Server::start_in(place, account, self.clone())
    }
}

/// A running or stopped server. Dropping it stops it and removes all it had.
#[derive(Debug)]
pub struct Server {
    options: Options,
    account: Account,
    place: PathBuf,
    port: Port,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    postmaster: Child,
    descriptor: OwnedFd,
    is_paused: bool,
}

impl Server {
    /// A server with the default options.
    ///
    /// # Panics
    ///
    /// As [`Options::start`].
    #[track_caller]
    #[expect(clippy::new_without_default, reason = "starting a server has an effect outside of the program")]
    pub fn new() -> Self {
        Options::new().start()
    }

    #[track_caller]
    fn start_in(place: PathBuf, account: Account, options: Options) -> Self {
        let sockets = place.join("sockets");
        home::make_folder(&sockets, 0o700);
        account.own(&sockets);
        let mut server = Self { options, account, place, port: Port::new(), running: None };
        server.start();
        server
    }

    /// Where it listens, also while it is stopped.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// How the program under test connects: the role and the database `tenure`, over TCP.
    pub fn dsn(&self) -> String {
        self.dsn_at(self.address(), ROLE)
    }

    /// As [`Server::dsn`], to a database of another name, and to another address, which leads here.
    pub fn dsn_at(&self, address: SocketAddr, database: &str) -> String {
        format!("postgresql://{ROLE}@{address}/{database}")
    }

    /// How the harness connects: the superuser, over the socket that only we can reach.
    pub fn superuser_dsn(&self, database: &str) -> String {
        let folder = self.place.join("sockets");
        format!("host={} port={} user={SUPERUSER} dbname={database}", folder.display(), self.port.number())
    }

    /// Runs statements as the superuser in a database, on a connection of its own.
    ///
    /// # Errors
    ///
    /// As [`query`](super::query).
    pub fn try_sql(&self, database: &str, statements: &str) -> Result<Vec<Row>, String> {
        sql::query(&self.superuser_dsn(database), statements)
    }

    /// As [`Server::try_sql`], in the superuser's own database.
    ///
    /// # Panics
    ///
    /// If it fails, with the server's log.
    #[track_caller]
    pub fn sql(&self, statements: &str) -> Vec<Row> {
        match self.try_sql(SUPERUSER, statements) {
            Ok(rows) => rows,
            Err(error) => panic!("{statements}: {error}; its log:\n{}", self.log()),
        }
    }

    /// As [`Server::sql`], for a statement with one value.
    #[track_caller]
    fn value(&self, statement: &str) -> String {
        let rows = self.sql(statement);
        let value = rows.into_iter().next().and_then(|row| row.into_iter().next().flatten());
        value.unwrap_or_else(|| panic!("{statement} gave no value"))
    }

    /// What it wrote to its log so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.place.join("log")).unwrap_or_default()).into_owned()
    }

    /// The number of the postmaster's process.
    ///
    /// # Panics
    ///
    /// If it does not run.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.running.as_ref().expect("a server that runs").postmaster.id()
    }

    /// Starts it after a stop, with what it had, at the same port. Returns when it takes connections: for reading only
    /// if it is a replica.
    ///
    /// # Panics
    ///
    /// If it runs already, or does not start; with its log.
    #[track_caller]
    pub fn start(&mut self) {
        assert!(self.running.is_none(), "it runs already");
        let log = File::options().create(true).append(true).open(self.place.join("log")).expect("a file of our own");
        let mut command = self.command();
        command.stdout(log.try_clone().expect("one more descriptor")).stderr(log);
        let postmaster = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let descriptor = open(Pid::from_child(&postmaster));
        let running = self.running.insert(Running { postmaster, descriptor, is_paused: false });
        let pid = running.postmaster.id();
        let deadline = Instant::now() + OUTER_LIMIT;
        // The postmaster has no event for "ready"; its end is one, and ends the pause.
        while !is_ready(&self.place, pid) {
            if proc::wait_for_end(&running.descriptor, Duration::from_millis(2)) {
                let status = running.postmaster.wait().expect("wait for a child of ours");
                self.running = None;
                panic!("the server ended with {status} before it was ready; its log:\n{}", self.log());
            }
            assert!(Instant::now() < deadline, "not ready after {OUTER_LIMIT:?}; its log:\n{}", self.log());
        }
    }

    fn command(&self) -> Command {
        let mut command = self.account.command(programs::of_server("postgres"), &self.place);
        command.arg("-D").arg(self.place.join("data"));
        let mut set = |name: &str, value: &str| {
            command.arg("-c").arg(format!("{name}={value}"));
        };
        for (name, value) in SETTINGS {
            set(name, value);
        }
        set("port", &self.port.number().to_string());
        set("unix_socket_directories", &self.place.join("sockets").display().to_string());
        set("max_connections", &self.options.max_connections.to_string());
        set("fsync", if self.options.is_synced { "on" } else { "off" });
        for (name, value) in &self.options.settings {
            set(name, value);
        }
        command
    }

    /// Stops it like a crash: sessions are cut off, nothing is written, the next start recovers. Does nothing to a
    /// server that is stopped.
    #[track_caller]
    pub fn stop_immediate(&mut self) {
        self.stop(Signal::QUIT);
    }

    /// Stops it in order: sessions are ended, everything is written, replicas get the last of it.
    #[track_caller]
    pub fn stop_fast(&mut self) {
        self.stop(Signal::INT);
    }

    #[track_caller]
    fn stop(&mut self, signal: Signal) {
        self.resume();
        let Some(running) = &self.running else { return };
        let children = proc::open(proc::children(running.postmaster.id()));
        send(&running.descriptor, signal);
        self.reap(OUTER_LIMIT, children);
    }

    /// Waits for the postmaster and for those that it had started.
    #[track_caller]
    fn reap(&mut self, limit: Duration, children: Vec<OwnedFd>) -> ExitStatus {
        let running = self.running.as_mut().expect("a server that was told to stop");
        let has_ended = proc::wait_for_end(&running.descriptor, limit)
            && children.iter().all(|child| proc::wait_for_end(child, limit));
        assert!(has_ended, "it has not stopped after {limit:?}; its log:\n{}", self.log());
        let status = running.postmaster.wait().expect("wait for a child of ours");
        self.running = None;
        status
    }

    /// [`Server::stop_immediate`] and [`Server::start`].
    #[track_caller]
    pub fn restart_immediate(&mut self) {
        self.stop_immediate();
        self.start();
    }

    /// SIGKILL to all its processes at once. The next start recovers.
    #[track_caller]
    pub fn kill(&mut self) {
        let Some(running) = &self.running else { return };
        // A postmaster that is stopped starts nobody while we look who is there.
        send(&running.descriptor, Signal::STOP);
        wait_until("the postmaster is stopped", || is_stopped(running.postmaster.id()));
        let children = proc::open(proc::children(running.postmaster.id()));
        for process in children.iter().chain([&running.descriptor]) {
            send(process, Signal::KILL);
        }
        let segment = shared_memory(&self.place);
        self.reap(OUTER_LIMIT, children);
        // Who is killed does not free it, and the kernel has room for some thousand segments only.
        if let Some(segment) = segment {
            drop(run(Command::new("ipcrm").arg("-m").arg(segment)));
        }
    }

    /// Freezes all its processes: connections stay, nobody answers. [`Server::resume`] lets them go on.
    #[track_caller]
    pub fn pause(&mut self) {
        let running = self.running.as_mut().expect("a server that runs");
        running.is_paused = true;
        let postmaster = running.postmaster.id();
        send(&running.descriptor, Signal::STOP);
        wait_until("the postmaster is stopped", || is_stopped(postmaster));
        for child in proc::children(postmaster) {
            let Some(process) = proc::open(vec![child]).pop() else { continue };
            send(&process, Signal::STOP);
            wait_until("a process of the server is stopped or gone", || is_stopped(child));
        }
    }

    /// Ends what [`Server::pause`] began. Does nothing to a server that is not frozen.
    #[track_caller]
    pub fn resume(&mut self) {
        let Some(running) = self.running.as_mut().filter(|running| running.is_paused) else { return };
        running.is_paused = false;
        let children = proc::open(proc::children(running.postmaster.id()));
        for process in children.iter().chain([&running.descriptor]) {
            send(process, Signal::CONT);
        }
    }

    /// Ends one session by its number, `pg_backend_pid()`; whether there was one.
    #[track_caller]
    pub fn terminate(&self, backend: i32) -> bool {
        self.value(&format!("SELECT pg_terminate_backend({backend})")) == "t"
    }

    /// Ends all sessions of a database; how many there were.
    #[track_caller]
    pub fn terminate_all(&self, database: &str) -> u32 {
        let statement = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{database}' AND backend_type = 'client backend'"
        );
        self.value(&statement).parse().expect("a count")
    }

    /// Copies it while it runs and starts the copy as a replica, which follows it asynchronously.
    ///
    /// # Panics
    ///
    /// If that fails, with what was said.
    #[track_caller]
    pub fn replica(&self) -> Self {
        let place = home::place(self.account);
        let mut backup = self.account.command(programs::of_server("pg_basebackup"), &place);
        backup.arg("-d").arg(self.superuser_dsn(SUPERUSER)).arg("-D").arg(place.join("data"));
        backup.args(["--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--no-sync"]);
        if let Err(error) = run(&mut backup) {
            panic!("cannot copy the server: {error}; its log:\n{}", self.log());
        }
        Self::start_in(place, self.account, self.options.clone())
    }

    /// Waits until a replica shows everything that has been committed here so far.
    #[track_caller]
    pub fn wait_for_replica(&self, replica: &Self) {
        let position = self.value("SELECT pg_current_wal_flush_lsn()");
        let shows = format!("SELECT coalesce(pg_last_wal_replay_lsn() >= '{position}', false)");
        wait_until("the replica has followed", || replica.value(&shows) == "t");
    }

    /// Makes a replica a primary, on a timeline of its own, and returns when it takes writes.
    ///
    /// # Panics
    ///
    /// If it is none.
    #[track_caller]
    pub fn promote(&mut self) {
        let limit = OUTER_LIMIT.as_secs();
        assert_eq!(self.value(&format!("SELECT pg_promote(true, {limit})")), "t", "{}", self.log());
    }

    /// Whether it is a replica.
    #[track_caller]
    pub fn is_replica(&self) -> bool {
        self.value("SELECT pg_is_in_recovery()") == "t"
    }

    /// The timeline that it writes: 1 at first, one more after each promotion.
    ///
    /// # Panics
    ///
    /// If it is a replica, which writes none.
    #[track_caller]
    pub fn timeline(&self) -> u32 {
        let file = self.value("SELECT pg_walfile_name(pg_current_wal_lsn())");
        u32::from_str_radix(&file[..8], 16).expect("a file of the log is named after its timeline")
    }

    /// All its processes, the postmaster first; none if it is stopped.
    pub fn processes(&self) -> Vec<u32> {
        let Some(running) = &self.running else { return Vec::new() };
        let mut all = vec![running.postmaster.id()];
        all.extend(proc::children(running.postmaster.id()));
        all
    }

    /// The folder with everything that it has.
    pub fn folder(&self) -> &Path {
        &self.place
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            let mut children = proc::open(proc::children(running.postmaster.id()));
            send(&running.descriptor, Signal::QUIT);
            for process in children.iter().chain([&running.descriptor]) {
                send(process, Signal::CONT);
            }
            if !proc::wait_for_end(&running.descriptor, STOP_LIMIT) {
                self.kill();
            } else if let Some(mut running) = self.running.take() {
                children.retain(|child| !proc::wait_for_end(child, STOP_LIMIT));
                drop(running.postmaster.wait());
            }
        }
        drop(fs::remove_dir_all(&self.place));
    }
}

/// Whether the postmaster of this number says in its file that it takes connections.
fn is_ready(place: &Path, pid: u32) -> bool {
    let text = fs::read_to_string(place.join("data").join("postmaster.pid")).unwrap_or_default();
    let mut lines = text.lines();
    // A file of a postmaster that was killed is still there until the next one writes its own.
    let is_its_own = lines.next().is_some_and(|line| line.parse() == Ok(pid));
    is_its_own && lines.nth(6).is_some_and(|state| matches!(state.trim(), "ready" | "standby"))
}

/// The number of the System V segment that a postmaster notes in its file.
fn shared_memory(place: &Path) -> Option<String> {
    let text = fs::read_to_string(place.join("data").join("postmaster.pid")).ok()?;
    text.lines().nth(6)?.split_whitespace().nth(1).map(str::to_owned)
}

/// Whether a process is stopped by a signal, or gone.
fn is_stopped(pid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state stands behind the name, which is in parentheses and may contain anything.
    text.rsplit_once(") ").is_none_or(|(_, rest)| matches!(rest.as_bytes()[0], b'T' | b'Z' | b'X'))
}

#[track_caller]
fn open(pid: Pid) -> OwnedFd {
    // A child that we have not waited for keeps its number.
    pidfd_open(pid, PidfdFlags::empty()).expect("descriptor of a child of ours")
}

/// Signals a process that may have ended.
fn send(process: &OwnedFd, signal: Signal) {
    match pidfd_send_signal(process, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => panic!("cannot signal a process of ours: {error}"),
    }
}
