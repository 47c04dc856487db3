//! Single statements of the harness, from any thread, inside a runtime or not.
//!
//! Owns: a connection for the length of one call. What a test does on connections of its own is not its business.

use std::time::Duration;

use tokio::runtime::Builder;
use tokio_postgres::{Config, NoTls, SimpleQueryMessage};

use crate::process::OUTER_LIMIT;

/// The values of one row as text; `None` is NULL.
pub type Row = Vec<Option<String>>;

/// How long a server may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Runs statements on a connection of its own and returns the rows of all of them.
///
/// # Errors
///
/// What the server answered or why it cannot be reached, with its SQLSTATE if it has one; after [`OUTER_LIMIT`], that.
pub fn query(dsn: &str, statements: &str) -> Result<Vec<Row>, String> {
    // A thread of its own: the caller's may be inside a runtime, where another one must not block.
    let work = || {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        let limited = async { tokio::time::timeout(OUTER_LIMIT, converse(dsn, statements)).await };
        runtime.block_on(limited).map_err(|_| format!("no answer after {OUTER_LIMIT:?}"))?
    };
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

async fn converse(dsn: &str, statements: &str) -> Result<Vec<Row>, String> {
    let mut config: Config = dsn.parse().map_err(|error| describe(&error))?;
    config.connect_timeout(CONNECT_LIMIT);
    let (client, connection) = config.connect(NoTls).await.map_err(|error| describe(&error))?;
    let connection = tokio::spawn(connection);
    let messages = client.simple_query(statements).await.map_err(|error| describe(&error))?;
    drop(client);
    // Says good-bye; the server may see it a little later.
    drop(connection.await);
    let rows = messages.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect()),
        _ => None,
    });
    Ok(rows.collect())
}

fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(answer) => format!("{}: {}", answer.code().code(), answer.message()),
        None => {
            let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
            format!("{error}{}", cause.unwrap_or_default())
        }
    }
}
