//! Group commit on each database: each request has its own outcome.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{execute, sqlite};
use database::group_commit::{GroupCommit, Settings, SubmitError};
use database::{Class, Database, DbError, Script, Sql, Value, Verdict};
use database_core::batch::{BYTES_PER_BATCH_MAX, REQUESTS_PER_BATCH_MAX, REQUESTS_WAITING_MAX};
use tokio::task::JoinSet;

static TABLE: Sql = Sql::new(
    "test.table",
    "CREATE TABLE entry (no bigint GENERATED ALWAYS AS IDENTITY, id bigint PRIMARY KEY, name text NOT NULL \
     CONSTRAINT short CHECK (length(name) < 20))",
    "CREATE TABLE entry (id INTEGER PRIMARY KEY, name TEXT NOT NULL CONSTRAINT short CHECK (length(name) < 20)) STRICT",
);
/// Takes ids and names; gives the id of each that was not there.
static INSERT: Sql = Sql::new(
    "test.insert",
    "INSERT INTO entry (id, name) SELECT * FROM unnest($1::bigint[], $2::text[]) ON CONFLICT (id) DO NOTHING \
     RETURNING id",
    "INSERT INTO entry (id, name) SELECT i.value, n.value FROM json_each($1) AS i JOIN json_each($2) AS n \
     ON n.key = i.key WHERE true ON CONFLICT (id) DO NOTHING RETURNING id",
);
static COUNT: Sql = Sql::same("test.count", "SELECT count(*) FROM entry");

/// A request: to put this name under this id. Done again, it says that it was there.
#[derive(Debug, Clone, PartialEq)]
struct Put {
    id: i64,
    name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Made,
    WasThere,
}

type Puts = GroupCommit<Put, Outcome>;

fn script(puts: &[Put]) -> Script<Vec<Outcome>> {
    let ids: Vec<i64> = puts.iter().map(|put| put.id).collect();
    let names = puts.iter().map(|put| put.name.clone()).collect();
    Script::transaction(move |mut tx| async move {
        let rows = tx.query(&INSERT, [Value::Ints(ids.clone()), Value::Texts(names)]).await?;
        let made = rows.iter().map(|row| row.int(0)).collect::<Result<Vec<_>, _>>()?;
        let answer = |id| if made.contains(&id) { Outcome::Made } else { Outcome::WasThere };
        Ok(Verdict::Commit(ids.into_iter().map(answer).collect()))
    })
}

fn put(id: i64) -> Put {
    Put { id, name: format!("name {id}") }
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

/// 512 requests or 4 MiB a batch, 4096 waiting.
async fn bounds(database: &Database) {
    execute(database, &TABLE, []).await.unwrap();
    let largest = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&largest);
    let puts = Puts::start(database.clone(), Settings::default(), move |items| {
        seen.fetch_max(items.len(), Ordering::Relaxed);
        script(items)
    });
    // On one thread nothing runs before the first wait: all are let in, and no batch begins.
    let mut waiting = Vec::new();
    for id in 0..REQUESTS_WAITING_MAX as i64 {
        let mut submitting = Box::pin({
            let puts = puts.clone();
            async move { puts.submit(put(id), 1).await }
        });
        assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(submitting.as_mut().poll(cx).is_pending())).await);
        waiting.push(submitting);
    }
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
