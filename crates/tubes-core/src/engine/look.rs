//! Commands that only look: the peeks and the figures.

use super::{Engine, Outbox, Turn, boot_ms};
use crate::SECOND_NS;
use crate::journal::Journal;
use crate::session::SessionId;
use tubes_protocol::{JobStats, Reply, ServerStats, State, TubeStats};

impl Engine {
    pub(super) fn peek<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32, id: u64) {
        self.counts.peek += 1;
        self.show(turn, session, self.place_of(id));
    }

    pub(super) fn peek_ready<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32) {
        self.counts.peek_ready += 1;
        let tube = &self.tubes[self.sessions[session].used];
        self.show(turn, session, tube.first_ready().map(|key| key.place));
    }

    pub(super) fn peek_delayed<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32) {
        self.counts.peek_delayed += 1;
        let tube = &self.tubes[self.sessions[session].used];
        self.show(turn, session, tube.delayed.first().map(|key| key.2));
    }

    pub(super) fn peek_buried<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32) {
        self.counts.peek_buried += 1;
        let tube = &self.tubes[self.sessions[session].used];
        self.show(turn, session, tube.buried.first_key_value().map(|(_, place)| *place));
    }

    fn show<J: Journal, O: Outbox>(&self, turn: &mut Turn<'_, J, O>, session: u32, place: Option<u32>) {
        let reply = match place {
            None => Reply::NotFound,
            Some(place) => Reply::Found { id: self.jobs[place].id, body: &self.jobs[place].body },
        };
        turn.out.reply(SessionId(session), &reply);
    }

    pub(super) fn stats_job<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32, id: u64) {
        self.counts.stats_job += 1;
        let Some(place) = self.place_of(id) else {
            return turn.out.reply(SessionId(session), &Reply::NotFound);
        };
        let job = &self.jobs[place];
        let time_left_ns = match job.state {
            State::Reserved | State::Delayed => job.key.saturating_sub(turn.now.boot_ns),
            State::Ready | State::Buried => 0,
        };
        let age_ms = boot_ms(turn.now).saturating_sub(job.created_boot_ms);
        let stats = JobStats {
            id,
            tube: &self.tubes[job.tube].name,
            state: job.state,
            pri: job.pri,
            age: u64::try_from(age_ms).unwrap_or(0) / 1000,
            delay: job.delay_s,
            ttr: job.ttr_s,
            time_left: time_left_ns / SECOND_NS,
            file: job.segment,
            reserves: job.counters.reserves,
            timeouts: job.counters.timeouts,
            releases: job.counters.releases,
            buries: job.counters.buries,
            kicks: job.counters.kicks,
        };
        turn.out.reply(SessionId(session), &Reply::JobStats(&stats));
    }

    pub(super) fn stats_tube<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32, name: &[u8]) {
        self.counts.stats_tube += 1;
        let Some(at) = self.tube_places.get(name) else {
            return turn.out.reply(SessionId(session), &Reply::NotFound);
        };
        let tube = &self.tubes[*at];
        let stats = TubeStats {
            name: &tube.name,
            current_jobs_urgent: tube.urgent_count,
            current_jobs_ready: tube.ready_count(),
            current_jobs_reserved: tube.reserved_count,
            current_jobs_delayed: tube.delayed.len() as u64,
            current_jobs_buried: tube.buried.len() as u64,
            total_jobs: tube.total_jobs,
            current_using: tube.using_count,
            current_watching: tube.watching_count,
            current_waiting: tube.waiting.len() as u64,
            cmd_delete: tube.delete_count,
            cmd_pause_tube: tube.pause_count,
            pause: tube.pause_s,
            pause_time_left: tube.paused_until.saturating_sub(turn.now.boot_ns) / SECOND_NS,
        };
        turn.out.reply(SessionId(session), &Reply::TubeStats(&stats));
    }

    pub(super) fn stats<J: Journal, O: Outbox>(&mut self, turn: &mut Turn<'_, J, O>, session: u32) {
        self.counts.stats += 1;
        turn.out.stats(SessionId(session), self.figures());
    }

    /// The figures of the queues; those of process and log are left at their defaults.
    #[must_use]
    pub fn figures(&self) -> ServerStats {
        ServerStats {
            current_jobs_urgent: self.queued.urgent,
            current_jobs_ready: self.queued.ready,
            current_jobs_reserved: self.queued.reserved,
            current_jobs_delayed: self.queued.delayed,
            current_jobs_buried: self.queued.buried,
            commands: self.counts,
            job_timeouts: self.job_timeouts,
            total_jobs: self.total_jobs,
            max_job_size: self.options.max_job_size,
            current_tubes: self.tubes.len() as u64,
            current_connections: self.sessions.len() as u64,
            current_producers: self.producer_count,
            current_workers: self.worker_count,
            current_waiting: self.waiting_count,
            total_connections: self.total_connections,
            draining: self.draining,
            ..ServerStats::default()
        }
    }
}
