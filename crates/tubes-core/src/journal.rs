//! What the rules ask of a log, and what a log hands back at recovery.
//!
//! Owns: the contents of log records as values, and the two traits that join rules and log: [`Journal`] (rules to
//! log, while serving) and [`Replay`] (log to rules, at start and for compaction).
//! Never: knows how records are laid out on disk, writes a file or waits for one.

/// How often each thing happened to a job; shown by `stats-job` and carried by every record about the job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Times the job was reserved.
    pub reserves: u32,
    /// Times its time-to-run ended while it was reserved.
    pub timeouts: u32,
    /// Times it was released.
    pub releases: u32,
    /// Times it was buried.
    pub buries: u32,
    /// Times it was kicked.
    pub kicks: u32,
}

/// The states a log knows. A reserved job is `Ready` here: it will be ready after a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoggedState {
    /// Waiting to be reserved, or reserved.
    Ready,
    /// Waiting for its delay to pass.
    Delayed,
    /// Set aside until it is kicked.
    Buried,
}

/// Everything about a job: what a put writes, what compaction copies, what recovery reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobRecord<'a> {
    /// Never given twice within a data directory; 1 or more.
    pub id: u64,
    /// When it was put, in ms of wall time since 1970.
    pub created_ms: u64,
    /// The changeable part.
    pub state: StateFields,
    /// Time to run, in seconds, at least 1.
    pub ttr_s: u32,
    /// Name of its tube, 1 to 200 bytes.
    pub tube: &'a [u8],
    /// The body without its CR LF.
    pub body: &'a [u8],
}

/// The part of a job that release, bury and kick change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateFields {
    /// Where the job stands.
    pub state: LoggedState,
    /// Smaller is more urgent.
    pub pri: u32,
    /// The delay last requested, in seconds.
    pub delay_s: u32,
    /// When the delay ends, in ms of wall time; 0 unless delayed.
    pub due_ms: u64,
    /// Place among the buried jobs of the server, rising; 0 unless buried.
    pub bury_order: u64,
    /// The counters at this moment.
    pub counters: Counters,
}

/// What a job knows about its own records in the log; kept by the rules, read by the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Placement {
    /// Number of the segment that holds the job's newest JOB record; 0 without a log.
    pub segment: u32,
    /// Whether space for one STATE record of this job is set aside.
    pub state_reserved: bool,
}

/// The log, as the rules see it while serving.
///
/// Calls only collect records in memory and account for allocated space; the shell writes and syncs them before it
/// lets any reply out.
pub trait Journal {
    /// Whether the JOB record of such a put, and one STATE and one DELETE record after it, have space in allocated
    /// segments. May allocate a segment. `false`: the put is refused with `OUT_OF_MEMORY` and nothing has changed.
    fn admit_job(&mut self, tube_bytes: usize, body_bytes: usize) -> bool;

    /// Appends the JOB record that [`Journal::admit_job`] has just admitted.
    fn append_job(&mut self, record: &JobRecord<'_>) -> Placement;

    /// Whether a STATE record of the job at `placement` has space: its own reservation, or fresh space. `false`: the
    /// command is refused with `OUT_OF_MEMORY` and nothing has changed.
    fn admit_state(&mut self, placement: Placement) -> bool;

    /// Appends the STATE record that [`Journal::admit_state`] has just admitted, using the job's reservation (or fresh
    /// space) and trying to make the reservation again. Returns the placement after it.
    fn append_state(&mut self, placement: Placement, id: u64, fields: &StateFields) -> Placement;

    /// Appends a DELETE record, for which space is always reserved, and gives back what else the job had reserved.
    /// `tube_bytes` and `body_bytes` are those of the job's JOB record.
    fn append_delete(&mut self, placement: Placement, id: u64, tube_bytes: usize, body_bytes: usize);
}

/// A server without persistence: everything has space and nothing is written.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoJournal;

impl Journal for NoJournal {
    fn admit_job(&mut self, _tube_bytes: usize, _body_bytes: usize) -> bool {
        true
    }
    fn append_job(&mut self, _record: &JobRecord<'_>) -> Placement {
        Placement::default()
    }
    fn admit_state(&mut self, _placement: Placement) -> bool {
        true
    }
    fn append_state(&mut self, placement: Placement, _id: u64, _fields: &StateFields) -> Placement {
        placement
    }
    fn append_delete(&mut self, _placement: Placement, _id: u64, _tube_bytes: usize, _body_bytes: usize) {}
}

/// What a job was in the log before a replayed record replaced or deleted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superseded {
    /// Segment of the JOB record that no longer counts.
    pub segment: u32,
    /// Length of its tube name, in bytes.
    pub tube_bytes: usize,
    /// Length of its body, in bytes.
    pub body_bytes: usize,
}

/// The rules, as the log sees them: at recovery it replays its records into them, in the order of the log, and for
/// compaction it reads live jobs back.
pub trait Replay {
    /// A JOB record in `segment`: creates the job, or replaces it if the id is known.
    fn replay_job(&mut self, record: &JobRecord<'_>, segment: u32) -> Option<Superseded>;

    /// A STATE record. `false` if the id is unknown; such a record is skipped.
    fn replay_state(&mut self, id: u64, fields: &StateFields) -> bool;

    /// A DELETE record. `None` if the id is unknown; such a record is skipped.
    fn replay_delete(&mut self, id: u64) -> Option<Superseded>;

    /// Number of jobs that live at present: what space must be reserved for at the end of a recovery.
    fn live_jobs(&self) -> u64;

    /// Says whether the STATE space of every live job could be reserved at the end of a recovery.
    fn set_state_reserved(&mut self, reserved: bool);

    /// The job as it would be logged at this moment, if it is alive and its newest JOB record lies in `segment`.
    fn live_job(&self, id: u64, segment: u32) -> Option<(JobRecord<'_>, Placement)>;

    /// Compaction has copied the job's JOB record to another segment.
    fn relocate(&mut self, id: u64, placement: Placement);
}
