//! Passwords and keys are in nothing that the program writes, and in no argument or environment of its children.

use std::fs;
use std::process::Output;

use http_server::KeyText;
use rustix::process::Signal;
use serde_json::json;
use testing::postgres::{Options, TcpProxy};

use crate::serve::account;
use crate::site::{DaemonProcess, Kind, Site, until};

/// A password that stands nowhere else.
const PASSWORD: &str = "canary-5f1d0c7a";

/// The address with the password in it.
fn with_password(dsn: &str) -> String {
    assert!(dsn.contains("://tenure@"), "{dsn}");
    dsn.replace("://tenure@", &format!("://tenure:{PASSWORD}@"))
}

/// What was written, by whom.
#[derive(Default)]
struct Written(Vec<(String, String)>);

impl Written {
    fn take(&mut self, what: &str, text: impl Into<String>) {
        self.0.push((what.to_owned(), text.into()));
    }

    fn take_output(&mut self, what: &str, output: &Output) {
        self.take(what, String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()));
    }

    /// None of it has any of the secrets.
    #[track_caller]
    fn is_free_of(&self, secrets: &[&str]) {
        for (what, text) in &self.0 {
            for secret in secrets {
                assert!(!text.contains(secret), "{what} has the secret {secret:?} in it: {text}");
            }
        }
    }
}

/// Digits of a key that are its secret.
fn secret(key: &KeyText) -> String {
    key.reveal().rsplit_once('_').expect("a key has three parts").1.to_owned()
}

#[test]
fn nothing_that_is_written_has_a_password_or_a_key_in_it() {
    let real = Site::new(Kind::Postgres);
    let proxy = TcpProxy::new(real.postgres().address());
    let site = Site::at(&with_password(&real.postgres().dsn_at(proxy.address())));
    let make = || KeyText::generate().expect("random numbers");
    let (admin, in_file, stranger) = (make(), make(), make());
    let key_file = site.write("k.key", 0o600, in_file.reveal());
    let sections = format!(
        "[log]\nlevel = \"trace\"\n[keys.admin]\nhash = \"{}\"\nscopes = [\"admin\"]\n[keys.f]\nfile = {key_file:?}\nscopes = [\"read\"]\n",
        admin.hash()
    );
    let mut written = Written::default();
    let daemon = DaemonProcess::start(&site, &site.configure("a", &sections));
    daemon.wait_ready();
    let key = Some(admin.reveal());
    for path in
        ["/v1/config", "/v1/keys", "/v1/cluster", "/metrics", "/openapi.json", "/v1/audit", "/healthz", "/nowhere"]
    {
        for key in [key, Some(in_file.reveal()), Some(stranger.reveal()), Some("not-a-key-canary"), None] {
            let answer = daemon.get(path, key);
            written.take(path, format!("{}{}", answer.head, answer.body));
        }
    }
    let option = daemon.set("database/url", key, &site.url).expect(422);
    written.take("an option that cannot be set", option.body);
    let body = json!({ "name": "x", "scopes": ["read"], "hash": stranger.reveal() });
    let answer = daemon.call("POST", "/v1/keys", key, Some(&body)).expect(400);
    written.take("a key in the place of its hash", answer.body);
    for arguments in [
        &["config", "show"][..],
        &["config", "show", "--json"],
        &["config", "show", "--local"],
        &["config", "show", "database", "--local", "--json"],
        &["cluster", "status"],
        &["key", "list", "--json"],
        &["config", "history"],
    ] {
        written.take_output(&arguments.join(" "), &site.online(&daemon, key, arguments));
        written.take_output(&arguments.join(" "), &site.offline(&daemon.file, arguments));
    }
    assert!(
        written.0.iter().any(|(_, text)| text.contains("postgresql://tenure:***@")),
        "the address is shown with stars"
    );
    // The database goes away, and comes back.
    proxy.refuse();
    proxy.cut();
    daemon.wait_not_ready("");
    written.take("a call without database", daemon.get("/v1/keys", key).body);
    written.take("readiness without database", daemon.get("/readyz", key).body);
    let output = site.offline(&daemon.file, &["key", "create", "k", "--scope", "read"]);
    assert!(!output.status.success(), "{output:?}");
    written.take_output("key create without database", &output);
    proxy.accept();
    daemon.wait_ready();
    // What a process leaves that ends badly.
    let mut daemon = daemon;
    daemon.signal(Signal::ABORT);
    let (code, log) = daemon.end();
    assert_eq!(code, None, "a signal has ended it");
    assert!(log.contains("DEBUG request"), "the log is as talkative as it can be: {log}");
    written.take("the log", log);
    written.is_free_of(&[PASSWORD, &secret(&admin), &secret(&in_file), &secret(&stranger), "not-a-key-canary"]);
}

#[test]
fn a_wrong_password_is_told_without_the_password() {
    let server = Options::new().without_sync().start();
    let hba = server.folder().join("data/pg_hba.conf");
    assert!(hba.exists(), "{}", hba.display());
    fs::write(&hba, "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n").expect("the server's file");
    server.sql("ALTER ROLE tenure PASSWORD 'right'; SELECT pg_reload_conf()");
    let site = Site::at(&with_password(&server.dsn()));
    let file = site.configure("a", "[log]\nlevel = \"trace\"\n");
    let mut written = Written::default();
    let daemon = DaemonProcess::start(&site, &file);
    let refused = daemon.wait_not_ready("password authentication failed");
    written.take("readiness", refused.body);
    let output = site.offline(&file, &["key", "create", "k", "--scope", "read"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    written.take_output("key create", &output);
    written.take("the log", daemon.log());
    // It becomes right without a restart.
    server.sql(&format!("ALTER ROLE tenure PASSWORD '{PASSWORD}'"));
    daemon.wait_ready();
    written.take("the log", daemon.stop());
    written.is_free_of(&[PASSWORD]);
}

#[test]
fn a_configuration_that_cannot_be_read_is_told_without_its_secrets() {
    let site = Site::new(Kind::Sqlite);
    let key = KeyText::generate().expect("random numbers");
    let mut written = Written::default();
    for (name, text) in [
        ("open", format!("[database]\nurl = \"postgres://u:{PASSWORD}@h/db\n")),
        ("place", format!("[database]\nurl = \"postgres://u:{PASSWORD}@h:port/db\"\n")),
        ("scheme", format!("[database]\nurl = \"mysql://u:{PASSWORD}@h/db\"\n")),
        ("kind", format!("[database]\nurl = [\"postgres://u:{PASSWORD}@h/db\"]\n")),
        (
            "twice",
            format!("[database]\nurl = \"postgres://u:{PASSWORD}@h/db\"\nurl = \"postgres://u:{PASSWORD}@h/db\"\n"),
        ),
        ("parameter", format!("[database]\nurl = \"postgres://u:{PASSWORD}@h/db?sslmode=perhaps\"\n")),
        ("typo", format!("[database]\nurls = \"postgres://u:{PASSWORD}@h/db\"\n")),
        ("hash", format!("[keys.k]\nhash = \"{}\"\nscopes = [\"read\"]\n", key.reveal())),
        ("hash-kind", format!("[keys.k]\nhash = [\"{}\"]\nscopes = [\"read\"]\n", key.reveal())),
        (
            "file",
            format!(
                "[keys.k]\nfile = {:?}\nscopes = [\"read\"]\n",
                site.write("bad.key", 0o600, &format!("{}0", key.reveal()))
            ),
        ),
    ] {
        let file = site.write(&format!("{name}.toml"), 0o600, &text);
        let (code, log) = DaemonProcess::start(&site, &file).end();
        assert_eq!(code, Some(78), "{name}: {log}");
        written.take(name, log);
        written.take_output(name, &site.offline(&file, &["config", "show"]));
    }
    written.is_free_of(&[PASSWORD, &secret(&key)]);
}

/// Under a supervisor, with all secrets where they can stand.
#[test]
fn no_process_has_a_secret_in_its_arguments_and_no_child_in_its_environment() {
    let real = Site::new(Kind::Postgres);
    let site = Site::at(&real.url);
    let key = KeyText::generate().expect("random numbers");
    let file = site.configure("a", &format!("[tubes]\nlisten = \"127.0.0.1:{}\"\n", testing::process::free_port()));
    let text = fs::read_to_string(&file).expect("our file");
    fs::write(&file, format!("user = {:?}\n{text}", account())).expect("our file");
    let mut command = site.program(&file);
    command.arg("serve").env("TENURE_DATABASE__URL", with_password(&real.url)).env("TENURE_KEY", key.reveal());
    let server = DaemonProcess::start_by(&site, &mut command, &file);
    server.wait_ready();
    let status = server.get("/v1/tubes", None).expect(200).json();
    let mut pids: Vec<u64> =
        status["processes"].as_array().expect("a list").iter().filter_map(|process| process["pid"].as_u64()).collect();
    assert_eq!(pids.len(), 2, "{status}");
    let mut written = Written::default();
    let config = server.get("/v1/config?key=database.url", None).expect(200).body;
    assert!(config.contains("TENURE_DATABASE__URL") && config.contains("***"), "the variable is in force: {config}");
    written.take("/v1/config", config);
    for pid in &pids {
        let environment = fs::read(format!("/proc/{pid}/environ")).expect("a process of ours");
        written.take("the environment of a child", String::from_utf8_lossy(&environment));
    }
    pids.push(u64::from(server.pid()));
    for pid in &pids {
        let arguments = until(
            "its arguments",
            || server.log(),
            || fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|arguments| !arguments.is_empty()),
        );
        written.take("the arguments of a process", String::from_utf8_lossy(&arguments));
    }
    written.take("the log", server.stop());
    written.is_free_of(&[PASSWORD, &secret(&key)]);
}
