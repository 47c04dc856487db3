//! Faults that strace puts between a running process and the kernel.
//!
//! Owns: the strace that is attached, until it is detached or its process ends.
//! Never: leaves one behind.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use testing::process::wait_until;

use crate::tree::{Observed, Tree};

pub(crate) struct Strace {
    child: Child,
    output: PathBuf,
}

impl Strace {
    /// Attaches to all threads of a process, and to the processes it starts from then on. `inject` is that of strace:
    /// `pwrite64:error=EIO:when=3+`.
    pub(crate) fn attach(tree: &Tree, target: &Observed, inject: &str) -> Strace {
        Strace::attach_all(tree, &[target], inject)
    }

    /// As [`Strace::attach`], to several.
    pub(crate) fn attach_all(tree: &Tree, targets: &[&Observed], inject: &str) -> Strace {
        let calls = inject.split(':').next().unwrap_or_default();
        let output = tree.folder.join(format!("strace-{}", targets[0].pid));
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-y", "-e", &format!("trace={calls}"), "-e", &format!("inject={inject}"), "-o"]);
        command.arg(&output);
        for target in targets {
            command.args(["-p", &target.pid.to_string()]);
        }
        let errors = tree.folder.join(format!("strace-{}-errors", targets[0].pid));
        command.stdin(Stdio::null()).stderr(fs::File::create(&errors).expect("a file in a folder of ours"));
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start strace: {error}"));
        let mut strace = Strace { child, output };
        wait_until("strace is attached", || {
            // A process that was killed by the first call already needs no more.
            let ended = strace.child.try_wait().expect("wait for a child of ours").is_some();
            let is_gone = targets.iter().any(|target| target.has_ended_within(Duration::ZERO));
            let said = fs::read_to_string(&errors).unwrap_or_default();
            assert!(!ended || is_gone, "strace has ended (may this process trace others?): {said}");
            is_gone || targets.iter().all(|target| is_traced(target.pid))
        });
        strace
    }

    /// The last call that it saw.
    pub(crate) fn last_call(&self) -> String {
        let text = fs::read_to_string(&self.output).unwrap_or_default();
        let call = text.lines().rfind(|line| line.contains('(')).unwrap_or_default();
        call.split_whitespace().nth(1).unwrap_or_default().chars().take(60).collect()
    }

    /// Lets the processes go on without faults.
    pub(crate) fn detach(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        let end = Instant::now() + Duration::from_secs(5);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.kill();
    }

    /// Ends it at once: a call that it holds up goes on as it may.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Holds its calls up until one of the processes has been sent SIGKILL, which takes effect then: a process that a
    /// tracer holds in a call does not end before the tracer lets go.
    pub(crate) fn hold_until_killed(&mut self, targets: &[&Observed], limit: Duration) {
        let end = Instant::now() + limit;
        let is_killed = |target: &&Observed| {
            let text = fs::read_to_string(format!("/proc/{}/status", target.pid)).unwrap_or_default();
            let pending = text.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap_or_default();
            u64::from_str_radix(pending.trim(), 16).is_ok_and(|signals| signals & 1 << 8 != 0)
        };
        let is_over = || targets.iter().any(is_killed) || targets.iter().all(|it| it.has_ended_within(Duration::ZERO));
        while Instant::now() < end && !is_over() {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.kill();
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Whether all threads of a process have a tracer.
fn is_traced(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut statuses =
        threads.flatten().map(|thread| fs::read_to_string(thread.path().join("status")).unwrap_or_default());
    statuses.all(|text| text.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0")))
}
