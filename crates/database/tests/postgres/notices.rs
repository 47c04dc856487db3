//! Notices between processes, each of which is a pool of its own here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use database::postgres::{Postgres, Settings, Timeouts};
use database::{Database, Event, Notice, Subscription};
use testing::postgres::{Direction, Mode, TcpProxy};

use crate::{OUTER_LIMIT, dsn, settings, timeouts, within};

/// Long enough that no nonce comes in between.
const NEVER: Duration = Duration::from_secs(3600);

async fn member(settings: Settings) -> (Database, Subscription) {
    let member = Database::Postgres(Postgres::new(settings).unwrap());
    let mut events = member.notices().subscribe();
    assert_eq!(within(events.next()).await, Some(Event::Reconnected));
    assert!(member.notices().wait_listening(OUTER_LIMIT).await && member.notices().is_listening());
    (member, events)
}

fn quiet(text: impl AsRef<str>) -> Settings {
    Settings { beat: NEVER, ..settings(text) }
}

fn notice(channel: &'static str, payload: &str) -> Event {
    Event::Notice(Notice { channel, payload: payload.to_owned() })
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_hears_a_notice_and_its_sender_hears_it_once() {
    let database = testing::postgres::Database::new();
    let (one, mut of_one) = member(quiet(database.dsn())).await;
    let (_other, mut of_other) = member(quiet(database.dsn())).await;
    one.notices().send("q", "a b 'c' \\ ü");
    one.notices().send("gone", "");
    assert!(one.notices().flush(OUTER_LIMIT).await);
    let expected = [notice("gone", ""), notice("q", "a b 'c' \\ ü")];
    let mut heard = [within(of_other.next()).await.unwrap(), within(of_other.next()).await.unwrap()];
    heard.sort_by_key(|event| format!("{event:?}"));
    assert_eq!(heard, expected);
    // What comes back to the sender comes before its own nonce.
    assert_eq!(one.notices().probe(OUTER_LIMIT).await, Ok(true));
    for expected in [&expected[1], &expected[0]] {
        assert_eq!(within(of_one.next()).await.as_ref(), Some(expected));
    }
    assert!(tokio::time::timeout(Duration::ZERO, of_one.next()).await.is_err());
}

/// Equal notices become few, and what was sent last is heard after everything that came before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_equal_notices_becomes_few_and_ends_with_one() {
    let database = testing::postgres::Database::new();
    let (one, _) = member(quiet(database.dsn())).await;
    let (other, mut of_other) = member(quiet(database.dsn())).await;
    let version = Arc::new(AtomicU64::new(0));
    let (seen, seeing) = tokio::sync::watch::channel(0);
    let reader = {
        let version = Arc::clone(&version);
        tokio::spawn(async move {
            while let Some(event) = of_other.next().await {
                assert_eq!(event, notice("slot", "7"));
                seen.send_replace(version.load(Ordering::SeqCst));
            }
        })
    };
    const SENT: u64 = 2000;
    for round in 1..=SENT {
        version.store(round, Ordering::SeqCst);
        one.notices().send("slot", "7");
        if round % 100 == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    within(seeing.clone().wait_for(|seen| *seen == SENT)).await.unwrap();
    assert!(one.notices().flush(OUTER_LIMIT).await);
    let (sent, heard) = (one.notices().counts(), other.notices().counts());
    assert_eq!(sent.sent + sent.coalesced, SENT);
    assert!(sent.sent >= 2 && sent.sent < SENT / 4, "{sent:?}");
    assert!(heard.heard <= sent.sent, "{heard:?}");
    reader.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_lost_connection_listening_begins_anew_before_it_is_told() {
    let database = testing::postgres::Database::new();
    let proxy = TcpProxy::new(database.address());
    let behind_proxy = Settings { direct: Some(dsn(database.dsn_at(proxy.address()))), ..quiet(database.dsn()) };
    let (one, _) = member(quiet(database.dsn())).await;
    let (other, mut of_other) = member(behind_proxy).await;
    for round in 0..3 {
        proxy.refuse();
        proxy.cut();
        within(async {
            while other.notices().is_listening() {
                tokio::task::yield_now().await
            }
        })
        .await;
        // Sent while it cannot be sent: kept, and sent later.
        other.notices().send("lane", format!("own {round}"));
        assert_eq!(within(of_other.next()).await, Some(notice("lane", &format!("own {round}"))));
        one.notices().send("lane", "missed");
        assert!(one.notices().flush(OUTER_LIMIT).await);
        assert!(!other.notices().flush(Duration::ZERO).await);
        let mut of_one = one.notices().subscribe();
        proxy.accept();
        assert_eq!(within(of_other.next()).await, Some(Event::Reconnected));
        assert_eq!(within(of_one.next()).await, Some(notice("lane", &format!("own {round}"))));
        one.notices().send("lane", format!("heard {round}"));
        assert_eq!(within(of_other.next()).await, Some(notice("lane", &format!("heard {round}"))));
    }
    // Lost on its way to the server, with the connection.
    let mut of_one = one.notices().subscribe();
    proxy.set(Direction::ToServer, Mode::Close);
    other.notices().send("lane", "lost");
    within(async {
        while other.notices().is_listening() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    proxy.set_both(Mode::Pass);
    assert_eq!(within(of_one.next()).await, Some(notice("lane", "lost")));
}

/// C12: a connection that looks well and is dead is found by the nonce, which goes over the pool.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_is_found_by_a_notice_to_ourselves() {
    let database = testing::postgres::Database::new();
    let proxy = TcpProxy::new(database.address());
    let beat = Duration::from_millis(300);
    let behind_proxy = Settings {
        direct: Some(dsn(database.dsn_at(proxy.address()))),
        timeouts: Timeouts { connect: Duration::from_millis(500), ..timeouts() },
        beat,
        ..settings(database.dsn())
    };
    let (one, _) = member(quiet(database.dsn())).await;
    let (other, mut of_other) = member(behind_proxy).await;
    assert_eq!(other.notices().probe(OUTER_LIMIT).await, Ok(true));
    let connected = other.notices().counts().connected;
    proxy.set_both(Mode::Swallow);
    within(async {
        while other.notices().is_listening() {
            tokio::task::yield_now().await
        }
    })
    .await;
    proxy.set_both(Mode::Pass);
    assert_eq!(within(of_other.next()).await, Some(Event::Reconnected));
    assert!(other.notices().counts().connected > connected);
    one.notices().send("cache", "x");
    assert_eq!(within(of_other.next()).await, Some(notice("cache", "x")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nonce_that_cannot_be_sent_proves_nothing() {
    let database = testing::postgres::Database::new();
    let proxy = TcpProxy::new(database.address());
    let pool_behind_proxy = Settings { direct: Some(dsn(database.dsn())), ..quiet(database.dsn_at(proxy.address())) };
    let (member, _events) = member(pool_behind_proxy).await;
    proxy.refuse();
    proxy.cut();
    assert!(member.notices().probe(Duration::from_millis(100)).await.is_err());
    assert!(member.notices().is_listening());
    assert_eq!(member.notices().counts().connected, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_at_once_become_one_hint_to_poll_everything() {
    let database = testing::postgres::Database::new();
    let (one, _) = member(quiet(database.dsn())).await;
    let (_other, mut of_other) = member(quiet(database.dsn())).await;
    // On the thread of the test alone, faster than anything is sent.
    for number in 0..200_000 {
        one.notices().send("q", number.to_string());
    }
    within(async { while of_other.next().await != Some(Event::Lagged) {} }).await;
    assert!(one.notices().flush(OUTER_LIMIT).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn listening_ends_with_the_database_and_so_do_its_events() {
    let database = testing::postgres::Database::new();
    let (member, mut events) = member(quiet(database.dsn())).await;
    drop(member);
    assert_eq!(within(events.next()).await, None);
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
    within(async {
        while crate::number(&database.sql(sessions)) > 0 {
            tokio::task::yield_now().await
        }
    })
    .await;
}
