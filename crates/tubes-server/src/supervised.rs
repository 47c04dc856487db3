//! A queue server whose processes a supervisor runs: what the supervisor opens, keeps and hands to them.
//!
//! Owns: the listeners, the lock of the data directory, the start message of each role, and where the status is served.
//! Never: serves a client, or opens a log.

use crate::child_options::{ChildLog, ChildOptions};
use crate::error::ServeError;
use crate::listen::{self, Listener, Opened, OwnSocket};
use crate::metrics::{self, Endpoint};
use crate::multi::{FRONTEND, MultiOptions, OWNER, Supervision, TUBES};
use crate::options::{LogSettings, ServerOptions};
use crate::{pages, persistence};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use supervisor::lock::{check_private_folder, make_private_folder, memory_only_folder, memory_only_slot};
use supervisor::{
    OnSlotFailed, Plan, RaiseGeneration, RestartPolicy, Role, RolePlan, Signals, SuperviseError, Topology,
    generations_in_memory,
};
use tubes_core::PARTITIONS;
use tubes_store::datadir::{self, DataDir};
use tubes_store::{DiskVfs, SyncMode, manifest};

/// The sockets of a queue server, which may need an account that its processes do not have.
#[derive(Debug)]
pub struct Sockets {
    opened: Opened,
    metrics: Option<Endpoint>,
}

impl Sockets {
    /// Opens them. Clients wait from here on; what fails afterwards ends the server.
    ///
    /// # Errors
    ///
    /// An address is in use or cannot be had; an inherited socket is none that can be served.
    pub fn open(options: &ServerOptions) -> Result<Sockets, ServeError> {
        // Ends of links on their way to many processes.
        crate::accept::raise_limit();
        let opened = listen::open_all(options)?;
        let metrics = options.metrics.as_ref().map(Endpoint::open).transpose()?;
        Ok(Sockets { opened, metrics })
    }
}

/// A queue server that is ready to be supervised, with all that is held for it meanwhile.
#[derive(Debug)]
pub struct Supervised {
    plan: Plan,
    metrics: Option<Endpoint>,
    status_socket: PathBuf,
    /// No second server opens the directory while this one has processes.
    _directory: Option<DataDir>,
    _own_socket: Option<OwnSocket>,
}

impl Supervised {
    /// Makes the plan of a queue server: of several processes, or of one. Lock and status socket are in the directory of
    /// the log; without a log in `directory`, or else in a folder of the account for what ends with the machine's run.
    ///
    /// # Errors
    ///
    /// The directory is in use, belongs to another topology or account, or cannot be used.
    pub fn prepare(
        options: &ServerOptions,
        multi: Option<&MultiOptions>,
        supervision: &Supervision,
        sockets: Sockets,
        directory: Option<&Path>,
    ) -> Result<Supervised, ServeError> {
        let Sockets { opened: Opened { listeners, own_socket }, metrics } = sockets;
        let topology = multi.map_or(Topology::single(), |multi| Topology::several(multi.owners, multi.frontends));
        let kept = match (&options.log, directory) {
            (Some(settings), _) => Kept::open(settings, topology)?,
            (None, Some(directory)) => Kept::in_memory(&real_path(directory)?, topology)?,
            (None, None) => {
                let addresses: Vec<String> = listeners.iter().map(Listener::describe).collect();
                let folder = memory_only_folder(&runtime_directory()?, &addresses);
                make_private_folder(&folder, 0o750)
                    .map_err(|error| ServeError::system("make the folder of locks", io::Error::other(error)))?;
                Kept::in_memory(&folder, topology)?
            }
        };
        listen::announce(&listeners);
        let mut plan = Plan::new(PathBuf::from("/proc/self/exe"), topology, kept.generation);
        plan.about =
            metrics::about(if topology.tubes { "single" } else { "multi" }, &kept.instance, options.log.as_ref());
        if multi.is_some() {
            plan.about.insert("owners".into(), topology.owners.to_string());
            plan.about.insert("frontends".into(), topology.frontends.to_string());
        }
        plan.figures = pages::shown();
        if let Some(log) = &options.log {
            let survives = persistence::survives(log.sync);
            tracing::info!("logs in {}: an acknowledged command survives {survives}", log.directory.display());
        }
        let child_options = ChildOptions {
            instance: kept.instance,
            max_job_size: options.max_job_size,
            body_memory: options.body_memory,
            close_on_http: options.close_on_http,
            owner_wait_ns: multi.map_or(0, |multi| u64::try_from(multi.owner_wait.as_nanos()).unwrap_or(u64::MAX)),
            map: kept.map,
            single_ids_below: kept.single_ids_below,
            segment_bytes: options.segment_bytes,
            log: kept.log,
            #[cfg(feature = "trace")]
            trace: options.trace.as_deref().map(real_path).transpose()?,
        };
        let child_options = serde_json::to_value(&child_options)
            .map_err(|error| ServeError::system("write the start message", io::Error::other(error)))?;
        let mut listeners: Vec<OwnedFd> = listeners
            .into_iter()
            .map(Listener::into_owned)
            .collect::<io::Result<_>>()
            .map_err(|source| ServeError::system("hand the listeners on", source))?;
        for (role, word) in [(Role::Owner, OWNER), (Role::Frontend, FRONTEND), (Role::Tubes, TUBES)] {
            if topology.count(role) > 0 {
                let of_role = RolePlan {
                    arguments: vec![word.into(), supervision.role_word.clone().into()],
                    listeners: if role.accepts() { std::mem::take(&mut listeners) } else { Vec::new() },
                    options: child_options.clone(),
                };
                plan.roles.insert(role, of_role);
            }
        }
        plan.restart = restart_policy(supervision);
        plan.on_slot_failed = if supervision.stops_on_failed_slot { OnSlotFailed::Stop } else { OnSlotFailed::Serve };
        plan.id_count_start = kept.single_ids_below.div_ceil(PARTITIONS as u64).max(1);
        plan.lock = kept.lock;
        plan.slot_locks = kept.slot_locks;
        let has_log = options.log.is_some();
        plan.on_ended = Box::new(move |role, page| pages::end(page, role, has_log));
        plan.seed = u64::from_le_bytes(persistence::random_bytes()?);
        plan.status_socket = Some(kept.status_socket.clone());
        Ok(Supervised {
            plan,
            metrics,
            status_socket: kept.status_socket,
            _directory: kept.directory,
            _own_socket: own_socket,
        })
    }

    /// To it may be added what stands beside the queue server.
    pub fn plan(&mut self) -> &mut Plan {
        &mut self.plan
    }

    /// Runs the server until it is told to stop.
    ///
    /// # Errors
    ///
    /// [`ServeError`] says why it did not start, or what ended it early.
    pub fn serve(self, signals: Signals) -> Result<(), ServeError> {
        let Supervised { mut plan, metrics, status_socket, _directory, _own_socket } = self;
        plan.signals = Some(signals);
        tracing::info!("status at {}", status_socket.display());
        if let Some(endpoint) = metrics {
            endpoint.serve(move || Ok(supervisor::query(&status_socket).map_err(|error| error.to_string())?.into()))?;
        }
        Ok(supervisor::supervise(plan)?)
    }
}

/// What a supervisor makes of the options about restarts.
#[must_use]
pub fn restart_policy(supervision: &Supervision) -> RestartPolicy {
    RestartPolicy {
        delay: supervision.restart_delay,
        limit: supervision.restart_limit,
        window: supervision.restart_window,
    }
}

/// Where a server keeps what outlives a process.
struct Kept {
    instance: String,
    map: Vec<u16>,
    single_ids_below: u64,
    log: Option<ChildLog>,
    generation: RaiseGeneration,
    lock: Option<PathBuf>,
    slot_locks: Vec<PathBuf>,
    status_socket: PathBuf,
    directory: Option<DataDir>,
}

impl Kept {
    fn open(settings: &LogSettings, topology: Topology) -> Result<Kept, ServeError> {
        // Where others can write they could take the place of the status socket: seen before anything is made there.
        if let Ok(directory) = std::fs::canonicalize(&settings.directory) {
            check_private_folder(&directory).map_err(SuperviseError::from)?;
        }
        let of_directory =
            if topology.tubes { manifest::Topology::Single } else { manifest::Topology::Multi(topology.owners) };
        let directory = open_when_free(&settings.directory, of_directory)?;
        let manifest = directory.manifest().clone();
        let slots = (0..slots_with_jobs(topology))
            .map(|slot| Ok(datadir::slot_directory(&settings.directory, &manifest.logs, slot)?))
            .collect::<Result<Vec<DiskVfs>, ServeError>>()?;
        let slot_path = |slot: u16| settings.directory.join(&manifest.logs).join(format!("slot-{slot}"));
        let mut in_memory = generations_in_memory();
        Ok(Kept {
            log: Some(ChildLog {
                directory: settings.directory.clone(),
                logs: manifest.logs.clone(),
                fingerprint: directory.fingerprint(),
                sync_ns: match settings.sync {
                    SyncMode::Never => None,
                    SyncMode::Always => Some(0),
                    SyncMode::Interval(interval) => Some(interval),
                },
            }),
            slot_locks: (0..slots_with_jobs(topology)).map(|slot| slot_path(slot).join("lock")).collect(),
            generation: Box::new(move |role, slot| {
                if role.has_jobs() {
                    datadir::raise_generation_of(&slots[usize::from(slot)]).map_err(io::Error::other)
                } else {
                    in_memory(role, slot)
                }
            }),
            instance: manifest.instance,
            map: manifest.map,
            single_ids_below: manifest.single_ids_below,
            // The directory's own lock is held by this process.
            lock: None,
            status_socket: real_path(&settings.directory)?.join("status.sock"),
            directory: Some(directory),
        })
    }

    /// Of a server without a log. The lock of its folder has the name that it has in a data directory.
    fn in_memory(folder: &Path, topology: Topology) -> Result<Kept, ServeError> {
        let partition = |partition: usize| partition as u16 % topology.owners.max(1);
        Ok(Kept {
            instance: datadir::draw_instance()
                .map_err(|source| ServeError::system("draw the id of this server", source))?,
            map: (0..PARTITIONS).map(partition).collect(),
            single_ids_below: 0,
            log: None,
            generation: generations_in_memory(),
            lock: Some(folder.join("lock")),
            slot_locks: (0..slots_with_jobs(topology)).map(|slot| memory_only_slot(folder, slot)).collect(),
            status_socket: folder.join("status.sock"),
            directory: None,
        })
    }
}

fn slots_with_jobs(topology: Topology) -> u16 {
    topology.owners + u16::from(topology.tubes)
}

/// Opens the data directory. A supervisor that was killed while it started a process leaves its lock with that process
/// for a moment, so a lock that is held is tried again for a while.
fn open_when_free(directory: &Path, topology: manifest::Topology) -> Result<DataDir, ServeError> {
    const TRIES: u32 = 100;
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);
    for _ in 0..TRIES {
        match datadir::open(directory, topology) {
            Err(datadir::DirError::Locked { .. }) => std::thread::sleep(PAUSE),
            opened => return Ok(opened?),
        }
    }
    Ok(datadir::open(directory, topology)?)
}

fn real_path(directory: &Path) -> Result<PathBuf, ServeError> {
    std::fs::canonicalize(directory).map_err(|source| ServeError::system("find the data directory", source))
}

/// Where this account keeps what ends with the machine's run: `$XDG_RUNTIME_DIR/tenure`, if that is this account's;
/// `/run/tenure` as root; else a folder of its own below the temporary one.
fn runtime_directory() -> Result<PathBuf, ServeError> {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::geteuid().as_raw();
    // After a switch of the account it names the folder of the former one.
    let is_own = |path: &Path| std::fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == own);
    let path = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if is_own(Path::new(&directory)) => PathBuf::from(directory).join("tenure"),
        _ if own == 0 && Path::new("/run").is_dir() => PathBuf::from("/run/tenure"),
        _ => std::env::temp_dir().join(format!("tenure-{own}")),
    };
    make_private_folder(&path, 0o750)
        .map_err(|error| ServeError::system("make the runtime folder", io::Error::other(error)))?;
    Ok(path)
}

impl Listener {
    fn into_owned(self) -> io::Result<OwnedFd> {
        use std::os::fd::AsFd;
        match &self {
            Listener::Tcp(listener) => listener.as_fd().try_clone_to_owned(),
            Listener::Unix(listener) => listener.as_fd().try_clone_to_owned(),
        }
    }
}
