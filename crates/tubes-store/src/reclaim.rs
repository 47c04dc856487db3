//! A start on a full disk: getting space for its first segment out of the log itself.
//!
//! Owns: cutting the unused ends of old segments, and beginning an empty last one again.
//! Never: touches a byte of a record. Used only where an allocation has failed and the spare is gone, which takes
//! several kills on a disk that stays full.

use crate::error::OpenError;
use crate::format::SEGMENT_HEADER_BYTES;
use crate::recover::{Recovered, io_error};
use crate::segment::segment_name;
use crate::vfs::{Access, Vfs, VfsFile};

/// Smallest segment with which a start on a full disk makes do, in bytes.
pub(crate) const LAST_RESORT_BYTES_MIN: u64 = 64 * 1024;

/// Gives back what old segments have allocated and will never use: a start never appends to them.
pub(crate) fn cut_unused_ends<V: Vfs>(vfs: &V, recovered: &mut Recovered<V::File>) -> Result<(), OpenError> {
    for index in 0..recovered.segments.len() {
        let segment = recovered.segments.at_mut(index);
        let (number, end) = (segment.number, segment.end);
        if segment.bytes == end {
            continue;
        }
        let name = segment_name(number);
        let file = vfs.open(&name, Access::ReadWrite).map_err(|source| io_error(vfs, &name, "open", source))?;
        file.truncate(end).map_err(|source| io_error(vfs, &name, "cut", source))?;
        file.sync_data().map_err(|source| io_error(vfs, &name, "sync", source))?;
        recovered.segments.resize(index, end);
    }
    Ok(())
}

/// Removes a last segment that has a header and no record; its number is given to the segment of this start, whose
/// header says all that the removed one said.
pub(crate) fn remove_empty_last<V: Vfs>(vfs: &V, recovered: &mut Recovered<V::File>) -> Result<(), OpenError> {
    let Some(last) = recovered.segments.newest() else { return Ok(()) };
    // With a single segment the counter of ids would be on no disk for a moment.
    if last.end > SEGMENT_HEADER_BYTES as u64 || recovered.segments.len() == 1 {
        return Ok(());
    }
    let number = last.number;
    let name = segment_name(number);
    vfs.remove(&name).and_then(|()| vfs.sync_dir()).map_err(|source| io_error(vfs, &name, "remove", source))?;
    recovered.segments.pop_newest();
    recovered.next_number = number;
    Ok(())
}
