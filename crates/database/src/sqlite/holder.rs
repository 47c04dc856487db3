//! Who holds a lock file.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;

/// Bytes of a lock file that are read: a process number, a host's name, and a few words.
const NOTE_BYTES_MAX: u64 = 1024;

/// A process, as it called itself; parts are missing if it has not written them yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holder {
    /// Its number.
    pub pid: Option<u32>,
    /// Its host.
    pub host: Option<String>,
    /// What it is, such as `tenure daemon`.
    pub what: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.what.as_deref().unwrap_or("another process");
        match (self.pid, &self.host) {
            (Some(pid), Some(host)) => write!(formatter, "{what} (process {pid} on {host})"),
            (Some(pid), None) => write!(formatter, "{what} (process {pid})"),
            (None, _) => formatter.write_str(what),
        }
    }
}

impl Holder {
    /// This process.
    pub(super) fn this(what: &str) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { pid: Some(std::process::id()), host: Some(host), what: Some(what.replace('\n', " ")) }
    }

    /// Writes itself into a lock file that it holds. Only a hint for messages: nobody waits for it to reach the disk.
    pub(super) fn note(&self, file: &mut File) -> io::Result<()> {
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        let note = format!("{}\n{}\n{}\n", self.pid.unwrap_or(0), text(&self.host), text(&self.what));
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(note.as_bytes())
    }

    /// Who holds a lock file. What it wrote may be missing; its number is then looked for among the system's locks.
    pub(super) fn of(file: &mut File) -> Self {
        let mut note = String::new();
        let _unreadable_is_unknown = file.rewind().and_then(|()| file.take(NOTE_BYTES_MAX).read_to_string(&mut note));
        let mut lines = note.lines().map(str::to_owned).filter(|line| !line.is_empty());
        let pid = lines.next().and_then(|line| line.parse().ok()).or_else(|| pid_of_lock(file));
        Self { pid, host: lines.next(), what: lines.next() }
    }
}

/// The process that holds the `flock` of this file, by the system's list; `None` where there is no such list.
pub(super) fn pid_of_lock(file: &File) -> Option<u32> {
    let inode = file.metadata().ok()?.ino();
    pid_in(&std::fs::read_to_string("/proc/locks").ok()?, inode)
}

/// Lines are `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`; who waits has `->` before the kind. The device is not
/// compared: btrfs and overlays have another one there than stat(2) gives.
fn pid_in(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (_number, kind) = (words.next()?, words.next()?);
        let (_advisory, _write, pid, place) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let is_it = kind == "FLOCK" && place.rsplit(':').next()?.parse() == Ok(inode);
        // A holder outside this process namespace has the number 0.
        is_it.then(|| pid.parse().ok()).flatten().filter(|&pid| pid > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_among_the_systems_locks() {
        let locks = "1: POSIX  ADVISORY  READ 7 fe:00:42 128 128\n\
                     2: FLOCK  ADVISORY  WRITE 11 fe:00:42 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 12 fe:00:42 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 0 fe:00:43 0 EOF\n";
        assert_eq!(pid_in(locks, 42), Some(11));
        assert_eq!(pid_in(locks, 43), None);
        assert_eq!(pid_in(locks, 44), None);
    }

    #[test]
    fn a_holder_is_named_with_what_is_known() {
        let this = Holder::this("tenure daemon");
        assert!(this.to_string().starts_with(&format!("tenure daemon (process {} on ", std::process::id())), "{this}");
        assert_eq!(Holder { pid: Some(3), ..Holder::default() }.to_string(), "another process (process 3)");
        assert_eq!(Holder::default().to_string(), "another process");
    }
}
