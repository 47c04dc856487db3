//! The history checker: honest histories pass, and each kind of forgery is caught as what it is.
//!
//! A script is a line per command: `<ms> <connection> <command> -> <reply>`, decided and numbered in the order of the
//! lines. `-> ?` was decided, but the client never heard; `-> ??` was sent and never decided. `close` ends a connection,
//! `kill` the generation; `end` and `present <id> <body>` say what is left. `@decided=`, `@invoked=`, `@answered=` (ms),
//! `@number=` and `@line` (a line of the trace as it stands) forge.

use std::collections::BTreeMap;
use std::fmt::Write;

use testing::history::{History, Kind, Report, body_hash, check};

#[derive(Default)]
struct Writer {
    clients: String,
    trace: String,
    generation: u64,
    number: u64,
    /// Connection of the script to connection of the history, its number at the server, and its commands so far.
    connections: BTreeMap<u64, (u64, u64, u64)>,
    opened: u64,
    accepted: u64,
}

const MS: u64 = 1_000_000;

impl Writer {
    fn start(&mut self, at_ms: u64) {
        self.generation += 1;
        self.number = 0;
        self.accepted = 0;
        self.connections.clear();
        writeln!(self.trace, "start {} {}", self.generation, at_ms * MS).unwrap();
    }

    fn connection(&mut self, name: u64, at_ms: u64) -> (u64, u64) {
        if !self.connections.contains_key(&name) {
            self.opened += 1;
            self.accepted += 1;
            self.connections.insert(name, (self.opened, self.accepted, 0));
            let port = 40_000 + self.opened;
            writeln!(self.clients, "open {} {port} {}", self.opened, at_ms * MS).unwrap();
            writeln!(self.trace, "accept {} {} {port} {}", self.generation, self.accepted, at_ms * MS).unwrap();
        }
        let (key, number, _) = self.connections[&name];
        (key, number)
    }

    fn line(&mut self, line: &str) {
        let mut words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "kill" => return self.start(words[1].parse().unwrap()),
            "end" => return writeln!(self.clients, "end 0").unwrap(),
            "present" => {
                return writeln!(self.clients, "present {} {:x}", words[1], body_hash(words[2].as_bytes())).unwrap();
            }
            "@line" => return writeln!(self.trace, "{}", words[1..].join(" ")).unwrap(),
            _ => {}
        }
        let mut forged: BTreeMap<&str, u64> = BTreeMap::new();
        while let Some((name, value)) = words.last().and_then(|word| word.strip_prefix('@')?.split_once('=')) {
            forged.insert(name, value.parse().unwrap());
            words.pop();
        }
        let at_ms: u64 = words[0].parse().unwrap();
        let name: u64 = words[1].parse().unwrap();
        let (key, connection) = self.connection(name, at_ms);
        let decided_ns = forged.get("decided").map_or(at_ms, |ms| *ms) * MS;
        if words[2] == "close" {
            self.number += 1;
            writeln!(self.trace, "close {} {connection} {} {decided_ns}", self.generation, self.number).unwrap();
            writeln!(self.clients, "gone {key} {decided_ns}").unwrap();
            self.connections.remove(&name);
            return;
        }
        let arrow = words.iter().position(|word| *word == "->").unwrap();
        let (command, reply) = (&words[2..arrow], words[arrow + 1..].join(" "));
        let numbers = self.connections.get_mut(&name).unwrap();
        numbers.2 += 1;
        let nth = numbers.2;
        let command = match command {
            ["put", pri, delay, ttr, body] => {
                format!("put {pri} {delay} {ttr} {} {:x}", body.len(), body_hash(body.as_bytes()))
            }
            other => other.join(" "),
        };
        let invoked_ns = forged.get("invoked").map_or(at_ms * MS - 1_000, |ms| *ms * MS);
        writeln!(self.clients, "invoke {key} {nth} {invoked_ns} {command}").unwrap();
        if reply == "??" {
            return;
        }
        self.number += 1;
        let number = forged.get("number").copied().unwrap_or(self.number);
        if !forged.contains_key("untraced") {
            writeln!(self.trace, "reply {} {connection} {nth} {number} {decided_ns}", self.generation).unwrap();
        }
        if reply != "?" {
            let words: Vec<&str> = reply.split(' ').collect();
            let reply = match words.as_slice() {
                [word @ ("RESERVED" | "FOUND"), id, body] => {
                    format!("{word} {id} {} {:x}", body.len(), body_hash(body.as_bytes()))
                }
                _ => reply,
            };
            let answered_ns = forged.get("answered").map_or(at_ms * MS + 1_000, |ms| *ms * MS);
            writeln!(self.clients, "ok {key} {nth} {answered_ns} {reply}").unwrap();
        }
    }
}

fn report_of(script: &str) -> Report {
    let mut writer = Writer::default();
    writer.start(0);
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        writer.line(line);
    }
    let history = History::parse(&writer.clients, &writer.trace).unwrap_or_else(|error| panic!("{error}"));
    check(&history)
}

#[track_caller]
fn honest(script: &str) -> Report {
    let report = report_of(script);
    assert_eq!(report.violations, [], "an honest history");
    report
}

#[track_caller]
fn forged(kind: Kind, script: &str) {
    let report = report_of(script);
    let kinds: Vec<Kind> = report.violations.iter().map(|violation| violation.kind).collect();
    assert!(kinds.contains(&kind), "{kind:?} is not among {:?}", report.violations);
}

#[test]
fn an_honest_life_of_jobs_passes() {
    let report = honest(
        "1 1 put 5 0 10 a -> INSERTED 1
         2 1 put 1 0 10 b -> INSERTED 2
         3 2 reserve -> RESERVED 2 b
         4 2 release 2 9 0 -> RELEASED
         5 2 reserve-with-timeout 0 -> RESERVED 1 a
         6 2 bury 1 3 -> BURIED
         7 1 kick 5 -> KICKED 1
         8 1 delete 1 -> DELETED
         9 1 pause-tube default 1 -> PAUSED
         10 2 reserve-with-timeout 1 -> RESERVED 2 b @decided=1009 @answered=1010
         1020 2 close
         1030 1 reserve-job 2 -> RESERVED 2 b
         1031 1 delete 2 -> DELETED
         end",
    );
    assert_eq!((report.replayed, report.reservations, report.generations), (12, 4, 1));
}

#[test]
fn an_honest_restart_passes_whatever_became_of_unknown_commands() {
    let script = |peeks: &str| {
        format!(
            "1 1 put 5 0 10 a -> INSERTED 1
             2 1 put 5 0 10 b -> INSERTED 2
             3 1 reserve -> RESERVED 1 a
             4 1 delete 1 -> ?
             4 2 put 7 0 10 c -> ??
             kill 50
             {peeks}"
        )
    };
    let text = "OK ---|id: 1|tube: \"default\"|state: ready|pri: 5|age: 0|delay: 0|ttr: 10|time-left: 0|file: 1|reserves: \
                0|timeouts: 0|releases: 0|buries: 0|kicks: 0|";
    let third = text.replace("id: 1", "id: 3").replace("pri: 5", "pri: 7");
    honest(&script(
        "60 1 peek 1 -> NOT_FOUND\n61 1 peek 3 -> NOT_FOUND\n62 1 reserve -> RESERVED 2 b\nend\npresent 2 b",
    ));
    honest(&script(&format!(
        "60 1 peek 1 -> FOUND 1 a
         61 1 stats-job 1 -> {text}
         62 1 peek 3 -> FOUND 3 c
         63 1 stats-job 3 -> {third}
         64 1 reserve -> RESERVED 1 a
         65 1 reserve -> RESERVED 2 b
         66 1 reserve -> RESERVED 3 c
         end
         present 1 a
         present 2 b
         present 3 c"
    )));
}

#[test]
fn a_reply_that_nobody_decided() {
    forged(Kind::Untraced, "1 1 put 5 0 10 a -> INSERTED 1 @untraced=1");
}

#[test]
fn a_command_that_is_decided_twice() {
    forged(Kind::DecidedTwice, "1 1 put 5 0 10 a -> INSERTED 1\n@line reply 1 1 1 2 1000000");
}

#[test]
fn commands_of_a_connection_decided_out_of_order() {
    forged(
        Kind::ConnectionOrder,
        "1 1 put 5 0 10 a -> INSERTED 1 @untraced=1
         2 1 put 5 0 10 b -> INSERTED 2 @untraced=1
         @line reply 1 1 2 1 2000000
         @line reply 1 1 1 2 2000000",
    );
}

#[test]
fn a_gap_in_the_numbers_of_decisions() {
    forged(Kind::Sequence, "1 1 put 5 0 10 a -> INSERTED 1\n2 1 put 5 0 10 b -> INSERTED 2 @number=3");
}

#[test]
fn a_generation_that_comes_again() {
    forged(Kind::Generation, "1 1 put 5 0 10 a -> INSERTED 1\n@line start 1 50000000");
}

#[test]
fn a_reply_that_was_there_before_its_decision() {
    forged(Kind::Causality, "100 1 put 5 0 10 a -> INSERTED 1 @answered=50 @invoked=10");
}

#[test]
fn a_decision_that_goes_back_in_time() {
    forged(Kind::Causality, "100 1 put 5 0 10 a -> INSERTED 1\n110 1 put 5 0 10 b -> INSERTED 2 @decided=90");
}

#[test]
fn a_decision_long_before_its_command() {
    forged(Kind::Causality, "60000 1 put 5 0 10 a -> INSERTED 1 @decided=1");
}

#[test]
fn an_order_against_real_time() {
    // The second put was answered before the first began, yet was decided later.
    forged(
        Kind::RealTime,
        "500 1 put 5 0 10 a -> INSERTED 1 @decided=100 @invoked=499
         200 2 put 5 0 10 b -> INSERTED 2 @answered=201",
    );
}

#[test]
fn an_id_that_is_given_twice() {
    forged(Kind::IdReused, "1 1 put 5 0 10 a -> INSERTED 1\nkill 50\n60 1 put 5 0 10 b -> INSERTED 1");
}

#[test]
fn an_id_below_an_earlier_one() {
    forged(Kind::IdNotRising, "1 1 put 5 0 10 a -> INSERTED 7\n2 1 put 5 0 10 b -> INSERTED 3");
}

#[test]
fn a_job_that_two_hold_at_once() {
    forged(
        Kind::Overlap,
        "1 1 put 5 0 10 a -> INSERTED 1
         2 1 reserve -> RESERVED 1 a
         3 2 reserve -> RESERVED 1 a",
    );
}

#[test]
fn a_touched_job_that_goes_to_another_before_its_new_deadline() {
    forged(
        Kind::Overlap,
        "1 1 put 5 0 2 a -> INSERTED 1
         2 1 reserve -> RESERVED 1 a
         1500 1 touch 1 -> TOUCHED
         2100 2 reserve -> RESERVED 1 a",
    );
}

#[test]
fn a_body_that_is_not_the_jobs() {
    forged(Kind::WrongBody, "1 1 put 5 0 10 a -> INSERTED 1\n2 1 reserve -> RESERVED 1 b");
}

#[test]
fn a_job_that_nobody_has_put() {
    forged(Kind::UnknownJob, "1 1 put 5 0 10 a -> INSERTED 1\n2 1 peek 2 -> FOUND 2 b");
}

#[test]
fn a_job_that_is_gone() {
    forged(Kind::Lost, "1 1 put 5 0 10 a -> INSERTED 1\n2 1 put 5 0 10 b -> INSERTED 2\nend\npresent 2 b");
}

#[test]
fn a_job_that_comes_back() {
    forged(Kind::Resurrected, "1 1 put 5 0 10 a -> INSERTED 1\n2 1 delete 1 -> DELETED\nend\npresent 1 a");
}

#[test]
fn an_unknown_put_that_appears_twice() {
    forged(
        Kind::AppearsTwice,
        "1 1 put 5 0 10 a -> ??
         kill 50
         60 1 peek 1 -> FOUND 1 a
         61 1 peek 2 -> FOUND 2 a",
    );
}

#[test]
fn a_job_that_overtakes_a_better_one() {
    forged(
        Kind::Priority,
        "1 1 put 5 0 10 a -> INSERTED 1
         2 1 put 1 0 10 b -> INSERTED 2
         3 1 reserve -> RESERVED 1 a",
    );
}

#[test]
fn a_delayed_job_that_comes_early() {
    forged(Kind::Early, "1 1 put 5 2 10 a -> INSERTED 1\n1500 1 reserve -> RESERVED 1 a");
}

#[test]
fn a_job_of_a_paused_tube_that_comes_early() {
    forged(
        Kind::Early,
        "1 1 put 5 0 10 a -> INSERTED 1
         2 1 pause-tube default 3 -> PAUSED
         3 1 reserve -> RESERVED 1 a",
    );
}

#[test]
fn a_ready_job_that_is_withheld() {
    forged(Kind::Missed, "1 1 put 5 0 10 a -> INSERTED 1\n2 1 reserve-with-timeout 0 -> TIMED_OUT");
}

#[test]
fn a_wait_that_ends_early() {
    forged(Kind::TimeoutEarly, "10 1 reserve-with-timeout 5 -> TIMED_OUT @decided=2000 @answered=2001");
}

#[test]
fn a_wait_that_ends_far_too_late() {
    forged(Kind::Late, "10 1 reserve-with-timeout 1 -> TIMED_OUT @decided=14000 @answered=14001");
}

#[test]
fn a_delayed_job_that_comes_far_too_late() {
    forged(
        Kind::Late,
        "10 1 put 5 1 10 a -> INSERTED 1
         20 2 reserve -> RESERVED 1 a @decided=14000 @answered=14001",
    );
}

#[test]
fn a_warning_without_a_deadline() {
    forged(
        Kind::DeadlineSoon,
        "1 1 put 5 0 10 a -> INSERTED 1
         2 1 reserve -> RESERVED 1 a
         3 1 reserve -> DEADLINE_SOON",
    );
}

#[test]
fn a_release_by_somebody_else() {
    forged(
        Kind::WrongReply,
        "1 1 put 5 0 10 a -> INSERTED 1
         2 1 reserve -> RESERVED 1 a
         3 2 release 1 0 0 -> RELEASED",
    );
}

#[test]
fn a_delete_of_a_job_that_another_holds() {
    forged(
        Kind::WrongReply,
        "1 1 put 5 0 10 a -> INSERTED 1
         2 1 reserve -> RESERVED 1 a
         3 2 delete 1 -> DELETED",
    );
}

#[test]
fn a_kick_that_counts_wrong() {
    forged(
        Kind::WrongReply,
        "1 1 put 5 0 10 a -> INSERTED 1
         2 1 reserve -> RESERVED 1 a
         3 1 bury 1 5 -> BURIED
         4 1 kick 1 -> KICKED 0",
    );
}

#[test]
fn a_priority_that_a_restart_forgets() {
    forged(
        Kind::Priority,
        "1 1 put 5 0 10 a -> INSERTED 1
         2 1 put 6 0 10 b -> INSERTED 2
         3 1 reserve -> RESERVED 1 a
         4 1 release 1 9 0 -> RELEASED
         kill 50
         60 1 reserve -> RESERVED 1 a",
    );
}

#[test]
fn a_buried_job_that_a_restart_makes_ready() {
    forged(
        Kind::WrongReply,
        "1 1 put 5 0 10 a -> INSERTED 1
         2 1 reserve -> RESERVED 1 a
         3 1 bury 1 5 -> BURIED
         kill 50
         60 1 reserve -> RESERVED 1 a",
    );
}

#[test]
fn a_state_after_a_restart_that_no_unknown_command_explains() {
    forged(
        Kind::WrongRecovery,
        "1 1 put 5 0 10 a -> INSERTED 1
         2 1 reserve -> RESERVED 1 a
         3 1 put 5 0 10 b -> INSERTED 2
         4 1 release 1 7 0 -> ??
         kill 50
         60 1 peek 1 -> NOT_FOUND",
    );
}

#[test]
fn an_acknowledged_delete_behind_an_unknown_put_is_settled() {
    // What was decided before something acknowledged has survived with it.
    forged(
        Kind::WrongReply,
        "1 1 put 5 0 10 a -> INSERTED 1
         2 1 delete 1 -> ?
         3 2 put 5 0 10 b -> INSERTED 2
         kill 50
         60 1 stats-job 1 -> OK ---|id: 1|tube: \"default\"|state: ready|time-left: 0|",
    );
}

#[test]
fn commands_on_a_job_that_nobody_has_asked_for() {
    forged(
        Kind::Unsettled,
        "1 1 put 5 0 10 a -> INSERTED 1
         2 1 delete 1 -> ??
         kill 50
         60 1 delete 1 -> DELETED",
    );
}

#[test]
fn texts_that_are_no_history() {
    for clients in [
        "invoke 1 1 5 reserve\n",
        "open 1 400 0\nok 1 1 5 TIMED_OUT\n",
        "open 1 400 0\nopen 1 400 0\n",
        "open 1 400 0\ninvoke 1 2 5 reserve\n",
        "open 1 400 0\ninvoke 1 1 5 put 1 2\n",
        "hello\n",
    ] {
        assert!(History::parse(clients, "").is_err(), "{clients:?}");
    }
    for trace in ["reply 1 1 1 1 0\n", "start 1 0\nreply 1 1 1 1 0\n", "start x 0\n"] {
        assert!(History::parse("", trace).is_err(), "{trace:?}");
    }
    assert_eq!(History::parse("", "start 1 0\nreply 1 1").unwrap().starts, [(1, 0)]);
    // Killed in the middle of a line, and started again.
    let torn = History::parse("", "start 1 0\naccept 1 1 40000 5\nreply 1 1 1 1 5start 2 9\n").unwrap();
    assert_eq!((torn.starts, torn.events[&1].len()), (vec![(1, 0), (2, 9)], 1));
}

#[test]
fn two_unknown_commands_of_two_connections_may_have_come_in_either_order() {
    let script = |first: &str, second: &str| {
        format!(
            "1 1 put 5 0 10 a -> INSERTED 1
             2 2 reserve -> RESERVED 1 a
             3 3 put 5 0 10 b -> INSERTED 2
             4 1 {first} -> ??
             4 2 {second} -> ??
             kill 50
             60 1 peek 1 -> FOUND 1 a
             61 1 stats-job 1 -> OK ---|id: 1|tube: \"default\"|state: ready|pri: 7|delay: 0|ttr: 10|time-left: 0|file: \
             1|reserves: 1|timeouts: 0|releases: 0|buries: 1|kicks: 1|"
        )
    };
    honest(&script("kick 10", "bury 1 7"));
    honest(&script("kick-job 1", "bury 1 7"));
}

/// Two owners, each with a job of connection 1: 64 at owner 0, 65 at owner 1.
const TWO_OWNERS_CLIENTS: &str = "open 1 40001 1000000
invoke 1 1 2000000 put 5 0 10 1 aa
ok 1 1 4000000 INSERTED 64
invoke 1 2 5000000 put 5 0 10 1 bb
ok 1 2 7000000 INSERTED 65
";
const TWO_OWNERS_TRACE: &str = "start 0.1 0
start 1.1 0
accept 0.1 1 40001 1000000
accept 1.1 7 40001 1000000
reply 0.1 1 1 1 3000000
reply 1.1 7 2 1 6000000
";

#[track_caller]
fn report_of_owners(clients: &str, trace: &str) -> Report {
    let (clients, trace) = (format!("{TWO_OWNERS_CLIENTS}{clients}"), format!("{TWO_OWNERS_TRACE}{trace}"));
    check(&History::parse(&clients, &trace).unwrap_or_else(|error| panic!("{error}")))
}

#[track_caller]
fn forged_by_owners(kind: Kind, clients: &str, trace: &str) {
    let report = report_of_owners(clients, trace);
    let kinds: Vec<Kind> = report.violations.iter().map(|violation| violation.kind).collect();
    assert!(kinds.contains(&kind), "{kind:?} is not among {:?}", report.violations);
}

#[test]
fn an_honest_life_at_two_owners_passes() {
    // Each owner has numbers of its own, restarts of its own, and ids that rise there.
    let report = report_of_owners(
        "invoke 1 3 8000000 reserve-job 64\nok 1 3 10000000 RESERVED 64 1 aa
invoke 1 4 11000000 delete 64\nok 1 4 13000000 DELETED
open 2 40002 30000000\ninvoke 2 1 31000000 peek 65\nok 2 1 33000000 FOUND 65 1 bb
drained 40000000\nend 0\npresent 65 bb\n",
        "reply 0.1 1 3 2 9000000\nreply 0.1 1 4 3 12000000\nclose 0.1 1 4 14000000\nstart 1.2 20000000
accept 1.2 1 40002 30000000\nreply 1.2 1 1 1 32000000\n",
    );
    assert_eq!(report.violations, [], "an honest history");
    assert_eq!((report.generations, report.reservations), (3, 1));
}

#[test]
fn another_owner_decides_about_a_job() {
    forged_by_owners(
        Kind::WrongOwner,
        "invoke 1 3 8000000 delete 64\nok 1 3 10000000 DELETED\n",
        "reply 1.1 7 3 2 9000000\n",
    );
}

#[test]
fn an_owner_decides_after_its_successor_has_started() {
    forged_by_owners(
        Kind::Stale,
        "invoke 1 3 8000000 touch 65\nok 1 3 30000000 NOT_FOUND\n",
        "reply 1.1 7 3 2 25000000\nstart 1.2 20000000\n",
    );
}

#[test]
fn a_generation_of_one_owner_comes_again_while_another_goes_on() {
    forged_by_owners(Kind::Generation, "", "start 0.2 20000000\nstart 1.1 20000000\n");
}

#[test]
fn a_job_is_accepted_after_the_drain() {
    forged_by_owners(
        Kind::AfterDrain,
        "drained 8000000\ninvoke 1 3 9000000 put 5 0 10 1 cc\nok 1 3 11000000 INSERTED 128\n",
        "reply 0.1 1 3 2 10000000\n",
    );
}

#[test]
fn ids_of_an_owner_fall_behind_a_restart_though_others_rise() {
    forged_by_owners(
        Kind::IdNotRising,
        "open 2 40002 30000000\ninvoke 2 1 31000000 put 5 0 10 1 cc\nok 2 1 33000000 INSERTED 1\n",
        "start 1.2 20000000\naccept 1.2 1 40002 30000000\nreply 1.2 1 1 1 32000000\n",
    );
}

#[test]
fn a_command_is_decided_by_two_owners() {
    forged_by_owners(Kind::DecidedTwice, "", "reply 0.1 1 2 2 7000000\n");
}

#[test]
fn a_command_is_decided_by_an_owner_before_the_one_before_it_elsewhere() {
    forged_by_owners(
        Kind::ConnectionOrder,
        "invoke 1 3 5000000 peek 64\nok 1 3 10000000 FOUND 64 1 aa\n",
        "reply 0.1 1 3 2 5500000\n",
    );
}

#[test]
fn a_gap_in_the_numbers_of_one_of_two_owners() {
    forged_by_owners(
        Kind::Sequence,
        "invoke 1 3 8000000 peek 64\nok 1 3 10000000 FOUND 64 1 aa\n",
        "reply 0.1 1 3 3 9000000\n",
    );
}
