//! The benchmark of group commit: `cargo xtask bench group-commit`.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use benches::group_commit::{Contender, Lab, markdown};
use benches::machine::{BusyTime, Description, today};
use benches::process::Folder;
use clap::Parser;

#[derive(Parser)]
#[command(name = "bench-group-commit", about = "Measures group commit beside one commit for each request")]
struct Arguments {
    /// One short round, and no report.
    #[arg(long)]
    quick: bool,
    /// Rounds; fewer than 10 make no verdict.
    #[arg(long)]
    pairs: Option<usize>,
    /// Length in seconds of a round for each contender.
    #[arg(long)]
    seconds: Option<f64>,
    /// Where the report goes.
    #[arg(long, default_value = "docs/performance/group-commit.md")]
    out: PathBuf,
    /// Where the SQLite files are, in a folder that is removed afterwards; on a real disk [default: beside this program].
    #[arg(long)]
    folder: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-group-commit: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let program = std::env::current_exe().context("find this program")?;
    let beside = program.parent().context("this program has no folder")?.to_owned();
    let folder = arguments.folder.clone().unwrap_or(beside);
    Folder::remove_left_over(&folder)?;
    let scratch = Folder::create(&folder, "group-commit")?;
    let pairs = arguments.pairs.unwrap_or(if arguments.quick { 1 } else { 11 }).max(1);
    let seconds = arguments.seconds.unwrap_or(if arguments.quick { 0.5 } else { 3.0 }).clamp(0.02, 600.0);
    let length = Duration::from_secs_f64(seconds);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let busy = BusyTime::read()?;
    let rounds = runtime.block_on(async {
        let lab = Lab::open(scratch.path()).await?;
        let mut rounds = Vec::new();
        for round in 1..=pairs {
            let mut samples = Vec::new();
            for contender in Contender::ALL {
                let sample = lab.measure(contender, length).await.with_context(|| contender.to_string())?;
                eprintln!(
                    "round {round} of {pairs}: {contender}: {:.0}/s, 99 % {:.2} ms, {:.1} a commit",
                    sample.rate,
                    sample.p99_us / 1e3,
                    sample.per_commit
                );
                samples.push(sample);
            }
            rounds.push(samples);
        }
        anyhow::Ok(rounds)
    })?;
    let others = BusyTime::read()?.others_since(&busy);
    let report = markdown(&rounds, length, &Description::read()?, &today(), others);
    if arguments.quick {
        print!("{report}");
        return Ok(());
    }
    std::fs::write(&arguments.out, report).with_context(|| format!("write {}", arguments.out.display()))?;
    println!("{}", arguments.out.display());
    Ok(())
}
