//! What the log asks of a disk, and the real disk.
//!
//! Owns: [`Vfs`], the calls on the one directory of a slot, and [`DiskVfs`], which carries them out below a directory
//! descriptor. The simulator has an implementation of its own.
//! Never: knows what the bytes mean, retries a failed write or sync, or follows a symbolic link.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::platform;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only to be read.
    Read,
    /// To be read and written.
    ReadWrite,
}

/// One directory of log segments.
///
/// A handle is cheap to clone, and clones may be used from another thread: syncs, renames and removals run there.
pub trait Vfs: Clone + Send + 'static {
    /// An open file of the directory.
    type File: VfsFile;

    /// Names of all members, in no particular order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Creates a file that must not exist, for reading and writing.
    fn create_new(&self, name: &str) -> io::Result<Self::File>;

    /// Opens an existing regular file.
    fn open(&self, name: &str, access: Access) -> io::Result<Self::File>;

    /// Gives a file another name, replacing what has that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a name.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Returns once every creation, renaming and removal so far would survive a power loss.
    fn sync_dir(&self) -> io::Result<()>;

    /// The name for messages, with the path of the directory where there is one.
    fn display(&self, name: &str) -> String;
}

/// An open file; clones share it.
pub trait VfsFile: Clone + Send + 'static {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Extends an empty file to `bytes` bytes of zeros whose space is set aside, so that writing into them needs none.
    fn allocate(&self, bytes: u64) -> io::Result<()>;

    /// Writes all of `data` at `offset`. After an error any part of it may have been written.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Fills `buffer` from `offset` on and returns how much of it there was: less only at the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Returns once all bytes written before the call would survive a power loss.
    fn sync_data(&self) -> io::Result<()>;

    /// Cuts the file to `bytes` bytes.
    fn truncate(&self, bytes: u64) -> io::Result<()>;

    /// Asks for clean cached pages to be dropped, so that the next read sees what the disk holds.
    fn drop_cache(&self) -> io::Result<()>;
}

/// Reads a whole file into `buffer`, whose old contents are lost and whose capacity is reused.
pub(crate) fn read_whole<F: VfsFile>(file: &F, buffer: &mut Vec<u8>) -> io::Result<()> {
    let bytes = usize::try_from(file.len()?).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    // Only growth is filled with zeros: segments are of one size, so in general this writes nothing.
    buffer.resize(bytes, 0);
    let read = file.read_at(0, buffer)?;
    buffer.truncate(read);
    Ok(())
}

/// A directory of the real file system.
///
/// Every member is reached through the directory's descriptor, must be a regular file with one name, and belong to the
/// account of this process (root may use what belongs to others). Files are created with mode 0600.
#[derive(Debug, Clone)]
pub struct DiskVfs {
    directory: Arc<OwnedFd>,
    path: PathBuf,
}

impl DiskVfs {
    /// Opens the directory at `path`, whose last part must not be a symbolic link.
    ///
    /// # Errors
    ///
    /// It is missing, no directory, a symbolic link, or belongs to another account.
    pub fn open(path: &Path) -> io::Result<DiskVfs> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        DiskVfs::from_directory(rustix::fs::open(path, flags, Mode::empty())?, path.to_path_buf())
    }

    /// Opens the member directory `name`, which must not be a symbolic link.
    ///
    /// # Errors
    ///
    /// As [`DiskVfs::open`].
    pub fn open_directory(&self, name: &str) -> io::Result<DiskVfs> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&*self.directory, name, flags, Mode::empty())?;
        DiskVfs::from_directory(directory, self.path.join(name))
    }

    /// Makes the member directory `name` with mode 0700 unless it is there, and opens it.
    ///
    /// # Errors
    ///
    /// As [`DiskVfs::open`], or it cannot be made.
    pub fn make_directory(&self, name: &str) -> io::Result<DiskVfs> {
        match rustix::fs::mkdirat(&*self.directory, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => self.sync_dir()?,
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        self.open_directory(name)
    }

    /// Removes the empty member directory `name`.
    pub(crate) fn remove_directory(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&*self.directory, name, AtFlags::REMOVEDIR)?)
    }

    /// Opens the member `name` for reading and writing, or creates it.
    pub(crate) fn open_or_create(&self, name: &str) -> io::Result<DiskFile> {
        self.open_file(name, OFlags::RDWR | OFlags::CREATE)
    }

    /// Where the directory is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn from_directory(directory: OwnedFd, path: PathBuf) -> io::Result<DiskVfs> {
        let stat = rustix::fs::fstat(&directory)?;
        check_owner(stat.st_uid)?;
        Ok(DiskVfs { directory: Arc::new(directory), path })
    }

    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<DiskFile> {
        // NONBLOCK: opening a fifo that somebody put here must not hang; it is refused below.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::openat(&*self.directory, name, flags, Mode::from_raw_mode(0o600)).map_err(|errno| {
            if errno == rustix::io::Errno::LOOP || errno == rustix::io::Errno::MLINK {
                io::Error::other("refused: it is a symbolic link")
            } else {
                errno.into()
            }
        })?;
        let file = File::from(fd);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("refused: it is not a regular file"));
        }
        if metadata.nlink() > 1 {
            return Err(io::Error::other("refused: it has a second name (hard link)"));
        }
        check_owner(metadata.uid())?;
        Ok(DiskFile { file: Arc::new(file) })
    }
}

fn check_owner(uid: u32) -> io::Result<()> {
    let own = rustix::process::geteuid();
    if own.is_root() || own.as_raw() == uid {
        return Ok(());
    }
    Err(io::Error::other(format!("refused: it belongs to user id {uid}, this process runs as {}", own.as_raw())))
}

impl Vfs for DiskVfs {
    type File = DiskFile;

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&*self.directory)? {
            let entry = entry?;
            // A name that is not text is none of ours.
            if let Ok(name) = entry.file_name().to_str()
                && name != "."
                && name != ".."
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    fn create_new(&self, name: &str) -> io::Result<DiskFile> {
        self.open_file(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    fn open(&self, name: &str, access: Access) -> io::Result<DiskFile> {
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR,
        };
        self.open_file(name, flags)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&*self.directory, from, &*self.directory, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&*self.directory, name, AtFlags::empty())?)
    }

    fn sync_dir(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&*self.directory)?)
    }

    fn display(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }
}

/// An open file of a [`DiskVfs`].
#[derive(Debug, Clone)]
pub struct DiskFile {
    file: Arc<File>,
}

impl DiskFile {
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl VfsFile for DiskFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        if platform::allocate(&self.file, bytes)? {
            return Ok(());
        }
        write_zeros(&self.file, bytes)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn drop_cache(&self) -> io::Result<()> {
        platform::drop_cache(&self.file)
    }
}

/// Sets space aside where the file system cannot do it itself: by using it once.
fn write_zeros(file: &File, bytes: u64) -> io::Result<()> {
    const CHUNK_BYTES: usize = 256 * 1024;
    let zeros = vec![0_u8; CHUNK_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let length = usize::try_from(bytes - offset).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
        file.write_all_at(&zeros[..length], offset)?;
        offset += length as u64;
    }
    file.sync_data()
}
