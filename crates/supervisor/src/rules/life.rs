//! The life of a slot's process: started, ready, linked, ended, started again.
//!
//! Owns: the start barrier and the restart policy.
//! Never: looks at the time of others than the slot at hand; that is [`super::time`].

use super::drain::drain_step;
use super::*;

impl Rules {
    pub(super) fn begin(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        assert_eq!(self.phase, Phase::New, "a server begins once");
        self.phase = Phase::Starting;
        self.next_ping_ns = now_ns + PING_INTERVAL_NS;
        for index in 0..self.entries.len() {
            self.spawn(index, out);
        }
    }

    pub(super) fn spawn(&mut self, index: usize, out: &mut Vec<Output>) {
        let drained = self.is_draining();
        let entry = &mut self.entries[index];
        assert!(!entry.is_alive(), "{} still has a process", entry.place);
        entry.state = State::Spawning;
        entry.is_drained_start = drained;
        entry.last_words = None;
        out.push(Output::Spawn { place: entry.place, drained });
    }

    pub(super) fn spawned(&mut self, now_ns: u64, place: Slot, generation: u32, out: &mut Vec<Output>) {
        let is_stopping = self.is_stopping();
        let index = self.index(place);
        let entry = &mut self.entries[index];
        assert!(matches!(entry.state, State::Spawning), "{place} was not being spawned");
        assert!(generation > entry.generation, "generation {generation} of {place} follows {}", entry.generation);
        entry.generation = generation;
        entry.state = State::Starting { since_ns: now_ns, report_at_ns: now_ns + LONG_NS };
        let who = entry.instance();
        out.push(Output::Report(Report::Started(who)));
        if is_stopping {
            let has_failed = matches!(self.outcome, Outcome::StartFailed { .. });
            self.kill(index, if has_failed { KillReason::StartFailed } else { KillReason::Stop }, out);
        } else if entry.is_drained_start {
            entry.drain_acked = true;
            self.advance_drain(out);
        } else if drain_step(place.role).is_some_and(|step| self.drain >= step) {
            out.push(Output::Tell { who, what: Instruction::Drain });
        }
    }

    pub(super) fn said(&mut self, now_ns: u64, by: Instance, report: FromChild, out: &mut Vec<Output>) {
        let index = self.index(by.place());
        let entry = &mut self.entries[index];
        if entry.generation != by.generation || !entry.is_alive() {
            return;
        }
        if matches!(entry.state, State::Killed) {
            // It may still end by itself first, and then it counts why; nothing else it says does.
            if let FromChild::Failed { cause, reason } = report {
                entry.last_words = Some((cause, reason));
            }
            return;
        }
        match (report, &mut entry.state) {
            (FromChild::Ready { generation, jobs, next_id }, State::Starting { .. }) if generation == by.generation => {
                self.ready(now_ns, index, jobs, next_id, out);
            }
            (FromChild::Pong { generation, nonce, in_sync_ms }, State::Ready { watch, .. })
                if generation == by.generation && nonce > watch.answered && nonce <= watch.sent =>
            {
                watch.answered = nonce;
                watch.in_sync_since_ns = in_sync_ms.map(|ms| now_ns.saturating_sub(ms.saturating_mul(1_000_000)));
                watch.in_sync_ms = in_sync_ms;
                if in_sync_ms.is_none() {
                    watch.sync_reports = 0;
                }
            }
            (FromChild::Drained, State::Starting { .. } | State::Ready { .. }) => {
                if drain_step(by.role).is_some_and(|step| self.drain >= step) {
                    entry.drain_acked = true;
                    self.advance_drain(out);
                } else {
                    self.kill(index, KillReason::Misbehaved, out);
                }
            }
            (FromChild::LinkLost { peer, number }, State::Ready { .. }) => {
                self.link_lost(now_ns, by, peer, number, out);
            }
            (FromChild::Failed { cause, reason }, _) => entry.last_words = Some((cause, reason)),
            (FromChild::Stopped, _) => {}
            (FromChild::Ready { .. } | FromChild::Pong { .. } | FromChild::Drained | FromChild::LinkLost { .. }, _) => {
                self.kill(index, KillReason::Misbehaved, out);
            }
        }
    }

    pub(super) fn ready(&mut self, now_ns: u64, index: usize, jobs: u64, next_id: u64, out: &mut Vec<Output>) {
        let entry = &mut self.entries[index];
        entry.state = State::Ready { since_ns: now_ns, watch: Watch::default() };
        let who = entry.instance();
        out.push(Output::Report(Report::Ready { who, jobs }));
        if who.role == Role::Owner {
            out.push(Output::RaiseIdCount { at_least: next_id });
        }
        self.link_to_all(now_ns, who, out);
        match self.phase {
            Phase::Starting if self.entries.iter().all(Entry::is_ready) => {
                self.phase = Phase::Serving;
                let accepting = self.entries.iter().filter(|entry| entry.place.role.accepts());
                out.extend(accepting.map(|entry| Output::Tell { who: entry.instance(), what: Instruction::Go }));
                out.push(Output::Serving);
            }
            Phase::Serving if who.role.accepts() => out.push(Output::Tell { who, what: Instruction::Go }),
            _ => {}
        }
    }

    pub(super) fn ended(&mut self, now_ns: u64, who: Instance, how: Ending, out: &mut Vec<Output>) {
        let index = self.index(who.place());
        let entry = &mut self.entries[index];
        assert_eq!(entry.generation, who.generation, "the end of a process of {} that was none", who.place());
        match entry.state {
            State::Ready { since_ns, .. } if now_ns.saturating_sub(since_ns) >= CALM_NS => entry.tries = 0,
            State::Ready { .. } | State::Starting { .. } | State::Killed => {}
            _ => panic!("{who} has ended twice"),
        }
        entry.log_failures += u64::from(matches!(entry.last_words, Some((FailureCause::Write, _))));
        let reason = entry.last_words.as_ref().map(|(_, reason)| reason.clone());
        self.lost(now_ns, index, Failure { ending: Some(how), reason }, out);
    }

    /// A slot has lost its process, or did not get one.
    pub(super) fn lost(&mut self, now_ns: u64, index: usize, failure: Failure, out: &mut Vec<Output>) {
        let was_killed = matches!(self.entries[index].state, State::Killed);
        let who = self.entries[index].instance();
        let place = who.place();
        self.entries[index].state = State::Down { restart_at_ns: None };
        for peer in self.end_links_of(who) {
            let entry = &self.entries[self.index(peer.place())];
            if entry.is_ready() && !matches!(self.phase, Phase::Owners { .. } | Phase::Killing { .. }) {
                out.push(Output::Tell { who: peer, what: Instruction::PeerGone(who) });
            }
        }
        match self.phase {
            Phase::New | Phase::Finished => unreachable!("no process exists then"),
            Phase::Starting => {
                self.entries[index].failure = Some(failure.clone());
                out.push(Output::Report(Report::Crashed { place, failure: failure.clone() }));
                self.kill_everything(now_ns, Outcome::StartFailed { place, failure }, KillReason::StartFailed, out);
            }
            Phase::Serving => {
                out.push(Output::Report(Report::Crashed { place, failure: failure.clone() }));
                self.restart_or_fail(now_ns, index, failure, out);
            }
            Phase::Barrier { .. } | Phase::Owners { .. } | Phase::Killing { .. } => {
                // Owners are told when all frontends are gone, all others at once.
                let is_told = place.role != Role::Owner || !matches!(self.phase, Phase::Barrier { .. });
                let is_orderly = is_told && failure.ending == Some(Ending::Code(0));
                if !was_killed && failure.ending.is_some() && !is_orderly {
                    self.entries[index].failure = Some(failure.clone());
                    out.push(Output::Report(Report::StoppedBadly { place, failure: failure.clone() }));
                    self.note_bad_stop(place, failure);
                }
                self.advance_stop(now_ns, out);
            }
        }
    }

    pub(super) fn restart_or_fail(&mut self, now_ns: u64, index: usize, failure: Failure, out: &mut Vec<Output>) {
        let policy = self.config.restart;
        let window_ns = nanoseconds(policy.window);
        let entry = &mut self.entries[index];
        let place = entry.place;
        let is_final = matches!(failure.ending, Some(Ending::Code(code)) if FINAL_CODES.contains(&code))
            && !(place.role.has_jobs()
                && failure.ending == Some(Ending::Code(CODE_DIRECTORY))
                && matches!(entry.last_words, Some((FailureCause::Write, _))));
        entry.failure = Some(failure.clone());
        entry.crashes_ns.push_back(now_ns);
        entry.crashes_ns.retain(|crash_ns| now_ns.saturating_sub(*crash_ns) < window_ns);
        if is_final || entry.crashes_ns.len() > policy.limit as usize {
            entry.state = State::Failed;
            // No process is left to accept a job, and any later one is started drained.
            entry.drain_acked = self.drain > Drain::Off;
            out.push(Output::Report(Report::SlotFailed { place, failure: failure.clone() }));
            let ends_server = match place.role {
                Role::Daemon => self.entries.len() == 1,
                _ => self.config.on_slot_failed == OnSlotFailed::Stop,
            };
            if ends_server {
                self.begin_stop(now_ns, Outcome::SlotFailed { place, failure }, out);
            } else {
                self.advance_drain(out);
            }
            return;
        }
        let delay_ns = delay(nanoseconds(policy.delay), entry.tries, &mut self.jitter);
        entry.tries = entry.tries.saturating_add(1);
        entry.restarts += 1;
        entry.state = State::Down { restart_at_ns: Some(now_ns + delay_ns) };
        out.push(Output::Report(Report::Restarting { place, delay_ms: delay_ns / 1_000_000 }));
    }

    pub(super) fn kill(&mut self, index: usize, why: KillReason, out: &mut Vec<Output>) {
        let entry = &mut self.entries[index];
        entry.state = State::Killed;
        let who = entry.instance();
        out.push(Output::Report(Report::Killed { who, why }));
        out.push(Output::Kill { who });
    }

    pub(super) fn index(&self, place: Slot) -> usize {
        match self.config.topology.index(place) {
            Some(index) => index,
            None => panic!("no slot {place} in this topology"),
        }
    }
}
