//! What a supervisor and its processes say to each other, apart from the descriptors that travel along.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Has the jobs, queues, timers and the log of its slot.
    Owner,
    /// Has client connections.
    Frontend,
    /// One process with the jobs and the client connections of the whole queue server.
    Tubes,
    /// Everything that is no queue server: what stands beside the tubes under one supervisor.
    Daemon,
}

impl Role {
    /// All of them, in the order in which slots are listed everywhere.
    pub const ALL: [Role; 4] = [Role::Owner, Role::Frontend, Role::Tubes, Role::Daemon];

    /// Whether its process has jobs, and perhaps a log of them.
    #[must_use]
    pub fn has_jobs(self) -> bool {
        matches!(self, Role::Owner | Role::Tubes)
    }

    /// Whether somebody from outside connects to it: it is given listeners, and told when to accept.
    #[must_use]
    pub fn accepts(self) -> bool {
        self != Role::Owner
    }

    /// The role at the other end of its links, if it has links.
    #[must_use]
    pub fn peer(self) -> Option<Role> {
        match self {
            Role::Owner => Some(Role::Frontend),
            Role::Frontend => Some(Role::Owner),
            Role::Tubes | Role::Daemon => None,
        }
    }

    /// The word for it in messages, labels and commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Owner => "owner",
            Role::Frontend => "frontend",
            Role::Tubes => "tubes",
            Role::Daemon => "daemon",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A place in the topology: it has at most one process at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Slot {
    /// What its process does.
    pub role: Role,
    /// Its number among the slots of that role, from 0.
    pub slot: u16,
}

impl fmt::Display for Slot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.role, self.slot)
    }
}

/// Which slots a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Topology {
    /// Number of owners.
    pub owners: u16,
    /// Number of frontends.
    pub frontends: u16,
    /// Whether one process serves the queue instead of owners and frontends.
    pub tubes: bool,
    /// Whether there is a daemon.
    pub daemon: bool,
}

impl Topology {
    /// Several processes serve the queue; there is no daemon.
    #[must_use]
    pub const fn several(owners: u16, frontends: u16) -> Topology {
        Topology { owners, frontends, tubes: false, daemon: false }
    }

    /// One process serves the queue; there is no daemon.
    #[must_use]
    pub const fn single() -> Topology {
        Topology { owners: 0, frontends: 0, tubes: true, daemon: false }
    }

    /// How many slots a role has.
    #[must_use]
    pub fn count(self, role: Role) -> u16 {
        match role {
            Role::Owner => self.owners,
            Role::Frontend => self.frontends,
            Role::Tubes => self.tubes.into(),
            Role::Daemon => self.daemon.into(),
        }
    }

    /// All slots: by role, in the order of [`Role::ALL`].
    pub fn slots(self) -> impl Iterator<Item = Slot> {
        Role::ALL.into_iter().flat_map(move |role| (0..self.count(role)).map(move |slot| Slot { role, slot }))
    }

    /// How many slots there are.
    #[must_use]
    pub fn len(self) -> usize {
        Role::ALL.into_iter().map(|role| usize::from(self.count(role))).sum()
    }

    /// Whether there is no slot at all.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The place of a slot among [`Topology::slots`]; `None` if there is no such slot.
    #[must_use]
    pub fn index(self, place: Slot) -> Option<usize> {
        let before = Role::ALL.into_iter().take_while(|role| *role != place.role);
        let first: usize = before.map(|role| usize::from(self.count(role))).sum();
        (place.slot < self.count(place.role)).then(|| first + usize::from(place.slot))
    }
}

/// One process: a slot and which start of it. Never reused, unlike a process number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Instance {
    /// What it does.
    pub role: Role,
    /// Its number among the slots of that role, from 0.
    pub slot: u16,
    /// Rises at each start of the slot.
    pub generation: u32,
}

impl Instance {
    /// Its place.
    #[must_use]
    pub fn place(self) -> Slot {
        Slot { role: self.role, slot: self.slot }
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {} (generation {})", self.role, self.slot, self.generation)
    }
}

/// What a process reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromChild {
    /// Configuration, lock and log are in order; it can serve as soon as it is linked, if it has links. Sent once.
    Ready {
        /// Of the sender, as in its start message.
        generation: u32,
        /// Recovered jobs; 0 from a process that has none.
        jobs: u64,
        /// From an owner the count from which new ids may be taken, as its log knows it; else 0.
        next_id: u64,
    },
    /// Answer to a ping, from the thread that does the work.
    Pong {
        /// Of the sender.
        generation: u32,
        /// Of the ping.
        nonce: u64,
        /// For how long a sync of the log has been going on, in milliseconds; `None` if none is.
        in_sync_ms: Option<u64>,
    },
    /// It accepts no new job any more.
    Drained,
    /// The link to a peer that has not been said to be gone is of no use any more: closed, or what came through it made
    /// no sense. The sender has forgotten it, and whatever depended on it; another one may follow.
    LinkLost {
        /// Who is at the other end.
        peer: Instance,
        /// Which link.
        number: u64,
    },
    /// All is finished; it exits next.
    Stopped,
    /// It exits next, and why. What it has said so is shown with its exit code.
    Failed {
        /// Whether another try can help.
        cause: FailureCause,
        /// A sentence fragment without a final stop.
        reason: String,
    },
}

/// What made a process fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureCause {
    /// A write or sync of the log. It counts as a crash: the slot is restarted within its limit.
    Write,
    /// Anything else; the exit code decides.
    Other,
}

/// Instructions to a process that carry no descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Instruction {
    /// That process has ended. Everything of it is void; a link to its successor follows later. A frontend closes the
    /// connections that depended on it before it sends anything to the successor.
    PeerGone(Instance),
    /// To whoever accepts connections, when all that is served to them is ready and linked: accept them.
    Go,
    /// To be answered with [`FromChild::Pong`].
    Ping {
        /// To be repeated in the answer.
        nonce: u64,
    },
    /// Accept no new job from the next step on, then say [`FromChild::Drained`].
    Drain,
    /// To a frontend: close the listeners, finish the commands that were read completely, close all connections, say
    /// [`FromChild::Stopped`] and exit with code 0, all within this time.
    Barrier {
        /// Milliseconds until it is killed.
        within_ms: u64,
    },
    /// To all others. An owner finishes the batch and syncs the log; the process of the tubes closes its listeners and
    /// finishes the commands that were read completely before that; the daemon ends whatever it does. Then each says
    /// [`FromChild::Stopped`] and exits with code 0.
    Stop {
        /// Milliseconds until it is killed.
        within_ms: u64,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl fmt::Display for Ending {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Code(code) => write!(formatter, "exited with code {code}"),
            Ending::Signal(signal) => write!(formatter, "was ended by signal {signal}"),
        }
    }
}
