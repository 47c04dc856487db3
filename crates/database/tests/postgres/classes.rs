//! What each error means, provoked on the server.

use std::sync::Arc;
use std::time::Duration;

use database::postgres::Connector;
use database::{Class, Limits, Script, Sql, Value, Verdict};
use tokio::sync::Barrier;

use crate::{
    INSERT, OUTER_LIMIT, SLEEP, TABLE, alone, brief, class, connector, dsn, insert, limits, process, rows, statement,
    timeouts, within,
};

static FAIL_WITH: Sql = Sql::same("test.fail_with", "SELECT fail_with($1)");
static NUMBER: Sql = Sql::same("test.number", "SELECT $1::bigint");
static TEXT: Sql = Sql::same("test.text", "SELECT $1::text");
static NOTHING: Sql = Sql::same("test.nothing", "SELECT nothing FROM item");
static OTHER_NUMBER: Sql = Sql::same("test.number", "SELECT $1::bigint + 1");
static LOCK: Sql = Sql::same("test.lock", "SELECT id FROM item WHERE id = $1 FOR UPDATE");

/// C19, and what the retry rule needs.
#[tokio::test(flavor = "multi_thread")]
async fn each_state_has_its_class_and_leaves_the_connection_as_it_should() {
    let database = testing::postgres::Database::new();
    database.sql(
        "CREATE FUNCTION fail_with(state text) RETURNS bigint LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'as asked' USING ERRCODE = state; END $$",
    );
    let mut connection = connector(database.dsn()).connect().await.unwrap();
    for (state, expected, is_kept) in [
        ("40001", Class::Conflict, true),
        ("40P01", Class::Conflict, true),
        ("40003", Class::Unknown, false),
        ("55P03", Class::Locked, true),
        ("57014", Class::TimedOut, true),
        ("57P01", Class::Unavailable, false),
        ("57P02", Class::Unavailable, false),
        ("57P03", Class::Unavailable, false),
        ("08006", Class::Unavailable, false),
        ("25006", Class::ReadOnly, false),
        ("22021", Class::Refused, true),
        ("23505", Class::Refused, true),
        ("53100", Class::Exhausted, true),
        ("42703", Class::Broken, true),
        ("XX000", Class::Broken, true),
    ] {
        let script = Script::transaction(|mut tx| async move {
            tx.query(&FAIL_WITH, [state.into()]).await?;
            Ok(Verdict::Commit(()))
        });
        let error = connection.run_once(script).await.unwrap_err();
        assert_eq!((error.class, error.code.as_deref()), (expected, Some(state)), "{error}");
        assert_eq!(connection.is_usable(), is_kept, "{state}");
        if !is_kept {
            connection = connector(database.dsn()).connect().await.unwrap();
        }
        assert_eq!(alone(&mut connection, &NUMBER, [Value::Int(1)]).await, Ok(1), "after {state}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_data_names_its_constraint_and_repeats_no_value() {
    let (database, mut connection) = crate::with_table().await;
    connection.run_once(insert(1, || ())).await.unwrap();
    let error = connection.run_once(insert(1, || ())).await.unwrap_err();
    assert_eq!((error.class, error.constraint.as_deref()), (Class::Refused, Some("once")));
    for (sql, value) in [(&NUMBER, "canary"), (&NUMBER, "99999999999999999999"), (&TEXT, "can\0ary")] {
        let error = alone(&mut connection, sql, [value.into()]).await.unwrap_err();
        assert_eq!(error.class, Class::Refused, "{error}");
        assert!(!format!("{error:?}").contains("ary") && !format!("{error:?}").contains("999"), "{error:?}");
    }
    assert_eq!(class(alone(&mut connection, &NOTHING, []).await), Class::Broken);
    assert_eq!(class(alone(&mut connection, &NUMBER, []).await), Class::Broken, "too few parameters");
    assert_eq!(class(alone(&mut connection, &OTHER_NUMBER, [Value::Int(1)]).await), Class::Broken, "one id, two texts");
    assert!(connection.is_usable());
    assert_eq!(rows(&database), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_time_end_statements_waits_and_silence_and_hold_for_one_transaction_only() {
    let (database, mut one) = crate::with_table().await;
    let mut other = connector(database.dsn()).connect().await.unwrap();
    one.run_once(insert(1, || ())).await.unwrap();

    assert_eq!(class(one.run_with(brief(), statement(&SLEEP, [])).await), Class::TimedOut);
    assert!(one.is_usable(), "the server said so before the client gave up");

    let lock = Script::transaction(move |mut tx| async move {
        tx.query(&LOCK, [1_i64.into()]).await?;
        let waiting = tokio::runtime::Handle::current()
            .spawn(async move { (alone(&mut other, &LOCK, [1_i64.into()]).await, other) });
        // The other one fails while we hold the lock: it is waited for in this very transaction.
        let ended = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(waiting)).unwrap();
        Ok(Verdict::Commit(ended))
    });
    let (waited, mut other) = one.run_once(lock).await.unwrap();
    assert_eq!(class(waited), Class::Locked);
    assert!(other.is_usable());

    let silent = Limits { idle: Duration::from_millis(50), ..limits() };
    let script = Script::transaction(|mut tx| async move {
        tx.query(&LOCK, [1_i64.into()]).await?;
        std::thread::sleep(Duration::from_millis(500));
        tx.query(&LOCK, [1_i64.into()]).await?;
        Ok(Verdict::Commit(()))
    });
    let error = one.run_with(silent, script).await.unwrap_err();
    assert!(matches!(error.class, Class::TimedOut | Class::Unavailable), "{error}");
    assert!(!one.is_usable());

    static LIMIT: Sql = Sql::same("test.limit", "SELECT current_setting('statement_timeout')");
    let limit: fn() -> Script<String> = || {
        Script::transaction(|mut tx| async move {
            let rows = tx.query(&LIMIT, []).await?;
            Ok(Verdict::Commit(rows[0].text(0)?.to_owned()))
        })
    };
    let longer = Limits { statement: Duration::from_millis(1234), ..limits() };
    let alone: fn() -> Script<String> =
        || Script::statement(&LIMIT, [], |answer| Ok(answer.rows[0].text(0)?.to_owned()));
    for script in [limit, alone, alone, limit] {
        assert_eq!(other.run_with(longer, script()).await.unwrap(), "1234ms");
    }
    for script in [limit, alone] {
        assert_eq!(other.run_once(script()).await.unwrap(), "1min");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_that_wait_for_each_other_one_has_a_conflict_and_may_repeat() {
    let (database, mut one) = crate::with_table().await;
    one.run_once(insert(1, || ())).await.unwrap();
    one.run_once(insert(2, || ())).await.unwrap();
    // The server looks for a circle after a second.
    let patient = Limits { lock: OUTER_LIMIT, ..limits() };
    let both_have_one = Arc::new(Barrier::new(2));
    let connector = connector(database.dsn());
    let cross = |first: i64, second: i64| {
        let (connector, both) = (connector.clone(), Arc::clone(&both_have_one));
        tokio::spawn(async move {
            let mut connection = connector.connect().await.unwrap();
            let script = Script::transaction(move |mut tx| async move {
                tx.query(&LOCK, [first.into()]).await?;
                tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(both.wait()));
                tx.query(&LOCK, [second.into()]).await?;
                Ok(Verdict::Commit(()))
            });
            connection.run_with(patient, script).await
        })
    };
    let (first, second) = within(async { tokio::join!(cross(1, 2), cross(2, 1)) }).await;
    let results = [first.unwrap(), second.unwrap()];
    let conflicts: Vec<_> =
        results.into_iter().filter_map(Result::err).map(|error| (error.class, error.code)).collect();
    assert_eq!(conflicts, [(Class::Conflict, Some("40P01".to_owned()))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_goes_on_after_an_error_keeps_nothing_and_a_roll_back_keeps_its_result() {
    let (database, mut connection) = crate::with_table().await;
    let deaf = |verdict: fn(u64) -> Verdict<u64>| {
        Script::transaction(move |mut tx| async move {
            tx.execute(&INSERT, [1_i64.into(), Value::Null]).await?;
            let failed = tx.execute(&INSERT, [1_i64.into(), Value::Null]).await;
            let again = tx.execute(&INSERT, [2_i64.into(), Value::Null]).await;
            assert_eq!((class(failed), class(again)), (Class::Refused, Class::Refused));
            Ok(verdict(7))
        })
    };
    assert_eq!(class(connection.run_once(deaf(Verdict::Commit)).await), Class::Refused);
    assert_eq!(connection.run_once(deaf(Verdict::RollBack)).await, Ok(7));
    assert!(connection.is_usable());
    assert_eq!(rows(&database), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_cannot_write_and_sees_one_state() {
    let (database, mut connection) = crate::with_table().await;
    let text = database.dsn();
    static ROWS: Sql = Sql::same("test.rows", "SELECT count(*) FROM item");
    let script = Script::transaction(move |mut tx| async move {
        let before = tx.query(&ROWS, []).await?[0].int(0)?;
        testing::postgres::query(&text, "INSERT INTO item VALUES (5, 'five')").unwrap();
        let after = tx.query(&ROWS, []).await?[0].int(0)?;
        Ok(Verdict::Commit((before, after)))
    });
    assert_eq!(connection.read(script).await, Ok((0, 0)));
    assert_eq!(rows(&database), 1);
    let script = Script::transaction(|mut tx| async move {
        tx.execute(&INSERT, [6_i64.into(), Value::Null]).await?;
        Ok(Verdict::Commit(()))
    });
    assert_eq!(class(connection.read(script).await), Class::ReadOnly);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_was_planned_before_a_migration_may_be_repeated() {
    let (database, mut connection) = crate::with_table().await;
    static ALL: Sql = Sql::same("test.star", "SELECT * FROM item");
    alone(&mut connection, &ALL, []).await.unwrap();
    database.sql("ALTER TABLE item ADD COLUMN extra bigint");
    assert_eq!(class(alone(&mut connection, &ALL, []).await), Class::Conflict);
    assert!(!connection.is_usable(), "the plan would be stale for ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_connect_learns_why() {
    let database = testing::postgres::Database::new();
    let refused = async |text: String| connector(text).connect().await.unwrap_err();
    let (good, name) = (database.dsn(), database.name());

    let error = refused(good.replace(name, "no_such_database")).await;
    assert_eq!((error.class, error.code.as_deref()), (Class::Broken, Some("3D000")), "{error}");
    let error = refused(good.replace("tenure@", "nobody_known@")).await;
    assert_eq!(error.class, Class::Broken, "{error}");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = refused(database.dsn_at(free)).await;
    assert_eq!(error.class, Class::Unavailable, "{error}");
    assert!(error.message.contains(&free.to_string()), "{error}");
    let error = refused(format!("{good}?sslmode=require")).await;
    assert_eq!(error.class, Class::Unavailable, "{error}");
    assert!(error.message.contains("TLS"), "{error}");
    database.sql(&format!("ALTER DATABASE {name} CONNECTION LIMIT 0"));
    let error = refused(good).await;
    assert_eq!((error.class, error.code.as_deref()), (Class::Exhausted, Some("53300")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_accepts_and_says_nothing_does_not_keep_us_from_the_next() {
    let database = testing::postgres::Database::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let good = database.address();
    let hosts = database.dsn().replace(&good.to_string(), &format!("{},{good}", silent.local_addr().unwrap()));
    let short = database::postgres::Timeouts { connect: Duration::from_millis(300), ..timeouts() };
    let connector = Connector::new(dsn(hosts), short).unwrap();
    let mut connection = within(connector.connect()).await.unwrap();
    alone(&mut connection, &TABLE, []).await.unwrap();
    assert!(process(&mut connection).await > 0);
}
