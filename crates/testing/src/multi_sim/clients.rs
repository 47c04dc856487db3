//! Clients and the network between them and the frontends.

use std::collections::VecDeque;

use tubes_protocol::Command;

use super::process::Pid;
use super::world::{Checked, Step, World};
use crate::sim::profile::{MS, TUBES};

/// So many clients empty the queues when the faults are over; the others leave.
pub(super) const DRAINING_CLIENTS: usize = 3;

/// What a client sends.
#[derive(Debug)]
pub(super) enum Input {
    Connect,
    Command(Command<'static>),
    /// Nothing more will be sent.
    HalfClose,
    /// Nothing more will be sent, and nothing read.
    Close,
}

/// A client: one connection at a time.
#[derive(Debug)]
pub(super) struct Client {
    /// Rises with every connection; what belongs to an earlier one is void.
    pub(super) epoch: u32,
    /// The frontend that has its connection.
    pub(super) server: Option<Pid>,
    is_leaving: bool,
    outstanding: u32,
    acts: u32,
    sent: VecDeque<Input>,
    arrives_ns: u64,
    replied_ns: u64,
    /// Never waits for ever, so that something always happens.
    is_patient: bool,
    pub(super) drain: Option<usize>,
    /// When it was answered last.
    pub(super) heard_ns: u64,
}

impl Client {
    pub(super) fn new(number: usize) -> Client {
        Client {
            epoch: 0,
            server: None,
            is_leaving: false,
            outstanding: 0,
            acts: 0,
            sent: VecDeque::new(),
            arrives_ns: 0,
            replied_ns: 0,
            is_patient: number != 0,
            drain: None,
            heard_ns: 0,
        }
    }
}

impl World {
    pub(super) fn act(&mut self, number: usize, epoch: u32) {
        let client = &mut self.clients[number];
        let is_over = client.drain.is_some() && number >= DRAINING_CLIENTS;
        if client.epoch != epoch || client.outstanding > 0 || client.is_leaving || is_over {
            return;
        }
        client.acts += 1;
        if client.server.is_none() {
            let listening: Vec<Pid> =
                self.frontends.iter().flatten().filter(|open| open.listens).map(|open| open.process.pid).collect();
            if listening.is_empty() {
                let ns = self.rng.between(1, self.profile.think_ns.min(100 * MS) + MS);
                return self.after(ns, Step::Act { client: number, epoch });
            }
            self.clients[number].server = Some(*self.rng.pick(&listening));
            self.send(number, vec![Input::Connect]);
        }
        if self.clients[number].drain.is_some() {
            return self.act_to_drain(number);
        }
        if self.rng.chance(1, 60) {
            let last = if self.rng.chance(1, 2) { Input::HalfClose } else { Input::Close };
            return self.leave(number, last);
        }
        let count = self.rng.between(1, self.profile.pipeline_max);
        let may_block = self.clients[number].is_patient;
        let mut inputs = Vec::new();
        let held = self.held_by(number, epoch);
        let jobs: Vec<u64> = self.owners.iter().flatten().flat_map(|owner| owner.judge.model.jobs().keys()).collect();
        let unknown = self.page.id_count * 64 + 128;
        let pick_id = |rng: &mut crate::rng::Rng, wants_held: bool| {
            if wants_held && !held.is_empty() {
                return *rng.pick(&held);
            }
            if jobs.is_empty() || rng.chance(1, 16) { rng.below(unknown) } else { *rng.pick(&jobs) }
        };
        for _ in 0..count {
            let mut command = self.profile.command(&mut self.rng, may_block, pick_id);
            if let Command::Put { body, .. } = &mut command {
                if jobs.len() >= self.profile.jobs_max {
                    command = Command::Reserve { timeout_s: Some(0) };
                } else {
                    // No two puts are alike.
                    self.bodies += 1;
                    let mut own = self.bodies.to_le_bytes().iter().chain(body.iter()).copied().collect::<Vec<u8>>();
                    if self.rng.chance(self.shape.large_percent, 100) {
                        own.resize(60_000 + self.rng.index(200_000), 7);
                        self.outcome.large_bodies += 1;
                    }
                    *body = own.into_boxed_slice();
                }
            }
            inputs.push(Input::Command(command));
        }
        if self.rng.chance(1, 40) {
            // The end of the input is on the heels of the commands.
            inputs.push(Input::HalfClose);
            self.clients[number].is_leaving = true;
        }
        self.send(number, inputs);
        if may_block || self.rng.chance(1, 4) {
            let act = self.clients[number].acts;
            let ns = self.rng.below(20 * (self.profile.think_ns + 100 * MS));
            self.after(ns, Step::GiveUp { client: number, epoch, act });
        }
    }

    /// Jobs that the client's connection was told it holds.
    fn held_by(&self, number: usize, epoch: u32) -> Vec<u64> {
        let open = self.frontends.iter().flatten();
        let mut found = open.filter_map(|frontend| {
            let connection = frontend.connection_of(number, epoch)?;
            Some(frontend.held_by(connection.session))
        });
        found.next().unwrap_or_default()
    }

    fn send(&mut self, number: usize, inputs: Vec<Input>) {
        let delay_ns = self.rng.below(self.profile.network_ns + 1);
        let client = &mut self.clients[number];
        client.arrives_ns = (client.arrives_ns + 1).max(self.now_ns + delay_ns);
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
        let inputs: Vec<Input> = client.sent.drain(..count as usize).collect();
        let Some(pid) = client.server else { return };
        let at = usize::from(pid.who.slot);
        let Some(mut frontend) = self.frontends[at].take_if(|frontend| frontend.process.pid == pid) else {
            let ns = self.profile.network_ns;
            return self.after(ns, Step::Gone { client: number, epoch });
        };
        if frontend.listens || frontend.connection_of(number, epoch).is_some() || !frontend.inbox.is_empty() {
            for input in inputs {
                frontend.inbox.push_back((number, epoch, input));
            }
        } else {
            // It stopped to accept before the connection was there.
            let ns = self.profile.network_ns;
            self.after(ns, Step::Gone { client: number, epoch });
        }
        self.wake_process(&mut frontend.process, self.now_ns);
        self.frontends[at] = Some(frontend);
    }

    /// Replies leave a frontend.
    pub(super) fn replies_leave(&mut self, number: usize, epoch: u32, replies: Vec<Vec<u8>>, closed: bool) {
        let delay_ns = self.rng.below(self.profile.network_ns + 1);
        let client = &mut self.clients[number];
        if client.epoch != epoch {
            return;
        }
        client.replied_ns = (client.replied_ns + 1).max(self.now_ns + delay_ns);
        let at_ns = client.replied_ns;
        self.at(at_ns, Step::Reply { client: number, epoch, count: replies.len() as u32, closed });
    }

    pub(super) fn replies_arrive(&mut self, number: usize, epoch: u32, count: u32, closed: bool) -> Checked {
        let client = &mut self.clients[number];
        if client.epoch != epoch {
            return Ok(());
        }
        client.heard_ns = self.now_ns;
        client.outstanding = client.outstanding.checked_sub(count).ok_or("more replies than commands")?;
        if closed {
            self.connection_gone(number, epoch);
        } else if client.outstanding == 0 && count > 0 {
            let ns = if client.drain.is_some() { MS } else { self.rng.below(2 * self.profile.think_ns) };
            self.after(ns, Step::Act { client: number, epoch });
        }
        Ok(())
    }

    pub(super) fn connection_gone(&mut self, number: usize, epoch: u32) {
        let client = &mut self.clients[number];
        if client.epoch != epoch {
            return;
        }
        client.epoch += 1;
        client.is_leaving = false;
        client.outstanding = 0;
        client.sent.clear();
        client.heard_ns = self.now_ns;
        let epoch = client.epoch;
        if let Some(pid) = client.server.take() {
            self.client_left(pid, number, epoch - 1);
        }
        let think_ns = if self.is_chaos { self.profile.think_ns } else { 50 * MS };
        let ns = self.rng.below(think_ns + MS);
        self.after(ns, Step::Act { client: number, epoch });
    }

    /// The frontend sees that a client is not there any more, if it did not know.
    fn client_left(&mut self, pid: Pid, number: usize, epoch: u32) {
        let at = usize::from(pid.who.slot);
        if let Some(mut frontend) = self.frontends[at].take_if(|frontend| frontend.process.pid == pid) {
            frontend.inbox.push_back((number, epoch, Input::Close));
            self.wake_process(&mut frontend.process, self.now_ns);
            self.frontends[at] = Some(frontend);
        }
    }

    /// The client gives up what it does and begins to empty the queues.
    pub(super) fn begin_to_drain(&mut self, number: usize) {
        let epoch = self.clients[number].epoch;
        self.clients[number].drain = Some(0);
        self.connection_gone(number, epoch);
    }

    /// Watches everything, kicks everything, then takes and deletes whatever comes.
    fn act_to_drain(&mut self, number: usize) {
        let epoch = self.clients[number].epoch;
        let held = self.held_by(number, epoch);
        let is_new = self.frontends.iter().flatten().all(|open| open.connection_of(number, epoch).is_none());
        let round = self.clients[number].drain.unwrap_or(0);
        self.clients[number].drain = Some(round + 1);
        let mut inputs: Vec<Command<'static>> = Vec::new();
        // Said again now and then: while an owner was away, it was refused.
        if is_new || round.is_multiple_of(4) {
            inputs.extend(TUBES.iter().map(|name| Command::Watch(name)));
        }
        if round.is_multiple_of(8) {
            for name in TUBES {
                inputs.extend([Command::Use(name), Command::Kick(u32::MAX)]);
            }
        }
        inputs.extend(held.into_iter().map(Command::Delete));
        inputs.push(Command::Reserve { timeout_s: Some(1) });
        self.send(number, inputs.into_iter().map(Input::Command).collect());
    }
}
