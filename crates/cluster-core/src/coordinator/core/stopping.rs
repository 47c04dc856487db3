//! The order of the stop: beats and renewal, the leader's work, leaderships, the registration, the notice.

use super::{Coordinator, Lane, Phase, say};
use crate::coordinator::{Call, Output};
use crate::planted::{Bug, is};
use crate::{Boot, Mode, Notice};

impl Coordinator {
    pub(super) fn stop(&mut self, now: Boot, out: &mut Vec<Output>) {
        if self.phase.is_stopping() {
            return;
        }
        out.push(Output::StopRenewal);
        self.flights = Default::default();
        self.beat_at = None;
        for office in &mut self.offices {
            // From here on no late tick contests.
            office.is_able = is(Bug::ContestsAfterStop);
            let lost = office.lose();
            office.contest_at = office.is_able.then_some(now);
            self.to_release.extend(lost.map(|(held, _)| held));
            say(lost, out);
        }
        self.phase = Phase::StopWork { until: now.plus(self.settings.times.margin) };
        if self.to_release.is_empty() {
            self.release(now, out);
        }
    }

    /// The leader's work has ended.
    pub(super) fn release(&mut self, now: Boot, out: &mut Vec<Output>) {
        let held = std::mem::take(&mut self.to_release);
        self.phase = Phase::StopRelease;
        if held.is_empty() || self.settings.mode == Mode::Alone || self.me.is_none() {
            self.released(now, out);
        } else {
            self.send(now, Lane::Stop, Call::Release { held }, out);
        }
    }

    pub(super) fn released(&mut self, now: Boot, out: &mut Vec<Output>) {
        if self.phase != Phase::StopRelease {
            return;
        }
        self.phase = Phase::StopDeregister;
        match self.me {
            Some(me) if self.settings.mode != Mode::Alone => {
                self.send(now, Lane::Stop, Call::Deregister { me: me.id }, out);
            }
            _ => self.stopped(out),
        }
    }

    pub(super) fn stopped(&mut self, out: &mut Vec<Output>) {
        if let Some(me) = self.me.take()
            && self.settings.mode == Mode::Shared
        {
            out.push(Output::Send(Notice::gone(me.id)));
        }
        self.phase = Phase::Stopped;
        self.flights = Default::default();
        out.push(Output::Stopped);
    }
}
