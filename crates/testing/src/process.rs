//! A queue server as a child process: ours, or a peer with the same command line.
//!
//! Owns: the child from its start until it is reaped, the port it was given, and the folder with what it
//! wrote. Dropping any of them ends the process and removes the files, also when a test panics.
//! Never: talks the protocol (that is [`crate::client`]), and never connects in order to see whether the
//! server is up: readiness is read from the kernel's socket table, so counters of connections start at 0.
//!
//! `TENURE_TEST_SERVER=/usr/bin/beanstalkd` runs the same tests against another executable, called with the
//! original's command line, to see where the two differ.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::client::Client;
use crate::ids::Ids;
use crate::proc;

/// How long any wait of the harness may take before it is a failure. No promise to users: machines that run
/// tests are slow.
pub const OUTER_LIMIT: Duration = Duration::from_secs(60);

/// Names another executable to test instead of the one the tests were built with.
pub const SERVER_VARIABLE: &str = "TENURE_TEST_SERVER";

/// A temporary folder that is removed with everything in it when dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes a folder below the system's temporary one, readable for everybody, so that servers which drop
    /// privileges can reach what they own in it.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    #[track_caller]
    #[expect(clippy::new_without_default, reason = "making a folder has an effect outside of the program")]
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("tenure-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
        Self { path }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of `name` in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A test that mounted something here from a namespace of its own leaves nothing behind in ours.
        drop(fs::remove_dir_all(&self.path));
    }
}

/// Where a server can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a unix stream socket.
    Unix(PathBuf),
}

impl Address {
    /// The port of a TCP address.
    ///
    /// # Panics
    ///
    /// For a unix socket.
    #[track_caller]
    pub fn port(&self) -> u16 {
        match self {
            Self::Tcp(address) => address.port(),
            Self::Unix(path) => panic!("{} has no port", path.display()),
        }
    }
}

/// What a program that ended by itself left behind.
#[derive(Debug)]
pub struct Finished {
    /// Exit code, `None` if a signal ended it.
    pub code: Option<i32>,
    /// Number of the signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Everything it wrote to its standard output.
    pub stdout: String,
    /// Everything it wrote to its standard error.
    pub stderr: String,
}

/// How the server learns where to listen.
#[derive(Clone, Debug)]
enum Listen {
    /// `-l 127.0.0.1 -p PORT` with a free port, another one if it was taken meanwhile.
    FreePort,
    /// `-p PORT` with a free port and no `-l`: the default address.
    FreePortOnly,
    /// `-l unix:PATH`.
    Unix(PathBuf),
    /// The arguments of the caller say it, and this is where to look.
    Given(Address),
}

/// How to start a server; a value that can be started any number of times.
#[derive(Clone, Debug)]
pub struct Launch {
    executable: PathBuf,
    original: bool,
    as_beanstalkd: bool,
    before_tubes: Vec<OsString>,
    /// `tubes`, or another command that serves.
    command: &'static str,
    arguments: Vec<OsString>,
    wrapper: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    listen: Listen,
    with_dense_ids: bool,
    /// The ids that were given in the directory of the log.
    logged_ids: Option<Arc<Ids>>,
}

impl Launch {
    /// `EXECUTABLE tubes`, on a free port of the loopback interface, without a log.
    pub fn new(executable: impl Into<PathBuf>) -> Self {
        let other = std::env::var_os(SERVER_VARIABLE).map(PathBuf::from);
        Self {
            original: other.is_some(),
            executable: other.unwrap_or_else(|| executable.into()),
            as_beanstalkd: false,
            before_tubes: Vec::new(),
            command: "tubes",
            arguments: Vec::new(),
            wrapper: Vec::new(),
            environment: Vec::new(),
            listen: Listen::FreePort,
            with_dense_ids: false,
            logged_ids: None,
        }
    }

    /// `EXECUTABLE -c FILE serve`: everything that the file turns on, expected at `address`.
    pub fn serve(executable: impl Into<PathBuf>, file: &Path, address: Address) -> Self {
        let launch =
            Self { original: false, executable: executable.into(), command: "serve", ..Self::new(PathBuf::new()) };
        launch.before_tubes([OsStr::new("-c"), file.as_os_str()]).on_given_address(address)
    }

    /// `EXECUTABLE` with the original's command line, always: the original itself, to write files that we read.
    pub fn original(executable: impl Into<PathBuf>) -> Self {
        Self { executable: executable.into(), original: true, ..Self::new(PathBuf::new()) }
    }

    /// Calls the executable by the name `beanstalkd`, through a link, and without `tubes`.
    pub fn called_beanstalkd(mut self) -> Self {
        self.as_beanstalkd = true;
        self
    }

    /// Adds arguments behind `tubes`.
    pub fn with<I: IntoIterator<Item = A>, A: AsRef<OsStr>>(mut self, arguments: I) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Adds arguments before `tubes`.
    pub fn before_tubes<I: IntoIterator<Item = A>, A: AsRef<OsStr>>(mut self, arguments: I) -> Self {
        self.before_tubes.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Runs the server through a program that ends in `exec` of its last arguments (`prlimit`, `setpriv`,
    /// `sh -c 'exec "$@"' sh`, `strace -D`): the process id stays that of the server.
    pub fn through<I: IntoIterator<Item = A>, A: AsRef<OsStr>>(mut self, wrapper: I) -> Self {
        self.wrapper.extend(wrapper.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable of the server.
    pub fn environment(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Shows the ids of the server as dense ones to its clients: see [`crate::ids`].
    pub fn with_dense_ids(mut self) -> Self {
        self.with_dense_ids = true;
        self
    }

    /// Keeps a log in `folder` (`-b`).
    pub fn log_in(mut self, folder: &Path) -> Self {
        self.logged_ids = Some(Arc::default());
        self.with([OsStr::new("-b"), folder.as_os_str()])
    }

    /// Listens on a unix socket at `path` instead of a port.
    pub fn on_unix_socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.listen = Listen::Unix(path.into());
        self
    }

    /// Gives a free port with `-p` but no address.
    pub fn on_default_address(mut self) -> Self {
        self.listen = Listen::FreePortOnly;
        self
    }

    /// Adds no argument about listening; the server is expected at `address`.
    pub fn on_given_address(mut self, address: Address) -> Self {
        self.listen = Listen::Given(address);
        self
    }

    /// Starts the server and waits until its listening socket exists.
    ///
    /// # Panics
    ///
    /// If it does not listen within [`OUTER_LIMIT`] or ends before it does; with what it wrote.
    #[track_caller]
    pub fn start(&self) -> Server {
        self.start_with_input(&mut || Stdio::null())
    }

    /// As [`Launch::start`], with `socket` as descriptor 0.
    #[track_caller]
    pub fn start_with_stdin(&self, socket: OwnedFd) -> Server {
        let mut socket = Some(socket);
        self.start_with_input(&mut || socket.take().map_or_else(Stdio::null, Stdio::from))
    }

    #[track_caller]
    fn start_with_input(&self, stdin: &mut dyn FnMut() -> Stdio) -> Server {
        loop {
            let (mut server, address) = self.spawn(stdin());
            let free_port = matches!(self.listen, Listen::FreePort | Listen::FreePortOnly);
            match server.wait_until_listening(&address) {
                Ok(()) => return self.server(server, address),
                Err(Some(status)) if free_port && status.code() == Some(111) => {}
                Err(Some(status)) => panic!("{server:?} ended with {status} before it listened"),
                Err(None) => panic!("{server:?} does not listen on {address:?} after {OUTER_LIMIT:?}"),
            }
        }
    }

    /// Starts the server without waiting for anything.
    #[track_caller]
    pub fn spawn_only(&self) -> Server {
        let (process, address) = self.spawn(Stdio::null());
        self.server(process, address)
    }

    /// As [`Launch::spawn_only`], with `socket` as descriptor 0.
    #[track_caller]
    pub fn spawn_only_with_stdin(&self, socket: OwnedFd) -> Server {
        let (process, address) = self.spawn(socket.into());
        self.server(process, address)
    }

    fn server(&self, process: Process, address: Address) -> Server {
        let ids = self.with_dense_ids.then(|| self.logged_ids.clone().unwrap_or_default());
        Server { process, address, ids }
    }

    /// Runs to its end a server that is expected to refuse, or a subcommand.
    ///
    /// # Panics
    ///
    /// If it has not ended after [`OUTER_LIMIT`].
    #[track_caller]
    pub fn finish(&self) -> Finished {
        let (mut process, _) = self.spawn(Stdio::null());
        let status = process.wait();
        Finished { code: status.code(), signal: status.signal(), stdout: process.stdout(), stderr: process.stderr() }
    }

    #[track_caller]
    fn spawn(&self, stdin: Stdio) -> (Process, Address) {
        let folder = Folder::new();
        let mut program = self.executable.clone();
        if self.as_beanstalkd {
            program = folder.join("beanstalkd");
            std::os::unix::fs::symlink(&self.executable, &program).expect("link named beanstalkd");
        }
        let mut words: Vec<OsString> = self.wrapper.clone();
        words.push(program.into_os_string());
        if !self.as_beanstalkd && !self.original {
            words.extend(self.before_tubes.iter().cloned());
            words.push(self.command.into());
        }
        let address = match &self.listen {
            Listen::FreePort | Listen::FreePortOnly => {
                let port = free_port();
                if matches!(self.listen, Listen::FreePort) {
                    words.extend(["-l".into(), "127.0.0.1".into()]);
                }
                words.extend(["-p".into(), port.to_string().into()]);
                Address::Tcp((Ipv4Addr::LOCALHOST, port).into())
            }
            Listen::Unix(path) => {
                let mut argument = OsString::from("unix:");
                argument.push(path);
                words.extend(["-l".into(), argument]);
                Address::Unix(path.clone())
            }
            Listen::Given(address) => address.clone(),
        };
        words.extend(self.arguments.iter().cloned());
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .stdin(stdin)
            .stdout(File::create(folder.join("stdout")).expect("file for the standard output"))
            .stderr(File::create(folder.join("stderr")).expect("file for the standard error"));
        // What the machine sets for other programs of ours must not reach the server under test.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"TENURE_") || name.as_encoded_bytes().starts_with(b"LISTEN_") {
                command.env_remove(name);
            }
        }
        // What a server without a log keeps while it runs goes with it.
        command.env("XDG_RUNTIME_DIR", folder.path());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let started = Instant::now();
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("cannot start {:?}: {error}; is the program installed?", words[0]);
        });
        (Process { child, status: None, words, folder, started }, address)
    }
}

/// Picks a port that nothing listens on and that this process has not given out before.
#[track_caller]
pub fn free_port() -> u16 {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut given = GIVEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let given = given.get_or_insert_default();
    loop {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free loopback port");
        let port = socket.local_addr().expect("address of a bound socket").port();
        if given.insert(port) {
            return port;
        }
    }
}

/// A child process that is killed and reaped when dropped.
pub struct Process {
    child: Child,
    status: Option<ExitStatus>,
    words: Vec<OsString>,
    folder: Folder,
    started: Instant,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stderr = self.stderr();
        write!(formatter, "process {} {:?}, standard error:\n{stderr}", self.child.id(), self.words)
    }
}

impl Process {
    /// What it wrote to its standard output so far.
    pub fn stdout(&self) -> String {
        lossy(&self.folder.join("stdout"))
    }

    /// What it wrote to its standard error so far.
    pub fn stderr(&self) -> String {
        lossy(&self.folder.join("stderr"))
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Those that it has started, if it runs.
    fn children(&self) -> Vec<OwnedFd> {
        if self.status.is_some() { Vec::new() } else { proc::open(proc::children(self.child.id())) }
    }

    /// Reaps the process if it has ended.
    fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("wait for a child of ours");
        }
        self.status
    }

    /// Waits for the end of the process for at most `limit`.
    fn wait_for(&mut self, limit: Duration) -> Option<ExitStatus> {
        if let Some(status) = self.ended() {
            return Some(status);
        }
        // The child is not reaped yet, so its number cannot have been given to another process.
        let descriptor = pidfd_open(self.pid(), PidfdFlags::empty()).expect("pidfd of a child of ours");
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).expect("a limit of a few seconds");
            match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return self.ended(),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("cannot poll a pidfd: {error}"),
            }
            if let Some(status) = self.ended() {
                return Some(status);
            }
            // It has ended, but a tracer (strace) has not let go of it yet, and only then can we reap it.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[track_caller]
    fn wait(&mut self) -> ExitStatus {
        match self.wait_for(OUTER_LIMIT) {
            Some(status) => status,
            None => panic!("{self:?} has not ended after {OUTER_LIMIT:?}"),
        }
    }

    fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            kill_process(self.pid(), signal).expect("signal to a child of ours");
        }
    }

    /// `Err` with the exit status if the process ended first, with `None` if the outer limit passed.
    fn wait_until_listening(&mut self, address: &Address) -> Result<(), Option<ExitStatus>> {
        let deadline = Instant::now() + OUTER_LIMIT;
        loop {
            if proc::is_listening(self.child.id(), address) {
                return Ok(());
            }
            // The kernel has no event for "that process listens", so look again soon; the end of the process is
            // an event and interrupts the pause.
            if let Some(status) = self.wait_for(Duration::from_millis(1)) {
                return Err(Some(status));
            }
            if Instant::now() > deadline {
                return Err(None);
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let children = self.children();
            drop(self.child.kill());
            drop(self.child.wait());
            // They end with it; a test that fails because they do not would hide why it is ending here.
            for child in children {
                let _ = proc::wait_for_end(&child, Duration::from_secs(10));
            }
        }
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    process: Process,
    address: Address,
    ids: Option<Arc<Ids>>,
}

impl Server {
    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Its TCP port.
    #[track_caller]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// When the process was started.
    pub fn started(&self) -> Instant {
        self.process.started
    }

    /// A new connection to it.
    ///
    /// # Panics
    ///
    /// If the connection is refused.
    #[track_caller]
    pub fn connect(&self) -> Client {
        let client = match &self.ids {
            None => Client::connect(&self.address),
            Some(ids) => Client::connect_with_ids(&self.address, Arc::clone(ids)),
        };
        match client {
            Ok(client) => client,
            Err(error) => panic!("cannot connect to {:?}: {error}; {:?}", self.address, self.process),
        }
    }

    /// Sends `input` on a connection of its own, ends the sending side, and returns all that comes back until
    /// the server closes.
    #[track_caller]
    pub fn play(&self, input: impl AsRef<[u8]>) -> Vec<u8> {
        self.connect().converse(input.as_ref())
    }

    /// Plays `input` and checks that exactly `expected` comes back.
    #[track_caller]
    pub fn check(&self, input: impl AsRef<[u8]>, expected: impl AsRef<[u8]>) {
        let input = input.as_ref();
        let got = self.play(input);
        let expected = expected.as_ref();
        assert!(
            got == expected,
            "for {}\nexpected {}\nbut got  {}",
            crate::client::readable(input),
            crate::client::readable(expected),
            crate::client::readable(&got)
        );
    }

    /// Sends a signal.
    pub fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Sends a signal to each of its processes.
    #[track_caller]
    pub fn signal_each(&mut self, signal: Signal) {
        for process in proc::open(self.processes()) {
            pidfd_send_signal(&process, signal).expect("signal to a running process");
        }
    }

    /// SIGTERM, then waits for the end.
    #[track_caller]
    pub fn terminate(&mut self) -> ExitStatus {
        self.process.signal(Signal::TERM);
        self.process.wait()
    }

    /// SIGKILL, then waits for the end. If it has processes, those end with it, and are waited for too.
    #[track_caller]
    pub fn kill(&mut self) -> ExitStatus {
        let children = self.process.children();
        self.process.signal(Signal::KILL);
        let status = self.process.wait();
        for child in children {
            assert!(proc::wait_for_end(&child, OUTER_LIMIT), "a process outlives {self:?}");
        }
        status
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// What it wrote to its standard error so far.
    pub fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// What it wrote to its standard output so far.
    pub fn stdout(&self) -> String {
        self.process.stdout()
    }

    /// Its processes: the one that was started, then those that it has started.
    pub fn processes(&self) -> Vec<u32> {
        let mut all = vec![self.pid()];
        all.extend(proc::children(self.pid()));
        all
    }

    /// The value of a line of `/proc/PID/status`, without the white space around it.
    ///
    /// # Panics
    ///
    /// If the process or the line is gone.
    #[track_caller]
    pub fn status(&self, name: &str) -> String {
        proc::status(self.pid(), name)
    }

    /// As [`Server::status`], of each of its processes.
    #[track_caller]
    pub fn statuses(&self, name: &str) -> Vec<String> {
        self.processes().into_iter().map(|pid| proc::status(pid, name)).collect()
    }

    /// Resident memory of all its processes in bytes.
    #[track_caller]
    pub fn resident(&self) -> u64 {
        self.processes().into_iter().map(proc::resident).sum()
    }

    /// CPU time of all threads of its processes so far.
    #[track_caller]
    pub fn cpu(&self) -> Duration {
        self.processes().into_iter().map(proc::cpu).sum()
    }

    /// The number of descriptors that each of its processes has open.
    #[track_caller]
    pub fn descriptors(&self) -> Vec<usize> {
        self.processes().into_iter().map(proc::descriptors).collect()
    }

    /// The addresses of all TCP sockets it listens on.
    pub fn listening_addresses(&self) -> Vec<SocketAddr> {
        let own = proc::socket_inodes(self.pid());
        proc::listening_tcp().into_iter().filter(|(_, inode)| own.contains(inode)).map(|(address, _)| address).collect()
    }
}

/// Runs `condition` until it holds. For states that no descriptor announces; a pause of a millisecond lets the
/// other side work.
///
/// # Panics
///
/// After [`OUTER_LIMIT`], naming `what`.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + OUTER_LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "still not after {OUTER_LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn lossy(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Runs a command of the machine to its end and returns what it printed.
///
/// # Errors
///
/// With the command's output if it cannot be started or fails.
pub fn run(command: &mut Command) -> io::Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        return Ok(text);
    }
    Err(io::Error::other(format!("{command:?} ended with {}:\n{text}", output.status)))
}
