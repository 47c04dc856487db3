//! Values on the wire.
//!
//! Parameters are sent as text, the one form that every type reads and that needs no knowledge of the type which the server
//! infers; so they are written alike for a prepared statement and for one that is sent with its parameters at once.
//! Columns come in binary form.

use std::error::Error;
use std::fmt::{self, Write as _};

use bytes::{BufMut as _, BytesMut};
use database_core::{Class, DbError, Row, Value};
use tokio_postgres::types::{Format, FromSql, IsNull, ToSql, Type};

/// A parameter. Its Debug tells nothing: the driver prints parameters into its log.
pub(super) struct Parameter<'a>(pub(super) &'a Value);

impl fmt::Debug for Parameter<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("*")
    }
}

impl ToSql for Parameter<'_> {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self.0 {
            Value::Null => return Ok(IsNull::Yes),
            Value::Bool(value) => out.put_u8(if *value { b't' } else { b'f' }),
            Value::Int(value) => write!(out, "{value}")?,
            // The shortest form that reads back as the same number.
            Value::Float(value) => write!(out, "{value:e}")?,
            Value::Text(value) => out.put_slice(value.as_bytes()),
            Value::Bytes(value) if *ty == Type::BYTEA => out.put_slice(value),
            Value::Bytes(value) => {
                out.put_slice(b"\\x");
                value.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
            }
            Value::Uuid(value) => write!(out, "{value:032x}")?,
            Value::Ints(values) => list(out, values, |out, value| write!(out, "{value}"))?,
            Value::Uuids(values) => list(out, values, |out, value| write!(out, "{value:032x}"))?,
            Value::Texts(values) => list(out, values, |out, value| {
                out.put_u8(b'"');
                for part in value.split_inclusive(['"', '\\']) {
                    let Some(escaped) = part.strip_suffix(['"', '\\']) else {
                        out.put_slice(part.as_bytes());
                        continue;
                    };
                    out.put_slice(escaped.as_bytes());
                    out.put_u8(b'\\');
                    out.put_slice(&part.as_bytes()[escaped.len()..]);
                }
                out.put_u8(b'"');
                Ok(())
            })?,
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, ty: &Type) -> Format {
        let is_binary = matches!(self.0, Value::Bytes(_)) && *ty == Type::BYTEA;
        if is_binary { Format::Binary } else { Format::Text }
    }

    tokio_postgres::types::to_sql_checked!();
}

/// A list in the form of array literals.
fn list<T>(out: &mut BytesMut, values: &[T], one: impl Fn(&mut BytesMut, &T) -> fmt::Result) -> fmt::Result {
    out.put_u8(b'{');
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.put_u8(b',');
        }
        one(out, value)?;
    }
    out.put_u8(b'}');
    Ok(())
}

/// About how many bytes the values take in a message.
pub(super) fn size(values: &[Value]) -> usize {
    let one = |value: &Value| match value {
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Uuid(_) => 32,
        Value::Text(value) => value.len(),
        Value::Bytes(value) => 2 * value.len(),
        Value::Ints(values) => 21 * values.len(),
        Value::Uuids(values) => 33 * values.len(),
        Value::Texts(values) => values.iter().map(|value| 2 * value.len() + 3).sum(),
    };
    values.iter().map(one).sum()
}

/// The bytes of a column.
struct Raw<'a>(Option<&'a [u8]>);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(Some(raw)))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(None))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// A row of an answer, as the driver gives it.
pub(super) fn row(row: &tokio_postgres::Row) -> Result<Row, DbError> {
    let columns = row.columns().iter().enumerate();
    let values = columns.map(|(index, column)| {
        let raw: Raw<'_> = row
            .try_get(index)
            .map_err(|_| DbError::new(Class::Broken, format!("column {index} of the answer cannot be read")))?;
        let Some(bytes) = raw.0 else { return Ok(Value::Null) };
        value(column.type_(), bytes).ok_or_else(|| {
            let message = format!("column {index} has the type {}, which must be cast to a simple one", column.type_());
            DbError::new(Class::Broken, message)
        })
    });
    Ok(values.collect::<Result<Vec<_>, _>>()?.into())
}

fn value(ty: &Type, bytes: &[u8]) -> Option<Value> {
    let text = |bytes: &[u8]| Some(Value::Text(str::from_utf8(bytes).ok()?.to_owned()));
    Some(match *ty {
        Type::BOOL => Value::Bool(bytes == [1]),
        Type::INT2 => Value::Int(i16::from_be_bytes(bytes.try_into().ok()?).into()),
        Type::INT4 => Value::Int(i32::from_be_bytes(bytes.try_into().ok()?).into()),
        Type::INT8 | Type::XID8 => Value::Int(i64::from_be_bytes(bytes.try_into().ok()?)),
        Type::OID => Value::Int(u32::from_be_bytes(bytes.try_into().ok()?).into()),
        Type::FLOAT4 => Value::Float(f32::from_be_bytes(bytes.try_into().ok()?).into()),
        Type::FLOAT8 => Value::Float(f64::from_be_bytes(bytes.try_into().ok()?)),
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::JSON | Type::UNKNOWN => return text(bytes),
        // The first byte is the version of the format, of which there is one.
        Type::JSONB => return text(bytes.strip_prefix(&[1])?),
        Type::BYTEA => Value::Bytes(bytes.to_owned()),
        Type::UUID => Value::Uuid(u128::from_be_bytes(bytes.try_into().ok()?)),
        // What a function returns that is called for its effect.
        Type::VOID => Value::Null,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_written_as_literals_and_never_shown() {
        let written = |value: Value| {
            let mut out = BytesMut::new();
            Parameter(&value).to_sql(&Type::UNKNOWN, &mut out).unwrap();
            assert!(out.len() <= size(std::slice::from_ref(&value)) + 2, "{value:?}");
            assert_eq!(format!("{:?}", Parameter(&value)), "*");
            String::from_utf8(out.to_vec()).unwrap()
        };
        assert_eq!(written(Value::Int(-7)), "-7");
        assert_eq!(written(Value::Float(0.1)), "1e-1");
        assert_eq!(written(Value::Bytes(vec![0, 255])), "\\x00ff");
        assert_eq!(written(Value::Uuid(1)), "00000000000000000000000000000001");
        assert_eq!(written(Value::Ints(vec![1, -2])), "{1,-2}");
        assert_eq!(written(Value::Ints(vec![])), "{}");
        let texts = ["", "NULL", "a,b", r#"say "\""#, "{ü}"].map(ToOwned::to_owned);
        assert_eq!(written(Value::Texts(texts.into())), r#"{"","NULL","a,b","say \"\\\"","{ü}"}"#);
    }
}
