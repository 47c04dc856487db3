//! Child processes that always end: with a time limit, in a process group of their own, killed by its id.
//!
//! Owns: the list of the groups that are alive, so that a signal to the task ends all of them.
//! Never: decides what a child's result means.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

/// How often a running child is looked at. Shorter costs CPU that the children need, longer delays every phase.
const POLL: Duration = Duration::from_millis(20);

/// Process groups started here whose leader has not been reaped, by the leader's id.
static GROUPS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// How a child ended.
#[derive(Debug)]
pub(crate) enum End {
    /// By itself.
    Exited(ExitStatus),
    /// Its time was up; its whole group was killed.
    TimedOut,
}

/// Runs `command` to its end, or kills its process group at `deadline`.
///
/// Whatever of the group outlives its leader is killed as well, so that no server is left behind by a failed test.
///
/// # Errors
///
/// If the program cannot be started.
pub(crate) fn run(command: &mut Command, deadline: Instant) -> anyhow::Result<End> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut groups = lock_groups();
    // Started under the lock: a signal between the start and the insertion would miss this child.
    let mut child =
        command.stdin(Stdio::null()).process_group(0).spawn().with_context(|| format!("failed to start {name}"))?;
    let leader = Pid::from_child(&child);
    groups.insert(leader.as_raw_pid());
    drop(groups);

    let timed_out = !wait_for_exit(leader, deadline)?;
    // The leader is not reaped yet, so its id cannot have been given to a stranger.
    kill_group(leader);
    let status = child.wait().with_context(|| format!("failed to wait for {name}"))?;
    lock_groups().remove(&leader.as_raw_pid());
    Ok(if timed_out { End::TimedOut } else { End::Exited(status) })
}

/// Whether `leader` exited before `deadline`. It is left as a zombie, which keeps its id.
fn wait_for_exit(leader: Pid, deadline: Instant) -> anyhow::Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    loop {
        if rustix::process::waitid(WaitId::Pid(leader), options).context("failed to wait for a child")?.is_some() {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        thread::sleep(POLL);
    }
}

/// On SIGINT, SIGTERM and SIGHUP, kills the groups that are alive and exits as a shell would report it.
///
/// Children have groups of their own, so a terminal's Ctrl-C does not reach them by itself.
pub(crate) fn end_children_on_signals() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]) else {
        eprintln!("xtask: cannot watch for signals; an interrupted run may leave processes behind");
        return;
    };
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // Never unlocked again: no further child can be started.
            let groups = lock_groups();
            for leader in groups.iter().filter_map(|&id| Pid::from_raw(id)) {
                kill_group(leader);
            }
            eprintln!("xtask: ended by signal {signal}");
            std::process::exit(128 + signal);
        }
    });
}

fn kill_group(leader: Pid) {
    // The only failure left is that nothing of the group is alive, which is what is wanted.
    let _ = rustix::process::kill_process_group(leader, Signal::KILL);
}

fn lock_groups() -> std::sync::MutexGuard<'static, BTreeSet<i32>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_past_its_time_is_killed_with_its_own_children() {
        let started = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!; wait"]).stdout(Stdio::piped());
        let mut reader = {
            let (reader, writer) = std::io::pipe().unwrap();
            command.stdout(writer);
            reader
        };
        let end = run(&mut command, started + Duration::from_millis(300)).unwrap();
        drop(command); // our end of the pipe
        assert!(matches!(end, End::TimedOut), "{end:?}");
        // End of file: nobody holds the pipe any more, so the grandchild is gone too.
        let mut output = String::new();
        std::io::Read::read_to_string(&mut reader, &mut output).unwrap();
        assert!(output.trim().parse::<u32>().is_ok(), "{output:?}");
        assert!(started.elapsed() < Duration::from_secs(100));
    }

    #[test]
    fn what_a_child_leaves_behind_is_killed_at_its_end() {
        let mut command = Command::new("sh");
        let (mut reader, writer) = std::io::pipe().unwrap();
        command.args(["-c", "sleep 1000 & exit 3"]).stdout(writer);
        let end = run(&mut command, Instant::now() + Duration::from_secs(100)).unwrap();
        drop(command);
        assert!(matches!(end, End::Exited(status) if status.code() == Some(3)), "{end:?}");
        std::io::Read::read_to_string(&mut reader, &mut String::new()).unwrap();
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error_naming_it() {
        let error = run(&mut Command::new("no-such-program"), Instant::now() + Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.to_string(), "failed to start no-such-program");
    }
}
