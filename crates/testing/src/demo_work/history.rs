//! What is written down: by the transactions in the table `demo_log`, by each member on its standard output.
//!
//! A line of a member is `BOOT_US WALL_US KIND WORD…`: both clocks in microseconds, then what happened. Clocks are read
//! before the question whether it may happen, so that a pause of the process in between makes it no later.

use std::fmt::Display;
use std::io::Write as _;

use database::Database;
use database_core::{DbError, Row, Script, Verdict};
use rustix::time::{ClockId, clock_gettime};

use super::schema::{LEFT, READ_LOG};

/// A row of `demo_log`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its number: the order.
    pub no: i64,
    /// When, by the machine's clock in microseconds; before its transaction was committed.
    pub at_us: i64,
    /// What happened.
    pub kind: String,
    /// Which member did it, or whose it is: 32 hexadecimal digits, or the number of a run.
    pub member: String,
    /// With what.
    pub subject: String,
    /// Attempt, epoch, value, or how many more.
    pub number: i64,
    /// What else there is to say.
    pub extra: String,
}

/// A line of a member's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When, by the clock that counts suspends.
    pub boot_us: u64,
    /// When, by the clock that the database has too.
    pub wall_us: i64,
    /// What happened.
    pub kind: String,
    /// With what.
    pub words: Vec<String>,
}

impl Line {
    /// The word at a place, or nothing.
    #[must_use]
    pub fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }
}

/// The instant that stands before a line.
#[derive(Debug, Clone, Copy)]
pub struct Stamp {
    boot_us: i64,
    wall_us: i64,
}

impl Stamp {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let us = |clock| {
            let time = clock_gettime(clock);
            time.tv_sec * 1_000_000 + time.tv_nsec / 1_000
        };
        Self { boot_us: us(ClockId::Boottime), wall_us: us(ClockId::Realtime) }
    }

    /// By the wall clock, in microseconds.
    #[must_use]
    pub const fn wall_us(self) -> i64 {
        self.wall_us
    }

    /// Writes a line with this instant.
    pub fn say(self, what: impl Display) {
        let line = format!("{} {} {what}\n", self.boot_us, self.wall_us);
        // One call per line, so that a kill cuts at most the last one. Whoever reads it may be gone.
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
    }
}

/// Writes a line about now.
pub fn say(what: impl Display) {
    Stamp::now().say(what);
}

/// Reads what a member wrote. A last line without an end is left out: its process was killed.
///
/// # Errors
///
/// The line that is none.
pub fn lines(text: &str) -> Result<Vec<Line>, String> {
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    complete.lines().map(|line| parse(line).ok_or_else(|| format!("no line of a member: {line:?}"))).collect()
}

fn parse(line: &str) -> Option<Line> {
    let mut words = line.split(' ').map(str::to_owned);
    let (boot_us, wall_us) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(Line { boot_us, wall_us, kind: words.next()?, words: words.collect() })
}

/// What is left in the tables: see [`LEFT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    /// Work that is not done.
    pub work: i64,
    /// Runs that have not ended.
    pub runs: i64,
    /// Work whose owner is not registered.
    pub ownerless: i64,
    /// Tickets of members that are not registered.
    pub tickets: i64,
    /// Tickets of runs that have ended.
    pub run_tickets: i64,
    /// Leaderships of members that are not registered.
    pub leaderships: i64,
    /// Members whose lease is over.
    pub expired: i64,
}

impl From<[i64; 7]> for Left {
    fn from([work, runs, ownerless, tickets, run_tickets, leaderships, expired]: [i64; 7]) -> Self {
        Self { work, runs, ownerless, tickets, run_tickets, leaderships, expired }
    }
}

/// Reads the log and what is left.
///
/// # Errors
///
/// What the database says.
pub async fn read(database: &Database) -> Result<(Vec<Entry>, Left), DbError> {
    let mut log: Vec<Entry> = Vec::new();
    loop {
        let after = log.last().map_or(0, |entry| entry.no);
        let more = database.read(Script::statement(&READ_LOG, [after.into()], |answer| {
            answer.rows.iter().map(entry).collect::<Result<Vec<Entry>, DbError>>()
        }));
        let more = more.await?;
        if more.is_empty() {
            return Ok((log, left(database).await?));
        }
        log.extend(more);
    }
}

/// Reads what is left.
///
/// # Errors
///
/// What the database says.
pub async fn left(database: &Database) -> Result<Left, DbError> {
    database
        .read(Script::transaction(|mut tx| async move {
            let row = tx.query_opt(&LEFT, []).await?.unwrap_or_else(|| Row::from(Vec::new()));
            let mut counts = [0; 7];
            for (at, count) in counts.iter_mut().enumerate() {
                *count = row.int(at)?;
            }
            Ok(Verdict::Commit(Left::from(counts)))
        }))
        .await
}

fn entry(row: &Row) -> Result<Entry, DbError> {
    Ok(Entry {
        no: row.int(0)?,
        at_us: row.int(1)?,
        kind: row.text(2)?.to_owned(),
        member: row.text(3)?.to_owned(),
        subject: row.text(4)?.to_owned(),
        number: row.int(5)?,
        extra: row.text(6)?.to_owned(),
    })
}

/// A row of the log as the harness reads it: all texts.
#[must_use]
pub fn entry_of_texts(row: &[Option<String>]) -> Option<Entry> {
    let text = |at: usize| row.get(at)?.clone();
    Some(Entry {
        no: text(0)?.parse().ok()?,
        at_us: text(1)?.parse().ok()?,
        kind: text(2)?,
        member: text(3)?,
        subject: text(4)?,
        number: text(5)?.parse().ok()?,
        extra: text(6)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_a_kill_cut_off_is_left_out_and_another_is_refused() {
        let read = lines("12 -3 effect m 7 1\n13 4 stopped\n14 5 eff").unwrap();
        assert_eq!((read.len(), read[0].word(1), read[0].wall_us, read[1].words.len()), (2, "7", -3, 0));
        assert!(lines("12 x effect\n").is_err());
    }
}
