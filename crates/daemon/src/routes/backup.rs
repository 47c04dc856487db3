//! A copy of the database while it is in use.

use std::path::PathBuf;

use axum::extract::State;
use http_server::{Json, Problem};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::daemon::Daemon;

/// Where to.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BackupRequest {
    /// Folder on the daemon's machine, absolute. What is in it is not overwritten.
    directory: String,
}

/// What was written.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BackupMade {
    /// The file.
    file: String,
    /// Its size in bytes.
    bytes: u64,
}

/// Copies the SQLite file into a folder, and checks the copy.
#[utoipa::path(post, path = "/v1/backup", tag = "server", request_body = BackupRequest,
    responses((status = 201, body = BackupMade), (status = 409, description = "Refused: the detail says why")))]
pub(crate) async fn create(
    State(daemon): State<Daemon>,
    Json(request): Json<BackupRequest>,
) -> Result<(axum::http::StatusCode, Json<BackupMade>), Problem> {
    let directory = PathBuf::from(&request.directory);
    if !directory.is_absolute() {
        return Err(Problem::bad_request("directory_relative", "directory must be an absolute path"));
    }
    match database::backup::backup(daemon.database(), &directory, |_| {}).await {
        Ok(made) => {
            let made = BackupMade { file: made.path.display().to_string(), bytes: made.bytes };
            Ok((axum::http::StatusCode::CREATED, Json(made)))
        }
        Err(error) => Err(Problem::conflict("backup_refused", error.to_string())),
    }
}
