//! Kills of single processes of a server of several.
//!
//! Owns: which process is next, and the wait for its successor.
//! Never: signals a process by its number: the status socket tells who has it, twice, and in between it is pinned by a
//! process descriptor.

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::path::Path;
use std::time::{Duration, Instant};
use supervisor::rules::Condition;
use supervisor::{ProcessStatus, Slot};

/// What a server must be told so that kills in quick succession are no failed slot.
pub(crate) const LIMITS: [&str; 4] = ["--restart-limit", "1000000/30", "--restart-delay", "10ms"];
/// Longest time until a successor is ready, recovery included.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// The flags of a server with so many processes.
pub(crate) fn flags(owners: u16, frontends: u16) -> Vec<String> {
    let topology = ["--owners".into(), owners.to_string(), "--frontends".into(), frontends.to_string()];
    topology.into_iter().chain(LIMITS.map(str::to_owned)).collect()
}

/// Chooses who is killed, repeatably by a seed.
#[derive(Debug)]
pub(crate) struct Victims(super::work::Random);

impl Victims {
    pub(crate) fn new(seed: u64) -> Victims {
        Victims(super::work::Random(!seed))
    }

    /// Kills a process of the server at the status socket, whatever it is doing, and waits for its successor; says
    /// whom, and how long that took.
    pub(crate) fn kill_one(&mut self, socket: &Path) -> anyhow::Result<String> {
        let processes = until("every slot is ready", socket, |processes| {
            processes.iter().all(|process| process.condition == Condition::Ready).then(|| processes.to_vec())
        })?;
        let at = usize::try_from(self.0.below(processes.len() as u64))?;
        let victim = processes.get(at).context("a server without processes")?;
        let place = Slot { role: victim.role, slot: victim.slot };
        kill(socket, place, victim)?;
        let began = Instant::now();
        let generation = until("the successor is ready", socket, |processes| {
            let next = processes.iter().find(|process| process.role == place.role && process.slot == place.slot)?;
            let is_next = next.generation > victim.generation && next.condition == Condition::Ready;
            is_next.then_some(next.generation)
        })?;
        Ok(format!("{place}; generation {generation} was ready {} ms later", began.elapsed().as_millis()))
    }
}

fn kill(socket: &Path, place: Slot, victim: &ProcessStatus) -> anyhow::Result<()> {
    let number = victim.pid.context("a ready slot without a process")?;
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw).context("no process number")?;
    let descriptor = pidfd_open(pid, PidfdFlags::empty()).context("failed to open the process")?;
    // The number was its own when the descriptor was opened if it is so still: a supervisor reaps only what has ended.
    let now = supervisor::query(socket)?.process(place).cloned().context("the slot is gone")?;
    ensure!(
        now.pid == victim.pid && now.generation == victim.generation,
        "{place} has ended by itself{}",
        now.failure.map_or_else(String::new, |failure| format!(": it {failure}"))
    );
    pidfd_send_signal(&descriptor, Signal::KILL).context("failed to kill it")
}

/// Asks until `holds` gives something.
fn until<T>(what: &str, socket: &Path, holds: impl Fn(&[ProcessStatus]) -> Option<T>) -> anyhow::Result<T> {
    let began = Instant::now();
    loop {
        let status = supervisor::query(socket)?;
        if let Some(failed) = status.processes.iter().find(|process| process.condition == Condition::Failed) {
            bail!("{} {} has failed", failed.role, failed.slot);
        }
        if let Some(found) = holds(&status.processes) {
            return Ok(found);
        }
        ensure!(began.elapsed() < READY_TIMEOUT, "still not after {} s: {what}", READY_TIMEOUT.as_secs());
        std::thread::sleep(Duration::from_millis(2));
    }
}
