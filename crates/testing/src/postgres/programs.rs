//! Where PostgreSQL's programs are, and as whom they run.
//!
//! Owns: the search, and the account. A program that is missing is a failure that names its package, never a test
//! that is left out.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::process::run;

/// Debian puts the programs of the server here, a folder per version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// A program of PostgreSQL's server: `initdb`, `postgres`, `pg_basebackup`.
#[track_caller]
pub(super) fn of_server(name: &str) -> PathBuf {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let folder =
        FOLDER.get_or_init(|| {
            let configured = run(Command::new("pg_config").arg("--bindir")).ok().map(|line| PathBuf::from(line.trim()));
            let mut versions: Vec<(u32, PathBuf)> = fs::read_dir(DEBIAN)
                .into_iter()
                .flatten()
                .filter_map(|entry| {
                    let path = entry.ok()?.path();
                    Some((path.file_name()?.to_str()?.parse().ok()?, path.join("bin")))
                })
                .collect();
            versions.sort();
            // `pg_config` may be there without a server. The newest version first, and the search path last.
            let versions = versions.into_iter().rev().map(|(_, folder)| folder);
            configured.into_iter().chain(versions).chain(search_path()).find(|folder| {
                ["initdb", "postgres", "pg_basebackup"].iter().all(|program| folder.join(program).is_file())
            })
        });
    match folder {
        Some(folder) => folder.join(name),
        None => panic!("PostgreSQL's server is not installed; on Debian: `apt-get install postgresql` as root"),
    }
}

/// The first line of what `postgres --version` prints, as part of a file name.
#[track_caller]
pub(super) fn version() -> String {
    static VERSION: OnceLock<String> = OnceLock::new();
    let version = VERSION.get_or_init(|| {
        let line = run(Command::new(of_server("postgres")).arg("--version")).expect("version of PostgreSQL");
        line.trim().chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
    });
    version.clone()
}

/// `pgbouncer`, which Debian keeps out of the path of ordinary users.
#[track_caller]
pub(super) fn pgbouncer() -> PathBuf {
    let folders = search_path().into_iter().chain([PathBuf::from("/usr/sbin")]);
    match folders.map(|folder| folder.join("pgbouncer")).find(|path| path.is_file()) {
        Some(path) => path,
        None => panic!("PgBouncer is not installed; on Debian: `apt-get install pgbouncer` as root"),
    }
}

fn search_path() -> Vec<PathBuf> {
    std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default()
}

/// As whom servers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Account {
    /// What to change to; `None`: we are an ordinary user, and stay it.
    change_to: Option<(u32, u32)>,
}

impl Account {
    /// `postgres` or `nobody` for root, who may not run servers; ourselves otherwise.
    #[track_caller]
    pub(super) fn choose() -> Self {
        static CHOSEN: Mutex<Option<Account>> = Mutex::new(None);
        let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
        *chosen.get_or_insert_with(|| {
            if !rustix::process::geteuid().is_root() {
                return Self { change_to: None };
            }
            let accounts = accounts();
            let found = ["postgres", "nobody"].iter().find_map(|name| accounts.get(*name).copied());
            Self { change_to: Some(found.expect("an account `postgres` or `nobody` in /etc/passwd")) }
        })
    }

    /// The number of the user.
    pub(super) fn user(self) -> u32 {
        self.change_to.map_or_else(|| rustix::process::geteuid().as_raw(), |(user, _)| user)
    }

    /// A command that runs as this account in `folder`, without what the environment says to PostgreSQL's programs.
    pub(super) fn command(self, program: impl AsRef<OsStr>, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(folder).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PG") || name.as_encoded_bytes().starts_with(b"LC_") {
                command.env_remove(name);
            }
        }
        command.env("LC_ALL", "C.UTF-8").env("TZ", "UTC").env("HOME", folder);
        if let Some((user, group)) = self.change_to {
            // The standard library drops all other groups too.
            command.uid(user).gid(group);
        }
        command
    }

    /// Gives it a file or folder.
    #[track_caller]
    pub(super) fn own(self, path: &Path) {
        if let Some((user, group)) = self.change_to {
            chown(path, Some(user), Some(group)).expect("root may give away files");
        }
    }
}

/// Name to user and group.
fn accounts() -> HashMap<String, (u32, u32)> {
    let text = fs::read_to_string("/etc/passwd").expect("the list of accounts");
    let entries = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        Some(((*fields.first()?).to_owned(), (fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?)))
    });
    entries.collect()
}
