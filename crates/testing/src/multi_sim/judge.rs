//! What an owner may say: every message that leaves it is compared with the rules.
//!
//! Owns: the reference model of one owner's jobs, the waits and offers of its sessions as its messages show them.
//! Never: looks into the engine. The model decides all but who of several waiting sessions gets a job; what makes that
//! right or wrong is written here a second time: only a free job may be handed out or offered, the best first, and a
//! session hears that there is none only if there is none.

use std::collections::{BTreeMap, VecDeque};

use tubes_core::PARTITIONS;
use tubes_link::{Outcome, ToFrontend, ToOwner};
use tubes_protocol::{Command, Line, parse_line};

use crate::model::{Change, Model, Moment, Place};
use crate::sim::ledger::Ledger;

use super::world::Checked;

/// How long an offer lasts, in ns.
const OFFER_NS: u64 = 250_000_000;

/// Frontend and session.
pub(super) type Who = (u16, u64);

/// A message to a frontend, kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    Reply { outcome: Outcome, bytes: Vec<u8> },
    Served { wait: u32, outcome: Outcome, bytes: Vec<u8> },
    Offer { wait: u32, offer: u64, pri: u32, id: u64 },
    Nothing { wait: u32, is_soon: bool },
    Gone { wait: u32 },
    Withdrawn { wait: u32 },
    Names(Vec<u8>),
}

impl Said {
    pub(super) fn of(message: ToFrontend<'_>) -> Said {
        match message {
            ToFrontend::Reply { outcome, bytes } => Said::Reply { outcome, bytes: bytes.to_vec() },
            ToFrontend::Served { wait, outcome, bytes } => Said::Served { wait, outcome, bytes: bytes.to_vec() },
            ToFrontend::Offer { wait, offer, pri, id } => Said::Offer { wait, offer, pri, id },
            ToFrontend::Nothing { wait, is_soon } => Said::Nothing { wait, is_soon },
            ToFrontend::Gone { wait } => Said::Gone { wait },
            ToFrontend::Withdrawn { wait } => Said::Withdrawn { wait },
            ToFrontend::Names(bytes) => Said::Names(bytes.to_vec()),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    number: u32,
    /// Several owners are asked.
    is_ask: bool,
    is_poll: bool,
    in_margin: bool,
    /// It stands in the queue: a job that becomes free must come to it.
    is_parked: bool,
}

#[derive(Debug, Clone, Copy)]
struct Offer {
    id: u64,
    who: Who,
    until_ns: u64,
}

/// How often each thing was seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) offers: u64,
    pub(super) accepted: u64,
    pub(super) gone: u64,
    pub(super) returned: u64,
    pub(super) revoked: u64,
    pub(super) expired: u64,
    pub(super) crossings: u64,
    pub(super) served: u64,
    pub(super) nothings: u64,
    pub(super) draining: u64,
    pub(super) kept: u64,
}

/// One owner's life under observation.
pub(super) struct Judge {
    pub(super) model: Model,
    sessions: BTreeMap<Who, u32>,
    next_session: u32,
    waits: BTreeMap<Who, Wait>,
    offers: BTreeMap<u64, Offer>,
    /// The wait that has just been answered, for withdrawals that cross.
    answered: BTreeMap<Who, u32>,
    /// Since when each job can be had by anybody.
    free_since_ns: BTreeMap<u64, u64>,
    pub(super) seen: Seen,
    /// What came behind a reserve that waits: kind and payload.
    behind: BTreeMap<Who, VecDeque<(u8, Vec<u8>)>>,
    /// Ids that puts were answered with, and messages that were carried out, since the last look.
    pub(super) inserted: Vec<u64>,
    pub(super) executed: Vec<(Who, u8, Vec<u8>)>,
}

impl Judge {
    pub(super) fn new(model: Model) -> Judge {
        Judge {
            model,
            sessions: BTreeMap::new(),
            next_session: 1,
            waits: BTreeMap::new(),
            offers: BTreeMap::new(),
            answered: BTreeMap::new(),
            free_since_ns: BTreeMap::new(),
            seen: Seen::default(),
            behind: BTreeMap::new(),
            inserted: Vec::new(),
            executed: Vec::new(),
        }
    }

    pub(super) fn offer_count(&self) -> usize {
        self.offers.len()
    }

    /// When something is due next.
    pub(super) fn next_due(&self) -> Option<u64> {
        let offers = self.offers.values().map(|offer| offer.until_ns);
        self.model.next_due().into_iter().chain(offers).min()
    }

    fn session(&mut self, who: Who) -> u32 {
        if let Some(session) = self.sessions.get(&who) {
            return *session;
        }
        let session = self.next_session;
        self.next_session += 1;
        self.sessions.insert(who, session);
        self.model.connect_remote(session);
        session
    }

    fn is_offered(&self, id: u64) -> bool {
        self.offers.values().any(|offer| offer.id == id)
    }

    /// The best job that `session` could be given, by priority and id; `with_offered` counts those that others consider.
    fn best(&self, session: u32, with_offered: bool) -> Option<(u32, u64)> {
        let wanted = self
            .model
            .servable()
            .filter(|(_, id, tube)| self.model.watches(session, *tube) && (with_offered || !self.is_offered(*id)));
        wanted.map(|(pri, id, _)| (pri, id)).min()
    }

    /// A job that has been free since before `since_ns` and that lies in one of `tubes`.
    pub(super) fn free_before(&self, since_ns: u64, tubes: &[Box<[u8]>]) -> Option<u64> {
        let is_old = |id: u64| self.free_since_ns.get(&id).is_some_and(|free_ns| *free_ns < since_ns);
        let mut servable = self.model.servable();
        servable
            .find(|(_, id, tube)| is_old(*id) && tubes.iter().any(|name| **name == *self.model.tube_name(*tube)))
            .map(|(_, id, _)| id)
    }

    /// Time has come to `now`.
    pub(super) fn tick(&mut self, now: Moment) {
        self.model.tick(now);
        let due: Vec<u64> =
            self.offers.iter().filter(|(_, offer)| offer.until_ns <= now.boot_ns).map(|(number, _)| *number).collect();
        self.seen.expired += due.len() as u64;
        for number in due {
            self.offers.remove(&number);
        }
    }

    /// Offers whose job was taken away, or whose tube was paused, are no more.
    fn revoke(&mut self) {
        let free: Vec<u64> = self.model.servable().map(|(_, id, _)| id).collect();
        let before = self.offers.len();
        self.offers.retain(|_, offer| free.contains(&offer.id));
        self.seen.revoked += (before - self.offers.len()) as u64;
    }

    fn give_back(&mut self, who: Who) {
        let before = self.offers.len();
        self.offers.retain(|_, offer| offer.who != who);
        self.seen.returned += (before - self.offers.len()) as u64;
    }

    /// Whether messages of the session that are not about its wait are kept.
    fn is_waiting(&self, who: Who) -> bool {
        let is_parked = self.waits.get(&who).is_some_and(|wait| wait.is_parked);
        is_parked || self.offers.values().any(|offer| offer.who == who)
    }

    /// A message has come: carries it out by the rules, or keeps it, and compares what was said because of it.
    pub(super) fn message(
        &mut self,
        now: Moment,
        who: Who,
        (kind, payload): (u8, &[u8]),
        said: Vec<(Who, Said)>,
        context: &mut Context,
    ) -> Checked {
        let message = ToOwner::read(kind, payload).map_err(|error| error.to_string())?;
        let is_about_wait =
            matches!(message, ToOwner::Ask { .. } | ToOwner::Accept { .. } | ToOwner::Withdraw { .. } | ToOwner::End);
        let mut said = VecDeque::from(said);
        if !is_about_wait && self.is_waiting(who) {
            self.seen.kept += 1;
            self.behind.entry(who).or_default().push_back((kind, payload.to_vec()));
        } else {
            self.execute(now, who, (kind, payload), &mut said, context)?;
        }
        self.rest(now, said, context)
    }

    /// Carries a message out and takes its own answer from the front of what was said.
    fn execute(
        &mut self,
        now: Moment,
        who: Who,
        (kind, payload): (u8, &[u8]),
        said: &mut VecDeque<(Who, Said)>,
        context: &mut Context,
    ) -> Checked {
        let message = ToOwner::read(kind, payload).map_err(|error| error.to_string())?;
        if message == ToOwner::End {
            self.end(now, who);
            self.revoke();
            return Ok(());
        }
        if matches!(message, ToOwner::Line(_) | ToOwner::Put { .. } | ToOwner::ListTubes) {
            self.executed.push((who, kind, payload.to_vec()));
        }
        let session = self.session(who);
        match message {
            ToOwner::Line(line) | ToOwner::Announce(line) => {
                let Ok(Line::Command(command)) = parse_line(line) else { return Err("no command".to_owned()) };
                self.command(now, session, &command, context)?;
                let expected = self.answer(session)?;
                self.revoke();
                if matches!(message, ToOwner::Line(_)) {
                    self.own_reply(who, session, &expected, said)?;
                }
            }
            ToOwner::Put { pri, delay_s, ttr_s, body } => {
                if context.is_draining {
                    self.model.drain();
                }
                let count = context.id_counts.pop_front().ok_or("a put draws no id")?;
                self.model.set_next_id(count * PARTITIONS as u64 + self.partition(session)?);
                let command = Command::Put { pri, delay_s, ttr_s, body: body.into() };
                self.command(now, session, &command, context)?;
                let expected = self.answer(session)?;
                if let Some(id) = expected.strip_prefix(b"INSERTED ") {
                    let id = String::from_utf8_lossy(id).trim().parse().map_err(|_| "an id is no number".to_owned())?;
                    self.inserted.push(id);
                    self.place(id, context)?;
                } else if expected.starts_with(b"DRAINING") {
                    self.seen.draining += 1;
                }
                self.own_reply(who, session, &expected, said)?;
            }
            ToOwner::Unuse => self.model.unuse(session),
            ToOwner::Unwatch(name) => {
                self.model.unwatch(session, name);
                let first = said.pop_front();
                if first != Some((who, Said::Reply { outcome: Outcome::Done, bytes: Vec::new() })) {
                    return Err(format!("the answer to an ignore is {first:?}"));
                }
            }
            ToOwner::ListTubes => {
                let Some((to, Said::Names(bytes))) = said.pop_front() else { return Err("no names".to_owned()) };
                let names = names_of(&bytes)?;
                let expected: Vec<&[u8]> = self.model.tube_names().collect();
                if to != who || !names.iter().map(Vec::as_slice).eq(expected.iter().copied()) {
                    return Err(format!("the tubes are said to be {names:?}, by the rules {expected:?}"));
                }
            }
            ToOwner::Reserve { wait, in_margin, is_poll } => {
                self.begin_wait(who, wait, false, is_poll, in_margin);
            }
            ToOwner::Ask { wait, in_margin, is_poll } => {
                let again = self.waits.get_mut(&who).filter(|before| before.number == wait && before.is_ask);
                match again.filter(|before| before.is_parked) {
                    Some(before) => before.in_margin = in_margin,
                    None => self.begin_wait(who, wait, true, is_poll, in_margin),
                }
            }
            ToOwner::Accept { wait, offer } => return self.accept(now, who, session, wait, offer, said),
            ToOwner::Withdraw { wait } => {
                if self.waits.get(&who).is_some_and(|open| open.number == wait) {
                    self.waits.remove(&who);
                    self.give_back(who);
                } else if self.answered.get(&who) == Some(&wait) {
                    self.seen.crossings += 1;
                }
                // What others were given because of it is said before.
                let at = said.iter().position(|said| *said == (who, Said::Withdrawn { wait }));
                let Some(at) = at else { return Err(format!("a withdrawal is not answered: {said:?}")) };
                said.remove(at);
            }
            ToOwner::End => unreachable!("handled above"),
        }
        Ok(())
    }

    /// What comes behind the put may ask where the log has put the job.
    fn place(&mut self, id: u64, context: &mut Context) -> Checked {
        match context.placed.pop_front() {
            Some((placed, segment)) if placed == id => self.model.set_file(id, segment),
            None if context.space.is_none() => {}
            other => return Err(format!("job {id} is accepted, but the log has placed {other:?}")),
        }
        Ok(())
    }

    /// Carries out what was kept of a session up to what has said `said`, which is at the front of `queue`.
    fn go_on_to(&mut self, now: Moment, queue: &mut VecDeque<(Who, Said)>, context: &mut Context) -> Checked {
        let Some((who, said)) = queue.front().cloned() else { return Ok(()) };
        loop {
            if self.is_waiting(who) {
                return Err(format!("{said:?} to session {who:?}, which waits"));
            }
            let next = self.behind.get_mut(&who).and_then(VecDeque::pop_front);
            let Some((kind, payload)) = next else {
                return Err(format!("{said:?} to session {who:?}, which has asked for nothing"));
            };
            let message = ToOwner::read(kind, &payload).map_err(|error| error.to_string())?;
            let is_it = !matches!(message, ToOwner::Announce(_) | ToOwner::Unuse);
            self.execute(now, who, (kind, &payload), queue, context)?;
            if is_it {
                return Ok(());
            }
        }
    }

    /// Carries out what was kept and says nothing, of sessions that wait no longer.
    fn go_on_silently(&mut self, now: Moment, context: &mut Context) -> Checked {
        let all: Vec<Who> = self.behind.keys().copied().collect();
        for who in all {
            while !self.is_waiting(who) {
                let next = self.behind.get_mut(&who).and_then(VecDeque::pop_front);
                let Some((kind, payload)) = next else {
                    self.behind.remove(&who);
                    break;
                };
                let message = ToOwner::read(kind, &payload).map_err(|error| error.to_string())?;
                if !matches!(message, ToOwner::Announce(_) | ToOwner::Unuse | ToOwner::Reserve { .. }) {
                    return Err(format!("{message:?} of session {who:?} is kept although nothing is waited for"));
                }
                self.execute(now, who, (kind, &payload), &mut VecDeque::new(), context)?;
            }
        }
        Ok(())
    }

    /// A session ends.
    fn end(&mut self, now: Moment, who: Who) {
        self.waits.remove(&who);
        self.answered.remove(&who);
        self.behind.remove(&who);
        self.give_back(who);
        if let Some(session) = self.sessions.remove(&who) {
            self.model.disconnect(now, session);
        }
    }

    /// All sessions of a frontend end. `said` is what the others heard of it.
    pub(super) fn frontend_gone(
        &mut self,
        now: Moment,
        frontend: u16,
        said: Vec<(Who, Said)>,
        context: &mut Context,
    ) -> Checked {
        let gone: Vec<Who> = self.sessions.range((frontend, 0)..=(frontend, u64::MAX)).map(|(who, _)| *who).collect();
        let mut said = VecDeque::from(said);
        // One after the other: what one gives back may go to the next, which then ends too.
        for who in gone {
            self.end(now, who);
            self.revoke();
            // As much of what was said as could be said now.
            while let Some(first) = said.front() {
                let before = (self.model.clone(), self.offers.clone(), self.waits.clone(), self.seen);
                if self.one(now, first).is_err() {
                    (self.model, self.offers, self.waits, self.seen) = before;
                    break;
                }
                said.pop_front();
            }
        }
        self.rest(now, said, context)
    }

    fn begin_wait(&mut self, who: Who, number: u32, is_ask: bool, is_poll: bool, in_margin: bool) {
        self.waits.insert(who, Wait { number, is_ask, is_poll, in_margin, is_parked: true });
    }

    fn accept(
        &mut self,
        now: Moment,
        who: Who,
        session: u32,
        wait: u32,
        offer: u64,
        said: &mut VecDeque<(Who, Said)>,
    ) -> Checked {
        let is_good = self.offers.get(&offer).copied().filter(|found| found.who == who);
        let Some(first) = said.pop_front() else {
            return Err(format!("an accept of offer {offer} is not answered"));
        };
        match is_good {
            None => {
                self.seen.gone += 1;
                if first != (who, Said::Gone { wait }) {
                    return Err(format!("offer {offer}, which is no more, is accepted: {first:?}"));
                }
            }
            Some(found) => {
                self.offers.remove(&offer);
                self.waits.remove(&who);
                self.answered.insert(who, wait);
                self.seen.accepted += 1;
                self.model.hand_over(now, session, found.id);
                let (expected, outcome) = (self.answer(session)?, self.held(session, found.id)?);
                if first != (who, Said::Served { wait, outcome, bytes: expected.clone() }) {
                    return Err(format!(
                        "offer {offer} of job {} is accepted, but the answer is {first:?} instead of {:?}",
                        found.id,
                        String::from_utf8_lossy(&expected)
                    ));
                }
            }
        }
        Ok(())
    }

    fn partition(&self, session: u32) -> Checked<u64> {
        let used = self.model.used_name(session).ok_or("a put into no tube")?;
        Ok(tubes_core::partition_of(used) as u64)
    }

    fn command(&mut self, now: Moment, session: u32, command: &Command<'_>, context: &mut Context) -> Checked {
        let mut has_asked_more = false;
        let mut space = || match &mut context.space {
            None => true,
            Some(answers) => answers.pop_front().unwrap_or_else(|| {
                has_asked_more = true;
                true
            }),
        };
        self.model.handle(now, session, command, &mut space);
        if has_asked_more {
            return Err(format!("engine and model do not ask for the same log space at {command:?}"));
        }
        Ok(())
    }

    /// What the model has just said to `session`.
    fn answer(&mut self, session: u32) -> Checked<Vec<u8>> {
        let said: Vec<(u32, Vec<u8>)> = self.model.answers().iter().map(|(who, bytes)| (who, bytes.to_vec())).collect();
        self.model.answers().clear();
        match <[(u32, Vec<u8>); 1]>::try_from(said) {
            Ok([(to, bytes)]) if to == session => Ok(bytes),
            other => Err(format!("the model says {other:?} to session {session}")),
        }
    }

    fn held(&self, session: u32, id: u64) -> Checked<Outcome> {
        match self.model.jobs().get(id).map(|job| job.place) {
            Some(Place::Reserved { holder, deadline_ns }) if holder == session => Ok(Outcome::Held { id, deadline_ns }),
            other => Err(format!("job {id} is {other:?}")),
        }
    }

    /// The first thing said must be this answer.
    fn own_reply(&self, who: Who, session: u32, expected: &[u8], said: &mut VecDeque<(Who, Said)>) -> Checked {
        let (outcome, bytes) = match said.pop_front() {
            Some((to, Said::Reply { outcome, bytes })) if to == who => (outcome, bytes),
            other => {
                return Err(format!("by the rules {:?}, but it is {other:?}", String::from_utf8_lossy(expected)));
            }
        };
        if !same_but_waiting(&bytes, expected) {
            let (bytes, expected) = (String::from_utf8_lossy(&bytes), String::from_utf8_lossy(expected));
            return Err(format!("the answer is {bytes:?}, by the rules {expected:?}"));
        }
        let right = match outcome {
            Outcome::Held { id, .. } => outcome == self.held(session, id)?,
            Outcome::NotFound => bytes == b"NOT_FOUND\r\n",
            Outcome::Refused => [&b"OUT_OF_MEMORY\r\n"[..], b"DRAINING\r\n", b"INTERNAL_ERROR\r\n"].contains(&&*bytes),
            Outcome::Done => !bytes.starts_with(b"RESERVED") && bytes != b"TOUCHED\r\n",
        };
        if right { Ok(()) } else { Err(format!("{:?} goes with {outcome:?}", String::from_utf8_lossy(&bytes))) }
    }

    /// What was said to sessions that wait, or wait no longer; then that nobody waits for what is there.
    pub(super) fn rest(&mut self, now: Moment, mut said: VecDeque<(Who, Said)>, context: &mut Context) -> Checked {
        self.revoke();
        while let Some((who, first)) = said.front() {
            let is_of_wait = |number: u32| self.waits.get(who).is_some_and(|wait| wait.number == number);
            let goes_on = match first {
                Said::Served { wait, .. } | Said::Offer { wait, .. } | Said::Nothing { wait, .. } => !is_of_wait(*wait),
                _ => true,
            };
            if goes_on {
                self.go_on_to(now, &mut said, context)?;
                self.revoke();
            } else {
                let first = said.pop_front().expect("just seen");
                self.one(now, &first)?;
            }
        }
        self.go_on_silently(now, context)?;
        let has_space_left = context.space.as_ref().is_some_and(|space| !space.is_empty());
        if has_space_left || !context.id_counts.is_empty() || !context.placed.is_empty() {
            return Err("the owner has asked for space or ids, or logged a job, without a reason".to_owned());
        }
        self.nobody_waits_in_vain()?;
        self.note_free(now);
        Ok(())
    }

    fn one(&mut self, now: Moment, (who, said): &(Who, Said)) -> Checked {
        let Some(session) = self.sessions.get(who).copied() else {
            return Err(format!("{said:?} to session {who:?}, which has ended"));
        };
        let Some(wait) = self.waits.get(who).copied() else {
            return Err(format!("{said:?} to session {who:?}, which waits for nothing"));
        };
        let number = match said {
            Said::Served { wait, .. } | Said::Offer { wait, .. } | Said::Nothing { wait, .. } => *wait,
            other => return Err(format!("{other:?} to session {who:?}, which waits")),
        };
        if number != wait.number {
            return Err(format!("{said:?} to session {who:?}, which waits as {}", wait.number));
        }
        match said {
            Said::Served { outcome: Outcome::Held { id, deadline_ns }, bytes, .. } => {
                if wait.is_ask || !wait.is_parked {
                    return Err(format!("job {id} is handed to {who:?} without an offer"));
                }
                let best = self.best(session, false);
                if best.map(|best| best.1) != Some(*id) {
                    return Err(format!("job {id} is handed to {who:?}, by the rules it is {best:?}"));
                }
                self.waits.remove(who);
                self.answered.insert(*who, number);
                self.seen.served += 1;
                self.model.hand_over(now, session, *id);
                let expected = self.answer(session)?;
                if *bytes != expected
                    || self.held(session, *id)? != (Outcome::Held { id: *id, deadline_ns: *deadline_ns })
                {
                    return Err(format!("job {id} is handed out as {:?}", String::from_utf8_lossy(bytes)));
                }
            }
            Said::Served { bytes, .. } => {
                self.waits.remove(who);
                self.answered.insert(*who, number);
                let best = self.best(session, true);
                let is_right = match &bytes[..] {
                    b"TIMED_OUT\r\n" => wait.is_poll && !wait.is_ask && best.is_none(),
                    b"DEADLINE_SOON\r\n" => {
                        let in_margin = wait.in_margin || self.model.is_in_margin(now, session);
                        in_margin && !wait.is_ask && !self.has_ready(session)
                    }
                    _ => false,
                };
                if !is_right {
                    let bytes = String::from_utf8_lossy(bytes);
                    return Err(format!("{bytes:?} answers the wait {wait:?} of {who:?}, who could have {best:?}"));
                }
            }
            Said::Offer { offer, pri, id, .. } => {
                if !wait.is_ask || !wait.is_parked || self.offers.values().any(|offer| offer.who == *who) {
                    return Err(format!("job {id} is offered to {who:?}, which did not ask: {wait:?}"));
                }
                let best = self.best(session, false);
                if best != Some((*pri, *id)) {
                    return Err(format!("job {id} of priority {pri} is offered to {who:?}, by the rules {best:?}"));
                }
                if self.offers.contains_key(offer) {
                    return Err(format!("offer {offer} is made twice"));
                }
                self.seen.offers += 1;
                let until_ns = now.boot_ns + OFFER_NS;
                self.offers.insert(*offer, Offer { id: *id, who: *who, until_ns });
                if wait.is_poll {
                    self.waits.get_mut(who).expect("just seen").is_parked = false;
                }
            }
            Said::Nothing { is_soon: true, .. } => {
                if !wait.is_ask || !wait.in_margin || self.has_ready(session) {
                    return Err(format!("{who:?} is told `soon`: {wait:?}"));
                }
                self.waits.get_mut(who).expect("just seen").is_parked = false;
            }
            Said::Nothing { is_soon: false, .. } => {
                self.seen.nothings += 1;
                let best = self.best(session, wait.is_poll);
                if !wait.is_ask || best.is_some() {
                    return Err(format!("{who:?} is told that there is nothing, by the rules {best:?}: {wait:?}"));
                }
                if wait.is_poll {
                    self.waits.get_mut(who).expect("just seen").is_parked = false;
                }
            }
            _ => unreachable!("sorted out above"),
        }
        Ok(())
    }

    /// Whether a watched tube, paused or not, has a ready job.
    fn has_ready(&self, session: u32) -> bool {
        self.model.jobs().values().any(|job| job.place == Place::Ready && self.model.watches(session, job.tube))
    }

    fn nobody_waits_in_vain(&self) -> Checked {
        for (who, wait) in self.waits.iter().filter(|(_, wait)| wait.is_parked) {
            let session = self.sessions[who];
            if self.offers.values().any(|offer| offer.who == *who) {
                continue;
            }
            if let Some((_, id)) = self.best(session, false) {
                return Err(format!("{who:?} waits although job {id} is free: {wait:?}"));
            }
            if wait.is_poll && self.best(session, true).is_none() {
                return Err(format!("{who:?} polls and waits although there is nothing to wait for: {wait:?}"));
            }
        }
        Ok(())
    }

    fn note_free(&mut self, now: Moment) {
        let free: Vec<u64> = self.model.servable().map(|(_, id, _)| id).filter(|id| !self.is_offered(*id)).collect();
        self.free_since_ns.retain(|id, _| free.contains(id));
        for id in free {
            self.free_since_ns.entry(id).or_insert(now.boot_ns);
        }
    }

    /// Compares what engine and model have logged since the last time.
    pub(super) fn changes(&mut self, ledger: Option<&mut Ledger>) -> Checked {
        let Some(ledger) = ledger else {
            self.model.changes().clear();
            return Ok(());
        };
        let fresh = &ledger.entries[ledger.compared..];
        let expected = self.model.changes();
        let is_same = fresh.len() == expected.len()
            && fresh.iter().zip(expected.iter()).all(|(entry, expected)| entry.change.says(expected));
        if !is_same {
            let changes: Vec<&Change> = fresh.iter().map(|entry| &entry.change).collect();
            return Err(format!("the engine logs {changes:?}, the model {expected:?}"));
        }
        expected.clear();
        ledger.compared = ledger.entries.len();
        ledger.space.clear();
        Ok(())
    }
}

/// What a step depends on besides the owner.
#[derive(Debug, Default)]
pub(super) struct Context {
    /// The log's answers about space; `None` without a log.
    pub(super) space: Option<VecDeque<bool>>,
    /// Counts that puts have drawn.
    pub(super) id_counts: VecDeque<u64>,
    /// New jobs and the segments that the log has put them into.
    pub(super) placed: VecDeque<(u64, u32)>,
    pub(super) is_draining: bool,
}

/// Names of a list with their numbers of creation, which must rise.
fn names_of(bytes: &[u8]) -> Checked<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let (mut rest, mut last) = (bytes, None);
    while !rest.is_empty() {
        let number = u64::from_le_bytes(rest[..8].try_into().expect("8 bytes"));
        if last.is_some_and(|last| number <= last) {
            return Err(format!("tubes are listed as {last:?}, then {number}"));
        }
        last = Some(number);
        let end = 9 + usize::from(rest[8]);
        names.push(rest[9..end].to_vec());
        rest = &rest[end..];
    }
    Ok(names)
}

/// Whether two replies are the same but for the number of those who wait, which the model does not know.
fn same_but_waiting(bytes: &[u8], expected: &[u8]) -> bool {
    if bytes == expected {
        return true;
    }
    let without = |text: &[u8]| -> Vec<Vec<u8>> {
        let lines = text.split(|byte| *byte == b'\n');
        let other = lines.filter(|line| !line.starts_with(b"current-waiting: ") && !line.starts_with(b"OK "));
        other.map(<[u8]>::to_vec).collect()
    };
    bytes.starts_with(b"OK ") && expected.starts_with(b"OK ") && without(bytes) == without(expected)
}

#[cfg(test)]
mod tests;
