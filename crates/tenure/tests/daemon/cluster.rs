//! Several daemons on one PostgreSQL, as their users see them: takeover (GC3, C5), the length of leases (C2), a schema that
//! does not fit (C14), a database that is away (C15).

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testing::postgres::TcpProxy;

use crate::site::{DaemonProcess, Kind, Site, on_both, stderr, stdout, until};

/// A clean stop is taken over within a second, a crash within the lease (5 s) and two seconds: ten times that.
const CLEAN_MAX: Duration = Duration::from_secs(10);
const CRASH_MAX: Duration = Duration::from_secs(70);

fn cluster(daemon: &DaemonProcess) -> Value {
    daemon.get("/v1/cluster", None).expect(200).json()
}

/// Identities of all registrations that are not expired.
fn members(page: &Value) -> Vec<&str> {
    let members = page["members"].as_array().expect("a list").iter();
    let alive = members.filter(|member| member["lease_left_ms"].as_i64().is_none_or(|left| left >= 0));
    alive.map(|member| member["id"].as_str().expect("an id")).collect()
}

/// Names, epochs and holders of all leaderships.
fn leaders(page: &Value) -> Vec<(&str, i64, Option<&str>)> {
    let leaders = page["leaders"].as_array().expect("a list").iter();
    leaders
        .map(|leader| {
            (
                leader["name"].as_str().expect("a name"),
                leader["epoch"].as_i64().expect("a number"),
                leader["holder"].as_str(),
            )
        })
        .collect()
}

/// The leadership that every daemon contests, as this one sees it: its epoch and whether it is the daemon's.
fn leadership(page: &Value) -> (i64, bool) {
    let leaders = leaders(page);
    let (_, epoch, holder) = leaders.iter().find(|(name, ..)| *name == "scheduler").expect("a row of each name");
    (*epoch, holder.is_some() && *holder == page["me"].as_str())
}

/// Whether this daemon leads.
fn leads(page: &Value) -> bool {
    leadership(page).1
}

/// Two daemons, of which the first leads.
fn pair(site: &Site) -> (DaemonProcess, DaemonProcess) {
    let one = site.daemon("a", "");
    until("it leads", || one.log(), || leads(&cluster(&one)).then_some(()));
    let two = site.daemon("b", "");
    for daemon in [&one, &two] {
        until("both are members", || daemon.log(), || (members(&cluster(daemon)).len() == 2).then_some(()));
    }
    (one, two)
}

/// The other daemon leads, with higher epochs, and the first is no member any more; within `limit` from `began`.
#[track_caller]
fn is_taken_over(before: &Value, heir: &DaemonProcess, began: Instant, limit: Duration) {
    let gone = before["me"].as_str().expect("it was a member");
    let after = until(
        "the other leads alone",
        || heir.log(),
        || {
            let page = cluster(heir);
            (leads(&page) && !members(&page).contains(&gone)).then_some(page)
        },
    );
    assert!(began.elapsed() < limit, "after {:?}", began.elapsed());
    assert!(leadership(&after).0 > leadership(before).0, "{before} {after}");
    assert!(heir.is_ready(), "{}", heir.log());
}

#[test]
fn a_clean_stop_is_taken_over() {
    let site = Site::new(Kind::Postgres);
    let (one, two) = pair(&site);
    let before = cluster(&one);
    assert_eq!(leaders(&before), leaders(&cluster(&two)), "both see the same");
    let began = Instant::now();
    one.stop();
    is_taken_over(&before, &two, began, CLEAN_MAX);
}

#[test]
fn a_crash_is_taken_over() {
    let site = Site::new(Kind::Postgres);
    let (one, two) = pair(&site);
    let before = cluster(&one);
    let began = Instant::now();
    one.kill();
    is_taken_over(&before, &two, began, CRASH_MAX);
    // The one that died comes back under another identity, and does not lead.
    let again = site.daemon("a", "");
    until("both are members", || again.log(), || (members(&cluster(&again)).len() == 2).then_some(()));
    assert!(cluster(&again)["me"] != before["me"] && !leads(&cluster(&again)));
}

fn the_page_of_the_cluster_and_the_figures_say_what_is(kind: Kind) {
    let site = Site::new(kind);
    let daemon = site.daemon("a", "");
    let page = until("it leads", || daemon.log(), || Some(cluster(&daemon)).filter(leads));
    let member = &page["members"][0];
    assert_eq!(member["pid"].as_u64(), Some(u64::from(daemon.pid())), "{page}");
    assert_eq!(member["schema_version"], 2);
    let (database, durability) = match kind {
        Kind::Sqlite => ("sqlite", "full"),
        Kind::Postgres => ("postgres", "server"),
    };
    assert_eq!((&page["database"], &page["durability"]), (&json!(database), &json!(durability)));
    assert_eq!(member["lease_left_ms"].is_null(), kind == Kind::Sqlite, "{page}");
    assert_eq!(page["beat_ms"], 500);
    let output = site.online(&daemon, None, &["cluster", "status"]);
    let text = stdout(&output);
    assert!(text.contains(page["me"].as_str().expect("an id")) && text.contains(durability), "{output:?}");
    let figures = until(
        "a beat has counted the members",
        || daemon.log(),
        || Some(daemon.get("/metrics", None).expect(200).body).filter(|text| text.contains("tenure_members 1")),
    );
    for figure in ["tenure_member_valid 1", "tenure_leading{name=\"scheduler\"} 1", "tenure_cluster_beats_total"] {
        assert!(figures.contains(figure), "{figure} is not in {figures}");
    }
}
on_both!(the_page_of_the_cluster_and_the_figures_say_what_is);

/// C2: one length for all, changed while one member runs.
#[test]
fn the_length_of_leases_is_changed_while_one_member_runs_and_others_must_have_the_same() {
    /// What the page about the cluster tells people to do: the new length for all members.
    const LONGER: &str =
        "lease = \"9s\"\nrenew = \"500ms\"\nbeat = \"500ms\"\nstatement_timeout = \"2s\"\nmargin = \"1s\"\n";
    let site = Site::new(Kind::Postgres);
    let (one, two) = pair(&site);
    let set = |length| site.online(&one, None, &["cluster", "set-lease", length]);
    let output = set("9s");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("other members live"), "{output:?}");
    two.stop();
    until("it is alone", || one.log(), || (members(&cluster(&one)).len() == 1).then_some(()));
    let output = set("2s");
    assert!(!output.status.success() && stderr(&output).contains("at least"), "{output:?}");
    let output = set("9s");
    assert!(output.status.success() && stdout(&output).contains("cluster.lease = \"9s\""), "{output:?}");
    until("the page shows it", || one.log(), || (cluster(&one)["lease_ms"] == 9_000).then_some(()));
    // Another length is refused by name, and the daemon says so until it is right.
    let wrong = DaemonProcess::start(&site, &site.configure("b", ""));
    let refused = wrong.wait_not_ready("cluster.lease is 5s").detail();
    assert!(refused.contains("9s") && refused.contains("tenure cluster set-lease"), "{refused}");
    wrong.get("/healthz", None).expect(200);
    wrong.stop();
    let right = DaemonProcess::start(&site, &site.configure_all("b", LONGER, "listen = \"127.0.0.1:0\"", ""));
    right.wait_ready();
    until("both are members", || right.log(), || (members(&cluster(&right)).len() == 2).then_some(()));
}

#[test]
fn on_sqlite_there_is_no_lease_to_change() {
    let site = Site::new(Kind::Sqlite);
    let daemon = site.daemon("a", "");
    let output = site.online(&daemon, None, &["cluster", "set-lease", "9s"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("no_leases"), "{output:?}");
}

/// C14: a schema that needs a newer program stops a member, which says which side is older, and comes back by itself.
#[test]
fn a_schema_for_newer_programs_is_refused_by_name_and_the_member_comes_back() {
    let site = Site::new(Kind::Postgres);
    let daemon = site.daemon("a", "");
    let me = cluster(&daemon)["me"].clone();
    site.postgres().sql("UPDATE schema_version SET oldest = 99, version = 99, program = 'tenure 9.0'");
    let refused = daemon.wait_not_ready("the program is older than the database").detail();
    assert!(refused.contains("tenure 9.0") && refused.contains("start a newer program"), "{refused}");
    daemon.get("/healthz", None).expect(200);
    until(
        "it renews no more",
        || daemon.log(),
        || daemon.get("/metrics", None).body.contains("tenure_member_valid 0").then_some(()),
    );
    // One that starts meanwhile is refused in the same way, and lives on.
    let late = DaemonProcess::start(&site, &site.configure("b", ""));
    late.wait_not_ready("the program is older than the database");
    site.postgres().sql("UPDATE schema_version SET oldest = 2, version = 2");
    for daemon in [&daemon, &late] {
        daemon.wait_ready();
    }
    assert_ne!(cluster(&daemon)["me"], me, "whoever was no member is one anew");
}

/// C15: a daemon waits for its database, says so, and becomes ready by itself.
#[test]
fn a_daemon_whose_database_is_away_says_so_and_becomes_ready_by_itself() {
    let real = Site::new(Kind::Postgres);
    let proxy = TcpProxy::new(real.postgres().address());
    proxy.refuse();
    let site = Site::at(&real.postgres().dsn_at(proxy.address()));
    let daemon = DaemonProcess::start(&site, &site.configure("a", ""));
    daemon.get("/healthz", None).expect(200);
    let refused = daemon.wait_not_ready("no member yet");
    assert!(refused.head.contains("retry-after:"), "{refused:?}");
    let refused = daemon.wait_not_ready("refused");
    let port = proxy.address().port().to_string();
    assert!(refused.detail().contains("127.0.0.1") || refused.detail().contains(&port), "{refused:?}");
    for path in ["/v1/cluster", "/v1/config", "/v1/keys", "/v1/audit"] {
        let answer = daemon.get(path, None).expect(503);
        assert!(answer.head.contains("retry-after:"), "{answer:?}");
    }
    daemon.get("/metrics", None).expect(200);
    proxy.accept();
    daemon.wait_ready();
    daemon.get("/v1/cluster", None).expect(200);
    // And when it goes away later.
    proxy.refuse();
    proxy.cut();
    daemon.wait_not_ready("");
    daemon.get("/healthz", None).expect(200);
    daemon.get("/v1/keys", None).expect(503);
    proxy.accept();
    daemon.wait_ready();
    daemon.stop();
}
