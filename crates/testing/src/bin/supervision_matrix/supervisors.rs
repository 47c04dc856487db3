//! Rows: the death of the supervisor, and a second supervisor or owner beside the first.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use supervisor::Role;
use supervisor::lock::Lock;
use testing::process::wait_until;

use crate::load::{Load, try_ask};
use crate::tree::{OWN_TUBES, PATIENT, Tree, put_into};
use crate::{Env, PROMISED};

/// Kills of the supervisor, over all runs of the row.
const KILLS: u64 = 100;

/// SIGKILL of the supervisor, again and again; each second time with an owner that is stopped.
pub(crate) fn death(env: &mut Env<'_>) -> String {
    let mut tree = Tree::start(env.executable, env.has_log, &PATIENT);
    let load = Load::begin(&tree, &mut env.rng);
    let kills = KILLS.div_ceil(env.runs);
    let (mut slowest, mut slowest_start) = (Duration::ZERO, Duration::ZERO);
    for round in 0..kills {
        let last = tree.generations();
        let children = tree.children();
        assert_eq!(children.len(), 4, "processes of the server");
        if round % 2 == 1 {
            tree.process(Role::Owner, env.rng.below(2) as u16).pause();
        }
        let killed = Instant::now();
        tree.server.kill();
        for child in &children {
            assert!(child.has_ended_within(PROMISED * 10), "process {} outlives its supervisor", child.pid);
        }
        slowest = slowest.max(killed.elapsed());
        if !env.has_log {
            [0, 1].into_iter().for_each(|owner| load.ledger.may_be_lost(owner));
        }
        let begin = Instant::now();
        tree.start_again();
        slowest_start = slowest_start.max(begin.elapsed());
        let now = tree.generations();
        assert_eq!(tree.children().len(), 4, "one process for each slot");
        if env.has_log {
            // One generation for each slot: the next one.
            assert_eq!(now[..2], [last[0] + 1, last[1] + 1], "generations after {last:?}");
        } else {
            // What was put between the kill and the look is of the server that is gone, too.
            assert_eq!(now, [1; 4]);
        }
        load.wait_for_more(20);
    }
    let counts = load.judge(&tree);
    tree.stop_in_order();
    format!(
        "{kills} kills, half with a stopped owner: 0 children after {slowest:.0?} at most, served again \
         {slowest_start:.0?} at most after the start; {counts}"
    )
}

/// A second server on the same directory, and a second owner; while the first one runs, and while it is stopped.
pub(crate) fn second(env: &mut Env<'_>) -> String {
    let mut tree = Tree::start(env.executable, env.has_log, &PATIENT);
    let load = Load::begin(&tree, &mut env.rng);
    let mut client = tree.connect();
    let id = put_into(&mut client, OWN_TUBES[1], "first");
    let generations = tree.generations();
    let owner = tree.process(Role::Owner, 1);
    let mut refusals = Vec::new();

    // By hand no role can be started at all.
    for word in ["tubes-owner", "tubes-frontend"] {
        let by_hand = std::process::Command::new(env.executable).arg(word).output().expect("the program runs");
        assert_eq!(by_hand.status.code(), Some(5), "{word} by hand: {by_hand:?}");
    }
    refusals.push("roles by hand: exit 5".to_owned());
    for is_stopped in [false, true] {
        if is_stopped {
            owner.pause();
            tree.server.signal(Signal::STOP);
            wait_until("the supervisor is stopped", || tree.server.status("State").starts_with('T'));
        }
        let begin = Instant::now();
        if env.has_log {
            // Whoever wants the slot finds the lock held, and learns by whom.
            let lock = tree.data().join("logs-1/slot-1/lock");
            let refused = Lock::take(&lock, Duration::ZERO).expect_err("the slot's lock is held");
            assert!(refused.to_string().contains(&owner.pid.to_string()), "the holder is named: {refused}");
            let link = tree.folder.join("link");
            let _ = std::os::unix::fs::symlink(tree.data(), &link);
            for path in [tree.data(), link] {
                let other = Tree::launch_another(env.executable, &tree.folder).log_in(&path).finish();
                assert_eq!(other.code, Some(10), "{other:?}");
                assert!(other.stderr.contains(&tree.server.pid().to_string()), "the holder is named: {other:?}");
            }
        } else {
            // Without a directory it is the address that two cannot have.
            let other = tree.launch.finish();
            assert_eq!(other.code, Some(111), "{other:?}");
            assert!(other.stderr.contains(&tree.port().to_string()), "the address is named: {other:?}");
        }
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(9), "the first is stopped for less than the watchdog's time: {took:?}");
        if is_stopped {
            tree.server.signal(Signal::CONT);
            owner.signal(Signal::CONT);
        }
        let word = if is_stopped { "while stopped" } else { "while serving" };
        let named = if env.has_log { "holder" } else { "address" };
        refusals.push(format!("{word}: refused, the {named} named, {took:.1?}"));
    }
    wait_until("it answers", || try_ask(tree.port(), "list-tubes").is_some_and(|text| text.starts_with("OK")));
    client.check(format!("delete {id}\r\n"), "DELETED\r\n");
    load.wait_for_more(20);
    assert_eq!(tree.generations(), generations, "the first one is unharmed");
    let counts = load.judge(&tree);
    tree.stop_in_order();
    format!("{}; the first unharmed; {counts}", refusals.join(", "))
}
