//! What the tests of the database share: a folder that goes away, a file in it, another process.

#![allow(dead_code, unreachable_pub, reason = "each test file is a crate of its own and uses a part of this")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use database::postgres::{self, Postgres};
use database::sqlite::{Settings, Sqlite};
use database::{Database, DbError, Script, Sql, Value};

/// A folder of a test's own.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tenure-database-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An SQLite database in a folder of its own.
pub fn sqlite() -> (TempDir, Sqlite) {
    let folder = TempDir::new();
    let file = Sqlite::open(&Settings::new(folder.join("test.db"), "test")).unwrap();
    (folder, file)
}

/// A database of its own on the PostgreSQL that the tests of a program share. The first must outlive the second.
pub fn postgres() -> (testing::postgres::Database, Database) {
    let server = testing::postgres::Database::new();
    let database = postgres_at(&server.dsn());
    (server, database)
}

/// The database behind this address. A runtime must be there.
pub fn postgres_at(dsn: &str) -> Database {
    Database::Postgres(Postgres::new(postgres::Settings::new(dsn.parse().unwrap())).unwrap())
}

/// Runs one statement by itself.
pub async fn execute(
    database: &Database,
    sql: &'static Sql,
    values: impl Into<Vec<Value>>,
) -> Result<Vec<Vec<Value>>, DbError> {
    let rows = |answer: database::Answer| answer.rows.iter().map(|row| row.values().to_vec()).collect();
    database.run_once(Script::statement(sql, values, move |answer| Ok(rows(answer)))).await
}

/// The program of this crate in a process of its own, killed at the end.
#[derive(Debug)]
pub struct Fixture(pub Child);

impl Fixture {
    /// Starts it, and waits until it says that it is so far, or returns what it says on standard error.
    pub fn start(mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("failed to start {command:?}: {error}"));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut fixture = Self(child);
        if line.is_empty() {
            let mut said = String::new();
            fixture.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            return Err(said);
        }
        Ok(fixture)
    }

    /// Its command with these words.
    pub fn command(words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_database-fixture"));
        command.args(words);
        command
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// By SIGKILL, and waits for its end.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
