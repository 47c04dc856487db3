//! Clients and the network between them and the server.

use std::collections::VecDeque;

use tubes_protocol::Command;

use super::profile::{MS, SECOND, TUBES};
use super::server::{Connection, Input};
use super::world::{Step, World};

/// A client: one connection at a time.
#[derive(Debug)]
pub(super) struct Client {
    /// Rises with every connection; what belongs to an earlier one is void.
    pub(super) epoch: u32,
    is_connected: bool,
    /// Its last input is on the way: it sends nothing more.
    is_leaving: bool,
    /// Commands without a reply.
    outstanding: u32,
    /// How often it has acted.
    acts: u32,
    /// On the way to the server, in order.
    sent: VecDeque<Input>,
    /// When the last of it arrives.
    arrives_ns: u64,
    /// When the last reply arrives.
    pub(super) replied_ns: u64,
    /// Never waits for ever, so that something always happens.
    is_patient: bool,
    drain: Option<usize>,
}

impl Client {
    pub(super) fn new(number: usize) -> Client {
        Client {
            epoch: 0,
            is_connected: false,
            is_leaving: false,
            outstanding: 0,
            acts: 0,
            sent: VecDeque::new(),
            arrives_ns: 0,
            replied_ns: 0,
            is_patient: number != 0,
            drain: None,
        }
    }
}

impl World {
    pub(super) fn act(&mut self, number: usize, epoch: u32) {
        let client = &mut self.clients[number];
        if client.epoch != epoch || client.outstanding > 0 || client.is_leaving {
            return;
        }
        client.acts += 1;
        if !client.is_connected {
            if self.server.is_none() {
                let ns = self.rng.between(1, self.profile.think_ns + MS);
                return self.after(ns, Step::Act { client: number, epoch });
            }
            client.is_connected = true;
            self.send(number, vec![Input::Connect]);
        }
        if self.clients[number].drain.is_some() {
            return self.act_to_drain(number);
        }
        if self.rng.chance(1, 60) {
            let last = if self.rng.chance(1, 2) { Input::HalfClose } else { Input::Close };
            self.leave(number, last);
            return;
        }
        let count = self.rng.between(1, self.profile.pipeline_max);
        let may_block = self.clients[number].is_patient;
        let session = self.server.as_ref().and_then(|server| server.session_of(number, epoch));
        let World { rng, model, profile, .. } = self;
        let pick_id = |rng: &mut crate::rng::Rng, held: bool| {
            if held && let Some(session) = session {
                let held: Vec<u64> = model.held_by(session).collect();
                if !held.is_empty() {
                    return *rng.pick(&held);
                }
            }
            if model.jobs().is_empty() || rng.chance(1, 16) {
                return rng.below(model.next_id() + 2);
            }
            let nth = rng.index(model.jobs().len());
            model.jobs().keys().nth(nth).expect("below the number of jobs")
        };
        let mut inputs = Vec::new();
        for _ in 0..count {
            let command = profile.command(rng, may_block, pick_id);
            if matches!(command, Command::Put { .. }) && model.jobs().len() >= profile.jobs_max {
                inputs.push(Input::Command(Command::Reserve { timeout_s: Some(0) }));
            } else {
                inputs.push(Input::Command(command));
            }
        }
        self.send(number, inputs);
        if may_block || self.rng.chance(1, 4) {
            let act = self.clients[number].acts;
            let ns = self.rng.below(20 * (self.profile.think_ns + 100 * MS));
            self.after(ns, Step::GiveUp { client: number, epoch, act });
        }
    }

    fn send(&mut self, number: usize, inputs: Vec<Input>) {
        let delay_ns = self.rng.below(self.profile.network_ns + 1);
        let client = &mut self.clients[number];
        client.arrives_ns = client.arrives_ns.max(self.now_ns + delay_ns);
        let epoch = client.epoch;
        let count = u32::try_from(inputs.len()).expect("a few");
        for input in inputs {
            client.outstanding += u32::from(matches!(input, Input::Command(_)));
            client.sent.push_back(input);
        }
        let arrives_ns = client.arrives_ns;
        self.at(arrives_ns, Step::Deliver { client: number, epoch, count });
    }

    fn leave(&mut self, number: usize, last: Input) {
        let is_closed = matches!(last, Input::Close);
        self.send(number, vec![last]);
        self.clients[number].is_leaving = true;
        if is_closed {
            // Replies still on the way reach nobody; a late arrival of the close finds its own epoch.
            let epoch = self.clients[number].epoch;
            let ns = self.rng.below(self.profile.think_ns + MS) + self.profile.network_ns;
            self.at(self.clients[number].arrives_ns + ns, Step::Gone { client: number, epoch });
        }
    }

    pub(super) fn give_up(&mut self, number: usize, epoch: u32, act: u32) {
        let client = &self.clients[number];
        if client.epoch == epoch && client.acts == act && client.outstanding > 0 && !client.is_leaving {
            let last = if self.rng.chance(1, 2) { Input::HalfClose } else { Input::Close };
            self.leave(number, last);
        }
    }

    pub(super) fn deliver(&mut self, number: usize, epoch: u32, count: u32) {
        let client = &mut self.clients[number];
        if client.epoch != epoch {
            return;
        }
        let inputs = client.sent.drain(..count as usize);
        let Some(server) = &mut self.server else {
            drop(inputs);
            let ns = self.profile.network_ns;
            return self.after(ns, Step::Gone { client: number, epoch });
        };
        for input in inputs {
            server.inbox.push_back((number, epoch, input));
        }
        self.wake(self.now_ns);
    }

    pub(super) fn replies_arrive(&mut self, number: usize, epoch: u32, count: u32, closed: bool) {
        let client = &mut self.clients[number];
        if client.epoch != epoch {
            return;
        }
        client.outstanding -= count;
        if closed {
            return self.connection_gone(number, epoch);
        }
        if client.outstanding == 0 {
            let ns = if client.drain.is_some() { MS } else { self.rng.below(2 * self.profile.think_ns) };
            self.after(ns, Step::Act { client: number, epoch });
        }
    }

    pub(super) fn connection_gone(&mut self, number: usize, epoch: u32) {
        let client = &mut self.clients[number];
        if client.epoch != epoch {
            return;
        }
        client.epoch += 1;
        client.is_connected = false;
        client.is_leaving = false;
        client.outstanding = 0;
        client.sent.clear();
        let epoch = client.epoch;
        let ns = self.rng.below(self.profile.think_ns + MS);
        self.after(ns, Step::Act { client: number, epoch });
    }

    /// The client gives up what it does and begins to empty the queues.
    pub(super) fn begin_to_drain(&mut self, number: usize) {
        let epoch = self.clients[number].epoch;
        self.clients[number].drain = Some(0);
        self.connection_gone(number, epoch);
    }

    /// Watches everything, kicks everything, then takes and deletes whatever comes.
    fn act_to_drain(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let round = client.drain.unwrap_or(0);
        client.drain = Some(round + 1);
        let epoch = client.epoch;
        let session = self.server.as_ref().and_then(|server| server.session_of(number, epoch));
        let mut inputs: Vec<Command<'static>> = Vec::new();
        if session.is_none() {
            inputs.extend(TUBES.iter().map(|name| Command::Watch(name)));
        }
        if round.is_multiple_of(8) {
            for name in TUBES {
                inputs.extend([Command::Use(name), Command::Kick(u32::MAX)]);
            }
        }
        if let Some(session) = session {
            inputs.extend(self.model.held_by(session).map(Command::Delete));
        }
        inputs.push(Command::Reserve { timeout_s: Some(1) });
        self.send(number, inputs.into_iter().map(Input::Command).collect());
    }

    /// All connections have ended on the server's side.
    pub(super) fn connections_lost(&mut self, connections: &[Option<Connection>]) {
        for (number, connection) in connections.iter().enumerate() {
            let epoch = match connection {
                Some(connection) => connection.epoch,
                // What was on the way to a connection that the server never saw is lost too.
                None if self.clients[number].is_connected => self.clients[number].epoch,
                None => continue,
            };
            let ns = self.rng.below(self.profile.network_ns + 1);
            self.after(ns, Step::Gone { client: number, epoch });
        }
    }

    /// How long a reply is on the way.
    pub(super) fn reply_arrives(&mut self, number: usize) -> u64 {
        let delay_ns = self.rng.below(self.profile.network_ns + 1).min(SECOND);
        let client = &mut self.clients[number];
        client.replied_ns = client.replied_ns.max(self.now_ns + delay_ns);
        client.replied_ns
    }
}
