//! What is set in the database: above the file, below variables and flags, and never without a check of the whole.

mod common;

use common::Folder;
use expect_test::{Expect, expect};
use tenure_config::{
    Config, ConfigPage, LogLevel, Origin, OverlayKey, OverlayRow, QuotaLimit, Shown, options, section_kinds,
    with_overlay,
};

/// 2026-12-01T10:00:00Z.
const AT_MS: i64 = 1_796_119_200_000;

fn row(place: &str, value: &str) -> OverlayRow {
    OverlayRow { place: OverlayKey::parse(place), value: value.to_owned(), who: "ann".to_owned(), at_ms: AT_MS }
}

fn base(text: &str, variables: &[(&str, &str)]) -> Config {
    let folder = Folder::new();
    folder.write("tenure.toml", text);
    folder.load(Some("tenure.toml"), variables).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn check_refused(text: &str, rows: &[(&str, &str)], expected: &Expect) {
    let rows: Vec<_> = rows.iter().map(|(place, value)| row(place, value)).collect();
    let error = with_overlay(&base(text, &[]), &rows).unwrap_err();
    expected.assert_eq(&error.to_string());
}

#[test]
fn a_row_wins_over_the_file_and_loses_to_variables_and_flags() {
    let file = "[log]\nlevel = \"warn\"\n";
    let rows = [row("log.level", "debug")];
    let from_file = base(file, &[]);
    let over = with_overlay(&from_file, &rows).unwrap();
    assert_eq!(over.log.level, LogLevel::Debug);
    assert_eq!(over.origin("log.level"), Origin::Overlay { who: "ann".to_owned(), at_ms: AT_MS });
    assert_eq!(over.origin("log.level").to_string(), "database (ann, 2026-12-01T10:00:00Z)");
    assert_eq!(from_file.log.level, LogLevel::Warn);
    assert_eq!(with_overlay(&from_file, []).unwrap(), from_file);

    let from_variable = base(file, &[("TENURE_LOG__LEVEL", "error")]);
    assert_eq!(with_overlay(&from_variable, &rows).unwrap(), from_variable);
    let mut from_flag = base(file, &[]);
    from_flag.set_by_flag("log.level", "trace", "-L").unwrap();
    assert_eq!(with_overlay(&from_flag, &rows).unwrap(), from_flag);
    // What is not in force must be right all the same: other processes may be without that variable.
    assert!(with_overlay(&from_flag, &[row("log.level", "loud")]).is_err());
}

#[test]
fn a_row_sets_one_key_of_a_section_or_all_of_it() {
    let file = "[quota.a]\nper = \"key\"\nwhat = \"runs\"\nlimit = 5\n";
    let rows = [
        row("quota.a.limit", "6"),
        row("quota.b.what", "tokens"),
        row("quota.b", r#"{ per = "definition", what = "runs", limit = 7 }"#),
        row(
            "prices.gpt-4.1",
            r#"[{ input = 1, output = 2, until = 2026-07-01 }, { input = 2, output = 2, from = 2026-07-01 }]"#,
        ),
        row("prices.m", "{ input = 1.5, output = 2 }"),
        row("prices.m.output", "2.5"),
        row("prices.m.until", "2026-07-01"),
    ];
    let config = with_overlay(&base(file, &[]), &rows).unwrap();
    assert_eq!(config.quotas["a"].limit, QuotaLimit::Runs(6));
    assert_eq!(config.quotas["b"].limit, QuotaLimit::Tokens(7));
    assert_eq!(config.prices["gpt-4.1"].len(), 2);
    assert_eq!(config.prices["m"][0].output.micro_units(), 2_500_000);
    let shown: Vec<_> = config
        .effective()
        .into_iter()
        .filter(|option| option.key.starts_with("quota.") || option.key.starts_with("prices."))
        .map(|option| format!("{} = {}  # {}\n", option.key, option.value.unwrap(), option.origin))
        .collect();
    expect![[r#"
        quota.a.per = "key"  # tenure.toml:2
        quota.a.what = "runs"  # tenure.toml:3
        quota.a.limit = 6  # database (ann, 2026-12-01T10:00:00Z)
        quota.b.per = "definition"  # database (ann, 2026-12-01T10:00:00Z)
        quota.b.what = "tokens"  # database (ann, 2026-12-01T10:00:00Z)
        quota.b.limit = 7  # database (ann, 2026-12-01T10:00:00Z)
        prices."gpt-4.1" = [{ input = 1, output = 2, until = 2026-07-01 }, { input = 2, output = 2, from = 2026-07-01 }]  # database (ann, 2026-12-01T10:00:00Z)
        prices.m.input = 1.5  # database (ann, 2026-12-01T10:00:00Z)
        prices.m.output = 2.5  # database (ann, 2026-12-01T10:00:00Z)
        prices.m.until = 2026-07-01  # database (ann, 2026-12-01T10:00:00Z)
    "#]].assert_eq(&shown.concat());
    // Without the rows the file holds again.
    assert_eq!(with_overlay(&base(file, &[]), []).unwrap().quotas["a"].limit, QuotaLimit::Runs(5));
}

#[test]
fn the_order_of_rows_does_not_matter() {
    let mut rows = vec![
        row("quota.b", r#"{ per = "key", what = "runs", limit = 7 }"#),
        row("quota.b.limit", "8"),
        row("log.level", "\"debug\""),
    ];
    let base = base("", &[]);
    let one = with_overlay(&base, &rows).unwrap();
    rows.reverse();
    assert_eq!(with_overlay(&base, &rows).unwrap(), one);
    assert_eq!(one.quotas["b"].limit, QuotaLimit::Runs(8));
}

#[test]
fn rows_that_do_not_fit_are_told_all_at_once() {
    check_refused(
        "[[prices.m]]\ninput = 1\noutput = 1\nuntil = 2026-07-01\n[[prices.m]]\ninput = 1\noutput = 1\nfrom = 2026-07-01\n",
        &[
            ("log.level", "loud"),
            ("log.levl", "debug"),
            ("log.file", "debug"),
            ("user", "root"),
            ("usr", "root"),
            ("database.url", "postgres://u:canary@h/d"),
            ("cluster.lease", "1s"),
            ("keys.ci", "{ file = \"x\", scopes = [\"admin\"] }"),
            ("keys.ci.scopes", "admin"),
            ("quota.a.per", "key"),
            ("quota.b", "5"),
            ("quota.c", "[{ per = \"key\", what = \"runs\", limit = 5 }]"),
            ("quota.d.limti", "5"),
            ("quota.e.limit", "five"),
            ("quotas.f.limit", "5"),
            ("prices.m.input", "2"),
            ("prices.n", "{ input = 1"),
            ("stage.clean.parallelism", "8"),
        ],
        &expect![[r#"
            database (ann, 2026-12-01T10:00:00Z): user cannot be set in the database; set it in the configuration file or by TENURE_USER
            database (ann, 2026-12-01T10:00:00Z): unknown key usr; did you mean user?
            database (ann, 2026-12-01T10:00:00Z): cluster.lease cannot be set in the database; set it in the configuration file or by TENURE_CLUSTER__LEASE
            database (ann, 2026-12-01T10:00:00Z): database.url cannot be set in the database; set it in the configuration file or by TENURE_DATABASE__URL
            database (ann, 2026-12-01T10:00:00Z): [keys.NAME] cannot be set in the database; write it into the configuration file
            database (ann, 2026-12-01T10:00:00Z): unknown key log.file; the keys of [log] are level
            database (ann, 2026-12-01T10:00:00Z): log.level is "loud"; write "error", "warn", "info", "debug" or "trace"
            database (ann, 2026-12-01T10:00:00Z): unknown key log.levl; did you mean log.level?
            database (ann, 2026-12-01T10:00:00Z): prices.n is "{ input = 1"; write one of its keys behind it, or all of them as { input = …, output = …, cached = …, from = …, until = … }
            database (ann, 2026-12-01T10:00:00Z): quota.b is "5"; write one of its keys behind it, or all of them as { per = …, what = …, limit = … }
            database (ann, 2026-12-01T10:00:00Z): quota.c is the list [{ limit = 5, per = "key", what = "runs" }]; write one of its keys behind it, or all of them as { per = …, what = …, limit = … }
            database (ann, 2026-12-01T10:00:00Z): unknown section [quotas]; did you mean [quota.NAME]?
            database (ann, 2026-12-01T10:00:00Z): unknown section [stage]; the sections are [serve], [data], [tubes], [database], [http], [client], [cluster], [log], [telemetry], [keys.NAME], [quota.NAME], [prices."MODEL"]
            database (ann, 2026-12-01T10:00:00Z): [keys.NAME] cannot be set in the database; write it into the configuration file
            database (ann, 2026-12-01T10:00:00Z): [prices.m] stands 2 times; set it as a whole, as a list of tables
            database (ann, 2026-12-01T10:00:00Z): [quota.a] has no what; write "runs", "tokens" or "money"; has no limit; write a whole number without quotes, or for money one with at most six digits behind the point, such as 12.5
            database (ann, 2026-12-01T10:00:00Z): unknown key quota.d.limti; did you mean quota.d.limit?
            database (ann, 2026-12-01T10:00:00Z): quota.e.limit is "five"; write a whole number without quotes, or for money one with at most six digits behind the point, such as 12.5"#]],
    );
    check_refused(
        "",
        &[("log.level", &"x".repeat(8_193))],
        &expect!["database (ann, 2026-12-01T10:00:00Z): log.level is 8193 bytes long; write at most 8192 bytes"],
    );
}

#[test]
fn what_may_be_set_in_the_database_is_a_short_list() {
    // Each needs a part that takes it while it runs; and what says where the database is, or who may use it, must not
    // come from there.
    let keys: Vec<_> = options().iter().filter(|option| option.is_overlay()).map(|option| option.key).collect();
    assert_eq!(keys, ["log.level"]);
    let kinds: Vec<_> = section_kinds().iter().filter(|info| info.is_overlay).map(|info| info.kind).collect();
    assert_eq!(kinds, ["quota", "prices"]);
}

#[test]
fn every_other_option_is_refused_there_with_the_way_to_set_it() {
    let base = base("", &[]);
    for option in options().iter().filter(|option| !option.is_overlay()) {
        let error = with_overlay(&base, &[row(option.key, "1")]).unwrap_err().to_string();
        let expected = format!(
            "database (ann, 2026-12-01T10:00:00Z): {} cannot be set in the database; set it in the configuration file or by {}",
            option.key,
            option.variable()
        );
        assert_eq!(error, expected);
    }
}

#[test]
fn a_row_is_named_as_people_write_it() {
    for (text, section, key) in [
        ("log.level", "log", "level"),
        ("user", "", "user"),
        ("quota.daily.limit", "quota.daily", "limit"),
        ("quota.daily", "quota", "daily"),
        ("quota.daily.limti", "quota.daily", "limti"),
        ("prices.\"gpt-4.1\".input", "prices.gpt-4.1", "input"),
        ("prices.\"gpt-4.1\"", "prices", "gpt-4.1"),
        ("prices.\"odd.input\"", "prices", "odd.input"),
        ("prices.\"odd.input\".input", "prices.odd.input", "input"),
    ] {
        let place = OverlayKey::parse(text);
        assert_eq!((place.section.as_str(), place.key.as_str()), (section, key), "{text}");
        assert_eq!(place.text(), text);
    }
    for (text, section, key) in [
        ("prices.gpt-4.1.input", "prices.gpt-4.1", "input"),
        ("prices.gpt-4.1", "prices", "gpt-4.1"),
        ("prices.m.input", "prices.m", "input"),
        ("stage.clean.parallelism", "stage", "clean.parallelism"),
    ] {
        let place = OverlayKey::parse(text);
        assert_eq!((place.section.as_str(), place.key.as_str()), (section, key), "{text}");
        assert_eq!(OverlayKey::parse(&place.text()), place);
    }
}

#[test]
fn json_says_values_by_type_and_where_they_came_from() {
    let config = base("[quota.a]\nper = \"key\"\nwhat = \"money\"\nlimit = 2.5\n", &[("TENURE_TUBES__OWNERS", "3")]);
    let config = with_overlay(&config, &[row("log.level", "debug")]).unwrap();
    let shown: Vec<Shown> = config.effective().into_iter().map(Shown::from).collect();
    let lines: Vec<_> = shown
        .iter()
        .filter(|option| {
            ["user", "tubes.owners", "tubes.sync", "log.level", "quota.a.limit", "quota.a.per"]
                .contains(&option.key.as_str())
        })
        .map(|option| serde_json::to_string(option).unwrap() + "\n")
        .collect();
    expect![[r#"
        {"key":"user","value":null,"origin":{"from":"default"}}
        {"key":"tubes.owners","value":3,"origin":{"from":"variable","name":"TENURE_TUBES__OWNERS"}}
        {"key":"tubes.sync","value":"50ms","origin":{"from":"default"}}
        {"key":"log.level","value":"debug","origin":{"from":"database","who":"ann","at":"2026-12-01T10:00:00Z"}}
        {"key":"quota.a.per","value":"key","origin":{"from":"file","file":"tenure.toml","line":2}}
        {"key":"quota.a.limit","value":2.5,"origin":{"from":"file","file":"tenure.toml","line":4}}
    "#]]
    .assert_eq(&lines.concat());
    let text = serde_json::to_string(&shown).unwrap();
    let back: Vec<Shown> = serde_json::from_str(&text).unwrap();
    assert_eq!(back, shown);
    let toml: Vec<_> = back.iter().map(Shown::toml).collect();
    assert_eq!(toml, config.effective().into_iter().map(|option| option.value).collect::<Vec<_>>());
}

#[test]
fn p25_a_page_has_everything_or_what_a_change_was_about() {
    let rows = [row("quota.daily", r#"{ per = "key", what = "runs", limit = 7 }"#), row("log.level", "debug")];
    let config = with_overlay(&base("", &[]), &rows).unwrap();
    assert_eq!(ConfigPage::of(&config, 3, None).options.len(), config.effective().len());
    let keys = |place: &str| {
        let page = ConfigPage::of(&config, 3, Some(&OverlayKey::parse(place)));
        assert_eq!(page.version, 3);
        page.options.into_iter().map(|option| option.key).collect::<Vec<_>>()
    };
    assert_eq!(keys("log.level"), ["log.level"]);
    assert_eq!(keys("quota.daily"), ["quota.daily.per", "quota.daily.what", "quota.daily.limit"]);
    assert_eq!(keys("quota.daily.limit"), ["quota.daily.limit"]);
    assert!(keys("quota.dail").is_empty());
}

#[test]
fn a_row_that_is_only_tried_has_no_moment() {
    let tried = OverlayRow { at_ms: 0, ..row("log.level", "loud") };
    let error = with_overlay(&base("", &[]), [&tried]).unwrap_err().to_string();
    assert!(error.starts_with("what ann would set in the database: log.level is \"loud\"; "), "{error}");
}
