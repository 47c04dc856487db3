//! Cuts a connection's input into commands.
//!
//! Owns: what has been read of a command that is not complete: a body being received, a line or body being skipped.
//! Never: keeps more than one body, and never allocates a body before its size has been checked.
//!
//! The caller keeps the bytes that [`Framer::next`] did not consume, at most one byte less than [`LINE_BYTES_MAX`], and
//! shows them again in front of what arrives next.

use crate::line::{Line, LineError, PutHeader, parse_line};
use crate::{Command, LINE_BYTES_MAX};

/// What the framer must know of the server's settings.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Largest body of a job, in bytes, its CR LF not counted.
    pub body_bytes_max: u32,
    /// Whether an HTTP request line as the first line ends the connection.
    pub close_on_http: bool,
}

/// The next thing in a connection's input.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A complete command.
    Command(Command<'a>),
    /// The client wants to go.
    Quit,
    /// The first line is an HTTP request: close without a reply.
    HttpRequest,
    /// Answer `BAD_FORMAT`.
    BadFormat,
    /// Answer `UNKNOWN_COMMAND`.
    UnknownCommand,
    /// A put over the limit has been skipped: answer `JOB_TOO_BIG`. It counts as a put.
    JobTooBig,
    /// A put's body did not end in CR LF: answer `EXPECTED_CRLF`. It counts as a put.
    ExpectedCrlf,
    /// There was no memory for a put's body, which has been skipped: answer `OUT_OF_MEMORY`. It counts as a put.
    OutOfMemory,
}

#[derive(Debug)]
enum State {
    /// At the beginning of a line.
    Line,
    /// Inside a line that is too long; `after_cr` if the last byte seen was a CR.
    SkipLine { after_cr: bool },
    /// Receiving a body and its CR LF.
    Body { header: PutHeader, received: Vec<u8> },
    /// Skipping a body that will not be stored.
    SkipBody { left: u64, no_memory: bool },
}

/// The reader of one connection.
#[derive(Debug)]
pub struct Framer {
    state: State,
    /// Watches the first line until it has ended; `None` afterwards.
    sniff: Option<HttpSniff>,
}

impl Default for Framer {
    fn default() -> Self {
        Self::new()
    }
}

/// Body memory taken at once before any of a large body has arrived, in bytes; beyond it memory grows with what arrives.
const BODY_BYTES_AT_ONCE: usize = 64 * 1024;

impl Framer {
    /// A connection that has sent nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Framer { state: State::Line, sniff: Some(HttpSniff::Word(0)) }
    }

    /// Bytes of memory held for a body that is being received.
    #[must_use]
    pub fn body_bytes_held(&self) -> usize {
        match &self.state {
            State::Body { received, .. } => received.capacity(),
            _ => 0,
        }
    }

    /// Bytes, with its CR LF, of a large body that is being received; `None` for one that is received in any case.
    #[must_use]
    pub fn large_body(&self) -> Option<u64> {
        match &self.state {
            State::Body { header, .. } if header.body_bytes as usize > BODY_BYTES_AT_ONCE => {
                Some(u64::from(header.body_bytes) + 2)
            }
            _ => None,
        }
    }

    /// Takes the next item from the front of `input` and returns how many bytes it consumed.
    ///
    /// With `None` more input is needed; what was not consumed must be shown again in front of it.
    pub fn next<'a>(&mut self, input: &'a [u8], limits: &Limits) -> (usize, Option<Item<'a>>) {
        match &mut self.state {
            State::Line => self.line(input, limits),
            State::SkipLine { after_cr } => {
                let end = if *after_cr && input.first() == Some(&b'\n') { Some(1) } else { crlf_end(input) };
                let seen = end.unwrap_or(input.len());
                *after_cr = input.last().map_or(*after_cr, |byte| *byte == b'\r');
                if self.sniff_http(&input[..seen], limits) {
                    return (input.len(), Some(Item::HttpRequest));
                }
                if end.is_none() {
                    return (input.len(), None);
                }
                self.sniff = None;
                self.state = State::Line;
                (seen, Some(Item::BadFormat))
            }
            State::Body { header, received } => {
                let whole = header.body_bytes as usize + 2;
                let take = input.len().min(whole - received.len());
                if reserve_for(received, take, whole).is_err() {
                    let left = (whole - received.len()) as u64;
                    self.state = State::SkipBody { left, no_memory: true };
                    return self.next(input, limits);
                }
                received.extend_from_slice(&input[..take]);
                if received.len() < whole {
                    return (take, None);
                }
                let header = *header;
                let mut body = std::mem::take(received);
                self.state = State::Line;
                if !body.ends_with(b"\r\n") {
                    return (take, Some(Item::ExpectedCrlf));
                }
                body.truncate(whole - 2);
                (take, Some(put(header, body.into_boxed_slice())))
            }
            State::SkipBody { left, no_memory } => {
                let take = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                *left -= take as u64;
                if *left > 0 {
                    return (take, None);
                }
                let item = if *no_memory { Item::OutOfMemory } else { Item::JobTooBig };
                self.state = State::Line;
                (take, Some(item))
            }
        }
    }

    fn line<'a>(&mut self, input: &'a [u8], limits: &Limits) -> (usize, Option<Item<'a>>) {
        let window = &input[..input.len().min(LINE_BYTES_MAX)];
        let Some(end) = crlf_end(window) else {
            if input.len() < LINE_BYTES_MAX {
                return (0, None);
            }
            if self.sniff_http(window, limits) {
                return (input.len(), Some(Item::HttpRequest));
            }
            self.state = State::SkipLine { after_cr: window.last() == Some(&b'\r') };
            return self.behind(LINE_BYTES_MAX, input, limits);
        };
        if self.sniff.is_some() {
            if self.sniff_http(&input[..end], limits) {
                return (input.len(), Some(Item::HttpRequest));
            }
            self.sniff = None;
        }
        let header = match parse_line(&input[..end - 2]) {
            Ok(Line::Command(command)) => return (end, Some(Item::Command(command))),
            Ok(Line::Quit) => return (end, Some(Item::Quit)),
            Err(LineError::BadFormat) => return (end, Some(Item::BadFormat)),
            Err(LineError::UnknownCommand) => return (end, Some(Item::UnknownCommand)),
            Ok(Line::Put(header)) => header,
        };
        if header.body_bytes > limits.body_bytes_max {
            self.state = State::SkipBody { left: u64::from(header.body_bytes) + 2, no_memory: false };
            return self.behind(end, input, limits);
        }
        if header.trailing_garbage {
            return (end, Some(Item::BadFormat));
        }
        let body_end = end + header.body_bytes as usize;
        if input.len() >= body_end + 2 {
            let item = if &input[body_end..body_end + 2] == b"\r\n" {
                put(header, Box::from(&input[end..body_end]))
            } else {
                Item::ExpectedCrlf
            };
            return (body_end + 2, Some(item));
        }
        self.state = State::Body { header, received: Vec::new() };
        self.behind(end, input, limits)
    }

    /// Goes on behind the `used` bytes that a change of state consumed.
    fn behind<'a>(&mut self, used: usize, input: &'a [u8], limits: &Limits) -> (usize, Option<Item<'a>>) {
        if used == input.len() {
            return (used, None);
        }
        let (more, item) = self.next(&input[used..], limits);
        (used + more, item)
    }

    /// Shows the bytes of the first line to the sniffer; `true` if they are an HTTP request line.
    fn sniff_http(&mut self, bytes: &[u8], limits: &Limits) -> bool {
        let Some(sniff) = &mut self.sniff else { return false };
        limits.close_on_http && sniff.feed(bytes)
    }
}

fn put(header: PutHeader, body: Box<[u8]>) -> Item<'static> {
    Item::Command(Command::Put { pri: header.pri, delay_s: header.delay_s, ttr_s: header.ttr_s, body })
}

/// Makes room for `take` bytes more of a body that will have `whole`: all of a small one at once, a large one as it
/// comes, at most doubled.
fn reserve_for(received: &mut Vec<u8>, take: usize, whole: usize) -> Result<(), std::collections::TryReserveError> {
    let needed = received.len() + take;
    if needed <= received.capacity() {
        return Ok(());
    }
    let target = whole.min(needed.max(received.len() * 2).max(BODY_BYTES_AT_ONCE));
    received.try_reserve_exact(target - received.len())
}

/// Length of the first line of `bytes` with its CR LF.
fn crlf_end(bytes: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', bytes).find(|at| *at > 0 && bytes[*at - 1] == b'\r').map(|at| at + 1)
}

/// Recognises `WORD SP target SP HTTP/` in a line that may arrive in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HttpSniff {
    /// In the method, with its length so far.
    Word(usize),
    /// In the target, with its length so far.
    Target(usize),
    /// So many bytes of `HTTP/` have matched.
    Version(usize),
    /// It is none.
    No,
    /// It is one.
    Yes,
}

impl HttpSniff {
    fn feed(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            *self = match (*self, *byte) {
                (HttpSniff::Word(length), b' ') if length > 0 => HttpSniff::Target(0),
                (HttpSniff::Word(length), byte) if byte.is_ascii_graphic() => HttpSniff::Word(length + 1),
                (HttpSniff::Target(length), b' ') if length > 0 => HttpSniff::Version(0),
                (HttpSniff::Target(length), byte) if byte != b' ' && byte != b'\r' => HttpSniff::Target(length + 1),
                (HttpSniff::Version(length), byte) if byte == b"HTTP/"[length] => {
                    if length == 4 {
                        *self = HttpSniff::Yes;
                        return true;
                    }
                    HttpSniff::Version(length + 1)
                }
                (state @ (HttpSniff::No | HttpSniff::Yes), _) => state,
                _ => HttpSniff::No,
            };
            if matches!(*self, HttpSniff::No | HttpSniff::Yes) {
                break;
            }
        }
        *self == HttpSniff::Yes
    }
}

#[cfg(test)]
mod tests;
