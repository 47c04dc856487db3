//! Replays a history in the order that the server traced, in the reference model.
//!
//! A reserve counts as a poll at the moment its reply was decided: that is when it has an effect.

use std::collections::{BTreeMap, BTreeSet};

use tubes_core::journal::{Counters, LoggedState, StateFields};
use tubes_protocol::{Command as Wire, Line, parse_line};

use crate::model::{Change, Model, Moment, Place, SECOND_NS, ShadowJob, ShadowLog};

use super::parse::{Command, Connection, Decision, Event, History, Invocation, Reply};
use super::{Kind, LATE_NS_MAX, Report};

const MS_NS: u64 = 1_000_000;
/// After a restart a delay goes on by wall time, in whole ms: it may end a little earlier or later than it would have.
const RECOVERED_DELAY_MS: u64 = 3;
/// Of so many delays that may be over or not, every combination is tried.
const VAGUE_MAX: usize = 8;
/// A turn's clock may be read a little before a command arrives in it.
const EARLY_NS: u64 = 100 * MS_NS;

pub(super) fn check(history: &History, report: &mut Report) {
    let mut replay = Replay {
        history,
        report,
        model: Model::new(u32::MAX),
        now: Moment::default(),
        started_ms: 0,
        unsettled: BTreeMap::new(),
        unknown_puts: BTreeMap::new(),
        tail: Vec::new(),
        vague: BTreeMap::new(),
        decided_ns: BTreeMap::new(),
        invoked_at_due: BTreeMap::new(),
    };
    // The first contradiction makes all behind it meaningless.
    let _ = replay.run();
}

/// The replay has found a violation and ends.
struct Stop;

/// What an unsettled job may be: as it is, or gone.
type Candidate = Option<ShadowJob>;

/// A command that may or may not have had an effect.
#[derive(Debug, Clone)]
enum Perhaps {
    Delete(u64),
    State {
        id: u64,
        pri: Option<u32>,
        becomes: LoggedState,
        delay_s: Option<u32>,
        at_ms: u64,
        counts: Counters,
    },
    /// All that is buried or delayed in these tubes may be ready.
    Kick(BTreeSet<Vec<u8>>),
}

struct Replay<'a> {
    history: &'a History,
    report: &'a mut Report,
    model: Model,
    now: Moment,
    /// When the generation was started.
    started_ms: u64,
    /// Jobs whose state nobody has asked for since the restart.
    unsettled: BTreeMap<u64, Vec<Candidate>>,
    /// Puts that may have had an effect, by the hash of their bodies: what they may have put.
    unknown_puts: BTreeMap<u64, Vec<ShadowJob>>,
    /// What may have happened at the end of the last generation.
    tail: Vec<Perhaps>,
    /// Delayed jobs that may be ready from this moment on, and must be when the model says so.
    vague: BTreeMap<u64, u64>,
    /// When the last reply to each connection was decided.
    decided_ns: BTreeMap<u64, u64>,
    /// When a delayed job became due, for the lateness of its delivery.
    invoked_at_due: BTreeMap<u64, u64>,
}

impl Replay<'_> {
    fn violation(&mut self, kind: Kind, what: String) -> Result<(), Stop> {
        self.report.add(kind, what);
        Err(Stop)
    }

    fn run(&mut self) -> Result<(), Stop> {
        let history = self.history;
        for (place, (generation, start_ns)) in history.starts.iter().enumerate() {
            let events = &history.events[generation];
            self.now = Moment { boot_ns: *start_ns, wall_ms: *start_ns / MS_NS };
            self.started_ms = self.now.wall_ms;
            let certain = events.iter().rposition(|event| self.is_answered(event)).map_or(0, |last| last + 1);
            for event in &events[..certain] {
                self.event(event)?;
            }
            let next_start_ns = history.starts.get(place + 1).map(|(_, start_ns)| *start_ns);
            if let Some(next_start_ns) = next_start_ns {
                self.end_generation(events, certain, *start_ns, next_start_ns);
            }
        }
        Ok(())
    }

    fn invocation(&self, event: &Event) -> Option<(&'_ Connection, &'_ Invocation)> {
        let Decision::Reply(number) = event.what else { return None };
        let connection = &self.history.connections[&event.connection?];
        let place = usize::try_from(number).ok()?.checked_sub(1)?;
        connection.commands.get(place).map(|invocation| (connection, invocation))
    }

    fn is_answered(&self, event: &Event) -> bool {
        self.invocation(event).is_some_and(|(_, invocation)| invocation.reply.is_some())
    }

    fn event(&mut self, event: &Event) -> Result<(), Stop> {
        let Some(key) = event.connection else { return Ok(()) };
        let session = session_of(key);
        let due_before = self.note_due(event.at_ns);
        // `DEADLINE_SOON` comes before the deadline itself, however late the turn is.
        let near = self.sessions_near_a_deadline(event.at_ns);
        self.now =
            Moment { boot_ns: event.at_ns.max(self.now.boot_ns), wall_ms: event.at_ns.max(self.now.boot_ns) / MS_NS };
        self.model.tick(self.now);
        self.invoked_at_due.extend(due_before);
        match event.what {
            Decision::Accept => {
                self.model.connect(session);
                Ok(())
            }
            Decision::Close => {
                if self.model.is_open(session) {
                    self.model.disconnect(self.now, session);
                }
                Ok(())
            }
            Decision::Said(_) | Decision::Step => Ok(()),
            Decision::Reply(number) => {
                let history = self.history;
                let place = usize::try_from(number).expect("counted") - 1;
                let invocation = &history.connections[&key].commands[place];
                let name = format!("command {number} of connection {key}");
                self.report.replayed += 1;
                let result = self.command(key, invocation, &near, &name);
                self.decided_ns.insert(key, event.at_ns);
                self.model.answers().clear();
                self.model.changes().clear();
                result
            }
        }
    }

    /// Delayed jobs that become due up to `at_ns`, and when.
    fn note_due(&self, at_ns: u64) -> Vec<(u64, u64)> {
        let due = self.model.jobs().iter().filter_map(|(id, job)| match job.place {
            Place::Delayed { due_ns } if due_ns <= at_ns => Some((id, due_ns)),
            _ => None,
        });
        due.collect()
    }

    fn sessions_near_a_deadline(&self, at_ns: u64) -> BTreeSet<u32> {
        let near = self.model.jobs().values().filter_map(|job| match job.place {
            Place::Reserved { holder, deadline_ns } if deadline_ns <= at_ns + SECOND_NS => Some(holder),
            _ => None,
        });
        near.collect()
    }

    fn command(&mut self, key: u64, invocation: &Invocation, near: &BTreeSet<u32>, name: &str) -> Result<(), Stop> {
        let session = session_of(key);
        let reply = invocation.reply.as_ref().map(|(reply, _)| reply);
        let line;
        let wire = match &invocation.command {
            Command::Put { pri, delay_s, ttr_s, hash, .. } => {
                if let Some(Reply::Inserted(id)) = reply {
                    self.model.set_next_id(*id);
                }
                let body = hash.to_le_bytes().into();
                Wire::Put { pri: *pri, delay_s: *delay_s, ttr_s: (*ttr_s).max(1), body }
            }
            Command::Line(text) => {
                line = text.clone();
                match parse_line(line.as_bytes()) {
                    Ok(Line::Command(command)) => command,
                    // Nothing that has an effect.
                    _ => return Ok(()),
                }
            }
        };
        if self.settles(&wire, reply, name)? {
            return Ok(());
        }
        if let Wire::Reserve { timeout_s } = wire {
            return self.reserve(key, invocation, timeout_s, near, name);
        }
        let before = (!self.vague_now().is_empty()).then(|| self.model.clone());
        let admits = reply != Some(&Reply::Line("OUT_OF_MEMORY".to_owned()));
        self.model.handle(self.now, session, &wire, &mut || admits);
        let Some(reply) = reply else { return Ok(()) };
        let mut expected = self.said(session);
        if !same(&expected, reply)
            && let Some(before) = before
        {
            // A delay that was going on at a restart may be over already.
            self.model = before.clone();
            let vague = self.vague_now();
            for over in 1..1_usize << vague.len().min(VAGUE_MAX) {
                self.model = before.clone();
                for (place, id) in vague.iter().enumerate() {
                    if over >> place & 1 == 1 {
                        self.model.end_delay(*id);
                    }
                }
                self.model.handle(self.now, session, &wire, &mut || admits);
                expected = self.said(session);
                if same(&expected, reply) {
                    break;
                }
            }
        }
        if same(&expected, reply) {
            return Ok(());
        }
        let what = format!("{name}, {:?}: the reply is {reply:?}, by the rules it is {expected:?}", invocation.command);
        self.violation(Kind::WrongReply, what)
    }

    fn vague_now(&self) -> Vec<u64> {
        let is_delayed =
            |id: &u64| self.model.jobs().get(*id).is_some_and(|job| matches!(job.place, Place::Delayed { .. }));
        self.vague
            .iter()
            .filter(|(id, from_ns)| **from_ns <= self.now.boot_ns && is_delayed(id))
            .map(|(id, _)| *id)
            .collect()
    }

    /// What the model has said to `session` last.
    fn said(&mut self, session: u32) -> Option<Reply> {
        let said = self.model.answers().iter().filter(|(to, _)| *to == session).last().map(|(_, bytes)| bytes.to_vec());
        self.model.answers().clear();
        said.map(|bytes| in_words(&bytes))
    }

    fn reserve(
        &mut self,
        key: u64,
        invocation: &Invocation,
        timeout_s: Option<u32>,
        near: &BTreeSet<u32>,
        name: &str,
    ) -> Result<(), Stop> {
        let session = session_of(key);
        let poll = Wire::Reserve { timeout_s: Some(0) };
        let now_ns = self.now.boot_ns;
        let Some((reply, _)) = &invocation.reply else {
            self.model.handle(self.now, session, &poll, &mut || true);
            return Ok(());
        };
        let asked_ns = invocation.at_ns.max(self.decided_ns.get(&key).copied().unwrap_or(0));
        if *reply == Reply::Line("DEADLINE_SOON".to_owned()) {
            if near.contains(&session) {
                return Ok(());
            }
            return self.violation(Kind::DeadlineSoon, format!("{name}: no deadline of a job that it holds is near"));
        }
        if let Reply::Reserved { id, .. } = reply {
            if self.vague.get(id).is_some_and(|from_ns| *from_ns <= now_ns) {
                self.model.end_delay(*id);
            }
            let job = self.model.jobs().get(*id).cloned();
            self.model.handle(self.now, session, &poll, &mut || true);
            let expected = self.said(session);
            if expected.as_ref() == Some(reply) {
                if let Some(due_ns) = self.invoked_at_due.remove(id).filter(|due_ns| asked_ns < *due_ns) {
                    self.note_lateness(now_ns.saturating_sub(due_ns), name)?;
                }
                return Ok(());
            }
            let what = format!("{name}: the reply is {reply:?} (it was {job:?}), by the rules it is {expected:?}");
            let kind = match job {
                None if self.unsettled.contains_key(id) => Kind::Unsettled,
                None => Kind::UnknownJob,
                Some(job) => match job.place {
                    Place::Reserved { .. } => Kind::Overlap,
                    Place::Delayed { .. } => Kind::Early,
                    Place::Ready if self.model.is_paused(job.tube) => Kind::Early,
                    Place::Ready => Kind::Priority,
                    Place::Buried { .. } => Kind::WrongReply,
                },
            };
            return self.violation(kind, what);
        }
        if *reply != Reply::Line("TIMED_OUT".to_owned()) {
            return self.violation(Kind::WrongReply, format!("{name}: {reply:?} answers a reserve"));
        }
        let Some(timeout_s) = timeout_s else {
            return self.violation(Kind::TimeoutEarly, format!("{name}: a reserve without a timeout has timed out"));
        };
        let timeout_ns = u64::from(timeout_s) * SECOND_NS;
        if now_ns + EARLY_NS < asked_ns + timeout_ns {
            let waited_ns = now_ns.saturating_sub(asked_ns);
            return self
                .violation(Kind::TimeoutEarly, format!("{name}: TIMED_OUT after {waited_ns} ns of {timeout_s} s"));
        }
        self.model.handle(self.now, session, &poll, &mut || true);
        let expected = self.said(session);
        if matches!(expected, Some(Reply::Reserved { .. })) {
            return self.violation(Kind::Missed, format!("{name}: TIMED_OUT, by the rules it is {expected:?}"));
        }
        if timeout_s > 0 {
            self.note_lateness(now_ns.saturating_sub(asked_ns + timeout_ns), name)?;
        }
        Ok(())
    }

    fn note_lateness(&mut self, late_ns: u64, name: &str) -> Result<(), Stop> {
        let bucket = [MS_NS, 10 * MS_NS, 100 * MS_NS, SECOND_NS].iter().filter(|limit| late_ns >= **limit).count();
        self.report.lateness[bucket] += 1;
        if late_ns > LATE_NS_MAX {
            return self.violation(Kind::Late, format!("{name}: {late_ns} ns late"));
        }
        Ok(())
    }

    /// Whether the command only asks for something that a restart has left open, which its reply settles.
    fn settles(&mut self, wire: &Wire<'_>, reply: Option<&Reply>, name: &str) -> Result<bool, Stop> {
        let id = match wire {
            Wire::Peek(id) | Wire::StatsJob(id) => *id,
            Wire::Delete(id)
            | Wire::ReserveJob(id)
            | Wire::Touch(id)
            | Wire::KickJob(id)
            | Wire::Release { id, .. }
            | Wire::Bury { id, .. } => {
                if self.unsettled.contains_key(id) {
                    self.violation(
                        Kind::Unsettled,
                        format!("{name}: nobody has asked for job {id} since the restart"),
                    )?;
                }
                return Ok(false);
            }
            _ => return Ok(false),
        };
        if let Some(Reply::Found { hash, .. }) = reply
            && !self.unsettled.contains_key(&id)
            && !self.model.jobs().contains(id)
            && let Some(puts) = self.unknown_puts.remove(hash)
        {
            // An unknown put has had an effect.
            let mut candidates: Vec<Candidate> = puts.into_iter().map(Some).collect();
            extend_by_all(&mut candidates, id, &self.tail);
            self.unsettled.insert(id, candidates);
        }
        let Some(candidates) = self.unsettled.get_mut(&id) else { return Ok(false) };
        match reply {
            None => Ok(true),
            Some(Reply::Line(line)) if line == "NOT_FOUND" => {
                let may_be_gone = candidates.contains(&None);
                self.unsettled.remove(&id);
                if !may_be_gone {
                    self.violation(Kind::WrongRecovery, format!("{name}: job {id} is gone"))?;
                }
                Ok(true)
            }
            Some(Reply::Found { hash, .. }) => {
                candidates.retain(|candidate| candidate.as_ref().is_some_and(|job| *job.body == hash.to_le_bytes()));
                if candidates.is_empty() {
                    self.violation(Kind::WrongRecovery, format!("{name}: job {id} is there with such a body"))?;
                }
                Ok(true)
            }
            Some(Reply::Text(text)) => {
                let shown = Shown::of(text);
                let now_ms = self.now.wall_ms;
                // When a delay whose beginning is known only roughly may have been over at the earliest.
                let vague_ms = self.vague.get(&id).map_or(u64::MAX, |from_ns| from_ns / MS_NS);
                let matching = candidates.iter().flatten().find(|job| shown.is(job, now_ms, vague_ms)).cloned();
                let candidates = std::mem::take(candidates);
                self.unsettled.remove(&id);
                let Some(mut job) = matching else {
                    let what = format!("{name}: job {id} is {shown:?}, but may only be one of {candidates:?}");
                    self.violation(Kind::WrongRecovery, what)?;
                    return Ok(true);
                };
                if job.state.state == LoggedState::Delayed {
                    // It began between the time it was asked for and the restart; the time left tells it by the second.
                    let began_until_ms = self.started_ms + u64::from(job.state.delay_s) * 1_000;
                    let from_ms = job.state.due_ms.min(vague_ms).max(now_ms + shown.time_left_s * 1_000);
                    let until_ms = began_until_ms.min(now_ms + (shown.time_left_s + 1) * 1_000).max(from_ms);
                    self.vague.insert(id, from_ms.saturating_sub(RECOVERED_DELAY_MS) * MS_NS);
                    job.state.due_ms = until_ms + RECOVERED_DELAY_MS;
                }
                self.model.restore(self.now, id, &job, 0);
                Ok(true)
            }
            Some(other) => {
                self.violation(Kind::WrongReply, format!("{name}: {other:?}"))?;
                Ok(true)
            }
        }
    }

    /// The process was killed behind the events up to `certain`. What comes back is what the model has, but for what
    /// later or undecided commands may have changed.
    fn end_generation(&mut self, events: &[Event], certain: usize, start_ns: u64, next_start_ns: u64) {
        let tail = self.perhaps_done(&events[certain..], events, start_ns, next_start_ns);
        let next = Moment { boot_ns: next_start_ns, wall_ms: next_start_ns / MS_NS };
        let mut log = ShadowLog::new();
        let mut unsettled = std::mem::take(&mut self.unsettled);
        let vague_before = std::mem::take(&mut self.vague);
        for (id, _) in self.model.jobs().iter() {
            let mut job = self.model.logged(self.now, id);
            if job.state.state == LoggedState::Delayed {
                let due_ms = job.state.due_ms;
                let from_ms = vague_before.get(&id).map_or(due_ms, |from_ns| due_ms.min(from_ns / MS_NS));
                self.vague.insert(id, from_ms.saturating_sub(RECOVERED_DELAY_MS) * MS_NS);
                job.state.due_ms = due_ms + RECOVERED_DELAY_MS;
            }
            let mut candidates = vec![Some(job.clone())];
            extend_by_all(&mut candidates, id, &tail);
            if candidates.len() > 1 {
                unsettled.insert(id, candidates);
            } else {
                log.apply(&Change::Put { id, job });
            }
        }
        for (id, candidates) in &mut unsettled {
            if !self.model.jobs().contains(*id) {
                // What was vague about it stays so until somebody asks.
                self.vague.extend(vague_before.get_key_value(id).map(|(id, from_ns)| (*id, *from_ns)));
                extend_by_all(candidates, *id, &tail);
            }
        }
        let next_id = self.model.next_id();
        self.model = Model::recovered(u32::MAX, next, &log, &[], next_id);
        self.unsettled = unsettled;
        self.tail = tail;
        self.invoked_at_due.clear();
    }

    /// The commands behind the last certain one, and those that were sent and never decided.
    fn perhaps_done(&mut self, tail: &[Event], all: &[Event], start_ns: u64, next_start_ns: u64) -> Vec<Perhaps> {
        let mut of_generation: BTreeSet<u64> = all.iter().filter_map(|event| event.connection).collect();
        let open = self.history.connections.iter();
        let never_accepted = open.filter(|(_, open)| (start_ns..next_start_ns).contains(&open.open_ns));
        of_generation.extend(never_accepted.map(|(key, _)| *key));
        let certain: BTreeSet<(u64, u64)> = {
            let tail: BTreeSet<(u64, u64)> = decisions_of(tail).collect();
            decisions_of(all).filter(|decision| !tail.contains(decision)).collect()
        };
        let mut done = Vec::new();
        for key in of_generation {
            let commands = &self.history.connections[&key].commands;
            let undecided: Vec<&Invocation> = (1..)
                .zip(commands)
                .filter(|(number, command)| !command.failed && !certain.contains(&(key, *number)))
                .map(|(_, command)| command)
                .collect();
            let mut tubes = BTreeSet::from([self.model.used_tube(session_of(key)).unwrap_or(b"default").to_vec()]);
            for invocation in undecided {
                self.perhaps(invocation, &mut tubes, &mut done);
            }
        }
        done
    }

    fn perhaps(&mut self, invocation: &Invocation, tubes: &mut BTreeSet<Vec<u8>>, done: &mut Vec<Perhaps>) {
        let at_ms = invocation.at_ns / MS_NS;
        let line = match &invocation.command {
            Command::Put { pri, delay_s, ttr_s, hash, .. } => {
                let state = if *delay_s > 0 { LoggedState::Delayed } else { LoggedState::Ready };
                let state = StateFields {
                    state,
                    pri: *pri,
                    delay_s: *delay_s,
                    due_ms: at_ms + u64::from(*delay_s) * 1_000,
                    bury_order: 0,
                    counters: Counters::default(),
                };
                // The tube is known only if the connection has not chosen another one just before.
                let puts = tubes.iter().map(|tube| ShadowJob {
                    tube: tube.as_slice().into(),
                    body: hash.to_le_bytes().into(),
                    ttr_s: (*ttr_s).max(1),
                    created_ms: at_ms,
                    state,
                });
                self.unknown_puts.insert(*hash, puts.collect());
                return;
            }
            Command::Line(line) => line,
        };
        let Ok(Line::Command(command)) = parse_line(line.as_bytes()) else { return };
        let state = |id, pri, becomes, delay_s, counts| Perhaps::State { id, pri, becomes, delay_s, at_ms, counts };
        let none = Counters::default();
        match command {
            Wire::Use(tube) => {
                tubes.insert(tube.to_vec());
            }
            Wire::Delete(id) => done.push(Perhaps::Delete(id)),
            Wire::Release { id, pri, delay_s } => {
                let becomes = if delay_s > 0 { LoggedState::Delayed } else { LoggedState::Ready };
                done.push(state(id, Some(pri), becomes, Some(delay_s), Counters { releases: 1, ..none }));
            }
            Wire::Bury { id, pri } => {
                done.push(state(id, Some(pri), LoggedState::Buried, None, Counters { buries: 1, ..none }));
            }
            Wire::KickJob(id) => done.push(state(id, None, LoggedState::Ready, None, Counters { kicks: 1, ..none })),
            Wire::ReserveJob(id) => done.push(state(id, None, LoggedState::Ready, None, none)),
            Wire::Kick(_) => done.push(Perhaps::Kick(tubes.clone())),
            _ => {}
        }
    }
}

fn decisions_of(events: &[Event]) -> impl Iterator<Item = (u64, u64)> {
    events.iter().filter_map(|event| match (event.what, event.connection) {
        (Decision::Reply(number), Some(key)) => Some((key, number)),
        _ => None,
    })
}

/// Adds what each candidate may have become by any of the commands, in either order of two of them: nobody knows which
/// of two connections came first.
fn extend_by_all(candidates: &mut Vec<Candidate>, id: u64, tail: &[Perhaps]) {
    for _ in 0..2 {
        for perhaps in tail {
            extend(candidates, id, perhaps);
        }
    }
}

/// Adds what each candidate may have become.
fn extend(candidates: &mut Vec<Candidate>, id: u64, perhaps: &Perhaps) {
    let mut more: Vec<Candidate> = Vec::new();
    for candidate in candidates.iter() {
        let Some(job) = candidate else { continue };
        match perhaps {
            Perhaps::Delete(other) if *other == id => more.push(None),
            Perhaps::State { id: other, pri, becomes, delay_s, at_ms, counts } if *other == id => {
                let mut job = job.clone();
                let state = &mut job.state;
                state.state = *becomes;
                state.pri = pri.unwrap_or(state.pri);
                state.delay_s = delay_s.unwrap_or(state.delay_s);
                state.due_ms =
                    if *becomes == LoggedState::Delayed { at_ms + u64::from(state.delay_s) * 1_000 } else { 0 };
                state.bury_order = if *becomes == LoggedState::Buried { u64::from(u32::MAX) } else { 0 };
                state.counters.releases += counts.releases;
                state.counters.buries += counts.buries;
                state.counters.kicks += counts.kicks;
                more.push(Some(job));
            }
            Perhaps::Kick(tubes) if tubes.contains(&*job.tube) && job.state.state != LoggedState::Ready => {
                let mut job = job.clone();
                job.state.state = LoggedState::Ready;
                job.state.due_ms = 0;
                job.state.bury_order = 0;
                job.state.counters.kicks += 1;
                more.push(Some(job));
            }
            _ => {}
        }
    }
    for candidate in more {
        if !candidates.contains(&candidate) {
            candidates.push(candidate);
        }
    }
}

/// What `stats-job` shows of a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shown {
    tube: String,
    state: String,
    numbers: [u64; 6],
    time_left_s: u64,
}

impl Shown {
    /// Reads the text; age, file, reserves and timeouts are left out: recovery may know them better or worse.
    fn of(text: &str) -> Shown {
        let values: BTreeMap<&str, &str> = text.split('|').filter_map(|line| line.split_once(": ")).collect();
        let word = |key: &str| values.get(key).copied().unwrap_or_default().trim_matches('"').to_owned();
        let number = |key: &str| word(key).parse().unwrap_or(u64::MAX);
        Shown {
            tube: word("tube"),
            state: word("state"),
            numbers: ["pri", "delay", "ttr", "releases", "buries", "kicks"].map(number),
            time_left_s: number("time-left"),
        }
    }

    /// Whether this may be `job`, whose delay may be over from `vague_ms` on if that is earlier than it says.
    fn is(&self, job: &ShadowJob, now_ms: u64, vague_ms: u64) -> bool {
        let fields = &job.state;
        let fits = match fields.state {
            LoggedState::Ready => self.state == "ready",
            // A delay may be over by the time somebody asks.
            LoggedState::Delayed => {
                let due_ms = fields.due_ms.min(vague_ms);
                self.state == "delayed" || self.state == "ready" && due_ms <= now_ms + RECOVERED_DELAY_MS
            }
            LoggedState::Buried => self.state == "buried",
        };
        let counters = [fields.counters.releases, fields.counters.buries, fields.counters.kicks];
        let numbers = [fields.pri, fields.delay_s, job.ttr_s].into_iter().chain(counters).map(u64::from);
        fits && self.tube.as_bytes() == &*job.tube && numbers.eq(self.numbers)
    }
}

/// A reply of the model as a history has it; its bodies are hashes already.
pub(super) fn in_words(bytes: &[u8]) -> Reply {
    let line_end = bytes.windows(2).position(|pair| pair == b"\r\n").unwrap_or(bytes.len());
    let line = String::from_utf8_lossy(&bytes[..line_end]).into_owned();
    let rest = bytes.get(line_end + 2..).unwrap_or_default();
    let id = || line.split(' ').nth(1).and_then(|id| id.parse().ok()).unwrap_or(0);
    let hash = || rest.get(..8).map_or(0, |hash| u64::from_le_bytes(hash.try_into().expect("8 bytes")));
    match line.split(' ').next() {
        Some("INSERTED") => Reply::Inserted(id()),
        Some("RESERVED") => Reply::Reserved { id: id(), hash: hash() },
        Some("FOUND") => Reply::Found { id: id(), hash: hash() },
        Some("OK") => {
            let text = rest.strip_suffix(b"\r\n").unwrap_or(rest);
            Reply::Text(String::from_utf8_lossy(text).replace('\n', "|"))
        }
        _ => Reply::Line(line),
    }
}

/// Whether the model says what the server said; of `stats-job` only what the log keeps exactly.
pub(super) fn same(expected: &Option<Reply>, reply: &Reply) -> bool {
    match (expected, reply) {
        (Some(Reply::Text(expected)), Reply::Text(reply)) if reply.contains("|time-left: ") => {
            Shown { time_left_s: 0, ..Shown::of(expected) } == Shown { time_left_s: 0, ..Shown::of(reply) }
        }
        (Some(expected), reply) => expected == reply,
        (None, _) => false,
    }
}

fn session_of(key: u64) -> u32 {
    u32::try_from(key).expect("connections of a history are numbered from a small number")
}
