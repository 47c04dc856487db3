//! The side of a process that the supervisor started.
//!
//! Owns: the first steps of its life (tie it to the supervisor's, refuse foreign descriptors, take the start message)
//! and its end of the control channel.
//! Never: serves anything.
//!
//! The channel is standard input, so that it is inherited without ever being open to another program.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SocketType;
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use crate::control::{Channel, Envelope};
use crate::message::{FailureCause, FromChild, Instance, Instruction, Topology};
use crate::pages::Pages;
use crate::sys;

/// Why a process does not begin its work. Its exit code is 5: trying again cannot help.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It was started by hand.
    #[error("this process is started by the supervisor only: standard input is no control channel")]
    NotSupervised,
    /// A descriptor is open that it was not given.
    #[error("descriptor {number} ({target}) was inherited and should not have been")]
    ForeignDescriptor {
        /// Its number.
        number: i32,
        /// What it refers to.
        target: String,
    },
    /// The supervisor has ended meanwhile.
    #[error("the supervisor has ended")]
    SupervisorGone,
    /// A facility of the system is missing or failed.
    #[error("failed to {action}: {source}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl ChildError {
    /// Exit code of the process that ends because of this.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        5
    }

    fn system(action: &'static str) -> impl FnOnce(io::Error) -> ChildError {
        move |source| ChildError::System { action, source }
    }
}

/// What this process is and what it serves.
pub struct Start {
    /// Its name: role, slot and generation.
    pub instance: Instance,
    /// Whether the server drains already: no new job from the beginning, and no [`FromChild::Drained`] is awaited.
    pub drained: bool,
    /// Which slots the server has.
    pub topology: Topology,
    /// For a process with jobs: the file whose lock it holds for life, with [`crate::lock::Lock`]; `None` if the caller
    /// of the supervisor has its own way to exclude a second one.
    pub slot_lock: Option<PathBuf>,
    /// What the caller of the supervisor has to say to this role; no concern of this crate.
    pub options: serde_json::Value,
    /// The shared memory of the server.
    pub pages: Pages,
    /// Duplicates of the listeners of this role.
    pub listeners: Vec<OwnedFd>,
}

/// Without the options: they may have secrets.
impl fmt::Debug for Start {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Start")
            .field("instance", &self.instance)
            .field("drained", &self.drained)
            .field("topology", &self.topology)
            .finish_non_exhaustive()
    }
}

/// What the supervisor says after the start.
pub enum ToChild {
    /// A link to a peer: to each owner for a frontend, to each frontend for an owner. It replaces the one to any earlier
    /// generation of that peer, whose end was told before, and one to the same generation that broke.
    Link {
        /// Who is at the other end.
        peer: Instance,
        /// This process's end; it blocks until set otherwise.
        socket: UnixStream,
    },
    /// Anything else.
    Say(Instruction),
    /// These are the options of this role from now on ([`Start::options`]).
    Options(serde_json::Value),
}

/// As of [`Start`], without options.
impl fmt::Debug for ToChild {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ToChild::Link { peer, .. } => formatter.debug_tuple("Link").field(peer).finish(),
            ToChild::Say(instruction) => formatter.debug_tuple("Say").field(instruction).finish(),
            ToChild::Options(_) => formatter.write_str("Options(..)"),
        }
    }
}

/// Another way to report, for who has given the [`Child`] away: any thread may use it.
#[derive(Debug)]
pub struct Reporter(Option<Channel>);

impl Reporter {
    /// Sends a report.
    ///
    /// # Errors
    ///
    /// As of [`Child::send`].
    pub fn send(&self, report: &FromChild) -> io::Result<()> {
        match &self.0 {
            Some(channel) => channel.send(report, &[]),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Says that the process fails because of `reason`, with an exit code that decides what follows. If it cannot be
    /// said, the exit code alone tells.
    pub fn failed(&self, reason: &str) {
        let _ = self.send(&FromChild::Failed { cause: FailureCause::Other, reason: reason.to_owned() });
    }
}

/// The control channel of this process.
#[derive(Debug)]
pub struct Child {
    channel: Channel,
    /// By the slot of the peer: all peers of a process have the same role.
    links: BTreeMap<u16, (Instance, u64)>,
}

impl Child {
    /// The first call of a supervised process: before any thread, file or socket of its own.
    ///
    /// Ties the process to its supervisor: the kernel kills it when the supervisor ends, and a thread does when the
    /// lifeline ends. SIGTERM, SIGINT, SIGUSR1 and SIGHUP have no effect on it: they reach the supervisor, which passes on what
    /// they mean. Standard input is /dev/null afterwards.
    ///
    /// # Errors
    ///
    /// [`ChildError`]; the process must end.
    pub fn from_inherited() -> Result<(Child, Start), ChildError> {
        let channel = take_channel()?;
        let own = [channel.as_fd().as_raw_fd()];
        refuse_foreign_descriptors(&own)?;
        ignore_signals().map_err(ChildError::system("install signal handlers"))?;
        // After any change of the account, which would clear it; then the comparison, as the supervisor may have ended
        // before it was set.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| ChildError::system("tie the process to its supervisor")(error.into()))?;
        let (envelope, descriptors) = channel.receive::<Envelope>().map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ChildError::SupervisorGone,
            _ => ChildError::System { action: "read the start message", source: error },
        })?;
        let mut descriptors = descriptors.into_iter();
        let (Envelope::Start(start), Some(lifeline), Some(memory)) = (envelope, descriptors.next(), descriptors.next())
        else {
            return Err(ChildError::NotSupervised);
        };
        if is_at_end(&lifeline).map_err(ChildError::system("read the lifeline"))? {
            return Err(ChildError::SupervisorGone);
        }
        watch(lifeline).map_err(ChildError::system("watch the lifeline"))?;
        let pages = Pages::map(memory, start.topology).map_err(ChildError::system("map the shared pages"))?;
        let start = Start {
            instance: start.instance,
            drained: start.drained,
            topology: start.topology,
            slot_lock: start.slot_lock,
            options: start.options,
            pages,
            listeners: descriptors.collect(),
        };
        Ok((Child { channel, links: BTreeMap::new() }, start))
    }

    /// Another handle to report by.
    #[must_use]
    pub fn reporter(&self) -> Reporter {
        Reporter(self.channel.as_fd().try_clone_to_owned().ok().map(Channel::from_socket))
    }

    /// The next message; `None` if none is there yet.
    ///
    /// # Errors
    ///
    /// The supervisor is gone, and the process is about to be killed.
    pub fn recv(&mut self) -> io::Result<Option<ToChild>> {
        match self.channel.receive::<Envelope>() {
            Ok((Envelope::Say(instruction), _)) => {
                if let Instruction::PeerGone(peer) = instruction {
                    self.links.retain(|_, (other, _)| *other != peer);
                }
                Ok(Some(ToChild::Say(instruction)))
            }
            Ok((Envelope::Link { peer, number }, mut descriptors)) => match descriptors.pop() {
                Some(socket) => {
                    self.links.insert(peer.slot, (peer, number));
                    Ok(Some(ToChild::Link { peer, socket: socket.into() }))
                }
                None => Err(io::Error::new(io::ErrorKind::InvalidData, "a link without a socket")),
            },
            Ok((Envelope::Options(options), _)) => Ok(Some(ToChild::Options(options))),
            Ok((Envelope::Start(_), _)) => Err(io::Error::new(io::ErrorKind::InvalidData, "a second start message")),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until [`Child::recv`] has something to say.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn wait_readable(&self) -> io::Result<()> {
        loop {
            match poll(&mut [PollFd::new(&self.channel, PollFlags::IN)], None) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reports that the last link to the peer in `slot` is of no use any more, unless that is known already. While both
    /// live, another one follows after a while.
    ///
    /// # Errors
    ///
    /// As of [`Child::send`].
    pub fn link_lost(&mut self, slot: u16) -> io::Result<()> {
        match self.links.remove(&slot) {
            Some((peer, number)) => self.send(&FromChild::LinkLost { peer, number }),
            None => Ok(()),
        }
    }

    /// Sends a report.
    ///
    /// # Errors
    ///
    /// The supervisor is gone; or `WouldBlock`, if it has left some hundred reports unread: as answers are given to
    /// questions only, that happens to no process that keeps to the rules.
    pub fn send(&mut self, report: &FromChild) -> io::Result<()> {
        self.channel.send(report, &[])
    }
}

impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Moves the channel away from standard input.
fn take_channel() -> Result<Channel, ChildError> {
    let stdin = rustix::stdio::stdin();
    if rustix::net::sockopt::socket_type(stdin).ok() != Some(SocketType::SEQPACKET) {
        return Err(ChildError::NotSupervised);
    }
    let moved = rustix::io::fcntl_dupfd_cloexec(stdin, 3)
        .and_then(|socket| {
            let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty())?;
            rustix::stdio::dup2_stdin(&null)?;
            Ok(socket)
        })
        .map_err(|error| ChildError::system("take the control channel")(error.into()))?;
    Ok(Channel::from_socket(moved))
}

fn refuse_foreign_descriptors(own: &[i32]) -> Result<(), ChildError> {
    let open = sys::open_descriptors().map_err(ChildError::system("list the open descriptors in /proc"))?;
    match open.into_iter().find(|number| !own.contains(number)) {
        None => Ok(()),
        Some(number) => {
            let target = std::fs::read_link(format!("/proc/self/fd/{number}"))
                .map_or_else(|_| "unknown".to_owned(), |path| path.display().to_string());
            Err(ChildError::ForeignDescriptor { number, target })
        }
    }
}

/// Signals to a whole terminal or control group reach every process; only the supervisor acts on them. And where a limit of
/// the file size is met, the write that meets it fails instead of ending the process.
fn ignore_signals() -> io::Result<()> {
    for signal in [SIGTERM, SIGINT, SIGUSR1, SIGHUP, Signal::XFSZ.as_raw()] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(())
}

/// Whether nobody holds the other end of the pipe any more.
fn is_at_end(lifeline: &OwnedFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(lifeline, PollFlags::IN)];
    poll(&mut polled, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(polled[0].revents().contains(PollFlags::HUP))
}

/// Kills this process at the end of the lifeline, whatever its other threads do.
fn watch(lifeline: OwnedFd) -> io::Result<()> {
    let wait = move || {
        // Nothing is ever written to it.
        while let Ok(1..) | Err(Errno::INTR) = rustix::io::read(&lifeline, &mut [0; 8]) {}
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
        std::process::abort();
    };
    std::thread::Builder::new().name("lifeline".into()).stack_size(64 * 1024).spawn(wait).map(drop)
}
