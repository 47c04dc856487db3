//! The order in which replies were decided, for the history checker (feature `trace`).
//!
//! Lines of text, written with one call per turn before any reply of the turn leaves, so that a killed process has
//! traced whatever a client may have heard:
//!
//! - `start GENERATION BOOT_NS`
//! - `accept GENERATION CONNECTION PEER_PORT BOOT_NS`
//! - `reply GENERATION CONNECTION COMMAND SEQUENCE BOOT_NS`: the reply to the connection's command number COMMAND (from
//!   1; `quit` has none) was decided as number SEQUENCE of this generation.
//! - `close GENERATION CONNECTION SEQUENCE BOOT_NS`: the connection's jobs were given back. Numbered like a reply, and
//!   written twice if the connection took its last replies later than it ended.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use tubes_core::SessionId;

/// The trace file.
#[derive(Debug)]
pub(crate) struct Trace {
    file: File,
    generation: u32,
    lines: Vec<u8>,
    sequence: u64,
    connection_count: u64,
    /// By session: number of its connection, and replies so far.
    connections: Vec<(u64, u64)>,
}

impl Trace {
    pub(crate) fn open(path: &Path, generation: u32, now_ns: u64) -> std::io::Result<Trace> {
        let file = File::options().create(true).append(true).open(path)?;
        let lines = format!("start {generation} {now_ns}\n").into_bytes();
        Ok(Trace { file, generation, lines, sequence: 0, connection_count: 0, connections: Vec::new() })
    }

    pub(crate) fn accept(&mut self, session: SessionId, peer_port: u16, now_ns: u64) {
        self.connection_count += 1;
        let at = session.0 as usize;
        if self.connections.len() <= at {
            self.connections.resize(at + 1, (0, 0));
        }
        self.connections[at] = (self.connection_count, 0);
        let _ = writeln!(self.lines, "accept {} {} {peer_port} {now_ns}", self.generation, self.connection_count);
    }

    pub(crate) fn reply(&mut self, session: SessionId, now_ns: u64) {
        let (connection, command) = &mut self.connections[session.0 as usize];
        *command += 1;
        self.sequence += 1;
        let _ = writeln!(self.lines, "reply {} {connection} {command} {} {now_ns}", self.generation, self.sequence);
    }

    pub(crate) fn close(&mut self, session: SessionId, now_ns: u64) {
        let (connection, _) = self.connections[session.0 as usize];
        self.sequence += 1;
        let _ = writeln!(self.lines, "close {} {connection} {} {now_ns}", self.generation, self.sequence);
    }

    pub(crate) fn flush(&mut self) -> std::io::Result<()> {
        if !self.lines.is_empty() {
            self.file.write_all(&self.lines)?;
            self.lines.clear();
        }
        Ok(())
    }
}
