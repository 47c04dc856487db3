//! Calls against the real door, and against peers that say what a test tells them to.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::Instant;

use http_server::{Access, Door, DoorOptions, Key, Keyring, Routes, Scopes, Server, ServerOptions, Surroundings, Tls};

use super::*;

/// Ends what hangs; nothing is measured by it.
const OUTER_LIMIT: Duration = Duration::from_secs(60);

fn place(address: SocketAddr) -> Place {
    Place { url: format!("http://{address}"), key: None }
}

fn key() -> KeyText {
    KeyText::from_random([0xca; 32])
}

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("tenure-http-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str, mode: u32, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Answers one connection after another with these bytes; gives what was asked.
fn peer(answers: Vec<String>) -> (SocketAddr, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let answer = |answer: String| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(OUTER_LIMIT)).unwrap();
            let (mut asked, mut buffer) = (Vec::new(), [0; 4096]);
            let end = loop {
                let bytes = stream.read(&mut buffer).unwrap();
                asked.extend_from_slice(&buffer[..bytes]);
                let text = String::from_utf8_lossy(&asked).to_lowercase();
                let Some(head_end) = text.find("\r\n\r\n") else { continue };
                let length = text.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
                let body: usize = length.map_or(0, |length| length.parse().unwrap());
                if asked.len() >= head_end + 4 + body {
                    break head_end + 4 + body;
                }
            };
            asked.truncate(end);
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(asked).unwrap()
        };
        answers.into_iter().map(answer).collect()
    });
    (address, thread)
}

fn answer(status: &str, fields: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{fields}content-length: {}\r\n\r\n{body}", body.len())
}

fn problem(status: u16, fields: &str) -> String {
    let body = format!(r#"{{"title":"x","status":{status},"code":"planted","detail":"no, planted"}}"#);
    answer(&format!("{status} X"), &format!("content-type: application/problem+json\r\n{fields}"), &body)
}

#[test]
fn a_call_sends_what_it_should_and_gives_the_json_that_came() {
    let ok = || answer("200 OK", "content-type: application/json\r\n", r#"{"a":1}"#);
    let (address, asked) = peer(vec![ok(), answer("204 No Content", "", "")]);
    let client = Client::new(&Place { key: Some(key()), url: format!("http://{address}/below/") }).unwrap();
    let body = serde_json::json!({"text": "ä"});
    assert_eq!(client.call(Method::PUT, "/v1/x?y=1", Some(&body)).unwrap(), serde_json::json!({"a": 1}));
    assert_eq!(client.call(Method::GET, "/v1/x", None).unwrap(), Value::Null);
    let asked = asked.join().unwrap();
    let first = asked[0].to_lowercase();
    assert!(first.starts_with("put /below/v1/x?y=1 http/1.1\r\n"), "{first}");
    for field in [
        format!("host: {address}"),
        format!("authorization: bearer {}", key().reveal()),
        "content-type: application/json".to_owned(),
    ] {
        assert!(first.contains(&format!("\r\n{field}\r\n")), "{field}: {first}");
    }
    assert!(first.ends_with("\r\n\r\n{\"text\":\"ä\"}"), "{first}");
    assert!(!asked[1].to_lowercase().contains("content-type"), "{}", asked[1]);
}

#[test]
fn refusals_become_messages_and_exit_codes() {
    let cases = [(400, 5), (401, 2), (403, 2), (404, 3), (409, 2), (422, 2), (500, 2)];
    let (address, asked) = peer(cases.iter().map(|(status, _)| problem(*status, "x-request-id: r-1\r\n")).collect());
    let client = Client::new(&place(address)).unwrap();
    for (status, code) in cases {
        let error = client.call(Method::GET, "/", None).unwrap_err();
        assert_eq!(error.exit_code(), code, "{status}");
        let message = error.to_string();
        assert!(message.starts_with("no, planted (planted)"), "{message}");
        assert_eq!(message.contains("TENURE_KEY"), status == 401, "{message}");
        assert_eq!(message.contains("r-1"), status == 500, "{message}");
    }
    asked.join().unwrap();
}

#[test]
fn a_daemon_that_asks_for_the_same_call_again_gets_it_a_few_times() {
    let busy = || problem(503, "retry-after: 0\r\n");
    let ok = answer("200 OK", "", "1");
    let (address, asked) = peer(vec![busy(), problem(429, "retry-after: 0\r\n"), ok, busy(), busy(), busy(), busy()]);
    let client = Client::new(&place(address)).unwrap();
    let body = serde_json::json!({"idempotency_key": "k"});
    assert_eq!(client.call(Method::POST, "/", Some(&body)).unwrap(), 1);
    let error = client.call(Method::POST, "/", None).unwrap_err();
    assert!(matches!(&error, CallError::Refused(refusal) if refusal.code() == "planted"), "{error}");
    let asked = asked.join().unwrap();
    assert!(asked[0] == asked[1] && asked[1] == asked[2], "{asked:?}");
    // Who is told to come tomorrow does not wait for it.
    let (address, asked) = peer(vec![problem(429, "retry-after: 86400\r\n")]);
    assert_eq!(Client::new(&place(address)).unwrap().call(Method::GET, "/", None).unwrap_err().exit_code(), 2);
    asked.join().unwrap();
}

#[test]
fn what_is_no_daemon_is_told_apart() {
    let page = answer("502 Bad Gateway", "content-type: text/html\r\n", "<html>");
    let html = answer("200 OK", "content-type: text/html\r\n", "<html>");
    let moved = answer("302 Found", "location: http://127.0.0.1:1/\r\n", "");
    let (address, asked) = peer(vec![page, html, moved, "220 ftp ready\r\n\r\n".to_owned()]);
    let client = Client::new(&place(address)).unwrap();
    for _ in 0..4 {
        let error = client.call(Method::GET, "/", None).unwrap_err();
        assert!(matches!(error, CallError::Strange { .. }), "{error}");
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("is no daemon"), "{error}");
    }
    asked.join().unwrap();
}

#[test]
fn nobody_and_nobody_in_time() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let client = Client::new(&place(address)).unwrap();
    let began = Instant::now();
    let error = client.call_within(Method::GET, "/", None, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, CallError::TooSlow { .. }) && began.elapsed() < OUTER_LIMIT, "{error}");
    drop(listener);
    let error = client.call(Method::GET, "/", None).unwrap_err();
    assert_eq!(error.exit_code(), 3);
    assert!(error.to_string().contains("`tenure serve`") && error.to_string().contains("TENURE_URL"), "{error}");
    for url in ["", "ftp://x", "x", "http://", "http://a b", "http://user@host"] {
        let wrong = Place { url: url.to_owned(), key: None };
        assert_eq!(Client::new(&wrong).err().unwrap().exit_code(), 78, "{url}");
    }
}

#[test]
fn the_place_is_what_is_configured_else_the_listener() {
    let mut config = Config::default();
    let url = |config: &Config| Place::with_variable(config, None).unwrap().url;
    assert_eq!(url(&config), "http://127.0.0.1:7070");
    for (host, expected) in
        [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("name", "name"), ("10.0.0.1", "10.0.0.1")]
    {
        config.http.listen = Listen::Tcp { host: host.to_owned(), port: 1 };
        assert_eq!(url(&config), format!("http://{expected}:1"));
    }
    config.http.tls_cert = Some(PathBuf::from("cert.pem"));
    assert_eq!(url(&config), "https://10.0.0.1:1");
    config.client.url = Some("http://elsewhere:2".to_owned());
    assert_eq!(url(&config), "http://elsewhere:2");
}

#[test]
fn a_key_file_must_be_ones_own_and_the_variable_wins() {
    let folder = Folder::new("keys");
    let mut config = Config::default();
    let text = key();
    config.client.key_file = Some(folder.file("good", 0o600, &format!("{}\n", text.reveal())));
    let found = |config: &Config, variable: Option<&str>| {
        Place::with_variable(config, variable.map(OsString::from)).map(|place| place.key.unwrap().reveal().to_owned())
    };
    assert_eq!(found(&config, None).unwrap(), text.reveal());
    let other = KeyText::from_random([1; 32]);
    assert_eq!(found(&config, Some(other.reveal())).unwrap(), other.reveal());

    for mode in [0o644, 0o640, 0o604, 0o660] {
        let path = folder.file("open", mode, text.reveal());
        config.client.key_file = Some(path.clone());
        let error = found(&config, None).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains(&format!("{mode:04o}")) && said.ends_with(&format!("`chmod 600 {}`", path.display())),
            "{said}"
        );
        assert_eq!(error.exit_code(), 78);
    }
    config.client.key_file = Some(folder.file("wrong", 0o600, &text.reveal()[..80]));
    let said = found(&config, None).unwrap_err().to_string();
    assert!(said.contains("wrong: this is no key") && !said.contains(&text.reveal()[24..60]), "{said}");
    config.client.key_file = Some(folder.0.join("none"));
    assert!(found(&config, None).unwrap_err().to_string().contains("[client] key_file"));
    let said = found(&config, Some("secret")).unwrap_err().to_string();
    assert!(said.starts_with("the variable TENURE_KEY: this is no key") && !said.contains("secret"), "{said}");
}

/// Certificates that the test below trusts.
static TRUSTED: Mutex<Option<RootCertStore>> = Mutex::new(None);

#[test]
fn the_real_door_is_called_in_clear_and_encrypted() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let text = key();
    let entry = Key { name: "k".to_owned(), hash: text.hash(), scopes: Scopes::all(), expires_at_ms: None };
    let mut options = DoorOptions::new("Sample", "1");
    options.keyring = tokio::sync::watch::channel(Some(Arc::new(Keyring::new([entry])))).1;
    let door = Arc::new(Door::new(Routes::new(), options));
    assert!(door.routes().iter().all(|route| route.access == Access::Open));

    let folder = Folder::new("tls");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = folder.file("cert.pem", 0o600, &made.cert.pem());
    let tls = Tls::load(certificate, folder.file("key.pem", 0o600, &made.signing_key.serialize_pem())).unwrap();
    let around = Surroundings { has_keys: true, has_tls: true, allow_plaintext: false };
    let serve = |tls: Option<Tls>| {
        let _inside = runtime.enter();
        let listener = http_server::listen("127.0.0.1", 0, around).unwrap();
        Server::start(listener, Arc::clone(&door), tls.map(Arc::new), ServerOptions::default()).unwrap()
    };
    let (clear, encrypted) = (serve(None), serve(Some(tls)));
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    *TRUSTED.lock().unwrap() = Some(roots);
    let trusted = || TRUSTED.lock().unwrap().clone().ok_or_else(|| "none".to_owned());

    let clear = Client::new(&Place { url: format!("http://{}", clear.address()), key: Some(text.clone()) }).unwrap();
    let url = format!("https://localhost:{}", encrypted.address().port());
    let over_tls = Client::trusting(&Place { url: url.clone(), key: Some(text) }, trusted).unwrap();
    for client in [&clear, &over_tls] {
        assert_eq!(client.call(Method::GET, "/openapi.json", None).unwrap()["info"]["title"], "Sample");
        let error = client.call(Method::GET, "/v1/nothing", None).unwrap_err();
        assert_eq!(error.exit_code(), 3, "{error}");
        assert!(error.to_string().contains("(not_found)"), "{error}");
    }
    // Who is not trusted is not told the key.
    let none = || Ok(RootCertStore::empty());
    let distrusting = Client::trusting(&Place { url, key: Some(key()) }, none).unwrap();
    let error = distrusting.call(Method::GET, "/openapi.json", None).unwrap_err();
    assert!(matches!(error, CallError::Unreachable { .. }), "{error}");
}

#[test]
fn debug_shows_no_key() {
    let place = Place { url: "http://x".to_owned(), key: Some(key()) };
    assert!(!format!("{place:?}").contains(&key().reveal()[24..]));
}
