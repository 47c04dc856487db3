//! The engine against the reference model: random commands of several sessions on simulated time, every reply and every
//! log record compared, with the failing commands cut down to the few that matter.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use testing::model::{Answers, Change, Model, Moment, SECOND_NS, ShadowJob, ShadowLog};
use testing::rng::Rng;
use tubes_core::journal::{JobRecord, Journal, Placement, Replay, StateFields};
use tubes_core::{Engine, EngineOptions, Now, SessionId};
use tubes_protocol::Command;

const RUNS: u64 = 2_400;
const STEPS: usize = 3_000;
/// Floor of commands that must have been compared.
const COMMANDS_MIN: u64 = 3_000_000;

const TUBES: [&[u8]; 5] = [b"default", b"a", b"b", b"c", b"a.b-c"];
const BODIES: [&[u8]; 4] = [b"", b"x", b"body\r\n", b"---\n- a\n"];
const SESSIONS_MAX: usize = 7;
/// Puts beyond it are left out: many jobs only make the scans of the model slow.
const JOBS_MAX: usize = 40;

/// The clock of a run stays below it: 95 years, to which the longest delay can be added.
const NOW_NS_MAX: u64 = 3_000_000_000 * SECOND_NS;

/// One step of a run. Sessions are chosen among those open at that moment, so that a run with steps left out is a run.
#[derive(Debug, Clone)]
enum Step {
    Connect,
    Disconnect(usize),
    HalfClose(usize),
    /// The input of a session has ended and everything is answered.
    GiveBack(usize),
    Command(usize, Command<'static>),
    /// Time passes, and what is due happens late by as much.
    Advance(u64),
    /// Time passes until the next thing is due, or a little past it.
    ToNextDue(u64),
    Drain,
    /// Compaction moves a job to another segment.
    Relocate(u64, u32),
    /// The process ends and comes back from its log after so many ms, the wall clock having moved by so many more.
    Restart(u64, i64),
}

/// A log that keeps its records and refuses some of them.
struct TestJournal {
    rng: Rng,
    refusals_per_mille: u32,
    answers: VecDeque<bool>,
    changes: Vec<Change>,
    placements: BTreeMap<u64, (Placement, usize, usize)>,
}

impl TestJournal {
    fn decide(&mut self, refusable: bool) -> bool {
        let admitted = !(refusable && self.rng.chance(self.refusals_per_mille, 1_000));
        self.answers.push_back(admitted);
        admitted
    }

    fn place(&mut self, segment: u32) -> Placement {
        Placement { segment, state_reserved: self.rng.chance(1, 2) }
    }
}

impl Journal for TestJournal {
    fn admit_job(&mut self, _tube_bytes: usize, _body_bytes: usize) -> bool {
        self.decide(true)
    }

    fn append_job(&mut self, record: &JobRecord<'_>) -> Placement {
        let segment = u32::try_from(self.rng.between(1, 9)).unwrap();
        let placement = self.place(segment);
        let before = self.placements.insert(record.id, (placement, record.tube.len(), record.body.len()));
        assert!(before.is_none(), "id {} is given twice", record.id);
        self.changes.push(Change::Put { id: record.id, job: ShadowJob::of(record) });
        placement
    }

    fn admit_state(&mut self, placement: Placement) -> bool {
        self.decide(!placement.state_reserved)
    }

    fn append_state(&mut self, placement: Placement, id: u64, fields: &StateFields) -> Placement {
        let (known, tube_bytes, body_bytes) = self.placements[&id];
        assert_eq!(placement, known, "the placement of job {id}");
        let placement = self.place(placement.segment);
        self.placements.insert(id, (placement, tube_bytes, body_bytes));
        self.changes.push(Change::State { id, fields: *fields });
        placement
    }

    fn append_delete(&mut self, placement: Placement, id: u64, tube_bytes: usize, body_bytes: usize) {
        let known = self.placements.remove(&id);
        assert_eq!(known, Some((placement, tube_bytes, body_bytes)), "what the engine says of deleted job {id}");
        self.changes.push(Change::Delete { id });
    }
}

/// Engine and model, side by side.
struct Duel {
    now: Moment,
    /// Wall time at the start of the machine.
    wall_begin_ms: u64,
    engine: Engine,
    model: Model,
    journal: TestJournal,
    said: Answers,
    /// Everything logged so far, in order.
    log: Vec<Change>,
    sessions: Vec<u32>,
    commands: u64,
    hash_seed: u64,
}

fn now(moment: Moment) -> Now {
    Now { boot_ns: moment.boot_ns, wall_ms: moment.wall_ms }
}

const MAX_JOB_SIZE: u32 = 65_535;

impl Duel {
    fn new(seed: u64, refusals_per_mille: u32) -> Duel {
        let rng = Rng::new(seed ^ 0x0010_ca1e);
        Duel {
            now: Moment { boot_ns: 0, wall_ms: 1_700_000_000_000 },
            wall_begin_ms: 1_700_000_000_000,
            engine: Engine::new(EngineOptions { max_job_size: MAX_JOB_SIZE, hash_seed: seed }),
            model: Model::new(MAX_JOB_SIZE),
            journal: TestJournal {
                rng,
                refusals_per_mille,
                answers: VecDeque::new(),
                changes: Vec::new(),
                placements: BTreeMap::new(),
            },
            said: Answers::default(),
            log: Vec::new(),
            sessions: Vec::new(),
            commands: 0,
            hash_seed: seed,
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Connect => {
                if self.sessions.len() < SESSIONS_MAX {
                    let session = self.engine.connect();
                    self.model.connect(session.0);
                    self.sessions.push(session.0);
                }
            }
            Step::Disconnect(pick) => {
                if !self.sessions.is_empty() {
                    let session = self.sessions.remove(pick % self.sessions.len());
                    let at = now(self.now);
                    self.engine.disconnect(at, SessionId(session), &mut self.journal, &mut self.said);
                    self.model.disconnect(self.now, session);
                }
            }
            Step::HalfClose(pick) => {
                if let Some(session) = self.pick(*pick) {
                    let at = now(self.now);
                    self.engine.half_close(at, SessionId(session), &mut self.said);
                    self.model.half_close(session);
                }
            }
            Step::GiveBack(pick) => {
                if let Some(session) = self.pick(*pick).filter(|session| !self.model.is_waiting(*session)) {
                    let at = now(self.now);
                    self.engine.give_back(at, SessionId(session), &mut self.journal, &mut self.said);
                    self.model.give_back(self.now, session);
                }
            }
            Step::Command(pick, command) => {
                let Some(session) = self.pick(*pick) else { return Ok(()) };
                let id = SessionId(session);
                let is_full = self.model.jobs().len() >= JOBS_MAX && matches!(command, Command::Put { .. });
                if is_full || self.engine.is_waiting(id) {
                    return Ok(());
                }
                self.commands += 1;
                self.engine.handle(now(self.now), id, command.clone(), &mut self.journal, &mut self.said);
                let answers = &mut self.journal.answers;
                let mut asked_more = false;
                let mut space = || {
                    answers.pop_front().unwrap_or_else(|| {
                        asked_more = true;
                        true
                    })
                };
                self.model.handle(self.now, session, command, &mut space);
                if asked_more || !self.journal.answers.is_empty() {
                    return Err("engine and model do not ask for the same log space".to_owned());
                }
            }
            Step::Advance(ns) => self.advance(*ns)?,
            Step::ToNextDue(past_ns) => {
                // Nobody waits for a delay of 136 years after another one.
                if let Some(due_ns) = self.model.next_due().filter(|due_ns| *due_ns < NOW_NS_MAX) {
                    self.advance(due_ns.saturating_sub(self.now.boot_ns) + past_ns)?;
                }
            }
            Step::Drain => {
                self.engine.drain();
                self.model.drain();
            }
            Step::Relocate(id, segment) => {
                if let Some((placement, _, _)) = self.journal.placements.get_mut(id) {
                    placement.segment = *segment;
                    self.engine.relocate(*id, *placement);
                    self.model.set_file(*id, *segment);
                }
            }
            Step::Restart(boot_ms, wall_step_ms) => self.restart(*boot_ms, *wall_step_ms)?,
        }
        self.compare()
    }

    fn pick(&self, pick: usize) -> Option<u32> {
        (!self.sessions.is_empty()).then(|| self.sessions[pick % self.sessions.len()])
    }

    fn advance(&mut self, ns: u64) -> Result<(), String> {
        self.now.boot_ns += ns;
        self.now.wall_ms = self.wall_begin_ms + self.now.boot_ns / 1_000_000;
        self.engine.tick(now(self.now), &mut self.journal, &mut self.said);
        self.model.tick(self.now);
        match self.engine.next_deadline() {
            Some(due_ns) if due_ns <= self.now.boot_ns => Err("a timer is due right after a tick".to_owned()),
            _ => Ok(()),
        }
    }

    fn compare(&mut self) -> Result<(), String> {
        let expected = std::mem::take(self.model.changes());
        let changes = std::mem::take(&mut self.journal.changes);
        if changes.len() != expected.len() || !changes.iter().zip(&expected).all(|(ours, theirs)| ours.says(theirs)) {
            return Err(format!("the engine logs {changes:?}, the model {expected:?}"));
        }
        for change in &changes {
            if let Change::Put { id, .. } = change {
                self.model.set_file(*id, self.journal.placements[id].0.segment);
            }
        }
        self.log.extend(changes);
        if !self.said.same_for_each_session(self.model.answers()) {
            let (engine, model) = (self.said.in_words(), self.model.answers().in_words());
            return Err(format!("the engine says\n  {engine}\nthe model says\n  {model}"));
        }
        self.said.clear();
        self.model.answers().clear();
        for session in &self.sessions {
            if self.engine.is_waiting(SessionId(*session)) != self.model.is_waiting(*session) {
                return Err(format!("session {session} waits in only one of the two"));
            }
        }
        match (self.engine.next_deadline(), self.model.next_due()) {
            (None, Some(due_ns)) => Err(format!("the engine has no timer, but {due_ns} ns is due")),
            (Some(timer_ns), Some(due_ns)) if timer_ns > due_ns => {
                Err(format!("the engine's next timer is at {timer_ns} ns, but {due_ns} ns is due"))
            }
            _ => Ok(()),
        }
    }

    fn shadow(&self) -> ShadowLog {
        let mut shadow = ShadowLog::new();
        for change in &self.log {
            shadow.apply(change);
        }
        shadow
    }

    fn restart(&mut self, boot_ms: u64, wall_step_ms: i64) -> Result<(), String> {
        self.state_matches()?;
        self.now.boot_ns += boot_ms * 1_000_000;
        self.wall_begin_ms = self.wall_begin_ms.saturating_add_signed(wall_step_ms);
        self.now.wall_ms = self.wall_begin_ms + self.now.boot_ns / 1_000_000;
        self.sessions.clear();
        let mut engine = Engine::new(EngineOptions { max_job_size: MAX_JOB_SIZE, hash_seed: self.hash_seed });
        let mut shadow = ShadowLog::new();
        for change in &self.log {
            match change {
                Change::Put { id, job } => {
                    let record = job.record(*id);
                    let segment = u32::try_from(id % 5 + 1).unwrap();
                    let replaced = (engine.replay_job(&record, segment), shadow.replay_job(&record, segment));
                    assert_eq!(replaced.0, replaced.1, "what a JOB record replaced");
                }
                Change::State { id, fields } => {
                    assert_eq!(engine.replay_state(*id, fields), shadow.replay_state(*id, fields), "a STATE record");
                }
                Change::Delete { id } => {
                    assert_eq!(engine.replay_delete(*id), shadow.replay_delete(*id), "a DELETE record");
                }
            }
        }
        assert_eq!(engine.live_jobs(), shadow.live_jobs(), "jobs alive after the replay");
        let reserved = self.journal.rng.chance(1, 2);
        engine.set_state_reserved(reserved);
        engine.finish_recovery(now(self.now), self.model.next_id());
        engine.check_invariants();
        self.journal.placements.clear();
        for (id, job) in shadow.jobs() {
            let placement = Placement { segment: u32::try_from(id % 5 + 1).unwrap(), state_reserved: reserved };
            self.journal.placements.insert(id, (placement, job.tube.len(), job.body.len()));
        }
        // The order of tubes after a recovery is the engine's choice; the set is not.
        let mut names = Answers::default();
        let session = engine.connect();
        engine.handle(now(self.now), session, Command::ListTubes, &mut self.journal, &mut names);
        let text = names.iter().next().ok_or("no list of tubes")?.1.to_vec();
        let order = text.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"- ")).map(Box::from);
        let order: Vec<Box<[u8]>> = order.collect();
        let next_id = self.model.next_id();
        self.model = Model::recovered(MAX_JOB_SIZE, self.now, &shadow, &order, next_id);
        self.model.connect(session.0);
        self.model.handle(self.now, session.0, &Command::ListTubes, &mut || true);
        self.said.clear();
        self.said = names;
        self.engine = engine;
        self.sessions.push(session.0);
        self.compare()?;
        self.advance(0)?;
        self.compare()?;
        self.state_matches()
    }

    /// All that can be asked about jobs and tubes, and all that compaction would copy.
    fn state_matches(&mut self) -> Result<(), String> {
        self.engine.check_invariants();
        let shadow = self.shadow();
        for (id, _) in shadow.jobs() {
            let (placement, _, _) = self.journal.placements[&id];
            let expected = self.model.logged(self.now, id);
            let live = self.engine.live_job(id, placement.segment);
            let found = live.as_ref().map(|(record, placement)| (ShadowJob::of(record), *placement));
            if !found.as_ref().is_some_and(|(found, place)| found.says(&expected) && *place == placement) {
                return Err(format!("compaction would copy {found:?} of job {id}, not {expected:?}"));
            }
            if self.engine.live_job(id, placement.segment + 1).is_some() {
                return Err(format!("job {id} is said to live in two segments"));
            }
        }
        if self.engine.live_jobs() != shadow.live_jobs() || self.engine.next_id() != self.model.next_id() {
            return Err("number of jobs or next id".to_owned());
        }
        let Some(session) = self.sessions.iter().find(|session| !self.model.is_waiting(**session)).copied() else {
            return Ok(());
        };
        let ids: Vec<u64> = self.model.jobs().keys().collect();
        let tubes: Vec<Vec<u8>> = self.model.tube_names().map(<[u8]>::to_vec).collect();
        let about_jobs = ids.iter().flat_map(|id| [Command::Peek(*id), Command::StatsJob(*id)]);
        let about_tubes = tubes.iter().map(|name| Command::StatsTube(name));
        for command in about_jobs.chain(about_tubes).chain([Command::Stats, Command::ListTubes]) {
            self.engine.handle(now(self.now), SessionId(session), command.clone(), &mut self.journal, &mut self.said);
            self.model.handle(self.now, session, &command, &mut || true);
        }
        self.compare()
    }
}

/// How likely each kind of step is in one run: each run is drawn its own mixture, so that rare states are somebody's
/// common ones.
struct Mixture {
    weights: [u32; 32],
    tubes: usize,
    pri_max: u64,
    seconds_max: u64,
}

impl Mixture {
    fn draw(rng: &mut Rng) -> Mixture {
        let mut weights = [0; 32];
        for weight in &mut weights {
            *weight = *rng.pick(&[0, 1, 4, 4, 12]);
        }
        weights[PUT] = weights[PUT].max(4);
        weights[RESERVE] = weights[RESERVE].max(4);
        weights[CONNECT] = weights[CONNECT].max(2);
        weights[DRAIN] = rng.below(30).saturating_sub(28) as u32;
        weights[RESTART] = weights[RESTART].min(1);
        weights[DISCONNECT] = weights[DISCONNECT].min(4);
        weights[ADVANCE] = weights[ADVANCE].max(1);
        Mixture {
            weights,
            tubes: 1 + rng.index(TUBES.len()),
            pri_max: *rng.pick(&[0, 2, 2_000, u64::from(u32::MAX)]),
            seconds_max: *rng.pick(&[1, 3, 3, 20, u64::from(u32::MAX)]),
        }
    }

    fn seconds(&self, rng: &mut Rng) -> u32 {
        if rng.chance(1, 3) { 0 } else { u32::try_from(rng.between(0, self.seconds_max)).unwrap() }
    }

    fn step(&self, rng: &mut Rng, ids_below: u64) -> Step {
        let session = rng.index(1_000);
        let id =
            if rng.chance(1, 20) { rng.below(ids_below + 3) } else { ids_below - 1 - rng.below(ids_below.min(25)) };
        let tube = TUBES[rng.index(self.tubes)];
        let pri = u32::try_from(rng.between(0, self.pri_max)).unwrap();
        let command = match rng.weighted(&self.weights) {
            CONNECT => return Step::Connect,
            DISCONNECT => return Step::Disconnect(session),
            2 if rng.chance(1, 4) => return Step::GiveBack(session),
            2 => return Step::HalfClose(session),
            ADVANCE => return Step::Advance(rng.below(4 * SECOND_NS)),
            4 => return Step::Advance(rng.below(3) * SECOND_NS),
            5 | 6 => return Step::ToNextDue(*rng.pick(&[0, 0, 0, 1, 999_999_999, SECOND_NS, 5 * SECOND_NS])),
            DRAIN => return Step::Drain,
            8 => return Step::Relocate(id, u32::try_from(rng.between(1, 9)).unwrap()),
            RESTART => return Step::Restart(rng.below(3_000), rng.below(20_000) as i64 - 10_000),
            PUT | 11 => Command::Put {
                pri,
                delay_s: self.seconds(rng),
                ttr_s: self.seconds(rng).max(1),
                body: Box::from(*rng.pick(&BODIES)),
            },
            12 => Command::Use(tube),
            RESERVE => Command::Reserve { timeout_s: None },
            14 => Command::Reserve { timeout_s: Some(self.seconds(rng).min(i32::MAX as u32)) },
            15 => Command::ReserveJob(id),
            16 => Command::Delete(id),
            17 => Command::Release { id, pri, delay_s: self.seconds(rng) },
            18 => Command::Bury { id, pri },
            19 => Command::Touch(id),
            20 => Command::Watch(tube),
            21 => Command::Ignore(tube),
            22 => Command::Peek(id),
            23 => rng.pick(&[Command::PeekReady, Command::PeekDelayed, Command::PeekBuried]).clone(),
            24 => Command::Kick(*rng.pick(&[0, 1, 2, 5, u32::MAX])),
            25 => Command::KickJob(id),
            26 => Command::Stats,
            27 => Command::StatsJob(id),
            28 => Command::StatsTube(tube),
            29 => Command::ListTubes,
            30 => rng.pick(&[Command::ListTubeUsed, Command::ListTubesWatched]).clone(),
            _ => Command::PauseTube { tube, delay_s: self.seconds(rng) },
        };
        Step::Command(session, command)
    }
}

const CONNECT: usize = 0;
const DISCONNECT: usize = 1;
const ADVANCE: usize = 3;
const DRAIN: usize = 7;
const RESTART: usize = 9;
const PUT: usize = 10;
const RESERVE: usize = 13;

/// Draws the steps of a seed. Ids are drawn near the last one that the puts among the steps can have been given.
fn steps_of(seed: u64) -> (u32, Vec<Step>) {
    let mut rng = Rng::new(seed);
    let refusals_per_mille = *rng.pick(&[0, 0, 30, 400]);
    let mixture = Mixture::draw(&mut rng);
    let mut ids_below = 1;
    let steps = (0..STEPS).map(|_| {
        let step = mixture.step(&mut rng, ids_below);
        if matches!(step, Step::Command(_, Command::Put { .. })) && rng.chance(9, 10) {
            ids_below += 1;
        }
        step
    });
    (refusals_per_mille, steps.collect())
}

/// Plays the steps; how many commands were compared, or the step that went wrong and why.
fn play(seed: u64, refusals_per_mille: u32, steps: &[Step]) -> Result<u64, (usize, String)> {
    let mut duel = Duel::new(seed, refusals_per_mille);
    let mut at = 0;
    let played = catch_unwind(AssertUnwindSafe(|| {
        while at < steps.len() {
            duel.step(&steps[at])?;
            if at % 100 == 0 {
                duel.engine.check_invariants();
            }
            at += 1;
        }
        duel.state_matches()
    }));
    match played {
        Ok(Ok(())) => Ok(duel.commands),
        Ok(Err(why)) => Err((at, why)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err((at, format!("panic: {}", text.unwrap_or_default())))
        }
    }
}

/// Leaves out ever smaller pieces of the steps for as long as something goes wrong without them.
fn shrink(seed: u64, refusals_per_mille: u32, mut steps: Vec<Step>) -> (Vec<Step>, String) {
    let mut why = String::new();
    let mut piece = steps.len().div_ceil(2);
    while piece > 0 {
        let mut begin = 0;
        let mut shorter = false;
        while begin < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(begin..(begin + piece).min(steps.len()));
            match play(seed, refusals_per_mille, &fewer) {
                Err((at, message)) => {
                    fewer.truncate(at + 1);
                    steps = fewer;
                    why = message;
                    shorter = true;
                }
                Ok(_) => begin += piece,
            }
        }
        if !(shorter && piece == 1) {
            piece /= 2;
        }
    }
    (steps, why)
}

#[test]
fn engine_and_model_agree_on_every_reply_and_every_log_record() {
    let begin = std::time::Instant::now();
    let first: u64 = std::env::var("MODEL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let workers: u64 = 2;
    let commands: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers)
            .map(|worker| {
                scope.spawn(move || {
                    let mut commands = 0;
                    for seed in (first..first + RUNS).filter(|seed| seed % workers == worker) {
                        let (refusals_per_mille, steps) = steps_of(seed);
                        match play(seed, refusals_per_mille, &steps) {
                            Ok(count) => commands += count,
                            Err((at, first_why)) => {
                                let (fewest, why) =
                                    shrink(seed, refusals_per_mille, steps[..=at.min(steps.len() - 1)].to_vec());
                                let list: Vec<String> = fewest.iter().map(|step| format!("  {step:?}")).collect();
                                panic!(
                                    "MODEL_SEED={seed}, step {at}: {first_why}\ncut down to\n{}\n{why}",
                                    list.join("\n")
                                );
                            }
                        }
                    }
                    commands
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no mismatch")).sum()
    });
    let rate = commands as f64 / begin.elapsed().as_secs_f64();
    println!("{commands} commands compared in {RUNS} runs from seed {first}, {rate:.0} a second");
    assert!(commands >= COMMANDS_MIN, "only {commands} commands were compared");
}
