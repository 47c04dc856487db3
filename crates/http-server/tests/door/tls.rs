//! Encrypted connections.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http_server::{Server, ServerOptions, Times, Tls, TlsError};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::sample::{LONG, Sample};
use crate::wire::{Client, get, post, soon, until};

/// A folder with a certificate and a key, removed at the end.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Files {
        let folder = std::env::temp_dir().join(format!("http-server-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Files(folder)
    }

    fn certificate(&self) -> PathBuf {
        self.0.join("cert.pem")
    }

    fn key(&self) -> PathBuf {
        self.0.join("key.pem")
    }

    /// Writes another certificate and its key; gives the certificate.
    fn renew(&self) -> CertificateDer<'static> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(self.certificate(), made.cert.pem()).unwrap();
        fs::write(self.key(), made.signing_key.serialize_pem()).unwrap();
        made.cert.der().clone()
    }

    fn load(&self) -> Result<Tls, TlsError> {
        Tls::load(self.certificate(), self.key())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn serve(sample: &Sample, tls: &Arc<Tls>, options: ServerOptions) -> Server {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    Server::start(listener, Arc::clone(&sample.door), Some(Arc::clone(tls)), options).unwrap()
}

/// A client that trusts this certificate only.
async fn connect(server: &Server, trusted: &CertificateDer<'static>) -> std::io::Result<Client<TlsStream<TcpStream>>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(server.address()).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let stream = soon("a handshake", TlsConnector::from(Arc::new(config)).connect(name, stream)).await?;
    Ok(Client::over(stream))
}

#[tokio::test]
async fn another_certificate_is_put_in_place_while_clients_are_connected() {
    let (files, sample) = (Files::new("reload"), Sample::new(vec![]));
    let first = files.renew();
    let tls = Arc::new(files.load().unwrap());
    let server = serve(&sample, &tls, ServerOptions::default());
    let mut early = connect(&server, &first).await.unwrap();
    assert_eq!(early.ask(get("/open")).await.body, b"open");

    let second = files.renew();
    tls.reload().unwrap();
    assert_eq!(early.ask(get("/open")).await.body, b"open");
    let mut late = connect(&server, &second).await.unwrap();
    assert_eq!(late.ask(get("/open")).await.body, b"open");
    assert!(connect(&server, &first).await.is_err(), "the first certificate is still shown");

    // Large bodies and refusals pass as they do in clear.
    let reply = late.ask(post("/v1/things:start", &"x".repeat(200))).await;
    assert_eq!((reply.status, reply.code().as_str()), (413, "too_large"));
    assert_eq!(early.ask(get("/v1/large")).await.body.len(), 64 * 1024 * 1024);
}

#[tokio::test]
async fn files_that_cannot_be_used_leave_the_old_ones_in_use_and_are_named() {
    let (files, sample) = (Files::new("bad"), Sample::new(vec![]));
    let good = files.renew();
    let tls = Arc::new(files.load().unwrap());
    let server = serve(&sample, &tls, ServerOptions::default());
    let old_key = fs::read(files.key()).unwrap();

    let refusal = |what: &str| {
        let error = tls.reload().expect_err(what);
        assert_eq!(files.load().expect_err(what).to_string(), error.to_string());
        error
    };
    files.renew();
    fs::write(files.key(), &old_key).unwrap();
    let error = refusal("a key of another certificate");
    assert!(matches!(error, TlsError::Pair { .. }) && error.to_string().contains("cannot be used together"), "{error}");
    fs::write(files.key(), "nothing").unwrap();
    let error = refusal("no key");
    assert!(error.to_string().contains("key.pem holds no private key in PEM: there is none in it"), "{error}");
    fs::write(files.certificate(), "-----BEGIN CERTIFICATE-----\n???\n-----END CERTIFICATE-----\n").unwrap();
    assert!(matches!(refusal("no base64"), TlsError::Content { what: "certificate", .. }));
    fs::write(files.certificate(), &old_key).unwrap();
    assert!(refusal("no certificate").to_string().contains("cert.pem holds no certificate in PEM"));
    fs::remove_file(files.certificate()).unwrap();
    let error = refusal("no file");
    assert!(error.to_string().contains("failed to read") && error.to_string().contains("cert.pem"), "{error}");

    assert_eq!(connect(&server, &good).await.unwrap().ask(get("/open")).await.body, b"open");
}

#[tokio::test]
async fn who_speaks_no_tls_or_never_ends_its_handshake_is_closed() {
    let (files, sample) = (Files::new("handshake"), Sample::new(vec![]));
    let trusted = files.renew();
    let tls = Arc::new(files.load().unwrap());
    let handshake = Duration::from_secs(1);
    let times = Times { handshake, head: LONG, idle: LONG, write: LONG };
    let server = serve(&sample, &tls, ServerOptions { times, ..ServerOptions::default() });
    let mut silent = Client::connect(server.address()).await;
    let mut plain = Client::connect(server.address()).await;
    plain.send(get("/open")).await;
    until("both refusals", || sample.door.counted().handshakes_failed == 2).await;
    silent.ends().await;
    // What came in clear was answered by an alert of TLS, at most.
    let mut client = connect(&server, &trusted).await.unwrap();
    assert_eq!(client.ask(get("/open")).await.status, 200);
    assert_eq!(soon("the stop", server.stop(LONG)).await.cut, 0);
    client.ends().await;
}
