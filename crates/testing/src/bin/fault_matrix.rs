//! Faults that strace injects into a real server: what its system calls report is not what happened, or they kill it.
//!
//!     fault_matrix target/verify/tenure
//!
//! Each row runs the real executable below `strace -e inject=…`, plays a script over a socket and looks at what the
//! server says, how it ends, and what the next start finds. Calls are counted per thread: the event loop writes, the
//! sync thread syncs. Prints a line per row and ends with 1 if one of them fails; leaves nothing behind.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use testing::process::{Folder, Launch, Server};

/// Promised is 1 s; limits for users are tested at ten times.
const EXIT_LIMIT: Duration = Duration::from_secs(10);
/// Kills at call number 1, 2, … of each system call, up to this one; more only where there are so many.
const KILL_POINTS_MAX: u32 = 16;

fn main() -> ExitCode {
    let Some(executable) = std::env::args().nth(1).map(PathBuf::from) else {
        eprintln!("usage: fault_matrix EXECUTABLE");
        return ExitCode::from(5);
    };
    let begin = Instant::now();
    let rows: &[Row] = &[
        ("EIO at fdatasync", sync_error),
        ("EIO at pwrite64", |executable| write_error(executable, "EIO", 5)),
        ("ENOSPC at a write into allocated space", |executable| write_error(executable, "ENOSPC", 28)),
        ("ENOSPC at fallocate", no_space),
        ("lost write", lost_write),
        ("slow fdatasync", slow_sync),
        ("SIGKILL at each pwrite64", |executable| kill_at_each(executable, "pwrite64")),
        ("SIGKILL at each fdatasync", |executable| kill_at_each(executable, "fdatasync")),
        ("SIGKILL at each fsync", |executable| kill_at_each(executable, "fsync")),
        ("SIGKILL at each openat", |executable| kill_at_each(executable, "openat")),
        ("SIGKILL at each renameat", |executable| kill_at_each(executable, "renameat")),
        ("SIGKILL at each ftruncate", |executable| kill_at_each(executable, "ftruncate")),
        ("SIGKILL at each fallocate", |executable| kill_at_each(executable, "fallocate")),
        ("SIGKILL at each unlinkat", |executable| kill_at_each(executable, "unlinkat")),
    ];
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((name, row)) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let row_begin = Instant::now();
                    // The harness panics where a server does not do what every test expects of it.
                    let result = std::panic::catch_unwind(|| row(&executable));
                    let seconds = row_begin.elapsed().as_secs_f64();
                    match result {
                        Ok(Ok(what)) => println!("{name}: {what} ({seconds:.1} s)"),
                        Ok(Err(what)) => {
                            eprintln!("{name}: FAILED: {what}");
                            *failed.lock().expect("nothing panics while it counts") += 1;
                        }
                        Err(_) => {
                            eprintln!("{name}: FAILED: the harness gave up");
                            *failed.lock().expect("nothing panics while it counts") += 1;
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("nothing panics while it counts");
    println!("{} rows, {failed} failed, {:.0} s", rows.len(), begin.elapsed().as_secs_f64());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A row of the table: its name and what plays it.
type Row = (&'static str, fn(&Path) -> Outcome);

/// What a row has shown, or what went wrong.
type Outcome = Result<String, String>;

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// A folder with a log directory.
struct Place {
    folder: Folder,
}

impl Place {
    fn new() -> Place {
        let folder = Folder::new();
        std::fs::create_dir(folder.join("data")).expect("a directory in a fresh folder");
        Place { folder }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn launch(&self, executable: &Path, arguments: &[&str]) -> Launch {
        Launch::new(executable).log_in(&self.data()).with(["-s", "16384"]).with(arguments)
    }

    /// The server as a child of ours with strace beside it, so that signals and exit codes are its own.
    fn launch_with(&self, executable: &Path, arguments: &[&str], inject: &str) -> Launch {
        let call = inject.split(':').next().unwrap_or_default();
        let output = self.folder.join("strace").into_os_string();
        let words =
            ["strace", "-D", "-f", "-qq", "-e", &format!("trace={call}"), "-e", &format!("inject={inject}"), "-o"];
        let words = words.iter().map(|word| std::ffi::OsString::from(*word)).chain([output]);
        self.launch(executable, arguments).through(words.collect::<Vec<_>>())
    }

    /// Starts and stops it once, so that later starts make the same calls.
    fn warm_up(&self, executable: &Path, arguments: &[&str]) {
        self.launch(executable, arguments).start().terminate();
    }
}

/// A client of few words.
struct Client {
    stream: TcpStream,
    input: BufReader<TcpStream>,
}

impl Client {
    fn connect(server: &Server) -> std::io::Result<Client> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port()))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Client { input: BufReader::new(stream.try_clone()?), stream })
    }

    /// The reply's line; a body or text behind it follows after a blank.
    fn ask(&mut self, command: &str) -> std::io::Result<String> {
        self.stream.write_all(format!("{command}\r\n").as_bytes())?;
        let mut line = String::new();
        if self.input.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let mut reply = line.trim_end().to_owned();
        if ["RESERVED", "FOUND", "OK"].contains(&reply.split(' ').next().unwrap_or_default()) {
            let length: usize = reply.rsplit(' ').next().and_then(|length| length.parse().ok()).unwrap_or(0);
            let mut body = vec![0; length + 2];
            self.input.read_exact(&mut body)?;
            reply = format!("{reply} {}", String::from_utf8_lossy(&body[..length]));
        }
        Ok(reply)
    }

    fn put(&mut self, body: &str) -> std::io::Result<String> {
        self.ask(&format!("put 5 0 60 {}\r\n{body}", body.len()))
    }
}

/// Puts until one is not acknowledged; the ids and bodies of those that were, and what came instead.
fn put_until_refused(
    client: &mut Client,
    body: impl Fn(usize) -> String,
    most: usize,
) -> (BTreeMap<u64, String>, String) {
    let mut put = BTreeMap::new();
    for number in 0..most {
        match client.put(&body(number)) {
            Ok(reply) => match reply.strip_prefix("INSERTED ").and_then(|id| id.parse().ok()) {
                Some(id) => {
                    put.insert(id, body(number));
                }
                None => return (put, reply),
            },
            Err(error) => return (put, format!("closed: {error}")),
        }
    }
    (put, "all were taken".to_owned())
}

fn all_there(client: &mut Client, jobs: &BTreeMap<u64, String>) -> Result<(), String> {
    for (id, body) in jobs {
        let found = client.ask(&format!("peek {id}")).map_err(|error| error.to_string())?;
        let expected = format!("FOUND {id} {} {body}", body.len());
        ensure(found == expected, || format!("job {id} was acknowledged, peek says {found:?}"))?;
    }
    Ok(())
}

/// The server ends by itself with `code` and says all of `words`.
fn ends_with(server: &mut Server, code: i32, words: &[&str]) -> Result<String, String> {
    let begin = Instant::now();
    let status = server.wait();
    let took = begin.elapsed();
    ensure(status.code() == Some(code), || format!("ended with {status}, not {code}: {}", server.stderr()))?;
    ensure(took <= EXIT_LIMIT, || format!("ended after {took:?}"))?;
    let said = server.stderr();
    let line = said.lines().find(|line| words.iter().all(|word| line.contains(word)));
    line.map(str::to_owned).ok_or_else(|| format!("no line of {said:?} has all of {words:?}"))
}

/// A later start, without a fault, has everything that was acknowledged.
fn comes_back_with(place: &Place, executable: &Path, jobs: &BTreeMap<u64, String>) -> Result<(), String> {
    let mut server = place.launch(executable, &["-f", "0"]).start();
    let mut client = Client::connect(&server).map_err(|error| error.to_string())?;
    all_there(&mut client, jobs)?;
    let reply = client.put("again").map_err(|error| error.to_string())?;
    let id: u64 = reply.strip_prefix("INSERTED ").and_then(|id| id.parse().ok()).ok_or(reply)?;
    ensure(jobs.keys().all(|known| *known < id), || format!("id {id} comes again"))?;
    drop(client);
    server.terminate();
    Ok(())
}

fn sync_error(executable: &Path) -> Outcome {
    let place = Place::new();
    place.warm_up(executable, &["-f", "0"]);
    // The event loop syncs fewer times at a start; the sixth of the sync thread is the sixth put's.
    let mut server = place.launch_with(executable, &["-f", "0"], "fdatasync:error=EIO:when=6").start();
    let mut client = Client::connect(&server).map_err(|error| error.to_string())?;
    let (jobs, instead) = put_until_refused(&mut client, |number| format!("job {number}"), 20);
    ensure(jobs.len() == 5, || format!("{} puts were acknowledged, not 5; then {instead}", jobs.len()))?;
    ensure(instead.starts_with("closed") || instead == "INTERNAL_ERROR", || format!("the reply was {instead}"))?;
    let said = ends_with(&mut server, 10, &[".log", "offset", "5"])?;
    comes_back_with(&place, executable, &jobs)?;
    Ok(format!("5 acknowledged, then {instead}, exit 10: {}", shorten(&said)))
}

fn write_error(executable: &Path, name: &str, errno: i32) -> Outcome {
    let place = Place::new();
    place.warm_up(executable, &["-f", "0"]);
    // Two locks, the generation and the header of the segment come before the records of the puts.
    let mut server = place.launch_with(executable, &["-f", "0"], &format!("pwrite64:error={name}:when=9")).start();
    let mut client = Client::connect(&server).map_err(|error| error.to_string())?;
    let (jobs, instead) = put_until_refused(&mut client, |number| format!("job {number}"), 20);
    ensure((1..20).contains(&jobs.len()), || format!("{} puts were acknowledged; then {instead}", jobs.len()))?;
    ensure(instead.starts_with("closed") || instead == "INTERNAL_ERROR", || format!("the reply was {instead}"))?;
    let said = ends_with(&mut server, 10, &[".log", "offset", &format!("errno {errno}")])?;
    comes_back_with(&place, executable, &jobs)?;
    Ok(format!("{} acknowledged, then {instead}, exit 10: {}", jobs.len(), shorten(&said)))
}

fn no_space(executable: &Path) -> Outcome {
    let place = Place::new();
    // The first segment and the spare are allocated at the start; then nothing for some tries.
    let launch = place.launch_with(executable, &["-f", "0"], "fallocate:error=ENOSPC:when=3..8");
    let mut server = launch.start();
    let mut client = Client::connect(&server).map_err(|error| error.to_string())?;
    let body = |number: usize| format!("{number:0>400}");
    let (buried, _) = put_until_refused(&mut client, body, 1);
    for (command, expected) in [("reserve", "RESERVED 1 "), ("bury 1 5", "BURIED")] {
        let reply = client.ask(command).map_err(|error| error.to_string())?;
        ensure(reply.starts_with(expected), || format!("{command} is answered {reply}"))?;
    }
    let (mut jobs, instead) = put_until_refused(&mut client, body, 200);
    ensure(instead == "OUT_OF_MEMORY" && jobs.len() > 5, || format!("after {} puts: {instead}", jobs.len()))?;
    let taken = jobs.len();
    // What makes jobs smaller, fewer or stand elsewhere works on a full disk.
    let mut step = |command: &str, expected: &str| {
        let reply = client.ask(command).map_err(|error| error.to_string())?;
        ensure(reply.starts_with(expected), || format!("on a full disk {command} is answered {reply}"))
    };
    step("kick-job 1", "KICKED")?;
    step("reserve-job 2", "RESERVED 2 ")?;
    step("release 2 7 0", "RELEASED")?;
    step("reserve-job 3", "RESERVED 3 ")?;
    step("bury 3 5", "BURIED")?;
    step("delete 4", "DELETED")?;
    jobs.remove(&4);
    jobs.extend(buried);
    let begin = Instant::now();
    let again = loop {
        let reply = client.put("there is space").map_err(|error| error.to_string())?;
        if let Some(id) = reply.strip_prefix("INSERTED ").and_then(|id| id.parse::<u64>().ok()) {
            break id;
        }
        ensure(begin.elapsed() < EXIT_LIMIT, || format!("service does not resume: {reply}"))?;
        std::thread::sleep(Duration::from_millis(20));
    };
    jobs.insert(again, "there is space".to_owned());
    all_there(&mut client, &jobs)?;
    drop(client);
    let status = server.terminate();
    ensure(status.success(), || format!("ended with {status}: {}", server.stderr()))?;
    comes_back_with(&place, executable, &jobs)?;
    Ok(format!(
        "{taken} puts taken, then OUT_OF_MEMORY; deletes, releases, buries and kicks work; resumes after {:?}",
        begin.elapsed()
    ))
}

fn lost_write(executable: &Path) -> Outcome {
    let place = Place::new();
    place.warm_up(executable, &["-f", "0"]);
    // The JOB record of a body of 3 bytes in `default`: header 32, payload 76 + 7 + 3, padded to 8.
    const RECORD_BYTES: u32 = 120;
    let inject = format!("pwrite64:retval={RECORD_BYTES}:when=7");
    let mut server = place.launch_with(executable, &["-f", "0"], &inject).start();
    let mut client = Client::connect(&server).map_err(|error| error.to_string())?;
    let (jobs, instead) = put_until_refused(&mut client, |number| format!("{number:0>3}"), 6);
    ensure(jobs.len() == 6, || format!("{} puts, then {instead}", jobs.len()))?;
    server.kill();
    let check = std::process::Command::new(executable).args(["tubes", "check"]).arg(place.data()).output();
    let check = check.map_err(|error| error.to_string())?;
    ensure(check.status.code() == Some(11), || format!("tubes check ended with {}", check.status))?;
    let refused = place.launch(executable, &["-f", "0"]).finish();
    ensure(refused.code == Some(11), || format!("the start ended with {:?}: {}", refused.code, refused.stderr))?;
    let line = refused.stderr.lines().find(|line| line.contains(".log") && line.contains("offset"));
    let line = line.ok_or_else(|| format!("no file and offset in {:?}", refused.stderr))?;
    Ok(format!("exit 11: {}", shorten(line)))
}

fn slow_sync(executable: &Path) -> Outcome {
    const DELAY: Duration = Duration::from_millis(300);
    let place = Place::new();
    place.warm_up(executable, &["-f", "0"]);
    let inject = format!("fdatasync:delay_enter={}", DELAY.as_micros());
    let mut server = place.launch_with(executable, &["-f", "0"], &inject).start();
    let mut client = Client::connect(&server).map_err(|error| error.to_string())?;
    let begin = Instant::now();
    let (jobs, instead) = put_until_refused(&mut client, |number| format!("job {number}"), 3);
    let always = begin.elapsed();
    ensure(jobs.len() == 3, || format!("{} puts, then {instead}", jobs.len()))?;
    ensure(always >= 3 * DELAY, || format!("three syncs of {DELAY:?} took {always:?}"))?;
    drop(client);
    let status = server.terminate();
    ensure(status.success(), || format!("ended with {status}"))?;
    // In mode `interval` nobody waits for it.
    let mut server = place.launch_with(executable, &["-f", "1"], &inject).start();
    let mut client = Client::connect(&server).map_err(|error| error.to_string())?;
    let begin = Instant::now();
    let (more, instead) = put_until_refused(&mut client, |number| format!("job {number}"), 100);
    let interval = begin.elapsed();
    ensure(more.len() == 100, || format!("{} puts, then {instead}", more.len()))?;
    ensure(interval < 100 * DELAY, || format!("a hundred puts took {interval:?}: each waited for a sync"))?;
    drop(client);
    server.terminate();
    comes_back_with(&place, executable, &more)?;
    Ok(format!("-f 0: 3 puts in {always:?}; -f 1: 100 puts in {interval:?}"))
}

/// Jobs as the replies of a script say they are; `None` for what an unanswered command may have changed.
#[derive(Debug, Default)]
struct Expected {
    /// Body and word of `stats-job`.
    jobs: BTreeMap<u64, Option<(String, &'static str)>>,
    gone: Vec<u64>,
}

/// Puts, takes, releases, buries, kicks and deletes through several segments, until the server is gone.
fn play(server: &Server, expected: &mut Expected) -> std::io::Result<()> {
    let mut client = Client::connect(server)?;
    let mut held: Vec<u64> = Vec::new();
    for number in 0..36_usize {
        let body = format!("{number:0>1400}");
        let reply = client.put(&body)?;
        if let Some(id) = reply.strip_prefix("INSERTED ").and_then(|id| id.parse().ok()) {
            expected.jobs.insert(id, Some((body, "ready")));
        }
        if number % 3 == 2 {
            let reply = client.ask("reserve-with-timeout 0")?;
            held.extend(reply.split(' ').nth(1).and_then(|id| id.parse::<u64>().ok()));
        }
        let Some(id) = held.pop() else { continue };
        let before = expected.jobs.insert(id, None).flatten();
        let (command, becomes) = match number % 4 {
            0 => (format!("release {id} 5 0"), Some("ready")),
            1 => (format!("bury {id} 5"), Some("buried")),
            2 => (format!("release {id} 5 1000"), Some("delayed")),
            _ => (format!("delete {id}"), None),
        };
        client.ask(&command)?;
        match becomes {
            Some(word) => {
                expected.jobs.insert(id, before.map(|(body, _)| (body, word)));
            }
            None => {
                expected.jobs.remove(&id);
                expected.gone.push(id);
            }
        }
    }
    // Most go, so that compaction moves the others.
    let ids: Vec<u64> = expected.jobs.keys().copied().filter(|id| id % 8 != 0).collect();
    for id in ids {
        let before = expected.jobs.insert(id, None);
        match client.ask(&format!("delete {id}"))?.as_str() {
            "DELETED" => {
                expected.jobs.remove(&id);
                expected.gone.push(id);
            }
            _ => {
                expected.jobs.insert(id, before.flatten());
            }
        }
    }
    Ok(())
}

/// All jobs up to `last` as `peek` and `stats-job` show them, without what time changes.
fn state_of(server: &Server, last: u64) -> std::io::Result<BTreeMap<u64, (String, String)>> {
    let mut client = Client::connect(server)?;
    let mut state = BTreeMap::new();
    for id in 1..=last {
        let found = client.ask(&format!("peek {id}"))?;
        let Some(body) = found.strip_prefix(&format!("FOUND {id} ")).and_then(|rest| rest.split_once(' ')) else {
            continue;
        };
        let stats = client.ask(&format!("stats-job {id}"))?;
        let kept = stats
            .lines()
            .filter(|line| !["OK", "age", "time-left", "file"].iter().any(|changes| line.starts_with(changes)));
        state.insert(id, (body.1.to_owned(), kept.collect::<Vec<_>>().join("\n")));
    }
    Ok(state)
}

/// Kills the server at the first, second, … such call until a run comes through; each time what was acknowledged is
/// there, and a second recovery finds what the first found.
fn kill_at_each(executable: &Path, call: &str) -> Outcome {
    let mut kills = 0;
    for number in 1..=KILL_POINTS_MAX {
        let place = Place::new();
        if call != "fallocate" {
            place.warm_up(executable, &["-f", "0"]);
        }
        let launch = place.launch_with(executable, &["-f", "0"], &format!("{call}:signal=SIGKILL:when={number}"));
        let mut server = launch.spawn_only();
        let mut expected = Expected::default();
        let is_up = until_listening(&mut server);
        let came_through = is_up && play(&server, &mut expected).is_ok();
        if came_through && server.is_running() {
            server.kill();
            if kills == 0 {
                return Err(format!("no run was killed at {call} number 1 to {number}"));
            }
            break;
        }
        kills += 1;
        server.kill();
        recovers(&place, executable, &expected).map_err(|what| format!("killed at {call} number {number}: {what}"))?;
    }
    Ok(format!("{kills} kills"))
}

/// Waits until the server listens or is gone.
fn until_listening(server: &mut Server) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(30) {
        if !server.is_running() {
            return false;
        }
        if Client::connect(server).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

fn recovers(place: &Place, executable: &Path, expected: &Expected) -> Result<(), String> {
    let last = expected.jobs.keys().chain(&expected.gone).max().copied().unwrap_or(0) + 5;
    let mut states = Vec::new();
    for _ in 0..2 {
        let mut server = place.launch(executable, &["-f", "0"]).start();
        let state = state_of(&server, last).map_err(|error| error.to_string())?;
        // A kill: the next start recovers too.
        server.kill();
        states.push(state);
    }
    let [first, second] = states.as_slice() else { unreachable!("two starts") };
    ensure(first == second, || "a second recovery finds something else".to_owned())?;
    for (id, job) in &expected.jobs {
        let Some((body, word)) = job else { continue };
        let Some((found, stats)) = first.get(id) else { return Err(format!("job {id} was acknowledged and is gone")) };
        ensure(found == body, || format!("job {id} has another body"))?;
        ensure(stats.contains(&format!("state: {word}")), || format!("job {id} should be {word}: {stats}"))?;
    }
    let back = expected.gone.iter().find(|id| first.contains_key(id));
    ensure(back.is_none(), || format!("job {back:?} was deleted and is there"))
}

fn shorten(line: &str) -> String {
    let from = line.find("failed").or_else(|| line.find("damaged").map(|_| 0)).unwrap_or(0);
    line[from..].chars().take(110).collect()
}
