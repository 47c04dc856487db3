//! The table of all options: the one place where a key, its type, its default and its meaning stand.

use std::path::PathBuf;
use std::time::Duration;

use crate::units::{
    DatabaseSync, Listen, LogLevel, Mode, OnSlotFailed, Pooler, Ratio, RestartLimit, Sync, parse_digits,
    parse_duration, parse_http_url, parse_size, show_duration, show_size,
};
use crate::value::Value;
use crate::{Config, DatabaseUrl};

/// Largest `max_job_size`, in bytes; the original's cap.
const JOB_SIZE_MAX: u64 = 1_073_741_824;
/// Most owner processes: each needs at least one of the 64 partitions of tube names.
const OWNERS_MAX: u32 = 64;
/// Most frontend processes; each has a link to every owner.
const FRONTENDS_MAX: u32 = 256;

/// Fewest connections of a pool: with fewer, work that needs two waits for itself.
const POOL_SIZE_MIN: u32 = 3;
/// Most connections of a pool; a server allows rarely more.
const POOL_SIZE_MAX: u32 = 1_000;
/// Longest of the cluster's times.
const CLUSTER_TIME_MAX: Duration = Duration::from_secs(3_600);

/// What is special about an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// What is written there is never repeated to anybody.
    Secret,
    /// Read again on SIGHUP.
    Hangup,
    /// May be set in the database; then it holds at once.
    Overlay,
    /// A second variable, which wins over the first.
    Alias(&'static str),
}

/// When a change of an option takes effect in a running server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reload {
    /// At the next start.
    No,
    /// On SIGHUP.
    Hangup,
    /// At once, if it is set in the database; a change of the file at the next start.
    Overlay,
}

impl Reload {
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Hangup => "on SIGHUP",
            Self::Overlay => "by `config set`",
        }
    }
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
    marks: &'static [Mark],
    /// What to write, in the words after "write".
    expected: &'static str,
    set: fn(&mut Config, &Value) -> Option<()>,
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

    /// A second variable that sets it and wins over the first; one without content sets nothing.
    #[must_use]
    pub fn alias(&self) -> Option<&'static str> {
        self.marks.iter().find_map(|mark| if let Mark::Alias(name) = mark { Some(*name) } else { None })
    }

    /// When a change takes effect in a running server.
    #[must_use]
    pub fn reload(&self) -> Reload {
        match (self.is_overlay(), self.marks.contains(&Mark::Hangup)) {
            (true, _) => Reload::Overlay,
            (_, true) => Reload::Hangup,
            _ => Reload::No,
        }
    }

    /// Whether it may be set in the database.
    #[must_use]
    pub fn is_overlay(&self) -> bool {
        self.marks.contains(&Mark::Overlay)
    }

    pub(crate) fn is_secret(&self) -> bool {
        self.marks.contains(&Mark::Secret)
    }

    /// Its value in `config` as a file would write it; `None`: not set.
    #[must_use]
    pub fn show(&self, config: &Config) -> Option<String> {
        (self.show)(config)
    }

    /// Sets it, or says what to write instead; `config` is unchanged then.
    pub(crate) fn set(&self, config: &mut Config, given: &Value) -> Result<(), &'static str> {
        (self.set)(config, given).ok_or(self.expected)
    }

    pub(crate) fn set_default(&self, config: &mut Config) {
        if let Some(default) = self.default {
            let set = (self.set)(config, &Value::Words(default.trim_matches('"').to_owned()));
            assert!(set.is_some(), "the default of {} is not one of its values", self.key);
        }
    }
}

pub(crate) fn text(given: &Value) -> Option<&str> {
    match given {
        Value::Text(text) | Value::Words(text) => Some(text),
        _ => None,
    }
}

pub(crate) fn filled_text(given: &Value) -> Option<String> {
    text(given).filter(|text| !text.is_empty() && !text.contains('\0')).map(ToOwned::to_owned)
}

fn boolean(given: &Value) -> Option<bool> {
    match given {
        Value::Boolean(value) => Some(*value),
        Value::Words(text) => text.parse().ok(),
        _ => None,
    }
}

fn count(given: &Value, min: u32, max: u32) -> Option<u32> {
    let (Value::Integer(text) | Value::Words(text)) = given else { return None };
    let value = u32::try_from(parse_digits(text)?).ok()?;
    (min..=max).contains(&value).then_some(value)
}

/// The text of a number, whole or not.
pub(crate) fn number(given: &Value) -> Option<&str> {
    match given {
        Value::Integer(text) | Value::Fraction(text) | Value::Words(text) => Some(text),
        _ => None,
    }
}

/// One of the cluster's times: none is zero.
fn cluster_time(given: &Value) -> Option<Duration> {
    parse_duration(text(given)?).filter(|time| !time.is_zero() && *time <= CLUSTER_TIME_MAX)
}

fn size(given: &Value) -> Option<u64> {
    parse_size(text(given)?).filter(|bytes| *bytes > 0)
}

/// Permission bits in octal, at most 0777.
fn permissions(given: &Value) -> Option<u32> {
    let text = text(given)?;
    let octal = (3..=4).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let mode = u32::from_str_radix(text, 8).ok()?;
    (octal && mode <= 0o777).then_some(mode)
}

fn quoted(value: impl std::fmt::Display) -> Option<String> {
    Some(crate::value::quoted(&value.to_string()))
}

/// Every option, in the order of the documentation.
#[must_use]
pub fn options() -> &'static [OptionInfo] {
    OPTIONS
}

macro_rules! options {
    ($($key:literal, $kind:literal, $default:expr, $about:literal,
       write $expected:literal, set $set:expr, show $show:expr $(, $mark:expr)*;)+) => {
        &[$(OptionInfo {
            key: $key,
            kind: $kind,
            default: $default,
            about: $about,
            marks: &[$($mark),*],
            expected: $expected,
            set: $set,
            show: $show,
        },)+]
    };
}

static OPTIONS: &[OptionInfo] = options! {
    "user", "text", None,
    "Account that all processes become once the addresses are open, as with `-u`. Not set: they stay what they are; but \
     `tenure serve` that is started as root becomes `tenure`, and stays root only if `root` is said here.",
    write r#"the name of an account in quotes, such as "tenure""#,
    set |config, given| { config.user = Some(filled_text(given)?); Some(()) },
    show |config| config.user.as_ref().and_then(quoted);

    "serve.tubes", "`true` or `false`", Some("true"),
    "Whether `tenure serve` runs the queue server.",
    write "true or false, without quotes",
    set |config, given| { config.serve.tubes = boolean(given)?; Some(()) },
    show |config| Some(config.serve.tubes.to_string());

    "serve.daemon", "`true` or `false`", Some("true"),
    "Whether `tenure serve` runs the daemon: the HTTP interface, and a member of the cluster.",
    write "true or false, without quotes",
    set |config, given| { config.serve.daemon = boolean(given)?; Some(()) },
    show |config| Some(config.serve.daemon.to_string());

    "data.dir", "path", Some(r#""./tenure-data""#),
    "Folder of all data. `tenure serve` makes it if it is not there, for others it must exist. A relative path starts at \
     the folder in which the program is started.",
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
    set |config, given| { config.tubes.owners = count(given, 1, OWNERS_MAX)?; Some(()) },
    show |config| Some(config.tubes.owners.to_string());

    "tubes.frontends", "number, 1 to 256", Some("2"),
    "Frontend processes in multi mode.",
    write "a whole number from 1 to 256",
    set |config, given| { config.tubes.frontends = count(given, 1, FRONTENDS_MAX)?; Some(()) },
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

    "database.url", "URL", Some(r#""sqlite:./tenure-data/tenure.db""#),
    "The database of the daemon: `sqlite:` and the path of a file, or a URL of PostgreSQL, \
     `postgres://USER:PASSWORD@HOST/DATABASE`. Not set: `tenure.db` in `data.dir`. In user and password every character \
     that means something in a URL is written with its percent sign, such as `%40` for `@`. Never shown with its password.",
    write "\"sqlite:PATH\" or a URL such as \"postgres://tenure@db.example/tenure\", with %40 for an @ in the password, \
     %2F for a /, %3F for a ?, %23 for a #",
    set |config, given| { config.database.url = DatabaseUrl::parse(text(given)?)?; Some(()) },
    show |config| quoted(&config.database.url), Mark::Secret;

    "database.direct_url", "URL", None,
    "The same database past a pooler, for what must have a connection of its own: the lease and notices. Not set: `url`.",
    write "a URL such as \"postgres://tenure@db.example/tenure\", with %40 for an @ in the password, %2F for a /, %3F for \
     a ?, %23 for a #",
    set |config, given| {
        config.database.direct_url = Some(DatabaseUrl::parse(text(given)?).filter(DatabaseUrl::is_postgres)?);
        Some(())
    },
    show |config| config.database.direct_url.as_ref().and_then(quoted), Mark::Secret;

    "database.pooler", "`none` or `session`", Some(r#""none""#),
    "What stands before PostgreSQL. `session`: a pooler that gives each connection a server connection for life. With \
     `none`, a pooler that is found where a lease or notices need a connection of their own is refused.",
    write r#""none" or "session""#,
    set |config, given| { config.database.pooler = Pooler::parse(text(given)?)?; Some(()) },
    show |config| quoted(config.database.pooler);

    "database.pool_size", "number, 3 to 1000", Some("8"),
    "Most connections to PostgreSQL that a daemon shares among its work; it has three more of its own.",
    write "a whole number from 3 to 1000",
    set |config, given| { config.database.pool_size = count(given, POOL_SIZE_MIN, POOL_SIZE_MAX)?; Some(()) },
    show |config| Some(config.database.pool_size.to_string());

    "database.sync", "`full` or `normal`", Some(r#""full""#),
    "SQLite only. `full`: what was acknowledged survives loss of power. `normal`: it survives the end of the process; \
     the last of it may be lost with the power. PostgreSQL has a setting of its own, `synchronous_commit`.",
    write r#""full" or "normal""#,
    set |config, given| { config.database.sync = DatabaseSync::parse(text(given)?)?; Some(()) },
    show |config| quoted(config.database.sync);

    "http.listen", "address", Some(r#""127.0.0.1:7070""#),
    "Where the daemon answers HTTP: an address and a port, or a port of 127.0.0.1. Another address than this machine's \
     own wants keys, and TLS or `allow_plaintext`.",
    write r#"an address with a port such as "127.0.0.1:7070" or "[::1]:7070", or a port such as "7070""#,
    set |config, given| { config.http.listen = Listen::parse_tcp(text(given)?)?; Some(()) },
    show |config| quoted(&config.http.listen);

    "http.tls_cert", "path", None,
    "Certificate and those that vouch for it, in PEM. Not set: no TLS. The file is read again on SIGHUP.",
    write r#"a path in quotes, such as "/etc/tenure/tls.crt""#,
    set |config, given| { config.http.tls_cert = Some(PathBuf::from(filled_text(given)?)); Some(()) },
    show |config| config.http.tls_cert.as_ref().and_then(|path| quoted(path.display())), Mark::Hangup;

    "http.tls_key", "path", None,
    "Private key of the certificate, in PEM. The file is read again on SIGHUP.",
    write r#"a path in quotes, such as "/etc/tenure/tls.key""#,
    set |config, given| { config.http.tls_key = Some(PathBuf::from(filled_text(given)?)); Some(()) },
    show |config| config.http.tls_key.as_ref().and_then(|path| quoted(path.display())), Mark::Hangup;

    "http.allow_plaintext", "`true` or `false`", Some("false"),
    "Whether another address than this machine's own may be served without TLS; keys then cross the network in clear.",
    write "true or false, without quotes",
    set |config, given| { config.http.allow_plaintext = boolean(given)?; Some(()) },
    show |config| Some(config.http.allow_plaintext.to_string());

    "http.public_health", "`true` or `false`", Some("true"),
    "Whether `/healthz`, `/readyz` and `/metrics` answer without a key. `false`: they want the scope `read`.",
    write "true or false, without quotes",
    set |config, given| { config.http.public_health = boolean(given)?; Some(()) },
    show |config| Some(config.http.public_health.to_string());

    "client.url", "URL", None,
    "Where commands find the daemon. Not set: at `http.listen`.",
    write r#"a URL without user such as "http://127.0.0.1:7070" or "https://tenure.example""#,
    set |config, given| { config.client.url = Some(parse_http_url(text(given)?)?); Some(()) },
    show |config| config.client.url.as_ref().and_then(quoted), Mark::Alias("TENURE_URL");

    "client.key_file", "path", None,
    "File with the key that commands use, readable by its owner alone (0600). The variable `TENURE_KEY`, which holds the \
     key itself, wins. Not set: no key.",
    write r#"a path in quotes, such as "/home/me/.config/tenure/key""#,
    set |config, given| { config.client.key_file = Some(PathBuf::from(filled_text(given)?)); Some(()) },
    show |config| config.client.key_file.as_ref().and_then(|path| quoted(path.display()));

    "cluster.beat", "duration, at most `1h`", Some(r#""5s""#),
    "Period in which a member does what is due and looks for what others ask of it.",
    write r#"a duration from "1ms" to "1h", such as "5s""#,
    set |config, given| { config.cluster.beat = cluster_time(given)?; Some(()) },
    show |config| quoted(show_duration(config.cluster.beat));

    "cluster.renew", "duration, at most `1h`", Some(r#""5s""#),
    "Period in which a member renews its lease.",
    write r#"a duration from "1ms" to "1h", such as "5s""#,
    set |config, given| { config.cluster.renew = cluster_time(given)?; Some(()) },
    show |config| quoted(show_duration(config.cluster.renew));

    "cluster.lease", "duration, at most `1h`", Some(r#""20s""#),
    "How long a member counts as alive after it renewed; at least 3 × `renew` + `statement_timeout` + `margin`. All \
     members have the same; the database keeps it, and `tenure cluster set-lease` changes it there.",
    write r#"a duration from "1ms" to "1h", such as "20s""#,
    set |config, given| { config.cluster.lease = cluster_time(given)?; Some(()) },
    show |config| quoted(show_duration(config.cluster.lease));

    "cluster.statement_timeout", "duration, at most `1h`", Some(r#""2s""#),
    "How long a renewal waits for the database.",
    write r#"a duration from "1ms" to "1h", such as "2s""#,
    set |config, given| { config.cluster.statement_timeout = cluster_time(given)?; Some(()) },
    show |config| quoted(show_duration(config.cluster.statement_timeout));

    "cluster.margin", "duration, at most `1h`", Some(r#""3s""#),
    "How long before the end of its lease a member ends all that it executes, if the lease was not renewed.",
    write r#"a duration from "1ms" to "1h", such as "3s""#,
    set |config, given| { config.cluster.margin = cluster_time(given)?; Some(()) },
    show |config| quoted(show_duration(config.cluster.margin));

    "log.level", "`error`, `warn`, `info`, `debug` or `trace`", Some(r#""info""#),
    "The least urgent messages about the program itself that are still written. Set in the database, it holds for daemons.",
    write r#""error", "warn", "info", "debug" or "trace""#,
    set |config, given| { config.log.level = LogLevel::parse(text(given)?)?; Some(()) },
    show |config| quoted(config.log.level), Mark::Overlay;

    "telemetry.otlp_endpoint", "URL", None,
    "Collector to which spans are sent by OTLP over HTTP (protobuf), at `/v1/traces` below this address. Not set: none are.",
    write r#"a URL without user such as "http://127.0.0.1:4318""#,
    set |config, given| { config.telemetry.otlp_endpoint = Some(parse_http_url(text(given)?)?); Some(()) },
    show |config| config.telemetry.otlp_endpoint.as_ref().and_then(quoted);

    "telemetry.otlp_timeout", "duration", Some(r#""10s""#),
    "How long sending a batch of spans may take; then it is thrown away.",
    write r#"a duration of at least "1ms" with its unit (ms, s, m, h, d), such as "10s""#,
    set |config, given| {
        config.telemetry.otlp_timeout = parse_duration(text(given)?).filter(|time| !time.is_zero())?;
        Some(())
    },
    show |config| quoted(show_duration(config.telemetry.otlp_timeout));

    "telemetry.service_name", "text", Some(r#""tenure""#),
    "Name of this service in the spans.",
    write r#"a name in quotes, such as "tenure""#,
    set |config, given| { config.telemetry.service_name = filled_text(given)?; Some(()) },
    show |config| quoted(&config.telemetry.service_name);

    "telemetry.sampling", "number, 0 to 1", Some("1"),
    "Share of the traces begun here that are sent.",
    write "a number from 0 to 1 with at most six digits behind the point, such as 0.1",
    set |config, given| { config.telemetry.sampling = Ratio::parse(number(given)?)?; Some(()) },
    show |config| Some(config.telemetry.sampling.to_string());
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
        for (key, names) in [
            ("tubes.mode", Mode::NAMES),
            ("tubes.on_slot_failed", OnSlotFailed::NAMES),
            ("database.pooler", Pooler::NAMES),
            ("database.sync", DatabaseSync::NAMES),
            ("log.level", LogLevel::NAMES),
        ] {
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
