//! What each process counts in its page of shared memory, and how `stats` is made of all pages.

use nix::sys::resource::{UsageWho, getrusage};
use std::sync::atomic::Ordering;
use supervisor::{Page, Pages, Role, ShownFigure};
use tubes_protocol::{CommandCounts, ServerStats};

/// Places in a page. Gauges of a frontend come first; they become 0 when it dies.
const CLIENTS: usize = 0;
const PRODUCERS: usize = 1;
const WORKERS: usize = 2;
const WAITING: usize = 3;
const TOTAL_CLIENTS: usize = 4;
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

/// The figures that describe a frontend's present.
pub(crate) const FRONTEND_GAUGES: [usize; 6] = [CLIENTS, PRODUCERS, WORKERS, WAITING, USER_US, SYSTEM_US];

/// What operators see of each process.
pub(crate) const SHOWN_FIGURES: [ShownFigure; 2] = [
    ShownFigure { name: "link_batches", help: "Batches of messages sent over links.", counter: LINK_BATCHES },
    ShownFigure { name: "link_messages", help: "Messages sent over links.", counter: LINK_MESSAGES },
];

/// The commands in the order of their places.
fn commands(counts: &CommandCounts) -> [u64; 22] {
    let c = counts;
    [
        c.put,
        c.peek,
        c.peek_ready,
        c.peek_delayed,
        c.peek_buried,
        c.reserve,
        c.reserve_with_timeout,
        c.delete,
        c.release,
        c.use_tube,
        c.watch,
        c.ignore,
        c.bury,
        c.kick,
        c.touch,
        c.stats,
        c.stats_job,
        c.stats_tube,
        c.list_tubes,
        c.list_tube_used,
        c.list_tubes_watched,
        c.pause_tube,
    ]
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
        }
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
pub(crate) fn write_owner(page: &Page<'_>, base: &Base, stats: &ServerStats) {
    for (place, value) in [
        (URGENT, stats.current_jobs_urgent),
        (READY, stats.current_jobs_ready),
        (RESERVED, stats.current_jobs_reserved),
        (DELAYED, stats.current_jobs_delayed),
        (BURIED, stats.current_jobs_buried),
        (TIMEOUTS, base.timeouts + stats.job_timeouts),
        (TOTAL_JOBS, base.total_jobs + stats.total_jobs),
        (TUBES, stats.current_tubes),
        (LOG_OLDEST, stats.binlog_oldest_index),
        (LOG_CURRENT, stats.binlog_current_index),
        (LOG_MIGRATED, base.migrated + stats.binlog_records_migrated),
        (LOG_WRITTEN, base.written + stats.binlog_records_written),
    ] {
        store(page, place, value);
    }
}

/// An owner or a frontend writes what it has sent: batches and messages of each link that it has now.
pub(crate) fn write_links(page: &Page<'_>, base: &Base, sent: impl Iterator<Item = (u64, u64)>) {
    let (batches, messages) = sent.fold(base.sent, sum_of);
    store(page, LINK_BATCHES, batches);
    store(page, LINK_MESSAGES, messages);
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

/// Connected clients of each frontend.
pub(crate) fn clients_of_frontends(pages: &Pages) -> impl Iterator<Item = u64> {
    (0..pages.frontends()).map(|slot| pages.figures(Role::Frontend, slot).counter(CLIENTS).load(Ordering::Relaxed))
}

/// `stats` of the whole server, as far as it stands in the pages.
pub(crate) fn sum(pages: &Pages, now_ns: u64) -> ServerStats {
    let owners = |place: usize| {
        (0..pages.owners()).map(move |slot| pages.figures(Role::Owner, slot).counter(place).load(Ordering::Relaxed))
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
