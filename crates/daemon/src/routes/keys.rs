//! Keys of the API.

use axum::extract::State;
use http_server::{Caller, Json, KeyHash, KeyText, Path, Problem, Scope};
use serde::{Deserialize, Serialize};
use tenure_config::moment;
use utoipa::ToSchema;

use crate::daemon::{Daemon, database_problem};
use crate::keys::CACHE;
use crate::store::keys::{self, NewKey};

/// Longest name of a key, in bytes.
const NAME_BYTES_MAX: usize = 128;
/// Longest life of a key: a hundred years.
const LIFE_SECONDS_MAX: u64 = 100 * 366 * 24 * 3600;

/// A key. Its secret is not kept.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyPage {
    /// Its public part.
    id: String,
    /// Its name.
    name: String,
    /// What it may do.
    scopes: Vec<String>,
    /// `database` or `configuration`.
    kept_in: &'static str,
    /// When it was made, in UTC; null: it stands in the configuration.
    created_at: Option<String>,
    /// Who made it.
    created_by: Option<String>,
    /// When it ends.
    expires_at: Option<String>,
    /// When it was revoked.
    revoked_at: Option<String>,
    /// When it was last used, as of the last beat.
    used_at: Option<String>,
    /// How often it was used.
    uses: i64,
}

/// All keys.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeysPage {
    /// The oldest first; those of the configuration at the end.
    keys: Vec<KeyPage>,
}

/// All keys, revoked ones included.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", responses((status = 200, body = KeysPage)))]
pub(crate) async fn list(State(daemon): State<Daemon>) -> Result<Json<KeysPage>, Problem> {
    super::member(&daemon)?;
    let stored = daemon.database().read(keys::list()).await.map_err(|error| database_problem(&error))?;
    let mut pages: Vec<KeyPage> = stored
        .into_iter()
        .map(|key| KeyPage {
            id: key.id,
            name: key.name,
            scopes: key.scopes.split(',').map(str::to_owned).collect(),
            kept_in: "database",
            created_at: Some(moment(key.created_at_ms)),
            created_by: Some(key.created_by),
            expires_at: key.expires_at_ms.map(moment),
            revoked_at: key.revoked_at_ms.map(moment),
            used_at: key.used_at_ms.map(moment),
            uses: key.uses,
        })
        .collect();
    pages.extend(daemon.keys().of_config().iter().map(|key| KeyPage {
        id: key.hash.id().as_str().to_owned(),
        name: key.name.clone(),
        scopes: key.scopes.iter().map(|scope| scope.to_string()).collect(),
        kept_in: "configuration",
        created_at: None,
        created_by: None,
        expires_at: None,
        revoked_at: None,
        used_at: None,
        uses: 0,
    }));
    Ok(Json(KeysPage { keys: pages }))
}

/// A key that is to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewKeyRequest {
    /// Name for people, unique among keys that are not revoked; at most 128 bytes.
    name: String,
    /// `read`, `write`, `execute`, `worker`, `events`, `admin`.
    scopes: Vec<String>,
    /// Seconds until it ends by itself; without it, it does not.
    life_seconds: Option<u64>,
    /// `sha256:` and 64 digits: the hash of a key that the caller has made, so that its secret crosses no network and the
    /// call can be repeated. Without it the key is made here, and shown in this answer alone.
    hash: Option<String>,
}

/// A key that was made.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyMade {
    /// Its public part.
    id: String,
    /// Its name.
    name: String,
    /// The key itself, if it was made here. It cannot be shown again.
    key: Option<String>,
}

/// Makes a key.
#[utoipa::path(post, path = "/v1/keys", tag = "keys", request_body = NewKeyRequest,
    responses((status = 200, description = "This key is there already", body = KeyMade),
        (status = 201, description = "Made", body = KeyMade),
        (status = 409, description = "Another key has this name")))]
pub(crate) async fn create(
    State(daemon): State<Daemon>,
    caller: Caller,
    Json(request): Json<NewKeyRequest>,
) -> Result<(axum::http::StatusCode, Json<KeyMade>), Problem> {
    use axum::http::StatusCode;
    let cluster = super::member(&daemon)?;
    let name = request.name;
    if name.trim().is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let detail = format!("name must have 1 to {NAME_BYTES_MAX} bytes and no control characters");
        return Err(Problem::bad_request("name_refused", detail));
    }
    let scopes: Vec<Scope> = request
        .scopes
        .iter()
        .map(|scope| scope.parse())
        .collect::<Result<_, _>>()
        .map_err(|error: http_server::UnknownScope| Problem::bad_request("scope_unknown", error.to_string()))?;
    if scopes.is_empty() {
        return Err(Problem::bad_request("scope_missing", "scopes must name at least one scope"));
    }
    if request.life_seconds.is_some_and(|seconds| seconds == 0 || seconds > LIFE_SECONDS_MAX) {
        let detail = format!("life_seconds must be 1 to {LIFE_SECONDS_MAX}");
        return Err(Problem::bad_request("life_out_of_range", detail));
    }
    let (hash, text): (KeyHash, Option<KeyText>) = match &request.hash {
        Some(hash) => {
            let parsed = hash.parse();
            (
                parsed.map_err(|error: http_server::KeyHashError| {
                    Problem::bad_request("hash_refused", error.to_string())
                })?,
                None,
            )
        }
        None => {
            let text = KeyText::generate().map_err(Problem::internal)?;
            (text.hash(), Some(text))
        }
    };
    let created_by = match &caller {
        Caller::Key { key, .. } => key.name.clone(),
        Caller::Anonymous => "anonymous".to_owned(),
    };
    let id = hash.id().as_str().to_owned();
    let key = NewKey {
        id: id.clone(),
        name: name.clone(),
        hash: hash.to_string().into_bytes(),
        scopes: scopes.iter().map(Scope::to_string).collect::<Vec<_>>().join(","),
        created_by,
        life_ms: request.life_seconds.map(|seconds| i64::try_from(seconds * 1_000).unwrap_or(i64::MAX)),
    };
    let made = daemon.database().run(|| keys::insert(key.clone(), cluster.cache_statement().map(|sql| (sql, CACHE))));
    let is_new = made.await.map_err(|error| database_problem(&error))?;
    if !is_new {
        let stored = daemon.database().read(keys::list()).await.map_err(|error| database_problem(&error))?;
        let is_same = stored.iter().any(|other| {
            other.id == id
                && other.name == name
                && other.hash == key.hash
                && other.scopes == key.scopes
                && other.revoked_at_ms.is_none()
        });
        if !is_same {
            return Err(Problem::conflict(
                "key_exists",
                format!("a key named {name:?}, or this key, is there already"),
            ));
        }
    }
    daemon.keys().reload(daemon.database()).await.map_err(|error| database_problem(&error))?;
    cluster.cache_changed(CACHE);
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(KeyMade { id, name, key: text.map(|text| text.reveal().to_owned()) })))
}

/// Revokes a key, at once here and within a beat everywhere.
#[utoipa::path(delete, path = "/v1/keys/{key}", tag = "keys", params(("key" = String, Path, description = "Its id or its name")),
    responses((status = 204, description = "Revoked"), (status = 404, description = "There is none that is not revoked")))]
pub(crate) async fn revoke(
    State(daemon): State<Daemon>,
    caller: Caller,
    Path(key): Path<String>,
) -> Result<axum::http::StatusCode, Problem> {
    let cluster = super::member(&daemon)?;
    let by = match &caller {
        Caller::Key { key, .. } => key.name.clone(),
        Caller::Anonymous => "anonymous".to_owned(),
    };
    let revoke = || keys::revoke(&key, &by, cluster.cache_statement().map(|sql| (sql, CACHE)));
    let revoked = daemon.database().run(revoke).await.map_err(|error| database_problem(&error))?;
    if revoked.is_none() {
        let in_config = daemon.keys().of_config().iter().any(|own| own.name == key || own.hash.id().as_str() == key);
        let detail = if in_config {
            format!("the key {key:?} stands in the configuration: remove it there and restart")
        } else {
            format!("there is no key {key:?} that is not revoked")
        };
        return Err(Problem::not_found(detail));
    }
    daemon.keys().reload(daemon.database()).await.map_err(|error| database_problem(&error))?;
    cluster.cache_changed(CACHE);
    Ok(axum::http::StatusCode::NO_CONTENT)
}
