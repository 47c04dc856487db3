//! `tenure config`: what is configured, where it came from, and what is set in the database over it.
//!
//! Owns: the words of these commands and what they print.
//! Never: checks a value; the daemon does, against everything that is set there. How it is reached is behind
//! [`ConfigDoor`].

#[cfg(target_os = "linux")]
mod over_http;

use crate::exit::{self, Failure};
use crate::output::say;
use clap::Subcommand;
use std::fmt::Write as _;
use std::path::PathBuf;
use tenure_config::{ConfigChange, ConfigHistory, ConfigPage, LoadOptions, OverlayKey, Shown, ShownOrigin};

/// Nothing was found.
const NOT_FOUND: u8 = 3;
/// Most changes that are asked for; the database keeps no more.
const HISTORY_MAX: i64 = 1_000;

/// What is asked about the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigLine {
    /// Print every option in force and where its value came from
    Show {
        /// A section or option, such as `http` or `http.listen`; without it all
        #[arg(value_name = "KEY")]
        key: Option<String>,

        /// What files and variables say here, without asking the daemon
        #[arg(long)]
        local: bool,

        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Set an option in the database, for all daemons that share it
    Set {
        /// The option, such as `log.level` or `quota.daily.limit`, or a section with a name, such as `quota.daily`
        #[arg(value_name = "KEY")]
        key: String,

        /// Its value, such as `debug`; that of a whole section such as `{ per = "key", what = "runs", limit = 500 }`
        #[arg(value_name = "VALUE", allow_hyphen_values = true)]
        value: String,

        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Take back what was set in the database, so that the file holds again
    Unset {
        /// As it was set
        #[arg(value_name = "KEY")]
        key: String,

        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Print who set what in the database and when, the newest first
    History {
        /// As it was set; without it all
        #[arg(value_name = "KEY")]
        key: Option<String>,

        /// Most changes to print
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=HISTORY_MAX))]
        limit: u32,

        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// The configuration of a daemon, however it is reached.
pub(crate) trait ConfigDoor {
    /// Everything in force there; `None`: there is no daemon.
    fn show(&self) -> Result<Option<ConfigPage>, Failure>;
    /// Sets an option in the database; gives what is in force of it then.
    fn set(&self, place: &OverlayKey, value: &str) -> Result<ConfigPage, Failure>;
    /// Takes back what is set in the database; gives what is in force of it then.
    fn unset(&self, place: &OverlayKey) -> Result<ConfigPage, Failure>;
    /// At most `limit` changes, the newest first, of what was set there, or of all.
    fn history(&self, place: Option<&OverlayKey>, limit: u32) -> Result<ConfigHistory, Failure>;
}

/// Carries out what is asked and prints the answer; `file` is what the command line names as the configuration.
pub(crate) fn run(call: &ConfigLine, file: Option<PathBuf>) -> Result<(), Failure> {
    let config = tenure_config::load(LoadOptions::of_process(file))?;
    let here = || config.effective().into_iter().map(Shown::from).collect();
    let text = match call {
        ConfigLine::Show { key, json, local: true } => shown(here(), key.as_deref(), *json)?,
        _ => answer(call, &*door(&config)?, here)?,
    };
    say!("{text}");
    Ok(())
}

/// The way to the daemon that is configured here.
#[cfg(target_os = "linux")]
fn door(config: &tenure_config::Config) -> Result<Box<dyn ConfigDoor>, Failure> {
    let client = crate::http::Client::new(&crate::http::Place::of(config)?)?;
    let send = move |method, path: &str, body: Option<&serde_json::Value>| client.call(method, path, body);
    let config = config.clone();
    let alone = move |place: &OverlayKey, value: Option<&str>| {
        daemon::change_option(&config, place, value.map(str::to_owned)).map_err(crate::remote::offline)
    };
    Ok(Box::new(over_http::OverHttp(send, Box::new(alone))))
}

/// There is none in this build.
#[cfg(not(target_os = "linux"))]
fn door(_: &tenure_config::Config) -> Result<Box<dyn ConfigDoor>, Failure> {
    Err(Failure::new(exit::USAGE, "this build has no way to a daemon; `tenure config show --local` works everywhere"))
}

/// Asks the daemon; gives what is to be printed. `here` is what files and variables say in this process.
fn answer(call: &ConfigLine, door: &dyn ConfigDoor, here: impl FnOnce() -> Vec<Shown>) -> Result<String, Failure> {
    match call {
        ConfigLine::Show { key, json, .. } => {
            let options = door.show()?.map_or_else(here, |page| page.options);
            shown(options, key.as_deref(), *json)
        }
        ConfigLine::Set { key, value, json } => {
            let page = door.set(&place(key)?, value)?;
            if *json { json_of(&page) } else { Ok(after_set(&page)) }
        }
        ConfigLine::Unset { key, json } => {
            let place = place(key)?;
            let page = door.unset(&place)?;
            match (json, page.options.is_empty()) {
                (true, _) => json_of(&page),
                (false, true) => Ok(format!("# {} is set nowhere", place.text())),
                (false, false) => Ok(text_of(&page.options)),
            }
        }
        ConfigLine::History { key, limit, json } => {
            let place = key.as_deref().map(place).transpose()?;
            let history = door.history(place.as_ref(), *limit)?;
            if *json { json_of(&history) } else { Ok(history_text(&history)) }
        }
    }
}

fn place(text: &str) -> Result<OverlayKey, Failure> {
    let place = OverlayKey::parse(text);
    if place.section.is_empty() || place.key.is_empty() {
        let message = format!("{text} cannot be set in the database; what can be is named like `log.level`");
        return Err(Failure::new(exit::USAGE, message));
    }
    Ok(place)
}

/// Those options that are named `key` or in the section that is.
fn shown(mut options: Vec<Shown>, key: Option<&str>, json: bool) -> Result<String, Failure> {
    if let Some(key) = key {
        // A name with points in it needs no quotes here, as long as it is told from a key.
        let name = OverlayKey::parse(key).text();
        options.retain(|option| option.is_at_or_below(&name));
        if options.is_empty() {
            let message = format!("nothing is named {key}; `tenure config show` prints all options");
            return Err(Failure::new(NOT_FOUND, message));
        }
    }
    if json { json_of(&options) } else { Ok(text_of(&options)) }
}

fn json_of(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map_err(|error| Failure::new(exit::FAILED, error))
}

/// What is in force now; and why, if it is not what was set.
fn after_set(page: &ConfigPage) -> String {
    let mut text = text_of(&page.options);
    for option in &page.options {
        if let ShownOrigin::Variable { name } | ShownOrigin::Flag { name } = &option.origin {
            let _ = write!(text, "\n# stored, but {name} wins in the daemon that answered");
        }
    }
    text
}

/// What others wrote must not move the cursor.
fn plain(text: &str) -> String {
    text.replace(|c: char| c.is_control(), "\u{fffd}")
}

/// A line for each change.
fn history_text(history: &ConfigHistory) -> String {
    let value = |value: &Option<String>| value.as_deref().map_or_else(|| "not set".to_owned(), plain);
    let line = |change: &ConfigChange| {
        let place = OverlayKey { section: change.section.clone(), key: change.key.clone() };
        let (before, after) = (value(&change.before), value(&change.after));
        let (who, place) = (plain(&change.who), plain(&place.text()));
        format!("{} {}  {who}  {place}: {before} -> {after}", change.id, change.at)
    };
    history.changes.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A configuration file that says the same, with the origin of each value beside it.
fn text_of(options: &[Shown]) -> String {
    /// Beyond this a long value moves only its own origin.
    const WIDTH_MAX: usize = 48;
    let lines: Vec<_> = options
        .iter()
        .map(|option| match option.toml() {
            Some(value) => (format!("{} = {value}", option.key), plain(&option.origin.to_string())),
            None => (format!("# {} is not set", option.key), String::new()),
        })
        .collect();
    let width =
        lines.iter().map(|(line, _)| line.chars().count()).filter(|width| *width <= WIDTH_MAX).max().unwrap_or(0);
    let mut text = String::new();
    for (line, origin) in lines {
        let line = if origin.is_empty() { line } else { format!("{line:width$}  # {origin}") };
        let _ = writeln!(text, "{line}");
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests;
