//! What a client can ask for.

use crate::TUBE_NAME_BYTES_MAX;

/// A command whose arguments are valid. Tube names satisfy [`tube_name_is_valid`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command<'a> {
    /// Put a job into the used tube.
    Put {
        /// Smaller is more urgent.
        pri: u32,
        /// Seconds until it becomes ready.
        delay_s: u32,
        /// Time to run in seconds; 0 on the wire is 1 here.
        ttr_s: u32,
        /// The body without its CR LF.
        body: Box<[u8]>,
    },
    /// Choose the tube of put, kick and the peeks.
    Use(&'a [u8]),
    /// Take the best ready job of the watched tubes. `None` waits for ever, 0 is a poll.
    Reserve {
        /// Longest wait, in seconds.
        timeout_s: Option<u32>,
    },
    /// Take one job by its id.
    ReserveJob(u64),
    /// Remove a job for good.
    Delete(u64),
    /// Give a held job back.
    Release {
        /// The job.
        id: u64,
        /// Its new priority.
        pri: u32,
        /// Seconds until it is ready again.
        delay_s: u32,
    },
    /// Set a held job aside.
    Bury {
        /// The job.
        id: u64,
        /// Its new priority.
        pri: u32,
    },
    /// Start the time to run of a held job anew.
    Touch(u64),
    /// Add a tube to the watch list.
    Watch(&'a [u8]),
    /// Take a tube off the watch list.
    Ignore(&'a [u8]),
    /// Show one job.
    Peek(u64),
    /// Show the best ready job of the used tube.
    PeekReady,
    /// Show the delayed job of the used tube that is due first.
    PeekDelayed,
    /// Show the job of the used tube that has been buried longest.
    PeekBuried,
    /// Make at most so many buried, else delayed, jobs of the used tube ready.
    Kick(u32),
    /// Make one buried or delayed job ready.
    KickJob(u64),
    /// Figures of the server.
    Stats,
    /// Figures of one job.
    StatsJob(u64),
    /// Figures of one tube.
    StatsTube(&'a [u8]),
    /// Names of all tubes.
    ListTubes,
    /// Name of the used tube.
    ListTubeUsed,
    /// Names of the watched tubes.
    ListTubesWatched,
    /// Hand out nothing from a tube for a while.
    PauseTube {
        /// The tube.
        tube: &'a [u8],
        /// For how many seconds; 0 lifts a pause.
        delay_s: u32,
    },
}

impl Command<'_> {
    /// Appends the command's line without CR LF; of a put, its head.
    pub fn encode_line(&self, out: &mut Vec<u8>) {
        let mut word = |word: &str, name: Option<&[u8]>, numbers: &[u64]| {
            out.extend_from_slice(word.as_bytes());
            if let Some(name) = name {
                out.push(b' ');
                out.extend_from_slice(name);
            }
            for number in numbers {
                out.push(b' ');
                out.extend_from_slice(itoa::Buffer::new().format(*number).as_bytes());
            }
        };
        match self {
            Command::Put { pri, delay_s, ttr_s, body } => {
                word("put", None, &[(*pri).into(), (*delay_s).into(), (*ttr_s).into(), body.len() as u64]);
            }
            Command::Use(name) => word("use", Some(name), &[]),
            Command::Reserve { timeout_s: None } => word("reserve", None, &[]),
            Command::Reserve { timeout_s: Some(seconds) } => word("reserve-with-timeout", None, &[(*seconds).into()]),
            Command::ReserveJob(id) => word("reserve-job", None, &[*id]),
            Command::Delete(id) => word("delete", None, &[*id]),
            Command::Release { id, pri, delay_s } => word("release", None, &[*id, (*pri).into(), (*delay_s).into()]),
            Command::Bury { id, pri } => word("bury", None, &[*id, (*pri).into()]),
            Command::Touch(id) => word("touch", None, &[*id]),
            Command::Watch(name) => word("watch", Some(name), &[]),
            Command::Ignore(name) => word("ignore", Some(name), &[]),
            Command::Peek(id) => word("peek", None, &[*id]),
            Command::PeekReady => word("peek-ready", None, &[]),
            Command::PeekDelayed => word("peek-delayed", None, &[]),
            Command::PeekBuried => word("peek-buried", None, &[]),
            Command::Kick(bound) => word("kick", None, &[(*bound).into()]),
            Command::KickJob(id) => word("kick-job", None, &[*id]),
            Command::Stats => word("stats", None, &[]),
            Command::StatsJob(id) => word("stats-job", None, &[*id]),
            Command::StatsTube(name) => word("stats-tube", Some(name), &[]),
            Command::ListTubes => word("list-tubes", None, &[]),
            Command::ListTubeUsed => word("list-tube-used", None, &[]),
            Command::ListTubesWatched => word("list-tubes-watched", None, &[]),
            Command::PauseTube { tube, delay_s } => word("pause-tube", Some(tube), &[(*delay_s).into()]),
        }
    }
}

/// Whether `name` is a legal tube name: 1 to 200 bytes of `A-Z a-z 0-9 - + / ; . $ _ ( )`, not beginning with `-`.
#[must_use]
pub fn tube_name_is_valid(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= TUBE_NAME_BYTES_MAX
        && name[0] != b'-'
        && name.iter().all(|byte| TUBE_NAME_BYTE[usize::from(*byte)])
}

const TUBE_NAME_BYTE: [bool; 256] = {
    let mut table = [false; 256];
    let legal = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-+/;.$_()";
    let mut at = 0;
    while at < legal.len() {
        table[legal[at] as usize] = true;
        at += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::tube_name_is_valid;

    #[test]
    fn a_name_has_1_to_200_legal_bytes_and_no_leading_dash() {
        assert!(tube_name_is_valid(b"a"));
        assert!(tube_name_is_valid(b"A-z09-+/;.$_()"));
        assert!(tube_name_is_valid(&[b'x'; 200]));
        assert!(!tube_name_is_valid(&[b'x'; 201]));
        assert!(!tube_name_is_valid(b""));
        assert!(!tube_name_is_valid(b"-a"));
        for byte in [b' ', b'\t', 0, b'\r', b'\n', b'*', b'"', 0x80, 0xff] {
            assert!(!tube_name_is_valid(&[b'a', byte]), "{byte:#x}");
        }
    }
}
