//! `put`.

use super::{Engine, Outbox, Turn, boot_ms, seconds_ns};
use crate::job::Job;
use crate::journal::{Counters, Journal};
use crate::planted::{self, Bug};
use crate::session::SessionId;
use tubes_protocol::{Reply, State};

impl Engine {
    /// A put that was refused by its form (`JOB_TOO_BIG`, `EXPECTED_CRLF`): it counts, but makes no job. Only one whose
    /// body was taken in makes its client a producer.
    pub fn count_refused_put(&mut self, session: SessionId, is_producer: bool) {
        self.counts.put += 1;
        if is_producer {
            self.mark_producer(session.0);
        }
    }

    pub(super) fn put<J: Journal, O: Outbox>(
        &mut self,
        turn: &mut Turn<'_, J, O>,
        session: u32,
        pri: u32,
        delay_s: u32,
        ttr_s: u32,
        body: Box<[u8]>,
    ) {
        self.counts.put += 1;
        self.mark_producer(session);
        if self.draining {
            return turn.out.reply(SessionId(session), &Reply::Draining);
        }
        let tube = self.sessions[session].used;
        if !turn.journal.admit_job(self.tubes[tube].name.len(), body.len()) {
            return turn.out.reply(SessionId(session), &Reply::OutOfMemory);
        }
        let id = self.next_id;
        self.next_id += 1;
        let place = self.jobs.insert(Job {
            id,
            created_boot_ms: boot_ms(turn.now),
            key: 0,
            body,
            tube,
            pri,
            delay_s,
            ttr_s,
            holder: 0,
            counters: Counters::default(),
            segment: 0,
            state_reserved: false,
            state: State::Ready,
        });
        self.job_places.insert(id, place);
        self.tubes[tube].total_jobs += 1;
        self.total_jobs += 1;
        self.make_ready_or_delayed(place, delay_s);
        let placement = turn.journal.append_job(&self.job_record(place));
        self.jobs[place].set_placement(placement);
        turn.out.reply(SessionId(session), &Reply::Inserted(id));
    }

    /// A job that is in no queue becomes ready, at once or after its delay.
    pub(super) fn make_ready_or_delayed(&mut self, place: u32, delay_s: u32) {
        if delay_s == 0 {
            self.make_ready(place);
        } else {
            let delay_s = if planted::is(Bug::DelayShort) { delay_s - 1 } else { delay_s };
            self.make_delayed(place, self.now.boot_ns + seconds_ns(delay_s));
        }
    }

    fn mark_producer(&mut self, session: u32) {
        let session = &mut self.sessions[session];
        if !session.is_producer {
            session.is_producer = true;
            self.producer_count += 1;
        }
    }
}
