//! What an owner that was killed may come back with.
//!
//! Everything up to the last turn of which a client has heard is in its log, and, as the log is a sequence, any number of
//! deeds from there on may be.

use std::collections::BTreeMap;

use tubes_core::journal::LoggedState;
use tubes_protocol::Command as Wire;

use crate::model::{Model, Moment, Place, ShadowJob};

use super::parse::{History, owner_of};
use super::processes::{Deed, Found, OwnerLife, What};

const MS_NS: u64 = 1_000_000;
/// After a restart a delay goes on by wall time, in whole ms.
const RECOVERED_DELAY_MS: u64 = 20;

/// How many deeds are in the log for sure: up to the last turn of which somebody has heard, as no reply leaves before its
/// turn is in the log; all if nobody came after.
pub(super) fn certain(history: &History, owner: &OwnerLife, has_successor: bool) -> usize {
    if !has_successor {
        return owner.deeds.len();
    }
    let is_heard = |deed: &&Deed| {
        let is_decision = matches!(deed.what, What::Answer(_) | What::Served(_));
        deed.command.filter(|_| is_decision).is_some_and(|(key, number)| {
            let place = usize::try_from(number).expect("counted") - 1;
            let commands = &history.connections[&key].commands;
            commands.get(place).is_some_and(|invocation| invocation.reply.is_some())
        })
    };
    let last = owner.deeds.iter().rfind(is_heard).map(|deed| deed.turn);
    owner.deeds.partition_point(|deed| last.is_some_and(|last| deed.turn <= last))
}

pub(super) fn has_successor(history: &History, life: u64) -> bool {
    history.owners.range(life + 1..).next().is_some_and(|(next, _)| owner_of(*next) == owner_of(life))
}

/// Kicks only so many jobs of all that a command has kicked.
pub(super) fn kick_in_part(model: &mut Model, deed: &Deed, count: u64) {
    let now = Moment { boot_ns: deed.at_ns, wall_ms: deed.at_ns / MS_NS };
    model.tick(now);
    if model.used_name(deed.session).is_some() {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        model.handle(now, deed.session, &Wire::Kick(count), &mut || true);
    }
}

/// In what the jobs of a model, of which all that are held have become ready, differ from what a log had.
pub(super) fn difference(model: &Model, now: Moment, found: &BTreeMap<u64, Found>) -> Option<String> {
    if let Some(id) = model.jobs().iter().map(|(id, _)| id).find(|id| !found.contains_key(id)) {
        return Some(format!("job {id} is gone: {:?}", model.jobs()[id]));
    }
    found.iter().find_map(|(id, found)| {
        let Some(job) = model.jobs().get(*id) else { return Some(format!("job {id} is there: {found:?}")) };
        let now_ms = now.boot_ns / MS_NS;
        let is_due = found.due_ms <= now_ms + RECOVERED_DELAY_MS;
        let fits = match job.place {
            Place::Ready | Place::Reserved { .. } => found.state == "ready" || found.state == "delayed" && is_due,
            Place::Buried { .. } => found.state == "buried",
            Place::Delayed { due_ns } => {
                let due_ms = due_ns / MS_NS;
                found.state == "delayed" && found.due_ms.abs_diff(due_ms) <= RECOVERED_DELAY_MS
                    || found.state == "ready" && due_ms <= now_ms + RECOVERED_DELAY_MS
            }
        };
        let counters = job.counters;
        let is_same = fits
            && *model.tube_name(job.tube) == *found.tube.as_bytes()
            && *job.body == found.hash.to_le_bytes()
            && (job.pri, job.delay_s, job.ttr_s) == (found.pri, found.delay_s, found.ttr_s)
            && [counters.releases, counters.buries, counters.kicks] == found.counts;
        (!is_same).then(|| format!("job {id} is {job:?}, and came back as {found:?}"))
    })
}

/// A job as the log had it; the order among the buried is the model's.
pub(super) fn recovered_job(before: &Model, now: Moment, id: u64, found: &Found) -> ShadowJob {
    let mut job = before.logged(now, id);
    job.state.state = match found.state.as_str() {
        "delayed" => LoggedState::Delayed,
        "buried" => LoggedState::Buried,
        _ => LoggedState::Ready,
    };
    if job.state.state == LoggedState::Delayed {
        // A start counts whole ms on from its own instant, and what it says of the end is rounded up: unless it began with
        // a ms, the last one is not whole.
        job.state.due_ms = found.due_ms - u64::from(!now.boot_ns.is_multiple_of(MS_NS)).min(found.due_ms);
    }
    job
}
