//! Asking another member to do something, and waiting for its answer.

use std::time::Duration;

use cluster_core::scripts::request::{self, Outcome};
use cluster_core::{MemberId, Notice, scripts};
use database_core::{DbError, Script, Verdict};

use crate::cluster::Cluster;
use crate::standing::NoIdentity;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The addressee died, or nobody took the request: the caller decides anew.
    #[error("the request was discarded: its addressee is gone")]
    Discarded,
    /// Not answered in time; it may still be carried out.
    #[error("no answer within {0:?}; the request may still be carried out")]
    Late(Duration),
    /// There is no identity to ask for.
    #[error(transparent)]
    NoIdentity(#[from] NoIdentity),
    /// The database refuses.
    #[error(transparent)]
    Database(#[from] DbError),
}

impl Cluster {
    /// Asks `addressee` and waits for its answer.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub async fn ask(
        &self,
        addressee: MemberId,
        kind: &str,
        payload: &str,
        patience: Duration,
    ) -> Result<String, AskError> {
        self.standing().member()?;
        let mut stirred = self.stirred();
        let (kind, payload) = (kind.to_owned(), payload.to_owned());
        let id = self.write(move |me| insert(me, addressee, kind, payload)).await?;
        let Some(id) = id else { return Err(NoIdentity::Unregistered.into()) };
        self.send(Notice::request(addressee));
        let answered = async {
            loop {
                stirred.mark_unchanged();
                match self.database().read(poll(id)).await? {
                    Outcome::Answered(answer) => return Ok(answer),
                    Outcome::Discarded => return Err(AskError::Discarded),
                    Outcome::Open => {}
                }
                if stirred.changed().await.is_err() {
                    return Err(NoIdentity::Stopped.into());
                }
            }
        };
        tokio::time::timeout(patience, answered).await.unwrap_or(Err(AskError::Late(patience)))
    }
}

fn insert(me: MemberId, addressee: MemberId, kind: String, payload: String) -> Script<Option<i64>> {
    Script::transaction(move |mut tx| async move {
        if !scripts::member_guard(&mut tx, me).await? {
            return Ok(Verdict::RollBack(None));
        }
        Ok(Verdict::Commit(Some(request::ask(&mut tx, &kind, me, addressee, &payload).await?)))
    })
}

fn poll(id: i64) -> Script<Outcome> {
    Script::transaction(move |mut tx| async move {
        let outcome = request::poll(&mut tx, &[id]).await?.into_iter().next();
        Ok(Verdict::Commit(outcome.map_or(Outcome::Discarded, |(_, outcome)| outcome)))
    })
}
