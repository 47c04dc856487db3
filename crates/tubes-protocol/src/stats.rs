//! The text of `stats`, `stats-job` and `stats-tube`.
//!
//! Exactly the original's keys in the original's order: clients compare the set. Durations are whole seconds, truncated.

use std::time::Duration;

/// Where a job stands, as clients name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Can be reserved.
    Ready,
    /// Held by a client.
    Reserved,
    /// Waits for its delay.
    Delayed,
    /// Set aside until kicked.
    Buried,
}

impl State {
    /// The word of `stats-job`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            State::Ready => "ready",
            State::Reserved => "reserved",
            State::Delayed => "delayed",
            State::Buried => "buried",
        }
    }
}

/// `stats-job`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is the key of the same name in the protocol; seconds where a duration")]
pub struct JobStats<'a> {
    pub id: u64,
    pub tube: &'a [u8],
    pub state: State,
    pub pri: u32,
    pub age: u64,
    pub delay: u32,
    pub ttr: u32,
    pub time_left: u64,
    pub file: u32,
    pub reserves: u32,
    pub timeouts: u32,
    pub releases: u32,
    pub buries: u32,
    pub kicks: u32,
}

/// `stats-tube`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is the key of the same name in the protocol; seconds where a duration")]
pub struct TubeStats<'a> {
    pub name: &'a [u8],
    pub current_jobs_urgent: u64,
    pub current_jobs_ready: u64,
    pub current_jobs_reserved: u64,
    pub current_jobs_delayed: u64,
    pub current_jobs_buried: u64,
    pub total_jobs: u64,
    pub current_using: u64,
    pub current_watching: u64,
    pub current_waiting: u64,
    pub cmd_delete: u64,
    pub cmd_pause_tube: u64,
    pub pause: u32,
    pub pause_time_left: u64,
}

/// How often each command was understood since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is the key `cmd-…` of the same name in the protocol")]
pub struct CommandCounts {
    pub put: u64,
    pub peek: u64,
    pub peek_ready: u64,
    pub peek_delayed: u64,
    pub peek_buried: u64,
    pub reserve: u64,
    pub reserve_with_timeout: u64,
    pub delete: u64,
    pub release: u64,
    pub use_tube: u64,
    pub watch: u64,
    pub ignore: u64,
    pub bury: u64,
    pub kick: u64,
    pub touch: u64,
    pub stats: u64,
    pub stats_job: u64,
    pub stats_tube: u64,
    pub list_tubes: u64,
    pub list_tube_used: u64,
    pub list_tubes_watched: u64,
    pub pause_tube: u64,
}

/// `stats`.
#[derive(Debug, Clone, PartialEq, Default)]
#[expect(missing_docs, reason = "each field is the key of the same name in the protocol")]
pub struct ServerStats {
    pub current_jobs_urgent: u64,
    pub current_jobs_ready: u64,
    pub current_jobs_reserved: u64,
    pub current_jobs_delayed: u64,
    pub current_jobs_buried: u64,
    pub commands: CommandCounts,
    pub job_timeouts: u64,
    pub total_jobs: u64,
    pub max_job_size: u32,
    pub current_tubes: u64,
    pub current_connections: u64,
    pub current_producers: u64,
    pub current_workers: u64,
    pub current_waiting: u64,
    pub total_connections: u64,
    pub pid: u32,
    pub rusage_utime: Duration,
    pub rusage_stime: Duration,
    pub uptime_s: u64,
    pub binlog_oldest_index: u64,
    pub binlog_current_index: u64,
    pub binlog_records_migrated: u64,
    pub binlog_records_written: u64,
    pub binlog_max_size: u64,
    pub draining: bool,
    pub id: String,
    pub hostname: String,
    pub os: String,
    pub platform: String,
}

impl JobStats<'_> {
    /// Appends the text.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut text = Text::begin(out);
        text.number("id", self.id);
        text.quoted("tube", self.tube);
        text.bare("state", self.state.word());
        text.number("pri", self.pri);
        text.number("age", self.age);
        text.number("delay", self.delay);
        text.number("ttr", self.ttr);
        text.number("time-left", self.time_left);
        text.number("file", self.file);
        text.number("reserves", self.reserves);
        text.number("timeouts", self.timeouts);
        text.number("releases", self.releases);
        text.number("buries", self.buries);
        text.number("kicks", self.kicks);
    }
}

impl TubeStats<'_> {
    /// Appends the text.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut text = Text::begin(out);
        text.quoted("name", self.name);
        text.number("current-jobs-urgent", self.current_jobs_urgent);
        text.number("current-jobs-ready", self.current_jobs_ready);
        text.number("current-jobs-reserved", self.current_jobs_reserved);
        text.number("current-jobs-delayed", self.current_jobs_delayed);
        text.number("current-jobs-buried", self.current_jobs_buried);
        text.number("total-jobs", self.total_jobs);
        text.number("current-using", self.current_using);
        text.number("current-watching", self.current_watching);
        text.number("current-waiting", self.current_waiting);
        text.number("cmd-delete", self.cmd_delete);
        text.number("cmd-pause-tube", self.cmd_pause_tube);
        text.number("pause", self.pause);
        text.number("pause-time-left", self.pause_time_left);
    }
}

impl ServerStats {
    /// Appends the text.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut text = Text::begin(out);
        text.number("current-jobs-urgent", self.current_jobs_urgent);
        text.number("current-jobs-ready", self.current_jobs_ready);
        text.number("current-jobs-reserved", self.current_jobs_reserved);
        text.number("current-jobs-delayed", self.current_jobs_delayed);
        text.number("current-jobs-buried", self.current_jobs_buried);
        let commands = &self.commands;
        text.number("cmd-put", commands.put);
        text.number("cmd-peek", commands.peek);
        text.number("cmd-peek-ready", commands.peek_ready);
        text.number("cmd-peek-delayed", commands.peek_delayed);
        text.number("cmd-peek-buried", commands.peek_buried);
        text.number("cmd-reserve", commands.reserve);
        text.number("cmd-reserve-with-timeout", commands.reserve_with_timeout);
        text.number("cmd-delete", commands.delete);
        text.number("cmd-release", commands.release);
        text.number("cmd-use", commands.use_tube);
        text.number("cmd-watch", commands.watch);
        text.number("cmd-ignore", commands.ignore);
        text.number("cmd-bury", commands.bury);
        text.number("cmd-kick", commands.kick);
        text.number("cmd-touch", commands.touch);
        text.number("cmd-stats", commands.stats);
        text.number("cmd-stats-job", commands.stats_job);
        text.number("cmd-stats-tube", commands.stats_tube);
        text.number("cmd-list-tubes", commands.list_tubes);
        text.number("cmd-list-tube-used", commands.list_tube_used);
        text.number("cmd-list-tubes-watched", commands.list_tubes_watched);
        text.number("cmd-pause-tube", commands.pause_tube);
        text.number("job-timeouts", self.job_timeouts);
        text.number("total-jobs", self.total_jobs);
        text.number("max-job-size", self.max_job_size);
        text.number("current-tubes", self.current_tubes);
        text.number("current-connections", self.current_connections);
        text.number("current-producers", self.current_producers);
        text.number("current-workers", self.current_workers);
        text.number("current-waiting", self.current_waiting);
        text.number("total-connections", self.total_connections);
        text.number("pid", self.pid);
        text.quoted("version", crate::PROTOCOL_VERSION.as_bytes());
        text.bare("rusage-utime", &seconds(self.rusage_utime));
        text.bare("rusage-stime", &seconds(self.rusage_stime));
        text.number("uptime", self.uptime_s);
        text.number("binlog-oldest-index", self.binlog_oldest_index);
        text.number("binlog-current-index", self.binlog_current_index);
        text.number("binlog-records-migrated", self.binlog_records_migrated);
        text.number("binlog-records-written", self.binlog_records_written);
        text.number("binlog-max-size", self.binlog_max_size);
        text.bare("draining", if self.draining { "true" } else { "false" });
        text.bare("id", &self.id);
        text.quoted("hostname", self.hostname.as_bytes());
        text.quoted("os", self.os.as_bytes());
        text.quoted("platform", self.platform.as_bytes());
    }
}

fn seconds(duration: Duration) -> String {
    format!("{}.{:06}", duration.as_secs(), duration.subsec_micros())
}

struct Text<'a>(&'a mut Vec<u8>);

impl<'a> Text<'a> {
    fn begin(out: &'a mut Vec<u8>) -> Self {
        out.extend_from_slice(b"---\n");
        Text(out)
    }

    fn key(&mut self, key: &str) {
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b": ");
    }

    fn number(&mut self, key: &str, value: impl Into<u64>) {
        self.bare(key, itoa::Buffer::new().format(value.into()));
    }

    fn bare(&mut self, key: &str, value: &str) {
        self.key(key);
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(b'\n');
    }

    /// Backslash and quote are escaped and control bytes left out, so that a host name cannot break the line.
    fn quoted(&mut self, key: &str, value: &[u8]) {
        self.key(key);
        self.0.push(b'"');
        for byte in value {
            match byte {
                b'"' | b'\\' => self.0.extend_from_slice(&[b'\\', *byte]),
                0..=31 | 127 => {}
                byte => self.0.push(*byte),
            }
        }
        self.0.extend_from_slice(b"\"\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn job_stats_read_as_the_original_writes_them() {
        let stats = JobStats {
            id: 3,
            tube: b"a",
            state: State::Reserved,
            pri: 4_294_967_295,
            age: 1,
            delay: 2,
            ttr: 3,
            time_left: 2,
            file: 0,
            reserves: 1,
            timeouts: 0,
            releases: 0,
            buries: 0,
            kicks: 0,
        };
        let mut out = Vec::new();
        stats.encode(&mut out);
        expect![[r#"
            ---
            id: 3
            tube: "a"
            state: reserved
            pri: 4294967295
            age: 1
            delay: 2
            ttr: 3
            time-left: 2
            file: 0
            reserves: 1
            timeouts: 0
            releases: 0
            buries: 0
            kicks: 0
        "#]]
        .assert_eq(&String::from_utf8(out).unwrap());
    }

    #[test]
    fn a_host_name_cannot_break_out_of_its_line() {
        let mut out = Vec::new();
        ServerStats { hostname: "a\"b\\c\nd: e".into(), ..ServerStats::default() }.encode(&mut out);
        assert!(String::from_utf8(out).unwrap().contains("\nhostname: \"a\\\"b\\\\cd: e\"\n"));
    }

    #[test]
    fn processor_time_has_six_decimals() {
        assert_eq!(seconds(Duration::from_micros(1_000_042)), "1.000042");
    }
}
