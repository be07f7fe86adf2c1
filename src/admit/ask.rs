//! What the gate has to know about a call.

use std::sync::Arc;

use tidegate_limits::call::{BucketId, QuotaKey};
use tidegate_limits::{Caller, Timestamp, Tokens, Weight};

use crate::call::claim::{self, Settling};
use crate::call::{Claim, Destination, Role};

/// Who waits for a call. That decides how long it may wait without other settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Its client: for the threshold.
    Client,
    /// No client, because it was handed over: until it is served.
    NoClient,
}

/// What the gate must know about a call.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The exact name of its function.
    pub function: Arc<str>,
    /// Its destination.
    pub destination: Destination,
    /// Whether it meets the limits.
    pub limited: bool,
    /// When its clock started.
    pub arrived: Timestamp,
    /// Who waits for it.
    pub waits: Waits,
    /// The caller.
    pub caller: Caller,
    /// Its caller's turns for one turn of an ordinary caller.
    pub weight: Weight,
    /// Its estimated cost.
    pub tokens: Tokens,
    /// The bucket that is charged.
    pub bucket: Option<BucketId>,
    /// The quotas that it draws from.
    pub quotas: Option<Arc<[QuotaKey]>>,
    /// How it is settled after the backend is done, if at all.
    pub settling: Option<Settling>,
    /// How long its rate limit lets it wait; without a setting, its class decides.
    pub deadline: claim::Deadline,
    /// The name of its class.
    pub class: Arc<str>,
    /// Its role for promotion.
    pub role: Role,
    /// The guest that it is about.
    pub target: Option<Box<str>>,
}

impl Ask {
    /// A call that meets limits, without a known caller, a charge or a class of its own.
    #[must_use]
    pub fn new(function: &Arc<str>, destination: Destination, arrived: Timestamp) -> Self {
        Self {
            function: Arc::clone(function),
            destination,
            limited: true,
            arrived,
            waits: Waits::Client,
            caller: Caller::ANONYMOUS,
            weight: Weight::ONE,
            tokens: Tokens::ONE,
            bucket: None,
            quotas: None,
            settling: None,
            deadline: claim::Deadline::Ordinary,
            class: Arc::from("none"),
            role: Role::Apart,
            target: None,
        }
    }

    /// The same, with the caller and the charge of the claim.
    #[must_use]
    pub fn claimed(self, claim: &Claim) -> Self {
        Self {
            caller: Caller(claim.caller.0),
            weight: claim.weight,
            tokens: claim::drawn(claim.cost),
            bucket: claim.charged.bucket(),
            quotas: claim.quotas.clone(),
            settling: claim.settling.clone(),
            deadline: claim.deadline(),
            ..self
        }
    }
}
