//! What a caller wants supervised.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::message::{Role, Topology};
#[cfg(target_os = "linux")]
use crate::pages::Page;
use crate::rules::{OnSlotFailed, RestartPolicy};

/// Raises the generation of a slot, durably where it has to outlive this process, and returns it: above every earlier one.
pub type RaiseGeneration = Box<dyn FnMut(Role, u16) -> io::Result<u32>>;

/// Gives the options of a role that have changed.
pub type OnReload = Box<dyn FnMut() -> Option<(Role, serde_json::Value)>>;

/// Sets the page of a process that has ended to what is so without it.
#[cfg(target_os = "linux")]
pub type OnEnded = Box<dyn Fn(Role, &Page<'_>)>;

/// What all processes of a role are started with.
#[derive(Default)]
pub struct RolePlan {
    /// Arguments of the program; slot and generation come in the start message.
    pub arguments: Vec<OsString>,
    /// Listening sockets, if the role accepts. The supervisor keeps them for life, its processes get duplicates.
    pub listeners: Vec<OwnedFd>,
    /// Comes with the start message; its text in JSON is at most 32 KiB.
    pub options: serde_json::Value,
}

/// Without the options: they may have secrets.
impl fmt::Debug for RolePlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RolePlan")
            .field("arguments", &self.arguments)
            .field("listeners", &self.listeners)
            .finish_non_exhaustive()
    }
}

/// A server of several processes.
pub struct Plan {
    /// The program of all processes, as a rule `/proc/self/exe`.
    pub program: PathBuf,
    /// Which slots there are: owners with frontends, or the process of the tubes, or neither; and perhaps a daemon.
    pub topology: Topology,
    /// What each role of the topology is started with.
    pub roles: BTreeMap<Role, RolePlan>,
    /// How often and how quickly a slot is restarted.
    pub restart: RestartPolicy,
    /// What happens when a slot of the queue server has failed.
    pub on_slot_failed: OnSlotFailed,
    /// Called before each start of a process.
    pub generation: RaiseGeneration,
    /// The lowest id count that may be given. The counts that owners report when they are ready raise it further.
    pub id_count_start: u64,
    /// File whose lock excludes a second supervisor; `None` if the caller holds such a lock itself.
    pub lock: Option<PathBuf>,
    /// For each slot with jobs (owners, or the process of the tubes) the file whose lock its process takes and holds for
    /// life; or empty, if they exclude each other in another way. The supervisor starts no process before all are free.
    pub slot_locks: Vec<PathBuf>,
    /// How long the slot locks of an earlier server are awaited.
    pub lock_wait: Duration,
    /// Where to serve [`crate::Status`]; its folder must exist and be private.
    pub status_socket: Option<PathBuf>,
    /// What [`crate::Status`] says of the server as its caller knows it, by name.
    pub about: BTreeMap<String, String>,
    /// Which counters of a page [`crate::Status`] shows for the slots of a role, and under which name.
    pub figures: Vec<(Role, &'static str, usize)>,
    /// Called with the page of a process that has ended, before its successor is started: figures that describe a present
    /// are to be set to what is so without the process.
    #[cfg(target_os = "linux")]
    pub on_ended: OnEnded,
    /// Called at SIGHUP, if [`crate::Signals::with_reload`] was: what it gives is told to the processes of that role, and
    /// to those started later.
    pub on_reload: OnReload,
    /// Called once, when all slots are ready and clients are accepted.
    pub on_serving: Box<dyn FnMut()>,
    /// Seed for the spread of restart delays.
    pub seed: u64,
    /// Handlers of signals that the caller has installed before it opened the listeners; else they are installed later.
    #[cfg(target_os = "linux")]
    pub signals: Option<crate::Signals>,
}

impl fmt::Debug for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Plan")
            .field("program", &self.program)
            .field("topology", &self.topology)
            .finish_non_exhaustive()
    }
}

impl Plan {
    /// A plan with the defaults of all policies, without listeners, locks and status socket.
    #[must_use]
    pub fn new(program: PathBuf, topology: Topology, generation: RaiseGeneration) -> Plan {
        Plan {
            program,
            topology,
            roles: BTreeMap::new(),
            restart: RestartPolicy::default(),
            on_slot_failed: OnSlotFailed::default(),
            generation,
            id_count_start: 1,
            lock: None,
            slot_locks: Vec::new(),
            lock_wait: Duration::from_secs(10),
            status_socket: None,
            about: BTreeMap::new(),
            figures: Vec::new(),
            #[cfg(target_os = "linux")]
            on_ended: Box::new(|_, _| {}),
            on_reload: Box::new(|| None),
            on_serving: Box::new(|| {}),
            seed: u64::from(std::process::id()),
            #[cfg(target_os = "linux")]
            signals: None,
        }
    }
}

/// Generations that need not outlive the supervisor: of a server without a log.
#[must_use]
pub fn generations_in_memory() -> RaiseGeneration {
    let mut last = BTreeMap::new();
    Box::new(move |role, slot| {
        let generation = last.entry((role, slot)).or_insert(0_u32);
        *generation += 1;
        Ok(*generation)
    })
}
