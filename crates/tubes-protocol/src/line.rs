//! The grammar of one command line.
//!
//! Words with arguments are matched with their trailing space, words without arguments as a prefix of the line; this
//! is what decides between `UNKNOWN_COMMAND` and `BAD_FORMAT` for a word that stands alone or is followed by garbage.

use crate::{Command, RESERVE_TIMEOUT_S_MAX, tube_name_is_valid};

/// A line that has been understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line<'a> {
    /// Complete in itself.
    Command(Command<'a>),
    /// The head of a put; a body follows.
    Put(PutHeader),
    /// Close the connection.
    Quit,
}

/// The numbers of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutHeader {
    /// Smaller is more urgent.
    pub pri: u32,
    /// Seconds until the job becomes ready.
    pub delay_s: u32,
    /// Time to run in seconds, at least 1.
    pub ttr_s: u32,
    /// Length of the body, its CR LF not counted.
    pub body_bytes: u32,
    /// Something stands behind the fourth number: `BAD_FORMAT`, unless the body is too big.
    pub trailing_garbage: bool,
}

/// Why a line was not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineError {
    /// `BAD_FORMAT`: a known word with arguments that cannot be read, or a NUL.
    BadFormat,
    /// `UNKNOWN_COMMAND`: no known word.
    UnknownCommand,
}

/// Reads one line without its CR LF.
///
/// # Errors
///
/// [`LineError`] names the reply that the client gets.
pub fn parse_line(line: &[u8]) -> Result<Line<'_>, LineError> {
    match line.first() {
        Some(b'p') => {
            if let Some(rest) = line.strip_prefix(b"put ") {
                return put(unless_nul(line, rest)?);
            }
        }
        Some(b'r') => {
            if let Some(rest) = line.strip_prefix(b"reserve-with-timeout ") {
                let timeout_s = only_u32(rest)?;
                if timeout_s > RESERVE_TIMEOUT_S_MAX {
                    return Err(LineError::BadFormat);
                }
                return command(Command::Reserve { timeout_s: Some(timeout_s) });
            }
            if line == b"reserve" {
                return command(Command::Reserve { timeout_s: None });
            }
        }
        Some(b'd') => {
            if let Some(rest) = line.strip_prefix(b"delete ") {
                return command(Command::Delete(only_u64(rest)?));
            }
        }
        _ => {}
    }
    if memchr::memchr(0, line).is_some() {
        return Err(LineError::BadFormat);
    }
    if let Some(rest) = line.strip_prefix(b"release ") {
        let mut numbers = Numbers(rest);
        let (id, pri, delay_s) = (numbers.u64()?, numbers.u32()?, numbers.u32()?);
        numbers.end()?;
        return command(Command::Release { id, pri, delay_s });
    }
    if let Some(rest) = line.strip_prefix(b"bury ") {
        let mut numbers = Numbers(rest);
        let (id, pri) = (numbers.u64()?, numbers.u32()?);
        numbers.end()?;
        return command(Command::Bury { id, pri });
    }
    if let Some(rest) = line.strip_prefix(b"pause-tube ") {
        let name_end = memchr::memchr(b' ', rest).ok_or(LineError::BadFormat)?;
        let tube = name(&rest[..name_end])?;
        return command(Command::PauseTube { tube, delay_s: only_u32(&rest[name_end..])? });
    }
    for (word, build) in WITH_TUBE {
        if let Some(rest) = line.strip_prefix(*word) {
            return command(build(name(rest)?));
        }
    }
    for (word, build) in WITH_ID {
        if let Some(rest) = line.strip_prefix(*word) {
            return command(build(only_u64(rest)?));
        }
    }
    if let Some(rest) = line.strip_prefix(b"kick ") {
        return command(Command::Kick(only_u32(rest)?));
    }
    if line == b"quit" {
        return Ok(Line::Quit);
    }
    for (word, plain) in ALONE {
        if line == *word {
            return command(plain.clone());
        }
    }
    // A word that takes no argument with something behind it; the longer words that begin with one of these and stand
    // alone (`stats-job`, `reserve-job`) are caught here too.
    let followed = [&b"reserve"[..], b"quit", b"pause-tube"];
    if ALONE.iter().map(|(word, _)| *word).chain(followed).any(|word| line.starts_with(word)) {
        return Err(LineError::BadFormat);
    }
    Err(LineError::UnknownCommand)
}

type FromTube = for<'a> fn(&'a [u8]) -> Command<'a>;
type FromId = fn(u64) -> Command<'static>;

const WITH_TUBE: &[(&[u8], FromTube)] = &[
    (b"use ", |name| Command::Use(name)),
    (b"watch ", |name| Command::Watch(name)),
    (b"ignore ", |name| Command::Ignore(name)),
    (b"stats-tube ", |name| Command::StatsTube(name)),
];

const WITH_ID: &[(&[u8], FromId)] = &[
    (b"touch ", Command::Touch),
    (b"peek ", Command::Peek),
    (b"reserve-job ", Command::ReserveJob),
    (b"kick-job ", Command::KickJob),
    (b"stats-job ", Command::StatsJob),
];

const ALONE: &[(&[u8], Command<'static>)] = &[
    (b"peek-ready", Command::PeekReady),
    (b"peek-delayed", Command::PeekDelayed),
    (b"peek-buried", Command::PeekBuried),
    (b"stats", Command::Stats),
    (b"list-tubes", Command::ListTubes),
    (b"list-tube-used", Command::ListTubeUsed),
    (b"list-tubes-watched", Command::ListTubesWatched),
];

fn command(command: Command<'_>) -> Result<Line<'_>, LineError> {
    Ok(Line::Command(command))
}

fn unless_nul<'a>(line: &[u8], rest: &'a [u8]) -> Result<&'a [u8], LineError> {
    if memchr::memchr(0, line).is_some() { Err(LineError::BadFormat) } else { Ok(rest) }
}

fn put(rest: &[u8]) -> Result<Line<'_>, LineError> {
    let mut numbers = Numbers(rest);
    let header = PutHeader {
        pri: numbers.u32()?,
        delay_s: numbers.u32()?,
        ttr_s: numbers.u32()?.max(1),
        body_bytes: numbers.u32()?,
        trailing_garbage: false,
    };
    Ok(Line::Put(PutHeader { trailing_garbage: numbers.end().is_err(), ..header }))
}

fn name(bytes: &[u8]) -> Result<&[u8], LineError> {
    if tube_name_is_valid(bytes) { Ok(bytes) } else { Err(LineError::BadFormat) }
}

fn only_u32(bytes: &[u8]) -> Result<u32, LineError> {
    u32::try_from(only_u64(bytes)?).map_err(|_| LineError::BadFormat)
}

fn only_u64(bytes: &[u8]) -> Result<u64, LineError> {
    let mut numbers = Numbers(bytes);
    let number = numbers.u64()?;
    numbers.end()?;
    Ok(number)
}

/// Decimal numbers, each behind any number of spaces.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn u64(&mut self) -> Result<u64, LineError> {
        let spaces = self.0.iter().take_while(|byte| **byte == b' ').count();
        let digits = &self.0[spaces..];
        let mut value: u64 = 0;
        let mut length = 0;
        for byte in digits {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            value = value
                .checked_mul(10)
                .and_then(|value| value.checked_add(u64::from(digit)))
                .ok_or(LineError::BadFormat)?;
            length += 1;
        }
        if length == 0 {
            return Err(LineError::BadFormat);
        }
        self.0 = &digits[length..];
        Ok(value)
    }

    fn u32(&mut self) -> Result<u32, LineError> {
        u32::try_from(self.u64()?).map_err(|_| LineError::BadFormat)
    }

    fn end(&self) -> Result<(), LineError> {
        if self.0.is_empty() { Ok(()) } else { Err(LineError::BadFormat) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Line, LineError, parse_line};
    use crate::Command;

    #[track_caller]
    fn is(line: &str, expected: Command<'_>) {
        let mut encoded = Vec::new();
        expected.encode_line(&mut encoded);
        assert_eq!(parse_line(&encoded), Ok(Line::Command(expected.clone())), "{line:?} written again");
        assert_eq!(parse_line(line.as_bytes()), Ok(Line::Command(expected)), "{line:?}");
    }

    #[track_caller]
    fn all(lines: &[&str], expected: LineError) {
        for line in lines {
            assert_eq!(parse_line(line.as_bytes()), Err(expected), "{line:?}");
        }
    }

    #[test]
    fn every_command_is_read() {
        is("use a", Command::Use(b"a"));
        is("reserve", Command::Reserve { timeout_s: None });
        is("reserve-with-timeout 0", Command::Reserve { timeout_s: Some(0) });
        is("reserve-with-timeout 2147483647", Command::Reserve { timeout_s: Some(2_147_483_647) });
        is("reserve-job 1", Command::ReserveJob(1));
        is("delete 18446744073709551615", Command::Delete(u64::MAX));
        is("release 1 4294967295 3", Command::Release { id: 1, pri: u32::MAX, delay_s: 3 });
        is("bury 1 2", Command::Bury { id: 1, pri: 2 });
        is("touch 1", Command::Touch(1));
        is("watch a", Command::Watch(b"a"));
        is("ignore a", Command::Ignore(b"a"));
        is("peek 1", Command::Peek(1));
        is("peek-ready", Command::PeekReady);
        is("peek-delayed", Command::PeekDelayed);
        is("peek-buried", Command::PeekBuried);
        is("kick 7", Command::Kick(7));
        is("kick-job 7", Command::KickJob(7));
        is("stats", Command::Stats);
        is("stats-job 1", Command::StatsJob(1));
        is("stats-tube a", Command::StatsTube(b"a"));
        is("list-tubes", Command::ListTubes);
        is("list-tube-used", Command::ListTubeUsed);
        is("list-tubes-watched", Command::ListTubesWatched);
        is("pause-tube a 5", Command::PauseTube { tube: b"a", delay_s: 5 });
        assert_eq!(parse_line(b"quit"), Ok(Line::Quit));
    }

    #[test]
    fn numbers_take_leading_spaces_and_zeros_and_nothing_else() {
        is("delete    0005", Command::Delete(5));
        is("pause-tube a   5", Command::PauseTube { tube: b"a", delay_s: 5 });
        all(
            &[
                "delete +5",
                "delete -5",
                "delete \t5",
                "delete 5 ",
                "delete 5a",
                "delete ",
                "delete 18446744073709551616",
                "kick 4294967296",
                "kick -1",
                "kick 5abc",
                "reserve-with-timeout 0abc",
                "reserve-with-timeout 2147483648",
                "release 1 2",
                "release 1 2 3 4",
                "release 1 4294967296 0",
                "bury 1",
                "bury 1 2 3",
                "pause-tube a",
                "pause-tube  a 5",
                "pause-tube a 5 ",
                "pause-tubefoo 5",
                "put a 0 0 0",
                "put 0 0 0",
                "put 0 0 0 4294967296",
                "put 0 0 0 -1",
            ],
            LineError::BadFormat,
        );
    }

    #[test]
    fn words_alone_or_followed_by_garbage() {
        all(
            &[
                "put",
                "peek",
                "delete",
                "release",
                "bury",
                "kick",
                "kick-job",
                "touch",
                "use",
                "watch",
                "ignore",
                "",
                " use a",
                "Use a",
                "nonsense",
                "list-tube",
                "peek-",
                "kick-jobs 1",
            ],
            LineError::UnknownCommand,
        );
        all(
            &[
                "reserve-with-timeout",
                "reserve-job",
                "stats-job",
                "stats-tube",
                "pause-tube",
                "stats ",
                "list-tubesX",
                "list-tube-used ",
                "list-tubes-watchedX",
                "reserve x",
                "reservex",
                "quit now",
                "quitx",
                "peek-ready ",
                "use ",
                "use  a",
                "use a ",
                "use a\tb",
                "a\0b",
                "use a\0",
                "put 0 0 0 1\0",
                "delete 1\0",
            ],
            LineError::BadFormat,
        );
    }

    #[test]
    fn a_put_header_keeps_garbage_for_later() {
        let Ok(Line::Put(header)) = parse_line(b"put 1 2 0 4x") else { panic!("not a put") };
        assert!(header.trailing_garbage);
        assert_eq!((header.pri, header.delay_s, header.ttr_s, header.body_bytes), (1, 2, 1, 4));
    }
}
