//! What idle connections and idle tubes add to a command: user instructions and system calls of a fixed script.
//!
//! The script is played twice, once twice as long, and the difference is divided by the difference in commands: start,
//! the opening of connections and the making of tubes fall out.

use std::fs;
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result};

use super::{Effort, sync::calls_in_summary};
use crate::generator::{Generator, Responder};
use crate::peer::{Contender, LogMode, Programs};
use crate::process::{Folder, Server};
use crate::results::IdleCount;
use crate::round::Lab;
use crate::workload::{Mix, Workload};

/// Connections that play the script in turn, one batch each.
const PLAYERS: usize = 16;
/// Commands of the shorter script: whole turns of all players at depth 1 and 16, and so many that the growth of a table
/// in the middle is shared by all.
const COMMANDS: u64 = 49_152;
const IDLE_CONNECTIONS: usize = 10_000;
const IDLE_TUBES: usize = 100_000;
/// The original walks all tubes at every step; with 100,000 it would not end.
const ORIGINAL_TUBES: usize = 1_000;

pub(super) fn measure(lab: &Lab, effort: Effort) -> Result<Vec<IdleCount>> {
    Programs::need_tool("strace")?;
    Programs::need_tool("valgrind")?;
    let scale = if effort.quick { 10 } else { 1 };
    let mut counts = Vec::new();
    for contender in [Contender::Tenure, Contender::Beanstalkd] {
        let tubes = if contender == Contender::Tenure { IDLE_TUBES } else { ORIGINAL_TUBES };
        for depth in [1, 16] {
            for (connections, tubes) in [(0, 0), (IDLE_CONNECTIONS / scale, 0), (0, tubes / scale)] {
                let count = IdleCount {
                    contender,
                    connections,
                    tubes,
                    depth,
                    instructions: per_command(|commands| {
                        instructions(lab, contender, connections, tubes, depth, commands)
                    })?,
                    calls: per_command(|commands| calls(lab, contender, connections, tubes, depth, commands))?,
                };
                eprintln!(
                    "idle: {contender}, depth {depth}, {connections} idle connections, {tubes} idle tubes: \
                     {:.1} instructions and {:.4} system calls a command",
                    count.instructions, count.calls
                );
                counts.push(count);
            }
        }
    }
    Ok(counts)
}

fn per_command(count: impl Fn(u64) -> Result<u64>) -> Result<f64> {
    let (short, long) = (count(COMMANDS)?, count(2 * COMMANDS)?);
    Ok((long as f64 - short as f64) / COMMANDS as f64)
}

fn instructions(
    lab: &Lab,
    contender: Contender,
    connections: usize,
    tubes: usize,
    depth: usize,
    commands: u64,
) -> Result<u64> {
    let folder = Folder::create(&lab.folder, "callgrind")?;
    let out = folder.path().join("counts");
    let mut file = std::ffi::OsString::from("--callgrind-out-file=");
    file.push(&out);
    let options = ["--tool=callgrind".into(), file];
    let command = lab.programs.queue(contender, LogMode::Memory, folder.path()).wrapped("valgrind", &options);
    let server = Server::start(&command, folder.path(), lab.cores)?;
    play(server.address(), connections, tubes, depth, commands)
        .with_context(|| format!("{contender} under callgrind: {}", server.output()))?;
    server.stop()?;
    let text = fs::read_to_string(&out).with_context(|| format!("read {}", out.display()))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals:").or_else(|| line.strip_prefix("summary:")));
    let total = total.and_then(|line| line.split_whitespace().next()?.parse().ok());
    total.context("callgrind wrote no total")
}

fn calls(
    lab: &Lab,
    contender: Contender,
    connections: usize,
    tubes: usize,
    depth: usize,
    commands: u64,
) -> Result<u64> {
    let folder = Folder::create(&lab.folder, "strace")?;
    let summary = folder.path().join("summary");
    let options = ["-f".into(), "-c".into(), "-o".into(), summary.clone().into()];
    let command = lab.programs.queue(contender, LogMode::Memory, folder.path()).wrapped("strace", &options);
    let server = Server::start(&command, folder.path(), lab.cores)?;
    play(server.address(), connections, tubes, depth, commands)
        .with_context(|| format!("{contender} under strace: {}", server.output()))?;
    server.stop_wrapped()?;
    calls_in_summary(&summary)
}

/// Opens the idle connections, makes the idle tubes and plays the script.
fn play(address: SocketAddr, connections: usize, tubes: usize, depth: usize, commands: u64) -> Result<()> {
    let idle = (0..connections)
        .map(|_| TcpStream::connect(address).context("open an idle connection"))
        .collect::<Result<Vec<_>>>()?;
    let load = Workload { mix: Mix::Mixed, connections: 1, depth, body_bytes: 64, tubes: 1 };
    if tubes > 0 {
        let fill = Workload { mix: Mix::Put, depth: 64, tubes, ..load.clone() };
        // One `use` and one `put` for each. The connection ends here, so that the tubes are left to themselves.
        Generator::connect_without_watching(address, &fill)?.run_commands(2 * tubes as u64)?;
    }
    let mut players =
        (0..PLAYERS).map(|_| Generator::connect(address, &load, Responder::Queue)).collect::<Result<Vec<_>, _>>()?;
    let turns = commands / (PLAYERS * depth) as u64;
    for _ in 0..turns {
        for player in &mut players {
            player.run_commands(depth as u64)?;
        }
    }
    drop(idle);
    Ok(())
}
