//! One member per database file.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::OpenError;
use super::holder::Holder;
use super::place::{Place, io_error};

/// Times that a lock file is opened anew because it was replaced meanwhile. Nobody should do that even once.
const REPLACED_MAX: usize = 8;

/// The lock of the member, until it is dropped or the process ends. It is taken before the database is opened.
#[derive(Debug)]
pub(super) struct MemberLock {
    file: File,
}

impl Drop for MemberLock {
    fn drop(&mut self) {
        // Closing is not enough: a child that is just being started has the file open until it becomes another program.
        let _ = self.file.unlock();
    }
}

impl MemberLock {
    /// Takes the lock, or says who has it. `what` names this process to others.
    pub(super) fn take(place: &Place, what: &str) -> Result<Self, OpenError> {
        let path = &place.member_lock;
        for _ in 0..REPLACED_MAX {
            let mut file = open_lock(path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(OpenError::Held { database: place.database.clone(), holder: Holder::of(&mut file) });
                }
                Err(TryLockError::Error(source)) => return Err(io_error("lock", path)(source)),
            }
            if !is_still(path, &file)? {
                continue;
            }
            place.check()?;
            Holder::this(what).note(&mut file).map_err(io_error("write", path))?;
            return Ok(Self { file });
        }
        let what = format!("{} is replaced again and again by somebody", path.display());
        Err(OpenError::Unfit { database: place.database.clone(), what })
    }
}

/// Opens a lock file, which is made if need be and never removed. Not inherited by children, as all files of `std`.
pub(super) fn open_lock(path: &Path) -> Result<File, OpenError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(io_error("open", path))
}

/// Whether the name still leads to the file: a lock on a file without a name protects nothing.
fn is_still(path: &Path, file: &File) -> Result<bool, OpenError> {
    let of = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let named = match std::fs::metadata(path) {
        Ok(metadata) => of(metadata),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(io_error("examine", path)(source)),
    };
    Ok(named == of(file.metadata().map_err(io_error("examine", path))?))
}
