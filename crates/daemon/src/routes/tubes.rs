//! The processes that the supervisor has started.

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use http_server::Problem;

use crate::daemon::Daemon;

/// The supervisor's processes and their figures, as `tenure status --json` shows them.
#[utoipa::path(get, path = "/v1/tubes", tag = "tubes",
    responses((status = 200, description = "The status", body = Object),
        (status = 404, description = "This daemon was not started by a supervisor"),
        (status = 503, description = "The supervisor does not answer")))]
pub(crate) async fn show(State(daemon): State<Daemon>) -> Result<impl IntoResponse, Problem> {
    let none = || Problem::not_found("this daemon was started alone, without a supervisor and its processes");
    let ask = daemon.supervisor().cloned().ok_or_else(none)?;
    let text = tokio::task::spawn_blocking(move || ask()).await.map_err(Problem::internal)?;
    let text = text.map_err(|error| {
        tracing::warn!("the supervisor was not asked: {error}");
        Problem::unavailable("supervisor_silent", "the supervisor does not answer")
    })?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text))
}
