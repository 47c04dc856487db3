//! Where a database file really is, and whether it may be there.
//!
//! Owns: the real path, the names of the lock files beside it, what makes a place unfit.
//! Never: opens or closes the database file. A close would drop the locks that SQLite holds on it in this process.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::OpenError;

/// A database file and what lies beside it. Two paths to the same file, by symbolic links or bind mounts of folders,
/// give lock files that are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The database, whether it exists or not.
    pub database: PathBuf,
    /// Locked by the one process that is the member, for life.
    pub member_lock: PathBuf,
    /// Locked for each write transaction.
    pub write_lock: PathBuf,
}

impl Place {
    /// Finds the file that `path` leads to. The folder must exist.
    ///
    /// # Errors
    ///
    /// [`OpenError::Unfit`] if the locks could not protect the file there; [`OpenError::Io`].
    pub fn find(path: &Path) -> Result<Self, OpenError> {
        let place = Self::beside(real_path(path)?);
        place.check()?;
        Ok(place)
    }

    fn beside(database: PathBuf) -> Self {
        let with = |ending: &str| {
            let mut name = OsString::from(&database);
            name.push(ending);
            PathBuf::from(name)
        };
        Self { member_lock: with(".member"), write_lock: with(".write"), database }
    }

    /// Refuses a file that can be reached in ways that do not meet the same locks. To be repeated when the lock is held:
    /// before that, the file may come and go.
    pub(super) fn check(&self) -> Result<(), OpenError> {
        let unfit = |what: String| OpenError::Unfit { database: self.database.clone(), what };
        let folder = self.database.parent().unwrap_or(Path::new("/"));
        if let Some(system) = network_file_system(folder).map_err(io_error("examine", folder))? {
            return Err(unfit(format!(
                "it is on a network file system ({system}), where locks do not protect it; use a local disk"
            )));
        }
        let metadata = match std::fs::symlink_metadata(&self.database) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(io_error("examine", &self.database)(source)),
        };
        if !metadata.is_file() {
            return Err(unfit("it is no regular file".to_owned()));
        }
        if metadata.nlink() > 1 {
            return Err(unfit(format!(
                "the file has {} names (hard links), and under another name it would not meet the same locks; \
                 keep one of them, or copy it",
                metadata.nlink()
            )));
        }
        if is_mount_point(&self.database).map_err(io_error("examine", &self.database))? {
            return Err(unfit(
                "the file itself is a mount point, and in its other folder it would not meet the same locks; \
                 mount the folder instead"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { action, path, source }
}

fn real_path(path: &Path) -> Result<PathBuf, OpenError> {
    match path.canonicalize() {
        Ok(real) => return Ok(real),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(io_error("find", path)(source)),
    }
    if path.is_symlink() {
        let what = "it is a symbolic link that leads nowhere".to_owned();
        return Err(OpenError::Unfit { database: path.to_owned(), what });
    }
    let Some(name) = path.file_name() else {
        let what = "it names a folder, not a file".to_owned();
        return Err(OpenError::Unfit { database: path.to_owned(), what });
    };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    Ok(folder.canonicalize().map_err(io_error("find the folder", folder))?.join(name))
}

/// Its name, if locks of one machine are not seen, or not reliably, by another one.
#[cfg(target_os = "linux")]
fn network_file_system(folder: &Path) -> io::Result<Option<&'static str>> {
    // `f_type` of statfs(2), from linux/magic.h and the file systems' own headers.
    let magic = rustix::fs::statfs(folder)?.f_type;
    #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "the numbers have 32 bits")]
    Ok(name_of_network_magic(magic as u32))
}

#[cfg(target_os = "linux")]
const fn name_of_network_magic(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x0000_6969 => "NFS",
        0x0000_517B | 0xFF53_4D42 | 0xFE53_4D42 => "SMB",
        0x00C3_6400 => "Ceph",
        0x5346_414F | 0x6B41_4653 => "AFS",
        0x0102_1997 => "9P",
        0x7375_7245 => "Coda",
        0x0000_564C => "NCP",
        0x0BD0_0BD0 => "Lustre",
        0x0116_1970 => "GFS2",
        0x7461_636F => "OCFS2",
        0x4750_4653 => "GPFS",
        0x1980_0202 => "Parallels",
        0x786F_4256 => "VirtualBox shared folder",
        0xBACB_ACBC => "VMware shared folder",
        _ => return None,
    })
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "the signature that Linux needs")]
fn network_file_system(_: &Path) -> io::Result<Option<&'static str>> {
    Ok(None)
}

#[cfg(target_os = "linux")]
fn is_mount_point(file: &Path) -> io::Result<bool> {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    match statx(CWD, file, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty()) {
        Ok(status) if status.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
            Ok(status.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
        }
        // Kernels before 5.8 do not say it; the table of mounts does.
        Ok(_) | Err(rustix::io::Errno::NOSYS) => {
            let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
            let file = file.to_string_lossy();
            Ok(mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|place| unescape(place) == file)))
        }
        Err(error) => Err(error.into()),
    }
}

/// Of the four characters that proc_pid_mountinfo(5) writes as octal numbers.
#[cfg(target_os = "linux")]
fn unescape(text: &str) -> String {
    text.replace(r"\040", " ").replace(r"\011", "\t").replace(r"\012", "\n").replace(r"\134", r"\")
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "the signature that Linux needs")]
fn is_mount_point(_: &Path) -> io::Result<bool> {
    Ok(false)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_number() {
        assert_eq!(name_of_network_magic(0x6969), Some("NFS"));
        for local in [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630] {
            assert_eq!(name_of_network_magic(local), None, "{local:x} is ext4, XFS, btrfs, tmpfs or overlay");
        }
    }

    #[test]
    fn names_in_the_table_of_mounts_are_read_back() {
        assert_eq!(unescape(r"/a\040b\134c"), r"/a b\c");
    }
}
