//! What happens by time alone.

use tubes_protocol::Reply;

use super::{Model, Moment, Place, SECOND_NS, Wait};

impl Model {
    /// Does everything that is due at `now`, however late that is, in this order: pauses end; delayed jobs become ready;
    /// who waits in the last second of a held job is told so; times to run end; ready jobs meet who waits; waits end.
    /// So `DEADLINE_SOON` wins over `TIMED_OUT`, and a job over `TIMED_OUT`.
    pub fn tick(&mut self, now: Moment) {
        for tube in self.tubes.values_mut() {
            if tube.pause.is_some_and(|pause| pause.until_ns <= now.boot_ns) {
                tube.pause = None;
            }
        }
        for job in self.jobs.values_mut() {
            if matches!(job.place, Place::Delayed { due_ns } if due_ns <= now.boot_ns) {
                job.place = Place::Ready;
            }
        }
        self.end_waits(&Reply::DeadlineSoon, |model, session, _| model.in_margin(now, session));
        for job in self.jobs.values_mut() {
            if matches!(job.place, Place::Reserved { deadline_ns, .. } if deadline_ns <= now.boot_ns) {
                job.place = Place::Ready;
                job.counters.timeouts += 1;
                self.job_timeouts += 1;
            }
        }
        self.hand_out(now);
        self.end_waits(&Reply::TimedOut, |_, _, wait| wait.until_ns.is_some_and(|until_ns| until_ns <= now.boot_ns));
    }

    /// Answers `reply` to all whose wait `ends`.
    fn end_waits(&mut self, reply: &Reply<'_>, ends: impl Fn(&Model, u32, Wait) -> bool) {
        let waits = self.sessions.iter().filter_map(|(session, state)| Some((session, state.waiting?)));
        let ended: Vec<u32> = waits.filter(|(session, wait)| ends(self, *session, *wait)).map(|(who, _)| who).collect();
        for session in ended {
            self.session(session).waiting = None;
            self.say(session, reply);
        }
    }

    /// When [`Model::tick`] has something to do next.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        let jobs = self.jobs.values().filter_map(|job| match job.place {
            Place::Delayed { due_ns } => Some(due_ns),
            Place::Reserved { deadline_ns, holder } => {
                let is_told_before = self.sessions[holder].waiting.is_some();
                Some(if is_told_before { deadline_ns.saturating_sub(SECOND_NS) } else { deadline_ns })
            }
            Place::Ready | Place::Buried { .. } => None,
        });
        let pauses = self.tubes.values().filter_map(|tube| Some(tube.pause?.until_ns));
        let waits = self.sessions.values().filter_map(|state| state.waiting?.until_ns);
        jobs.chain(pauses).chain(waits).min()
    }
}
