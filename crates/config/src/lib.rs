//! The configuration of all roles: one TOML file, what is set in the database over it, then variables, then flags.
//!
//! Owns: every option with its type, unit, default and meaning ([`options()`]), the sections with names
//! ([`section_kinds()`]), how the layers are read ([`load()`], [`with_overlay()`]), what must fit together, and where
//! each value in force came from ([`Config::effective`]).
//! Never: acts on a value, or opens a database. Whether an address can be bound or a folder written is found out by who
//! uses it; the rows of the database are brought and stored by who has it.
//!
//! Everything wrong is told at once, each with its place and with what would be right; the program then ends with
//! [`EXIT_CODE`].

mod database_url;
mod error;
mod load;
mod names;
mod options;
mod overlay;
mod reference;
mod rules;
mod secret;
mod sections;
mod shown;
mod sources;
mod units;
mod value;

pub use database_url::DatabaseUrl;
pub use error::{ConfigError, Problem};
pub use load::{LoadOptions, load, load_with_sources, read};
pub use options::{OptionInfo, Reload, options};
pub use overlay::{OverlayKey, OverlayRow, with_overlay};
pub use reference::reference;
pub use secret::Secret;
pub use sections::{FieldInfo, KeyEntry, KeySource, Price, Quota, QuotaLimit, SectionInfo, section_kinds};
pub use shown::{ConfigChange, ConfigHistory, ConfigPage, SetOption, Shown, ShownOrigin};
pub use sources::Sources;
pub use units::{
    DatabaseSync, Day, Listen, LogLevel, Mode, Money, OnSlotFailed, Pooler, QuotaPer, Ratio, RestartLimit, Scope, Sync,
};

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::time::Duration;

use sections::Raw;

/// Exit status for a configuration that cannot be used.
pub const EXIT_CODE: u8 = 78;

/// Every option in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Account that all processes become once the address is open; `None`: they stay what they are.
    pub user: Option<String>,
    /// `[serve]`
    pub serve: Serve,
    /// `[data]`
    pub data: Data,
    /// `[tubes]`
    pub tubes: Tubes,
    /// `[database]`
    pub database: Database,
    /// `[http]`
    pub http: Http,
    /// `[client]`
    pub client: Client,
    /// `[cluster]`
    pub cluster: Cluster,
    /// `[log]`
    pub log: Log,
    /// `[telemetry]`
    pub telemetry: Telemetry,
    /// `[keys.NAME]` by name
    pub keys: BTreeMap<String, KeyEntry>,
    /// `[quota.NAME]` by name
    pub quotas: BTreeMap<String, Quota>,
    /// `[prices."MODEL"]` by model, in the order of their days; never an empty list
    pub prices: BTreeMap<String, Vec<Price>>,
    raw: Raw,
    origins: BTreeMap<&'static str, Origin>,
}

/// `[serve]`: what `tenure serve` runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Serve {
    /// Whether it runs the queue server.
    pub tubes: bool,
    /// Whether it runs the daemon.
    pub daemon: bool,
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

/// `[database]`: where the daemon keeps everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database {
    /// The database; `tenure.db` in the folder of data unless somebody says otherwise.
    pub url: DatabaseUrl,
    /// The same past a pooler, always [`DatabaseUrl::Postgres`]; `None`: `url`.
    pub direct_url: Option<DatabaseUrl>,
    /// What stands before PostgreSQL.
    pub pooler: Pooler,
    /// Most connections that are shared; at least three.
    pub pool_size: u32,
    /// What a commit to SQLite survives.
    pub sync: DatabaseSync,
}

/// `[http]`: the daemon's door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http {
    /// Where it answers; always [`Listen::Tcp`].
    pub listen: Listen,
    /// File of the certificate; set if `tls_key` is.
    pub tls_cert: Option<PathBuf>,
    /// File of its private key; set if `tls_cert` is.
    pub tls_key: Option<PathBuf>,
    /// Whether another address than this machine's own may be served without TLS.
    pub allow_plaintext: bool,
    /// Whether `/healthz`, `/readyz` and `/metrics` answer without a key; else they want the scope `read`.
    pub public_health: bool,
}

/// `[client]`: how commands reach the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Begins with `http://` or `https://`, has no slash at its end; `None`: where `[http] listen` says.
    pub url: Option<String>,
    /// File with the key; `None`: no key.
    pub key_file: Option<PathBuf>,
}

/// `[cluster]`: the times of leases. `lease` is at least 3 × `renew` + `statement_timeout` + `margin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cluster {
    /// Period of beats.
    pub beat: Duration,
    /// Period of renewals.
    pub renew: Duration,
    /// How long a member counts as alive after it renewed.
    pub lease: Duration,
    /// How long a renewal waits for the database.
    pub statement_timeout: Duration,
    /// How long before the end of its lease a member ends what it executes.
    pub margin: Duration,
}

/// `[telemetry]`: spans for others to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telemetry {
    /// Collector, without the path `/v1/traces`; `None`: no spans are sent.
    pub otlp_endpoint: Option<String>,
    /// How long sending may take; never zero.
    pub otlp_timeout: Duration,
    /// Name of this service in the spans.
    pub service_name: String,
    /// Share of the traces begun here that are sent.
    pub sampling: Ratio,
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
    /// A row of the database, which is above the file.
    Overlay {
        /// Who set it.
        who: String,
        /// When, in ms since 1970 by the database's clock; 0 while it is only tried.
        at_ms: i64,
    },
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
            Self::Overlay { who, at_ms: 0 } => write!(f, "what {who} would set in the database"),
            Self::Overlay { who, at_ms } => write!(f, "database ({who}, {})", moment(*at_ms)),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// A moment in UTC, to the second, as people and programs read it; ms since 1970 if no calendar has it.
#[must_use]
pub fn moment(at_ms: i64) -> String {
    match jiff::Timestamp::from_second(at_ms.div_euclid(1_000)) {
        Ok(moment) => moment.to_string(),
        Err(_) => at_ms.to_string(),
    }
}

/// One option as it is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    /// `section.key`, `section.name.key`, or `key` outside all sections.
    pub key: String,
    /// As a configuration file would say it, but without passwords; `None` if it is not set and has no default.
    pub value: Option<String>,
    /// Who said so.
    pub origin: Origin,
}

impl Config {
    /// Every option in force, in the order of the documentation, then the sections with names.
    #[must_use]
    pub fn effective(&self) -> Vec<Effective> {
        let option = |option: &OptionInfo| Effective {
            key: option.key.to_owned(),
            value: option.show(self),
            origin: self.origin(option.key),
        };
        options().iter().map(option).chain(self.raw.effective()).collect()
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
        load::set_text(self, key, text, Origin::Flag(flag)).map_err(ConfigError::from)?;
        self.derive();
        Ok(())
    }

    /// Whether all values fit together. [`load()`] and [`with_overlay()`] have asked this; ask again after flags.
    ///
    /// # Errors
    ///
    /// Each rule that is broken.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        rules::check(self, &mut problems);
        if problems.is_empty() { Ok(()) } else { Err(ConfigError { problems }) }
    }

    /// Ends the reading of layers: makes the sections with names, and holds all against the rules.
    fn finish(mut self, mut problems: Vec<Problem>) -> Result<Self, ConfigError> {
        self.derive();
        let sections = self.raw.build(&mut problems);
        (self.keys, self.quotas, self.prices) = (sections.keys, sections.quotas, sections.prices);
        rules::check(&self, &mut problems);
        if problems.is_empty() {
            return Ok(self);
        }
        // The parser hands keys out in alphabetic order; people read from the top.
        problems.sort_by_key(Problem::place);
        Err(ConfigError { problems })
    }

    /// What follows from other options unless it is set.
    fn derive(&mut self) {
        if self.origin("database.url") == Origin::Default {
            self.database.url = DatabaseUrl::Sqlite(self.data.dir.join("tenure.db"));
        }
    }
}

impl Default for Config {
    /// What holds if nothing is configured.
    fn default() -> Self {
        let mut config = Self {
            user: None,
            serve: Serve { tubes: false, daemon: false },
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
            database: Database {
                url: DatabaseUrl::Sqlite(PathBuf::new()),
                direct_url: None,
                pooler: Pooler::None,
                pool_size: 0,
                sync: DatabaseSync::Full,
            },
            http: Http {
                listen: Listen::Unix(PathBuf::new()),
                tls_cert: None,
                tls_key: None,
                allow_plaintext: false,
                public_health: false,
            },
            client: Client { url: None, key_file: None },
            cluster: Cluster {
                beat: Duration::ZERO,
                renew: Duration::ZERO,
                lease: Duration::ZERO,
                statement_timeout: Duration::ZERO,
                margin: Duration::ZERO,
            },
            log: Log { level: LogLevel::Info },
            telemetry: Telemetry {
                otlp_endpoint: None,
                otlp_timeout: Duration::ZERO,
                service_name: String::new(),
                sampling: Ratio::default(),
            },
            keys: BTreeMap::new(),
            quotas: BTreeMap::new(),
            prices: BTreeMap::new(),
            raw: Raw::default(),
            origins: BTreeMap::new(),
        };
        // The table that the documentation is made from is the only place where a default stands.
        for option in options() {
            option.set_default(&mut config);
        }
        config
    }
}
