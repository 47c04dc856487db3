//! The traces of several processes (`crates/tubes-server/src/trace_multi.rs`), joined with what clients logged.
//!
//! A frontend's trace says which connection a session is, and which of its commands went to which owner as which message
//! or wait. With that, what an owner did for a session is a decision about a command.

use std::collections::{BTreeMap, BTreeSet};

use super::parse::{Command, Decision, Event, History, Malformed, Words, life_of, whole_lines};

/// Frontends are known by numbers from here on, where owners have their slots.
pub const FRONTENDS_FROM: u16 = 0x8000;

/// A generation of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnerLife {
    /// When it began, in ns.
    pub start_ns: u64,
    /// What its log had, by id.
    pub found: BTreeMap<u64, Found>,
    /// What it did, in order.
    pub deeds: Vec<Deed>,
}

/// A job of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is what `stats-job` shows under that name")]
pub struct Found {
    pub tube: String,
    pub hash: u64,
    pub ttr_s: u32,
    pub state: String,
    pub pri: u32,
    pub delay_s: u32,
    /// When its delay ends, in ms of the clock of timers.
    pub due_ms: u64,
    /// Releases, buries and kicks.
    pub counts: [u32; 3],
}

/// Something that an owner did for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deed {
    /// Its turn of the owner, counted from 1: no reply of a turn leaves before all of it is in the log.
    pub turn: u64,
    /// When the turn began, in ns.
    pub at_ns: u64,
    /// The session, by a number that no other has: that of its connection if a client has logged it.
    pub session: u32,
    /// The command concerned: connection and number.
    pub command: Option<(u64, u64)>,
    /// What.
    pub what: What,
}

/// What an owner did; see [`tubes_link`]'s `Deed`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is explained where it is traced")]
pub enum What {
    Answer(String),
    Served(String),
    Told(String),
    Offer(u64),
    Nothing { is_soon: bool },
    Gone,
    Withdrew,
    Ended,
}

/// The traces of one start of a server, one text per process.
pub type Traces = Vec<String>;

/// A session: life of the frontend and its number there.
type Session = (u64, u64);

#[derive(Default)]
struct Join {
    /// Connection of each session, and the number for the model.
    sessions: BTreeMap<Session, (Option<u64>, u32)>,
    taken: BTreeSet<u64>,
    by_port: BTreeMap<u16, Vec<u64>>,
    /// Command numbers, by session and owner, in the order of messages that want a reply.
    sent: BTreeMap<(Session, u64), Vec<u64>>,
    answered: BTreeMap<(Session, u64), usize>,
    /// Command numbers by session and wait.
    waits: BTreeMap<(Session, u32), u64>,
    unlogged: u32,
}

impl History {
    /// Reads what clients have written and what the processes of each start of the server have traced.
    ///
    /// # Errors
    ///
    /// The first line that is not as the formats want it.
    pub fn parse_processes(clients: &str, starts: &[Traces]) -> Result<History, Malformed> {
        let mut history = History::parse(clients, "")?;
        let mut join = Join::default();
        for (key, connection) in &history.connections {
            join.by_port.entry(connection.port).or_default().push(*key);
        }
        let is_frontend = |text: &&String| text.starts_with("start f");
        for (epoch, traces) in (1..).zip(starts) {
            for text in traces.iter().filter(is_frontend) {
                history.frontend(text, epoch, &mut join)?;
            }
        }
        for (epoch, traces) in (1..).zip(starts) {
            let mut owners: Vec<(u64, &String)> = Vec::new();
            for text in traces.iter().filter(|text| !is_frontend(text)) {
                let Some(line) = whole_lines(text).next() else { continue };
                let mut words = Words { line, rest: line };
                let _ = words.word()?;
                owners.push((words.life()?, text));
            }
            owners.sort_unstable();
            for (life, text) in owners {
                history.owner(life, text, epoch, &mut join)?;
            }
        }
        history.say_decisions();
        history.starts.sort_by_key(|(_, start_ns)| *start_ns);
        Ok(history)
    }

    fn frontend(&mut self, text: &str, epoch: u32, join: &mut Join) -> Result<(), Malformed> {
        let mut life = 0;
        let mut turn_from = 0;
        for line in whole_lines(text) {
            let mut words = Words { line, rest: line };
            let kind = words.word()?;
            let (slot, generation) = words.slot_of_frontend()?;
            life = frontend_life(epoch, slot, generation);
            if kind == "start" {
                self.starts.push((life, words.number()?));
                self.events.entry(life).or_default();
                continue;
            }
            let events = self.events.entry(life).or_default();
            if kind == "turn" {
                let until_ns = words.number()?;
                events[turn_from..].iter_mut().for_each(|event| event.until_ns = until_ns);
                turn_from = events.len();
                continue;
            }
            let session = (life, words.number()?);
            match kind {
                "accept" => {
                    let (port, at_ns): (u16, u64) = (words.number()?, words.number()?);
                    let of_port = join.by_port.get(&port).into_iter().flatten();
                    let free = of_port.filter(|key| !join.taken.contains(key));
                    let key = free.min_by_key(|key| self.connections[key].open_ns.abs_diff(at_ns)).copied();
                    join.taken.extend(key);
                    join.know(session, key);
                }
                "sent" => {
                    let number = words.number()?;
                    join.sent.entry((session, words.life()?)).or_default().push(number);
                }
                "asks" => {
                    let number = words.number()?;
                    let _ = words.life()?;
                    join.waits.insert((session, words.number()?), number);
                }
                "said" | "ended" => {
                    let (sequence, at_ns) = (words.number()?, words.number()?);
                    let what = if kind == "said" { Decision::Said(words.number()?) } else { Decision::Step };
                    let connection = join.sessions.get(&session).and_then(|(key, _)| *key);
                    events.push(Event { sequence, at_ns, until_ns: at_ns, connection, what });
                }
                _ => return Err(words.malformed("an unknown word")),
            }
        }
        // A turn that was cut off has said nothing to anybody.
        if let Some(events) = self.events.get_mut(&life) {
            events.truncate(turn_from);
        }
        Ok(())
    }

    fn owner(&mut self, life: u64, text: &str, epoch: u32, join: &mut Join) -> Result<(), Malformed> {
        let mut owner = OwnerLife::default();
        let mut events: Vec<Event> = Vec::new();
        let (mut turn, mut turn_from) = (0, 0);
        for line in whole_lines(text) {
            let mut words = Words { line, rest: line };
            let kind = words.word()?;
            let _ = words.life()?;
            match kind {
                "start" => {
                    owner.start_ns = words.number()?;
                    continue;
                }
                "found" => {
                    let id = words.number()?;
                    owner.found.insert(id, found(&mut words)?);
                    continue;
                }
                "turn" => {
                    turn += 1;
                    let until_ns = words.number()?;
                    events[turn_from..].iter_mut().for_each(|event| event.until_ns = until_ns);
                    turn_from = events.len();
                    continue;
                }
                _ => {}
            }
            let session = words.session(epoch)?;
            let (sequence, at_ns) = (words.number()?, words.number()?);
            let (key, number) = join.model_session(session);
            let of_wait = |wait: u32, join: &Join| key.zip(join.waits.get(&(session, wait)).copied());
            let (command, what) = match kind {
                "answer" => {
                    let place = join.answered.entry((session, life)).or_default();
                    *place += 1;
                    let number = join.sent.get(&(session, life)).and_then(|sent| sent.get(*place - 1)).copied();
                    (key.zip(number), What::Answer(words.rest.to_owned()))
                }
                "served" => (of_wait(words.number()?, join), What::Served(words.rest.to_owned())),
                "told" => (None, What::Told(words.rest.to_owned())),
                "offer" => (of_wait(words.number()?, join), What::Offer(words.number()?)),
                "nothing" => (of_wait(words.number()?, join), What::Nothing { is_soon: words.number::<u8>()? == 1 }),
                "gone" => (of_wait(words.number()?, join), What::Gone),
                "withdrew" => (of_wait(words.number()?, join), What::Withdrew),
                "ended" => (None, What::Ended),
                _ => return Err(words.malformed("an unknown word")),
            };
            if matches!(what, What::Answer(_) | What::Served(_)) && command.is_none() && key.is_some() {
                return Err(words.malformed("a decision about what no frontend has sent"));
            }
            let decision = match (&what, command) {
                (What::Answer(_) | What::Served(_), Some((key, number))) if !self.is_of_all(key, number) => {
                    Decision::Reply(number)
                }
                (What::Ended, _) => Decision::Close,
                _ => Decision::Step,
            };
            events.push(Event { sequence, at_ns, until_ns: at_ns, connection: key, what: decision });
            owner.deeds.push(Deed { turn, at_ns, session: number, command, what });
        }
        // Without the end of its first turn it never got to serve.
        if turn > 0 {
            self.starts.push((life, owner.start_ns));
            self.events.insert(life, events);
            self.owners.insert(life, owner);
        }
        Ok(())
    }

    /// Whether all owners are asked, so that none decides the reply.
    fn is_of_all(&self, key: u64, number: u64) -> bool {
        let place = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        let command = place.and_then(|place| self.connections[&key].commands.get(place)).map(|sent| &sent.command);
        command == Some(&Command::Line("list-tubes".to_owned()))
    }

    /// What no owner has decided, a frontend has by saying it.
    fn say_decisions(&mut self) {
        let mut decided = BTreeSet::new();
        for event in self.events.values().flatten() {
            if let (Decision::Reply(number), Some(key)) = (event.what, event.connection) {
                decided.insert((key, number));
            }
        }
        for event in self.events.values_mut().flatten() {
            if let (Decision::Said(number), Some(key)) = (event.what, event.connection) {
                let is_new = decided.insert((key, number));
                event.what = if is_new { Decision::Reply(number) } else { Decision::Step };
            }
        }
    }
}

impl Join {
    fn know(&mut self, session: Session, key: Option<u64>) {
        let number = key.and_then(|key| u32::try_from(key).ok()).unwrap_or_else(|| {
            self.unlogged += 1;
            u32::MAX - self.unlogged
        });
        self.sessions.insert(session, (key, number));
    }

    /// The connection of a session and its number in models; announced before its frontend has traced it, perhaps.
    fn model_session(&mut self, session: Session) -> (Option<u64>, u32) {
        if !self.sessions.contains_key(&session) {
            self.know(session, None);
        }
        self.sessions[&session]
    }
}

fn frontend_life(epoch: u32, slot: u16, generation: u32) -> u64 {
    life_of(FRONTENDS_FROM + slot, epoch << 16 | generation)
}

fn found(words: &mut Words<'_>) -> Result<Found, Malformed> {
    Ok(Found {
        tube: words.word()?.to_owned(),
        hash: words.hash()?,
        ttr_s: words.number()?,
        state: words.word()?.to_owned(),
        pri: words.number()?,
        delay_s: words.number()?,
        due_ms: words.number()?,
        counts: [words.number()?, words.number()?, words.number()?],
    })
}

impl Words<'_> {
    /// `fSLOT.GENERATION`
    fn slot_of_frontend(&mut self) -> Result<(u16, u32), Malformed> {
        let word = self.word()?;
        let parts = word.strip_prefix('f').and_then(|word| word.split_once('.'));
        let parsed = parts.and_then(|(slot, generation)| Some((slot.parse().ok()?, generation.parse().ok()?)));
        parsed.ok_or_else(|| self.malformed("not a frontend"))
    }

    /// `FRONTEND.GENERATION.SESSION`
    fn session(&mut self, epoch: u32) -> Result<Session, Malformed> {
        let word = self.word()?;
        let mut parts = word.split('.');
        let mut part = || parts.next().and_then(|part| part.parse::<u64>().ok());
        let parsed = part().zip(part()).zip(part()).and_then(|((slot, generation), session)| {
            let life = frontend_life(epoch, u16::try_from(slot).ok()?, u32::try_from(generation).ok()?);
            Some((life, session))
        });
        parsed.ok_or_else(|| self.malformed("not a session"))
    }
}
