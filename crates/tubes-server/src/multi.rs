//! Multi mode: one supervisor, owners that have the jobs, frontends that have the clients.

use crate::error::ServeError;
use crate::options::ServerOptions;
use std::time::Duration;

/// What multi mode needs besides the options of a server.
#[derive(Debug, Clone)]
pub struct MultiOptions {
    /// Owner processes, 1 to 64.
    pub owners: u16,
    /// Frontend processes, at least 1.
    pub frontends: u16,
    /// How long a command waits for an owner that is away.
    pub owner_wait: Duration,
    /// Restarts allowed within `restart_window`.
    pub restart_limit: u32,
    /// See `restart_limit`.
    pub restart_window: Duration,
    /// Before the first restart.
    pub restart_delay: Duration,
    /// Whether the server ends when a slot has failed.
    pub stops_on_failed_slot: bool,
    /// A word for the command line of every role, behind the role's name.
    pub role_word: String,
}

/// The words by which the program is called as one of its roles.
#[cfg(target_os = "linux")]
const OWNER: &str = "tubes-owner";
#[cfg(target_os = "linux")]
const FRONTEND: &str = "tubes-frontend";

/// Runs a queue server of several processes until it is told to stop.
///
/// # Errors
///
/// [`ServeError`] says why it did not start, or what ended it early, and carries the exit code.
#[cfg(target_os = "linux")]
pub fn serve_multi(options: &ServerOptions, multi: &MultiOptions) -> Result<(), ServeError> {
    linux::serve(options, multi)
}

/// Refuses: this system lacks what several processes are tied together with.
///
/// # Errors
///
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn serve_multi(_options: &ServerOptions, _multi: &MultiOptions) -> Result<(), ServeError> {
    Err(ServeError::Unsupported {
        facility: "process descriptors, a signal at the parent's death and memory by descriptor (Linux)",
    })
}

/// What a process does that the supervisor has started.
pub type RoleMain = fn() -> Result<(), ServeError>;

/// What this process does if `word`, the first of its command line, names a role.
#[cfg(target_os = "linux")]
#[must_use]
pub fn role(word: &str) -> Option<RoleMain> {
    match word {
        OWNER => Some(linux::serve_as_owner),
        FRONTEND => Some(linux::serve_as_frontend),
        _ => None,
    }
}

/// There are no roles here.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn role(_word: &str) -> Option<RoleMain> {
    None
}

#[cfg(target_os = "linux")]
mod linux {
    use super::{FRONTEND, MultiOptions, OWNER};
    use crate::child_options::{ChildLog, ChildOptions};
    use crate::error::ServeError;
    use crate::listen::{self, Opened};
    use crate::metrics::{self, Endpoint};
    use crate::options::{LogSettings, ServerOptions};
    use crate::{frontend, owner, pages, persistence, privileges};
    use std::io;
    use std::os::fd::OwnedFd;
    use std::path::{Path, PathBuf};
    use supervisor::lock::{check_private_folder, make_private_folder, memory_only_folder, memory_only_slot};
    use supervisor::{
        Child, OnSlotFailed, Plan, RaiseGeneration, RestartPolicy, Role, Signals, SuperviseError, generations_in_memory,
    };
    use tubes_core::PARTITIONS;
    use tubes_store::datadir::{self, DataDir};
    use tubes_store::manifest::Topology;
    use tubes_store::{DiskVfs, SyncMode};

    pub(super) fn serve(options: &ServerOptions, multi: &MultiOptions) -> Result<(), ServeError> {
        // Ends of links on their way to many processes.
        crate::accept::raise_limit();
        let account = options.user.as_deref().map(privileges::find).transpose()?;
        let Opened { listeners, own_socket } = listen::open_all(options)?;
        let signals = Signals::install().map_err(|source| ServeError::system("install signal handlers", source))?;
        let metrics = options.metrics.as_ref().map(Endpoint::open).transpose()?;
        if let Some(account) = account {
            account.switch()?;
        }
        let addresses: Vec<String> = listeners.iter().map(listen::Listener::describe).collect();
        let kept = match &options.log {
            None => Kept::in_memory(multi, &addresses)?,
            Some(settings) => Kept::open(settings, multi)?,
        };
        listen::announce(&listeners);
        let mut plan = Plan::new(PathBuf::from("/proc/self/exe"), multi.owners, multi.frontends, kept.generation);
        plan.owner_args = vec![OWNER.into(), multi.role_word.clone().into()];
        plan.frontend_args = vec![FRONTEND.into(), multi.role_word.clone().into()];
        plan.listeners = listeners
            .into_iter()
            .map(listen::Listener::into_owned)
            .collect::<io::Result<_>>()
            .map_err(|source| ServeError::system("hand the listeners on", source))?;
        plan.about = metrics::about("multi", &kept.instance, options.log.as_ref());
        plan.about.insert("owners".into(), multi.owners.to_string());
        plan.about.insert("frontends".into(), multi.frontends.to_string());
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
            owner_wait_ns: u64::try_from(multi.owner_wait.as_nanos()).unwrap_or(u64::MAX),
            map: kept.map,
            single_ids_below: kept.single_ids_below,
            segment_bytes: options.segment_bytes,
            log: kept.log,
            #[cfg(feature = "trace")]
            trace: options.trace.as_deref().map(real_path).transpose()?,
        };
        plan.options = serde_json::to_value(&child_options)
            .map_err(|error| ServeError::system("write the start message", io::Error::other(error)))?;
        plan.restart =
            RestartPolicy { delay: multi.restart_delay, limit: multi.restart_limit, window: multi.restart_window };
        plan.on_slot_failed = if multi.stops_on_failed_slot { OnSlotFailed::Stop } else { OnSlotFailed::Serve };
        plan.id_count_start = kept.single_ids_below.div_ceil(PARTITIONS as u64).max(1);
        plan.lock = kept.lock;
        plan.slot_locks = kept.slot_locks;
        tracing::info!("status at {}", kept.status_socket.display());
        if let Some(endpoint) = metrics {
            let socket = kept.status_socket.clone();
            endpoint.serve(move || Ok(supervisor::query(&socket).map_err(|error| error.to_string())?.into()))?;
        }
        plan.status_socket = Some(kept.status_socket);
        let has_log = options.log.is_some();
        plan.on_ended = Box::new(move |role, page| pages::end(page, role, has_log));
        plan.seed = u64::from_le_bytes(persistence::random_bytes()?);
        plan.signals = Some(signals);
        let ended = supervisor::supervise(plan);
        // Held until here: no second server opens the directory while this one has processes.
        drop(kept.directory);
        drop(own_socket);
        Ok(ended?)
    }

    pub(super) fn serve_as_owner() -> Result<(), ServeError> {
        let (child, start) = Child::from_inherited()?;
        owner::serve(child, start)
    }

    pub(super) fn serve_as_frontend() -> Result<(), ServeError> {
        let (child, start) = Child::from_inherited()?;
        frontend::serve(child, start)
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
        fn open(settings: &LogSettings, multi: &MultiOptions) -> Result<Kept, ServeError> {
            // Where others can write they could take the place of the status socket: seen before anything is made there.
            if let Ok(directory) = std::fs::canonicalize(&settings.directory) {
                check_private_folder(&directory).map_err(SuperviseError::from)?;
            }
            let directory = open_when_free(&settings.directory, Topology::Multi(multi.owners))?;
            let manifest = directory.manifest().clone();
            let slots = (0..multi.owners)
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
                slot_locks: (0..multi.owners).map(|slot| slot_path(slot).join("lock")).collect(),
                generation: Box::new(move |role, slot| match role {
                    Role::Owner => datadir::raise_generation_of(&slots[usize::from(slot)]).map_err(io::Error::other),
                    Role::Frontend => in_memory(role, slot),
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

        fn in_memory(multi: &MultiOptions, addresses: &[String]) -> Result<Kept, ServeError> {
            let folder = memory_only_folder(&runtime_directory()?, addresses);
            make_private_folder(&folder, 0o750)
                .map_err(|error| ServeError::system("make the folder of locks", io::Error::other(error)))?;
            Ok(Kept {
                instance: datadir::draw_instance()
                    .map_err(|source| ServeError::system("draw the id of this server", source))?,
                map: (0..PARTITIONS).map(|partition| partition as u16 % multi.owners).collect(),
                single_ids_below: 0,
                log: None,
                generation: generations_in_memory(),
                lock: Some(folder.join("lock")),
                slot_locks: (0..multi.owners).map(|slot| memory_only_slot(&folder, slot)).collect(),
                status_socket: folder.join("status.sock"),
                directory: None,
            })
        }
    }

    /// Opens the data directory. A supervisor that was killed while it started a process leaves its lock with that process
    /// for a moment, so a lock that is held is tried again for a while.
    fn open_when_free(directory: &Path, topology: Topology) -> Result<DataDir, ServeError> {
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

    impl listen::Listener {
        fn into_owned(self) -> io::Result<OwnedFd> {
            use std::os::fd::AsFd;
            match &self {
                listen::Listener::Tcp(listener) => listener.as_fd().try_clone_to_owned(),
                listen::Listener::Unix(listener) => listener.as_fd().try_clone_to_owned(),
            }
        }
    }
}
