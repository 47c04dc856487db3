//! A process of its own for the tests of this crate: a member of an SQLite file, or a guest that holds its write lock.
//!
//! It says `open` or `held` when it is so far, and ends with its standard input. What goes wrong is said on standard
//! error, with exit code 1.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use database::sqlite::{Place, Settings, Sqlite, Sync, WriteLock};
use database::{Database, Script, Sql, Verdict};

static TABLE: Sql = Sql::same("fixture.table", "CREATE TABLE IF NOT EXISTS fixture (n INTEGER) STRICT");
static INSERT: Sql = Sql::same("fixture.insert", "INSERT INTO fixture VALUES ($1)");

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["member", path] => member(path),
        ["guest", path] => guest(path),
        ["commits", path, sync, count] => commits(path, sync, count),
        _ => Err("usage: database-fixture member PATH | guest PATH | commits PATH full|normal COUNT".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn member(path: &str) -> Outcome {
    let _member = Sqlite::open(&Settings::new(path, "database-fixture"))?;
    say_and_wait("open")
}

fn guest(path: &str) -> Outcome {
    let mut lock = WriteLock::open(&Place::find(Path::new(path))?)?;
    let _held = lock.lock(Duration::from_secs(10), |_| ())?;
    say_and_wait("held")
}

/// Commits so many transactions, one after the other.
fn commits(path: &str, sync: &str, count: &str) -> Outcome {
    let sync = match sync {
        "full" => Sync::Full,
        _ => Sync::Normal,
    };
    let file = Sqlite::open(&Settings { sync, ..Settings::new(path, "database-fixture") })?;
    let database = Database::Sqlite(file.clone());
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        database.run_once(Script::statement(&TABLE, [], |_| Ok(()))).await?;
        for n in 0..count.parse::<i64>()? {
            let insert = Script::transaction(move |mut tx| async move {
                tx.execute(&INSERT, [n.into()]).await?;
                Ok(Verdict::Commit(()))
            });
            if let Err(error) = database.run_once(insert).await {
                return Err(format!("commit {n}: {:?}: {error}", error.class).into());
            }
        }
        file.close().await;
        Ok(())
    })
}

fn say_and_wait(word: &str) -> Outcome {
    println!("{word}");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
