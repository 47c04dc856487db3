//! The program: command line, wiring, exit codes; nothing else.

mod allocator;
mod cli;
mod configuration;
#[cfg(target_os = "linux")]
mod daemon;
mod demo;
mod exit;
#[cfg(target_os = "linux")]
mod http;
#[cfg(target_os = "linux")]
mod listeners;
mod log_files;
mod logging;
mod manual;
mod output;
#[cfg(target_os = "linux")]
mod remote;
#[cfg(target_os = "linux")]
mod serve;
mod status;
mod tubes;

use std::process::ExitCode;

fn main() -> ExitCode {
    tubes_server::give_memory_back_with(allocator::give_back);
    let arguments: Vec<_> = std::env::args_os().collect();
    if let Some(role) = arguments.get(1).and_then(|word| tubes_server::role(word.to_str()?)) {
        // Started by the supervisor, which has read the command line and says how much to write.
        logging::start(logging::level_of(arguments.get(2).and_then(|word| word.to_str())));
        return exit::code(role().map_err(Into::into));
    }
    #[cfg(target_os = "linux")]
    if arguments.get(1).is_some_and(|word| word == daemon::WORD) {
        let level = logging::level_of(arguments.get(2).and_then(|word| word.to_str()));
        let is_level_given = arguments.get(3).is_some_and(|word| word == daemon::LEVEL_GIVEN);
        return exit::code(daemon::serve_as_child(level, is_level_given));
    }
    let command = match cli::parse(arguments) {
        Ok(command) => command,
        Err(error) => return exit::usage(&error),
    };
    let result = match command {
        #[cfg(target_os = "linux")]
        cli::Command::Serve(call) => serve::serve(&call),
        #[cfg(not(target_os = "linux"))]
        cli::Command::Serve(_) => Err(exit::Failure::new(
            exit::USAGE,
            "several processes under one supervisor exist on Linux only; `tenure tubes` works everywhere",
        )),
        #[cfg(target_os = "linux")]
        cli::Command::Daemon(call) => daemon::serve_alone(&call),
        #[cfg(not(target_os = "linux"))]
        cli::Command::Daemon(_) => {
            Err(exit::Failure::new(exit::USAGE, "this build has no daemon; `tenure tubes` works everywhere"))
        }
        cli::Command::Tubes(call) => tubes::serve(*call),
        cli::Command::Check { directory } => log_files::check(&directory),
        cli::Command::Repair { directory } => log_files::repair(&directory),
        cli::Command::Reshard { directory, owners, keep } => log_files::reshard(&directory, owners, keep),
        cli::Command::Import { from, to, owners } => log_files::import(&from, &to, owners),
        cli::Command::Demo(options) => demo::run(&options),
        cli::Command::Status(call) => status::show(&call),
        cli::Command::Config { call, config } => configuration::run(&call, config),
        #[cfg(target_os = "linux")]
        cli::Command::Cluster { call, config } => remote::cluster(&call, config),
        #[cfg(target_os = "linux")]
        cli::Command::Key { call, config } => remote::key(&call, config),
        #[cfg(target_os = "linux")]
        cli::Command::Backup { directory, config } => remote::backup(&directory, config),
        cli::Command::Completions { shell } => manual::completions(shell),
        cli::Command::Manual(call) => manual::print(&call),
        cli::Command::RestartSlot { slot, place } => status::restart_slot(&slot, &place),
    };
    exit::code(result)
}
