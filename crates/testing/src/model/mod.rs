//! The rules of the queue server, written a second time and as plainly as possible.
//!
//! Owns: what every command answers and what every timer does, by the contract of the tubes alone. Nothing is indexed:
//! each question is a scan over all jobs, so that the code reads like the contract.
//! Never: shares a rule with the engine that it judges. Only the words are shared: commands, replies and log records.
//!
//! How the two are compared: every reply goes through [`Answers`] as the bytes of the wire, every change that must
//! reach the log as a [`Change`].

mod answers;
mod figures;
mod owner;
mod shadow;
mod table;
mod timers;

use tubes_core::journal::{Counters, LoggedState, StateFields};
use tubes_protocol::{Command, CommandCounts, Reply};

pub use answers::Answers;
pub use shadow::{Change, Mismatch, ShadowJob, ShadowLog};
pub use table::Table;

/// A moment on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moment {
    /// The clock of all timers, in ns.
    pub boot_ns: u64,
    /// The clock that appears in the log, in ms since 1970.
    pub wall_ms: u64,
}

/// Nanoseconds in a second.
pub const SECOND_NS: u64 = 1_000_000_000;

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Can be reserved.
    Ready,
    /// Waits until `due_ns`.
    Delayed {
        /// When it becomes ready, on the clock of timers.
        due_ns: u64,
    },
    /// Held.
    Reserved {
        /// The session that holds it.
        holder: u32,
        /// When its time to run ends.
        deadline_ns: u64,
    },
    /// Set aside; `order` rises with every burying.
    Buried {
        /// Place among the buried.
        order: u64,
    },
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its tube, by creation number.
    pub tube: u64,
    /// Where it stands.
    pub place: Place,
    /// Smaller is more urgent.
    pub pri: u32,
    /// The delay last requested, in seconds.
    pub delay_s: u32,
    /// Time to run, in seconds.
    pub ttr_s: u32,
    /// What happened to it.
    pub counters: Counters,
    /// When it was put, in whole ms of the clock of timers; below 0 if that was before the machine's start.
    pub created_ms: i128,
    /// Number of the log segment that holds it, which only the log knows; 0 without one.
    pub file: u32,
    /// The body without CR LF.
    pub body: Box<[u8]>,
}

#[derive(Debug, Clone)]
struct Tube {
    name: Box<[u8]>,
    pause: Option<Pause>,
    total_jobs: u64,
    deletes: u64,
    pauses: u64,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    seconds: u32,
    until_ns: u64,
}

#[derive(Debug, Clone)]
struct Session {
    used: u64,
    watched: Vec<u64>,
    producer: bool,
    worker: bool,
    waiting: Option<Wait>,
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    /// Rises with every wait of the server: first come, first served.
    turn: u64,
    until_ns: Option<u64>,
}

/// The whole server.
#[derive(Debug, Clone)]
pub struct Model {
    jobs: Table<u64, Job>,
    tubes: Table<u64, Tube>,
    sessions: Table<u32, Session>,
    next_id: u64,
    next_tube: u64,
    next_turn: u64,
    next_bury_order: u64,
    /// The tube `default` is there without anybody who refers to it.
    keeps_default: bool,
    draining: bool,
    max_job_size: u32,
    counts: CommandCounts,
    job_timeouts: u64,
    total_jobs: u64,
    total_connections: u64,
    answers: Answers,
    changes: Vec<Change>,
}

/// Answers whether the log has space for the next record; called once for each record that may be refused.
pub type Space<'a> = &'a mut dyn FnMut() -> bool;

impl Model {
    /// An empty server.
    #[must_use]
    pub fn new(max_job_size: u32) -> Model {
        let mut model = Model {
            jobs: Table::default(),
            tubes: Table::default(),
            sessions: Table::default(),
            next_id: 1,
            next_tube: 0,
            next_turn: 0,
            next_bury_order: 1,
            keeps_default: true,
            draining: false,
            max_job_size,
            counts: CommandCounts::default(),
            job_timeouts: 0,
            total_jobs: 0,
            total_connections: 0,
            answers: Answers::default(),
            changes: Vec::new(),
        };
        model.find_or_create(b"default");
        model
    }

    /// A connection opens under the name `session`, which no open connection has.
    pub fn connect(&mut self, session: u32) {
        let default = self.find_or_create(b"default");
        let opened = Session { used: default, watched: vec![default], producer: false, worker: false, waiting: None };
        let before = self.sessions.insert(session, opened);
        assert!(before.is_none(), "session {session} is open already");
        self.total_connections += 1;
    }

    /// The peer of `session` sends nothing more: it does not wait. Called again after each later command.
    pub fn half_close(&mut self, session: u32) {
        if self.session(session).waiting.take().is_some() {
            self.say(session, &Reply::TimedOut);
        }
    }

    /// `session` sends nothing more and has been answered: its jobs are ready again.
    pub fn give_back(&mut self, now: Moment, session: u32) {
        for job in self.jobs.values_mut() {
            if matches!(job.place, Place::Reserved { holder, .. } if holder == session) {
                job.place = Place::Ready;
            }
        }
        self.hand_out(now);
    }

    /// `session` is gone.
    pub fn disconnect(&mut self, now: Moment, session: u32) {
        let gone = self.sessions.remove(session);
        assert!(gone.is_some(), "session {session} is not open");
        self.give_back(now, session);
        self.forget_unreferenced_tubes();
    }

    /// Only puts are refused from here on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether the later commands of `session` must wait.
    #[must_use]
    pub fn is_waiting(&self, session: u32) -> bool {
        self.sessions.get(session).is_some_and(|state| state.waiting.is_some())
    }

    /// The next id that a put gets.
    #[must_use]
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// All jobs by id.
    #[must_use]
    pub fn jobs(&self) -> &Table<u64, Job> {
        &self.jobs
    }

    /// Ids of the jobs that `session` holds.
    pub fn held_by(&self, session: u32) -> impl Iterator<Item = u64> {
        let held = move |job: &Job| matches!(job.place, Place::Reserved { holder, .. } if holder == session);
        self.jobs.iter().filter(move |(_, job)| held(job)).map(|(id, _)| id)
    }

    /// Name of the tube with this creation number.
    #[must_use]
    pub fn tube_name(&self, tube: u64) -> &[u8] {
        &self.tubes[tube].name
    }

    /// Names of all tubes in the order of creation.
    pub fn tube_names(&self) -> impl Iterator<Item = &[u8]> {
        self.tubes.values().map(|tube| &*tube.name)
    }

    /// What has been answered since the last [`Answers::clear`].
    pub fn answers(&mut self) -> &mut Answers {
        &mut self.answers
    }

    /// What must reach the log; the caller takes it out.
    pub fn changes(&mut self) -> &mut Vec<Change> {
        &mut self.changes
    }

    /// The log has put the newest copy of job `id` into segment `file`.
    pub fn set_file(&mut self, id: u64, file: u32) {
        if let Some(job) = self.jobs.get_mut(id) {
            job.file = file;
        }
    }

    /// A put was refused before it reached the rules (too big, bad trailer, no memory); it counts all the same.
    pub fn count_refused_put(&mut self) {
        self.counts.put += 1;
    }

    /// Executes one command of `session`, whose timers up to `now` have been run by [`Model::tick`].
    pub fn handle(&mut self, now: Moment, session: u32, command: &Command<'_>, space: Space<'_>) {
        match command {
            Command::Put { pri, delay_s, ttr_s, body } => {
                self.put(now, session, [*pri, *delay_s, *ttr_s], body, space);
            }
            Command::Use(name) => {
                self.counts.use_tube += 1;
                let tube = self.find_or_create(name);
                self.session(session).used = tube;
                self.forget_unreferenced_tubes();
                self.say(session, &Reply::Using(name));
            }
            Command::Reserve { timeout_s } => self.reserve(now, session, *timeout_s),
            Command::ReserveJob(id) => self.reserve_job(now, session, *id, space),
            Command::Delete(id) => self.delete(session, *id),
            Command::Release { id, pri, delay_s } => self.release(now, session, *id, *pri, *delay_s, space),
            Command::Bury { id, pri } => self.bury(now, session, *id, *pri, space),
            Command::Touch(id) => {
                self.counts.touch += 1;
                let reply = match self.held(session, *id) {
                    Some(job) => {
                        let deadline_ns = now.boot_ns + u64::from(job.ttr_s) * SECOND_NS;
                        job.place = Place::Reserved { holder: session, deadline_ns };
                        Reply::Touched
                    }
                    None => Reply::NotFound,
                };
                self.say(session, &reply);
            }
            Command::Watch(name) => {
                self.counts.watch += 1;
                let tube = self.find_or_create(name);
                let watched = &mut self.session(session).watched;
                if !watched.contains(&tube) {
                    watched.push(tube);
                }
                let count = watched.len();
                self.say(session, &Reply::Watching(count));
            }
            Command::Ignore(name) => {
                self.counts.ignore += 1;
                let tube = self.find(name);
                let watched = &mut self.session(session).watched;
                let place = watched.iter().position(|other| Some(*other) == tube);
                let reply = match place {
                    Some(_) if watched.len() == 1 => Reply::NotIgnored,
                    Some(place) => {
                        watched.remove(place);
                        Reply::Watching(watched.len())
                    }
                    None => Reply::Watching(watched.len()),
                };
                self.say(session, &reply);
                self.forget_unreferenced_tubes();
            }
            Command::Peek(id) => {
                self.counts.peek += 1;
                let found = self.jobs.contains(*id).then_some(*id);
                self.show(session, found);
            }
            Command::PeekReady => {
                self.counts.peek_ready += 1;
                let found = self.first_of_used(session, |id, job| match job.place {
                    Place::Ready => Some((u64::from(job.pri), id)),
                    _ => None,
                });
                self.show(session, found);
            }
            Command::PeekDelayed => {
                self.counts.peek_delayed += 1;
                let found = self.first_of_used(session, soonest);
                self.show(session, found);
            }
            Command::PeekBuried => {
                self.counts.peek_buried += 1;
                let found = self.first_of_used(session, longest_buried);
                self.show(session, found);
            }
            Command::Kick(count) => self.kick(now, session, *count, space),
            Command::KickJob(id) => self.kick_job(now, session, *id, space),
            Command::PauseTube { tube, delay_s } => self.pause(now, session, tube, *delay_s),
            Command::Stats
            | Command::StatsJob(_)
            | Command::StatsTube(_)
            | Command::ListTubes
            | Command::ListTubeUsed
            | Command::ListTubesWatched => self.figures(now, session, command),
        }
    }

    fn put(&mut self, now: Moment, session: u32, numbers: [u32; 3], body: &[u8], space: Space<'_>) {
        let [pri, delay_s, ttr_s] = numbers;
        self.counts.put += 1;
        let state = self.session(session);
        state.producer = true;
        let tube = state.used;
        if self.draining {
            return self.say(session, &Reply::Draining);
        }
        if !space() {
            return self.say(session, &Reply::OutOfMemory);
        }
        let id = self.next_id;
        self.next_id += 1;
        self.total_jobs += 1;
        self.tubes.get_mut(tube).expect("a used tube exists").total_jobs += 1;
        let ttr_s = ttr_s.max(1);
        let place = ready_or_delayed(now, delay_s);
        let created_ms = i128::from(now.boot_ns / 1_000_000);
        let counters = Counters::default();
        self.jobs
            .insert(id, Job { tube, place, pri, delay_s, ttr_s, counters, created_ms, file: 0, body: body.into() });
        self.changes.push(Change::Put { id, job: self.logged(now, id) });
        self.say(session, &Reply::Inserted(id));
        self.hand_out(now);
    }

    fn reserve(&mut self, now: Moment, session: u32, timeout_s: Option<u32>) {
        match timeout_s {
            None => self.counts.reserve += 1,
            Some(_) => self.counts.reserve_with_timeout += 1,
        }
        let turn = self.next_turn;
        self.next_turn += 1;
        let in_margin = self.in_margin(now, session);
        let state = self.session(session);
        state.worker = true;
        let watched = state.watched.clone();
        if in_margin && !self.jobs.values().any(|job| job.place == Place::Ready && watched.contains(&job.tube)) {
            return self.say(session, &Reply::DeadlineSoon);
        }
        let until_ns = timeout_s.map(|seconds| now.boot_ns + u64::from(seconds) * SECOND_NS);
        self.session(session).waiting = Some(Wait { turn, until_ns });
        self.hand_out(now);
        if timeout_s == Some(0) && self.session(session).waiting.take().is_some() {
            self.say(session, &Reply::TimedOut);
        }
    }

    fn reserve_job(&mut self, now: Moment, session: u32, id: u64, space: Space<'_>) {
        let logged = match self.jobs.get(id).map(|job| job.place) {
            None | Some(Place::Reserved { .. }) => return self.say(session, &Reply::NotFound),
            Some(Place::Ready) => false,
            Some(Place::Delayed { .. } | Place::Buried { .. }) => true,
        };
        if logged && !space() {
            return self.say(session, &Reply::OutOfMemory);
        }
        self.session(session).worker = true;
        self.hand_to(now, id, session);
        if logged {
            self.log_state(now, id);
        }
    }

    fn delete(&mut self, session: u32, id: u64) {
        self.counts.delete += 1;
        let tube = match self.jobs.get(id) {
            None => return self.say(session, &Reply::NotFound),
            Some(job) => match job.place {
                Place::Reserved { holder, .. } if holder != session => return self.say(session, &Reply::NotFound),
                _ => job.tube,
            },
        };
        self.jobs.remove(id);
        self.tubes.get_mut(tube).expect("a job's tube exists").deletes += 1;
        self.changes.push(Change::Delete { id });
        self.forget_unreferenced_tubes();
        self.say(session, &Reply::Deleted);
    }

    fn release(&mut self, now: Moment, session: u32, id: u64, pri: u32, delay_s: u32, space: Space<'_>) {
        self.counts.release += 1;
        if self.held(session, id).is_none() {
            return self.say(session, &Reply::NotFound);
        }
        if !space() {
            return self.say(session, &Reply::OutOfMemory);
        }
        let job = self.jobs.get_mut(id).expect("held");
        job.place = ready_or_delayed(now, delay_s);
        job.pri = pri;
        job.delay_s = delay_s;
        job.counters.releases += 1;
        self.log_state(now, id);
        self.say(session, &Reply::Released);
        self.hand_out(now);
    }

    fn bury(&mut self, now: Moment, session: u32, id: u64, pri: u32, space: Space<'_>) {
        self.counts.bury += 1;
        if self.held(session, id).is_none() {
            return self.say(session, &Reply::NotFound);
        }
        if !space() {
            return self.say(session, &Reply::OutOfMemory);
        }
        let order = self.next_bury_order;
        self.next_bury_order += 1;
        let job = self.jobs.get_mut(id).expect("held");
        job.place = Place::Buried { order };
        job.pri = pri;
        job.counters.buries += 1;
        self.log_state(now, id);
        self.say(session, &Reply::Buried);
    }

    fn kick(&mut self, now: Moment, session: u32, count: u32, space: Space<'_>) {
        self.counts.kick += 1;
        let buried_first = self.first_of_used(session, longest_buried).is_some();
        let order = if buried_first { longest_buried } else { soonest };
        let mut kicked = 0;
        while kicked < count {
            let Some(id) = self.first_of_used(session, order) else { break };
            if !space() {
                if kicked == 0 {
                    return self.say(session, &Reply::OutOfMemory);
                }
                break;
            }
            self.make_ready_by_kick(now, id);
            kicked += 1;
        }
        self.say(session, &Reply::Kicked(u64::from(kicked)));
        self.hand_out(now);
    }

    fn kick_job(&mut self, now: Moment, session: u32, id: u64, space: Space<'_>) {
        match self.jobs.get(id).map(|job| job.place) {
            Some(Place::Buried { .. } | Place::Delayed { .. }) => {}
            _ => return self.say(session, &Reply::NotFound),
        }
        if !space() {
            return self.say(session, &Reply::OutOfMemory);
        }
        self.make_ready_by_kick(now, id);
        self.say(session, &Reply::JobKicked);
        self.hand_out(now);
    }

    fn make_ready_by_kick(&mut self, now: Moment, id: u64) {
        let job = self.jobs.get_mut(id).expect("a job to kick");
        job.place = Place::Ready;
        job.counters.kicks += 1;
        self.log_state(now, id);
    }

    fn pause(&mut self, now: Moment, session: u32, name: &[u8], delay_s: u32) {
        self.counts.pause_tube += 1;
        let Some(tube) = self.find(name) else { return self.say(session, &Reply::NotFound) };
        let tube = self.tubes.get_mut(tube).expect("found");
        tube.pauses += 1;
        tube.pause =
            (delay_s > 0).then(|| Pause { seconds: delay_s, until_ns: now.boot_ns + u64::from(delay_s) * SECOND_NS });
        self.say(session, &Reply::Paused);
        self.hand_out(now);
    }

    /// Gives ready jobs to waiting sessions until nobody waits for a job that is there: the best job that anyone waits
    /// for goes to the one of them who has waited longest.
    fn hand_out(&mut self, now: Moment) {
        if self.sessions.values().all(|state| state.waiting.is_none()) {
            return;
        }
        while let Some((_, id, _, session)) = self.best_match() {
            self.session(session).waiting = None;
            self.hand_to(now, id, session);
        }
    }

    /// The smallest (priority, id, turn) over all ready jobs of unpaused tubes and all who wait for them.
    fn best_match(&self) -> Option<(u32, u64, u64, u32)> {
        let mut best = None;
        for (id, job) in self.jobs.iter() {
            if job.place != Place::Ready || self.tubes[job.tube].pause.is_some() {
                continue;
            }
            for (session, state) in self.sessions.iter() {
                let Some(wait) = state.waiting else { continue };
                if state.watched.contains(&job.tube) {
                    let candidate = (job.pri, id, wait.turn, session);
                    best = Some(best.map_or(candidate, |best| candidate.min(best)));
                }
            }
        }
        best
    }

    fn hand_to(&mut self, now: Moment, id: u64, session: u32) {
        let job = self.jobs.get_mut(id).expect("a job to hand out");
        let deadline_ns = now.boot_ns + u64::from(job.ttr_s) * SECOND_NS;
        job.place = Place::Reserved { holder: session, deadline_ns };
        job.counters.reserves += 1;
        self.answers.add(session, &Reply::Reserved { id, body: &job.body });
    }

    /// Whether `session` is in the last second of a job that it holds.
    fn in_margin(&self, now: Moment, session: u32) -> bool {
        self.jobs.values().any(|job| {
            matches!(job.place, Place::Reserved { holder, deadline_ns }
                if holder == session && deadline_ns <= now.boot_ns + SECOND_NS)
        })
    }

    /// The first job of the used tube by `key`, which says `None` for jobs that do not count.
    fn first_of_used(&self, session: u32, key: impl Fn(u64, &Job) -> Option<(u64, u64)>) -> Option<u64> {
        let used = self.sessions[session].used;
        let of_tube = self.jobs.iter().filter(|(_, job)| job.tube == used);
        of_tube.filter_map(|(id, job)| Some((key(id, job)?, id))).min().map(|(_, id)| id)
    }

    fn held(&mut self, session: u32, id: u64) -> Option<&mut Job> {
        self.jobs.get_mut(id).filter(|job| matches!(job.place, Place::Reserved { holder, .. } if holder == session))
    }

    fn show(&mut self, session: u32, id: Option<u64>) {
        match id {
            Some(id) => self.answers.add(session, &Reply::Found { id, body: &self.jobs[id].body }),
            None => self.answers.add(session, &Reply::NotFound),
        }
    }

    fn say(&mut self, session: u32, reply: &Reply<'_>) {
        self.answers.add(session, reply);
    }

    fn log_state(&mut self, now: Moment, id: u64) {
        let fields = self.fields(now, id);
        self.changes.push(Change::State { id, fields });
    }

    /// The job as a record written at `now` shows it: its age and what is left of its delay, in the present wall time.
    #[must_use]
    pub fn logged(&self, now: Moment, id: u64) -> ShadowJob {
        let job = &self.jobs[id];
        let age_ms = i128::from(now.boot_ns / 1_000_000) - job.created_ms;
        ShadowJob {
            tube: self.tubes[job.tube].name.clone(),
            body: job.body.clone(),
            ttr_s: job.ttr_s,
            created_ms: u64::try_from(i128::from(now.wall_ms) - age_ms).unwrap_or(0),
            state: self.fields(now, id),
        }
    }

    fn fields(&self, now: Moment, id: u64) -> StateFields {
        let job = &self.jobs[id];
        let (state, due_ms, bury_order) = match job.place {
            Place::Ready | Place::Reserved { .. } => (LoggedState::Ready, 0, 0),
            Place::Delayed { due_ns } => {
                let left_ms = due_ns.saturating_sub(now.boot_ns).div_ceil(1_000_000);
                (LoggedState::Delayed, now.wall_ms + left_ms, 0)
            }
            Place::Buried { order } => (LoggedState::Buried, 0, order),
        };
        StateFields { state, pri: job.pri, delay_s: job.delay_s, due_ms, bury_order, counters: job.counters }
    }

    fn session(&mut self, session: u32) -> &mut Session {
        self.sessions.get_mut(session).expect("an open session")
    }

    fn find(&self, name: &[u8]) -> Option<u64> {
        self.tubes.iter().find(|(_, tube)| &*tube.name == name).map(|(number, _)| number)
    }

    fn find_or_create(&mut self, name: &[u8]) -> u64 {
        if let Some(tube) = self.find(name) {
            return tube;
        }
        let number = self.next_tube;
        self.next_tube += 1;
        let tube = Tube { name: name.into(), pause: None, total_jobs: 0, deletes: 0, pauses: 0 };
        self.tubes.insert(number, tube);
        number
    }

    /// A tube that no job, user or watcher refers to vanishes, but for `default`.
    fn forget_unreferenced_tubes(&mut self) {
        let (jobs, sessions) = (&self.jobs, &self.sessions);
        let keeps_default = self.keeps_default;
        self.tubes.retain(|number, tube| {
            keeps_default && &*tube.name == b"default"
                || sessions.values().any(|state| state.used == number || state.watched.contains(&number))
                || jobs.values().any(|job| job.tube == number)
        });
    }
}

fn ready_or_delayed(now: Moment, delay_s: u32) -> Place {
    match delay_s {
        0 => Place::Ready,
        _ => Place::Delayed { due_ns: now.boot_ns + u64::from(delay_s) * SECOND_NS },
    }
}

fn soonest(id: u64, job: &Job) -> Option<(u64, u64)> {
    match job.place {
        Place::Delayed { due_ns } => Some((due_ns, id)),
        _ => None,
    }
}

fn longest_buried(id: u64, job: &Job) -> Option<(u64, u64)> {
    match job.place {
        Place::Buried { order } => Some((order, id)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
