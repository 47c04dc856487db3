//! A few clients that work as clients should, beside a load: what they see of it.
//!
//! Owns: their threads, and the time of every round of put, reserve and delete.
//! Never: overlooks a wrong answer: it ends the thread, and with it the part.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use testing::client::Client;
use testing::process::wait_until;

use crate::ensure;
use crate::server::Multi;

/// Ten times what a timed answer may be late. Half of the rounds must be quicker.
const MEDIAN_MAX: Duration = Duration::from_millis(500);
/// No round may take longer, however busy the machine is: whoever waits for a client that does not read waits for ever.
pub(crate) const LONGEST_MAX: Duration = Duration::from_secs(10);
/// Between two rounds of a client, so that clients that work do not take the machine from those that load it.
const PAUSE: Duration = Duration::from_millis(5);

/// Clients at work, until [`Rounds::end`].
pub(crate) struct Rounds {
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Vec<Round>>>,
    /// When each step of the part began, and its name.
    steps: Vec<(Instant, &'static str)>,
}

/// How long a round took, and when it had ended.
type Round = (Duration, Instant);

impl Rounds {
    /// Two clients on each of `tubes`.
    #[track_caller]
    pub(crate) fn begin(multi: &Multi, tubes: &[&str]) -> Rounds {
        let is_over = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicUsize::new(0));
        let mut threads = Vec::new();
        for tube in tubes.iter().chain(tubes) {
            let mut client = multi.connect();
            client.check(
                format!("use {tube}\r\nwatch {tube}\r\nignore default\r\n"),
                format!("USING {tube}\r\nWATCHING 2\r\nWATCHING 1\r\n"),
            );
            let (is_over, done) = (is_over.clone(), done.clone());
            threads.push(std::thread::spawn(move || work(&mut client, &is_over, &done)));
        }
        Rounds { is_over, done, threads, steps: Vec::new() }
    }

    /// How many clients these are.
    pub(crate) fn clients(&self) -> usize {
        self.threads.len()
    }

    /// The part goes on to another step, which is named if a round takes longest in it.
    pub(crate) fn step(&mut self, name: &'static str) {
        self.steps.push((Instant::now(), name));
    }

    /// Waits until so many more rounds are done.
    #[track_caller]
    pub(crate) fn wait_for(&self, count: usize) {
        let target = self.done.load(Ordering::Relaxed) + count;
        wait_until("clients beside the load are served", || {
            self.done.load(Ordering::Relaxed) >= target || self.threads.iter().any(JoinHandle::is_finished)
        });
    }

    /// Ends them; what they saw, or that it took too long: longer than `longest_max` once, or too long for half of them.
    pub(crate) fn end(mut self, longest_max: Duration) -> Result<String, String> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for thread in self.threads.drain(..) {
            let times = thread.join().map_err(|_| "a client beside the load was not served".to_owned())?;
            ensure(!times.is_empty(), || "a client beside the load has done no round".to_owned())?;
            all.extend(times);
        }
        all.sort_unstable();
        let at = |permille: usize| all[(all.len() - 1) * permille / 1000].0;
        let ended = all[all.len() - 1].1;
        let step = self.steps.iter().rev().find(|(begin, _)| *begin < ended).map_or("", |(_, name)| name);
        let seen = format!(
            "{} rounds beside it, {:.1?}, p99 {:.1?}, longest {:.1?}{step}",
            all.len(),
            at(500),
            at(990),
            at(1000)
        );
        ensure(at(500) <= MEDIAN_MAX && at(1000) <= longest_max, || {
            format!("clients beside the load waited too long ({MEDIAN_MAX:?}, longest {longest_max:?}): {seen}")
        })?;
        Ok(seen)
    }
}

impl Drop for Rounds {
    /// A part that failed ends its server next: these must not see that.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

fn work(client: &mut Client, is_over: &AtomicBool, done: &AtomicUsize) -> Vec<Round> {
    let mut times = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let begin = Instant::now();
        client.put(0, 0, 600, b"beside");
        // Another client may have taken it and left its own.
        client.send("reserve-with-timeout 60\r\n");
        let reserved = client.line();
        let id = reserved.strip_prefix("RESERVED ").and_then(|rest| rest.strip_suffix(" 6"));
        let id = id.unwrap_or_else(|| panic!("reserve is answered with {reserved:?}")).to_owned();
        client.expect("beside\r\n");
        client.check(format!("delete {id}\r\n"), "DELETED\r\n");
        times.push((begin.elapsed(), Instant::now()));
        done.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(PAUSE);
    }
    times
}
