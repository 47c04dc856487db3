//! A copy of the SQLite file while it is in use.
//!
//! Owns: copying what was committed when it began, checking the copy, and that nothing is ever overwritten.
//! Never: stops the writer. The copy reads as of one moment; until it is done, the write-ahead log cannot be emptied and
//! grows by what is written meanwhile.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use database_core::DbError;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::Database;
use crate::sqlite::{Sqlite, failure};

/// Pages copied between two reports of progress: 4 MiB.
const PAGES_PER_STEP: i32 = 1024;
/// Lines of a failed check that are told.
const FINDINGS_MAX: u32 = 10;

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// PostgreSQL has tools of its own.
    #[error("the database is PostgreSQL: use pg_dump or pg_basebackup")]
    NotSqlite,
    /// Something of that name is there.
    #[error("{} exists already, and a backup never overwrites", .0.display())]
    Exists(PathBuf),
    /// The copy is damaged, and was removed. The database itself may be damaged.
    #[error("the copy is damaged: {}", .0.join("; "))]
    Damaged(Vec<String>),
    /// The database could not be read, or the copy not written.
    #[error("failed to copy the database: {0}")]
    Database(#[from] DbError),
    /// A file or folder cannot be had.
    #[error("failed to {action} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A copy that was checked and is on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Pages that are copied.
    pub pages: u64,
    /// Pages in all.
    pub total: u64,
}

/// Copies the database into the folder `into`, which is made if need be, under its own name. The copy is a file by
/// itself, without a write-ahead log.
///
/// # Errors
///
/// [`BackupError`] by reaction. Then there is no file of that name, unless there was one before.
pub async fn backup(
    database: &Database,
    into: &Path,
    progress: impl Fn(Progress) + Send + 'static,
) -> Result<Copy, BackupError> {
    let Database::Sqlite(file) = database else { return Err(BackupError::NotSqlite) };
    let (file, into) = (file.clone(), into.to_owned());
    tokio::task::spawn_blocking(move || copy(&file, &into, progress)).await.unwrap_or_else(|error| {
        let path = PathBuf::new();
        Err(BackupError::Io { action: "run the thread that copies", path, source: io::Error::other(error) })
    })
}

/// A file that is removed unless it was given its name.
struct Partial {
    path: PathBuf,
    is_kept: bool,
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_kept {
            let _it_is_only_waste = std::fs::remove_file(&self.path);
        }
    }
}

fn copy(file: &Sqlite, into: &Path, progress: impl Fn(Progress)) -> Result<Copy, BackupError> {
    // The file stays ours until the copy is done, even if the database is closed meanwhile.
    let _member = file.member()?;
    make_folder(into)?;
    let name = file.path().file_name().unwrap_or_default();
    let path = into.join(name);
    if path.symlink_metadata().is_ok() {
        return Err(BackupError::Exists(path));
    }
    let mut partial_name = name.to_owned();
    partial_name.push(format!(".{}.partial", std::process::id()));
    let partial = Partial { path: into.join(partial_name), is_kept: false };
    // SQLite would write into a file that is there.
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial.path);
    drop(created.map_err(io_error("create", &partial.path))?);
    copy_pages(file.path(), &partial.path, progress)?;
    check(&partial.path)?;
    let copied = File::open(&partial.path).map_err(io_error("open", &partial.path))?;
    copied.sync_all().map_err(io_error("sync", &partial.path))?;
    let bytes = copied.metadata().map_err(io_error("examine", &partial.path))?.len();
    give_name(partial, &path)?;
    File::open(into).and_then(|folder| folder.sync_all()).map_err(io_error("sync", into))?;
    Ok(Copy { path, bytes })
}

fn make_folder(folder: &Path) -> Result<(), BackupError> {
    match std::fs::create_dir(folder) {
        Ok(()) => Ok(()),
        Err(_) if folder.is_dir() => Ok(()),
        Err(source) => Err(io_error("make the folder", folder)(source)),
    }
}

fn copy_pages(from: &Path, to: &Path, progress: impl Fn(Progress)) -> Result<(), DbError> {
    let failed = |what: &'static str| move |error: rusqlite::Error| failure(what, &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let from = Connection::open_with_flags(from, flags).map_err(failed("open"))?;
    let mut to = Connection::open_with_flags(to, flags).map_err(failed("open the copy"))?;
    // It is nobody's yet, and is synced as a whole at the end.
    to.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;").map_err(failed("set up the copy"))?;
    // One transaction, so that the pages are those of one moment and the copy does not begin anew with each commit.
    from.execute_batch("PRAGMA query_only = ON; BEGIN; SELECT count(*) FROM sqlite_schema;")
        .map_err(failed("begin to read"))?;
    let backup = Backup::new(&from, &mut to).map_err(failed("begin the copy"))?;
    loop {
        let step = backup.step(PAGES_PER_STEP).map_err(failed("copy"))?;
        let done = backup.progress();
        let [remaining, total] = [done.remaining, done.pagecount].map(|pages| u64::try_from(pages).unwrap_or(0));
        progress(Progress { pages: total.saturating_sub(remaining), total });
        match step {
            StepResult::Done => break,
            StepResult::More => {}
            // Nobody else has the copy, and readers of a write-ahead log are never kept waiting.
            _ => return Err(DbError::new(database_core::Class::Locked, "somebody else has a lock on the copy")),
        }
    }
    drop(backup);
    // The pages say that there is a write-ahead log; this copy has none.
    to.execute_batch("PRAGMA journal_mode = DELETE;").map_err(failed("finish the copy"))?;
    to.close().map_err(|(_, error)| failure("close the copy", &error))
}

fn check(path: &Path) -> Result<(), BackupError> {
    // Damage ends the check itself where it is worst.
    let failed = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => BackupError::Damaged(vec![error.to_string()]),
        _ => failure("check the copy", &error).into(),
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let copy = Connection::open_with_flags(path, flags).map_err(failed)?;
    let findings: Vec<String> = {
        let mut statement = copy.prepare(&format!("PRAGMA integrity_check({FINDINGS_MAX})")).map_err(failed)?;
        let rows = statement.query_map([], |row| row.get(0)).map_err(failed)?;
        rows.collect::<Result<_, _>>().map_err(failed)?
    };
    match &findings[..] {
        [only] if only == "ok" => Ok(()),
        _ => Err(BackupError::Damaged(findings)),
    }
}

/// In one step, and only if there is nothing of that name.
fn give_name(mut partial: Partial, path: &Path) -> Result<(), BackupError> {
    #[cfg(target_os = "linux")]
    let named = {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        let renamed = renameat_with(CWD, &partial.path, CWD, path, RenameFlags::NOREPLACE);
        partial.is_kept = renamed.is_ok();
        renamed.map_err(io::Error::from)
    };
    // The other name goes when the value is dropped.
    #[cfg(not(target_os = "linux"))]
    let named = std::fs::hard_link(&partial.path, path);
    match named {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(BackupError::Exists(path.to_owned())),
        Err(source) => Err(io_error("name the copy", path)(source)),
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    let path = path.to_owned();
    move |source| BackupError::Io { action, path, source }
}
