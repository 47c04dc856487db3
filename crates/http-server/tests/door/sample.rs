//! Routes that do what the tests need, and a server of them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http_server::{
    Access, AuditEntry, AuditFailed, AuditSink, Caller, Door, DoorOptions, Json, Key, KeyText, Keyring, Path, Problem,
    Query, Raw, Recording, Route, Routes, Scope, Server, ServerOptions, Stopping, Surroundings, listen,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

/// What handlers and tests share.
#[derive(Default)]
pub(crate) struct Shared {
    /// Notified when `/v1/hold` has begun.
    pub(crate) held: Notify,
    /// Lets one `/v1/hold` end.
    pub(crate) release: Notify,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Echo {
    text: String,
    #[serde(default)]
    count: u32,
}

#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct Page {
    #[serde(default)]
    limit: u32,
}

/// Is it alive?
#[utoipa::path(get, path = "/healthz", responses((status = 200)))]
async fn health() -> &'static str {
    "ok"
}

/// Everybody may know it.
#[utoipa::path(get, path = "/open", responses((status = 200)))]
async fn open() -> &'static str {
    "open"
}

/// A thing.
#[utoipa::path(get, path = "/v1/things/{id}", params(("id" = u32, Path), Page), responses((status = 200, body = Echo)))]
async fn thing(Path(id): Path<u32>, Query(page): Query<Page>) -> Json<Echo> {
    Json(Echo { text: format!("thing {id}"), count: page.limit })
}

/// Stores a thing.
#[utoipa::path(put, path = "/v1/things/{id}", request_body = Echo, responses((status = 200, body = Echo)))]
async fn store(Path(id): Path<u32>, Json(echo): Json<Echo>) -> Result<Json<Echo>, Problem> {
    if id == 0 {
        return Err(Problem::conflict("thing_taken", "thing 0 is taken"));
    }
    Ok(Json(echo))
}

/// Starts a thing.
#[utoipa::path(post, path = "/v1/things:start", request_body = Echo, responses((status = 200, body = Echo)))]
async fn start(caller: Caller, body: Option<Json<Echo>>) -> Json<Echo> {
    Json(Echo { text: caller.to_string(), count: body.map_or(0, |Json(echo)| echo.count) })
}

/// Claims a thing.
#[utoipa::path(post, path = "/v1/worker/claim", responses((status = 200)))]
async fn claim() -> &'static str {
    "claimed"
}

/// Publishes.
#[utoipa::path(post, path = "/v1/events", responses((status = 200)))]
async fn publish(Raw(bytes): Raw) -> String {
    bytes.len().to_string()
}

/// Forgets a key.
#[utoipa::path(delete, path = "/v1/keys/{a}/{b}", responses((status = 200)))]
async fn forget(Path((a, b)): Path<(String, String)>) -> String {
    format!("{a} {b}")
}

/// Waits until it is let go.
#[utoipa::path(post, path = "/v1/hold", responses((status = 200)))]
async fn hold(State(shared): State<Arc<Shared>>) -> &'static str {
    shared.held.notify_one();
    shared.release.notified().await;
    "released"
}

/// Waits until the server stops.
#[utoipa::path(get, path = "/v1/watch", responses((status = 200)))]
async fn watch_stop(State(shared): State<Arc<Shared>>, mut stopping: Stopping) -> &'static str {
    shared.held.notify_one();
    stopping.begun().await;
    "stopping"
}

/// Panics.
#[utoipa::path(get, path = "/v1/panic", responses((status = 200)))]
async fn panics() -> &'static str {
    panic!("planted panic")
}

/// Panics, and is audited.
#[utoipa::path(get, path = "/v1/panic/audited", responses((status = 200)))]
async fn panics_audited() -> &'static str {
    panic!("planted panic")
}

/// Fails.
#[utoipa::path(get, path = "/v1/fail", responses((status = 200)))]
async fn fails() -> Problem {
    Problem::internal("the database at db.internal said no")
}

/// Refuses in the words of a library.
#[utoipa::path(get, path = "/v1/rejected", responses((status = 200)))]
async fn rejected() -> (axum::http::StatusCode, &'static str) {
    (axum::http::StatusCode::BAD_REQUEST, "Failed to deserialize internal::Type")
}

/// 64 MiB.
#[utoipa::path(get, path = "/v1/large", responses((status = 200)))]
async fn large() -> Response {
    Response::new(Body::from(vec![b'x'; 64 * 1024 * 1024]))
}

const READ: Access = Access::Scopes(&[Scope::Read]);
const EXECUTE: Access = Access::Scopes(&[Scope::Execute]);

pub(crate) fn sample_routes(shared: Arc<Shared>) -> Routes {
    let own = Routes::new()
        .with(Route::new(routes!(hold), EXECUTE).audited().with_state(Arc::clone(&shared)))
        .with(Route::new(routes!(watch_stop), READ).with_state(shared));
    Routes::new()
        .with(Route::new(routes!(health), Access::Probe))
        .with(Route::new(routes!(open), Access::Open))
        .with(Route::new(routes!(thing), READ).audited())
        .with(Route::new(routes!(store), Access::Scopes(&[Scope::Write])).audited())
        .with(Route::new(routes!(start), EXECUTE).audited().body_limit(100))
        .with(Route::new(routes!(claim), Access::Scopes(&[Scope::Worker])))
        .with(Route::new(routes!(publish), Access::Scopes(&[Scope::Events, Scope::Execute])))
        .with(Route::new(routes!(forget), Access::Scopes(&[Scope::Admin])).audited())
        .with(Route::new(routes!(panics), READ))
        .with(Route::new(routes!(panics_audited), READ).audited())
        .with(Route::new(routes!(fails), READ))
        .with(Route::new(routes!(rejected), READ))
        .with(Route::new(routes!(large), READ))
        .and(own)
}

/// Remembers entries; fails if told to.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) entries: Mutex<Vec<AuditEntry>>,
    pub(crate) fails: std::sync::atomic::AtomicBool,
}

impl AuditSink for Memory {
    fn record(&self, entry: AuditEntry) -> Recording<'_> {
        Box::pin(async move {
            if self.fails.load(std::sync::atomic::Ordering::Relaxed) {
                return Err(AuditFailed("planted failure".to_owned()));
            }
            self.entries.lock().unwrap().push(entry);
            Ok(())
        })
    }
}

/// A server of the sample, and all that a test looks at.
pub(crate) struct Sample {
    pub(crate) door: Arc<Door>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) audit: Arc<Memory>,
    pub(crate) keyring: watch::Sender<Option<Arc<Keyring>>>,
}

impl Sample {
    pub(crate) fn new(keys: Vec<Key>) -> Sample {
        Sample::with(keys, |_| {})
    }

    pub(crate) fn with(keys: Vec<Key>, change: impl FnOnce(&mut DoorOptions)) -> Sample {
        crate::secrets::keep_log();
        let (shared, audit) = (Arc::new(Shared::default()), Arc::new(Memory::default()));
        let (keyring, receiver) = watch::channel(Some(Arc::new(Keyring::new(keys))));
        let mut options = DoorOptions::new("Sample", "1");
        options.keyring = receiver;
        options.audit = Arc::clone(&audit) as Arc<dyn AuditSink>;
        change(&mut options);
        let door = Arc::new(Door::new(sample_routes(Arc::clone(&shared)), options));
        Sample { door, shared, audit, keyring }
    }

    pub(crate) fn serve(&self, options: ServerOptions) -> Server {
        let nothing = Surroundings { has_keys: false, has_tls: false, allow_plaintext: false };
        let listener = listen("127.0.0.1", 0, nothing).unwrap();
        Server::start(listener, Arc::clone(&self.door), None, options).unwrap()
    }
}

/// A key of these scopes, and its text.
pub(crate) fn key(fill: u8, scopes: &[Scope]) -> (KeyText, Key) {
    let text = KeyText::from_random([fill; 32]);
    let key = Key {
        name: format!("key {fill}"),
        hash: text.hash(),
        scopes: scopes.iter().copied().collect(),
        expires_at_ms: None,
    };
    (text, key)
}

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(600);
