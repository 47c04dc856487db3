//! What goes wrong, and when it ends.

use cluster_core::Input;

use super::database::Database;
use super::judge::Ghost;
use super::profile::{Fault, MS, Profile, SECOND};
use super::world::{Event, Mail, World, say};

pub(super) struct Faults {
    /// The database refuses connections until then,
    down_until: u64,
    /// or does not answer at all.
    is_silent: bool,
    pub(super) database_step_us: i64,
    replica: Option<(Database, Ghost)>,
    timeline: u32,
    /// Runs before this one are over.
    pub(super) oldest_run: usize,
    has_struck: bool,
}

impl Faults {
    pub(super) const fn new(_profile: &Profile) -> Self {
        Self {
            down_until: 0,
            is_silent: false,
            database_step_us: 0,
            replica: None,
            timeline: 1,
            oldest_run: 0,
            has_struck: false,
        }
    }

    /// Nobody is answered.
    pub(super) const fn is_hanging(&self, now: u64) -> bool {
        self.down_until > now && self.is_silent
    }

    /// Everybody is refused, or nobody answered.
    pub(super) const fn is_down(&self, now: u64) -> bool {
        self.down_until > now
    }
}

impl World {
    pub(super) fn fault(&mut self) {
        if let Some(fault) = self.profile.single {
            self.single(fault);
            return;
        }
        if self.now >= self.profile.calm_from {
            return;
        }
        let every = self.profile.fault_every;
        let wait = every / 2 + self.rng.below(every);
        self.after(wait, Event::Fault);
        if self.profile.faults.is_empty() {
            return;
        }
        let weights: Vec<u32> = self.profile.faults.iter().map(|(_, weight)| *weight).collect();
        let fault = self.profile.faults[self.rng.weighted(&weights)].0;
        let index = self.rng.index(self.processes.len());
        self.strike(fault, index);
    }

    /// One fault, for the leader: the takeover is timed.
    fn single(&mut self, fault: Fault) {
        if self.faults.has_struck || self.now + 60 * SECOND > self.profile.calm_from {
            return;
        }
        let leader = (0..self.processes.len()).find(|index| self.processes[*index].leads[0].is_some());
        let others = (0..self.processes.len()).filter(|index| {
            let process = &self.processes[*index];
            process.is_up && process.me.is_some() && Some(*index) != leader
        });
        let (Some(index), 1..) = (leader, others.count()) else {
            self.after(5 * SECOND, Event::Fault);
            return;
        };
        self.faults.has_struck = true;
        self.judge_takeover(fault);
        self.strike(fault, index);
    }

    /// A length that is mostly short, and sometimes longer than all leases.
    fn length(&mut self) -> u64 {
        let lease = self.profile.times.lease.as_nanos() as u64;
        let length = match self.rng.below(4) {
            0 => self.rng.below(2 * SECOND),
            1 => self.rng.below(lease),
            2 => self.rng.below(2 * lease),
            _ => self.rng.below(3 * lease),
        };
        // All is well again when the calm begins.
        length.min(self.profile.calm_from.saturating_sub(self.now)) + MS
    }

    fn strike(&mut self, fault: Fault, index: usize) {
        let length = self.length();
        say!(self, "fault {fault:?} of P{index} for {:.3} s", length as f64 / 1e9);
        let now = self.now;
        let is_single = self.profile.single.is_some();
        match fault {
            Fault::Kill => {
                if self.processes[index].is_up {
                    self.outcome.kills += 1;
                    self.kill(index);
                    let wait = if is_single { self.profile.end } else { length };
                    self.after(wait, Event::Start { process: index as u8 });
                }
            }
            Fault::CleanStop => {
                let process = &mut self.processes[index];
                if process.is_up && !process.is_stopping {
                    self.outcome.clean_stops += 1;
                    process.is_stopping = true;
                    process.executions.clear();
                    self.mail(index, 0, Mail::Coordinator(Input::Stop));
                }
            }
            Fault::Pause => {
                self.outcome.pauses += 1;
                let length = if is_single { 100 * SECOND } else { length };
                let process = &mut self.processes[index];
                process.lease_frozen_until = process.lease_frozen_until.max(now + length);
                process.runtime_frozen_until = process.runtime_frozen_until.max(now + length);
            }
            Fault::FreezeLease => {
                self.outcome.lease_freezes += 1;
                let process = &mut self.processes[index];
                process.lease_frozen_until = process.lease_frozen_until.max(now + length);
            }
            Fault::FreezeRuntime => {
                self.outcome.runtime_freezes += 1;
                let process = &mut self.processes[index];
                process.runtime_frozen_until = process.runtime_frozen_until.max(now + length);
            }
            Fault::Reset => {
                self.outcome.resets += 1;
                self.break_connections(Some(index));
            }
            Fault::HalfOpen => {
                self.outcome.half_opens += 1;
                let process = &mut self.processes[index];
                process.cut_until = process.cut_until.max(now + length);
            }
            Fault::Slow => {
                self.outcome.slow_links += 1;
                let by = *self.rng.pick(&[SECOND / 5, SECOND, 3 * SECOND, 25 * SECOND]);
                let process = &mut self.processes[index];
                process.slow_by = by;
                process.slow_until = now + length;
            }
            Fault::PoolBlocked => {
                self.outcome.pools_blocked += 1;
                let process = &mut self.processes[index];
                process.pool_blocked_until = process.pool_blocked_until.max(now + length);
            }
            Fault::DatabaseRestart => {
                self.outcome.database_restarts += 1;
                self.crash();
                self.go_down(300 * MS + self.rng.clone().below(3 * SECOND), false);
            }
            Fault::Outage => {
                self.outcome.outages += 1;
                let is_silent = self.rng.chance(1, 2);
                if !is_silent {
                    self.crash();
                }
                self.go_down(length, is_silent);
            }
            Fault::Failover => {
                // From here on the stand-by gets nothing.
                self.set_clock();
                self.faults.replica = Some((self.database.clone(), self.judge.ghost.clone()));
                let most = *self.rng.pick(&[SECOND, 5 * SECOND, 25 * SECOND]);
                let lag = self.rng.below(most);
                self.after(lag, Event::Replica);
            }
            Fault::ClockStep => {
                self.outcome.clock_steps += 1;
                let lease_us = self.profile.times.lease.as_micros() as i64;
                let by = self.rng.below(3 * lease_us as u64) as i64;
                let by = if self.rng.chance(1, 2) { by } else { -by.min(20_000_000) };
                self.faults.database_step_us += by;
                self.judge.trouble(self.now, &self.profile);
            }
            Fault::WallStep => {
                let by = self.rng.below(200_000) as i64 - 100_000;
                self.processes[index].wall_step_ms += by;
            }
            Fault::RowLocked => {
                if let Some(id) = self.processes[index].me {
                    let wait = self.rng.below(4 * SECOND);
                    self.lock_foreign(id.0, wait);
                }
            }
        }
    }

    fn go_down(&mut self, length: u64, is_silent: bool) {
        let until = self.now + length;
        if until > self.faults.down_until {
            self.faults.down_until = until;
            self.faults.is_silent = is_silent;
            self.at(until, Event::DatabaseUp);
        }
    }

    pub(super) fn database_up(&mut self) {
        if !self.faults.is_down(self.now) {
            say!(self, "the database is up");
        }
    }

    fn crash(&mut self) {
        self.break_connections(None);
        self.unlock_all_foreign();
        self.database.crash();
    }

    /// The stand-by is promoted as it was when it began to fall behind.
    pub(super) fn copy_replica(&mut self) {
        let Some((replica, ghost)) = self.faults.replica.take() else { return };
        self.outcome.failovers += 1;
        self.faults.timeline += 1;
        say!(self, "failover to timeline {}", self.faults.timeline);
        self.crash();
        let (skipped, rechecked) = (self.database.skipped, self.database.rechecked);
        self.set_clock();
        self.database = replica.promoted(self.database.now_us, self.faults.timeline);
        (self.database.skipped, self.database.rechecked) = (skipped, rechecked);
        self.judge.ghost = ghost;
        self.judge.trouble(self.now, &self.profile);
        self.go_down(SECOND, false);
    }
}
