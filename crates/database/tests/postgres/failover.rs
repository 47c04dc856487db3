//! Stand-bys, promotions, and another server at the same address.

use database::postgres::{Connector, Postgres};
use database::{Class, Database};
use testing::postgres::{Options, Server};

use crate::{TABLE, connector, insert, settings, within};

fn two_hosts(first: &Server, second: &Server) -> String {
    let (first_address, second_address) = (first.address().to_string(), second.address().to_string());
    first.dsn().replace(&first_address, &format!("{first_address},{second_address}"))
}

/// C18: a stand-by is refused, the next host is taken; after a promotion the way leads to the new primary, and everybody
/// who asks learns that it is another one.
#[tokio::test(flavor = "multi_thread")]
async fn stand_bys_are_refused_and_a_promotion_is_followed_and_told() {
    let mut primary = Options::new().start();
    testing::postgres::query(&primary.dsn(), TABLE.postgres).unwrap();
    let mut replica = primary.replica();

    let error = connector(replica.dsn()).connect().await.unwrap_err();
    assert_eq!(error.class, Class::ReadOnly, "{error}");
    let both = connector(two_hosts(&replica, &primary));
    let mut seen: Connector = both.clone();
    let before = seen_identity(&mut seen).await;
    assert_eq!((before.timeline, before.version / 10_000 >= 14), (Some(1), true));
    assert!(before.system_identifier.is_some());

    let pool = Postgres::new(settings(two_hosts(&primary, &replica))).unwrap();
    let mut changes = pool.direct().identity_changes();
    let pool = Database::Postgres(pool);
    pool.run(|| insert(1, || ())).await.unwrap();
    primary.wait_for_replica(&replica);
    primary.kill();
    let error = pool.run_once(insert(2, || ())).await.unwrap_err();
    assert!(matches!(error.class, Class::Unavailable | Class::ReadOnly), "{error}");
    replica.promote();
    within(async { while pool.run(|| insert(2, || ())).await.is_err() {} }).await;
    let after =
        within(changes.wait_for(|identity| identity.as_ref().is_some_and(|now| now.differs_from(&before)))).await;
    let after = after.unwrap().clone().unwrap();
    assert_eq!((after.timeline, after.system_identifier), (Some(2), before.system_identifier));
}

async fn seen_identity(connector: &mut Connector) -> database::postgres::ServerIdentity {
    let connection = connector.connect().await.unwrap();
    let identity = connection.identity().clone();
    assert_eq!(*connector.identity_changes().borrow(), Some(identity.clone()));
    assert!(!identity.differs_from(&identity));
    identity
}
