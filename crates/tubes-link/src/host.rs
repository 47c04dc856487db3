//! An owner's side: sessions of frontends, and the engine that serves them.

use crate::frame::FrameError;
use crate::message::{Outcome, ToFrontend, ToOwner};
use crate::planted::{self, Bug};
use crate::writer::Writer;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use tubes_core::journal::Journal;
use tubes_core::{Engine, Now, NumberHasher, Offered, Outbox, PARTITIONS, SessionId, partition_of};
use tubes_protocol::{Command, Line, Reply, ServerStats, parse_line};

/// What an owner reaches besides its engine and log.
pub trait HostOut {
    /// The link to a frontend, if there is one; what is said to one that is gone is said to nobody.
    fn link(&mut self, frontend: u16) -> Option<&mut Writer>;

    /// Draws from the counter of ids that all owners share.
    fn next_id_count(&mut self) -> u64;

    /// Draws from the counter of created tubes that all owners share.
    fn next_creation(&mut self) -> u64;

    /// Whether the server drains. Asked in the step that would make a job, so that whoever has seen the server drain
    /// gets no job in any more, though this owner may not have been told yet.
    fn is_draining(&self) -> bool;

    /// Something was done for a session of a frontend; called in the order of deeds.
    #[cfg(feature = "trace")]
    fn did(&mut self, _frontend: u16, _session: u64, _deed: &Deed<'_>) {}
}

/// What an owner does for a session, for the history checker (feature `trace`).
#[cfg(feature = "trace")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed<'a> {
    /// The session's oldest message that wants a reply is answered by this line, or its first.
    Replied(&'a [u8]),
    /// A wait is over, answered by this line.
    Served {
        /// Its number.
        wait: u32,
        /// The reply without body.
        line: &'a [u8],
    },
    /// The session uses or watches a tube here by an announcement, or uses one elsewhere from here on (`unuse`).
    Told(&'a [u8]),
    /// A job is offered to a wait.
    Offered {
        /// Its number.
        wait: u32,
        /// The job.
        id: u64,
    },
    /// A wait that several owners are asked about hears that there is no job.
    Nothing {
        /// Its number.
        wait: u32,
        /// A deadline is near.
        is_soon: bool,
    },
    /// An accepted offer was no more.
    Gone {
        /// The wait's number.
        wait: u32,
    },
    /// A wait is about to be withdrawn.
    Withdrew {
        /// Its number.
        wait: u32,
    },
    /// The session is about to end.
    Ended,
}

/// The sessions of all frontends at this owner.
#[derive(Debug, Default)]
pub struct Host {
    /// By frontend.
    sessions: Vec<HashMap<u64, SessionId, BuildHasherDefault<NumberHasher>>>,
    remotes: Vec<Remote>,
    /// Sessions whose wait has ended while messages are kept behind it.
    freed: Vec<SessionId>,
}

/// A frontend has sent what makes no sense: its link must be reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken {
    /// Its slot.
    pub frontend: u16,
    /// What was wrong.
    pub error: FrameError,
}

/// Messages kept behind a wait, at most; a frontend has fewer under way.
const BEHIND_MAX: usize = 256;

/// Whose session it is, and what its next reply is.
#[derive(Debug, Default)]
struct Remote {
    frontend: u16,
    session: u64,
    /// The reserve under way: what is said of it names the wait.
    wait: Option<u32>,
    /// It waits, or waited last, for offers.
    is_asked: bool,
    /// Nobody waits for the next reply.
    is_silent: bool,
    /// What came behind a reserve that waits: kind and payload.
    behind: VecDeque<(u8, Box<[u8]>)>,
}

impl Host {
    /// No sessions yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of sessions.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.iter().map(HashMap::len).sum()
    }

    /// Takes one message of a frontend: carries it out, or keeps it while a reserve before it waits.
    ///
    /// # Errors
    ///
    /// [`Broken`] if it cannot be read, or a command in it, or one of another session that was kept until now.
    pub fn take<J: Journal, O: HostOut>(
        &mut self,
        now: Now,
        engine: &mut Engine,
        from: (u16, u64),
        (kind, payload): (u8, &[u8]),
        journal: &mut J,
        out: &mut O,
    ) -> Result<(), Broken> {
        let broken = |error| Broken { frontend: from.0, error };
        let message = ToOwner::read(kind, payload).map_err(broken)?;
        if message == ToOwner::End {
            self.end(now, engine, from, journal, out);
            return self.go_on_freed(now, engine, journal, out);
        }
        let id = self.session(engine, from);
        if !message.overtakes() && engine.is_waiting(id) {
            let behind = &mut self.remotes[id.0 as usize].behind;
            if behind.len() == BEHIND_MAX {
                return Err(broken(FrameError::Message));
            }
            behind.push_back((kind, payload.into()));
            return Ok(());
        }
        self.handle(now, engine, id, message, journal, out).map_err(broken)?;
        self.go_on_freed(now, engine, journal, out)
    }

    /// Carries out what was kept behind waits that have ended.
    fn go_on_freed<J: Journal, O: HostOut>(
        &mut self,
        now: Now,
        engine: &mut Engine,
        journal: &mut J,
        out: &mut O,
    ) -> Result<(), Broken> {
        while let Some(id) = self.freed.pop() {
            let remote = &mut self.remotes[id.0 as usize];
            let frontend = remote.frontend;
            // The wait may have been followed by another; the end of a session leaves nothing behind.
            if remote.behind.is_empty() || engine.is_waiting(id) {
                continue;
            }
            let Some((kind, payload)) = remote.behind.pop_front() else { continue };
            if planted::is(Bug::KeptLost) {
                continue;
            }
            if planted::is(Bug::KeptTwice) && remote.behind.is_empty() {
                let message = ToOwner::read(kind, &payload);
                let again = message.and_then(|message| self.handle(now, engine, id, message, journal, out));
                again.map_err(|error| Broken { frontend, error })?;
            }
            let remote = &mut self.remotes[id.0 as usize];
            if !remote.behind.is_empty() {
                self.freed.push(id);
            }
            let done =
                ToOwner::read(kind, &payload).and_then(|message| self.handle(now, engine, id, message, journal, out));
            done.map_err(|error| Broken { frontend, error })?;
        }
        Ok(())
    }

    /// Carries out one message of a frontend.
    fn handle<J: Journal, O: HostOut>(
        &mut self,
        now: Now,
        engine: &mut Engine,
        id: SessionId,
        message: ToOwner<'_>,
        journal: &mut J,
        out: &mut O,
    ) -> Result<(), FrameError> {
        let at = id.0 as usize;
        let is_ask = message.overtakes();
        if let ToOwner::Reserve { wait, .. } | ToOwner::Ask { wait, .. } = message {
            self.remotes[at].wait = Some(wait);
        } else if !is_ask {
            self.remotes[at].wait = None;
        }
        match message {
            ToOwner::Line(line) => self.line(now, engine, id, line, journal, out)?,
            ToOwner::Announce(line) => {
                #[cfg(feature = "trace")]
                self.did(id, out, &Deed::Told(line));
                self.remotes[at].is_silent = true;
                self.line(now, engine, id, line, journal, out)?;
                self.remotes[at].is_silent = false;
            }
            ToOwner::Put { pri, delay_s, ttr_s, body } => {
                if out.is_draining() && !planted::is(Bug::DrainNotAsked) {
                    engine.drain();
                }
                let tube = engine.used_tube(id).ok_or(FrameError::Message)?;
                let partition = partition_of(tube) as u64;
                engine.set_next_id(out.next_id_count() * PARTITIONS as u64 + partition);
                let command = Command::Put { pri, delay_s, ttr_s, body: body.into() };
                engine.handle(now, id, command, journal, &mut self.boxed(out));
            }
            ToOwner::Unuse => {
                #[cfg(feature = "trace")]
                self.did(id, out, &Deed::Told(b"unuse"));
                engine.unuse(id);
            }
            ToOwner::Unwatch(name) => {
                #[cfg(feature = "trace")]
                self.did(id, out, &Deed::Replied(b"WATCHING"));
                engine.unwatch(id, name);
                self.say(id, out, &ToFrontend::Reply { outcome: Outcome::Done, bytes: b"" });
            }
            ToOwner::ListTubes => {
                let mut names = Vec::new();
                for (creation, name) in engine.tubes() {
                    names.extend_from_slice(&creation.to_le_bytes());
                    names.push(u8::try_from(name.len()).map_err(|_| FrameError::Message)?);
                    names.extend_from_slice(name);
                }
                #[cfg(feature = "trace")]
                self.did(id, out, &Deed::Replied(b"OK"));
                self.say(id, out, &ToFrontend::Names(&names));
            }
            ToOwner::Reserve { in_margin, is_poll, .. } => {
                self.remotes[at].is_asked = false;
                engine.reserve_remote(now, id, in_margin, is_poll, journal, &mut self.boxed(out));
            }
            // A wait over this owner alone cannot become one over several.
            ToOwner::Ask { .. } if engine.is_waiting(id) && !self.remotes[at].is_asked => {
                return Err(FrameError::Message);
            }
            ToOwner::Ask { wait, in_margin, is_poll } => {
                self.remotes[at].is_asked = true;
                if engine.is_soon(id, in_margin) {
                    #[cfg(feature = "trace")]
                    self.did(id, out, &Deed::Nothing { wait, is_soon: true });
                    engine.withdraw(now, id, journal, &mut self.boxed(out));
                    self.say(id, out, &ToFrontend::Nothing { wait, is_soon: true });
                } else {
                    engine.ask(now, id, is_poll, journal, &mut self.boxed(out));
                }
            }
            ToOwner::Accept { wait, offer } => {
                self.remotes[at].wait = Some(wait);
                engine.accept(now, id, offer, journal, &mut self.boxed(out));
            }
            ToOwner::Withdraw { wait } => {
                if self.remotes[at].wait == Some(wait) && !planted::is(Bug::WithdrawnButParked) {
                    #[cfg(feature = "trace")]
                    if engine.is_waiting(id) {
                        self.did(id, out, &Deed::Withdrew { wait });
                    }
                    engine.withdraw(now, id, journal, &mut self.boxed(out));
                    self.remotes[at].wait = None;
                    self.freed.push(id);
                }
                self.say(id, out, &ToFrontend::Withdrawn { wait });
            }
            ToOwner::End => unreachable!("handled above"),
        }
        Ok(())
    }

    /// A frontend is gone: all its sessions end.
    ///
    /// # Errors
    ///
    /// As [`Host::take`], of what another frontend's session had sent.
    pub fn frontend_gone<J: Journal, O: HostOut>(
        &mut self,
        now: Now,
        engine: &mut Engine,
        frontend: u16,
        journal: &mut J,
        out: &mut O,
    ) -> Result<(), Broken> {
        if planted::is(Bug::FrontendStays) {
            return Ok(());
        }
        let sessions = self.sessions.get(usize::from(frontend)).into_iter().flatten();
        let mut gone: Vec<u64> = sessions.map(|(session, _)| *session).collect();
        // In an order that does not depend on a table.
        gone.sort_unstable();
        for session in gone {
            self.end(now, engine, (frontend, session), journal, out);
        }
        self.go_on_freed(now, engine, journal, out)
    }

    /// Fires what is due.
    ///
    /// # Errors
    ///
    /// As [`Host::take`], of what a session had sent behind its wait.
    pub fn tick<J: Journal, O: HostOut>(
        &mut self,
        now: Now,
        engine: &mut Engine,
        journal: &mut J,
        out: &mut O,
    ) -> Result<(), Broken> {
        engine.tick(now, journal, &mut self.boxed(out));
        self.go_on_freed(now, engine, journal, out)
    }

    fn session(&mut self, engine: &mut Engine, from: (u16, u64)) -> SessionId {
        let frontend = usize::from(from.0);
        if self.sessions.len() <= frontend {
            self.sessions.resize_with(frontend + 1, HashMap::default);
        }
        let sessions = &mut self.sessions[frontend];
        if let Some(id) = sessions.get(&from.1) {
            return *id;
        }
        let id = engine.connect_remote();
        sessions.insert(from.1, id);
        let at = id.0 as usize;
        if self.remotes.len() <= at {
            self.remotes.resize_with(at + 1, Remote::default);
        }
        self.remotes[at] = Remote { frontend: from.0, session: from.1, ..Remote::default() };
        id
    }

    fn end<J: Journal, O: HostOut>(
        &mut self,
        now: Now,
        engine: &mut Engine,
        from: (u16, u64),
        journal: &mut J,
        out: &mut O,
    ) {
        let sessions = self.sessions.get_mut(usize::from(from.0));
        if let Some(id) = sessions.and_then(|sessions| sessions.remove(&from.1)) {
            #[cfg(feature = "trace")]
            self.did(id, out, &Deed::Ended);
            self.remotes[id.0 as usize].behind = VecDeque::new();
            engine.disconnect(now, id, journal, &mut self.boxed(out));
        }
    }

    fn line<J: Journal, O: HostOut>(
        &mut self,
        now: Now,
        engine: &mut Engine,
        id: SessionId,
        line: &[u8],
        journal: &mut J,
        out: &mut O,
    ) -> Result<(), FrameError> {
        let Ok(Line::Command(command)) = parse_line(line) else { return Err(FrameError::Message) };
        match command {
            Command::Use(_) | Command::Watch(_) => engine.set_next_creation(out.next_creation()),
            Command::Kick(_) | Command::PeekReady | Command::PeekDelayed | Command::PeekBuried => {
                engine.used_tube(id).ok_or(FrameError::Message)?;
            }
            // These never come from a frontend: it answers them itself or asks in another form.
            Command::Put { .. } | Command::Reserve { .. } | Command::Stats | Command::Ignore(_) => {
                return Err(FrameError::Message);
            }
            Command::ListTubes | Command::ListTubeUsed | Command::ListTubesWatched => return Err(FrameError::Message),
            _ => {}
        }
        engine.handle(now, id, command, journal, &mut self.boxed(out));
        Ok(())
    }

    fn say<O: HostOut>(&self, id: SessionId, out: &mut O, message: &ToFrontend<'_>) {
        let remote = &self.remotes[id.0 as usize];
        if let Some(link) = out.link(remote.frontend) {
            message.write(remote.session, link);
        }
    }

    #[cfg(feature = "trace")]
    fn did<O: HostOut>(&self, id: SessionId, out: &mut O, deed: &Deed<'_>) {
        let remote = &self.remotes[id.0 as usize];
        out.did(remote.frontend, remote.session, deed);
    }

    fn boxed<'a, O: HostOut>(&'a mut self, out: &'a mut O) -> Boxed<'a, O> {
        Boxed { remotes: &mut self.remotes, freed: &mut self.freed, out, held: None }
    }
}

/// Turns what the engine says into messages.
struct Boxed<'a, O> {
    remotes: &'a mut [Remote],
    freed: &'a mut Vec<SessionId>,
    out: &'a mut O,
    held: Option<(u64, u64)>,
}

impl<O: HostOut> Boxed<'_, O> {
    fn say(&mut self, session: SessionId, message: &ToFrontend<'_>) {
        let remote = &self.remotes[session.0 as usize];
        if let Some(link) = self.out.link(remote.frontend) {
            message.write(remote.session, link);
        }
    }
}

impl<O: HostOut> Outbox for Boxed<'_, O> {
    fn reply(&mut self, session: SessionId, reply: &Reply<'_>) {
        let held = self.held.take();
        let remote = &mut self.remotes[session.0 as usize];
        if remote.is_silent {
            return;
        }
        let outcome = match (reply, held) {
            (Reply::Reserved { .. } | Reply::Touched, Some((id, deadline_ns))) => Outcome::Held { id, deadline_ns },
            (Reply::NotFound, _) => Outcome::NotFound,
            (Reply::OutOfMemory | Reply::InternalError | Reply::Draining, _) => Outcome::Refused,
            (Reply::TimedOut | Reply::DeadlineSoon, _) => Outcome::Refused,
            _ => Outcome::Done,
        };
        let wait = remote.wait.take();
        if wait.is_some() && !remote.behind.is_empty() {
            self.freed.push(session);
        }
        #[cfg(feature = "trace")]
        {
            let mut bytes = Vec::new();
            reply.encode(&mut bytes);
            let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
            let deed = match wait {
                Some(wait) => Deed::Served { wait, line },
                None => Deed::Replied(line),
            };
            self.out.did(remote.frontend, remote.session, &deed);
        }
        if let Some(link) = self.out.link(remote.frontend) {
            crate::message::reply(link, remote.session, wait, outcome, reply);
        }
    }

    fn stats(&mut self, _session: SessionId, _stats: ServerStats) {
        unreachable!("frontends answer stats from the shared pages")
    }

    fn holds(&mut self, _session: SessionId, id: u64, deadline_ns: u64) {
        self.held = Some((id, deadline_ns));
    }

    fn offer(&mut self, session: SessionId, offer: Offered) {
        let remote = &self.remotes[session.0 as usize];
        let wait = remote.wait.expect("offers are made to a wait");
        let Offered { offer, id, pri } = offer;
        #[cfg(feature = "trace")]
        self.out.did(remote.frontend, remote.session, &Deed::Offered { wait, id });
        self.say(session, &ToFrontend::Offer { wait, offer, pri, id });
    }

    fn nothing(&mut self, session: SessionId) {
        let remote = &self.remotes[session.0 as usize];
        let wait = remote.wait.expect("only a wait can hear that there is nothing");
        #[cfg(feature = "trace")]
        self.out.did(remote.frontend, remote.session, &Deed::Nothing { wait, is_soon: false });
        self.say(session, &ToFrontend::Nothing { wait, is_soon: false });
    }

    fn gone(&mut self, session: SessionId) {
        let remote = &self.remotes[session.0 as usize];
        let wait = remote.wait.expect("an accept names its wait");
        #[cfg(feature = "trace")]
        self.out.did(remote.frontend, remote.session, &Deed::Gone { wait });
        self.say(session, &ToFrontend::Gone { wait });
    }
}
