//! Values with units, as a configuration writes them.
//!
//! Owns: reading and writing of durations, sizes and the other small languages of values.
//! Never: knows which option a value belongs to. A parser that returns `None` leaves the words about it to the option.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::time::Duration;

/// Units of time, largest first, in milliseconds.
const DURATION_UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Units of size, largest first, in bytes.
const SIZE_UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Where the queue server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A name or address, without brackets, and a port.
    Tcp {
        /// Name or address.
        host: String,
        /// Port; 0 lets the system choose.
        port: u16,
    },
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl Listen {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            return (!path.is_empty()).then(|| Self::Unix(PathBuf::from(path)));
        }
        let (host, port) = text.rsplit_once(':')?;
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        // A bare IPv6 address would make the last group a port.
        if inner.is_none() && host.contains(':') {
            return None;
        }
        let host = inner.unwrap_or(host);
        let port = if port.starts_with('+') { None } else { port.parse().ok() }?;
        (!host.is_empty()).then(|| Self::Tcp { host: host.to_owned(), port })
    }
}

impl Listen {
    /// An address with a port; a port alone is one of this machine's own address.
    pub(crate) fn parse_tcp(text: &str) -> Option<Self> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(Self::Tcp { host: "127.0.0.1".to_owned(), port: text.parse().ok()? });
        }
        Self::parse(text).filter(|listen| matches!(listen, Self::Tcp { .. }))
    }
}

impl Display for Listen {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// When the log of jobs reaches the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// Before each reply.
    Always,
    /// At most this long after a write; never zero.
    Every(Duration),
    /// When the system likes to.
    Never,
}

impl Sync {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "always" => Some(Self::Always),
            "never" => Some(Self::Never),
            // The original's `-f 0` is written so, and means the same.
            _ => parse_duration(text)
                .map(|interval| if interval.is_zero() { Self::Always } else { Self::Every(interval) }),
        }
    }
}

impl Display for Sync {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::Every(interval) => f.write_str(&show_duration(*interval)),
            Self::Never => f.write_str("never"),
        }
    }
}

/// How often an owner may be restarted before its slot counts as failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartLimit {
    /// More restarts than this are too many …
    pub restarts: u32,
    /// … within this time; whole seconds, at least one.
    pub within: Duration,
}

impl RestartLimit {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (restarts, seconds) = text.split_once('/')?;
        let within = Duration::from_secs(parse_digits(seconds)?);
        (!within.is_zero()).then_some(Self { restarts: u32::try_from(parse_digits(restarts)?).ok()?, within })
    }
}

impl Display for RestartLimit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.restarts, self.within.as_secs())
    }
}

/// How much of a whole; a fraction with at most six digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ratio {
    millionths: u32,
}

impl Ratio {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let millionths = u32::try_from(parse_millionths(text)?).ok()?;
        (millionths <= 1_000_000).then_some(Self { millionths })
    }

    /// In millionths of the whole, at most a million.
    #[must_use]
    pub const fn millionths(self) -> u32 {
        self.millionths
    }
}

impl Display for Ratio {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&show_millionths(u64::from(self.millionths)))
    }
}

/// An amount of the one currency in which this installation reckons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Money {
    micro_units: u64,
}

impl Money {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        parse_millionths(text).map(|micro_units| Self { micro_units })
    }

    /// In millionths of the currency.
    #[must_use]
    pub const fn micro_units(self) -> u64 {
        self.micro_units
    }
}

impl Display for Money {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&show_millionths(self.micro_units))
    }
}

/// A day of the calendar; where a moment is meant, its first in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day {
    /// Year of our era.
    pub year: u16,
    /// Month, from 1.
    pub month: u8,
    /// Day of the month, from 1.
    pub day: u8,
}

impl Day {
    /// Understands `YYYY-MM-DD`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let moment: toml::value::Datetime = text.parse().ok()?;
        match (moment.date, moment.time, moment.offset) {
            (Some(date), None, None) => Some(Self { year: date.year, month: date.month, day: date.day }),
            _ => None,
        }
    }
}

impl Display for Day {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

/// A choice among names; each is written as the configuration writes it.
macro_rules! choice {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$meaning])* $variant,)+ }

        impl $name {
            /// As a configuration writes them.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The choice that `text` names.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl Display for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text,)+ })
            }
        }
    };
}

choice! {
    /// How the queue server is divided into processes.
    Mode {
        /// One process serves everything.
        Single = "single",
        /// Owners and frontends under a supervisor.
        Multi = "multi",
    }
}

choice! {
    /// What a failed slot means for the server.
    OnSlotFailed {
        /// The other slots serve on.
        Serve = "serve",
        /// The server ends.
        Stop = "stop",
    }
}

choice! {
    /// How much the program says about itself.
    LogLevel {
        /// What went wrong.
        Error = "error",
        /// What may go wrong.
        Warn = "warn",
        /// What an operator may want to know afterwards.
        Info = "info",
        /// What a developer may want to know.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

choice! {
    /// What a commit to SQLite survives.
    DatabaseSync {
        /// Loss of power.
        Full = "full",
        /// The end of the process; the last commits may be lost with the power.
        Normal = "normal",
    }
}

choice! {
    /// What stands between us and PostgreSQL.
    Pooler {
        /// Nothing; a pooler that is found there is refused where it would do harm.
        None = "none",
        /// A pooler that keeps a server connection for each of ours.
        Session = "session",
    }
}

choice! {
    /// What a key may do.
    Scope {
        /// See everything but secrets.
        Read = "read",
        /// Change definitions.
        Write = "write",
        /// Start, signal and end work.
        Execute = "execute",
        /// Take steps and finish them.
        Worker = "worker",
        /// Publish events.
        Events = "events",
        /// Everything.
        Admin = "admin",
    }
}

choice! {
    /// Whose use a quota counts.
    QuotaPer {
        /// Each key's own.
        Key = "key",
        /// Each definition's own.
        Definition = "definition",
    }
}

/// A whole number and a unit, such as `50ms` or `300s`.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    parse_with_unit(text, &DURATION_UNITS).map(Duration::from_millis)
}

/// In the largest unit that needs no fraction; durations here are whole milliseconds.
pub(crate) fn show_duration(duration: Duration) -> String {
    show_with_unit(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX), &DURATION_UNITS, "0s")
}

/// A whole number and a unit, such as `65535B` or `10MiB`; in bytes.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    parse_with_unit(text, &SIZE_UNITS)
}

/// In the largest unit that needs no fraction.
pub(crate) fn show_size(bytes: u64) -> String {
    show_with_unit(bytes, &SIZE_UNITS, "0B")
}

fn parse_with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    parse_digits(number)?.checked_mul(*factor)
}

fn show_with_unit(value: u64, units: &[(&str, u64)], zero: &str) -> String {
    if value == 0 {
        return zero.to_owned();
    }
    let (name, factor) =
        units.iter().find(|(_, factor)| value.is_multiple_of(*factor)).unwrap_or(&units[units.len() - 1]);
    format!("{}{name}", value / factor)
}

/// A number that is not negative, with at most six digits behind the point, in millionths.
fn parse_millionths(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.len() > 6 {
        return None;
    }
    let millionths = parse_digits(&format!("{fraction:0<6}"))?;
    let sum = parse_digits(whole)?.checked_mul(1_000_000)?.checked_add(millionths)?;
    // What is stored in a database must fit its largest number.
    i64::try_from(sum).is_ok().then_some(sum)
}

/// Without needless digits.
fn show_millionths(millionths: u64) -> String {
    let text = format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The address of a web server: `http://` or `https://`, a host, perhaps a port and a path. No user, no question mark.
pub(crate) fn parse_http_url(text: &str) -> Option<String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
    let is_plain = rest.bytes().all(|byte| byte.is_ascii_graphic() && !b"@?#\"<>\\".contains(&byte));
    let host = rest.split('/').next().unwrap_or_default();
    let has_host = !host.is_empty() && !host.starts_with(':');
    let has_port = match host.rsplit_once(':') {
        Some((before, port)) if !before.contains(':') || before.ends_with(']') => {
            parse_digits(port).is_some_and(|port| (1..=65_535).contains(&port))
        }
        // An address of IPv6 needs brackets, so that its last group is not taken for a port.
        Some(_) => host.starts_with('[') && host.ends_with(']'),
        None => true,
    };
    (is_plain && has_host && has_port).then(|| text.trim_end_matches('/').to_owned())
}

/// Decimal digits only: no sign, no separator.
pub(crate) fn parse_digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_whole_number_and_a_unit() {
        for (text, milliseconds) in
            [("50ms", 50), ("300s", 300_000), ("2m", 120_000), ("24h", 86_400_000), ("7d", 604_800_000), ("0s", 0)]
        {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "5", "s", "1.5s", "-1s", "+1s", "5 s", "5S", "5us", "1h30m", "99999999999999999999s", "5sec"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
        // The largest unit must not overflow either.
        assert_eq!(parse_duration("18446744073709551615d"), None);
    }

    #[test]
    fn sizes_have_a_whole_number_and_a_binary_unit() {
        for (text, bytes) in [("65535B", 65_535), ("64KiB", 65_536), ("10MiB", 10_485_760), ("1GiB", 1_073_741_824)] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
            assert_eq!(show_size(bytes), text);
        }
        for text in ["", "65535", "10MB", "10Mib", "10 MiB", "1.5GiB", "-1B", "B"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_shown_can_be_read_back() {
        for text in ["always", "never", "50ms", "1s", "90s", "2m"] {
            assert_eq!(Sync::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Sync::parse("0ms"), Some(Sync::Always));
        for text in ["127.0.0.1:11300", "[::1]:11300", "localhost:0", "unix:/run/tenure.sock"] {
            assert_eq!(Listen::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(RestartLimit::parse("5/30").unwrap().to_string(), "5/30");
    }

    #[test]
    fn half_an_address_or_limit_is_none() {
        for text in ["", "127.0.0.1", ":11300", "::1:11300", "[]:1", "a:b", "a:65536", "a:+1", "unix:"] {
            assert_eq!(Listen::parse(text), None, "{text}");
        }
        for text in ["", "5", "5/", "/30", "5/0", "5/30s", "-1/30", "5/30/1", "4294967296/1"] {
            assert_eq!(RestartLimit::parse(text), None, "{text}");
        }
    }

    #[test]
    fn fractions_are_exact_to_the_sixth_digit() {
        for (text, millionths) in [("1", 1_000_000), ("0", 0), ("0.1", 100_000), ("2.50", 2_500_000), ("0.000001", 1)] {
            assert_eq!(parse_millionths(text), Some(millionths), "{text}");
        }
        for text in ["", ".", "1.", ".5", "-1", "+1", "1e3", "0.0000001", "1,5", "1.+5", "18446744073709551615", "inf"]
        {
            assert_eq!(parse_millionths(text), None, "{text}");
        }
        assert_eq!(Money::parse("2.50").unwrap().to_string(), "2.5");
        assert_eq!(Ratio::parse("1.0").unwrap().to_string(), "1");
        assert_eq!(Ratio::parse("1.000001"), None);
    }

    #[test]
    fn a_day_is_a_date_of_the_calendar_alone() {
        assert_eq!(Day::parse("2026-02-28").unwrap().to_string(), "2026-02-28");
        assert!(Day::parse("2026-02-28") < Day::parse("2026-03-01"));
        for text in ["", "2026", "2026-02-30", "2026-02-28T10:00:00Z", "2026-02-28T10:00:00", "10:00:00", "28.02.2026"]
        {
            assert_eq!(Day::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_address_of_a_web_server_has_a_host_and_no_password() {
        for text in
            ["http://127.0.0.1:7070", "https://tenure.example", "http://[::1]:7070", "http://[::1]", "http://h/a/b"]
        {
            assert_eq!(parse_http_url(text).as_deref(), Some(text));
        }
        assert_eq!(parse_http_url("http://h:1/").as_deref(), Some("http://h:1"));
        for text in [
            "",
            "127.0.0.1:7070",
            "ftp://h",
            "http://",
            "http:///a",
            "http://:7070",
            "http://h:0",
            "http://h:70700",
            "http://h:",
            "http://::1:7070",
            "http://u:p@h",
            "http://h?a=b",
            "http://h/#a",
            "http://h h",
            "HTTP://h",
        ] {
            assert_eq!(parse_http_url(text), None, "{text}");
        }
    }
}
