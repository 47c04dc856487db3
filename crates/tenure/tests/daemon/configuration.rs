//! Options in the database: set, taken back, refused, agreed on; and where each value came from.

use std::time::Instant;

use serde_json::Value;

use crate::site::{DaemonProcess, Kind, Site, TEN_BEATS, on_both, stderr, stdout, until};

/// An option of a daemon: its value and its origin.
fn shown(daemon: &DaemonProcess, name: &str) -> Value {
    let page = daemon.get("/v1/config", None).expect(200).json();
    let options = page["options"].as_array().expect("a list");
    options.iter().find(|option| option["key"] == name).cloned().unwrap_or(Value::Null)
}

fn history(daemon: &DaemonProcess) -> Vec<Value> {
    let page = daemon.get("/v1/config/history?limit=1000", None).expect(200).json();
    page["changes"].as_array().expect("a list").clone()
}

fn options_are_set_taken_back_and_refused_over_http(kind: Kind) {
    let site = Site::new(kind);
    let daemon = site.daemon("a", "[log]\nlevel = \"info\"\n[tubes]\nmax_job_size = \"1MiB\"\n");
    let log = || DaemonProcess::log(&daemon);
    assert_eq!(shown(&daemon, "log.level")["value"], "info", "{}", shown(&daemon, "log.level"));
    daemon.set("log/level", None, "error").expect(200);
    let set = shown(&daemon, "log.level");
    assert!(set["value"] == "error" && set["origin"].to_string().contains("anonymous"), "{set}");
    daemon.call("DELETE", "/v1/config/log/level", None, None).expect(200);
    assert_eq!(shown(&daemon, "log.level")["value"], "info", "the file holds again: {}", log());
    daemon.call("DELETE", "/v1/config/log/level", None, None).expect(404);
    assert_eq!(history(&daemon).len(), 2, "{:?}", history(&daemon));
    // The option is in force: messages of that level are written from then on.
    assert!(!daemon.log().contains("DEBUG"), "{}", log());
    daemon.set("log/level", None, "debug").expect(200);
    until("messages of that level are written", log, || {
        daemon.get("/v1/config", None).expect(200);
        daemon.log().contains("DEBUG request").then_some(())
    });
    daemon.call("DELETE", "/v1/config/log/level", None, None).expect(200);
    let before = history(&daemon);
    // What would be no configuration is refused with the reason, and nothing is stored.
    for (place, value, reason) in [
        ("log/level", "loud", "debug"),
        ("log/colour", "red", "log.colour"),
        ("http/listen", "0.0.0.0:1", "http.listen"),
        ("database/url", "sqlite:x", "database.url"),
        ("quota/daily", "{ per = \"moon\" }", "quota.daily"),
    ] {
        let refused = daemon.set(place, None, value).expect(422);
        assert_eq!(refused.code(), "configuration_refused");
        assert!(refused.detail().contains(reason), "{place}: {refused:?}");
    }
    assert_eq!(history(&daemon), before);
    // A whole section, for which the file has no entry.
    daemon.set("quota/daily", None, "{ per = \"key\", what = \"runs\", limit = 500 }").expect(200);
    let options = daemon.get("/v1/config?key=quota", None).expect(200).body;
    assert!(options.contains("quota.daily") && options.contains("500"), "{options}");
    let newest = history(&daemon)[0].clone();
    assert!(newest["section"] == "quota" && newest["key"] == "daily" && newest["before"] == Value::Null, "{newest}");
    assert_eq!(
        daemon.get("/v1/config/history?key=log.level", None).json()["changes"].as_array().map(Vec::len),
        Some(4)
    );
    daemon.call("DELETE", "/v1/config/quota/daily", None, None).expect(200);
    assert_eq!(daemon.get("/v1/config?key=quota", None).expect(200).json()["options"], serde_json::json!([]));
}
on_both!(options_are_set_taken_back_and_refused_over_http);

fn the_command_line_changes_options_with_a_daemon_and_without(kind: Kind) {
    let site = Site::new(kind);
    let file = site.configure("a", "[log]\nlevel = \"info\"\n");
    let output = site.offline(&file, &["config", "set", "log.level", "debug"]);
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains("log.level = \"debug\""), "{output:?}");
    let output = site.offline(&file, &["config", "set", "log.level", "loud"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = site.offline(&file, &["config", "set", "http.listen", "127.0.0.1:1"]);
    assert!(!output.status.success() && stderr(&output).contains("http.listen"), "{output:?}");
    let output = site.offline(&file, &["config", "show", "log"]);
    assert!(stdout(&output).contains("\"info\"") && stderr(&output).contains("no daemon answers"), "{output:?}");

    let daemon = DaemonProcess::start(&site, &file);
    daemon.wait_ready();
    let output = site.online(&daemon, None, &["config", "show", "log"]);
    let text = stdout(&output);
    assert!(text.contains("log.level = \"debug\"") && text.contains("command line"), "{output:?}");
    let output = site.online(&daemon, None, &["config", "show", "cluster"]);
    let text = stdout(&output);
    assert!(text.contains("cluster.lease = \"5s\"") && text.contains("a.toml"), "{output:?}");
    let output = site.online(&daemon, None, &["config", "show", "http.public_health"]);
    assert!(stdout(&output).contains("default"), "{output:?}");
    let output = site.online(&daemon, None, &["config", "set", "log.level", "loud"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("configuration_refused"), "{output:?}");
    let output = site.online(&daemon, None, &["config", "set", "log.level", "error"]);
    assert!(output.status.success() && stdout(&output).contains("\"error\""), "{output:?}");
    let output = site.online(&daemon, None, &["config", "history"]);
    let text = stdout(&output);
    assert!(text.contains("debug -> error") && text.contains("not set -> debug"), "{text}");
    let output = site.online(&daemon, None, &["config", "unset", "log.level"]);
    assert!(output.status.success() && stdout(&output).contains("\"info\""), "{output:?}");
    assert_eq!(site.online(&daemon, None, &["config", "unset", "log.level"]).status.code(), Some(3));
    daemon.stop();
    let output = site.offline(&file, &["config", "unset", "log.level"]);
    assert!(!output.status.success() && stderr(&output).contains("not set in the database"), "{output:?}");
    // A variable belongs to one process, and stands above the database.
    let output = site.offline(&file, &["config", "set", "log.level", "debug"]);
    assert!(output.status.success(), "{output:?}");
    let mut command = site.program(&file);
    let daemon = DaemonProcess::start_by(&site, command.arg("daemon").env("TENURE_LOG__LEVEL", "info"), &file);
    daemon.wait_ready();
    let level = shown(&daemon, "log.level");
    assert!(level["value"] == "info" && level["origin"].to_string().contains("TENURE_LOG__LEVEL"), "{level}");
    let output = site.online(&daemon, None, &["config", "set", "log.level", "error"]);
    assert!(stdout(&output).contains("TENURE_LOG__LEVEL wins"), "{output:?}");
}
on_both!(the_command_line_changes_options_with_a_daemon_and_without);

/// C8: both have it within a beat, and of concurrent changes none is lost.
#[test]
fn two_daemons_agree_and_lose_no_change() {
    /// Changes of each of the two.
    const CHANGES: usize = 12;
    let site = Site::new(Kind::Postgres);
    let (one, two) = (site.daemon("a", ""), site.daemon("b", ""));
    for (from, to, value) in [(&one, &two, "debug"), (&two, &one, "error")] {
        from.set("log/level", None, value).expect(200);
        let began = Instant::now();
        until("the other daemon has it", || to.log(), || (shown(to, "log.level")["value"] == value).then_some(()));
        assert!(began.elapsed() < TEN_BEATS, "after {:?}", began.elapsed());
    }
    let change_all = |daemon: &DaemonProcess, name: &str| {
        for count in 0..CHANGES {
            let place = format!("quota/{name}{count}");
            until(
                "the change is stored",
                || daemon.log(),
                || {
                    let answer = daemon.set(&place, None, "{ per = \"key\", what = \"runs\", limit = 5 }");
                    // Refused only because somebody else was faster ten times in a row: nothing was done then.
                    assert!(answer.status == 200 || answer.code() == "configuration_moved", "{answer:?}");
                    (answer.status == 200).then_some(())
                },
            );
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| change_all(&one, "x"));
        scope.spawn(|| change_all(&two, "y"));
    });
    let changed = history(&one);
    assert_eq!(changed.len(), 2 + 2 * CHANGES);
    let numbers: Vec<_> = changed.iter().map(|change| change["id"].as_i64().expect("a number")).collect();
    assert!(numbers.is_sorted_by(|newer, older| newer > older), "{numbers:?}");
    for daemon in [&one, &two] {
        until(
            "all changes are in force",
            || daemon.log(),
            || {
                let options = daemon.get("/v1/config?key=quota", None).expect(200).body;
                let all = (0..CHANGES).flat_map(|count| [format!("quota.x{count}."), format!("quota.y{count}.")]);
                all.into_iter().all(|name| options.contains(&name)).then_some(())
            },
        );
    }
}
