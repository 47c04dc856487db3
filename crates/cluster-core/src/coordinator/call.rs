//! The coordinator's transactions.

use std::time::Duration;

use database_core::Script;

use super::Leadership;
use crate::scripts::lead::Contested;
use crate::scripts::reap::{Kept, ReapSteps, Reaped, Tidied};
use crate::scripts::request::Request;
use crate::scripts::ticket::Moved;
use crate::scripts::view::Seen;
use crate::scripts::{lead, reap, request, view};
use crate::{MemberId, Times};

/// What the coordinator asks of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Members, leaderships, requests and cache changes, in one statement.
    View {
        /// The own identity.
        me: MemberId,
        /// What the read before gave.
        open_from: i64,
    },
    /// Renew and take leaderships, in one statement.
    Contest {
        /// The own identity.
        me: MemberId,
        /// Names, and the epoch in which each is held.
        wanted: Vec<(&'static str, i64)>,
        /// The lowest epoch that may be given.
        epoch_min: i64,
    },
    /// Lead as the only process.
    Seize {
        /// The own identity.
        me: MemberId,
        /// Names.
        names: Vec<&'static str>,
    },
    /// Give leaderships back.
    Release {
        /// Which.
        held: Vec<Leadership>,
    },
    /// Take over what the dead left.
    Reap {
        /// The own identity.
        me: MemberId,
        /// Dead whatever their lease says; at the start only.
        known_dead: Vec<MemberId>,
    },
    /// End what is left of retired identities.
    Tidy {
        /// The own identity.
        me: MemberId,
        /// The retired ones.
        retired: Vec<MemberId>,
    },
    /// Take requests.
    TakeRequests {
        /// The own identity.
        me: MemberId,
        /// Those that are being carried out.
        in_hand: Vec<i64>,
    },
    /// End the registration.
    Deregister {
        /// The own identity.
        me: MemberId,
    },
}

/// What it answers, by the name of the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallAnswer {
    /// To [`Call::View`].
    Seen(Seen),
    /// To [`Call::Contest`].
    Contested(Vec<Contested>),
    /// To [`Call::Seize`]: names and epochs.
    Seized(Vec<(String, i64)>),
    /// To [`Call::Release`].
    Released,
    /// To [`Call::Reap`].
    Reaped(Reaped),
    /// To [`Call::Tidy`].
    Tidied(Tidied),
    /// To [`Call::TakeRequests`]; `None`: the identity is dead.
    Requests(Option<Vec<Request>>),
    /// To [`Call::Deregister`]: tickets that moved.
    Deregistered(Vec<Moved>),
}

/// What the scripts need besides the call.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// The lease's length, as [`super::Coordinator::times`] has it.
    pub lease: Duration,
    /// How parts above give up rows of dead owners.
    pub steps: ReapSteps,
    /// What a reap deletes.
    pub kept: Kept,
}

impl Call {
    /// What it may take in all, the wait for a connection included.
    #[must_use]
    pub fn limit(&self, times: &Times) -> Duration {
        match self {
            Self::View { .. } | Self::Contest { .. } | Self::Seize { .. } | Self::Release { .. } => {
                times.statement_timeout
            }
            // Several statements in a transaction, which may take that long; and a connection before.
            Self::Reap { .. } | Self::Tidy { .. } | Self::TakeRequests { .. } | Self::Deregister { .. } => {
                times.guarded_limit() + times.statement_timeout
            }
        }
    }

    /// What it is called in logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::View { .. } => "view",
            Self::Contest { .. } => "contest",
            Self::Seize { .. } => "seizure of leadership",
            Self::Release { .. } => "release of leadership",
            Self::Reap { .. } => "reap",
            Self::Tidy { .. } => "tidying",
            Self::TakeRequests { .. } => "taking of requests",
            Self::Deregister { .. } => "end of the registration",
        }
    }

    /// Whether it belongs on the connection that is kept for requests, not on the pool.
    #[must_use]
    pub const fn is_drain(&self) -> bool {
        matches!(self, Self::TakeRequests { .. })
    }

    /// What is to be run.
    #[must_use]
    pub fn script(&self, context: &CallContext) -> Script<CallAnswer> {
        match self.clone() {
            Self::View { me, open_from } => view::view(me, open_from).map(CallAnswer::Seen),
            Self::Contest { me, wanted, epoch_min } => {
                lead::contest(me, wanted, context.lease, epoch_min).map(CallAnswer::Contested)
            }
            Self::Seize { me, names } => lead::seize(me, names).map(CallAnswer::Seized),
            Self::Release { held } => lead::release(held).map(|()| CallAnswer::Released),
            Self::Reap { me, known_dead } => {
                reap::reap(me, known_dead, context.steps.clone(), context.kept).map(CallAnswer::Reaped)
            }
            Self::Tidy { me, retired } => reap::tidy(me, retired).map(CallAnswer::Tidied),
            Self::TakeRequests { me, in_hand } => request::take(me, in_hand).map(CallAnswer::Requests),
            Self::Deregister { me } => reap::deregister(me).map(CallAnswer::Deregistered),
        }
    }
}
