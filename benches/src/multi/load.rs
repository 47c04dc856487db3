//! What is put on a server of several processes: mixed commands on one hot tube, or on a tube for each connection.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::generator::{Generator, GeneratorError, Responder};
use crate::workload::{Mix, Workload};

/// Over which tubes the connections spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Spread {
    /// Each connection uses and watches a tube of its own; the tubes spread over all owners.
    Own,
    /// All connections share one tube, which one owner has.
    Hot,
}

impl Spread {
    /// Both, in the order of the report.
    pub const ALL: [Self; 2] = [Self::Own, Self::Hot];
}

impl fmt::Display for Spread {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Own => "independent tubes",
            Self::Hot => "one hot tube",
        })
    }
}

/// A load: put, reserve and delete for each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Connections at once.
    pub connections: usize,
    /// Commands a connection sends before it waits for their replies.
    pub depth: usize,
    /// Length of a body in bytes.
    pub body_bytes: usize,
    /// Over which tubes.
    pub spread: Spread,
}

impl Load {
    /// Opens the connections, each on its tube.
    ///
    /// # Errors
    ///
    /// A server that cannot be reached, or that answers `use`, `watch` or `ignore` wrongly.
    pub fn connect(&self, address: SocketAddr) -> Result<Generator, GeneratorError> {
        let Self { connections, depth, body_bytes, spread } = *self;
        let workload = Workload { mix: Mix::Mixed, connections, depth, body_bytes, tubes: 1 };
        match spread {
            Spread::Own => Generator::connect_each_to_its_tube(address, &workload),
            Spread::Hot => Generator::connect(address, &workload, Responder::Queue),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = if self.connections == 1 { "connection" } else { "connections" };
        write!(formatter, "{} {connections}, depth {}, {}", self.connections, self.depth, self.spread)
    }
}
