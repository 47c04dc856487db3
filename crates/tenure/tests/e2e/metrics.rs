//! Figures for Prometheus (S9, S37): their text, where they come from, and what the listener withstands.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use testing::process::{Folder, Launch, Server, free_port, wait_until};

use super::tubes;

/// Longest time that a test waits for one answer.
const LIMIT: Duration = Duration::from_secs(30);

/// A server with metrics, in one process or in several.
struct Observed {
    server: Server,
    port: u16,
}

const MULTI: [&str; 4] = ["--owners", "2", "--frontends", "2"];

/// Starts a server and waits until it serves.
fn observed(launch: Launch, flags: &[&str]) -> Observed {
    let port = free_port();
    let server = launch.with(["--metrics", &port.to_string()]).with(flags).start();
    let observed = Observed { server, port };
    // Until the supervisor can be asked the answer is 503.
    wait_until("it serves", || {
        let answer = observed.send("GET /metrics HTTP/1.0\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 ") || answer.starts_with("HTTP/1.1 503 "), "{answer}");
        answer.contains("\ntenure_serving 1\n")
    });
    observed
}

impl Observed {
    /// Sends a request and returns the whole answer.
    fn send(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the listener is there");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        stream.write_all(request.as_bytes()).expect("the request is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer comes");
        answer
    }

    /// The figures of one scrape, each under its name with labels.
    fn scrape(&self) -> BTreeMap<String, f64> {
        let answer = self.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
        parse(body)
    }

    fn until(&self, what: &str, holds: impl Fn(&BTreeMap<String, f64>) -> bool) -> BTreeMap<String, f64> {
        let mut found = BTreeMap::new();
        wait_until(what, || {
            found = self.scrape();
            holds(&found)
        });
        found
    }
}

/// Reads the text format strictly: each family has one HELP and one TYPE before all of its samples, no sample stands
/// twice, labels are quoted and escaped, counters end in `_total`.
fn parse(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n'), "the last line is complete");
    let (mut samples, mut families) = (BTreeMap::new(), BTreeMap::new());
    let mut helped = None;
    let mut current = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a name and its explanation");
            assert!(!help.is_empty());
            helped = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and its kind");
            assert_eq!(helped.as_deref(), Some(name), "HELP stands before TYPE");
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(families.insert(name.to_owned(), 0).is_none(), "{name} has two families");
            current = Some(name.to_owned());
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a series and its value");
            let name = series.split('{').next().expect("a name");
            assert!(name.starts_with("tenure_"), "{line}");
            assert!(name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase() || byte.is_ascii_digit()));
            assert_eq!(current.as_deref(), Some(name), "a sample outside its family");
            *families.get_mut(name).expect("its family") += 1;
            if let Some(labels) = series.strip_prefix(name).filter(|labels| !labels.is_empty()) {
                let labels = labels.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).expect("braces");
                check_labels(labels);
            }
            let value: f64 = value.parse().expect("a number");
            assert!(value.is_finite() && value >= 0.0, "{line}");
            assert!(samples.insert(series.to_owned(), value).is_none(), "{series} stands twice");
        }
    }
    assert!(families.values().all(|count| *count > 0), "a family without samples: {families:?}");
    samples
}

fn check_labels(mut labels: &str) {
    loop {
        let (name, rest) = labels.split_once("=\"").expect("a label and its value");
        assert!(!name.is_empty() && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()), "{name}");
        let mut bytes = rest.bytes().enumerate();
        let end = loop {
            match bytes.next().expect("a closing quote") {
                (_, b'\\') => assert!(matches!(bytes.next(), Some((_, b'\\' | b'"' | b'n')))),
                (at, b'"') => break at,
                (_, byte) => assert_ne!(byte, b'\n'),
            }
        };
        match rest[end + 1..].strip_prefix(',') {
            Some(more) => labels = more,
            None => return assert_eq!(&rest[end + 1..], ""),
        }
    }
}

/// The sum over all series of a family that have all these labels.
fn sum(samples: &BTreeMap<String, f64>, name: &str, labels: &[&str]) -> f64 {
    let is_of =
        |series: &str| series.split('{').next() == Some(name) && labels.iter().all(|label| series.contains(label));
    samples.iter().filter(|(series, _)| is_of(series)).map(|(_, value)| value).sum()
}

fn use_it(server: &Server) {
    let mut client = server.connect();
    // Of two owners `a` belongs to owner 1 and `d` to owner 0.
    for tube in ["a", "d"] {
        client.ask(&format!("use {tube}"));
        client.put(0, 0, 60, b"ready");
        client.put(2000, 1000, 60, b"delayed");
    }
    client.check("watch a\r\n", "WATCHING 2\r\n");
    client.ask("reserve");
    client.line();
    let mut gone = server.connect();
    gone.check("peek 999999\r\n", "NOT_FOUND\r\n");
    // What is counted must still be there when it is looked at.
    std::mem::forget(client);
}

fn check_figures(observed: &Observed, processes: usize) {
    use_it(&observed.server);
    let found = observed.until("all is counted", |found| {
        sum(found, "tenure_jobs", &["state=\"delayed\""]) == 2.0
            && sum(found, "tenure_connections", &[]) == 1.0
            && sum(found, "tenure_workers", &[]) == 1.0
            && sum(found, "tenure_jobs", &["state=\"reserved\""]) == 1.0
    });
    for (name, labels, value) in [
        ("tenure_jobs", &["state=\"ready\""][..], 1.0),
        ("tenure_jobs", &["state=\"buried\""], 0.0),
        ("tenure_jobs_urgent", &[], 1.0),
        ("tenure_jobs_put_total", &[], 4.0),
        ("tenure_job_timeouts_total", &[], 0.0),
        ("tenure_producers", &[], 1.0),
        ("tenure_waiting", &[], 0.0),
        ("tenure_connections_accepted_total", &[], 2.0),
        ("tenure_commands_total", &["command=\"put\""], 4.0),
        ("tenure_commands_total", &["command=\"peek\""], 1.0),
        ("tenure_commands_total", &["command=\"reserve\""], 1.0),
        ("tenure_serving", &[], 1.0),
        ("tenure_draining", &[], 0.0),
        ("tenure_build_info", &["version=\"", "compatible=\"1.13\""], 1.0),
    ] {
        assert_eq!(sum(&found, name, labels), value, "{name} {labels:?} in {found:#?}");
    }
    assert_eq!(found.keys().filter(|series| series.starts_with("tenure_process_up")).count(), processes);
    assert!(found["tenure_uptime_seconds"] < 3600.0);
}

#[test]
fn one_process_tells_its_figures() {
    let observed = observed(tubes(), &[]);
    check_figures(&observed, 1);
    let found = observed.scrape();
    assert!(
        found.keys().all(|series| !series.starts_with("tenure_log_") || series.contains("_level")),
        "no log is kept"
    );
    assert_eq!(found["tenure_log_ack_level{level=\"none\"}"], 1.0);
}

#[test]
fn several_processes_tell_the_same_figures_by_slot() {
    let observed = observed(tubes(), &MULTI);
    check_figures(&observed, 4);
    let found = observed.scrape();
    for slot in ["0", "1"] {
        assert_eq!(found[&format!("tenure_jobs{{role=\"owner\",slot=\"{slot}\",state=\"delayed\"}}")], 1.0);
        for role in ["owner", "frontend"] {
            let place = format!("role=\"{role}\",slot=\"{slot}\"");
            assert_eq!(found[&format!("tenure_process_ready{{{place}}}")], 1.0);
            assert_eq!(found[&format!("tenure_process_condition{{{place},condition=\"ready\"}}")], 1.0);
            assert_eq!(found[&format!("tenure_process_generation{{{place}}}")], 1.0);
            assert_eq!(found[&format!("tenure_process_restarts_total{{{place}}}")], 0.0);
            assert!(found.contains_key(&format!("tenure_link_backlog_bytes{{{place}}}")));
            assert!(found.contains_key(&format!("tenure_process_cpu_seconds_total{{{place},mode=\"user\"}}")));
        }
    }
    assert!(found.contains_key("tenure_process_cpu_seconds_total{role=\"supervisor\",slot=\"0\",mode=\"user\"}"));
}

#[test]
fn the_state_of_each_log_is_told_with_the_level_in_force() {
    for (flags, level) in [(&["-f0"][..], "always"), (&["-f", "20"], "interval"), (&["-F"], "never")] {
        for multi in [&[][..], &MULTI] {
            let folder = Folder::new();
            let observed = observed(tubes().log_in(folder.path()).with(flags), multi);
            use_it(&observed.server);
            let logs = if multi.is_empty() { 1.0 } else { 2.0 };
            let found = observed.until("records are counted", |found| {
                sum(found, "tenure_log_records_written_total", &[]) >= 4.0
                    && (level == "never" || sum(found, "tenure_log_records_synced_total", &[]) >= 4.0)
            });
            for known in ["none", "never", "interval", "always"] {
                let series = format!("tenure_log_ack_level{{level=\"{known}\"}}");
                assert_eq!(found[&series], f64::from(u8::from(known == level)), "{series}");
            }
            let interval = found.get("tenure_log_sync_interval_seconds");
            assert_eq!(interval.copied(), (level == "interval").then_some(0.02));
            assert_eq!(sum(&found, "tenure_log_current_segment", &[]), logs);
            assert_eq!(sum(&found, "tenure_log_size_bytes", &[]), logs * 10_485_760.0);
            assert_eq!(sum(&found, "tenure_log_out_of_space", &[]), 0.0);
            if level != "never" {
                let latest = found.iter().filter(|(series, _)| series.contains("last_sync")).map(|(_, at)| *at);
                assert!(latest.fold(0.0, f64::max) > 1.7e9, "a time since 1970");
            }
        }
    }
}

#[test]
fn a_slot_that_has_failed_and_a_drain_show() {
    let mut observed = observed(tubes(), &["--owners", "2", "--frontends", "1", "--restart-limit", "0/60"]);
    let told = observed.server.stderr();
    let socket = told.lines().find_map(|line| line.split("status at ").nth(1)).expect("the status socket is named");
    let status = || {
        let output = Command::new(env!("CARGO_BIN_EXE_tenure")).args(["status", "--json", "--socket", socket]).output();
        let output = output.expect("the program runs");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("the status is JSON")
    };
    let pid = status()["processes"][1]["pid"].as_i64().expect("owner 1 has a process");
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a number")).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is killed");
    let place = "role=\"owner\",slot=\"1\"";
    let found = observed.until("the slot has failed", |found| {
        found[&format!("tenure_process_condition{{{place},condition=\"failed\"}}")] == 1.0
    });
    assert_eq!(found[&format!("tenure_process_up{{{place}}}")], 0.0);
    assert_eq!(found[&format!("tenure_process_ready{{{place}}}")], 0.0);
    assert_eq!(found["tenure_process_ready{role=\"owner\",slot=\"0\"}"], 1.0);
    assert!(sum(&found, "tenure_ended_processes_cpu_seconds_total", &[]) > 0.0);
    observed.server.signal(rustix::process::Signal::USR1);
    observed.until("it drains", |found| found["tenure_draining"] == 1.0 && found["tenure_drained"] == 1.0);
}

#[test]
fn only_get_of_metrics_is_answered() {
    for flags in [&[][..], &MULTI] {
        let observed = observed(tubes(), flags);
        let host = "HTTP/1.1\r\nHost: x\r\n\r\n";
        for (request, status) in [
            (format!("GET / {host}"), "404"),
            (format!("GET /metrics/ {host}"), "404"),
            (format!("POST /metrics {host}"), "405"),
            (format!("DELETE /metrics {host}"), "405"),
            ("GET /metrics HTTP/1.1\r\n\r\n".to_owned(), "400"),
            ("stats\r\n\r\n".to_owned(), "400"),
            (format!("GET /metrics HTTP/1.1\r\nHost: x\r\nlong: {}\r\n\r\n", "x".repeat(20_000)), "431"),
            (format!("GET /metrics?x=y {host}"), "200"),
        ] {
            let mut stream = TcpStream::connect(("127.0.0.1", observed.port)).expect("the listener is there");
            stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
            // The rest of a request that is too long may meet a closed connection.
            let _ = stream.write_all(request.as_bytes());
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:.60} got {answer:.200}");
            assert_eq!(status == "405", answer.contains("\r\nAllow: GET\r\n"), "{answer}");
        }
    }
}

#[test]
fn who_is_slow_or_holds_connections_open_keeps_nobody_out() {
    for flags in [&[][..], &MULTI] {
        let observed = observed(tubes(), flags);
        let mut held: Vec<TcpStream> = Vec::new();
        for number in 0..1000 {
            let mut stream = TcpStream::connect(("127.0.0.1", observed.port)).expect("the listener is there");
            // Some say nothing, some a part, some ask and do not read.
            let said = ["", "GET /met", "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"][number % 3];
            // It may have had to give way already.
            let _ = stream.write_all(said.as_bytes());
            held.push(stream);
        }
        let began = Instant::now();
        let found = observed.scrape();
        // 100 ms are promised.
        assert!(began.elapsed() < Duration::from_secs(1), "a scrape took {:?}", began.elapsed());
        assert_eq!(found["tenure_serving"], 1.0);
        // They cost no connection of the queue, and the queue answers.
        observed.server.connect().check("peek 1\r\n", "NOT_FOUND\r\n");
        assert!(observed.server.descriptors()[0] < 100, "{:?} descriptors", observed.server.descriptors());
        // Each of them is closed in the end, though it neither goes nor reads.
        for stream in &mut held {
            stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
            let mut rest = Vec::new();
            if let Err(error) = stream.read_to_end(&mut rest) {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
            }
        }
    }
}

#[test]
fn a_scraper_that_ends_its_side_at_once_gets_its_answer() {
    let observed = observed(tubes(), &[]);
    let mut stream = TcpStream::connect(("127.0.0.1", observed.port)).expect("the listener is there");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("the request is sent");
    stream.shutdown(Shutdown::Write).expect("one side is ended");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer comes");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with('\n'), "{answer:.200}");
}

#[test]
fn a_place_that_cannot_be_had_ends_the_start() {
    for flags in [&[][..], &MULTI] {
        let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = taken.local_addr().expect("its address").port().to_string();
        for (place, code) in [(port.as_str(), 111), ("nowhere", 5), ("unix:/tmp/x", 5), ("127.0.0.1", 5), ("70000", 5)]
        {
            let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
                .args(["tubes", "-p", &free_port().to_string(), "--metrics", place])
                .args(flags)
                .output()
                .expect("the program runs");
            assert_eq!(output.status.code(), Some(code), "{place}: {output:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains(place), "{output:?}");
        }
    }
}

#[test]
fn without_the_option_nothing_listens_but_the_queue() {
    for flags in [&[][..], &MULTI] {
        let server = tubes().with(flags).start();
        assert_eq!(server.listening_addresses().len(), 1);
    }
}

#[test]
fn a_configuration_file_can_ask_for_it() {
    let folder = Folder::new();
    let file = folder.join("tenure.toml");
    for mode in ["single", "multi"] {
        let port = free_port();
        std::fs::write(&file, format!("[tubes]\nmode = \"{mode}\"\nmetrics = \"127.0.0.1:{port}\"\n")).expect("a file");
        let server = tubes().before_tubes(["-c", file.to_str().expect("UTF-8")]).start();
        let observed = Observed { server, port };
        wait_until("it answers", || observed.send("GET /metrics HTTP/1.0\r\n\r\n").contains(" 200 OK\r\n"));
        let found = observed.scrape();
        assert_eq!(sum(&found, "tenure_server_info", &[&format!("mode=\"{mode}\"")]), 1.0);
        assert!(observed.server.listening_addresses().iter().all(|address| address.ip().is_loopback()));
    }
}
