//! The configuration of all roles: one TOML file, then variables, then flags.
//!
//! Owns: every option with its type, unit, default and meaning ([`options()`]), how the layers are read ([`load()`]), and
//! where each value in force came from ([`Config::effective`]).
//! Never: acts on a value. Whether an address can be bound or a folder written is found out by who uses it.
//!
//! Everything wrong is told at once, each with its place and with what would be right; the program then ends with
//! [`EXIT_CODE`].

mod error;
mod load;
mod options;
mod reference;
mod units;

pub use error::{ConfigError, Problem};
pub use load::{LoadOptions, load};
pub use options::{OptionInfo, options};
pub use reference::reference;
pub use units::{Listen, LogLevel, Mode, OnSlotFailed, RestartLimit, Sync};

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::time::Duration;

/// Exit status for a configuration that cannot be used.
pub const EXIT_CODE: u8 = 78;

/// Every option in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Account that all processes become once the address is open; `None`: they stay what they are.
    pub user: Option<String>,
    /// `[data]`
    pub data: Data,
    /// `[tubes]`
    pub tubes: Tubes,
    /// `[log]`
    pub log: Log,
    origins: BTreeMap<&'static str, Origin>,
}

/// `[data]`: where everything is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data {
    /// Folder of all data; relative to the folder the program is started in.
    pub dir: PathBuf,
}

/// `[tubes]`: the queue server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tubes {
    /// Where clients connect.
    pub listen: Listen,
    /// One process, or owners and frontends.
    pub mode: Mode,
    /// Number of owner processes in multi mode.
    pub owners: u32,
    /// Number of frontend processes in multi mode.
    pub frontends: u32,
    /// Whether a log is kept.
    pub persist: bool,
    /// When the log is synced.
    pub sync: Sync,
    /// Largest job body a client may put, in bytes.
    pub max_job_size: u64,
    /// Size of one log segment, in bytes.
    pub segment_size: u64,
    /// Memory of one frontend for large bodies that are being received, in bytes.
    pub body_memory: u64,
    /// How long a command waits for an owner that is away.
    pub owner_wait: Duration,
    /// What happens when an owner's restarts are used up.
    pub on_slot_failed: OnSlotFailed,
    /// How many restarts of an owner within which time are too many.
    pub restart_limit: RestartLimit,
    /// Pause before a restart.
    pub restart_delay: Duration,
    /// Permissions of a unix socket.
    pub socket_mode: u32,
    /// Group of a unix socket; `None`: the process's own.
    pub socket_group: Option<String>,
    /// Whether a connection whose first line is an HTTP request is closed.
    pub close_on_http: bool,
    /// Where figures for Prometheus are served, always [`Listen::Tcp`]; `None`: nowhere.
    pub metrics: Option<Listen>,
}

/// `[log]`: what the program says about itself. The log of jobs is `[tubes]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// The least urgent messages that are still written.
    pub level: LogLevel,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A line of the configuration file, from 1.
    File(PathBuf, usize),
    /// An environment variable.
    Variable(String),
    /// A flag of the command line.
    Flag(&'static str),
}

impl Display for Origin {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// One option as it is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    /// `section.key`, or `key` outside all sections.
    pub key: &'static str,
    /// As a configuration file would say it; `None` if it is not set and has no default.
    pub value: Option<String>,
    /// Who said so.
    pub origin: Origin,
}

impl Config {
    /// Every option in force, in the order of the documentation.
    #[must_use]
    pub fn effective(&self) -> Vec<Effective> {
        options()
            .iter()
            .map(|option| Effective { key: option.key, value: option.show(self), origin: self.origin(option.key) })
            .collect()
    }

    /// Where the value of `key` came from; a key that does not exist was set by nobody.
    #[must_use]
    pub fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }

    /// Sets `key` to `text`, which the command line gave for `flag`; it wins over the file and variables.
    ///
    /// # Errors
    ///
    /// If there is no such key, or `text` is not a value of its type. Nothing is changed then.
    pub fn set_by_flag(&mut self, key: &str, text: &str, flag: &'static str) -> Result<(), ConfigError> {
        load::set_text(self, key, text, Origin::Flag(flag)).map_err(ConfigError::from)
    }
}

impl Default for Config {
    /// What holds if nothing is configured.
    fn default() -> Self {
        let mut config = Self {
            user: None,
            data: Data { dir: PathBuf::new() },
            tubes: Tubes {
                listen: Listen::Unix(PathBuf::new()),
                mode: Mode::Single,
                owners: 0,
                frontends: 0,
                persist: false,
                sync: Sync::Never,
                max_job_size: 0,
                segment_size: 0,
                body_memory: 0,
                owner_wait: Duration::ZERO,
                on_slot_failed: OnSlotFailed::Serve,
                restart_limit: RestartLimit { restarts: 0, within: Duration::ZERO },
                restart_delay: Duration::ZERO,
                socket_mode: 0,
                socket_group: None,
                close_on_http: false,
                metrics: None,
            },
            log: Log { level: LogLevel::Info },
            origins: BTreeMap::new(),
        };
        // The table that the documentation is made from is the only place where a default stands.
        for option in options() {
            option.set_default(&mut config);
        }
        config
    }
}
