//! Histories of several processes: an honest one passes, and each kind of forgery is caught when owners are replayed.
//!
//! A script has a line per step, of clients (`invoke`, `ok`, as in the format) and of processes: a line that begins with
//! `A ` is of owner 0 and with `B ` of owner 1, `F ` of the only frontend; `#` in them is the next number of that process.

use std::collections::BTreeMap;
use std::fmt::Write;

use testing::history::{History, Kind, Report, check};

/// Clients 1 and 2, each announced to owner 0, which has `default`; the tube `right` is owner 1's.
const BEGIN: &str = "
    open 1 40001 1000
    open 2 40002 1000
    F start f0.1 500
    F accept f0.1 11 40001 1000
    F accept f0.1 12 40002 1000
    F turn f0.1 1000
    A start 0.1 500
    A turn 0.1 500
    A told 0.1 0.1.11 # 1000 use default
    A told 0.1 0.1.11 # 1000 watch default
    A told 0.1 0.1.12 # 1000 use default
    A told 0.1 0.1.12 # 1000 watch default
    A turn 0.1 1000
    B start 1.1 500
    B turn 1.1 500
";

/// A job of priority 5 with the body `aa` by client 1, at owner 0: id 64. And one of priority 3, id 128.
const PUT: &str = "
    invoke 1 1 2000 put 5 0 10 2 aa
    F sent f0.1 11 1 0.1
    A answer 0.1 0.1.11 # 2100 INSERTED 64
    A turn 0.1 2200
    F said f0.1 11 # 2300 1
    ok 1 1 2400 INSERTED 64
    invoke 1 2 2500 put 3 0 10 2 bb
    F sent f0.1 11 2 0.1
    A answer 0.1 0.1.11 # 2600 INSERTED 128
    A turn 0.1 2700
    F said f0.1 11 # 2800 2
    ok 1 2 2900 INSERTED 128
";

/// Client 1 watches a tube of the other owner and asks both for a job: wait 0 is its third and fourth command.
const WATCH: &str = "
    invoke 1 3 3000 watch right
    F sent f0.1 11 3 1.1
    B answer 1.1 0.1.11 # 3100 WATCHING 1
    B turn 1.1 3200
    F said f0.1 11 # 3300 3
    ok 1 3 3400 WATCHING 2
    invoke 1 4 3500 reserve-with-timeout 0
    F asks f0.1 11 4 0.1 0
    F asks f0.1 11 4 1.1 0
";

fn report_of(parts: &[&str]) -> Report {
    let mut clients = String::new();
    let mut processes: Vec<(String, String)> = Vec::new();
    let mut numbers: BTreeMap<String, u64> = BTreeMap::new();
    for line in parts.iter().flat_map(|part| part.lines()).map(str::trim).filter(|line| !line.is_empty()) {
        let (who, rest) = line.split_once(' ').expect("words");
        if who.len() > 1 {
            writeln!(clients, "{line}").unwrap();
            continue;
        }
        if rest.starts_with("start ") {
            numbers.remove(who);
            processes.push((who.to_owned(), String::new()));
        }
        let mut rest = rest.to_owned();
        if rest.contains('#') {
            let number = numbers.entry(who.to_owned()).or_default();
            *number += 1;
            rest = rest.replace('#', &number.to_string());
        }
        let text = processes.iter_mut().rfind(|(other, _)| other == who).expect("a process that has started");
        writeln!(text.1, "{rest}").unwrap();
    }
    let traces = vec![processes.into_iter().map(|(_, text)| text).collect()];
    let history = History::parse_processes(&clients, &traces).unwrap_or_else(|error| panic!("{error}"));
    check(&history)
}

#[track_caller]
fn honest(parts: &[&str]) -> Report {
    let report = report_of(parts);
    assert_eq!(report.violations, [], "an honest history");
    report
}

#[track_caller]
fn forged(kind: Kind, parts: &[&str]) {
    let report = report_of(parts);
    let kinds: Vec<Kind> = report.violations.iter().map(|violation| violation.kind).collect();
    assert_eq!(kinds, [kind], "{:?}", report.violations);
}

/// Of both owners' answers the first is accepted.
const SERVED: &str = "
    A offer 0.1 0.1.11 # 3600 0 128
    A turn 0.1 3650
    B nothing 1.1 0.1.11 # 3600 0 0
    B turn 1.1 3650
    A served 0.1 0.1.11 # 3700 0 RESERVED 128 2
    A turn 0.1 3750
    F said f0.1 11 # 3800 4
    ok 1 4 3900 RESERVED 128 2 bb
";

/// Owner 0 was killed, and its next generation finds this.
fn restart(found: &str) -> String {
    format!("A start 0.2 5000\n{found}\nA turn 0.2 5000\n")
}

const BOTH_FOUND: &str = "A found 0.2 64 default aa 10 ready 5 0 0 0 0 0
    A found 0.2 128 default bb 10 ready 3 0 0 0 0 0";

#[test]
fn an_honest_history_of_two_owners_and_a_restart_passes() {
    let report = honest(&[BEGIN, PUT, WATCH, SERVED, &restart(BOTH_FOUND), "end 9000\npresent 64 aa\npresent 128 bb"]);
    assert_eq!((report.replayed, report.reservations, report.generations), (4, 1, 4));
}

#[test]
fn an_offer_of_a_job_that_is_not_the_best() {
    forged(Kind::Priority, &[BEGIN, PUT, WATCH, "A offer 0.1 0.1.11 # 3600 0 64\nA turn 0.1 3650"]);
}

#[test]
fn an_owner_that_says_it_has_nothing_while_a_job_is_ready() {
    forged(Kind::Missed, &[BEGIN, PUT, WATCH, "A nothing 0.1 0.1.11 # 3600 0 0\nA turn 0.1 3650"]);
}

#[test]
fn a_reserve_over_two_owners_with_two_results() {
    let twice = "B served 1.1 0.1.11 # 3700 0 RESERVED 193 2\nB turn 1.1 3750";
    let report = report_of(&[BEGIN, PUT, WATCH, SERVED, twice]);
    assert!(report.violations.iter().any(|found| found.kind == Kind::DecidedTwice), "{:?}", report.violations);
}

#[test]
fn a_job_that_is_offered_to_one_goes_to_another() {
    let other = "
        invoke 2 1 3600 reserve-with-timeout 0
        F asks f0.1 12 1 0.1 0
        A offer 0.1 0.1.11 # 3600 0 128
        A served 0.1 0.1.12 # 3700 0 RESERVED 128 2
        A turn 0.1 3750
        F said f0.1 12 # 3800 1
        ok 2 1 3900 RESERVED 128 2 bb";
    forged(Kind::Overlap, &[BEGIN, PUT, WATCH, other]);
}

#[test]
fn a_job_that_an_owner_lets_two_hold() {
    // Nobody has heard of the first reservation: only the replay knows of it.
    let twice = "
        A served 0.1 0.1.11 # 3600 0 RESERVED 128 2
        A turn 0.1 3650
        invoke 2 1 3700 reserve-job 128
        F sent f0.1 12 1 0.1
        A answer 0.1 0.1.12 # 3800 RESERVED 128 2
        A turn 0.1 3850";
    forged(Kind::Overlap, &[BEGIN, PUT, WATCH, twice]);
}

#[test]
fn a_client_that_hears_another_reply_than_its_owner_decided() {
    let other = "
        invoke 2 1 3000 peek 64
        F sent f0.1 12 1 0.1
        A answer 0.1 0.1.12 # 3100 NOT_FOUND
        A turn 0.1 3150
        F said f0.1 12 # 3200 1
        ok 2 1 3300 FOUND 64 2 aa";
    forged(Kind::WrongReply, &[BEGIN, PUT, other]);
}

#[test]
fn a_put_into_a_tube_that_the_connection_has_left() {
    let put = "
        invoke 2 1 3000 use right
        F sent f0.1 12 1 1.1
        B answer 1.1 0.1.12 # 3100 USING right
        B turn 1.1 3150
        F said f0.1 12 # 3200 1
        ok 2 1 3300 USING right
        invoke 2 2 3400 put 5 0 10 2 cc
        F sent f0.1 12 2 0.1
        A answer 0.1 0.1.12 # 3500 INSERTED 192
        A turn 0.1 3550
        F said f0.1 12 # 3600 2
        ok 2 2 3700 INSERTED 192";
    forged(Kind::WrongReply, &[BEGIN, PUT, put]);
}

#[test]
fn a_restart_of_one_owner_that_forgets_a_priority() {
    let found = BOTH_FOUND.replace("ready 3", "ready 5");
    forged(Kind::WrongRecovery, &[BEGIN, PUT, &restart(&found)]);
}

#[test]
fn a_restart_of_one_owner_that_loses_what_a_reply_has_followed() {
    // Its put was never answered, but something behind it was: by then it was in the log.
    let put = "
        invoke 2 1 3000 put 5 0 10 2 cc
        F sent f0.1 12 1 0.1
        A answer 0.1 0.1.12 # 3100 INSERTED 192
        A turn 0.1 3150
        gone 2 4000
        invoke 1 3 3200 peek 64
        F sent f0.1 11 3 0.1
        A answer 0.1 0.1.11 # 3300 FOUND 64 2
        A turn 0.1 3350
        F said f0.1 11 # 3400 3
        ok 1 3 3500 FOUND 64 2 aa";
    forged(Kind::WrongRecovery, &[BEGIN, PUT, put, &restart(BOTH_FOUND)]);
}

#[test]
fn a_restart_may_lose_what_nobody_has_heard_of() {
    let put = "
        invoke 2 1 3000 put 5 0 10 2 cc
        F sent f0.1 12 1 0.1
        A answer 0.1 0.1.12 # 3100 INSERTED 192
        A turn 0.1 3150
        gone 2 4000";
    honest(&[BEGIN, PUT, put, &restart(BOTH_FOUND)]);
    let with_it = format!("{BOTH_FOUND}\nA found 0.2 192 default cc 10 ready 5 0 0 0 0 0");
    honest(&[BEGIN, PUT, put, &restart(&with_it)]);
}

/// A start counts the whole ms that are left from its own instant, and its trace rounds the end up.
#[test]
fn a_delay_that_goes_on_behind_a_restart_ends_within_a_ms_that_is_not_whole() {
    let delayed = "
        invoke 2 1 3000 put 5 1 10 2 cc
        F sent f0.1 12 1 0.1
        A answer 0.1 0.1.12 # 3100 INSERTED 64
        A turn 0.1 3150
        F said f0.1 12 # 3200 1
        ok 2 1 3300 INSERTED 64
        A start 0.2 500622714
        A found 0.2 64 default cc 10 delayed 5 1 1002 0 0 0
        A turn 0.2 500622714
        A told 0.2 0.1.12 # 500700000 use default
        A told 0.2 0.1.12 # 500700000 watch default
        A turn 0.2 500700000";
    let served_at = |at_ns: u64| {
        format!(
            "invoke 2 2 {0} reserve-with-timeout 0
            F asks f0.1 12 2 0.2 0
            A served 0.2 0.1.12 # {at_ns} 0 RESERVED 64 2
            A turn 0.2 {1}
            F said f0.1 12 # {1} 2
            ok 2 2 {1} RESERVED 64 2 cc",
            at_ns - 1000,
            at_ns + 1000
        )
    };
    honest(&[BEGIN, delayed, &served_at(1_001_700_000)]);
    forged(Kind::Early, &[BEGIN, delayed, &served_at(1_001_600_000)]);
}

#[test]
fn a_restart_may_know_a_part_of_a_kick_in_its_order() {
    let kick = "
        invoke 2 1 3000 put 5 9 10 2 cc
        F sent f0.1 12 1 0.1
        A answer 0.1 0.1.12 # 3100 INSERTED 192
        A turn 0.1 3150
        F said f0.1 12 # 3200 1
        ok 2 1 3250 INSERTED 192
        invoke 2 2 3300 put 5 10 10 2 dd
        F sent f0.1 12 2 0.1
        A answer 0.1 0.1.12 # 3400 INSERTED 256
        A turn 0.1 3450
        F said f0.1 12 # 3500 2
        ok 2 2 3550 INSERTED 256
        invoke 2 3 3600 kick 9
        F sent f0.1 12 3 0.1
        A answer 0.1 0.1.12 # 3700 KICKED 2
        A turn 0.1 3750
        gone 2 4000";
    let found = |first: &str, second: &str| {
        restart(&format!("{BOTH_FOUND}\nA found 0.2 192 default cc 10 {first}\nA found 0.2 256 default dd 10 {second}"))
    };
    let (delayed, kicked) = ("delayed 5 9 9000 0 0 0", "ready 5 9 0 0 0 1");
    let later = "delayed 5 10 10000 0 0 0";
    honest(&[BEGIN, PUT, kick, &found(delayed, later)]);
    honest(&[BEGIN, PUT, kick, &found(kicked, later)]);
    honest(&[BEGIN, PUT, kick, &found(kicked, "ready 5 10 0 0 0 1")]);
    forged(Kind::WrongRecovery, &[BEGIN, PUT, kick, &found(delayed, "ready 5 10 0 0 0 1")]);
}

#[test]
fn a_holder_that_goes_on_after_its_owner_was_killed() {
    let goes_on = "A told 0.2 0.1.11 # 6000 watch default\nA turn 0.2 6000";
    forged(Kind::HolderStays, &[BEGIN, PUT, WATCH, SERVED, &restart(BOTH_FOUND), goes_on]);
}

#[test]
fn an_id_that_falls_though_nobody_has_heard_of_it() {
    let put = "
        invoke 2 1 3000 put 5 0 10 2 cc
        F sent f0.1 12 1 0.1
        A answer 0.1 0.1.12 # 3100 INSERTED 100
        A turn 0.1 3150";
    forged(Kind::IdNotRising, &[BEGIN, PUT, put]);
}

#[test]
fn a_list_of_tubes_that_leaves_one_out() {
    let list = |names: &str| {
        format!(
            "invoke 1 4 3500 list-tubes
             F sent f0.1 11 4 0.1
             F sent f0.1 11 4 1.1
             A answer 0.1 0.1.11 # 3600 OK
             A turn 0.1 3650
             B answer 1.1 0.1.11 # 3600 OK
             B turn 1.1 3650
             F said f0.1 11 # 3700 4
             F turn f0.1 3700
             ok 1 4 3800 OK ---|{names}"
        )
    };
    let watch = WATCH.split("invoke 1 4").next().expect("the part before");
    honest(&[BEGIN, PUT, watch, &list("- default|- right|")]);
    forged(Kind::WrongReply, &[BEGIN, PUT, watch, &list("- default|")]);
}

#[test]
fn a_decision_about_what_no_frontend_has_sent() {
    let traces = vec![vec![
        "start f0.1 0\naccept f0.1 11 40001 0\nturn f0.1 0\n".to_owned(),
        "start 0.1 0\nturn 0.1 0\nanswer 0.1 0.1.11 1 5 DELETED\n".to_owned(),
    ]];
    assert!(History::parse_processes("open 1 40001 0\n", &traces).is_err());
}
