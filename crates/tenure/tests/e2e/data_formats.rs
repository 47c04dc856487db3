//! The texts of `stats…` and `list…`: keys, their order, quoting, and the counted length.

use super::{Mode, in_both_modes};

/// Splits a dictionary into keys and values, checking all that simple parsers rely on.
#[track_caller]
fn pairs(text: &str) -> Vec<(&str, &str)> {
    let lines = text.strip_prefix("---\n").expect("begins with ---");
    assert!(lines.ends_with('\n') && !lines.contains('\r') && !lines.contains("\n\n"), "{text:?}");
    lines.lines().map(|line| line.split_once(": ").unwrap_or_else(|| panic!("no pair: {line:?}"))).collect()
}

#[track_caller]
fn keys(text: &str) -> Vec<&str> {
    pairs(text).into_iter().map(|(key, _)| key).collect()
}

#[track_caller]
fn value<'a>(text: &'a str, wanted: &str) -> &'a str {
    pairs(text).into_iter().find(|(key, _)| *key == wanted).unwrap_or_else(|| panic!("no {wanted}")).1
}

/// Whether `text` is in double quotes, with none inside.
fn is_quoted(text: &str) -> bool {
    text.len() > 2 && text.starts_with('"') && text.ends_with('"') && !text[1..text.len() - 1].contains('"')
}

in_both_modes!(stats_job_is_exactly_this);
fn stats_job_is_exactly_this(mode: Mode) {
    let server = mode.server();
    server.check(
        "use some-tube\r\nput 7 0 120 3\r\nabc\r\nstats-job 1\r\n",
        "USING some-tube\r\nINSERTED 1\r\nOK 149\r\n---\nid: 1\ntube: \"some-tube\"\nstate: ready\npri: 7\nage: 0\ndelay: 0\nttr: 120\n\
         time-left: 0\nfile: 0\nreserves: 0\ntimeouts: 0\nreleases: 0\nburies: 0\nkicks: 0\n\r\n",
    );
    let mut client = server.connect();
    for (state, command, answer) in [
        ("reserved", "reserve-job 1", "RESERVED 1 3"),
        ("buried", "bury 1 4", "BURIED"),
        ("ready", "kick-job 1", "KICKED"),
    ] {
        client.check(format!("{command}\r\n"), format!("{answer}\r\n"));
        if state == "reserved" {
            client.expect("abc\r\n");
        }
        assert_eq!(client.stat("stats-job 1", "state"), state);
    }
    client.check("reserve-job 1\r\nrelease 1 0 50\r\n", "RESERVED 1 3\r\nabc\r\nRELEASED\r\n");
    client.check_stats(
        "stats-job 1",
        &[("state", "delayed"), ("delay", "50"), ("time-left", "49"), ("tube", "\"some-tube\"")],
    );
}

in_both_modes!(stats_tube_is_exactly_this);
fn stats_tube_is_exactly_this(mode: Mode) {
    mode.server().check(
        "use t\r\nstats-tube t\r\n",
        "USING t\r\nOK 261\r\n---\nname: \"t\"\ncurrent-jobs-urgent: 0\ncurrent-jobs-ready: 0\ncurrent-jobs-reserved: 0\n\
         current-jobs-delayed: 0\ncurrent-jobs-buried: 0\ntotal-jobs: 0\ncurrent-using: 1\ncurrent-watching: 0\n\
         current-waiting: 0\ncmd-delete: 0\ncmd-pause-tube: 0\npause: 0\npause-time-left: 0\n\r\n",
    );
}

in_both_modes!(names_are_quoted_in_statistics_and_bare_in_lists);
fn names_are_quoted_in_statistics_and_bare_in_lists(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    for name in ["0123", "true", "a;b", "(x)", "$_.", "1e5", "~", "null"] {
        if name == "~" {
            client.check("use ~\r\n", "BAD_FORMAT\r\n");
            continue;
        }
        client.check(format!("use {name}\r\n"), format!("USING {name}\r\n"));
        assert_eq!(client.stat(&format!("stats-tube {name}"), "name"), format!("\"{name}\""));
        let id = client.put(0, 0, 60, b"");
        assert_eq!(client.stat(&format!("stats-job {id}"), "tube"), format!("\"{name}\""));
        assert!(client.text("list-tubes").lines().any(|line| line == format!("- {name}")));
    }
}

const STATS_KEYS: [&str; 50] = [
    "current-jobs-urgent",
    "current-jobs-ready",
    "current-jobs-reserved",
    "current-jobs-delayed",
    "current-jobs-buried",
    "cmd-put",
    "cmd-peek",
    "cmd-peek-ready",
    "cmd-peek-delayed",
    "cmd-peek-buried",
    "cmd-reserve",
    "cmd-reserve-with-timeout",
    "cmd-delete",
    "cmd-release",
    "cmd-use",
    "cmd-watch",
    "cmd-ignore",
    "cmd-bury",
    "cmd-kick",
    "cmd-touch",
    "cmd-stats",
    "cmd-stats-job",
    "cmd-stats-tube",
    "cmd-list-tubes",
    "cmd-list-tube-used",
    "cmd-list-tubes-watched",
    "cmd-pause-tube",
    "job-timeouts",
    "total-jobs",
    "max-job-size",
    "current-tubes",
    "current-connections",
    "current-producers",
    "current-workers",
    "current-waiting",
    "total-connections",
    "pid",
    "version",
    "rusage-utime",
    "rusage-stime",
    "uptime",
    "binlog-oldest-index",
    "binlog-current-index",
    "binlog-records-migrated",
    "binlog-records-written",
    "binlog-max-size",
    "draining",
    "id",
    "hostname",
    "os",
];

in_both_modes!(stats_has_exactly_these_keys_in_this_order);
fn stats_has_exactly_these_keys_in_this_order(mode: Mode) {
    let server = mode.server();
    let text = server.connect().text("stats");
    assert_eq!(keys(&text), [&STATS_KEYS[..], &["platform"]].concat());
}

in_both_modes!(the_values_of_a_fresh_server_are_as_documented);
fn the_values_of_a_fresh_server_are_as_documented(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    let text = client.text("stats");
    let is = |key: &str, expected: &str| assert_eq!(value(&text, key), expected, "{key}");
    for (key, shown) in pairs(&text) {
        if key.starts_with("current-jobs") || (key.starts_with("cmd-") && key != "cmd-stats") {
            assert_eq!(shown, "0", "{key}");
        }
    }
    is("cmd-stats", "1");
    is("job-timeouts", "0");
    is("total-jobs", "0");
    is("max-job-size", "65535");
    is("current-tubes", "1");
    is("current-connections", "1");
    is("total-connections", "1");
    is("pid", &server.pid().to_string());
    is("version", "\"1.13\"");
    is("binlog-oldest-index", "0");
    is("binlog-current-index", "0");
    is("binlog-records-migrated", "0");
    is("binlog-records-written", "0");
    is("binlog-max-size", "10485760");
    is("draining", "false");
    for key in ["rusage-utime", "rusage-stime"] {
        let (seconds, fraction) = value(&text, key).split_once('.').expect("s.uuuuuu");
        assert!(seconds.parse::<u32>().is_ok() && fraction.len() == 6 && fraction.parse::<u32>().is_ok(), "{key}");
    }
    let system = rustix::system::uname();
    is("hostname", &format!("\"{}\"", system.nodename().to_string_lossy()));
    is("os", &format!("\"{}\"", system.version().to_string_lossy()));
    is("platform", &format!("\"{}\"", system.machine().to_string_lossy()));
    for key in ["version", "hostname", "os", "platform"] {
        assert!(is_quoted(value(&text, key)), "{key}");
    }
}

in_both_modes!(the_id_is_16_hex_digits_that_no_parser_takes_for_a_number);
/// Simple parsers turn what looks like a number into one, and `12e34567` into infinity.
fn the_id_is_16_hex_digits_that_no_parser_takes_for_a_number(mode: Mode) {
    for _ in 0..30 {
        let server = mode.server();
        let mut client = server.connect();
        let id = client.stat("stats", "id");
        assert_eq!(id.len(), 16, "{id}");
        assert!(id.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)), "{id}");
        assert!(id.parse::<f64>().is_err(), "{id} can be read as a number");
        assert_eq!(client.stat("stats", "id"), id, "stays while the server runs");
    }
}

in_both_modes!(the_id_is_drawn_once_per_data_directory_and_else_once_per_start);
fn the_id_is_drawn_once_per_data_directory_and_else_once_per_start(mode: Mode) {
    let folder = testing::process::Folder::new();
    let id = |launch: &testing::process::Launch| launch.start().connect().stat("stats", "id");
    let logged = mode.tubes().log_in(folder.path());
    assert_eq!(id(&logged), id(&logged));
    assert_ne!(id(&mode.tubes()), id(&mode.tubes()));
}

in_both_modes!(the_counted_length_leaves_out_the_final_line_end);
fn the_counted_length_leaves_out_the_final_line_end(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
    for command in ["stats", "stats-job 1", "stats-tube default", "list-tubes", "list-tubes-watched"] {
        // `text` reads the counted bytes and then CR LF; the next command shows that nothing is left over.
        let text = client.text(command);
        assert!(text.starts_with("---\n") && text.ends_with('\n'), "{text:?}");
        client.check("list-tube-used\r\n", "USING default\r\n");
    }
}
