//! PostgreSQL, from version 14.
//!
//! Owns: the address, connections, the pool, how a script is carried out over them, and what the driver's errors mean.
//! Never: knows a statement of the parts above.
//!
//! Two ways lead to the server: the pool, which may go through a connection pooler, and direct connections, which may not
//! ([`Connector::connect_direct`]): leases and notices need a session of their own.

mod connection;
mod connector;
mod dsn;
mod error;
mod identity;
mod pool;
mod process_number;
mod tls;
mod value;

use std::sync::Arc;
use std::time::Duration;

use database_core::{Class, DbError, Script};

pub use self::connection::Connection;
pub use self::connector::{Connector, Timeouts};
pub use self::dsn::{Dsn, DsnError};
pub use self::identity::ServerIdentity;
pub(crate) use self::pool::Pool;
pub use self::pool::PoolStatus;
pub use self::tls::TrustError;
use crate::{Limits, Notices};

/// What is to be known of a server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `[database] url`.
    pub dsn: Dsn,
    /// `[database] direct_url`, past a pooler; `None`: as `dsn`.
    pub direct: Option<Dsn>,
    /// A pooler that stands between gives each connection a session of its own.
    pub pooler_in_session_mode: bool,
    /// Connections of the pool, at least 3.
    pub pool_size: usize,
    /// How long a connection of the pool is waited for.
    pub pool_wait: Duration,
    /// For all connections.
    pub timeouts: Timeouts,
    /// For scripts that are not given others.
    pub limits: Limits,
    /// How often it is made sure that notices arrive.
    pub beat: Duration,
}

impl Settings {
    /// The defaults, for this address.
    #[must_use]
    pub fn new(dsn: Dsn) -> Self {
        Self {
            dsn,
            direct: None,
            pooler_in_session_mode: false,
            pool_size: 8,
            pool_wait: Duration::from_secs(5),
            timeouts: Timeouts::default(),
            limits: Limits::default(),
            beat: Duration::from_secs(5),
        }
    }
}

/// Why settings cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The pool could be used up by work that waits for other work.
    #[error("[database] pool_size is {0}; at least {min} connections are needed", min = pool::SIZE_MIN)]
    PoolTooSmall(usize),
    /// Certificates cannot be checked.
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// A PostgreSQL server. Clones are cheap, and share the pool.
#[derive(Debug, Clone)]
pub struct Postgres(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pool: Pool,
    direct: Connector,
    notices: Notices,
    limits: Limits,
}

impl Postgres {
    /// Opens nothing yet, but begins to listen for notices: a runtime must be there.
    ///
    /// # Errors
    ///
    /// What is wrong with the settings.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        if settings.pool_size < pool::SIZE_MIN {
            return Err(SettingsError::PoolTooSmall(settings.pool_size));
        }
        let connector = Connector::new(settings.dsn, settings.timeouts)?
            .with_limits(settings.limits)
            .with_pooler_in_session_mode(settings.pooler_in_session_mode);
        let direct = settings.direct.map(|dsn| connector.for_address(dsn)).transpose()?.unwrap_or(connector.clone());
        let pool = Pool::new(connector, settings.pool_size, settings.pool_wait);
        let notices = Notices::over_postgres(direct.clone(), pool.clone(), settings.beat);
        Ok(Self(Arc::new(Inner { pool, direct, notices, limits: settings.limits })))
    }

    /// Opens connections outside of the pool: [`Connector::connect_direct`].
    #[must_use]
    pub fn direct(&self) -> &Connector {
        &self.0.direct
    }

    /// How busy the pool is.
    #[must_use]
    pub fn pool_status(&self) -> PoolStatus {
        self.0.pool.status()
    }

    /// As [`crate::Database::run_once`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn run_once<T: Send + 'static>(&self, script: Script<T>) -> Result<T, DbError> {
        self.run_with(self.0.limits, script).await
    }

    pub(crate) async fn run_with<T: Send + 'static>(&self, limits: Limits, script: Script<T>) -> Result<T, DbError> {
        let mut loan = self.0.pool.get().await?;
        self.to_the_end(async move { loan.connection.run_with(limits, script).await }).await
    }

    pub(crate) async fn read<T: Send + 'static>(&self, script: Script<T>) -> Result<T, DbError> {
        let mut loan = self.0.pool.get().await?;
        self.to_the_end(async move { loan.connection.read(script).await }).await
    }

    /// Goes on when the caller does not wait any longer, as a script on SQLite does. It ends soon, by its limits; ending it
    /// at once would cost the pool a connection for each request whose client hangs up.
    async fn to_the_end<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, DbError>> + Send + 'static,
    ) -> Result<T, DbError> {
        let pool = self.0.pool.clone();
        let call = tokio::spawn(async move { call.await.inspect_err(|error| pool.learn(error)) });
        match call.await {
            Ok(result) => result,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(DbError::new(Class::Unknown, "the program ends, and its last calls were not waited for")),
        }
    }

    pub(crate) fn notices(&self) -> &Notices {
        &self.0.notices
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.pool.close();
    }
}
