//! The engine: one method per command, and the moves that several of them share.
//!
//! Commands are in modules of their own (`put`, `reserve`, `holder`, `kick`, `look`, `tubes`); `timers` fires what is
//! due, `serve` brings ready jobs and waiting sessions together, `recovery` is the log's side.

mod holder;
mod invariants;
mod kick;
mod look;
mod put;
mod recovery;
mod remote;
mod reserve;
mod serve;
mod sessions;
mod timers;
mod tubes;

use crate::arena::Arena;
use crate::index::IdIndex;
use crate::job::Job;
use crate::journal::{JobRecord, Journal};
use crate::ready::ReadyKey;
use crate::session::{Session, SessionId};
use crate::tube::Tube;
use crate::{Now, URGENT_BELOW};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, DefaultHasher, Hasher};
use timers::Timer;
use tubes_protocol::{Command, CommandCounts, Reply, ServerStats, State};

/// Where replies go. They borrow names and bodies, so that a body is copied once, into the output of its connection.
pub trait Outbox {
    /// The answer to the session's oldest unanswered command.
    fn reply(&mut self, session: SessionId, reply: &Reply<'_>);

    /// The answer to `stats`: the figures of the queues; the caller adds those of process and log.
    fn stats(&mut self, session: SessionId, stats: ServerStats);

    /// The session holds a job until `deadline_ns` of the boot clock: said before the reply that says so to the client.
    fn holds(&mut self, _session: SessionId, _id: u64, _deadline_ns: u64) {}

    /// A job is offered to a frontend's session that asked; only an owner's engine is asked.
    fn offer(&mut self, _session: SessionId, _offer: Offered) {
        unreachable!("offers are made to frontends only")
    }

    /// There is no job for a frontend's session that asked.
    fn nothing(&mut self, _session: SessionId) {
        unreachable!("only frontends ask for offers")
    }

    /// The offer that a frontend's session accepted is no more.
    fn gone(&mut self, _session: SessionId) {
        unreachable!("only frontends accept offers")
    }
}

/// A job that a session may accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offered {
    /// Names the offer when it is accepted or returned.
    pub offer: u64,
    /// The job.
    pub id: u64,
    /// Its priority: with the id, what offers are compared by.
    pub pri: u32,
}

/// What a server is started with.
#[derive(Debug, Clone, Copy, Default)]
pub struct EngineOptions {
    /// Largest body of a job, in bytes, as shown by `stats`.
    pub max_job_size: u32,
    /// Drawn by the caller, so that clients cannot choose tube names that collide.
    pub hash_seed: u64,
}

/// All jobs, tubes, sessions and timers of one server.
#[derive(Debug)]
pub struct Engine {
    options: EngineOptions,
    now: Now,
    jobs: Arena<Job>,
    job_places: IdIndex,
    tubes: Arena<Tube>,
    tube_places: HashMap<Box<[u8]>, u32, SeededHasher>,
    tubes_by_creation: BTreeMap<u64, u32>,
    sessions: Arena<Session>,
    timers: BTreeSet<(u64, Timer)>,
    /// Tubes in which a ready job and a waiting session may have to meet.
    dirty_tubes: Vec<u32>,
    default_tube: u32,
    next_id: u64,
    next_bury_order: u64,
    next_wait_order: u64,
    next_creation: u64,
    draining: bool,
    counts: CommandCounts,
    job_timeouts: u64,
    total_jobs: u64,
    total_connections: u64,
    producer_count: u64,
    worker_count: u64,
    waiting_count: u64,
    queued: QueuedCounts,
    offers: BTreeMap<u64, remote::Offer>,
    next_offer: u64,
    /// Sessions whose poll waits because only offered jobs are there.
    polls: BTreeSet<u32>,
}

/// Jobs by state, over all tubes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct QueuedCounts {
    urgent: u64,
    ready: u64,
    reserved: u64,
    delayed: u64,
    buried: u64,
}

/// What a step can reach besides the engine: the instant, the log and the replies.
struct Turn<'a, J, O> {
    now: Now,
    journal: &'a mut J,
    out: &'a mut O,
}

impl Engine {
    /// A server without jobs, whose first id is 1.
    #[must_use]
    pub fn new(options: EngineOptions) -> Self {
        let mut engine = Engine {
            options,
            now: Now { boot_ns: 0, wall_ms: 0 },
            jobs: Arena::new(),
            job_places: IdIndex::dense(),
            tubes: Arena::new(),
            tube_places: HashMap::with_hasher(SeededHasher(options.hash_seed)),
            tubes_by_creation: BTreeMap::new(),
            sessions: Arena::new(),
            timers: BTreeSet::new(),
            dirty_tubes: Vec::new(),
            default_tube: 0,
            next_id: 1,
            next_bury_order: 1,
            next_wait_order: 0,
            next_creation: 0,
            draining: false,
            counts: CommandCounts::default(),
            job_timeouts: 0,
            total_jobs: 0,
            total_connections: 0,
            producer_count: 0,
            worker_count: 0,
            waiting_count: 0,
            queued: QueuedCounts::default(),
            offers: BTreeMap::new(),
            next_offer: 1,
            polls: BTreeSet::new(),
        };
        engine.default_tube = engine.tube_or_create(b"default");
        engine
    }

    /// Carries out one command of a session that is not waiting.
    ///
    /// Every command is answered before this returns, but for a reserve that waits ([`Engine::is_waiting`]).
    ///
    /// # Panics
    ///
    /// If the session does not exist or is waiting: commands of one session are strictly serial.
    pub fn handle<J: Journal, O: Outbox>(
        &mut self,
        now: Now,
        session: SessionId,
        command: Command<'_>,
        journal: &mut J,
        out: &mut O,
    ) {
        assert!(!self.is_waiting(session), "a waiting session has sent a command");
        self.now = now;
        let mut turn = Turn { now, journal, out };
        let at = session.0;
        match command {
            Command::Put { pri, delay_s, ttr_s, body } => self.put(&mut turn, at, pri, delay_s, ttr_s, body),
            Command::Reserve { timeout_s } => self.reserve(&mut turn, at, timeout_s),
            Command::ReserveJob(id) => self.reserve_job(&mut turn, at, id),
            Command::Delete(id) => self.delete(&mut turn, at, id),
            Command::Release { id, pri, delay_s } => self.release(&mut turn, at, id, pri, delay_s),
            Command::Bury { id, pri } => self.bury(&mut turn, at, id, pri),
            Command::Touch(id) => self.touch(&mut turn, at, id),
            Command::Kick(bound) => self.kick(&mut turn, at, bound),
            Command::KickJob(id) => self.kick_job(&mut turn, at, id),
            Command::Peek(id) => self.peek(&mut turn, at, id),
            Command::PeekReady => self.peek_ready(&mut turn, at),
            Command::PeekDelayed => self.peek_delayed(&mut turn, at),
            Command::PeekBuried => self.peek_buried(&mut turn, at),
            Command::Use(name) => self.use_tube(&mut turn, at, name),
            Command::Watch(name) => self.watch(&mut turn, at, name),
            Command::Ignore(name) => self.ignore(&mut turn, at, name),
            Command::PauseTube { tube, delay_s } => self.pause_tube(&mut turn, at, tube, delay_s),
            Command::Stats => self.stats(&mut turn, at),
            Command::StatsJob(id) => self.stats_job(&mut turn, at, id),
            Command::StatsTube(name) => self.stats_tube(&mut turn, at, name),
            Command::ListTubes => self.list_tubes(&mut turn, at),
            Command::ListTubeUsed => self.list_tube_used(&mut turn, at),
            Command::ListTubesWatched => self.list_tubes_watched(&mut turn, at),
        }
        self.serve_dirty(&mut turn);
    }

    /// From here on every put is refused, for good.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// The id that the next accepted put will get.
    #[must_use]
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Number of tubes, `default` included.
    #[must_use]
    pub fn tube_count(&self) -> usize {
        self.tubes.len()
    }

    /// The place of a job by its id.
    fn place_of(&self, id: u64) -> Option<u32> {
        // In multi mode an id with the same counter and another partition leads to the same entry.
        self.job_places.get(id).filter(|place| self.jobs[*place].id == id)
    }

    fn wall_minus_boot_ms(&self) -> i64 {
        i64::try_from(self.now.wall_ms).unwrap_or(i64::MAX) - boot_ms(self.now)
    }

    // ---- moves between states ------------------------------------------------------------------------------------

    /// A job that is in no queue becomes ready.
    fn make_ready(&mut self, place: u32) {
        let job = &mut self.jobs[place];
        job.state = State::Ready;
        job.key = 0;
        let tube = &mut self.tubes[job.tube];
        tube.ready.insert(ReadyKey::new(job.pri, job.id, place));
        self.queued.ready += 1;
        if job.pri < URGENT_BELOW {
            tube.urgent_count += 1;
            self.queued.urgent += 1;
        }
        if !tube.waiting.is_empty() {
            self.dirty_tubes.push(job.tube);
        }
    }

    /// A job that is in no queue waits until `due_ns`.
    fn make_delayed(&mut self, place: u32, due_ns: u64) {
        let job = &mut self.jobs[place];
        job.state = State::Delayed;
        job.key = due_ns;
        let (tube, id) = (job.tube, job.id);
        self.tubes[tube].delayed.insert((due_ns, id, place));
        self.queued.delayed += 1;
        self.arm_delay(tube);
    }

    /// A job that is in no queue is set aside, behind all that are.
    fn make_buried(&mut self, place: u32) {
        let order = self.next_bury_order;
        self.next_bury_order += 1;
        self.enqueue_buried(place, order);
    }

    fn enqueue_buried(&mut self, place: u32, order: u64) {
        let job = &mut self.jobs[place];
        job.state = State::Buried;
        job.key = order;
        self.tubes[job.tube].buried.insert(order, place);
        self.queued.buried += 1;
    }

    /// A job that is in no queue is the session's until its time to run is over.
    fn make_reserved(&mut self, place: u32, session: u32) {
        let deadline_ns = {
            let job = &mut self.jobs[place];
            job.state = State::Reserved;
            job.key = self.now.boot_ns + seconds_ns(job.ttr_s);
            job.holder = session;
            job.counters.reserves = job.counters.reserves.saturating_add(1);
            self.tubes[job.tube].reserved_count += 1;
            self.sessions[session].held.insert((job.key, job.id, place));
            job.key
        };
        self.queued.reserved += 1;
        self.arm_session(session, deadline_ns);
    }

    /// Takes a job out of whatever queue or hand it is in.
    fn take_out(&mut self, place: u32) {
        let job = &self.jobs[place];
        let tube = &mut self.tubes[job.tube];
        let found = match job.state {
            State::Ready => {
                self.queued.ready -= 1;
                if job.pri < URGENT_BELOW {
                    tube.urgent_count -= 1;
                    self.queued.urgent -= 1;
                }
                let key = ReadyKey::new(job.pri, job.id, place);
                if job.key == 0 {
                    tube.ready.remove(key)
                } else {
                    let offer = job.key;
                    let found = tube.offered.remove(&key);
                    self.jobs[place].key = 0;
                    self.forget_offer(offer);
                    found
                }
            }
            State::Delayed => {
                self.queued.delayed -= 1;
                tube.delayed.remove(&(job.key, job.id, place))
            }
            State::Buried => {
                self.queued.buried -= 1;
                tube.buried.remove(&job.key).is_some()
            }
            State::Reserved => {
                self.queued.reserved -= 1;
                tube.reserved_count -= 1;
                self.sessions[job.holder].held.remove(&(job.key, job.id, place))
            }
        };
        assert!(found, "job {} is not where its state says", self.jobs[place].id);
    }

    /// Forgets a job that is in no queue. The log has its DELETE already.
    fn forget(&mut self, place: u32) {
        let job = self.jobs.remove(place);
        self.job_places.remove(job.id);
        self.drop_if_unreferenced(job.tube);
    }

    /// Logs the state that a job has just taken. The space was admitted before the change.
    fn log_state<J: Journal, O>(&mut self, turn: &mut Turn<'_, J, O>, place: u32) {
        let wall_minus_boot_ms = self.wall_minus_boot_ms();
        let job = &mut self.jobs[place];
        let fields = job.logged(wall_minus_boot_ms);
        let placement = turn.journal.append_state(job.placement(), job.id, &fields);
        job.set_placement(placement);
    }

    /// The job as its JOB record.
    fn job_record(&self, place: u32) -> JobRecord<'_> {
        let job = &self.jobs[place];
        let created_wall_ms = job.created_boot_ms.saturating_add(self.wall_minus_boot_ms());
        JobRecord {
            id: job.id,
            created_ms: u64::try_from(created_wall_ms).unwrap_or(0),
            state: job.logged(self.wall_minus_boot_ms()),
            ttr_s: job.ttr_s,
            tube: &self.tubes[job.tube].name,
            body: &job.body,
        }
    }

    // ---- tubes ---------------------------------------------------------------------------------------------------

    fn tube_or_create(&mut self, name: &[u8]) -> u32 {
        if let Some(at) = self.tube_places.get(name) {
            return *at;
        }
        let creation = self.next_creation;
        self.next_creation += 1;
        let at = self.tubes.insert(Tube::new(name, creation));
        self.tube_places.insert(name.into(), at);
        self.tubes_by_creation.insert(creation, at);
        at
    }

    /// A tube to which nothing refers vanishes with its figures and its pause.
    fn drop_if_unreferenced(&mut self, at: u32) {
        if at == self.default_tube || !self.tubes[at].is_unreferenced() {
            return;
        }
        let tube = self.tubes.remove(at);
        assert!(tube.waiting.is_empty(), "a session waits at a tube it does not watch");
        self.tube_places.remove(&tube.name);
        self.tubes_by_creation.remove(&tube.creation);
        if tube.is_paused() {
            self.timers.remove(&(tube.paused_until, Timer::Pause(at)));
        }
        if tube.delay_timer != u64::MAX {
            self.timers.remove(&(tube.delay_timer, Timer::Delay(at)));
        }
        if self.tube_places.capacity() > 1024 && self.tube_places.len() < self.tube_places.capacity() / 8 {
            self.tube_places.shrink_to(self.tube_places.len() * 2);
        }
    }
}

fn boot_ms(now: Now) -> i64 {
    i64::try_from(now.boot_ns / 1_000_000).unwrap_or(i64::MAX)
}

fn seconds_ns(seconds: u32) -> u64 {
    u64::from(seconds) * crate::SECOND_NS
}

/// Hashes tube names, which clients choose, behind a seed that they do not know.
#[derive(Debug, Clone, Copy)]
struct SeededHasher(u64);

impl BuildHasher for SeededHasher {
    type Hasher = DefaultHasher;
    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}
