//! Writing whole segments at once, offline: what a repair or an import leaves behind.
//!
//! Owns: cutting a stream of records into finished segments, each synced before it gets its name.
//! Never: runs while a server has the log.

use std::io;

use crate::format::{self, CLOSE_RECORD_BYTES, Record, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::options::LogOptions;
use crate::segment::segment_name;
use crate::vfs::{Vfs, VfsFile};

/// A log under construction in an empty directory.
#[derive(Debug)]
pub(crate) struct Rewriter<'a, V> {
    vfs: &'a V,
    options: &'a LogOptions,
    next_id: u64,
    number: u32,
    first_sequence: u64,
    sequence: u64,
    buffer: Vec<u8>,
}

impl<'a, V: Vfs> Rewriter<'a, V> {
    /// `next_id` is the counter of ids to go on with.
    pub(crate) fn new(vfs: &'a V, options: &'a LogOptions, next_id: u64) -> Rewriter<'a, V> {
        let buffer = vec![0; SEGMENT_HEADER_BYTES];
        Rewriter { vfs, options, next_id, number: 1, first_sequence: 1, sequence: 1, buffer }
    }

    /// Appends a record; CLOSE records come by themselves.
    pub(crate) fn push(&mut self, record: &Record<'_>) -> io::Result<()> {
        let generation = self.options.generation;
        let before = self.buffer.len();
        self.encode(record, generation);
        let full = (self.buffer.len() as u64 + CLOSE_RECORD_BYTES) > self.options.segment_bytes;
        if full && before > SEGMENT_HEADER_BYTES {
            self.buffer.truncate(before);
            self.finish_segment()?;
            self.encode(record, generation);
        }
        self.sequence += 1;
        Ok(())
    }

    fn encode(&mut self, record: &Record<'_>, generation: u32) {
        match record {
            Record::Job(job) => format::push_job(&mut self.buffer, self.sequence, generation, job),
            Record::State { id, fields } => {
                format::push_state(&mut self.buffer, self.sequence, generation, *id, fields);
            }
            Record::Delete { id } => format::push_delete(&mut self.buffer, self.sequence, generation, *id),
            Record::Close { .. } => unreachable!("segments are closed where they are full"),
        }
    }

    /// Writes what is left. The log then opens as after an orderly stop.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.finish_segment()
    }

    fn finish_segment(&mut self) -> io::Result<()> {
        format::push_close(&mut self.buffer, self.sequence, self.options.generation, self.next_id);
        self.sequence += 1;
        format::seal(&mut self.buffer[SEGMENT_HEADER_BYTES..], self.first_sequence);
        let header = SegmentHeader {
            slot: self.options.slot,
            sync_mode: self.options.sync.byte(),
            number: u64::from(self.number),
            fingerprint: self.options.fingerprint,
            first_sequence: self.first_sequence,
            next_id: self.next_id,
            created_ms: self.options.wall_ms,
            boot_id: self.options.boot_id,
            generation: self.options.generation,
        };
        self.buffer[..SEGMENT_HEADER_BYTES].copy_from_slice(&header.encode());
        let name = segment_name(self.number);
        let temporary = format!("{name}.tmp");
        let file = self.vfs.create_new(&temporary)?;
        file.write_at(0, &self.buffer)?;
        file.sync_data()?;
        self.vfs.rename(&temporary, &name)?;
        self.vfs.sync_dir()?;
        self.number += 1;
        self.first_sequence = self.sequence;
        self.buffer.truncate(SEGMENT_HEADER_BYTES);
        Ok(())
    }
}
