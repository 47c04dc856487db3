//! Transactions as values: code that says which statement comes next.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::value::{Answer, Row, Value};
use crate::{DbError, Sql};

/// How a transaction ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict<T> {
    /// Keep what was written, and hand out the result once the commit is certain.
    Commit(T),
    /// Undo what was written; the result stands all the same, such as a refusal.
    RollBack(T),
}

/// What the driver of a script is to do.
#[derive(Debug, PartialEq)]
pub enum Step<T> {
    /// Execute this, and step on with its answer.
    Query(&'static Sql, Vec<Value>),
    /// Commit or roll back. With an error: roll back.
    Done(Result<Verdict<T>, DbError>),
}

/// What passes between the code and its driver.
#[derive(Debug, Default)]
struct Desk {
    asked: Option<(&'static Sql, Vec<Value>)>,
    answered: Option<Result<Answer, DbError>>,
}

/// The transaction, for the code in it.
#[derive(Debug)]
pub struct Tx {
    desk: Arc<Mutex<Desk>>,
}

impl Tx {
    /// Executes a statement and returns its rows.
    ///
    /// # Errors
    ///
    /// What the database says. The transaction is lost then: no later statement can succeed.
    pub async fn query(&mut self, sql: &'static Sql, values: impl Into<Vec<Value>>) -> Result<Vec<Row>, DbError> {
        Ok(self.ask(sql, values.into()).await?.rows)
    }

    /// Executes a statement and returns the only row or none.
    ///
    /// # Errors
    ///
    /// As [`Tx::query`].
    pub async fn query_opt(
        &mut self,
        sql: &'static Sql,
        values: impl Into<Vec<Value>>,
    ) -> Result<Option<Row>, DbError> {
        Ok(self.ask(sql, values.into()).await?.rows.into_iter().next())
    }

    /// Executes a statement and returns how many rows it changed.
    ///
    /// # Errors
    ///
    /// As [`Tx::query`].
    pub async fn execute(&mut self, sql: &'static Sql, values: impl Into<Vec<Value>>) -> Result<u64, DbError> {
        Ok(self.ask(sql, values.into()).await?.affected)
    }

    async fn ask(&mut self, sql: &'static Sql, values: Vec<Value>) -> Result<Answer, DbError> {
        lock(&self.desk).asked = Some((sql, values));
        std::future::poll_fn(|_| match lock(&self.desk).answered.take() {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
        .await
    }
}

/// A desk is never left half changed, so a panic elsewhere does not spoil it.
fn lock(desk: &Mutex<Desk>) -> std::sync::MutexGuard<'_, Desk> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One transaction, or one statement of its own, as a value.
///
/// The code in it may wait for its own statements and for nothing else; whatever else it needs, it is given before.
pub struct Script<T> {
    code: Pin<Box<dyn Future<Output = Result<Verdict<T>, DbError>> + Send>>,
    desk: Arc<Mutex<Desk>>,
    is_transaction: bool,
}

impl<T> Script<T> {
    /// Code in a transaction.
    #[must_use]
    pub fn transaction<Code, Running>(code: Code) -> Self
    where
        Code: FnOnce(Tx) -> Running,
        Running: Future<Output = Result<Verdict<T>, DbError>> + Send + 'static,
    {
        let desk = Arc::default();
        let code = Box::pin(code(Tx { desk: Arc::clone(&desk) }));
        Self { code, desk, is_transaction: true }
    }

    /// One statement that commits by itself, and what is read from its answer.
    #[must_use]
    pub fn statement(
        sql: &'static Sql,
        values: impl Into<Vec<Value>>,
        read: impl FnOnce(Answer) -> Result<T, DbError> + Send + 'static,
    ) -> Self {
        let values = values.into();
        let code = |mut tx: Tx| async move { Ok(Verdict::Commit(read(tx.ask(sql, values).await?)?)) };
        Self { is_transaction: false, ..Self::transaction(code) }
    }

    /// The same transaction with another result.
    #[must_use]
    pub fn map<U>(self, change: impl FnOnce(T) -> U + Send + 'static) -> Script<U>
    where
        T: 'static,
    {
        let Self { code, desk, is_transaction } = self;
        let code = Box::pin(async move {
            Ok(match code.await? {
                Verdict::Commit(result) => Verdict::Commit(change(result)),
                Verdict::RollBack(result) => Verdict::RollBack(change(result)),
            })
        });
        Script { code, desk, is_transaction }
    }

    /// Whether the statements must stand between BEGIN and COMMIT.
    #[must_use]
    pub const fn is_transaction(&self) -> bool {
        self.is_transaction
    }

    /// Goes on: at first with `None`, then with the answer to the statement that was asked for.
    ///
    /// # Panics
    ///
    /// If called without an answer that is due, or after the end; if the code waits for something else than a statement.
    pub fn step(&mut self, answer: Option<Result<Answer, DbError>>) -> Step<T> {
        lock(&self.desk).answered = answer;
        match self.code.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Step::Done(result),
            Poll::Pending => {
                let asked = lock(&self.desk).asked.take();
                let (sql, values) = asked.expect("a script waits for nothing but the answer to its own statement");
                Step::Query(sql, values)
            }
        }
    }
}

impl<T> fmt::Debug for Script<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Script").field("is_transaction", &self.is_transaction).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Class;

    static FIRST: Sql = Sql::same("test.first", "SELECT 1");
    static SECOND: Sql = Sql::same("test.second", "SELECT 2");

    fn two() -> Script<u64> {
        Script::transaction(|mut tx| async move {
            let Some(row) = tx.query_opt(&FIRST, []).await? else { return Ok(Verdict::RollBack(0)) };
            let count = tx.execute(&SECOND, [row.int(0)?.into()]).await?;
            Ok(Verdict::Commit(count))
        })
    }

    #[test]
    fn statements_come_one_by_one_with_what_the_last_one_answered() {
        let mut script = two();
        assert!(script.is_transaction());
        assert_eq!(script.step(None), Step::Query(&FIRST, vec![]));
        let row = Answer::from(vec![Row::from(vec![Value::Int(7)])]);
        assert_eq!(script.step(Some(Ok(row))), Step::Query(&SECOND, vec![Value::Int(7)]));
        let changed = Answer { rows: vec![], affected: 4 };
        assert_eq!(script.step(Some(Ok(changed))), Step::Done(Ok(Verdict::Commit(4))));
    }

    #[test]
    fn an_error_ends_the_script_unless_its_code_goes_on() {
        let mut script = two();
        script.step(None);
        let error = DbError::new(Class::Locked, "waited");
        assert_eq!(script.step(Some(Err(error.clone()))), Step::Done(Err(error)));
        let mut script = two().map(|count| count + 1);
        script.step(None);
        assert_eq!(script.step(Some(Ok(Answer::default()))), Step::Done(Ok(Verdict::RollBack(1))));
    }

    #[test]
    fn a_statement_of_its_own_is_read_by_whom_it_is_for() {
        let mut script = Script::statement(&FIRST, [Value::Null], |answer| Ok(answer.affected));
        assert!(!script.is_transaction());
        assert_eq!(script.step(None), Step::Query(&FIRST, vec![Value::Null]));
        assert_eq!(script.step(Some(Ok(Answer { rows: vec![], affected: 1 }))), Step::Done(Ok(Verdict::Commit(1))));
    }
}
