//! All orders in which the statements of two or three sessions can meet, and what comes of each.
//!
//! Owns: cases ([`Case`]), the search through their orders ([`explore`]), one order played step by step ([`play()`]) and
//! told as text that can be compared, and the bench that is a real PostgreSQL ([`postgres`]).
//! Never: knows what a statement means. A [`Bench`] does: the real database, or a simulated one that must do the same.
//!
//! A session carries out scripts of the program under test, not copies of them. A step is one statement, with BEGIN
//! before the first of a transaction, or the end of a transaction. A session whose statement waits for another session
//! has no step until that one lets it go on: so each order that is played is one that can happen.
//!
//! The clock stands still but for the steps that a case gives it, so that times can be compared too.
//!
//! ```text
//! A begin, member.guard(m1) -> (1)
//! B member.lock([m1]) waits
//! A commit
//! A gave "wrote"
//! B -> (m1)
//! ```

mod case;
pub mod cases;
mod play;
pub mod postgres;
mod tell;

use database_core::{Answer, Class, Sql, Value};

pub use case::{Case, Make, run};
pub use play::{Played, compare, explore, play};

/// A database at which sessions meet.
pub trait Bench {
    /// Brings the tables into the state of a fresh schema, the clock to [`CLOCK_START_MS`], and so many sessions into the
    /// state of fresh connections.
    fn reset(&mut self, sessions: usize);

    /// Sets the clock, in ms after [`CLOCK_START_MS`].
    fn set_clock(&mut self, ms: i64);

    /// Begins a transaction of a session that has none.
    fn begin(&mut self, session: usize);

    /// Sends a statement. What becomes of it, [`Bench::settle`] says.
    fn send(&mut self, session: usize, sql: &'static Sql, values: Vec<Value>);

    /// Lets the sessions work until each has answered or waits for another one; gives the answers since the last call, by
    /// session.
    fn settle(&mut self) -> Vec<(usize, Result<Answer, Class>)>;

    /// All that have not answered wait for each other: lets time pass until one is given an answer, an error as a rule.
    fn wait(&mut self) -> Vec<(usize, Result<Answer, Class>)>;

    /// Ends the transaction of a session that does not wait.
    fn end(&mut self, session: usize, commits: bool) -> Result<(), Class>;
}

/// When the clock of a bench starts, in ms since 1970: 2001-09-09 01:46:40 UTC.
pub const CLOCK_START_MS: i64 = 1_000_000_000_000;
