//! The log on the real file system.

mod common;

use std::os::unix::fs::PermissionsExt;

use common::{Folder, Jobs, buried, change, delayed, delete, options, put, settle};
use tubes_store::{DiskVfs, Log, SyncMode};

const MODES: [SyncMode; 3] = [SyncMode::Never, SyncMode::Interval(50_000_000), SyncMode::Always];

#[test]
fn what_was_appended_is_there_after_a_restart_in_every_mode() {
    for sync in MODES {
        let folder = Folder::new();
        let mut jobs = Jobs::default();
        let (mut log, report) = Log::open(DiskVfs::open(folder.path()).unwrap(), options(1, sync), &mut jobs).unwrap();
        assert_eq!((report.next_id, report.jobs), (1, 0));
        for id in 1..=200 {
            assert!(put(&mut log, &mut jobs, id, b"default", &vec![id as u8; id as usize]));
            settle(&mut log, id * 1_000_000);
        }
        assert!(change(&mut log, &mut jobs, 7, buried(3, 1)));
        assert!(change(&mut log, &mut jobs, 8, delayed(3, 99)));
        for id in 100..150 {
            delete(&mut log, &mut jobs, id);
        }
        settle(&mut log, 1_000_000_000);
        assert!(log.figures().current_segment > 2, "several segments were filled");
        assert_eq!(log.pending_batch(), log.durable_batch());
        // Killed here: no close.
        drop(log);

        let mut recovered = Jobs::default();
        let (mut log, report) =
            Log::open(DiskVfs::open(folder.path()).unwrap(), options(2, sync), &mut recovered).unwrap();
        assert_eq!(recovered.jobs, jobs.jobs, "{sync:?}");
        assert_eq!((report.next_id, report.jobs, report.orderly), (201, 150, false), "{sync:?}");
        log.close(2_000_000_000).unwrap();
        drop(log);

        let mut again = Jobs::default();
        let (_, report) = Log::open(DiskVfs::open(folder.path()).unwrap(), options(3, sync), &mut again).unwrap();
        assert_eq!(again.jobs, jobs.jobs, "{sync:?}");
        assert_eq!((report.next_id, report.orderly), (201, true), "{sync:?}");
    }
}

#[test]
fn every_segment_has_exactly_the_size_asked_for() {
    for bytes in [601, 1_000, 4_096] {
        let folder = Folder::new();
        let mut jobs = Jobs::default();
        let options = tubes_store::LogOptions { segment_bytes: bytes, ..options(1, SyncMode::Always) };
        let (mut log, _) = Log::open(DiskVfs::open(folder.path()).unwrap(), options, &mut jobs).unwrap();
        for id in 1..=50 {
            assert!(put(&mut log, &mut jobs, id, b"t", b"body"));
            settle(&mut log, id);
        }
        let mut segments = 0;
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let metadata = entry.unwrap().metadata().unwrap();
            assert_eq!(metadata.len(), bytes);
            assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "security: files are private");
            segments += 1;
        }
        assert!(segments > 3);
        log.close(1_000).unwrap();
    }
}

/// Descriptors are few and clients want them: a backlog must not use them up (T24).
#[test]
fn space_set_aside_for_many_jobs_holds_few_descriptors() {
    let folder = Folder::new();
    let mut jobs = Jobs::default();
    let open_here = || {
        std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .filter(|target| target.starts_with(folder.path()))
            .count()
    };
    for generation in [1, 2] {
        let options = tubes_store::LogOptions { segment_bytes: 4_096, ..options(generation, SyncMode::Never) };
        let (mut log, _) = Log::open(DiskVfs::open(folder.path()).unwrap(), options, &mut jobs).unwrap();
        for id in 1..=2_000 {
            let id = id + u64::from(generation) * 10_000;
            assert!(put(&mut log, &mut jobs, id, b"t", b"body"));
            settle(&mut log, id);
        }
        let spares = log.figures().spares;
        assert!(spares > 50, "{spares} spares are a test of nothing");
        assert!(open_here() < 16, "{} descriptors for {spares} spares", open_here());
        for id in 1..=1_900 {
            delete(&mut log, &mut jobs, id + u64::from(generation) * 10_000);
            settle(&mut log, 100_000 + id);
        }
    }
}
