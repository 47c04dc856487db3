//! One order of steps, and all of them.
//!
//! Owns: who can go on, the search for the next order, the text of what happened.

use std::fmt::Write as _;

use database_core::{Answer, Class, DbError, Script, Sql, Step, Value, Verdict};

use super::{Bench, Case, tell};

/// Orders of one case, at most. A case with more does not end in a test's time; see [`Case::switches`].
const ORDERS_MAX: usize = 5_000;
/// Steps of one order, at most: a script that goes on for ever is a defect of the script.
const STEPS_MAX: usize = 1_000;

/// What happened in one order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Played {
    /// Who made each step: a session by its place, the clock by the number of sessions.
    pub order: Vec<usize>,
    /// Everything, line by line.
    pub text: String,
    /// What the scripts of all sessions gave, by session, and then the last ones: without the order in which it happened.
    pub results: String,
    /// How often somebody had to wait.
    pub waits: usize,
}

/// Plays every order of a case, and hands each to `see`. Gives how many there were.
///
/// # Panics
///
/// If there are more than [`ORDERS_MAX`], or a script does not end.
pub fn explore(bench: &mut dyn Bench, case: &Case, mut see: impl FnMut(&Played)) -> usize {
    let mut choices: Vec<Choice> = Vec::new();
    for count in 1.. {
        assert!(count <= ORDERS_MAX, "{case:?} has more than {ORDERS_MAX} orders");
        let mut game = Game::new(bench, case);
        let mut at = 0;
        while let Some(able) = game.able() {
            if at == choices.len() {
                choices.push(Choice { able, taken: 0 });
            }
            // What a bench does depends on nothing but the order, or it is of no use.
            assert_eq!(choices[at].able.len(), game.able().map_or(0, |able| able.len()), "{case:?}: another world");
            game.step(choices[at].able[choices[at].taken]);
            at += 1;
        }
        see(&game.finish());
        while choices.last().is_some_and(|choice| choice.taken + 1 == choice.able.len()) {
            choices.pop();
        }
        match choices.last_mut() {
            Some(choice) => choice.taken += 1,
            None => return count,
        }
    }
    unreachable!("numbers end after the orders")
}

/// Plays a case in an order that another bench allowed. Where this one does not, the text says so and ends.
pub fn play(bench: &mut dyn Bench, case: &Case, order: &[usize]) -> Played {
    let mut game = Game::new(bench, case);
    for who in order {
        if !game.able().is_some_and(|able| able.contains(who)) {
            let _ = writeln!(game.text, "{} cannot go on", game.name(*who));
            return game.played();
        }
        game.step(*who);
    }
    if game.able().is_some() {
        game.text.push_str("somebody can still go on\n");
        return game.played();
    }
    game.finish()
}

/// Plays every order that `real` allows on both benches. Gives how many there were.
///
/// # Errors
///
/// The first order in which they differ, as both tell it.
pub fn compare(real: &mut dyn Bench, simulated: &mut dyn Bench, case: &Case) -> Result<usize, String> {
    let mut difference = None;
    let count = explore(real, case, |played| {
        if difference.is_none() {
            let other = play(simulated, case, &played.order);
            if other.text != played.text || other.results != played.results {
                let (real, simulated) = (&played.text, &other.text);
                difference = Some(format!("order {:?}\nreal:\n{real}simulated:\n{simulated}", played.order));
            }
        }
    });
    difference.map_or(Ok(count), Err)
}

/// Who could go on at a step, and who of them did.
struct Choice {
    able: Vec<usize>,
    taken: usize,
}

/// One session.
struct Session {
    /// Scripts that are begun or not begun, the next one last.
    scripts: Vec<Script<String>>,
    next: Next,
    is_in_transaction: bool,
    results: Vec<String>,
}

/// What a session does with its next step.
enum Next {
    Begin,
    Send(&'static Sql, Vec<Value>),
    End(Result<Verdict<String>, DbError>),
    /// It has a statement under way.
    Wait(&'static Sql),
    Nothing,
}

struct Game<'a> {
    bench: &'a mut dyn Bench,
    case: &'a Case,
    sessions: Vec<Session>,
    clock_at: usize,
    order: Vec<usize>,
    switches: usize,
    text: String,
    waits: usize,
}

impl<'a> Game<'a> {
    fn new(bench: &'a mut dyn Bench, case: &'a Case) -> Self {
        bench.reset(case.sessions.len());
        let sessions = case.sessions.iter().map(|(_, scripts)| Session::new(scripts.iter().map(|make| make())));
        let mut game = Self {
            bench,
            case,
            sessions: sessions.collect(),
            clock_at: 0,
            order: Vec::new(),
            switches: 0,
            text: String::new(),
            waits: 0,
        };
        let own = std::mem::replace(&mut game.sessions[0], Session::new(case.setup.iter().map(|make| make())));
        game.run_alone();
        let setup = std::mem::replace(&mut game.sessions[0], own);
        assert!(setup.results.iter().all(|result| !result.starts_with("failed")), "the setup: {:?}", setup.results);
        // What is prepared is not what is compared.
        game.text.clear();
        game
    }

    /// Lets the first session go on until it has ended.
    fn run_alone(&mut self) {
        for _ in 0..STEPS_MAX {
            if matches!(self.sessions[0].next, Next::Nothing) {
                return;
            }
            self.act(0);
        }
        panic!("{:?}: a script does not end", self.case);
    }

    fn name(&self, who: usize) -> &'static str {
        self.case.sessions.get(who).map_or("clock", |(name, _)| *name)
    }

    /// Who can make a step; `None` at the end. If all who have not ended wait for each other, time passes first.
    fn able(&mut self) -> Option<Vec<usize>> {
        loop {
            let goes_on = |session: &Session| !matches!(session.next, Next::Nothing | Next::Wait(_));
            let mut able: Vec<usize> = (0..self.sessions.len()).filter(|who| goes_on(&self.sessions[*who])).collect();
            if self.clock_at < self.case.clock_ms.len() {
                able.push(self.sessions.len());
            }
            if !able.is_empty() {
                // Who went last goes on, if nobody may be interrupted any more.
                if let Some(last) = self.order.last().copied().filter(|last| able.contains(last))
                    && self.switches >= self.case.switches_max
                {
                    return Some(vec![last]);
                }
                return Some(able);
            }
            if self.sessions.iter().all(|session| matches!(session.next, Next::Nothing)) {
                return None;
            }
            let answers = self.bench.wait();
            assert!(!answers.is_empty(), "{:?}: all wait for ever:\n{}", self.case, self.text);
            self.take(answers);
        }
    }

    fn step(&mut self, who: usize) {
        assert!(self.order.len() < STEPS_MAX, "{:?} does not end", self.case);
        let could_go_on = self.order.last().is_some_and(|last| {
            *last != who
                && self.sessions.get(*last).is_some_and(|last| !matches!(last.next, Next::Nothing | Next::Wait(_)))
        });
        self.switches += usize::from(could_go_on);
        self.order.push(who);
        if who < self.sessions.len() {
            self.act(who);
            return;
        }
        let ms = self.case.clock_ms[self.clock_at];
        self.clock_at += 1;
        self.bench.set_clock(ms);
        let _ = writeln!(self.text, "clock {ms}");
    }

    /// One step of a session, and what comes of it for all.
    fn act(&mut self, who: usize) {
        let name = self.name(who);
        let session = &mut self.sessions[who];
        match std::mem::replace(&mut session.next, Next::Nothing) {
            Next::Begin => {
                let script = session.scripts.last_mut().expect("a script that begins");
                let is_transaction = script.is_transaction();
                session.next = Next::of(script.step(None));
                if let Next::Send(sql, values) = std::mem::replace(&mut session.next, Next::Nothing) {
                    if is_transaction {
                        session.is_in_transaction = true;
                        self.bench.begin(who);
                    }
                    self.send(who, if is_transaction { "begin, " } else { "" }, sql, values);
                } else {
                    panic!("{:?}: a script of {name} has no statement", self.case);
                }
            }
            Next::Send(sql, values) => self.send(who, "", sql, values),
            Next::End(result) => self.end(who, result),
            Next::Wait(_) | Next::Nothing => panic!("{name} has no step"),
        }
    }

    fn send(&mut self, who: usize, before: &str, sql: &'static Sql, values: Vec<Value>) {
        let _ = write!(self.text, "{} {before}{}", self.name(who), tell::statement(sql, &values));
        self.sessions[who].next = Next::Wait(sql);
        self.bench.send(who, sql, values);
        let mut answers = self.bench.settle();
        match answers.iter().position(|(session, _)| *session == who) {
            None => {
                self.waits += 1;
                self.text.push_str(" waits\n");
            }
            Some(own) => {
                let (_, answer) = answers.remove(own);
                let _ = writeln!(self.text, " -> {}", tell::answer(sql, &answer));
                self.sessions[who].hear(answer);
            }
        }
        self.take(answers);
        self.conclude();
    }

    /// Answers to statements that waited.
    fn take(&mut self, answers: Vec<(usize, Result<Answer, Class>)>) {
        for (who, answer) in answers {
            let Next::Wait(sql) = self.sessions[who].next else { panic!("{} has not asked", self.name(who)) };
            let _ = writeln!(self.text, "{} -> {}", self.name(who), tell::answer(sql, &answer));
            self.sessions[who].hear(answer);
        }
        self.conclude();
    }

    /// What needs no step of its own: the end of a statement that was no transaction, and of one that failed.
    fn conclude(&mut self) {
        for who in 0..self.sessions.len() {
            let session = &mut self.sessions[who];
            let is_over = !session.is_in_transaction || matches!(session.next, Next::End(Err(_)));
            if is_over && matches!(session.next, Next::End(_)) {
                let Next::End(result) = std::mem::replace(&mut session.next, Next::Nothing) else { continue };
                if std::mem::take(&mut session.is_in_transaction) {
                    // The server has undone it already; this ends the block.
                    let _ = self.bench.end(who, false);
                }
                self.close(who, result);
                let answers = self.bench.settle();
                self.take(answers);
            }
        }
    }

    fn end(&mut self, who: usize, result: Result<Verdict<String>, DbError>) {
        self.sessions[who].is_in_transaction = false;
        let commits = matches!(result, Ok(Verdict::Commit(_)));
        let ended = self.bench.end(who, commits);
        let _ = write!(self.text, "{} {}", self.name(who), if commits { "commit" } else { "rollback" });
        let result = match ended {
            Ok(()) => {
                self.text.push('\n');
                result
            }
            Err(class) => {
                let _ = writeln!(self.text, " -> {}", format!("{class:?}").to_lowercase());
                Err(DbError::new(class, "the end of a transaction"))
            }
        };
        self.close(who, result);
        let answers = self.bench.settle();
        self.take(answers);
    }

    /// A script has ended; the next one begins with the next step.
    fn close(&mut self, who: usize, result: Result<Verdict<String>, DbError>) {
        let result = match result {
            Ok(Verdict::Commit(result) | Verdict::RollBack(result)) => result,
            Err(error) => format!("failed: {:?}", error.class).to_lowercase(),
        };
        let _ = writeln!(self.text, "{} gave {result}", self.name(who));
        let session = &mut self.sessions[who];
        session.results.push(result);
        session.scripts.pop();
        session.next = if session.scripts.is_empty() { Next::Nothing } else { Next::Begin };
    }

    /// Shows what is left.
    fn finish(mut self) -> Played {
        let finally = Session::new(self.case.finally.iter().map(|make| make()));
        let own = std::mem::replace(&mut self.sessions[0], finally);
        self.run_alone();
        let last = std::mem::replace(&mut self.sessions[0], own);
        let mut played = self.played();
        if !last.results.is_empty() {
            let _ = write!(played.results, " | {}", last.results.join(", "));
        }
        played
    }

    fn played(self) -> Played {
        let of = |who: usize| format!("{}: {}", self.name(who), self.sessions[who].results.join(", "));
        let results: Vec<String> = (0..self.sessions.len()).map(of).collect();
        Played { order: self.order, text: self.text, results: results.join(" | "), waits: self.waits }
    }
}

impl Session {
    fn new(scripts: impl Iterator<Item = Script<String>>) -> Self {
        let mut scripts: Vec<Script<String>> = scripts.collect();
        scripts.reverse();
        let next = if scripts.is_empty() { Next::Nothing } else { Next::Begin };
        Self { scripts, next, is_in_transaction: false, results: Vec::new() }
    }

    /// The script learns an answer.
    fn hear(&mut self, answer: Result<Answer, Class>) {
        let answer = answer.map_err(|class| DbError::new(class, "a statement of a case"));
        let has_failed = answer.is_err();
        let next = Next::of(self.scripts.last_mut().expect("a script that asked").step(Some(answer)));
        // No statement succeeds after one that failed, so the transaction ends whatever the script would do.
        self.next = match next {
            Next::Send(..) if has_failed => {
                Next::End(Err(DbError::new(Class::Broken, "a script goes on after an error")))
            }
            next => next,
        };
    }
}

impl Next {
    fn of(step: Step<String>) -> Self {
        match step {
            Step::Query(sql, values) => Self::Send(sql, values),
            Step::Done(result) => Self::End(result),
        }
    }
}
