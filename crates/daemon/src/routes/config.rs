//! Options in force, and those that are set in the database.

use axum::extract::State;
use http_server::{Caller, Json, Path, Problem, Query};
use serde::Deserialize;
use tenure_config::{ConfigChange, ConfigHistory, ConfigPage, OverlayKey, SetOption, moment};
use utoipa::IntoParams;

use crate::daemon::{Daemon, database_problem};
use crate::live::{self, ChangeError};
use crate::store::config;

/// Most changes that are listed at once.
const CHANGES_MAX: u32 = 1_000;

/// Which options are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    /// A section or an option, such as `http` or `http.listen`; without it all.
    key: Option<String>,
}

/// Options in force on this daemon, and where each came from. Secrets are not shown.
#[utoipa::path(get, path = "/v1/config", tag = "configuration", params(Wanted),
    responses((status = 200, description = "The options", body = Object)))]
pub(crate) async fn show(
    State(daemon): State<Daemon>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<ConfigPage>, Problem> {
    super::member(&daemon)?;
    let overlay = daemon.database().read(config::read()).await.map_err(|error| database_problem(&error))?;
    let place = wanted.key.as_deref().map(OverlayKey::parse);
    Ok(Json(ConfigPage::of(&daemon.config(), overlay.version, place.as_ref())))
}

/// Which changes are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct WantedChanges {
    /// An option, such as `log.level`; without it all.
    key: Option<String>,
    /// At most so many, 1000 at most; 100 if not given.
    limit: Option<u32>,
}

/// Changes of what is set in the database, the newest first.
#[utoipa::path(get, path = "/v1/config/history", tag = "configuration", params(WantedChanges),
    responses((status = 200, description = "The changes", body = Object)))]
pub(crate) async fn history(
    State(daemon): State<Daemon>,
    Query(wanted): Query<WantedChanges>,
) -> Result<Json<ConfigHistory>, Problem> {
    super::member(&daemon)?;
    let limit = wanted.limit.unwrap_or(100);
    if limit == 0 || limit > CHANGES_MAX {
        return Err(Problem::bad_request(
            "limit_out_of_range",
            format!("limit is {limit}, and must be 1 to {CHANGES_MAX}"),
        ));
    }
    let place = wanted.key.as_deref().map(OverlayKey::parse);
    let (section, key) = place.map(|place| (place.section, place.key)).unzip();
    let changes =
        daemon.database().read(config::history(section, key, limit)).await.map_err(|error| database_problem(&error))?;
    let change = |change: config::Change| ConfigChange {
        id: change.id,
        section: change.section,
        key: change.key,
        before: change.before,
        after: change.after,
        who: change.who,
        at: moment(change.at_ms),
    };
    Ok(Json(ConfigHistory { changes: changes.into_iter().map(change).collect() }))
}

/// Sets an option in the database, for all members. The whole is checked first.
#[utoipa::path(put, path = "/v1/config/{section}/{key}", tag = "configuration",
    params(("section" = String, Path), ("key" = String, Path)), request_body(content = Object),
    responses((status = 200, description = "The option in force", body = Object),
        (status = 422, description = "It would not be a configuration: the detail says why")))]
pub(crate) async fn set(
    State(daemon): State<Daemon>,
    caller: Caller,
    Path((section, key)): Path<(String, String)>,
    Json(option): Json<SetOption>,
) -> Result<Json<ConfigPage>, Problem> {
    change(&daemon, &caller, OverlayKey { section, key }, Some(option.value)).await
}

/// Removes an option from the database: the file's value is in force again.
#[utoipa::path(delete, path = "/v1/config/{section}/{key}", tag = "configuration",
    params(("section" = String, Path), ("key" = String, Path)),
    responses((status = 200, description = "The option in force", body = Object),
        (status = 404, description = "It is not set in the database")))]
pub(crate) async fn unset(
    State(daemon): State<Daemon>,
    caller: Caller,
    Path((section, key)): Path<(String, String)>,
) -> Result<Json<ConfigPage>, Problem> {
    change(&daemon, &caller, OverlayKey { section, key }, None).await
}

async fn change(
    daemon: &Daemon,
    caller: &Caller,
    place: OverlayKey,
    value: Option<String>,
) -> Result<Json<ConfigPage>, Problem> {
    let cluster = super::member(daemon)?;
    let who = match caller {
        Caller::Key { key, .. } => key.name.clone(),
        Caller::Anonymous => "anonymous".to_owned(),
    };
    let changed = daemon.live().change(daemon.database(), &place, value, &who, cluster.cache_statement()).await;
    match changed {
        Ok(version) => {
            cluster.cache_changed(live::CACHE);
            Ok(Json(ConfigPage::of(&daemon.config(), version, Some(&place))))
        }
        Err(ChangeError::Refused(error)) => {
            Err(Problem::new(axum::http::StatusCode::UNPROCESSABLE_ENTITY, "configuration_refused", error.to_string()))
        }
        Err(error @ ChangeError::NotSet(_)) => Err(Problem::not_found(error.to_string())),
        Err(error @ ChangeError::Moved) => Err(Problem::conflict("configuration_moved", error.to_string())),
        Err(ChangeError::Database(error)) => Err(database_problem(&error)),
    }
}
