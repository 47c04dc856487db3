//! Messages for operators, on standard error.

use std::sync::OnceLock;
use tracing_subscriber::filter::LevelFilter;

/// Sets the level of what is written, once that has begun.
static CHANGE: OnceLock<Box<dyn Fn(LevelFilter) + Send + Sync>> = OnceLock::new();

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
    use tracing_subscriber::prelude::*;
    let (level, handle) = tracing_subscriber::reload::Layer::new(filter(level));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .log_internal_errors(false);
    tracing_subscriber::registry().with(level).with(lines).init();
    // Reloading fails only when nothing is written any more.
    let _ = CHANGE.set(Box::new(move |level| drop(handle.reload(level))));
}

/// As [`start`]; and what `traces` wants to see is shown to it, and to it alone, whatever the level of messages.
#[cfg(target_os = "linux")]
pub(crate) fn start_with(level: tenure_config::LogLevel, traces: Option<&::daemon::Traces>) {
    use std::io::IsTerminal;
    use tracing_subscriber::filter::{FilterExt as _, filter_fn};
    use tracing_subscriber::prelude::*;
    // A layer that sees nothing would still be asked.
    let Some(traces) = traces else { return start(level) };
    let (level, handle) = tracing_subscriber::reload::Layer::new(filter(level));
    // Without spans, so that a line of the log is the same whether spans are sent or not.
    let is_message = filter_fn(|metadata| metadata.is_event()).with_max_level_hint(LevelFilter::TRACE);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .log_internal_errors(false)
        .with_filter(level.and(is_message));
    tracing_subscriber::registry().with(lines).with(traces.layer()).init();
    let _ = CHANGE.set(Box::new(move |level| drop(handle.reload(level))));
}

/// Goes on with messages of `level` and more urgent ones.
#[cfg(target_os = "linux")]
pub(crate) fn change(level: tenure_config::LogLevel) {
    if let Some(change) = CHANGE.get() {
        change(filter(level));
    }
}

fn filter(level: tenure_config::LogLevel) -> LevelFilter {
    use tenure_config::LogLevel;
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
