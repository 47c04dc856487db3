//! Beginning and end of a client session.

use super::{Engine, Outbox, Timer, Turn};
use crate::Now;
use crate::journal::Journal;
use crate::planted::{self, Bug};
use crate::session::{NO_TUBE, Session, SessionId};
use tubes_protocol::Reply;

impl Engine {
    /// A session begins; it uses and watches `default`.
    pub fn connect(&mut self) -> SessionId {
        let default = &mut self.tubes[self.default_tube];
        default.using_count += 1;
        default.watching_count += 1;
        self.total_connections += 1;
        SessionId(self.sessions.insert(Session::new(self.default_tube)))
    }

    /// Whether a reserve of the session waits; its later commands must wait too.
    #[must_use]
    pub fn is_waiting(&self, session: SessionId) -> bool {
        self.sessions[session.0].wait.is_some()
    }

    /// The client will send nothing more: a waiting reserve is answered `TIMED_OUT`.
    pub fn half_close<O: Outbox>(&mut self, now: Now, session: SessionId, out: &mut O) {
        self.now = now;
        if self.is_waiting(session) {
            self.end_wait(session.0);
            out.reply(session, &Reply::TimedOut);
        }
    }

    /// The server stops: a waiting reserve ends without an answer.
    pub fn cancel_wait(&mut self, session: SessionId) {
        self.end_wait(session.0);
    }

    /// The session will send nothing more, but has not taken all its replies yet: its jobs are ready again at once.
    ///
    /// # Panics
    ///
    /// If it waits: [`Engine::half_close`] comes first.
    pub fn give_back<J: Journal, O: Outbox>(&mut self, now: Now, session: SessionId, journal: &mut J, out: &mut O) {
        assert!(!self.is_waiting(session), "a waiting session is not at its end");
        self.now = now;
        self.free_held(session.0);
        self.serve_dirty(&mut Turn { now, journal, out });
    }

    /// The session ends: its jobs are ready again at once, by their priority and without any counter; its references
    /// are dropped.
    pub fn disconnect<J: Journal, O: Outbox>(&mut self, now: Now, session: SessionId, journal: &mut J, out: &mut O) {
        self.now = now;
        if self.is_waiting(session) {
            self.end_wait(session.0);
        }
        self.free_held(session.0);
        let ended = self.sessions.remove(session.0);
        if ended.timer != u64::MAX {
            self.timers.remove(&(ended.timer, Timer::Session(session.0)));
        }
        self.producer_count -= u64::from(ended.is_producer);
        self.worker_count -= u64::from(ended.is_worker);
        if ended.used != NO_TUBE {
            self.tubes[ended.used].using_count -= 1;
            self.drop_if_unreferenced(ended.used);
        }
        for at in ended.watched {
            self.tubes[at].watching_count -= 1;
            self.drop_if_unreferenced(at);
        }
        self.serve_dirty(&mut Turn { now, journal, out });
    }

    /// Jobs the session holds become ready, by their priority and without any counter.
    fn free_held(&mut self, session: u32) {
        if planted::is(Bug::CloseKeepsReservations) {
            return;
        }
        while let Some((_, _, place)) = self.sessions[session].held.first().copied() {
            self.take_out(place);
            self.make_ready(place);
        }
    }
}
