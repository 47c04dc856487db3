//! Commands on a data directory that no server is using: check, repair, reshard, import.

use crate::exit::Failure;
use crate::output::say;
use rustix::time::{ClockId, clock_gettime};
use std::path::Path;
use tubes_store::manifest::Topology;
use tubes_store::{LogOptions, SyncMode, check, datadir, import, repair, reshard};

/// Length of the segments that are written, in bytes; the default of a server.
const SEGMENT_BYTES: u64 = 10 * 1024 * 1024;
/// Exit code of a check that found damage.
const DAMAGED: u8 = 11;

/// Reads everything, changes nothing, and says what a start would find.
pub(crate) fn check(directory: &Path) -> Result<(), Failure> {
    let found = check::check_directory(directory)?;
    say!("{}: {}, instance {}", directory.display(), found.manifest.topology(), found.manifest.instance);
    let mut refused = None;
    for slot in &found.slots {
        for segment in &slot.segments {
            let header = if segment.header.is_some() { "" } else { ", without a valid header" };
            say!(
                "  slot {} segment {:010}: {} records in {} of {} bytes{header}",
                slot.slot,
                segment.number,
                segment.records,
                segment.end,
                segment.bytes
            );
        }
        match &slot.verdict {
            Ok(report) => say!(
                "  slot {}: in order; {} jobs, next id {}, last stop {}{}",
                slot.slot,
                report.jobs,
                report.next_id,
                if report.orderly { "in order" } else { "by a kill or a crash" },
                report
                    .torn
                    .as_ref()
                    .map_or_else(String::new, |torn| format!("; a start will set a torn end aside: {torn}"))
            ),
            Err(error) => {
                say!("  slot {}: a start would be refused: {error}", slot.slot);
                refused.get_or_insert(error);
            }
        }
    }
    match refused {
        None => Ok(()),
        Some(error) if error.exit_code() == DAMAGED => Err(Failure::new(
            DAMAGED,
            format!("{error}; `tenure tubes repair {}` saves what can be read", directory.display()),
        )),
        Some(error) => Err(Failure::new(error.exit_code(), error)),
    }
}

/// Saves every valid record of a damaged log into a fresh one beside it, and lists what was dropped.
pub(crate) fn repair(directory: &Path) -> Result<(), Failure> {
    for slot in repair::repair_directory(directory, &present())? {
        let Some(copy) = &slot.copy else {
            say!("slot {}: in order, nothing was changed", slot.slot);
            continue;
        };
        say!("slot {}: the log as it was lies in {copy}", slot.slot);
        if let Some(damage) = &slot.damage {
            say!("slot {}: {damage}", slot.slot);
        }
        for dropped in &slot.salvage.dropped {
            say!("  dropped {} bytes at {} of {}: {}", dropped.bytes, dropped.offset, dropped.file, dropped.what);
        }
        say!(
            "slot {}: {} records saved, {} jobs, next id {}",
            slot.slot,
            slot.salvage.records,
            slot.salvage.jobs,
            slot.salvage.next_id
        );
    }
    Ok(())
}

/// Divides a directory's jobs among so many owners, or gives them to one process.
pub(crate) fn reshard(directory: &Path, owners: Option<u16>, keep: bool) -> Result<(), Failure> {
    let wanted = owners.map_or(Topology::Single, Topology::Multi);
    let done = reshard::reshard(directory, wanted, keep, &present())?;
    say!(
        "{}: {} jobs, before {}, now {wanted}; the next id is {} or above",
        directory.display(),
        done.jobs,
        done.before,
        done.next_id
    );
    if let Some(kept) = done.kept {
        say!("the old logs lie in {kept}");
    }
    Ok(())
}

/// Makes a data directory of beanstalkd's files.
pub(crate) fn import(from: &Path, to: &Path, owners: Option<u16>) -> Result<(), Failure> {
    let topology = owners.map_or(Topology::Single, Topology::Multi);
    let import = import::import_beanstalkd(from, to, topology, &present())?;
    say!(
        "{} jobs taken over from {} records in {} files, for {topology}; the next id is {} or above",
        import.jobs,
        import.records,
        import.files,
        import.highest_id.saturating_add(1)
    );
    if let Some((file, offset)) = &import.unfinished {
        say!("a put that was never acknowledged, at {offset} of {file}, was left out");
    }
    let flag = owners.map_or_else(String::new, |owners| format!(" --owners {owners}"));
    say!("start with: tenure tubes -b {}{flag}", to.display());
    Ok(())
}

/// The present moment, for what repair and import write.
fn present() -> LogOptions {
    let wall = clock_gettime(ClockId::Realtime);
    let wall_ms = u64::try_from(wall.tv_sec).unwrap_or(0) * 1000 + u64::try_from(wall.tv_nsec).unwrap_or(0) / 1_000_000;
    LogOptions {
        slot: 0,
        generation: 1,
        fingerprint: 0,
        segment_bytes: SEGMENT_BYTES,
        sync: SyncMode::Always,
        ids_per_count: 1,
        boot_id: datadir::boot_id(),
        wall_ms,
        now_ns: 0,
    }
}
