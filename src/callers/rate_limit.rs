//! Rate limits as operators know them: a label, a size, and what is done with a call that is
//! too much. The scheduler knows each one as a bucket of the same number.

pub(crate) mod options;
pub(crate) mod profiles;

use std::sync::Arc;

use tidegate_callers::RateLimitId;
use tidegate_limits::call::BucketId;
use tidegate_limits::scheduler::{BucketLimit, BucketRule, Settlement};

use crate::call::LimitMode;
use crate::call::pace::{CostRange, pace};
pub use crate::call::rate_limit::{
    Allowance, Derive, Handling, HandlingPatch, NewRateLimit, RateLimitPatch, Size, SizePatch,
};
use crate::telemetry::calls::RATE_LIMIT_PREFIX;

/// The most rate limits; each is a label value in the metrics.
pub const RATE_LIMITS_MAX: usize = 1024;

/// The unit that has a quota of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaBy {
    /// All calls share a quota.
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
    /// The name of the profile.
    pub name: Arc<str>,
    /// How much it lets through.
    pub allowance: Allowance,
}

/// The rule of a rate limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// How much it lets through.
    pub allowance: Allowance,
    /// The profile that this is the size of, and follows when that changes.
    pub profile: Option<Arc<str>>,
    /// How it handles calls.
    pub handling: Handling,
}

impl Rule {
    /// A rule of this size that says nothing else.
    #[must_use]
    pub fn of(allowance: Allowance) -> Self {
        Self {
            allowance,
            profile: None,
            handling: Handling::default(),
        }
    }
}

/// Where a rate limit comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimitOrigin {
    /// The rate limit is in the config, and only the config can change it.
    Config,
    /// The rate limit was made through the API.
    Api,
}

/// A rate limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The number of the rate limit.
    pub id: RateLimitId,
    /// The label, also in metrics; its number without a label.
    pub label: Arc<str>,
    /// Where it comes from.
    pub made_by: RateLimitOrigin,
    /// The rule of the rate limit.
    pub rule: Rule,
}

impl RateLimit {
    /// The name in refusals, logs and metrics of limits.
    #[must_use]
    pub fn name(&self) -> Arc<str> {
        format!("{RATE_LIMIT_PREFIX}{}", self.label).into()
    }

    /// Whether a call charged to it is charged by its time in the end. `settles` is what holds for limits that don't say.
    pub(super) fn settles_by_time(&self, settles: bool) -> bool {
        self.rule.handling.settle.unwrap_or(settles)
    }

    /// Whether a call charged to it may be charged otherwise in the end.
    pub(super) fn settles(&self) -> bool {
        self.rule.handling.settle != Some(false)
    }

    /// The bucket of the rate limit; `None` if it admits every call. `costs` is what calls cost.
    pub(super) fn bucket(&self, costs: CostRange) -> Option<BucketRule> {
        let limit = match self.rule.allowance {
            Allowance::Exempt => return None,
            Allowance::Bucket { burst, fill } => BucketLimit::Bucket { burst, fill },
            Allowance::Paced { rate, ratio } => BucketLimit::Paced(pace(rate, ratio, costs)),
        };
        let handling = self.rule.handling;
        Some(BucketRule {
            name: self.name(),
            limit,
            on_excess: handling.on_excess,
            order: handling.order,
            // Each call decides whether it is measured.
            settlement: match self.settles() {
                true => Settlement::Measured,
                false => Settlement::Estimate,
            },
        })
    }
}

/// A change of the scheduler's buckets after one of the rate limits; to be made in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BucketChange {
    /// Make it, or change it in place.
    Set(BucketId, BucketRule, LimitMode),
    /// Remove it. Calls that wait for it go to where
    /// [`Callers::reroute`](super::Callers::reroute) says.
    Remove(BucketId),
    /// Calls that wait may be charged to another bucket, or none, from now on.
    Recharge,
}
