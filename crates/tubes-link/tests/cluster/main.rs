//! Frontends and owners together, without processes: who says what at which moment, and what everybody hears.
//!
//! A line is `MILLISECONDS SESSION COMMAND`; a put is written `put PRI DELAY TTR BODY`. A session lives in the frontend
//! that its name ends with (`p0`, `w1`). `last COMMAND` is followed by the end of input at once, `slow COMMAND` by a look
//! at the frontend's timers, `burst COMMAND; COMMAND` is one write. `tick` lets time pass, `close` ends a session, `kill K` ends owner K and
//! `start K` starts its next generation, empty. Ids are shown in the order in which they were given.

mod endings;
mod jobs;
mod lost_owners;
mod offers;
mod pipelines;

use expect_test::{Expect, expect};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use tubes_core::journal::NoJournal;
use tubes_core::{Engine, EngineOptions, Now};
use tubes_link::{
    ClientId, Host, HostOut, Link, MessageHead, PartitionMap, Reader, Router, RouterOptions, ToFrontend, ToOwner,
    Wires, Writer,
};
use tubes_protocol::{Framer, Item, Limits};

const FRONTENDS: usize = 2;

/// Both directions of one link, as bytes.
struct Pipe {
    to_owner: (Writer, Reader),
    to_frontend: (Writer, Reader),
}

impl Pipe {
    fn new(frontend: usize, owner: usize, owner_generation: u32) -> Self {
        let at_frontend = Link {
            own_slot: frontend as u16,
            own_generation: 1,
            peer_slot: owner as u16,
            peer_generation: owner_generation,
        };
        let at_owner = Link {
            own_slot: owner as u16,
            own_generation: owner_generation,
            peer_slot: frontend as u16,
            peer_generation: 1,
        };
        Pipe {
            to_owner: (Writer::new(at_frontend), Reader::new(at_owner)),
            to_frontend: (Writer::new(at_owner), Reader::new(at_frontend)),
        }
    }
}

struct Owner {
    engine: Engine,
    host: Host,
    generation: u32,
}

#[derive(Default)]
struct Counters {
    id: u64,
    creation: u64,
    is_draining: bool,
}

struct Cluster {
    map: PartitionMap,
    owners: Vec<Option<Owner>>,
    routers: Vec<Router>,
    /// By frontend and owner.
    pipes: Vec<Vec<Pipe>>,
    /// What a link may hold before no command is queued for it.
    room_bytes: usize,
    counters: Counters,
    names: BTreeMap<(usize, ClientId), String>,
    /// By name: frontend and number.
    clients: BTreeMap<String, (usize, ClientId)>,
    /// Commands that could not be taken yet.
    queued: BTreeMap<(usize, ClientId), VecDeque<String>>,
    closed: Vec<(usize, ClientId)>,
    now: Now,
    heard: String,
    ids: Vec<u64>,
}

/// The wires of one frontend.
struct FrontWires<'a> {
    pipes: &'a mut [Pipe],
    room_bytes: usize,
    said: Vec<(ClientId, Vec<u8>)>,
    closed: Vec<ClientId>,
}

impl Wires for FrontWires<'_> {
    fn has_room(&self, owner: u16) -> bool {
        self.pipes[usize::from(owner)].to_owner.0.backlog() < self.room_bytes
    }
    fn to_owner(&mut self, owner: u16, session: u64, message: &ToOwner<'_>) {
        message.write(session, &mut self.pipes[usize::from(owner)].to_owner.0);
    }
    fn to_client(&mut self, client: ClientId, bytes: &[u8]) {
        self.said.push((client, bytes.to_vec()));
    }
    fn stats(&mut self, client: ClientId) {
        self.said.push((client, b"STATS\r\n".to_vec()));
    }
    fn close(&mut self, client: ClientId) {
        self.closed.push(client);
    }
    fn wake(&mut self, _client: ClientId) {}
}

/// What one owner reaches.
struct OwnerWires<'a> {
    owner: usize,
    pipes: &'a mut [Vec<Pipe>],
    counters: &'a mut Counters,
}

impl HostOut for OwnerWires<'_> {
    fn link(&mut self, frontend: u16) -> Option<&mut Writer> {
        Some(&mut self.pipes[usize::from(frontend)][self.owner].to_frontend.0)
    }
    fn next_id_count(&mut self) -> u64 {
        self.counters.id += 1;
        self.counters.id
    }
    fn next_creation(&mut self) -> u64 {
        self.counters.creation += 1;
        self.counters.creation
    }
    fn is_draining(&self) -> bool {
        self.counters.is_draining
    }
}

/// Carries what one end has to say to the other.
fn carried((writer, reader): &mut (Writer, Reader)) -> Vec<(MessageHead, Vec<u8>)> {
    writer.end_turn(None);
    loop {
        let bytes = writer.sendable();
        let count = bytes.len();
        if count == 0 {
            break;
        }
        reader.push(bytes);
        writer.sent(count);
    }
    let mut messages = Vec::new();
    while let Some((head, payload)) = reader.next().unwrap() {
        messages.push((head, payload.to_vec()));
    }
    writer.peer_has_taken(reader.taken());
    messages
}

impl Cluster {
    fn new(owners: usize) -> Self {
        let map = PartitionMap::spread(owners as u16);
        let options = RouterOptions { owner_wait_ns: 5_000_000_000, bodies_max: 4 };
        let mut cluster = Cluster {
            owners: (0..owners).map(|_| None).collect(),
            routers: (0..FRONTENDS).map(|_| Router::new(options, map.clone())).collect(),
            pipes: (0..FRONTENDS).map(|f| (0..owners).map(|o| Pipe::new(f, o, 0)).collect()).collect(),
            map,
            room_bytes: usize::MAX,
            counters: Counters::default(),
            names: BTreeMap::new(),
            clients: BTreeMap::new(),
            queued: BTreeMap::new(),
            closed: Vec::new(),
            now: Now { boot_ns: 0, wall_ms: 0 },
            heard: String::new(),
            ids: Vec::new(),
        };
        for owner in 0..owners {
            cluster.start(owner, 1);
        }
        cluster
    }

    fn start(&mut self, owner: usize, generation: u32) {
        let mut engine = Engine::new(EngineOptions { max_job_size: 100, hash_seed: 1 });
        engine.become_owner(0, usize::from(self.map.of_tube(b"default")) == owner);
        engine.finish_recovery(self.now, 1);
        self.owners[owner] = Some(Owner { engine, host: Host::new(), generation });
        for frontend in 0..FRONTENDS {
            self.pipes[frontend][owner] = Pipe::new(frontend, owner, generation);
            self.front(frontend, |router, now, wires| router.owner_up(now, owner as u16, wires));
        }
        self.settle();
    }

    fn kill(&mut self, owner: usize) {
        self.owners[owner] = None;
        for frontend in 0..FRONTENDS {
            self.front(frontend, |router, now, wires| router.owner_down(now, owner as u16, wires));
        }
        self.settle();
    }

    /// Runs something on a router and takes what it says.
    fn front(&mut self, frontend: usize, run: impl FnOnce(&mut Router, u64, &mut FrontWires<'_>)) {
        let mut wires = FrontWires {
            pipes: &mut self.pipes[frontend],
            room_bytes: self.room_bytes,
            said: Vec::new(),
            closed: Vec::new(),
        };
        run(&mut self.routers[frontend], self.now.boot_ns, &mut wires);
        let FrontWires { said, closed, .. } = wires;
        for (client, bytes) in said {
            self.hear(frontend, client, &bytes);
        }
        for client in closed {
            self.closed.push((frontend, client));
        }
    }

    fn hear(&mut self, frontend: usize, client: ClientId, bytes: &[u8]) {
        let mut text = String::from_utf8(bytes.to_vec()).unwrap().trim_end().replace("\r\n", " ").replace('\n', " ");
        if let Some(id) = text.strip_prefix("INSERTED ") {
            self.ids.push(id.parse().unwrap());
        }
        for (number, id) in self.ids.iter().enumerate() {
            text = text
                .split(' ')
                .map(|word| if word == id.to_string() { format!("#{}", number + 1) } else { word.to_owned() })
                .collect::<Vec<_>>()
                .join(" ");
        }
        let name = &self.names[&(frontend, client)];
        writeln!(self.heard, "{} {name}: {text}", self.now.boot_ns / 1_000_000).unwrap();
    }

    /// Carries everything to its end: links, closed clients, commands that had to wait.
    fn settle(&mut self) {
        for _ in 0..1000 {
            let mut is_quiet = true;
            for (frontend, client) in std::mem::take(&mut self.closed) {
                is_quiet = false;
                let name = self.names.remove(&(frontend, client)).unwrap();
                writeln!(self.heard, "{} {name}: (closed)", self.now.boot_ns / 1_000_000).unwrap();
                self.clients.remove(&name);
                self.queued.remove(&(frontend, client));
                self.front(frontend, |router, _, wires| router.disconnect(client, wires));
            }
            for owner in 0..self.owners.len() {
                is_quiet &= !self.run_owner(owner);
            }
            for frontend in 0..FRONTENDS {
                is_quiet &= !self.run_frontend(frontend);
            }
            if is_quiet {
                return;
            }
        }
        panic!("the cluster does not come to rest");
    }

    fn run_owner(&mut self, at: usize) -> bool {
        let Some(owner) = &mut self.owners[at] else { return false };
        let mut has_run = false;
        for frontend in 0..FRONTENDS {
            let pipe = &mut self.pipes[frontend][at];
            let messages = carried(&mut pipe.to_owner);
            has_run |= !messages.is_empty();
            for (head, payload) in messages {
                let mut wires = OwnerWires { owner: at, pipes: &mut self.pipes, counters: &mut self.counters };
                let from = (frontend as u16, head.session);
                let message = (head.kind, &payload[..]);
                owner.host.take(self.now, &mut owner.engine, from, message, &mut NoJournal, &mut wires).unwrap();
                owner.engine.check_invariants();
            }
        }
        has_run
    }

    fn run_frontend(&mut self, frontend: usize) -> bool {
        let mut has_run = false;
        for owner in 0..self.owners.len() {
            if self.owners[owner].is_none() {
                continue;
            }
            let pipe = &mut self.pipes[frontend][owner];
            let messages = carried(&mut pipe.to_frontend);
            has_run |= !messages.is_empty();
            for (head, payload) in messages {
                self.front(frontend, |router, now, wires| {
                    let message = ToFrontend::read(head.kind, &payload).unwrap();
                    router.from_owner(now, owner as u16, head.session, message, wires).unwrap();
                });
            }
        }
        let waiting: Vec<ClientId> =
            self.queued.keys().filter(|(at, _)| *at == frontend).map(|(_, client)| *client).collect();
        for client in waiting {
            while self.routers[frontend].can_take(client) {
                let Some(command) = self.queued.get_mut(&(frontend, client)).and_then(VecDeque::pop_front) else {
                    self.queued.remove(&(frontend, client));
                    break;
                };
                has_run = true;
                self.command(frontend, client, &command);
            }
        }
        has_run
    }

    fn command(&mut self, frontend: usize, client: ClientId, command: &str) {
        let mut wire = command.to_owned();
        if let Some(number) = command.find('#') {
            // `#N` stands for the id given as number N.
            let digits: String = command[number + 1..].chars().take_while(char::is_ascii_digit).collect();
            let id = self.ids[digits.parse::<usize>().unwrap() - 1];
            wire = command.replace(&format!("#{digits}"), &id.to_string());
        }
        if let Some(put) = command.strip_prefix("put ") {
            let (numbers, body) = put.rsplit_once(' ').unwrap();
            wire = format!("put {numbers} {}\r\n{body}", body.len());
        }
        wire.push_str("\r\n");
        let limits = Limits { body_bytes_max: 100, close_on_http: true };
        let mut framer = Framer::new();
        let (_, Some(Item::Command(command))) = framer.next(wire.as_bytes(), &limits) else {
            panic!("{command:?} is no command");
        };
        self.front(frontend, |router, now, wires| router.command(now, client, command, wires));
    }

    fn tick(&mut self) {
        for owner in 0..self.owners.len() {
            if let Some(found) = &mut self.owners[owner] {
                let mut wires = OwnerWires { owner, pipes: &mut self.pipes, counters: &mut self.counters };
                found.host.tick(self.now, &mut found.engine, &mut NoJournal, &mut wires).unwrap();
                found.engine.check_invariants();
            }
        }
        for frontend in 0..FRONTENDS {
            self.front(frontend, |router, now, wires| router.tick(now, wires));
        }
        self.settle();
    }

    fn play(&mut self, script: &str) {
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (at, rest) = line.split_once(' ').unwrap();
            let at_ms: u64 = at.parse().unwrap();
            self.now = Now { boot_ns: at_ms * 1_000_000, wall_ms: at_ms };
            self.tick();
            let Some((name, command)) = rest.split_once(' ') else {
                assert_eq!(rest, "tick");
                continue;
            };
            match name {
                "kill" => self.kill(command.parse().unwrap()),
                "start" => {
                    let owner: usize = command.parse().unwrap();
                    self.start(owner, 2);
                    assert_eq!(self.owners[owner].as_ref().unwrap().generation, 2);
                }
                _ => {
                    let (frontend, client) = self.client(name);
                    if command == "close" {
                        self.front(frontend, |router, _, wires| router.disconnect(client, wires));
                        self.names.remove(&(frontend, client));
                        self.clients.remove(name);
                    } else if let Some(command) = command.strip_prefix("last ") {
                        // The end of the input comes with the command.
                        self.command(frontend, client, command);
                        self.front(frontend, |router, now, wires| router.half_close(now, client, wires));
                    } else if let Some(command) = command.strip_prefix("slow ") {
                        // The frontend looks at its timers before the owners answer.
                        self.command(frontend, client, command);
                        self.front(frontend, |router, now, wires| router.tick(now, wires));
                    } else if let Some(commands) = command.strip_prefix("burst ") {
                        for command in commands.split("; ") {
                            self.command(frontend, client, command);
                        }
                    } else if command == "half-close" {
                        self.front(frontend, |router, now, wires| router.half_close(now, client, wires));
                    } else {
                        self.queued.entry((frontend, client)).or_default().push_back(command.to_owned());
                    }
                }
            }
            self.settle();
        }
    }

    fn client(&mut self, name: &str) -> (usize, ClientId) {
        if let Some(found) = self.clients.get(name) {
            return *found;
        }
        let frontend: usize = name[name.len() - 1..].parse().unwrap();
        let client = ClientId((0..).find(|at| !self.names.contains_key(&(frontend, ClientId(*at)))).unwrap());
        self.names.insert((frontend, client), name.to_owned());
        self.clients.insert(name.to_owned(), (frontend, client));
        self.front(frontend, |router, _, wires| router.connect(client, wires));
        self.settle();
        (frontend, client)
    }
}

#[track_caller]
fn check(script: &str, expected: &Expect) {
    let mut cluster = Cluster::new(2);
    cluster.play(script);
    expected.assert_eq(&cluster.heard);
}

/// Names whose owner is 0 and 1 of two; `default` is one of them.
#[test]
fn the_names_of_these_scripts_lie_where_they_should() {
    let map = PartitionMap::spread(2);
    let owners: Vec<u16> = ["default", "a", "b", "c", "d"].iter().map(|name| map.of_tube(name.as_bytes())).collect();
    expect!["[0, 1, 1, 1, 0]"].assert_eq(&format!("{owners:?}"));
}
