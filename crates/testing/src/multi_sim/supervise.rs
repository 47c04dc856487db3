//! The supervisor: its decisions are the product's, what it does to processes is done here.

use std::collections::BTreeMap;

use supervisor::rules::{Config, Input, Output, Report, Rules};
use supervisor::{Ending, FromChild, Instance, Role, Topology};

use super::NOT_SIMULATED;
use super::planted::{self, Bug};
use super::process::{Control, Heard, Pid, Process};
use super::world::{Checked, Page, Step, World};
use crate::sim::profile::{MS, SECOND};

/// A running supervisor.
pub(super) struct Supervisor {
    pub(super) rules: Rules,
    tick_version: u64,
    /// Of processes whose generations need not outlive it.
    generations: BTreeMap<(Role, u16), u32>,
    /// Before, it cannot run.
    pub(super) free_at_ns: u64,
    /// It has reported that no process accepts a new job.
    pub(super) is_drained: bool,
}

impl World {
    /// The operator, or the service manager, starts the server.
    pub(super) fn start_server(&mut self) -> Checked {
        if self.supervisor.is_some() {
            return Ok(());
        }
        self.life += 1;
        self.outcome.starts += 1;
        self.tell(|| "the server starts".to_owned());
        let first = self.map.single_ids_below().div_ceil(64).max(1);
        self.page = Page { id_count: first, tube_number: 0, is_draining: false };
        self.ids_of_life.clear();
        if self.shape.sync.is_none() {
            // All jobs are gone, and ids begin anew.
            self.ids_given.clear();
        }
        let config = Config {
            topology: Topology::several(self.shape.owners, self.shape.frontends),
            restart: self.shape.restart,
            on_slot_failed: self.shape.on_slot_failed,
        };
        self.supervisor = Some(Supervisor {
            rules: Rules::new(config, self.rng.next_u64()),
            tick_version: 0,
            generations: BTreeMap::new(),
            free_at_ns: self.now_ns,
            is_drained: false,
        });
        self.supervise(Input::Begin)
    }

    /// Hands the rules an input and does what they say.
    pub(super) fn supervise(&mut self, input: Input) -> Checked {
        let mut inputs = std::collections::VecDeque::from([input]);
        let now_ns = self.moment().boot_ns;
        while let Some(input) = inputs.pop_front() {
            let Some(supervisor) = &mut self.supervisor else { return Ok(()) };
            let mut outputs = Vec::new();
            supervisor.rules.handle(now_ns, input, &mut outputs);
            self.carry_out(outputs, &mut inputs)?;
        }
        let Some(supervisor) = &mut self.supervisor else { return Ok(()) };
        supervisor.tick_version += 1;
        let version = supervisor.tick_version;
        if let Some(due_ns) = supervisor.rules.next_deadline() {
            let (life, at_ns) = (self.life, self.world_ns(due_ns));
            self.at(at_ns, Step::SupervisorTick { life, version });
        }
        Ok(())
    }

    fn carry_out(&mut self, outputs: Vec<Output>, inputs: &mut std::collections::VecDeque<Input>) -> Checked {
        for output in outputs {
            match output {
                Output::Link { owner, .. } if owner.slot > 0 && planted::is(Bug::OneLinkOnly) => {}
                Output::RaiseIdCount { .. } if planted::is(Bug::IdsNotRaised) => {}
                Output::Spawn { place, drained } => inputs.push_back(self.spawn(place, drained)?),
                Output::Tell { who, what } => self.tell_process(who, Control::Say(what)),
                Output::Link { owner, frontend, number } => {
                    let pipe = self.network.pair(owner, frontend);
                    self.outcome.links += 1;
                    self.tell_process(owner, Control::Link { peer: frontend, pipe, number });
                    self.tell_process(frontend, Control::Link { peer: owner, pipe, number });
                    self.maybe_old_bytes(pipe, owner, frontend);
                }
                Output::Kill { who } => {
                    let ns = self.rng.below(20 * MS);
                    let pid = Pid { life: self.life, who };
                    self.after(ns, Step::Reap { pid });
                }
                Output::RaiseIdCount { at_least } => self.page.id_count = self.page.id_count.max(at_least),
                Output::SetDraining => self.page.is_draining = true,
                Output::Serving => self.outcome.servings += 1,
                Output::CloseListeners | Output::FeedWatchdog => {}
                Output::Report(report) => self.reported(&report),
                Output::Finish(outcome) => {
                    self.tell(|| format!("the server ends: {outcome:?}"));
                    self.supervisor = None;
                    let ns = self.rng.below(200 * MS);
                    self.end_all_processes(false)?;
                    self.after(ns, Step::StartServer);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn reported(&mut self, report: &Report) {
        self.tell(|| format!("reported: {report:?}"));
        match report {
            Report::Drained => {
                self.outcome.drains += 1;
                if let Some(supervisor) = &mut self.supervisor {
                    supervisor.is_drained = true;
                }
            }
            Report::SlotFailed { .. } => self.outcome.failed_slots += 1,
            Report::Killed { .. } => self.outcome.watchdog_kills += 1,
            Report::LinkBroken { .. } => self.outcome.relinks += 1,
            Report::Restarting { place, .. } => match place.role {
                Role::Owner => self.outcome.owner_restarts += 1,
                Role::Frontend => self.outcome.frontend_restarts += 1,
                Role::Tubes | Role::Daemon => unreachable!("{NOT_SIMULATED}"),
            },
            _ => {}
        }
    }

    fn spawn(&mut self, place: supervisor::Slot, drained: bool) -> Checked<Input> {
        let at = usize::from(place.slot);
        let is_taken = match place.role {
            Role::Owner => self.owners[at].is_some() || self.starting.contains_key(&place),
            Role::Frontend => self.frontends[at].is_some() || self.starting.contains_key(&place),
            Role::Tubes | Role::Daemon => unreachable!("{NOT_SIMULATED}"),
        };
        if is_taken {
            return Err(format!("a second process of {place} is started"));
        }
        let supervisor = self.supervisor.as_mut().expect("it spawns");
        let has_file = place.role == Role::Owner && self.shape.sync.is_some();
        let generation = if has_file {
            &mut self.slots[at].generation
        } else {
            supervisor.generations.entry((place.role, place.slot)).or_insert(0)
        };
        if self.is_chaos && self.rng.chance(1, 60) && self.outcome.servings > 0 {
            return Ok(Input::NotSpawned { place, reason: "no memory".to_owned() });
        }
        *generation += 1;
        let who = Instance { role: place.role, slot: place.slot, generation: *generation };
        let pid = Pid { life: self.life, who };
        let process = Process::new(pid, self.now_ns, drained);
        self.starting.insert(place, process);
        let ns = self.rng.below(self.shape.start_ns + 1);
        self.after(ns, Step::Started { pid });
        Ok(Input::Spawned { place, generation: who.generation })
    }

    /// A message on the control channel.
    fn tell_process(&mut self, who: Instance, control: Control) {
        let pid = Pid { life: self.life, who };
        let delay_ns = self.rng.below(self.shape.control_ns + 1);
        let now_ns = self.now_ns;
        let Some(process) = self.process(pid) else {
            // It has ended, and the supervisor does not know yet: the descriptor that was sent is closed.
            if let Control::Link { pipe, .. } = control {
                self.close_pipe(pipe, who.role);
            }
            return;
        };
        process.told_ns = (process.told_ns + 1).max(now_ns + delay_ns);
        let at_ns = process.told_ns;
        self.at(at_ns, Step::Told { pid, control });
    }

    /// Something that a process has said, or its end, is on its way to the supervisor.
    pub(super) fn report_to_supervisor(&mut self, process: &mut Process, heard: Heard) {
        let delay_ns = self.rng.below(self.shape.control_ns + 1);
        process.said_ns = (process.said_ns + 1).max(self.now_ns + delay_ns);
        self.at(process.said_ns, Step::Heard { life: process.pid.life, heard });
    }

    pub(super) fn send_reports(&mut self, process: &mut Process) {
        for report in std::mem::take(&mut process.says) {
            let by = process.pid.who;
            self.report_to_supervisor(process, Heard::Said { by, report });
        }
    }

    pub(super) fn heard(&mut self, life: u64, heard: Heard) -> Checked {
        let Some(supervisor) = &self.supervisor else { return Ok(()) };
        if life != self.life {
            return Ok(());
        }
        if supervisor.free_at_ns > self.now_ns {
            // It is stopped: what it has not read waits.
            let at_ns = supervisor.free_at_ns;
            self.at_in_order(at_ns, Step::Heard { life, heard });
            return Ok(());
        }
        let is_lost_link = matches!(heard, Heard::Said { report: FromChild::LinkLost { .. }, .. });
        if is_lost_link && planted::is(Bug::NotRelinked) {
            return Ok(());
        }
        self.supervise(match heard {
            Heard::Said { by, report } => Input::Said { by, report },
            Heard::Ended { who, how } => Input::Ended { who, how },
        })
    }

    pub(super) fn supervisor_tick(&mut self, life: u64, version: u64) -> Checked {
        let Some(supervisor) = &self.supervisor else { return Ok(()) };
        if life != self.life || version != supervisor.tick_version {
            return Ok(());
        }
        if supervisor.free_at_ns > self.now_ns {
            let at_ns = supervisor.free_at_ns;
            self.at_in_order(at_ns, Step::SupervisorTick { life, version });
            return Ok(());
        }
        self.supervise(Input::Tick)
    }

    /// The operator tries failed slots again.
    pub(super) fn restart_failed_slots(&mut self) -> Checked {
        let Some(supervisor) = &mut self.supervisor else { return Ok(()) };
        let failed: Vec<supervisor::Slot> = supervisor
            .rules
            .slots()
            .filter(|slot| slot.condition == supervisor::rules::Condition::Failed)
            .map(|slot| slot.place)
            .collect();
        for place in failed {
            let Some(supervisor) = &mut self.supervisor else { return Ok(()) };
            let mut outputs = Vec::new();
            if supervisor.rules.restart_slot(place, &mut outputs).is_ok() {
                self.outcome.slots_tried_again += 1;
                let mut inputs = std::collections::VecDeque::new();
                self.carry_out(outputs, &mut inputs)?;
                for input in inputs {
                    self.supervise(input)?;
                }
            }
        }
        Ok(())
    }

    /// A process finishes its start.
    pub(super) fn started(&mut self, pid: Pid) -> Checked {
        let place = pid.who.place();
        if self.starting.get(&place).is_none_or(|process| process.pid != pid) {
            return Ok(());
        }
        if self.starting[&place].free_at_ns > self.now_ns {
            let at_ns = self.starting[&place].free_at_ns;
            self.at(at_ns, Step::Started { pid });
            return Ok(());
        }
        let process = self.starting.remove(&place).expect("just seen");
        let at = usize::from(place.slot);
        match place.role {
            Role::Owner => {
                let control = process.control.clone();
                let (told_ns, said_ns) = (process.told_ns, process.said_ns);
                let drained = process.drained_start;
                match self.start_owner(process)? {
                    Ok(mut owner) => {
                        self.send_reports(&mut owner.process);
                        self.wake_process(&mut owner.process, self.now_ns);
                        self.owners[at] = Some(owner);
                    }
                    Err(code) => {
                        let mut process = Process::new(pid, self.now_ns, drained);
                        (process.control, process.told_ns, process.said_ns) = (control, told_ns, said_ns);
                        let power = code == -9 && self.slots[at].stop_with_power;
                        let how = if code == -9 { Ending::Signal(9) } else { Ending::Code(code) };
                        self.process_gone(process, how)?;
                        if power {
                            self.power_loss()?;
                        }
                    }
                }
            }
            Role::Frontend => {
                let mut frontend = self.start_frontend(process);
                self.send_reports(&mut frontend.process);
                self.wake_process(&mut frontend.process, self.now_ns);
                self.frontends[at] = Some(frontend);
            }
            Role::Tubes | Role::Daemon => unreachable!("{NOT_SIMULATED}"),
        }
        Ok(())
    }

    /// An instruction has reached a process.
    pub(super) fn told(&mut self, pid: Pid, control: Control) {
        let now_ns = self.now_ns;
        let at = usize::from(pid.who.slot);
        match pid.who.role {
            Role::Owner => {
                if let Some(mut owner) = self.owners[at].take_if(|owner| owner.process.pid == pid) {
                    owner.process.control.push_back(control);
                    self.wake_process(&mut owner.process, now_ns);
                    self.owners[at] = Some(owner);
                    return;
                }
            }
            Role::Frontend => {
                if let Some(mut frontend) = self.frontends[at].take_if(|frontend| frontend.process.pid == pid) {
                    frontend.process.control.push_back(control);
                    self.wake_process(&mut frontend.process, now_ns);
                    self.frontends[at] = Some(frontend);
                    return;
                }
            }
            Role::Tubes | Role::Daemon => unreachable!("{NOT_SIMULATED}"),
        }
        if let Some(process) = self.starting.get_mut(&pid.who.place()).filter(|process| process.pid == pid) {
            process.control.push_back(control);
        } else if let Control::Link { pipe, .. } = control {
            self.close_pipe(pipe, pid.who.role);
        }
    }

    /// The stop of the whole server, as the service manager asks for it.
    pub(super) fn orderly_stop(&mut self) -> Checked {
        self.supervise(Input::Stop)
    }

    pub(super) fn begin_drain(&mut self) -> Checked {
        self.supervise(Input::Drain)
    }

    /// The watchdog of the simulation itself: longest time until everything is up again, without faults.
    pub(super) const UP_NS: u64 = 8 * SECOND;
}
