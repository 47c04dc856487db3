//! What happens outside the supervisor: processes that start, speak, break and end.

use super::*;

impl World {
    pub(super) fn live(&mut self, event: Event) {
        self.trace = self.trace.rotate_left(5) ^ self.now_ns ^ format!("{event:?}").bytes().map(u64::from).sum::<u64>();
        match event {
            Event::Said(by, key) => {
                if key.0 == 1
                    && let Some(process) = self.processes.get_mut(&by)
                {
                    process.pings.retain(|(nonce, _)| *nonce > key.1);
                    process.heard_ns = self.now_ns;
                }
                if key.0 == 4 {
                    self.said_write.insert(by);
                }
                self.put(Input::Said { by, report: report(by, key) });
            }
            Event::Ended(who, (is_signal, number)) => {
                let how = if is_signal { Ending::Signal(number) } else { Ending::Code(number) };
                assert_eq!(self.current.remove(&who.place()), Some(who), "the end of a process that was not there");
                self.note_failure(who.place(), Some(how));
                self.put(Input::Ended { who, how });
            }
            Event::Drain => {
                self.has_drain |= self.stop_ns.is_none() && !self.rules.is_stopping();
                self.put(Input::Drain);
            }
            Event::Stop => {
                self.stop_ns.get_or_insert(self.now_ns);
                self.put(Input::Stop);
            }
            Event::Restart(place) => {
                let mut out = Vec::new();
                let is_failed = self.failed.contains(&place);
                let result = self.rules.restart_slot(place, &mut out);
                if self.rules.is_serving() {
                    assert_eq!(result.is_ok(), is_failed, "{place}: {result:?}");
                }
                if result.is_ok() {
                    self.asked.insert(place);
                }
                self.carry_out(out);
            }
            Event::Wake(who) => self.wake(who),
            Event::StartDone(who) => self.start_done(who),
            Event::Crash(who) => self.crash(who),
            Event::Freeze(who, length_ns) => {
                if let Some(process) = self.processes.get_mut(&who).filter(|process| !process.gone) {
                    process.frozen_until_ns = process.frozen_until_ns.max(self.now_ns + length_ns);
                    let at_ns = process.frozen_until_ns;
                    self.at(at_ns, Event::Wake(who));
                }
            }
            Event::BreakLink(who) => self.break_link(who),
            Event::SeesBrokenLink(who, peer, number) => self.sees_broken_link(who, peer, number),
            Event::Reaped(who) => self.ends(who, (true, 9)),
            Event::SuspendSupervisor(length_ns) => {
                // Not when the time of the stop is being measured.
                if self.stop_ns.is_none() && !self.rules.is_stopping() {
                    self.suspended_until_ns = self.suspended_until_ns.max(self.now_ns + length_ns);
                }
            }
            Event::Tick(version) => {
                if version == self.tick_version {
                    self.put(Input::Tick);
                }
            }
        }
    }

    pub(super) fn say(&mut self, who: Instance, key: FromChildKey, delay_ns: u64) {
        let process = self.processes.get_mut(&who).expect("it speaks");
        let at_ns = (self.now_ns + delay_ns).max(process.last_said_ns);
        process.last_said_ns = at_ns;
        self.at(at_ns, Event::Said(who, key));
    }

    pub(super) fn start_done(&mut self, who: Instance) {
        let frozen_until_ns = self.processes[&who].frozen_until_ns;
        if self.processes[&who].gone {
            return;
        }
        if frozen_until_ns > self.now_ns {
            self.at(frozen_until_ns, Event::StartDone(who));
            return;
        }
        self.processes.get_mut(&who).expect("as above").has_said_ready = true;
        let (next_id, delay_ns) = (1 + self.rng.below(1000), self.rng.below(5 * MS));
        self.say(who, (0, next_id, 0), delay_ns);
    }

    pub(super) fn crash(&mut self, who: Instance) {
        let process = &self.processes[&who];
        if process.gone || process.frozen_until_ns > self.now_ns {
            return;
        }
        let code = [0, 1, 1, 1, 5, 10, 10, 11, 12, 33, 78, 111, 134][self.rng.below(13) as usize];
        if code == 10 && who.role.has_jobs() && self.rng.chance(70) {
            self.say(who, (4, 0, 0), 0);
        }
        if self.rng.chance(50) && code != 10 { self.ends(who, (true, 6)) } else { self.ends(who, (false, code)) }
    }

    pub(super) fn break_link(&mut self, who: Instance) {
        let links: Vec<(Instance, u64)> =
            self.processes[&who].links.iter().map(|(peer, link)| (*peer, *link)).collect();
        if self.processes[&who].gone || links.is_empty() {
            return;
        }
        let (peer, number) = links[self.rng.below(links.len() as u64) as usize];
        if self.broken.contains_key(&number) || self.processes.get(&peer).is_none_or(|peer| peer.gone) {
            return;
        }
        self.broken.insert(number, self.now_ns);
        // Each end sees it in its own time, or one of them only the new link.
        let both = self.rng.chance(80);
        let ends = [(who, peer), (peer, who)];
        for (end, other) in ends.into_iter().take(if both { 2 } else { 1 }) {
            let delay_ns = self.rng.below(300 * MS);
            self.at(self.now_ns + delay_ns, Event::SeesBrokenLink(end, other, number));
        }
    }

    pub(super) fn sees_broken_link(&mut self, who: Instance, peer: Instance, number: u64) {
        let process = &self.processes[&who];
        if process.gone {
            return;
        }
        if process.frozen_until_ns > self.now_ns {
            self.at(process.frozen_until_ns, Event::SeesBrokenLink(who, peer, number));
            return;
        }
        self.say(who, (5, number, u64::from(peer.slot) << 32 | u64::from(peer.generation)), 0);
    }

    /// It runs no instruction any more; the supervisor hears so after everything it said.
    pub(super) fn ends(&mut self, who: Instance, how: EndingKey) {
        let process = self.processes.get_mut(&who).expect("it was alive");
        if process.gone || (process.is_stuck && process.was_killed) {
            return;
        }
        process.gone = true;
        process.is_alive = false;
        process.accepts_jobs = false;
        let at_ns = process.last_said_ns.max(self.now_ns);
        process.last_said_ns = at_ns;
        self.at(at_ns, Event::Ended(who, how));
        // Its peers see their links end, perhaps before the supervisor knows.
        let links: Vec<(Instance, u64)> =
            self.processes[&who].links.iter().map(|(peer, link)| (*peer, *link)).collect();
        for (peer, number) in links {
            if self.rng.chance(50) && self.processes.get(&peer).is_some_and(|peer| !peer.gone) {
                self.broken.entry(number).or_insert(self.now_ns);
                self.at(self.now_ns, Event::SeesBrokenLink(peer, who, number));
            }
        }
    }

    pub(super) fn wake(&mut self, who: Instance) {
        loop {
            let now_ns = self.now_ns;
            let process = self.processes.get_mut(&who).expect("known");
            // A process that recovers its log reads no message either.
            if process.gone || process.frozen_until_ns > now_ns || !process.has_said_ready && process.inbox.is_empty() {
                return;
            }
            let Some(what) = process.inbox.pop_front() else { return };
            match what {
                Instruction::Ping { nonce } => {
                    let in_sync_ms = if process.syncs_until_ns > now_ns { 1 } else { 0 };
                    let delay_ns = self.rng.below(50 * MS);
                    self.say(who, (1, nonce, in_sync_ms), delay_ns);
                }
                Instruction::Drain => {
                    process.accepts_jobs = false;
                    let delay_ns = self.rng.below(20 * MS);
                    self.say(who, (2, 0, 0), delay_ns);
                }
                Instruction::Barrier { .. } | Instruction::Stop { .. } => {
                    if process.is_stubborn {
                        continue;
                    }
                    self.say(who, (3, 0, 0), 0);
                    let code = if self.rng.chance(5) { 10 } else { 0 };
                    self.ends(who, (false, code));
                }
                Instruction::Go | Instruction::PeerGone(_) => {}
            }
        }
    }
}
