//! Finding and reading the layers: defaults, one file, variables.

use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::options::{Given, OptionInfo, options};
use crate::{Config, ConfigError, Origin, Problem};

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
    let environment: Vec<(String, String)> = options.environment.into_iter().collect();
    let mut config = Config::default();
    let mut problems = Vec::new();
    let named = options.explicit.or_else(|| variable(&environment, FILE_VARIABLE).map(PathBuf::from));
    match read_first(named, &environment, &options.folder, options.system_file) {
        Ok(Some((path, text))) => apply_file(&mut config, &path, &text, &mut problems),
        Ok(None) => {}
        Err(problem) => problems.push(problem),
    }
    apply_variables(&mut config, &environment, &mut problems);
    if problems.is_empty() { Ok(config) } else { Err(ConfigError { problems }) }
}

/// Sets `key` from a text that may stand for any type.
pub(crate) fn set_text(config: &mut Config, key: &str, text: &str, origin: Origin) -> Result<(), Problem> {
    match options().iter().find(|option| option.key == key) {
        Some(option) => set(config, option, Given::Words(text), origin),
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
    let mut problems_at = Vec::new();
    for (name, value) in table.get_ref() {
        let section = name.get_ref().as_ref();
        if !is_section(section) {
            apply_entry(config, None, name, value, &origin, &mut problems_at);
        } else if let DeValue::Table(entries) = value.get_ref() {
            for (name, value) in entries {
                apply_entry(config, Some(section), name, value, &origin, &mut problems_at);
            }
        } else {
            let problem = Problem::Unknown {
                origin: origin(name.span()),
                what: "key",
                name: section.to_owned(),
                hint: format!("[{section}] is a section"),
            };
            problems_at.push((name.span().start, problem));
        }
    }
    // The parser hands keys out in alphabetic order; people read from the top.
    problems_at.sort_by_key(|(at, _)| *at);
    problems.extend(problems_at.into_iter().map(|(_, problem)| problem));
}

fn apply_entry(
    config: &mut Config,
    section: Option<&str>,
    name: &Spanned<std::borrow::Cow<'_, str>>,
    value: &Spanned<DeValue<'_>>,
    origin: &dyn Fn(Range<usize>) -> Origin,
    problems: &mut Vec<(usize, Problem)>,
) {
    let key = section.map_or_else(|| name.get_ref().to_string(), |section| format!("{section}.{}", name.get_ref()));
    let result = match options().iter().find(|option| option.key == key) {
        Some(option) => set(config, option, given(value.get_ref()), origin(value.span())),
        None if section.is_none() && value.get_ref().is_table() => Err(Problem::Unknown {
            origin: origin(name.span()),
            what: "section",
            name: format!("[{key}]"),
            hint: nearest_section(&key),
        }),
        None => Err(Problem::Unknown { origin: origin(name.span()), what: "key", hint: nearest_key(&key), name: key }),
    };
    problems.extend(result.err().map(|problem| (name.span().start, problem)));
}

fn apply_variables(config: &mut Config, environment: &[(String, String)], problems: &mut Vec<Problem>) {
    let mut variables: Vec<_> = environment.iter().filter(|(name, _)| name.starts_with("TENURE_")).collect();
    variables.sort(); // the environment has no order, but messages should
    for (name, value) in variables {
        let origin = Origin::Variable(name.clone());
        if let Some(option) = options().iter().find(|option| option.variable() == *name) {
            problems.extend(set(config, option, Given::Words(value), origin).err());
        } else if name.contains("__") {
            // Without the two underscores it may be anybody's, with them it was meant for us.
            problems.push(Problem::UnknownVariable { name: name.clone(), hint: nearest_variable(name) });
        }
    }
}

fn set(config: &mut Config, option: &OptionInfo, given: Given<'_>, origin: Origin) -> Result<(), Problem> {
    match option.set(config, given) {
        Ok(()) => {
            config.origins.insert(option.key, origin);
            Ok(())
        }
        Err(expected) => {
            Err(Problem::Value { origin, key: option.key, given: describe(given), expected: expected.to_owned() })
        }
    }
}

fn given<'a>(value: &'a DeValue<'_>) -> Given<'a> {
    match value {
        DeValue::String(text) => Given::Text(text),
        // Other radixes and separators are numbers too, but no option needs them.
        DeValue::Integer(number) if number.radix() == 10 => Given::Integer(number.as_str()),
        DeValue::Integer(_) => Given::Other("a number that is not decimal"),
        DeValue::Boolean(value) => Given::Boolean(*value),
        DeValue::Float(_) => Given::Other("a number with a fraction"),
        DeValue::Datetime(_) => Given::Other("a date or time"),
        DeValue::Array(_) => Given::Other("a list"),
        DeValue::Table(_) => Given::Other("a table"),
    }
}

fn describe(given: Given<'_>) -> String {
    match given {
        Given::Text(text) | Given::Words(text) => format!("{text:?}"),
        Given::Integer(text) => format!("the number {text}"),
        Given::Boolean(value) => value.to_string(),
        Given::Other(kind) => kind.to_owned(),
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

fn is_section(name: &str) -> bool {
    sections().contains(&name)
}

fn nearest_section(name: &str) -> String {
    let all = || sections().iter().map(|section| format!("[{section}]")).collect::<Vec<_>>().join(", ");
    match nearest(name, sections()) {
        Some(section) => format!("did you mean [{section}]?"),
        None => format!("the sections are {}", all()),
    }
}

/// Looks in the key's own section first, then for the same name elsewhere.
fn nearest_key(key: &str) -> String {
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

/// The candidate with the fewest typing mistakes, if they are few for the length of the word.
fn nearest<'a>(word: &str, candidates: Vec<&'a str>) -> Option<&'a str> {
    let mistakes_max = 1.max(word.len() / 3);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(mistakes, _)| *mistakes <= mistakes_max)
        .min_by_key(|(mistakes, _)| *mistakes)
        .map(|(_, candidate)| candidate)
}
