//! Whether a transaction happened when its connection, its server or its caller goes away.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use database::postgres::{Postgres, Settings};
use database::{Class, Database, Script, Sql, Value, Verdict};
use testing::postgres::{Direction, Mode, Options, Server, TcpProxy};

use crate::{
    COUNT, GRACE, INSERT, SLEEP, STATEMENT_LIMIT, TABLE, alone, brief, class, connector, insert, number, process, rows,
    settings, within,
};

/// A table, a proxy in front of its server, and a connection through it.
async fn through_proxy() -> (testing::postgres::Database, Arc<TcpProxy>, database::postgres::Connection) {
    let (database, _) = crate::with_table().await;
    let proxy = Arc::new(TcpProxy::new(database.address()));
    let connection = connector(database.dsn_at(proxy.address())).connect().await.unwrap();
    (database, proxy, connection)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_unknown_and_has_happened() {
    let (database, proxy, mut connection) = through_proxy().await;
    let cutting = Arc::clone(&proxy);
    let script = insert(1, move || cutting.set(Direction::ToClient, Mode::Close));
    assert_eq!(class(connection.run_once(script).await), Class::Unknown);
    assert!(!connection.is_usable());
    assert_eq!(class(alone(&mut connection, &COUNT, []).await), Class::Unavailable, "it stays closed");
    assert_eq!(rows(&database), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_alone_whose_answer_is_lost_is_unknown_once_it_was_sent() {
    let (database, proxy, mut connection) = through_proxy().await;
    proxy.set(Direction::ToClient, Mode::Close);
    let result = alone(&mut connection, &INSERT, [1_i64.into(), Value::Null]).await;
    assert_eq!(class(result), Class::Unavailable, "lost while it was prepared");
    assert_eq!(rows(&database), 0);

    proxy.set(Direction::ToClient, Mode::Pass);
    let mut connection = connector(database.dsn_at(proxy.address())).connect().await.unwrap();
    alone(&mut connection, &INSERT, [1_i64.into(), Value::Null]).await.unwrap();
    proxy.set(Direction::ToClient, Mode::Close);
    let result = alone(&mut connection, &INSERT, [2_i64.into(), Value::Null]).await;
    assert_eq!(class(result), Class::Unknown);
    // The server may still be at it.
    within(async {
        while rows(&database) < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_before_the_commit_has_not_happened() {
    let (database, proxy, mut connection) = through_proxy().await;
    let cutting = Arc::clone(&proxy);
    let script = Script::transaction(move |mut tx| async move {
        tx.execute(&INSERT, [1_i64.into(), Value::Null]).await?;
        cutting.cut();
        tx.execute(&INSERT, [2_i64.into(), Value::Null]).await?;
        Ok(Verdict::Commit(()))
    });
    assert_eq!(class(connection.run_once(script).await), Class::Unavailable);
    assert_eq!(rows(&database), 0);
}

/// A half-open connection, at each step: ended within the limit, with the class that the step has.
#[tokio::test(flavor = "multi_thread")]
async fn silence_ends_within_the_limit_and_is_unknown_only_at_a_commit() {
    for (at_commit, expected) in [(false, Class::TimedOut), (true, Class::Unknown)] {
        let (database, proxy, mut connection) = through_proxy().await;
        let script = Script::transaction(move |mut tx| async move {
            tx.execute(&INSERT, [1_i64.into(), Value::Null]).await?;
            proxy.set_both(Mode::Swallow);
            if !at_commit {
                tx.execute(&INSERT, [2_i64.into(), Value::Null]).await?;
            }
            Ok(Verdict::Commit(proxy))
        });
        let begun = Instant::now();
        assert_eq!(class(connection.run_with(brief(), script).await), expected);
        let taken = begun.elapsed();
        let limit = STATEMENT_LIMIT + GRACE;
        assert!(taken >= limit && taken < 10 * limit, "{taken:?}");
        assert!(!connection.is_usable());
        assert_eq!(rows(&database), 0);
    }
    let (database, proxy, _) = through_proxy().await;
    let brief = connector(database.dsn_at(proxy.address())).with_limits(brief());
    let mut connection = brief.connect().await.unwrap();
    alone(&mut connection, &INSERT, [1_i64.into(), Value::Null]).await.unwrap();
    proxy.set_both(Mode::Swallow);
    let unanswered = alone(&mut connection, &INSERT, [2_i64.into(), Value::Null]).await;
    assert_eq!(class(unanswered), Class::Unknown);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_terminated_has_not_committed() {
    let (database, mut connection) = crate::with_table().await;
    let process = process(&mut connection).await;
    let script = Script::transaction(move |mut tx| async move {
        tx.execute(&INSERT, [1_i64.into(), Value::Null]).await?;
        assert!(testing::postgres::shared().terminate(i32::try_from(process).unwrap()));
        tx.execute(&INSERT, [2_i64.into(), Value::Null]).await?;
        Ok(Verdict::Commit(()))
    });
    let error = connection.run_once(script).await.unwrap_err();
    assert_eq!(error.class, Class::Unavailable, "{error}");
    assert!(!connection.is_usable());
    assert_eq!(rows(&database), 0);
}

/// The wait for a stand-by is given up: by the client, by somebody who cancels it, or with the session. The row is there,
/// and may be lost with this server all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_no_stand_by_has_confirmed_is_unknown() {
    let server =
        Options::new().setting("synchronous_standby_names", "nobody").setting("synchronous_commit", "local").start();
    let text = format!("{}?options=-c%20synchronous_commit%3Don", server.dsn());
    testing::postgres::query(&server.dsn(), TABLE.postgres).unwrap();
    let there = || number(&testing::postgres::query(&server.dsn(), COUNT.postgres).unwrap());

    // No limit of the server ends this wait.
    let mut connection = connector(&text).connect().await.unwrap();
    let error = connection.run_with(brief(), insert(0, || ())).await.unwrap_err();
    assert_eq!(error.class, Class::Unknown, "{error}");

    let alone = |id: i64| Script::statement(&INSERT, [id.into(), Value::Null], |_| Ok(()));
    for (end, script, is_there) in [
        ("pg_cancel_backend", insert(1, || ()), 1),
        ("pg_cancel_backend", alone(2), 2),
        ("pg_terminate_backend", insert(3, || ()), 3),
        ("pg_terminate_backend", alone(4), 4),
    ] {
        let mut connection = connector(&text).connect().await.unwrap();
        let process = process(&mut connection).await;
        let waiting = tokio::spawn(async move { connection.run_once(script).await });
        within(async {
            while !is_waiting_for_stand_by(&server, process) {
                tokio::task::yield_now().await;
            }
        })
        .await;
        server.sql(&format!("SELECT {end}({process})"));
        let error = within(waiting).await.unwrap().unwrap_err();
        assert_eq!(error.class, Class::Unknown, "{end}: {error}");
        assert_eq!(there(), is_there, "{end}");
    }
}

fn is_waiting_for_stand_by(server: &Server, process: i64) -> bool {
    let text = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process} AND wait_event = 'SyncRep'");
    number(&server.sql(&text)) == 1
}

/// Whoever does not wait any longer leaves no transaction behind that holds locks.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_on_a_dedicated_connection_that_is_given_up_ends_its_transaction() {
    let (database, _) = crate::with_table().await;
    let mut held = connector(database.dsn()).connect().await.unwrap();
    let script = Script::transaction(|mut tx| async move {
        tx.execute(&INSERT, [1_i64.into(), Value::Null]).await?;
        tx.query(&SLEEP, []).await?;
        Ok(Verdict::Commit(()))
    });
    let caller = tokio::spawn(async move { held.run_once(script).await });
    let sleeping = "FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND state = 'active' \
                    AND pid <> pg_backend_pid() AND datname = current_database()";
    within(async { while number(&database.sql(&format!("SELECT count(*) {sleeping}"))) == 0 {} }).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    // The server looks whether its client is there when it is done with the statement, or when it is told to be.
    assert_eq!(number(&database.sql(&format!("SELECT count(pg_cancel_backend(pid)) {sleeping}"))), 1);
    let mut connection = connector(database.dsn()).connect().await.unwrap();
    within(async {
        while let Err(error) = connection.run_once(insert(1, || ())).await {
            assert_eq!(error.class, Class::Locked, "{error}");
        }
    })
    .await;
    assert_eq!(rows(&database), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_the_middle_is_repeated_and_done_once() {
    let server = Arc::new(Mutex::new(Server::new()));
    let text = server.lock().unwrap().dsn();
    testing::postgres::query(&text, TABLE.postgres).unwrap();
    let pool = Database::Postgres(Postgres::new(settings(&text)).unwrap());
    static TICKET: Sql = Sql::same("test.ticket", "INSERT INTO item SELECT count(*) FROM item");
    let restarts_left = Arc::new(Mutex::new(3));
    for _ in 0..3 {
        let make = || {
            let (server, left) = (Arc::clone(&server), Arc::clone(&restarts_left));
            Script::transaction(move |mut tx| async move {
                tx.execute(&TICKET, []).await?;
                let restarts = {
                    let mut left = left.lock().unwrap();
                    let restarts = *left > 0;
                    *left -= i32::from(restarts);
                    restarts
                };
                if restarts {
                    tokio::task::block_in_place(|| server.lock().unwrap().restart_immediate());
                }
                tx.query(&COUNT, []).await?;
                Ok(Verdict::Commit(()))
            })
        };
        // On a busy machine the server may be away for longer than one call repeats.
        within(async {
            while let Err(error) = pool.run(&make).await {
                assert_eq!(error.class, Class::Unavailable, "{error}");
            }
        })
        .await;
    }
    assert_eq!(pool.read(Script::statement(&COUNT, [], |answer| answer.rows[0].int(0))).await, Ok(3));
}

/// Many transactions while connections are cut, swallowed and terminated at random: who is told that it happened finds
/// it, and who is told that it did not, does not.
#[tokio::test(flavor = "multi_thread")]
async fn no_answer_lies_while_connections_break() {
    const TASKS: i64 = 8;
    const EACH: i64 = 150;
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    println!("seed {seed}");
    let (database, _) = crate::with_table().await;
    let proxy = Arc::new(TcpProxy::new(database.address()));
    let through = Settings { pool_size: 8, ..settings(database.dsn_at(proxy.address())) };
    let pool = Database::Postgres(Postgres::new(through).unwrap());
    let work: Vec<_> = (0..TASKS)
        .map(|task| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let mut results = Vec::new();
                for number in 0..EACH {
                    let id = task * EACH + number;
                    // Both ways to commit.
                    let result = if number % 2 == 0 {
                        pool.run_once(insert(id, || ())).await
                    } else {
                        pool.run_once(Script::statement(&INSERT, [id.into(), Value::Null], |_| Ok(()))).await
                    };
                    results.push((id, result.map_err(|error| error.class)));
                }
                results
            })
        })
        .collect();
    let mut random = seed | 1;
    let mut draw = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    while !work.iter().all(tokio::task::JoinHandle::is_finished) {
        match draw(4) {
            0 => proxy.cut(),
            1 => drop(database.terminate_all()),
            2 => proxy.set(Direction::ToClient, Mode::Close),
            _ => proxy.set_both(Mode::Swallow),
        }
        tokio::time::sleep(Duration::from_micros(draw(3000))).await;
        proxy.set_both(Mode::Pass);
        proxy.cut();
        tokio::time::sleep(Duration::from_millis(draw(100))).await;
    }
    let mut counts = std::collections::BTreeMap::new();
    let mut results = Vec::new();
    for work in work {
        results.extend(work.await.unwrap());
    }
    // What is still under way on the server ends first.
    database.terminate_all();
    database.sql("BEGIN; LOCK TABLE item IN ACCESS EXCLUSIVE MODE; COMMIT");
    let there: std::collections::BTreeSet<i64> =
        database.sql("SELECT id FROM item").iter().map(|row| row[0].as_deref().unwrap().parse().unwrap()).collect();
    for (id, result) in results {
        *counts.entry(format!("{result:?}")).or_insert(0) += 1;
        match result {
            Ok(()) => assert!(there.contains(&id), "seed {seed}: {id} was lost"),
            Err(Class::Unknown) => {}
            Err(class) => assert!(!there.contains(&id), "seed {seed}: {id} is there in spite of {class:?}"),
        }
    }
    println!("{counts:?}");
    assert!(counts.len() >= 2, "nothing was broken: {counts:?}");
}
