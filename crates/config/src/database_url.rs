//! Where the database is, and how that is told without its password.

use std::fmt::{self, Debug, Display, Formatter};
use std::path::PathBuf;

use crate::Secret;
use crate::secret::STARS;

/// Parameters of a PostgreSQL URL whose values are not shown.
const SECRET_PARAMETERS: [&str; 2] = ["password", "sslpassword"];

/// Where the database is. `Debug` and `Display` show everything but passwords.
#[derive(Clone, PartialEq, Eq)]
pub enum DatabaseUrl {
    /// A file of this machine.
    Sqlite(PathBuf),
    /// A PostgreSQL server; the URL with its password.
    Postgres(Secret),
}

impl DatabaseUrl {
    /// Understands `sqlite:PATH` and `postgres://…`; `None` for anything else, and for a URL in which it is not certain
    /// which part is the password.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.contains(|c: char| c.is_control()) {
            return None;
        }
        if let Some(path) = text.strip_prefix("sqlite:") {
            // Two slashes would name a host, and a database in memory has no file that a second process could find taken.
            let is_file = !path.is_empty() && !path.starts_with("//") && path != ":memory:";
            return is_file.then(|| Self::Sqlite(PathBuf::from(path)));
        }
        Parts::of(text)?;
        Some(Self::Postgres(Secret::new(text)))
    }

    /// Whether it is a PostgreSQL server.
    #[must_use]
    pub fn is_postgres(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }
}

impl Display for DatabaseUrl {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => match Parts::of(url.expose()) {
                Some(parts) => f.write_str(&parts.without_passwords()),
                None => f.write_str(STARS),
            },
        }
    }
}

impl Debug for DatabaseUrl {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

/// A PostgreSQL URL: `SCHEME://[USER[:PASSWORD]@]PLACE[?NAME=VALUE&…]`, where PLACE is hosts, ports and database.
struct Parts<'a> {
    scheme: &'a str,
    user: Option<(&'a str, Option<&'a str>)>,
    place: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        // Libraries differ in where they end a password that has one of these in it; so each stands for itself only once.
        let is_ambiguous = rest.contains(['#', ' ', '"', '\'']) || rest.matches('@').count() > 1;
        if !matches!(scheme, "postgres" | "postgresql") || is_ambiguous {
            return None;
        }
        let (user, rest) = match rest.split_once('@') {
            Some((user, _)) if user.is_empty() || user.contains(['/', '?']) => return None,
            Some((user, rest)) => match user.split_once(':') {
                Some((user, password)) => (Some((user, Some(password))), rest),
                None => (Some((user, None)), rest),
            },
            None => (None, rest),
        };
        let (place, parameters) = match rest.split_once('?') {
            Some((place, parameters)) => {
                (place, parameters.split('&').map(|one| one.split_once('=')).collect::<Option<Vec<_>>>()?)
            }
            None => (rest, Vec::new()),
        };
        (!place.is_empty() || !parameters.is_empty()).then_some(Self { scheme, user, place, parameters })
    }

    fn without_passwords(&self) -> String {
        let user = match self.user {
            Some((user, Some(_))) => format!("{user}:{STARS}@"),
            Some((user, None)) => format!("{user}@"),
            None => String::new(),
        };
        let parameters: Vec<_> = self
            .parameters
            .iter()
            .map(|(name, value)| format!("{name}={}", if SECRET_PARAMETERS.contains(name) { STARS } else { value }))
            .collect();
        let question = if parameters.is_empty() { "" } else { "?" };
        format!("{}://{user}{}{question}{}", self.scheme, self.place, parameters.join("&"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_password_is_shown() {
        for (url, shown) in [
            ("postgres://tenure:canary@db.example:5432/tenure", "postgres://tenure:***@db.example:5432/tenure"),
            ("postgres://tenure@a:1,b:2/t?target_session_attrs=read-write", ""),
            ("postgresql://%2Frun%2Fpostgresql/tenure", ""),
            (
                "postgres:///tenure?host=/run/postgresql&user=u&password=canary",
                "postgres:///tenure?host=/run/postgresql&user=u&password=***",
            ),
            ("postgres://u:can%40ary:b@h/d?sslpassword=canary", "postgres://u:***@h/d?sslpassword=***"),
            ("sqlite:tenure-data/tenure.db", ""),
            ("sqlite:/var/lib/tenure/a b.db", ""),
        ] {
            let parsed = DatabaseUrl::parse(url).unwrap_or_else(|| panic!("{url}"));
            let expected = if shown.is_empty() { url } else { shown };
            assert_eq!(parsed.to_string(), expected);
            assert_eq!(format!("{parsed:?}"), expected);
            assert_eq!(parsed.is_postgres(), url.starts_with("postgres"));
        }
    }

    #[test]
    fn what_is_no_place_or_could_hide_a_password_is_refused() {
        for url in [
            "",
            "tenure.db",
            "sqlite:",
            "sqlite://tenure.db",
            "sqlite::memory:",
            "sqlite:a\0b",
            "mysql://h/d",
            "postgres:",
            "postgres://",
            "postgres:/h/d",
            "host=h password=p",
            "postgres://u:p@ss@h/d",
            "postgres://u:p/s@h/d",
            "postgres://u:p?s@h/d",
            "postgres://u:p#s@h/d",
            "postgres://@h/d",
            "postgres://h/d?password",
            "postgres://u:p s@h/d",
        ] {
            assert!(DatabaseUrl::parse(url).is_none(), "{url}");
        }
    }
}
