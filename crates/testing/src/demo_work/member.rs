//! A member that works: what `cluster_member` does.
//!
//! Owns: claiming, doing and finishing of work; runs that outlive it; a leader's effects; requests and a cached value.
//! Never: writes without its guard, or starts an effect without having asked whether it may.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster_core::scripts::reap::{ReapStep, Running, owners_of, owners_value};
use cluster_core::scripts::ticket::{self, Acquired, Holder, Key, Moved};
use cluster_core::scripts::{cache, leader_guard, member_guard, request};
use cluster_core::{Leadership, MemberId, Times, leadership};
use cluster_server::{AskError, Cluster, NoIdentity, Scheduler, Settings};
use database::postgres::{Connector, Dsn, Postgres};
use database::sqlite::Sqlite;
use database::{Database, Kind, Limits, schema as steps, sqlite};
use database_core::{Class, DbError, Script, Tx, Value, Verdict};
use tokio::task::JoinHandle;

use super::history::{Stamp, say};
use super::schema::{self, MIGRATIONS, PERMIT_LIMIT, RUNS_KEY, SETTING};
use crate::rng::Rng;

/// Pieces of work in hand at once.
const IN_HAND_MAX: usize = 6;
/// Pieces claimed in one transaction.
const CLAIM_MAX: i64 = 3;
/// Between two looks for work.
const LOOK: Duration = Duration::from_millis(40);
/// Between two looks of a member that does nothing: what it costs is measured.
const SLOW_LOOK: Duration = Duration::from_millis(250);
/// Between two effects of a leader.
const LEAD: Duration = Duration::from_millis(100);
/// Between two requests to others, and how long each waits for its answer.
const ASK: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(10);
/// Answers that are waited for at once.
const ASKED_MAX: u64 = 4;
/// Between two uses of the cached value, and between two changes of it.
const READ: Duration = Duration::from_millis(50);
const CHANGE: Duration = Duration::from_millis(400);
/// Until a statement is tried again that failed.
const AGAIN: Duration = Duration::from_millis(50);
/// How long work in hand may take at the stop; then it is given up, and done by another.
const FINISH_MAX: Duration = Duration::from_millis(300);
/// How long the last notice may take.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Where a member works, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its name in lines of others.
    pub name: String,
    /// Its database.
    pub place: Place,
    /// Lengths of its life; checked.
    pub times: Times,
    /// Folder for what tells neighbours that it lives.
    pub folder: PathBuf,
    /// Connections of its pool.
    pub pool: usize,
    /// Does nothing but to be a member.
    pub is_idle: bool,
}

/// Which database.
#[derive(Debug, Clone)]
pub enum Place {
    /// PostgreSQL: the pool's address, that of lease and requests, and that of the notices.
    Postgres {
        /// The pool's.
        pool: String,
        /// The lease's.
        direct: String,
        /// The notices'.
        listen: String,
    },
    /// An SQLite file.
    Sqlite(PathBuf),
}

/// What a member can be made to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Stop in order.
    Stop,
    /// Keep the whole pool busy.
    Hog(Duration),
    /// Block all threads of the runtime.
    Block(Duration),
}

/// A member at work. Clones are the same.
#[derive(Debug, Clone)]
pub struct Member(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    cluster: Cluster,
    pool: usize,
    is_stopping: AtomicBool,
    in_hand: Mutex<BTreeMap<(i64, i64), InHand>>,
    cached: Mutex<Cached>,
    asked: AtomicU64,
    _scheduler: Scheduler,
}

#[derive(Debug)]
struct InHand {
    member: MemberId,
    task: JoinHandle<()>,
}

/// A cached value, and how often it was dropped: what was asked for before a drop must not be kept after it.
#[derive(Debug, Default)]
struct Cached {
    value: Option<i64>,
    drops: u64,
}

/// A claimed piece of work.
#[derive(Debug, Clone)]
struct Piece {
    id: i64,
    attempt: i64,
    kind: String,
    key: String,
    work_ms: i64,
}

/// Opens the database, and what goes past a pooler.
///
/// # Errors
///
/// Why not.
pub fn open(options: &Options) -> Result<(Database, Option<Connector>), String> {
    match &options.place {
        Place::Sqlite(path) => {
            let settings = sqlite::Settings::new(path, "cluster_member");
            let file = Sqlite::open(&settings).map_err(|error| error.to_string())?;
            Ok((Database::Sqlite(file), None))
        }
        Place::Postgres { pool, direct, listen } => {
            let parse = |dsn: &str| dsn.parse::<Dsn>().map_err(|error| error.to_string());
            let mut settings = database::postgres::Settings::new(parse(pool)?);
            let statement = options.times.statement_timeout;
            settings.direct = Some(parse(listen)?);
            settings.pool_size = options.pool;
            settings.beat = options.times.beat;
            settings.timeouts.silence = statement.max(Duration::from_secs(1));
            settings.timeouts.connect = settings.timeouts.connect.min(statement * 2);
            settings.timeouts.grace = settings.timeouts.grace.min(statement);
            let timeouts = settings.timeouts;
            let database = Postgres::new(settings).map_err(|error| error.to_string())?;
            let direct = if direct == listen {
                database.direct().clone()
            } else {
                Connector::new(parse(direct)?, timeouts).map_err(|error| error.to_string())?
            };
            Ok((Database::Postgres(database), Some(direct)))
        }
    }
}

impl Member {
    /// Becomes a member, and begins to work once it is registered. What cannot be done yet is tried again.
    ///
    /// # Errors
    ///
    /// What will not pass: another process has the file, the process lacks a thread.
    pub async fn start(options: Options) -> Result<Self, String> {
        let (database, direct) = open(&options)?;
        while let Err(error) = steps::migrate(&database, MIGRATIONS, "cluster_member").await {
            tracing::warn!("not a member yet: {error}");
            tokio::time::sleep(AGAIN).await;
        }
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| error.to_string())?;
        let settings = Settings {
            times: options.times,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            program: "cluster_member".to_owned(),
            schema_version: 2,
            folder: options.folder,
            direct,
            schema: Arc::new(|_| Box::pin(async { Ok(()) })),
            steps: Arc::new([Arc::new(GiveUp)]),
            seed: std::array::from_fn(|at| u64::from_le_bytes(std::array::from_fn(|byte| seed[at * 8 + byte]))),
        };
        let rng = Rng::new(settings.seed[0]);
        let cluster = Cluster::start(database, settings).await.map_err(|error| error.to_string())?;
        let scheduler = Scheduler::start(&cluster).map_err(|error| error.to_string())?;
        let ticks = cluster.clone();
        if !options.is_idle {
            scheduler.on_tick("demo", move |held| lead(ticks.clone(), held));
        }
        let member = Self(Arc::new(Inner {
            name: options.name,
            cluster,
            pool: options.pool,
            is_stopping: AtomicBool::new(false),
            in_hand: Mutex::default(),
            cached: Mutex::default(),
            asked: AtomicU64::new(0),
            _scheduler: scheduler,
        }));
        member.hook();
        tokio::spawn(member.clone().follow(options.is_idle));
        if !options.is_idle {
            member.work(rng);
        }
        Ok(member)
    }

    /// Ends it in order: what is in hand first.
    pub async fn stop(&self) {
        self.0.is_stopping.store(true, Ordering::Release);
        let tasks: Vec<JoinHandle<()>> = {
            let mut in_hand = self.in_hand();
            std::mem::take(&mut *in_hand).into_values().map(|piece| piece.task).collect()
        };
        let end = tokio::time::Instant::now() + FINISH_MAX;
        for mut task in tasks {
            if tokio::time::timeout_at(end, &mut task).await.is_err() {
                task.abort();
                let _ = task.await;
            }
        }
        self.cluster().stop().await;
        match self.cluster().database() {
            Database::Sqlite(file) => file.close().await,
            database @ Database::Postgres(_) => drop(database.notices().flush(STOP_MAX).await),
        }
        say("stopped");
    }

    /// Does what it is ordered to; not [`Order::Stop`].
    pub fn obey(&self, order: Order) {
        match order {
            Order::Stop => {}
            Order::Hog(length) => {
                say("hog");
                for _ in 0..self.0.pool {
                    let cluster = self.cluster().clone();
                    tokio::spawn(async move {
                        let bound = length + Duration::from_secs(5);
                        let limits = Limits { statement: bound, lock: bound, idle: bound, transaction: bound };
                        let ms = i64::try_from(length.as_millis()).unwrap_or(i64::MAX);
                        let busy = Script::statement(&schema::SLEEP, [ms.into()], |_| Ok(()));
                        let result = cluster.database().run_with(limits, busy).await;
                        say(format_args!("hogged {}", if result.is_ok() { "ok" } else { "failed" }));
                    });
                }
            }
            Order::Block(length) => {
                // More tasks than threads, so that none of them is left.
                let threads = tokio::runtime::Handle::current().metrics().num_workers();
                let begin = Stamp::now();
                for _ in 0..threads * 2 {
                    tokio::spawn(async move { std::thread::sleep(length) });
                }
                begin.say("block");
            }
        }
    }

    fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    fn in_hand(&self) -> MutexGuard<'_, BTreeMap<(i64, i64), InHand>> {
        self.0.in_hand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cached(&self) -> MutexGuard<'_, Cached> {
        self.0.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_go_on(&self) -> bool {
        !self.0.is_stopping.load(Ordering::Acquire)
    }

    /// What the cluster calls.
    fn hook(&self) {
        self.cluster().on_leadership("demo", |told| async move {
            let Leadership { name, holder, epoch } = told.leadership;
            say(format_args!("leader {name} {epoch} {:?} {}", told.change, holder.to_holder()));
        });
        let member = self.clone();
        self.cluster().on_fence("demo", move |retired| {
            let member = member.clone();
            async move {
                let tasks: Vec<JoinHandle<()>> = {
                    let mut in_hand = member.in_hand();
                    let (its, others) = std::mem::take(&mut *in_hand)
                        .into_iter()
                        .partition::<BTreeMap<_, _>, _>(|(_, piece)| piece.member == retired);
                    *in_hand = others;
                    its.into_values().map(|piece| piece.task).collect()
                };
                for task in tasks {
                    task.abort();
                    let _ = task.await;
                }
                say(format_args!("fenced {}", retired.to_holder()));
            }
        });
        let member = self.clone();
        self.cluster().on_request("append", move |asked| member.clone().append(asked));
        self.cluster().on_request("echo", {
            let cluster = self.cluster().clone();
            move |asked| {
                let cluster = cluster.clone();
                async move { carry_out(&cluster, asked, false).await }
            }
        });
        let member = self.clone();
        self.cluster().on_cache_drop("demo", move |dropped| {
            let member = member.clone();
            async move {
                if dropped.concerns(SETTING) {
                    let mut cached = member.cached();
                    cached.value = None;
                    cached.drops += 1;
                }
            }
        });
    }

    /// Says which identity the process has, what is wrong with it, and what it has counted.
    async fn follow(self, is_idle: bool) {
        let (mut last, mut trouble, mut figures) = (None, None, Vec::new());
        loop {
            let now = self.cluster().standing().registration().ok();
            if let Some(registration) = now.filter(|registration| Some(registration.id) != last) {
                last = Some(registration.id);
                say(format_args!("member {} {}", registration.id.to_holder(), registration.no));
            }
            let what = self.cluster().trouble();
            if what != trouble {
                say(format_args!("trouble {}", what.as_deref().unwrap_or("none").replace('\n', " ")));
                trouble = what;
            }
            let counted = self.cluster().figures();
            if counted != figures {
                for (name, _, value) in counted.iter().filter(|figure| !figures.contains(figure)) {
                    say(format_args!("figure {name} {value}"));
                }
                figures = counted;
            }
            tokio::time::sleep(if is_idle { SLOW_LOOK } else { LOOK }).await;
        }
    }

    fn work(&self, mut rng: Rng) {
        let member = self.clone();
        self.cluster().on_beat("demo", move |()| {
            let member = member.clone();
            async move { member.recover().await }
        });
        tokio::spawn(self.clone().claim_all());
        tokio::spawn(self.clone().end_runs());
        tokio::spawn(self.clone().lead_on());
        tokio::spawn(self.clone().ask(rng.fork(1)));
        tokio::spawn(self.clone().read());
        tokio::spawn(self.clone().change(rng.fork(2)));
    }

    async fn claim_all(self) {
        while self.may_go_on() {
            let me = match self.cluster().standing().wait().await {
                Ok(me) => me,
                Err(NoIdentity::Stopped) => return,
                Err(NoIdentity::Unregistered | NoIdentity::GaveUp) => continue,
            };
            let room = IN_HAND_MAX.saturating_sub(self.in_hand().len());
            if room > 0 {
                let count = CLAIM_MAX.min(i64::try_from(room).unwrap_or(CLAIM_MAX));
                match self.cluster().write(move |me| claim(me, count)).await {
                    Ok(pieces) => pieces.into_iter().for_each(|piece| self.begin(me, piece)),
                    // What an unanswered claim has got is found at a beat.
                    Err(error) => {
                        tracing::debug!("no claim: {error}");
                        tokio::time::sleep(AGAIN).await;
                    }
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Takes in hand what it owns without knowing, since the answer to the claim was lost.
    async fn recover(&self) {
        let Ok(me) = self.cluster().standing().member() else { return };
        if let Ok(pieces) = self.cluster().database().read(mine(me)).await {
            pieces.into_iter().for_each(|piece| self.begin(me, piece));
        }
    }

    fn begin(&self, me: MemberId, piece: Piece) {
        let name = (piece.id, piece.attempt);
        let mut in_hand = self.in_hand();
        // Under the lock that a fence takes: what begins before it is stopped by it, and after it nothing begins.
        let is_known = in_hand.contains_key(&name);
        if is_known || !self.may_go_on() || self.cluster().standing().member() != Ok(me) {
            return;
        }
        let member = self.clone();
        let task = tokio::spawn(async move {
            member.carry_out(me, piece).await;
            member.in_hand().remove(&name);
        });
        in_hand.insert(name, InHand { member: me, task });
    }

    /// Does a piece of work and finishes it. What cannot be finished stays ours, and is taken in hand again at a beat.
    async fn carry_out(&self, me: MemberId, piece: Piece) {
        let id = me.to_holder();
        let ticket_key = match piece.kind.as_str() {
            "lane" => Some((Key::lane(piece.key.as_str()), 1)),
            "permit" => Some((Key::permit(piece.key.as_str()), PERMIT_LIMIT)),
            _ => None,
        };
        let ticket = match ticket_key {
            None => None,
            Some((key, limit)) => match self.cluster().ticket(key, limit).await {
                Ok(ticket) if ticket.member() == me => {
                    say(format_args!("ticket {id} {} got", piece.key));
                    Some(ticket)
                }
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!("no ticket of {}: {error}", piece.key);
                    return;
                }
            },
        };
        let stamp = Stamp::now();
        if self.cluster().standing().member() != Ok(me) {
            return;
        }
        stamp.say(format_args!("effect {id} {} {}", piece.id, piece.attempt));
        tokio::time::sleep(Duration::from_millis(piece.work_ms.unsigned_abs())).await;
        loop {
            let finishing = piece.clone();
            match self.cluster().write(move |me| finish(me, finishing)).await {
                Ok(Some(moved)) => {
                    self.cluster().tell_moved(&moved);
                    say(format_args!("finished {id} {} {}", piece.id, piece.attempt));
                    break;
                }
                // Also the answer if an earlier attempt of this loop succeeded and was not answered.
                Ok(None) => {
                    say(format_args!("lost {id} {} {}", piece.id, piece.attempt));
                    break;
                }
                Err(error) => tracing::debug!("not finished yet: {error}"),
            }
            if self.cluster().standing().member() != Ok(me) {
                break;
            }
            tokio::time::sleep(AGAIN).await;
        }
        drop(ticket);
    }

    /// Ends runs that are due, whoever began them.
    async fn end_runs(self) {
        while self.may_go_on() {
            match self.cluster().write(end_run).await {
                Ok(Some(moved)) => self.cluster().tell_moved(&moved),
                Ok(None) => tokio::time::sleep(LOOK * 3).await,
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    async fn lead_on(self) {
        while self.may_go_on() {
            for name in leadership::ALL {
                let standing = self.cluster().standing();
                if let (Some(epoch), Ok(holder)) = (standing.leads(name), standing.member()) {
                    lead(self.cluster().clone(), Leadership { name, holder, epoch }).await;
                }
            }
            tokio::time::sleep(LEAD).await;
        }
    }

    /// Asks others, and itself, one request at a time of each number.
    async fn ask(self, mut rng: Rng) {
        let mut number = 0_u64;
        while self.may_go_on() {
            tokio::time::sleep(ASK).await;
            let seen = self.cluster().seen();
            let alive: Vec<MemberId> = seen.members.iter().filter(|one| one.left_ms > 0).map(|one| one.id).collect();
            if alive.is_empty() || self.0.asked.load(Ordering::Acquire) >= ASKED_MAX {
                continue;
            }
            let addressee = *rng.pick(&alive);
            number += 1;
            let (kind, payload) = (["append", "echo"][rng.index(2)], format!("{}-{number}", self.0.name));
            self.0.asked.fetch_add(1, Ordering::AcqRel);
            let member = self.clone();
            tokio::spawn(async move {
                match member.cluster().ask(addressee, kind, &payload, PATIENCE).await {
                    Ok(answer) if kind == "append" => say(format_args!("answered {payload} {answer}")),
                    Ok(answer) if answer == payload => say(format_args!("echoed {payload}")),
                    Ok(answer) => say(format_args!("misheard {payload} {answer}")),
                    Err(AskError::Discarded) => say(format_args!("discarded {payload}")),
                    Err(AskError::Late(_)) => say(format_args!("late {payload}")),
                    Err(error) => tracing::debug!("not asked: {error}"),
                }
                member.0.asked.fetch_sub(1, Ordering::AcqRel);
            });
        }
    }

    async fn append(self, asked: request::Request) {
        carry_out(self.cluster(), asked, true).await;
    }

    /// Uses the cached value again and again.
    async fn read(self) {
        while self.may_go_on() {
            tokio::time::sleep(READ).await;
            let stamp = Stamp::now();
            // A process without an identity is out of touch: it uses nothing.
            if self.cluster().standing().member().is_err() {
                continue;
            }
            let (value, drops) = {
                let cached = self.cached();
                (cached.value, cached.drops)
            };
            if let Some(value) = value {
                stamp.say(format_args!("read {SETTING} {value}"));
                continue;
            }
            let get = Script::statement(&schema::GET, [SETTING.into()], |answer| {
                answer.rows.first().map_or(Ok(0), |row| row.int(0))
            });
            if let Ok(value) = self.cluster().database().read(get).await {
                let mut cached = self.cached();
                if cached.drops == drops {
                    cached.value = Some(value);
                }
            }
        }
    }

    /// Changes the cached value now and then.
    async fn change(self, mut rng: Rng) {
        while self.may_go_on() {
            tokio::time::sleep(CHANGE * u32::try_from(rng.between(1, 3)).unwrap_or(1)).await;
            let is_shared = self.cluster().database().kind() == Kind::Postgres;
            match self.cluster().write(move |me| change(me, is_shared)).await {
                Ok(true) => self.cluster().cache_changed(SETTING),
                Ok(false) => {}
                // It may have happened: drop it here, the row tells the others.
                Err(error) if error.class == Class::Unknown => self.cluster().cache_changed(SETTING),
                Err(error) => tracing::debug!("not changed: {error}"),
            }
        }
    }
}

/// A leader's effect: behind its guard.
async fn lead(cluster: Cluster, held: Leadership) {
    let script = Script::transaction(move |mut tx| async move {
        if !leader_guard(&mut tx, &held).await? {
            return Ok(Verdict::RollBack(()));
        }
        log(&mut tx, "epoch", held.holder, held.name, held.epoch, "").await?;
        Ok(Verdict::Commit(()))
    });
    if let Err(error) = cluster.database().run_with(cluster.guarded_limits(), script).await {
        tracing::debug!("no effect as {}: {error}", held.name);
    }
}

/// Carries a request out: what it says is the effect, and the answer.
async fn carry_out(cluster: &Cluster, asked: request::Request, is_append: bool) {
    let done = cluster.write(move |me| {
        Script::transaction(move |mut tx| async move {
            if !member_guard(&mut tx, me).await? || !request::answer(&mut tx, asked.id, me, &asked.payload).await? {
                return Ok(Verdict::RollBack(false));
            }
            if is_append {
                log(&mut tx, "append", me, &asked.payload, asked.id, "").await?;
            }
            Ok(Verdict::Commit(true))
        })
    });
    // One that was not answered is taken again.
    if let Err(error) = done.await {
        tracing::debug!("a request was not carried out: {error}");
    }
}

async fn log(
    tx: &mut Tx,
    kind: &'static str,
    member: MemberId,
    subject: &str,
    number: i64,
    extra: &str,
) -> Result<(), DbError> {
    let values: [Value; 5] = [kind.into(), member.to_holder().into(), subject.into(), number.into(), extra.into()];
    tx.execute(&schema::LOG, values).await.map(drop)
}

fn pieces(rows: &[database_core::Row]) -> Result<Vec<Piece>, DbError> {
    let piece = |row: &database_core::Row| {
        Ok(Piece {
            id: row.int(0)?,
            attempt: row.int(1)?,
            kind: row.text(2)?.to_owned(),
            key: row.text(3)?.to_owned(),
            work_ms: row.int(4)?,
        })
    };
    rows.iter().map(piece).collect()
}

fn claim(me: MemberId, count: i64) -> Script<Vec<Piece>> {
    Script::transaction(move |mut tx| async move {
        if !member_guard(&mut tx, me).await? {
            return Ok(Verdict::RollBack(Vec::new()));
        }
        let claimed = pieces(&tx.query(&schema::CLAIM, [me.into(), count.into()]).await?)?;
        for piece in &claimed {
            log(&mut tx, "claim", me, &piece.id.to_string(), piece.attempt, "").await?;
        }
        Ok(Verdict::Commit(claimed))
    })
}

fn mine(me: MemberId) -> Script<Vec<Piece>> {
    Script::statement(&schema::MINE, [me.into()], |answer| pieces(&answer.rows))
}

/// `None`: it is not ours any more, or was finished before.
fn finish(me: MemberId, piece: Piece) -> Script<Option<Vec<Moved>>> {
    Script::transaction(move |mut tx| async move {
        let mut moved = Vec::new();
        if !member_guard(&mut tx, me).await?
            || tx.execute(&schema::FINISH, [piece.id.into(), me.into(), piece.attempt.into()]).await? == 0
        {
            return Ok(Verdict::RollBack(None));
        }
        let subject = piece.id.to_string();
        let ticket = match piece.kind.as_str() {
            kind @ ("lane" | "permit") => format!("{kind} {}", piece.key),
            _ => String::new(),
        };
        log(&mut tx, "finish", me, &subject, piece.attempt, &ticket).await?;
        if piece.kind == "run" {
            log(&mut tx, "run_start", me, &subject, 0, "").await?;
            let key = if piece.key.is_empty() { Key::permit(RUNS_KEY) } else { Key::permit(piece.key.as_str()) };
            let run = Holder::Run(subject.clone());
            let acquired = ticket::acquire(&mut tx, &key, &run, PERMIT_LIMIT, &mut moved).await?;
            let state = if acquired == Acquired::Given { "running" } else { "waiting" };
            let values: [Value; 3] = [piece.id.into(), state.into(), (piece.work_ms * 10).into()];
            tx.execute(&schema::RUN_START, values).await?;
        }
        Ok(Verdict::Commit(Some(moved)))
    })
}

/// `None`: no run is due.
fn end_run(me: MemberId) -> Script<Option<Vec<Moved>>> {
    Script::transaction(move |mut tx| async move {
        if !member_guard(&mut tx, me).await? {
            return Ok(Verdict::RollBack(None));
        }
        tx.execute(&schema::RUN_WAKE, []).await?;
        let Some(row) = tx.query_opt(&schema::RUN_DUE, []).await? else { return Ok(Verdict::Commit(None)) };
        let (id, mut moved) = (row.int(0)?, Vec::new());
        if tx.execute(&schema::RUN_END, [id.into()]).await? == 0 {
            return Ok(Verdict::RollBack(None));
        }
        log(&mut tx, "run_end", me, &id.to_string(), 0, "").await?;
        ticket::free_of_run(&mut tx, &id.to_string(), &mut moved).await?;
        Ok(Verdict::Commit(Some(moved)))
    })
}

fn change(me: MemberId, is_shared: bool) -> Script<bool> {
    Script::transaction(move |mut tx| async move {
        if !member_guard(&mut tx, me).await? {
            return Ok(Verdict::RollBack(false));
        }
        let Some(row) = tx.query_opt(&schema::SET, [SETTING.into()]).await? else {
            return Ok(Verdict::RollBack(false));
        };
        log(&mut tx, "set", me, SETTING, row.int(0)?, "").await?;
        if is_shared {
            cache::change(&mut tx, SETTING).await?;
        }
        Ok(Verdict::Commit(true))
    })
}

/// Work of the dead is ready again.
#[derive(Debug)]
struct GiveUp;

impl ReapStep for GiveUp {
    fn name(&self) -> &'static str {
        "demo"
    }

    fn give_up<'tx>(&'tx self, tx: &'tx mut Tx, dead: &'tx [MemberId]) -> Running<'tx, u64> {
        Box::pin(async move {
            let rows = tx.query(&schema::GIVE_UP, [owners_value(dead)]).await?;
            for row in &rows {
                let (id, attempt) = (row.int(0)?, row.int(1)?);
                let values: [Value; 5] =
                    ["given_up".into(), "".into(), id.to_string().into(), attempt.into(), "".into()];
                tx.execute(&schema::LOG, values).await?;
            }
            Ok(rows.len() as u64)
        })
    }

    fn owners<'tx>(&'tx self, tx: &'tx mut Tx, max: i64) -> Running<'tx, Vec<MemberId>> {
        Box::pin(async move { owners_of(&tx.query(&schema::OWNERS, [max.into()]).await?, 0) })
    }
}
