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

/// A choice among names; each is written as the configuration writes it.
macro_rules! choice {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$meaning])* $variant,)+ }

        impl $name {
            #[cfg(test)]
            pub(crate) const NAMES: &'static [&'static str] = &[$($text),+];

            pub(crate) fn parse(text: &str) -> Option<Self> {
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
}
