//! A frontend process: the router, its clients' connections, and the turn discipline of its shell.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use supervisor::{FromChild, Instance, Instruction, Role};
use tubes_link::{ClientId, Outcome, Router, RouterOptions, ToFrontend, ToOwner, Wires};
use tubes_protocol::Command;

use super::clients::Input;
use super::network::{LinkEnd, Lost};
use super::owner::Owner;
use super::process::{Control, Next, Process};
use super::world::{Checked, Step, World};

/// How long a reserve may wait for what the owners say before it is told that a deadline is near.
const DECIDES_NS: u64 = 100_000_000;

/// A command that was read and not answered.
#[derive(Debug)]
struct Asked {
    command: Command<'static>,
    /// When it was handed to the router, in ns of the boot clock.
    at_ns: u64,
}

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: usize,
    pub(super) epoch: u32,
    /// Its number on the links.
    pub(super) session: u64,
    queue: VecDeque<Command<'static>>,
    /// The client sends nothing more; `true` if it reads nothing more either.
    ending: Option<bool>,
    asked: VecDeque<Asked>,
    /// What it watches, as it was told.
    watched: Vec<Box<[u8]>>,
    out: Vec<Vec<u8>>,
    /// The router was told that it has half-closed.
    is_half_closed: bool,
}

/// A job that a session was told it holds: at which owner, and until when.
#[derive(Debug, Clone, Copy)]
struct Held {
    owner: Instance,
    deadline_ns: u64,
}

pub(super) struct Frontend {
    pub(super) process: Process,
    pub(super) router: Router,
    /// By slot of the owner.
    pub(super) links: Vec<Option<LinkEnd>>,
    pub(super) connections: Vec<Option<Connection>>,
    held: BTreeMap<u64, BTreeMap<u64, Held>>,
    /// Offers heard over the present links: slot of the owner, session, offer.
    offers: BTreeSet<(u16, u64, u64)>,
    sessions: u64,
    pub(super) inbox: VecDeque<(usize, u32, Input)>,
    /// A link had no room for commands.
    is_full: bool,
    /// It accepts clients.
    pub(super) listens: bool,
    stopping_until_ns: Option<u64>,
}

/// What the router reaches, and a record of it.
struct Reach<'a> {
    links: &'a mut [Option<LinkEnd>],
    held: &'a BTreeMap<u64, BTreeMap<u64, Held>>,
    offers: &'a mut BTreeSet<(u16, u64, u64)>,
    now_ns: u64,
    said: Vec<(u32, Vec<u8>)>,
    closing: Vec<u32>,
    wrong: Option<String>,
    backlog_max: usize,
}

impl Wires for Reach<'_> {
    fn has_room(&self, owner: u16) -> bool {
        self.links[usize::from(owner)].as_ref().is_none_or(|link| link.writer.backlog() < self.backlog_max)
    }
    fn to_owner(&mut self, owner: u16, session: u64, message: &ToOwner<'_>) {
        let Some(link) = &mut self.links[usize::from(owner)] else {
            self.wrong = Some(format!("{message:?} is sent to owner {owner}, which is away"));
            return;
        };
        let void =
            self.held.get(&session).into_iter().flatten().find(|(_, held)| {
                held.owner.slot == owner && held.owner != link.peer && held.deadline_ns > self.now_ns
            });
        if let (Some((id, held)), false) = (void, *message == ToOwner::End) {
            self.wrong = Some(format!(
                "session {session} says {message:?} to {} although it was told that it holds job {id} of {}",
                link.peer, held.owner
            ));
        }
        if let ToOwner::Accept { offer, .. } = message
            && !self.offers.remove(&(owner, session, *offer))
        {
            self.wrong = Some(format!("session {session} accepts offer {offer}, which {} has not made", link.peer));
        }
        message.write(session, &mut link.writer);
    }
    fn to_client(&mut self, client: ClientId, bytes: &[u8]) {
        self.said.push((client.0, bytes.to_vec()));
    }
    fn stats(&mut self, client: ClientId) {
        self.said.push((client.0, b"OK 4\r\n---\n\r\n".to_vec()));
    }
    fn close(&mut self, client: ClientId) {
        self.closing.push(client.0);
    }
    fn wake(&mut self, _client: ClientId) {
        // All connections are looked at in every turn.
    }
}

impl Frontend {
    pub(super) fn instance(&self) -> Instance {
        self.process.pid.who
    }

    /// The connection of a client.
    pub(super) fn connection_of(&self, client: usize, epoch: u32) -> Option<&Connection> {
        self.connections.iter().flatten().find(|open| (open.client, open.epoch) == (client, epoch))
    }

    /// Jobs that a session was told it holds.
    pub(super) fn held_by(&self, session: u64) -> Vec<u64> {
        self.held.get(&session).map_or(Vec::new(), |held| held.keys().copied().collect())
    }

    pub(super) fn backlog(&self) -> usize {
        self.links.iter().flatten().map(LinkEnd::backlog).sum()
    }
}

impl World {
    pub(super) fn start_frontend(&mut self, mut process: Process) -> Frontend {
        let generation = process.pid.who.generation;
        process.is_ready = true;
        process.says.push(FromChild::Ready { generation, jobs: 0, next_id: 0 });
        Frontend {
            process,
            router: Router::new(
                RouterOptions { owner_wait_ns: self.shape.owner_wait_ns, bodies_max: self.shape.bodies_max },
                self.map.clone(),
            ),
            links: (0..self.shape.owners).map(|_| None).collect(),
            connections: Vec::new(),
            held: BTreeMap::new(),
            offers: BTreeSet::new(),
            sessions: 0,
            inbox: VecDeque::new(),
            is_full: false,
            listens: false,
            stopping_until_ns: None,
        }
    }

    pub(super) fn frontend_turn(&mut self, frontend: &mut Frontend) -> Checked<Next> {
        let now_ns = self.moment().boot_ns;
        self.with_router(frontend, |router, reach| router.tick(now_ns, reach))?;
        let mut order: Vec<usize> = (0..=frontend.links.len()).collect();
        self.shuffle(&mut order);
        for place in order {
            if place < frontend.links.len() {
                self.frontend_reads(frontend, place)?;
            } else {
                self.take_inputs(frontend)?;
            }
        }
        self.frontend_control(frontend)?;
        loop {
            let mut has_progressed = false;
            for at in 0..frontend.connections.len() {
                has_progressed |= self.go_on(frontend, at)?;
            }
            if !has_progressed {
                break;
            }
        }
        self.send_to_owners(frontend)?;
        let low = self.shape.link_backlog_max / 2;
        if frontend.is_full && frontend.links.iter().flatten().all(|link| link.writer.backlog() < low) {
            frontend.is_full = false;
            self.outcome.full_links += 1;
            self.with_router(frontend, |router, reach| router.room(now_ns, reach))?;
            self.send_to_owners(frontend)?;
        }
        self.answer_clients(frontend);
        if let Some(until_ns) = frontend.stopping_until_ns
            && (!frontend.router.has_unanswered() || now_ns >= until_ns)
        {
            frontend.process.says.push(FromChild::Stopped);
            self.outcome.barriers += 1;
            return Ok(Next::Exits(0));
        }
        let turn_ns = self.rng.below(self.profile.turn_ns + 1);
        frontend.process.free_at_ns = frontend.process.free_at_ns.max(self.now_ns + turn_ns);
        let due_ns = frontend.router.next_deadline();
        if due_ns.is_some_and(|due_ns| due_ns <= now_ns) {
            return Err(format!("{}: a timer at {due_ns:?} ns lies in the past of {now_ns} ns", frontend.instance()));
        }
        if let Some(at_ns) = due_ns.into_iter().chain(frontend.stopping_until_ns).min() {
            let at_ns = self.world_ns(at_ns);
            self.wake_process(&mut frontend.process, at_ns);
        }
        Ok(Next::Runs)
    }

    fn send_to_owners(&mut self, frontend: &mut Frontend) -> Checked {
        for owner in 0..frontend.links.len() {
            let Some(link) = &mut frontend.links[owner] else { continue };
            link.writer.end_turn(None);
            link.make_room();
            frontend.is_full |= link.writer.backlog() >= self.shape.link_backlog_max;
            let delay_ns = self.rng.below(self.shape.link_ns + 1);
            match link.send(&mut self.network, self.now_ns, delay_ns) {
                Ok(Some(at_ns)) => {
                    let pipe = link.pipe;
                    self.at(at_ns, Step::Arrive { pipe, towards: Role::Owner });
                }
                Ok(None) => {}
                Err(lost) => self.frontend_loses(frontend, owner, lost)?,
            }
        }
        Ok(())
    }

    /// Runs something on the router, then looks at all that it has said.
    fn with_router<R>(
        &mut self,
        frontend: &mut Frontend,
        run: impl FnOnce(&mut Router, &mut Reach<'_>) -> R,
    ) -> Checked<R> {
        let Frontend { router, links, held, offers, .. } = frontend;
        let now_ns = self.moment().boot_ns;
        let backlog_max = self.shape.link_backlog_max;
        let (said, closing) = (Vec::new(), Vec::new());
        let mut reach = Reach { links, held, offers, now_ns, said, closing, wrong: None, backlog_max };
        let result = run(router, &mut reach);
        let Reach { said, closing, wrong, .. } = reach;
        if let Some(wrong) = wrong {
            return Err(format!("{}: {wrong}", frontend.process.pid.who));
        }
        for (client, bytes) in said {
            self.said_to_client(frontend, client, bytes)?;
        }
        for client in closing {
            self.outcome.closed += 1;
            self.close_connection(frontend, client)?;
        }
        Ok(result)
    }

    /// A reply must be one to the oldest unanswered command.
    fn said_to_client(&mut self, frontend: &mut Frontend, client: u32, bytes: Vec<u8>) -> Checked {
        let now_ns = self.moment().boot_ns;
        let who = frontend.instance();
        let connection = frontend.connections[client as usize].as_mut();
        let Some(connection) = connection else {
            return Err(format!("{who} answers {:?} to nobody", String::from_utf8_lossy(&bytes)));
        };
        let Some(asked) = connection.asked.pop_front() else {
            return Err(format!("{who} answers {:?}, but nothing was asked", String::from_utf8_lossy(&bytes)));
        };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let word = text.split([' ', '\r']).next().unwrap_or_default();
        if !fits(&asked.command, word) {
            return Err(format!("{who} answers {text:?} to {:?}", asked.command));
        }
        self.outcome.replies += 1;
        self.outcome.internal_errors += u64::from(word == "INTERNAL_ERROR");
        self.note(crate::history::body_hash(&bytes));
        let session = connection.session;
        match (&asked.command, word) {
            (Command::Watch(name), "WATCHING") => {
                if !connection.watched.iter().any(|watched| **watched == **name) {
                    connection.watched.push((*name).into());
                }
                check_count(&text, connection.watched.len())?;
            }
            (Command::Ignore(name), "WATCHING") => {
                connection.watched.retain(|watched| **watched != **name);
                check_count(&text, connection.watched.len())?;
            }
            (
                Command::Delete(id) | Command::Release { id, .. } | Command::Bury { id, .. },
                "DELETED" | "RELEASED" | "BURIED",
            ) => {
                if let Some(held) = frontend.held.get_mut(&session) {
                    held.remove(id);
                }
            }
            (Command::Reserve { timeout_s }, "TIMED_OUT") => {
                let is_poll = *timeout_s == Some(0) || connection.is_half_closed;
                self.outcome.polls += u64::from(is_poll);
                let waited_ns = now_ns - asked.at_ns;
                match timeout_s {
                    Some(seconds) if waited_ns < u64::from(*seconds) * 1_000_000_000 && !is_poll => {
                        return Err(format!("{who}: TIMED_OUT after {waited_ns} ns of {seconds} s"));
                    }
                    None if !is_poll => return Err(format!("{who}: a reserve without a timeout has timed out")),
                    _ => {}
                }
                let free = free_before(&self.owners, asked.at_ns, &connection.watched);
                if let Some((owner, id)) = free.filter(|_| is_poll) {
                    return Err(format!(
                        "{who}, session {session}: TIMED_OUT to {:?} of {} ns although job {id} of {owner} was free all \
                         the time",
                        asked.command, asked.at_ns
                    ));
                }
            }
            (Command::Reserve { .. }, "DEADLINE_SOON") => {
                self.outcome.soon += 1;
                let is_near = frontend
                    .held
                    .get(&session)
                    .into_iter()
                    .flatten()
                    .any(|(_, held)| held.deadline_ns <= now_ns + 1_000_000_000);
                // The owners get a while to decide.
                let free = free_before(&self.owners, asked.at_ns, &connection.watched);
                if let Some((owner, id)) = free.filter(|_| now_ns < asked.at_ns + DECIDES_NS) {
                    return Err(format!(
                        "{who}: DEADLINE_SOON to session {session} although job {id} of {owner} is free"
                    ));
                }
                if !is_near {
                    return Err(format!("{who}: DEADLINE_SOON to session {session}, which holds nothing near its end"));
                }
            }
            _ => {}
        }
        connection.out.push(bytes);
        Ok(())
    }

    fn take_inputs(&mut self, frontend: &mut Frontend) -> Checked {
        while let Some((client, epoch, input)) = frontend.inbox.pop_front() {
            if matches!(input, Input::Connect) {
                frontend.sessions += 1;
                let at = frontend.connections.iter().position(Option::is_none).unwrap_or(frontend.connections.len());
                if at == frontend.connections.len() {
                    frontend.connections.push(None);
                }
                // As the router numbers them.
                let session = frontend.sessions << 32 | at as u64;
                frontend.connections[at] = Some(Connection {
                    client,
                    epoch,
                    session,
                    queue: VecDeque::new(),
                    ending: None,
                    asked: VecDeque::new(),
                    watched: vec![b"default"[..].into()],
                    out: Vec::new(),
                    is_half_closed: false,
                });
                let id = ClientId(u32::try_from(at).expect("a few"));
                self.with_router(frontend, |router, reach| router.connect(id, reach))?;
                continue;
            }
            let open = frontend.connections.iter_mut().flatten();
            let mut open = open.filter(|open| (open.client, open.epoch) == (client, epoch));
            let Some(connection) = open.next() else { continue };
            match input {
                Input::Command(command) => connection.queue.push_back(command),
                Input::HalfClose => connection.ending = connection.ending.or(Some(false)),
                Input::Close => connection.ending = Some(true),
                Input::Connect => unreachable!("handled above"),
            }
        }
        Ok(())
    }

    /// Goes on with a client as the shell does. `true` if something was done.
    fn go_on(&mut self, frontend: &mut Frontend, at: usize) -> Checked<bool> {
        let now_ns = self.moment().boot_ns;
        let Some(connection) = &mut frontend.connections[at] else { return Ok(false) };
        let id = ClientId(u32::try_from(at).expect("a few"));
        if !frontend.router.can_take(id) {
            if frontend.stopping_until_ns.is_some() && frontend.router.is_waiting(id) {
                self.close_connection(frontend, id.0)?;
                return Ok(true);
            }
            if connection.ending.is_some() && !connection.is_half_closed {
                connection.is_half_closed = true;
                self.with_router(frontend, |router, reach| router.half_close(now_ns, id, reach))?;
                return Ok(true);
            }
            return Ok(false);
        }
        if let Some(command) = connection.queue.pop_front() {
            self.outcome.commands += 1;
            self.outcome.events += 1;
            if self.narrates {
                eprintln!(
                    "{:>15}   {} session {}: {command:?}",
                    self.now_ns, frontend.process.pid.who, connection.session
                );
            }
            connection.asked.push_back(Asked { command: command.clone(), at_ns: now_ns });
            let key = (frontend.process.pid.life, frontend.process.pid.who, connection.session);
            self.executions.asked(key, &command);
            self.with_router(frontend, |router, reach| router.command(now_ns, id, command, reach))?;
            return Ok(true);
        }
        if connection.ending.is_some() && frontend.router.is_idle(id) {
            if connection.ending == Some(true) {
                connection.out.clear();
            }
            self.close_connection(frontend, id.0)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Closes a client. What it has been told in this turn leaves before, unless that tells of a lost owner.
    fn close_connection(&mut self, frontend: &mut Frontend, client: u32) -> Checked {
        let Some(connection) = frontend.connections[client as usize].take() else { return Ok(()) };
        frontend.held.remove(&connection.session);
        frontend.offers.retain(|(_, session, _)| *session != connection.session);
        let key = (frontend.process.pid.life, frontend.process.pid.who, connection.session);
        self.executions.ended(key);
        self.replies_leave(connection.client, connection.epoch, connection.out, true);
        self.with_router(frontend, |router, reach| router.disconnect(ClientId(client), reach))
    }

    fn answer_clients(&mut self, frontend: &mut Frontend) {
        for connection in frontend.connections.iter_mut().flatten() {
            let out = std::mem::take(&mut connection.out);
            if !out.is_empty() {
                self.replies_leave(connection.client, connection.epoch, out, false);
            }
        }
    }

    fn frontend_reads(&mut self, frontend: &mut Frontend, owner: usize) -> Checked {
        let Some(mut link) = frontend.links[owner].take() else { return Ok(()) };
        let taken = self.network.take(link.pipe, Role::Frontend);
        let mut messages = Vec::new();
        let before = link.dropped();
        let mut result = link.read(&mut self.rng, &taken.bytes, &mut messages);
        self.outcome.old_batches += link.dropped() - before;
        if result.is_ok() && taken.is_ended {
            result = Err(Lost::Closed);
        }
        if !taken.bytes.is_empty() {
            self.wake_writer(&link);
        }
        let (peer, pipe) = (link.peer, link.pipe);
        frontend.links[owner] = Some(link);
        for (head, payload) in messages {
            self.heard_promise(pipe, peer, head.session)?;
            let name = || format!("{} from {peer}", frontend.process.pid.who);
            let message = ToFrontend::read(head.kind, &payload).map_err(|error| format!("{}: {error}", name()))?;
            self.note_held(frontend, peer, head.session, &message);
            if let ToFrontend::Offer { offer, .. } = message {
                frontend.offers.insert((peer.slot, head.session, offer));
            }
            let now_ns = self.moment().boot_ns;
            let who = frontend.instance();
            let slot = peer.slot;
            let handled = self
                .with_router(frontend, |router, reach| router.from_owner(now_ns, slot, head.session, message, reach))?;
            handled.map_err(|error| format!("{who} from {peer}, session {}, {message:?}: {error}", head.session))?;
        }
        match result {
            Ok(()) => Ok(()),
            Err(lost) => self.frontend_loses(frontend, owner, lost),
        }
    }

    fn note_held(&mut self, frontend: &mut Frontend, owner: Instance, session: u64, message: &ToFrontend<'_>) {
        let (ToFrontend::Reply { outcome, .. } | ToFrontend::Served { outcome, .. }) = message else { return };
        let Outcome::Held { id, deadline_ns } = outcome else { return };
        if frontend.connections.iter().flatten().any(|open| open.session == session) {
            let held = Held { owner, deadline_ns: *deadline_ns };
            frontend.held.entry(session).or_default().insert(*id, held);
        } else {
            self.outcome.crossed_ends += 1;
        }
    }

    /// A link is lost without a word of the supervisor, which is told.
    fn frontend_loses(&mut self, frontend: &mut Frontend, owner: usize, lost: Lost) -> Checked {
        if let Some(link) = &frontend.links[owner] {
            frontend.process.says.push(FromChild::LinkLost { peer: link.peer, number: link.number });
        }
        self.frontend_forgets(frontend, owner, lost)
    }

    fn frontend_forgets(&mut self, frontend: &mut Frontend, owner: usize, lost: Lost) -> Checked {
        let Some(link) = frontend.links[owner].take() else { return Ok(()) };
        self.tell(|| format!("{} loses its link to owner {owner}: {lost:?}", frontend.process.pid.who));
        if let Lost::Frame(error) = lost {
            return Err(format!("{} resets its link to owner {owner}: {error}", frontend.instance()));
        }
        self.close_pipe(link.pipe, Role::Frontend);
        frontend.offers.retain(|(slot, ..)| *slot != link.peer.slot);
        let now_ns = self.moment().boot_ns;
        let number = u16::try_from(owner).expect("a slot");
        self.with_router(frontend, |router, reach| router.owner_down(now_ns, number, reach))
    }

    fn frontend_control(&mut self, frontend: &mut Frontend) -> Checked {
        let now_ns = self.moment().boot_ns;
        while let Some(control) = frontend.process.control.pop_front() {
            match control {
                Control::Link { peer, pipe, number } => {
                    let owner = usize::from(peer.slot);
                    self.frontend_forgets(frontend, owner, Lost::Closed)?;
                    frontend.links[owner] = Some(LinkEnd::new(pipe, number, frontend.instance(), peer));
                    self.with_router(frontend, |router, reach| router.owner_up(now_ns, peer.slot, reach))?;
                }
                Control::Say(Instruction::PeerGone(peer)) => {
                    let owner = usize::from(peer.slot);
                    if frontend.links[owner].as_ref().is_some_and(|link| link.peer == peer) {
                        self.frontend_reads(frontend, owner)?;
                        self.frontend_forgets(frontend, owner, Lost::Closed)?;
                    }
                }
                Control::Say(Instruction::Go) => frontend.listens = true,
                Control::Say(Instruction::Ping { nonce }) => {
                    let generation = frontend.instance().generation;
                    frontend.process.says.push(FromChild::Pong { generation, nonce, in_sync_ms: None });
                }
                Control::Say(Instruction::Drain) => frontend.process.says.push(FromChild::Drained),
                Control::Say(Instruction::Barrier { within_ms }) => {
                    frontend.listens = false;
                    frontend.stopping_until_ns = Some(now_ns + within_ms * 900_000);
                    // Nothing is read any more; waits are closed without a reply.
                    frontend.inbox.clear();
                }
                Control::Say(Instruction::Stop { .. }) => {}
            }
        }
        Ok(())
    }
}

/// A job of an owner that could be had by anybody since before `since_ns`.
fn free_before(owners: &[Option<Owner>], since_ns: u64, watched: &[Box<[u8]>]) -> Option<(Instance, u64)> {
    owners.iter().flatten().find_map(|owner| {
        let id = owner.judge.free_before(since_ns, watched)?;
        Some((owner.instance(), id))
    })
}

fn check_count(text: &str, count: usize) -> Checked {
    if text == format!("WATCHING {count}\r\n") {
        Ok(())
    } else {
        Err(format!("{text:?} to somebody who watches {count}"))
    }
}

/// Whether a reply beginning with `word` can answer `command`.
fn fits(command: &Command<'_>, word: &str) -> bool {
    let own: &[&str] = match command {
        Command::Put { .. } => &["INSERTED", "DRAINING", "OUT_OF_MEMORY"],
        Command::Use(_) => &["USING"],
        Command::ListTubeUsed => return word == "USING",
        Command::Watch(_) => &["WATCHING"],
        Command::Ignore(_) => &["WATCHING", "NOT_IGNORED"],
        Command::Reserve { .. } => &["RESERVED", "TIMED_OUT", "DEADLINE_SOON"],
        Command::ReserveJob(_) => &["RESERVED", "NOT_FOUND", "OUT_OF_MEMORY"],
        Command::Delete(_) => &["DELETED", "NOT_FOUND"],
        Command::Release { .. } => &["RELEASED", "NOT_FOUND", "OUT_OF_MEMORY"],
        Command::Bury { .. } => &["BURIED", "NOT_FOUND", "OUT_OF_MEMORY"],
        Command::Touch(_) => &["TOUCHED", "NOT_FOUND"],
        Command::Kick(_) => &["KICKED", "OUT_OF_MEMORY"],
        Command::KickJob(_) => &["KICKED", "NOT_FOUND", "OUT_OF_MEMORY"],
        Command::Peek(_) | Command::PeekReady | Command::PeekDelayed | Command::PeekBuried => &["FOUND", "NOT_FOUND"],
        Command::PauseTube { .. } => &["PAUSED", "NOT_FOUND"],
        Command::StatsJob(_) | Command::StatsTube(_) => &["OK", "NOT_FOUND"],
        Command::ListTubes => &["OK"],
        Command::Stats | Command::ListTubesWatched => return word == "OK",
    };
    word == "INTERNAL_ERROR" || own.contains(&word)
}
