//! Memory behind a backlog (GT12): what a million jobs took is given back when they are gone.

use super::{Mode, in_both_modes};

in_both_modes!(memory_returns_near_its_start_behind_a_consumed_backlog);
fn memory_returns_near_its_start_behind_a_consumed_backlog(mode: Mode) {
    const JOBS: u64 = 200_000;
    const BATCH: u64 = 1000;
    let server = mode.server();
    let mut client = server.connect();
    client.check("list-tube-used\r\n", "USING default\r\n");
    let start = server.resident();
    for first in (1..=JOBS).step_by(BATCH as usize) {
        let ids = first..first + BATCH;
        client.send(format!("put 0 0 60 64\r\n{}\r\n", "x".repeat(64)).repeat(BATCH as usize));
        client.expect(ids.map(|id| format!("INSERTED {id}\r\n")).collect::<String>());
    }
    let full = server.resident();
    assert!(full > start + JOBS * 64, "{start} bytes, then {full}: the backlog is in memory");
    for first in (1..=JOBS).step_by(BATCH as usize) {
        let ids = first..first + BATCH;
        client.send(ids.clone().map(|id| format!("delete {id}\r\n")).collect::<String>());
        client.expect("DELETED\r\n".repeat(BATCH as usize));
    }
    // The last reply leaves before the memory does: another command is answered behind it.
    client.check("list-tube-used\r\n", "USING default\r\n");
    let end = server.resident();
    assert!(end < start + (full - start) / 3, "{start} bytes at the start, {full} with {JOBS} jobs, {end} behind them");
}
