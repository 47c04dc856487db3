//! What several processes decide, for the history checker (feature `trace`).
//!
//! Owns: one file per process in the folder that `--trace` names, which is another for each start of the server: the
//! generations of frontends begin anew with it. Lines are written with one call per turn: an owner's before the records of
//! the turn may reach its log, a frontend's before its messages and replies leave. So whatever anybody may have heard, and
//! whatever a log may have, is traced; what a killed owner has traced last may not be in its log.
//! Never: changes what is sent or logged.
//!
//! `S` numbers the lines of a process from 1, `T` is the time of the turn in ns, a session is
//! `FRONTEND.GENERATION.SESSION`. An owner (`owner-SLOT.GENERATION`, life `SLOT.GENERATION`):
//!
//! - `start LIFE T`, then `found LIFE ID TUBE HASH TTR STATE PRI DELAY DUE_MS RELEASES BURIES KICKS` for each job that its
//!   log had (`DUE_MS` on the clock of timers), then `turn`.
//! - `answer LIFE SESSION S T LINE`: the session's oldest message that wants a reply is answered so.
//! - `served LIFE SESSION S T WAIT LINE`: the wait is over, answered so.
//! - `told LIFE SESSION S T LINE`: `use NAME` or `watch NAME` of a session that was there before, or `unuse`.
//! - `offer LIFE SESSION S T WAIT ID`, `nothing LIFE SESSION S T WAIT SOON`, `gone LIFE SESSION S T WAIT`,
//!   `withdrew LIFE SESSION S T WAIT`: the steps of a wait.
//! - `ended LIFE SESSION S T`: its jobs are free.
//! - `turn LIFE T`: the end of a turn that has done something, by a clock read then.
//!
//! A frontend (`frontend-SLOT.GENERATION`, life `fSLOT.GENERATION`):
//!
//! - `start LIFE T`, and `turn` as above.
//! - `accept LIFE SESSION PORT T`
//! - `sent LIFE SESSION N OWNER`: command N of the session, from 1, goes to this life of an owner as the next message that
//!   wants a reply; `asks LIFE SESSION N OWNER WAIT` as this wait.
//! - `said LIFE SESSION S T N`: reply N was given to the client.
//! - `ended LIFE SESSION S T`

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use supervisor::{Instance, Role};
use tubes_core::journal::LoggedState;
use tubes_core::{Engine, Now};
use tubes_link::{Deed, ToOwner};

use crate::clock;

/// The lines of one process.
#[derive(Debug)]
struct Lines {
    file: File,
    life: String,
    text: Vec<u8>,
    sequence: u64,
}

impl Lines {
    fn begin(folder: &Path, instance: &Instance, now_ns: u64) -> io::Result<Lines> {
        let Instance { role, slot, generation } = instance;
        let (name, life) = match role {
            Role::Owner => ("owner", format!("{slot}.{generation}")),
            Role::Frontend => ("frontend", format!("f{slot}.{generation}")),
            Role::Tubes | Role::Daemon => unreachable!("only processes with links are traced here"),
        };
        let file = File::create_new(folder.join(format!("{name}-{slot}.{generation}")))?;
        let text = format!("start {life} {now_ns}\n").into_bytes();
        Ok(Lines { file, life, text, sequence: 0 })
    }

    fn numbered(&mut self, what: &str, session: &str, now_ns: u64, rest: &str) {
        self.sequence += 1;
        let space = if rest.is_empty() { "" } else { " " };
        let _ = writeln!(self.text, "{what} {} {session} {} {now_ns}{space}{rest}", self.life, self.sequence);
    }

    /// # Panics
    ///
    /// If the file cannot be written: a trace with gaps is of no use.
    fn flush(&mut self) {
        if !self.text.is_empty() {
            let _ = writeln!(self.text, "turn {} {}", self.life, clock::now().boot_ns);
            self.file.write_all(&self.text).expect("the trace file can be written");
            self.text.clear();
        }
    }
}

/// The trace of an owner.
#[derive(Debug)]
pub(crate) struct OwnerTrace {
    lines: Lines,
    /// Generations of the frontends' links, by slot.
    generations: BTreeMap<u16, u32>,
    pub(crate) now_ns: u64,
}

impl OwnerTrace {
    pub(crate) fn begin(folder: &Path, instance: &Instance, engine: &Engine, now: Now) -> io::Result<OwnerTrace> {
        let mut lines = Lines::begin(folder, instance, now.boot_ns)?;
        for job in engine.job_records() {
            let hash = job.body.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
            let fields = &job.state;
            let state = match fields.state {
                LoggedState::Ready => "ready",
                LoggedState::Delayed => "delayed",
                LoggedState::Buried => "buried",
            };
            let due_ms = (fields.due_ms + now.boot_ns / 1_000_000).saturating_sub(now.wall_ms);
            let counters = &fields.counters;
            let _ = writeln!(
                lines.text,
                "found {} {} {} {hash:x} {} {state} {} {} {due_ms} {} {} {}",
                lines.life,
                job.id,
                String::from_utf8_lossy(job.tube),
                job.ttr_s,
                fields.pri,
                fields.delay_s,
                counters.releases,
                counters.buries,
                counters.kicks
            );
        }
        lines.flush();
        Ok(OwnerTrace { lines, generations: BTreeMap::new(), now_ns: now.boot_ns })
    }

    /// A link to this generation of a frontend begins.
    pub(crate) fn linked(&mut self, frontend: u16, generation: u32) {
        self.generations.insert(frontend, generation);
    }

    pub(crate) fn did(&mut self, frontend: u16, session: u64, deed: &Deed<'_>) {
        let generation = self.generations.get(&frontend).copied().unwrap_or(0);
        let session = format!("{frontend}.{generation}.{session}");
        let text = |line: &[u8]| String::from_utf8_lossy(line).into_owned();
        let (what, rest) = match deed {
            Deed::Replied(line) => ("answer", text(line)),
            Deed::Served { wait, line } => ("served", format!("{wait} {}", text(line))),
            Deed::Told(line) => ("told", text(line)),
            Deed::Offered { wait, id } => ("offer", format!("{wait} {id}")),
            Deed::Nothing { wait, is_soon } => ("nothing", format!("{wait} {}", u8::from(*is_soon))),
            Deed::Gone { wait } => ("gone", wait.to_string()),
            Deed::Withdrew { wait } => ("withdrew", wait.to_string()),
            Deed::Ended => ("ended", String::new()),
        };
        self.lines.numbered(what, &session, self.now_ns, &rest);
    }

    pub(crate) fn flush(&mut self) {
        self.lines.flush();
    }
}

/// The trace of a frontend.
#[derive(Debug)]
pub(crate) struct FrontendTrace {
    lines: Lines,
    /// Commands and replies so far, by session.
    counts: BTreeMap<u64, (u64, u64)>,
    /// Generations of the owners' links, by slot.
    generations: BTreeMap<u16, u32>,
    pub(crate) now_ns: u64,
}

impl FrontendTrace {
    pub(crate) fn begin(folder: &Path, instance: &Instance, now_ns: u64) -> io::Result<FrontendTrace> {
        let lines = Lines::begin(folder, instance, now_ns)?;
        Ok(FrontendTrace { lines, counts: BTreeMap::new(), generations: BTreeMap::new(), now_ns })
    }

    pub(crate) fn linked(&mut self, owner: u16, generation: u32) {
        self.generations.insert(owner, generation);
    }

    pub(crate) fn accept(&mut self, session: u64, port: u16) {
        self.counts.insert(session, (0, 0));
        let _ = writeln!(self.lines.text, "accept {} {session} {port} {}", self.lines.life, self.now_ns);
    }

    /// The client's next command has come.
    pub(crate) fn command(&mut self, session: u64) {
        self.counts.entry(session).or_default().0 += 1;
    }

    pub(crate) fn sent(&mut self, owner: u16, session: u64, message: &ToOwner<'_>) {
        let number = self.counts.get(&session).map_or(0, |(commands, _)| *commands);
        let generation = self.generations.get(&owner).copied().unwrap_or(0);
        let life = &self.lines.life;
        let text = &mut self.lines.text;
        let _ = match message {
            ToOwner::Line(_) | ToOwner::Put { .. } | ToOwner::Unwatch(_) | ToOwner::ListTubes => {
                writeln!(text, "sent {life} {session} {number} {owner}.{generation}")
            }
            ToOwner::Reserve { wait, .. } | ToOwner::Ask { wait, .. } => {
                writeln!(text, "asks {life} {session} {number} {owner}.{generation} {wait}")
            }
            ToOwner::Announce(_)
            | ToOwner::Unuse
            | ToOwner::Accept { .. }
            | ToOwner::Withdraw { .. }
            | ToOwner::End => Ok(()),
        };
    }

    /// The client is given a reply.
    pub(crate) fn said(&mut self, session: u64) {
        let replies = &mut self.counts.entry(session).or_default().1;
        *replies += 1;
        let number = replies.to_string();
        self.lines.numbered("said", &session.to_string(), self.now_ns, &number);
    }

    pub(crate) fn ended(&mut self, session: u64) {
        if self.counts.remove(&session).is_some() {
            self.lines.numbered("ended", &session.to_string(), self.now_ns, "");
        }
    }

    pub(crate) fn flush(&mut self) {
        self.lines.flush();
    }
}
