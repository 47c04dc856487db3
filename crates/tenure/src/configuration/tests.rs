//! What the commands about the configuration ask and print.

use super::*;
use expect_test::expect;
use std::cell::RefCell;
use std::path::Path;

fn options(file: &str, variables: &[(&str, &str)]) -> Vec<Shown> {
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
    config.unwrap().effective().into_iter().map(Shown::from).collect()
}

#[test]
fn w18_each_option_is_shown_with_its_origin_and_no_password() {
    let file = "[database]\nurl = \"postgres://tenure:canary@db.example/tenure?application_name=tenure\"\n\
                [prices.\"gpt-4.1\"]\ninput = 2.5\noutput = 10\n";
    let said = |key, json| shown(options(file, &[("TENURE_DATABASE__POOL_SIZE", "9")]), key, json).unwrap();
    expect![[r#"
        database.url = "postgres://tenure:***@db.example/tenure?application_name=tenure"  # t.toml:2
        # database.direct_url is not set
        database.pooler = "none"          # default
        database.pool_size = 9            # TENURE_DATABASE__POOL_SIZE
        database.sync = "full"            # default"#]]
    .assert_eq(&said(Some("database"), false));
    expect![[r#"
        prices."gpt-4.1".input = 2.5  # t.toml:4
        prices."gpt-4.1".output = 10  # t.toml:5"#]]
    .assert_eq(&said(Some("prices.gpt-4.1"), false));
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
    .assert_eq(&said(Some("prices.gpt-4.1.output"), true));
    assert!(!said(None, true).contains("canary") && !said(None, false).contains("canary"));
}

#[test]
fn what_is_shown_is_a_file_that_means_the_same() {
    let before = options("tubes.owners = 3\n[quota.a]\nper = \"key\"\nwhat = \"runs\"\nlimit = 5\n", &[]);
    let after = options(&text_of(&before), &[]);
    let values = |options: Vec<Shown>| options.into_iter().map(|option| (option.key, option.value)).collect::<Vec<_>>();
    assert_eq!(values(after), values(before));
}

/// A daemon that answers as it is told and notes what it was asked.
#[derive(Default)]
struct Fake {
    page: Option<ConfigPage>,
    asked: RefCell<Vec<String>>,
}

impl Fake {
    fn with(options: Vec<Shown>) -> Self {
        Self { page: Some(ConfigPage { version: 7, options }), ..Self::default() }
    }

    fn note(&self, words: std::fmt::Arguments<'_>) -> ConfigPage {
        self.asked.borrow_mut().push(words.to_string());
        self.page.clone().expect("there is a daemon")
    }
}

impl ConfigDoor for Fake {
    fn show(&self) -> Result<Option<ConfigPage>, Failure> {
        self.asked.borrow_mut().push("show".to_owned());
        Ok(self.page.clone())
    }

    fn set(&self, place: &OverlayKey, value: &str) -> Result<ConfigPage, Failure> {
        Ok(self.note(format_args!("set {} / {} = {value}", place.section, place.key)))
    }

    fn unset(&self, place: &OverlayKey) -> Result<ConfigPage, Failure> {
        Ok(self.note(format_args!("unset {} / {}", place.section, place.key)))
    }

    fn history(&self, place: Option<&OverlayKey>, limit: u32) -> Result<ConfigHistory, Failure> {
        self.asked.borrow_mut().push(format!("history {:?} {limit}", place.map(OverlayKey::text)));
        let change = |id, before: Option<&str>, after: Option<&str>| ConfigChange {
            id,
            section: "quota.daily".to_owned(),
            key: "limit".to_owned(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
            who: "ann\u{1b}[2J".to_owned(),
            at: "2026-12-01T10:00:00Z".to_owned(),
        };
        Ok(ConfigHistory { changes: vec![change(9, Some("600"), None), change(8, None, Some("600\n"))] })
    }
}

fn line(words: &[&str]) -> ConfigLine {
    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(subcommand)]
        call: ConfigLine,
    }
    let words = ["config"].iter().chain(words);
    <Line as clap::Parser>::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).call
}

fn answered(fake: &Fake, words: &[&str]) -> Result<String, Failure> {
    answer(&line(words), fake, || options("log.level = \"warn\"\n", &[]))
}

fn option(key: &str, value: impl Into<serde_json::Value>, origin: ShownOrigin) -> Shown {
    Shown { key: key.to_owned(), value: value.into(), origin }
}

fn from_database() -> ShownOrigin {
    ShownOrigin::Database { who: "ann".to_owned(), at: "2026-12-01T10:00:00Z".to_owned() }
}

#[test]
fn what_the_daemon_has_in_force_is_shown_and_without_one_what_the_files_say() {
    let daemon = Fake::with(vec![option("log.level", "debug", from_database())]);
    let words = ["show", "log.level"];
    assert_eq!(answered(&daemon, &words).unwrap(), "log.level = \"debug\"  # database (ann, 2026-12-01T10:00:00Z)");
    assert_eq!(*daemon.asked.borrow(), ["show"]);
    assert_eq!(answered(&Fake::default(), &words).unwrap(), "log.level = \"warn\"  # t.toml:1");
}

#[test]
fn p25_a_change_is_told_with_what_is_in_force_then() {
    let daemon = Fake::with(vec![option("quota.daily.limit", 600, from_database())]);
    let said = answered(&daemon, &["set", "quota.daily.limit", "600"]).unwrap();
    assert_eq!(said, "quota.daily.limit = 600  # database (ann, 2026-12-01T10:00:00Z)");
    answered(&daemon, &["set", "quota.daily", "{ limit = 1 }"]).unwrap();
    answered(&daemon, &["set", "prices.gpt-4.1.input", "-1"]).unwrap();
    answered(&daemon, &["unset", "prices.gpt-4.1", "--json"]).unwrap();
    assert_eq!(
        *daemon.asked.borrow(),
        [
            "set quota.daily / limit = 600",
            "set quota / daily = { limit = 1 }",
            "set prices.gpt-4.1 / input = -1",
            "unset prices / gpt-4.1"
        ]
    );
    let variable = ShownOrigin::Variable { name: "TENURE_LOG__LEVEL".to_owned() };
    let daemon = Fake::with(vec![option("log.level", "info", variable)]);
    let said = answered(&daemon, &["set", "log.level", "debug"]).unwrap();
    expect![[r#"
        log.level = "info"  # TENURE_LOG__LEVEL
        # stored, but TENURE_LOG__LEVEL wins in the daemon that answered"#]]
    .assert_eq(&said);
    let daemon = Fake::with(Vec::new());
    assert_eq!(answered(&daemon, &["unset", "quota.daily"]).unwrap(), "# quota.daily is set nowhere");
}

#[test]
fn p25_the_history_says_who_changed_what_when() {
    let daemon = Fake::default();
    let said = answered(&daemon, &["history", "quota.daily.limit"]).unwrap();
    expect![[r#"
        9 2026-12-01T10:00:00Z  ann�[2J  quota.daily.limit: 600 -> not set
        8 2026-12-01T10:00:00Z  ann�[2J  quota.daily.limit: not set -> 600�"#]]
    .assert_eq(&said);
    answered(&daemon, &["history", "log.level", "--limit", "1000", "--json"]).unwrap();
    answered(&daemon, &["history"]).unwrap();
    assert_eq!(
        *daemon.asked.borrow(),
        ["history Some(\"quota.daily.limit\") 20", "history Some(\"log.level\") 1000", "history None 20"]
    );
}

#[test]
fn what_is_outside_all_sections_is_not_asked_for() {
    let daemon = Fake::default();
    for key in ["user", "log.", ".level"] {
        let failure = answered(&daemon, &["set", key, "x"]).unwrap_err();
        assert!(format!("{failure:?}").contains("cannot be set in the database"), "{key}");
    }
    assert!(daemon.asked.borrow().is_empty());
}

#[test]
fn a_name_that_is_not_there_is_told() {
    let failure = shown(options("", &[]), Some("databas"), false).unwrap_err();
    assert!(format!("{failure:?}").contains("nothing is named databas"));
    // A part of a word is no section.
    assert!(shown(options("", &[]), Some("tubes.owner"), false).is_err());
}
