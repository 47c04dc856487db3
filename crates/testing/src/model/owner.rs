//! The model as one owner of several: sessions use and watch only what lies here, and somebody else decides who gets
//! which job.

use super::{Model, Moment, Place, Session};

/// The tube of a session that uses one of another owner.
const NOWHERE: u64 = u64::MAX;

impl Model {
    /// An empty owner; the tube `default` is always there only if it lies here.
    #[must_use]
    pub fn of_owner(max_job_size: u32, owns_default: bool) -> Model {
        let mut model = Model::new(max_job_size);
        model.keeps_default = owns_default;
        model.forget_unreferenced_tubes();
        model
    }

    /// A session begins that uses and watches nothing here.
    pub fn connect_remote(&mut self, session: u32) {
        let opened = Session { used: NOWHERE, watched: Vec::new(), producer: false, worker: false, waiting: None };
        let before = self.sessions.insert(session, opened);
        assert!(before.is_none(), "session {session} is open already");
    }

    /// The session uses a tube of another owner.
    pub fn unuse(&mut self, session: u32) {
        self.session(session).used = NOWHERE;
        self.forget_unreferenced_tubes();
    }

    /// The session does not watch this tube any more.
    pub fn unwatch(&mut self, session: u32, name: &[u8]) {
        let tube = self.find(name);
        self.session(session).watched.retain(|watched| Some(*watched) != tube);
        self.forget_unreferenced_tubes();
    }

    /// The session gets this job, whoever else might want it.
    pub fn hand_over(&mut self, now: Moment, session: u32, id: u64) {
        self.hand_to(now, id, session);
    }

    /// Name of the tube that the session uses here.
    #[must_use]
    pub fn used_name(&self, session: u32) -> Option<&[u8]> {
        let used = self.sessions.get(session)?.used;
        self.tubes.get(used).map(|tube| &*tube.name)
    }

    /// Whether the session is in the last second of a job that it holds here.
    #[must_use]
    pub fn is_in_margin(&self, now: Moment, session: u32) -> bool {
        self.in_margin(now, session)
    }

    /// Whether the session watches the tube of this number.
    #[must_use]
    pub fn watches(&self, session: u32, tube: u64) -> bool {
        self.sessions.get(session).is_some_and(|state| state.watched.contains(&tube))
    }

    /// Jobs that could be reserved now, of tubes that are not paused: by priority and id, with their tubes.
    pub fn servable(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        let of_open_tube = |job: &super::Job| job.place == Place::Ready && self.tubes[job.tube].pause.is_none();
        self.jobs.iter().filter(move |(_, job)| of_open_tube(job)).map(|(id, job)| (job.pri, id, job.tube))
    }
}
