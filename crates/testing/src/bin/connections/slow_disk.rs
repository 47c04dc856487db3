//! A flood of puts for an owner whose disk is slow: it keeps a bounded amount, and others are served.
//!
//! Owns: strace beside one owner, which makes each of its syncs take a while.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use testing::client::Client;
use testing::proc;
use testing::process::wait_until;

use crate::rounds::{LONGEST_MAX, Rounds};
use crate::server::{Listen, Multi, TUBES};
use crate::{Arguments, Outcome, ensure, mib};

const MIB: u64 = 1 << 20;
/// How long each sync of the slow owner takes at least.
const DELAY: Duration = Duration::from_secs(1);
/// How long the flood lasts: some syncs.
const FLOOD: Duration = Duration::from_secs(6);
const FRONTENDS: u16 = 2;
/// Clients that put as quickly as they can.
const CLIENTS: usize = 16;
const BODY: usize = 65_000;
/// What a job that is stored may take: its body, and what the allocator rounds it up to.
const JOB_BYTES_MAX: u64 = 66 * 1024;
/// What the owner may have beside jobs that are stored, as records and as jobs: 16 MiB and a window of each link that
/// wait, and as much that is being synced. A third more, because buffers grow by doubling.
const OWNER_BYTES_MAX: u64 = 2 * 2 * (16 * MIB + 4 * MIB * FRONTENDS as u64) * 4 / 3;
/// What a frontend may have: 4 MiB and a turn for the link, and per client a body and a read of its socket. Twice that,
/// because buffers grow by doubling.
const FRONTEND_BYTES_MAX: u64 = 2 * (2 * 4 * MIB + CLIENTS as u64 * MIB);

/// strace, attached to a process; it lets go when dropped.
struct Slow(Child);

impl Slow {
    fn attach(pid: u32, output: &Path) -> Result<Slow, String> {
        let inject = format!("inject=fdatasync:delay_enter={}", DELAY.as_micros());
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-e", "trace=fdatasync", "-e", &inject, "-p", &pid.to_string(), "-o"]).arg(output);
        let child = command.stdin(Stdio::null()).spawn();
        let mut slow = Slow(child.map_err(|error| format!("strace does not start: {error}"))?);
        let is_traced = || {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads of an owner");
            threads.flatten().all(|thread| {
                let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
                status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
            })
        };
        let mut has_ended = false;
        wait_until("strace has all threads of the owner", || {
            has_ended = !matches!(slow.0.try_wait(), Ok(None));
            has_ended || is_traced()
        });
        ensure(!has_ended, || "strace could not attach to an owner: it needs root, or CAP_SYS_PTRACE".to_owned())?;
        Ok(slow)
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            // By a signal it can catch, so that it lets go of the owner; a child of ours that nobody has reaped.
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        }
        drop(self.0.wait());
    }
}

/// A client that floods: what it sent, and what of that was answered.
struct Flooder {
    is_over: Arc<AtomicBool>,
    stored: Arc<AtomicU64>,
}

impl Flooder {
    fn run(&self, mut client: Client) -> Result<u64, String> {
        let put = [format!("put 9 0 600 {BODY}\r\n").as_bytes(), &vec![b'f'; BODY], b"\r\n"].concat();
        let mut sent = 0;
        // As many as a connection may have under way, so that reading never falls far behind.
        let mut answered = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            client.try_send(&put).map_err(|error| format!("a put cannot be sent: {error}"))?;
            sent += 1;
            while client.can_read_within(Duration::ZERO) {
                self.take(&mut client)?;
                answered += 1;
            }
        }
        while answered < sent {
            self.take(&mut client)?;
            answered += 1;
        }
        Ok(sent)
    }

    fn take(&self, client: &mut Client) -> Result<(), String> {
        let line = client.line();
        ensure(line.starts_with("INSERTED "), || format!("a put is answered {line}"))?;
        self.stored.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Puts of 65,000 bytes by several clients, as quickly as they are taken, in mode `-f 0`.
pub(crate) fn flood(arguments: &Arguments) -> Outcome {
    let [flooded, other] = TUBES;
    let mut multi = Multi::start(arguments.executable(), FRONTENDS, Listen::Unix, &["-f", "0"]);
    let rounds = Rounds::begin(&multi, &[other]);
    rounds.wait_for(20);
    let memory = multi.memory();
    let strace = Slow::attach(multi.owners[0], &multi.join("strace"))?;
    let (is_over, stored) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    // All before the first floods: the owner answers whatever comes behind a flood some syncs later.
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| multi.connect()).collect();
    for client in &mut clients {
        client.check(format!("use {flooded}\r\n"), format!("USING {flooded}\r\n"));
    }
    let mut threads = Vec::new();
    for client in clients {
        let flooder = Flooder { is_over: is_over.clone(), stored: stored.clone() };
        threads.push(std::thread::spawn(move || flooder.run(client)));
    }
    let begin = Instant::now();
    let (mut at_owner, mut at_frontend) = (0, 0);
    while begin.elapsed() < FLOOD {
        // What is stored only grows, so that is looked at first: no job is counted before it is in memory.
        let jobs = stored.load(Ordering::Relaxed) * JOB_BYTES_MAX;
        let grown = proc::resident(multi.owners[0]).saturating_sub(memory.owners[0]);
        at_owner = at_owner.max(grown.saturating_sub(jobs));
        for (pid, before) in multi.frontends.iter().zip(&memory.frontends) {
            at_frontend = at_frontend.max(proc::resident(*pid).saturating_sub(*before));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let stored_slowly = stored.load(Ordering::Relaxed);
    is_over.store(true, Ordering::Relaxed);
    drop(strace);
    let beside = rounds.end(LONGEST_MAX)?;
    let mut sent = 0;
    for thread in threads {
        sent += thread.join().map_err(|_| "a client of the flood was not served".to_owned())??;
    }
    ensure(at_owner <= OWNER_BYTES_MAX, || {
        format!("the slow owner had {} beside stored jobs; {} are stated", mib(at_owner), mib(OWNER_BYTES_MAX))
    })?;
    ensure(at_frontend <= FRONTEND_BYTES_MAX, || {
        format!("a frontend had {}; {} are stated", mib(at_frontend), mib(FRONTEND_BYTES_MAX))
    })?;
    let mut client = multi.connect();
    let ready = client.stat(&format!("stats-tube {flooded}"), "current-jobs-ready");
    ensure(ready == sent.to_string(), || format!("{sent} puts were answered, {ready} jobs are there"))?;
    drop(client);
    ensure(multi.server().is_running(), || "the server has ended".to_owned())?;
    multi.finish()?;
    Ok(format!(
        "{stored_slowly} puts in {FLOOD:?} with syncs of {DELAY:?}, {sent} in the end, none lost; at most {} beside stored \
         jobs in the owner, {} in a frontend; {beside} at the other owner",
        mib(at_owner),
        mib(at_frontend)
    ))
}
