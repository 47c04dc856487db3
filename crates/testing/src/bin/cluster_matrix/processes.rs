//! Faults of the members' own processes.

use std::time::Duration;

use rustix::process::Signal;
use testing::postgres::Database;

use crate::Outcome;
use crate::crew::{CLEAN, CRASH, Crew, LEASE, Place, ensure, fences, told, wall_us};

/// Work for the time that a row takes.
const WORK: i64 = 150;

fn crew(database: &Database, count: usize) -> Result<Crew, String> {
    let mut crew = Crew::start(Place::postgres(&database.dsn()), count)?;
    crew.add(WORK, Duration::from_secs(4));
    Ok(crew)
}

/// The leader is stopped by SIGSTOP for two leases, in the middle of its work, and goes on as if nothing had been.
pub(crate) fn frozen() -> Outcome {
    let database = Database::new();
    let crew = crew(&database, 3)?;
    std::thread::sleep(LEASE / 3);
    let leader = crew.leader("scheduler").ok_or("nobody leads")?;
    let (since, retired) = (wall_us(), crew.members[leader].identities());
    crew.members[leader].signal(Signal::STOP);
    let taken = crew.takeover(leader, since, CRASH + LEASE / 4)?;
    std::thread::sleep(LEASE * 2);
    crew.members[leader].signal(Signal::CONT);
    crew.wait("new identity of the frozen one", LEASE * 2, |crew| {
        crew.members[leader].identities().len() > retired.len()
    })?;
    let calm = crew.calm()?;
    let (seen, was_fenced) = (crew.members[leader].errors(), fences(&crew.members[leader]));
    ensure(was_fenced > 0, || "the frozen member was not fenced".into())?;
    let why = seen.lines().find(|line| line.contains("is fenced")).and_then(|line| line.split("fenced: ").nth(1));
    let why = why.unwrap_or("?").to_owned();
    let counts = crew.judge()?;
    Ok(format!("takeover {taken:.1?}; fenced: {why}; {calm}; {}", told(&counts)))
}

/// Leaders are killed one after another, and replaced.
pub(crate) fn kills() -> Outcome {
    const KILLS: usize = 6;
    let database = Database::new();
    let mut crew = crew(&database, 3)?;
    let mut taken = Vec::new();
    for number in 0..KILLS {
        crew.wait("a leader", CRASH, |crew| crew.leader("scheduler").is_some())?;
        let leader = crew.leader("scheduler").ok_or("nobody leads")?;
        // At different moments of a beat.
        std::thread::sleep(Duration::from_millis(60 * number as u64));
        let since = wall_us();
        crew.members[leader].kill();
        taken.push(crew.takeover(leader, since, CRASH)?);
        crew.spawn(&[]);
        crew.add(20, LEASE);
    }
    // The last one's neighbour sees at its start that it is dead, without waiting for its lease.
    let calm = crew.calm()?;
    let counts = crew.judge()?;
    ensure(counts.gone >= KILLS as u64, || format!("only {} registrations ended", counts.gone))?;
    Ok(format!("{KILLS} kills, takeovers {}; {calm}; {}", list(&taken), told(&counts)))
}

/// Leaders stop in order.
pub(crate) fn stop() -> Outcome {
    const STOPS: usize = 4;
    let database = Database::new();
    let mut crew = crew(&database, 3)?;
    let mut taken = Vec::new();
    for _ in 0..STOPS {
        crew.wait("a leader", CRASH, |crew| crew.leader("scheduler").is_some())?;
        let leader = crew.leader("scheduler").ok_or("nobody leads")?;
        crew.members[leader].order("stop");
        let status = crew.members[leader].wait(CLEAN * 20)?;
        ensure(status.success(), || format!("the stop ended with {status}"))?;
        // Its leadership was released before its end.
        let lost = crew.members[leader].lines();
        let lost = lost.iter().rev().find(|line| line.kind == "leader" && line.word(2) == "Lost");
        let since = lost.map(|line| line.wall_us).ok_or("the leader was not told of its loss")?;
        taken.push(crew.takeover(leader, since, CLEAN)?);
        crew.spawn(&[]);
    }
    let calm = crew.calm()?;
    let counts = crew.judge()?;
    Ok(format!("{STOPS} stops, takeovers {}; {calm}; {}", list(&taken), told(&counts)))
}

fn list(times: &[Duration]) -> String {
    let times: Vec<String> = times.iter().map(|time| format!("{time:.1?}")).collect();
    times.join(" ")
}

/// All connections of a member's pool are in use for three leases: it lives on, and says that it is stuck.
pub(crate) fn hogged() -> Outcome {
    stuck("hog", "pool used up")
}

/// All threads of a member's runtime are blocked for three leases: it lives on, and says that it is stuck.
pub(crate) fn blocked() -> Outcome {
    stuck("block", "threads blocked")
}

fn stuck(order: &str, what: &str) -> Outcome {
    let database = Database::new();
    let mut crew = crew(&database, 2)?;
    let leader = crew.leader("scheduler").ok_or("nobody leads")?;
    let (before, since) = (crew.members[leader].identities(), wall_us());
    crew.members[leader].order(&format!("{order} {}", (LEASE * 3).as_millis()));
    std::thread::sleep(LEASE * 3);
    let taken = crew.takeover(leader, since, CRASH)?;
    let calm = crew.calm()?;
    let one = &crew.members[leader];
    let (after, fenced, errors) = (one.identities(), fences(one), one.errors());
    // Other work on a slow machine may cost it its lease; its own stuck work never does.
    let is_late = errors.contains("renewal failed");
    ensure(before == after || is_late, || format!("{what}: the identity was lost ({fenced} fences):\n{errors}"))?;
    let says = errors.lines().find(|line| line.contains("is stuck")).ok_or(format!("it did not say so:\n{errors}"))?;
    let says = says.split_once("this process").map_or(says, |(_, rest)| rest).to_owned();
    let counts = crew.judge()?;
    Ok(format!(
        "{what}: lease kept{}, \"this process{says}\"; takeover {taken:.1?}, {calm}; {}",
        if before == after { "" } else { " until the machine was too slow" },
        told(&counts)
    ))
}
