//! Allocated space: how much there is, and what it is promised to.
//!
//! Owns: the spare files (allocated, without a number yet), the bytes set aside for STATE and DELETE records of live
//! jobs, and how often a failing allocation is tried again.
//! Never: writes a record.
//!
//! Records do not span segments, so a segment's end is wasted when the next record does not fit. Of a free stretch of
//! `room` bytes, small records (STATE is the largest) are sure to get all but [`END_WASTE_BYTES`]: a record that does
//! not fit leaves less than its own length, and lengths are multiples of 8. All sums here are of such sure bytes, so
//! promises hold in whatever order the records come.

use std::collections::VecDeque;
use std::io;

use crate::format::{CLOSE_RECORD_BYTES, DELETE_RECORD_BYTES, SEGMENT_HEADER_BYTES, STATE_RECORD_BYTES};
use crate::recover::Recovered;
use crate::segment::{SPARE_PREFIX, fresh_room};
use crate::vfs::{Access, Vfs, VfsFile};

/// What a free stretch may lose at its end to small records, in bytes.
pub(crate) const END_WASTE_BYTES: u64 = STATE_RECORD_BYTES - 8;
/// What a live job has set aside, in bytes.
pub(crate) const JOB_RESERVE_BYTES: u64 = STATE_RECORD_BYTES + DELETE_RECORD_BYTES;
/// Failing allocations that may follow each other at once: a client that comes back finds returned space without delay.
const TRIES_MAX: u32 = 3;
/// After those, one try is made per so many ns: on a full disk each costs a file and, on some file systems, a commit.
const TRY_INTERVAL_NS: u64 = 100_000_000;

/// An allocated file that has no number yet.
#[derive(Debug)]
pub(crate) struct Spare<F> {
    pub(crate) name: String,
    /// Open, if it is among the next to be used: many live jobs need many spares, and descriptors are few.
    file: Option<F>,
    pub(crate) bytes: u64,
}

/// Spares that are held open.
const OPEN_SPARES_MAX: usize = 4;

impl<F: VfsFile> Spare<F> {
    /// A file that has just been allocated or found.
    pub(crate) fn new(name: String, file: F, bytes: u64) -> Self {
        Spare { name, file: Some(file), bytes }
    }

    /// File and name of a spare that was taken or has just been allocated.
    pub(crate) fn into_parts(self) -> (F, String) {
        (self.file.expect("a spare is opened when it is taken"), self.name)
    }

    fn opened<V: Vfs<File = F>>(mut self, vfs: &V) -> io::Result<Self> {
        if self.file.is_none() {
            self.file = Some(vfs.open(&self.name, Access::ReadWrite)?);
        }
        Ok(self)
    }
}

/// Bytes that small records are sure to get out of a free stretch.
pub(crate) fn sure(room: u64) -> u64 {
    room.saturating_sub(END_WASTE_BYTES)
}

/// The spares and the promises.
#[derive(Debug)]
pub(crate) struct Space<F> {
    segment_bytes: u64,
    /// Allocated segments of the normal size, in the order in which they will be begun.
    spares: VecDeque<Spare<F>>,
    /// An allocated segment for one record that is too large for a normal one.
    large: Option<Spare<F>>,
    next_spare: u64,
    /// Bytes promised to STATE and DELETE records.
    reserved: u64,
    /// Live jobs whose STATE record has no space of its own.
    owed: u64,
    /// How many of those have been covered since; any of them may use it.
    owed_covered: u64,
    tries: u32,
    next_try_ns: u64,
    last_error: Option<String>,
}

impl<F: VfsFile> Space<F> {
    /// Takes over the spares that a recovery found.
    pub(crate) fn new(segment_bytes: u64, recovered: &mut Recovered<F>) -> Space<F> {
        let mut spares: VecDeque<Spare<F>> = std::mem::take(&mut recovered.spares).into();
        for spare in spares.iter_mut().skip(OPEN_SPARES_MAX) {
            spare.file = None;
        }
        Space {
            segment_bytes,
            spares,
            large: None,
            next_spare: recovered.next_spare,
            reserved: 0,
            owed: 0,
            owed_covered: 0,
            tries: TRIES_MAX,
            next_try_ns: 0,
            last_error: None,
        }
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// Whether the spares alone hold a DELETE record of each of `jobs` jobs.
    pub(crate) fn spares_hold_deletes(&self, jobs: u64) -> bool {
        !self.spares.is_empty() && self.sure_bytes(0, 0).is_some_and(|have| have >= jobs * DELETE_RECORD_BYTES)
    }

    /// Allocates spares until they do. `false` if that fails.
    pub(crate) fn allocate_for_deletes<V: Vfs<File = F>>(&mut self, vfs: &V, jobs: u64) -> bool {
        while !self.spares_hold_deletes(jobs) {
            self.tries = self.tries.max(1);
            if !self.allocate_spare(vfs) {
                return false;
            }
        }
        true
    }

    pub(crate) fn spare_count(&self) -> usize {
        self.spares.len()
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    pub(crate) fn owed(&self) -> u64 {
        self.owed
    }

    /// Why the last allocation failed, if the one after it has not succeeded.
    pub(crate) fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    fn spare_sure(&self) -> u64 {
        sure(fresh_room(self.segment_bytes))
    }

    /// Sure bytes with `room` left in the present segment and all spares but `kept`; `None` if there are fewer spares.
    fn sure_bytes(&self, room: u64, kept: usize) -> Option<u64> {
        let ahead = self.spares.len().checked_sub(kept)? as u64;
        Some(sure(room) + ahead * self.spare_sure())
    }

    /// Sure bytes that a JOB record of `bytes` bytes would leave.
    fn sure_after_job(&self, bytes: u64, room: u64, kept: usize) -> Option<u64> {
        let ahead = self.spares.len().checked_sub(kept)? as u64;
        if bytes <= room {
            Some(sure(room - bytes) + ahead * self.spare_sure())
        } else if bytes <= fresh_room(self.segment_bytes) {
            Some(sure(fresh_room(self.segment_bytes) - bytes) + ahead.checked_sub(1)? * self.spare_sure())
        } else {
            Some(ahead * self.spare_sure())
        }
    }

    /// Whether a new job's JOB record of `bytes` bytes and its reservations fit beside everything promised and owed,
    /// with the compaction's spare kept. Allocates what is missing.
    pub(crate) fn admit_job<V: Vfs<File = F>>(&mut self, vfs: &V, bytes: u64, room: u64) -> bool {
        let owed_bytes = (self.owed - self.owed_covered) * STATE_RECORD_BYTES;
        let needed = self.reserved + owed_bytes + JOB_RESERVE_BYTES;
        while self.sure_after_job(bytes, room, 1).is_none_or(|left| left < needed) {
            if !self.allocate_spare(vfs) {
                return false;
            }
        }
        if bytes > room && bytes > fresh_room(self.segment_bytes) && !self.allocate_large(vfs, bytes) {
            return false;
        }
        self.reserved += owed_bytes;
        self.owed_covered = self.owed;
        true
    }

    /// Whether compaction may append a copy of `bytes` bytes without touching what is promised. Prefers to leave its
    /// spare alone.
    pub(crate) fn admit_copy<V: Vfs<File = F>>(&mut self, vfs: &V, bytes: u64, room: u64) -> bool {
        let needed = self.reserved;
        let fits = |space: &Self, kept| space.sure_after_job(bytes, room, kept).is_some_and(|left| left >= needed);
        if !fits(self, 1) {
            self.allocate_spare(vfs);
        }
        if !fits(self, 1) && !fits(self, 0) {
            return false;
        }
        bytes <= room || bytes <= fresh_room(self.segment_bytes) || self.allocate_large(vfs, bytes)
    }

    /// Sets `bytes` more aside if there is space for them or some can be had.
    pub(crate) fn reserve<V: Vfs<File = F>>(&mut self, vfs: &V, bytes: u64, room: u64) -> bool {
        let fits = self.can_reserve(vfs, bytes, room);
        if fits {
            self.reserved += bytes;
        }
        fits
    }

    fn can_reserve<V: Vfs<File = F>>(&mut self, vfs: &V, bytes: u64, room: u64) -> bool {
        let needed = self.reserved + bytes;
        while self.sure_bytes(room, self.spares.len().min(1)).is_none_or(|have| have < needed) {
            if !self.allocate_spare(vfs) {
                return false;
            }
        }
        true
    }

    /// Takes the reservations of a job that has just been admitted.
    pub(crate) fn job_added(&mut self) {
        self.reserved += if planted_bug!(StateUnreserved) { DELETE_RECORD_BYTES } else { JOB_RESERVE_BYTES };
    }

    /// Takes over `jobs` recovered jobs. `Ok(false)`: their DELETE records have space, not all their STATE records.
    /// `Err`: not even that.
    pub(crate) fn adopt_jobs<V: Vfs<File = F>>(&mut self, vfs: &V, jobs: u64, room: u64) -> Result<bool, ()> {
        if self.reserve(vfs, jobs * JOB_RESERVE_BYTES, room) {
            return Ok(true);
        }
        // Here the compaction's spare counts too: a start on a full disk needs whatever there is.
        let have = self.sure_bytes(room, 0).unwrap_or(0);
        let deletes = jobs * DELETE_RECORD_BYTES;
        if have < deletes {
            return Err(());
        }
        self.owed = jobs;
        let with_spare_kept = self.sure_bytes(room, self.spares.len().min(1)).unwrap_or(0);
        self.owed_covered = (with_spare_kept.saturating_sub(deletes) / STATE_RECORD_BYTES).min(jobs);
        self.reserved = deletes + self.owed_covered * STATE_RECORD_BYTES;
        Ok(false)
    }

    /// Whether a STATE record of a job without a reservation has space.
    pub(crate) fn admit_unreserved_state<V: Vfs<File = F>>(&mut self, vfs: &V, room: u64) -> bool {
        self.owed_covered > 0 || self.can_reserve(vfs, STATE_RECORD_BYTES, room)
    }

    /// A STATE record is about to be written; says what it uses.
    pub(crate) fn use_state(&mut self, had_reservation: bool) {
        if had_reservation {
            self.reserved = self.reserved.saturating_sub(STATE_RECORD_BYTES);
        } else {
            self.forget_owed();
        }
    }

    /// Tries to set space aside for a job's next STATE record.
    pub(crate) fn renew_state<V: Vfs<File = F>>(&mut self, vfs: &V, room: u64) -> bool {
        let reserved = self.reserve(vfs, STATE_RECORD_BYTES, room);
        if !reserved {
            self.owed += 1;
        }
        reserved
    }

    /// A job's DELETE record is about to be written; gives back its STATE reservation.
    pub(crate) fn use_delete(&mut self, had_state_reservation: bool) {
        self.reserved = self.reserved.saturating_sub(DELETE_RECORD_BYTES);
        self.use_state(had_state_reservation);
    }

    fn forget_owed(&mut self) {
        if self.owed_covered > 0 {
            self.owed_covered -= 1;
            self.reserved = self.reserved.saturating_sub(STATE_RECORD_BYTES);
        }
        self.owed = self.owed.saturating_sub(1);
    }

    /// The file that the next segment will be, for a record of `bytes` bytes. It is there if the record was admitted.
    pub(crate) fn take<V: Vfs<File = F>>(&mut self, vfs: &V, bytes: u64) -> io::Result<Spare<F>> {
        if bytes > fresh_room(self.segment_bytes)
            && let Some(large) = self.large.take_if(|large| fresh_room(large.bytes) >= bytes)
        {
            return Ok(large);
        }
        match self.spares.pop_front() {
            Some(spare) if fresh_room(spare.bytes) >= bytes => spare.opened(vfs),
            _ => self.allocate(vfs, self.segment_bytes.max(large_segment_bytes(bytes))),
        }
    }

    /// Makes sure that the compaction's spare is there.
    pub(crate) fn keep_spare<V: Vfs<File = F>>(&mut self, vfs: &V) -> bool {
        !self.spares.is_empty() || self.allocate_spare(vfs)
    }

    /// A spare that nothing promised needs, beyond the compaction's and one more; the caller removes its file.
    pub(crate) fn take_surplus(&mut self, room: u64) -> Option<Spare<F>> {
        let left = self.sure_bytes(room, 3)?;
        if left < self.reserved { None } else { self.spares.pop_back() }
    }

    /// Time goes on: failed allocations may be tried again.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        if now_ns >= self.next_try_ns && self.tries < TRIES_MAX {
            self.tries += 1;
            self.next_try_ns = now_ns + TRY_INTERVAL_NS;
        }
    }

    /// Space was given back, so a try is worth its cost.
    pub(crate) fn space_freed(&mut self) {
        self.tries = self.tries.max(1);
    }

    fn allocate_spare<V: Vfs<File = F>>(&mut self, vfs: &V) -> bool {
        if self.tries == 0 {
            return false;
        }
        match self.allocate(vfs, self.segment_bytes) {
            Ok(mut spare) => {
                if self.spares.len() >= OPEN_SPARES_MAX {
                    spare.file = None;
                }
                self.spares.push_back(spare);
            }
            Err(_) => return false,
        }
        true
    }

    fn allocate_large<V: Vfs<File = F>>(&mut self, vfs: &V, bytes: u64) -> bool {
        if self.large.as_ref().is_some_and(|large| fresh_room(large.bytes) == bytes) {
            return true;
        }
        if let Some(unused) = self.large.take() {
            // Admitted, and then not put after all. If the name stays, the next start removes it.
            let _ = vfs.remove(&unused.name);
        }
        if self.tries == 0 {
            return false;
        }
        self.large = self.allocate(vfs, large_segment_bytes(bytes)).ok();
        self.large.is_some()
    }

    /// Allocates a file. Every failure here only refuses what asked for space: nothing has been promised yet.
    pub(crate) fn allocate<V: Vfs<File = F>>(&mut self, vfs: &V, bytes: u64) -> io::Result<Spare<F>> {
        let name = format!("{SPARE_PREFIX}{}", self.next_spare);
        self.next_spare += 1;
        let result = vfs.create_new(&name).and_then(|file| match file.allocate(bytes) {
            Ok(()) => Ok(file),
            Err(error) => {
                // What was half allocated must not stay; if this fails too, the next start removes it.
                drop(file);
                let _ = vfs.remove(&name);
                Err(error)
            }
        });
        match result {
            Ok(file) => {
                self.tries = TRIES_MAX;
                self.last_error = None;
                Ok(Spare::new(name, file, bytes))
            }
            Err(error) => {
                self.tries = self.tries.saturating_sub(1);
                self.last_error = Some(error.to_string());
                Err(error)
            }
        }
    }
}

/// Length of a segment made for one record of `bytes` bytes.
fn large_segment_bytes(bytes: u64) -> u64 {
    SEGMENT_HEADER_BYTES as u64 + bytes + CLOSE_RECORD_BYTES
}
