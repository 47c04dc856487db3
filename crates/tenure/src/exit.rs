//! From a failure to what the user reads and the exit code. The codes are the same for all commands.

use std::process::ExitCode;

/// A check or a demo failed.
pub(crate) const FAILED: u8 = 1;
/// The command line is wrong.
pub(crate) const USAGE: u8 = 5;

/// The directory, a lock, or anything else that the system does not give.
pub(crate) const SYSTEM: u8 = 10;
/// Somebody else listens there.
pub(crate) const ADDRESS_IN_USE: u8 = 111;

/// A failure with its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// A failure that ends the program with `code`.
    pub(crate) fn new(code: u8, message: impl std::fmt::Display) -> Self {
        Failure { code, message: message.to_string() }
    }

    /// What the user reads.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

impl From<tubes_server::ServeError> for Failure {
    fn from(error: tubes_server::ServeError) -> Self {
        Failure::new(error.exit_code(), error)
    }
}

impl From<tubes_store::datadir::DirError> for Failure {
    fn from(error: tubes_store::datadir::DirError) -> Self {
        Failure::new(error.exit_code(), error)
    }
}

impl From<tubes_store::reshard::ReshardError> for Failure {
    fn from(error: tubes_store::reshard::ReshardError) -> Self {
        Failure::new(error.exit_code(), error)
    }
}

impl From<tubes_store::import::ImportError> for Failure {
    fn from(error: tubes_store::import::ImportError) -> Self {
        Failure::new(error.exit_code(), error)
    }
}

#[cfg(target_os = "linux")]
impl From<daemon::DaemonError> for Failure {
    fn from(error: daemon::DaemonError) -> Self {
        Failure::new(error.exit_code(), error)
    }
}

impl From<tenure_config::ConfigError> for Failure {
    fn from(error: tenure_config::ConfigError) -> Self {
        Failure::new(tenure_config::EXIT_CODE, error)
    }
}

/// Ends the program: 0, or the failure's code behind its message.
pub(crate) fn code(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ =
                std::io::Write::write_all(&mut std::io::stderr(), format!("tenure: {}\n", failure.message).as_bytes());
            ExitCode::from(failure.code)
        }
    }
}

/// Ends a call that asked for help or could not be read.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let is_answer = !error.use_stderr();
    let _ = error.print();
    if is_answer { ExitCode::SUCCESS } else { ExitCode::from(USAGE) }
}
