//! Finding and reading the layers: defaults, one file, variables.

use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::names::nearest;
use crate::options::{OptionInfo, options};
use crate::sections::{SectionInfo, section_kinds};
use crate::value::{Value, key_part};
use crate::{Config, ConfigError, Origin, Problem, Sources};

/// How the variables begin that may be meant for an option.
const VARIABLES: &str = "TENURE_";
/// The variable that names the file.
const FILE_VARIABLE: &str = "TENURE_CONFIG";

/// Where to look. Everything comes in here, so that a test can say it all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadOptions<Environment> {
    /// The file given by `-c`; it must exist.
    pub explicit: Option<PathBuf>,
    /// Names and values of variables; those that concern others are passed over.
    pub environment: Environment,
    /// Folder in which the program was started; `tenure.toml` there comes before the user's.
    pub folder: PathBuf,
    /// The machine's file, the last one looked for.
    pub system_file: PathBuf,
}

impl LoadOptions<Vec<(String, String)>> {
    /// This process's own environment and folder. Variables that are not UTF-8 are passed over.
    #[must_use]
    pub fn of_process(explicit: Option<PathBuf>) -> Self {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self {
            explicit,
            environment,
            folder: PathBuf::from("."),
            system_file: PathBuf::from("/etc/tenure/tenure.toml"),
        }
    }
}

/// Reads the first file there is, in this order: the one given, the one named by `TENURE_CONFIG`, `tenure.toml` in the
/// folder, the user's, the machine's; then the variables `TENURE_SECTION__KEY`. Without any of them, the defaults.
///
/// # Errors
///
/// Everything that is wrong in the file and in the variables, at once; a file that was named but cannot be read.
pub fn load<Environment>(options: LoadOptions<Environment>) -> Result<Config, ConfigError>
where
    Environment: IntoIterator<Item = (String, String)>,
{
    load_with_sources(options).map(|(config, _)| config)
}

/// As [`load`]; also what was read, from which [`read`] makes the same configuration in another process.
///
/// # Errors
///
/// As of [`load`].
pub fn load_with_sources<Environment>(options: LoadOptions<Environment>) -> Result<(Config, Sources), ConfigError>
where
    Environment: IntoIterator<Item = (String, String)>,
{
    let environment: Vec<(String, String)> = options.environment.into_iter().collect();
    let named = options.explicit.or_else(|| variable(&environment, FILE_VARIABLE).map(PathBuf::from));
    let (file, problem) = match read_first(named, &environment, &options.folder, options.system_file) {
        Ok(file) => (file, None),
        Err(problem) => (None, Some(problem)),
    };
    let variables = environment.into_iter().filter(|(name, _)| name.starts_with(VARIABLES)).collect();
    let sources = Sources { file, variables };
    let config = apply(&sources, problem.into_iter().collect())?;
    Ok((config, sources))
}

/// Reads what was found before.
///
/// # Errors
///
/// Everything that is wrong in it, at once.
pub fn read(sources: &Sources) -> Result<Config, ConfigError> {
    apply(sources, Vec::new())
}

fn apply(sources: &Sources, mut problems: Vec<Problem>) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    if let Some((path, text)) = &sources.file {
        apply_file(&mut config, path, text, &mut problems);
    }
    apply_variables(&mut config, &sources.variables, &mut problems);
    config.finish(problems)
}

/// Sets `key` from a text that may stand for any type.
pub(crate) fn set_text(config: &mut Config, key: &str, text: &str, origin: Origin) -> Result<(), Problem> {
    match options().iter().find(|option| option.key == key) {
        Some(option) => set(config, option, &Value::Words(text.to_owned()), origin),
        None => Err(Problem::Unknown { origin, what: "key", name: key.to_owned(), hint: nearest_key(key) }),
    }
}

fn variable<'a>(environment: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let (_, value) = environment.iter().find(|(other, value)| other == name && !value.is_empty())?;
    Some(value)
}

fn read_first(
    named: Option<PathBuf>,
    environment: &[(String, String)],
    folder: &Path,
    system_file: PathBuf,
) -> Result<Option<(PathBuf, String)>, Problem> {
    let unreadable =
        |path: &Path, error: std::io::Error| Problem::Unreadable { path: path.to_owned(), reason: error.to_string() };
    if let Some(path) = named {
        let text = fs::read_to_string(folder.join(&path)).map_err(|error| unreadable(&path, error))?;
        return Ok(Some((path, text)));
    }
    let users = variable(environment, "XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| variable(environment, "HOME").map(|home| Path::new(home).join(".config")));
    let candidates = [
        Some(folder.join("tenure.toml")),
        users.map(|folder| folder.join("tenure").join("tenure.toml")),
        Some(system_file),
    ];
    for path in candidates.into_iter().flatten() {
        match fs::read_to_string(&path) {
            Ok(text) => return Ok(Some((path, text))),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            // A file that is there but closed to us must not silently give way to the next.
            Err(error) => return Err(unreadable(&path, error)),
        }
    }
    Ok(None)
}

fn apply_file(config: &mut Config, path: &Path, text: &str, problems: &mut Vec<Problem>) {
    let origin = |span: Range<usize>| Origin::File(path.to_owned(), line_of(text, span.start));
    let table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => {
            let origin = origin(error.span().unwrap_or_default());
            problems.push(Problem::Syntax { origin, reason: error.message().to_owned() });
            return;
        }
    };
    for (name, value) in table.get_ref() {
        let section = name.get_ref().as_ref();
        let info = SectionInfo::find(section);
        match (info, value.get_ref()) {
            (Some(info), DeValue::Table(entries)) => apply_named(config, info, entries, &origin, problems),
            (None, DeValue::Table(entries)) if is_section(section) => {
                for (name, value) in entries {
                    apply_entry(config, Some(section), name, value, &origin, problems);
                }
            }
            (None, _) if !is_section(section) => apply_entry(config, None, name, value, &origin, problems),
            _ => problems.push(Problem::Unknown {
                origin: origin(name.span()),
                what: "key",
                name: section.to_owned(),
                hint: format!("{} is a section", info.map_or(format!("[{section}]"), SectionInfo::heading)),
            }),
        }
    }
}

/// Gathers the entries of a kind of sections with names.
fn apply_named(
    config: &mut Config,
    info: &'static SectionInfo,
    entries: &DeTable<'_>,
    origin: &dyn Fn(Range<usize>) -> Origin,
    problems: &mut Vec<Problem>,
) {
    let values = |table: &DeTable<'_>| {
        let value = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
            (key.get_ref().to_string(), Value::of_toml(value.get_ref()), origin(value.span()))
        };
        table.iter().map(value).collect::<Vec<_>>()
    };
    for (name, value) in entries {
        let at = origin(name.span());
        let entry = || format!("{}.{}", info.kind, key_part(name.get_ref()));
        let sections = match value.get_ref() {
            DeValue::Table(table) => vec![values(table)],
            DeValue::Array(list) if !list.is_empty() => {
                let tables: Option<Vec<_>> = list.iter().map(|value| value.get_ref().as_table().map(values)).collect();
                match tables {
                    Some(tables) if info.is_repeated => tables,
                    Some(_) => {
                        let wrong = format!("stands in double brackets; write it once, as [{}]", entry());
                        problems.push(Problem::Entry { origin: at, entry: entry(), wrong });
                        continue;
                    }
                    None => {
                        problems.push(not_an_entry(info, at, entry()));
                        continue;
                    }
                }
            }
            _ => {
                problems.push(not_an_entry(info, at, entry()));
                continue;
            }
        };
        config.raw.put(info, name.get_ref(), at, sections);
    }
}

fn not_an_entry(info: &SectionInfo, origin: Origin, name: String) -> Problem {
    let hint = format!("what stands in {} has a name of its own between the brackets", info.heading());
    Problem::Unknown { origin, what: "key", name, hint }
}

fn apply_entry(
    config: &mut Config,
    section: Option<&str>,
    name: &Spanned<DeString<'_>>,
    value: &Spanned<DeValue<'_>>,
    origin: &dyn Fn(Range<usize>) -> Origin,
    problems: &mut Vec<Problem>,
) {
    let key = section.map_or_else(|| name.get_ref().to_string(), |section| format!("{section}.{}", name.get_ref()));
    let result = match options().iter().find(|option| option.key == key) {
        Some(option) => set(config, option, &Value::of_toml(value.get_ref()), origin(value.span())),
        None if section.is_none() && value.get_ref().is_table() => Err(Problem::Unknown {
            origin: origin(name.span()),
            what: "section",
            name: format!("[{key}]"),
            hint: nearest_section(&key),
        }),
        None => Err(Problem::Unknown { origin: origin(name.span()), what: "key", hint: nearest_key(&key), name: key }),
    };
    problems.extend(result.err());
}

fn apply_variables(config: &mut Config, environment: &[(String, String)], problems: &mut Vec<Problem>) {
    let mut variables: Vec<_> = environment.iter().filter(|(name, _)| name.starts_with(VARIABLES)).collect();
    variables.sort(); // the environment has no order, but messages should
    let (aliases, variables): (Vec<_>, Vec<_>) =
        variables.into_iter().partition(|(name, _)| options().iter().any(|option| option.alias() == Some(name)));
    for (name, value) in variables {
        let words = Value::Words(value.clone());
        if let Some(option) = options().iter().find(|option| option.variable() == *name) {
            problems.extend(set(config, option, &words, Origin::Variable(name.clone())).err());
        } else if let Some(info) = section_kinds().iter().find(|info| is_in(info, name)) {
            problems.push(Problem::NotByVariable { name: name.clone(), section: info.heading() });
        } else if name.contains("__") {
            // Without the two underscores it may be anybody's, with them it was meant for us.
            problems.push(Problem::UnknownVariable { name: name.clone(), hint: nearest_variable(name) });
        }
    }
    // Behind the others, because they win.
    for (name, value) in aliases.into_iter().filter(|(_, value)| !value.is_empty()) {
        if let Some(option) = options().iter().find(|option| option.alias() == Some(name)) {
            problems.extend(set(config, option, &Value::Words(value.clone()), Origin::Variable(name.clone())).err());
        }
    }
}

/// Whether a variable can only mean an entry of this kind.
fn is_in(info: &SectionInfo, variable: &str) -> bool {
    let rest = variable.strip_prefix("TENURE_").and_then(|rest| rest.strip_prefix(&info.kind.to_ascii_uppercase()));
    rest.is_some_and(|rest| rest.starts_with("__"))
}

pub(crate) fn set(config: &mut Config, option: &OptionInfo, given: &Value, origin: Origin) -> Result<(), Problem> {
    match option.set(config, given) {
        Ok(()) => {
            config.origins.insert(option.key, origin);
            Ok(())
        }
        Err(expected) => Err(Problem::Value {
            origin,
            key: option.key.to_owned(),
            given: if option.is_secret() { "a value that is not shown".to_owned() } else { given.describe() },
            expected: expected.to_owned(),
        }),
    }
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

fn sections() -> Vec<&'static str> {
    let mut sections: Vec<_> = options().iter().filter_map(|option| option.section_and_name().0).collect();
    sections.dedup(); // the table is ordered by section
    sections
}

pub(crate) fn is_section(name: &str) -> bool {
    sections().contains(&name)
}

pub(crate) fn nearest_section(name: &str) -> String {
    let kinds = || section_kinds().iter().map(|info| info.kind);
    let heading = |name: &str| SectionInfo::find(name).map_or(format!("[{name}]"), SectionInfo::heading);
    let known: Vec<_> = sections().into_iter().chain(kinds()).collect();
    let all = || known.iter().map(|name| heading(name)).collect::<Vec<_>>().join(", ");
    match nearest(name, known.clone()) {
        Some(section) => format!("did you mean {}?", heading(section)),
        None => format!("the sections are {}", all()),
    }
}

/// Looks in the key's own section first, then for the same name elsewhere.
pub(crate) fn nearest_key(key: &str) -> String {
    let (section, name) = key.split_once('.').map_or((None, key), |(section, name)| (Some(section), name));
    let own = || options().iter().filter(move |option| option.section_and_name().0 == section);
    if let Some(found) = nearest(name, own().map(|option| option.section_and_name().1).collect()) {
        return match section {
            Some(section) => format!("did you mean {section}.{found}?"),
            None => format!("did you mean {found}?"),
        };
    }
    if let Some(option) = options().iter().find(|option| option.section_and_name().1 == name) {
        return format!("did you mean {}?", option.key);
    }
    let names: Vec<_> = own().map(|option| option.section_and_name().1).collect();
    match section {
        Some(section) => format!("the keys of [{section}] are {}", names.join(", ")),
        None => format!("the only key outside all sections is {}", names.join(", ")),
    }
}

fn nearest_variable(name: &str) -> String {
    let variables: Vec<String> = options().iter().map(OptionInfo::variable).collect();
    match nearest(name, variables.iter().map(String::as_str).collect()) {
        Some(variable) => format!("did you mean {variable}?"),
        None => "variables are named TENURE_SECTION__KEY after the options".to_owned(),
    }
}
