//! The links between processes: one for each pair of a ready owner and a ready frontend.
//!
//! Owns: which link is the present one of a pair, and when a broken one is replaced.
//! Never: carries a byte. A link that ends with one of its processes is no broken link: it is forgotten.
//!
//! A pair whose link breaks while both live gets another one after a delay that doubles from break to break, as that of
//! restarts: so a fault that comes back at once costs little, and the end of a process, which breaks its links a moment
//! before it is known, replaces none.

use super::*;

/// The shortest delay before a broken link is replaced: long enough for the end of a process to be known.
const DELAY_NS_MIN: u64 = SECOND_NS / 10;

/// A link, and what is to become of it.
#[derive(Debug)]
pub(super) struct LinkState {
    pub(super) owner: Instance,
    pub(super) frontend: Instance,
    /// Rises with each link made.
    number: u64,
    made_ns: u64,
    /// Breaks since the last calm time: exponent of the delay.
    tries: u32,
    /// It is broken, and replaced then.
    remake_at_ns: Option<u64>,
}

impl LinkState {
    fn other(&self, who: Instance) -> Option<Instance> {
        if who == self.owner {
            Some(self.frontend)
        } else if who == self.frontend {
            Some(self.owner)
        } else {
            None
        }
    }
}

impl Rules {
    /// Links a process that has become ready to all ready peers. Whichever of two becomes ready last brings their link
    /// about: exactly one per pair.
    pub(super) fn link_to_all(&mut self, now_ns: u64, who: Instance, out: &mut Vec<Output>) {
        let Some(peers) = who.role.peer() else { return };
        for peer in self.entries.iter().filter(|peer| peer.is_ready() && peer.place.role == peers) {
            let (owner, frontend) =
                if who.role == Role::Owner { (who, peer.instance()) } else { (peer.instance(), who) };
            self.links_made += 1;
            let number = self.links_made;
            self.links.push(LinkState { owner, frontend, number, made_ns: now_ns, tries: 0, remake_at_ns: None });
            out.push(Output::Link { owner, frontend, number });
        }
    }

    /// Forgets the links of a process that has ended; those at the other ends.
    pub(super) fn end_links_of(&mut self, who: Instance) -> Vec<Instance> {
        let peers = self.links.iter().filter_map(|link| link.other(who)).collect();
        self.links.retain(|link| link.other(who).is_none());
        peers
    }

    /// A process says that the link `number` is of no use any more. Both ends may say so, and one may mean a link that
    /// was replaced meanwhile.
    pub(super) fn link_lost(&mut self, now_ns: u64, by: Instance, peer: Instance, number: u64, out: &mut Vec<Output>) {
        let base_ns = nanoseconds(self.config.restart.delay).max(DELAY_NS_MIN);
        let Some(link) = self.links.iter_mut().find(|link| link.number == number && link.other(by) == Some(peer))
        else {
            return;
        };
        if link.remake_at_ns.is_some() {
            return;
        }
        if now_ns.saturating_sub(link.made_ns) >= CALM_NS {
            link.tries = 0;
        }
        let delay_ns = delay(base_ns, link.tries, &mut self.jitter);
        link.tries = link.tries.saturating_add(1);
        link.remake_at_ns = Some(now_ns + delay_ns);
        let (owner, frontend) = (link.owner, link.frontend);
        // In a stop links end with their processes, a moment before these are known to have ended.
        if !self.is_stopping() {
            out.push(Output::Report(Report::LinkBroken { owner, frontend, delay_ms: delay_ns / 1_000_000 }));
        }
    }

    /// When the next broken link is to be replaced.
    pub(super) fn next_remake(&self) -> Option<u64> {
        self.links.iter().filter_map(|link| link.remake_at_ns).min()
    }

    /// Replaces the broken links that are due.
    pub(super) fn remake_links(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        let is_ready = |who: Instance| {
            self.entries.iter().any(|entry| entry.place == who.place() && entry.is_ready() && entry.instance() == who)
        };
        for link in &mut self.links {
            if link.remake_at_ns.is_none_or(|due_ns| due_ns > now_ns) {
                continue;
            }
            link.remake_at_ns = None;
            // One that is being killed ends soon, and all its links with it.
            if is_ready(link.owner) && is_ready(link.frontend) {
                self.links_made += 1;
                link.number = self.links_made;
                link.made_ns = now_ns;
                out.push(Output::Link { owner: link.owner, frontend: link.frontend, number: link.number });
            }
        }
    }
}
