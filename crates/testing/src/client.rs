//! A blocking client of the queue protocol that shows every byte.
//!
//! Owns: one connection and the bytes received but not yet looked at.
//! Never: interprets more than a test asks for. What is expected is written out in the test, byte for byte.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::ids::{self, Ids, Part, Replies, Requests};
use crate::process::Address;

/// How long a read waits before the test fails. No promise to users.
const READ_LIMIT: Duration = Duration::from_secs(60);

/// One connection to a queue server.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    received: Vec<u8>,
    dense: Option<Dense>,
}

/// What makes ids dense on this connection.
#[derive(Debug)]
struct Dense {
    ids: Arc<Ids>,
    requests: Requests,
    replies: Replies,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// `data` as text with `\r`, `\n` and other bytes escaped, cut in the middle if it is long.
pub fn readable(data: &[u8]) -> String {
    const SHOWN: usize = 2000;
    if data.len() <= 2 * SHOWN {
        return format!("\"{}\"", data.escape_ascii());
    }
    let (head, tail) = (&data[..SHOWN], &data[data.len() - SHOWN..]);
    format!("\"{}\" … \"{}\" ({} bytes)", head.escape_ascii(), tail.escape_ascii(), data.len())
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub fn connect(address: &Address) -> io::Result<Self> {
        let stream = match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(READ_LIMIT))?;
                stream.set_write_timeout(Some(READ_LIMIT))?;
                Stream::Tcp(stream)
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(READ_LIMIT))?;
                stream.set_write_timeout(Some(READ_LIMIT))?;
                Stream::Unix(stream)
            }
        };
        Ok(Self { stream, received: Vec::new(), dense: None })
    }

    /// Connects to a server whose ids are not dense, and shows them as `ids` has them. A command with an id that an
    /// answer may still bring is not sent before that answer has come.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub fn connect_with_ids(address: &Address, ids: Arc<Ids>) -> io::Result<Self> {
        let dense = Dense { ids, requests: Requests::default(), replies: Replies::default() };
        Ok(Self { dense: Some(dense), ..Self::connect(address)? })
    }

    /// Sends bytes as they are, but for ids.
    ///
    /// # Panics
    ///
    /// If they cannot be sent.
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        if let Err(error) = self.try_send(bytes.as_ref()) {
            panic!("cannot send {}: {error}", readable(bytes.as_ref()));
        }
    }

    /// Sends bytes as they are, but for ids.
    ///
    /// # Errors
    ///
    /// If they cannot all be sent; how many were is unknown.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(dense) = &mut self.dense else { return self.write(bytes) };
        let (ids, mut requests) = (Arc::clone(&dense.ids), std::mem::take(&mut dense.requests));
        let (mut input, mut ready) = (bytes, Vec::new());
        while let Some(part) = requests.next(&mut input) {
            match part {
                Part::Bytes(bytes) => ready.extend(bytes),
                Part::Id(digits) => {
                    let mut has_ended = false;
                    loop {
                        let open = if has_ended { 0 } else { requests.open_puts(self.answered()) };
                        if let Some(real) = ids::resolve(&ids, &digits, open) {
                            ready.extend(real);
                            break;
                        }
                        self.write(&ready)?;
                        ready.clear();
                        has_ended = self.receive()? == 0;
                    }
                }
            }
        }
        if let Some(dense) = &mut self.dense {
            dense.requests = requests;
        }
        self.write(&ready)
    }

    fn answered(&self) -> u64 {
        self.dense.as_ref().map_or(0, |dense| dense.replies.answered)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.stream {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Unix(stream) => stream.write_all(bytes),
        }
    }

    /// Sends as much as the kernel takes without waiting, and returns how much that was. Ids are the server's.
    ///
    /// # Panics
    ///
    /// If the connection is broken.
    #[track_caller]
    pub fn send_without_waiting(&mut self, bytes: &[u8]) -> usize {
        match rustix::net::send(self, bytes, rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL) {
            Ok(count) => count,
            Err(rustix::io::Errno::AGAIN) => 0,
            Err(error) => panic!("cannot send: {error}"),
        }
    }

    /// Sends one byte of TCP urgent data.
    #[track_caller]
    pub fn send_urgent(&mut self, byte: u8) {
        rustix::net::send(self, &[byte], rustix::net::SendFlags::OOB).expect("urgent data");
    }

    /// Ends the sending side; what the server still answers can be read.
    #[track_caller]
    pub fn half_close(&mut self) {
        if let Some(rest) = self.dense.as_mut().map(|dense| dense.requests.rest()) {
            drop(self.write(&rest));
        }
        let result = match &self.stream {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
        // A server that has closed already took away what could be ended.
        match result {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
            Err(error) => panic!("cannot end the sending side: {error}"),
        }
    }

    /// Receives something into the buffer; 0 at the end of the stream.
    fn receive(&mut self) -> io::Result<usize> {
        let start = self.received.len();
        self.received.resize(start + 65_536, 0);
        let result = loop {
            let target = &mut self.received[start..];
            let result = match &mut self.stream {
                Stream::Tcp(stream) => stream.read(target),
                Stream::Unix(stream) => stream.read(target),
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.received.truncate(start + *result.as_ref().unwrap_or(&0));
        if let Some(dense) = &mut self.dense {
            let raw = self.received.split_off(start);
            dense.replies.push(&dense.ids, &raw, &mut self.received);
            if matches!(result, Ok(0)) {
                self.received.extend(dense.replies.rest());
            }
        }
        result
    }

    /// Reads exactly `count` bytes.
    ///
    /// # Panics
    ///
    /// If the server closes first or says nothing for a minute.
    #[track_caller]
    pub fn read(&mut self, count: usize) -> Vec<u8> {
        while self.received.len() < count {
            match self.receive() {
                Ok(1..) => {}
                Ok(0) => panic!("{count} bytes expected, but closed after {}", readable(&self.received)),
                Err(error) => panic!("{count} bytes expected, but after {}: {error}", readable(&self.received)),
            }
        }
        self.received.drain(..count).collect()
    }

    /// Reads up to CR LF, which is not returned.
    ///
    /// # Panics
    ///
    /// As [`Client::read`].
    #[track_caller]
    pub fn line(&mut self) -> String {
        let mut searched = 0;
        let end = loop {
            if let Some(at) = self.received[searched..].windows(2).position(|pair| pair == b"\r\n") {
                break searched + at;
            }
            searched = self.received.len().saturating_sub(1);
            match self.receive() {
                Ok(1..) => {}
                Ok(0) => panic!("a line expected, but closed after {}", readable(&self.received)),
                Err(error) => panic!("a line expected, but after {}: {error}", readable(&self.received)),
            }
        };
        let line: Vec<u8> = self.received.drain(..end + 2).collect();
        String::from_utf8(line[..end].to_vec()).expect("reply lines are ASCII")
    }

    /// Checks that the next bytes are exactly these.
    #[track_caller]
    pub fn expect(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        while self.received.len() < expected.len() && expected.starts_with(&self.received) {
            match self.receive() {
                Ok(1..) => {}
                Ok(0) => panic!("expected {}, but closed after {}", readable(expected), readable(&self.received)),
                Err(error) => {
                    panic!("expected {}, but after {}: {error}", readable(expected), readable(&self.received));
                }
            }
        }
        assert!(
            self.received.starts_with(expected),
            "expected {}\nbut got  {}",
            readable(expected),
            readable(&self.received)
        );
        self.received.drain(..expected.len());
    }

    /// Sends bytes and checks that exactly these come back first.
    #[track_caller]
    pub fn check(&mut self, bytes: impl AsRef<[u8]>, expected: impl AsRef<[u8]>) {
        self.send(bytes);
        self.expect(expected);
    }

    /// Sends a line and returns the first line of the answer.
    #[track_caller]
    pub fn ask(&mut self, command: &str) -> String {
        self.send(format!("{command}\r\n"));
        self.line()
    }

    /// Sends a line that is answered with counted bytes (`OK`, `FOUND`, `RESERVED`) and returns these, after
    /// checking the CR LF behind them.
    #[track_caller]
    pub fn data(&mut self, command: &str) -> Vec<u8> {
        let line = self.ask(command);
        let count = line.rsplit(' ').next().and_then(|count| count.parse::<usize>().ok());
        let count = count.unwrap_or_else(|| panic!("{command} is answered with {line:?}"));
        let data = self.read(count);
        self.expect("\r\n");
        data
    }

    /// The text that a `stats…` or `list…` command is answered with.
    #[track_caller]
    pub fn text(&mut self, command: &str) -> String {
        String::from_utf8(self.data(command)).expect("statistics are text")
    }

    /// The value of `key` in the answer to a `stats…` command.
    #[track_caller]
    pub fn stat(&mut self, command: &str, key: &str) -> String {
        let text = self.text(command);
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        value.unwrap_or_else(|| panic!("no {key} in {text}")).to_owned()
    }

    /// Checks some lines `key: value` of the answer to a `stats…` command.
    #[track_caller]
    pub fn check_stats(&mut self, command: &str, expected: &[(&str, &str)]) {
        let text = self.text(command);
        for (key, value) in expected {
            assert!(text.lines().any(|line| line == format!("{key}: {value}")), "no {key}: {value} in\n{text}");
        }
    }

    /// Puts a job and returns its id.
    #[track_caller]
    pub fn put(&mut self, priority: u32, delay: u32, ttr: u32, body: &[u8]) -> u64 {
        self.send([format!("put {priority} {delay} {ttr} {}\r\n", body.len()).as_bytes(), body, b"\r\n"].concat());
        let line = self.line();
        let id = line.strip_prefix("INSERTED ").and_then(|id| id.parse().ok());
        id.unwrap_or_else(|| panic!("put is answered with {line:?}"))
    }

    /// Sends `bytes`, ends the sending side, and returns all that comes back until the server closes. Reads while it
    /// sends, so neither side waits for the other however much there is.
    #[track_caller]
    pub fn converse(&mut self, bytes: &[u8]) -> Vec<u8> {
        let descriptor = self.as_fd().try_clone_to_owned().expect("a second descriptor");
        let dense = self.dense.as_mut().map(|dense| (Arc::clone(&dense.ids), std::mem::take(&mut dense.requests)));
        let progress = Progress { answered: Mutex::new(Some(self.answered())), more: Condvar::new() };
        std::thread::scope(|scope| {
            let (progress, ended) = (&progress, EndsProgress(&progress));
            scope.spawn(move || {
                // If the server closes early, the test finds out from what it got back.
                let mut writer = std::fs::File::from(descriptor);
                let sent = match dense {
                    None => writer.write_all(bytes),
                    Some((ids, requests)) => write_with_ids(&mut writer, bytes, &ids, requests, progress),
                };
                if sent.is_ok() {
                    let _ = rustix::net::shutdown(&writer, rustix::net::Shutdown::Write);
                }
            });
            while self.receive_more() {
                progress.set(Some(self.answered()));
            }
            drop(ended);
        });
        std::mem::take(&mut self.received)
    }

    /// Everything up to the end of the stream. A reset connection ends it too.
    ///
    /// # Panics
    ///
    /// If the server does not close within a minute.
    #[track_caller]
    pub fn rest(&mut self) -> Vec<u8> {
        while self.receive_more() {}
        std::mem::take(&mut self.received)
    }

    /// Receives something; `false` at the end of the stream.
    #[track_caller]
    fn receive_more(&mut self) -> bool {
        match self.receive() {
            Ok(count) => count > 0,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => false,
            Err(error) => panic!("the end expected, but after {}: {error}", readable(&self.received)),
        }
    }

    /// Checks that the server closes without sending anything more.
    #[track_caller]
    pub fn expect_end(&mut self) {
        let rest = self.rest();
        assert!(rest.is_empty(), "the end expected, but got {}", readable(&rest));
    }

    /// Checks that nothing was received and nothing comes, and the connection stays open, for `time`.
    #[track_caller]
    pub fn expect_silence(&mut self, time: Duration) {
        assert!(self.received.is_empty(), "silence expected, but got {}", readable(&self.received));
        if self.can_read_within(time) {
            let result = self.receive();
            panic!("silence expected, but {result:?}: {}", readable(&self.received));
        }
    }

    /// Whether something can be read, the end of the stream included, within `time`.
    pub fn can_read_within(&self, time: Duration) -> bool {
        if !self.received.is_empty() {
            return true;
        }
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).expect("a time of a few seconds");
            match poll(&mut [PollFd::new(self, PollFlags::IN)], Some(&timeout)) {
                Ok(count) => return count > 0,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("cannot poll: {error}"),
            }
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

/// How many answers have come; `None` at the end of the stream.
struct Progress {
    answered: Mutex<Option<u64>>,
    more: Condvar,
}

impl Progress {
    fn set(&self, answered: Option<u64>) {
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = answered;
        self.more.notify_all();
    }
}

/// Ends the wait of the sender when the receiver is done, also by a panic.
struct EndsProgress<'a>(&'a Progress);

impl Drop for EndsProgress<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// Writes `bytes` with the server's ids, each as soon as it is known.
fn write_with_ids(
    writer: &mut impl Write,
    mut bytes: &[u8],
    ids: &Ids,
    mut requests: Requests,
    progress: &Progress,
) -> io::Result<()> {
    let mut ready = Vec::new();
    while let Some(part) = requests.next(&mut bytes) {
        let digits = match part {
            Part::Bytes(bytes) => {
                ready.extend(bytes);
                continue;
            }
            Part::Id(digits) => digits,
        };
        let mut answered = *progress.answered.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let open = answered.map_or(0, |answered| requests.open_puts(answered));
            if let Some(real) = ids::resolve(ids, &digits, open) {
                ready.extend(real);
                break;
            }
            writer.write_all(&ready)?;
            ready.clear();
            let lock = progress.answered.lock().unwrap_or_else(PoisonError::into_inner);
            let same = |now: &mut Option<u64>| *now == answered;
            answered = *progress.more.wait_while(lock, same).unwrap_or_else(PoisonError::into_inner);
        }
    }
    ready.extend(requests.rest());
    writer.write_all(&ready)
}
