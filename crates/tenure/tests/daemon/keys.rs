//! Keys: made without a daemon and with one, kept as hashes, from the configuration, revoked, expired (W11, W12).

use std::time::{Duration, Instant};

use http_server::KeyText;
use serde_json::{Value, json};

use crate::site::{DaemonProcess, Kind, Site, TEN_BEATS, contains, on_both, stderr, stdout, until};

/// The digits of a key that are its secret.
fn secret(key: &str) -> &str {
    key.rsplit_once('_').expect("a key has three parts").1
}

fn keys(daemon: &DaemonProcess, key: &str) -> Vec<Value> {
    daemon.get("/v1/keys", Some(key)).expect(200).json()["keys"].as_array().expect("a list").clone()
}

fn new_key() -> (String, String) {
    let text = KeyText::generate().expect("random numbers");
    (text.reveal().to_owned(), text.hash().to_string())
}

/// The first key is made while nothing runs; only its hash is kept.
fn the_first_key_is_made_without_a_daemon_and_shown_once(kind: Kind) {
    let site = Site::new(kind);
    let file = site.configure("a", "");
    let output = site.offline(&file, &["key", "create", "first", "--scope", "admin"]);
    assert!(output.status.success(), "{output:?}");
    let key = stdout(&output).trim().to_owned();
    assert!(key.parse::<KeyText>().is_ok(), "{key:?} is no key");
    assert!(stderr(&output).contains("cannot be shown again") && !stderr(&output).contains(secret(&key)));
    let again = site.offline(&file, &["key", "create", "first", "--scope", "admin"]);
    assert_eq!(again.status.code(), Some(2), "{again:?}");
    assert!(stderr(&again).contains("a key named \"first\" is there already"), "{again:?}");

    let daemon = DaemonProcess::start(&site, &file);
    daemon.wait_ready();
    daemon.get("/v1/cluster", None).expect(401);
    daemon.get("/v1/cluster", Some(&key)).expect(200);
    let listed = keys(&daemon, &key);
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0]["name"], &listed[0]["created_by"]), (&json!("first"), &json!("command line")));
    // One that the daemon makes is shown in that answer, and nowhere else.
    let made = json!({ "name": "second", "scopes": ["read"] });
    let made = daemon.call("POST", "/v1/keys", Some(&key), Some(&made)).expect(201).json();
    let second = made["key"].as_str().expect("the key itself").to_owned();
    daemon.get("/v1/cluster", Some(&second)).expect(200);
    let shown = daemon.get("/v1/keys", Some(&key)).body + &daemon.get("/v1/audit", Some(&key)).body;
    let log = daemon.stop();
    let dump = site.dump();
    assert!(contains(&dump, "first"), "the dump has rows");
    for key in [&key, &second] {
        let hash = key.parse::<KeyText>().expect("a key").hash().to_string();
        assert!(contains(&dump, &hash), "the hash is kept");
        assert!(!contains(&dump, secret(key)), "the secret is in the database");
        assert!(!shown.contains(secret(key)) && !log.contains(secret(key)), "the secret is shown");
    }
}
on_both!(the_first_key_is_made_without_a_daemon_and_shown_once);

/// The command line makes the key and sends its hash; its answers and exit codes are those of the daemon.
fn the_command_line_makes_lists_and_revokes_keys_over_http(kind: Kind) {
    let site = Site::new(kind);
    let file = site.configure("a", "");
    let admin = site.key(&file, "admin", &["admin"]);
    let daemon = DaemonProcess::start(&site, &file);
    daemon.wait_ready();
    let output =
        site.online(&daemon, Some(&admin), &["key", "create", "r", "--scope", "read", "--days", "2", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let made: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let key = made["key"].as_str().expect("a key").to_owned();
    daemon.get("/v1/config", Some(&key)).expect(200);
    daemon.get("/v1/keys", Some(&key)).expect(403);
    let output = site.online(&daemon, Some(&admin), &["key", "list"]);
    let list = stdout(&output);
    assert!(list.contains("admin") && list.contains(made["id"].as_str().expect("an id")), "{output:?}");
    assert!(!list.contains(secret(&key)) && !list.contains(secret(&admin)), "{list}");
    let output = site.online(&daemon, Some(&admin), &["key", "create", "r", "--scope", "read"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), String::new()), "{output:?}");
    assert!(stderr(&output).contains("key_exists"), "{output:?}");
    assert!(site.online(&daemon, Some(&admin), &["key", "revoke", "r"]).status.success());
    assert_eq!(daemon.get("/v1/config", Some(&key)).expect(401).code(), "key_unknown");
    let output = site.online(&daemon, Some(&admin), &["key", "revoke", "r"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let output = site.online(&daemon, None, &["key", "list"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("TENURE_KEY"), "{output:?}");
    // The name of a key that was revoked is free.
    assert!(site.online(&daemon, Some(&admin), &["key", "create", "r", "--scope", "read"]).status.success());
}
on_both!(the_command_line_makes_lists_and_revokes_keys_over_http);

/// The same call may be sent again; another key of that name, or the same key as another, is refused.
fn making_a_key_can_be_repeated(kind: Kind) {
    let site = Site::new(kind);
    let daemon = site.daemon("a", "");
    let ((admin, admin_hash), (_, other_hash)) = (new_key(), new_key());
    let request = |name: &str, hash: &str, scopes: &[&str]| json!({ "name": name, "scopes": scopes, "hash": hash });
    let make = |key: Option<&str>, body: Value| daemon.call("POST", "/v1/keys", key, Some(&body));
    // No key is defined: whoever reaches loopback may do everything, until there is one.
    let made = make(None, request("k", &admin_hash, &["admin"])).expect(201).json();
    assert_eq!(made["key"], Value::Null, "the caller has the secret, the daemon does not: {made}");
    make(None, request("k", &admin_hash, &["admin"])).expect(401);
    let key = Some(admin.as_str());
    assert_eq!(make(key, request("k", &admin_hash, &["admin"])).expect(200).json(), made);
    for (name, hash, scopes) in
        [("k", &other_hash, &["admin"][..]), ("k", &admin_hash, &["read"]), ("other", &admin_hash, &["admin"])]
    {
        assert_eq!(make(key, request(name, hash, scopes)).expect(409).code(), "key_exists", "{name} {scopes:?}");
    }
    for (body, code) in [
        (request(" ", &other_hash, &["read"]), "name_refused"),
        (request("a\u{7}", &other_hash, &["read"]), "name_refused"),
        (request(&"n".repeat(129), &other_hash, &["read"]), "name_refused"),
        (request("x", &other_hash, &["root"]), "scope_unknown"),
        (request("x", &other_hash, &[]), "scope_missing"),
        (request("x", "sha256:00", &["read"]), "hash_refused"),
        (json!({ "name": "x", "scopes": ["read"], "life_seconds": 0 }), "life_out_of_range"),
    ] {
        assert_eq!(make(key, body.clone()).expect(400).code(), code, "{body}");
    }
    assert_eq!(keys(&daemon, &admin).len(), 1, "what was refused has left nothing");
}
on_both!(making_a_key_can_be_repeated);

/// A key's time is the database's; afterwards it is refused by name, and it goes on narrowing what others may do (W12).
fn a_key_expires(kind: Kind) {
    let site = Site::new(kind);
    let daemon = site.daemon("a", "");
    let (admin, admin_hash) = new_key();
    let body = json!({ "name": "admin", "scopes": ["admin"], "hash": admin_hash });
    daemon.call("POST", "/v1/keys", None, Some(&body)).expect(201);
    let body = json!({ "name": "short", "scopes": ["read"], "life_seconds": 2 });
    let made = daemon.call("POST", "/v1/keys", Some(&admin), Some(&body)).expect(201).json();
    let began = Instant::now();
    let short = made["key"].as_str().expect("a key");
    let refused = until(
        "the key expires",
        || daemon.log(),
        || {
            let answer = daemon.get("/v1/config", Some(short));
            (answer.status != 200).then_some(answer)
        },
    );
    assert_eq!(refused.expect(401).code(), "key_expired");
    assert!(began.elapsed() >= Duration::from_millis(1_500), "after {:?} instead of 2 s", began.elapsed());
    let listed = keys(&daemon, &admin);
    assert!(listed.iter().any(|key| key["name"] == "short" && key["expires_at"].is_string()), "{listed:?}");
}
on_both!(a_key_expires);

/// Keys of the configuration, by hash and by a file; they are listed, cannot be revoked, and close the door to all others.
fn keys_stand_in_the_configuration(kind: Kind) {
    let site = Site::new(kind);
    let ((by_hash, hash), (by_file, _)) = (new_key(), new_key());
    let key_file = site.write("worker.key", 0o600, &format!("{by_file}\n"));
    let sections = format!(
        "[keys.deploy]\nhash = \"{hash}\"\nscopes = [\"admin\"]\n[keys.reader]\nfile = {key_file:?}\nscopes = [\"read\"]\n"
    );
    let daemon = site.daemon("a", &sections);
    daemon.get("/v1/cluster", None).expect(401);
    daemon.get("/v1/cluster", Some(&by_file)).expect(200);
    daemon.get("/v1/keys", Some(&by_file)).expect(403);
    let listed = keys(&daemon, &by_hash);
    assert!(listed.len() == 2 && listed.iter().all(|key| key["kept_in"] == "configuration"), "{listed:?}");
    let refused = daemon.call("DELETE", "/v1/keys/deploy", Some(&by_hash), None).expect(404);
    assert!(refused.detail().contains("stands in the configuration"), "{refused:?}");
    assert!(!contains(&site.dump(), secret(&by_file)));

    // Open files are refused before anything is opened, and the message says how to mend it.
    let open = site.write("open.key", 0o644, &by_file);
    let file = site.configure("b", &format!("[keys.reader]\nfile = {open:?}\nscopes = [\"read\"]\n"));
    let (code, log) = DaemonProcess::start(&site, &file).end();
    assert_eq!(code, Some(78), "{log}");
    assert!(log.contains("[keys.reader] file") && log.contains("mode 0644") && log.contains("chmod 600"), "{log}");
    // Who takes the key for its hash is not shown it.
    let file = site.configure("c", &format!("[keys.reader]\nhash = {by_file:?}\nscopes = [\"read\"]\n"));
    let (code, log) = DaemonProcess::start(&site, &file).end();
    assert_eq!(code, Some(78), "{log}");
    assert!(log.contains("keys.reader") && log.contains("sha256:") && !log.contains(secret(&by_file)), "{log}");
    let file = site.configure("d", "[keys.reader]\nfile = \"/nowhere/x.key\"\nscopes = [\"read\"]\n");
    let (code, log) = DaemonProcess::start(&site, &file).end();
    assert_eq!(code, Some(78), "{log}");
    assert!(log.contains("failed to open /nowhere/x.key"), "{log}");
}
on_both!(keys_stand_in_the_configuration);

/// C8: a key that is made or revoked at one daemon is so at the other within a beat.
#[test]
fn the_other_daemon_knows_a_new_and_a_revoked_key_within_a_beat() {
    let site = Site::new(Kind::Postgres);
    let file = site.configure("a", "");
    let admin = site.key(&file, "admin", &["admin"]);
    let (one, two) = (DaemonProcess::start(&site, &file), site.daemon("b", ""));
    one.wait_ready();
    let body = json!({ "name": "k", "scopes": ["read"] });
    let made = one.call("POST", "/v1/keys", Some(&admin), Some(&body)).expect(201).json();
    let key = made["key"].as_str().expect("a key");
    let within_ten_beats = |status| {
        let began = Instant::now();
        until(
            "the other daemon sees it",
            || two.log(),
            || (two.get("/v1/config", Some(key)).status == status).then_some(()),
        );
        assert!(began.elapsed() < TEN_BEATS, "after {:?}", began.elapsed());
    };
    within_ten_beats(200);
    let id = made["id"].as_str().expect("an id");
    one.call("DELETE", &format!("/v1/keys/{id}"), Some(&admin), None).expect(204);
    one.get("/v1/config", Some(key)).expect(401);
    within_ten_beats(401);
    // Uses are written at the next beat.
    until(
        "uses are counted",
        || one.log(),
        || keys(&one, &admin).iter().find(|key| key["name"] == "k" && key["uses"].as_i64() > Some(0)).cloned(),
    );
}
