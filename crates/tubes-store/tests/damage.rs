//! Rows "Torn / short / missing tail", "Lost write" and "Bit flip", and the rules of recovery one by one (T24, GT1, GT9):
//! what was synced and is gone is refused with file and offset; what never was is set aside; a body is never wrong.

mod common;

use std::collections::BTreeMap;

use common::disk::SimDisk;
use common::{Job, Jobs, Random, buried, change, delete, options, put, settle};
use tubes_store::{Log, LogOptions, OpenError, RecoveryReport, SyncMode, recover};

const INTERVAL: SyncMode = SyncMode::Interval(50_000_000);
const HEADER_BYTES: usize = 96;

/// A log on a disk, and the jobs after each of its records, by the place where the record ends.
struct Script {
    disk: SimDisk,
    log: Log<SimDisk>,
    jobs: Jobs,
    options: LogOptions,
    now_ns: u64,
}

impl Script {
    fn new(sync: SyncMode, segment_bytes: u64) -> Script {
        let disk = SimDisk::new(1);
        let mut jobs = Jobs::default();
        let options = LogOptions { segment_bytes, ..options(1, sync) };
        let (log, _) = Log::open(disk.clone(), options.clone(), &mut jobs).unwrap();
        Script { disk, log, jobs, options, now_ns: 0 }
    }

    /// Writes the records so far as a batch of their own and syncs it.
    fn batch(&mut self) {
        settle(&mut self.log, self.now_ns);
        self.now_ns += 60_000_000;
        settle(&mut self.log, self.now_ns);
    }

    /// Writes the records so far without syncing them.
    fn write(&mut self) {
        self.now_ns += 1;
        self.log.flush(self.now_ns).unwrap();
    }

    fn put(&mut self, id: u64, body_bytes: usize) {
        assert!(put(&mut self.log, &mut self.jobs, id, b"tube", &body(id, body_bytes)));
    }

    fn next_options(&self) -> LogOptions {
        LogOptions { generation: 2, ..self.options.clone() }
    }

    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.disk.contents()
    }
}

fn body(id: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random(id);
    (0..bytes).map(|_| random.next() as u8 | 1).collect()
}

fn disk_of(files: &BTreeMap<String, Vec<u8>>) -> SimDisk {
    let disk = SimDisk::new(2);
    for (name, bytes) in files {
        disk.set_contents(name, bytes);
    }
    disk
}

fn recovered(disk: &SimDisk, options: &LogOptions) -> Result<(BTreeMap<u64, Job>, RecoveryReport), OpenError> {
    let mut jobs = Jobs::default();
    recover(disk, options, &mut jobs).map(|report| (jobs.jobs, report))
}

/// Starts and lengths of the records of a segment.
fn record_places(segment: &[u8]) -> Vec<(usize, usize)> {
    let mut places = Vec::new();
    let mut at = HEADER_BYTES;
    while at + 32 <= segment.len() {
        let length = u32::from_le_bytes(segment[at..at + 4].try_into().unwrap()) as usize;
        if length == 0 {
            break;
        }
        let bytes = 32 + length.next_multiple_of(8);
        places.push((at, bytes));
        at += bytes;
    }
    places
}

/// Several synced batches over several segments, closed in an orderly way.
fn closed_log() -> (Script, Vec<BTreeMap<u64, Job>>) {
    let mut script = Script::new(SyncMode::Always, 2_048);
    let mut states = vec![BTreeMap::new()];
    for id in 1..=24 {
        script.put(id, 30 + (id as usize * 37) % 200);
        states.push(script.jobs.jobs.clone());
        if id % 4 == 0 {
            assert!(change(&mut script.log, &mut script.jobs, id, buried(9, id)));
            states.push(script.jobs.jobs.clone());
        }
        if id % 5 == 0 {
            delete(&mut script.log, &mut script.jobs, id - 2);
            states.push(script.jobs.jobs.clone());
        }
        if id % 3 == 0 {
            script.batch();
        }
    }
    script.log.close(1 << 40).unwrap();
    (script, states)
}

#[test]
fn a_flipped_bit_is_refused_with_its_place_or_leaves_an_exact_prefix_and_never_a_wrong_body() {
    let (script, states) = closed_log();
    let files = script.files();
    let segments: Vec<(&String, &Vec<u8>)> = files.iter().filter(|(name, _)| name.ends_with(".log")).collect();
    assert!(segments.len() >= 4);
    let mut random = Random(42);
    let (mut flips, mut refused, mut prefixes) = (0, 0, 0);
    for flip in 0..12_000 {
        let (name, bytes) = segments[random.below(segments.len() as u64) as usize];
        let (offset, bit) = (random.below(bytes.len() as u64) as usize, random.below(8) as u8);
        let disk = disk_of(&files);
        disk.flip_bit(name, offset, bit);
        flips += 1;
        let context = format!("flip {flip}: bit {bit} of byte {offset} of {name}");
        let places = record_places(bytes);
        let hit = places.iter().find(|(at, length)| (*at..at + length).contains(&offset));
        match recovered(&disk, &script.next_options()) {
            Ok((jobs, _)) => {
                prefixes += 1;
                assert!(states.contains(&jobs), "{context}: a state that never was");
                // Only the last record, a CLOSE, has none behind it that proves it; padding and unused space prove
                // nothing and change nothing.
                assert_eq!(Some(&jobs), states.last(), "{context}: synced jobs are gone in silence");
            }
            Err(OpenError::Damaged { file, offset: named, .. }) => {
                refused += 1;
                let expected = if offset < HEADER_BYTES {
                    0..=HEADER_BYTES as u64
                } else {
                    let (at, _) = hit.unwrap_or_else(|| panic!("{context}: refused for a byte that is not used"));
                    *at as u64..=*at as u64
                };
                assert!(file == *name && expected.contains(&named), "{context}: named {file} offset {named}");
            }
            Err(other) => panic!("{context}: {other}"),
        }
    }
    println!("{flips} flips: {refused} refused, {prefixes} without effect");
    assert!(flips >= 10_000);
    assert!(refused > flips / 2, "most bytes are records: {refused}");
}

#[test]
fn a_log_cut_at_any_byte_of_its_last_segment_is_the_exact_prefix_or_refused_within_its_header() {
    let mut script = Script::new(SyncMode::Always, 4_096);
    let mut states = vec![BTreeMap::new()];
    for id in 1..=9 {
        script.put(id, id as usize * 21);
        script.batch();
        states.push(script.jobs.jobs.clone());
    }
    let files = script.files();
    let name = "0000000001.log";
    let ends: Vec<usize> = record_places(&files[name]).iter().map(|(at, bytes)| at + bytes).collect();
    assert_eq!(ends.len(), 9);
    let mut cuts = 0;
    for length in 0..=files[name].len() {
        let mut cut = files.clone();
        cut.get_mut(name).unwrap().truncate(length);
        let disk = disk_of(&cut);
        let result = recovered(&disk, &script.next_options());
        cuts += 1;
        if length < HEADER_BYTES {
            assert!(matches!(result, Err(OpenError::Damaged { .. })), "cut at {length}");
            continue;
        }
        let (jobs, report) = result.unwrap_or_else(|error| panic!("cut at {length}: {error}"));
        // The padding behind the last whole payload may be cut without harm.
        let whole = ends.iter().filter(|end| **end <= length).count();
        let padded = ends.iter().filter(|end| **end < length + 8).count();
        assert!(jobs == states[whole] || jobs == states[padded], "cut at {length}");
        assert_eq!(report.next_id, jobs.len() as u64 + 1);
        let bytes = disk.contents();
        assert_eq!(recovered(&disk, &script.next_options()).unwrap().0, jobs, "cut at {length}, again");
        assert!(bytes == disk.contents(), "cut at {length}: the second recovery changes nothing");
    }
    assert_eq!(cuts, 4_097);
}

#[test]
fn an_earlier_segment_cut_anywhere_before_its_end_is_refused() {
    let (script, states) = closed_log();
    let files = script.files();
    let name = "0000000002.log";
    let end = record_places(&files[name]).last().map(|(at, bytes)| at + bytes).unwrap();
    for length in 0..files[name].len() {
        let mut cut = files.clone();
        cut.get_mut(name).unwrap().truncate(length);
        match recovered(&disk_of(&cut), &script.next_options()) {
            Err(OpenError::Damaged { .. }) => assert!(length < end, "cut at {length}"),
            Ok((jobs, _)) => assert!(length >= end - 7 && Some(&jobs) == states.last(), "cut at {length}"),
            Err(other) => panic!("cut at {length}: {other}"),
        }
    }
}

/// The bytes of the record of the batch `batch` (from 0) in the only segment, when each batch is one put.
fn blank(files: &mut BTreeMap<String, Vec<u8>>, record: usize) -> usize {
    let segment = files.get_mut("0000000001.log").unwrap();
    let (at, bytes) = record_places(segment)[record];
    segment[at..at + bytes].fill(0);
    at
}

#[test]
fn in_always_a_gap_is_damage_as_soon_as_a_record_of_the_next_batch_exists() {
    // "Lost write": the call reported success and nothing was written.
    let mut script = Script::new(SyncMode::Always, 8_192);
    for id in 1..=3 {
        script.put(id, 100);
        script.batch();
    }
    for record in 0..3 {
        let mut files = script.files();
        let at = blank(&mut files, record);
        let result = recovered(&disk_of(&files), &script.next_options());
        if record == 2 {
            assert_eq!(result.unwrap().0.len(), 2, "behind the last batch nothing proves it");
        } else {
            let Err(OpenError::Damaged { file, offset, .. }) = result else { panic!("record {record} is missing") };
            assert_eq!((file.as_str(), offset), ("0000000001.log", at as u64));
        }
    }
}

#[test]
fn in_interval_a_gap_is_damage_only_if_a_record_of_the_next_batch_but_one_exists() {
    let mut script = Script::new(INTERVAL, 8_192);
    for id in 1..=4 {
        script.put(id, 100);
        script.batch();
    }
    for (record, jobs_left) in [(0, None), (1, None), (2, Some(2)), (3, Some(3))] {
        let mut files = script.files();
        blank(&mut files, record);
        match (recovered(&disk_of(&files), &script.next_options()), jobs_left) {
            (Err(OpenError::Damaged { .. }), None) => {}
            (Ok((jobs, report)), Some(left)) => {
                assert_eq!(jobs.len(), left);
                assert_eq!(report.torn.is_some(), record == 2, "what stands behind the gap is set aside");
            }
            (other, _) => panic!("record {record}: {other:?}"),
        }
    }
}

#[test]
fn in_never_a_gap_within_the_last_segment_is_a_torn_tail_and_the_report_says_so() {
    let mut script = Script::new(SyncMode::Never, 8_192);
    for id in 1..=4 {
        script.put(id, 100);
        script.batch();
    }
    let mut files = script.files();
    blank(&mut files, 1);
    let (jobs, report) = recovered(&disk_of(&files), &script.next_options()).unwrap();
    assert_eq!(jobs.len(), 1);
    assert!(report.never_synced);
    assert_eq!(report.torn.unwrap().records, 2);
}

#[test]
fn pages_of_the_last_batch_in_any_order_are_a_torn_tail_and_kept_in_a_copy() {
    for sync in [SyncMode::Always, INTERVAL] {
        let mut script = Script::new(sync, 16_384);
        script.put(1, 200);
        script.batch();
        let synced = script.jobs.jobs.clone();
        for id in 2..=20 {
            script.put(id, 400);
        }
        script.write();
        let files = script.files();
        let places = record_places(&files["0000000001.log"]);
        let first_page = places[1].0.div_ceil(512);
        let last_page = (places[19].0 + places[19].1) / 512;
        for page in first_page..last_page {
            let mut reordered = files.clone();
            let segment = reordered.get_mut("0000000001.log").unwrap();
            segment[page * 512..(page + 1) * 512].fill(0);
            let disk = disk_of(&reordered);
            let (jobs, report) = recovered(&disk, &script.next_options()).unwrap();
            let whole = places.iter().filter(|(at, bytes)| at + bytes <= page * 512).count();
            assert_eq!(jobs.len(), whole, "{sync:?}, page {page} is missing");
            assert!(synced.iter().all(|(id, job)| jobs.get(id) == Some(job)));
            let torn = report.torn.expect("something stands behind the gap");
            assert_eq!(torn.offset, (places[whole - 1].0 + places[whole - 1].1) as u64);
            let copy = &disk.contents()["0000000001.log.torn"];
            assert_eq!(copy.len() as u64, torn.bytes);
            assert_eq!(disk.contents()["0000000001.log"].len() as u64, torn.offset, "the segment is cut before it");
        }
    }
}

#[test]
fn zeros_in_allocated_space_are_the_normal_end() {
    let mut script = Script::new(SyncMode::Always, 8_192);
    script.put(1, 100);
    script.batch();
    let before = script.files();
    let (jobs, report) = recovered(&disk_of(&before), &script.next_options()).unwrap();
    assert_eq!((jobs.len(), report.torn, report.orderly), (1, None, false));
}

#[test]
fn a_missing_segment_is_refused_and_a_missing_oldest_one_is_not() {
    let (script, _) = closed_log();
    let mut files = script.files();
    let second = files.remove("0000000002.log").unwrap();
    let Err(OpenError::Damaged { file, .. }) = recovered(&disk_of(&files), &script.next_options()) else {
        panic!("a gap in the numbers")
    };
    assert_eq!(file, "0000000002.log");
    files.insert("0000000002.log".to_owned(), second);
    files.remove("0000000001.log");
    // As after compaction: what the oldest introduced is unknown, and later records about it are skipped.
    assert!(recovered(&disk_of(&files), &script.next_options()).is_ok());
}

#[test]
fn another_slot_manifest_number_or_a_newer_format_is_refused() {
    let (script, _) = closed_log();
    let files = script.files();
    let disk = disk_of(&files);
    let other_slot = LogOptions { slot: 3, ..script.next_options() };
    let other_manifest = LogOptions { fingerprint: 1, ..script.next_options() };
    for other in [other_slot, other_manifest] {
        let error = recovered(&disk, &other).unwrap_err();
        assert_eq!(error.exit_code(), 12, "{error}");
    }
    let mut swapped = files.clone();
    let (first, second) = (files["0000000001.log"].clone(), files["0000000002.log"].clone());
    swapped.insert("0000000001.log".to_owned(), second);
    swapped.insert("0000000002.log".to_owned(), first);
    assert_eq!(recovered(&disk_of(&swapped), &script.next_options()).unwrap_err().exit_code(), 11);

    let mut newer = files.clone();
    let header = newer.get_mut("0000000001.log").unwrap();
    header[8] = 2;
    let crc = crc32c::crc32c(&header[..92]);
    header[92..96].copy_from_slice(&crc.to_le_bytes());
    let disk = disk_of(&newer);
    let error = recovered(&disk, &script.next_options()).unwrap_err();
    assert_eq!(error.exit_code(), 12);
    assert!(error.to_string().contains("format 2"), "{error}");
    assert!(disk.contents() == newer, "nothing was written");
}

#[test]
fn a_start_of_an_old_generation_and_blocks_of_an_older_file_never_replay() {
    let (script, _) = closed_log();
    let files = script.files();
    assert_eq!(recovered(&disk_of(&files), &script.options).unwrap_err().exit_code(), 11, "generation 1 again");

    // Generation 2 begins a segment on blocks that still hold records with the sequences that would come next.
    let disk = disk_of(&files);
    let mut jobs = Jobs::default();
    let (log, _) = Log::open(disk.clone(), script.next_options(), &mut jobs).unwrap();
    drop(log);
    let mut stale = disk.contents();
    let name = stale.keys().rfind(|name| name.ends_with(".log")).unwrap().clone();
    let first_sequence = u64::from_le_bytes(stale[&name][32..40].try_into().unwrap());
    let mut record =
        files["0000000001.log"][HEADER_BYTES..HEADER_BYTES + record_places(&files["0000000001.log"])[0].1].to_vec();
    record[16..24].copy_from_slice(&first_sequence.to_le_bytes());
    let length = u32::from_le_bytes(record[0..4].try_into().unwrap()) as usize;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&record[0..4]), &record[8..32 + length]);
    record[4..8].copy_from_slice(&crc.to_le_bytes());
    stale.get_mut(&name).unwrap()[HEADER_BYTES..HEADER_BYTES + record.len()].copy_from_slice(&record);
    let third = LogOptions { generation: 3, ..script.options.clone() };
    let (found, _) = recovered(&disk_of(&stale), &third).unwrap();
    assert_eq!(found, jobs.jobs, "job 1 comes back from an older file");
}

#[test]
fn a_body_that_looks_like_records_is_not_taken_for_some() {
    // A client keeps segments of a queue in a queue, aligned as they were, and the record around one is torn: neither
    // another generation nor sequences that cannot stand there prove anything.
    let (donor, _) = closed_log();
    let forged = donor.files()["0000000002.log"].clone();
    for (generation, records_before) in [(5, 1), (1, 60)] {
        for padding in 0..8 {
            let disk = SimDisk::new(1);
            let mut jobs = Jobs::default();
            let options = LogOptions { segment_bytes: 16_384, ..options(generation, SyncMode::Always) };
            let (mut log, _) = Log::open(disk.clone(), options.clone(), &mut jobs).unwrap();
            for id in 1..=records_before {
                assert!(put(&mut log, &mut jobs, id, b"tube", b"body"));
            }
            settle(&mut log, 1);
            let body = [&vec![0; padding], &forged[HEADER_BYTES..]].concat();
            assert!(put(&mut log, &mut jobs, 1_000, b"tube", &body));
            log.flush(2).unwrap();
            let mut files = disk.contents();
            let segment = files.get_mut("0000000001.log").unwrap();
            let (at, _) = record_places(segment)[records_before as usize];
            segment[at..at + 32].fill(0);
            let next = LogOptions { generation: generation + 1, ..options };
            let (found, report) = recovered(&disk_of(&files), &next).unwrap();
            assert_eq!(found.len() as u64, records_before);
            assert_eq!(report.torn.unwrap().records, 0);
        }
    }
}

#[test]
fn ids_are_passed_over_only_where_a_power_cut_may_have_lost_some() {
    for (sync, orderly, rebooted, skipped) in [
        (SyncMode::Always, false, true, 0),
        (INTERVAL, false, false, 0),
        (INTERVAL, false, true, 1_000_000),
        (INTERVAL, true, true, 0),
        (SyncMode::Never, false, true, 1_000_000),
        (SyncMode::Never, true, false, 0),
    ] {
        let mut script = Script::new(sync, 4_096);
        for id in 1..=5 {
            script.put(id, 50);
        }
        delete(&mut script.log, &mut script.jobs, 5);
        script.batch();
        if orderly {
            script.log.close(1 << 40).unwrap();
        }
        let boot_id = if rebooted { [8; 16] } else { script.options.boot_id };
        let next = LogOptions { boot_id, ..script.next_options() };
        let (_, report) = recovered(&script.disk, &next).unwrap();
        assert_eq!((report.skipped_ids, report.next_id), (skipped, 6 + skipped), "{sync:?} {orderly} {rebooted}");
    }
}

#[test]
fn the_id_counter_is_kept_when_every_job_is_gone() {
    let disk = SimDisk::new(5);
    for generation in 1..=4 {
        let mut jobs = Jobs::default();
        let options = options(generation, SyncMode::Always);
        let (mut log, report) = Log::open(disk.clone(), options, &mut jobs).unwrap();
        let first = u64::from(generation - 1) * 10 + 1;
        assert_eq!(report.next_id, first, "GT4");
        for id in first..first + 10 {
            assert!(put(&mut log, &mut jobs, id, b"tube", b"body"));
            delete(&mut log, &mut jobs, id);
            settle(&mut log, id);
        }
        log.close(1 << 40).unwrap();
    }
}
