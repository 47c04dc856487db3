//! Options in force and their changes, as the daemon and its clients exchange them.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use toml::de::DeValue;

use crate::value::{Value, quoted};
use crate::{Config, Effective, Origin, OverlayKey, moment};

/// An option in force, as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    /// `section.key`, `section.name.key`, or `key` outside all sections.
    pub key: String,
    /// Its value without passwords; null if it is not set and has no default. Durations and sizes are texts with units.
    pub value: Json,
    /// Where it came from.
    pub origin: ShownOrigin,
}

/// Where a value came from, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "lowercase")]
pub enum ShownOrigin {
    /// Nobody set it.
    Default,
    /// The configuration file.
    File {
        /// Its path.
        file: String,
        /// The line, from 1.
        line: u64,
    },
    /// The database.
    Database {
        /// Who set it.
        who: String,
        /// When, in UTC by the database's clock.
        at: String,
    },
    /// An environment variable.
    Variable {
        /// Its name.
        name: String,
    },
    /// A flag of the command line.
    Flag {
        /// As it is written.
        name: String,
    },
}

/// Options in force, as `GET /v1/config` answers; after a change, those that it was about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfigPage {
    /// Number of the newest change in the database that they include; 0: none.
    pub version: i64,
    /// In the order of the documentation.
    pub options: Vec<Shown>,
}

/// What is to be set, as the body of `PUT /v1/config/{section}/{key}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetOption {
    /// Words as a variable has them, or TOML in brackets or quotes.
    pub value: String,
}

/// A change of what is set in the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigChange {
    /// Its number.
    pub id: i64,
    /// Section, such as `log` or `quota.daily`.
    pub section: String,
    /// Key in it.
    pub key: String,
    /// What it was; null: nothing was set there.
    pub before: Option<String>,
    /// What it became; null: nothing is set there any more.
    pub after: Option<String>,
    /// Who changed it.
    pub who: String,
    /// When, in UTC by the database's clock.
    pub at: String,
}

/// Changes, the newest first, as `GET /v1/config/history` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigHistory {
    /// As many as were asked for, if there are.
    pub changes: Vec<ConfigChange>,
}

impl ConfigPage {
    /// What `config` has in force of what a change at `place` was about; or all of it.
    #[must_use]
    pub fn of(config: &Config, version: i64, place: Option<&OverlayKey>) -> Self {
        let options = config.effective().into_iter().map(Shown::from);
        let options = match place.map(OverlayKey::text) {
            Some(text) => options.filter(|option| option.is_at_or_below(&text)).collect(),
            None => options.collect(),
        };
        Self { version, options }
    }
}

impl From<Effective> for Shown {
    fn from(option: Effective) -> Self {
        Self {
            key: option.key,
            value: option.value.as_deref().map_or(Json::Null, json_of_toml),
            origin: option.origin.into(),
        }
    }
}

impl From<Origin> for ShownOrigin {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Default => Self::Default,
            Origin::File(path, line) => Self::File { file: path.display().to_string(), line: line as u64 },
            Origin::Overlay { who, at_ms } => Self::Database { who, at: moment(at_ms) },
            Origin::Variable(name) => Self::Variable { name },
            Origin::Flag(name) => Self::Flag { name: name.to_owned() },
        }
    }
}

impl std::fmt::Display for ShownOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { file, line } => write!(f, "{file}:{line}"),
            Self::Database { who, at } => write!(f, "database ({who}, {at})"),
            Self::Variable { name } | Self::Flag { name } => f.write_str(name),
        }
    }
}

impl Shown {
    /// Whether it is the option or in the section that is named so.
    #[must_use]
    pub fn is_at_or_below(&self, name: &str) -> bool {
        self.key.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// The value as a configuration file would write it; `None`: not set.
    #[must_use]
    pub fn toml(&self) -> Option<String> {
        match &self.value {
            Json::Null => None,
            value => Some(toml_of_json(value)),
        }
    }
}

fn json_of_toml(text: &str) -> Json {
    match DeValue::parse(text) {
        Ok(value) => json(&Value::of_toml(value.get_ref())),
        Err(_) => Json::String(text.to_owned()),
    }
}

fn json(value: &Value) -> Json {
    match value {
        Value::Integer(text) | Value::Fraction(text) => {
            serde_json::from_str(text).unwrap_or_else(|_| Json::String(text.clone()))
        }
        Value::Boolean(value) => Json::Bool(*value),
        Value::Text(text) | Value::Words(text) | Value::Date(text) => Json::String(text.clone()),
        Value::Other(kind) => Json::String((*kind).to_owned()),
        Value::List(values) => Json::Array(values.iter().map(json).collect()),
        Value::Table(entries) => {
            Json::Object(entries.iter().map(|(name, value)| (name.clone(), json(value))).collect())
        }
    }
}

fn toml_of_json(value: &Json) -> String {
    match value {
        Json::String(text) => quoted(text),
        Json::Array(values) => format!("[{}]", values.iter().map(toml_of_json).collect::<Vec<_>>().join(", ")),
        Json::Object(entries) => {
            let entries: Vec<_> = entries
                .iter()
                .map(|(name, value)| format!("{} = {}", crate::value::key_part(name), toml_of_json(value)))
                .collect();
            format!("{{ {} }}", entries.join(", "))
        }
        other => other.to_string(),
    }
}
