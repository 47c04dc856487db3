//! From an owner: replies to commands, and parts of what several owners are asked.

use super::client::{GatherKind, Pending};
use super::{ClientId, Router, Wires};
use crate::frame::FrameError;
use crate::message::{Outcome, ToFrontend};
use tubes_protocol::Reply;

impl Router {
    /// Takes one message of an owner.
    ///
    /// # Errors
    ///
    /// [`FrameError::Message`] if it answers nothing that was asked: the owner is broken.
    pub fn from_owner(
        &mut self,
        now_ns: u64,
        owner: u16,
        session: u64,
        message: ToFrontend<'_>,
        wires: &mut impl Wires,
    ) -> Result<(), FrameError> {
        // A client that is gone may still be answered; it hears nothing.
        let Some(id) = self.of_session(session) else { return Ok(()) };
        match message {
            ToFrontend::Reply { outcome, bytes } => self.reply(now_ns, owner, id, outcome, bytes, wires)?,
            ToFrontend::Names(bytes) => self.names(owner, id, bytes, wires)?,
            other => self.wait_message(now_ns, owner, id, other, wires)?,
        }
        if self.clients[id.0 as usize].is_some() {
            self.resume(now_ns, id, wires);
            if self.clients[id.0 as usize].is_some() {
                self.arm(id);
            }
        }
        Ok(())
    }

    fn reply(
        &mut self,
        now_ns: u64,
        owner: u16,
        id: ClientId,
        outcome: Outcome,
        bytes: &[u8],
        wires: &mut impl Wires,
    ) -> Result<(), FrameError> {
        if self.client(id).gather.is_some() {
            return self.gathered(owner, id, outcome, bytes, wires);
        }
        let was_full = !self.can_take(id);
        let client = self.client_mut(id);
        if client.wait.is_some() {
            // What is behind a wait is answered when it has ended.
            return Err(FrameError::Message);
        }
        let pending = client.pending.pop_front().ok_or(FrameError::Message)?;
        let is_put = matches!(pending, Pending::Put);
        match pending {
            Pending::Forward | Pending::Put => wires.to_client(id, bytes),
            Pending::Body => {
                client.bodies -= 1;
                wires.to_client(id, bytes);
            }
            Pending::Fixed(fixed) if outcome == Outcome::Done => wires.to_client(id, &fixed),
            Pending::Fixed(_) => wires.to_client(id, bytes),
            Pending::LetsGo(job) => {
                if outcome == Outcome::Done {
                    client.let_go(job);
                }
                wires.to_client(id, bytes);
            }
            Pending::Local(_) | Pending::Stats | Pending::Reserve { .. } => return Err(FrameError::Message),
        }
        if let Outcome::Held { id: job, deadline_ns } = outcome {
            self.holds(id, job, owner, deadline_ns);
        }
        self.go_on_behind(now_ns, id, wires);
        if was_full && self.can_take(id) || self.is_idle(id) || is_put {
            wires.wake(id);
        }
        Ok(())
    }

    /// Behind an answer: what stands at the front and needs no owner is answered, or a reserve begins to wait.
    pub(super) fn go_on_behind(&mut self, now_ns: u64, id: ClientId, wires: &mut impl Wires) {
        let client = self.client_mut(id);
        while let Some(front) = client.pending.front() {
            match front {
                Pending::Local(bytes) => {
                    client.local_bytes -= bytes.len();
                    wires.to_client(id, bytes);
                }
                Pending::Stats => wires.stats(id),
                Pending::Reserve { number, timeout_s, is_poll } => {
                    let (number, timeout_s, is_poll) = (*number, *timeout_s, *is_poll);
                    client.pending.pop_front();
                    return self.begin_wait(now_ns, id, number, timeout_s, is_poll, wires);
                }
                _ => return,
            }
            client.pending.pop_front();
        }
        client.behind_bytes = 0;
    }

    /// One owner's answer about an id that carries no partition.
    fn gathered(
        &mut self,
        owner: u16,
        id: ClientId,
        outcome: Outcome,
        bytes: &[u8],
        wires: &mut impl Wires,
    ) -> Result<(), FrameError> {
        let client = self.client_mut(id);
        let gather = client.gather.as_mut().ok_or(FrameError::Message)?;
        let GatherKind::Id { answer, lets_go } = &mut gather.kind else { return Err(FrameError::Message) };
        if !gather.left.contains(owner) {
            return Err(FrameError::Message);
        }
        gather.left.remove(owner);
        if outcome != Outcome::NotFound || answer.is_none() && gather.left.is_empty() {
            *answer = Some((owner, outcome, bytes.to_vec()));
        }
        if !gather.left.is_empty() {
            return Ok(());
        }
        let (lets_go, answer) = (*lets_go, answer.take());
        client.gather = None;
        if let Some((owner, outcome, bytes)) = answer {
            match outcome {
                Outcome::Held { id: job, deadline_ns } => self.holds(id, job, owner, deadline_ns),
                Outcome::Done => {
                    if let Some(job) = lets_go {
                        self.client_mut(id).let_go(job);
                    }
                }
                Outcome::NotFound | Outcome::Refused => {}
            }
            wires.to_client(id, &bytes);
        }
        wires.wake(id);
        Ok(())
    }

    /// One owner's tubes.
    fn names(&mut self, owner: u16, id: ClientId, bytes: &[u8], wires: &mut impl Wires) -> Result<(), FrameError> {
        let client = self.client_mut(id);
        let gather = client.gather.as_mut().ok_or(FrameError::Message)?;
        let GatherKind::Names(names) = &mut gather.kind else { return Err(FrameError::Message) };
        let mut rest = bytes;
        while !rest.is_empty() {
            if rest.len() < 9 || rest.len() < 9 + usize::from(rest[8]) {
                return Err(FrameError::Message);
            }
            let end = 9 + usize::from(rest[8]);
            names.insert((crate::frame::u64_at(rest, 0), rest[9..end].to_vec()), ());
            rest = &rest[end..];
        }
        gather.left.remove(owner);
        if gather.left.is_empty() {
            let names = std::mem::take(names);
            client.gather = None;
            let names: Vec<&[u8]> = names.keys().map(|(_, name)| &name[..]).collect();
            Self::say(wires, id, &Reply::Names(&names));
            wires.wake(id);
        }
        Ok(())
    }
}
