//! The rules by script: what is put in, line by line, and all that comes out.
//!
//! A line is a time in milliseconds and an input. Ticks come by themselves whenever they are due, processes are spawned
//! at once, and pings are answered at once and not shown, unless the process was told to be `mute`.

mod daemon;
mod drain;
mod links;
mod restart;
mod start;
mod stop;
mod watchdog;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::message::Topology;
use expect_test::{Expect, expect};

use super::*;

const MS: u64 = 1_000_000;

#[track_caller]
fn check(config: Config, script: &str, expected: &Expect) {
    expected.assert_eq(&play(config, script));
}

fn two_and_one() -> Config {
    of(Topology::several(2, 1))
}

fn one_and_one() -> Config {
    of(Topology::several(1, 1))
}

fn of(topology: Topology) -> Config {
    Config { topology, restart: RestartPolicy::default(), on_slot_failed: OnSlotFailed::Serve }
}

struct Player {
    rules: Rules,
    text: String,
    now_ms: u64,
    generations: BTreeMap<Slot, u32>,
    mute: Vec<Slot>,
    in_sync_ms: BTreeMap<Slot, u64>,
    cannot_spawn: Vec<Slot>,
    /// Of the last link of each pair.
    numbers: BTreeMap<(Instance, Instance), u64>,
    is_over: bool,
}

fn play(config: Config, script: &str) -> String {
    let mut player = Player {
        rules: Rules::new(config, 1),
        text: String::new(),
        now_ms: 0,
        generations: BTreeMap::new(),
        mute: Vec::new(),
        in_sync_ms: BTreeMap::new(),
        cannot_spawn: Vec::new(),
        numbers: BTreeMap::new(),
        is_over: false,
    };
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (time, words) = line.split_once(' ').expect("a time and an input");
        player.advance(time.parse().expect("milliseconds"));
        let words: Vec<&str> = words.split(' ').collect();
        player.line(&words);
    }
    player.text
}

impl Player {
    fn advance(&mut self, to_ms: u64) {
        while let Some(due_ns) = self.rules.next_deadline().filter(|due_ns| *due_ns <= to_ms * MS) {
            self.now_ms = due_ns.div_ceil(MS).max(self.now_ms);
            self.put(Input::Tick);
        }
        self.now_ms = to_ms;
    }

    fn line(&mut self, words: &[&str]) {
        let place = || {
            let role = Role::ALL.into_iter().find(|role| role.name() == words[1]).expect("a role");
            Slot { role, slot: words[2].parse().expect("a slot") }
        };
        match words[0] {
            "begin" => self.put(Input::Begin),
            "drain" => self.put(Input::Drain),
            "stop" => self.put(Input::Stop),
            "wait" => {}
            "mute" => self.mute.push(place()),
            "syncing" => {
                self.in_sync_ms.insert(place(), words[3].parse().expect("milliseconds"));
            }
            "unspawnable" => self.cannot_spawn.push(place()),
            "restart" => {
                let mut out = Vec::new();
                if let Err(refusal) = self.rules.restart_slot(place(), &mut out) {
                    self.show(&format!("refused: {refusal}"));
                }
                self.carry_out(out);
            }
            "ready" => {
                let next_id = words.get(3).map_or(1, |count| count.parse().expect("a count"));
                let generation = self.instance(place()).generation;
                self.say(place(), FromChild::Ready { generation, jobs: 0, next_id });
            }
            // By owner or frontend, of the link between `owner A` and `frontend B`: the last, or an older one.
            "link-lost" => {
                let place = |role, at: usize| Slot { role, slot: words[at].parse().expect("a slot") };
                let owner = self.instance(place(Role::Owner, 2));
                let frontend = self.instance(place(Role::Frontend, 3));
                let number = self.numbers[&(owner, frontend)] - u64::from(words.get(4) == Some(&"older"));
                let (by, peer) = if words[1] == "owner" { (owner, frontend) } else { (frontend, owner) };
                self.put(Input::Said { by, report: FromChild::LinkLost { peer, number } });
            }
            "acks" => self.say(place(), FromChild::Drained),
            "failed-write" => {
                self.say(place(), FromChild::Failed { cause: FailureCause::Write, reason: "EIO".into() });
                self.end(place(), Ending::Code(10));
            }
            "pong" => {
                let generation = self.instance(place()).generation;
                let nonce = words[3].parse().expect("a nonce");
                self.say(place(), FromChild::Pong { generation, nonce, in_sync_ms: None });
            }
            "exits" => self.end(place(), Ending::Code(words[3].parse().expect("a code"))),
            "dies" => self.end(place(), Ending::Signal(9)),
            other => panic!("unknown input {other}"),
        }
    }

    fn instance(&self, place: Slot) -> Instance {
        Instance { role: place.role, slot: place.slot, generation: self.generations[&place] }
    }

    fn say(&mut self, place: Slot, report: FromChild) {
        self.put(Input::Said { by: self.instance(place), report });
    }

    fn end(&mut self, place: Slot, how: Ending) {
        self.put(Input::Ended { who: self.instance(place), how });
    }

    fn put(&mut self, input: Input) {
        let mut out = Vec::new();
        self.rules.handle(self.now_ms * MS, input, &mut out);
        self.carry_out(out);
    }

    fn carry_out(&mut self, outputs: Vec<Output>) {
        assert!(!self.is_over || outputs.is_empty(), "outputs after the end: {outputs:?}");
        let short = |who: Instance| format!("{} {}.{}", who.role, who.slot, who.generation);
        let mut inputs = Vec::new();
        for output in outputs {
            match output {
                Output::Spawn { place, drained } => {
                    self.show(&format!("spawn {place}{}", if drained { " drained" } else { "" }));
                    if self.cannot_spawn.contains(&place) {
                        inputs.push(Input::NotSpawned { place, reason: "no memory".into() });
                    } else {
                        let generation = self.generations.entry(place).or_insert(0);
                        *generation += 1;
                        inputs.push(Input::Spawned { place, generation: *generation });
                    }
                }
                Output::Tell { who, what: Instruction::Ping { nonce } } => {
                    if !self.mute.contains(&who.place()) {
                        let in_sync_ms = self.in_sync_ms.get(&who.place()).copied();
                        let report = FromChild::Pong { generation: who.generation, nonce, in_sync_ms };
                        inputs.push(Input::Said { by: who, report });
                    }
                }
                Output::Tell { who, what } => {
                    let what = match what {
                        Instruction::PeerGone(peer) => format!("{} is gone", short(peer)),
                        Instruction::Go => "go".into(),
                        Instruction::Drain => "drain".into(),
                        Instruction::Barrier { within_ms } => format!("barrier within {within_ms} ms"),
                        Instruction::Stop { within_ms } => format!("stop within {within_ms} ms"),
                        Instruction::Ping { .. } => unreachable!("handled above"),
                    };
                    self.show(&format!("tell {}: {what}", short(who)));
                }
                Output::Link { owner, frontend, number } => {
                    self.numbers.insert((owner, frontend), number);
                    self.show(&format!("link {} {}", short(owner), short(frontend)));
                }
                Output::Kill { who } => self.show(&format!("kill {}", short(who))),
                Output::RaiseIdCount { at_least } => self.show(&format!("ids from {at_least}")),
                Output::SetDraining => self.show("set the flag"),
                Output::Serving => self.show("serving"),
                Output::CloseListeners => self.show("close the listeners"),
                Output::FeedWatchdog | Output::Report(Report::Started(_) | Report::Ready { .. }) => {}
                Output::Report(report) => {
                    let text = match report {
                        Report::Crashed { place, failure } => format!("{place} {failure}"),
                        Report::StoppedBadly { place, failure } => format!("{place} stopped badly: {failure}"),
                        Report::Restarting { place, delay_ms } => format!("{place} again in {delay_ms} ms"),
                        Report::SlotFailed { place, failure } => format!("{place} has failed: {failure}"),
                        Report::Killed { who, why } => format!("{} killed: {why}", short(who)),
                        Report::LinkBroken { owner, frontend, delay_ms } => {
                            format!("the link {} {} is broken, again in {delay_ms} ms", short(owner), short(frontend))
                        }
                        Report::LongSync { who, seconds } => format!("{} syncs for {seconds} s", short(who)),
                        Report::LongStart { who, seconds } => format!("{} starts for {seconds} s", short(who)),
                        Report::Draining => "draining".into(),
                        Report::Drained => "drained".into(),
                        Report::Stopping => "stopping".into(),
                        Report::Started(_) | Report::Ready { .. } => unreachable!("handled above"),
                    };
                    self.show(&format!("# {text}"));
                }
                Output::Finish(outcome) => {
                    self.is_over = true;
                    let text = match outcome {
                        Outcome::Stopped => "stopped".to_owned(),
                        Outcome::StartFailed { place, .. } => format!("the start of {place} failed"),
                        Outcome::SlotFailed { place, .. } => format!("{place} failed"),
                        Outcome::StoppedBadly { place, .. } => format!("{place} stopped badly"),
                    };
                    self.show(&format!("finish: {text}"));
                }
            }
        }
        inputs.into_iter().for_each(|input| self.put(input));
    }

    fn show(&mut self, what: &str) {
        let _ = writeln!(self.text, "{} {what}", self.now_ms);
    }
}

const STARTED: &str = "
    0 begin
    1 ready owner 0 40
    2 ready frontend 0
    3 ready owner 1 7
";

const ONE_STARTED: &str = "
    0 begin
    1 ready owner 0
    2 ready frontend 0
";

/// The script after the part that starts the server, of which only the input is wanted.
#[track_caller]
fn check_started(config: Config, script: &str, expected: &Expect) {
    let start = if config.topology.owners == 1 { ONE_STARTED } else { STARTED };
    let prefix = play(config, start);
    let whole = play(config, &format!("{start}{script}"));
    expected.assert_eq(whole.strip_prefix(&prefix).expect("the start is the same"));
}
