//! From a client: commands, and its end.

use super::client::{Client, Ending, Gather, GatherKind, OwnerSet, Pending, Request};
use super::{BEHIND_BYTES_MAX, ClientId, Router, Wires};
use crate::message::ToOwner;
use crate::planted::{self, Bug};
use tubes_protocol::{Command, Line, Reply, parse_line};

/// Where a command goes.
enum Target {
    /// To this owner.
    Owner(u16),
    /// To all of them.
    All,
    /// Nowhere: the frontend answers.
    Here,
    /// A reserve.
    Watched,
}

impl Router {
    /// Takes the client's next command; [`Router::can_take`] has said that it may.
    pub fn command(&mut self, now_ns: u64, id: ClientId, command: Command<'_>, wires: &mut impl Wires) {
        self.count(id, &command);
        self.client_mut(id).forget_expired(now_ns);
        if self.must_wait(id, &command, wires) {
            let until = self.patience(id, &command, now_ns);
            self.client_mut(id).stalled = Some((Request::of(command), until));
            self.stalled.insert(id);
            self.arm(id);
        } else {
            self.send(now_ns, id, &command, wires);
        }
    }

    /// Takes something that the frontend answers itself, in its place.
    pub fn local(&mut self, id: ClientId, reply: &Reply<'_>, wires: &mut impl Wires) {
        self.answer(id, reply, wires);
    }

    /// A put was refused by its form: it counts, and may make its client a producer.
    pub fn count_refused_put(&mut self, id: ClientId, is_producer: bool) {
        self.counts.put += 1;
        if is_producer {
            self.mark_producer(id);
        }
    }

    /// The client will send nothing more: a waiting reserve ends, but is served first if a job is ready.
    pub fn half_close(&mut self, now_ns: u64, id: ClientId, wires: &mut impl Wires) {
        let (up, owner_wait_ns) = (self.up, self.options.owner_wait_ns);
        let client = self.client_mut(id);
        client.is_half_closed = true;
        match &mut client.wait {
            None => {}
            Some(wait) if wait.round.is_some() && wait.ending.is_none() && !planted::is(Bug::HalfCloseTimesOut) => {
                // From here on it is a poll: what the owners answer to the question that is under way still counts, and
                // those that are away are waited for.
                if !std::mem::replace(&mut wait.is_poll, true)
                    && let Some(round) = &mut wait.round
                {
                    for owner in wait.owners.iter().filter(|owner| !up.contains(*owner)) {
                        round.asked.insert(owner);
                        round.give_up_at = now_ns.saturating_add(owner_wait_ns);
                    }
                }
                self.decide(now_ns, id, wires);
                if self.clients[id.0 as usize].is_some() {
                    self.arm(id);
                }
            }
            Some(_) => self.end_wait(now_ns, id, Ending::TimedOut, wires),
        }
    }

    fn answer(&mut self, id: ClientId, reply: &Reply<'_>, wires: &mut impl Wires) {
        let client = self.client_mut(id);
        if !client.is_busy() {
            Self::say(wires, id, reply);
        } else {
            let mut bytes = Vec::new();
            reply.encode(&mut bytes);
            client.local_bytes += bytes.len();
            client.pending.push_back(Pending::Local(bytes.into()));
        }
    }

    fn target(&self, client: &Client, command: &Command<'_>) -> Target {
        let by_id = |id: u64| self.map.of_id(id).map_or(Target::All, Target::Owner);
        match command {
            Command::Put { .. }
            | Command::Kick(_)
            | Command::PeekReady
            | Command::PeekDelayed
            | Command::PeekBuried => Target::Owner(client.used.1),
            Command::Use(name)
            | Command::Watch(name)
            | Command::StatsTube(name)
            | Command::PauseTube { tube: name, .. } => Target::Owner(self.map.of_tube(name)),
            Command::Ignore(name) => match client.watched.iter().find(|(watched, _)| **watched == **name) {
                Some((_, owner)) if client.watched.len() > 1 => Target::Owner(*owner),
                _ => Target::Here,
            },
            Command::ReserveJob(id)
            | Command::Delete(id)
            | Command::Release { id, .. }
            | Command::Bury { id, .. }
            | Command::Touch(id)
            | Command::Peek(id)
            | Command::KickJob(id)
            | Command::StatsJob(id) => by_id(*id),
            Command::ListTubes => Target::All,
            Command::Reserve { .. } => Target::Watched,
            Command::Stats | Command::ListTubeUsed | Command::ListTubesWatched => Target::Here,
        }
    }

    /// Whether the command cannot be sent yet: others are under way elsewhere, an owner is away, or too much is on its
    /// way already.
    fn must_wait(&self, id: ClientId, command: &Command<'_>, wires: &impl Wires) -> bool {
        let client = self.client(id);
        let is_busy = client.is_busy();
        let is_blocked = |owner: u16| {
            is_busy && client.busy_owner != owner
                || client.is_in_round()
                || !self.up.contains(owner)
                || !wires.has_room(owner)
                || client.behind_bytes > BEHIND_BYTES_MAX
        };
        match self.target(client, command) {
            Target::Owner(owner) => {
                is_blocked(owner) || brings_body(command) && client.bodies >= self.options.bodies_max
            }
            Target::All => is_busy || self.up != OwnerSet::all(self.map.owners()),
            Target::Here => false,
            // One owner must be there; of several a blocking reserve needs none to be.
            Target::Watched => client
                .only_watched_owner()
                .map_or(is_busy, |owner| is_blocked(owner) || client.bodies >= self.options.bodies_max),
        }
    }

    /// When a command that must wait is given up: never while it only waits its turn.
    fn patience(&self, id: ClientId, command: &Command<'_>, now_ns: u64) -> u64 {
        let client = self.client(id);
        let is_away = match self.target(client, command) {
            Target::Owner(owner) => !self.up.contains(owner),
            Target::All => self.up != OwnerSet::all(self.map.owners()),
            Target::Here => false,
            Target::Watched => client.watched_owners().iter().any(|owner| !self.up.contains(owner)),
        };
        if is_away { now_ns.saturating_add(self.options.owner_wait_ns) } else { u64::MAX }
    }

    /// An owner's link has room again: what waited for it goes on.
    pub fn room(&mut self, now_ns: u64, wires: &mut impl Wires) {
        for id in self.stalled.clone() {
            self.resume(now_ns, id, wires);
        }
    }

    /// Tries again what had to wait.
    pub(super) fn resume(&mut self, now_ns: u64, id: ClientId, wires: &mut impl Wires) {
        let Some(client) = self.clients[id.0 as usize].as_mut() else { return };
        if client.gather.is_some() {
            return;
        }
        let Some((request, until)) = client.stalled.take() else { return };
        let line;
        let command = match &request {
            Request::Line(bytes) => {
                line = bytes.clone();
                match parse_line(&line) {
                    Ok(Line::Command(command)) => command,
                    other => unreachable!("a line that was a command is {other:?}"),
                }
            }
            Request::Put { pri, delay_s, ttr_s, .. } => {
                // The body stays where it is until the put is sent.
                Command::Put { pri: *pri, delay_s: *delay_s, ttr_s: *ttr_s, body: Box::default() }
            }
        };
        if self.must_wait(id, &command, wires) {
            // For an owner that is there again it waits as long as it takes.
            let patience = self.patience(id, &command, now_ns);
            let until = if patience == u64::MAX { u64::MAX } else { until.min(patience) };
            self.client_mut(id).stalled = Some((request, until));
            self.arm(id);
            return;
        }
        self.stalled.remove(&id);
        match request {
            Request::Line(_) => self.send(now_ns, id, &command, wires),
            Request::Put { pri, delay_s, ttr_s, body } => {
                self.send(now_ns, id, &Command::Put { pri, delay_s, ttr_s, body }, wires);
            }
        }
        if self.clients[id.0 as usize].is_some() {
            self.arm(id);
            if self.can_take(id) {
                wires.wake(id);
            }
        }
    }

    /// Sends a command to whom it concerns; nothing stands in its way.
    fn send(&mut self, now_ns: u64, id: ClientId, command: &Command<'_>, wires: &mut impl Wires) {
        let client = self.clients[id.0 as usize].as_mut().expect("a client that sends is connected");
        match command {
            Command::Reserve { timeout_s } => return self.reserve(now_ns, id, *timeout_s, wires),
            Command::ListTubes => {
                let kind = GatherKind::Names(std::collections::BTreeMap::new());
                return self.gather(id, kind, &ToOwner::ListTubes, wires);
            }
            Command::Stats => {
                if !client.is_busy() {
                    wires.stats(id);
                } else {
                    client.pending.push_back(Pending::Stats);
                }
                return;
            }
            Command::ListTubeUsed => {
                let used = client.used.0.clone();
                return self.answer(id, &Reply::Using(&used), wires);
            }
            Command::ListTubesWatched => {
                let watched = client.watched.clone();
                let names: Vec<&[u8]> = watched.iter().map(|(name, _)| &**name).collect();
                return self.answer(id, &Reply::Names(&names), wires);
            }
            Command::Ignore(name) => {
                let at = client.watched.iter().position(|(watched, _)| **watched == **name);
                let count = client.watched.len();
                match at {
                    None => return self.answer(id, &Reply::Watching(count), wires),
                    Some(_) if count == 1 => return self.answer(id, &Reply::NotIgnored, wires),
                    Some(at) => {
                        let (name, owner) = client.watched.remove(at);
                        let reply = fixed(&Reply::Watching(count - 1));
                        return self.forward(id, owner, reply, &ToOwner::Unwatch(&name), wires);
                    }
                }
            }
            _ => {}
        }
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        let client = self.clients[id.0 as usize].as_mut().expect("as above");
        let (pending, message) = match command {
            Command::Put { pri, delay_s, ttr_s, body } => {
                (Pending::Put, ToOwner::Put { pri: *pri, delay_s: *delay_s, ttr_s: *ttr_s, body })
            }
            other => {
                other.encode_line(&mut line);
                let pending = match other {
                    Command::Delete(id) | Command::Release { id, .. } | Command::Bury { id, .. } => {
                        Pending::LetsGo(*id)
                    }
                    Command::Watch(name) => {
                        if !client.watched.iter().any(|(watched, _)| **watched == **name) {
                            client.watched.push(((*name).into(), self.map.of_tube(name)));
                        }
                        fixed(&Reply::Watching(client.watched.len()))
                    }
                    _ if brings_body(other) => Pending::Body,
                    _ => Pending::Forward,
                };
                (pending, ToOwner::Line(&line))
            }
        };
        match self.target(self.client(id), command) {
            Target::Owner(owner) => {
                if let Command::Use(name) = command {
                    let client = self.client_mut(id);
                    let (_, before) = std::mem::replace(&mut client.used, ((*name).into(), owner));
                    let session = client.session;
                    if before != owner && self.up.contains(before) {
                        wires.to_owner(before, session, &ToOwner::Unuse);
                    }
                }
                self.forward(id, owner, pending, &message, wires);
            }
            Target::All => {
                let lets_go = if let Pending::LetsGo(job) = pending { Some(job) } else { None };
                self.gather(id, GatherKind::Id { answer: None, lets_go }, &message, wires);
            }
            Target::Here | Target::Watched => unreachable!("answered above"),
        }
        self.line = line;
    }

    fn forward(&mut self, id: ClientId, owner: u16, pending: Pending, message: &ToOwner<'_>, wires: &mut impl Wires) {
        let client = self.client_mut(id);
        client.busy_owner = owner;
        client.bodies += u32::from(matches!(pending, Pending::Body));
        if client.wait.is_some() || client.behind_bytes > 0 {
            client.behind_bytes += message.weight();
        }
        client.pending.push_back(pending);
        client.touched.insert(owner);
        wires.to_owner(owner, client.session, message);
    }

    fn gather(&mut self, id: ClientId, kind: GatherKind, message: &ToOwner<'_>, wires: &mut impl Wires) {
        let left = OwnerSet::all(self.map.owners());
        let client = self.client_mut(id);
        client.gather = Some(Gather { left, kind });
        client.touched = left;
        for owner in left.iter() {
            wires.to_owner(owner, client.session, message);
        }
    }

    pub(super) fn mark_producer(&mut self, id: ClientId) {
        if !std::mem::replace(&mut self.client_mut(id).is_producer, true) {
            self.producer_count += 1;
        }
    }

    fn mark_worker(&mut self, id: ClientId) {
        if !std::mem::replace(&mut self.client_mut(id).is_worker, true) {
            self.worker_count += 1;
        }
    }

    fn count(&mut self, id: ClientId, command: &Command<'_>) {
        let counts = &mut self.counts;
        let count = match command {
            Command::Put { .. } => &mut counts.put,
            Command::Peek(_) => &mut counts.peek,
            Command::PeekReady => &mut counts.peek_ready,
            Command::PeekDelayed => &mut counts.peek_delayed,
            Command::PeekBuried => &mut counts.peek_buried,
            Command::Reserve { timeout_s: None } => &mut counts.reserve,
            Command::Reserve { timeout_s: Some(_) } => &mut counts.reserve_with_timeout,
            Command::Delete(_) => &mut counts.delete,
            Command::Release { .. } => &mut counts.release,
            Command::Use(_) => &mut counts.use_tube,
            Command::Watch(_) => &mut counts.watch,
            Command::Ignore(_) => &mut counts.ignore,
            Command::Bury { .. } => &mut counts.bury,
            Command::Kick(_) => &mut counts.kick,
            Command::Touch(_) => &mut counts.touch,
            Command::Stats => &mut counts.stats,
            Command::StatsJob(_) => &mut counts.stats_job,
            Command::StatsTube(_) => &mut counts.stats_tube,
            Command::ListTubes => &mut counts.list_tubes,
            Command::ListTubeUsed => &mut counts.list_tube_used,
            Command::ListTubesWatched => &mut counts.list_tubes_watched,
            Command::PauseTube { .. } => &mut counts.pause_tube,
            Command::ReserveJob(_) | Command::KickJob(_) => return self.note_kind(id, command),
        };
        *count += 1;
        self.note_kind(id, command);
    }

    fn note_kind(&mut self, id: ClientId, command: &Command<'_>) {
        match command {
            Command::Put { .. } => self.mark_producer(id),
            Command::Reserve { .. } => self.mark_worker(id),
            _ => {}
        }
    }

    /// A job was handed to the client.
    pub(super) fn holds(&mut self, id: ClientId, job: u64, owner: u16, deadline_ns: u64) {
        self.mark_worker(id);
        self.client_mut(id).hold(job, owner, deadline_ns);
    }
}

/// Whether the answer may be a job's body; a reserve is not meant, which is counted where it is made.
fn brings_body(command: &Command<'_>) -> bool {
    use Command::{Peek, PeekBuried, PeekDelayed, PeekReady, ReserveJob};
    matches!(command, Peek(_) | PeekReady | PeekDelayed | PeekBuried | ReserveJob(_))
}

fn fixed(reply: &Reply<'_>) -> Pending {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    Pending::Fixed(bytes.into())
}
