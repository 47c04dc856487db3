//! Notices that were heard, and requests of others.

use super::{Coordinator, IN_HAND_MAX, Lane};
use crate::coordinator::{Call, Output};
use crate::scripts::request::{Request, TAKEN_MAX};
use crate::{Boot, Mode, Notice, channel};

impl Coordinator {
    pub(super) fn heard(&mut self, now: Boot, notice: &Notice, out: &mut Vec<Output>) {
        let Some(me) = self.me.filter(|_| self.phase.has_started()) else { return };
        match notice.channel {
            channel::REQUEST if notice.payload == me.id.to_holder() => self.want_requests(),
            channel::GONE if notice.payload != me.id.to_holder() => {
                self.want_beat(now);
                self.want_reap(now);
                for office in &mut self.offices {
                    if office.held().is_none() {
                        office.contest_at = Some(now);
                    }
                }
            }
            channel::CACHE if self.settings.mode == Mode::Shared => self.send_view(now, out),
            _ => {}
        }
    }

    pub(super) fn want_requests(&mut self) {
        self.are_requests_wanted = true;
    }

    pub(super) fn take_requests(&mut self, now: Boot, out: &mut Vec<Output>) {
        let Some(me) = self.me else { return };
        if self.in_hand.len() >= IN_HAND_MAX {
            return;
        }
        self.are_requests_wanted = false;
        let in_hand = self.in_hand.iter().copied().collect();
        self.send(now, Lane::Requests, Call::TakeRequests { me: me.id, in_hand }, out);
    }

    pub(super) fn taken(&mut self, requests: Vec<Request>, out: &mut Vec<Output>) {
        if requests.is_empty() {
            return;
        }
        self.are_requests_wanted |= requests.len() as i64 >= TAKEN_MAX;
        self.in_hand.extend(requests.iter().map(|request| request.id));
        out.push(Output::Requests(requests));
    }
}
