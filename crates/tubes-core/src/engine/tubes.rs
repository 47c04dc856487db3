//! Commands about tubes: `use`, `watch`, `ignore`, `pause-tube` and the lists.

use super::{Engine, Outbox, Timer, Turn, seconds_ns};
use crate::journal::Journal;
use crate::session::{NO_TUBE, SessionId};
use tubes_protocol::Reply;

impl Engine {
    pub(super) fn use_tube<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32, name: &[u8]) {
        self.counts.use_tube += 1;
        let at = self.tube_or_create(name);
        self.tubes[at].using_count += 1;
        let before = std::mem::replace(&mut self.sessions[session].used, at);
        if before != NO_TUBE {
            self.tubes[before].using_count -= 1;
            self.drop_if_unreferenced(before);
        }
        turn.out.reply(SessionId(session), &Reply::Using(name));
    }

    pub(super) fn watch<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32, name: &[u8]) {
        self.counts.watch += 1;
        let at = self.tube_or_create(name);
        let watched = &mut self.sessions[session].watched;
        if !watched.contains(&at) {
            watched.push(at);
            self.tubes[at].watching_count += 1;
        }
        turn.out.reply(SessionId(session), &Reply::Watching(watched.len()));
    }

    pub(super) fn ignore<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32, name: &[u8]) {
        self.counts.ignore += 1;
        let watched = &mut self.sessions[session].watched;
        let place = self.tube_places.get(name).and_then(|at| watched.iter().position(|watched| watched == at));
        match place {
            None => turn.out.reply(SessionId(session), &Reply::Watching(watched.len())),
            Some(_) if watched.len() == 1 => turn.out.reply(SessionId(session), &Reply::NotIgnored),
            Some(place) => {
                let at = watched.remove(place);
                turn.out.reply(SessionId(session), &Reply::Watching(watched.len()));
                self.tubes[at].watching_count -= 1;
                self.drop_if_unreferenced(at);
            }
        }
    }

    pub(super) fn pause_tube<J: Journal, O: Outbox>(
        &mut self,
        turn: &mut Turn<'_, J, O>,
        session: u32,
        name: &[u8],
        delay_s: u32,
    ) {
        self.counts.pause_tube += 1;
        let Some(at) = self.tube_places.get(name).copied() else {
            return turn.out.reply(SessionId(session), &Reply::NotFound);
        };
        self.end_pause(at);
        let tube = &mut self.tubes[at];
        tube.pause_count += 1;
        if delay_s > 0 {
            for offer in tube.offered.iter().map(|key| self.jobs[key.place].key).collect::<Vec<_>>() {
                self.settle_offer(offer);
            }
            let tube = &mut self.tubes[at];
            tube.pause_s = delay_s;
            tube.paused_until = turn.now.boot_ns + seconds_ns(delay_s);
            self.timers.insert((tube.paused_until, Timer::Pause(at)));
        }
        turn.out.reply(SessionId(session), &Reply::Paused);
    }

    /// Lifts a pause, if there is one, for those who wait.
    pub(super) fn end_pause(&mut self, at: u32) {
        let tube = &mut self.tubes[at];
        if tube.is_paused() {
            self.timers.remove(&(tube.paused_until, Timer::Pause(at)));
            tube.paused_until = 0;
            tube.pause_s = 0;
            self.dirty_tubes.push(at);
        }
    }

    pub(super) fn list_tubes<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32) {
        self.counts.list_tubes += 1;
        let names: Vec<&[u8]> = self.tubes_by_creation.values().map(|at| &*self.tubes[*at].name).collect();
        turn.out.reply(SessionId(session), &Reply::Names(&names));
    }

    pub(super) fn list_tube_used<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32) {
        self.counts.list_tube_used += 1;
        let used = &self.tubes[self.sessions[session].used].name;
        turn.out.reply(SessionId(session), &Reply::Using(used));
    }

    pub(super) fn list_tubes_watched<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32) {
        self.counts.list_tubes_watched += 1;
        let names: Vec<&[u8]> = self.sessions[session].watched.iter().map(|at| &*self.tubes[*at].name).collect();
        turn.out.reply(SessionId(session), &Reply::Names(&names));
    }
}
