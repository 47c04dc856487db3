//! A value as a source gives it, before an option says what it may be.
//!
//! Owns: the types of TOML, the words of variables and flags, and how both are told to people.
//! Never: knows which option a value belongs to.

use std::collections::BTreeMap;

use toml::de::{DeString, DeValue};

/// Longest list that a message repeats, in bytes.
const LIST_BYTES_MAX: usize = 120;

/// What a source says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// A TOML string.
    Text(String),
    /// A TOML integer in decimal, as written, without separators.
    Integer(String),
    /// A TOML number with a fraction, likewise.
    Fraction(String),
    /// A TOML boolean.
    Boolean(bool),
    /// A TOML date or time, as written.
    Date(String),
    /// A TOML list.
    List(Vec<Value>),
    /// A TOML table.
    Table(BTreeMap<String, Value>),
    /// What no option takes, by the name of its type.
    Other(&'static str),
    /// A text that may stand for any type, as variables and flags give it.
    Words(String),
}

impl Value {
    pub(crate) fn of_toml(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::String(text) => Self::Text(text.to_string()),
            // Other radixes and separators are numbers too, but no option needs them.
            DeValue::Integer(number) if number.radix() == 10 => Self::Integer(number.as_str().to_owned()),
            DeValue::Integer(_) => Self::Other("a number that is not decimal"),
            DeValue::Boolean(value) => Self::Boolean(*value),
            DeValue::Float(number) => Self::Fraction(number.as_str().to_owned()),
            DeValue::Datetime(date) => Self::Date(date.to_string()),
            DeValue::Array(values) => Self::List(values.iter().map(|value| Self::of_toml(value.get_ref())).collect()),
            DeValue::Table(entries) => Self::Table(
                entries
                    .iter()
                    .map(|(name, value)| (DeString::to_string(name.get_ref()), Self::of_toml(value.get_ref())))
                    .collect(),
            ),
        }
    }

    /// What somebody wrote behind `config set`: TOML if it begins like a string, list or table of it, else words.
    pub(crate) fn of_overlay(text: &str) -> Self {
        let is_toml = text.starts_with(['"', '\'', '[', '{']);
        match DeValue::parse(text) {
            Ok(value) if is_toml => Self::of_toml(value.get_ref()),
            _ => Self::Words(text.to_owned()),
        }
    }

    /// What it is, for a message. A URL that may hold a password is not repeated.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Text(text) | Self::Words(text) if text.contains("://") && text.contains('@') => {
                "a URL with a user in it".to_owned()
            }
            Self::Text(text) | Self::Words(text) => format!("{text:?}"),
            Self::Integer(text) | Self::Fraction(text) => format!("the number {text}"),
            Self::Boolean(value) => value.to_string(),
            Self::Date(_) => "a date or time".to_owned(),
            Self::List(_) => match self.to_toml() {
                list if list.len() <= LIST_BYTES_MAX => format!("the list {list}"),
                _ => "a long list".to_owned(),
            },
            Self::Table(_) => "a table".to_owned(),
            Self::Other(kind) => (*kind).to_owned(),
        }
    }

    /// As a file would write it. Words are numbers, `true`, `false` or dates if they can be.
    pub(crate) fn to_toml(&self) -> String {
        match self {
            Self::Text(text) => quoted(text),
            Self::Integer(text) | Self::Fraction(text) | Self::Date(text) => text.clone(),
            Self::Boolean(value) => value.to_string(),
            Self::List(values) => format!("[{}]", values.iter().map(Self::to_toml).collect::<Vec<_>>().join(", ")),
            Self::Table(entries) => {
                let entries: Vec<_> =
                    entries.iter().map(|(name, value)| format!("{} = {}", key_part(name), value.to_toml())).collect();
                format!("{{ {} }}", entries.join(", "))
            }
            Self::Other(kind) => quoted(kind),
            Self::Words(text) => match DeValue::parse(text) {
                Ok(value) if !matches!(value.get_ref(), DeValue::String(_)) => text.clone(),
                _ => quoted(text),
            },
        }
    }
}

/// A string as TOML writes it.
pub(crate) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A part of a dotted key, in quotes where TOML wants them.
pub(crate) fn key_part(name: &str) -> String {
    let is_bare = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    if is_bare { name.to_owned() } else { quoted(name) }
}
