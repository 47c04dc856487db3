//! A server for one foreign client.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// How long a start may take before it is a failure; no promise to users.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A running server that is killed when dropped.
pub(super) struct Server {
    child: Child,
    port: u16,
    log: PathBuf,
}

impl Server {
    /// Starts `executable` as any client's suite would: `beanstalkd -l 127.0.0.1 -p PORT`, found on PATH, with the flags of
    /// a mode behind.
    ///
    /// # Errors
    ///
    /// If it does not listen in time, with what it wrote.
    pub(super) fn start(executable: &Path, folder: &Path, mode: &[&str]) -> anyhow::Result<Self> {
        let names = folder.join("bin");
        fs::create_dir_all(&names).with_context(|| format!("failed to make {}", names.display()))?;
        let link = names.join("beanstalkd");
        if fs::read_link(&link).ok().as_deref() != Some(executable) {
            // Another target of an earlier run, or none.
            drop(fs::remove_file(&link));
            std::os::unix::fs::symlink(executable, &link)
                .with_context(|| format!("failed to make {}", link.display()))?;
        }
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(std::iter::once(names).chain(std::env::split_paths(&inherited)))
            .context("the folder's name has a colon")?;
        loop {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
            let port = port.context("no free port")?.port();
            let log = folder.join(format!("server-{port}.log"));
            let file = File::create(&log).with_context(|| format!("failed to make {}", log.display()))?;
            // Ends with this task, also when the task is killed and drops nothing.
            let child = Command::new("setpriv")
                .args(["--pdeathsig", "KILL", "beanstalkd", "-l", "127.0.0.1", "-p", &port.to_string()])
                .args(mode)
                .env("PATH", &path)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(file)
                .spawn()
                .context("failed to start the server by the name beanstalkd")?;
            let mut server = Self { child, port, log };
            if server.wait_until_listening()? {
                return Ok(server);
            }
        }
    }

    /// `false` if the port was taken by somebody else meanwhile.
    fn wait_until_listening(&mut self) -> anyhow::Result<bool> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().context("failed to wait for the server")? {
                if status.code() == Some(111) {
                    return Ok(false);
                }
                bail!("the server ended with {status}:\n{}", self.stderr());
            }
            if TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok() {
                return Ok(true);
            }
            if Instant::now() > deadline {
                bail!("the server does not listen after {} s:\n{}", START_LIMIT.as_secs(), self.stderr());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Where it listens on 127.0.0.1.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// What it wrote to its standard error.
    pub(super) fn stderr(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(fs::remove_file(&self.log));
    }
}
