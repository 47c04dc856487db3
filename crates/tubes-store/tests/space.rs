//! Rows "ENOSPC" (T24) and the bound of compaction: space is only ever missing where a segment is allocated, a full disk
//! refuses puts and nothing else, and the log stays within 3 times its live jobs and 2 segments.

mod common;

use std::io;

use common::disk::{DiskFaults, SimDisk};
use common::{Jobs, Random, buried, change, delayed, delete, options, put, ready, settle};
use tubes_core::journal::Journal;
use tubes_store::{Log, LogErrorKind, LogOptions, OpenError, SyncMode, Vfs, VfsFile};

const SEGMENT_BYTES: u64 = 4_096;

fn open(disk: &SimDisk, generation: u32, jobs: &mut Jobs) -> Log<SimDisk> {
    let options = LogOptions { segment_bytes: SEGMENT_BYTES, ..options(generation, SyncMode::Always) };
    Log::open(disk.clone(), options, jobs).unwrap().0
}

/// Turns until nothing is left to do, compaction included.
fn run_idle(log: &mut Log<SimDisk>, jobs: &mut Jobs, now_ns: &mut u64) {
    for _ in 0..50 {
        *now_ns += 100_000_000;
        while log.compact(jobs, true) {
            settle(log, *now_ns);
        }
        settle(log, *now_ns);
    }
}

/// Puts until one is refused; returns the next id.
fn fill(log: &mut Log<SimDisk>, jobs: &mut Jobs, mut id: u64, body_bytes: usize) -> u64 {
    while put(log, jobs, id, b"tube", &vec![1; body_bytes]) {
        id += 1;
        settle(log, id);
        assert!(id < 100_000, "the disk never fills");
    }
    id
}

#[test]
fn a_full_disk_refuses_puts_while_every_job_can_be_buried_and_deleted() {
    for body_bytes in [0, 1, 50, 700, 3_000] {
        let disk = SimDisk::new(3);
        disk.set_capacity(40 * SEGMENT_BYTES);
        let mut jobs = Jobs::default();
        let mut log = open(&disk, 1, &mut jobs);
        let next = fill(&mut log, &mut jobs, 1, body_bytes);
        assert!(next > 10, "{body_bytes}: some fit");
        assert_eq!(log.figures().jobs_without_reserve, 0);
        let ids: Vec<u64> = jobs.jobs.keys().copied().collect();
        // Not one byte more is to be had.
        disk.set_capacity(0);
        for id in &ids {
            assert!(change(&mut log, &mut jobs, *id, buried(1, *id)), "{body_bytes}: bury {id}");
            settle(&mut log, 1_000);
        }
        for id in &ids {
            delete(&mut log, &mut jobs, *id);
            settle(&mut log, 1_000);
        }
        assert_eq!(log.failure(), None);
        let mut recovered = Jobs::default();
        tubes_store::recover(&disk, &options(2, SyncMode::Always), &mut recovered).unwrap();
        assert!(recovered.jobs.is_empty());
    }
}

#[test]
fn service_resumes_by_itself_when_deletes_free_space() {
    let disk = SimDisk::new(3);
    disk.set_capacity(30 * SEGMENT_BYTES);
    let mut jobs = Jobs::default();
    let mut log = open(&disk, 1, &mut jobs);
    let mut now_ns = 0;
    let mut next = fill(&mut log, &mut jobs, 1, 300);
    let full = jobs.jobs.len();
    for round in 0..20 {
        let ids: Vec<u64> = jobs.jobs.keys().copied().collect();
        for id in ids.iter().step_by(2) {
            delete(&mut log, &mut jobs, *id);
            settle(&mut log, now_ns);
        }
        run_idle(&mut log, &mut jobs, &mut now_ns);
        let before = jobs.jobs.len();
        next = fill(&mut log, &mut jobs, next, 300);
        let taken = jobs.jobs.len() - before;
        assert!(taken * 8 >= full, "round {round}: of {full} only {taken} were taken again");
    }
    assert!(log.figures().records_migrated > 0, "compaction had its part in it");
}

#[test]
fn service_resumes_when_somebody_else_frees_space() {
    let disk = SimDisk::new(3);
    disk.set_capacity(10 * SEGMENT_BYTES);
    let mut jobs = Jobs::default();
    let mut log = open(&disk, 1, &mut jobs);
    let next = fill(&mut log, &mut jobs, 1, 300);
    assert!(log.figures().allocation_error.is_some());
    disk.set_capacity(u64::MAX);
    // The next turn that is late enough tries again, without any delete.
    log.flush(10_000_000_000).unwrap();
    assert!(put(&mut log, &mut jobs, next, b"tube", &[1; 300]));
    assert_eq!(log.figures().allocation_error, None);
}

#[test]
fn one_failed_allocation_refuses_one_put() {
    let disk = SimDisk::new(3);
    let mut jobs = Jobs::default();
    let mut log = open(&disk, 1, &mut jobs);
    let mut id = 1;
    let mut refused = 0;
    let used = disk.used();
    disk.set_capacity(used);
    while refused == 0 {
        if !put(&mut log, &mut jobs, id, b"tube", &[1; 300]) {
            refused += 1;
            disk.set_capacity(u64::MAX);
        }
        id += 1;
    }
    for id in id..id + 100 {
        assert!(put(&mut log, &mut jobs, id, b"tube", &[1; 300]), "the next put is taken");
    }
}

#[test]
fn on_a_full_disk_refused_puts_cost_no_allocation_each() {
    let disk = SimDisk::new(3);
    disk.set_capacity(10 * SEGMENT_BYTES);
    let mut jobs = Jobs::default();
    let mut log = open(&disk, 1, &mut jobs);
    let next = fill(&mut log, &mut jobs, 1, 300);
    let before = disk.counts().allocations;
    for turn in 0..10_000_u64 {
        assert!(!put(&mut log, &mut jobs, next, b"tube", &[1; 300]));
        // 100,000 a second for 0.1 s.
        log.flush(turn * 10_000).unwrap();
    }
    let tries = disk.counts().allocations - before;
    assert!(tries <= 5, "{tries} allocations for 10,000 refused puts");
}

#[test]
fn a_job_without_reserved_space_is_refused_its_state_until_there_is_space_again() {
    let disk = SimDisk::new(3);
    disk.set_capacity(20 * SEGMENT_BYTES);
    let mut jobs = Jobs::default();
    let mut log = open(&disk, 1, &mut jobs);
    fill(&mut log, &mut jobs, 1, 300);
    disk.set_capacity(0);
    // The same job again and again: its reservation is used up and cannot be made again.
    let mut changes = 0;
    while change(&mut log, &mut jobs, 1, ready(changes)) {
        settle(&mut log, 0);
        changes += 1;
        assert!(changes < 10_000);
    }
    assert!(changes > 0, "the first one had its reservation");
    assert!(log.figures().jobs_without_reserve > 0);
    assert!(!jobs.places[&1].state_reserved);
    // Others still have theirs, and all can be deleted.
    assert!(change(&mut log, &mut jobs, 2, ready(1)));
    disk.set_capacity(u64::MAX);
    log.flush(10_000_000_000).unwrap();
    assert!(change(&mut log, &mut jobs, 1, ready(7)));
    assert!(jobs.places[&1].state_reserved, "and its reservation is made again");
    for id in jobs.jobs.keys().copied().collect::<Vec<_>>() {
        delete(&mut log, &mut jobs, id);
    }
    settle(&mut log, 10_000_000_000);
    assert_eq!(log.figures().reserved_bytes, 0, "nothing stays promised without jobs");
    assert_eq!(log.figures().jobs_without_reserve, 0);
    assert_eq!(log.figures().live_job_bytes, 0);
}

#[test]
fn a_server_killed_on_a_full_disk_starts_again_and_again() {
    let mut disk = SimDisk::new(3);
    disk.set_capacity(30 * SEGMENT_BYTES);
    let mut jobs = Jobs::default();
    let mut log = open(&disk, 1, &mut jobs);
    fill(&mut log, &mut jobs, 1, 100);
    drop(log);
    disk.set_capacity(disk.used());
    for generation in 2..12 {
        disk.crash(false, u64::from(generation));
        let mut recovered = Jobs::default();
        let mut log = open(&disk, generation, &mut recovered);
        assert_eq!(recovered.jobs, jobs.jobs, "start {generation}");
        jobs = recovered;
        let id = *jobs.jobs.keys().next().unwrap();
        delete(&mut log, &mut jobs, id);
        settle(&mut log, 0);
        assert_eq!(log.failure(), None);
    }
    // With one delete a start, nothing was lost and all can still go.
    disk.crash(false, 99);
    let mut recovered = Jobs::default();
    let mut log = open(&disk, 12, &mut recovered);
    for id in recovered.jobs.keys().copied().collect::<Vec<_>>() {
        delete(&mut log, &mut recovered, id);
        settle(&mut log, 0);
    }
    assert_eq!(log.failure(), None);
}

#[test]
fn a_start_without_any_space_is_refused_and_says_why() {
    let disk = SimDisk::new(3);
    disk.set_capacity(100);
    let error = Log::open(disk, options(1, SyncMode::Always), &mut Jobs::default()).unwrap_err();
    assert_eq!(error.exit_code(), 10);
    assert!(matches!(&error, OpenError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull), "{error}");
}

/// The largest the log was beyond 3 times its live jobs, in segments; figures are checked against the files.
fn excess(disk: &SimDisk, log: &Log<SimDisk>) -> i64 {
    let figures = log.figures();
    let named: u64 = disk
        .list()
        .unwrap()
        .iter()
        .filter(|name| name.ends_with(".log"))
        .map(|name| disk.open(name, tubes_store::Access::Read).unwrap().len().unwrap())
        .sum();
    assert!(named <= figures.log_bytes, "segments that are begun but have no name yet count too");
    figures.log_bytes as i64 - 3 * figures.live_job_bytes as i64
}

#[test]
fn endless_updates_keep_the_log_within_three_times_its_jobs_and_two_segments() {
    for (count, body_bytes, segment_bytes) in [
        (1, 10, 4_096),
        (1, 3_000, 4_096),
        (1, 20_000, 4_096),
        (50, 100, 4_096),
        (300, 1_000, 65_536),
        (20, 9_000, 16_384),
    ] {
        let disk = SimDisk::new(3);
        let mut jobs = Jobs::default();
        let options = LogOptions { segment_bytes, ..options(1, SyncMode::Always) };
        let (mut log, _) = Log::open(disk.clone(), options, &mut jobs).unwrap();
        for id in 1..=count {
            assert!(put(&mut log, &mut jobs, id, b"tube", &vec![1; body_bytes]));
            settle(&mut log, id);
        }
        let mut random = Random(count);
        let mut largest = i64::MIN;
        for turn in 0..6_000_u64 {
            for _ in 0..4 {
                let id = 1 + random.below(count);
                let state = if random.chance(1, 2) { buried(1, turn) } else { delayed(1, turn) };
                assert!(change(&mut log, &mut jobs, id, state));
            }
            log.compact(&mut jobs, false);
            settle(&mut log, turn);
            largest = largest.max(excess(&disk, &log));
        }
        let bound = 2 * segment_bytes as i64;
        assert!(largest <= bound, "{count} jobs of {body_bytes}: {largest} bytes above 3 times, {bound} are allowed");
        let mut recovered = Jobs::default();
        tubes_store::recover(&disk, &common::options(2, SyncMode::Always), &mut recovered).unwrap();
        assert_eq!(recovered.jobs, jobs.jobs);
    }
}

#[test]
fn any_mix_of_commands_keeps_the_log_within_its_bound_and_gives_space_back() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        let mut random = Random(seed);
        let mut jobs = Jobs::default();
        let mut log = open(&disk, 1, &mut jobs);
        let mut now_ns = 0;
        let mut next = 1;
        let mut largest = i64::MIN;
        for _ in 0..3_000 {
            for _ in 0..random.below(4) {
                let living = jobs.jobs.len() as u64;
                let id = (living > 0).then(|| *jobs.jobs.keys().nth(random.below(living) as usize).unwrap());
                match (random.below(10), id) {
                    (0..=2, _) | (_, None) => {
                        let longest = if random.chance(1, 20) { 6_000 } else { 300 };
                        let length = random.below(longest) as usize;
                        assert!(put(&mut log, &mut jobs, next, b"tube", &vec![2; length]));
                        next += 1;
                    }
                    (3..=6, Some(id)) => assert!(change(&mut log, &mut jobs, id, buried(1, next))),
                    (_, Some(id)) => delete(&mut log, &mut jobs, id),
                }
            }
            now_ns += 1_000_000;
            log.compact(&mut jobs, false);
            settle(&mut log, now_ns);
            largest = largest.max(excess(&disk, &log));
        }
        // The largest record makes a segment of its own size.
        let bound = 2 * (SEGMENT_BYTES as i64).max(6_300);
        assert!(largest <= bound, "seed {seed}: {largest} bytes above 3 times, {bound} are allowed");
        for id in jobs.jobs.keys().copied().collect::<Vec<_>>() {
            delete(&mut log, &mut jobs, id);
        }
        run_idle(&mut log, &mut jobs, &mut now_ns);
        assert!(disk.used() <= 5 * SEGMENT_BYTES, "seed {seed}: {} bytes are kept for nothing", disk.used());
    }
}

#[test]
fn a_turn_of_compaction_is_bounded() {
    let disk = SimDisk::new(3);
    let mut jobs = Jobs::default();
    let options = LogOptions { segment_bytes: 1 << 20, ..options(1, SyncMode::Always) };
    let (mut log, _) = Log::open(disk, options, &mut jobs).unwrap();
    for id in 1..=32_000 {
        assert!(put(&mut log, &mut jobs, id, b"tube", &[1; 1_000]));
    }
    settle(&mut log, 1);
    assert!(!log.compact(&mut jobs, false), "the log is as small as it can be");
    // Three of four go, everywhere: what is left must be copied.
    for id in (1..=32_000).filter(|id| id % 4 != 0) {
        delete(&mut log, &mut jobs, id);
    }
    settle(&mut log, 2);
    // The first turn may copy twice what the deletes appended.
    log.compact(&mut jobs, false);
    settle(&mut log, 3);
    let mut turns = 0;
    loop {
        let before = log.figures().records_migrated;
        let more = log.compact(&mut jobs, false);
        let copied = log.figures().records_migrated - before;
        assert!(copied * 1_104 <= 256 * 1024 + 1_104, "{copied} copies in one turn");
        settle(&mut log, 4 + turns);
        turns += 1;
        if !more {
            break;
        }
    }
    assert!(turns > 5, "it took {turns} turns");
}

#[test]
fn a_failed_write_or_sync_stops_the_log_and_is_named() {
    // GT9, row "EIO on fdatasync".
    for (faults, kind) in [
        (DiskFaults { write_errors_per_million: 1_000_000, ..DiskFaults::default() }, LogErrorKind::Write),
        (DiskFaults { sync_errors_per_million: 1_000_000, ..DiskFaults::default() }, LogErrorKind::Sync),
    ] {
        let disk = SimDisk::new(3);
        let mut jobs = Jobs::default();
        let mut log = open(&disk, 1, &mut jobs);
        assert!(put(&mut log, &mut jobs, 1, b"tube", b"body"));
        settle(&mut log, 1);
        let durable = log.durable_batch();
        disk.set_faults(faults);
        assert!(put(&mut log, &mut jobs, 2, b"tube", b"body"));
        let error = match log.flush(2) {
            Err(error) => error,
            Ok(()) => {
                let job = log.begin_sync(2).unwrap();
                let id = job.id();
                log.end_sync(id, job.run()).unwrap_err()
            }
        };
        assert_eq!((error.kind, error.file.as_str(), error.errno), (kind, "0000000001.log", 5));
        assert_eq!(error.offset, 96 + 112, "where the part begins that failed");
        disk.set_faults(DiskFaults::default());
        // Never again, although the disk works: not a byte, and no reply.
        assert_eq!(log.flush(3).unwrap_err(), error);
        assert!(log.begin_sync(3).is_none());
        assert!(!log.admit_job(4, 4) && !log.admit_state(jobs.places[&1]));
        assert_eq!(log.durable_batch(), durable);
        assert_eq!(log.failure(), Some(&error));
    }
}

#[test]
fn what_a_failed_sync_lost_is_not_there_after_the_restart_although_the_cache_has_it() {
    let mut lost = 0;
    for seed in 0..50 {
        let mut disk = SimDisk::new(seed);
        let mut jobs = Jobs::default();
        let mut log = open(&disk, 1, &mut jobs);
        disk.set_faults(DiskFaults { sync_errors_per_million: 1_000_000, ..DiskFaults::default() });
        for id in 1..=6 {
            assert!(put(&mut log, &mut jobs, id, b"tube", &[1; 400]));
        }
        log.flush(1).unwrap();
        let job = log.begin_sync(1).unwrap();
        let id = job.id();
        assert!(log.end_sync(id, job.run()).is_err());
        disk.crash(false, seed);
        disk.set_faults(DiskFaults::default());
        let mut first = Jobs::default();
        drop(open(&disk, 2, &mut first));
        lost += 6 - first.jobs.len();
        // What the next start finds, a power loss leaves too.
        disk.crash(true, seed);
        let mut second = Jobs::default();
        drop(open(&disk, 3, &mut second));
        assert_eq!(first.jobs, second.jobs, "seed {seed}");
    }
    assert!(lost > 0, "the simulated disk forgets");
}

#[test]
fn replies_wait_for_their_batch_and_batches_wait_for_each_other() {
    let disk = SimDisk::new(3);
    let mut jobs = Jobs::default();
    let mut log = open(&disk, 1, &mut jobs);
    assert!(put(&mut log, &mut jobs, 1, b"tube", b"body"));
    let first = log.pending_batch();
    assert!(log.durable_batch() < first);
    log.flush(1).unwrap();
    let job = log.begin_sync(1).unwrap();
    assert!(put(&mut log, &mut jobs, 2, b"tube", b"body"));
    let second = log.pending_batch();
    let writes = disk.counts().writes;
    log.flush(2).unwrap();
    assert!(log.begin_sync(2).is_none(), "one sync at a time");
    assert_eq!(disk.counts().writes, writes, "batch 2 is written only after the sync of batch 1 has returned");
    assert!(log.durable_batch() < first);
    let id = job.id();
    log.end_sync(id, job.run()).unwrap();
    assert!(log.durable_batch() >= first && log.durable_batch() < second);
    settle(&mut log, 3);
    assert_eq!(log.durable_batch(), second);
}

#[test]
fn in_interval_a_sync_starts_in_time_and_writing_goes_on_during_it() {
    let disk = SimDisk::new(3);
    let mut jobs = Jobs::default();
    let (mut log, _) = Log::open(disk, options(1, SyncMode::Interval(50)), &mut jobs).unwrap();
    assert_eq!(log.next_deadline(), None);
    assert!(put(&mut log, &mut jobs, 1, b"tube", b"body"));
    log.flush(1_000).unwrap();
    assert_eq!(log.next_deadline(), Some(1_050));
    assert_eq!(log.durable_batch(), log.pending_batch(), "a reply needs no sync");
    assert!(put(&mut log, &mut jobs, 2, b"tube", b"body"));
    log.flush(1_020).unwrap();
    assert_eq!(log.next_deadline(), Some(1_050), "counted from the first unsynced write");
    assert!(log.begin_sync(1_049).is_none());
    let job = log.begin_sync(1_050).unwrap();
    assert_eq!(log.next_deadline(), None);
    assert!(put(&mut log, &mut jobs, 3, b"tube", b"body"));
    log.flush(1_060).unwrap();
    assert_eq!(log.durable_batch(), log.pending_batch(), "writing goes on");
    let id = job.id();
    log.end_sync(id, job.run()).unwrap();
    assert_eq!(log.next_deadline(), Some(1_110));
    assert_eq!((log.figures().syncs, log.figures().records_synced), (1, 2));
}

#[test]
fn backpressure_begins_above_sixteen_mebibytes_and_ends_with_the_sync() {
    let disk = SimDisk::new(3);
    let mut jobs = Jobs::default();
    let options = LogOptions { segment_bytes: 64 << 20, ..options(1, SyncMode::Always) };
    let (mut log, _) = Log::open(disk, options, &mut jobs).unwrap();
    assert!(put(&mut log, &mut jobs, 1, b"tube", b"body"));
    log.flush(1).unwrap();
    let job = log.begin_sync(1).unwrap();
    let body = vec![1; 1 << 20];
    for id in 2..=16 {
        assert!(put(&mut log, &mut jobs, id, b"tube", &body));
        log.flush(id).unwrap();
        assert!(!log.backpressure(), "at {id} MiB");
    }
    for id in 17..=18 {
        assert!(put(&mut log, &mut jobs, id, b"tube", &body));
    }
    assert!(log.backpressure());
    let id = job.id();
    log.end_sync(id, job.run()).unwrap();
    log.flush(20).unwrap();
    assert!(!log.backpressure());
}
