//! What goes into a statement and comes out of it.

use crate::{Class, DbError};

/// A parameter or a column.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// SQL's NULL.
    Null,
    /// `boolean`; 0 or 1 in SQLite.
    Bool(bool),
    /// Any integer type.
    Int(i64),
    /// `double precision`.
    Float(f64),
    /// `text`, `json` or `jsonb`. Must not contain NUL, which PostgreSQL refuses.
    Text(String),
    /// `bytea`; a BLOB in SQLite.
    Bytes(Vec<u8>),
    /// `uuid`; 32 hexadecimal digits as TEXT in SQLite.
    Uuid(u128),
    /// `bigint[]`; a JSON list in SQLite, for `json_each`. Parameters only.
    Ints(Vec<i64>),
    /// `text[]`; a JSON list in SQLite. Parameters only.
    Texts(Vec<String>),
    /// `uuid[]`; a JSON list of hexadecimal texts in SQLite. Parameters only.
    Uuids(Vec<u128>),
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Int(value.into())
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// A row of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Row(Vec<Value>);

impl From<Vec<Value>> for Row {
    fn from(values: Vec<Value>) -> Self {
        Self(values)
    }
}

/// Columns by place, from 0. Each fails with [`Class::Broken`] if the column has another type: statement and reader do
/// not belong together.
impl Row {
    /// An integer.
    pub fn int(&self, column: usize) -> Result<i64, DbError> {
        match self.get(column)? {
            Value::Int(value) => Ok(*value),
            other => Err(mismatch(column, "an integer", other)),
        }
    }

    /// An integer or NULL.
    pub fn int_or_null(&self, column: usize) -> Result<Option<i64>, DbError> {
        self.or_null(column, Self::int)
    }

    /// A boolean; SQLite gives 0 or 1.
    pub fn bool(&self, column: usize) -> Result<bool, DbError> {
        match self.get(column)? {
            Value::Bool(value) => Ok(*value),
            Value::Int(value @ (0 | 1)) => Ok(*value == 1),
            other => Err(mismatch(column, "a boolean", other)),
        }
    }

    /// A text.
    pub fn text(&self, column: usize) -> Result<&str, DbError> {
        match self.get(column)? {
            Value::Text(value) => Ok(value),
            other => Err(mismatch(column, "a text", other)),
        }
    }

    /// A text or NULL.
    pub fn text_or_null(&self, column: usize) -> Result<Option<&str>, DbError> {
        match self.get(column)? {
            Value::Null => Ok(None),
            _ => self.text(column).map(Some),
        }
    }

    /// Bytes.
    pub fn bytes(&self, column: usize) -> Result<&[u8], DbError> {
        match self.get(column)? {
            Value::Bytes(value) => Ok(value),
            other => Err(mismatch(column, "bytes", other)),
        }
    }

    /// A UUID; SQLite gives it as hexadecimal text.
    pub fn uuid(&self, column: usize) -> Result<u128, DbError> {
        match self.get(column)? {
            Value::Uuid(value) => Ok(*value),
            Value::Text(text) if text.len() == 32 => {
                u128::from_str_radix(text, 16).map_err(|_| mismatch(column, "a UUID", &Value::Text(text.clone())))
            }
            other => Err(mismatch(column, "a UUID", other)),
        }
    }

    /// A UUID or NULL.
    pub fn uuid_or_null(&self, column: usize) -> Result<Option<u128>, DbError> {
        self.or_null(column, Self::uuid)
    }

    /// All columns.
    #[must_use]
    pub fn values(&self) -> &[Value] {
        &self.0
    }

    fn or_null<T>(
        &self,
        column: usize,
        read: impl Fn(&Self, usize) -> Result<T, DbError>,
    ) -> Result<Option<T>, DbError> {
        match self.get(column)? {
            Value::Null => Ok(None),
            _ => read(self, column).map(Some),
        }
    }

    fn get(&self, column: usize) -> Result<&Value, DbError> {
        self.0.get(column).ok_or_else(|| {
            DbError::new(Class::Broken, format!("column {column} was expected, the answer has {}", self.0.len()))
        })
    }
}

fn mismatch(column: usize, expected: &str, found: &Value) -> DbError {
    DbError::new(Class::Broken, format!("column {column} should be {expected}, and is {found:?}"))
}

/// What a statement answers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// The rows it returned; none for a statement without RETURNING.
    pub rows: Vec<Row>,
    /// How many rows it inserted, updated, deleted or returned.
    pub affected: u64,
}

impl From<Vec<Row>> for Answer {
    fn from(rows: Vec<Row>) -> Self {
        Self { affected: rows.len() as u64, rows }
    }
}
