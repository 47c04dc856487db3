//! The drain: no new job anywhere, owners first.
//!
//! Owns: who is told, and when all have answered.
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
                self.tell_drain(Role::Owner, out);
                self.advance_drain(out);
            }
            Drain::Owners | Drain::Frontends => {}
            Drain::Done => out.push(Output::Report(Report::Drained)),
        }
    }

    pub(super) fn tell_drain(&mut self, role: Role, out: &mut Vec<Output>) {
        for entry in self.entries.iter_mut().filter(|entry| entry.place.role == role && !entry.drain_acked) {
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
        let has_acked = |rules: &Rules, role| {
            rules.entries.iter().filter(|entry| entry.place.role == role).all(|entry| entry.drain_acked)
        };
        if self.drain == Drain::Owners && has_acked(self, Role::Owner) {
            self.drain = Drain::Frontends;
            self.tell_drain(Role::Frontend, out);
        }
        if self.drain == Drain::Frontends && has_acked(self, Role::Frontend) {
            self.drain = Drain::Done;
            out.push(Output::Report(Report::Drained));
        }
    }
}

/// The step of a drain in which processes of `role` are told.
pub(super) fn drain_step(role: Role) -> Drain {
    match role {
        Role::Owner => Drain::Owners,
        Role::Frontend => Drain::Frontends,
    }
}
