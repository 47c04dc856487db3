//! The demonstration executor of a process: what it does, action by action.

use std::time::Duration;

use cluster_core::scripts::request::Request;
use cluster_core::scripts::ticket::Moved;
use cluster_core::{Input, Leadership, MemberId, Notice};
use database_core::DbError;

use super::profile::{MS, SECOND};
use super::world::{Mail, World, say};
use crate::demonstration::{self, Claimed, Outcome};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Start {
        id: i64,
    },
    Claim {
        permit: bool,
    },
    Mine,
    Finish(Claimed),
    Ask {
        addressee: MemberId,
        id: i64,
    },
    Poke {
        request: i64,
    },
    Effect(Leadership),
    Prune(Leadership),
    Change(i64),
    /// Two reaps at once harm nobody.
    Reap,
    /// A name, and how often it had been dropped before.
    Read(i64, u32),
}

/// A claim that is being executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Execution {
    pub(super) owner: MemberId,
    pub(super) claimed: Claimed,
}

/// Executions of a process at once.
const EXECUTIONS_MAX: usize = 4;

impl World {
    /// Whether work may start: asked before each effect.
    fn may_start(&self, index: usize) -> Option<MemberId> {
        let process = &self.processes[index];
        process.me.filter(|_| self.boot(index) < process.valid_until && !process.is_stopping)
    }

    pub(super) fn act_now(&mut self, index: usize) {
        let (low, high) = self.profile.action_every;
        let wait = self.rng.between(low, high);
        self.mail(index, wait, Mail::Act);
        let leads = self.processes[index].leads[0];
        if let Some(me) = self.may_start(index) {
            let has_room = self.processes[index].executions.len() < EXECUTIONS_MAX;
            let may_permit = has_room && !self.processes[index].permit_in_flight;
            self.processes[index].actions += 1;
            let actions = self.processes[index].actions;
            let action = match self.rng.below(16) {
                // Whatever is drawn, both kinds have their turn.
                _ if actions.is_multiple_of(6) && has_room => Some(Action::Claim { permit: false }),
                _ if actions % 6 == 3 && may_permit => Some(Action::Claim { permit: true }),
                0..=4 if has_room => Some(Action::Claim { permit: false }),
                5 | 6 if may_permit => Some(Action::Claim { permit: true }),
                7 => self.rng.chance(1, 3).then_some(Action::Mine),
                11..=13 if self.profile.all_reap => Some(Action::Reap),
                8 => {
                    let others = &self.processes[index].others;
                    if others.is_empty() {
                        None
                    } else {
                        let addressee = others[self.rng.index(others.len())];
                        let id = self.rng.between(1, self.profile.rows.into()) as i64;
                        self.rng.chance(1, 2).then_some(Action::Ask { addressee, id })
                    }
                }
                9 => self.rng.chance(1, 4).then(|| Action::Change(self.rng.below(2) as i64)),
                10 => {
                    let name = self.rng.index(2);
                    let drops = self.processes[index].cache_drops[name];
                    self.processes[index].cache[name].is_none().then_some(Action::Read(name as i64, drops))
                }
                _ => {
                    // Rows that are done begin again.
                    let id = self.rng.between(1, self.profile.rows.into()) as i64;
                    Some(Action::Start { id })
                }
            };
            if let Some(action) = action {
                self.start_work(index, action, me);
            }
        }
        if let Some(leadership) = leads
            && self.may_start(index).is_some()
        {
            if self.processes[index].has_contest_failed {
                self.judge.breaks(format!("P{index} starts a leader's work after its contest has failed"));
            }
            let action = if self.rng.chance(1, 8) { Action::Prune(leadership) } else { Action::Effect(leadership) };
            self.start_work(index, action, leadership.holder);
        }
    }

    fn start_work(&mut self, index: usize, action: Action, me: MemberId) {
        let script = match action {
            Action::Start { id } => {
                let lane = self.lane_of(id);
                let wait = Duration::from_millis(self.rng.below(4_000));
                demonstration::start(me, id, lane, wait)
            }
            Action::Claim { permit } => {
                self.processes[index].permit_in_flight |= permit;
                demonstration::claim(me, 2, permit)
            }
            Action::Mine => demonstration::mine(me),
            Action::Finish(claimed) => demonstration::finish(me, claimed),
            Action::Ask { addressee, id } => demonstration::ask(me, addressee, id),
            Action::Poke { request } => demonstration::poke(me, request, 1),
            Action::Effect(leadership) => demonstration::effect(leadership),
            Action::Prune(leadership) => demonstration::prune(leadership),
            Action::Change(name) => demonstration::change(name),
            Action::Reap => {
                let reap =
                    cluster_core::scripts::reap::reap(me, Vec::new(), self.context.steps.clone(), self.context.kept);
                reap.map(|reaped| Outcome::Done(reaped.moved))
            }
            Action::Read(name, _) => demonstration::read(name),
        };
        self.start_script(index, action, me, script);
    }

    fn lane_of(&self, id: i64) -> i64 {
        self.database.work.committed().find(|row| i64::from(row.id) == id).map_or(0, |row| row.lane.into())
    }

    pub(super) fn request_taken(&mut self, index: usize, request: &Request) {
        self.outcome.requests += 1;
        if let Some(me) = self.may_start(index) {
            self.start_work(index, Action::Poke { request: request.id }, me);
        } else {
            self.mail(index, MS, Mail::Coordinator(Input::RequestDone { id: request.id }));
        }
    }

    pub(super) fn drop_cache(&mut self, index: usize, name: usize) {
        say!(self, "P{index} drops {name}, {:?}", self.processes[index].cache[name]);
        self.processes[index].cache[name] = None;
        self.processes[index].cache_drops[name] += 1;
    }

    /// An action has ended.
    pub(super) fn work_done(&mut self, index: usize, action: Action, me: MemberId, result: Result<Outcome, DbError>) {
        if let Err(error) = &result {
            say!(self, "P{index} {action:?}: {error}");
        }
        if matches!(result, Ok(Outcome::Fenced)) {
            self.outcome.guarded_out += 1;
        }
        match (action, result) {
            (Action::Claim { permit }, result) => {
                if permit {
                    self.processes[index].permit_in_flight = false;
                }
                match result {
                    Ok(Outcome::Claimed(claimed)) => {
                        for claimed in claimed {
                            self.outcome.claims += 1;
                            self.begin_execution(index, me, claimed);
                        }
                    }
                    Ok(Outcome::Done(moved)) => {
                        self.outcome.permits_waited += 1;
                        self.tell_moved(index, &moved);
                    }
                    _ => {}
                }
            }
            (Action::Mine, Ok(Outcome::Claimed(claimed))) => {
                for claimed in claimed {
                    let is_known =
                        self.processes[index].executions.iter().any(|execution| execution.claimed.id == claimed.id);
                    if !is_known {
                        self.outcome.resumed_claims += 1;
                        self.begin_execution(index, me, claimed);
                    }
                }
            }
            (Action::Finish(claimed), result) => {
                if result.is_err() && self.rng.chance(3, 4) {
                    // Perhaps it is finished. To try again harms nobody, as owner and attempt are compared.
                    let wait = self.rng.between(SECOND, 30 * SECOND);
                    self.mail(index, wait, Mail::ExecutionEnds { id: claimed.id, attempt: claimed.attempt });
                    return;
                }
                let process = &mut self.processes[index];
                process.executions.retain(|execution| execution.claimed != claimed || execution.owner != me);
                match result {
                    Ok(Outcome::Done(moved)) => self.tell_moved(index, &moved),
                    Ok(_) => self.outcome.finishes_lost += 1,
                    // Found again by its owner.
                    Err(_) => {}
                }
            }
            (Action::Ask { addressee, .. }, Ok(Outcome::Asked(_))) => {
                self.send_notice(index, &Notice::request(addressee));
            }
            (Action::Poke { request }, result) => {
                if let Ok(Outcome::Lost) = result {
                    self.outcome.requests_repeated += 1;
                }
                // Whether it was carried out or not, the answer in the row tells.
                if result.is_err() && self.may_start(index) == Some(me) {
                    self.start_work(index, action, me);
                    return;
                }
                self.tell_coordinator(index, Input::RequestDone { id: request });
            }
            (Action::Change(_), Ok(_)) => {
                self.outcome.config_changes += 1;
                self.send_notice(index, &Notice::cache());
            }
            (Action::Read(name, drops), Ok(Outcome::Version(version))) => {
                say!(self, "P{index} has read version {version} of {name}");
                let process = &mut self.processes[index];
                let name = name as usize;
                // What was dropped while it was read is not kept.
                if process.cache_drops[name] == drops {
                    process.cache[name] = Some(version);
                }
            }
            (Action::Start { .. }, Ok(Outcome::Done(moved))) => self.tell_moved(index, &moved),
            (Action::Prune(_), Ok(Outcome::Done(_))) => self.outcome.keys_pruned += 1,
            _ => {}
        }
    }

    fn tell_moved(&mut self, index: usize, moved: &[Moved]) {
        self.outcome.lane_moves += moved.len() as u64;
        for moved in moved {
            self.send_notice(index, &moved.notice());
        }
    }

    fn begin_execution(&mut self, index: usize, me: MemberId, claimed: Claimed) {
        // The deadline is checked before each effect; what is not started is found again, or reaped.
        if self.may_start(index) != Some(me) {
            return;
        }
        self.judge_effect(index, me);
        self.outcome.runs_in_lanes += u64::from(claimed.lane != 0);
        self.processes[index].executions.push(Execution { owner: me, claimed });
        let (low, high) = self.profile.execution;
        let wait = self.rng.between(low, high);
        self.mail(index, wait, Mail::ExecutionEnds { id: claimed.id, attempt: claimed.attempt });
    }

    pub(super) fn execution_ends(&mut self, index: usize, id: i64, attempt: i64) {
        let executions = &self.processes[index].executions;
        let execution =
            executions.iter().find(|execution| execution.claimed.id == id && execution.claimed.attempt == attempt);
        let Some(execution) = execution.copied() else { return };
        if self.may_start(index) == Some(execution.owner) {
            self.start_work(index, Action::Finish(execution.claimed), execution.owner);
        } else {
            // Killed in a moment, or the identity is new since.
            self.mail(index, SECOND, Mail::ExecutionEnds { id, attempt });
        }
    }
}
