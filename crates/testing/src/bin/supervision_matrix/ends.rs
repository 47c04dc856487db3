//! Rows: SIGUSR1 while processes are away, and the stop.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use supervisor::Role;
use testing::process::wait_until;

use crate::Env;
use crate::faults::Strace;
use crate::load::{Load, Wire, try_ask};
use crate::tree::{OWN_TUBES, PATIENT, Tree, put_into};

/// SIGUSR1 while an owner, or a frontend, is away, and twice.
pub(crate) fn drain(env: &mut Env<'_>) -> String {
    let mut seen = Vec::new();
    for (away, role) in [("an owner", Some(Role::Owner)), ("a frontend", Some(Role::Frontend)), ("nobody", None)] {
        let arguments = ["--restart-limit", "1000000/30", "--restart-delay", "300ms", "--owner-wait", "20s"];
        let mut tree = Tree::start(env.executable, env.has_log, &arguments);
        let load = Load::begin(&tree, &mut env.rng);
        let killed = role.map(|role| tree.kill(role, 1).0);
        let begin = Instant::now();
        tree.server.signal(Signal::USR1);
        if role.is_none() {
            tree.server.signal(Signal::USR1);
        }
        wait_until("drained", || tree.status().is_some_and(|status| status.drained));
        load.ledger.drained();
        let took = begin.elapsed();
        assert!(took <= Duration::from_secs(10), "drained after {took:?}");
        if let Some(killed) = &killed {
            tree.wait_for_next(killed);
        }
        if role == Some(Role::Owner) && !env.has_log {
            load.ledger.may_be_lost(1);
        }
        // Everywhere, also at what was started later.
        for frontend in [0, 1] {
            let mut client = tree.connect_to(frontend);
            client.check_stats("stats", &[("draining", "true")]);
            for tube in OWN_TUBES {
                client.check(format!("use {tube}\r\nput 0 0 60 1\r\nx\r\n"), format!("USING {tube}\r\nDRAINING\r\n"));
            }
        }
        tree.server.signal(Signal::USR1);
        let later = tree.kill(Role::Owner, 0).0;
        tree.wait_for_next(&later);
        if !env.has_log {
            load.ledger.may_be_lost(0);
        }
        let mut client = tree.connect();
        client.check(
            format!("use {0}\r\nput 0 0 60 1\r\nx\r\n", OWN_TUBES[0]),
            format!("USING {0}\r\nDRAINING\r\n", OWN_TUBES[0]),
        );
        let counts = load.judge(&tree);
        tree.stop_in_order();
        seen.push(format!("with {away} away drained {took:.0?}: {counts}"));
    }
    seen.join("; ")
}

/// SIGTERM with a thousand waiting reserves; with a log, on a disk that does not answer.
pub(crate) fn stop(env: &mut Env<'_>) -> String {
    const WAITING: usize = 1000;
    let arguments: &[&str] = if env.has_log { &["-f", "0"] } else { &[] };
    let mut tree = Tree::start(env.executable, env.has_log, &[&PATIENT[..], arguments].concat());
    let load = Load::begin(&tree, &mut env.rng);
    let kept = put_into(&mut tree.connect(), OWN_TUBES[1], "kept");
    let mut waits: Vec<Wire> = (0..WAITING).map(|_| Wire::connect(tree.port()).expect("a connection")).collect();
    for wire in &mut waits {
        assert_eq!(wire.ask("watch nothing").expect("an answer"), "WATCHING 2");
        wire.send("reserve").expect("it is sent");
    }
    wait_until("all wait", || {
        let text = try_ask(tree.port(), "stats-tube nothing").unwrap_or_default();
        text.contains(&format!("current-waiting: {WAITING}\n"))
    });
    let children = tree.children();
    let owners = [0, 1].map(|slot| tree.process(Role::Owner, slot));
    // A sync takes an hour.
    let mut blocked = env
        .has_log
        .then(|| Strace::attach_all(&tree, &[&owners[0], &owners[1]], "fdatasync,fsync:delay_enter=3600000000"));
    let begin = Instant::now();
    tree.server.signal(Signal::TERM);
    if let Some(strace) = &mut blocked {
        strace.hold_until_killed(&[&owners[0], &owners[1]], Duration::from_secs(40));
    }
    let status = tree.server.wait();
    let took = begin.elapsed();
    children.iter().for_each(|child| child.wait_for_end(Duration::ZERO));
    assert!(took <= Duration::from_secs(30), "gone after {took:?}, 10 s are promised");
    assert_eq!(status.code(), Some(i32::from(env.has_log)), "{}", tree.server.stderr());
    for wire in &mut waits {
        assert!(wire.hear().is_err(), "a waiting reserve was answered at the stop");
    }
    drop(waits);
    let seen = format!("1,000 waiting: gone after {took:.1?}, exit {:?}, nothing left", status.code());
    if !env.has_log {
        let mut load = load;
        load.end();
        [0, 1].into_iter().for_each(|owner| load.ledger.may_be_lost(owner));
        let counts = load.ledger.judge().unwrap_or_else(|what| panic!("{what}"));
        return format!("{seen}; {counts}");
    }
    tree.start_again();
    let reply = try_ask(tree.port(), &format!("delete {kept}"));
    assert_eq!(reply.as_deref(), Some("DELETED"), "what was acknowledged before the stop");
    load.wait_for_more(20);
    let counts = load.judge(&tree);
    format!("{seen}, though no sync came back; after the next start: {counts}")
}
