//! The log's side: replaying it at start, reading live jobs back for compaction.

use super::Engine;
use crate::Now;
use crate::job::Job;
use crate::journal::{JobRecord, LoggedState, Placement, Replay, StateFields, Superseded};
use crate::planted::{self, Bug};
use crate::ready::{ReadyKey, ReadyQueue};
use std::collections::{BTreeSet, HashMap};
use tubes_protocol::State;

impl Replay for Engine {
    fn replay_job(&mut self, record: &JobRecord<'_>, segment: u32) -> Option<Superseded> {
        let superseded = self.replay_delete(record.id);
        let tube = self.tube_of_replay(record.tube);
        let mut job = Job {
            id: record.id,
            // Wall time until finish_recovery turns it into the boot clock's.
            created_boot_ms: i64::try_from(record.created_ms).unwrap_or(i64::MAX),
            key: 0,
            body: record.body.into(),
            tube,
            pri: 0,
            delay_s: 0,
            ttr_s: record.ttr_s,
            holder: 0,
            counters: record.state.counters,
            segment,
            state_reserved: false,
            state: State::Ready,
        };
        set_fields(&mut job, &record.state);
        let place = self.jobs.insert(job);
        self.job_places.insert(record.id, place);
        superseded
    }

    fn replay_state(&mut self, id: u64, fields: &StateFields) -> bool {
        let Some(place) = self.place_of(id) else { return false };
        set_fields(&mut self.jobs[place], fields);
        true
    }

    fn replay_delete(&mut self, id: u64) -> Option<Superseded> {
        let place = self.place_of(id)?;
        self.job_places.remove(id);
        let job = self.jobs.remove(place);
        Some(Superseded {
            segment: job.segment,
            tube_bytes: self.tubes[job.tube].name.len(),
            body_bytes: job.body.len(),
        })
    }

    fn live_jobs(&self) -> u64 {
        self.jobs.len() as u64
    }

    fn set_state_reserved(&mut self, reserved: bool) {
        for (_, job) in self.jobs.iter_mut() {
            job.state_reserved = reserved;
        }
    }

    fn live_job(&self, id: u64, segment: u32) -> Option<(JobRecord<'_>, Placement)> {
        let place = self.place_of(id)?;
        let placement = self.jobs[place].placement();
        (placement.segment == segment).then(|| (self.job_record(place), placement))
    }

    fn relocate(&mut self, id: u64, placement: Placement) {
        let place = self.place_of(id).expect("relocated a job that is not there");
        self.jobs[place].set_placement(placement);
    }
}

impl Engine {
    /// All jobs as a log would have them, in no particular order.
    pub fn job_records(&self) -> impl Iterator<Item = JobRecord<'_>> {
        self.jobs.iter().map(|(place, _)| self.job_record(place))
    }

    /// Ends the replay of a log: builds queues and timers out of the jobs that are left. Ids go on with `next_id`.
    ///
    /// Delayed jobs become due after what is left of their delay, clamped to [0, delay], as wall clocks may have been
    /// changed meanwhile; buried ones keep their order, by id where a repaired or divided log gives two the same place.
    ///
    /// # Panics
    ///
    /// If a job has `next_id` or a higher id: it would be given twice.
    pub fn finish_recovery(&mut self, now: Now, next_id: u64) {
        self.now = now;
        self.next_id = next_id;
        if planted::is(Bug::IdsFromLiveJobs) {
            self.next_id = self.jobs.iter().map(|(_, job)| job.id + 1).max().unwrap_or(1);
        }
        let wall_minus_boot_ms = self.wall_minus_boot_ms();
        let mut by_tube: HashMap<u32, Recovered, _> = HashMap::with_hasher(self.tube_places.hasher().to_owned());
        for (place, job) in self.jobs.iter_mut() {
            assert!(job.id < next_id, "recovered job {} but ids go on with {next_id}", job.id);
            job.created_boot_ms = job.created_boot_ms.saturating_sub(wall_minus_boot_ms);
            let recovered = by_tube.entry(job.tube).or_default();
            match job.state {
                State::Ready => {
                    recovered.ready.push(ReadyKey::new(job.pri, job.id, place));
                    recovered.urgent_count += u64::from(job.pri < crate::URGENT_BELOW);
                }
                State::Delayed => {
                    let left_ms = job.key.saturating_sub(now.wall_ms).min(u64::from(job.delay_s) * 1000);
                    job.key = now.boot_ns + left_ms * 1_000_000;
                    recovered.delayed.push((job.key, job.id, place));
                }
                State::Buried => {
                    if planted::is(Bug::BuryOrderLost) {
                        job.key = u64::MAX / 2 - job.id;
                    }
                    recovered.buried.push((job.key, job.id, place));
                }
                State::Reserved => unreachable!("a log knows no reserved job"),
            }
        }
        for (at, mut recovered) in by_tube {
            // A log that was repaired may lack the record that freed a place which was then given again.
            recovered.buried.sort_unstable();
            let mut last_order = 0;
            for (order, _, place) in &mut recovered.buried {
                *order = (*order).max(last_order + 1);
                last_order = *order;
                self.jobs[*place].key = *order;
            }
            let tube = &mut self.tubes[at];
            self.queued.ready += recovered.ready.len() as u64;
            self.queued.urgent += recovered.urgent_count;
            self.queued.delayed += recovered.delayed.len() as u64;
            self.queued.buried += recovered.buried.len() as u64;
            tube.urgent_count = recovered.urgent_count;
            tube.ready = ReadyQueue::from_iter(recovered.ready);
            tube.delayed = BTreeSet::from_iter(recovered.delayed);
            tube.buried = recovered.buried.into_iter().map(|(order, _, place)| (order, place)).collect();
            self.next_bury_order = self.next_bury_order.max(last_order + 1);
            self.arm_delay(at);
        }
        let tubes: Vec<u32> = self.tubes_by_creation.values().copied().collect();
        for at in tubes {
            self.drop_if_unreferenced(at);
        }
    }

    /// Consecutive records are often of one tube, whose name is then compared instead of looked up.
    fn tube_of_replay(&mut self, name: &[u8]) -> u32 {
        if let Some((_, last)) = self.tubes_by_creation.last_key_value()
            && *self.tubes[*last].name == *name
        {
            return *last;
        }
        self.tube_or_create(name)
    }
}

#[derive(Default)]
struct Recovered {
    ready: Vec<ReadyKey>,
    urgent_count: u64,
    delayed: Vec<(u64, u64, u32)>,
    buried: Vec<(u64, u64, u32)>,
}

fn set_fields(job: &mut Job, fields: &StateFields) {
    (job.state, job.key) = match fields.state {
        LoggedState::Ready => (State::Ready, 0),
        LoggedState::Delayed => (State::Delayed, fields.due_ms),
        LoggedState::Buried => (State::Buried, fields.bury_order),
    };
    job.pri = fields.pri;
    job.delay_s = fields.delay_s;
    job.counters = fields.counters;
}
