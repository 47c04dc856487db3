//! The table of all options: the one place where a key, its type, its default and its meaning stand.

use std::path::PathBuf;

use crate::Config;
use crate::units::{
    Listen, LogLevel, Mode, OnSlotFailed, RestartLimit, Sync, parse_digits, parse_duration, parse_size, show_duration,
    show_size,
};

/// Largest `max_job_size`, in bytes; the original's cap.
const JOB_SIZE_MAX: u64 = 1_073_741_824;
/// Most owner processes: each needs at least one of the 64 partitions of tube names.
const OWNERS_MAX: u32 = 64;
/// Most frontend processes; each has a link to every owner.
const FRONTENDS_MAX: u32 = 256;

/// A value as a source gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Given<'a> {
    /// A TOML string.
    Text(&'a str),
    /// A TOML integer, as written.
    Integer(&'a str),
    /// A TOML boolean.
    Boolean(bool),
    /// Any other TOML value, by the name of its type.
    Other(&'static str),
    /// What a variable or flag says: a text that may stand for any type.
    Words(&'a str),
}

/// One option.
#[derive(Debug, Clone, Copy)]
pub struct OptionInfo {
    /// `section.key`, or `key` outside all sections.
    pub key: &'static str,
    /// What kind of value it takes, with its unit.
    pub kind: &'static str,
    /// Its default as a file would write it; `None`: not set.
    pub default: Option<&'static str>,
    /// What it decides.
    pub about: &'static str,
    /// Whether a running server takes a change without a restart.
    pub reloaded: bool,
    /// What to write, in the words after "write".
    expected: &'static str,
    set: fn(&mut Config, Given<'_>) -> Option<()>,
    show: fn(&Config) -> Option<String>,
}

impl OptionInfo {
    /// Its section, if it stands in one, and its name there.
    #[must_use]
    pub fn section_and_name(&self) -> (Option<&'static str>, &'static str) {
        self.key.split_once('.').map_or((None, self.key), |(section, name)| (Some(section), name))
    }

    /// The variable that sets it.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("TENURE_{}", self.key.replace('.', "__").to_ascii_uppercase())
    }

    /// Its value in `config` as a file would write it; `None`: not set.
    #[must_use]
    pub fn show(&self, config: &Config) -> Option<String> {
        (self.show)(config)
    }

    /// Sets it, or says what to write instead; `config` is unchanged then.
    pub(crate) fn set(&self, config: &mut Config, given: Given<'_>) -> Result<(), &'static str> {
        (self.set)(config, given).ok_or(self.expected)
    }

    pub(crate) fn set_default(&self, config: &mut Config) {
        if let Some(default) = self.default {
            let set = (self.set)(config, Given::Words(default.trim_matches('"')));
            assert!(set.is_some(), "the default of {} is not one of its values", self.key);
        }
    }
}

fn text(given: Given<'_>) -> Option<&str> {
    match given {
        Given::Text(text) | Given::Words(text) => Some(text),
        _ => None,
    }
}

fn filled_text(given: Given<'_>) -> Option<String> {
    text(given).filter(|text| !text.is_empty() && !text.contains('\0')).map(ToOwned::to_owned)
}

fn boolean(given: Given<'_>) -> Option<bool> {
    match given {
        Given::Boolean(value) => Some(value),
        Given::Words("true") => Some(true),
        Given::Words("false") => Some(false),
        _ => None,
    }
}

fn count(given: Given<'_>, max: u32) -> Option<u32> {
    let (Given::Integer(text) | Given::Words(text)) = given else { return None };
    let value = u32::try_from(parse_digits(text)?).ok()?;
    (1..=max).contains(&value).then_some(value)
}

fn size(given: Given<'_>) -> Option<u64> {
    parse_size(text(given)?).filter(|bytes| *bytes > 0)
}

/// Permission bits in octal, at most 0777.
fn permissions(given: Given<'_>) -> Option<u32> {
    let text = text(given)?;
    let octal = (3..=4).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let mode = u32::from_str_radix(text, 8).ok()?;
    (octal && mode <= 0o777).then_some(mode)
}

fn quoted(value: impl std::fmt::Display) -> Option<String> {
    Some(toml::Value::String(value.to_string()).to_string())
}

/// Every option, in the order of the documentation.
#[must_use]
pub fn options() -> &'static [OptionInfo] {
    OPTIONS
}

macro_rules! options {
    ($($key:literal, $kind:literal, $default:expr, $about:literal,
       write $expected:literal, set $set:expr, show $show:expr;)+) => {
        &[$(OptionInfo {
            key: $key,
            kind: $kind,
            default: $default,
            about: $about,
            reloaded: false,
            expected: $expected,
            set: $set,
            show: $show,
        },)+]
    };
}

static OPTIONS: &[OptionInfo] = options! {
    "user", "text", None,
    "Account that all processes become once the address is open, as with `-u`. Not set: they stay what they are.",
    write r#"the name of an account in quotes, such as "tenure""#,
    set |config, given| { config.user = Some(filled_text(given)?); Some(()) },
    show |config| config.user.as_ref().and_then(quoted);

    "data.dir", "path", Some(r#""./tenure-data""#),
    "Folder of all data, which must exist. A relative path starts at the folder in which the program is started.",
    write r#"a path in quotes, such as "/var/lib/tenure""#,
    set |config, given| { config.data.dir = PathBuf::from(filled_text(given)?); Some(()) },
    show |config| quoted(config.data.dir.display());

    "tubes.listen", "address", Some(r#""127.0.0.1:11300""#),
    "Where clients of the queue connect: an address and a port, or `unix:` and the path of a socket. The protocol has no \
     authentication, so other addresses than this machine's own are for networks you trust.",
    write r#"an address with a port such as "127.0.0.1:11300" or "[::1]:11300", or a socket such as "unix:/run/tenure.sock""#,
    set |config, given| { config.tubes.listen = Listen::parse(text(given)?)?; Some(()) },
    show |config| quoted(&config.tubes.listen);

    "tubes.mode", "`single` or `multi`", Some(r#""single""#),
    "`single`: one process serves everything. `multi`: owners keep the jobs, frontends the connections.",
    write r#""single" or "multi""#,
    set |config, given| { config.tubes.mode = Mode::parse(text(given)?)?; Some(()) },
    show |config| quoted(config.tubes.mode);

    "tubes.owners", "number, 1 to 64", Some("2"),
    "Owner processes in multi mode.",
    write "a whole number from 1 to 64",
    set |config, given| { config.tubes.owners = count(given, OWNERS_MAX)?; Some(()) },
    show |config| Some(config.tubes.owners.to_string());

    "tubes.frontends", "number, 1 to 256", Some("2"),
    "Frontend processes in multi mode.",
    write "a whole number from 1 to 256",
    set |config, given| { config.tubes.frontends = count(given, FRONTENDS_MAX)?; Some(()) },
    show |config| Some(config.tubes.frontends.to_string());

    "tubes.persist", "`true` or `false`", Some("true"),
    "Whether jobs are kept in a log in `data.dir`, and so survive the end of the server. `tenure tubes` keeps one only if this is said, or with `-b`.",
    write "true or false, without quotes",
    set |config, given| { config.tubes.persist = boolean(given)?; Some(()) },
    show |config| Some(config.tubes.persist.to_string());

    "tubes.sync", "duration, `always` or `never`", Some(r#""50ms""#),
    "When the log is synced to the disk: at most this long after a write; before each reply (`always`, or `0ms`); when \
     the system does it by itself (`never`).",
    write r#"a duration with its unit such as "50ms", or "always", or "never""#,
    set |config, given| { config.tubes.sync = Sync::parse(text(given)?)?; Some(()) },
    show |config| quoted(config.tubes.sync);

    "tubes.max_job_size", "size, at most `1GiB`", Some(r#""65535B""#),
    "Largest job body that a client may put.",
    write r#"a size of at most 1GiB with its unit (B, KiB, MiB, GiB), such as "65535B""#,
    set |config, given| {
        config.tubes.max_job_size = size(given).filter(|bytes| *bytes <= JOB_SIZE_MAX)?;
        Some(())
    },
    show |config| quoted(show_size(config.tubes.max_job_size));

    "tubes.segment_size", "size", Some(r#""10MiB""#),
    "Size of one file of the log.",
    write r#"a size with its unit (B, KiB, MiB, GiB), such as "10MiB""#,
    set |config, given| { config.tubes.segment_size = size(given)?; Some(()) },
    show |config| quoted(show_size(config.tubes.segment_size));

    "tubes.body_memory", "size", Some(r#""256MiB""#),
    "Memory of one process for the large bodies that it is receiving. Above it the newest of them wait.",
    write r#"a size with its unit (B, KiB, MiB, GiB), such as "256MiB""#,
    set |config, given| { config.tubes.body_memory = size(given)?; Some(()) },
    show |config| quoted(show_size(config.tubes.body_memory));

    "tubes.owner_wait", "duration", Some(r#""5s""#),
    "How long a command waits for an owner that is being restarted before it is answered with `INTERNAL_ERROR`.",
    write r#"a duration with its unit (ms, s, m, h, d), such as "5s""#,
    set |config, given| { config.tubes.owner_wait = parse_duration(text(given)?)?; Some(()) },
    show |config| quoted(show_duration(config.tubes.owner_wait));

    "tubes.on_slot_failed", "`serve` or `stop`", Some(r#""serve""#),
    "When an owner or frontend cannot be restarted: the others serve on, or the server ends.",
    write r#""serve" or "stop""#,
    set |config, given| { config.tubes.on_slot_failed = OnSlotFailed::parse(text(given)?)?; Some(()) },
    show |config| quoted(config.tubes.on_slot_failed);

    "tubes.restart_limit", "restarts/seconds", Some(r#""5/30""#),
    "More restarts of an owner or frontend than this within so many seconds, and its slot has failed.",
    write r#"restarts and seconds such as "5/30""#,
    set |config, given| { config.tubes.restart_limit = RestartLimit::parse(text(given)?)?; Some(()) },
    show |config| quoted(config.tubes.restart_limit);

    "tubes.restart_delay", "duration", Some(r#""100ms""#),
    "Pause before an owner or frontend is started again; doubled for each further try, up to 5 s, and spread by 20 %.",
    write r#"a duration with its unit (ms, s, m, h, d), such as "100ms""#,
    set |config, given| { config.tubes.restart_delay = parse_duration(text(given)?)?; Some(()) },
    show |config| quoted(show_duration(config.tubes.restart_delay));

    "tubes.socket_mode", "octal permissions", Some(r#""0660""#),
    "Who may connect to a unix socket.",
    write r#"octal permissions in quotes, at most "0777", such as "0660""#,
    set |config, given| { config.tubes.socket_mode = permissions(given)?; Some(()) },
    show |config| quoted(format_args!("{:04o}", config.tubes.socket_mode));

    "tubes.socket_group", "text", None,
    "Group of a unix socket. Not set: the process's own.",
    write r#"the name of a group in quotes, such as "www-data""#,
    set |config, given| { config.tubes.socket_group = Some(filled_text(given)?); Some(()) },
    show |config| config.tubes.socket_group.as_ref().and_then(quoted);

    "tubes.close_on_http", "`true` or `false`", Some("true"),
    "Whether a connection is closed when its first line is an HTTP request: a browser or a server can be tricked into \
     sending one whose body would be read as commands.",
    write "true or false, without quotes",
    set |config, given| { config.tubes.close_on_http = boolean(given)?; Some(()) },
    show |config| Some(config.tubes.close_on_http.to_string());

    "tubes.metrics", "address", None,
    "Where figures for Prometheus are served, as `http://ADDRESS/metrics`: an address and a port, or a port of 127.0.0.1. \
     Nobody is asked who they are. Not set: nowhere.",
    write r#"an address with a port such as "127.0.0.1:9300" or "[::1]:9300", or a port such as "9300""#,
    set |config, given| { config.tubes.metrics = Some(Listen::parse_tcp(text(given)?)?); Some(()) },
    show |config| config.tubes.metrics.as_ref().and_then(quoted);

    "log.level", "`error`, `warn`, `info`, `debug` or `trace`", Some(r#""info""#),
    "The least urgent messages about the program itself that are still written.",
    write r#""error", "warn", "info", "debug" or "trace""#,
    set |config, given| { config.log.level = LogLevel::parse(text(given)?)?; Some(()) },
    show |config| quoted(config.log.level);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_shown_as_the_table_writes_it() {
        let config = Config::default();
        for option in options() {
            assert_eq!(option.show(&config).as_deref(), option.default, "{}", option.key);
        }
    }

    #[test]
    fn every_choice_is_named_in_the_words_about_it() {
        for (key, names) in
            [("tubes.mode", Mode::NAMES), ("tubes.on_slot_failed", OnSlotFailed::NAMES), ("log.level", LogLevel::NAMES)]
        {
            let option = options().iter().find(|option| option.key == key).unwrap();
            for name in names {
                assert!(option.expected.contains(&format!("\"{name}\"")), "{key}: {name}");
                assert!(option.kind.contains(&format!("`{name}`")), "{key}: {name}");
            }
        }
    }

    #[test]
    fn keys_are_unique_and_variables_tell_sections_from_keys() {
        for (index, option) in options().iter().enumerate() {
            assert!(options()[..index].iter().all(|other| other.key != option.key), "{}", option.key);
            // Two underscores end the section, so no name may have them.
            assert!(!option.key.contains("__"));
        }
        let variable = |key: &str| options().iter().find(|option| option.key == key).unwrap().variable();
        assert_eq!(variable("tubes.max_job_size"), "TENURE_TUBES__MAX_JOB_SIZE");
        assert_eq!(variable("user"), "TENURE_USER");
    }
}
