//! What follows from the passing of time: restarts that are due, the watchdog, deadlines of the stop.
//!
//! Owns: pings and what their absence means.
//! Never: reads a clock.

use super::*;

impl Rules {
    pub(super) fn tick(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        match self.phase {
            Phase::New | Phase::Finished => {}
            Phase::Starting => self.report_long_starts(now_ns, out),
            Phase::Serving => {
                self.report_long_starts(now_ns, out);
                for index in 0..self.entries.len() {
                    if matches!(self.entries[index].state, State::Down { restart_at_ns: Some(due) } if due <= now_ns) {
                        self.spawn(index, out);
                    }
                }
                self.remake_links(now_ns, out);
                if self.next_ping_ns <= now_ns {
                    // From now, not from when it was due: a clock that jumped must not bring a volley of pings.
                    self.next_ping_ns = now_ns + PING_INTERVAL_NS;
                    self.ping(now_ns, out);
                }
            }
            Phase::Barrier { until_ns, owners_until_ns } => {
                if until_ns <= now_ns {
                    self.kill_at_deadline(|role| role == Role::Frontend, out);
                    // Their end is confirmed before the owners are told, but that must not use up the owners' time.
                    self.phase = Phase::Barrier { until_ns: owners_until_ns, owners_until_ns };
                }
                if owners_until_ns <= now_ns {
                    self.kill_at_deadline(|_| true, out);
                    self.phase = Phase::Killing { until_ns: now_ns + KILL_NS };
                }
                self.advance_stop(now_ns, out);
            }
            Phase::Owners { until_ns } => {
                if until_ns <= now_ns {
                    self.kill_at_deadline(|_| true, out);
                    self.phase = Phase::Killing { until_ns: now_ns + KILL_NS };
                    self.advance_stop(now_ns, out);
                }
            }
            Phase::Killing { until_ns } => {
                if until_ns <= now_ns {
                    if let Some(left) = self.entries.iter().find(|entry| entry.is_alive()) {
                        let reason = Some("the kernel does not let it go although it was killed".to_owned());
                        self.note_bad_stop(left.place, Failure { ending: None, reason });
                    }
                    self.finish(out);
                }
            }
        }
    }

    pub(super) fn report_long_starts(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        for entry in &mut self.entries {
            let who = entry.instance();
            if let State::Starting { since_ns, report_at_ns } = &mut entry.state
                && *report_at_ns <= now_ns
            {
                *report_at_ns = now_ns + LONG_NS;
                let seconds = (now_ns - *since_ns) / SECOND_NS;
                out.push(Output::Report(Report::LongStart { who, seconds }));
            }
        }
    }

    pub(super) fn ping(&mut self, now_ns: u64, out: &mut Vec<Output>) {
        let mut is_healthy = true;
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            let who = entry.instance();
            match &mut entry.state {
                State::Ready { watch, .. } => {
                    is_healthy &= watch.unanswered() < UNANSWERED_HEALTHY;
                    if let Some(since_ns) = watch.in_sync_since_ns {
                        let length_ns = now_ns.saturating_sub(since_ns);
                        if length_ns / LONG_NS > watch.sync_reports {
                            watch.sync_reports = length_ns / LONG_NS;
                            out.push(Output::Report(Report::LongSync { who, seconds: length_ns / SECOND_NS }));
                        }
                    }
                    if watch.unanswered() < UNANSWERED_MAX {
                        watch.sent += 1;
                        out.push(Output::Tell { who, what: Instruction::Ping { nonce: watch.sent } });
                    } else if watch.in_sync_since_ns.is_none() {
                        self.kill(index, KillReason::Frozen, out);
                    }
                }
                State::Killed => is_healthy = false,
                // Somebody deals with it: the restart policy, its recovery, or the operator.
                State::Down { .. } | State::Spawning | State::Starting { .. } | State::Failed => {}
            }
        }
        if is_healthy {
            out.push(Output::FeedWatchdog);
        }
    }
}
