//! A client of the daemon: one request after another on a connection, in clear or behind TLS.
//!
//! Owns: the bytes of HTTP/1.1 as tests need them: bodies with a length. Never: repeats a request.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;
use testing::process::OUTER_LIMIT;

/// What came back.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The whole head as text.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// The body as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The code of a problem document.
    #[track_caller]
    pub(crate) fn code(&self) -> String {
        assert!(self.head.contains("application/problem+json"), "{self:?}");
        self.json()["code"].as_str().expect("a problem has a code").to_owned()
    }

    /// The text of a problem document.
    #[track_caller]
    pub(crate) fn detail(&self) -> String {
        self.json()["detail"].as_str().unwrap_or_else(|| panic!("no detail: {self:?}")).to_owned()
    }

    /// Itself, if it has this status.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Answer {
        assert_eq!(self.status, status, "{self:?}");
        self
    }
}

/// A connection that goes on after each answer.
pub(crate) struct Connection<S> {
    stream: S,
    host: String,
}

/// Connects in clear.
pub(crate) fn connect(address: SocketAddr) -> io::Result<Connection<TcpStream>> {
    let stream = TcpStream::connect_timeout(&address, OUTER_LIMIT)?;
    stream.set_read_timeout(Some(OUTER_LIMIT))?;
    stream.set_write_timeout(Some(OUTER_LIMIT))?;
    Ok(Connection { stream, host: address.to_string() })
}

/// Connects behind TLS, trusting this certificate for `localhost` and no other.
pub(crate) fn connect_tls(
    address: SocketAddr,
    trusted: &CertificateDer<'static>,
) -> io::Result<Connection<StreamOwned<ClientConnection, TcpStream>>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).expect("a certificate that the test made");
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions that ring has")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let mut session = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let mut stream = connect(address)?.stream;
    while session.is_handshaking() {
        session.complete_io(&mut stream)?;
    }
    Ok(Connection { stream: StreamOwned::new(session, stream), host: "localhost".to_owned() })
}

impl<S: Read + Write> Connection<S> {
    /// Sends a request and reads its answer.
    pub(crate) fn call(
        &mut self,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> io::Result<Answer> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", self.host);
        if let Some(key) = key {
            head += &format!("authorization: Bearer {key}\r\n");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        if !body.is_empty() {
            head += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        self.stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
        self.stream.flush()?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<Answer> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).map_err(io::Error::other)?.to_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no status: {head}")))?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        assert!(!head.contains("transfer-encoding"), "a body without a length: {head}");
        let mut body = vec![0; length.unwrap_or(0)];
        self.stream.read_exact(&mut body)?;
        Ok(Answer { status, head, body: String::from_utf8(body).map_err(io::Error::other)? })
    }
}
