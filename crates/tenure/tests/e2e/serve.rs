//! `tenure serve`: queue server and daemon under one supervisor, from a configuration file (S1-S8, S20-S26, S37).

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testing::client::Client;
use testing::process::{Address, Folder, Launch, Server, free_port, wait_until};

/// A configuration in a folder of its own, with the data beside it.
struct Site {
    folder: Folder,
    port: u16,
    http_port: u16,
}

impl Site {
    /// With these lines of `[tubes]`, and these sections besides. All processes keep the account of the test.
    fn new(tubes: &str, sections: &str) -> Site {
        let account = Command::new("id").arg("-un").output().expect("the name of this account");
        let account = String::from_utf8(account.stdout).expect("a name in UTF-8");
        Site::with_user(&format!("user = {:?}", account.trim()), tubes, sections)
    }

    fn with_user(user: &str, tubes: &str, sections: &str) -> Site {
        let site = Site { folder: Folder::new(), port: free_port(), http_port: free_port() };
        fs::set_permissions(site.folder.path(), fs::Permissions::from_mode(0o755)).expect("mode");
        let (port, http_port) = (site.port, site.http_port);
        let text = format!(
            "{user}\n[data]\ndir = {:?}\n[tubes]\nlisten = \"127.0.0.1:{port}\"\n{tubes}\n\
             [http]\nlisten = \"127.0.0.1:{http_port}\"\n{sections}\n",
            site.data()
        );
        fs::write(site.file(), text).expect("a file");
        site
    }

    fn file(&self) -> PathBuf {
        self.folder.join("tenure.toml")
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn launch(&self) -> Launch {
        let address = Address::Tcp(([127, 0, 0, 1], self.port).into());
        Launch::serve(env!("CARGO_BIN_EXE_tenure"), &self.file(), address)
    }

    /// Starts it and waits until it serves.
    #[track_caller]
    fn start(&self) -> Server {
        let mut server = self.launch().spawn_only();
        wait_until("it serves", || {
            assert!(server.is_running(), "{server:?}");
            self.try_status().is_some_and(|status| status["serving"] == true)
        });
        server
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments).arg(self.data()).output().expect("the program runs")
    }

    fn try_status(&self) -> Option<Value> {
        serde_json::from_slice(&self.ask(&["status", "--json"]).stdout).ok()
    }

    /// The roles that have a slot.
    fn roles(&self) -> Vec<String> {
        let status = self.try_status().expect("a status");
        let processes = status["processes"].as_array().expect("a list of processes").clone();
        processes.iter().map(|process| process["role"].as_str().expect("a word").to_owned()).collect()
    }

    /// The first slot of a role, if the server answers.
    fn process(&self, role: &str) -> Option<Value> {
        let status = self.try_status()?;
        status["processes"].as_array()?.iter().find(|process| process["role"] == role).cloned()
    }

    #[track_caller]
    fn kill(&self, role: &str) {
        let pid = self.process(role).expect("a slot")["pid"].as_i64().expect("a process");
        let pid = Pid::from_raw(i32::try_from(pid).expect("a process number")).expect("a process number");
        kill_process(pid, Signal::KILL).expect("it is killed");
    }

    #[track_caller]
    fn until_ready(&self, role: &str, generation: u64) {
        wait_until("the slot is ready again", || {
            self.process(role).is_some_and(|found| found["condition"] == "ready" && found["generation"] == generation)
        });
    }
}

/// The id that a put was given.
fn put(client: &mut Client, body: &[u8]) -> u64 {
    client.put(0, 0, 60, body)
}

/// S1, S3, S26: it makes its folder, keeps a log without being told, serves, and stops in order.
#[test]
fn tubes_and_daemon_serve_and_jobs_outlive_a_stop() {
    let site = Site::new("", "");
    let mut server = site.start();
    assert_eq!(site.roles(), ["tubes", "daemon"]);
    assert_eq!(server.processes().len(), 3);
    assert_eq!(fs::metadata(site.data()).expect("the folder").permissions().mode() & 0o777, 0o700);
    let id = put(&mut server.connect(), b"kept");
    let text = String::from_utf8(site.ask(&["status"]).stdout).expect("UTF-8");
    assert!(
        text.contains("tubes, daemon") && text.contains("tubes 0: ready") && text.contains("daemon 0: ready"),
        "{text}"
    );
    assert!(server.terminate().success(), "{server:?}");
    assert!(!site.data().join("status.sock").exists());

    let mut server = site.start();
    server.connect().check(format!("delete {id}\r\n"), "DELETED\r\n");
    assert!(server.terminate().success(), "{server:?}");
}

/// S20, S21, S22: whichever process dies is back alone; the other goes on, on the very same connections.
#[test]
fn each_process_is_restarted_alone_and_the_figures_go_on() {
    let site = Site::new("", "");
    let mut server = site.start();
    let mut client = server.connect();
    let id = put(&mut client, b"kept");

    site.kill("daemon");
    wait_until("the daemon is back", || {
        client.check("use default\r\n", "USING default\r\n");
        site.process("daemon").is_some_and(|found| found["condition"] == "ready" && found["generation"] == 2)
    });
    client.check(format!("peek {id}\r\n"), format!("FOUND {id} 4\r\nkept\r\n"));

    site.kill("tubes");
    site.until_ready("tubes", 2);
    let mut client = server.connect();
    client.check(format!("peek {id}\r\n"), format!("FOUND {id} 4\r\nkept\r\n"));
    assert_eq!(put(&mut client, b"next"), id + 1, "ids stay dense");
    // To the supervisor go the signals of who looks into `stats`; counters go on.
    assert_eq!(client.stat("stats", "pid"), server.pid().to_string());
    assert_eq!(client.stat("stats", "cmd-put"), "2");
    assert_eq!(client.stat("stats", "total-jobs"), "2");
    assert_eq!(site.process("daemon").expect("a slot")["generation"], 2);
    wait_until("the page follows", || site.process("tubes").is_some_and(|found| found["figures"]["jobs_ready"] == 2));
    assert!(server.terminate().success(), "{server:?}");
}

/// GT4: also where nothing is kept no id is given twice while the server lives.
#[test]
fn without_a_log_jobs_end_with_their_process_and_ids_do_not_come_again() {
    let site = Site::new("persist = false", "");
    let mut server = site.start();
    let mut last = 0;
    for generation in 2..5 {
        let mut client = server.connect();
        let first = put(&mut client, b"a");
        assert!(first > last);
        last = first + 50;
        let mut many = String::new();
        (0..50).for_each(|_| many.push_str("put 0 0 60 1\r\na\r\n"));
        let expected: String = (first + 1..=last).map(|id| format!("INSERTED {id}\r\n")).collect();
        client.check(many, expected);
        site.kill("tubes");
        site.until_ready("tubes", generation);
        server.connect().check(format!("peek {last}\r\n"), "NOT_FOUND\r\n");
    }
    assert!(!site.data().join("manifest.toml").exists());
    assert!(server.terminate().success(), "{server:?}");
}

/// S7: both answer the supervisor, with and without clients, and one that does not is killed and replaced.
#[test]
fn a_frozen_daemon_is_replaced_and_idle_processes_are_not() {
    let site = Site::new("", "");
    let mut server = site.start();
    let pid = site.process("daemon").expect("a slot")["pid"].as_i64().expect("a process");
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process number")).expect("a process number");
    kill_process(pid, Signal::STOP).expect("it is stopped");
    // That takes longer than any process may be silent.
    site.until_ready("daemon", 2);
    let tubes = site.process("tubes").expect("a slot");
    assert_eq!((&tubes["restarts"], &tubes["generation"]), (&Value::from(0), &Value::from(1)));
    put(&mut server.connect(), b"unharmed");
    assert!(server.terminate().success(), "{server:?}");
}

/// S6, S25: SIGUSR1 to the one process that an operator knows drains the tubes, for good.
#[test]
fn a_drain_outlasts_a_restart() {
    let site = Site::new("", "");
    let mut server = site.start();
    server.signal(Signal::USR1);
    wait_until("it is drained", || site.try_status().is_some_and(|status| status["drained"] == true));
    server.connect().check("put 0 0 60 1\r\na\r\n", "DRAINING\r\n");
    site.kill("tubes");
    site.until_ready("tubes", 2);
    let mut client = server.connect();
    client.check("put 0 0 60 1\r\na\r\n", "DRAINING\r\n");
    assert_eq!(client.stat("stats", "draining"), "true");
    assert!(server.terminate().success(), "{server:?}");
}

/// S8, S23: with the supervisor everything goes, at once; the next start finds all that was answered.
#[test]
fn nothing_outlives_a_killed_supervisor() {
    let site = Site::new("sync = \"always\"", "");
    let mut ids = Vec::new();
    for _ in 0..5 {
        let mut server = site.start();
        ids.push(put(&mut server.connect(), b"kept"));
        // It waits for the end of every process.
        server.kill();
    }
    let mut server = site.start();
    let mut client = server.connect();
    for id in ids {
        client.check(format!("delete {id}\r\n"), "DELETED\r\n");
    }
    assert!(server.terminate().success(), "{server:?}");
}

/// S1, S20: the same with several processes for the queue.
#[test]
fn a_daemon_stands_beside_owners_and_frontends_too() {
    let site = Site::new("mode = \"multi\"\nowners = 2\nfrontends = 2", "");
    let mut server = site.start();
    assert_eq!(site.roles(), ["owner", "owner", "frontend", "frontend", "daemon"]);
    let id = put(&mut server.connect(), b"kept");
    for role in ["daemon", "owner", "frontend"] {
        site.kill(role);
        site.until_ready(role, 2);
        wait_until("the job is found", || {
            let mut client = server.connect();
            client.send(format!("peek {id}\r\n"));
            client.line().starts_with("FOUND ")
        });
    }
    assert!(server.terminate().success(), "{server:?}");
}

/// What is turned off is not there, and nothing at all is a mistake.
#[test]
fn each_part_can_be_turned_off() {
    let site = Site::new("", "[serve]\ndaemon = false");
    let mut server = site.start();
    assert_eq!(site.roles(), ["tubes"]);
    assert!(server.terminate().success(), "{server:?}");

    let site = Site::new("", "[serve]\ntubes = false");
    let mut server = site.start();
    assert_eq!(site.roles(), ["daemon"]);
    assert!(std::net::TcpStream::connect(("127.0.0.1", site.port)).is_err());
    assert!(!site.data().join("manifest.toml").exists());
    let text = String::from_utf8(site.ask(&["status"]).stdout).expect("UTF-8");
    assert!(text.lines().count() == 2 && !text.contains("acknowledged"), "{text}");
    assert!(server.terminate().success(), "{server:?}");

    let finished = Site::new("", "[serve]\ntubes = false\ndaemon = false").launch().finish();
    assert_eq!(finished.code, Some(78), "{}", finished.stderr);
    assert!(finished.stderr.contains("there is nothing to serve"), "{}", finished.stderr);
}

/// S3: what cannot be had ends the start before any process or socket is there.
#[test]
fn an_address_in_use_ends_the_start() {
    for is_http in [false, true] {
        let site = Site::new("", "");
        let port = if is_http { site.http_port } else { site.port };
        let _taken = std::net::TcpListener::bind(("127.0.0.1", port)).expect("a free port");
        let finished = site.launch().finish();
        assert_eq!(finished.code, Some(111), "{}", finished.stderr);
        assert!(finished.stderr.contains(&port.to_string()), "{}", finished.stderr);
        assert!(!site.data().exists());
    }
}

/// S5, S31: a folder has one server, whatever it is called by.
#[test]
fn a_second_server_on_the_same_folder_is_refused() {
    for tubes in ["", "persist = false"] {
        let site = Site::new(tubes, "");
        let mut server = site.start();
        let text = fs::read_to_string(site.file()).expect("the file");
        let other = Site::new("", "");
        let ports = text.replace(&site.port.to_string(), &other.port.to_string());
        fs::write(other.file(), ports.replace(&site.http_port.to_string(), &other.http_port.to_string()))
            .expect("a file");
        let again = other.launch().finish();
        assert_eq!(again.code, Some(10), "{}", again.stderr);
        assert!(again.stderr.contains(&format!("process {}", server.pid())), "{}", again.stderr);
        let alone = super::tubes().log_in(&site.data()).finish();
        assert_eq!(alone.code, Some(10), "{}", alone.stderr);
        put(&mut server.connect(), b"unharmed");
        assert!(server.terminate().success(), "{server:?}");
    }
}

/// S37: status and metrics show every process with its figures.
#[test]
fn metrics_show_tubes_and_daemon() {
    let metrics = free_port();
    let site = Site::new(&format!("metrics = \"127.0.0.1:{metrics}\""), "");
    let mut server = site.start();
    put(&mut server.connect(), b"a");
    let scrape = || {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", metrics)).expect("the listener is there");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("the request is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer comes");
        answer
    };
    wait_until("the job is counted", || {
        scrape().contains("tenure_jobs{role=\"tubes\",slot=\"0\",state=\"ready\"} 1\n")
    });
    let text = scrape();
    for line in [
        "tenure_serving 1",
        "tenure_process_ready{role=\"tubes\",slot=\"0\"} 1",
        "tenure_process_ready{role=\"daemon\",slot=\"0\"} 1",
        "tenure_commands_total{command=\"put\"} 1",
        "tenure_connections_accepted_total{role=\"tubes\",slot=\"0\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
    for role in ["tubes", "daemon"] {
        assert!(text.contains(&format!("tenure_process_cpu_seconds_total{{role=\"{role}\"")), "{text}");
    }
    assert!(!text.contains("tenure_link_batches_total"), "{text}");
    assert!(server.terminate().success(), "{server:?}");
}

/// S3: the service manager hears of readiness when both are ready, and of the stop.
#[test]
fn the_service_manager_is_told() {
    let site = Site::new("", "");
    let path = site.folder.join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(testing::process::OUTER_LIMIT)).expect("a timeout");
    let hear = || {
        let mut bytes = [0; 256];
        let count = manager.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..count]).trim().to_owned()
    };
    let mut server = site.launch().environment("NOTIFY_SOCKET", &path).spawn_only();
    assert_eq!(hear(), "READY=1");
    assert_eq!(site.try_status().expect("a status")["serving"], true);
    server.signal(Signal::TERM);
    assert_eq!(hear(), "STOPPING=1");
    assert!(server.wait().success(), "{server:?}");
}

/// SIGHUP has the configuration read again; one that cannot be used changes nothing.
#[test]
fn a_hangup_reads_the_configuration_again() {
    let site = Site::new("", "");
    let mut server = site.start();
    let text = fs::read_to_string(site.file()).expect("the file");
    fs::write(site.file(), "nonsense").expect("a file");
    server.signal(Signal::HUP);
    wait_until("the mistake is told", || server.stderr().contains("the configuration in force stays"));
    fs::write(site.file(), text).expect("a file");
    server.signal(Signal::HUP);
    wait_until("the daemon hears", || server.stderr().contains("the daemon has another configuration"));
    put(&mut server.connect(), b"unharmed");
    assert!(server.terminate().success(), "{server:?}");
}

/// Runs the server where `/etc/passwd` is `passwd`, in a mount namespace of its own.
fn with_accounts(site: &Site, passwd: &str) -> Launch {
    let file = site.folder.join("passwd");
    fs::write(&file, passwd).expect("a file");
    let script = format!("mount --bind '{}' /etc/passwd && exec \"$0\" \"$@\"", file.display());
    site.launch().through(["unshare", "--mount", "sh", "-c", &script])
}

/// P2: who starts it as root and names nobody gets the account `tenure`, never root.
#[test]
fn started_as_root_all_processes_become_the_account_tenure() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root, as a change of the account does");
    let root = "root:x:0:0:root:/root:/bin/sh\n";
    let site = Site::with_user("", "", "");
    let finished = with_accounts(&site, root).finish();
    assert_eq!(finished.code, Some(33), "{}", finished.stderr);
    assert!(finished.stderr.contains("who wants root must name it"), "{}", finished.stderr);
    assert!(!site.data().exists());

    let mut server = with_accounts(&site, &format!("{root}tenure:x:54321:54321::/:/bin/sh\n")).spawn_only();
    wait_until("it serves", || {
        assert!(server.is_running(), "{server:?}");
        server.stderr().contains("serving")
    });
    assert_eq!(server.processes().len(), 3);
    for (name, expected) in [("Uid", "54321\t54321\t54321\t54321"), ("Groups", ""), ("CapEff", "0000000000000000")] {
        assert!(server.statuses(name).iter().all(|value| value == expected), "{name}: {:?}", server.statuses(name));
    }
    assert_eq!(fs::metadata(site.data()).expect("the folder").uid(), 54_321);
    assert!(server.terminate().success(), "{server:?}");
}

/// P2: another account than one's own needs root, and an unknown one is refused.
#[test]
fn an_account_that_cannot_be_had_is_refused() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root, as a change of the account does");
    let site = Site::with_user("user = \"root\"", "", "");
    let without_root = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let finished = site.launch().through(without_root).finish();
    assert_eq!(finished.code, Some(10), "{}", finished.stderr);
    assert!(finished.stderr.contains("only root can become another account"), "{}", finished.stderr);

    let finished = site.launch().with(["-u", "nobody-of-this-name"]).finish();
    assert_eq!(finished.code, Some(33), "{}", finished.stderr);
    assert!(!site.data().exists());
}
