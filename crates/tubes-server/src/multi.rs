//! Several processes under a supervisor: what is asked for, and the roles that the program is started again as.
//!
//! In multi mode the queue server is owners that have the jobs and frontends that have the clients. Beside a daemon it may
//! be one process, which is supervised too.

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
}

/// How processes are supervised.
#[derive(Debug, Clone)]
pub struct Supervision {
    /// Restarts allowed within `restart_window`.
    pub restart_limit: u32,
    /// See `restart_limit`.
    pub restart_window: Duration,
    /// Before the first restart.
    pub restart_delay: Duration,
    /// Whether the server ends when a slot of the queue server has failed.
    pub stops_on_failed_slot: bool,
    /// A word for the command line of every role, behind the role's name.
    pub role_word: String,
}

/// The words by which the program is called as one of its roles.
#[cfg(target_os = "linux")]
pub(crate) const OWNER: &str = "tubes-owner";
#[cfg(target_os = "linux")]
pub(crate) const FRONTEND: &str = "tubes-frontend";
#[cfg(target_os = "linux")]
pub(crate) const TUBES: &str = "tubes-child";

/// Runs a queue server of several processes until it is told to stop.
///
/// # Errors
///
/// [`ServeError`] says why it did not start, or what ended it early, and carries the exit code.
#[cfg(target_os = "linux")]
pub fn serve_multi(options: &ServerOptions, multi: &MultiOptions, supervision: &Supervision) -> Result<(), ServeError> {
    let account = options.user.as_deref().map(crate::Account::find).transpose()?;
    let sockets = crate::Sockets::open(options)?;
    let signals =
        supervisor::Signals::install().map_err(|source| ServeError::system("install signal handlers", source))?;
    if let Some(account) = account {
        account.switch()?;
    }
    let supervised = crate::Supervised::prepare(options, Some(multi), supervision, sockets, None)?;
    supervised.serve(signals)
}

/// Refuses: this system lacks what several processes are tied together with.
///
/// # Errors
///
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn serve_multi(
    _options: &ServerOptions,
    _multi: &MultiOptions,
    _supervision: &Supervision,
) -> Result<(), ServeError> {
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
    use supervisor::Child;
    match word {
        OWNER => Some(|| {
            let (child, start) = Child::from_inherited()?;
            crate::owner::serve(child, start)
        }),
        FRONTEND => Some(|| {
            let (child, start) = Child::from_inherited()?;
            crate::frontend::serve(child, start)
        }),
        TUBES => Some(|| {
            let (child, start) = Child::from_inherited()?;
            crate::single::serve_supervised(child, start)
        }),
        _ => None,
    }
}

/// There are no roles here.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn role(_word: &str) -> Option<RoleMain> {
    None
}
