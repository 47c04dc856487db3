//! One connection, and how a script is carried out on it.
//!
//! Owns: the limit of time of each call, the question whether a commit is certain, and that a connection with a call that
//! has not ended well is never used again: a late answer would be read as the next one's.
//! Never: opens a connection, or repeats anything.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use database_core::{Answer, Class, DbError, Script, Sql, Step, Value, Verdict};
use futures_util::StreamExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_postgres::error::{DbError as ServerError, Severity};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, Statement};

use super::error::{Failure, Phase};
use super::identity::{ServerIdentity, Session};
use super::value::Parameter;
use super::{error, value};
use crate::Limits;

/// Parameters of one statement in bytes. The protocol ends at 1 GiB; a batch of group commit is at most 4 MiB.
const PARAMETERS_BYTES_MAX: usize = 256 << 20;
/// From this version on a whole transaction can be limited.
const TRANSACTION_TIMEOUT_VERSION: u32 = 17_00_00;

/// A message of another session.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) payload: String,
}

/// A connection that belongs to one holder. It is closed when dropped.
pub struct Connection {
    client: Client,
    wire: Wire,
    session: Session,
    /// What was prepared on this connection, by the statement's id.
    statements: HashMap<&'static str, (&'static str, Statement)>,
    terms: Terms,
    /// Limits that the session has now; `None` where it has none, because it is not ours alone.
    set: Option<Limits>,
    /// The call under way has succeeded, but the connection ends with it.
    is_lost: bool,
    /// No call may be made any more.
    is_spent: bool,
}

/// How a connection is used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// For each transaction that is not given others.
    pub(super) limits: Limits,
    /// How long the client waits for an answer beyond the limit that the server has.
    pub(super) grace: Duration,
    /// Whether the next transaction may be on another session of the server: nothing is prepared or set for longer than
    /// a transaction.
    pub(super) is_per_transaction: bool,
}

/// Whether a script may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Write,
    Read,
}

impl Mode {
    /// Rules rest on READ COMMITTED, whatever is the server's default; several reads of one script see one state, as they
    /// do on SQLite. A server that is set to read-only must refuse writes, so READ WRITE is not asked for.
    const fn begin(self) -> &'static str {
        match self {
            Self::Write => "BEGIN ISOLATION LEVEL READ COMMITTED",
            Self::Read => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        }
    }

    /// While something is under way that commits. A read leaves nothing behind.
    const fn committing(self) -> Phase {
        match self {
            Self::Write => Phase::Committing,
            Self::Read => Phase::BeforeCommit,
        }
    }
}

/// The task that moves the bytes. It is ended when dropped.
#[derive(Debug)]
pub(super) struct Wire {
    task: JoinHandle<()>,
    side: Arc<Mutex<Side>>,
    /// The task says goodbye to the server and ends when the client is dropped.
    ends_by_itself: bool,
}

/// What the server says without being asked.
#[derive(Debug, Default)]
struct Side {
    /// Why the connection ended.
    end: Option<String>,
    /// A warning that makes a commit doubtful.
    doubt: Option<String>,
    /// A message of another session found no room.
    has_missed: bool,
}

impl Wire {
    /// Begins to move bytes. What other sessions say goes to `heard`.
    pub(super) fn start<S, T>(connection: tokio_postgres::Connection<S, T>, heard: Option<mpsc::Sender<Heard>>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let side = Arc::default();
        let task = tokio::spawn(drive(connection, Arc::clone(&side), heard));
        Self { task, side, ends_by_itself: false }
    }

    fn lock(&self) -> MutexGuard<'_, Side> {
        lock(&self.side)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if !self.ends_by_itself {
            self.task.abort();
        }
    }
}

fn lock(side: &Mutex<Side>) -> MutexGuard<'_, Side> {
    side.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Moves bytes until the connection ends.
async fn drive<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    side: Arc<Mutex<Side>>,
    heard: Option<mpsc::Sender<Heard>>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        match message {
            // Noted before the answer that comes behind it is handed out.
            Ok(AsyncMessage::Notice(notice)) if makes_commit_doubtful(&notice) => {
                lock(&side).doubt = Some(error::text(&notice));
            }
            Ok(AsyncMessage::Notification(notification)) => {
                let payload = notification.payload().to_owned();
                if let Some(Err(_)) = heard.as_ref().map(|heard| heard.try_send(Heard { payload })) {
                    lock(&side).has_missed = true;
                }
            }
            Ok(_) => {}
            Err(error) => {
                let mut side = lock(&side);
                // A server that goes down says why, and closes without an answer.
                let said = side.doubt.as_ref().map(|said| format!(": {said}")).unwrap_or_default();
                side.end = Some(error::cause(&error) + &said);
                break;
            }
        }
    }
}

/// Whether a commit that succeeds behind this warning is not what it says: a wait for a stand-by was given up, the server
/// is going down, or there was no transaction to commit.
fn makes_commit_doubtful(notice: &ServerError) -> bool {
    let is_warning = notice.parsed_severity() == Some(Severity::Warning) || notice.severity() == "WARNING";
    // The text may be in any language; the function's name is not.
    let is_given_up = notice.routine() == Some("SyncRepWaitForLSN");
    is_warning && (is_given_up || matches!(notice.code().code(), "57014" | "57P01" | "57P02" | "25P01"))
}

/// Closes a connection at once when a call on it does not come to its end, because it failed for good or because nobody
/// waits for it any more. Else a transaction would go on holding its locks.
struct Hold {
    task: AbortHandle,
    is_released: bool,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.is_released {
            self.task.abort();
        }
    }
}

impl Connection {
    /// Takes over what the driver has made, and sets the limits of the session.
    pub(super) async fn new(client: Client, wire: Wire, session: Session, terms: Terms) -> Result<Self, DbError> {
        let statements = HashMap::new();
        let mut made = Self { client, wire, session, statements, terms, set: None, is_lost: false, is_spent: false };
        if !terms.is_per_transaction {
            made.batch("limits of the session", &made.limits("SET ", terms.limits)).await?;
            made.set = Some(terms.limits);
        }
        Ok(made)
    }

    /// Runs a script once, in a transaction that may write, and returns what its verdict holds. `Ok` means that the commit
    /// is certain.
    ///
    /// # Errors
    ///
    /// What the script returned, or why a statement or the commit failed; then nothing was written, unless the class is
    /// [`Class::Unknown`]. [`Connection::is_usable`] tells whether another call may follow.
    pub async fn run_once<T>(&mut self, script: Script<T>) -> Result<T, DbError> {
        self.run_with(self.terms.limits, script).await
    }

    /// As [`Connection::run_once`], within these limits.
    ///
    /// # Errors
    ///
    /// As [`Connection::run_once`].
    pub async fn run_with<T>(&mut self, limits: Limits, script: Script<T>) -> Result<T, DbError> {
        self.carry_out(Mode::Write, limits, script).await
    }

    /// Runs a script that only reads.
    ///
    /// # Errors
    ///
    /// As [`Connection::run_once`]. Never [`Class::Unknown`].
    pub async fn read<T>(&mut self, script: Script<T>) -> Result<T, DbError> {
        self.carry_out(Mode::Read, self.terms.limits, script).await
    }

    /// Whether another call may be made. Never again once it is not.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !self.is_spent && !self.client.is_closed()
    }

    /// The server, as it was when the connection was made.
    #[must_use]
    pub const fn identity(&self) -> &ServerIdentity {
        &self.session.identity
    }

    /// Whether something stands between that is no server: what is set, locked or listened to on this connection may then
    /// belong to another one at any time.
    #[must_use]
    pub const fn is_behind_pooler(&self) -> bool {
        self.session.is_behind_pooler
    }

    /// Whether a message of another session was lost since the last question.
    pub(crate) fn take_missed(&self) -> bool {
        std::mem::take(&mut self.wire.lock().has_missed)
    }

    /// Runs statements without parameters, which commit together.
    pub(crate) async fn batch(&mut self, what: &str, text: &str) -> Result<(), DbError> {
        self.check()?;
        let hold = self.hold();
        let done = bounded(self.patience(self.terms.limits), self.client.batch_execute(text)).await;
        let done = self.understood(done, what, Phase::Committing, self.terms.limits).and_then(|()| self.certain(what));
        self.release(hold, done)
    }

    async fn carry_out<T>(&mut self, mode: Mode, limits: Limits, script: Script<T>) -> Result<T, DbError> {
        self.check()?;
        let hold = self.hold();
        let result = if script.is_transaction() || self.set.is_none() {
            self.transaction(mode, limits, script).await
        } else {
            self.statement(mode, limits, script).await
        };
        self.release(hold, result)
    }

    fn check(&self) -> Result<(), DbError> {
        if self.is_usable() {
            return Ok(());
        }
        let end = self.wire.lock().end.clone();
        let end = end.unwrap_or_else(|| "a call on it did not end well".to_owned());
        Err(DbError::new(Class::Unavailable, format!("the connection is closed: {end}")))
    }

    /// From here until [`Connection::release`] the connection ends if the call does not.
    fn hold(&mut self) -> Hold {
        self.is_spent = true;
        self.wire.lock().doubt = None;
        Hold { task: self.wire.task.abort_handle(), is_released: false }
    }

    fn release<T>(&mut self, mut hold: Hold, result: Result<T, Failure>) -> Result<T, DbError> {
        self.is_spent = self.is_lost || result.as_ref().is_err_and(|failure| failure.ends_connection);
        hold.is_released = !self.is_spent;
        result.map_err(|failure| failure.error)
    }

    /// One statement that commits by itself.
    async fn statement<T>(&mut self, mode: Mode, limits: Limits, mut script: Script<T>) -> Result<T, Failure> {
        let (sql, values) = match script.step(None) {
            Step::Query(sql, values) => (sql, values),
            Step::Done(end) => return ended(end),
        };
        // They stay, so whoever keeps a connection and gives the same limits each time pays for them once.
        if self.set != Some(limits) {
            let text = self.limits("SET ", limits);
            let done = bounded(self.patience(limits), self.client.batch_execute(&text)).await;
            self.understood(done, "limits of the session", Phase::BeforeCommit, limits)?;
            self.set = Some(limits);
        }
        let prepared = self.prepare(limits, sql).await?;
        let answer = bounded(self.patience(limits), execute(&self.client, prepared.as_ref(), sql, &values)).await;
        let answer = self.understood(answer, sql.id, mode.committing(), limits)?;
        let answer = answer.map_err(own)?;
        if mode == Mode::Write {
            self.certain(sql.id)?;
        }
        match script.step(Some(Ok(answer))) {
            Step::Done(end) => ended(end),
            Step::Query(other, _) => {
                let message = format!("{} stands alone, and {} was to follow it", sql.id, other.id);
                Err(Failure::harmless(Class::Broken, message))
            }
        }
    }

    /// All statements of the script between BEGIN and COMMIT. BEGIN goes out together with the first one.
    async fn transaction<T>(&mut self, mode: Mode, limits: Limits, mut script: Script<T>) -> Result<T, Failure> {
        let mut has_begun = false;
        let mut lost: Option<Failure> = None;
        let mut step = script.step(None);
        let end = loop {
            let (sql, values) = match step {
                Step::Done(end) => break end,
                Step::Query(sql, values) => (sql, values),
            };
            let answer = match &lost {
                // The server would refuse it.
                Some(failure) => Err(failure.error.clone()),
                None => {
                    let begin = (!has_begun).then(|| self.begin(mode, limits));
                    has_begun = true;
                    self.ask(begin, limits, sql, &values).await.map_err(|failure| {
                        let error = failure.error.clone();
                        lost = Some(failure);
                        error
                    })
                }
            };
            step = script.step(Some(answer));
        };
        let is_gone = lost.as_ref().is_some_and(|failure| failure.ends_connection);
        if !has_begun {
            return ended(end);
        }
        match (end, lost) {
            (Ok(Verdict::Commit(value)), None) => {
                if self.client.is_closed() {
                    let end = self.wire.lock().end.clone().unwrap_or_default();
                    let message = format!("commit: the connection was lost before: {end}");
                    return Err(Failure { error: DbError::new(Class::Unavailable, message), ends_connection: true });
                }
                self.finish("COMMIT", limits, mode.committing()).await?;
                if mode == Mode::Write {
                    self.certain("commit")?;
                }
                Ok(value)
            }
            // The code went on as if its statement had succeeded.
            (Ok(Verdict::Commit(_)), Some(failure)) => Err(self.rolled_back(is_gone, limits, failure).await),
            (Ok(Verdict::RollBack(value)), _) => {
                self.is_lost = is_gone || self.finish("ROLLBACK", limits, Phase::BeforeCommit).await.is_err();
                Ok(value)
            }
            (Err(error), _) => {
                let failure = Failure { error, ends_connection: is_gone };
                Err(self.rolled_back(is_gone, limits, failure).await)
            }
        }
    }

    /// The failure, after the transaction has been undone. If that fails too, the connection ends, which undoes it as well.
    async fn rolled_back(&mut self, is_gone: bool, limits: Limits, mut failure: Failure) -> Failure {
        let is_undone = !is_gone && self.finish("ROLLBACK", limits, Phase::BeforeCommit).await.is_ok();
        failure.ends_connection |= !is_undone;
        failure
    }

    async fn finish(&mut self, text: &'static str, limits: Limits, phase: Phase) -> Result<(), Failure> {
        let done = bounded(self.patience(limits), self.client.batch_execute(text)).await;
        self.understood(done, text, phase, limits)
    }

    /// One statement in a transaction, which begins with it if `begin` is given.
    async fn ask(
        &mut self,
        begin: Option<String>,
        limits: Limits,
        sql: &'static Sql,
        values: &[Value],
    ) -> Result<Answer, Failure> {
        let patience = self.patience(limits);
        let Some(begin) = begin else {
            let prepared = self.prepare(limits, sql).await?;
            let answer = bounded(patience, execute(&self.client, prepared.as_ref(), sql, values)).await;
            return self.understood(answer, sql.id, Phase::BeforeCommit, limits)?.map_err(own);
        };
        let (client, known) = (&self.client, self.known(sql)?);
        let both = async {
            // The first one polled is the first one sent.
            tokio::join! {
                biased;
                client.batch_execute(&begin),
                async {
                    match known {
                        Known::Prepared(statement) => Ok((None, execute(client, Some(&statement), sql, values).await?)),
                        Known::Unnamed => Ok((None, execute(client, None, sql, values).await?)),
                        Known::New => {
                            let statement = client.prepare(sql.postgres).await?;
                            Ok((Some(statement.clone()), execute(client, Some(&statement), sql, values).await?))
                        }
                    }
                },
            }
        };
        let Ok((begun, answered)) = timeout(patience, both).await else {
            return Err(Failure::unanswered(sql.id, patience, Phase::BeforeCommit));
        };
        if let Err(error) = begun {
            // If the statement ran all the same, it ran outside of a transaction.
            let phase = if answered.is_ok() { Phase::Committing } else { Phase::BeforeCommit };
            let mut failure = Failure::of(&error, "BEGIN", phase, self.wire.lock().end.as_deref());
            if answered.is_ok() {
                failure.error.class = Class::Unknown;
            }
            return Err(Failure { ends_connection: true, ..failure });
        }
        let (statement, answer) = self.understood(Ok(answered), sql.id, Phase::BeforeCommit, limits)?;
        if let Some(statement) = statement {
            self.statements.insert(sql.id, (sql.postgres, statement));
        }
        answer.map_err(own)
    }

    /// What begins a transaction and sets its limits, where the session does not have them.
    fn begin(&self, mode: Mode, limits: Limits) -> String {
        if self.set == Some(limits) {
            return mode.begin().to_owned();
        }
        format!("{};{}", mode.begin(), self.limits("SET LOCAL ", limits))
    }

    fn limits(&self, set: &str, limits: Limits) -> String {
        // Zero would mean that there is no limit.
        let ms = |limit: Duration| limit.as_millis().clamp(1, i32::MAX as u128);
        let mut text = format!(
            "{set}statement_timeout={};{set}lock_timeout={};{set}idle_in_transaction_session_timeout={}",
            ms(limits.statement),
            ms(limits.lock),
            ms(limits.idle)
        );
        if self.session.identity.version >= TRANSACTION_TIMEOUT_VERSION {
            text += &format!(";{set}transaction_timeout={}", ms(limits.transaction));
        }
        text
    }

    fn patience(&self, limits: Limits) -> Duration {
        limits.statement + self.terms.grace
    }

    fn known(&self, sql: &'static Sql) -> Result<Known, Failure> {
        if self.terms.is_per_transaction {
            return Ok(Known::Unnamed);
        }
        match self.statements.get(sql.id) {
            None => Ok(Known::New),
            Some((text, statement)) if *text == sql.postgres => Ok(Known::Prepared(statement.clone())),
            Some(_) => Err(Failure::harmless(Class::Broken, format!("two statements have the id {}", sql.id))),
        }
    }

    /// The statement, prepared once per connection; `None` where it must be sent anew each time.
    async fn prepare(&mut self, limits: Limits, sql: &'static Sql) -> Result<Option<Statement>, Failure> {
        match self.known(sql)? {
            Known::Prepared(statement) => return Ok(Some(statement)),
            Known::Unnamed => return Ok(None),
            Known::New => {}
        }
        let prepared = bounded(self.patience(limits), self.client.prepare(sql.postgres)).await;
        let statement = self.understood(prepared, sql.id, Phase::BeforeCommit, limits)?;
        self.statements.insert(sql.id, (sql.postgres, statement.clone()));
        Ok(Some(statement))
    }

    /// What a call means that has been answered, has failed, or has not been answered in time.
    fn understood<T>(
        &self,
        answer: Result<Result<T, tokio_postgres::Error>, Elapsed>,
        what: &str,
        phase: Phase,
        limits: Limits,
    ) -> Result<T, Failure> {
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(Failure::of(&error, what, phase, self.wire.lock().end.as_deref())),
            Err(_) => Err(Failure::unanswered(what, self.patience(limits), phase)),
        }
    }

    /// Whether nothing was said that takes the success of a commit back.
    fn certain(&self, what: &str) -> Result<(), Failure> {
        match self.wire.lock().doubt.take() {
            None => Ok(()),
            Some(doubt) => {
                let error = DbError::new(Class::Unknown, format!("{what}: {doubt}"));
                Err(Failure { error, ends_connection: true })
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.wire.ends_by_itself = self.is_usable();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Connection")
            .field("session", &self.session)
            .field("is_usable", &self.is_usable())
            .finish_non_exhaustive()
    }
}

/// How a statement is sent.
enum Known {
    Prepared(Statement),
    /// To be prepared first.
    New,
    /// With its text each time.
    Unnamed,
}

async fn bounded<T>(limit: Duration, call: impl Future<Output = T>) -> Result<T, Elapsed> {
    timeout(limit, call).await
}

/// Sends a statement and reads its answer to the end. The inner error is ours: the statement was carried out, or not sent.
async fn execute(
    client: &Client,
    prepared: Option<&Statement>,
    sql: &Sql,
    values: &[Value],
) -> Result<Result<Answer, DbError>, tokio_postgres::Error> {
    let broken = |message: String| Ok(Err(DbError::new(Class::Broken, format!("{}: {message}", sql.id))));
    if value::size(values) > PARAMETERS_BYTES_MAX {
        return broken(format!("the parameters have more than {PARAMETERS_BYTES_MAX} bytes"));
    }
    let rows = match prepared {
        Some(statement) => {
            let expected = statement.params().len();
            if expected != values.len() {
                return broken(format!("{expected} parameters were expected, and {} given", values.len()));
            }
            client.query_raw(statement, values.iter().map(Parameter)).await?
        }
        None => {
            let typed = values.iter().map(|value| (Parameter(value), Type::UNKNOWN));
            client.query_typed_raw(sql.postgres, typed).await?
        }
    };
    let mut rows = pin!(rows);
    let mut read = Vec::new();
    let mut unreadable = None;
    while let Some(row) = rows.next().await {
        match value::row(&row?) {
            Ok(row) => read.push(row),
            Err(error) => unreadable = Some(error),
        }
    }
    if let Some(error) = unreadable {
        return broken(error.message);
    }
    Ok(Ok(Answer { rows: read, affected: rows.rows_affected().unwrap_or(0) }))
}

fn own(error: DbError) -> Failure {
    Failure { ends_connection: false, error }
}

fn ended<T>(end: Result<Verdict<T>, DbError>) -> Result<T, Failure> {
    match end {
        Ok(Verdict::Commit(value) | Verdict::RollBack(value)) => Ok(value),
        Err(error) => Err(own(error)),
    }
}
