//! Which requests go into one transaction, and what its end means for each: the rules of group commit.
//!
//! Owns: the queue of requests by number and size, its bounds, when a batch begins, what is tried again in halves.
//! Never: knows a request's content, carries anything out, reads a clock.
//!
//! Requests that arrive while a batch is under way form the next one. A batch that failed for certain is run again in
//! halves until the culprit stands alone; between two such parts, a batch of requests that are not under suspicion has
//! its turn.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::{Class, DbError};

/// Requests in one batch at most: it bounds how many answers one unknown commit takes along.
pub const REQUESTS_PER_BATCH_MAX: usize = 512;
/// Bytes in one batch at most: what a transaction holds in memory, and what the locks of its rows are held for.
pub const BYTES_PER_BATCH_MAX: usize = 4 << 20;
/// Requests that wait at most; beyond that they are refused, as waiting longer would only make their callers repeat
/// them.
pub const REQUESTS_WAITING_MAX: usize = 4096;
/// Bytes that wait at most: sixteen full batches.
pub const BYTES_WAITING_MAX: usize = 16 * BYTES_PER_BATCH_MAX;
/// How long the requests that are there wait for others at most.
pub const WAIT_MAX: Duration = Duration::from_millis(2);
/// One in so many parts that the last batch has in the mean of how long batches take.
const USUAL_WEIGHT: u32 = 8;
/// Times that a batch is run again as it is after a failure that passes by itself.
pub const REPEATS_MAX: u32 = 2;

const _: () = assert!(REQUESTS_PER_BATCH_MAX <= REQUESTS_WAITING_MAX && BYTES_PER_BATCH_MAX <= BYTES_WAITING_MAX);

/// A point in time, as the time since any fixed one.
pub type Time = Duration;

/// Why a request was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// Too many wait; later.
    #[error("{REQUESTS_WAITING_MAX} requests or {} MiB wait already", BYTES_WAITING_MAX >> 20)]
    Busy,
    /// It fits into no batch.
    #[error("the request has {size} bytes, and a transaction takes {BYTES_PER_BATCH_MAX}")]
    TooLarge {
        /// Its size.
        size: usize,
    },
}

/// How a batch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It was committed, and each request has its answer.
    Done,
    /// It failed.
    Failed(DbError),
}

/// A batch that is to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Its number, for [`Batches::end`].
    pub number: u64,
    /// The requests in it, by number, in order of arrival.
    pub requests: Vec<u64>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Run this, and ask again at once: several may be under way.
    Run(Batch),
    /// Nothing until this time, unless something happens before.
    WaitUntil(Time),
    /// Nothing until something happens.
    Idle,
}

/// What an ended batch means for its requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Each has the answer that the batch gave it.
    Answered(Vec<u64>),
    /// Each has this failure.
    Failed(Vec<u64>, DbError),
    /// They are run again; nobody is answered yet.
    Again,
}

#[derive(Debug)]
struct Waiting {
    request: u64,
    size: usize,
    since: Time,
}

/// A part of a batch that failed.
#[derive(Debug)]
struct Part {
    requests: Vec<u64>,
    repeats: u32,
}

#[derive(Debug)]
struct UnderWay {
    part: Part,
    begun: Time,
}

/// The requests of one writer, or of several that take batches of the same queue.
#[derive(Debug)]
pub struct Batches {
    writers: usize,
    next_request: u64,
    next_batch: u64,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    under_way: BTreeMap<u64, UnderWay>,
    /// Parts of batches that failed, the next one first.
    suspects: VecDeque<Part>,
    /// Whether the last batch was one of suspects; then the others have their turn.
    was_suspect: bool,
    /// How many requests came together the last time, and until when they are worth waiting for.
    expected: usize,
    expected_until: Time,
    /// How long a batch takes: a mean in which the last ones count most, as syncs of a disk differ a lot.
    usual: Option<Duration>,
}

impl Batches {
    /// For so many writers, at least 1: as many batches may be under way together.
    #[must_use]
    pub fn new(writers: usize) -> Self {
        Self {
            writers: writers.max(1),
            next_request: 0,
            next_batch: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            under_way: BTreeMap::new(),
            suspects: VecDeque::new(),
            was_suspect: false,
            expected: 0,
            expected_until: Time::ZERO,
            usual: None,
        }
    }

    /// Lets a request in and gives its number.
    ///
    /// # Errors
    ///
    /// [`NotAdmitted`].
    pub fn admit(&mut self, now: Time, size: usize) -> Result<u64, NotAdmitted> {
        if size > BYTES_PER_BATCH_MAX {
            return Err(NotAdmitted::TooLarge { size });
        }
        if self.waiting.len() >= REQUESTS_WAITING_MAX || self.waiting_bytes + size > BYTES_WAITING_MAX {
            return Err(NotAdmitted::Busy);
        }
        let request = self.next_request;
        self.next_request += 1;
        self.waiting.push_back(Waiting { request, size, since: now });
        self.waiting_bytes += size;
        Ok(request)
    }

    /// Requests that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether another writer would find something to do.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.waiting.is_empty() || !self.suspects.is_empty()
    }

    /// What to do now.
    pub fn next(&mut self, now: Time) -> Next {
        if self.under_way.len() >= self.writers {
            return Next::Idle;
        }
        let has_suspects = !self.suspects.is_empty();
        if has_suspects && (!self.was_suspect || self.waiting.is_empty()) {
            self.was_suspect = true;
            let part = self.suspects.pop_front().expect("just seen");
            return Next::Run(self.begin(now, part));
        }
        let Some(oldest) = self.waiting.front() else { return Next::Idle };
        // Those whose answers have just gone out need a moment to come back. If they are waited for, one transaction
        // serves them all; if not, the first one to come back makes all others wait for a commit of its own.
        let until = self.expected_until.min(oldest.since + WAIT_MAX);
        if self.waiting.len() < self.expected && now < until && !has_suspects {
            return Next::WaitUntil(until);
        }
        self.was_suspect = false;
        let requests = self.take();
        Next::Run(self.begin(now, Part { requests, repeats: 0 }))
    }

    fn take(&mut self) -> Vec<u64> {
        let mut bytes = 0;
        let mut requests = Vec::new();
        while let Some(next) = self.waiting.front() {
            if requests.len() == REQUESTS_PER_BATCH_MAX || bytes + next.size > BYTES_PER_BATCH_MAX {
                break;
            }
            bytes += next.size;
            requests.push(next.request);
            self.waiting.pop_front();
        }
        self.waiting_bytes -= bytes;
        requests
    }

    fn begin(&mut self, now: Time, part: Part) -> Batch {
        let number = self.next_batch;
        self.next_batch += 1;
        let requests = part.requests.clone();
        self.under_way.insert(number, UnderWay { part, begun: now });
        Batch { number, requests }
    }

    /// Says how a batch ended, and gets what that means for its requests.
    ///
    /// # Panics
    ///
    /// If no such batch is under way.
    pub fn end(&mut self, now: Time, number: u64, end: End) -> Outcome {
        let UnderWay { part, begun } = self.under_way.remove(&number).expect("only what is under way can end");
        let Part { mut requests, repeats } = part;
        let error = match end {
            End::Done => {
                let took = now.saturating_sub(begun);
                let usual = self.usual.map_or(took, |usual| (usual * (USUAL_WEIGHT - 1) + took) / USUAL_WEIGHT);
                self.usual = Some(usual);
                self.expected = requests.len();
                // Waiting longer than a commit takes costs more than it saves.
                self.expected_until = now + usual.min(WAIT_MAX);
                return Outcome::Answered(requests);
            }
            End::Failed(error) => error,
        };
        self.expected = 0;
        match error.class {
            // Whoever hears this must ask again, and a second try could answer differently.
            Class::Unknown => Outcome::Failed(requests, error),
            // No request is to blame, so parts would fail as well. But a connection may be the last thing that remains of a
            // server that is there again.
            Class::Unavailable | Class::ReadOnly | Class::Conflict if repeats < REPEATS_MAX => {
                self.suspects.push_front(Part { requests, repeats: repeats + 1 });
                Outcome::Again
            }
            Class::Unavailable | Class::ReadOnly | Class::Exhausted => Outcome::Failed(requests, error),
            Class::Refused | Class::Conflict | Class::Locked | Class::TimedOut | Class::Broken => {
                if requests.len() < 2 {
                    return Outcome::Failed(requests, error);
                }
                let second = requests.split_off(requests.len() / 2);
                self.suspects.push_front(Part { requests: second, repeats });
                self.suspects.push_front(Part { requests, repeats });
                Outcome::Again
            }
        }
    }

    /// Gives up all requests that are not under way, and returns them.
    pub fn give_up(&mut self) -> Vec<u64> {
        self.waiting_bytes = 0;
        let suspects = self.suspects.drain(..).flat_map(|part| part.requests);
        suspects.chain(self.waiting.drain(..).map(|waiting| waiting.request)).collect()
    }
}
