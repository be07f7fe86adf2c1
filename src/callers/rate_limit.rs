//! Rate limits as operators know them: a label, a size, and what is done with a call that is
//! too much. The scheduler knows each one as a bucket of the same number.

pub(crate) mod options;
pub(crate) mod profiles;

use std::sync::Arc;

use tidegate_callers::{CallerId, Label, LimitRef};
use tidegate_callers::{Headroom, Span};
use tidegate_limits::call::BucketId;
use tidegate_limits::pace::{BurstRatio, Rate};
use tidegate_limits::scheduler::{
    BucketLimit, BucketMode, BucketOrder, BucketRule, OnExcess, Settlement,
};
use tidegate_limits::{Burst, Fill};

use crate::call::claim::{Deadline, RateLimitId};
use crate::call::pace::{CostRange, pace};
use crate::telemetry::calls::RATE_LIMIT_PREFIX;

/// The most rate limits; each is a label value in the metrics.
pub const RATE_LIMITS_MAX: usize = 1024;

/// How much a rate limit lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// Everything, and no other rate limit is asked.
    Exempt,
    /// What is in a bucket of tokens.
    Bucket {
        /// The most tokens at once.
        burst: Burst,
        /// Tokens per second.
        fill: Fill,
    },
    /// A steady rate, and a little more for late calls, until they have caught up.
    Paced {
        /// Tokens per second.
        rate: Rate,
        /// How many times the rate the late are let through at.
        ratio: BurstRatio,
    },
}

/// What has a quota of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaBy {
    /// One for all calls.
    Total,
    /// Each function; or only this one, and calls of others meet none.
    Function(Option<Arc<str>>),
    /// Each caller.
    Caller,
    /// Each user.
    User,
}

/// A named size of rate limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub name: Arc<str>,
    /// How much it lets through.
    pub allowance: Allowance,
}

/// What a rate limit says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// How much it lets through.
    pub allowance: Allowance,
    /// The profile that this is the size of, and follows when that changes.
    pub profile: Option<Arc<str>>,
    /// Whether it holds anybody back.
    pub mode: BucketMode,
    /// What happens to a call for which there are no tokens.
    pub on_excess: OnExcess,
    /// In what order the calls that wait for it go.
    pub order: BucketOrder,
    /// Whether its calls are settled by the time that they took; none leaves it to
    /// `costs.settle`.
    pub settlement: Option<Settlement>,
    /// How long its calls may wait.
    pub deadline: Deadline,
}

impl Rule {
    /// A rule of this size that says nothing else.
    #[must_use]
    pub fn of(allowance: Allowance) -> Self {
        Self {
            allowance,
            profile: None,
            mode: BucketMode::default(),
            on_excess: OnExcess::default(),
            order: BucketOrder::default(),
            settlement: None,
            deadline: Deadline::default(),
        }
    }
}

/// Where a rate limit comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadeBy {
    /// It stands in the config, which alone can change it.
    Config,
    /// It was made through the API.
    Api,
}

/// A rate limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Its number.
    pub id: RateLimitId,
    /// Its label, also in metrics; its number without a label.
    pub label: Arc<str>,
    /// Where it comes from.
    pub made_by: MadeBy,
    /// What it says.
    pub rule: Rule,
}

impl RateLimit {
    /// Its name in refusals, logs and metrics of limits.
    #[must_use]
    pub fn name(&self) -> Arc<str> {
        format!("{RATE_LIMIT_PREFIX}{}", self.label).into()
    }

    /// How the table of callers refers to it.
    pub(super) fn reference(&self) -> LimitRef {
        LimitRef(self.id.0)
    }

    /// How a call charged to it is charged in the end. `settles` is what holds for limits that
    /// don't say.
    pub(super) fn settlement(&self, settles: bool) -> Settlement {
        self.rule.settlement.unwrap_or(if settles {
            Settlement::Measured
        } else {
            Settlement::Estimate
        })
    }

    /// Its bucket; none if it lets everything through. `costs` is what calls cost.
    pub(super) fn bucket(&self, settles: bool, costs: CostRange) -> Option<BucketRule> {
        let limit = match self.rule.allowance {
            Allowance::Exempt => return None,
            Allowance::Bucket { burst, fill } => BucketLimit::Bucket { burst, fill },
            Allowance::Paced { rate, ratio } => BucketLimit::Paced(pace(rate, ratio, costs)),
        };
        Some(BucketRule {
            name: self.name(),
            limit,
            mode: self.rule.mode,
            on_excess: self.rule.on_excess,
            order: self.rule.order,
            settlement: self.settlement(settles),
        })
    }
}

/// What is to be done to the scheduler's buckets after a change of the rate limits; in the
/// order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BucketChange {
    /// Make it, or change it in place.
    Set(BucketId, BucketRule),
    /// Remove it. Calls that wait for it go to where
    /// [`Callers::reroute`](super::Callers::reroute) says.
    Remove(BucketId),
    /// Calls that wait may be charged to another bucket, or none, from now on.
    Recharge,
}

/// How much a rate limit is to let through.
#[derive(Clone, Debug, PartialEq)]
pub enum Size {
    /// As much as a profile.
    Profile(Arc<str>),
    /// Everything.
    Exempt,
    /// A bucket.
    Bucket {
        /// The most tokens at once.
        burst: Burst,
        /// Tokens per second.
        fill: Fill,
    },
    /// A pace.
    Paced {
        /// Tokens per second.
        rate: Rate,
        /// How many times the rate the late are let through at.
        ratio: BurstRatio,
    },
    /// What would have let through what a caller used.
    Derived {
        /// The caller.
        caller: CallerId,
        /// Over which time.
        span: Span,
        /// How much faster than its mean.
        headroom: Headroom,
    },
}

/// A rate limit to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRateLimit {
    /// What people call it.
    pub label: Option<Label>,
    /// How much it lets through.
    pub size: Size,
    /// Whether it holds anybody back.
    pub mode: BucketMode,
    /// What happens to a call for which there are no tokens.
    pub on_excess: OnExcess,
    /// In what order the calls that wait for it go.
    pub order: BucketOrder,
    /// Whether its calls are settled; none leaves it to the costs.
    pub settlement: Option<Settlement>,
    /// How long its calls may wait.
    pub deadline: Deadline,
    /// Whose it is.
    pub callers: Vec<CallerId>,
}

impl NewRateLimit {
    /// One of this size that says nothing else.
    #[must_use]
    pub fn of(size: Size) -> Self {
        Self {
            label: None,
            size,
            mode: BucketMode::default(),
            on_excess: OnExcess::default(),
            order: BucketOrder::default(),
            settlement: None,
            deadline: Deadline::default(),
            callers: Vec::new(),
        }
    }
}

/// What to change of how much a rate limit lets through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SizePatch {
    /// As much as a profile.
    Profile(Arc<str>),
    /// Everything.
    Exempt,
    /// A bucket; what is not given stays.
    Bucket {
        /// The most tokens at once.
        burst: Option<Burst>,
        /// Tokens per second.
        fill: Option<Fill>,
    },
    /// A pace; what is not given stays, and the ratio of one that had none is the usual one.
    Paced {
        /// Tokens per second.
        rate: Option<Rate>,
        /// How many times the rate the late are let through at.
        ratio: Option<BurstRatio>,
    },
}

/// What to change of a rate limit; `None` leaves it as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitPatch {
    /// What people call it.
    pub label: Option<Label>,
    /// How much it lets through.
    pub size: Option<SizePatch>,
    /// Whether it holds anybody back.
    pub mode: Option<BucketMode>,
    /// What happens to a call for which there are no tokens.
    pub on_excess: Option<OnExcess>,
    /// In what order the calls that wait for it go.
    pub order: Option<BucketOrder>,
    /// Whether its calls are settled; the inner `None` leaves it to the costs.
    pub settlement: Option<Option<Settlement>>,
    /// How long its calls may wait.
    pub deadline: Option<Deadline>,
}
