//! Rows: the death of a frontend and of an owner.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use supervisor::Role;
use testing::client::Client;
use testing::process::wait_until;
use tubes_link::Link;

use crate::faults::Strace;
use crate::load::{Load, Wire, try_ask};
use crate::tree::{OWN_TUBES, PATIENT, Tree, answered, is_ready, put_into};
use crate::{Env, PROMISED, links};

/// Polls of the jobs that the dead frontend's clients held; how long until another frontend's client has it.
fn until_reserved(client: &mut Client, id: u64, since: Instant) -> Duration {
    wait_until("a job of the dead frontend is ready again", || {
        client.send(format!("reserve-job {id}\r\n"));
        let line = client.line();
        let is_reserved = line.starts_with("RESERVED ");
        if is_reserved {
            client.line();
        }
        is_reserved
    });
    since.elapsed()
}

/// A frontend is killed; a duplicate of its link goes on sending, and so does its successor's, in its name.
pub(crate) fn frontend(env: &mut Env<'_>) -> String {
    let tree = Tree::start(env.executable, env.has_log, &PATIENT);
    let load = Load::begin(&tree, &mut env.rng);
    let (mut holder, mut other) = (tree.connect_to(0), tree.connect_to(1));
    let held = OWN_TUBES.map(|tube| put_into(&mut holder, tube, "held"));
    let kept = put_into(&mut other, OWN_TUBES[0], "kept");
    for id in held {
        holder.check(format!("reserve-job {id}\r\n"), format!("RESERVED {id} 4\r\nheld\r\n"));
    }
    other.check("use nothing\r\n", "USING nothing\r\n");
    let mut waits = tree.connect_to(0);
    waits.check("watch nothing\r\nignore default\r\n", "WATCHING 2\r\nWATCHING 1\r\n");
    waits.send("reserve\r\n");
    wait_until("it waits", || other.stat("stats-tube nothing", "current-waiting") == "1");
    let old = tree.process(Role::Frontend, 0);
    let duplicates = [0, 1].map(|slot| links::link(&old, &tree.process(Role::Owner, slot)));
    load.wait_for_more(20);

    let (before, killed) = tree.kill(Role::Frontend, 0);
    let released = held.map(|id| until_reserved(&mut other, id, killed)).into_iter().max().expect("two");
    assert!(released <= PROMISED * 10, "jobs of a dead frontend were ready after {released:?}");
    assert_eq!(other.stat("stats-tube nothing", "current-waiting"), "0", "waits of a dead frontend");
    holder.expect_end();
    waits.expect_end();
    // Its link is gone at the other end; its successor's is there, and does not take what the dead one says.
    let mut closed = 0;
    for (slot, duplicate) in (0..).zip(&duplicates) {
        let name = Link { own_slot: 0, own_generation: before.generation, peer_slot: slot, peer_generation: 1 };
        match links::write(duplicate, &links::frame(name, &format!("delete {kept}"))) {
            Err(Errno::PIPE) => closed += 1,
            other => panic!("the link of a dead frontend took a frame: {other:?}"),
        }
    }
    let after = tree.wait_for_next(&before);
    let ready = killed.elapsed();
    let broken = tree.server.stderr().matches("is broken").count();
    let successor = links::link(&tree.process(Role::Frontend, 0), &tree.process(Role::Owner, 0));
    let name = Link { own_slot: 0, own_generation: before.generation, peer_slot: 0, peer_generation: 1 };
    links::write(&successor, &links::frame(name, &format!("delete {kept}"))).expect("a new link");
    wait_until("the link with frames of the dead is reset", || {
        tree.server.stderr().matches("is broken").count() > broken
    });
    let mended = Instant::now();
    let mut again = tree.connect_to(0);
    again.send(format!("peek {kept}\r\n"));
    again.expect(format!("FOUND {kept} 4\r\nkept\r\n"));
    let mended = mended.elapsed();
    let processes = tree.generations();
    assert_eq!(processes, [1, 1, after.generation, 1], "only the frontend was started again");
    for id in held {
        other.check(format!("touch {id}\r\ndelete {id}\r\n"), "TOUCHED\r\nDELETED\r\n");
    }
    other.check(format!("delete {kept}\r\n"), "DELETED\r\n");
    load.wait_for_more(20);
    let counts = load.judge(&tree);
    format!(
        "jobs ready again {released:.0?}, waits gone, {closed} old links closed (EPIPE), old frames on the new link: \
         reset, no effect, mended {mended:.0?}; next ready {ready:.0?}; {counts}"
    )
}

/// Latencies of another owner's slot: a put and a delete, again and again.
pub(crate) struct Latency {
    wire: Wire,
}

impl Latency {
    /// Of the tube `tube`.
    pub(crate) fn begin(tree: &Tree, tube: &str) -> Latency {
        let mut wire = Wire::connect(tree.port()).expect("a connection");
        assert_eq!(wire.ask(&format!("use {tube}")).expect("an answer"), format!("USING {tube}"));
        Latency { wire }
    }

    /// The 99th percentile until `is_over`, which is asked now and then, of at least `least` rounds.
    pub(crate) fn p99(&mut self, least: usize, mut is_over: impl FnMut() -> bool) -> Duration {
        let mut times = Vec::new();
        while times.len() < least || times.len() % 10 != 0 || !is_over() {
            let begin = Instant::now();
            let reply = self.wire.ask("put 0 0 600 1\r\nx").expect("a healthy owner answers");
            let id = reply.strip_prefix("INSERTED ").unwrap_or_else(|| panic!("{reply}")).to_owned();
            times.push(begin.elapsed());
            assert_eq!(self.wire.ask(&format!("delete {id}")).expect("a healthy owner answers"), "DELETED");
        }
        times.sort_unstable();
        times[times.len() * 99 / 100]
    }
}

/// The owner is killed at the entry of a system call of its choice.
pub(crate) fn owner_at_append(env: &mut Env<'_>) -> String {
    owner(env, "pwrite64")
}

pub(crate) fn owner_at_sync(env: &mut Env<'_>) -> String {
    owner(env, "fdatasync")
}

pub(crate) fn owner_at_reply(env: &mut Env<'_>) -> String {
    owner(env, "write,writev,sendto,sendmsg")
}

fn owner(env: &mut Env<'_>, calls: &str) -> String {
    let arguments: &[&str] = if env.has_log { &["-f", "0"] } else { &[] };
    let tree = Tree::start(env.executable, env.has_log, &[&PATIENT[..], arguments].concat());
    let load = Load::begin(&tree, &mut env.rng);
    let victim = env.rng.below(2) as u16;
    let healthy = 1 - victim;
    let mut latency = Latency::begin(&tree, OWN_TUBES[usize::from(healthy)]);
    let quiet = latency.p99(100, || true);
    let before = tree.slot(Role::Owner, victim);
    let process = tree.process(Role::Owner, victim);
    let call = env.rng.between(1, 60);
    let strace = Strace::attach(&tree, &process, &format!("{calls}:signal=SIGKILL:when={call}"));
    process.wait_for_end(Duration::from_secs(60));
    let killed = Instant::now();
    let mut ready = None;
    let busy = latency.p99(20, || {
        let now = tree.slot(Role::Owner, victim);
        if now.generation > before.generation && is_ready(&now) {
            ready.get_or_insert(killed.elapsed());
        }
        ready.is_some()
    });
    let last = strace.last_call();
    drop(strace);
    let ready = ready.expect("the wait has ended");
    let after = tree.wait_for_next(&before);
    assert!(ready <= PROMISED * 10, "the owner was ready after {ready:?}");
    assert!(busy <= quiet * 20 + Duration::from_millis(200), "other slots: {quiet:?} before, {busy:?} meanwhile");
    if !env.has_log {
        load.ledger.may_be_lost(victim);
    }
    let mut expected = vec![1; 4];
    expected[usize::from(victim)] = after.generation;
    assert_eq!(tree.generations(), expected, "only that slot was started again");
    // A frame for the dead generation on the link to its successor is dropped, and the link lives.
    let mut client = tree.connect_to(0);
    let kept = put_into(&mut client, OWN_TUBES[usize::from(victim)], "kept");
    let link = links::link(&tree.process(Role::Frontend, 0), &tree.process(Role::Owner, victim));
    let name = Link { own_slot: 0, own_generation: 1, peer_slot: victim, peer_generation: before.generation };
    let broken = tree.server.stderr().matches("is broken").count();
    links::write(&link, &links::frame(name, &format!("delete {kept}"))).expect("a link that lives");
    load.wait_for_more(20);
    client.check(format!("delete {kept}\r\n"), "DELETED\r\n");
    assert_eq!(tree.server.stderr().matches("is broken").count(), broken, "the link was reset");
    assert!(try_ask(tree.port(), "stats").is_some());
    answered(&tree, "list-tubes", "OK ");
    let counts = load.judge(&tree);
    // The owner says what it has dropped when the link ends.
    tree.kill(Role::Frontend, 0);
    wait_until("the dropped frame is counted", || tree.server.stderr().contains(": 1 batch(es) meant for an earlier"));
    format!(
        "killed at call {call} ({last}), generation {} ready {ready:.0?}, others' p99 {quiet:.1?} -> {busy:.1?}, \
         frame for the dead dropped and counted; {counts}",
        after.generation
    )
}
