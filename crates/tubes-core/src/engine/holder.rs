//! What the holder of a job may do with it: `delete` (also of jobs nobody holds), `release`, `bury`, `touch`.

use super::{Engine, Outbox, Turn, seconds_ns};
use crate::journal::Journal;
use crate::planted::{self, Bug};
use crate::session::SessionId;
use tubes_protocol::{Reply, State};

impl Engine {
    pub(super) fn delete<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32, id: u64) {
        self.counts.delete += 1;
        let Some(place) = self.place_of(id) else {
            return turn.out.reply(SessionId(session), &Reply::NotFound);
        };
        let job = &self.jobs[place];
        let held_by_another = job.state == State::Reserved && job.holder != session;
        if held_by_another && !planted::is(Bug::DeleteIgnoresHolder) {
            return turn.out.reply(SessionId(session), &Reply::NotFound);
        }
        let tube = &mut self.tubes[job.tube];
        tube.delete_count += 1;
        if !planted::is(Bug::DeleteNotLogged) {
            turn.journal.append_delete(job.placement(), id, tube.name.len(), job.body.len());
        }
        self.take_out(place);
        self.forget(place);
        turn.out.reply(SessionId(session), &Reply::Deleted);
    }

    pub(super) fn release<J: Journal, O: Outbox>(
        &mut self,
        turn: &mut Turn<'_, J, O>,
        session: u32,
        id: u64,
        pri: u32,
        delay_s: u32,
    ) {
        self.counts.release += 1;
        let Some(place) = self.held_with_log_space(turn, session, id) else { return };
        self.take_out(place);
        let job = &mut self.jobs[place];
        let old_pri = std::mem::replace(&mut job.pri, pri);
        job.delay_s = delay_s;
        job.counters.releases = job.counters.releases.saturating_add(1);
        self.make_ready_or_delayed(place, delay_s);
        if planted::is(Bug::ReleaseLogsOldPriority) {
            self.jobs[place].pri = old_pri;
            self.log_state(turn, place);
            self.jobs[place].pri = pri;
        } else {
            self.log_state(turn, place);
        }
        turn.out.reply(SessionId(session), &Reply::Released);
    }

    pub(super) fn bury<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32, id: u64, pri: u32) {
        self.counts.bury += 1;
        let Some(place) = self.held_with_log_space(turn, session, id) else { return };
        self.take_out(place);
        let job = &mut self.jobs[place];
        job.pri = pri;
        job.counters.buries = job.counters.buries.saturating_add(1);
        self.make_buried(place);
        self.log_state(turn, place);
        turn.out.reply(SessionId(session), &Reply::Buried);
    }

    pub(super) fn touch<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32, id: u64) {
        self.counts.touch += 1;
        let Some(place) = self.held_by(session, id) else {
            return turn.out.reply(SessionId(session), &Reply::NotFound);
        };
        if !planted::is(Bug::TouchDoesNothing) {
            let job = &mut self.jobs[place];
            let held = &mut self.sessions[session].held;
            held.remove(&(job.key, id, place));
            job.key = turn.now.boot_ns + seconds_ns(job.ttr_s);
            held.insert((job.key, id, place));
            turn.out.holds(SessionId(session), id, job.key);
            // A deadline only moves back here; the timer, armed for the earlier one, is armed anew when it fires.
        }
        turn.out.reply(SessionId(session), &Reply::Touched);
    }

    fn held_by(&self, session: u32, id: u64) -> Option<u32> {
        let place = self.place_of(id)?;
        let job = &self.jobs[place];
        (job.state == State::Reserved && job.holder == session).then_some(place)
    }

    /// The job, if the session holds it and its next STATE record has space; else the refusal is sent.
    fn held_with_log_space<J: Journal, O: Outbox>(
        &mut self,
        turn: &mut Turn<'_, J, O>,
        session: u32,
        id: u64,
    ) -> Option<u32> {
        let Some(place) = self.held_by(session, id) else {
            turn.out.reply(SessionId(session), &Reply::NotFound);
            return None;
        };
        if !turn.journal.admit_state(self.jobs[place].placement()) {
            turn.out.reply(SessionId(session), &Reply::OutOfMemory);
            return None;
        }
        Some(place)
    }
}
