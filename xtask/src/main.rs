//! The one door for developers: `cargo xtask test | demo | bench | soak | docs | release`.
//!
//! Owns: what the whole check consists of ([`phases`]), how its parts are run side by side and reported ([`runner`]),
//! and the checks that no compiler does for us ([`purity`], [`unsafe_list`], [`deny`], [`platforms`], [`deploy`]).
//! Never: links the server. It is built and run as any user would, so that a broken server still has a working check.

mod bench;
mod cargo;
mod clients;
mod deny;
mod deploy;
mod docs;
mod phases;
mod platforms;
mod process;
mod purity;
mod release;
mod runner;
mod soak;
mod source;
mod tools;
mod unsafe_list;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer tasks of Tenure", disable_version_flag = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the whole check: what CI runs.
    Test {
        /// Run only this phase and those it needs; may be given several times.
        #[arg(long, value_name = "NAME")]
        only: Vec<String>,
        /// Print the phases and what each one checks.
        #[arg(long)]
        list: bool,
    },
    /// Run the demo on a release build; arguments are passed on.
    Demo {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Measure; the first argument says what, the others are passed on.
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Keep 100,000 connections for half an hour, then run the random tests again and again, with seeds that are new in
    /// each round.
    Soak {
        /// When to stop.
        #[arg(long, value_name = "N", default_value_t = 480)]
        minutes: u64,
        /// First seed of the first round; another soak than the last one takes another.
        #[arg(long, value_name = "SEED", default_value_t = 1)]
        seed: u64,
    },
    /// Run the foreign clients against a server executable.
    Clients {
        /// The executable.
        server: PathBuf,
    },
    /// Write the generated parts of the documentation anew.
    Docs,
    /// Build the release executable from a clean tree, pack it and print its checksum.
    Release,
}

fn main() -> ExitCode {
    process::end_children_on_signals();
    let outcome = match Arguments::parse().task {
        Task::Test { list: true, .. } => {
            runner::list(&phases::table());
            Ok(true)
        }
        Task::Test { only, list: false } => runner::run(&root(), &phases::table(), &only),
        Task::Demo { rest } => {
            cargo::pass_through(&root(), &["run", "--release", "--package", "tenure", "--", "demo"], &rest)
        }
        Task::Bench { rest } => bench::run(&rest).map(|()| true),
        Task::Soak { minutes, seed } => soak::run(&root(), minutes, seed).map(|()| true),
        Task::Clients { server } => clients::run(&server).map(|summary| {
            println!("{summary}");
            true
        }),
        Task::Docs => docs::write(&root()).map(|()| true),
        Task::Release => release::run(&root()).map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's folder; cargo tells it, so that the task runs from any folder.
fn root() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.parent().map_or(own.clone(), PathBuf::from)
}
