//! `tenure config`: what is configured, and where it came from.

use crate::exit::{self, Failure};
use crate::output::say;
use clap::Subcommand;
use std::fmt::Write as _;
use std::path::PathBuf;
use tenure_config::{LoadOptions, OverlayKey, Shown};

/// What is asked about the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigLine {
    /// Print every option in force and where its value came from
    Show {
        /// A section or option, such as `http` or `http.listen`; without it all
        #[arg(value_name = "KEY")]
        key: Option<String>,

        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// Carries out what is asked; `config` is the file that the command line names.
pub(crate) fn run(call: &ConfigLine, config: Option<PathBuf>) -> Result<(), Failure> {
    match call {
        ConfigLine::Show { key, json } => {
            let config = tenure_config::load(LoadOptions::of_process(config))?;
            let options: Vec<Shown> = config.effective().into_iter().map(Shown::from).collect();
            let options = chosen(options, key.as_deref())?;
            say!("{}", if *json { json_of(&options)? } else { text_of(&options) });
            Ok(())
        }
    }
}

/// Those at or below `key`.
fn chosen(mut options: Vec<Shown>, key: Option<&str>) -> Result<Vec<Shown>, Failure> {
    /// Nothing was found.
    const NOT_FOUND: u8 = 3;
    if let Some(key) = key {
        // A name with points in it needs no quotes here, as long as it is told from a key.
        let key = OverlayKey::parse(key).text();
        let key = key.as_str();
        let is_below =
            |option: &Shown| option.key.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        options.retain(is_below);
        if options.is_empty() {
            return Err(Failure::new(
                NOT_FOUND,
                format!("nothing is named {key}; `tenure config show` prints all options"),
            ));
        }
    }
    Ok(options)
}

fn json_of(value: &[Shown]) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map_err(|error| Failure::new(exit::FAILED, error))
}

/// A configuration file that says the same, with the origin of each value beside it.
fn text_of(options: &[Shown]) -> String {
    /// Beyond this a long value moves only its own origin.
    const WIDTH_MAX: usize = 48;
    let lines: Vec<_> = options
        .iter()
        .map(|option| match option.toml() {
            Some(value) => (format!("{} = {value}", option.key), option.origin.to_string()),
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
mod tests {
    use super::*;
    use expect_test::expect;
    use std::path::Path;

    fn shown(file: &str, variables: &[(&str, &str)], key: &str) -> Result<Vec<Shown>, Failure> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tenure-config-show-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("t.toml"), file).unwrap();
        let options = LoadOptions {
            explicit: Some("t.toml".into()),
            environment: variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
            folder: folder.clone(),
            system_file: Path::new("/nonexistent").to_owned(),
        };
        let config = tenure_config::load(options);
        std::fs::remove_dir_all(&folder).unwrap();
        let options = config.unwrap().effective().into_iter().map(Shown::from).collect();
        chosen(options, (!key.is_empty()).then_some(key))
    }

    #[test]
    fn w18_each_option_is_shown_with_its_origin_and_no_password() {
        let file = "[database]\nurl = \"postgres://tenure:canary@db.example/tenure?application_name=tenure\"\n[prices.\"gpt-4.1\"]\ninput = 2.5\noutput = 10\n";
        let options = shown(file, &[("TENURE_DATABASE__POOL_SIZE", "9")], "database").unwrap();
        expect![[r#"
            database.url = "postgres://tenure:***@db.example/tenure?application_name=tenure"  # t.toml:2
            # database.direct_url is not set
            database.pooler = "none"          # default
            database.pool_size = 9            # TENURE_DATABASE__POOL_SIZE
            database.sync = "full"            # default"#]]
        .assert_eq(&text_of(&options));
        let options = shown(file, &[], "prices.gpt-4.1").unwrap();
        expect![[r#"
            prices."gpt-4.1".input = 2.5  # t.toml:4
            prices."gpt-4.1".output = 10  # t.toml:5"#]]
        .assert_eq(&text_of(&options));
        let options = shown(file, &[], "prices.gpt-4.1.output").unwrap();
        expect![[r#"
            [
              {
                "key": "prices.\"gpt-4.1\".output",
                "value": 10,
                "origin": {
                  "from": "file",
                  "file": "t.toml",
                  "line": 5
                }
              }
            ]"#]]
        .assert_eq(&json_of(&options).unwrap());
        assert!(!json_of(&shown(file, &[], "").unwrap()).unwrap().contains("canary"));
    }

    #[test]
    fn what_is_shown_is_a_file_that_means_the_same() {
        let options =
            shown("tubes.owners = 3\n[quota.a]\nper = \"key\"\nwhat = \"runs\"\nlimit = 5\n", &[], "").unwrap();
        let again = shown(&text_of(&options), &[], "").unwrap();
        let values = |options: &[Shown]| {
            options.iter().map(|option| (option.key.clone(), option.value.clone())).collect::<Vec<_>>()
        };
        assert_eq!(values(&again), values(&options));
    }

    #[test]
    fn a_name_that_is_not_there_is_told() {
        let error = shown("", &[], "databas").unwrap_err();
        assert!(format!("{error:?}").contains("nothing is named databas"));
        // A part of a word is no section.
        assert!(shown("", &[], "tubes.owner").is_err());
    }
}
