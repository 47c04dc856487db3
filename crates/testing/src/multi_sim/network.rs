//! Links between owners and frontends: bytes on their way, late, in pieces, or lost with the whole link.
//!
//! Owns: the pipes between processes, and [`LinkEnd`], what a process has of one. A pipe keeps the order of its bytes
//! and loses none but with all behind them, as a stream socket does.

use std::collections::{BTreeMap, VecDeque};

use supervisor::{Instance, Role};
use tubes_link::{FrameError, Link, MessageHead, Reader, Writer};

use super::NOT_SIMULATED;
use crate::rng::Rng;

/// What a stream socket takes before its reader must have taken some of it, in bytes.
const SOCKET_BYTES: usize = 200 * 1024;

/// One direction of a pipe.
#[derive(Debug, Default)]
pub(super) struct Direction {
    /// When each piece arrives, and what it is.
    flight: VecDeque<(u64, Vec<u8>)>,
    flight_bytes: usize,
    arrived: Vec<u8>,
    /// Nothing comes behind what is in flight.
    is_ended: bool,
    /// When the last piece arrives.
    last_ns: u64,
    /// The last batches that were sent, as they were.
    old: Vec<u8>,
}

/// A pair of connected sockets.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) owner: Instance,
    pub(super) frontend: Instance,
    to_owner: Direction,
    to_frontend: Direction,
    /// Whether the ends are still open.
    owner_open: bool,
    frontend_open: bool,
}

impl Pipe {
    pub(super) fn towards(&mut self, role: Role) -> &mut Direction {
        match role {
            Role::Owner => &mut self.to_owner,
            Role::Frontend => &mut self.to_frontend,
            Role::Tubes | Role::Daemon => unreachable!("{NOT_SIMULATED}"),
        }
    }

    fn is_open(&self, role: Role) -> bool {
        match role {
            Role::Owner => self.owner_open,
            Role::Frontend => self.frontend_open,
            Role::Tubes | Role::Daemon => unreachable!("{NOT_SIMULATED}"),
        }
    }

    pub(super) fn end_of(&self, role: Role) -> Instance {
        match role {
            Role::Owner => self.owner,
            Role::Frontend => self.frontend,
            Role::Tubes | Role::Daemon => unreachable!("{NOT_SIMULATED}"),
        }
    }
}

/// All pipes.
#[derive(Debug, Default)]
pub(super) struct Network {
    pipes: BTreeMap<u64, Pipe>,
    next: u64,
    /// While links are clogged, their room.
    pub(super) clogged: Option<usize>,
}

pub(super) fn other(role: Role) -> Role {
    match role {
        Role::Owner => Role::Frontend,
        Role::Frontend => Role::Owner,
        Role::Tubes | Role::Daemon => unreachable!("{NOT_SIMULATED}"),
    }
}

/// What reading has found.
pub(super) struct Taken {
    pub(super) bytes: Vec<u8>,
    pub(super) is_ended: bool,
}

impl Network {
    /// A new pair.
    pub(super) fn pair(&mut self, owner: Instance, frontend: Instance) -> u64 {
        self.next += 1;
        let pipe = Pipe {
            owner,
            frontend,
            to_owner: Direction::default(),
            to_frontend: Direction::default(),
            owner_open: true,
            frontend_open: true,
        };
        self.pipes.insert(self.next, pipe);
        self.next
    }

    pub(super) fn get(&mut self, pipe: u64) -> Option<&mut Pipe> {
        self.pipes.get_mut(&pipe)
    }

    /// Pipes with both ends open.
    pub(super) fn open(&self) -> Vec<u64> {
        self.pipes.iter().filter(|(_, pipe)| pipe.owner_open && pipe.frontend_open).map(|(id, _)| *id).collect()
    }

    /// The last bytes that went from one slot to another, to a process there that is no more.
    pub(super) fn old_bytes(&self, from: Instance, to: Instance, not: u64) -> Option<Vec<u8>> {
        let is_between = |pipe: &Pipe| {
            let (sender, receiver) = (pipe.end_of(from.role), pipe.end_of(to.role));
            (sender.slot, receiver.slot) == (from.slot, to.slot) && receiver != to
        };
        let earlier = self.pipes.iter().rev().filter(|(id, pipe)| **id != not && is_between(pipe));
        let of = |pipe: &Pipe| match to.role {
            Role::Owner => pipe.to_owner.old.clone(),
            Role::Frontend => pipe.to_frontend.old.clone(),
            Role::Tubes | Role::Daemon => unreachable!("{NOT_SIMULATED}"),
        };
        earlier.map(|(_, pipe)| of(pipe)).find(|bytes| !bytes.is_empty())
    }

    /// All processes are gone.
    pub(super) fn clear(&mut self) {
        self.pipes.clear();
        self.clogged = None;
    }

    /// A process has closed its end, or has ended.
    pub(super) fn close(&mut self, pipe: u64, role: Role) {
        let Some(pipe) = self.pipes.get_mut(&pipe) else { return };
        match role {
            Role::Owner => pipe.owner_open = false,
            Role::Frontend => pipe.frontend_open = false,
            Role::Tubes | Role::Daemon => unreachable!("{NOT_SIMULATED}"),
        }
        pipe.towards(other(role)).is_ended = true;
        let inward = pipe.towards(role);
        inward.flight.clear();
        inward.arrived.clear();
        inward.flight_bytes = 0;
    }

    /// All pipes that end at a process, with the role at the other end.
    pub(super) fn of(&self, who: Instance) -> Vec<u64> {
        let is_open_end = |pipe: &Pipe| pipe.end_of(who.role) == who && pipe.is_open(who.role);
        self.pipes.iter().filter(|(_, pipe)| is_open_end(pipe)).map(|(id, _)| *id).collect()
    }

    /// Forgets pipes that are closed at both ends, but for the last few: their bytes may come back.
    pub(super) fn forget(&mut self) {
        if self.pipes.len() > 64 {
            let closed: Vec<u64> = self
                .pipes
                .iter()
                .filter(|(_, pipe)| !pipe.owner_open && !pipe.frontend_open)
                .map(|(id, _)| *id)
                .take(32)
                .collect();
            for id in closed {
                self.pipes.remove(&id);
            }
        }
    }

    /// What has arrived for the end of `role`.
    pub(super) fn take(&mut self, pipe: u64, role: Role) -> Taken {
        let Some(pipe) = self.pipes.get_mut(&pipe) else { return Taken { bytes: Vec::new(), is_ended: true } };
        let direction = pipe.towards(role);
        let bytes = std::mem::take(&mut direction.arrived);
        Taken { bytes, is_ended: direction.is_ended && direction.flight.is_empty() }
    }

    /// A piece arrives. `true` if there was one.
    pub(super) fn arrive(&mut self, now_ns: u64, pipe: u64, role: Role) -> bool {
        let Some(pipe) = self.pipes.get_mut(&pipe) else { return false };
        let is_open = pipe.is_open(role);
        let direction = pipe.towards(role);
        let mut has_arrived = false;
        while direction.flight.front().is_some_and(|(at_ns, _)| *at_ns <= now_ns) {
            let (_, bytes) = direction.flight.pop_front().expect("just seen");
            direction.flight_bytes -= bytes.len();
            if is_open {
                direction.arrived.extend_from_slice(&bytes);
            }
            has_arrived = true;
        }
        has_arrived || direction.is_ended
    }

    /// Cuts the connection both ways; some of what is in flight may still arrive.
    pub(super) fn cut(&mut self, pipe: u64, keeps: bool) {
        let Some(pipe) = self.pipes.get_mut(&pipe) else { return };
        for role in [Role::Owner, Role::Frontend] {
            let direction = pipe.towards(role);
            direction.is_ended = true;
            if !keeps {
                direction.flight.clear();
                direction.flight_bytes = 0;
            }
        }
    }

    /// Ends one direction: what is in flight arrives, nothing comes behind it.
    pub(super) fn shut_down(&mut self, pipe: u64, towards: Role) {
        if let Some(pipe) = self.pipes.get_mut(&pipe) {
            pipe.towards(towards).is_ended = true;
        }
    }

    /// Bytes that nobody has sent arrive first of all.
    pub(super) fn inject(&mut self, pipe: u64, towards: Role, bytes: &[u8]) {
        if let Some(pipe) = self.pipes.get_mut(&pipe) {
            let direction = pipe.towards(towards);
            if direction.arrived.is_empty() && direction.flight.is_empty() {
                direction.arrived.extend_from_slice(bytes);
            }
        }
    }
}

/// Why a link is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    Closed,
    Frame(FrameError),
}

/// What a process has of a link, as its shell uses it.
#[derive(Debug)]
pub(super) struct LinkEnd {
    pub(super) pipe: u64,
    pub(super) role: Role,
    pub(super) peer: Instance,
    /// As the supervisor numbers links.
    pub(super) number: u64,
    pub(super) writer: Writer,
    reader: Reader,
    /// What is sent next begins with a batch.
    is_at_batch: bool,
}

impl LinkEnd {
    pub(super) fn new(pipe: u64, number: u64, own: Instance, peer: Instance) -> LinkEnd {
        let link = Link {
            own_slot: own.slot,
            own_generation: own.generation,
            peer_slot: peer.slot,
            peer_generation: peer.generation,
        };
        LinkEnd {
            pipe,
            role: own.role,
            peer,
            number,
            writer: Writer::new(link),
            reader: Reader::new(link),
            is_at_batch: true,
        }
    }

    /// Batches for an earlier process that were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.reader.dropped()
    }

    /// Takes bytes in, in pieces of any length.
    pub(super) fn read(
        &mut self,
        rng: &mut Rng,
        bytes: &[u8],
        messages: &mut Vec<(MessageHead, Vec<u8>)>,
    ) -> Result<(), Lost> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let most = if rng.chance(1, 4) { rest.len().min(40) } else { rest.len() };
            let (piece, behind) = rest.split_at(1 + rng.index(most));
            rest = behind;
            self.reader.push(piece);
            while let Some((head, payload)) = self.reader.next().map_err(Lost::Frame)? {
                messages.push((head, payload.to_vec()));
            }
        }
        self.writer.peer_has_taken(self.reader.taken_by_peer());
        Ok(())
    }

    /// Makes room for the peer by what has been taken from it.
    pub(super) fn make_room(&mut self) {
        self.writer.tell_taken(self.reader.taken());
    }

    /// Sends what may be sent; when the last of it arrives, if something was.
    pub(super) fn send(&mut self, network: &mut Network, now_ns: u64, delay_ns: u64) -> Result<Option<u64>, Lost> {
        let clogged = network.clogged;
        let Some(pipe) = network.pipes.get_mut(&self.pipe) else { return Err(Lost::Closed) };
        let towards = other(self.role);
        if !pipe.is_open(towards) {
            return Err(Lost::Closed);
        }
        let direction = pipe.towards(towards);
        let mut arrives_ns = None;
        loop {
            let bytes = self.writer.sendable();
            let room = clogged.unwrap_or(SOCKET_BYTES).saturating_sub(direction.flight_bytes + direction.arrived.len());
            let count = bytes.len().min(room);
            if count == 0 {
                return Ok(arrives_ns);
            }
            if direction.is_ended {
                // The other side hears nothing any more in this direction.
                return Err(Lost::Closed);
            }
            let piece = bytes[..count].to_vec();
            direction.last_ns = (direction.last_ns + 1).max(now_ns + delay_ns);
            let is_whole = count == bytes.len();
            if is_whole && self.is_at_batch {
                direction.old.clone_from(&piece);
            }
            self.is_at_batch = is_whole;
            direction.flight_bytes += count;
            direction.flight.push_back((direction.last_ns, piece));
            self.writer.sent(count);
            arrives_ns = Some(direction.last_ns);
        }
    }

    /// Bytes that wait here.
    pub(super) fn backlog(&self) -> usize {
        self.writer.backlog() + self.writer.large_backlog()
    }
}
