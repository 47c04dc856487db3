//! Ids that are not dense, shown as if they were: the n-th id that a server gives is `n` to the test.
//!
//! Several processes give ids that rise but carry the partition of their tube, so a test that spells out `INSERTED 1` and
//! `delete 1` could not be told to them. Its client says and hears dense ids; what is said in between is the server's.
//!
//! Owns: the table of the ids that a server has given, shared by all its clients and kept over restarts of a server with
//! a log; finding ids in what is sent ([`Requests`]) and in what comes back ([`Replies`]).
//! Never: guesses. A job under an id that no client was given, and an id that does not rise, end the test.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

/// The ids that a server has given, in the order in which its clients heard of them.
#[derive(Debug, Default)]
pub struct Ids {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Rising; the first one is 1 to the test.
    given: Vec<u64>,
    /// What tests said for "no such job".
    said_to_be_absent: HashSet<u64>,
}

impl Ids {
    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes down an id that the server has just given; returns what it is to the test.
    ///
    /// # Panics
    ///
    /// If it is not above all that were given before, or a test has named it as one that does not exist.
    fn give(&self, id: u64) -> usize {
        let mut table = self.table();
        let last = table.given.last().copied().unwrap_or(0);
        assert!(id > last, "ids must rise over the whole server, but {id} was given after {last}");
        assert!(!table.said_to_be_absent.contains(&id), "the test named {id} as an id that does not exist");
        table.given.push(id);
        table.given.len()
    }

    /// What an id of the server is to the test.
    ///
    /// # Panics
    ///
    /// If the server never gave it.
    fn shown(&self, id: u64) -> usize {
        match self.table().given.binary_search(&id) {
            Ok(index) => index + 1,
            Err(_) => panic!("the server speaks of job {id}, and has given no client that id"),
        }
    }

    /// The server's id for one of the test.
    fn real(&self, shown: u64) -> Option<u64> {
        let index = usize::try_from(shown.checked_sub(1)?).ok()?;
        self.table().given.get(index).copied()
    }

    fn count(&self) -> u64 {
        self.table().given.len() as u64
    }

    /// Takes down that a test names an id that does not exist: it is sent as it is.
    ///
    /// # Panics
    ///
    /// If the server has given that very id.
    fn is_absent(&self, id: u64) {
        let mut table = self.table();
        assert!(table.given.binary_search(&id).is_err(), "the test named {id} as an id that does not exist");
        table.said_to_be_absent.insert(id);
    }
}

/// What a client sends, read far enough to find the ids in it.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    at: At,
    /// The line so far, with ids as the test says them; of one that is too long, its beginning.
    line: Vec<u8>,
    /// The byte before.
    last: u8,
    /// Commands that are complete, each of which is answered once.
    commands: u64,
    /// Which of them are puts, as far as their answers were not seen.
    puts: VecDeque<u64>,
}

#[derive(Debug, Default)]
enum At {
    #[default]
    Line,
    /// In the id of a command; its digits are held back until the last one is known.
    Id(Vec<u8>),
    /// So many bytes of a body and its line end are to come.
    Body(u64),
}

/// A part of what is sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// As it is.
    Bytes(Vec<u8>),
    /// An id, in the test's digits.
    Id(Vec<u8>),
}

/// Commands whose first argument is an id.
const WITH_ID: [&str; 8] = ["delete", "touch", "peek", "kick-job", "stats-job", "reserve-job", "release", "bury"];
/// No line of a command is longer; what is longer has no id that counts.
const LINE_BYTES_MAX: usize = 224;

impl Requests {
    /// The next part of `input`, which is taken from it; `None` if nothing is left that may be sent.
    pub(crate) fn next(&mut self, input: &mut &[u8]) -> Option<Part> {
        let mut bytes = Vec::new();
        while let Some((&byte, rest)) = input.split_first() {
            let begins_id = matches!(self.at, At::Line) && matches!(byte, b'1'..=b'9') && self.is_before_an_id();
            match &mut self.at {
                At::Body(left) => {
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                    let (body, rest) = input.split_at(count);
                    bytes.extend_from_slice(body);
                    *input = rest;
                    *left -= count as u64;
                    if *left == 0 {
                        self.commands += 1;
                        self.puts.push_back(self.commands);
                        self.at = At::Line;
                    }
                }
                At::Id(digits) if byte.is_ascii_digit() => {
                    digits.push(byte);
                    *input = rest;
                }
                At::Id(digits) => {
                    let digits = std::mem::take(digits);
                    self.line.extend_from_slice(&digits);
                    self.last = b'0';
                    self.at = At::Line;
                    return Some(Part::Id(digits));
                }
                At::Line if begins_id => {
                    self.at = At::Id(Vec::new());
                    if !bytes.is_empty() {
                        break;
                    }
                }
                At::Line => {
                    bytes.push(byte);
                    *input = rest;
                    self.line_byte(byte);
                }
            }
        }
        (!bytes.is_empty()).then_some(Part::Bytes(bytes))
    }

    /// What is held back, as it is: the test ends its side in the middle of an id.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        match std::mem::take(&mut self.at) {
            At::Id(digits) => digits,
            At::Line | At::Body(_) => Vec::new(),
        }
    }

    /// How many puts are unanswered once so many commands are answered.
    pub(crate) fn open_puts(&mut self, answered: u64) -> u64 {
        while self.puts.front().is_some_and(|put| *put <= answered) {
            self.puts.pop_front();
        }
        self.puts.len() as u64
    }

    /// Whether the line so far is a command that takes an id, and what may stand between it and the id.
    fn is_before_an_id(&self) -> bool {
        let Ok(line) = std::str::from_utf8(&self.line) else { return false };
        let with_spaces = line.trim_end_matches('0');
        let word = with_spaces.trim_end_matches(' ');
        line.len() < LINE_BYTES_MAX && word.len() < with_spaces.len() && WITH_ID.contains(&word)
    }

    fn line_byte(&mut self, byte: u8) {
        if self.line.len() <= LINE_BYTES_MAX {
            self.line.push(byte);
        }
        if byte == b'\n' && self.last == b'\r' {
            match body_bytes(&self.line) {
                Some(count) => self.at = At::Body(count + 2),
                None => self.commands += 1,
            }
            self.line.clear();
        }
        self.last = byte;
    }
}

/// The size of the body that follows the line, if it is a put that a server reads one for.
fn body_bytes(line: &[u8]) -> Option<u64> {
    let numbers = std::str::from_utf8(line).ok()?.strip_suffix("\r\n")?.strip_prefix("put ")?;
    let words = numbers.split(' ').filter(|word| !word.is_empty());
    let numbers = words.map(|word| word.parse::<u32>().ok()).collect::<Option<Vec<u32>>>()?;
    (numbers.len() == 4 && !line.ends_with(b" \r\n")).then(|| numbers[3].into())
}

/// What the server answers, with the test's ids in the place of the server's.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    /// Received and not yet translated.
    raw: Vec<u8>,
    /// So many bytes of a body and its line end are to come.
    body_left: usize,
    /// Answers that were translated; of one with a body, its line.
    pub(crate) answered: u64,
}

impl Replies {
    /// Takes what was received, and appends what it is to the test.
    ///
    /// # Panics
    ///
    /// As [`Ids`].
    pub(crate) fn push(&mut self, ids: &Ids, received: &[u8], shown: &mut Vec<u8>) {
        self.raw.extend_from_slice(received);
        let mut done = 0;
        loop {
            let raw = &self.raw[done..];
            if self.body_left > 0 {
                let count = self.body_left.min(raw.len());
                shown.extend_from_slice(&raw[..count]);
                self.body_left -= count;
                done += count;
                if self.body_left > 0 {
                    break;
                }
                continue;
            }
            let Some(end) = raw.windows(2).position(|pair| pair == b"\r\n") else { break };
            let line = String::from_utf8_lossy(&raw[..end]).into_owned();
            let words: Vec<&str> = line.split(' ').collect();
            let number = |word: &str| word.parse::<u64>().ok();
            let count = |word: &str| word.parse::<usize>().ok();
            match words[..] {
                ["INSERTED", id] if number(id).is_some() => {
                    let id = ids.give(number(id).expect("a number"));
                    shown.extend(format!("INSERTED {id}\r\n").bytes());
                }
                [word @ ("RESERVED" | "FOUND"), id, bytes] if number(id).is_some() && count(bytes).is_some() => {
                    let id = ids.shown(number(id).expect("a number"));
                    shown.extend(format!("{word} {id} {bytes}\r\n").bytes());
                    self.body_left = count(bytes).expect("a number") + 2;
                }
                ["OK", bytes] if count(bytes).is_some() => {
                    let bytes = count(bytes).expect("a number");
                    let Some(text) = raw.get(end + 2..end + 2 + bytes) else { break };
                    let text = with_shown_id(ids, text);
                    shown.extend(format!("OK {}\r\n", text.len()).bytes());
                    shown.extend(text);
                    self.body_left = 2;
                    done += bytes;
                }
                _ => shown.extend_from_slice(&raw[..end + 2]),
            }
            done += end + 2;
            self.answered += 1;
        }
        self.raw.drain(..done);
    }

    /// What was received and is no whole answer, at the end of the stream.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.raw)
    }
}

/// The text of `stats-job` with the test's id; every other text as it is.
fn with_shown_id(ids: &Ids, text: &[u8]) -> Vec<u8> {
    let translated = std::str::from_utf8(text).ok().and_then(|text| {
        let (id, rest) = text.strip_prefix("---\nid: ")?.split_once('\n')?;
        let id = ids.shown(id.parse().ok()?);
        Some(format!("---\nid: {id}\n{rest}").into_bytes())
    });
    translated.unwrap_or_else(|| text.to_vec())
}

/// The digits of an id as the server knows it. `None` if it may become known by an answer to one of the client's
/// `open_puts`.
pub(crate) fn resolve(ids: &Ids, digits: &[u8], open_puts: u64) -> Option<Vec<u8>> {
    let Some(shown) = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u64>().ok()) else {
        return Some(digits.to_vec());
    };
    if let Some(real) = ids.real(shown) {
        return Some(real.to_string().into_bytes());
    }
    if shown <= ids.count().saturating_add(open_puts) {
        return None;
    }
    ids.is_absent(shown);
    Some(digits.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends parts of these lengths, with no answer to come; returns what reaches the server.
    fn sent(ids: &Ids, input: &[u8], length: usize) -> (String, u64) {
        let (mut requests, mut out) = (Requests::default(), Vec::new());
        for mut input in input.chunks(length) {
            while let Some(part) = requests.next(&mut input) {
                match part {
                    Part::Bytes(bytes) => out.extend(bytes),
                    Part::Id(digits) => out.extend(resolve(ids, &digits, 0).expect("no answer is open")),
                }
            }
        }
        out.extend(requests.rest());
        (String::from_utf8(out).expect("text"), requests.commands)
    }

    fn with_ids(given: &[u64]) -> Ids {
        let ids = Ids::default();
        for id in given {
            ids.give(*id);
        }
        ids
    }

    #[test]
    fn ids_of_commands_are_translated_however_they_are_cut() {
        let ids = with_ids(&[64, 135, 1_000_000]);
        let input = "delete 1\r\nput 0 0 0 10\r\ndelete 1\r\n\r\nrelease 2 3 3\r\nbury   003 1\r\nuse 1\r\npeek 4\r\nkick 1\r\n\
                     touch 18446744073709551616\r\npeek 1x\r\nstats-job1\r\nPEEK 1\r\nreserve-job 3\r\ndelete 2";
        let wanted = "delete 64\r\nput 0 0 0 10\r\ndelete 1\r\n\r\nrelease 135 3 3\r\nbury   001000000 1\r\nuse 1\r\n\
                      peek 4\r\nkick 1\r\ntouch 18446744073709551616\r\npeek 64x\r\nstats-job1\r\nPEEK 1\r\n\
                      reserve-job 1000000\r\ndelete 2";
        for length in 1..input.len() {
            assert_eq!(sent(&ids, input.as_bytes(), length), (wanted.to_owned(), 12), "{length}");
        }
    }

    #[test]
    fn only_puts_that_can_be_read_have_a_body() {
        for (line, wanted) in [
            ("put 0 0 0 5\r\n", Some(5)),
            ("put  00  0 0 4294967295\r\n", Some(4_294_967_295)),
            ("put 0 0 0 4294967296\r\n", None),
            ("put x 0 0 5\r\n", None),
            ("put 0 0 0 5 \r\n", None),
            ("put 0 0 5\r\n", None),
            ("put0 0 0 5\r\n", None),
        ] {
            assert_eq!(body_bytes(line.as_bytes()), wanted, "{line:?}");
        }
    }

    #[test]
    fn ids_of_answers_are_translated_however_they_arrive() {
        let input = "INSERTED 70\r\nINSERTED 200\r\nFOUND 200 13\r\nINSERTED 70\r\n\r\nOK 23\r\n---\nid: 200\ntube: \"70\"\n\r\n\
                     OK 21\r\n---\nid: 70ab\na: 12345\r\nRESERVED 70 0\r\n\r\nNOT_FOUND\r\nDELE";
        let wanted = "INSERTED 1\r\nINSERTED 2\r\nFOUND 2 13\r\nINSERTED 70\r\n\r\nOK 21\r\n---\nid: 2\ntube: \"70\"\n\r\n\
                      OK 21\r\n---\nid: 70ab\na: 12345\r\nRESERVED 1 0\r\n\r\nNOT_FOUND\r\nDELE";
        for length in 1..input.len() {
            let (ids, mut replies, mut shown) = (Ids::default(), Replies::default(), Vec::new());
            for part in input.as_bytes().chunks(length) {
                replies.push(&ids, part, &mut shown);
            }
            shown.extend(replies.rest());
            assert_eq!(String::from_utf8(shown).expect("text"), wanted, "{length}");
            assert_eq!(replies.answered, 7);
        }
    }

    #[test]
    #[should_panic(expected = "has given no client that id")]
    fn a_job_of_an_unknown_id_ends_the_test() {
        Replies::default().push(&with_ids(&[64]), b"FOUND 65 0\r\n", &mut Vec::new());
    }

    #[test]
    #[should_panic(expected = "ids must rise")]
    fn an_id_that_does_not_rise_ends_the_test() {
        Replies::default().push(&with_ids(&[64]), b"INSERTED 64\r\n", &mut Vec::new());
    }

    #[test]
    #[should_panic(expected = "as an id that does not exist")]
    fn an_id_that_a_test_took_for_nobodys_ends_it_when_it_is_given() {
        let ids = Ids::default();
        assert_eq!(resolve(&ids, b"999", 0), Some(b"999".to_vec()));
        Replies::default().push(&ids, b"INSERTED 999\r\n", &mut Vec::new());
    }

    #[test]
    fn an_id_that_may_be_given_yet_is_waited_for() {
        let ids = with_ids(&[64]);
        assert_eq!(resolve(&ids, b"2", 1), None);
        assert_eq!(resolve(&ids, b"3", 1), Some(b"3".to_vec()));
    }
}
