//! Sections whose names are chosen by who writes them, such as `[keys.NAME]`.
//!
//! Owns: which kinds of them there are, what stands in each, how they are gathered from the layers and checked one by one.
//! Never: knows more of an entry than its own section says. What several entries mean together, such as a graph, is
//! checked by who reads them.
//!
//! The layers are gathered as they are written ([`Raw`]); only then is each entry made into its type. So a layer may
//! say one key of an entry and leave the others to the layer below.

mod keys;
mod prices;
mod quota;

pub use keys::{KeyEntry, KeySource};
pub use prices::Price;
pub use quota::{Quota, QuotaLimit};

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};

use crate::names::nearest;
use crate::options::text;
use crate::secret::STARS;
use crate::value::{Value, key_part};
use crate::{Effective, Origin, Problem};

/// A kind of section with names.
#[derive(Debug, Clone, Copy)]
pub struct SectionInfo {
    /// The first word, `keys` in `[keys.NAME]`.
    pub kind: &'static str,
    /// What the name stands for, `NAME` in `[keys.NAME]`.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// Whether it may be set in the database.
    pub is_overlay: bool,
    /// Whether it may stand several times under one name, as `[[prices.MODEL]]`.
    pub is_repeated: bool,
    /// What stands in it, in the order of the documentation.
    pub fields: fn() -> Vec<&'static FieldInfo>,
    /// What a name may be, for a message.
    name_rule: &'static str,
    is_name: fn(&str) -> bool,
}

/// A key of a section with names.
#[derive(Debug, Clone, Copy)]
pub struct FieldInfo {
    /// Its name.
    pub key: &'static str,
    /// What kind of value it takes.
    pub kind: &'static str,
    /// Whether it may be left out, and then what holds.
    pub default: Option<&'static str>,
    /// What it decides.
    pub about: &'static str,
    /// What to write, in the words after "write".
    expected: &'static str,
    /// Whether what is written there is never repeated to anybody.
    is_secret: bool,
}

/// A key of a section with names, and how its value gets into a draft.
struct Field<Draft: 'static> {
    info: FieldInfo,
    set: fn(&mut Draft, &Value) -> Option<()>,
}

/// A kind of section with names, as its own module defines it.
trait Section: Sized {
    /// What its values are collected in.
    type Draft: Default + 'static;
    /// All that stands under one name.
    type Whole;
    const INFO: SectionInfo;
    fn fields() -> &'static [Field<Self::Draft>];
    /// Makes a section of its values, or says what is wrong in words that follow its name.
    fn finish(draft: Self::Draft) -> Result<Self, String>;
    /// Puts together what stands under one name; `sections` is never empty.
    fn gather(sections: Vec<Self>) -> Result<Self::Whole, String>;
}

impl SectionInfo {
    /// As it is written, such as `[keys.NAME]`.
    #[must_use]
    pub fn heading(&self) -> String {
        format!("[{}.{}]", self.kind, self.name)
    }

    pub(crate) fn find(kind: &str) -> Option<&'static Self> {
        section_kinds().iter().find(|info| info.kind == kind)
    }

    pub(crate) fn has_field(&self, key: &str) -> bool {
        (self.fields)().iter().any(|field| field.key == key)
    }

    /// Whether a name may have points in it.
    pub(crate) fn takes_points(&self) -> bool {
        (self.is_name)("a.b")
    }

    /// The key that names an entry of this kind.
    fn entry(&self, name: &str) -> String {
        format!("{}.{}", self.kind, key_part(name))
    }
}

/// Every kind of section with names, in the order of the documentation.
#[must_use]
pub fn section_kinds() -> &'static [SectionInfo] {
    static KINDS: &[SectionInfo] = &[KeyEntry::INFO, Quota::INFO, Price::INFO];
    KINDS
}

/// Names that can stand in a variable, a path of HTTP and a line of a log without quotes.
fn is_plain_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}
const PLAIN_NAME: &str = "letters, digits, _ and -, at most 64 of them";

/// Every entry as the layers give it.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Raw(BTreeMap<&'static str, BTreeMap<String, RawEntry>>);

impl Debug for Raw {
    /// Names only: what stands in an entry may be a secret.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(kind, entries)| (kind, entries.keys()))).finish()
    }
}

#[derive(Clone, PartialEq, Eq)]
struct RawEntry {
    /// Where its name stands first.
    origin: Origin,
    sections: Vec<BTreeMap<String, RawValue>>,
}

#[derive(Clone, PartialEq, Eq)]
struct RawValue {
    value: Value,
    origin: Origin,
}

impl Raw {
    /// Puts a whole entry in the place of what a lower layer says.
    pub(crate) fn put(
        &mut self,
        info: &'static SectionInfo,
        name: &str,
        origin: Origin,
        sections: Vec<Vec<(String, Value, Origin)>>,
    ) {
        let section = |values: Vec<(String, Value, Origin)>| {
            values.into_iter().map(|(key, value, origin)| (key, RawValue { value, origin })).collect()
        };
        let entry = RawEntry { origin, sections: sections.into_iter().map(section).collect() };
        self.0.entry(info.kind).or_default().insert(name.to_owned(), entry);
    }

    /// Sets one key of an entry, which need not be there.
    pub(crate) fn set(
        &mut self,
        info: &'static SectionInfo,
        name: &str,
        key: &str,
        value: Value,
        origin: Origin,
    ) -> Result<(), Problem> {
        let entry = self.0.entry(info.kind).or_default().entry(name.to_owned());
        let entry = entry.or_insert_with(|| RawEntry { origin: origin.clone(), sections: vec![BTreeMap::new()] });
        match entry.sections.as_mut_slice() {
            [section] => {
                section.insert(key.to_owned(), RawValue { value, origin });
                Ok(())
            }
            several => Err(Problem::Entry {
                origin,
                entry: info.entry(name),
                wrong: format!("stands {} times; set it as a whole, as a list of tables", several.len()),
            }),
        }
    }

    /// Makes the entries of every kind, and tells what is wrong with those that cannot be made.
    pub(crate) fn build(&self, problems: &mut Vec<Problem>) -> Sections {
        Sections {
            keys: self.build_kind::<KeyEntry>(problems),
            quotas: self.build_kind::<Quota>(problems),
            prices: self.build_kind::<Price>(problems),
        }
    }

    fn build_kind<S: Section>(&self, problems: &mut Vec<Problem>) -> BTreeMap<String, S::Whole> {
        let mut entries = BTreeMap::new();
        for (name, entry) in self.0.get(S::INFO.kind).into_iter().flatten() {
            let before = problems.len();
            let wrong =
                |wrong: String| Problem::Entry { origin: entry.origin.clone(), entry: S::INFO.entry(name), wrong };
            if !(S::INFO.is_name)(name) {
                problems.push(wrong(format!("has a name that cannot be; write {}", S::INFO.name_rule)));
            }
            let mut sections = Vec::new();
            for values in &entry.sections {
                match draft::<S>(name, values, problems) {
                    Some(draft) => match missing::<S>(values).map_or_else(|| S::finish(draft), Err) {
                        Ok(section) => sections.push(section),
                        Err(words) => problems.push(wrong(words)),
                    },
                    None => continue,
                }
            }
            if problems.len() == before {
                match S::gather(sections) {
                    Ok(whole) => drop(entries.insert(name.clone(), whole)),
                    Err(words) => problems.push(wrong(words)),
                }
            }
        }
        entries
    }

    /// What is set, a line for each key; an entry that stands several times is one.
    pub(crate) fn effective(&self) -> Vec<Effective> {
        let mut lines = Vec::new();
        for info in section_kinds() {
            for (name, entry) in self.0.get(info.kind).into_iter().flatten() {
                let key = info.entry(name);
                if let [section] = entry.sections.as_slice() {
                    lines.extend(shown(info, section).map(|(field, value, origin)| Effective {
                        key: format!("{key}.{field}"),
                        value: Some(value),
                        origin: origin.clone(),
                    }));
                } else {
                    let tables = entry.sections.iter().map(|section| {
                        let values: Vec<_> =
                            shown(info, section).map(|(field, value, _)| format!("{field} = {value}")).collect();
                        format!("{{ {} }}", values.join(", "))
                    });
                    let value = format!("[{}]", tables.collect::<Vec<_>>().join(", "));
                    lines.push(Effective { key, value: Some(value), origin: entry.origin.clone() });
                }
            }
        }
        lines
    }
}

/// What is set in a section: keys in the order of the documentation, values as a file would write them, and their origins.
fn shown<'a>(
    info: &SectionInfo,
    section: &'a BTreeMap<String, RawValue>,
) -> impl Iterator<Item = (&'static str, String, &'a Origin)> {
    (info.fields)().into_iter().filter_map(|field| {
        let RawValue { value, origin } = section.get(field.key)?;
        let value = if field.is_secret { crate::value::quoted(STARS) } else { value.to_toml() };
        Some((field.key, value, origin))
    })
}

/// Every entry, made of what the layers say.
pub(crate) struct Sections {
    pub(crate) keys: BTreeMap<String, KeyEntry>,
    pub(crate) quotas: BTreeMap<String, Quota>,
    pub(crate) prices: BTreeMap<String, Vec<Price>>,
}

/// The values of a section; `None` if one of them is wrong, which is told.
fn draft<S: Section>(name: &str, values: &BTreeMap<String, RawValue>, problems: &mut Vec<Problem>) -> Option<S::Draft> {
    let mut draft = S::Draft::default();
    let before = problems.len();
    for (key, RawValue { value, origin }) in values {
        let full = format!("{}.{}", S::INFO.entry(name), key_part(key));
        match S::fields().iter().find(|field| field.info.key == key) {
            Some(field) if (field.set)(&mut draft, value).is_some() => {}
            Some(Field { info, .. }) => problems.push(Problem::Value {
                origin: origin.clone(),
                key: full,
                given: if info.is_secret { "a text that is not shown".to_owned() } else { value.describe() },
                expected: info.expected.to_owned(),
            }),
            None => {
                let names: Vec<_> = S::fields().iter().map(|field| field.info.key).collect();
                let hint = match nearest(key, names.clone()) {
                    Some(found) => format!("did you mean {}.{found}?", S::INFO.entry(name)),
                    None => format!("the keys of {} are {}", S::INFO.heading(), names.join(", ")),
                };
                problems.push(Problem::Unknown { origin: origin.clone(), what: "key", name: full, hint });
            }
        }
    }
    (problems.len() == before).then_some(draft)
}

/// What must be said and is not, in words that follow the section's name.
fn missing<S: Section>(values: &BTreeMap<String, RawValue>) -> Option<String> {
    let missing: Vec<_> = S::fields()
        .iter()
        .filter(|field| field.info.default.is_none() && !values.contains_key(field.info.key))
        .map(|field| format!("has no {}; write {}", field.info.key, field.info.expected))
        .collect();
    (!missing.is_empty()).then(|| missing.join("; "))
}

/// A list of words: a list of strings, or words with commas between them.
fn words(given: &Value) -> Option<Vec<&str>> {
    match given {
        Value::List(values) => values.iter().map(text).collect(),
        Value::Words(words) => Some(words.split(',').map(str::trim).collect()),
        _ => None,
    }
}
