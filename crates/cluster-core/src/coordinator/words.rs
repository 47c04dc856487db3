//! What the coordinator is told and what it says.

use std::sync::Arc;
use std::time::Duration;

use database_core::DbError;

use super::{Call, CallAnswer};
use crate::scripts::reap::{Reaped, Tidied};
use crate::scripts::request::Request;
use crate::{Boot, MemberId, Mode, Notice, Server, Times};

/// What a coordinator is made for.
#[derive(Debug, Clone)]
pub struct CoordinatorSettings {
    /// Checked before ([`Times::check`]).
    pub times: Times,
    /// How the database is shared.
    pub mode: Mode,
    /// Identities of this machine that are dead for certain, as their file's lock was free: the start reap takes them.
    pub known_dead: Vec<MemberId>,
    /// How long the start waits for [`Input::Listening`].
    pub listen_wait: Duration,
}

/// What the coordinator is told. What the agent says must come in the order in which it was said.
#[derive(Debug)]
pub enum Input {
    /// The agent's `Registered`. In [`Mode::Alone`] the shell says it itself, once, with any identity.
    Registered {
        /// The identity.
        id: MemberId,
        /// Its number.
        no: i64,
        /// Where it is registered.
        server: Server,
        /// Earlier identities, to be tidied.
        retired: Vec<MemberId>,
    },
    /// The agent's `Valid`: a leadership is not believed for longer than the identity. Until the first one nothing is
    /// known of its end.
    Valid {
        /// By the boot clock.
        until: Boot,
    },
    /// The agent's `Fenced`.
    Fenced,
    /// The agent's `LeaseSet` with success.
    LeaseChanged(Duration),
    /// The time of [`super::Coordinator::next_deadline`] has come.
    Wake,
    /// A call has ended.
    Done {
        /// Its number.
        call: u64,
        /// What it gave.
        result: Result<CallAnswer, DbError>,
    },
    /// Notices are heard. Said at the start, and again after each reconnect: all is polled then.
    Listening,
    /// A notice was heard.
    Notice(Notice),
    /// Whether this process can do the work of a leadership.
    MayLead {
        /// The leadership's name.
        name: &'static str,
        /// Whether it may be contested.
        is_able: bool,
    },
    /// Read who is alive at once; [`Output::Alive`] follows, also after a failure.
    Refresh,
    /// A request was carried out, or given up: it may be taken again if it was not answered.
    RequestDone {
        /// Its number.
        id: i64,
    },
    /// Begin the stop. A second one does nothing.
    Stop,
    /// The listeners have ended their leader's work, after the leaderships were lost by the stop.
    LeaderWorkStopped,
}

/// A leadership that is held: what a leader's transaction is guarded by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leadership {
    /// Its name.
    pub name: &'static str,
    /// By whom.
    pub holder: MemberId,
    /// Since when, as a number that only rises. 0 in [`Mode::Alone`].
    pub epoch: i64,
}

/// How a leadership changed for this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// It leads.
    Gained,
    /// It does not lead, as it could not renew, but may come back in the same epoch.
    Suspended,
    /// It leads again, in the same epoch.
    Resumed,
    /// It does not lead.
    Lost,
}

/// A registration, as a beat saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberSeen {
    /// The identity.
    pub id: MemberId,
    /// The machine's name.
    pub host: String,
    /// Its number.
    pub no: i64,
    /// ms left of its lease; below 0: expired. Of no meaning in [`Mode::Sole`].
    pub left_ms: i64,
    /// ms since its last beat.
    pub beat_age_ms: i64,
    /// The process's number.
    pub pid: i64,
    /// Version of the schema it works with.
    pub schema_version: i64,
}

/// A leadership, as a beat saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderSeen {
    /// Its name.
    pub name: String,
    /// The epoch.
    pub epoch: i64,
    /// Who holds it.
    pub holder: Option<MemberId>,
    /// ms left; `None`: given up.
    pub left_ms: Option<i64>,
}

/// Who is there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    /// When this was asked for, by the boot clock: its age.
    pub at: Boot,
    /// All registrations, expired ones included.
    pub members: Vec<MemberSeen>,
    /// All leaderships.
    pub leaders: Vec<LeaderSeen>,
}

/// What the coordinator says; carried out in order.
#[derive(Debug)]
pub enum Output {
    /// Run the call's script on the pool, and answer. Bounded by [`Call::limit`] by the shell and by the coordinator.
    Call {
        /// Stands in the answer.
        call: u64,
        /// What to run.
        what: Call,
    },
    /// The start is over, the first beat has ended: for the one line of the log.
    Started {
        /// The identity.
        id: MemberId,
        /// Its number.
        no: i64,
        /// Others that live.
        others: usize,
    },
    /// Tell the listeners of this leadership.
    Leadership {
        /// Which.
        leadership: Leadership,
        /// What happened.
        change: Change,
    },
    /// Requests to be carried out, each once: [`crate::scripts::request::answer`] in the transaction of the effect, then
    /// [`Input::RequestDone`].
    Requests(Vec<Request>),
    /// Drop these from caches.
    DropCaches(Vec<String>),
    /// Drop all that is cached: changes may have been missed.
    DropAllCaches,
    /// Do the process's own periodic work; each item fails alone.
    RunPeriodic,
    /// A beat has ended; the agent is told.
    BeatDone,
    /// Who is there, read just now.
    Alive(Arc<View>),
    /// Members that lived at the look before and do not now.
    Vanished(Vec<MemberId>),
    /// Send this notice.
    Send(Notice),
    /// A reap was committed.
    Reaped(Reaped),
    /// What was retired is tidied.
    Tidied(Tidied),
    /// A step failed. What follows it goes on.
    Failed {
        /// Which call.
        what: &'static str,
        /// What happened.
        error: DbError,
    },
    /// Tell the agent to renew no more.
    StopRenewal,
    /// The stop is over.
    Stopped,
}
