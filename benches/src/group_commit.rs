//! Group commit beside one commit for each request, on both databases.
//!
//! Owns: the contenders, their load, the table that says who was how fast.
//! Never: asserts a rate.
//!
//! A request inserts a row of [`BODY_BYTES`] and is answered when that is committed. Writers are tasks that send the
//! next request when the last one is answered. Both databases and the load share all cores, as they do in a small
//! deployment.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use database::group_commit::{GroupCommit, Settings};
use database::postgres::{self, Connection, Dsn, Postgres};
use database::sqlite::{self, Sqlite, Sync};
use database::{Database, Script, Sql, Value, Verdict};
use hdrhistogram::Histogram;
use testing::postgres::Server;
use tokio::task::JoinSet;

use crate::machine::Description;
use crate::plot::number;
use crate::ratio::{Bound, Estimate};

/// Bytes of a row besides its number: a small journal entry.
pub const BODY_BYTES: usize = 128;
/// Writers that send requests at the same time.
pub const WRITERS: usize = 64;
/// Fewest rounds a verdict rests on.
const PAIRS_MIN: usize = 10;
/// Latencies are recorded in µs up to one minute, with two digits.
const LATENCY_US_MAX: u64 = 60_000_000;

static TABLE: Sql = Sql::new(
    "bench.table",
    "CREATE TABLE IF NOT EXISTS entry (id bigint PRIMARY KEY, body text NOT NULL)",
    "CREATE TABLE IF NOT EXISTS entry (id INTEGER PRIMARY KEY, body TEXT NOT NULL) STRICT",
);
static EMPTY: Sql = Sql::new("bench.empty", "TRUNCATE entry", "DELETE FROM entry");
static ONE: Sql = Sql::same("bench.one", "INSERT INTO entry (id, body) VALUES ($1, $2)");
static MANY: Sql = Sql::new(
    "bench.many",
    "INSERT INTO entry (id, body) SELECT * FROM unnest($1::bigint[], $2::text[]) RETURNING id",
    "INSERT INTO entry (id, body) SELECT i.value, b.value FROM json_each($1) AS i JOIN json_each($2) AS b \
     ON b.key = i.key RETURNING id",
);

/// A way to commit requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// PostgreSQL, one writer on one connection, each request commits.
    PostgresOne,
    /// PostgreSQL, each writer on a connection of its own, each request commits.
    PostgresConnections,
    /// PostgreSQL, group commit with so many batches under way together.
    PostgresGroup(usize),
    /// SQLite, so many writers, each request commits.
    SqliteEach(Sync, usize),
    /// SQLite, group commit.
    SqliteGroup(Sync),
}

impl Contender {
    /// All, in the order in which a round measures them: what is compared stands side by side.
    pub const ALL: [Self; 10] = [
        Self::PostgresOne,
        Self::PostgresGroup(1),
        Self::PostgresGroup(2),
        Self::PostgresConnections,
        Self::SqliteEach(Sync::Full, 1),
        Self::SqliteGroup(Sync::Full),
        Self::SqliteEach(Sync::Full, WRITERS),
        Self::SqliteEach(Sync::Normal, 1),
        Self::SqliteGroup(Sync::Normal),
        Self::SqliteEach(Sync::Normal, WRITERS),
    ];

    fn writers(self) -> usize {
        match self {
            Self::PostgresOne => 1,
            Self::SqliteEach(_, writers) => writers,
            Self::PostgresConnections | Self::PostgresGroup(_) | Self::SqliteGroup(_) => WRITERS,
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = |sync: &Sync| match sync {
            Sync::Full => "FULL",
            Sync::Normal => "NORMAL",
        };
        match self {
            Self::PostgresOne => formatter.write_str("PostgreSQL, one connection, a commit for each request"),
            Self::PostgresConnections => {
                write!(formatter, "PostgreSQL, {WRITERS} connections, a commit for each request")
            }
            Self::PostgresGroup(1) => formatter.write_str("PostgreSQL, group commit"),
            Self::PostgresGroup(batches) => write!(formatter, "PostgreSQL, group commit, {batches} batches together"),
            Self::SqliteEach(sync, 1) => {
                write!(formatter, "SQLite {}, one writer, a commit for each request", level(sync))
            }
            Self::SqliteEach(sync, writers) => {
                write!(formatter, "SQLite {}, {writers} writers, a commit for each request", level(sync))
            }
            Self::SqliteGroup(sync) => write!(formatter, "SQLite {}, group commit", level(sync)),
        }
    }
}

/// What was measured of one contender in one round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Requests answered in a second.
    pub rate: f64,
    /// Half of the requests took less, in µs.
    pub p50_us: f64,
    /// All but one of 100 requests took less, in µs.
    pub p99_us: f64,
    /// Requests in a transaction.
    pub per_commit: f64,
}

/// The databases that are measured.
#[derive(Debug)]
pub struct Lab {
    server: Server,
    postgres: Database,
    full: Database,
    normal: Database,
    next_id: Arc<AtomicI64>,
}

impl Lab {
    /// Starts a private PostgreSQL that waits for its disk, and makes SQLite files in `folder`.
    ///
    /// # Errors
    ///
    /// A database cannot be opened.
    pub async fn open(folder: &Path) -> Result<Self> {
        let server = tokio::task::spawn_blocking(Server::new).await?;
        let settings = postgres::Settings::new(server.dsn().parse()?);
        let open = |name: &str, sync| {
            let settings = sqlite::Settings { sync, ..sqlite::Settings::new(folder.join(name), "bench-group-commit") };
            Sqlite::open(&settings).map(Database::Sqlite)
        };
        let lab = Self {
            postgres: Database::Postgres(Postgres::new(settings)?),
            full: open("full.db", Sync::Full)?,
            normal: open("normal.db", Sync::Normal)?,
            server,
            next_id: Arc::default(),
        };
        for database in [&lab.postgres, &lab.full, &lab.normal] {
            database.run_once(Script::statement(&TABLE, [], |_| Ok(()))).await?;
        }
        Ok(lab)
    }

    /// Lets a contender work for so long, on an empty table.
    ///
    /// # Errors
    ///
    /// A request fails.
    pub async fn measure(&self, contender: Contender, length: Duration) -> Result<Sample> {
        let database = match contender {
            Contender::PostgresOne | Contender::PostgresConnections | Contender::PostgresGroup(_) => &self.postgres,
            Contender::SqliteEach(Sync::Full, _) | Contender::SqliteGroup(Sync::Full) => &self.full,
            Contender::SqliteEach(Sync::Normal, _) | Contender::SqliteGroup(Sync::Normal) => &self.normal,
        };
        database.run_once(Script::statement(&EMPTY, [], |_| Ok(()))).await?;
        let batches = match contender {
            Contender::PostgresGroup(batches) => batches,
            _ => 1,
        };
        let group = GroupCommit::start(database.clone(), Settings { writers: batches, ..Settings::default() }, insert);
        let mut ways = Vec::new();
        for _ in 0..contender.writers() {
            ways.push(match contender {
                Contender::PostgresOne | Contender::PostgresConnections => {
                    Way::Connection(Box::new(self.connect().await?))
                }
                Contender::SqliteEach(..) => Way::Each(database.clone()),
                Contender::PostgresGroup(_) | Contender::SqliteGroup(_) => Way::Group(group.clone()),
            });
        }
        let begun = Instant::now();
        let mut writers = JoinSet::new();
        for way in ways {
            writers.spawn(write(way, Arc::clone(&self.next_id), begun + length));
        }
        let mut latencies = histogram()?;
        while let Some(joined) = writers.join_next().await {
            latencies.add(joined??)?;
        }
        let elapsed = begun.elapsed().as_secs_f64();
        let figures = group.figures();
        let commits = if figures.batches == 0 { latencies.len() } else { figures.batches };
        Ok(Sample {
            rate: latencies.len() as f64 / elapsed,
            p50_us: latencies.value_at_quantile(0.5) as f64,
            p99_us: latencies.value_at_quantile(0.99) as f64,
            per_commit: latencies.len() as f64 / commits.max(1) as f64,
        })
    }

    async fn connect(&self) -> Result<Connection> {
        let dsn: Dsn = self.server.dsn().parse()?;
        Ok(postgres::Connector::new(dsn, postgres::Timeouts::default())?.connect().await?)
    }
}

/// How a writer has its requests committed.
enum Way {
    Connection(Box<Connection>),
    Each(Database),
    Group(GroupCommit<Entry, ()>),
}

struct Entry {
    id: i64,
    body: String,
}

fn insert(entries: &[Entry]) -> Script<Vec<()>> {
    let ids = Value::Ints(entries.iter().map(|entry| entry.id).collect());
    let bodies = Value::Texts(entries.iter().map(|entry| entry.body.clone()).collect());
    Script::transaction(|mut tx| async move {
        let rows = tx.query(&MANY, [ids, bodies]).await?;
        Ok(Verdict::Commit(rows.iter().map(|_| ()).collect()))
    })
}

async fn write(mut way: Way, ids: Arc<AtomicI64>, until: Instant) -> Result<Histogram<u64>> {
    let mut latencies = histogram()?;
    while Instant::now() < until {
        let entry = Entry { id: ids.fetch_add(1, Ordering::Relaxed), body: "b".repeat(BODY_BYTES) };
        let begun = Instant::now();
        let alone = |entry: Entry| Script::statement(&ONE, [entry.id.into(), entry.body.into()], |_| Ok(()));
        match &mut way {
            Way::Connection(connection) => connection.run_once(alone(entry)).await?,
            Way::Each(database) => database.run_once(alone(entry)).await?,
            Way::Group(group) => group.submit(entry, BODY_BYTES).await?,
        }
        latencies.saturating_record(u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    Ok(latencies)
}

fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_max(LATENCY_US_MAX, 2).context("make a histogram")
}

/// What was measured: in each round, a sample of each contender in the order of [`Contender::ALL`].
pub type Rounds = Vec<Vec<Sample>>;

/// A ratio of two contenders, round by round.
#[derive(Debug, Clone)]
pub struct Ratio {
    /// Of what to what.
    pub what: &'static str,
    /// What was measured.
    pub estimate: Estimate,
    /// What it must keep; `None`: shown beside the others.
    pub bound: Option<Bound>,
    /// Whether it does; `None` if too little was measured to judge, or nothing is promised.
    pub is_met: Option<bool>,
}

/// The ratios that matter.
pub fn ratios(rounds: &Rounds) -> Vec<Ratio> {
    use Contender::{PostgresConnections, PostgresGroup, PostgresOne, SqliteEach, SqliteGroup};
    let rate = |sample: &Sample| sample.rate;
    let p99 = |sample: &Sample| sample.p99_us;
    let [faster, later] = [Some(Bound::AtLeast(8.0)), Some(Bound::AtMost(3.0))];
    let (group, full, normal) = (PostgresGroup(1), SqliteGroup(Sync::Full), SqliteGroup(Sync::Normal));
    let (one_full, one_normal) = (SqliteEach(Sync::Full, 1), SqliteEach(Sync::Normal, 1));
    let (each_full, each_normal) = (SqliteEach(Sync::Full, WRITERS), SqliteEach(Sync::Normal, WRITERS));
    [
        ("PostgreSQL, rate, group / one connection", group, PostgresOne, rate as fn(&Sample) -> f64, faster),
        ("PostgreSQL, 99 %, group / one connection", group, PostgresOne, p99, later),
        ("SQLite FULL, rate, group / one writer", full, one_full, rate, faster),
        ("SQLite FULL, rate, group / 64 writers", full, each_full, rate, faster),
        ("SQLite FULL, 99 %, group / one writer", full, one_full, p99, later),
        ("PostgreSQL, rate, group / 64 connections", group, PostgresConnections, rate, None),
        ("PostgreSQL, rate, two batches together / one", PostgresGroup(2), group, rate, None),
        ("PostgreSQL, 99 %, two batches together / one", PostgresGroup(2), group, p99, None),
        ("SQLite NORMAL, rate, group / one writer", normal, one_normal, rate, None),
        ("SQLite NORMAL, rate, group / 64 writers", normal, each_normal, rate, None),
    ]
    .into_iter()
    .filter_map(|(what, above, below, figure, bound)| {
        let of = |round: &[Sample], contender| {
            let place = Contender::ALL.iter().position(|other| *other == contender);
            round.get(place?).map(figure)
        };
        let values: Vec<f64> = rounds.iter().filter_map(|round| Some(of(round, above)? / of(round, below)?)).collect();
        let estimate = Estimate::of(&values)?;
        let is_met = bound.filter(|_| values.len() >= PAIRS_MIN).map(|bound| bound.is_met(&estimate));
        Some(Ratio { what, estimate, bound, is_met })
    })
    .collect()
}

/// The report in Markdown. `others` is the share of all cores' time that processes outside the benchmark used.
pub fn markdown(rounds: &Rounds, length: Duration, machine: &Description, today: &str, others: f64) -> String {
    let mut text = format!(
        "# Performance of group commit\n\nWritten by `cargo xtask bench group-commit`; do not edit. What counts are \
         ratios between contenders measured in turn in one run on one machine; absolute figures are those of that \
         machine on that day.\n\nMachine: {} cores of {}, {} MiB of memory, Linux {}. Databases and load shared all \
         cores.\n\n{today}; other processes, PostgreSQL among them, used {:.0} % of all cores' time; {} interleaved round(s) of {:.2} s for \
         each contender. A request inserts a row of {BODY_BYTES} B; {WRITERS} writers send the next one when the last is \
         answered, unless a line says otherwise.\n\n",
        machine.cores,
        machine.processor,
        machine.memory_mib,
        machine.kernel,
        others * 100.0,
        rounds.len(),
        length.as_secs_f64(),
    );
    text.push_str("| ratio | median | interval | bound | met |\n|---|---|---|---|---|\n");
    for Ratio { what, estimate, bound, is_met } in ratios(rounds) {
        let bound = match bound {
            Some(Bound::AtLeast(value)) => format!("≥ {}", number(value)),
            Some(Bound::AtMost(value)) => format!("≤ {}", number(value)),
            None => "–".to_owned(),
        };
        let met = match is_met {
            Some(true) => "yes",
            Some(false) => "**no**",
            None if bound == "–" => "–",
            None => "not judged",
        };
        let (low, high, coverage) = (number(estimate.low), number(estimate.high), estimate.coverage * 100.0);
        let median = number(estimate.median);
        text.push_str(&format!("| {what} | {median} | {low} – {high} ({coverage:.0} %) | {bound} | {met} |\n"));
    }
    text.push_str(
        "\nMedians over the rounds:\n\n| | requests/s | 50 % ms | 99 % ms | requests a commit |\n|---|---|---|---|---|\n",
    );
    for (place, contender) in Contender::ALL.into_iter().enumerate() {
        let median = |figure: fn(&Sample) -> f64| {
            let values: Vec<f64> = rounds.iter().filter_map(|round| round.get(place)).map(figure).collect();
            Estimate::of(&values).map_or_else(|| "–".to_owned(), |estimate| number(estimate.median))
        };
        text.push_str(&format!(
            "| {contender} | {} | {} | {} | {} |\n",
            median(|sample| sample.rate),
            median(|sample| sample.p50_us / 1e3),
            median(|sample| sample.p99_us / 1e3),
            median(|sample| sample.per_commit),
        ));
    }
    text
}
