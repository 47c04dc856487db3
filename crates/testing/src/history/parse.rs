//! The text of a history as values.

use std::collections::BTreeMap;

use super::processes::OwnerLife;

/// A line that is not as the format wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// The line.
    pub line: String,
    /// What is wrong.
    pub why: &'static str,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}: {:?}", self.why, self.line)
    }
}

/// A command of a client; bodies are hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is the argument of the same name in the protocol")]
pub enum Command {
    Put {
        pri: u32,
        delay_s: u32,
        ttr_s: u32,
        bytes: u32,
        hash: u64,
    },
    /// Everything else, as its line on the wire.
    Line(String),
}

/// A reply; bodies are hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is the part of the same name in the protocol")]
pub enum Reply {
    Inserted(u64),
    Reserved {
        id: u64,
        hash: u64,
    },
    Found {
        id: u64,
        hash: u64,
    },
    /// The text of an `OK`, its lines parted by `|`.
    Text(String),
    /// Everything else, as its line on the wire.
    Line(String),
}

/// A command and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// What was asked.
    pub command: Command,
    /// When, in ns.
    pub at_ns: u64,
    /// The reply and when it was there; `None` is unknown.
    pub reply: Option<(Reply, u64)>,
    /// It was never sent.
    pub failed: bool,
}

/// A connection as its client saw it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Connection {
    /// Local port.
    pub port: u16,
    /// When it was open.
    pub open_ns: u64,
    /// When it had ended.
    pub gone_ns: Option<u64>,
    /// Its commands; number N is at N - 1.
    pub commands: Vec<Invocation>,
}

/// One line of the server's trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Number within the generation; accepts have none.
    pub sequence: u64,
    /// When the turn began in which it was decided, in ns.
    pub at_ns: u64,
    /// When it was decided at the latest, in ns; the same if one clock tells the time of all processes.
    pub until_ns: u64,
    /// The connection, as the key of [`History::connections`]; `None` for one that no client has logged.
    pub connection: Option<u64>,
    /// What happened.
    pub what: Decision,
}

/// What the server traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// A connection was accepted.
    Accept,
    /// The reply to this command of the connection, from 1, was decided.
    Reply(u64),
    /// The connection's jobs are free.
    Close,
    /// A frontend has given the reply to this command, which may be an owner's.
    Said(u64),
    /// Numbered, and no decision.
    Step,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// By the clients' numbers.
    pub connections: BTreeMap<u64, Connection>,
    /// Generations in the order of their starts, and when. Those of several owners: see [`life_of`].
    pub starts: Vec<(u64, u64)>,
    /// What each generation traced, in order.
    pub events: BTreeMap<u64, Vec<Event>>,
    /// When it was reported that no process accepts a new job.
    pub drained_ns: Option<u64>,
    /// Jobs at the end: ids and hashes; `None` if the end was not looked at.
    pub present: Option<BTreeMap<u64, u64>>,
    /// What owners have traced, if they did so each for itself.
    pub owners: BTreeMap<u64, OwnerLife>,
}

/// The number under which a history knows a generation of an owner: `OWNER.GENERATION`, or just the generation of a
/// server of one process. Generations of one owner rise with their numbers.
#[must_use]
pub fn life_of(owner: u16, generation: u32) -> u64 {
    u64::from(owner) << OWNER_SHIFT | u64::from(generation)
}

/// The owner in the number of [`life_of`].
#[must_use]
pub fn owner_of(life: u64) -> u64 {
    life >> OWNER_SHIFT
}

const OWNER_SHIFT: u32 = 32;

pub(super) struct Words<'a> {
    pub(super) line: &'a str,
    pub(super) rest: &'a str,
}

impl<'a> Words<'a> {
    pub(super) fn word(&mut self) -> Result<&'a str, Malformed> {
        let (word, rest) = self.rest.split_once(' ').unwrap_or((self.rest, ""));
        self.rest = rest;
        if word.is_empty() { Err(self.malformed("a word is missing")) } else { Ok(word) }
    }

    pub(super) fn number<T: std::str::FromStr>(&mut self) -> Result<T, Malformed> {
        self.word()?.parse().map_err(|_| self.malformed("not a number"))
    }

    /// A generation: `GENERATION` or `OWNER.GENERATION`.
    pub(super) fn life(&mut self) -> Result<u64, Malformed> {
        let word = self.word()?;
        let life = match word.split_once('.') {
            None => word.parse().ok(),
            Some((owner, generation)) => {
                let (owner, generation) = (owner.parse().ok(), generation.parse().ok());
                owner.zip(generation).map(|(owner, generation)| life_of(owner, generation))
            }
        };
        life.ok_or_else(|| self.malformed("not a generation"))
    }

    pub(super) fn hash(&mut self) -> Result<u64, Malformed> {
        u64::from_str_radix(self.word()?, 16).map_err(|_| self.malformed("not a hash"))
    }

    pub(super) fn malformed(&self, why: &'static str) -> Malformed {
        Malformed { line: self.line.to_owned(), why }
    }
}

impl History {
    /// Reads what clients have written and what the server has traced.
    ///
    /// # Errors
    ///
    /// The first line that is not as the format wants it. A line without its line end is none: the server was killed
    /// while it wrote.
    pub fn parse(clients: &str, trace: &str) -> Result<History, Malformed> {
        let mut history = History::default();
        for line in whole_lines(clients) {
            history.client_line(line)?;
        }
        let mut accepted = BTreeMap::new();
        for line in whole_lines(trace) {
            // A server that was killed while it wrote has left half a line, and the next one goes on behind it.
            let from = line.rfind("start ").unwrap_or(0);
            history.trace_line(&line[from..], &mut accepted)?;
        }
        Ok(history)
    }

    fn client_line(&mut self, line: &str) -> Result<(), Malformed> {
        let mut words = Words { line, rest: line };
        match words.word()? {
            "open" => {
                let key = words.number()?;
                let opened = Connection { port: words.number()?, open_ns: words.number()?, ..Connection::default() };
                if self.connections.insert(key, opened).is_some() {
                    return Err(words.malformed("a connection opens twice"));
                }
            }
            "invoke" => {
                let (key, number, at_ns): (u64, usize, u64) = (words.number()?, words.number()?, words.number()?);
                let command = command(&mut words)?;
                let connection = self.connections.get_mut(&key).ok_or_else(|| words.malformed("no such connection"))?;
                if number != connection.commands.len() + 1 {
                    return Err(words.malformed("commands of a connection are numbered from 1"));
                }
                connection.commands.push(Invocation { command, at_ns, reply: None, failed: false });
            }
            kind @ ("ok" | "fail") => {
                let (key, number, at_ns): (u64, usize, u64) = (words.number()?, words.number()?, words.number()?);
                let reply = if kind == "ok" { Some((reply(&mut words)?, at_ns)) } else { None };
                let connection = self.connections.get_mut(&key).ok_or_else(|| words.malformed("no such connection"))?;
                let place = number.checked_sub(1).and_then(|place| connection.commands.get_mut(place));
                let invocation = place.ok_or_else(|| words.malformed("no such command"))?;
                if invocation.reply.is_some() || invocation.failed {
                    return Err(words.malformed("a command ends twice"));
                }
                invocation.failed = reply.is_none();
                invocation.reply = reply;
            }
            "gone" => {
                let (key, at_ns): (u64, u64) = (words.number()?, words.number()?);
                let connection = self.connections.get_mut(&key).ok_or_else(|| words.malformed("no such connection"))?;
                connection.gone_ns = Some(at_ns);
            }
            "drained" => self.drained_ns = Some(words.number()?),
            "end" => self.present = Some(BTreeMap::new()),
            "present" => {
                let (id, hash) = (words.number()?, words.hash()?);
                let present = self.present.as_mut().ok_or_else(|| words.malformed("present before the end"))?;
                present.insert(id, hash);
            }
            _ => return Err(words.malformed("an unknown word")),
        }
        Ok(())
    }

    fn trace_line(&mut self, line: &str, accepted: &mut BTreeMap<(u64, u64), Option<u64>>) -> Result<(), Malformed> {
        let mut words = Words { line, rest: line };
        let kind = words.word()?;
        let generation: u64 = words.life()?;
        if kind == "start" {
            self.starts.push((generation, words.number()?));
            self.events.entry(generation).or_default();
            return Ok(());
        }
        let connection: u64 = words.number()?;
        let event = match kind {
            "accept" => {
                let (port, at_ns): (u16, u64) = (words.number()?, words.number()?);
                // The client has noted the time after the connection was open, which may be before it was accepted.
                let of_port = self.connections.iter().filter(|(key, open)| {
                    let is_taken = |((life, _), taken): (&(u64, u64), &Option<u64>)| {
                        owner_of(*life) == owner_of(generation) && *taken == Some(**key)
                    };
                    open.port == port && !accepted.iter().any(is_taken)
                });
                let nearest = of_port.min_by_key(|(_, open)| open.open_ns.abs_diff(at_ns)).map(|(key, _)| *key);
                accepted.insert((generation, connection), nearest);
                Event { sequence: 0, at_ns, until_ns: at_ns, connection: nearest, what: Decision::Accept }
            }
            "reply" | "close" => {
                let key = accepted.get(&(generation, connection));
                let key = *key.ok_or_else(|| words.malformed("a connection that was not accepted"))?;
                let what = if kind == "reply" { Decision::Reply(words.number()?) } else { Decision::Close };
                let (sequence, at_ns) = (words.number()?, words.number()?);
                Event { sequence, at_ns, until_ns: at_ns, connection: key, what }
            }
            _ => return Err(words.malformed("an unknown word")),
        };
        let events = self.events.get_mut(&generation);
        events.ok_or_else(|| words.malformed("a generation that was not started"))?.push(event);
        Ok(())
    }
}

/// The lines of a text, without a last one that has no end.
pub(super) fn whole_lines(text: &str) -> impl Iterator<Item = &str> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.split('\n').filter(|line| !line.is_empty())
}

fn command(words: &mut Words<'_>) -> Result<Command, Malformed> {
    if let Some(rest) = words.rest.strip_prefix("put ") {
        words.rest = rest;
        let numbers: [u32; 4] = [words.number()?, words.number()?, words.number()?, words.number()?];
        let [pri, delay_s, ttr_s, bytes] = numbers;
        return Ok(Command::Put { pri, delay_s, ttr_s, bytes, hash: words.hash()? });
    }
    if words.rest.is_empty() {
        return Err(words.malformed("a command is missing"));
    }
    Ok(Command::Line(words.rest.to_owned()))
}

fn reply(words: &mut Words<'_>) -> Result<Reply, Malformed> {
    let text = words.rest;
    match words.word()? {
        "INSERTED" => Ok(Reply::Inserted(words.number()?)),
        kind @ ("RESERVED" | "FOUND") => {
            let id = words.number()?;
            let _bytes: u32 = words.number()?;
            let hash = words.hash()?;
            Ok(if kind == "RESERVED" { Reply::Reserved { id, hash } } else { Reply::Found { id, hash } })
        }
        "OK" => Ok(Reply::Text(words.rest.to_owned())),
        _ => Ok(Reply::Line(text.to_owned())),
    }
}
