//! The machine under the figures: what it is, which cores are used for what, and how busy others keep it.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

/// Descriptors a process needs for 10,000 idle connections and some more.
const DESCRIPTORS_MIN: u64 = 11_000;

/// The cores a run uses.
#[derive(Clone, Copy, Debug)]
pub struct Cores {
    /// All that this process was allowed to use when it chose.
    allowed: CpuSet,
    /// `None` leaves a server on all of them.
    server: Option<usize>,
    generator: usize,
}

impl Cores {
    /// Takes the first two cores this process may run on: one for the server, one for the generator. With one core
    /// both share it.
    ///
    /// # Errors
    ///
    /// The system does not tell which cores may be used.
    pub fn choose() -> Result<Self> {
        let allowed = rustix::thread::sched_getaffinity(None).context("read the allowed cores")?;
        let mut usable = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let server = usable.next().context("no core is allowed")?;
        Ok(Self { allowed, server: Some(server), generator: usable.next().unwrap_or(server) })
    }

    /// The same with the server on the generator's core.
    #[must_use]
    pub fn on_one(self) -> Self {
        Self { server: Some(self.generator), ..self }
    }

    /// The same with the server on all cores, the generator's among them.
    #[must_use]
    pub fn on_all(self) -> Self {
        Self { server: None, ..self }
    }

    /// Whether server and generator have to share one core.
    pub fn are_shared(self) -> bool {
        self.server == Some(self.generator)
    }

    /// Moves the calling thread to the server's core. A process started from there stays there.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn enter_server(self) -> Result<()> {
        match self.server {
            Some(core) => enter(core),
            None => rustix::thread::sched_setaffinity(None, &self.allowed).context("use all cores"),
        }
    }

    /// Moves the calling thread to the generator's core.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn enter_generator(self) -> Result<()> {
        enter(self.generator)
    }
}

fn enter(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("pin to core {core}"))
}

/// Raises the limit of open descriptors as far as it goes; servers started later inherit it.
///
/// # Errors
///
/// The hard limit is too low for the benchmark.
pub fn raise_descriptor_limit() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("raise the limit of open descriptors")?;
    let hard = limit.maximum.unwrap_or(u64::MAX);
    anyhow::ensure!(
        hard >= DESCRIPTORS_MIN,
        "at most {hard} open descriptors are allowed, {DESCRIPTORS_MIN} are needed"
    );
    Ok(())
}

/// What the report says about the machine. No name that would identify it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The processor's model.
    pub processor: String,
    /// How many cores it has.
    pub cores: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// The kernel's release.
    pub kernel: String,
}

impl Description {
    /// Describes this machine.
    ///
    /// # Errors
    ///
    /// `/proc` is not there.
    pub fn read() -> Result<Self> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").context("read /proc/cpuinfo")?;
        let meminfo = fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
        let field = |text: &str, name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().strip_prefix(':').map(|value| value.trim().to_owned()))
        };
        let memory = field(&meminfo, "MemTotal").unwrap_or_default();
        let memory_kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").context("read the kernel's release")?;
        // What a vendor appends names the machine's host more than its kernel.
        let kernel = kernel.trim().split('-').next().unwrap_or_default().to_owned();
        Ok(Self {
            processor: field(&cpuinfo, "model name").unwrap_or_else(|| "unknown processor".to_owned()),
            cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            memory_mib: memory_kib / 1024,
            kernel,
        })
    }
}

/// A reading of processor time, to tell how much of the machine others used in between.
#[derive(Clone, Copy, Debug)]
pub struct BusyTime {
    all: u64,
    idle: u64,
    own: u64,
}

impl BusyTime {
    /// Reads the clocks. Times of children count as own once they have ended.
    ///
    /// # Errors
    ///
    /// `/proc` is not there.
    pub fn read() -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
        let ticks: Vec<u64> = stat
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            // user, nice, system, idle, iowait, irq, softirq, steal; guest times are in user already.
            .take(8)
            .filter_map(|number| number.parse().ok())
            .collect();
        let own = fs::read_to_string("/proc/self/stat").context("read /proc/self/stat")?;
        let after_name = own.rsplit_once(')').map_or("", |(_, rest)| rest);
        let own = after_name.split_whitespace().skip(11).take(4).filter_map(|number| number.parse::<u64>().ok()).sum();
        Ok(Self { all: ticks.iter().sum(), idle: ticks.iter().skip(3).take(2).sum(), own })
    }

    /// The share of all cores' time since `earlier` that processes outside the benchmark used, 0 to 1.
    pub fn others_since(&self, earlier: &Self) -> f64 {
        let all = self.all.saturating_sub(earlier.all);
        let idle = self.idle.saturating_sub(earlier.idle);
        let own = self.own.saturating_sub(earlier.own);
        if all == 0 { 0.0 } else { all.saturating_sub(idle + own) as f64 / all as f64 }
    }
}

/// Today's date in UTC, written `YYYY-MM-DD`.
pub fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date_of_day(seconds / 86_400)
}

/// The date of the day number `days` since 1970-01-01.
fn date_of_day(days: u64) -> String {
    // Eras of 400 years that begin on the first of March, so that a leap day is the last day of its year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates_over_leap_years() {
        assert_eq!(date_of_day(0), "1970-01-01");
        assert_eq!(date_of_day(11_016), "2000-02-29");
        assert_eq!(date_of_day(11_017), "2000-03-01");
        assert_eq!(date_of_day(20_453), "2025-12-31");
    }
}
