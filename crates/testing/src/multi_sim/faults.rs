//! What goes wrong, and the quiet phase behind it.

use super::NOT_SIMULATED;
use super::clients::DRAINING_CLIENTS;
use super::owner::CrashPoint;
use super::process::Pid;
use super::shape::{FAULTS, Fault};
use super::world::{Checked, Step, World};
use crate::disk::DiskFaults;
use crate::sim::profile::{MS, SECOND};
use supervisor::Role;
use supervisor::rules::Condition;
use tubes_core::journal::Replay;

/// How slow links become at most, in ns.
const SLOW_LINKS_NS_MAX: u64 = 4 * SECOND;

impl World {
    fn some_owner(&mut self) -> Option<Pid> {
        let all: Vec<Pid> = self.owners.iter().flatten().map(|owner| owner.process.pid).collect();
        (!all.is_empty()).then(|| *self.rng.pick(&all))
    }

    fn some_frontend(&mut self) -> Option<Pid> {
        let all: Vec<Pid> = self.frontends.iter().flatten().map(|frontend| frontend.process.pid).collect();
        (!all.is_empty()).then(|| *self.rng.pick(&all))
    }

    pub(super) fn fault(&mut self) -> Checked {
        if !self.is_chaos {
            return Ok(());
        }
        let fault = FAULTS[self.rng.weighted(&self.shape.fault_weights)];
        let gap_ns = self.shape.fault_gap_ns;
        let ns = self.rng.between(1, 2 * gap_ns);
        self.after(ns, Step::Fault);
        // Without a process started once nothing is learnt.
        if self.outcome.servings == 0 {
            return Ok(());
        }
        self.note(fault as u64);
        self.tell(|| format!("fault {fault:?}"));
        let slot = self.rng.index(self.slots.len());
        let has_log = self.shape.sync.is_some();
        match fault {
            Fault::KillOwner => {
                // One that is starting may be hit too.
                let starting = self.starting.values().map(|process| process.pid);
                let starting: Vec<Pid> = starting.filter(|pid| pid.who.role == Role::Owner).collect();
                let pid = starting.first().copied().or_else(|| self.some_owner());
                if let Some(pid) = pid {
                    self.outcome.owner_kills += 1;
                    self.kill(pid)?;
                }
            }
            Fault::KillFrontend => {
                if let Some(pid) = self.some_frontend() {
                    self.outcome.frontend_kills += 1;
                    self.kill(pid)?;
                }
            }
            Fault::CrashOwner => {
                let points = [CrashPoint::Appended, CrashPoint::Written, CrashPoint::Syncing, CrashPoint::HalfSent];
                let point = *self.rng.pick(&points);
                if let Some(owner) = self.owners[slot].as_mut() {
                    owner.crash_at = Some(point);
                }
            }
            Fault::KillSupervisor => return self.kill_supervisor(),
            Fault::PowerLoss => return self.power_loss(),
            Fault::DiskStop if has_log => {
                let ahead = self.rng.between(1, 12);
                let with_power = self.rng.chance(1, 3);
                let slot = &mut self.slots[slot];
                slot.stop_with_power = with_power;
                slot.disk.stop_at_call(slot.disk.calls() + ahead);
            }
            Fault::PauseOwner | Fault::PauseFrontend => {
                let pid = if fault == Fault::PauseOwner { self.some_owner() } else { self.some_frontend() };
                let ns = if self.rng.chance(1, 4) { self.rng.below(20 * SECOND) } else { self.rng.below(3 * SECOND) };
                let until_ns = self.now_ns + ns;
                if let Some(process) = pid.and_then(|pid| self.process(pid)) {
                    process.free_at_ns = process.free_at_ns.max(until_ns);
                    self.outcome.pauses += 1;
                    let pid = pid.expect("it has a process");
                    self.resume_later(pid, until_ns);
                }
            }
            Fault::PauseSupervisor => {
                let until_ns = self.now_ns + self.rng.below(5 * SECOND);
                if let Some(supervisor) = &mut self.supervisor {
                    supervisor.free_at_ns = supervisor.free_at_ns.max(until_ns);
                    self.outcome.pauses += 1;
                }
            }
            Fault::LoseLink | Fault::HalfLink => {
                let open = self.network.open();
                if open.is_empty() {
                    return Ok(());
                }
                let pipe = *self.rng.pick(&open);
                if fault == Fault::LoseLink {
                    let keeps = self.rng.chance(1, 2);
                    self.network.cut(pipe, keeps);
                    self.outcome.links_lost += 1;
                    self.pipe_ends(pipe, Role::Owner);
                    self.pipe_ends(pipe, Role::Frontend);
                } else {
                    let towards = if self.rng.chance(1, 2) { Role::Owner } else { Role::Frontend };
                    self.network.shut_down(pipe, towards);
                    self.outcome.links_half_lost += 1;
                    self.pipe_ends(pipe, towards);
                }
            }
            Fault::Clog => {
                self.network.clogged = Some(*self.rng.pick(&[0, 1, 50, 500]));
                self.outcome.links_clogged += 1;
                let ns = self.rng.below(gap_ns);
                self.after(ns, Step::FaultEnd { fault, slot });
            }
            // Slower than that, what was sent before the last fault would still be on its way when all must be done.
            Fault::SlowLinks if self.shape.link_ns <= SLOW_LINKS_NS_MAX / 4 => {
                self.shape.link_ns *= 4;
                self.after(gap_ns, Step::FaultEnd { fault, slot });
            }
            Fault::SlowLinks => {}
            Fault::WallStep => {
                let hours = i64::try_from(self.rng.below(49)).expect("small") - 24;
                self.wall_step_ms += hours * 1_799_321;
            }
            Fault::NoSpace if has_log => {
                let state = &mut self.slots[slot];
                state.has_space = false;
                state.disk.set_capacity(state.disk.used());
                let ns = self.rng.below(gap_ns * 4);
                self.after(ns, Step::FaultEnd { fault, slot });
            }
            Fault::WriteError if has_log => {
                self.disk_fails(slot, fault, |faults| faults.write_errors_per_million = 300_000)
            }
            Fault::SyncError if has_log => {
                self.disk_fails(slot, fault, |faults| faults.sync_errors_per_million = 300_000)
            }
            Fault::SlowDisk => {
                self.slots[slot].is_slow = true;
                self.after(gap_ns, Step::FaultEnd { fault, slot });
            }
            Fault::Stop => return self.orderly_stop(),
            Fault::Drain => {
                self.begin_drain()?;
                // A drained server takes no job until it is started again.
                let ns = self.rng.below(4 * gap_ns);
                self.after(ns, Step::FaultEnd { fault, slot });
            }
            Fault::DiskStop | Fault::NoSpace | Fault::WriteError | Fault::SyncError => {}
        }
        Ok(())
    }

    fn disk_fails(&mut self, at: usize, fault: Fault, change: impl FnOnce(&mut DiskFaults)) {
        let slot = &mut self.slots[at];
        change(&mut slot.faults);
        slot.may_have_failed = true;
        slot.disk.set_faults(slot.faults);
        self.after(self.shape.fault_gap_ns, Step::FaultEnd { fault, slot: at });
    }

    /// A process that was stopped goes on.
    fn resume_later(&mut self, pid: Pid, until_ns: u64) {
        let at = usize::from(pid.who.slot);
        match pid.who.role {
            Role::Owner => {
                if let Some(mut owner) = self.owners[at].take_if(|owner| owner.process.pid == pid) {
                    self.wake_process(&mut owner.process, until_ns);
                    self.owners[at] = Some(owner);
                }
            }
            Role::Frontend => {
                if let Some(mut frontend) = self.frontends[at].take_if(|open| open.process.pid == pid) {
                    self.wake_process(&mut frontend.process, until_ns);
                    self.frontends[at] = Some(frontend);
                }
            }
            Role::Tubes | Role::Daemon => unreachable!("{NOT_SIMULATED}"),
        }
    }

    pub(super) fn fault_ends(&mut self, fault: Fault, slot: usize) {
        let now_ns = self.now_ns;
        let state = &mut self.slots[slot];
        match fault {
            Fault::NoSpace => {
                state.has_space = true;
                state.space_since_ns = now_ns;
                state.disk.set_capacity(u64::MAX);
            }
            Fault::WriteError => state.faults.write_errors_per_million = 0,
            Fault::SyncError => state.faults.sync_errors_per_million = 0,
            Fault::SlowDisk => state.is_slow = false,
            Fault::Clog => {
                self.network.clogged = None;
                self.wake_all();
            }
            Fault::SlowLinks => self.shape.link_ns = (self.shape.link_ns / 4).max(1),
            Fault::Drain if self.page.is_draining && self.is_chaos => {
                let stopped = self.orderly_stop();
                assert!(stopped.is_ok(), "a stop is only an input");
            }
            _ => {}
        }
        let state = &mut self.slots[slot];
        state.disk.set_faults(state.faults);
    }

    fn wake_all(&mut self) {
        let owners = self.owners.iter().flatten().map(|owner| owner.process.pid);
        let frontends = self.frontends.iter().flatten().map(|frontend| frontend.process.pid);
        let all: Vec<Pid> = owners.chain(frontends).collect();
        for pid in all {
            self.resume_later(pid, self.now_ns);
        }
    }

    /// How long after the last fault everything due must be done.
    fn calm_ns(&self) -> u64 {
        (2 * self.profile.seconds_max + 5) * SECOND + Self::UP_NS + self.shape.owner_wait_ns
    }

    /// From here on nothing goes wrong any more, and everything due must be done in time.
    pub(super) fn end_of_faults(&mut self) -> Checked {
        self.tell(|| "the faults end".to_owned());
        self.is_chaos = false;
        self.shape.link_ns = self.shape.link_ns.min(40 * MS);
        for slot in 0..self.slots.len() {
            for fault in [Fault::NoSpace, Fault::WriteError, Fault::SyncError, Fault::SlowDisk, Fault::Clog] {
                self.fault_ends(fault, slot);
            }
            // A call at which the disk was to stop is still ahead: not any more.
            self.slots[slot].disk.stop_at_call(u64::MAX);
            if let Some(owner) = &mut self.owners[slot] {
                owner.crash_at = None;
            }
        }
        let now_ns = self.now_ns;
        for process in self.starting.values_mut() {
            process.free_at_ns = now_ns;
        }
        for owner in self.owners.iter_mut().flatten() {
            owner.process.free_at_ns = now_ns;
        }
        for frontend in self.frontends.iter_mut().flatten() {
            frontend.process.free_at_ns = now_ns;
        }
        if let Some(supervisor) = &mut self.supervisor {
            supervisor.free_at_ns = now_ns;
        }
        let starting: Vec<Pid> = self.starting.values().map(|process| process.pid).collect();
        for pid in starting {
            self.after(self.shape.start_ns, Step::Started { pid });
        }
        self.wake_all();
        if self.page.is_draining || self.rng.chance(1, 4) {
            self.kill_supervisor()?;
        }
        for client in 0..self.clients.len() {
            self.begin_to_drain(client);
        }

        self.after(MS, Step::Operator);
        self.after(self.calm_ns(), Step::End);
        Ok(())
    }

    /// Everything must be up, quiet and empty.
    pub(super) fn end(&mut self) -> Checked {
        self.is_over = true;
        let Some(supervisor) = &self.supervisor else { return Err("the server did not come back".to_owned()) };
        if !supervisor.rules.is_serving() {
            return Err("the server does not serve".to_owned());
        }
        if let Some(slot) = supervisor.rules.slots().find(|slot| slot.condition != Condition::Ready) {
            return Err(format!("{} is {:?}", slot.place, slot.condition));
        }
        for frontend in self.frontends.iter().flatten() {
            for owner in self.owners.iter().flatten() {
                let here = frontend.links[usize::from(owner.instance().slot)].as_ref();
                let there = owner.links[usize::from(frontend.instance().slot)].as_ref();
                let is_up = here.zip(there).is_some_and(|(here, there)| here.pipe == there.pipe);
                if !is_up || !frontend.router.is_up(owner.instance().slot) {
                    return Err(format!("{} and {} have no link", frontend.instance(), owner.instance()));
                }
            }
            if frontend.backlog() > 0 && frontend.process.turn_at_ns.is_none() {
                return Err(format!("{} has {} bytes that do not leave", frontend.instance(), frontend.backlog()));
            }
        }
        let boot_ns = self.moment().boot_ns;
        for owner in self.owners.iter().flatten() {
            let who = owner.instance();
            owner.engine.check_invariants();
            if let Some((id, job)) = owner.judge.model.jobs().iter().next() {
                return Err(format!("job {id} of {who} is still there after the last fault: {job:?}"));
            }
            if owner.engine.live_jobs() != 0 || owner.judge.offer_count() != 0 {
                return Err(format!("{who} has jobs or offers that the rules do not know"));
            }
            if owner.judge.next_due().is_some_and(|due_ns| due_ns < boot_ns) {
                return Err(format!("{who} has something due in the past"));
            }
            if owner.backlog() > 0 && owner.process.turn_at_ns.is_none() && owner.job.is_none() {
                return Err(format!("{who} has {} bytes that do not leave", owner.backlog()));
            }
            let known: usize =
                self.frontends.iter().flatten().map(|open| open.connections.iter().flatten().count()).sum();
            if owner.host.session_count() > known + self.clients.len() {
                return Err(format!("{who} has {} sessions of {known} clients", owner.host.session_count()));
            }
        }
        for (number, client) in self.clients.iter().enumerate().take(DRAINING_CLIENTS) {
            let silent_ns = self.now_ns - client.heard_ns;
            if silent_ns > 4 * SECOND + self.shape.owner_wait_ns {
                return Err(format!("client {number} has heard nothing for {silent_ns} ns"));
            }
        }
        Ok(())
    }
}
