//! Statements, values and answers as text that is the same on each bench.
//!
//! Owns: what is left out because no two databases agree on it: the order of rows (rows are told in the order of their
//! text), and numbers that it gives: of transactions, members, requests.

use database_core::{Answer, Class, Row, Sql, Value};

/// The answer of this statement ends in a row with the number of a transaction.
const VIEW: &str = "member.view";

/// `id(value, …)`.
pub(super) fn statement(sql: &Sql, values: &[Value]) -> String {
    let values = values.iter().enumerate().map(|(index, told)| match told {
        // The number that an earlier view gave.
        Value::Int(number) if sql.id == VIEW && index == 1 && *number != 0 => "xid".to_owned(),
        Value::Int(_) if sql.id.starts_with("request.") && sql.id != "request.prune" && index == 0 => "no".to_owned(),
        told => value(told),
    });
    format!("{}({})", sql.id, values.collect::<Vec<_>>().join(", "))
}

/// `(value, …)` of each row; how many were changed, if there are none; the class of an error.
pub(super) fn answer(sql: &Sql, answer: &Result<Answer, Class>) -> String {
    match answer {
        Err(class) => format!("{class:?}").to_lowercase(),
        Ok(answer) if answer.rows.is_empty() => format!("{} rows", answer.affected),
        Ok(answer) => {
            let mut rows: Vec<String> = answer.rows.iter().map(|told| row(sql, told)).collect();
            rows.sort();
            rows.join(" ")
        }
    }
}

fn row(sql: &Sql, row: &Row) -> String {
    let is_snapshot = sql.id == VIEW && row.text(0) == Ok("snapshot");
    let values = row.values().iter().enumerate().map(|(index, told)| match told {
        Value::Int(_) if is_snapshot && index == 3 => "xid".to_owned(),
        Value::Int(_) if is_numbered(sql, row, index) => "no".to_owned(),
        told => value(told),
    });
    format!("({})", values.collect::<Vec<_>>().join(", "))
}

/// Whether the database has given this number to a member or request.
fn is_numbered(sql: &Sql, row: &Row, index: usize) -> bool {
    let is_member = sql.id == VIEW && row.text(0) == Ok("member");
    match index {
        0 => sql.id == "member.register" || sql.id.starts_with("request."),
        3 => is_member,
        _ => false,
    }
}

fn value(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Text(value) => format!("'{value}'"),
        Value::Bytes(value) => format!("{} bytes", value.len()),
        Value::Uuid(value) => uuid(*value),
        Value::Ints(values) => list(values.iter().map(i64::to_string)),
        Value::Texts(values) => list(values.iter().map(|value| format!("'{value}'"))),
        Value::Uuids(values) => list(values.iter().copied().map(uuid)),
    }
}

fn list(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(", "))
}

/// Cases use small numbers for members.
fn uuid(value: u128) -> String {
    format!("m{value:x}")
}
