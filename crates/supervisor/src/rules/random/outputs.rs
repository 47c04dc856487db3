//! What the supervisor puts out: it is checked against what the world knows, and carried out.

use super::*;

impl World {
    pub(super) fn put(&mut self, input: Input) {
        let mut out = Vec::new();
        self.rules.handle(self.now_ns, input, &mut out);
        self.carry_out(out);
        self.tick_version += 1;
        if let Some(due_ns) = self.rules.next_deadline() {
            let version = self.tick_version;
            self.at(due_ns.max(self.now_ns), Event::Tick(version));
        }
    }

    pub(super) fn carry_out(&mut self, outputs: Vec<Output>) {
        let mut inputs = VecDeque::new();
        for output in self.falsify(outputs) {
            assert!(self.outcome.is_none(), "an output after the last");
            match output {
                Output::Spawn { place, drained } => inputs.push_back(self.spawn(place, drained)),
                Output::Tell { who, what } => self.tell(who, what),
                Output::Link { owner, frontend, number } => self.link(owner, frontend, number),
                Output::Kill { who } => {
                    assert_eq!(self.current.get(&who.place()), Some(&who), "a kill of nobody");
                    let delay_ns = self.rng.below(50 * MS);
                    let process = self.processes.get_mut(&who).expect("it is current");
                    process.was_killed = true;
                    if !process.is_stuck {
                        self.at(self.now_ns + delay_ns, Event::Reaped(who));
                    }
                }
                Output::RaiseIdCount { at_least } => assert!(at_least > 0),
                Output::SetDraining => assert!(self.has_drain, "nobody asked for a drain"),
                Output::Serving => {
                    assert!(!self.has_served, "it served before");
                    self.has_served = true;
                }
                Output::CloseListeners => {}
                Output::FeedWatchdog => {
                    for who in self.current.values() {
                        let process = &self.processes[who];
                        let is_old = |since_ns: u64| self.now_ns - since_ns > 4 * S;
                        let is_silent = process.pings.front().is_some_and(|(_, sent_ns)| is_old(*sent_ns))
                            && is_old(process.heard_ns);
                        assert!(!is_silent || self.suspended_until_ns > 0, "all is well although {who} is silent");
                    }
                }
                Output::Report(report) => self.check_report(&report),
                Output::Finish(outcome) => {
                    if let Outcome::SlotFailed { place, .. } = outcome {
                        assert!(self.ends_server(place.role), "the server ends because of {place}");
                    }
                    self.outcome = Some(outcome);
                }
            }
        }
        while let Some(input) = inputs.pop_front() {
            if let Input::NotSpawned { place, .. } = &input {
                self.note_failure(*place, None);
            }
            self.put(input);
        }
    }

    pub(super) fn falsify(&mut self, outputs: Vec<Output>) -> Vec<Output> {
        let mut falsified = Vec::new();
        for output in outputs {
            match (self.plant, &output) {
                (Plant::SpawnsWhileKilling, Output::Kill { who }) if self.has_served => {
                    let place = who.place();
                    falsified.push(output);
                    falsified.push(Output::Spawn { place, drained: self.has_drain });
                }
                (Plant::GoesEarly, Output::Link { frontend, .. }) if !self.has_served => {
                    let who = *frontend;
                    falsified.push(output);
                    falsified.push(Output::Tell { who, what: Instruction::Go });
                }
                (Plant::ForgetsDrain, Output::Spawn { place, .. }) => {
                    falsified.push(Output::Spawn { place: *place, drained: false });
                }
                (Plant::ReportsDrainEarly, Output::SetDraining) => {
                    falsified.push(output);
                    falsified.push(Output::Report(Report::Drained));
                }
                (Plant::ForgetsBrokenLinks, Output::Link { owner, frontend, .. })
                    if self.processes[owner].links.contains_key(frontend) => {}
                (Plant::RelinksAtOnce, Output::Report(Report::LinkBroken { owner, frontend, .. })) => {
                    let number = self.processes[owner].links[frontend] + 1_000_000;
                    falsified.push(Output::Link { owner: *owner, frontend: *frontend, number });
                }
                (Plant::SkipsLinks, Output::Link { .. }) if self.has_served => {}
                (Plant::SkipsPeerGone, Output::Tell { what: Instruction::PeerGone(_), .. }) => {}
                (Plant::RestartsFailedSlots, Output::Report(Report::SlotFailed { place, .. })) => {
                    let place = *place;
                    falsified.push(output);
                    falsified.push(Output::Spawn { place, drained: self.has_drain });
                }
                (Plant::DrainsDaemons, Output::SetDraining) => {
                    falsified.push(output);
                    let daemons = self.current.values().filter(|who| who.role == Role::Daemon);
                    falsified.extend(daemons.map(|who| Output::Tell { who: *who, what: Instruction::Drain }));
                }
                (Plant::StopsWithTheDaemon, Output::Report(Report::SlotFailed { place, failure }))
                    if place.role == Role::Daemon =>
                {
                    let finish = Outcome::SlotFailed { place: *place, failure: failure.clone() };
                    falsified.push(output);
                    falsified.push(Output::Finish(finish));
                }
                (Plant::RestartsAtOnce, Output::Report(Report::Restarting { place, .. })) => {
                    falsified.push(Output::Spawn { place: *place, drained: self.has_drain });
                }
                (Plant::KillsHealthy, Output::Tell { who, what: Instruction::Ping { nonce: 3 } }) => {
                    let who = *who;
                    falsified.push(Output::Report(Report::Killed { who, why: KillReason::Frozen }));
                    falsified.push(Output::Kill { who });
                }
                (Plant::NeverKills, Output::Kill { .. }) => {}
                (Plant::StopsOwnersFirst, Output::Tell { who, what: Instruction::Barrier { within_ms } }) => {
                    let within_ms = *within_ms;
                    falsified.push(Output::Tell { who: *who, what: Instruction::Barrier { within_ms } });
                    let owners = self.current.values().filter(|who| who.role == Role::Owner);
                    let stop = Instruction::Stop { within_ms };
                    falsified.extend(owners.map(|owner| Output::Tell { who: *owner, what: stop }));
                }
                (Plant::RestartsWhileStopping, Output::CloseListeners) => {
                    falsified.push(output);
                    let idle = self.config.topology.slots();
                    let idle: Vec<Slot> = idle.filter(|place| !self.current.contains_key(place)).collect();
                    falsified.extend(idle.into_iter().map(|place| Output::Spawn { place, drained: self.has_drain }));
                }
                _ => falsified.push(output),
            }
        }
        falsified
    }

    pub(super) fn spawn(&mut self, place: Slot, drained: bool) -> Input {
        assert!(!self.current.contains_key(&place), "two processes of {place}");
        assert!(!self.rules.is_stopping() || self.stop_ns.is_none(), "{place} is started during the stop");
        assert_eq!(drained, self.has_drain, "{place} is not started as the drain demands");
        self.check_restart(place);
        if self.has_faults() && self.rng.chance(self.faults.bad_spawn) {
            return Input::NotSpawned { place, reason: "no memory".into() };
        }
        let generation = self.generations.entry(place).or_insert(0);
        *generation += 1 + (self.now_ns % 3) as u32;
        let who = Instance { role: place.role, slot: place.slot, generation: *generation };
        let start_ns = if self.has_faults() && self.rng.chance(self.faults.slow) {
            self.rng.below(90 * S)
        } else {
            self.rng.below(2 * S)
        };
        let is_stuck = self.has_faults() && self.rng.chance(self.faults.stuck);
        let process = Process {
            is_alive: true,
            has_said_ready: false,
            accepts_jobs: !drained,
            inbox: VecDeque::new(),
            frozen_until_ns: 0,
            syncs_until_ns: 0,
            last_said_ns: 0,
            links: BTreeMap::new(),
            gone: false,
            is_stubborn: self.rng.chance(self.faults.stubborn),
            is_stuck,
            was_killed: false,
            has_go: false,
            pings: VecDeque::new(),
            heard_ns: 0,
        };
        self.processes.insert(who, process);
        self.current.insert(place, who);
        self.at(self.now_ns + start_ns, Event::StartDone(who));
        if self.has_faults() {
            // At the first start faults are rare, or nothing else would ever be seen.
            let is_rare = !self.has_served && !self.rng.chance(5);
            if !is_rare && self.rng.chance(self.faults.crash) {
                let at_ns = self.now_ns + self.rng.below(20 * S);
                self.at(at_ns, Event::Crash(who));
            }
            if self.rng.chance(self.faults.unlink) {
                for _ in 0..4 {
                    let at_ns = self.now_ns + self.rng.below(30 * S);
                    self.at(at_ns, Event::BreakLink(who));
                }
            }
            let base_ns = self.now_ns;
            for _ in 0..2 {
                if self.rng.chance(self.faults.freeze) {
                    let length_ns = if self.rng.chance(50) { self.rng.below(9 * S) } else { self.rng.below(60 * S) };
                    let at_ns = base_ns + self.rng.below(60 * S);
                    self.at(at_ns, Event::Freeze(who, length_ns));
                }
            }
            if self.rng.chance(self.faults.freeze) {
                let process = self.processes.get_mut(&who).expect("inserted above");
                process.syncs_until_ns = base_ns + self.rng.below(100 * S);
            }
        }
        Input::Spawned { place, generation: who.generation }
    }

    /// A restart keeps to the policy, seen from outside.
    pub(super) fn check_restart(&mut self, place: Slot) {
        let crashes = self.crashes.entry(place).or_default();
        let Some(last_ns) = crashes.last().copied() else {
            assert!(self.now_ns == 0, "{place} is started for the first time only at the beginning");
            return;
        };
        assert!(self.has_served, "{place} is tried again at the first start");
        if self.asked.remove(&place) {
            assert!(self.failed.remove(&place));
            crashes.clear();
            return;
        }
        assert!(!self.failed.contains(&place), "{place} has failed, and nobody asked for it");
        let recent = crashes.iter().filter(|crash_ns| last_ns - **crash_ns < 30 * S).count();
        assert!(recent <= self.config.restart.limit as usize, "{place} was restarted {recent} times within 30 s");
        assert!(self.now_ns - last_ns >= 80 * MS, "{place} was restarted at once");
        let is_in_time = self.now_ns - last_ns <= 6 * S || self.now_ns <= self.suspended_until_ns + S;
        assert!(is_in_time, "{place} was restarted too late");
    }

    pub(super) fn tell(&mut self, who: Instance, what: Instruction) {
        let frontends_gone = !self.current.values().any(|who| who.role == Role::Frontend);
        assert_eq!(self.current.get(&who.place()), Some(&who), "{what:?} is told to a process that has ended");
        let ready_peers: Vec<Instance> = self
            .current
            .values()
            .filter(|peer| peer.role == Role::Owner && self.is_linked_side(**peer))
            .copied()
            .collect();
        let process = self.processes.get_mut(&who).expect("it is current");
        match what {
            Instruction::Go => {
                assert!(who.role.accepts());
                assert!(!process.has_go, "{who} goes twice");
                process.has_go = true;
                let peers = ready_peers.iter().filter(|peer| Some(peer.role) == who.role.peer());
                for peer in peers {
                    assert!(process.links.contains_key(peer), "{who} goes without a link to {peer}");
                }
                if !self.has_served {
                    let all = self.config.topology.len();
                    let ready = self.current.values().filter(|who| self.processes[who].has_said_ready).count();
                    assert_eq!(ready, all, "{who} goes before every slot is ready");
                }
            }
            Instruction::PeerGone(peer) => {
                assert!(process.links.remove(&peer).is_some(), "{who} is told of {peer}, to which it has no link");
                assert_ne!(self.current.get(&peer.place()), Some(&peer), "{peer} is said to be gone and is not");
            }
            Instruction::Ping { nonce } => {
                assert!(process.has_said_ready, "a ping to {who}, which is not ready");
                process.pings.push_back((nonce, self.now_ns));
            }
            Instruction::Drain => {
                assert!(self.has_drain, "nobody asked for a drain");
                assert_ne!(who.role, Role::Daemon, "the daemon has nothing to drain");
            }
            Instruction::Barrier { .. } => {
                assert_eq!(who.role, Role::Frontend);
            }
            Instruction::Stop { .. } => {
                assert_ne!(who.role, Role::Frontend);
                assert!(who.role != Role::Owner || frontends_gone, "{who} is stopped before the frontends");
            }
        }
        self.processes.get_mut(&who).expect("it is current").inbox.push_back(what);
        let delay_ns = self.rng.below(MS);
        self.at(self.now_ns + delay_ns, Event::Wake(who));
    }

    /// Whether the supervisor has heard that it is ready, and does not kill it.
    pub(super) fn is_linked_side(&self, who: Instance) -> bool {
        let index = self.rules.slots().find(|slot| slot.place == who.place()).expect("a slot");
        index.condition == Condition::Ready && index.generation == who.generation
    }

    pub(super) fn link(&mut self, owner: Instance, frontend: Instance, number: u64) {
        for (who, peer) in [(owner, frontend), (frontend, owner)] {
            assert_eq!(self.current.get(&who.place()), Some(&who), "a link to {who}, which has ended");
            let process = self.processes.get_mut(&who).expect("it is current");
            assert!(process.has_said_ready, "a link to {who}, which is not ready");
            for (old, old_number) in process.links.iter().filter(|(old, _)| old.place() == peer.place()) {
                assert_eq!(*old, peer, "{who} still has a link to {old}");
                let Some(since_ns) = self.broken.get(old_number) else {
                    panic!("{who} has a link to {peer} already");
                };
                assert!(self.now_ns - since_ns >= 80 * MS, "a broken link was replaced at once");
            }
            process.links.insert(peer, number);
        }
    }

    pub(super) fn check_report(&mut self, report: &Report) {
        match report {
            Report::SlotFailed { place, failure } => {
                assert!(self.has_served);
                let is_final = matches!(failure.ending, Some(Ending::Code(code)) if FINAL_CODES.contains(&code))
                    && !matches!(self.last_ending.get(place), Some((Ending::Code(10), true)));
                let crashes = &self.crashes[place];
                let recent = crashes.iter().filter(|crash_ns| self.now_ns - **crash_ns < 30 * S).count();
                let is_over = recent > self.config.restart.limit as usize;
                assert!(is_final || is_over, "{place} has failed after {recent} crashes");
                self.failed.insert(*place);
                if self.ends_server(place.role) {
                    self.stop_ns.get_or_insert(self.now_ns);
                }
            }
            Report::Restarting { place, .. } => {
                let ending = self.last_ending.get(place);
                let is_final = matches!(ending, Some((Ending::Code(code), written))
                    if FINAL_CODES.contains(code) && !(*code == 10 && *written && place.role.has_jobs()));
                assert!(!is_final, "{place} is tried again after {ending:?}");
            }
            Report::Drained => {
                assert!(self.has_drain, "nobody asked for a drain");
                for who in self.current.values().filter(|who| who.role != Role::Daemon) {
                    assert!(!self.processes[who].accepts_jobs, "drained, but {who} accepts jobs");
                }
                self.is_drained = true;
            }
            Report::Killed { who, why: KillReason::Frozen } => {
                let process = &self.processes[who];
                let since_ns = process.pings.front().map_or(self.now_ns, |(_, sent_ns)| *sent_ns);
                assert!(self.now_ns - since_ns >= 10 * S, "{who} was killed although it answered lately");
                assert!(
                    process.is_stuck || process.frozen_until_ns + S > since_ns || process.gone,
                    "{who} was healthy"
                );
            }
            Report::Killed { who, why: KillReason::Misbehaved } => panic!("{who} did not misbehave"),
            _ => {}
        }
    }
}
