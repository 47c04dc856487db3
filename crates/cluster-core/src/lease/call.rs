//! The agent's transactions.

use std::time::Duration;

use database_core::{Answer, Class, DbError, Script, Tx, Verdict};

use super::Process;
use crate::statements::member;
use crate::time::millis;
use crate::{MemberId, Times};

/// What the agent asks of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseCall {
    /// Settle or compare the lease's length, and register.
    Register {
        /// A fresh identity.
        id: MemberId,
        /// Who it is.
        process: Process,
        /// The lease.
        lease: Duration,
    },
    /// Renew, in one statement that commits by itself.
    Renew {
        /// The identity.
        id: MemberId,
        /// The lease.
        lease: Duration,
        /// How long ago the last beat was.
        beat_age: Duration,
    },
    /// Change the length of all leases.
    SetLease {
        /// The own identity, which may live.
        id: MemberId,
        /// The new length.
        lease: Duration,
    },
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// Registered.
    Registered {
        /// The number of the identity.
        no: i64,
        /// What is left of the lease, ms.
        left_ms: i64,
        /// The database's time, ms since 1970.
        db_ms: i64,
    },
    /// Not registered: the stored lease is another one.
    LeaseDiffers {
        /// The stored one.
        stored: Duration,
    },
    /// Renewed.
    Renewed {
        /// What is left of the lease, ms.
        left_ms: i64,
        /// The database's time, ms since 1970.
        db_ms: i64,
    },
    /// Not renewed: the lease had expired.
    Expired,
    /// Not renewed: there is no such registration.
    Missing,
    /// Whether the lease's length was changed.
    LeaseSet(bool),
}

impl LeaseCall {
    /// What it may take, in all.
    #[must_use]
    pub fn limit(&self, times: &Times) -> Duration {
        match self {
            Self::Renew { .. } => times.statement_timeout,
            Self::Register { .. } | Self::SetLease { .. } => times.statement_timeout * 2,
        }
    }

    /// What it is called in logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Register { .. } => "registration",
            Self::Renew { .. } => "renewal",
            Self::SetLease { .. } => "change of the lease",
        }
    }

    /// What is to be run.
    #[must_use]
    pub fn script(&self) -> Script<LeaseAnswer> {
        match self {
            Self::Register { id, process, lease } => register(*id, process.clone(), *lease),
            Self::Renew { id, lease, beat_age } => {
                let values = [(*id).into(), millis(*lease).into(), millis(*beat_age).into()];
                Script::statement(&member::RENEW, values, |answer| read_renewal(&answer))
            }
            Self::SetLease { id, lease } => {
                let values = [millis(*lease).into(), (*id).into()];
                Script::transaction(move |mut tx: Tx| async move {
                    tx.query(&member::LOCK_LEASE, []).await?;
                    let is_set = tx.execute(&member::SET_LEASE, values).await? == 1;
                    Ok(Verdict::Commit(LeaseAnswer::LeaseSet(is_set)))
                })
            }
        }
    }
}

fn register(id: MemberId, process: Process, lease: Duration) -> Script<LeaseAnswer> {
    Script::transaction(move |mut tx: Tx| async move {
        let lease_ms = millis(lease);
        tx.execute(&member::SETTLE_LEASE, [lease_ms.into()]).await?;
        let stored =
            tx.query_opt(&member::READ_LEASE, []).await?.ok_or_else(|| broken("the lease's length"))?.int(0)?;
        if stored != lease_ms {
            let stored = Duration::from_millis(u64::try_from(stored).unwrap_or(0));
            return Ok(Verdict::RollBack(LeaseAnswer::LeaseDiffers { stored }));
        }
        let values = vec![
            id.into(),
            process.host.into(),
            process.boot_id.into(),
            process.pid.into(),
            process.program.into(),
            process.schema_version.into(),
            lease_ms.into(),
        ];
        let row = tx.query_opt(&member::REGISTER, values).await?.ok_or_else(|| broken("the registration"))?;
        Ok(Verdict::Commit(LeaseAnswer::Registered { no: row.int(0)?, left_ms: row.int(1)?, db_ms: row.int(2)? }))
    })
}

fn read_renewal(answer: &Answer) -> Result<LeaseAnswer, DbError> {
    let Some(row) = answer.rows.first() else { return Ok(LeaseAnswer::Missing) };
    match row.int_or_null(0)? {
        Some(left_ms) => Ok(LeaseAnswer::Renewed { left_ms, db_ms: row.int(1)? }),
        None => Ok(LeaseAnswer::Expired),
    }
}

fn broken(what: &str) -> DbError {
    DbError::new(Class::Broken, format!("the database gave no row for {what}"))
}
