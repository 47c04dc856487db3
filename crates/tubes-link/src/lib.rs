//! Between frontends and owners: frames, sessions, and where a command goes.
//!
//! Owns: the bytes on a link ([`Writer`], [`Reader`]), the messages in them ([`ToOwner`], [`ToFrontend`]), the owner's
//! side of sessions ([`Host`]) and the frontend's ([`Router`]).
//! Never: reads a clock, a socket or a page of shared memory; callers pass time and bytes in and carry bytes out.

mod frame;
mod host;
mod message;
mod partition;
pub mod planted;
mod reader;
mod router;
mod writer;

pub use frame::{CHUNK_BYTES, FrameError, Link, MessageHead, WINDOW_BYTES};
#[cfg(feature = "trace")]
pub use host::Deed;
pub use host::{Broken, Host, HostOut};
pub use message::{Outcome, ToFrontend, ToOwner};
pub use partition::PartitionMap;
pub use reader::Reader;
pub use router::{ClientId, Router, RouterOptions, Wires};
pub use writer::Writer;
