//! What each process counts in its page of shared memory, how `stats` is made of all pages, and by which names status
//! and metrics show them.

use crate::figures::commands;
use crate::metrics::name;
use crate::outputs::LogFigures;
use nix::sys::resource::{UsageWho, getrusage};
use std::sync::atomic::Ordering;
use supervisor::{Page, Pages, Role};
use tubes_link::Writer;
use tubes_protocol::{CommandCounts, ServerStats};

/// Places in a page. Gauges of a frontend come first; they become 0 when it dies.
const CLIENTS: usize = 0;
const PRODUCERS: usize = 1;
const WORKERS: usize = 2;
const WAITING: usize = 3;
const TOTAL_CLIENTS: usize = 4;
/// 1 while a frontend accepts.
const ACCEPTS: usize = 5;
const COMMANDS: usize = 8;
const URGENT: usize = 40;
const READY: usize = 41;
const RESERVED: usize = 42;
const DELAYED: usize = 43;
const BURIED: usize = 44;
const TIMEOUTS: usize = 45;
const TOTAL_JOBS: usize = 46;
const TUBES: usize = 47;
const LOG_OLDEST: usize = 48;
const LOG_CURRENT: usize = 49;
const LOG_MIGRATED: usize = 50;
const LOG_WRITTEN: usize = 51;
const USER_US: usize = 56;
const SYSTEM_US: usize = 57;
const LINK_BATCHES: usize = 60;
const LINK_MESSAGES: usize = 61;
/// What status and metrics show of a log besides.
const LOG_BYTES: usize = 64;
const LOG_PENDING_BYTES: usize = 65;
const LOG_WRITTEN_BYTES: usize = 66;
const LOG_SYNCS: usize = 67;
const LOG_SYNCED_RECORDS: usize = 68;
const LOG_LAST_SYNC_MS: usize = 69;
const LOG_HAS_NO_SPACE: usize = 70;
const LINK_BACKLOG: usize = 80;

/// The process of a page has ended: what describes its present becomes what is so without it. Nobody is connected to a
/// frontend. The jobs of an owner with a log come back, reserved ones as ready; without one they are gone. Processor time
/// is counted with that of reaped processes from now on.
pub(crate) fn end(page: &Page<'_>, role: Role, has_log: bool) {
    if role == Role::Daemon {
        // Its page is not laid out here.
        return;
    }
    let load = |place: usize| page.counter(place).load(Ordering::Relaxed);
    for place in [USER_US, SYSTEM_US, LINK_BACKLOG] {
        store(page, place, 0);
    }
    if matches!(role, Role::Frontend | Role::Tubes) {
        [CLIENTS, PRODUCERS, WORKERS, WAITING, ACCEPTS].into_iter().for_each(|place| store(page, place, 0));
    }
    match (role.has_jobs(), has_log) {
        (true, true) => {
            store(page, READY, load(READY) + load(RESERVED));
            store(page, RESERVED, 0);
        }
        (true, false) => {
            [URGENT, READY, RESERVED, DELAYED, BURIED, TUBES].into_iter().for_each(|place| store(page, place, 0));
        }
        (false, _) => {}
    }
}

/// The figures of an owner, of a frontend, and of the process that is both, which status and metrics show, by the names
/// of [`crate::metrics`].
pub(crate) fn shown() -> Vec<(Role, &'static str, usize)> {
    let owner = [
        (name::JOBS_URGENT, URGENT),
        (name::JOBS_READY, READY),
        (name::JOBS_RESERVED, RESERVED),
        (name::JOBS_DELAYED, DELAYED),
        (name::JOBS_BURIED, BURIED),
        (name::JOB_TIMEOUTS, TIMEOUTS),
        (name::JOBS_PUT, TOTAL_JOBS),
        (name::TUBES, TUBES),
        (name::LOG_OLDEST_SEGMENT, LOG_OLDEST),
        (name::LOG_CURRENT_SEGMENT, LOG_CURRENT),
        (name::LOG_RECORDS_MIGRATED, LOG_MIGRATED),
        (name::LOG_RECORDS_WRITTEN, LOG_WRITTEN),
        (name::LOG_BYTES, LOG_BYTES),
        (name::LOG_PENDING_BYTES, LOG_PENDING_BYTES),
        (name::LOG_WRITTEN_BYTES, LOG_WRITTEN_BYTES),
        (name::LOG_SYNCS, LOG_SYNCS),
        (name::LOG_RECORDS_SYNCED, LOG_SYNCED_RECORDS),
        (name::LOG_LAST_SYNC_MS, LOG_LAST_SYNC_MS),
        (name::LOG_HAS_NO_SPACE, LOG_HAS_NO_SPACE),
    ];
    let frontend = [
        (name::CONNECTIONS, CLIENTS),
        (name::PRODUCERS, PRODUCERS),
        (name::WORKERS, WORKERS),
        (name::WAITING, WAITING),
        (name::CONNECTIONS_ACCEPTED, TOTAL_CLIENTS),
    ];
    let usage = [(name::CPU_USER_US, USER_US), (name::CPU_SYSTEM_US, SYSTEM_US)];
    let links = [
        (name::LINK_BACKLOG_BYTES, LINK_BACKLOG),
        (name::LINK_BATCHES, LINK_BATCHES),
        (name::LINK_MESSAGES, LINK_MESSAGES),
    ];
    // Commands count where they are understood.
    let commands = name::COMMANDS.iter().enumerate().map(|(number, name)| (*name, COMMANDS + number));
    let frontend: Vec<_> = frontend.into_iter().chain(commands).collect();
    let of_role = |role: Role, parts: &[&[(&'static str, usize)]]| {
        parts.concat().into_iter().map(move |(name, place)| (role, name, place)).collect::<Vec<_>>()
    };
    [
        of_role(Role::Owner, &[&owner, &usage, &links]),
        of_role(Role::Frontend, &[&frontend, &usage, &links]),
        of_role(Role::Tubes, &[&owner, &frontend, &usage]),
    ]
    .concat()
}

fn counts(places: [u64; 22]) -> CommandCounts {
    let [
        put,
        peek,
        peek_ready,
        peek_delayed,
        peek_buried,
        reserve,
        reserve_with_timeout,
        delete,
        release,
        use_tube,
        watch,
        ignore,
        bury,
        kick,
        touch,
        stats,
        stats_job,
        stats_tube,
        list_tubes,
        list_tube_used,
        list_tubes_watched,
        pause_tube,
    ] = places;
    CommandCounts {
        put,
        peek,
        peek_ready,
        peek_delayed,
        peek_buried,
        reserve,
        reserve_with_timeout,
        delete,
        release,
        use_tube,
        watch,
        ignore,
        bury,
        kick,
        touch,
        stats,
        stats_job,
        stats_tube,
        list_tubes,
        list_tube_used,
        list_tubes_watched,
        pause_tube,
    }
}

/// What a counter of this process was when its slot's former process left it: it counts on from there.
#[derive(Debug, Clone, Default)]
pub(crate) struct Base {
    commands: [u64; 22],
    total_clients: u64,
    timeouts: u64,
    total_jobs: u64,
    migrated: u64,
    written: u64,
    /// Batches and messages of links that have ended, of this process too.
    sent: (u64, u64),
    written_bytes: u64,
    syncs: u64,
    synced_records: u64,
}

impl Base {
    pub(crate) fn of(page: &Page<'_>) -> Self {
        let load = |place: usize| page.counter(place).load(Ordering::Relaxed);
        Base {
            commands: std::array::from_fn(|number| load(COMMANDS + number)),
            total_clients: load(TOTAL_CLIENTS),
            timeouts: load(TIMEOUTS),
            total_jobs: load(TOTAL_JOBS),
            migrated: load(LOG_MIGRATED),
            written: load(LOG_WRITTEN),
            sent: (load(LINK_BATCHES), load(LINK_MESSAGES)),
            written_bytes: load(LOG_WRITTEN_BYTES),
            syncs: load(LOG_SYNCS),
            synced_records: load(LOG_SYNCED_RECORDS),
        }
    }

    /// What the slot has counted before this process, added to what this process has.
    pub(crate) fn add_to(&self, stats: &mut ServerStats) {
        let mut commands = commands(&stats.commands);
        commands.iter_mut().zip(self.commands).for_each(|(count, base)| *count += base);
        stats.commands = counts(commands);
        stats.total_connections += self.total_clients;
        stats.job_timeouts += self.timeouts;
        stats.total_jobs += self.total_jobs;
        stats.binlog_records_migrated += self.migrated;
        stats.binlog_records_written += self.written;
    }

    /// A link has ended that has sent so many batches and messages.
    pub(crate) fn add_link(&mut self, sent: (u64, u64)) {
        self.sent = sum_of(self.sent, sent);
    }
}

fn sum_of(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    (one.0 + other.0, one.1 + other.1)
}

fn store(page: &Page<'_>, place: usize, value: u64) {
    page.counter(place).store(value, Ordering::Relaxed);
}

/// A frontend writes its page: commands understood, and the gauges `[clients, producers, workers, waiting, total]`.
pub(crate) fn write_frontend(page: &Page<'_>, base: &Base, counts: &CommandCounts, gauges: [u64; 5]) {
    for (number, count) in commands(counts).into_iter().enumerate() {
        store(page, COMMANDS + number, base.commands[number] + count);
    }
    for (place, gauge) in [CLIENTS, PRODUCERS, WORKERS, WAITING].into_iter().zip(gauges) {
        store(page, place, gauge);
    }
    store(page, TOTAL_CLIENTS, base.total_clients + gauges[4]);
}

/// An owner writes its page.
pub(crate) fn write_owner(page: &Page<'_>, base: &Base, stats: &ServerStats, log: Option<&LogFigures>) {
    if let Some(log) = log {
        write_log(page, base, log);
    }
    for (place, value) in [
        (URGENT, stats.current_jobs_urgent),
        (READY, stats.current_jobs_ready),
        (RESERVED, stats.current_jobs_reserved),
        (DELAYED, stats.current_jobs_delayed),
        (BURIED, stats.current_jobs_buried),
        (TIMEOUTS, base.timeouts + stats.job_timeouts),
        (TOTAL_JOBS, base.total_jobs + stats.total_jobs),
        (TUBES, stats.current_tubes),
    ] {
        store(page, place, value);
    }
}

/// A process that is owner and frontend writes its page.
pub(crate) fn write_tubes(page: &Page<'_>, base: &Base, stats: &ServerStats, log: Option<&LogFigures>) {
    let gauges = [
        stats.current_connections,
        stats.current_producers,
        stats.current_workers,
        stats.current_waiting,
        stats.total_connections,
    ];
    write_frontend(page, base, &stats.commands, gauges);
    write_owner(page, base, stats, log);
}

/// An owner or a frontend writes what it has sent: batches and messages of each link that it has now.
pub(crate) fn write_links(page: &Page<'_>, base: &Base, sent: impl Iterator<Item = (u64, u64)>) {
    let (batches, messages) = sent.fold(base.sent, sum_of);
    store(page, LINK_BATCHES, batches);
    store(page, LINK_MESSAGES, messages);
}

fn write_log(page: &Page<'_>, base: &Base, log: &LogFigures) {
    for (place, value) in [
        (LOG_OLDEST, log.oldest_segment),
        (LOG_CURRENT, log.current_segment),
        (LOG_MIGRATED, base.migrated + log.records_migrated),
        (LOG_WRITTEN, base.written + log.records_written),
        (LOG_BYTES, log.bytes),
        (LOG_PENDING_BYTES, log.pending_bytes),
        (LOG_WRITTEN_BYTES, base.written_bytes + log.written_bytes),
        (LOG_SYNCS, base.syncs + log.syncs),
        (LOG_SYNCED_RECORDS, base.synced_records + log.records_synced),
        (LOG_LAST_SYNC_MS, log.last_sync_ms),
        (LOG_HAS_NO_SPACE, log.has_no_space.into()),
    ] {
        store(page, place, value);
    }
}

/// Any process writes how many bytes its peers have not taken from its links.
pub(crate) fn write_link_backlog<'a>(page: &Page<'_>, writers: impl Iterator<Item = &'a Writer>) {
    let bytes: usize = writers.map(|writer| writer.backlog() + writer.large_backlog()).sum();
    store(page, LINK_BACKLOG, bytes as u64);
}

/// Any process writes the processor time it has used.
pub(crate) fn write_usage(page: &Page<'_>) {
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let micros = |time: nix::sys::time::TimeVal| {
            u64::try_from(time.tv_sec()).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_usec()).unwrap_or(0)
        };
        store(page, USER_US, micros(usage.user_time()));
        store(page, SYSTEM_US, micros(usage.system_time()));
    }
}

/// A frontend accepts from now on, until its process ends.
pub(crate) fn write_accepts(page: &Page<'_>) {
    store(page, ACCEPTS, 1);
}

/// Connected clients of each frontend that accepts.
pub(crate) fn clients_of_frontends(pages: &Pages) -> impl Iterator<Item = u64> {
    let load = |slot: u16, place: usize| pages.figures(Role::Frontend, slot).counter(place).load(Ordering::Relaxed);
    (0..pages.topology().frontends).filter(move |slot| load(*slot, ACCEPTS) > 0).map(move |slot| load(slot, CLIENTS))
}

/// `stats` of the whole server, as far as it stands in the pages.
pub(crate) fn sum(pages: &Pages, now_ns: u64) -> ServerStats {
    let owners = |place: usize| {
        (0..pages.topology().owners)
            .map(move |slot| pages.figures(Role::Owner, slot).counter(place).load(Ordering::Relaxed))
    };
    let server = pages.server();
    let (reaped_user, reaped_system) = server.reaped_us();
    ServerStats {
        current_jobs_urgent: pages.sum(URGENT),
        current_jobs_ready: pages.sum(READY),
        current_jobs_reserved: pages.sum(RESERVED),
        current_jobs_delayed: pages.sum(DELAYED),
        current_jobs_buried: pages.sum(BURIED),
        commands: counts(std::array::from_fn(|number| pages.sum(COMMANDS + number))),
        job_timeouts: pages.sum(TIMEOUTS),
        total_jobs: pages.sum(TOTAL_JOBS),
        current_tubes: pages.sum(TUBES),
        current_connections: pages.sum(CLIENTS),
        current_producers: pages.sum(PRODUCERS),
        current_workers: pages.sum(WORKERS),
        current_waiting: pages.sum(WAITING),
        total_connections: pages.sum(TOTAL_CLIENTS),
        pid: u32::try_from(server.supervisor_pid()).unwrap_or(0),
        rusage_utime: std::time::Duration::from_micros(reaped_user + pages.sum(USER_US)),
        rusage_stime: std::time::Duration::from_micros(reaped_system + pages.sum(SYSTEM_US)),
        uptime_s: now_ns.saturating_sub(server.started_boot_ns()) / 1_000_000_000,
        binlog_oldest_index: owners(LOG_OLDEST).filter(|number| *number > 0).min().unwrap_or(0),
        binlog_current_index: owners(LOG_CURRENT).max().unwrap_or(0),
        binlog_records_migrated: pages.sum(LOG_MIGRATED),
        binlog_records_written: pages.sum(LOG_WRITTEN),
        draining: server.is_draining(),
        ..ServerStats::default()
    }
}
