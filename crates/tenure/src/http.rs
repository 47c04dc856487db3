//! The command line's way to the daemon: one call after another, over HTTP.
//!
//! Owns: where the daemon is, which key is shown to it, how long a call may take, and what its answers mean for the
//! exit code.
//! Never: takes a key from an argument, follows a redirection (it would carry the key elsewhere), prints a key.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use http_server::{KeyText, KeyTextError, PROBLEM_JSON};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::http::uri::{Scheme, Uri};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tenure_config::{Config, Listen};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::exit::Failure;

/// The variable that holds a key. It wins over `[client] key_file`.
pub(crate) const KEY_VARIABLE: &str = "TENURE_KEY";

/// How long connecting may take, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a call may take, from a connection to the end of its answer, unless it waits on purpose.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest answer, in bytes: lists come in pages, and the description of the interface is far smaller.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Largest file that is read for a key, in bytes; a key has 88.
const KEY_FILE_BYTES_MAX: u64 = 1024;
/// How often a call is sent again when the daemon asks for that, and how soon it must ask for it: who is told to come
/// again tomorrow is told so.
const REPEATS_MAX: u32 = 3;
const REPEAT_AFTER_MAX: Duration = Duration::from_secs(5);

/// Where a daemon is, and what is shown to it.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Begins with `http://` or `https://`.
    pub(crate) url: String,
    /// Nothing: no key is shown.
    pub(crate) key: Option<KeyText>,
}

impl Place {
    /// The place that the configuration and the environment name: `[client] url` (or `TENURE_URL`, which wins), else
    /// where `[http] listen` says; the key in `TENURE_KEY`, else in `[client] key_file`, else none.
    pub(crate) fn of(config: &Config) -> Result<Place, CallError> {
        Place::with_variable(config, std::env::var_os(KEY_VARIABLE))
    }

    fn with_variable(config: &Config, key: Option<OsString>) -> Result<Place, CallError> {
        let url = match &config.client.url {
            Some(url) => url.clone(),
            None => at_listener(&config.http.listen, config.http.tls_cert.is_some()),
        };
        let key = match key {
            Some(text) => {
                let parsed = text.to_str().ok_or(KeyTextError::Shape).and_then(str::parse);
                Some(
                    parsed
                        .map_err(|source| CallError::Key { place: format!("the variable {KEY_VARIABLE}"), source })?,
                )
            }
            None => config.client.key_file.as_deref().map(key_in).transpose()?,
        };
        Ok(Place { url, key })
    }
}

/// The URL of a daemon that listens there, as seen from this machine.
fn at_listener(listen: &Listen, has_tls: bool) -> String {
    let scheme = if has_tls { "https" } else { "http" };
    match listen {
        Listen::Tcp { host, port } => match host.parse::<IpAddr>() {
            Ok(IpAddr::V4(ip)) if ip.is_unspecified() => format!("{scheme}://127.0.0.1:{port}"),
            Ok(IpAddr::V6(ip)) if ip.is_unspecified() => format!("{scheme}://[::1]:{port}"),
            Ok(IpAddr::V6(ip)) => format!("{scheme}://[{ip}]:{port}"),
            _ => format!("{scheme}://{host}:{port}"),
        },
        Listen::Unix(path) => format!("{scheme}://{}", path.display()), // refused as a URL: the daemon has none
    }
}

/// Reads a key from its file, which nobody else may read.
fn key_in(path: &Path) -> Result<KeyText, CallError> {
    let failed = |source| CallError::KeyFile { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    // Of the open file, so that it is the one that is read.
    let status = file.metadata().map_err(failed)?;
    let mode = status.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(CallError::KeyFileOpen { path: path.to_owned(), mode });
    }
    let mut text = String::new();
    file.take(KEY_FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    text.trim_end().parse().map_err(|source| CallError::Key { place: path.display().to_string(), source })
}

/// Why a call did not give what it should.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The file of the key cannot be read.
    #[error("failed to read the key in [client] key_file = \"{path}\": {source}")]
    KeyFile { path: PathBuf, source: io::Error },
    /// Others could read it.
    #[error("the key in {path} lies open: its mode is {mode:04o} and must be 0600; run `chmod 600 {path}`")]
    KeyFileOpen { path: PathBuf, mode: u32 },
    /// What should be a key is none.
    #[error("{place}: {source}")]
    Key { place: String, source: KeyTextError },
    /// The URL cannot be used.
    #[error("`{0}` is no URL of a daemon: write http://HOST:PORT or https://HOST:PORT into [client] url or TENURE_URL")]
    Url(String),
    /// Nobody answers there.
    #[error(
        "no daemon answers at {url}: {why}; start one by `tenure serve`, or say where it is by [client] url or TENURE_URL"
    )]
    Unreachable { url: String, why: String },
    /// It did not answer in time. What was asked for may have happened.
    #[error("the daemon at {url} did not answer within {} s; what was asked for may have happened", .within.as_secs())]
    TooSlow { url: String, within: Duration },
    /// It says no.
    #[error("{}", .0.message())]
    Refused(Box<Refusal>),
    /// What came is no answer of a daemon.
    #[error("what answers at {url} is no daemon: {why}")]
    Strange { url: String, why: String },
    /// This process cannot do it.
    #[error("failed to {action}: {why}")]
    Own { action: &'static str, why: String },
}

/// A problem document, as the daemon sent it.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// The members of the document.
    pub(crate) document: Value,
    request_id: Option<String>,
    showed_key: bool,
    retry_after: Option<Duration>,
}

impl Refusal {
    /// What programs go by.
    pub(crate) fn code(&self) -> &str {
        self.document["code"].as_str().unwrap_or("unknown")
    }

    fn message(&self) -> String {
        let phrase = self.status.canonical_reason().unwrap_or("refused");
        let mut message = format!("{} ({})", self.document["detail"].as_str().unwrap_or(phrase), self.code());
        if self.status == StatusCode::UNAUTHORIZED && !self.showed_key {
            message +=
                &format!("; put a key into the variable {KEY_VARIABLE} or into a file named by [client] key_file");
        }
        if let Some(id) = self.request_id.as_deref().filter(|_| self.status.is_server_error()) {
            message += &format!("; the request was {id}");
        }
        message
    }
}

impl CallError {
    /// How the program ends.
    pub(crate) fn exit_code(&self) -> u8 {
        const REFUSED: u8 = 2;
        const NOT_FOUND: u8 = 3;
        match self {
            CallError::Refused(refusal) if refusal.status == StatusCode::NOT_FOUND => NOT_FOUND,
            CallError::Refused(refusal) if refusal.status == StatusCode::BAD_REQUEST => crate::exit::USAGE,
            CallError::Unreachable { .. } => NOT_FOUND,
            CallError::Refused(_) | CallError::TooSlow { .. } | CallError::Strange { .. } => REFUSED,
            CallError::KeyFile { .. } | CallError::KeyFileOpen { .. } | CallError::Key { .. } | CallError::Url(_) => {
                tenure_config::EXIT_CODE
            }
            CallError::Own { .. } => crate::exit::FAILED,
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        Failure::new(error.exit_code(), error)
    }
}

/// Calls a daemon, and waits for each answer.
pub(crate) struct Client {
    runtime: tokio::runtime::Runtime,
    url: String,
    base: Base,
    key: Option<HeaderValue>,
    tls: Option<Arc<ClientConfig>>,
}

/// The parts of the URL.
struct Base {
    host: String,
    port: u16,
    authority: HeaderValue,
    path: String,
}

impl Client {
    /// A client of the daemon at `place`. Nothing is sent yet.
    pub(crate) fn new(place: &Place) -> Result<Client, CallError> {
        Client::trusting(place, of_the_system)
    }

    fn trusting(place: &Place, roots: fn() -> Result<RootCertStore, String>) -> Result<Client, CallError> {
        let own = |action| move |why: String| CallError::Own { action, why };
        let wrong = || CallError::Url(place.url.clone());
        let uri: Uri = place.url.parse().map_err(|_| wrong())?;
        let is_encrypted = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(wrong)?;
        let host = authority.host();
        let base = Base {
            host: host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host).to_owned(),
            port: authority.port_u16().unwrap_or(if is_encrypted { 443 } else { 80 }),
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| wrong())?,
            path: uri.path().trim_end_matches('/').to_owned(),
        };
        let tls = is_encrypted.then(|| trust(roots()?)).transpose().map_err(own("set up TLS"))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| own("set up the network")(error.to_string()))?;
        let key = place.key.as_ref().and_then(|key| {
            let mut field = HeaderValue::from_str(&format!("Bearer {}", key.reveal())).ok()?;
            field.set_sensitive(true);
            Some(field)
        });
        Ok(Client { runtime, url: place.url.clone(), base, key, tls })
    }

    /// Carries out one call and gives the JSON that came back; `Null` for an empty answer. `path` begins with `/` and
    /// has the query in it, percent-encoded.
    ///
    /// A daemon that is overloaded, or does not know whether it has stored something, asks for the same call again,
    /// and gets it a few times: every call can be repeated, as those that change something carry a key for that.
    pub(crate) fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, CallError> {
        self.call_within(method, path, body, CALL_TIMEOUT)
    }

    /// As [`Client::call`], for calls that wait on purpose: `within` is how long each attempt may take.
    pub(crate) fn call_within(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        within: Duration,
    ) -> Result<Value, CallError> {
        let bytes = body.map(|body| Bytes::from(body.to_string()));
        self.runtime.block_on(async {
            let mut repeats = 0;
            loop {
                match self.attempt(&method, path, bytes.clone(), within).await {
                    Err(CallError::Refused(refusal)) if repeats < REPEATS_MAX => match refusal.retry_after {
                        Some(after) if after <= REPEAT_AFTER_MAX => {
                            repeats += 1;
                            tokio::time::sleep(after).await;
                        }
                        _ => return Err(CallError::Refused(refusal)),
                    },
                    result => return result,
                }
            }
        })
    }

    async fn attempt(
        &self,
        method: &Method,
        path: &str,
        body: Option<Bytes>,
        within: Duration,
    ) -> Result<Value, CallError> {
        let unreachable = |why: String| CallError::Unreachable { url: self.url.clone(), why };
        let connecting = async {
            let stream = TcpStream::connect((self.base.host.as_str(), self.base.port)).await?;
            let Some(config) = &self.tls else { return Ok(Stream::Plain(stream)) };
            let name = ServerName::try_from(self.base.host.clone()).map_err(io::Error::other)?;
            Ok(Stream::Encrypted(Box::new(TlsConnector::from(Arc::clone(config)).connect(name, stream).await?)))
        };
        let stream = match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(stream) => stream.map_err(|error: io::Error| unreachable(error.to_string()))?,
            Err(_) => return Err(unreachable(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()))),
        };
        let exchange = async {
            match stream {
                Stream::Plain(stream) => self.exchange(stream, method, path, body).await,
                Stream::Encrypted(stream) => self.exchange(*stream, method, path, body).await,
            }
        };
        match tokio::time::timeout(within, exchange).await {
            Ok(result) => result,
            Err(_) => Err(CallError::TooSlow { url: self.url.clone(), within }),
        }
    }

    /// One request and its answer, over a connection of its own.
    async fn exchange<T>(&self, stream: T, method: &Method, path: &str, body: Option<Bytes>) -> Result<Value, CallError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let strange = |why: String| CallError::Strange { url: self.url.clone(), why };
        let (mut sender, connection) = hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream))
            .await
            .map_err(|error| strange(error.to_string()))?;
        // Its failure is seen at the request.
        tokio::spawn(async move { drop(connection.await) });
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base.path))
            .header(header::HOST, &self.base.authority)
            .header(header::ACCEPT, "application/json, application/problem+json")
            .header(header::CONNECTION, "close");
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, key);
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request
            .body(Full::new(body.unwrap_or_default()))
            .map_err(|error| CallError::Own { action: "write the request", why: error.to_string() })?;
        let response = sender.send_request(request).await.map_err(|error| strange(error.to_string()))?;
        self.understand(response).await
    }

    async fn understand(&self, response: Response<Incoming>) -> Result<Value, CallError> {
        let strange = |why: String| CallError::Strange { url: self.url.clone(), why };
        let (parts, body) = response.into_parts();
        let bytes = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| strange(error.to_string()))?;
        let bytes = bytes.to_bytes();
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let kind = text("content-type").unwrap_or_default();
        let parsed = || serde_json::from_slice::<Value>(&bytes).map_err(|error| strange(error.to_string()));
        if parts.status.is_success() {
            return if bytes.is_empty() { Ok(Value::Null) } else { parsed() };
        }
        if !kind.starts_with(PROBLEM_JSON) {
            return Err(strange(format!("it says {} without a problem document", parts.status)));
        }
        let asks_again = matches!(parts.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
        let seconds = text("retry-after").and_then(|seconds| seconds.parse().ok());
        Err(CallError::Refused(Box::new(Refusal {
            status: parts.status,
            document: parsed()?,
            request_id: text(http_server::REQUEST_ID_HEADER),
            showed_key: self.key.is_some(),
            retry_after: seconds.filter(|_| asks_again).map(Duration::from_secs),
        })))
    }
}

enum Stream {
    Plain(TcpStream),
    Encrypted(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

/// Certificates that the system trusts; `SSL_CERT_FILE` names others.
fn of_the_system() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable > 0 {
        return Ok(roots);
    }
    let why = found.errors.first().map_or_else(|| "there are none".to_owned(), ToString::to_string);
    Err(format!("no certificates to trust: {why}; the variable SSL_CERT_FILE may name a file of them"))
}

fn trust(roots: RootCertStore) -> Result<Arc<ClientConfig>, String> {
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests;
