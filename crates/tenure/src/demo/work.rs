//! Producers, workers and the one who kicks: threads that go on over lost connections.

use super::client::{Client, Job};
use super::ledger::Ledger;
use anyhow::{Context, ensure};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The tubes that jobs go through.
pub(crate) const TUBES: [&str; 4] = ["demo-mail", "demo-video", "demo-report", "demo-index"];

/// Puts in one write.
const BATCH: u64 = 16;
/// Jobs that producers may be ahead of the workers, so that each kill hits both at work.
const BACKLOG_MAX: u64 = 4000;
/// Longest time without a connection while the server restarts.
const RECONNECT: Duration = Duration::from_secs(60);

/// What all threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) ledger: Ledger,
    pub(crate) port: u16,
    pub(crate) seed: u64,
}

type Thread = JoinHandle<anyhow::Result<()>>;

fn spawn(
    shared: &Arc<Shared>,
    name: String,
    work: impl FnOnce(&Shared) -> anyhow::Result<()> + Send + 'static,
) -> Thread {
    let shared = shared.clone();
    std::thread::Builder::new().name(name).spawn(move || work(&shared)).expect("a thread can be started")
}

/// Puts `share` jobs that are acknowledged; those whose outcome is unknown do not count.
pub(crate) fn spawn_producer(shared: &Arc<Shared>, number: u64, share: u64) -> Thread {
    spawn(shared, format!("producer-{number}"), move |shared| {
        let mut random = Random(shared.seed ^ (number + 1) << 32);
        let mut next = number << 48;
        let mut left = share;
        while left > 0 && !shared.ledger.is_finished() {
            let mut client = connect(shared)?;
            while left > 0 && !shared.ledger.is_finished() {
                shared.ledger.wait_for_backlog_below(BACKLOG_MAX);
                let tube = TUBES[random.below(4) as usize];
                let batch = left.min(BATCH);
                let numbers: Vec<u64> = (next..next + batch).collect();
                next += batch;
                let jobs: Vec<_> = numbers.iter().map(|number| new_job(shared, &mut random, *number, tube)).collect();
                let began = Instant::now();
                match client.use_tube(tube).and_then(|()| client.put_all(&jobs)) {
                    Ok(_) => shared.ledger.was_put(&numbers, micros(began)),
                    Err(_) => {
                        shared.ledger.put_is_unknown(numbers.len());
                        break;
                    }
                }
                left -= batch;
            }
        }
        Ok(())
    })
}

fn new_job(shared: &Shared, random: &mut Random, number: u64, tube: &'static str) -> (u32, u32, Vec<u8>) {
    let pri = random.below(2048) as u32;
    shared.ledger.will_put(number, tube, pri);
    let delay_s = u32::from(random.below(50) == 0);
    (pri, delay_s, body(number, random.below(200) as usize))
}

/// A body that can be told to be whole: the job's number, a check of it, and so many bytes made from it.
fn body(number: u64, extra: usize) -> Vec<u8> {
    let mut body = format!("{number} {} ", Random(number).next()).into_bytes();
    let mut random = Random(!number);
    body.extend((0..extra).map(|_| random.next() as u8));
    body
}

/// The number of a job, if its body is whole.
fn number_of(body_bytes: &[u8]) -> Option<u64> {
    let end = body_bytes.iter().position(|byte| *byte == b' ')?;
    let number: u64 = std::str::from_utf8(&body_bytes[..end]).ok()?.parse().ok()?;
    let head = format!("{number} {} ", Random(number).next()).len();
    (body(number, body_bytes.len().checked_sub(head)?) == body_bytes).then_some(number)
}

/// Takes jobs and deletes most of them; some it releases, buries or touches first.
pub(crate) fn spawn_worker(shared: &Arc<Shared>, number: u64) -> Thread {
    spawn(shared, format!("worker-{number}"), move |shared| {
        let mut random = Random(shared.seed ^ (number + 1) << 40);
        while !shared.ledger.is_finished() {
            let mut client = connect(shared)?;
            let ready: anyhow::Result<()> = TUBES.iter().try_for_each(|tube| client.watch(tube));
            if ready.is_err() {
                continue;
            }
            while !shared.ledger.is_finished() {
                match client.reserve(1) {
                    Ok(None) => {}
                    Ok(Some(job)) => {
                        if handle(shared, &mut client, &mut random, &job, number)?.is_err() {
                            shared.ledger.count(|counts| counts.lost_connections += 1);
                            break;
                        }
                    }
                    Err(_) => {
                        shared.ledger.count(|counts| counts.lost_connections += 1);
                        break;
                    }
                }
            }
        }
        Ok(())
    })
}

/// The outer error is a failure of the demo, the inner one a lost connection.
fn handle(
    shared: &Shared,
    client: &mut Client,
    random: &mut Random,
    job: &Job,
    worker: u64,
) -> anyhow::Result<anyhow::Result<()>> {
    let began = Instant::now();
    let ledger = &shared.ledger;
    let number = number_of(&job.body).with_context(|| format!("job {} came out with a changed body", job.id))?;
    let epoch = ledger.epoch();
    // The answer comes over the connection that holds the job, so it is held now.
    let stats = match client.stats(&format!("stats-job {}", job.id)) {
        Ok(stats) => stats,
        Err(lost) => return Ok(Err(lost)),
    };
    let value = |key: &str| stats.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("").trim_matches('"');
    let pri = value("pri: ").parse().context("stats-job without a priority")?;
    ensure!(
        ledger.was_reserved(number, value("tube: "), pri, worker, epoch),
        "job {number} (id {}) came out wrong:\n{stats}",
        job.id
    );
    let id = job.id;
    Ok(match random.below(100) {
        0..5 => {
            // The outcome may stay unknown, so the priority is kept: either way it is the one expected.
            ledger.lets_go(number, pri);
            ledger.count(|counts| counts.releases += 1);
            client.simple(&format!("release {id} {pri} 0"), "RELEASED")
        }
        5..8 => {
            ledger.lets_go(number, pri);
            ledger.count(|counts| counts.delayed_releases += 1);
            ledger.count(|counts| counts.releases += 1);
            client.simple(&format!("release {id} {pri} 1"), "RELEASED")
        }
        8..12 => {
            ledger.lets_go(number, pri);
            ledger.count(|counts| counts.buries += 1);
            client.simple(&format!("bury {id} {pri}"), "BURIED")
        }
        choice => {
            let touched = if choice < 15 {
                ledger.count(|counts| counts.touches += 1);
                client.simple(&format!("touch {id}"), "TOUCHED")
            } else {
                Ok(())
            };
            let deleted = touched.and_then(|()| client.simple(&format!("delete {id}"), "DELETED"));
            match &deleted {
                Ok(()) => ledger.was_deleted(number, micros(began)),
                Err(_) => ledger.delete_is_unknown(number),
            }
            deleted
        }
    })
}

/// Kicks what was buried, so that it comes out in the end.
pub(crate) fn spawn_kicker(shared: &Arc<Shared>) -> Thread {
    spawn(shared, "kicker".into(), |shared| {
        while !shared.ledger.is_finished() {
            let mut client = connect(shared)?;
            'connected: while !shared.ledger.is_finished() {
                for tube in TUBES {
                    match client.use_tube(tube).and_then(|()| client.kick(1000)) {
                        Ok(kicked) => shared.ledger.count(|counts| counts.kicks += kicked),
                        Err(_) => break 'connected,
                    }
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    })
}

/// A connection, as soon as the server listens again.
fn connect(shared: &Shared) -> anyhow::Result<Client> {
    let began = Instant::now();
    loop {
        match Client::connect(shared.port) {
            Ok(client) => return Ok(client),
            Err(error) => ensure!(began.elapsed() < RECONNECT, "no connection to the server: {error:#}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn micros(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX)
}

/// Enough randomness for a demo, repeatable by its seed (splitmix64).
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
