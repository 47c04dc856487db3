//! The load generator: one thread, epoll, many connections, and a check of every reply.
//!
//! It must cost less than what it measures: requests are prepared, a batch is one `write`, a reply is compared with
//! what is expected instead of being parsed into something, and only a job's id is kept. A wrong reply ends the round
//! with an error; it never becomes a number.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::epoll;

use crate::workload::{Command, Script, Wire, Workload, tube_name};

/// Longest silence of a server with requests in flight before the round is given up.
const SILENCE_MAX: Duration = Duration::from_secs(20);
const READ_BYTES: usize = 256 * 1024;
const EVENTS_MAX: usize = 1_024;
/// Longest reply line the workloads can meet; a longer one is wrong.
const LINE_BYTES_MAX: usize = 256;
/// Latencies are kept in nanoseconds up to this, to three digits.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Why a load could not be put on a server.
#[derive(Debug, thiserror::Error)]
pub enum GeneratorError {
    /// The server is not there or refuses connections.
    #[error("connect to {address}: {source}")]
    Connect {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The server ended a connection in the middle of the load.
    #[error("the server closed a connection that waited for the reply to {command:?}")]
    Closed {
        /// The oldest command without a reply.
        command: Command,
    },
    /// A reply is not what the command must get.
    #[error("wrong reply to {command:?}: {reply:?}")]
    WrongReply {
        /// The command.
        command: Command,
        /// The reply line, or the part of a body that differs.
        reply: String,
    },
    /// Requests are in flight and nothing comes back.
    #[error("no reply within {} s with {in_flight} commands in flight", SILENCE_MAX.as_secs())]
    Silent {
        /// Commands without a reply.
        in_flight: usize,
    },
    /// Any other failure of a system call.
    #[error("load generator: {0}")]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for GeneratorError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// What stands at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Responder {
    /// A queue server.
    Queue,
    /// The floor: it has no tubes, so none are watched and their names in replies are not compared.
    Floor,
}

/// A workload on its connections.
pub struct Generator {
    poll: OwnedFd,
    connections: Vec<Connection>,
    plan: Plan,
    buffer: Vec<u8>,
    events: Vec<epoll::Event>,
    latencies: Histogram<u64>,
    answered: u64,
    in_flight: usize,
}

/// What all connections share.
struct Plan {
    script: Script,
    wire: Wire,
    depth: usize,
    responder: Responder,
    /// A whole batch, where every batch has the same bytes.
    constant_batch: Option<Vec<u8>>,
}

struct Connection {
    stream: TcpStream,
    tubes: Vec<usize>,
    /// Positions in the script of the next command to send and of the next reply to arrive, and the same in `tubes`.
    send_at: usize,
    reply_at: usize,
    tube_send_at: usize,
    tube_reply_at: usize,
    in_flight: usize,
    /// Commands it may still send.
    budget: u64,
    out: Vec<u8>,
    /// Length of the batch on its way, in `out` or in the plan's constant batch, and how much of it is sent.
    out_len: usize,
    out_sent: usize,
    /// Beginning of a reply line whose end has not arrived.
    line: Vec<u8>,
    /// Bytes of a body and its CR LF that have not arrived.
    body_left: usize,
    held: VecDeque<u64>,
    sent_at: Instant,
}

impl Generator {
    /// Opens the connections of `workload` and, on a queue server, lets them watch their tubes.
    ///
    /// # Errors
    ///
    /// A server that cannot be reached, or that answers `watch` or `ignore` wrongly.
    pub fn connect(address: SocketAddr, workload: &Workload, responder: Responder) -> Result<Self, GeneratorError> {
        Self::open(address, workload, responder, responder == Responder::Queue)
    }

    /// As [`Generator::connect`] on a queue server, but the connections go on watching `default` alone: for puts into
    /// tubes that nobody is to watch.
    ///
    /// # Errors
    ///
    /// A server that cannot be reached.
    pub fn connect_without_watching(address: SocketAddr, workload: &Workload) -> Result<Self, GeneratorError> {
        Self::open(address, workload, Responder::Queue, false)
    }

    /// As [`Generator::connect`] on a queue server, but connection number n uses and watches the tube number n and
    /// nothing else; none of that is in the script.
    ///
    /// # Errors
    ///
    /// A server that cannot be reached, or that answers `use`, `watch` or `ignore` wrongly.
    pub fn connect_each_to_its_tube(address: SocketAddr, workload: &Workload) -> Result<Self, GeneratorError> {
        let generator = Self::open(address, workload, Responder::Queue, false)?;
        for (tube, connection) in generator.connections.iter().enumerate() {
            // The socket blocks for the length of these exchanges.
            connection.stream.set_nonblocking(false)?;
            exchange(&connection.stream, &format!("use {}\r\n", tube_name(tube)), b"USING ")?;
            watch_only(&connection.stream, &[tube])?;
            connection.stream.set_nonblocking(true)?;
        }
        Ok(generator)
    }

    fn open(
        address: SocketAddr,
        workload: &Workload,
        responder: Responder,
        watch: bool,
    ) -> Result<Self, GeneratorError> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut connections = Vec::with_capacity(workload.connections);
        for index in 0..workload.connections {
            let stream = TcpStream::connect(address).map_err(|source| GeneratorError::Connect { address, source })?;
            stream.set_nodelay(true)?;
            let tubes = workload.tubes_of(index);
            if watch && !tubes.is_empty() {
                watch_only(&stream, &tubes)?;
            }
            stream.set_nonblocking(true)?;
            let flags =
                epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
            epoll::add(&poll, &stream, epoll::EventData::new_u64(index as u64), flags)?;
            connections.push(Connection::new(stream, tubes));
        }
        let (script, wire) = (workload.script(), Wire::new(workload.body_bytes));
        let constant_batch = script.is_constant().then(|| wire.put().repeat(workload.depth));
        Ok(Self {
            poll,
            connections,
            plan: Plan { script, wire, depth: workload.depth, responder, constant_batch },
            buffer: vec![0; READ_BYTES],
            events: Vec::with_capacity(EVENTS_MAX),
            latencies: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).map_err(io::Error::other)?,
            answered: 0,
            in_flight: 0,
        })
    }

    /// Replies that have arrived and were right, since the beginning.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Latencies in nanoseconds, from the write of a batch to the read of a reply, since the last clearing.
    pub fn latencies(&mut self) -> &mut Histogram<u64> {
        &mut self.latencies
    }

    /// Runs until `duration` is over or `commands_max` more replies have arrived, but for one reply at least, and
    /// leaves what is in flight there.
    ///
    /// # Errors
    ///
    /// A wrong reply, a closed connection or a silent server.
    pub fn run_for(&mut self, duration: Duration, commands_max: u64) -> Result<(), GeneratorError> {
        let (begin, answered_begin) = (Instant::now(), self.answered);
        let answered_end = answered_begin.saturating_add(commands_max);
        self.start(u64::MAX)?;
        loop {
            let left = duration.saturating_sub(begin.elapsed());
            let is_over = left.is_zero() || self.answered >= answered_end;
            if is_over && self.answered > answered_begin {
                return Ok(());
            }
            self.turn(if is_over { SILENCE_MAX } else { left })?;
        }
    }

    /// Sends `commands` commands on each connection and waits for all replies.
    ///
    /// # Errors
    ///
    /// A wrong reply, a closed connection or a silent server.
    pub fn run_commands(&mut self, commands: u64) -> Result<(), GeneratorError> {
        self.start(commands)?;
        while self.in_flight > 0 {
            self.turn(SILENCE_MAX)?;
        }
        Ok(())
    }

    fn start(&mut self, budget: u64) -> Result<(), GeneratorError> {
        let now = Instant::now();
        for connection in &mut self.connections {
            connection.budget = budget;
            if connection.in_flight == 0 {
                self.in_flight += connection.send_batch(&self.plan, now)?;
            }
        }
        Ok(())
    }

    /// Waits for events, at most `wait_max`, and carries out what they allow.
    fn turn(&mut self, wait_max: Duration) -> Result<(), GeneratorError> {
        self.events.clear();
        let wait = wait_max.min(SILENCE_MAX);
        let timeout = rustix::event::Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(0) if wait == SILENCE_MAX => return Err(GeneratorError::Silent { in_flight: self.in_flight }),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        for event in &self.events {
            let (data, flags) = (event.data.u64(), event.flags);
            let index = usize::try_from(data).map_err(io::Error::other)?;
            let connection = &mut self.connections[index];
            if flags.contains(epoll::EventFlags::OUT) {
                connection.flush(&self.plan)?;
            }
            if !flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                continue;
            }
            let at_end = flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP);
            let replies = connection.receive(&self.plan, &mut self.buffer, at_end)?;
            if replies == 0 {
                continue;
            }
            let now = Instant::now();
            let waited = now.duration_since(connection.sent_at).as_nanos();
            let waited = u64::try_from(waited).unwrap_or(LATENCY_NS_MAX).clamp(1, LATENCY_NS_MAX);
            self.latencies.saturating_record_n(waited, replies as u64);
            self.answered += replies as u64;
            self.in_flight -= replies;
            if connection.in_flight == 0 {
                self.in_flight += connection.send_batch(&self.plan, now)?;
            }
        }
        Ok(())
    }
}

/// Watches `tubes` and nothing else, one command at a time: this is before the load.
fn watch_only(stream: &TcpStream, tubes: &[usize]) -> Result<(), GeneratorError> {
    let watched = tubes.iter().map(|tube| format!("watch {}\r\n", tube_name(*tube)));
    for request in watched.chain(["ignore default\r\n".to_owned()]) {
        exchange(stream, &request, b"WATCHING ")?;
    }
    Ok(())
}

/// Sends `request` on a socket that blocks and expects one line that begins with `start`.
fn exchange(mut stream: &TcpStream, request: &str, start: &[u8]) -> Result<(), GeneratorError> {
    let mut reply = [0; LINE_BYTES_MAX];
    stream.write_all(request.as_bytes())?;
    let count = stream.read(&mut reply)?;
    if !reply[..count].starts_with(start) || !reply[..count].ends_with(b"\r\n") {
        let reply = String::from_utf8_lossy(&reply[..count]).into_owned();
        return Err(GeneratorError::Io(io::Error::other(format!("{request:?} was answered {reply:?}"))));
    }
    Ok(())
}

impl Connection {
    fn new(stream: TcpStream, tubes: Vec<usize>) -> Self {
        Self {
            stream,
            tubes,
            send_at: 0,
            reply_at: 0,
            tube_send_at: 0,
            tube_reply_at: 0,
            in_flight: 0,
            budget: 0,
            out: Vec::new(),
            out_len: 0,
            out_sent: 0,
            line: Vec::new(),
            body_left: 0,
            held: VecDeque::new(),
            sent_at: Instant::now(),
        }
    }

    /// Sends the next batch as far as the budget goes and returns its number of commands.
    fn send_batch(&mut self, plan: &Plan, now: Instant) -> Result<usize, GeneratorError> {
        let count = usize::try_from(self.budget).map_or(plan.depth, |budget| budget.min(plan.depth));
        if count == 0 {
            return Ok(0);
        }
        self.budget -= count as u64;
        self.out_sent = 0;
        self.out_len = if plan.constant_batch.is_some() {
            count * plan.wire.put().len()
        } else {
            self.out.clear();
            for _ in 0..count {
                self.append_command(plan);
            }
            self.out.len()
        };
        self.in_flight = count;
        self.sent_at = now;
        self.flush(plan)?;
        Ok(count)
    }

    fn append_command(&mut self, plan: &Plan) {
        let command = plan.script.at(self.send_at);
        self.send_at = plan.script.after(self.send_at);
        let (mut tube, mut id) = (0, 0);
        match command {
            Command::Use => {
                tube = self.tubes[self.tube_send_at];
                self.tube_send_at = (self.tube_send_at + 1) % self.tubes.len();
            }
            Command::Delete => id = self.held.pop_front().expect("a script reserves before it deletes"),
            Command::Put | Command::Reserve => {}
        }
        plan.wire.request(command, tube, id, &mut self.out);
    }

    /// Writes what the socket takes of the present batch.
    fn flush(&mut self, plan: &Plan) -> Result<(), GeneratorError> {
        let batch = plan.constant_batch.as_deref().unwrap_or(&self.out);
        while self.out_sent < self.out_len {
            match self.stream.write(&batch[self.out_sent..self.out_len]) {
                Ok(count) => self.out_sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads all there is, checks it, and returns the number of replies it completed. `at_end` tells that the server
    /// sends nothing more.
    fn receive(&mut self, plan: &Plan, buffer: &mut [u8], at_end: bool) -> Result<usize, GeneratorError> {
        let before = self.in_flight;
        loop {
            match self.stream.read(buffer) {
                Ok(0) if self.in_flight == 0 => break,
                Ok(0) => return Err(GeneratorError::Closed { command: plan.script.at(self.reply_at) }),
                Ok(count) => {
                    self.check(plan, &buffer[..count])?;
                    // A short read has emptied the socket: what comes later raises a new edge. An end that is there
                    // already does not.
                    if count < buffer.len() && !at_end {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(before - self.in_flight)
    }

    fn check(&mut self, plan: &Plan, mut bytes: &[u8]) -> Result<(), GeneratorError> {
        while !bytes.is_empty() {
            if self.body_left > 0 {
                let (part, rest) = bytes.split_at(self.body_left.min(bytes.len()));
                self.check_body(plan, part)?;
                bytes = rest;
                continue;
            }
            let Some(end) = memchr::memchr(b'\n', bytes) else {
                self.line.extend_from_slice(bytes);
                if self.line.len() > LINE_BYTES_MAX {
                    return Err(self.wrong(plan, &self.line));
                }
                return Ok(());
            };
            let (line, rest) = bytes.split_at(end + 1);
            bytes = rest;
            if self.line.is_empty() {
                self.check_line(plan, line)?;
            } else {
                let mut whole = std::mem::take(&mut self.line);
                whole.extend_from_slice(line);
                self.check_line(plan, &whole)?;
                whole.clear();
                self.line = whole;
            }
        }
        Ok(())
    }

    fn check_line(&mut self, plan: &Plan, line: &[u8]) -> Result<(), GeneratorError> {
        if self.in_flight == 0 {
            return Err(self.wrong(plan, line));
        }
        let right = match plan.script.at(self.reply_at) {
            Command::Use => self.is_using(plan, line),
            Command::Put => {
                line.strip_prefix(b"INSERTED ").and_then(number_and_rest).is_some_and(|(_, rest)| rest == b"\r\n")
            }
            Command::Delete => line == b"DELETED\r\n",
            Command::Reserve => {
                let reserved = line.strip_prefix(b"RESERVED ").and_then(number_and_rest);
                let sized = reserved.and_then(|(id, rest)| {
                    let (bytes, rest) = number_and_rest(rest.strip_prefix(b" ")?)?;
                    (rest == b"\r\n" && bytes == plan.wire.body().len() as u64).then_some(id)
                });
                let Some(id) = sized else { return Err(self.wrong(plan, line)) };
                self.held.push_back(id);
                self.body_left = plan.wire.body().len() + 2;
                return Ok(());
            }
        };
        if !right {
            return Err(self.wrong(plan, line));
        }
        self.complete(plan);
        Ok(())
    }

    fn is_using(&mut self, plan: &Plan, line: &[u8]) -> bool {
        let tube = self.tubes[self.tube_reply_at];
        self.tube_reply_at = (self.tube_reply_at + 1) % self.tubes.len();
        match plan.responder {
            Responder::Queue => line
                .strip_prefix(b"USING ")
                .and_then(|rest| rest.strip_suffix(b"\r\n"))
                .is_some_and(|name| name == tube_name(tube).as_bytes()),
            Responder::Floor => line.starts_with(b"USING "),
        }
    }

    fn check_body(&mut self, plan: &Plan, part: &[u8]) -> Result<(), GeneratorError> {
        let body = plan.wire.body();
        let begin = body.len() + 2 - self.body_left;
        let in_body = body.get(begin..).unwrap_or_default();
        let (of_body, of_end) = part.split_at(part.len().min(in_body.len()));
        let end_begin = begin.max(body.len()) - body.len();
        if of_body != &in_body[..of_body.len()] || of_end != &b"\r\n"[end_begin..end_begin + of_end.len()] {
            return Err(self.wrong(plan, part));
        }
        self.body_left -= part.len();
        if self.body_left == 0 {
            self.complete(plan);
        }
        Ok(())
    }

    fn complete(&mut self, plan: &Plan) {
        self.in_flight -= 1;
        self.reply_at = plan.script.after(self.reply_at);
    }

    fn wrong(&self, plan: &Plan, reply: &[u8]) -> GeneratorError {
        let shown = &reply[..reply.len().min(LINE_BYTES_MAX)];
        let (command, reply) = (plan.script.at(self.reply_at), String::from_utf8_lossy(shown).into_owned());
        GeneratorError::WrongReply { command, reply }
    }
}

/// The decimal number `bytes` begin with, and what follows it.
fn number_and_rest(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || digits > 19 {
        return None;
    }
    let number = bytes[..digits].iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    Some((number, &bytes[digits..]))
}
