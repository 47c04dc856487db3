//! A cluster in a simulated world: lease agents and coordinators of several processes, with the demonstration executor,
//! around one simulated PostgreSQL.
//!
//! Owns: the scheduler, the processes and their threads, links, the database's transactions, and the faults. Each seed
//! draws its own mixture.
//! Never: reads a clock, iterates in an order that is not its own, or draws from anything but the seed; so a seed replays
//! bit by bit, in any build.
//!
//! What is checked, always:
//!
//! - no attempt is finished by two holders, and none but the owner's; no transaction of a reaped identity commits (GC1);
//! - an effect starts only while its identity's lease runs in the database, and nothing runs for an identity that is
//!   reaped or tidied; an accepted renewal found a lease that ran;
//! - a leader's effect is committed under the present epoch; epochs rise, and none is given to two, failovers included;
//!   no two processes believe to lead (GC2);
//! - tickets never exceed the limit, nobody waits while a place is free, and what a run holds is freed only by its end;
//! - a request is carried out at most once; a read of the cache changes drops whatever changed before it;
//! - no statement is refused, no timer lies in the past;
//! - with a single fault, a takeover is as fast as promised (GC3); after all faults have ended, within 2L + 2H, one
//!   process leads, nothing is held by the dead, and all that is due gets done (GC4, GC5).

mod client;
mod database;
mod executor;
mod faults;
mod judge;
mod outcome;
mod profile;
mod server;
mod world;

pub use database::bench::SimulatedBench;
pub use outcome::Outcome;
pub use world::{Failure, narrate, run};
