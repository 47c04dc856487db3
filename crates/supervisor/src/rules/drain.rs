//! The drain: no new job anywhere, first where the jobs are, then where the clients are.
//!
//! Owns: who is told, and when all have answered. The daemon is not: it has no jobs of the tubes.
//! Never: ends a drain; only a restart of the whole server does.

use super::*;

impl Rules {
    pub(super) fn begin_drain(&mut self, out: &mut Vec<Output>) {
        if self.is_stopping() {
            return;
        }
        match self.drain {
            Drain::Off => {
                self.drain = Drain::Owners;
                out.push(Output::SetDraining);
                out.push(Output::Report(Report::Draining));
                self.tell_drain(Drain::Owners, out);
                self.advance_drain(out);
            }
            Drain::Owners | Drain::Frontends => {}
            Drain::Done => out.push(Output::Report(Report::Drained)),
        }
    }

    /// Tells all whose turn it is in this step.
    fn tell_drain(&mut self, step: Drain, out: &mut Vec<Output>) {
        let is_of_step = |entry: &&mut Entry| drain_step(entry.place.role) == Some(step) && !entry.drain_acked;
        for entry in self.entries.iter_mut().filter(is_of_step) {
            match entry.state {
                State::Starting { .. } | State::Ready { .. } => {
                    out.push(Output::Tell { who: entry.instance(), what: Instruction::Drain });
                }
                State::Failed => entry.drain_acked = true,
                // A process to come, or to end: its successor is started drained.
                State::Down { .. } | State::Spawning | State::Killed => {}
            }
        }
    }

    pub(super) fn advance_drain(&mut self, out: &mut Vec<Output>) {
        let has_acked = |rules: &Rules, step| {
            let mut of_step = rules.entries.iter().filter(|entry| drain_step(entry.place.role) == Some(step));
            of_step.all(|entry| entry.drain_acked)
        };
        if self.drain == Drain::Owners && has_acked(self, Drain::Owners) {
            self.drain = Drain::Frontends;
            self.tell_drain(Drain::Frontends, out);
        }
        if self.drain == Drain::Frontends && has_acked(self, Drain::Frontends) {
            self.drain = Drain::Done;
            out.push(Output::Report(Report::Drained));
        }
    }
}

/// The step of a drain in which processes of `role` are told, if they are.
pub(super) fn drain_step(role: Role) -> Option<Drain> {
    match role {
        Role::Owner | Role::Tubes => Some(Drain::Owners),
        Role::Frontend => Some(Drain::Frontends),
        Role::Daemon => None,
    }
}
