//! Row: a stranger gets the number of a dead owner.
//!
//! The server has a namespace of process numbers of its own. What it says of numbers is meant in there, so processes are
//! found from outside by their place in the tree.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use supervisor::{ProcessStatus, Role};
use testing::process::wait_until;

use crate::Env;
use crate::load::Load;
use crate::tree::{Observed, Tree, children_of};

/// An owner is killed, and before its successor is started its number is given to a program that has nothing to do with
/// the server. It outlives all that follows, up to the stop of the server.
pub(crate) fn reuse(env: &mut Env<'_>) -> String {
    let arguments = ["--restart-limit", "1000000/30", "--restart-delay", "1s", "--owner-wait", "20s"];
    let tree = Tree::start_as(env.executable, env.has_log, &arguments, |launch, _| {
        // The first process of the namespace outlives the server, and with it the stranger does.
        let script = "\"$@\" & wait $!; exec sleep 100000";
        launch.through(["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh"])
    });
    let load = Load::begin(&tree, &mut env.rng);
    let first = children_of(tree.server.pid()).pop().expect("the first process of the namespace");
    let server = children_of(first.pid).pop().expect("the supervisor");

    let before = tree.slot(Role::Owner, 1);
    let inside = kill_inside(&server, &before);
    wait_until("the supervisor knows", || tree.slot(Role::Owner, 1).pid.is_none());
    let stranger = take_number(&first, inside);
    let after = tree.wait_for_next(&before);
    assert_ne!(after.pid, Some(inside), "the stranger has the number");
    kill_inside(&server, &after);
    tree.wait_for_next(&after);
    if !env.has_log {
        load.ledger.may_be_lost(1);
    }
    load.wait_for_more(20);
    let counts = load.judge(&tree);
    server.signal(Signal::TERM);
    server.wait_for_end(Duration::from_secs(60));
    assert!(!stranger.has_ended_within(Duration::ZERO), "the stranger was killed");
    assert_eq!(number_inside(stranger.pid), Some(inside));
    let status = fs::read_to_string(format!("/proc/{}/status", stranger.pid)).expect("the stranger's status");
    for name in ["SigPnd:", "ShdPnd:"] {
        let pending = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        assert_eq!(pending, "0000000000000000", "a signal waits for the stranger");
    }
    first.signal(Signal::KILL);
    first.wait_for_end(Duration::from_secs(60));
    stranger.wait_for_end(Duration::from_secs(60));
    format!("number {inside} of a dead owner given to a stranger: no signal in two restarts and a stop; {counts}")
}

/// Kills the process of a slot; its number in the namespace.
fn kill_inside(server: &Observed, slot: &ProcessStatus) -> u32 {
    let inside = slot.pid.expect("it has a process");
    let found = children_of(server.pid).into_iter().find(|child| number_inside(child.pid) == Some(inside));
    let process = found.unwrap_or_else(|| panic!("no process {inside} in the namespace"));
    process.signal(Signal::KILL);
    process.wait_for_end(Duration::from_secs(60));
    inside
}

/// The number of a process in its innermost namespace.
fn number_inside(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()
}

/// Starts a program with this number in the namespace of `first`.
fn take_number(first: &Observed, number: u32) -> Observed {
    let script = format!(
        "echo {} > /proc/sys/kernel/ns_last_pid && {{ sleep 100000 </dev/null >/dev/null 2>&1 & echo $!; }}",
        number - 1
    );
    let target = first.pid.to_string();
    let output = Command::new("nsenter")
        .args(["--target", &target, "--pid", "sh", "-c", &script])
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("cannot start nsenter: {error}"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.trim().parse(), Ok(number), "the stranger's number: {output:?}");
    let mut found = None;
    // It belongs to the first process as soon as the shell that started it has ended.
    wait_until("the stranger is there", || {
        found = children_of(first.pid).into_iter().find(|child| number_inside(child.pid) == Some(number));
        found.is_some()
    });
    found.expect("the wait has ended")
}
