//! A quota of processor time for a process: a group of its own in the first version of control groups, or the second.
//!
//! Owns: the groups it has made; all are removed, also after a signal to the benchmark.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::results::Throttled;

/// Length of a period in microseconds.
pub const PERIOD_US: u64 = 10_000;
/// Processor time in a period in microseconds.
pub const QUOTA_US: u64 = 1_000;
/// How long a group is awaited to be empty, when its process has been killed.
const REMOVE_MAX: Duration = Duration::from_secs(5);
const REMOVE_INTERVAL: Duration = Duration::from_millis(2);
/// Begins the name of every group; the id of the benchmark's process follows.
const GROUP_PREFIX: &str = "bench-tubes-";

/// Groups that are to be removed.
static GROUPS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn groups() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes every group; the processes in them have been killed. The list stays locked: no group may be made any more.
pub fn remove_all() {
    let groups = groups();
    for path in groups.iter() {
        let _ = remove(path);
    }
    std::mem::forget(groups);
}

/// Which control groups the system has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// `cpu.cfs_quota_us`.
    One,
    /// `cpu.max`.
    Two,
}

/// Where groups can be made.
#[derive(Debug)]
pub struct Quotas {
    version: Version,
    parent: PathBuf,
}

impl Quotas {
    /// Finds out how this system limits processor time, by trying it.
    ///
    /// # Errors
    ///
    /// It does not, or does not let this process; the message has a reason for each version.
    pub fn find() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")?;
        let own = fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
        let mut reasons = Vec::new();
        for version in [Version::One, Version::Two] {
            let name = if version == Version::One { "version 1" } else { "version 2" };
            match parent(version, &mounts, &own) {
                None => reasons.push(format!("{name}: no mounted hierarchy with the controller cpu")),
                Some(parent) => {
                    let quotas = Self { version, parent };
                    match quotas.try_out() {
                        Ok(()) => return Ok(quotas),
                        Err(error) => reasons.push(format!("{name}: {error:#}")),
                    }
                }
            }
        }
        bail!(
            "this system gives no process a quota of {QUOTA_US} µs in {PERIOD_US} µs ({}); as root on a machine whose \
             control groups are writable it does",
            reasons.join("; ")
        )
    }

    fn try_out(&self) -> Result<()> {
        for path in self.left_over()? {
            remove(&path).with_context(|| format!("remove {}", path.display()))?;
        }
        if self.version == Version::Two {
            let path = self.parent.join("cgroup.subtree_control");
            let enabled = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            if !enabled.split_whitespace().any(|controller| controller == "cpu") {
                write(&path, "+cpu")?;
            }
        }
        self.make("probe").map(drop)
    }

    /// Groups of benchmarks that have ended.
    ///
    /// # Errors
    ///
    /// The groups cannot be listed.
    pub fn left_over(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.parent).with_context(|| format!("list {}", self.parent.display()))? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(GROUP_PREFIX));
            let owner = name.and_then(|name| name.split('-').next()).and_then(|id| id.parse::<u32>().ok());
            if owner.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists()) {
                found.push(path);
            }
        }
        Ok(found)
    }

    /// Limits the process `id` with all its threads; `name` tells what it is.
    ///
    /// # Errors
    ///
    /// The system refuses, or the process has ended.
    pub fn limit(&self, name: &str, id: u32) -> Result<Group> {
        let group = self.make(name)?;
        write(&group.path.join("cgroup.procs"), &id.to_string())?;
        Ok(group)
    }

    fn make(&self, name: &str) -> Result<Group> {
        let path = self.parent.join(format!("{GROUP_PREFIX}{}-{name}", std::process::id()));
        // Made under the lock: a signal between the making and the insertion would miss it.
        let mut groups = groups();
        fs::create_dir(&path).with_context(|| format!("make the control group {}", path.display()))?;
        groups.insert(path.clone());
        drop(groups);
        let group = Group { path };
        match self.version {
            Version::One => {
                write(&group.path.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
                write(&group.path.join("cpu.cfs_quota_us"), &QUOTA_US.to_string())?;
            }
            Version::Two => write(&group.path.join("cpu.max"), &format!("{QUOTA_US} {PERIOD_US}"))?,
        }
        Ok(group)
    }
}

/// A control group with a quota; removed when dropped, which its process must not outlive.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
}

impl Group {
    /// Periods since the group was made.
    ///
    /// # Errors
    ///
    /// The system does not tell.
    pub fn throttled(&self) -> Result<Throttled> {
        let path = self.path.join("cpu.stat");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        throttled_in(&text).with_context(|| format!("{} has no periods: {text:?}", path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        match remove(&self.path) {
            Ok(()) => {
                groups().remove(&self.path);
            }
            // It stays in the list, and the next run removes it.
            Err(error) => eprintln!("the control group {} could not be removed: {error}", self.path.display()),
        }
    }
}

fn throttled_in(text: &str) -> Option<Throttled> {
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
    };
    Some(Throttled { periods: field("nr_periods")?, throttled: field("nr_throttled")? })
}

/// Removes a group as soon as it is empty.
fn remove(path: &Path) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) if begin.elapsed() < REMOVE_MAX => std::thread::sleep(REMOVE_INTERVAL),
            result => return result,
        }
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {text:?} to {}", path.display()))
}

/// The group of this process in the hierarchy of `version` that has the controller cpu.
fn parent(version: Version, mounts: &str, own: &str) -> Option<PathBuf> {
    let has_cpu = |list: &str| list.split(',').any(|word| word == "cpu");
    let root = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, folder, kind, options) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let is_it = match version {
            Version::One => kind == "cgroup" && has_cpu(options),
            Version::Two => kind == "cgroup2",
        };
        is_it.then(|| PathBuf::from(folder))
    })?;
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match version {
            Version::One => has_cpu(controllers),
            Version::Two => number == "0",
        };
        is_it.then(|| path.trim_start_matches('/'))
    });
    let group = root.join(path.unwrap_or_default());
    // In a container the path may be one that only its host sees.
    let group = if group.is_dir() { group } else { root };
    let has_it = version == Version::One || {
        let controllers = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
        controllers.split_whitespace().any(|controller| controller == "cpu")
    };
    has_it.then_some(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_statistics_are_read() {
        let one = "nr_periods 12\nnr_throttled 11\nthrottled_time 5\n";
        let two = "usage_usec 9\nnr_periods 12\nnr_throttled 11\nthrottled_usec 5\n";
        for text in [one, two] {
            assert_eq!(throttled_in(text), Some(Throttled { periods: 12, throttled: 11 }));
        }
        assert_eq!(throttled_in("usage_usec 9\n"), None);
    }

    #[test]
    fn the_hierarchy_is_found_by_its_controller() {
        let mounts = "cgroup /nowhere/cpuset cgroup rw,cpuset 0 0\ncgroup /nowhere/cpu cgroup rw,cpuacct,cpu 0 0\n";
        let own = "3:cpuset:/a\n1:cpuacct,cpu:/b\n";
        assert_eq!(parent(Version::One, mounts, own), Some(PathBuf::from("/nowhere/cpu")));
        assert_eq!(parent(Version::Two, mounts, own), None);
    }
}
