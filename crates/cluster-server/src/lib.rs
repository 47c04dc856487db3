//! This process as a member of the cluster: the shell of the rules in `cluster-core`.
//!
//! Owns: the lease's thread, the beats, the connections of both; what parts above have called at beats, at changes of
//! leadership, at requests, at dropped caches and at a fence; waiting for tickets and answers; the leader's loop and what
//! it deletes.
//! Never: decides who lives, leads or owns.

mod asking;
pub mod clock;
mod cluster;
mod executions;
mod figures;
mod hooks;
mod leadership;
mod lease_thread;
mod retention;
mod scheduler;
mod standing;
mod tickets;

pub use asking::AskError;
pub use cluster::{Cluster, Dropped, Seen, Settings, Trouble};
pub use leadership::LeadershipChange;
pub use lease_thread::SchemaCheck;
pub use retention::{Age, Kept, ROWS_PER_TICK, Retention, STATEMENTS, own_kinds};
pub use scheduler::{Scheduler, TICK};
pub use standing::{NoIdentity, Registration, Standing};
pub use tickets::{Ticket, TicketError};
