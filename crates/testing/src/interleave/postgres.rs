//! A real PostgreSQL as a bench, with the tables of the cluster.
//!
//! Owns: a database, a connection per session, and one more that watches who waits. That a session waits is what the
//! server's table of locks says, not that it takes long.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use database_core::{Answer, Class, Row, Sql, Value};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio_postgres::types::{Format, FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, NoTls, Statement};

use super::{Bench, CLOCK_START_MS};
use crate::postgres::clock::Clock;
use crate::postgres::{Database, Options, Server};
use crate::process::OUTER_LIMIT;

/// What a fresh schema has: no rows but those that it comes with, and numbers from 1.
const RESET: &str = "
DELETE FROM ticket_wait; DELETE FROM ticket; DELETE FROM ticket_key; DELETE FROM request; DELETE FROM cache_change;
DELETE FROM counter; DELETE FROM member; DELETE FROM cluster_setting;
UPDATE leader SET epoch = 0, holder = NULL, lease_until = '-infinity';
SELECT setval(pg_get_serial_sequence(t, c), 1, false)
    FROM (VALUES ('member', 'no'), ('ticket_wait', 'no'), ('cache_change', 'id'), ('request', 'id')) AS numbered (t, c);
";

/// Sessions that wait for a lock which another session holds until its transaction ends. Locks that are held for the
/// length of a statement are no reason to call a session waiting.
const WAITING: &str = "SELECT DISTINCT pid FROM pg_locks WHERE NOT granted AND pid = ANY ($1) \
    AND locktype IN ('transactionid', 'tuple', 'advisory', 'relation')";

/// The server of all benches of this program, and the permission to use it.
///
/// One bench at a time and nobody else: numbers of transactions are of the whole server, and which of them are open must
/// depend on nothing but the order of the case's own steps.
fn server() -> (&'static Server, MutexGuard<'static, ()>) {
    static SERVER: OnceLock<Server> = OnceLock::new();
    static ONE: Mutex<()> = Mutex::new(());
    // A test that failed leaves the server as good as it was.
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    (SERVER.get_or_init(|| Options::new().without_sync().setting("autovacuum", "off").start()), one)
}

/// A database of its own, and the server as long as this lives.
pub struct PostgresBench {
    runtime: Runtime,
    sessions: Vec<Session>,
    watcher: Client,
    waiting: Statement,
    set_clock: Statement,
    dsn: String,
    // Dropped last, and in this order: dropping the database ends its sessions.
    _database: Database,
    _one: MutexGuard<'static, ()>,
}

struct Session {
    client: Arc<Client>,
    process: i32,
    statements: HashMap<&'static str, Statement>,
    under_way: Option<JoinHandle<Result<Answer, Class>>>,
}

impl std::fmt::Debug for PostgresBench {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("PostgresBench").field("sessions", &self.sessions.len()).finish_non_exhaustive()
    }
}

impl PostgresBench {
    /// A database with the tables of the cluster.
    ///
    /// # Panics
    ///
    /// If it cannot be had.
    #[track_caller]
    #[expect(clippy::new_without_default, reason = "making a database has an effect outside of the program")]
    pub fn new() -> Self {
        let (server, one) = server();
        let database = Database::on(server);
        let dsn = Clock::of(&database).dsn();
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let watcher = runtime.block_on(connect(&dsn));
        let made = runtime.block_on(watcher.batch_execute(cluster_core::schema::POSTGRES));
        made.expect("the tables of the cluster");
        let waiting = runtime.block_on(watcher.prepare(WAITING)).expect("a statement of our own");
        let set_clock = runtime.block_on(watcher.prepare("SELECT setval('tclk.frozen_us', $1)"));
        let set_clock = set_clock.expect("a statement of our own");
        Self { runtime, sessions: Vec::new(), watcher, waiting, set_clock, dsn, _database: database, _one: one }
    }

    /// Collects answers until nobody is left who neither has answered nor waits; or, if `only_one`, until one has come.
    fn answers(&mut self, only_one: bool) -> Vec<(usize, Result<Answer, Class>)> {
        let Self { runtime, sessions, watcher, waiting, .. } = self;
        let deadline = Instant::now() + OUTER_LIMIT;
        let mut answers = Vec::new();
        runtime.block_on(async {
            loop {
                for (who, session) in sessions.iter_mut().enumerate() {
                    if session.under_way.as_ref().is_some_and(JoinHandle::is_finished) {
                        let ended = session.under_way.take().expect("it is there").await;
                        answers.push((who, ended.expect("a task of ours")));
                    }
                }
                let busy: Vec<i32> =
                    sessions.iter().filter(|one| one.under_way.is_some()).map(|one| one.process).collect();
                if busy.is_empty() || only_one && !answers.is_empty() {
                    break;
                }
                // First who has answered, then who waits: an answer comes after its locks were given back, so nobody is
                // taken to wait for one who has answered.
                let stuck = watcher.query(&*waiting, &[&busy]).await.expect("the table of locks");
                if !only_one && stuck.len() == busy.len() {
                    break;
                }
                assert!(Instant::now() < deadline, "a session neither answers nor waits");
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
        });
        answers.sort_by_key(|(who, _)| *who);
        answers
    }

    /// Runs something short on a session.
    fn command(&self, session: usize, text: &str) -> Result<(), Class> {
        let client = &self.sessions[session].client;
        self.runtime.block_on(client.batch_execute(text)).map_err(|error| class(&error))
    }
}

impl Bench for PostgresBench {
    fn reset(&mut self, sessions: usize) {
        // An order that was given up may have left something under way.
        for session in &mut self.sessions {
            if let Some(task) = session.under_way.take() {
                let stop = format!("SELECT pg_cancel_backend({})", session.process);
                self.runtime.block_on(self.watcher.batch_execute(&stop)).expect("a session of our own");
                drop(self.runtime.block_on(task));
            }
        }
        while self.sessions.len() < sessions {
            let session = self.runtime.block_on(async {
                let client = connect(&self.dsn).await;
                let process = client.query_one("SELECT pg_backend_pid()", &[]).await.expect("its number").get(0);
                Session { client: client.into(), process, statements: HashMap::new(), under_way: None }
            });
            self.sessions.push(session);
        }
        for session in 0..self.sessions.len() {
            self.command(session, "ROLLBACK").expect("an end of what was left");
        }
        self.runtime.block_on(self.watcher.batch_execute(RESET)).expect("empty tables");
        self.set_clock(0);
    }

    fn set_clock(&mut self, ms: i64) {
        let at_us = (CLOCK_START_MS + ms) * 1_000;
        self.runtime.block_on(self.watcher.query(&self.set_clock, &[&at_us])).expect("a clock");
    }

    fn begin(&mut self, session: usize) {
        self.command(session, "BEGIN ISOLATION LEVEL READ COMMITTED").expect("a session without a transaction");
    }

    fn send(&mut self, session: usize, sql: &'static Sql, values: Vec<Value>) {
        let session = &mut self.sessions[session];
        let prepared = session.statements.entry(sql.id).or_insert_with(|| {
            let prepared = self.runtime.block_on(session.client.prepare(sql.postgres));
            prepared.unwrap_or_else(|error| panic!("{}: {error:?}", sql.id))
        });
        let work = execute(session.client.clone(), prepared.clone(), values);
        session.under_way = Some(self.runtime.spawn(work));
    }

    fn settle(&mut self) -> Vec<(usize, Result<Answer, Class>)> {
        self.answers(false)
    }

    fn wait(&mut self) -> Vec<(usize, Result<Answer, Class>)> {
        self.answers(true)
    }

    fn end(&mut self, session: usize, commits: bool) -> Result<(), Class> {
        self.command(session, if commits { "COMMIT" } else { "ROLLBACK" })
    }
}

async fn connect(dsn: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

async fn execute(client: Arc<Client>, statement: Statement, values: Vec<Value>) -> Result<Answer, Class> {
    let parameters: Vec<Parameter> = values.into_iter().map(Parameter).collect();
    let parameters: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|one| one as _).collect();
    if statement.columns().is_empty() {
        let affected = client.execute(&statement, &parameters).await.map_err(|error| class(&error))?;
        return Ok(Answer { rows: Vec::new(), affected });
    }
    let rows = client.query(&statement, &parameters).await.map_err(|error| class(&error))?;
    Ok(rows.iter().map(row).collect::<Vec<Row>>().into())
}

fn class(error: &tokio_postgres::Error) -> Class {
    let code = error.code().unwrap_or_else(|| panic!("a session was lost: {error}"));
    Class::of_sqlstate(code.code())
}

/// A parameter as text, which every type reads.
#[derive(Debug)]
struct Parameter(Value);

impl ToSql for Parameter {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let list = |values: Vec<String>| format!("{{{}}}", values.join(","));
        let text = match &self.0 {
            Value::Null => return Ok(IsNull::Yes),
            Value::Bool(value) => value.to_string(),
            Value::Int(value) => value.to_string(),
            Value::Float(value) => value.to_string(),
            Value::Text(value) => value.clone(),
            Value::Uuid(value) => format!("{value:032x}"),
            Value::Ints(values) => list(values.iter().map(i64::to_string).collect()),
            Value::Uuids(values) => list(values.iter().map(|value| format!("{value:032x}")).collect()),
            // Names in cases are plain words.
            Value::Texts(values) => list(values.iter().map(|value| format!("\"{value}\"")).collect()),
            Value::Bytes(_) => return Err("no statement of a case takes bytes".into()),
        };
        out.write_str(&text)?;
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// A column of 16 bytes.
struct Uuid(u128);

impl<'a> FromSql<'a> for Uuid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(u128::from_be_bytes(raw.try_into()?)))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::UUID
    }
}

fn row(row: &tokio_postgres::Row) -> Row {
    let columns = row.columns().iter().enumerate();
    let values = columns.map(|(at, column)| match *column.type_() {
        Type::BOOL => row.get::<_, Option<bool>>(at).map(Value::Bool),
        Type::INT4 => row.get::<_, Option<i32>>(at).map(|value| Value::Int(value.into())),
        Type::INT8 => row.get::<_, Option<i64>>(at).map(Value::Int),
        Type::UUID => row.get::<_, Option<Uuid>>(at).map(|value| Value::Uuid(value.0)),
        Type::TEXT => row.get::<_, Option<String>>(at).map(Value::Text),
        ref other => panic!("column {at} has the type {other}"),
    });
    values.map(|value| value.unwrap_or(Value::Null)).collect::<Vec<_>>().into()
}
