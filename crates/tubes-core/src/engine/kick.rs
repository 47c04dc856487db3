//! `kick` and `kick-job`.

use super::{Engine, Outbox, Turn};
use crate::journal::Journal;
use crate::planted::{self, Bug};
use crate::session::SessionId;
use tubes_protocol::{Reply, State};

impl Engine {
    /// Without log space for a further one it stops; only if none could be kicked for that reason is it refused.
    pub(super) fn kick<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32, bound: u32) {
        self.counts.kick += 1;
        let tube = self.sessions[session].used;
        let only_buried = !self.tubes[tube].buried.is_empty();
        let mut kicked = 0;
        while kicked < u64::from(bound) {
            let tube = &self.tubes[tube];
            let next = if !only_buried {
                tube.delayed.first().map(|key| key.2)
            } else if planted::is(Bug::KickFromTheEnd) {
                tube.buried.last_key_value().map(|(_, place)| *place)
            } else {
                tube.buried.first_key_value().map(|(_, place)| *place)
            };
            let Some(place) = next else { break };
            if !self.kick_one(turn, place) {
                if kicked == 0 {
                    return turn.out.reply(SessionId(session), &Reply::OutOfMemory);
                }
                break;
            }
            kicked += 1;
        }
        turn.out.reply(SessionId(session), &Reply::Kicked(kicked));
    }

    pub(super) fn kick_job<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32, id: u64) {
        let place = self.place_of(id);
        let kickable = place.filter(|place| matches!(self.jobs[*place].state, State::Buried | State::Delayed));
        let reply = match kickable {
            None => Reply::NotFound,
            Some(place) if self.kick_one(turn, place) => Reply::JobKicked,
            Some(_) => Reply::OutOfMemory,
        };
        turn.out.reply(SessionId(session), &reply);
    }

    /// Makes a buried or delayed job ready; `false` if the log has no space for it.
    fn kick_one<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, place: u32) -> bool {
        if !turn.journal.admit_state(self.jobs[place].placement()) {
            return false;
        }
        self.take_out(place);
        let counters = &mut self.jobs[place].counters;
        counters.kicks = counters.kicks.saturating_add(1);
        self.make_ready(place);
        self.log_state(turn, place);
        true
    }
}
