//! From a request to its answer.
//!
//! Owns: the order of things for each request: limits, who asks, may they, the handler, audit, log.
//! Never: has a socket; a test may call [`Door::answer`] itself.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use axum::extract::{FromRequestParts as _, RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodRouter;
use http_body::Body as _;
use tokio::sync::watch;
use tower_service::Service as _;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};
use utoipa_axum::routes;

use crate::access::{self, Access, Peer};
use crate::audit::{self, AuditEntry, AuditSink, NoAudit, Recorder};
use crate::body::{BodyError, Bounded};
use crate::figures::{Counted, Figures};
use crate::key::KeyId;
use crate::keyring::Keyring;
use crate::params;
use crate::problem::{Noted, Problem};
use crate::request_id::{REQUEST_ID_HEADER, RequestId};
use crate::route::{Route, RouteInfo, Routes};

/// Most bytes in the head of a request: its first line and header fields.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Most header fields in a request.
pub const HEADERS_MAX: usize = 64;
/// How long a whole body may take.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Target of the span of each request. No other level or name is needed to choose it; where no subscriber does, a request
/// has no span.
pub const SPAN_TARGET: &str = "tenure::spans";

/// Makes what a request says of its caller's trace the parent of the request's span, before that begins.
pub type AdoptSpan = fn(&HeaderMap, &Span);

/// What a door needs beside its routes.
pub struct DoorOptions {
    /// The title in the API's description.
    pub title: String,
    /// The version in the API's description.
    pub version: String,
    /// The keys, of which a sender may put others into their place at any time. `None`: not known yet, so whatever needs a
    /// key is answered with 503.
    pub keyring: watch::Receiver<Option<Arc<Keyring>>>,
    /// Who keeps the audit log.
    pub audit: Arc<dyn AuditSink>,
    /// Whether routes of [`Access::Probe`] answer everybody.
    pub public_probes: bool,
    /// How long a whole body may take.
    pub body_timeout: Duration,
    /// Who knows traces of callers; `None`: each request begins one of its own.
    pub adopt_span: Option<AdoptSpan>,
}

impl DoorOptions {
    /// No keys, no audit log, probes open to everybody, usual limits.
    pub fn new(title: impl Into<String>, version: impl Into<String>) -> DoorOptions {
        DoorOptions {
            title: title.into(),
            version: version.into(),
            keyring: watch::channel(Some(Arc::default())).1,
            audit: Arc::new(NoAudit),
            public_probes: true,
            body_timeout: BODY_TIMEOUT,
            adopt_span: None,
        }
    }
}

/// How often a key was used since it was last asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyUse {
    /// Calls that were let in.
    pub count: u64,
    /// The last of them, in ms since 1970.
    pub last_ms: i64,
}

/// Answers requests by a list of routes.
pub struct Door {
    router: axum::Router,
    shared: Arc<Shared>,
    infos: Vec<RouteInfo>,
    description: Arc<str>,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Door({} routes)", self.infos.len())
    }
}

/// What requests share.
struct Shared {
    keyring: watch::Receiver<Option<Arc<Keyring>>>,
    recorder: Arc<Recorder>,
    figures: Arc<Figures>,
    public_probes: bool,
    body_timeout: Duration,
    adopt_span: Option<AdoptSpan>,
    uses: Mutex<BTreeMap<KeyId, KeyUse>>,
    told_of_no_keys: AtomicBool,
}

/// What stands before one route.
struct Gate {
    info: RouteInfo,
    shared: Arc<Shared>,
}

impl Door {
    /// A door with these routes, and `/openapi.json` that describes them.
    ///
    /// # Panics
    ///
    /// If two routes exclude each other.
    pub fn new(routes: Routes, options: DoorOptions) -> Door {
        // The description has its own route in it, so it can only be written once that route is in the list.
        let described = Arc::new(OnceLock::new());
        let routes = routes.with(Route::new(routes!(openapi), Access::Open).with_state(Arc::clone(&described)));
        let description = routes.description(&options.title, &options.version);
        let description: Arc<str> =
            serde_json::to_string(&description).expect("a description has text keys only").into();
        let description = Arc::clone(described.get_or_init(|| description));

        let figures = Arc::new(Figures::default());
        let shared = Arc::new(Shared {
            keyring: options.keyring,
            recorder: Arc::new(Recorder::new(options.audit, Arc::clone(&figures))),
            figures,
            public_probes: options.public_probes,
            body_timeout: options.body_timeout,
            adopt_span: options.adopt_span,
            uses: Mutex::default(),
            told_of_no_keys: AtomicBool::new(false),
        });
        let infos = routes.infos().cloned().collect();
        let guard = |info: RouteInfo, handler: MethodRouter| {
            let gate = Arc::new(Gate { info, shared: Arc::clone(&shared) });
            handler.route_layer(from_fn_with_state(gate, pass))
        };
        let router = routes
            .into_router(guard)
            .fallback(|| async {
                Problem::not_found("there is no such path; `/openapi.json` describes those there are")
            })
            .method_not_allowed_fallback(|| async {
                let detail = "this path does not have this method; the header field `allow` names those it has";
                Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
            });
        Door { router, shared, infos, description }
    }

    /// The table of routes, `/openapi.json` included.
    pub fn routes(&self) -> &[RouteInfo] {
        &self.infos
    }

    /// The API's description, as served at `/openapi.json`.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// What was counted since the start.
    pub fn counted(&self) -> Counted {
        self.shared.figures.counted()
    }

    /// How keys were used since the last call.
    pub fn take_key_uses(&self) -> BTreeMap<KeyId, KeyUse> {
        std::mem::take(&mut *self.shared.uses.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for audit entries under way; for the end of the server.
    pub async fn audit_settled(&self) {
        self.shared.recorder.settled().await;
    }

    pub(crate) fn figures(&self) -> &Arc<Figures> {
        &self.shared.figures
    }

    /// Says in the log that everybody is answered, if no key is defined.
    pub(crate) fn tell_of_no_keys(&self) {
        if self.shared.keyring.borrow().as_ref().is_some_and(|ring| ring.is_empty()) {
            self.shared.tell_of_no_keys();
        }
    }

    /// Answers one request.
    pub async fn answer(&self, request: Request, peer: Peer) -> Response {
        self.answer_noting(request, peer, Arc::new(AtomicBool::new(true))).await
    }

    /// As [`Door::answer`]; `consumed` tells at the end whether the request's body was read to its end.
    pub(crate) async fn answer_noting(&self, request: Request, peer: Peer, consumed: Arc<AtomicBool>) -> Response {
        let id = RequestId::next();
        let span = self.span(&request, id);
        self.answer_within_span(request, peer, consumed, id).instrument(span).await
    }

    /// The span of a request. What is in it is sent elsewhere: neither its path nor its query nor a header field.
    fn span(&self, request: &Request, id: RequestId) -> Span {
        let method = span_method(request.method());
        let span = tracing::info_span!(
            target: SPAN_TARGET, "request", otel.name = method, otel.kind = "server", otel.status_code = Empty,
            http.request.method = method, http.route = Empty, http.response.status_code = Empty,
            tenure.key_id = Empty, tenure.request_id = %id,
        );
        if let Some(adopt) = self.shared.adopt_span
            && !span.is_disabled()
        {
            adopt(request.headers(), &span);
        }
        span
    }

    async fn answer_within_span(
        &self,
        mut request: Request,
        peer: Peer,
        consumed: Arc<AtomicBool>,
        id: RequestId,
    ) -> Response {
        let began = Instant::now();
        let (method, path) = (request.method().clone(), audit::cut(request.uri().path()));
        consumed.store(request.body().is_end_stream(), Ordering::Relaxed);
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(id);
        request.extensions_mut().insert(Consumed(consumed));
        let checked = look_through(&request);
        let response = match checked {
            Err(problem) => problem.into_response(),
            Ok(()) => match unwinding(self.router.clone().call(request)).await {
                Ok(Ok(response)) => problem_for_text(response),
                Ok(Err(impossible)) => match impossible {},
                Err(panic) => {
                    Figures::add(&self.shared.figures.panics);
                    tracing::error!(request_id = %id, %method, path, "a handler panicked: {panic}");
                    Problem::internal("the handler panicked").into_response()
                }
            },
        };
        self.finish(response, Told { id, began, method: method.as_str(), path: &path, peer })
    }

    /// Header fields that every answer has, figures, and the access log.
    fn finish(&self, mut response: Response, told: Told<'_>) -> Response {
        let Told { id, began, method, path, peer } = told;
        let status = response.status();
        self.shared.figures.answered(status.as_u16());
        let span = Span::current();
        span.record("http.response.status_code", i64::from(status.as_u16()));
        if status.is_server_error() {
            span.record("otel.status_code", "ERROR");
        }
        let noted = response.extensions_mut().remove::<Noted>();
        let key = response.extensions_mut().remove::<Admitted>().map_or_else(|| "-".to_owned(), |admitted| admitted.0);
        if let Some(cause) = noted.as_ref().and_then(|noted| noted.cause.as_deref()) {
            tracing::error!(request_id = %id, method, path, "a request failed: {cause}");
        }
        tracing::debug!(
            request_id = %id, method, path, status = status.as_u16(), code = noted.as_ref().map_or("-", |noted| noted.code),
            key, peer = %peer.address, us = began.elapsed().as_micros(), "request"
        );
        let headers = response.headers_mut();
        if let Ok(id) = HeaderValue::from_str(&id.to_string()) {
            headers.insert(REQUEST_ID_HEADER, id);
        }
        headers.entry(header::X_CONTENT_TYPE_OPTIONS).or_insert(HeaderValue::from_static("nosniff"));
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        response
    }
}

/// What the access log says of a request beside its answer.
struct Told<'a> {
    id: RequestId,
    began: Instant,
    method: &'a str,
    path: &'a str,
    peer: Peer,
}

/// Becomes true when a request's body was read to its end. Travels in the request's extensions.
#[derive(Clone)]
struct Consumed(Arc<AtomicBool>);

/// Who was let in, for the access log. Travels in the answer's extensions.
#[derive(Clone)]
struct Admitted(String);

impl Shared {
    fn tell_of_no_keys(&self) {
        if !self.told_of_no_keys.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "no key is defined: whoever reaches loopback on this machine is answered and may do everything"
            );
        }
    }

    fn note_use(&self, id: KeyId, now_ms: i64) {
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        // There is at most one entry per key that was ever defined, and whoever manages keys takes them away.
        let entry = uses.entry(id).or_insert(KeyUse { count: 0, last_ms: now_ms });
        entry.count += 1;
        entry.last_ms = now_ms;
    }
}

/// The method as it stands in a span: a caller may invent any word, and whoever keeps spans counts by them.
fn span_method(method: &Method) -> &'static str {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    KNOWN.into_iter().find(|known| method == known).unwrap_or("_OTHER")
}

/// What every request must keep to, whatever its route.
fn look_through(request: &Request) -> Result<(), Problem> {
    let too_large = |detail: String, limit: usize| {
        Problem::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", detail).with("limit", limit)
    };
    let headers = request.headers();
    if headers.len() > HEADERS_MAX {
        let detail = format!("the request has {} header fields; the most is {HEADERS_MAX}", headers.len());
        return Err(too_large(detail, HEADERS_MAX));
    }
    let bytes = head_bytes(request, headers);
    if bytes > HEAD_BYTES_MAX {
        let detail = format!("the request's head has {bytes} bytes; the most is {HEAD_BYTES_MAX}");
        return Err(too_large(detail, HEAD_BYTES_MAX));
    }
    if headers.get(header::CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        let detail = "bodies are taken as they are: send them without `content-encoding`";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_encoding", detail));
    }
    params::look_through(request.uri())
}

/// What the head took on the wire, but for spaces.
fn head_bytes(request: &Request, headers: &HeaderMap) -> usize {
    let line = request.method().as_str().len() + request.uri().path().len() + request.uri().query().map_or(0, str::len);
    headers.iter().fold(line, |bytes, (name, value)| bytes + name.as_str().len() + value.len() + 4)
}

/// What stands before each handler: who asks, may they, limits, audit.
async fn pass(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    let request_id = request.extensions().get::<RequestId>().map(RequestId::to_string);
    Span::current().record("http.route", &*gate.info.path);
    match gate.admit(request).await {
        Ok((request, begun, admitted)) => {
            let answered = unwinding(next.run(request)).await;
            let mut response = match answered {
                Ok(response) => problem_for_text(response),
                Err(panic) => {
                    // Caught here too, as the audit log says what became of the call.
                    Figures::add(&gate.shared.figures.panics);
                    tracing::error!(request_id, route = %gate.info.path, "a handler panicked: {panic}");
                    Problem::internal("the handler panicked").into_response()
                }
            };
            if let Some(begun) = begun {
                begun.end(response.status()).await;
            }
            if let Some(admitted) = admitted {
                response.extensions_mut().insert(admitted);
            }
            response
        }
        Err(problem) => problem.into_response(),
    }
}

impl Gate {
    async fn admit(&self, request: Request) -> Result<(Request, Option<audit::Begun>, Option<Admitted>), Problem> {
        let (mut parts, body) = request.into_parts();
        let peer = extension::<Peer>(&parts.extensions)?;
        let wanted = self.info.access.wanted(self.shared.public_probes);
        let mut begun = None;
        let mut admitted = None;
        if !wanted.is_empty() {
            let now_ms = now_ms();
            let keyring = self.shared.keyring.borrow().clone().ok_or_else(|| {
                let detail =
                    "which keys are defined is not known yet: the daemon is starting, or waits for its database";
                Problem::unavailable("starting", detail)
            })?;
            let caller = access::identify(&parts.headers, &keyring, peer, now_ms)?;
            match caller.key_id() {
                Some(id) => {
                    Span::current().record("tenure.key_id", tracing::field::display(&id));
                    self.shared.note_use(id, now_ms);
                }
                None => self.shared.tell_of_no_keys(),
            }
            access::admit(&caller, wanted)?;
            admitted = Some(Admitted(caller.to_string()));
            if self.info.audited {
                let parameters = RawPathParams::from_request_parts(&mut parts, &()).await.map(|parameters| {
                    parameters.iter().map(|(name, value)| (name.to_owned(), audit::cut(value))).collect()
                });
                begun = Some(self.shared.recorder.begin(AuditEntry {
                    caller: caller.clone(),
                    from: peer.address,
                    method: parts.method.clone(),
                    route: Arc::clone(&self.info.path),
                    parameters: parameters.unwrap_or_default(),
                    status: None,
                    request_id: extension::<RequestId>(&parts.extensions)?,
                }));
            }
            parts.extensions.insert(caller);
        }
        let limit = self.info.body_limit;
        if body.size_hint().lower() > limit as u64 {
            let problem = Problem::from(BodyError::TooLarge { limit });
            if let Some(begun) = begun {
                begun.end(problem.status()).await;
            }
            return Err(problem);
        }
        let Consumed(consumed) = extension::<Consumed>(&parts.extensions)?;
        let body =
            if body.is_end_stream() { body } else { Bounded::wrap(body, limit, self.shared.body_timeout, consumed) };
        Ok((Request::from_parts(parts, body), begun, admitted))
    }
}

/// What the door itself put into the request's extensions.
fn extension<T: Clone + Send + Sync + 'static>(extensions: &axum::http::Extensions) -> Result<T, Problem> {
    let name = std::any::type_name::<T>();
    extensions.get::<T>().cloned().ok_or_else(|| Problem::internal(format!("a request came without its {name}")))
}

/// An answer of a library below, such as an extractor's refusal in plain text, as a problem.
fn problem_for_text(response: Response) -> Response {
    let status = response.status();
    let is_text =
        response.headers().get(header::CONTENT_TYPE).is_none_or(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if !(status.is_client_error() || status.is_server_error()) || !is_text {
        return response;
    }
    let (code, detail) = match status {
        StatusCode::BAD_REQUEST => ("bad_request", "the request is malformed"),
        StatusCode::NOT_FOUND => ("not_found", "there is no such thing"),
        StatusCode::PAYLOAD_TOO_LARGE => ("too_large", "the body is too large"),
        _ if status.is_client_error() => ("refused", "the request was refused"),
        _ => ("internal", "the server failed"),
    };
    let mut problem = Problem::new(status, code, detail).into_response();
    for (name, value) in response.headers() {
        if name != header::CONTENT_TYPE && name != header::CONTENT_LENGTH {
            problem.headers_mut().append(name, value.clone());
        }
    }
    problem.extensions_mut().extend(response.into_parts().0.extensions);
    problem
}

/// The outcome of `future`, or what it panicked with.
async fn unwinding<F: Future>(future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        // A future that panicked is not polled again, so nothing sees what it left half done but by what it shares
        // with others, whose locks are poisoned.
        match std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(message(panic.as_ref()))),
        }
    })
    .await
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message").to_owned()
}

/// ms since 1970. A clock before that counts as 1970, where no key has expired: a clock that wrong is the least trouble.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The description of this interface, as OpenAPI 3.1.
#[utoipa::path(get, path = "/openapi.json", tag = "server", responses((status = 200, description = "The description", body = Object)))]
async fn openapi(State(description): State<Arc<OnceLock<Arc<str>>>>) -> Response {
    let text = description.get().map(|text| text.to_string()).unwrap_or_default();
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
