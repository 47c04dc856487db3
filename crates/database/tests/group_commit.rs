//! Group commit on each database: each request has its own outcome.

mod common;

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use common::{execute, postgres, postgres_at, sqlite};
use database::group_commit::{GroupCommit, Settings, SubmitError};
use database::{Class, Database, DbError, Limits, Script, Sql, Value, Verdict};
use database_core::batch::{BYTES_PER_BATCH_MAX, REQUESTS_PER_BATCH_MAX, REQUESTS_WAITING_MAX};
use testing::postgres::{Direction, Mode, TcpProxy};
use tokio::task::JoinSet;

static TABLE: Sql = Sql::new(
    "test.table",
    "CREATE TABLE entry (id bigint PRIMARY KEY, name text NOT NULL CONSTRAINT short CHECK (length(name) < 20), \
     call uuid NOT NULL)",
    "CREATE TABLE entry (id INTEGER PRIMARY KEY, name TEXT NOT NULL CONSTRAINT short CHECK (length(name) < 20), \
     call TEXT NOT NULL) STRICT",
);
/// Takes ids, names and calls.
static INSERT: Sql = Sql::new(
    "test.insert",
    "INSERT INTO entry (id, name, call) SELECT * FROM unnest($1::bigint[], $2::text[], $3::uuid[]) ORDER BY 1 \
     ON CONFLICT (id) DO NOTHING",
    "INSERT INTO entry (id, name, call) SELECT i.value, n.value, c.value FROM json_each($1) AS i \
     JOIN json_each($2) AS n ON n.key = i.key JOIN json_each($3) AS c ON c.key = i.key WHERE true ORDER BY 1 \
     ON CONFLICT (id) DO NOTHING",
);
/// Takes ids; gives id and the call that made it.
static CALLS: Sql = Sql::new(
    "test.calls",
    "SELECT id, call FROM entry WHERE id = ANY ($1)",
    "SELECT id, call FROM entry WHERE id IN (SELECT value FROM json_each($1))",
);
static COUNT: Sql = Sql::same("test.count", "SELECT count(*) FROM entry");

/// A request: to put a name under an id. Repeated with the same call it gives the same outcome.
#[derive(Debug, Clone, PartialEq)]
struct Put {
    id: i64,
    name: String,
    call: u128,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Made,
    WasThere,
}

type Puts = GroupCommit<Put, Outcome>;

fn script(puts: &[Put]) -> Script<Vec<Outcome>> {
    let puts = puts.to_vec();
    Script::transaction(move |mut tx| async move {
        let ids = Value::Ints(puts.iter().map(|put| put.id).collect());
        let names = Value::Texts(puts.iter().map(|put| put.name.clone()).collect());
        let calls = Value::Uuids(puts.iter().map(|put| put.call).collect());
        tx.execute(&INSERT, [ids.clone(), names, calls]).await?;
        let rows = tx.query(&CALLS, [ids]).await?;
        let made =
            rows.iter().map(|row| Ok((row.int(0)?, row.uuid(1)?))).collect::<Result<HashMap<_, _>, DbError>>()?;
        let outcome = |put: &Put| if made[&put.id] == put.call { Outcome::Made } else { Outcome::WasThere };
        Ok(Verdict::Commit(puts.iter().map(outcome).collect()))
    })
}

fn put(id: i64) -> Put {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    Put { id, name: format!("name {id}"), call: CALLS.fetch_add(1, Ordering::Relaxed).into() }
}

async fn start(database: &Database) -> Puts {
    execute(database, &TABLE, []).await.unwrap();
    GroupCommit::start(database.clone(), Settings::default(), script)
}

async fn count(database: &Database) -> i64 {
    database.read(Script::statement(&COUNT, [], |answer| answer.rows[0].int(0))).await.unwrap()
}

/// Submits them together and waits for all outcomes, in their order.
async fn submit_all(puts: &Puts, requests: Vec<Put>) -> Vec<Result<Outcome, SubmitError>> {
    let mut tasks = JoinSet::new();
    for (index, request) in requests.into_iter().enumerate() {
        let puts = puts.clone();
        tasks.spawn(async move { (index, puts.submit(request, 100).await) });
    }
    let mut outcomes = tasks.join_all().await;
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

async fn many_go_together(database: &Database) {
    let puts = start(database).await;
    assert_eq!(puts.submit(put(0), 100).await, Ok(Outcome::Made));
    let outcomes = submit_all(&puts, (0..2_000).map(put).collect()).await;
    assert_eq!(outcomes[0], Ok(Outcome::WasThere));
    assert!(outcomes[1..].iter().all(|outcome| *outcome == Ok(Outcome::Made)));
    assert_eq!(count(database).await, 2_000);
    let figures = puts.figures();
    assert_eq!((figures.requests, figures.again, figures.unknown), (2_001, 0, 0));
    assert!(figures.batches < 200, "{figures:?}");
}

async fn bad_requests_have_their_own_outcome(database: &Database) {
    let puts = start(database).await;
    let mut requests: Vec<Put> = (0..300).map(put).collect();
    requests[17].name = "a name that is much too long".into();
    requests[120].name = "NUL \0".into();
    let outcomes = submit_all(&puts, requests).await;
    for (index, outcome) in outcomes.iter().enumerate() {
        match index {
            17 => assert!(
                matches!(outcome, Err(SubmitError::Refused(DbError { constraint: Some(name), .. })) if name == "short")
            ),
            120 => assert!(matches!(
                outcome,
                Err(SubmitError::Refused(DbError { class: Class::Refused, code: Some(code), .. })) if code == "22021"
            )),
            _ => assert_eq!(*outcome, Ok(Outcome::Made), "{index}"),
        }
    }
    assert_eq!(count(database).await, 298);
    assert!(puts.figures().again > 0);
}

/// Submits requests so that all are let in before a batch begins: in a test on one thread nothing else runs before the
/// first wait.
async fn let_in(
    puts: &Puts,
    requests: impl Iterator<Item = Put>,
) -> Vec<impl Future<Output = Result<Outcome, SubmitError>>> {
    let mut waiting = Vec::new();
    for request in requests {
        let puts = puts.clone();
        let mut submitting = Box::pin(async move { puts.submit(request, 1).await });
        assert!(poll_fn(|context| Poll::Ready(submitting.as_mut().poll(context).is_pending())).await);
        waiting.push(submitting);
    }
    waiting
}

/// 512 requests or 4 MiB a batch, 4096 waiting.
async fn bounds(database: &Database) {
    execute(database, &TABLE, []).await.unwrap();
    let largest = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&largest);
    let puts = Puts::start(database.clone(), Settings::default(), move |items| {
        seen.fetch_max(items.len(), Ordering::Relaxed);
        script(items)
    });
    let waiting = let_in(&puts, (0..REQUESTS_WAITING_MAX as i64).map(put)).await;
    assert_eq!(puts.submit(put(-1), 1).await, Err(SubmitError::Busy));
    for submitting in waiting {
        assert_eq!(submitting.await, Ok(Outcome::Made));
    }
    assert_eq!(largest.load(Ordering::Relaxed), REQUESTS_PER_BATCH_MAX);
    assert_eq!(count(database).await, REQUESTS_WAITING_MAX as i64);
    let large = puts.submit(put(-1), BYTES_PER_BATCH_MAX + 1).await;
    assert!(matches!(large, Err(SubmitError::Refused(DbError { class: Class::Refused, .. }))), "{large:?}");
    assert_eq!(puts.figures().busy, 1);
}

async fn wrong_code_ends_no_writer(database: &Database) {
    execute(database, &TABLE, []).await.unwrap();
    let puts = Puts::start(database.clone(), Settings::default(), |items| match items[0].id {
        -1 => panic!("on purpose"),
        -2 => Script::transaction(|_| async { Ok(Verdict::RollBack(Vec::new())) }),
        -3 => Script::transaction(|_| async { panic!("on purpose") }),
        _ => script(items),
    });
    let made = puts.submit(put(-1), 1).await;
    assert!(matches!(made, Err(SubmitError::Refused(DbError { class: Class::Broken, .. }))), "{made:?}");
    assert!(matches!(puts.submit(put(-2), 1).await, Err(SubmitError::Unknown(_))));
    assert!(puts.submit(put(-3), 1).await.is_err());
    assert_eq!(puts.submit(put(1), 1).await, Ok(Outcome::Made));
    puts.close();
    assert_eq!(puts.submit(put(2), 1).await, Err(SubmitError::Closed));
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_many_requests_go_together() {
    let (_folder, file) = sqlite();
    many_go_together(&Database::Sqlite(file)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_bad_requests_have_their_own_outcome() {
    let (_folder, file) = sqlite();
    bad_requests_have_their_own_outcome(&Database::Sqlite(file)).await;
}

#[tokio::test]
async fn on_sqlite_batches_and_queue_are_bounded() {
    let (_folder, file) = sqlite();
    bounds(&Database::Sqlite(file)).await;
}

#[tokio::test]
async fn on_sqlite_wrong_code_ends_no_writer() {
    let (_folder, file) = sqlite();
    wrong_code_ends_no_writer(&Database::Sqlite(file)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_many_requests_go_together() {
    let (_server, database) = postgres();
    many_go_together(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_bad_requests_have_their_own_outcome() {
    let (_server, database) = postgres();
    bad_requests_have_their_own_outcome(&database).await;
}

#[tokio::test]
async fn on_postgres_batches_and_queue_are_bounded() {
    let (_server, database) = postgres();
    bounds(&database).await;
}

#[tokio::test]
async fn on_postgres_wrong_code_ends_no_writer() {
    let (_server, database) = postgres();
    wrong_code_ends_no_writer(&database).await;
}

/// Waits until a query of the server's own tables gives a row.
async fn wait_for(server: &Arc<testing::postgres::Database>, query: &'static str) {
    let limit = Instant::now() + Duration::from_secs(60);
    let server = Arc::clone(server);
    let waiting = tokio::task::spawn_blocking(move || {
        while server.sql(query).is_empty() {
            assert!(Instant::now() < limit, "no row within a minute: {query}");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    waiting.await.unwrap();
}

/// Runs statements in the database of a test, as its owner.
async fn sql(server: &Arc<testing::postgres::Database>, statements: String) {
    let server = Arc::clone(server);
    tokio::task::spawn_blocking(move || drop(server.sql(&statements))).await.unwrap();
}

/// Holds the row of this id, uncommitted, until its session is ended.
fn hold(id: i64) -> Script<()> {
    static HOLD: Sql = Sql::same("test.hold", "SELECT 1 FROM pg_sleep(300)");
    Script::transaction(move |mut tx| async move {
        tx.execute(&INSERT, [Value::Ints(vec![id]), Value::Texts(vec!["held".into()]), Value::Uuids(vec![0])]).await?;
        tx.query(&HOLD, []).await?;
        Ok(Verdict::Commit(()))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_somebody_holds_costs_only_the_request_for_it() {
    let (server, database) = postgres();
    let server = Arc::new(server);
    let puts = start(&database).await;
    let minutes = Duration::from_secs(300);
    let limits = Limits { statement: minutes, lock: minutes, idle: minutes, transaction: minutes };
    let holding = tokio::spawn({
        let database = postgres_at(&server.dsn());
        async move { database.run_with(limits, hold(77)).await }
    });
    const HOLDER: &str = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_sleep(300)%' \
                  AND pid <> pg_backend_pid()";
    wait_for(&server, HOLDER).await;
    let requests: Vec<Put> = (0..200).map(put).collect();
    let outcomes = submit_all(&puts, requests.clone()).await;
    for (index, outcome) in outcomes.iter().enumerate() {
        match index {
            77 => assert!(
                matches!(outcome, Err(SubmitError::Refused(DbError { class: Class::Locked, .. }))),
                "{outcome:?}"
            ),
            _ => assert_eq!(*outcome, Ok(Outcome::Made), "{index}"),
        }
    }
    sql(&server, HOLDER.replace("SELECT pid", "SELECT pg_terminate_backend(pid)")).await;
    assert!(holding.await.unwrap().is_err());
    assert_eq!(puts.submit(requests[77].clone(), 1).await, Ok(Outcome::Made));
}

/// The answer to a commit is lost, whether it happened or failed: all of the batch are told that it is not known, nobody else is,
/// and each call repeated gives what it would have given.
async fn an_unknown_commit(mode: Mode, is_committed: bool) {
    const SLOW: &str = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                        IF NEW.id = 1000 THEN PERFORM pg_sleep(1); END IF; RETURN NULL; END $$; \
                        CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON entry DEFERRABLE INITIALLY DEFERRED \
                        FOR EACH ROW EXECUTE FUNCTION slow()";
    const AT_COMMIT: &str = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' \
                             AND query = 'COMMIT' AND pid <> pg_backend_pid()";
    const AT_REST: &str = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = \
                           current_database() AND state <> 'idle' AND pid <> pg_backend_pid())";
    let server = Arc::new(testing::postgres::Database::new());
    let proxy = TcpProxy::new(server.address());
    let database = postgres_at(&server.dsn_at(proxy.address()));
    let puts = start(&database).await;
    sql(&server, SLOW.to_owned()).await;
    assert_eq!(puts.submit(put(1005), 1).await, Ok(Outcome::Made));
    let requests: Vec<Put> = (1000..1010).map(put).collect();
    let waiting = let_in(&puts, requests.iter().cloned()).await;
    wait_for(&server, AT_COMMIT).await;
    proxy.set(Direction::ToClient, mode);
    if !is_committed {
        sql(&server, AT_COMMIT.replace("SELECT 1", "SELECT pg_terminate_backend(pid)")).await;
    }
    for submitting in waiting {
        let outcome = submitting.await;
        assert!(matches!(outcome, Err(SubmitError::Unknown(_))), "{outcome:?}");
    }
    assert_eq!((puts.figures().unknown, puts.figures().again), (10, 0));
    proxy.set(Direction::ToClient, Mode::Pass);
    proxy.cut();
    wait_for(&server, AT_REST).await;
    let before = count(&database).await;
    assert_eq!(before, if is_committed { 10 } else { 1 });
    for request in &requests {
        let expected = if request.id == 1005 { Outcome::WasThere } else { Outcome::Made };
        assert_eq!(puts.submit(request.clone(), 1).await, Ok(expected));
    }
    assert_eq!(puts.submit(put(1001), 1).await, Ok(Outcome::WasThere));
    assert_eq!(count(&database).await, 10);
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_unknown_for_all_of_its_batch() {
    an_unknown_commit(Mode::Close, true).await;
}

#[tokio::test]
async fn a_commit_whose_answer_never_comes_is_unknown_for_all_of_its_batch() {
    an_unknown_commit(Mode::Swallow, true).await;
}

#[tokio::test]
async fn a_commit_that_failed_unheard_is_unknown_for_all_of_its_batch() {
    an_unknown_commit(Mode::Close, false).await;
}
