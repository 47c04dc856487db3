//! Sockets and processes of the queue server. At present: single mode, one process with all tubes.
//!
//! Owns: the event loop, client connections, listeners, signals, privileges, and the thread that syncs the log.
//! Never: decides anything about jobs (tubes-core), lays out bytes on disk (tubes-store) or on the wire
//! (tubes-protocol).
//!
//! A turn of the loop: wait for events; read the clock once; fire timers; read each ready client once and carry out its
//! commands; write all records of the turn in one write; write the replies of each client in one write.

mod accept;
mod clock;
mod connection;
mod error;
mod figures;
mod inherited;
mod listen;
mod options;
mod outputs;
mod persistence;
mod platform;
mod privileges;
mod signals;
mod single;
mod sync_thread;
#[cfg(feature = "trace")]
mod trace;

pub use error::ServeError;
pub use listen::Address;
pub use options::{LogSettings, ServerOptions};
pub use single::serve;
