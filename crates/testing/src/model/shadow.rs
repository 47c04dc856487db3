//! What a log must hold, kept as a list of changes and as the jobs they add up to.
//!
//! Owns: [`Change`], the contents of one log record, and [`ShadowLog`], a reader of logs that knows no rule but "a
//! later record replaces an earlier one".

use std::collections::BTreeMap;

use tubes_core::journal::{JobRecord, LoggedState, Placement, Replay, StateFields, Superseded};

use super::{Job, Model, Moment, Place};

/// A job as the log knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowJob {
    /// Its tube.
    pub tube: Box<[u8]>,
    /// Its body without CR LF.
    pub body: Box<[u8]>,
    /// Time to run, in seconds.
    pub ttr_s: u32,
    /// When it was put.
    pub created_ms: u64,
    /// The changeable part.
    pub state: StateFields,
}

impl ShadowJob {
    /// A copy of a record.
    #[must_use]
    pub fn of(record: &JobRecord<'_>) -> ShadowJob {
        ShadowJob {
            tube: record.tube.into(),
            body: record.body.into(),
            ttr_s: record.ttr_s,
            created_ms: record.created_ms,
            state: record.state,
        }
    }

    /// Whether `self`, made by the engine, says what `model` says. Places among the buried are compared as "none" or
    /// "some": their numbers are the engine's own, only their order counts, which the recovered state shows. Times may
    /// be rounded to the next ms.
    #[must_use]
    pub fn says(&self, model: &ShadowJob) -> bool {
        same_fields(&self.state, &model.state)
            && self.tube == model.tube
            && self.body == model.body
            && self.ttr_s == model.ttr_s
            && self.created_ms.abs_diff(model.created_ms) <= 1
    }

    /// The job as a record.
    #[must_use]
    pub fn record(&self, id: u64) -> JobRecord<'_> {
        JobRecord {
            id,
            created_ms: self.created_ms,
            state: self.state,
            ttr_s: self.ttr_s,
            tube: &self.tube,
            body: &self.body,
        }
    }
}

/// The contents of one log record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is what its type says")]
pub enum Change {
    /// A job appears.
    Put { id: u64, job: ShadowJob },
    /// A job's changeable part changes.
    State { id: u64, fields: StateFields },
    /// A job is gone.
    Delete { id: u64 },
}

impl Change {
    /// Whether `self`, made by the engine, says what `model` says.
    #[must_use]
    pub fn says(&self, model: &Change) -> bool {
        match (self, model) {
            (Change::Put { id, job }, Change::Put { id: model_id, job: model_job }) => {
                id == model_id && job.says(model_job)
            }
            (Change::State { id, fields }, Change::State { id: model_id, fields: model_fields }) => {
                id == model_id && same_fields(fields, model_fields)
            }
            _ => self == model,
        }
    }
}

/// How two states of a log differ.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is what its type says")]
pub enum Mismatch {
    /// A job that must be there is not.
    Lost { id: u64 },
    /// A job that must not be there is.
    Extra { id: u64 },
    /// A job is there, but not as it should be.
    Different { id: u64, expected: Box<ShadowJob>, found: Box<ShadowJob> },
}

/// The jobs of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShadowLog {
    jobs: BTreeMap<u64, (ShadowJob, u32)>,
    /// One more than the largest id seen.
    ids_below: u64,
}

impl ShadowLog {
    /// A log without a record.
    #[must_use]
    pub fn new() -> ShadowLog {
        ShadowLog { jobs: BTreeMap::new(), ids_below: 1 }
    }

    /// Applies one change that was made while serving.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Put { id, job } => {
                self.ids_below = self.ids_below.max(id + 1);
                self.jobs.insert(*id, (job.clone(), 0));
            }
            Change::State { id, fields } => {
                let (job, _) = self.jobs.get_mut(id).expect("a state record follows its job's record");
                job.state = *fields;
            }
            Change::Delete { id } => {
                let gone = self.jobs.remove(id);
                assert!(gone.is_some(), "a delete record follows its job's record");
            }
        }
    }

    /// The jobs by id.
    pub fn jobs(&self) -> impl Iterator<Item = (u64, &ShadowJob)> {
        self.jobs.iter().map(|(id, (job, _))| (*id, job))
    }

    /// One job.
    #[must_use]
    pub fn job(&self, id: u64) -> Option<&ShadowJob> {
        self.jobs.get(&id).map(|(job, _)| job)
    }

    /// One more than the largest id seen.
    #[must_use]
    pub fn ids_below(&self) -> u64 {
        self.ids_below
    }

    /// The first difference from `found`; places of records are not compared.
    #[must_use]
    pub fn mismatch(&self, found: &ShadowLog) -> Option<Mismatch> {
        for (id, (expected, _)) in &self.jobs {
            match found.jobs.get(id) {
                None => return Some(Mismatch::Lost { id: *id }),
                Some((other, _)) if other != expected => {
                    let (expected, found) = (Box::new(expected.clone()), Box::new(other.clone()));
                    return Some(Mismatch::Different { id: *id, expected, found });
                }
                Some(_) => {}
            }
        }
        found.jobs.keys().find(|id| !self.jobs.contains_key(id)).map(|id| Mismatch::Extra { id: *id })
    }
}

impl Replay for ShadowLog {
    fn replay_job(&mut self, record: &JobRecord<'_>, segment: u32) -> Option<Superseded> {
        self.ids_below = self.ids_below.max(record.id + 1);
        let before = self.jobs.insert(record.id, (ShadowJob::of(record), segment));
        before.map(|(job, segment)| superseded(&job, segment))
    }

    fn replay_state(&mut self, id: u64, fields: &StateFields) -> bool {
        match self.jobs.get_mut(&id) {
            Some((job, _)) => {
                job.state = *fields;
                true
            }
            None => false,
        }
    }

    fn replay_delete(&mut self, id: u64) -> Option<Superseded> {
        self.jobs.remove(&id).map(|(job, segment)| superseded(&job, segment))
    }

    fn live_jobs(&self) -> u64 {
        self.jobs.len() as u64
    }

    fn set_state_reserved(&mut self, _reserved: bool) {
        // A reader without rules never writes, so it needs no space.
    }

    fn live_job(&self, id: u64, segment: u32) -> Option<(JobRecord<'_>, Placement)> {
        let (job, at) = self.jobs.get(&id).filter(|(_, at)| *at == segment)?;
        Some((job.record(id), Placement { segment: *at, state_reserved: true }))
    }

    fn relocate(&mut self, id: u64, placement: Placement) {
        self.jobs.get_mut(&id).expect("a job that compaction has copied").1 = placement.segment;
    }
}

fn same_fields(ours: &StateFields, model: &StateFields) -> bool {
    let comparable = |fields: &StateFields| StateFields { bury_order: 0, due_ms: 0, ..*fields };
    comparable(ours) == comparable(model)
        && (ours.bury_order == 0) == (model.bury_order == 0)
        && ours.due_ms.abs_diff(model.due_ms) <= 1
}

fn superseded(job: &ShadowJob, segment: u32) -> Superseded {
    Superseded { segment, tube_bytes: job.tube.len(), body_bytes: job.body.len() }
}

impl Model {
    /// The server as it comes back from `log`: what was reserved is ready, delays go on, the buried keep their order.
    /// `tubes` are the tubes in the order in which recovery created them, which the contract leaves open.
    #[must_use]
    pub fn recovered(max_job_size: u32, now: Moment, log: &ShadowLog, tubes: &[Box<[u8]>], next_id: u64) -> Model {
        let mut model = Model::new(max_job_size);
        model.restore_all(now, log, tubes, next_id);
        model
    }

    /// Puts everything back as [`Model::recovered`] says.
    pub fn restore_all(&mut self, now: Moment, log: &ShadowLog, tubes: &[Box<[u8]>], next_id: u64) {
        self.next_id = next_id;
        for name in tubes {
            self.find_or_create(name);
        }
        for (id, (logged, file)) in &log.jobs {
            self.restore(now, *id, logged, *file);
        }
        self.forget_unreferenced_tubes();
    }

    /// Puts a job back as a log has it.
    pub fn restore(&mut self, now: Moment, id: u64, logged: &ShadowJob, file: u32) {
        let tube = self.find_or_create(&logged.tube);
        let fields = &logged.state;
        let place = match fields.state {
            LoggedState::Ready => Place::Ready,
            LoggedState::Delayed => {
                let left_ms = fields.due_ms.saturating_sub(now.wall_ms).min(u64::from(fields.delay_s) * 1_000);
                Place::Delayed { due_ns: now.boot_ns + left_ms * 1_000_000 }
            }
            LoggedState::Buried => Place::Buried { order: fields.bury_order },
        };
        self.next_bury_order = self.next_bury_order.max(fields.bury_order + 1);
        // Below 0 if the wall clock was set back meanwhile: such a job has no age until the clock has caught up.
        let age_ms = i128::from(now.wall_ms) - i128::from(logged.created_ms);
        let job = Job {
            tube,
            place,
            pri: fields.pri,
            delay_s: fields.delay_s,
            ttr_s: logged.ttr_s,
            counters: fields.counters,
            created_ms: i128::from(now.boot_ns / 1_000_000) - age_ms,
            file,
            body: logged.body.clone(),
        };
        self.jobs.insert(id, job);
        self.next_id = self.next_id.max(id + 1);
    }

    /// The next put gets `id`, where the history of a real server says so.
    pub fn set_next_id(&mut self, id: u64) {
        self.next_id = id;
    }

    /// A delayed job is due, where the history of a real server says so.
    pub fn end_delay(&mut self, id: u64) {
        if let Some(job) = self.jobs.get_mut(id)
            && matches!(job.place, Place::Delayed { .. })
        {
            job.place = Place::Ready;
        }
    }

    /// Name of the tube that `session` uses.
    #[must_use]
    pub fn used_tube(&self, session: u32) -> Option<&[u8]> {
        self.sessions.get(session).map(|state| &*self.tubes[state.used].name)
    }

    /// Whether `session` is open.
    #[must_use]
    pub fn is_open(&self, session: u32) -> bool {
        self.sessions.contains(session)
    }

    /// Whether a pause holds back the jobs of this tube.
    #[must_use]
    pub fn is_paused(&self, tube: u64) -> bool {
        self.tubes[tube].pause.is_some()
    }
}
