//! Connections that are lent for one script at a time.
//!
//! Owns: how many there are, how long one is waited for, and which ones are given up: those that a call has spoiled, and
//! all that were made before the server was found to be another one or to only read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use database_core::{Class, DbError};
use deadpool::Runtime;
use deadpool::managed::{self, Metrics, PoolError, RecycleError, RecycleResult};

use super::connection::Connection;
use super::connector::Connector;

/// Fewest connections: one for what is long, one for what waits for a lock, one for the rest.
pub(super) const SIZE_MIN: usize = 3;

/// The pool.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    connections: managed::Pool<Maker>,
    wait: Duration,
}

/// How busy a pool is, in connections and callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStatus {
    /// Connections that there can be.
    pub size_max: usize,
    /// Connections that there are.
    pub open: usize,
    /// Those that are lent.
    pub in_use: usize,
    /// Callers that wait for one.
    pub waiting: usize,
}

/// A connection on loan. It goes back when dropped.
pub(crate) type Loan = managed::Object<Maker>;

/// Makes connections and looks them over before they are lent again.
#[derive(Debug)]
pub(crate) struct Maker {
    connector: Connector,
    /// Raised to give up all connections that were made before.
    generation: AtomicU64,
}

/// A connection of the pool.
#[derive(Debug)]
pub(crate) struct Pooled {
    pub(crate) connection: Connection,
    generation: u64,
}

impl managed::Manager for Maker {
    type Type = Pooled;
    type Error = DbError;

    async fn create(&self) -> Result<Pooled, DbError> {
        let generation = self.generation.load(Ordering::Acquire);
        Ok(Pooled { connection: self.connector.connect().await?, generation })
    }

    async fn recycle(&self, pooled: &mut Pooled, _: &Metrics) -> RecycleResult<DbError> {
        if !pooled.connection.is_usable() {
            return Err(RecycleError::message("closed"));
        }
        let is_elsewhere = self.connector.is_elsewhere(pooled.connection.identity());
        if pooled.generation != self.generation.load(Ordering::Acquire) || is_elsewhere {
            return Err(RecycleError::message("leads to a server that was left"));
        }
        Ok(())
    }
}

impl Pool {
    /// Opens nothing yet.
    pub(super) fn new(connector: Connector, size: usize, wait: Duration) -> Self {
        let connections = managed::Pool::builder(Maker { connector, generation: AtomicU64::new(0) })
            .max_size(size)
            .wait_timeout(Some(wait))
            .runtime(Runtime::Tokio1)
            .build()
            .expect("a runtime is named, as limits of time need it");
        Self { connections, wait }
    }

    /// A connection that works as far as is known; waits for one if all are lent.
    pub(crate) async fn get(&self) -> Result<Loan, DbError> {
        self.connections.get().await.map_err(|error| match error {
            PoolError::Backend(error) => error,
            PoolError::Closed => DbError::new(Class::Unavailable, "the pool is closed"),
            // Making a connection is bounded by its connector.
            PoolError::Timeout(_) | PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_) => DbError::new(
                Class::Exhausted,
                format!(
                    "all {} connections of the pool were in use for {} ms ([database] pool_size)",
                    self.connections.status().max_size,
                    self.wait.as_millis()
                ),
            ),
        })
    }

    /// After an error of a connection: what is true of it may be true of all that were made before.
    pub(super) fn learn(&self, error: &DbError) {
        // A plan that a migration has made stale, and that each of them may have.
        let is_stale_plan = error.class == Class::Conflict && error.code.as_deref() == Some("0A000");
        if error.class == Class::ReadOnly || is_stale_plan {
            self.connections.manager().generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn status(&self) -> PoolStatus {
        let status = self.connections.status();
        let in_use = status.size.saturating_sub(status.available);
        PoolStatus { size_max: status.max_size, open: status.size, in_use, waiting: status.waiting }
    }

    pub(super) fn close(&self) {
        self.connections.close();
    }
}
