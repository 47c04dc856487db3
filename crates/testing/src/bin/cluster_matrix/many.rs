//! Many members, and what one costs.

use std::time::Duration;

use testing::postgres::Options;
use testing::proc::cpu;

use crate::Outcome;
use crate::crew::{Crew, Place, ensure};

/// Beats and renewals of a second: fifty processes on two cores are slow enough.
const TIMES: &str = "1000,1000,1000,1000,5000";
const BEAT: Duration = Duration::from_secs(1);

/// Fifty members on one server: their beats stay within their period.
pub(crate) fn fifty() -> Outcome {
    const MEMBERS: usize = 50;
    const LOOK: Duration = Duration::from_secs(6);
    let server = Options::new().max_connections(400).without_sync().start();
    let mut crew = Crew::new(Place::postgres(&server.dsn()));
    crew.times = TIMES;
    for _ in 0..MEMBERS {
        crew.spawn(&["--idle", "--pool-size", "3"]);
    }
    crew.begun()?;
    let beats = |crew: &Crew| -> Vec<u64> { crew.members.iter().map(|member| member.figure("beats")).collect() };
    let used = |crew: &Crew| -> Duration { crew.members.iter().map(|member| cpu(member.pid())).sum() };
    crew.wait("beats", BEAT, |crew| beats(crew).iter().all(|count| *count > 1))?;
    let (before, cpu_before) = (beats(&crew), used(&crew));
    std::thread::sleep(LOOK);
    let (after, cpu_after) = (beats(&crew), used(&crew));
    let counts: Vec<u64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
    let (least, all) = (counts.iter().min().copied().unwrap_or(0), counts.iter().sum::<u64>());
    let connections = server.sql("SELECT count(*) FROM pg_stat_activity WHERE datname = 'tenure'");
    let connections = connections[0][0].clone().unwrap_or_default();
    let failed: u64 = crew.members.iter().map(|member| member.figure("call_failures")).sum();
    // A beat in each ten of its periods would be a promise broken by far.
    ensure(least * 10 >= LOOK.as_secs() / BEAT.as_secs(), || format!("beats in {LOOK:?}: {counts:?}"))?;
    let one = crew.number("SELECT count(DISTINCT holder) FROM leader WHERE lease_until > clock_timestamp()");
    ensure((1..=2).contains(&one), || format!("{one} holders of two leaderships"))?;
    crew.stop_all()?;
    let per_beat = (cpu_after - cpu_before) / u32::try_from(all.max(1)).unwrap_or(u32::MAX);
    Ok(format!(
        "{MEMBERS} members, {connections} connections: {all} beats in {LOOK:?}, at least {least} each; {failed} failures; \
         {per_beat:.1?} of CPU a beat"
    ))
}

/// What a member that does nothing asks of the server: four statements a beat, which are renewal, nonce, one combined read
/// and one statement for all leaderships.
pub(crate) fn idle() -> Outcome {
    const BEATS: u64 = 12;
    let server = Options::new().without_sync().setting("shared_preload_libraries", "pg_stat_statements").start();
    server.try_sql("tenure", "CREATE EXTENSION pg_stat_statements")?;
    let mut crew = Crew::new(Place::postgres(&server.dsn()));
    crew.times = "1000,2000,3000,1000,20000";
    crew.spawn(&["--idle", "--pool-size", "3"]);
    crew.begun()?;
    // The first tick of the leader looks at what is old, and all statements are prepared once.
    crew.wait("beats", BEAT * 3, |crew| crew.members[0].figure("beats") > 2)?;
    server.try_sql("tenure", "SELECT pg_stat_statements_reset()")?;
    let (begin, cpu_before) = (crew.members[0].figure("beats"), cpu(crew.members[0].pid()));
    crew.wait("beats", BEAT * u32::try_from(BEATS).unwrap_or(1), |crew| {
        crew.members[0].figure("beats") >= begin + BEATS
    })?;
    let (beats, used) = (crew.members[0].figure("beats") - begin, cpu(crew.members[0].pid()) - cpu_before);
    let statements = server.try_sql(
        "tenure",
        "SELECT calls, left(regexp_replace(query, '\\s+', ' ', 'g'), 60) FROM pg_stat_statements \
         JOIN pg_roles ON pg_roles.oid = userid WHERE rolname = 'tenure' ORDER BY calls DESC",
    )?;
    // What the harness asks comes as the same role, and is told apart by its text.
    let asked = statements.iter().filter_map(|row| Some((row[0].as_ref()?.parse::<u64>().ok()?, row[1].clone()?)));
    let asked: Vec<(u64, String)> = asked.filter(|(_, text)| !text.contains("pg_stat_statements")).collect();
    // Those of each beat, and the rest: a leader reaps at each lease, and looks for what is old.
    const REGULAR: [&str; 4] =
        ["SELECT pg_notify", "WITH renewed AS (UPDATE member", "SELECT 'member', id, host", "WITH want AS"];
    let is_regular = |text: &str| REGULAR.iter().any(|begin| text.starts_with(begin));
    let sum = |wanted: bool| -> u64 {
        asked.iter().filter(|(_, text)| is_regular(text) == wanted).map(|(calls, _)| calls).sum()
    };
    let (per_beat, rest) = (sum(true) as f64 / beats as f64, sum(false) as f64 / beats as f64);
    let what: Vec<String> = asked.iter().map(|(calls, text)| format!("{calls} × {text}")).collect();
    crew.stop_all()?;
    // A renewal, a nonce and a tick may fall into the time before and after.
    ensure((3.0..=4.6).contains(&per_beat) && rest <= 3.0, || {
        format!("{per_beat:.1} statements a beat: {}", what.join("; "))
    })?;
    Ok(format!(
        "{per_beat:.1} statements a beat over {beats} beats, and {rest:.1} of the leader's reaps; {:.2} % of a core at a \
         beat of {BEAT:?}",
        used.as_secs_f64() / (beats as f64 * BEAT.as_secs_f64()) * 100.0
    ))
}
