//! The coordinator: its state, the life of the member, beats, and calls.

mod asking;
mod leading;
mod reaping;
mod stopping;

use std::collections::BTreeSet;
use std::sync::Arc;

use database_core::{Class, DbError};

use super::office::Office;
use super::{Call, CallAnswer, Change, CoordinatorSettings, Input, Leadership, Output, View};
use crate::planted::{Bug, is};
use crate::scripts::cache::MISSED_BEATS_MAX;
use crate::scripts::view::Seen;
use crate::{Boot, Dice, MemberId, Mode, Server, Times};

/// Attempts of tidying; after them lease expiry does it.
const TIDY_ATTEMPTS: u32 = 4;
/// Requests in hand at once, at most: more are taken when some are done.
const IN_HAND_MAX: usize = 1_000;
/// Members that are remembered as dead until the start reap has taken them.
const KNOWN_DEAD_MAX: usize = 10_000;

/// What a daemon does to live with others, besides keeping its lease.
///
/// One call of each kind is under way at a time.
#[derive(Debug)]
pub struct Coordinator {
    settings: CoordinatorSettings,
    dice: Dice,
    phase: Phase,
    me: Option<Me>,
    offices: Vec<Office>,
    flights: [Option<Flight>; Lane::COUNT],
    calls: u64,
    beat: Beat,
    beat_at: Option<Boot>,
    /// A beat was asked for while one was under way.
    is_beat_wanted: bool,
    are_requests_wanted: bool,
    in_hand: BTreeSet<i64>,
    /// What the last successful read gave, and when it was asked for.
    open_from: i64,
    read_at: Option<Boot>,
    /// The database's time at that read, ms. Rows of changes are pruned by that clock, which may be stepped forward.
    read_db_ms: i64,
    view: Arc<View>,
    reap_at: Option<Boot>,
    /// After an outage the members get a beat's time to register anew.
    periodic_reap_from: Boot,
    /// The start reap has yet to succeed.
    is_start_reap_due: bool,
    known_dead: Vec<MemberId>,
    retired: Vec<MemberId>,
    tidy_attempts: u32,
    /// Until when the identity is trusted.
    valid_until: Boot,
    /// Notices are heard.
    is_listening: bool,
    /// Leaderships that this process has ended and whose rows still say that it leads.
    to_release: Vec<Leadership>,
}

#[derive(Debug, Clone, Copy)]
struct Me {
    id: MemberId,
    no: i64,
    epoch_min: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Not registered yet.
    New,
    /// Registered for the first time; waits for notices to be heard.
    Listening { until: Boot },
    /// The only process reads who was there before it.
    Looking,
    /// Takes over what was left by the dead, and by itself.
    StartReap,
    /// Before the end of the first beat.
    FirstBeat,
    /// Beats.
    Running,
    /// Waits for the leader's work to end.
    StopWork { until: Boot },
    /// Gives leaderships back.
    StopRelease,
    /// Ends its registration.
    StopDeregister,
    /// Does nothing.
    Stopped,
}

impl Phase {
    const fn is_stopping(self) -> bool {
        matches!(self, Self::StopWork { .. } | Self::StopRelease | Self::StopDeregister | Self::Stopped)
    }

    fn has_started(self) -> bool {
        matches!(self, Self::FirstBeat | Self::Running)
            || is(Bug::ContestsAfterStop) && matches!(self, Self::StopRelease | Self::StopDeregister)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beat {
    Idle,
    Viewing,
    Contesting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    View,
    Contest,
    Requests,
    Reap,
    Tidy,
    Stop,
}

impl Lane {
    const COUNT: usize = 6;
    const ALL: [Self; Self::COUNT] = [Self::View, Self::Contest, Self::Requests, Self::Reap, Self::Tidy, Self::Stop];
}

#[derive(Debug)]
struct Flight {
    call: u64,
    sent: Boot,
    until: Boot,
    name: &'static str,
    /// What a contest asked for.
    wanted: Vec<(&'static str, i64)>,
}

impl Coordinator {
    /// A coordinator that waits for the registration; `seed` is 256 random bits.
    #[must_use]
    pub fn new(mut settings: CoordinatorSettings, seed: [u64; 4]) -> Self {
        settings.known_dead.truncate(KNOWN_DEAD_MAX);
        let known_dead = std::mem::take(&mut settings.known_dead);
        Self {
            settings,
            dice: Dice::new(seed),
            phase: Phase::New,
            me: None,
            offices: Vec::new(),
            flights: Default::default(),
            calls: 0,
            beat: Beat::Idle,
            beat_at: None,
            is_beat_wanted: false,
            are_requests_wanted: false,
            in_hand: BTreeSet::new(),
            open_from: 0,
            read_at: None,
            read_db_ms: 0,
            view: Arc::default(),
            reap_at: None,
            periodic_reap_from: Boot(0),
            is_start_reap_due: true,
            known_dead,
            retired: Vec::new(),
            tidy_attempts: 0,
            valid_until: Boot::NEVER,
            is_listening: false,
            to_release: Vec::new(),
        }
    }

    /// The times in force.
    #[must_use]
    pub const fn times(&self) -> &Times {
        &self.settings.times
    }

    /// Who was there at the last look. Its age is the time since [`View::at`].
    #[must_use]
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// The leadership `name`, if this process leads at `now`.
    #[must_use]
    pub fn leads(&self, name: &str, now: Boot) -> Option<Leadership> {
        let office = self.offices.iter().find(|office| office.name == name)?;
        let is_late = now >= self.valid_until || office.next_deadline().is_some_and(|deadline| now >= deadline);
        office.leads().filter(|_| !is_late)
    }

    /// When to call [`Coordinator::handle`] with [`Input::Wake`] at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Boot> {
        let flights = self.flights.iter().flatten().map(|flight| flight.until);
        let phase = match self.phase {
            Phase::Listening { until } | Phase::StopWork { until } => Some(until),
            _ => None,
        };
        let mut own = [None; 2];
        if self.phase.has_started() {
            own = [self.beat_at.filter(|_| self.beat == Beat::Idle), self.reap_time()];
        }
        let leads = self.offices.iter().any(|office| office.held().is_some());
        let valid = Some(self.valid_until).filter(|_| leads);
        let offices = self.offices.iter().filter_map(|office| {
            let is_waiting = office.held().is_none() && (self.is_busy(Lane::Contest) || !self.may_contest());
            office.next_deadline().filter(|_| !is_waiting)
        });
        flights
            .chain(phase)
            .chain(valid)
            .chain(own.into_iter().flatten())
            .chain(offices)
            .filter(|at| *at != Boot::NEVER)
            .min()
    }

    /// Takes in what happened at `now`, and says what is to be done.
    pub fn handle(&mut self, now: Boot, input: Input, out: &mut Vec<Output>) {
        if self.phase == Phase::Stopped {
            return;
        }
        self.lose_what_is_late(now, out);
        match input {
            Input::Registered { id, no, server, retired } => self.registered(now, id, no, server, retired, out),
            Input::Valid { until } => self.valid_until = until,
            Input::Fenced => self.fenced(now, out),
            Input::LeaseChanged(lease) => self.settings.times.lease = lease,
            Input::Wake => {}
            Input::Done { call, result } => self.done(now, call, result, out),
            Input::Listening => self.listening(now, out),
            Input::Notice(notice) => self.heard(now, &notice, out),
            Input::MayLead { name, is_able } => self.may_lead(now, name, is_able, out),
            Input::Refresh => self.refresh(now, out),
            Input::RequestDone { id } => {
                self.in_hand.remove(&id);
            }
            Input::Stop => self.stop(now, out),
            Input::LeaderWorkStopped => {
                if matches!(self.phase, Phase::StopWork { .. }) {
                    self.release(now, out);
                }
            }
        }
        self.time_out(now, out);
        self.go_on(now, out);
    }

    fn lose_what_is_late(&mut self, now: Boot, out: &mut Vec<Output>) {
        let is_over = now >= self.valid_until;
        for office in &mut self.offices {
            say(if is_over { office.lose() } else { office.lose_if_late(now) }, out);
        }
    }

    // The life of the member.

    fn registered(
        &mut self,
        now: Boot,
        id: MemberId,
        no: i64,
        server: Server,
        retired: Vec<MemberId>,
        out: &mut Vec<Output>,
    ) {
        if self.phase.is_stopping() {
            return;
        }
        let epoch_min = if is(Bug::EpochIgnoresTimeline) { 0 } else { server.epoch_min() };
        self.me = Some(Me { id, no, epoch_min });
        self.valid_until = Boot::NEVER;
        match self.settings.mode {
            Mode::Alone => {
                self.phase = Phase::Running;
                self.beat_at = Some(now);
                for office in &mut self.offices {
                    if office.is_able && office.held().is_none() {
                        let held = Leadership { name: office.name, holder: id, epoch: 0 };
                        office.lead_for_ever(held);
                        say(Some((held, Change::Gained)), out);
                    }
                }
            }
            Mode::Sole if self.phase == Phase::New => {
                self.phase = Phase::Looking;
                self.send_view(now, out);
            }
            Mode::Shared if self.phase == Phase::New => {
                self.retired = retired;
                self.phase = Phase::Listening { until: now.plus(self.settings.listen_wait) };
                if self.is_listening {
                    self.start_reap(now, out);
                }
            }
            Mode::Sole | Mode::Shared => {
                self.retired.extend(retired);
                self.tidy_attempts = 0;
                self.periodic_reap_from = now.plus(self.settings.times.beat);
                self.want_beat(now);
                self.tidy(now, out);
            }
        }
    }

    fn fenced(&mut self, now: Boot, out: &mut Vec<Output>) {
        if self.phase.is_stopping() {
            // Nothing of it is ours to give back.
            self.me = None;
            return;
        }
        for office in &mut self.offices {
            say(office.lose(), out);
        }
        // Tidying gives up what the old identity leads.
        self.to_release.clear();
        if !is(Bug::FencedContests) {
            self.me = None;
        }
        // Answers to what was asked under the old identity concern nobody.
        self.flights = Default::default();
        self.in_hand.clear();
        self.reap_at = None;
        self.forget_reads(out);
        if self.beat != Beat::Idle {
            self.end_beat(now, out);
        }
        if !matches!(self.phase, Phase::New | Phase::FirstBeat | Phase::Running) {
            // The start goes on with the next identity.
            self.phase = Phase::New;
        }
    }

    fn forget_reads(&mut self, out: &mut Vec<Output>) {
        (self.open_from, self.read_at) = (0, None);
        out.push(Output::DropAllCaches);
    }

    fn listening(&mut self, now: Boot, out: &mut Vec<Output>) {
        self.is_listening = true;
        match self.phase {
            Phase::Listening { .. } => self.start_reap(now, out),
            // Notices may have been missed: poll everything.
            _ if self.phase.has_started() => {
                self.want_requests();
                self.want_beat(now);
            }
            _ => {}
        }
    }

    fn start_reap(&mut self, now: Boot, out: &mut Vec<Output>) {
        self.phase = Phase::StartReap;
        self.reap(now, out);
    }

    /// Contest and cache changes, in the order of a beat, before the beats.
    fn first_beat(&mut self, now: Boot) {
        self.phase = Phase::FirstBeat;
        self.beat_at = Some(now);
    }

    // Beats.

    fn want_beat(&mut self, now: Boot) {
        if self.beat == Beat::Idle {
            self.beat_at = Some(now);
        } else {
            self.is_beat_wanted = true;
        }
    }

    fn begin_beat(&mut self, now: Boot, out: &mut Vec<Output>) {
        self.beat_at = Some(now.plus(self.dice.shorten(self.settings.times.beat)));
        self.is_beat_wanted = false;
        match (self.settings.mode, self.me) {
            (Mode::Shared, Some(_)) => {
                self.beat = Beat::Viewing;
                self.send_view(now, out);
            }
            (Mode::Sole, Some(_)) => {
                self.want_requests();
                self.own_work_and_contest(now, out);
            }
            // Without an identity only the process's own work.
            _ => self.own_work_and_contest(now, out),
        }
    }

    /// What a beat does after its read, whether that succeeded or not.
    fn own_work_and_contest(&mut self, now: Boot, out: &mut Vec<Output>) {
        out.push(Output::RunPeriodic);
        if self.settings.mode == Mode::Shared && self.may_contest() && self.has_wanted() {
            self.beat = Beat::Contesting;
            // One that is under way counts for this beat.
            self.contest(now, out);
        } else {
            self.seize(now, out);
            self.end_beat(now, out);
        }
    }

    fn end_beat(&mut self, now: Boot, out: &mut Vec<Output>) {
        self.beat = Beat::Idle;
        out.push(Output::BeatDone);
        if self.is_beat_wanted {
            self.beat_at = Some(now);
        }
        if self.phase == Phase::FirstBeat
            && let Some(me) = self.me
        {
            self.phase = Phase::Running;
            let is_other = |seen: &&super::MemberSeen| seen.id != me.id && seen.left_ms >= 0;
            let others = self.view.members.iter().filter(is_other).count();
            out.push(Output::Started { id: me.id, no: me.no, others });
        }
    }

    fn refresh(&mut self, now: Boot, out: &mut Vec<Output>) {
        if self.me.is_some() && self.settings.mode != Mode::Alone && self.phase.has_started() {
            self.send_view(now, out);
        } else {
            out.push(Output::Alive(Arc::clone(&self.view)));
        }
    }

    fn send_view(&mut self, now: Boot, out: &mut Vec<Output>) {
        let Some(me) = self.me else { return };
        self.send(now, Lane::View, Call::View { me: me.id, open_from: self.open_from }, out);
    }

    fn seen(&mut self, now: Boot, sent: Boot, seen: Seen, out: &mut Vec<Output>) {
        let Some(me) = self.me else { return };
        if self.settings.mode == Mode::Shared {
            let away_max = self.settings.times.beat * MISSED_BEATS_MAX;
            // At the first look too: changes may be pruned that came after something was cached.
            let passed_db_ms = seen.db_ms.saturating_sub(self.read_db_ms);
            let is_pruned = u128::try_from(passed_db_ms).is_ok_and(|passed| passed > away_max.as_millis());
            if is_pruned || self.read_at.is_none_or(|read_at| now.since(read_at) > away_max) {
                out.push(Output::DropAllCaches);
            } else if !seen.cache_changes.is_empty() {
                out.push(Output::DropCaches(seen.cache_changes));
            }
            self.open_from = seen.open_from;
        }
        (self.read_at, self.read_db_ms) = (Some(sent), seen.db_ms);
        let is_alive = |members: &[super::MemberSeen], id| {
            members.iter().any(|seen: &super::MemberSeen| seen.id == id && seen.left_ms >= 0)
        };
        let before = &self.view.members;
        let vanished: Vec<MemberId> = before
            .iter()
            .filter(|seen| seen.left_ms >= 0 && seen.id != me.id)
            .map(|seen| seen.id)
            .filter(|id| !is_alive(&seen.members, *id))
            .collect();
        let has_dead = seen.members.iter().any(|member| member.left_ms < 0);
        let is_shared = self.settings.mode == Mode::Shared;
        if is_shared && (!vanished.is_empty() || has_dead) {
            self.want_reap(now);
        }
        if is_shared && !vanished.is_empty() {
            out.push(Output::Vanished(vanished));
        }
        self.view = Arc::new(View { at: sent, members: seen.members, leaders: seen.leaders });
        out.push(Output::Alive(Arc::clone(&self.view)));
        if seen.requests > 0 {
            self.want_requests();
        }
    }

    // Calls.

    fn is_busy(&self, lane: Lane) -> bool {
        self.flights[lane as usize].is_some()
    }

    /// Starts a call unless one of its kind is under way.
    fn send(&mut self, now: Boot, lane: Lane, what: Call, out: &mut Vec<Output>) {
        if self.is_busy(lane) {
            return;
        }
        self.calls += 1;
        let until = now.plus(what.limit(&self.settings.times));
        let flight = Flight { call: self.calls, sent: now, until, name: what.name(), wanted: Vec::new() };
        self.flights[lane as usize] = Some(flight);
        out.push(Output::Call { call: self.calls, what });
    }

    fn done(&mut self, now: Boot, call: u64, result: Result<CallAnswer, DbError>, out: &mut Vec<Output>) {
        let is_it = |lane: &Lane| self.flights[*lane as usize].as_ref().is_some_and(|flight| flight.call == call);
        // One that was given up before has no lane any more.
        let Some(lane) = Lane::ALL.into_iter().find(is_it) else { return };
        let Some(flight) = self.flights[lane as usize].take() else { return };
        match result {
            Ok(answer) => self.succeeded(now, lane, &flight, answer, out),
            Err(error) => self.failed(now, lane, flight.name, error, out),
        }
    }

    fn succeeded(&mut self, now: Boot, lane: Lane, flight: &Flight, answer: CallAnswer, out: &mut Vec<Output>) {
        match (lane, answer) {
            (Lane::View, CallAnswer::Seen(seen)) => {
                self.seen(now, flight.sent, seen, out);
                self.viewed(now, out);
            }
            (Lane::Contest, answer @ CallAnswer::Contested(_)) => {
                self.contested(now, flight, answer, out);
                self.contest_ended(now, out);
            }
            (Lane::Contest, CallAnswer::Seized(rows)) => self.seized(&rows, out),
            (Lane::Requests, CallAnswer::Requests(requests)) => self.taken(requests.unwrap_or_default(), out),
            (Lane::Reap, answer @ CallAnswer::Reaped(_)) => self.reaped(now, answer, out),
            (Lane::Tidy, answer @ CallAnswer::Tidied(_)) => self.tidied(now, answer, out),
            (Lane::Stop, CallAnswer::Released) => self.released(now, out),
            (Lane::Stop, CallAnswer::Deregistered(moved)) => {
                out.extend(moved.iter().map(|moved| Output::Send(moved.notice())));
                self.stopped(out);
            }
            (lane, answer) => unreachable!("{answer:?} came on {lane:?}"),
        }
    }

    fn failed(&mut self, now: Boot, lane: Lane, what: &'static str, error: DbError, out: &mut Vec<Output>) {
        out.push(Output::Failed { what, error });
        match lane {
            Lane::View => {
                out.push(Output::Alive(Arc::clone(&self.view)));
                self.viewed(now, out);
            }
            Lane::Contest => {
                self.suspend(out);
                self.contest_ended(now, out);
            }
            Lane::Requests => {}
            Lane::Reap => {
                // As late as a beat; a start goes on, and does it later.
                self.reap_at = Some(now.plus(self.settings.times.beat));
                if self.phase == Phase::StartReap {
                    self.first_beat(now);
                }
            }
            Lane::Tidy => {
                if self.tidy_attempts >= TIDY_ATTEMPTS {
                    self.retired.clear();
                }
            }
            Lane::Stop if self.phase == Phase::StopRelease => self.released(now, out),
            Lane::Stop if self.phase == Phase::StopDeregister => self.stopped(out),
            Lane::Stop => {}
        }
    }

    fn viewed(&mut self, now: Boot, out: &mut Vec<Output>) {
        if self.phase == Phase::Looking {
            // Whoever else is registered was the only process before this one.
            let me = self.me.map(|me| me.id);
            self.known_dead = self.view.members.iter().map(|seen| seen.id).filter(|id| Some(*id) != me).collect();
            self.known_dead.truncate(KNOWN_DEAD_MAX);
            self.start_reap(now, out);
        } else if self.beat == Beat::Viewing {
            self.own_work_and_contest(now, out);
        }
    }

    fn contest_ended(&mut self, now: Boot, out: &mut Vec<Output>) {
        if self.beat == Beat::Contesting {
            self.end_beat(now, out);
        }
    }

    fn time_out(&mut self, now: Boot, out: &mut Vec<Output>) {
        for lane in Lane::ALL {
            if let Some(flight) = self.flights[lane as usize].take_if(|flight| now >= flight.until) {
                let limit = flight.until.since(flight.sent);
                let error = DbError::new(Class::Unknown, format!("no answer to the {} within {limit:?}", flight.name));
                self.failed(now, lane, flight.name, error, out);
            }
        }
        match self.phase {
            Phase::Listening { until } if now >= until => self.start_reap(now, out),
            Phase::StopWork { until } if now >= until => self.release(now, out),
            _ => {}
        }
    }

    /// Starts what is due.
    fn go_on(&mut self, now: Boot, out: &mut Vec<Output>) {
        if !self.phase.has_started() {
            return;
        }
        if self.beat == Beat::Idle && self.beat_at.is_some_and(|at| now >= at) {
            if self.me.is_some() {
                self.tidy(now, out);
            }
            self.begin_beat(now, out);
        }
        if self.are_requests_wanted && !self.is_busy(Lane::Requests) {
            self.take_requests(now, out);
        }
        if self.may_contest() && !self.is_busy(Lane::Contest) {
            let is_due = |office: &Office| {
                office.is_able && office.held().is_none() && office.contest_at.is_some_and(|at| now >= at)
            };
            if self.offices.iter().any(is_due) {
                self.contest(now, out);
            }
        }
        self.seize(now, out);
        if !self.to_release.is_empty() && !self.is_busy(Lane::Stop) {
            let held = std::mem::take(&mut self.to_release);
            self.send(now, Lane::Stop, Call::Release { held }, out);
        }
        if self.reap_time().is_some_and(|at| now >= at) {
            self.reap(now, out);
        }
    }
}

fn say(change: Option<(Leadership, Change)>, out: &mut Vec<Output>) {
    if let Some((leadership, change)) = change {
        out.push(Output::Leadership { leadership, change });
    }
}
