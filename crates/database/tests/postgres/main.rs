//! The PostgreSQL side against a real, private server.

mod classes;
mod commits;
mod failover;
mod notices;
mod pool;
mod pooler;
mod tls;

use std::time::Duration;

use database::postgres::{Connection, Connector, Dsn, Postgres, Settings, Timeouts};
use database::{Class, DbError, Limits, Script, Sql, Value, Verdict};

/// Time limit of a test's own waits. Nothing waits so long unless it is broken.
const OUTER_LIMIT: Duration = Duration::from_secs(60);

/// For statements that are to be ended: short enough to be waited for.
const STATEMENT_LIMIT: Duration = Duration::from_millis(500);
/// Long enough for the server to be the one that ends them, on a busy machine too.
const GRACE: Duration = Duration::from_millis(1500);

static TABLE: Sql = Sql::same("test.table", "CREATE TABLE item (id bigint CONSTRAINT once PRIMARY KEY, name text)");
static INSERT: Sql = Sql::same("test.insert", "INSERT INTO item VALUES ($1, $2)");
static COUNT: Sql = Sql::same("test.count", "SELECT count(*) FROM item");
static SLEEP: Sql = Sql::same("test.sleep", "SELECT pg_sleep(60)");
static PROCESS: Sql = Sql::same("test.process", "SELECT pg_backend_pid()");

/// Nothing but a lock ends a statement.
fn limits() -> Limits {
    let lock = Duration::from_millis(100);
    Limits { statement: OUTER_LIMIT, lock, idle: OUTER_LIMIT, transaction: OUTER_LIMIT }
}

/// For what never ends by itself.
fn brief() -> Limits {
    Limits { statement: STATEMENT_LIMIT, ..limits() }
}

fn timeouts() -> Timeouts {
    Timeouts { grace: GRACE, ..Timeouts::default() }
}

fn dsn(text: impl AsRef<str>) -> Dsn {
    text.as_ref().parse().unwrap()
}

fn connector(text: impl AsRef<str>) -> Connector {
    Connector::new(dsn(text), timeouts()).unwrap().with_limits(limits())
}

fn settings(text: impl AsRef<str>) -> Settings {
    Settings { timeouts: timeouts(), limits: limits(), pool_size: 3, ..Settings::new(dsn(text)) }
}

fn postgres(text: impl AsRef<str>) -> Postgres {
    Postgres::new(settings(text)).unwrap()
}

/// A database with the table, and a connection to it.
async fn with_table() -> (testing::postgres::Database, Connection) {
    let database = testing::postgres::Database::new();
    let mut connection = connector(database.dsn()).connect().await.unwrap();
    alone(&mut connection, &TABLE, []).await.unwrap();
    (database, connection)
}

fn statement(sql: &'static Sql, values: impl Into<Vec<Value>>) -> Script<u64> {
    Script::statement(sql, values, |answer| Ok(answer.affected))
}

/// One statement that commits by itself.
async fn alone(connection: &mut Connection, sql: &'static Sql, values: impl Into<Vec<Value>>) -> Result<u64, DbError> {
    connection.run_once(statement(sql, values)).await
}

/// One row in a transaction; `before_commit` happens when the row is there and the commit comes next.
fn insert(id: i64, before_commit: impl FnOnce() + Send + 'static) -> Script<()> {
    Script::transaction(move |mut tx| async move {
        tx.execute(&INSERT, [id.into(), Value::Null]).await?;
        before_commit();
        Ok(Verdict::Commit(()))
    })
}

/// How many rows there are, as somebody else sees it.
fn rows(database: &testing::postgres::Database) -> u32 {
    number(&database.sql("SELECT count(*) FROM item"))
}

fn number(rows: &[testing::postgres::Row]) -> u32 {
    rows[0][0].as_deref().unwrap().parse().unwrap()
}

/// The number of the server's process behind a connection.
async fn process(connection: &mut Connection) -> i64 {
    connection.read(Script::statement(&PROCESS, [], |answer| answer.rows[0].int(0))).await.unwrap()
}

#[track_caller]
fn class<T: std::fmt::Debug>(result: Result<T, DbError>) -> Class {
    result.unwrap_err().class
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(OUTER_LIMIT, work).await.expect("the outer limit of a test")
}
