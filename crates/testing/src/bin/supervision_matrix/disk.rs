//! Rows: the log cannot be written, has no space, or is damaged.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use supervisor::Role;
use supervisor::rules::Condition;
use testing::process::wait_until;

use crate::Env;
use crate::faults::Strace;
use crate::load::{Load, Wire, try_ask};
use crate::tree::{OWN_TUBES, PATIENT, Tree, answered, put_into};

/// The first line that the server wrote to its standard error with all of `words`.
fn said(tree: &Tree, words: &[&str]) -> String {
    let text = tree.server.stderr();
    let line = text.lines().find(|line| words.iter().all(|word| line.contains(word)));
    line.unwrap_or_else(|| panic!("no line has all of {words:?}: {text}")).chars().skip(20).take(160).collect()
}

/// A write or sync of one owner fails; the next process of the slot has a disk that works.
pub(crate) fn failed_write(env: &mut Env<'_>) -> String {
    let tree = Tree::start(env.executable, true, &[&PATIENT[..], &["-f", "0"]].concat());
    let load = Load::begin(&tree, &mut env.rng);
    let mut seen = Vec::new();
    for (inject, errno) in [
        ("pwrite64:error=EIO", "errno 5"),
        ("fdatasync:error=EIO", "errno 5"),
        ("pwrite64:error=ENOSPC", "errno 28"),
        ("pwrite64:error=EROFS", "errno 30"),
    ] {
        let before = tree.slot(Role::Owner, 1);
        let process = tree.process(Role::Owner, 1);
        let call = env.rng.between(1, 20);
        let strace = Strace::attach(&tree, &process, &format!("{inject}:when={call}+"));
        process.wait_for_end(Duration::from_secs(60));
        let begin = Instant::now();
        drop(strace);
        let after = tree.wait_for_next(&before);
        let failure = after.failure.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(failure.starts_with("exited with code 10"), "{inject}: {failure}");
        for word in [".log", "offset", errno] {
            assert!(failure.contains(word), "{inject}: {failure:?} does not say {word:?}");
        }
        seen.push(format!("{inject} at call {call}: exit 10, ready again {:.0?}", begin.elapsed()));
        load.wait_for_more(20);
    }
    assert_eq!(tree.generations()[0], 1, "the other owner is unharmed");
    let line = said(&tree, &["offset", "errno"]);
    let counts = load.judge(&tree);
    format!("{}; said: {line}; {counts}", seen.join(", "))
}

/// The disk stays read-only: the slot is tried again within its limit, then it has failed; and it comes back.
///
/// The kernel refuses to remount a file system read-only while files on it are open for writing, so what a process sees
/// of one is injected: its writes fail with EROFS, and so do those of the processes that the supervisor starts.
pub(crate) fn read_only(env: &mut Env<'_>) -> String {
    let arguments = ["--restart-limit", "2/30", "--restart-delay", "10ms", "--owner-wait", "200ms", "-f", "0"];
    let tree = Tree::start(env.executable, true, &arguments);
    let load = Load::begin(&tree, &mut env.rng);
    let mut client = tree.connect();
    let id = put_into(&mut client, OWN_TUBES[1], "kept");
    let processes = tree.children();
    let owner = tree.process(Role::Owner, 1);
    let supervisor = crate::tree::Observed::try_new(tree.server.pid()).expect("the supervisor runs");
    // Of the supervisor and what it starts from now on, and of this owner; the rest of the server has another disk.
    let mut strace = Strace::attach_all(&tree, &[&supervisor, &owner], "pwrite64:error=EROFS");
    wait_until("the slot has failed", || tree.slot(Role::Owner, 1).condition == Condition::Failed);
    let failed = tree.slot(Role::Owner, 1);
    assert_eq!(failed.restarts, 2, "tried again within the limit: {}", tree.server.stderr());
    refused(&tree, id);
    strace.detach();
    drop(processes);
    tree.restart_slot(1);
    wait_until("the slot serves", || tree.slot(Role::Owner, 1).condition == Condition::Ready);
    answered(&tree, &format!("peek {id}"), &format!("FOUND {id} 4"));
    assert_eq!(try_ask(tree.port(), &format!("delete {id}")).as_deref(), Some("DELETED"));
    load.wait_for_more(20);
    let counts = load.judge(&tree);
    format!(
        "EROFS: {} restarts, then failed ({}); revived by restart-slot; {counts}",
        failed.restarts,
        failed.failure.map(|failure| failure.to_string().chars().take(120).collect::<String>()).unwrap_or_default()
    )
}

/// Commands for owner 1, whose slot has failed, are refused, those for the other are not.
pub(crate) fn refused(tree: &Tree, id: u64) {
    let begin = Instant::now();
    for command in [format!("peek {id}"), format!("delete {id}"), format!("reserve-job {id}"), "list-tubes".into()] {
        let reply = try_ask(tree.port(), &command);
        assert_eq!(reply.as_deref(), Some("INTERNAL_ERROR"), "{command}");
    }
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(10), "refused after {took:?}, four times 200 ms are promised");
    let mut wire = Wire::connect(tree.port()).expect("a connection");
    let tube = OWN_TUBES[0];
    assert_eq!(wire.ask(&format!("use {tube}")).expect("an answer"), format!("USING {tube}"));
    let reply = wire.ask("put 0 0 600 1\r\nx").expect("an answer");
    let own = reply.strip_prefix("INSERTED ").unwrap_or_else(|| panic!("the other owner says {reply}"));
    assert_eq!(wire.ask(&format!("delete {own}")).expect("an answer"), "DELETED");
}

/// The script on a full disk: puts are refused; what makes jobs fewer or moves them works; and service resumes.
fn on_a_full_disk(tree: &Tree, load: &Load, make_room: impl FnOnce(&mut Wire, &[u64])) -> String {
    let mut wire = Wire::connect(tree.port()).expect("a connection");
    let mut ask = |command: &str| wire.ask(command).expect("an answer");
    assert_eq!(ask(&format!("use {}", OWN_TUBES[1])), format!("USING {}", OWN_TUBES[1]));
    let body = "x".repeat(4000);
    let put = format!("put 5 0 600 4000\r\n{body}");
    // Buried while there is space, so that space is set aside for its next change too.
    let reply = ask(&put);
    let buried: u64 = reply.rsplit(' ').next().and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("{reply}"));
    assert!(ask(&format!("reserve-job {buried}")).starts_with("RESERVED"));
    assert_eq!(ask(&format!("bury {buried} 5")), "BURIED");
    let mut ids = Vec::new();
    loop {
        let reply = ask(&put);
        match reply.strip_prefix("INSERTED ").and_then(|id| id.parse::<u64>().ok()) {
            Some(id) => ids.push(id),
            None => {
                assert_eq!(reply, "OUT_OF_MEMORY");
                break;
            }
        }
        assert!(ids.len() < 100_000, "the disk is never full");
    }
    assert!(ids.len() > 3, "only {} jobs fit", ids.len());
    let mut expect = |command: String, expected: &str| {
        let reply = ask(&command);
        assert!(reply.starts_with(expected), "on a full disk {command:?} is answered {reply}");
    };
    for id in &ids[..3] {
        expect(format!("reserve-job {id}"), "RESERVED");
    }
    expect(format!("bury {} 5", ids[0]), "BURIED");
    expect(format!("release {} 7 0", ids[1]), "RELEASED");
    expect(format!("kick-job {buried}"), "KICKED");
    expect(format!("delete {}", ids[2]), "DELETED");
    ids.remove(2);
    ids.insert(0, buried);
    let count = ids.len();
    make_room(&mut wire, &ids);
    let begin = Instant::now();
    let mut again = String::new();
    wait_until("puts are accepted again", || {
        again = wire.ask("put 5 0 600 5\r\nagain").expect("an answer");
        again.starts_with("INSERTED")
    });
    let resumed = begin.elapsed();
    let last: u64 = again.rsplit(' ').next().and_then(|id| id.parse().ok()).expect("an id");
    for id in ids.into_iter().chain([last]) {
        // Those that made room are gone already.
        let reply = wire.ask(&format!("delete {id}")).expect("an answer");
        assert!(reply == "DELETED" || reply == "NOT_FOUND", "{reply}");
    }
    drop(wire);
    load.wait_for_more(20);
    format!(
        "after {count} jobs OUT_OF_MEMORY; reserve, bury, release, kick, delete work; puts again after {resumed:.0?}"
    )
}

pub(crate) fn no_space(env: &mut Env<'_>) -> String {
    let tree = Tree::start(env.executable, true, &[&PATIENT[..], &["-s", "65536"]].concat());
    let load = Load::begin(&tree, &mut env.rng);
    let owners = [0, 1].map(|slot| tree.process(Role::Owner, slot));
    let mut strace = Strace::attach_all(&tree, &[&owners[0], &owners[1]], "fallocate:error=ENOSPC:when=1+");
    let seen = on_a_full_disk(&tree, &load, |_, _| strace.detach());
    assert_eq!(tree.generations(), [1; 4], "nothing was started again");
    let counts = load.judge(&tree);
    format!("ENOSPC at fallocate: {seen}; {counts}")
}

/// A file system of some mebibytes, for this server only.
pub(crate) fn small_disk(env: &mut Env<'_>) -> String {
    let tree =
        Tree::start_as(env.executable, true, &[&PATIENT[..], &["-s", "65536"]].concat(), |launch, data: &Path| {
            let mount = "mount -t tmpfs -o size=4m,mode=0755 none \"$0\" && exec \"$@\"";
            launch.through(["unshare", "--mount", "sh", "-c", mount].map(std::ffi::OsStr::new)).through([data])
        });
    let load = Load::begin(&tree, &mut env.rng);
    let seen = on_a_full_disk(&tree, &load, |wire, ids| {
        for id in &ids[..ids.len() - 1] {
            assert_eq!(wire.ask(&format!("delete {id}")).expect("an answer"), "DELETED");
        }
    });
    assert_eq!(tree.generations(), [1; 4], "nothing was started again");
    let counts = load.judge(&tree);
    format!("tmpfs of 4 MiB: {seen}; {counts}")
}

/// A bit of synced data is flipped, then the owner is killed.
pub(crate) fn damaged(env: &mut Env<'_>) -> String {
    const MARK: &[u8] = b"a body that is found again in the file";
    let arguments = ["--restart-limit", "1000000/30", "--restart-delay", "10ms", "--owner-wait", "200ms", "-f", "0"];
    let tree = Tree::start(env.executable, true, &arguments);
    let load = Load::begin(&tree, &mut env.rng);
    let mut client = tree.connect();
    let id = put_into(&mut client, OWN_TUBES[1], std::str::from_utf8(MARK).expect("text"));
    load.wait_for_more(50);
    let before = tree.slot(Role::Owner, 1);
    let owner = tree.process(Role::Owner, 1);
    owner.pause();
    let (path, at) = find(&tree.data().join("logs-1/slot-1"), MARK);
    let bit = 1 << env.rng.below(8);
    flip(&path, at, bit);
    owner.signal(Signal::KILL);
    owner.wait_for_end(Duration::from_secs(60));
    let killed = Instant::now();
    wait_until("the slot has failed", || tree.slot(Role::Owner, 1).condition == Condition::Failed);
    let took = killed.elapsed();
    let failed = tree.slot(Role::Owner, 1);
    let failure = failed.failure.as_ref().map(ToString::to_string).unwrap_or_default();
    for word in ["exited with code 11: ", ".log", "offset"] {
        assert!(failure.contains(word), "{failure:?} does not say {word:?}");
    }
    assert_eq!((failed.generation, failed.restarts), (before.generation + 1, 1), "no restart loop");
    refused(&tree, id);
    assert_eq!(tree.slot(Role::Owner, 1), failed, "still none");
    // Mended by whoever damaged it, it comes back with everything.
    flip(&path, at, bit);
    tree.restart_slot(1);
    wait_until("the slot serves", || tree.slot(Role::Owner, 1).condition == Condition::Ready);
    answered(&tree, &format!("peek {id}"), &format!("FOUND {id} "));
    assert_eq!(try_ask(tree.port(), &format!("delete {id}")).as_deref(), Some("DELETED"));
    load.wait_for_more(20);
    let counts = load.judge(&tree);
    let said: String = failure.chars().take(150).collect();
    format!("bit {bit} at {at}: failed after {took:.0?}, 1 restart, {said}; the other serves; mended: {counts}")
}

/// Where a file of the folder has these bytes.
fn find(folder: &Path, bytes: &[u8]) -> (std::path::PathBuf, usize) {
    for entry in std::fs::read_dir(folder).expect("the folder of the slot").flatten() {
        let text = std::fs::read(entry.path()).unwrap_or_default();
        if let Some(at) = text.windows(bytes.len()).position(|window| window == bytes) {
            return (entry.path(), at);
        }
    }
    panic!("no file in {} has the body", folder.display());
}

fn flip(path: &Path, at: usize, bit: u8) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("a segment");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at as u64).expect("a byte of it");
    file.write_all_at(&[byte[0] ^ bit], at as u64).expect("a byte of it");
}
