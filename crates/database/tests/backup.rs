//! A copy of the SQLite file while it is written.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{TempDir, execute, sqlite};
use database::backup::{BackupError, backup};
use database::sqlite::{Settings, Sqlite};
use database::{Database, Script, Sql, Value, Verdict};

static TABLES: Sql = Sql::same("test.tables", "CREATE TABLE pair (id INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT");
static INSERT: Sql = Sql::same("test.insert", "INSERT INTO pair (body) VALUES (zeroblob($1))");
static COUNT: Sql = Sql::same("test.count", "SELECT count(*) FROM pair");

async fn count(database: &Database) -> i64 {
    database.read(Script::statement(&COUNT, [], |answer| answer.rows[0].int(0))).await.unwrap()
}

/// Two rows in one transaction.
fn pair() -> Script<()> {
    Script::transaction(|mut tx| async move {
        tx.execute(&INSERT, [Value::Int(3_000)]).await?;
        tx.execute(&INSERT, [Value::Int(3_000)]).await?;
        Ok(Verdict::Commit(()))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_made_while_the_database_is_written_is_whole() {
    let (folder, file) = sqlite();
    let database = Database::Sqlite(file.clone());
    execute(&database, &TABLES, []).await.unwrap();
    for _ in 0..200 {
        execute(&database, &INSERT, [Value::Int(100_000)]).await.unwrap();
    }
    let before = count(&database).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn({
        let (database, is_over) = (database.clone(), Arc::clone(&is_over));
        async move {
            while !is_over.load(Ordering::Relaxed) {
                database.run_once(pair()).await.unwrap();
            }
        }
    });
    // At the first report the copy has begun. Another commit then shows that it does not stop the writer.
    let (reports, told) = (Arc::new(AtomicU64::new(0)), tokio::runtime::Handle::current());
    let (reported, writer) = (Arc::clone(&reports), database.clone());
    let into = folder.join("copies");
    let copy = backup(&database, &into, move |progress| {
        assert!(progress.pages <= progress.total);
        if reported.fetch_add(1, Ordering::Relaxed) == 0 {
            told.block_on(writer.run_once(pair())).unwrap();
        }
    })
    .await
    .unwrap();
    is_over.store(true, Ordering::Relaxed);
    writing.await.unwrap();
    assert!(reports.load(Ordering::Relaxed) > 2);
    assert_eq!(copy.path, into.join("test.db"));
    assert_eq!(copy.bytes, std::fs::metadata(&copy.path).unwrap().len());
    let names: Vec<_> = std::fs::read_dir(&into).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["test.db"], "a file by itself");

    let copied = Database::Sqlite(Sqlite::open(&Settings::new(&copy.path, "test")).unwrap());
    let (copied, after) = (count(&copied).await, count(&database).await);
    assert!(before <= copied && copied < after, "{before} {copied} {after}");
    assert_eq!((copied - before) % 2, 0, "half a transaction is in the copy");
}

#[tokio::test]
async fn a_copy_never_overwrites() {
    let (folder, file) = sqlite();
    let database = Database::Sqlite(file.clone());
    execute(&database, &TABLES, []).await.unwrap();
    let into = folder.join("copies");
    let copy = backup(&database, &into, |_| ()).await.unwrap();
    let content = std::fs::read(&copy.path).unwrap();
    execute(&database, &INSERT, [Value::Int(1)]).await.unwrap();
    for into in [&*into, folder.path()] {
        let error = backup(&database, into, |_| ()).await.unwrap_err();
        assert!(matches!(error, BackupError::Exists(_)), "{error}");
    }
    assert_eq!(std::fs::read(&copy.path).unwrap(), content);
    let names = std::fs::read_dir(&into).unwrap().count();
    assert_eq!(names, 1, "a part of a copy was left");
    // A name that leads nowhere is a name too.
    let other = TempDir::new();
    std::os::unix::fs::symlink("/nonexistent", other.join("test.db")).unwrap();
    assert!(matches!(backup(&database, other.path(), |_| ()).await, Err(BackupError::Exists(_))));
    assert!(matches!(backup(&database, &folder.join("a/b"), |_| ()).await, Err(BackupError::Io { .. })));
    file.close().await;
    assert!(matches!(backup(&database, &folder.join("late"), |_| ()).await, Err(BackupError::Database(_))));
}

#[tokio::test]
async fn a_damaged_database_is_found_and_leaves_no_copy() {
    let folder = TempDir::new();
    let path = folder.join("test.db");
    let file = Sqlite::open(&Settings::new(&path, "test")).unwrap();
    let database = Database::Sqlite(file.clone());
    execute(&database, &TABLES, []).await.unwrap();
    for _ in 0..200 {
        execute(&database, &INSERT, [Value::Int(3_000)]).await.unwrap();
    }
    file.close().await;
    assert!(!folder.join("test.db-wal").exists(), "a file that was closed is whole by itself");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 4096].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
    let database = Database::Sqlite(Sqlite::open(&Settings::new(&path, "test")).unwrap());
    let error = backup(&database, &folder.join("copies"), |_| ()).await.unwrap_err();
    assert!(matches!(error, BackupError::Damaged(_)), "{error}");
    assert_eq!(std::fs::read_dir(folder.join("copies")).unwrap().count(), 0);
}
