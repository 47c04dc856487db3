//! The text of a snapshot: Prometheus' text format, version 0.0.4.
//!
//! Owns: the table of families with their units and explanations. A figure that a server does not have is left out.

use std::fmt::Write as _;

use super::{Process, Snapshot, name};

/// What the answer says of its own kind.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
}

/// A family of samples, one for each process that has the figure.
struct Family {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    /// By how much figures are divided to get the base unit.
    per_unit: u64,
    /// Figures, and the label that tells them apart.
    samples: &'static [(&'static str, &'static str)],
}

const fn gauge(name: &'static str, help: &'static str, samples: &'static [(&'static str, &'static str)]) -> Family {
    Family { name, kind: Kind::Gauge, help, per_unit: 1, samples }
}

const fn counter(name: &'static str, help: &'static str, samples: &'static [(&'static str, &'static str)]) -> Family {
    Family { name, kind: Kind::Counter, help, per_unit: 1, samples }
}

const MS: u64 = 1_000;
const US: u64 = 1_000_000;

/// Families of all processes. Alerts on them are in the operations guide.
const FAMILIES: &[Family] = &[
    gauge("tenure_process_up", "1 while the slot has a process.", &[(name::UP, "")]),
    gauge("tenure_process_generation", "Which start of the slot its process is.", &[(name::GENERATION, "")]),
    counter(
        "tenure_process_restarts_total",
        "Restarts of the slot since the start of the server.",
        &[(name::RESTARTS, "")],
    ),
    Family {
        name: "tenure_process_cpu_seconds_total",
        kind: Kind::Counter,
        help: "Processor time of the present process of the slot.",
        per_unit: US,
        samples: &[(name::CPU_USER_US, "mode=\"user\""), (name::CPU_SYSTEM_US, "mode=\"system\"")],
    },
    gauge(
        "tenure_process_unanswered_pings",
        "Questions of the supervisor, one a second, that the process has not answered.",
        &[(name::UNANSWERED_PINGS, "")],
    ),
    gauge(
        "tenure_process_control_backlog_messages",
        "Messages of the supervisor that the process does not take.",
        &[(name::CONTROL_BACKLOG, "")],
    ),
    gauge(
        "tenure_link_backlog_bytes",
        "Bytes that the peers of the process have not taken from its links.",
        &[(name::LINK_BACKLOG_BYTES, "")],
    ),
    counter("tenure_link_batches_total", "Batches of messages sent over links.", &[(name::LINK_BATCHES, "")]),
    counter("tenure_link_messages_total", "Messages sent over links.", &[(name::LINK_MESSAGES, "")]),
    gauge(
        "tenure_jobs",
        "Jobs by state.",
        &[
            (name::JOBS_READY, "state=\"ready\""),
            (name::JOBS_RESERVED, "state=\"reserved\""),
            (name::JOBS_DELAYED, "state=\"delayed\""),
            (name::JOBS_BURIED, "state=\"buried\""),
        ],
    ),
    gauge("tenure_jobs_urgent", "Ready jobs with a priority below 1024.", &[(name::JOBS_URGENT, "")]),
    counter("tenure_jobs_put_total", "Jobs accepted.", &[(name::JOBS_PUT, "")]),
    counter("tenure_job_timeouts_total", "Reservations whose time to run has ended.", &[(name::JOB_TIMEOUTS, "")]),
    gauge("tenure_tubes", "Tubes that exist.", &[(name::TUBES, "")]),
    gauge("tenure_connections", "Connections of clients.", &[(name::CONNECTIONS, "")]),
    gauge("tenure_producers", "Connections that have put a job.", &[(name::PRODUCERS, "")]),
    gauge("tenure_workers", "Connections that have reserved a job.", &[(name::WORKERS, "")]),
    gauge("tenure_waiting", "Connections that wait in a reserve.", &[(name::WAITING, "")]),
    counter("tenure_connections_accepted_total", "Connections accepted.", &[(name::CONNECTIONS_ACCEPTED, "")]),
    gauge("tenure_log_oldest_segment", "Number of the oldest segment of the log.", &[(name::LOG_OLDEST_SEGMENT, "")]),
    gauge(
        "tenure_log_current_segment",
        "Number of the segment that the log is written to.",
        &[(name::LOG_CURRENT_SEGMENT, "")],
    ),
    gauge("tenure_log_size_bytes", "Length of all segments of the log.", &[(name::LOG_BYTES, "")]),
    gauge(
        "tenure_log_pending_bytes",
        "Records that wait in memory for a sync or a segment.",
        &[(name::LOG_PENDING_BYTES, "")],
    ),
    counter("tenure_log_written_bytes_total", "Bytes written to the log.", &[(name::LOG_WRITTEN_BYTES, "")]),
    counter(
        "tenure_log_records_written_total",
        "Records written to the log, copies included.",
        &[(name::LOG_RECORDS_WRITTEN, "")],
    ),
    counter(
        "tenure_log_records_migrated_total",
        "Records that compaction has copied.",
        &[(name::LOG_RECORDS_MIGRATED, "")],
    ),
    counter("tenure_log_records_synced_total", "Records that syncs have covered.", &[(name::LOG_RECORDS_SYNCED, "")]),
    counter("tenure_log_syncs_total", "Syncs of the log that have returned.", &[(name::LOG_SYNCS, "")]),
    Family {
        name: "tenure_log_last_sync_timestamp_seconds",
        kind: Kind::Gauge,
        help: "Wall time at which the last sync returned, since 1970; 0 before the first.",
        per_unit: MS,
        samples: &[(name::LOG_LAST_SYNC_MS, "")],
    },
    Family {
        name: "tenure_log_sync_duration_seconds",
        kind: Kind::Gauge,
        help: "Length so far of the sync that is under way; 0 if none is.",
        per_unit: MS,
        samples: &[(name::LOG_IN_SYNC_MS, "")],
    },
    gauge("tenure_log_out_of_space", "1 while puts are refused for want of space.", &[(name::LOG_HAS_NO_SPACE, "")]),
    counter(
        "tenure_log_write_failures_total",
        "Processes that a failed write or sync of the log has ended.",
        &[(name::LOG_WRITE_FAILURES, "")],
    ),
];

/// The whole answer to a scrape.
pub(super) fn exposition(snapshot: &Snapshot) -> String {
    let mut text = Text(String::with_capacity(16 * 1024));
    let about = |key: &str| snapshot.about.get(key).map_or("", String::as_str);
    text.head("tenure_build_info", Kind::Gauge, "Version of Tenure, and of beanstalkd that it is compatible with.");
    let version = format!("version=\"{}\",compatible=\"1.13\"", escaped(about(name::VERSION)));
    text.sample("tenure_build_info", &[&version], "1");
    text.head("tenure_server_info", Kind::Gauge, "Mode of the server and id of its data.");
    let server = format!("mode=\"{}\",instance=\"{}\"", escaped(about(name::MODE)), escaped(about(name::INSTANCE)));
    text.sample("tenure_server_info", &[&server], "1");
    text.one("tenure_uptime_seconds", "Time since the start of the server.", &divided(snapshot.uptime_ms, MS));
    for (name, help, holds) in [
        ("tenure_serving", "1 while clients are served.", snapshot.is_serving),
        ("tenure_stopping", "1 from the beginning of the stop.", snapshot.is_stopping),
        ("tenure_draining", "1 while new jobs are refused.", snapshot.is_draining),
        ("tenure_drained", "1 when no process accepts a job.", snapshot.is_drained),
    ] {
        text.one(name, help, if holds { "1" } else { "0" });
    }
    text.ack_level(about(name::ACK_LEVEL), about(name::SYNC_INTERVAL_MS));
    text.ended_cpu(snapshot.ended_cpu_us);
    text.conditions(&snapshot.processes);
    FAMILIES.iter().for_each(|family| text.family(family, &snapshot.processes));
    text.commands(&snapshot.processes);
    text.0
}

struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[&str], value: &str) {
        let mut labels = labels.iter().filter(|label| !label.is_empty()).peekable();
        self.0.push_str(name);
        if labels.peek().is_some() {
            self.0.push('{');
            while let Some(label) = labels.next() {
                self.0.push_str(label);
                if labels.peek().is_some() {
                    self.0.push(',');
                }
            }
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    fn one(&mut self, name: &str, help: &str, value: &str) {
        self.head(name, Kind::Gauge, help);
        self.sample(name, &[], value);
    }

    fn ack_level(&mut self, in_force: &str, sync_interval_ms: &str) {
        let name = "tenure_log_ack_level";
        self.head(name, Kind::Gauge, "1 for what an answered command survives: see the log's sync modes.");
        for level in name::ACK_LEVELS {
            let value = if level == in_force { "1" } else { "0" };
            self.sample(name, &[&format!("level=\"{level}\"")], value);
        }
        if let Ok(interval_ms) = sync_interval_ms.parse() {
            let help = "Longest time between a write of the log and the sync that covers it.";
            self.one("tenure_log_sync_interval_seconds", help, &divided(interval_ms, MS));
        }
    }

    fn ended_cpu(&mut self, (user_us, system_us): (u64, u64)) {
        let name = "tenure_ended_processes_cpu_seconds_total";
        self.head(name, Kind::Counter, "Processor time of all processes of the server that have ended.");
        self.sample(name, &["mode=\"user\""], &divided(user_us, US));
        self.sample(name, &["mode=\"system\""], &divided(system_us, US));
    }

    fn conditions(&mut self, processes: &[Process]) {
        let supervised = || processes.iter().filter_map(|process| Some((process, process.condition?)));
        if supervised().next().is_none() {
            return;
        }
        let name = "tenure_process_condition";
        self.head(name, Kind::Gauge, "1 for what the slot is doing.");
        for (process, condition) in supervised() {
            for known in name::CONDITIONS {
                let value = if known == condition { "1" } else { "0" };
                self.sample(name, &[&place(process), &format!("condition=\"{known}\"")], value);
            }
        }
        let name = "tenure_process_ready";
        self.head(name, Kind::Gauge, "1 while the slot serves.");
        for (process, condition) in supervised() {
            self.sample(name, &[&place(process)], if condition == "ready" { "1" } else { "0" });
        }
    }

    fn family(&mut self, family: &Family, processes: &[Process]) {
        let has = |process: &&Process| family.samples.iter().any(|(figure, _)| process.figures.contains_key(*figure));
        let mut having = processes.iter().filter(has).peekable();
        if having.peek().is_none() {
            return;
        }
        self.head(family.name, family.kind, family.help);
        for process in having {
            let place = place(process);
            for (figure, label) in family.samples {
                if let Some(value) = process.figures.get(*figure) {
                    self.sample(family.name, &[&place, label], &divided(*value, family.per_unit));
                }
            }
        }
    }

    /// Summed over all processes: which frontend a client came to says nothing.
    fn commands(&mut self, processes: &[Process]) {
        let name = "tenure_commands_total";
        self.head(name, Kind::Counter, "Commands understood, also those that were refused.");
        for command in name::COMMANDS {
            let sum: u64 = processes.iter().filter_map(|process| process.figures.get(command)).sum();
            let word = command.strip_prefix("cmd-").unwrap_or(command);
            self.sample(name, &[&format!("command=\"{word}\"")], &sum.to_string());
        }
    }
}

fn place(process: &Process) -> String {
    format!("role=\"{}\",slot=\"{}\"", process.role, process.slot)
}

/// `value` in its base unit, exactly.
fn divided(value: u64, per_unit: u64) -> String {
    if per_unit == 1 {
        return value.to_string();
    }
    let digits = per_unit.ilog10() as usize;
    format!("{}.{:0digits$}", value / per_unit, value % per_unit)
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_is_missing_is_left_out_and_one_that_is_there_has_its_unit() {
        let owner = Process {
            role: "owner",
            slot: 3,
            condition: Some("ready"),
            figures: [(name::CPU_USER_US.to_owned(), 1_500_000), (name::JOBS_READY.to_owned(), 7)].into(),
        };
        let snapshot = Snapshot {
            about: [(name::VERSION.to_owned(), "1\"\\2".to_owned())].into(),
            uptime_ms: 61_005,
            processes: vec![owner],
            ..Snapshot::default()
        };
        let text = exposition(&snapshot);
        for line in [
            "tenure_build_info{version=\"1\\\"\\\\2\",compatible=\"1.13\"} 1",
            "tenure_uptime_seconds 61.005",
            "tenure_process_cpu_seconds_total{role=\"owner\",slot=\"3\",mode=\"user\"} 1.500000",
            "tenure_process_condition{role=\"owner\",slot=\"3\",condition=\"ready\"} 1",
            "tenure_process_condition{role=\"owner\",slot=\"3\",condition=\"failed\"} 0",
            "tenure_jobs{role=\"owner\",slot=\"3\",state=\"ready\"} 7",
            "tenure_commands_total{command=\"put\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("tenure_connections") && !text.contains("state=\"buried\""), "{text}");
    }

    #[test]
    fn names_follow_the_conventions() {
        for family in FAMILIES {
            let is_counter = family.kind == Kind::Counter;
            assert_eq!(family.name.ends_with("_total"), is_counter, "{}", family.name);
            assert!(family.help.ends_with('.') && !family.help.contains(['\\', '\n']), "{}", family.name);
            assert_eq!(family.name.contains("_seconds"), family.per_unit != 1, "{}", family.name);
        }
    }
}
