//! Replays what several owners have done, each in a reference model of its own, in the order that each has traced.
//!
//! Owners are taken together by the times of their turns: that is exact for each of them, and near enough for what
//! concerns several, which is only who holds a job near its deadline, and names of tubes.
//!
//! An owner that was killed comes back with what its log had. That is everything up to the last turn of which a client has
//! heard, and, as the log is a sequence, any number of deeds from there on.

use std::collections::{BTreeMap, BTreeSet};

use tubes_protocol::{Command as Wire, Line, parse_line};

use crate::model::{Model, Moment, Place, SECOND_NS};

use super::parse::{Command, Decision, History, Invocation, Reply, owner_of};
use super::processes::{Deed, FRONTENDS_FROM, OwnerLife, What};
use super::recovery::{certain, difference, has_successor, kick_in_part, recovered_job};
use super::replay::{in_words, same};
use super::tubes::Tubes;
use super::{Kind, LATE_NS_MAX, Report};

const MS_NS: u64 = 1_000_000;
/// How long an owner may take for a turn at most, and a message over a link.
const SLOW_NS: u64 = 10 * SECOND_NS;
/// A turn's clock may be read a little before a command arrives in it.
const EARLY_NS: u64 = 100 * MS_NS;
/// An offer lasts so long, if nothing ends it.
const OFFER_NS: u64 = 250 * MS_NS;
/// A job whose time to run ends so soon behind the start of the next generation may have been forgotten by its frontend.
const NEARLY_OVER_NS: u64 = 2 * SECOND_NS;

pub(super) fn check(history: &History, report: &mut Report) {
    let tubes = history.connections.iter().map(|(key, connection)| (*key, Tubes::of(connection))).collect();
    let mut replay = Replay {
        history,
        report,
        tubes,
        owners: BTreeMap::new(),
        near: BTreeMap::new(),
        names: BTreeMap::new(),
        decided_ns: BTreeMap::new(),
        stays_not: BTreeMap::new(),
        owns_default: owner_of_default(history),
    };
    // The first contradiction makes all behind it meaningless.
    let _ = replay.run();
}

/// The replay has found a violation and ends.
struct Stop;

/// An owner in the course of its generations.
struct Owner<'a> {
    life: u64,
    model: Model,
    /// Jobs offered: to whom, and until when.
    offered: BTreeMap<u64, (u32, u64)>,
    /// What may be in its log or not.
    tail: &'a [Deed],
    id_max: u64,
    /// When delayed jobs became ready, for the lateness of their delivery.
    due: BTreeMap<u64, u64>,
}

struct Replay<'a> {
    history: &'a History,
    report: &'a mut Report,
    /// By connection, before each command.
    tubes: BTreeMap<u64, Vec<Tubes>>,
    /// By slot.
    owners: BTreeMap<u64, Owner<'a>>,
    /// When each session was last seen in the last second of a job that it holds.
    near: BTreeMap<u32, u64>,
    /// What owners have answered to `list-tubes`, by command.
    names: BTreeMap<(u64, u64), BTreeSet<String>>,
    /// When the reply to each command was decided.
    decided_ns: BTreeMap<(u64, u64), u64>,
    /// Sessions that must not be seen by this life of an owner or a later one of it.
    stays_not: BTreeMap<u32, Vec<u64>>,
    owns_default: Option<u64>,
}

/// What happens, in the order of time.
enum Item<'a> {
    Start(u64, &'a OwnerLife),
    Deed(u64, &'a Deed),
    /// A frontend decides the reply to this command.
    Said(u64, u64),
}

/// The slot that has the tube `default`: the one that has ever been told of it, or has answered for it.
fn owner_of_default(history: &History) -> Option<u64> {
    history.owners.iter().find_map(|(life, owner)| {
        let is_of_default = owner.deeds.iter().any(|deed| deed.what == What::Told("watch default".to_owned()));
        is_of_default.then(|| owner_of(*life))
    })
}

impl<'a> Replay<'a> {
    fn violation<T>(&mut self, kind: Kind, what: String) -> Result<T, Stop> {
        self.report.add(kind, what);
        Err(Stop)
    }

    fn run(&mut self) -> Result<(), Stop> {
        let history = self.history;
        let mut items: Vec<(u64, Item<'a>)> = Vec::new();
        let mut tails: BTreeMap<u64, &'a [Deed]> = BTreeMap::new();
        for (life, owner) in &history.owners {
            items.push((owner.start_ns, Item::Start(*life, owner)));
            let certain = certain(history, owner, has_successor(history, *life));
            items.extend(owner.deeds[..certain].iter().map(|deed| (deed.at_ns, Item::Deed(*life, deed))));
            tails.insert(*life, &owner.deeds[certain..]);
        }
        let of_frontends = history.events.iter().filter(|(life, _)| owner_of(**life) >= u64::from(FRONTENDS_FROM));
        for event in of_frontends.flat_map(|(_, events)| events) {
            if let (Decision::Reply(number), Some(key)) = (event.what, event.connection) {
                items.push((event.until_ns, Item::Said(key, number)));
            }
        }
        // Stable: what one process did in one turn stays in its order, and lives of one slot do not overlap.
        items.sort_by_key(|(at_ns, _)| *at_ns);
        for (at_ns, item) in items {
            match item {
                Item::Start(life, owner) => self.start(life, owner, tails[&life])?,
                Item::Deed(life, deed) => self.deed(life, deed)?,
                Item::Said(key, number) => self.said(at_ns, key, number)?,
            }
        }
        Ok(())
    }

    /// A generation begins with what the log of the one before had.
    fn start(&mut self, life: u64, owner: &OwnerLife, tail: &'a [Deed]) -> Result<(), Stop> {
        let slot = owner_of(life);
        let owns_default = self.owns_default == Some(slot);
        let now = Moment { boot_ns: owner.start_ns, wall_ms: owner.start_ns / MS_NS };
        let mut model = Model::of_owner(u32::MAX, owns_default);
        let mut id_max = 0;
        match self.owners.remove(&slot) {
            None if owner.found.is_empty() => {}
            None => {
                let what = format!("generation {life:#x} finds {} jobs that nobody has put", owner.found.len());
                return self.violation(Kind::WrongRecovery, what);
            }
            Some(mut before) => {
                self.note_holders(&before, life, now);
                let mut differences = Vec::new();
                let mut is_found = |model: &Model| {
                    let mut recovered = model.clone();
                    recovered.tick(now);
                    let difference = difference(&recovered, now, &owner.found);
                    let is_none = difference.is_none();
                    differences.extend(difference);
                    is_none
                };
                let tail = before.tail;
                let is_found = is_found(&before.model)
                    || tail.iter().any(|deed| {
                        // A kick has a record for each job: the log may end between two.
                        let kicked = if let What::Answer(line) = &deed.what { id_in(line, "KICKED") } else { None };
                        let parts = (1..kicked.unwrap_or(0)).map(|count| {
                            let mut part = before.model.clone();
                            kick_in_part(&mut part, deed, count);
                            part
                        });
                        if let Some(part) = parts.collect::<Vec<_>>().into_iter().find(&mut is_found) {
                            before.model = part;
                            return true;
                        }
                        self.perhaps(&mut before, deed);
                        is_found(&before.model)
                    });
                if !is_found {
                    let what = format!(
                        "generation {life:#x} begins with another state than the last left, whatever of its last {} \
                         deeds was in the log: {differences:?}",
                        tail.len()
                    );
                    return self.violation(Kind::WrongRecovery, what);
                }
                before.model.tick(now);
                id_max = before.id_max;
                for (id, found) in &owner.found {
                    let job = recovered_job(&before.model, now, *id, found);
                    model.restore(now, *id, &job, 0);
                }
            }
        }
        let fresh = Owner { life, model, offered: BTreeMap::new(), tail, id_max, due: BTreeMap::new() };
        self.owners.insert(slot, fresh);
        Ok(())
    }

    /// Who holds a job of an owner that has ended has been closed before its next generation hears anything.
    fn note_holders(&mut self, before: &Owner<'_>, life: u64, now: Moment) {
        for job in before.model.jobs().values() {
            if let Place::Reserved { holder, deadline_ns } = job.place
                && deadline_ns > now.boot_ns + NEARLY_OVER_NS
            {
                self.stays_not.entry(holder).or_default().push(life);
            }
        }
    }

    /// A deed of which nobody knows whether it is in the log: as far as it changes what a log has.
    fn perhaps(&self, owner: &mut Owner<'_>, deed: &Deed) {
        let now = Moment { boot_ns: deed.at_ns, wall_ms: deed.at_ns / MS_NS };
        owner.model.tick(now);
        let model = &mut owner.model;
        match (&deed.what, deed.command) {
            (What::Ended, _) if model.is_open(deed.session) => model.disconnect(now, deed.session),
            (What::Told(line), _) => told(model, now, deed.session, line),
            (What::Served(line), _) => {
                if let Some(id) = id_in(line, "RESERVED").filter(|id| model.jobs().contains(*id)) {
                    open(model, deed.session);
                    model.hand_over(now, deed.session, id);
                }
            }
            (What::Answer(line), Some(command)) => {
                open(model, deed.session);
                if let Some(id) = id_in(line, "INSERTED") {
                    model.set_next_id(id);
                }
                let admits = line != "OUT_OF_MEMORY";
                let has_tube = model.used_name(deed.session).is_some();
                with_wire(self.invocation(command), |wire| {
                    if has_tube || !needs_used_tube(wire) {
                        match wire {
                            Wire::Ignore(name) => model.unwatch(deed.session, name),
                            other => model.handle(now, deed.session, other, &mut || admits),
                        }
                    }
                });
            }
            _ => {}
        }
        model.answers().clear();
        model.changes().clear();
    }

    fn invocation(&self, (key, number): (u64, u64)) -> &'a Invocation {
        &self.history.connections[&key].commands[usize::try_from(number).expect("counted") - 1]
    }

    /// When the command began: it was sent, and the one before it was answered.
    fn asked_ns(&self, command: (u64, u64)) -> u64 {
        let before = command.1.checked_sub(1).and_then(|number| self.decided_ns.get(&(command.0, number)));
        self.invocation(command).at_ns.max(before.copied().unwrap_or(0))
    }

    fn tubes_before(&self, (key, number): (u64, u64)) -> &Tubes {
        &self.tubes[&key][usize::try_from(number).expect("counted") - 1]
    }

    fn deed(&mut self, life: u64, deed: &Deed) -> Result<(), Stop> {
        let slot = owner_of(life);
        let session = deed.session;
        let who = match deed.command {
            Some((key, number)) => format!("command {number} of connection {key}, at {life:#x}"),
            None => format!("session {session}, at {life:#x}"),
        };
        if self.stays_not.get(&session).is_some_and(|lives| lives.iter().any(|l| owner_of(*l) == slot && *l <= life))
            && deed.what != What::Ended
        {
            let what = format!("{who}: goes on, though it held a job when the generation before ended");
            return self.violation(Kind::HolderStays, what);
        }
        let Some(mut owner) = self.owners.remove(&slot).filter(|owner| owner.life == life) else {
            return self.violation(Kind::Stale, format!("{who}: it is not that generation's time"));
        };
        let now = Moment { boot_ns: deed.at_ns, wall_ms: deed.at_ns / MS_NS };
        self.tick(&mut owner, now);
        let result = self.carry_out(&mut owner, now, deed, &who);
        owner.model.answers().clear();
        owner.model.changes().clear();
        self.owners.insert(slot, owner);
        if let (Some(command), What::Answer(_) | What::Served(_)) = (deed.command, &deed.what) {
            self.decided_ns.insert(command, deed.at_ns);
        }
        result
    }

    fn tick(&mut self, owner: &mut Owner<'_>, now: Moment) {
        for (id, job) in owner.model.jobs().iter() {
            match job.place {
                Place::Reserved { holder, deadline_ns } if deadline_ns <= now.boot_ns + SECOND_NS + EARLY_NS => {
                    self.near.insert(holder, now.boot_ns);
                }
                Place::Delayed { due_ns } if due_ns <= now.boot_ns => {
                    owner.due.insert(id, due_ns);
                }
                _ => {}
            }
        }
        owner.offered.retain(|_, (_, until_ns)| *until_ns > now.boot_ns);
        owner.model.tick(now);
        owner.model.answers().clear();
    }

    fn carry_out(&mut self, owner: &mut Owner<'_>, now: Moment, deed: &Deed, who: &str) -> Result<(), Stop> {
        let session = deed.session;
        if deed.what != What::Ended {
            open(&mut owner.model, session);
        }
        match &deed.what {
            What::Told(line) => {
                told(&mut owner.model, now, session, line);
                Ok(())
            }
            What::Ended => {
                owner.offered.retain(|_, (to, _)| *to != session);
                if owner.model.is_open(session) {
                    owner.model.disconnect(now, session);
                }
                Ok(())
            }
            // Whatever has ended that offer is known, and the session may have been made another since.
            What::Gone => Ok(()),
            What::Withdrew | What::Nothing { is_soon: false } => {
                // While it considers an offer it waits in no queue.
                if owner.offered.values().all(|(to, _)| *to != session) {
                    self.is_without_a_job(owner, session, who)?;
                }
                owner.offered.retain(|_, (to, _)| *to != session);
                Ok(())
            }
            What::Nothing { is_soon: true } => {
                owner.offered.retain(|_, (to, _)| *to != session);
                let holds = owner.model.is_in_margin(now, session);
                if holds { Ok(()) } else { self.is_near(now.boot_ns, session, who) }
            }
            What::Offer(id) => {
                owner.offered.retain(|_, (to, _)| *to != session);
                self.is_best(owner, session, *id, who)?;
                owner.offered.insert(*id, (session, now.boot_ns + OFFER_NS));
                Ok(())
            }
            What::Served(line) => {
                let Some(command) = deed.command else { return Ok(()) };
                self.served(owner, now, session, command, line, who)
            }
            What::Answer(line) => {
                let Some(command) = deed.command else { return Ok(()) };
                self.report.replayed += 1;
                self.answer(owner, now, session, command, line, who)
            }
        }
    }

    /// No job is there that the session could have, but those that are offered to somebody.
    fn is_without_a_job(&mut self, owner: &Owner<'_>, session: u32, who: &str) -> Result<(), Stop> {
        let mut free = owner
            .model
            .servable()
            .filter(|(_, id, tube)| owner.model.watches(session, *tube) && !owner.offered.contains_key(id));
        match free.next() {
            None => Ok(()),
            Some((_, id, _)) => {
                drop(free);
                self.violation(Kind::Missed, format!("{who}: it is told that there is no job, and job {id} is there"))
            }
        }
    }

    /// The job may be handed to the session, and no better one of its tubes is free.
    fn is_best(&mut self, owner: &Owner<'_>, session: u32, id: u64, who: &str) -> Result<(), Stop> {
        let model = &owner.model;
        let Some(job) = model.jobs().get(id) else {
            return self.violation(Kind::UnknownJob, format!("{who}: job {id} is not there"));
        };
        let kind = match job.place {
            Place::Reserved { .. } => Some(Kind::Overlap),
            Place::Delayed { .. } => Some(Kind::Early),
            Place::Buried { .. } => Some(Kind::WrongReply),
            Place::Ready if model.is_paused(job.tube) => Some(Kind::Early),
            Place::Ready if !model.watches(session, job.tube) => Some(Kind::WrongReply),
            Place::Ready => None,
        };
        if let Some(kind) = kind {
            return self.violation(kind, format!("{who}: is given job {id}, which is {job:?}"));
        }
        if let Some((to, _)) = owner.offered.get(&id).filter(|(to, _)| *to != session) {
            let what = format!("{who}: is given job {id}, which is offered to session {to}");
            return self.violation(Kind::Overlap, what);
        }
        let key = (job.pri, id);
        let better = model.servable().filter(|(pri, other, tube)| {
            (*pri, *other) < key && model.watches(session, *tube) && !owner.offered.contains_key(other)
        });
        // A session that considers an offer is handed that one, though a better one may have come meanwhile.
        if owner.offered.get(&id).is_none_or(|(to, _)| *to != session)
            && let Some((_, other, _)) = better.min()
        {
            return self.violation(Kind::Priority, format!("{who}: is given job {id}, though job {other} is better"));
        }
        Ok(())
    }

    fn is_near(&mut self, now_ns: u64, session: u32, who: &str) -> Result<(), Stop> {
        let holds = |owner: &Owner<'_>| {
            owner.model.jobs().values().any(|job| {
                matches!(job.place, Place::Reserved { holder, deadline_ns }
                    if holder == session && deadline_ns <= now_ns + SECOND_NS + EARLY_NS)
            })
        };
        let was_near = self.near.get(&session).is_some_and(|at_ns| at_ns + SLOW_NS > now_ns);
        if was_near || self.owners.values().any(holds) {
            return Ok(());
        }
        self.violation(Kind::DeadlineSoon, format!("{who}: no deadline of a job that it holds is near"))
    }

    fn served(
        &mut self,
        owner: &mut Owner<'_>,
        now: Moment,
        session: u32,
        command: (u64, u64),
        line: &str,
        who: &str,
    ) -> Result<(), Stop> {
        self.report.replayed += 1;
        let invocation = self.invocation(command);
        let reply = invocation.reply.as_ref().map(|(reply, _)| reply);
        if let Some(id) = id_in(line, "RESERVED") {
            if reply.is_some_and(|reply| !matches!(reply, Reply::Reserved { id: heard, .. } if *heard == id)) {
                return self.violation(Kind::WrongReply, format!("{who}: decided {line:?}, and heard {reply:?}"));
            }
            let tube = owner.model.jobs().get(id).map(|job| owner.model.tube_name(job.tube).to_vec());
            if let Some(tube) = tube
                && !self.tubes_before(command).watches(&String::from_utf8_lossy(&tube))
            {
                return self.violation(Kind::WrongReply, format!("{who}: job {id} is of a tube it does not watch"));
            }
            self.is_best(owner, session, id, who)?;
            owner.offered.remove(&id);
            owner.model.hand_over(now, session, id);
            let asked_ns = self.asked_ns(command);
            if let Some(due_ns) = owner.due.remove(&id).filter(|due_ns| asked_ns < *due_ns) {
                self.late(now.boot_ns.saturating_sub(due_ns), who)?;
            }
            return Ok(());
        }
        if reply.is_some_and(|reply| *reply != Reply::Line(line.to_owned())) {
            return self.violation(Kind::WrongReply, format!("{who}: decided {line:?}, and heard {reply:?}"));
        }
        match line {
            "TIMED_OUT" => {
                self.is_without_a_job(owner, session, who)?;
                self.timed_out(now.boot_ns, command, who)
            }
            "DEADLINE_SOON" => {
                // This owner is not among the others at the moment.
                let holds = owner.model.is_in_margin(now, session);
                if holds { Ok(()) } else { self.is_near(now.boot_ns, session, who) }
            }
            other => self.violation(Kind::WrongReply, format!("{who}: {other:?} answers a reserve")),
        }
    }

    fn timed_out(&mut self, now_ns: u64, command: (u64, u64), who: &str) -> Result<(), Stop> {
        let invocation = self.invocation(command);
        let Command::Line(line) = &invocation.command else { return Ok(()) };
        let timeout_s = line.strip_prefix("reserve-with-timeout ").and_then(|seconds| seconds.parse::<u64>().ok());
        let Some(timeout_s) = timeout_s else {
            return self.violation(Kind::TimeoutEarly, format!("{who}: {line:?} has timed out"));
        };
        let asked_ns = self.asked_ns(command);
        let until_ns = asked_ns + timeout_s * SECOND_NS;
        if now_ns + EARLY_NS < until_ns {
            let waited_ns = now_ns.saturating_sub(asked_ns);
            let what = format!("{who}: TIMED_OUT after {waited_ns} ns of {timeout_s} s");
            return self.violation(Kind::TimeoutEarly, what);
        }
        if timeout_s == 0 { Ok(()) } else { self.late(now_ns.saturating_sub(until_ns), who) }
    }

    fn late(&mut self, late_ns: u64, who: &str) -> Result<(), Stop> {
        let bucket = [MS_NS, 10 * MS_NS, 100 * MS_NS, SECOND_NS].iter().filter(|limit| late_ns >= **limit).count();
        self.report.lateness[bucket] += 1;
        if late_ns > LATE_NS_MAX {
            return self.violation(Kind::Late, format!("{who}: {late_ns} ns late"));
        }
        Ok(())
    }

    fn answer(
        &mut self,
        owner: &mut Owner<'_>,
        now: Moment,
        session: u32,
        command: (u64, u64),
        line: &str,
        who: &str,
    ) -> Result<(), Stop> {
        let invocation = self.invocation(command);
        let reply = invocation.reply.as_ref().map(|(reply, _)| reply);
        if let Some(id) = id_in(line, "INSERTED") {
            if id <= owner.id_max {
                return self.violation(Kind::IdNotRising, format!("{who}: id {id} behind {}", owner.id_max));
            }
            owner.id_max = id;
            owner.model.set_next_id(id);
        }
        let tubes = self.tubes_before(command);
        let (before, after) = (tubes.clone(), self.tubes[&command.0][command.1 as usize].clone());
        let mut expected = None;
        let mut kind = None;
        with_wire(invocation, |wire| {
            let used = owner.model.used_name(session);
            if needs_used_tube(wire) && used != Some(before.used.as_bytes()) {
                kind = Some(format!("it uses {:?} here, and {:?} by its commands", used, before.used));
                return;
            }
            match wire {
                Wire::Ignore(name) => owner.model.unwatch(session, name),
                Wire::ListTubes => {
                    let names = owner.model.tube_names().map(|name| String::from_utf8_lossy(name).into_owned());
                    self.names.entry(command).or_default().extend(names);
                }
                Wire::Delete(id) | Wire::ReserveJob(id) if line == "DELETED" || line.starts_with("RESERVED ") => {
                    owner.offered.remove(id);
                    owner.model.handle(now, session, wire, &mut || true);
                }
                Wire::PauseTube { tube, delay_s } => {
                    let model = &owner.model;
                    owner.offered.retain(|id, _| {
                        let is_of_it = |job: &crate::model::Job| model.tube_name(job.tube) == *tube;
                        *delay_s == 0 || !model.jobs().get(*id).is_some_and(is_of_it)
                    });
                    owner.model.handle(now, session, wire, &mut || true);
                }
                other => owner.model.handle(now, session, other, &mut || line != "OUT_OF_MEMORY"),
            }
            let is_by_all = matches!(wire, Wire::Ignore(_) | Wire::ListTubes | Wire::Watch(_));
            let said = owner.model.answers().iter().filter(|(to, _)| *to == session).last();
            expected = said.filter(|_| !is_by_all).map(|(_, bytes)| in_words(bytes));
        });
        if let Some(what) = kind {
            return self.violation(Kind::WrongReply, format!("{who}, {:?}: {what}", invocation.command));
        }
        if let Command::Line(sent) = &invocation.command
            && (sent.starts_with("watch ") || sent.starts_with("ignore "))
        {
            let watching = Reply::Line(format!("WATCHING {}", after.watched.len()));
            if reply.is_some_and(|reply| *reply != watching) {
                return self.violation(Kind::WrongReply, format!("{who}: {sent:?} hears {reply:?}, not {watching:?}"));
            }
            return Ok(());
        }
        let Some(expected) = expected else { return Ok(()) };
        let is_right = match reply {
            Some(Reply::Text(text)) if text.contains("|current-jobs-ready: ") => same_figures(&expected, text),
            Some(reply) => same(&Some(expected.clone()), reply) && first_words(line) == first_words(&in_line(reply)),
            None => first_words(line) == first_words(&in_line(&expected)),
        };
        if is_right {
            return Ok(());
        }
        let what = format!(
            "{who}, {:?}: decided {line:?} and heard {reply:?}, by the rules it is {expected:?}",
            invocation.command
        );
        let is_overlap = matches!(&invocation.command, Command::Line(sent) if sent.starts_with("reserve-job "))
            && expected == Reply::Line("NOT_FOUND".to_owned());
        self.violation(if is_overlap { Kind::Overlap } else { Kind::WrongReply }, what)
    }

    /// A frontend has answered by itself.
    fn said(&mut self, now_ns: u64, key: u64, number: u64) -> Result<(), Stop> {
        let command = (key, number);
        let place = usize::try_from(number).expect("counted") - 1;
        let Some(invocation) = self.history.connections[&key].commands.get(place) else { return Ok(()) };
        let Some((reply, _)) = &invocation.reply else { return Ok(()) };
        self.report.replayed += 1;
        let who = format!("command {number} of connection {key}, by its frontend");
        let session = u32::try_from(key).expect("numbered from a small number");
        let Command::Line(sent) = &invocation.command else {
            return self.violation(Kind::WrongReply, format!("{who}: {reply:?} answers a put"));
        };
        let (before, after) = (self.tubes_before(command), &self.tubes[&key][place + 1]);
        let is_right = match (sent.split(' ').next().unwrap_or_default(), reply) {
            ("reserve" | "reserve-with-timeout", Reply::Line(line)) if line == "TIMED_OUT" => {
                self.timed_out(now_ns, command, &who)?;
                true
            }
            ("reserve" | "reserve-with-timeout", Reply::Line(line)) if line == "DEADLINE_SOON" => {
                self.is_near(now_ns, session, &who)?;
                true
            }
            ("stats", Reply::Text(_)) => true,
            ("list-tube-used", Reply::Line(line)) => *line == format!("USING {}", before.used),
            ("list-tubes-watched", Reply::Text(text)) => names_in(text).eq(before.watched.iter().map(String::as_str)),
            ("ignore", Reply::Line(line)) if before == after && line == "NOT_IGNORED" => {
                before.watched.len() == 1 && *sent == format!("ignore {}", before.watched[0])
            }
            ("ignore", Reply::Line(line)) => before == after && *line == format!("WATCHING {}", after.watched.len()),
            ("list-tubes", Reply::Text(text)) => {
                let names: BTreeSet<&str> = names_in(text).collect();
                let of_owners = self.names.remove(&command).unwrap_or_default();
                names.len() == names_in(text).count() && names.into_iter().eq(of_owners.iter().map(String::as_str))
            }
            _ => false,
        };
        self.decided_ns.insert(command, now_ns);
        if is_right {
            return Ok(());
        }
        self.violation(Kind::WrongReply, format!("{who}: {sent:?} hears {reply:?}"))
    }
}

fn open(model: &mut Model, session: u32) {
    if !model.is_open(session) {
        model.connect_remote(session);
    }
}

fn told(model: &mut Model, now: Moment, session: u32, line: &str) {
    open(model, session);
    if line == "unuse" {
        model.unuse(session);
    } else if let Ok(Line::Command(command)) = parse_line(line.as_bytes()) {
        model.handle(now, session, &command, &mut || true);
    }
}

/// Calls `run` with the command, unless it is none.
fn with_wire(invocation: &Invocation, run: impl FnOnce(&Wire<'_>)) {
    match &invocation.command {
        Command::Put { pri, delay_s, ttr_s, hash, .. } => {
            let body = hash.to_le_bytes().into();
            run(&Wire::Put { pri: *pri, delay_s: *delay_s, ttr_s: (*ttr_s).max(1), body });
        }
        Command::Line(line) => {
            if let Ok(Line::Command(command)) = parse_line(line.as_bytes()) {
                run(&command);
            }
        }
    }
}

fn needs_used_tube(wire: &Wire<'_>) -> bool {
    matches!(wire, Wire::Put { .. } | Wire::Kick(_) | Wire::PeekReady | Wire::PeekDelayed | Wire::PeekBuried)
}

fn id_in(line: &str, word: &str) -> Option<u64> {
    line.strip_prefix(word)?.strip_prefix(' ')?.split(' ').next()?.parse().ok()
}

/// What two replies without their bodies have in common: of a body's length a model knows nothing.
fn first_words(line: &str) -> Vec<&str> {
    match line.split(' ').next() {
        Some("OK") => vec!["OK"],
        _ => line.split(' ').take(2).collect(),
    }
}

fn in_line(reply: &Reply) -> String {
    match reply {
        Reply::Inserted(id) => format!("INSERTED {id}"),
        Reply::Reserved { id, .. } => format!("RESERVED {id}"),
        Reply::Found { id, .. } => format!("FOUND {id}"),
        Reply::Text(_) => "OK".to_owned(),
        Reply::Line(line) => line.clone(),
    }
}

/// The items of a list in an `OK` reply.
fn names_in(text: &str) -> impl Iterator<Item = &str> {
    text.split('|').filter_map(|line| line.strip_prefix("- "))
}

/// Of a tube's figures, those that say which jobs are there.
fn same_figures(expected: &Reply, text: &str) -> bool {
    let Reply::Text(expected) = expected else { return false };
    let of = |text: &str| -> Vec<String> {
        text.split('|')
            .filter(|line| line.starts_with("name:") || line.starts_with("current-jobs-"))
            .map(str::to_owned)
            .collect()
    };
    of(expected) == of(text)
}
