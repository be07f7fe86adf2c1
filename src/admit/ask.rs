//! The question of a call to the gate.

use std::sync::Arc;

use tidegate_handover::ForeignId;
use tidegate_limits::call::{BucketId, Cost, QuotaKey, ServerChoice};
use tidegate_limits::{Caller, Timestamp, Tokens, Weight};

use crate::call::claim::{self, Settling};
use crate::call::{CallDigest, Claim, Destination, Role};

/// Who waits for a call. That decides how long it may wait without other settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// The client waits: for the deadline of the call.
    Client,
    /// No client, because it was handed over: until it is served.
    NoClient,
}

/// A call that asks for its turn.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The exact name of its function.
    pub function: Arc<str>,
    /// The destination.
    pub destination: Destination,
    /// The servers that may serve it.
    pub server: ServerChoice,
    /// Whether it meets the limits.
    pub limited: bool,
    /// When its clock started.
    pub arrived: Timestamp,
    /// Who waits for it.
    pub waits: Waits,
    /// The caller for which it takes turns, and what it draws.
    pub claimed: Claimed,
    /// The name of its class.
    pub class: Arc<str>,
    /// The role for promotion.
    pub role: Role,
    /// The guest that it is about, unless its record names it.
    pub target: Option<Box<str>>,
    /// Set for a call of another process.
    pub foreign: Option<ForeignAsk>,
    /// The place that is kept for the call, if its client comes back.
    pub place: Option<CallDigest>,
}

/// The part of a question that only calls of another process have.
#[derive(Clone, Copy, Debug)]
pub struct ForeignAsk {
    /// The number of the call.
    pub id: ForeignId,
    /// The last moment at which it can leave the queue.
    pub deadline: Option<Timestamp>,
}

/// A claim, as the scheduler counts.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The caller.
    pub caller: Caller,
    /// The caller's turns for one turn of an ordinary caller.
    pub weight: Weight,
    /// The draw from each window.
    pub cost: Cost,
    /// The estimated cost.
    pub tokens: Tokens,
    /// The bucket that is charged.
    pub bucket: Option<BucketId>,
    /// The quotas that it draws from.
    pub quotas: Option<Arc<[QuotaKey]>>,
    /// How it is settled after the backend is done, if at all.
    pub settling: Option<Settling>,
    /// Whether its final cost corrects its quotas and its turns too.
    pub is_settled: bool,
    /// How long its rate limit lets it wait; without a setting, its class decides.
    pub deadline: claim::ClaimDeadline,
}

impl Claimed {
    /// Puts a claim in those terms.
    #[must_use]
    pub fn of(claim: &Claim) -> Self {
        Self {
            caller: Caller(claim.caller.0),
            weight: claim.weight,
            cost: Cost::ONE,
            tokens: claim::drawn(claim.cost),
            bucket: claim.charged.bucket(),
            quotas: claim.quotas.clone(),
            settling: claim.settling.clone(),
            is_settled: claim.is_settled_by_answer(),
            deadline: claim.deadline(),
        }
    }
}
