//! A queue server in a simulated world: engine, log and model run on simulated time, disk and network.
//!
//! Owns: a scheduler of one thread (a heap ordered by time, ties broken by the seed), clients that send random commands,
//! the turn discipline of the server's shell, and the faults: kill, power loss, pause, late timers, slow disk, EIO,
//! ENOSPC, lost writes, bit flips, steps of the wall clock, orderly stop and drain. Each seed draws its own mixture.
//! Never: reads a clock, iterates in an order that is not its own, or draws from anything but the seed; so a seed replays
//! bit by bit, in any build.
//!
//! What is checked, always:
//!
//! - every reply and every log record against the reference model, which also decides who holds which job (GT3, GT5);
//! - at every recovery, that the state found is exactly the records up to some point, and that this point lies behind
//!   everything that was acknowledged as far as the sync mode promises (GT1, GT2); now and then that a second recovery
//!   finds the same and changes no byte, and that a flipped bit of a closed segment is refused or harmless;
//! - that ids are never given twice (GT4), timers fire at their time unless the server could not run (GT5), a failed log
//!   is named and nothing is acknowledged or written after the failure (GT9), unsynced records are as young as the mode
//!   says;
//! - after the faults have stopped: the queues drain within the longest delay + time to run + 5 s, no timer lies in the
//!   past, and the log has shrunk to its bound.

mod clients;
pub(crate) mod ledger;
pub(crate) mod profile;
mod restart;
mod server;
mod world;

pub use world::{Failure, Outcome, narrate, run};
