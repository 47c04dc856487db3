//! Rows: a slot that crashes above its limit; a thousand restarts; a restart with a long log.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use supervisor::Role;
use supervisor::rules::Condition;
use testing::process::wait_until;

use crate::deaths::Latency;
use crate::disk::refused;
use crate::load::{Load, Wire, try_ask};
use crate::tree::{OWN_TUBES, Observed, PATIENT, Tree, answered, children_of, is_ready, put_into};
use crate::{Env, PROMISED};

/// Kills above the limit.
pub(crate) fn failed(env: &mut Env<'_>) -> String {
    let arguments = ["--restart-limit", "2/30", "--restart-delay", "10ms", "--owner-wait", "200ms"];
    let tree = Tree::start(env.executable, env.has_log, &arguments);
    let load = Load::begin(&tree, &mut env.rng);
    let id = put_into(&mut tree.connect(), OWN_TUBES[1], "kept");
    for _ in 0..2 {
        let (before, _) = tree.kill(Role::Owner, 1);
        tree.wait_for_next(&before);
    }
    tree.kill(Role::Owner, 1);
    wait_until("the slot has failed", || tree.slot(Role::Owner, 1).condition == Condition::Failed);
    if !env.has_log {
        load.ledger.may_be_lost(1);
    }
    refused(&tree, id);
    let socket = tree.status_socket().expect("a status socket");
    let shown = std::process::Command::new(env.executable).args(["status", "--socket"]).arg(socket).output();
    let shown = shown.expect("the program runs");
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let line = text.lines().find(|line| line.contains("owner") && line.contains("failed"));
    let line = line.unwrap_or_else(|| panic!("status does not name the failed slot: {text}")).trim().to_owned();
    assert_eq!(tree.generations(), [1, 3, 1, 1], "the others are unharmed");
    tree.restart_slot(1);
    wait_until("the slot serves", || tree.slot(Role::Owner, 1).condition == Condition::Ready);
    answered(&tree, &format!("peek {id}"), if env.has_log { "FOUND" } else { "NOT_FOUND" });
    try_ask(tree.port(), &format!("delete {id}"));
    load.wait_for_more(20);
    let counts = load.judge(&tree);
    format!("3 kills: INTERNAL_ERROR, status says {line:?}, the others serve, restart-slot revives; {counts}")
}

/// The same where the policy is to end then.
pub(crate) fn failed_ends(env: &mut Env<'_>) -> String {
    let arguments = ["--restart-limit", "0/30", "--restart-delay", "10ms"];
    let mut tree = Tree::start_as(env.executable, env.has_log, &arguments, |launch, data| {
        let file = data.with_file_name("tenure.toml");
        std::fs::write(&file, "[tubes]\non_slot_failed = \"stop\"\n").expect("a file in a folder of ours");
        launch.before_tubes([std::ffi::OsStr::new("-c"), file.as_os_str()])
    });
    let mut load = Load::begin(&tree, &mut env.rng);
    let children = tree.children();
    let (_, killed) = tree.kill(Role::Owner, 1);
    let status = tree.server.wait();
    let took = killed.elapsed();
    assert_eq!(status.code(), Some(1), "{}", tree.server.stderr());
    assert!(tree.server.stderr().contains("owner 1 has failed"), "{}", tree.server.stderr());
    children.iter().for_each(|child| child.wait_for_end(Duration::ZERO));
    if !env.has_log {
        [0, 1].into_iter().for_each(|owner| load.ledger.may_be_lost(owner));
    }
    let counts = if env.has_log {
        tree.start_again();
        load.judge(&tree)
    } else {
        load.end();
        load.ledger.judge().unwrap_or_else(|what| panic!("{what}"))
    };
    format!("the server ended with 1 after {took:.0?}, no process is left; {counts}")
}

/// Restarts, over all slots.
const RESTARTS: u32 = 1000;

/// A thousand deaths of an owner and a frontend leave no descriptor and no zombie behind, in the supervisor and in those
/// who live on.
pub(crate) fn restarts(env: &mut Env<'_>) -> String {
    let arguments = ["--restart-limit", "1000000/30", "--restart-delay", "0s", "--owner-wait", "20s"];
    let mut tree = Tree::start(env.executable, env.has_log, &arguments);
    let survivors = [tree.process(Role::Owner, 0), tree.process(Role::Frontend, 0)];
    let watched = survivors.into_iter().chain(Observed::try_new(tree.server.pid())).collect::<Vec<_>>();
    // The connection of a question to the supervisor is closed a moment after the answer, one of a client likewise.
    let settled = || {
        let mut counts = Vec::new();
        wait_until("the number of descriptors is steady", || {
            std::thread::sleep(Duration::from_millis(50));
            let now: Vec<usize> = watched.iter().map(Observed::descriptors).collect();
            std::mem::replace(&mut counts, now.clone()) == now
        });
        counts
    };
    let before = settled();
    let load = Load::begin(&tree, &mut env.rng);
    let begin = Instant::now();
    let restarts = if env.has_log { RESTARTS / 5 } else { RESTARTS };
    let victims = [(Role::Owner, 1), (Role::Frontend, 1)];
    for round in 1..=restarts / 2 {
        for (role, slot) in victims {
            tree.process(role, slot).signal(Signal::KILL);
        }
        wait_until("both slots have their next process", || {
            victims.iter().all(|(role, slot)| {
                let now = tree.slot(*role, *slot);
                now.generation == round + 1 && is_ready(&now)
            })
        });
        if !env.has_log {
            load.ledger.may_be_lost(1);
        }
    }
    let took = begin.elapsed();
    assert_eq!(tree.generations(), [1, restarts / 2 + 1, 1, restarts / 2 + 1]);
    let children = children_of(tree.server.pid());
    assert_eq!(children.len(), 4, "processes below the supervisor");
    for child in &children {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", child.pid)).unwrap_or_default();
        assert!(!text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')), "a zombie: {text}");
    }
    load.wait_for_more(20);
    let counts = load.judge(&tree);
    let after = settled();
    assert_eq!(before, after, "descriptors of owner 0, frontend 0 and the supervisor, before and after");
    tree.stop_in_order();
    format!("{restarts} restarts in {took:.1?}: {before:?} descriptors before, {after:?} after, no zombie; {counts}")
}

/// An owner with a long log is killed.
pub(crate) fn long_log(env: &mut Env<'_>) -> String {
    const BYTES: usize = 100 << 20;
    const BODY: usize = 60_000;
    let mut tree = Tree::start(env.executable, true, &PATIENT);
    let mut wire = Wire::connect(tree.port()).expect("a connection");
    let put = format!("put 0 0 600 {BODY}\r\n{}", "x".repeat(BODY));
    wire.ask(&format!("use {}", OWN_TUBES[1])).expect("an answer");
    for _ in 0..BYTES / BODY {
        let reply = wire.ask(&put).expect("an answer");
        assert!(reply.starts_with("INSERTED"), "{reply}");
    }
    let load = Load::begin(&tree, &mut env.rng);
    let mut latency = Latency::begin(&tree, OWN_TUBES[0]);
    let end = Instant::now() + Duration::from_secs(1);
    let quiet = latency.p99(200, || Instant::now() > end);
    let (before, killed) = tree.kill(Role::Owner, 1);
    let mut ready = None;
    let busy = latency.p99(20, || {
        let now = tree.slot(Role::Owner, 1);
        if now.generation > before.generation && is_ready(&now) {
            ready.get_or_insert(killed.elapsed());
        }
        ready.is_some()
    });
    let ready = ready.expect("the wait has ended");
    assert!(ready <= PROMISED * 10, "ready after {ready:?}, 1 s is promised");
    assert!(busy <= quiet * 20 + Duration::from_millis(200), "other slots: {quiet:?} before, {busy:?} meanwhile");
    load.wait_for_more(20);
    let drain = Instant::now();
    tree.server.signal(Signal::USR1);
    wait_until("drained", || tree.status().is_some_and(|status| status.drained));
    let drain = drain.elapsed();
    load.ledger.drained();
    assert!(drain <= Duration::from_secs(5), "drained after {drain:?}, 500 ms are promised");
    let counts = load.judge(&tree);
    let stop = Instant::now();
    tree.stop_in_order();
    let stop = stop.elapsed();
    format!(
        "100 MB of log: ready after {ready:.0?} (1 s promised), others' p99 {quiet:.1?} -> {busy:.1?}; drain {drain:.0?}, \
         stop {stop:.0?}; {counts}"
    )
}
