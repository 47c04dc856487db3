//! What is due when.
//!
//! A timer of a session or of a tube's delayed jobs is armed for a time that is never later than the next thing due,
//! and is moved only when something earlier appears. So a reserve followed by a delete, or a touch, usually costs no
//! change of timers; when a timer fires too early it is armed anew.

use super::{Engine, Outbox, Turn};
use crate::Now;
use crate::journal::Journal;
use crate::planted::{self, Bug};
use crate::session::SessionId;
use tubes_protocol::Reply;

/// Whose timer it is. The order is that of the phases of a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The end of a tube's pause.
    Pause(u32),
    /// The first of a tube's delayed jobs.
    Delay(u32),
    /// The end of an offer.
    Offer(u64),
    /// A session's next deadline, margin or time-out.
    Session(u32),
}

/// Delayed jobs that become ready in one tick, at most; the others follow in the next tick, at once. So a million jobs
/// that are due together do not hold up everybody else.
const DUE_JOBS_PER_TICK: usize = 10_000;

impl Engine {
    /// When [`Engine::tick`] has something to do next, in ns of the boot clock; `None` if nothing is timed. It may find
    /// nothing to do then.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.first().map(|timer| timer.0)
    }

    /// Fires all that is due at `now`, in the phases that the crate's documentation lists.
    pub fn tick<J: Journal, O: Outbox>(&mut self, now: Now, journal: &mut J, out: &mut O) {
        self.now = now;
        if self.timers.first().is_none_or(|timer| timer.0 > now.boot_ns) {
            return;
        }
        let mut turn = Turn { now, journal, out };
        let mut sessions = Vec::new();
        let mut delays = Vec::new();
        while let Some((at_ns, timer)) = self.timers.first().copied()
            && at_ns <= now.boot_ns
        {
            match timer {
                Timer::Pause(tube) => self.end_pause(tube),
                Timer::Delay(tube) => {
                    self.timers.pop_first();
                    self.tubes[tube].delay_timer = u64::MAX;
                    delays.push(tube);
                }
                Timer::Offer(offer) => self.settle_offer(offer),
                Timer::Session(session) => {
                    self.timers.pop_first();
                    self.sessions[session].timer = u64::MAX;
                    sessions.push(session);
                }
            }
        }
        let mut left = DUE_JOBS_PER_TICK;
        for tube in delays {
            self.ready_what_is_due(tube, &mut left);
        }
        for session in &sessions {
            self.warn_or_expire(&mut turn, *session);
        }
        self.serve_dirty(&mut turn);
        for session in sessions {
            if self.sessions[session].wait.is_some_and(|wait| wait.until <= now.boot_ns) {
                self.end_wait(session);
                turn.out.reply(SessionId(session), &Reply::TimedOut);
            }
            self.arm_session(session, self.sessions[session].next_due());
        }
    }

    fn ready_what_is_due(&mut self, tube: u32, left: &mut usize) {
        while let Some((due_ns, _, place)) = self.tubes[tube].delayed.first().copied()
            && due_ns <= self.now.boot_ns
            && *left > 0
        {
            self.take_out(place);
            self.make_ready(place);
            *left -= 1;
        }
        self.arm_delay(tube);
    }

    /// Phases 3 and 4 for one session.
    fn warn_or_expire<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, at: u32) {
        let session = &self.sessions[at];
        if session.wait.is_some() && !session.is_remote && session.in_margin(turn.now.boot_ns) {
            self.end_wait(at);
            turn.out.reply(SessionId(at), &Reply::DeadlineSoon);
        }
        while let Some((deadline_ns, _, place)) = self.sessions[at].held.first().copied()
            && deadline_ns <= turn.now.boot_ns
        {
            if planted::is(Bug::ExpiryLost) {
                self.sessions[at].held.remove(&(deadline_ns, self.jobs[place].id, place));
                let job = &mut self.jobs[place];
                job.key = u64::MAX;
                self.sessions[at].held.insert((job.key, job.id, place));
                continue;
            }
            self.take_out(place);
            let counters = &mut self.jobs[place].counters;
            counters.timeouts = counters.timeouts.saturating_add(1);
            self.job_timeouts += 1;
            self.make_ready(place);
        }
    }

    /// Arms the session's timer for `due_ns` unless it is armed for an earlier time.
    pub(super) fn arm_session(&mut self, at: u32, due_ns: u64) {
        let session = &mut self.sessions[at];
        // While it waits, the last second of a job it holds counts too.
        let due_ns = due_ns.min(if session.wait.is_some() { session.next_due() } else { u64::MAX });
        if due_ns >= session.timer {
            return;
        }
        if session.timer != u64::MAX {
            self.timers.remove(&(session.timer, Timer::Session(at)));
        }
        session.timer = due_ns;
        self.timers.insert((due_ns, Timer::Session(at)));
    }

    /// Arms the timer of the tube's delayed jobs unless it is armed for an earlier time.
    pub(super) fn arm_delay(&mut self, at: u32) {
        let tube = &mut self.tubes[at];
        let due_ns = tube.delayed.first().map_or(u64::MAX, |key| key.0);
        if due_ns >= tube.delay_timer {
            return;
        }
        if tube.delay_timer != u64::MAX {
            self.timers.remove(&(tube.delay_timer, Timer::Delay(at)));
        }
        tube.delay_timer = due_ns;
        self.timers.insert((due_ns, Timer::Delay(at)));
    }
}
