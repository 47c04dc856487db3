//! The data directory: who it belongs to, how it is divided, and who may write it.
//!
//! Owns: `manifest.toml`, the locks, and the generation of each slot.
//! Never: reads or writes a log, or writes anything before it knows that the directory is meant for this start.
//!
//! ```text
//! DIR/manifest.toml              what the directory is (see [`Manifest`])
//! DIR/lock                       held by the one process of single mode, or by the supervisor
//! DIR/logs-1/slot-K/lock         held by the owner of slot K
//! DIR/logs-1/slot-K/generation   one decimal number, raised before each start of that owner
//! DIR/logs-1/slot-K/0000000001.log …
//! ```
//!
//! Files are replaced by writing a temporary one, syncing it, renaming it and syncing the directory.

use std::fmt;
use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::manifest::{Manifest, Topology};
use crate::recover::highest_generation;
use crate::vfs::{Access, DiskFile, DiskVfs, Vfs, VfsFile};

const MANIFEST: &str = "manifest.toml";
const LOCK: &str = "lock";
const GENERATION: &str = "generation";
/// A manifest is some 500 bytes; a file much larger is none.
const MANIFEST_BYTES_MAX: u64 = 64 * 1024;

/// Why a data directory is not opened.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// Another process has it.
    #[error("{file} is held by {holder}: this directory is in use")]
    Locked {
        /// Path of the lock.
        file: String,
        /// The process, if it has said its number.
        holder: Holder,
    },
    /// Another topology, a newer format, or another program's files.
    #[error("{file}: {what}")]
    Incompatible {
        /// Path of the manifest or directory.
        file: String,
        /// Both sides of the difference, and the command that helps.
        what: String,
    },
    /// A file or directory cannot be had.
    #[error("failed to {action} {file}: {source}")]
    Io {
        /// Path of the file.
        file: String,
        /// What was attempted.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl DirError {
    /// The exit code of a process that ends because of this.
    pub fn exit_code(&self) -> u8 {
        match self {
            DirError::Locked { .. } | DirError::Io { .. } => 10,
            DirError::Incompatible { .. } => 12,
        }
    }
}

/// Who holds a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder(pub Option<u32>);

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(formatter, "process {pid}"),
            None => formatter.write_str("another process"),
        }
    }
}

/// An open data directory, locked against every other process for as long as this value lives.
#[derive(Debug)]
pub struct DataDir {
    vfs: DiskVfs,
    manifest: Manifest,
    fingerprint: u64,
    _lock: File,
}

/// The directory of one slot, locked, with its generation raised.
#[derive(Debug)]
pub struct SlotDir {
    /// Where its log lies.
    pub vfs: DiskVfs,
    /// Which start of the slot this is, from 1.
    pub generation: u32,
    _lock: File,
}

/// Makes the directory `dir` with mode 0700 unless it is there. Its parent must exist.
///
/// # Errors
///
/// It cannot be made.
pub fn make(dir: &Path) -> Result<(), DirError> {
    use std::os::unix::fs::DirBuilderExt;
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(DirError::Io { file: dir.display().to_string(), action: "make the data directory", source })
        }
        _ => Ok(()),
    }
}

/// Opens the existing directory `dir` for one process with all tubes; an empty one becomes a data directory.
///
/// # Errors
///
/// As [`open`].
pub fn open_single(dir: &Path) -> Result<DataDir, DirError> {
    open(dir, Topology::Single)
}

/// Opens the existing directory `dir`; an empty one becomes a data directory.
///
/// # Errors
///
/// [`DirError`] by reaction. Nothing was written if it is [`DirError::Incompatible`].
pub fn open(dir: &Path, topology: Topology) -> Result<DataDir, DirError> {
    let vfs = open_directory(dir)?;
    // Twice: before anything is written, and again when nobody else can write.
    let found = read_manifest(&vfs)?;
    check(&vfs, dir, found.as_ref(), topology)?;
    let lock = take_lock(&vfs)?;
    let found = read_manifest(&vfs)?;
    check(&vfs, dir, found.as_ref(), topology)?;
    let (manifest, fingerprint) = match found {
        Some(found) => found,
        None => {
            let manifest = Manifest::fresh(draw_instance().map_err(io_error(&vfs, ".", "draw an id for"))?, topology);
            let text = manifest.to_text();
            replace(&vfs, MANIFEST, text.as_bytes()).map_err(io_error(&vfs, MANIFEST, "write"))?;
            (manifest, xxh3_64(text.as_bytes()))
        }
    };
    Ok(DataDir { vfs, manifest, fingerprint, _lock: lock })
}

/// The directory of a slot's log, which is made if need be, for an owner that holds the slot's lock; `logs` is what the
/// manifest says.
///
/// # Errors
///
/// It cannot be made or opened, or a repair of the slot was interrupted.
pub fn slot_directory(dir: &Path, logs: &str, slot: u16) -> Result<DiskVfs, DirError> {
    let vfs = open_directory(dir)?;
    let name = format!("slot-{slot}");
    let logs_directory = vfs.make_directory(logs).map_err(io_error(&vfs, logs, "open"))?;
    refuse_interrupted_repair(&logs_directory, slot)?;
    logs_directory.make_directory(&name).map_err(io_error(&logs_directory, &name, "open"))
}

/// Raises the generation of a slot before its owner is started, and returns it.
///
/// # Errors
///
/// It cannot be read or written.
pub fn raise_generation_of(slot: &DiskVfs) -> Result<u32, DirError> {
    raise_generation(slot)
}

/// Checks, without writing or locking anything, that `dir` could be opened with this topology.
///
/// # Errors
///
/// As [`open`].
pub fn refuse_other_topology(dir: &Path, topology: Topology) -> Result<(), DirError> {
    let vfs = open_directory(dir)?;
    check(&vfs, dir, read_manifest(&vfs)?.as_ref(), topology)
}

/// A data directory under construction: it gets its manifest last, and without one no start takes it for a queue.
#[derive(Debug)]
pub(crate) struct Importing {
    data: DataDir,
    text: String,
}

/// Locks the empty directory `dir` for an import into `topology`; ids below `next_id` are given already.
pub(crate) fn begin_import(dir: &Path, topology: Topology, next_id: u64) -> Result<Importing, DirError> {
    let vfs = open_directory(dir)?;
    let lock = take_lock(&vfs)?;
    let instance = draw_instance().map_err(io_error(&vfs, ".", "draw an id for"))?;
    let single_ids_below = if topology == Topology::Single { 0 } else { next_id };
    let manifest = Manifest { single_ids_below, ..Manifest::fresh(instance, topology) };
    let text = manifest.to_text();
    let fingerprint = xxh3_64(text.as_bytes());
    Ok(Importing { data: DataDir { vfs, manifest, fingerprint, _lock: lock }, text })
}

impl Importing {
    pub(crate) fn fingerprint(&self) -> u64 {
        self.data.fingerprint
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.data.manifest
    }

    /// The directory for the log of a slot.
    pub(crate) fn import_slot(&self, slot: u16) -> Result<DiskVfs, DirError> {
        Ok(self.data.lock_slot(slot)?.0)
    }

    /// Makes the directory a queue.
    pub(crate) fn finish_import(self) -> Result<(), DirError> {
        let vfs = &self.data.vfs;
        replace(vfs, MANIFEST, self.text.as_bytes()).map_err(io_error(vfs, MANIFEST, "write"))
    }
}

/// A data directory that is only read, with shared locks that are taken without writing.
#[derive(Debug)]
pub(crate) struct Reading {
    vfs: DiskVfs,
    pub(crate) manifest: Manifest,
    pub(crate) fingerprint: u64,
    _lock: Option<File>,
}

/// Opens the data directory `dir` for reading only; nobody may be writing it.
pub(crate) fn open_for_reading(dir: &Path) -> Result<Reading, DirError> {
    let vfs = open_directory(dir)?;
    let lock = share_lock(&vfs)?;
    let (manifest, fingerprint) = read_manifest(&vfs)?.ok_or_else(|| DirError::Incompatible {
        file: dir.display().to_string(),
        what: format!("it is no data directory: there is no {MANIFEST}"),
    })?;
    Ok(Reading { vfs, manifest, fingerprint, _lock: lock })
}

impl Reading {
    /// The directory of `slot`, if it was ever made.
    pub(crate) fn slot(&self, slot: u16) -> Result<Option<DiskVfs>, DirError> {
        let name = format!("slot-{slot}");
        let slot = self.vfs.open_directory(&self.manifest.logs).and_then(|logs| logs.open_directory(&name));
        match slot {
            Ok(slot) => Ok(Some(slot)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(io_error(&self.vfs, &name, "open")(source)),
        }
    }
}

/// Takes a lock that keeps writers away, if anybody ever took one here.
fn share_lock(vfs: &DiskVfs) -> Result<Option<File>, DirError> {
    let lock = match vfs.open(LOCK, Access::Read) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error(vfs, LOCK, "open")(source)),
    };
    let file = lock.file().try_clone().map_err(io_error(vfs, LOCK, "open"))?;
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(DirError::Locked { file: vfs.display(LOCK), holder: holder_of(&lock) }),
        Err(TryLockError::Error(source)) => Err(io_error(vfs, LOCK, "lock")(source)),
    }
}

fn holder_of(lock: &DiskFile) -> Holder {
    let text = read_small(lock, 32).unwrap_or_default();
    Holder(std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()))
}

/// Name of the directory in which a repair of `slot` builds the fresh log.
pub(crate) fn repairing_name(slot: u16) -> String {
    format!("slot-{slot}.repairing")
}

/// Opens the existing data directory `dir` whatever its topology, locked, for a repair.
///
/// # Errors
///
/// As [`open`]; a directory without a manifest is [`DirError::Incompatible`].
pub fn open_existing(dir: &Path) -> Result<DataDir, DirError> {
    let vfs = open_directory(dir)?;
    let missing = || DirError::Incompatible {
        file: dir.display().to_string(),
        what: format!("it is no data directory: there is no {MANIFEST}"),
    };
    read_manifest(&vfs)?.ok_or_else(missing)?;
    let lock = take_lock(&vfs)?;
    let (manifest, fingerprint) = read_manifest(&vfs)?.ok_or_else(missing)?;
    Ok(DataDir { vfs, manifest, fingerprint, _lock: lock })
}

impl DataDir {
    /// What the directory is.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// xxh3_64 of the manifest's bytes, which every segment carries.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Locks the directory of `slot`, which is made if need be, and raises its generation.
    ///
    /// # Errors
    ///
    /// [`DirError`] by reaction.
    pub fn open_slot(&self, slot: u16) -> Result<SlotDir, DirError> {
        let (vfs, lock) = self.lock_slot(slot)?;
        let generation = raise_generation(&vfs)?;
        Ok(SlotDir { vfs, generation, _lock: lock })
    }

    /// Makes `manifest` what the directory is, in one step.
    pub(crate) fn replace_manifest(&mut self, manifest: Manifest) -> Result<(), DirError> {
        let text = manifest.to_text();
        replace(&self.vfs, MANIFEST, text.as_bytes()).map_err(io_error(&self.vfs, MANIFEST, "replace"))?;
        self.fingerprint = xxh3_64(text.as_bytes());
        self.manifest = manifest;
        Ok(())
    }

    /// The directory itself.
    pub(crate) fn vfs(&self) -> &DiskVfs {
        &self.vfs
    }

    /// The directory of all slots.
    pub(crate) fn logs(&self) -> Result<DiskVfs, DirError> {
        let logs = &self.manifest.logs;
        self.vfs.make_directory(logs).map_err(io_error(&self.vfs, logs, "open"))
    }

    /// Locks the directory of `slot`, which is made if need be.
    pub(crate) fn lock_slot(&self, slot: u16) -> Result<(DiskVfs, File), DirError> {
        let logs = self.logs()?;
        let name = format!("slot-{slot}");
        refuse_interrupted_repair(&logs, slot)?;
        let vfs = logs.make_directory(&name).map_err(io_error(&logs, &name, "open"))?;
        let lock = take_lock(&vfs)?;
        Ok((vfs, lock))
    }
}

/// Between its two renamings a repair leaves no directory of the slot; an empty one must not be made in its place.
fn refuse_interrupted_repair(logs: &DiskVfs, slot: u16) -> Result<(), DirError> {
    let repairing = repairing_name(slot);
    if logs.open_directory(&repairing).is_ok() && logs.open_directory(&format!("slot-{slot}")).is_err() {
        return Err(DirError::Incompatible {
            file: logs.display(&repairing),
            what: "a repair of this slot was interrupted; `tenure tubes repair` finishes it".to_owned(),
        });
    }
    Ok(())
}

pub(crate) fn io_error<'a>(
    vfs: &'a DiskVfs,
    name: &'a str,
    action: &'static str,
) -> impl FnOnce(io::Error) -> DirError + 'a {
    move |source| DirError::Io { file: vfs.display(name), action, source }
}

fn open_directory(dir: &Path) -> Result<DiskVfs, DirError> {
    // The directory itself may be reached through a link: only its members are refused as links.
    let real = dir.canonicalize().and_then(|path| DiskVfs::open(&path));
    real.map_err(|source| DirError::Io { file: dir.display().to_string(), action: "open the data directory", source })
}

fn read_manifest(vfs: &DiskVfs) -> Result<Option<(Manifest, u64)>, DirError> {
    let file = match vfs.open(MANIFEST, Access::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error(vfs, MANIFEST, "open")(source)),
    };
    let bytes = read_small(&file, MANIFEST_BYTES_MAX).map_err(io_error(vfs, MANIFEST, "read"))?;
    let refused = |what| DirError::Incompatible { file: vfs.display(MANIFEST), what };
    let text = std::str::from_utf8(&bytes).map_err(|_| refused("it is no manifest: it is not text".to_owned()))?;
    let manifest = Manifest::from_text(text).map_err(refused)?;
    Ok(Some((manifest, xxh3_64(&bytes))))
}

/// Refuses a directory that is not meant for such a start.
fn check(vfs: &DiskVfs, dir: &Path, found: Option<&(Manifest, u64)>, wanted: Topology) -> Result<(), DirError> {
    let dir = dir.display();
    if let Some((manifest, _)) = found {
        let found = manifest.topology();
        if found == wanted {
            return Ok(());
        }
        let target = match wanted {
            Topology::Single => "--single".to_owned(),
            Topology::Multi(owners) => format!("--owners {owners}"),
        };
        return Err(DirError::Incompatible {
            file: vfs.display(MANIFEST),
            what: format!(
                "this directory is divided for {found}, and this start asks for {wanted}; `tenure tubes reshard {dir} \
                 {target}` converts it"
            ),
        });
    }
    let names = vfs.list().map_err(io_error(vfs, ".", "list"))?;
    if names.iter().any(|name| name.starts_with("binlog.")) {
        return Err(DirError::Incompatible {
            file: dir.to_string(),
            what: format!(
                "it holds beanstalkd's files and no {MANIFEST}; `tenure import beanstalkd {dir} --to NEW-DIRECTORY` \
                 takes their jobs over"
            ),
        });
    }
    if names.iter().any(|name| name.starts_with("logs-")) {
        return Err(DirError::Incompatible {
            file: dir.to_string(),
            what: format!("it holds logs, but their {MANIFEST} is missing"),
        });
    }
    Ok(())
}

/// Takes the lock of a directory and writes our process number into it.
fn take_lock(vfs: &DiskVfs) -> Result<File, DirError> {
    let lock = vfs.open_or_create(LOCK).map_err(io_error(vfs, LOCK, "open"))?;
    let file = lock.file().try_clone().map_err(io_error(vfs, LOCK, "open"))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(DirError::Locked { file: vfs.display(LOCK), holder: holder_of(&lock) });
        }
        Err(TryLockError::Error(source)) => return Err(io_error(vfs, LOCK, "lock")(source)),
    }
    // Only a hint for messages, so nobody waits for it to reach the disk.
    let pid = format!("{}\n", std::process::id());
    lock.truncate(0).and_then(|()| lock.write_at(0, pid.as_bytes())).map_err(io_error(vfs, LOCK, "write"))?;
    Ok(file)
}

/// The generation of the last start of a slot; `None` if it is lost or unreadable.
pub(crate) fn stored_generation(vfs: &DiskVfs) -> Result<Option<u32>, DirError> {
    match vfs.open(GENERATION, Access::Read) {
        Ok(file) => {
            let text = read_small(&file, 32).map_err(io_error(vfs, GENERATION, "read"))?;
            Ok(std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(io_error(vfs, GENERATION, "open")(source)),
    }
}

/// Raises the generation of a slot, on disk, and returns it.
fn raise_generation(vfs: &DiskVfs) -> Result<u32, DirError> {
    // The log knows too: the file may be lost, or older than the log if it comes from a backup.
    let logged = highest_generation(vfs).map_err(io_error(vfs, GENERATION, "find the last generation for"))?;
    let last = stored_generation(vfs)?.unwrap_or(0).max(logged);
    let next = last
        .checked_add(1)
        .ok_or_else(|| io_error(vfs, GENERATION, "raise")(io::Error::other("it has reached its largest value")))?;
    write_generation(vfs, next).map_err(io_error(vfs, GENERATION, "write"))?;
    Ok(next)
}

pub(crate) fn write_generation(vfs: &DiskVfs, generation: u32) -> io::Result<()> {
    replace(vfs, GENERATION, format!("{generation}\n").as_bytes())
}

/// Replaces a small file so that after a crash either the old or the new one is there, whole.
fn replace(vfs: &DiskVfs, name: &str, contents: &[u8]) -> io::Result<()> {
    let temporary = format!("{name}.tmp");
    let file = vfs.open_or_create(&temporary)?;
    file.truncate(0)?;
    file.write_at(0, contents)?;
    file.sync_data()?;
    vfs.rename(&temporary, name)?;
    vfs.sync_dir()
}

fn read_small<F: VfsFile>(file: &F, bytes_max: u64) -> io::Result<Vec<u8>> {
    let bytes = file.len()?;
    if bytes > bytes_max {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    let mut buffer = vec![0; usize::try_from(bytes).expect("small files are small")];
    let read = file.read_at(0, &mut buffer)?;
    buffer.truncate(read);
    Ok(buffer)
}

/// Draws 16 hex digits that begin with a letter other than `e`: such a word is no number in any notation, with or
/// without an exponent.
pub fn draw_instance() -> io::Result<String> {
    use std::io::Read;
    const FIRST: [char; 5] = ['a', 'b', 'c', 'd', 'f'];
    let mut random = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let drawn = u64::from_le_bytes(random);
    let first = FIRST[usize::try_from(drawn >> 60).expect("four bits") % FIRST.len()];
    Ok(format!("{first}{:015x}", drawn & 0x0fff_ffff_ffff_ffff))
}

/// The id of this run of the machine; all zeros where the system has none, which never equals a run before.
pub fn boot_id() -> [u8; 16] {
    crate::platform::boot_id().unwrap_or([0; 16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_never_readable_as_a_number() {
        for _ in 0..200 {
            let instance = draw_instance().unwrap();
            assert_eq!(instance.len(), 16);
            assert!(instance.bytes().all(|byte| byte.is_ascii_hexdigit()));
            assert!(instance.parse::<f64>().is_err() && instance.parse::<u64>().is_err());
            assert!(instance.starts_with(|first: char| first.is_ascii_alphabetic() && first != 'e'));
        }
    }
}
