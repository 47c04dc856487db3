//! That a command is carried out at most once, where and when it may be.
//!
//! Owns: the commands that each session's frontend was given, and what owners have carried out of them.

use std::collections::{BTreeMap, BTreeSet};

use supervisor::Instance;
use tubes_link::ToOwner;
use tubes_protocol::Command;

use super::process::Pid;
use super::world::{Checked, World};

/// A session: life of the server, frontend, number.
pub(super) type Key = (u64, Instance, u64);

#[derive(Debug, Default)]
struct Session {
    /// Lines, and bodies behind them for puts.
    commands: Vec<Vec<u8>>,
    /// Commands below were carried out or passed over.
    next: usize,
    /// Owners that have carried out the one before `next`.
    last_at: BTreeSet<u16>,
    /// Waits that were answered with a job.
    served: BTreeSet<u32>,
}

/// All sessions.
#[derive(Debug, Default)]
pub(super) struct Executions {
    sessions: BTreeMap<Key, Session>,
    /// Sessions that have ended at their frontends: what they sent may still arrive.
    ended: Vec<Key>,
    pub(super) count: u64,
}

fn text_of(command: &Command<'_>) -> Vec<u8> {
    let mut text = Vec::new();
    match command {
        Command::Put { pri, delay_s, ttr_s, body } => {
            text.extend_from_slice(format!("put {pri} {delay_s} {ttr_s} ").as_bytes());
            text.extend_from_slice(body);
        }
        other => {
            other.encode_line(&mut text);
        }
    }
    text
}

impl Executions {
    pub(super) fn asked(&mut self, key: Key, command: &Command<'_>) {
        self.sessions.entry(key).or_default().commands.push(text_of(command));
    }

    pub(super) fn ended(&mut self, key: Key) {
        self.ended.push(key);
        if self.ended.len() > 256 {
            for key in self.ended.drain(..128) {
                self.sessions.remove(&key);
            }
        }
    }

    fn carried_out(&mut self, key: Key, owner: u16, text: &[u8]) -> Checked {
        // A session so old that it was forgotten is not judged.
        let Some(session) = self.sessions.get_mut(&key) else { return Ok(()) };
        self.count += 1;
        let rest = &session.commands[session.next..];
        if let Some(place) = rest.iter().position(|command| command == text) {
            session.next += place + 1;
            session.last_at = BTreeSet::from([owner]);
            return Ok(());
        }
        let is_last = session.next > 0 && session.commands[session.next - 1] == text;
        if is_last && session.last_at.insert(owner) {
            // One that is asked of all owners.
            return Ok(());
        }
        Err(format!("{:?} is carried out again, or was never asked", String::from_utf8_lossy(text)))
    }

    /// A job answers a wait.
    pub(super) fn result(&mut self, key: Key, wait: u32) -> Checked {
        let Some(session) = self.sessions.get_mut(&key) else { return Ok(()) };
        if session.served.insert(wait) { Ok(()) } else { Err(format!("the wait {wait} of {key:?} has two results")) }
    }
}

impl World {
    /// An owner carries out a message of a session of `peer`.
    pub(super) fn executed(&mut self, owner: Pid, peer: Instance, session: u64, message: &ToOwner<'_>) -> Checked {
        let text = match message {
            ToOwner::Line(line) => line.to_vec(),
            ToOwner::Put { pri, delay_s, ttr_s, body } => {
                let command = Command::Put { pri: *pri, delay_s: *delay_s, ttr_s: *ttr_s, body: (*body).into() };
                text_of(&command)
            }
            ToOwner::ListTubes => text_of(&Command::ListTubes),
            _ => return Ok(()),
        };
        let key = (owner.life, peer, session);
        self.executions
            .carried_out(key, owner.who.slot, &text)
            .map_err(|what| format!("{}, session {session} of {peer}: {what}", owner.who))
    }

    /// Looks at the waits that were answered with a job.
    pub(super) fn results_are_single(&mut self) -> Checked {
        for (life, peer, session, wait) in std::mem::take(&mut self.results_of_waits) {
            self.executions.result((life, peer, session), wait)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use supervisor::Role;

    const FRONTEND: Instance = Instance { role: Role::Frontend, slot: 0, generation: 1 };
    const KEY: Key = (1, FRONTEND, 1);

    fn asked(commands: &[Command<'_>]) -> Executions {
        let mut executions = Executions::default();
        for command in commands {
            executions.asked(KEY, command);
        }
        executions
    }

    #[test]
    fn commands_in_order_pass_and_one_may_be_asked_of_all_owners() {
        let mut all = asked(&[Command::Delete(5), Command::ListTubes, Command::Delete(5)]);
        for (owner, text) in [(0, "delete 5"), (0, "list-tubes"), (1, "list-tubes"), (1, "delete 5")] {
            all.carried_out(KEY, owner, text.as_bytes()).expect("an honest life");
        }
    }

    #[test]
    fn a_command_is_carried_out_twice() {
        let mut all = asked(&[Command::Delete(5)]);
        all.carried_out(KEY, 0, b"delete 5").expect("once");
        all.carried_out(KEY, 0, b"delete 5").expect_err("by the owner's next process again");
    }

    #[test]
    fn a_command_is_carried_out_behind_a_later_one() {
        let mut all = asked(&[Command::Delete(5), Command::Delete(6)]);
        all.carried_out(KEY, 0, b"delete 6").expect("the one before was answered elsewhere");
        all.carried_out(KEY, 1, b"delete 5").expect_err("too late");
    }

    #[test]
    fn a_command_is_carried_out_that_was_never_asked() {
        asked(&[Command::Delete(5)]).carried_out(KEY, 0, b"delete 7").expect_err("of an earlier generation");
    }

    #[test]
    fn a_wait_has_two_results() {
        let mut all = asked(&[Command::Reserve { timeout_s: None }]);
        all.result(KEY, 0).expect("one owner's");
        all.result(KEY, 0).expect_err("another owner's");
    }
}
