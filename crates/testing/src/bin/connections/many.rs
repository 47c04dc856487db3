//! Many connections at once: all are served, the frontends share them, and little is left when they go.
//!
//! Owns: what a connection may cost, and how evenly frontends must have them.

use std::time::{Duration, Instant};

use testing::client::Client;
use testing::process::wait_until;

use crate::crowd::{Crowd, MEETING};
use crate::rounds::{LONGEST_MAX, Rounds};
use crate::server::{Listen, Memory, Multi, TUBES};
use crate::{Arguments, Outcome, ensure, mib};

/// A frontend may have at most this share of the mean, in percent.
const SHARE_MAX: usize = 130;
/// Memory that a frontend may need for a session that rests, in bytes: promised are 4 KiB.
const SESSION_BYTES_MAX: u64 = 4 * 1024;
/// Memory that a frontend needs once, for links and for what its allocator keeps, in bytes.
const FRONTEND_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Memory of all processes that may differ after two crowds alike, in bytes and for each connection: frontends get other
/// shares, and keep room for as many as they had.
const NOISE_BYTES: u64 = 8 * 1024 * 1024;
const NOISE_BYTES_EACH: u64 = 256;
/// A crowd of this size may leave all at once, and no client beside it waits longer than any may; a larger one takes the
/// machine for longer.
const LEAVING_AT_ONCE: usize = 20_000;
/// Growth of the memory of a server with a crowd that rests, in percent of it an hour.
const SLOPE_PERCENT_MAX: f64 = 1.0;
/// Sooner a slope is not a slope: processes settle first.
const SETTLED: Duration = Duration::from_secs(120);

/// A thousand clients over a unix socket and four frontends.
pub(crate) fn thousand(arguments: &Arguments) -> Outcome {
    const CLIENTS: usize = 1_000;
    let multi = Multi::start(arguments.executable(), 4, Listen::Unix, &[]);
    let before = multi.descriptors();
    let mut crowd = Crowd::start(multi.address(), 2)?;
    let opened = crowd.open(CLIENTS)?;
    ensure(opened.count == CLIENTS, || format!("{} of {CLIENTS} are open", opened.count))?;
    let shares = shared_out(&multi, &before, CLIENTS)?;
    crowd.close()?;
    wait_until("descriptors are back", || multi.descriptors() == before);
    multi.finish()?;
    Ok(format!("{shares} over a unix socket"))
}

/// As many connections as the command line says, over TCP.
pub(crate) fn many(arguments: &Arguments) -> Outcome {
    let multi = Multi::start(arguments.executable(), arguments.frontends, Listen::Tcp, &[]);
    let count = arguments.connections;
    // What a process needs once, it has before it is measured.
    let mut rounds = Rounds::begin(&multi, &TUBES);
    rounds.wait_for(100);
    let mut monitor = multi.connect();
    let clients = Multi::clients(&mut monitor);
    ensure(clients == rounds.clients() + 1, || format!("{clients} clients before the crowd"))?;
    let (descriptors, memory) = (multi.descriptors(), multi.memory());

    let mut crowd = Crowd::start(multi.address(), arguments.processes)?;
    rounds.step(" while they connect");
    let opened = crowd.open(count)?;
    ensure(opened.count == count, || format!("{} of {count} are open", opened.count))?;
    ensure(Multi::clients(&mut monitor) == clients + count, || "some were closed".to_owned())?;
    let shares = shared_out(&multi, &descriptors, count)?;
    rounds.step(" while each is served");
    let served = crowd.serve()?;
    ensure(served.count == count, || format!("{} of {count} are served", served.count))?;
    let full = multi.memory();
    let session = full.of_frontends().saturating_sub(memory.of_frontends()) / count as u64;
    let at_owners = full.of_owners().saturating_sub(memory.of_owners()) / count as u64;
    let once = FRONTEND_BYTES_MAX * u64::from(arguments.frontends) / count as u64;
    ensure(session <= SESSION_BYTES_MAX + once, || {
        format!("a session that rests takes {session} bytes of a frontend, not {SESSION_BYTES_MAX}")
    })?;
    rounds.step(" while some wait in reserve");
    let met = meet(&mut crowd, &mut monitor)?;
    rounds.step(" while they rest");
    let held = hold(arguments, &multi, &mut crowd)?;

    rounds.step(" while they close");
    crowd.close()?;
    let mut back = |what: &str| {
        wait_until(what, || Multi::clients(&mut monitor) == clients);
        wait_until("descriptors are back", || multi.descriptors() == descriptors);
    };
    back("the crowd is gone");
    rounds.wait_for(100);
    let first = multi.memory();
    // What is kept for others must serve others.
    rounds.step(" while a second crowd connects");
    crowd.open(count)?;
    rounds.step(" while the second crowd closes");
    crowd.close()?;
    back("the second crowd is gone");
    rounds.wait_for(100);
    let second = multi.memory();
    let times = u32::try_from(count.div_ceil(LEAVING_AT_ONCE)).map_err(|error| error.to_string())?;
    let beside = rounds.end(LONGEST_MAX * times)?;
    let total = |memory: &Memory| memory.of_frontends() + memory.of_owners();
    let left = total(&first).saturating_sub(total(&memory));
    ensure(total(&second) <= total(&first) + NOISE_BYTES.max(NOISE_BYTES_EACH * count as u64), || {
        format!("memory grows from crowd to crowd: {} after one, {} after two", mib(total(&first)), mib(total(&second)))
    })?;
    drop(monitor);
    multi.finish()?;
    Ok(format!(
        "{shares}; {session} bytes a session in frontends, {at_owners} in owners; waited {:.1?} for 128 at most; \
         {met} waited in reserve and got a job each; {beside}{held}; all gone, {} kept ({} after a second crowd)",
        opened.longest.max(served.longest),
        mib(left),
        mib(total(&second).saturating_sub(total(&memory))),
    ))
}

/// No frontend has much more than its share of the crowd.
fn shared_out(multi: &Multi, before: &[usize], count: usize) -> Result<String, String> {
    let frontends = multi.frontends.len();
    let mut shares: Vec<usize> =
        multi.descriptors().iter().zip(before).map(|(now, before)| now.saturating_sub(*before)).collect();
    shares.truncate(frontends);
    ensure(shares.iter().sum::<usize>() == count, || format!("frontends have {shares:?}, not {count} in all"))?;
    let is_fair = shares.iter().all(|share| share * frontends * 100 <= count * SHARE_MAX);
    ensure(is_fair, || format!("frontends have {shares:?}: one has more than {SHARE_MAX} % of the mean"))?;
    Ok(format!("{count} as {shares:?}"))
}

/// Some of the crowd wait in reserve at both owners, and each of them gets one of as many jobs.
fn meet(crowd: &mut Crowd, monitor: &mut Client) -> Result<usize, String> {
    // The tube is there before anybody is counted in it.
    monitor.check(format!("use {MEETING}\r\n"), format!("USING {MEETING}\r\n"));
    let waiting = crowd.wait()?.count;
    let mut is_waiting = || monitor.stat(&format!("stats-tube {MEETING}"), "current-waiting");
    wait_until("all wait", || is_waiting() == waiting.to_string());
    for _ in 0..waiting {
        monitor.put(0, 0, 600, b"+");
    }
    let collected = crowd.collect()?.count;
    ensure(collected == waiting, || format!("{waiting} waited, {collected} got a job"))?;
    monitor.check("use default\r\n", "USING default\r\n");
    Ok(collected)
}

/// Keeps the crowd for as long as the command line says, serving it once a minute; memory must not grow.
fn hold(arguments: &Arguments, multi: &Multi, crowd: &mut Crowd) -> Result<String, String> {
    if arguments.hold.is_zero() {
        return Ok(String::new());
    }
    let total = || {
        let memory = multi.memory();
        memory.of_frontends() + memory.of_owners()
    };
    let begin = Instant::now();
    let mut settled = None;
    let mut times = 0;
    while begin.elapsed() < arguments.hold {
        let next = begin + Duration::from_secs(60) * (times + 1);
        std::thread::sleep(next.min(begin + arguments.hold).saturating_duration_since(Instant::now()));
        let served = crowd.serve()?;
        ensure(served.count == arguments.connections, || format!("{} are served", served.count))?;
        times += 1;
        if begin.elapsed() >= SETTLED {
            settled.get_or_insert_with(|| (Instant::now(), total()));
        }
    }
    let held = format!("; held for {:.0?}, served {times} times", begin.elapsed());
    let Some((since, at_first)) = settled else { return Ok(held) };
    let at_last = total();
    let hours = since.elapsed().as_secs_f64() / 3600.0;
    let percent = (at_last as f64 / at_first as f64 - 1.0) * 100.0;
    // A few pages more or less in a short time are no slope.
    ensure(percent <= SLOPE_PERCENT_MAX * hours.max(1.0), || {
        format!("memory grew from {} to {} in {hours:.2} h while the crowd rested", mib(at_first), mib(at_last))
    })?;
    Ok(format!("{held}, memory {} then {}", mib(at_first), mib(at_last)))
}
