//! `tenure status` and `tenure tubes restart-slot`: questions to a running supervisor, over its status socket.

use crate::cli::{ServerPlace, StatusCall};
use crate::exit::Failure;

/// Shows the processes of a server.
#[cfg(target_os = "linux")]
pub(crate) fn show(call: &StatusCall) -> Result<(), Failure> {
    let status = supervisor::query(&socket(&call.place)).map_err(refused)?;
    if call.json {
        let text = serde_json::to_string_pretty(&status).map_err(|error| Failure::new(crate::exit::FAILED, error))?;
        println!("{text}");
        return Ok(());
    }
    let state = match (status.stopping, status.draining, status.serving) {
        (true, ..) => "stopping",
        (_, true, _) => "draining",
        (_, _, true) => "serving",
        _ => "starting",
    };
    println!("process {}, {state}, up for {} s", status.pid, status.uptime_ms / 1000);
    for process in &status.processes {
        let condition = format!("{:?}", process.condition).to_lowercase();
        let pid = process.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let failure = process.failure.as_ref().map_or_else(String::new, |failure| format!("; it {failure}"));
        println!(
            "{} {}: {condition}, process {pid}, generation {}, {} restarts{failure}",
            process.role, process.slot, process.generation, process.restarts
        );
    }
    Ok(())
}

/// Tries a failed slot again.
#[cfg(target_os = "linux")]
pub(crate) fn restart_slot(slot: u16, place: &ServerPlace) -> Result<(), Failure> {
    let slot = supervisor::Slot { role: supervisor::Role::Owner, slot };
    supervisor::restart_slot(&socket(place), slot).map_err(refused)
}

#[cfg(target_os = "linux")]
fn socket(place: &ServerPlace) -> std::path::PathBuf {
    match (&place.directory, &place.socket) {
        (Some(directory), _) => directory.join("status.sock"),
        (None, Some(socket)) => socket.clone(),
        (None, None) => unreachable!("the command line asks for one of them"),
    }
}

/// The server refuses, or there is none.
#[cfg(target_os = "linux")]
fn refused(error: supervisor::StatusError) -> Failure {
    /// Refused by the server.
    const REFUSED: u8 = 2;
    /// Nothing was found.
    const NOT_FOUND: u8 = 3;
    let code = if matches!(error, supervisor::StatusError::Unreachable { .. }) { NOT_FOUND } else { REFUSED };
    Failure::new(code, error)
}

/// There are no servers of several processes here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn show(call: &StatusCall) -> Result<(), Failure> {
    let _ = call.json;
    restart_slot(0, &call.place)
}

/// As above.
#[cfg(not(target_os = "linux"))]
pub(crate) fn restart_slot(_slot: u16, place: &ServerPlace) -> Result<(), Failure> {
    let _ = (&place.directory, &place.socket);
    Err(Failure::new(crate::exit::USAGE, "servers of several processes exist on Linux only"))
}
