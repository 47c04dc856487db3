//! Where ready jobs and waiting sessions meet.

use super::{Engine, Outbox, Turn};
use crate::journal::Journal;
use crate::planted::{self, Bug};
use crate::session::{Wait, WaitKind};
use std::collections::BTreeSet;

impl Engine {
    /// Serves sessions that wait at the tubes in which something has changed: the smallest (priority, id) first, and in
    /// its tube the session that has waited longest.
    pub(super) fn serve_dirty<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>) {
        match self.dirty_tubes.len() {
            0 => {}
            1 => {
                let at = self.dirty_tubes[0];
                while self.serve_one(turn, at) {}
                self.dirty_tubes.clear();
            }
            _ => self.serve_several(turn),
        }
        if !self.polls.is_empty() {
            self.end_hopeless_polls(turn);
        }
    }

    fn serve_several<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>) {
        let mut heads = BTreeSet::new();
        for at in std::mem::take(&mut self.dirty_tubes) {
            // A tube may have vanished behind the job that made it dirty.
            heads.extend(self.tubes.get(at).and_then(|tube| self.head_for_waiters(tube)).map(|rank| (rank, at)));
        }
        while let Some((_, at)) = heads.pop_first() {
            // The session at the front may have been served from another tube; then somebody else stands there, or
            // nobody.
            self.serve_one(turn, at);
            heads.extend(self.head_for_waiters(&self.tubes[at]).map(|rank| (rank, at)));
        }
    }

    fn head_for_waiters(&self, tube: &crate::tube::Tube) -> Option<(u32, u64)> {
        if tube.waiting.is_empty() { None } else { tube.servable().map(crate::ready::ReadyKey::rank) }
    }

    /// Serves one session at one tube; `false` if there is no job or nobody waits.
    fn serve_one<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, at: u32) -> bool {
        let Some(tube) = self.tubes.get(at) else { return false };
        let head = if planted::is(Bug::PauseIgnoredByWaiters) { tube.ready.first() } else { tube.servable() };
        let (Some(head), Some((_, session))) = (head, tube.waiting.first_key_value()) else { return false };
        let session = *session;
        if matches!(self.sessions[session].wait, Some(Wait { kind: WaitKind::Offer { .. }, .. })) {
            self.make_offer(turn, session, head);
            return true;
        }
        if planted::is(Bug::ServedKeepsWaiting) {
            let order = self.sessions[session].wait.map_or(0, |wait| wait.order);
            self.tubes[at].waiting.remove(&order);
            if self.sessions[session].wait.take().is_some() {
                self.waiting_count -= 1;
            }
        } else {
            self.end_wait(session);
        }
        self.hand_out(turn, head.place, session);
        true
    }
}
