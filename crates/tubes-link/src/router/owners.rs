//! Owners that come and go.

use super::{ClientId, Router, Wires};
use crate::message::ToOwner;
use crate::planted::{self, Bug};

impl Router {
    /// Whether an owner is there.
    #[must_use]
    pub fn is_up(&self, owner: u16) -> bool {
        self.up.contains(owner)
    }

    /// An owner, or its next generation, can be reached: it is told of every session that refers to it, then what waited
    /// for it goes on.
    pub fn owner_up(&mut self, now_ns: u64, owner: u16, wires: &mut impl Wires) {
        self.up.insert(owner);
        for at in 0..self.clients.len() as u32 {
            let id = ClientId(at);
            if self.clients[at as usize].is_some() {
                self.announce(id, owner, wires);
                self.ask_again(now_ns, id, owner, wires);
            }
        }
        self.room(now_ns, wires);
    }

    /// An owner is lost. Clients whose work there has an unknown result are closed; call this before anything is said to
    /// the next generation.
    pub fn owner_down(&mut self, now_ns: u64, owner: u16, wires: &mut impl Wires) {
        self.up.remove(owner);
        for at in 0..self.clients.len() as u32 {
            let id = ClientId(at);
            let Some(client) = self.clients[at as usize].as_mut() else { continue };
            client.touched.remove(owner);
            client.forget_expired(now_ns);
            let holds = client.holds_at(owner);
            let asks = !client.pending.is_empty() && client.busy_owner == owner
                || client.gather.as_ref().is_some_and(|gather| gather.needs(owner));
            let waits = match &mut client.wait {
                Some(wait) if wait.owners.contains(owner) => match &mut wait.round {
                    // A reserve over several owners goes on with the others, unless this one's offer was accepted.
                    Some(round) if round.accepting != Some(owner) && !wait.is_poll => {
                        round.asked.remove(owner);
                        round.soon.remove(owner);
                        if !planted::is(Bug::LostOffersStay) {
                            round.offers.retain(|_, (offering, _)| *offering != owner);
                        }
                        if wait.ending.is_some() {
                            wait.owners.remove(owner);
                        }
                        false
                    }
                    Some(round) if round.accepting != Some(owner) => {
                        if !planted::is(Bug::LostOffersStay) {
                            round.offers.retain(|_, (offering, _)| *offering != owner);
                        }
                        round.asked.insert(owner);
                        round.give_up_at = now_ns.saturating_add(self.options.owner_wait_ns);
                        if wait.ending.is_some() {
                            wait.owners.remove(owner);
                        }
                        false
                    }
                    _ => true,
                },
                _ => false,
            };
            let holds = holds && !planted::is(Bug::HeldJobStays);
            let asks = asks && !planted::is(Bug::UnansweredStays);
            if holds || asks || waits {
                wires.close(id);
                continue;
            }
            let is_over = client.wait.as_ref().is_some_and(|wait| wait.ending.is_some() && wait.owners.is_empty());
            if is_over {
                self.finish_wait(now_ns, id, wires);
            }
            self.arm(id);
        }
        // What waited for room there waits for the owner from now on, and not for ever.
        self.room(now_ns, wires);
    }

    /// Tells an owner what a session uses and watches there.
    pub(super) fn announce(&mut self, id: ClientId, owner: u16, wires: &mut impl Wires) {
        let client = self.client_mut(id);
        let mut say = |word: &[u8], name: &[u8]| {
            wires.to_owner(owner, client.session, &ToOwner::Announce(&[word, name].concat()));
        };
        let mut is_known = false;
        if client.used.1 == owner {
            say(b"use ", &client.used.0);
            is_known = true;
        }
        for (name, watched_at) in &client.watched {
            if *watched_at == owner && !planted::is(Bug::NotAnnounced) {
                say(b"watch ", name);
                is_known = true;
            }
        }
        if is_known {
            client.touched.insert(owner);
        }
    }

    /// A reserve over several owners asks one that is back.
    fn ask_again(&mut self, now_ns: u64, id: ClientId, owner: u16, wires: &mut impl Wires) {
        let up = self.up;
        let client = self.client_mut(id);
        let in_margin = client.in_margin(now_ns);
        let session = client.session;
        let Some(wait) = &mut client.wait else { return };
        let is_complete = wait.owners.iter().all(|owner| up.contains(owner));
        let Some(round) = &mut wait.round else { return };
        if wait.ending.is_some() || !wait.owners.contains(owner) {
            return;
        }
        round.asked.insert(owner);
        if is_complete {
            round.give_up_at = u64::MAX;
        }
        let (wait, is_poll) = (wait.number, wait.is_poll);
        wires.to_owner(owner, session, &ToOwner::Ask { wait, in_margin, is_poll });
    }
}
