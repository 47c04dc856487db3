//! What the audit log is told.

use std::sync::atomic::Ordering;

use axum::http::{Method, StatusCode};
use http_server::{AuditEntry, Caller, Scope, ServerOptions};

use crate::sample::{Sample, key};
use crate::wire::{Client, get, post, soon, until};

fn with_key(request: String, text: &http_server::KeyText) -> String {
    request.replacen("\r\n", &format!("\r\nauthorization: Bearer {}\r\n", text.reveal()), 1)
}

type Line = (String, Method, String, Vec<(String, String)>, Option<u16>);

fn line(entry: &AuditEntry) -> Line {
    let AuditEntry { caller, method, route, parameters, status, .. } = entry;
    let status = status.map(|status| status.as_u16());
    (caller.to_string(), method.clone(), route.to_string(), parameters.clone(), status)
}

#[tokio::test]
async fn each_call_that_was_let_in_leaves_exactly_its_entry() {
    let (text, entry) = key(1, &[Scope::Read, Scope::Write, Scope::Execute, Scope::Worker]);
    let id = entry.hash.id().to_string();
    let sample = Sample::new(vec![entry]);
    let server = sample.serve(ServerOptions::default());
    let mut client = Client::connect(server.address()).await;
    let put = |body: &str| post("/v1/things/0", body).replacen("POST", "PUT", 1);
    let requests = [
        (get("/v1/things/7?limit=1"), 200),
        (put(r#"{"text":"a"}"#), 409),
        (put("{"), 400),
        (get("/v1/panic/audited"), 500),
        (post("/v1/things:start", &"x".repeat(200)), 413),
        // Not audited: an open route, a worker's call (W13), no route at all; and the scope that is missing.
        (get("/open"), 200),
        (post("/v1/worker/claim", ""), 200),
        (get("/v1/nothing"), 404),
        ("DELETE /v1/keys/a/b HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), 403),
    ];
    for (request, status) in requests {
        let reply = client.ask(with_key(request.clone(), &text)).await;
        assert_eq!(reply.status, status, "{request}");
        if status == 413 {
            client = Client::connect(server.address()).await; // its body was not read
        }
    }
    assert_eq!(client.ask(get("/v1/things/7")).await.status, 401);

    let entries = sample.audit.entries.lock().unwrap();
    let by = |method, route: &str, parameters: &[(&str, &str)], status: u16| {
        let parameters = parameters.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        (id.clone(), method, route.to_owned(), parameters, Some(status))
    };
    assert_eq!(
        entries.iter().map(line).collect::<Vec<_>>(),
        [
            by(Method::GET, "/v1/things/{id}", &[("id", "7")], 200),
            by(Method::PUT, "/v1/things/{id}", &[("id", "0")], 409),
            by(Method::PUT, "/v1/things/{id}", &[("id", "0")], 400),
            by(Method::GET, "/v1/panic/audited", &[], 500),
            by(Method::POST, "/v1/things:start", &[], 413),
        ]
    );
    assert!(entries.iter().all(|entry| entry.from.ip().is_loopback()));
    assert!(matches!(&entries[0].caller, Caller::Key { key, .. } if key.name == "key 1"));
}

#[tokio::test]
async fn parameters_are_kept_in_order_and_cut() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    let mut client = Client::connect(server.address()).await;
    let request = format!("DELETE /v1/keys/{}/%C3%A4 HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(1000));
    assert_eq!(client.ask(request).await.status, 200);
    let entries = sample.audit.entries.lock().unwrap();
    assert_eq!(entries[0].parameters, [("a".to_owned(), "x".repeat(256)), ("b".to_owned(), "ä".to_owned())]);
    assert!(matches!(entries[0].caller, Caller::Anonymous));
}

/// What it asked for may have happened, so that it left does not hide it.
#[tokio::test]
async fn a_client_that_leaves_in_the_middle_leaves_its_entry() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    let mut client = Client::connect(server.address()).await;
    client.send(post("/v1/hold", "")).await;
    soon("the call", sample.shared.held.notified()).await;
    drop(client);
    until("the entry", || sample.audit.entries.lock().unwrap().len() == 1).await;
    assert_eq!(sample.audit.entries.lock().unwrap()[0].status, None);
}

#[tokio::test]
async fn an_audit_log_that_fails_is_counted_and_the_answer_goes_out() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    sample.audit.fails.store(true, Ordering::Relaxed);
    let mut client = Client::connect(server.address()).await;
    assert_eq!(client.ask(get("/v1/things/7")).await.status, StatusCode::OK);
    assert_eq!(sample.door.counted().audit_lost, 1);
}
