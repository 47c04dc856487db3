//! The whole life cycle with beanstalkc: `tenure-foreign-client-rust HOST PORT`
//!
//! This version of the library has no reserve-job, so that command is left to the others.

use std::error::Error;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use beanstalkc::Beanstalkc;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Counts checks and stops at the first that fails.
#[derive(Default)]
struct Checks(usize);

impl Checks {
    fn same<T: PartialEq<U> + Debug, U: Debug>(&mut self, got: T, expected: U, what: &str) -> Outcome<()> {
        self.0 += 1;
        if got == expected { Ok(()) } else { Err(format!("{what}: expected {expected:?}, but got {got:?}").into()) }
    }

    /// The server refuses with this status, as the library spells it.
    fn refused<T: Debug, E: Debug>(&mut self, result: Result<T, E>, word: &str) -> Outcome<()> {
        self.0 += 1;
        match result {
            Err(error) if format!("{error:?}").contains(word) => Ok(()),
            other => Err(format!("{word} expected, but got {other:?}").into()),
        }
    }

    /// Not early, and at most half a second late: ten times what the server promises on an idle machine.
    fn took(&mut self, start: Instant, seconds: u64, what: &str) -> Outcome<()> {
        let elapsed = start.elapsed();
        let due = Duration::from_secs(seconds);
        self.same(
            elapsed >= due && elapsed <= due + Duration::from_millis(500),
            true,
            &format!("{what} took {elapsed:?}"),
        )
    }
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let host = arguments.next().ok_or("HOST is missing")?;
    let port: u16 = arguments.next().ok_or("PORT is missing")?.parse()?;
    let connect = || Beanstalkc::new().host(&host).port(port).connect();
    let mut checks = Checks::default();
    let (mut producer, mut worker) = (connect()?, connect()?);

    // Tubes.
    checks.same(producer.use_tube("work")?, "work", "use")?;
    checks.same(producer.using()?, "work", "using")?;
    checks.same(worker.watch("work")?, 2u64, "watch")?;
    checks.same(worker.ignore("default")?, 1u64, "ignore")?;
    checks.refused(worker.ignore("work"), "NotIgnored")?;
    checks.same(worker.watching()?, ["work"], "watching")?;
    checks.same(producer.tubes()?, ["default", "work"], "tubes")?;
    checks.refused(producer.stats_tube("nowhere"), "NotFound")?;
    checks.refused(producer.pause_tube("nowhere", seconds(1)), "NotFound")?;
    checks.refused(producer.use_tube("-bad"), "BadFormat")?;

    // Put and peek.
    let one = producer.put(b"one", 20, seconds(0), seconds(90))?;
    let two = producer.put(b"two", 10, seconds(0), seconds(120))?;
    let three = producer.put(b"three", 10, seconds(1000), seconds(60))?;
    checks.same(one < two && two < three, true, "ids rise")?;
    checks.refused(producer.peek(u64::MAX), "NotFound")?;
    checks.same(producer.peek(one)?.body(), b"one", "peek")?;
    checks.same(producer.peek_ready()?.id(), two, "peek-ready")?;
    checks.same(producer.peek_delayed()?.id(), three, "peek-delayed")?;
    checks.refused(producer.peek_buried(), "NotFound")?;
    let job = producer.stats_job(three)?;
    let id = three.to_string();
    for (key, value) in
        [("id", id.as_str()), ("tube", "work"), ("state", "delayed"), ("pri", "10"), ("delay", "1000"), ("ttr", "60")]
    {
        checks.same(job.get(key).map(String::as_str), Some(value), key)?;
    }
    checks.same(job.len(), 14usize, "keys of stats-job")?;
    let tube = producer.stats_tube("work")?;
    checks.same(tube.get("current-jobs-ready").map(String::as_str), Some("2"), "stats-tube")?;
    checks.same(tube.len(), 14usize, "keys of stats-tube")?;

    // Reserve, touch, release, bury, kick, delete.
    let mut job = worker.reserve()?;
    checks.same((job.id(), job.reserved()), (two, true), "reserve")?;
    checks.same(job.body(), b"two", "body")?;
    job.touch()?;
    checks.refused(producer.touch(two), "NotFound")?;
    checks.refused(producer.delete(two), "NotFound")?;
    worker.release(two, 30, seconds(0))?;
    checks.same(worker.reserve_with_timeout(seconds(0))?.id(), one, "reserve after release")?;
    worker.bury(one, 5)?;
    checks.same(producer.peek_buried()?.id(), one, "peek-buried")?;
    checks.same(producer.kick(10)?, 1u64, "kick of the buried")?;
    checks.same(producer.kick(10)?, 1u64, "kick of the delayed")?;
    checks.same(producer.kick(10)?, 0u64, "kick of none")?;
    checks.same(worker.reserve()?.id(), one, "reserve of the kicked")?;
    worker.release(one, 20, seconds(1000))?;
    producer.kick_job(one)?;
    checks.refused(producer.kick_job(one), "NotFound")?;
    for id in [three, one, two] {
        checks.same(worker.reserve_with_timeout(seconds(0))?.id(), id, "order")?;
    }
    for id in [one, two, three] {
        worker.delete(id)?;
    }
    checks.refused(worker.delete(one), "NotFound")?;

    // Timeouts, pause, deadline, close.
    let start = Instant::now();
    checks.refused(worker.reserve_with_timeout(seconds(1)), "TimedOut")?;
    checks.took(start, 1, "timeout of 1")?;
    let short = producer.put(b"short", 0, seconds(0), seconds(1))?;
    checks.same(short > three, true, "the id rises")?;
    let start = Instant::now();
    producer.pause_tube("work", seconds(1))?;
    checks.refused(worker.reserve_with_timeout(seconds(0)), "TimedOut")?;
    checks.same(worker.reserve()?.id(), short, "reserve after the pause")?;
    checks.took(start, 1, "pause of 1")?;
    checks.refused(worker.reserve(), "DeadlineSoon")?;
    let mut other = connect()?;
    other.watch("work")?;
    checks.same(other.reserve_with_timeout(seconds(10))?.id(), short, "reserve of the expired")?;
    checks.same(other.stats_job(short)?.get("timeouts").map(String::as_str), Some("1"), "timeouts")?;
    checks.refused(worker.delete(short), "NotFound")?;
    drop(other);
    checks.same(worker.reserve_with_timeout(seconds(10))?.id(), short, "reserve of what a close released")?;
    worker.delete(short)?;

    // Bodies.
    let every: Vec<u8> = (0..=255).collect();
    for body in [&b""[..], &every, b"\r\n\r\n", &vec![b'x'; 65_535]] {
        let id = producer.put(body, 0, seconds(0), seconds(60))?;
        let job = worker.reserve_with_timeout(seconds(0))?;
        checks.same((job.id(), job.body() == body), (id, true), "binary body")?;
        worker.delete(id)?;
    }
    checks.refused(producer.put(&vec![b'x'; 65_536], 0, seconds(0), seconds(60)), "JobTooBig")?;
    checks.same(producer.using()?, "work", "connection after too big")?;

    // Statistics.
    let stats = producer.stats()?;
    checks.same(stats.len(), 51usize, "keys of stats")?;
    for (key, value) in [("total-jobs", "8"), ("draining", "false"), ("current-connections", "2")] {
        checks.same(stats.get(key).map(String::as_str), Some(value), key)?;
    }
    checks.same(stats.get("id").map(String::len), Some(16usize), "id")?;

    println!("beanstalkc: {} checks passed", checks.0);
    Ok(())
}
