//! The server that the demo runs, kills and starts again.

use anyhow::{Context, bail};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time until it listens, recovery included.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time of an orderly stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// A server process and its folder; both are gone when this is dropped.
#[derive(Debug)]
pub(crate) struct DemoServer {
    child: Child,
    port: u16,
    directory: PathBuf,
    /// Besides address and data directory.
    flags: Vec<String>,
}

/// The data directory, in the folder of the demo.
const DATA: &str = "data";
/// What the server writes, in that folder.
const MESSAGES: &str = "messages";
/// Last lines of it that explain a failure.
const LINES_SHOWN: usize = 20;

impl DemoServer {
    pub(crate) fn start(flags: Vec<String>) -> anyhow::Result<DemoServer> {
        let directory = std::env::temp_dir().join(format!("tenure-demo-{}", std::process::id()));
        std::fs::create_dir(&directory).with_context(|| format!("failed to create {}", directory.display()))?;
        std::fs::create_dir(directory.join(DATA)).context("failed to create the data directory")?;
        // Another program may take the port between the two moments; then the start says so.
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let child = spawn(port, &directory, &flags)?;
        let mut server = DemoServer { child, port, directory, flags };
        server.wait_until_it_listens()?;
        Ok(server)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Where it keeps its log.
    pub(crate) fn directory(&self) -> PathBuf {
        self.directory.join(DATA)
    }

    /// The last that it has written, to explain a failure.
    pub(crate) fn said(&self) -> String {
        let text = std::fs::read(self.directory.join(MESSAGES)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
    }

    /// Where a server of several processes is asked how it is.
    #[cfg(target_os = "linux")]
    pub(crate) fn status_socket(&self) -> PathBuf {
        self.directory().join("status.sock")
    }

    /// Ends the process as a crash would: SIGKILL, at whatever it is doing.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again on the same port and folder; returns how long it took to listen.
    pub(crate) fn restart(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.child = spawn(self.port, &self.directory, &self.flags)?;
        self.wait_until_it_listens()?;
        Ok(began.elapsed())
    }

    /// Stops it in order.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                anyhow::ensure!(status.success(), "it ended with {status}");
                return Ok(());
            }
            if began.elapsed() > STOP_TIMEOUT {
                bail!("it did not end within {} s", STOP_TIMEOUT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn wait_until_it_listens(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status} and said:\n{}", self.said());
            }
            if began.elapsed() > START_TIMEOUT {
                bail!("it did not listen within {} s", START_TIMEOUT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for DemoServer {
    fn drop(&mut self) {
        // Best effort: it may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn spawn(port: u16, directory: &Path, flags: &[String]) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("failed to find this program")?;
    let messages = std::fs::File::options().create(true).append(true).open(directory.join(MESSAGES));
    Command::new(program)
        .args(["-L", "warn", "tubes", "-l", "127.0.0.1", "-p", &port.to_string(), "-b"])
        .arg(directory.join(DATA))
        .args(flags)
        .stdin(Stdio::null())
        .stderr(messages.context("failed to open the file for its messages")?)
        .spawn()
        .context("failed to start the server's process")
}
