//! One leadership, as a process sees it.

use std::time::Duration;

use super::{Change, Leadership};
use crate::planted::{Bug, is};
use crate::scripts::lead::Standing;
use crate::{Boot, Dice, MemberId, Times};

/// Spread of stand-bys that contest when a holder's lease ends.
const CONTEST_SPREAD: Duration = Duration::from_millis(200);
/// Until a row is contested again whose lease is over, but which a guarded transaction of its holder locks.
const LOCKED_PAUSE: Duration = Duration::from_millis(200);

/// What a process has to do with a leadership.
#[derive(Debug)]
pub(super) struct Office {
    pub(super) name: &'static str,
    /// Whether this process can do its work.
    pub(super) is_able: bool,
    state: State,
    /// When a stand-by contests besides its beats.
    pub(super) contest_at: Option<Boot>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Another leads, or nobody. `claimed`: the row shows this process in this epoch, since a take whose answer was lost.
    Following { claimed: i64 },
    /// This process leads until `deadline` by its own clock.
    Leading { held: Leadership, deadline: Boot, is_suspended: bool },
}

/// What a contest asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) sent: Boot,
    pub(super) me: MemberId,
    /// As [`Office::wanted`] gave it.
    pub(super) epoch: i64,
}

impl Office {
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, is_able: false, state: State::Following { claimed: 0 }, contest_at: None }
    }

    /// What this process holds by its own belief, suspended or not.
    pub(super) const fn held(&self) -> Option<Leadership> {
        match self.state {
            State::Leading { held, .. } => Some(held),
            State::Following { .. } => None,
        }
    }

    /// What it leads.
    pub(super) const fn leads(&self) -> Option<Leadership> {
        match self.state {
            State::Leading { held, is_suspended: false, .. } => Some(held),
            _ => None,
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Boot> {
        match self.state {
            State::Leading { deadline, .. } => Some(deadline),
            State::Following { .. } => self.contest_at.filter(|_| self.is_able),
        }
    }

    /// The epoch to name in a contest; `None`: this name is not contested.
    pub(super) const fn wanted(&self) -> Option<i64> {
        match self.state {
            State::Leading { held, .. } => Some(held.epoch),
            State::Following { claimed } if self.is_able => Some(claimed),
            State::Following { .. } => None,
        }
    }

    /// Leads without a lease.
    pub(super) const fn lead_for_ever(&mut self, held: Leadership) {
        self.state = State::Leading { held, deadline: Boot::NEVER, is_suspended: false };
        self.contest_at = None;
    }

    /// Steps down.
    pub(super) fn lose(&mut self) -> Option<(Leadership, Change)> {
        let lost = self.held();
        self.state = State::Following { claimed: 0 };
        self.contest_at = None;
        lost.map(|held| (held, Change::Lost))
    }

    /// The own clock says that the lease is over.
    pub(super) fn lose_if_late(&mut self, now: Boot) -> Option<(Leadership, Change)> {
        match self.state {
            State::Leading { deadline, .. } if now >= deadline => self.lose(),
            _ => None,
        }
    }

    /// A contest failed: nobody knows whether this process still leads.
    pub(super) fn suspend(&mut self) -> Option<(Leadership, Change)> {
        match &mut self.state {
            State::Leading { held, is_suspended: is_suspended @ false, deadline }
                if *deadline != Boot::NEVER && !is(Bug::SuspendedLeads) =>
            {
                *is_suspended = true;
                Some((*held, Change::Suspended))
            }
            _ => None,
        }
    }

    /// What a contest gave for this name.
    pub(super) fn contested(
        &mut self,
        now: Boot,
        asked: Asked,
        is: Standing,
        times: &Times,
        dice: &mut Dice,
    ) -> Option<(Leadership, Change)> {
        let Asked { sent, me, epoch: asked } = asked;
        match is {
            Standing::Renewed { left_ms } => {
                let held = Leadership { name: self.name, holder: me, epoch: asked };
                self.hold(now, held, times.trust_until(sent, left_ms))
            }
            Standing::Taken { epoch, left_ms } => {
                let held = Leadership { name: self.name, holder: me, epoch };
                self.hold(now, held, times.trust_until(sent, left_ms))
            }
            Standing::Other { epoch, holder, left_ms } => {
                // An answer to another question: a leadership gained since is not lost by it.
                if self.held().is_some_and(|held| held.epoch != asked) {
                    return None;
                }
                let lost = self.lose();
                let is_own = holder == Some(me) && asked != epoch && left_ms.is_some_and(|left| left > 0);
                let wait = match left_ms {
                    // Known from the next question on.
                    _ if is_own => Duration::ZERO,
                    Some(left) if left > 0 => {
                        Duration::from_millis(left.unsigned_abs()).min(times.lease) + dice.below(CONTEST_SPREAD)
                    }
                    // Lost just now: to be taken anew at once. Else the row was locked.
                    _ if lost.is_some() => Duration::ZERO,
                    _ => LOCKED_PAUSE,
                };
                if is_own {
                    self.state = State::Following { claimed: epoch };
                }
                if !is_bug_at_beats() {
                    self.contest_at = Some(now.plus(wait));
                }
                lost
            }
        }
    }

    fn hold(&mut self, now: Boot, held: Leadership, deadline: Boot) -> Option<(Leadership, Change)> {
        if now >= deadline {
            // The answer came too late to be believed. The row says that this process leads, so the next contest renews.
            let lost = self.lose();
            self.state = State::Following { claimed: held.epoch };
            self.contest_at = Some(now);
            return lost;
        }
        self.contest_at = None;
        let before = std::mem::replace(&mut self.state, State::Leading { held, deadline, is_suspended: false });
        match before {
            State::Leading { held: same, is_suspended, .. } if same == held => {
                is_suspended.then_some((held, Change::Resumed))
            }
            _ => Some((held, Change::Gained)),
        }
    }
}

fn is_bug_at_beats() -> bool {
    is(Bug::ContestsAtBeatsOnly)
}
