//! A queue server of several processes in a simulated world: owners, frontends, the links between them and the
//! supervisor's decisions run on simulated time, disks and networks.
//!
//! Owns: the scheduler, the processes around the product's rules (engine, host, log; router; supervisor), the discipline
//! of their shells, clients, and the faults. Each seed draws its own mixture.
//! Never: reads a clock, iterates in an order that is not its own, or draws from anything but the seed; so a seed replays
//! bit by bit, in any build.
//!
//! What is checked, always:
//!
//! - every message of an owner and every record of its log against the reference model of its jobs, offers included: a
//!   job goes to one session, the best first, never paused, held or offered ones, and nobody waits, or is told that there
//!   is nothing, while a job is free (GT3, GT5);
//! - at every recovery of a slot, that it finds exactly the records up to some point behind all that any frontend was
//!   told, as the sync mode promises (GT1, GT2); ids are given once and rise (GT4); a failed log is named (GT9);
//! - that owners carry a session's commands out in order, once, and a wait has one result (GT7); that a frontend says
//!   nothing to an owner's next process for a session that holds a job of the one before; that nothing of an earlier
//!   generation has an effect, and no offer is accepted at a process that has not made it (GT6); one process per slot (GT8);
//! - that each connection is answered in order, by what fits; no `TIMED_OUT` to a poll while a job was free all the
//!   time; no job is accepted once the server drains (GT10);
//! - after the faults have stopped: every slot and link is up and all queues drain within a bound.

mod clients;
mod executions;
mod faults;
mod frontend;
mod judge;
mod network;
mod outcome;
mod owner;
pub mod planted;
mod process;
mod shape;
mod supervise;
mod world;

/// Why some roles of the supervisor never occur here.
const NOT_SIMULATED: &str = "a simulated server has owners and frontends only";

pub use outcome::Outcome;
pub use world::{Failure, narrate, run};
