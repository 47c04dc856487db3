//! `reserve`, `reserve-with-timeout`, `reserve-job`.

use super::{Engine, Outbox, Turn, seconds_ns};
use crate::journal::Journal;
use crate::planted::{self, Bug};
use crate::session::{SessionId, Wait, WaitKind};
use tubes_protocol::{Reply, State};

impl Engine {
    pub(super) fn reserve<J: Journal, O: Outbox>(
        &mut self,
        turn: &mut Turn<'_, J, O>,
        session: u32,
        timeout_s: Option<u32>,
    ) {
        match timeout_s {
            None => self.counts.reserve += 1,
            Some(_) => self.counts.reserve_with_timeout += 1,
        }
        self.mark_worker(session);
        let asking = &self.sessions[session];
        let in_margin = asking.in_margin(turn.now.boot_ns);
        if in_margin && asking.watched.iter().all(|tube| self.tubes[*tube].ready_count() == 0) {
            return turn.out.reply(SessionId(session), &Reply::DeadlineSoon);
        }
        let mut heads = asking.watched.iter().filter_map(|tube| self.tubes[*tube].servable());
        let best = if planted::is(Bug::ReserveTakesFirstTube) { heads.next() } else { heads.min() };
        if let Some(head) = best {
            return self.hand_out(turn, head.place, session);
        }
        match timeout_s {
            Some(0) => turn.out.reply(SessionId(session), &Reply::TimedOut),
            Some(seconds) => {
                self.begin_wait(session, turn.now.boot_ns + seconds_ns(seconds), WaitKind::Reserve { is_poll: false });
            }
            None => self.begin_wait(session, u64::MAX, WaitKind::Reserve { is_poll: false }),
        }
    }

    pub(super) fn reserve_job<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32, id: u64) {
        let Some(place) = self.place_of(id) else {
            return turn.out.reply(SessionId(session), &Reply::NotFound);
        };
        let job = &self.jobs[place];
        match job.state {
            State::Reserved if !planted::is(Bug::ReserveJobSteals) => {
                turn.out.reply(SessionId(session), &Reply::NotFound);
            }
            State::Ready | State::Reserved => {
                self.mark_worker(session);
                self.hand_out(turn, place, session);
            }
            State::Delayed | State::Buried => {
                if !turn.journal.admit_state(job.placement()) {
                    return turn.out.reply(SessionId(session), &Reply::OutOfMemory);
                }
                self.mark_worker(session);
                self.hand_out(turn, place, session);
                self.log_state(turn, place);
            }
        }
    }

    /// Reserves a job that nobody holds for the session, and says so.
    pub(super) fn hand_out<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, place: u32, session: u32) {
        self.take_out(place);
        self.make_reserved(place, session);
        let job = &self.jobs[place];
        turn.out.holds(SessionId(session), job.id, job.key);
        turn.out.reply(SessionId(session), &Reply::Reserved { id: job.id, body: &job.body });
    }

    pub(super) fn begin_wait(&mut self, session: u32, until_ns: u64, kind: WaitKind) {
        let order = self.next_wait_order;
        self.next_wait_order += 1;
        let waiting = &mut self.sessions[session];
        waiting.wait = Some(Wait { order, until: until_ns, kind });
        for tube in &waiting.watched {
            self.tubes[*tube].waiting.insert(order, session);
        }
        let due = waiting.next_due();
        self.waiting_count += 1;
        self.arm_session(session, due);
    }

    /// The session waits no longer; the caller answers it.
    pub(super) fn end_wait(&mut self, session: u32) {
        if let Some(Wait { kind: WaitKind::Offer { offer: Some(offer), .. }, .. }) = self.sessions[session].wait {
            self.settle_offer(offer);
            if self.sessions[session].wait.is_none() {
                // A poll ends with its offer.
                return;
            }
        }
        self.polls.remove(&session);
        let waiting = &mut self.sessions[session];
        let wait = waiting.wait.take().expect("ended a wait that is not there");
        self.waiting_count -= 1;
        for tube in &waiting.watched {
            self.tubes[*tube].waiting.remove(&wait.order);
        }
    }

    pub(super) fn mark_worker(&mut self, session: u32) {
        let session = &mut self.sessions[session];
        if !session.is_worker {
            session.is_worker = true;
            self.worker_count += 1;
        }
    }
}
