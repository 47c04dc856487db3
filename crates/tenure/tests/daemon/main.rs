//! The daemon as a process of the program, over HTTP and the command line, on SQLite and on PostgreSQL.
//!
//! One module per topic. Each test has a folder and a database of its own; where a test is about both databases it stands
//! behind `on_both!`, which makes two tests of it. Times of the cluster are short ([`site::TIMES`]); what is promised in
//! beats or leases is tested at ten times its value. Comments cite rows of the requirements (`C4`) and promises (`GC3`).

#![cfg(target_os = "linux")]

mod audit;
mod cluster;
mod configuration;
mod http;
mod keys;
mod scopes;
mod secrets;
mod serve;
mod site;
mod sqlite;
mod tls;
