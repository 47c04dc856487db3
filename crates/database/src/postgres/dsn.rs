//! Where a PostgreSQL server is and how one signs in there.
//!
//! Owns: reading the address, which of libpq's options Tenure takes, and that nothing of the password is ever printed:
//! not by Debug or Display, and not by an error about an address that cannot be read.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

/// Options of libpq that an address may carry. Time limits and keepalives are not among them: Tenure derives them from
/// its own times, which the promises of the cluster rest on.
const OPTIONS: &[&str] = &[
    "application_name",
    "channel_binding",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "target_session_attrs",
    "user",
];

/// Name that the server shows for our sessions, unless the address gives one.
const APPLICATION_NAME: &str = "tenure";

/// The address of a PostgreSQL server, with everything needed to sign in: a secret.
///
/// Written `postgres://user:password@host:port/database?option=value`. Several hosts stand between commas and are tried in
/// turn; the first that writes is taken. `sslmode` is `disable`, `prefer` (the default), `require` or `verify-full`; the
/// last one checks certificate and host name against the system's authorities, or those in the file `sslrootcert`.
#[derive(Clone)]
pub struct Dsn {
    text: String,
    /// One configuration per host, in the order in which they are tried.
    pub(super) hosts: Vec<HostConfig>,
    pub(super) trust: Trust,
    user: Option<String>,
    database: Option<String>,
}

/// One host of an address.
#[derive(Clone)]
pub(super) struct HostConfig {
    /// `host:port`, for messages.
    pub(super) name: String,
    pub(super) config: Config,
}

/// Whose certificates are believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trust {
    /// Anybody's: encrypted, but the server is not proved to be the one that is meant.
    Anybody,
    /// Those signed by one of the system's authorities.
    System,
    /// Those signed by an authority in this PEM file.
    File(PathBuf),
}

/// Why an address cannot be used. Tells nothing of its text but names of options.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DsnError {
    /// It does not have the form of one.
    #[error(
        "the address of the database is not of the form postgres://user:password@host:port/database?option=value; \
         special characters of user and password are written as %XX, such as %40 for @ ({0})"
    )]
    Form(&'static str),
    /// An option that is not known, or has a value that it cannot have.
    #[error("the address of the database has the option {option}: {reason}")]
    Option {
        /// Its name.
        option: String,
        /// What would be right.
        reason: String,
    },
}

impl Dsn {
    /// The whole text, the password included. Only for handing the address on to a process that must sign in itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.text
    }
}

impl FromStr for Dsn {
    type Err = DsnError;

    fn from_str(text: &str) -> Result<Self, DsnError> {
        let rest = text
            .strip_prefix("postgres://")
            .or_else(|| text.strip_prefix("postgresql://"))
            .ok_or(DsnError::Form("it must begin with postgres://"))?;
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        let authority = place.split('/').next().unwrap_or_default();
        // An `@`, `/` or `?` in a password shifts what is taken for the host: refused before a part of it can get into a
        // message or a look-up of names.
        let place_ats = place.matches('@').count();
        if place_ats > 1 || place_ats != authority.matches('@').count() || options.contains('@') {
            return Err(DsnError::Form("there is an @ where none can be"));
        }

        let (kept, trust, is_verified) = options_of(options)?;
        let readable = if kept.is_empty() { place.to_owned() } else { format!("{place}?{}", kept.join("&")) };
        let config: Config = format!("postgres://{readable}")
            .parse()
            .map_err(|_| DsnError::Form("a host, port or value of an option cannot be read"))?;
        let mode = if is_verified { SslMode::Require } else { config.get_ssl_mode() };
        Ok(Self {
            text: text.to_owned(),
            hosts: hosts(&config, mode)?,
            trust,
            user: config.get_user().map(ToOwned::to_owned),
            database: config.get_dbname().map(ToOwned::to_owned),
        })
    }
}

/// The options that the driver reads; whom to trust; whether that is to be checked.
fn options_of(options: &str) -> Result<(Vec<&str>, Trust, bool), DsnError> {
    let refused =
        |option: &str, reason: &str| DsnError::Option { option: option.to_owned(), reason: reason.to_owned() };
    let mut kept = Vec::new();
    let mut is_verified = false;
    let mut roots = None;
    for pair in options.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or(DsnError::Form("an option has no value"))?;
        match (key, value) {
            ("sslmode", "verify-full") => is_verified = true,
            ("sslmode", "disable" | "prefer" | "require") => kept.push(pair),
            ("sslmode", _) => return Err(refused(key, "it is disable, prefer, require or verify-full")),
            ("sslrootcert", value) => roots = Some(decoded(value)?),
            ("target_session_attrs", "any" | "read-write") => {}
            ("target_session_attrs", _) => return Err(refused(key, "Tenure needs a server that writes")),
            _ if OPTIONS.contains(&key) => kept.push(pair),
            _ if key.chars().all(|char| char.is_ascii_lowercase() || char == '_') => {
                return Err(refused(key, &format!("none of {}", OPTIONS.join(", "))));
            }
            _ => return Err(DsnError::Form("an option has a name that no option has")),
        }
    }
    let trust = match (is_verified, roots) {
        (false, None) => Trust::Anybody,
        (false, Some(_)) => return Err(refused("sslrootcert", "it has a meaning with sslmode=verify-full only")),
        (true, None) => Trust::System,
        (true, Some(path)) if path == "system" => Trust::System,
        (true, Some(path)) => Trust::File(path.into()),
    };
    Ok((kept, trust, is_verified))
}

fn decoded(value: &str) -> Result<String, DsnError> {
    let decoded = percent_encoding::percent_decode_str(value).decode_utf8();
    Ok(decoded.map_err(|_| DsnError::Form("the value of an option is not UTF-8"))?.into_owned())
}

/// One configuration per host. The driver would try all hosts by itself, but bounds only the connect of each: one that
/// accepts and says nothing would keep it from the next.
fn hosts(config: &Config, mode: SslMode) -> Result<Vec<HostConfig>, DsnError> {
    let (names, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let count = names.len().max(addresses.len());
    if count == 0 {
        return Err(DsnError::Form("there is no host in it"));
    }
    let fits = |len: usize| len <= 1 || len == count;
    if !fits(ports.len()) || !(names.is_empty() || addresses.is_empty() || names.len() == addresses.len()) {
        return Err(DsnError::Form("hosts and ports differ in number"));
    }
    let of = |index| {
        let (host, address): (Option<&Host>, Option<&IpAddr>) = (names.get(index), addresses.get(index));
        let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
        let mut own = Config::new();
        own.port(port).target_session_attrs(TargetSessionAttrs::ReadWrite);
        own.application_name(config.get_application_name().unwrap_or(APPLICATION_NAME));
        own.ssl_negotiation(config.get_ssl_negotiation()).channel_binding(config.get_channel_binding());
        config.get_user().map(|user| own.user(user));
        config.get_password().map(|password| own.password(password));
        config.get_dbname().map(|database| own.dbname(database));
        config.get_options().map(|options| own.options(options));
        address.map(|address| own.hostaddr(*address));
        let mut mode = mode;
        let name = match host {
            Some(Host::Tcp(name)) => {
                own.host(name);
                if name.contains(':') { format!("[{name}]:{port}") } else { format!("{name}:{port}") }
            }
            // As libpq does: a socket of this machine needs no TLS, and the server offers none there.
            Some(Host::Unix(folder)) => {
                own.host_path(folder);
                mode = SslMode::Disable;
                format!("{}:{port}", folder.display())
            }
            None => format!("{}:{port}", address.map(ToString::to_string).unwrap_or_default()),
        };
        own.ssl_mode(mode);
        HostConfig { name, config: own }
    };
    Ok((0..count).map(of).collect())
}

impl fmt::Display for Dsn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<_> = self.hosts.iter().map(|host| host.name.as_str()).collect();
        let user = self.user.as_deref().map(|user| format!("{user}:***@")).unwrap_or_default();
        write!(formatter, "postgres://{user}{}/{}", hosts.join(","), self.database.as_deref().unwrap_or_default())
    }
}

impl fmt::Debug for Dsn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Dsn({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dsn(text: &str) -> Dsn {
        text.parse().unwrap()
    }

    #[test]
    fn host_and_database_are_shown_and_the_password_is_not() {
        let dsn = dsn("postgres://ada:canary%40x@one:5433,two/work?sslmode=disable&options=-c%20search_path%3Dcanary");
        assert_eq!(dsn.to_string(), "postgres://ada:***@one:5433,two:5432/work");
        assert_eq!(format!("{dsn:?}"), "Dsn(postgres://ada:***@one:5433,two:5432/work)");
        assert_eq!(dsn.hosts[1].config.get_password(), Some(&b"canary@x"[..]));
        assert!(dsn.reveal().contains("canary"));
    }

    #[test]
    fn no_error_repeats_a_password_that_was_not_encoded() {
        for text in [
            "postgres://ada:can@canary@host/work",
            "postgres://ada:can/canary@host/work",
            "postgres://ada:can?canary=1@host/work",
            "postgres://ada:1?canary=1@host/work",
            "postgres://ada:can#canary@ho st:x/work",
            "postgres://ada:x@host:canary/work",
            "postgres://ada:x@host/work?CANARY=1",
            "postgres://ada:x@host/work?canary",
            "postgres://ada:x@host/work?sslmode=canary",
            "postgres://ada:x@host/work?port=canary",
            "host=one password=canary",
            "canary",
        ] {
            let error = text.parse::<Dsn>().unwrap_err();
            assert!(!format!("{error} {error:?}").to_lowercase().contains("canary"), "{text}: {error:?}");
        }
    }

    #[test]
    fn tls_is_checked_when_that_is_asked_for() {
        let mode = |text: &str| {
            let dsn = dsn(text);
            (dsn.hosts[0].config.get_ssl_mode(), dsn.trust)
        };
        assert_eq!(mode("postgres://h/d"), (SslMode::Prefer, Trust::Anybody));
        assert_eq!(mode("postgres://h/d?sslmode=disable"), (SslMode::Disable, Trust::Anybody));
        assert_eq!(mode("postgres://h/d?sslmode=require"), (SslMode::Require, Trust::Anybody));
        assert_eq!(mode("postgres://h/d?sslmode=verify-full"), (SslMode::Require, Trust::System));
        let file = Trust::File("/etc/my ca.pem".into());
        assert_eq!(mode("postgres://h/d?sslrootcert=/etc/my%20ca.pem&sslmode=verify-full"), (SslMode::Require, file));
        assert_eq!(mode("postgres://%2Frun%2Fpg/d?sslmode=require").0, SslMode::Disable);
        assert!("postgres://h/d?sslrootcert=/x".parse::<Dsn>().is_err());
    }

    #[test]
    fn options_that_tenure_sets_itself_are_refused_by_name() {
        for option in ["connect_timeout=1", "keepalives=0", "target_session_attrs=read-only", "sslmode=verify-ca"] {
            let error = format!("postgres://h/d?{option}").parse::<Dsn>().unwrap_err();
            assert!(error.to_string().contains(option.split('=').next().unwrap()), "{error}");
        }
    }

    #[test]
    fn hosts_have_ports_of_their_own() {
        let names = |text: &str| dsn(text).hosts.into_iter().map(|host| host.name).collect::<Vec<_>>();
        assert_eq!(names("postgres://a:1,b:2,[::1]/d"), ["a:1", "b:2", "[::1]:5432"]);
        assert_eq!(names("postgresql:///d?host=/run/pg&port=5444"), ["/run/pg:5444"]);
        assert_eq!(names("postgres://u@/d?hostaddr=127.0.0.1"), ["127.0.0.1:5432"]);
        assert!("postgres:///d".parse::<Dsn>().is_err());
        assert!("postgres://a,b/d?port=1".parse::<Dsn>().is_err());
    }
}
