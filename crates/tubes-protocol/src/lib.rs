//! beanstalkd's wire grammar, level 1.13: bytes to commands, replies to bytes.
//!
//! Owns: the framing of a connection's input ([`Framer`]), the grammar of a command line ([`parse_line`]) and the text
//! of every reply ([`Reply::encode`]).
//! Never: reads a socket or a clock, or knows what a command does.

mod command;
mod framer;
mod line;
mod reply;
mod stats;

pub use command::{Command, tube_name_is_valid};
pub use framer::{Framer, Item, Limits};
pub use line::{Line, LineError, PutHeader, parse_line};
pub use reply::Reply;
pub use stats::{CommandCounts, JobStats, ServerStats, State, TubeStats};

/// Longest command line in bytes, its CR LF included: `pause-tube`, a 200-byte name, a 10-digit number.
pub const LINE_BYTES_MAX: usize = 224;

/// Longest tube name in bytes.
pub const TUBE_NAME_BYTES_MAX: usize = 200;

/// Largest `reserve-with-timeout`, in seconds: a signed 32-bit number in the original.
pub const RESERVE_TIMEOUT_S_MAX: u32 = 2_147_483_647;

/// Largest value that the limit of job bodies can be set to, in bytes.
pub const JOB_BODY_BYTES_MAX: u32 = 1 << 30;

/// Level of compatibility, as shown by `stats`; clients parse it as `N.N`.
pub const PROTOCOL_VERSION: &str = "1.13";
