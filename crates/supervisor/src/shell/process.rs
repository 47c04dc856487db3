//! One process: started, told, listened to, killed, reaped.
//!
//! Owns: its descriptor, the supervisor's end of its control channel, and what did not fit into the channel yet.
//! Never: uses its number, but to show it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use mio::unix::SourceFd;
use mio::{Interest, Poll, Token};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};

use crate::control::{Channel, Envelope, StartEnvelope, encode};
use crate::message::{Ending, FromChild, Instance};

/// Most messages that wait for a process that does not read. A frozen one is killed after ten pings; a peer that is
/// restarted meanwhile adds two each time.
const BACKLOG_MAX: usize = 4096;
/// How names of variables begin by which the program is configured.
const CONFIGURATION_PREFIX: &[u8] = b"TENURE_";
/// Most reports taken at once. A channel holds some hundred; a process that goes on while it is read has lost its mind.
const REPORTS_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct Process {
    pub(super) instance: Instance,
    pub(super) pid: Pid,
    descriptor: OwnedFd,
    channel: Channel,
    backlog: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
}

/// A descriptor of an unreaped process: only until it is reaped is its number certain.
pub(super) fn open_descriptor(pid: Pid) -> io::Result<OwnedFd> {
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

impl Process {
    /// Starts `program`. Its standard input is the control channel, which has the start message in it already.
    pub(super) fn start(
        program: &Path,
        arguments: &[OsString],
        start: StartEnvelope,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<Process> {
        let instance = start.instance;
        let (channel, child_end) = Channel::pair()?;
        channel.send(&Envelope::Start(start), descriptors)?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::from(child_end.into_socket()));
        if let Some(name) = std::env::args_os().next() {
            // The path of the program may be the one by which the kernel knows it, which tells nobody anything.
            command.arg0(name);
        }
        // What the service manager says to the supervisor is not meant for its processes.
        for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
            command.env_remove(name);
        }
        // A process is configured by its start message. The variables of the configuration may have passwords and keys in
        // them, which would lie in the environment of every process and of whatever these start.
        let is_of_configuration = |name: &OsString| name.as_bytes().starts_with(CONFIGURATION_PREFIX);
        std::env::vars_os().map(|(name, _)| name).filter(is_of_configuration).for_each(|name| {
            command.env_remove(name);
        });
        let mut child = command.spawn()?;
        let opened = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("the system gave no process number"))
            .and_then(|pid| Ok((pid, open_descriptor(pid)?)));
        match opened {
            Ok((pid, descriptor)) => Ok(Process { instance, pid, descriptor, channel, backlog: VecDeque::new() }),
            Err(error) => {
                // Not reaped yet, so the number is still its own.
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Has `poll` report its messages as `token` and its end as `token + 1`. On failure the process is ended.
    pub(super) fn register(self, poll: &Poll, token: usize) -> io::Result<Process> {
        let registry = poll.registry();
        let both = Interest::READABLE | Interest::WRITABLE;
        let result =
            registry.register(&mut SourceFd(&self.channel.as_fd().as_raw_fd()), Token(token), both).and_then(|()| {
                let descriptor = self.descriptor.as_raw_fd();
                registry.register(&mut SourceFd(&descriptor), Token(token + 1), Interest::READABLE)
            });
        match result {
            Ok(()) => Ok(self),
            Err(error) => {
                self.signal(Signal::KILL);
                let _ = waitid(WaitId::PidFd(self.descriptor.as_fd()), WaitIdOptions::EXITED);
                Err(error)
            }
        }
    }

    pub(super) fn deregister(&self, poll: &Poll) {
        let _ = poll.registry().deregister(&mut SourceFd(&self.channel.as_fd().as_raw_fd()));
        let _ = poll.registry().deregister(&mut SourceFd(&self.descriptor.as_raw_fd()));
    }

    /// Sends a message, now or when the process reads again.
    pub(super) fn tell(&mut self, message: &Envelope, descriptor: Option<OwnedFd>) {
        let bytes = encode(message).expect("all messages but the first are short");
        self.backlog.push_back((bytes, descriptor));
        self.flush();
        if self.backlog.len() > BACKLOG_MAX {
            self.backlog.clear();
            self.signal(Signal::KILL);
        }
    }

    /// Sends what waits, as far as it fits.
    pub(super) fn flush(&mut self) {
        while let Some((bytes, descriptor)) = self.backlog.front() {
            let descriptors: Vec<BorrowedFd<'_>> = descriptor.iter().map(AsFd::as_fd).collect();
            match self.channel.send_bytes(bytes, &descriptors) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Sent; or nobody will ever read it, because the process has ended or is about to.
                Ok(()) | Err(_) => self.backlog.pop_front(),
            };
        }
    }

    /// Messages that wait.
    pub(super) fn backlog(&self) -> u64 {
        self.backlog.len() as u64
    }

    /// Passes on all reports that are there.
    ///
    /// # Errors
    ///
    /// It said something that no process says.
    pub(super) fn receive(&mut self, mut take: impl FnMut(FromChild)) -> io::Result<()> {
        for _ in 0..REPORTS_MAX {
            match self.channel.receive::<FromChild>() {
                Ok((report, _)) => take(report),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::UnexpectedEof) => {
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("it reports without end"))
    }

    pub(super) fn signal(&self, signal: Signal) {
        // Fails only after its end, when there is nothing to do.
        let _ = pidfd_send_signal(&self.descriptor, signal);
    }

    /// Reaps it after a SIGKILL; a process that the kernel does not let go is given up.
    pub(super) fn wait_for_end(&self) {
        let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
        let _ = poll(&mut [PollFd::new(&self.descriptor, PollFlags::IN)], Some(&limit));
        let _ = self.ending();
    }

    /// How it ended, if it has; reaps it.
    pub(super) fn ending(&self) -> Option<Ending> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::PidFd(self.descriptor.as_fd()), options).ok()??;
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(Ending::Code(code)),
            (None, Some(signal)) => Some(Ending::Signal(signal)),
            (None, None) => None,
        }
    }
}
