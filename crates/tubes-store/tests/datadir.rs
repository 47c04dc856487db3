//! The data directory: T24 rows "Double start", security row "Files", exit codes 10 and 12.

mod common;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use common::{Folder, Jobs, options};
use tubes_store::datadir::{DirError, Holder, open, open_single};
use tubes_store::manifest::Topology;
use tubes_store::{Access, DiskVfs, Log, LogOptions, OpenError, SyncMode, Vfs};

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_empty_directory_becomes_a_queue_for_single_mode_and_keeps_its_id() {
    let folder = Folder::new();
    let data = open_single(folder.path()).unwrap();
    let manifest = data.manifest().clone();
    assert_eq!((manifest.mode.as_str(), manifest.slots, manifest.partitions), ("single", 1, 64));
    assert_eq!((manifest.single_ids_below, manifest.logs.as_str()), (0, "logs-1"));
    assert_eq!(manifest.map, vec![0; 64]);
    let text = std::fs::read(folder.path().join("manifest.toml")).unwrap();
    assert_eq!(data.fingerprint(), xxhash_rust::xxh3::xxh3_64(&text));
    let slot = data.open_slot(0).unwrap();
    assert_eq!(slot.generation, 1);
    let slot_path = folder.path().join("logs-1/slot-0");
    assert_eq!(std::fs::read_to_string(slot_path.join("generation")).unwrap(), "1\n");
    assert_eq!(names(folder.path()), ["lock", "logs-1", "manifest.toml"]);
    for (path, mode) in [("logs-1", 0o700), ("logs-1/slot-0", 0o700), ("manifest.toml", 0o600), ("lock", 0o600)] {
        let metadata = std::fs::metadata(folder.path().join(path)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{path} is private");
    }
    drop((data, slot));
    for generation in 2..5 {
        let data = open_single(folder.path()).unwrap();
        assert_eq!(data.manifest(), &manifest);
        assert_eq!(data.open_slot(0).unwrap().generation, generation, "raised before each start");
    }
}

#[test]
fn a_second_start_is_refused_and_the_holder_is_named() {
    let folder = Folder::new();
    let link = Folder::new();
    let through_link = link.path().join("link");
    symlink(folder.path(), &through_link).unwrap();
    let data = open_single(folder.path()).unwrap();
    for path in [folder.path(), &through_link] {
        let error = open_single(path).unwrap_err();
        assert_eq!(error.exit_code(), 10);
        assert!(
            matches!(&error, DirError::Locked { holder: Holder(Some(pid)), .. } if *pid == std::process::id()),
            "{error}"
        );
    }
    let slot = data.open_slot(0).unwrap();
    assert!(matches!(data.open_slot(0), Err(DirError::Locked { .. })), "the slot has a lock of its own");
    drop((slot, data));
    open_single(folder.path()).unwrap();
}

#[test]
fn the_originals_files_without_a_manifest_are_refused_with_the_import_command() {
    let folder = Folder::new();
    std::fs::write(folder.path().join("binlog.1"), b"x").unwrap();
    let error = open_single(folder.path()).unwrap_err();
    assert_eq!(error.exit_code(), 12);
    let text = error.to_string();
    assert!(text.contains(&format!("tenure import beanstalkd {} --to", folder.path().display())), "{text}");
    assert_eq!(names(folder.path()), ["binlog.1"], "nothing was written");
}

#[test]
fn another_topology_is_refused_before_anything_is_written_and_both_are_named() {
    let folder = Folder::new();
    drop(open_single(folder.path()).unwrap());
    let before = names(folder.path());
    let error = open(folder.path(), Topology::Multi(2)).unwrap_err();
    assert_eq!(error.exit_code(), 12);
    let text = error.to_string();
    assert!(text.contains("single mode") && text.contains("2 owners") && text.contains("--owners 2"), "{text}");
    assert_eq!(names(folder.path()), before);

    let multi = Folder::new();
    drop(open(multi.path(), Topology::Multi(3)).unwrap());
    for wanted in [Topology::Single, Topology::Multi(2)] {
        let error = open(multi.path(), wanted).unwrap_err();
        assert_eq!(error.exit_code(), 12);
        assert!(error.to_string().contains("3 owners"), "{error}");
    }
    assert!(open(multi.path(), Topology::Single).unwrap_err().to_string().contains("reshard"));
}

#[test]
fn a_newer_manifest_is_refused_and_left_alone() {
    let folder = Folder::new();
    drop(open_single(folder.path()).unwrap());
    let path = folder.path().join("manifest.toml");
    let newer = std::fs::read_to_string(&path).unwrap().replace("format = 1", "format = 7\nshards = \"many\"");
    std::fs::write(&path, &newer).unwrap();
    let error = open_single(folder.path()).unwrap_err();
    assert_eq!(error.exit_code(), 12);
    assert!(error.to_string().contains("format 7") && error.to_string().contains("format 1"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), newer);
}

#[test]
fn logs_whose_manifest_is_gone_are_not_taken_for_an_empty_directory() {
    let folder = Folder::new();
    drop(open_single(folder.path()).unwrap().open_slot(0).unwrap());
    std::fs::remove_file(folder.path().join("manifest.toml")).unwrap();
    assert_eq!(open_single(folder.path()).unwrap_err().exit_code(), 12);
}

#[test]
fn a_missing_directory_is_an_error_and_not_made() {
    let folder = Folder::new();
    let path = folder.path().join("typo");
    assert_eq!(open_single(&path).unwrap_err().exit_code(), 10);
    assert!(!path.exists());
    tubes_store::datadir::make(&path).unwrap();
    open_single(&path).unwrap();
}

#[test]
fn a_lost_or_old_generation_is_found_again_in_the_log() {
    let folder = Folder::new();
    let file = folder.path().join("logs-1/slot-0/generation");
    for expected in 1..=6 {
        let data = open_single(folder.path()).unwrap();
        let slot = data.open_slot(0).unwrap();
        assert_eq!(slot.generation, expected);
        let options =
            LogOptions { generation: slot.generation, fingerprint: data.fingerprint(), ..options(1, SyncMode::Always) };
        let mut jobs = Jobs::default();
        let (mut log, _) = Log::open(slot.vfs.clone(), options, &mut jobs).unwrap();
        // Without a job in it the segment would be dropped.
        assert!(common::put(&mut log, &mut jobs, u64::from(expected), b"tube", b"body"));
        log.close(1).unwrap();
        match expected {
            2 => std::fs::remove_file(&file).unwrap(),
            3 => std::fs::write(&file, "1\n").unwrap(),
            4 => std::fs::write(&file, "garbage").unwrap(),
            _ => {}
        }
    }
}

#[test]
fn members_that_are_links_fifos_or_have_two_names_are_refused() {
    let outside = Folder::new();
    let target = outside.path().join("target");
    std::fs::write(&target, b"precious").unwrap();
    let folder = Folder::new();
    let vfs = DiskVfs::open(folder.path()).unwrap();
    symlink(&target, folder.path().join("0000000001.log")).unwrap();
    std::fs::hard_link(&target, folder.path().join("0000000002.log")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.path().join("0000000003.log"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    for name in ["0000000001.log", "0000000002.log", "0000000003.log"] {
        for access in [Access::Read, Access::ReadWrite] {
            let error = vfs.open(name, access).unwrap_err();
            assert!(error.to_string().contains("refused"), "{name}: {error}");
        }
    }
    let error = Log::open(vfs, options(1, SyncMode::Always), &mut Jobs::default()).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
    assert_eq!(std::fs::read(&target).unwrap(), b"precious");

    // A member directory that is a link.
    let data = Folder::new();
    drop(open_single(data.path()).unwrap());
    symlink(outside.path(), data.path().join("logs-1")).unwrap();
    assert!(matches!(open_single(data.path()).unwrap().open_slot(0), Err(DirError::Io { .. })));
}
