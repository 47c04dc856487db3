//! Reserves: when they end, and which of several owners' offers is accepted.

use super::client::{Ending, OwnerSet, Pending, Round, Wait};
use super::{ClientId, OFFERS_NS, ROUNDS_MAX, Router, Wires};
use crate::frame::FrameError;
use crate::message::{Outcome, ToFrontend, ToOwner};
use crate::planted::{self, Bug};
use tubes_protocol::Reply;

/// When a reserve times out, in ns; `u64::MAX` for never.
fn ends_at(now_ns: u64, timeout_s: Option<u32>, is_poll: bool) -> u64 {
    match timeout_s {
        Some(seconds) if !is_poll => now_ns + u64::from(seconds) * 1_000_000_000,
        _ => u64::MAX,
    }
}

impl Router {
    pub(super) fn reserve(&mut self, now_ns: u64, id: ClientId, timeout_s: Option<u32>, wires: &mut impl Wires) {
        let owner_wait_ns = self.options.owner_wait_ns;
        let client = self.client_mut(id);
        client.forget_expired(now_ns);
        let owners = client.watched_owners();
        let number = client.next_wait;
        client.next_wait = client.next_wait.wrapping_add(1);
        // A peer that has half-closed cannot wait.
        let is_poll = timeout_s == Some(0) || client.is_half_closed;
        let in_margin = client.in_margin(now_ns);
        let session = client.session;
        for owner in owners.iter() {
            client.touched.insert(owner);
        }
        if let Some(owner) = client.only_watched_owner() {
            let in_margin = match planted::is(Bug::SoonForJobsLetGo) {
                true => in_margin,
                false => client.in_margin_elsewhere(now_ns, owner),
            };
            let message = ToOwner::Reserve { wait: number, in_margin, is_poll };
            let is_behind = client.is_busy();
            client.busy_owner = owner;
            client.bodies += 1;
            wires.to_owner(owner, session, &message);
            if is_behind {
                client.behind_bytes += message.weight();
                client.pending.push_back(Pending::Reserve { number, timeout_s, is_poll });
            } else {
                self.begin_wait(now_ns, id, number, timeout_s, is_poll, wires);
            }
            return;
        }
        let until = ends_at(now_ns, timeout_s, is_poll);
        let mut wait = Wait { number, began: now_ns, until, is_poll, owners, ending: None, round: None };
        let away: OwnerSet = owners.iter().filter(|owner| !self.up.contains(*owner)).collect();
        let give_up_at = if is_poll && !away.is_empty() { now_ns + owner_wait_ns } else { u64::MAX };
        wait.round = Some(Round { asked: owners, accept_at: u64::MAX, give_up_at, ..Round::default() });
        self.client_mut(id).wait = Some(wait);
        for owner in owners.iter().filter(|owner| !away.contains(*owner)) {
            wires.to_owner(owner, session, &ToOwner::Ask { wait: number, in_margin, is_poll });
        }
        if !is_poll {
            // Owners that are away are asked when they are back.
            self.round_mut(id).asked = owners.iter().filter(|owner| !away.contains(*owner)).collect();
        }
        self.waiting_count += 1;
        self.arm(id);
    }

    /// A reserve over one owner waits from now on, as far as its client is concerned; the owner may have answered.
    pub(super) fn begin_wait(
        &mut self,
        now_ns: u64,
        id: ClientId,
        number: u32,
        timeout_s: Option<u32>,
        is_poll: bool,
        wires: &mut impl Wires,
    ) {
        let client = self.client_mut(id);
        let until = ends_at(now_ns, timeout_s, is_poll);
        let owners = std::iter::once(client.busy_owner).collect();
        client.wait = Some(Wait { number, began: now_ns, until, is_poll, owners, ending: None, round: None });
        let is_half_closed = client.is_half_closed;
        self.waiting_count += 1;
        self.arm(id);
        if is_half_closed && !is_poll {
            self.end_wait(now_ns, id, Ending::TimedOut, wires);
        }
    }

    /// The client's wait is over.
    fn take_wait(&mut self, id: ClientId) -> Wait {
        let client = self.client_mut(id);
        let wait = client.wait.take().expect("only a wait ends");
        client.bodies -= u32::from(wait.round.is_none());
        self.waiting_count -= 1;
        wait
    }

    fn round_mut(&mut self, id: ClientId) -> &mut Round {
        self.client_mut(id).wait.as_mut().and_then(|wait| wait.round.as_mut()).expect("several owners are asked")
    }

    /// A message about a wait.
    pub(super) fn wait_message(
        &mut self,
        now_ns: u64,
        owner: u16,
        id: ClientId,
        message: ToFrontend<'_>,
        wires: &mut impl Wires,
    ) -> Result<(), FrameError> {
        let number = match message {
            ToFrontend::Served { wait, .. }
            | ToFrontend::Offer { wait, .. }
            | ToFrontend::Nothing { wait, .. }
            | ToFrontend::Gone { wait }
            | ToFrontend::Withdrawn { wait } => wait,
            ToFrontend::Reply { .. } | ToFrontend::Names(_) => return Err(FrameError::Message),
        };
        let current = self.client(id).wait.as_ref().map(|wait| wait.number);
        if current != Some(number) {
            return match message {
                // A job that crossed the end of a wait over several owners cannot be: it is accepted before.
                ToFrontend::Served { outcome: Outcome::Held { .. }, .. } => Err(FrameError::Message),
                // Of a wait that is over: an offer was given back with it.
                _ => Ok(()),
            };
        }
        match message {
            ToFrontend::Served { outcome, bytes, .. } => self.served(now_ns, owner, id, outcome, bytes, wires),
            ToFrontend::Offer { offer, pri, id: job, .. } => {
                let round = self.client_mut(id).wait.as_mut().and_then(|wait| wait.round.as_mut());
                let round = round.ok_or(FrameError::Message)?;
                round.asked.remove(owner);
                round.soon.remove(owner);
                round.offers.insert((pri, job), (owner, offer));
                if round.accept_at == u64::MAX {
                    round.accept_at = now_ns + OFFERS_NS;
                }
                self.decide(now_ns, id, wires);
            }
            ToFrontend::Nothing { is_soon, .. } => {
                let round = self.client_mut(id).wait.as_mut().and_then(|wait| wait.round.as_mut());
                let round = round.ok_or(FrameError::Message)?;
                round.asked.remove(owner);
                if is_soon {
                    round.soon.insert(owner);
                } else {
                    round.soon.remove(owner);
                }
                self.decide(now_ns, id, wires);
            }
            ToFrontend::Gone { .. } => {
                let round = self.client_mut(id).wait.as_mut().and_then(|wait| wait.round.as_mut());
                let round = round.ok_or(FrameError::Message)?;
                round.accepting = None;
                round.has_missed = true;
                self.decide(now_ns, id, wires);
            }
            ToFrontend::Withdrawn { .. } => self.withdrawn(now_ns, owner, id, wires),
            ToFrontend::Reply { .. } | ToFrontend::Names(_) => unreachable!("sorted out above"),
        }
        Ok(())
    }

    /// The wait has its result.
    fn served(
        &mut self,
        now_ns: u64,
        owner: u16,
        id: ClientId,
        outcome: Outcome,
        bytes: &[u8],
        wires: &mut impl Wires,
    ) {
        let wait = self.take_wait(id);
        let session = self.client(id).session;
        if wait.ending.is_none() && !planted::is(Bug::OthersNotWithdrawn) {
            for other in wait.owners.iter().filter(|other| *other != owner) {
                if self.up.contains(other) {
                    wires.to_owner(other, session, &ToOwner::Withdraw { wait: wait.number });
                }
            }
        }
        if let Outcome::Held { id: job, deadline_ns } = outcome {
            self.holds(id, job, owner, deadline_ns);
        }
        wires.to_client(id, bytes);
        self.go_on_behind(now_ns, id, wires);
        wires.wake(id);
    }

    /// Accepts the best offer if it is time, or ends a round without one.
    pub(super) fn decide(&mut self, now_ns: u64, id: ClientId, wires: &mut impl Wires) {
        let up = self.up;
        let owner_wait_ns = self.options.owner_wait_ns;
        let client = self.client_mut(id);
        let session = client.session;
        let in_margin = client.in_margin(now_ns);
        let wait = client.wait.as_mut().expect("only a wait is decided");
        if wait.ending.is_some() {
            return;
        }
        let (number, is_poll, owners) = (wait.number, wait.is_poll, wait.owners);
        let round = wait.round.as_mut().expect("several owners are asked");
        let ends_early = is_poll && round.offers.is_empty() && planted::is(Bug::PollEndsEarly);
        if round.accepting.is_some() || !round.asked.is_empty() && now_ns < round.accept_at && !ends_early {
            return;
        }
        if let Some((_, (owner, offer))) = round.offers.pop_first() {
            round.accepting = Some(owner);
            round.accept_at = if round.offers.is_empty() { u64::MAX } else { now_ns };
            wires.to_owner(owner, session, &ToOwner::Accept { wait: number, offer });
            return;
        }
        round.accept_at = u64::MAX;
        if !round.asked.is_empty() && !ends_early {
            return;
        }
        if in_margin && round.soon == owners {
            return self.end_wait(now_ns, id, Ending::DeadlineSoon, wires);
        }
        if !is_poll {
            // It stays parked; owners offer what comes.
            return;
        }
        if round.has_missed && round.rounds < ROUNDS_MAX {
            round.has_missed = false;
            round.rounds += 1;
            round.asked = owners;
            if owners.iter().any(|owner| !up.contains(owner)) {
                // Those that are away are asked when they are back.
                round.give_up_at = round.give_up_at.min(now_ns.saturating_add(owner_wait_ns));
            }
            for owner in owners.iter().filter(|owner| up.contains(*owner)) {
                wires.to_owner(owner, session, &ToOwner::Ask { wait: number, in_margin, is_poll });
            }
            return;
        }
        self.end_wait(now_ns, id, Ending::TimedOut, wires);
    }

    /// Ends a wait: its answer leaves when every owner has confirmed; a job that crosses is the answer instead.
    pub(super) fn end_wait(&mut self, now_ns: u64, id: ClientId, ending: Ending, wires: &mut impl Wires) {
        let close_at = now_ns.saturating_add(self.options.owner_wait_ns);
        let up = self.up;
        let client = self.client_mut(id);
        let session = client.session;
        let wait = client.wait.as_mut().expect("only a wait can end");
        if wait.ending.is_some() {
            return;
        }
        wait.ending = Some((ending, close_at));
        wait.owners = wait.owners.iter().filter(|owner| up.contains(*owner)).collect();
        let number = wait.number;
        for owner in wait.owners.iter() {
            wires.to_owner(owner, session, &ToOwner::Withdraw { wait: number });
        }
        if wait.owners.is_empty() || planted::is(Bug::EndsUnconfirmed) {
            self.finish_wait(now_ns, id, wires);
        } else {
            self.arm(id);
        }
    }

    fn withdrawn(&mut self, now_ns: u64, owner: u16, id: ClientId, wires: &mut impl Wires) {
        let wait = self.client_mut(id).wait.as_mut().expect("only a wait is withdrawn");
        wait.owners.remove(owner);
        if wait.ending.is_some() && wait.owners.is_empty() {
            self.finish_wait(now_ns, id, wires);
        }
    }

    pub(super) fn finish_wait(&mut self, now_ns: u64, id: ClientId, wires: &mut impl Wires) {
        let wait = self.take_wait(id);
        let reply = match wait.ending {
            Some((Ending::DeadlineSoon, _)) => Reply::DeadlineSoon,
            _ => Reply::TimedOut,
        };
        Self::say(wires, id, &reply);
        self.go_on_behind(now_ns, id, wires);
        wires.wake(id);
    }

    /// Fires what is due at `now_ns`.
    pub fn tick(&mut self, now_ns: u64, wires: &mut impl Wires) {
        let due: Vec<ClientId> = self.timers.range(..=(now_ns, ClientId(u32::MAX))).map(|timer| timer.1).collect();
        for id in due {
            let client = self.client_mut(id);
            let timer = std::mem::replace(&mut client.timer, u64::MAX);
            self.timers.remove(&(timer, id));
            self.due(now_ns, id, wires);
            self.arm(id);
        }
    }

    fn due(&mut self, now_ns: u64, id: ClientId, wires: &mut impl Wires) {
        let client = self.client_mut(id);
        if client.stalled.as_ref().is_some_and(|(_, until)| *until <= now_ns) {
            // The owner has been away for too long.
            client.stalled = None;
            self.stalled.remove(&id);
            self.local(id, &Reply::InternalError, wires);
            wires.wake(id);
            return;
        }
        let Some(wait) = &client.wait else { return };
        match wait.ending {
            Some((_, close_at)) => {
                if close_at <= now_ns {
                    wires.close(id);
                    self.client_mut(id).wait.as_mut().expect("as above").ending = Some((Ending::TimedOut, u64::MAX));
                }
                return;
            }
            None if client.margin_of(wait) <= now_ns => {
                return self.end_wait(now_ns, id, Ending::DeadlineSoon, wires);
            }
            None if wait.until <= now_ns => return self.end_wait(now_ns, id, Ending::TimedOut, wires),
            None => {}
        }
        let Some(round) = &wait.round else { return };
        if round.give_up_at <= now_ns && round.accepting.is_none() {
            // A poll over an owner that stays away. A job that is being accepted would still come.
            let owners = wait.owners;
            let (number, session) = (wait.number, client.session);
            let up = self.up;
            for owner in owners.iter().filter(|owner| up.contains(*owner)) {
                wires.to_owner(owner, session, &ToOwner::Withdraw { wait: number });
            }
            self.take_wait(id);
            Self::say(wires, id, &Reply::InternalError);
            wires.wake(id);
            return;
        }
        self.decide(now_ns, id, wires);
    }
}
