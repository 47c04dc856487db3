//! The daemon's own routes.

mod audit;
mod backup;
mod cluster;
mod config;
mod health;
mod keys;
mod tubes;

use http_server::{Access, Problem, Route, Routes, Scope};
use utoipa_axum::routes;

use crate::daemon::Daemon;

const READ: Access = Access::Scopes(&[Scope::Read]);
const ADMIN: Access = Access::Scopes(&[Scope::Admin]);

/// All of them.
#[must_use]
pub fn routes(daemon: &Daemon) -> Routes {
    let state = || daemon.clone();
    Routes::new()
        .with(Route::new(routes!(health::healthz), Access::Probe).with_state(()))
        .with(Route::new(routes!(health::readyz), Access::Probe).with_state(state()))
        .with(Route::new(routes!(health::metrics), Access::Probe).with_state(state()))
        .with(Route::new(routes!(cluster::show), READ).with_state(state()))
        .with(Route::new(routes!(cluster::set_lease), ADMIN).audited().with_state(state()))
        .with(Route::new(routes!(config::show), READ).with_state(state()))
        .with(Route::new(routes!(config::history), READ).with_state(state()))
        .with(Route::new(routes!(config::set), ADMIN).audited().with_state(state()))
        .with(Route::new(routes!(config::unset), ADMIN).audited().with_state(state()))
        .with(Route::new(routes!(keys::list), ADMIN).with_state(state()))
        .with(Route::new(routes!(keys::create), ADMIN).audited().with_state(state()))
        .with(Route::new(routes!(keys::revoke), ADMIN).audited().with_state(state()))
        .with(Route::new(routes!(audit::list), ADMIN).with_state(state()))
        .with(Route::new(routes!(tubes::show), READ).with_state(state()))
        .with(Route::new(routes!(backup::create), ADMIN).audited().with_state(state()))
}

/// Of a daemon that hosts no other part.
#[must_use]
pub fn no_routes() -> Routes {
    Routes::new()
}

/// This process as a member, or why it cannot answer yet.
fn member(daemon: &Daemon) -> Result<&cluster_server::Cluster, Problem> {
    daemon.cluster().map_err(|why| Problem::unavailable("starting", format!("this daemon is no member yet: {why}")))
}
