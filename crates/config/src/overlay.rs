//! What is set in the database, over the file.
//!
//! Owns: which options and sections may be set there, how a row names one of them, and the layer that rows make: above
//! the file, below variables and flags, for these belong to one process and the database to all.
//! Never: reads or stores a row. Who stores one asks [`with_overlay`] first, with all rows as they would then be.

use crate::load::{is_section, nearest_key, nearest_section, set};
use crate::options::options;
use crate::sections::SectionInfo;
use crate::value::{Value, key_part};
use crate::{Config, ConfigError, Origin, Problem};

/// Longest value of a row, in bytes: an entry with all its keys is far shorter.
const VALUE_BYTES_MAX: usize = 8_192;

/// What a row is about.
///
/// | | section | key |
/// |---|---|---|
/// | an option | `log` | `level` |
/// | a key of a section with a name | `quota.daily` | `limit` |
/// | such a section as a whole | `quota` | `daily` |
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OverlayKey {
    /// Section; empty outside all sections.
    pub section: String,
    /// Key in it.
    pub key: String,
}

impl OverlayKey {
    /// Understands `log.level`, `quota.daily.limit` and `quota.daily`; a name with points in it may stand in quotes, as
    /// in `prices."gpt-4.1".input`, and must if its last part is the name of a key.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let row = |section: &str, key: &str| Self { section: section.to_owned(), key: key.to_owned() };
        let Some((kind, rest)) = text.split_once('.') else { return row("", text) };
        let Some(info) = SectionInfo::find(kind) else { return row(kind, rest) };
        if let Some((name, rest)) = rest.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
            return match rest.strip_prefix('.') {
                Some(key) => row(&format!("{kind}.{name}"), key),
                None => row(kind, name),
            };
        }
        match rest.rsplit_once('.') {
            // A name may have points of its own, so what follows the last is a key only where one has this name.
            Some((name, key)) if info.has_field(key) || !info.takes_points() => row(&format!("{kind}.{name}"), key),
            _ => row(kind, rest),
        }
    }

    /// As it is written for people; [`OverlayKey::parse`] understands it.
    #[must_use]
    pub fn text(&self) -> String {
        match self.section.split_once('.') {
            Some((kind, name)) => format!("{kind}.{}.{}", key_part(name), self.key),
            None if self.section.is_empty() => self.key.clone(),
            None if SectionInfo::find(&self.section).is_some() => format!("{}.{}", self.section, key_part(&self.key)),
            None => format!("{}.{}", self.section, self.key),
        }
    }
}

/// A value that is set in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayRow {
    /// What it is about.
    pub place: OverlayKey,
    /// The value: words as a variable has them, or TOML in brackets or quotes.
    pub value: String,
    /// Who set it.
    pub who: String,
    /// When, in ms since 1970 by the database's clock; 0 for a row that is only tried.
    pub at_ms: i64,
}

/// `base`, which has no rows yet, with these over its file. Variables and flags of `base` stay above them.
///
/// # Errors
///
/// Everything that is wrong with a row, and with what all of it makes together. Then nothing should be stored.
pub fn with_overlay<'a>(base: &Config, rows: impl IntoIterator<Item = &'a OverlayRow>) -> Result<Config, ConfigError> {
    let mut config = base.clone();
    let mut problems = Vec::new();
    let mut rows: Vec<_> = rows.into_iter().collect();
    // Whole sections first, so that a row about one key of it is above it.
    rows.sort_by_key(|row| (row.place.section.contains('.'), &row.place));
    for row in rows {
        problems.extend(apply(&mut config, row).err());
    }
    config.finish(problems)
}

fn apply(config: &mut Config, row: &OverlayRow) -> Result<(), Problem> {
    let origin = Origin::Overlay { who: row.who.clone(), at_ms: row.at_ms };
    let OverlayKey { section, key } = &row.place;
    if row.value.len() > VALUE_BYTES_MAX {
        return Err(Problem::Value {
            origin,
            key: row.place.text(),
            given: format!("{} bytes long", row.value.len()),
            expected: format!("at most {VALUE_BYTES_MAX} bytes"),
        });
    }
    let value = Value::of_overlay(&row.value);
    let (kind, name) = section.split_once('.').map_or((section.as_str(), None), |(kind, name)| (kind, Some(name)));
    match (SectionInfo::find(kind), name) {
        (Some(info), _) if !info.is_overlay => {
            Err(not_in_database(origin, info.heading(), "write it into the configuration file"))
        }
        (Some(info), Some(name)) => config.raw.set(info, name, key, value, origin),
        (Some(info), None) => put(config, info, key, value, origin),
        (None, _) => apply_option(config, row, &value, origin),
    }
}

/// Sets an option, unless this process was told otherwise by a variable or flag; the value is checked all the same.
fn apply_option(config: &mut Config, row: &OverlayRow, value: &Value, origin: Origin) -> Result<(), Problem> {
    let key = match row.place.section.as_str() {
        "" => row.place.key.clone(),
        section => format!("{section}.{}", row.place.key),
    };
    let Some(option) = options().iter().find(|option| option.key == key) else {
        let section = row.place.section.as_str();
        let is_known = section.is_empty() || is_section(section);
        return Err(match is_known {
            true => Problem::Unknown { origin, what: "key", hint: nearest_key(&key), name: key },
            false => {
                let hint = nearest_section(section);
                Problem::Unknown { origin, what: "section", name: format!("[{section}]"), hint }
            }
        });
    };
    if !option.is_overlay() {
        let hint = format!("set it in the configuration file or by {}", option.variable());
        return Err(not_in_database(origin, key, &hint));
    }
    match config.origin(option.key) {
        Origin::Variable(_) | Origin::Flag(_) => set(&mut config.clone(), option, value, origin),
        _ => set(config, option, value, origin),
    }
}

/// Sets a section with a name as a whole.
fn put(
    config: &mut Config,
    info: &'static SectionInfo,
    name: &str,
    value: Value,
    origin: Origin,
) -> Result<(), Problem> {
    let given = value.describe();
    let tables = match value {
        Value::Table(table) => Some(vec![table]),
        Value::List(values) if info.is_repeated && !values.is_empty() => {
            values.into_iter().map(|value| if let Value::Table(table) = value { Some(table) } else { None }).collect()
        }
        _ => None,
    };
    let Some(tables) = tables else {
        let fields: Vec<_> = (info.fields)().iter().map(|field| format!("{} = …", field.key)).collect();
        return Err(Problem::Value {
            origin,
            key: format!("{}.{}", info.kind, key_part(name)),
            given,
            expected: format!("one of its keys behind it, or all of them as {{ {} }}", fields.join(", ")),
        });
    };
    let sections = tables
        .into_iter()
        .map(|table| table.into_iter().map(|(key, value)| (key, value, origin.clone())).collect())
        .collect();
    config.raw.put(info, name, origin, sections);
    Ok(())
}

fn not_in_database(origin: Origin, key: String, hint: &str) -> Problem {
    Problem::NotInDatabase { origin, key, hint: hint.to_owned() }
}
