//! Members, leases and leaders.

use std::time::Duration;

use axum::extract::State;
use cluster_core::Refusal;
use database::Kind;
use http_server::{Json, Problem};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::daemon::Daemon;

/// The cluster as this daemon sees it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClusterPage {
    /// `postgres` or `sqlite`.
    database: &'static str,
    /// When commits are on the disk: `full` or `normal` (SQLite), `server` (as the server is set).
    durability: &'static str,
    /// Length of the leases in ms.
    lease_ms: u64,
    /// From one beat to the next at most, in ms.
    beat_ms: u64,
    /// Identity of this daemon; null while it has none.
    me: Option<String>,
    /// How long ago this was read from the database, in ms.
    age_ms: u64,
    /// What fails at the moment.
    trouble: Option<String>,
    /// All registrations.
    members: Vec<MemberPage>,
    /// All leaderships.
    leaders: Vec<LeaderPage>,
}

/// A registration.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MemberPage {
    /// Its identity.
    id: String,
    /// Its number.
    no: i64,
    /// Its machine.
    host: String,
    /// Its process.
    pid: i64,
    /// Ms left of its lease; below 0: expired. Null on SQLite, where there is none.
    lease_left_ms: Option<i64>,
    /// Ms since its last beat.
    beat_age_ms: i64,
    /// The newest schema that its program knows.
    schema_version: i64,
}

/// A leadership.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LeaderPage {
    /// Its name.
    name: String,
    /// Its epoch.
    epoch: i64,
    /// Who holds it.
    holder: Option<String>,
    /// Ms left of its lease; null: given up, or without lease.
    lease_left_ms: Option<i64>,
}

/// Members, leases and leaders.
#[utoipa::path(get, path = "/v1/cluster", tag = "cluster", responses((status = 200, body = ClusterPage)))]
pub(crate) async fn show(State(daemon): State<Daemon>) -> Result<Json<ClusterPage>, Problem> {
    let cluster = super::member(&daemon)?;
    let seen = cluster.seen_fresh().await;
    let has_leases = cluster.database().kind() == Kind::Postgres;
    let registration = cluster.standing().registration().ok();
    let ms = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    let (database, durability) = match cluster.database() {
        database::Database::Postgres(_) => ("postgres", "server"),
        database::Database::Sqlite(file) => match file.sync() {
            database::sqlite::Sync::Full => ("sqlite", "full"),
            database::sqlite::Sync::Normal => ("sqlite", "normal"),
        },
    };
    Ok(Json(ClusterPage {
        database,
        durability,
        lease_ms: ms(registration.map_or(cluster.times().lease, |registration| registration.lease)),
        beat_ms: ms(cluster.times().beat),
        me: registration.map(|registration| registration.id.to_string()),
        age_ms: ms(cluster_server::clock::boot().since(seen.at)),
        trouble: cluster.trouble(),
        members: seen
            .members
            .iter()
            .map(|member| MemberPage {
                id: member.id.to_string(),
                no: member.no,
                host: member.host.clone(),
                pid: member.pid,
                lease_left_ms: has_leases.then_some(member.left_ms),
                beat_age_ms: member.beat_age_ms,
                schema_version: member.schema_version,
            })
            .collect(),
        leaders: seen
            .leaders
            .iter()
            .map(|leader| LeaderPage {
                name: leader.name.clone(),
                epoch: leader.epoch,
                holder: leader.holder.map(|holder| holder.to_string()),
                lease_left_ms: leader.left_ms.filter(|_| has_leases),
            })
            .collect(),
    }))
}

/// A length of the leases.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaseLength {
    /// In ms.
    lease_ms: u64,
}

/// Changes the length of all leases while this is the only member.
#[utoipa::path(put, path = "/v1/cluster/lease", tag = "cluster", request_body = LeaseLength,
    responses((status = 204, description = "Changed"), (status = 409, description = "Refused: the detail says why")))]
pub(crate) async fn set_lease(
    State(daemon): State<Daemon>,
    Json(length): Json<LeaseLength>,
) -> Result<axum::http::StatusCode, Problem> {
    let cluster = super::member(&daemon)?;
    if cluster.database().kind() == Kind::Sqlite {
        return Err(Problem::conflict("no_leases", "on SQLite there is one member, and no lease"));
    }
    match cluster.set_lease(Duration::from_millis(length.lease_ms)).await {
        Ok(()) => Ok(axum::http::StatusCode::NO_CONTENT),
        Err(refusal @ Refusal::OthersLive) => Err(Problem::conflict("others_live", refusal.to_string())),
        Err(refusal @ Refusal::Times(_)) => Err(Problem::bad_request("lease_too_short", refusal.to_string())),
        Err(refusal) => Err(Problem::unavailable("not_changed", refusal.to_string())),
    }
}
