//! Who did what.

use axum::extract::State;
use http_server::{Json, Problem, Query};
use serde::{Deserialize, Serialize};
use tenure_config::moment;
use utoipa::{IntoParams, ToSchema};

use crate::daemon::{Daemon, database_problem};
use crate::store::audit::{self, Filter};

/// Most entries that are listed at once.
const ENTRIES_MAX: u32 = 1_000;

/// Which entries are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    /// Only older ones than this number: the `next` of the page before.
    before: Option<i64>,
    /// Only of this caller, as it stands in `who`.
    who: Option<String>,
    /// Only of this action, such as `POST /v1/keys`.
    action: Option<String>,
    /// At most so many, 1000 at most; 100 if not given.
    limit: Option<u32>,
}

/// What somebody did.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EntryPage {
    /// Its number.
    id: i64,
    /// When, in UTC by the database's clock.
    at: String,
    /// Name and id of the key, or `anonymous`.
    who: String,
    /// Address it came from; behind a proxy the proxy's.
    origin: String,
    /// Method and route.
    action: String,
    /// Parts of the path.
    target: String,
    /// Status of the answer; 0: the client left before.
    status: u16,
}

/// Entries of the audit log.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditPage {
    /// The newest first.
    entries: Vec<EntryPage>,
    /// For `before`, if there may be more.
    next: Option<i64>,
}

/// Entries of the audit log, the newest first.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", params(Wanted), responses((status = 200, body = AuditPage)))]
pub(crate) async fn list(
    State(daemon): State<Daemon>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<AuditPage>, Problem> {
    super::member(&daemon)?;
    let limit = wanted.limit.unwrap_or(100);
    if limit == 0 || limit > ENTRIES_MAX {
        return Err(Problem::bad_request(
            "limit_out_of_range",
            format!("limit is {limit}, and must be 1 to {ENTRIES_MAX}"),
        ));
    }
    let filter = Filter { before: wanted.before, who: wanted.who, action: wanted.action, limit };
    let entries = daemon.database().read(audit::list(filter)).await.map_err(|error| database_problem(&error))?;
    let next = entries.last().filter(|_| entries.len() == limit as usize).map(|logged| logged.id);
    let page = |logged: audit::Logged| EntryPage {
        id: logged.id,
        at: moment(logged.at_ms),
        who: logged.entry.who,
        origin: logged.entry.origin,
        action: logged.entry.action,
        target: logged.entry.target,
        status: logged.entry.status,
    };
    Ok(Json(AuditPage { entries: entries.into_iter().map(page).collect(), next }))
}
