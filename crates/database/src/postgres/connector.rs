//! Opens connections.
//!
//! Owns: trying the hosts of an address in turn, the limits of time of a connection in the making, the refusal of servers
//! that only read and of poolers where a session is needed, and which server was seen last.
//! Never: keeps a connection.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use database_core::{Class, DbError};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::connection::{Connection, Heard, Terms, Wire};
use super::dsn::{Dsn, HostConfig};
use super::error::Failure;
use super::identity::{self, ServerIdentity};
use super::tls::{self, TrustError};
use crate::Limits;

/// Probes of an idle connection that may stay unanswered.
const KEEPALIVE_PROBES: u32 = 3;
/// Messages of other sessions that wait for their reader.
const HEARD_MAX: usize = 1024;

/// How long the network may keep us waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Making a connection to one host: name, TLS, signing in and the first questions.
    pub connect: Duration,
    /// Waiting for an answer beyond the limit that the server has for the statement. With zero both give up at once.
    pub grace: Duration,
    /// Silence of the network after which a connection is closed: unacknowledged data (`tcp_user_timeout`), or an idle
    /// connection whose probes are not answered.
    pub silence: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), grace: Duration::from_secs(1), silence: Duration::from_secs(5) }
    }
}

/// Opens connections to one address. Clones are cheap.
#[derive(Clone)]
pub struct Connector {
    dsn: Arc<Dsn>,
    tls: MakeRustlsConnect,
    timeouts: Timeouts,
    limits: Limits,
    pooler_in_session_mode: bool,
    seen: watch::Sender<Option<ServerIdentity>>,
}

impl Connector {
    /// Reads the certificates that the address asks for; opens nothing.
    ///
    /// # Errors
    ///
    /// If these certificates cannot be had.
    pub fn new(dsn: Dsn, timeouts: Timeouts) -> Result<Self, TrustError> {
        let tls = tls::connector(&dsn.trust)?;
        let limits = Limits::default();
        let seen = watch::Sender::new(None);
        Ok(Self { dsn: Arc::new(dsn), tls, timeouts, limits, pooler_in_session_mode: false, seen })
    }

    /// With other limits for transactions that are not given any.
    #[must_use]
    pub const fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Whether a pooler that stands between gives each connection a session of its own for as long as it lasts.
    #[must_use]
    pub const fn with_pooler_in_session_mode(mut self, is_in_session_mode: bool) -> Self {
        self.pooler_in_session_mode = is_in_session_mode;
        self
    }

    /// As this one, for another address of the same server; what is seen there is seen here too.
    pub(super) fn for_address(&self, dsn: Dsn) -> Result<Self, TrustError> {
        let tls = tls::connector(&dsn.trust)?;
        Ok(Self { dsn: Arc::new(dsn), tls, ..self.clone() })
    }

    /// The address.
    #[must_use]
    pub fn dsn(&self) -> &Dsn {
        &self.dsn
    }

    /// The server that the newest connection led to. It changes after a failover.
    #[must_use]
    pub fn identity_changes(&self) -> watch::Receiver<Option<ServerIdentity>> {
        self.seen.subscribe()
    }

    /// Opens a connection, through a pooler too.
    ///
    /// # Errors
    ///
    /// Why no host can be used. [`Class::ReadOnly`] if all that answer only read.
    pub async fn connect(&self) -> Result<Connection, DbError> {
        self.connect_with(None).await
    }

    /// Opens a connection that is a session of the server for as long as it lasts, which leases and notices need.
    ///
    /// # Errors
    ///
    /// As [`Connector::connect`]; [`Class::Broken`] if a pooler stands between that is not said to be in session mode.
    pub async fn connect_direct(&self) -> Result<Connection, DbError> {
        self.refusing_pooler(self.connect().await?)
    }

    /// As [`Connector::connect_direct`]; what other sessions say comes out of the receiver.
    pub(crate) async fn connect_listening(&self) -> Result<(Connection, mpsc::Receiver<Heard>), DbError> {
        let (sender, receiver) = mpsc::channel(HEARD_MAX);
        Ok((self.refusing_pooler(self.connect_with(Some(sender)).await?)?, receiver))
    }

    fn refusing_pooler(&self, connection: Connection) -> Result<Connection, DbError> {
        if connection.is_behind_pooler() && !self.pooler_in_session_mode {
            let message = format!(
                "{}: a connection pooler stands between; leases and notices need the server itself: set [database] \
                 direct_url to its address, or pooler = \"session\" if each connection keeps one of the server for life",
                self.dsn
            );
            return Err(DbError::new(Class::Broken, message));
        }
        Ok(connection)
    }

    async fn connect_with(&self, heard: Option<mpsc::Sender<Heard>>) -> Result<Connection, DbError> {
        let mut refusals: Vec<DbError> = Vec::new();
        for host in &self.dsn.hosts {
            match self.connect_host(host, heard.clone()).await {
                Ok(connection) => return Ok(connection),
                Err(error) => refusals.push(error),
            }
        }
        // The first host is as good as any to tell what to do, but one that answers knows more than one that does not.
        let told = refusals.iter().find(|error| error.class != Class::Unavailable).or(refusals.first());
        let told = told.expect("an address has a host").clone();
        let messages: Vec<_> = refusals.into_iter().map(|error| error.message).collect();
        Err(DbError { message: format!("no connection: {}", messages.join("; ")), ..told })
    }

    async fn connect_host(&self, host: &HostConfig, heard: Option<mpsc::Sender<Heard>>) -> Result<Connection, DbError> {
        let limit = self.timeouts.connect;
        match timeout(limit, self.connect_slowly(host, heard)).await {
            Ok(made) => made,
            Err(_) => {
                let message = format!("{}: no answer within {} ms", host.name, limit.as_millis());
                Err(DbError::new(Class::Unavailable, message))
            }
        }
    }

    async fn connect_slowly(
        &self,
        host: &HostConfig,
        heard: Option<mpsc::Sender<Heard>>,
    ) -> Result<Connection, DbError> {
        let mut config = host.config.clone();
        config.connect_timeout(self.timeouts.connect).tcp_user_timeout(self.timeouts.silence);
        let probe = (self.timeouts.silence / (KEEPALIVE_PROBES + 1)).max(Duration::from_secs(1));
        config.keepalives_idle(probe).keepalives_interval(probe).keepalives_retries(KEEPALIVE_PROBES);
        let (client, connection) =
            config.connect(self.tls.clone()).await.map_err(|error| Failure::to_connect(&error, &host.name))?;
        let wire = Wire::start(connection, heard);
        let named = |error: DbError| DbError { message: format!("{}: {}", host.name, error.message), ..error };
        let session = identity::session(&client, self.timeouts.connect).await.map_err(named)?;
        let terms = Terms {
            limits: self.limits,
            grace: self.timeouts.grace,
            is_per_transaction: session.is_behind_pooler && !self.pooler_in_session_mode,
        };
        let identity = session.identity.clone();
        let connection = Connection::new(client, wire, session, terms).await.map_err(named)?;
        self.see(identity);
        Ok(connection)
    }

    /// Whether another server was seen since.
    pub(super) fn is_elsewhere(&self, identity: &ServerIdentity) -> bool {
        self.seen.borrow().as_ref().is_some_and(|seen| seen.differs_from(identity))
    }

    fn see(&self, identity: ServerIdentity) {
        self.seen.send_if_modified(|seen| {
            let is_new = seen.as_ref() != Some(&identity);
            if let Some(old) = seen.as_ref().filter(|old| identity.differs_from(old)) {
                tracing::warn!(?old, new = ?identity, "the database is another server, or was promoted");
            }
            *seen = Some(identity);
            is_new
        });
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Connector")
            .field("dsn", &self.dsn)
            .field("timeouts", &self.timeouts)
            .finish_non_exhaustive()
    }
}
