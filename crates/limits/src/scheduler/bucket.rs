//! Rate limits: as configured, as they are now, and their state.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use crate::bucket::{Fill, TokenCount, Tokens};
use crate::call::BucketId;
use crate::limiter::{BucketLimit, Level, PacerNow, TokenDraw};
use crate::queue::QueueTotals;
use crate::slab::{Slab, SlabKey};
use crate::supply::Supply;
use crate::time::Timestamp;
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
    /// The fate of a call for which there are no tokens.
    pub on_excess: OnExcess,
    /// In what order the calls that wait for it go.
    pub order: BucketOrder,
    /// The final charge of a call.
    pub settlement: Settlement,
}

/// The fate of a call for which there are no tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExcess {
    /// The call waits for tokens.
    #[default]
    Delay,
    /// The call is refused when it is submitted. Tokens for which others wait already are not there for it. Once it
    /// is taken in, it waits like any other.
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

/// The final charge of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Settlement {
    /// The charge is the estimated cost.
    #[default]
    Estimate,
    /// The charge is the measured cost, once the call has ended and if it was measured: the difference is charged, or
    /// put back.
    Measured,
}

/// The error for one more bucket than there may be.
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

/// A bucket, as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketNow {
    /// The rule of the bucket.
    pub rule: BucketRule,
    /// Tokens in it; below zero in debt.
    pub tokens: f64,
    /// Tokens that come back each second, which a supply may have lowered.
    pub per_second: f64,
    /// The pools and the pace, if the bucket is a paced one.
    pub paced: Option<PacerNow>,
    /// The verdict now for a call of one token with no call ahead.
    pub opens: Verdict,
    /// Calls in the queue that will be charged to it, whatever holds them.
    pub waiting: u64,
    /// The tokens that waiting calls will be charged.
    pub waiting_tokens: f64,
    /// Tokens, available now or next, that are claimed.
    pub claimed: f64,
    /// For how long claims have kept tokens that their calls could not use yet, over all of them.
    pub idle: Duration,
    /// The events so far.
    pub counts: BucketCounts,
}

/// Counts of events at a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BucketCounts {
    /// Tokens that it was charged, and were not put back.
    pub drawn: f64,
    /// Calls that it admitted.
    pub charged: u64,
    /// Calls that it refused.
    pub rejected: u64,
}

#[derive(Clone, Debug)]
pub(super) struct BucketState {
    pub(super) rule: BucketRule,
    /// The rate set from outside, where several processes share one.
    pub(super) supply: Supply<Fill>,
    pub(super) level: Level,
    pub(super) queued: QueueTotals,
    pub(super) counts: BucketCounts,
}

impl BucketState {
    pub(super) fn new(now: Timestamp, rule: BucketRule) -> Self {
        Self {
            level: Level::new(now, rule.limit),
            rule,
            supply: Supply::Configured,
            queued: QueueTotals::default(),
            counts: BucketCounts::default(),
        }
    }

    /// The verdict for a call that would draw from it, behind claims of `ahead`.
    pub(super) fn peek(&self, now: Timestamp, ahead: TokenCount, tokens: Tokens) -> Verdict {
        let level = self.level.limiter();
        level.verdict_behind(now, ahead.tokens(), tokens)
    }

    /// Whether no call waits for its tokens.
    pub(super) fn rejects(&self) -> bool {
        self.rule.on_excess == OnExcess::Reject
    }

    /// How long a call that arrives now would wait for earlier calls and for its own tokens.
    pub(super) fn wait_behind(&self, now: Timestamp, tokens: Tokens) -> Duration {
        self.wait_with(now, self.queued.draw, tokens)
    }

    /// How long a call with this ahead of it waits for that and for its own tokens. `ahead` is in millionths.
    pub(super) fn wait_with(&self, now: Timestamp, ahead: u64, tokens: Tokens) -> Duration {
        let ahead = TokenCount::from_micros(ahead).tokens();
        self.level.limiter().wait_behind(now, ahead, tokens)
    }

    /// Charges a call that leaves the queue.
    pub(super) fn draw(&mut self, now: Timestamp, tokens: Tokens) -> TokenDraw {
        self.counts.charged += 1;
        let taken = self.level.draw(now, tokens);
        self.counts.drawn += taken.tokens;
        taken
    }

    /// The call never left.
    pub(super) fn undraw(&mut self, now: Timestamp, taken: TokenDraw) {
        self.counts.charged -= 1;
        self.counts.drawn -= taken.tokens;
        self.level.undraw(now, taken);
    }

    /// The call has ended, and turned out to cost this, if that was measured. True if that changes the level.
    pub(super) fn settle(
        &mut self,
        now: Timestamp,
        taken: TokenDraw,
        estimate: Tokens,
        measured: Option<Tokens>,
    ) -> bool {
        let measured = measured.filter(|_| self.rule.settlement == Settlement::Measured);
        let Some(measured) = measured else {
            self.level.keep(taken);
            return false;
        };
        let estimate = estimate.get();
        // No more is put back than was taken.
        let surcharge = (measured.get() - estimate).max(-taken.tokens);
        self.counts.drawn += if surcharge > 0.0 {
            let whole = estimate + surcharge;
            self.level.keep(taken);
            self.level.take_more(now, surcharge, whole)
        } else {
            self.level.put_back(now, taken, -surcharge);
            surcharge
        };
        true
    }

    /// Sets the level to the present rate: that of the rule, or a lower supply. Refunds and removes
    /// nothing.
    pub(super) fn follow(&mut self, now: Timestamp) {
        let told = self.supply.at(now).map(Fill::get);
        self.level.follow(now, self.rule.limit, told);
    }
}

/// All buckets. One that calls wait for is never removed.
#[derive(Clone, Debug, Default)]
pub(super) struct Buckets {
    pub(super) all: Slab<BucketState>,
    pub(super) by_id: BTreeMap<BucketId, SlabKey>,
}

impl Buckets {
    pub(super) fn find(&self, id: Option<BucketId>) -> Option<SlabKey> {
        self.by_id.get(&id?).copied()
    }
}
