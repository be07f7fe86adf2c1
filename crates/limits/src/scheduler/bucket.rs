//! One bucket, and all of them.

use alloc::collections::BTreeMap;
use core::time::Duration;

use super::bucket_rule::{BucketMode, BucketRule, OnExcess, Settlement};
use crate::bucket::{Fill, TokenCount, Tokens};
use crate::call::BucketId;
use crate::limiter::{Level, Taken};
use crate::slab::{Key, Slab};
use crate::supply::Supply;
use crate::time::Timestamp;
use crate::verdict::Verdict;

/// How much more than its estimate a call can be charged in the end, in estimates.
const SURCHARGE_MAX: f64 = 4.0;

#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) rule: BucketRule,
    /// The rate set from outside, where several processes share one.
    pub(super) supply: Supply<Fill>,
    pub(super) level: Level,
    pub(super) drawn: f64,
    pub(super) waiting: u64,
    pub(super) waiting_tokens: TokenCount,
    pub(super) charged: u64,
    pub(super) would_have_delayed: u64,
    pub(super) would_have_delayed_for: Duration,
    pub(super) rejected: u64,
}

impl Bucket {
    /// The verdict for a call that would draw from it, behind claims of `ahead`.
    pub(super) fn peek(&self, now: Timestamp, ahead: TokenCount, tokens: Tokens) -> Verdict {
        match self.rule.mode {
            BucketMode::Enforce => {
                let level = self.level.limiter();
                level.verdict_behind(now, ahead.tokens(), tokens)
            }
            BucketMode::Observe => Verdict::Ready,
        }
    }

    /// Whether no call waits for its tokens.
    pub(super) fn rejects(&self) -> bool {
        self.rule.mode == BucketMode::Enforce && self.rule.on_excess == OnExcess::Reject
    }

    /// How long a call that arrives now would wait for earlier calls and for its own tokens.
    pub(super) fn wait_behind(&self, now: Timestamp, tokens: Tokens) -> Duration {
        match self.rule.mode {
            BucketMode::Enforce => {
                let ahead = self.waiting_tokens.tokens();
                self.level.limiter().wait_behind(now, ahead, tokens)
            }
            BucketMode::Observe => Duration::ZERO,
        }
    }

    pub(super) fn count_waiting(&mut self, tokens: Tokens) {
        self.waiting += 1;
        let turn = TokenCount::of_turn(tokens);
        self.waiting_tokens = self.waiting_tokens.saturating_add(turn);
    }

    pub(super) fn discount_waiting(&mut self, tokens: Tokens) {
        self.waiting -= 1;
        let turn = TokenCount::of_turn(tokens);
        self.waiting_tokens = self.waiting_tokens.saturating_sub(turn);
    }

    /// Charges a call that leaves the queue.
    pub(super) fn draw(&mut self, now: Timestamp, tokens: Tokens) -> Taken {
        self.charged += 1;
        let level = self.level.limiter();
        if self.rule.mode == BucketMode::Observe && !level.has(now, tokens) {
            let delay = level.delay_until_available(now, tokens);
            self.would_have_delayed += 1;
            self.would_have_delayed_for = self.would_have_delayed_for.saturating_add(delay);
        }
        let taken = self.level.draw(now, tokens);
        self.drawn += taken.tokens;
        taken
    }

    /// The call never left.
    pub(super) fn undraw(&mut self, now: Timestamp, taken: Taken) {
        self.charged -= 1;
        self.drawn -= taken.tokens;
        self.level.undraw(now, taken);
    }

    /// The call has ended, and turned out to cost this.
    pub(super) fn settle(
        &mut self,
        now: Timestamp,
        taken: Taken,
        estimate: Tokens,
        measured: Tokens,
    ) {
        if self.rule.settlement == Settlement::Measured {
            let estimate = estimate.get();
            // No more is put back than was taken.
            let surcharge =
                (measured.get() - estimate).clamp(-taken.tokens, SURCHARGE_MAX * estimate);
            self.drawn += if surcharge > 0.0 {
                let whole = estimate + surcharge;
                self.level.take_more(now, surcharge, whole)
            } else {
                self.level.put_back(now, taken.part(-surcharge));
                surcharge
            };
        }
    }

    /// Sets the level to the present rate: that of the rule, or a lower supply. Refunds and removes
    /// nothing.
    pub(super) fn follow(&mut self, now: Timestamp) {
        let told = self.supply.at(now).map(Fill::get);
        self.level.follow(now, self.rule.limit, told);
    }
}

/// All buckets.
#[derive(Debug)]
pub(super) struct Buckets {
    pub(super) all: Slab<Bucket>,
    pub(super) by_id: BTreeMap<BucketId, Key>,
}

impl Buckets {
    pub(super) fn new() -> Self {
        Self {
            all: Slab::default(),
            by_id: BTreeMap::new(),
        }
    }

    pub(super) fn find(&self, id: Option<BucketId>) -> Option<Key> {
        self.by_id.get(&id?).copied()
    }

    /// A bucket that calls wait for is never removed.
    pub(super) fn expect(&self, key: Key) -> &Bucket {
        self.all
            .get(key)
            .expect("the bucket of a waiting call is there")
    }

    pub(super) fn expect_mut(&mut self, key: Key) -> &mut Bucket {
        self.all
            .get_mut(key)
            .expect("the bucket of a waiting call is there")
    }

    /// A bucket that may have been removed.
    pub(super) fn get(&self, key: Key) -> Option<&Bucket> {
        self.all.get(key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Bucket> {
        self.all.get_mut(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Bucket)> {
        self.all.iter()
    }
}
