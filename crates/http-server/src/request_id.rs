//! A name for each request, by which an answer and the log's lines about it are found together.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The header field that every answer has.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// Names one request among all of all processes: a random start of the process, and a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    process: u64,
    count: u64,
}

impl RequestId {
    pub(crate) fn next() -> RequestId {
        static PROCESS: OnceLock<u64> = OnceLock::new();
        static COUNT: AtomicU64 = AtomicU64::new(1);
        // Without randomness ids of several processes may coincide, which costs a search in logs and nothing else.
        let process = *PROCESS.get_or_init(|| getrandom::u64().unwrap_or_default());
        RequestId { process, count: COUNT.fetch_add(1, Ordering::Relaxed) }
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.process, self.count)
    }
}
