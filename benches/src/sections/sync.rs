//! Records for each sync with `-f 0`, and what a sync costs on this disk.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{FallocateFlags, fallocate, fdatasync};

use super::Effort;
use crate::generator::{Generator, Responder};
use crate::peer::{Contender, LogMode, Programs};
use crate::process::{Folder, Server};
use crate::results::{DiskSync, SyncCount, Syncs};
use crate::round::Lab;
use crate::workload::{Mix, Workload};

const PROBE_FILE_BYTES: u64 = 10 << 20;
/// About the size of a log record for a body of 64 bytes.
const PROBE_WRITE_BYTES: usize = 160;
const PROBE_SYNCS: usize = 400;
const COUNT_LENGTH: Duration = Duration::from_secs(1);

pub(super) fn measure(lab: &Lab, effort: Effort) -> Result<Syncs> {
    Programs::need_tool("strace")?;
    let disk = vec![probe(&lab.folder, Space::Allocated, effort)?, probe(&lab.folder, Space::Written, effort)?];
    for space in &disk {
        eprintln!("sync: the disk, {}: median {:.0} µs, 99 % {:.0} µs", space.space, space.median_us, space.p99_us);
    }
    let mut counts = Vec::new();
    for depth in [1, 16] {
        for contender in [Contender::Tenure, Contender::Beanstalkd] {
            let count = count(lab, contender, depth)?;
            eprintln!("sync: {contender}, depth {depth}: {} records in {} syncs", count.records, count.syncs);
            counts.push(count);
        }
    }
    Ok(Syncs { disk, counts })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    Allocated,
    Written,
}

/// Appends small writes to a file in `parent` and times the sync of each.
fn probe(parent: &Path, space: Space, effort: Effort) -> Result<DiskSync> {
    let folder = Folder::create(parent, "disk")?;
    let path = folder.path().join("probe");
    let mut file = fs::File::create(&path).with_context(|| format!("create {}", path.display()))?;
    fallocate(&file, FallocateFlags::empty(), 0, PROBE_FILE_BYTES).context("allocate the probe's file")?;
    if space == Space::Written {
        file.write_all(&vec![0; usize::try_from(PROBE_FILE_BYTES)?])?;
        std::io::Seek::rewind(&mut file)?;
    }
    file.sync_all()?;
    let syncs = if effort.quick { PROBE_SYNCS / 10 } else { PROBE_SYNCS };
    let mut times_us = Vec::with_capacity(syncs);
    for _ in 0..syncs {
        file.write_all(&[b'x'; PROBE_WRITE_BYTES])?;
        let begin = Instant::now();
        fdatasync(&file).context("sync the probe's file")?;
        times_us.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    times_us.sort_by(f64::total_cmp);
    let space = match space {
        Space::Allocated => "into allocated space",
        Space::Written => "over written space",
    };
    Ok(DiskSync { space: space.to_owned(), median_us: times_us[syncs / 2], p99_us: times_us[syncs * 99 / 100] })
}

/// Counts the syncs of a short run of puts at 128 connections under strace, which stops the server at syncs only.
fn count(lab: &Lab, contender: Contender, depth: usize) -> Result<SyncCount> {
    let folder = Folder::create(&lab.folder, "strace")?;
    let (data, summary) = (folder.path().join("data"), folder.path().join("summary"));
    fs::create_dir(&data)?;
    let options = ["-f", "-c", "--seccomp-bpf", "-e", "trace=fsync,fdatasync", "-o"].map(Into::into);
    let options = [&options[..], &[summary.clone().into()]].concat();
    let command = lab.programs.queue(contender, LogMode::Always, &data).wrapped("strace", &options);
    let server = Server::start(&command, folder.path(), lab.cores)?;
    let workload = Workload { mix: Mix::Put, connections: 128, depth, body_bytes: 64, tubes: 1 };
    let mut generator = Generator::connect(server.address(), &workload, Responder::Queue)?;
    generator.run_for(COUNT_LENGTH, u64::MAX).with_context(|| format!("{contender} under strace"))?;
    let records = statistic(server.address(), "binlog-records-written")?;
    drop(generator);
    server.stop_wrapped()?;
    let syncs = calls_in_summary(&summary)?;
    Ok(SyncCount { contender, depth, connections: workload.connections, records, syncs })
}

/// The number of calls that a summary of `strace -c` adds up.
pub(super) fn calls_in_summary(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    // % time, seconds, usecs/call, calls, errors if there are any, "total"
    let total = text.lines().find(|line| line.trim_end().ends_with(" total"));
    let calls = total.and_then(|line| line.split_whitespace().nth(3));
    calls.and_then(|calls| calls.parse().ok()).with_context(|| format!("no total in the summary of strace: {text:?}"))
}

/// A number of the server's `stats`.
pub(super) fn statistic(address: std::net::SocketAddr, key: &str) -> Result<u64> {
    let mut stream = TcpStream::connect(address).context("connect for stats")?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(b"stats\r\nquit\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text).context("read stats")?;
    ensure!(text.starts_with("OK "), "stats was answered {text:?}");
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
    line.and_then(|value| value.trim().parse().ok()).with_context(|| format!("stats has no {key}"))
}
