//! Scripts on each database: one suite.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use common::{execute, postgres, sqlite};
use database::{Class, Database, DbError, Limits, Script, Sql, Value, Verdict};

static TABLE: Sql = Sql::new(
    "test.table",
    "CREATE TABLE item (id bigint PRIMARY KEY, name text CONSTRAINT short CHECK (length(name) < 9), flag boolean, \
     ratio double precision, body bytea, token uuid)",
    "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT CONSTRAINT short CHECK (length(name) < 9), flag INTEGER, \
     ratio REAL, body BLOB, token TEXT) STRICT",
);
static INSERT: Sql = Sql::same("test.insert", "INSERT INTO item VALUES ($1, $2, $3, $4, $5, $6)");
static ADD: Sql = Sql::same("test.add", "INSERT INTO item (id, name) VALUES ($1, $2)");
static ALL: Sql = Sql::same("test.all", "SELECT id, name, flag, ratio, body, token FROM item ORDER BY id");
static COUNT: Sql = Sql::same("test.count", "SELECT count(*) FROM item");
static NAMES: Sql = Sql::new(
    "test.names",
    "SELECT id FROM item WHERE name = ANY ($1) OR id = ANY ($2) OR token = ANY ($3) ORDER BY id",
    "SELECT id FROM item WHERE name IN (SELECT value FROM json_each($1)) OR id IN (SELECT value FROM json_each($2)) \
     OR token IN (SELECT value FROM json_each($3)) ORDER BY id",
);
static RENAME: Sql = Sql::same("test.rename", "UPDATE item SET name = $2 WHERE id = $1 AND name <> $2");
static TAKE: Sql = Sql::same("test.take", "DELETE FROM item WHERE id = $1 RETURNING name");
static WRONG: Sql = Sql::same("test.wrong", "SELECT nothing FROM item");
static SLOW: Sql = Sql::new(
    "test.slow",
    "SELECT 1 FROM pg_sleep(60)",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
);

async fn count(database: &Database) -> i64 {
    database.read(Script::statement(&COUNT, [], |answer| answer.rows[0].int(0))).await.unwrap()
}

async fn suite(database: Database) {
    let database = &database;
    execute(database, &TABLE, []).await.unwrap();
    values(database).await;
    counts(database).await;
    verdicts(database).await;
    refusals(database).await;
    limits(database).await;
    repeating(database).await;
}

async fn values(database: &Database) {
    let token = 0x0123_4567_89ab_cdef_0000_0000_0000_0001_u128;
    let rows = [
        [
            Value::Int(i64::MIN),
            "naïve 🦀".into(),
            true.into(),
            Value::Float(0.1),
            Value::Bytes(vec![0, 255]),
            Value::Uuid(token),
        ],
        [Value::Int(i64::MAX), "".into(), false.into(), Value::Float(-1e300), Value::Bytes(vec![]), Value::Uuid(0)],
    ];
    for row in &rows {
        execute(database, &INSERT, row.to_vec()).await.unwrap();
    }
    let nulls = [Value::Int(0), Value::Null, Value::Null, Value::Null, Value::Null, Value::Null];
    execute(database, &INSERT, nulls).await.unwrap();
    let read = database.read(Script::statement(&ALL, [], |answer| Ok(answer.rows))).await.unwrap();
    for (row, written) in [(&read[0], &rows[0]), (&read[2], &rows[1])] {
        let values = [
            Value::Int(row.int(0).unwrap()),
            row.text(1).unwrap().into(),
            row.bool(2).unwrap().into(),
            row.values()[3].clone(),
            Value::Bytes(row.bytes(4).unwrap().to_vec()),
            Value::Uuid(row.uuid(5).unwrap()),
        ];
        assert_eq!(&values, written);
    }
    assert_eq!(read[1].values()[1..], [const { Value::Null }; 5]);
    assert_eq!(read[1].uuid_or_null(5), Ok(None));

    let lists = |names: &[&str], ids: &[i64], tokens: &[u128]| {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        [Value::Texts(names), Value::Ints(ids.to_vec()), Value::Uuids(tokens.to_vec())]
    };
    for (lists, expected) in [
        (lists(&[], &[], &[]), &[][..]),
        (lists(&["naïve 🦀", "\"]", "x"], &[], &[]), &[i64::MIN]),
        (lists(&[""], &[0, 5], &[]), &[0, i64::MAX]),
        (lists(&[], &[i64::MAX], &[token]), &[i64::MIN, i64::MAX]),
    ] {
        let rows = execute(database, &NAMES, lists).await.unwrap();
        assert_eq!(rows, expected.iter().map(|&id| vec![Value::Int(id)]).collect::<Vec<_>>());
    }
}

async fn counts(database: &Database) {
    let affected = |sql, values: Vec<Value>| database.run_once(Script::statement(sql, values, |a| Ok(a.affected)));
    assert_eq!(affected(&ADD, vec![Value::Int(1), "a".into()]).await, Ok(1));
    assert_eq!(affected(&RENAME, vec![Value::Int(1), "b".into()]).await, Ok(1));
    assert_eq!(affected(&RENAME, vec![Value::Int(1), "b".into()]).await, Ok(0));
    assert_eq!(affected(&ALL, vec![]).await, Ok(4));
    assert_eq!(affected(&TAKE, vec![Value::Int(1)]).await, Ok(1));
    assert_eq!(affected(&TAKE, vec![Value::Int(1)]).await, Ok(0));
}

async fn verdicts(database: &Database) {
    let before = count(database).await;
    let add = |verdict: fn(i64) -> Result<Verdict<i64>, DbError>| {
        Script::transaction(move |mut tx| async move {
            tx.execute(&ADD, [Value::Int(10), "ten".into()]).await?;
            verdict(tx.query(&COUNT, []).await?[0].int(0)?)
        })
    };
    assert_eq!(database.run_once(add(|n| Ok(Verdict::RollBack(n)))).await, Ok(before + 1));
    assert_eq!(count(database).await, before);
    let error = database.run_once(add(|_| Err(DbError::new(Class::Exhausted, "own")))).await.unwrap_err();
    assert_eq!((error.class, count(database).await), (Class::Exhausted, before));
    assert_eq!(database.run_once(add(|n| Ok(Verdict::Commit(n)))).await, Ok(before + 1));
    assert_eq!(count(database).await, before + 1);

    // After a failure nothing succeeds, whatever the code makes of it.
    let stubborn = Script::transaction(|mut tx| async move {
        tx.execute(&ADD, [Value::Int(11), "eleven".into()]).await?;
        let first = tx.execute(&ADD, [Value::Int(10), "ten".into()]).await.unwrap_err();
        let second = tx.execute(&ADD, [Value::Int(12), "twelve".into()]).await;
        assert!(first.class == Class::Refused && second.is_err());
        Ok(Verdict::Commit(()))
    });
    assert_eq!(database.run_once(stubborn).await.unwrap_err().class, Class::Refused);
    assert_eq!(count(database).await, before + 1);

    let panics = Script::<()>::transaction(|mut tx| async move {
        tx.execute(&ADD, [Value::Int(13), "thirteen".into()]).await?;
        panic!("on purpose")
    });
    let panicked = tokio::spawn({
        let database = database.clone();
        async move { database.run_once(panics).await }
    });
    assert!(!matches!(panicked.await, Ok(Ok(()))));
    assert_eq!(count(database).await, before + 1);
}

async fn refusals(database: &Database) {
    let before = count(database).await;
    let taken = execute(database, &ADD, [Value::Int(10), "x".into()]).await.unwrap_err();
    assert_eq!(taken.class, Class::Refused);
    let long = execute(database, &ADD, [Value::Int(20), "too long a name".into()]).await.unwrap_err();
    assert_eq!((long.class, long.constraint.as_deref()), (Class::Refused, Some("short")));
    assert!(!long.to_string().contains("too long a name"), "{long}");
    let nul = execute(database, &ADD, [Value::Int(21), "a\0b".into()]).await.unwrap_err();
    assert_eq!((nul.class, nul.code.as_deref()), (Class::Refused, Some("22021")));
    let list = [Value::Texts(vec!["a\0".into()]), Value::Ints(vec![]), Value::Uuids(vec![])];
    assert_eq!(execute(database, &NAMES, list).await.unwrap_err().class, Class::Refused);
    assert_eq!(execute(database, &WRONG, []).await.unwrap_err().class, Class::Broken);
    assert_eq!(execute(database, &ADD, [Value::Int(22)]).await.unwrap_err().class, Class::Broken);
    assert_eq!(count(database).await, before);
}

async fn limits(database: &Database) {
    let limits = Limits { statement: std::time::Duration::from_millis(50), ..Limits::default() };
    let before = count(database).await;
    let slow = Script::transaction(|mut tx| async move {
        tx.execute(&ADD, [Value::Int(30), "slow".into()]).await?;
        tx.query(&SLOW, []).await?;
        Ok(Verdict::Commit(()))
    });
    let error = database.run_with(limits, slow).await.unwrap_err();
    assert_eq!(error.class, Class::TimedOut, "{error}");
    assert_eq!(count(database).await, before);
    // It bounds each statement of the transaction, and no later one.
    assert!(execute(database, &ADD, [Value::Int(30), "fast".into()]).await.is_ok());
}

async fn repeating(database: &Database) {
    let before = count(database).await;
    // How often a script is run that fails so often with this class.
    let attempts = async |class: Class, failures: usize| {
        let attempt = AtomicUsize::new(0);
        let make = || {
            let is_failure = attempt.fetch_add(1, Ordering::Relaxed) < failures;
            Script::transaction(move |mut tx| async move {
                tx.execute(&ADD, [Value::Int(40), "again".into()]).await?;
                if is_failure {
                    return Err(DbError::new(class, "on purpose"));
                }
                Ok(Verdict::RollBack(()))
            })
        };
        let result = database.run(make).await;
        (result.map_err(|error| error.class), attempt.into_inner())
    };
    for class in [Class::Conflict, Class::Locked] {
        assert_eq!(attempts(class, 2).await, (Ok(()), 3));
    }
    let (result, count_of_attempts) = attempts(Class::Conflict, usize::MAX).await;
    assert_eq!(result, Err(Class::Conflict));
    assert!((2..20).contains(&count_of_attempts), "{count_of_attempts}");
    for class in [Class::Unknown, Class::Refused, Class::TimedOut, Class::Exhausted, Class::Broken] {
        assert_eq!(attempts(class, usize::MAX).await, (Err(class), 1));
    }
    assert_eq!(count(database).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_on_postgres() {
    let (_server, database) = postgres();
    suite(database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_on_sqlite() {
    let (_folder, file) = sqlite();
    suite(Database::Sqlite(file)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_reads_beside_a_writer_and_never_writes_there() {
    let (_folder, file) = sqlite();
    let database = Database::Sqlite(file.clone());
    execute(&database, &TABLE, []).await.unwrap();
    let write = Script::statement(&ADD, [Value::Int(1), "a".into()], |_| Ok(()));
    assert_eq!(database.read(write).await.unwrap_err().class, Class::Broken);
    file.close().await;
    let error = execute(&database, &COUNT, []).await.unwrap_err();
    assert_eq!(error.class, Class::Unavailable);
    assert!(error.to_string().contains("closed"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_waits_for_a_foreign_program_as_long_as_it_may() {
    let (folder, file) = sqlite();
    let database = Database::Sqlite(file);
    execute(&database, &TABLE, []).await.unwrap();
    let foreign = rusqlite::Connection::open(folder.join("test.db")).unwrap();
    foreign.execute_batch("BEGIN IMMEDIATE; INSERT INTO item (id) VALUES (1)").unwrap();
    let error = execute(&database, &ADD, [Value::Int(2), "a".into()]).await.unwrap_err();
    assert_eq!(error.class, Class::Locked, "{error}");
    assert_eq!(count(&database).await, 0, "readers go on, and see what is committed");
    foreign.execute_batch("COMMIT").unwrap();
    execute(&database, &ADD, [Value::Int(2), "a".into()]).await.unwrap();
    assert_eq!(count(&database).await, 2);
}
