//! Clients that put, reserve, release, bury and delete all the time, through all frontends.
//!
//! Owns: their threads. Whatever happens to the server, they connect again until the load ends.
//! Never: waits for a fault; rows bring faults about, and the ledger judges.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use testing::process::wait_until;
use testing::rng::Rng;

use crate::ledger::{Held, Ledger};
use crate::tree::{LOAD_TUBES, Tree};

const CLIENTS: u64 = 6;
/// With more jobs clients rather take than put.
const JOBS_MAX: u64 = 300;
/// Between two steps of a client: the machine has other things to do as well.
const PACE: Duration = Duration::from_micros(500);

/// A load on one server.
pub(crate) struct Load {
    pub(crate) ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Begins; every frontend has clients of it.
    pub(crate) fn begin(tree: &Tree, rng: &mut Rng) -> Load {
        let (ledger, stop) = (Arc::new(Ledger::default()), Arc::new(AtomicBool::new(false)));
        let port = tree.port();
        let threads = (0..CLIENTS).map(|number| {
            let (ledger, stop, mut rng) = (Arc::clone(&ledger), Arc::clone(&stop), rng.fork(number));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(mut client) = Client::connect(port, &ledger) {
                        // The end of a connection is no fault: what it leaves open is written down.
                        let _ = client.run(&mut rng, &stop, number == 0);
                    }
                    std::thread::sleep(PACE);
                }
            })
        });
        let load = Load { ledger: Arc::clone(&ledger), stop: Arc::clone(&stop), threads: threads.collect() };
        load.wait_for_more(50);
        load
    }

    /// Waits until so many more puts are acknowledged.
    pub(crate) fn wait_for_more(&self, count: u64) {
        let before = self.ledger.acknowledged();
        wait_until("more puts are acknowledged", || self.ledger.acknowledged() >= before + count);
    }

    /// Ends the clients, not the judgement.
    pub(crate) fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            assert!(thread.join().is_ok(), "a client of the load gave up");
        }
    }

    /// Ends the load, takes all that is there from the server, which serves with all its owners, and judges. In the end
    /// the server has no job of the load.
    pub(crate) fn judge(mut self, tree: &Tree) -> String {
        self.end();
        let collect = || -> std::io::Result<()> {
            let mut client = Client::connect(tree.port(), &self.ledger)?;
            for (tube, _) in LOAD_TUBES {
                client.ask(&format!("use {tube}"))?;
                // A buried job may have used up the space set aside for its next change while the disk was full; how
                // soon after that a failing allocation is tried again is the log's to say.
                let mut refused = Ok(());
                wait_until("no job is buried any more", || match client.ask("kick 1000000") {
                    Ok(reply) => reply == "KICKED 0",
                    Err(error) => {
                        refused = Err(error);
                        true
                    }
                });
                refused?;
            }
            loop {
                let sent = Instant::now();
                let (line, body) = client.ask_with_body("reserve-with-timeout 0")?;
                let Some((id, body)) = job_of(&line, &body) else {
                    assert_eq!(line, "TIMED_OUT", "while taking what is there");
                    return Ok(());
                };
                self.ledger.found(body, id, sent);
                let reply = client.ask(&format!("delete {id}"))?;
                assert_eq!(reply, "DELETED", "while taking what is there");
            }
        };
        // Connections that have just ended give their jobs back a moment later.
        wait_until("nothing is reserved any more", || {
            try_ask(tree.port(), "stats").is_some_and(|text| text.contains("current-jobs-reserved: 0\n"))
        });
        collect().unwrap_or_else(|error| panic!("cannot take what is there: {error}"));
        let counts = self.ledger.judge().unwrap_or_else(|what| panic!("{what}\n{}", tree.server.stderr()));
        let text = try_ask(tree.port(), "stats").unwrap_or_default();
        for state in ["reserved", "delayed", "buried"] {
            let line = format!("current-jobs-{state}: 0\n");
            assert!(text.contains(&line), "no {line:?} after all jobs were deleted: {text}");
        }
        counts
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Id and number of the body of `RESERVED id bytes`.
fn job_of(line: &str, body: &[u8]) -> Option<(u64, u64)> {
    let id = line.strip_prefix("RESERVED ")?.split(' ').next()?.parse().ok()?;
    let number = std::str::from_utf8(body).ok()?.split('-').next()?.parse().ok()?;
    Some((id, number))
}

/// One command on a connection of its own: the line, and a text behind it; `None` if the connection ended first.
pub(crate) fn try_ask(port: u16, command: &str) -> Option<String> {
    let ledger = Ledger::default();
    let mut wire = Wire::connect(port).ok()?;
    drop(ledger);
    wire.send(command).ok()?;
    let (line, body) = wire.hear().ok()?;
    Some(if body.is_empty() { line } else { format!("{line}\n{}", String::from_utf8_lossy(&body)) })
}

/// A connection without memory.
pub(crate) struct Wire {
    stream: TcpStream,
    input: BufReader<TcpStream>,
}

impl Wire {
    pub(crate) fn connect(port: u16) -> std::io::Result<Wire> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Wire { input: BufReader::new(stream.try_clone()?), stream })
    }

    pub(crate) fn send(&mut self, command: &str) -> std::io::Result<()> {
        self.stream.write_all(format!("{command}\r\n").as_bytes())
    }

    /// A reply's line and its body.
    pub(crate) fn hear(&mut self) -> std::io::Result<(String, Vec<u8>)> {
        let mut line = String::new();
        if self.input.read_line(&mut line)? == 0 || !line.ends_with("\r\n") {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end().to_owned();
        let mut body = Vec::new();
        if ["RESERVED", "FOUND", "OK"].contains(&line.split(' ').next().unwrap_or_default()) {
            let length: usize = line.rsplit(' ').next().and_then(|length| length.parse().ok()).unwrap_or(0);
            body.resize(length + 2, 0);
            self.input.read_exact(&mut body)?;
            body.truncate(length);
        }
        Ok((line, body))
    }

    pub(crate) fn ask(&mut self, command: &str) -> std::io::Result<String> {
        self.send(command)?;
        Ok(self.hear()?.0)
    }
}

struct Client<'a> {
    wire: Wire,
    ledger: &'a Ledger,
    held: Vec<Held>,
}

impl<'a> Client<'a> {
    fn connect(port: u16, ledger: &'a Ledger) -> std::io::Result<Client<'a>> {
        let mut client = Client { wire: Wire::connect(port)?, ledger, held: Vec::new() };
        for (tube, _) in LOAD_TUBES {
            client.ask(&format!("watch {tube}"))?;
        }
        Ok(client)
    }

    fn ask(&mut self, command: &str) -> std::io::Result<String> {
        self.wire.ask(command)
    }

    fn ask_with_body(&mut self, command: &str) -> std::io::Result<(String, Vec<u8>)> {
        self.wire.send(command)?;
        self.wire.hear()
    }

    fn run(&mut self, rng: &mut Rng, stop: &AtomicBool, waits: bool) -> std::io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(PACE);
            let is_full = self.ledger.live() > JOBS_MAX;
            match rng.weighted(&[if waits { 0 } else { 10 }, if is_full { 30 } else { 8 }, 8]) {
                0 => self.put(rng)?,
                1 => {
                    // Nobody holds many: what is held is out of reach for the others.
                    if self.held.len() < 3 {
                        self.reserve(if waits { 1 } else { 0 })?;
                    }
                }
                _ => self.finish(rng)?,
            }
            // A new connection is another session, perhaps at another frontend.
            if rng.chance(1, 500) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn put(&mut self, rng: &mut Rng) -> std::io::Result<()> {
        let (tube, owner) = *rng.pick(&LOAD_TUBES);
        let used = self.ask(&format!("use {tube}"))?;
        if used != format!("USING {tube}") {
            return self.expect_refusal("use", &used);
        }
        let number = self.ledger.putting(owner);
        let body = format!("{number}-{}", "x".repeat(rng.index(300)));
        let sent = Instant::now();
        let reply = self.ask(&format!("put {} 0 600 {}\r\n{body}", rng.below(6), body.len()))?;
        let id = reply.strip_prefix("INSERTED ").and_then(|id| id.parse().ok());
        self.ledger.put_answered(number, id, sent);
        if id.is_none() && !["OUT_OF_MEMORY", "DRAINING"].contains(&&*reply) {
            self.expect_refusal("put", &reply)?;
        }
        Ok(())
    }

    fn reserve(&mut self, timeout_s: u32) -> std::io::Result<()> {
        let sent = Instant::now();
        let (line, body) = self.ask_with_body(&format!("reserve-with-timeout {timeout_s}"))?;
        match job_of(&line, &body) {
            Some((id, number)) => self.held.push(self.ledger.reserved(number, id, sent)),
            None if line == "TIMED_OUT" => {}
            None => self.expect_refusal("reserve", &line)?,
        }
        Ok(())
    }

    /// Ends a reservation, one way or another.
    fn finish(&mut self, rng: &mut Rng) -> std::io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let held = self.held.swap_remove(rng.index(self.held.len()));
        let was_last = self.ledger.is_last(held);
        let (command, expected) = match rng.weighted(&[12, 3, 1, 2]) {
            0 => (format!("delete {}", held.id), "DELETED"),
            1 => (format!("release {} {} 0", held.id, rng.below(6)), "RELEASED"),
            2 => (format!("bury {} 3", held.id), "BURIED"),
            _ => (format!("touch {}", held.id), "TOUCHED"),
        };
        let is_delete = expected == "DELETED";
        if is_delete {
            self.ledger.deleting(held);
        }
        let reply = self.ask(&command)?;
        if is_delete {
            self.ledger.delete_answered(held, reply == expected);
        }
        if reply == expected {
            self.ledger.holder_succeeded(held, was_last, expected);
            match expected {
                "TOUCHED" => self.held.push(held),
                "BURIED" => {
                    self.ask(&format!("kick-job {}", held.id))?;
                }
                _ => {}
            }
            return Ok(());
        }
        // A job that has used up the space set aside for it stays as it is on a full disk.
        if reply == "OUT_OF_MEMORY" && !is_delete {
            self.held.push(held);
            return Ok(());
        }
        // Whoever holds a job and is still connected has it.
        if reply == "NOT_FOUND" {
            self.ledger.wrong(format!("{command:?} of job {} is answered NOT_FOUND to its holder", held.body));
        }
        self.expect_refusal(&command, &reply)
    }

    /// `INTERNAL_ERROR`: an owner was away for too long, or cannot write. Anything else is wrong.
    fn expect_refusal(&mut self, command: &str, reply: &str) -> std::io::Result<()> {
        if reply != "INTERNAL_ERROR" && reply != "NOT_FOUND" {
            self.ledger.wrong(format!("{command:?} is answered {reply:?}"));
        }
        Ok(())
    }
}
