//! What a caller wants supervised.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::message::Role;
#[cfg(target_os = "linux")]
use crate::pages::Page;
use crate::rules::{OnSlotFailed, RestartPolicy};

/// Raises the generation of a slot, durably where it has to outlive this process, and returns it: above every earlier one.
pub type RaiseGeneration = Box<dyn FnMut(Role, u16) -> io::Result<u32>>;

/// Sets the page of a process that has ended to what is so without it.
#[cfg(target_os = "linux")]
pub type OnEnded = Box<dyn Fn(Role, &Page<'_>)>;

/// A server of several processes.
pub struct Plan {
    /// The program of all processes, as a rule `/proc/self/exe`.
    pub program: PathBuf,
    /// Its arguments as an owner; slot and generation come in the start message.
    pub owner_args: Vec<OsString>,
    /// Its arguments as a frontend.
    pub frontend_args: Vec<OsString>,
    /// How many owners; at least 1.
    pub owners: u16,
    /// How many frontends; at least 1.
    pub frontends: u16,
    /// Listening sockets. The supervisor keeps them for life, frontends get duplicates.
    pub listeners: Vec<OwnedFd>,
    /// Sent to every process; its text in JSON is at most 32 KiB.
    pub options: serde_json::Value,
    /// How often and how quickly a slot is restarted.
    pub restart: RestartPolicy,
    /// What happens when a slot has failed.
    pub on_slot_failed: OnSlotFailed,
    /// Called before each start of a process.
    pub generation: RaiseGeneration,
    /// The lowest id count that may be given. The counts that owners report when they are ready raise it further.
    pub id_count_start: u64,
    /// File whose lock excludes a second supervisor; `None` if the caller holds such a lock itself.
    pub lock: Option<PathBuf>,
    /// For each owner the file whose lock it takes and holds for life; or empty, if owners exclude each other in another
    /// way. The supervisor starts no process before all are free.
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
    /// Called once, when all slots are ready and frontends accept.
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
            .field("owners", &self.owners)
            .field("frontends", &self.frontends)
            .finish_non_exhaustive()
    }
}

impl Plan {
    /// A plan with the defaults of all policies, without listeners, locks and status socket.
    #[must_use]
    pub fn new(program: PathBuf, owners: u16, frontends: u16, generation: RaiseGeneration) -> Plan {
        Plan {
            program,
            owner_args: Vec::new(),
            frontend_args: Vec::new(),
            owners,
            frontends,
            listeners: Vec::new(),
            options: serde_json::Value::Null,
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
