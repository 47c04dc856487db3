//! Steps of the schema and the version guard (C14), on each database.

mod common;

use common::{execute, postgres, postgres_at, sqlite};
use database::schema::{self, Migrated, SchemaError};
use database::{Class, Database, Fit, Migration, Sql, Value};

const FIRST: Migration = Migration::new(
    1,
    "items",
    "CREATE TABLE item (id bigint PRIMARY KEY, note text); -- one; two\n\
     CREATE FUNCTION one() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN 1; END $$;\n\
     INSERT INTO item VALUES (one(), 'a;b');",
    "CREATE TABLE item (id INTEGER PRIMARY KEY, note TEXT) STRICT; -- one; two\n\
     CREATE TRIGGER none BEFORE UPDATE ON item BEGIN SELECT 1; END;\n\
     INSERT INTO item VALUES (1, 'a;b');",
    1,
);
const SECOND: Migration = Migration::new(
    2,
    "colour",
    "ALTER TABLE item ADD COLUMN colour text",
    "ALTER TABLE item ADD COLUMN colour TEXT",
    1,
);
const THIRD: Migration =
    Migration::new(3, "away", "ALTER TABLE item DROP COLUMN note", "ALTER TABLE item DROP COLUMN note", 2)
        .contracting();

static ITEMS: Sql = Sql::same("test.items", "SELECT id FROM item ORDER BY id");
static INSERT: Sql = Sql::same("test.insert", "INSERT INTO item (id) VALUES ($1)");
static STEPS: Sql = Sql::same("test.steps", "SELECT version, name, program FROM schema_migration ORDER BY version");

async fn suite(database: &Database) {
    // Nothing is there yet.
    let fit = schema::check(database, 1).await.unwrap();
    assert!(fit.to_string().contains("it has no schema yet"), "{fit}");
    assert!(matches!(fit, Fit::DatabaseOlder { .. }));

    // Two of one process at once: each step is done once.
    let (one, two) =
        tokio::join!(schema::migrate(database, &[FIRST], "tenure 1"), schema::migrate(database, &[FIRST], "tenure 1"));
    assert_eq!((one.unwrap().after, two.unwrap().after), (1, 1));
    assert_eq!(execute(database, &ITEMS, []).await.unwrap(), [[Value::Int(1)]]);
    let again = schema::migrate(database, &[FIRST], "tenure 1").await;
    assert_eq!(again, Ok(Migrated { before: 1, after: 1 }));

    // A program that needs more does not work yet, and says which side is older.
    let fit = schema::check(database, 2).await.unwrap();
    assert_eq!(
        fit.to_string(),
        "the database is older than the program: it has schema 1 (brought by tenure 1), and this program needs schema 2"
    );

    // A rolling upgrade: the old program goes on beside the new one.
    let steps = [FIRST, SECOND];
    assert_eq!(schema::migrate(database, &steps, "tenure 2").await, Ok(Migrated { before: 1, after: 2 }));
    assert_eq!(schema::check(database, 2).await, Ok(Fit::Fits));
    assert_eq!(schema::check(database, 1).await, Ok(Fit::Fits));
    assert_eq!(schema::migrate(database, &[FIRST], "tenure 1").await, Ok(Migrated { before: 2, after: 2 }));
    execute(database, &INSERT, [Value::Int(2)]).await.unwrap();

    // The release after that no longer supports the first one.
    schema::migrate(database, &[FIRST, SECOND, THIRD], "tenure 3").await.unwrap();
    assert_eq!(schema::check(database, 2).await, Ok(Fit::Fits));
    let error = schema::migrate(database, &[FIRST], "tenure 1").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the program is older than the database: schema 3 (brought by tenure 3) needs a program that knows schema 2, \
         and this one knows 1; start a newer program"
    );
    assert!(matches!(error, SchemaError::Unfit(Fit::DatabaseNewer { .. })));
    assert!(matches!(schema::check(database, 1).await, Ok(Fit::DatabaseNewer { .. })));

    // A step that fails leaves nothing of itself.
    let wrong = Migration::new(
        4,
        "wrong",
        "CREATE TABLE half (id bigint); INSERT INTO nowhere VALUES (1)",
        "CREATE TABLE half (id INTEGER); INSERT INTO nowhere VALUES (1)",
        2,
    );
    let error = schema::migrate(database, &[FIRST, SECOND, THIRD, wrong], "tenure 4").await.unwrap_err();
    assert!(error.to_string().starts_with("step 4 `wrong` of the schema failed: "), "{error}");
    assert!(matches!(&error, SchemaError::Step { source, .. } if source.class == Class::Broken));
    assert_eq!(schema::read(database).await.unwrap().version, 3);
    let right =
        Migration { postgres: "CREATE TABLE half (id bigint)", sqlite: "CREATE TABLE half (id INTEGER)", ..wrong };
    schema::migrate(database, &[FIRST, SECOND, THIRD, right], "tenure 4").await.unwrap();

    // A step is never changed afterwards.
    let changed = Migration { postgres: "SELECT 1", sqlite: "SELECT 1", ..SECOND };
    let error = schema::migrate(database, &[FIRST, changed, THIRD, right], "tenure 4").await.unwrap_err();
    assert!(matches!(error, SchemaError::Changed { version: 2, .. }), "{error}");
    let error = schema::migrate(database, &[SECOND], "tenure 4").await.unwrap_err();
    assert!(matches!(error, SchemaError::Steps(_)), "{error}");

    let steps = execute(database, &STEPS, []).await.unwrap();
    let text = |text: &str| Value::Text(text.to_owned());
    let row = |version, name, program| vec![Value::Int(version), text(name), text(program)];
    assert_eq!(
        steps,
        [
            row(1, "items", "tenure 1"),
            row(2, "colour", "tenure 2"),
            row(3, "away", "tenure 3"),
            row(4, "wrong", "tenure 4")
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_of_sqlite_grows_step_by_step_and_is_guarded() {
    let (_folder, file) = sqlite();
    suite(&Database::Sqlite(file)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_of_postgres_grows_step_by_step_and_is_guarded() {
    let (_server, database) = postgres();
    suite(&database).await;
}

/// As many processes would: each with a pool of its own.
#[tokio::test(flavor = "multi_thread")]
async fn members_that_start_together_migrate_once() {
    const SLOW: Migration =
        Migration::new(2, "slow", "CREATE TABLE slow (id bigint); INSERT INTO slow SELECT 1 FROM pg_sleep(0.3)", "", 1);
    let (server, _) = postgres();
    let dsn = server.dsn();
    let start = |_| {
        let database = postgres_at(&dsn);
        tokio::spawn(async move { schema::migrate(&database, &[FIRST, SLOW], "tenure 2").await })
    };
    for member in (0..8).map(start).collect::<Vec<_>>() {
        assert_eq!(member.await.unwrap().unwrap().after, 2);
    }
    assert_eq!(server.sql("SELECT count(*) FROM slow").len(), 1);
    assert_eq!(execute(&postgres_at(&dsn), &ITEMS, []).await.unwrap(), [[Value::Int(1)]]);
    let steps = execute(&postgres_at(&dsn), &STEPS, []).await.unwrap();
    assert_eq!(steps.len(), 2);
}
