//! Options of the daemon, and what several of them must be together.

mod common;

use std::time::Duration;

use common::{Folder, check_error};
use expect_test::expect;
use tenure_config::{Config, DatabaseUrl, Origin, options};

#[test]
fn the_defaults_obey_every_rule() {
    Config::default().check().unwrap();
    let times = Config::default().cluster;
    assert_eq!(times.lease, 3 * times.renew + times.statement_timeout + times.margin);
}

#[test]
fn a_lease_leaves_room_for_three_renewals_a_timeout_and_the_margin() {
    check_error(
        "[cluster]\nrenew = \"6s\"\nbeat = \"1s\"\n",
        &[],
        &expect![[
            r#"tenure.toml:2: cluster.lease is 20s, but 3 × renew (6s) + statement_timeout (2s) + margin (3s) is 23s; write a lease of at least "23s", or shorten the others"#
        ]],
    );
    check_error(
        "",
        &[("TENURE_CLUSTER__LEASE", "19999ms")],
        &expect![[
            r#"TENURE_CLUSTER__LEASE: cluster.lease is 19999ms, but 3 × renew (5s) + statement_timeout (2s) + margin (3s) is 20s; write a lease of at least "20s", or shorten the others"#
        ]],
    );
    // A time that is wrong by itself is told, not what follows from its absence.
    check_error(
        "[cluster]\nlease = \"1s\"\nmargin = \"0s\"\nrenew = \"2h\"\n",
        &[],
        &expect![[r#"
        tenure.toml:3: cluster.margin is "0s"; write a duration from "1ms" to "1h", such as "3s"
        tenure.toml:4: cluster.renew is "2h"; write a duration from "1ms" to "1h", such as "5s""#]],
    );
    let folder = Folder::new();
    let times = "[cluster]\nrenew = \"300ms\"\nstatement_timeout = \"300ms\"\nmargin = \"300ms\"\nlease = \"1500ms\"\n";
    folder.write("tenure.toml", times);
    let mut config = folder.load(Some("tenure.toml"), &[]).unwrap();
    assert_eq!(config.cluster.lease, Duration::from_millis(1_500));
    config.set_by_flag("cluster.margin", "301ms", "--margin").unwrap();
    let error = config.check().unwrap_err().to_string();
    expect![[r#"tenure.toml:5: cluster.lease is 1500ms, but 3 × renew (300ms) + statement_timeout (300ms) + margin (301ms) is 1501ms; write a lease of at least "1501ms", or shorten the others"#]].assert_eq(&error);
}

#[test]
fn a_certificate_has_a_key_and_a_key_a_certificate() {
    check_error(
        "[http]\ntls_cert = \"a\"\n",
        &[],
        &expect!["tenure.toml:2: http.tls_cert is set without http.tls_key; set both, or neither for no TLS"],
    );
    check_error(
        "[http]\ntls_key = \"a\"\n",
        &[],
        &expect!["tenure.toml:2: http.tls_key is set without http.tls_cert; set both, or neither for no TLS"],
    );
}

#[test]
fn a_way_past_the_pooler_leads_to_postgresql() {
    check_error(
        "[database]\ndirect_url = \"postgres://h/d\"\n",
        &[],
        &expect![
            "tenure.toml:2: database.direct_url is set, but database.url is SQLite; set database.url to a URL of PostgreSQL, or remove database.direct_url"
        ],
    );
    check_error(
        "[database]\nurl = \"postgres://h/d\"\ndirect_url = \"sqlite:a\"\n",
        &[],
        &expect![[
            r#"tenure.toml:3: database.direct_url is a value that is not shown; write a URL such as "postgres://tenure@db.example/tenure", with %40 for an @ in the password, %2F for a /, %3F for a ?, %23 for a #"#
        ]],
    );
}

#[test]
fn values_of_the_daemon_that_do_not_fit_are_told_without_passwords() {
    check_error(
        r#"
            [serve]
            tubes = "yes"
            daemon = 1
            [database]
            url = "postgres://u:can/ary@h/d"
            direct_url = 5
            pooler = "transaction"
            pool_size = 2
            sync = "off"
            [http]
            listen = "unix:/run/h"
            tls_cert = ""
            tls_key = 1
            allow_plaintext = "true"
            public_health = 0
            [client]
            url = "https://me:canary@tenure.example"
            key_file = ""
            [cluster]
            beat = 5
            lease = "2h"
            [telemetry]
            otlp_endpoint = "127.0.0.1:4318"
            otlp_timeout = "0s"
            service_name = ""
            sampling = 1.5
        "#,
        &[
            ("TENURE_URL", "tenure.example"),
            ("TENURE_TELEMETRY__SAMPLING", "10%"),
            ("TENURE_DATABASE__URL", "host=h password=canary"),
        ],
        &expect![[r#"
            tenure.toml:3: serve.tubes is "yes"; write true or false, without quotes
            tenure.toml:4: serve.daemon is the number 1; write true or false, without quotes
            tenure.toml:6: database.url is a value that is not shown; write "sqlite:PATH" or a URL such as "postgres://tenure@db.example/tenure", with %40 for an @ in the password, %2F for a /, %3F for a ?, %23 for a #
            tenure.toml:7: database.direct_url is a value that is not shown; write a URL such as "postgres://tenure@db.example/tenure", with %40 for an @ in the password, %2F for a /, %3F for a ?, %23 for a #
            tenure.toml:8: database.pooler is "transaction"; write "none" or "session"
            tenure.toml:9: database.pool_size is the number 2; write a whole number from 3 to 1000
            tenure.toml:10: database.sync is "off"; write "full" or "normal"
            tenure.toml:12: http.listen is "unix:/run/h"; write an address with a port such as "127.0.0.1:7070" or "[::1]:7070", or a port such as "7070"
            tenure.toml:13: http.tls_cert is ""; write a path in quotes, such as "/etc/tenure/tls.crt"
            tenure.toml:14: http.tls_key is the number 1; write a path in quotes, such as "/etc/tenure/tls.key"
            tenure.toml:15: http.allow_plaintext is "true"; write true or false, without quotes
            tenure.toml:16: http.public_health is the number 0; write true or false, without quotes
            tenure.toml:18: client.url is a URL with a user in it; write a URL without user such as "http://127.0.0.1:7070" or "https://tenure.example"
            tenure.toml:19: client.key_file is ""; write a path in quotes, such as "/home/me/.config/tenure/key"
            tenure.toml:21: cluster.beat is the number 5; write a duration from "1ms" to "1h", such as "5s"
            tenure.toml:22: cluster.lease is "2h"; write a duration from "1ms" to "1h", such as "20s"
            tenure.toml:24: telemetry.otlp_endpoint is "127.0.0.1:4318"; write a URL without user such as "http://127.0.0.1:4318"
            tenure.toml:25: telemetry.otlp_timeout is "0s"; write a duration of at least "1ms" with its unit (ms, s, m, h, d), such as "10s"
            tenure.toml:26: telemetry.service_name is ""; write a name in quotes, such as "tenure"
            tenure.toml:27: telemetry.sampling is the number 1.5; write a number from 0 to 1 with at most six digits behind the point, such as 0.1
            TENURE_DATABASE__URL: database.url is a value that is not shown; write "sqlite:PATH" or a URL such as "postgres://tenure@db.example/tenure", with %40 for an @ in the password, %2F for a /, %3F for a ?, %23 for a #
            TENURE_TELEMETRY__SAMPLING: telemetry.sampling is "10%"; write a number from 0 to 1 with at most six digits behind the point, such as 0.1
            TENURE_URL: client.url is "tenure.example"; write a URL without user such as "http://127.0.0.1:7070" or "https://tenure.example""#]],
    );
}

#[test]
fn the_database_is_in_the_folder_of_data_unless_somebody_says_otherwise() {
    let folder = Folder::new();
    folder.write("a.toml", "[data]\ndir = \"/var/lib/tenure\"\n");
    let mut config = folder.load(Some("a.toml"), &[]).unwrap();
    assert_eq!(config.database.url, DatabaseUrl::Sqlite("/var/lib/tenure/tenure.db".into()));
    assert_eq!(config.origin("database.url"), Origin::Default);
    config.set_by_flag("data.dir", "/srv", "--data").unwrap();
    assert_eq!(config.database.url, DatabaseUrl::Sqlite("/srv/tenure.db".into()));
    let config = folder.load(Some("a.toml"), &[("TENURE_DATABASE__URL", "sqlite:x.db")]).unwrap();
    assert_eq!(config.database.url, DatabaseUrl::Sqlite("x.db".into()));
}

#[test]
fn tenure_url_wins_over_the_variable_with_the_long_name() {
    let folder = Folder::new();
    let variables = [("TENURE_CLIENT__URL", "http://a"), ("TENURE_URL", "http://b/")];
    let config = folder.load(None, &variables).unwrap();
    assert_eq!(config.client.url.as_deref(), Some("http://b"));
    assert_eq!(config.origin("client.url"), Origin::Variable("TENURE_URL".to_owned()));
    assert_eq!(folder.load(None, &variables[..1]).unwrap().client.url.as_deref(), Some("http://a"));
}

#[test]
fn no_password_is_shown_logged_or_told() {
    let folder = Folder::new();
    let url = "postgres://tenure:canary-1@a.example:5432,b.example/tenure?sslmode=require&password=canary-2";
    folder.write("a.toml", &format!("[database]\nurl = {url:?}\ndirect_url = {url:?}\n"));
    let config = folder.load(Some("a.toml"), &[]).unwrap();
    let shown: Vec<_> = config.effective().into_iter().filter_map(|option| option.value).collect();
    let expected = r#""postgres://tenure:***@a.example:5432,b.example/tenure?sslmode=require&password=***""#;
    assert_eq!(shown.iter().filter(|value| *value == expected).count(), 2);
    let all = format!("{shown:?} {config:?} {:#?}", config.effective());
    assert!(!all.contains("canary"), "{all}");
    let DatabaseUrl::Postgres(secret) = &config.database.url else { panic!("not PostgreSQL") };
    assert_eq!(secret.expose(), url);
}

#[test]
fn each_option_can_be_set_by_its_variable() {
    let folder = Folder::new();
    for option in options() {
        let text = option.show(&Config::default()).unwrap_or_else(|| match option.key {
            "database.direct_url" => "postgres://h/d".to_owned(),
            key if key.ends_with("url") || key.ends_with("endpoint") => "http://h".to_owned(),
            "tubes.metrics" => "9300".to_owned(),
            _ => "text".to_owned(),
        });
        let variable = option.variable();
        let mut variables = vec![(variable.as_str(), text.trim_matches('"'))];
        if option.key == "database.direct_url" {
            variables.push(("TENURE_DATABASE__URL", "postgres://h/d"));
        }
        match option.key {
            "http.tls_cert" => variables.push(("TENURE_HTTP__TLS_KEY", "k")),
            "http.tls_key" => variables.push(("TENURE_HTTP__TLS_CERT", "c")),
            _ => {}
        }
        let config = folder.load(None, &variables).unwrap_or_else(|error| panic!("{}: {error}", option.key));
        assert_eq!(config.origin(option.key), Origin::Variable(variable.clone()));
    }
}
