//! Faults of PostgreSQL itself.

use std::time::{Duration, Instant};

use testing::demo_work::check::Rules;
use testing::postgres::{Database, Options, clock};

use crate::Outcome;
use crate::crew::{CALM, CRASH, Crew, LEASE, Place, RULES, ensure, fences, told, wall_us};

/// Restarts in one run of the row; it is played three times, for 60 in all.
const RESTARTS: u32 = 20;

/// Stopped like a crash and started again, while members work.
pub(crate) fn restarts() -> Outcome {
    let mut server = Options::new().without_sync().start();
    let mut crew = Crew::start(Place::postgres(&server.dsn()), 3)?;
    let begin = Instant::now();
    for _ in 0..RESTARTS {
        crew.add(15, Duration::from_millis(300));
        let done = crew.done();
        server.restart_immediate();
        // All work goes on without help (GC5).
        crew.wait("work after the restart", CALM, |crew| crew.done() > done)?;
    }
    let cycle = begin.elapsed() / RESTARTS;
    let calm = crew.calm()?;
    let fenced: usize = crew.members.iter().map(fences).sum();
    let counts = crew.judge()?;
    Ok(format!("{RESTARTS} restarts, {cycle:.1?} each; {fenced} fences; {calm}; {}", told(&counts)))
}

/// Away for two leases: all are fenced, all come back.
pub(crate) fn away() -> Outcome {
    let mut server = Options::new().without_sync().start();
    let mut crew = Crew::start(Place::postgres(&server.dsn()), 3)?;
    crew.add(120, LEASE);
    std::thread::sleep(LEASE / 2);
    server.stop_immediate();
    std::thread::sleep(LEASE * 2);
    let silent = wall_us();
    server.start();
    crew.add(60, LEASE);
    let calm = crew.calm()?;
    for member in &crew.members {
        ensure(fences(member) > 0, || format!("{} was not fenced", member.name))?;
        let lines = member.lines();
        let first = lines.iter().find(|line| line.kind == "fenced").map_or(i64::MAX, |line| line.wall_us);
        ensure(first < silent, || format!("{} trusted its lease for longer than it lasts", member.name))?;
    }
    let counts = crew.judge()?;
    Ok(format!("away for {:?}, all fenced by their own clocks; {calm}; {}", LEASE * 2, told(&counts)))
}

/// Sessions are ended again and again.
pub(crate) fn terminated() -> Outcome {
    const ROUNDS: u32 = 10;
    let database = Database::new();
    let mut crew = Crew::start(Place::postgres(&database.dsn()), 3)?;
    crew.add(150, Duration::from_secs(4));
    let mut ended = 0;
    for _ in 0..ROUNDS {
        std::thread::sleep(LEASE / 4);
        ended += database.terminate_all();
    }
    let calm = crew.calm()?;
    let fenced: usize = crew.members.iter().map(fences).sum();
    let counts = crew.judge()?;
    Ok(format!("{ended} sessions ended, {fenced} fences; {calm}; {}", told(&counts)))
}

/// The replica lacks a takeover and some work when it is promoted.
pub(crate) fn failover() -> Outcome {
    let mut primary = Options::new().without_sync().start();
    let mut replica = primary.replica();
    let both = |first, second| format!("postgresql://tenure@{first},{second}/tenure?target_session_attrs=read-write");
    let dsn = both(primary.address(), replica.address());
    let mut crew = Crew::start(Place::postgres(&dsn), 3)?;
    crew.add(100, LEASE);
    std::thread::sleep(LEASE / 2);
    primary.wait_for_replica(&replica);
    replica.stop_fast();
    // What the replica will not know: another leader, and what it does.
    let leader = crew.leader("scheduler").ok_or("nobody leads")?;
    let since = wall_us();
    crew.members[leader].kill();
    let taken = crew.takeover(leader, since, CRASH)?;
    crew.add(40, LEASE / 2);
    std::thread::sleep(LEASE / 2);
    let lost = crew.number("SELECT max(epoch) FROM leader");
    primary.kill();
    let at = wall_us();
    replica.start();
    replica.promote();
    let timeline = replica.timeline();
    crew.place = Place::postgres(&replica.dsn());
    crew.spawn_at(&["--pool".into(), dsn.clone()], &[]);
    crew.add(100, LEASE);
    let calm = crew.calm()?;
    let epoch_min = i64::from(timeline) << 32;
    let epochs = crew.number("SELECT min(epoch) FROM leader");
    ensure(epochs >= epoch_min, || format!("epoch {epochs} on timeline {timeline}, {epoch_min} was due (GC2)"))?;
    let counts = crew.judge_by(Rules { may_lose: true, epoch_min: Some((at, epoch_min)), ..RULES })?;
    let above = epochs - epoch_min;
    Ok(format!(
        "takeover before it {taken:.1?}; epoch {lost} was lost, then timeline {timeline} and 2^32 times that + {above}; \
         {calm}; {}",
        told(&counts)
    ))
}

/// The clock of the database goes forward by more than a lease, and back.
pub(crate) fn clock_steps() -> Outcome {
    const STEP_US: i64 = 6_000_000;
    let database = Database::new();
    let clock = clock::Clock::of(&database);
    let mut crew = Crew::start(Place::postgres(&clock.dsn()), 3)?;
    crew.add(60, LEASE);
    let before: usize = crew.members.iter().map(fences).sum();
    clock.set_offset_us(STEP_US);
    // Everybody's lease is over at once, which is safe.
    crew.wait("fences", LEASE, |crew| crew.members.iter().all(|member| fences(member) > 0))?;
    let forward = crew.calm()?;
    let after: usize = crew.members.iter().map(fences).sum();
    let why: usize = crew.members.iter().map(|member| member.errors().matches("expired by the database").count()).sum();
    ensure(why > 0, || "no member said that the database had ended its lease".into())?;
    crew.add(60, LEASE);
    clock.set_offset_us(0);
    let backward = crew.calm()?;
    let last: usize = crew.members.iter().map(fences).sum();
    let counts = crew.judge_by(Rules { late_max: LEASE, ..RULES })?;
    Ok(format!(
        "forward: {} fences, {forward}; back: {} fences, {backward}; {}",
        after - before,
        last - after,
        told(&counts)
    ))
}
