//! One client's connection: its socket and what has been read of its commands.

use crate::listen::Stream;
use tubes_protocol::Framer;

/// Pending output of one client above which its commands wait, in bytes. A client that asks without reading stops being
/// read; one reply (a job, a list) may come on top.
pub(crate) const OUTPUT_BYTES_MAX: usize = 256 * 1024;

/// A connected client.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) framer: Framer,
    /// Input that has been read and not consumed: a partial line, or commands that must wait.
    pub(crate) input: Vec<u8>,
    /// The socket may have more to read.
    pub(crate) is_readable: bool,
    /// The socket may take more output.
    pub(crate) is_writable: bool,
    /// The system said that the client will send nothing more; what it sent before may still have to be read.
    pub(crate) is_ending: bool,
    /// It has sent urgent data, at whose mark a read ends short of what is there.
    pub(crate) has_urgent: bool,
    /// All that the client sent has been read.
    pub(crate) is_at_end: bool,
    /// Close it once its output has been taken.
    pub(crate) is_closing: bool,
    /// Memory promised for its large body, in bytes: the one being received, or one that is being put.
    pub(crate) body_bytes: u64,
    /// The promise is for the body being received.
    pub(crate) is_receiving: bool,
    /// It stands in the list of connections to go on with in the next turn.
    pub(crate) is_scheduled: bool,
}

impl Connection {
    pub(crate) fn new(stream: Stream) -> Self {
        Connection {
            stream,
            framer: Framer::new(),
            input: Vec::new(),
            is_readable: true,
            is_writable: true,
            is_ending: false,
            has_urgent: false,
            is_at_end: false,
            is_closing: false,
            body_bytes: 0,
            is_receiving: false,
            is_scheduled: false,
        }
    }
}
