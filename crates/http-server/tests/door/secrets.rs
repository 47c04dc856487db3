//! Keys stay out of logs.

use std::io;
use std::sync::{Arc, LazyLock, Mutex};

use http_server::{Key, KeyText, Scope, ServerOptions};

use crate::sample::Sample;
use crate::wire::{Client, get};

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What this process logged, at the finest level. One subscriber for all tests: those of single threads lose lines as
/// soon as another thread meets their place in the code first.
static LOG: LazyLock<Captured> = LazyLock::new(|| {
    let captured = Captured::default();
    let writer = captured.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    captured
});

/// Begins to keep what is logged; each sample does.
pub(crate) fn keep_log() {
    LazyLock::force(&LOG);
}

#[tokio::test]
async fn a_key_is_in_no_log_whatever_becomes_of_it() {
    let keys = [(1, Scope::Read, None), (2, Scope::Events, None), (3, Scope::Read, Some(1))];
    let keys = keys.map(|(number, scope, expires_at_ms)| {
        let text = KeyText::from_random([0xc0 + number; 32]);
        (
            text.clone(),
            Key { name: format!("k{number}"), hash: text.hash(), scopes: [scope].into_iter().collect(), expires_at_ms },
        )
    });
    let unknown = KeyText::from_random([0xcf; 32]);
    let texts: Vec<KeyText> = keys.iter().map(|(text, _)| text.clone()).chain([unknown]).collect();
    let sample = Sample::new(keys.iter().map(|(_, key)| key.clone()).collect());
    let server = sample.serve(ServerOptions::default());
    let mut client = Client::connect(server.address()).await;
    for text in &texts {
        let text = text.reveal();
        for field in [
            format!("authorization: Bearer {text}"),
            format!("authorization: Basic {text}"),
            format!("authorization: Bearer {text}x"),
            format!("authorization: {text}"),
            format!("authorization: Bearer {text}\r\nauthorization: Bearer {text}"),
        ] {
            for path in ["/v1/things/1", "/open", "/v1/nothing", "/v1/fail", "/v1/things/x"] {
                let reply = client.ask(get(path).replacen("\r\n", &format!("\r\n{field}\r\n"), 1)).await;
                let body = String::from_utf8(reply.body).unwrap();
                assert!(!body.contains(&text[24..]), "{body}");
            }
        }
        let query = client.ask(get(&format!("/open?key={text}"))).await;
        assert_eq!(query.status, 200);
    }
    drop(client);
    server.stop(crate::sample::LONG).await;
    let log = String::from_utf8(LOG.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains(keys[0].1.hash.id().as_str()), "the log names keys by their id:\n{log}");
    assert!(log.contains("scope_missing") && log.contains("key_expired") && log.contains("a request failed"), "{log}");
    for text in &texts {
        assert!(!log.contains(&text.reveal()[24..]), "a secret is in the log:\n{log}");
    }
    let shown = format!("{keys:?} {:?}", sample.audit.entries.lock().unwrap());
    assert!(texts.iter().all(|text| !shown.contains(&text.reveal()[24..])), "{shown}");
}
