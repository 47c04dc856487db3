//! A private PostgreSQL for tests, and the faults around it.
//!
//! Owns: servers that a test starts, breaks and copies ([`Server`]); one that the tests of a program share, with a
//! database for each ([`Database`]); what stands between a client and a server ([`TcpProxy`], [`PgBouncer`]); and a
//! clock of the database that can be set ([`clock`]).
//! Never: uses a server of the machine, or leaves a process, a folder or shared memory behind: dropping a value ends
//! what it started, and when this process ends in any way, a guard ([`home`]) does it.
//!
//! PostgreSQL refuses to run as root, so a test that runs as root starts it as `postgres` or `nobody`. Only Debian's
//! packages `postgresql` and `pgbouncer` are needed; a test that needs one which is not there fails and names it.
//!
//! ```text
//! let server = Server::new();                       // or Options::new().max_connections(400).start()
//! let database = Database::new();                   // of its own, on the server that the tests of a program share
//! let proxy = TcpProxy::new(server.address());
//! connect(&server.dsn_at(proxy.address(), "tenure")) // postgresql://tenure@127.0.0.1:PORT/tenure
//! ```

pub mod clock;
mod database;
mod home;
mod pgbouncer;
mod port;
mod programs;
mod proxy;
mod server;
mod sql;
mod template;

pub use database::{Database, shared};
pub use pgbouncer::{PgBouncer, Pooling};
pub use proxy::{Counts, Direction, Mode, TcpProxy};
pub use server::{Options, Server};
pub use sql::{Row, query};

/// The role that the program under test uses, owner of its database, without privileges over the server.
pub const ROLE: &str = "tenure";

/// The role of the harness; only reachable by the socket in a server's own folder.
pub const SUPERUSER: &str = "postgres";
