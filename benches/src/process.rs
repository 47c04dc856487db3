//! Server processes: started pinned on a free port, watched through `/proc`, and ended by their descriptor.
//!
//! Owns: the lists of running servers and of their folders, so that a signal to the benchmark leaves none behind.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use crate::machine::Cores;

/// Longest time a server may take until it accepts, recovery and an instrumented start included.
const START_MAX: Duration = Duration::from_secs(180);
/// Longest time a server may take to end after SIGTERM; then it is killed.
const STOP_MAX: Duration = Duration::from_secs(60);
/// Ports tried before a start is given up: another process may take a free port before the server does.
const PORTS_TRIED_MAX: usize = 5;
/// How often a starting server is asked whether it listens.
const CONNECT_INTERVAL: Duration = Duration::from_micros(200);

/// Process groups of servers that have not been reaped, by the id of their leader.
static GROUPS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
/// Folders that are to be removed.
static FOLDERS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// From here on SIGINT and SIGTERM kill every running server, remove every folder and end this process.
///
/// # Errors
///
/// The system refuses a handler or a thread.
pub fn end_servers_on_signals() -> Result<()> {
    let (mut told, tell) = UnixStream::pair().context("set up signals")?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::low_level::pipe::register(signal, tell.try_clone()?).context("set up signals")?;
    }
    let wait = move || {
        // Whatever ends the waiting ends the process.
        let _ = told.read(&mut [0]);
        // The locks are kept: nothing may be started any more.
        let groups = lock(&GROUPS);
        for group in groups.iter().filter_map(|leader| Pid::from_raw(*leader)) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        crate::multi::quota::remove_all();
        let folders = lock(&FOLDERS);
        for folder in folders.iter() {
            let _ = fs::remove_dir_all(folder);
        }
        eprintln!("bench-tubes: ended by a signal");
        std::process::exit(1);
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).context("start the thread for signals")?;
    Ok(())
}

fn lock<T>(list: &'static Mutex<T>) -> MutexGuard<'static, T> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program and its arguments; the address is added when it starts.
#[derive(Clone, Debug)]
pub struct CommandLine {
    /// What is executed.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// How the address is told.
    pub address_flags: AddressFlags,
}

/// How a program is told where to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFlags {
    /// `-l ADDRESS -p PORT`, as the queue servers.
    ListenAndPort,
    /// `--listen ADDRESS:PORT`, as the floor.
    Listen,
}

impl CommandLine {
    /// The same program run by `wrapper` with `options`: the wrapper executes what follows them.
    pub fn wrapped(&self, wrapper: &str, options: &[OsString]) -> Self {
        let mut arguments = options.to_vec();
        arguments.push(self.program.clone().into());
        arguments.extend(self.arguments.iter().cloned());
        Self { program: wrapper.into(), arguments, address_flags: self.address_flags }
    }
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    handle: OwnedFd,
    address: SocketAddr,
    log: PathBuf,
    ended: bool,
    /// From the call that started it to the first accepted connection.
    pub listening_after: Duration,
}

impl Server {
    /// Starts `command` on the server's core with its output in `folder`, and returns when it accepts connections.
    ///
    /// # Errors
    ///
    /// It cannot be executed, ends at once, or does not listen in time; the message has the end of its output.
    pub fn start(command: &CommandLine, folder: &Path, cores: Cores) -> Result<Self> {
        let mut last = None;
        for _ in 0..PORTS_TRIED_MAX {
            match Self::start_once(command, folder, cores) {
                Ok(server) => return Ok(server),
                Err(error) if error.to_string().to_lowercase().contains("in use") => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.context("no port was tried")?)
    }

    fn start_once(command: &CommandLine, folder: &Path, cores: Cores) -> Result<Self> {
        let address = free_address()?;
        let log = folder.join(format!("output-{}", address.port()));
        let output = fs::File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let mut run = Command::new(&command.program);
        run.args(&command.arguments);
        match command.address_flags {
            AddressFlags::ListenAndPort => {
                run.arg("-l").arg(address.ip().to_string()).arg("-p").arg(address.port().to_string())
            }
            AddressFlags::Listen => run.arg("--listen").arg(address.to_string()),
        };
        // A group of its own, so that a wrapper and what it runs end together.
        run.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
        cores.enter_server()?;
        // Started under the lock: a signal between the start and the insertion would miss this server.
        let mut groups = lock(&GROUPS);
        let begin = Instant::now();
        let spawned = run.spawn();
        if let Ok(child) = &spawned {
            groups.insert(Pid::from_child(child).as_raw_pid());
        }
        drop(groups);
        cores.enter_generator()?;
        let child = spawned.with_context(|| format!("execute {}", command.program.display()))?;
        let handle =
            pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).context("open the server's descriptor")?;
        let mut server = Self { child, handle, address, log, ended: false, listening_after: Duration::ZERO };
        loop {
            if TcpStream::connect(address).is_ok() {
                server.listening_after = begin.elapsed();
                return Ok(server);
            }
            if let Some(status) = server.reap_if_ended()? {
                bail!("{} ended with {status} before it listened: {}", command.program.display(), server.output());
            }
            if begin.elapsed() > START_MAX {
                bail!("{} does not listen after {START_MAX:?}: {}", command.program.display(), server.output());
            }
            std::thread::sleep(CONNECT_INTERVAL);
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process started: the server itself, or what wraps it.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Processor time of all its threads since it started, in nanoseconds.
    ///
    /// # Errors
    ///
    /// The process has ended.
    pub fn cpu_ns(&self) -> Result<u64> {
        cpu_ns(self.id()).with_context(|| format!("the server has ended: {}", self.output()))
    }

    /// Resident memory in bytes.
    ///
    /// # Errors
    ///
    /// The process has ended.
    pub fn resident_bytes(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id()))
            .with_context(|| format!("the server has ended: {}", self.output()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in status")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().context("unexpected VmRSS")?;
        Ok(kib * 1024)
    }

    /// Ends it with SIGTERM and waits; after a time limit it is killed, which is an error.
    ///
    /// # Errors
    ///
    /// It did not end in time, or had ended before.
    pub fn stop(mut self) -> Result<ExitStatus> {
        if let Some(status) = self.reap_if_ended()? {
            bail!("the server had ended with {status}: {}", self.output());
        }
        pidfd_send_signal(&self.handle, Signal::TERM).context("send SIGTERM")?;
        self.wait_end()
    }

    /// As [`Server::stop`], but the signal goes to the only child of the process: what a wrapper runs.
    ///
    /// # Errors
    ///
    /// There is no child, or the wrapper did not end in time.
    pub fn stop_wrapped(mut self) -> Result<ExitStatus> {
        let path = format!("/proc/{0}/task/{0}/children", self.id());
        let children =
            fs::read_to_string(&path).with_context(|| format!("the wrapper has ended: {}", self.output()))?;
        let child = children.split_whitespace().next().and_then(|id| id.parse().ok()).and_then(Pid::from_raw);
        let child = child.with_context(|| format!("the wrapper runs nothing: {}", self.output()))?;
        let handle = pidfd_open(child, PidfdFlags::empty()).context("open the wrapped server's descriptor")?;
        pidfd_send_signal(&handle, Signal::TERM).context("send SIGTERM")?;
        self.wait_end()
    }

    fn wait_end(&mut self) -> Result<ExitStatus> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut waited = [PollFd::new(&self.handle, PollFlags::IN)];
        let limit = Timespec { tv_sec: i64::try_from(STOP_MAX.as_secs())?, tv_nsec: 0 };
        let ended = poll(&mut waited, Some(&limit)).context("wait for the server's end")?;
        if ended == 0 {
            bail!("the server does not end {STOP_MAX:?} after SIGTERM: {}", self.output());
        }
        self.reap()
    }

    /// Its status if it has ended by itself.
    fn reap_if_ended(&mut self) -> Result<Option<ExitStatus>> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ended =
            poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], Some(&at_once)).context("look at the server")?;
        if ended == 0 { Ok(None) } else { self.reap().map(Some) }
    }

    /// Waits for its end. Its id leaves the list first, as it may be given to a stranger afterwards.
    fn reap(&mut self) -> Result<ExitStatus> {
        self.ended = true;
        lock(&GROUPS).remove(&Pid::from_child(&self.child).as_raw_pid());
        Ok(self.child.wait()?)
    }

    /// The end of what it printed.
    pub fn output(&self) -> String {
        const SHOWN: usize = 2_000;
        let text = self.printed();
        let end = String::from_utf8_lossy(&text.as_bytes()[text.len().saturating_sub(SHOWN)..]).trim().to_owned();
        if end.is_empty() { "it printed nothing".to_owned() } else { end }
    }

    /// All that it printed so far.
    pub fn printed(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.ended {
            // Already on a way out of an error: what cannot be killed has ended. The leader is not reaped, so its id
            // is still its own.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.reap();
        }
    }
}

/// Processor time of all threads of the process `id` since it started, in nanoseconds.
///
/// # Errors
///
/// There is no such process.
pub fn cpu_ns(id: u32) -> Result<u64> {
    let tasks = format!("/proc/{id}/task");
    let mut sum = 0;
    for task in fs::read_dir(&tasks).with_context(|| format!("list {tasks}"))? {
        // A thread may end between the listing and the reading; its time is then lost, as that of any ended thread.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let run_ns: Option<u64> = text.split_whitespace().next().and_then(|number| number.parse().ok());
        sum += run_ns.with_context(|| format!("unexpected schedstat {text:?}"))?;
    }
    Ok(sum)
}

fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    Ok(listener.local_addr()?)
}

/// Begins the name of every folder; the id of the process that owns it follows.
const FOLDER_PREFIX: &str = "bench-tubes-";

/// A folder of this process alone, removed when dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes a folder in `parent`; `name` tells what for.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn create(parent: &Path, name: &str) -> Result<Self> {
        for number in 0_u32.. {
            let path = parent.join(format!("{FOLDER_PREFIX}{}-{name}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => {
                    lock(&FOLDERS).insert(path.clone());
                    return Ok(Self(path));
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("create {}", path.display())),
            }
        }
        bail!("no free name in {}", parent.display())
    }

    /// Removes the folders in `parent` that a process left there when it was killed.
    ///
    /// # Errors
    ///
    /// `parent` cannot be listed, or a folder cannot be removed.
    pub fn remove_left_over(parent: &Path) -> Result<()> {
        for entry in fs::read_dir(parent).with_context(|| format!("list {}", parent.display()))? {
            let path = entry?.path();
            let name =
                path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(FOLDER_PREFIX));
            let owner = name.and_then(|name| name.split('-').next()).and_then(|id| id.parse::<u32>().ok());
            if owner.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists()) {
                fs::remove_dir_all(&path).with_context(|| format!("remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        lock(&FOLDERS).remove(&self.0);
    }
}
