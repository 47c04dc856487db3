//! Faults between a member and PostgreSQL.

use std::time::Duration;

use testing::postgres::{Database, Direction, Mode, PgBouncer, Pooling, TcpProxy};

use crate::Outcome;
use crate::crew::{BEAT, CLEAN, CRASH, Crew, LEASE, Place, ensure, fences, told, wall_us};

/// Two members with a good network, and one whose lease, pool and notices each go through a proxy of their own.
struct Wired {
    database: Database,
    lease: TcpProxy,
    pool: TcpProxy,
    notices: TcpProxy,
}

impl Wired {
    fn new() -> Self {
        let database = Database::new();
        let proxy = || TcpProxy::new(database.address());
        Self { lease: proxy(), pool: proxy(), notices: proxy(), database }
    }

    fn arguments(&self) -> Vec<String> {
        let dsn = |proxy: &TcpProxy| self.database.dsn_at(proxy.address());
        Place::postgres(&dsn(&self.pool))
            .with("--direct", &dsn(&self.lease))
            .with("--listen", &dsn(&self.notices))
            .arguments
    }

    /// The one behind the proxies is the first, and so leads.
    fn crew(&self) -> Result<Crew, String> {
        let mut crew = Crew::new(Place::postgres(&self.database.dsn()));
        crew.spawn_at(&self.arguments(), &[]);
        crew.begun()?;
        crew.spawn(&[]);
        crew.spawn(&[]);
        crew.begun()?;
        crew.add(150, Duration::from_secs(4));
        std::thread::sleep(LEASE / 3);
        Ok(crew)
    }
}

/// The connection of the lease stays, and nobody answers on it, for two leases.
pub(crate) fn lease() -> Outcome {
    let wired = Wired::new();
    let crew = wired.crew()?;
    let since = wall_us();
    wired.lease.set_both(Mode::Swallow);
    crew.wait("fence of the cut-off member", LEASE, |crew| fences(&crew.members[0]) > 0)?;
    let lines = crew.members[0].lines();
    let fenced = lines.iter().find(|line| line.kind == "fenced").map_or(0, |line| line.wall_us - since) / 1_000;
    let taken = crew.takeover(0, since, CRASH)?;
    std::thread::sleep(LEASE);
    wired.lease.set_both(Mode::Pass);
    wired.lease.cut();
    let known = crew.members[0].identities().len();
    crew.wait("new identity", LEASE, |crew| {
        crew.members[0].identities().len() > known || crew.number("SELECT count(*) FROM member") == 3
    })?;
    let calm = crew.calm()?;
    let counts = crew.judge()?;
    Ok(format!("fenced after {fenced} ms, takeover {taken:.1?}; {calm}; {}", told(&counts)))
}

/// The connections of the pool stay, and nobody answers on them, for two leases: the member lives and leads no more.
pub(crate) fn pool() -> Outcome {
    let wired = Wired::new();
    let crew = wired.crew()?;
    let (since, before) = (wall_us(), crew.members[0].identities());
    wired.pool.set_both(Mode::Swallow);
    let taken = crew.takeover(0, since, CRASH)?;
    std::thread::sleep(LEASE);
    let after = crew.members[0].identities();
    wired.pool.set_both(Mode::Pass);
    let calm = crew.calm()?;
    let is_late = crew.members[0].errors().contains("renewal failed");
    ensure(before == after || is_late, || "the identity was lost with the pool".into())?;
    let counts = crew.judge()?;
    Ok(format!("identity kept, takeover {taken:.1?}; {calm}; {}", told(&counts)))
}

/// No notice reaches a member: everything is only slower (GC4).
pub(crate) fn notices() -> Outcome {
    let wired = Wired::new();
    let mut crew = wired.crew()?;
    let reconnects = wired.notices.counts().connections;
    wired.notices.set(Direction::ToClient, Mode::Swallow);
    std::thread::sleep(BEAT * 3);
    // The member without notices must find by itself that the leader has gone: the others stop.
    for at in [1, 2] {
        crew.members[at].order("stop");
        crew.members[at].wait(CLEAN * 20)?;
    }
    let leader = crew.members.len();
    crew.spawn(&[]);
    crew.wait("a leader", CRASH, |crew| crew.leader("scheduler").is_some())?;
    crew.add(60, LEASE);
    let calm = crew.calm()?;
    let reconnects = wired.notices.counts().connections - reconnects;
    ensure(reconnects > 0, || "a member that hears nothing did not begin to listen anew".into())?;
    wired.notices.set_both(Mode::Pass);
    let heard = wired.notices.counts().bytes_to_client;
    crew.wait("notices", BEAT * 10, |_| wired.notices.counts().bytes_to_client > heard)?;
    // The one with a good network leads or not; it goes, and the deaf one takes over by its beat at the latest.
    crew.members[leader].order("stop");
    crew.members[leader].wait(CLEAN * 20)?;
    crew.wait("takeover", BEAT + CLEAN, |crew| crew.leader("scheduler") == Some(0))?;
    let again = crew.calm()?;
    let counts = crew.judge()?;
    Ok(format!("listened anew {reconnects} times; {calm}, then {again}; {}", told(&counts)))
}

/// The pool may go through a pooler in transaction mode; lease and notices may not, and it is said why.
pub(crate) fn pooler() -> Outcome {
    let database = Database::new();
    let pooler = PgBouncer::new(database.address(), Pooling::Transaction);
    let through = database.dsn_at(pooler.address());
    let place = Place::postgres(&through).with("--direct", &database.dsn());
    let mut crew = Crew::new(Place { dsn: database.dsn(), ..place });
    crew.spawn(&[]);
    crew.spawn(&[]);
    crew.begun()?;
    crew.add(120, LEASE);
    let calm = crew.calm()?;
    // This one has no way past the pooler.
    crew.spawn_at(&["--pool".into(), through], &[]);
    const REFUSAL: &str = "a connection pooler stands between";
    crew.wait("refusal", LEASE, |crew| crew.members[2].errors().contains(REFUSAL))?;
    std::thread::sleep(LEASE);
    ensure(crew.members[2].identities().is_empty(), || "a lease was taken through a pooler".into())?;
    let message = crew.members[2].lines();
    let message = message.iter().find(|line| line.kind == "trouble").map(|line| line.words.join(" "));
    let message = message.ok_or("the refusal is not shown as the process's trouble")?;
    ensure(message.contains(REFUSAL), || format!("the trouble is {message:?}"))?;
    crew.members[2].kill();
    let counts = crew.judge()?;
    Ok(format!("{calm} through it; lease refused: {message}; {}", told(&counts)))
}
