//! The stop: frontends first, then owners, then whatever is left. Tubes and daemon are told with the frontends and have
//! the time of both: the first has clients and a log, the second is nobody's peer.
//!
//! Owns: the barrier, the deadlines, and how the server has ended.
//! Never: starts a process.

use super::*;

impl Rules {
    pub(super) fn begin_stop(&mut self, now_ns: u64, outcome: Outcome, out: &mut Vec<Output>) {
        if self.is_stopping() {
            return;
        }
        self.outcome = outcome;
        self.phase = Phase::Barrier { until_ns: now_ns + STOP_FRONTENDS_NS, owners_until_ns: now_ns + STOP_NS };
        out.push(Output::Report(Report::Stopping));
        out.push(Output::CloseListeners);
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            let who = entry.instance();
            match &mut entry.state {
                State::Down { restart_at_ns } => *restart_at_ns = None,
                // It has served nobody yet; a recovery that is cut off is done again at the next start.
                State::Starting { .. } => self.kill(index, KillReason::Stop, out),
                State::Ready { .. } if who.role == Role::Frontend => {
                    let within_ms = STOP_FRONTENDS_NS / 1_000_000;
                    out.push(Output::Tell { who, what: Instruction::Barrier { within_ms } });
                }
                State::Ready { .. } if who.role != Role::Owner => {
                    let within_ms = STOP_NS / 1_000_000;
                    out.push(Output::Tell { who, what: Instruction::Stop { within_ms } });
                }
                State::Ready { .. } | State::Spawning | State::Killed | State::Failed => {}
            }
        }
        self.advance_stop(now_ns, out);
    }

    pub(super) fn advance_stop(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        let has_frontend = self.entries.iter().any(|entry| entry.place.role == Role::Frontend && entry.is_alive());
        if let Phase::Barrier { owners_until_ns, .. } = self.phase
            && !has_frontend
        {
            self.phase = Phase::Owners { until_ns: owners_until_ns };
            let within_ms = owners_until_ns.saturating_sub(now_ns) / 1_000_000;
            let owners = self.entries.iter().filter(|entry| entry.place.role == Role::Owner && entry.is_ready());
            let stop = Instruction::Stop { within_ms };
            out.extend(owners.map(|entry| Output::Tell { who: entry.instance(), what: stop }));
        }
        if matches!(self.phase, Phase::Owners { .. } | Phase::Killing { .. })
            && !self.entries.iter().any(Entry::is_alive)
        {
            self.finish(out);
        }
    }

    /// Kills whatever is `doomed` and has not ended. A process that did not finish in its time did not stop in order: an
    /// owner may not have synced, and nobody knows which replies a frontend still had.
    pub(super) fn kill_at_deadline(&mut self, doomed: impl Fn(Role) -> bool, out: &mut Vec<Output>) {
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if doomed(entry.place.role) && matches!(entry.state, State::Starting { .. } | State::Ready { .. }) {
                let place = entry.place;
                self.kill(index, KillReason::Stop, out);
                let reason = Some("it was killed at the deadline of the stop".to_owned());
                self.note_bad_stop(place, Failure { ending: Some(Ending::Signal(9)), reason });
            }
        }
    }

    pub(super) fn kill_everything(&mut self, now_ns: u64, outcome: Outcome, why: KillReason, out: &mut Vec<Output>) {
        self.outcome = outcome;
        self.phase = Phase::Killing { until_ns: now_ns + KILL_NS };
        out.push(Output::CloseListeners);
        for index in 0..self.entries.len() {
            if matches!(self.entries[index].state, State::Starting { .. } | State::Ready { .. }) {
                self.kill(index, why, out);
            }
        }
        self.advance_stop(now_ns, out);
    }

    /// The first slot that did not stop in order decides how the server ended, unless that is decided already.
    pub(super) fn note_bad_stop(&mut self, place: Slot, failure: Failure) {
        if self.outcome == Outcome::Stopped {
            self.outcome = Outcome::StoppedBadly { place, failure };
        }
    }

    pub(super) fn finish(&mut self, out: &mut Vec<Output>) {
        self.phase = Phase::Finished;
        out.push(Output::Finish(self.outcome.clone()));
    }
}
