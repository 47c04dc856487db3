//! Messages for operators, on standard error.

use tracing_subscriber::filter::LevelFilter;

/// The levels by the words for them, which a configuration uses too.
const LEVELS: [tenure_config::LogLevel; 5] = {
    use tenure_config::LogLevel;
    [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug, LogLevel::Trace]
};

/// The level that a word names; without one, or with another word, the default.
pub(crate) fn level_of(word: Option<&str>) -> tenure_config::LogLevel {
    LEVELS.into_iter().find(|level| word == Some(&level.to_string())).unwrap_or(tenure_config::LogLevel::Info)
}

/// Begins to write messages of `level` and more urgent ones.
pub(crate) fn start(level: tenure_config::LogLevel) {
    use std::io::IsTerminal;
    use tenure_config::LogLevel;
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .log_internal_errors(false)
        .init();
}
