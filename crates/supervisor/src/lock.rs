//! Exclusive files: one supervisor for a server, one owner for a slot.
//!
//! Owns: taking such a lock, waiting for one, saying who holds it; the folder of the locks of a server without a log.
//! Never: steals a lock, or passes one on to a child.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

/// How long a new owner waits for its predecessor's lock, and a new supervisor for the locks of all slots.
pub const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Between two tries of a lock that is held.
const RETRY: Duration = Duration::from_millis(20);

/// Why a lock was not taken. The exit code is 10.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("{} is held by {}: it is in use", path.display(), holder.map_or("another process".into(), |pid| format!("process {pid}")))]
    Held {
        /// The file.
        path: PathBuf,
        /// The process, if it has said its number.
        holder: Option<u32>,
    },
    /// The folder belongs to somebody else, or others may write to it.
    #[error("{}: {what}", path.display())]
    Unsafe {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The file or folder cannot be had.
    #[error("failed to {action} {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A lock, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of the file `path`, which is made if need be, and writes this process's number into it. While
    /// another process has it, tries again for as long as `wait`.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub fn take(path: &Path, wait: Duration) -> Result<Lock, LockError> {
        let mut file = open(path)?;
        let mut waited = Duration::ZERO;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if waited < wait => {
                    std::thread::sleep(RETRY);
                    waited += RETRY;
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(LockError::Held { path: path.into(), holder: holder(&mut file) });
                }
                Err(TryLockError::Error(source)) => {
                    return Err(LockError::Io { path: path.into(), action: "lock", source });
                }
            }
        }
        // Only a hint for messages, so nobody waits for it to reach the disk.
        let written = file.set_len(0).and_then(|()| file.write_all(format!("{}\n", std::process::id()).as_bytes()));
        written.map_err(|source| LockError::Io { path: path.into(), action: "write", source })?;
        Ok(Lock { _file: file })
    }
}

fn open(path: &Path) -> Result<File, LockError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
        .map_err(|source| LockError::Io { path: path.into(), action: "open", source })
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Makes a folder for locks and sockets that only this account, and its group with `mode` 0750, can enter.
///
/// # Errors
///
/// It cannot be made, is no folder, belongs to another account, or others may write to it.
pub fn make_private_folder(path: &Path, mode: u32) -> Result<(), LockError> {
    match std::fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => return Err(LockError::Io { path: path.into(), action: "make", source }),
    }
    check_private_folder(path)
}

/// Checks that the folder is this account's and that nobody else can write to it.
///
/// # Errors
///
/// As [`make_private_folder`].
pub fn check_private_folder(path: &Path) -> Result<(), LockError> {
    let found = std::fs::symlink_metadata(path).map_err(|source| LockError::Io {
        path: path.into(),
        action: "look at",
        source,
    })?;
    let wrong = |what: String| Err(LockError::Unsafe { path: path.into(), what });
    let own = rustix::process::geteuid().as_raw();
    if !found.is_dir() {
        wrong("it is no folder".into())
    } else if found.uid() != own {
        wrong(format!("it belongs to account {}, and this process is {own}", found.uid()))
    } else if found.mode() & 0o022 != 0 {
        wrong("other accounts may write to it".into())
    } else {
        Ok(())
    }
}

/// The folder of the locks of a server without a log: `<runtime dir>/tubes-<hash of the listen addresses>`. So servers on
/// different addresses do not meet, and two on the same do.
#[must_use]
pub fn memory_only_folder(runtime_dir: &Path, addresses: &[String]) -> PathBuf {
    let mut sorted = addresses.to_vec();
    sorted.sort();
    runtime_dir.join(format!("tubes-{:016x}", xxh3_64(sorted.join("\n").as_bytes())))
}

/// The lock of an owner's slot in the folder of [`memory_only_folder`].
#[must_use]
pub fn memory_only_slot(folder: &Path, slot: u16) -> PathBuf {
    folder.join(format!("slot-{slot}.lock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("supervisor-lock-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            make_private_folder(&path, 0o700).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_second_holder_is_refused_and_told_who_the_first_is() {
        let folder = Folder::new("second");
        let path = memory_only_slot(&folder.0, 3);
        let first = Lock::take(&path, Duration::ZERO).unwrap();
        let refused = Lock::take(&path, Duration::ZERO).unwrap_err();
        assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
        drop(first);
        Lock::take(&path, Duration::ZERO).unwrap();
    }

    #[test]
    fn a_lock_behind_a_symbolic_link_is_refused() {
        let folder = Folder::new("link");
        let path = folder.0.join("link");
        std::os::unix::fs::symlink(folder.0.join("elsewhere"), &path).unwrap();
        assert!(matches!(Lock::take(&path, Duration::ZERO), Err(LockError::Io { .. })));
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = Folder::new("open");
        std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(make_private_folder(&folder.0, 0o700), Err(LockError::Unsafe { .. })));
    }

    #[test]
    fn servers_on_different_addresses_do_not_meet() {
        let folder = |addresses: &[&str]| {
            let addresses: Vec<String> = addresses.iter().map(|&address| address.to_owned()).collect();
            memory_only_folder(Path::new("/run"), &addresses)
        };
        assert_ne!(folder(&["127.0.0.1:1"]), folder(&["127.0.0.1:2"]));
        assert_eq!(folder(&["a", "b"]), folder(&["b", "a"]));
    }
}
