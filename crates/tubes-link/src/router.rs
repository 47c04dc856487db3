//! A frontend's side: client sessions, where their commands go, and what they hear.
//!
//! A session's commands run one after another. Several may be under way together only at one owner, a reserve among
//! them: what is sent behind it, the owner keeps while it waits. A command for another owner, or for all, waits until
//! those before it are answered. What the frontend answers itself takes its place in the same order.
//!
//! A command for an owner that is away waits, up to [`RouterOptions::owner_wait_ns`], and is then answered
//! `INTERNAL_ERROR`. When an owner is lost, every client that holds a job there, waits there (a blocking reserve over
//! several owners goes on with the others) or has an unanswered command there is closed, before anything is said to the
//! next generation.

mod client;
mod commands;
mod owners;
mod replies;
#[cfg(test)]
mod tests;
mod wait;

use crate::message::ToOwner;
use crate::partition::PartitionMap;
use crate::planted::{self, Bug};
use client::{Client, OwnerSet};
use std::collections::BTreeSet;
use tubes_protocol::{CommandCounts, Reply};

/// A client's number, chosen by the caller and reused after the client is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// What a router reaches.
pub trait Wires {
    /// Whether another command may be queued for an owner: the link does not hold too much already.
    fn has_room(&self, owner: u16) -> bool;
    /// Queues a message for an owner.
    fn to_owner(&mut self, owner: u16, session: u64, message: &ToOwner<'_>);
    /// Queues bytes for a client.
    fn to_client(&mut self, client: ClientId, bytes: &[u8]);
    /// Queues the answer to `stats`.
    fn stats(&mut self, client: ClientId);
    /// The client must be closed without another word; the caller then calls [`Router::disconnect`].
    fn close(&mut self, client: ClientId);
    /// The client was blocked and can go on with what it sent.
    fn wake(&mut self, client: ClientId);
}

/// How a router behaves.
#[derive(Debug, Clone, Copy)]
pub struct RouterOptions {
    /// How long a command waits for an owner that is away, in ns.
    pub owner_wait_ns: u64,
    /// Commands of one session under way together that are answered with a job's body, at most: a bound on what may
    /// come for a client that does not read.
    pub bodies_max: u32,
}

/// Commands of one session under way together, at most: a bound on what an owner's end costs and on memory.
const PIPELINED_MAX: usize = 128;
/// Bytes of commands that are sent on behind a reserve that may wait, and are kept by the owner, at most.
const BEHIND_BYTES_MAX: usize = 64 * 1024;
/// Bytes of the frontend's own answers that wait behind others for one client, at most; one may come on top.
const LOCAL_BYTES_MAX: usize = 64 * 1024;
/// How long the first offer waits for those of the other owners, in ns: a slow owner must not hold up the others.
const OFFERS_NS: u64 = 100_000_000;
/// How often a poll asks again after an accepted offer was gone.
const ROUNDS_MAX: u32 = 8;
/// The last second before a deadline, in ns.
const MARGIN_NS: u64 = 1_000_000_000;

/// All client sessions of one frontend.
#[derive(Debug)]
pub struct Router {
    options: RouterOptions,
    map: PartitionMap,
    /// Which owners are there.
    up: OwnerSet,
    clients: Vec<Option<Client>>,
    /// How many sessions there were.
    serial: u32,
    timers: BTreeSet<(u64, ClientId)>,
    /// Clients with a command that waits for an owner.
    stalled: BTreeSet<ClientId>,
    counts: CommandCounts,
    producer_count: u64,
    worker_count: u64,
    waiting_count: u64,
    client_count: u64,
    total_clients: u64,
    /// A line on its way, kept for its memory.
    line: Vec<u8>,
}

impl Router {
    /// A frontend without clients, whose owners are all away.
    #[must_use]
    pub fn new(options: RouterOptions, map: PartitionMap) -> Self {
        Router {
            options,
            up: OwnerSet::default(),
            map,
            clients: Vec::new(),
            serial: 0,
            timers: BTreeSet::new(),
            stalled: BTreeSet::new(),
            counts: CommandCounts::default(),
            producer_count: 0,
            worker_count: 0,
            waiting_count: 0,
            client_count: 0,
            total_clients: 0,
            line: Vec::new(),
        }
    }

    /// Commands understood so far.
    #[must_use]
    pub fn counts(&self) -> &CommandCounts {
        &self.counts
    }

    /// Connected clients; those that have put, that have reserved, that wait; all clients so far.
    #[must_use]
    pub fn gauges(&self) -> [u64; 5] {
        [self.client_count, self.producer_count, self.worker_count, self.waiting_count, self.total_clients]
    }

    /// A client connects; it uses and watches `default`.
    pub fn connect(&mut self, id: ClientId, wires: &mut impl Wires) {
        // The client's number leads from a session to its client; with the serial it never means another one.
        self.serial = self.serial.wrapping_add(1);
        let session = u64::from(self.serial) << 32 | u64::from(id.0);
        let owner = self.map.of_tube(b"default");
        let at = id.0 as usize;
        if self.clients.len() <= at {
            self.clients.resize_with(at + 1, || None);
        }
        self.clients[at] = Some(Client::new(session, owner));
        self.client_count += 1;
        self.total_clients += 1;
        if self.up.contains(owner) {
            self.announce(id, owner, wires);
        }
    }

    /// A client is gone, for whatever reason.
    pub fn disconnect(&mut self, id: ClientId, wires: &mut impl Wires) {
        let Some(client) = self.clients.get_mut(id.0 as usize).and_then(Option::take) else { return };
        for owner in client.touched.iter() {
            if self.up.contains(owner) && !planted::is(Bug::EndNotTold) {
                wires.to_owner(owner, client.session, &ToOwner::End);
            }
        }
        self.timers.remove(&(client.timer, id));
        self.stalled.remove(&id);
        self.client_count -= 1;
        self.producer_count -= u64::from(client.is_producer);
        self.worker_count -= u64::from(client.is_worker);
        self.waiting_count -= u64::from(client.wait.is_some());
    }

    /// Whether the client is connected, as far as the router knows.
    #[must_use]
    pub fn is_connected(&self, id: ClientId) -> bool {
        self.clients.get(id.0 as usize).is_some_and(Option::is_some)
    }

    /// The number of the client's session on the links.
    #[must_use]
    pub fn session(&self, id: ClientId) -> u64 {
        self.client(id).session
    }

    /// Whether a command that was taken is still to be answered. A reserve that waits, and what stands behind it, does
    /// not count.
    #[must_use]
    pub fn has_unanswered(&self) -> bool {
        self.clients.iter().flatten().any(Client::has_unanswered)
    }

    /// Whether the client's next command can be taken.
    #[must_use]
    pub fn can_take(&self, id: ClientId) -> bool {
        let client = self.client(id);
        client.stalled.is_none()
            && !client.is_in_round()
            && client.gather.is_none()
            && client.pending.len() < PIPELINED_MAX
            && client.local_bytes <= LOCAL_BYTES_MAX
    }

    /// Whether everything the client asked is answered.
    #[must_use]
    pub fn is_idle(&self, id: ClientId) -> bool {
        let client = self.client(id);
        client.stalled.is_none() && !client.is_busy() && client.gather.is_none()
    }

    /// Whether a put of the client is not answered, so that its body may still be here.
    #[must_use]
    pub fn has_put(&self, id: ClientId) -> bool {
        self.client(id).has_put()
    }

    /// Whether the client waits in a reserve.
    #[must_use]
    pub fn is_waiting(&self, id: ClientId) -> bool {
        self.client(id).wait.is_some()
    }

    /// When [`Router::tick`] has something to do next, in ns of the boot clock.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.first().map(|timer| timer.0)
    }

    fn client(&self, id: ClientId) -> &Client {
        self.clients[id.0 as usize].as_ref().expect("a client that is not connected has no commands")
    }

    fn client_mut(&mut self, id: ClientId) -> &mut Client {
        self.clients[id.0 as usize].as_mut().expect("a client that is not connected has no commands")
    }

    /// Arms the client's timer for the next thing due.
    fn arm(&mut self, id: ClientId) {
        let client = self.client(id);
        let due = client.next_due();
        let before = client.timer;
        // One that is armed too early is armed anew when it fires: what comes and goes costs nothing.
        if due < before {
            self.timers.remove(&(before, id));
            self.timers.insert((due, id));
            self.client_mut(id).timer = due;
        }
    }

    /// The client of a session, if it is still connected.
    fn of_session(&self, session: u64) -> Option<ClientId> {
        let id = ClientId(session as u32);
        self.clients.get(id.0 as usize)?.as_ref().filter(|client| client.session == session).map(|_| id)
    }

    fn say(wires: &mut impl Wires, id: ClientId, reply: &Reply<'_>) {
        let mut bytes = Vec::with_capacity(32);
        reply.encode(&mut bytes);
        wires.to_client(id, &bytes);
    }
}
