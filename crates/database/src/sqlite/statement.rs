//! One statement on one connection: parameters, values, and what SQLite's errors mean.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use database_core::{Answer, Class, DbError, Row, Sql, Value};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, Statement, ffi};

/// Steps of SQLite's virtual machine between two looks at the clock: some 100 µs.
const STEPS_PER_LOOK: i32 = 10_000;
/// Prepared statements that a connection keeps.
const STATEMENTS_KEPT_MAX: usize = 512;

/// Executes the text that it is given, of any number of statements. SQLite has no such statement; the driver does it.
pub(crate) static EXECUTE_TEXT: Sql = Sql::new("sqlite.execute_text", "", "");

/// A connection that knows statements by their ids and ends those that take too long.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) connection: Connection,
    /// Texts with SQLite's parameters, by the address of the statement.
    texts: HashMap<usize, Box<str>>,
    clock: Clock,
}

/// When the statement that runs must end.
#[derive(Debug, Clone)]
struct Clock {
    base: Instant,
    /// ns since the base.
    deadline: Arc<AtomicU64>,
}

impl Clock {
    fn now(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Session {
    pub(super) fn new(mut connection: Connection) -> Result<Self, DbError> {
        connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT_MAX);
        let clock = Clock { base: Instant::now(), deadline: Arc::new(AtomicU64::new(u64::MAX)) };
        let looked_at = clock.clone();
        let is_late = move || looked_at.now() > looked_at.deadline.load(Ordering::Relaxed);
        connection.progress_handler(STEPS_PER_LOOK, Some(is_late)).map_err(|error| failure("set up", &error))?;
        Ok(Self { connection, texts: HashMap::new(), clock })
    }

    /// Executes a statement, which takes at most `limit`.
    pub(super) fn execute(&mut self, sql: &'static Sql, values: &[Value], limit: Duration) -> Result<Answer, DbError> {
        if let (true, [Value::Text(text)]) = (std::ptr::eq(sql, &raw const EXECUTE_TEXT), values) {
            self.batch(sql.id, text)?;
            return Ok(Answer::default());
        }
        let text = self.texts.entry(std::ptr::from_ref(sql).addr()).or_insert_with(|| with_numbers(sql.sqlite).into());
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        self.clock.deadline.store(self.clock.now().saturating_add(limit), Ordering::Relaxed);
        let answer = execute(&self.connection, sql.id, text, values);
        self.clock.deadline.store(u64::MAX, Ordering::Relaxed);
        answer
    }

    /// Executes text without parameters and without answer.
    pub(super) fn batch(&self, what: &str, text: &str) -> Result<(), DbError> {
        self.connection.execute_batch(text).map_err(|error| failure(what, &error))
    }
}

fn execute(connection: &Connection, id: &str, text: &str, values: &[Value]) -> Result<Answer, DbError> {
    let failed = |error: rusqlite::Error| failure(id, &error);
    let mut statement = connection.prepare_cached(text).map_err(failed)?;
    if statement.parameter_count() != values.len() {
        let (takes, given) = (statement.parameter_count(), values.len());
        return Err(DbError::new(Class::Broken, format!("{id}: it takes {takes} parameters, and {given} were given")));
    }
    for (index, value) in values.iter().enumerate() {
        bind(&mut statement, id, index + 1, value)?;
    }
    let columns = statement.column_count();
    if columns == 0 {
        let before = connection.total_changes();
        let affected = statement.raw_execute().map_err(failed)?;
        // SQLite goes on counting the last change while statements change nothing.
        let affected = if connection.total_changes() == before { 0 } else { affected as u64 };
        return Ok(Answer { rows: Vec::new(), affected });
    }
    let mut rows = Vec::new();
    let mut cursor = statement.raw_query();
    while let Some(row) = cursor.next().map_err(failed)? {
        let values = (0..columns).map(|column| read(id, column, row.get_ref(column).map_err(failed)?));
        rows.push(Row::from(values.collect::<Result<Vec<_>, _>>()?));
    }
    Ok(Answer::from(rows))
}

fn bind(statement: &mut Statement<'_>, id: &str, index: usize, value: &Value) -> Result<(), DbError> {
    let refused =
        |code: &str, what: &str| DbError { code: Some(code.to_owned()), ..refusal(format!("{id}: ${index} {what}")) };
    let check = |text: &str| match text.contains('\0') {
        // PostgreSQL cannot keep it and says 22021; both databases refuse the same.
        true => Err(refused("22021", "holds a NUL character")),
        false => Ok(()),
    };
    let bound = match value {
        Value::Null => statement.raw_bind_parameter(index, rusqlite::types::Null),
        Value::Bool(value) => statement.raw_bind_parameter(index, value),
        Value::Int(value) => statement.raw_bind_parameter(index, value),
        // SQLite would make NULL of it.
        Value::Float(value) if value.is_nan() => return Err(refused("22003", "is no number")),
        Value::Float(value) => statement.raw_bind_parameter(index, value),
        Value::Text(value) => {
            check(value)?;
            statement.raw_bind_parameter(index, value)
        }
        Value::Bytes(value) => statement.raw_bind_parameter(index, value),
        Value::Uuid(value) => statement.raw_bind_parameter(index, hex(*value)),
        Value::Ints(values) => statement.raw_bind_parameter(index, json(values)),
        Value::Texts(values) => {
            values.iter().try_for_each(|value| check(value))?;
            statement.raw_bind_parameter(index, json(values))
        }
        Value::Uuids(values) => {
            statement.raw_bind_parameter(index, json(&values.iter().copied().map(hex).collect::<Vec<_>>()))
        }
    };
    bound.map_err(|error| failure(id, &error))
}

fn hex(value: u128) -> String {
    format!("{value:032x}")
}

fn json<T: serde::Serialize>(values: &[T]) -> String {
    serde_json::to_string(values).expect("numbers and texts are JSON")
}

fn read(id: &str, column: usize, value: ValueRef<'_>) -> Result<Value, DbError> {
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(value) => Value::Int(value),
        ValueRef::Real(value) => Value::Float(value),
        ValueRef::Blob(value) => Value::Bytes(value.to_vec()),
        ValueRef::Text(value) => match std::str::from_utf8(value) {
            Ok(value) => Value::Text(value.to_owned()),
            Err(_) => return Err(DbError::new(Class::Broken, format!("{id}: column {column} is text, and not UTF-8"))),
        },
    })
}

fn refusal(message: String) -> DbError {
    DbError::new(Class::Refused, message)
}

/// What an error means for who asked for `what`.
pub(crate) fn failure(what: &str, error: &rusqlite::Error) -> DbError {
    let rusqlite::Error::SqliteFailure(ffi::Error { code, extended_code }, message) = error else {
        let class = match error {
            rusqlite::Error::SqlInputError { .. } => Class::Broken,
            // A parameter larger than SQLite takes.
            rusqlite::Error::ToSqlConversionFailure(_) => Class::Refused,
            _ => Class::Broken,
        };
        return DbError::new(class, format!("{what}: {error}"));
    };
    let class = match code {
        ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig => Class::Refused,
        ErrorCode::DatabaseBusy if *extended_code == ffi::SQLITE_BUSY_SNAPSHOT => Class::Conflict,
        ErrorCode::DatabaseBusy => Class::Locked,
        ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed => Class::Conflict,
        ErrorCode::OperationInterrupted => Class::TimedOut,
        ErrorCode::DiskFull | ErrorCode::OutOfMemory => Class::Exhausted,
        ErrorCode::SystemIoFailure | ErrorCode::CannotOpen => Class::Unavailable,
        _ => Class::Broken,
    };
    let said = message.clone().unwrap_or_else(|| ffi::code_to_str(*extended_code).to_owned());
    // "UNIQUE constraint failed: table.column", "CHECK constraint failed: name".
    let constraint = match code {
        ErrorCode::ConstraintViolation => said.split_once("constraint failed: ").map(|(_, name)| name.to_owned()),
        _ => None,
    };
    let code = Some(format!("SQLITE_{extended_code}"));
    DbError { class, code, message: format!("{what}: {said}"), constraint }
}

/// The text with `?1` in place of `$1`: SQLite would number `$` parameters by their first place. What stands in quotes
/// and comments is left alone.
fn with_numbers(text: &str) -> Cow<'_, str> {
    if !text.contains('$') {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '\'' | '"' | '`' => rest[1..].find(first).map(|end| end + 2),
            '[' => rest.find(']').map(|end| end + 1),
            '-' if rest.starts_with("--") => rest.find('\n'),
            '/' if rest.starts_with("/*") => rest.find("*/").map(|end| end + 2),
            '$' => {
                out.push('?');
                rest = &rest[1..];
                continue;
            }
            _ => Some(first.len_utf8()),
        };
        let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
        out.push_str(part);
        rest = after;
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbered_outside_of_quotes_and_comments() {
        for (text, expected) in [
            ("SELECT $2, $1, $2", "SELECT ?2, ?1, ?2"),
            ("SELECT '$1', '''$1', $1", "SELECT '$1', '''$1', ?1"),
            (r#"SELECT "a$1", [b$1], `c$1`, $1"#, r#"SELECT "a$1", [b$1], `c$1`, ?1"#),
            ("SELECT 1 -- costs $5\n + $1 /* $2 */ - $3", "SELECT 1 -- costs $5\n + ?1 /* $2 */ - ?3"),
            ("SELECT '$1", "SELECT '$1"),
            ("SELECT 'ü', $1", "SELECT 'ü', ?1"),
        ] {
            assert_eq!(with_numbers(text), expected);
        }
    }
}
