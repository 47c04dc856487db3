//! Rules of the queue server: what happens to jobs, tubes and sessions, and when.
//!
//! Owns: every job, tube and session of one server or owner, and their timers.
//! Never: reads a clock, opens a file or socket, draws a random number or waits. Callers pass the time in and carry the
//! effects out: first the log's, then the replies'.

pub mod journal;
