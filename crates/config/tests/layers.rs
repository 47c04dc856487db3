//! What is in force, where it came from, and what is said when it cannot be.

mod common;

use std::fs;
use std::time::Duration;

use common::{Folder, check_error};
use expect_test::expect;
use tenure_config::{Config, Listen, Origin, Sync};

#[test]
fn without_anything_the_defaults_hold() {
    let config = Folder::new().load(None, &[("PATH", "/bin"), ("TENURE_KEY", "not ours"), ("TENURE_URL", "")]).unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.tubes.listen, Listen::Tcp { host: "127.0.0.1".into(), port: 11_300 });
    assert_eq!(config.tubes.sync, Sync::Every(Duration::from_millis(50)));
    assert_eq!((config.tubes.max_job_size, config.tubes.segment_size), (65_535, 10 << 20));
    assert_eq!(config.tubes.socket_mode, 0o660);
    assert!(config.effective().iter().all(|option| option.origin == Origin::Default));
}

#[test]
fn a_flag_wins_over_a_variable_over_the_file_and_each_is_told() {
    let folder = Folder::new();
    let path = folder.write("tenure.toml", "user = \"a\"\n\n[tubes]\nowners = 3\nfrontends = 3\npersist = false\n");
    let mut config = folder.load(None, &[("TENURE_TUBES__OWNERS", "4"), ("TENURE_TUBES__FRONTENDS", "4")]).unwrap();
    config.set_by_flag("tubes.owners", "5", "--owners").unwrap();
    let told: Vec<_> = config
        .effective()
        .into_iter()
        .filter(|option| option.origin != Origin::Default)
        .map(|option| (option.key, option.value.unwrap(), option.origin))
        .collect();
    assert_eq!(
        told,
        [
            ("user".to_owned(), "\"a\"".to_owned(), Origin::File(path.clone(), 1)),
            ("tubes.owners".to_owned(), "5".to_owned(), Origin::Flag("--owners")),
            ("tubes.frontends".to_owned(), "4".to_owned(), Origin::Variable("TENURE_TUBES__FRONTENDS".into())),
            ("tubes.persist".to_owned(), "false".to_owned(), Origin::File(path, 6)),
        ]
    );
}

#[test]
fn what_is_in_force_can_be_written_to_a_file_and_means_the_same() {
    let folder = Folder::new();
    folder
        .write("a.toml", "user = \"a\\\"b\"\n[tubes]\nlisten = \"unix:/x y\"\nsync = \"90s\"\nsocket_mode = \"600\"\n");
    let first = folder.load(Some("a.toml"), &[("TENURE_TUBES__SOCKET_GROUP", "g"), ("TENURE_USER", "u")]).unwrap();
    let mut text = String::new();
    for option in first.effective() {
        text += &option.value.map_or(String::new(), |value| format!("{} = {value}\n", option.key));
    }
    folder.write("b.toml", &text);
    let second = folder.load(Some("b.toml"), &[]).unwrap();
    let values = |config: &Config| config.effective().into_iter().map(|option| option.value).collect::<Vec<_>>();
    assert_eq!(values(&second), values(&first));
    assert_eq!(second.tubes, first.tubes);
}

#[test]
fn the_first_file_of_the_search_is_the_only_one_read() {
    let folder = Folder::new();
    let user = |number: u32| format!("user = \"{number}\"");
    let home = folder.0.join("home").to_string_lossy().into_owned();
    let xdg = folder.0.join("xdg").to_string_lossy().into_owned();
    let loaded = |explicit: Option<&str>, variables: &[(&str, &str)]| {
        folder.load(explicit, variables).unwrap().user.unwrap_or_default()
    };
    folder.write("etc/tenure.toml", &user(6));
    assert_eq!(loaded(None, &[("HOME", &home)]), "6");
    folder.write("home/.config/tenure/tenure.toml", &user(5));
    assert_eq!(loaded(None, &[("HOME", &home)]), "5");
    folder.write("xdg/tenure/tenure.toml", &user(4));
    assert_eq!(loaded(None, &[("HOME", &home), ("XDG_CONFIG_HOME", &xdg)]), "4");
    folder.write("tenure.toml", &user(3));
    assert_eq!(loaded(None, &[("HOME", &home), ("XDG_CONFIG_HOME", &xdg)]), "3");
    folder.write("two.toml", &user(2));
    assert_eq!(loaded(None, &[("TENURE_CONFIG", "two.toml")]), "2");
    folder.write("one.toml", &user(1));
    assert_eq!(loaded(Some("one.toml"), &[("TENURE_CONFIG", "two.toml")]), "1");
}

#[test]
fn a_file_that_was_named_must_exist_and_one_that_exists_must_be_readable() {
    let folder = Folder::new();
    folder.write("etc/tenure.toml", "");
    let error = folder.load(Some("gone.toml"), &[]).unwrap_err().to_string();
    expect!["cannot read the configuration file gone.toml: No such file or directory (os error 2)"].assert_eq(&error);
    let error = folder.load(None, &[("TENURE_CONFIG", "gone.toml")]).unwrap_err().to_string();
    expect!["cannot read the configuration file gone.toml: No such file or directory (os error 2)"].assert_eq(&error);
    fs::create_dir(folder.0.join("tenure.toml")).unwrap();
    assert!(folder.load(None, &[]).unwrap_err().to_string().starts_with("cannot read the configuration file"));
}

#[test]
fn unknown_names_are_told_with_the_nearest_known_one() {
    check_error(
        "usr = \"a\"\nlisten = \"a\"\n[tubes]\nlisen = 1\nmax_jobsize = 1\nlevel = 1\ncolour = 1\n[tube]\n[pipeline]\n[log]\nfile = 1\n[key.ci]\n[htp]\n",
        &[("TENURE_TUBES__SYNCH", "1"), ("TENURE_PIPELINE__LISTEN", "1"), ("TENURE_SOMETHING", "1")],
        &expect![[r#"
            tenure.toml:1: unknown key usr; did you mean user?
            tenure.toml:2: unknown key listen; did you mean tubes.listen?
            tenure.toml:4: unknown key tubes.lisen; did you mean tubes.listen?
            tenure.toml:5: unknown key tubes.max_jobsize; did you mean tubes.max_job_size?
            tenure.toml:6: unknown key tubes.level; did you mean log.level?
            tenure.toml:7: unknown key tubes.colour; the keys of [tubes] are listen, mode, owners, frontends, persist, sync, max_job_size, segment_size, body_memory, owner_wait, on_slot_failed, restart_limit, restart_delay, socket_mode, socket_group, close_on_http, metrics
            tenure.toml:8: unknown section [tube]; did you mean [tubes]?
            tenure.toml:9: unknown section [pipeline]; the sections are [serve], [data], [tubes], [database], [http], [client], [cluster], [log], [telemetry], [keys.NAME], [quota.NAME], [prices."MODEL"]
            tenure.toml:11: unknown key log.file; the keys of [log] are level
            tenure.toml:12: unknown section [key]; did you mean [keys.NAME]?
            tenure.toml:13: unknown section [htp]; did you mean [http]?
            unknown variable TENURE_PIPELINE__LISTEN; did you mean TENURE_TUBES__LISTEN?
            unknown variable TENURE_TUBES__SYNCH; did you mean TENURE_TUBES__SYNC?"#]],
    );
}

#[test]
fn values_that_do_not_fit_are_told_with_what_would() {
    check_error(
        "user = \"\"\ntubes.owners = 65\n",
        &[],
        &expect![[r#"
        tenure.toml:1: user is ""; write the name of an account in quotes, such as "tenure"
        tenure.toml:2: tubes.owners is the number 65; write a whole number from 1 to 64"#]],
    );
    check_error(
        r#"
            user = 5
            [data]
            dir = ["a"]
            [tubes]
            listen = "127.0.0.1"
            mode = "many"
            owners = 65
            frontends = "2"
            persist = "yes"
            sync = 50
            max_job_size = "2GiB"
            segment_size = "10MB"
            body_memory = 1.5
            owner_wait = "5"
            on_slot_failed = "panic"
            restart_limit = "5"
            restart_delay = 1979-05-27
            socket_mode = 0o660
            socket_group = ""
            close_on_http = 1
            metrics = "unix:/run/metrics"
            [log]
            level = "loud"
        "#,
        &[("TENURE_TUBES__SYNC", "soon"), ("TENURE_TUBES__PERSIST", "yes"), ("TENURE_TUBES__OWNERS", "")],
        &expect![[r#"
            tenure.toml:2: user is the number 5; write the name of an account in quotes, such as "tenure"
            tenure.toml:4: data.dir is the list ["a"]; write a path in quotes, such as "/var/lib/tenure"
            tenure.toml:6: tubes.listen is "127.0.0.1"; write an address with a port such as "127.0.0.1:11300" or "[::1]:11300", or a socket such as "unix:/run/tenure.sock"
            tenure.toml:7: tubes.mode is "many"; write "single" or "multi"
            tenure.toml:8: tubes.owners is the number 65; write a whole number from 1 to 64
            tenure.toml:9: tubes.frontends is "2"; write a whole number from 1 to 256
            tenure.toml:10: tubes.persist is "yes"; write true or false, without quotes
            tenure.toml:11: tubes.sync is the number 50; write a duration with its unit such as "50ms", or "always", or "never"
            tenure.toml:12: tubes.max_job_size is "2GiB"; write a size of at most 1GiB with its unit (B, KiB, MiB, GiB), such as "65535B"
            tenure.toml:13: tubes.segment_size is "10MB"; write a size with its unit (B, KiB, MiB, GiB), such as "10MiB"
            tenure.toml:14: tubes.body_memory is the number 1.5; write a size with its unit (B, KiB, MiB, GiB), such as "256MiB"
            tenure.toml:15: tubes.owner_wait is "5"; write a duration with its unit (ms, s, m, h, d), such as "5s"
            tenure.toml:16: tubes.on_slot_failed is "panic"; write "serve" or "stop"
            tenure.toml:17: tubes.restart_limit is "5"; write restarts and seconds such as "5/30"
            tenure.toml:18: tubes.restart_delay is a date or time; write a duration with its unit (ms, s, m, h, d), such as "100ms"
            tenure.toml:19: tubes.socket_mode is a number that is not decimal; write octal permissions in quotes, at most "0777", such as "0660"
            tenure.toml:20: tubes.socket_group is ""; write the name of a group in quotes, such as "www-data"
            tenure.toml:21: tubes.close_on_http is the number 1; write true or false, without quotes
            tenure.toml:22: tubes.metrics is "unix:/run/metrics"; write an address with a port such as "127.0.0.1:9300" or "[::1]:9300", or a port such as "9300"
            tenure.toml:24: log.level is "loud"; write "error", "warn", "info", "debug" or "trace"
            TENURE_TUBES__OWNERS: tubes.owners is ""; write a whole number from 1 to 64
            TENURE_TUBES__PERSIST: tubes.persist is "yes"; write true or false, without quotes
            TENURE_TUBES__SYNC: tubes.sync is "soon"; write a duration with its unit such as "50ms", or "always", or "never""#]],
    );
}

#[test]
fn a_file_that_is_not_toml_is_told_with_the_line() {
    check_error("user = \"a\"\n[tubes\n", &[], &expect!["tenure.toml:2: not valid TOML: unclosed table, expected `]`"]);
    check_error("[tubes]\nowners = 1\nowners = 2\n", &[], &expect!["tenure.toml:3: not valid TOML: duplicate key"]);
    check_error("tubes = 5\n", &[], &expect!["tenure.toml:1: unknown key tubes; [tubes] is a section"]);
}

#[test]
fn a_flag_with_a_wrong_value_changes_nothing() {
    let mut config = Config::default();
    let error = config.set_by_flag("tubes.restart_limit", "often", "--restart-limit").unwrap_err();
    expect![[r#"--restart-limit: tubes.restart_limit is "often"; write restarts and seconds such as "5/30""#]]
        .assert_eq(&error.to_string());
    assert!(config.set_by_flag("tubes.nothing", "1", "--nothing").is_err());
    assert_eq!(config, Config::default());
}

#[test]
fn what_was_read_makes_the_same_configuration_elsewhere_and_shows_no_secret() {
    let folder = Folder::new();
    let path = folder.write("tenure.toml", "[database]\nurl = \"postgres://tenure:hidden@db/tenure\"\n");
    let environment = [("TENURE_TUBES__OWNERS", "7"), ("TENURE_KEY", "hidden too"), ("HOME", "/nowhere")];
    let (config, sources) = folder.load_with_sources(None, &environment).unwrap();
    // As it travels to another process; the file may be another one by then.
    let text = serde_json::to_string(&sources).unwrap();
    fs::write(&path, "no longer TOML").unwrap();
    let there: tenure_config::Sources = serde_json::from_str(&text).unwrap();
    assert_eq!(tenure_config::read(&there).unwrap(), config);
    assert_eq!(there.file(), Some(path.as_path()));
    assert!(!text.contains("nowhere"), "only variables of ours: {text}");
    let shown = format!("{sources:?}");
    assert!(!shown.contains("hidden") && shown.contains("TENURE_TUBES__OWNERS"), "{shown}");
}
