//! Contesting, renewing, suspending and giving back leaderships.

use super::{Coordinator, Flight, Lane, Phase, say};
use crate::coordinator::office::{Asked, Office};
use crate::coordinator::{Call, CallAnswer, Change, Leadership, Output};
use crate::leadership::SCHEDULER;
use crate::{Boot, Mode};

impl Coordinator {
    pub(super) fn may_lead(&mut self, now: Boot, name: &'static str, is_able: bool, out: &mut Vec<Output>) {
        let index = self.offices.iter().position(|office| office.name == name);
        let index = index.unwrap_or_else(|| {
            self.offices.push(Office::new(name));
            self.offices.len() - 1
        });
        // The first beat contests anyway.
        let contest_at = self.may_contest().then_some(now);
        let office = &mut self.offices[index];
        office.is_able = is_able;
        if is_able {
            office.contest_at = contest_at;
            if self.settings.mode == Mode::Alone
                && self.phase == Phase::Running
                && let Some(me) = self.me
                && office.held().is_none()
            {
                let held = Leadership { name, holder: me.id, epoch: 0 };
                office.lead_for_ever(held);
                say(Some((held, Change::Gained)), out);
            }
        } else if let Some(lost) = office.lose() {
            say(Some(lost), out);
            if self.settings.mode != Mode::Alone {
                self.to_release.push(lost.0);
            }
        }
    }

    pub(super) fn may_contest(&self) -> bool {
        self.me.is_some() && self.phase.has_started() && self.settings.mode == Mode::Shared
    }

    pub(super) fn has_wanted(&self) -> bool {
        self.offices.iter().any(|office| office.wanted().is_some())
    }

    pub(super) fn contest(&mut self, now: Boot, out: &mut Vec<Output>) {
        let Some(me) = self.me else { return };
        if self.is_busy(Lane::Contest) {
            return;
        }
        let wanted: Vec<(&'static str, i64)> =
            self.offices.iter().filter_map(|office| Some((office.name, office.wanted()?))).collect();
        for office in &mut self.offices {
            office.contest_at = None;
        }
        let call = Call::Contest { me: me.id, wanted: wanted.clone(), epoch_min: me.epoch_min };
        self.send(now, Lane::Contest, call, out);
        if let Some(flight) = &mut self.flights[Lane::Contest as usize] {
            flight.wanted = wanted;
        }
    }

    pub(super) fn contested(&mut self, now: Boot, flight: &Flight, answer: CallAnswer, out: &mut Vec<Output>) {
        let (Some(me), CallAnswer::Contested(rows)) = (self.me, answer) else { return };
        for row in rows {
            let Some(office) = self.offices.iter_mut().find(|office| office.name == row.name) else { continue };
            let asked = flight.wanted.iter().find(|(name, _)| *name == row.name).map_or(0, |(_, epoch)| *epoch);
            let asked = Asked { sent: flight.sent, me: me.id, epoch: asked };
            let change = office.contested(now, asked, row.is, &self.settings.times, &mut self.dice);
            if !office.is_able
                && let Some((held, _)) = office.lose()
            {
                // It became unable while the contest was under way.
                self.to_release.push(held);
                continue;
            }
            say(change, out);
            if matches!(change, Some((held, Change::Gained)) if held.name == SCHEDULER) {
                self.reap_at = Some(now.max(self.periodic_reap_from));
            }
        }
    }

    pub(super) fn suspend(&mut self, out: &mut Vec<Output>) {
        for office in &mut self.offices {
            say(office.suspend(), out);
        }
    }

    pub(super) fn seize(&mut self, now: Boot, out: &mut Vec<Output>) {
        if self.settings.mode != Mode::Sole || self.is_busy(Lane::Contest) || !self.phase.has_started() {
            return;
        }
        let Some(me) = self.me else { return };
        let free = self.offices.iter().filter(|office| office.is_able && office.held().is_none());
        let names: Vec<&'static str> = free.map(|office| office.name).collect();
        if !names.is_empty() {
            self.send(now, Lane::Contest, Call::Seize { me: me.id, names }, out);
        }
    }

    pub(super) fn seized(&mut self, rows: &[(String, i64)], out: &mut Vec<Output>) {
        let Some(me) = self.me else { return };
        for (name, epoch) in rows {
            let Some(office) = self.offices.iter_mut().find(|office| office.name == name) else { continue };
            let held = Leadership { name: office.name, holder: me.id, epoch: *epoch };
            if office.is_able {
                office.lead_for_ever(held);
                say(Some((held, Change::Gained)), out);
            }
        }
    }
}
