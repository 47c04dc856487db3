//! One job.

use crate::journal::{Counters, LoggedState, Placement, StateFields};
use tubes_protocol::State;

/// A job, wherever it stands. Its size decides how many a server can hold, so fields are shared where states exclude
/// each other.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: u64,
    /// When it was put, in ms of the boot clock; negative if that was before the machine's start.
    pub(crate) created_boot_ms: i64,
    /// Reserved: the deadline, in ns of the boot clock. Delayed: when it is due, likewise. Buried: its place in the
    /// order of burying. During recovery a delayed job has ms of wall time here. Else 0.
    pub(crate) key: u64,
    pub(crate) body: Box<[u8]>,
    pub(crate) tube: u32,
    pub(crate) pri: u32,
    pub(crate) delay_s: u32,
    pub(crate) ttr_s: u32,
    /// The session that holds it; meaningful only while reserved.
    pub(crate) holder: u32,
    pub(crate) counters: Counters,
    /// Number of the segment with its newest JOB record; 0 without a log.
    pub(crate) segment: u32,
    /// Whether space for its next STATE record is set aside.
    pub(crate) state_reserved: bool,
    pub(crate) state: State,
}

// A million ready jobs must cost at most 0.8 of the original's memory: about 190 bytes each, body included.
const _: () = assert!(size_of::<Option<Job>>() <= 88);

impl Job {
    /// What the job knows about its records in the log.
    pub(crate) fn placement(&self) -> Placement {
        Placement { segment: self.segment, state_reserved: self.state_reserved }
    }

    /// Takes over what the log has said about its records.
    pub(crate) fn set_placement(&mut self, placement: Placement) {
        self.segment = placement.segment;
        self.state_reserved = placement.state_reserved;
    }

    /// What the log says of the job in its present state; `wall_minus_boot_ms` turns times of the boot clock into
    /// wall time.
    pub(crate) fn logged(&self, wall_minus_boot_ms: i64) -> StateFields {
        let (state, due_ms, bury_order) = match self.state {
            State::Ready | State::Reserved => (LoggedState::Ready, 0, 0),
            State::Delayed => (LoggedState::Delayed, to_wall_ms(self.key, wall_minus_boot_ms), 0),
            State::Buried => (LoggedState::Buried, 0, self.key),
        };
        StateFields { state, pri: self.pri, delay_s: self.delay_s, due_ms, bury_order, counters: self.counters }
    }
}

/// A time of the boot clock in ns as ms of wall time. Rounded up, so that a job is not due early after a recovery.
fn to_wall_ms(boot_ns: u64, wall_minus_boot_ms: i64) -> u64 {
    boot_ns.div_ceil(1_000_000).saturating_add_signed(wall_minus_boot_ms)
}
