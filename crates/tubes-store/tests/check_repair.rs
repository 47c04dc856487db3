//! `tenure tubes check` and `repair`: the one changes nothing, the other keeps what was and leaves a log that opens.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::{Folder, Jobs, buried, change, delete, options, put, settle};
use tubes_store::check::check_directory;
use tubes_store::datadir::{open_single, slot_directory};
use tubes_store::repair::repair_directory;
use tubes_store::{Log, LogOptions, OpenError, SyncMode};

/// Every file below a directory.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(tree(&path));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            files.insert(path, bytes);
        }
    }
    files
}

fn start(dir: &Path, jobs: &mut Jobs) -> Result<Log<tubes_store::DiskVfs>, OpenError> {
    let data = open_single(dir).unwrap();
    let slot = data.open_slot(0).unwrap();
    let options = LogOptions {
        generation: slot.generation,
        fingerprint: data.fingerprint(),
        segment_bytes: 2_048,
        ..options(1, SyncMode::Always)
    };
    Log::open(slot.vfs.clone(), options, jobs).map(|(log, _)| log)
}

/// A directory with 40 jobs in several segments, some deleted, one buried.
fn sample(dir: &Path) -> Jobs {
    let mut jobs = Jobs::default();
    let mut log = start(dir, &mut jobs).unwrap();
    for id in 1..=40 {
        assert!(put(&mut log, &mut jobs, id, b"tube", &[id as u8; 100]));
        settle(&mut log, id);
    }
    for id in [5, 17, 33] {
        delete(&mut log, &mut jobs, id);
        settle(&mut log, 50);
    }
    assert!(change(&mut log, &mut jobs, 20, buried(4, 1)));
    log.close(100).unwrap();
    jobs
}

fn segment(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("logs-1/slot-0/{number:010}.log"))
}

fn flip(path: &Path, offset: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[offset] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_check_reads_everything_and_changes_nothing() {
    let folder = Folder::new();
    let jobs = sample(folder.path());
    let before = tree(folder.path());
    let check = check_directory(folder.path()).unwrap();
    let report = check.slots[0].verdict.as_ref().unwrap();
    assert_eq!((report.jobs, report.next_id, report.orderly), (jobs.jobs.len() as u64, 41, true));
    assert!(check.slots[0].segments.len() > 2);
    assert_eq!(check.slots[0].segments.iter().map(|segment| segment.records).sum::<u64>(), report.records);

    flip(&segment(folder.path(), 2), 300);
    let damaged = tree(folder.path());
    let check = check_directory(folder.path()).unwrap();
    let Err(OpenError::Damaged { file, offset, .. }) = &check.slots[0].verdict else { panic!("it is damaged") };
    assert!(file.ends_with("0000000002.log") && *offset >= 96 && *offset <= 300, "{file} {offset}");
    assert_eq!(tree(folder.path()), damaged);
    assert_ne!(before, damaged);
}

#[test]
fn a_check_of_a_torn_tail_reports_it_and_leaves_it() {
    let folder = Folder::new();
    let mut jobs = Jobs::default();
    let mut log = start(folder.path(), &mut jobs).unwrap();
    assert!(put(&mut log, &mut jobs, 1, b"tube", b"body"));
    settle(&mut log, 1);
    drop(log);
    let path = segment(folder.path(), 1);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[400] = 1;
    std::fs::write(&path, &bytes).unwrap();
    let before = tree(folder.path());
    let check = check_directory(folder.path()).unwrap();
    let torn = check.slots[0].verdict.as_ref().unwrap().torn.clone().unwrap();
    assert_eq!((torn.copy, torn.records), (None, 0));
    assert_eq!(tree(folder.path()), before);
}

#[test]
fn a_directory_in_use_is_neither_checked_nor_repaired() {
    let folder = Folder::new();
    let data = open_single(folder.path()).unwrap();
    assert_eq!(check_directory(folder.path()).unwrap_err().exit_code(), 10);
    assert_eq!(repair_directory(folder.path(), &options(1, SyncMode::Always)).unwrap_err().exit_code(), 10);
    drop(data);
    assert!(check_directory(folder.path()).is_ok());
}

#[test]
fn a_repair_keeps_the_old_directory_salvages_every_valid_record_and_lists_what_it_dropped() {
    let folder = Folder::new();
    let jobs = sample(folder.path());
    let slot = folder.path().join("logs-1/slot-0");
    // One record damaged in segment 2, one header lost in segment 3.
    let second = std::fs::read(segment(folder.path(), 2)).unwrap();
    let first_record = u32::from_le_bytes(second[96..100].try_into().unwrap()) as usize;
    let second_record = 96 + 32 + first_record.next_multiple_of(8);
    let lost_id = u64::from_le_bytes(second[second_record + 32..second_record + 40].try_into().unwrap());
    flip(&segment(folder.path(), 2), second_record + 60);
    flip(&segment(folder.path(), 3), 40);
    assert!(matches!(start(folder.path(), &mut Jobs::default()), Err(OpenError::Damaged { .. })));
    let damaged = tree(&slot);

    let repairs = repair_directory(folder.path(), &options(1, SyncMode::Always)).unwrap();
    let repair = &repairs[0];
    assert!(matches!(repair.damage, Some(OpenError::Damaged { .. })));
    let copy = PathBuf::from(repair.copy.as_ref().unwrap());
    let kept: BTreeMap<PathBuf, Vec<u8>> =
        tree(&copy).into_iter().map(|(path, bytes)| (slot.join(path.strip_prefix(&copy).unwrap()), bytes)).collect();
    let without_lock = |mut files: BTreeMap<PathBuf, Vec<u8>>| {
        files.retain(|path, _| !path.ends_with("lock"));
        files
    };
    assert_eq!(without_lock(kept), without_lock(damaged), "the old directory is kept as it was");

    let dropped: Vec<(bool, u64)> = repair
        .salvage
        .dropped
        .iter()
        .map(|dropped| (dropped.file.ends_with("0000000002.log"), dropped.offset))
        .collect();
    assert_eq!(dropped, [(true, second_record as u64), (false, 0)], "{:?}", repair.salvage.dropped);
    assert_eq!(repair.salvage.next_id, 41 + 1_000_000, "a lost job's id is not given again");

    let mut salvaged = Jobs::default();
    let log = start(folder.path(), &mut salvaged).unwrap();
    drop(log);
    let mut expected = jobs.jobs.clone();
    expected.remove(&lost_id);
    assert_eq!(salvaged.jobs, expected);
    assert_eq!(repair.salvage.jobs, expected.len() as u64);

    // Now it is in order, and a second repair finds nothing to do.
    let before = tree(&slot);
    let again = repair_directory(folder.path(), &options(1, SyncMode::Always)).unwrap();
    assert_eq!((again[0].copy.as_ref(), again[0].damage.is_none()), (None, true));
    assert_eq!(without_lock(tree(&slot)), without_lock(before));
}

#[test]
fn a_repair_killed_between_its_renames_is_not_taken_for_an_empty_slot_and_is_finished_by_the_next() {
    let folder = Folder::new();
    let jobs = sample(folder.path());
    let logs = folder.path().join("logs-1");
    flip(&segment(folder.path(), 2), 110);
    repair_directory(folder.path(), &options(1, SyncMode::Always)).unwrap();
    std::fs::rename(logs.join("slot-0"), logs.join("slot-0.repairing")).unwrap();
    let error = open_single(folder.path()).unwrap().open_slot(0).unwrap_err();
    assert_eq!(error.exit_code(), 12);
    assert!(error.to_string().contains("tenure tubes repair"), "{error}");
    // Nor does a supervisor make one, which opens the directory of a slot for the process to come.
    let error = slot_directory(folder.path(), "logs-1", 0).unwrap_err();
    assert_eq!(error.exit_code(), 12, "{error}");
    assert!(!logs.join("slot-0").exists());
    repair_directory(folder.path(), &options(1, SyncMode::Always)).unwrap();
    let mut salvaged = Jobs::default();
    start(folder.path(), &mut salvaged).unwrap();
    assert_eq!(salvaged.jobs.len(), jobs.jobs.len() - 1);

    // Killed before the fresh log was whole: what it left is thrown away.
    std::fs::create_dir(logs.join("slot-0.repairing")).unwrap();
    std::fs::write(logs.join("slot-0.repairing/0000000001.log.tmp"), b"half").unwrap();
    repair_directory(folder.path(), &options(1, SyncMode::Always)).unwrap();
    assert!(!logs.join("slot-0.repairing").exists());
    let mut again = Jobs::default();
    start(folder.path(), &mut again).unwrap();
    assert_eq!(again.jobs, salvaged.jobs);
}

#[test]
fn a_repair_of_any_damage_leaves_a_log_that_opens() {
    let folder = Folder::in_memory();
    sample(folder.path());
    let slot = folder.path().join("logs-1/slot-0");
    let original = tree(&slot);
    let mut random = common::Random(9);
    let mut repaired = 0;
    for _ in 0..150 {
        let mut logs: Vec<&PathBuf> = original.keys().filter(|path| path.to_string_lossy().ends_with(".log")).collect();
        logs.sort();
        std::fs::remove_dir_all(&slot).unwrap();
        std::fs::create_dir(&slot).unwrap();
        for (path, bytes) in &original {
            std::fs::write(path, bytes).unwrap();
        }
        for _ in 0..=random.below(3) {
            let path = logs[random.below(logs.len() as u64) as usize];
            let mut bytes = std::fs::read(path).unwrap_or_default();
            match random.below(4) {
                0 => bytes.truncate(random.below(bytes.len() as u64 + 1) as usize),
                1 => {
                    let start = random.below(bytes.len() as u64 + 1) as usize;
                    let end = (start + random.below(600) as usize).min(bytes.len());
                    bytes[start..end].iter_mut().for_each(|byte| *byte = random.next() as u8);
                }
                2 => {
                    let _ = std::fs::remove_file(path);
                    continue;
                }
                _ => {
                    if !bytes.is_empty() {
                        let at = random.below(bytes.len() as u64) as usize;
                        bytes[at] ^= 1 << random.below(8);
                    }
                }
            }
            if path.exists() {
                std::fs::write(path, bytes).unwrap();
            }
        }
        let repairs = repair_directory(folder.path(), &options(1, SyncMode::Always)).unwrap();
        repaired += usize::from(repairs[0].copy.is_some());
        let mut jobs = Jobs::default();
        start(folder.path(), &mut jobs).unwrap_or_else(|error| panic!("after {repairs:?}: {error}"));
        for (id, job) in &jobs.jobs {
            assert_eq!(job.body, vec![*id as u8; 100], "never a wrong body");
        }
        if let Some(copy) = &repairs[0].copy {
            assert_eq!(jobs.jobs.len() as u64, repairs[0].salvage.jobs);
            std::fs::remove_dir_all(copy).unwrap();
        }
    }
    assert!(repaired > 50, "only {repaired} needed a repair");
}
