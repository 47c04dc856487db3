//! Judges what members did: from the log that their transactions wrote, and from what each said of itself.
//!
//! Owns: the rules of GC1, GC2 and C16 as they can be seen from outside. Each violation is a sentence; there may be many.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::history::{Entry, Line};
use super::schema::PERMIT_LIMIT;

/// What is judged.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The log of the database, by number.
    pub log: Vec<Entry>,
    /// Each process's lines.
    pub processes: Vec<(String, Vec<Line>)>,
}

/// What is promised beyond what always holds.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// How old a cached value may be at its use.
    pub stale_max: Duration,
    /// How long after its end an identity may start effects. Zero, unless the database's clock has been set forward: then
    /// the database ends leases that no process can know to be over before it next renews.
    pub late_max: Duration,
    /// What was committed may be lost: the replica that was promoted lagged. What members say of the lost part cannot be
    /// found in the log then.
    pub may_lose: bool,
    /// The lowest epoch of takeovers after this time, in microseconds of the wall clock.
    pub epoch_min: Option<(i64, i64)>,
}

/// What was there to be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Claims of work.
    pub claims: u64,
    /// Ends of work.
    pub finishes: u64,
    /// Work taken from dead owners.
    pub given_up: u64,
    /// Registrations that ended.
    pub gone: u64,
    /// Leaderships taken.
    pub takeovers: u64,
    /// Effects of leaders.
    pub leader_effects: u64,
    /// Effects of members.
    pub effects: u64,
    /// Tickets given.
    pub tickets: u64,
    /// Runs ended.
    pub runs: u64,
    /// Requests carried out.
    pub requests: u64,
    /// Uses of a cached value.
    pub reads: u64,
}

/// Work, as the log has it.
#[derive(Debug)]
enum Work {
    Running { attempt: i64, member: String },
    GivenUp { attempt: i64 },
    Finished,
}

/// A leadership, as the log has it.
#[derive(Debug)]
struct Led {
    epoch: i64,
    /// Who took it, whether it was given up since or not.
    taker: String,
}

#[derive(Debug, Default)]
struct Judge<'a> {
    violations: Vec<String>,
    counts: Counts,
    gone: BTreeMap<&'a str, i64>,
    work: BTreeMap<&'a str, Work>,
    claims: BTreeMap<(&'a str, i64), &'a str>,
    given_up_at: BTreeMap<(&'a str, i64), i64>,
    led: BTreeMap<&'a str, Led>,
    tickets: BTreeMap<&'a str, BTreeSet<(&'a str, &'a str)>>,
    runs: BTreeMap<&'a str, bool>,
    appended: BTreeSet<&'a str>,
    set_at: BTreeMap<i64, i64>,
}

/// Judges a history.
///
/// # Errors
///
/// Every promise that was broken.
pub fn check(history: &History, rules: Rules) -> Result<Counts, Vec<String>> {
    let mut judge = Judge::default();
    for entry in &history.log {
        judge.entry(entry, rules);
    }
    let mut gained: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for (process, lines) in &history.processes {
        judge.lines(process, lines, rules);
        for line in lines.iter().filter(|line| line.kind == "leader" && line.word(2) == "Gained") {
            let (name, epoch, member) = (line.word(0), line.word(1), line.word(3));
            let other = gained.insert((name, epoch), member);
            if other.is_some_and(|other| other != member) && !rules.may_lose {
                judge.violations.push(format!("epoch {epoch} of {name} was gained by two members"));
            }
        }
    }
    if judge.violations.is_empty() { Ok(judge.counts) } else { Err(judge.violations) }
}

impl<'a> Judge<'a> {
    fn entry(&mut self, entry: &'a Entry, rules: Rules) {
        let Entry { no, member, subject, number, .. } = entry;
        let is_own_write =
            matches!(entry.kind.as_str(), "claim" | "finish" | "run_start" | "run_end" | "epoch" | "append" | "set");
        if is_own_write && let Some(at) = self.gone.get(member.as_str()) {
            self.broken(format!("{no}: {} by {member}, whose registration had ended at {at} (GC1)", entry.kind));
        }
        match entry.kind.as_str() {
            "claim" => self.claim(entry),
            "finish" => self.finish(entry),
            "given_up" => {
                self.counts.given_up += 1;
                let is_running =
                    matches!(self.work.get(subject.as_str()), Some(Work::Running { attempt, .. }) if attempt == number);
                if !is_running {
                    self.broken(format!("{no}: attempt {number} of {subject} was given up, and did not run"));
                }
                self.given_up_at.insert((subject, *number), entry.at_us);
                self.work.insert(subject, Work::GivenUp { attempt: *number });
            }
            "gone" => {
                self.counts.gone += 1;
                if self.gone.insert(member, entry.at_us).is_some() {
                    self.broken(format!("{no}: {member} was registered again after its end"));
                }
            }
            "leader" => self.leader(entry, rules),
            "epoch" => {
                self.counts.leader_effects += 1;
                let is_held = |led: &Led| led.epoch == *number && led.taker == *member;
                if !self.led.get(subject.as_str()).is_some_and(is_held) {
                    let led = self.led.get(subject.as_str());
                    self.broken(format!(
                        "{no}: an effect of {member} as {subject} in epoch {number}, but {led:?} (GC2)"
                    ));
                }
            }
            "ticket" => self.ticket(entry),
            "run_start" => {
                if self.runs.insert(subject, false).is_some() {
                    self.broken(format!("{no}: run {subject} began twice"));
                }
            }
            "run_end" => {
                self.counts.runs += 1;
                if self.runs.insert(subject, true) != Some(false) {
                    self.broken(format!("{no}: run {subject} ended, and did not run"));
                }
            }
            "append" => {
                self.counts.requests += 1;
                if !self.appended.insert(subject) {
                    self.broken(format!("{no}: the request {subject} was carried out twice"));
                }
            }
            "set" => {
                let last = self.set_at.last_key_value().map_or(0, |(value, _)| *value);
                if *number != last + 1 {
                    self.broken(format!("{no}: the value after {last} is {number}"));
                }
                self.set_at.insert(*number, entry.at_us);
            }
            other => self.broken(format!("{no}: nobody writes {other}")),
        }
    }

    fn claim(&mut self, entry: &'a Entry) {
        let Entry { no, member, subject, number, .. } = entry;
        self.counts.claims += 1;
        let next = match self.work.get(subject.as_str()) {
            None => 1,
            Some(Work::GivenUp { attempt }) => attempt + 1,
            Some(taken @ (Work::Running { .. } | Work::Finished)) => {
                let what = format!("{no}: {member} claimed {subject}, but {taken:?}");
                self.broken(what);
                *number
            }
        };
        if *number != next {
            self.broken(format!("{no}: attempt {number} of {subject}, expected {next}"));
        }
        self.claims.insert((subject, *number), member);
        self.work.insert(subject, Work::Running { attempt: *number, member: member.clone() });
    }

    fn finish(&mut self, entry: &'a Entry) {
        let Entry { no, member, subject, number, extra, .. } = entry;
        self.counts.finishes += 1;
        match self.work.get(subject.as_str()) {
            Some(Work::Running { attempt, member: owner }) if attempt == number && owner == member => {}
            other => {
                let what = format!("{no}: {member} finished attempt {number} of {subject}, but {other:?}");
                self.broken(what);
            }
        }
        self.work.insert(subject, Work::Finished);
        let holds = |held: &BTreeSet<(&str, &str)>| held.contains(&("member", member.as_str()));
        if !extra.is_empty() && !self.tickets.get(extra.as_str()).is_some_and(holds) {
            self.broken(format!("{no}: {member} finished {subject} without its ticket of {extra}"));
        }
    }

    fn leader(&mut self, entry: &'a Entry, rules: Rules) {
        let Entry { no, member, subject, number, .. } = entry;
        let known = self.led.get(subject.as_str());
        if known.is_some_and(|led| *number == led.epoch) {
            // Given up, or seized anew by nobody.
            if !member.is_empty() {
                self.broken(format!("{no}: {member} became {subject} in epoch {number}, which was given before (GC2)"));
            }
            return;
        }
        if let Some(led) = known.filter(|led| *number < led.epoch) {
            let what = format!("{no}: epoch {number} of {subject} came after {} (GC2)", led.epoch);
            self.broken(what);
        }
        if let Some((after, least)) = rules.epoch_min
            && entry.at_us > after
            && *number < least
        {
            self.broken(format!(
                "{no}: epoch {number} of {subject} after the failover, at least {least} was due (GC2)"
            ));
        }
        if self.gone.contains_key(member.as_str()) {
            self.broken(format!("{no}: {member} became {subject} after its end (GC1)"));
        }
        self.counts.takeovers += 1;
        self.led.insert(subject, Led { epoch: *number, taker: member.clone() });
    }

    fn ticket(&mut self, entry: &'a Entry) {
        let Entry { no, member: holder, subject: key, extra: holder_kind, .. } = entry;
        let limit = if key.starts_with("lane ") { 1 } else { PERMIT_LIMIT };
        let is_gone = holder_kind == "member" && self.gone.contains_key(holder.as_str());
        let has_ended = self.runs.get(holder.as_str()) == Some(&true);
        let held = self.tickets.entry(key).or_default();
        let pair = (holder_kind.as_str(), holder.as_str());
        let mut broken = Vec::new();
        if entry.number > 0 {
            self.counts.tickets += 1;
            if !held.insert(pair) {
                broken.push(format!("{no}: {holder} got a second ticket of {key}"));
            }
            if i64::try_from(held.len()).unwrap_or(i64::MAX) > limit {
                broken.push(format!("{no}: {} tickets of {key} are out, {limit} may be (C16)", held.len()));
            }
            if is_gone {
                broken.push(format!("{no}: a ticket of {key} was given to {holder} after its end"));
            }
        } else {
            if !held.remove(&pair) {
                broken.push(format!("{no}: {holder} gave back a ticket of {key} that it had not"));
            }
            if holder_kind == "run" && !has_ended {
                broken.push(format!("{no}: run {holder} lost its ticket of {key} before its end (C16)"));
            }
        }
        self.violations.append(&mut broken);
    }

    fn lines(&mut self, process: &str, lines: &'a [Line], rules: Rules) {
        let mut fenced: BTreeSet<&str> = BTreeSet::new();
        for line in lines {
            match line.kind.as_str() {
                "fenced" => drop(fenced.insert(line.word(0))),
                "effect" => {
                    let member = line.word(0);
                    if fenced.contains(member) {
                        self.broken(format!(
                            "{process}: an effect of {member} after its executions were stopped (GC1)"
                        ));
                    }
                    self.effect(process, line, rules);
                }
                "answered" if !rules.may_lose && !self.appended.contains(line.word(0)) => {
                    self.broken(format!("{process}: the request {} was answered, and not carried out", line.word(0)));
                }
                "read" => {
                    self.counts.reads += 1;
                    let (value, stale_us) = (line.word(1).parse().unwrap_or(-1), micros(rules.stale_max));
                    let next: Option<&i64> = self.set_at.get(&(value + 1));
                    if let Some(age) = next.map(|at| line.wall_us - at).filter(|age| *age > stale_us) {
                        self.broken(format!("{process}: used {value} {} ms after it was changed", age / 1_000));
                    }
                }
                _ => {}
            }
        }
    }

    fn effect(&mut self, process: &str, line: &Line, rules: Rules) {
        self.counts.effects += 1;
        let late_us = micros(rules.late_max);
        let (member, work) = (line.word(0), line.word(1));
        let attempt: i64 = line.word(2).parse().unwrap_or(-1);
        if let Some(at) = self.gone.get(member).filter(|at| line.wall_us > **at + late_us) {
            let late = (line.wall_us - at) / 1_000;
            self.broken(format!("{process}: an effect of {member} {late} ms after its end (GC1)"));
        }
        if let Some(at) = self.given_up_at.get(&(work, attempt)).filter(|at| line.wall_us > **at + late_us) {
            let late = (line.wall_us - at) / 1_000;
            self.broken(format!(
                "{process}: an effect on attempt {attempt} of {work} {late} ms after it was taken (GC1)"
            ));
        }
        match self.claims.get(&(work, attempt)) {
            Some(owner) if *owner == member => {}
            None if rules.may_lose => {}
            Some(_) if rules.may_lose => {}
            other => {
                let what = format!("{process}: {member} worked on attempt {attempt} of {work}, claimed by {other:?}");
                self.broken(what);
            }
        }
    }

    fn broken(&mut self, what: String) {
        self.violations.push(what);
    }
}

fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
