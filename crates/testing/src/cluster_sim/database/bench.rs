//! The simulated database as a bench for interleavings: it must do what a real one does, order by order.

use database_core::{Answer, Class, Sql, Value};

use super::{Database, Flow, Op, Running, Txn};
use crate::interleave::{Bench, CLOCK_START_MS};

/// Sessions at one simulated database.
#[derive(Debug)]
pub struct SimulatedBench {
    database: Database,
    sessions: Vec<Session>,
    /// Sessions whose statement waits, the first one first.
    waiting: Vec<usize>,
    answers: Vec<(usize, Result<Answer, Class>)>,
}

#[derive(Debug, Default)]
struct Session {
    is_in_transaction: bool,
    txn: Option<Txn>,
    running: Option<Running>,
}

impl Default for SimulatedBench {
    fn default() -> Self {
        Self { database: Database::new(2), sessions: Vec::new(), waiting: Vec::new(), answers: Vec::new() }
    }
}

impl SimulatedBench {
    /// Goes on with a session's statement; whether it waits.
    fn go_on(&mut self, session: usize) -> bool {
        let own = &mut self.sessions[session];
        let (mut txn, mut running) = (own.txn.take().expect("begun"), own.running.take().expect("sent"));
        let answer = match self.database.step(&mut txn, &mut running) {
            Flow::Wait(_) => {
                (own.txn, own.running) = (Some(txn), Some(running));
                return true;
            }
            Flow::Done(answer) => {
                if own.is_in_transaction {
                    own.txn = Some(txn);
                } else {
                    self.database.commit(txn);
                }
                Ok(answer)
            }
            Flow::Failed(error) => {
                self.database.abort(txn);
                Err(error.class)
            }
        };
        self.answers.push((session, answer));
        false
    }

    fn wake(&mut self) {
        let mut place = 0;
        while place < self.waiting.len() {
            if self.go_on(self.waiting[place]) {
                place += 1;
            } else {
                self.waiting.remove(place);
                // What it held may be free.
                place = 0;
            }
        }
    }
}

impl Bench for SimulatedBench {
    fn reset(&mut self, sessions: usize) {
        *self = Self::default();
        self.database.now_us = CLOCK_START_MS * 1_000;
        self.sessions.resize_with(sessions, Session::default);
    }

    fn set_clock(&mut self, ms: i64) {
        self.database.now_us = (CLOCK_START_MS + ms) * 1_000;
    }

    fn begin(&mut self, session: usize) {
        self.sessions[session].is_in_transaction = true;
    }

    fn send(&mut self, session: usize, sql: &'static Sql, values: Vec<Value>) {
        let own = &mut self.sessions[session];
        let mut txn = own.txn.take().unwrap_or_else(|| self.database.transaction());
        own.running = Some(self.database.begin(&mut txn, Op::of(sql.id), values));
        own.txn = Some(txn);
        if self.go_on(session) {
            self.waiting.push(session);
        }
    }

    fn settle(&mut self) -> Vec<(usize, Result<Answer, Class>)> {
        self.wake();
        std::mem::take(&mut self.answers)
    }

    fn wait(&mut self) -> Vec<(usize, Result<Answer, Class>)> {
        if !self.waiting.is_empty() {
            let session = self.waiting.remove(0);
            let own = &mut self.sessions[session];
            if let Some(running) = own.running.take() {
                self.database.forget(&running);
            }
            if let Some(txn) = own.txn.take() {
                self.database.abort(txn);
            }
            self.answers.push((session, Err(Class::Locked)));
        }
        self.settle()
    }

    fn end(&mut self, session: usize, commits: bool) -> Result<(), Class> {
        let own = &mut self.sessions[session];
        own.is_in_transaction = false;
        if let Some(txn) = own.txn.take() {
            if commits {
                self.database.commit(txn);
            } else {
                self.database.abort(txn);
            }
        }
        Ok(())
    }
}
