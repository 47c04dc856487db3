//! A full check of the engine against itself, for tests and the simulator.

use super::{Engine, QueuedCounts, Timer};
use crate::ready::ReadyKey;
use crate::session::WaitKind;
use std::collections::BTreeSet;
use tubes_protocol::State;

impl Engine {
    /// Checks every relation between jobs, queues, sessions, timers and counters. Costs time in proportion to all of
    /// them.
    ///
    /// # Panics
    ///
    /// If one does not hold: a defect of ours.
    pub fn check_invariants(&self) {
        let mut counted = QueuedCounts::default();
        for (place, job) in self.jobs.iter() {
            assert_eq!(self.job_places.get(job.id), Some(place), "job {} is not found by its id", job.id);
            assert!(job.id < self.next_id, "job {} has an id that will be given again", job.id);
            let tube = &self.tubes[job.tube];
            match job.state {
                State::Ready => {
                    counted.ready += 1;
                    counted.urgent += u64::from(job.pri < crate::URGENT_BELOW);
                    let key = ReadyKey::new(job.pri, job.id, place);
                    let is_queued = if job.key == 0 { tube.ready.contains(key) } else { tube.offered.contains(&key) };
                    assert!(is_queued, "ready job {}", job.id);
                    assert!(job.key == 0 || self.offers[&job.key].place == place, "offered job {}", job.id);
                }
                State::Delayed => {
                    counted.delayed += 1;
                    assert!(tube.delayed.contains(&(job.key, job.id, place)), "delayed job {}", job.id);
                    assert!(tube.delay_timer <= job.key, "no timer will make job {} ready", job.id);
                }
                State::Buried => {
                    counted.buried += 1;
                    assert_eq!(tube.buried.get(&job.key), Some(&place), "buried job {}", job.id);
                    assert!(job.key < self.next_bury_order, "job {} is buried behind the next", job.id);
                }
                State::Reserved => {
                    counted.reserved += 1;
                    let holder = &self.sessions[job.holder];
                    assert!(holder.held.contains(&(job.key, job.id, place)), "reserved job {}", job.id);
                }
            }
        }
        assert_eq!(counted, self.queued, "counts of jobs by state");
        self.check_tubes();
        self.check_sessions();
        let armed = self.sessions.iter().filter(|(_, session)| session.timer != u64::MAX).count()
            + self.tubes.iter().filter(|(_, tube)| tube.delay_timer != u64::MAX).count()
            + self.tubes.iter().filter(|(_, tube)| tube.is_paused()).count();
        assert_eq!(armed + self.offers.len(), self.timers.len(), "number of timers");
        let offered: usize = self.tubes.iter().map(|(_, tube)| tube.offered.len()).sum();
        assert_eq!(offered, self.offers.len(), "number of offers");
    }

    fn check_tubes(&self) {
        assert_eq!(self.tubes.len(), self.tube_places.len(), "tubes by name");
        assert_eq!(self.tubes.len(), self.tubes_by_creation.len(), "tubes by creation");
        let jobs: u64 = self.tubes.iter().map(|(_, tube)| tube.jobs()).sum();
        assert_eq!(jobs, self.jobs.len() as u64, "jobs in the queues of all tubes");
        for (at, tube) in self.tubes.iter() {
            assert_eq!(self.tube_places.get(&tube.name), Some(&at), "a tube is not found by its name");
            assert!(at == self.default_tube || !tube.is_unreferenced(), "a tube outlived its last reference");
            assert!(tube.servable().is_none() || tube.waiting.is_empty(), "a session waits beside a ready job");
            if tube.is_paused() {
                assert!(self.timers.contains(&(tube.paused_until, Timer::Pause(at))), "a pause will not end");
            }
            if tube.delay_timer != u64::MAX {
                assert!(self.timers.contains(&(tube.delay_timer, Timer::Delay(at))), "a delay timer is not armed");
            }
        }
    }

    fn check_sessions(&self) {
        let mut waiting = 0;
        let mut considering = 0;
        for (at, session) in self.sessions.iter() {
            let distinct: BTreeSet<u32> = session.watched.iter().copied().collect();
            assert_eq!(distinct.len(), session.watched.len(), "a tube is watched twice");
            assert!(session.is_remote || !session.watched.is_empty(), "a session watches nothing");
            assert!(session.timer <= session.next_due(), "a session's timer is late");
            if session.timer != u64::MAX {
                assert!(self.timers.contains(&(session.timer, Timer::Session(at))), "a session's timer is not armed");
            }
            for (deadline, id, place) in &session.held {
                let job = &self.jobs[*place];
                assert_eq!((job.id, job.key, job.holder), (*id, *deadline, at), "a held job is not the session's");
                assert_eq!(job.state, State::Reserved, "a held job is not reserved");
            }
            if let Some(wait) = session.wait {
                waiting += 1;
                if matches!(wait.kind, WaitKind::Offer { offer: Some(_), .. }) {
                    considering += session.watched.len();
                    continue;
                }
                for tube in &session.watched {
                    assert_eq!(self.tubes[*tube].waiting.get(&wait.order), Some(&at), "a wait is not in its tube");
                }
            }
        }
        assert_eq!(waiting, self.waiting_count, "count of waiting sessions");
        let queued: usize = self.tubes.iter().map(|(_, tube)| tube.waiting.len()).sum();
        let expected: usize =
            self.sessions.iter().filter(|(_, s)| s.wait.is_some()).map(|(_, s)| s.watched.len()).sum();
        assert_eq!(queued + considering, expected, "waits in the queues of tubes");
    }
}
