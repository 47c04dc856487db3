//! Connections that are lent.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use database::postgres::{PoolStatus, Postgres, Settings, SettingsError};
use database::{Class, Database, Script, Sql};
use testing::postgres::{Mode, Options, TcpProxy};
use tokio::task::AbortHandle;

use crate::{COUNT, PROCESS, SLEEP, TABLE, brief, class, insert, number, postgres, rows, settings, within};

fn count() -> Script<i64> {
    Script::statement(&COUNT, [], |answer| answer.rows[0].int(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_less_than_three_is_refused() {
    let small = Settings { pool_size: 2, ..settings("postgres://nobody@127.0.0.1:1/none") };
    let error = Postgres::new(small).unwrap_err();
    assert_eq!(error, SettingsError::PoolTooSmall(2));
    assert!(error.to_string().contains("pool_size"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_finds_no_connection_free_waits_for_a_bounded_time() {
    let (database, _) = crate::with_table().await;
    let wait = Duration::from_millis(300);
    let pool = Postgres::new(Settings { pool_wait: wait, ..settings(database.dsn()) }).unwrap();
    let database_pool = Database::Postgres(pool);
    let holders: Vec<_> = (0..3)
        .map(|_| {
            let pool = database_pool.clone();
            tokio::spawn(async move { pool.run_once(Script::statement(&SLEEP, [], |_| Ok(()))).await })
        })
        .collect();
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND state = 'active' AND pid <> pg_backend_pid() AND datname = current_database()";
    within(async {
        while number(&database.sql(sleeping)) < 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let Database::Postgres(status) = &database_pool else { unreachable!() };
    let all = PoolStatus { size_max: 3, open: 3, in_use: 3, waiting: 0 };
    assert_eq!(status.pool_status(), all);
    let begun = Instant::now();
    let error = database_pool.run_once(count()).await.unwrap_err();
    assert_eq!(error.class, Class::Exhausted, "{error}");
    assert!(error.message.contains("pool_size"), "{error}");
    assert!(begun.elapsed() >= wait && begun.elapsed() < 20 * wait, "{:?}", begun.elapsed());
    // The calls of those who give up go on, and keep their connections until they end.
    holders.iter().for_each(tokio::task::JoinHandle::abort);
    assert_eq!(class(database_pool.run_once(count()).await), Class::Exhausted);
    assert!(database.terminate_all() >= 3);
    within(async { while database_pool.run_once(count()).await != Ok(0) {} }).await;
}

/// A client that hangs up costs no connection, and what it asked for happens.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_nobody_waits_for_goes_on_to_its_end() {
    let (database, _) = crate::with_table().await;
    let pool = Database::Postgres(postgres(database.dsn()));
    let process = || Script::statement(&PROCESS, [], |answer| answer.rows[0].int(0));
    let before = pool.run_once(process()).await.unwrap();
    // The caller gives up between the last statement and the commit.
    let caller = Arc::new(OnceLock::<AbortHandle>::new());
    let (is_known, known) = std::sync::mpsc::sync_channel(1);
    let script = {
        let caller = Arc::clone(&caller);
        insert(1, move || {
            known.recv().unwrap();
            caller.get().unwrap().abort();
        })
    };
    let call = tokio::spawn({
        let pool = pool.clone();
        async move { pool.run_once(script).await }
    });
    caller.set(call.abort_handle()).unwrap();
    is_known.send(()).unwrap();
    assert!(call.await.unwrap_err().is_cancelled());
    within(async { while rows(&database) == 0 {} }).await;
    within(async { while pool.run_once(process()).await != Ok(before) {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_share_few_connections_and_nothing_is_lost_when_all_are_terminated() {
    let (database, _) = crate::with_table().await;
    let pool = Database::Postgres(postgres(database.dsn()));
    let work: Vec<_> = (0..64)
        .map(|id| {
            let pool = pool.clone();
            tokio::spawn(async move { pool.run(|| insert(id, || ())).await })
        })
        .collect();
    for work in work {
        within(work).await.unwrap().unwrap();
    }
    assert_eq!(rows(&database), 64);
    assert!(database.terminate_all() >= 1);
    assert_eq!(within(pool.run(count)).await, Ok(64));
}

/// C18: the server is set to read-only under a pool that is connected to it; the pool does not get stuck there.
#[tokio::test(flavor = "multi_thread")]
async fn connections_to_a_server_that_only_reads_are_given_up() {
    let server = Options::new().start();
    let text = server.dsn();
    testing::postgres::query(&text, TABLE.postgres).unwrap();
    let pool = Database::Postgres(postgres(&text));
    let process = || Script::statement(&PROCESS, [], |answer| answer.rows[0].int(0));
    let before = pool.run_once(process()).await.unwrap();
    pool.run_once(insert(1, || ())).await.unwrap();

    let set = |value: &str| {
        server.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}"));
        server.sql("SELECT pg_reload_conf()");
    };
    set("on");
    within(async {
        loop {
            match pool.run_once(insert(2, || ())).await {
                // Sessions learn of the setting one after the other.
                Ok(()) => {}
                Err(error) if error.class == Class::ReadOnly => break,
                Err(error) => assert_eq!(error.class, Class::Refused, "{error}"),
            }
        }
    })
    .await;
    assert_eq!(class(pool.run_once(insert(4, || ())).await), Class::ReadOnly, "and no fresh connection is made to it");
    set("off");
    within(async { while pool.run(|| insert(5, || ())).await.is_err() {} }).await;
    assert_ne!(pool.run_once(process()).await.unwrap(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_is_found_again() {
    let (database, _) = crate::with_table().await;
    let proxy = TcpProxy::new(database.address());
    let pool = Database::Postgres(postgres(database.dsn_at(proxy.address())));
    pool.run_once(insert(1, || ())).await.unwrap();
    proxy.refuse();
    proxy.cut();
    let begun = Instant::now();
    assert_eq!(class(pool.run(|| insert(2, || ())).await), Class::Unavailable);
    assert!(begun.elapsed() < Duration::from_secs(30), "an outage is told, not waited for: {:?}", begun.elapsed());
    proxy.accept();
    within(pool.run(|| insert(2, || ()))).await.unwrap();
    // Half open: each connection ends with the one call that finds it so.
    proxy.set_both(Mode::Swallow);
    let result = within(pool.run_with(brief(), insert(3, || ()))).await;
    assert!(matches!(class(result), Class::TimedOut | Class::Unavailable));
    proxy.set_both(Mode::Pass);
    proxy.cut();
    within(async { while pool.run(|| insert(3, || ())).await.is_err() {} }).await;
    assert_eq!(rows(&database), 3);
}

/// After a migration each connection may have plans that are stale; one call that meets them does away with all.
#[tokio::test(flavor = "multi_thread")]
async fn plans_that_a_migration_has_made_stale_are_met_once() {
    static ALL: Sql = Sql::same("test.star", "SELECT *, pg_sleep(0.2) FROM item");
    let (database, _) = crate::with_table().await;
    let pool = Database::Postgres(postgres(database.dsn()));
    pool.run_once(insert(1, || ())).await.unwrap();
    let all = || Script::statement(&ALL, [], |answer| Ok(answer.affected));
    let (one, two, three) = tokio::join!(pool.run_once(all()), pool.run_once(all()), pool.run_once(all()));
    assert_eq!([one, two, three], [Ok(1), Ok(1), Ok(1)]);
    database.sql("ALTER TABLE item ADD COLUMN extra bigint");
    assert_eq!(class(pool.run_once(all()).await), Class::Conflict);
    for _ in 0..3 {
        assert_eq!(pool.run_once(all()).await, Ok(1));
    }
}
