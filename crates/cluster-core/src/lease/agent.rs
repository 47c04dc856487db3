//! The agent.

use std::time::Duration;

use database_core::{Class, DbError};

use super::clocks::Clocks;
use super::{ConnectError, FenceReason, LeaseAnswer, LeaseCall, LeaseInput, LeaseOutput, LeaseSettings, Refusal};
use crate::planted::{Bug, is};
use crate::{Boot, Dice, MemberId, Mode, Now, Server, Times};

/// Retired identities that are remembered for tidying. What is forgotten expires and is reaped.
const RETIRED_MAX: usize = 32;

/// Keeps an identity registered, and ends it when that cannot be known any more.
///
/// Runs where nothing else can hold it up: on a thread with a connection of its own. One request is under way at a time.
#[derive(Debug)]
pub struct LeaseAgent {
    settings: LeaseSettings,
    dice: Dice,
    phase: Phase,
    link: Link,
    flight: Option<Flight>,
    calls: u64,
    retired: Vec<MemberId>,
    /// The identity whose executions are being stopped, and when they should have.
    stopping: Option<(MemberId, Boot)>,
    last_beat: Boot,
    clocks: Clocks,
    have_clocks_jumped: bool,
    /// A lease that is to be set.
    asked_lease: Option<Duration>,
}

#[derive(Debug)]
enum Phase {
    New,
    Registering(Registering),
    Live(Live),
    Stopped,
}

#[derive(Debug)]
struct Registering {
    id: MemberId,
    /// When this identity was drawn.
    since: Boot,
    /// When the next attempt is due.
    at: Boot,
    /// How long after a failure the next attempt is.
    pause: Duration,
}

#[derive(Debug)]
struct Live {
    id: MemberId,
    no: i64,
    server: Server,
    /// The time at which the process fences itself.
    deadline: Boot,
    /// When the next renewal is due.
    renew_at: Boot,
    /// A renewal waits for the connection.
    is_due: bool,
    is_announced: bool,
    /// Pause before the next attempt, of the planted defect only.
    pause: Duration,
}

#[derive(Debug)]
enum Link {
    Closed,
    Opening { call: u64, until: Boot },
    Open(Server),
}

#[derive(Debug)]
struct Flight {
    call: u64,
    what: LeaseCall,
    sent: Boot,
    until: Boot,
}

impl LeaseAgent {
    /// An agent that has not started; `seed` is 256 random bits.
    #[must_use]
    pub fn new(settings: LeaseSettings, seed: [u64; 4]) -> Self {
        Self {
            settings,
            dice: Dice::new(seed),
            phase: Phase::New,
            link: Link::Closed,
            flight: None,
            calls: 0,
            retired: Vec::new(),
            stopping: None,
            last_beat: Boot(0),
            clocks: Clocks::default(),
            have_clocks_jumped: false,
            asked_lease: None,
        }
    }

    /// The times in force: the lease may have been set since.
    #[must_use]
    pub const fn times(&self) -> &Times {
        &self.settings.times
    }

    /// When to call [`LeaseAgent::handle`] with [`LeaseInput::Wake`] at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Boot> {
        let mut earliest = None;
        let mut at = |time: Boot| {
            if earliest.is_none_or(|earliest| time < earliest) && time != Boot::NEVER {
                earliest = Some(time);
            }
        };
        let is_busy = self.flight.is_some() || matches!(self.link, Link::Opening { .. });
        match &self.phase {
            Phase::New | Phase::Stopped => return None,
            Phase::Registering(registering) => {
                at(registering.since.plus(self.settings.times.lease));
                if !is_busy {
                    at(registering.at);
                }
            }
            Phase::Live(live) => {
                if !is(Bug::NoSelfFence) && !is(Bug::BackoffPastDeadline) {
                    at(live.deadline);
                }
                if !is_busy {
                    at(live.renew_at);
                }
            }
        }
        if let Some(flight) = &self.flight {
            at(flight.until);
        }
        if let Link::Opening { until, .. } = self.link {
            at(until);
        }
        if let Some((_, late)) = self.stopping {
            at(late);
        }
        earliest
    }

    /// Takes in what happened at `now`, and says what is to be done.
    pub fn handle(&mut self, now: Now, input: LeaseInput, out: &mut Vec<LeaseOutput>) {
        // After a pause the first code to run need not be the timer.
        self.fence_if_late(now, out);
        match input {
            LeaseInput::Start => {
                if matches!(self.phase, Phase::New) {
                    self.last_beat = now.boot;
                    self.register_at(now.boot, now.boot);
                }
            }
            LeaseInput::Wake => {}
            LeaseInput::Connected { call, server } => self.connected(now, call, server, out),
            LeaseInput::NotConnected { call, error } => {
                if matches!(self.link, Link::Opening { call: ours, .. } if ours == call) {
                    self.link = Link::Closed;
                    self.failed(now, error, out);
                }
            }
            LeaseInput::Done { call, result } => {
                if let Some(flight) = self.flight.take_if(|flight| flight.call == call) {
                    self.done(now, flight, result, out);
                }
            }
            LeaseInput::Disconnected => {
                if self.flight.is_none() && matches!(self.link, Link::Open(_)) {
                    self.link = Link::Closed;
                }
            }
            LeaseInput::ServerSeen(server) => self.server_seen(now, server, out),
            LeaseInput::SchemaRefused(_) => {
                if !matches!(self.phase, Phase::New | Phase::Stopped) {
                    self.drop_connection(out);
                }
            }
            LeaseInput::ExecutionsStopped { retired } => {
                if self.stopping.is_some_and(|(stopping, _)| stopping == retired) {
                    self.stopping = None;
                }
            }
            LeaseInput::Beat => self.last_beat = now.boot,
            LeaseInput::SetLease(lease) => self.ask_lease(lease, out),
            LeaseInput::Stop => self.stop(out),
        }
        // An answer that was long under way may tell of a lease that is over.
        self.fence_if_late(now, out);
        self.announce(out);
        self.time_out(now, out);
        self.go_on(now, out);
    }

    fn fence_if_late(&mut self, now: Now, out: &mut Vec<LeaseOutput>) {
        if matches!(&self.phase, Phase::Live(live) if now.boot >= live.deadline) && !is(Bug::NoSelfFence) {
            self.fence(now, FenceReason::LateByOwnClock, out);
        }
    }

    fn connected(&mut self, now: Now, call: u64, server: Server, out: &mut Vec<LeaseOutput>) {
        if !matches!(self.link, Link::Opening { call: ours, .. } if ours == call) {
            return;
        }
        self.link = Link::Open(server);
        if let Phase::Live(live) = &self.phase
            && !live.server.is_same(server)
            && !is(Bug::DatabaseChangeIgnored)
        {
            self.fence(now, FenceReason::DatabaseChanged, out);
        }
    }

    fn server_seen(&mut self, now: Now, server: Server, out: &mut Vec<LeaseOutput>) {
        let Phase::Live(live) = &mut self.phase else { return };
        if live.server.is_same(server) || is(Bug::DatabaseChangeIgnored) || matches!(self.link, Link::Opening { .. }) {
            return;
        }
        live.renew_at = now.boot;
        self.drop_connection(out);
    }

    fn drop_connection(&mut self, out: &mut Vec<LeaseOutput>) {
        self.flight = None;
        if !matches!(self.link, Link::Closed) {
            self.link = Link::Closed;
            out.push(LeaseOutput::DropConnection);
        }
        if let Phase::Live(live) = &mut self.phase {
            live.is_due = false;
        }
    }

    /// Takes a fresh identity; its first attempt is at `at`.
    fn register_at(&mut self, now: Boot, at: Boot) {
        let id = self.dice.member();
        self.phase = Phase::Registering(Registering { id, since: now, at, pause: self.settings.times.beat });
    }

    fn retire(&mut self, id: MemberId) {
        if self.retired.len() == RETIRED_MAX {
            self.retired.remove(0);
        }
        self.retired.push(id);
    }

    fn fence(&mut self, now: Now, reason: FenceReason, out: &mut Vec<LeaseOutput>) {
        let Phase::Live(live) = &self.phase else { return };
        let (retired, was_announced) = (live.id, live.is_announced);
        if self.flight.is_some() || matches!(self.link, Link::Opening { .. }) {
            self.drop_connection(out);
        }
        let jumps = self.clocks.compare(now, None, self.settings.times.lease);
        let clocks_jumped = self.have_clocks_jumped || !jumps.is_empty();
        out.extend(jumps.into_iter().map(|(clock, by_ms)| LeaseOutput::ClockWarning { clock, by_ms }));
        self.clocks.forget();
        self.have_clocks_jumped = false;
        self.retire(retired);
        // What fences one process often fences all: a database that was away, or was promoted.
        let spread = match reason {
            FenceReason::LateByOwnClock | FenceReason::DatabaseChanged => self.dice.below(self.settings.times.renew),
            FenceReason::ExpiredByDatabase | FenceReason::RegistrationMissing => Duration::ZERO,
        };
        self.register_at(now.boot, now.boot.plus(spread));
        let Phase::Registering(registering) = &mut self.phase else { return };
        if is(Bug::StableIdentity) {
            registering.id = retired;
        }
        out.push(LeaseOutput::Fenced { retired, next: registering.id, reason, clocks_jumped });
        if was_announced {
            self.stopping = Some((retired, now.boot.plus(self.settings.times.margin)));
            out.push(LeaseOutput::StopExecutions { retired });
        }
        if let Some(lease) = self.asked_lease.take() {
            let result = Err(Refusal::Failed("the process has just lost its registration".into()));
            out.push(LeaseOutput::LeaseSet { lease, result });
        }
    }

    /// Work may start once the identity is registered and nothing runs under an earlier one.
    fn announce(&mut self, out: &mut Vec<LeaseOutput>) {
        let Phase::Live(live) = &mut self.phase else { return };
        if live.is_announced || self.stopping.is_some() && !is(Bug::TidiedBeforeStopped) {
            return;
        }
        live.is_announced = true;
        out.push(LeaseOutput::Registered {
            id: live.id,
            no: live.no,
            lease: self.settings.times.lease,
            server: live.server,
            retired: std::mem::take(&mut self.retired),
        });
        out.push(LeaseOutput::Valid { until: live.deadline });
    }

    fn time_out(&mut self, now: Now, out: &mut Vec<LeaseOutput>) {
        if let Some(flight) = self.flight.take_if(|flight| now.boot >= flight.until) {
            let limit = flight.until.since(flight.sent);
            let error =
                DbError::new(Class::Unknown, format!("no answer to the {} within {limit:?}", flight.what.name()));
            self.done(now, flight, Err(error), out);
        }
        if matches!(self.link, Link::Opening { until, .. } if now.boot >= until) {
            self.drop_connection(out);
            let limit = self.settings.times.statement_timeout;
            let error = DbError::new(Class::Unavailable, format!("no connection within {limit:?}"));
            self.failed(now, error.into(), out);
        }
        if let Some((retired, late)) = &mut self.stopping
            && now.boot >= *late
        {
            *late = Boot::NEVER;
            out.push(LeaseOutput::StopLate { retired: *retired });
        }
        if let Phase::Registering(registering) = &self.phase
            && now.boot >= registering.since.plus(self.settings.times.lease)
        {
            self.abandon(now, out);
        }
    }

    /// Gives up an identity that is not registered, or of which that cannot be known.
    fn abandon(&mut self, now: Now, out: &mut Vec<LeaseOutput>) {
        let Phase::Registering(registering) = &mut self.phase else { return };
        let id = registering.id;
        registering.id = self.dice.member();
        registering.since = now.boot;
        out.push(LeaseOutput::Abandoned { id, next: registering.id });
        if self.flight.is_some() {
            // It may still be carried out; the row expires and is reaped.
            self.drop_connection(out);
        }
        self.retire(id);
    }

    /// Starts what is due.
    fn go_on(&mut self, now: Now, out: &mut Vec<LeaseOutput>) {
        if self.flight.is_some() || matches!(self.link, Link::Opening { .. }) {
            return;
        }
        let times = self.settings.times;
        let what = match &mut self.phase {
            Phase::New | Phase::Stopped => return,
            Phase::Registering(registering) => {
                if now.boot < registering.at {
                    return;
                }
                let process = self.settings.process.clone();
                LeaseCall::Register { id: registering.id, process, lease: times.lease }
            }
            Phase::Live(live) => {
                if now.boot >= live.renew_at {
                    live.is_due = true;
                    live.renew_at = now.boot.plus(self.dice.shorten(times.renew));
                    if self.settings.mode != Mode::Shared {
                        (live.is_due, live.renew_at) = (false, Boot::NEVER);
                    }
                }
                match self.asked_lease {
                    _ if live.is_due => {
                        let beat_age = now.boot.since(self.last_beat);
                        LeaseCall::Renew { id: live.id, lease: times.lease, beat_age }
                    }
                    Some(lease) => LeaseCall::SetLease { id: live.id, lease },
                    None => return,
                }
            }
        };
        self.calls += 1;
        let call = self.calls;
        if !matches!(self.link, Link::Open(_)) {
            self.link = Link::Opening { call, until: now.boot.plus(times.statement_timeout) };
            out.push(LeaseOutput::Connect { call });
            return;
        }
        if let Phase::Live(live) = &mut self.phase {
            live.is_due = false;
        }
        let until = now.boot.plus(what.limit(&times));
        self.flight = Some(Flight { call, what: what.clone(), sent: now.boot, until });
        out.push(LeaseOutput::Call { call, what });
    }

    fn done(&mut self, now: Now, flight: Flight, result: Result<LeaseAnswer, DbError>, out: &mut Vec<LeaseOutput>) {
        let answer = match result {
            Ok(answer) => answer,
            Err(error) => {
                // A late answer must not be read as the next one's.
                self.drop_connection(out);
                self.call_failed(now, &flight.what, error, out);
                return;
            }
        };
        let sent = if is(Bug::TrustFromReply) { now.boot } else { flight.sent };
        match (flight.what, answer) {
            (LeaseCall::Register { id, .. }, LeaseAnswer::Registered { no, left_ms, db_ms }) => {
                let Link::Open(server) = self.link else { return };
                let times = &self.settings.times;
                let is_shared = self.settings.mode == Mode::Shared;
                let deadline = if is_shared { times.trust_until(sent, left_ms) } else { Boot::NEVER };
                let renew_at = if is_shared { flight.sent.plus(self.dice.shorten(times.renew)) } else { Boot::NEVER };
                self.clocks.forget();
                self.clocks.compare(now, Some(db_ms), times.lease);
                self.have_clocks_jumped = false;
                let pause = times.renew;
                self.phase =
                    Phase::Live(Live { id, no, server, deadline, renew_at, is_due: false, is_announced: false, pause });
            }
            (LeaseCall::Register { lease, .. }, LeaseAnswer::LeaseDiffers { stored }) => {
                self.refused(now, Refusal::LeaseDiffers { ours: lease, stored }, out);
            }
            (LeaseCall::Renew { .. }, LeaseAnswer::Renewed { left_ms, db_ms }) => {
                let Phase::Live(live) = &mut self.phase else { return };
                live.deadline = self.settings.times.trust_until(sent, left_ms);
                live.pause = self.settings.times.renew;
                if live.is_announced {
                    out.push(LeaseOutput::Valid { until: live.deadline });
                }
                let jumps = self.clocks.compare(now, Some(db_ms), self.settings.times.lease);
                self.have_clocks_jumped = !jumps.is_empty();
                out.extend(jumps.into_iter().map(|(clock, by_ms)| LeaseOutput::ClockWarning { clock, by_ms }));
            }
            (LeaseCall::Renew { .. }, LeaseAnswer::Expired) => self.fence(now, FenceReason::ExpiredByDatabase, out),
            (LeaseCall::Renew { .. }, LeaseAnswer::Missing) => self.fence(now, FenceReason::RegistrationMissing, out),
            (LeaseCall::SetLease { lease, .. }, LeaseAnswer::LeaseSet(is_set)) => {
                self.asked_lease = None;
                let result = if is_set { Ok(()) } else { Err(Refusal::OthersLive) };
                if is_set {
                    self.settings.times.lease = lease;
                    // The registration gets its new length at once.
                    if let Phase::Live(live) = &mut self.phase
                        && self.settings.mode == Mode::Shared
                    {
                        live.renew_at = now.boot;
                    }
                }
                out.push(LeaseOutput::LeaseSet { lease, result });
            }
            (what, answer) => unreachable!("{answer:?} is no answer to {what:?}"),
        }
    }

    /// A request of an open connection failed.
    fn call_failed(&mut self, now: Now, what: &LeaseCall, error: DbError, out: &mut Vec<LeaseOutput>) {
        match what {
            LeaseCall::SetLease { lease, .. } => {
                self.asked_lease = None;
                let result = Err(Refusal::Failed(format!("the lease may or may not be changed: {error}")));
                out.push(LeaseOutput::LeaseSet { lease: *lease, result });
            }
            LeaseCall::Register { .. } => {
                if !error.class.is_certain() {
                    self.abandon(now, out);
                }
                self.failed(now, error.into(), out);
            }
            LeaseCall::Renew { .. } => self.failed(now, error.into(), out),
        }
    }

    /// A renewal or registration failed, and is tried again.
    fn failed(&mut self, now: Now, error: ConnectError, out: &mut Vec<LeaseOutput>) {
        match &mut self.phase {
            Phase::New | Phase::Stopped => {}
            Phase::Registering(_) => match error {
                ConnectError::Schema(what) => self.refused(now, Refusal::Schema(what), out),
                ConnectError::Pooler(what) => self.refused(now, Refusal::Pooler(what), out),
                ConnectError::Database(_) => {
                    let again = self.back_off(now);
                    out.push(LeaseOutput::Failed { what: "registration", error, again });
                }
            },
            Phase::Live(live) => {
                live.is_due = false;
                if is(Bug::BackoffPastDeadline) {
                    live.pause = (live.pause * 2).min(self.settings.times.lease * 2);
                    live.renew_at = now.boot.plus(live.pause);
                    live.deadline = live.deadline.max(live.renew_at.plus(self.settings.times.renew));
                }
                let again = live.renew_at;
                if let Some(lease) = self.asked_lease.take() {
                    let result = Err(Refusal::Failed(format!("the database could not be asked: {error}")));
                    out.push(LeaseOutput::LeaseSet { lease, result });
                }
                out.push(LeaseOutput::Failed { what: "renewal", error, again });
            }
        }
    }

    fn refused(&mut self, now: Now, refusal: Refusal, out: &mut Vec<LeaseOutput>) {
        let again = self.back_off(now);
        out.push(LeaseOutput::Refused { refusal, again });
    }

    /// When to register again: after a pause that doubles from a beat to a lease.
    fn back_off(&mut self, now: Now) -> Boot {
        let Phase::Registering(registering) = &mut self.phase else { return Boot::NEVER };
        registering.at = now.boot.plus(self.dice.shorten(registering.pause));
        registering.pause = (registering.pause * 2).min(self.settings.times.lease);
        registering.at
    }

    fn ask_lease(&mut self, lease: Duration, out: &mut Vec<LeaseOutput>) {
        let refuse = |refusal| LeaseOutput::LeaseSet { lease, result: Err(refusal) };
        if let Err(error) = (Times { lease, ..self.settings.times }).check() {
            out.push(refuse(error.into()));
        } else if !matches!(self.phase, Phase::Live(_)) || self.asked_lease.is_some() {
            out.push(refuse(Refusal::Failed("the process is not registered, or changes the lease already".into())));
        } else {
            self.asked_lease = Some(lease);
        }
    }

    fn stop(&mut self, out: &mut Vec<LeaseOutput>) {
        if matches!(self.phase, Phase::Stopped) {
            return;
        }
        self.drop_connection(out);
        self.phase = Phase::Stopped;
        self.stopping = None;
        out.push(LeaseOutput::Stopped);
    }
}
