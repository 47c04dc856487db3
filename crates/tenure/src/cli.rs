//! The command line: what can be written, and what it means.
//!
//! Called by the name `beanstalkd`, the program takes that program's command line and is `tenure tubes`.

use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tenure_config::LogLevel;

#[cfg(target_os = "linux")]
use crate::remote::{ClusterLine, KeyLine};

use crate::configuration::ConfigLine;
use crate::manual::ManualCall;

/// The name under which the program takes beanstalkd's place.
const ORIGINAL: &str = "beanstalkd";

/// What was asked for.
#[derive(Debug)]
pub(crate) enum Command {
    /// Run everything that the configuration turns on.
    Serve(ServeCall),
    /// Run the daemon alone.
    Daemon(DaemonCall),
    /// Ask about the cluster.
    #[cfg(target_os = "linux")]
    Cluster { call: ClusterLine, config: Option<PathBuf> },
    /// Make, list, revoke keys.
    #[cfg(target_os = "linux")]
    Key { call: KeyLine, config: Option<PathBuf> },
    /// Copy the database.
    #[cfg(target_os = "linux")]
    Backup { directory: PathBuf, config: Option<PathBuf> },
    /// Run the queue server.
    Tubes(Box<TubesCall>),
    /// Read a data directory's log and say what is in it.
    Check { directory: PathBuf },
    /// Save what can be read of a damaged data directory.
    Repair { directory: PathBuf },
    /// Make a data directory of beanstalkd's files.
    Import { from: PathBuf, to: PathBuf, owners: Option<u16> },
    /// Show and check the server at work.
    Demo(DemoOptions),
    /// Show the processes of a running server.
    Status(StatusCall),
    /// Divide a data directory anew.
    Reshard { directory: PathBuf, owners: Option<u16>, keep: bool },
    /// Show or change the configuration.
    Config { call: ConfigLine, config: Option<PathBuf> },
    /// Print what a shell needs to complete command lines.
    Completions { shell: clap_complete::Shell },
    /// Print manual pages.
    Manual(ManualCall),
    /// Try a failed slot again.
    RestartSlot { slot: SlotName, place: ServerPlace },
}

/// A call of the whole server.
#[derive(Debug, Clone)]
pub(crate) struct ServeCall {
    /// Configuration file; without one the first that is found.
    pub(crate) config: Option<PathBuf>,
    /// Level of messages.
    pub(crate) level: Option<LogLevel>,
    /// Account of all processes.
    pub(crate) user: Option<String>,
}

/// A call of the daemon alone.
#[derive(Debug, Clone)]
pub(crate) struct DaemonCall {
    /// Configuration file named before `daemon`.
    pub(crate) config: Option<PathBuf>,
    /// Level of messages named before `daemon`.
    pub(crate) level: Option<LogLevel>,
}

/// A call of the queue server.
#[derive(Debug)]
pub(crate) struct TubesCall {
    /// Its flags.
    pub(crate) flags: TubesFlags,
    /// Configuration file named before `tubes`; without one no file and no variable is read.
    pub(crate) config: Option<PathBuf>,
    /// Level of messages named before `tubes`.
    pub(crate) level: Option<LogLevel>,
    /// Whether the program was called by the original's name.
    pub(crate) is_called_beanstalkd: bool,
}

#[derive(Debug, Parser)]
#[command(name = "tenure", version, about, disable_version_flag = true, subcommand_required = true)]
struct TenureLine {
    /// Configuration file
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Least urgent messages that are written
    #[arg(short = 'L', long = "log-level", value_name = "LEVEL")]
    level: Option<Level>,

    /// Print the version
    #[arg(short = 'v', long = "version", action = ArgAction::Version)]
    version: (),

    #[command(subcommand)]
    command: TenureCommand,
}

#[derive(Debug, Subcommand)]
enum TenureCommand {
    /// Run everything that the configuration turns on, under one supervisor: the queue server, with a log, and the daemon
    Serve(ServeLine),
    /// Run the daemon alone: the HTTP API, as a member of the cluster that shares the database
    Daemon,
    /// Run the queue server, with beanstalkd's protocol and command line
    Tubes(Box<TubesLine>),
    /// Bring in data of other programs
    #[command(subcommand)]
    Import(ImportLine),
    /// Push jobs through servers of one and of several processes, kill them in between, and check that nothing was lost
    Demo(DemoOptions),
    /// Show the processes of a running server under a supervisor: `serve`, or `tubes` with several processes
    Status(StatusCall),
    /// Show the configuration
    #[command(subcommand)]
    Config(ConfigLine),
    /// Show the members of the cluster, or change the length of their leases
    #[cfg(target_os = "linux")]
    #[command(subcommand)]
    Cluster(ClusterLine),
    /// Make, list or revoke keys of the HTTP API
    #[cfg(target_os = "linux")]
    #[command(subcommand)]
    Key(KeyLine),
    /// Copy the daemon's SQLite database into a folder while it is in use
    #[cfg(target_os = "linux")]
    Backup {
        /// The folder, on the daemon's machine; nothing in it is overwritten
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Print what a shell needs to complete command lines
    Completions {
        /// The shell
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Print manual pages
    Man(ManualCall),
}

#[derive(Debug, Args)]
struct ServeLine {
    /// Account of all processes; started as root, it is `tenure` unless one is named here or in the configuration
    #[arg(short = 'u', long = "user", value_name = "USER")]
    user: Option<String>,
}

/// A slot, as an operator names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SlotName {
    /// An owner, by its number.
    Owner(u16),
    /// The one process of the queue server.
    Tubes,
    /// The daemon.
    Daemon,
}

impl SlotName {
    fn parse(text: &str) -> Result<SlotName, String> {
        match text {
            "tubes" => Ok(SlotName::Tubes),
            "daemon" => Ok(SlotName::Daemon),
            number => number
                .parse()
                .map(SlotName::Owner)
                .map_err(|_| "write the number of an owner, `tubes` or `daemon`".into()),
        }
    }
}

/// Which server is asked.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ServerPlace {
    /// Its data directory
    #[arg(value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,

    /// Its status socket, which a server without a log names when it starts
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

/// What is to be shown of a server.
#[derive(Debug, Args)]
pub(crate) struct StatusCall {
    #[command(flatten)]
    pub(crate) place: ServerPlace,

    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(version, disable_version_flag = true, args_conflicts_with_subcommands = true)]
struct TubesLine {
    #[command(flatten)]
    flags: TubesFlags,

    #[command(subcommand)]
    tool: Option<TubesTool>,
}

#[derive(Debug, Subcommand)]
enum TubesTool {
    /// Read the log in DIR, change nothing, and say what is in it
    Check {
        /// The data directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Save every valid record of a damaged log into a fresh one, keep the old, and list what was dropped
    Repair {
        /// The data directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Divide the jobs in DIR among another number of owners, or give them to one process; ids are kept
    #[command(group(clap::ArgGroup::new("topology").required(true)))]
    Reshard {
        /// The data directory, which no server is using
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Number of owners
        #[arg(long, value_name = "N", group = "topology", value_parser = clap::value_parser!(u16).range(1..=64))]
        owners: Option<u16>,
        /// One process
        #[arg(long, group = "topology")]
        single: bool,
        /// Leave the old logs where they are
        #[arg(long)]
        keep: bool,
    },
    /// Try a slot again that has failed
    RestartSlot {
        /// Number of an owner; or `tubes` or `daemon`, for a server of `tenure serve`
        #[arg(value_name = "K", value_parser = SlotName::parse)]
        slot: SlotName,
        #[command(flatten)]
        place: ServerPlace,
    },
}

#[derive(Debug, Subcommand)]
enum ImportLine {
    /// The log of a beanstalkd that has been stopped; ids, states and counters are kept
    Beanstalkd {
        /// Its log directory (its `-b`); not changed
        #[arg(value_name = "FROM")]
        from: PathBuf,
        /// The new data directory; must be empty or missing
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
        /// Divide the jobs among this many owners, for a server of several processes
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
        owners: Option<u16>,
    },
}

#[derive(Debug, Parser)]
#[command(name = ORIGINAL, version, about = "The queue server of tenure, with beanstalkd's protocol and command line")]
#[command(disable_version_flag = true)]
struct OriginalLine {
    #[command(flatten)]
    flags: TubesFlags,
}

/// The flags of the queue server: the original's, then ours.
#[derive(Debug, Default, Args)]
pub(crate) struct TubesFlags {
    /// Keep a log of jobs in DIR
    #[arg(short = 'b', value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,

    /// Sync the log at most MS milliseconds after a write (0: before each reply) [default: 50]
    #[arg(short = 'f', value_name = "MS", overrides_with = "never_sync")]
    pub(crate) sync_ms: Option<u64>,

    /// Never sync the log
    #[arg(short = 'F', overrides_with = "sync_ms")]
    pub(crate) never_sync: bool,

    /// Size of a log segment [default: 10485760]
    #[arg(short = 's', value_name = "BYTES")]
    pub(crate) segment_bytes: Option<u64>,

    /// Largest job body [default: 65535]
    #[arg(short = 'z', value_name = "BYTES")]
    pub(crate) max_job_size: Option<u64>,

    /// Address to listen on, or unix:PATH [default: 127.0.0.1]
    #[arg(short = 'l', value_name = "ADDR")]
    pub(crate) listen: Option<String>,

    /// Port to listen on [default: 11300]
    #[arg(short = 'p', value_name = "PORT")]
    pub(crate) port: Option<u16>,

    /// Account to switch to
    #[arg(short = 'u', value_name = "USER")]
    pub(crate) user: Option<String>,

    /// Write more messages (repeat for more)
    #[arg(short = 'V', action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Print the version
    #[arg(short = 'v', action = ArgAction::Version)]
    pub(crate) version: (),

    /// Taken for compatibility; the log is always compacted
    #[arg(short = 'c')]
    pub(crate) compact: bool,

    /// Taken for compatibility; the log is always compacted
    #[arg(short = 'n')]
    pub(crate) no_compact: bool,

    /// Number of owner processes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) owners: Option<u16>,

    /// Number of frontend processes
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) frontends: Option<u16>,

    /// How long a command waits for an owner that is away, such as 5s [default: 5s]
    #[arg(long, value_name = "TIME")]
    pub(crate) owner_wait: Option<String>,

    /// Restarts of a process that are allowed within so many seconds, such as 5/30 [default: 5/30]
    #[arg(long, value_name = "N/SECONDS")]
    pub(crate) restart_limit: Option<String>,

    /// Pause before the first restart of a process, such as 100ms [default: 100ms]
    #[arg(long, value_name = "TIME")]
    pub(crate) restart_delay: Option<String>,

    /// Address at which figures for Prometheus are served as http://ADDR/metrics; a port alone is one of 127.0.0.1
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,

    /// File, or with several processes an existing folder, to which the order of replies is written
    #[cfg(feature = "trace")]
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

/// How much the demo does.
#[derive(Debug, Args)]
pub(crate) struct DemoOptions {
    /// Jobs to push through in each part, at least 1000
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1000..))]
    pub(crate) jobs: u64,

    /// First part, one process: times it is killed and restarted meanwhile
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) kills: u32,

    /// Second part, several processes: owners
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) owners: u16,

    /// Second part: frontends
    #[arg(long, value_name = "M", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) frontends: u16,

    /// Second part: times an owner or frontend is killed meanwhile; 0 leaves the part out
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub(crate) process_kills: u32,

    /// Seed of what is random, to repeat a run
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<u64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Reads the command line.
///
/// # Errors
///
/// What clap says of it; help and version are among the errors, as answers.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<Command, clap::Error> {
    if arguments.first().is_some_and(|name| Path::new(name).file_name() == Some(ORIGINAL.as_ref())) {
        let line = parse_as::<OriginalLine>(arguments)?;
        let call = TubesCall { flags: line.flags, config: None, level: None, is_called_beanstalkd: true };
        return Ok(Command::Tubes(Box::new(call)));
    }
    let line = parse_as::<TenureLine>(arguments)?;
    let level = line.level.map(|level| match level {
        Level::Error => LogLevel::Error,
        Level::Warn => LogLevel::Warn,
        Level::Info => LogLevel::Info,
        Level::Debug => LogLevel::Debug,
        Level::Trace => LogLevel::Trace,
    });
    Ok(match line.command {
        TenureCommand::Serve(ServeLine { user }) => Command::Serve(ServeCall { config: line.config, level, user }),
        TenureCommand::Daemon => Command::Daemon(DaemonCall { config: line.config, level }),
        TenureCommand::Tubes(tubes) => match (tubes.tool, tubes.flags) {
            (Some(TubesTool::Check { directory }), _) => Command::Check { directory },
            (Some(TubesTool::Repair { directory }), _) => Command::Repair { directory },
            (Some(TubesTool::RestartSlot { slot, place }), _) => Command::RestartSlot { slot, place },
            (Some(TubesTool::Reshard { directory, owners, keep, .. }), _) => {
                Command::Reshard { directory, owners, keep }
            }
            (None, flags) => {
                Command::Tubes(Box::new(TubesCall { flags, config: line.config, level, is_called_beanstalkd: false }))
            }
        },
        TenureCommand::Import(ImportLine::Beanstalkd { from, to, owners }) => Command::Import { from, to, owners },
        TenureCommand::Demo(options) => Command::Demo(options),
        TenureCommand::Status(call) => Command::Status(call),
        TenureCommand::Config(call) => Command::Config { call, config: line.config },
        #[cfg(target_os = "linux")]
        TenureCommand::Cluster(call) => Command::Cluster { call, config: line.config },
        #[cfg(target_os = "linux")]
        TenureCommand::Key(call) => Command::Key { call, config: line.config },
        #[cfg(target_os = "linux")]
        TenureCommand::Backup { directory } => Command::Backup { directory, config: line.config },
        TenureCommand::Completions { shell } => Command::Completions { shell },
        TenureCommand::Man(call) => Command::Manual(call),
    })
}

/// The whole command line, for what is made from it.
pub(crate) fn whole() -> clap::Command {
    TenureLine::command()
}

fn parse_as<T: CommandFactory + FromArgMatches>(arguments: Vec<OsString>) -> Result<T, clap::Error> {
    let mut command = T::command();
    // A flag given twice counts as its last, as with the original's getopt.
    command = command.args_override_self(true);
    let matches = command.try_get_matches_from_mut(arguments)?;
    T::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tubes(arguments: &[&str]) -> TubesFlags {
        match parse(arguments.iter().map(OsString::from).collect()).expect("arguments are understood") {
            Command::Tubes(call) => call.flags,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        TenureLine::command().debug_assert();
        OriginalLine::command().debug_assert();
    }

    #[test]
    fn flags_bundle_and_take_attached_or_separate_values() {
        for arguments in [
            &["beanstalkd", "-VVp11301", "-l0.0.0.0", "-z10"][..],
            &["/usr/bin/beanstalkd", "-V", "-V", "-p", "11301", "-l", "0.0.0.0", "-z", "10"],
            &["tenure", "tubes", "-VVp", "11301", "-l", "0.0.0.0", "-z10"],
        ] {
            let flags = tubes(arguments);
            assert_eq!((flags.verbose, flags.port, flags.max_job_size), (2, Some(11301), Some(10)));
            assert_eq!(flags.listen.as_deref(), Some("0.0.0.0"));
        }
    }

    #[test]
    fn the_last_of_two_sync_flags_counts() {
        let flags = tubes(&["beanstalkd", "-f", "5", "-F"]);
        assert_eq!((flags.sync_ms, flags.never_sync), (None, true));
        let flags = tubes(&["beanstalkd", "-F", "-f", "5", "-f", "6"]);
        assert_eq!((flags.sync_ms, flags.never_sync), (Some(6), false));
    }

    /// Long and short names of all flags, of the tools below `tubes` too.
    fn flags(command: &clap::Command, found: &mut Vec<String>) {
        for argument in command.get_arguments() {
            found.extend(argument.get_long().map(|long| format!("\\-{long}")));
            found.extend(argument.get_short().map(String::from));
        }
        command.get_subcommands().for_each(|below| flags(below, found));
    }

    #[test]
    fn the_manual_page_has_every_flag_of_the_queue_server() {
        let page = include_str!("../../../docs/tenure-tubes.1");
        let mut found = Vec::new();
        flags(&TubesLine::augment_args(clap::Command::new("tubes")), &mut found);
        flags(&ImportLine::augment_subcommands(clap::Command::new("import")), &mut found);
        flags(&StatusCall::augment_args(clap::Command::new("status")), &mut found);
        assert!(found.len() > 20, "{found:?}");
        // A bundle of letters without values stands as one word.
        let is_there = |flag: &String| {
            let words = page.split([' ', '\n']).collect::<Vec<_>>();
            words.contains(&flag.as_str()) || flag.len() == 1 && page.contains("Fl FVcn") && "FVcn".contains(flag)
        };
        for flag in found.iter().filter(|flag| !["h", "\\-trace"].contains(&flag.as_str())) {
            assert!(is_there(flag), "-{flag} is not on the page");
        }
    }

    #[test]
    fn behind_tubes_the_letters_are_the_originals_and_before_it_ours() {
        assert!(tubes(&["tenure", "tubes", "-c"]).compact);
        let command = parse(["tenure", "-c", "x.toml", "tubes"].iter().map(OsString::from).collect());
        let Ok(Command::Tubes(call)) = command else { panic!("not understood") };
        assert_eq!(call.config.as_deref(), Some(Path::new("x.toml")));
        assert!(!call.flags.compact);
    }
}
