//! The few commands that the demo needs, over one connection.

use anyhow::{Context, bail, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// No reply within this time counts as a lost connection.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A job as it was handed out.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) body: Vec<u8>,
}

/// A connection. After an error it must be dropped: what was asked may or may not have happened.
#[derive(Debug)]
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn connect(port: u16) -> anyhow::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    /// Puts several jobs into the used tube in one write; the ids in their order.
    pub(crate) fn put_all(&mut self, jobs: &[(u32, u32, Vec<u8>)]) -> anyhow::Result<Vec<u64>> {
        let mut request = Vec::new();
        for (pri, delay_s, body) in jobs {
            request.extend_from_slice(format!("put {pri} {delay_s} 120 {}\r\n", body.len()).as_bytes());
            request.extend_from_slice(body);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)?;
        jobs.iter().map(|_| Ok(self.expect("INSERTED ")?.parse()?)).collect()
    }

    pub(crate) fn use_tube(&mut self, tube: &str) -> anyhow::Result<()> {
        self.ask(&format!("use {tube}"))?;
        self.expect("USING ").map(drop)
    }

    pub(crate) fn watch(&mut self, tube: &str) -> anyhow::Result<()> {
        self.ask(&format!("watch {tube}"))?;
        self.expect("WATCHING ").map(drop)
    }

    pub(crate) fn reserve(&mut self, timeout_s: u32) -> anyhow::Result<Option<Job>> {
        self.ask(&format!("reserve-with-timeout {timeout_s}"))?;
        let line = self.line()?;
        if line == "TIMED_OUT" {
            return Ok(None);
        }
        let numbers = line.strip_prefix("RESERVED ").with_context(|| format!("reserve was answered {line:?}"))?;
        let (id, length) = numbers.split_once(' ').context("RESERVED has two numbers")?;
        Ok(Some(Job { id: id.parse()?, body: self.body(length.parse()?)? }))
    }

    /// Sends a command without arguments in its answer and checks the answer.
    pub(crate) fn simple(&mut self, command: &str, answer: &str) -> anyhow::Result<()> {
        self.ask(command)?;
        let line = self.line()?;
        ensure!(line == answer, "{command:?} was answered {line:?} instead of {answer:?}");
        Ok(())
    }

    pub(crate) fn kick(&mut self, bound: u32) -> anyhow::Result<u64> {
        self.ask(&format!("kick {bound}"))?;
        Ok(self.expect("KICKED ")?.parse()?)
    }

    /// The text of `stats`, `stats-job` or `stats-tube`.
    pub(crate) fn stats(&mut self, command: &str) -> anyhow::Result<String> {
        self.ask(command)?;
        let length = self.expect("OK ")?.parse()?;
        Ok(String::from_utf8(self.body(length)?)?)
    }

    /// Jobs in any state on the whole server.
    pub(crate) fn jobs_left(&mut self) -> anyhow::Result<u64> {
        let stats = self.stats("stats")?;
        let count = |state: &str| -> anyhow::Result<u64> {
            let key = format!("current-jobs-{state}: ");
            let line = stats.lines().find_map(|line| line.strip_prefix(&*key));
            Ok(line.with_context(|| format!("stats without {key}"))?.parse()?)
        };
        Ok(count("ready")? + count("reserved")? + count("delayed")? + count("buried")?)
    }

    fn ask(&mut self, command: &str) -> anyhow::Result<()> {
        Ok(self.stream.get_mut().write_all(format!("{command}\r\n").as_bytes())?)
    }

    fn expect(&mut self, start: &str) -> anyhow::Result<String> {
        let line = self.line()?;
        match line.strip_prefix(start) {
            Some(rest) => Ok(rest.to_owned()),
            None => bail!("{line:?} came instead of {start:?}"),
        }
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(text) => Ok(text.to_owned()),
            None => bail!("the connection ended"),
        }
    }

    fn body(&mut self, length: usize) -> anyhow::Result<Vec<u8>> {
        let mut body = vec![0; length + 2];
        self.stream.read_exact(&mut body)?;
        ensure!(body.ends_with(b"\r\n"), "a body does not end in CR LF");
        body.truncate(length);
        Ok(body)
    }
}
