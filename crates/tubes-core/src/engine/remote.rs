//! An owner's side of sessions that live in frontends.
//!
//! A frontend's session uses and watches only the tubes of this owner. The frontend decides when a wait ends and asks
//! for it with [`Engine::withdraw`]; this side decides how. If the session watches tubes of other owners too, jobs are
//! not reserved for it at once but *offered*: at most one offer is accepted of those that all owners make.
//!
//! An offered job stays ready for everything but another reserve. An offer ends when it is accepted, returned, revoked
//! by what happens to its job (reserve-job, delete, a pause of its tube), or after [`OFFER_NS`]; unless it was accepted,
//! no counter and no place in the order has changed.

use super::{Engine, Offered, Outbox, Timer, Turn};
use crate::Now;
use crate::index::IdIndex;
use crate::journal::Journal;
use crate::ready::ReadyKey;
use crate::session::{NO_TUBE, Session, SessionId, Wait, WaitKind};
use tubes_protocol::Reply;

/// How long an offer lasts, in ns: long enough for a busy frontend's answer, short enough that a job does not hang on a
/// frozen one.
const OFFER_NS: u64 = 250_000_000;

/// An offer that is out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offer {
    pub(super) place: u32,
    session: u32,
    until: u64,
}

impl Engine {
    /// Makes this the engine of one owner among several: ids carry a partition from `ids_from` on, each put's id is
    /// given by [`Engine::set_next_id`], and the tube `default` is always there only where it belongs.
    ///
    /// # Panics
    ///
    /// If it is not called first of all.
    pub fn become_owner(&mut self, ids_from: u64, owns_default: bool) {
        assert!(self.jobs.len() == 0 && self.sessions.len() == 0, "what an engine is, is decided at its beginning");
        self.job_places = IdIndex::partitioned(ids_from);
        if !owns_default {
            let at = std::mem::replace(&mut self.default_tube, NO_TUBE);
            self.drop_if_unreferenced(at);
        }
    }

    /// The number that the next created tube would get.
    #[must_use]
    pub fn next_creation(&self) -> u64 {
        self.next_creation
    }

    /// All tubes with their numbers of creation, in that order.
    pub fn tubes(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.tubes_by_creation.iter().map(|(creation, at)| (*creation, &*self.tubes[*at].name))
    }

    /// The id of the next put, drawn by the caller from the counter that all owners share.
    ///
    /// # Panics
    ///
    /// If it is smaller than an id given before.
    pub fn set_next_id(&mut self, id: u64) {
        assert!(id >= self.next_id, "ids rise");
        self.next_id = id;
    }

    /// The number that the next created tube gets; drawn by the caller from the counter that all owners share.
    pub fn set_next_creation(&mut self, creation: u64) {
        self.next_creation = self.next_creation.max(creation);
    }

    /// A session of a frontend begins; it uses and watches nothing here yet.
    pub fn connect_remote(&mut self) -> SessionId {
        SessionId(self.sessions.insert(Session::remote()))
    }

    /// The session uses a tube of another owner from here on.
    pub fn unuse(&mut self, session: SessionId) {
        let before = std::mem::replace(&mut self.sessions[session.0].used, NO_TUBE);
        if before != NO_TUBE {
            self.tubes[before].using_count -= 1;
            self.drop_if_unreferenced(before);
        }
    }

    /// The session watches a tube no longer. Unlike `ignore`, the last one may go: others may be watched elsewhere.
    pub fn unwatch(&mut self, session: SessionId, name: &[u8]) {
        let watched = &mut self.sessions[session.0].watched;
        let place = self.tube_places.get(name).and_then(|at| watched.iter().position(|watched| watched == at));
        if let Some(place) = place {
            let at = watched.remove(place);
            self.tubes[at].watching_count -= 1;
            self.drop_if_unreferenced(at);
        }
    }

    /// A reserve whose watched tubes all lie here. `in_margin`: the connection is in the last second of a job it holds,
    /// here or elsewhere. Answered by a reply, or waits until it is served or withdrawn; a poll waits only while jobs are
    /// offered to others.
    pub fn reserve_remote<J: Journal, O: Outbox>(
        &mut self,
        now: Now,
        session: SessionId,
        in_margin: bool,
        is_poll: bool,
        journal: &mut J,
        out: &mut O,
    ) {
        self.now = now;
        let mut turn = Turn { now, journal, out };
        // What the session holds here, its frontend may not have heard of when it asked.
        if self.is_soon(session, in_margin || self.sessions[session.0].in_margin(now.boot_ns)) {
            return turn.out.reply(session, &Reply::DeadlineSoon);
        }
        match self.best_servable(session) {
            Some(head) => self.hand_out(&mut turn, head.place, session.0),
            None if is_poll && !self.hopes(session.0) => turn.out.reply(session, &Reply::TimedOut),
            None => self.park(session.0, WaitKind::Reserve { is_poll }, is_poll),
        }
    }

    /// A reserve that other owners are asked about too: answered by an offer or [`Outbox::nothing`]; unless it is a poll
    /// it goes on waiting here in both cases, until withdrawn.
    pub fn ask<J: Journal, O: Outbox>(
        &mut self,
        now: Now,
        session: SessionId,
        is_poll: bool,
        journal: &mut J,
        out: &mut O,
    ) {
        self.now = now;
        let mut turn = Turn { now, journal, out };
        if let Some(Wait { kind: WaitKind::Offer { offer: Some(_), .. }, .. }) = self.sessions[session.0].wait {
            // Asked again while an offer to it is under way.
            return;
        }
        let best = self.best_servable(session);
        if self.is_waiting(session) {
            return match best {
                Some(head) => self.make_offer(&mut turn, session.0, head),
                None => turn.out.nothing(session),
            };
        }
        if best.is_none() && is_poll && !self.hopes(session.0) {
            return turn.out.nothing(session);
        }
        let waits_for_offers = best.is_none() && is_poll;
        self.park(session.0, WaitKind::Offer { is_poll, offer: None }, waits_for_offers);
        match best {
            Some(head) => self.make_offer(&mut turn, session.0, head),
            None if !is_poll => turn.out.nothing(session),
            None => {}
        }
    }

    /// Whether an answer must be "soon" instead of waiting: in the last second of a job, with no ready job, paused or
    /// not, in any watched tube.
    #[must_use]
    pub fn is_soon(&self, session: SessionId, in_margin: bool) -> bool {
        in_margin && self.sessions[session.0].watched.iter().all(|tube| self.tubes[*tube].ready_count() == 0)
    }

    /// Accepts an offer: answered by RESERVED, or [`Outbox::gone`] if the offer is no more. The wait is over after
    /// RESERVED, and for a poll.
    pub fn accept<J: Journal, O: Outbox>(
        &mut self,
        now: Now,
        session: SessionId,
        offer: u64,
        journal: &mut J,
        out: &mut O,
    ) {
        self.now = now;
        let mut turn = Turn { now, journal, out };
        match self.offers.get(&offer).copied() {
            Some(found) if found.session == session.0 => {
                self.take_out(found.place);
                if self.is_waiting(session) {
                    self.end_wait(session.0);
                }
                self.make_reserved(found.place, session.0);
                let job = &self.jobs[found.place];
                turn.out.holds(session, job.id, job.key);
                turn.out.reply(session, &Reply::Reserved { id: job.id, body: &job.body });
            }
            _ => turn.out.gone(session),
        }
        self.serve_dirty(&mut turn);
    }

    /// Ends the session's wait, if it still waits, and gives an offer back. `true` if it waited.
    pub fn withdraw<J: Journal, O: Outbox>(
        &mut self,
        now: Now,
        session: SessionId,
        journal: &mut J,
        out: &mut O,
    ) -> bool {
        self.now = now;
        let waited = self.is_waiting(session);
        if waited {
            self.end_wait(session.0);
            self.serve_dirty(&mut Turn { now, journal, out });
        }
        waited
    }

    /// Name of the tube that the session uses here.
    #[must_use]
    pub fn used_tube(&self, session: SessionId) -> Option<&[u8]> {
        let used = self.sessions[session.0].used;
        (used != NO_TUBE).then(|| &*self.tubes[used].name)
    }

    fn best_servable(&self, session: SessionId) -> Option<ReadyKey> {
        self.sessions[session.0].watched.iter().filter_map(|tube| self.tubes[*tube].servable()).min()
    }

    /// Whether a job that is offered to another may still come to the session.
    fn hopes(&self, session: u32) -> bool {
        self.sessions[session].watched.iter().any(|tube| {
            let tube = &self.tubes[*tube];
            !tube.is_paused() && !tube.offered.is_empty()
        })
    }

    fn park(&mut self, session: u32, kind: WaitKind, is_poll: bool) {
        self.begin_wait(session, u64::MAX, kind);
        if is_poll {
            self.polls.insert(session);
        }
    }

    /// Offers a ready job to a session that waits for offers; meanwhile the session stands in no queue.
    pub(super) fn make_offer<J: Journal, O: Outbox>(
        &mut self,
        turn: &mut Turn<'_, J, O>,
        session: u32,
        head: ReadyKey,
    ) {
        let number = self.next_offer;
        self.next_offer += 1;
        let asking = &mut self.sessions[session];
        let Some(Wait { order, kind: WaitKind::Offer { offer, .. }, .. }) = &mut asking.wait else {
            unreachable!("offers go to sessions that wait for them")
        };
        *offer = Some(number);
        for tube in &asking.watched {
            self.tubes[*tube].waiting.remove(order);
        }
        self.polls.remove(&session);
        let job = &mut self.jobs[head.place];
        job.key = number;
        let tube = &mut self.tubes[job.tube];
        tube.ready.remove(head);
        tube.offered.insert(head);
        let until = self.now.boot_ns + OFFER_NS;
        self.offers.insert(number, Offer { place: head.place, session, until });
        self.timers.insert((until, Timer::Offer(number)));
        turn.out.offer(SessionId(session), Offered { offer: number, id: job.id, pri: job.pri });
    }

    /// Ends an offer that was not accepted: its job is free for the next who waits, and its session waits on in its old
    /// place, or, if it was a poll, no longer.
    pub(super) fn settle_offer(&mut self, number: u64) {
        let place = self.offers[&number].place;
        let job = &mut self.jobs[place];
        job.key = 0;
        let key = ReadyKey::new(job.pri, job.id, place);
        let at = job.tube;
        let tube = &mut self.tubes[at];
        tube.offered.remove(&key);
        tube.ready.insert(key);
        self.dirty_tubes.push(at);
        self.forget_offer(number);
    }

    /// Removes an offer whose job is being taken care of.
    pub(super) fn forget_offer(&mut self, number: u64) {
        let offer = self.offers.remove(&number).expect("an offered job has an offer");
        self.timers.remove(&(offer.until, Timer::Offer(number)));
        self.dirty_tubes.push(self.jobs[offer.place].tube);
        let session = &mut self.sessions[offer.session];
        let Some(Wait { order, kind: WaitKind::Offer { is_poll, offer: considered }, .. }) = &mut session.wait else {
            unreachable!("a session considers an offer while it waits")
        };
        *considered = None;
        let (order, is_poll) = (*order, *is_poll);
        for tube in &session.watched {
            self.tubes[*tube].waiting.insert(order, offer.session);
            self.dirty_tubes.push(*tube);
        }
        if is_poll {
            // It was answered by the offer; what it hears when it accepts is "gone".
            let session = offer.session;
            self.end_wait(session);
        }
    }

    /// Polls that waited for offers to come back, and to which none can come back any more.
    pub(super) fn end_hopeless_polls<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>) {
        let hopeless: Vec<u32> = self.polls.iter().copied().filter(|session| !self.hopes(*session)).collect();
        for session in hopeless {
            let wait = self.sessions[session].wait.expect("a poll in the list waits");
            self.end_wait(session);
            match wait.kind {
                WaitKind::Reserve { .. } => turn.out.reply(SessionId(session), &Reply::TimedOut),
                WaitKind::Offer { .. } => turn.out.nothing(SessionId(session)),
            }
        }
    }
}
