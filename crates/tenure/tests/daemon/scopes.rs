//! Which key opens which route: all routes of `/openapi.json` × keys of each scope (W12).

use std::collections::BTreeMap;

use http_server::KeyText;
use serde_json::{Value, json};

use crate::site::{DaemonProcess, Kind, Site, on_both, until};

/// All scopes, by their words.
const SCOPES: [&str; 6] = ["read", "write", "execute", "worker", "events", "admin"];

/// The routes of a daemon without parts above it, and the scopes of which one opens each; what the page about the daemon
/// says, written out again so that a change of a route's access is a change here too.
const EXPECTED: &[(&str, &[&str])] = &[
    ("DELETE /v1/config/{section}/{key}", &["admin"]),
    ("DELETE /v1/keys/{key}", &["admin"]),
    ("GET /healthz", &[]),
    ("GET /metrics", &[]),
    ("GET /openapi.json", &[]),
    ("GET /readyz", &[]),
    ("GET /v1/audit", &["admin"]),
    ("GET /v1/cluster", &["read"]),
    ("GET /v1/config", &["read"]),
    ("GET /v1/config/history", &["read"]),
    ("GET /v1/keys", &["admin"]),
    ("GET /v1/tubes", &["read"]),
    ("POST /v1/backup", &["admin"]),
    ("POST /v1/keys", &["admin"]),
    ("PUT /v1/cluster/lease", &["admin"]),
    ("PUT /v1/config/{section}/{key}", &["admin"]),
];

/// A route as the description has it.
pub(crate) struct Described {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) scopes: Vec<String>,
    /// Whether the configuration decides if the scopes are wanted.
    pub(crate) is_probe: bool,
    pub(crate) audited: bool,
}

impl Described {
    /// The path with `nothing` for its parts.
    pub(crate) fn call_path(&self) -> String {
        let parts = self.path.split('/').map(|part| if part.starts_with('{') { "nothing" } else { part });
        parts.collect::<Vec<_>>().join("/")
    }

    /// A body that no handler takes, for methods that have one.
    pub(crate) fn body(&self) -> Option<Value> {
        matches!(self.method.as_str(), "POST" | "PUT").then(|| json!({ "no": "such member" }))
    }
}

/// All routes of the description.
#[track_caller]
pub(crate) fn described(daemon: &DaemonProcess, key: Option<&str>) -> Vec<Described> {
    let page = daemon.get("/openapi.json", key).expect(200).json();
    let mut routes = Vec::new();
    for (path, item) in page["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let scopes = operation["x-scopes"].as_array().expect("scopes").iter();
            let security = operation["security"].as_array().cloned().unwrap_or_default();
            routes.push(Described {
                method: method.to_uppercase(),
                path: path.clone(),
                scopes: scopes.map(|scope| scope.as_str().expect("a word").to_owned()).collect(),
                is_probe: security.contains(&json!({})),
                audited: operation["x-audited"].as_bool().expect("a word"),
            });
        }
    }
    routes
}

/// What a key of `held` opens, if `all` are defined: W12.
fn opens(held: &str, wanted: &[String], all: &[&str]) -> bool {
    let narrowed = all.iter().any(|scope| ["execute", "worker"].contains(scope));
    held == "admin"
        || wanted.iter().any(|wanted| {
            wanted == held || held == "write" && !narrowed && ["execute", "worker"].contains(&wanted.as_str())
        })
}

/// Calls every route with every key, with none, and with one that is not known.
#[track_caller]
fn check(daemon: &DaemonProcess, keys: &BTreeMap<&str, String>, public_probes: bool) {
    let stranger = KeyText::generate().expect("random numbers");
    let all: Vec<&str> = keys.keys().copied().collect();
    for route in described(daemon, None) {
        let call = |key: Option<&str>| {
            // A key that revokes, sets or makes something would change what is tested: no body or name is one.
            daemon.call(&route.method, &route.call_path(), key, route.body().as_ref())
        };
        let (method, path) = (&route.method, &route.path);
        let is_open = route.scopes.is_empty() || route.is_probe && public_probes;
        for (key, code) in
            [(None, "key_missing"), (Some(stranger.reveal()), "key_unknown"), (Some("x"), "key_malformed")]
        {
            let answer = call(key);
            if is_open {
                assert!(![401, 403].contains(&answer.status), "{method} {path} with {code}: {answer:?}");
            } else {
                assert_eq!((answer.status, answer.code().as_str()), (401, code), "{method} {path}: {answer:?}");
                assert!(answer.head.contains("www-authenticate: bearer"), "{answer:?}");
            }
        }
        for (scope, key) in keys {
            let answer = call(Some(key));
            if is_open || opens(scope, &route.scopes, &all) {
                assert!(![401, 403].contains(&answer.status), "{method} {path} with {scope}: {answer:?}");
            } else {
                assert_eq!((answer.status, answer.code().as_str()), (403, "scope_missing"), "{method} {path}: {scope}");
            }
        }
    }
}

/// Keys of all these scopes in the configuration, and a daemon that knows them.
fn with_keys(
    site: &Site,
    name: &str,
    scopes: &[&'static str],
    http: &str,
) -> (DaemonProcess, BTreeMap<&'static str, String>) {
    let mut keys = BTreeMap::new();
    let mut sections = String::new();
    for scope in scopes {
        let key = KeyText::generate().expect("random numbers");
        sections += &format!("[keys.of-{scope}]\nhash = \"{}\"\nscopes = [\"{scope}\"]\n", key.hash());
        keys.insert(*scope, key.reveal().to_owned());
    }
    let file = site.configure_at(name, "127.0.0.1:0", http, &sections);
    let daemon = DaemonProcess::start(site, &file);
    let any = keys.values().next().cloned();
    until(
        "it is ready",
        || daemon.log(),
        || {
            daemon
                .try_call("GET", "/readyz", any.as_deref(), None)
                .is_ok_and(|answer| answer.status == 200)
                .then_some(())
        },
    );
    (daemon, keys)
}

fn a_route_answers_the_keys_of_its_scopes_and_no_others(kind: Kind) {
    let site = Site::new(kind);
    // W12 in all its cases: neither of the two scopes, either of them, both.
    let (daemon, keys) = with_keys(&site, "all", &SCOPES, "");
    check(&daemon, &keys, true);
    let mut routes = described(&daemon, None);
    routes.sort_by_key(|route| format!("{} {}", route.method, route.path));
    let found: Vec<_> = routes
        .iter()
        .map(|route| {
            (format!("{} {}", route.method, route.path), if route.is_probe { vec![] } else { route.scopes.clone() })
        })
        .collect();
    let expected: Vec<_> = EXPECTED
        .iter()
        .map(|(route, scopes)| {
            ((*route).to_owned(), scopes.iter().map(|scope| (*scope).to_owned()).collect::<Vec<_>>())
        })
        .collect();
    assert_eq!(found, expected);
    daemon.stop();
    for (name, scopes) in [
        ("neither", &["read", "write", "events", "admin"][..]),
        ("execute", &["read", "write", "events", "admin", "execute"]),
        ("worker", &["read", "write", "events", "admin", "worker"]),
    ] {
        let (daemon, keys) = with_keys(&site, name, scopes, "");
        check(&daemon, &keys, true);
        daemon.stop();
    }
}
on_both!(a_route_answers_the_keys_of_its_scopes_and_no_others);

#[test]
fn probes_and_metrics_want_the_scope_read_where_the_configuration_says_so() {
    let site = Site::new(Kind::Sqlite);
    // `/readyz` is asked with the first key by name: of `admin`.
    let (daemon, keys) = with_keys(&site, "a", &SCOPES, "public_health = false\n");
    check(&daemon, &keys, false);
}

#[test]
fn without_keys_a_page_of_another_site_is_refused() {
    use std::io::{Read as _, Write as _};
    let site = Site::new(Kind::Sqlite);
    let daemon = site.daemon("a", "");
    daemon.get("/v1/keys", None).expect(200);
    daemon.wait_log("no key is defined");
    for fields in ["host: evil.example\r\n", "host: 127.0.0.1\r\norigin: http://evil.example\r\n"] {
        let mut stream = std::net::TcpStream::connect(daemon.address()).expect("a daemon that listens");
        let request = format!("GET /v1/keys HTTP/1.1\r\n{fields}connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it takes a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    }
}
