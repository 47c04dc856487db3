//! The contract of the queue server, over real sockets against the real executable.
//!
//! One binary, one module per topic; every test starts a server of its own, most of them one of a single process and one
//! of several: see [`mode`]. Expectations are written out byte for byte. Comments cite the part of the contract a test is
//! about: framing, commands, connections, scheduling, formats, options, log, security.
//!
//! `TENURE_TEST_SERVER=/usr/bin/beanstalkd` runs them against the original instead, to see where it differs: each
//! failure then must be a difference that the compatibility matrix lists.

mod data_formats;
mod demo;
mod drain_and_signals;
mod import;
mod large_bodies;
mod log;
mod memory;
mod metrics;
mod mode;
mod multi;
mod multi_configuration;
mod options;
mod parsing;
mod put;
mod release_bury_kick;
mod reserve;
mod reshard;
mod security;
mod serve;
mod sockets;
mod stats;
mod status;
mod status_of_logs;
mod topologies;
mod traces;
mod tubes_and_pause;

use std::time::{Duration, Instant};

use testing::client::Client;
use testing::process::{Launch, wait_until};

use mode::{Mode, in_both_modes};

/// Timed answers come at most 50 ms late on an idle machine; promises of time are tested at ten times their value.
const LATE_MAX: Duration = Duration::from_millis(500);

/// How to start the executable of this build as `tenure tubes`.
fn tubes() -> Launch {
    Launch::new(env!("CARGO_BIN_EXE_tenure"))
}

/// Waits until `count` clients of `server` wait in a reserve, asking through `monitor`.
#[track_caller]
fn wait_for_waiting(monitor: &mut Client, count: usize) {
    wait_until("clients wait in reserve", || monitor.stat("stats", "current-waiting") == count.to_string());
}

/// Checks that what began at `start` took `seconds`, never less, and not much more.
#[track_caller]
fn assert_took(start: Instant, seconds: u64) {
    let took = start.elapsed();
    let due = Duration::from_secs(seconds);
    assert!(took >= due, "{took:?} is too early, {due:?} was asked for");
    assert!(took <= due + LATE_MAX, "{took:?} is too late, {due:?} was asked for");
}
