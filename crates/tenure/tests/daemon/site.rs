//! What a test starts: a folder with a configuration, a database, and processes of the program.
//!
//! Owns: the processes; each is killed and reaped when its value is dropped, also when a test panics. What they wrote is kept
//! until then, and shown if a wait fails.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testing::postgres::Database;
use testing::process::{Folder, OUTER_LIMIT};

use crate::http::{self, Answer};

/// The times of the cluster in all tests.
pub(crate) const TIMES: &str =
    "lease = \"5s\"\nrenew = \"500ms\"\nbeat = \"500ms\"\nstatement_timeout = \"2s\"\nmargin = \"1s\"\n";
/// What others know within a beat, at ten times its value.
pub(crate) const TEN_BEATS: Duration = Duration::from_secs(5);
/// Between two looks at a process that says nothing by itself.
const PAUSE: Duration = Duration::from_millis(20);

/// Which database a test runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file in the test's folder.
    Sqlite,
    /// A database of its own on the server that all tests share.
    Postgres,
}

/// Makes a test of the function of this name for each database.
macro_rules! on_both {
    ($test:ident) => {
        mod $test {
            #[test]
            fn sqlite() {
                super::$test($crate::site::Kind::Sqlite);
            }

            #[test]
            fn postgres() {
                super::$test($crate::site::Kind::Postgres);
            }
        }
    };
}
pub(crate) use on_both;

/// A folder and a database. Files of configurations are made in it.
pub(crate) struct Site {
    folder: Folder,
    database: Option<Database>,
    /// As `[database] url` has it.
    pub(crate) url: String,
}

impl Site {
    /// A fresh one.
    pub(crate) fn new(kind: Kind) -> Site {
        let folder = Folder::new();
        match kind {
            Kind::Sqlite => {
                let url = format!("sqlite:{}", folder.join("tenure.db").display());
                Site { folder, database: None, url }
            }
            Kind::Postgres => {
                let database = Database::new();
                let url = database.dsn();
                Site { folder, database: Some(database), url }
            }
        }
    }

    /// With another address of the database, such as one through a proxy.
    pub(crate) fn at(url: &str) -> Site {
        Site { folder: Folder::new(), database: None, url: url.to_owned() }
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The database on PostgreSQL.
    #[track_caller]
    pub(crate) fn postgres(&self) -> &Database {
        self.database.as_ref().expect("the test runs on PostgreSQL")
    }

    /// Writes the configuration `NAME.toml`: on any free port of loopback, with these sections besides.
    pub(crate) fn configure(&self, name: &str, sections: &str) -> PathBuf {
        self.configure_at(name, "127.0.0.1:0", "", sections)
    }

    /// As [`Site::configure`], at this address and with these lines in `[http]`.
    pub(crate) fn configure_at(&self, name: &str, listen: &str, http: &str, sections: &str) -> PathBuf {
        self.configure_all(name, TIMES, &format!("listen = {listen:?}\n{http}"), sections)
    }

    /// As [`Site::configure`], with these times and these lines in `[http]`.
    pub(crate) fn configure_all(&self, name: &str, times: &str, http: &str, sections: &str) -> PathBuf {
        let data = self.path(&format!("data-{name}"));
        let text = format!(
            "[data]\ndir = {data:?}\n[database]\nurl = {:?}\npool_size = 3\n[cluster]\n{times}[http]\n{http}\n{sections}\n",
            self.url
        );
        let path = self.path(&format!("{name}.toml"));
        fs::write(&path, text).expect("a file in the test's folder");
        path
    }

    /// Starts a daemon and waits until it is ready.
    #[track_caller]
    pub(crate) fn daemon(&self, name: &str, sections: &str) -> DaemonProcess {
        let file = self.configure(name, sections);
        let daemon = DaemonProcess::start(self, &file);
        daemon.wait_ready();
        daemon
    }

    /// A call of the program with this configuration; what a test does not set is not in its environment.
    pub(crate) fn program(&self, file: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.env_clear().current_dir(self.folder.path()).arg("-c").arg(file).stdin(Stdio::null());
        command
    }

    /// Runs a command of the command line to its end, where no daemon is to be asked.
    #[track_caller]
    pub(crate) fn offline(&self, file: &Path, arguments: &[&str]) -> Output {
        // Port 1 of loopback: nobody listens there.
        self.run(self.program(file).env("TENURE_URL", "http://127.0.0.1:1").args(arguments))
    }

    /// Runs a command of the command line to its end, with a daemon to ask.
    #[track_caller]
    pub(crate) fn online(&self, daemon: &DaemonProcess, key: Option<&str>, arguments: &[&str]) -> Output {
        let mut command = self.program(&daemon.file);
        command.env("TENURE_URL", format!("http://{}", daemon.address())).args(arguments);
        if let Some(key) = key {
            command.env("TENURE_KEY", key);
        }
        self.run(&mut command)
    }

    #[track_caller]
    fn run(&self, command: &mut Command) -> Output {
        finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program runs"))
    }

    /// Makes a key with these scopes while no daemon runs; gives it.
    #[track_caller]
    pub(crate) fn key(&self, file: &Path, name: &str, scopes: &[&str]) -> String {
        let mut arguments = vec!["key", "create", name];
        scopes.iter().for_each(|scope| arguments.extend(["--scope", scope]));
        let output = self.offline(file, &arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
    }

    /// Writes a file of the test's folder that has this mode from its beginning.
    pub(crate) fn write(&self, name: &str, mode: u32, text: &str) -> PathBuf {
        let path = self.path(name);
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(mode).open(&path);
        io_write(file.expect("a file in the test's folder"), text);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode of our own file");
        path
    }

    /// Everything that the database keeps, as bytes: all rows as text, or the files.
    pub(crate) fn dump(&self) -> Vec<u8> {
        let Some(database) = &self.database else {
            let files = ["tenure.db", "tenure.db-wal", "tenure.db-shm", "tenure.db.member"];
            return files.iter().flat_map(|name| fs::read(self.path(name)).unwrap_or_default()).collect();
        };
        let tables = database.sql("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'");
        assert!(tables.len() > 5, "{tables:?}");
        let mut all = Vec::new();
        for table in tables {
            let table = table[0].clone().expect("a table has a name");
            // Bytes as text where they are text: hashes are kept so.
            let rows = "SELECT t::text, encode(convert_to(t::text, 'UTF8'), 'escape') FROM";
            for row in database.sql(&format!("SET bytea_output = escape; {rows} {table} AS t")) {
                row.into_iter().flatten().for_each(|text| all.extend(text.into_bytes()));
            }
        }
        all
    }
}

fn io_write(mut file: File, text: &str) {
    std::io::Write::write_all(&mut file, text.as_bytes()).expect("a file in the test's folder");
}

/// Waits for the end of a program that ends by itself, and kills one that does not.
#[track_caller]
fn finish(mut child: Child) -> Output {
    let deadline = Instant::now() + OUTER_LIMIT * 2;
    while child.try_wait().expect("a child of ours").is_none() {
        if Instant::now() > deadline {
            drop(child.kill());
            panic!("the program does not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(PAUSE);
    }
    child.wait_with_output().expect("a child of ours")
}

/// What a program wrote to its standard error.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a program wrote to its standard output.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether `bytes` has `text` in it.
pub(crate) fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Looks again and again until `look` gives something; `about` says what is known when it does not.
#[track_caller]
pub(crate) fn until<T>(what: &str, about: impl Fn() -> String, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + OUTER_LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "still not after {OUTER_LIMIT:?}: {what}\n{}", about());
        std::thread::sleep(PAUSE);
    }
}

/// A running process of the program that serves HTTP.
pub(crate) struct DaemonProcess {
    child: Child,
    log: PathBuf,
    /// Its configuration.
    pub(crate) file: PathBuf,
    reaped: bool,
}

impl DaemonProcess {
    /// Starts `tenure daemon`, and waits for nothing.
    #[track_caller]
    pub(crate) fn start(site: &Site, file: &Path) -> DaemonProcess {
        DaemonProcess::start_by(site, site.program(file).arg("daemon"), file)
    }

    /// Starts a command of the program that serves HTTP.
    #[track_caller]
    pub(crate) fn start_by(site: &Site, command: &mut Command, file: &Path) -> DaemonProcess {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let log = site.path(&format!("log-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let out = File::create(&log).expect("a file in the test's folder");
        let errors = out.try_clone().expect("a descriptor");
        let child = command.stdout(out).stderr(errors).spawn().expect("the program runs");
        DaemonProcess { child, log, file: file.to_owned(), reaped: false }
    }

    /// What it wrote so far.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it answers, as it says itself; waits for that.
    #[track_caller]
    pub(crate) fn address(&self) -> SocketAddr {
        until(
            "the daemon says where it answers",
            || self.log(),
            || {
                let log = self.log();
                let (_, rest) = log.rsplit_once("the HTTP API answers at http")?;
                let (_, rest) = rest.split_once("://")?;
                // The line is there as a whole.
                let (address, _) = rest.split_once('\n')?;
                address.trim().parse().ok()
            },
        )
    }

    /// One call without a body on a connection of its own.
    #[track_caller]
    pub(crate) fn get(&self, path: &str, key: Option<&str>) -> Answer {
        self.call("GET", path, key, None)
    }

    /// One call on a connection of its own.
    #[track_caller]
    pub(crate) fn call(&self, method: &str, path: &str, key: Option<&str>, body: Option<&Value>) -> Answer {
        self.try_call(method, path, key, body)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}\n{}", self.log()))
    }

    /// As [`DaemonProcess::call`], where nobody may answer.
    pub(crate) fn try_call(
        &self,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> std::io::Result<Answer> {
        http::connect(self.address())?.call(method, path, key, body)
    }

    /// Sets an option in the database.
    #[track_caller]
    pub(crate) fn set(&self, place: &str, key: Option<&str>, value: &str) -> Answer {
        self.call("PUT", &format!("/v1/config/{place}"), key, Some(&json!({ "value": value })))
    }

    /// Waits until it is a member that serves.
    #[track_caller]
    pub(crate) fn wait_ready(&self) {
        until("the daemon is ready", || self.log(), || self.is_ready().then_some(()));
    }

    /// Whether `/readyz` says so.
    pub(crate) fn is_ready(&self) -> bool {
        self.try_call("GET", "/readyz", None, None).is_ok_and(|answer| answer.status == 200)
    }

    /// Waits until `/readyz` gives 503 with a reason that has `text` in it.
    #[track_caller]
    pub(crate) fn wait_not_ready(&self, text: &str) -> Answer {
        until(
            &format!("/readyz says {text:?}"),
            || self.log(),
            || {
                let answer = self.try_call("GET", "/readyz", None, None).ok()?;
                (answer.status == 503 && answer.detail().contains(text)).then_some(answer)
            },
        )
    }

    /// Waits until it has written this.
    #[track_caller]
    pub(crate) fn wait_log(&self, text: &str) {
        until(&format!("the log says {text:?}"), || self.log(), || self.log().contains(text).then_some(()));
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        // Not reaped yet, so the number is still its own.
        assert!(!self.reaped, "the process is gone");
        kill_process(Pid::from_child(&self.child), signal).expect("a child of ours");
    }

    /// Kills it as a crash would, and reaps it.
    pub(crate) fn kill(mut self) {
        self.signal(Signal::KILL);
        drop(self.end());
    }

    /// Asks it to stop, and checks that it does in order.
    #[track_caller]
    pub(crate) fn stop(mut self) -> String {
        self.signal(Signal::TERM);
        let (code, log) = self.end();
        assert_eq!(code, Some(0), "{log}");
        log
    }

    /// Waits for its end; gives the exit code, if no signal ended it, and what it wrote.
    #[track_caller]
    pub(crate) fn end(&mut self) -> (Option<i32>, String) {
        let log = self.log.clone();
        let child = &mut self.child;
        let status = until(
            "the process ends",
            || String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned(),
            || child.try_wait().expect("a child of ours"),
        );
        self.reaped = true;
        (status.code().filter(|_| status.signal().is_none()), self.log())
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        if !self.reaped {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}
