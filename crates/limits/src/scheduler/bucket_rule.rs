//! A rate limit as configured, and as it is now.

use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use crate::limiter::{BucketLimit, PacerNow};
use crate::verdict::Verdict;

/// Buckets that a scheduler may have.
pub const BUCKETS_MAX: usize = 16_384;

/// A rate limit as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketRule {
    /// The name that refusals carry.
    pub name: Arc<str>,
    /// How many tokens it admits.
    pub limit: BucketLimit,
    /// Whether it delays calls.
    pub mode: BucketMode,
    /// What happens to a call for which there are no tokens.
    pub on_excess: OnExcess,
    /// In what order the calls that wait for it go.
    pub order: BucketOrder,
    /// What a call is charged in the end.
    pub settlement: Settlement,
}

/// Whether a bucket delays calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BucketMode {
    /// It does.
    #[default]
    Enforce,
    /// It only counts the calls that it would delay. Calls are charged down to the largest debt
    /// ([`DEBT_MAX_FILL`](crate::bucket::DEBT_MAX_FILL)), so a call counts as delayed if it would
    /// have waited for earlier ones.
    Observe,
}

/// What happens to a call for which there are no tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExcess {
    /// It waits for them.
    #[default]
    Delay,
    /// It is refused when it is submitted. Tokens for which others wait already are not there
    /// for it. Once it is taken in, it waits like any other.
    Reject,
}

/// The order of calls that wait for a bucket. Classes share by weight in both cases. A change
/// applies to waiting calls, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BucketOrder {
    /// Callers take turns, by their weight and what their calls cost.
    #[default]
    Fair,
    /// By arrival, whatever the caller.
    Fifo,
}

/// What a call is charged in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Settlement {
    /// Its estimated cost.
    #[default]
    Estimate,
    /// What it turned out to cost, once it has ended: the difference is charged or put back, but
    /// no more than four times the estimate on top.
    Measured,
}

/// One more bucket than there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyBuckets;

impl fmt::Display for TooManyBuckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "there are {BUCKETS_MAX} buckets, and there may be no more"
        )
    }
}

impl core::error::Error for TooManyBuckets {}

/// One bucket, as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketNow {
    /// Its rule.
    pub rule: BucketRule,
    /// Tokens in it; below zero in debt.
    pub tokens: f64,
    /// Tokens that come back each second, which a supply may have lowered.
    pub per_second: f64,
    /// Tokens that it was charged so far, and were not put back.
    pub drawn: f64,
    /// Its pools and its pace, if it is a paced one.
    pub paced: Option<PacerNow>,
    /// The verdict now for a call of one token with no call ahead.
    pub opens: Verdict,
    /// Calls in the queue that will be charged to it, whatever holds them.
    pub waiting: u64,
    /// What they will be charged, in tokens.
    pub waiting_tokens: f64,
    /// Tokens, available now or next, that are claimed.
    pub claimed: f64,
    /// For how long claims have kept tokens that their calls could not use yet, over all of them.
    pub idle: Duration,
    /// Calls that it admitted so far.
    pub charged: u64,
    /// Of these, calls that it admitted only because it observes.
    pub would_have_delayed: u64,
    /// How long those would have waited, together.
    pub would_have_delayed_for: Duration,
    /// Calls that it refused so far.
    pub rejected: u64,
}
