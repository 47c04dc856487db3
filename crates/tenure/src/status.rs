//! `tenure status` and `tenure tubes restart-slot`: questions to a running supervisor, over its status socket.

use crate::cli::{ServerPlace, SlotName, StatusCall};
use crate::exit::Failure;
#[cfg(target_os = "linux")]
use crate::output::say;

/// Shows the processes of a server.
#[cfg(target_os = "linux")]
pub(crate) fn show(call: &StatusCall) -> Result<(), Failure> {
    let status = supervisor::query(&socket(&call.place)).map_err(refused)?;
    if call.json {
        let text = serde_json::to_string_pretty(&status).map_err(|error| Failure::new(crate::exit::FAILED, error))?;
        say!("{text}");
        return Ok(());
    }
    let state = match (status.stopping, status.draining, status.serving) {
        (true, ..) => "stopping",
        (_, true, _) => "draining",
        (_, _, true) => "serving",
        _ => "starting",
    };
    let about = |key: &str| status.about.get(key).map_or("?", String::as_str);
    let (seconds, topology) = (status.uptime_ms / 1000, topology(&status));
    say!("tenure {}: process {}, {state}, up for {seconds} s, {topology}", about("version"), status.pid);
    if status.about.contains_key("ack_level") {
        match status.about.get("directory") {
            Some(directory) => say!("log in {directory}, acknowledged as `{}`", about("ack_level")),
            None => say!("no log"),
        }
        say!("an acknowledged command survives {}", about("ack_survives"));
    }
    status.processes.iter().for_each(|process| say!("{}", line(process)));
    Ok(())
}

/// Which processes there are to be, in words.
#[cfg(target_os = "linux")]
fn topology(status: &supervisor::Status) -> String {
    let count = |role| status.processes.iter().filter(|process| process.role == role).count();
    let roles = supervisor::Role::ALL.into_iter().filter(|role| count(*role) > 0);
    let words = roles.map(|role| match role {
        supervisor::Role::Owner | supervisor::Role::Frontend => format!("{} {role}s", count(role)),
        supervisor::Role::Tubes | supervisor::Role::Daemon => role.to_string(),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// What a slot is doing, in a line.
#[cfg(target_os = "linux")]
fn line(process: &supervisor::ProcessStatus) -> String {
    use std::fmt::Write as _;
    let figure = |name: &str| process.figures.get(name).copied().unwrap_or(0);
    let condition = format!("{:?}", process.condition).to_lowercase();
    let pid = process.pid.map_or_else(|| "no process".to_owned(), |pid| format!("process {pid}"));
    let mut line = format!(
        "{} {}: {condition}, {pid}, generation {}, {} restarts",
        process.role, process.slot, process.generation, process.restarts
    );
    if process.role.peer().is_some() {
        let _ = write!(line, ", {} bytes wait on links", figure("link_backlog_bytes"));
    }
    if matches!(process.role, supervisor::Role::Frontend | supervisor::Role::Tubes) {
        let _ = write!(line, "; {} connections", figure("connections"));
    }
    if figure("log_current_segment") > 0 {
        let _ = write!(
            line,
            "; log: segments {} to {}, {} bytes, {} syncs, {} failures",
            figure("log_oldest_segment"),
            figure("log_current_segment"),
            figure("log_bytes"),
            figure("log_syncs"),
            process.log_failures
        );
        if figure("log_has_no_space") != 0 {
            line.push_str(", NO SPACE: puts are refused");
        }
    }
    for (what, count) in [
        ("questions unanswered", process.unanswered_pings),
        ("control messages not taken", process.control_backlog),
        ("ms in a sync", process.in_sync_ms.unwrap_or(0)),
    ] {
        if count > 0 {
            let _ = write!(line, "; {count} {what}");
        }
    }
    if let Some(failure) = &process.failure {
        let which = if process.pid.is_some() { "the one before" } else { "the last one" };
        let _ = write!(line, "; {which} {failure}");
    }
    line
}

/// Tries a failed slot again.
#[cfg(target_os = "linux")]
pub(crate) fn restart_slot(slot: &SlotName, place: &ServerPlace) -> Result<(), Failure> {
    let (role, slot) = match slot {
        SlotName::Owner(number) => (supervisor::Role::Owner, *number),
        SlotName::Tubes => (supervisor::Role::Tubes, 0),
        SlotName::Daemon => (supervisor::Role::Daemon, 0),
    };
    let slot = supervisor::Slot { role, slot };
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
    if code == NOT_FOUND {
        return Failure::new(
            code,
            format!(
                "{error}; only a server that runs under a supervisor can be asked: one of several processes, or `tenure serve`"
            ),
        );
    }
    Failure::new(code, error)
}

/// There are no servers of several processes here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn show(call: &StatusCall) -> Result<(), Failure> {
    let _ = call.json;
    restart_slot(&SlotName::Owner(0), &call.place)
}

/// As above.
#[cfg(not(target_os = "linux"))]
pub(crate) fn restart_slot(_slot: &SlotName, place: &ServerPlace) -> Result<(), Failure> {
    let _ = (&place.directory, &place.socket);
    Err(Failure::new(crate::exit::USAGE, "servers under a supervisor exist on Linux only"))
}
