//! Whether the process lives, whether it can serve, and its figures.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use http_server::{Json, Problem};
use serde::Serialize;
use utoipa::ToSchema;

use crate::daemon::Daemon;
use crate::metrics::{Sample, SampleKind, text};

/// That the process answers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// Always `ok`.
    status: &'static str,
}

/// Whether the process answers. Restart it if it does not; the database has no part in it.
#[utoipa::path(get, path = "/healthz", tag = "server", responses((status = 200, body = Health)))]
pub(crate) async fn healthz() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// Whether the process can serve: it is a member whose lease holds. Send it no requests if it cannot.
#[utoipa::path(get, path = "/readyz", tag = "server",
    responses((status = 200, body = Health), (status = 503, description = "It cannot: the detail says why")))]
pub(crate) async fn readyz(State(daemon): State<Daemon>) -> Result<Json<Health>, Problem> {
    let cluster = super::member(&daemon)?;
    let refuse = |why: String| Problem::unavailable("not_ready", why);
    if !cluster.has_started() {
        let trouble = cluster.trouble().unwrap_or_else(|| "it registers".to_owned());
        return Err(refuse(format!("this daemon is starting: {trouble}")));
    }
    match cluster.standing().member() {
        Ok(_) => Ok(Json(Health { status: "ok" })),
        Err(error) => {
            let trouble = cluster.trouble().map(|trouble| format!(": {trouble}")).unwrap_or_default();
            Err(refuse(format!("{error}{trouble}")))
        }
    }
}

/// Figures for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, description = "Prometheus' text format", body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(State(daemon): State<Daemon>) -> impl IntoResponse {
    let mut all = text(&samples(&daemon));
    for more in daemon.more_metrics() {
        all.push_str(&more());
    }
    (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], all)
}

#[expect(clippy::cast_precision_loss, reason = "figures above 2^53 are beyond what anybody reads exactly")]
fn samples(daemon: &Daemon) -> Vec<Sample> {
    let gauge = |name: &str, help, value: f64| Sample::new(SampleKind::Gauge, name, help, value);
    let mut samples = Vec::new();
    let standing = daemon.cluster().ok().map(cluster_server::Cluster::standing);
    let is_member = standing.is_some_and(|standing| standing.member().is_ok());
    samples.push(gauge(
        "tenure_member_valid",
        "1 while this process is a member whose lease holds.",
        f64::from(u8::from(is_member)),
    ));
    for name in cluster_core::leadership::ALL {
        let leads = standing.is_some_and(|standing| standing.leads(name).is_some());
        let help = "1 while this process leads under this name.";
        samples.push(gauge("tenure_leading", help, f64::from(u8::from(leads))).labelled("name", *name));
    }
    if let Ok(cluster) = daemon.cluster() {
        for (name, help, value) in cluster.figures() {
            samples.push(Sample::new(SampleKind::Counter, format!("tenure_cluster_{name}_total"), help, value as f64));
        }
        let seen = cluster.seen();
        let alive = seen.members.iter().filter(|member| member.left_ms >= 0).count();
        samples.push(gauge("tenure_members", "Members that lived at the last beat.", alive as f64));
        let ages = cluster.retention().ages();
        for (name, age) in &ages {
            let help = "Age of the oldest row of a kind that has an age limit; only the leader looks.";
            let seconds = age.oldest_ms as f64 / 1_000.0;
            samples.push(gauge("tenure_oldest_row_seconds", help, seconds).labelled("kind", *name));
        }
        for (name, age) in &ages {
            let help = "Rows that this process has deleted because they were too old.";
            let sample = Sample::new(SampleKind::Counter, "tenure_old_rows_deleted_total", help, age.deleted as f64);
            samples.push(sample.labelled("kind", *name));
        }
    }
    if let Some(door) = daemon.door() {
        for (name, value) in door.counted().iter() {
            let (kind, name) = match name {
                "connections_open" => (SampleKind::Gauge, "tenure_http_connections_open".to_owned()),
                name => (SampleKind::Counter, format!("tenure_http_{name}_total")),
            };
            samples.push(Sample::new(kind, name, "See the operations guide, HTTP.", value as f64));
        }
    }
    if let Some(traces) = daemon.traces() {
        let counted = traces.counted();
        let help = "What became of spans: taken by the collector, not taken, thrown away because too many waited.";
        for (outcome, spans) in
            [("sent", counted.sent), ("refused", counted.refused), ("overflowed", counted.overflowed)]
        {
            let sample = Sample::new(SampleKind::Counter, "tenure_spans_total", help, spans as f64);
            samples.push(sample.labelled("outcome", outcome));
        }
    }
    samples
}
