//! Which server answers.

use std::time::Duration;

use database_core::{Class, DbError};
use tokio::time::timeout;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::error::{Failure, Phase};
use super::process_number;

/// What tells one server, and one life of it, from another. A promoted stand-by has the identifier of its primary and
/// another timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Drawn when the database cluster was made; `None` where the service hides it.
    pub system_identifier: Option<u64>,
    /// Raised by each promotion; `None` where the service hides it.
    pub timeline: Option<u32>,
    /// Such as 170002.
    pub version: u32,
}

impl ServerIdentity {
    /// Whether the two are certainly different servers, or different lives of one. What a service hides is no difference.
    #[must_use]
    pub fn differs_from(&self, other: &Self) -> bool {
        fn differ<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
            one.is_some() && other.is_some() && one != other
        }
        differ(self.system_identifier, other.system_identifier) || differ(self.timeline, other.timeline)
    }
}

/// What a session tells about itself.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) identity: ServerIdentity,
    pub(super) is_behind_pooler: bool,
}

/// The oldest server whose language the statements are written in.
const VERSION_MIN: u32 = 14_00_00;
/// First all that any server answers, then what a service may hide.
const SESSION: &str = "SELECT pg_backend_pid(), current_setting('server_version_num'), pg_is_in_recovery(), \
                       current_setting('transaction_read_only')";
const SYSTEM_IDENTIFIER: &str = "SELECT system_identifier FROM pg_control_system()";
/// The first eight digits of a file of the log are the timeline. `pg_control_checkpoint()` would still show the old one
/// after a promotion, until the next checkpoint.
const TIMELINE: &str = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)";

/// Asks a fresh session. Statements are simple ones, which any pooler passes on, and come one after the other.
pub(super) async fn session(client: &Client, limit: Duration) -> Result<Session, DbError> {
    let row = ask(client, SESSION, limit).await?;
    let [Some(process), Some(version), Some(recovery), Some(read_only)] = &row[..] else {
        return Err(DbError::new(Class::Broken, "the server does not tell who it is"));
    };
    if recovery == "t" || read_only == "on" {
        let message = "this server only reads: it is a stand-by, or was set to read-only";
        return Err(DbError::new(Class::ReadOnly, message));
    }
    let number = |text: &str| text.parse::<u32>().ok();
    let version = number(version).ok_or_else(|| DbError::new(Class::Broken, "the server's version cannot be read"))?;
    if version < VERSION_MIN {
        let message =
            format!("PostgreSQL {} is needed at least, and this is {}", VERSION_MIN / 10_000, version / 10_000);
        return Err(DbError::new(Class::Broken, message));
    }
    let given = process_number::of(&client.cancel_token()).await;
    Ok(Session {
        is_behind_pooler: given.map(|given| given.to_string()) != Some(process.clone()),
        identity: ServerIdentity {
            system_identifier: hidden(ask(client, SYSTEM_IDENTIFIER, limit).await)?.and_then(|text| text.parse().ok()),
            timeline: hidden(ask(client, TIMELINE, limit).await)?.and_then(|text| u32::from_str_radix(&text, 16).ok()),
            version,
        },
    })
}

/// The first column. A refusal of the server means that it hides the answer.
fn hidden(answer: Result<Vec<Option<String>>, DbError>) -> Result<Option<String>, DbError> {
    match answer {
        Ok(row) => Ok(row.into_iter().next().flatten()),
        Err(error) if error.class == Class::Broken => Ok(None),
        Err(error) => Err(error),
    }
}

/// The only row of a statement.
async fn ask(client: &Client, text: &str, limit: Duration) -> Result<Vec<Option<String>>, DbError> {
    const WHAT: &str = "first questions";
    let answer = timeout(limit, client.simple_query(text))
        .await
        .map_err(|_| DbError::new(Class::Unavailable, format!("{WHAT}: no answer within {} ms", limit.as_millis())))?
        .map_err(|error| Failure::of(&error, WHAT, Phase::BeforeCommit, None).error)?;
    let row = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|index| row.get(index).map(ToOwned::to_owned))),
        _ => None,
    });
    Ok(row.map(Iterator::collect).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promotion_and_another_server_are_differences_and_what_is_hidden_is_none() {
        let of = |system_identifier, timeline| ServerIdentity { system_identifier, timeline, version: 17_00_02 };
        let one = of(Some(7), Some(1));
        assert!(one.differs_from(&of(Some(8), Some(1))) && one.differs_from(&of(Some(7), Some(2))));
        for same in [of(Some(7), Some(1)), of(None, Some(1)), of(Some(7), None), of(None, None)] {
            assert!(!one.differs_from(&same) && !same.differs_from(&one));
        }
        assert!(of(None, Some(1)).differs_from(&of(None, Some(2))));
    }
}
