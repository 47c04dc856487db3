//! PgBouncer in front of a server.
//!
//! Owns: its process, port and folder, from the start until it is dropped.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::port::Port;
use super::programs::{self, Account};
use super::{ROLE, home};
use crate::proc;
use crate::process::{Address, OUTER_LIMIT};

/// Clients that can be connected at once.
const CLIENTS_MAX: u32 = 400;
/// Connections to the server, fewer than clients in tests that want to see them shared.
const POOL_SIZE: u32 = 20;

/// When a client gives its connection to the server back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// At the end of each transaction: the next one may run on another connection.
    Transaction,
    /// When it disconnects.
    Session,
}

/// A running PgBouncer. Dropping it kills it and removes its folder.
#[derive(Debug)]
pub struct PgBouncer {
    place: PathBuf,
    port: Port,
    process: Child,
}

impl PgBouncer {
    /// Starts one in front of the server at this address, and waits until it listens.
    ///
    /// Connection options (`options=…` in a DSN) do not reach the server through it.
    ///
    /// # Panics
    ///
    /// If it is not installed or does not start; with its log.
    #[track_caller]
    pub fn new(server: SocketAddr, pooling: Pooling) -> Self {
        let account = Account::choose();
        let place = home::place(account);
        let port = Port::new();
        let pooling = match pooling {
            Pooling::Transaction => "transaction",
            Pooling::Session => "session",
        };
        let configuration = format!(
            "[databases]\n\
             * = host={} port={}\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\n\
             listen_port = {}\n\
             unix_socket_dir =\n\
             auth_type = trust\n\
             auth_file = {}\n\
             pool_mode = {pooling}\n\
             max_client_conn = {CLIENTS_MAX}\n\
             default_pool_size = {POOL_SIZE}\n\
             ignore_startup_parameters = extra_float_digits,options\n",
            server.ip(),
            server.port(),
            port.number(),
            place.join("users").display(),
        );
        fs::write(place.join("pgbouncer.ini"), configuration).expect("a file of our own");
        fs::write(place.join("users"), format!("\"{ROLE}\" \"\"\n")).expect("a file of our own");
        let log = File::create(place.join("log")).expect("a file of our own");
        let mut command = account.command(programs::pgbouncer(), &place);
        command.arg(place.join("pgbouncer.ini"));
        command.stdout(log.try_clone().expect("one more descriptor")).stderr(log);
        let process = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let pooler = Self { place, port, process };
        pooler.wait_until_it_listens();
        pooler
    }

    #[track_caller]
    fn wait_until_it_listens(&self) {
        let descriptor = self.descriptor();
        let deadline = Instant::now() + OUTER_LIMIT;
        while !proc::is_listening(self.process.id(), &Address::Tcp(self.address())) {
            let has_ended = proc::wait_for_end(&descriptor, Duration::from_millis(2));
            assert!(!has_ended, "PgBouncer ended; its log:\n{}", self.log());
            assert!(Instant::now() < deadline, "PgBouncer does not listen; its log:\n{}", self.log());
        }
    }

    #[track_caller]
    fn descriptor(&self) -> OwnedFd {
        // A child that we have not waited for keeps its number.
        pidfd_open(Pid::from_child(&self.process), PidfdFlags::empty()).expect("descriptor of a child of ours")
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// What it wrote to its log so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.place.join("log")).unwrap_or_default()).into_owned()
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        drop(fs::remove_dir_all(&self.place));
    }
}
