//! What the server says, and its bytes.

use crate::{JobStats, ServerStats, TubeStats};

/// One reply. Bodies and names are borrowed from whoever answers, so that they are copied once, into the output.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply<'a> {
    /// A put was accepted under this id.
    Inserted(u64),
    /// A put was accepted, but could only be buried.
    InsertedBuried(u64),
    /// The tube in use.
    Using(&'a [u8]),
    /// A job is the client's until its time to run ends.
    Reserved {
        /// The job.
        id: u64,
        /// Its body without CR LF.
        body: &'a [u8],
    },
    /// A job is shown.
    Found {
        /// The job.
        id: u64,
        /// Its body without CR LF.
        body: &'a [u8],
    },
    /// Number of watched tubes.
    Watching(usize),
    /// The last watched tube cannot be ignored.
    NotIgnored,
    /// The job is gone.
    Deleted,
    /// The job was given back.
    Released,
    /// The job was buried.
    Buried,
    /// The time to run has begun anew.
    Touched,
    /// The one job was kicked.
    JobKicked,
    /// So many jobs were kicked.
    Kicked(u64),
    /// The pause was set or lifted.
    Paused,
    /// No job came in time.
    TimedOut,
    /// A job that this client holds is in its last second.
    DeadlineSoon,
    /// No such job for this client, or no such tube.
    NotFound,
    /// The server takes no jobs.
    Draining,
    /// No memory, or no space in the log.
    OutOfMemory,
    /// A failure of ours.
    InternalError,
    /// The command could not be read.
    BadFormat,
    /// No such command.
    UnknownCommand,
    /// The body of a put did not end in CR LF.
    ExpectedCrlf,
    /// The body of a put was over the limit.
    JobTooBig,
    /// Figures of one job.
    JobStats(&'a JobStats<'a>),
    /// Figures of one tube.
    TubeStats(&'a TubeStats<'a>),
    /// Figures of the server.
    ServerStats(&'a ServerStats),
    /// Names of tubes.
    Names(&'a [&'a [u8]]),
}

impl Reply<'_> {
    /// Appends the bytes of the reply, its CR LF included.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Inserted(id) => number(out, b"INSERTED ", *id),
            Reply::InsertedBuried(id) => number(out, b"BURIED ", *id),
            Reply::Using(tube) => {
                out.extend_from_slice(b"USING ");
                out.extend_from_slice(tube);
                out.extend_from_slice(b"\r\n");
            }
            Reply::Reserved { id, body } => job(out, b"RESERVED ", *id, body),
            Reply::Found { id, body } => job(out, b"FOUND ", *id, body),
            Reply::Watching(count) => number(out, b"WATCHING ", *count as u64),
            Reply::Kicked(count) => number(out, b"KICKED ", *count),
            Reply::JobStats(stats) => counted(out, |text| stats.encode(text)),
            Reply::TubeStats(stats) => counted(out, |text| stats.encode(text)),
            Reply::ServerStats(stats) => counted(out, |text| stats.encode(text)),
            Reply::Names(names) => counted(out, |text| {
                text.extend_from_slice(b"---\n");
                for name in *names {
                    text.extend_from_slice(b"- ");
                    text.extend_from_slice(name);
                    text.push(b'\n');
                }
            }),
            Reply::NotIgnored => out.extend_from_slice(b"NOT_IGNORED\r\n"),
            Reply::Deleted => out.extend_from_slice(b"DELETED\r\n"),
            Reply::Released => out.extend_from_slice(b"RELEASED\r\n"),
            Reply::Buried => out.extend_from_slice(b"BURIED\r\n"),
            Reply::Touched => out.extend_from_slice(b"TOUCHED\r\n"),
            Reply::JobKicked => out.extend_from_slice(b"KICKED\r\n"),
            Reply::Paused => out.extend_from_slice(b"PAUSED\r\n"),
            Reply::TimedOut => out.extend_from_slice(b"TIMED_OUT\r\n"),
            Reply::DeadlineSoon => out.extend_from_slice(b"DEADLINE_SOON\r\n"),
            Reply::NotFound => out.extend_from_slice(b"NOT_FOUND\r\n"),
            Reply::Draining => out.extend_from_slice(b"DRAINING\r\n"),
            Reply::OutOfMemory => out.extend_from_slice(b"OUT_OF_MEMORY\r\n"),
            Reply::InternalError => out.extend_from_slice(b"INTERNAL_ERROR\r\n"),
            Reply::BadFormat => out.extend_from_slice(b"BAD_FORMAT\r\n"),
            Reply::UnknownCommand => out.extend_from_slice(b"UNKNOWN_COMMAND\r\n"),
            Reply::ExpectedCrlf => out.extend_from_slice(b"EXPECTED_CRLF\r\n"),
            Reply::JobTooBig => out.extend_from_slice(b"JOB_TOO_BIG\r\n"),
        }
    }
}

fn number(out: &mut Vec<u8>, word: &[u8], value: u64) {
    out.extend_from_slice(word);
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn job(out: &mut Vec<u8>, word: &[u8], id: u64, body: &[u8]) {
    out.reserve(word.len() + body.len() + 40);
    out.extend_from_slice(word);
    out.extend_from_slice(itoa::Buffer::new().format(id).as_bytes());
    number(out, b" ", body.len() as u64);
    out.extend_from_slice(body);
    out.extend_from_slice(b"\r\n");
}

/// `OK n`, the text, CR LF; n is known only once the text has been written.
fn counted(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let mut text = Vec::with_capacity(1024);
    write(&mut text);
    number(out, b"OK ", text.len() as u64);
    out.extend_from_slice(&text);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::Reply;

    #[track_caller]
    fn check(reply: &Reply<'_>, expected: &str) {
        let mut out = Vec::new();
        reply.encode(&mut out);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn replies_have_the_bytes_that_clients_parse() {
        check(&Reply::Inserted(u64::MAX), "INSERTED 18446744073709551615\r\n");
        check(&Reply::InsertedBuried(3), "BURIED 3\r\n");
        check(&Reply::Using(b"default"), "USING default\r\n");
        check(&Reply::Reserved { id: 7, body: b"ab" }, "RESERVED 7 2\r\nab\r\n");
        check(&Reply::Found { id: 7, body: b"" }, "FOUND 7 0\r\n\r\n");
        check(&Reply::Watching(2), "WATCHING 2\r\n");
        check(&Reply::Kicked(0), "KICKED 0\r\n");
        check(&Reply::JobKicked, "KICKED\r\n");
        check(&Reply::Names(&[b"default", b"a"]), "OK 18\r\n---\n- default\n- a\n\r\n");
    }
}
