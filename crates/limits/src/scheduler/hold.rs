//! The draws of a call in flight.

use alloc::vec::Vec;

use crate::call::{Call, ServerNumber};
use crate::limiter::{Departures, Stake, TokenDraw};
use crate::policy::LimitId;
use crate::queue::Budget;
use crate::queue::fair::TurnAdvance;
use crate::quota::Payment;
use crate::slab::SlabKey;
use crate::time::Timestamp;

/// Everything one running call has drawn. It ends in exactly one of
/// [`finish`](crate::Scheduler::finish), [`give_back`](crate::Scheduler::give_back) and
/// [`requeue`](crate::Scheduler::requeue); a hold that is dropped instead stays drawn for ever.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what a hold has drawn comes back only through finish, give_back or requeue"]
pub struct Hold(pub(super) SlabKey);

impl Hold {
    /// A number for the running call, below the most that ran at once. A call that ends leaves it to the next.
    #[must_use]
    pub const fn place(&self) -> u32 {
        self.0.index()
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The call was answered.
    Served,
    /// The call failed because the backend has too much to do.
    Overloaded,
    /// The call failed otherwise. Its duration does not predict the next one: if the backend is down, a call ends
    /// at once.
    Failed,
}

/// A call in flight.
#[derive(Clone, Debug)]
pub(super) struct HoldState {
    pub(super) since: Timestamp,
    pub(super) call: Call,
    /// The server to which it is bound, if its backend has servers.
    pub(super) server: Option<ServerNumber>,
    pub(super) arrival: u64,
    /// How far it moved tags, by the weights of then.
    pub(super) service: TurnAdvance,
    /// The number of the call among all that were served.
    pub(super) served: u64,
    pub(super) drawn: Vec<BudgetDraw>,
    pub(super) progress: Departures,
}

/// The draw of a call from one limit, bucket or quota.
#[derive(Clone, Debug)]
pub(super) enum BudgetDraw {
    Limit {
        limit: LimitId,
        stake: Stake,
        /// The call took only what is kept for its class.
        is_kept: bool,
    },
    /// The bucket may have been removed since.
    Bucket { bucket: SlabKey, taken: TokenDraw },
    /// The key may have been forgotten since.
    Quota { quota: SlabKey, spent: Payment },
}

impl BudgetDraw {
    /// How far a service moved tags where this was drawn. What is kept for a class is no loss to
    /// others.
    pub(super) const fn service(&self, service: TurnAdvance) -> TurnAdvance {
        match self {
            Self::Limit { is_kept: true, .. } => service.within_its_class(),
            Self::Limit { .. } | Self::Bucket { .. } | Self::Quota { .. } => service,
        }
    }

    pub(super) const fn budget(&self) -> Budget {
        match *self {
            Self::Limit { limit, .. } => Budget::Limit(limit),
            Self::Bucket { bucket, .. } => Budget::Bucket(bucket),
            Self::Quota { quota, .. } => Budget::Quota(quota),
        }
    }
}
