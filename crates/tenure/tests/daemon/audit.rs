//! The audit log: one entry for each call of an audited route that was let in, none of others.

use serde_json::{Value, json};

use crate::scopes::described;
use crate::site::{DaemonProcess, Kind, Site, on_both};

fn entries(daemon: &DaemonProcess, key: &str) -> Vec<Value> {
    let page = daemon.get("/v1/audit?limit=1000", Some(key)).expect(200).json();
    page["entries"].as_array().expect("a list").clone()
}

/// What tells one entry, without number and time.
fn told(entry: &Value) -> (String, String, String, String, u64) {
    let text = |name: &str| entry[name].as_str().unwrap_or_else(|| panic!("{name}: {entry}")).to_owned();
    (text("who"), text("origin"), text("action"), text("target"), entry["status"].as_u64().expect("a number"))
}

fn each_audited_call_leaves_one_entry_and_no_other_call_leaves_any(kind: Kind) {
    let site = Site::new(kind);
    let file = site.configure("a", "");
    let admin = site.key(&file, "boss", &["admin"]);
    let reader = site.key(&file, "reader", &["read"]);
    let daemon = DaemonProcess::start(&site, &file);
    daemon.wait_ready();
    let id = admin.split('_').nth(1).expect("a key has three parts");
    let who = format!("boss ({id})");
    assert_eq!(entries(&daemon, &admin).len(), 0, "nothing was asked of this daemon yet");

    let mut audited = 0;
    for route in described(&daemon, None) {
        let before = entries(&daemon, &admin);
        // Refused at the door: whoever has no key for it cannot fill the log.
        let status =
            |key: Option<&str>| daemon.call(&route.method, &route.call_path(), key, route.body().as_ref()).status;
        let is_closed = !route.scopes.is_empty() && !route.is_probe;
        assert!(!is_closed || status(None) == 401, "{}", route.path);
        assert!(!route.audited || status(Some(&reader)) == 403, "{}", route.path);
        assert_eq!(entries(&daemon, &admin), before, "{} {} without a key for it", route.method, route.path);
        // Let in, and refused by the handler: an entry with that status.
        let status = status(Some(&admin));
        let after = entries(&daemon, &admin);
        let new = &after[..after.len() - before.len()];
        assert_eq!(new.len(), usize::from(route.audited), "{} {}: {new:?}", route.method, route.path);
        if let [entry] = new {
            audited += 1;
            let target: Vec<&str> =
                route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
            let target = target.iter().map(|name| format!("{name}=nothing")).collect::<Vec<_>>().join(" ");
            let action = format!("{} {}", route.method, route.path);
            assert_eq!(told(entry), (who.clone(), "127.0.0.1".to_owned(), action, target, u64::from(status)));
        }
    }
    assert_eq!(audited, 6, "leases, options set and taken back, keys made and revoked, backups");
}
on_both!(each_audited_call_leaves_one_entry_and_no_other_call_leaves_any);

fn entries_say_who_did_what_with_which_end(kind: Kind) {
    let site = Site::new(kind);
    let daemon = site.daemon("a", "");
    let call = |method: &str, path: &str, key: Option<&str>, body: Value| {
        let body = Some(body).filter(|body| !body.is_null());
        daemon.call(method, path, key, body.as_ref())
    };
    let made = call("POST", "/v1/keys", None, json!({ "name": "boss", "scopes": ["admin"] })).expect(201).json();
    let admin = made["key"].as_str().expect("a key");
    let key = Some(admin);
    call("POST", "/v1/keys", key, json!({ "name": "boss", "scopes": ["read"] })).expect(409);
    call("PUT", "/v1/config/log/level", key, json!({ "value": "debug" })).expect(200);
    call("PUT", "/v1/config/log/level", key, json!({ "value": "loud" })).expect(422);
    call("DELETE", "/v1/config/log/level", key, Value::Null).expect(200);
    call("DELETE", "/v1/keys/n%20o%2Fbody", key, Value::Null).expect(404);
    let lease = call("PUT", "/v1/cluster/lease", key, json!({ "lease_ms": 1 })).status;
    let backup = call("POST", "/v1/backup", key, json!({ "directory": "relative" })).expect(400).status;
    let all = entries(&daemon, admin);
    let boss = format!("boss ({})", made["id"].as_str().expect("an id"));
    let expected = [
        (boss.as_str(), "POST /v1/backup", "", backup),
        (&boss, "PUT /v1/cluster/lease", "", lease),
        (&boss, "DELETE /v1/keys/{key}", "key=n o/body", 404),
        (&boss, "DELETE /v1/config/{section}/{key}", "section=log key=level", 200),
        (&boss, "PUT /v1/config/{section}/{key}", "section=log key=level", 422),
        (&boss, "PUT /v1/config/{section}/{key}", "section=log key=level", 200),
        (&boss, "POST /v1/keys", "", 409),
        ("anonymous", "POST /v1/keys", "", 201),
    ];
    let expected = expected.map(|(who, action, target, status)| {
        (who.to_owned(), "127.0.0.1".to_owned(), action.to_owned(), target.to_owned(), u64::from(status))
    });
    assert_eq!(all.iter().map(told).collect::<Vec<_>>(), expected);
    // Pages, and filters.
    let page = |query: &str| daemon.get(&format!("/v1/audit?{query}"), key).expect(200).json();
    let first = page("limit=3");
    assert_eq!(first["entries"].as_array().expect("a list")[..], all[..3]);
    let second = page(&format!("limit=100&before={}", first["next"]));
    assert_eq!(
        (second["entries"].as_array().expect("a list")[..].to_vec(), &second["next"]),
        (all[3..].to_vec(), &Value::Null)
    );
    assert_eq!(page("who=anonymous")["entries"].as_array().expect("a list")[..], all[7..]);
    let of_keys = page("action=POST%20%2Fv1%2Fkeys");
    assert_eq!(of_keys["entries"].as_array().expect("a list").len(), 2);
    daemon.get("/v1/audit?limit=0", key).expect(400);
    daemon.get("/v1/audit?limit=1001", key).expect(400);
}
on_both!(entries_say_who_did_what_with_which_end);
