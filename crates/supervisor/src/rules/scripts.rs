//! The rules by script: what is put in, line by line, and all that comes out.
//!
//! A line is a time in milliseconds and an input. Ticks come by themselves whenever they are due, processes are spawned
//! at once, and pings are answered at once and not shown, unless the process was told to be `mute`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use expect_test::{Expect, expect};

use super::*;

const MS: u64 = 1_000_000;

#[track_caller]
fn check(config: Config, script: &str, expected: &Expect) {
    expected.assert_eq(&play(config, script));
}

fn two_and_one() -> Config {
    Config { owners: 2, frontends: 1, restart: RestartPolicy::default(), on_slot_failed: OnSlotFailed::Serve }
}

fn one_and_one() -> Config {
    Config { owners: 1, ..two_and_one() }
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
            let role = if words[1] == "owner" { Role::Owner } else { Role::Frontend };
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
    let start = if config.owners == 1 { ONE_STARTED } else { STARTED };
    let prefix = play(config, start);
    let whole = play(config, &format!("{start}{script}"));
    expected.assert_eq(whole.strip_prefix(&prefix).expect("the start is the same"));
}

#[test]
fn frontends_go_when_every_slot_is_ready_and_linked() {
    check(
        two_and_one(),
        STARTED,
        &expect![[r#"
             0 spawn owner 0
             0 spawn owner 1
             0 spawn frontend 0
             1 ids from 40
             2 link owner 0.1 frontend 0.1
             3 ids from 7
             3 link owner 1.1 frontend 0.1
             3 tell frontend 0.1: go
             3 serving
    "#]],
    );
}

#[test]
fn a_slot_that_fails_at_the_first_start_ends_the_start() {
    check(
        two_and_one(),
        "0 begin
         1 ready owner 0
         2 exits owner 1 11
         3 dies owner 0
         4 dies frontend 0",
        &expect![[r#"
                 0 spawn owner 0
                 0 spawn owner 1
                 0 spawn frontend 0
                 1 ids from 1
                 2 # owner 1 exited with code 11
                 2 close the listeners
                 2 # owner 0.1 killed: the start of the server has failed
                 2 kill owner 0.1
                 2 # frontend 0.1 killed: the start of the server has failed
                 2 kill frontend 0.1
                 4 finish: the start of owner 1 failed
        "#]],
    );
}

#[test]
fn a_process_that_cannot_be_spawned_ends_the_start() {
    check(
        two_and_one(),
        "0 unspawnable owner 0
         0 begin
         1 dies owner 1
         1 dies frontend 0",
        &expect![[r#"
            0 spawn owner 0
            0 spawn owner 1
            0 spawn frontend 0
            0 # owner 0 could not be started: no memory
            0 close the listeners
            0 # owner 1.1 killed: the start of the server has failed
            0 kill owner 1.1
            0 # frontend 0.1 killed: the start of the server has failed
            0 kill frontend 0.1
            1 finish: the start of owner 0 failed
        "#]],
    );
}

#[test]
fn a_dead_owner_is_restarted_alone_and_linked_anew() {
    check_started(
        two_and_one(),
        "500 dies owner 1
         900 ready owner 1 50",
        &expect![[r#"
               500 tell frontend 0.1: owner 1.1 is gone
               500 # owner 1 was ended by signal 9
               500 # owner 1 again in 104 ms
               605 spawn owner 1
               900 ids from 50
               900 link owner 1.2 frontend 0.1
        "#]],
    );
}

#[test]
fn a_dead_frontend_is_told_to_owners_and_goes_as_soon_as_it_is_linked() {
    check_started(
        two_and_one(),
        "500 dies frontend 0
         700 dies owner 1
         800 ready frontend 0
         900 ready owner 1",
        &expect![[r#"
               500 tell owner 0.1: frontend 0.1 is gone
               500 tell owner 1.1: frontend 0.1 is gone
               500 # frontend 0 was ended by signal 9
               500 # frontend 0 again in 104 ms
               605 spawn frontend 0
               700 # owner 1 was ended by signal 9
               700 # owner 1 again in 105 ms
               800 link owner 0.1 frontend 0.2
               800 tell frontend 0.2: go
               806 spawn owner 1
               900 ids from 1
               900 link owner 1.2 frontend 0.2
        "#]],
    );
}

#[test]
fn delays_double_up_to_a_bound_and_calm_time_resets_them() {
    let config = Config { restart: RestartPolicy { limit: 100, ..RestartPolicy::default() }, ..one_and_one() };
    check_started(
        config,
        "1000 dies owner 0
         2000 dies owner 0
         3000 dies owner 0
         4000 dies owner 0
         6000 dies owner 0
         9000 dies owner 0
        14000 dies owner 0
        20000 dies owner 0
        26000 ready owner 0
        85999 dies owner 0
        92000 ready owner 0
       152000 dies owner 0
       153000 ready owner 0",
        &expect![[r#"
            1000 tell frontend 0.1: owner 0.1 is gone
            1000 # owner 0 was ended by signal 9
            1000 # owner 0 again in 104 ms
            1105 spawn owner 0
            2000 # owner 0 was ended by signal 9
            2000 # owner 0 again in 210 ms
            2211 spawn owner 0
            3000 # owner 0 was ended by signal 9
            3000 # owner 0 again in 441 ms
            3442 spawn owner 0
            4000 # owner 0 was ended by signal 9
            4000 # owner 0 again in 770 ms
            4771 spawn owner 0
            6000 # owner 0 was ended by signal 9
            6000 # owner 0 again in 1419 ms
            7420 spawn owner 0
            9000 # owner 0 was ended by signal 9
            9000 # owner 0 again in 3664 ms
            12664 spawn owner 0
            14000 # owner 0 was ended by signal 9
            14000 # owner 0 again in 4400 ms
            18400 spawn owner 0
            20000 # owner 0 was ended by signal 9
            20000 # owner 0 again in 4535 ms
            24535 spawn owner 0
            26000 ids from 1
            26000 link owner 0.9 frontend 0.1
            85999 tell frontend 0.1: owner 0.9 is gone
            85999 # owner 0 was ended by signal 9
            85999 # owner 0 again in 5515 ms
            91514 spawn owner 0
            92000 ids from 1
            92000 link owner 0.10 frontend 0.1
            152000 tell frontend 0.1: owner 0.10 is gone
            152000 # owner 0 was ended by signal 9
            152000 # owner 0 again in 101 ms
            152102 spawn owner 0
            153000 ids from 1
            153000 link owner 0.11 frontend 0.1
        "#]],
    );
}

#[test]
fn one_restart_above_the_limit_fails_the_slot_until_somebody_asks() {
    let config = Config {
        restart: RestartPolicy { limit: 2, window: Duration::from_secs(30), ..RestartPolicy::default() },
        ..one_and_one()
    };
    check_started(
        config,
        "1000 dies owner 0
         2000 dies owner 0
        30999 ready owner 0
        31000 dies owner 0
        31900 dies owner 0
        60000 wait
        60000 restart frontend 0
        60000 restart owner 7
        60001 restart owner 0
        60001 restart owner 0
        60002 ready owner 0",
        &expect![[r#"
            1000 tell frontend 0.1: owner 0.1 is gone
            1000 # owner 0 was ended by signal 9
            1000 # owner 0 again in 104 ms
            1105 spawn owner 0
            2000 # owner 0 was ended by signal 9
            2000 # owner 0 again in 210 ms
            2211 spawn owner 0
            30999 ids from 1
            30999 link owner 0.3 frontend 0.1
            31000 tell frontend 0.1: owner 0.3 is gone
            31000 # owner 0 was ended by signal 9
            31000 # owner 0 again in 441 ms
            31442 spawn owner 0
            31900 # owner 0 was ended by signal 9
            31900 # owner 0 has failed: was ended by signal 9
            60000 refused: frontend 0 has not failed
            60000 refused: there is no owner 7
            60001 spawn owner 0
            60001 refused: owner 0 has not failed
            60002 ids from 1
            60002 link owner 0.5 frontend 0.1
        "#]],
    );
}

#[test]
fn final_exit_codes_fail_the_slot_at_once_except_a_failed_write() {
    check_started(
        two_and_one(),
        "1000 failed-write owner 0
         2000 ready owner 0
         3000 exits owner 0 10
         4000 exits owner 1 11
         5000 exits frontend 0 12",
        &expect![[r#"
              1000 tell frontend 0.1: owner 0.1 is gone
              1000 # owner 0 exited with code 10: EIO
              1000 # owner 0 again in 104 ms
              1105 spawn owner 0
              2000 ids from 1
              2000 link owner 0.2 frontend 0.1
              3000 tell frontend 0.1: owner 0.2 is gone
              3000 # owner 0 exited with code 10
              3000 # owner 0 has failed: exited with code 10
              4000 tell frontend 0.1: owner 1.1 is gone
              4000 # owner 1 exited with code 11
              4000 # owner 1 has failed: exited with code 11
              5000 # frontend 0 exited with code 12
              5000 # frontend 0 has failed: exited with code 12
        "#]],
    );
}

#[test]
fn a_failed_slot_ends_the_server_where_that_is_the_policy() {
    check_started(
        Config { on_slot_failed: OnSlotFailed::Stop, ..two_and_one() },
        "1000 exits owner 1 11
         1100 exits frontend 0 0
         1200 exits owner 0 0",
        &expect![[r#"
              1000 tell frontend 0.1: owner 1.1 is gone
              1000 # owner 1 exited with code 11
              1000 # owner 1 has failed: exited with code 11
              1000 # stopping
              1000 close the listeners
              1000 tell frontend 0.1: barrier within 6000 ms
              1100 tell owner 0.1: frontend 0.1 is gone
              1100 tell owner 0.1: stop within 9900 ms
              1200 finish: owner 1 failed
        "#]],
    );
}

#[test]
fn a_silent_process_is_killed_after_ten_pings_and_restarted() {
    check_started(
        one_and_one(),
        "500 mute owner 0
        12000 dies owner 0
        12500 ready owner 0",
        &expect![[r#"
             11000 # owner 0.1 killed: it answered no ping for 10 s
             11000 kill owner 0.1
             12000 tell frontend 0.1: owner 0.1 is gone
             12000 # owner 0 was ended by signal 9
             12000 # owner 0 again in 104 ms
             12105 spawn owner 0
             12500 ids from 1
             12500 link owner 0.2 frontend 0.1
        "#]],
    );
}

#[test]
fn an_answer_at_the_last_moment_saves_a_process() {
    check_started(
        one_and_one(),
        "500 mute owner 0
        10990 pong owner 0 10
        20000 wait",
        &expect![""],
    );
}

#[test]
fn a_long_sync_is_reported_and_never_ends_a_process() {
    check_started(
        one_and_one(),
        "900 syncing owner 0 59000
         2500 mute owner 0
       200000 wait",
        &expect![[r#"
            60000 # owner 0.1 syncs for 60 s
            120000 # owner 0.1 syncs for 120 s
            180000 # owner 0.1 syncs for 180 s
        "#]],
    );
}

#[test]
fn a_long_start_is_reported_and_never_ends_a_process() {
    check(
        one_and_one(),
        "0 begin
         1 ready frontend 0
    125000 ready owner 0",
        &expect![[r#"
            0 spawn owner 0
            0 spawn frontend 0
            60000 # owner 0.1 starts for 60 s
            120000 # owner 0.1 starts for 120 s
            125000 ids from 1
            125000 link owner 0.1 frontend 0.1
            125000 tell frontend 0.1: go
            125000 serving
        "#]],
    );
}

#[test]
fn a_drain_asks_owners_then_frontends_then_reports() {
    check_started(
        two_and_one(),
        "500 drain
         501 acks owner 1
         502 drain
         503 acks owner 0
         504 acks frontend 0
         600 drain",
        &expect![[r#"
               500 set the flag
               500 # draining
               500 tell owner 0.1: drain
               500 tell owner 1.1: drain
               503 tell frontend 0.1: drain
               504 # drained
               600 # drained
        "#]],
    );
}

#[test]
fn a_dead_owner_has_acknowledged_when_its_successor_was_started_drained() {
    check_started(
        two_and_one(),
        "400 dies owner 1
         410 drain
         420 acks owner 0
         900 acks frontend 0
         950 ready owner 1
        1000 dies owner 0",
        &expect![[r#"
            400 tell frontend 0.1: owner 1.1 is gone
            400 # owner 1 was ended by signal 9
            400 # owner 1 again in 104 ms
            410 set the flag
            410 # draining
            410 tell owner 0.1: drain
            505 spawn owner 1 drained
            505 tell frontend 0.1: drain
            900 # drained
            950 ids from 1
            950 link owner 1.2 frontend 0.1
            1000 tell frontend 0.1: owner 0.1 is gone
            1000 # owner 0 was ended by signal 9
            1000 # owner 0 again in 105 ms
        "#]],
    );
}

#[test]
fn a_failed_slot_does_not_hold_up_a_drain_and_comes_back_drained() {
    check_started(
        two_and_one(),
        "400 exits owner 1 11
         500 drain
         501 acks owner 0
         502 acks frontend 0
         600 restart owner 1",
        &expect![[r#"
               400 tell frontend 0.1: owner 1.1 is gone
               400 # owner 1 exited with code 11
               400 # owner 1 has failed: exited with code 11
               500 set the flag
               500 # draining
               500 tell owner 0.1: drain
               501 tell frontend 0.1: drain
               502 # drained
               600 spawn owner 1 drained
        "#]],
    );
}

#[test]
fn a_drain_during_the_start_reaches_everybody() {
    check(
        two_and_one(),
        "0 begin
         1 drain
         2 ready owner 0
         3 ready owner 1
         4 acks owner 1
         5 ready frontend 0
         6 acks owner 0
         7 acks frontend 0",
        &expect![[r#"
                 0 spawn owner 0
                 0 spawn owner 1
                 0 spawn frontend 0
                 1 set the flag
                 1 # draining
                 1 tell owner 0.1: drain
                 1 tell owner 1.1: drain
                 2 ids from 1
                 3 ids from 1
                 5 link owner 0.1 frontend 0.1
                 5 link owner 1.1 frontend 0.1
                 5 tell frontend 0.1: go
                 5 serving
                 6 tell frontend 0.1: drain
                 7 # drained
        "#]],
    );
}

#[test]
fn a_stop_ends_frontends_before_owners() {
    check_started(
        two_and_one(),
        "500 stop
         600 exits owner 1 0
         700 exits frontend 0 0
         800 exits owner 0 0
         900 stop",
        &expect![[r#"
            500 # stopping
            500 close the listeners
            500 tell frontend 0.1: barrier within 6000 ms
            600 tell frontend 0.1: owner 1.1 is gone
            600 # owner 1 stopped badly: exited with code 0
            700 tell owner 0.1: frontend 0.1 is gone
            700 tell owner 0.1: stop within 9800 ms
            800 finish: owner 1 stopped badly
        "#]],
    );
}

#[test]
fn a_stop_kills_what_does_not_end_in_time() {
    check_started(
        two_and_one(),
        "1000 stop
         7100 dies frontend 0
        11100 dies owner 0
        11200 dies owner 1",
        &expect![[r#"
            1000 # stopping
            1000 close the listeners
            1000 tell frontend 0.1: barrier within 6000 ms
            7000 # frontend 0.1 killed: the server stops
            7000 kill frontend 0.1
            7100 tell owner 0.1: frontend 0.1 is gone
            7100 tell owner 1.1: frontend 0.1 is gone
            7100 tell owner 0.1: stop within 3900 ms
            7100 tell owner 1.1: stop within 3900 ms
            11000 # owner 0.1 killed: the server stops
            11000 kill owner 0.1
            11000 # owner 1.1 killed: the server stops
            11000 kill owner 1.1
            11200 finish: frontend 0 stopped badly
        "#]],
    );
}

#[test]
fn a_stop_ends_even_if_the_kernel_does_not_let_a_process_go() {
    check_started(
        one_and_one(),
        "1000 stop
        30000 wait",
        &expect![[r#"
            1000 # stopping
            1000 close the listeners
            1000 tell frontend 0.1: barrier within 6000 ms
            7000 # frontend 0.1 killed: the server stops
            7000 kill frontend 0.1
            11000 # owner 0.1 killed: the server stops
            11000 kill owner 0.1
            12000 finish: frontend 0 stopped badly
        "#]],
    );
}

#[test]
fn a_failed_last_write_is_no_orderly_stop() {
    check_started(
        one_and_one(),
        "1000 stop
         1001 exits frontend 0 0
         1002 failed-write owner 0",
        &expect![[r#"
              1000 # stopping
              1000 close the listeners
              1000 tell frontend 0.1: barrier within 6000 ms
              1001 tell owner 0.1: frontend 0.1 is gone
              1001 tell owner 0.1: stop within 9999 ms
              1002 # owner 0 stopped badly: exited with code 10: EIO
              1002 finish: owner 0 stopped badly
        "#]],
    );
}

#[test]
fn a_stop_during_the_start_and_during_a_restart_starts_nothing_more() {
    check(
        two_and_one(),
        "0 begin
         1 ready owner 0
         2 stop
         3 dies owner 1
         4 dies frontend 0
         5 exits owner 0 0",
        &expect![[r#"
                 0 spawn owner 0
                 0 spawn owner 1
                 0 spawn frontend 0
                 1 ids from 1
                 2 # stopping
                 2 close the listeners
                 2 # owner 1.1 killed: the server stops
                 2 kill owner 1.1
                 2 # frontend 0.1 killed: the server stops
                 2 kill frontend 0.1
                 4 tell owner 0.1: stop within 9998 ms
                 5 finish: stopped
        "#]],
    );
    check_started(
        two_and_one(),
        "500 dies owner 1
         510 stop
         520 exits frontend 0 0
         530 exits owner 0 0",
        &expect![[r#"
               500 tell frontend 0.1: owner 1.1 is gone
               500 # owner 1 was ended by signal 9
               500 # owner 1 again in 104 ms
               510 # stopping
               510 close the listeners
               510 tell frontend 0.1: barrier within 6000 ms
               520 tell owner 0.1: frontend 0.1 is gone
               520 tell owner 0.1: stop within 9990 ms
               530 finish: stopped
        "#]],
    );
}

#[test]
fn a_process_that_breaks_the_rules_is_killed() {
    check_started(
        two_and_one(),
        "500 ready owner 0
         501 acks owner 1
         502 pong frontend 0 77
         503 dies owner 0
         504 dies owner 1
         505 dies frontend 0",
        &expect![[r#"
               500 # owner 0.1 killed: it broke the rules of the control channel
               500 kill owner 0.1
               501 # owner 1.1 killed: it broke the rules of the control channel
               501 kill owner 1.1
               502 # frontend 0.1 killed: it broke the rules of the control channel
               502 kill frontend 0.1
               503 # owner 0 was ended by signal 9
               503 # owner 0 again in 104 ms
               504 # owner 1 was ended by signal 9
               504 # owner 1 again in 105 ms
               505 # frontend 0 was ended by signal 9
               505 # frontend 0 again in 110 ms
        "#]],
    );
}

/// S22: one report or two, a report of an older link, a break that comes back at once, one with the end of a process,
/// and one with the end of a process in a stop, which is nothing to tell of.
#[test]
fn a_broken_link_is_replaced_once_and_ever_later() {
    check_started(
        one_and_one(),
        "500 link-lost owner 0 0
         501 link-lost frontend 0 0
         700 link-lost frontend 0 0 older
         701 link-lost frontend 0 0
         702 link-lost owner 0 0
         2000 link-lost owner 0 0
         2001 dies frontend 0
         2400 ready frontend 0
         2500 link-lost frontend 0 0
         2600 stop
         2999 link-lost owner 0 0
         3000 exits frontend 0 0
         3100 exits owner 0 0",
        &expect![[r#"
            500 # the link owner 0.1 frontend 0.1 is broken, again in 104 ms
            605 link owner 0.1 frontend 0.1
            701 # the link owner 0.1 frontend 0.1 is broken, again in 210 ms
            912 link owner 0.1 frontend 0.1
            2000 # the link owner 0.1 frontend 0.1 is broken, again in 441 ms
            2001 tell owner 0.1: frontend 0.1 is gone
            2001 # frontend 0 was ended by signal 9
            2001 # frontend 0 again in 96 ms
            2098 spawn frontend 0
            2400 link owner 0.1 frontend 0.2
            2400 tell frontend 0.2: go
            2500 # the link owner 0.1 frontend 0.2 is broken, again in 88 ms
            2589 link owner 0.1 frontend 0.2
            2600 # stopping
            2600 close the listeners
            2600 tell frontend 0.2: barrier within 6000 ms
            3000 tell owner 0.1: frontend 0.2 is gone
            3000 tell owner 0.1: stop within 9600 ms
            3100 finish: stopped
        "#]],
    );
}

/// S26: replies that a frontend had may be lost with it, so the end is not said to be in order.
#[test]
fn a_frontend_killed_during_the_stop_is_no_orderly_stop() {
    check_started(
        one_and_one(),
        "500 stop
         510 dies frontend 0
         520 exits owner 0 0",
        &expect![[r#"
            500 # stopping
            500 close the listeners
            500 tell frontend 0.1: barrier within 6000 ms
            510 tell owner 0.1: frontend 0.1 is gone
            510 # frontend 0 stopped badly: was ended by signal 9
            510 tell owner 0.1: stop within 9990 ms
            520 finish: frontend 0 stopped badly
        "#]],
    );
}
