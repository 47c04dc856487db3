//! What the generator sends and the floor answers: mixes of commands and their bytes.
//!
//! A connection runs a script: a prefix once, then a cycle for ever. It sends `depth` commands in one write, waits for
//! all their replies, and sends the next `depth`. A `delete` names a job whose `RESERVED` reply arrived with an
//! earlier batch; the prefix reserves as many jobs ahead as a batch may delete.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Seconds a reserved job may be held; longer than any round.
const TTR_SECONDS: u32 = 3_600;
/// The id the floor gives to every job: as many digits as the ids of a real round have near its end.
pub const FLOOR_JOB_ID: u64 = 1_000_000;
/// The longest body a workload may use, in bytes: the default limit of both servers.
pub const BODY_BYTES_MAX: usize = 65_535;

/// One command of the protocol, as the workloads use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `use TUBE`, the connection's next tube in turn.
    Use,
    /// `put` with the workload's body.
    Put,
    /// `reserve`.
    Reserve,
    /// `delete` of the job that this connection has held longest.
    Delete,
}

impl Command {
    fn letter(self) -> char {
        match self {
            Self::Use => 'U',
            Self::Put => 'P',
            Self::Reserve => 'R',
            Self::Delete => 'D',
        }
    }

    fn from_letter(letter: char) -> Option<Self> {
        [Self::Use, Self::Put, Self::Reserve, Self::Delete].into_iter().find(|command| command.letter() == letter)
    }
}

/// Which commands a workload repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mix {
    /// Only `put`.
    Put,
    /// `reserve` and `delete` from a queue that was filled before.
    ReserveDelete,
    /// `put`, `reserve` and `delete` for each job.
    Mixed,
}

impl Mix {
    /// Every mix, in the order of the report.
    pub const ALL: [Self; 3] = [Self::Put, Self::ReserveDelete, Self::Mixed];
}

impl fmt::Display for Mix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Put => "put",
            Self::ReserveDelete => "reserve + delete",
            Self::Mixed => "mixed",
        })
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "put" => Ok(Self::Put),
            "reserve-delete" => Ok(Self::ReserveDelete),
            "mixed" => Ok(Self::Mixed),
            _ => Err(format!("unknown mix {text:?}: put, reserve-delete or mixed")),
        }
    }
}

/// A load: the mix, how many connections carry it and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// The commands.
    pub mix: Mix,
    /// How many connections run the script at once.
    pub connections: usize,
    /// Commands a connection sends before it waits for their replies.
    pub depth: usize,
    /// Length of each job's body in bytes.
    pub body_bytes: usize,
    /// 1: all connections share the tube `default`. More: they are dealt out among the connections, a connection
    /// watches its own and uses them in turn, with a `use` before each `put`.
    pub tubes: usize,
}

impl Workload {
    /// The script each connection runs.
    pub fn script(&self) -> Script {
        let use_tube = if self.tubes > 1 { &[Command::Use][..] } else { &[] };
        let cycle = match self.mix {
            Mix::Put => [use_tube, &[Command::Put]].concat(),
            Mix::ReserveDelete => vec![Command::Reserve, Command::Delete],
            Mix::Mixed => [use_tube, &[Command::Put, Command::Reserve, Command::Delete]].concat(),
        };
        let without_delete: Vec<_> = cycle.iter().copied().filter(|command| *command != Command::Delete).collect();
        let ahead = match (self.mix, self.depth) {
            (Mix::Put, _) | (_, 1) => 0,
            // The prefix fills the first batch, so that a `delete` comes at least a batch after its `reserve`.
            (_, depth) => depth.div_ceil(without_delete.len()),
        };
        Script { prefix: without_delete.repeat(ahead), cycle }
    }

    /// The tubes of connection `index`, by number; none where all share `default`.
    ///
    /// Every connection gets the same number of tubes, at least one: a queue filled evenly is then drained evenly.
    pub fn tubes_of(&self, index: usize) -> Vec<usize> {
        if self.tubes <= 1 {
            return Vec::new();
        }
        let each = (self.tubes / self.connections).max(1);
        (0..each).map(|turn| (index + turn * self.connections) % self.tubes).collect()
    }
}

/// A prefix of commands run once, then a cycle run for ever. Written `PREFIX/CYCLE` with one letter a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    prefix: Vec<Command>,
    cycle: Vec<Command>,
}

impl Script {
    /// How many distinct positions there are.
    pub fn positions(&self) -> usize {
        self.prefix.len() + self.cycle.len()
    }

    /// The command at `position`.
    pub fn at(&self, position: usize) -> Command {
        match self.prefix.get(position) {
            Some(command) => *command,
            None => self.cycle[position - self.prefix.len()],
        }
    }

    /// The position after `position`: from the end back to the beginning of the cycle.
    pub fn after(&self, position: usize) -> usize {
        if position + 1 == self.positions() { self.prefix.len() } else { position + 1 }
    }

    /// Whether the script is nothing but `put`, so that every batch has the same bytes.
    pub fn is_constant(&self) -> bool {
        self.prefix.is_empty() && self.cycle.iter().all(|command| *command == Command::Put)
    }
}

impl fmt::Display for Script {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = |commands: &[Command]| commands.iter().map(|command| command.letter()).collect::<String>();
        write!(formatter, "{}/{}", letters(&self.prefix), letters(&self.cycle))
    }
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let commands = |letters: &str| {
            letters
                .chars()
                .map(|letter| Command::from_letter(letter).ok_or(format!("unknown command letter {letter:?}")))
                .collect::<Result<Vec<_>, _>>()
        };
        let (prefix, cycle) = text.split_once('/').ok_or(format!("script {text:?} has no slash"))?;
        let script = Self { prefix: commands(prefix)?, cycle: commands(cycle)? };
        if script.cycle.is_empty() { Err(format!("script {text:?} has an empty cycle")) } else { Ok(script) }
    }
}

/// The bytes of requests and replies with bodies of one length.
#[derive(Clone, Debug)]
pub struct Wire {
    body: Vec<u8>,
    put: Vec<u8>,
}

impl Wire {
    /// Prepares the bytes for bodies of `body_bytes` bytes.
    pub fn new(body_bytes: usize) -> Self {
        let body: Vec<u8> = (b'!'..=b'~').cycle().take(body_bytes).collect();
        let mut put = format!("put 1024 0 {TTR_SECONDS} {body_bytes}\r\n").into_bytes();
        put.extend_from_slice(&body);
        put.extend_from_slice(b"\r\n");
        Self { body, put }
    }

    /// A job's body, without CR LF.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The whole `put` request.
    pub fn put(&self) -> &[u8] {
        &self.put
    }

    /// Appends the request for `command` to `out`; `tube` is used by `use`, `id` by `delete`.
    pub fn request(&self, command: Command, tube: usize, id: u64, out: &mut Vec<u8>) {
        match command {
            Command::Use => out.extend_from_slice(format!("use {}\r\n", tube_name(tube)).as_bytes()),
            Command::Put => out.extend_from_slice(&self.put),
            Command::Reserve => out.extend_from_slice(b"reserve\r\n"),
            Command::Delete => {
                out.extend_from_slice(b"delete ");
                push_decimal(id, out);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// What the floor does for `command`: it waits for so many bytes and answers these.
    pub fn floor_exchange(&self, command: Command) -> (usize, Vec<u8>) {
        let mut request = Vec::new();
        self.request(command, 0, FLOOR_JOB_ID, &mut request);
        let reply = match command {
            Command::Use => format!("USING {}\r\n", tube_name(0)).into_bytes(),
            Command::Put => format!("INSERTED {FLOOR_JOB_ID}\r\n").into_bytes(),
            Command::Reserve => {
                let line = format!("RESERVED {FLOOR_JOB_ID} {}\r\n", self.body.len()).into_bytes();
                [line.as_slice(), &self.body, b"\r\n"].concat()
            }
            Command::Delete => b"DELETED\r\n".to_vec(),
        };
        (request.len(), reply)
    }
}

/// The name of tube number `tube`; names of numbers below 100,000 have one length.
pub fn tube_name(tube: usize) -> String {
    format!("bench-{tube:05}")
}

fn push_decimal(number: u64, out: &mut Vec<u8>) {
    let mut digits = [0_u8; 20];
    let mut start = digits.len();
    let mut rest = number;
    loop {
        start -= 1;
        digits[start] = b"0123456789"[usize::try_from(rest % 10).unwrap_or(0)];
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(mix: Mix, depth: usize, tubes: usize) -> Workload {
        Workload { mix, connections: 4, depth, body_bytes: 10, tubes }
    }

    #[test]
    fn script_survives_its_text_form() {
        for mix in Mix::ALL {
            for depth in [1, 16] {
                for tubes in [1, 1_000] {
                    let script = workload(mix, depth, tubes).script();
                    assert_eq!(script.to_string().parse(), Ok(script));
                }
            }
        }
        assert_eq!(workload(Mix::Mixed, 1, 1).script().to_string(), "/PRD");
        assert_eq!(workload(Mix::Put, 16, 9).script().to_string(), "/UP");
        assert!("".parse::<Script>().is_err());
        assert!("P/".parse::<Script>().is_err());
        assert!("/PX".parse::<Script>().is_err());
    }

    #[test]
    fn batch_never_deletes_more_than_earlier_batches_reserved() {
        for mix in [Mix::ReserveDelete, Mix::Mixed] {
            for depth in 1..=64 {
                for tubes in [1, 1_000] {
                    let script = workload(mix, depth, tubes).script();
                    let (mut position, mut held) = (0, 0_usize);
                    for _batch in 0..1_000 {
                        let mut reserved = 0;
                        for _command in 0..depth {
                            match script.at(position) {
                                Command::Reserve => reserved += 1,
                                Command::Delete => held = held.checked_sub(1).expect("nothing to delete"),
                                Command::Use | Command::Put => {}
                            }
                            position = script.after(position);
                        }
                        held += reserved;
                    }
                }
            }
        }
    }

    #[test]
    fn tubes_are_dealt_out_evenly_and_all_of_them() {
        let load = Workload { connections: 125, ..workload(Mix::Put, 1, 1_000) };
        let mut all: Vec<_> = (0..125).flat_map(|index| load.tubes_of(index)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..1_000).collect::<Vec<_>>());
        assert_eq!(workload(Mix::Put, 1, 1).tubes_of(3), Vec::<usize>::new());
    }

    #[test]
    fn requests_are_written_as_the_protocol_says() {
        let wire = Wire::new(3);
        let mut out = Vec::new();
        for command in [Command::Use, Command::Put, Command::Reserve, Command::Delete] {
            wire.request(command, 7, 120, &mut out);
        }
        assert_eq!(out, b"use bench-00007\r\nput 1024 0 3600 3\r\n!\"#\r\nreserve\r\ndelete 120\r\n");
    }
}
