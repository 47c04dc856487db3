//! A connection pooler between us and the server.

use std::time::Duration;

use database::postgres::{Postgres, Settings};
use database::{Class, Database, Limits, Script, Sql, Value, Verdict};
use testing::postgres::{PgBouncer, Pooling};

use crate::{COUNT, alone, connector, dsn, insert, rows, settings, within};

/// C17: seen, and refused for what needs a session.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_is_seen_and_refused_where_a_session_is_needed() {
    let database = testing::postgres::Database::new();
    for pooling in [Pooling::Transaction, Pooling::Session] {
        let pooler = PgBouncer::new(database.address(), pooling);
        let through = connector(database.dsn_at(pooler.address()));
        assert!(through.connect().await.unwrap().is_behind_pooler(), "{pooling:?}");
        let error = through.connect_direct().await.unwrap_err();
        assert_eq!(error.class, Class::Broken);
        for word in ["direct_url", "pooler = \"session\""] {
            assert!(error.message.contains(word), "{error}");
        }
    }
    for direct in [database.dsn(), format!("{}?sslmode=disable", database.dsn())] {
        let direct = connector(direct).connect_direct().await.unwrap();
        assert!(!direct.is_behind_pooler());
    }
    let pooler = PgBouncer::new(database.address(), Pooling::Session);
    let allowed = connector(database.dsn_at(pooler.address())).with_pooler_in_session_mode(true);
    let mut connection = allowed.connect_direct().await.unwrap();
    assert!(connection.is_behind_pooler());
    static ONE: Sql = Sql::same("test.one", "SELECT $1::bigint");
    for _ in 0..3 {
        alone(&mut connection, &ONE, [Value::Int(1)]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pool_works_through_a_pooler_in_transaction_mode_and_leaves_nothing_set() {
    let (database, _) = crate::with_table().await;
    let pooler = PgBouncer::new(database.address(), Pooling::Transaction);
    let through =
        Settings { direct: Some(dsn(database.dsn())), pool_size: 32, ..settings(database.dsn_at(pooler.address())) };
    let pool = Database::Postgres(Postgres::new(through).unwrap());
    assert!(pool.notices().wait_listening(Duration::from_secs(30)).await, "past the pooler");

    static ALL: Sql =
        Sql::same("test.all", "SELECT id, name FROM item WHERE id = ANY ($1) AND name = $2 AND $3::uuid IS NULL");
    let work: Vec<_> = (0..64_i64)
        .map(|id| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let make = move || {
                    Script::transaction(move |mut tx| async move {
                        tx.execute(&crate::INSERT, [id.into(), "näme".into()]).await?;
                        let rows = tx.query(&ALL, [Value::Ints(vec![id, -1]), "näme".into(), Value::Null]).await?;
                        Ok(Verdict::Commit((rows[0].int(0)?, rows[0].text(1)?.to_owned())))
                    })
                };
                assert_eq!(pool.run(make).await, Ok((id, "näme".to_owned())));
                let count = pool.read(Script::statement(&COUNT, [], |answer| answer.rows[0].int(0)));
                assert!(count.await.unwrap() > 0);
            })
        })
        .collect();
    for work in work {
        within(work).await.unwrap();
    }
    assert_eq!(rows(&database), 64);

    static LIMIT: Sql = Sql::same("test.limit", "SELECT current_setting('statement_timeout')");
    let limit = || Script::statement(&LIMIT, [], |answer| Ok(answer.rows[0].text(0)?.to_owned()));
    let longer = Limits { statement: Duration::from_millis(1234), ..Limits::default() };
    assert_eq!(pool.run_with(longer, limit()).await.unwrap(), "1234ms");
    assert_eq!(pool.run_once(limit()).await.unwrap(), "1min");
    let other_client = testing::postgres::query(&database.dsn_at(pooler.address()), LIMIT.postgres).unwrap();
    assert_eq!(other_client[0][0].as_deref(), Some("0"), "nothing stays with the server's connection");

    let error = pool.run_once(insert(1, || ())).await.unwrap_err();
    assert_eq!((error.class, error.constraint.as_deref()), (Class::Refused, Some("once")));
}

#[tokio::test(flavor = "multi_thread")]
async fn notices_are_not_listened_for_through_a_pooler() {
    let database = testing::postgres::Database::new();
    let pooler = PgBouncer::new(database.address(), Pooling::Transaction);
    let pool = Database::Postgres(Postgres::new(settings(database.dsn_at(pooler.address()))).unwrap());
    assert!(!pool.notices().wait_listening(Duration::from_millis(500)).await);
    let mut events = pool.notices().subscribe();
    pool.notices().send("slot", "7");
    assert!(within(events.next()).await.is_some(), "this process hears its own all the same");
}
