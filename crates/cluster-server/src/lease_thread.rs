//! The thread that keeps the lease: the shell of [`LeaseAgent`].
//!
//! Owns: a runtime of one thread, the lease's connection and its timer; the files whose locks tell neighbours that this
//! process lives.
//! Never: shares a runtime, a pool or a connection with the rest of the process: what is stuck there costs no lease.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cluster_core::{
    Boot, ConnectError, LeaseAgent, LeaseAnswer, LeaseCall, LeaseInput, LeaseOutput, MemberId, Server, Times,
};
use database::postgres::{Connection, Connector, ServerIdentity};
use database::{Database, Limits};
use database_core::{Class, DbError};
use tokio::sync::mpsc;

use crate::clock::{self, Timer};
use crate::executions::Executions;
use crate::standing::{Registration, Standing};

/// Inputs that may wait for the thread. It handles each in microseconds; a beat brings one.
pub(crate) const INPUTS_MAX: usize = 256;

/// Where the lease's statements go.
pub(crate) enum LeaseRoute {
    /// A connection of its own, made by this connector, past any pooler.
    Direct(Connector),
    /// The file's writer.
    File(Database),
}

/// Whether the schema of the database fits this program; the error says which side is older.
pub type SchemaCheck = Arc<
    dyn for<'a> Fn(&'a mut Connection) -> Pin<Box<dyn Future<Output = Result<(), ConnectError>> + Send + 'a>>
        + Send
        + Sync,
>;

/// What the thread needs.
pub(crate) struct LeaseThread {
    pub(crate) agent: LeaseAgent,
    pub(crate) times: Times,
    pub(crate) route: LeaseRoute,
    pub(crate) schema: SchemaCheck,
    pub(crate) standing: Standing,
    pub(crate) executions: Executions,
    /// Folder for `member-ID`, the files that are locked for as long as the process lives.
    pub(crate) folder: PathBuf,
    pub(crate) inputs: mpsc::Receiver<LeaseInput>,
    /// To itself: ends of stops.
    pub(crate) own: mpsc::WeakSender<LeaseInput>,
    /// What the agent said that others must know, in order.
    pub(crate) events: mpsc::Sender<LeaseOutput>,
}

/// A connect or a call under way; gives the connection back, and the input that tells the agent.
type Flight = Pin<Box<dyn Future<Output = (Option<Connection>, LeaseInput)> + Send>>;

impl LeaseThread {
    /// Starts the thread. It ends when the agent has stopped.
    ///
    /// # Errors
    ///
    /// If the thread or its runtime cannot be made.
    pub(crate) fn start(self) -> io::Result<std::thread::JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("lease".into()).spawn(move || runtime.block_on(self.run()))
    }

    async fn run(mut self) {
        let mut timer = match Timer::new() {
            Ok(timer) => timer,
            Err(error) => {
                tracing::error!("the lease has no timer: {error}");
                return;
            }
        };
        let mut held = BTreeMap::new();
        let mut connection: Option<Connection> = None;
        let mut flight: Option<Flight> = None;
        let mut out = Vec::new();
        let mut watch = BeatWatch::default();
        loop {
            let deadline = self.agent.next_deadline();
            let input = tokio::select! {
                // The deadline comes first: after a pause of the process nothing may be believed before it was looked at.
                biased;
                result = timer.until(deadline) => {
                    if let Err(error) = result {
                        tracing::error!("the lease's timer failed: {error}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    LeaseInput::Wake
                }
                Some(input) = self.inputs.recv() => input,
                (back, input) = async { flight.as_mut().expect("checked by the condition").await }, if flight.is_some() => {
                    flight = None;
                    connection = back;
                    input
                }
            };
            let now = clock::now();
            if matches!(input, LeaseInput::Beat) {
                watch.beat(now.boot);
            }
            watch.look(now.boot, self.times.lease);
            self.agent.handle(now, input, &mut out);
            for output in out.drain(..) {
                match &output {
                    LeaseOutput::Connect { call } => flight = Some(self.connect(*call)),
                    LeaseOutput::Call { call, what } => {
                        if let LeaseCall::Register { id, .. } = what {
                            self.hold(&mut held, *id);
                        }
                        flight = Some(self.call(*call, what, connection.take()));
                    }
                    LeaseOutput::DropConnection => (flight, connection) = (None, None),
                    LeaseOutput::Registered { id, no, lease, server, retired } => {
                        for id in retired {
                            held.remove(id);
                        }
                        watch.registered(now.boot);
                        self.standing.registered(Registration { id: *id, no: *no, lease: *lease, server: *server });
                    }
                    LeaseOutput::LeaseSet { lease, result: Ok(()) } => self.standing.lease_set(*lease),
                    LeaseOutput::Valid { until } => self.standing.valid_until(*until),
                    LeaseOutput::Fenced { .. } => {
                        watch = BeatWatch::default();
                        self.standing.fenced();
                    }
                    LeaseOutput::StopExecutions { retired } => self.stop_executions(*retired),
                    LeaseOutput::Abandoned { id, .. } => {
                        held.remove(id);
                        self.standing.gave_up();
                    }
                    LeaseOutput::Stopped => self.standing.stopped(),
                    _ => {}
                }
                let is_end = matches!(output, LeaseOutput::Stopped);
                // The coordinator hears everything in order. It takes what is there at each of its turns; if it is stuck for
                // so long that this is full, the standing above already tells the truth.
                if let Err(mpsc::error::TrySendError::Full(lost)) = self.events.try_send(output) {
                    tracing::error!("the daemon is stuck and has not heard of {lost:?}");
                }
                if is_end {
                    return;
                }
            }
        }
    }

    fn connect(&self, call: u64) -> Flight {
        let connector = match &self.route {
            LeaseRoute::Direct(connector) => connector.clone(),
            LeaseRoute::File(_) => {
                return Box::pin(async move { (None, LeaseInput::Connected { call, server: Server::default() }) });
            }
        };
        let schema = Arc::clone(&self.schema);
        Box::pin(async move {
            let connected = async {
                let mut connection = connector.connect_direct().await?;
                schema(&mut connection).await?;
                Ok(connection)
            };
            match connected.await {
                Ok(connection) => {
                    let server = server_of(connection.identity());
                    (Some(connection), LeaseInput::Connected { call, server })
                }
                Err(error) => (None, LeaseInput::NotConnected { call, error }),
            }
        })
    }

    fn call(&self, call: u64, what: &LeaseCall, connection: Option<Connection>) -> Flight {
        let limit = what.limit(&self.times);
        let limits = Limits {
            statement: self.times.statement_timeout,
            lock: self.times.lock_timeout(),
            idle: self.times.guarded_limit(),
            transaction: limit,
        };
        let script = what.script();
        let file = match &self.route {
            LeaseRoute::Direct(_) => None,
            LeaseRoute::File(database) => Some(database.clone()),
        };
        Box::pin(async move {
            let (connection, result) = match (file, connection) {
                (Some(file), _) => (None, file.run_with(limits, script).await),
                (None, Some(mut connection)) => {
                    let result = answered(limit, connection.run_with(limits, script)).await;
                    (connection.is_usable().then_some(connection), result)
                }
                (None, None) => (None, Err(DbError::new(Class::Unavailable, "the lease's connection is gone"))),
            };
            (connection, LeaseInput::Done { call, result })
        })
    }

    fn stop_executions(&self, retired: MemberId) {
        let (executions, own) = (self.executions.clone(), self.own.clone());
        tokio::spawn(async move {
            executions.stop(retired).await;
            if let Some(own) = own.upgrade() {
                let _ = own.send(LeaseInput::ExecutionsStopped { retired }).await;
            }
        });
    }

    /// Locks the file that tells neighbours that this identity's process lives.
    fn hold(&self, held: &mut BTreeMap<MemberId, MemberFile>, id: MemberId) {
        match MemberFile::create(&self.folder, id) {
            Ok(file) => drop(held.insert(id, file)),
            // Neighbours then wait for the lease to expire, as others do.
            Err(error) => tracing::warn!("no file says that member {id} lives: {error}"),
        }
    }
}

/// Looks whether the rest of the process goes on. Nobody but this thread can say it when all others are blocked.
#[derive(Debug, Default)]
struct BeatWatch {
    /// When a beat ended, or the identity was registered; `None`: there is none.
    last: Option<Boot>,
    is_stuck: bool,
}

impl BeatWatch {
    const fn registered(&mut self, now: Boot) {
        self.last = Some(now);
    }

    fn beat(&mut self, now: Boot) {
        self.last = self.last.map(|_| now);
        if std::mem::replace(&mut self.is_stuck, false) {
            tracing::info!("the process beats again");
        }
    }

    /// At each turn of the thread, so at each renewal.
    fn look(&mut self, now: Boot, lease: Duration) {
        let Some(last) = self.last.filter(|last| now.since(*last) > lease) else { return };
        if !std::mem::replace(&mut self.is_stuck, true) {
            tracing::error!(
                "this process is stuck: no beat has ended for {:.1?}; its lease is kept all the same",
                now.since(last)
            );
        }
    }
}

async fn answered(
    limit: Duration,
    call: impl Future<Output = Result<LeaseAnswer, DbError>>,
) -> Result<LeaseAnswer, DbError> {
    match tokio::time::timeout(limit, call).await {
        Ok(result) => result,
        Err(_) => Err(DbError::new(Class::Unknown, format!("no answer within {limit:?}"))),
    }
}

/// The server at the other end, as the rules compare it.
pub(crate) fn server_of(identity: &ServerIdentity) -> Server {
    Server { system: identity.system_identifier.unwrap_or(0), timeline: identity.timeline }
}

/// A file `member-ID` that is locked while its process lives, and goes with it.
#[derive(Debug)]
struct MemberFile {
    path: PathBuf,
    _lock: File,
}

impl MemberFile {
    fn create(folder: &Path, id: MemberId) -> io::Result<Self> {
        let path = path_of(folder, id);
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
        lock.try_lock()?;
        Ok(Self { path, _lock: lock })
    }
}

impl Drop for MemberFile {
    fn drop(&mut self) {
        // What stays behind is found unlocked, and removed, by the next start.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn path_of(folder: &Path, id: MemberId) -> PathBuf {
    folder.join(format!("member-{}", id.to_holder()))
}

/// Which of these members, registered from this machine since it was booted, are certainly dead: their files are here and
/// nobody holds them.
pub(crate) fn dead_neighbours(folder: &Path, members: impl IntoIterator<Item = MemberId>) -> Vec<MemberId> {
    let is_dead = |id: &MemberId| {
        let path = path_of(folder, *id);
        let Ok(file) = OpenOptions::new().write(true).open(&path) else { return false };
        file.try_lock().is_ok()
    };
    members.into_iter().filter(is_dead).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_beats_is_stuck_once_until_it_beats_again() {
        let (lease, at) = (Duration::from_secs(20), |seconds: u64| Boot(seconds * 1_000_000_000));
        let mut watch = BeatWatch::default();
        watch.look(at(100), lease);
        assert!(!watch.is_stuck, "not registered");
        watch.registered(at(100));
        watch.look(at(120), lease);
        assert!(!watch.is_stuck);
        watch.look(at(121), lease);
        assert!(watch.is_stuck);
        watch.beat(at(130));
        watch.look(at(150), lease);
        assert!(!watch.is_stuck);
    }

    #[test]
    fn a_neighbour_is_dead_only_if_its_file_is_here_and_nobody_holds_it() {
        let folder = std::env::temp_dir().join(format!("tenure-member-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [lives, dead, elsewhere] = [MemberId(1), MemberId(2), MemberId(3)];
        let held = MemberFile::create(&folder, lives).unwrap();
        std::fs::write(path_of(&folder, dead), "").unwrap();
        assert_eq!(dead_neighbours(&folder, [lives, dead, elsewhere]), [dead]);
        drop(held);
        assert!(!path_of(&folder, lives).exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
