//! One server for all tests of a program, and a database in it for each.
//!
//! Owns: that server, which lives until the program ends, and the databases, which live as long as their values.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Options, ROLE, Row, SUPERUSER, Server};

/// Connections of the shared server: tests of a program run side by side, some of them with many members.
const SHARED_CONNECTIONS: u32 = 400;

/// The server that the tests of this program share; started by whoever asks first.
///
/// It does not wait for the disk. A test that stops, freezes or overloads a server needs one of its own.
///
/// # Panics
///
/// As [`Options::start`].
#[track_caller]
pub fn shared() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| Options::new().max_connections(SHARED_CONNECTIONS).without_sync().start())
}

/// An empty database of its own, owned by [`ROLE`]. Dropping it ends its sessions and removes it.
#[derive(Debug)]
pub struct Database {
    server: &'static Server,
    name: String,
}

impl Database {
    /// A fresh one.
    ///
    /// # Panics
    ///
    /// If the server cannot be started, or refuses.
    #[track_caller]
    #[expect(clippy::new_without_default, reason = "making a database has an effect outside of the program")]
    pub fn new() -> Self {
        Self::on(shared())
    }

    /// A fresh one on another server that lives until the program ends.
    ///
    /// # Panics
    ///
    /// If the server refuses.
    #[track_caller]
    pub fn on(server: &'static Server) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        server.sql(&format!("CREATE DATABASE {name} OWNER {ROLE} TEMPLATE template0"));
        Self { server, name }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its server listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// How the program under test connects.
    pub fn dsn(&self) -> String {
        self.dsn_at(self.address())
    }

    /// As [`Database::dsn`], through a proxy or pooler.
    pub fn dsn_at(&self, address: SocketAddr) -> String {
        self.server.dsn_at(address, &self.name)
    }

    /// How the harness connects.
    pub fn superuser_dsn(&self) -> String {
        self.server.superuser_dsn(&self.name)
    }

    /// Runs statements in it as its owner.
    ///
    /// # Panics
    ///
    /// If they fail.
    #[track_caller]
    pub fn sql(&self, statements: &str) -> Vec<Row> {
        super::query(&self.dsn(), statements).unwrap_or_else(|error| panic!("{statements}: {error}"))
    }

    /// Ends all its sessions; how many there were.
    #[track_caller]
    pub fn terminate_all(&self) -> u32 {
        self.server.terminate_all(&self.name)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // A test that fails here would hide why it is ending; the server goes with the program anyway.
        drop(self.server.try_sql(SUPERUSER, &format!("DROP DATABASE {} WITH (FORCE)", self.name)));
    }
}
