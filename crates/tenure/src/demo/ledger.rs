//! What was acknowledged and what came out: the accounts of the demo, and what they must add up to.
//!
//! A put or delete whose connection was lost is *unknown*: it may have happened. An unknown put may come out once; an
//! acknowledged one must come out, and once.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Longest wait of a producer for the workers before it goes on all the same.
const BACKLOG_WAIT: Duration = Duration::from_secs(1);

/// The accounts; shared by all threads.
#[derive(Debug)]
pub(crate) struct Ledger {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// By number of the job, which stands in its body.
    jobs: HashMap<u64, Entry>,
    /// Odd while a process is killed and its successor starts; see [`Ledger::epoch`].
    epoch: u64,
    acknowledged_puts: u64,
    unknown_puts: u64,
    /// Acknowledged jobs whose delete was acknowledged or is unknown.
    done: u64,
    counts: Counts,
    problems: Vec<String>,
    put_micros: Vec<u32>,
    work_micros: Vec<u32>,
    is_finished: bool,
}

#[derive(Debug, Default)]
struct Entry {
    put: Put,
    tube: &'static str,
    pri: u32,
    /// Who holds it, since which epoch.
    held: Option<(u64, u64)>,
    deletes: u32,
    is_delete_unknown: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Put {
    #[default]
    Unknown,
    Acknowledged,
}

/// How often each thing was done.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) reserves: u64,
    pub(crate) deletes: u64,
    pub(crate) unknown_deletes: u64,
    pub(crate) releases: u64,
    pub(crate) delayed_releases: u64,
    pub(crate) buries: u64,
    pub(crate) kicks: u64,
    pub(crate) touches: u64,
    pub(crate) lost_connections: u64,
}

/// How far the demo is.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) put: u64,
    pub(crate) done: u64,
    pub(crate) problem: Option<String>,
}

impl Progress {
    /// Whether everything put is done.
    pub(crate) fn is_complete(&self, jobs: u64) -> bool {
        self.put >= jobs && self.done >= self.put
    }
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Ledger { state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the accounts")
    }

    /// Which stretch of time it is, between and during kills.
    ///
    /// A kill voids reservations before their holders know. So who holds a job is told by a reply to a question that was
    /// asked in the same, quiet, stretch in which the reply is entered here; at any other time nothing is concluded.
    pub(crate) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Runs `kill`, which kills a process and waits for its successor.
    pub(crate) fn disturb<R>(&self, kill: impl FnOnce() -> anyhow::Result<R>) -> anyhow::Result<R> {
        self.lock().epoch += 1;
        let result = kill();
        self.lock().epoch += 1;
        result
    }

    /// The threads should end.
    pub(crate) fn finish(&self) {
        self.lock().is_finished = true;
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.lock().is_finished
    }

    /// About to be put: from here on it may come out.
    pub(crate) fn will_put(&self, number: u64, tube: &'static str, pri: u32) {
        self.lock().jobs.insert(number, Entry { tube, pri, ..Entry::default() });
    }

    /// Puts were acknowledged, after `micros` each.
    pub(crate) fn was_put(&self, numbers: &[u64], micros: u32) {
        let state = &mut *self.lock();
        for number in numbers {
            let entry = state.jobs.get_mut(number).expect("a put was announced");
            entry.put = Put::Acknowledged;
            state.acknowledged_puts += 1;
            // It may have come out before its producer read the reply.
            state.done += u64::from(entry.is_done());
            state.put_micros.push(micros);
        }
        self.changed.notify_all();
    }

    /// Puts whose connection was lost.
    pub(crate) fn put_is_unknown(&self, count: usize) {
        let state = &mut *self.lock();
        state.unknown_puts += count as u64;
        state.counts.lost_connections += 1;
    }

    /// A worker holds a job, as it was told after it had asked in `epoch`. Checks that the job exists, in this form, and
    /// that nobody else holds it. `true` if all is well.
    pub(crate) fn was_reserved(&self, number: u64, tube: &str, pri: u32, worker: u64, epoch: u64) -> bool {
        let state = &mut *self.lock();
        state.counts.reserves += 1;
        if epoch != state.epoch || epoch % 2 == 1 {
            // By now the reservation may be void, and the job held by another or done.
            if let Some(entry) = state.jobs.get_mut(&number) {
                entry.held = None;
            }
            return true;
        }
        let Some(entry) = state.jobs.get_mut(&number) else {
            state.problems.push(format!("job {number} came out and was never put"));
            return false;
        };
        let mut problem = None;
        if entry.deletes > 0 {
            problem = Some(format!("job {number} came out again after its delete was acknowledged"));
        } else if let Some((holder, since)) = entry.held
            && since == epoch
        {
            problem = Some(format!("job {number} was handed to worker {worker} while worker {holder} holds it"));
        } else if entry.tube != tube || entry.pri != pri {
            problem = Some(format!(
                "job {number} came out of tube {tube} with priority {pri} instead of {} with {}",
                entry.tube, entry.pri
            ));
        }
        entry.held = Some((worker, epoch));
        let is_well = problem.is_none();
        state.problems.extend(problem);
        is_well
    }

    /// The holder is about to let go of a job by another command than delete: it may be handed to another worker before
    /// the reply is read.
    pub(crate) fn lets_go(&self, number: u64, new_pri: u32) {
        if let Some(entry) = self.lock().jobs.get_mut(&number) {
            entry.held = None;
            entry.pri = new_pri;
        }
    }

    /// Counts what was done.
    pub(crate) fn count(&self, add: impl FnOnce(&mut Counts)) {
        add(&mut self.lock().counts);
    }

    /// A delete was acknowledged, so many microseconds after the reserve.
    pub(crate) fn was_deleted(&self, number: u64, micros: u32) {
        let state = &mut *self.lock();
        let entry = state.jobs.get_mut(&number).expect("a deleted job was reserved before");
        let was_done = entry.is_done();
        entry.deletes += 1;
        entry.held = None;
        if entry.deletes > 1 {
            state.problems.push(format!("job {number} was deleted twice"));
        }
        state.done += u64::from(entry.put == Put::Acknowledged && !was_done);
        state.counts.deletes += 1;
        state.work_micros.push(micros);
        self.changed.notify_all();
    }

    /// A delete whose connection was lost: the job may be gone or come out again.
    pub(crate) fn delete_is_unknown(&self, number: u64) {
        let state = &mut *self.lock();
        state.counts.unknown_deletes += 1;
        if let Some(entry) = state.jobs.get_mut(&number) {
            let was_done = entry.is_done();
            entry.is_delete_unknown = true;
            entry.held = None;
            state.done += u64::from(entry.put == Put::Acknowledged && !was_done);
        }
        self.changed.notify_all();
    }

    /// Waits, for a while at most, until fewer jobs than `bound` are put and not done.
    pub(crate) fn wait_for_backlog_below(&self, bound: u64) {
        let state = self.lock();
        let is_ahead = |state: &mut State| !state.is_finished && state.acknowledged_puts >= state.done + bound;
        drop(self.changed.wait_timeout_while(state, BACKLOG_WAIT, is_ahead));
    }

    /// Waits until something changes, or for `limit`.
    pub(crate) fn wait_for_progress(&self, limit: Duration) -> Progress {
        let state = self.lock();
        let (state, _) = self.changed.wait_timeout(state, limit).expect("no thread panics while it holds the accounts");
        Progress { put: state.acknowledged_puts, done: state.done, problem: state.problems.first().cloned() }
    }

    /// What it all comes to.
    pub(crate) fn report(&self, elapsed: Duration, left: u64, kills: String) -> Report {
        let state = &mut *self.lock();
        let mut problems = state.problems.clone();
        let lost = state.jobs.values().filter(|entry| entry.put == Put::Acknowledged && !entry.is_done()).count();
        if lost > 0 {
            problems.push(format!("{lost} acknowledged jobs never came out"));
        }
        if left > 0 {
            problems.push(format!("{left} jobs are left on the server, though everything was deleted"));
        }
        state.put_micros.sort_unstable();
        state.work_micros.sort_unstable();
        Report {
            elapsed,
            kills,
            acknowledged_puts: state.acknowledged_puts,
            unknown_puts: state.unknown_puts,
            counts: state.counts,
            put: Percentiles::of(&state.put_micros),
            work: Percentiles::of(&state.work_micros),
            problems,
        }
    }
}

impl Entry {
    fn is_done(&self) -> bool {
        self.deletes > 0 || self.is_delete_unknown
    }
}

#[derive(Debug, Clone, Copy)]
struct Percentiles {
    half: u32,
    most: u32,
    worst: u32,
}

impl Percentiles {
    fn of(sorted: &[u32]) -> Self {
        let at = |part: usize| sorted.get(sorted.len() * part / 1000).or(sorted.last()).copied().unwrap_or(0);
        Percentiles { half: at(500), most: at(990), worst: sorted.last().copied().unwrap_or(0) }
    }
}

/// The result of a demo.
#[derive(Debug)]
pub(crate) struct Report {
    elapsed: Duration,
    /// What was killed, in words.
    kills: String,
    acknowledged_puts: u64,
    unknown_puts: u64,
    counts: Counts,
    put: Percentiles,
    work: Percentiles,
    problems: Vec<String>,
}

impl Report {
    /// Whether nothing was lost, doubled or changed.
    pub(crate) fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        let milliseconds = |micros: u32| f64::from(micros) / 1000.0;
        writeln!(f)?;
        writeln!(
            f,
            "{} jobs in {seconds:.1} s: {:.0} jobs/s through the whole life cycle",
            self.acknowledged_puts,
            self.acknowledged_puts as f64 / seconds
        )?;
        for (what, times) in [("put, 16 at once", self.put), ("reserve to deleted", self.work)] {
            writeln!(
                f,
                "{what}: half within {:.2} ms, 99 % within {:.2} ms, all within {:.2} ms",
                milliseconds(times.half),
                milliseconds(times.most),
                milliseconds(times.worst)
            )?;
        }
        let counts = &self.counts;
        writeln!(
            f,
            "{} reserves, {} deletes, {} releases ({} with a delay), {} buries, {} kicks, {} touches",
            counts.reserves,
            counts.deletes,
            counts.releases,
            counts.delayed_releases,
            counts.buries,
            counts.kicks,
            counts.touches
        )?;
        writeln!(
            f,
            "{} cost {} connections; the outcome of {} puts and {} deletes was unknown to their clients",
            self.kills, counts.lost_connections, self.unknown_puts, counts.unknown_deletes
        )?;
        writeln!(
            f,
            "checked: each acknowledged job came out, with its body, tube and priority; none was held by two workers; \
             none came out after its delete; nothing was left"
        )?;
        for problem in self.problems.iter().take(20) {
            writeln!(f, "PROBLEM: {problem}")?;
        }
        Ok(())
    }
}
