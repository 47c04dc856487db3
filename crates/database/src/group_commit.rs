//! Many requests, one transaction: the shell around the rules of [`database_core::batch`].
//!
//! Owns: the requests that wait, the tasks that run them, who is told what.
//! Never: decides what a request means. Whoever starts it says what transaction a list of requests is; in it, refusals
//! are answers and not errors, rows are locked in one global order, and inputs that a database could refuse (NUL in a
//! text, size, depth) were checked before they came here. What slips through all the same costs its neighbours time, and
//! nothing else.

use std::any::type_name;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use database_core::batch::{Batch, Batches, End, Next, NotAdmitted, Outcome};
use database_core::{Class, DbError, Script};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::{Database, Limits};

/// What a timer of the runtime may be late.
const TIMER_LATE: Duration = Duration::from_millis(1);

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Too many wait. Nothing was done; later (429).
    #[error("too many requests wait for the database")]
    Busy,
    /// It may have been carried out. Repeat it as it is: it is known by its id (503).
    #[error("it is not known whether the request was carried out: {0}")]
    Unknown(DbError),
    /// The database cannot do it for anybody. Nothing was done; later (503).
    #[error("the database is not available: {0}")]
    Unavailable(DbError),
    /// This request, alone, failed. Nothing was done. [`Class::Locked`], [`Class::Conflict`] and [`Class::TimedOut`] may
    /// go better another time.
    #[error("the database refuses the request: {0}")]
    Refused(DbError),
    /// The writer was stopped before. Nothing was done.
    #[error("the process is stopping")]
    Closed,
}

impl From<DbError> for SubmitError {
    fn from(error: DbError) -> Self {
        match error.class {
            Class::Unknown => Self::Unknown(error),
            Class::Unavailable | Class::ReadOnly | Class::Exhausted => Self::Unavailable(error),
            Class::Refused | Class::Conflict | Class::Locked | Class::TimedOut | Class::Broken => Self::Refused(error),
        }
    }
}

/// How to run batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Limits of each transaction.
    pub limits: Limits,
    /// Batches that are under way together, at least 1. More than one helps nowhere on SQLite.
    pub writers: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { limits: Limits::default(), writers: 1 }
    }
}

/// What was done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Transactions that were committed.
    pub batches: u64,
    /// Requests in them.
    pub requests: u64,
    /// Transactions that failed, and whose requests were run again.
    pub again: u64,
    /// Requests whose result is unknown.
    pub unknown: u64,
    /// Requests that were refused because too many waited.
    pub busy: u64,
}

struct Waiter<I, O> {
    item: I,
    answer: oneshot::Sender<Result<O, SubmitError>>,
}

struct State<I, O> {
    rules: Batches,
    waiters: HashMap<u64, Waiter<I, O>>,
    figures: Figures,
    is_closed: bool,
}

struct Shared<I, O> {
    state: Mutex<State<I, O>>,
    /// A request has come, a batch has ended, or the end is near.
    changed: Notify,
    base: Instant,
}

impl<I, O> Shared<I, O> {
    fn state(&self) -> MutexGuard<'_, State<I, O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.base.elapsed()
    }
}

/// The way to the writer. Clones lead to the same one; with the last of them it ends.
pub struct GroupCommit<I, O> {
    handle: Arc<Handle<I, O>>,
}

struct Handle<I, O>(Arc<Shared<I, O>>);

impl<I, O> Drop for Handle<I, O> {
    fn drop(&mut self) {
        self.0.state().is_closed = true;
        self.0.changed.notify_waiters();
        self.0.changed.notify_one();
    }
}

impl<I, O> Clone for GroupCommit<I, O> {
    fn clone(&self) -> Self {
        Self { handle: Arc::clone(&self.handle) }
    }
}

impl<I, O> fmt::Debug for GroupCommit<I, O> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("GroupCommit").field("of", &type_name::<I>()).finish_non_exhaustive()
    }
}

impl<I: Send + Sync + 'static, O: Send + 'static> GroupCommit<I, O> {
    /// Starts the writer in the current runtime. `run` makes the transaction of some requests: one answer for each, in
    /// their order. It is called again, for fewer, after a transaction that failed for certain.
    pub fn start(
        database: Database,
        settings: Settings,
        run: impl Fn(&[I]) -> Script<Vec<O>> + Send + Sync + 'static,
    ) -> Self {
        let writers = settings.writers.max(1);
        let state = State {
            rules: Batches::new(writers),
            waiters: HashMap::new(),
            figures: Figures::default(),
            is_closed: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Notify::new(), base: Instant::now() });
        let writer = Arc::new(Writer { shared: Arc::clone(&shared), database, limits: settings.limits, run });
        for _ in 0..writers {
            tokio::spawn(write(Arc::clone(&writer)));
        }
        Self { handle: Arc::new(Handle(shared)) }
    }

    /// Has a request of `size` bytes carried out, together with others. If the caller stops waiting, it may be carried
    /// out all the same.
    ///
    /// # Errors
    ///
    /// [`SubmitError`] by reaction.
    pub async fn submit(&self, item: I, size: usize) -> Result<O, SubmitError> {
        let (answer, answered) = oneshot::channel();
        let shared = &self.handle.0;
        {
            let now = shared.now();
            let mut state = shared.state();
            if state.is_closed {
                return Err(SubmitError::Closed);
            }
            let request = match state.rules.admit(now, size) {
                Ok(request) => request,
                Err(NotAdmitted::Busy) => {
                    state.figures.busy += 1;
                    return Err(SubmitError::Busy);
                }
                Err(error @ NotAdmitted::TooLarge { .. }) => {
                    return Err(SubmitError::Refused(DbError::new(Class::Refused, error.to_string())));
                }
            };
            state.waiters.insert(request, Waiter { item, answer });
        }
        shared.changed.notify_one();
        answered.await.unwrap_or_else(|_| {
            // The runtime ends, with the batch under way.
            Err(SubmitError::Unknown(DbError::new(Class::Unknown, "the writer ended before it had the answer")))
        })
    }

    /// What was done so far.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.handle.0.state().figures
    }

    /// Requests that wait for a batch.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.handle.0.state().rules.waiting()
    }

    /// Lets nothing in any more. What is under way is finished, what waits is told [`SubmitError::Closed`].
    pub fn close(&self) {
        self.handle.0.state().is_closed = true;
        self.handle.0.changed.notify_waiters();
        self.handle.0.changed.notify_one();
    }
}

struct Writer<I, O, Run> {
    shared: Arc<Shared<I, O>>,
    database: Database,
    limits: Limits,
    run: Run,
}

/// One writer: batches one after the other, until the end.
async fn write<I, O, Run>(writer: Arc<Writer<I, O, Run>>)
where
    I: Send + Sync + 'static,
    O: Send + 'static,
    Run: Fn(&[I]) -> Script<Vec<O>> + Send + Sync + 'static,
{
    let shared = &writer.shared;
    loop {
        let now = shared.now();
        let next = {
            let mut state = shared.state();
            if state.is_closed {
                for request in state.rules.give_up() {
                    if let Some(waiter) = state.waiters.remove(&request) {
                        let _nobody_waits = waiter.answer.send(Err(SubmitError::Closed));
                    }
                }
                return;
            }
            match state.rules.next(now) {
                Next::Run(batch) => {
                    let taken = state.take(batch);
                    if state.rules.has_work() {
                        shared.changed.notify_one();
                    }
                    Ok(taken)
                }
                Next::WaitUntil(until) => Err(Some(until)),
                Next::Idle => Err(None),
            }
        };
        match next {
            Ok((batch, waiters)) => writer.carry_out(batch, waiters).await,
            Err(None) => shared.changed.notified().await,
            Err(Some(until)) => {
                let pause = until.saturating_sub(now);
                let pause = if pause > TIMER_LATE { pause - TIMER_LATE } else { pause };
                let _is_time = tokio::time::timeout(pause, shared.changed.notified()).await;
            }
        }
    }
}

impl<I, O> State<I, O> {
    fn take(&mut self, batch: Batch) -> (Batch, Vec<Waiter<I, O>>) {
        let taken = |request| self.waiters.remove(request).expect("each request of a batch waits for it");
        let waiters = batch.requests.iter().map(taken).collect();
        (batch, waiters)
    }
}

impl<I, O, Run> Writer<I, O, Run>
where
    I: Send + Sync + 'static,
    O: Send + 'static,
    Run: Fn(&[I]) -> Script<Vec<O>> + Send + Sync + 'static,
{
    async fn carry_out(&self, batch: Batch, waiters: Vec<Waiter<I, O>>) {
        let (items, answers): (Vec<I>, Vec<_>) =
            waiters.into_iter().map(|Waiter { item, answer }| (item, answer)).unzip();
        let result = self.transact(&items).await;
        let (outputs, end) = match result {
            Ok(outputs) => (outputs, End::Done),
            Err(error) => (Vec::new(), End::Failed(error)),
        };
        let outcome = {
            let mut state = self.shared.state();
            let outcome = state.rules.end(self.shared.now(), batch.number, end);
            let figures = &mut state.figures;
            match &outcome {
                Outcome::Answered(requests) => {
                    figures.batches += 1;
                    figures.requests += requests.len() as u64;
                }
                Outcome::Failed(requests, error) if error.class == Class::Unknown => {
                    figures.unknown += requests.len() as u64;
                }
                Outcome::Failed(..) => {}
                Outcome::Again => figures.again += 1,
            }
            if outcome == Outcome::Again {
                let waiters = items.into_iter().zip(answers).map(|(item, answer)| Waiter { item, answer });
                state.waiters.extend(batch.requests.iter().copied().zip(waiters));
                drop(state);
                // Another writer may take a half.
                self.shared.changed.notify_one();
                return;
            }
            outcome
        };
        match outcome {
            Outcome::Answered(_) => {
                for (answer, output) in answers.into_iter().zip(outputs) {
                    let _nobody_waits = answer.send(Ok(output));
                }
            }
            Outcome::Failed(_, error) => {
                for answer in answers {
                    let _nobody_waits = answer.send(Err(error.clone().into()));
                }
            }
            Outcome::Again => {}
        }
    }

    async fn transact(&self, items: &[I]) -> Result<Vec<O>, DbError> {
        let made = catch_unwind(AssertUnwindSafe(|| (self.run)(items)));
        let script = made.map_err(|_| DbError::new(Class::Broken, "the code that makes the transaction panicked"))?;
        let database = self.database.clone();
        let limits = self.limits;
        // In a task of its own, so that a panic in it does not end the writer.
        let ran = tokio::spawn(async move { database.run_with(limits, script).await });
        let outputs = ran.await.unwrap_or_else(|_| {
            Err(DbError::new(Class::Unknown, "the transaction's code panicked, or the process is stopping"))
        })?;
        if outputs.len() != items.len() {
            let (given, wanted) = (outputs.len(), items.len());
            tracing::error!(
                of = type_name::<I>(),
                given,
                wanted,
                "a batch has another number of answers than requests"
            );
            let message = format!("the transaction gave {given} answers for {wanted} requests");
            return Err(DbError::new(Class::Unknown, message));
        }
        Ok(outputs)
    }
}
