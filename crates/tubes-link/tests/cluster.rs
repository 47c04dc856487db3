//! Frontends and owners together, without processes: who says what at which moment, and what everybody hears.
//!
//! A line is `MILLISECONDS SESSION COMMAND`; a put is written `put PRI DELAY TTR BODY`. A session lives in the frontend
//! that its name ends with (`p0`, `w1`). `last COMMAND` is followed by the end of input at once, `slow COMMAND` by a look
//! at the frontend's timers, `burst COMMAND; COMMAND` is one write. `tick` lets time pass, `close` ends a session, `kill K` ends owner K and
//! `start K` starts its next generation, empty. Ids are shown in the order in which they were given.

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

#[test]
fn a_job_goes_from_one_frontend_to_another() {
    check(
        "0 p0 use a
         0 p0 put 0 0 60 job
         0 w1 watch a
         1 w1 reserve
         2 w1 stats-job #1
         3 w1 delete #1
         4 w1 peek #1",
        &expect![[r#"
            0 p0: USING a
            0 p0: INSERTED #1
            0 w1: WATCHING 2
            1 w1: RESERVED #1 3 job
            2 w1: OK 145 --- id: #1 tube: "a" state: reserved pri: 0 age: 0 delay: 0 ttr: 60 time-left: 59 file: 0 reserves: 1 timeouts: 0 releases: 0 buries: 0 kicks: 0
            3 w1: DELETED
            4 w1: NOT_FOUND
        "#]],
    );
}

#[test]
fn ready_jobs_come_by_priority_then_id_over_tubes_of_several_owners() {
    check(
        "0 p0 use a
         0 p0 put 5 0 60 a5
         0 p0 use b
         0 p0 put 5 0 60 b5
         0 p0 put 1 0 60 b1
         0 p0 use c
         0 p0 put 3 0 60 c3
         0 w1 watch a
         0 w1 watch b
         0 w1 watch c
         1 w1 reserve
         1 w1 reserve
         1 w1 reserve
         1 w1 reserve
         1 w1 reserve-with-timeout 0",
        &expect![[r#"
            0 p0: USING a
            0 p0: INSERTED #1
            0 p0: USING b
            0 p0: INSERTED #2
            0 p0: INSERTED #3
            0 p0: USING c
            0 p0: INSERTED #4
            0 w1: WATCHING 2
            0 w1: WATCHING 3
            0 w1: WATCHING 4
            1 w1: RESERVED #3 2 b1
            1 w1: RESERVED #4 2 c3
            1 w1: RESERVED #1 2 a5
            1 w1: RESERVED #2 2 b5
            1 w1: TIMED_OUT
        "#]],
    );
}

#[test]
fn of_the_offers_of_several_owners_the_best_is_taken_and_the_others_are_given_back() {
    check(
        "0 p0 use a
         0 p0 put 5 0 60 a5
         0 p0 put 1 0 60 a1
         0 p0 use d
         0 p0 put 3 0 60 d3
         0 p0 put 9 0 60 d9
         0 w1 watch a
         0 w1 watch d
         0 w1 ignore default
         1 w1 reserve-with-timeout 0
         1 w1 reserve
         1 w1 reserve-with-timeout 5
         1 w1 reserve-with-timeout 0
         1 w1 reserve-with-timeout 0
         2 p0 stats-tube a
         2 v0 watch a
         2 v0 watch d
         2 v0 reserve
         2 u1 watch d
         2 u1 watch a
         2 u1 reserve
         3 p0 put 0 0 60 d0
         3 p0 use a
         3 p0 put 0 0 60 a0",
        &expect![[r#"
            0 p0: USING a
            0 p0: INSERTED #1
            0 p0: INSERTED #2
            0 p0: USING d
            0 p0: INSERTED #3
            0 p0: INSERTED #4
            0 w1: WATCHING 2
            0 w1: WATCHING 3
            0 w1: WATCHING 2
            1 w1: RESERVED #2 2 a1
            1 w1: RESERVED #3 2 d3
            1 w1: RESERVED #1 2 a5
            1 w1: RESERVED #4 2 d9
            1 w1: TIMED_OUT
            2 p0: OK 261 --- name: "a" current-jobs-urgent: 0 current-jobs-ready: 0 current-jobs-reserved: 2 current-jobs-delayed: 0 current-jobs-buried: 0 total-jobs: 2 current-using: 0 current-watching: 1 current-waiting: 0 cmd-delete: 0 cmd-pause-tube: 0 pause: 0 pause-time-left: 0
            2 v0: WATCHING 2
            2 v0: WATCHING 3
            2 u1: WATCHING 2
            2 u1: WATCHING 3
            3 p0: INSERTED #5
            3 v0: RESERVED #5 2 d0
            3 p0: USING a
            3 p0: INSERTED #6
            3 u1: RESERVED #6 2 a0
        "#]],
    );
}

/// S25, GT10: the supervisor marks the shared page first and tells the owners then.
#[test]
fn whoever_has_seen_the_server_drain_gets_no_job_in() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 p0 put 0 0 60 one\n0 p1 use a");
    cluster.counters.is_draining = true;
    cluster.play("1 p0 put 0 0 60 two\n1 p1 put 0 0 60 three\n1 p1 watch default\n1 p1 reserve-with-timeout 0");
    assert_eq!(cluster.heard.matches("DRAINING").count(), 2, "{}", cluster.heard);
    assert!(cluster.heard.contains("RESERVED #1 3 one"), "{}", cluster.heard);
}

#[test]
fn an_offer_that_nobody_accepts_ends_and_the_job_is_free() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 w0 watch a\n0 w0 watch d\n0 w0 reserve\n0 p1 use a");
    // The frontend is frozen: what it is offered it does not hear.
    let owner = 1;
    cluster.command(1, cluster.clients["p1"].1, "put 0 0 60 job");
    assert!(cluster.run_owner(owner));
    cluster.run_frontend(1);
    cluster.pipes[0][owner].to_frontend.0.end_turn(None);
    let lost = cluster.pipes[0][owner].to_frontend.0.sendable().len();
    assert!(lost > 0, "an offer is under way");
    cluster.pipes[0][owner].to_frontend.0.sent(lost);
    cluster.now = Now { boot_ns: 249_000_000, wall_ms: 249 };
    cluster.front(1, |router, now, wires| {
        let command = tubes_protocol::Command::StatsTube(b"a");
        router.command(now, ClientId(0), command, wires);
    });
    cluster.run_owner(owner);
    cluster.run_frontend(1);
    assert!(cluster.heard.contains("current-jobs-ready: 1"), "an offered job is ready for all who look");
    let engine = &mut cluster.owners[owner].as_mut().unwrap().engine;
    assert_eq!(engine.next_deadline(), Some(250_000_000), "an offer lasts a quarter of a second");
}

#[test]
fn a_reserve_over_several_owners_waits_and_has_one_result() {
    check(
        "0 w0 watch a
         0 w0 watch b
         0 w0 watch c
         0 w0 watch d
         0 w0 reserve
         1 p1 use a
         1 p1 put 0 0 60 one
         1 p1 use b
         1 p1 put 0 0 60 two
         1 p1 use c
         1 p1 put 0 0 60 three
         1 p1 use d
         1 p1 put 0 0 60 four
         2 w0 reserve
         3 w0 reserve
         4 w0 reserve
         5 w0 reserve-with-timeout 0",
        &expect![[r#"
            0 w0: WATCHING 2
            0 w0: WATCHING 3
            0 w0: WATCHING 4
            0 w0: WATCHING 5
            1 p1: USING a
            1 p1: INSERTED #1
            1 w0: RESERVED #1 3 one
            1 p1: USING b
            1 p1: INSERTED #2
            1 p1: USING c
            1 p1: INSERTED #3
            1 p1: USING d
            1 p1: INSERTED #4
            2 w0: RESERVED #2 3 two
            3 w0: RESERVED #3 5 three
            4 w0: RESERVED #4 4 four
            5 w0: TIMED_OUT
        "#]],
    );
}

#[test]
fn timed_waits_and_the_last_second_end_on_time_over_one_owner_and_several() {
    check(
        "0 w0 reserve-with-timeout 1
         0 v0 watch a
         0 v0 watch b
         0 v0 watch c
         0 v0 reserve-with-timeout 1
         999 tick
         1000 tick
         1000 p1 put 0 0 2 job
         1000 w0 reserve
         1500 w0 watch b
         1500 w0 watch a
         1500 w0 watch c
         1500 w0 reserve
         1999 tick
         2000 tick
         2500 w0 reserve-with-timeout 0
         3000 w0 reserve-with-timeout 0",
        &expect![[r#"
            0 v0: WATCHING 2
            0 v0: WATCHING 3
            0 v0: WATCHING 4
            1000 w0: TIMED_OUT
            1000 v0: TIMED_OUT
            1000 p1: INSERTED #1
            1000 w0: RESERVED #1 3 job
            1500 w0: WATCHING 2
            1500 w0: WATCHING 3
            1500 w0: WATCHING 4
            2000 w0: DEADLINE_SOON
            2500 w0: DEADLINE_SOON
            3000 w0: RESERVED #1 3 job
        "#]],
    );
}

#[test]
fn tubes_are_listed_in_the_order_of_creation_over_all_owners() {
    check(
        "0 p0 watch d
         0 p0 watch a
         0 p1 watch c
         0 p1 watch b
         1 p0 list-tubes
         1 p0 ignore d
         1 p1 list-tubes
         1 p1 list-tubes-watched
         1 p1 list-tube-used",
        &expect![[r#"
            0 p0: WATCHING 2
            0 p0: WATCHING 3
            0 p1: WATCHING 2
            0 p1: WATCHING 3
            1 p0: OK 30 --- - default - d - a - c - b
            1 p0: WATCHING 2
            1 p1: OK 26 --- - default - a - c - b
            1 p1: OK 22 --- - default - c - b
            1 p1: USING default
        "#]],
    );
}

#[test]
fn those_who_hold_or_ask_at_a_lost_owner_are_closed_and_the_others_go_on() {
    check(
        "0 a0 watch a
         0 b0 watch d
         0 p1 use a
         0 p1 put 0 0 60 one
         0 p1 use d
         0 p1 put 0 0 60 two
         0 a0 ignore default
         0 b0 ignore default
         0 a0 reserve
         0 b0 reserve
         0 i0 use a
         0 i1 use d
         1 kill 1
         2 i0 put 0 0 60 late
         2 i1 put 0 0 60 late
         3 start 1
         4 p1 list-tubes
         4 i0 stats-tube a
         4 i1 stats-tube d",
        &expect![[r#"
            0 a0: WATCHING 2
            0 b0: WATCHING 2
            0 p1: USING a
            0 p1: INSERTED #1
            0 p1: USING d
            0 p1: INSERTED #2
            0 a0: WATCHING 1
            0 b0: WATCHING 1
            0 a0: RESERVED #1 3 one
            0 b0: RESERVED #2 3 two
            0 i0: USING a
            0 i1: USING d
            1 a0: (closed)
            2 i1: INSERTED #3
            3 i0: INSERTED #4
            4 p1: OK 22 --- - default - d - a
            4 i0: OK 261 --- name: "a" current-jobs-urgent: 1 current-jobs-ready: 1 current-jobs-reserved: 0 current-jobs-delayed: 0 current-jobs-buried: 0 total-jobs: 1 current-using: 1 current-watching: 0 current-waiting: 0 cmd-delete: 0 cmd-pause-tube: 0 pause: 0 pause-time-left: 0
            4 i1: OK 261 --- name: "d" current-jobs-urgent: 1 current-jobs-ready: 1 current-jobs-reserved: 1 current-jobs-delayed: 0 current-jobs-buried: 0 total-jobs: 2 current-using: 2 current-watching: 1 current-waiting: 0 cmd-delete: 0 cmd-pause-tube: 0 pause: 0 pause-time-left: 0
        "#]],
    );
}

#[test]
fn a_command_for_an_owner_that_stays_away_is_answered_with_an_error() {
    check(
        "0 p0 use a
         0 p1 use b
         1 kill 0
         1 kill 1
         2 p0 put 0 0 60 x
         2 p1 list-tubes
         2 q0 list-tube-used
         5001 tick
         5002 tick",
        &expect![[r#"
            0 p0: USING a
            0 p1: USING b
            2 q0: USING default
            5002 p0: INTERNAL_ERROR
            5002 p1: INTERNAL_ERROR
        "#]],
    );
}

#[test]
fn a_blocking_reserve_over_several_owners_survives_the_loss_of_one() {
    check(
        "0 w0 watch a
         0 w0 watch b
         0 w0 watch c
         0 w0 reserve
         1 kill 0
         1 kill 1
         2 start 0
         2 start 1
         3 p1 use a
         3 p1 put 0 0 60 one
         4 w0 delete #1",
        &expect![[r#"
            0 w0: WATCHING 2
            0 w0: WATCHING 3
            0 w0: WATCHING 4
            3 p1: USING a
            3 p1: INSERTED #1
            3 w0: RESERVED #1 3 one
            4 w0: DELETED
        "#]],
    );
}

#[test]
fn a_link_without_room_holds_up_those_who_need_it_and_nobody_else() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 p0 use a\n0 p1 put 0 0 60 default");
    cluster.room_bytes = 0;
    cluster.play("1 p0 put 0 0 60 one\n1 p0 peek-ready\n1 p1 list-tube-used");
    assert!(!cluster.heard.contains("#2"), "{}", cluster.heard);
    assert!(cluster.heard.ends_with("p1: USING default\n"), "{}", cluster.heard);
    cluster.room_bytes = usize::MAX;
    cluster.front(0, |router, now, wires| router.room(now, wires));
    cluster.settle();
    assert!(cluster.heard.ends_with("p0: INSERTED #2\n1 p0: FOUND #2 3 one\n"), "{}", cluster.heard);
}

#[test]
fn whoever_waits_for_room_at_an_owner_that_is_lost_is_not_left_waiting() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 p0 use a");
    cluster.room_bytes = 0;
    cluster.play("1 p0 put 0 0 60 one");
    cluster.kill(1);
    cluster.room_bytes = usize::MAX;
    cluster.play("5000 p1 list-tube-used");
    assert!(!cluster.heard.contains("INTERNAL_ERROR"), "{}", cluster.heard);
    cluster.play("5001 p1 list-tube-used");
    assert_eq!(cluster.heard.matches("p0: INTERNAL_ERROR").count(), 1, "{}", cluster.heard);
}

/// A pipeline over one owner needs no answer before it goes on; the answers keep their order.
#[test]
fn commands_behind_a_reserve_go_out_at_once_and_are_answered_in_order() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 p0 use a\n0 p0 put 0 0 60 one\n0 w0 watch a\n0 w0 ignore default\n0 w0 use a\n0 p1 use a");
    let client = cluster.clients["w0"].1;
    let commands = [
        tubes_protocol::Command::Reserve { timeout_s: None },
        tubes_protocol::Command::Reserve { timeout_s: Some(9) },
        tubes_protocol::Command::ListTubeUsed,
        tubes_protocol::Command::PeekReady,
        tubes_protocol::Command::Reserve { timeout_s: Some(0) },
        tubes_protocol::Command::Kick(1),
    ];
    for command in commands {
        cluster.front(0, |router, now, wires| {
            assert!(router.can_take(client), "{command:?}");
            router.command(now, client, command.clone(), wires);
        });
    }
    // The first finds a job, the second waits, and with it what is behind.
    cluster.settle();
    let heard = cluster.heard.clone();
    assert!(heard.ends_with("0 w0: RESERVED #1 3 one\n"), "{heard}");
    // Its time begins when it begins to wait, though it was sent before.
    cluster.play("8999 p1 list-tube-used");
    cluster.play("9000 p1 put 5 0 60 two");
    let behind = cluster.heard.strip_prefix(&heard).unwrap();
    assert_eq!(
        behind,
        "8999 p1: USING a\n9000 w0: TIMED_OUT\n9000 w0: USING a\n9000 w0: NOT_FOUND\n9000 w0: TIMED_OUT\n\
         9000 w0: KICKED 0\n9000 p1: INSERTED #2\n"
    );
}

/// The last second of a job is judged where the job is: its frontend has not heard of it when it sends the reserve.
#[test]
fn a_reserve_sent_behind_one_that_brings_the_last_second_is_answered_soon() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 p0 use a\n0 p0 put 0 0 1 brief\n0 w0 watch a\n0 w0 ignore default");
    let client = cluster.clients["w0"].1;
    for _ in 0..2 {
        cluster.front(0, |router, now, wires| {
            router.command(now, client, tubes_protocol::Command::Reserve { timeout_s: None }, wires);
        });
    }
    cluster.settle();
    assert!(cluster.heard.ends_with("w0: RESERVED #1 5 brief\n0 w0: DEADLINE_SOON\n"), "{}", cluster.heard);
}

/// And a job that is on its way out when the reserve is sent has no last second any more.
#[test]
fn a_reserve_sent_behind_what_ends_the_last_second_is_not_answered_soon() {
    use tubes_protocol::Command;
    let mut cluster = Cluster::new(2);
    cluster.play("0 p0 use a\n0 p0 put 0 0 1 brief\n0 w0 watch a\n0 w0 ignore default\n0 w0 reserve");
    let client = cluster.clients["w0"].1;
    let id = cluster.ids[0];
    for command in [Command::Delete(id), Command::Reserve { timeout_s: Some(0) }] {
        cluster.front(0, |router, now, wires| router.command(now, client, command, wires));
    }
    cluster.settle();
    assert!(cluster.heard.ends_with("w0: DELETED\n0 w0: TIMED_OUT\n"), "{}", cluster.heard);
}

#[test]
fn the_end_of_a_client_or_of_its_sending_reaches_reserves_behind_others() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 p0 use a\n0 p0 put 0 0 60 one\n0 w0 watch a\n0 w0 ignore default\n0 w0 use a");
    let client = cluster.clients["w0"].1;
    for _ in 0..3 {
        cluster.front(0, |router, now, wires| {
            router.command(now, client, tubes_protocol::Command::Reserve { timeout_s: None }, wires);
        });
    }
    cluster.front(0, |router, now, wires| router.half_close(now, client, wires));
    cluster.settle();
    assert!(cluster.heard.ends_with("RESERVED #1 3 one\n0 w0: TIMED_OUT\n0 w0: TIMED_OUT\n"), "{}", cluster.heard);
    // What the owner keeps behind a wait goes with its session.
    cluster.play("1 v1 watch a\n1 v1 ignore default\n1 v1 use a");
    let other = cluster.clients["v1"].1;
    for command in [tubes_protocol::Command::Reserve { timeout_s: None }, tubes_protocol::Command::Kick(1)] {
        cluster.front(1, |router, now, wires| router.command(now, other, command, wires));
    }
    cluster.settle();
    cluster.front(1, |router, _, wires| router.disconnect(other, wires));
    cluster.play("2 p0 put 0 0 60 two\n2 p0 peek-ready");
    assert!(cluster.heard.ends_with("FOUND #2 3 two\n"), "{}", cluster.heard);
}

/// GT12: what may come for a client that does not read is bounded.
#[test]
fn answers_with_bodies_under_way_for_one_client_are_bounded() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 p0 use a\n0 p0 put 0 0 60 one");
    let client = cluster.clients["p0"].1;
    for _ in 0..6 {
        cluster.front(0, |router, now, wires| {
            if router.can_take(client) {
                router.command(now, client, tubes_protocol::Command::PeekReady, wires);
            }
        });
    }
    let messages = carried(&mut cluster.pipes[0][1].to_owner);
    assert_eq!(messages.len(), 4, "a fifth waits: {messages:?}");
    // Other commands are not meant.
    assert!(!cluster.routers[0].can_take(client), "the fifth stands in the way of those behind it");
}

#[test]
fn the_end_of_input_behind_a_reserve_does_not_keep_a_ready_job_back() {
    check(
        "0 p0 put 0 0 60 job
         0 w1 watch a
         1 w1 last reserve-with-timeout 5
         1 v0 watch a
         2 v0 last reserve",
        &expect![[r#"
            0 p0: INSERTED #1
            0 w1: WATCHING 2
            1 w1: RESERVED #1 3 job
            1 v0: WATCHING 2
            2 v0: TIMED_OUT
        "#]],
    );
}

#[test]
fn in_the_last_second_of_a_job_the_owners_say_first_whether_another_is_ready() {
    check(
        "0 p0 put 0 0 1 first
         0 w1 watch a
         1 w1 reserve
         2 p0 put 0 0 60 second
         3 w1 slow reserve
         4 w1 slow reserve",
        &expect![[r#"
            0 p0: INSERTED #1
            0 w1: WATCHING 2
            1 w1: RESERVED #1 5 first
            2 p0: INSERTED #2
            3 w1: RESERVED #2 6 second
            4 w1: DEADLINE_SOON
        "#]],
    );
}

#[test]
fn a_job_that_is_being_let_go_has_no_last_second() {
    check(
        "0 p0 put 0 0 1 first
         0 p0 put 0 0 60 second
         1 w1 reserve
         2 w1 burst delete #1; reserve-with-timeout 0",
        &expect![[r#"
            0 p0: INSERTED #1
            0 p0: INSERTED #2
            1 w1: RESERVED #1 5 first
            2 w1: DELETED
            2 w1: RESERVED #2 6 second
        "#]],
    );
}

/// A client that has ended its input cannot wait, but an owner that is away may have the job: as for a poll, it is
/// waited for, and then the answer is an error and not "no job".
#[test]
fn a_reserve_over_owners_of_which_one_is_away_does_not_time_out_at_the_end_of_input() {
    for stays_away in [false, true] {
        let mut cluster = Cluster::new(2);
        cluster.play("0 w0 watch a");
        cluster.kill(1);
        cluster.play("1 w0 reserve");
        let client = cluster.clients["w0"].1;
        cluster.front(0, |router, now, wires| router.half_close(now, client, wires));
        cluster.play("2 p1 list-tube-used");
        assert!(!cluster.heard.contains("TIMED_OUT"), "{}", cluster.heard);
        if stays_away {
            cluster.play("5000 p1 list-tube-used");
            assert!(cluster.heard.ends_with("p1: USING default\n"), "{}", cluster.heard);
            cluster.play("5001 p1 list-tube-used");
            assert!(cluster.heard.contains("5001 w0: INTERNAL_ERROR"), "{}", cluster.heard);
        } else {
            cluster.start(1, 2);
            assert!(cluster.heard.ends_with("w0: TIMED_OUT\n"), "{}", cluster.heard);
        }
    }
}

#[test]
fn a_poll_is_given_up_though_one_of_two_owners_that_were_away_is_back() {
    let mut cluster = Cluster::new(3);
    let names = ["default", "a", "b", "c", "d", "e"];
    let of: Vec<u16> = names.iter().map(|name| cluster.map.of_tube(name.as_bytes())).collect();
    let at = |owner: u16| names[of.iter().position(|found| *found == owner).unwrap()];
    for owner in 0..3 {
        cluster.play(&format!("0 w0 watch {}", at(owner)));
    }
    cluster.kill(1);
    cluster.kill(2);
    cluster.play("1 w0 reserve-with-timeout 0");
    cluster.start(1, 2);
    cluster.play("5000 p1 list-tube-used");
    assert!(!cluster.heard.contains("w0: INTERNAL_ERROR") && !cluster.heard.contains("TIMED_OUT"), "{}", cluster.heard);
    cluster.play("5001 p1 list-tube-used");
    assert!(cluster.heard.contains("5001 w0: INTERNAL_ERROR"), "{}", cluster.heard);
}

/// What a broken frontend says ends its link, and nothing else.
#[test]
fn a_wait_over_one_owner_cannot_become_one_over_several() {
    let mut cluster = Cluster::new(2);
    cluster.play("0 w0 watch a\n0 w0 ignore default\n0 w0 reserve\n0 p1 use a");
    let session = 1 << 32 | u64::from(cluster.clients["w0"].1.0);
    let Cluster { owners, pipes, counters, now, .. } = &mut cluster;
    let owner = owners[1].as_mut().unwrap();
    let mut wires = OwnerWires { owner: 1, pipes, counters };
    // The kind and payload of an `Ask` about the wait 0.
    let said =
        owner.host.take(*now, &mut owner.engine, (0, session), (8, &[0, 0, 0, 0, 0]), &mut NoJournal, &mut wires);
    assert_eq!(said, Err(tubes_link::Broken { frontend: 0, error: tubes_link::FrameError::Message }));
    cluster.play("1 p1 put 0 0 60 one");
    let served = cluster.heard.lines().any(|line| line.contains("w0: RESERVED ") && line.ends_with(" 3 one"));
    assert!(served, "{}", cluster.heard);
}
