//! Sockets and processes of the queue server: one process, supervised or not, and the roles of multi mode.
//!
//! Owns: the event loop, client connections, listeners, signals, privileges, and the thread that syncs the log.
//! Never: decides anything about jobs (tubes-core), lays out bytes on disk (tubes-store) or on the wire
//! (tubes-protocol).
//!
//! A turn of the loop: wait for events; read the clock once; fire timers; read each ready client once and carry out its
//! commands; write all records of the turn in one write; write the replies of each client in one write.

mod accept;
mod bodies;
#[cfg(target_os = "linux")]
mod child_options;
mod clients;
mod clock;
mod connection;
mod error;
mod figures;
#[cfg(target_os = "linux")]
mod frontend;
mod inherited;
#[cfg(target_os = "linux")]
mod links;
mod listen;
mod memory;
mod metrics;
mod multi;
mod options;
mod outputs;
#[cfg(target_os = "linux")]
mod owner;
#[cfg(target_os = "linux")]
mod pages;
mod persistence;
mod platform;
mod privileges;
mod signals;
mod single;
#[cfg(target_os = "linux")]
mod supervised;
mod sync_thread;
#[cfg(feature = "trace")]
mod trace;
#[cfg(all(feature = "trace", target_os = "linux"))]
mod trace_multi;

pub use error::ServeError;
pub use listen::Address;
pub use memory::give_memory_back_with;
pub use metrics::name::{CPU_SYSTEM_US, CPU_USER_US};
#[cfg(target_os = "linux")]
pub use metrics::text_of;
pub use multi::{MultiOptions, RoleMain, Supervision, role, serve_multi};
pub use options::{LogSettings, ServerOptions};
pub use privileges::Account;
pub use single::serve;
#[cfg(target_os = "linux")]
pub use supervised::{Sockets, Supervised, restart_policy};
