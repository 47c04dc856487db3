//! What frontends and owners say to each other.

use crate::frame::{FrameError, MESSAGE_HEADER_BYTES, MessageHead, u32_at, u64_at};
use crate::writer::Writer;
use tubes_protocol::Reply;

/// From a frontend, about one of its sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToOwner<'a> {
    /// A command as its line without CR LF; answered by a reply.
    Line(&'a [u8]),
    /// A complete put; answered by a reply.
    Put {
        /// Smaller is more urgent.
        pri: u32,
        /// Seconds until it is ready.
        delay_s: u32,
        /// Time to run, in seconds.
        ttr_s: u32,
        /// Body without CR LF.
        body: &'a [u8],
    },
    /// A `use` or `watch` said again after the owner was restarted; not answered.
    Announce(&'a [u8]),
    /// The session uses a tube of another owner; not answered.
    Unuse,
    /// The session ignores this tube; answered by a reply.
    Unwatch(&'a [u8]),
    /// All names; answered by [`ToFrontend::Names`].
    ListTubes,
    /// A reserve whose watched tubes all lie at this owner.
    Reserve {
        /// Names the wait.
        wait: u32,
        /// The connection is in the last second of a job it holds.
        in_margin: bool,
        /// Answer now.
        is_poll: bool,
    },
    /// A reserve that other owners are asked about too.
    Ask {
        /// Names the wait.
        wait: u32,
        /// As above.
        in_margin: bool,
        /// As above.
        is_poll: bool,
    },
    /// Take the job that was offered.
    Accept {
        /// Names the wait.
        wait: u32,
        /// Names the offer.
        offer: u64,
    },
    /// End the wait, and give an offer back; answered by [`ToFrontend::Withdrawn`].
    Withdraw {
        /// Names the wait.
        wait: u32,
    },
    /// The session is over; not answered.
    End,
}

/// From an owner, to one session of a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToFrontend<'a> {
    /// The answer to the oldest unanswered command.
    Reply {
        /// What it means to the session.
        outcome: Outcome,
        /// The bytes for the client.
        bytes: &'a [u8],
    },
    /// A wait was served.
    Served {
        /// The wait.
        wait: u32,
        /// What it means to the session.
        outcome: Outcome,
        /// The bytes for the client.
        bytes: &'a [u8],
    },
    /// A job that the session may accept.
    Offer {
        /// The wait.
        wait: u32,
        /// Names the offer.
        offer: u64,
        /// Its priority.
        pri: u32,
        /// Its id.
        id: u64,
    },
    /// No job for this wait.
    Nothing {
        /// The wait.
        wait: u32,
        /// A wait in the margin would be answered `DEADLINE_SOON` here.
        is_soon: bool,
    },
    /// The accepted offer is no more.
    Gone {
        /// The wait.
        wait: u32,
    },
    /// The wait has ended as asked.
    Withdrawn {
        /// The wait.
        wait: u32,
    },
    /// All tubes: for each, its number of creation, the length of its name and the name.
    Names(&'a [u8]),
}

/// What a reply means to the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The command was carried out.
    Done,
    /// `NOT_FOUND`.
    NotFound,
    /// A refusal or failure that changed nothing.
    Refused,
    /// The session holds a job until the deadline, in ns of the boot clock.
    Held {
        /// The job.
        id: u64,
        /// Its deadline.
        deadline_ns: u64,
    },
}

impl ToOwner<'_> {
    /// Whether it is about a wait that is under way, or ends the session: it must not wait itself.
    pub(crate) fn overtakes(&self) -> bool {
        matches!(self, ToOwner::Ask { .. } | ToOwner::Accept { .. } | ToOwner::Withdraw { .. } | ToOwner::End)
    }

    /// What it costs to keep the message, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let bytes = match self {
            ToOwner::Line(bytes) | ToOwner::Announce(bytes) | ToOwner::Unwatch(bytes) => bytes.len(),
            ToOwner::Put { body, .. } => body.len(),
            _ => 0,
        };
        MESSAGE_HEADER_BYTES + bytes
    }

    /// Appends the message to a link.
    pub fn write(&self, session: u64, writer: &mut Writer) {
        let kind = match self {
            ToOwner::Line(_) => 1,
            ToOwner::Put { .. } => 2,
            ToOwner::Announce(_) => 3,
            ToOwner::Unuse => 4,
            ToOwner::Unwatch(_) => 5,
            ToOwner::ListTubes => 6,
            ToOwner::Reserve { .. } => 7,
            ToOwner::Ask { .. } => 8,
            ToOwner::Accept { .. } => 9,
            ToOwner::Withdraw { .. } => 10,
            ToOwner::End => 11,
        };
        writer.message(MessageHead { kind, session }, |out| match self {
            ToOwner::Line(bytes) | ToOwner::Announce(bytes) | ToOwner::Unwatch(bytes) => out.extend_from_slice(bytes),
            ToOwner::Put { pri, delay_s, ttr_s, body } => {
                for number in [pri, delay_s, ttr_s] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
                out.extend_from_slice(body);
            }
            ToOwner::Unuse | ToOwner::ListTubes | ToOwner::End => {}
            ToOwner::Reserve { wait, in_margin, is_poll } | ToOwner::Ask { wait, in_margin, is_poll } => {
                out.extend_from_slice(&wait.to_le_bytes());
                out.push(u8::from(*in_margin) | u8::from(*is_poll) << 1);
            }
            ToOwner::Accept { wait, offer } => {
                out.extend_from_slice(&wait.to_le_bytes());
                out.extend_from_slice(&offer.to_le_bytes());
            }
            ToOwner::Withdraw { wait } => out.extend_from_slice(&wait.to_le_bytes()),
        });
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// [`FrameError::Message`] if it makes no sense.
    pub fn read(kind: u8, payload: &[u8]) -> Result<ToOwner<'_>, FrameError> {
        let flags =
            || payload.get(4).copied().filter(|flags| *flags < 4 && payload.len() == 5).ok_or(FrameError::Message);
        let wait = |length| if payload.len() == length { Ok(u32_at(payload, 0)) } else { Err(FrameError::Message) };
        let nothing = |message| if payload.is_empty() { Ok(message) } else { Err(FrameError::Message) };
        Ok(match kind {
            1 => ToOwner::Line(payload),
            2 if payload.len() >= 12 => ToOwner::Put {
                pri: u32_at(payload, 0),
                delay_s: u32_at(payload, 4),
                ttr_s: u32_at(payload, 8),
                body: &payload[12..],
            },
            3 => ToOwner::Announce(payload),
            4 => return nothing(ToOwner::Unuse),
            5 => ToOwner::Unwatch(payload),
            6 => return nothing(ToOwner::ListTubes),
            7 => ToOwner::Reserve { wait: wait(5)?, in_margin: flags()? & 1 != 0, is_poll: flags()? & 2 != 0 },
            8 => ToOwner::Ask { wait: wait(5)?, in_margin: flags()? & 1 != 0, is_poll: flags()? & 2 != 0 },
            9 => ToOwner::Accept { wait: wait(12)?, offer: u64_at(payload, 4) },
            10 => ToOwner::Withdraw { wait: wait(4)? },
            11 => return nothing(ToOwner::End),
            _ => return Err(FrameError::Message),
        })
    }
}

impl Outcome {
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        match self {
            Outcome::Done => out.push(0),
            Outcome::NotFound => out.push(1),
            Outcome::Refused => out.push(2),
            Outcome::Held { id, deadline_ns } => {
                out.push(3);
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&deadline_ns.to_le_bytes());
            }
        }
    }

    /// The outcome at the front, and what is behind it.
    fn read(bytes: &[u8]) -> Result<(Outcome, &[u8]), FrameError> {
        let (code, rest) = bytes.split_first().ok_or(FrameError::Message)?;
        match code {
            0 => Ok((Outcome::Done, rest)),
            1 => Ok((Outcome::NotFound, rest)),
            2 => Ok((Outcome::Refused, rest)),
            3 if rest.len() >= 16 => {
                Ok((Outcome::Held { id: u64_at(rest, 0), deadline_ns: u64_at(rest, 8) }, &rest[16..]))
            }
            _ => Err(FrameError::Message),
        }
    }
}

/// Kinds of the two messages that hold a reply; see [`reply`].
const REPLY: u8 = 1;
const SERVED: u8 = 2;

/// Appends a reply to a link, as [`ToFrontend::Reply`] or, to a wait, as [`ToFrontend::Served`], encoded where it goes.
pub(crate) fn reply(writer: &mut Writer, session: u64, wait: Option<u32>, outcome: Outcome, reply: &Reply<'_>) {
    let kind = if wait.is_some() { SERVED } else { REPLY };
    writer.message(MessageHead { kind, session }, |out| {
        if let Some(wait) = wait {
            out.extend_from_slice(&wait.to_le_bytes());
        }
        outcome.write(out);
        reply.encode(out);
    });
}

impl ToFrontend<'_> {
    /// Appends the message to a link.
    pub fn write(&self, session: u64, writer: &mut Writer) {
        let kind = match self {
            ToFrontend::Reply { .. } => REPLY,
            ToFrontend::Served { .. } => SERVED,
            ToFrontend::Offer { .. } => 3,
            ToFrontend::Nothing { .. } => 4,
            ToFrontend::Gone { .. } => 5,
            ToFrontend::Withdrawn { .. } => 6,
            ToFrontend::Names(_) => 7,
        };
        writer.message(MessageHead { kind, session }, |out| match self {
            ToFrontend::Reply { outcome, bytes } => {
                outcome.write(out);
                out.extend_from_slice(bytes);
            }
            ToFrontend::Served { wait, outcome, bytes } => {
                out.extend_from_slice(&wait.to_le_bytes());
                outcome.write(out);
                out.extend_from_slice(bytes);
            }
            ToFrontend::Offer { wait, offer, pri, id } => {
                out.extend_from_slice(&wait.to_le_bytes());
                out.extend_from_slice(&offer.to_le_bytes());
                out.extend_from_slice(&pri.to_le_bytes());
                out.extend_from_slice(&id.to_le_bytes());
            }
            ToFrontend::Nothing { wait, is_soon } => {
                out.extend_from_slice(&wait.to_le_bytes());
                out.push(u8::from(*is_soon));
            }
            ToFrontend::Gone { wait } | ToFrontend::Withdrawn { wait } => out.extend_from_slice(&wait.to_le_bytes()),
            ToFrontend::Names(bytes) => out.extend_from_slice(bytes),
        });
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// [`FrameError::Message`] if it makes no sense.
    pub fn read(kind: u8, payload: &[u8]) -> Result<ToFrontend<'_>, FrameError> {
        let wait = |is_right: bool| if is_right { Ok(u32_at(payload, 0)) } else { Err(FrameError::Message) };
        Ok(match kind {
            REPLY => {
                let (outcome, bytes) = Outcome::read(payload)?;
                ToFrontend::Reply { outcome, bytes }
            }
            SERVED => {
                let wait = wait(payload.len() > 4)?;
                let (outcome, bytes) = Outcome::read(&payload[4..])?;
                ToFrontend::Served { wait, outcome, bytes }
            }
            3 => ToFrontend::Offer {
                wait: wait(payload.len() == 24)?,
                offer: u64_at(payload, 4),
                pri: u32_at(payload, 12),
                id: u64_at(payload, 16),
            },
            4 => ToFrontend::Nothing {
                wait: wait(payload.len() == 5)?,
                is_soon: match payload[4] {
                    0 => false,
                    1 => true,
                    _ => return Err(FrameError::Message),
                },
            },
            5 => ToFrontend::Gone { wait: wait(payload.len() == 4)? },
            6 => ToFrontend::Withdrawn { wait: wait(payload.len() == 4)? },
            7 => ToFrontend::Names(payload),
            _ => return Err(FrameError::Message),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Link;
    use crate::reader::Reader;

    const ONE: Link = Link { own_slot: 0, own_generation: 1, peer_slot: 0, peer_generation: 1 };

    #[test]
    fn messages_to_an_owner_come_back_as_they_were() {
        let messages = [
            ToOwner::Line(b"delete 5"),
            ToOwner::Put { pri: 1, delay_s: 2, ttr_s: u32::MAX, body: b"body" },
            ToOwner::Announce(b"use x"),
            ToOwner::Unuse,
            ToOwner::Unwatch(b"x"),
            ToOwner::ListTubes,
            ToOwner::Reserve { wait: 7, in_margin: true, is_poll: false },
            ToOwner::Ask { wait: 8, in_margin: false, is_poll: true },
            ToOwner::Accept { wait: 9, offer: u64::MAX },
            ToOwner::Withdraw { wait: 10 },
            ToOwner::End,
        ];
        let mut writer = Writer::new(ONE);
        for (number, message) in messages.iter().enumerate() {
            message.write(number as u64, &mut writer);
        }
        writer.end_turn(None);
        let mut reader = Reader::new(ONE);
        reader.push(writer.sendable());
        let mut at = 0;
        while let Some((head, payload)) = reader.next().expect("it is what was written") {
            assert_eq!(ToOwner::read(head.kind, payload), Ok(messages[at]));
            assert_eq!(head.session, at as u64);
            at += 1;
        }
        assert_eq!(at, messages.len());
    }

    #[test]
    fn messages_to_a_frontend_come_back_as_they_were() {
        let held = Outcome::Held { id: 3, deadline_ns: u64::MAX };
        let messages = [
            ToFrontend::Reply { outcome: Outcome::Done, bytes: b"DELETED\r\n" },
            ToFrontend::Reply { outcome: Outcome::NotFound, bytes: b"" },
            ToFrontend::Reply { outcome: Outcome::Refused, bytes: b"x" },
            ToFrontend::Served { wait: 1, outcome: held, bytes: b"RESERVED" },
            ToFrontend::Offer { wait: 2, offer: 3, pri: 4, id: 5 },
            ToFrontend::Nothing { wait: 3, is_soon: true },
            ToFrontend::Gone { wait: 4 },
            ToFrontend::Withdrawn { wait: 5 },
            ToFrontend::Names(b"\0"),
        ];
        let mut writer = Writer::new(ONE);
        for message in &messages {
            message.write(1, &mut writer);
        }
        writer.end_turn(None);
        let mut reader = Reader::new(ONE);
        reader.push(writer.sendable());
        let mut at = 0;
        while let Some((head, payload)) = reader.next().expect("it is what was written") {
            assert_eq!(ToFrontend::read(head.kind, payload), Ok(messages[at]));
            at += 1;
        }
        assert_eq!(at, messages.len());
    }

    #[test]
    fn payloads_that_make_no_sense_are_refused_and_never_a_panic() {
        for kind in 0..=u8::MAX {
            for length in 0..40 {
                for byte in [0, 1, 3, 0xff] {
                    let payload = vec![byte; length];
                    let _ = ToOwner::read(kind, &payload);
                    let _ = ToFrontend::read(kind, &payload);
                }
            }
        }
        assert_eq!(ToOwner::read(4, b"x"), Err(FrameError::Message));
        assert_eq!(ToOwner::read(200, b""), Err(FrameError::Message));
        assert_eq!(ToFrontend::read(4, &[0, 0, 0, 0, 7]), Err(FrameError::Message));
    }
}
