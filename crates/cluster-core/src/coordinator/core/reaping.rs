//! Taking over what the dead left, and tidying after oneself.

use super::{Coordinator, Lane, Phase};
use crate::coordinator::{Call, CallAnswer, Output};
use crate::leadership::SCHEDULER;
use crate::{Boot, Mode, Notice};

impl Coordinator {
    /// When a reap is due: as the leader, or because the start reap has failed.
    pub(super) fn reap_time(&self) -> Option<Boot> {
        let leads = self.offices.iter().any(|office| office.name == SCHEDULER && office.leads().is_some());
        let may = self.me.is_some() && !self.is_busy(Lane::Reap) && self.settings.mode != Mode::Alone;
        self.reap_at.filter(|_| may && (leads && self.settings.mode == Mode::Shared || self.is_start_reap_due))
    }

    pub(super) fn want_reap(&mut self, now: Boot) {
        self.reap_at = Some(self.reap_at.map_or(now, |at| at.min(now)));
    }

    pub(super) fn reap(&mut self, now: Boot, out: &mut Vec<Output>) {
        let Some(me) = self.me else { return };
        self.reap_at = Some(now.plus(self.settings.times.lease));
        let known_dead = if self.is_start_reap_due { self.known_dead.clone() } else { Vec::new() };
        self.send(now, Lane::Reap, Call::Reap { me: me.id, known_dead }, out);
    }

    pub(super) fn reaped(&mut self, now: Boot, answer: CallAnswer, out: &mut Vec<Output>) {
        let CallAnswer::Reaped(reaped) = answer else { return };
        let has_more = reaped.has_more;
        out.extend(reaped.notices().into_iter().map(Output::Send));
        out.push(Output::Reaped(reaped));
        if has_more {
            self.reap_at = Some(now);
            if self.phase == Phase::StartReap {
                self.reap(now, out);
            }
            return;
        }
        self.is_start_reap_due = false;
        self.known_dead = Vec::new();
        if self.phase == Phase::StartReap {
            self.first_beat(now);
        }
    }

    pub(super) fn tidy(&mut self, now: Boot, out: &mut Vec<Output>) {
        let Some(me) = self.me else { return };
        if self.retired.is_empty() || self.is_busy(Lane::Tidy) {
            return;
        }
        self.tidy_attempts += 1;
        self.send(now, Lane::Tidy, Call::Tidy { me: me.id, retired: self.retired.clone() }, out);
    }

    pub(super) fn tidied(&mut self, now: Boot, answer: CallAnswer, out: &mut Vec<Output>) {
        let (Some(me), CallAnswer::Tidied(tidied)) = (self.me, answer) else { return };
        if tidied.is_fenced {
            return;
        }
        let gone = std::mem::take(&mut self.retired).into_iter().map(Notice::gone);
        out.extend(gone.map(Output::Send));
        out.extend(tidied.moved.iter().map(|moved| Output::Send(moved.notice())));
        if tidied.requests > 0 {
            out.push(Output::Send(Notice::request(me.id)));
            self.want_requests();
        }
        out.push(Output::Tidied(tidied));
        self.want_reap(now);
    }
}
